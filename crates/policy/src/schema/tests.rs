use std::collections::BTreeSet;

use super::*;
use crate::effect::EffectSet;
use crate::file::PolicyFile;
use crate::file::raw;
use crate::limits::Limit;

const ROLES: [FileRole; 2] = [FileRole::Policy, FileRole::Ceiling];

/// Whether `schema` describes `value`, as far as our schemas go. Other tools check patterns and formats.
fn holds(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(schema) = schema else { return schema == &Value::Bool(true) };
    let sub = |schema: &Value, value: &Value| holds(root, schema, value);
    schema.iter().all(|(word, said)| match (word.as_str(), value) {
        ("$schema" | "$id" | "$defs" | "title" | "description" | "examples" | "pattern" | "format", _) => {
            true
        }
        ("$ref", _) => sub(root.pointer(said.as_str().unwrap().trim_start_matches('#')).unwrap(), value),
        ("const", _) => said == value,
        ("enum", _) => said.as_array().unwrap().contains(value),
        ("not", _) => !sub(said, value),
        ("anyOf", _) => said.as_array().unwrap().iter().any(|said| sub(said, value)),
        ("oneOf", _) => said.as_array().unwrap().iter().filter(|said| sub(said, value)).count() == 1,
        ("type", _) => {
            let kind = match value {
                Value::Object(_) => "object",
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Bool(_) => "boolean",
                Value::Number(number) if number.is_u64() || number.is_i64() => "integer",
                Value::Number(_) => "number",
                Value::Null => "null",
            };
            said == kind
        }
        ("minimum", Value::Number(number)) => number.as_u64() >= said.as_u64(),
        ("maximum", Value::Number(number)) => number.as_u64() <= said.as_u64(),
        ("minLength", Value::String(text)) => text.chars().count() as u64 >= said.as_u64().unwrap(),
        ("maxLength", Value::String(text)) => text.chars().count() as u64 <= said.as_u64().unwrap(),
        ("items", Value::Array(items)) => items.iter().all(|item| sub(said, item)),
        ("required", Value::Object(members)) => {
            said.as_array().unwrap().iter().all(|name| members.contains_key(name.as_str().unwrap()))
        }
        ("properties", Value::Object(members)) => {
            members.iter().all(|(name, value)| said.get(name).is_none_or(|said| sub(said, value)))
        }
        ("propertyNames", Value::Object(members)) => {
            members.keys().all(|name| sub(said, &Value::String(name.clone())))
        }
        ("additionalProperties", Value::Object(members)) => {
            let known = schema.get("properties").and_then(Value::as_object);
            let more =
                members.iter().filter(|(name, _)| !known.is_some_and(|known| known.contains_key(*name)));
            more.into_iter().all(|(_, value)| sub(said, value))
        }
        (
            "minimum"
            | "maximum"
            | "minLength"
            | "maxLength"
            | "items"
            | "required"
            | "properties"
            | "propertyNames"
            | "additionalProperties",
            _,
        ) => true,
        (word, _) => panic!("this checker does not know `{word}`"),
    })
}

fn is_valid(schema: &Value, value: &Value) -> bool {
    holds(schema, schema, value)
}

/// Converts a document to JSON.
fn json_of(node: raw::Node) -> Value {
    match node.value {
        raw::Value::Str(text) => text.into(),
        raw::Value::Bool(yes) => yes.into(),
        raw::Value::Int(number) => i64::try_from(number).unwrap().into(),
        raw::Value::Date(day) => day.to_string().into(),
        raw::Value::Array(items) => items.into_iter().map(json_of).collect(),
        raw::Value::Table(entries) => {
            entries.into_iter().map(|entry| (entry.key, json_of(entry.node))).collect::<Map<_, _>>().into()
        }
        raw::Value::Null | raw::Value::Other(_) => Value::Null,
    }
}

const POLICY: &str = include_str!("../../tests/fixtures/good.toml");
const CEILING: &str = include_str!("../../tests/fixtures/ceiling.toml");
const EFFECTS: &str = include_str!("../../tests/fixtures/effects.json");

#[test]
fn checks_the_samples() {
    for (role, text) in [(FileRole::Policy, POLICY), (FileRole::Ceiling, CEILING)] {
        let sample = json_of(raw::toml(text).unwrap());
        assert!(is_valid(&policy_json_schema(role), &sample), "{role:?}");
    }
    let [policy, ceiling] = ROLES.map(policy_json_schema);
    let sample = |text: &str| json_of(raw::toml(text).unwrap());
    assert!(!is_valid(&ceiling, &sample(POLICY)) && !is_valid(&policy, &sample(CEILING)));
    let json = json_of(raw::json(include_str!("../../tests/fixtures/good.json")).unwrap());
    assert!(is_valid(&policy, &json));

    let effects: Value = serde_json::from_str(EFFECTS).unwrap();
    assert!(is_valid(&effects_json_schema(), &effects));
    for effect in effects.as_array().unwrap() {
        assert!(is_valid(&effects_json_schema(), effect), "{effect}");
    }
}

/// Returns values of every form: some valid, and an invalid one.
fn samples(shape: Shape) -> (Vec<Value>, Value) {
    let (right, wrong) = match shape {
        Shape::Version => (json!([1]), json!(2)),
        Shape::Table => (json!([{}]), json!([])),
        Shape::Tables => (json!([[], [{"allow": []}], [{"deny": ["a.test"]}]]), json!([{}])),
        Shape::Stage => (json!(["x", "x".repeat(128)]), json!("x".repeat(129))),
        Shape::Text => (json!(["", "x"]), json!(1)),
        Shape::Flag => (json!([true, false]), json!("true")),
        Shape::Day => (json!(["2027-03-31"]), json!(2027)),
        Shape::Rules => (json!([[], ["a.test", "*.a.test:80"]]), json!("a.test")),
        Shape::HostPorts => (json!([[], [1, 65535, "5432", "11434:80"]]), json!([0])),
        Shape::Protected => (json!([[], [".vscode"]]), json!([1])),
        Shape::Presets => (json!([[], ["code"]]), json!([1])),
        Shape::Binds => (json!([[], ["a", "~/b", "/c"]]), json!("a")),
        Shape::Paths => (json!([[], ["a", "~/b", "/c"]]), json!([""])),
        Shape::Names => (json!([[], ["CI"]]), json!([1])),
        Shape::Variables => (json!([{}, {"TZ": "UTC"}]), json!({"TZ": 1})),
        Shape::Span => (json!(["90s", "1h30m", "500ms"]), json!(90)),
        Shape::Size => (json!(["512", "10MB", "2g", "64KiB"]), json!(512)),
        Shape::Memory => (json!(["1048576", "2GB", "1m", "1024KiB"]), json!(100)),
        Shape::Count(Limit::OpenFiles) => (json!([16, 4_294_967_295_u32]), json!(8)),
        Shape::Count(Limit::Connections | Limit::ConnectionsPerHost) => {
            (json!([1, 1_000_000]), json!(1_000_001))
        }
        Shape::Count(_) => (json!([1, 4_294_967_295_u32]), json!(0)),
        Shape::NextHop => (json!([{"proxy": "http://p.test:3128"}]), json!({})),
        Shape::Upstream => (json!(["http://p.test:3128", "http://[2001:db8::1]:80/"]), json!(1)),
        Shape::Auth => (json!(["file:a", "env:A_1"]), json!(1)),
        Shape::Bypass => (json!([[], ["a.test", ".b.test", "10.0.0.0/8"]]), json!("a.test")),
        Shape::OneOf(words) => (json!(words), json!("other")),
        Shape::EffectKinds => (json!([[], ["fs-read", "network-hosts"]]), json!(["FsRead"])),
        Shape::Later => (json!([]), json!(1)),
    };
    (right.as_array().unwrap().clone(), wrong)
}

/// Builds a document with one key, and only what its table requires besides.
fn document(key: &Key, value: &Value) -> Value {
    match key.section {
        "" => json!({key.name: value}),
        "network.rule" if ["allow", "deny"].contains(&key.name) => {
            json!({"network": {"rule": [{key.name: value}]}})
        }
        "network.rule" => json!({"network": {"rule": [{"allow": [], key.name: value}]}}),
        "network.upstream" if key.name == "proxy" => json!({"network": {"upstream": {"proxy": value}}}),
        "network.upstream" => {
            json!({"network": {"upstream": {"proxy": "http://p.test:3128", key.name: value}}})
        }
        section => json!({section: {key.name: value}}),
    }
}

/// K15: the reader and the schema accept the same keys with the same values, in the same places, for each role.
#[test]
fn reader_and_schema_agree_on_every_key() {
    for role in ROLES {
        let schema = policy_json_schema(role);
        for key in KEYS {
            let here = key.shape != Shape::Later && key.only.is_none_or(|only| only == role);
            let (right, wrong) = samples(key.shape);
            let check = |value: &Value, expect: bool| {
                let document = document(key, value);
                let read = PolicyFile::parse(&document.to_string(), "x", role, &|| vec!["code"]);
                let hint = "`samples` has a right and a wrong value for each `Shape`: do they suit this key?";
                assert_eq!(read.is_ok(), expect, "the reader, {role:?}: {document}: {read:?}; {hint}");
                assert_eq!(is_valid(&schema, &document), expect, "the schema, {role:?}: {document}; {hint}");
            };
            right.iter().for_each(|value| check(value, here));
            check(&wrong, false);
        }
    }
}

#[test]
fn describes_only_known_keys() {
    fn keys(section: &str, schema: &Value, found: &mut BTreeSet<(String, String)>) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
        assert_eq!(schema["additionalProperties"], false, "{section}");
        for (name, schema) in properties {
            found.insert((section.to_owned(), name.clone()));
            let below = if section.is_empty() { name.clone() } else { format!("{section}.{name}") };
            keys(&below, schema, found);
            keys(&below, &schema["items"], found);
        }
    }
    for role in ROLES {
        let mut found = BTreeSet::new();
        keys("", &policy_json_schema(role), &mut found);
        let known = KEYS.iter().filter(|key| key.shape != Shape::Later);
        let known = known.filter(|key| key.only.is_none_or(|only| only == role));
        let known: BTreeSet<_> = known.map(|key| (key.section.to_owned(), key.name.to_owned())).collect();
        assert_eq!(found, known);
    }
}

#[test]
fn reader_and_schema_agree_on_effects() {
    let schema = effects_json_schema();
    for (text, expect) in [
        (r#"[]"#, true),
        (r#"{"effect": "Pure"}"#, true),
        (r#"[{"effect": "Cost", "cents": 0}]"#, true),
        (r#"[{"effect": "NetworkHosts", "hosts": []}]"#, true),
        (r#"[{"effect": "Network", "hosts": []}]"#, false),
        (r#"[{"effect": "NetworkHosts"}]"#, false),
        (r#"[{"effect": "NetworkHosts", "hosts": "a.test"}]"#, false),
        (r#"[{"effect": "Cost", "cents": "5"}]"#, false),
        (r#"[{"effect": "Llm", "model": null}]"#, false),
        (r#"[{"effect": "Other"}]"#, false),
        (r#"["Pure"]"#, false),
        (r#"{}"#, false),
    ] {
        assert_eq!(EffectSet::parse(text, "x").is_ok(), expect, "{text}");
        assert_eq!(is_valid(&schema, &serde_json::from_str(text).unwrap()), expect, "{text}");
    }
}

/// The documentation names every key and every effect.
#[test]
fn documents_every_key_and_effect() {
    let page = include_str!("../../../../docs/policy.md");
    for key in KEYS.iter().filter(|key| key.shape != Shape::Later) {
        assert!(page.contains(&format!("`{}`", key.name)), "docs/policy.md does not explain `{}`", key.name);
    }
    for kind in EffectKind::ALL {
        assert!(page.contains(&format!("`{}`", kind.tag())), "docs/policy.md lacks `{}`", kind.tag());
        assert!(page.contains(&format!("`{kind}`")), "docs/policy.md lacks `{kind}`");
    }
}

/// Every policy on a page can be copied, and its presets exist.
#[test]
fn loads_the_examples_of_the_pages() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.chain([root.join("README.md")]);
    let policy = |text: &str, role| {
        let file = PolicyFile::parse(text, "x", role, &|| crate::preset::names().collect())?;
        for (name, _) in &file.presets {
            assert!(crate::preset::expand(name).is_ok_and(|groups| !groups.is_empty()), "{name}");
        }
        Ok::<(), crate::FileError>(())
    };
    let mut seen = std::collections::BTreeMap::new();
    for page in pages.filter(|page| page.extension().is_some_and(|ending| ending == "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = text.split("\n```").filter_map(|block| block.split_once('\n'));
        for (language, text) in blocks.filter(|(language, _)| ["toml", "json"].contains(language)) {
            // These are a manifest of cargo, and output of exeat.
            if text.contains("[dependencies]") || language == "json" && !page.ends_with("policy.md") {
                continue;
            }
            let fits = policy(text, FileRole::Policy).or_else(|error| {
                let other = policy(text, FileRole::Ceiling).is_ok() || EffectSet::parse(text, "x").is_ok();
                if other { Ok(()) } else { Err(error) }
            });
            assert!(fits.is_ok(), "{}: {fits:?}\n{text}", page.display());
            *seen.entry(page.file_name().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.get(std::ffi::OsStr::new("policy.md")), Some(&4));
    assert!(seen.contains_key(std::ffi::OsStr::new("README.md")) && seen.len() >= 4, "{seen:?}");
}

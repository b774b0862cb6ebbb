use super::*;
use crate::addr::OwnAddrs;
use crate::policy::PolicyBuilder;
use crate::target::Target;

const ALL: &str = include_str!("../../tests/fixtures/effects.json");

fn parse(text: &str) -> EffectSet {
    EffectSet::parse(text, "stage.json").unwrap_or_else(|error| panic!("{error}"))
}

/// Formats the faults as `line:column message = meant`.
#[track_caller]
fn check_faults(text: &str, expect: &[&str]) {
    let error = EffectSet::parse(text, "stage.json").expect_err("it is refused");
    let found: Vec<String> = error
        .problems()
        .iter()
        .map(|p| {
            let meant = p.meant.as_ref().map(|meant| format!(" = {meant}")).unwrap_or_default();
            format!("{}:{} {}{meant}", p.line, p.column, p.message)
        })
        .collect();
    assert_eq!(found, expect);
    // What one reader refuses with a position, the other refuses without one.
    assert!(serde_json::from_str::<EffectSet>(text).is_err(), "{text}");
    assert!(serde_json::from_str::<Effect>(text).is_err(), "{text}");
}

/// N31: the published words, and our additions.
#[test]
fn the_wire_form_is_the_published_one() {
    let effects = parse(ALL);
    assert_eq!(effects.len(), 11);
    let kinds: Vec<_> = effects.iter().map(Effect::kind).collect();
    assert_eq!(kinds, EffectKind::ALL);
    let json = serde_json::to_string(&effects).unwrap();
    let spaceless = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    assert_eq!(json, spaceless(ALL));
    assert_eq!(serde_json::from_str::<EffectSet>(&json).unwrap(), effects);
    let one: Effect = serde_json::from_str(r#"{"path": "/data", "effect": "FsRead"}"#).unwrap();
    assert_eq!(parse(r#"{"effect": "FsRead", "path": "/data"}"#), EffectSet::from_iter([one]));
}

/// N31: order and repetition change neither the set nor its serialized form.
#[test]
fn n31_orders_a_set_of_effects() {
    let a = parse(
        r#"[{"effect":"Pure"},{"effect":"NetworkHosts","hosts":["B.test.","a.test:443"]},{"effect":"Pure"}]"#,
    );
    let b =
        parse(r#"[{"hosts":["a.test","b.test","b.test:443"],"effect":"NetworkHosts"},{"effect":"Pure"}]"#);
    assert_eq!(a, b);
    let json = serde_json::to_string(&a).unwrap();
    assert_eq!(json, r#"[{"effect":"NetworkHosts","hosts":["a.test","b.test"]},{"effect":"Pure"}]"#);
    assert_eq!(json, serde_json::to_string(&b).unwrap());
}

/// N30: the words of the command line.
#[test]
fn parses_words_of_kinds() {
    let words = EffectKind::ALL.map(|kind| kind.to_string()).join(" ");
    assert_eq!(
        words,
        "cost fallible fs-read fs-write llm network network-hosts non-deterministic process pure unknown"
    );
    for kind in EffectKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        assert_eq!(
            kind.tag().parse::<EffectKind>().unwrap_err().suggestion(),
            (kind.tag() != kind.token()).then_some(kind)
        );
    }
    let error = "fs_reed".parse::<EffectKind>().unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.suggestion()),
        ("`fs_reed` is no kind of effect", Some(EffectKind::FsRead))
    );
    assert_eq!("x\u{1b}".parse::<EffectKind>().unwrap_err().to_string(), "`x\\u{1b}` is no kind of effect");
}

/// N30: allowing the whole network allows named hosts, and not the reverse.
#[test]
fn a_ceiling_of_kinds() {
    let effects = parse(ALL);
    let beyond = |kinds: &[EffectKind]| -> Vec<EffectKind> {
        effects.beyond(&kinds.iter().copied().collect()).map(Effect::kind).collect()
    };
    assert_eq!(beyond(&EffectKind::ALL), []);
    assert_eq!(beyond(&[]).len(), 11);
    let but = |out: EffectKind| EffectKind::ALL.into_iter().filter(|kind| *kind != out).collect::<Vec<_>>();
    assert_eq!(beyond(&but(EffectKind::NetworkHosts)), []);
    assert_eq!(beyond(&but(EffectKind::Network)), [EffectKind::Network]);
    assert!(effects.has(EffectKind::Network) && !EffectSet::new().has(EffectKind::Network));
}

/// N12, N31: what an effect needs from a policy. Eight kinds need nothing.
#[test]
fn grants_the_rules_of_effects() {
    let effects = parse(ALL);
    let rules: Vec<String> =
        effects.rules().map(|rule| format!("{} {} {}", rule.origin, rule.spec, rule.text)).collect();
    assert_eq!(
        rules,
        [
            "effect:Network *:80,443 *:80,443",
            "effect:Network 0.0.0.0/0:80,443 0.0.0.0/0:80,443",
            "effect:Network [::/0]:80,443 [::/0]:80,443",
            "effect:NetworkHosts *.cdn.example.com:443 *.cdn.example.com",
            "effect:NetworkHosts api.example.com:443 api.example.com",
            "effect:NetworkHosts archive.example.org:80,443 archive.example.org:80,443",
        ]
    );
    let paths = |paths: Vec<&PathSpec>| paths.into_iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(paths(effects.fs_read().collect()), ["/data/raw"]);
    assert_eq!(paths(effects.fs_write().collect()), ["~/out"]);
    for kind in EffectKind::ALL {
        let all: Vec<_> =
            effects.iter().filter(|effect| effect.kind() == kind).flat_map(Effect::rules).collect();
        assert_eq!(!all.is_empty(), matches!(kind, EffectKind::Network | EffectKind::NetworkHosts), "{kind}");
    }
    assert_eq!(parse(r#"{"effect": "NetworkHosts", "hosts": []}"#).rules().count(), 0);
    assert_eq!(parse("[]"), EffectSet::new());
}

/// N10: `Network` is the web, not the machine: special addresses stay closed on every way.
#[test]
fn n10_opens_no_special_address_for_a_bare_network() {
    let mut builder = PolicyBuilder::new();
    parse(r#"{"effect": "Network"}"#).rules().for_each(|rule| rule.apply(&mut builder));
    let policy = builder.build();
    let today = "2027-03-30".parse().unwrap();
    let admit = |target: &str| policy.admit(target.parse::<Target>().unwrap(), today);
    for target in ["93.184.215.14:443", "[2606:2800:21f::1]:443", "api.example.com:80"] {
        assert!(admit(target).is_ok(), "{target}");
    }
    for target in [
        "127.0.0.1:443",
        "10.1.2.3:443",
        "100.64.0.1:443",
        "169.254.169.254:80",
        "[::1]:443",
        "[fd00::1]:443",
        "[::ffff:10.1.2.3]:443",
        "[64:ff9b::a00:1]:443",
        "api.example.com:22",
        "93.184.215.14:22",
    ] {
        assert!(admit(target).is_err(), "{target}");
    }
    for answer in ["127.0.0.1", "10.1.2.3", "169.254.169.254", "fd00::1", "::ffff:10.1.2.3"] {
        let admitted = admit("api.example.com:443").unwrap();
        assert!(admitted.vet(&[answer.parse().unwrap()], &OwnAddrs::default()).is_err(), "{answer}");
    }
}

/// H14, H16: one invalid host refuses the whole set, and so does a host that could open everything by mistake.
#[test]
fn locates_faults_and_guesses() {
    for (text, expect) in [
        (
            r#"{"effect": "Network", "hosts": ["a.test"]}"#,
            r#"1:23 `Network` has no field `hosts` = {"effect": "NetworkHosts", "hosts": [...]}"#,
        ),
        (
            r#"[{"effect": "NetworkHost", "hosts": []}]"#,
            r#"1:13 there is no effect `NetworkHost` = "NetworkHosts""#,
        ),
        (r#"[{"effect": "fs-read", "path": "/a"}]"#, r#"1:13 there is no effect `fs-read` = "FsRead""#),
        (r#"[{"effect": "pure"}]"#, r#"1:13 there is no effect `pure` = "Pure""#),
        (r#"[{"effect": "Zzzzzzz"}]"#, "1:13 there is no effect `Zzzzzzz`"),
        (
            r#"[{"effect": "FsRead"}]"#,
            r#"1:13 `FsRead` has a field `path`, and it is missing = {"effect": "FsRead", "path": "/data"}"#,
        ),
        (
            r#"{"effect": "Llm"}"#,
            r#"1:12 `Llm` has a field `model`, and it is missing = {"effect": "Llm", "model": "..."}"#,
        ),
        (
            r#"{"effect": "FsRead", "path": "/a", "paths": []}"#,
            r#"1:36 `FsRead` has no field `paths` = "path""#,
        ),
        (
            r#"{"effect": "NetworkHosts", "hosts": [], "cents": 1}"#,
            "1:41 `NetworkHosts` has no field `cents`",
        ),
        (r#"{"effect": "Pure", "note": null}"#, "1:20 `Pure` has no field `note`"),
        (r#"{"effect": "Pure", "path": null}"#, "1:20 `Pure` has no field `path`"),
        (r#"{"effect": "FsRead", "path": null}"#, "1:30 `path` is a string, not null"),
        (r#"{"effect": "FsRead", "path": "a/b"}"#, "1:30 `a/b`: a path here is absolute or starts with `~/`"),
        (r#"{"effect": "FsWrite", "path": "/a/../b"}"#, "1:31 `/a/../b`: the path inside has no `..`"),
        (
            r#"{"effect": "FsWrite", "path": "~b/c"}"#,
            "1:31 `~b/c`: `~` is your own home only, as in `~/data`",
        ),
        (
            r#"{"effect": "Cost", "cents": -1}"#,
            "1:29 `cents` is a whole number from 0 to 18446744073709551615",
        ),
        (
            r#"{"effect": "Cost", "cents": 18446744073709551616}"#,
            "1:29 `cents` is a whole number from 0 to 18446744073709551615",
        ),
        (
            r#"{"effect": "Cost", "cents": "5"}"#,
            "1:29 `cents` is a whole number from 0 to 18446744073709551615, not a string = 5",
        ),
        (
            r#"{"effect": "Cost", "cents": 1.5}"#,
            "1:29 `cents` is a whole number from 0 to 18446744073709551615, not a number with a fraction or an exponent",
        ),
        (
            r#"["Network"]"#,
            r#"1:2 an effect is an object with a tag, `effect`, not a string = {"effect": "Network"}"#,
        ),
        (r#"[["Network"]]"#, "1:2 an effect is an object with a tag, `effect`, not a list"),
        ("3", "1:1 an effect is an object with a tag, `effect`, not a number"),
        (
            r#"{"FsRead": {"path": "/a"}}"#,
            r#"1:1 an effect has a tag, `effect`, and this one has none = {"effect": "FsRead", "path": "/data"}"#,
        ),
        ("{}", "1:1 an effect has a tag, `effect`, and this one has none"),
        (r#"{"effect": 1}"#, r#"1:12 `effect` is a string, not a number = "1""#),
        (
            r#"{"effect": "NetworkHosts", "hosts": "a.test"}"#,
            r#"1:37 `hosts` is a list of strings, not a string = ["a.test"]"#,
        ),
        (
            r#"{"effect": "NetworkHosts", "hosts": ["a.test", "!b.test"]}"#,
            "1:49 an effect says what the stage needs; it denies nothing",
        ),
        (
            r#"{"effect": "NetworkHosts", "hosts": ["a.test", "*x.test"]}"#,
            "1:49 `*x.test` is not a rule: `*` stands only as a whole first label, as in `*.example.com` = \"*.x.test\"",
        ),
        (
            r#"{"effect": "NetworkHosts", "hosts": ["*"]}"#,
            r#"1:39 `*` is not declared like this: every host is the effect `Network` = {"effect": "Network"}"#,
        ),
        (
            r#"{"effect": "NetworkHosts", "hosts": ["*.github.io"]}"#,
            "1:39 `*.github.io` is not declared like this: names below this suffix belong to many tenants; name the hosts",
        ),
        (
            r#"{"effect": "NetworkHosts", "hosts": ["*.com"]}"#,
            "1:39 `*.com` is not declared like this: anyone can register names below this suffix; name the hosts",
        ),
        ("", "1:1 there is nothing here; no effects at all is an empty list = []"),
    ] {
        check_faults(text, &[expect]);
    }
    check_faults(
        "[{\"effect\": \"Pur\"},\n {\"effect\": \"Pure\", \"x\": 1},\n {\"effect\": \"Pure\",}]",
        &["3:19 a comma with nothing after it = no comma here"],
    );
    check_faults(
        "[{\"effect\": \"Pur\"},\n {\"effect\": \"Cost\", \"x\": 1}]",
        &[
            "1:13 there is no effect `Pur` = \"Pure\"",
            "2:13 `Cost` has a field `cents`, and it is missing = {\"effect\": \"Cost\", \"cents\": 5}",
            "2:21 `Cost` has no field `x`",
        ],
    );
    check_faults(
        r#"{"effect": "Pure", "effect": "Network"}"#,
        &["1:20 this key is given twice, first on line 1"],
    );
    assert!(serde_json::from_str::<Effect>(r#"{"effect": "Pure", "effect": "Network"}"#).is_err());
}

#[test]
fn shows_the_line_and_marks_the_fault() {
    let error = EffectSet::parse("[\n  {\"effect\": \"Netwrok\"}\n]", "stage.json").unwrap_err();
    assert_eq!(
        error.to_string(),
        "stage.json:2:14: there is no effect `Netwrok`\n\
         \u{20} 2 |   {\"effect\": \"Netwrok\"}\n\
         \u{20}   |              ^^^^^^^^^\n\
         \u{20}   = probably meant: \"Network\"",
    );
}

#[test]
fn refuses_too_large_a_text() {
    let text = format!("[{}]", " ".repeat(crate::file::MAX_FILE_BYTES));
    assert!(EffectSet::parse(&text, "x").is_err());
    let faults = format!("[{}0]", "{\"effect\":\"x\"},".repeat(60_000));
    assert_eq!(EffectSet::parse(&faults, "x").unwrap_err().problems().len(), 100);
}

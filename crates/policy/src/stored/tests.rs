use super::*;
use crate::target::Target;
use crate::terms::{Ech, Mode};

const FILE: &str = r#"
schema = 1
[network]
allow_any = true
allow_shared_suffix = true
mode = "report"
nat64 = true
ech = "refuse"
allow = ["*.example.com:80,443,8000-8010", "*.github.io", "10.20.0.0/16:5432", "[2001:db8::1]", "*:8443"]
deny = ["bad.example.com", "192.0.2.0/24:25"]
host_port = [5432]

[[network.rule]]
allow = ["up.example.com", "up.example.com:22"]
tls = "off"
max_upload = "10MB"
expires = 2027-03-31
reason = "a \"word\", é \\ and more"
approved_by = "ada"

[[network.rule]]
allow = ["old.example.com:444"]
tls = "sni"
expires = 2020-01-01
"#;

fn rules(text: &str) -> PolicyFile {
    PolicyFile::parse(text, "a.toml", FileRole::Policy, &Vec::new).unwrap()
}

fn rich(ceilings: usize) -> Policy {
    let builder = |text: &str| {
        let mut builder = PolicyBuilder::new();
        rules(text).apply(&mut builder);
        builder
    };
    let layer = |rule: &str| builder(&format!("schema = 1\n[network]\nallow_any = true\nallow = [{rule}]"));
    Layers {
        grants: builder(FILE),
        declared: Some(layer(r#""*:*", "10.0.0.0/8:*""#)),
        ceilings: [("b".into(), layer(r#""*:*", "0.0.0.0/0:*""#)), ("a".into(), builder(FILE))]
            .into_iter()
            .take(ceilings)
            .collect(),
        lock: Some(("egress.lock".into(), layer(r#""*.example.com:*""#))),
        terms: Terms { mode: Mode::Report, nat64: true, ech: Ech::Refuse },
    }
    .build()
}

#[test]
fn reads_every_stored_rule_and_layer_back() {
    for ceilings in 0..3 {
        comes_back(ceilings);
    }
}

fn comes_back(ceilings: usize) {
    let policy = rich(ceilings);
    let text = policy.canonical_json();
    let stored = StoredPolicy::parse(text, "RUN.policy.json").unwrap().unwrap();
    assert_eq!(stored.ceilings.len(), ceilings);
    let again = stored.policy("RUN.policy.json");
    assert_eq!(again.canonical_json(), text);
    assert_eq!(again.terms(), policy.terms());
    for day in ["2019-12-31", "2026-11-22", "2027-04-01"] {
        for target in [
            "a.example.com:443",
            "a.example.com:8005",
            "bad.example.com:443",
            "up.example.com:22",
            "up.example.com:443",
            "old.example.com:444",
            "x.github.io:443",
            "10.20.1.1:5432",
            "10.21.1.1:5432",
            "192.0.2.1:25",
            "127.0.0.1:5432",
            "other.example.net:443",
            "other.example.net:8443",
            "[64:ff9b::a14:101]:5432",
        ] {
            let said = |policy: &Policy| {
                let day = day.parse().unwrap();
                match policy.admit(target.parse::<Target>().unwrap(), day) {
                    Ok(admitted) => {
                        let rule = admitted.rule().map(|rule| (rule.to_string(), rule.note.clone()));
                        Ok((rule, admitted.would_deny().map(|denial| denial.reason())))
                    }
                    // Of two ceilings that refuse, the first one is named, but their order is not stored.
                    Err(denial) => Err((ceilings < 2).then(|| denial.reason())),
                }
            };
            assert_eq!(said(&policy), said(&again), "{target} on {day}");
        }
    }
    let empty = Policy::from_effects(&Default::default());
    let text = empty.canonical_json();
    assert_eq!(StoredPolicy::parse(text, "f").unwrap().unwrap().policy("f").canonical_json(), text);
}

#[test]
fn refuses_changed_stored_policies() {
    let text = rich(2).canonical_json().to_owned();
    let refused = |text: &str| StoredPolicy::parse(text, "f").map(|read| read.err());
    assert_eq!(refused(&format!("{text}\n")), Some(None));
    for (from, to) in [
        (r#""rule":"up.example.com:22""#, r#""rule":"up.example.com""#),
        (r#""nat64":true"#, r#""nat64":false"#),
        (r#""mode":"report","#, r#""mode":"enforce","#),
        (r#","schema":1"#, r#", "schema":1"#),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        assert_eq!(refused(&text.replace(from, to)), Some(Some(StoredError::Changed)), "{to}");
    }
    for (from, to, key) in [
        (r#""mode":"report""#, r#""mode":"open""#, "mode"),
        (r#""ech":"refuse""#, r#""ech":"x""#, "ech"),
        (r#""tls":"off""#, r#""tls":"auto""#, "tls"),
        ("2027-03-31", "2027-03-32", "expires"),
        (r#""schema":1"#, r#""schema":2"#, "schema"),
    ] {
        assert_eq!(refused(&text.replace(from, to)), Some(Some(StoredError::Value(key))), "{to}");
    }
    assert!(matches!(refused(&text.replace("*.github.io", "*github.io")), Some(Some(StoredError::Rule(_)))));
    // Text in another form is for the reader of policy files.
    for other in [
        "schema = 1",
        "{}",
        r#"{"schema":1}"#,
        r#"{"network":{"allow":[]},"schema":1}"#,
        r#"{"more":1,"rules":[],"schema":1}"#,
    ] {
        assert!(StoredPolicy::parse(other, "f").is_none(), "{other}");
    }
}

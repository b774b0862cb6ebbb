use std::time::{Duration, Instant};

use super::*;
use crate::limits::Size;
use crate::reason::Reason;
use crate::rule::Origin;

fn today() -> Day {
    "2026-11-21".parse().unwrap()
}

fn flag() -> Origin {
    Origin::Flag { flag: "--allow".into() }
}

fn policy(rules: &[&str]) -> Policy {
    let mut builder = PolicyBuilder::new();
    for rule in rules {
        builder.add(rule, Action::Allow, flag(), Note::default()).unwrap();
    }
    builder.build()
}

/// Rules, a target, its addresses, and whether it is dialed.
fn check(rules: &str, target: &str, answer: &str, expect: bool) {
    let rules: Vec<&str> = rules.split_whitespace().collect();
    let result = policy(&rules)
        .admit(target.parse().unwrap(), today())
        .and_then(|admitted| admitted.vet(&[answer.parse().unwrap()], &OwnAddrs::default()));
    assert_eq!(result.is_ok(), expect, "{rules:?} {target} at {answer}: {result:?}");
}

macro_rules! allows {
    ($test:ident, $rules:literal, $target:literal, $answer:literal) => {
        #[test]
        fn $test() {
            check($rules, $target, $answer, true);
        }
    };
}

macro_rules! refuses {
    ($test:ident, $rules:literal, $target:literal, $answer:literal) => {
        #[test]
        fn $test() {
            check($rules, $target, $answer, false);
        }
    };
}

allows!(name_with_public_answer, "a.example.com", "a.example.com:443", "93.184.215.14");
refuses!(h15_no_rules, "", "a.example.com:443", "93.184.215.14");
refuses!(only_deny_rules, "!b.example.com", "a.example.com:443", "93.184.215.14");
refuses!(h17_deny_after_allow, "a.example.com !a.example.com", "a.example.com:443", "93.184.215.14");
refuses!(h17_deny_before_allow, "!a.example.com a.example.com", "a.example.com:443", "93.184.215.14");
refuses!(h17_deny_by_wildcard, "a.example.com !*.example.com", "a.example.com:443", "93.184.215.14");
refuses!(
    h17_deny_without_port_covers_all,
    "a.example.com:* !a.example.com",
    "a.example.com:22",
    "93.184.215.14"
);
allows!(
    deny_with_port_covers_that_port,
    "a.example.com:* !a.example.com:443",
    "a.example.com:22",
    "93.184.215.14"
);
refuses!(h02_deny_case_and_dot, "*.example.com !A.example.COM.", "a.EXAMPLE.com.:443", "93.184.215.14");
refuses!(h18_port_of_another_rule, "a.example.com 10.0.0.0/8:5432", "a.example.com:5432", "93.184.215.14");
refuses!(h21_ip_rule_grants_no_name, "93.184.215.14 0.0.0.0/0", "a.example.com:443", "93.184.215.14");
refuses!(
    h21_name_rule_grants_no_literal,
    "a.example.com *.example.com:*",
    "93.184.215.14:443",
    "93.184.215.14"
);

allows!(private_with_rule_in_its_block, "a.example.com 10.0.0.0/8", "a.example.com:443", "10.1.2.3");
allows!(private_with_rule_for_the_address, "a.example.com 10.1.2.3", "a.example.com:443", "10.1.2.3");
refuses!(private_with_rule_for_another_port, "a.example.com 10.0.0.0/8:80", "a.example.com:443", "10.1.2.3");
refuses!(private_with_rule_for_the_neighbor, "a.example.com 10.1.2.4", "a.example.com:443", "10.1.2.3");
refuses!(d08_catch_all_opens_nothing_special, "a.example.com 0.0.0.0/0", "a.example.com:443", "10.1.2.3");
refuses!(d08_half_the_internet, "a.example.com 0.0.0.0/1", "a.example.com:443", "10.1.2.3");
refuses!(d08_one_bit_too_wide, "a.example.com 10.0.0.0/7", "a.example.com:443", "10.1.2.3");
refuses!(d08_another_block, "a.example.com 192.168.0.0/16", "a.example.com:443", "10.1.2.3");
refuses!(d08_catch_all_v6, "a.example.com [::/0]", "a.example.com:443", "::1");
refuses!(d08_v6_row_of_the_registry, "a.example.com [::/8]", "a.example.com:443", "::1");
allows!(loopback_by_its_own_rule, "localhost:8080 127.0.0.1:8080", "localhost:8080", "127.0.0.1");
refuses!(loopback_needs_the_port_twice, "localhost:8080 127.0.0.1:9090", "localhost:8080", "127.0.0.1");
refuses!(loopback_v4_is_not_v6, "localhost:8080 127.0.0.0/8:8080", "localhost:8080", "::1");
allows!(metadata_by_its_address, "169.254.169.254:80", "169.254.169.254:80", "169.254.169.254");
allows!(metadata_through_link_local, "169.254.0.0/16:80", "169.254.169.254:80", "169.254.169.254");
refuses!(metadata_through_a_catch_all, "0.0.0.0/0:80", "169.254.169.254:80", "169.254.169.254");
refuses!(azure_through_public_space, "168.63.0.0/16:80", "168.63.129.16:80", "168.63.129.16");
allows!(azure_by_its_address, "168.63.129.16:80", "168.63.129.16:80", "168.63.129.16");
refuses!(never_unspecified, "a.example.com 0.0.0.0 0.0.0.0/8", "a.example.com:443", "0.0.0.0");
refuses!(never_unspecified_v6, "a.example.com [::]", "a.example.com:443", "::");
refuses!(never_multicast, "a.example.com 224.0.0.0/4", "a.example.com:443", "224.0.0.1");
refuses!(
    never_broadcast,
    "a.example.com 255.255.255.255 240.0.0.0/4",
    "a.example.com:443",
    "255.255.255.255"
);
allows!(reserved_by_its_block, "240.0.0.0/4", "240.0.0.1:443", "240.0.0.1");
refuses!(h08_mapped_is_not_unwrapped, "a.example.com 10.0.0.0/8", "a.example.com:443", "::ffff:10.0.0.1");
refuses!(h08_mapped_public_is_not_unwrapped, "a.example.com", "a.example.com:443", "::ffff:93.184.215.14");
allows!(
    h08_mapped_by_its_own_spelling,
    "a.example.com [::ffff:10.0.0.1]",
    "a.example.com:443",
    "::ffff:10.0.0.1"
);
allows!(
    h08_nat64_opens_the_public_internet,
    "a.example.com [64:ff9b::/96]",
    "a.example.com:443",
    "64:ff9b::93.184.215.14"
);
refuses!(
    h08_nat64_opens_nothing_special,
    "a.example.com [64:ff9b::/96]",
    "a.example.com:443",
    "64:ff9b::169.254.169.254"
);
allows!(
    h08_nat64_private_by_its_block,
    "a.example.com [64:ff9b::a00:0/104]",
    "a.example.com:443",
    "64:ff9b::10.0.0.1"
);
refuses!(h08_mapped_unspecified, "a.example.com [::ffff:0.0.0.0]", "a.example.com:443", "::ffff:0.0.0.0");
refuses!(
    h08_isatap_below_link_local,
    "a.example.com [fe80::/10]",
    "a.example.com:443",
    "fe80::5efe:127.0.0.1"
);
refuses!(d05_deny_by_answer, "*.example.com !93.184.215.14", "a.example.com:443", "93.184.215.14");
allows!(
    deny_by_answer_on_another_port,
    "*.example.com !93.184.215.14:80",
    "a.example.com:443",
    "93.184.215.14"
);

#[test]
fn names_the_narrowest_rule() {
    let rules = policy(&[
        "*.example.com:*",
        "*.a.example.com:*",
        "b.a.example.com:443",
        "0.0.0.0/0",
        "93.184.0.0/16",
        "93.184.215.14",
    ]);
    for (target, text) in [
        ("b.a.example.com:443", "b.a.example.com:443"),
        ("b.a.example.com:80", "*.a.example.com:*"),
        ("c.a.example.com:443", "*.a.example.com:*"),
        ("a.example.com:443", "*.example.com:*"),
        ("93.184.215.14:443", "93.184.215.14"),
        ("93.184.215.15:443", "93.184.0.0/16"),
        ("1.1.1.1:443", "0.0.0.0/0"),
    ] {
        assert_eq!(
            rules.admit(target.parse().unwrap(), today()).unwrap().rule().unwrap().text,
            text,
            "{target}"
        );
    }
}

#[test]
fn prefers_the_rule_that_lifts_the_tls_check() {
    for backwards in [false, true] {
        let mut checks = [TlsCheck::Auto, TlsCheck::Off];
        if backwards {
            checks.reverse();
        }
        let mut builder = PolicyBuilder::new();
        for tls in checks {
            builder
                .add("db.example.com:5432", Action::Allow, flag(), Note { tls, ..Note::default() })
                .unwrap();
        }
        let admitted = builder.build().admit("db.example.com:5432".parse().unwrap(), today()).unwrap();
        assert_eq!(admitted.rule().unwrap().note.tls, TlsCheck::Off);
    }
}

/// A public address is not called private if only an expired rule for another port covers it.
#[test]
fn calls_no_public_literal_private() {
    let mut builder = PolicyBuilder::new();
    let expired = Note { expires: Some(today()), ..Note::default() };
    builder.add("93.184.215.14:80", Action::Allow, flag(), expired).unwrap();
    let denial = builder.build().admit("93.184.215.14:443".parse().unwrap(), today()).unwrap_err();
    assert_eq!(denial.reason(), Reason::IpLiteral);
    assert_eq!(denial.said_outside(), "no IP rule allows this address");
}

#[test]
fn covers_names_but_no_literals_by_any() {
    let mut builder = PolicyBuilder::new();
    builder.allow_any(true).add("*:80,443", Action::Allow, flag(), Note::default()).unwrap();
    let policy = builder.build();
    assert!(policy.admit("anything.example:80".parse().unwrap(), today()).is_ok());
    assert!(policy.admit("anything.example:22".parse().unwrap(), today()).is_err());
    assert!(policy.admit("93.184.215.14:443".parse().unwrap(), today()).is_err());
}

/// H16: an invalid rule is an error, and nothing of it is kept.
#[test]
fn keeps_nothing_of_an_invalid_rule() {
    let mut builder = PolicyBuilder::new();
    assert!(builder.add("!bad_rule..x", Action::Allow, flag(), Note::default()).is_err());
    assert!(builder.add("*", Action::Allow, flag(), Note::default()).is_err());
    let policy = builder.build();
    assert!(policy.is_empty() && policy.rules().is_empty());
}

#[test]
fn writes_only_deciding_fields_to_canonical_json() {
    let mut builder = PolicyBuilder::new();
    let note = Note {
        reason: Some("a \"quoted\" reason".into()),
        approved_by: Some("team@example.com".into()),
        expires: "2027-03-31".parse().ok(),
        tls: TlsCheck::Off,
        max_upload: Size::new(10_000_000),
    };
    builder.add("DB.example.com.:5432", Action::Allow, flag(), note).unwrap();
    builder.add("api.example.com", Action::Allow, flag(), Note::default()).unwrap();
    builder
        .add(
            "api.example.com:443",
            Action::Allow,
            Origin::Preset { name: "p".into(), rule: "r".into() },
            Note::default(),
        )
        .unwrap();
    builder.add("!evil.example.com", Action::Allow, flag(), Note::default()).unwrap();
    assert_eq!(
        builder.build().canonical_json(),
        concat!(
            r#"{"rules":[{"rule":"!evil.example.com:*"},{"rule":"api.example.com:443"},"#,
            r#"{"approved_by":"team@example.com","expires":"2027-03-31","max_upload":10000000,"#,
            r#""reason":"a \"quoted\" reason","rule":"db.example.com:5432","tls":"off"}],"schema":1}"#,
        ),
    );
    assert_eq!(policy(&[]).canonical_json(), r#"{"rules":[],"schema":1}"#);
    let terms = Terms { mode: Mode::Report, nat64: true, ech: Ech::Refuse };
    assert_eq!(
        Layers { terms, ..Layers::default() }.build().canonical_json(),
        r#"{"ech":"refuse","mode":"report","nat64":true,"rules":[],"schema":1}"#
    );
}

/// Ten thousand rules of every kind: no decision scans the rules.
#[test]
fn ten_thousand_rules() {
    let mut builder = PolicyBuilder::new();
    for i in 0..2_500_u32 {
        for rule in [
            format!("host{i}.example.com"),
            format!("*.wild{i}.example.org:443,8443"),
            format!("93.{}.{}.0/24", i / 256, i % 256),
            format!("!denied{i}.example.com"),
        ] {
            builder.add(&rule, Action::Allow, flag(), Note::default()).unwrap();
        }
    }
    let policy = builder.build();
    assert_eq!(policy.rules().len(), 10_000);
    let cases: Vec<(Target, bool)> = [
        ("host2499.example.com:443", true),
        ("a.b.wild0.example.org:8443", true),
        ("93.9.195.77:443", true),
        ("93.10.0.1:443", false),
        ("denied1234.example.com:443", false),
        ("nothing.example.net:443", false),
    ]
    .map(|(target, expect)| (target.parse().unwrap(), expect))
    .into();
    let start = Instant::now();
    for _ in 0..5_000 {
        for (target, expect) in &cases {
            assert_eq!(policy.admit(target.clone(), today()).is_ok(), *expect, "{target}");
        }
    }
    // These are 30 000 decisions. A scan of the rules takes minutes, a lookup under a second without optimization.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

fn within(grants: &[&str], ceiling: &[&str]) -> Policy {
    let add = |texts: &[&str]| {
        let mut builder = PolicyBuilder::new();
        builder.allow_any(true);
        for text in texts {
            builder.add(text, Action::Allow, flag(), Note::default()).unwrap();
        }
        builder
    };
    let ceilings = vec![("/etc/exeat/policy.toml".to_owned(), add(ceiling))];
    Layers { terms: crate::Terms::default(), grants: add(grants), declared: None, ceilings, lock: None }
        .build()
}

/// K13: a flag cannot lift a ceiling, so the message does not suggest one.
#[test]
fn names_the_ceiling_and_offers_no_flag() {
    for (grants, ceiling, target, inside, outside) in [
        (
            &["a.example.com"][..],
            &["b.example.com"][..],
            "a.example.com:443",
            "no rule of a ceiling allows it",
            "the ceiling /etc/exeat/policy.toml does not allow it",
        ),
        // The same holds if the grants do not allow it either, because the flag would lead to another refusal.
        (
            &[],
            &["b.example.com"],
            "a.example.com:443",
            "no rule of a ceiling allows it",
            "the ceiling /etc/exeat/policy.toml does not allow it",
        ),
        (
            &["a.example.com:*"],
            &["a.example.com"],
            "a.example.com:80",
            "this host is allowed on port 443 only",
            "allowed on 443 only; the ceiling /etc/exeat/policy.toml does not allow this port",
        ),
        (
            &["93.184.215.14"],
            &["*:*"],
            "93.184.215.14:443",
            "no rule of a ceiling allows this address",
            "the ceiling /etc/exeat/policy.toml does not allow this address",
        ),
    ] {
        let denial = within(grants, ceiling).admit(target.parse().unwrap(), today()).unwrap_err();
        assert_eq!((denial.said_inside(), denial.said_outside()), (inside.to_owned(), outside.to_owned()));
        assert_eq!((denial.flag(), denial.is_reportable()), (None, false), "{target}");
    }
}

/// K13: every layer must open a special-use address; one alone does not.
#[test]
fn opens_a_private_address_only_in_every_layer() {
    let vet = |grants: &[&str], ceiling: &[&str]| {
        let admitted =
            within(grants, ceiling).admit("db.corp.example:443".parse().unwrap(), today()).unwrap();
        admitted.vet(&["10.2.3.4".parse().unwrap()], &OwnAddrs::default()).map_err(|denial| denial.flag())
    };
    assert!(vet(&["db.corp.example", "10.2.3.4"], &["*.corp.example", "10.0.0.0/8"]).is_ok());
    assert_eq!(
        vet(&["db.corp.example"], &["*.corp.example", "10.0.0.0/8"]).unwrap_err(),
        Some("--allow 10.2.3.4:443".to_owned()),
    );
    assert_eq!(vet(&["db.corp.example", "10.2.3.4"], &["*.corp.example"]).unwrap_err(), None);
    assert_eq!(vet(&["db.corp.example", "10.2.3.4"], &["*.corp.example", "0.0.0.0/0"]).unwrap_err(), None);
    assert_eq!(vet(&["db.corp.example"], &["*.corp.example"]).unwrap_err(), None);
}

#[test]
fn applies_deny_rules_and_tls_checks_of_ceilings() {
    let policy = within(&["*.example.com"], &["*:*", "!a.example.com"]);
    let denial = policy.admit("a.example.com:443".parse().unwrap(), today()).unwrap_err();
    assert_eq!(denial.reason(), Reason::DenyRule);
    assert!(policy.admit("b.example.com:443".parse().unwrap(), today()).is_ok());

    let tls = |grant: TlsCheck, ceiling: TlsCheck| {
        let one = |tls| {
            let mut builder = PolicyBuilder::new();
            builder.add("a.example.com", Action::Allow, flag(), Note { tls, ..Note::default() }).unwrap();
            builder
        };
        let declared = Some(one(TlsCheck::Auto));
        let policy = Layers {
            terms: crate::Terms::default(),
            grants: one(grant),
            declared,
            ceilings: vec![("c".into(), one(ceiling))],
            lock: Some(("egress.lock".into(), one(TlsCheck::Auto))),
        }
        .build();
        policy.admit("a.example.com:443".parse().unwrap(), today()).unwrap().tls()
    };
    assert_eq!(tls(TlsCheck::Off, TlsCheck::Off), TlsCheck::Off);
    assert_eq!(tls(TlsCheck::Off, TlsCheck::Auto), TlsCheck::Auto);
    assert_eq!(tls(TlsCheck::Sni, TlsCheck::Off), TlsCheck::Sni);
}

#[test]
fn writes_the_layers_to_canonical_json() {
    let policy = within(&["a.example.com"], &["*.example.com"]);
    assert_eq!(
        policy.canonical_json(),
        r#"{"ceilings":[[{"rule":"*.example.com:443"}]],"rules":[{"rule":"a.example.com:443"}],"schema":1}"#,
    );
}

fn locked(grants: &[&str], lock: &[&str], mode: Mode) -> Policy {
    let add = |texts: &[&str]| {
        let mut builder = PolicyBuilder::new();
        texts.iter().for_each(|text| builder.add(text, Action::Allow, flag(), Note::default()).unwrap());
        builder
    };
    let lock = Some(("egress.lock".to_owned(), add(lock)));
    let terms = crate::Terms { mode, ..crate::Terms::default() };
    Layers { terms, grants: add(grants), lock, ..Layers::default() }.build()
}

/// A target that a rule grants and the lock lacks is new. No flag changes that, and report mode does not allow it,
/// as for a ceiling.
#[test]
fn a_lock_refuses_new_targets() {
    for mode in Mode::ALL {
        let policy = locked(&["*.example.com:*"], &["a.example.com:443"], mode);
        let ask = |target: &str| policy.admit(target.parse().unwrap(), today());
        assert!(ask("a.example.com:443").is_ok());
        for (target, reason, inside, outside) in [
            (
                "b.example.com:443",
                Reason::Default,
                "no entry of the lock allows it",
                "the lock egress.lock does not have it",
            ),
            (
                "a.example.com:80",
                Reason::Port,
                "this host is allowed on port 443 only",
                "allowed on 443 only; the lock egress.lock does not have this port",
            ),
        ] {
            let denial = ask(target).unwrap_err();
            assert_eq!((denial.reason(), denial.flag(), denial.is_reportable()), (reason, None, false));
            assert_eq!(
                (denial.said_inside(), denial.said_outside()),
                (inside.to_owned(), outside.to_owned())
            );
            assert_eq!(denial.above().map(ToString::to_string).as_deref(), Some("lock egress.lock"));
        }
    }
    // A lock grants nothing by itself.
    let policy = locked(&[], &["a.example.com:443"], Mode::Enforce);
    let denial = policy.admit("a.example.com:443".parse().unwrap(), today()).unwrap_err();
    assert_eq!(denial.flag().as_deref(), Some("--allow a.example.com"));
    // An empty lock leaves nothing.
    assert!(
        locked(&["*.example.com"], &[], Mode::Report)
            .admit("a.example.com:443".parse().unwrap(), today())
            .is_err()
    );
}

/// A lock bounds what is asked for. Only the grants and the ceilings judge the addresses.
#[test]
fn opens_and_closes_no_address_by_a_lock() {
    let vet = |grants: &[&str], lock: &[&str]| {
        let policy = locked(grants, lock, Mode::Enforce);
        let admitted = policy.admit("db.corp.example:443".parse().unwrap(), today()).unwrap();
        admitted.vet(&["10.2.3.4".parse().unwrap()], &OwnAddrs::default()).is_ok()
    };
    assert!(vet(&["db.corp.example", "10.2.3.4"], &["db.corp.example"]));
    assert!(!vet(&["db.corp.example"], &["db.corp.example", "10.2.3.4"]));
}

#[test]
fn writes_a_lock_to_canonical_json() {
    let policy = locked(&["a.example.com"], &["b.example.com"], Mode::Enforce);
    assert_eq!(
        policy.canonical_json(),
        r#"{"lock":[{"rule":"b.example.com:443"}],"rules":[{"rule":"a.example.com:443"}],"schema":1}"#,
    );
    let rules = || {
        let mut builder = PolicyBuilder::new();
        builder.add("a.example.com", Action::Allow, flag(), Note::default()).unwrap();
        builder
    };
    let declared = Some(rules());
    let lock = Some(("egress.lock".to_owned(), PolicyBuilder::new()));
    let policy = Layers { grants: rules(), declared, lock, ..Layers::default() }.build();
    assert!(policy.excess(today()).is_empty());
}

/// Builds allow and deny rules for names, wildcards and networks of both families.
fn large(rules: u32) -> PolicyBuilder {
    let mut builder = PolicyBuilder::new();
    let mut add = |text: &str| builder.add(text, Action::Allow, flag(), Note::default()).unwrap();
    for n in 0..rules {
        let (a, b) = (n / 256 % 256, n % 256);
        match n % 5 {
            0 => add(&format!("host{n}.example.com")),
            1 => add(&format!("*.wild{n}.example.org:443,8443")),
            2 => add(&format!("{}.{a}.{b}.0/24", 20 + n / 65536)),
            3 => add(&format!("[2606:{:x}:{:x}::/48]", n / 65536, n % 65536)),
            _ => add(&format!("!denied{n}.example.com")),
        }
    }
    for text in ["api.example.com", "*.cdn.example.com", "93.0.3.0/24", "[2a00::/32]", "!no.example.com"] {
        add(text);
    }
    builder
}

/// A decision needs a lookup for each label and each prefix length, and does not scan the rules.
#[test]
fn decides_as_fast_at_any_number_of_rules() {
    let cases = [
        ("api.example.com:443", true),
        ("a.b.cdn.example.com:443", true),
        ("93.0.3.77:443", true),
        ("[2a00::7]:443", true),
        ("no.example.com:443", false),
        ("a.b.c.other.example.net:443", false),
        ("95.1.1.1:443", false),
    ]
    .map(|(target, expect)| (target.parse::<Target>().unwrap(), expect));
    let time = |policy: &Policy| {
        let once = || {
            let start = Instant::now();
            for (target, expect) in cases.iter().cycle().take(700) {
                assert_eq!(policy.admit(target.clone(), today()).is_ok(), *expect, "{target}");
            }
            start.elapsed()
        };
        // The best of many counts, because other programs use the machine too.
        (0..40).map(|_| once()).min().unwrap()
    };
    let (few, many) = (time(&large(100).build()), time(&large(100_000).build()));
    assert!(many < few * 3, "{few:?} at 100 rules, {many:?} at 100 000");
}

/// A ceiling of 40 000 rules with as many grants and declarations: comparing them is not quadratic.
#[test]
fn compares_large_layers_quickly() {
    let start = Instant::now();
    let ceilings = vec![("site.toml".to_owned(), large(40_000))];
    let declared = Some(large(40_000));
    let policy = Layers { grants: large(40_000), declared, ceilings, ..Layers::default() }.build();
    // Every deny rule counts in every layer.
    assert!(policy.excess(today()).is_empty());
    assert!(policy.opens(&large(40_000).build(), today()).is_empty());
    assert!(policy.admit_upstream("api.example.com:443".parse().unwrap(), today()).is_ok());
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}

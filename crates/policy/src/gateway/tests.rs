use proptest::prelude::*;

use super::*;
use crate::policy::{Layers, PolicyBuilder};
use crate::rule::{Note, Origin};
use crate::terms::{Ech, Terms};

const ENFORCE: Terms = Terms { mode: Mode::Enforce, nat64: false, ech: Ech::Record };
const REPORT: Terms = Terms { mode: Mode::Report, ..ENFORCE };

fn today() -> Day {
    "2026-07-01".parse().unwrap()
}

/// Layers are separated by `|`, the grants first. A rule that ends in `@` has expired.
fn policy(terms: Terms, layers: &str) -> Policy {
    let mut layers = layers.split('|').map(|rules| {
        let mut builder = PolicyBuilder::new();
        builder.allow_any(true).allow_shared_suffix(true);
        for rule in rules.split_whitespace() {
            let expires = rule.ends_with('@').then(today);
            let origin = Origin::Flag { flag: "--allow".into() };
            let note = Note { expires, ..Note::default() };
            builder.add(rule.trim_end_matches('@'), Action::Allow, origin, note).unwrap();
        }
        builder
    });
    let grants = layers.next().unwrap();
    let ceilings = layers.map(|ceiling| ("site.toml".into(), ceiling)).collect();
    Layers { grants, declared: None, ceilings, lock: None, terms }.build()
}

fn ports(terms: Terms, layers: &str, name: &str) -> String {
    let ports = policy(terms, layers).served_ports(&name.parse().unwrap(), today());
    assert!(ports.is_sorted() && ports.len() <= MAX_PORTS);
    ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn well_known(but: &[u16]) -> String {
    let ports = WELL_KNOWN.iter().filter(|port| !but.contains(port));
    ports.map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn serves_the_ports_of_the_rules_of_a_name() {
    let of = |layers: &str, name: &str| ports(ENFORCE, layers, name);
    assert_eq!(of("a.test", "a.test"), "443");
    assert_eq!(of("a.test:22,5432 *.test:8443 b.test:1", "a.test"), "22 5432 8443");
    assert_eq!(of("a.test:8000-8063", "a.test").split(' ').count(), 64);
    assert_eq!(of("a.test", "b.test"), "");
    assert_eq!(of("", "a.test"), "");
    assert_eq!(of("a.test:22@", "a.test"), "");
    assert_eq!(of("a.test:22,80 !a.test:22", "a.test"), "80");
    assert_eq!(of("a.test:* | a.test:443,9999", "a.test"), "443 9999");
    assert_eq!(of("a.test:443 | b.test:443", "a.test"), "");
    // An address of the other family does not concern names.
    assert_eq!(of("10.0.0.1:443", "a.test"), "");
}

#[test]
fn serves_well_known_ports_of_a_wide_rule() {
    let of = |layers: &str| ports(ENFORCE, layers, "a.test");
    assert_eq!(of("a.test:*"), well_known(&[]));
    assert_eq!(of("a.test:* !a.test:22,50051"), well_known(&[22, 50051]));
    assert_eq!(of("a.test:8000-8064"), "8000");
    assert_eq!(of("a.test:60000-60064"), "");
    // Another rule names its own port.
    assert_eq!(of("*.test:* a.test:60000"), format!("{} 60000", well_known(&[])));
    assert_eq!(of("*.test:* a.test:60000@"), well_known(&[]));
    assert_eq!(of("*.test:* !a.test:60000"), well_known(&[]));
    assert_eq!(of("*.test:* a.test:60000 !a.test:60000"), well_known(&[]));
    // The well-known ports come first.
    let many = of("*.test:* a.test:1-60");
    assert!(well_known(&[]).split(' ').all(|port| many.split(' ').any(|one| one == port)), "{many}");
    assert_eq!(many.split(' ').count(), MAX_PORTS);
}

/// In report mode, listeners exist for exactly what report mode allows.
#[test]
fn serves_names_on_web_ports_in_report_mode() {
    let of = |layers: &str| ports(REPORT, layers, "a.test");
    assert_eq!(of(""), "80 443");
    assert_eq!(of("a.test:22"), "22 80 443");
    assert_eq!(of("!a.test"), "");
    assert_eq!(of("!a.test:80"), "443");
    assert_eq!(of(" | a.test:443"), "443");
    assert_eq!(of("a.test@"), "80");
}

/// RFC 6761: names of the loopback belong to the sandbox.
#[test]
fn serves_no_loopback_names() {
    assert_eq!(ports(ENFORCE, "localhost:80 *.localhost:80", "localhost"), "");
    assert_eq!(ports(ENFORCE, "localhost:80 *.localhost:80", "a.localhost"), "");
    assert_eq!(ports(ENFORCE, "localhost.test:80", "localhost.test"), "80");
}

#[test]
fn serves_addresses_of_narrow_rules() {
    let of = |layers: &str| {
        let served = policy(ENFORCE, layers).served_addresses(today());
        served.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of("10.2.3.4:5432 [2001:db8::1]:22"), "10.2.3.4:5432 [2001:db8::1]:22");
    assert_eq!(of("10.2.3.4:80,443 10.2.3.4/31:443"), "10.2.3.4:80 10.2.3.4:443 10.2.3.5:443");
    assert_eq!(of("10.2.3.0/28:22").split(' ').count(), 16);
    assert_eq!(of("[fd00::/124]:22").split(' ').count(), 16);
    assert_eq!(of("10.2.3.0/27:22 [fd00::/123]:22 10.0.0.0/8:*"), "");
    assert_eq!(of("10.2.3.4:22@"), "");
    assert_eq!(of("10.2.3.4:22,80 !10.0.0.0/8:22"), "10.2.3.4:80");
    assert_eq!(of("10.2.3.4:* | 10.0.0.0/8:22,9999"), "10.2.3.4:22 10.2.3.4:9999");
    assert_eq!(of("10.2.3.4:22 | 192.168.0.0/16:22"), "");
    assert_eq!(of("10.2.3.4:*").split(' ').count(), WELL_KNOWN.len());
    assert_eq!(of("a.test"), "");
    // These are never served, whatever the rules are.
    for never in [
        "127.0.0.1:22",
        "127.9.9.9:22",
        "[::1]:22",
        "0.0.0.0:22",
        "[::]:22",
        "224.0.0.1:22",
        "[ff02::1]:22",
        "255.255.255.255:22",
        "[::ffff:10.2.3.4]:22",
    ] {
        assert_eq!(of(never), "", "{never}");
    }
    let all = (0..=255).map(|last| format!("10.2.3.{last}:22,23 ")).collect::<String>();
    assert_eq!(of(&all).split(' ').count(), MAX_LITERALS);
    assert!(of(&all).ends_with("10.2.3.127:23"));
}

#[test]
fn explains_unserved_targets() {
    let all = (0..=255).map(|last| format!("10.2.3.{last}:22,23 ")).collect::<String>();
    for (layers, target, expect) in [
        ("a.test", "a.test:443", None),
        ("a.test:*", "a.test:443", None),
        ("a.test:*", "a.test:9999", Some(Unserved::Ports)),
        ("localhost:80", "localhost:80", Some(Unserved::Loopback)),
        ("127.0.0.1:80", "127.0.0.1:80", Some(Unserved::Loopback)),
        ("10.2.3.4:22", "10.2.3.4:22", None),
        ("10.0.0.0/8:22", "10.2.3.4:22", Some(Unserved::Addresses)),
        ("10.2.3.4:*", "10.2.3.4:9999", Some(Unserved::Ports)),
        (&all, "10.2.3.127:23", None),
        (&all, "10.2.3.128:22", Some(Unserved::Full)),
    ] {
        let policy = policy(ENFORCE, layers);
        let target: Target = target.parse().unwrap();
        assert!(policy.admit(target.clone(), today()).is_ok(), "{target}");
        assert_eq!(policy.unserved(&target, today()), expect, "{target}");
    }
}

fn some_ports() -> impl Strategy<Value = String> {
    let low = || 1..200u16;
    prop_oneof![
        low().prop_map(|port| port.to_string()),
        (low(), 0..80u16).prop_map(|(first, more)| format!("{first}-{}", first + more)),
        (low(), low()).prop_map(|(one, other)| format!("{one},{other}")),
        Just("80".to_owned()),
        Just("443".to_owned()),
        Just("65535".to_owned()),
        Just("*".to_owned()),
        low().prop_map(|first| format!("{first}-65535")),
    ]
}

fn some_layers() -> impl Strategy<Value = String> {
    let host = prop_oneof![
        4 => Just("a.test"),
        2 => Just("*.test"),
        1 => Just("b.test"),
        1 => Just("!a.test"),
        1 => Just("!*.test"),
        3 => Just("10.2.3.4"),
        2 => Just("10.2.3.0/28"),
        1 => Just("10.0.0.0/8"),
        1 => Just("!10.2.3.4"),
        2 => Just("[64:ff9b::a02:304]"),
    ];
    let rule = (host, some_ports(), prop_oneof![4 => Just(""), 1 => Just("@")]);
    let rule = rule.prop_map(|(host, ports, expired)| {
        if host.starts_with('!') { format!("{host}:{ports}") } else { format!("{host}:{ports}{expired}") }
    });
    let layer = prop::collection::vec(rule, 0..5).prop_map(|rules| rules.join(" "));
    prop::collection::vec(layer, 1..3).prop_map(|layers| layers.join("|"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every served port is granted, and every granted port is served up to the bound. Every port that the rules
    /// can distinguish from its neighbors is checked.
    #[test]
    fn serves_exactly_the_admitted_targets(layers in some_layers(), report: bool, nat64: bool) {
        let terms = Terms { mode: if report { Mode::Report } else { Mode::Enforce }, nat64, ..ENFORCE };
        let policy = policy(terms, &layers);
        for host in ["a.test", "c.test", "10.2.3.4", "10.2.3.9", "[64:ff9b::a02:304]"] {
            let host = Host::parse(host).unwrap();
            let is_granted = |port: u16| {
                let target = Target { host: host.clone(), port: Port::new(port).unwrap() };
                policy.admit(target, today()).is_ok()
            };
            // All ports from 300 to 65534 except 443 are alike: no rule begins or ends there.
            let sampled = (1..500).chain(WELL_KNOWN).chain([60000, 65534, 65535]).collect::<BTreeSet<u16>>();
            let granted: BTreeSet<u16> = sampled.into_iter().filter(|port| is_granted(*port)).collect();
            let served = policy.limited_ports(&host, today());
            prop_assert!(served.is_sorted() && served.len() <= MAX_PORTS);
            let served: BTreeSet<u16> = served.into_iter().map(Port::get).collect();
            prop_assert!(served.is_subset(&granted), "{:?} of {:?}", served, granted);
            if granted.contains(&60000) || granted.len() > MAX_PORTS {
                let known = WELL_KNOWN.into_iter().filter(|port| granted.contains(port));
                prop_assert!(known.collect::<BTreeSet<_>>().is_subset(&served), "{:?}", served);
            } else {
                prop_assert_eq!(served, granted);
            }
        }
        for served in policy.served_addresses(today()).into_iter().take(8) {
            let target = Target { host: Host::Ip(served.ip()), port: Port::new(served.port()).unwrap() };
            prop_assert!(policy.admit(target.clone(), today()).is_ok(), "{}", served);
            prop_assert_eq!(policy.unserved(&target, today()), None);
        }
    }
}

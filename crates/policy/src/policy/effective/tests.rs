//! K13: tests the intersection of layers, and declarations beyond them.

use super::*;
use crate::policy::{Excess, Layers, PolicyBuilder};
use crate::rule::{Note, Origin};

fn rules(texts: &[&str]) -> PolicyBuilder {
    let mut builder = PolicyBuilder::new();
    builder.allow_any(true);
    for text in texts {
        let origin = Origin::Flag { flag: "--allow".into() };
        builder.add(text, Action::Allow, origin, Note::default()).unwrap();
    }
    builder
}

fn stack(grants: &[&str], declared: Option<&[&str]>, ceilings: &[&[&str]]) -> Policy {
    Layers {
        terms: crate::Terms::default(),
        grants: rules(grants),
        declared: declared.map(rules),
        ceilings: ceilings.iter().map(|texts| ("site.toml".to_owned(), rules(texts))).collect(),
        lock: None,
    }
    .build()
}

fn today() -> Day {
    Day::from_ymd(2026, 11, 21).unwrap()
}

fn format_rules(policy: &Policy) -> Vec<String> {
    let mut shown: Vec<_> =
        policy.effective().allow.iter().map(|rule| format!("{}:{}", rule.pattern, rule.ports)).collect();
    shown.sort();
    shown
}

#[test]
fn intersects_patterns_and_ports() {
    for (grants, ceiling, expect) in [
        (&["a.example.com"][..], &["*.example.com:*"][..], &["a.example.com:443"][..]),
        (&["*.example.com:*"], &["a.example.com"], &["a.example.com:443"]),
        (&["*.example.com"], &["example.com:*"], &[]),
        (&["*.a.example.com"], &["*.example.com"], &["*.a.example.com:443"]),
        (&["a.example.com:1-10"], &["a.example.com:5-20"], &["a.example.com:5-10"]),
        (&["*:80,443"], &["a.example.com", "*.example.org:8080"], &["a.example.com:443"]),
        (&["93.184.0.0/16:*"], &["93.184.215.14:443"], &["93.184.215.14:443"]),
        (&["10.1.0.0/16:*"], &["10.0.0.0/8:5432"], &["10.1.0.0/16:5432"]),
        // A net that is wider than the private block opens nothing of it, so the overlap is empty.
        (&["10.1.0.0/16:*"], &["0.0.0.0/0:*"], &[]),
        (&["93.184.215.14:*"], &["0.0.0.0/0:*"], &["93.184.215.14:*"]),
        (&["93.184.215.14:*"], &["[::/0]:*"], &[]),
        (&["93.184.215.14:*"], &["*:*"], &[]),
        // An empty ceiling allows nothing.
        (&["a.example.com"], &[], &[]),
    ] {
        assert_eq!(format_rules(&stack(grants, None, &[ceiling])), expect, "{grants:?} within {ceiling:?}");
    }
}

#[test]
fn applies_all_ceilings() {
    assert_eq!(format_rules(&stack(&["*.example.com:*"], None, &[])), ["*.example.com:*"]);
    let policy = stack(&["*:*"], Some(&["*.example.com:*"]), &[&["*.a.example.com:1-500"], &["*:443-600"]]);
    assert_eq!(format_rules(&policy), ["*.a.example.com:443-500"]);
    let from: Vec<_> = policy.effective().allow[0].from.iter().map(|rule| rule.text.clone()).collect();
    assert_eq!(from, ["*.a.example.com:1-500", "*:443-600", "*.example.com:*", "*:*"]);
}

#[test]
fn names_declarations_beyond_the_grants() {
    let excess = |grants: &[&str], declared: &[&str], ceilings: &[&[&str]]| {
        let policy = stack(grants, Some(declared), ceilings);
        let excess = policy.excess(today());
        let named = |excess: &Excess<'_>| {
            let layer = excess.missing_in.map(|layer| layer.name().unwrap_or("grants").to_owned());
            let by = layer.or(excess.denied_by.map(|rule| rule.text.clone())).unwrap();
            format!("{} on {}: {by}", excess.rule.text, excess.ports)
        };
        excess.iter().map(named).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(excess(&["*.example.com"], &["a.example.com"], &[]), none);
    assert_eq!(excess(&["*.example.com"], &["*.a.example.com"], &[]), none);
    assert_eq!(excess(&["a.example.com", "a.example.com:80"], &["a.example.com:80,443"], &[]), none);
    assert_eq!(excess(&["10.0.0.0/9", "10.128.0.0/9"], &["10.0.0.0/8"], &[]), none);
    assert_eq!(excess(&["10.0.0.0/9"], &["10.0.0.0/8"], &[]), ["10.0.0.0/8 on 443: grants"]);
    assert_eq!(excess(&["a.example.com"], &["*.example.com"], &[]), ["*.example.com on 443: grants"]);
    assert_eq!(
        excess(&["a.example.com"], &["a.example.com:80,443"], &[]),
        ["a.example.com:80,443 on 80: grants"]
    );
    assert_eq!(
        excess(&["*:*"], &["a.example.com", "b.example.com"], &[&["a.example.com"]]),
        ["b.example.com on 443: site.toml"],
    );
    assert_eq!(
        excess(&["*:*", "!a.example.com"], &["a.example.com"], &[]),
        ["a.example.com on 443: !a.example.com"],
    );
    // A deny rule for a part leaves the rest.
    assert_eq!(excess(&["*:*", "!a.example.com"], &["*.example.com"], &[]), none);
}

/// A grant that has expired today no longer covers a declaration.
#[test]
fn finds_declarations_of_expired_grants() {
    let mut grants = PolicyBuilder::new();
    let note = Note { expires: "2026-11-21".parse().ok(), ..Note::default() };
    grants.add("a.example.com", Action::Allow, Origin::Flag { flag: "--allow".into() }, note).unwrap();
    let policy = Layers {
        lock: None,
        terms: crate::Terms::default(),
        grants,
        declared: Some(rules(&["a.example.com"])),
        ceilings: Vec::new(),
    }
    .build();
    assert_eq!(policy.excess(today()).len(), 1);
}

use super::*;
use crate::policy::{Change, Layers, PolicyBuilder};
use crate::rule::Note;

fn today() -> Day {
    "2026-11-21".parse().unwrap()
}

fn builder(rules: &[(&str, Note)]) -> PolicyBuilder {
    let mut builder = PolicyBuilder::new();
    builder.allow_any(true).allow_shared_suffix(true);
    for (at, (text, note)) in (1..).zip(rules) {
        let origin = Origin::File { path: "p.toml".into(), line: at };
        builder.add(text, Action::Allow, origin, note.clone()).unwrap();
    }
    builder
}

fn plain(rules: &[&str]) -> Policy {
    let rules: Vec<_> = rules.iter().map(|rule| (*rule, Note::default())).collect();
    builder(&rules).build()
}

fn found(policy: &Policy) -> Vec<String> {
    let findings = policy.review(today());
    let shown = findings.iter().map(|finding| match finding.by {
        Some(by) => format!("{}: {} by {}", finding.rule.text, finding.lint.as_str(), by.text),
        None => format!("{}: {}", finding.rule.text, finding.lint.as_str()),
    });
    shown.collect()
}

#[test]
fn finds_risky_dead_and_duplicate_rules() {
    for (rules, expect) in [
        (&["a.example.com", "*.example.org:8443", "93.184.215.0/24"][..], &[][..]),
        (&["10.1.2.3"], &["10.1.2.3: private"]),
        (&["*"], &["*: any"]),
        (&["0.0.0.0/0"], &["0.0.0.0/0: any"]),
        (&["*.github.io"], &["*.github.io: shared_suffix"]),
        (&["a.example.com", "!*.example.com"], &["a.example.com: unreachable by !*.example.com"]),
        // A part of it is left.
        (&["*.example.com", "!a.example.com"], &[]),
        (&["a.example.com:443,80", "!a.example.com:80"], &[]),
        (&["a.example.com", "A.example.com.:443"], &["A.example.com.:443: duplicate by a.example.com"]),
        (&["a.example.com", "*.example.com"], &["a.example.com: duplicate by *.example.com"]),
        (&["a.example.com:80", "*.example.com"], &[]),
        (&["10.0.0.0/8"], &["10.0.0.0/8: range_without_port", "10.0.0.0/8: private"]),
        (&["[fd00::/8]"], &["[fd00::/8]: range_without_port", "[fd00::/8]: metadata", "[fd00::/8]: private"]),
        (&["[fd00::/8]:5432"], &["[fd00::/8]:5432: metadata", "[fd00::/8]:5432: private"]),
        (&["10.0.0.0/8:*"], &["10.0.0.0/8:*: range_all_ports", "10.0.0.0/8:*: private"]),
        (&["10.0.0.0/7:80"], &["10.0.0.0/7:80: net_opens_nothing"]),
        (&["169.254.169.254:80"], &["169.254.169.254:80: metadata"]),
        (&["169.254.0.0/16:80"], &["169.254.0.0/16:80: metadata", "169.254.0.0/16:80: link_local"]),
        (&["168.63.129.16:80"], &["168.63.129.16:80: metadata"]),
        (&["100.100.100.200:80"], &["100.100.100.200:80: metadata"]),
        (&["[fd00:ec2::254]:80"], &["[fd00:ec2::254]:80: metadata"]),
        (&["[::ffff:169.254.169.254]:80"], &["[::ffff:169.254.169.254]:80: metadata"]),
        (&["[::ffff:10.1.2.3]:80"], &["[::ffff:10.1.2.3]:80: private"]),
        (&["[fe80::1]:80"], &["[fe80::1]:80: link_local"]),
        (&["192.168.0.0/16:22"], &["192.168.0.0/16:22: private"]),
        (&["168.63.0.0/16:80", "metadata.google.internal:80", "10.example.com", "!10.0.0.0/8"], &[]),
    ] {
        assert_eq!(found(&plain(rules)), expect, "{rules:?}");
    }
}

#[test]
fn accepts_equal_rules_with_other_notes() {
    let note = Note { reason: Some("for the export".into()), ..Note::default() };
    let rules = [("*.example.com", Note::default()), ("a.example.com", note)];
    assert_eq!(found(&builder(&rules).build()), [""; 0]);
}

#[test]
fn finds_expiry_and_lifted_checks() {
    let expires = |day: &str| Note { expires: day.parse().ok(), ..Note::default() };
    let off = Note { tls: TlsCheck::Off, ..Note::default() };
    let rules = [
        ("a.example.com", expires("2026-11-21")),
        ("b.example.com", expires("2026-11-22")),
        ("c.example.com", expires("2026-12-06")),
        ("d.example.com", off.clone()),
        ("e.example.com:5432", off),
    ];
    let expect = ["a.example.com: expired", "b.example.com: expires_soon", "d.example.com: tls_off"];
    assert_eq!(found(&builder(&rules).build()), expect);
}

fn upload(size: &str) -> Note {
    Note { max_upload: size.parse().ok(), ..Note::default() }
}

/// Remarks of a rule that do not apply, because another rule decides.
#[test]
fn finds_shadowed_rules() {
    let plain = Note::default;
    let (off, sni) = (Note { tls: TlsCheck::Off, ..plain() }, Note { tls: TlsCheck::Sni, ..plain() });
    let expired = Note { expires: "2026-11-21".parse().ok(), ..plain() };
    for (rules, expect) in [
        (vec![("a.example.com", upload("1MB"))], &[][..]),
        // A nearer rule without the remark.
        (
            vec![("*.example.com", upload("1MB")), ("a.example.com", plain())],
            &["*.example.com: shadowed by a.example.com"],
        ),
        (
            vec![("*.example.com:5432", off.clone()), ("a.example.com:5432", plain())],
            &["*.example.com:5432: shadowed by a.example.com:5432"],
        ),
        (
            vec![("93.184.0.0/16", upload("1MB")), ("93.184.215.14", plain())],
            &["93.184.0.0/16: shadowed by 93.184.215.14"],
        ),
        // The exception to a wide rule is intended.
        (vec![("*.example.com", plain()), ("a.example.com", upload("1MB"))], &[]),
        (vec![("*.example.com", upload("1MB")), ("a.example.com", upload("1GB"))], &[]),
        // The same targets.
        (
            vec![("a.example.com", plain()), ("a.example.com:443,80", upload("1MB"))],
            &["a.example.com:443,80: shadowed by a.example.com"],
        ),
        (
            vec![("a.example.com", upload("1kB")), ("a.example.com", upload("1MB"))],
            &["a.example.com: shadowed by a.example.com", "a.example.com: shadowed by a.example.com"],
        ),
        (
            vec![("a.example.com:5432", sni), ("a.example.com:5432", off)],
            &[
                "a.example.com:5432: shadowed by a.example.com:5432",
                "a.example.com:5432: shadowed by a.example.com:5432",
            ],
        ),
        // Other ports, not more, another name.
        (vec![("*.example.com", upload("1MB")), ("a.example.com:80", plain())], &[]),
        (vec![("*.example.com", upload("1MB")), ("a.example.org", plain())], &[]),
        (vec![("*.example.com", upload("1MB")), ("a.example.com", expired)], &["a.example.com: expired"]),
    ] {
        let found = found(&builder(&rules).build());
        let found: Vec<&str> =
            found.iter().map(String::as_str).filter(|found| !found.contains("duplicate")).collect();
        assert_eq!(found, expect, "{rules:?}");
    }
}

/// A raised or removed budget opens, and a new or lowered one closes. The rule that decides counts, as in a
/// decision.
#[test]
fn finds_changes_of_budgets() {
    let none = Note::default;
    let policy = |rules: &[(&str, Note)]| builder(rules).build();
    let small = policy(&[("a.example.com:443,80", upload("1MB"))]);
    let large = policy(&[("a.example.com:443,80", upload("1GB"))]);
    let unbounded = policy(&[("a.example.com:443,80", none())]);
    let more = vec!["a.example.com:80,443 Upload".to_owned()];
    for (old, new, opens) in [
        (&small, &large, true),
        (&small, &unbounded, true),
        (&large, &unbounded, true),
        (&large, &large, false),
    ] {
        let expect = if opens { more.clone() } else { vec![] };
        assert_eq!(changes(old, new), (expect.clone(), vec![]));
        assert_eq!(changes(new, old), (vec![], expect));
    }
    // On one of the ports.
    let web = policy(&[("a.example.com:443", none()), ("a.example.com:80", upload("1MB"))]);
    assert_eq!(changes(&small, &web).0, ["a.example.com:443 Upload"]);
    // A repetition without it lifts nothing; a nearer rule without it does.
    let twice = policy(&[("a.example.com:443,80", none()), ("a.example.com:443,80", upload("1MB"))]);
    assert_eq!(changes(&small, &twice), (vec![], vec![]));
    let wide = policy(&[("*.example.com", upload("1MB"))]);
    let lifted = policy(&[("*.example.com", upload("1MB")), ("a.example.com", none())]);
    assert_eq!(changes(&wide, &lifted), (vec!["a.example.com:443 Upload".to_owned()], vec![]));
    // The budget of a ceiling counts too.
    let within = |size: &str| {
        let ceilings = vec![("c".into(), builder(&[("*:*", upload(size))]))];
        Layers { grants: builder(&[("a.example.com:80,443", upload("1GB"))]), ceilings, ..Layers::default() }
            .build()
    };
    assert_eq!(changes(&within("1MB"), &within("2MB")).0, more);
    assert_eq!(changes(&within("2GB"), &within("3GB")), (vec![], vec![]));
}

#[test]
fn finds_a_service_of_the_host() {
    for rule in ["127.0.0.1:5432", "127.0.0.0/8:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        assert!(found(&plain(&[rule])).contains(&format!("{rule}: own_machine")), "{rule}");
    }
    for rule in ["a.example.com", "localhost:80", "!127.0.0.1"] {
        assert!(found(&plain(&[rule])).is_empty(), "{rule}");
    }
    // An upper bound is wide on purpose.
    let ceilings = vec![("site.toml".to_owned(), builder(&[("127.0.0.1:5432", Note::default())]))];
    let grants = builder(&[("127.0.0.1:5432", Note::default())]);
    let both = Layers { grants, ceilings, ..Layers::default() }.build();
    assert_eq!(found(&both), ["127.0.0.1:5432: own_machine"]);
}

#[test]
fn ignores_a_list_next_to_a_bare_network() {
    let mut declared = PolicyBuilder::new();
    declared.allow_any(true);
    for (rule, effect) in [("*:80,443", "Network"), ("a.example.com", "NetworkHosts")] {
        let origin = Origin::Effect { effect: effect.into() };
        declared.add(rule, Action::Allow, origin, Note::default()).unwrap();
    }
    let policy = Layers { grants: declared, ..Layers::default() }.build();
    assert_eq!(found(&policy), ["a.example.com: swallowed by *:80,443"]);
}

#[test]
fn reports_what_a_declaration_grants_once() {
    let effects = || {
        let mut effects = PolicyBuilder::new();
        for rule in ["127.0.0.1:8801", "10.0.0.0/8", "a.example.com", "*.example.com"] {
            let origin = Origin::Effect { effect: "NetworkHosts".into() };
            effects.add(rule, Action::Allow, origin, Note::default()).unwrap();
        }
        effects
    };
    let alone = Layers { grants: effects(), ..Layers::default() }.build();
    let policy = Layers { grants: effects(), declared: Some(effects()), ..Layers::default() }.build();
    assert_eq!(found(&policy), found(&alone));
    assert!(found(&alone).len() >= 4, "{:?}", found(&alone));
}

#[test]
fn accepts_wide_rules_in_ceilings() {
    let ceiling = builder(&[("*:*", Note::default()), ("*.github.io", Note::default())]);
    let grants = builder(&[("a.github.io", Note::default())]);
    let policy = Layers {
        lock: None,
        terms: crate::Terms::default(),
        grants,
        declared: None,
        ceilings: vec![("c.toml".into(), ceiling)],
    }
    .build();
    assert_eq!(found(&policy), ["*.github.io: duplicate by *:*"]);
}

fn changes(old: &Policy, new: &Policy) -> (Vec<String>, Vec<String>) {
    let shown = |changes: Vec<Change>| {
        changes.iter().map(|c| format!("{}:{} {:?}", c.pattern, c.ports, c.why)).collect::<Vec<_>>()
    };
    (shown(new.opens(old, today())), shown(old.opens(new, today())))
}

#[test]
fn finds_targets_that_a_change_opens_and_closes() {
    let check = |old: &[&str], new: &[&str], opens: &[&str], closes: &[&str]| {
        let (opened, closed) = changes(&plain(old), &plain(new));
        assert_eq!(
            (opened.as_slice(), closed.as_slice()),
            (&*owned(opens), &*owned(closes)),
            "{old:?} {new:?}"
        );
    };
    check(&["a.example.com"], &["A.example.com:443"], &[], &[]);
    check(&[], &["a.example.com"], &["a.example.com:443 Allow"], &[]);
    check(&["*.example.com"], &["a.example.com"], &[], &["*.example.com:443 Allow"]);
    check(
        &["a.example.com:80,443"],
        &["a.example.com:443,8443"],
        &["a.example.com:8443 Allow"],
        &["a.example.com:80 Allow"],
    );
    check(&["*.example.com", "!a.example.com"], &["*.example.com"], &["a.example.com:443 Deny"], &[]);
    check(&["*.example.com"], &["*.example.com", "!a.example.com"], &[], &["a.example.com:443 Deny"]);
    check(&["10.0.0.0/9", "10.128.0.0/9"], &["10.0.0.0/8"], &[], &[]);
    // Denied before and after.
    check(&["!a.example.com"], &["!a.example.com", "a.example.com"], &[], &[]);
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn finds_lifted_checks_and_expired_rules() {
    let one = |note| builder(&[("a.example.com", note)]).build();
    let off = one(Note { tls: TlsCheck::Off, ..Note::default() });
    let expired = one(Note { expires: Some(today()), ..Note::default() });
    let plain = one(Note::default());
    assert_eq!(changes(&plain, &off), (owned(&["a.example.com:443 Tls"]), vec![]));
    assert_eq!(changes(&plain, &expired), (vec![], owned(&["a.example.com:443 Allow"])));
    // On other ports than 443, only a request enables the check.
    let odd = |tls| builder(&[("db.example.com:443,8443", Note { tls, ..Note::default() })]).build();
    let (sni, auto) = (odd(TlsCheck::Sni), odd(TlsCheck::Auto));
    assert_eq!(changes(&sni, &auto), (owned(&["db.example.com:8443 Tls"]), vec![]));
}

#[test]
fn finds_targets_that_a_ceiling_closes() {
    let grants = || builder(&[("*.example.com:*", Note::default())]);
    let ceiling = builder(&[("*.example.com", Note::default())]);
    let within = Layers {
        lock: None,
        terms: crate::Terms::default(),
        grants: grants(),
        declared: None,
        ceilings: vec![("c".into(), ceiling)],
    }
    .build();
    let free = grants().build();
    let (opened, closed) = changes(&free, &within);
    assert_eq!((opened, closed), (vec![], owned(&["*.example.com:1-442,444-65535 Allow"])));
}

/// Reviewing the maximum number of rules, of kinds that no index by name finds, is not quadratic, which would take
/// minutes.
#[test]
fn reviews_large_policies_quickly() {
    let kinds: [fn(u32) -> String; 3] = [
        |n| format!("*.w{n}.example.com"),
        |n| format!("93.{}.{}.0/24", n / 256, n % 256),
        |n| format!("[2606:{:x}::/32]", n + 0x100),
    ];
    for kind in kinds {
        let many = || {
            let rules: Vec<_> = (0..5_000).map(kind).collect();
            let rules: Vec<_> = rules.iter().map(|rule| (rule.as_str(), Note::default())).collect();
            builder(&rules)
        };
        let start = std::time::Instant::now();
        let layers = Layers {
            lock: None,
            terms: crate::Terms::default(),
            grants: many(),
            declared: Some(many()),
            ceilings: vec![("site.toml".into(), many())],
        };
        let policy = layers.build();
        let plain = many().build();
        assert_eq!(policy.effective().allow.len(), 5_000);
        assert!(policy.excess(today()).is_empty());
        assert!(policy.opens(&plain, today()).is_empty() && plain.opens(&policy, today()).is_empty());
        assert!(policy.review(today()).is_empty());
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{}: {:?}", kind(0), start.elapsed());
    }
}

/// A part of a net on one port and the other part on more: together they grant what both have.
#[test]
fn joins_nets_by_port() {
    let whole = plain(&["93.184.0.0/16:80,443"]);
    let parts = ["93.184.0.0/17:443", "93.184.0.0/17:80", "93.184.128.0/17:80,443"];
    assert!(whole.opens(&plain(&parts), today()).is_empty());
    assert_eq!(whole.opens(&plain(&parts[1..]), today()).len(), 1);
}

/// K13: a grant outside a ceiling is dead. A wide net does not make a private one a duplicate, because it opens
/// nothing of it.
#[test]
fn finds_grants_outside_a_ceiling() {
    let note = Note::default;
    let grants =
        builder(&[("a.example.com", note()), ("*.example.com:80", note()), ("b.example.org", note())]);
    let ceiling = builder(&[("*.example.com", note())]);
    let policy = Layers {
        lock: None,
        terms: crate::Terms::default(),
        grants,
        declared: None,
        ceilings: vec![("c".into(), ceiling)],
    }
    .build();
    let found: Vec<_> = policy
        .review(today())
        .iter()
        .map(|found| (found.rule.text.clone(), found.lint, found.by.is_some()))
        .collect();
    assert_eq!(
        found,
        [
            ("*.example.com:80".to_owned(), Lint::Unreachable, false),
            ("b.example.org".to_owned(), Lint::Unreachable, false)
        ]
    );
    let nets = builder(&[("10.0.0.0/8:443", note()), ("0.0.0.0/1:443", note()), ("10.1.0.0/16:443", note())])
        .build();
    let doubles: Vec<_> = nets
        .review(today())
        .iter()
        .filter(|found| found.lint == Lint::Duplicate)
        .map(|found| found.rule.text.clone())
        .collect();
    assert_eq!(doubles, ["10.1.0.0/16:443"]);
}

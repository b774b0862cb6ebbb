use super::*;
use crate::policy::{Layers, PolicyBuilder};
use crate::rule::{Note, Origin};
use crate::terms::Terms;

fn today() -> Day {
    "2026-11-21".parse().unwrap()
}

fn builder(rules: &[&str]) -> PolicyBuilder {
    let mut builder = PolicyBuilder::new();
    builder.allow_any(true).allow_shared_suffix(true);
    for rule in rules {
        let origin = Origin::Flag { flag: "--allow".into() };
        builder.add(rule, Action::Allow, origin, Note::default()).unwrap();
    }
    builder
}

fn format_changes(changes: &[Change]) -> Vec<String> {
    changes.iter().map(|change| format!("{}:{} {:?}", change.pattern, change.ports, change.why)).collect()
}

/// Checks what a change opens, that it closes nothing, and the reverse.
#[track_caller]
fn check(old: &[&str], new: &[&str], expect: &[&str]) {
    let (old, new) = (builder(old).build(), builder(new).build());
    assert_eq!(format_changes(&new.opens(&old, today())), expect);
    assert_eq!(format_changes(&old.opens(&new, today())), [""; 0]);
}

#[test]
fn finds_a_special_address_behind_a_wide_network() {
    let wide = "0.0.0.0/0:80,443";
    for rule in [
        "169.254.169.254:80",
        "127.0.0.1:443",
        "10.0.0.0/8:443",
        "192.168.1.0/24:443",
        "100.64.0.0/10:80",
        "100.100.100.200:80",
        "168.63.129.16:80",
        "192.0.0.192:80",
        "0.0.0.0/8:443",
        "240.0.0.0/4:443",
        "198.18.0.0/15:80,443",
    ] {
        check(&[wide], &[wide, rule], &[&format!("{rule} Allow")]);
    }
    let wide = "[::/0]";
    for rule in [
        "[fc00::/7]:443",
        "[::1]:443",
        "[fd00:ec2::254]:443",
        "[fe80::/10]:443",
        "[::/8]:443",
        "[2001::/24]:443",
    ] {
        check(&[wide], &[wide, rule], &[&format!("{rule} Allow")]);
    }
    check(&["8.0.0.0/5"], &["8.0.0.0/5", "10.0.0.0/8"], &["10.0.0.0/8:443 Allow"]);
    // A net that is wider than the block of its special addresses opens none of them.
    check(&["8.0.0.0/7", "11.0.0.0/8", "12.0.0.0/6"], &["8.0.0.0/5"], &[]);
    check(&["10.0.0.0/9", "10.128.0.0/9"], &["10.0.0.0/8"], &[]);
    // Addresses that are never dialed are not a change.
    check(&["a.test"], &["a.test", "224.0.0.0/4:*", "0.0.0.0:80"], &[]);
}

#[test]
fn ignores_rules_without_effect() {
    // A deny rule for something that no rule allows.
    check(&["a.test", "!b.test"], &["a.test"], &[]);
    check(&["a.test", "!b.test:443"], &["a.test", "*.b.test", "!b.test"], &["*.b.test:443 Allow"]);
    check(&["*.b.test:80,443", "!a.b.test:80"], &["*.b.test:80,443"], &["a.b.test:80 Deny"]);
    check(&["a.test", "!*.test"], &["a.test"], &["a.test:443 Deny"]);
    // A deny rule for a network applies to the addresses of names, on the ports of their grants.
    check(&["a.test", "!93.184.0.0/16"], &["a.test"], &["93.184.0.0/16:443 Deny"]);
    check(&["a.test", "!93.184.0.0/16:80"], &["a.test"], &[]);
    check(&["a.test", "!10.0.0.0/8"], &["a.test"], &[]);
    check(
        &["a.test", "10.0.0.0/8:443", "!10.0.0.0/9"],
        &["a.test", "10.0.0.0/8:443"],
        &["10.0.0.0/9:443 Deny"],
    );
    // An IPv4 rule denies the IPv6 forms that contain the address.
    check(&["[64:ff9b::/96]:443", "!93.184.0.0/16"], &["[64:ff9b::/96]:443"], &["[64:ff9b::/96]:443 Deny"]);
    check(&["*.b.test"], &["*:80,443"], &["*:80,443 Allow"]);
    check(&["*.b.test", "b.test"], &["b.test", "*.b.test", "c.b.test"], &[]);
}

#[test]
fn compares_the_intersections_of_layers() {
    let within = |grants: &[&str], ceiling: &[&str]| {
        let ceilings = vec![("site.toml".to_owned(), builder(ceiling))];
        Layers { grants: builder(grants), ceilings, ..Layers::default() }.build()
    };
    let free = builder(&["0.0.0.0/0:80", "10.0.0.0/8:80"]).build();
    let bounded = within(&["0.0.0.0/0:80", "10.0.0.0/8:80"], &["0.0.0.0/0:*"]);
    assert_eq!(format_changes(&free.opens(&bounded, today())), ["10.0.0.0/8:80 Allow"]);
    assert_eq!(format_changes(&bounded.opens(&free, today())), [""; 0]);
    let more = within(&["*.b.test", "a.test"], &["c.b.test"]);
    assert_eq!(format_changes(&more.opens(&builder(&["a.test"]).build(), today())), ["c.b.test:443 Allow"]);
    let terms = Terms { nat64: true, ..Terms::default() };
    let translated = Layers { grants: builder(&["93.184.0.0/16:443"]), terms, ..Layers::default() }.build();
    let plain = builder(&["93.184.0.0/16:443"]).build();
    assert_eq!(format_changes(&translated.opens(&plain, today())), ["93.184.0.0/16:443 Allow"]);
}

#[test]
fn grants_declarations_only_where_the_grants_open_them() {
    let excess = |grants: &[&str], declared: &[&str]| {
        let layers =
            Layers { grants: builder(grants), declared: Some(builder(declared)), ..Layers::default() };
        let policy = layers.build();
        let excess = policy.excess(today());
        excess.iter().map(|excess| format!("{}:{}", excess.rule.pattern, excess.ports)).collect::<Vec<_>>()
    };
    assert_eq!(excess(&["0.0.0.0/0:443"], &["10.0.0.0/8:443"]), ["10.0.0.0/8:443"]);
    assert_eq!(excess(&["[::/0]:443"], &["[fc00::/7]:443"]), ["[fc00::/7]:443"]);
    assert_eq!(excess(&["8.0.0.0/5:443"], &["10.0.0.0/8:80,443"]), ["10.0.0.0/8:80,443"]);
    assert_eq!(excess(&["10.0.0.0/8:443"], &["10.0.0.0/8:80,443"]), ["10.0.0.0/8:80"]);
    assert_eq!(excess(&["0.0.0.0/0:443"], &["169.254.169.254:443"]), ["169.254.169.254:443"]);
    assert_eq!(excess(&["0.0.0.0/0:443"], &["0.0.0.0/0:443", "93.184.0.0/16:443"]), [""; 0]);
    assert_eq!(excess(&["8.0.0.0/7", "11.0.0.0/8", "12.0.0.0/6"], &["8.0.0.0/5"]), [""; 0]);
}

#[test]
fn lists_the_classes_that_a_network_opens() {
    for (net, expect) in [
        ("169.254.169.254/32", &[AddrClass::Metadata][..]),
        ("169.254.0.0/16", &[AddrClass::LinkLocal, AddrClass::Metadata]),
        ("100.100.100.200/32", &[AddrClass::Metadata]),
        ("168.63.129.16/32", &[AddrClass::Metadata]),
        ("168.63.0.0/16", &[AddrClass::Public]),
        ("10.0.0.0/8", &[AddrClass::Private]),
        ("93.184.0.0/16", &[]),
        ("fd00:ec2::254/128", &[AddrClass::Metadata]),
        ("fd00::/8", &[AddrClass::UniqueLocal, AddrClass::Metadata]),
        ("fe80::/10", &[AddrClass::LinkLocal, AddrClass::Metadata]),
    ] {
        let classes: Vec<_> = opened_classes(&net.parse().unwrap()).into_iter().collect();
        assert_eq!(classes, expect, "{net}");
    }
}

#[test]
fn compares_rules_by_their_effect() {
    for (wide, narrow, expect) in [
        ("0.0.0.0/0", "93.184.0.0/16", true),
        ("0.0.0.0/0", "10.0.0.0/8", false),
        ("0.0.0.0/0", "8.0.0.0/5", true),
        ("0.0.0.0/0", "0.0.0.0/8", false),
        ("10.0.0.0/8", "10.1.0.0/16", true),
        ("10.0.0.0/7", "10.1.0.0/16", false),
        ("169.254.0.0/16", "169.254.169.254", true),
        ("168.63.0.0/16", "168.63.129.16", false),
        ("[::/0]", "[::/8]", false),
        ("[2000::/3]", "[2001::/24]", false),
        ("[2001::/23]", "[2001::/24]", true),
        ("[::/0]", "[2606:4700::/32]", true),
        ("[64:ff9b::/96]", "[64:ff9b::a00:1]", false),
        ("*.test", "a.test", true),
        ("a.test", "*.test", false),
    ] {
        let policy = builder(&[wide, narrow]).build();
        let [wide, narrow] = [0, 1].map(|at| policy.rules()[at].pattern.clone());
        assert_eq!(grants_all_of(&wide, &narrow), expect, "{wide} {narrow}");
    }
}

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::addr::{OwnAddrs, classify};
use crate::day::Day;
use crate::policy::{Layers, Policy, PolicyBuilder, Role};
use crate::reason::{Reason, Verdict};
use crate::rule::{Action, Note, Origin, TlsCheck};
use crate::target::Target;

const REPORT: Terms = Terms { mode: Mode::Report, nat64: false, ech: Ech::Record };
const NAT64: Terms = Terms { mode: Mode::Enforce, nat64: true, ech: Ech::Record };

fn today() -> Day {
    "2026-11-21".parse().unwrap()
}

/// Parses rules in one text; `RULE@DAY` expires, `RULE>BYTES` has an upload budget.
fn rules(text: &str) -> PolicyBuilder {
    let mut builder = PolicyBuilder::new();
    builder.allow_any(true);
    for word in text.split_whitespace() {
        let (word, max_upload) =
            word.split_once('>').map_or((word, None), |(rule, size)| (rule, size.parse().ok()));
        let (rule, expires) =
            word.split_once('@').map_or((word, None), |(rule, day)| (rule, day.parse().ok()));
        let note = Note { expires, max_upload, ..Note::default() };
        builder.add(rule, Action::Allow, Origin::Flag { flag: "--allow".into() }, note).unwrap();
    }
    builder
}

/// Parses layers in one text: `grants`, `grants | ceiling`, `grants | ceiling | declared`.
fn policy(terms: Terms, text: &str) -> Policy {
    let mut layers = text.split('|');
    let grants = rules(layers.next().unwrap_or_default());
    let ceilings = layers.next().map(|text| ("c".to_owned(), rules(text))).into_iter().collect();
    Layers { lock: None, grants, ceilings, declared: layers.next().map(rules), terms }.build()
}

fn own() -> OwnAddrs {
    OwnAddrs::new(["192.168.1.5", "93.184.215.99"].map(|ip| ip.parse().unwrap()))
}

/// Returns the outcome for a target with these addresses: verdict, reason, and the rule of the grants.
fn ends(policy: &Policy, target: &str, answers: &[&str]) -> (Verdict, Reason, Option<String>) {
    let answers: Vec<IpAddr> = answers.iter().map(|ip| ip.parse().unwrap()).collect();
    let outcome = policy.admit(target.parse().unwrap(), today()).and_then(|admitted| {
        let (would_deny, rule) = (admitted.would_deny().map(ToString::to_string), admitted.rule().cloned());
        let vetted = admitted.vet(&answers, &own())?;
        assert_eq!(
            (vetted.would_deny().map(ToString::to_string), vetted.rule().cloned()),
            (would_deny, rule)
        );
        Ok(vetted)
    });
    let (decision, rule) = match &outcome {
        Ok(vetted) => (vetted.decision(), vetted.rule()),
        Err(denial) => (denial.decision(), None),
    };
    (decision.verdict, decision.reason, rule.map(ToString::to_string))
}

/// Report mode allows only what no rule concerns. Each row is decided in both modes.
#[test]
fn allows_ungranted_names_in_report_mode() {
    use Reason::{Default as NoRule, DenyRule, Expired, IpLiteral, MetadataIp, Port, PrivateIp};
    let public = "93.184.215.14";
    for (layers, target, answer, enforced, reported) in [
        ("", "a.example.com:443", public, NoRule, true),
        ("", "a.example.com:80", public, NoRule, true),
        ("b.example.com", "a.example.com:443", public, NoRule, true),
        ("a.example.com", "a.example.com:80", public, Port, true),
        ("a.example.com:8443", "a.example.com:443", public, Port, true),
        // Another port.
        ("", "a.example.com:8443", public, NoRule, false),
        ("", "a.example.com:22", public, NoRule, false),
        ("a.example.com", "a.example.com:8443", public, Port, false),
        // A literal.
        ("", "93.184.215.14:443", public, IpLiteral, false),
        ("93.184.215.14:80", "93.184.215.14:443", public, Port, false),
        ("", "[2606:4700::1]:443", public, IpLiteral, false),
        ("", "10.1.2.3:80", public, IpLiteral, false),
        // A deny rule, for a name or for its address.
        ("!a.example.com", "a.example.com:443", public, DenyRule, false),
        ("!*.example.com", "a.example.com:80", public, DenyRule, false),
        ("| !a.example.com *:*", "a.example.com:443", public, DenyRule, false),
        ("!93.184.215.0/24", "a.example.com:443", public, NoRule, false),
        // An expired rule.
        ("a.example.com@2026-11-21", "a.example.com:443", public, Expired, false),
        // A ceiling, also if the grants have no rule.
        ("a.example.com |", "a.example.com:443", public, NoRule, false),
        ("|", "a.example.com:443", public, NoRule, false),
        ("| b.example.com", "a.example.com:443", public, NoRule, false),
        ("| a.example.com:80", "a.example.com:443", public, Port, false),
        ("| a.example.com@2026-11-21", "a.example.com:443", public, Expired, false),
        ("| *.example.com", "a.example.com:443", public, NoRule, true),
        // A declaration of the stage.
        ("a.example.com | *:* |", "a.example.com:443", public, NoRule, false),
        ("| *:* | b.example.com", "a.example.com:443", public, NoRule, false),
        ("| *:* | a.example.com", "a.example.com:443", public, NoRule, true),
        // The address guard, whichever layer allows the name.
        ("", "a.example.com:443", "10.1.2.3", NoRule, false),
        ("", "a.example.com:443", "127.0.0.1", NoRule, false),
        ("", "a.example.com:443", "192.168.1.5", NoRule, false),
        ("", "a.example.com:443", "93.184.215.99", NoRule, false),
        ("", "a.example.com:443", "169.254.169.254", NoRule, false),
        ("", "a.example.com:443", "224.0.0.1", NoRule, false),
        ("", "a.example.com:443", "64:ff9b::5db8:d70e", NoRule, false),
        ("10.0.0.0/8", "a.example.com:443", "10.1.2.3", NoRule, true),
        ("10.0.0.0/8 | a.example.com", "a.example.com:443", "10.1.2.3", NoRule, false),
    ] {
        let said = format!("{layers:?} {target} at {answer}");
        let (verdict, reason, rule) = ends(&policy(Terms::default(), layers), target, &[answer]);
        assert_eq!((verdict, reason, rule), (Verdict::Deny, enforced, None), "{said}");
        let (verdict, reason, rule) = ends(&policy(REPORT, layers), target, &[answer]);
        assert_eq!(verdict == Verdict::WouldDeny, reported, "{said}");
        assert_eq!(rule, None, "{said}");
        if reported {
            assert_eq!(reason, enforced, "{said}");
        } else {
            assert_eq!(verdict, Verdict::Deny, "{said}");
            let guarded = [DenyRule, PrivateIp, MetadataIp].contains(&reason);
            assert!(reason == enforced || enforced == NoRule && guarded, "{said}: {reason}");
        }
    }
}

#[test]
fn grants_in_report_mode_as_in_enforcing() {
    for terms in [Terms::default(), REPORT] {
        let policy = policy(terms, "a.example.com:* | *:*");
        for target in ["a.example.com:443", "a.example.com:22"] {
            let rule = Some("a.example.com:*".to_owned());
            assert_eq!(ends(&policy, target, &["93.184.215.14"]), (Verdict::Allow, Reason::Rule, rule));
        }
    }
}

/// An allowed target has the denial that enforcing would give.
#[test]
fn returns_the_denial_of_enforcing() {
    let admitted =
        policy(REPORT, "a.example.com:8443").admit("a.example.com:443".parse().unwrap(), today()).unwrap();
    let denial = admitted.would_deny().unwrap();
    assert_eq!(denial.said_outside(), "allowed on 8443 only");
    assert_eq!(denial.flag().as_deref(), Some("--allow a.example.com"));
    assert!(denial.is_reportable());
    // The TLS name is checked by default.
    assert_eq!((admitted.rule().is_none(), admitted.tls()), (true, TlsCheck::Auto));
    assert_eq!(admitted.upload_budgets().count(), 0);
    // The rule of the ceiling is named and its budget counts, although the grants have no rule.
    let bounded = policy(REPORT, "| *.example.com>1kB");
    let admitted = bounded.admit("a.example.com:443".parse().unwrap(), today()).unwrap();
    let within: Vec<_> = admitted.within().map(|(layer, rule)| (layer.role(), rule.to_string())).collect();
    assert_eq!(within, [(Role::Ceiling, "*.example.com:443".to_owned())]);
    let budgets: Vec<_> = admitted.upload_budgets().map(|(key, bytes)| (key.to_string(), bytes)).collect();
    assert_eq!(budgets, [("ceiling c *.example.com:443".to_owned(), 1000)]);
    // No rule admitted an address that is refused later.
    let denial = policy(REPORT, "").admit("a.example.com:443".parse().unwrap(), today()).unwrap();
    let denial = denial.vet(&["10.0.0.1".parse().unwrap()], &own()).unwrap_err();
    assert_eq!((denial.admitted_by(), denial.flag().as_deref()), (None, Some("--allow 10.0.0.1:443")));
}

fn a_rule() -> impl Strategy<Value = String> {
    let host = prop_oneof![
        Just("a.example.com"),
        Just("b.example.com"),
        Just("*.example.com"),
        Just("*"),
        Just("10.0.0.0/8"),
        Just("93.184.215.14"),
        Just("0.0.0.0/0"),
        Just("[64:ff9b::/96]"),
        Just("[64:ff9b::5db8:d70e]"),
        Just("169.254.0.0/16"),
        Just("192.168.1.5"),
        Just("[64:ff9b::a01:203]"),
    ];
    let ports = prop_oneof![Just(""), Just(":80"), Just(":443,8443"), Just(":*")];
    let day = prop_oneof![3 => Just(""), 1 => Just("@2026-11-21")];
    (prop_oneof![3 => Just(""), 1 => Just("!")], host, ports, day)
        .prop_map(|(deny, host, ports, day)| format!("{deny}{host}{ports}{day}"))
}

fn some_layers() -> impl Strategy<Value = String> {
    let layer = || prop::collection::vec(a_rule(), 0..4).prop_map(|rules| rules.join(" "));
    (layer(), prop::option::of(layer()), any::<bool>()).prop_map(|(grants, ceiling, open)| match ceiling {
        Some(ceiling) => format!("{grants} | {ceiling} {}", if open { "*:*" } else { "" }),
        None => grants,
    })
}

fn a_target() -> impl Strategy<Value = String> {
    let host = prop_oneof![
        Just("a.example.com"),
        Just("b.example.com"),
        Just("x.test"),
        Just("93.184.215.14"),
        Just("10.1.2.3"),
        Just("[64:ff9b::5db8:d70e]"),
        Just("[64:ff9b::a01:203]"),
        Just("[64:ff9b::a9fe:a9fe]"),
    ];
    (host, prop_oneof![Just(443), Just(80), Just(8443), Just(22)])
        .prop_map(|(host, port)| format!("{host}:{port}"))
}

fn an_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        Just("93.184.215.14"),
        Just("10.1.2.3"),
        Just("169.254.169.254"),
        Just("192.168.1.5"),
        Just("93.184.215.99"),
        Just("0.0.0.0"),
        Just("224.0.0.1"),
        Just("255.255.255.255"),
        Just("127.0.0.1"),
        Just("100.64.0.1"),
        Just("203.0.113.7"),
        Just("8.8.8.8"),
    ]
    .prop_map(|ip| ip.parse().unwrap())
}

fn behind(ip: IpAddr) -> IpAddr {
    let IpAddr::V4(ip) = ip else { return ip };
    let [a, b, c, d] = ip.octets().map(u16::from);
    IpAddr::from([0x64, 0xff9b, 0, 0, 0, 0, a << 8 | b, c << 8 | d])
}

proptest! {
    /// Report mode differs from enforcing only for a name on a port of the web without a rule of the grants. A deny
    /// rule, another layer, an expiry, a literal or another port is refused in both.
    #[test]
    fn enforces_everything_else_in_report_mode(layers in some_layers(), target in a_target(), ip in an_address()) {
        let target: Target = target.parse().unwrap();
        let (strict, loose) = (policy(Terms::default(), &layers), policy(REPORT, &layers));
        let ask = |policy: &Policy| policy.admit(target.clone(), today());
        match (ask(&strict), ask(&loose)) {
            (Ok(a), Ok(b)) => {
                prop_assert!(b.would_deny().is_none());
                prop_assert_eq!(a.rule().map(ToString::to_string), b.rule().map(ToString::to_string));
            }
            (Err(a), Err(b)) => {
                prop_assert!(!a.is_reportable());
                prop_assert_eq!(a.to_string(), b.to_string());
            }
            (Err(denial), Ok(admitted)) => {
                prop_assert!([80, 443].contains(&target.port.get()) && target.host.name().is_some());
                prop_assert!([Reason::Default, Reason::Port].contains(&denial.reason()));
                prop_assert!(denial.above().is_none() && denial.rule().is_none() && admitted.rule().is_none());
                prop_assert_eq!(admitted.would_deny().map(ToString::to_string), Some(denial.to_string()));
                prop_assert_eq!(admitted.within().count(), loose.layers().len() - 1);
                // The address is judged as if a rule of every layer had granted the name.
                let granted = policy(Terms::default(), &layers.split('|').map(|layer| format!("{layer} *:*"))
                    .collect::<Vec<_>>().join("|"));
                let granted = granted.admit(target.clone(), today()).unwrap().vet(&[ip], &own());
                let vetted = admitted.vet(&[ip], &own());
                prop_assert_eq!(vetted.is_ok(), granted.is_ok());
                match vetted {
                    Ok(vetted) => prop_assert_eq!(vetted.decision().verdict, Verdict::WouldDeny),
                    Err(denial) => prop_assert_eq!(denial.decision().verdict, Verdict::Deny),
                }
            }
            (Ok(_), Err(denial)) => prop_assert!(false, "report mode refuses more: {}", denial),
        }
    }

    /// H08: an address behind a translator is judged by the one inside, and nothing that is refused there passes. A
    /// deny rule for either form holds.
    #[test]
    fn judges_nat64_by_the_address_inside(layers in some_layers(), ip in an_address()) {
        let layers = layers.split('|').map(|layer| format!("{layer} a.example.com")).collect::<Vec<_>>().join("|");
        let (off, on) = (policy(Terms::default(), &layers), policy(NAT64, &layers));
        let ask = |policy: &Policy, ip| {
            let admitted = policy.admit("a.example.com:443".parse().unwrap(), today());
            admitted.and_then(|admitted| admitted.vet(&[ip], &own()))
        };
        let outer = behind(ip);
        let (inside, closed, judged) = (ask(&off, ip), ask(&off, outer), ask(&on, outer));
        if matches!(&closed, Err(denial) if denial.reason() == Reason::DenyRule) {
            prop_assert_eq!(judged.map(drop).map_err(|denial| denial.to_string()),
                closed.map(drop).map_err(|denial| denial.to_string()));
            return Ok(());
        }
        // With several layers, each may have a rule for another form.
        if off.layers().len() == 1 {
            prop_assert_eq!(judged.is_ok(), closed.is_ok() || inside.is_ok());
        }
        prop_assert!(judged.is_ok() || closed.is_err() && inside.is_err());
        if let Ok(vetted) = judged {
            prop_assert_eq!(vetted.addrs()[0].ip(), outer);
            prop_assert!(!classify(ip).is_never_dialed());
        }
    }
}

#[test]
fn nat64_answers() {
    let allow = |rules: &str, answer: &str| ends(&policy(NAT64, rules), "a.example.com:443", &[answer]);
    let granted = |rules: &str, answer: &str| allow(rules, answer).0 == Verdict::Allow;
    assert!(granted("a.example.com", "64:ff9b::5db8:d70e"), "public");
    assert!(!granted("a.example.com", "64:ff9b::a01:203"), "private");
    assert!(granted("a.example.com 10.0.0.0/8", "64:ff9b::a01:203"), "opened");
    assert!(!granted("a.example.com 10.0.0.0/8:80", "64:ff9b::a01:203"), "opened on another port");
    assert!(!granted("a.example.com 0.0.0.0/0", "64:ff9b::a01:203"), "a wide net opens nothing");
    assert!(granted("a.example.com [64:ff9b::a00:0/104]", "64:ff9b::a01:203"), "opened as it stands");
    assert!(!granted("a.example.com 192.168.0.0/16", "64:ff9b::c0a8:105"), "the host's own");
    assert!(granted("a.example.com 192.168.1.5", "64:ff9b::c0a8:105"), "the host's own, named");
    assert!(!granted("a.example.com", "64:ff9b::5db8:d763"), "the host's own public one");
    assert!(!granted("a.example.com 0.0.0.0/8 [64:ff9b::/96]", "64:ff9b::"), "unspecified");
    assert!(!granted("a.example.com 224.0.0.0/4", "64:ff9b::e000:1"), "multicast");
    assert!(!granted("a.example.com 255.255.255.255", "64:ff9b::ffff:ffff"), "broadcast");
    assert!(!granted("a.example.com 93.184.215.14", "64:ff9b:1::5db8:d70e"), "a network's own prefix");
    assert!(!granted("a.example.com 93.184.215.14", "::ffff:93.184.215.14"), "another embedding");
    for deny in ["!93.184.215.14", "!93.184.215.0/24:443", "![64:ff9b::5db8:d70e]", "![64:ff9b::/96]"] {
        let ends = allow(&format!("a.example.com {deny}"), "64:ff9b::5db8:d70e");
        assert_eq!(ends.1, Reason::DenyRule, "{deny}");
    }
    let mixed =
        ends(&policy(NAT64, "a.example.com"), "a.example.com:443", &["93.184.215.14", "64:ff9b::a01:203"]);
    assert_eq!(mixed.1, Reason::PrivateIp, "one bad address");
    // Each layer must open it.
    assert!(!granted("a.example.com 10.0.0.0/8 | a.example.com", "64:ff9b::a01:203"));
    assert!(granted("a.example.com 10.0.0.0/8 | a.example.com 10.1.0.0/16", "64:ff9b::a01:203"));
}

#[test]
fn opens_nat64_literals_only_with_both_rules() {
    let granted =
        |terms, rules: &str, target: &str| ends(&policy(terms, rules), target, &[]).0 == Verdict::Allow;
    let (public, private) = ("[64:ff9b::5db8:d70e]:443", "[64:ff9b::a01:203]:443");
    for (rules, target, on) in [
        ("", public, false),
        ("93.184.215.14", public, true),
        ("93.184.215.14:80", public, false),
        ("93.184.0.0/16", public, true),
        ("10.1.2.3", private, true),
        ("0.0.0.0/0", private, false),
        ("93.184.215.99", "[64:ff9b::5db8:d763]:443", true),
        ("93.184.215.0/24", "[64:ff9b::5db8:d763]:443", false),
        ("169.254.169.254", "[64:ff9b::a9fe:a9fe]:443", true),
        ("0.0.0.0", "[64:ff9b::]:443", false),
    ] {
        assert!(!granted(Terms::default(), rules, target), "off: {rules} {target}");
        assert_eq!(granted(NAT64, rules, target), on, "{rules} {target}");
    }
    for terms in [Terms::default(), NAT64] {
        assert!(granted(terms, "[64:ff9b::/96]", public));
        assert!(granted(terms, "[64:ff9b::a01:203]", private));
        assert!(!granted(terms, "[64:ff9b::/96]", private));
        assert!(!granted(terms, "[64:ff9b::/96] 93.184.215.14 !93.184.215.14", public));
    }
}

/// The texts about them, and the flag that helps.
#[test]
fn names_the_address_inside_nat64() {
    let refusal = |terms, rules: &str, target: &str, answer: &str| {
        let answer = answer.parse().unwrap();
        let admitted = policy(terms, rules).admit(target.parse().unwrap(), today());
        let denial = admitted.and_then(|admitted| admitted.vet(&[answer], &own())).unwrap_err();
        (denial.said_outside(), denial.flag(), denial.reason())
    };
    let name = |terms, answer| refusal(terms, "a.example.com", "a.example.com:443", answer);
    let flag = |flag: &str| Some(flag.to_owned());
    assert_eq!(
        name(NAT64, "64:ff9b::a9fe:a9fe"),
        (
            "resolves to 64:ff9b::a9fe:a9fe (NAT64 of 169.254.169.254, cloud metadata)".to_owned(),
            None,
            Reason::MetadataIp
        )
    );
    assert_eq!(
        name(NAT64, "64:ff9b::a01:203"),
        (
            "resolves to 64:ff9b::a01:203 (NAT64 of 10.1.2.3, private)".to_owned(),
            flag("--allow 10.1.2.3:443"),
            Reason::PrivateIp
        )
    );
    assert_eq!(
        name(NAT64, "64:ff9b::c0a8:105").0,
        "resolves to 64:ff9b::c0a8:105 (NAT64 of 192.168.1.5, this host's own)"
    );
    for (answer, inner) in [("64:ff9b::5db8:d70e", "93.184.215.14"), ("64:ff9b::a01:203", "10.1.2.3")] {
        assert_eq!(
            name(Terms::default(), answer),
            (
                format!(
                    "resolves to {answer} (NAT64 of {inner}; --set network.nat64=true judges the address inside)"
                ),
                Some(format!("--allow [{answer}]:443")),
                Reason::PrivateIp
            )
        );
    }
    assert_eq!(
        refusal(NAT64, "", "[64:ff9b::a01:203]:443", "::1").0,
        "no IP rule allows this address (NAT64 of 10.1.2.3, private)"
    );
    assert_eq!(
        refusal(NAT64, "[64:ff9b::/96]", "[64:ff9b::a01:203]:443", "::1"),
        (
            "not a public address (NAT64 of 10.1.2.3, private)".to_owned(),
            flag("--allow 10.1.2.3:443"),
            Reason::PrivateIp
        )
    );
    assert_eq!(refusal(NAT64, "10.1.2.3:80", "[64:ff9b::a01:203]:443", "::1").0, "allowed on 80 only");
}

/// K13: each layer with a budget has its own, under a key that is the same when the rules are read again.
#[test]
fn upload_budgets() {
    let budgets = |layers: &str, target: &str| -> Vec<(String, u64)> {
        let admitted = policy(Terms::default(), layers).admit(target.parse().unwrap(), today()).unwrap();
        let budgets: Vec<_> = admitted.upload_budgets().collect();
        let vetted = admitted.vet(&["93.184.215.14".parse().unwrap()], &own()).unwrap();
        assert!(vetted.upload_budgets().eq(budgets.iter().cloned()));
        budgets.into_iter().map(|(key, bytes)| (key.to_string(), bytes)).collect()
    };
    let one = |key: &str, bytes| vec![(key.to_owned(), bytes)];
    assert_eq!(budgets("a.example.com", "a.example.com:443"), []);
    assert_eq!(
        budgets("A.example.com.>10MB", "a.example.com:443"),
        one("grants a.example.com:443", 10_000_000)
    );
    // The key stays the same elsewhere in the policy, with another budget and next to other rules.
    assert_eq!(
        budgets("b.example.com a.example.com:443>1kB", "a.example.com:443"),
        one("grants a.example.com:443", 1000)
    );
    let both = budgets("a.example.com>10MB | *.example.com:*>1GB", "a.example.com:443");
    assert_eq!(
        both,
        [
            ("ceiling c *.example.com:*".to_owned(), 1_000_000_000),
            ("grants a.example.com:443".to_owned(), 10_000_000)
        ]
    );
    // The nearest rule counts, and among rules for the same names the one that says more.
    assert_eq!(budgets("*.example.com>10MB a.example.com", "a.example.com:443"), []);
    assert_eq!(
        budgets("*.example.com a.example.com>1kB", "a.example.com:443"),
        one("grants a.example.com:443", 1000)
    );
    for same in [
        "a.example.com a.example.com:443>1kB",
        "a.example.com:443>1kB a.example.com",
        "a.example.com>1MB a.example.com>1kB",
    ] {
        assert_eq!(budgets(same, "a.example.com:443"), one("grants a.example.com:443", 1000), "{same}");
    }
    // An expired rule, or one for another port, sets no budget.
    assert_eq!(budgets("a.example.com a.example.com@2026-11-21>1kB", "a.example.com:443"), []);
    assert_eq!(budgets("a.example.com:8443>1kB a.example.com", "a.example.com:443"), []);
    assert_eq!(
        budgets("93.184.0.0/16 93.184.215.0/24>1kB", "93.184.215.14:443"),
        one("grants 93.184.215.0/24:443", 1000)
    );
}

#[test]
fn words() {
    for mode in Mode::ALL {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    for ech in Ech::ALL {
        assert_eq!(ech.to_string().parse(), Ok(ech));
    }
    assert!(
        "".parse::<Mode>().is_err() && "Report".parse::<Mode>().is_err() && "off".parse::<Ech>().is_err()
    );
    assert_eq!(Terms::default().note(), None);
    assert!(REPORT.note().unwrap().starts_with("report mode: "));
    let refusing = policy(Terms { ech: Ech::Refuse, ..Terms::default() }, "a.example.com");
    assert_eq!(refusing.admit("a.example.com:443".parse().unwrap(), today()).unwrap().ech(), Ech::Refuse);
}

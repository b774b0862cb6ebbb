use super::*;
use crate::policy::PolicyBuilder;
use crate::rule::{Action, Note, Origin};

fn today() -> Day {
    "2026-11-21".parse().unwrap()
}

fn policy(rules: &[&str]) -> Policy {
    let mut builder = PolicyBuilder::new();
    for (line, rule) in (1..).zip(rules) {
        // The suffix `@2026-01-01` is the expiry of a rule.
        let (rule, expires) =
            rule.split_once('@').map_or((*rule, None), |(rule, day)| (rule, day.parse().ok()));
        let origin = Origin::File { path: ".exeat.toml".into(), line };
        builder.add(rule, Action::Allow, origin, Note { expires, ..Note::default() }).unwrap();
    }
    builder.build()
}

fn judge(rules: &[&str], target: &str, answers: &[&str]) -> Result<Vetted, Denial> {
    let answers: Vec<IpAddr> = answers.iter().map(|ip| ip.parse().unwrap()).collect();
    let own = OwnAddrs::new(["192.168.1.5", "93.184.215.99", "127.0.0.1"].map(|ip| ip.parse().unwrap()));
    policy(rules).admit(target.parse().unwrap(), today())?.vet(&answers, &own)
}

struct Refusal<'a> {
    reason: &'a str,
    inside: &'a str,
    outside: &'a str,
    flag: Option<&'a str>,
    flag_inside: Option<&'a str>,
}

#[track_caller]
fn refuses(rules: &[&str], target: &str, answers: &[&str], expect: &Refusal<'_>) {
    let denial = judge(rules, target, answers).expect_err("it is refused");
    assert_eq!(denial.reason().as_str(), expect.reason);
    assert_eq!(denial.said_inside(), expect.inside);
    assert_eq!(denial.said_outside(), expect.outside);
    assert_eq!(denial.flag().as_deref(), expect.flag);
    assert_eq!(denial.flag_inside().as_deref(), expect.flag_inside);
    assert_eq!(denial.decision().verdict, Verdict::Deny);
}

/// H15: an empty policy allows nothing.
#[test]
fn no_rule() {
    let same = |flag| Refusal {
        reason: "default",
        inside: "no rule allows it",
        outside: "no rule allows it",
        flag: Some(flag),
        flag_inside: Some(flag),
    };
    refuses(&[], "stats.example.net:443", &[], &same("--allow stats.example.net"));
    refuses(&["example.com:*"], "a.example.com:8443", &[], &same("--allow a.example.com:8443"));
}

#[test]
fn h18_refuses_another_port() {
    let flag = Some("--allow api.example.com:8443");
    refuses(
        &["api.example.com"],
        "api.example.com:8443",
        &[],
        &Refusal {
            reason: "port",
            inside: "this host is allowed on port 443 only",
            outside: "allowed on 443 only",
            flag,
            flag_inside: flag,
        },
    );
    refuses(
        &["api.example.com", "*.example.com:80,90-99"],
        "api.example.com:8443",
        &[],
        &Refusal {
            reason: "port",
            inside: "this host is allowed on ports 80,90-99,443 only",
            outside: "allowed on 80,90-99,443 only",
            flag,
            flag_inside: flag,
        },
    );
    let many: Vec<String> = (1..20).map(|port| format!("api.example.com:{}", port * 2)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    refuses(
        &many,
        "api.example.com:8443",
        &[],
        &Refusal {
            reason: "port",
            inside: "this host is allowed on other ports only",
            outside: "allowed on other ports only",
            flag,
            flag_inside: flag,
        },
    );
    let flag = Some("--allow 93.184.215.14:80");
    refuses(
        &["93.184.215.0/24"],
        "93.184.215.14:80",
        &[],
        &Refusal {
            reason: "port",
            inside: "this host is allowed on port 443 only",
            outside: "allowed on 443 only",
            flag,
            flag_inside: flag,
        },
    );
}

/// D05: no flag leads to metadata: not to another port of a granted one, and not on the machine that serves it.
#[test]
fn d05_offers_no_flag_for_metadata() {
    let port = Refusal {
        reason: "port",
        inside: "this host is allowed on port 80 only",
        outside: "allowed on 80 only",
        flag: None,
        flag_inside: None,
    };
    refuses(&["169.254.169.254:80"], "169.254.169.254:443", &[], &port);
    refuses(&["[::ffff:169.254.169.254]:80"], "[::ffff:169.254.169.254]:443", &[], &port);
    let own = OwnAddrs::new(["169.254.169.254".parse().unwrap()]);
    let ask = |rules: &[&str]| {
        let name = policy(rules).admit("a.example.com:80".parse().unwrap(), today()).unwrap();
        name.vet(&["169.254.169.254".parse().unwrap()], &own)
    };
    let denial = ask(&["a.example.com:80", "169.254.0.0/16:80"]).expect_err("own addresses need a rule each");
    assert_eq!((denial.reason(), denial.flag()), (Reason::MetadataIp, None));
    assert!(ask(&["a.example.com:80", "169.254.169.254:80"]).is_ok());
}

/// H08: a deny rule wins, and an address is denied in every form that contains it.
#[test]
fn h17_applies_deny_rules_first() {
    refuses(
        &["*.example.com", "!telemetry.example.com"],
        "telemetry.example.com:443",
        &[],
        &Refusal {
            reason: "deny_rule",
            inside: "a deny rule forbids this host",
            outside: "denied by .exeat.toml:2",
            flag: None,
            flag_inside: None,
        },
    );
    let by_address = Refusal {
        reason: "deny_rule",
        inside: "a deny rule forbids this host",
        outside: "resolves to 93.184.215.14, denied by .exeat.toml:2",
        flag: None,
        flag_inside: None,
    };
    refuses(
        &["a.example.com", "!93.184.215.0/24"],
        "a.example.com:443",
        &["1.1.1.1", "93.184.215.14"],
        &by_address,
    );
    // H08: the address is denied in every form that contains it, even if a rule opens the form.
    refuses(
        &["a.example.com", "!93.184.215.14", "[64:ff9b::/96]"],
        "a.example.com:443",
        &["64:ff9b::93.184.215.14"],
        &Refusal { outside: "resolves to 64:ff9b::5db8:d70e, denied by .exeat.toml:2", ..by_address },
    );
    refuses(
        &["[::ffff:10.0.0.1]", "!10.0.0.1"],
        "[::ffff:10.0.0.1]:443",
        &[],
        &Refusal { outside: "denied by .exeat.toml:2", ..by_address },
    );
}

/// D03: one refused address refuses all, and the flags name every address that needs a rule.
#[test]
fn d01_refuses_an_answer_that_is_not_public() {
    refuses(
        &["wiki.corp.example"],
        "wiki.corp.example:443",
        &["10.2.3.4"],
        &Refusal {
            reason: "private_ip",
            inside: "its address is not public",
            outside: "resolves to 10.2.3.4 (private)",
            flag: Some("--allow 10.2.3.4:443"),
            flag_inside: None,
        },
    );
    refuses(
        &["a.example.com:8443"],
        "a.example.com:8443",
        &["1.1.1.1", "10.2.3.4", "fd00::1", "10.2.3.4"],
        &Refusal {
            reason: "private_ip",
            inside: "its address is not public",
            outside: "resolves to fd00::1 (private, unique local)",
            flag: Some("--allow [fd00::1]:8443 --allow 10.2.3.4:8443"),
            flag_inside: None,
        },
    );
    let denial = judge(&["wiki.corp.example"], "wiki.corp.example:443", &["10.2.3.4"]).unwrap_err();
    assert_eq!(denial.admitted_by().map(|rule| rule.text.as_str()), Some("wiki.corp.example"));
    assert_eq!((denial.addr(), denial.class()), ("10.2.3.4".parse().ok(), Some(AddrClass::Private)));
    assert!(denial.rule().is_none());
}

#[test]
fn d05_d07_offers_no_flag_for_some_addresses() {
    let hopeless = |reason, outside| Refusal {
        reason,
        inside: match reason {
            "metadata_ip" => "its address is cloud metadata, and no name opens it",
            _ => "its address is never reachable",
        },
        outside,
        flag: None,
        flag_inside: None,
    };
    let never = |address, outside| {
        refuses(&["a.example.com"], "a.example.com:443", &[address], &hopeless("private_ip", outside))
    };
    never("0.0.0.0", "resolves to 0.0.0.0 (unspecified)");
    never("ff02::fb", "resolves to ff02::fb (multicast)");
    never("255.255.255.255", "resolves to 255.255.255.255 (broadcast)");
    let metadata = |address, outside| {
        refuses(
            &["a.example.com"],
            "a.example.com:443",
            &["10.0.0.1", address],
            &hopeless("metadata_ip", outside),
        )
    };
    metadata("169.254.169.254", "resolves to 169.254.169.254 (cloud metadata)");
    metadata("fd00:ec2::254", "resolves to fd00:ec2::254 (cloud metadata)");
    refuses(
        &[],
        "169.254.169.254:80",
        &[],
        &hopeless("metadata_ip", "not a public address (cloud metadata)"),
    );
    // H08: this holds in every form, whether the name or the literal leads there.
    metadata(
        "64:ff9b::169.254.169.254",
        "resolves to 64:ff9b::a9fe:a9fe (NAT64 of 169.254.169.254, cloud metadata)",
    );
    for literal in ["[::ffff:169.254.169.254]:80", "[2002:a9fe:a9fe::1]:80", "[fe80::5efe:a9fe:a9fe]:80"] {
        let plain = hopeless("metadata_ip", "not a public address (cloud metadata)");
        refuses(&[], literal, &[], &plain);
        refuses(&["[::ffff:0:0/96]:80", "[2002::/16]:80", "[fe80::/10]:80"], literal, &[], &plain);
    }
    refuses(&[], "224.0.0.1:80", &[], &hopeless("private_ip", "not a public address (multicast)"));
    refuses(
        &["0.0.0.0:80"],
        "0.0.0.0:80",
        &[],
        &hopeless("private_ip", "not a public address (unspecified)"),
    );
}

/// D08: literals, and a rule that covers one but is too wide to open its block.
#[test]
fn h21_refuses_literals_without_an_ip_rule() {
    let flag = Some("--allow 93.184.215.14:443");
    refuses(
        &["example.com:*"],
        "93.184.215.14:443",
        &[],
        &Refusal {
            reason: "ip_literal",
            inside: "no IP rule allows this address",
            outside: "no IP rule allows this address",
            flag,
            flag_inside: flag,
        },
    );
    let flag = Some("--allow [::1]:8080");
    refuses(
        &["127.0.0.1:8080"],
        "[::1]:8080",
        &[],
        &Refusal {
            reason: "ip_literal",
            inside: "no IP rule allows this address",
            outside: "no IP rule allows this address (loopback)",
            flag,
            flag_inside: flag,
        },
    );
    // D08: a rule covers it, but is too wide to open the block.
    let flag = Some("--allow 127.0.0.1:443");
    refuses(
        &["0.0.0.0/0"],
        "127.0.0.1:443",
        &[],
        &Refusal {
            reason: "private_ip",
            inside: "its address is not public",
            outside: "not a public address (loopback)",
            flag,
            flag_inside: flag,
        },
    );
}

#[test]
fn d09_refuses_own_addresses() {
    let expect = |outside, flag| Refusal {
        reason: "private_ip",
        inside: "its address is not public",
        outside,
        flag: Some(flag),
        flag_inside: None,
    };
    let rules = &["a.example.com", "93.184.215.0/24", "192.168.0.0/16"];
    let public = expect("resolves to 93.184.215.99 (this host's own)", "--allow 93.184.215.99:443");
    refuses(rules, "a.example.com:443", &["93.184.215.99"], &public);
    let private = expect("resolves to 192.168.1.5 (this host's own)", "--allow 192.168.1.5:443");
    refuses(rules, "a.example.com:443", &["192.168.1.5"], &private);
    assert!(judge(rules, "a.example.com:443", &["192.168.1.6", "93.184.215.98"]).is_ok());
    assert!(
        judge(
            &["a.example.com", "93.184.215.99", "192.168.1.5/32"],
            "a.example.com:443",
            &["93.184.215.99", "192.168.1.5"]
        )
        .is_ok()
    );
    // Loopback keeps its class: a rule for its block opens it.
    assert!(judge(&["a.example.com", "127.0.0.0/8"], "a.example.com:443", &["127.0.0.1"]).is_ok());
    assert!(judge(&["93.184.215.0/24"], "93.184.215.99:443", &[]).is_err());
    assert!(judge(&["93.184.215.99"], "93.184.215.99:443", &[]).is_ok());
}

#[test]
fn refuses_by_expired_rules() {
    let expect = |outside| Refusal {
        reason: "expired",
        inside: "the rule that allowed this host has expired",
        outside,
        flag: None,
        flag_inside: None,
    };
    refuses(
        &["a.example.com@2026-11-21"],
        "a.example.com:443",
        &[],
        &expect("the rule at .exeat.toml:1 expired on 2026-11-21"),
    );
    refuses(
        &["a.example.com", "10.0.0.0/8@2026-01-01"],
        "a.example.com:443",
        &["10.0.0.1"],
        &expect("resolves to 10.0.0.1 (private); the rule at .exeat.toml:2 expired on 2026-01-01"),
    );
    // The last day before the expiry, and another rule with the same grant.
    assert!(judge(&["a.example.com@2026-11-22"], "a.example.com:443", &["1.1.1.1"]).is_ok());
    assert!(judge(&["a.example.com@2026-01-01", "*.example.com"], "a.example.com:443", &["1.1.1.1"]).is_ok());
    // The expiry is not the only reason: the rule never granted this port.
    let denial = judge(&["a.example.com@2026-01-01"], "a.example.com:80", &[]).unwrap_err();
    assert_eq!(denial.reason(), Reason::Default);
    // A deny rule does not expire.
    assert!(policy(&["!a.example.com@2026-01-01"]).rules().iter().all(|rule| rule.is_live(today())));
    let denial =
        judge(&["*.example.com", "!a.example.com@2026-01-01"], "a.example.com:443", &[]).unwrap_err();
    assert_eq!(denial.reason(), Reason::DenyRule);
}

#[test]
fn keeps_the_order_of_vetted_addresses() {
    let vetted = judge(
        &["a.example.com:8443", "10.0.0.0/8:8443"],
        "a.example.com:8443",
        &["10.0.0.7", "1.1.1.1", "10.0.0.7"],
    )
    .unwrap();
    let addrs: Vec<String> = vetted.addrs().iter().map(ToString::to_string).collect();
    assert_eq!(addrs, ["10.0.0.7:8443", "1.1.1.1:8443"]);
    assert_eq!(vetted.opened_by().map(|rule| rule.text.as_str()), Some("10.0.0.0/8:8443"));
    assert_eq!(vetted.rule().unwrap().text, "a.example.com:8443");
    let decision = vetted.decision();
    assert_eq!(
        (decision.verdict, decision.reason, decision.rule),
        (Verdict::Allow, Reason::Rule, Some(RuleId(0)))
    );
}

/// D13: a long answer is checked to its end, and only a few addresses are kept.
#[test]
fn judges_long_answers_to_the_end() {
    let mut answers: Vec<String> = (1..100).map(|d| format!("93.184.214.{d}")).collect();
    let vetted = judge(
        &["a.example.com"],
        "a.example.com:443",
        &answers.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    assert_eq!(vetted.unwrap().addrs().len(), MAX_ADDRS);
    answers.push("10.9.9.9".into());
    let refused = judge(
        &["a.example.com"],
        "a.example.com:443",
        &answers.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    assert_eq!(refused.unwrap_err().reason(), Reason::PrivateIp);
    let private: Vec<String> = (1..100).map(|d| format!("10.0.0.{d}")).collect();
    let refused = judge(
        &["a.example.com"],
        "a.example.com:443",
        &private.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    assert_eq!(refused.unwrap_err().flag(), None);
}

#[test]
fn vets_a_literal_instead_of_the_answer() {
    let vetted = judge(&["93.184.215.14"], "93.184.215.14:443", &["10.0.0.1"]).unwrap();
    assert_eq!(vetted.addrs(), ["93.184.215.14:443".parse().unwrap()]);
}

#[test]
fn reports_an_empty_answer_as_an_error() {
    let denial = judge(&["a.example.com"], "a.example.com:443", &[]).unwrap_err();
    assert_eq!((denial.reason(), denial.decision().verdict), (Reason::DnsEmpty, Verdict::Error));
}

/// H02: letter case and a trailing dot do not bypass a deny rule, on either side.
#[test]
fn h02_applies_deny_rules_to_every_spelling() {
    for deny in ["!secret.example.com", "!SECRET.example.com.", "!*.Example.COM", "!*.example.com.:443"] {
        let policy = policy(&["*.example.com", "secret.example.com", deny]);
        for target in [
            "secret.example.com:443",
            "Secret.EXAMPLE.com:443",
            "secret.example.com.:443",
            "SECRET.EXAMPLE.COM.:443",
        ] {
            let denial = policy.admit(target.parse().unwrap(), today()).expect_err(deny);
            assert_eq!(denial.reason(), Reason::DenyRule, "{deny} and {target}");
        }
    }
}

/// D15: a name goes to an upstream proxy unresolved, and a literal only after a check. Neither can be used as the
/// other.
#[test]
fn d15_entrusts_names_and_vetted_literals_only() {
    let admit = |rules: &[&str], target: &str| policy(rules).admit(target.parse().unwrap(), today()).unwrap();
    let name = admit(&["a.example.com"], "a.example.com:443").entrust().unwrap();
    assert_eq!(name.target().to_string(), "a.example.com:443");
    assert_eq!((name.decision().verdict, name.decision().reason), (Verdict::Allow, Reason::Rule));
    assert_eq!(name.rule().unwrap().text, "a.example.com");

    let literal = admit(&["10.0.0.1:443"], "10.0.0.1:443").entrust().unwrap_err();
    let literal = literal.vet(&[], &OwnAddrs::default()).unwrap().entrust().unwrap();
    assert_eq!(literal.target().to_string(), "10.0.0.1:443");
    let own = OwnAddrs::new(["10.0.0.1".parse().unwrap()]);
    assert!(admit(&["10.0.0.0/8:443"], "10.0.0.1:443").vet(&[], &own).is_err());

    let vetted = judge(&["a.example.com"], "a.example.com:443", &["93.184.215.14"]).unwrap();
    assert!(vetted.entrust().is_err(), "the proxy would look it up again");
}

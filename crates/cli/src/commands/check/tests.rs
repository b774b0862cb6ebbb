use exeat_policy::{Action, Layers, Mode, Note, Origin, PolicyBuilder, Terms};

use super::*;

fn policy(rules: &[&str]) -> Policy {
    let mut builder = PolicyBuilder::new();
    for rule in rules {
        builder.add(rule, Action::Allow, Origin::Flag { flag: "--allow".into() }, Note::default()).unwrap();
    }
    builder.build()
}

fn answers(rules: &[&str], targets: &[&str]) -> Vec<Answer> {
    let policy = policy(rules);
    targets.iter().map(|text| answer(&policy, &[], target(text).unwrap(), Day::from_unix(0), false)).collect()
}

#[test]
fn a_target_as_people_write_it() {
    for (typed, expect) in [
        ("api.example.com", "api.example.com:443"),
        ("API.Example.Com.", "api.example.com:443"),
        ("api.example.com:8443", "api.example.com:8443"),
        ("10.2.3.4", "10.2.3.4:443"),
        ("10.2.3.4:80", "10.2.3.4:80"),
        ("2001:db8::1", "[2001:db8::1]:443"),
        ("[2001:db8::1]", "[2001:db8::1]:443"),
        ("[2001:db8::1]:22", "[2001:db8::1]:22"),
    ] {
        assert_eq!(target(typed).unwrap().to_string(), expect, "{typed}");
    }
}

#[test]
fn names_the_character_that_no_host_has() {
    for (typed, said) in [
        ("my_db.corp.example", "`_` is in no host name, only letters, digits, `-` and `.`"),
        ("a b", "` ` is in no host name"),
        ("b\u{fc}cher.example", "`\u{fc}` is in no host name"),
        ("a\u{1b}b", "`\\u{1b}` is in no host name"),
    ] {
        let report = target(typed).expect_err(typed).report(Paint::PLAIN);
        assert!(report.contains(said) && !report.contains("byte "), "{report}");
    }
}

#[test]
fn refuses_an_invalid_target_and_suggests_the_one_probably_meant() {
    for (typed, meant) in [
        ("https://api.example.com/v1?x=y", Some("api.example.com:443")),
        ("http://api.example.com", Some("api.example.com:80")),
        ("https://user:pw@api.example.com:8443/", Some("api.example.com:8443")),
        ("ssh://git@git.example.com", Some("git.example.com:22")),
        ("git@git.example.com", Some("git.example.com:443")),
        ("api.example.com/v1", Some("api.example.com:443")),
        ("*.example.com", None),
        ("", None),
        ("a b", None),
        ("api.example.com:0", None),
        ("api.example.com:https", None),
        ("b\u{fc}cher.example", None),
    ] {
        let failure = target(typed).expect_err(typed);
        assert_eq!(failure.exit(), Exit::BadInput, "{typed}");
        let report = failure.report(Paint::PLAIN);
        match meant {
            Some(meant) => {
                assert!(report.ends_with(&format!("probably meant: exeat check {meant}\n")), "{report}")
            }
            None => assert!(!report.contains("probably meant"), "{report}"),
        }
    }
}

#[test]
fn answers_for_people() {
    let answers = answers(
        &["*.example.com", "api.example.net:8443", "!stats.example.com"],
        &["a.example.com", "example.com", "api.example.net", "stats.example.com", "10.0.0.1"],
    );
    insta::assert_snapshot!(text(&answers, Paint::PLAIN), @r#"
    allow  a.example.com:443      *.example.com (--allow)
           also opens every other name below example.com, on 443
    deny   example.com:443        no rule allows it  --allow example.com
    deny   api.example.net:443    allowed on 8443 only  --allow api.example.net
    deny   stats.example.com:443  denied by --allow
    deny   10.0.0.1:443           no IP rule allows this address (private)  --allow 10.0.0.1:443
    "#);
}

/// A program that ignores the proxy's variables: what it reaches, what it does not, and why.
#[test]
fn answers_say_who_reaches_it() {
    let offered: HostPort = "5432:80".parse().unwrap();
    let policy = policy(&["a.example.com:*", "10.0.0.0/8:22", "127.0.0.1:5432", "127.0.0.1:8765"]);
    let said = |asked: &str| {
        let answers = [answer(&policy, &[offered], target(asked).unwrap(), Day::from_unix(0), false)];
        let line = json(&answers).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let shown = text(&answers, Paint::PLAIN);
        let said = line["without_proxy_said"].as_str().unwrap_or_default();
        assert_eq!(line["without_proxy"].is_boolean(), !said.is_empty(), "{line}");
        let is_usual = said.is_empty() || said.ends_with("too");
        assert_eq!(shown.contains("HTTPS_PROXY"), !is_usual, "{shown}");
        assert!(is_usual || shown.contains(said), "{shown}");
        format!("{} {said}", line["without_proxy"]).replace("programs that ignore HTTPS_PROXY ", "")
    };
    assert_eq!(said("a.example.com"), "true reach it too");
    assert_eq!(
        said("a.example.com:9999"),
        "false do not reach it: of a rule with more than 64 ports, the gateway serves the well-known ones"
    );
    assert_eq!(
        said("10.2.3.4:22"),
        "false do not reach it: the gateway serves address rules of at most 16 addresses"
    );
    assert_eq!(said("127.0.0.1:5432"), "true reach it too, at 127.0.0.1:80");
    assert_eq!(said("127.0.0.1:8765"), "false do not reach it: the sandbox has a loopback of its own");
    assert_eq!(said("b.example.com"), "null ");
}

/// In report mode what would pass is told from what is allowed, and from what is refused all the same.
#[test]
fn answers_in_report_mode() {
    let mut grants = PolicyBuilder::new();
    let note = Note { max_upload: Size::new(10_000_000), ..Note::default() };
    grants.add("a.example.com", Action::Allow, Origin::Flag { flag: "--allow".into() }, note).unwrap();
    let terms = Terms { mode: Mode::Report, ..Terms::default() };
    let policy = Layers { grants, terms, ..Layers::default() }.build();
    let answers: Vec<_> = ["a.example.com", "b.example.com", "a.example.com:80", "b.example.com:22"]
        .map(|text| answer(&policy, &[], target(text).unwrap(), Day::from_unix(0), false))
        .into();
    insta::assert_snapshot!(text(&answers, Paint::PLAIN), @r"
    allow       a.example.com:443  a.example.com (--allow)
                at most 10MB are sent in a run
    would_deny  b.example.com:443  no rule allows it  --allow b.example.com
    would_deny  a.example.com:80   allowed on 443 only  --allow a.example.com:80
    deny        b.example.com:22   no rule allows it  --allow b.example.com:22
    ");
    insta::assert_snapshot!(json(&answers[..2]).unwrap(), @r#"
    {"schema":1,"target":"a.example.com:443","verdict":"allow","reason":"rule","rule":"a.example.com","rule_src":"--allow","without_proxy":true,"without_proxy_said":"programs that ignore HTTPS_PROXY reach it too","max_upload":10000000,"addresses_checked":false}
    {"schema":1,"target":"b.example.com:443","verdict":"would_deny","reason":"default","without_proxy":true,"without_proxy_said":"programs that ignore HTTPS_PROXY reach it too","said":"no rule allows it","flag":"--allow b.example.com","addresses_checked":false}
    "#);
}

#[test]
fn answers_for_programs() {
    let answers = answers(
        &["*.example.com", "!stats.example.com"],
        &["a.example.com", "example.com", "stats.example.com:80"],
    );
    insta::assert_snapshot!(json(&answers).unwrap(), @r#"
    {"schema":1,"target":"a.example.com:443","verdict":"allow","reason":"rule","rule":"*.example.com","rule_src":"--allow","without_proxy":true,"without_proxy_said":"programs that ignore HTTPS_PROXY reach it too","also":"every other name below example.com, on 443","addresses_checked":false}
    {"schema":1,"target":"example.com:443","verdict":"deny","reason":"default","said":"no rule allows it","flag":"--allow example.com","addresses_checked":false}
    {"schema":1,"target":"stats.example.com:80","verdict":"deny","reason":"deny_rule","rule":"!stats.example.com","rule_src":"--allow","said":"denied by --allow","addresses_checked":false}
    "#);
}

use exeat_policy::{Action, Layers, Mode, Note, Origin, PolicyBuilder, Terms};

use super::*;

fn policy(rules: &[&str], terms: Terms) -> Policy {
    let mut grants = PolicyBuilder::new();
    for rule in rules {
        let (rule, tls) =
            rule.strip_suffix(" off").map_or((*rule, TlsCheck::Auto), |rule| (rule, TlsCheck::Off));
        let origin = Origin::File { path: "new.toml".into(), line: 3 };
        grants.add(rule, Action::Allow, origin, Note { tls, ..Note::default() }).unwrap();
    }
    Layers { grants, terms, ..Layers::default() }.build()
}

fn line(fields: &str) -> Record {
    let text = format!(
        r#"{{"schema":"egress/1","seq":3,"ts":"2026-11-21T10:20:32.123456Z","mono_us":1,"run":"01JD8Z3V5QABCDEFGHJKMNPQRS",{fields}}}"#
    );
    Record::parse(text.as_bytes()).unwrap()
}

fn decided(verdict: &str, reason: &str, host: &str, port: u16, more: &str) -> Record {
    line(&format!(
        r#""event":"decision","via":"connect","verdict":"{verdict}","reason":"{reason}","host":"{host}","port":{port}{more}"#
    ))
}

const PUBLIC: &str = r#","ips":["93.184.215.14"]"#;

fn today() -> Day {
    Day::from_ymd(2026, 11, 22).unwrap()
}

fn replayed(policy: &Policy, records: &[Record]) -> String {
    let mut replay = Replay::new(policy, &|_| false, today());
    records.iter().for_each(|record| replay.take(record));
    replay.finish();
    let mut out = Vec::new();
    replay.text(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(
        replay.differs(),
        text.contains("now allow ") || text.contains("now deny ") || text.contains("now would_deny")
    );
    text
}

/// Each case has the rules, an attempt on record, and the expected result.
#[test]
fn each_attempt_is_decided_again() {
    let same = "1 as before, 0 now denied, 0 now allowed, 0 would now be denied";
    let denied = "0 as before, 1 now denied, 0 now allowed, 0 would now be denied";
    let allowed = "0 as before, 0 now denied, 1 now allowed, 0 would now be denied";
    let ip = r#","ip":"93.184.215.14""#;
    for (rules, record, expected) in [
        (&["a.example"][..], decided("allow", "rule", "a.example", 443, PUBLIC), same),
        (&[], decided("allow", "rule", "a.example", 443, PUBLIC), denied),
        (&["a.example:80"], decided("allow", "rule", "a.example", 443, PUBLIC), denied),
        (&["a.example"], decided("error", "connect_error", "a.example", 443, PUBLIC), same),
        (&[], decided("error", "resolve_error", "a.example", 443, ""), denied),
        (&[], decided("deny", "default", "a.example", 443, ""), same),
        (&["a.example"], decided("deny", "default", "a.example", 443, ""), allowed),
        (&["a.example", "!a.example"], decided("allow", "rule", "a.example", 443, PUBLIC), denied),
        // Addresses come from the record.
        (&["a.example"], decided("allow", "rule", "a.example", 443, r#","ips":["10.2.3.4"]"#), denied),
        (
            &["a.example", "10.2.3.4"],
            decided("deny", "private_ip", "a.example", 443, r#","ips":["10.2.3.4"]"#),
            allowed,
        ),
        (&["a.example"], decided("deny", "private_ip", "a.example", 443, PUBLIC), same),
        (&["93.184.215.14"], decided("deny", "ip_literal", "93.184.215.14", 443, ""), allowed),
        // The content of the connection was refused.
        (&["a.example"], decided("deny", "sni_mismatch", "a.example", 443, ip), same),
        (&["a.example off"], decided("deny", "sni_mismatch", "a.example", 443, ip), allowed),
        (&["a.example"], decided("deny", "ech", "a.example", 443, ip), allowed),
        // The attempt did not use the proxy.
        (&["a.example:22"], decided("deny", "direct", "a.example", 22, ""), allowed),
        (&["*.a.example:*"], decided("deny", "direct", "b.a.example", 12345, ""), same),
        (
            &["a.example"],
            line(r#""event":"dns","via":"dns","verdict":"deny","reason":"default","host":"a.example""#),
            allowed,
        ),
        (
            &[],
            line(r#""event":"dns","via":"dns","verdict":"deny","reason":"default","host":"a.example""#),
            same,
        ),
    ] {
        let text = replayed(&policy(rules, Terms::default()), std::slice::from_ref(&record));
        assert!(text.contains(expected), "{rules:?} {record:?}\n{text}");
    }
    let report = Terms { mode: Mode::Report, ..Terms::default() };
    let text = replayed(&policy(&[], report), &[decided("allow", "rule", "a.example", 443, PUBLIC)]);
    assert!(text.contains("0 now denied, 0 now allowed, 1 would now be denied"), "{text}");
    let refuse = Terms { ech: Ech::Refuse, ..Terms::default() };
    let close = line(r#""event":"close","host":"a.example","port":443,"sni_ok":true,"ech":true"#);
    let text = replayed(
        &policy(&["a.example"], refuse),
        &[decided("allow", "rule", "a.example", 443, PUBLIC), close],
    );
    assert!(text.contains("0 as before, 1 now denied"), "{text}");
}

/// A row and the total have the same word for a verdict: they add up.
#[test]
fn totals_are_the_sums_of_the_rows() {
    let enforce = policy(&["a.example", "b.example"], Terms::default());
    let records = [
        decided("deny", "default", "a.example", 443, &format!(r#"{PUBLIC},"count":2"#)),
        decided("would_deny", "default", "b.example", 443, PUBLIC),
        decided("allow", "rule", "c.test", 443, PUBLIC),
    ];
    let text = replayed(&enforce, &records);
    for row in ["now deny            1x  c.test", "now allow           2x  a.", "now allow           1x  b."]
    {
        assert!(text.contains(row), "{text}");
    }
    assert!(text.contains("0 as before, 1 now denied, 3 now allowed, 0 would now be denied\n"), "{text}");
    let report = policy(&[], Terms { mode: Mode::Report, ..Terms::default() });
    let text = replayed(&report, &records);
    assert!(text.contains("1 as before, 0 now denied, 0 now allowed, 3 would now be denied\n"), "{text}");
}

/// A denial for the address is by no rule, although the record has the rule that allows the name.
#[test]
fn a_rule_that_allows_is_not_said_to_deny() {
    let private = r#","ips":["10.2.3.4"],"rule":"a.example","rule_src":"--allow""#;
    let refused = decided("deny", "private_ip", "a.example", 443, private);
    let text = replayed(&policy(&["a.example", "10.2.3.4"], Terms::default()), &[refused]);
    assert!(text.contains("; was deny (private_ip), rule a.example (--allow)\n"), "{text}");
    let passed = decided("allow", "rule", "a.example", 443, private);
    let text = replayed(&policy(&["a.example"], Terms::default()), std::slice::from_ref(&passed));
    assert!(text.contains("]  private_ip: "), "{text}");
    let text = replayed(&policy(&["a.example", "!a.example"], Terms::default()), &[passed]);
    assert!(text.contains("]  deny_rule by !a.example (new.toml:3): "), "{text}");
    assert!(text.contains("; was allow (rule) by a.example (--allow)\n"), "{text}");
}

#[test]
fn differences_that_are_alike_are_one_line() {
    let policy = policy(&["b.example"], Terms::default());
    let old = r#","rule":"*.example","rule_src":".exeat.toml:12","count":3"#;
    let records = [
        decided("allow", "rule", "a.example", 443, &format!("{PUBLIC}{old}")),
        decided("allow", "rule", "a.example", 443, PUBLIC),
        decided("deny", "default", "b.example", 443, ""),
        decided("deny", "budget_conns", "b.example", 443, ""),
    ];
    let text = replayed(&policy, &records);
    assert_eq!(
        text,
        "now deny            4x  a.example:443  [connect]  default: no rule allows it; was allow (rule) by *.example (.exeat.toml:12)\n\
         now allow           1x  b.example:443  [connect]  rule by b.example (new.toml:3); addresses not checked; was deny (default)\n\
         0 as before, 4 now denied, 1 now allowed, 0 would now be denied\n\
         \x20 cannot tell: 1 run without an end on record\n\
         \x20 1 whose addresses are not known (never looked up, or left to an upstream proxy)\n\
         \x20 1 that no rule decides (malformed, other protocols, budgets)\n"
    );
    let mut replay = Replay::new(&policy, &|_| false, today());
    records.iter().for_each(|record| replay.take(record));
    let mut out = Vec::new();
    replay.json(&mut out).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(
        (&json["now_denied"], &json["differences"][0]["was"]["by"]["rule"]),
        (&4.into(), &"*.example".into())
    );
}

/// An upstream proxy's lookups are not known, neither then nor now.
#[test]
fn names_left_to_another_proxy_are_not_checked() {
    let policy = policy(&["a.example"], Terms::default());
    let record = decided("allow", "rule", "a.example", 443, r#","upstream":"proxy.example:3128""#);
    assert!(replayed(&policy, &[record]).contains("cannot tell: 1 attempt without addresses on record"));
    let mut replay = Replay::new(&policy, &|_| true, today());
    replay.take(&decided("allow", "rule", "a.example", 443, r#","ips":["10.2.3.4"]"#));
    assert!(!replay.differs());
}

#[test]
fn differences_are_bounded_and_the_rest_is_counted() {
    let policy = policy(&[], Terms::default());
    let mut replay = Replay::new(&policy, &|_| false, today());
    for n in 0..MAX_DIFFERENCES + 5 {
        replay.take(&decided("allow", "rule", &format!("h{n}.example"), 443, PUBLIC));
    }
    assert_eq!((replay.differences.len(), replay.unlisted), (MAX_DIFFERENCES, 5));
}

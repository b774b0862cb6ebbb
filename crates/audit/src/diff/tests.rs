use std::io::Cursor;

use exeat_record::{Event, Via};

use super::*;
use crate::query::{Filter, Reader};
use crate::testing::{Dir, HOSTILE, allow, deny, is_plain, log, question};

fn summarize(events: Vec<Event>) -> Summary {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = log(&path);
    for event in events {
        log.write(event).unwrap();
    }
    let bytes = std::fs::read(path).unwrap();
    let mut summary = Summary::default();
    summary.read(&mut Reader::new(Cursor::new(bytes)), &Filter::default()).unwrap();
    summary
}

fn written(diff: &Diff<'_>, form: Form) -> String {
    let mut out = Vec::new();
    diff.write(form, &mut out).unwrap();
    assert!(is_plain(&out), "{}", String::from_utf8_lossy(&out));
    String::from_utf8(out).unwrap()
}

const TEXT: Form = Form::Text { color: false };

fn targets(hosts: &[&HostSummary]) -> Vec<String> {
    hosts.iter().map(|host| target(host)).collect()
}

#[test]
fn finds_new_changed_and_gone_hosts() {
    let before = summarize(vec![
        Event::Decision(allow(1, "same.example.com:443")),
        Event::Decision(allow(2, "port.example.com:443")),
        Event::Decision(allow(3, "verdict.example.com:443")),
        Event::Decision(allow(4, "way.example.com:443")),
        Event::Decision(deny(5, "gone.example.com:443")),
    ]);
    let mut way = allow(5, "way.example.com:443");
    way.via = Via::Transparent;
    let now = summarize(vec![
        Event::Decision(allow(1, "same.example.com:443")),
        Event::Decision(allow(2, "same.example.com:443")),
        Event::Decision(allow(3, "port.example.com:8443")),
        Event::Decision(deny(4, "verdict.example.com:443")),
        Event::Decision(way),
        Event::Dns(question("same.example.com")),
    ]);
    let diff = Diff::between(&before, &now);
    assert!(diff.is_new());
    assert_eq!(targets(&diff.new), ["same.example.com", "port.example.com:8443"]);
    assert_eq!(targets(&diff.gone), ["gone.example.com:443", "port.example.com:443"]);
    assert_eq!(diff.same, 1);
    let text = written(&diff, TEXT);
    assert!(text.contains("+ same.example.com                  deny: default [dns]\n"), "{text}");
    assert!(text.contains("~ verdict.example.com:443           deny, before only allow\n"), "{text}");
    assert!(text.contains("~ way.example.com:443               now by transparent\n"), "{text}");
    assert!(text.contains("- gone.example.com:443              deny: default [connect]\n"), "{text}");
    let json: Value = serde_json::from_str(&written(&diff, Form::Json)).unwrap();
    assert_eq!(json["new"][0]["host"], "same.example.com");
    assert_eq!(json["changed"][0]["new_verdicts"], json!(["deny"]));
    assert_eq!(json["changed"][1]["new_via"], json!(["transparent"]));
    assert!(
        written(&diff, Form::Markdown).starts_with("### Egress: 2 new, 2 changed, 2 gone, 1 as before\n")
    );
}

#[test]
fn ignores_changed_counts() {
    let before = summarize(vec![
        Event::Decision(allow(1, "a.example.com:443")),
        Event::Decision(deny(2, "b.example.com:443")),
    ]);
    let mut failed = allow(2, "a.example.com:443");
    (failed.verdict, failed.reason) = (Verdict::Error, exeat_policy::Reason::ConnectError);
    let now = summarize(vec![Event::Decision(failed)]);
    let diff = Diff::between(&before, &now);
    assert!(!diff.is_new());
    assert_eq!(targets(&diff.gone), ["b.example.com:443"]);
    assert!(written(&diff, TEXT).starts_with("nothing new: 1 target as before\n- b.example.com:443"));
    let nothing = Summary::default();
    assert!(!Diff::between(&before, &nothing).is_new());
    assert_eq!(Diff::between(&nothing, &before).new.len(), 2);
}

/// A lock and a summary of what was let through can be compared.
#[test]
fn a_lock_is_a_baseline() {
    let lock = "schema 1\n- a.example.com:443 connect\nnightly a.example.com:443 http\n- [2001:db8::1]:8443 transparent\n";
    let before = Summary::of_lock(&exeat_record::lock::Lock::parse(lock).unwrap(), 10).unwrap();
    let events = vec![
        Event::Decision(allow(1, "a.example.com:443")),
        Event::Decision(allow(2, "[2001:db8::1]:8443")),
        Event::Decision(allow(3, "new.example.com:443")),
    ];
    let now = summarize(events);
    let diff = Diff::between(&before, &now);
    assert_eq!(targets(&diff.new), ["new.example.com:443"]);
    assert_eq!(diff.gone.len(), 0);
    assert_eq!(
        Summary::of_lock(&exeat_record::lock::Lock::parse(lock).unwrap(), 1).unwrap().others.tally.allowed,
        1
    );
}

#[test]
fn a01_hostile_hosts_stay_in_their_cells() {
    let text = format!("a`|b{HOSTILE}<script>");
    let line = json!({
        "schema": "egress/1", "seq": 0, "ts": "x", "mono_us": 1, "event": "decision", "run": "R", "host": text, "via": text,
        "verdict": "deny", "reason": text, "proto": text,
    });
    let mut now = Summary::default();
    now.read(&mut Reader::new(Cursor::new(format!("{line}\n"))), &Filter::default()).unwrap();
    let empty = Summary::default();
    for diff in [Diff::between(&empty, &now), Diff::between(&now, &empty)] {
        for form in [TEXT, Form::Json, Form::Markdown] {
            let text = written(&diff, form);
            if form == Form::Markdown {
                let row = text.lines().last().unwrap();
                assert_eq!((row.matches('|').count(), row.matches('`').count()), (4, 2), "{row}");
                let ours: String = row.split('`').step_by(2).collect();
                assert!(!ours.contains("script"), "{row}");
            }
        }
    }
}

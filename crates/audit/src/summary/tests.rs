use std::io::Cursor;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::testing::{Dir, HOSTILE, allow, asked, close, deny, end, header, is_plain, rule};
use crate::{Event, Header, Log, Note, RuleRef, RunStart, Sink, Via, What};

fn record(header: Header, events: Vec<Event>) -> Vec<u8> {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = Log::start(Sink::create_file(&path).unwrap(), header).unwrap();
    for event in events {
        log.write(event).unwrap();
    }
    std::fs::read(path).unwrap()
}

fn staged(stage: &str) -> Header {
    Header { stage: Some(stage.into()), ..header() }
}

fn sample() -> Vec<Event> {
    let mut again = asked("stats.example.net");
    again.count = Some(5);
    let mut refused = deny(4, "evil.example.org:443");
    refused.reason = Reason::DenyRule;
    refused.rule = Some(RuleRef { text: "Evil.example.org".into(), src: "--deny".into(), ..rule() });
    vec![
        Event::RunStart(RunStart::default()),
        Event::Decision(allow(1, "api.example.com:443")),
        Event::Decision(deny(2, "stats.example.net:443")),
        Event::Dns(again),
        Event::Close(close(1, "api.example.com:443")),
        Event::Decision(allow(3, "api.example.com:443")),
        Event::Close(close(3, "api.example.com:443")),
        Event::Decision(refused),
        Event::Note(Note { count: Some(9), ..Note::new(What::TapDrops) }),
        end(),
    ]
}

fn of(records: &[Vec<u8>], filter: &Filter) -> Summary {
    let mut summary = Summary::default();
    for record in records {
        summary.read(&mut Reader::new(Cursor::new(record)), filter).unwrap();
    }
    summary
}

fn written(summary: &Summary, form: Form) -> String {
    let mut out = Vec::new();
    write(summary, form, &mut out).unwrap();
    assert!(is_plain(&out), "{}", String::from_utf8_lossy(&out));
    String::from_utf8(out).unwrap()
}

#[test]
fn two_records_are_one_summary() {
    let records = [record(staged("import"), sample()), record(staged("nightly"), sample())];
    let summary = of(&records, &Filter::default());
    assert_eq!((summary.runs, summary.unfinished, summary.lines, summary.unseen), (2, 0, 20, 18));
    assert_eq!(summary.stages, BTreeMap::from([("import".into(), 1), ("nightly".into(), 1)]));
    let tally = Tally { allowed: 4, denied: 14, ..Tally::default() };
    assert_eq!(summary.total, Traffic { tally, bytes_up: 4 * 1234, bytes_down: 4 * 45_600 });
    assert_eq!(summary.others, Traffic::default());
    let hosts: Vec<_> = summary
        .hosts()
        .iter()
        .map(|host| (host.host.clone().unwrap(), host.port, host.traffic.tally.denied))
        .collect();
    let name = |name: &str, port, denied| (name.to_owned(), port, denied);
    assert_eq!(
        hosts,
        [
            name("stats.example.net", None, 10),
            name("evil.example.org", Some(443), 2),
            name("stats.example.net", Some(443), 2),
            name("api.example.com", Some(443), 0),
        ],
        "what was refused most stands first"
    );
    let dns = summary.host(Some("stats.example.net"), None, Proto::Tcp).unwrap();
    assert_eq!(
        (&dns.reasons, &dns.vias),
        (&BTreeMap::from([(Reason::Default, 10)]), &BTreeSet::from(["dns"]))
    );
    let api = summary.host(Some("api.example.com"), Some(443), Proto::Tcp).unwrap();
    assert_eq!(summary.rules_of(api).map(|used| used.rule.as_str()).collect::<Vec<_>>(), ["*.example.com"]);
    assert!(api.first < api.last && api.first >= summary.first && api.last <= summary.last);
    assert_eq!(
        summary.rules().iter().map(|(used, count)| (used.rule.as_str(), *count)).collect::<Vec<_>>(),
        [("*.example.com", 4), ("Evil.example.org", 2),]
    );
}

/// What no policy of the records used is named in the canonical spelling, whatever the spelling of what was used.
#[test]
fn rules_that_decided_nothing_are_named() {
    let mut summary = of(&[record(header(), sample())], &Filter::default());
    assert_eq!(summary.unused(), None, "no policy is known");
    let policy = r#"{"rules":[{"rule":"!evil.example.org:*"},{"rule":"*.example.com:443"},{"reason":"x","rule":"old.example.com:22"}],"schema":1}"#;
    summary.add_policy(policy).unwrap();
    summary.add_policy(r#"{"rules":[{"rule":"!never.example.org:*"}],"schema":1}"#).unwrap();
    assert_eq!(summary.unused(), Some(vec!["!never.example.org:*", "old.example.com:22"]));
    // A name that leads to such a place takes two rules, and a line names one of them.
    let mut led = allow(9, "db.example.com:5432");
    led.ips = vec!["10.1.2.3".parse().unwrap()];
    let mut opened = of(&[record(header(), vec![Event::Decision(led)])], &Filter::default());
    opened
        .add_policy(
            r#"{"rules":[{"rule":"10.0.0.0/8:5432"},{"rule":"10.0.0.0/8:22"},{"rule":"!10.0.0.0/8:*"}]}"#,
        )
        .unwrap();
    assert_eq!(opened.unused(), Some(vec!["!10.0.0.0/8:*", "10.0.0.0/8:22"]));
    for bad in ["", "[]", "{\"rules\":[{}]}", "\u{1b}"] {
        assert!(summary.add_policy(bad).is_err(), "{bad}");
    }
    let text = written(&summary, Form::Text { colour: false });
    assert!(text.contains("\nRULES NEVER USED\n         !never.example.org:*\n"), "{text}");
}

#[test]
fn a_filter_narrows_the_time_the_stages_and_the_hosts() {
    let records = [record(staged("import"), sample()), record(staged("nightly"), sample())];
    let stage = Filter { stages: vec!["nightly".into()], ..Filter::default() };
    let summary = of(&records, &stage);
    assert_eq!((summary.runs, summary.total.tally.allowed), (1, 2));
    let later = Filter { since: Some(Moment::of("9000-01-01T00:00:00Z").unwrap()), ..Filter::default() };
    assert_eq!((of(&records, &later).runs, of(&records, &later).unfinished), (0, 0));
    let earlier = Filter { until: later.since, ..Filter::default() };
    assert_eq!(of(&records, &earlier).total.tally.allowed, 4);
    let host = Filter { hosts: vec!["*.example.com".parse().unwrap()], ..Filter::default() };
    let summary = of(&records, &host);
    assert_eq!((summary.total.tally.denied, summary.total.bytes_up), (0, 4 * 1234));
}

#[test]
fn a_run_without_an_end_is_counted() {
    let mut events = sample();
    events.pop();
    let summary = of(&[record(header(), events), record(header(), sample())], &Filter::default());
    assert_eq!((summary.runs, summary.unfinished, summary.flaws), (2, 1, 1));
    assert!(written(&summary, Form::Text { colour: false }).starts_with("runs      2 (1 without an end)\n"));
}

/// However many names a stage asks for, so many are kept; nothing is lost from the sums.
#[test]
fn hosts_beyond_the_bound_are_counted_without_their_names() {
    let mut events: Vec<_> =
        (0..50).map(|n| Event::Decision(deny(n, &format!("h{n}.example.net:443")))).collect();
    events.push(Event::Decision(allow(60, "late.example.com:443")));
    events.push(Event::Close(close(60, "late.example.com:443")));
    let bytes = record(header(), events);
    let mut summary = Summary::new(20);
    summary.read(&mut Reader::new(Cursor::new(&bytes)), &Filter::default()).unwrap();
    assert_eq!(summary.hosts().len(), 20);
    assert_eq!(summary.others.tally, Tally { denied: 30, allowed: 1, ..Tally::default() });
    assert_eq!((summary.others.bytes_up, summary.total.bytes_up), (1234, 1234));
    assert_eq!(summary.total.tally.denied, 50);
    let text = written(&summary, Form::Text { colour: false });
    assert!(text.contains("\nand others: 1 allowed, 30 denied; 1.2 kB up, 45 kB down\n"), "{text}");
}

#[test]
fn rules_and_long_names_are_bounded() {
    let mut lines = String::new();
    for n in 0..MAX_RULES + 50 {
        lines.push_str(&format!(
            r#"{{"schema":"egress/1","seq":{n},"ts":"2026-11-22T10:00:00.000000Z","mono_us":1,"event":"decision","run":"R","host":"x","verdict":"allow","reason":"rule","rule":"r{n}"}}"#
        ));
        lines.push('\n');
    }
    let long = "x".repeat(MAX_NAME + 1);
    lines.push_str(&format!(
        r#"{{"schema":"egress/1","seq":0,"ts":"","mono_us":1,"event":"decision","run":"R","host":"{long}","verdict":"allow","reason":"rule","rule":"{long}"}}"#
    ));
    lines.push('\n');
    let summary = of(&[lines.into_bytes()], &Filter::default());
    assert_eq!((summary.rules().len(), summary.rules_more()), (MAX_RULES, 51));
    assert_eq!(summary.others.tally.allowed, 1);
    let host = summary.host(Some("x"), None, Proto::Tcp).unwrap();
    assert_eq!((summary.rules_of(host).count(), host.rules_more), (MAX_RULES_OF_HOST, true));
}

#[test]
fn json_is_one_object_with_a_host_a_line() {
    let mut summary = of(&[record(staged("import"), sample())], &Filter::default());
    summary.add_policy(r#"{"rules":[{"rule":"old.example.com:22"}],"schema":1}"#).unwrap();
    let text = written(&summary, Form::Json);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["total"]["denied"], 7);
    assert_eq!(value["hosts"][0]["host"], "stats.example.net");
    assert_eq!(value["hosts"][0]["reasons"]["default"], 5);
    assert_eq!(value["unused_rules"][0], "old.example.com:22");
    assert_eq!(value["rules"][1]["denies"], true);
    assert_eq!(text.lines().filter(|line| line.contains("\"host\":")).count(), 4);
    let empty: Value = serde_json::from_str(&written(&Summary::default(), Form::Json)).unwrap();
    assert_eq!(empty["hosts"], serde_json::json!([]));
}

/// Text that breaks out of every form it may stand in.
const BREAKOUT: &str =
    "a`|b|<script>x</script>\n\n# c\\|`d``e @team #1 ![i](http://evil.test/?x) </details>\u{202e}";

fn hostile() -> Summary {
    let mut refused = deny(1, "x.example.net:443");
    refused.rule = Some(RuleRef { text: BREAKOUT.into(), src: HOSTILE.into(), ..rule() });
    let mut bytes = record(staged(BREAKOUT), vec![Event::Decision(refused)]);
    // A host that exeat would not have written.
    let line = serde_json::json!({
        "schema": "egress/1", "seq": 1, "ts": BREAKOUT, "mono_us": 1, "event": "decision", "run": "R",
        "host": BREAKOUT, "port": 1, "proto": BREAKOUT, "verdict": "deny", "reason": BREAKOUT, "rule": BREAKOUT, "via": BREAKOUT,
    });
    bytes.extend(format!("{line}\n").bytes());
    let mut summary = of(&[bytes], &Filter::default());
    summary.add_policy(&serde_json::json!({"rules": [{"rule": BREAKOUT}]}).to_string()).unwrap();
    summary
}

/// A01: nothing of a record reaches a terminal, a table or a page as it stands there.
#[test]
fn a01_hostile_text_stays_in_its_cell() {
    let summary = hostile();
    written(&summary, Form::Text { colour: false });
    written(&summary, Form::Json);
    for form in [Form::Markdown, Form::GitHub] {
        let text = written(&summary, form);
        for line in text.lines() {
            assert_eq!(line.matches('`').count() % 2, 0, "{line}");
            // What is outside of code spans is ours.
            let ours: String = line.split('`').step_by(2).collect();
            for sign in ["script", "@", "#1", "![", "http", "\\"] {
                assert!(!ours.contains(sign), "{line}");
            }
            if line.starts_with('|') {
                let bars = line.matches('|').count();
                assert!([11, 3].contains(&bars), "{line}");
                let inside: String = line.split('`').skip(1).step_by(2).collect();
                assert!(!inside.contains('|'), "{line}");
            }
        }
        assert_eq!(
            text.lines().filter(|line| line.starts_with('#')).count(),
            if form == Form::GitHub { 1 } else { 3 }
        );
        assert_eq!(
            text.lines().filter(|line| line.starts_with("</details>")).count(),
            if form == Form::GitHub { 2 } else { 0 }
        );
    }
}

/// GitHub takes 1 MiB of a job summary, or nothing.
#[test]
fn a_job_summary_is_bounded() {
    let name = |n: u32| format!("{}.{n}.example.net", "a".repeat(60));
    let events = (0..700).map(|n| Event::Decision(deny(n.into(), &format!("{}:443", name(n))))).collect();
    let summary = of(&[record(header(), events)], &Filter::default());
    let text = written(&summary, Form::GitHub);
    assert!(text.contains("\nand 200 more: `exeat audit summary` shows them\n"), "{text}");
    assert!(text.len() < 1 << 20);
    assert_eq!(text.lines().filter(|line| line.contains("example.net")).count(), 500);
    assert_eq!(
        written(&summary, Form::Markdown).lines().filter(|line| line.contains("example.net")).count(),
        700
    );
}

/// What came in beside the proxy says how, and other protocols are other places.
#[test]
fn protocols_are_told_apart() {
    let mut attempt = deny(1, "192.0.2.7:443");
    (attempt.conn, attempt.reason, attempt.via) = (None, Reason::Direct, Via::Direct);
    let mut udp = attempt.clone();
    udp.proto = Proto::Udp;
    let mut other = attempt.clone();
    other.proto = Proto::Other(47);
    let events = [attempt, udp, other].map(Event::Decision).to_vec();
    let summary = of(&[record(header(), events)], &Filter::default());
    let text = written(&summary, Form::Text { colour: false });
    for target in ["192.0.2.7:443  ", "192.0.2.7:443 (udp)  ", "192.0.2.7:443 (47)  "] {
        assert!(text.contains(target), "{target}: {text}");
    }
    assert!(text.contains("direct [direct]") || text.contains("direct, [direct]"), "{text}");
}

proptest! {
    #[test]
    fn no_bytes_make_a_summary_fail(bytes: Vec<u8>) {
        let mut summary = Summary::new(3);
        prop_assert!(summary.read(&mut Reader::new(Cursor::new(&bytes)), &Filter::default()).is_ok());
    }

    /// The hosts and the others are the total.
    #[test]
    fn nothing_is_lost(names in prop::collection::vec(0u8..30, 1..60), most in 0usize..20) {
        let events = names.iter().map(|n| Event::Decision(deny(1, &format!("h{n}.example.net:443")))).collect();
        let bytes = record(header(), events);
        let mut summary = Summary::new(most);
        summary.read(&mut Reader::new(Cursor::new(&bytes)), &Filter::default()).unwrap();
        let hosts: u64 = summary.hosts().iter().map(|host| host.traffic.tally.denied).sum();
        prop_assert_eq!(hosts + summary.others.tally.denied, names.len() as u64);
        prop_assert!(summary.hosts().len() <= most);
    }
}

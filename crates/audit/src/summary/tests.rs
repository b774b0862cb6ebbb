use std::io::Cursor;

use exeat_record::{Event, Header, Log, RuleRef, RunStart, Sink, Via, What};
use proptest::prelude::*;
use serde_json::Value;

use super::rules::MAX_RULES;
use super::*;
use crate::testing::{Dir, HOSTILE, allow, close, deny, end, header, is_plain, note, question, rule};

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
    let mut again = question("stats.example.net");
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
        note(What::TapDrops, |note| note.count = Some(9)),
        end(),
    ]
}

fn summarize(records: &[Vec<u8>], filter: &Filter) -> Summary {
    let mut summary = Summary::default();
    for record in records {
        summary.read(&mut Reader::new(Cursor::new(record)), filter).unwrap();
    }
    summary.finish().unwrap();
    summary
}

/// Summarizes one record with a bound of few hosts.
fn few(most: usize, record: &[u8]) -> Summary {
    let mut summary = Summary::new(most);
    summary.read(&mut Reader::new(Cursor::new(record)), &Filter::default()).unwrap();
    summary.finish().unwrap();
    summary
}

/// Adds a policy of one run, whose rules are the lines of `a.toml`.
fn add_policy(summary: &mut Summary, json: &str) -> Result<(), serde_json::Error> {
    let places = |rule: &str| vec![format!("a.toml:{}", rule.len())];
    summary.add_policy(json, PolicyOf { run: "R1", stage: Some("import"), places: &places })
}

fn unused(summary: &Summary) -> Vec<&str> {
    match summary.unused() {
        UnusedRules::Listed(unused) => unused.iter().map(|it| it.rule).collect(),
        other => panic!("{other:?}"),
    }
}

fn written(summary: &Summary, form: Form) -> String {
    let mut out = Vec::new();
    write(summary, form, Sort::Denied, &mut out).unwrap();
    assert!(is_plain(&out), "{}", String::from_utf8_lossy(&out));
    String::from_utf8(out).unwrap()
}

#[test]
fn two_records_are_one_summary() {
    let records = [record(staged("import"), sample()), record(staged("nightly"), sample())];
    let summary = summarize(&records, &Filter::default());
    assert_eq!((summary.runs, summary.unfinished, summary.lines, summary.unseen), (2, 0, 20, 18));
    assert_eq!(summary.stages, BTreeMap::from([("import".into(), 1), ("nightly".into(), 1)]));
    let tally = Tally { allowed: 4, denied: 14, ..Tally::default() };
    let total = Traffic { tally, bytes_up: 4 * 1234, bytes_down: 4 * 45_600, open: 0, unapproved: 4 };
    assert_eq!(summary.total, total);
    assert_eq!(summary.others, Traffic::default());
    let hosts: Vec<_> = summary
        .hosts(Sort::Denied)
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
        (dns.reasons(), &dns.vias()),
        (BTreeMap::from([(Reason::Default, 10)]), &std::collections::BTreeSet::from(["dns"]))
    );
    let api = summary.host(Some("api.example.com"), Some(443), Proto::Tcp).unwrap();
    assert_eq!(summary.rules_of(api).map(|used| used.rule.as_str()).collect::<Vec<_>>(), ["*.example.com"]);
    assert!(api.first < api.last && api.first >= summary.first && api.last <= summary.last);
    assert_eq!(
        summary.rules().iter().map(|it| (it.used.rule.as_str(), it.attempts)).collect::<Vec<_>>(),
        [("*.example.com", 4), ("Evil.example.org", 2),]
    );
}

/// Unused rules of the policies are named in their canonical spelling, whatever the spelling of the used ones.
#[test]
fn rules_that_decided_nothing_are_named() {
    let mut summary = summarize(&[record(header(), sample())], &Filter::default());
    assert_eq!(summary.unused(), UnusedRules::NotAsked, "no policy is known");
    let policy = r#"{"rules":[{"rule":"!evil.example.org:*"},{"rule":"*.example.com:443"},{"reason":"x","rule":"old.example.com:22"}],"schema":1}"#;
    add_policy(&mut summary, policy).unwrap();
    add_policy(&mut summary, r#"{"rules":[{"rule":"!never.example.org:*"}],"schema":1}"#).unwrap();
    assert_eq!(unused(&summary), ["!never.example.org:*", "old.example.com:22"]);
    // A name that leads to a private address takes two rules, and a line names one of them.
    let mut led = allow(9, "db.example.com:5432");
    led.ips = vec!["10.1.2.3".parse().unwrap()];
    let mut opened = summarize(&[record(header(), vec![Event::Decision(led)])], &Filter::default());
    let policy =
        r#"{"rules":[{"rule":"10.0.0.0/8:5432"},{"rule":"10.0.0.0/8:22"},{"rule":"!10.0.0.0/8:*"}]}"#;
    add_policy(&mut opened, policy).unwrap();
    assert_eq!(unused(&opened), ["!10.0.0.0/8:*", "10.0.0.0/8:22"]);
    for bad in ["", "[]", "{\"rules\":[{}]}", "\u{1b}"] {
        assert!(add_policy(&mut summary, bad).is_err(), "{bad}");
    }
    let text = written(&summary, Form::Text { color: false });
    assert!(
        text.contains(
            "\nRULES NEVER USED\n         !never.example.org:*  (a.toml:20; stage import; run R1)\n"
        ),
        "{text}"
    );
}

#[test]
fn a_filter_narrows_the_time_the_stages_and_the_hosts() {
    let records = [record(staged("import"), sample()), record(staged("nightly"), sample())];
    let stage = Filter { stages: vec!["nightly".into()], ..Filter::default() };
    let summary = summarize(&records, &stage);
    assert_eq!((summary.runs, summary.total.tally.allowed), (1, 2));
    let later = Filter { since: Some(Moment::parse("9000-01-01T00:00:00Z").unwrap()), ..Filter::default() };
    assert_eq!((summarize(&records, &later).runs, summarize(&records, &later).unfinished), (0, 0));
    let earlier = Filter { until: later.since, ..Filter::default() };
    assert_eq!(summarize(&records, &earlier).total.tally.allowed, 4);
    let host = Filter { hosts: vec!["*.example.com".parse().unwrap()], ..Filter::default() };
    let summary = summarize(&records, &host);
    assert_eq!((summary.total.tally.denied, summary.total.bytes_up), (0, 4 * 1234));
}

#[test]
fn a_run_without_an_end_is_counted() {
    let mut events = sample();
    events.pop();
    let summary = summarize(&[record(header(), events), record(header(), sample())], &Filter::default());
    assert_eq!((summary.runs, summary.unfinished, summary.flaws), (2, 1, 0), "it is no flaw");
    assert!(written(&summary, Form::Text { color: false }).starts_with("runs      2 (1 without an end)\n"));
}

/// However many names a stage asks for, only a bounded number is kept, and the sums stay exact.
#[test]
fn hosts_beyond_the_bound_are_counted_without_their_names() {
    let mut events: Vec<_> =
        (0..50).map(|n| Event::Decision(deny(n, &format!("h{n}.example.net:443")))).collect();
    events.push(Event::Decision(allow(60, "late.example.com:443")));
    events.push(Event::Close(close(60, "late.example.com:443")));
    let bytes = record(header(), events);
    let summary = few(20, &bytes);
    assert_eq!(summary.hosts(Sort::Denied).len(), 21, "the host that took most, too");
    assert_eq!(summary.others.tally, Tally { denied: 30, ..Tally::default() });
    assert_eq!((summary.others.bytes_up, summary.total.bytes_up, summary.other_hosts), (0, 1234, 30));
    assert_eq!(summary.total.tally.denied, 50);
    let text = written(&summary, Form::Text { color: false });
    assert!(text.contains("\nand 30 other hosts: 0 allowed, 30 denied; 0 B up, 0 B down\n"), "{text}");
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
    let summary = summarize(&[lines.into_bytes()], &Filter::default());
    assert_eq!((summary.rules().len(), summary.rules_more()), (MAX_RULES, 51));
    let kept = summary.host(Some(&"x".repeat(MAX_NAME)), None, Proto::Tcp).unwrap();
    assert_eq!((kept.traffic.tally.allowed, summary.other_hosts), (1, 0), "a name is cut, and still named");
    let host = summary.host(Some("x"), None, Proto::Tcp).unwrap();
    assert_eq!((summary.rules_of(host).count(), host.has_more_rules()), (hosts::MAX_RULES_OF_HOST, true));
    // The last rule is not known, so no rule can be called unused.
    let mut summary = summary;
    add_policy(&mut summary, r#"{"rules":[{"rule":"old.example.com:22"}]}"#).unwrap();
    assert_eq!(summary.unused(), UnusedRules::CannotTell(51));
}

#[test]
fn json_is_one_object_with_a_host_a_line() {
    let mut summary = summarize(&[record(staged("import"), sample())], &Filter::default());
    add_policy(&mut summary, r#"{"rules":[{"rule":"old.example.com:22"}],"schema":1}"#).unwrap();
    let text = written(&summary, Form::Json);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["total"]["denied"], 7);
    assert_eq!(value["hosts"][0]["host"], "stats.example.net");
    assert_eq!(value["hosts"][0]["reasons"]["default"], 5);
    assert_eq!(
        value["unused_rules"][0],
        serde_json::json!({"rule": "old.example.com:22", "places": ["a.toml:18"], "stages": ["import"], "runs": 1, "run": "R1"})
    );
    assert_eq!(value["rules"][1]["effect"], "denies");
    assert_eq!(value["signature"], "not checked");
    assert_eq!(text.lines().filter(|line| line.starts_with("  {") && line.contains("\"host\":")).count(), 4);
    let empty: Value = serde_json::from_str(&written(&Summary::default(), Form::Json)).unwrap();
    assert_eq!(empty["hosts"], serde_json::json!([]));
}

/// Text that would break out of every form of a summary.
const BREAKOUT: &str =
    "a`|b|<script>x</script>\n\n# c\\|`d``e @team #1 ![i](http://evil.test/?x) </details>\u{202e}";

fn hostile() -> Summary {
    let mut refused = deny(1, "x.example.net:443");
    let by = Some(BREAKOUT.into());
    refused.rule = Some(RuleRef { text: BREAKOUT.into(), src: HOSTILE.into(), approved_by: by, ..rule() });
    let mut bytes = record(staged(BREAKOUT), vec![Event::Decision(refused)]);
    // exeat would not write such a host.
    let line = serde_json::json!({
        "schema": "egress/1", "seq": 1, "ts": BREAKOUT, "mono_us": 1, "event": "decision", "run": "R",
        "host": BREAKOUT, "port": 1, "proto": BREAKOUT, "verdict": "deny", "reason": BREAKOUT, "rule": BREAKOUT, "via": BREAKOUT,
    });
    bytes.extend(format!("{line}\n").bytes());
    let mut summary = summarize(&[bytes], &Filter::default());
    let places = |_: &str| vec![BREAKOUT.to_owned()];
    let of = PolicyOf { run: BREAKOUT, stage: Some(BREAKOUT), places: &places };
    summary.add_policy(&serde_json::json!({"rules": [{"rule": BREAKOUT}]}).to_string(), of).unwrap();
    summary
}

/// A01: no text of a record reaches a terminal, a table or a page unescaped.
#[test]
fn a01_hostile_text_stays_in_its_cell() {
    let summary = hostile();
    written(&summary, Form::Text { color: false });
    written(&summary, Form::Json);
    for form in [Form::Markdown, Form::GitHub] {
        let text = written(&summary, form);
        for line in text.lines() {
            assert_eq!(line.matches('`').count() % 2, 0, "{line}");
            // Everything outside of code spans is exeat's own text.
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

/// GitHub drops a job summary over 1 MiB.
#[test]
fn a_job_summary_is_bounded() {
    let name = |n: u32| format!("{}.{n}.example.net", "a".repeat(60));
    let events = (0..700).map(|n| Event::Decision(deny(n.into(), &format!("{}:443", name(n))))).collect();
    let summary = summarize(&[record(header(), events)], &Filter::default());
    let text = written(&summary, Form::GitHub);
    assert!(text.contains("\nand 200 more: `exeat audit summary` shows them\n"), "{text}");
    assert!(text.len() < 1 << 20);
    assert_eq!(text.lines().filter(|line| line.contains("example.net")).count(), 500);
    assert_eq!(
        written(&summary, Form::Markdown).lines().filter(|line| line.contains("example.net")).count(),
        700
    );
}

/// Attempts without the proxy name their way, and each protocol has its own row.
#[test]
fn protocols_are_told_apart() {
    let mut attempt = deny(1, "192.0.2.7:443");
    (attempt.conn, attempt.reason, attempt.via) = (None, Reason::Direct, Via::Direct);
    let mut udp = attempt.clone();
    udp.proto = Proto::Udp;
    let mut other = attempt.clone();
    other.proto = Proto::Other(47);
    let events = [attempt, udp, other].map(Event::Decision).to_vec();
    let summary = summarize(&[record(header(), events)], &Filter::default());
    let text = written(&summary, Form::Text { color: false });
    for target in ["192.0.2.7:443  ", "192.0.2.7:443 (udp)  ", "192.0.2.7:443 (47)  "] {
        assert!(text.contains(target), "{target}: {text}");
    }
    assert!(text.contains("direct [direct]") || text.contains("direct, [direct]"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_make_a_summary_fail(bytes: Vec<u8>) {
        let mut summary = Summary::new(3);
        prop_assert!(summary.read(&mut Reader::new(Cursor::new(&bytes)), &Filter::default()).is_ok());
        prop_assert!(summary.finish().is_ok());
    }

    /// L17: for any names in any order and number, each row is exact, the rows and the others add up to the total, and no unnamed
    /// host was refused more, was sent more or sent more than a named one.
    #[test]
    fn l17_no_order_of_names_hides_the_greatest_host(
        steps in prop::collection::vec((0u8..40, 0u8..3, 0u64..1000), 1..300),
        most in 1usize..12,
    ) {
        let mut truth: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut lines = Lines::default();
        for (name, what, bytes) in steps {
            let host = format!("h{name}.example.net");
            let of = truth.entry(host.clone()).or_default();
            match what {
                0 => {
                    of.0 += 1;
                    lines.decide(&host, "deny");
                }
                // No other order agrees with that of the refusals, or of the bytes up.
                1 => {
                    lines.decide(&host, "error");
                }
                _ => {
                    of.1 += bytes;
                    let conn = lines.decide(&host, "allow");
                    lines.close_both(conn, &host, (bytes, 1000 - bytes));
                }
            }
        }
        let summary = few(most, lines.text.as_bytes());
        let named: BTreeMap<&str, (u64, u64)> = summary
            .hosts(Sort::Up)
            .iter()
            .map(|host| (host.host.as_deref().unwrap(), (host.traffic.tally.denied, host.traffic.bytes_up)))
            .collect();
        for (host, found) in &named {
            prop_assert_eq!(found, &truth[*host], "{}", host);
        }
        prop_assert_eq!(named.len() as u64 + summary.other_hosts, truth.len() as u64);
        let rows = named.values().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        let all = truth.values().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        prop_assert_eq!((rows.0 + summary.others.tally.denied, rows.1 + summary.others.bytes_up), all);
        prop_assert_eq!((summary.total.tally.denied, summary.total.bytes_up), all);
        // The first `most` of each order are named.
        for at in [|row: &(u64, u64)| row.0, |row: &(u64, u64)| row.1] {
            let mut named: Vec<u64> = named.values().map(at).collect();
            named.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
            let mut all: Vec<u64> = truth.values().map(at).collect();
            all.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
            let first = most.min(all.len());
            prop_assert_eq!(&named[..first], &all[..first]);
        }
        let most_up = summary.most_up().map_or(0, |host| host.traffic.bytes_up);
        prop_assert_eq!(most_up, truth.values().map(|row| row.1).max().unwrap_or(0));
    }
}

/// Lines of one run, with the fields that a summary reads.
#[derive(Default)]
struct Lines {
    text: String,
    seq: u64,
    conn: u64,
}

impl Lines {
    fn line(&mut self, fields: &str) {
        let seq = self.seq;
        let second = seq % 60;
        self.text.push_str(&format!(
            r#"{{"schema":"egress/1","seq":{seq},"ts":"2026-11-22T10:00:{second:02}.000000Z","mono_us":{seq},"run":"R1",{fields}}}"#
        ));
        self.text.push('\n');
        self.seq += 1;
    }

    fn decide(&mut self, host: &str, verdict: &str) -> u64 {
        self.conn += 1;
        let (conn, reason) = (self.conn, if verdict == "allow" { "rule" } else { "default" });
        self.line(&format!(
            r#""event":"decision","conn":{conn},"via":"connect","host":"{host}","port":443,"verdict":"{verdict}","reason":"{reason}""#
        ));
        conn
    }

    fn progress(&mut self, conn: u64, up: u64) {
        self.line(&format!(r#""event":"progress","conn":{conn},"bytes_up":{up},"bytes_down":7"#));
    }

    /// Adds the end of the last connection.
    fn close(&mut self, host: &str, up: u64) {
        self.close_of(self.conn, host, up);
    }

    fn close_of(&mut self, conn: u64, host: &str, up: u64) {
        self.close_both(conn, host, (up, 0));
    }

    fn close_both(&mut self, conn: u64, host: &str, (up, down): (u64, u64)) {
        self.line(&format!(
            r#""event":"close","conn":{conn},"host":"{host}","port":443,"ip":"192.0.2.1","bytes_up":{up},"bytes_down":{down},"ended_by":"client""#
        ));
    }

    fn fail(&mut self, conn: u64, host: &str) {
        self.line(&format!(
            r#""event":"close","conn":{conn},"host":"{host}","port":443,"bytes_up":0,"bytes_down":0,"ended_by":"error","error":"timeout: 192.0.2.1""#
        ));
    }
}

/// L17: for a connection without an end, every form says that its bytes are not known, and shows the least.
#[test]
fn l17_unknown_bytes_are_not_zero() {
    let mut lines = Lines::default();
    lines.decide("a.example", "allow");
    let killed = few(10, lines.text.as_bytes());
    assert_eq!((killed.total.open, killed.total.is_complete()), (1, false));
    let said = "at least 0 B up, 0 B down; 1 connection without an end, its bytes are not known";
    let text = written(&killed, Form::Text { color: false });
    assert!(text.contains(&format!("\nbytes     {said}\n")), "{text}");
    let row = text.lines().find(|line| line.contains("a.example:443")).unwrap();
    assert!(row.contains(" unknown   unknown ") && row.contains("1 without an end"), "{text}");
    for form in [Form::Markdown, Form::GitHub] {
        let text = written(&killed, form);
        assert!(text.contains(said) && text.contains("| unknown | unknown |"), "{text}");
    }
    let value: Value = serde_json::from_str(&written(&killed, Form::Json)).unwrap();
    for of in [&value["total"], &value["hosts"][0]] {
        assert_eq!((&of["open"], &of["bytes_complete"]), (&1.into(), &false.into()), "{of}");
    }

    // Its progress is the least; a connection that ended is exact.
    let conn = lines.conn;
    lines.progress(conn, 1_000_000);
    lines.progress(conn, 4_000_000);
    lines.decide("b.example", "allow");
    lines.close("b.example", 5);
    let summary = few(10, lines.text.as_bytes());
    assert_eq!((summary.total.bytes_up, summary.total.bytes_down, summary.total.open), (4_000_005, 7, 1));
    let text = written(&summary, Form::Text { color: false });
    assert!(text.contains("bytes     at least 4.0 MB up, 7 B down; 1 connection"), "{text}");
    assert!(text.contains("\nmost up   a.example:443, >=4.0 MB\n") && text.contains(" >=4.0 MB  "), "{text}");
    let b = summary.host(Some("b.example"), Some(443), Proto::Tcp).unwrap();
    assert!(b.traffic.is_complete());

    // The end counts, and nothing counts twice.
    lines.close_of(conn, "a.example", 6_000_000);
    let summary = few(10, lines.text.as_bytes());
    assert_eq!((summary.total.bytes_up, summary.total.open), (6_000_005, 0));
    assert!(!written(&summary, Form::Text { color: false }).contains("at least"));
}

/// L17: a connection that began before the selected time and stays open counts; one that ends after it has no end.
#[test]
fn l17_a_time_that_is_asked_for_has_open_connections_too() {
    let mut lines = Lines::default();
    let first = lines.decide("a.example", "allow"); // 10:00:00
    let second = lines.decide("b.example", "allow"); // 10:00:01
    lines.progress(first, 1_000_000); // 10:00:02
    lines.close_of(second, "b.example", 5); // 10:00:03
    lines.close_of(first, "a.example", 9_000_000); // 10:00:04
    let between = |since: u32, until: u32| {
        let at = |second: u32| Moment::parse(&format!("2026-11-22T10:00:{second:02}Z"));
        let filter = Filter { since: at(since), until: at(until), ..Filter::default() };
        let total = summarize(&[lines.text.clone().into_bytes()], &filter).total;
        (total.bytes_up, total.open)
    };
    assert_eq!(between(0, 9), (9_000_005, 0));
    assert_eq!(between(0, 1), (0, 2));
    assert_eq!(between(1, 3), (1_000_005, 1));
    assert_eq!(between(3, 3), (5, 1));
    assert_eq!(between(4, 9), (9_000_000, 0));
    assert_eq!(between(8, 9), (0, 0), "no line of the run is of that time");
}

/// L17: a connection that was let through and not reached counts as failed, with its reason and without bytes.
#[test]
fn l17_counts_failed_connections_apart() {
    let mut lines = Lines::default();
    for _ in 0..2 {
        let conn = lines.decide("gone.example", "allow");
        lines.fail(conn, "gone.example");
    }
    lines.decide("up.example", "allow");
    lines.close("up.example", 5);
    lines.line(r#""event":"decision","via":"connect","host":"gone.example","port":443,"verdict":"error","reason":"connect_error","count":40"#);
    let summary = few(10, lines.text.as_bytes());
    let tally = summary.total.tally;
    assert_eq!((tally.allowed, tally.failed, tally.not_reached(), tally.reached()), (3, 2, 42, 1));
    assert_eq!(tally.to_string(), "3 allowed, 0 denied, 42 failed");
    let gone = summary.host(Some("gone.example"), Some(443), Proto::Tcp).unwrap();
    assert_eq!(gone.reasons(), BTreeMap::from([(Reason::Timeout, 2), (Reason::ConnectError, 40)]));
    assert!(gone.traffic.is_complete());
    let text = written(&summary, Form::Text { color: false });
    assert!(text.contains(" FAILED ") && !text.contains("ERRORS"), "{text}");
    let row = text.lines().find(|line| line.contains("gone.example:443")).unwrap();
    assert!(row.starts_with("      -        2       -      42  "), "{text}");
    let value: Value = serde_json::from_str(&written(&summary, Form::Json)).unwrap();
    assert_eq!((&value["total"]["failed"], &value["total"]["errors"]), (&2.into(), &40.into()));
    assert_eq!(value["rules"], serde_json::json!([]));
    for form in [Form::Markdown, Form::GitHub] {
        assert!(written(&summary, form).contains("| `gone.example:443` | 0 | 2 | 0 | 42 |"));
    }
}

/// L17: 12 000 names below a wildcard, the last of which was sent most, in a table of 10 000.
#[test]
fn l17_the_host_that_took_most_is_named_in_every_form() {
    let mut lines = Lines::default();
    for n in 0..12_000 {
        lines.decide(&format!("h{n}.example.net"), "allow");
        lines.close(&format!("h{n}.example.net"), 2);
        lines.decide(&format!("no{n}.example.org"), "deny");
    }
    // The last name's bytes come in small pieces, between names that are asked for once.
    for n in 0..2_000 {
        lines.decide("zzz.example.net", "allow");
        lines.close("zzz.example.net", 4_500_000);
        lines.decide(&format!("x{n}.example.net"), "allow");
        lines.close(&format!("x{n}.example.net"), 1);
    }
    let summary = few(MAX_HOSTS, lines.text.as_bytes());
    let most = summary.most_up().unwrap();
    assert_eq!((most.host.as_deref(), most.traffic.bytes_up), (Some("zzz.example.net"), 9_000_000_000));
    assert!(summary.others.bytes_up < 40_000, "{:?}", summary.others);
    for form in [Form::Text { color: false }, Form::Json, Form::Markdown, Form::GitHub] {
        let text = written(&summary, form);
        let row = |line: &&str| {
            line.contains("zzz.example.net") && (line.contains("9.0 GB") || line.contains("9000000000"))
        };
        assert!(text.lines().filter(row).count() >= 2, "{form:?}");
    }
    let mut out = Vec::new();
    write(&summary, Form::Text { color: false }, Sort::Up, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.contains("DENIED")).skip(1).collect();
    assert!(rows[0].contains("zzz.example.net:443"), "{}", rows[0]);
}

/// L17: a verdict's row is about that verdict only, and says when it was first given.
#[test]
fn l17_evidence_is_about_one_verdict() {
    let mut lines = Lines::default();
    lines.decide("api.example", "allow"); // 10:00:00
    lines.close("api.example", 5);
    let late = lines.decide("api.example", "allow");
    lines.line(&format!(
        r#""event":"decision","conn":{late},"host":"api.example","port":443,"ip":"192.0.2.1","verdict":"deny","reason":"sni_mismatch""#
    )); // 10:00:03
    lines.line(r#""event":"decision","conn":9,"host":"api.example","port":443,"verdict":"would_deny","reason":"default","mode":"report""#);
    let summary = few(10, lines.text.as_bytes());
    let api = summary.host(Some("api.example"), Some(443), Proto::Tcp).unwrap();
    let (denied, reasons) = api.sightings(Verdict::Deny);
    assert_eq!((denied.count, reasons), (1, vec![Some(Reason::SniMismatch)]));
    assert_eq!(denied.first, Moment::parse("2026-11-22T10:00:03Z"));
    assert_eq!(api.sightings(Verdict::WouldDeny).1, [Some(Reason::Default)]);
    assert_eq!(api.sightings(Verdict::Error).0.count, 0);
}

/// L17: a summary of many runs says who approved what was let through, and what nobody approved.
#[test]
fn l17_who_approved_is_said_over_many_runs() {
    let decided = |conn: u64, host: &str, by: Option<&str>| {
        let mut decision = allow(conn, host);
        decision.rule = Some(RuleRef { approved_by: by.map(str::to_owned), ..rule() });
        vec![Event::Decision(decision), Event::Close(close(conn, host))]
    };
    let first =
        [decided(1, "a.example.com:443", Some("ada")), decided(2, "b.example.com:443", None), vec![end()]]
            .concat();
    let second = [decided(1, "a.example.com:443", Some("bob")), vec![end()]].concat();
    let summary = of_records(&[first, second]);
    let said: Vec<_> =
        summary.approvals().into_iter().map(|(by, sum)| (by, sum.attempts, sum.bytes_up)).collect();
    assert_eq!(said, [(None, 1, 1234), (Some("ada"), 1, 1234), (Some("bob"), 1, 1234)]);
    assert_eq!(summary.total.unapproved, 1);
    let text = written(&summary, Form::Text { color: false });
    assert!(
        text.contains(
            "\napproved  by ada 1 (1.2 kB up), by bob 1 (1.2 kB up); 1 let through that nobody approved\n"
        ),
        "{text}"
    );
    assert!(text.contains("\nREACHED, AND NOBODY APPROVED\n      1  b.example.com:443\n"), "{text}");
    assert!(text.contains("*.example.com (.exeat.toml:12), approved by bob, 1.2 kB up\n"), "{text}");
    assert!(
        written(&summary, Form::GitHub).contains("\nsignature: not checked here (`exeat audit verify`)\n")
    );
}

/// L17: what was refused, or what a rule would have denied, is approved by nobody, and every form has the same counts.
#[test]
fn l17_only_what_was_let_through_counts_as_approved() {
    let of = |by: &str| Some(RuleRef { approved_by: Some(by.into()), ..rule() });
    let mut passed = allow(1, "a.example.com:443");
    passed.rule = of("ada");
    // The next upload after the budget was used up.
    let mut refused = deny(2, "a.example.com:443");
    (refused.reason, refused.rule) = (Reason::BudgetBytes, of("ada"));
    let ruleless = |conn| {
        let mut ruleless = deny(conn, "b.example.com:443");
        (ruleless.verdict, ruleless.rule) = (Verdict::WouldDeny, None);
        ruleless
    };
    // Whoever approved a rule that denies did not approve that its target is let through.
    let mut unwanted = ruleless(4);
    (unwanted.reason, unwanted.rule) = (Reason::DenyRule, of("bob"));
    let decisions = [passed, refused, ruleless(3), unwanted];
    let close_of = |conn| Event::Close(close(conn, "a.example.com:443"));
    let summary =
        of_records(&[decisions.map(Event::Decision).into_iter().chain([close_of(1), end()]).collect()]);
    let total = summary.total;
    assert_eq!((total.tally.allowed, total.tally.denied, total.tally.would_deny), (1, 1, 2));
    let said: Vec<_> =
        summary.approvals().into_iter().map(|(by, sum)| (by, sum.attempts, sum.bytes_up)).collect();
    assert_eq!(said, [(None, 2, 0), (Some("ada"), 1, 1234)]);
    assert_eq!(total.unapproved, 2);
    let text = written(&summary, Form::Text { color: false });
    assert!(
        text.contains("\napproved  by ada 1 (1.2 kB up); 2 let through that nobody approved\n"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&written(&summary, Form::Json)).unwrap();
    assert_eq!(json["approvals"][0]["attempts"], json["total"]["unapproved"], "{json}");
}

/// L17: an approver whose rule is beyond the bound of rules counts, too.
#[test]
fn l17_approvers_beyond_the_bound_of_rules_count() {
    let events = (0..=MAX_RULES as u64).map(|n| {
        let mut passed = allow(n, "a.example.com:443");
        passed.rule =
            Some(RuleRef { text: format!("h{n}.example"), approved_by: Some("ada".into()), ..rule() });
        Event::Decision(passed)
    });
    let summary = of_records(&[events.collect()]);
    let approved: u64 = summary.approvals().values().map(|sum| sum.attempts).sum();
    assert_eq!((approved, summary.total.tally.allowed), (MAX_RULES as u64 + 1, MAX_RULES as u64 + 1));
}

fn of_records(records: &[Vec<Event>]) -> Summary {
    let records: Vec<_> = records.iter().map(|events| record(header(), events.clone())).collect();
    summarize(&records, &Filter::default())
}

/// L17: if only some lines are selected, a rule without one may still have been used.
#[test]
fn l17_no_rule_is_called_unused_for_a_part_of_the_lines() {
    let host = Filter { hosts: vec!["other.example".parse().unwrap()], ..Filter::default() };
    let since = Filter { since: Moment::parse("2020-01-01T00:00:00Z"), ..Filter::default() };
    let until = Filter { until: Moment::parse("9000-01-01T00:00:00Z"), ..Filter::default() };
    for filter in [host, since, until] {
        let mut summary = summarize(&[record(header(), sample())], &filter);
        add_policy(&mut summary, r#"{"rules":[{"rule":"*.example.com:443"}]}"#).unwrap();
        assert_eq!(summary.unused(), UnusedRules::NotAsked);
        assert!(!written(&summary, Form::Text { color: false }).contains("NEVER USED"));
    }
    // A refusal that was counted without its rule may be due to any deny rule.
    let mut folded = deny(1, "x.example:443");
    (folded.conn, folded.target, folded.reason, folded.count) = (None, None, Reason::DenyRule, Some(30));
    let mut summary = summarize(&[record(header(), vec![Event::Decision(folded)])], &Filter::default());
    add_policy(&mut summary, r#"{"rules":[{"rule":"!evil.example.org:*"}]}"#).unwrap();
    assert_eq!(summary.unused(), UnusedRules::CannotTell(30));
    let text = written(&summary, Form::Text { color: false });
    assert!(text.contains("\nwhich rules were never used cannot be told: of 30 attempts"), "{text}");
}

/// L17: an expired rule is shown as refusing, not as letting something through.
#[test]
fn l17_an_expired_rule_says_so() {
    let mut refused = deny(1, "old.example.com:443");
    refused.reason = Reason::Expired;
    refused.rule = Some(RuleRef { expires: Some("2026-10-01".into()), ..rule() });
    let summary = summarize(&[record(header(), vec![Event::Decision(refused), end()])], &Filter::default());
    let text = written(&summary, Form::Text { color: false });
    assert!(text.contains("*.example.com (.exeat.toml:12), expired, granted until 2026-10-01\n"), "{text}");
}

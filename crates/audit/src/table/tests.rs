use std::collections::BTreeMap;
use std::fs::File;
use std::io::Cursor;
use std::path::PathBuf;

use exeat_record::place::RecordDir;
use exeat_record::{Cause, Event, Header, Holds, Log, Process, RuleRef, RunEnd, RunId, RunStart, Sink, What};

use super::*;
use crate::runs::RunSummary;
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

fn sample() -> Vec<Event> {
    vec![
        Event::RunStart(RunStart {
            version: "0.1.0".into(),
            command: Some("/usr/bin/curl".into()),
            backend: Some("bwrap".into()),
            bridge: Some("handoff".into()),
            enforcement: vec![("net".into(), Holds::Held)],
            limits: vec!["memory=2GiB (watched)".into(), "pids=64 (rlimit)".into()],
            ..RunStart::default()
        }),
        Event::Decision(allow(1, "api.example.com:443")),
        Event::Decision(deny(2, "stats.example.net:443")),
        Event::Close(close(1, "api.example.com:443")),
        note(What::Quarantined, |note| note.error = Some(".git/hooks/x".into())),
        end(),
    ]
}

fn show_text(bytes: &[u8], filter: &Filter) -> (String, Totals) {
    let mut out = Vec::new();
    let totals = show(&mut Reader::new(Cursor::new(bytes)), filter, &mut out, false).unwrap();
    (String::from_utf8(out).unwrap(), totals)
}

/// Returns the rows of the table, single-spaced and without their times.
fn rows(text: &str) -> Vec<String> {
    text.lines()
        .skip_while(|line| !line.starts_with("TIME"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn a_decision_is_joined_with_the_end_of_its_connection() {
    let (text, totals) = show_text(&record(header(), sample()), &Filter::default());
    assert_eq!(
        rows(&text),
        [
            "allow api.example.com:443 93.184.216.34 1.2 kB 45 kB 0 us allowed by *.example.com (.exeat.toml:12)",
            "deny stats.example.net:443 - - - - no rule allows it",
            "note - - - - - quarantined: .git/hooks/x",
        ]
    );
    assert!(text.contains("command   /usr/bin/curl\n"), "{text}");
    assert!(text.contains("sandbox   bwrap, handoff\n"), "{text}");
    assert!(
        text.contains("holds     net held\nlimits    memory=2GiB (watched), pids=64 (rlimit)\n"),
        "{text}"
    );
    assert!(text.contains("\n1 allowed, 1 denied\nended "), "{text}");
    assert!(text.contains("UTC: exit 0, 2 connections\n") && !text.contains('!'), "{text}");
    assert_eq!(totals, Totals { shown: 2, decisions: 2, flaws: 0 });
}

#[test]
fn a_late_refusal_has_a_row_of_its_own() {
    let mut late = deny(1, "api.example.com:443");
    (late.reason, late.sni, late.sni_ok) = (Reason::SniMismatch, Some("evil.example".into()), Some(false));
    let mut closed = close(1, "api.example.com:443");
    closed.end = exeat_record::CloseCause::Killed;
    let events = vec![
        Event::Decision(allow(1, "api.example.com:443")),
        Event::Decision(late),
        Event::Close(closed),
        end(),
    ];
    let rows = rows(&show_text(&record(header(), events), &Filter::default()).0);
    assert!(rows[0].ends_with("(.exeat.toml:12); ended: killed"), "{rows:?}");
    assert!(rows[1].ends_with("the TLS hello names another host: evil.example"), "{rows:?}");
}

#[test]
fn a_filter_leaves_rows_out_and_says_so() {
    let filter = Filter { verdicts: vec![Verdict::Deny], ..Filter::default() };
    let (text, totals) = show_text(&record(header(), sample()), &filter);
    assert_eq!(rows(&text), ["deny stats.example.net:443 - - - - no rule allows it"]);
    assert!(text.contains("1 of 2 decisions shown"), "{text}");
    assert_eq!((totals.shown, totals.decisions), (1, 2));
}

/// Refusals by the sandbox's name server and by the tap have rows with their protocol, are counted, and pass filters.
#[test]
fn questions_and_attempts_have_rows() {
    let mut again = question("stats.example.net");
    again.count = Some(3);
    let mut attempt = deny(1, "192.0.2.7:443");
    (attempt.conn, attempt.reason) = (None, Reason::Direct);
    (attempt.via, attempt.proto) = (exeat_record::Via::Direct, exeat_record::Proto::Udp);
    attempt.error = Some("UDP is never let out".into());
    let events = vec![
        Event::Dns(question("stats.example.net")),
        Event::Dns(again),
        Event::Decision(attempt),
        note(What::TapDrops, |note| note.count = Some(9)),
        end(),
    ];
    let bytes = record(header(), events);
    let (text, totals) = show_text(&bytes, &Filter::default());
    assert_eq!(
        rows(&text),
        [
            "deny stats.example.net - - - - no rule allows it [dns]",
            "deny stats.example.net - - - - no rule allows it [dns] (3x)",
            "deny 192.0.2.7:443 - - - - an attempt to leave without the proxy; UDP is never let out [direct udp]",
            "note - - - - - tap drops (9x)",
        ]
    );
    assert!(text.contains("\n0 allowed, 5 denied\n"), "{text}");
    assert_eq!(totals, Totals { shown: 3, decisions: 3, flaws: 0 });
    let ended = Reader::new(Cursor::new(&bytes)).last().unwrap().unwrap();
    assert_eq!((ended.event, ended.denied), (LineKind::RunEnd, Some(5)), "each line by its count");
    let filter = Filter { hosts: vec!["*.example.net".parse().unwrap()], ..Filter::default() };
    assert_eq!(show_text(&bytes, &filter).1.shown, 2);
    let mut out = Vec::new();
    show_json(&mut Reader::new(Cursor::new(&bytes)), &filter, &mut out).unwrap();
    assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 2);
}

/// A row of a growing record is written at its decision, and its end gets another row.
#[test]
fn a_live_row_waits_for_nothing() {
    let mut events = sample();
    events.truncate(3);
    let bytes = record(header(), events);
    let mut out = Vec::new();
    show_live(&mut Reader::new(Cursor::new(&bytes)), &Filter::default(), &mut out, false).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(rows(&text)[0].starts_with("allow api.example.com:443 93.184.216.34 - - - allowed by"), "{text}");
    let mut out = Vec::new();
    let bytes = record(header(), sample());
    show_live(&mut Reader::new(Cursor::new(&bytes)), &Filter::default(), &mut out, false).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(rows(&text)[2], "close api.example.com:443 - 1.2 kB 45 kB 0 us connection 1");
}

/// A04: the flaws of a record are listed below it.
#[test]
fn a04_a_cut_record_says_so() {
    let bytes = record(header(), sample());
    let (text, totals) = show_text(&bytes[..bytes.len() - 20], &Filter::default());
    assert!(text.contains("! line 6 was cut off\n"), "{text}");
    assert!(text.contains("! unfinished"), "{text}");
    assert_eq!(totals.flaws, 2);
}

/// K36: a connection that was left to another proxy says so; that proxy's address is not shown as the host's.
#[test]
fn a_row_names_the_upstream_proxy() {
    let through = |target: &str| {
        let mut decision = allow(1, target);
        decision.ips.clear();
        decision.upstream = Some("proxy.corp.example:3128".into());
        decision
    };
    let mut closed = close(1, "api.example.com:443");
    closed.ip = Some("10.0.0.9".parse().unwrap());
    let start = RunStart { upstream: Some("proxy.corp.example:3128".into()), ..RunStart::default() };
    let events = vec![
        Event::RunStart(start),
        Event::Decision(through("api.example.com:443")),
        Event::Close(closed),
        end(),
    ];
    let (text, _) = show_text(&record(header(), events), &Filter::default());
    assert!(text.contains("upstream  proxy.corp.example:3128 (it looks names up itself)\n"), "{text}");
    assert!(!text.contains("10.0.0.9") && text.contains(", through proxy.corp.example:3128"), "{text}");
}

/// A01: no text of a stage, a file or a header reaches the terminal unescaped.
#[test]
fn a01_hostile_text_never_reaches_the_terminal() {
    let mut asked = allow(1, "api.example.com:443");
    asked.rule = Some(RuleRef { why: Some(HOSTILE.into()), ..rule() });
    asked.rule.as_mut().unwrap().text = HOSTILE.into();
    asked.rule.as_mut().unwrap().src = HOSTILE.into();
    asked.error = Some(HOSTILE.into());
    asked.upstream = Some(HOSTILE.into());
    let mut malformed = deny(2, "a.example:443");
    (malformed.target, malformed.host_raw) = (None, Some(HOSTILE.as_bytes().to_vec()));
    (malformed.reason, malformed.sni) = (Reason::SniMismatch, Some(HOSTILE.into()));
    let mut closed = close(1, "api.example.com:443");
    (closed.error, closed.end) = (Some(HOSTILE.into()), exeat_record::CloseCause::Error);
    let start = RunStart {
        version: HOSTILE.into(),
        command: Some(HOSTILE.into()),
        backend: Some(HOSTILE.into()),
        bridge: Some(HOSTILE.into()),
        proxy: None,
        upstream: Some(HOSTILE.into()),
        gateway: Some(HOSTILE.into()),
        enforcement: vec![(HOSTILE.into(), Holds::Partial(HOSTILE.into()))],
        limits: vec![HOSTILE.into()],
        labels: vec![(HOSTILE.into(), HOSTILE.into())],
        ..RunStart::default()
    };
    let header = Header { stage: Some(HOSTILE.into()), policy_sha256: HOSTILE.into(), ..header() };
    let bytes = record(
        header,
        vec![
            Event::RunStart(start),
            Event::Decision(asked),
            Event::Decision(malformed),
            Event::Close(closed),
            note(What::BridgeLost, |note| note.error = Some(HOSTILE.into())),
            end(),
        ],
    );
    let (text, totals) = show_text(&bytes, &Filter::default());
    assert!(is_plain(text.as_bytes()), "{text}");
    assert_eq!(totals, Totals { shown: 2, decisions: 2, flaws: 0 });
    assert_eq!(rows(&text).len(), 3);
}

/// A01: no text of a forged record reaches the terminal unescaped.
#[test]
fn a01_a_forged_record_never_reaches_the_terminal() {
    let text = serde_json::to_string(&HOSTILE).unwrap();
    let mut bytes = Vec::new();
    for event in ["run_start", "decision", "dns", "close", "note", "run_end"] {
        let strings: String = [
            "ts",
            "run",
            "stage",
            "policy_sha256",
            "mode",
            "version",
            "command",
            "backend",
            "bridge",
            "gateway",
            "upstream",
            "what",
            "via",
            "proto",
            "host",
            "host_raw",
            "verdict",
            "reason",
            "rule",
            "rule_src",
            "why",
            "sni",
            "alpn",
            "ended_by",
            "cause",
            "limit",
            "error",
            "prev",
        ]
        .iter()
        .map(|field| format!(",\"{field}\":{text}"))
        .collect();
        bytes.extend_from_slice(
            format!("{{\"schema\":\"egress/1\",\"event\":\"{event}\",\"seq\":9,\"mono_us\":1,\"conn\":1{strings}}}\n")
                .as_bytes(),
        );
    }
    let (text, totals) = show_text(&bytes, &Filter::default());
    assert!(is_plain(text.as_bytes()), "{text}");
    assert_eq!(totals.decisions, 2);
    let mut out = Vec::new();
    show_json(&mut Reader::new(Cursor::new(&bytes)), &Filter::default(), &mut out).unwrap();
    assert!(is_plain(&out));
    assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 6);
}

/// A01: padding cannot make one row look like two where the terminal wraps it.
#[test]
fn a01_a_row_cannot_be_padded_into_two() {
    let mut malformed = deny(1, "a.example:443");
    malformed.target = None;
    malformed.host_raw =
        Some([&b"x"[..], &[b' '; 150], b"10:20:32.123  allow       evil.example:443"].concat());
    let (text, _) = show_text(&record(header(), vec![Event::Decision(malformed), end()]), &Filter::default());
    assert!(text.contains("\"x 10:20:32.123 allow evil.example:443\""), "{text}");
}

#[test]
fn json_is_the_record_itself() {
    let bytes = record(header(), sample());
    let mut out = Vec::new();
    show_json(&mut Reader::new(Cursor::new(&bytes)), &Filter::default(), &mut out).unwrap();
    assert_eq!(out, bytes);
    out.clear();
    let filter = Filter { verdicts: vec![Verdict::Deny], ..Filter::default() };
    show_json(&mut Reader::new(Cursor::new(&bytes)), &filter, &mut out).unwrap();
    assert_eq!(out, bytes.split_inclusive(|&byte| byte == b'\n').nth(2).unwrap());
}

/// The number of rows that wait for their ends is bounded; a late end gets another row.
#[test]
fn a_long_tunnel_does_not_hold_the_table_back() {
    let many = MAX_WAITING as u64 + 10;
    let mut events = vec![Event::Decision(allow(0, "long.example:443"))];
    events.extend((1..many).map(|conn| Event::Decision(deny(conn, "a.example:443"))));
    events.extend([Event::Close(close(0, "long.example:443")), end()]);
    let rows = rows(&show_text(&record(header(), events), &Filter::default()).0);
    assert_eq!(rows.len() as u64, many + 1);
    assert!(rows[0].starts_with("allow long.example:443 93.184.216.34 - - -"), "{}", rows[0]);
    assert!(rows.last().unwrap().starts_with("close long.example:443 - 1.2 kB 45 kB"), "{rows:?}");
}

#[test]
fn color_only_adds_escape_sequences() {
    let bytes = record(header(), sample());
    let mut out = Vec::new();
    show(&mut Reader::new(Cursor::new(&bytes)), &Filter::default(), &mut out, true).unwrap();
    let mut text = String::from_utf8(out).unwrap();
    assert!(text.contains(GREEN) && text.contains(RED));
    for code in [GREEN, RED, YELLOW, "\x1b[0m"] {
        text = text.replace(code, "");
    }
    assert_eq!(text, show_text(&bytes, &Filter::default()).0);
}

/// A01: the stage chooses the name of a program, which cannot imitate exeat's words.
#[test]
fn a01_a_row_shows_only_plain_characters_of_a_program_name() {
    let row = |exe: Option<&str>| {
        let mut decision = allow(1, "a.example:443");
        decision.process = Some(Process { pid: 7, ppid: None, exe: exe.map(Into::into) });
        rows(&show_text(&record(header(), vec![Event::Decision(decision), end()]), &Filter::default()).0)
            .remove(0)
    };
    assert!(
        row(Some("/usr/bin/python3.12")).ends_with(", from python3.12"),
        "{}",
        row(Some("/usr/bin/python3.12"))
    );
    assert!(row(Some("/tmp/a; approved by root")).ends_with(", from a??approved?by?root"));
    assert!(row(Some("/tmp/\u{202e}x\n")).ends_with(", from ?xe2?x80?xaex?x0a"));
    assert!(row(Some(&"n".repeat(40))).ends_with(&format!(", from {}...", "n".repeat(32))));
    assert_eq!(row(None), row(Some("/")));
    assert!(!row(None).contains("from"));
}

/// What the proxy says about a denial is not said twice, unless it does not say the reason.
#[test]
fn a_denial_says_its_reason_once() {
    let mut crowded = deny(1, "a.example:443");
    crowded.reason = Reason::BudgetConns;
    crowded.error = Some("9 connections to this host are open, and no more at one time".into());
    let mut flood = crowded.clone();
    (flood.conn, flood.target, flood.count) = (None, None, Some(7));
    flood.error = Some("too many refusals for lines of their own".into());
    let text = show_text(
        &record(header(), vec![Event::Decision(crowded), Event::Decision(flood), end()]),
        &Filter::default(),
    );
    assert_eq!(
        rows(&text.0),
        [
            "deny a.example:443 - - - - 9 connections to this host are open, and no more at one time",
            "deny - - - - - no room for it beside the other connections; too many refusals for lines of their own (7x)",
        ]
    );
}

#[test]
fn every_reason_has_words() {
    for reason in Reason::ALL {
        let mut decision = deny(1, "a.example:443");
        decision.reason = reason;
        let rows =
            rows(&show_text(&record(header(), vec![Event::Decision(decision), end()]), &Filter::default()).0);
        assert!(rows[0].len() > "deny a.example:443 - - - - ".len(), "{rows:?}");
        assert!(!rows[0].contains('_'), "{rows:?}");
    }
}

/// The words are those of the run's own summary.
#[test]
fn a_lock_does_not_have_what_a_ceiling_does_not_allow() {
    for (by, words) in [
        ("lock egress.lock", "the lock egress.lock does not have it"),
        ("ceiling a.toml", "the ceiling a.toml does not allow it"),
    ] {
        let mut decision = deny(1, "a.example:443");
        (decision.reason, decision.refused_by) = (Reason::Default, Some(by.to_owned()));
        let text = show_text(&record(header(), vec![Event::Decision(decision), end()]), &Filter::default()).0;
        assert!(text.contains(words), "{text}");
    }
}

/// A start that failed has no code on record, and ended with 125.
#[test]
fn each_end_of_a_list_has_its_exit_code() {
    for (exit, words) in [(None, "setup 125"), (Some(127), "setup 127")] {
        let failed = RunEnd {
            cause: Cause::Setup,
            exit,
            limit: None,
            signal: None,
            stopped_by: None,
            connections: 0,
            dropped: 0,
        };
        let dir = Dir::new();
        let path = dir.path().join("r.jsonl");
        std::fs::write(&path, record(header(), vec![Event::RunEnd(failed)])).unwrap();
        let run = RunSummary::read(path.clone(), File::open(path));
        let mut out = Vec::new();
        list(&[run], &BTreeMap::new(), &mut out, false).unwrap();
        assert!(String::from_utf8(out).unwrap().contains(&format!("{words}  ")));
    }
}

/// A run without labels, one with two, and one whose labels and command are as a stranger likes them.
#[test]
fn a_list_has_a_column_with_labels_if_a_run_has_some() {
    let run = |command: &str, labels: &[(&str, &str)]| RunSummary {
        path: "/runs/r.jsonl".into(),
        command: Some(command.into()),
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..RunSummary::default()
    };
    let long = "x".repeat(100);
    let runs = [
        run("curl", &[]),
        run("/usr/bin/make", &[("task", "7"), ("by", "ann")]),
        run(&long, &[("a  b", HOSTILE)]),
    ];
    let mut out = Vec::new();
    list(&runs, &BTreeMap::new(), &mut out, false).unwrap();
    assert!(is_plain(&out));
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let at = lines[0].find("LABELS").unwrap();
    assert_eq!(lines[1].get(at..), Some("-"), "{text}");
    assert_eq!(lines[2].get(at..), Some("by=ann task=7"), "{text}");
    assert!(lines.len() == 4 && lines[3].contains(&format!("{long}  a b=")), "{text}");
}

#[test]
fn a_list_of_runs_reads_as_a_table_and_as_json() {
    let dir = Dir::new();
    let place = RecordDir::from_env(Some(dir.path().as_os_str()), None).unwrap();
    for (run, ended) in [("01JD8Z3V5Q0000000000000000", true), ("01JD8Z3V5R0000000000000000", false)] {
        let run: RunId = run.parse().unwrap();
        let (sink, _) = place.create(run).unwrap();
        let header = Header { run, stage: Some(HOSTILE.into()), ..header() };
        let log = Log::start(sink, header).unwrap();
        log.write(Event::RunStart(RunStart { command: Some("curl".into()), ..RunStart::default() })).unwrap();
        if ended {
            log.write(end()).unwrap();
        }
    }
    let read = |path: PathBuf| RunSummary::read(path.clone(), File::open(path));
    let runs: Vec<RunSummary> = place.records().unwrap().into_iter().map(read).collect();
    let mut out = Vec::new();
    list(&runs, &place.short_names().unwrap(), &mut out, false).unwrap();
    assert!(is_plain(&out));
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[1].starts_with("01JD8Z3V5R  ") && lines[1].contains("unfinished"), "{text}");
    assert!(lines[2].contains("exit 0") && lines[2].ends_with("curl"), "{text}");
    assert!(!text.contains("LABELS"), "{text}");

    let mut out = Vec::new();
    list_json(&runs, &mut out).unwrap();
    assert!(is_plain(&out));
    let array: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(array[0]["finished"], false);
    assert_eq!((&array[1]["exit"], &array[1]["stage"]), (&0.into(), &HOSTILE.into()));
    out.clear();
    list_json(&[], &mut out).unwrap();
    assert_eq!(out, b"[]\n");
}

#[test]
fn quantities_read_well() {
    for (count, expect) in [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_999, "9.9 kB"),
        (10_000, "10 kB"),
        (999_999, "999 kB"),
        (1_000_000, "1.0 MB"),
        (u64::MAX, "18 EB"),
    ] {
        assert_eq!(bytes(count), expect);
    }
    for (us, expect) in [
        (999, "999 us"),
        (1_000, "1 ms"),
        (999_999, "999 ms"),
        (1_250_000, "1.2 s"),
        (59_990_000, "59.9 s"),
        (61_000_000, "1m01s"),
        (3_660_000_000, "1h01m"),
    ] {
        assert_eq!(duration(us), expect);
    }
}

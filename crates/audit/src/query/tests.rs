use std::io::Cursor;

use exeat_record::{Event, RunStart};
use proptest::prelude::*;

use super::*;
use crate::Moment;
use crate::testing::{Dir, HOSTILE, allow, close, deny, end, log};

/// Returns a whole record of seven lines.
fn sample() -> Vec<u8> {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = log(&path);
    for event in [
        Event::RunStart(RunStart::default()),
        Event::Decision(allow(1, "api.example.com:443")),
        Event::Decision(deny(2, "stats.example.net:443")),
        Event::Close(close(1, "api.example.com:443")),
        Event::Decision(deny(3, "192.0.2.7:22")),
        Event::Decision(deny(4, "example.com:443")),
        end(),
    ] {
        log.write(event).unwrap();
    }
    std::fs::read(path).unwrap()
}

fn read_all(bytes: &[u8]) -> (Vec<Record>, Vec<Flaw>) {
    let mut reader = Reader::new(Cursor::new(bytes));
    let records = reader.by_ref().map(Result::unwrap).collect();
    (records, reader.flaws().to_vec())
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Returns the flaws of the sample after a change to its lines.
fn flaws_of(change: impl Fn(&mut Vec<Vec<u8>>)) -> Vec<Flaw> {
    let mut lines = lines(&sample());
    change(&mut lines);
    read_all(&lines.concat()).1
}

#[test]
fn a_whole_record_has_no_flaws() {
    let (records, flaws) = read_all(&sample());
    assert_eq!(records.len(), 7);
    assert_eq!(flaws, []);
    let decision = &records[1];
    assert_eq!((decision.verdict(), decision.reason()), (Some(Verdict::Allow), Some(Reason::Rule)));
    assert_eq!(decision.target().as_deref(), Some("api.example.com:443"));
    assert_eq!(records[6].exit, Some(0));
}

/// A04: a record that was cut anywhere can be read up to there, and has no other flaw.
#[test]
fn a04_every_prefix_is_read_and_only_cut() {
    let whole = sample();
    for len in 0..whole.len() {
        let prefix = &whole[..len];
        let (records, flaws) = read_all(prefix);
        let full = prefix.iter().filter(|&&byte| byte == b'\n').count();
        assert!(records.len() == full || records.len() == full + 1, "{len}");
        let cut = !prefix.is_empty() && !prefix.ends_with(b"\n");
        assert_eq!(flaws.iter().any(|flaw| matches!(flaw, Flaw::Cut { .. })), cut, "{len}");
        assert!(
            flaws.iter().all(|flaw| matches!(flaw, Flaw::Cut { .. } | Flaw::Unfinished { .. })),
            "{len}: {flaws:?}"
        );
        assert!(!flaws.is_empty(), "{len}");
    }
}

/// A06: a line that was removed, changed or moved is reported.
#[test]
fn a06_tampering_shows() {
    let removed = flaws_of(|lines| drop(lines.remove(2)));
    assert_eq!(removed, [Flaw::Gap { line: 3, expected: 2, found: 3 }, Flaw::Chain { line: 3 }]);

    let edited = flaws_of(|lines| {
        let line = String::from_utf8(lines[2].clone()).unwrap();
        lines[2] = line.replace("\"deny\"", "\"allow\"").into_bytes();
    });
    assert_eq!(edited, [Flaw::Chain { line: 4 }]);

    let swapped = flaws_of(|lines| lines.swap(1, 2));
    assert!(swapped.iter().filter(|flaw| matches!(flaw, Flaw::Gap { .. })).count() >= 2, "{swapped:?}");

    let headless = flaws_of(|lines| drop(lines.remove(0)));
    assert_eq!(headless, [Flaw::Gap { line: 1, expected: 0, found: 1 }, Flaw::Chain { line: 1 }]);

    let tailless = flaws_of(|lines| drop(lines.pop()));
    assert_eq!(tailless, [Flaw::Unfinished { line: 6, is_running: None }]);

    let doubled = flaws_of(|lines| lines.push(lines[6].clone()));
    assert!(doubled.contains(&Flaw::AfterEnd { line: 8 }), "{doubled:?}");
}

#[test]
fn reports_and_skips_malformed_lines() {
    for bad in ["", "{}", "not json", "\u{202e}", "[1]", "{\"schema\":\"egress/9\"}"] {
        let flaws = flaws_of(|lines| lines.insert(3, format!("{bad}\n").into_bytes()));
        assert!(matches!(&flaws[0], Flaw::Malformed { line: 4, .. }), "{bad}: {flaws:?}");
        assert_eq!(flaws[1], Flaw::Gap { line: 5, expected: 4, found: 3 });
    }
}

#[test]
fn a_doubled_key_does_not_hide_a_verdict() {
    let flaws = flaws_of(|lines| {
        let line = String::from_utf8(lines[2].clone()).unwrap();
        lines[2] = line.replace("{", "{\"verdict\":\"allow\",").into_bytes();
    });
    assert!(matches!(&flaws[0], Flaw::Malformed { line: 3, .. }), "{flaws:?}");
}

#[test]
fn another_schema_is_not_guessed_at() {
    let flaws = flaws_of(|lines| {
        let line = String::from_utf8(lines[2].clone()).unwrap();
        lines[2] = line.replace("egress/1", "egress/2").into_bytes();
    });
    assert!(matches!(&flaws[0], Flaw::Malformed { line: 3, why } if why.contains("egress/2")), "{flaws:?}");
}

#[test]
fn unknown_fields_and_events_are_passed_over() {
    let (records, _) = read_all(
        br#"{"schema":"egress/1","seq":0,"ts":"x","mono_us":1,"event":"tomorrow","run":"R","sig":"AA","n":1}
"#,
    );
    assert_eq!(records[0].event, LineKind::Other("tomorrow".into()));
}

#[test]
fn two_runs_in_one_file_are_told_apart() {
    let (records, flaws) = read_all(&[sample(), sample()].concat());
    assert_eq!(records.len(), 14);
    assert_eq!(flaws, [Flaw::AnotherRun { line: 8 }]);
}

/// Memory stays bounded whatever the file contains.
#[test]
fn endless_lines_and_endless_flaws_are_capped() {
    let long = [vec![b'x'; 5 * MAX_READ], b"\n".to_vec()].concat();
    let mut reader = Reader::new(Cursor::new(long));
    assert!(reader.next().is_none());
    assert!(matches!(&reader.flaws()[0], Flaw::Malformed { line: 1, .. }));
    assert!(reader.raw.capacity() <= 2 * MAX_READ);

    let mut reader = Reader::new(Cursor::new(b"\n".repeat(10_000)));
    assert!(reader.next().is_none());
    assert_eq!(reader.flaws().len() as u64 + reader.more_flaws(), 10_001);
    assert_eq!(reader.flaws().len(), MAX_FLAWS);
}

/// A01: what the reader reports about a hostile line is printable.
#[test]
fn a01_flaws_are_printable() {
    let text = format!("{{\"schema\":{}}}\n{HOSTILE}\n", serde_json::to_string(HOSTILE).unwrap());
    for flaw in read_all(text.as_bytes()).1 {
        assert!(flaw.to_string().bytes().all(|byte| matches!(byte, 0x20..=0x7e)), "{flaw:?}");
    }
}

#[track_caller]
fn hosts(filter: &str, expect: &[u64]) {
    let filter = Filter { hosts: vec![filter.parse().unwrap()], ..Filter::default() };
    let (records, _) = read_all(&sample());
    let found: Vec<u64> = records
        .iter()
        .filter(|record| record.event == LineKind::Decision && filter.passes(record))
        .filter_map(|record| record.conn)
        .collect();
    assert_eq!(found, expect);
}

#[test]
fn hosts_are_found_by_name_by_wildcard_and_by_address() {
    hosts("api.example.com", &[1]);
    hosts("API.Example.COM", &[1]);
    hosts("*.example.com", &[1]);
    hosts("example.com", &[4]);
    hosts("*.com", &[1, 4]);
    hosts("192.0.2.7", &[3]);
    hosts("93.184.216.34", &[1]);
    hosts("nothing.example", &[]);
}

#[test]
fn verdicts_and_reasons_are_filtered() {
    let count = |filter: &Filter| {
        let (records, _) = read_all(&sample());
        records.iter().filter(|record| record.event == LineKind::Decision && filter.passes(record)).count()
    };
    assert_eq!(count(&Filter::default()), 4);
    assert_eq!(count(&Filter { verdicts: vec![Verdict::Deny], ..Filter::default() }), 3);
    assert_eq!(count(&Filter { reasons: vec![Reason::Rule, Reason::Port], ..Filter::default() }), 1);
    let both = Filter { verdicts: vec![Verdict::Deny], reasons: vec![Reason::Rule], ..Filter::default() };
    assert_eq!(count(&both), 0);
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_fail(bytes: Vec<u8>) {
        let mut reader = Reader::new(Cursor::new(&bytes));
        for record in reader.by_ref() {
            prop_assert!(record.is_ok());
        }
        prop_assert!(!reader.flaws().is_empty());
    }

    #[test]
    fn one_changed_byte_shows(at in 0usize..10_000, to: u8) {
        let mut bytes = sample();
        // A chain alone cannot guard the last line.
        let guarded = bytes[..bytes.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap();
        let at = at % guarded;
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        prop_assert!(!read_all(&bytes).1.is_empty());
    }
}

/// Every line has a time and a stage; only decisions have the other fields.
#[test]
fn lines_are_filtered_by_time_stage_and_way() {
    let (records, _) = read_all(&sample());
    let count = |filter: &Filter| records.iter().filter(|record| filter.passes(record)).count();
    let third = Moment::parse(&records[2].ts).unwrap();
    let (before, after) = records.split_at(3);
    let is_before = |record: &&Record| Moment::parse(&record.ts).unwrap() <= third;
    assert!(before.iter().all(|record| is_before(&record)));
    assert_eq!(
        count(&Filter { until: Some(third), ..Filter::default() }),
        3 + after.iter().filter(is_before).count()
    );
    let since = Filter { since: Some(third), until: Some(third), ..Filter::default() };
    assert!((1..7).contains(&count(&since)));
    assert_eq!(count(&Filter { stages: vec!["x".into()], ..Filter::default() }), 0);
    assert_eq!(count(&Filter { vias: vec!["connect".into()], ..Filter::default() }), 4);
    assert_eq!(count(&Filter { vias: vec!["dns".into()], ..Filter::default() }), 0);
    assert_eq!(count(&Filter { exes: vec!["curl".into()], ..Filter::default() }), 0);
    let asked = Record { exe: Some("/usr/bin/curl".into()), ..records[1].clone() };
    for (exe, passes) in
        [("curl", true), ("/usr/bin/curl", true), ("bin/curl", false), ("cur", false), ("", false)]
    {
        let filter = Filter { exes: vec![exe.into()], ..Filter::default() };
        assert_eq!(filter.passes(&asked), passes, "{exe}");
    }
    let never = Moment::parse("9000-01-01T00:00:00Z");
    assert_eq!(count(&Filter { since: never, ..Filter::default() }), 0);
    assert!(!Filter { since: never, ..Filter::default() }.is_empty());
}

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::thread;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::testing::{Dir, allow, close, deny, end, header, key, log};
use crate::{RunNote, RunStart, What};

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A10, A12: every decision has a line, and the numbers order them.
#[test]
fn a12_lines_are_numbered_from_zero() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = log(&path);
    assert_eq!(log.write(Event::RunStart(RunStart::default())).unwrap(), 0);
    assert_eq!(log.write(Event::Decision(allow(1, "a.example.com:443"))).unwrap(), 1);
    assert_eq!(log.write(Event::Decision(deny(2, "b.example.com:443"))).unwrap(), 2);
    assert_eq!(log.write(Event::Close(close(1, "a.example.com:443"))).unwrap(), 3);
    assert_eq!(log.write(end()).unwrap(), 4);
    let lines = lines(&path);
    for (seq, line) in lines.iter().enumerate() {
        assert_eq!(line["seq"], seq);
        assert_eq!(line["run"], log.run().to_string());
        let ts = line["ts"].as_str().unwrap();
        assert!(ts.len() == 27 && ts.ends_with('Z') && ts.parse::<Timestamp>().is_ok(), "{ts}");
    }
    assert!(lines.windows(2).all(|pair| pair[0]["mono_us"].as_u64() <= pair[1]["mono_us"].as_u64()));
    assert_eq!((&lines[4]["allowed"], &lines[4]["denied"]), (&1.into(), &1.into()));
    assert_eq!(log.counts(), Counts { allowed: 1, denied: 1, lines: 5, ..Counts::default() });
}

/// A07: the line is in the file when `write` returns.
#[test]
fn a07_a_decision_is_on_its_way_before_it_is_acted_on() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = log(&path);
    for conn in 0..10 {
        log.write(Event::Decision(deny(conn, "a.example:443"))).unwrap();
        assert_eq!(lines(&path).len() as u64, conn + 1);
    }
}

/// A06: `sed -n 1p run.jsonl | sha256sum` is the `prev` of line 2.
#[test]
fn a06_each_line_names_the_digest_of_the_line_before() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = log(&path);
    for conn in 0..20 {
        log.write(Event::Decision(deny(conn, "a.example:443"))).unwrap();
    }
    let mut prev = "0".repeat(64);
    for line in fs::read(&path).unwrap().split_inclusive(|&byte| byte == b'\n') {
        assert_eq!(serde_json::from_slice::<Value>(line).unwrap()["prev"], prev.as_str());
        prev = Sha256::digest(line).iter().map(|byte| format!("{byte:02x}")).collect();
    }
}

/// A05: after one failure nothing more is written, so nothing more may be allowed.
#[test]
fn a05_a_failure_stays() {
    let log = Log::start(Sink::create_file(Path::new("/dev/full")).unwrap(), header()).unwrap();
    let event = || Event::Note(RunNote::new(What::PolicyReload));
    assert!(log.failure().is_none());
    assert!(matches!(log.write(event()), Err(LogError::Write(_))));
    assert!(matches!(log.clone().write(event()), Err(LogError::Stopped { .. })));
    assert!(matches!(log.write(end()), Err(LogError::Stopped { .. })));
    assert!(log.failure().is_some());
    assert_eq!(log.counts(), Counts::default());
}

#[test]
fn a_removed_file_stays_refused_when_it_is_back() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let other = dir.join("other");
    let log = log(&path);
    fs::hard_link(&path, &other).unwrap();
    log.write(Event::Decision(deny(1, "a.example:443"))).unwrap();
    fs::remove_file(&other).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(log.write(Event::Decision(deny(2, "a.example:443"))).is_err());
    fs::write(&path, "").unwrap();
    assert!(log.write(Event::Decision(deny(3, "a.example:443"))).is_err());
}

#[test]
fn a_stuck_pipe_costs_the_deadline_once() {
    let (_reader, writer) = std::io::pipe().unwrap();
    let deadline = std::time::Duration::from_millis(100);
    let log = Log::start(Sink::from_fd(writer.into()).unwrap().with_deadline(deadline), header()).unwrap();
    let began = Instant::now();
    while log.write(Event::Decision(deny(1, "a.example:443"))).is_ok() {}
    assert!(log.write(end()).is_err());
    assert!(began.elapsed() < std::time::Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn nothing_follows_the_end() {
    let dir = Dir::new();
    let log = log(&dir.join("run.jsonl"));
    log.write(end()).unwrap();
    assert!(matches!(log.write(Event::Note(RunNote::new(What::TapDrops))), Err(LogError::Ended)));
}

#[test]
fn writers_side_by_side_leave_whole_lines_without_gaps() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = log(&path);
    let writers: Vec<_> = (0..4u64)
        .map(|writer| {
            let log = log.clone();
            thread::spawn(move || {
                let write =
                    |n: u64| log.write(Event::Decision(deny(writer * 1000 + n, "a.example:443"))).unwrap();
                (0..200).map(write).collect::<Vec<u64>>()
            })
        })
        .collect();
    let given: HashSet<u64> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    assert_eq!(given.len(), 800);
    for (seq, line) in lines(&path).iter().enumerate() {
        assert_eq!(line["seq"], seq);
    }
}

/// K47: a decision on record costs less than 15 us; a build without optimization gets ten times as much. The median counts, so that
/// other load does not. The cost of a synced line depends on the disk, and is only printed: `cargo test --release -p exeat-record --
/// --nocapture measures_a_decision`.
#[test]
fn measures_a_decision() {
    let most = if cfg!(debug_assertions) { 150 } else { 15 };
    for (how, sync, lines) in [("written", false, 20_000), ("synced", true, 50)] {
        let dir = Dir::new();
        let sink = Sink::create_file(&dir.join("run.jsonl")).unwrap();
        let sink = if sync { sink.synced().unwrap() } else { sink };
        let log = Log::start(sink, header()).unwrap();
        let mut took: Vec<_> = (0..lines)
            .map(|conn| {
                let event = Event::Decision(allow(conn, "api.example.com:443"));
                let began = Instant::now();
                log.write(event).unwrap();
                began.elapsed()
            })
            .collect();
        took.sort_unstable();
        let at = |percent: usize| took[took.len() * percent / 100];
        let each = took.iter().sum::<std::time::Duration>().as_secs_f64() / took.len() as f64;
        println!("a decision, {how}: p50 {:?}, p99 {:?}, {:.0} lines/s", at(50), at(99), 1.0 / each);
        assert!(sync || at(50).as_micros() < most, "{:?}", at(50));
    }
}

/// L17: the first line is the start, by which the ledger knows the record, however long the sandbox takes.
#[test]
fn l17_nothing_stands_before_the_start() {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let file = fs::File::create(&path).unwrap();
    let log = Log::start_signed(Sink::from_fd(file.into()).unwrap(), header(), key(1)).unwrap();
    log.reserve_space();
    log.write(Event::RunStart(RunStart::default())).unwrap();
    let lines = lines(&path);
    assert_eq!((&lines[0]["event"], &lines[1]["what"]), (&"run_start".into(), &"no_reserve".into()));
}

/// L17: the disk keeps space for the end of a record, and releases it at the end. The file's size never includes it.
#[test]
fn l17_space_is_kept_for_the_end_of_a_record() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = Log::start_signed(Sink::create_file(&path).unwrap(), header(), key(1)).unwrap();
    log.write(Event::RunStart(RunStart::default())).unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() * 512 < AHEAD, "nothing was attempted yet");
    log.reserve_space();
    if lines(&path).last().is_some_and(|line| line["what"] == "no_reserve") {
        // Not on this file system.
        assert!(std::env::var_os("E2E_STRICT").is_none(), "the file system of the tests reserves space");
        return;
    }
    let left = || {
        let meta = fs::metadata(&path).unwrap();
        (meta.blocks() * 512).saturating_sub(meta.len())
    };
    for conn in 0..3000 {
        log.write(Event::Decision(allow(conn, "a.example.com:443"))).unwrap();
        assert!(left() >= AHEAD + conn * AHEAD_CLOSE, "{conn}: {}", left());
    }
    for conn in 0..3000 {
        log.write(Event::Close(close(conn, "a.example.com:443"))).unwrap();
    }
    log.write(end()).unwrap();
    assert!(left() < 8192, "{}", left());
    let text = fs::read(&path).unwrap();
    assert!(text.ends_with(b"}\n") && !text.contains(&0));
}

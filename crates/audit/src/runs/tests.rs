use std::fs;

use exeat_record::{Event, Header, Log, RunStart, Sink};

use super::*;
use crate::testing::{Dir, deny, end, header};

/// Writes the record of a run, with its end or without.
fn record(dir: &Dir, run: RunId, ended: bool) -> PathBuf {
    let path = dir.join(&format!("{run}.jsonl"));
    let header = Header { run, stage: Some("nightly".into()), ..header() };
    let log = Log::start(Sink::create_file(&path).unwrap(), header).unwrap();
    log.write(Event::RunStart(RunStart { command: Some("curl".into()), ..RunStart::default() })).unwrap();
    log.write(Event::Decision(deny(1, "a.example:443"))).unwrap();
    if ended {
        log.write(end()).unwrap();
    }
    path
}

fn read(path: &Path) -> RunSummary {
    RunSummary::read(path.to_owned(), open(path))
}

#[test]
fn the_first_line_and_the_last_ones_describe_a_run() {
    let dir = Dir::new();
    let (whole, unfinished) = (RunId::new(), RunId::new());
    let summary = read(&record(&dir, whole, true));
    assert_eq!(summary.run, Some(whole));
    assert_eq!((summary.stage.as_deref(), summary.command.as_deref()), (Some("nightly"), Some("curl")));
    assert_eq!(summary.end.unwrap().denied, Some(1));
    let summary = read(&record(&dir, unfinished, false));
    assert_eq!((summary.run, summary.end.is_some()), (Some(unfinished), false));
}

#[test]
fn a_cut_record_is_unfinished_and_a_strange_file_unreadable() {
    let dir = Dir::new();
    let path = record(&dir, RunId::new(), true);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(read(&path).end.is_none());
    fs::write(&path, vec![b'x'; 100_000]).unwrap();
    assert!(read(&path).end.is_none());
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(read(&path).problem.is_some());
}

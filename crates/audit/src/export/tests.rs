use std::io::Cursor;

use super::*;
use crate::testing::{Dir, HOSTILE, allow, close, deny, end, is_plain, log};
use crate::{Event, RunStart};

fn record() -> Vec<u8> {
    let dir = Dir::new();
    let path = dir.join("run.jsonl");
    let log = log(&path);
    let mut hostile = deny(2, "stats.example.net:443");
    hostile.target = None;
    hostile.host_raw = Some(HOSTILE.into());
    hostile.error = Some(HOSTILE.into());
    for event in [
        Event::RunStart(RunStart::default()),
        Event::Decision(allow(1, "api.example.com:443")),
        Event::Decision(hostile),
        Event::Close(close(1, "api.example.com:443")),
        end(),
    ] {
        log.write(event).unwrap();
    }
    std::fs::read(path).unwrap()
}

fn exported(format: Format, bytes: &[u8]) -> (Exported, Vec<u8>) {
    let mut out = Vec::new();
    let mut reader = Reader::new(Cursor::new(bytes));
    let done = export(&mut reader, &Filter::default(), &mut *format.exporter(), &mut out, false).unwrap();
    (done, out)
}

#[test]
fn lines_stay_what_they_are() {
    let bytes = record();
    let (done, out) = exported(Format::Jsonl, &bytes);
    assert_eq!(done, Exported { written: 5, passed_over: 0 });
    assert_eq!(out, bytes);
}

#[test]
fn what_no_schema_has_a_place_for_is_counted() {
    let (done, out) = exported(Format::Ocsf(ocsf::Version::V1_3), &record());
    assert_eq!(done, Exported { written: 3, passed_over: 2 });
    assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 3);
}

/// Whoever wrote the file, a terminal that prints the export sees letters.
#[test]
fn a_hostile_record_exports_as_printable_ascii() {
    let text = serde_json::to_string(HOSTILE).unwrap();
    let line = format!(
        r#"{{"schema":"egress/1","seq":0,"ts":"2026-11-21T10:20:32.123456Z","mono_us":1,"event":"decision","run":{text},"stage":{text},"via":{text},"verdict":{text},"reason":{text},"host":{text},"rule":{text},"policy_sha256":{text},"error":{text}}}"#
    );
    for version in ocsf::Version::ALL {
        let (done, out) = exported(Format::Ocsf(version), line.as_bytes());
        assert_eq!(done.written, 1);
        assert!(is_plain(&out), "{}", String::from_utf8_lossy(&out));
    }
}

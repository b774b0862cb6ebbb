use std::io::Cursor;

use exeat_record::{Event, RunStart};
use serde_json::{Value, json};

use super::*;
use crate::testing::{Dir, HOSTILE, allow, close, deny, end, is_plain, log};

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
fn jsonl_exports_the_lines_unchanged() {
    let bytes = record();
    let (done, out) = exported(Format::Jsonl, &bytes);
    assert_eq!(done, Exported { written: 5, passed_over: 0 });
    assert_eq!(out, bytes);
}

#[test]
fn counts_lines_that_no_schema_has_a_place_for() {
    let mut bytes = record();
    // A policy, and a checkpoint that is not the last one.
    for event in ["policy", "checkpoint"] {
        let line = format!(
            r#"{{"schema":"egress/1","seq":0,"ts":"2026-11-21T10:20:32Z","mono_us":1,"event":"{event}","run":"R"}}"#
        );
        bytes.extend(line.as_bytes());
        bytes.push(b'\n');
    }
    for format in [Format::Ocsf(ocsf::Version::V1_3), Format::Ecs] {
        let (done, out) = exported(format, &bytes);
        assert_eq!(done, Exported { written: 5, passed_over: 2 });
        assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 5);
    }
}

/// Returns a format's events for the lines of one run.
fn events(format: Format, lines: &[Value]) -> Vec<Value> {
    let mut text = String::new();
    for (seq, fields) in lines.iter().enumerate() {
        let mut line = json!({"schema": "egress/1", "seq": seq, "ts": "2026-11-21T10:20:32.5Z", "mono_us": 3_000_000, "run": "R"});
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        text.push_str(&format!("{line}\n"));
    }
    let (_, out) = exported(format, text.as_bytes());
    String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the lines of a connection from its decision to its end.
fn connection() -> Vec<Value> {
    vec![
        json!({"event": "run_start", "machine": "build-7.example", "no": 7, "ledger": "1a-2b", "ledger_prev": "cd"}),
        json!({"event": "decision", "conn": 1, "via": "connect", "host": "a.example", "port": 443, "verdict": "allow",
            "reason": "rule", "rule": "*.example", "rule_src": "p.toml:3", "approved_by": "ada", "exe": "/usr/bin/curl",
            "pid": 7, "policy_sha256": "ab", "mode": "enforce"}),
        json!({"event": "decision", "conn": 2, "via": "connect", "host": "b.example", "port": 443, "verdict": "allow",
            "reason": "rule"}),
        json!({"event": "progress", "conn": 1, "host": "a.example", "port": 443, "bytes_up": 5, "bytes_down": 6}),
        json!({"event": "close", "conn": 1, "host": "a.example", "port": 443, "ip": "192.0.2.7", "dur_us": 1_500_000,
            "bytes_up": 7, "bytes_down": 9, "ended_by": "client"}),
        json!({"event": "run_end", "cause": "exit", "exit": 0, "allowed": 2}),
        json!({"event": "checkpoint", "n": 6, "root": "ef", "key_id": "1a"}),
    ]
}

/// Bytes by rule, approver and program can be added up without a join.
#[test]
fn l17_the_end_of_a_connection_has_its_rule_and_its_program() {
    for version in ocsf::Version::ALL {
        let close = &events(Format::Ocsf(version), &connection())[4];
        assert_eq!(close["traffic"]["bytes_out"], 7);
        assert_eq!((&close["disposition_id"], &close["action_id"]), (&json!(1), &json!(1)));
        assert_eq!(close["firewall_rule"], json!({"name": "*.example", "uid": "p.toml:3"}));
        assert_eq!(close["unmapped"]["approved_by"], "ada");
        assert_eq!(close["actor"]["process"]["file"]["path"], "/usr/bin/curl");
        assert_eq!(close["connection_info"]["uid"], "R:1");
        assert_eq!(close["src_endpoint"]["hostname"], "build-7.example");
        assert_eq!(close["status_code"], "client");
    }
    let close = &events(Format::Ecs, &connection())[4];
    assert_eq!((&close["source"]["bytes"], &close["destination"]["bytes"]), (&json!(7), &json!(9)));
    assert_eq!((&close["rule"]["name"], &close["rule"]["id"]), (&json!("*.example"), &json!("p.toml:3")));
    assert_eq!(close["exeat"]["approved_by"], "ada");
    assert_eq!((&close["process"]["name"], &close["process"]["pid"]), (&json!("curl"), &json!(7)));
    assert_eq!(
        (&close["event"]["duration"], &close["event"]["start"]),
        (&json!(1_500_000_000), &json!("2026-11-21T10:20:31.000000Z"))
    );
    assert_eq!(close["destination"]["ip"], "192.0.2.7");
}

/// The second connection has no end, so its bytes are not known, and its progress is not in any sum.
#[test]
fn l17_bytes_that_are_not_known_are_absent() {
    for version in ocsf::Version::ALL {
        let events = events(Format::Ocsf(version), &connection());
        let with_bytes: Vec<_> = events.iter().filter(|event| event.get("traffic").is_some()).collect();
        assert_eq!(with_bytes.len(), 1);
        assert_eq!(
            (&events[3]["type_uid"], &events[3]["unmapped"]["bytes_up"]),
            (&json!(400_106), &json!(5))
        );
    }
    let events = events(Format::Ecs, &connection());
    assert_eq!(events.iter().filter(|event| event.pointer("/source/bytes").is_some()).count(), 1);
    assert_eq!(events[3]["exeat"]["bytes_up_so_far"], 5);
    assert_eq!(events[3]["event"]["action"], "connection-progress");
}

/// A SIEM learns that a run began, its number, how it ended, and whether its record is signed.
#[test]
fn l17_a_run_has_events_for_its_start_its_end_and_its_signature() {
    for version in ocsf::Version::ALL {
        let all = events(Format::Ocsf(version), &connection());
        let types: Vec<_> = [0, 5, 6].map(|at: usize| all[at]["type_uid"].clone()).to_vec();
        assert_eq!(types, [600_203, 600_204, 600_299]);
        assert_eq!(
            (&all[0]["unmapped"]["no"], &all[0]["unmapped"]["ledger_prev"]),
            (&json!(7), &json!("cd"))
        );
        assert_eq!((&all[5]["duration"], &all[5]["status_id"]), (&json!(3000), &json!(1)));
        assert_eq!((&all[6]["unmapped"]["root"], &all[6]["unmapped"]["n"]), (&json!("ef"), &json!(6)));
        assert_eq!(events(Format::Ocsf(version), &connection()[..6]).len(), 6);
    }
    let all = events(Format::Ecs, &connection());
    let actions: Vec<_> = [0, 5, 6].map(|at: usize| all[at]["event"]["action"].clone()).to_vec();
    assert_eq!(actions, ["run-started", "run-ended", "record-signed"]);
    assert_eq!((&all[0]["exeat"]["no"], &all[6]["exeat"]["root"]), (&json!(7), &json!("ef")));
}

/// A terminal that prints an export of a hostile record gets only printable characters.
#[test]
fn a_hostile_record_exports_as_printable_ascii() {
    let text = serde_json::to_string(HOSTILE).unwrap();
    let line = format!(
        r#"{{"schema":"egress/1","seq":0,"ts":"2026-11-21T10:20:32.123456Z","mono_us":1,"event":"decision","run":{text},"stage":{text},"via":{text},"verdict":{text},"reason":{text},"host":{text},"rule":{text},"policy_sha256":{text},"error":{text}}}"#
    );
    for format in ocsf::Version::ALL.map(Format::Ocsf).into_iter().chain([Format::Ecs]) {
        let (done, out) = exported(format, line.as_bytes());
        assert_eq!(done.written, 1);
        assert!(is_plain(&out), "{}", String::from_utf8_lossy(&out));
    }
}

//! Checks that a signed record that was edited is never reported as whole.
//!
//! The input is a list of edits: a position (three bytes), an operation (one), and its operands (two).

use exeat_audit::verify::{Standing, verify};
use exeat_record::VerifyingKey;

/// A real run's record; its private key no longer exists.
const RECORD: &[u8] = include_bytes!("record.jsonl");
const KEY: &str = include_str!("record.pub");

pub fn check(data: &[u8]) {
    let keys = VerifyingKey::parse_all(KEY).unwrap();
    let mut record = RECORD.to_vec();
    for edit in data.chunks_exact(6).take(16) {
        let at = usize::from(edit[0]) << 16 | usize::from(edit[1]) << 8 | usize::from(edit[2]);
        let at = at % (record.len() + 1);
        let (from, to) = (at, (at + usize::from(edit[4])).min(record.len()));
        let lines: Vec<&[u8]> = record.split_inclusive(|byte| *byte == b'\n').collect();
        let line = usize::from(edit[4]) % lines.len().max(1);
        let other = usize::from(edit[5]) % lines.len().max(1);
        match edit[3] % 7 {
            0 if at < record.len() => record[at] = edit[4],
            1 => record.insert(at, edit[4]),
            2 => drop(record.drain(from..to)),
            3 => record.truncate(at),
            4 if !lines.is_empty() => {
                let mut lines = lines.clone();
                lines.swap(line, other);
                record = lines.concat();
            }
            5 if !lines.is_empty() && lines.len() < 64 => {
                let mut lines = lines.clone();
                lines.insert(line, lines[other]);
                record = lines.concat();
            }
            6 if !lines.is_empty() => {
                let mut lines = lines.clone();
                lines.remove(line);
                record = lines.concat();
            }
            _ => {}
        }
    }
    let report = verify(&record[..], None, &keys).unwrap();
    assert_eq!(report.standing() == Standing::Whole, record == RECORD, "{report:#?}");
    assert!(report.covered <= report.lines, "{report:#?}");
}

//! Reads the record of a run, and checks its promises: every line complete, in order, chained.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Returns the SHA-256 of some bytes in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The record of one run.
#[derive(Debug, Clone)]
pub struct AuditLog {
    lines: Vec<String>,
    records: Vec<Value>,
}

impl AuditLog {
    /// Reads a file; every line has to be one JSON object of printable ASCII.
    pub fn read(path: &Path) -> Self {
        let text = fs::read(path).unwrap_or_else(|error| panic!("the record {}: {error}", path.display()));
        Self::parse(&text)
    }

    /// Reads a record from memory, for `--audit fd:N`.
    pub fn parse(text: &[u8]) -> Self {
        assert!(
            text.iter().all(|byte| matches!(byte, b'\n' | 0x20..=0x7e)),
            "a raw control byte in the record"
        );
        let text = String::from_utf8(text.to_vec()).expect("ASCII");
        let lines: Vec<String> = text.lines().map(str::to_string).collect();
        let records = lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in record {line}")))
            .collect();
        Self { lines, records }
    }

    /// Returns the records of one event.
    pub fn events(&self, event: &str) -> Vec<&Value> {
        self.records.iter().filter(|record| record["event"] == event).collect()
    }

    /// Returns all records.
    pub fn records(&self) -> &[Value] {
        &self.records
    }

    /// Returns the decisions about one host.
    pub fn decisions(&self, host: &str) -> Vec<&Value> {
        self.events("decision").into_iter().filter(|record| record["host"] == host).collect()
    }

    /// Returns the refused questions for one name.
    pub fn questions(&self, host: &str) -> Vec<&Value> {
        self.events("dns").into_iter().filter(|record| record["host"] == host).collect()
    }

    /// Returns the only decision about a host.
    pub fn decision(&self, host: &str) -> &Value {
        let decisions = self.decisions(host);
        assert_eq!(decisions.len(), 1, "one decision about {host} in {:#?}", self.records);
        decisions[0]
    }

    /// Returns the `close` that belongs to a decision.
    pub fn close_of(&self, decision: &Value) -> &Value {
        let closes = self.events("close");
        let close = closes.into_iter().find(|close| close["conn"] == decision["conn"]);
        close.unwrap_or_else(|| panic!("no close for {decision}"))
    }

    /// Checks what must be true of any finished record: gapless `seq`, an unbroken chain, start first, end last, and
    /// for each connection its decision before its close.
    pub fn sound(&self) -> &Self {
        assert!(!self.records.is_empty(), "an empty record");
        self.chained();
        self.counted();
        let first = &self.records[0];
        assert_eq!(first["event"], "run_start", "{first}");
        let [.., end, seal] = &self.records[..] else { panic!("no end in {:#?}", self.records) };
        assert_eq!(end["event"], "run_end", "{end}");
        assert_eq!(seal["event"], "checkpoint", "{seal}");
        assert_eq!(seal["n"], self.records.len() - 1, "{seal}");
        for (seq, record) in self.records.iter().enumerate() {
            assert_eq!(record["seq"], seq, "{record}");
            assert_eq!(record["schema"], "egress/1", "{record}");
            assert_eq!(record["run"], first["run"], "{record}");
            assert!(record["ts"].as_str().is_some_and(|ts| ts.ends_with('Z')), "{record}");
        }
        self.paired();
        self
    }

    /// Checks that `prev` is the SHA-256 of the line before with its line feed, so that no line can be removed or
    /// changed.
    fn chained(&self) {
        assert_eq!(self.records[0]["prev"], "0".repeat(64).as_str(), "the first line hangs on nothing");
        let pairs = self.lines.iter().zip(&self.records[1..]);
        for (line, record) in pairs {
            let digest = sha256_hex(format!("{line}\n").as_bytes());
            assert_eq!(record["prev"], digest.as_str(), "the chain breaks at {record}");
        }
    }

    fn counted(&self) {
        let ends = self.events("run_end");
        let Some(end) = ends.first() else { return };
        let verdicts = |verdict: &str| -> u64 {
            let all = self.events("decision").into_iter().chain(self.events("dns"));
            // An aggregated line has the number of its events.
            all.filter(|record| record["verdict"] == verdict)
                .map(|record| record["count"].as_u64().unwrap_or(1))
                .sum()
        };
        assert_eq!(end["allowed"], verdicts("allow"), "{end}");
        assert_eq!(end["denied"], verdicts("deny"), "{end}");
        assert_eq!(end["would_deny"], verdicts("would_deny"), "{end}");
        assert_eq!(end["dropped"].as_u64().unwrap_or(0), 0, "{end}");
    }

    fn paired(&self) {
        let mut open: HashMap<u64, bool> = HashMap::new();
        for record in &self.records {
            let conn = record["conn"].as_u64();
            match record["event"].as_str() {
                // Nobody accepted a direct attempt, so the record has no connection to close.
                Some("decision") if record["via"] == "direct" => assert_eq!(conn, None, "{record}"),
                // An aggregate of a flood of refusals.
                Some("decision") if conn.is_none() => {
                    assert!(record["verdict"] == "deny" || record["verdict"] == "error", "{record}");
                }
                Some("decision") => {
                    let conn = conn.unwrap_or_else(|| panic!("no conn in {record}"));
                    assert_ne!(open.get(&conn), Some(&true), "decided after its close: {record}");
                    open.insert(conn, false);
                }
                Some("close") => {
                    let conn = conn.unwrap_or_else(|| panic!("no conn in {record}"));
                    assert_eq!(open.insert(conn, true), Some(false), "closed twice or undecided: {record}");
                }
                _ => {}
            }
        }
        let left: Vec<_> = open.iter().filter(|(_, closed)| !**closed).collect();
        assert!(left.is_empty(), "connections without a close: {left:?}");
    }
}

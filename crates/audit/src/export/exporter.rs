//! Builds events from the lines of a run, in order, with what earlier lines say of later ones.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::IpAddr;

use exeat_record::ascii_json;
use serde_json::{Map, Value};

use crate::query::{LineKind, Record};

/// Turns lines of a record into another format.
///
/// It sees every line in the order of the file, because one line may describe others: the first one describes the run. The memory that
/// it needs must not grow with the record.
pub trait Exporter {
    /// Writes the output for a line, with its line feed; returns `false` if the format has no place for the line.
    ///
    /// `raw` is the line as in the file, without its line feed.
    ///
    /// # Errors
    ///
    /// Fails if the output cannot be written.
    fn line(&mut self, record: &Record, raw: &[u8], out: &mut dyn Write) -> io::Result<bool>;
}

/// The most open connections whose decision is kept.
const MAX_OPEN: usize = 4096;

/// Keeps what earlier lines of a run say of later ones: the run itself, and the decisions on open connections, so that one event has the
/// bytes, the rule and the program.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The run's first line; empty but for `run` if it was not read.
    pub(super) start: Record,
    has_ended: bool,
    open: BTreeMap<u64, Record>,
}

impl Run {
    /// Takes in a line. Adds to a `close` or `progress` what the decision on its connection says; returns `None` for a line that no schema
    /// has a place for.
    pub(super) fn take<'a>(&mut self, record: &'a Record) -> Option<Cow<'a, Record>> {
        if self.start.run != record.run {
            *self = Run { start: Record { run: record.run.clone(), ..Record::default() }, ..Run::default() };
        }
        match record.event {
            LineKind::RunStart => self.start = record.clone(),
            LineKind::RunEnd => self.has_ended = true,
            // Only the last checkpoint says that the whole record is signed.
            LineKind::Checkpoint if !self.has_ended => return None,
            LineKind::Policy | LineKind::Other(_) => return None,
            _ => {}
        }
        let Some(conn) = record.conn else { return Some(Cow::Borrowed(record)) };
        let decision = match record.event {
            LineKind::Decision => {
                // The second decision on a connection counts, but only the first says who asked.
                let first = self.open.remove(&conn);
                let (exe, pid, ppid) = match first {
                    Some(first) if record.pid.is_none() => (first.exe, first.pid, first.ppid),
                    _ => (record.exe.clone(), record.pid, record.ppid),
                };
                if self.open.len() >= MAX_OPEN {
                    self.open.pop_first();
                }
                self.open.insert(conn, Record { exe, pid, ppid, ..record.clone() });
                return Some(Cow::Borrowed(record));
            }
            LineKind::Progress => self.open.get(&conn).cloned(),
            LineKind::Close => self.open.remove(&conn),
            _ => None,
        };
        let Some(asked) = decision else { return Some(Cow::Borrowed(record)) };
        Some(Cow::Owned(Record {
            via: asked.via,
            verdict: asked.verdict,
            policy_sha256: asked.policy_sha256,
            mode: asked.mode,
            upstream: asked.upstream,
            rule: asked.rule,
            rule_src: asked.rule_src,
            risk: asked.risk,
            refused_by: asked.refused_by,
            why: asked.why,
            approved_by: asked.approved_by,
            expires: asked.expires,
            exe: asked.exe,
            pid: asked.pid,
            ppid: asked.ppid,
            ..record.clone()
        }))
    }

    /// Returns the origin's address, if it is known. If a connection was left to another proxy, `ip` is that proxy's, and a `close` does
    /// not say whether it was.
    pub(super) fn dialed(&self, record: &Record) -> Option<IpAddr> {
        let is_unknown = record.event == LineKind::Close && record.verdict.is_none();
        let left = record.upstream.is_some() || (is_unknown && self.start.upstream.is_some());
        record.ip.filter(|_| !left)
    }
}

/// A JSON object that is filled by dotted paths.
#[derive(Default)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn set(&mut self, path: &str, value: impl Into<Value>) -> &mut Fields {
        let mut parts = path.split('.');
        let last = parts.next_back().unwrap_or(path);
        let mut object = &mut self.0;
        for part in parts {
            let inner = object.entry(part).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = inner else { return self };
            object = inner;
        }
        object.insert(last.to_owned(), value.into());
        self
    }

    pub(super) fn maybe(&mut self, path: &str, value: Option<impl Into<Value>>) -> &mut Fields {
        match value {
            Some(value) => self.set(path, value),
            None => self,
        }
    }

    /// Copies those of the named fields that a line has to below `path`, under their own names.
    pub(super) fn copy(&mut self, path: &str, line: &Value, names: &[&str]) -> &mut Fields {
        for name in names {
            let value = match line.get(name) {
                None | Some(Value::Null) => continue,
                Some(Value::Array(all)) if all.is_empty() => continue,
                Some(Value::Number(number)) if number.as_i64().is_none() => i64::MAX.into(),
                Some(value) => value.clone(),
            };
            self.set(&format!("{path}.{name}"), value);
        }
        self
    }

    pub(super) fn get(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let first = self.0.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    }

    pub(super) fn into_value(self) -> Value {
        Value::Object(self.0)
    }
}

/// Clamps a number to the 63 bits of a `long` in other schemas.
pub(super) fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Writes one JSON value as a line of printable ASCII.
pub(super) fn write_event(event: Option<Value>, out: &mut dyn Write) -> io::Result<bool> {
    let Some(event) = event else { return Ok(false) };
    ascii_json(out, &event.to_string())?;
    out.write_all(b"\n").map(|()| true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A record that opens connections and never ends them does not take memory without bound.
    #[test]
    fn bounds_the_open_connections_that_are_kept() {
        let mut run = Run::default();
        let line = |conn: usize| {
            let line = json!({"schema": "egress/1", "seq": 0, "ts": "", "mono_us": 0, "run": "R", "event": "decision", "conn": conn});
            Record::parse(line.to_string().as_bytes()).unwrap()
        };
        for conn in 0..2 * MAX_OPEN {
            run.take(&line(conn));
        }
        assert_eq!(run.open.len(), MAX_OPEN);
    }
}

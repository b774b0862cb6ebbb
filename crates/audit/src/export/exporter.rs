//! Builds events: the lines of a run in order, what earlier lines say of later ones, and a JSON object that is filled in.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::IpAddr;

use exeat_record::ascii_json;
use serde_json::{Map, Value};

use crate::query::{Kind, Record};

/// Turns lines of a record into something else.
///
/// It sees every line, in the order of the file, since one may say what others need: the first one has what holds for
/// the run. What it keeps must not grow with the record.
pub trait Exporter {
    /// Writes what a line becomes, its line feed included; `false` where there is no place for it.
    ///
    /// `raw` is the line as it stands, without its line feed.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    fn line(&mut self, record: &Record, raw: &[u8], out: &mut dyn Write) -> io::Result<bool>;
}

/// Open connections of which the decision is kept.
const MAX_OPEN: usize = 4096;

/// What earlier lines of a run say of later ones: the run itself, and the decisions on open connections, so that bytes, rule and program
/// are in one event.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The run's first line; empty but for `run` where it was not read.
    pub(super) start: Record,
    has_ended: bool,
    open: BTreeMap<u64, Record>,
}

impl Run {
    /// Takes in a line. Returns a `close`, and a `progress`, with what the decision on its connection says, and `None` for a line that
    /// no schema has a place for.
    pub(super) fn take<'a>(&mut self, record: &'a Record) -> Option<Cow<'a, Record>> {
        if self.start.run != record.run {
            *self = Run { start: Record { run: record.run.clone(), ..Record::default() }, ..Run::default() };
        }
        match record.event {
            Kind::RunStart => self.start = record.clone(),
            Kind::RunEnd => self.has_ended = true,
            // Only the last one says that all is signed.
            Kind::Checkpoint if !self.has_ended => return None,
            Kind::Policy | Kind::Other(_) => return None,
            _ => {}
        }
        let Some(conn) = record.conn else { return Some(Cow::Borrowed(record)) };
        let decision = match record.event {
            Kind::Decision => {
                // Of two the last one counts; who asked is in the first.
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
            Kind::Progress => self.open.get(&conn).cloned(),
            Kind::Close => self.open.remove(&conn),
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

    /// Returns the origin's address, if it is known: of a connection that is left to another proxy, `ip` is that proxy's, and
    /// a `close` does not say whether it was one of those.
    pub(super) fn dialed(&self, record: &Record) -> Option<IpAddr> {
        let is_unknown = record.event == Kind::Close && record.verdict.is_none();
        let left = record.upstream.is_some() || (is_unknown && self.start.upstream.is_some());
        record.ip.filter(|_| !left)
    }
}

/// A JSON object that is filled in by paths with dots.
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

    /// Copies fields of a line below `path`: those that it has, each under its own name.
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

/// Clamps a number to the 63 bits that `long` has in other schemas.
pub(super) fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Writes one JSON value as a line of printable ASCII.
pub(super) fn json_line(value: &Value, out: &mut dyn Write) -> io::Result<()> {
    ascii_json(out, &value.to_string())?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A record that opens connections and ends none takes no memory for them.
    #[test]
    fn what_is_kept_of_open_connections_is_bounded() {
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

//! What every other schema needs: the lines in order, and the decision on the connection of a line.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use exeat_record::ascii_json;
use serde_json::Value;

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

/// What was decided of the connections that are open, so that bytes, rule and program are in one event.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    run: String,
    open: BTreeMap<u64, Record>,
}

impl Decisions {
    /// Takes in a line. Returns a `close`, and a `progress`, with what the decision on its connection says.
    pub(super) fn complete<'a>(&mut self, record: &'a Record) -> Cow<'a, Record> {
        if self.run != record.run {
            *self = Decisions { run: record.run.clone(), open: BTreeMap::new() };
        }
        let Some(conn) = record.conn else { return Cow::Borrowed(record) };
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
                return Cow::Borrowed(record);
            }
            Kind::Progress => self.open.get(&conn).cloned(),
            Kind::Close => self.open.remove(&conn),
            _ => None,
        };
        let Some(asked) = decision else { return Cow::Borrowed(record) };
        Cow::Owned(Record {
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
        })
    }
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
        let mut decisions = Decisions::default();
        let line = |conn: usize| {
            let line = json!({"schema": "egress/1", "seq": 0, "ts": "", "mono_us": 0, "run": "R", "event": "decision", "conn": conn});
            Record::parse(line.to_string().as_bytes()).unwrap()
        };
        for conn in 0..2 * MAX_OPEN {
            decisions.complete(&line(conn));
        }
        assert_eq!(decisions.open.len(), MAX_OPEN);
    }
}

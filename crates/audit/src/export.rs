//! The record for other tools: the same lines, in the words of somebody else's schema.
//!
//! Does not judge, repair or add up. What is exported is what a line says; a line that the other schema has no place for
//! is passed over and counted. The record stays the evidence: chain and signatures do not survive a change of words.
//!
//! Another schema is one file beside `ocsf.rs` and `ecs.rs` with its own [`Exporter`], and one more [`Format`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use exeat_record::ascii_json;
use serde_json::Value;

use crate::query::{Filter, Kind, Reader, Record};

pub mod ecs;
pub mod ocsf;

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The lines of the record as they stand.
    Jsonl,
    /// Events of the Open Cybersecurity Schema Framework, one JSON object a line.
    Ocsf(ocsf::Version),
    /// Events of the Elastic Common Schema, one JSON object a line.
    Ecs,
}

impl Format {
    /// Makes what writes it. One exporter takes any number of records, one after the other.
    pub fn exporter(self) -> Box<dyn Exporter> {
        match self {
            Format::Jsonl => Box::new(Jsonl),
            Format::Ocsf(version) => Box::new(ocsf::Ocsf::new(version)),
            Format::Ecs => Box::new(ecs::Ecs::default()),
        }
    }
}

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

/// How much was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exported {
    /// Lines that were written.
    pub written: u64,
    /// Lines of the record that the schema has no place for.
    pub passed_over: u64,
}

/// Exports what is left of a record, of the time that is asked for; `live` hands each line on before the next one is read. What is wrong with it is in [`Reader::flaws`] afterwards.
///
/// # Errors
///
/// Those of reading the record and of the writer.
pub fn export<R: BufRead>(
    reader: &mut Reader<R>,
    time: &Filter,
    exporter: &mut dyn Exporter,
    out: &mut dyn Write,
    live: bool,
) -> io::Result<Exported> {
    let mut exported = Exported::default();
    while let Some(record) = reader.next() {
        let record = record?;
        if !time.covers(&record) {
            // Later lines may need what the first one says of the run.
            if record.event == Kind::RunStart {
                exporter.line(&record, reader.raw(), &mut io::sink())?;
            }
        } else if exporter.line(&record, reader.raw(), out)? {
            exported.written += 1;
            if live {
                out.flush()?;
            }
        } else {
            exported.passed_over += 1;
        }
    }
    Ok(exported)
}

/// Open connections of which the decision is kept.
const MAX_OPEN: usize = 4096;

/// What was decided of the connections that are open, so that bytes, rule and program are in one event.
#[derive(Debug, Default)]
struct Decisions {
    run: String,
    open: BTreeMap<u64, Record>,
}

impl Decisions {
    /// Takes in a line. Returns a `close`, and a `progress`, with what the decision on its connection says.
    fn complete<'a>(&mut self, record: &'a Record) -> Cow<'a, Record> {
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

/// The lines themselves.
struct Jsonl;

impl Exporter for Jsonl {
    fn line(&mut self, _: &Record, raw: &[u8], out: &mut dyn Write) -> io::Result<bool> {
        out.write_all(raw)?;
        out.write_all(b"\n")?;
        Ok(true)
    }
}

/// Writes one JSON value as a line of printable ASCII.
fn json_line(value: &Value, out: &mut dyn Write) -> io::Result<()> {
    ascii_json(out, &value.to_string())?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests;

//! The record for other tools: the same lines, in the words of somebody else's schema.
//!
//! Does not judge, repair or add up. What is exported is what a line says; a line that the other schema has no place for
//! is passed over and counted. The record stays the evidence: chain and signatures do not survive a change of words.
//!
//! Another schema is one file beside `ocsf.rs` and `ecs.rs` with its own [`Exporter`], and one more [`Format`].

use std::io::{self, BufRead, Write};

use crate::query::{Filter, Kind, Reader, Record};

pub mod ecs;
mod exporter;
pub mod ocsf;

pub use exporter::Exporter;

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

/// The lines themselves.
struct Jsonl;

impl Exporter for Jsonl {
    fn line(&mut self, _: &Record, raw: &[u8], out: &mut dyn Write) -> io::Result<bool> {
        out.write_all(raw)?;
        out.write_all(b"\n")?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;

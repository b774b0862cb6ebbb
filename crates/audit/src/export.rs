//! Exports a record for other tools: the same lines in another schema.
//!
//! Does not judge, repair or add up. A line that the other schema has no place for is skipped and counted. The record stays the
//! evidence: its chain and signatures do not survive the translation.
//!
//! To add a schema, put a file beside `ocsf.rs` and `ecs.rs` with its own [`Exporter`], and add a [`Format`].

use std::io::{self, BufRead, Write};

use crate::query::{Filter, LineKind, Reader, Record};

pub mod ecs;
mod exporter;
pub mod ocsf;

pub use exporter::Exporter;

/// The format to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The lines of the record, unchanged.
    Jsonl,
    /// Events of the Open Cybersecurity Schema Framework, one JSON object a line.
    Ocsf(ocsf::Version),
    /// Events of the Elastic Common Schema, one JSON object a line.
    Ecs,
}

impl Format {
    /// Returns the exporter for this format. It takes any number of records, one after the other.
    pub fn exporter(self) -> Box<dyn Exporter> {
        match self {
            Format::Jsonl => Box::new(Jsonl),
            Format::Ocsf(version) => Box::new(ocsf::Ocsf::new(version)),
            Format::Ecs => Box::new(ecs::Ecs::default()),
        }
    }
}

/// Counts of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exported {
    /// Lines that were written.
    pub written: u64,
    /// Lines of the record that the schema has no place for.
    pub passed_over: u64,
}

/// Exports the rest of a record within the requested time; `live` flushes each line before the next one is read. [`Reader::flaws`]
/// then has what is wrong with the record.
///
/// # Errors
///
/// Fails if the record cannot be read, or the output not written.
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
            if record.event == LineKind::RunStart {
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

//! Describes a run by the first and last lines of its record, without reading what is between them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use exeat_record::place::run_in_name;
use exeat_record::{RunId, is_being_written};
use nix::fcntl::OFlag;

use crate::Moment;
use crate::query::{LineKind, Record};

/// The number of bytes at the end of a record in which its last line is looked for.
const TAIL: u64 = 16 * 1024;

/// A run according to the first and last lines of its record. Every string is as in the record.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunSummary {
    /// The run that the file is named after; otherwise the run of the first line.
    pub run: Option<RunId>,
    /// The run of the first line, which is the same in every copy of the record.
    pub holds: Option<String>,
    /// Its record.
    pub path: PathBuf,
    /// When it started, RFC 3339.
    pub started: Option<String>,
    /// When its last whole line was written.
    pub last: Option<Moment>,
    /// The name of the stage.
    pub stage: Option<String>,
    /// The first word of its command.
    pub command: Option<String>,
    /// Who started it.
    pub user: Option<String>,
    /// The machine on which it ran.
    pub machine: Option<String>,
    /// The directory in which it was started.
    pub dir: Option<String>,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// Its number in the ledger.
    pub no: Option<u64>,
    /// Whether it could take no number.
    pub is_unnumbered: bool,
    /// The last record, if it is a `run_end`; otherwise the run is unfinished.
    pub end: Option<Box<Record>>,
    /// Whether its record has no whole line, because the run was killed before it started.
    pub is_bare: bool,
    /// Whether neither its first line nor its end is that of a record.
    pub is_strange: bool,
    /// Whether it has no end, and its writer still runs.
    pub running: bool,
    /// The reason why the record could not be read, if it could not.
    pub problem: Option<String>,
}

impl RunSummary {
    /// Reads the first and last lines of a record.
    pub fn read(path: PathBuf, file: io::Result<File>) -> RunSummary {
        let mut summary = RunSummary { path, ..RunSummary::default() };
        if let Err(error) = file.and_then(|file| summary.fill(file)) {
            summary.problem = Some(error.to_string());
        }
        summary.running = summary.end.is_none() && is_being_written(&summary.path).unwrap_or(false);
        if let Some(run) = run_in_name(&summary.path) {
            summary.run = Some(run);
        }
        summary
    }

    /// Uses the first line of a record that cannot be read twice.
    pub fn from_first_line(line: &[u8]) -> RunSummary {
        let mut summary = RunSummary::default();
        summary.first_line(line);
        summary
    }

    /// Whether it ended with an exit code other than 0.
    pub fn failed(&self) -> bool {
        !self.running && self.end.as_ref().is_none_or(|end| end.exit != Some(0))
    }

    fn fill(&mut self, mut file: File) -> io::Result<()> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut first = Vec::new();
        BufReader::new((&file).take(TAIL)).read_until(b'\n', &mut first)?;
        self.first_line(&first);
        self.is_bare = !first.ends_with(b"\n") && meta.len() < TAIL;
        let tail = Tail::read(&mut file, meta.len())?;
        self.last = tail.records.last().and_then(|last| Moment::parse(&last.ts));
        self.end = tail.end().map(Box::new);
        // Another record may begin with a damaged line, and its last lines say more than this would.
        self.is_strange = self.holds.is_none() && self.end.is_none() && meta.len() > 0 && !self.is_bare;
        Ok(())
    }

    fn first_line(&mut self, line: &[u8]) {
        let Ok(record) = Record::parse(line.trim_ascii_end()) else { return };
        self.run = record.run.parse().ok();
        self.holds = Some(record.run);
        self.started = Some(record.ts);
        self.stage = record.stage;
        self.command = record.command;
        (self.user, self.machine, self.dir) = (record.user, record.machine, record.dir);
        self.no = record.no;
        self.is_unnumbered = record.ledger.as_deref() == Some("unnumbered");
        self.labels = record.labels;
    }
}

/// Opens a record for reading. A named pipe in its place does not block.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
}

/// Whether the run of a record has ended in it.
pub(crate) fn has_ended(record: &Path) -> io::Result<bool> {
    let mut file = open(record)?;
    let len = file.metadata()?.len();
    Ok(Tail::read(&mut file, len)?.end().is_some())
}

/// The last whole lines of a record.
struct Tail {
    /// The records among the last two lines, in order.
    records: Vec<Record>,
    /// Whether the file ends with a whole record.
    is_whole: bool,
}

impl Tail {
    fn read(file: &mut File, len: u64) -> io::Result<Tail> {
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
        let mut tail = Vec::new();
        file.take(TAIL).read_to_end(&mut tail)?;
        let mut lines: Vec<&[u8]> = tail.rsplit(|&byte| byte == b'\n').take(3).collect();
        // Text after the last line feed is a line that was cut off.
        let cut = !lines.remove(0).is_empty();
        let mut records: Vec<_> = lines.iter().map(|line| Record::parse(line)).collect();
        let is_whole = !cut && records.first().is_some_and(Result::is_ok);
        records.reverse();
        Ok(Tail { records: records.into_iter().flatten().collect(), is_whole })
    }

    /// Returns the end of the run: the last line, or the one before its checkpoint.
    fn end(&self) -> Option<Record> {
        let end = match &self.records[..] {
            [.., end] if end.event == LineKind::RunEnd => end,
            [end, seal] if end.event == LineKind::RunEnd && seal.event == LineKind::Checkpoint => end,
            _ => return None,
        };
        self.is_whole.then(|| end.clone())
    }
}

#[cfg(test)]
mod tests;

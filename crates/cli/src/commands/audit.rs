//! `exeat audit`: finds records. `exeat-audit` reads them and formats their content.

pub(crate) mod diff;
pub(crate) mod export;
mod follow;
pub(crate) mod key;
pub(crate) mod learn;
pub(crate) mod ledger;
pub(crate) mod list;
pub(crate) mod lock;
mod origins;
pub(crate) mod prune;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod select;
pub(crate) mod show;
pub(crate) mod summary;
pub(crate) mod verify;

use std::fmt;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use exeat_audit::query::{Filter, Flaw, LineKind, Reader, Record};
use exeat_audit::summary::{Reading, Summary};
use exeat_compose::Machine;
use exeat_files::walk::LinkRule;
use exeat_record::RunId;
use exeat_record::place::{self, RecordDir};
use exeat_runner::state_place;
use select::{Notes, select};

use crate::args::audit::Records;
use crate::exit::Exit;
use crate::failure::Failure;

/// A record to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

impl Source {
    /// Opens the record.
    pub(crate) fn open(&self) -> Result<Reader<Box<dyn BufRead>>, Failure> {
        let reader = self.input().map(Reader::new)?;
        Ok(match self.path().map(exeat_record::is_being_written) {
            Some(Ok(is_running)) => reader.with_writer(is_running),
            _ => reader,
        })
    }

    /// Opens the record's bytes.
    pub(crate) fn input(&self) -> Result<Box<dyn BufRead>, Failure> {
        Ok(match self {
            Self::File(path) => {
                let file =
                    LinkRule::from_env().walk(path).map_err(io::Error::from).and_then(|end| end.read());
                let file = file.map_err(|error| self.unreadable(error))?;
                Box::new(BufReader::with_capacity(select::ROOM, file))
            }
            Self::Stdin => Box::new(BufReader::with_capacity(select::ROOM, io::stdin())),
        })
    }

    /// Returns the command that says where the record is damaged.
    pub(crate) fn verify_command(&self) -> String {
        let name = self.path().map_or_else(|| "-".to_owned(), |path| path.display().to_string());
        format!("exeat audit verify {}", exeat_policy::shell_word(&name))
    }

    /// Returns the path, if the record is a file.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Stdin => None,
        }
    }

    /// Creates the failure for a record that cannot be read.
    pub(crate) fn unreadable(&self, error: io::Error) -> Failure {
        Failure::input(format!("cannot read {self}")).because(error)
    }

    /// Writes the record's name on a separate line, above its content.
    pub(crate) fn headline(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}:", exeat_policy::printable_ascii(&self.to_string()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "`{}`", path.display()),
            Self::Stdin => f.write_str("standard input"),
        }
    }
}

/// Whether a record has a flaw other than a missing end. The record of a run that still goes on has no end yet.
pub(crate) fn is_damaged<R: BufRead>(reader: &Reader<R>) -> bool {
    reader.more_flaws() > 0 || reader.flaws().iter().any(|flaw| !matches!(flaw, Flaw::Unfinished { .. }))
}

/// Notes that signatures were not checked: whoever changes a record can rebuild its chain.
pub(crate) fn note_signature() {
    crate::stdio::line("note", "signatures are not checked here; `exeat audit verify` checks them");
}

/// Prints the flaws of a record as notes, for output formats that cannot contain them.
fn note_flaws<R: BufRead>(source: &Source, reader: &Reader<R>) {
    for flaw in reader.flaws() {
        crate::stdio::line("note", &format!("{source}: {flaw}"));
    }
}

/// Passes every line of the named records to `take`. Prints the flaws of each. Returns [`Exit::No`] for a damaged record, whose
/// readable lines were passed on as well.
pub(crate) fn each(
    records: &Records,
    mut take: impl FnMut(&Record) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    let selected = select(records)?;
    let time = select::filter(records);
    let mut damaged = selected.is_damaged();
    let mut flawed = Notes::default();
    for source in selected.sources() {
        let mut reader = source.open()?;
        for record in reader.by_ref() {
            let record = record.map_err(|error| source.unreadable(error))?;
            // The start and end of a run describe all its lines, so the time filter does not apply to them.
            if matches!(record.event, LineKind::RunStart | LineKind::RunEnd) || time.covers(&record) {
                take(&record)?;
            }
        }
        flawed.flaws(source, &reader);
        damaged |= is_damaged(&reader);
    }
    flawed.finish();
    Ok(if damaged { Exit::No } else { Exit::Yes })
}

/// Adds up all lines of the named records, for a policy or a lock.
pub(crate) fn summarize(records: &Records) -> Result<(Summary, Exit), Failure> {
    let no_room = |error| Failure::could("cannot add the records up").because(error);
    let mut summary = Summary::for_grants();
    let mut reading = Reading::default();
    let exit =
        each(records, |record| summary.take(&mut reading, record, &Filter::default()).map_err(no_room))?;
    summary.end_run(&mut reading).and_then(|_| summary.finish()).map_err(no_room)?;
    Ok((summary, exit))
}

/// Returns the directory of this user's records, found in the same way as by a run.
pub(crate) fn place_of(machine: &Machine) -> Result<RecordDir, Failure> {
    state_place(&machine.env).map_err(|error| match error {
        exeat_runner::Error::Place(error) => bad_place(error),
        error => error.into(),
    })
}

/// Returns the argument with which `exeat audit show` finds a record: in the default directory the run's short name if it is
/// unique and otherwise its whole name, and elsewhere the path.
pub(crate) fn name_of(record: &Path, place: Option<&RecordDir>) -> String {
    let run = record.file_stem().and_then(|stem| stem.to_str()?.parse::<RunId>().ok());
    let Some((run, place)) = run.zip(place).filter(|(run, place)| place.path_for(*run) == record) else {
        return record.display().to_string();
    };
    place.short_names().ok().and_then(|mut names| names.remove(&run)).unwrap_or_else(|| run.to_string())
}

fn bad_place(error: place::DirError) -> Failure {
    let hint = match &error {
        place::DirError::Empty { .. } => {
            Some("`exeat run` writes one for each run; a record elsewhere is named: its FILE or DIR")
        }
        place::DirError::NotFound { .. } => Some("exeat audit list"),
        _ => None,
    };
    let failure = Failure::input(error.to_string());
    let failure = match std::error::Error::source(&error) {
        Some(source) => failure.because(source.to_string()),
        None => failure,
    };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Stdout that remembers whether a write failed, to tell its errors from those of reading a record.
pub(crate) struct Out {
    inner: BufWriter<io::StdoutLock<'static>>,
    failed: bool,
    /// Whether each line is flushed at its end.
    by_line: bool,
}

/// The reason that the output stopped.
pub(crate) enum Stopped {
    /// The rest of the record could not be read.
    Reading(io::Error),
    /// Stdout could not be written.
    Writing(io::Error),
}

impl Out {
    pub(crate) fn new() -> Self {
        Self { inner: BufWriter::new(io::stdout().lock()), failed: false, by_line: false }
    }

    /// Creates an output that flushes each line, because somebody waits for it.
    pub(crate) fn by_line() -> Self {
        Self { by_line: true, ..Self::new() }
    }

    pub(crate) fn finish<T>(mut self, shown: io::Result<T>) -> Result<T, Stopped> {
        match shown {
            Err(error) if self.failed => Err(Stopped::Writing(error)),
            // What was read so far is worth having.
            Err(error) => self.inner.flush().map_err(Stopped::Writing).and(Err(Stopped::Reading(error))),
            Ok(shown) => self.inner.flush().map_err(Stopped::Writing).map(|()| shown),
        }
    }

    fn noting<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        self.failed |= done.is_err();
        done
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = match self.inner.write(bytes) {
            Ok(count) if self.by_line && bytes.get(..count).is_some_and(|it| it.ends_with(b"\n")) => {
                self.inner.flush().map(|()| count)
            }
            done => done,
        };
        self.noting(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.inner.flush();
        self.noting(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_named_as_short_as_it_can_be_found() {
        let home = std::env::temp_dir().join(format!("exeat-audit-name-{}", std::process::id()));
        let place = RecordDir::from_env(None, Some(home.as_os_str())).unwrap();
        std::fs::create_dir_all(place.dir()).unwrap();
        let keep = |run: &str| {
            let path = place.dir().join(format!("{run}.jsonl"));
            std::fs::write(&path, "").unwrap();
            path
        };
        let name = |path: &Path| name_of(path, Some(&place));
        let first = keep("01JD8Z3V5QABCDEFGHJKMNPQRS");
        assert_eq!(name(&first), "01JD8Z3V5Q");
        keep("01JD8Z3V5QZZZZZZZZZZZZZZZZ");
        assert_eq!(name(&first), "01JD8Z3V5QA", "two runs of one millisecond");
        assert_eq!(name(&keep("mine")), place.dir().join("mine.jsonl").display().to_string());
        let elsewhere = Path::new("/tmp/01JD8Z3V5QABCDEFGHJKMNPQRS.jsonl");
        assert_eq!(name(elsewhere), elsewhere.display().to_string());
        assert_eq!(name_of(&first, None), first.display().to_string());
        std::fs::remove_dir_all(home).unwrap();
    }
}

//! `exeat audit show --follow`: shows records as they grow. A signal ends the command, as for tail(1).

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::{self, BufRead};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use exeat_audit::follow::{Growing, follow};
use exeat_audit::query::{Filter, Reader};
use exeat_audit::runs::RunSummary;
use exeat_audit::select::Selection;
use exeat_audit::table::{self, Shared, Strand};
use exeat_record::place::RecordDir;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Out, Source, Stopped, bad_place, place_of, select};
use crate::args::audit::{Records, ShowArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Paint;

/// The longest delay between writing and showing a line.
const PAUSE: Duration = Duration::from_millis(100);

/// The maximal number of records open at one time. Others wait until one of these ends.
const MAX_OPEN: usize = 256;

/// The maximal number of lines of one record that are shown before it is the turn of the next one.
const TURN: usize = 1000;

/// The longest time in which two changes of a directory may have the same timestamp, because file systems have coarse clocks.
const TICK: Duration = Duration::from_secs(1);

/// Whether the arguments include runs that have not begun yet: those that flags select from the state directory.
pub(super) fn takes_later_runs(records: &Records) -> bool {
    records.runs.is_empty() && !records.last && (records.all || !select::is_empty(&records.selection))
}

/// Shows all running and new runs that the flags select, until a signal ends the command.
pub(super) fn all(args: &ShowArgs, filter: &Filter, paint: Paint) -> Result<Exit, Failure> {
    if args.records.selection.until.is_some() {
        return Err(Failure::input("--follow goes on until it is ended: --until has no place there"));
    }
    let selection = select::selection(&args.records.selection)?;
    let place = place_of(&crate::request::here()?)?;
    super::note_signature();
    let mut known = Known::default();
    let mut strands = Strands::new(args, filter, &selection, paint);
    let going_on = |path: &PathBuf| exeat_record::is_being_written(path).unwrap_or(false);
    let begun: Vec<PathBuf> = known.find_new(&place)?.into_iter().filter(going_on).collect();
    let plural = if begun.len() == 1 { " goes" } else { "s go" };
    crate::stdio::line("note", &format!("{} run{plural} on; those that begin follow", begun.len()));
    strands.waiting.extend(begun);
    loop {
        strands.turn(Some(&place))?;
        strands.waiting.extend(known.find_new(&place)?);
    }
}

/// Whether a file or directory has just changed.
fn is_fresh(path: &Path) -> bool {
    let changed = fs::metadata(path).and_then(|meta| meta.modified());
    changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < TICK))
}

/// The known records of a directory.
#[derive(Default)]
struct Known {
    paths: HashSet<PathBuf>,
    /// The modification time of the directory when it was last read.
    changed: Option<SystemTime>,
}

impl Known {
    /// Lists new records, the oldest first.
    fn find_new(&mut self, place: &RecordDir) -> Result<Vec<PathBuf>, Failure> {
        let changed = fs::metadata(place.dir()).and_then(|meta| meta.modified()).ok();
        if changed.is_some() && changed == self.changed && !is_fresh(place.dir()) {
            return Ok(Vec::new());
        }
        self.changed = changed;
        let mut paths = place.records().map_err(bad_place)?;
        let is_there: HashSet<&PathBuf> = paths.iter().collect();
        self.paths.retain(|path| is_there.contains(path));
        paths.retain(|path| self.paths.insert(path.clone()));
        paths.reverse();
        Ok(paths)
    }
}

/// The records that are shown together.
struct Strands<'a> {
    args: &'a ShowArgs,
    filter: &'a Filter,
    selection: &'a Selection,
    color: bool,
    headed: bool,
    open: Vec<Open>,
    /// The records that are not open yet.
    waiting: VecDeque<PathBuf>,
    /// Whether the user was told that some records wait.
    is_said: bool,
    is_damaged: bool,
}

/// An open record.
struct Open {
    source: Source,
    reader: Reader<Growing<Pause>>,
    strand: Strand,
    /// Whether its first line was read and is that of a selected run.
    is_selected: bool,
}

/// The action if there is nothing to read.
type Pause = fn() -> io::Result<()>;

/// The progress of reading a record.
enum Read {
    /// The record may have more lines.
    On,
    /// The record has ended, or the flags do not select it.
    Over,
}

impl<'a> Strands<'a> {
    fn new(args: &'a ShowArgs, filter: &'a Filter, selection: &'a Selection, paint: Paint) -> Self {
        Self {
            args,
            filter,
            selection,
            color: paint.is_on(),
            headed: false,
            open: Vec::new(),
            waiting: VecDeque::new(),
            is_said: false,
            is_damaged: false,
        }
    }

    /// Shows the new lines, and then waits for a moment.
    fn turn(&mut self, place: Option<&RecordDir>) -> Result<(), Failure> {
        while self.open.len() < MAX_OPEN
            && let Some(path) = self.waiting.pop_front()
        {
            self.add(path, place);
        }
        if !self.waiting.is_empty() && !std::mem::replace(&mut self.is_said, true) {
            crate::stdio::line(
                "note",
                &format!("{MAX_OPEN} runs are shown at one time: others wait for their end"),
            );
        }
        let mut out = Out::by_line();
        let mut is_busy = false;
        let mut at = 0;
        while let Some(open) = self.open.get_mut(at) {
            let mut shared = Shared { out: &mut out, color: self.color, headed: self.headed };
            let mut count = 0;
            let read = loop {
                if count == TURN {
                    is_busy = true;
                    break Ok(Read::On);
                }
                count += 1;
                match open.next(self.args.format.is_json(), self.filter, self.selection, &mut shared) {
                    Ok(None) => {}
                    Ok(Some(read)) => break Ok(read),
                    Err(error) => break Err(error),
                }
            };
            self.headed = shared.headed;
            match read {
                Ok(Read::On) => at += 1,
                Ok(Read::Over) => {
                    self.is_damaged |= open.is_selected && super::is_damaged(&open.reader);
                    let over = self.open.remove(at);
                    if let Some(path) =
                        over.source.path().filter(|path| over.reader.number() == 0 && is_fresh(path))
                    {
                        // The file was just created, and its writer does not hold the lock yet.
                        self.waiting.push_back(path.to_owned());
                    }
                }
                Err(error) => return Err(failed(out, &open.source, error)),
            }
        }
        out.finish(Ok(()))
            .map_err(|(Stopped::Reading(error) | Stopped::Writing(error))| Failure::Stdout(error))?;
        match is_busy {
            true => Ok(()),
            false => pause().map_err(Failure::Stdout),
        }
    }

    fn add(&mut self, path: PathBuf, place: Option<&RecordDir>) {
        let again: Pause = || Err(io::ErrorKind::WouldBlock.into());
        match follow(&path, again) {
            Ok(reader) => {
                let strand = Strand::new(&super::name_of(&path, place));
                self.open.push(Open { source: Source::File(path), reader, strand, is_selected: false });
            }
            // The record was pruned meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                crate::stdio::line("note", &format!("`{}` is passed over: {error}", path.display()));
            }
        }
    }
}

impl Open {
    /// Shows one more line. Returns `None` if there may be another one.
    fn next(
        &mut self,
        json: bool,
        filter: &Filter,
        selection: &Selection,
        shared: &mut Shared<'_>,
    ) -> io::Result<Option<Read>> {
        let record = match self.reader.next() {
            Some(Ok(record)) => record,
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Some(Read::On)),
            Some(Err(error)) => return Err(error),
            None if !self.is_selected => return Ok(Some(Read::Over)),
            None => {
                match json {
                    true => super::note_flaws(&self.source, &self.reader),
                    false => self.strand.finish(&self.reader, shared)?,
                }
                return Ok(Some(Read::Over));
            }
        };
        if !self.is_selected {
            // A run is also shown if it is unknown whether the flags select it.
            if !selection.passes(&RunSummary::from_first_line(self.reader.raw())) {
                return Ok(Some(Read::Over));
            }
            self.is_selected = true;
        }
        match json {
            true => table::show_line(&self.reader, &record, filter, shared.out)?,
            false => self.strand.show(&record, filter, shared)?,
        }
        Ok(None)
    }
}

/// Returns the failure that ends the command.
fn failed(out: Out, source: &Source, error: io::Error) -> Failure {
    match out.finish::<()>(Err(error)) {
        Err(Stopped::Reading(error)) => source.unreadable(error),
        Err(Stopped::Writing(error)) => Failure::Stdout(error),
        Ok(()) => Failure::input("nothing was read"),
    }
}

/// Shows several records until the last of their runs ends.
fn many(args: &ShowArgs, filter: &Filter, sources: &[&Source], paint: Paint) -> Result<Exit, Failure> {
    let place = place_of(&crate::request::here()?).ok();
    // The records are already selected.
    let selection = Selection::default();
    let mut strands = Strands::new(args, filter, &selection, paint);
    for source in sources {
        match source {
            Source::File(path) => strands.waiting.push_back(path.clone()),
            Source::Stdin => return Err(Failure::input("--follow takes standard input alone")),
        }
    }
    while !strands.open.is_empty() || !strands.waiting.is_empty() {
        strands.turn(place.as_ref())?;
    }
    super::note_signature();
    Ok(if strands.is_damaged { Exit::No } else { Exit::Yes })
}

/// Shows the named records until their runs end.
pub(super) fn run(
    args: &ShowArgs,
    filter: &Filter,
    sources: &[&Source],
    paint: Paint,
) -> Result<Exit, Failure> {
    match sources {
        [source @ Source::File(path)] => {
            let reader = follow(path, pause).map_err(|error| source.unreadable(error))?;
            show(args, filter, source, reader, paint)
        }
        // The writer of a pipe keeps it open to the end.
        [source @ Source::Stdin] => show(args, filter, source, Reader::new(io::stdin().lock()), paint),
        sources => many(args, filter, sources, paint),
    }
}

fn show(
    args: &ShowArgs,
    filter: &Filter,
    source: &Source,
    mut reader: Reader<impl BufRead>,
    paint: Paint,
) -> Result<Exit, Failure> {
    let mut out = Out::by_line();
    let shown = match args.format.is_json() {
        true => table::show_json(&mut reader, filter, &mut out),
        false => table::show_live(&mut reader, filter, &mut out, paint.is_on()),
    };
    out.finish(shown).map_err(|error| match error {
        // `pause` found that the reader of stdout has gone.
        Stopped::Reading(error) if error.kind() == io::ErrorKind::BrokenPipe => Failure::Stdout(error),
        Stopped::Reading(error) => source.unreadable(error),
        Stopped::Writing(error) => Failure::Stdout(error),
    })?;
    if args.format.is_json() {
        super::note_flaws(source, &reader);
    }
    super::note_signature();
    Ok(if super::is_damaged(&reader) { Exit::No } else { Exit::Yes })
}

/// Waits for more lines. Fails if the reader of stdout has gone, which no write would show while the record does not grow.
fn pause() -> io::Result<()> {
    let out = io::stdout();
    let mut polled = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let wait = PollTimeout::try_from(PAUSE).unwrap_or(PollTimeout::MAX);
    match poll(&mut polled, wait) {
        Ok(0) => {}
        Ok(_) if polled.iter().filter_map(PollFd::revents).any(|it| it.contains(PollFlags::POLLERR)) => {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // Sleep after any other event too, to avoid a busy loop.
        _ => thread::sleep(PAUSE),
    }
    Ok(())
}

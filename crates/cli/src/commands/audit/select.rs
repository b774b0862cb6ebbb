//! Selects the records that a command reads: the named ones, or those that its flags select.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use exeat_audit::query::{Filter, Reader};
use exeat_audit::runs::RunSummary;
use exeat_audit::select::Selection;
use exeat_files::walk::{LinkRule, clean};
use exeat_policy::file::PRESET_STAGE;
use exeat_policy::os_words;
use exeat_record::place::RecordDir;

use super::{Source, bad_place, place_of};
use crate::args::audit::{Records, SelectionArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;

/// The maximal number of records that one command reads.
const MAX_RECORDS: usize = 500_000;

/// The maximal depth of directories that are searched.
const MAX_DEPTH: usize = 16;

/// The maximal number of notes of one kind that are printed; further ones are counted.
const MAX_NOTES: usize = 5;

/// A record that was selected.
#[derive(Debug)]
pub(crate) struct SelectedRecord {
    /// The place of the record.
    pub(crate) source: Source,
    /// The facts of its first line and its last lines.
    pub(crate) run: RunSummary,
    /// The relation to an earlier record of the same run, which is read instead; `None` for the first record of a run.
    pub(crate) twin: Option<Twin>,
}

/// The relation of a record to an earlier one of the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twin {
    /// Both have the same bytes.
    Copy,
    /// They differ, from this line on.
    Differs(u64),
}

/// The records that a command reads.
#[derive(Debug, Default)]
pub(crate) struct Selected {
    /// The selected records, in reading order.
    pub(crate) found: Vec<SelectedRecord>,
    /// Paths that were named as records and are not regular files, with the reason. They are not read.
    pub(crate) strange: Vec<(PathBuf, String)>,
}

impl Selected {
    /// Returns the records to count: each run once.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        self.found.iter().filter(|found| found.twin.is_none()).map(|found| &found.source)
    }

    /// Whether two records of one run differ.
    pub(crate) fn has_differing(&self) -> bool {
        self.found.iter().any(|found| matches!(found.twin, Some(Twin::Differs(_))))
    }

    /// Whether the selection alone shows that something is wrong.
    pub(crate) fn is_damaged(&self) -> bool {
        self.has_differing() || !self.strange.is_empty()
    }

    /// Returns the exit code that the selection alone determines.
    pub(crate) fn exit(&self) -> Exit {
        if self.is_damaged() { Exit::No } else { Exit::Yes }
    }
}

/// The message if the flags select nothing.
pub(super) const NOTHING: &str = "no record is of the runs that the flags select";

/// Selects records. Fails if there are none.
pub(crate) fn select(records: &Records) -> Result<Selected, Failure> {
    let selected = select_some(records)?;
    match selected.found.is_empty() {
        true => Err(Failure::input(NOTHING).hint("exeat audit list")),
        false => Ok(selected),
    }
}

/// Selects records to show. If the flags select none, prints a note instead of failing, because nothing may have run in that time.
pub(crate) fn select_to_show(records: &Records) -> Result<Selected, Failure> {
    let selected = select_some(records)?;
    if selected.found.is_empty() {
        stdio::line("note", NOTHING);
    }
    Ok(selected)
}

/// Selects records. Fails if there are none, unless flags select them.
fn select_some(records: &Records) -> Result<Selected, Failure> {
    let one = records.runs.is_empty() && !records.all && is_empty(&records.selection);
    let selected = gather(records, records.last || one, false)?;
    if selected.found.is_empty() && is_empty(&records.selection) {
        return Err(bad_place(exeat_record::place::DirError::Empty { dir: own_place()?.dir().to_owned() }));
    }
    Ok(selected)
}

/// Selects records; without flags all of them. Does not fail if there are none.
pub(crate) fn select_any(records: &Records) -> Result<Selected, Failure> {
    gather(records, records.last, true)
}

/// Creates the filter for the lines that a command reads: those in the requested time.
pub(crate) fn filter(records: &Records) -> Filter {
    Filter { since: records.selection.since, until: records.selection.until, ..Filter::default() }
}

/// Builds the selection from the flags.
pub(crate) fn selection(args: &SelectionArgs) -> Result<Selection, Failure> {
    let mut dirs = Vec::new();
    for dir in &args.dir {
        let absolute = std::path::absolute(dir).map_err(|error| {
            Failure::input(format!("`{}` is not a directory", dir.display())).because(error)
        })?;
        // A record contains the directory as named by the shell or by the kernel.
        dirs.extend(fs::canonicalize(&absolute));
        dirs.push(clean(&absolute));
    }
    Ok(Selection {
        stages: args.stage.clone(),
        labels: args.labels.iter().map(|label| (label.key.clone(), label.value.clone())).collect(),
        users: args.user.clone(),
        machines: args.machine.clone(),
        dirs,
        since: args.since,
        until: args.until,
    })
}

/// Whether no flag of a selection is given.
pub(crate) fn is_empty(args: &SelectionArgs) -> bool {
    args.stage.is_empty()
        && args.labels.is_empty()
        && args.user.is_empty()
        && args.machine.is_empty()
        && args.dir.is_empty()
        && args.since.is_none()
        && args.until.is_none()
}

fn own_place() -> Result<RecordDir, Failure> {
    place_of(&crate::request::here()?)
}

fn gather(records: &Records, only_last: bool, with_runs: bool) -> Result<Selected, Failure> {
    let selection = selection(&records.selection)?;
    if records.runs.is_empty() {
        let (newest_first, strange) = apart(own_place()?.records().map_err(bad_place)?);
        if only_last {
            return Ok(last(&selection, newest_first));
        }
        let records = newest_first.into_iter().rev().map(Source::File).collect();
        return select_from(&selection, records, strange, with_runs);
    }
    let (mut sources, mut strange) = (Vec::new(), Vec::new());
    for name in &records.runs {
        sources.extend(sources_named(name, &mut strange)?);
    }
    if sources.iter().filter(|source| **source == Source::Stdin).count() > 1 {
        return Err(Failure::input("`-` is there twice, and standard input is read once"));
    }
    select_from(&selection, sources, strange, with_runs)
}

/// Prints which paths are not read, and why.
fn warned(strange: Vec<(PathBuf, String)>) -> Vec<(PathBuf, String)> {
    let mut notes = Notes::default();
    for (path, why) in &strange {
        notes.warn(|| format!("{} is not read: {why}", Source::File(path.clone())));
    }
    notes.finish();
    strange
}

/// Separates paths that are not regular files: reading a pipe would wait, and a device may have no end.
fn apart(paths: Vec<PathBuf>) -> (Vec<PathBuf>, Vec<(PathBuf, String)>) {
    let (mut files, mut strange) = (Vec::new(), Vec::new());
    for path in paths {
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() => files.push(path),
            Ok(_) => strange.push((path, "it is not a regular file".to_owned())),
            Err(error) if path.symlink_metadata().is_ok() => strange.push((path, error.to_string())),
            // The record was pruned meanwhile.
            Err(_) => {}
        }
    }
    (files, strange)
}

/// Returns the records that a name stands for: a run, a file, standard input, or all records in a directory and below.
pub(crate) fn sources_named(
    name: &Path,
    strange: &mut Vec<(PathBuf, String)>,
) -> Result<Vec<Source>, Failure> {
    let is_dir = |path: &Path| {
        LinkRule::from_env().walk(path).is_ok_and(|end| end.metadata().is_ok_and(|meta| meta.is_dir()))
    };
    let source = match name.to_str() {
        Some("-") => Source::Stdin,
        // A path needs no state directory; a word without `/` and `.` may also be a run.
        Some(text) if !text.contains(['/', '.']) => match own_place()?.find(text) {
            Err(exeat_record::place::DirError::NotFound { .. }) if is_dir(name) => {
                Source::File(name.to_owned())
            }
            found => {
                let source = Source::File(found.map_err(bad_place)?);
                let (_, odd) = apart(source.path().map(Path::to_owned).into_iter().collect());
                match odd.into_iter().next() {
                    Some((path, _)) if is_dir(&path) => source,
                    Some((_, why)) => {
                        return Err(Failure::input(format!("cannot read {source}")).because(why));
                    }
                    None => source,
                }
            }
        },
        _ => Source::File(name.to_owned()),
    };
    let Source::File(path) = &source else { return Ok(vec![source]) };
    if !is_dir(path) {
        return Ok(vec![source]);
    }
    let mut paths = Vec::new();
    list(path, 0, &mut paths).map_err(|error| source.unreadable(error))?;
    let (paths, odd) = apart(paths);
    match paths.is_empty() && odd.is_empty() {
        true => Err(Failure::input(format!("no record (*.jsonl) is in {source} or below"))),
        false => {
            strange.extend(odd);
            Ok(paths.into_iter().map(Source::File).collect())
        }
    }
}

/// Lists the records of a directory and below by name. Does not follow links to directories.
fn list(dir: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other(format!("more than {MAX_DEPTH} directories below each other")));
    }
    let mut entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_unstable_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            list(&path, depth + 1, paths)?;
        } else if is_record(&path) {
            if paths.len() >= MAX_RECORDS {
                return Err(io::Error::other(format!("more than {MAX_RECORDS} records")));
            }
            paths.push(path);
        }
    }
    Ok(())
}

/// Whether a file has the name of a record. Ledgers next to records have lines of another kind.
fn is_record(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".jsonl") && !name.starts_with("ledger-")
}

/// Returns the newest selected record. The query of a preset to a package manager is a run too, but not the one that people look for.
fn last(selection: &Selection, newest_first: Vec<PathBuf>) -> Selected {
    let mut preset = None;
    let mut doubtful = Doubtful::default();
    for path in newest_first {
        let source = Source::File(path);
        let run = summary_of(&source);
        if !doubtful.takes(selection, &run) {
            continue;
        }
        let is_preset = run.stage.as_deref().is_some_and(|stage| stage.starts_with(PRESET_STAGE));
        let found = SelectedRecord { source, run, twin: None };
        if !is_preset || !selection.stages.is_empty() {
            doubtful.finish();
            return Selected { found: vec![found], strange: Vec::new() };
        }
        preset = preset.or(Some(found));
    }
    doubtful.finish();
    Selected { found: preset.into_iter().collect(), strange: Vec::new() }
}

/// Returns the records that the selection contains, with notes about copies.
fn select_from(
    selection: &Selection,
    sources: Vec<Source>,
    mut strange: Vec<(PathBuf, String)>,
    with_runs: bool,
) -> Result<Selected, Failure> {
    let alone = !with_runs && sources.len() == 1 && selection.is_empty();
    let mut found: Vec<SelectedRecord> = Vec::new();
    let mut doubtful = Doubtful::default();
    for source in sources {
        // A single record without a selection is opened only once.
        let run = if alone { RunSummary::default() } else { summary_of(&source) };
        // `list` and `verify` show the reason themselves, and each command fails for a name that does not exist.
        if let (Some(why), Some(path), false) = (&run.problem, source.path(), with_runs)
            && path.symlink_metadata().is_ok()
        {
            if selection.passes(&run) {
                strange.push((path.to_owned(), os_words(why).into_owned()));
            }
            continue;
        }
        if doubtful.takes(selection, &run) {
            found.push(SelectedRecord { source, run, twin: None });
        }
    }
    doubtful.finish();
    compare(&mut found)?;
    Ok(Selected { found, strange: warned(strange) })
}

/// Returns whether a line of a record passes a filter, as far as the record can be read.
pub(super) fn has_any(source: &Source, filter: &Filter) -> Result<bool, Failure> {
    for record in source.open()? {
        if filter.passes(&record.map_err(|error| source.unreadable(error))?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Summarizes the first line and the last lines of a record. Reads nothing from a source that can be read only once.
fn summary_of(source: &Source) -> RunSummary {
    match source {
        Source::File(path) => summarize(path),
        Source::Stdin => match io::stdin().lock().fill_buf() {
            Ok(begin) => RunSummary::from_first_line(
                begin.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default(),
            ),
            Err(_) => RunSummary::default(),
        },
    }
}

/// Summarizes the first line and the last lines of a file.
pub(super) fn summarize(path: &Path) -> RunSummary {
    let open = || {
        let end = LinkRule::from_env().walk(path).map_err(io::Error::from)?;
        // Opening a named pipe would wait for its writer, and reading it would consume what the command needs.
        match end.metadata()?.is_file() {
            true => end.read(),
            false => Err(io::Error::other("not a regular file")),
        }
    };
    RunSummary::read(path.to_owned(), open())
}

/// Finds records of the same run. Copies count once, and differences are printed.
fn compare(found: &mut [SelectedRecord]) -> Result<(), Failure> {
    let mut first: HashMap<String, usize> = HashMap::new();
    let (mut copies, mut differing) = (Notes::default(), Notes::default());
    for at in 0..found.len() {
        let Some((before, Some(this))) = found.split_at_mut_checked(at).map(|(a, b)| (a, b.first_mut()))
        else {
            continue;
        };
        let Some(run) = this.run.holds.clone() else { continue };
        let Some(other) = first.get(&run).and_then(|at| before.get(*at)) else {
            first.insert(run, at);
            continue;
        };
        let (Source::File(old), Source::File(new)) = (&other.source, &this.source) else {
            let run = exeat_record::escape(run.as_bytes(), 40);
            return Err(Failure::input(format!(
                "{} and {} hold the same run, {run}: name one of them",
                other.source, this.source
            )));
        };
        let (old_source, source) = (&other.source, &this.source);
        let line = first_difference(old, new).map_err(|error| this.source.unreadable(error))?;
        match line {
            None => copies.note(|| format!("{source} is a copy of {old_source}: the run counts once")),
            Some(line) => differing.warn(|| {
                format!(
                    "{old_source} and {source} hold the same run and differ from line {line} on: {old_source} counts, and the \
                     other does not (exeat audit verify looks at both)"
                )
            }),
        }
        this.twin = Some(line.map_or(Twin::Copy, Twin::Differs));
    }
    copies.finish();
    differing.finish();
    Ok(())
}

/// Returns the first line in which two files differ, if they do.
fn first_difference(a: &Path, b: &Path) -> io::Result<Option<u64>> {
    let open = |path: &Path| LinkRule::from_env().walk(path).map_err(io::Error::from)?.read();
    let (a, b): (File, File) = (open(a)?, open(b)?);
    let (one, other) = (a.metadata()?, b.metadata()?);
    if (one.dev(), one.ino()) == (other.dev(), other.ino()) {
        return Ok(None);
    }
    let (mut a, mut b) = (BufReader::with_capacity(ROOM, a), BufReader::with_capacity(ROOM, b));
    let mut line = 1;
    loop {
        let (x, y) = (a.fill_buf()?, b.fill_buf()?);
        if x.is_empty() || y.is_empty() {
            return Ok((!x.is_empty() || !y.is_empty()).then_some(line));
        }
        let both = x.len().min(y.len());
        let (x, y) = (x.get(..both).unwrap_or_default(), y.get(..both).unwrap_or_default());
        let same = if x == y { both } else { x.iter().zip(y).take_while(|(x, y)| x == y).count() };
        line += x.iter().take(same).filter(|&&byte| byte == b'\n').count() as u64;
        if same < both {
            return Ok(Some(line));
        }
        a.consume(both);
        b.consume(both);
    }
}

/// The number of bytes that are read at once.
pub(super) const ROOM: usize = 256 * 1024;

/// Counts the records for which it is unknown whether the flags select them.
#[derive(Default)]
pub(super) struct Doubtful {
    left_out: u64,
    read: u64,
}

impl Doubtful {
    /// Whether the flags select a run.
    pub(super) fn takes(&mut self, selection: &Selection, run: &RunSummary) -> bool {
        let is_taken = selection.passes(run);
        self.left_out += u64::from(selection.leaves_out_unknown(run));
        self.read += u64::from(is_taken && run.holds.is_none() && !run.is_bare && !selection.is_empty());
        is_taken
    }

    /// Prints the counts, one line for each kind.
    pub(super) fn finish(&self) {
        let records = |count| if count == 1 { "1 record".to_owned() } else { format!("{count} records") };
        if self.left_out > 0 {
            let what = records(self.left_out);
            stdio::line(
                "note",
                &format!(
                    "{what} left out: killed before the first line, which names the stage, directory, user and labels (exeat audit list shows all)"
                ),
            );
        }
        if self.read > 0 {
            let what = records(self.read);
            stdio::line(
                "note",
                &format!(
                    "{what} read whether or not the flags select them: their first line is damaged (exeat audit verify --all)"
                ),
            );
        }
    }
}

/// Prints notes of one kind: the first ones, and then the number of further ones.
#[derive(Default)]
pub(super) struct Notes {
    count: usize,
}

impl Notes {
    /// Prints the flaws of a record in one line.
    pub(super) fn flaws<R: BufRead>(&mut self, source: &Source, reader: &Reader<R>) {
        let Some((first, others)) = reader.flaws().split_first() else { return };
        self.note(|| match others.len() as u64 + reader.more_flaws() {
            0 => format!("{source}: {first}"),
            more => format!("{source}: {first}; and {more} more ({})", source.verify_command()),
        });
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        self.print_note("note", text);
    }

    fn warn(&mut self, text: impl FnOnce() -> String) {
        self.print_note("warning", text);
    }

    fn print_note(&mut self, kind: &str, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.count <= MAX_NOTES {
            stdio::line(kind, &text());
        }
    }

    /// Prints the number of notes that were not printed.
    pub(super) fn finish(&self) {
        if self.count > MAX_NOTES {
            stdio::line("note", &format!("and {} more like that", self.count - MAX_NOTES));
        }
    }
}

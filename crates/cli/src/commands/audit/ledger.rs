//! The ledgers of `exeat audit verify --all`, and the line that `prune` writes there. `exeat-audit` reads a ledger.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;

use exeat_audit::ledger::{Book, HeadPosition, Joined, KeptHead, RecordFacts, join};
use exeat_audit::verify::Verification;
use exeat_policy::printable;
use exeat_record::ledger::Ledger;
use exeat_record::place::RecordDir;
use exeat_record::{RunId, SigningKey, VerifyingKey};
use serde_json::{Value, json};

use super::key::own;
use super::select;
use super::{bad_place, place_of};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Paint;

/// The maximal number of runs of each kind that are named one by one; the others are counted.
const MAX_NAMED: usize = 10;

/// The ledgers of this user, to compare with the records that are read.
pub(crate) struct Ledgers {
    place: RecordDir,
    /// The directory of the ledgers: that of the records or, if it has no ledger, that of the key. The two differ if root ran something
    /// for another user.
    own: RecordDir,
    books: Vec<Book>,
    /// Checkpoints that ledgers had earlier.
    heads: Vec<KeptHead>,
    seen: Vec<RecordFacts>,
    /// The runs of records that are there and cannot be read.
    unread: BTreeSet<RunId>,
}

impl Ledgers {
    /// Reads the ledgers. Must be called before the records are listed: a run has its record before it is in a ledger.
    pub(crate) fn read(keys: &[VerifyingKey], heads: &[KeptHead]) -> Result<Ledgers, Failure> {
        let place = place_of(&crate::request::here()?)?;
        let read =
            |place: &RecordDir| Book::all(place, keys, heads).map_err(|error| unreadable(place, error));
        let (mut own_place, mut books) = (place.clone(), read(&place)?);
        if books.is_empty() {
            own_place = own(&place)?;
            books = read(&own_place)?;
        }
        Ok(Ledgers {
            place,
            own: own_place,
            books,
            heads: heads.to_vec(),
            seen: Vec::new(),
            unread: BTreeSet::new(),
        })
    }

    /// Whether the user has no ledger.
    pub(crate) fn is_empty(&self) -> bool {
        self.books.is_empty()
    }

    /// Takes in a record that was verified.
    pub(crate) fn see(&mut self, found: &select::SelectedRecord, report: &Verification) {
        let (Some(run), None, Some(path)) = (found.run.run, found.twin, found.source.path()) else { return };
        self.seen.push(RecordFacts {
            run,
            witness: report.witness.clone(),
            is_running: exeat_record::is_being_written(path).unwrap_or(false),
            missing: report.missing(),
        });
    }

    /// Takes in a record that cannot be read.
    pub(crate) fn note_unread(&mut self, found: &select::SelectedRecord) {
        self.unread.extend(found.run.run);
    }

    /// Compares the ledgers with the records, after all records were taken in.
    pub(crate) fn join(self, keys: &[VerifyingKey]) -> Result<Joining, Failure> {
        let policies = self.place.runs_without_record().map_err(bad_place)?;
        let mut joined = join(&self.books, &self.seen, &policies);
        joined.keep_unread(&self.unread);
        if joined.may_be_outdated() {
            // Runs may have begun or ended since the ledgers were read.
            let again = Book::all(&self.own, keys, &[]).map_err(|error| unreadable(&self.own, error))?;
            joined.check_again(&self.books, &again);
        }
        Ok(Joining { books: self.books, heads: self.heads, joined })
    }
}

fn unreadable(place: &RecordDir, error: io::Error) -> Failure {
    Failure::input(format!("cannot read the ledgers in `{}`", place.state_dir().join("exeat").display()))
        .because(error)
}

/// The result of the comparison.
pub(crate) struct Joining {
    books: Vec<Book>,
    heads: Vec<KeptHead>,
    joined: Joined,
}

impl Joining {
    /// Returns the exit code for the result.
    pub(crate) fn exit(&self) -> Exit {
        let has_all_heads = (0..self.heads.len()).all(|at| self.find(at).is_some());
        if !self.joined.faults.is_empty() || !has_all_heads || self.books.iter().any(Book::is_damaged) {
            Exit::No
        } else if self.books.iter().any(|book| !book.faults.is_empty()) {
            Exit::CouldNot
        } else {
            Exit::Yes
        }
    }

    /// Finds the ledger that has a head, and the position of the head in it.
    fn find(&self, at: usize) -> Option<(&Book, HeadPosition)> {
        self.books.iter().find_map(|book| Some((book, *book.found.get(&at)?)))
    }

    /// Writes which of the requested heads were found.
    fn heads(&self, text: &mut String, paint: Paint) {
        for (at, head) in self.heads.iter().enumerate() {
            let _ = write!(text, "head {head}: ");
            let Some((book, found)) = self.find(at) else {
                let why = match head.no {
                    _ if self.books.is_empty() => "there is no ledger here".to_owned(),
                    Some(no) if self.books.iter().all(|book| book.last < no) => {
                        format!(
                            "no ledger here goes up to number {no}: it was cut, or replaced by an older one"
                        )
                    }
                    _ => {
                        "no ledger here has this line: it was written anew since, or it is of another machine"
                            .to_owned()
                    }
                };
                let _ = writeln!(text, "{}: {why}", paint.bad("NOT FOUND"));
                continue;
            };
            let since = match book.last - found.last {
                0 => "no run was added since".to_owned(),
                1 => "1 run was added since".to_owned(),
                runs => format!("{runs} runs were added since"),
            };
            // A broken chain does not vouch for the lines before the break.
            let before = if book.is_damaged() { "" } else { ", and all before it is as it was then" };
            let _ = writeln!(text, "{} in line {}{before}; {since}", paint.good("found"), found.line);
        }
    }

    /// Formats the result for people.
    pub(crate) fn words(&self, paint: Paint) -> String {
        let mut text = String::new();
        for book in &self.books {
            let _ = write!(text, "ledger `{}`: ", printable(&book.path.display().to_string()));
            let plural = if book.last == 1 { "" } else { "s" };
            let _ = match (&book.key, &book.head) {
                _ if book.is_damaged() => {
                    writeln!(text, "{}", paint.bad("NOT WHOLE"))
                }
                (Some(key), Some(head)) => writeln!(
                    text,
                    "{}: {} run{plural}, signed to the end by {key}\n  its head: {} {head}",
                    paint.good("whole"),
                    book.last,
                    book.last
                ),
                _ => writeln!(text, "{}", paint.bad("not proved")),
            };
            for fault in &book.faults {
                let _ = writeln!(text, "  {fault}");
            }
            if book.more > 0 {
                let _ = writeln!(text, "  and {} more", book.more);
            }
            if !book.beside.is_empty() {
                let _ = writeln!(
                    text,
                    "  {}: it begins beside another one of the same key, {}: the directory was copied, or its host-* file removed",
                    paint.odd("note"),
                    book.beside.join(", ")
                );
            }
            if book.torn > 0 {
                let plural = if book.torn == 1 { "" } else { "s" };
                let _ = writeln!(text, "  {} line{plural} cut by a crash, and written again", book.torn);
            }
        }
        if self.books.is_empty() {
            text.push_str("no ledger: no run was signed with a key that lasts, since there are ledgers\n");
        }
        self.heads(&mut text, paint);
        let joined = &self.joined;
        for fault in joined.faults.iter().take(MAX_NAMED * 3) {
            let _ = writeln!(text, "{}: {fault}", paint.bad("missing or changed"));
        }
        if let Some(more) = joined.faults.len().checked_sub(MAX_NAMED * 3).filter(|more| *more > 0) {
            let _ = writeln!(text, "and {more} more");
        }
        write_runs(&mut text, "cannot be read, so not compared", &joined.unread);
        write_runs(&mut text, "no end: killed", &joined.killed);
        if joined.running > 0 {
            let _ = writeln!(text, "no end: still running: {}", joined.running);
        }
        if joined.starting > 0 {
            let _ = writeln!(text, "starting: {}", joined.starting);
        }
        write_runs(&mut text, "ended, and the ledger does not have the end", &joined.no_end);
        if let Some((when, who)) = &joined.last_pruned {
            let _ = writeln!(text, "pruned: {} (last by {who}, {when})", joined.pruned);
        }
        for (no, run, file) in joined.elsewhere.iter().take(MAX_NAMED) {
            let number = no.map_or_else(|| "not numbered".to_owned(), |no| format!("number {no}"));
            let _ = writeln!(text, "in another place, not read here: {number}, {run}: {file}");
        }
        if let Some(more) = joined.elsewhere.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            let _ = writeln!(text, "in other places, not read here: {more} more");
        }
        write_runs(&mut text, "not numbered, as a note in the record says", &joined.unnumbered);
        for (count, what) in [
            (joined.without, "without a ledger: not signed, or with a key that does not last"),
            (joined.not_begun, "not begun: killed before its first line, or the disk was full"),
            (joined.older, "from before there were ledgers"),
        ] {
            if count > 0 {
                let plural = if count == 1 { "" } else { "s" };
                let _ = writeln!(text, "not numbered: {count} run{plural} {what}");
            }
        }
        text
    }

    /// Formats the result for programs.
    pub(crate) fn as_json(&self) -> Value {
        let ledgers = self.books.iter().map(|book| {
            json!({
                "name": book.name,
                "path": book.path.to_string_lossy(),
                "lines": book.lines,
                "last": book.last,
                "head": book.head,
                "key": book.key.as_ref().map(ToString::to_string),
                "torn": book.torn,
                "beside": book.beside,
                "findings": book.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "more_findings": book.more,
            })
        });
        let faults = self.joined.faults.iter().map(|fault| {
            json!({
                "what": fault.word(),
                "no": fault.no(),
                "run": fault.run().map(|run| run.to_string()),
                "text": fault.to_string(),
            })
        });
        let heads = self.heads.iter().enumerate().map(|(at, head)| {
            let found = self.find(at);
            json!({
                "head": head.to_string(),
                "found": found.is_some(),
                "ledger": found.map(|(book, _)| &book.name),
                "line": found.map(|(_, found)| found.line),
                "runs_since": found.map(|(book, found)| book.last - found.last),
            })
        });
        let runs = |runs: &[RunId]| runs.iter().map(ToString::to_string).collect::<Vec<_>>();
        let joined = &self.joined;
        let elsewhere = joined
            .elsewhere
            .iter()
            .map(|(no, run, file)| json!({"no": no, "run": run.to_string(), "file": file}));
        json!({
            "ledgers": ledgers.collect::<Vec<_>>(),
            "heads": heads.collect::<Vec<_>>(),
            "findings": faults.collect::<Vec<_>>(),
            "unread": runs(&joined.unread),
            "killed": runs(&joined.killed),
            "running": joined.running,
            "no_end_in_ledger": runs(&joined.no_end),
            "pruned": joined.pruned,
            "last_pruned": joined.last_pruned.as_ref().map(|(when, who)| json!({"ts": when, "user": who})),
            "elsewhere": elsewhere.collect::<Vec<_>>(),
            "unnumbered": runs(&joined.unnumbered),
            "without_ledger": joined.without,
            "older": joined.older,
            "not_begun": joined.not_begun,
            "starting": joined.starting,
        })
    }
}

/// Writes a line that counts and names runs.
fn write_runs(text: &mut String, what: &str, runs: &[RunId]) {
    if runs.is_empty() {
        return;
    }
    let names: Vec<String> = runs.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let _ = write!(text, "{what}: {} ({}", runs.len(), names.join(", "));
    text.push_str(if runs.len() > MAX_NAMED { ", ...)\n" } else { ")\n" });
}

/// Returns the runs whose end is missing from the ledgers of this user.
pub(crate) fn killed(place: &RecordDir, keys: &[VerifyingKey]) -> Result<BTreeSet<RunId>, Failure> {
    let own = own(place)?;
    let books = Book::all(&own, keys, &[]).map_err(|error| unreadable(&own, error))?;
    Ok(books.iter().filter(|book| book.key.is_some()).flat_map(Book::without_end).collect())
}

/// Returns the ledger that `prune` writes to: that of the user's own key.
pub(crate) fn to_prune(place: &RecordDir) -> Result<Ledger, String> {
    let found = own(place).map_err(|failure| failure.plain_text()).and_then(|own| {
        let key = SigningKey::load(&own.key_path()).map_err(|error| error.to_string())?;
        Ledger::find(&own, key, false).map_err(|error| error.to_string())
    });
    found.map_err(|why| format!("that cannot be written into the ledger: {why}"))
}

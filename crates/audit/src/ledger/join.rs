//! Compares ledgers with the records that they list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use exeat_record::RunId;

use super::read::{Book, Entry, Pruned, Start, printable};
use crate::verify::Witness;

/// A record that was read.
#[derive(Debug, Clone)]
pub struct RecordFacts {
    /// Its run.
    pub run: RunId,
    /// The facts that its ledger must agree with.
    pub witness: Witness,
    /// Whether its writer still runs.
    pub is_running: bool,
    /// The digests of the policies that the record names and that are not stored; printable.
    pub missing: Vec<String>,
}

/// The result of comparing ledgers and records.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Joined {
    /// Contradictions between ledgers and records.
    pub faults: Vec<Mismatch>,
    /// Runs without an end in the ledger and in the record: they were killed.
    pub killed: Vec<RunId>,
    /// The number of runs that still go on.
    pub running: u64,
    /// Runs whose record has an end, and whose ledger has none.
    pub no_end: Vec<RunId>,
    /// The number of records that were pruned.
    pub pruned: u64,
    /// When the last record was pruned, and by whom; printable.
    pub last_pruned: Option<(String, String)>,
    /// Runs whose record exists but cannot be read.
    pub unread: Vec<RunId>,
    /// Records in other places, as the ledgers name them: number, run and path; printable.
    pub elsewhere: Vec<(Option<u64>, RunId, String)>,
    /// Runs that have a record and could not take a number.
    pub unnumbered: Vec<RunId>,
    /// The number of records that say they have no ledger: they are not signed, or by a temporary key.
    pub without: u64,
    /// The number of empty records that no ledger has: their runs were killed before they began.
    pub not_begun: u64,
    /// The number of empty records whose writers still run.
    pub starting: u64,
    /// The number of older records, which say nothing about a ledger.
    pub older: u64,
}

/// A contradiction between a ledger and the records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say; text is printable")]
pub enum Mismatch {
    /// A run is in the ledger, and its record is not where it should be.
    Removed {
        ledger: String,
        no: Option<u64>,
        run: RunId,
        stage: Option<String>,
        started: String,
        policy_left: bool,
    },
    /// The policy beside a record is gone.
    PolicyRemoved { no: Option<u64>, run: RunId, sha256: String },
    /// A policy of a run that has no record and is in no ledger.
    RecordOfPolicy { run: RunId },
    /// A record has a number in a ledger that does not have its run.
    NotInLedger { ledger: String, no: u64, run: RunId },
    /// Records have numbers in a ledger that is not here.
    NoLedger { ledger: String, records: u64 },
    /// A ledger lacks the line that another one saw at its end.
    Cut {
        ledger: String,
        /// The ledger that saw it.
        by: String,
    },
    /// The record is not the one that the ledger names.
    OtherRecord { no: Option<u64>, run: RunId },
    /// The ledger before the start of a run is not the one that the run saw.
    OtherLedger { no: u64, run: RunId },
}

impl Mismatch {
    /// Returns the word for it in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Mismatch::Removed { .. } => "record_removed",
            Mismatch::PolicyRemoved { .. } => "policy_removed",
            Mismatch::RecordOfPolicy { .. } => "record_of_policy_removed",
            Mismatch::NotInLedger { .. } => "not_in_ledger",
            Mismatch::NoLedger { .. } => "ledger_missing",
            Mismatch::Cut { .. } => "ledger_cut",
            Mismatch::OtherRecord { .. } => "other_record",
            Mismatch::OtherLedger { .. } => "other_ledger",
        }
    }

    /// Returns the run that it is about.
    pub fn run(&self) -> Option<RunId> {
        match self {
            Mismatch::Removed { run, .. }
            | Mismatch::PolicyRemoved { run, .. }
            | Mismatch::RecordOfPolicy { run }
            | Mismatch::NotInLedger { run, .. }
            | Mismatch::OtherRecord { run, .. }
            | Mismatch::OtherLedger { run, .. } => Some(*run),
            Mismatch::NoLedger { .. } | Mismatch::Cut { .. } => None,
        }
    }

    /// Returns the number that it is about.
    pub fn no(&self) -> Option<u64> {
        match self {
            Mismatch::Removed { no, .. }
            | Mismatch::PolicyRemoved { no, .. }
            | Mismatch::OtherRecord { no, .. } => *no,
            Mismatch::NotInLedger { no, .. } | Mismatch::OtherLedger { no, .. } => Some(*no),
            Mismatch::RecordOfPolicy { .. } | Mismatch::NoLedger { .. } | Mismatch::Cut { .. } => None,
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Removed { no, run, stage, started, policy_left, .. } => {
                write!(f, "{}the record of {run} was removed (", number(*no))?;
                if let Some(stage) = stage {
                    write!(f, "{stage}, ")?;
                }
                let left = if *policy_left { ", its policy is still there" } else { "" };
                write!(f, "{started}{left})")
            }
            Mismatch::PolicyRemoved { no, run, sha256 } => {
                let short = sha256.get(..16).unwrap_or(sha256);
                write!(f, "{}the policy beside the record of {run} was removed ({short})", number(*no))
            }
            Mismatch::RecordOfPolicy { run } => {
                write!(f, "the record of {run} was removed: its policy is still there")
            }
            Mismatch::NotInLedger { ledger, no, run } => write!(
                f,
                "number {no}: {run} has it in its record, and not in the ledger {ledger}: that was cut or replaced, or \
                 its machine crashed"
            ),
            Mismatch::NoLedger { ledger, records } => {
                let plural = if *records == 1 { " has its number" } else { "s have their numbers" };
                write!(
                    f,
                    "the ledger {ledger} is not here, and {records} record{plural} from it: it was removed, or they \
                     come from another machine"
                )
            }
            Mismatch::Cut { ledger, by } => write!(
                f,
                "the ledger {ledger} does not have the line that {by} saw at its end: it was cut, replaced or removed"
            ),
            Mismatch::OtherRecord { no, run } => {
                write!(f, "{}the record of {run} is not the one that the ledger has", number(*no))
            }
            Mismatch::OtherLedger { no, run } => {
                write!(f, "number {no}: the ledger before it is not the one that {run} saw when it started")
            }
        }
    }
}

fn number(no: Option<u64>) -> String {
    no.map_or_else(|| "not numbered: ".to_owned(), |no| format!("number {no}: "))
}

/// Compares ledgers with the records of a directory. `policies` are the runs whose policy is stored there without a record.
pub fn join(books: &[Book], records: &[RecordFacts], policies: &BTreeSet<RunId>) -> Joined {
    let mut joined = Joined::default();
    let by_run: BTreeMap<RunId, &RecordFacts> = records.iter().map(|seen| (seen.run, seen)).collect();
    let mut policies = policies.clone();
    // After a move to another machine or a change of the key, the pruning is in another ledger than the start.
    let proved = books.iter().filter(|book| book.key.is_some());
    let pruned: BTreeMap<RunId, &Pruned> = proved
        .flat_map(|book| &book.runs)
        .filter_map(|(run, entry)| Some((*run, entry.pruned.as_ref()?)))
        .collect();
    for book in books {
        for (run, entry) in &book.runs {
            let left = policies.remove(run);
            let pruned = pruned.get(run).copied().or(entry.pruned.as_ref());
            joined.entry(book, *run, entry, by_run.get(run).copied(), pruned, left);
        }
    }
    joined.faults.extend(books.iter().flat_map(|book| cut(book, books)));
    let mut missing: BTreeMap<&str, u64> = BTreeMap::new();
    for seen in by_run.values() {
        let witness = &seen.witness;
        let (ledger, no) = match (witness.ledger.as_deref(), witness.no) {
            _ if witness.lines == 0 => {
                let is_listed = books.iter().any(|book| book.runs.contains_key(&seen.run));
                joined.starting += u64::from(seen.is_running && !is_listed);
                joined.not_begun += u64::from(!seen.is_running && !is_listed);
                continue;
            }
            (None, _) => {
                joined.older += 1;
                continue;
            }
            (Some(ledger), _) if witness.is_unnumbered || ledger == "unnumbered" => {
                joined.unnumbered.push(seen.run);
                continue;
            }
            (Some(_), None) => {
                joined.without += 1;
                continue;
            }
            (Some(ledger), Some(no)) => (ledger, no),
        };
        match books.iter().find(|book| book.name == ledger) {
            None => *missing.entry(ledger).or_default() += 1,
            // A run that was killed after its first line, before anything else, is not in the ledger yet.
            Some(book) if !book.runs.contains_key(&seen.run) && witness.lines > 1 => {
                joined.faults.push(Mismatch::NotInLedger { ledger: book.name.clone(), no, run: seen.run });
            }
            Some(_) => {}
        }
    }
    for (ledger, records) in missing {
        joined.faults.push(Mismatch::NoLedger { ledger: printable(ledger), records });
    }
    joined.faults.extend(policies.into_iter().map(|run| Mismatch::RecordOfPolicy { run }));
    joined
}

/// Returns the ledgers that lost lines which another ledger saw.
fn cut<'a>(by: &'a Book, books: &'a [Book]) -> impl Iterator<Item = Mismatch> + 'a {
    let proved = by.key.iter().flat_map(|_| &by.others);
    let cut = proved.filter(|(name, heads)| {
        let book = books.iter().find(|book| book.name == **name);
        book.is_none_or(|book| heads.iter().any(|head| !book.digests.contains(head)))
    });
    cut.map(|(name, _)| Mismatch::Cut { ledger: printable(name), by: by.name.clone() })
}

impl Joined {
    /// Whether a run that began or ended meanwhile may explain a fault.
    pub fn may_be_outdated(&self) -> bool {
        let is_of_record = |fault: &Mismatch| {
            matches!(fault, Mismatch::NotInLedger { .. } | Mismatch::NoLedger { .. } | Mismatch::Cut { .. })
        };
        !self.killed.is_empty() || !self.no_end.is_empty() || self.faults.iter().any(is_of_record)
    }

    /// Removes faults that newer ledgers explain; `before` are the ledgers compared so far.
    pub fn check_again(&mut self, before: &[Book], books: &[Book]) {
        let cut: Vec<Mismatch> = before.iter().flat_map(|book| cut(book, books)).collect();
        let find = |run: &RunId| books.iter().find_map(|book| book.runs.get(run));
        self.faults.retain(|fault| match fault {
            Mismatch::NotInLedger { run, .. } => find(run).is_none(),
            Mismatch::Cut { .. } => cut.contains(fault),
            Mismatch::NoLedger { ledger, .. } => !books.iter().any(|book| book.name == *ledger),
            _ => true,
        });
        let has_no_end = |run: &RunId| find(run).is_none_or(|entry| entry.end.is_none());
        self.killed.retain(has_no_end);
        self.no_end.retain(has_no_end);
    }

    /// Removes the runs whose records exist but could not be read: those records were not removed.
    pub fn keep_unread(&mut self, unread: &BTreeSet<RunId>) {
        let is_unread =
            |fault: &Mismatch| matches!(fault, Mismatch::Removed { run, .. } if unread.contains(run));
        self.unread
            .extend(self.faults.extract_if(.., |fault| is_unread(fault)).filter_map(|fault| fault.run()));
    }

    /// Compares what a ledger says of one run.
    fn entry(
        &mut self,
        book: &Book,
        run: RunId,
        entry: &Entry,
        seen: Option<&RecordFacts>,
        pruned: Option<&Pruned>,
        policy_left: bool,
    ) {
        if let (None, Some(Pruned { ts, user })) = (seen, pruned) {
            // A run that was pruned on another machine is in two ledgers.
            self.pruned += u64::from(entry.pruned.is_some());
            let who = user.as_deref().map_or_else(|| "unknown".to_owned(), printable);
            if self.last_pruned.as_ref().is_none_or(|(last, _)| *last < printable(ts)) {
                self.last_pruned = Some((printable(ts), who));
            }
            return;
        }
        // The beginning of this ledger was cut; that is reported elsewhere.
        let Some(start) = &entry.start else { return };
        let Some(seen) = seen else {
            match &start.file {
                Some(file) => self.elsewhere.push((start.no, run, printable(file))),
                None => self.faults.push(Mismatch::Removed {
                    ledger: book.name.clone(),
                    no: start.no,
                    run,
                    stage: start.stage.as_deref().map(printable),
                    started: printable(&start.ts),
                    policy_left,
                }),
            }
            return;
        };
        self.compare(run, start, entry, seen, pruned.is_some());
    }

    /// Compares a run that is in the ledger with its record.
    fn compare(&mut self, run: RunId, start: &Start, entry: &Entry, seen: &RecordFacts, is_pruned: bool) {
        let (no, witness) = (start.no, &seen.witness);
        let sealed = entry.end.as_ref().and_then(|end| end.sealed.as_ref());
        let is_same = (no.is_none() || witness.no == no)
            && (start.first.is_none() || start.first == witness.first)
            && sealed.is_none_or(|sealed| witness.sealed.as_ref() == Some(sealed));
        if !is_same {
            self.faults.push(Mismatch::OtherRecord { no, run });
        }
        if let Some(no) = no.filter(|_| witness.ledger_prev != start.prev) {
            self.faults.push(Mismatch::OtherLedger { no, run });
        }
        // Pruning removes the policy first, and may have been stopped before the record.
        if start.file.is_none() && !is_pruned {
            let removed = |sha256: &String| Mismatch::PolicyRemoved { no, run, sha256: sha256.clone() };
            self.faults.extend(seen.missing.iter().map(removed));
        }
        match (&entry.end, witness.has_ended) {
            (Some(_), _) => {}
            (None, true) => self.no_end.push(run),
            (None, false) if seen.is_running => self.running += 1,
            (None, false) => self.killed.push(run),
        }
    }
}

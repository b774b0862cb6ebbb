//! Ledgers and the records that they speak of, held against each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use exeat_record::RunId;

use super::read::{Book, Entry, Pruned, Start, shown};
use crate::verify::Witness;

/// A record that was read.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its run.
    pub run: RunId,
    /// What it says of its ledger, and what the ledger must say of it.
    pub witness: Witness,
    /// Its writer is still there.
    pub is_running: bool,
    /// The digests of the policies that it was made under and that do not stand beside it; printable.
    pub missing: Vec<String>,
}

/// What came of it.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Joined {
    /// What is wrong.
    pub faults: Vec<Fault>,
    /// Runs whose ledger has no end of them, and whose record has none either: killed.
    pub killed: Vec<RunId>,
    /// Those that still go on.
    pub running: u64,
    /// Runs that ended, as their record says, and whose ledger has no end.
    pub no_end: Vec<RunId>,
    /// Records that were pruned.
    pub pruned: u64,
    /// When the last of them was pruned, and by whom; printable.
    pub last_pruned: Option<(String, String)>,
    /// Runs whose record is there and cannot be read.
    pub unread: Vec<RunId>,
    /// Records in other places, as the ledgers name them; printable.
    pub elsewhere: Vec<(Option<u64>, RunId, String)>,
    /// Runs that have a record and could not take a number.
    pub unnumbered: Vec<RunId>,
    /// Records that say that there is no ledger: nothing signed them, or a key that does not last.
    pub without: u64,
    /// Records without a line that no ledger has: their runs were killed before they began.
    pub not_begun: u64,
    /// The same, whose writers are still there.
    pub starting: u64,
    /// Records that say nothing about a ledger: they are older.
    pub older: u64,
}

/// Something that a ledger and the records say differently.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A run is in the ledger, and its record is not where it should be.
    Removed {
        /// The ledger.
        ledger: String,
        /// The number of the run, where it has one.
        no: Option<u64>,
        /// The run.
        run: RunId,
        /// Its stage; printable.
        stage: Option<String>,
        /// When it began; printable.
        started: String,
        /// Its policy is still there.
        policy_left: bool,
    },
    /// The policy that stood beside a record is gone.
    PolicyRemoved {
        /// The number of the run, where it has one.
        no: Option<u64>,
        /// The run.
        run: RunId,
        /// The digest of the policy; printable.
        sha256: String,
    },
    /// A policy without a record beside it, of a run that no ledger has.
    RecordOfPolicy {
        /// The run.
        run: RunId,
    },
    /// A record has a number in a ledger that does not have its run.
    NotInLedger {
        /// The ledger; printable.
        ledger: String,
        /// The number.
        no: u64,
        /// The run.
        run: RunId,
    },
    /// Records have numbers in a ledger that is not here.
    NoLedger {
        /// The ledger; printable.
        ledger: String,
        /// How many records.
        records: u64,
    },
    /// A ledger does not have the line that another one saw at its end.
    Cut {
        /// The ledger; printable.
        ledger: String,
        /// The one that saw it.
        by: String,
    },
    /// The record is not the one that the ledger speaks of.
    OtherRecord {
        /// The number, where the run has one.
        no: Option<u64>,
        /// The run.
        run: RunId,
    },
    /// The ledger before the start of a run is not the one that the run saw.
    OtherLedger {
        /// The number.
        no: u64,
        /// The run.
        run: RunId,
    },
}

impl Fault {
    /// The word for it in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Fault::Removed { .. } => "record_removed",
            Fault::PolicyRemoved { .. } => "policy_removed",
            Fault::RecordOfPolicy { .. } => "record_of_policy_removed",
            Fault::NotInLedger { .. } => "not_in_ledger",
            Fault::NoLedger { .. } => "ledger_missing",
            Fault::Cut { .. } => "ledger_cut",
            Fault::OtherRecord { .. } => "other_record",
            Fault::OtherLedger { .. } => "other_ledger",
        }
    }

    /// The run that it is about.
    pub fn run(&self) -> Option<RunId> {
        match self {
            Fault::Removed { run, .. }
            | Fault::PolicyRemoved { run, .. }
            | Fault::RecordOfPolicy { run }
            | Fault::NotInLedger { run, .. }
            | Fault::OtherRecord { run, .. }
            | Fault::OtherLedger { run, .. } => Some(*run),
            Fault::NoLedger { .. } | Fault::Cut { .. } => None,
        }
    }

    /// The number that it is about.
    pub fn no(&self) -> Option<u64> {
        match self {
            Fault::Removed { no, .. } | Fault::PolicyRemoved { no, .. } | Fault::OtherRecord { no, .. } => {
                *no
            }
            Fault::NotInLedger { no, .. } | Fault::OtherLedger { no, .. } => Some(*no),
            Fault::RecordOfPolicy { .. } | Fault::NoLedger { .. } | Fault::Cut { .. } => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Removed { no, run, stage, started, policy_left, .. } => {
                write!(f, "{}the record of {run} was removed (", number(*no))?;
                if let Some(stage) = stage {
                    write!(f, "{stage}, ")?;
                }
                let left = if *policy_left { ", its policy is still there" } else { "" };
                write!(f, "{started}{left})")
            }
            Fault::PolicyRemoved { no, run, sha256 } => {
                let short = sha256.get(..16).unwrap_or(sha256);
                write!(f, "{}the policy beside the record of {run} was removed ({short})", number(*no))
            }
            Fault::RecordOfPolicy { run } => {
                write!(f, "the record of {run} was removed: its policy is still there")
            }
            Fault::NotInLedger { ledger, no, run } => write!(
                f,
                "number {no}: {run} has it in its record, and not in the ledger {ledger}: that was cut or replaced, or \
                 its machine crashed"
            ),
            Fault::NoLedger { ledger, records } => {
                let plural = if *records == 1 { " has its number" } else { "s have their numbers" };
                write!(
                    f,
                    "the ledger {ledger} is not here, and {records} record{plural} from it: it was removed, or they \
                     come from another machine"
                )
            }
            Fault::Cut { ledger, by } => write!(
                f,
                "the ledger {ledger} does not have the line that {by} saw at its end: it was cut, replaced or removed"
            ),
            Fault::OtherRecord { no, run } => {
                write!(f, "{}the record of {run} is not the one that the ledger has", number(*no))
            }
            Fault::OtherLedger { no, run } => {
                write!(f, "number {no}: the ledger before it is not the one that {run} saw when it started")
            }
        }
    }
}

fn number(no: Option<u64>) -> String {
    no.map_or_else(|| "not numbered: ".to_owned(), |no| format!("number {no}: "))
}

/// Holds ledgers and the records of a directory against each other. `policies` are the runs that a policy stands there of
/// without a record.
pub fn join(books: &[Book], records: &[Seen], policies: &BTreeSet<RunId>) -> Joined {
    let mut joined = Joined::default();
    let by_run: BTreeMap<RunId, &Seen> = records.iter().map(|seen| (seen.run, seen)).collect();
    let mut policies = policies.clone();
    // After a move to another machine, or a change of the key, that a record was pruned is in another ledger than its start.
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
            // It was killed between the two lines, before anything ran: its record has nothing else.
            Some(book) if !book.runs.contains_key(&seen.run) && witness.lines > 1 => {
                joined.faults.push(Fault::NotInLedger { ledger: book.name.clone(), no, run: seen.run });
            }
            Some(_) => {}
        }
    }
    for (ledger, records) in missing {
        joined.faults.push(Fault::NoLedger { ledger: shown(ledger), records });
    }
    joined.faults.extend(policies.into_iter().map(|run| Fault::RecordOfPolicy { run }));
    joined
}

/// The ledgers of which one has seen more than is there.
fn cut<'a>(by: &'a Book, books: &'a [Book]) -> impl Iterator<Item = Fault> + 'a {
    let proved = by.key.iter().flat_map(|_| &by.others);
    let cut = proved.filter(|(name, heads)| {
        let book = books.iter().find(|book| book.name == **name);
        book.is_none_or(|book| heads.iter().any(|head| !book.digests.contains(head)))
    });
    cut.map(|(name, _)| Fault::Cut { ledger: shown(name), by: by.name.clone() })
}

impl Joined {
    /// Whether a run that began or ended meanwhile may be among what was found.
    pub fn may_be_outdated(&self) -> bool {
        let is_of_record = |fault: &Fault| {
            matches!(fault, Fault::NotInLedger { .. } | Fault::NoLedger { .. } | Fault::Cut { .. })
        };
        !self.killed.is_empty() || !self.no_end.is_empty() || self.faults.iter().any(is_of_record)
    }

    /// Takes out what ledgers explain that were read after the records, and after the ledgers `before`.
    pub fn check_again(&mut self, before: &[Book], books: &[Book]) {
        let cut: Vec<Fault> = before.iter().flat_map(|book| cut(book, books)).collect();
        let find = |run: &RunId| books.iter().find_map(|book| book.runs.get(run));
        self.faults.retain(|fault| match fault {
            Fault::NotInLedger { run, .. } => find(run).is_none(),
            Fault::Cut { .. } => cut.contains(fault),
            Fault::NoLedger { ledger, .. } => !books.iter().any(|book| book.name == *ledger),
            _ => true,
        });
        let has_no_end = |run: &RunId| find(run).is_none_or(|entry| entry.end.is_none());
        self.killed.retain(has_no_end);
        self.no_end.retain(has_no_end);
    }

    /// Takes out the runs whose records are there, and could not be read: nobody removed those.
    pub fn keep_unread(&mut self, unread: &BTreeSet<RunId>) {
        let is_unread = |fault: &Fault| matches!(fault, Fault::Removed { run, .. } if unread.contains(run));
        self.unread
            .extend(self.faults.extract_if(.., |fault| is_unread(fault)).filter_map(|fault| fault.run()));
    }

    /// What a ledger says of one run.
    fn entry(
        &mut self,
        book: &Book,
        run: RunId,
        entry: &Entry,
        seen: Option<&Seen>,
        pruned: Option<&Pruned>,
        policy_left: bool,
    ) {
        if let (None, Some(Pruned { ts, user })) = (seen, pruned) {
            // The run is in two ledgers where it was pruned on another machine.
            self.pruned += u64::from(entry.pruned.is_some());
            let who = user.as_deref().map_or_else(|| "unknown".to_owned(), shown);
            if self.last_pruned.as_ref().is_none_or(|(last, _)| *last < shown(ts)) {
                self.last_pruned = Some((shown(ts), who));
            }
            return;
        }
        // Of a ledger whose beginning was cut; that is told.
        let Some(start) = &entry.start else { return };
        let Some(seen) = seen else {
            match &start.file {
                Some(file) => self.elsewhere.push((start.no, run, shown(file))),
                None => self.faults.push(Fault::Removed {
                    ledger: book.name.clone(),
                    no: start.no,
                    run,
                    stage: start.stage.as_deref().map(shown),
                    started: shown(&start.ts),
                    policy_left,
                }),
            }
            return;
        };
        self.compare(run, start, entry, seen, pruned.is_some());
    }

    /// A run that has both.
    fn compare(&mut self, run: RunId, start: &Start, entry: &Entry, seen: &Seen, is_pruned: bool) {
        let (no, witness) = (start.no, &seen.witness);
        let sealed = entry.end.as_ref().and_then(|end| end.sealed.as_ref());
        let is_same = (no.is_none() || witness.no == no)
            && (start.first.is_none() || start.first == witness.first)
            && sealed.is_none_or(|sealed| witness.sealed.as_ref() == Some(sealed));
        if !is_same {
            self.faults.push(Fault::OtherRecord { no, run });
        }
        if let Some(no) = no.filter(|_| witness.ledger_prev != start.prev) {
            self.faults.push(Fault::OtherLedger { no, run });
        }
        // What prune removes goes policy first, and it may have been stopped there.
        if start.file.is_none() && !is_pruned {
            let removed = |sha256: &String| Fault::PolicyRemoved { no, run, sha256: sha256.clone() };
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

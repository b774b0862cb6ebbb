//! What became of attempts, and which lines say so.

use exeat_policy::{Reason, Verdict};
use exeat_record::Via;
use serde::{Deserialize, Serialize};

use super::tally::via_word;
use crate::attempt;
use crate::query::Record;

/// Lines of the first run that are named by their `seq`.
const MAX_LINES: usize = 6;

/// Characters that are kept of who refused.
const MAX_REFUSER: usize = 80;

/// What stands for who refused where more are named than are told apart.
pub(super) const SOME_BOUND: &str = "a bound";

/// What became of attempts: equal ones are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Outcome {
    /// `None`: the record has a word that this version does not know.
    pub verdict: Option<Verdict>,
    /// `None` as with the verdict.
    pub reason: Option<Reason>,
    /// The way in which it came in, in the words of the record; `None`: the line does not say.
    pub via: Option<&'static str>,
    /// The connection had been let through, and was refused by what came over it.
    pub late: bool,
    /// Who refused, if somebody above the grants did. Not printable as it is.
    pub refused_by: Option<String>,
    /// The stage, by its number in the summary.
    pub(crate) stage: usize,
}

impl Outcome {
    /// Makes the outcome of attempts of which no decision is at hand.
    pub(super) fn new(verdict: Verdict, reason: Reason, via: Option<&'static str>) -> Outcome {
        let (verdict, reason) = (Some(verdict), Some(reason));
        Outcome { verdict, reason, via, late: false, refused_by: None, stage: 0 }
    }

    /// Reads what a decision says.
    pub(super) fn from_decision(record: &Record, stage: usize) -> Outcome {
        Outcome {
            verdict: record.verdict(),
            reason: record.reason(),
            via: record.via.as_deref().map(via_word),
            late: record.ip.is_some(),
            refused_by: record.refused_by.as_ref().map(|by| by.chars().take(MAX_REFUSER).collect()),
            stage,
        }
    }

    /// Returns the way, the verdict and the reason, if this version knows all three.
    pub(crate) fn known(&self) -> Option<(Via, Verdict, Reason)> {
        Some((self.via?.parse().ok()?, self.verdict?, self.reason?))
    }

    /// Whether the rules let it through, as far as is known: also in report mode, and where it then failed.
    pub(crate) fn is_let_through(&self) -> bool {
        self.known().is_some_and(|(_, verdict, reason)| attempt::is_let_through(verdict, reason))
    }

    /// Whether what came over the connection takes back that it was let through.
    pub(crate) fn is_taken_back(&self) -> bool {
        self.known().is_some_and(|(_, verdict, reason)| attempt::is_taken_back(self.late, verdict, reason))
    }

    /// Whether it was refused at once.
    pub(crate) fn is_refused(&self) -> bool {
        self.known().is_some() && !self.late && !self.is_let_through()
    }
}

/// The first lines that tell of something, for whoever looks them up.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Cited {
    /// The number of the first line among all that were read.
    pub(crate) since: u64,
    /// The first run, and the time of its line.
    pub(crate) run: String,
    pub(crate) first: String,
    /// The `seq` of lines of that run.
    pub(crate) lines: Vec<u64>,
    pub(crate) more_lines: bool,
    /// In how many runs, and the number of the last of them.
    pub(crate) runs: u64,
    first_run: u64,
    last_run: u64,
}

impl Cited {
    /// Adds a line: the number of its run, and its own among all.
    pub(super) fn add(&mut self, record: &Record, run: u64, number: u64) {
        if self.runs == 0 {
            self.since = number;
            self.first_run = run;
            self.run.clone_from(&record.run);
            self.first.clone_from(&record.ts);
        }
        if self.runs == 0 || self.last_run != run {
            self.runs += 1;
            self.last_run = run;
        }
        if self.runs == 1 && self.lines.len() < MAX_LINES {
            self.lines.push(record.seq);
        } else {
            self.more_lines = true;
        }
    }

    /// Adds what was cited elsewhere of the same. Runs of both are counted twice unless all are the same one, or the last of one is the
    /// first of the other.
    pub(crate) fn merge(&mut self, mut other: Cited) {
        if self.runs == 0 || (other.runs > 0 && other.since < self.since) {
            std::mem::swap(self, &mut other);
        }
        if other.runs == 0 {
            return;
        }
        if self.first_run == other.first_run {
            self.lines.append(&mut other.lines);
            self.lines.sort_unstable();
        }
        self.more_lines |= other.more_lines || !other.lines.is_empty() || self.lines.len() > MAX_LINES;
        self.lines.truncate(MAX_LINES);
        self.runs += other.runs - u64::from(other.first_run <= self.last_run);
        self.last_run = self.last_run.max(other.last_run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cited(lines: &[(u64, u64, u64)]) -> Cited {
        let mut all = Cited::default();
        for (run, number, seq) in lines {
            let record = Record { run: format!("R{run}"), seq: *seq, ..Record::default() };
            all.add(&record, *run, *number);
        }
        all
    }

    #[track_caller]
    fn check(parts: [&[(u64, u64, u64)]; 2]) {
        let whole = cited(&parts.concat());
        for [first, second] in [parts, [parts[1], parts[0]]] {
            let mut merged = cited(first);
            merged.merge(cited(second));
            let told = |it: &Cited| (it.since, it.run.clone(), it.lines.clone(), it.more_lines, it.runs);
            assert_eq!(told(&merged), told(&whole));
        }
    }

    #[test]
    fn parts_of_what_is_cited_add_up_to_the_whole_in_any_order() {
        check([&[], &[(1, 1, 5)]]);
        check([&[(1, 1, 5), (1, 2, 6)], &[(1, 3, 7)]]);
        check([&[(1, 1, 5)], &[(2, 2, 1), (3, 3, 1)]]);
        check([&[(1, 1, 5), (2, 2, 1)], &[(2, 3, 2), (3, 4, 1)]]);
        let many: Vec<_> = (1..8).map(|n| (1, n, n)).collect();
        check([&many[..4], &many[4..]]);
    }
}

//! Outcomes of attempts, and the lines that show them.

use exeat_policy::{Reason, Verdict};
use exeat_record::Via;
use serde::{Deserialize, Serialize};

use super::tally::via_word;
use crate::attempt;
use crate::query::Record;

/// The most lines of the first run that are cited.
const MAX_LINES: usize = 6;

/// The most characters that are kept of who refused.
const MAX_REFUSER: usize = 80;

/// Stands for who refused if there are too many different ones.
pub(super) const SOME_BOUND: &str = "a bound";

/// The outcome of attempts: equal ones are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct AttemptOutcome {
    /// The verdict; `None` if this version does not know the word in the record.
    pub verdict: Option<Verdict>,
    /// The reason; `None` if this version does not know the word in the record.
    pub reason: Option<Reason>,
    /// The way in which the request arrived, in the words of the record; `None` if the line does not say.
    pub via: Option<&'static str>,
    /// Whether the connection was first let through, then refused because of its content.
    pub late: bool,
    /// The ceiling or declaration that refused, if one did. Not printable without escaping.
    pub refused_by: Option<String>,
    /// The stage, by its number in the summary.
    pub(crate) stage: usize,
}

impl AttemptOutcome {
    /// Creates the outcome of attempts without a decision at hand.
    pub(super) fn new(verdict: Verdict, reason: Reason, via: Option<&'static str>) -> AttemptOutcome {
        let (verdict, reason) = (Some(verdict), Some(reason));
        AttemptOutcome { verdict, reason, via, late: false, refused_by: None, stage: 0 }
    }

    /// Reads the outcome of a decision.
    pub(super) fn from_decision(record: &Record, stage: usize) -> AttemptOutcome {
        AttemptOutcome {
            verdict: record.verdict(),
            reason: record.reason(),
            via: record.via.as_deref().map(via_word),
            late: record.ip.is_some(),
            refused_by: record.refused_by.as_ref().map(|by| by.chars().take(MAX_REFUSER).collect()),
            stage,
        }
    }

    /// Returns the via, the verdict and the reason, if this version knows all three.
    pub(crate) fn known(&self) -> Option<(Via, Verdict, Reason)> {
        Some((self.via?.parse().ok()?, self.verdict?, self.reason?))
    }

    /// Whether the rules let it through, as far as is known: also in report mode, and if it failed later.
    pub(crate) fn is_let_through(&self) -> bool {
        self.known().is_some_and(|(_, verdict, reason)| attempt::is_let_through(verdict, reason))
    }

    /// Whether it was refused at once.
    pub(crate) fn is_refused(&self) -> bool {
        self.known().is_some() && !self.late && !self.is_let_through()
    }
}

/// Cites the first lines about something.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Cited {
    /// The number of the first line among all lines read.
    pub(crate) since: u64,
    /// The first run, and the time of its line.
    pub(crate) run: String,
    pub(crate) first: String,
    /// The `seq` of the first lines in that run.
    pub(crate) lines: Vec<u64>,
    pub(crate) more_lines: bool,
    /// The number of runs, and the number of the last of them.
    pub(crate) runs: u64,
    first_run: u64,
    last_run: u64,
}

impl Cited {
    /// Adds a line: the number of its run, and its own number among all lines.
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

    /// Adds the lines that another row cites. Runs in both are counted twice, unless both are in the same one run or the last run of one is
    /// the first of the other.
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
    fn citations_merge_to_the_same_result_in_any_order() {
        check([&[], &[(1, 1, 5)]]);
        check([&[(1, 1, 5), (1, 2, 6)], &[(1, 3, 7)]]);
        check([&[(1, 1, 5)], &[(2, 2, 1), (3, 3, 1)]]);
        check([&[(1, 1, 5), (2, 2, 1)], &[(2, 3, 2), (3, 4, 1)]]);
        let many: Vec<_> = (1..8).map(|n| (1, n, n)).collect();
        check([&many[..4], &many[4..]]);
    }
}

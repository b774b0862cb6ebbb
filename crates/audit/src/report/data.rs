//! The data of a page.

use std::collections::BTreeMap;

use exeat_policy::Verdict;

use super::timeline::Timeline;
use crate::Moment;
use crate::query::Record;
use crate::summary::{Summary, Traffic};
use crate::verify::{self, Standing};

/// The most runs with a section of their own.
pub(super) const MAX_RUNS: usize = 50;
/// The most rows of a table.
pub(super) const MAX_ROWS: usize = 500;
/// The most attempts of one run that are listed in their order.
pub(super) const MAX_DENIED: usize = 200;
/// The most notes, files and policies of one run.
pub(super) const MAX_NOTES: usize = 100;
/// A page of many records.
#[derive(Debug)]
pub struct Report {
    pub(super) made: Made,
    pub(super) files: Vec<Source>,
    /// Sorted with the worst first, once all records are read.
    pub(super) runs: Vec<Run>,
    pub(super) more_runs: u64,
    /// The number of runs that have details.
    pub(super) in_full: usize,
    pub(super) summary: Summary,
    /// The stored policies by digest, so that runs share one text.
    pub(super) policies: BTreeMap<String, String>,
    /// The size of all stored policies.
    pub(super) policy_bytes: usize,
}

/// The author and date of a page.
#[derive(Debug, Clone)]
pub struct Made {
    /// The time at which the page was made.
    pub at: Moment,
    /// The user who made it.
    pub by: Option<String>,
    /// The machine on which it was made.
    pub on: Option<String>,
}

/// A record that was read.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) verified: Option<verify::Verification>,
    pub(super) flaws: Vec<String>,
    pub(super) more_flaws: u64,
    pub(super) lines: u64,
    /// The digest of the whole file.
    pub(super) sha256: String,
    /// The number of lines that the last checkpoint covers, and their root, according to the record.
    pub(super) sealed: Option<(u64, String)>,
}

impl Source {
    pub(super) fn standing(&self) -> Option<Standing> {
        self.verified.as_ref().map(verify::Verification::standing)
    }
}

/// A run. Strings are as in the record.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) file: usize,
    pub(super) name: String,
    pub(super) stage: Option<String>,
    pub(super) start: Option<Box<Record>>,
    pub(super) end: Option<Box<Record>>,
    /// The times of its first and its last line.
    pub(super) first: String,
    pub(super) last: String,
    pub(super) standing: Option<Standing>,
    pub(super) traffic: Traffic,
    pub(super) timeline: Timeline,
    /// Attempts that were not let through, in their order.
    pub(super) denied: Vec<Attempt>,
    /// The number of such attempts beyond those.
    pub(super) denied_more: u64,
    pub(super) sources: Vec<(String, String, String)>,
    pub(super) policies: Vec<Policy>,
    pub(super) notes: Vec<(String, String)>,
    pub(super) notes_more: u64,
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) time: String,
    pub(super) verdict: Verdict,
    /// Printable.
    pub(super) target: String,
    /// Printable.
    pub(super) why: String,
    /// The program that asked.
    pub(super) exe: Option<String>,
}

/// A policy that was in force.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) sha256: String,
    pub(super) mode: Option<String>,
    pub(super) stored: Stored,
}

/// The policy that is stored beside a record.
#[derive(Debug)]
pub(super) enum Stored {
    /// The stored policy has the digest that the record names, and is on the page.
    Same,
    /// The stored policy has another digest.
    Other,
    /// The stored policy is too long for the page.
    Long,
    /// The policy is not stored.
    None,
}

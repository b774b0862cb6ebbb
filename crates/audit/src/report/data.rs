//! What a page is made of.

use std::collections::BTreeMap;

use exeat_policy::Verdict;

use super::timeline::Timeline;
use crate::Moment;
use crate::query::Record;
use crate::summary::{Summary, Traffic};
use crate::verify::{self, Standing};

/// Runs with a section of their own.
pub(super) const MAX_RUNS: usize = 50;
/// Rows of a table.
pub(super) const MAX_ROWS: usize = 500;
/// Attempts of one run that are listed in their order.
pub(super) const MAX_DENIED: usize = 200;
/// Notes, files and policies of one run.
pub(super) const MAX_NOTES: usize = 100;
/// What a page is made of.
#[derive(Debug)]
pub struct Report {
    pub(super) made: Made,
    pub(super) files: Vec<Source>,
    /// The worst first, once all are read.
    pub(super) runs: Vec<Run>,
    pub(super) more_runs: u64,
    /// Runs of `runs` that have their details.
    pub(super) in_full: usize,
    pub(super) summary: Summary,
    /// The stored policies, by digest: one text for all runs that it held in.
    pub(super) policies: BTreeMap<String, String>,
    /// Bytes of them.
    pub(super) policy_bytes: usize,
}

/// When and by whom a page was made.
#[derive(Debug, Clone)]
pub struct Made {
    /// When.
    pub at: Moment,
    /// By whom.
    pub by: Option<String>,
    /// On which machine.
    pub on: Option<String>,
}

/// A record that was read.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) verified: Option<verify::Report>,
    pub(super) flaws: Vec<String>,
    pub(super) more_flaws: u64,
    pub(super) lines: u64,
    /// Of all its bytes.
    pub(super) sha256: String,
    /// The lines that the last checkpoint covers, and their root, as the record says.
    pub(super) sealed: Option<(u64, String)>,
}

impl Source {
    pub(super) fn standing(&self) -> Option<Standing> {
        self.verified.as_ref().map(verify::Report::standing)
    }
}

/// One run. Strings are as the record has them.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) file: usize,
    pub(super) name: String,
    pub(super) stage: Option<String>,
    pub(super) start: Option<Box<Record>>,
    pub(super) end: Option<Box<Record>>,
    /// The time of its first line, and of its last.
    pub(super) first: String,
    pub(super) last: String,
    pub(super) standing: Option<Standing>,
    pub(super) traffic: Traffic,
    pub(super) timeline: Timeline,
    /// What was not let through, in its order.
    pub(super) denied: Vec<Attempt>,
    /// Lines beyond those.
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

/// A policy that held.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) sha256: String,
    pub(super) mode: Option<String>,
    pub(super) stored: Stored,
}

/// The policy that is stored beside a record.
#[derive(Debug)]
pub(super) enum Stored {
    /// It has the digest that the record names, and is in the page.
    Same,
    /// It has another one.
    Other,
    /// It is longer than what is shown.
    Long,
    /// There is none.
    None,
}

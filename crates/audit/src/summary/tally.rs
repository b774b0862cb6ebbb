//! Counts attempts and bytes, and defines the orders of hosts.

use std::fmt;

use exeat_policy::Verdict;
use exeat_record::Via;
use serde::{Deserialize, Serialize};

use crate::Moment;
use crate::query::Record;

/// The most bytes of a name that are kept: no host name is longer (RFC 1035, section 2.3.4), and neither is a rule.
pub(super) const MAX_NAME: usize = 512;

/// Counts of one host, of a run, or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Attempts by verdict.
    pub tally: Tally,
    /// Bytes from the sandbox to the internet: for each connection the bytes at its end, or else the last on record. Open connections may
    /// have sent more.
    pub bytes_up: u64,
    /// Bytes back.
    pub bytes_down: u64,
    /// Connections that were let through and have no end on record: the run goes on, or was killed.
    pub open: u64,
    /// Attempts that were let through without a rule that allows it, or by one that nobody approved.
    pub unapproved: u64,
}

/// The order of hosts, the greatest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Sort {
    /// Sorts by denials, then by those that report mode let through, by failures, by attempts that were let through.
    #[default]
    Denied,
    /// Sorts by bytes from the sandbox to the internet.
    Up,
    /// Sorts by bytes from the internet to the sandbox.
    Down,
    /// Sorts by attempts that did not reach the host.
    Failed,
    /// Sorts by attempts of any kind.
    Attempts,
    /// Sorts by attempts that were let through.
    Allowed,
}

impl Sort {
    /// The orders in which hosts are printed.
    pub const PRINTED: [Sort; 5] = [Sort::Denied, Sort::Up, Sort::Down, Sort::Failed, Sort::Attempts];
}

impl Traffic {
    /// Whether the bytes are those of every connection up to its end.
    pub fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// Adds the counts of another row.
    pub(crate) fn merge(&mut self, other: &Traffic) {
        self.tally.merge(&other.tally);
        self.bytes_up = self.bytes_up.saturating_add(other.bytes_up);
        self.bytes_down = self.bytes_down.saturating_add(other.bytes_down);
        self.open = self.open.saturating_add(other.open);
        self.unapproved = self.unapproved.saturating_add(other.unapproved);
    }

    /// Counts a decision.
    pub(super) fn decided(&mut self, record: &Record) {
        self.tally.add(record);
        if record.approval() == Some(None) {
            self.unapproved = self.unapproved.saturating_add(record.count.unwrap_or(1));
        }
    }
}

/// Attempts by verdict. A line that stands for several attempts counts as several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Verdict `allow`.
    pub allowed: u64,
    /// Verdict `deny`.
    pub denied: u64,
    /// Verdict `would_deny`.
    pub would_deny: u64,
    /// Verdict `error`.
    pub errors: u64,
    /// Connections that were let through and not reached.
    pub failed: u64,
}

impl Tally {
    /// Counts one line: a decision, or the close of a connection that was not reached.
    pub fn add(&mut self, record: &Record) {
        if record.is_failed() {
            self.failed = self.failed.saturating_add(1);
        }
        if !record.is_decision() {
            return;
        }
        let count = match record.verdict() {
            Some(Verdict::Allow) => &mut self.allowed,
            Some(Verdict::Deny) => &mut self.denied,
            Some(Verdict::WouldDeny) => &mut self.would_deny,
            Some(Verdict::Error) => &mut self.errors,
            None => return,
        };
        *count = count.saturating_add(record.count.unwrap_or(1));
    }

    /// Returns the attempts that did not reach the host: verdict `error`, or let through and failed.
    pub fn not_reached(&self) -> u64 {
        self.errors.saturating_add(self.failed)
    }

    /// Returns the attempts that were let through and are not known to have failed.
    pub fn reached(&self) -> u64 {
        self.allowed.saturating_add(self.would_deny).saturating_sub(self.failed)
    }

    /// Returns the number of all attempts.
    pub fn attempts(&self) -> u64 {
        let Tally { allowed, denied, would_deny, errors, failed: _ } = self;
        [denied, would_deny, errors].into_iter().fold(*allowed, |sum, count| sum.saturating_add(*count))
    }

    /// Adds the counts of another row.
    pub(crate) fn merge(&mut self, other: &Tally) {
        let Tally { allowed, denied, would_deny, errors, failed } = other;
        for (sum, count) in [
            (&mut self.allowed, allowed),
            (&mut self.denied, denied),
            (&mut self.would_deny, would_deny),
            (&mut self.errors, errors),
            (&mut self.failed, failed),
        ] {
            *sum = sum.saturating_add(*count);
        }
    }

    /// Returns the number of attempts with a verdict.
    pub fn count(&self, verdict: Verdict) -> u64 {
        match verdict {
            Verdict::Allow => self.allowed,
            Verdict::Deny => self.denied,
            Verdict::WouldDeny => self.would_deny,
            Verdict::Error => self.errors,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} allowed, {} denied", self.allowed, self.denied)?;
        if self.would_deny > 0 {
            write!(f, ", {} would be denied", self.would_deny)?;
        }
        if self.not_reached() > 0 {
            write!(f, ", {} failed", self.not_reached())?;
        }
        Ok(())
    }
}

pub(super) fn widen(first: &mut Option<Moment>, last: &mut Option<Moment>, at: Option<Moment>) {
    let Some(at) = at else { return };
    if first.is_none_or(|first| at < first) {
        *first = Some(at);
    }
    if last.is_none_or(|last| at > last) {
        *last = Some(at);
    }
}

/// Returns the word for how a request arrived. The record may have one that this version does not know.
pub(super) fn via_word(word: &str) -> &'static str {
    word.parse().map_or("other", Via::as_str)
}

//! Counts attempts over the time of a run, in a fixed number of steps.
//!
//! Time is microseconds since the run began; steps double in length when the run outgrows them. Clock times are computed from the first
//! line, so a clock that was set in between does not matter.

use crate::Moment;
use crate::query::Record;
use crate::summary::Tally;

/// The most steps.
const STEPS: usize = 60;

/// The first length of a step, in microseconds.
const SHORTEST: u64 = 10_000;

/// Attempts by verdict in each step.
#[derive(Debug)]
pub(super) struct Timeline {
    /// The length of a step, in microseconds.
    step: u64,
    steps: Vec<Tally>,
    /// The latest moment of any line.
    end: u64,
    /// The time of the first line, and its microseconds.
    begin: Option<(Moment, u64)>,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline { step: SHORTEST, steps: vec![Tally::default(); STEPS], end: 0, begin: None }
    }
}

impl Timeline {
    /// Creates the timeline of a run with this first line.
    pub(super) fn beginning(first: &Record) -> Timeline {
        Timeline { begin: Moment::parse(&first.ts).map(|at| (at, first.mono_us)), ..Timeline::default() }
    }

    /// Returns the clock time this many microseconds after the run began, if the first line has a time.
    pub(super) fn clock(&self, us: u64) -> Option<Moment> {
        let (at, since) = self.begin?;
        at.moved(i64::try_from(us).ok()?.checked_sub(i64::try_from(since).ok()?)?)
    }

    /// Extends the timeline to a moment, in microseconds.
    fn reach(&mut self, us: u64) {
        self.end = self.end.max(us);
        while self.end / self.step >= STEPS as u64 {
            let mut merged: Vec<Tally> = self.steps.chunks(2).map(sum).collect();
            merged.resize(STEPS, Tally::default());
            self.steps = merged;
            self.step = self.step.saturating_mul(2);
        }
    }

    /// Extends the timeline to a line, and counts it if it is an attempt or the end of one that failed.
    pub(super) fn add(&mut self, record: &Record) {
        self.reach(record.mono_us);
        let at = usize::try_from(record.mono_us / self.step).unwrap_or(usize::MAX);
        if let Some(step) = self.steps.get_mut(at) {
            step.add(record);
        }
    }

    /// Returns the steps of the run, up to its end.
    pub(super) fn steps(&self) -> &[Tally] {
        let count = usize::try_from(self.end / self.step).unwrap_or(STEPS).saturating_add(1);
        self.steps.get(..count).unwrap_or(&self.steps)
    }

    /// Returns the length of a step, in microseconds.
    pub(super) fn step(&self) -> u64 {
        self.step
    }
}

fn sum(tallies: &[Tally]) -> Tally {
    let mut all = Tally::default();
    tallies.iter().for_each(|tally| all.merge(tally));
    all
}

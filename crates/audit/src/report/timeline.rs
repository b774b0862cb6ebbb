//! Attempts over the time of a run, in a fixed number of steps.
//!
//! Time is microseconds since the run began; steps double in length when the run outgrows them. What the clock showed is worked out from the
//! first line: a clock that was set in between moves nothing here.

use crate::Moment;
use crate::query::Record;
use crate::summary::Tally;

/// Steps at most.
const STEPS: usize = 60;

/// The first length of a step, in microseconds.
const SHORTEST: u64 = 10_000;

/// Attempts by verdict in each step.
#[derive(Debug)]
pub(super) struct Timeline {
    /// Microseconds.
    step: u64,
    steps: Vec<Tally>,
    /// The latest moment that was heard of.
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
    /// The timeline of a run with this first line.
    pub(super) fn beginning(first: &Record) -> Timeline {
        Timeline { begin: Moment::of(&first.ts).map(|at| (at, first.mono_us)), ..Timeline::default() }
    }

    /// What the clock showed so many microseconds after the run began, if the first line says when that was.
    pub(super) fn clock(&self, us: u64) -> Option<Moment> {
        let (at, since) = self.begin?;
        at.moved(i64::try_from(us).ok()?.checked_sub(i64::try_from(since).ok()?)?)
    }

    /// Makes room for a moment, in microseconds.
    fn reach(&mut self, us: u64) {
        self.end = self.end.max(us);
        while self.end / self.step >= STEPS as u64 {
            let mut merged: Vec<Tally> = self.steps.chunks(2).map(sum).collect();
            merged.resize(STEPS, Tally::default());
            self.steps = merged;
            self.step = self.step.saturating_mul(2);
        }
    }

    /// Makes room for a line, and counts it if it is an attempt or the end of one that failed.
    pub(super) fn add(&mut self, record: &Record) {
        self.reach(record.mono_us);
        let at = usize::try_from(record.mono_us / self.step).unwrap_or(usize::MAX);
        if let Some(step) = self.steps.get_mut(at) {
            step.add(record);
        }
    }

    /// The steps of the run, up to its end.
    pub(super) fn steps(&self) -> &[Tally] {
        let count = usize::try_from(self.end / self.step).unwrap_or(STEPS).saturating_add(1);
        self.steps.get(..count).unwrap_or(&self.steps)
    }

    /// The length of a step, in microseconds.
    pub(super) fn step(&self) -> u64 {
        self.step
    }
}

fn sum(tallies: &[Tally]) -> Tally {
    let mut all = Tally::default();
    tallies.iter().for_each(|tally| all.merge(tally));
    all
}

//! Requests that are refused: each has lines of its own, until they are a flood. Then they are counted, and a line a second tells of
//! those that are equal.
//!
//! Dials that fail are folded alike. Nothing that is let out is ever folded, nor what is refused after it was let out: the caller sees to that. Where the record
//! cannot be written, a refusal that would be counted is an error like any other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exeat_policy::{Reason, Target, Verdict};
use exeat_record::{Decision, Error, Event, Log, Via};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::fold::{Bucket, Fold};
use crate::limits;

/// Writes them, or counts them.
#[derive(Debug)]
pub(crate) struct Refusals {
    state: Mutex<State>,
    /// There is something to wait for.
    wake: Notify,
}

/// How a refusal is on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// In a line of its own: a close follows.
    Alone,
    /// Counted: a line with a count follows, and nothing else.
    Folded,
}

#[derive(Debug)]
struct State {
    bucket: Bucket,
    /// The same for dials.
    dials: Bucket,
    /// The oldest first, so that each has its turn.
    folds: VecDeque<(Key, Fold)>,
    /// When the first of them is to be told.
    due: Option<Instant>,
    /// Everything is counted, and told at the end.
    held_back: bool,
}

/// What is equal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    via: Via,
    verdict: Verdict,
    reason: Reason,
    /// Where the policy's digest is that stands in the line.
    under: usize,
    /// `None`: whatever else was refused so.
    what: Option<(Option<Target>, Option<String>)>,
}

impl Refusals {
    pub(crate) fn new() -> Self {
        let state = State {
            bucket: Bucket::new(limits::REFUSALS),
            dials: Bucket::new(limits::FAILED_DIALS),
            folds: VecDeque::new(),
            due: None,
            held_back: false,
        };
        Self { state: Mutex::new(state), wake: Notify::new() }
    }

    /// Has a refusal on record before it is answered, or in a flood about a second later.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(crate) fn write(&self, log: &Log, decision: Decision) -> Result<Told, Error> {
        let now = Instant::now();
        let mut state = self.lock();
        if !state.held_back && state.bucket.take(now) {
            return log.write(Event::Decision(decision)).map(|_| Told::Alone);
        }
        self.fold(&mut state, log, decision, now).map(|()| Told::Folded)
    }

    /// From here on refusals are counted, and told by [`flush`](Self::flush) alone.
    pub(crate) fn hold_back(&self) {
        self.lock().held_back = true;
    }

    /// Whether a dial that is about to begin has lines of its own, should it fail.
    pub(crate) fn begin_dial(&self) -> bool {
        self.lock().dials.take(Instant::now())
    }

    /// Such a dial did not fail.
    pub(crate) fn dialled(&self) {
        self.lock().dials.give_back();
    }

    /// Counts a dial that failed, and has no line of its own.
    pub(crate) fn dial_failed(&self, log: &Log, decision: Decision) -> Result<(), Error> {
        self.fold(&mut self.lock(), log, decision, Instant::now())
    }

    fn fold(&self, state: &mut State, log: &Log, decision: Decision, now: Instant) -> Result<(), Error> {
        state.count(decision);
        match state.due {
            _ if state.held_back => {}
            None => {
                state.due = Some(now + limits::FOLD_REFUSALS);
                self.wake.notify_one();
            }
            Some(due) if due <= now => state.tell(log, now, limits::FOLDED_LINES),
            Some(_) => {}
        }
        match log.failure() {
            Some(first) => Err(Error::Stopped { first }),
            None => Ok(()),
        }
    }

    /// Has what is counted told in time. Does not end; to be dropped at any moment.
    pub(crate) async fn tend(&self, log: &Log) {
        loop {
            match self.tell_due(log) {
                None => self.wake.notified().await,
                Some(due) => sleep_until(due).await,
            }
        }
    }

    /// Writes what is due, and says when the next is. Before the wait and not behind it: a listener that has connections without a
    /// pause drops what it tends with each of them.
    fn tell_due(&self, log: &Log) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.held_back {
            return None;
        }
        if state.due.is_some_and(|due| due <= now) {
            state.tell(log, now, limits::FOLDED_LINES);
        }
        state.due
    }

    /// Writes all that is counted and not told.
    pub(crate) fn flush(&self, log: &Log) {
        self.lock().tell(log, Instant::now(), usize::MAX);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self, mut decision: Decision) {
        let under = decision.under.as_ref().map_or(0, |under| Arc::as_ptr(under).addr());
        let Decision { via, verdict, reason, .. } = decision;
        let what = Some((decision.target.clone(), decision.error.clone()));
        let mut key = Key { via, verdict, reason, under, what };
        if let Some((_, fold)) = self.folds.iter_mut().find(|(known, _)| *known == key) {
            return fold.count(1);
        }
        // What the first one had, and others need not have.
        (decision.conn, decision.process) = (None, None);
        (decision.method, decision.host_raw) = (None, None);
        (decision.ips, decision.dns) = (Vec::new(), None);
        if self.folds.iter().filter(|(known, _)| known.what.is_some()).count() >= limits::FOLDED_APART {
            key.what = None;
            if let Some((_, fold)) = self.folds.iter_mut().find(|(known, _)| *known == key) {
                return fold.count(1);
            }
            (decision.target, decision.rule, decision.refused_by) = (None, None, None);
            decision.error = Some("too many refusals for lines of their own".to_owned());
        }
        let mut fold = Fold::new(Event::Decision(decision), limits::FOLD_REFUSALS);
        fold.count(1);
        self.folds.push_back((key, fold));
    }

    /// Writes lines for the oldest, `most` at most.
    fn tell(&mut self, log: &Log, now: Instant, most: usize) {
        let lines = self.folds.len().min(most);
        for (_, mut fold) in self.folds.drain(..lines) {
            fold.write(log, now, limits::FOLD_REFUSALS);
        }
        self.due = (!self.folds.is_empty()).then_some(now + limits::FOLD_REFUSALS);
    }
}

#[cfg(test)]
mod tests;

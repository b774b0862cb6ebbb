//! Records refused requests. Each gets its own lines, unless there is a flood: then equal ones are counted, and one
//! line a second reports a count.
//!
//! Failed dials are folded in the same way. A connection that was let through is never folded, even if it is refused
//! later; the callers ensure that. If the record cannot be written, counting a refusal is an error too.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exeat_policy::{Reason, Target, Verdict};
use exeat_record::{Event, Log, LogError, RequestDecision, Via};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::fold::{Bucket, Fold};
use crate::limits;

/// Writes or counts refusals.
#[derive(Debug)]
pub(crate) struct Refusals {
    state: Mutex<State>,
    /// Wakes the background task when there are counts to write.
    wake: Notify,
}

/// The place of a refusal in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// In its own line; a close follows.
    Alone,
    /// In a count; no other line follows.
    Folded,
}

#[derive(Debug)]
struct State {
    bucket: Bucket,
    /// The bucket for dials.
    dials: Bucket,
    /// Oldest first, so that each gets its turn.
    folds: VecDeque<(Key, Fold)>,
    /// When the next line is due.
    due: Option<Instant>,
    /// Whether everything is counted, and written at the end.
    held_back: bool,
}

/// The fields that equal refusals have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    via: Via,
    verdict: Verdict,
    reason: Reason,
    /// The address of the policy digest in the line.
    under: usize,
    /// `None` for the rest: all refusals with the fields above and no own entry.
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

    /// Records a refusal before it is answered, or in a flood about a second later.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(crate) fn write(&self, log: &Log, decision: RequestDecision) -> Result<Recorded, LogError> {
        let now = Instant::now();
        let mut state = self.lock();
        if !state.held_back && state.bucket.take(now) {
            return log.write(Event::Decision(decision)).map(|_| Recorded::Alone);
        }
        self.fold(&mut state, log, decision, now).map(|()| Recorded::Folded)
    }

    /// Counts all further refusals; only [`flush`](Self::flush) writes them.
    pub(crate) fn hold_back(&self) {
        self.lock().held_back = true;
    }

    /// Whether the dial that begins now gets its own lines if it fails.
    pub(crate) fn begin_dial(&self) -> bool {
        self.lock().dials.take(Instant::now())
    }

    /// Returns the token of a dial that succeeded.
    pub(crate) fn dial_succeeded(&self) {
        self.lock().dials.give_back();
    }

    /// Counts a failed dial that does not get a separate line.
    pub(crate) fn count_failed_dial(&self, log: &Log, decision: RequestDecision) -> Result<(), LogError> {
        self.fold(&mut self.lock(), log, decision, Instant::now())
    }

    fn fold(
        &self,
        state: &mut State,
        log: &Log,
        decision: RequestDecision,
        now: Instant,
    ) -> Result<(), LogError> {
        state.count(decision);
        match state.due {
            _ if state.held_back => {}
            None => {
                state.due = Some(now + limits::FOLD_REFUSALS);
                self.wake.notify_one();
            }
            Some(due) if due <= now => state.write_counts(log, now, limits::FOLDED_LINES),
            Some(_) => {}
        }
        match log.failure() {
            Some(first) => Err(LogError::Stopped { first }),
            None => Ok(()),
        }
    }

    /// Writes the counts when they are due. Never completes; cancel-safe.
    pub(crate) async fn run_background(&self, log: &Log) {
        loop {
            match self.write_due(log) {
                None => self.wake.notified().await,
                Some(due) => sleep_until(due).await,
            }
        }
    }

    /// Writes the counts that are due, and returns when the next ones are. The caller writes before it waits,
    /// because a busy listener cancels its background task with each connection.
    fn write_due(&self, log: &Log) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.held_back {
            return None;
        }
        if state.due.is_some_and(|due| due <= now) {
            state.write_counts(log, now, limits::FOLDED_LINES);
        }
        state.due
    }

    /// Writes all counts.
    pub(crate) fn flush(&self, log: &Log) {
        self.lock().write_counts(log, Instant::now(), usize::MAX);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self, mut decision: RequestDecision) {
        let under = decision.under.as_ref().map_or(0, |under| Arc::as_ptr(under).addr());
        let RequestDecision { via, verdict, reason, .. } = decision;
        let what = Some((decision.target.clone(), decision.error.clone()));
        let mut key = Key { via, verdict, reason, under, what };
        if let Some((_, fold)) = self.folds.iter_mut().find(|(known, _)| *known == key) {
            return fold.count(1);
        }
        // Equal refusals need not share these fields.
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

    /// Writes up to `most` lines, the oldest counts first.
    fn write_counts(&mut self, log: &Log, now: Instant, most: usize) {
        let lines = self.folds.len().min(most);
        for (_, mut fold) in self.folds.drain(..lines) {
            fold.write(log, now, limits::FOLD_REFUSALS);
        }
        self.due = (!self.folds.is_empty()).then_some(now + limits::FOLD_REFUSALS);
    }
}

#[cfg(test)]
mod tests;

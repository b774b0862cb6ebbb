//! Folds equal events into record lines with a count. It decides nothing and loses no count: every event is in some
//! line in the end.

use std::time::Duration;

use exeat_record::{Event, Log};
use tokio::time::Instant;

/// Limits how many events get record lines of their own: a burst, then a rate per second.
#[derive(Debug)]
pub(crate) struct Bucket {
    burst: u64,
    rate: u64,
    /// Tokens currently available.
    tokens: u64,
    /// The time up to which tokens were added.
    filled: Instant,
}

impl Bucket {
    pub(crate) fn new((burst, rate): (u64, u64)) -> Self {
        Self { burst, rate, tokens: burst, filled: Instant::now() }
    }

    /// Takes a token. Returns `false` if there is none.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let since = u64::try_from(now.duration_since(self.filled).as_millis()).unwrap_or(u64::MAX);
        let more = since.saturating_mul(self.rate) / 1000;
        if more > 0 {
            self.tokens = self.tokens.saturating_add(more).min(self.burst);
            self.filled = now;
        }
        let room = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        room
    }

    /// Returns a token that was not needed.
    pub(crate) fn give_back(&mut self) {
        self.tokens = self.tokens.saturating_add(1).min(self.burst);
    }
}

/// Equal events that share record lines.
#[derive(Debug)]
pub(crate) struct Fold {
    /// The record line without its count.
    event: Event,
    /// Events that are in no line yet.
    pending: u64,
    /// When the last line was written; `None` before the first one.
    last: Option<Instant>,
    /// The minimum time between the last line and the next one.
    pause: Duration,
}

impl Fold {
    /// Creates a fold without events. `pause` is the minimum time between its first two lines.
    pub(crate) fn new(event: Event, pause: Duration) -> Self {
        Self { event, pending: 0, last: None, pause }
    }

    pub(crate) fn count(&mut self, times: u64) {
        self.pending = self.pending.saturating_add(times);
    }

    /// Whether no line has been written yet.
    pub(crate) fn is_new(&self) -> bool {
        self.last.is_none()
    }

    /// Whether some events are in no line yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.pending > 0
    }

    /// Takes the events that are in no line yet, and returns their number.
    pub(crate) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.pending)
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.pending > 0 && self.last.is_none_or(|last| now.duration_since(last) >= self.pause)
    }

    /// Writes a line for all events that are in none yet, and returns their number. The pause doubles with each
    /// line, up to `longest`, so that a flood cannot fill a disk.
    pub(crate) fn write(&mut self, log: &Log, now: Instant, longest: Duration) -> u64 {
        let times = self.take();
        if times == 0 {
            return 0;
        }
        let mut event = self.event.clone();
        let count = Some(times).filter(|times| *times > 1);
        match &mut event {
            Event::Decision(decision) => decision.count = count,
            Event::Dns(question) => question.count = count,
            Event::Note(note) => note.count = Some(times),
            _ => {}
        }
        tracing::debug!(?event, "folded");
        // An error changes nothing here: these events let nothing out, and after a failure the log refuses every
        // decision.
        let _ = log.write(event);
        if self.last.replace(now).is_some() {
            self.pause = (self.pause * 2).min(longest);
        }
        times
    }
}

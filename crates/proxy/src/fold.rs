//! Lines of the record that stand for several: how many may have lines of their own, and the counting of the others until a line
//! tells of them. It decides nothing, and forgets nothing: what was counted is in a line once it is written.

use std::time::Duration;

use exeat_record::{Event, Log};
use tokio::time::Instant;

/// How many may have lines of their own: so many at once, and so many more in each second.
#[derive(Debug)]
pub(crate) struct Bucket {
    burst: u64,
    rate: u64,
    /// Those that there is room for at this moment.
    tokens: u64,
    /// Up to when these were counted.
    filled: Instant,
}

impl Bucket {
    pub(crate) fn new((burst, rate): (u64, u64)) -> Self {
        Self { burst, rate, tokens: burst, filled: Instant::now() }
    }

    /// Whether there is room for one more, which then is taken.
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

    /// Gives back what was taken for one that needs no room.
    pub(crate) fn give_back(&mut self) {
        self.tokens = self.tokens.saturating_add(1).min(self.burst);
    }
}

/// Equal ones, of which a line tells now and then.
#[derive(Debug)]
pub(crate) struct Fold {
    /// The line without its count.
    event: Event,
    /// How many are in no line yet.
    pending: u64,
    /// When the last line was written. `None`: there is none.
    last: Option<Instant>,
    /// How long the next one waits.
    pause: Duration,
}

impl Fold {
    /// `pause`: how long equal ones are counted behind the first line.
    pub(crate) fn new(event: Event, pause: Duration) -> Self {
        Self { event, pending: 0, last: None, pause }
    }

    pub(crate) fn count(&mut self, times: u64) {
        self.pending = self.pending.saturating_add(times);
    }

    /// Whether no line has told of any.
    pub(crate) fn is_new(&self) -> bool {
        self.last.is_none()
    }

    /// Whether some are in no line yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.pending > 0
    }

    /// Takes those out that are in no line yet.
    pub(crate) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.pending)
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.pending > 0 && self.last.is_none_or(|last| now.duration_since(last) >= self.pause)
    }

    /// Writes a line for all that are in none yet, and gives how many they are. The next one waits twice as long as this one,
    /// and no longer than `longest`, so that no number of them fills a disk.
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
        // Nothing is let out whether it is on record or not; the log refuses every decision from a failure on.
        let _ = log.write(event);
        if self.last.replace(now).is_some() {
            self.pause = (self.pause * 2).min(longest);
        }
        times
    }
}

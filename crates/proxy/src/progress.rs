//! Records what a connection moves while it is open, so that a `kill -9` of exeat does not lose the count.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use exeat_policy::Target;
use exeat_record::{ConnId, Event};
use tokio::time::Instant;

use crate::context::Context;
use crate::limits;

/// Writes the progress lines of one connection.
pub(crate) struct Progress<'a> {
    cx: &'a Context,
    conn: ConnId,
    target: Target,
    /// The bytes in both directions at which the next line is due.
    next: AtomicU64,
    /// The bytes in the last line.
    told: AtomicU64,
    start: Instant,
    /// When the time was last checked, in milliseconds since `start`.
    looked: AtomicU64,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(cx: &'a Context, conn: ConnId, target: Target) -> Self {
        let next = AtomicU64::new(limits::PROGRESS_FIRST);
        let (told, looked) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { cx, conn, target, next, told, start: Instant::now(), looked }
    }

    /// Writes a line when the bytes have doubled.
    pub(crate) fn note_size(&self, up: u64, down: u64) {
        if up.saturating_add(down) >= self.next.load(Ordering::Relaxed) {
            self.write(up, down);
        }
    }

    /// Returns when [`note_time`](Self::note_time) is due.
    pub(crate) fn time_due(&self) -> Instant {
        self.start + Duration::from_millis(self.looked.load(Ordering::Relaxed)) + self.cx.limits().progress
    }

    /// Writes a line if a minute has passed and enough bytes moved since the last line.
    pub(crate) fn note_time(&self, up: u64, down: u64) {
        if Instant::now() < self.time_due() {
            return;
        }
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.looked.store(now, Ordering::Relaxed);
        let told = self.told.load(Ordering::Relaxed);
        if up.saturating_add(down).saturating_sub(told) >= limits::PROGRESS_LEAST {
            self.write(up, down);
        }
    }

    fn write(&self, up: u64, down: u64) {
        let total = up.saturating_add(down);
        let doublings = (total / limits::PROGRESS_FIRST).checked_ilog2().map_or(0, |log| log + 1);
        self.next.store(limits::PROGRESS_FIRST.saturating_mul(1 << doublings), Ordering::Relaxed);
        self.told.store(total, Ordering::Relaxed);
        // The reserve of a full record is for the closes of connections.
        if self.cx.record_is_full() {
            return;
        }
        let line = exeat_record::Progress {
            conn: self.conn,
            target: Some(self.target.clone()),
            bytes_up: up,
            bytes_down: down,
        };
        // An error needs no handling: the log fails closed by itself, and no decision depends on this line.
        let _ = self.cx.log().write(Event::Progress(line));
    }
}

impl fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("conn", &self.conn).finish_non_exhaustive()
    }
}

//! Writing the record of one run, line by line.
//!
//! Never buffers and never retries: a line is on its way to the disk before [`Log::write`] returns its number, and
//! nothing is written after a line that failed. A caller that gets an error must not act on the decision
//! that it wanted to record.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use exeat_policy::Verdict;
use jiff::Timestamp;

use crate::line::{self, MAX_LINE, Position};
use crate::sink::{Sink, WriteError};
use crate::tree::Tree;
use crate::{Event, Header, RunId, RunNote, SigningKey, What, hex, sha256_hex};

/// The number of lines after which a checkpoint follows. A checkpoint takes about 20 microseconds, and the space of two decisions.
pub const CHECKPOINT_EVERY: u64 = 128;

/// The age of the first unsigned line at which a checkpoint is written. Readers expect it within [`UNSIGNED`].
const CHECKPOINT_AFTER: Duration = Duration::from_millis(800);

/// The time within which a line is signed. A killed run has at most one line that came later than this after its last checkpoint, because the
/// next checkpoint follows such a line at once.
pub const UNSIGNED: Duration = Duration::from_secs(1);

/// The bytes that the disk reserves after the end of a record, for notes, counts and the last lines.
const AHEAD: u64 = 64 * 1024;

/// The bytes that the disk also reserves for each open connection. A close has about 500 bytes, and at most three times as many.
const AHEAD_CLOSE: u64 = 2048;

/// The part of [`AHEAD`] that is for the end of the run and its checkpoint.
const AHEAD_END: u64 = 2 * MAX_LINE as u64;

/// The record of one run. Clones write to the same record.
#[derive(Debug, Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    header: Header,
    started: Instant,
    key: Option<SigningKey>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sink: Sink,
    /// The number of the next line.
    seq: u64,
    /// The bytes of all lines.
    bytes: u64,
    /// The digest of the line before, in hexadecimal.
    prev: String,
    /// The digest of the first line, in hexadecimal.
    first: Option<String>,
    counts: Counts,
    /// The first failure; nothing is written after it.
    failed: Option<Arc<str>>,
    /// The reason why only the space reserved for the end of the record is left.
    full: Option<Arc<str>>,
    /// Whether space is reserved: from the first attempt on, or when a caller asked for it. Releasing it can take milliseconds, which a
    /// short run without an attempt avoids.
    reserves: bool,
    /// Whether the record has the note that its space is used up.
    is_full_noted: bool,
    /// Whether the record has the note that space could not be reserved.
    is_reserve_noted: bool,
    /// The number of connections that have a decision and no close.
    open: u64,
    ended: bool,
    /// The tree over all lines, if they are signed.
    tree: Tree,
    /// The number of lines up to and including the last checkpoint.
    signed: u64,
    /// The time of the first line after it, if lines are signed.
    unsigned_since: Option<Instant>,
    /// The task that waits for such a line.
    waker: Option<Waker>,
    /// The content of the last checkpoint.
    sealed: Option<Sealed>,
    /// The buffer for the line, reused so that a line costs no allocation.
    line: Vec<u8>,
}

/// The number of attempts by verdict, questions for names included. A line that stands for several counts as several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Verdict `allow`.
    pub allowed: u64,
    /// Verdict `deny`.
    pub denied: u64,
    /// Verdict `would_deny`.
    pub would_deny: u64,
    /// Verdict `error`.
    pub errors: u64,
    /// Allowed connections whose connect failed.
    pub failed: u64,
    /// Attempts without a line, because there was no space for it.
    pub dropped: u64,
    /// Lines of any kind.
    pub lines: u64,
}

/// The lines that a checkpoint covers: their number and their root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The number of lines.
    pub lines: u64,
    /// Their Merkle root, in hexadecimal.
    pub root: String,
}

impl Log {
    /// Starts a record without checkpoints. The clock of `mono_us` starts here; the first event should be
    /// [`Event::RunStart`].
    pub fn start(sink: Sink, header: Header) -> Result<Log, LogError> {
        Log::begin(sink, header, None)
    }

    /// Starts a record with signed checkpoints: after every 128 lines, after the last line, and within a second of every line if
    /// [`Log::sign_due`] is called in time.
    pub fn start_signed(sink: Sink, header: Header, key: SigningKey) -> Result<Log, LogError> {
        Log::begin(sink, header, Some(key))
    }

    fn begin(sink: Sink, header: Header, key: Option<SigningKey>) -> Result<Log, LogError> {
        let started = Instant::now();
        let state = State {
            sink,
            seq: 0,
            bytes: 0,
            prev: NOTHING_BEFORE.to_owned(),
            first: None,
            counts: Counts::default(),
            failed: None,
            full: None,
            reserves: false,
            is_full_noted: false,
            is_reserve_noted: false,
            open: 0,
            ended: false,
            tree: Tree::default(),
            signed: 0,
            unsigned_since: None,
            waker: None,
            sealed: None,
            line: Vec::with_capacity(MAX_LINE),
        };
        Ok(Log { shared: Arc::new(Shared { header, started, key, state: Mutex::new(state) }) })
    }

    /// Writes one event with one write(2), and returns the number of its line.
    ///
    /// Takes a few microseconds on a file. On a pipe that nobody reads it waits up to 5 seconds, once; every later
    /// call fails at once. Refuses every event after [`Event::RunEnd`].
    pub fn write(&self, event: Event) -> Result<u64, LogError> {
        let mut state = self.lock();
        if let Some(first) = &state.failed {
            return Err(LogError::Stopped { first: Arc::clone(first) });
        }
        if state.ended {
            return Err(LogError::Ended);
        }
        let mut counts = state.counts;
        counts.add(&event);
        match state.append(&self.shared, &counts, &event) {
            Ok(seq) => {
                state.counts = counts;
                state.ended = matches!(event, Event::RunEnd(_));
                match &event {
                    Event::Decision(decision) if decision.opens_connection() => state.open += 1,
                    Event::Close(_) => state.open = state.open.saturating_sub(1),
                    _ => {}
                }
                let is_due = state.ended || state.is_checkpoint_due();
                // The event is already on record. If these fail, the next event gets the error.
                let noted = state.note_space(&self.shared);
                let signed = noted.and_then(|()| state.sign(&self.shared, is_due));
                if state.ended {
                    state.sink.release_space();
                    signed?;
                }
                Ok(seq)
            }
            // The record goes on: space is reserved for the lines that must still be written.
            Err(error @ FaultKind::Full { .. }) => {
                state.counts.dropped += counts.attempts().saturating_sub(state.counts.attempts());
                Err(LogError::Write(LineFault(error)))
            }
            Err(error) => Err(state.stop(error)),
        }
    }

    /// Writes a checkpoint now, if there are unsigned lines.
    ///
    /// # Errors
    /// If the checkpoint cannot be written: the record stops there.
    pub fn sign(&self) -> Result<(), LogError> {
        let mut state = self.lock();
        match &state.failed {
            Some(first) => Err(LogError::Stopped { first: Arc::clone(first) }),
            None => state.sign(&self.shared, true),
        }
    }

    /// Waits for an unsigned line, and returns the time at which to call [`Log::sign_due`]. Only one task at a time may wait.
    pub fn poll_unsigned(&self, cx: &mut Context<'_>) -> Poll<Instant> {
        let mut state = self.lock();
        match state.unsigned_since.filter(|_| state.failed.is_none() && !state.ended) {
            Some(since) => Poll::Ready(since + CHECKPOINT_AFTER),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Writes a checkpoint if one is due. If that fails, the next event gets the error.
    pub fn sign_due(&self) {
        let mut state = self.lock();
        let is_due = state.failed.is_none() && state.is_checkpoint_due();
        let _ = state.sign(&self.shared, is_due);
    }

    /// Returns the number of attempts by verdict so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Returns whether the record has more than this many bytes, or the disk has no more space. Nothing new may be allowed then.
    pub fn is_beyond(&self, bytes: u64) -> bool {
        let state = self.lock();
        state.bytes > bytes || state.full.is_some()
    }

    /// Returns why the disk has space for the end of the record only, if that is so. From then on closes, counts and the end are
    /// written, and no event that would allow something.
    pub fn full(&self) -> Option<Arc<str>> {
        self.lock().full.clone()
    }

    /// Reserves space on the disk for the end of the record from now on, as the first attempt does. A note says so if that is not
    /// possible.
    pub fn reserve_space(&self) {
        let mut state = self.lock();
        if state.failed.is_none() && !state.ended && !state.reserves {
            state.reserves = true;
            state.reserve(0);
            // If this fails, the next event gets the error.
            let _ = state.note_space(&self.shared);
        }
    }

    /// Returns the first failure, if there was one. From then on nothing is written, and nothing may be allowed.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.lock().failed.clone()
    }

    /// Returns the run of this record.
    pub fn run(&self) -> RunId {
        self.shared.header.run
    }

    /// Returns what the last checkpoint covers; `None` before the first one, and in an unsigned record.
    pub fn sealed(&self) -> Option<Sealed> {
        self.lock().sealed.clone()
    }

    /// Returns the digest of the first line, once it is written.
    pub(crate) fn first_line(&self) -> Option<String> {
        self.lock().first.clone()
    }

    /// Returns the microseconds since the start of the record.
    pub(crate) fn mono_us(&self) -> u64 {
        u64::try_from(self.shared.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns the fields that all lines share.
    pub fn header(&self) -> &Header {
        &self.shared.header
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            // A thread panicked in the middle of a line, so it is not known how much of the line was written.
            let mut state = poisoned.into_inner();
            state.failed.get_or_insert_with(|| "a writer panicked".into());
            state
        })
    }
}

impl State {
    fn append(&mut self, shared: &Shared, counts: &Counts, event: &Event) -> Result<u64, FaultKind> {
        self.reserves |= matches!(event, Event::Decision(_) | Event::Dns(_));
        let keep = match event {
            Event::RunEnd(_) => 0,
            Event::Close(_) => AHEAD_END,
            // On a full disk, refuse events that need a close or may have many lines.
            Event::Decision(decision) if self.full.is_some() && decision.allows_connection() => u64::MAX,
            Event::Progress(_) | Event::Policy(_) if self.full.is_some() => u64::MAX,
            _ => AHEAD_END.saturating_add(self.bytes_for_closes()),
        };
        self.write_line(shared, keep, |out, at, _| line::encode(out, &shared.header, at, counts, event))
    }

    /// Returns the bytes that the closes of the open connections need.
    fn bytes_for_closes(&self) -> u64 {
        self.open.saturating_mul(AHEAD_CLOSE)
    }

    /// Notes once that the disk has no more space, and signs that note, because the lines after it may stay unsigned. Also notes once that
    /// no space is reserved. Never does so before the first line, by which the ledger identifies the record: a sandbox can take long to set up.
    fn note_space(&mut self, shared: &Shared) -> Result<(), LogError> {
        if self.seq == 0 {
            return Ok(());
        }
        let (what, why) = match (&self.full, self.sink.reserve_fault()) {
            (Some(why), _) if !self.is_full_noted => (What::NoRoom, why.to_string()),
            (None, Some(why)) if self.reserves && !self.is_reserve_noted => (What::NoReserve, why),
            _ => return Ok(()),
        };
        self.is_full_noted |= what == What::NoRoom;
        self.is_reserve_noted |= what == What::NoReserve;
        let mut note = RunNote::new(what);
        note.error = Some(why);
        let counts = self.counts;
        match self.append(shared, &counts, &Event::Note(note)) {
            Ok(_) => self.counts.lines += 1,
            Err(FaultKind::Full { .. }) => return Ok(()),
            Err(error) => return Err(self.stop(error)),
        }
        self.sign(shared, what == What::NoRoom)
    }

    /// Reserves space for a line and for what must follow it.
    fn reserve(&mut self, line: usize) {
        if self.full.is_none()
            && let Err(why) = self.sink.reserve(line, AHEAD.saturating_add(self.bytes_for_closes()))
        {
            self.full = Some(why.to_string().into());
        }
    }

    /// Stops the record: nothing is written after this.
    fn stop(&mut self, fault: FaultKind) -> LogError {
        self.failed = Some(fault.to_string().into());
        LogError::Write(LineFault(fault))
    }

    fn is_checkpoint_due(&self) -> bool {
        self.seq - self.signed >= CHECKPOINT_EVERY
            || self.unsigned_since.is_some_and(|since| since.elapsed() >= CHECKPOINT_AFTER)
    }

    /// Writes a checkpoint if there are unsigned lines and `is_due`. The record stops if it cannot be written.
    fn sign(&mut self, shared: &Shared, is_due: bool) -> Result<(), LogError> {
        let Some(key) = shared.key.as_ref().filter(|_| is_due && self.unsigned_since.is_some()) else {
            return Ok(());
        };
        let sealed = Sealed { lines: self.tree.lines(), root: hex(&self.tree.root()) };
        let keep = if self.ended { 0 } else { AHEAD_END.saturating_add(self.bytes_for_closes()) };
        let encode = |out: &mut Vec<u8>, at: &Position<'_>, tree: &Tree| {
            line::encode_checkpoint(out, &shared.header, at, tree, key)
        };
        match self.write_line(shared, keep, encode) {
            Ok(_) => {
                self.counts.lines += 1;
                self.sealed = Some(sealed);
            }
            // The end of the run is signed later.
            Err(FaultKind::Full { .. }) if !self.ended => {}
            Err(error) => return Err(self.stop(error)),
        }
        (self.signed, self.unsigned_since) = (self.seq, None);
        Ok(())
    }

    /// Writes one line. On a full disk it does so only if `keep` bytes of the reserve are left after it.
    fn write_line(
        &mut self,
        shared: &Shared,
        keep: u64,
        encode: impl FnOnce(&mut Vec<u8>, &Position<'_>, &Tree) -> serde_json::Result<()>,
    ) -> Result<u64, FaultKind> {
        let ts = format!("{:.6}", Timestamp::now());
        let now = Instant::now();
        let mono_us = u64::try_from((now - shared.started).as_micros()).unwrap_or(u64::MAX);
        let at = Position { seq: self.seq, ts: &ts, mono_us, prev: &self.prev };
        self.line.clear();
        encode(&mut self.line, &at, &self.tree)?;
        if self.line.len() > MAX_LINE {
            return Err(FaultKind::TooLong { bytes: self.line.len() });
        }
        if self.reserves {
            self.reserve(self.line.len());
        }
        let needed = keep.saturating_add(self.line.len() as u64);
        if let Some(why) = self.full.clone()
            && self.sink.space_left().is_some_and(|left| left < needed)
        {
            return Err(FaultKind::Full { why });
        }
        self.sink.write_line(&self.line)?;
        self.prev = sha256_hex(&self.line);
        self.first.get_or_insert_with(|| self.prev.clone());
        if shared.key.is_some() {
            self.tree.push(&self.line);
            self.unsigned_since.get_or_insert(now);
            self.waker.take().into_iter().for_each(Waker::wake);
        }
        self.seq += 1;
        self.bytes += self.line.len() as u64;
        Ok(self.seq - 1)
    }
}

impl Counts {
    /// Returns the number of attempts of any verdict.
    fn attempts(&self) -> u64 {
        [self.denied, self.would_deny, self.errors].into_iter().fold(self.allowed, u64::saturating_add)
    }

    fn add(&mut self, event: &Event) {
        self.lines += 1;
        let (verdict, count) = match event {
            Event::Decision(decision) => (decision.verdict, decision.count),
            Event::Dns(question) => (question.verdict, question.count),
            Event::Close(close) => {
                self.failed = self.failed.saturating_add(u64::from(close.is_failed()));
                return;
            }
            _ => return,
        };
        let attempts = count.unwrap_or(1);
        let count = match verdict {
            Verdict::Allow => &mut self.allowed,
            Verdict::Deny => &mut self.denied,
            Verdict::WouldDeny => &mut self.would_deny,
            Verdict::Error => &mut self.errors,
        };
        *count = count.saturating_add(attempts);
    }
}

/// The `prev` of the first line of a record or ledger.
pub const NOTHING_BEFORE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The reason why an event is not in the record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The line could not be written; the record stops here.
    #[error("cannot write the record")]
    Write(#[source] LineFault),
    /// An earlier line could not be written, so this one was not tried.
    #[error("the record stopped earlier: {first}")]
    Stopped {
        /// The first failure.
        first: Arc<str>,
    },
    /// The run's last line is written.
    #[error("the record of this run is complete")]
    Ended,
}

/// The fault of the line that stopped a record.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct LineFault(FaultKind);

#[derive(Debug, thiserror::Error)]
enum FaultKind {
    #[error(transparent)]
    Sink(#[from] WriteError),
    #[error("there is no space for another line: {why}")]
    Full { why: Arc<str> },
    #[error("a line of {bytes} bytes is longer than {MAX_LINE}")]
    TooLong { bytes: usize },
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
}

#[cfg(test)]
mod tests;

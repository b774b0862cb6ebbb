//! Writing the record of one run, line by line.
//!
//! Never buffers and never retries: a line is on its way to the disk before [`Log::write`] returns its number, and
//! after one line that could not be written no other is. A caller that gets an error must not act on the decision
//! that it wanted to record.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use exeat_policy::Verdict;
use jiff::Timestamp;

use crate::line::{self, MAX_LINE, Position};
use crate::sink::{Sink, WriteError};
use crate::tree::Tree;
use crate::{Event, Header, Note, RunId, SigningKey, What, hex, sha256_hex};

/// Lines after which a checkpoint is written. One takes some 20 microseconds, and as much room as two decisions.
pub const CHECKPOINT_EVERY: u64 = 128;

/// Age of the first unsigned line at which a checkpoint is written: readers count on a second ([`UNSIGNED`]).
const CHECKPOINT_AFTER: Duration = Duration::from_millis(800);

/// Time in which a line is signed. All that a run which was killed wrote later than this after its last checkpoint is one line: the next
/// checkpoint follows it at once.
pub const UNSIGNED: Duration = Duration::from_secs(1);

/// Bytes for which the disk keeps space ahead of the end of a record: for notes, counts and the end.
const AHEAD: u64 = 64 * 1024;

/// The same for each open connection: its close has some 500 bytes, and at most three times as many.
const AHEAD_CLOSE: u64 = 2048;

/// Of these so many are for the end of the run and its checkpoint.
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
    /// Bytes of all lines.
    bytes: u64,
    /// The digest of the line before, in hexadecimal.
    prev: String,
    /// That of the first line.
    first: Option<String>,
    counts: Counts,
    /// What the first failure was; nothing is written after it.
    failed: Option<Arc<str>>,
    /// Why there is no more space for the record than what was kept for its end.
    full: Option<Arc<str>>,
    /// Space is kept ahead of the end: from the first attempt on, or when it was asked for. Giving it back can take the disk milliseconds,
    /// which a short run without an attempt does not pay.
    keeps_space: bool,
    /// The record says that there is no more space, or that none is kept.
    is_full_noted: bool,
    is_reserve_noted: bool,
    /// Connections that have a decision and no close.
    open: u64,
    ended: bool,
    /// Stands for all lines, where they are signed.
    tree: Tree,
    /// Lines up to the last checkpoint, itself included.
    signed: u64,
    /// When the first line after it was written, if lines are signed at all.
    unsigned_since: Option<Instant>,
    /// Told when there is such a line.
    waker: Option<Waker>,
    /// What the last checkpoint says.
    sealed: Option<Sealed>,
    /// The line being made; kept so that a line costs no allocation.
    line: Vec<u8>,
}

/// How many attempts got which verdict so far, questions for names included. A line that stands for several counts as several.
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
    /// Allowed connections that never stood.
    pub failed: u64,
    /// Attempts that are in no line, because there was no space for it.
    pub dropped: u64,
    /// Lines of any kind.
    pub lines: u64,
}

/// What a checkpoint says of the lines before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// How many lines there are.
    pub lines: u64,
    /// Their Merkle root, in hexadecimal.
    pub root: String,
}

impl Log {
    /// Begins a record without checkpoints. The clock of `mono_us` starts here; the first event should be
    /// [`Event::RunStart`].
    pub fn start(sink: Sink, header: Header) -> Result<Log, Error> {
        Log::begin(sink, header, None)
    }

    /// The same with a signed checkpoint after every 128 lines and after the last, and where [`Log::sign_due`] is called in time, within a
    /// second of every line.
    pub fn start_signed(sink: Sink, header: Header, key: SigningKey) -> Result<Log, Error> {
        Log::begin(sink, header, Some(key))
    }

    fn begin(sink: Sink, header: Header, key: Option<SigningKey>) -> Result<Log, Error> {
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
            keeps_space: false,
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

    /// Writes one event with one write(2), and gives the number of its line.
    ///
    /// Takes some microseconds on a file. On a pipe that nobody empties it waits up to 5 seconds, once; every later
    /// call fails at once. After [`Event::RunEnd`] nothing more is taken.
    pub fn write(&self, event: Event) -> Result<u64, Error> {
        let mut state = self.lock();
        if let Some(first) = &state.failed {
            return Err(Error::Stopped { first: Arc::clone(first) });
        }
        if state.ended {
            return Err(Error::Ended);
        }
        let mut counts = state.counts;
        counts.add(&event);
        match state.append(&self.shared, &counts, &event) {
            Ok(seq) => {
                state.counts = counts;
                state.ended = matches!(event, Event::RunEnd(_));
                match &event {
                    Event::Decision(decision) if decision.opens() => state.open += 1,
                    Event::Close(_) => state.open = state.open.saturating_sub(1),
                    _ => {}
                }
                let is_due = state.ended || state.is_checkpoint_due();
                // Where these cannot be written, the event itself is on record all the same, and the next one hears of it.
                let noted = state.note_space(&self.shared);
                let signed = noted.and_then(|()| state.sign(&self.shared, is_due));
                if state.ended {
                    state.sink.give_back();
                    signed?;
                }
                Ok(seq)
            }
            // What else is to be written has its space.
            Err(error @ FaultKind::Full { .. }) => {
                state.counts.dropped += counts.attempts().saturating_sub(state.counts.attempts());
                Err(Error::Write(Fault(error)))
            }
            Err(error) => Err(state.stop(error)),
        }
    }

    /// Writes a checkpoint now, if there is a line that none covers.
    ///
    /// # Errors
    /// Where it cannot be written: the record stops there.
    pub fn sign(&self) -> Result<(), Error> {
        let mut state = self.lock();
        match &state.failed {
            Some(first) => Err(Error::Stopped { first: Arc::clone(first) }),
            None => state.sign(&self.shared, true),
        }
    }

    /// Waits for a line that no checkpoint covers, and returns when [`Log::sign_due`] is to be called. One task at a time may wait.
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

    /// Writes a checkpoint if one is due. Where it cannot be written, the next event hears of it.
    pub fn sign_due(&self) {
        let mut state = self.lock();
        let is_due = state.failed.is_none() && state.is_checkpoint_due();
        let _ = state.sign(&self.shared, is_due);
    }

    /// The verdicts so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Whether the record has more bytes than these, or the disk has no space for more: then nothing may be let out that was not
    /// before.
    pub fn is_beyond(&self, bytes: u64) -> bool {
        let state = self.lock();
        state.bytes > bytes || state.full.is_some()
    }

    /// Why the disk has no space for more than the end of the record, if it has none. From then on closes, counts and the end are written,
    /// and nothing that would let something out.
    pub fn full(&self) -> Option<Arc<str>> {
        self.lock().full.clone()
    }

    /// Has the disk keep space for the end of the record from now on, as it does after the first attempt. Where that cannot be, the record
    /// says so.
    pub fn keep_space(&self) {
        let mut state = self.lock();
        if state.failed.is_none() && !state.ended && !state.keeps_space {
            state.keeps_space = true;
            state.keep_ahead(0);
            // Where it cannot be written, the next event hears of it.
            let _ = state.note_space(&self.shared);
        }
    }

    /// What the first failure was, if there was one: from then on nothing is written, and nothing may be allowed.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.lock().failed.clone()
    }

    /// The run that this is the record of.
    pub fn run(&self) -> RunId {
        self.shared.header.run
    }

    /// What the last checkpoint says; `None` before the first one, and in a record that nothing signs.
    pub fn sealed(&self) -> Option<Sealed> {
        self.lock().sealed.clone()
    }

    /// The digest of the first line, once it is written.
    pub(crate) fn first_line(&self) -> Option<String> {
        self.lock().first.clone()
    }

    /// Microseconds since the run began.
    pub(crate) fn mono_us(&self) -> u64 {
        u64::try_from(self.shared.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// What every line has in common.
    pub fn header(&self) -> &Header {
        &self.shared.header
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            // Somebody panicked in the middle of a line, and nobody knows how much of it is out.
            let mut state = poisoned.into_inner();
            state.failed.get_or_insert_with(|| "a writer panicked".into());
            state
        })
    }
}

impl State {
    fn append(&mut self, shared: &Shared, counts: &Counts, event: &Event) -> Result<u64, FaultKind> {
        self.keeps_space |= matches!(event, Event::Decision(_) | Event::Dns(_));
        let keep = match event {
            Event::RunEnd(_) => 0,
            Event::Close(_) => AHEAD_END,
            // Nothing that would need a close, or many lines.
            Event::Decision(decision) if self.full.is_some() && decision.lets_out() => u64::MAX,
            Event::Progress(_) | Event::Policy(_) if self.full.is_some() => u64::MAX,
            _ => AHEAD_END.saturating_add(self.closes()),
        };
        self.put(shared, keep, |out, at, _| line::encode(out, &shared.header, at, counts, event))
    }

    /// Bytes for the closes of the connections that are open.
    fn closes(&self) -> u64 {
        self.open.saturating_mul(AHEAD_CLOSE)
    }

    /// Says in the record, once, that the disk has no space for more, and signs that: what follows may stay unsigned. Or that no space is
    /// kept. Not before the first line, by which the ledger knows the record: a sandbox may take long to be made.
    fn note_space(&mut self, shared: &Shared) -> Result<(), Error> {
        if self.seq == 0 {
            return Ok(());
        }
        let (what, why) = match (&self.full, self.sink.no_space_kept()) {
            (Some(why), _) if !self.is_full_noted => (What::NoRoom, why.to_string()),
            (None, Some(why)) if self.keeps_space && !self.is_reserve_noted => (What::NoReserve, why),
            _ => return Ok(()),
        };
        self.is_full_noted |= what == What::NoRoom;
        self.is_reserve_noted |= what == What::NoReserve;
        let mut note = Note::new(what);
        note.error = Some(why);
        let counts = self.counts;
        match self.append(shared, &counts, &Event::Note(note)) {
            Ok(_) => self.counts.lines += 1,
            Err(FaultKind::Full { .. }) => return Ok(()),
            Err(error) => return Err(self.stop(error)),
        }
        self.sign(shared, what == What::NoRoom)
    }

    fn keep_ahead(&mut self, line: usize) {
        if self.full.is_none()
            && let Err(why) = self.sink.keep_ahead(line, AHEAD.saturating_add(self.closes()))
        {
            self.full = Some(why.to_string().into());
        }
    }

    /// Nothing is written any more.
    fn stop(&mut self, fault: FaultKind) -> Error {
        self.failed = Some(fault.to_string().into());
        Error::Write(Fault(fault))
    }

    fn is_checkpoint_due(&self) -> bool {
        self.seq - self.signed >= CHECKPOINT_EVERY
            || self.unsigned_since.is_some_and(|since| since.elapsed() >= CHECKPOINT_AFTER)
    }

    /// Writes a checkpoint if there are unsigned lines and `is_due`. The record stops where it cannot be written.
    fn sign(&mut self, shared: &Shared, is_due: bool) -> Result<(), Error> {
        let Some(key) = shared.key.as_ref().filter(|_| is_due && self.unsigned_since.is_some()) else {
            return Ok(());
        };
        let sealed = Sealed { lines: self.tree.lines(), root: hex(&self.tree.root()) };
        let keep = if self.ended { 0 } else { AHEAD_END.saturating_add(self.closes()) };
        let encode = |out: &mut Vec<u8>, at: &Position<'_>, tree: &Tree| {
            line::encode_checkpoint(out, &shared.header, at, tree, key)
        };
        match self.put(shared, keep, encode) {
            Ok(_) => {
                self.counts.lines += 1;
                self.sealed = Some(sealed);
            }
            // The end of the run is signed.
            Err(FaultKind::Full { .. }) if !self.ended => {}
            Err(error) => return Err(self.stop(error)),
        }
        (self.signed, self.unsigned_since) = (self.seq, None);
        Ok(())
    }

    /// Writes one line. On a full disk, only where `keep` bytes of what was kept are left after it.
    fn put(
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
        if self.keeps_space {
            self.keep_ahead(self.line.len());
        }
        let needed = keep.saturating_add(self.line.len() as u64);
        if let Some(why) = self.full.clone()
            && self.sink.left().is_some_and(|left| left < needed)
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
    /// Attempts of any verdict.
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

/// `prev` of the first line.
pub const NOTHING_BEFORE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Why an event is not in the record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This line could not be written; the record stops here.
    #[error("cannot write the record")]
    Write(#[source] Fault),
    /// An earlier line could not be written, so this one was not tried.
    #[error("the record stopped earlier: {first}")]
    Stopped {
        /// What happened then.
        first: Arc<str>,
    },
    /// The run's last line is written.
    #[error("the record of this run is complete")]
    Ended,
}

/// What was wrong with the one line that stopped a record.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Fault(FaultKind);

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

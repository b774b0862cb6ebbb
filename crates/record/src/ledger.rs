//! The ledger: which runs there were, so that a record that was taken away is missed.
//!
//! There is one for each key and machine. A run takes a number in it before its stage starts, and writes a line there at its start and
//! at its end. Lines are chained and signed as those of a record are. Taking a number reads the end of the file and nothing
//! else, waits for no other run's end, and for the lock no longer than [`DEADLINE`].
//!
//! Never refuses a run: what cannot be written here is a note in the record.

pub mod file;
mod host;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;

use file::{END, Fields, LATE, PRUNED, START, digest, origin, signed_text};

use crate::escape::escape;
use crate::event::{Cause, InLedger, Number};
use crate::line::{LedgerLine, MAX_LINE, Position, encode_ledger};
use crate::log::{self, Log, NOTHING_BEFORE};
use crate::place::Place;
use crate::{Event, Note, RunId, RunStart, SigningKey, What, sha256_hex};

/// How long a run waits for the lock of the ledger.
pub const DEADLINE: Duration = Duration::from_secs(1);

/// Microseconds between the first tries to get the lock: who has it writes two lines, which takes less than the first, but where
/// the machine is busy. A thread costs more than all of these.
const PAUSES: [u64; 5] = [200, 400, 800, 1600, 3200];

/// Bytes of the stack of a thread that waits for the lock.
const STACK: usize = 64 * 1024;

/// Bytes that are read to find the last line: two lines at least.
const TAIL: u64 = 2 * MAX_LINE as u64;

/// Bytes at the end that may be no line, as a crash of the machine can leave them.
const MAX_TORN: u64 = 16 * 1024 * 1024;

/// Lines at the end whose signatures are checked at most, while other runs wait.
const MAX_UNSIGNED: u64 = 1000;

/// A line of which the number is a multiple of this says what the other ledgers of the directory end with.
const WITNESS_EVERY: u64 = 100;

/// Other ledgers that one line speaks of.
const MAX_OTHERS: usize = 16;

/// The ledger of one key on one machine. It need not exist yet.
#[derive(Debug, Clone)]
pub struct Ledger {
    path: PathBuf,
    /// The id of the key and that of the machine.
    name: String,
    key: SigningKey,
    /// Each line is on the disk when it is written.
    sync: bool,
}

/// A line of a ledger, by which the ledger can be known later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The ledger's name.
    pub ledger: String,
    /// The number of the run.
    pub no: u64,
    /// The digest of the line, in hexadecimal.
    pub sha256: String,
}

/// What the ledger has of a run that has begun.
#[derive(Debug)]
pub enum Begun {
    /// It has its start.
    Numbered(Numbered),
    /// It does not have it.
    Unnumbered(Unnumbered),
}

/// A run that the ledger does not have the start of.
#[derive(Debug)]
pub struct Unnumbered {
    ledger: Ledger,
    /// The place of the record, where it is not the usual one.
    file: Option<String>,
    /// Why; for people.
    pub why: String,
}

/// A run that the ledger has the start of.
#[derive(Debug)]
pub struct Numbered {
    ledger: Ledger,
    no: u64,
    /// What was found in the ledger that somebody should look at; for people.
    pub odd: Option<String>,
}

/// A line that was written.
#[derive(Debug)]
pub struct Written {
    /// The line.
    pub head: Head,
    /// What was found before it that somebody should look at; for people.
    pub odd: Option<String>,
}

impl Ledger {
    /// Finds the ledger of a key on this machine, in the state directory, which must exist. With `sync` each line is on the disk
    /// when it is written.
    ///
    /// # Errors
    /// Where the id of the machine can be neither read nor made.
    pub fn find(place: &Place, key: SigningKey, sync: bool) -> Result<Ledger, LedgerError> {
        let dir = place.ledger_dir();
        let name = format!("{}-{}", key.verifying().key_id(), host::id(&dir)?);
        Ok(Ledger { path: dir.join(file::file_name(&name)), name, key, sync })
    }

    /// Its name: the id of the key and that of the machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the next number, writes the first line of the record with it, and the start of the run in the ledger. `file` is the
    /// place of the record where it is not the usual one.
    ///
    /// # Errors
    /// Those of the record alone.
    pub fn begin(self, log: &Log, start: RunStart, file: Option<&str>) -> Result<Begun, log::Error> {
        let mut held = match self.lock() {
            Ok(held) => held,
            Err(error) => {
                log.write(Event::RunStart(RunStart { ledger: InLedger::Unnumbered, ..start }))?;
                return Ok(self.unnumbered(file, &error));
            }
        };
        let no = held.last.saturating_add(1);
        let number = Number { ledger: self.name.clone(), no, prev: held.prev.clone() };
        log.write(Event::RunStart(RunStart { ledger: InLedger::Number(number), ..start }))?;
        let header = log.header();
        let policy = Some(header.policy_sha256.as_str()).filter(|digest| !digest.is_empty());
        let first = log.first_line();
        let line = LedgerLine {
            stage: header.stage.as_deref(),
            policy_sha256: policy,
            first: first.as_deref(),
            file,
            ..LedgerLine::new(START, header.run, Some(no))
        };
        held.last = no;
        Ok(match held.append(log.mono_us(), &line) {
            Ok(Written { odd, .. }) => Begun::Numbered(Numbered { ledger: self, no, odd }),
            Err(error) => self.unnumbered(file, &error),
        })
    }

    fn unnumbered(self, file: Option<&str>, why: &LedgerError) -> Begun {
        let file = file.map(str::to_owned);
        Begun::Unnumbered(Unnumbered { ledger: self, file, why: why.to_string() })
    }

    /// Writes that the record of a run is removed, and by whom. To be called before it is removed.
    ///
    /// # Errors
    /// Where the line could not be written.
    pub fn prune(&self, run: RunId, no: Option<u64>, user: Option<&str>) -> Result<Written, LedgerError> {
        self.lock()?.append(0, &LedgerLine { user, ..LedgerLine::new(PRUNED, run, no) })
    }

    /// Opens the file, takes its lock and reads its end.
    fn lock(&self) -> Result<Held<'_>, LedgerError> {
        let by = Instant::now() + DEADLINE;
        let at = |source| LedgerError::Io { path: self.path.clone(), source };
        loop {
            let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
            let opened = OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .custom_flags(flags.bits())
                .open(&self.path);
            let file = opened.map_err(at)?;
            let meta = file.metadata().map_err(at)?;
            let is_ours = meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0 && meta.nlink() <= 1;
            if !meta.is_file() || !is_ours {
                return Err(LedgerError::Unsafe { path: self.path.clone() });
            }
            let file = lock_by(file, by).map_err(|errno| match errno {
                Errno::EWOULDBLOCK => LedgerError::Busy { path: self.path.clone() },
                errno => at(errno.into()),
            })?;
            // It may have been moved away while this waited for the lock.
            let there = fs::symlink_metadata(&self.path);
            let there = there.ok().filter(|there| (there.dev(), there.ino()) == (meta.dev(), meta.ino()));
            if let Some(there) = there {
                return Held::new(self, file, there.len());
            }
            if Instant::now() >= by {
                return Err(LedgerError::Busy { path: self.path.clone() });
            }
        }
    }
}

/// Takes the lock, or gives up at `by` with EWOULDBLOCK.
fn lock_by(mut file: File, by: Instant) -> Result<Flock<File>, Errno> {
    for pause in PAUSES {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK | Errno::EINTR)) => file = unlocked,
            Err((_, errno)) => return Err(errno),
        }
        thread::sleep(Duration::from_micros(pause));
    }
    // Those that wait in the kernel get it in turn, but flock(2) waits without end: so a thread does. One that waits on has the lock
    // for no longer than it takes to see that nobody wants it any more.
    let (sender, receiver) = mpsc::sync_channel(0);
    let waiting = thread::Builder::new().stack_size(STACK).spawn(move || {
        let lock = loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Err((unlocked, Errno::EINTR)) => file = unlocked,
                lock => break lock,
            }
        };
        let _ = sender.send(lock.map_err(|(_, errno)| errno));
    });
    waiting.map_err(|_| Errno::EAGAIN)?;
    receiver.recv_timeout(by.saturating_duration_since(Instant::now())).unwrap_or(Err(Errno::EWOULDBLOCK))
}

impl Numbered {
    /// The number of the run.
    pub fn no(&self) -> u64 {
        self.no
    }

    /// Writes the end of the run, after that of its record, with what the last checkpoint there says.
    ///
    /// # Errors
    /// Where the line could not be written: a reader finds the start alone.
    pub fn end(self, log: &Log, cause: Cause) -> Result<Written, LedgerError> {
        let sealed = log.sealed();
        let sealed = sealed.as_ref();
        let line =
            LedgerLine { cause: Some(cause), sealed, ..LedgerLine::new(END, log.run(), Some(self.no)) };
        self.ledger.lock()?.append(log.mono_us(), &line)
    }
}

impl Unnumbered {
    /// Writes the end of the run, after that of its record, so that this is missed where somebody takes it away. It gets no number.
    ///
    /// # Errors
    /// Where the line could not be written.
    pub fn end(&self, log: &Log, cause: Cause) -> Result<Written, LedgerError> {
        let (header, first, sealed) = (log.header(), log.first_line(), log.sealed());
        let line = LedgerLine {
            stage: header.stage.as_deref(),
            first: first.as_deref(),
            file: self.file.as_deref(),
            cause: Some(cause),
            sealed: sealed.as_ref(),
            ..LedgerLine::new(LATE, header.run, None)
        };
        self.ledger.lock()?.append(log.mono_us(), &line)
    }
}

impl LedgerLine<'_> {
    fn new(event: &'static str, run: RunId, no: Option<u64>) -> Self {
        LedgerLine {
            event,
            run,
            no,
            last: 0,
            stage: None,
            policy_sha256: None,
            first: None,
            file: None,
            user: None,
            cause: None,
            sealed: None,
            torn: None,
            unsigned: None,
            others: None,
        }
    }
}

/// A ledger whose lock this process has.
struct Held<'a> {
    ledger: &'a Ledger,
    file: Flock<File>,
    /// Bytes of its whole lines.
    len: u64,
    /// Bytes after them: a part of a line, as a crash leaves it.
    torn: u64,
    /// Lines at the end that its key has not signed.
    unsigned: u64,
    /// Whole lines.
    seq: u64,
    /// The digest of the last one, with its line feed.
    prev: String,
    /// The last number that was taken.
    last: u64,
}

impl<'a> Held<'a> {
    fn new(ledger: &'a Ledger, file: Flock<File>, len: u64) -> Result<Held<'a>, LedgerError> {
        let at = |source| LedgerError::Io { path: ledger.path.clone(), source };
        let mut held = Held {
            ledger,
            file,
            len,
            torn: 0,
            unsigned: 0,
            seq: 0,
            prev: NOTHING_BEFORE.to_owned(),
            last: 0,
        };
        let mut room = TAIL;
        while !held.read_tail(len, room).map_err(at)? {
            if room >= len || room >= MAX_TORN || held.unsigned > MAX_UNSIGNED {
                return Err(LedgerError::Damaged { path: ledger.path.clone() });
            }
            room *= 16;
        }
        Ok(held)
    }

    /// Finds the last line that the key has signed, in so many bytes at the end of the file, and whether there is one. Those behind
    /// it stay, and say nothing. A file that has no whole line is an empty one.
    fn read_tail(&mut self, len: u64, room: u64) -> io::Result<bool> {
        let from = len.saturating_sub(room);
        let mut tail = vec![0; usize::try_from(len - from).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut tail, from)?;
        let whole = tail.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        self.torn = (tail.len() - whole) as u64;
        self.len = len.saturating_sub(self.torn);
        tail.truncate(whole);
        if self.len == 0 {
            return Ok(true);
        }
        let mut lines = tail.split_inclusive(|&byte| byte == b'\n');
        if from > 0 {
            // The end of a line that is not here.
            lines.next();
        }
        self.unsigned = 0;
        for (after, line) in lines.clone().rev().enumerate() {
            let fields = Fields::parse(line);
            let Some((fields, last)) = fields.and_then(|it| it.last.map(|last| (it, last))) else { continue };
            let (prev, sig) = (fields.prev.as_deref(), fields.sig.as_deref());
            let signed = signed_text(&self.ledger.name, line, fields.seq, prev, sig);
            if !signed.is_some_and(|(text, sig)| self.ledger.key.has_signed(text.as_bytes(), &sig)) {
                self.unsigned += 1;
                if self.unsigned > MAX_UNSIGNED {
                    return Ok(false);
                }
                continue;
            }
            self.unsigned = after as u64;
            self.seq = fields.seq.saturating_add(after as u64).saturating_add(1);
            self.last = last;
            self.prev = lines.next_back().map(sha256_hex).unwrap_or_default();
            return Ok(true);
        }
        Ok(false)
    }

    /// Writes one line, in the place of what a crash left of another.
    fn append(self, mono_us: u64, line: &LedgerLine<'_>) -> Result<Written, LedgerError> {
        let Held { ledger, file, len, torn, unsigned, seq, prev, last } = self;
        let at = |source| LedgerError::Io { path: ledger.path.clone(), source };
        let ts = format!("{:.6}", Timestamp::now());
        let place = Position { seq, ts: &ts, mono_us, prev: &prev };
        let [torn, unsigned] = [torn, unsigned].map(|count| Some(count).filter(|count| *count > 0));
        let others = match ledger.path.parent() {
            Some(dir) if seq.is_multiple_of(WITNESS_EVERY) => file::heads(dir, &ledger.name, MAX_OTHERS),
            _ => BTreeMap::new(),
        };
        let line = LedgerLine {
            last,
            torn,
            unsigned,
            others: Some(&others).filter(|others| !others.is_empty()),
            ..*line
        };
        let mut out = Vec::with_capacity(1024);
        encode_ledger(&mut out, &origin(&ledger.name), &place, digest(&prev), &line, &ledger.key)
            .map_err(|error| at(error.into()))?;
        if out.len() > MAX_LINE {
            return Err(at(io::Error::other("the line would be too long")));
        }
        if torn.is_some() {
            file.set_len(len).map_err(at)?;
        }
        if let Err(error) = (&*file).write_all(&out) {
            // A part of a line, as a full disk leaves it: nobody else has written since.
            let _ = file.set_len(len);
            return Err(at(error));
        }
        let head = Head { ledger: ledger.name.clone(), no: line.no.unwrap_or(0), sha256: sha256_hex(&out) };
        // The next run need not wait for the disk.
        let unlocked = file.unlock().map_err(|(_, errno)| at(errno.into()))?;
        if ledger.sync {
            unlocked.sync_data().map_err(at)?;
        }
        let same_key = |name: &&String| name.split('-').next() == ledger.name.split('-').next();
        let beside = others.keys().find(same_key).filter(|_| seq == 0).map(|other| {
            format!(
                "a ledger of this key begins here, `{}`, and there is one already, {}: the state directory was copied, or \
                 its host-* file was removed",
                shown(&ledger.path),
                escape(other.as_bytes(), 64)
            )
        });
        let odd = unsigned.map(|count| {
            let lines =
                if count == 1 { "the last line".to_owned() } else { format!("the last {count} lines") };
            format!(
                "{lines} of the ledger `{}` before that of this run: not signed as they stand",
                shown(&ledger.path)
            )
        });
        Ok(Written { head, odd: odd.or(beside) })
    }
}

/// The note of a run that the ledger does not have.
pub fn unnumbered(why: &str) -> Event {
    noted(What::Unnumbered, why)
}

/// The note of a run that found something in the ledger that somebody should look at.
pub fn odd(why: &str) -> Event {
    noted(What::Ledger, why)
}

fn noted(what: What, why: &str) -> Event {
    let mut note = Note::new(what);
    note.error = Some(why.to_owned());
    Event::Note(note)
}

/// Why a line is not in the ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Another process has the lock.
    #[error("another process has the lock of the ledger `{}` for more than {} s", shown(.path), DEADLINE.as_secs())]
    Busy {
        /// The ledger.
        path: PathBuf,
    },
    /// Somebody else could write to it.
    #[error("the ledger `{}` is not a file of yours alone, with one name", shown(.path))]
    Unsafe {
        /// The ledger.
        path: PathBuf,
    },
    /// No line of it can be read.
    #[error("the ledger `{}` does not end in a line of a ledger: move it away", shown(.path))]
    Damaged {
        /// The ledger.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("the ledger cannot be written: `{}`: {source}", shown(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

fn shown(path: &Path) -> String {
    escape(path.as_os_str().as_encoded_bytes(), 1024)
}

#[cfg(test)]
mod tests;

//! The ledger: a list of all runs, which shows that a record was removed.
//!
//! There is one ledger for each key and machine. A run takes a number in it before its stage starts, and writes a line at its start and
//! at its end. Lines are chained and signed as those of a record are. To take a number, a run reads only the end of the file, does not
//! wait for the end of other runs, and waits for the lock for at most [`DEADLINE`].
//!
//! The ledger never refuses a run: if a line cannot be written here, the record gets a note.

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
use crate::place::RecordDir;
use crate::{Event, RunId, RunNote, RunStart, SigningKey, What, sha256_hex};

/// The longest time that a run waits for the lock of the ledger.
pub const DEADLINE: Duration = Duration::from_secs(1);

/// The microseconds between the first attempts to get the lock. Its holder writes two lines, which takes less than the first pause
/// unless the machine is busy. A thread costs more than all of these.
const PAUSES: [u64; 5] = [200, 400, 800, 1600, 3200];

/// The bytes of the stack of a thread that waits for the lock.
const STACK: usize = 64 * 1024;

/// The bytes that are read to find the last line: at least two lines.
const TAIL: u64 = 2 * MAX_LINE as u64;

/// The most bytes at the end that need not be a line: a crash of the machine can leave them.
const MAX_TORN: u64 = 16 * 1024 * 1024;

/// The most lines at the end whose signatures are checked, because other runs wait meanwhile.
const MAX_UNSIGNED: u64 = 1000;

/// The interval of lines that name the last lines of the other ledgers in the directory.
const WITNESS_EVERY: u64 = 100;

/// The most other ledgers that one line names.
const MAX_OTHERS: usize = 16;

/// The ledger of one key on one machine. Its file need not exist yet.
#[derive(Debug, Clone)]
pub struct Ledger {
    path: PathBuf,
    /// The id of the key and the id of the machine.
    name: String,
    key: SigningKey,
    /// Whether each line is on the disk when its write returns.
    sync: bool,
}

/// The last line of a ledger, by which the ledger can be recognized later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The ledger's name.
    pub ledger: String,
    /// The number of the run.
    pub no: u64,
    /// The digest of the line, in hexadecimal.
    pub sha256: String,
}

/// The entry of a run that has started.
#[derive(Debug)]
pub enum LedgerEntry {
    /// The ledger has the start of the run.
    Numbered(NumberedRun),
    /// The ledger does not have the start of the run.
    Unnumbered(UnnumberedRun),
}

/// A run without a start in the ledger.
#[derive(Debug)]
pub struct UnnumberedRun {
    ledger: Ledger,
    /// The path of the record, if it is not in the usual place.
    file: Option<String>,
    /// The reason, for people.
    pub why: String,
}

/// A run that has its start in the ledger.
#[derive(Debug)]
pub struct NumberedRun {
    ledger: Ledger,
    no: u64,
    /// A fault in the ledger that somebody should look at, for people.
    pub oddity: Option<String>,
}

/// A line that was written.
#[derive(Debug)]
pub struct WrittenLine {
    /// The line.
    pub head: Head,
    /// A fault before the line that somebody should look at, for people.
    pub oddity: Option<String>,
}

impl Ledger {
    /// Finds the ledger of a key on this machine, in the state directory, which must exist. With `sync` each line is on the disk
    /// when its write returns.
    ///
    /// # Errors
    /// If the id of the machine can be neither read nor made.
    pub fn find(place: &RecordDir, key: SigningKey, sync: bool) -> Result<Ledger, LedgerError> {
        let dir = place.ledger_dir();
        let name = format!("{}-{}", key.verifying().key_id(), host::id(&dir)?);
        Ok(Ledger { path: dir.join(file::file_name(&name)), name, key, sync })
    }

    /// Returns the name: the id of the key and the id of the machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the next number, writes the first line of the record with it, and the start of the run in the ledger. `file` is the
    /// path of the record, if it is not in the usual place.
    ///
    /// # Errors
    /// Fails only if the record cannot be written.
    pub fn begin(self, log: &Log, start: RunStart, file: Option<&str>) -> Result<LedgerEntry, log::LogError> {
        let mut locked = match self.lock() {
            Ok(locked) => locked,
            Err(error) => {
                log.write(Event::RunStart(RunStart { ledger: InLedger::Unnumbered, ..start }))?;
                return Ok(self.unnumbered(file, &error));
            }
        };
        let no = locked.last.saturating_add(1);
        let number = Number { ledger: self.name.clone(), no, prev: locked.prev.clone() };
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
        locked.last = no;
        Ok(match locked.append(log.mono_us(), &line) {
            Ok(WrittenLine { oddity, .. }) => LedgerEntry::Numbered(NumberedRun { ledger: self, no, oddity }),
            Err(error) => self.unnumbered(file, &error),
        })
    }

    fn unnumbered(self, file: Option<&str>, why: &LedgerError) -> LedgerEntry {
        let file = file.map(str::to_owned);
        LedgerEntry::Unnumbered(UnnumberedRun { ledger: self, file, why: why.to_string() })
    }

    /// Writes that a user removes the record of a run. Call this before the record is removed.
    ///
    /// # Errors
    /// If the line could not be written.
    pub fn prune(&self, run: RunId, no: Option<u64>, user: Option<&str>) -> Result<WrittenLine, LedgerError> {
        self.lock()?.append(0, &LedgerLine { user, ..LedgerLine::new(PRUNED, run, no) })
    }

    /// Opens the file, takes its lock and reads its end.
    fn lock(&self) -> Result<LockedLedger<'_>, LedgerError> {
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
            let file = lock_until(file, by).map_err(|errno| match errno {
                Errno::EWOULDBLOCK => LedgerError::Busy { path: self.path.clone() },
                errno => at(errno.into()),
            })?;
            // The file may have been moved away during the wait for the lock.
            let there = fs::symlink_metadata(&self.path);
            let there = there.ok().filter(|there| (there.dev(), there.ino()) == (meta.dev(), meta.ino()));
            if let Some(there) = there {
                return LockedLedger::new(self, file, there.len());
            }
            if Instant::now() >= by {
                return Err(LedgerError::Busy { path: self.path.clone() });
            }
        }
    }
}

/// Takes the lock. Returns EWOULDBLOCK if it is not available by the time `by`.
fn lock_until(mut file: File, by: Instant) -> Result<Flock<File>, Errno> {
    for pause in PAUSES {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK | Errno::EINTR)) => file = unlocked,
            Err((_, errno)) => return Err(errno),
        }
        thread::sleep(Duration::from_micros(pause));
    }
    // Waiters in the kernel get the lock in turn, but flock(2) has no deadline, so a thread waits. If it gets the lock too late, it
    // releases it at once, because nobody receives it.
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

impl NumberedRun {
    /// Returns the number of the run.
    pub fn no(&self) -> u64 {
        self.no
    }

    /// Writes the end of the run, after the end of its record, with what the last checkpoint of the record covers.
    ///
    /// # Errors
    /// If the line could not be written. A reader then finds only the start.
    pub fn end(self, log: &Log, cause: Cause) -> Result<WrittenLine, LedgerError> {
        let sealed = log.sealed();
        let sealed = sealed.as_ref();
        let line =
            LedgerLine { cause: Some(cause), sealed, ..LedgerLine::new(END, log.run(), Some(self.no)) };
        self.ledger.lock()?.append(log.mono_us(), &line)
    }
}

impl UnnumberedRun {
    /// Writes the end of the run without a number, after the end of its record, so that the ledger shows if the record is removed later.
    ///
    /// # Errors
    /// If the line could not be written.
    pub fn end(&self, log: &Log, cause: Cause) -> Result<WrittenLine, LedgerError> {
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
struct LockedLedger<'a> {
    ledger: &'a Ledger,
    file: Flock<File>,
    /// The bytes of its complete lines.
    len: u64,
    /// The bytes after them: a part of a line that a crash left.
    torn: u64,
    /// The lines at the end that its key has not signed.
    unsigned: u64,
    /// The number of complete lines.
    seq: u64,
    /// The digest of the last line, with its line feed.
    prev: String,
    /// The last number that was taken.
    last: u64,
}

impl<'a> LockedLedger<'a> {
    fn new(ledger: &'a Ledger, file: Flock<File>, len: u64) -> Result<LockedLedger<'a>, LedgerError> {
        let at = |source| LedgerError::Io { path: ledger.path.clone(), source };
        let mut locked = LockedLedger {
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
        while !locked.read_tail(len, room).map_err(at)? {
            if room >= len || room >= MAX_TORN || locked.unsigned > MAX_UNSIGNED {
                return Err(LedgerError::Damaged { path: ledger.path.clone() });
            }
            room *= 16;
        }
        Ok(locked)
    }

    /// Looks for the last line that the key has signed, in the last `room` bytes of the file, and returns whether there is one. Lines after
    /// it stay in the file and are ignored. A file without a complete line counts as empty.
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
            // The end of a line that began earlier.
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

    /// Writes one line, over the part of a line that a crash left.
    fn append(self, mono_us: u64, line: &LedgerLine<'_>) -> Result<WrittenLine, LedgerError> {
        let LockedLedger { ledger, file, len, torn, unsigned, seq, prev, last } = self;
        let at = |source| LedgerError::Io { path: ledger.path.clone(), source };
        let ts = format!("{:.6}", Timestamp::now());
        let position = Position { seq, ts: &ts, mono_us, prev: &prev };
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
        encode_ledger(&mut out, &origin(&ledger.name), &position, digest(&prev), &line, &ledger.key)
            .map_err(|error| at(error.into()))?;
        if out.len() > MAX_LINE {
            return Err(at(io::Error::other("the line would be too long")));
        }
        if torn.is_some() {
            file.set_len(len).map_err(at)?;
        }
        if let Err(error) = (&*file).write_all(&out) {
            // A full disk can leave a part of a line. No other process has written since, because this one has the lock.
            let _ = file.set_len(len);
            return Err(at(error));
        }
        let head = Head { ledger: ledger.name.clone(), no: line.no.unwrap_or(0), sha256: sha256_hex(&out) };
        // The next run does not have to wait for the disk.
        let unlocked = file.unlock().map_err(|(_, errno)| at(errno.into()))?;
        if ledger.sync {
            unlocked.sync_data().map_err(at)?;
        }
        let same_key = |name: &&String| name.split('-').next() == ledger.name.split('-').next();
        let beside = others.keys().find(same_key).filter(|_| seq == 0).map(|other| {
            format!(
                "a ledger of this key begins here, `{}`, and there is one already, {}: the state directory was copied, or \
                 its host-* file was removed",
                display_path(&ledger.path),
                escape(other.as_bytes(), 64)
            )
        });
        let oddity = unsigned.map(|count| {
            let lines =
                if count == 1 { "the last line".to_owned() } else { format!("the last {count} lines") };
            format!(
                "{lines} of the ledger `{}` before that of this run: not signed as they stand",
                display_path(&ledger.path)
            )
        });
        Ok(WrittenLine { head, oddity: oddity.or(beside) })
    }
}

/// Makes the note of a run without a number.
pub fn unnumbered_note(why: &str) -> Event {
    note(What::Unnumbered, why)
}

/// Makes the note of a run that found a fault in the ledger.
pub fn oddity_note(why: &str) -> Event {
    note(What::Ledger, why)
}

fn note(what: What, why: &str) -> Event {
    let mut note = RunNote::new(what);
    note.error = Some(why.to_owned());
    Event::Note(note)
}

/// The reason why a line is not in the ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub enum LedgerError {
    /// Another process has the lock.
    #[error("another process has the lock of the ledger `{}` for more than {} s", display_path(.path), DEADLINE.as_secs())]
    Busy { path: PathBuf },
    /// Another user could write to it.
    #[error("the ledger `{}` is not a file of yours alone, with one name", display_path(.path))]
    Unsafe { path: PathBuf },
    /// Its last line is not a line of a ledger.
    #[error("the ledger `{}` does not end in a line of a ledger: move it away", display_path(.path))]
    Damaged { path: PathBuf },
    /// The kernel refused.
    #[error("the ledger cannot be written: `{}`: {source}", display_path(.path))]
    Io { path: PathBuf, source: io::Error },
}

fn display_path(path: &Path) -> String {
    escape(path.as_os_str().as_encoded_bytes(), 1024)
}

#[cfg(test)]
mod tests;

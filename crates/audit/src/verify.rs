//! Checks whether a record is whole: every line as it was written, none missing, signed to its end.
//!
//! Trusts nothing in the record, and only the given keys. Reads in constant memory. The signed checkpoints show what a hash chain alone
//! cannot: a cut end, or a chain that was rebuilt.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_policy::Verdict;
use exeat_record::checkpoint::origin;
use exeat_record::line::{SIG, signature_fields};
use exeat_record::place::{is_digest, policy_path, reloaded_path, run_in_name};
use exeat_record::{CHECKPOINT_EVERY, Counts, RunId, UNSIGNED, VerifyingKey, escape, file, hex, sha256_hex};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::query::{Flaw, LineKind, Reader, Record};
use crate::signed_note::{Checked, check};

/// The most findings that are listed; the rest is counted.
const MAX_FINDINGS: usize = 32;

/// The least difference between the two clocks, from one line to the next, that is noted as a step.
const STEP: Duration = Duration::from_secs(2);

/// The longest time between naming a run and its first line.
const NAMED_WITHIN: Duration = Duration::from_secs(60);

/// The most policies of one record that are checked: the first, and those that the proxy reloaded.
const MAX_POLICIES: usize = 256;

/// The most bytes of a stored policy.
const MAX_POLICY: u64 = 64 * 1024 * 1024;

/// The result of verifying one record.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Verification {
    /// The run according to the first line; printable.
    pub run: Option<String>,
    /// The number of lines in the file, including one that was cut.
    pub lines: u64,
    /// The number of lines, from the first, that a good checkpoint covers, itself included.
    pub covered: u64,
    /// The number of good checkpoints.
    pub checkpoints: u64,
    /// The key that signed the last good checkpoint.
    pub key: Option<VerifyingKey>,
    /// The ids of keys that were not given, as the record names them.
    pub unknown_keys: BTreeSet<String>,
    /// The times of the first and the last line, as in the record; printable.
    pub span: Option<(String, String)>,
    /// The policies that were in force, in order.
    pub policies: Vec<Stored>,
    /// Oddities, which prove nothing.
    pub notes: Vec<ClockNote>,
    /// The number of oddities beyond these.
    pub more_notes: u64,
    /// The faults that are listed.
    pub findings: Vec<Finding>,
    /// The number of faults beyond these.
    pub more: u64,
    /// The end of the file.
    pub ending: Ending,
    /// The facts that its ledger must agree with.
    pub witness: Witness,
}

/// The facts in a record that its ledger must agree with. Text is as in the record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Witness {
    /// The name of its ledger, or the reason why it has none.
    pub ledger: Option<String>,
    /// Its number in the ledger.
    pub no: Option<u64>,
    /// The digest of the line that the ledger ended with at the start.
    pub ledger_prev: Option<String>,
    /// The digest of the first line of the record.
    pub first: Option<String>,
    /// The number of lines that the last checkpoint covers, and their root, according to it.
    pub sealed: Option<(u64, String)>,
    /// Whether a note says that the ledger does not have the run.
    pub is_unnumbered: bool,
    /// Whether the record has the end of the run.
    pub has_ended: bool,
    /// The number of its lines.
    pub lines: u64,
}

/// A policy that was in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its digest, as in the record; printable.
    pub sha256: String,
    /// The comparison with the policy stored beside the record.
    pub beside: Beside,
}

/// The comparison of a stored policy with the record's digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// The stored policy has the digest.
    Same,
    /// The stored policy has another digest.
    Differs,
    /// The policy is not stored, or was not looked for.
    Missing,
}

/// The end of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// The end of the run and a good checkpoint after it.
    Sealed,
    /// The end of the run, without a good checkpoint after it.
    Unsealed,
    /// No end of the run: it still goes on, was killed, or the file was cut between two lines.
    #[default]
    Unfinished,
    /// No line: its run has not begun yet, was killed before it could, or the file was emptied.
    Empty,
    /// A part of a line: its writer was stopped in it, or the file was cut there.
    MidLine,
}

/// The standing of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Whole and signed to its end.
    Whole,
    /// Without a fault, but not signed to its end.
    Unfinished,
    /// Without a fault, but not signed by any of the keys.
    UnknownKey,
    /// Changed after it was written.
    Tampered,
}

impl Verification {
    /// Returns the standing of the record.
    pub fn standing(&self) -> Standing {
        if !self.findings.is_empty() || self.more > 0 {
            Standing::Tampered
        } else if self.ending == Ending::Sealed && self.covered == self.lines {
            Standing::Whole
        } else if !self.unknown_keys.is_empty() {
            Standing::UnknownKey
        } else {
            Standing::Unfinished
        }
    }

    /// Returns the digests of the policies that the record names and that are not stored; printable.
    pub fn missing(&self) -> Vec<String> {
        let missing = self.policies.iter().filter(|policy| policy.beside == Beside::Missing);
        missing.map(|policy| policy.sha256.clone()).collect()
    }

    /// Returns the first and last line that no good checkpoint covers, if nothing else is wrong.
    pub fn unsigned_tail(&self) -> Option<(u64, u64)> {
        let is_tail = self.standing() == Standing::Unfinished && self.covered < self.lines;
        is_tail.then_some((self.covered + 1, self.lines))
    }

    fn find(&mut self, finding: Finding) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        } else {
            self.more += 1;
        }
    }
}

/// A fault. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say; text is printable")]
pub enum Finding {
    /// The line is not a record, or is out of place.
    Line(Flaw),
    /// The line before is not the one after which this line was written.
    Changed { line: u64 },
    /// The key did not sign the checkpoint as it is.
    Signature { line: u64 },
    /// A good signature is over other lines than those before it.
    OtherLines {
        /// The first line that no earlier checkpoint covers.
        from: u64,
        /// The line of the checkpoint.
        line: u64,
    },
    /// A total at the end of the run differs from its lines.
    Counts {
        line: u64,
        /// The field.
        what: &'static str,
        said: u64,
        /// The number of lines.
        counted: u64,
    },
    /// Attempts are missing in the record, as it says itself.
    Dropped {
        /// The line that says so.
        line: u64,
        count: u64,
    },
    /// More lines at the end are unsigned, or for a longer time, than exeat leaves unsigned.
    Unsigned { from: u64, to: u64 },
    /// A decision was made under a policy that the record does not name.
    UnknownPolicy { line: u64 },
    /// The file has the name of another run: that run's record was replaced by this one.
    Name {
        /// The run that the file is named after.
        named: RunId,
    },
    /// The policy stored beside the record is another one.
    Policy { sha256: String },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Line(flaw) => flaw.fmt(f),
            Finding::Changed { line } => write!(
                f,
                "line {} was changed, or lines are missing or were put in between it and line {line}",
                line - 1
            ),
            Finding::Signature { line } => {
                write!(f, "line {line}: this checkpoint was not signed as it stands there")
            }
            Finding::OtherLines { from, line } => write!(
                f,
                "line {line}: the signature is good for other lines, not for {from} to {}",
                line.saturating_sub(1)
            ),
            Finding::Counts { line, what, said, counted } => {
                write!(f, "line {line}: `{what}` is {said}, and the lines before say {counted}")
            }
            Finding::Dropped { line, count } => {
                write!(f, "line {line}: {count} attempts are in no line (`dropped`)")
            }
            Finding::Unsigned { from, to } => write!(
                f,
                "lines {from} to {to} are not signed, and exeat signs each line within a second: \
                 they were written anew, or checkpoints were taken out"
            ),
            Finding::UnknownPolicy { line } => {
                write!(f, "line {line}: decided under a policy that did not hold in this run")
            }
            Finding::Name { named } => {
                write!(f, "the file is named after the run {named}, and holds the record of another")
            }
            Finding::Policy { sha256 } => {
                write!(
                    f,
                    "the policy that is stored beside the record is not the one with the digest {sha256}"
                )
            }
        }
    }
}

/// An oddity that proves nothing: clocks are set, and machines sleep. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockNote {
    /// The line.
    pub line: u64,
    /// The oddity.
    pub odd: Odd,
}

/// The oddity of a line's time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Odd {
    /// The wall clock advanced by this much more than the monotonic clock.
    Step(SignedDuration),
    /// The run was named this much earlier.
    Name(SignedDuration),
}

impl fmt::Display for ClockNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, sign) = (self.line, |by: &SignedDuration| if by.is_negative() { '-' } else { '+' });
        match &self.odd {
            Odd::Step(by) => write!(
                f,
                "line {line}: the clock stepped by {}{}{}",
                sign(by),
                words(by),
                if by.is_negative() { "" } else { ", or the machine slept" }
            ),
            Odd::Name(by) => write!(
                f,
                "line {line}: its time is {}{} from the time that the run's name has",
                sign(by),
                words(by)
            ),
        }
    }
}

/// Formats a time in the largest unit that fits, such as `21 d`.
fn words(by: &SignedDuration) -> String {
    let seconds = by.unsigned_abs().as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Verifies a record. With `path`, also compares the policies that are stored next to it.
///
/// # Errors
/// Fails if the record cannot be read. Faults of the record are in the report.
pub fn verify(input: impl BufRead, path: Option<&Path>, keys: &[VerifyingKey]) -> io::Result<Verification> {
    let mut reader = Reader::with_tree(input);
    let mut it = Verifier { keys, ..Verifier::default() };
    while let Some(record) = reader.next() {
        let record = record?;
        it.flaws(&reader);
        it.record(&reader, &record);
    }
    it.flaws(&reader);
    Ok(it.finish(reader.number(), path))
}

impl Witness {
    /// Takes in a line of the record.
    fn take(&mut self, line: &[u8], record: &Record) {
        self.lines += 1;
        match record.event {
            LineKind::RunStart if self.first.is_none() => {
                self.first = Some(sha256_hex(line));
                self.ledger.clone_from(&record.ledger);
                self.no = record.no;
                self.ledger_prev.clone_from(&record.ledger_prev);
            }
            LineKind::Note if record.what.as_deref() == Some("unnumbered") => self.is_unnumbered = true,
            LineKind::Checkpoint => self.sealed = record.n.zip(record.root.clone()),
            LineKind::RunEnd => self.has_ended = true,
            _ => {}
        }
    }
}

#[derive(Default)]
struct Verifier<'a> {
    keys: &'a [VerifyingKey],
    report: Verification,
    counts: Counts,
    /// The number of the reader's flaws that were taken in.
    told: usize,
    /// The digests of the policies that were in force.
    policies: Vec<String>,
    /// Whether the first lines were signed before any decision, or the first one says that a key signs them. exeat 0.1 signed later.
    is_signed_early: bool,
    /// Whether a line that must come after the first checkpoint was read before any.
    is_stripped: bool,
    /// Whether a checkpoint was read, good or not.
    has_checkpoint: bool,
    /// Whether a signed line says that the disk is full.
    is_full: bool,
    tail: Tail,
    /// The wall clock and the monotonic clock of the line before.
    clock: Option<(Timestamp, Duration)>,
    /// Whether another run's record began, which is not checked.
    is_over: bool,
}

/// The lines after the last good checkpoint.
#[derive(Default)]
struct Tail {
    lines: u64,
    /// The monotonic time of the first of them, in microseconds.
    begin: u64,
    /// The monotonic times of the last but one and of the last.
    ends: (u64, u64),
    /// Whether one of them says that the disk is full.
    is_full: bool,
}

impl Tail {
    fn add(&mut self, mono_us: u64) {
        if self.lines == 0 {
            self.begin = mono_us;
        }
        self.lines += 1;
        self.ends = (self.ends.1, mono_us);
    }

    /// Whether exeat would have signed some of it: every line that comes later, except the last, is followed by a checkpoint.
    fn is_overdue(&self) -> bool {
        let span = self.ends.0.saturating_sub(self.begin);
        self.lines > CHECKPOINT_EVERY || (self.lines > 1 && u128::from(span) > UNSIGNED.as_micros())
    }
}

impl Verifier<'_> {
    /// Takes in the flaws that the reader has found since.
    fn flaws<R: BufRead>(&mut self, reader: &Reader<R>) {
        for flaw in reader.flaws().get(self.told..).unwrap_or_default() {
            if self.is_over {
                break;
            }
            match flaw {
                Flaw::AnotherRun { .. } => {
                    self.report.find(Finding::Line(flaw.clone()));
                    self.is_over = true;
                }
                Flaw::Cut { .. } => self.report.ending = Ending::MidLine,
                Flaw::Unfinished { .. } => {}
                Flaw::Chain { line } => self.report.find(Finding::Changed { line: *line }),
                flaw => self.report.find(Finding::Line(flaw.clone())),
            }
        }
        self.told = reader.flaws().len();
        if !self.is_over {
            self.report.more = self.report.more.max(reader.more_flaws());
        }
    }

    fn record<R: BufRead>(&mut self, reader: &Reader<R>, record: &Record) {
        if !reader.whole_line().ends_with(b"\n") {
            // A line that was cut before its line feed may still parse, but it is not a line.
            return;
        }
        if self.is_over {
            return;
        }
        let line = reader.number();
        self.clock(line, record);
        let ts = escape(record.ts.as_bytes(), 64);
        match &mut self.report.span {
            Some((_, last)) => *last = ts,
            none => *none = Some((ts.clone(), ts)),
        }
        self.report.run.get_or_insert_with(|| escape(record.run.as_bytes(), 64));
        self.tail.add(record.mono_us);
        self.report.witness.take(reader.whole_line(), record);
        self.tail.is_full |= record.event == LineKind::Note && record.what.as_deref() == Some("no_room");
        let unsealed = self.report.ending == Ending::Unsealed;
        self.report.ending = Ending::Unfinished;
        // A run has a ledger only if a key signs its record, and then the first lines are signed before anything else.
        self.is_signed_early |= self.report.witness.ledger.as_deref().is_some_and(|ledger| ledger != "none");
        let is_first = matches!(
            record.event,
            LineKind::RunStart | LineKind::Policy | LineKind::Note | LineKind::Checkpoint
        );
        self.is_stripped |= self.is_signed_early && !self.has_checkpoint && !is_first;
        self.has_checkpoint |= record.event == LineKind::Checkpoint;
        match record.event {
            LineKind::RunStart => self.policies.extend(record.policy_sha256.clone()),
            LineKind::Note
                if record.what.as_deref() == Some("policy_reload")
                    && record.error.is_none()
                    && self.policies.len() < MAX_POLICIES =>
            {
                self.policies.extend(record.policy_sha256.clone());
            }
            LineKind::Decision | LineKind::Dns => self.decided(line, record),
            LineKind::Close if record.is_failed() => self.counts.failed += 1,
            LineKind::RunEnd => {
                self.report.ending = Ending::Unsealed;
                self.ended(line, record);
            }
            LineKind::Checkpoint => {
                let good = self.checkpoint(reader, record, line);
                if good {
                    // After this line only the end must be signed.
                    self.is_full |= self.tail.is_full;
                    self.tail = Tail::default();
                    self.is_signed_early |= self.counts == Counts::default();
                }
                if unsealed {
                    self.report.ending = if good { Ending::Sealed } else { Ending::Unsealed };
                }
            }
            _ => {}
        }
    }

    /// Compares the wall clock with the monotonic clock, and the first line with the time in its run's name.
    fn clock(&mut self, line: u64, record: &Record) {
        let Ok(now) = record.ts.parse::<Timestamp>() else { return };
        let mono = Duration::from_micros(record.mono_us);
        let before = self.clock.replace((now, mono));
        let Some((then, mono_then)) = before else {
            let made =
                record.run.parse().ok().and_then(|run: RunId| Timestamp::try_from(run.created_at()).ok());
            if let Some(by) =
                made.map(|made| now.duration_since(made)).filter(|by| by.unsigned_abs() > NAMED_WITHIN)
            {
                self.note(ClockNote { line, odd: Odd::Name(by) });
            }
            return;
        };
        let ran = SignedDuration::try_from(mono.saturating_sub(mono_then)).unwrap_or(SignedDuration::MAX);
        let by = now.duration_since(then).saturating_sub(ran);
        // A clock that is adjusted gradually runs slower or faster by 0.05 % (adjtime(3)).
        if by.unsigned_abs() > STEP + ran.unsigned_abs() / 1000 {
            self.note(ClockNote { line, odd: Odd::Step(by) });
        }
    }

    fn note(&mut self, note: ClockNote) {
        if self.report.notes.len() < MAX_FINDINGS {
            self.report.notes.push(note);
        } else {
            self.report.more_notes += 1;
        }
    }

    fn decided(&mut self, line: u64, record: &Record) {
        let count = record.count.unwrap_or(1);
        let of = match record.verdict() {
            Some(Verdict::Allow) => &mut self.counts.allowed,
            Some(Verdict::Deny) => &mut self.counts.denied,
            Some(Verdict::WouldDeny) => &mut self.counts.would_deny,
            Some(Verdict::Error) => &mut self.counts.errors,
            None => return,
        };
        *of = of.saturating_add(count);
        // Not all policies of a proxy that reloads often are kept.
        let known = record.policy_sha256.as_ref().is_none_or(|digest| self.policies.contains(digest));
        if !known && self.policies.len() < MAX_POLICIES {
            self.report.find(Finding::UnknownPolicy { line });
        }
    }

    fn ended(&mut self, line: u64, record: &Record) {
        let counts = self.counts;
        for (what, said, counted) in [
            ("allowed", record.allowed, counts.allowed),
            ("denied", record.denied, counts.denied),
            ("would_deny", record.would_deny, counts.would_deny),
            ("errors", record.errors, counts.errors),
        ] {
            let said = said.unwrap_or(0);
            if said != counted {
                self.report.find(Finding::Counts { line, what, said, counted });
            }
        }
        // Records of exeat 0.1 do not have this total.
        if let Some(said) = record.failed.filter(|said| *said != counts.failed) {
            self.report.find(Finding::Counts { line, what: "failed", said, counted: counts.failed });
        }
        if let Some(count) = record.dropped.filter(|count| *count > 0) {
            self.report.find(Finding::Dropped { line, count });
        }
    }

    /// Whether the ledger that the record names belongs to a key at hand, which then signs the record, too.
    fn is_ledger_known(&self) -> bool {
        let ledger = self.report.witness.ledger.as_deref().unwrap_or_default();
        self.keys.iter().any(|key| ledger.starts_with(&key.key_id()))
    }

    /// Whether a checkpoint is good: its key signed this line, over exactly the lines before.
    fn checkpoint<R: BufRead>(&mut self, reader: &Reader<R>, record: &Record, line: u64) -> bool {
        let note = record.signed_note.as_deref().unwrap_or_default();
        let (key, checkpoint, signed) = match check(note, self.keys) {
            Checked::Good { key, checkpoint, signed } => (key, checkpoint, signed),
            Checked::UnknownKey => {
                let id = escape(record.key_id.as_deref().unwrap_or("none").as_bytes(), 16);
                if self.report.unknown_keys.len() < MAX_FINDINGS {
                    self.report.unknown_keys.insert(id);
                }
                // In a record of another key, the lines up to here were signed in time. Beside good checkpoints, or a ledger of a key at
                // hand, they were not.
                if self.report.checkpoints == 0 && !self.is_ledger_known() {
                    self.tail = Tail::default();
                }
                return false;
            }
            Checked::BadSignature | Checked::Malformed => {
                self.report.find(Finding::Signature { line });
                return false;
            }
        };
        let raw = reader.whole_line();
        let own = raw.windows(SIG.len()).position(|part| part == SIG).and_then(|at| raw.split_at_checked(at));
        let as_written = own.is_some_and(|(own, rest)| {
            sha256_hex(own) == checkpoint.line && signature_fields(&signed).is_ok_and(|fields| fields == rest)
        });
        let says = record.n == Some(checkpoint.n)
            && record.root == Some(hex(&checkpoint.root))
            && record.key_id.as_deref() == self.keys.get(key).map(VerifyingKey::key_id).as_deref();
        if !(as_written && says) {
            self.report.find(Finding::Signature { line });
            return false;
        }
        let same_lines =
            reader.tree().is_some_and(|tree| tree.lines() == checkpoint.n && tree.root() == checkpoint.root);
        if !same_lines || checkpoint.origin != origin(&record.run) {
            self.report.find(Finding::OtherLines { from: self.report.covered + 1, line });
            return false;
        }
        self.report.covered = line;
        self.report.checkpoints += 1;
        self.report.key = self.keys.get(key).cloned();
        true
    }

    fn finish(mut self, lines: u64, path: Option<&Path>) -> Verification {
        self.report.lines = lines;
        if lines == 0 {
            self.report.ending = Ending::Empty;
        }
        let is_overdue = self.is_signed_early && !self.is_full && self.tail.is_overdue();
        if is_overdue || self.is_stripped {
            self.report.find(Finding::Unsigned { from: self.report.covered + 1, to: lines });
        }
        // A swapped record of another run would be whole, too.
        if let Some(named) = path.and_then(run_in_name)
            && self.report.run.as_ref().is_some_and(|run| *run != named.to_string())
        {
            self.report.find(Finding::Name { named });
        }
        let mut seen = BTreeSet::new();
        for (at, digest) in self.policies.iter().enumerate() {
            if !seen.insert(digest) {
                continue;
            }
            let sha256 = escape(digest.as_bytes(), 64);
            let beside = match (path, at) {
                (None, _) => Beside::Missing,
                (Some(path), 0) => compare(Some(policy_path(path)), digest),
                (Some(path), _) => compare(reloaded_path(path, digest), digest),
            };
            if beside == Beside::Differs {
                self.report.find(Finding::Policy { sha256: sha256.clone() });
            }
            self.report.policies.push(Stored { sha256, beside });
        }
        self.report
    }
}

/// Compares a stored policy with a digest. A file that cannot be read counts as different.
fn compare(path: Option<PathBuf>, digest: &str) -> Beside {
    let path = match path {
        Some(path) if is_digest(digest) => path,
        _ => return Beside::Differs,
    };
    match digest_of(&path) {
        Ok(found) if found == digest => Beside::Same,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Beside::Missing,
        _ => Beside::Differs,
    }
}

fn digest_of(path: &Path) -> io::Result<String> {
    let mut file = file::open_linked(path)?;
    let mut hash = Sha256::new();
    let mut room = vec![0; 64 * 1024];
    let mut left = MAX_POLICY;
    while left > 0 {
        let read = file.read(&mut room)?;
        if read == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(room.get(..read).unwrap_or_default());
        left = left.saturating_sub(read as u64);
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

#[cfg(test)]
mod tests;

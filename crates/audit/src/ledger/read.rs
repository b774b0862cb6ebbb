//! Reading a ledger back, and whether it is as it was written.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, BufReader};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nix::fcntl::OFlag;

use super::{END, PRUNED, START, digest, origin};
use crate::checkpoint::Checkpoint;
use crate::escape::escape;
use crate::line::SIG;
use crate::place::Place;
use crate::query::{Flaw, Kind, Reader, Record};
use crate::{RunId, VerifyingKey, sha256_hex};

/// Faults that are told one by one; the rest is counted.
const MAX_FAULTS: usize = 32;

/// Digits of a digest that a head has at least: as many as `exeat run` prints.
const MIN_DIGITS: usize = 16;

/// How the name of a ledger's file begins.
const BEGIN: &str = "ledger-";

/// The name of the file of a ledger.
pub(super) fn file_name(name: &str) -> String {
    format!("{BEGIN}{name}.jsonl")
}

/// What a ledger says.
#[derive(Debug)]
#[non_exhaustive]
pub struct Book {
    /// Its name: the id of its key and that of its machine.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// Lines in it.
    pub lines: u64,
    /// The last number that was taken.
    pub last: u64,
    /// The digest of its last line, in hexadecimal.
    pub head: Option<String>,
    /// The key that signed the last line. `None` where no key that is known did.
    pub key: Option<VerifyingKey>,
    /// What is wrong with it.
    pub told: Vec<Told>,
    /// Faults beyond these.
    pub more: u64,
    /// Lines that a crash cut, and in whose place the next run wrote.
    pub torn: u64,
    /// Where the heads that were looked for are, by their place among them.
    pub found: BTreeMap<usize, Found>,
    /// The runs in it.
    pub(super) runs: BTreeMap<RunId, Entry>,
}

/// A line of a ledger that somebody kept elsewhere: the first digits of its digest, and the number that stood beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptHead {
    /// A number that was taken up to then. It tells why the line is not there, and not whether.
    pub no: Option<u64>,
    digits: String,
}

impl fmt::Display for KeptHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.no {
            Some(no) => write!(f, "{no} {}", self.digits),
            None => f.write_str(&self.digits),
        }
    }
}

impl FromStr for KeptHead {
    type Err = BadHead;

    fn from_str(text: &str) -> Result<KeptHead, BadHead> {
        let (no, digits) = match text.split_once(' ') {
            Some((no, digits)) => (Some(no.parse().map_err(|_| BadHead)?), digits),
            None => (None, text),
        };
        let is_digest = (MIN_DIGITS..=64).contains(&digits.len());
        match is_digest && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            true => Ok(KeptHead { no, digits: digits.to_ascii_lowercase() }),
            false => Err(BadHead),
        }
    }
}

/// What was given is no head of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a head is {MIN_DIGITS} to 64 hexadecimal digits, or the number of its run, a space, and these")]
pub struct BadHead;

/// Where a head is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its line, from 1.
    pub line: u64,
    /// The last number that was taken up to there.
    pub last: u64,
}

/// What a ledger has of a run. Text is as the file has it.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) start: Option<Start>,
    pub(super) end: Option<End>,
    /// When its record was pruned, and by whom.
    pub(super) pruned: Option<(String, Option<String>)>,
}

#[derive(Debug)]
pub(super) struct Start {
    pub(super) no: u64,
    pub(super) ts: String,
    pub(super) stage: Option<String>,
    /// The digest of the policy, where the record has one.
    pub(super) policy: Option<String>,
    /// That of the first line of the record.
    pub(super) first: Option<String>,
    /// The place of the record, where it is not the usual one.
    pub(super) file: Option<String>,
    /// The digest of the line before this one.
    pub(super) prev: Option<String>,
}

#[derive(Debug)]
pub(super) struct End {
    /// Lines that the last checkpoint of the record covers, and their root in hexadecimal.
    pub(super) sealed: Option<(u64, String)>,
}

/// Something that is wrong with a ledger itself. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Told {
    /// The line before is not the one after which this one was written.
    Changed {
        /// This one.
        line: u64,
    },
    /// A line that its key did not sign as it stands.
    Signature {
        /// The line.
        line: u64,
    },
    /// No key that is known signed the line.
    UnknownKey {
        /// The line.
        line: u64,
    },
    /// A line of a ledger that does not say what such a line says.
    Malformed {
        /// The line.
        line: u64,
    },
    /// Numbers between two starts that no start has.
    Missing {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// A start with a number that was taken before.
    Again {
        /// The number.
        no: u64,
    },
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Told::Changed { line } => write!(
                f,
                "line {} was changed, or lines are missing or were put in between it and line {line}",
                line.saturating_sub(1)
            ),
            Told::Signature { line } => write!(f, "line {line} was not signed as it stands there"),
            Told::UnknownKey { line } => write!(f, "line {line} is not signed by a key that is known here"),
            Told::Malformed { line } => write!(f, "line {line} is not a line of a ledger"),
            Told::Missing { from, to } if from == to => write!(f, "the start of number {from} is missing"),
            Told::Missing { from, to } => write!(f, "the starts of numbers {from} to {to} are missing"),
            Told::Again { no } => write!(f, "number {no} was taken twice"),
        }
    }
}

impl Book {
    /// Reads every ledger of a state directory, and looks for these heads in it.
    ///
    /// # Errors
    /// Those of reading. What is wrong with a ledger is in [`Book::told`].
    pub fn all(place: &Place, keys: &[VerifyingKey], heads: &[KeptHead]) -> io::Result<Vec<Book>> {
        let dir = place.ledger_dir();
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut books = Vec::new();
        for entry in entries {
            let file = entry?.file_name();
            let name = file.to_str().and_then(|file| file.strip_prefix(BEGIN)?.strip_suffix(".jsonl"));
            if let Some(name) = name {
                books.push(Book::read(name, &dir.join(&file), keys, heads)?);
            }
        }
        books.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(books)
    }

    /// Reads one ledger, in memory that grows with the runs in it alone.
    fn read(name: &str, path: &Path, keys: &[VerifyingKey], heads: &[KeptHead]) -> io::Result<Book> {
        let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
        let mut reader = Reader::of_ledger(BufReader::with_capacity(64 * 1024, file));
        let mut book = Book {
            name: name.to_owned(),
            path: path.to_owned(),
            lines: 0,
            last: 0,
            head: None,
            key: None,
            told: Vec::new(),
            more: 0,
            torn: 0,
            found: BTreeMap::new(),
            runs: BTreeMap::new(),
        };
        // The last line that was read as it should be.
        let mut before: Option<(u64, Vec<u8>, Record)> = None;
        let mut known = 0;
        while let Some(record) = reader.next() {
            let record = record?;
            if !reader.whole_line().ends_with(b"\n") {
                break;
            }
            let line = reader.number();
            if book.flaws(&reader, &mut known)
                && let Some((line, raw, record)) = &before
            {
                // Up to there it may still be as it was written.
                book.check(*line, raw, record, keys);
            }
            book.take(line, &record);
            for (at, head) in heads.iter().enumerate() {
                if reader.digest().starts_with(&head.digits) {
                    book.found.insert(at, Found { line, last: book.last });
                }
            }
            before = Some((line, reader.whole_line().to_vec(), record));
        }
        book.flaws(&reader, &mut known);
        book.lines = reader.number();
        if let Some((line, raw, record)) = &before {
            // Each signature stands for all lines before it.
            book.key = book.check(*line, raw, record, keys);
            book.head = Some(sha256_hex(raw));
        }
        Ok(book)
    }

    /// Whether something is wrong with it, beyond a signature of a key that is not known.
    pub fn is_damaged(&self) -> bool {
        self.told.iter().any(|told| !matches!(told, Told::UnknownKey { .. }))
    }

    /// Takes in what the reader has found since. Whether the chain is broken.
    fn flaws<R: io::BufRead>(&mut self, reader: &Reader<R>, known: &mut usize) -> bool {
        let mut is_broken = false;
        for flaw in reader.flaws().get(*known..).unwrap_or_default() {
            match flaw {
                Flaw::Malformed { line, .. } | Flaw::Damaged { line, .. } => {
                    self.tell(Told::Malformed { line: *line })
                }
                Flaw::Chain { line } | Flaw::Gap { line, .. } => {
                    if !is_broken {
                        self.tell(Told::Changed { line: *line });
                    }
                    is_broken = true;
                }
                // It may be being written; the next run writes in its place.
                Flaw::Cut { .. } => {}
                Flaw::Unfinished { .. } | Flaw::AnotherRun { .. } | Flaw::AfterEnd { .. } => {}
            }
        }
        *known = reader.flaws().len();
        self.more = self.more.max(reader.more_flaws());
        is_broken
    }

    fn tell(&mut self, told: Told) {
        if self.told.len() < MAX_FAULTS {
            self.told.push(told);
        } else {
            self.more += 1;
        }
    }

    /// Takes in a line.
    fn take(&mut self, line: u64, record: &Record) {
        let Kind::Other(event) = &record.event else { return self.tell(Told::Malformed { line }) };
        self.torn += u64::from(record.torn.is_some());
        let Ok(run) = record.run.parse::<RunId>() else { return self.tell(Told::Malformed { line }) };
        match (event.as_str(), record.no) {
            (START, Some(no)) => {
                let expected = self.last + 1;
                if no > expected {
                    self.tell(Told::Missing { from: expected, to: no - 1 });
                } else if no < expected {
                    self.tell(Told::Again { no });
                }
                self.last = self.last.max(no);
                self.runs.entry(run).or_default().start = Some(Start {
                    no,
                    ts: record.ts.clone(),
                    stage: record.stage.clone(),
                    policy: record.policy_sha256.clone(),
                    first: record.first.clone(),
                    file: record.file.clone(),
                    prev: record.prev.clone(),
                });
            }
            (END, Some(_)) => {
                let sealed = record.n.zip(record.root.clone());
                self.runs.entry(run).or_default().end = Some(End { sealed });
            }
            (PRUNED, _) => {
                self.runs.entry(run).or_default().pruned = Some((record.ts.clone(), record.user.clone()));
            }
            // A later version may write other lines.
            (START | END, None) => self.tell(Told::Malformed { line }),
            _ => {}
        }
    }

    /// Tells whether a line was signed as it stands, and gives the key.
    fn check(
        &mut self,
        line: u64,
        raw: &[u8],
        record: &Record,
        keys: &[VerifyingKey],
    ) -> Option<VerifyingKey> {
        let id = self.name.split('-').next().unwrap_or_default();
        let mut known = keys.iter().filter(|key| key.key_id() == id).peekable();
        if known.peek().is_none() {
            self.tell(Told::UnknownKey { line });
            return None;
        }
        let own = raw.windows(SIG.len()).position(|part| part == SIG).and_then(|at| raw.get(..at));
        let checkpoint = Checkpoint {
            origin: origin(&self.name),
            n: record.seq,
            root: digest(record.prev.as_deref().unwrap_or_default()),
            line: sha256_hex(own.unwrap_or_default()),
        };
        let text = checkpoint.text();
        let sig = record.sig.as_deref().and_then(|sig| BASE64.decode(sig).ok()).unwrap_or_default();
        // To the byte as it is written: nothing stands after the signature.
        let is_exact = own.is_some_and(|own| raw.len() == own.len() + SIG.len() + SIGNATURE + 3);
        let key = known.find(|key| is_exact && key.has_signed(text.as_bytes(), &sig)).cloned();
        if key.is_none() {
            self.tell(Told::Signature { line });
        }
        key
    }
}

/// Characters of a signature in base64; a quotation mark, a brace and a line feed end the line.
const SIGNATURE: usize = 88;

/// Text of a ledger for people.
pub(super) fn shown(text: &str) -> String {
    escape(text.as_bytes(), 256)
}

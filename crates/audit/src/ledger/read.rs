//! Reads a ledger back and checks that it is as it was written.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::str::FromStr;

use exeat_record::place::RecordDir;
use exeat_record::tree::Hash;
use exeat_record::{RunId, VerifyingKey, escape, file};

use crate::query::{Flaw, LineKind, Reader, Record};
use exeat_record::ledger::file::{END, LATE, PRUNED, START, digest, file_name, names, signed_text};

/// The most faults that are listed; the rest is counted.
const MAX_FAULTS: usize = 32;

/// The fewest digits of a digest in a head: as many as `exeat run` prints.
const MIN_DIGITS: usize = 16;

/// The content of a ledger.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Book {
    /// Its name: the id of its key and that of its machine.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The number of its lines.
    pub lines: u64,
    /// The last number that was taken.
    pub last: u64,
    /// The digest of its last line, in hexadecimal.
    pub head: Option<String>,
    /// The key that signed the last line; `None` if no known key did.
    pub key: Option<VerifyingKey>,
    /// The faults that are listed.
    pub faults: Vec<BookFault>,
    /// The number of faults beyond these.
    pub more: u64,
    /// The number of lines that a crash cut, and that the next run replaced.
    pub torn: u64,
    /// The heads that were found, by their position in the list that was looked for.
    pub found: BTreeMap<usize, HeadPosition>,
    /// Other ledgers of the same key that existed when it began; printable.
    pub beside: Vec<String>,
    /// The runs in it.
    pub(super) runs: BTreeMap<RunId, Entry>,
    /// The last lines that it has seen of other ledgers: name and digests.
    pub(super) others: BTreeMap<String, Vec<Hash>>,
    /// The digests of its lines, if there are other ledgers.
    pub(super) digests: HashSet<Hash>,
}

/// A head that somebody kept elsewhere: the first digits of a line's digest, and the number printed with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptHead {
    /// A number taken up to that line. It helps explain why the line is missing.
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

/// The text is not a head of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a head is {MIN_DIGITS} to 64 hexadecimal digits, or the number of its run, a space, and these")]
pub struct BadHead;

/// The position of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPosition {
    /// Its line, from 1.
    pub line: u64,
    /// The last number that was taken up to there.
    pub last: u64,
}

/// The lines of a ledger about one run. Text is as in the file.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) start: Option<Start>,
    pub(super) end: Option<End>,
    pub(super) pruned: Option<Pruned>,
}

/// When a record was pruned, and by whom.
#[derive(Debug)]
pub(super) struct Pruned {
    pub(super) ts: String,
    pub(super) user: Option<String>,
}

#[derive(Debug)]
pub(super) struct Start {
    /// `None` for a run that could not take a number, and is known only from its end.
    pub(super) no: Option<u64>,
    pub(super) ts: String,
    pub(super) stage: Option<String>,
    /// The digest of the first line of the record.
    pub(super) first: Option<String>,
    /// The path of the record, if it is not the usual one.
    pub(super) file: Option<String>,
    /// The digest of the line before this one.
    pub(super) prev: Option<String>,
}

#[derive(Debug)]
pub(super) struct End {
    /// The number of lines that the last checkpoint of the record covers, and their root in hexadecimal.
    pub(super) sealed: Option<(u64, String)>,
}

/// A fault in a ledger itself. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub enum BookFault {
    /// The line before is not the one after which this line was written.
    Changed { line: u64 },
    /// The ledger's key did not sign the line as it is.
    Signature { line: u64 },
    /// No known key signed the line.
    UnknownKey { line: u64 },
    /// The text is not a line of a ledger.
    Malformed { line: u64 },
    /// The file cannot be read, or only in part.
    Unreadable { why: String },
    /// No start has the numbers between two starts.
    Missing { from: u64, to: u64 },
    /// A start has a number that was taken before.
    Again { no: u64 },
}

impl fmt::Display for BookFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BookFault::Changed { line } => write!(
                f,
                "line {} was changed, or lines are missing or were put in between it and line {line}",
                line.saturating_sub(1)
            ),
            BookFault::Signature { line } => write!(f, "line {line} was not signed as it stands there"),
            BookFault::UnknownKey { line } => {
                write!(f, "line {line} is not signed by a key that is known here")
            }
            BookFault::Malformed { line } => write!(f, "line {line} is not a line of a ledger"),
            BookFault::Unreadable { why } => write!(f, "it cannot be read: {why}"),
            BookFault::Missing { from, to } if from == to => {
                write!(f, "the start of number {from} is missing")
            }
            BookFault::Missing { from, to } => {
                write!(f, "the starts of numbers {from} to {to} are missing")
            }
            BookFault::Again { no } => write!(f, "number {no} was taken twice"),
        }
    }
}

impl Book {
    /// Reads every ledger of a state directory, and looks for these heads in them.
    ///
    /// # Errors
    /// Fails if a ledger cannot be read. Faults in a ledger are in [`Book::faults`].
    pub fn all(place: &RecordDir, keys: &[VerifyingKey], heads: &[KeptHead]) -> io::Result<Vec<Book>> {
        let dir = place.ledger_dir();
        let names = names(&dir)?;
        let read = |name: &String| {
            let mut book = Book::new(name, dir.join(file_name(name)));
            if let Err(error) = book.read(keys, heads, names.len() > 1) {
                book.add_fault(BookFault::Unreadable { why: error.to_string() });
            }
            book
        };
        Ok(names.iter().map(read).collect())
    }

    fn new(name: &str, path: PathBuf) -> Book {
        Book { name: name.to_owned(), path, ..Book::default() }
    }

    /// Reads the file. Only the number of runs decides how much memory that takes.
    fn read(&mut self, keys: &[VerifyingKey], heads: &[KeptHead], has_others: bool) -> io::Result<()> {
        let book = self;
        let name = book.name.clone();
        let file = file::open(&book.path)?;
        let mut reader = Reader::of_ledger(BufReader::with_capacity(64 * 1024, file));
        let mut known = 0;
        let mut unknown = None;
        while let Some(record) = reader.next() {
            let record = record?;
            if !reader.whole_line().ends_with(b"\n") {
                break;
            }
            book.flaws(&reader, &mut known);
            let (line, raw) = (reader.number(), reader.whole_line());
            // Check every line: anyone may append one without a key, and the next run writes its own after it.
            match signed_by(&name, raw, &record, keys) {
                Signed::By(key) => {
                    book.key = Some(key.clone());
                    book.take(line, &record);
                }
                Signed::Unknown => {
                    unknown = Some(line);
                    book.take(line, &record);
                }
                Signed::Nobody => book.add_fault(BookFault::Signature { line }),
            }
            let head = reader.digest();
            for (at, wanted) in heads.iter().enumerate() {
                if head.starts_with(&wanted.digits) {
                    book.found.insert(at, HeadPosition { line, last: book.last });
                }
            }
            if has_others {
                book.digests.insert(digest(head));
            }
            book.head = Some(head.to_owned());
        }
        book.flaws(&reader, &mut known);
        book.lines = reader.number();
        unknown.into_iter().for_each(|line| book.add_fault(BookFault::UnknownKey { line }));
        Ok(())
    }

    /// Returns the runs whose start it has, but not their end.
    pub fn without_end(&self) -> impl Iterator<Item = RunId> {
        let is_open = |entry: &Entry| entry.start.is_some() && entry.end.is_none();
        self.runs.iter().filter(move |(_, entry)| is_open(entry)).map(|(run, _)| *run)
    }

    /// Whether it has a fault other than a signature by an unknown key.
    pub fn is_damaged(&self) -> bool {
        self.faults.iter().any(|fault| !matches!(fault, BookFault::UnknownKey { .. }))
    }

    /// Takes in the flaws that the reader has found since.
    fn flaws<R: io::BufRead>(&mut self, reader: &Reader<R>, known: &mut usize) {
        let mut is_broken = false;
        for flaw in reader.flaws().get(*known..).unwrap_or_default() {
            match flaw {
                Flaw::Malformed { line, .. } | Flaw::Damaged { line, .. } => {
                    self.add_fault(BookFault::Malformed { line: *line })
                }
                Flaw::Chain { line } | Flaw::Gap { line, .. } => {
                    if !is_broken {
                        self.add_fault(BookFault::Changed { line: *line });
                    }
                    is_broken = true;
                }
                // The line may be in the middle of being written; otherwise the next run replaces it.
                Flaw::Cut { .. } => {}
                Flaw::Unfinished { .. } | Flaw::AnotherRun { .. } | Flaw::AfterEnd { .. } => {}
            }
        }
        *known = reader.flaws().len();
        self.more = self.more.max(reader.more_flaws());
    }

    fn add_fault(&mut self, fault: BookFault) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(fault);
        } else {
            self.more += 1;
        }
    }

    fn take(&mut self, line: u64, record: &Record) {
        let LineKind::Other(event) = &record.event else {
            return self.add_fault(BookFault::Malformed { line });
        };
        self.torn += u64::from(record.torn.is_some());
        let key = |name: &str| name.split('-').next().map(str::to_owned);
        for (name, head) in &record.others {
            if record.seq == 0 && key(name) == key(&self.name) {
                self.beside.push(printable(name));
            }
            self.others.entry(name.clone()).or_default().push(digest(head));
        }
        let Ok(run) = record.run.parse::<RunId>() else {
            return self.add_fault(BookFault::Malformed { line });
        };
        match (event.as_str(), record.no) {
            (START, Some(no)) => {
                let expected = self.last.saturating_add(1);
                if no > expected {
                    self.add_fault(BookFault::Missing { from: expected, to: no.saturating_sub(1) });
                } else if no < expected {
                    self.add_fault(BookFault::Again { no });
                }
                self.last = self.last.max(no);
                self.runs.entry(run).or_default().start = Some(Start {
                    no: Some(no),
                    ts: record.ts.clone(),
                    stage: record.stage.clone(),
                    first: record.first.clone(),
                    file: record.file.clone(),
                    prev: record.prev.clone(),
                });
            }
            (END, Some(_)) => {
                let sealed = record.n.zip(record.root.clone());
                self.runs.entry(run).or_default().end = Some(End { sealed });
            }
            (LATE, None) => {
                let start = Start {
                    no: None,
                    ts: record.ts.clone(),
                    stage: record.stage.clone(),
                    first: record.first.clone(),
                    file: record.file.clone(),
                    prev: None,
                };
                let entry = self.runs.entry(run).or_default();
                entry.start.get_or_insert(start);
                entry.end = Some(End { sealed: record.n.zip(record.root.clone()) });
            }
            (PRUNED, _) => {
                let pruned = Pruned { ts: record.ts.clone(), user: record.user.clone() };
                self.runs.entry(run).or_default().pruned = Some(pruned);
            }
            // A later version may write other kinds of line.
            (START | END, None) => self.add_fault(BookFault::Malformed { line }),
            _ => {}
        }
    }
}

/// Who signed a line of a ledger.
enum Signed<'a> {
    /// A known key signed the line as it is.
    By(&'a VerifyingKey),
    /// The key of the ledger is not known.
    Unknown,
    /// The key is known, and did not sign the line as it is.
    Nobody,
}

/// Finds out who signed a line of the ledger with this name.
fn signed_by<'a>(name: &str, raw: &[u8], record: &Record, keys: &'a [VerifyingKey]) -> Signed<'a> {
    let id = name.split('-').next().unwrap_or_default();
    let mut known = keys.iter().filter(|key| key.key_id() == id).peekable();
    if known.peek().is_none() {
        return Signed::Unknown;
    }
    let signed = signed_text(name, raw, record.seq, record.prev.as_deref(), record.sig.as_deref());
    match signed.and_then(|(text, sig)| known.find(|key| key.has_signed(text.as_bytes(), &sig))) {
        Some(key) => Signed::By(key),
        None => Signed::Nobody,
    }
}

/// Makes text of a ledger printable.
pub(super) fn printable(text: &str) -> String {
    escape(text.as_bytes(), 256)
}

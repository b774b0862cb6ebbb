//! Reading a ledger back, and whether it is as it was written.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::str::FromStr;

use exeat_record::place::Place;
use exeat_record::tree::Hash;
use exeat_record::{RunId, VerifyingKey, escape, file};

use crate::query::{Flaw, Kind, Reader, Record};
use exeat_record::ledger::file::{END, LATE, PRUNED, START, digest, file_name, names, signed_text};

/// Faults that are told one by one; the rest is counted.
const MAX_FAULTS: usize = 32;

/// Digits of a digest that a head has at least: as many as `exeat run` prints.
const MIN_DIGITS: usize = 16;

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
    /// Ledgers of the same key that were there when it began; printable.
    pub beside: Vec<String>,
    /// The runs in it.
    pub(super) runs: BTreeMap<RunId, Entry>,
    /// The last lines of other ledgers that it has seen: the name, and the digest.
    pub(super) others: BTreeMap<String, Vec<Hash>>,
    /// The digests of its lines, where there are other ledgers.
    pub(super) digests: HashSet<Hash>,
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
    pub(super) pruned: Option<Pruned>,
}

/// That a record was pruned: when, and by whom.
#[derive(Debug)]
pub(super) struct Pruned {
    pub(super) ts: String,
    pub(super) user: Option<String>,
}

#[derive(Debug)]
pub(super) struct Start {
    /// `None` for one that could not take a number, and is there since its end.
    pub(super) no: Option<u64>,
    pub(super) ts: String,
    pub(super) stage: Option<String>,
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
    /// The file cannot be read, or no further.
    Unreadable {
        /// What the kernel says.
        why: String,
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
            Told::Unreadable { why } => write!(f, "it cannot be read: {why}"),
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
        let names = names(&dir)?;
        let read = |name: &String| {
            let mut book = Book::new(name, dir.join(file_name(name)));
            if let Err(error) = book.read(keys, heads, names.len() > 1) {
                book.tell(Told::Unreadable { why: error.to_string() });
            }
            book
        };
        Ok(names.iter().map(read).collect())
    }

    fn new(name: &str, path: PathBuf) -> Book {
        Book {
            name: name.to_owned(),
            path,
            lines: 0,
            last: 0,
            head: None,
            key: None,
            told: Vec::new(),
            more: 0,
            torn: 0,
            found: BTreeMap::new(),
            beside: Vec::new(),
            runs: BTreeMap::new(),
            others: BTreeMap::new(),
            digests: HashSet::new(),
        }
    }

    /// Reads the file, in memory that grows with the runs in it alone.
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
            // Each one: whoever has no key may put a line behind the last one, and the next run writes its own behind that.
            match signed_by(&name, raw, &record, keys) {
                Signed::By(key) => {
                    book.key = Some(key.clone());
                    book.take(line, &record);
                }
                Signed::Unknown => {
                    unknown = Some(line);
                    book.take(line, &record);
                }
                Signed::Nobody => book.tell(Told::Signature { line }),
            }
            let head = reader.digest();
            for (at, wanted) in heads.iter().enumerate() {
                if head.starts_with(&wanted.digits) {
                    book.found.insert(at, Found { line, last: book.last });
                }
            }
            if has_others {
                book.digests.insert(digest(head));
            }
            book.head = Some(head.to_owned());
        }
        book.flaws(&reader, &mut known);
        book.lines = reader.number();
        unknown.into_iter().for_each(|line| book.tell(Told::UnknownKey { line }));
        Ok(())
    }

    /// The runs whose start it has and not their end.
    pub fn without_end(&self) -> impl Iterator<Item = RunId> {
        let is_open = |entry: &Entry| entry.start.is_some() && entry.end.is_none();
        self.runs.iter().filter(move |(_, entry)| is_open(entry)).map(|(run, _)| *run)
    }

    /// Whether something is wrong with it, beyond a signature of a key that is not known.
    pub fn is_damaged(&self) -> bool {
        self.told.iter().any(|told| !matches!(told, Told::UnknownKey { .. }))
    }

    /// Takes in what the reader has found since.
    fn flaws<R: io::BufRead>(&mut self, reader: &Reader<R>, known: &mut usize) {
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
        let key = |name: &str| name.split('-').next().map(str::to_owned);
        for (name, head) in &record.others {
            if record.seq == 0 && key(name) == key(&self.name) {
                self.beside.push(shown(name));
            }
            self.others.entry(name.clone()).or_default().push(digest(head));
        }
        let Ok(run) = record.run.parse::<RunId>() else { return self.tell(Told::Malformed { line }) };
        match (event.as_str(), record.no) {
            (START, Some(no)) => {
                let expected = self.last.saturating_add(1);
                if no > expected {
                    self.tell(Told::Missing { from: expected, to: no.saturating_sub(1) });
                } else if no < expected {
                    self.tell(Told::Again { no });
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
            // A later version may write other lines.
            (START | END, None) => self.tell(Told::Malformed { line }),
            _ => {}
        }
    }
}

/// Who signed a line of a ledger.
enum Signed<'a> {
    /// This key, as the line stands.
    By(&'a VerifyingKey),
    /// The key of the ledger is not known.
    Unknown,
    /// It is known, and has not signed what stands there.
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

/// Text of a ledger for people.
pub(super) fn shown(text: &str) -> String {
    escape(text.as_bytes(), 256)
}

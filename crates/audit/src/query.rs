//! Reading a record back.
//!
//! Proves nothing: it reads what is there, in constant memory, and tells of every flaw on the way. A record that was
//! cut short, edited or glued together is still read as far as it goes.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::IpAddr;
use std::path::Path;

use exeat_policy::{Reason, Verdict, printable_ascii};
use exeat_record::tree::{self, Tree};
use exeat_record::{LEDGER_SCHEMA, NOTHING_BEFORE, SCHEMA, escape, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

mod filter;

pub use filter::{Filter, HostFilter};

/// Bytes of a line that are kept. Ours have 4096 at most; another version may write more.
const MAX_READ: usize = 8 * 1024;

/// Flaws that are told one by one; the rest is counted.
const MAX_FLAWS: usize = 32;

/// Opens the record in a file.
pub fn read(path: &Path) -> io::Result<Reader<BufReader<File>>> {
    Ok(Reader::new(BufReader::with_capacity(64 * 1024, File::open(path)?)))
}

/// The records of one log, in the order of the file. What is wrong with them is in [`Reader::flaws`].
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// What the lines are of.
    schema: &'static str,
    /// The line just read, its line feed included; cut at [`MAX_READ`].
    raw: Vec<u8>,
    /// The number of that line, from 1.
    number: u64,
    /// The run that the last record belonged to.
    run: Option<String>,
    next_seq: u64,
    prev: String,
    /// The run's last line was read.
    ended: bool,
    /// And the checkpoint behind it.
    sealed: bool,
    done: bool,
    flaws: Vec<Flaw>,
    more_flaws: u64,
    /// Stands for the lines before the last one, where that is wanted.
    tree: Option<Tree>,
    /// The last one's part in it.
    leaf: Option<Sha256>,
    /// Whether the writer is still there, where that is known.
    is_running: Option<bool>,
    /// Whether every line ends in CR LF, as the first one does. They are read without the CR.
    has_crlf: bool,
    /// Whether NUL bytes were found.
    has_nul: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads a record from anywhere.
    pub fn new(input: R) -> Reader<R> {
        Reader {
            input,
            schema: SCHEMA,
            raw: Vec::new(),
            number: 0,
            run: None,
            next_seq: 0,
            prev: NOTHING_BEFORE.to_owned(),
            ended: false,
            sealed: false,
            done: false,
            flaws: Vec::new(),
            more_flaws: 0,
            tree: None,
            leaf: None,
            is_running: None,
            has_crlf: false,
            has_nul: false,
        }
    }

    /// Says whether the writer of this record is still there.
    pub fn with_writer(self, is_running: bool) -> Reader<R> {
        Reader { is_running: Some(is_running), ..self }
    }

    /// The same, and keeps the Merkle tree over the lines.
    pub(crate) fn with_tree(input: R) -> Reader<R> {
        Reader { tree: Some(Tree::default()), ..Reader::new(input) }
    }

    /// Reads a ledger: one chain, whose lines are of many runs.
    pub(crate) fn of_ledger(input: R) -> Reader<R> {
        // It has no end.
        Reader { schema: LEDGER_SCHEMA, ended: true, ..Reader::new(input) }
    }

    /// The tree over all lines before the record that was given last.
    pub(crate) fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// The line of that record with its line feed, if it has one.
    pub(crate) fn whole_line(&self) -> &[u8] {
        &self.raw
    }

    /// The digest of that line, in hexadecimal.
    pub(crate) fn digest(&self) -> &str {
        &self.prev
    }

    /// The line of the record that was given last, without its line feed.
    pub fn raw(&self) -> &[u8] {
        self.raw.strip_suffix(b"\n").unwrap_or(&self.raw)
    }

    /// The number of that line, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What is wrong with what was read so far; complete when the iterator is at its end.
    pub fn flaws(&self) -> &[Flaw] {
        &self.flaws
    }

    /// Flaws beyond those that [`Reader::flaws`] lists.
    pub fn more_flaws(&self) -> u64 {
        self.more_flaws
    }

    /// Reads one line and gives its digest and whether it ended in a line feed; `None` at the end of the input.
    fn read_line(&mut self) -> io::Result<Option<(Line, String)>> {
        self.raw.clear();
        let mut leaf = self.tree.as_mut().map(|tree| {
            self.leaf.take().into_iter().for_each(|leaf| tree.push_leaf(leaf));
            tree::leaf()
        });
        let mut digest = Sha256::new();
        let mut line = Line { whole: false, fits: true, has_nul: false };
        let mut read = false;
        // A CR is kept back until it is known whether it ends the line.
        let mut has_cr = false;
        let mut begin = None;
        while !line.whole {
            let piece = match self.input.fill_buf() {
                Ok(piece) => piece,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if piece.is_empty() {
                break;
            }
            let end = piece.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(piece.len(), |at| at + 1);
            let mut piece = piece.get(..taken).unwrap_or(piece);
            if self.number == 0 && !read {
                for (magic, damage) in DAMAGES {
                    if let Some(rest) = piece.strip_prefix(magic) {
                        piece = if damage == Damage::ByteOrderMark { rest } else { piece };
                        begin = Some(damage);
                    }
                }
            }
            read = true;
            line.whole = end.is_some();
            let ends_in_crlf = piece.ends_with(b"\r\n") || (has_cr && piece == b"\n");
            if self.number == 0 && ends_in_crlf {
                self.has_crlf = true;
            }
            let mut parts: [&[u8]; 3] = [if has_cr { b"\r" } else { b"" }, piece, b""];
            has_cr = false;
            if self.has_crlf || self.number == 0 {
                if ends_in_crlf {
                    let text = piece.strip_suffix(b"\r\n").unwrap_or_default();
                    parts = if piece == b"\n" { [b"", b"\n", b""] } else { [parts[0], text, b"\n"] };
                } else if let Some(text) = piece.strip_suffix(b"\r") {
                    has_cr = true;
                    parts[1] = text;
                }
            }
            for part in parts {
                digest.update(part);
                if let Some(leaf) = &mut leaf {
                    leaf.update(part);
                }
                if self.raw.len() + part.len() <= MAX_READ {
                    self.raw.extend_from_slice(part);
                } else {
                    line.fits = false;
                    line.has_nul |= part.contains(&0);
                }
            }
            self.input.consume(taken);
        }
        line.has_nul |= self.raw.contains(&0);
        let line_ends = (self.number == 0 && self.has_crlf).then_some(Damage::CarriageReturns);
        begin.into_iter().chain(line_ends).for_each(|damage| self.damage(damage));
        self.leaf = leaf.filter(|_| read);
        Ok(read.then(|| (line, hex(&digest.finalize()))))
    }

    /// Compares a record with the one before it.
    fn place(&mut self, record: &Record) {
        let line = self.number;
        if self.schema == SCHEMA {
            self.place_in_run(record);
        }
        if record.seq != self.next_seq {
            self.flaw(Flaw::Gap { line, expected: self.next_seq, found: record.seq });
        }
        if record.prev.as_deref() != Some(&self.prev) {
            self.flaw(Flaw::Chain { line });
        }
        self.next_seq = record.seq.wrapping_add(1);
    }

    /// Compares the run of a record with that of the one before it.
    fn place_in_run(&mut self, record: &Record) {
        let line = self.number;
        if self.run.as_ref().is_some_and(|run| *run != record.run) {
            self.flaw(Flaw::AnotherRun { line });
            if !self.ended {
                self.flaw(Flaw::Unfinished { line: line - 1, is_running: Some(false) });
            }
            self.next_seq = 0;
            self.prev = NOTHING_BEFORE.to_owned();
            (self.ended, self.sealed) = (false, false);
        }
        if self.run.as_ref() != Some(&record.run) {
            self.run = Some(record.run.clone());
        }
        // The last line of all signs the end of the run as well.
        if self.ended && (record.event != Kind::Checkpoint || self.sealed) {
            self.flaw(Flaw::AfterEnd { line });
        }
        self.sealed = self.ended && record.event == Kind::Checkpoint;
        self.ended = self.sealed || record.event == Kind::RunEnd;
    }

    /// Whether what was read is the beginning of a line.
    fn begins_as_a_line(&self) -> bool {
        let begin = format!(r#"{{"schema":"{}","seq":"#, self.schema);
        self.raw.starts_with(begin.as_bytes()) || begin.as_bytes().starts_with(&self.raw)
    }

    fn damage(&mut self, damage: Damage) {
        self.flaw(Flaw::Damaged { line: self.number + 1, damage });
    }

    fn flaw(&mut self, flaw: Flaw) {
        if self.flaws.len() < MAX_FLAWS {
            self.flaws.push(flaw);
        } else {
            self.more_flaws += 1;
        }
    }
}

/// How a line came in.
struct Line {
    /// It ended in a line feed.
    whole: bool,
    /// All of it was kept.
    fits: bool,
    /// A NUL byte is in it.
    has_nul: bool,
}

/// How files begin that something innocent was done to.
const DAMAGES: [(&[u8], Damage); 5] = [
    (b"\xef\xbb\xbf", Damage::ByteOrderMark),
    (b"\x1f\x8b", Damage::Compressed("gzip", "zcat")),
    (b"\x28\xb5\x2f\xfd", Damage::Compressed("zstd", "zstdcat")),
    (b"\xfd7zXZ\0", Damage::Compressed("xz", "xzcat")),
    (b"BZh", Damage::Compressed("bzip2", "bzcat")),
];

/// What was done to a file, and no sign of somebody who hides something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// It was compressed by the first, and the second takes that back.
    Compressed(&'static str, &'static str),
    /// A byte order mark was put in front. It is passed over.
    ByteOrderMark,
    /// Line ends were made CR LF. They are read as LF.
    CarriageReturns,
    /// NUL bytes are where lines were.
    NulBytes,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Compressed(by, undo) => {
                write!(f, "the file is compressed ({by}): {undo} FILE | exeat audit verify -")
            }
            Damage::ByteOrderMark => f.write_str(
                "the file starts with a byte order mark, which an editor adds: tail -c +4 FILE takes it away",
            ),
            Damage::CarriageReturns => f.write_str(
                "the line ends were made CR LF, as a transfer in text mode does: tr -d '\\r' < FILE takes that back",
            ),
            Damage::NulBytes => f.write_str("NUL bytes, as after a power cut: what was in their place is lost"),
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    /// An error is one of reading the file; whatever the file says is no error. It is the last item, but for
    /// [`io::ErrorKind::WouldBlock`].
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<io::Result<Record>> {
        while !self.done {
            let (line, digest) = match self.read_line() {
                Ok(Some(line)) => line,
                Ok(None) => {
                    self.done = true;
                    self.raw.clear();
                    if !self.ended {
                        self.flaw(Flaw::Unfinished { line: self.number, is_running: self.is_running });
                    }
                    return None;
                }
                Err(error) => {
                    // There may be more to read later; nothing of a line was taken yet.
                    self.done = error.kind() != io::ErrorKind::WouldBlock;
                    return Some(Err(error));
                }
            };
            self.number += 1;
            let number = self.number;
            if !line.whole && !line.has_nul {
                self.flaw(Flaw::Cut { line: number });
            }
            if number == 1 && self.flaws.iter().any(Flaw::is_compressed) {
                // What follows is no text.
                self.done = true;
                return None;
            }
            let record = if line.fits {
                Record::parse_as(self.schema, self.raw())
            } else {
                Err("it is too long".to_owned())
            };
            match record {
                Ok(record) => {
                    self.place(&record);
                    self.prev = digest;
                    return Some(Ok(record));
                }
                Err(_) if !line.whole && line.fits && self.begins_as_a_line() => {} // told above
                Err(_) if line.has_nul => {
                    if !std::mem::replace(&mut self.has_nul, true) {
                        self.flaw(Flaw::Damaged { line: number, damage: Damage::NulBytes });
                    }
                }
                Err(why) => self.flaw(Flaw::Malformed { line: number, why }),
            }
            self.next_seq = self.next_seq.wrapping_add(1);
            self.prev = digest;
        }
        None
    }
}

/// Something that is wrong with a record. `line` counts from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// The last line has no line feed: its writer was stopped in the middle, or the file was cut.
    Cut {
        /// The line.
        line: u64,
    },
    /// There is no `run_end`: the run still goes on, was killed, or the file was cut.
    Unfinished {
        /// The last line.
        line: u64,
        /// Whether its writer is still there, where that is known.
        is_running: Option<bool>,
    },
    /// Something innocent was done to the file.
    Damaged {
        /// From this line on.
        line: u64,
        /// What.
        damage: Damage,
    },
    /// A line that is no record of a schema known here.
    Malformed {
        /// The line.
        line: u64,
        /// What is wrong with it; printable.
        why: String,
    },
    /// Lines are missing, doubled or out of order.
    Gap {
        /// The line.
        line: u64,
        /// The `seq` that should stand there.
        expected: u64,
        /// The one that does.
        found: u64,
    },
    /// The line before is not the one that this line was written after.
    Chain {
        /// The line.
        line: u64,
    },
    /// Another run's record begins in the same file.
    AnotherRun {
        /// Its first line.
        line: u64,
    },
    /// A line after the run's last.
    AfterEnd {
        /// The line.
        line: u64,
    },
}

impl Flaw {
    fn is_compressed(&self) -> bool {
        matches!(self, Flaw::Damaged { damage: Damage::Compressed(..), .. })
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Cut { line } => write!(f, "line {line} was cut off"),
            Flaw::Unfinished { line, is_running } => {
                let (word, why) = match is_running {
                    Some(true) => ("running", ""),
                    Some(false) => ("unfinished", " (killed, or cut off)"),
                    None => ("unfinished", " (still running, killed, or cut off)"),
                };
                write!(f, "{word}: no `run_end` after line {line}{why}")
            }
            Flaw::Damaged { line, damage: damage @ Damage::NulBytes } => {
                write!(f, "from line {line} on: {damage}")
            }
            Flaw::Damaged { damage, .. } => damage.fmt(f),
            Flaw::Malformed { line, why } => write!(f, "line {line} is no record: {why}"),
            Flaw::Gap { line, expected, found } => {
                write!(
                    f,
                    "line {line} has number {found} where {expected} should stand: lines are missing or moved"
                )
            }
            Flaw::Chain { line } if *line <= 1 => {
                write!(f, "line {line} was changed, or lines before it are missing")
            }
            Flaw::Chain { line } => {
                let before = line.saturating_sub(1);
                write!(
                    f,
                    "line {before} was changed, or lines are missing or were put in between it and line {line}"
                )
            }
            Flaw::AnotherRun { line } => write!(
                f,
                "line {line} begins the record of another run: head -n {} FILE is the first record, tail -n +{line} FILE \
                 the second",
                line - 1
            ),
            Flaw::AfterEnd { line } => write!(f, "line {line} stands after the end of its run"),
        }
    }
}

/// One line as it was read. Every string is as the file has it, so nothing here may be printed as it is.
///
/// Fields that this version does not know are passed over: fields may be added under one schema.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are those of the schema, under their names")]
pub struct Record {
    pub schema: String,
    pub seq: u64,
    pub ts: String,
    pub mono_us: u64,
    pub event: Kind,
    pub run: String,
    pub stage: Option<String>,
    pub policy_sha256: Option<String>,
    pub mode: Option<String>,
    pub version: Option<String>,
    pub command: Option<String>,
    pub user: Option<String>,
    pub machine: Option<String>,
    pub dir: Option<String>,
    pub trace_id: Option<String>,
    pub span_id: Option<String>,
    pub backend: Option<String>,
    pub bridge: Option<String>,
    pub proxy: Option<String>,
    pub gateway: Option<String>,
    pub upstream: Option<String>,
    #[serde(default)]
    pub enforcement: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    pub limits: Vec<String>,
    #[serde(default)]
    pub labels: std::collections::BTreeMap<String, String>,
    pub no: Option<u64>,
    pub last: Option<u64>,
    pub ledger: Option<String>,
    pub ledger_prev: Option<String>,
    pub first: Option<String>,
    pub torn: Option<u64>,
    #[serde(default)]
    pub others: std::collections::BTreeMap<String, String>,
    pub role: Option<String>,
    pub file: Option<String>,
    pub file_sha256: Option<String>,
    pub what: Option<String>,
    pub conn: Option<u64>,
    pub via: Option<String>,
    pub proto: Option<String>,
    pub method: Option<String>,
    pub exe: Option<String>,
    pub pid: Option<u32>,
    pub ppid: Option<u32>,
    pub host: Option<String>,
    pub port: Option<u16>,
    pub host_raw: Option<String>,
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    pub ips_more: Option<u64>,
    pub ip: Option<IpAddr>,
    pub dns_us: Option<u64>,
    pub verdict: Option<String>,
    pub reason: Option<String>,
    pub rule: Option<String>,
    pub rule_src: Option<String>,
    pub risk: Option<String>,
    pub refused_by: Option<String>,
    pub approved_by: Option<String>,
    pub why: Option<String>,
    pub expires: Option<String>,
    pub count: Option<u64>,
    pub sni: Option<String>,
    pub sni_ok: Option<bool>,
    pub alpn: Option<String>,
    pub ech: Option<bool>,
    pub connect_us: Option<u64>,
    pub tls_us: Option<u64>,
    pub dur_us: Option<u64>,
    pub bytes_up: Option<u64>,
    pub bytes_down: Option<u64>,
    pub ended_by: Option<String>,
    pub cause: Option<String>,
    pub exit: Option<i32>,
    pub limit: Option<String>,
    pub signal: Option<String>,
    pub signal_number: Option<i32>,
    pub stopped_by: Option<String>,
    pub allowed: Option<u64>,
    pub denied: Option<u64>,
    pub would_deny: Option<u64>,
    pub errors: Option<u64>,
    pub failed: Option<u64>,
    pub dropped: Option<u64>,
    pub connections: Option<u64>,
    pub error: Option<String>,
    pub n: Option<u64>,
    pub root: Option<String>,
    pub key_id: Option<String>,
    pub sig: Option<String>,
    pub signed_note: Option<String>,
    pub prev: Option<String>,
}

impl Record {
    /// Reads one line, without its line feed. The error says in printable words what is wrong with it.
    pub(crate) fn parse(line: &[u8]) -> Result<Record, String> {
        Record::parse_as(SCHEMA, line)
    }

    /// Reads one line of this schema.
    pub(crate) fn parse_as(schema: &str, line: &[u8]) -> Result<Record, String> {
        let record: Record = serde_json::from_slice(line).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => {
                // The line that it names is always 1.
                let text = error.to_string();
                let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
                escape(text.as_bytes(), 160)
            }
            _ => format!("it is not JSON from byte {} on", error.column().max(1)),
        })?;
        if record.schema != schema {
            return Err(format!("its schema is `{}`", escape(record.schema.as_bytes(), 40)));
        }
        Ok(record)
    }

    /// Whether it is a verdict: on a request, or on a question for a name.
    pub fn is_decision(&self) -> bool {
        matches!(self.event, Kind::Decision | Kind::Dns)
    }

    /// Whether it is the close of a connection that was allowed and never stood: the host was not reached.
    pub fn is_failed(&self) -> bool {
        self.event == Kind::Close && self.ended_by.as_deref() == Some("error") && self.ip.is_none()
    }

    /// The verdict, if it is one that this version knows.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict.as_deref()?.parse().ok()
    }

    /// The reason, if it is one that this version knows.
    pub fn reason(&self) -> Option<Reason> {
        self.reason.as_deref()?.parse().ok()
    }

    /// `host:port` for people, printable; `None` if the record has no host.
    pub fn target(&self) -> Option<String> {
        let host = printable_ascii(self.host.as_deref()?);
        let host = if host.contains(':') { format!("[{host}]") } else { host.into_owned() };
        Some(match self.port {
            Some(port) => format!("{host}:{port}"),
            None => host,
        })
    }
}

/// What a line tells of.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "String", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// The beginning of a run.
    RunStart,
    /// A file that the policy was made from.
    Policy,
    /// A verdict.
    Decision,
    /// A verdict on a question for a name.
    Dns,
    /// What an open connection has moved so far.
    Progress,
    /// The end of a connection.
    Close,
    /// A remark.
    Note,
    /// What stands for all lines before, signed.
    Checkpoint,
    /// The end of a run.
    RunEnd,
    /// Something that this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl Default for Kind {
    fn default() -> Kind {
        Kind::Other(String::new())
    }
}

impl From<String> for Kind {
    fn from(word: String) -> Kind {
        match word.as_str() {
            "run_start" => Kind::RunStart,
            "policy" => Kind::Policy,
            "decision" => Kind::Decision,
            "dns" => Kind::Dns,
            "progress" => Kind::Progress,
            "close" => Kind::Close,
            "note" => Kind::Note,
            "checkpoint" => Kind::Checkpoint,
            "run_end" => Kind::RunEnd,
            _ => Kind::Other(word),
        }
    }
}

/// Returns the last part of a program's path.
#[must_use]
pub fn last_part(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, last)| last)
}

#[cfg(test)]
mod tests;

//! Reads a record back.
//!
//! Proves nothing: it reads the file in constant memory and reports every flaw on the way. A record that was cut, edited or glued
//! together is still read as far as possible.

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

/// The most bytes kept of a line. exeat writes 4096 at most; another version may write more.
const MAX_READ: usize = 8 * 1024;

/// The most flaws that are listed; the rest is counted.
const MAX_FLAWS: usize = 32;

/// Opens the record in a file.
pub fn read(path: &Path) -> io::Result<Reader<BufReader<File>>> {
    Ok(Reader::new(BufReader::with_capacity(64 * 1024, File::open(path)?)))
}

/// Iterates over the lines of one record, in the order of the file. [`Reader::flaws`] has what is wrong with them.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// The schema that the lines must have.
    schema: &'static str,
    /// The line just read, with its line feed; cut at [`MAX_READ`].
    raw: Vec<u8>,
    /// The number of that line, from 1.
    number: u64,
    /// The run that the last record belonged to.
    run: Option<String>,
    next_seq: u64,
    prev: String,
    /// Whether the run's last line was read.
    ended: bool,
    /// Whether the checkpoint after the run's last line was read.
    sealed: bool,
    done: bool,
    flaws: Vec<Flaw>,
    more_flaws: u64,
    /// The Merkle tree over the lines before the last one, if it is needed.
    tree: Option<Tree>,
    /// The last line's leaf in the tree.
    leaf: Option<Sha256>,
    /// Whether the writer still runs, if that is known.
    is_running: Option<bool>,
    /// Whether every line ends in CR LF, as the first one does. The CR is removed.
    has_crlf: bool,
    /// Whether NUL bytes were found.
    has_nul: bool,
}

impl<R: BufRead> Reader<R> {
    /// Creates a reader of a record from any input.
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

    /// Sets whether the writer of this record still runs.
    pub fn with_writer(self, is_running: bool) -> Reader<R> {
        Reader { is_running: Some(is_running), ..self }
    }

    /// Creates a reader that also keeps the Merkle tree over the lines.
    pub(crate) fn with_tree(input: R) -> Reader<R> {
        Reader { tree: Some(Tree::default()), ..Reader::new(input) }
    }

    /// Creates a reader of a ledger: one chain, with lines of many runs.
    pub(crate) fn of_ledger(input: R) -> Reader<R> {
        // A ledger has no end.
        Reader { schema: LEDGER_SCHEMA, ended: true, ..Reader::new(input) }
    }

    /// Returns the tree over all lines before the current one.
    pub(crate) fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// Returns the current line with its line feed, if it has one.
    pub(crate) fn whole_line(&self) -> &[u8] {
        &self.raw
    }

    /// Returns the digest of the current line, in hexadecimal.
    pub(crate) fn digest(&self) -> &str {
        &self.prev
    }

    /// Returns the current line without its line feed.
    pub fn raw(&self) -> &[u8] {
        self.raw.strip_suffix(b"\n").unwrap_or(&self.raw)
    }

    /// Returns the number of the current line, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the flaws of what was read so far. The list is complete when the iterator has ended.
    pub fn flaws(&self) -> &[Flaw] {
        &self.flaws
    }

    /// Returns the number of flaws beyond those that [`Reader::flaws`] lists.
    pub fn more_flaws(&self) -> u64 {
        self.more_flaws
    }

    /// Reads one line. Returns its form and its digest; `None` at the end of the input.
    fn read_line(&mut self) -> io::Result<Option<(Line, String)>> {
        self.raw.clear();
        let mut leaf = self.tree.as_mut().map(|tree| {
            self.leaf.take().into_iter().for_each(|leaf| tree.push_leaf(leaf));
            tree::leaf()
        });
        let mut digest = Sha256::new();
        let mut line = Line { whole: false, fits: true, has_nul: false };
        let mut read = false;
        // Hold a CR back until the next byte shows whether it ends the line.
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

    /// Checks that a record follows the one before it.
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

    /// Checks that a record is of the same run as the one before it.
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
        // The checkpoint after the end is the one line that may follow it.
        if self.ended && (record.event != LineKind::Checkpoint || self.sealed) {
            self.flaw(Flaw::AfterEnd { line });
        }
        self.sealed = self.ended && record.event == LineKind::Checkpoint;
        self.ended = self.sealed || record.event == LineKind::RunEnd;
    }

    /// Whether the bytes read are the beginning of a line.
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

/// The form of a line.
struct Line {
    /// Whether it ended in a line feed.
    whole: bool,
    /// Whether all of it was kept.
    fits: bool,
    /// Whether it has a NUL byte.
    has_nul: bool,
}

/// The first bytes of files with innocent damage.
const DAMAGES: [(&[u8], Damage); 5] = [
    (b"\xef\xbb\xbf", Damage::ByteOrderMark),
    (b"\x1f\x8b", Damage::Compressed("gzip", "zcat")),
    (b"\x28\xb5\x2f\xfd", Damage::Compressed("zstd", "zstdcat")),
    (b"\xfd7zXZ\0", Damage::Compressed("xz", "xzcat")),
    (b"BZh", Damage::Compressed("bzip2", "bzcat")),
];

/// Damage to a file that does not suggest tampering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// The first program compressed it, and the second one decompresses it.
    Compressed(&'static str, &'static str),
    /// An editor added a byte order mark. It is skipped.
    ByteOrderMark,
    /// Line ends were changed to CR LF. They are read as LF.
    CarriageReturns,
    /// There are NUL bytes where lines were.
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
    /// An error means that the file cannot be read; flaws in its content are not errors. An error is the last item, except for
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
                    // There may be more to read later; no part of a line was taken yet.
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
                // The rest of the file is not text.
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
                Err(_) if !line.whole && line.fits && self.begins_as_a_line() => {} // reported above
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

/// A flaw in a record. `line` counts from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub enum Flaw {
    /// The last line has no line feed: its writer was stopped in the middle, or the file was cut.
    Cut { line: u64 },
    /// There is no `run_end`: the run still goes on, was killed, or the file was cut.
    Unfinished {
        /// The last line.
        line: u64,
        /// Whether its writer still runs, if that is known.
        is_running: Option<bool>,
    },
    /// Something innocent was done to the file.
    Damaged { line: u64, damage: Damage },
    /// The line is not a record of a known schema.
    Malformed { line: u64, why: String },
    /// Lines are missing, doubled or out of order.
    Gap {
        line: u64,
        /// The `seq` that the line should have.
        expected: u64,
        found: u64,
    },
    /// The line before is not the one that this line was written after.
    Chain { line: u64 },
    /// Another run's record begins in the same file.
    AnotherRun { line: u64 },
    /// A line follows the last one of its run.
    AfterEnd { line: u64 },
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

/// A line as read. Every string is as in the file, so nothing here may be printed without escaping.
///
/// Unknown fields are ignored, because a schema may gain fields.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are those of the schema, under their names")]
pub struct Record {
    pub schema: String,
    pub seq: u64,
    pub ts: String,
    pub mono_us: u64,
    pub event: LineKind,
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
    pub backend_why: Option<String>,
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
    /// Reads one line, without its line feed. The error is printable.
    pub(crate) fn parse(line: &[u8]) -> Result<Record, String> {
        Record::parse_as(SCHEMA, line)
    }

    /// Reads one line of the given schema.
    pub(crate) fn parse_as(schema: &str, line: &[u8]) -> Result<Record, String> {
        let record: Record = serde_json::from_slice(line).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => {
                // The line number in the error is always 1.
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
        matches!(self.event, LineKind::Decision | LineKind::Dns)
    }

    /// Whether it is the close of a connection that was allowed and never established: the host was not reached.
    pub fn is_failed(&self) -> bool {
        self.event == LineKind::Close && self.ended_by.as_deref() == Some("error") && self.ip.is_none()
    }

    /// Returns the verdict, if this version knows it.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict.as_deref()?.parse().ok()
    }

    /// Returns the reason, if this version knows it.
    pub fn reason(&self) -> Option<Reason> {
        self.reason.as_deref()?.parse().ok()
    }

    /// Returns `host:port`, printable; `None` if the record has no host.
    pub fn target(&self) -> Option<String> {
        Some(host_and_port(&printable_ascii(self.host.as_deref()?), self.port))
    }
}

/// Returns `host:port`, with an IPv6 address in brackets; only the host without a port.
pub(crate) fn host_and_port(host: &str, port: Option<u16>) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    match port {
        Some(port) => format!("{host}:{port}"),
        None => host,
    }
}

/// The kind of a line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "String", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LineKind {
    /// The beginning of a run.
    RunStart,
    /// A file that the policy was made from.
    Policy,
    /// A verdict on a request.
    Decision,
    /// A verdict on a question for a name.
    Dns,
    /// The bytes that an open connection has moved so far.
    Progress,
    /// The end of a connection.
    Close,
    /// A remark.
    Note,
    /// A signature over all lines before.
    Checkpoint,
    /// The end of a run.
    RunEnd,
    /// A kind that this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl Default for LineKind {
    fn default() -> LineKind {
        LineKind::Other(String::new())
    }
}

impl From<String> for LineKind {
    fn from(word: String) -> LineKind {
        match word.as_str() {
            "run_start" => LineKind::RunStart,
            "policy" => LineKind::Policy,
            "decision" => LineKind::Decision,
            "dns" => LineKind::Dns,
            "progress" => LineKind::Progress,
            "close" => LineKind::Close,
            "note" => LineKind::Note,
            "checkpoint" => LineKind::Checkpoint,
            "run_end" => LineKind::RunEnd,
            _ => LineKind::Other(word),
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

//! `egress.lock`: lists what each stage reached, for review and for `exeat run --locked`, which holds a later run to it.
//!
//! The lock grants nothing and decides nothing: an entry still needs a rule. This module opens no file.
//!
//! The file is text with a line for each entry, each with its stage, sorted as bytes. A new host adds one line to a difference, and a
//! merge conflict is resolved by keeping the lines of both sides.
//!
//! ```text
//! # comments, and empty lines
//! schema 1
//! nightly-import api.example.com:443 connect
//! "my stage" api.example.com:443 transparent
//! - archive.example.org:80 http
//! offline
//! ```
//!
//! The stage is `-` for runs without a name. A name with characters other than `A-Z a-z 0-9 . _ -` is in quotes, as in JSON. A line
//! with only a stage belongs to a stage that reached nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write as _;

use exeat_policy::file::stage_fault;
use exeat_policy::{Target, TargetError, WordError};

use crate::escape::{clip, escape};
use crate::event::Via;
use crate::line::{ascii_json, max};

/// The default name of the file.
pub const FILE: &str = "egress.lock";

/// Maximum size of a lock file; a larger one is refused, not cut.
pub const MAX_BYTES: usize = 4 << 20;

/// Maximum number of entries of all stages together, equal to the rules that a policy file may have.
pub const MAX_ENTRIES: usize = 20_000;

/// Maximum number of stages in one file.
pub const MAX_STAGES: usize = 4096;

/// The comment at the start of the file, for readers who do not know it.
const HEAD: &str = "# What each stage reached: stage, host and port, how it asked. Written by `exeat audit lock`; with `exeat run --locked`\n\
                    # a stage reaches nothing else.\n\
                    schema 1\n";

/// A stage as a record names it; `None` for runs without a name.
pub type StageName = Option<String>;

/// The lists of all stages.
#[derive(Debug, Clone, Default)]
pub struct Lock {
    stages: BTreeMap<StageName, Reached>,
}

/// The targets that a stage reached, each with the way of the request and its line in the file, or 0 if it was not read from one.
type Reached = BTreeMap<(Target, Via), u32>;

/// A line of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockEntry<'a> {
    /// The stage.
    pub stage: Option<&'a str>,
    /// The target that it reached.
    pub target: &'a Target,
    /// The way of the request. A locked run does not compare it: the same program asks through the gateway on a machine with one, and
    /// through the proxy on others.
    pub via: Via,
    /// The line in the file, from 1; 0 for an entry that was not read from a file.
    pub line: u32,
}

impl Lock {
    /// Reads a lock file.
    ///
    /// # Errors
    ///
    /// Returns [`LockError`] for the first invalid line, or for a file that is too large. A caller that locks a run must stop then.
    pub fn parse(text: &str) -> Result<Self, LockError> {
        if text.len() > MAX_BYTES {
            return Err(LockError::new(0, LockFault::Bytes));
        }
        let mut lock = Self::default();
        let mut schema = false;
        let mut entries = 0;
        for (number, line) in (1..).zip(text.lines()) {
            let at = |fault| LockError::new(number, fault);
            let line = line.trim_end_matches('\r');
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if !schema {
                schema = match line.split_once(' ') {
                    Some(("schema", "1")) => true,
                    Some(("schema", other)) => {
                        return Err(at(LockFault::Version(escape(other.as_bytes(), 20))));
                    }
                    _ => return Err(at(LockFault::Schema)),
                };
                continue;
            }
            let (stage, entry) = split(line).ok_or_else(|| at(LockFault::Stage))?;
            let stage = stage.map(Cow::into_owned);
            if stage.as_deref().and_then(stage_fault).is_some() {
                return Err(at(LockFault::Stage));
            }
            let reached = lock.stages.entry(stage).or_default();
            if let Some(entry) = entry {
                let (target, via) = entry.split_once(' ').ok_or_else(|| at(LockFault::Shape))?;
                let target =
                    Target::parse(target.as_bytes()).map_err(|error| at(LockFault::Target(error)))?;
                let via = via.parse().map_err(|error| at(LockFault::Via(error)))?;
                reached.entry((target, via)).or_insert(number);
                entries += 1;
            }
            if entries > MAX_ENTRIES || lock.stages.len() > MAX_STAGES {
                return Err(at(LockFault::Entries));
            }
        }
        if schema { Ok(lock) } else { Err(LockError::new(0, LockFault::Schema)) }
    }

    /// Returns whether this stage has a list, which may be empty.
    pub fn has(&self, stage: Option<&str>) -> bool {
        self.of_stage(stage).is_some()
    }

    /// Returns the sorted entries of a stage, or none for a stage without a list.
    pub fn entries_of<'a>(&'a self, stage: Option<&str>) -> impl Iterator<Item = LockEntry<'a>> {
        self.of_stage(stage).into_iter().flat_map(|(stage, reached)| entries(stage, reached))
    }

    /// Returns the entries of all stages, sorted.
    pub fn entries(&self) -> impl Iterator<Item = LockEntry<'_>> {
        self.stages.iter().flat_map(|(stage, reached)| entries(stage, reached))
    }

    /// Returns the stages, sorted; `None` stands for runs without a name.
    pub fn stages(&self) -> impl Iterator<Item = Option<&str>> {
        self.stages.keys().map(Option::as_deref)
    }

    /// Sets the list of a stage, and replaces an earlier one.
    pub fn put(&mut self, stage: StageName, reached: impl IntoIterator<Item = (Target, Via)>) {
        self.stages.insert(stage, reached.into_iter().map(|entry| (entry, 0)).collect());
    }

    /// Replaces the lists of all stages that another lock has. Other stages keep theirs.
    pub fn replace(&mut self, newer: Self) {
        self.stages.extend(newer.stages);
    }

    /// Adds the entries of another lock to its own.
    pub fn add(&mut self, more: Self) {
        for (stage, reached) in more.stages {
            self.stages.entry(stage).or_default().extend(reached);
        }
    }

    /// Returns the text of the file, which depends on the entries only.
    pub fn render(&self) -> String {
        let mut lines = Vec::new();
        for (stage, reached) in &self.stages {
            let stage = spelled(stage.as_deref());
            if reached.is_empty() {
                lines.push(stage.clone());
            }
            lines.extend(reached.keys().map(|(target, via)| format!("{stage} {target} {via}")));
        }
        lines.sort_unstable();
        let mut text = HEAD.to_owned();
        for line in lines {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    fn of_stage(&self, stage: Option<&str>) -> Option<(&StageName, &Reached)> {
        self.stages.get_key_value(&stage.map(|stage| in_record(stage).into_owned()))
    }
}

fn entries<'a>(stage: &'a StageName, reached: &'a Reached) -> impl Iterator<Item = LockEntry<'a>> {
    reached.iter().map(move |((target, via), line)| LockEntry {
        stage: stage.as_deref(),
        target,
        via: *via,
        line: *line,
    })
}

/// Returns the name of a stage as its record has it, where a long one loses its end.
pub fn in_record(stage: &str) -> Cow<'_, str> {
    clip(stage, max::STAGE)
}

/// Splits a line into its stage and the rest.
fn split(line: &str) -> Option<(Option<Cow<'_, str>>, Option<&str>)> {
    if line.starts_with('"') {
        let mut values = serde_json::Deserializer::from_str(line).into_iter::<String>();
        let stage = values.next()?.ok()?;
        let rest = line.get(values.byte_offset()..)?;
        let entry = if rest.is_empty() { None } else { Some(rest.strip_prefix(' ')?) };
        return Some((Some(stage.into()), entry));
    }
    let (stage, entry) = line.split_once(' ').map_or((line, None), |(stage, entry)| (stage, Some(entry)));
    match stage {
        "-" => Some((None, entry)),
        stage if is_bare(stage) => Some((Some(stage.into()), entry)),
        _ => None,
    }
}

fn is_bare(stage: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    stage != "-" && !stage.is_empty() && stage.bytes().all(plain)
}

/// Returns a stage as the file spells it.
pub fn spelled(stage: Option<&str>) -> String {
    match stage {
        None => "-".to_owned(),
        Some(stage) if is_bare(stage) => stage.to_owned(),
        Some(stage) => {
            let quoted = serde_json::Value::from(stage).to_string();
            let mut ascii = Vec::new();
            // A write to memory cannot fail.
            let _ = ascii_json(&mut ascii, &quoted);
            let _ = ascii.flush();
            String::from_utf8_lossy(&ascii).into_owned()
        }
    }
}

/// The error for more entries or stages than a lock may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_ENTRIES} entries or {MAX_STAGES} stages")]
pub struct Full;

/// The error for a text that is not a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockError {
    line: u32,
    fault: LockFault,
}

impl LockError {
    fn new(line: u32, fault: LockFault) -> Self {
        Self { line, fault }
    }

    /// Returns the line, from 1, or 0 if no single line is at fault.
    pub fn line(&self) -> u32 {
        self.line
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LockFault {
    Bytes,
    Entries,
    Schema,
    Version(String),
    Stage,
    Shape,
    Target(TargetError),
    Via(WordError),
}

/// Describes the fault without the line, which the caller adds.
impl std::fmt::Display for LockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.fault {
            LockFault::Bytes => write!(f, "it is larger than {MAX_BYTES} bytes"),
            LockFault::Entries => write!(f, "{Full}"),
            LockFault::Schema => f.write_str("the first line must be `schema 1`"),
            LockFault::Version(version) => write!(f, "its schema is `{version}`, and this version reads 1"),
            LockFault::Stage => {
                f.write_str("a line begins with a stage: `-`, a plain name, or one in quotes")
            }
            LockFault::Shape => f.write_str("a line is `STAGE HOST:PORT VIA`"),
            LockFault::Target(error) => write!(f, "it names no host and port: {error}"),
            LockFault::Via(_) => f.write_str("it does not end with how the stage asked, such as `connect`"),
        }
    }
}

impl std::error::Error for LockError {}

#[cfg(test)]
mod tests;

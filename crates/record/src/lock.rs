//! `egress.lock`: what each stage reached, for people to review and for `exeat run --locked` to hold a later run to.
//!
//! Grants nothing and decides nothing: what it lists still needs a rule. No file is opened here.
//!
//! It is text, an entry a line, each with its stage, sorted as bytes: a new host is one new line in a difference, and two
//! branches that met in a conflict are joined by keeping the lines of both.
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
//! The stage is `-` for runs without a name, and in quotes, as in JSON, where it is not made of `A-Z a-z 0-9 . _ -` alone. A
//! line with nothing behind it is a stage that reached nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write as _;

use exeat_policy::file::stage_fault;
use exeat_policy::{Target, TargetError, WordError};

use crate::escape::{clip, escape};
use crate::event::Via;
use crate::line::{ascii_json, max};

/// The name of the file where none is given.
pub const FILE: &str = "egress.lock";

/// Bytes of a lock file that are read at most; a larger one is refused, not cut.
pub const MAX_BYTES: usize = 4 << 20;

/// Entries of all stages together; as many rules as a policy file may have.
pub const MAX_ENTRIES: usize = 20_000;

/// Stages that one file has at most.
pub const MAX_STAGES: usize = 4096;

/// What stands in front, for whoever finds the file.
const HEAD: &str = "# What each stage reached: stage, host and port, how it asked. Written by `exeat audit lock`; with `exeat run --locked`\n\
                    # a stage reaches nothing else.\n\
                    schema 1\n";

/// A stage as a record names it; `None` is a run without a name.
pub type Stage = Option<String>;

/// The lists of all stages.
#[derive(Debug, Clone, Default)]
pub struct Lock {
    stages: BTreeMap<Stage, Reached>,
}

/// What a stage reached: how it asked for what, and the line that says so; 0 where it was not read.
type Reached = BTreeMap<(Target, Via), u32>;

/// One line of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The stage.
    pub stage: Option<&'a str>,
    /// What it reached.
    pub target: &'a Target,
    /// How it asked. Not compared when a run is held to the lock: the same program asks through the gateway on a machine that
    /// has one, and through the proxy on one that has not.
    pub via: Via,
    /// From 1; 0 for what was not read from a file.
    pub line: u32,
}

impl Lock {
    /// Reads a lock file.
    ///
    /// # Errors
    ///
    /// [`LockError`]: the first line that is none, or a file that is too large. Whoever holds a run to it must not go on.
    pub fn parse(text: &str) -> Result<Self, LockError> {
        if text.len() > MAX_BYTES {
            return Err(LockError::new(0, Fault::Bytes));
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
                    Some(("schema", other)) => return Err(at(Fault::Version(escape(other.as_bytes(), 20)))),
                    _ => return Err(at(Fault::Schema)),
                };
                continue;
            }
            let (stage, entry) = split(line).ok_or_else(|| at(Fault::Stage))?;
            let stage = stage.map(Cow::into_owned);
            if stage.as_deref().and_then(stage_fault).is_some() {
                return Err(at(Fault::Stage));
            }
            let reached = lock.stages.entry(stage).or_default();
            if let Some(entry) = entry {
                let (target, via) = entry.split_once(' ').ok_or_else(|| at(Fault::Shape))?;
                let target = Target::parse(target.as_bytes()).map_err(|error| at(Fault::Target(error)))?;
                let via = via.parse().map_err(|error| at(Fault::Via(error)))?;
                reached.entry((target, via)).or_insert(number);
                entries += 1;
            }
            if entries > MAX_ENTRIES || lock.stages.len() > MAX_STAGES {
                return Err(at(Fault::Entries));
            }
        }
        if schema { Ok(lock) } else { Err(LockError::new(0, Fault::Schema)) }
    }

    /// Whether there is a list for this stage, if only an empty one.
    pub fn has(&self, stage: Option<&str>) -> bool {
        self.of_stage(stage).is_some()
    }

    /// What a stage reached, sorted; nothing for one without a list.
    pub fn of<'a>(&'a self, stage: Option<&str>) -> impl Iterator<Item = Entry<'a>> {
        self.of_stage(stage).into_iter().flat_map(|(stage, reached)| entries(stage, reached))
    }

    /// The entries of all stages, sorted.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.stages.iter().flat_map(|(stage, reached)| entries(stage, reached))
    }

    /// The stages, sorted; `None` is that of runs without a name.
    pub fn stages(&self) -> impl Iterator<Item = Option<&str>> {
        self.stages.keys().map(Option::as_deref)
    }

    /// Gives a stage its list, in the place of one that it has.
    pub fn put(&mut self, stage: Stage, reached: impl IntoIterator<Item = (Target, Via)>) {
        self.stages.insert(stage, reached.into_iter().map(|entry| (entry, 0)).collect());
    }

    /// Takes the lists of another lock in the place of its own ones; stages that the other does not have stay.
    pub fn replace(&mut self, newer: Self) {
        self.stages.extend(newer.stages);
    }

    /// Adds the entries of another lock to its own.
    pub fn add(&mut self, more: Self) {
        for (stage, reached) in more.stages {
            self.stages.entry(stage).or_default().extend(reached);
        }
    }

    /// The file: the same for the same entries, whatever they come from.
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

    fn of_stage(&self, stage: Option<&str>) -> Option<(&Stage, &Reached)> {
        self.stages.get_key_value(&stage.map(|stage| in_record(stage).into_owned()))
    }
}

fn entries<'a>(stage: &'a Stage, reached: &'a Reached) -> impl Iterator<Item = Entry<'a>> {
    reached.iter().map(move |((target, via), line)| Entry {
        stage: stage.as_deref(),
        target,
        via: *via,
        line: *line,
    })
}

/// The name of a stage as its record has it: a long one loses its end there.
pub fn in_record(stage: &str) -> Cow<'_, str> {
    clip(stage, max::STAGE)
}

/// The stage of a line, and what follows it.
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

/// A stage as the file spells it.
pub fn spelled(stage: Option<&str>) -> String {
    match stage {
        None => "-".to_owned(),
        Some(stage) if is_bare(stage) => stage.to_owned(),
        Some(stage) => {
            let quoted = serde_json::Value::from(stage).to_string();
            let mut ascii = Vec::new();
            // Writing to memory cannot fail.
            let _ = ascii_json(&mut ascii, &quoted);
            let _ = ascii.flush();
            String::from_utf8_lossy(&ascii).into_owned()
        }
    }
}

/// More was seen than a lock may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_ENTRIES} entries or {MAX_STAGES} stages")]
pub struct Full;

/// Why a text is no lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockError {
    line: u32,
    fault: Fault,
}

impl LockError {
    fn new(line: u32, fault: Fault) -> Self {
        Self { line, fault }
    }

    /// The line, from 1; 0 where none is at fault.
    pub fn line(&self) -> u32 {
        self.line
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    Bytes,
    Entries,
    Schema,
    Version(String),
    Stage,
    Shape,
    Target(TargetError),
    Via(WordError),
}

/// What is wrong; the line is for the caller to put in front.
impl std::fmt::Display for LockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.fault {
            Fault::Bytes => write!(f, "it is larger than {MAX_BYTES} bytes"),
            Fault::Entries => write!(f, "{Full}"),
            Fault::Schema => f.write_str("the first line is `schema 1`"),
            Fault::Version(version) => write!(f, "its schema is `{version}`, and this version reads 1"),
            Fault::Stage => f.write_str("a line begins with a stage: `-`, a plain name, or one in quotes"),
            Fault::Shape => f.write_str("a line is `STAGE HOST:PORT VIA`"),
            Fault::Target(error) => write!(f, "it names no host and port: {error}"),
            Fault::Via(_) => f.write_str("it does not end with how the stage asked, such as `connect`"),
        }
    }
}

impl std::error::Error for LockError {}

#[cfg(test)]
mod tests;

//! Records as one page for people: what ran, under which policy, what it reached, what was denied and why.
//!
//! Proves nothing: whether a record is whole is what [`crate::verify`] found, and without that the page says that nobody
//! looked. Everything in a record is taken for hostile: the page has no script, loads nothing, and what a record says stands in it
//! as text. Memory and page are bounded whatever the records hold; what is left out is counted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use exeat_policy::Verdict;
use nix::fcntl::OFlag;

use crate::place::{policy_path, reloaded_path};
use crate::query::{Filter, Kind, Reader, Record};
use crate::summary::{Reading, Summary, Tally};
use crate::table::words;
use crate::{sha256_hex, verify};

mod html;
mod timeline;

use timeline::Timeline;

/// Runs with a section of their own.
const MAX_RUNS: usize = 50;
/// Rows of a table.
const MAX_ROWS: usize = 500;
/// Attempts of one run that are listed in their order.
const MAX_DENIED: usize = 200;
/// Notes, files and policies of one run.
const MAX_NOTES: usize = 100;
/// Bytes of a stored policy that is shown.
const MAX_POLICY: u64 = 256 * 1024;
/// Bytes of all stored policies that are shown.
const MAX_POLICIES: usize = 4 * 1024 * 1024;

/// What a page is made of.
#[derive(Debug, Default)]
pub struct Report {
    files: Vec<Source>,
    runs: Vec<Run>,
    more_runs: u64,
    summary: Summary,
    /// What rules say of themselves, by rule and place.
    rules: BTreeMap<(String, String), Said>,
    /// Bytes of stored policies that are kept.
    policies: usize,
}

/// A record that was read.
#[derive(Debug)]
struct Source {
    name: String,
    verified: Option<verify::Report>,
    flaws: Vec<String>,
    more_flaws: u64,
}

/// What a rule says of itself.
#[derive(Debug, Default)]
struct Said {
    why: Option<String>,
    approved_by: Option<String>,
    expires: Option<String>,
}

/// One run. Strings are as the record has them.
#[derive(Debug, Default)]
struct Run {
    file: usize,
    name: String,
    stage: Option<String>,
    start: Option<Box<Record>>,
    end: Option<Box<Record>>,
    /// The time of its first line, and of its last.
    first: String,
    last: String,
    tally: Tally,
    bytes_up: u64,
    bytes_down: u64,
    timeline: Timeline,
    /// What was not let through, in its order.
    denied: Vec<Attempt>,
    /// Lines beyond those.
    denied_more: u64,
    sources: Vec<(String, String, String)>,
    policies: Vec<Policy>,
    notes: Vec<(String, String)>,
    notes_more: u64,
}

#[derive(Debug)]
struct Attempt {
    time: String,
    verdict: Verdict,
    /// Printable.
    target: String,
    /// Printable.
    why: String,
    /// The program that asked.
    exe: Option<String>,
}

/// A policy that held.
#[derive(Debug)]
struct Policy {
    sha256: String,
    mode: Option<String>,
    stored: Stored,
}

/// The policy that is stored beside a record.
#[derive(Debug)]
enum Stored {
    /// It has the digest that the record names.
    Same(String),
    /// It has another one.
    Other,
    /// It is longer than what is shown.
    Long,
    /// There is none.
    None,
}

impl Report {
    /// Adds a record.
    ///
    /// `name` is what the page calls it. `path` is where it stands, if in a file: the policies beside it are shown where they have
    /// the digest that the record names. `verified` is what was found of the same file; without it the page says that the
    /// record was not checked.
    ///
    /// # Errors
    ///
    /// Those of reading the record. Whatever it says is none.
    pub fn read<R: BufRead>(
        &mut self,
        reader: &mut Reader<R>,
        name: &str,
        path: Option<&Path>,
        verified: Option<verify::Report>,
    ) -> io::Result<()> {
        let file = self.files.len();
        let first = self.runs.len();
        let mut run: Option<Run> = None;
        let mut reading = Reading::default();
        for record in reader.by_ref() {
            let record = record?;
            self.summary.take(&mut reading, &record, &Filter::default())?;
            if run.as_ref().is_none_or(|run| run.name != record.run) {
                self.keep(run.take());
                run = Some(Run::new(file, &record));
            }
            if let Some(run) = &mut run {
                run.add(&record);
            }
            self.rule(&record);
        }
        self.keep(run);
        self.summary.end(reading, reader)?;
        for run in self.runs.iter_mut().skip(first) {
            self.policies += run.find_policies(path, MAX_POLICIES.saturating_sub(self.policies));
        }
        self.files.push(Source {
            name: name.to_owned(),
            verified,
            flaws: reader.flaws().iter().map(ToString::to_string).collect(),
            more_flaws: reader.more_flaws(),
        });
        Ok(())
    }

    /// Writes the page.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn write(&mut self, out: &mut dyn io::Write) -> io::Result<()> {
        self.summary.finish()?;
        html::write(self, out)
    }

    fn keep(&mut self, run: Option<Run>) {
        match run {
            Some(run) if self.runs.len() < MAX_RUNS => self.runs.push(run),
            Some(_) => self.more_runs += 1,
            None => {}
        }
    }

    fn rule(&mut self, record: &Record) {
        let (Some(rule), true) = (&record.rule, record.is_decision()) else { return };
        let key = (rule.clone(), record.rule_src.clone().unwrap_or_default());
        if self.rules.contains_key(&key) || self.rules.len() >= MAX_ROWS {
            return;
        }
        let said = Said {
            why: record.why.clone(),
            approved_by: record.approved_by.clone(),
            expires: record.expires.clone(),
        };
        self.rules.insert(key, said);
    }
}

impl Run {
    fn new(file: usize, record: &Record) -> Run {
        Run { file, name: record.run.clone(), first: record.ts.clone(), ..Run::default() }
    }

    fn add(&mut self, record: &Record) {
        self.last.clone_from(&record.ts);
        if self.stage.is_none() {
            self.stage.clone_from(&record.stage);
        }
        self.timeline.reach(record.mono_us);
        match record.event {
            Kind::RunStart => {
                self.policy(record);
                self.start = Some(Box::new(record.clone()));
            }
            Kind::Policy if self.sources.len() < MAX_NOTES => {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                self.sources.push((text(&record.role), text(&record.file), text(&record.file_sha256)));
            }
            Kind::Decision | Kind::Dns => self.decision(record),
            Kind::Close => {
                self.bytes_up = self.bytes_up.saturating_add(record.bytes_up.unwrap_or(0));
                self.bytes_down = self.bytes_down.saturating_add(record.bytes_down.unwrap_or(0));
            }
            Kind::Note => {
                self.policy(record);
                if self.notes.len() < MAX_NOTES {
                    self.notes.push((record.ts.clone(), html::note(record)));
                } else {
                    self.notes_more += 1;
                }
            }
            Kind::RunEnd => self.end = Some(Box::new(record.clone())),
            _ => {}
        }
    }

    fn decision(&mut self, record: &Record) {
        self.tally.add(record);
        self.timeline.add(record);
        let Some(verdict) = record.verdict().filter(|verdict| *verdict != Verdict::Allow) else { return };
        if self.denied.len() < MAX_DENIED {
            self.denied.push(Attempt {
                time: record.ts.clone(),
                verdict,
                target: html::target(record),
                why: words(record),
                exe: record.exe.clone(),
            });
        } else {
            self.denied_more += 1;
        }
    }

    fn policy(&mut self, record: &Record) {
        let Some(sha256) = &record.policy_sha256 else { return };
        let known = self.policies.iter().any(|policy| policy.sha256 == *sha256);
        if !known && self.policies.len() < MAX_NOTES {
            let (sha256, mode) = (sha256.clone(), record.mode.clone());
            self.policies.push(Policy { sha256, mode, stored: Stored::None });
        }
    }

    /// Keeps `room` bytes of stored policies at most, and gives how many it kept.
    fn find_policies(&mut self, record: Option<&Path>, room: usize) -> usize {
        let mut kept = 0;
        let Some(record) = record else { return kept };
        for (at, policy) in self.policies.iter_mut().enumerate() {
            // It is the record's word: what is no digest is looked for nowhere.
            let Some(again) = reloaded_path(record, &policy.sha256) else { continue };
            let path = if at == 0 { policy_path(record) } else { again };
            policy.stored = match stored(&path, &policy.sha256) {
                Stored::Same(json) if kept + json.len() > room => Stored::Long,
                stored => stored,
            };
            if let Stored::Same(json) = &policy.stored {
                kept += json.len();
            }
        }
        kept
    }
}

fn stored(path: &Path, sha256: &str) -> Stored {
    // Something else than a file must not hold us up.
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let Ok(file) = file else { return Stored::None };
    let mut bytes = Vec::new();
    if file.take(MAX_POLICY + 1).read_to_end(&mut bytes).is_err() {
        return Stored::Other;
    }
    if bytes.len() as u64 > MAX_POLICY {
        return Stored::Long;
    }
    let same = sha256_hex(&bytes) == sha256;
    String::from_utf8(bytes).ok().filter(|_| same).map_or(Stored::Other, Stored::Same)
}

#[cfg(test)]
mod tests;

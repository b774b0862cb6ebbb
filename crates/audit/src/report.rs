//! Shows records as one page: what ran, under which policy, what it reached, what was denied and why.
//!
//! Proves nothing: [`crate::verify`] says whether a record is whole, and without it the page says that the record was not checked. All
//! text of a record is hostile: the page has no script, loads nothing, and shows it as text only. Memory and page are bounded whatever
//! the records contain; what is left out is counted.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use exeat_policy::Verdict;
use exeat_record::place::{policy_path, reloaded_path};
use exeat_record::{hex, sha256_hex};
use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};

use crate::query::{Filter, Flaw, LineKind, Reader, Record};
use crate::summary::{Reading, RunFacts, Summary, Traffic};
use crate::table::words;
use crate::verify::{self, Standing};

mod data;
mod html;
mod timeline;

use data::{Attempt, MAX_DENIED, MAX_NOTES, MAX_ROWS, MAX_RUNS, Policy, Run, Source, Stored};
pub use data::{Made, Report};
use timeline::Timeline;

/// The most bytes of a stored policy that is shown.
const MAX_POLICY: u64 = 256 * 1024;
/// The most bytes of all stored policies that are shown.
const MAX_POLICIES: usize = 4 * 1024 * 1024;

/// The result of adding a record to a page.
#[derive(Debug)]
#[non_exhaustive]
pub struct Added {
    /// The facts about the record's last run.
    pub run: RunFacts,
    /// Whether it has a flaw other than a missing end.
    pub is_damaged: bool,
}

impl Report {
    /// Creates a page without records.
    pub fn new(made: Made) -> Report {
        Report {
            made,
            files: Vec::new(),
            runs: Vec::new(),
            more_runs: 0,
            in_full: 0,
            summary: Summary::default(),
            policies: BTreeMap::new(),
            policy_bytes: 0,
        }
    }

    /// Adds a record.
    ///
    /// `name` is its name on the page. `path` is its file, if it has one: the policies stored next to it are shown if they have the digest
    /// that the record names. `verified` is the verification of the same file; without it the page says that the record was not checked.
    ///
    /// # Errors
    ///
    /// Fails if the record cannot be read, or if a temporary file is needed and cannot be used. Flaws in the record are not errors.
    pub fn read(
        &mut self,
        input: impl BufRead,
        name: &str,
        path: Option<&Path>,
        verified: Option<verify::Verification>,
    ) -> io::Result<Added> {
        let mut hash = Sha256::new();
        let mut reader = Reader::new(Hashed { input, hash: &mut hash });
        let file = self.files.len();
        let mut source = Source {
            name: name.to_owned(),
            verified,
            flaws: Vec::new(),
            more_flaws: 0,
            lines: 0,
            sha256: String::new(),
            sealed: None,
        };
        let mut run: Option<Run> = None;
        let mut reading = Reading::default();
        for record in reader.by_ref() {
            let record = record?;
            if run.as_ref().is_none_or(|run| run.name != record.run) {
                let traffic = self.summary.end_run(&mut reading)?;
                self.keep(run.take(), traffic, path);
                run = Some(Run::new(file, source.standing(), &record));
            }
            self.summary.take(&mut reading, &record, &Filter::default())?;
            if let Some(run) = &mut run {
                run.add(&record);
            }
            if let (LineKind::Checkpoint, Some(n), Some(root)) = (&record.event, record.n, &record.root) {
                source.sealed = Some((n, root.clone()));
            }
        }
        let facts = reading.facts().clone();
        let traffic = self.summary.end(reading, &reader)?;
        self.keep(run, traffic, path);
        source.flaws = reader.flaws().iter().map(ToString::to_string).collect();
        source.more_flaws = reader.more_flaws();
        source.lines = reader.number();
        let beyond = |flaw: &Flaw| !matches!(flaw, Flaw::Unfinished { .. });
        let is_damaged = reader.more_flaws() > 0 || reader.flaws().iter().any(beyond);
        drop(reader);
        source.sha256 = hex(&hash.finalize());
        self.files.push(source);
        Ok(Added { run: facts, is_damaged })
    }

    /// Returns the summary of all records, for the policies stored beside them; see [`Summary::add_policy`].
    pub fn summary_mut(&mut self) -> &mut Summary {
        &mut self.summary
    }

    /// Writes the page.
    ///
    /// # Errors
    ///
    /// Fails if the output cannot be written, or if a temporary file is needed and cannot be used.
    pub fn write(&mut self, out: &mut dyn io::Write) -> io::Result<()> {
        self.summary.finish()?;
        self.order();
        html::write(self, out)
    }

    /// Keeps a run, and the policies stored beside its record.
    fn keep(&mut self, run: Option<Run>, traffic: Traffic, record: Option<&Path>) {
        let Some(mut run) = run else { return };
        run.traffic = traffic;
        self.find_policies(&mut run, record);
        self.runs.push(run);
        self.in_full += 1;
        if self.in_full > 2 * MAX_RUNS {
            self.order();
        }
    }

    /// Sorts the runs, the worst first. Only the first have details; of the rest only some are listed, and the others counted.
    fn order(&mut self) {
        self.runs.sort_by_key(|run| Reverse(run.severity()));
        for run in self.runs.iter_mut().skip(MAX_RUNS) {
            run.denied = Vec::new();
            run.sources = Vec::new();
            run.notes = Vec::new();
            run.timeline = Timeline::default();
        }
        self.in_full = self.runs.len().min(MAX_RUNS);
        self.more_runs += self.runs.len().saturating_sub(MAX_ROWS) as u64;
        self.runs.truncate(MAX_ROWS);
    }

    /// Keeps the stored policies that a run names, each once.
    fn find_policies(&mut self, run: &mut Run, record: Option<&Path>) {
        let Some(record) = record else { return };
        for (at, policy) in run.policies.iter_mut().enumerate() {
            // The digest is the record's word: skip what is not a digest.
            let Some(again) = reloaded_path(record, &policy.sha256) else { continue };
            let path = if at == 0 { policy_path(record) } else { again };
            let (found, json) = stored(&path, &policy.sha256);
            policy.stored = match json {
                Some(json) if !self.policies.contains_key(&policy.sha256) => {
                    if self.policy_bytes + json.len() > MAX_POLICIES {
                        Stored::Long
                    } else {
                        self.policy_bytes += json.len();
                        self.policies.insert(policy.sha256.clone(), json);
                        Stored::Same
                    }
                }
                _ => found,
            };
        }
    }
}

impl Run {
    fn new(file: usize, standing: Option<Standing>, record: &Record) -> Run {
        Run {
            file,
            standing,
            name: record.run.clone(),
            first: record.ts.clone(),
            timeline: Timeline::beginning(record),
            ..Run::default()
        }
    }

    /// Sorts runs by how much they deserve a look, the weightiest field first.
    fn severity(&self) -> (bool, bool, bool, u64, u64, u64, bool) {
        let tally = &self.traffic.tally;
        let end = self.end.as_deref();
        (
            self.standing == Some(Standing::Tampered),
            end.is_some_and(|end| end.dropped.unwrap_or(0) > 0),
            self.standing != Some(Standing::Whole) || end.is_none(),
            tally.denied,
            tally.not_reached(),
            tally.would_deny,
            end.is_none_or(|end| end.exit != Some(0)),
        )
    }

    fn add(&mut self, record: &Record) {
        self.last.clone_from(&record.ts);
        if self.stage.is_none() {
            self.stage.clone_from(&record.stage);
        }
        self.timeline.add(record);
        match record.event {
            LineKind::RunStart => {
                self.policy(record);
                self.start = Some(Box::new(record.clone()));
            }
            LineKind::Policy if self.sources.len() < MAX_NOTES => {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                self.sources.push((text(&record.role), text(&record.file), text(&record.file_sha256)));
            }
            LineKind::Decision | LineKind::Dns => self.decision(record),
            LineKind::Note => {
                self.policy(record);
                if self.notes.len() < MAX_NOTES {
                    self.notes.push((record.ts.clone(), html::note(record)));
                } else {
                    self.notes_more += 1;
                }
            }
            LineKind::RunEnd => self.end = Some(Box::new(record.clone())),
            _ => {}
        }
    }

    fn decision(&mut self, record: &Record) {
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
}

/// An input that hashes its bytes as they are consumed.
struct Hashed<'a, R> {
    input: R,
    hash: &'a mut Sha256,
}

impl<R: BufRead> Read for Hashed<'_, R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(room)?;
        self.hash.update(room.get(..read).unwrap_or_default());
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Hashed<'_, R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // The bytes are in the buffer, so this does not read.
        if let Ok(bytes) = self.input.fill_buf() {
            self.hash.update(bytes.get(..count).unwrap_or_default());
        }
        self.input.consume(count);
    }
}

/// Compares a stored policy with its digest, and returns its text if they match.
fn stored(path: &Path, sha256: &str) -> (Stored, Option<String>) {
    // A named pipe must not block here.
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let Ok(file) = file else { return (Stored::None, None) };
    let mut bytes = Vec::new();
    if file.take(MAX_POLICY + 1).read_to_end(&mut bytes).is_err() {
        return (Stored::Other, None);
    }
    if bytes.len() as u64 > MAX_POLICY {
        return (Stored::Long, None);
    }
    let same = sha256_hex(&bytes) == sha256;
    match String::from_utf8(bytes).ok().filter(|_| same) {
        Some(json) => (Stored::Same, Some(json)),
        None => (Stored::Other, None),
    }
}

#[cfg(test)]
mod tests;

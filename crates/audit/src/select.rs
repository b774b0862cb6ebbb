//! Selects runs by stage, label, user, machine, directory and time.

use std::path::PathBuf;

use exeat_record::clip;
use exeat_record::line::{max, path_text};

use crate::Moment;
use crate::runs::RunSummary;

/// Selects runs. An empty list selects all, several values of one list widen, and several lists narrow.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Stages, any of which matches.
    pub stages: Vec<String>,
    /// Labels, each a key with its value. Values of one key widen, and several keys narrow.
    pub labels: Vec<(String, String)>,
    /// Users who started the run, any of which matches.
    pub users: Vec<String>,
    /// Machines, any of which matches.
    pub machines: Vec<String>,
    /// Absolute directories; a run in or below any of them matches.
    pub dirs: Vec<PathBuf>,
    /// The run had not ended before this.
    pub since: Option<Moment>,
    /// The run had started by then.
    pub until: Option<Moment>,
}

impl Selection {
    /// Whether every run passes.
    pub fn is_empty(&self) -> bool {
        !self.needs_first_line() && self.since.is_none() && self.until.is_none()
    }

    /// Whether a record's first line is needed to decide.
    pub fn needs_first_line(&self) -> bool {
        !(self.stages.is_empty()
            && self.labels.is_empty()
            && self.users.is_empty()
            && self.machines.is_empty()
            && self.dirs.is_empty())
    }

    /// Whether a run passes. A run with a damaged first line passes, because nobody can tell. A run without lines passes by the time in its
    /// name only, because it has nothing to show.
    pub fn passes(&self, run: &RunSummary) -> bool {
        match run.holds {
            Some(_) => self.passes_first_line(run) && self.passes_time(run),
            None if run.is_bare => !self.needs_first_line() && self.passes_time(run),
            None => true,
        }
    }

    /// Whether a run is left out because it wrote no first line, so that nobody can tell which run it was.
    pub fn leaves_out_unknown(&self, run: &RunSummary) -> bool {
        run.is_bare && self.needs_first_line() && self.passes_time(run)
    }

    fn passes_first_line(&self, run: &RunSummary) -> bool {
        let is_one = |wanted: &[String], found: Option<&str>, max: usize| {
            wanted.is_empty() || wanted.iter().any(|wanted| Some(&*clip(wanted, max)) == found)
        };
        // A user that exeat acts for is recorded as `cleo as root`.
        let user = run.user.as_deref().unwrap_or_default();
        let is_user = |wanted: &String| {
            user == *wanted || user.split_once(" as ").is_some_and(|(user, _)| user == *wanted)
        };
        is_one(&self.stages, run.stage.as_deref(), max::STAGE)
            && is_one(&self.machines, run.machine.as_deref(), max::MACHINE)
            && (self.users.is_empty() || self.users.iter().any(is_user))
            && self.passes_labels(run)
            && (self.dirs.is_empty() || self.dirs.iter().any(|dir| is_in(run, dir)))
    }

    fn passes_labels(&self, run: &RunSummary) -> bool {
        let has = |key: &str, value: &str| {
            run.labels.get(&*clip(key, max::LABEL_KEY)).map(String::as_str)
                == Some(&*clip(value, max::LABEL_VALUE))
        };
        self.labels
            .iter()
            .all(|(key, _)| self.labels.iter().any(|(other, value)| other == key && has(other, value)))
    }

    fn passes_time(&self, run: &RunSummary) -> bool {
        let made = run.run.map(|run| Moment::from(run.created_at()));
        let started = run.started.as_deref().and_then(Moment::parse).or(made);
        let over = run.last.or(made.filter(|_| run.is_bare)).filter(|_| !run.running);
        self.until.is_none_or(|until| started.is_none_or(|started| started <= until))
            && self.since.is_none_or(|since| over.is_none_or(|over| since <= over))
    }
}

/// Whether a run was started in a directory or below, according to its record.
fn is_in(run: &RunSummary, dir: &std::path::Path) -> bool {
    let Some(found) = run.dir.as_deref() else { return false };
    let wanted = path_text(dir.as_os_str(), usize::MAX);
    let below = found.strip_prefix(wanted.trim_end_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

#[cfg(test)]
mod tests;

//! Which runs somebody asks about: those of certain stages, labels, people, machines, directories and times.

use std::path::PathBuf;

use exeat_record::clip;
use exeat_record::line::{max, path_text};

use crate::Moment;
use crate::runs::RunSummary;

/// Which runs are asked for. An empty list asks for nothing in particular, two values of one list add up, and two lists narrow.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// One of these stages.
    pub stages: Vec<String>,
    /// These labels, each a key with its value. Values of one key add up, and two keys narrow.
    pub labels: Vec<(String, String)>,
    /// Started by one of these users.
    pub users: Vec<String>,
    /// On one of these machines.
    pub machines: Vec<String>,
    /// In one of these directories or below. They are absolute.
    pub dirs: Vec<PathBuf>,
    /// Not over before this.
    pub since: Option<Moment>,
    /// Not started after this.
    pub until: Option<Moment>,
}

impl Selection {
    /// Whether every run passes.
    pub fn is_empty(&self) -> bool {
        !self.needs_first_line() && self.since.is_none() && self.until.is_none()
    }

    /// Whether it takes a record's first line to tell.
    pub fn needs_first_line(&self) -> bool {
        !(self.stages.is_empty()
            && self.labels.is_empty()
            && self.users.is_empty()
            && self.machines.is_empty()
            && self.dirs.is_empty())
    }

    /// Whether a run passes. One whose first line is damaged does, because nobody can tell. One that has written none passes by the
    /// time in its name alone: nothing in it could be shown.
    pub fn passes(&self, run: &RunSummary) -> bool {
        match run.holds {
            Some(_) => self.passes_first_line(run) && self.passes_time(run),
            None if run.is_bare => !self.needs_first_line() && self.passes_time(run),
            None => true,
        }
    }

    /// Whether a run is left out because it has written no first line, and nobody can tell which run it was.
    pub fn leaves_out_unknown(&self, run: &RunSummary) -> bool {
        run.is_bare && self.needs_first_line() && self.passes_time(run)
    }

    fn passes_first_line(&self, run: &RunSummary) -> bool {
        let is_one = |wanted: &[String], found: Option<&str>, max: usize| {
            wanted.is_empty() || wanted.iter().any(|wanted| Some(&*clip(wanted, max)) == found)
        };
        // A user that exeat acts for is `cleo as root`.
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
        let started = run.started.as_deref().and_then(Moment::of).or(made);
        let over = run.last.or(made.filter(|_| run.is_bare)).filter(|_| !run.running);
        self.until.is_none_or(|until| started.is_none_or(|started| started <= until))
            && self.since.is_none_or(|since| over.is_none_or(|over| since <= over))
    }
}

/// Whether a run was started in a directory or below, as far as its record says where.
fn is_in(run: &RunSummary, dir: &std::path::Path) -> bool {
    let Some(found) = run.dir.as_deref() else { return false };
    let wanted = path_text(dir.as_os_str(), usize::MAX);
    let below = found.strip_prefix(wanted.trim_end_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

#[cfg(test)]
mod tests;

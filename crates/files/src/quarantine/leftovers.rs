//! The report of the names that a stage left. The stage chooses how many there are, so their number in the report is bounded.

use std::io;
use std::path::PathBuf;

/// The maximal number of moved names and of left names that one run lists. The others are counted.
pub(super) const NAMED: usize = 100;

/// A protected name that was missing when the stage started, and was there when it had ended.
#[derive(Debug)]
pub struct Leftover {
    /// The place on the host.
    pub path: PathBuf,
    /// Its new name, or why it is still where it was.
    pub moved: Result<PathBuf, io::Error>,
}

/// Protected names that the stages of one run have made.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// At most 100 that were moved aside, and 100 that are where they were; and each repository that was not searched whole.
    pub named: Vec<Leftover>,
    /// The number of further entries that were moved aside.
    pub more_moved: u64,
    /// The number of further entries that were left.
    pub more_left: u64,
    /// At most 100 directories that the stage had opened to other users, and that are closed to them again.
    pub closed: Vec<PathBuf>,
    /// The number of further directories that were closed.
    pub more_closed: u64,
    /// The reason that the list for `exeat state` is incomplete.
    pub unlisted: Option<String>,
    /// Whether the search for them was ended before it was through.
    pub is_cut: bool,
}

impl Leftovers {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.closed.is_empty() && self.more_moved == 0 && self.more_left == 0
    }

    /// Adds what another run has left.
    pub fn extend(&mut self, other: Self) {
        other.named.into_iter().for_each(|found| self.add(found));
        other.closed.into_iter().for_each(|path| self.add_closed(path));
        self.more_closed += other.more_closed;
        self.more_moved += other.more_moved;
        self.more_left += other.more_left;
        self.unlisted = self.unlisted.take().or(other.unlisted);
        self.is_cut |= other.is_cut;
    }

    /// Names it, or counts it.
    pub fn add(&mut self, found: Leftover) {
        let is_moved = found.moved.is_ok();
        let named = self.named.iter().filter(|other| other.moved.is_ok() == is_moved).count();
        if named < NAMED {
            self.named.push(found);
        } else if is_moved {
            self.more_moved += 1;
        } else {
            self.more_left += 1;
        }
    }

    /// Names a directory that was closed again, or counts it.
    pub(super) fn add_closed(&mut self, path: PathBuf) {
        if self.closed.len() < NAMED {
            self.closed.push(path);
        } else {
            self.more_closed += 1;
        }
    }

    /// Names it however many there are: one for a repository.
    pub(super) fn add_always(&mut self, found: Leftover) {
        self.named.push(found);
    }
}

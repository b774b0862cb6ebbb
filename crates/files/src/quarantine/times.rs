//! Facts by which a change of a stage's is found: the times that a file system keeps, and the files that were noted at the start.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, fstatfs,
};

use serde::{Deserialize, Serialize};

use super::descriptors::FileId;
use super::own::OwnDirectories;
use crate::listing::XFS;

/// The greatest difference between the clock of a file system, which may be another machine's, and that of this process.
pub(super) const CLOCKS: Duration = Duration::from_secs(300);
/// The greatest difference on a file system of this kernel. Times are compared in seconds.
pub(super) const OWN_CLOCK: Duration = Duration::from_secs(2);
/// File systems that take the time from this kernel.
pub(super) const LOCAL: [FsType; 5] =
    [BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS];
/// File systems on which a directory without directories has two links.
pub(super) const COUNTING: [FsType; 3] = [EXT4_SUPER_MAGIC, XFS, TMPFS_MAGIC];

/// The facts about the times of a tree.
#[derive(Debug)]
pub(super) struct Times {
    /// The start, by a clock that nobody can set.
    pub(super) begun: Instant,
    /// The greatest difference between the clock of the tree and this one.
    pub(super) clocks: OnceLock<Duration>,
    /// The device on which the links of a directory are counted, if the tree is on such a one.
    pub(super) counting: OnceLock<Option<u64>>,
    pub(super) is_tmpfs: OnceLock<bool>,
}

impl Times {
    pub(super) fn start() -> Self {
        let (clocks, counting, is_tmpfs) = Default::default();
        Self { begun: Instant::now(), clocks, counting, is_tmpfs }
    }
}

/// The files that programs obeyed at the start in repositories further down (`survey`).
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// The hash of each file, with its place and its version.
    pub(super) marks: Mutex<HashSet<u64>>,
    /// The hash of each directory that had its place.
    pub(super) places: Mutex<HashSet<u64>>,
    /// The modes of files that are read-only for the stage.
    pub(super) modes: Mutex<Vec<(PathBuf, FileId, u32)>>,
    /// Bytes that the end may read of places that are too large for their room. The stage starts when nobody reads such a place.
    pub(super) large: Mutex<LargeRoom>,
    /// Whether the stage may run.
    pub(super) has_stage: AtomicBool,
    /// The home directory, to which `~` leads in a configuration of git's.
    pub(super) home: OnceLock<PathBuf>,
    /// The directories that exeat itself writes to.
    pub(super) own: OnceLock<OwnDirectories>,
}

/// The room for such places in one tree: about a tenth of a second.
#[derive(Debug, Clone, Copy)]
pub(super) struct LargeRoom(pub(super) u64);

impl Default for LargeRoom {
    fn default() -> Self {
        Self(64 << 20)
    }
}

/// The part of [`Noted`] that a journal keeps.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct NotedHashes {
    marks: HashSet<u64>,
    places: HashSet<u64>,
}

impl NotedHashes {
    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.places.is_empty()
    }
}

impl Noted {
    pub(super) fn hashes(&self) -> NotedHashes {
        let copy = |set: &Mutex<HashSet<u64>>| set.lock().unwrap_or_else(PoisonError::into_inner).clone();
        NotedHashes { marks: copy(&self.marks), places: copy(&self.places) }
    }
}

impl From<NotedHashes> for Noted {
    fn from(NotedHashes { marks, places }: NotedHashes) -> Self {
        Self { marks: Mutex::new(marks), places: Mutex::new(places), ..Self::default() }
    }
}

/// Returns the kind of file system that a tree is in.
pub(super) fn file_system(tree: impl AsFd) -> Option<FsType> {
    fstatfs(tree).ok().map(|fs| fs.filesystem_type())
}

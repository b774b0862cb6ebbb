//! Facts by which a change of a stage's is found: the times that a file system keeps, and the files that were noted at the start.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, fstatfs,
};

use serde::{Deserialize, Serialize};

use super::descriptors::FileId;
use super::own::OwnDirectories;
use crate::listing::XFS;
use crate::names::{rows, whole};

/// The greatest difference between the clock of a file system, which may be another machine's, and that of this process.
pub(super) const CLOCKS: Duration = Duration::from_secs(300);
/// The greatest difference on a file system of this kernel. Times are compared in seconds.
pub(super) const OWN_CLOCK: Duration = Duration::from_secs(2);
/// File systems on which a directory without directories has two links.
const COUNTING: [FsType; 3] = [EXT4_SUPER_MAGIC, XFS, TMPFS_MAGIC];

/// The facts about the times of a tree.
#[derive(Debug)]
pub(super) struct Times {
    /// The start, by a clock that nobody can set.
    pub(super) begun: Instant,
    pub(super) devices: OnceLock<Devices>,
}

impl Times {
    pub(super) fn start() -> Self {
        Self { begun: Instant::now(), devices: OnceLock::new() }
    }
}

/// What a file system says about changes of its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trusted {
    /// It notes the time of every change, from this kernel's clock.
    AllTimes,
    /// It takes the time from this kernel's clock, but does not note a change that is made by a memory map.
    ClockOnly,
    /// It is not known, and its clock may be another machine's.
    Nothing,
}

impl Trusted {
    fn of(fs: FsType) -> Self {
        match fs {
            BTRFS_SUPER_MAGIC | EXT4_SUPER_MAGIC | XFS => Self::AllTimes,
            OVERLAYFS_SUPER_MAGIC | TMPFS_MAGIC => Self::ClockOnly,
            _ => Self::Nothing,
        }
    }

    /// The same by the name of a file system in a table of mounts.
    fn of_name(name: &[u8]) -> Self {
        match name {
            b"btrfs" | b"ext4" | b"xfs" => Self::AllTimes,
            b"overlay" | b"tmpfs" => Self::ClockOnly,
            _ => Self::Nothing,
        }
    }
}

/// The file systems in a tree: its own, and those that are mounted below it.
#[derive(Debug)]
pub(super) struct Devices {
    own: u64,
    own_trusted: Trusted,
    is_counting: bool,
    /// The others by their numbers, from the table of mounts. Read when one is met. A part of btrfs has a number that the table lacks.
    others: OnceLock<HashMap<u64, Trusted>>,
}

impl Devices {
    pub(super) fn of(tree: impl AsFd) -> Self {
        let (fs, own) = (file_system(&tree), fstat(&tree).map(|stat| stat.st_dev));
        let trusted = fs.map_or(Trusted::Nothing, Trusted::of);
        let is_disk = || fs == Some(OVERLAYFS_SUPER_MAGIC) && is_overlay_on_disk(tree.as_fd());
        Self {
            own: own.unwrap_or(0),
            own_trusted: if is_disk() { Trusted::AllTimes } else { trusted },
            is_counting: fs.is_some_and(|fs| COUNTING.contains(&fs)),
            others: OnceLock::new(),
        }
    }

    /// Those of a tree whose file system does not note every change.
    #[cfg(test)]
    pub(super) fn without_times() -> Self {
        Self { own: 0, own_trusted: Trusted::Nothing, is_counting: false, others: HashMap::new().into() }
    }

    fn trusted(&self, device: u64) -> Trusted {
        if device == self.own {
            return self.own_trusted;
        }
        let others = self.others.get_or_init(|| {
            let table = whole(Path::new("/proc/self/mountinfo")).unwrap_or_default();
            rows(&table).filter_map(|row| Some((row.device()?, Trusted::of_name(row.kind)))).collect()
        });
        others.get(&device).copied().unwrap_or(Trusted::Nothing)
    }

    /// Returns whether the time of a file shows each change of it, also one that is made by a memory map.
    pub(super) fn keep_times_of(&self, device: u64) -> bool {
        self.trusted(device) == Trusted::AllTimes
    }

    /// Returns whether the times of an entry are those of this kernel's clock.
    pub(super) fn have_own_clock(&self, device: u64) -> bool {
        self.trusted(device) != Trusted::Nothing
    }

    /// Returns whether a directory without directories has two links.
    pub(super) fn count_links(&self, device: u64) -> bool {
        self.is_counting && device == self.own
    }
}

/// Returns whether an overlay writes to a disk. It notes the times that the file system below it notes, and does not tell which that is. One
/// on a disk can write zeros in place, and a tmpfs cannot (`shmem_fallocate`, mm/shmem.c).
fn is_overlay_on_disk(dir: BorrowedFd<'_>) -> bool {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    let file = openat(dir, ".", flags, Mode::S_IRUSR | Mode::S_IWUSR);
    file.is_ok_and(|file| fallocate(file, FallocateFlags::FALLOC_FL_ZERO_RANGE, 0, 1).is_ok())
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

//! The covers of files: their state, the leases on what replaced them, and what is left of them when the stage has ended.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_files::names::open_regular;
use exeat_sandbox::{FileHandle, KeptStatus, Lease, Mounted};
use nix::sys::inotify::{AddWatchFlags, WatchDescriptor};

use super::saved::{MOST, SavedFile};

/// The number of attempts to get a lease, a millisecond apart: the host program may close the file only after the rename.
const ATTEMPTS: u32 = 20;

/// A name in a watched directory.
pub(super) type Name = (WatchDescriptor, OsString);

/// A file with a cover.
#[derive(Debug)]
pub(super) struct Covered {
    pub(super) host: PathBuf,
    /// The helper's number for the file.
    pub(super) number: usize,
    /// The helper's status when the file was last covered.
    pub(super) status: KeptStatus,
    /// The places of the file in the sandbox.
    pub(super) places: Vec<PathBuf>,
    /// The state of the name since it was covered.
    pub(super) state: State,
    /// Candidates for the file that was renamed over it. The next file under the same name may appear before that rename: candidates stay
    /// until the next rename from that name, and are dropped if another thing happens to them.
    pub(super) moved: Vec<FileHandle>,
    pub(super) moved_from: Option<Name>,
    /// Whether the host removed the file.
    pub(super) was_removed: bool,
    /// Whether the host obeys it only when somebody starts a program there.
    pub(super) is_obeyed_later: bool,
    /// The number of times that it was written again.
    pub(super) put_back: u32,
    pub(super) lease: Option<Lease>,
    /// The saved file, if it is small enough.
    pub(super) saved: Option<SavedFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The cover is in place.
    Covered,
    /// Another file was renamed over it.
    Replaced,
    /// The new file is covered, but has no lease yet.
    New,
    /// A file that others than its maker may have had was renamed over it.
    Unknown,
    /// Another change happened, which a stage may have caused.
    Doubtful,
    /// The host removed the name.
    Removed,
}

/// The reason that a new file is not covered.
#[derive(Debug)]
pub(super) enum Doubt {
    /// The file was replaced again in the meantime.
    Again,
    /// The writer of the file is unknown, for this reason.
    Unknown(&'static str),
    /// Another process may write to the file.
    Open(io::Error),
}

impl From<io::Error> for Doubt {
    fn from(error: io::Error) -> Self {
        Self::Open(error)
    }
}

impl std::fmt::Display for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Again => f.write_str("it was replaced again and again"),
            Self::Unknown(why) => f.write_str(why),
            Self::Open(error) => error.fmt(f),
        }
    }
}

impl Doubt {
    pub(super) fn open(why: &'static str) -> Self {
        Self::Open(io::Error::other(why))
    }
}

/// The covers after the end of the stage. Dropping it releases the leases.
pub(super) struct LastCovers(pub(super) BTreeMap<Name, Covered>);

impl LastCovers {
    /// Returns files that the host removed and that exist again, with whether the host may have obeyed them already.
    pub(super) fn remade(&self) -> Vec<(PathBuf, bool)> {
        let remade = |cover: &&Covered| cover.was_removed && cover.host.symlink_metadata().is_ok();
        self.0.values().filter(remade).map(|cover| (cover.host.clone(), !cover.is_obeyed_later)).collect()
    }

    /// Gives each replaced file with a second name its own copy: a later stage could write to it by that name. Call it when no process of
    /// the stage is left, while nobody else can write to the files.
    pub(super) fn separate(&self) {
        for cover in self.0.values().filter(|cover| cover.status.renames > 0 || cover.state != State::Covered)
        {
            if let Err(why) = separate(&cover.host) {
                tracing::warn!(host = %cover.host.display(), %why, "a file keeps its second name");
            }
        }
    }

    /// Returns replaced files that may be the stage's, with the saved file. `is_lost` returns whether a place was seen without its cover,
    /// which may be before its events are read. Call it when no process of the stage is left.
    pub(super) fn doubtful(&mut self, is_lost: impl Fn(&Path) -> bool) -> Vec<(PathBuf, SavedFile)> {
        // A file at a name that the host removed is moved, and nothing replaces it. A configuration of git is put back: without it a
        // repository has lost its remotes. Only if the host removed it, and nothing has come since, it stays away.
        let is_doubtful = |cover: &&mut Covered| {
            let was_lost = || cover.places.iter().any(|place| is_lost(place));
            let is_there = || cover.host.symlink_metadata().is_ok();
            let is_config = || !cover.is_obeyed_later && cover.host.ends_with("config");
            match cover.was_removed {
                true => is_config() && (was_lost() || is_there()),
                false => cover.state == State::Doubtful || was_lost() && (is_there() || is_config()),
            }
        };
        let doubtful = self.0.values_mut().filter(is_doubtful);
        doubtful
            .filter_map(|cover| {
                let saved = cover.saved.take()?;
                let now = open_regular(&cover.host).and_then(|file| SavedFile::read(&file, MOST));
                // What was removed would be moved otherwise.
                let is_same = !cover.was_removed && now.is_ok_and(|now| now.bytes == saved.bytes);
                (!is_same).then(|| (cover.host.clone(), saved))
            })
            .collect()
    }
}

impl Covered {
    pub(super) fn needs_care(&self) -> bool {
        self.state != State::Covered || self.lease.as_ref().is_some_and(|lease| !lease.is_quiet())
    }

    /// Updates the state for an event; `replaced` is the state after a rename over it.
    pub(super) fn note(&mut self, mask: AddWatchFlags, replaced: State) {
        let is_rename = mask.contains(AddWatchFlags::IN_MOVED_TO);
        let is_write = mask.intersects(AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE);
        if is_write && self.state == State::Covered {
            // The saved content is outdated now.
            self.saved = None;
        }
        self.state = match self.state {
            State::Covered | State::New | State::Replaced if is_rename => replaced,
            State::Unknown if is_rename && replaced != State::Doubtful => State::Unknown,
            // A program on the host writes to the file itself.
            State::Covered if is_write => State::Covered,
            State::Covered if mask.intersects(AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM) => {
                self.was_removed = true;
                State::Removed
            }
            _ => State::Doubtful,
        };
    }

    /// Returns whether the lease is on this file. The lease keeps the inode number in use.
    pub(super) fn has_lease_on(&self, mounted: Mounted) -> bool {
        let about = self.lease.as_ref().and_then(|lease| lease.file().metadata().ok());
        about.is_some_and(|about| mounted == Mounted { dev: about.dev(), ino: about.ino() })
    }

    /// Takes a lease on the mounted file.
    pub(super) fn lease(&self, mounted: Mounted) -> Result<Lease, Doubt> {
        let file = open_regular(&self.host)?;
        let about = file.metadata()?;
        if mounted != (Mounted { dev: about.dev(), ino: about.ino() }) || about.nlink() == 0 {
            return Err(Doubt::Again);
        }
        if !about.is_file() || about.nlink() != 1 {
            return Err(Doubt::open("it is not a file with one name"));
        }
        for _ in 0..ATTEMPTS {
            match file.try_clone().and_then(Lease::new) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => return Ok(other?),
            }
        }
        Err(Doubt::open("somebody has it open for writing"))
    }
}

/// Replaces a file with several names by a copy.
fn separate(path: &Path) -> io::Result<()> {
    /// The maximal bytes of a copied file.
    const MOST: u64 = 16 << 20;
    let file = open_regular(path)?;
    if file.metadata()?.nlink() == 1 {
        return Ok(());
    }
    SavedFile::read(&file, MOST)?.write(path)
}

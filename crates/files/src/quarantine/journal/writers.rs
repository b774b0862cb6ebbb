//! Which files the stages of runs that are not settled may have written: such a file decides about no other run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::super::descriptors::FileId;
use super::super::store::DirectoryId;
use super::super::times::{CLOCKS, Devices};
use super::{Entry, Live};
use crate::names::{Mounts, joined, open_plain, whole};
use crate::walk::LinkRule;

/// The longest time that a file system's time is behind this process's clock: a tick of the kernel's clock.
const TICK: Duration = Duration::from_millis(20);
/// The longest such time in file systems that keep whole seconds.
const SECOND: Duration = Duration::from_secs(1);

/// A tree as it was when such a run started.
#[derive(Debug)]
pub(super) struct TreeAtStart {
    path: PathBuf,
    id: DirectoryId,
    /// The start of the run, or of an earlier run beside it.
    since: SystemTime,
    /// The directories that were known in it.
    dirs: BTreeMap<String, FileId>,
    /// Names that are read-only for the stage.
    read_only: BTreeSet<String>,
}

impl TreeAtStart {
    pub(super) fn new(entry: &Entry) -> Self {
        let Entry { list, id, modes, since, .. } = entry;
        let (path, read_only) = (list.tree.clone(), list.read_only.clone());
        Self { path, id: *id, since: *since, dirs: modes.ids().clone(), read_only }
    }

    /// Whether a file, or a directory between it and the tree, came or changed since the start. `at`: where the tree is found now.
    fn has_changed(&self, at: &Path, below: &Path) -> bool {
        let has_changed = |about: &Metadata| self.has_changed_since(at, about);
        let about = |below: &Path| fs::symlink_metadata(joined(at, below)).ok();
        let is_other = |dir: &Path| {
            let Some(about) = about(dir) else { return true };
            let was = dir.to_str().and_then(|dir| self.dirs.get(dir));
            // What has been made in a directory does not count, but a directory that was renamed does.
            was.map_or_else(|| has_changed(&about), |was| *was != (about.dev(), about.ino()))
        };
        // The host alone can replace such a file, and the run looks at what it has put there.
        let is_covered = || below.to_str().is_some_and(|below| self.read_only.contains(below));
        below.ancestors().skip(1).filter(|dir| *dir != Path::new("")).any(is_other)
            || !is_covered() && about(below).is_none_or(|about| has_changed(&about))
    }

    fn has_changed_since(&self, at: &Path, about: &Metadata) -> bool {
        let parts = (u64::try_from(about.ctime()), u32::try_from(about.ctime_nsec()));
        let (Ok(seconds), Ok(rest)) = parts else { return true };
        let Ok(devices) = open_plain(at).map(Devices::of) else { return true };
        let behind = match rest {
            _ if !devices.have_own_clock(about.dev()) => CLOCKS,
            0 => SECOND,
            _ => TICK,
        };
        // The clock was set back since, and what has changed may seem older.
        let is_set_back = SystemTime::now() < self.since;
        is_set_back
            || about.is_file() && !devices.keep_times_of(about.dev())
            || UNIX_EPOCH + Duration::new(seconds, rest) + behind >= self.since
    }
}

impl Live {
    /// Returns the tree of such a run whose stage may have written a file, or had its path lead to it: the file, a link on its path, or a
    /// directory between one of them and the tree, came or changed since the run started. The same directory counts by whatever path and
    /// mount. A file whose file system does not note every change counts as changed.
    #[must_use]
    pub fn tree_of_writer(&self, path: &Path) -> Option<&Path> {
        if self.at_start.is_empty() {
            return None;
        }
        let mut paths: BTreeSet<PathBuf> = match LinkRule::from_env().walk(path) {
            Ok(end) => end.links.into_iter().chain([end.real]).collect(),
            // It is gone, or a link on its path is followed no more.
            Err(_) => {
                let above = path.parent().and_then(|above| above.canonicalize().ok());
                let named = above.and_then(|above| Some(above.join(path.file_name()?)));
                [named, path.canonicalize().ok()].into_iter().flatten().collect()
            }
        };
        let mounts = Mounts::new(&whole(Path::new("/proc/self/mountinfo")).unwrap_or_default());
        let aliases: Vec<_> = paths.iter().flat_map(|path| mounts.aliases(path)).collect();
        paths.extend(aliases);
        paths.iter().find_map(|path| self.writer_at(path))
    }

    fn writer_at(&self, path: &Path) -> Option<&Path> {
        path.ancestors().find_map(|at| {
            let id = DirectoryId::read(open_plain(at).ok()?.as_fd()).ok()?;
            let below = path.strip_prefix(at).ok()?;
            let may_be_of = |tree: &&TreeAtStart| {
                self.has_made(&joined(&tree.path, below)) || tree.has_changed(at, below)
            };
            let tree = self.at_start.iter().filter(|tree| tree.id == id).find(may_be_of)?;
            Some(tree.path.as_path())
        })
    }
}

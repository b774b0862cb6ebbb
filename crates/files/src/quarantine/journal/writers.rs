//! Which files the stages of runs that are not settled may have made: such a file decides about no other run.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use super::super::store::DirectoryId;
use super::{Entry, Live};
use crate::names::{Mounts, joined, open_plain, whole};

/// A tree as it was when such a run started.
#[derive(Debug)]
pub(super) struct TreeAtStart {
    path: PathBuf,
    id: DirectoryId,
}

impl TreeAtStart {
    pub(super) fn new(entry: &Entry) -> Self {
        Self { path: entry.missing.tree.clone(), id: entry.id }
    }
}

impl Live {
    /// Returns the tree of such a run whose stage may have made a file. The same directory counts by whatever path and mount.
    #[must_use]
    pub fn tree_of_writer(&self, path: &Path) -> Option<&Path> {
        if self.at_start.is_empty() {
            return None;
        }
        // The name may be a link of the stage's.
        let above = path.parent().and_then(|above| above.canonicalize().ok());
        let named = above.and_then(|above| Some(above.join(path.file_name()?)));
        let real = path.canonicalize().ok();
        let mut paths: BTreeSet<PathBuf> = [named, real].into_iter().flatten().collect();
        let mounts = Mounts::new(&whole(Path::new("/proc/self/mountinfo")).unwrap_or_default());
        let aliases: Vec<_> = paths.iter().flat_map(|path| mounts.aliases(path)).collect();
        paths.extend(aliases);
        paths.iter().find_map(|path| self.writer_at(path))
    }

    fn writer_at(&self, path: &Path) -> Option<&Path> {
        path.ancestors().find_map(|at| {
            let id = DirectoryId::read(open_plain(at).ok()?.as_fd()).ok()?;
            let below = path.strip_prefix(at).ok()?;
            let may_be_of = |tree: &&TreeAtStart| self.has_made(&joined(&tree.path, below));
            let tree = self.at_start.iter().filter(|tree| tree.id == id).find(may_be_of)?;
            Some(tree.path.as_path())
        })
    }
}

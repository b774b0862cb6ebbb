//! The submodules that the indexes of a run's repositories name.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::modules::{GitDir, gitdir_of};
use crate::protected::GIT_LINK;
use crate::walk::clean;

/// A directory of packages, with many others in it.
pub(super) const PACKAGES: &str = "node_modules";

/// The submodules that indexes name, by their paths in the working trees.
#[derive(Debug, Default)]
pub(super) struct Submodules {
    paths: BTreeSet<PathBuf>,
    /// Directories of sparse indexes: what is in them may be submodules.
    directories: BTreeSet<PathBuf>,
}

impl Submodules {
    /// Adds what an index names. A path that is empty is in another index, and may be any.
    pub(super) fn add(&mut self, path: PathBuf, is_directory: bool) {
        if is_directory { &mut self.directories } else { &mut self.paths }.insert(path);
    }

    /// Returns the names of `.git` that they have in a working tree.
    pub(super) fn paths_in(&self, work: &Path) -> impl Iterator<Item = PathBuf> {
        self.paths.iter().map(|path| work.join(path).join(GIT_LINK))
    }

    pub(super) fn count(&self) -> usize {
        self.paths.len() + self.directories.len()
    }

    /// Returns whether a directory of the host may be one. Which working tree an index belongs to is not always known.
    pub(super) fn may_have(&self, dir: &Path) -> bool {
        self.paths.iter().any(|path| dir.ends_with(path))
            || self.directories.iter().any(|path| dir.ancestors().any(|above| above.ends_with(path)))
    }

    pub(super) fn are_in_packages(&self) -> bool {
        let mut all = self.paths.iter().chain(&self.directories);
        all.any(|path| path.as_os_str().is_empty() || path.iter().any(|part| part == PACKAGES))
    }
}

/// The directories that were searched, by their paths on the host.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// The directories of repositories, submodules and worktrees.
    pub(super) dirs: BTreeSet<PathBuf>,
    /// The working trees of those whose place is known.
    pub(super) work: BTreeSet<PathBuf>,
}

impl Judged {
    /// Adds a directory of a tree, which has this path.
    pub(super) fn add(&mut self, tree: &File, place: &Path, git: &GitDir) {
        let dir = place.join(&git.path);
        let file = if git.path.ends_with(GIT_LINK) {
            Some(dir.clone())
        } else {
            gitdir_of(tree, &git.path).map(|to| clean(&dir.join(to)))
        };
        self.work.extend(file.as_deref().and_then(Path::parent).map(Path::to_path_buf));
        self.dirs.insert(dir);
    }
}

//! The submodules that the indexes of a run's repositories name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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

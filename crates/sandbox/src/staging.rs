//! Mounts trees for bubblewrap before it starts, by their descriptors and in its own mount namespace: trees that it cannot reach by
//! name, or that it must see with other owners.

use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use crate::sys::{HostTree, Places};

/// A directory that holds trees for bubblewrap alone.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    trees: Vec<(String, HostTree)>,
}

impl Staging {
    /// Stages trees in `dir`, a host directory whose parents everybody may enter. bubblewrap does not see the directory's own
    /// contents.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), trees: Vec::new() }
    }

    /// Adds a tree under a name without slashes.
    pub fn add(&mut self, name: impl Into<String>, tree: HostTree) {
        self.trees.push((name.into(), tree));
    }

    /// Returns the descriptor of the tree at a path.
    pub(crate) fn tree_at(&self, path: &Path) -> Option<RawFd> {
        let name = path.strip_prefix(&self.dir).ok()?;
        self.trees.iter().find(|(tree, _)| Path::new(tree) == name).map(|(_, tree)| tree.descriptor())
    }

    /// Returns the descriptors of the trees.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.trees.iter().map(|(_, tree)| tree.descriptor())
    }

    pub(crate) fn places(&self) -> io::Result<Places> {
        Places::new(&self.dir, self.trees.iter().map(|(name, tree)| (name.as_str(), tree)))
    }
}

//! Mounts trees for bubblewrap before it starts, by their descriptors and in its own mount namespace: trees that it cannot reach by
//! name, or that it must see with other owners.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use exeat_contract::Staged;

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

    /// Describes the trees for a sandbox that exeat builds itself.
    pub(crate) fn contents(&self) -> Staged {
        let trees = self.trees.iter().map(|(name, tree)| (name.clone().into_bytes(), tree.descriptor()));
        Staged { dir: self.dir.as_os_str().as_bytes().to_vec(), trees: trees.collect() }
    }

    pub(crate) fn places(&self) -> io::Result<Places> {
        Places::new(&self.dir, self.trees.iter().map(|(name, tree)| (name.as_str(), tree)))
    }
}

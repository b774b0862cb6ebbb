//! Holds trees that the stage's user cannot reach by name, or must see with other owners. stage2 attaches them by their descriptors,
//! where this sandbox alone sees them.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use exeat_contract::Staged;

use crate::sys::HostTree;

/// A directory that holds trees for one sandbox alone.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    trees: Vec<(String, HostTree)>,
}

impl Staging {
    /// Stages trees in `dir`, a host directory whose parents everybody may enter. The sandbox does not see the directory's own
    /// contents.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), trees: Vec::new() }
    }

    /// Adds a tree under a name without slashes.
    pub fn add(&mut self, name: impl Into<String>, tree: HostTree) {
        self.trees.push((name.into(), tree));
    }

    /// Describes the trees for stage2.
    pub(crate) fn contents(&self) -> Staged {
        let trees = self.trees.iter().map(|(name, tree)| (name.clone().into_bytes(), tree.descriptor()));
        Staged { dir: self.dir.as_os_str().as_bytes().to_vec(), trees: trees.collect() }
    }
}

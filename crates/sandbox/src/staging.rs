//! Trees that bubblewrap cannot reach by their names, or has to see with other owners: mounted for it by their descriptors, in a
//! mount namespace that is its own, before it starts.

use std::io;
use std::path::{Path, PathBuf};

use crate::sys::{Places, Tree};

/// A directory that holds trees, for bubblewrap alone.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    trees: Vec<(String, Tree)>,
}

impl Staging {
    /// In `dir`, a directory of the host whose parents everybody may enter. What it holds is not there for bubblewrap.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), trees: Vec::new() }
    }

    /// Adds a tree, at a name without slashes.
    pub fn add(&mut self, name: impl Into<String>, tree: Tree) {
        self.trees.push((name.into(), tree));
    }

    pub(crate) fn places(&self) -> io::Result<Places> {
        Places::new(&self.dir, self.trees.iter().map(|(name, tree)| (name.as_str(), tree)))
    }
}

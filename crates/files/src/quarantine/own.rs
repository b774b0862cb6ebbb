//! The directories that exeat keeps for stages and for itself. Stages write to some of them, and no run judges the repositories there.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::descriptors::FileId;
use crate::lists;
use crate::users::home_of;

/// The directories below the user's home that exeat writes to, and those above them. The same directory can have several paths, by
/// mounts.
#[derive(Debug)]
pub(super) struct OwnDirectories {
    own: HashSet<FileId>,
    above: HashSet<FileId>,
}

impl OwnDirectories {
    /// Finds those that are there.
    pub(super) fn find() -> Self {
        let home = home_of(env::var_os("HOME").as_deref());
        let named = ["XDG_CACHE_HOME", "XDG_STATE_HOME"].into_iter().filter_map(env::var_os);
        let named = named.map(|dir| Path::new(&dir).join("exeat")).filter(|dir| dir.is_absolute());
        let all: Vec<PathBuf> = lists::OWN.iter().map(|dir| home.join(dir)).chain(named).collect();
        let above = all.iter().flat_map(|dir| dir.ancestors().skip(1));
        Self {
            own: all.iter().filter_map(|dir| id_at(dir)).collect(),
            above: above.filter_map(id_at).collect(),
        }
    }

    /// Returns whether a path is one of them, or in one.
    pub(super) fn contain(&self, path: &Path) -> bool {
        path.ancestors().filter_map(id_at).any(|id| self.own.contains(&id))
    }

    /// Returns whether one of them is below a directory.
    pub(super) fn are_below(&self, dir: &Path) -> bool {
        id_at(dir).is_some_and(|id| self.above.contains(&id))
    }
}

fn id_at(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

//! The directories that exeat keeps for stages and for itself. Stages write to some of them, and no run judges the repositories there.

use std::collections::HashSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use super::descriptors::FileId;
use crate::lists;
use crate::users::home_of;

/// The name of the directory in `TMPDIR` for temporary files of a user's stages, before the user's number.
pub const TEMPORARY: &str = "exeat-";
/// The beginning of the name of a directory of one run.
pub const OF_RUN: &str = "run-";

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
        let temporary =
            env::var_os("TMPDIR").map(|dir| Path::new(&dir).join(format!("{TEMPORARY}{}", geteuid())));
        let named = named.chain(temporary.filter(|dir| dir.is_absolute()));
        let all: Vec<PathBuf> = lists::OWN.iter().map(|dir| home.join(dir)).chain(named).collect();
        let above = all.iter().flat_map(|dir| dir.ancestors().skip(1));
        Self {
            own: all.iter().filter_map(|dir| id_at(dir)).collect(),
            above: above.filter_map(id_at).collect(),
        }
    }

    /// Returns whether a path is one of them, or in one. Another run may have had another directory for temporary files.
    pub(super) fn contain(&self, path: &Path) -> bool {
        let names = || path.iter().map(OsStr::as_encoded_bytes);
        let user = |name: &[u8]| name.strip_prefix(TEMPORARY.as_bytes()).is_some_and(is_number);
        let is_temporary = |(name, run): (&[u8], &[u8])| user(name) && run.starts_with(OF_RUN.as_bytes());
        names().zip(names().skip(1)).any(is_temporary)
            || path.ancestors().filter_map(id_at).any(|id| self.own.contains(&id))
    }

    /// Returns whether one of them is below a directory.
    pub(super) fn are_below(&self, dir: &Path) -> bool {
        id_at(dir).is_some_and(|id| self.above.contains(&id))
    }
}

fn is_number(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(u8::is_ascii_digit)
}

fn id_at(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

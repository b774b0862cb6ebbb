//! Names of `.git`: a directory, a file that leads to one, or nothing.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;

use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstatat};
use serde::{Deserialize, Serialize};

use super::descriptors::{FileId, id_of, kind, open_at, open_beneath, retry_opened};
use super::modes::dir_of;
use super::store::DirectoryId;

/// The kind of a `.git`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Pointer {
    WatchList,
    File(FileId),
    Directory(DirectoryId),
}

impl Pointer {
    /// Looks at a name of a tree. What cannot be read is missing.
    pub(super) fn read(tree: &File, name: &str) -> Self {
        Self::find(tree, name).unwrap_or(Self::WatchList)
    }

    fn find(tree: &File, name: &str) -> Option<Self> {
        let dir = open_beneath(tree, Path::new(dir_of(name))).ok()?;
        let last = Path::new(name).file_name()?;
        let stat = retry_opened(dir.as_fd(), || fstatat(&dir, last, AtFlags::AT_SYMLINK_NOFOLLOW)).ok()?;
        match kind(&stat) {
            SFlag::S_IFREG => Some(Self::File(id_of(&stat))),
            SFlag::S_IFDIR => {
                let dir = retry_opened(dir.as_fd(), || open_at(dir.as_fd(), Path::new(last))).ok()?;
                DirectoryId::read(dir.as_fd()).ok().map(Self::Directory)
            }
            _ => None,
        }
    }

    /// Whether it was this regular file.
    pub(super) fn is_file(self, stat: &FileStat) -> bool {
        kind(stat) == SFlag::S_IFREG && self == Self::File(id_of(stat))
    }
}

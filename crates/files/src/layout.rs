//! The layout of a view: the parts of a stage's file tree, in the order in which they are mounted.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// A part of the file tree. Paths named `at` are in the sandbox, paths named `host` on the host; all are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mount {
    /// A file or directory of the host, read-only.
    ReadOnly {
        /// The source.
        host: PathBuf,
        /// The place.
        at: PathBuf,
    },
    /// A file or directory of the host, writable.
    Writable {
        /// The source.
        host: PathBuf,
        /// The place.
        at: PathBuf,
    },
    /// An empty directory in memory.
    Tmpfs {
        /// The place.
        at: PathBuf,
        /// Bytes that it may hold.
        size: u64,
        /// Permission bits of its root.
        mode: u32,
    },
    /// An empty directory in the file system around it.
    Dir {
        /// The place.
        at: PathBuf,
    },
    /// A symbolic link.
    Symlink {
        /// Target of the link.
        target: PathBuf,
        /// The place.
        at: PathBuf,
    },
    /// A file of ours, copied into the file system at that path.
    File {
        /// The place.
        at: PathBuf,
        /// Contents of the file.
        bytes: Cow<'static, [u8]>,
        /// Permission bits.
        mode: u32,
    },
    /// A read-only file of ours, mounted over whatever is at that path.
    CoverFile {
        /// The place.
        at: PathBuf,
        /// Contents of the file.
        bytes: Cow<'static, [u8]>,
    },
    /// The process file system of the sandbox's own pid namespace, with `/proc/sys` read-only.
    Proc,
    /// A minimal `/dev`, read-only but for `/dev/shm`, which holds this many bytes.
    Dev {
        /// Bytes of `/dev/shm`.
        shm: u64,
    },
}

impl Mount {
    /// Returns the place.
    #[must_use]
    pub fn at(&self) -> &Path {
        match self {
            Self::ReadOnly { at, .. }
            | Self::Writable { at, .. }
            | Self::Tmpfs { at, .. }
            | Self::Dir { at }
            | Self::Symlink { at, .. }
            | Self::File { at, .. }
            | Self::CoverFile { at, .. } => at,
            Self::Proc => Path::new("/proc"),
            Self::Dev { .. } => Path::new("/dev"),
        }
    }
}

/// Bytes of a directory that replaces something hidden.
pub const MASK_SIZE: u64 = 4096;

/// The file that is mounted over a hidden file.
pub const MASK: &str = "/dev/null";

/// Returns whether a mount of this file only hides a file.
#[must_use]
pub fn is_mask(host: &Path) -> bool {
    host == Path::new(MASK)
}

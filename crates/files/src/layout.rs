//! The layout of a view: the parts of a stage's file tree, in the order in which they are mounted.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

mod mount_list;

pub use mount_list::{MountList, visible};

/// The reason for a mount of the host's files, or for one that hides them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Part of the view: the system's programs, or all of the host.
    View,
    /// Named by PATH or by a variable.
    Tools,
    /// Certificates for the granted hosts.
    Certificates,
    /// The working directory.
    WorkingDirectory,
    /// The repository that the working directory belongs to.
    Repository,
    /// Named by a flag, a policy file or the library.
    Requested,
    /// The private package cache.
    Cache,
    /// The stage's `/tmp`, in the caller's TMPDIR.
    Temporary,
    /// Obeyed by programs on the host.
    Protected,
    /// Decided about this run.
    Deciding,
    /// Protected, and let through by `--allow-write`.
    LetThrough,
    /// A directory above a protected or hidden entry: the stage could rename it otherwise.
    Pinned,
    /// Credentials.
    Credentials,
    /// Kept by exeat for itself.
    Own,
    /// Hidden by `--mask`.
    Masked,
    /// Hidden or left out by a ceiling or a declaration.
    Ceiling,
    /// Files of processes on the host.
    Processes,
    /// A Unix socket on which a program of the host listens.
    Socket,
    /// Closed to the stage's user, with a shown entry in it.
    Closed,
}

impl Why {
    /// Every reason.
    pub const ALL: [Self; 19] = [
        Self::View,
        Self::Tools,
        Self::Certificates,
        Self::WorkingDirectory,
        Self::Repository,
        Self::Requested,
        Self::Cache,
        Self::Temporary,
        Self::Protected,
        Self::Deciding,
        Self::LetThrough,
        Self::Pinned,
        Self::Credentials,
        Self::Own,
        Self::Masked,
        Self::Ceiling,
        Self::Processes,
        Self::Socket,
        Self::Closed,
    ];

    /// Returns the name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Tools => "tools",
            Self::Certificates => "certificates",
            Self::WorkingDirectory => "working_directory",
            Self::Repository => "repository",
            Self::Requested => "requested",
            Self::Cache => "cache",
            Self::Temporary => "temporary",
            Self::Protected => "protected",
            Self::Deciding => "deciding",
            Self::LetThrough => "let_through",
            Self::Pinned => "pinned",
            Self::Credentials => "credentials",
            Self::Own => "own",
            Self::Masked => "masked",
            Self::Ceiling => "ceiling",
            Self::Processes => "processes",
            Self::Socket => "socket",
            Self::Closed => "closed",
        }
    }

    /// Returns the reason in words.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::View => "part of the view",
            Self::Tools => "PATH or a variable names it",
            Self::Certificates => "certificates for the granted hosts",
            Self::WorkingDirectory => "the working directory",
            Self::Repository => "the repository of the working directory",
            Self::Requested => "a flag or a policy file names it",
            Self::Cache => "the private package cache",
            Self::Temporary => "the stage's temporary files",
            Self::Protected => "programs on the host obey it",
            Self::Deciding => "it decides about this run",
            Self::LetThrough => "--allow-write lets it through",
            Self::Pinned => "the directory of a protected or hidden entry",
            Self::Credentials => "credentials",
            Self::Own => "exeat keeps it for itself",
            Self::Masked => "--mask hides it",
            Self::Ceiling => "a ceiling or a declaration excludes it",
            Self::Processes => "files of the host's processes",
            Self::Socket => "a program on the host listens there",
            Self::Closed => "the stage's user may not enter it",
        }
    }
}

/// The entry that is mounted over a hidden one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyEntry {
    /// A file without contents, [`EMPTY_FILE`].
    File,
    /// A directory without entries, of [`EMPTY_DIR_SIZE`] bytes.
    Dir {
        /// Permission bits. With 0 nothing below it is shown.
        mode: u32,
    },
}

/// A part of the file tree. Paths named `at` are in the sandbox, paths named `host` on the host; all are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mount {
    /// A file or directory of the host, read-only.
    ReadOnly {
        /// The source.
        host: PathBuf,
        /// The place.
        at: PathBuf,
        /// The reason.
        why: Why,
    },
    /// A file or directory of the host, writable.
    Writable {
        /// The source.
        host: PathBuf,
        /// The place.
        at: PathBuf,
        /// The reason.
        why: Why,
    },
    /// An empty entry over one that the stage does not see.
    Hidden {
        /// The place.
        at: PathBuf,
        /// The mounted entry.
        entry: EmptyEntry,
        /// The reason.
        why: Why,
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

/// The access of a stage to an entry of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryAccess {
    /// The stage reads it.
    Read,
    /// The stage reads and writes it, as far as its permissions let the stage's user.
    Write,
    /// The stage sees an empty entry instead.
    Hidden,
}

impl EntryAccess {
    /// Returns the word for a listing and for JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Hidden => "hidden",
        }
    }
}

impl Mount {
    /// Returns what the stage can do with the host's entry there, where that entry is on the host, and the reason. `None` for a part
    /// that is not the host's. A hidden entry has no path on the host, because it can be in more than one tree.
    #[must_use]
    pub fn access(&self) -> Option<(EntryAccess, Option<&Path>, Why)> {
        match self {
            Self::ReadOnly { host, why, .. } => Some((EntryAccess::Read, Some(host), *why)),
            Self::Writable { host, why, .. } => Some((EntryAccess::Write, Some(host), *why)),
            Self::Hidden { why, .. } => Some((EntryAccess::Hidden, None, *why)),
            _ => None,
        }
    }

    /// Returns the place.
    #[must_use]
    pub fn at(&self) -> &Path {
        match self {
            Self::ReadOnly { at, .. }
            | Self::Writable { at, .. }
            | Self::Hidden { at, .. }
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

/// Bytes of a directory that is mounted over a hidden one.
pub const EMPTY_DIR_SIZE: u64 = 4096;

/// The file that is mounted over a hidden file.
pub const EMPTY_FILE: &str = "/dev/null";

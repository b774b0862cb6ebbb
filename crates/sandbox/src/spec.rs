//! Describes a sandbox as data: nothing here opens a file or starts a process.

use std::path::PathBuf;

use exeat_contract::BridgeKind;

/// Description of a sandbox. Paths named `at` are in the sandbox, paths named `host` on the host; all are absolute.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The file tree, in the order of its mounts: a later mount covers an earlier one.
    pub mounts: Vec<Mount>,
    /// The way in which TCP in the namespace reaches the host side.
    pub bridge: BridgeKind,
    /// Whether to offer SOCKS5 too, on a separate port.
    pub socks5: bool,
    /// The stage's user on the host.
    pub identity: Identity,
    /// Whether the stage may trace its own processes (ptrace(2)).
    pub debuggable: bool,
}

/// A piece of the file tree.
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
        /// Bytes that it may hold. bubblewrap's default is half the memory.
        size: u64,
        /// Permission bits of its root.
        mode: u32,
    },
    /// An empty directory in the file system around it.
    Dir {
        /// The place.
        at: PathBuf,
    },
    /// An empty directory in the file system around it, which is a mount point: the stage cannot rename it. bubblewrap alone makes it a
    /// small file system in memory, and in the private cache a plain directory.
    Pin {
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
        bytes: Bytes,
        /// Permission bits.
        mode: u32,
    },
    /// A read-only file of ours, mounted over whatever is at that path.
    CoverFile {
        /// The place.
        at: PathBuf,
        /// Contents of the file.
        bytes: Bytes,
    },
    /// The process file system of the sandbox's own pid namespace, with `/proc/sys` read-only.
    Proc,
    /// A minimal `/dev`, read-only but for `/dev/shm`, which holds this many bytes.
    Dev {
        /// Bytes of `/dev/shm`.
        shm: u64,
    },
    /// Makes this mount read-only from here on, but not the mounts below it.
    Freeze {
        /// The mount point.
        at: PathBuf,
    },
}

/// Contents that bubblewrap reads from a descriptor.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub std::borrow::Cow<'static, [u8]>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The stage's user on the host. In its user namespace it is always uid 65534.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The user that calls exeat.
    Caller,
    /// Another user, which only root may ask for. Supplementary groups are dropped.
    Other {
        /// Kernel uid.
        uid: u32,
        /// Kernel gid.
        gid: u32,
    },
}

impl Identity {
    /// Returns the kernel uid and gid of another user.
    pub(crate) fn other(self) -> Option<(u32, u32)> {
        match self {
            Self::Other { uid, gid } => Some((uid, gid)),
            Self::Caller => None,
        }
    }
}

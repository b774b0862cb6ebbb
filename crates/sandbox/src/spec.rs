//! What a sandbox is made of, as data: no file is opened and no process started here.

use std::path::PathBuf;

use exeat_contract::BridgeKind;

/// A sandbox, before it exists. Paths named `at` are in the sandbox, paths named `host` on the host; all are absolute.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The file tree, in the order in which it is built: a later mount covers an earlier one.
    pub mounts: Vec<Mount>,
    /// How TCP in the namespace reaches the host side.
    pub bridge: BridgeKind,
    /// Offer SOCKS5 as well, on a port of its own.
    pub socks5: bool,
    /// Who the stage is to the kernel.
    pub identity: Identity,
    /// The stage may trace processes of its own (ptrace(2)).
    pub debuggable: bool,
}

/// One piece of the file tree.
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
        /// Bytes that it may hold: bubblewrap's own default is half the memory.
        size: u64,
        /// Permission bits of its root.
        mode: u32,
    },
    /// An empty directory of whatever it is created in.
    Dir {
        /// The place.
        at: PathBuf,
    },
    /// A symbolic link.
    Symlink {
        /// What it says.
        target: PathBuf,
        /// The place.
        at: PathBuf,
    },
    /// A file of ours, copied into the file system that is mounted there.
    File {
        /// The place.
        at: PathBuf,
        /// What it holds.
        bytes: Bytes,
        /// Permission bits.
        mode: u32,
    },
    /// A read-only file of ours, mounted over whatever is there.
    CoverFile {
        /// The place.
        at: PathBuf,
        /// What it holds.
        bytes: Bytes,
    },
    /// The process file system of the sandbox's own pid namespace, with `/proc/sys` read-only.
    Proc,
    /// A minimal `/dev`, read-only but for `/dev/shm`, which holds this many bytes.
    Dev {
        /// Bytes of `/dev/shm`.
        shm: u64,
    },
    /// From here on this mount is read-only (the mount itself, not what is mounted below it).
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

/// Who the stage is to the kernel. Inside its user namespace it is always uid 65534.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The caller.
    Caller,
    /// Another user: only root may ask for it. Supplementary groups are dropped.
    Other {
        /// Kernel uid.
        uid: u32,
        /// Kernel gid.
        gid: u32,
    },
}

impl Identity {
    /// The kernel uid and gid of another user.
    pub(crate) fn other(self) -> Option<(u32, u32)> {
        match self {
            Self::Other { uid, gid } => Some((uid, gid)),
            Self::Caller => None,
        }
    }
}

//! The description of a sandbox that stage2 builds itself, as pid 1 of its namespaces: the native back end.

use alloc::vec::Vec;

use crate::BridgeKind;
use crate::wire::{put, put_each, put_list, take_array, take_bytes, take_each, take_flag, take_list};

/// The sandbox to build. The host sends it after it has written the maps of users and groups (user_namespaces(7)).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Construction {
    /// Trees to attach to the host's file tree first, as this sandbox sees it: sources are found in them.
    pub staged: Staged,
    /// The file tree, in the order of its mounts.
    pub mounts: Vec<MountStep>,
    /// Classic BPF programs for every process of the sandbox, in the order in which they are installed.
    pub filters: Vec<Vec<u8>>,
    /// Whether to switch to the stage's user. Otherwise the process has that user already.
    pub becomes_user: bool,
    /// The number of the descriptor of a socket. The sandbox ends at its end of file: the host side is gone, or asks for the end.
    pub lifeline: i32,
    /// The number of a descriptor to keep open until the sandbox has no process left.
    pub held: Option<i32>,
    /// The bridge to make.
    pub bridge: BridgeKind,
    /// Whether to offer SOCKS5 too.
    pub socks5: bool,
}

/// Detached mounts (open_tree(2)) for one directory of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Staged {
    /// The directory, which a file system in memory covers.
    pub dir: Vec<u8>,
    /// The name in the directory and the number of the descriptor of each.
    pub trees: Vec<(Vec<u8>, i32)>,
}

/// A step in which the file tree is made. Paths named `at` are inside, without links; all are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountStep {
    /// A file or directory of the host.
    Bind {
        /// The path on the host.
        source: Vec<u8>,
        /// The place.
        at: Vec<u8>,
        /// Whether the stage may write there.
        is_writable: bool,
    },
    /// An empty directory in memory.
    Tmpfs {
        /// The place.
        at: Vec<u8>,
        /// Bytes that it may hold.
        size: u64,
        /// Permission bits of its root.
        mode: u32,
    },
    /// An empty directory in the file system around it.
    Dir {
        /// The place.
        at: Vec<u8>,
    },
    /// A directory in the file system around it, mounted over itself: nobody can rename a mount point.
    Pin {
        /// The place.
        at: Vec<u8>,
    },
    /// A symbolic link.
    Symlink {
        /// Target of the link.
        target: Vec<u8>,
        /// The place.
        at: Vec<u8>,
    },
    /// A new file in the file system at that path.
    File {
        /// The place.
        at: Vec<u8>,
        /// Contents of the file.
        bytes: Vec<u8>,
        /// Permission bits.
        mode: u32,
    },
    /// A read-only file mounted over whatever is at that path.
    CoverFile {
        /// The place.
        at: Vec<u8>,
        /// Contents of the file.
        bytes: Vec<u8>,
    },
    /// The process file system, with the settings of the kernel in it read-only.
    Proc,
    /// A minimal `/dev`.
    Dev {
        /// Bytes of `/dev/shm`.
        shm: u64,
    },
    /// Makes this mount read-only, but not the mounts below it.
    Freeze {
        /// The mount point.
        at: Vec<u8>,
    },
}

impl Construction {
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        out.push(u8::from(self.becomes_user));
        out.extend(self.lifeline.to_le_bytes());
        out.extend(self.held.unwrap_or(-1).to_le_bytes());
        put(out, self.bridge.argument(self.socks5).as_bytes())?;
        put_list(out, &self.filters)?;
        self.staged.put(out)?;
        put_each(out, &self.mounts, MountStep::put)
    }

    pub(crate) fn take(rest: &mut &[u8]) -> Option<Self> {
        let becomes_user = take_flag(rest)?;
        let lifeline = i32::from_le_bytes(take_array(rest)?);
        let held = i32::from_le_bytes(take_array(rest)?);
        let held = (held >= 0).then_some(held);
        let (bridge, socks5) = BridgeKind::from_argument(&take_bytes(rest)?)?;
        let filters = take_list(rest)?;
        let staged = Staged::take(rest)?;
        let mounts = take_each(rest, MountStep::take)?;
        Some(Self { staged, mounts, filters, becomes_user, lifeline, held, bridge, socks5 })
    }
}

impl Staged {
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        put(out, &self.dir)?;
        put_each(out, &self.trees, |(name, number), out| {
            put(out, name)?;
            out.extend(number.to_le_bytes());
            Some(())
        })
    }

    pub(crate) fn take(rest: &mut &[u8]) -> Option<Self> {
        let dir = take_bytes(rest)?;
        let tree = |rest: &mut &[u8]| Some((take_bytes(rest)?, i32::from_le_bytes(take_array(rest)?)));
        Some(Self { dir, trees: take_each(rest, tree)? })
    }
}

const BIND: u8 = 1;
const TMPFS: u8 = 2;
const DIR: u8 = 3;
const SYMLINK: u8 = 4;
const FILE: u8 = 5;
const COVER_FILE: u8 = 6;
const PROC: u8 = 7;
const DEV: u8 = 8;
const FREEZE: u8 = 9;
const PIN: u8 = 10;

impl MountStep {
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Bind { source, at, is_writable } => {
                out.push(BIND);
                out.push(u8::from(*is_writable));
                put(out, source)?;
                put(out, at)
            }
            Self::Tmpfs { at, size, mode } => {
                out.push(TMPFS);
                out.extend(size.to_le_bytes());
                out.extend(mode.to_le_bytes());
                put(out, at)
            }
            Self::Dir { at } => {
                out.push(DIR);
                put(out, at)
            }
            Self::Symlink { target, at } => {
                out.push(SYMLINK);
                put(out, target)?;
                put(out, at)
            }
            Self::File { at, bytes, mode } => {
                out.push(FILE);
                out.extend(mode.to_le_bytes());
                put(out, bytes)?;
                put(out, at)
            }
            Self::CoverFile { at, bytes } => {
                out.push(COVER_FILE);
                put(out, bytes)?;
                put(out, at)
            }
            Self::Proc => {
                out.push(PROC);
                Some(())
            }
            Self::Dev { shm } => {
                out.push(DEV);
                out.extend(shm.to_le_bytes());
                Some(())
            }
            Self::Pin { at } => {
                out.push(PIN);
                put(out, at)
            }
            Self::Freeze { at } => {
                out.push(FREEZE);
                put(out, at)
            }
        }
    }

    pub(crate) fn take(rest: &mut &[u8]) -> Option<Self> {
        let [tag] = take_array(rest)?;
        Some(match tag {
            BIND => {
                Self::Bind { is_writable: take_flag(rest)?, source: take_bytes(rest)?, at: take_bytes(rest)? }
            }
            TMPFS => Self::Tmpfs {
                size: u64::from_le_bytes(take_array(rest)?),
                mode: u32::from_le_bytes(take_array(rest)?),
                at: take_bytes(rest)?,
            },
            DIR => Self::Dir { at: take_bytes(rest)? },
            SYMLINK => Self::Symlink { target: take_bytes(rest)?, at: take_bytes(rest)? },
            FILE => Self::File {
                mode: u32::from_le_bytes(take_array(rest)?),
                bytes: take_bytes(rest)?,
                at: take_bytes(rest)?,
            },
            COVER_FILE => Self::CoverFile { bytes: take_bytes(rest)?, at: take_bytes(rest)? },
            PROC => Self::Proc,
            DEV => Self::Dev { shm: u64::from_le_bytes(take_array(rest)?) },
            FREEZE => Self::Freeze { at: take_bytes(rest)? },
            PIN => Self::Pin { at: take_bytes(rest)? },
            _ => return None,
        })
    }
}

/// A construction that uses each step, for tests.
#[cfg(test)]
pub(crate) fn sample() -> Construction {
    let at = || b"/x".to_vec();
    Construction {
        staged: Staged { dir: b"/staged".to_vec(), trees: alloc::vec![(b"1".to_vec(), 9)] },
        mounts: alloc::vec![
            MountStep::Bind { source: b"/usr".to_vec(), at: at(), is_writable: false },
            MountStep::Bind { source: b"/staged/1/x".to_vec(), at: at(), is_writable: true },
            MountStep::Tmpfs { at: at(), size: 4096, mode: 0o755 },
            MountStep::Dir { at: at() },
            MountStep::Symlink { target: b"usr/lib".to_vec(), at: at() },
            MountStep::File { at: at(), bytes: b"text".to_vec(), mode: 0o444 },
            MountStep::CoverFile { at: at(), bytes: Vec::new() },
            MountStep::Proc,
            MountStep::Dev { shm: 4096 },
            MountStep::Freeze { at: b"/".to_vec() },
            MountStep::Pin { at: b"/tmp/d".to_vec() },
        ],
        filters: alloc::vec![alloc::vec![1; 8], Vec::new()],
        becomes_user: true,
        lifeline: 6,
        held: Some(7),
        bridge: BridgeKind::Relay,
        socks5: true,
    }
}

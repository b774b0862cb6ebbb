//! The description of a sandbox that stage2 builds itself, as pid 1 of its namespaces: the native back end.

use alloc::vec::Vec;

use crate::BridgeKind;
use crate::wire::{Item, Wire, wire};

wire! {
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
}

wire! {
    /// Detached mounts (open_tree(2)) for one directory of the host.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Staged {
        /// The directory, which a file system in memory covers.
        pub dir: Vec<u8>,
        /// The name in the directory and the number of the descriptor of each.
        pub trees: Vec<(Vec<u8>, i32)>,
    }
}

wire! {
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
        } = 1,
        /// An empty directory in memory.
        Tmpfs {
            /// The place.
            at: Vec<u8>,
            /// Bytes that it may hold.
            size: u64,
            /// Permission bits of its root.
            mode: u32,
        } = 2,
        /// An empty directory in the file system around it.
        Dir {
            /// The place.
            at: Vec<u8>,
        } = 3,
        /// A directory in the file system around it, mounted over itself: nobody can rename a mount point.
        Pin {
            /// The place.
            at: Vec<u8>,
        } = 10,
        /// A symbolic link.
        Symlink {
            /// Target of the link.
            target: Vec<u8>,
            /// The place.
            at: Vec<u8>,
        } = 4,
        /// A new file in the file system at that path.
        File {
            /// The place.
            at: Vec<u8>,
            /// Contents of the file.
            bytes: Vec<u8>,
            /// Permission bits.
            mode: u32,
        } = 5,
        /// A read-only file mounted over whatever is at that path.
        CoverFile {
            /// The place.
            at: Vec<u8>,
            /// Contents of the file.
            bytes: Vec<u8>,
        } = 6,
        /// The process file system, with the settings of the kernel in it read-only.
        Proc = 7,
        /// A minimal `/dev`.
        Dev {
            /// Bytes of `/dev/shm`.
            shm: u64,
        } = 8,
        /// Makes this mount read-only, but not the mounts below it.
        Freeze {
            /// The mount point.
            at: Vec<u8>,
        } = 9,
    }
}

impl Item for MountStep {}

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

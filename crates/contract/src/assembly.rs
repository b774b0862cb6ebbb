//! The description of a file tree that stage2 makes for bubblewrap, which gets it as one mount.

use alloc::vec::Vec;

use crate::construction::{MountStep, Staged};
use crate::wire::{Wire, wire};

wire! {
    /// The file tree to make, and bubblewrap's arguments. The host sends it.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Assembly {
        /// Trees to attach to the host's file tree first, as this sandbox sees it: sources are found in them.
        pub staged: Staged,
        /// The file tree, in the order of its mounts. Without any, bubblewrap makes it.
        pub mounts: Vec<MountStep>,
        /// The kernel's user and group of the stage.
        pub ids: (u32, u32),
        /// Whether to become that user, with the rights of root. Otherwise the process has that user already, and makes the file tree in
        /// a user namespace.
        pub becomes_user: bool,
        /// The path of bubblewrap.
        pub program: Vec<u8>,
        /// Its arguments.
        pub arguments: Vec<Vec<u8>>,
    }
}

/// An assembly that uses each field, for tests.
#[cfg(test)]
pub(crate) fn sample() -> Assembly {
    let crate::Construction { staged, mounts, .. } = crate::construction::sample();
    Assembly {
        staged,
        mounts,
        ids: (1000, 100),
        becomes_user: true,
        program: b"/usr/bin/bwrap".to_vec(),
        arguments: alloc::vec![b"--args".to_vec(), b"9".to_vec()],
    }
}

//! The description of a file tree that stage2 makes for bubblewrap, which gets it as one mount.

use alloc::vec::Vec;

use crate::construction::{MountStep, Staged};
use crate::wire::{put, put_each, put_list, take_array, take_bytes, take_each, take_flag, take_list};

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

impl Assembly {
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        out.push(u8::from(self.becomes_user));
        out.extend(self.ids.0.to_le_bytes());
        out.extend(self.ids.1.to_le_bytes());
        put(out, &self.program)?;
        put_list(out, &self.arguments)?;
        self.staged.put(out)?;
        put_each(out, &self.mounts, MountStep::put)
    }

    pub(crate) fn take(rest: &mut &[u8]) -> Option<Self> {
        Some(Self {
            becomes_user: take_flag(rest)?,
            ids: (u32::from_le_bytes(take_array(rest)?), u32::from_le_bytes(take_array(rest)?)),
            program: take_bytes(rest)?,
            arguments: take_list(rest)?,
            staged: Staged::take(rest)?,
            mounts: take_each(rest, MountStep::take)?,
        })
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

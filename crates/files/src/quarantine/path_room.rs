//! The bounds on reading files that name paths, at the end of a run. A stage chooses how many these are.

use std::collections::HashMap;
use std::path::PathBuf;

use super::descriptors::FileId;
use crate::index::IndexRoom;

/// Names that are read and looked up in directories of files with conflicts: about a second.
const NAMES: usize = 1 << 21;
/// Bytes that are read of lists of files: the index of 80000 packs has 4 MiB of names.
const LISTS: u64 = 64 << 20;

/// The rest of what the end of one run reads of files that name paths.
#[derive(Debug)]
pub(super) struct PathRoom {
    pub(super) indexes: IndexRoom,
    /// The indexes that were read, each for its working trees, and whether they are right. One may have several names.
    pub(super) read: HashMap<(FileId, Option<Vec<PathBuf>>), bool>,
    /// The rest of what is read of indexes that stay: they take nothing from the others.
    pub(super) old_indexes: IndexRoom,
    /// Bytes that may be read of lists of files.
    pub(super) lists: u64,
    /// Names that may be read, and looked up, in directories of files with conflicts.
    pub(super) names: usize,
}

impl Default for PathRoom {
    fn default() -> Self {
        let [indexes, old_indexes] = [IndexRoom::FULL; 2];
        Self { indexes, read: HashMap::new(), old_indexes, lists: LISTS, names: NAMES }
    }
}

//! The bounds on reading files that name paths, at the end of a run. A stage chooses how many these are.

use std::collections::HashMap;

use super::descriptors::FileId;
use crate::index::IndexRoom;

/// Bytes that are read of lists of files: the index of 80000 packs has 4 MiB of names.
const LISTS: u64 = 64 << 20;

/// The rest of what the end of one run reads of files that name paths.
#[derive(Debug)]
pub(super) struct PathRoom {
    pub(super) indexes: IndexRoom,
    /// The indexes that were read, each with the time of its last change (seconds and nanoseconds), and whether they are right. One may have
    /// several names.
    pub(super) read: HashMap<(FileId, i64, i64), bool>,
    /// Bytes that may be read of lists of files.
    pub(super) lists: u64,
}

impl Default for PathRoom {
    fn default() -> Self {
        Self { indexes: IndexRoom::FULL, read: HashMap::new(), lists: LISTS }
    }
}

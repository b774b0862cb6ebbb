//! Temporary files and package caches: where they are on the host, or in memory.

use std::fs;
use std::path::{Path, PathBuf};

use exeat_contract::CACHE;

use crate::layout::Mount;
use crate::walk::clean;
/// Bytes of the private `/tmp` and `/var/tmp`, each: compilers spool there.
pub const TMP_SIZE: u64 = 1 << 30;

/// Returns the place of a file that is read at `path`. Links are followed by their text, because inside they may dangle.
pub(super) fn resolved_place(path: &Path) -> Option<PathBuf> {
    /// The number of links that the kernel follows (path_resolution(7)).
    const LINKS: usize = 40;
    let mut place = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(target) = fs::read_link(&place) else { return Some(place) };
        place = clean(&place.parent()?.join(target));
    }
    None
}

/// The directory of temporary files.
pub const TMP: &str = "/tmp";

/// The `/tmp` of a run that has none on the disk.
pub fn tmp_in_memory(size: u64) -> Mount {
    Mount::Tmpfs { at: TMP.into(), size, mode: 0o1777 }
}

/// The cache of a run that has no lasting one.
pub fn cache_in_memory() -> Mount {
    Mount::Tmpfs { at: CACHE.into(), size: TMP_SIZE, mode: 0o755 }
}

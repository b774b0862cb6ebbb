//! Finds the directories that a stage could rename: those that exeat makes in the sandbox's own file systems, above the place of a mount.
//!
//! A protected name in a tree below such a directory would have another path then: what covers it again, and what makes the tree read-only at
//! the end, goes by the path.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use exeat_files::layout::{EmptyEntry, Mount, Why};

/// Returns, for each mount, the directories that must become mount points before it is mounted, the outer one first.
pub(super) fn before_each(mounts: &[Mount]) -> Vec<Vec<PathBuf>> {
    // The places of mounts, each with whether the stage can make names there.
    let mut places: Vec<(&Path, bool)> = Vec::new();
    let mut pinned: HashSet<PathBuf> = HashSet::new();
    let mut before = Vec::with_capacity(mounts.len());
    for mount in mounts {
        let at = mount.at();
        let mut above: Vec<&Path> = at.ancestors().skip(1).collect();
        above.reverse();
        let mut pins = Vec::new();
        for dir in above {
            let around = places.iter().rev().find(|(place, _)| dir.starts_with(place));
            let is_renamed = around.is_some_and(|(place, is_own)| *is_own && *place != dir);
            if is_renamed && pinned.insert(dir.to_path_buf()) {
                pins.push(dir.to_path_buf());
            }
        }
        before.push(pins);
        let Some(is_own) = is_own(mount) else { continue };
        let at = if matches!(mount, Mount::Dev { .. }) { Path::new("/dev/shm") } else { at };
        pinned.retain(|pin| !pin.starts_with(at));
        places.push((at, is_own));
    }
    before
}

/// Whether the stage can make names in the file system that is mounted, and it is one of the sandbox's own; `None` without a mount. The
/// stage owns those in memory, so that their permission bits do not matter. In a writable tree of the host, the view has made each
/// directory above a mount a mount point.
fn is_own(mount: &Mount) -> Option<bool> {
    match mount {
        Mount::Tmpfs { .. } | Mount::Dev { .. } | Mount::Hidden { entry: EmptyEntry::Dir { .. }, .. } => {
            Some(true)
        }
        Mount::Writable { why, .. } => Some(matches!(why, Why::Temporary | Why::Cache)),
        Mount::ReadOnly { .. } | Mount::Hidden { .. } | Mount::CoverFile { .. } | Mount::Proc => Some(false),
        Mount::Dir { .. } | Mount::Symlink { .. } | Mount::File { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b11_finds_the_directories_that_a_stage_could_rename() {
        let read_only = |at: &str| Mount::ReadOnly { host: "/h".into(), at: at.into(), why: Why::Requested };
        let writable = |at: &str, why| Mount::Writable { host: "/h".into(), at: at.into(), why };
        let mounts = [
            (Mount::Tmpfs { at: "/tmp".into(), size: 1, mode: 0o1777 }, vec![]),
            (Mount::Dev { shm: 1 }, vec![]),
            (read_only("/a/b/c"), vec![]),
            (read_only("/tmp/t"), vec![]),
            (read_only("/tmp/a/b/c"), vec!["/tmp/a", "/tmp/a/b"]),
            (read_only("/tmp/a/d"), vec![]),
            (read_only("/dev/shm/a/b"), vec!["/dev/shm/a"]),
            (writable("/w", Why::Requested), vec![]),
            (read_only("/w/a/b"), vec![]),
            (writable("/tmp", Why::Temporary), vec![]),
            (read_only("/tmp/a/b"), vec!["/tmp/a"]),
        ];
        let (mounts, expected): (Vec<_>, Vec<_>) = mounts.into_iter().unzip();
        let expected: Vec<Vec<PathBuf>> =
            expected.into_iter().map(|pins| pins.into_iter().map(PathBuf::from).collect()).collect();
        assert_eq!(before_each(&mounts), expected);
    }
}

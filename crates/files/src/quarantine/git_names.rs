//! Names that git has in the directory of a repository (gitrepository-layout(5)), and what is right at them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};

use super::descriptors::open_file;
use crate::protected::{GIT_LINK, REPOSITORIES};

/// The directory of submodules.
pub(super) const MODULES: &str = "modules";
/// The directory of linked worktrees.
pub(super) const WORKTREES: &str = "worktrees";

/// Returns whether a name is that of a repository of any system.
pub(super) fn is_repository_name(name: &OsStr) -> bool {
    REPOSITORIES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns whether a place in a repository is the directory of a linked worktree. A working tree may be named as the directory of those is.
pub(super) fn is_worktree(at: &Path) -> bool {
    let is_repository = at.file_name().is_none_or(|name| name.eq_ignore_ascii_case(GIT_LINK));
    !is_repository && at.parent().is_some_and(|above| above.ends_with(WORKTREES))
}

/// The configuration of a worktree, and the file that leads to its repository.
pub(super) const CONFIG: &str = "config.worktree";
pub(super) const COMMON: &str = "commondir";
pub(super) const OF_WORKTREE: [&str; 2] = [CONFIG, COMMON];
/// The paths that git tracks.
pub(super) const INDEX: &str = "index";
/// A file that git's rerere writes: the paths with conflicts, which it reads and writes when a commit is made (rerere.c).
pub(super) const CONFLICTS: &str = "MERGE_RR";
/// The files that name paths, but for shared indexes.
pub(super) const NAMING: [&str; 2] = [INDEX, CONFLICTS];
/// The directories of unfinished operations, and the files in them that hold a number. The prompt that comes with git (git-prompt.sh) puts
/// what is in them into a string that the shell expands, so `$(command)` there runs when the prompt is printed.
pub(super) const NUMBERS: [(&str, [&str; 2]); 2] =
    [("rebase-merge", ["msgnum", "end"]), ("rebase-apply", ["next", "last"])];
/// Bytes of the longest number.
const LONGEST: u64 = 20;

/// Returns the name of the operation if a directory of a repository, or of a linked worktree of it, has such files. Branches may have such
/// names, too.
pub(super) fn operation_of(repository: &Path, dir: &Path) -> Option<&'static str> {
    let below = dir.strip_prefix(repository).ok()?;
    let mut parts = below.components();
    let is_top = match parts.clone().count() {
        1 => true,
        3 => parts.next()?.as_os_str() == WORKTREES,
        _ => false,
    };
    NUMBERS.iter().map(|(operation, _)| *operation).find(|operation| is_top && below.ends_with(operation))
}

/// Returns whether such a file is there and holds something else, or has another name by which it can be written. An empty one is being
/// written.
pub(super) fn is_no_number(operation: &str, dir: BorrowedFd<'_>, name: &OsStr) -> bool {
    let is_one =
        NUMBERS.iter().any(|(known, files)| *known == operation && files.iter().any(|file| name == *file));
    is_one && open_file(dir, name).map_or(true, |file| !is_number(file))
}

fn is_number(file: File) -> bool {
    let mut text = Vec::new();
    let is_alone = file.metadata().is_ok_and(|meta| meta.nlink() == 1);
    let read = file.take(LONGEST + 2).read_to_end(&mut text);
    let number = text.strip_suffix(b"\n").unwrap_or(&text);
    is_alone && read.is_ok() && number.len() as u64 <= LONGEST && number.iter().all(u8::is_ascii_digit)
}

/// Returns whether a link is one in which git once wrote that a branch is checked out.
pub(super) fn is_old_head(name: &OsStr, target: &Path) -> bool {
    name == "HEAD"
        && target.starts_with("refs")
        && target.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Whether objects are in it, by the first two digits of their names. The rest are hashes of what is in them, and git renames over
/// what has such a name: a link there leads nothing away. The directory itself may be one.
pub(super) fn is_fan_out(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == 2 && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

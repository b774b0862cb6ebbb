//! Files of an unfinished operation that hold a number. The prompt that comes with git (git-prompt.sh) puts what is in them into a string
//! that the shell expands, so `$(command)` there runs when the prompt is printed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::descriptors::open_file;

/// The directories of such operations in a repository or a worktree, and the files in them.
pub(super) const NUMBERS: [(&str, [&str; 2]); 2] =
    [("rebase-merge", ["msgnum", "end"]), ("rebase-apply", ["next", "last"])];
/// Bytes of the longest number.
const LONGEST: u64 = 20;

/// Returns whether a directory has such files.
pub(super) fn has_numbers(dir: &Path) -> bool {
    NUMBERS.iter().any(|(name, _)| dir.ends_with(name))
}

/// Returns whether such a file is there and holds something else. An empty one is being written.
pub(super) fn is_no_number(path: &Path, dir: BorrowedFd<'_>, name: &OsStr) -> bool {
    let is_one = NUMBERS.iter().any(|(operation, files)| {
        path.parent().is_some_and(|above| above.ends_with(operation))
            && files.iter().any(|file| name == *file)
    });
    is_one && open_file(dir, name).map_or(true, |file| !is_number(file))
}

fn is_number(file: File) -> bool {
    let mut text = Vec::new();
    let read = file.take(LONGEST + 2).read_to_end(&mut text);
    let number = text.strip_suffix(b"\n").unwrap_or(&text);
    read.is_ok() && number.len() as u64 <= LONGEST && number.iter().all(u8::is_ascii_digit)
}

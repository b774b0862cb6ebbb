//! Directories that cannot be looked into. A stage can close any directory of the caller's and open it in the next run, so what is
//! in one is not nothing: it is not known.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_policy::shell_word;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat, geteuid};

use crate::bounds::follow;
use crate::permissions::is_callers;

/// Directories that have a line each.
const LINES: usize = 3;

/// Returns the directory that prevents reading a path: the path itself or one above it. `None` if no stage of the caller could read
/// or open it either.
pub(super) fn closed_directory_above(path: &Path) -> Option<PathBuf> {
    let place = follow(path).map_or_else(|| path.to_path_buf(), |(_, place)| place);
    let (closed, meta) =
        place.ancestors().find_map(|above| Some((above, fs::symlink_metadata(above).ok()?)))?;
    // Another user's, that lets nobody else in: root's stage may be that user.
    let caller = geteuid();
    let is_in_reach = caller.is_root() || meta.uid() == caller.as_raw() || may_search(closed).is_ok();
    // What cannot be looked at in a directory that can be searched is a mount that does not answer: no stage closes anything so.
    if *closed != place && may_search(closed).is_ok() {
        return None;
    }
    is_in_reach.then(|| closed.to_path_buf())
}

/// Whether names in a directory can be looked up.
pub(super) fn may_search(dir: &Path) -> io::Result<()> {
    Ok(faccessat(AT_FDCWD, dir, AccessFlags::X_OK, AtFlags::AT_EACCESS)?)
}

/// Returns the lines for the caller: one for each of the first directories, and one for the rest.
///
/// Nobody reads a line for each of hundreds, such as in a shared /tmp.
pub(super) fn lines<'a>(dirs: impl Iterator<Item = &'a PathBuf>) -> Vec<String> {
    let dirs: Vec<&PathBuf> = dirs.collect();
    let mut lines: Vec<String> = dirs.iter().take(LINES).map(|dir| line(dir)).collect();
    if let Some(first) = dirs.get(LINES) {
        let more = dirs.len() - LINES;
        let them = if more == 1 { "directory is" } else { "directories are" };
        lines.push(format!(
            "{more} more {them} read-only for the stage, because what is in them cannot be seen: `{}`{}",
            first.display(),
            if more == 1 { "" } else { " and others" }
        ));
    }
    lines
}

fn line(dir: &Path) -> String {
    let reason = "is read-only for the stage: what programs on the host obey in it cannot be seen";
    let is_closed = fs::read_dir(dir).map(drop).and_then(|()| may_search(dir));
    let is_closed = is_closed.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    let is_ours = is_callers(dir) == Some(true);
    let dir_shown = dir.display();
    match (is_closed, is_ours) {
        (true, true) => {
            let word = shell_word(&dir_shown.to_string());
            format!("`{dir_shown}` {reason}; `chmod u+rwx {word}` opens it")
        }
        (true, false) => format!("`{dir_shown}` {reason}; it is another user's"),
        (false, _) => format!("`{dir_shown}` {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_a_line_for_the_first_and_one_for_the_rest() {
        let dirs: Vec<PathBuf> = (0..200).map(|n| PathBuf::from(format!("/nowhere/{n}"))).collect();
        for (count, lines_expected, last) in [
            (0, 0, ""),
            (1, 1, "`/nowhere/0` is read-only"),
            (3, 3, "`/nowhere/2` is read-only"),
            (
                4,
                4,
                "1 more directory is read-only for the stage, because what is in them cannot be seen: `/nowhere/3`",
            ),
            (200, 4, "197 more directories are read-only for the stage"),
        ] {
            let lines = lines(dirs.iter().take(count));
            assert_eq!(lines.len(), lines_expected, "{lines:?}");
            assert!(lines.last().is_none_or(|line| line.starts_with(last)), "{lines:?}");
        }
    }
}

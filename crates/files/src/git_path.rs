//! Paths in files of git's and Jujutsu's, read exactly as these read them: what exeat judges is then what they obey.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::bounds::LONGEST_PATH;
use crate::walk::clean;

/// Reads the path in a file, which git and Jujutsu write with at most 4095 bytes ([`LONGEST_PATH`]). `None`: it has more, a zero, or no
/// path. The program may still obey it.
pub(crate) type ReadPath = fn(&[u8]) -> Option<&Path>;

/// Returns the path in a `.git` file (`read_gitfile_gently` of git's setup.c).
pub(crate) fn git_file_path(text: &[u8]) -> Option<&Path> {
    path_in(text, b"gitdir: ", b"\n\r")
}

/// Returns the directory to which a `.git` file leads, by the path of the file and its text.
pub(crate) fn git_file_target(file: &Path, text: &[u8]) -> Option<PathBuf> {
    Some(clean(&file.parent()?.join(git_file_path(text)?)))
}

/// Returns the path in a `commondir` (`get_common_dir_noenv` of git's setup.c).
pub(crate) fn commondir_path(text: &[u8]) -> Option<&Path> {
    path_in(text, b"", b"\n\r")
}

/// Returns the path in the `gitdir` of a worktree (`get_linked_worktree` of git's worktree.c). Git has four blanks (ctype.c).
pub(crate) fn gitdir_path(text: &[u8]) -> Option<&Path> {
    path_in(text, b"", b" \t\n\r")
}

/// Returns the path in Jujutsu's `.jj/repo`.
pub(crate) fn jujutsu_path(text: &[u8]) -> Option<&Path> {
    path_in(text, b"", b"")
}

/// Returns whether a file that names a path is as long as such a file can be, and has no zero, at which the kernel's paths end.
pub(crate) fn is_whole(text: &[u8]) -> bool {
    text.len() <= LONGEST_PATH && !text.contains(&0)
}

/// Returns the path in a text that begins with `before`, without these bytes at its end.
fn path_in<'a>(text: &'a [u8], before: &[u8], ends: &[u8]) -> Option<&'a Path> {
    let mut path = text.strip_prefix(before)?;
    while let [rest @ .., last] = path
        && ends.contains(last)
    {
        path = rest;
    }
    (is_whole(text) && !path.is_empty()).then(|| Path::new(OsStr::from_bytes(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b14_a_path_ends_where_git_ends_it() {
        let at = |path: Option<&Path>| path.map(|path| path.as_os_str().as_bytes().to_vec());
        for (text, file, gitdir) in [
            (&b"a\n"[..], &b"a"[..], &b"a"[..]),
            (b"a\r\n\n", b"a", b"a"),
            (b"a \n", b"a ", b"a"),
            (b"a\x0c\n", b"a\x0c", b"a\x0c"),
            (b" a\t", b" a\t", b" a"),
            (b"a\nb", b"a\nb", b"a\nb"),
        ] {
            assert_eq!(at(commondir_path(text)).as_deref(), Some(file), "{text:?}");
            assert_eq!(at(git_file_path(&[b"gitdir: ", text].concat())).as_deref(), Some(file), "{text:?}");
            assert_eq!(at(gitdir_path(text)).as_deref(), Some(gitdir), "{text:?}");
        }
        for text in [&b""[..], b"\n", b"a\0b\n"] {
            assert_eq!([commondir_path(text), gitdir_path(text)], [None; 2], "{text:?}");
        }
        assert_eq!(git_file_path(b"gitdir:a"), None);
        for length in [LONGEST_PATH, LONGEST_PATH + 1] {
            let padded = |text: &[u8]| [text, &vec![b'\n'; length - text.len()]].concat();
            let is_path = length <= 4095;
            assert_eq!(git_file_path(&padded(b"gitdir: a")).is_some(), is_path);
            assert_eq!([commondir_path, gitdir_path].map(|read| read(&padded(b"a")).is_some()), [is_path; 2]);
        }
    }
}

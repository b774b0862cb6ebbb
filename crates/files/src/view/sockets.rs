//! Whether a tree of programs or certificates may hold a Unix socket of the host's.
//!
//! A socket that listens at the start is hidden. That of a server that starts later, or whose name the kernel does not know any
//! more, is not. So a stage that sees a tree with sockets may not create Unix sockets, and cannot connect.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::names::Mounts;

/// Names that are looked at in one tree: the largest toolchains have some ten thousand in their two upper levels.
const MOST: usize = 1 << 16;

/// Says why a socket may be in a tree, if one may: the tree is a whole file system, or its two upper levels have one, or
/// could not be read. A walk through all of a toolchain would take longer than the start.
pub(super) fn why_exposed(tree: &Path, mounts: &Mounts) -> Option<String> {
    let about = fs::symlink_metadata(tree).ok()?;
    if about.file_type().is_socket() {
        return Some("it is a Unix socket".into());
    }
    if !about.is_dir() {
        return None;
    }
    if mounts.has_whole(tree) {
        return Some("it is a whole file system".into());
    }
    let mut left = MOST;
    let mut below = Vec::new();
    let mut found = find_socket_in(tree, &mut left, |path| below.push(path.to_path_buf()));
    for dir in below {
        found = found.or_else(|| find_socket_in(&dir, &mut left, |_| ()));
    }
    found
}

/// Looks at the names in one directory.
fn find_socket_in(dir: &Path, left: &mut usize, mut is_directory: impl FnMut(&Path)) -> Option<String> {
    let unread = || Some(format!("`{}` cannot be looked through for Unix sockets", dir.display()));
    let Ok(entries) = fs::read_dir(dir) else { return unread() };
    for entry in entries {
        if *left == 0 {
            return unread();
        }
        *left -= 1;
        let Ok((entry, kind)) = entry.and_then(|it| it.file_type().map(|kind| (it, kind))) else {
            return unread();
        };
        if kind.is_socket() {
            return Some(format!("it holds the Unix socket `{}`", entry.path().display()));
        }
        if kind.is_dir() {
            is_directory(&entry.path());
        }
    }
    None
}

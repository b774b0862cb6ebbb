//! Removes what a stage has made: through no symbolic link, into no other file system, and without recursion, so that
//! directories of any depth go.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::quarantine::random;

/// Names of a directory that are read at once.
const AT_ONCE: usize = 4096;

/// Removes an entry of a directory with all that is in it. A missing entry is not an error.
///
/// A directory of directories gives them to the top of the tree that is removed, before it goes itself: a few descriptors are
/// enough for any depth.
///
/// # Errors
/// Returns the error that keeps a part of it in place, such as `EXDEV` at a mount; the rest may be gone. Returns `TimedOut` at the
/// deadline `until`.
pub fn remove_tree(dir: BorrowedFd<'_>, name: &OsStr, until: Option<Instant>) -> io::Result<()> {
    let check = || match until.is_some_and(|until| Instant::now() > until) {
        true => Err(io::Error::new(io::ErrorKind::TimedOut, "there is too much in it to be removed in time")),
        false => Ok(()),
    };
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let tree = enter(&dir, name)?;
    let mut moved = 0_u64;
    loop {
        let entries = some_names(&tree)?;
        if entries.is_empty() {
            return Ok(unlinkat(dir, name, UnlinkatFlags::RemoveDir)?);
        }
        for entry in entries {
            check()?;
            if unlinkat(&tree, entry.as_os_str(), UnlinkatFlags::NoRemoveDir).is_ok() {
                continue;
            }
            let child = enter(&tree, &entry)?;
            loop {
                let inner = some_names(&child)?;
                if inner.is_empty() {
                    break;
                }
                for inner in inner {
                    check()?;
                    if unlinkat(&child, inner.as_os_str(), UnlinkatFlags::NoRemoveDir).is_err() {
                        // To move a directory is to write its `..`, which its own mode may forbid.
                        open_for_owner(&enter(&child, &inner)?)?;
                        let new = format!("{:016x}-{moved}", random());
                        renameat(&child, inner.as_os_str(), &tree, new.as_str())?;
                        moved += 1;
                    }
                }
            }
            unlinkat(&tree, entry.as_os_str(), UnlinkatFlags::RemoveDir)?;
        }
    }
}

/// Lists some names of a directory, which is opened for its owner.
fn some_names(dir: &OwnedFd) -> io::Result<Vec<OsString>> {
    let path = open_for_owner(dir)?;
    fs::read_dir(&path)?.take(AT_ONCE).map(|entry| entry.map(|it| it.file_name())).collect()
}

/// Opens a directory for its owner if a stage has closed it. Returns a path to it.
///
/// # Errors
/// Returns errors of stat(2) and chmod(2).
pub fn open_for_owner(dir: &OwnedFd) -> io::Result<PathBuf> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    if fs::metadata(&path)?.permissions().mode() & 0o700 != 0o700 {
        fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    }
    Ok(path)
}

/// Opens a directory of a directory, in the same file system.
fn enter(dir: &impl std::os::fd::AsFd, name: &OsStr) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat2(dir, Path::new(name), OpenHow::new().flags(flags).resolve(resolve))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::symlink;

    use nix::sys::stat::{Mode, mkdirat};

    use super::*;

    #[test]
    fn l08_deep_closed_and_linked_trees_are_removed_and_nothing_else() {
        let root = std::env::temp_dir().join(format!("removal-{}", std::process::id()));
        let (top, outside) = (root.join("top"), root.join("outside"));
        fs::create_dir_all(&top).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("mine"), "mine").unwrap();
        symlink(&outside, top.join("link")).unwrap();
        fs::create_dir(top.join("closed")).unwrap();
        symlink(&outside, top.join("closed/link")).unwrap();
        fs::set_permissions(top.join("closed"), Permissions::from_mode(0o000)).unwrap();
        (0..5000).for_each(|number| fs::write(top.join(format!("{number}")), "").unwrap());
        let mut deep = OwnedFd::from(File::open(&top).unwrap());
        for _ in 0..3000 {
            mkdirat(&deep, "d", Mode::S_IRWXU).unwrap();
            deep = enter(&deep, OsStr::new("d")).unwrap();
        }
        let dir = File::open(&root).unwrap();
        // Twice: a missing entry is not an error.
        remove_tree(dir.as_fd(), OsStr::new("top"), None).unwrap();
        remove_tree(dir.as_fd(), OsStr::new("top"), None).unwrap();
        assert!(!top.exists());
        assert_eq!(fs::read(outside.join("mine")).unwrap(), b"mine");
        symlink(&outside, &top).unwrap();
        remove_tree(dir.as_fd(), OsStr::new("top"), None).unwrap();
        assert!(outside.join("mine").exists() && fs::symlink_metadata(&top).is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}

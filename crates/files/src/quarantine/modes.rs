//! Modes of the directories that hold protected names: a stage may open one to the other users of the machine, who then make those names
//! at any later time. What it has opened is closed again at the end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat};
use rustix::fs::{getxattr, removexattr};
use rustix::io::Errno as Xerrno;
use serde::{Deserialize, Serialize};

/// Bits that let others write to a directory.
const OPEN: Mode = Mode::S_IWGRP.union(Mode::S_IWOTH);
/// Lists that let more users in than the mode tells (acl(5)). The second gives what is made in a directory its mode.
const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Who may write to a directory.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Access {
    mode: u32,
    /// Whether it has each of [`LISTS`].
    lists: [bool; 2],
}

impl Access {
    fn read(dir: BorrowedFd<'_>) -> io::Result<Self> {
        let place = format!("/proc/self/fd/{}", dir.as_raw_fd());
        // The file system may know no lists.
        let has =
            |list| matches!(getxattr(place.as_str(), list, &mut [0_u8; 64][..]), Ok(_) | Err(Xerrno::RANGE));
        Ok(Self { mode: fstat(dir)?.st_mode, lists: LISTS.map(has) })
    }

    /// Takes from a directory what it has more than this, and says whether there was anything.
    pub(super) fn restore(self, dir: BorrowedFd<'_>) -> io::Result<bool> {
        let now = Self::read(dir)?;
        let mut is_changed = false;
        let place = format!("/proc/self/fd/{}", dir.as_raw_fd());
        for ((list, had), has) in LISTS.into_iter().zip(self.lists).zip(now.lists) {
            if has && !had {
                match removexattr(place.as_str(), list) {
                    Ok(()) => is_changed = true,
                    Err(Xerrno::NODATA) => {}
                    Err(errno) => return Err(io::Error::from_raw_os_error(errno.raw_os_error())),
                }
            }
        }
        let [was, mode] = [self.mode, Self::read(dir)?.mode].map(Mode::from_bits_truncate);
        // Without the sticky bit whoever may write renames what others own.
        let closed = (mode - (OPEN - was)) | (was & Mode::S_ISVTX);
        if closed != mode {
            set_mode(dir, closed)?;
        }
        Ok(is_changed || closed != mode)
    }
}

/// Who could write to the directories at the start, by their places below the tree.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Modes(BTreeMap<String, Access>);

impl Modes {
    /// Reads those that can be opened.
    pub(super) fn read<'d>(
        dirs: impl Iterator<Item = &'d str>,
        open: impl Fn(&str) -> Option<OwnedFd>,
    ) -> Self {
        let access = |dir: &str| Access::read(open(dir)?.as_fd()).ok();
        Self(dirs.filter_map(|dir| Some((dir.to_owned(), access(dir)?))).collect())
    }

    /// What a directory is compared with: one that was not there, with the nearest one above it that was.
    pub(super) fn of(&self, dir: &str) -> Option<Access> {
        above(dir).find_map(|dir| self.0.get(dir).copied())
    }
}

/// A directory and those above it, up to the tree.
pub(super) fn above(dir: &str) -> impl Iterator<Item = &str> {
    let mut next = Some(dir);
    std::iter::from_fn(move || {
        let dir = next?;
        next = (!dir.is_empty()).then(|| dir_of(dir));
        Some(dir)
    })
}

/// The directory that a name is in.
pub(super) fn dir_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(above, _)| above)
}

/// fchmod(2) takes no descriptor that was opened with O_PATH (open(2)), and another may need the mode that is set here.
pub(super) fn set_mode(dir: BorrowedFd<'_>, mode: Mode) -> nix::Result<()> {
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    fchmodat(AT_FDCWD, path.as_str(), mode, FchmodatFlags::FollowSymlink)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use std::path::Path;

    use rustix::fs::{XattrFlags, setxattr};

    use super::super::{FurtherDown, Journal, Keeper, Missing, Watch, finish, settle_interrupted};
    use super::*;

    /// A default list that gives everybody all rights: `ACL_USER_OBJ`, `ACL_GROUP_OBJ` and `ACL_OTHER`, in version 2.
    const FOR_ALL: [u8; 28] = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 7, 0, 255, 255, 255, 255, 32, 0, 7, 0, 255, 255,
        255, 255,
    ];

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn l19_directories_of_protected_names_are_closed_again() {
        let root = std::env::temp_dir().join(format!("modes-{}", std::process::id()));
        let (tree, state) = (root.join("tree"), root.join("state"));
        for is_killed in [false, true] {
            fs::create_dir_all(tree.join("a/b/.git/info")).unwrap();
            // Mode before the run, what the stage sets, and mode afterwards.
            let dirs = [
                ("", 0o755, 0o777, 0o755),
                ("a", 0o1777, 0o777, 0o1777),
                ("a/b", 0o700, 0o2770, 0o2750),
                ("a/b/.git", 0o775, 0o777, 0o775),
                ("a/b/.git/info", 0o755, 0o500, 0o500),
            ];
            dirs.iter().for_each(|(dir, before, ..)| set(&tree.join(dir), *before));
            let further =
                ["a", "a/b"].map(|dir| FurtherDown { dir: dir.into(), known: Vec::new(), state: None });
            let name = |name: &str| super::super::MissingName {
                name: name.into(),
                obeyed: crate::protected::Obeyed::AtOnce,
            };
            let missing = Missing {
                tree: tree.clone(),
                names: ["a/b/.git/info/attributes", ".cargo/config"].map(name).into(),
                further: further.into(),
                repositories: vec!["a/b/.git".into()],
                ..Missing::default()
            };
            let watch =
                Watch::start(missing, Keeper { run: "RUN".into(), state: Some(state.clone()) }).unwrap();
            dirs.iter().for_each(|(dir, _, during, _)| set(&tree.join(dir), *during));
            let listed = tree.join("a/b/.git");
            let has_lists =
                setxattr(listed.as_os_str().to_str().unwrap(), LISTS[1], &FOR_ALL, XattrFlags::empty())
                    .is_ok();
            fs::create_dir(tree.join(".cargo")).unwrap();
            set(&tree.join(".cargo"), 0o777);
            fs::create_dir(tree.join("new")).unwrap();
            set(&tree.join("new"), 0o777);
            let closed = if is_killed {
                drop(Journal::write(&state, "RUN", &[watch]).unwrap());
                let settled = settle_interrupted(&state, &[&tree], &|| false);
                settled.runs.into_iter().flat_map(|run| run.found.closed).collect()
            } else {
                finish([&watch]).closed
            };
            let expected = ["", ".cargo", "a", "a/b", "a/b/.git"];
            assert_eq!(
                closed,
                expected.map(|dir| if dir.is_empty() { tree.clone() } else { tree.join(dir) })
            );
            for (dir, .., after) in dirs {
                assert_eq!(mode(&tree.join(dir)), after, "{dir}");
            }
            assert_eq!((mode(&tree.join(".cargo")), mode(&tree.join("new"))), (0o755, 0o777));
            assert!(!has_lists || getxattr(listed.to_str().unwrap(), LISTS[1], &mut [0_u8; 64][..]).is_err());
            fs::remove_dir_all(&root).unwrap();
        }
    }
}

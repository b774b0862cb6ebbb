//! Modes of the directories that hold protected names: a stage may open one to the other users of the machine, who then make those names
//! at any later time. What it has opened is closed again at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat};
use nix::unistd::{Uid, geteuid};
use rustix::fs::{getxattr, removexattr};
use rustix::io::Errno as Xerrno;
use serde::{Deserialize, Serialize};

use super::descriptors::{FileId, id_of};

/// Bits that let others write to a directory.
const OPEN: Mode = Mode::S_IWGRP.union(Mode::S_IWOTH);
/// The group's bits.
const GROUP: u32 = 0o070;
/// Lists that let more users in than the mode tells (acl(5)). The second gives what is made in a directory its mode.
const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Who may write to a directory.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Access {
    mode: u32,
    owner: u32,
    /// Whether it has each of [`LISTS`].
    lists: [bool; 2],
}

impl Access {
    fn read(dir: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::from_stat(dir, &fstat(dir)?))
    }

    fn from_stat(dir: BorrowedFd<'_>, stat: &FileStat) -> Self {
        let place = place_of(dir);
        // The file system may know no lists.
        let has =
            |list| matches!(getxattr(place.as_str(), list, &mut [0_u8; 64][..]), Ok(_) | Err(Xerrno::RANGE));
        Self { mode: stat.st_mode, owner: stat.st_uid, lists: LISTS.map(has) }
    }

    /// Returns the additional lists of a directory, and its mode without the additional bits.
    fn excess(self, now: Self) -> ([bool; 2], Option<Mode>) {
        let [was, mode] = [self.mode, now.mode].map(Mode::from_bits_truncate);
        // Without the sticky bit whoever may write renames what others own.
        let closed = (mode - (OPEN - was)) | (was & Mode::S_ISVTX);
        let ([had_access, had_default], [access, default]) = (self.lists, now.lists);
        ([access && !had_access, default && !had_default], (closed != mode).then_some(closed))
    }

    /// Returns this access without what exceeds an earlier one. A directory of another owner exceeds that one as a whole.
    pub(super) fn limit_to(self, was: Self) -> Self {
        let ([access, default], ([has_more, has_more_default], closed)) = (self.lists, was.excess(self));
        let mode = closed.map_or(self.mode, |closed| closed.bits());
        Self { mode, owner: was.owner, lists: [access && !has_more, default && !has_more_default] }
    }

    /// Whether other users may do more in a directory than this says: also by being its owner.
    pub(super) fn is_exceeded_by(self, dir: BorrowedFd<'_>, owner: Uid) -> bool {
        Self::read(dir).is_ok_and(|now| {
            let is_anothers = now.owner != owner.as_raw() && now.owner != self.owner;
            is_anothers || self.excess(now) != ([false; 2], None)
        })
    }

    /// Removes permissions of a directory that exceed these. Returns whether any did.
    ///
    /// # Errors
    /// Returns the error that keeps the directory open. It does not change a directory that is not the owner's: a stage can only have put
    /// it there.
    pub(super) fn restore(self, dir: BorrowedFd<'_>, owner: Uid) -> io::Result<bool> {
        if !self.is_exceeded_by(dir, owner) {
            return Ok(false);
        }
        let mut now = Self::read(dir)?;
        if now.owner != owner.as_raw() {
            return Err(io::Error::other("it is another user's"));
        }
        let (extra, _) = self.excess(now);
        let place = place_of(dir);
        if let [true, _] = extra {
            // The bits of the group are those of the list's mask (acl(5)), and would be the group's own without the list.
            now.mode &= !GROUP | group_in_list(&place) << 3;
            set_mode(dir, Mode::from_bits_truncate(now.mode))?;
        }
        for (list, _) in LISTS.into_iter().zip(extra).filter(|(_, is_extra)| *is_extra) {
            match removexattr(place.as_str(), list) {
                Ok(()) | Err(Xerrno::NODATA) => {}
                Err(errno) => return Err(io::Error::from_raw_os_error(errno.raw_os_error())),
            }
        }
        if let (_, Some(closed)) = self.excess(now) {
            set_mode(dir, closed)?;
        }
        Ok(true)
    }
}

/// The rights of the owning group in a directory's access control list, or none if the list cannot be read.
fn group_in_list(place: &str) -> u32 {
    // The kernel allows at most this length (XATTR_SIZE_MAX of limits.h).
    let mut list = vec![0; 1 << 16];
    let length = getxattr(place, LISTS[0], &mut list[..]).unwrap_or(0);
    let entries = list.get(4..length).unwrap_or_default();
    // The tag and the rights, as in posix_acl_xattr.h; the id is not asked.
    let rights = entries.chunks_exact(8).find_map(|entry| match *entry {
        [4, 0, rights, ..] => Some(u32::from(rights & 7)),
        _ => None,
    });
    rights.unwrap_or(0)
}

fn place_of(dir: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", dir.as_raw_fd())
}

/// Who could write to the directories at the start, by their places below the tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Modes {
    dirs: BTreeMap<String, Access>,
    /// The identities of these directories.
    #[serde(default)]
    ids: BTreeMap<String, FileId>,
    /// Who owns on the disk what the stage makes.
    owner: u32,
}

impl Modes {
    /// Reads those that can be opened.
    pub(super) fn read(
        tree: &File,
        dirs: impl Iterator<Item = String>,
        open: impl Fn(&str) -> Option<OwnedFd>,
    ) -> io::Result<Self> {
        let caller = geteuid();
        // A stage of root's counts as the owner of each of its trees.
        let owner = if caller.is_root() { fstat(tree)?.st_uid } else { caller.as_raw() };
        let (mut known, mut ids) = (BTreeMap::new(), BTreeMap::new());
        for dir in dirs {
            let Some(opened) = open(&dir) else { continue };
            let Ok(stat) = fstat(&opened) else { continue };
            ids.insert(dir.clone(), id_of(&stat));
            known.insert(dir, Access::from_stat(opened.as_fd(), &stat));
        }
        Ok(Self { dirs: known, ids, owner })
    }

    /// Limits what was read to what other runs `known` read before their stages could change it, by the place below the tree.
    pub(super) fn limit_to(&mut self, known: impl Fn(&str) -> Option<Access>) {
        for (dir, access) in &mut self.dirs {
            if let Some(was) = known(dir) {
                *access = access.limit_to(was);
            }
        }
    }

    /// Whose directories are closed.
    pub(super) fn owner(&self) -> Uid {
        Uid::from_raw(self.owner)
    }

    /// Returns the earlier access of a directory; for a new one that of the nearest existing directory above it.
    pub(super) fn access_to(&self, dir: &str) -> Option<Access> {
        above(dir).find_map(|dir| self.dirs.get(dir).copied())
    }

    /// Returns which directories these were, by their places.
    pub(super) fn ids(&self) -> &BTreeMap<String, FileId> {
        &self.ids
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
    fchmodat(AT_FDCWD, place_of(dir).as_str(), mode, FchmodatFlags::FollowSymlink)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::path::{Path, PathBuf};

    use super::super::{FurtherDown, Journal, StateOfRun, Watch, WatchList, finish, settle_interrupted};
    use super::*;
    use rustix::fs::{XattrFlags, setxattr};

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
            fs::create_dir_all(tree.join("tools/hooks")).unwrap();
            // Mode before the run, what the stage sets, and mode afterwards.
            let dirs = [
                ("", 0o755, 0o777, 0o755),
                ("a", 0o1777, 0o777, 0o1777),
                ("a/b", 0o700, 0o2770, 0o2750),
                ("a/b/.git", 0o775, 0o777, 0o775),
                ("a/b/.git/info", 0o755, 0o500, 0o500),
                ("tools", 0o755, 0o775, 0o755),
                ("tools/hooks", 0o750, 0o772, 0o750),
            ];
            dirs.iter().for_each(|(dir, before, ..)| set(&tree.join(dir), *before));
            let further =
                ["a", "a/b"].map(|dir| FurtherDown { dir: dir.into(), known: Vec::new(), state: None });
            let name = |name: &str| super::super::MissingName {
                name: name.into(),
                obeyed: crate::protected::Obeyed::AtOnce,
            };
            let list = WatchList {
                tree: tree.clone(),
                names: ["a/b/.git/info/attributes", ".cargo/config"].map(name).into(),
                further: further.into(),
                repositories: vec!["a/b/.git".into()],
                covered: [String::from("tools/hooks")].into(),
                ..WatchList::default()
            };
            let watch =
                Watch::start(list, StateOfRun { run: "RUN".into(), dir: Some(state.clone()) }).unwrap();
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
                let settled = settle_interrupted(&state, &[&tree], |_| Ok(false), &|| false);
                settled.runs.into_iter().flat_map(|run| run.found.closed).collect()
            } else {
                finish([&watch]).closed
            };
            let expected = ["", ".cargo", "a", "a/b", "a/b/.git", "tools", "tools/hooks"];
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

    #[test]
    fn l19_a_parallel_run_does_not_take_an_opened_directory_for_the_caller_s() {
        let root = std::env::temp_dir().join(format!("modes-beside-{}", std::process::id()));
        let (tree, state) = (root.join("tree"), root.join("state"));
        let dirs = [tree.clone(), tree.join("held"), tree.join(".cargo")];
        fs::create_dir_all(&dirs[1]).unwrap();
        set(&dirs[0], 0o755);
        set(&dirs[1], 0o1770);
        let list = WatchList {
            tree: tree.clone(),
            names: vec![super::super::MissingName {
                name: ".cargo/config".into(),
                obeyed: crate::protected::Obeyed::WhenStarted,
            }],
            covered: [String::from("held")].into(),
            ..WatchList::default()
        };
        let start = |run: &str| {
            let state_of_run = StateOfRun { run: run.into(), dir: Some(state.clone()) };
            let watches = Watch::start_all([list.clone()], &state_of_run).unwrap();
            let journal = Journal::write(&state, run, &watches).unwrap();
            (watches, journal)
        };
        let open = || dirs.iter().for_each(|dir| set(dir, 0o777));
        let modes = || dirs.each_ref().map(|dir| mode(dir));
        let (first, journal) = start("FIRST");
        fs::create_dir(&dirs[2]).unwrap();
        open();
        let (second, of_second) = start("SECOND");
        finish(&first);
        journal.remove();
        assert_eq!(modes(), [0o755, 0o1775, 0o755]);
        // What the first run knew is known to a third one, too.
        open();
        let (third, _journal) = start("THIRD");
        finish(&second);
        of_second.remove();
        open();
        assert_eq!(finish(&third).closed.len(), 3);
        assert_eq!(modes(), [0o755, 0o1775, 0o755]);
        fs::remove_dir_all(&root).unwrap();
    }

    /// A tree with `held` and `other` in it, of which `held` holds something that is read-only.
    fn tree(name: &str) -> (PathBuf, Watch) {
        let tree = std::env::temp_dir().join(format!("modes-{name}-{}", std::process::id()));
        for dir in ["held", "other"] {
            fs::create_dir_all(tree.join(dir)).unwrap();
            set(&tree.join(dir), 0o755);
        }
        let covered = [String::from("held")].into();
        let list = WatchList { tree: tree.clone(), covered, ..WatchList::default() };
        let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
        (tree, watch)
    }

    fn list_left(watch: &Watch) -> Vec<(PathBuf, String)> {
        let found = finish([watch]);
        assert!(found.closed.is_empty());
        // A link to a directory above exeat's own is moved besides.
        found.named.into_iter().filter_map(|it| Some((it.path, it.moved.err()?.to_string()))).collect()
    }

    #[test]
    fn l19_a_link_in_the_place_of_an_opened_directory_is_told() {
        for (end, mode, is_told) in [("other", 0o777, true), ("other", 0o755, false), ("/usr", 0, true)] {
            let (tree, watch) = tree("link");
            fs::rename(tree.join("held"), tree.join("was")).unwrap();
            symlink(end, tree.join("held")).unwrap();
            if mode != 0 {
                set(&tree.join("other"), mode);
            }
            let left = list_left(&watch);
            assert_eq!(
                left.iter().any(|(path, why)| *path == tree.join("held") && why.contains("a link")),
                is_told
            );
            assert_eq!(left.len(), usize::from(is_told), "{end} {mode:o}");
            assert!(
                mode == 0 || fs::metadata(tree.join("other")).unwrap().permissions().mode() & 0o777 == mode
            );
            fs::remove_dir_all(&tree).unwrap();
        }
    }

    #[test]
    fn l19_a_third_user_s_directory_is_told_and_not_changed() {
        if !geteuid().is_root() {
            return;
        }
        let (tree, watch) = tree("third");
        chown(tree.join("other"), Some(33), Some(33)).unwrap();
        set(&tree.join("other"), 0o2770);
        fs::rename(tree.join("held"), tree.join("was")).unwrap();
        fs::rename(tree.join("other"), tree.join("held")).unwrap();
        let left = list_left(&watch);
        assert!(
            matches!(&left[..], [(path, why)] if *path == tree.join("held") && why.contains("another user's")),
            "{left:?}"
        );
        assert_eq!(mode(&tree.join("held")), 0o2770);
        fs::remove_dir_all(&tree).unwrap();
    }

    /// `ACL_USER_OBJ`, `ACL_USER` 1001, `ACL_GROUP_OBJ` with no right, `ACL_MASK` with all, and `ACL_OTHER`.
    const FOR_ONE: [u8; 44] = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 233, 3, 0, 0, 4, 0, 0, 0, 255, 255, 255, 255,
        16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];

    #[test]
    fn l19_the_group_gets_no_right_when_a_list_is_removed() {
        let (tree, watch) = tree("list");
        let held = tree.join("held");
        let is_set = setxattr(held.to_str().unwrap(), LISTS[0], &FOR_ONE, XattrFlags::empty()).is_ok();
        if is_set {
            assert_eq!(mode(&held), 0o770);
            assert_eq!(finish([&watch]).closed, std::slice::from_ref(&held));
            assert_eq!(mode(&held), 0o700);
            assert!(getxattr(held.to_str().unwrap(), LISTS[0], &mut [0_u8; 64][..]).is_err());
        }
        fs::remove_dir_all(&tree).unwrap();
    }
}

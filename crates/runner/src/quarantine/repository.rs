//! What a stage leaves in a repository's directory under names that git chooses, and no list has: symbolic links, through which
//! git on the host would write, and the steps of a rebase, which `git rebase --continue` runs.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, readlinkat};
use nix::sys::stat::{SFlag, fstatat};

use super::{Found, Watch, kind, let_in, open_beneath};

/// Directories of a repository that are searched with all that is in them (gitrepository-layout(5)). Not the objects: their names
/// are hashes of what is in them.
const SEARCHED: [&str; 8] =
    ["logs", "refs", "info", "rebase-merge", "rebase-apply", "sequencer", "rr-cache", "worktrees"];
/// Names that are looked at in one repository: each branch has two. So many take about 30 ms.
const ENTRIES: usize = 1 << 16;
/// What is still to be done in a rebase: a line may be a command.
const STEPS: &str = "git-rebase-todo";

/// A file as it is: the device, the inode, and when it was last changed, which nobody can set.
type Version = (u64, u64, i64, i64);

/// What was found in a repository, by names in the tree.
#[derive(Debug, Default)]
pub(super) struct Contents {
    links: BTreeMap<PathBuf, PathBuf>,
    steps: BTreeMap<PathBuf, Version>,
    /// Not everything was looked at.
    is_cut: bool,
}

impl Contents {
    /// Looks into a repository at this name in the tree; nearer names first.
    pub(super) fn of(tree: &File, repository: &Path) -> Self {
        Self::within(ENTRIES, tree, repository)
    }

    fn within(mut room: usize, tree: &File, repository: &Path) -> Self {
        let mut found = Self::default();
        let mut next = VecDeque::from([repository.to_path_buf()]);
        while let Some(at) = next.pop_front() {
            let Ok(dir) = open_beneath(tree, if at == Path::new("") { Path::new(".") } else { &at }) else {
                continue;
            };
            // Its own directory, by whatever name it has now.
            let names = || fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd())).map_err(errno);
            let Ok(names) = let_in(dir.as_fd(), names) else { continue };
            for entry in names.flatten() {
                if room == 0 {
                    found.is_cut = true;
                    return found;
                }
                room -= 1;
                let (name, Ok(kind)) = (entry.file_name(), entry.file_type()) else { continue };
                let path = at.join(&name);
                if kind.is_symlink() {
                    if let Ok(target) = readlinkat(&dir, name.as_os_str()) {
                        found.links.insert(path, target.into());
                    }
                } else if kind.is_dir() {
                    if at != repository || SEARCHED.iter().any(|known| name == *known) {
                        next.push_back(path);
                    }
                } else if name == STEPS
                    && let Ok(stat) = fstatat(&dir, STEPS, AtFlags::AT_SYMLINK_NOFOLLOW)
                {
                    found.steps.insert(path, (stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec));
                }
            }
        }
        found
    }
}

impl Watch {
    /// Moves the links aside that were not in the repository before, and says which rebase is not as it was. Not those that are
    /// aside already.
    pub(super) fn settle(&self, repository: &str, before: &Contents, aside: &[Found]) -> Vec<Found> {
        let mut now = Contents::of(&self.tree, Path::new(repository));
        for new in aside.iter().filter_map(|found| found.moved.as_ref().ok()) {
            if let Ok(name) = new.strip_prefix(&self.missing.tree) {
                now.links.remove(name);
            }
        }
        self.settled(repository, before, &now)
    }

    fn settled(&self, repository: &str, before: &Contents, now: &Contents) -> Vec<Found> {
        let left = |name: &Path, why| Found {
            path: self.missing.tree.join(name),
            moved: Err(io::Error::other(why)),
        };
        let new = now
            .links
            .iter()
            .filter(|(name, target)| before.links.get(*name) != Some(*target) && !is_old_head(name, target));
        let links = new.filter_map(|(name, _)| {
            if before.is_cut {
                return Some(left(
                    name,
                    "a symbolic link, and the repository held too much to tell whose it is: git writes through it",
                ));
            }
            let above = name.parent().filter(|above| *above != Path::new(""));
            self.look_in(above, name.file_name()?, |_, _, stat| kind(stat) != SFlag::S_IFLNK)
        });
        let steps = now.steps.iter().filter(|(name, version)| before.steps.get(*name) != Some(*version));
        let steps = steps.map(|(name, _)| {
            left(name, "the stage began this rebase, or changed it: look at its steps before you continue it")
        });
        let cut = now.is_cut.then(|| {
            left(
                Path::new(repository),
                "it holds too much to be searched for symbolic links, through which git would write",
            )
        });
        links.chain(steps).chain(cut).collect()
    }
}

/// The way in which git once wrote that a branch is checked out.
fn is_old_head(name: &Path, target: &Path) -> bool {
    name.file_name() == Some(OsStr::new("HEAD"))
        && target.starts_with("refs")
        && target.components().all(|part| matches!(part, Component::Normal(_)))
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err has it")]
fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::Missing;
    use super::*;

    /// What is beyond the bound is said; and where it was beyond it at the start, nothing is moved.
    #[test]
    fn b14_a_repository_with_too_much_in_it() {
        let root = std::env::temp_dir().join(format!("repository-{}", std::process::id()));
        fs::create_dir_all(root.join(".git/logs/refs")).unwrap();
        let missing = Missing {
            tree: root.clone(),
            names: Vec::new(),
            links: Vec::new(),
            pointers: Vec::new(),
            bare: Vec::new(),
            repositories: vec![".git".into()],
        };
        let watch = Watch::start(missing).unwrap();
        let look = |room| Contents::within(room, &watch.tree, Path::new(".git"));
        let (whole, cut) = (look(2), look(1));
        assert!(cut.is_cut && !whole.is_cut);
        let settle = |before: &Contents, now: &Contents| -> Vec<(PathBuf, bool)> {
            let found = watch.settled(".git", before, now).into_iter();
            found.map(|it| (it.path.strip_prefix(&root).unwrap().to_path_buf(), it.moved.is_ok())).collect()
        };
        symlink("x", root.join(".git/logs/refs/x")).unwrap();
        assert_eq!(settle(&whole, &look(2)), [(".git".into(), false)]);
        assert_eq!(settle(&cut, &look(3)), [(".git/logs/refs/x".into(), false)]);
        assert_eq!(settle(&whole, &look(3)), [(".git/logs/refs/x".into(), true)]);
        assert!(settle(&whole, &look(9)).len() == 1, "under its new name it is a link still");
        fs::remove_dir_all(root).unwrap();
    }
}

//! Protected names that were missing when the stage started and are there when it has ended: moved aside, and reported.
//!
//! What was there at the start is bound read-only. A missing name cannot be, and a stand-in would stay on the host as a
//! stub; so the name is watched. The stage has made what is found here: every step is relative to a directory that was
//! opened before it ran, and no symbolic link is followed.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, openat2, readlinkat, renameat2};
use nix::sys::stat::fstatat;

/// What is appended to the name.
const SUFFIX: &str = ".exeat-quarantine";
/// Earlier quarantines of the same name that are kept; one more, and the name is left in place and said to be.
const KEPT: u32 = 100;

/// Names in one writable tree that were missing at the start.
#[derive(Debug, Clone)]
pub(crate) struct Missing {
    pub(crate) tree: PathBuf,
    pub(crate) names: Vec<Cow<'static, str>>,
    /// Links that were there, and what they said: a name of the list leads through them.
    pub(crate) links: Vec<(String, PathBuf)>,
}

/// The names, and the tree as it was opened before the stage started.
#[derive(Debug)]
pub(crate) struct Watch {
    missing: Missing,
    tree: File,
}

/// One name that appeared.
#[derive(Debug)]
pub(crate) struct Found {
    /// The place on the host.
    pub(crate) path: PathBuf,
    /// Its new name, or why it could not be moved.
    pub(crate) moved: Result<PathBuf, io::Error>,
}

impl Watch {
    /// Opens the tree.
    pub(crate) fn start(missing: Missing) -> io::Result<Self> {
        // O_PATH: the tree may also be a single file, or one that waits for a writer.
        let tree = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(&missing.tree)?;
        Ok(Self { missing, tree })
    }

    /// Moves aside what has appeared.
    pub(crate) fn finish(self) -> Vec<Found> {
        let names = self.missing.names.iter().filter_map(|name| self.look(name, None));
        let links = self.missing.links.iter().filter_map(|(name, target)| self.look(name, Some(target)));
        names.chain(links).collect()
    }

    /// What stands at a name, unless it is the link that was there.
    fn look(&self, name: &str, link: Option<&Path>) -> Option<Found> {
        let (above, last) = name.rsplit_once('/').unwrap_or((".", name));
        let path = self.missing.tree.join(name);
        let dir = match open_beneath(&self.tree, Path::new(above)) {
            Ok(dir) => dir,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return None,
            // A link where a directory was expected: what is behind it is not looked at, and is not ours to move.
            Err(errno) => return Some(Found { path, moved: Err(errno.into()) }),
        };
        match fstatat(&dir, last, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => None,
            Err(errno) => Some(Found { path, moved: Err(errno.into()) }),
            Ok(_) if link.is_some_and(|link| readlinkat(&dir, last).is_ok_and(|said| said == *link)) => None,
            Ok(_) => {
                let moved = aside(&dir, last).map(|new| path.with_file_name(new));
                Some(Found { path, moved: moved.map_err(io::Error::from) })
            }
        }
    }
}

fn open_beneath(tree: &File, path: &Path) -> nix::Result<OwnedFd> {
    let resolve =
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(resolve);
    openat2(tree.as_fd(), path, how)
}

fn aside(dir: &OwnedFd, name: &str) -> nix::Result<String> {
    for number in 0..KEPT {
        let new = if number == 0 { format!("{name}{SUFFIX}") } else { format!("{name}{SUFFIX}.{number}") };
        match renameat2(dir, name, dir, new.as_str(), RenameFlags::RENAME_NOREPLACE) {
            Err(Errno::EEXIST) => {}
            other => return other.map(|()| new),
        }
    }
    Err(Errno::EEXIST)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("quarantine-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("tree")).unwrap();
        root
    }

    fn watch(root: &Path) -> Watch {
        Watch::start(Missing {
            tree: root.join("tree"),
            names: vec![".git/hooks".into(), ".envrc".into()],
            links: vec![("link".into(), "x".into())],
        })
        .unwrap()
    }

    #[test]
    fn b12_what_appears_is_moved_and_nothing_is_left_where_nothing_appeared() {
        let root = scratch("moved");
        assert!(watch(&root).finish().is_empty());
        assert_eq!(fs::read_dir(root.join("tree")).unwrap().count(), 0, "no stubs");

        for _ in 0..2 {
            let watch = watch(&root);
            fs::create_dir_all(root.join("tree/.git/hooks")).unwrap();
            fs::write(root.join("tree/.envrc"), "evil").unwrap();
            let found = watch.finish();
            assert_eq!(found.len(), 2, "{found:?}");
            assert!(found.iter().all(|found| found.moved.is_ok()));
            assert!(!root.join("tree/.git/hooks").exists() && !root.join("tree/.envrc").exists());
        }
        assert!(root.join("tree/.git/hooks.exeat-quarantine.1").is_dir());
        assert_eq!(fs::read(root.join("tree/.envrc.exeat-quarantine")).unwrap(), b"evil");
        fs::remove_dir_all(root).unwrap();
    }

    /// Unchanged it stays; another one, or anything else in its place, is what the stage has made.
    #[test]
    fn b13_a_link_that_was_replaced_is_moved() {
        let root = scratch("replaced");
        let at = root.join("tree/link");
        symlink("x", &at).unwrap();
        assert!(watch(&root).finish().is_empty());
        let replace: [fn(&Path); 3] = [
            |at| symlink("y", at).unwrap(),
            |at| fs::write(at, "x").unwrap(),
            |at| fs::create_dir(at).unwrap(),
        ];
        for replace in replace {
            let watch = watch(&root);
            fs::remove_file(&at).unwrap();
            replace(&at);
            let found = watch.finish();
            assert!(found.len() == 1 && found[0].moved.is_ok(), "{found:?}");
            assert!(fs::symlink_metadata(&at).is_err());
            symlink("x", &at).unwrap();
        }
        fs::remove_file(&at).unwrap();
        assert!(watch(&root).finish().is_empty(), "what is gone does nothing");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn b14_a_link_does_not_lead_the_move_out_of_the_tree() {
        let root = scratch("link");
        let watch = watch(&root);
        fs::create_dir_all(root.join("outside/hooks")).unwrap();
        symlink(root.join("outside"), root.join("tree/.git")).unwrap();
        let found = watch.finish();
        assert!(found.iter().all(|found| found.moved.is_err()), "{found:?}");
        assert!(root.join("outside/hooks").is_dir());
        fs::remove_dir_all(root).unwrap();
    }
}

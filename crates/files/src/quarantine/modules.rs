//! The directories of a repository's submodules and linked worktrees: which there are, and what leads git elsewhere from them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{SFlag, fstatat};

use super::descriptors::{PATH_MAX, entries, kind, open_beneath, open_file, retry_opened};
use super::git_names::{MODULES, WORKTREES, is_fan_out, is_old_head, is_repository_name};
use crate::git_path::gitdir_path;
use crate::protected::GIT_LINK;

/// Directories that are searched in one repository, and names in these: about half a second.
const DIRECTORIES: usize = 1 << 16;
const ENTRIES: usize = 1 << 20;
/// Names from the tree to a directory that cost nothing more.
const NEAR: usize = 16;
/// Bytes of `HEAD` that git reads to tell a repository.
const HEAD: u64 = 255;
/// The file that says where a linked worktree is.
pub(super) const GITDIR: &str = "gitdir";

/// A directory of a repository, of a submodule or of a linked worktree.
#[derive(Clone)]
pub(super) struct GitDir {
    /// Its place below the tree.
    pub(super) path: PathBuf,
    /// The place of the directory whose `config` counts.
    pub(super) config: PathBuf,
    /// Whether it came during the run.
    pub(super) is_new: bool,
}

impl GitDir {
    /// Returns whether it is that of a submodule or of a linked worktree.
    pub(super) fn is_held(&self) -> bool {
        let parts = self.path.iter().rev().skip(1);
        parts.take_while(|part| *part != GIT_LINK).any(|part| part == "modules" || part == "worktrees")
    }
}

/// The contents of the directory of a repository's submodules.
#[derive(Default)]
pub(super) struct Modules {
    /// The directories of submodules, by their places below the tree.
    pub(super) dirs: Vec<PathBuf>,
    /// The directories of linked worktrees of submodules, and those of the submodules.
    pub(super) worktrees: Vec<(PathBuf, PathBuf)>,
    /// Links that replace such directories, with their targets. git follows them.
    pub(super) links: Vec<(PathBuf, OsString)>,
    /// Directories with the name of a repository of any system, and `.git` files in those of submodules. git makes none here.
    pub(super) repositories: Vec<PathBuf>,
}

/// The kind of a directory below that of submodules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    /// A submodule, or a part of the name of one.
    Names,
    /// Somewhere in a submodule.
    Submodule,
    /// The directory of the worktrees of a submodule.
    Worktrees,
    /// The directory of such a worktree.
    Worktree,
}

/// The directories that are searched for submodules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// A submodule's own directories are passed over: git makes no submodules there.
    Usual,
    /// Everywhere: a stage can put a submodule into any directory, and `git fetch` uses it.
    Everywhere,
}

/// The remaining directories and names that are read in one repository.
pub(super) struct Room {
    directories: usize,
    entries: usize,
}

impl Room {
    pub(super) const FULL: Self = Self { directories: DIRECTORIES, entries: ENTRIES };

    pub(super) fn is_used_up(&self) -> bool {
        self.directories == 0 || self.entries == 0
    }

    /// Takes what it costs to open a directory: it is opened from the top.
    fn take_directory(&mut self, at: &Path) -> bool {
        let cost = 1 + at.components().count() / NEAR;
        self.directories = self.directories.saturating_sub(cost);
        !self.is_used_up()
    }
}

impl Modules {
    /// Reads the directories of a repository's submodules, and those of its linked worktrees, which have their own. Also returns the
    /// directories of the worktrees.
    pub(super) fn read(
        tree: &File,
        repository: &Path,
        reach: Reach,
        room: &mut Room,
    ) -> (Self, Vec<PathBuf>) {
        let mut found = Self::default();
        found.read_below(tree, repository.join(MODULES), reach, room);
        let worktrees = list_worktrees(tree, repository, room);
        for worktree in &worktrees {
            found.read_below(tree, worktree.join(MODULES), reach, room);
        }
        (found, worktrees)
    }

    fn read_below(&mut self, tree: &File, top: PathBuf, reach: Reach, room: &mut Room) {
        let mut next = vec![(top, Within::Names)];
        while let Some((at, within)) = next.pop() {
            // No call of git's takes a longer path.
            let is_long = at.as_os_str().len() >= PATH_MAX;
            let opened =
                if is_long || !room.take_directory(&at) { None } else { open_beneath(tree, &at).ok() };
            let Some(open) = opened else { continue };
            let has = |name: &str| {
                retry_opened(open.as_fd(), || fstatat(&open, name, AtFlags::AT_SYMLINK_NOFOLLOW)).is_ok()
            };
            // There are files of this name among the branches and in the logs.
            let is_module = has("HEAD")
                && match within {
                    Within::Names => true,
                    Within::Submodule | Within::Worktrees => {
                        has("commondir") || has("objects") && has("refs")
                    }
                    Within::Worktree => false,
                };
            let is_whole = is_module && is_git_dir(format!("/proc/self/fd/{}", open.as_raw_fd()));
            let (mut dirs, links) = list_open(open.as_fd(), room);
            self.repositories.extend(Some(at.join(GIT_LINK)).filter(|_| is_module && has(GIT_LINK)));
            self.repositories
                .extend(dirs.iter().filter(|name| is_repository_name(name)).map(|it| at.join(it)));
            if is_whole {
                // The hooks are protected as a whole, or moved.
                let is_usual =
                    |name: &OsStr| reach == Reach::Everywhere || name == WORKTREES || !is_gits_own(name);
                dirs.retain(|name| name != "hooks" && is_usual(name));
            }
            for (name, target) in links {
                let leads_to_file = || {
                    let end =
                        retry_opened(open.as_fd(), || fstatat(&open, name.as_os_str(), AtFlags::empty()));
                    end.is_ok_and(|end| kind(&end) == SFlag::S_IFREG)
                };
                let may_stay = within != Within::Names || is_module;
                if !may_stay || !is_old_head(&name, Path::new(&target)) && !leads_to_file() {
                    self.links.push((at.join(&name), target));
                }
            }
            // Most directories of a large submodule have nothing but objects in them.
            let is_leaf = |name: &OsString| {
                let stat = |path: &Path| {
                    retry_opened(open.as_fd(), || fstatat(&open, path, AtFlags::AT_SYMLINK_NOFOLLOW))
                };
                within == Within::Submodule
                    && is_fan_out(name)
                    && stat(Path::new(name)).is_ok_and(|stat| stat.st_nlink == 2)
                    && stat(&Path::new(name).join("HEAD")) == Err(Errno::ENOENT)
            };
            next.extend(dirs.into_iter().filter(|name| !is_leaf(name)).map(|name| {
                let within = match within {
                    Within::Worktrees => Within::Worktree,
                    _ if is_whole && name == WORKTREES => Within::Worktrees,
                    Within::Names if !is_whole => Within::Names,
                    _ => Within::Submodule,
                };
                (at.join(name), within)
            }));
            if is_module && !is_whole {
                // They count as soon as it is whole again. For now a submodule may have the name of one.
                let worktrees = list_worktrees(tree, &at, room).into_iter();
                self.worktrees.extend(worktrees.map(|worktree| (worktree, at.clone())));
            }
            if is_module {
                self.dirs.push(at);
            } else if within == Within::Worktree
                && let Some(module) = at.ancestors().nth(2)
            {
                self.worktrees.push((at.clone(), module.to_path_buf()));
            }
        }
    }
}

/// Returns whether git itself makes a directory of this name in a repository, with many others in it.
pub(crate) fn is_gits_own(name: &OsStr) -> bool {
    ["objects", "refs", "logs", "info", "hooks", "branches", "worktrees"].iter().any(|own| name == *own)
}

/// Returns whether git takes a directory for a repository's, whatever stands there (`is_git_directory` and `validate_headref` of git). Then it
/// refuses submodules in it, but for those in its `modules`.
pub(crate) fn is_git_dir(dir: impl AsRef<Path>) -> bool {
    let dir = dir.as_ref();
    let is_dir = |name: &str| {
        fs::symlink_metadata(dir.join(name)).is_ok_and(|meta| meta.is_dir() && meta.mode() & 0o100 != 0)
    };
    let head = || {
        let mut text = Vec::new();
        open_in(dir, "HEAD")?.take(HEAD).read_to_end(&mut text)?;
        Ok::<_, io::Error>(text)
    };
    let leads_to_branch = |text: &[u8]| {
        let name = text.strip_prefix(b"ref:").unwrap_or_default();
        let begin = name.iter().position(|byte| !b" \t\n\r".contains(byte)).unwrap_or(0);
        name.get(begin..).is_some_and(|name| name.starts_with(b"refs/"))
    };
    let is_object = |text: &[u8]| text.len() >= 40 && text.iter().take(40).all(u8::is_ascii_hexdigit);
    is_dir("objects")
        && is_dir("refs")
        && fs::symlink_metadata(dir.join("commondir")).is_err()
        && head().is_ok_and(|text| leads_to_branch(&text) || is_object(&text))
}

/// Opens a regular file of a directory, through no link at its name.
fn open_in(dir: &Path, name: &str) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(dir.join(name))?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Lists what leads git elsewhere from the directories of a repository's submodules and worktrees, by the places below the tree: links in the
/// place of submodules, and the files that say where a worktree is, each with where it leads. Also returns the directory of the repository
/// and those of its submodules and worktrees.
pub(super) fn pointers(tree: &File, repository: &Path) -> (Vec<(PathBuf, OsString)>, Vec<PathBuf>) {
    let (modules, worktrees) = Modules::read(tree, repository, Reach::Usual, &mut { Room::FULL });
    let of_modules = modules.worktrees.into_iter().map(|(worktree, _)| worktree);
    let worktrees: Vec<PathBuf> = worktrees.into_iter().chain(of_modules).collect();
    let gitdirs =
        worktrees.iter().filter_map(|worktree| Some((worktree.join(GITDIR), gitdir_of(tree, worktree)?)));
    let pointers = modules.links.into_iter().chain(gitdirs).collect();
    let dirs = [repository.to_path_buf()].into_iter().chain(modules.dirs).chain(worktrees).collect();
    (pointers, dirs)
}

/// Reads where a worktree is: the path of its `.git` (gitrepository-layout(5)). It is empty if that is not as git writes it, or cannot be
/// read: git may be able to later, and waits for what a pipe says.
pub(super) fn gitdir_of(tree: &File, worktree: &Path) -> Option<OsString> {
    let read = || {
        let dir = open_beneath(tree, worktree)?;
        let mut text = Vec::new();
        open_file(dir.as_fd(), OsStr::new(GITDIR))?.take(PATH_MAX as u64).read_to_end(&mut text)?;
        Ok::<_, io::Error>(gitdir_path(&text).map(OsString::from).unwrap_or_default())
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.unwrap_or_default()),
    }
}

/// Lists the directories of a repository's linked worktrees.
fn list_worktrees(tree: &File, repository: &Path, room: &mut Room) -> Vec<PathBuf> {
    let at = repository.join(WORKTREES);
    let listed = open_beneath(tree, &at).map(|dir| list_open(dir.as_fd(), room).0);
    listed.unwrap_or_default().into_iter().map(|name| at.join(name)).collect()
}

/// Lists the directories and the links in a directory, the latter with their targets.
fn list_open(dir: BorrowedFd<'_>, room: &mut Room) -> (Vec<OsString>, Vec<(OsString, OsString)>) {
    let (mut dirs, mut links) = Default::default();
    let Ok(listed) = retry_opened(dir, || entries(dir)) else { return (dirs, links) };
    for (name, kind) in listed.flatten().take(room.entries).collect::<Vec<_>>() {
        room.entries -= 1;
        // Not every file system says what it is.
        let may_be = |this| kind.is_none_or(|kind| kind == this);
        if may_be(Type::Symlink)
            && let Ok(target) = retry_opened(dir, || readlinkat(dir, name.as_os_str()))
        {
            links.push((name, target));
        } else if may_be(Type::Directory) {
            dirs.push(name);
        }
    }
    (dirs, links)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::{StateOfRun, Watch, WatchList, finish};

    use super::*;

    /// An obstacle that keeps git from a submodule can be gone later: the end of the run moves a `commondir`, and a user opens a directory.
    #[test]
    fn b14_worktrees_of_a_submodule_that_is_broken_lead_nowhere() {
        let breaks: [fn(&Path); 3] = [
            |_| (),
            |module| fs::write(module.join("commondir"), ".\n").unwrap(),
            |module| fs::set_permissions(module.join("objects"), fs::Permissions::from_mode(0o000)).unwrap(),
        ];
        for (number, break_it) in breaks.into_iter().enumerate() {
            for was_there in [false, true] {
                let tree = std::env::temp_dir().join(format!("modules-{}", std::process::id()));
                let module = tree.join(".git/modules/x");
                let gitdir = module.join("worktrees/w/gitdir");
                let make = || {
                    for dir in ["objects", "refs", "worktrees/w"] {
                        fs::create_dir_all(module.join(dir)).unwrap();
                    }
                    fs::write(module.join("HEAD"), "ref: refs/heads/main\n").unwrap();
                    fs::write(&gitdir, "/home/other/.git\n").unwrap();
                    break_it(&module);
                };
                fs::create_dir_all(tree.join(".git/modules")).unwrap();
                if was_there {
                    make();
                }
                let list = WatchList {
                    tree: tree.clone(),
                    repositories: vec![".git".into()],
                    ..WatchList::default()
                };
                let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
                if !was_there {
                    make();
                }
                let found = finish([&watch]).named;
                assert_eq!(gitdir.exists(), was_there, "{number} {found:?}");
                fs::set_permissions(module.join("objects"), fs::Permissions::from_mode(0o700)).unwrap();
                fs::remove_dir_all(tree).unwrap();
            }
        }
    }
}

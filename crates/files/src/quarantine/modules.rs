//! The directories of a repository's submodules and linked worktrees: which there are, and what leads git elsewhere from them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::dir::Type;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::fstatat;

use super::descriptors::{entries, let_in, open_beneath, open_file};
use crate::protected::GIT_LINK;

/// The maximal depth of submodules in `modules`, because their names may contain slashes.
const DEPTH: usize = 16;
/// Directories that are looked at in one repository.
pub(super) const DIRECTORIES: usize = 8192;
/// Bytes of `HEAD` that git reads to tell a repository.
const HEAD: u64 = 255;
/// Bytes of a `gitdir` that are read (PATH_MAX of linux/limits.h).
pub(super) const LONGEST_GITDIR: usize = 4096;
/// The file that says where a linked worktree is.
pub(super) const GITDIR: &str = "gitdir";

/// A directory of a repository, of a submodule or of a linked worktree.
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
    /// Links that replace such directories, with their targets. git follows them.
    pub(super) links: Vec<(PathBuf, OsString)>,
}

impl Modules {
    /// Reads the directories of a repository's submodules, and those of its linked worktrees, which have their own. Also returns the
    /// directories of the worktrees. `room` is the number of entries that are read.
    pub(super) fn read(tree: &File, repository: &Path, room: &mut usize) -> (Self, Vec<PathBuf>) {
        let mut found = Self::default();
        found.read_below(tree, &repository.join("modules"), false, DEPTH, room);
        let worktrees = list_worktrees(tree, repository, room);
        for worktree in &worktrees {
            found.read_below(tree, &worktree.join("modules"), false, DEPTH, room);
        }
        (found, worktrees)
    }

    /// `is_repository`: the directory is a repository's, and git's own directories in it hold no submodules.
    fn read_below(&mut self, tree: &File, at: &Path, is_repository: bool, depth: usize, room: &mut usize) {
        let (mut dirs, links) = list(tree, at, room);
        dirs.retain(|name| !is_repository || !is_gits_own(name));
        let links = links.into_iter().filter(|_| !is_repository);
        self.links.extend(links.map(|(name, target)| (at.join(name), target)));
        for dir in dirs.into_iter().map(|name| at.join(name)) {
            let (mut is_module, mut is_whole) = (false, false);
            if let Ok(open) = open_beneath(tree, &dir) {
                let head = let_in(open.as_fd(), || fstatat(&open, "HEAD", AtFlags::AT_SYMLINK_NOFOLLOW));
                is_module = head.is_ok();
                is_whole = is_module && is_git_dir(format!("/proc/self/fd/{}", open.as_raw_fd()));
            }
            if depth > 0 {
                self.read_below(tree, &dir, is_whole, depth - 1, room);
            }
            if is_module || depth == 0 {
                self.dirs.push(dir);
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
/// place of submodules, and the files that say where a worktree is, each with where it leads.
pub(super) fn pointers(tree: &File, repository: &Path) -> Vec<(PathBuf, OsString)> {
    let (modules, worktrees) = Modules::read(tree, repository, &mut DIRECTORIES.clone());
    let gitdirs = worktrees
        .into_iter()
        .filter_map(|worktree| Some((worktree.join(GITDIR), gitdir_of(tree, &worktree)?)));
    modules.links.into_iter().chain(gitdirs).collect()
}

/// Reads where a worktree is: the path of its `.git` (gitrepository-layout(5)).
pub(super) fn gitdir_of(tree: &File, worktree: &Path) -> Option<OsString> {
    let dir = open_beneath(tree, worktree).ok()?;
    let mut text = Vec::new();
    open_file(dir.as_fd(), OsStr::new(GITDIR))
        .ok()?
        .take(LONGEST_GITDIR as u64)
        .read_to_end(&mut text)
        .ok()?;
    Some(OsString::from_vec(text.trim_ascii_end().to_vec()))
}

/// Lists the directories of a repository's linked worktrees. `room` is the number of entries that are read.
fn list_worktrees(tree: &File, repository: &Path, room: &mut usize) -> Vec<PathBuf> {
    let at = repository.join("worktrees");
    list(tree, &at, room).0.into_iter().map(|name| at.join(name)).collect()
}

/// Lists the directories and the links in a directory, the latter with their targets.
fn list(tree: &File, at: &Path, room: &mut usize) -> (Vec<OsString>, Vec<(OsString, OsString)>) {
    let (mut dirs, mut links) = Default::default();
    let Ok(dir) = open_beneath(tree, at) else { return (dirs, links) };
    let Ok(listed) = let_in(dir.as_fd(), || entries(dir.as_fd())) else { return (dirs, links) };
    for (name, kind) in listed.flatten().take(*room).collect::<Vec<_>>() {
        *room -= 1;
        // Not every file system says what it is.
        let may_be = |this| kind.is_none_or(|kind| kind == this);
        if may_be(Type::Symlink)
            && let Ok(target) = let_in(dir.as_fd(), || readlinkat(&dir, name.as_os_str()))
        {
            links.push((name, target));
        } else if may_be(Type::Directory) {
            dirs.push(name);
        }
    }
    (dirs, links)
}

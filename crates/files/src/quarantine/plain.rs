//! Names that git obeys in a repository, with what git itself puts there: a configuration that names no program and no file, and hooks that are
//! samples. A stage that makes or clones a repository has these, and they stay.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use nix::dir::Type;

use super::Watch;
use super::descriptors::{PATH_MAX, entries, open_at, open_beneath, open_file, retry_opened};
use super::git_names::{MODULES, WORKTREES};
use super::modules::gitdir_of;
use super::store::QUARANTINE;
use crate::git_config::{self, Place};
use crate::git_path::git_file_target;
use crate::names::joined;
use crate::protected::{GIT, GIT_LINK};
use crate::walk::clean;

/// Bytes of a configuration, which is longer if its keys are many.
const CONFIG: u64 = 1 << 16;
/// Samples of hooks; git has 14.
const SAMPLES: usize = 64;
/// The directory of the hooks, and one that git once read remotes from. Templates have both.
const HOOKS: &str = "hooks";
const BRANCHES: &str = "branches";

impl Watch {
    /// Returns whether a name of git's may stay. `git` is the place of a repository's directory below the tree, and `name` the whole name in
    /// it; `dir` contains its last part. The end of another run that goes on judges it again.
    pub(super) fn may_stay(&self, git: &Path, name: &str, dir: BorrowedFd<'_>) -> bool {
        match name {
            "config" | "config.worktree" => self.is_plain_config(git, dir, name).unwrap_or(false),
            HOOKS => has_only(dir, name, |name, kind| {
                kind == Some(Type::File) && name.as_encoded_bytes().ends_with(b".sample")
            }),
            BRANCHES => has_only(dir, name, |_, _| false),
            _ => false,
        }
    }

    /// Returns whether a name of the tree is one of git's, and may stay: in a repository, or in a submodule or linked worktree that was known
    /// at the start.
    pub(super) fn may_stay_at(&self, name: &str, dir: BorrowedFd<'_>) -> bool {
        let held = self.list.held.iter().map(|held| held.0.as_path());
        let in_held = held.filter_map(|git| Some((git, Path::new(name).strip_prefix(git).ok()?.to_str()?)));
        let in_git = || {
            let at = name.rfind(GIT)? + GIT_LINK.len();
            Some((Path::new(name.get(..at)?), name.get(at + 1..)?))
        };
        let nearest = in_held.min_by_key(|(_, name)| name.len());
        nearest.or_else(in_git).is_some_and(|(git, name)| self.may_stay(git, name, dir))
    }

    fn is_plain_config(&self, git: &Path, dir: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
        let file = open_file(dir, OsStr::new(name))?;
        let meta = file.metadata()?;
        let mut text = Vec::new();
        file.take(CONFIG).read_to_end(&mut text)?;
        // By another name it could be written later.
        let is_alone = meta.nlink() == 1 && meta.len() < CONFIG;
        Ok(is_alone
            && git_config::is_plain(&text, |place| match place {
                Place::Worktree(to) => self.is_submodules_tree(git, to),
                Place::Repository(at) => self.is_elsewhere(git, at),
            }))
    }

    /// Returns whether a repository, by its path from a working tree, is there and lies outside of the tree, and of the directories that exeat
    /// keeps for stages. A stage could replace one in the tree, also by a link, and git runs its hooks when it pushes.
    fn is_elsewhere(&self, git: &Path, at: &OsStr) -> bool {
        let work = git.parent().filter(|_| git.ends_with(GIT_LINK));
        // git stands in the working tree, or else in the repository. A later stage could move one that is further down.
        let (work, at) = (work.unwrap_or(git), Path::new(at));
        let is_fixed = at.is_absolute() || work == Path::new("");
        let is_in_tree = |path: &Path| path.starts_with(&self.list.tree);
        is_fixed
            && !is_in_tree(&clean(&self.list.tree.join(work).join(at)))
            && self.place_of(work, at).is_some_and(|real| !is_in_tree(&real) && !self.is_of_exeat(&real))
    }

    /// Returns whether the working tree of a submodule is where git makes it: in a tree of the run, through no link, in the working tree of the
    /// outer repository, and not among what is that repository's own. It leads back to the submodule: git would write to any other directory
    /// as well.
    fn is_submodules_tree(&self, git: &Path, to: &OsStr) -> bool {
        let git = joined(&self.list.tree, git);
        let Some(outer) = self.outer_work(&git) else { return false };
        let to = Path::new(to);
        let mut parts = to.components().skip_while(|part| *part == Component::ParentDir);
        let is_plain = to.is_relative() && parts.all(|part| matches!(part, Component::Normal(_)));
        let place = clean(&git.join(to));
        let is_in_outer = place.strip_prefix(&outer).is_ok_and(|below| {
            !below.as_os_str().is_empty()
                && !below.iter().any(|part| part.eq_ignore_ascii_case(GIT_LINK) || part == QUARANTINE)
        });
        let leads_back_in = |(path, tree): &(PathBuf, File)| {
            let dir = place.strip_prefix(path).ok().and_then(|below| open_beneath(tree, below).ok());
            dir.is_some_and(|dir| leads_back(dir.as_fd(), &place, &git).unwrap_or(false))
        };
        let trees = self.later.trees.get();
        is_plain && is_in_outer && trees.is_some_and(|trees| trees.iter().any(leads_back_in))
    }

    /// Returns the working tree in which git makes the submodule that has this directory on the host: that of the outermost repository, or of
    /// the linked worktree. Then the words mean the same when all of it is moved.
    fn outer_work(&self, git: &Path) -> Option<PathBuf> {
        let in_tree = git.ancestors().take_while(|above| above.starts_with(&self.list.tree));
        let outer = in_tree.filter(|above| above.ends_with(GIT_LINK)).last()?;
        let mut parts = git.strip_prefix(outer).ok()?.iter();
        match (parts.next()?, parts.next(), parts.next()) {
            (first, ..) if first == MODULES => outer.parent().map(Path::to_path_buf),
            (first, Some(name), Some(third)) if first == WORKTREES && third == MODULES => {
                let worktree = outer.join(WORKTREES).join(name);
                let below = worktree.strip_prefix(&self.list.tree).ok()?;
                let gitdir = clean(&worktree.join(gitdir_of(&self.tree, below)?));
                gitdir.parent().map(Path::to_path_buf)
            }
            _ => None,
        }
    }
}

/// Returns whether the `.git` of a working tree is a file that leads to a repository, as git writes it for a submodule.
fn leads_back(work: BorrowedFd<'_>, place: &Path, git: &Path) -> io::Result<bool> {
    let mut text = Vec::new();
    open_file(work, OsStr::new(GIT_LINK))?.take(PATH_MAX as u64).read_to_end(&mut text)?;
    Ok(git_file_target(&place.join(GIT_LINK), &text).is_some_and(|to| to == git))
}

/// Returns whether a directory has nothing but such entries.
fn has_only(dir: BorrowedFd<'_>, name: &str, is_right: impl Fn(&OsStr, Option<Type>) -> bool) -> bool {
    let listed = retry_opened(dir, || open_at(dir, Path::new(name)))
        .and_then(|dir| retry_opened(dir.as_fd(), || entries(dir.as_fd())));
    listed.is_ok_and(|entries| {
        entries
            .take(SAMPLES + 1)
            .enumerate()
            .all(|(at, entry)| at < SAMPLES && entry.is_ok_and(|(name, kind)| is_right(&name, kind)))
    })
}

//! Directories of submodules and linked worktrees that came during a run, in `.git/modules` and `.git/worktrees`: git in the repository
//! adopts them by itself, and nobody sees them there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag};

use super::descriptors::{kind, let_in, open_above, open_beneath};
use super::modules::{DIRECTORIES, GITDIR, GitDir, Modules, gitdir_of, list_worktrees};
use super::pointers::Pointer;
use super::{Leftover, Watch};
use crate::protected::{self, GIT};
use crate::walk::clean;

/// The contents of a linked worktree's `commondir` (gitrepository-layout(5)).
const COMMONDIR: &str = "../..";

impl Watch {
    /// Notes the repositories that have appeared: a later run shows none of them around its working directory.
    pub(super) fn note_repositories(&self) -> Vec<Leftover> {
        let pointers = self.missing.pointers.iter().zip(&self.pointers);
        pointers.filter_map(|(name, was)| self.note_repository(name, *was)).collect()
    }

    /// Notes the directory at a name of `.git`, unless it was there at the start. Returns why it could not be noted.
    pub(super) fn note_repository(&self, name: &str, was: Pointer) -> Option<Leftover> {
        let Pointer::Directory(id) = Pointer::read(&self.tree, name) else { return None };
        let error = (was != Pointer::Directory(id)).then(|| self.keeper.note_repository(id).err())??;
        Some(Leftover { path: self.missing.tree.join(name), moved: Err(error) })
    }

    /// Moves aside what git obeys in the new ones. The others are protected as a whole, or were told at the start. Returns all of them.
    pub(super) fn settle_held(&self, found: &mut Vec<Leftover>) -> Vec<GitDir> {
        let known: BTreeSet<&Path> = self.missing.held.iter().map(Path::new).collect();
        let mut held = Vec::new();
        for (repository, before) in self.missing.repositories.iter().zip(&self.contents) {
            let repository = Path::new(repository);
            let mut room = DIRECTORIES;
            let mut modules = Modules::default();
            modules.read(&self.tree, repository, &mut room);
            for module in modules.dirs {
                let is_new = !known.contains(module.as_path());
                if is_new {
                    let names = protected::names().filter_map(|(name, _)| name.strip_prefix(GIT));
                    let names = names.filter_map(|name| module.join(name).to_str().map(str::to_owned));
                    found.extend(names.filter_map(|name| self.settle_name(&name)));
                }
                held.push(GitDir { path: module.clone(), config: module, is_new });
            }
            for (link, target) in modules.links {
                if before.has_link(&link, &target, self.keys) {
                    continue;
                }
                let (Ok(above), Some(name)) = (open_above(&self.tree, &link), link.file_name()) else {
                    continue;
                };
                found.extend(
                    self.settle_in(above.as_fd(), &link, name, |_, _, stat| kind(stat) != SFlag::S_IFLNK),
                );
            }
            for worktree in list_worktrees(&self.tree, repository, &mut room) {
                let is_new = !known.contains(worktree.as_path());
                if is_new {
                    found.extend(self.settle_worktree(&worktree));
                }
                let place = worktree.join(GITDIR);
                if let Some(gitdir) = gitdir_of(&self.tree, &worktree)
                    && !before.has_link(&place, &gitdir, self.keys)
                    && !self.has_worktree(&worktree, &gitdir)
                {
                    found.extend(place.to_str().and_then(|name| self.settle_name(name)));
                }
                held.push(GitDir { path: worktree, config: repository.to_path_buf(), is_new });
            }
            if room == 0 {
                let why =
                    "it holds too many directories: new submodules and worktrees in it may name commands";
                found.push(Leftover {
                    path: self.missing.tree.join(repository),
                    moved: Err(io::Error::other(why)),
                });
            }
        }
        held
    }

    /// Returns whether a worktree lies in the tree, at a place without a link on the way. `git worktree` writes to the place and removes it.
    fn has_worktree(&self, worktree: &Path, gitdir: &OsStr) -> bool {
        let place = clean(&self.missing.tree.join(worktree).join(gitdir));
        let below = place.strip_prefix(&self.missing.tree).ok().and_then(Path::parent);
        below.is_some_and(|below| open_beneath(&self.tree, below).is_ok())
    }

    /// Moves the files of a worktree that git does not make here. A worktree shares all but a few files with its repository, so git makes
    /// neither a configuration for it nor a `commondir` that leads elsewhere.
    fn settle_worktree(&self, worktree: &Path) -> Vec<Leftover> {
        let is_usual = || {
            let dir = open_beneath(&self.tree, worktree)?;
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            let file = File::from(let_in(dir.as_fd(), || openat(&dir, "commondir", flags, Mode::empty()))?);
            let mut text = String::new();
            let read = file.take(64).read_to_string(&mut text);
            Ok::<_, Errno>(read.is_ok() && text.trim_end() == COMMONDIR)
        };
        let names = ["config.worktree", "commondir"];
        let names = names.iter().filter(|name| **name != "commondir" || !is_usual().unwrap_or(false));
        let names = names.filter_map(|name| worktree.join(name).to_str().map(str::to_owned));
        names.filter_map(|name| self.settle_name(&name)).collect()
    }
}

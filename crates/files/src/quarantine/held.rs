//! Directories of submodules and linked worktrees that came during a run, in `.git/modules` and `.git/worktrees`: git in the repository
//! adopts them by itself, and nobody sees them there.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};

use super::descriptors::{entries, let_in, open_beneath};
use super::pointers::Pointer;
use super::{Leftover, Watch};
use crate::protected::{self, GIT};

/// The maximal depth of submodules in `modules`, because their names may contain slashes.
const DEPTH: usize = 8;
/// Directories that are looked at in one repository.
const DIRECTORIES: usize = 8192;
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

    /// Moves aside what git obeys in the new ones. The others are protected as a whole, or were told at the start.
    pub(super) fn settle_held(&self) -> Vec<Leftover> {
        let known: BTreeSet<&Path> = self.missing.held.iter().map(Path::new).collect();
        let mut found = Vec::new();
        for repository in &self.missing.repositories {
            let repository = Path::new(repository);
            let mut room = DIRECTORIES;
            self.settle_modules(&repository.join("modules"), &known, DEPTH, &mut room, &mut found);
            for worktree in self.directories(&repository.join("worktrees"), &mut room) {
                if !known.contains(worktree.as_path()) {
                    found.extend(self.settle_worktree(&worktree));
                }
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
        found
    }

    fn settle_modules(
        &self,
        at: &Path,
        known: &BTreeSet<&Path>,
        depth: usize,
        room: &mut usize,
        found: &mut Vec<Leftover>,
    ) {
        for module in self.directories(at, room) {
            let is_there = open_beneath(&self.tree, &module)
                .and_then(|dir| let_in(dir.as_fd(), || fstatat(&dir, "HEAD", AtFlags::AT_SYMLINK_NOFOLLOW)));
            match is_there {
                Err(_) if depth > 0 => self.settle_modules(&module, known, depth - 1, room, found),
                _ if known.contains(module.as_path()) => {}
                _ => {
                    let names = protected::names().filter_map(|(name, _)| name.strip_prefix(GIT));
                    let names = names.filter_map(|name| module.join(name).to_str().map(str::to_owned));
                    found.extend(names.filter_map(|name| self.settle_name(&name)));
                    self.settle_modules(&module.join("modules"), known, depth.saturating_sub(1), room, found);
                }
            }
        }
    }

    /// A worktree shares all but a few files with its repository: another place of that, and a configuration of its own, are not git's
    /// work here.
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

    /// Lists the directories in a directory.
    fn directories(&self, at: &Path, room: &mut usize) -> Vec<PathBuf> {
        let Ok(dir) = open_beneath(&self.tree, at) else { return Vec::new() };
        let Ok(listed) = let_in(dir.as_fd(), || entries(dir.as_fd())) else { return Vec::new() };
        let names: Vec<_> = listed.flatten().take(*room).collect();
        *room -= names.len();
        // Not every file system says what it is.
        let is_dir = |kind: &Option<Type>| kind.is_none_or(|kind| kind == Type::Directory);
        names.into_iter().filter(|(_, kind)| is_dir(kind)).map(|(name, _)| at.join(name)).collect()
    }
}

//! Directories of submodules and linked worktrees that came during a run, in `.git/modules` and `.git/worktrees`: git in the repository
//! adopts them by itself, and nobody sees them there.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::SFlag;

use super::descriptors::{PATH_MAX, entries, kind, open_above, open_beneath, open_file, retry_opened};
use super::git_names::{COMMON, CONFIG, MODULES, OF_WORKTREE};
use super::modules::{GITDIR, GitDir, Modules, Reach, Room, gitdir_of};
use super::pointers::Pointer;
use super::repository::naming_file;
use super::{Leftover, MAX_ENTRIES, Watch};
use crate::git_path::git_file_target;
use crate::names::open_regular;
use crate::protected::{GIT_LINK, names_in_git};
use crate::walk::clean;

/// The contents of a linked worktree's `commondir` (gitrepository-layout(5)).
pub(super) const COMMONDIR: &[u8] = b"../..";
impl Watch {
    /// Notes the repositories that have appeared: a later run shows none of them around its working directory.
    pub(super) fn note_repositories(&self) -> Vec<Leftover> {
        let pointers = self.list.pointers.iter().zip(&self.pointers);
        pointers.filter_map(|(name, was)| self.note_repository(name, *was)).collect()
    }

    /// Notes the directory at a name of `.git`, unless it was there at the start. Returns why it could not be noted.
    pub(super) fn note_repository(&self, name: &str, was: Pointer) -> Option<Leftover> {
        let Pointer::Directory(id) = Pointer::read(&self.tree, name) else { return None };
        let error =
            (was != Pointer::Directory(id)).then(|| self.state_of_run.note_repository(id).err())??;
        Some(Leftover { path: self.list.tree.join(name), moved: Err(error) })
    }

    /// Moves aside what git obeys in the new ones. The others are protected as a whole, or were told at the start. Returns all of them.
    pub(super) fn settle_held(&self, found: &mut Vec<Leftover>) -> Vec<GitDir> {
        let known: BTreeSet<&Path> = self.list.held.iter().map(|held| held.0.as_path()).collect();
        let mut held = Vec::new();
        for repository in &self.list.repositories {
            let repository = Path::new(repository);
            let mut room = Room::FULL;
            let (modules, worktrees) = Modules::read(&self.tree, repository, Reach::Everywhere, &mut room);
            for module in modules.dirs {
                let is_new = !known.contains(module.as_path());
                if is_new {
                    found.extend(self.settle_obeyed(&module, |_| true));
                } else if module.to_str().is_none() {
                    // It cannot be protected.
                    let new = OF_WORKTREE
                        .iter()
                        .map(|name| module.join(name))
                        .filter(|path| !self.is_as_it_was(path));
                    found.extend(new.filter_map(|path| self.settle_name(path)));
                }
                held.push(GitDir { path: module.clone(), config: module, is_new });
            }
            let new = modules.repositories.iter().filter(|path| self.is_changed_in(repository, path));
            found.extend(new.filter_map(|path| self.settle_name(path)));
            for (link, target) in modules.links {
                if self.had_link(&link, &target) {
                    continue;
                }
                let (Ok(above), Some(name)) = (open_above(&self.tree, &link), link.file_name()) else {
                    continue;
                };
                found.extend(
                    self.settle_in(above.as_fd(), &link, name, |_, _, stat| kind(stat) != SFlag::S_IFLNK),
                );
            }
            let worktrees = worktrees.into_iter().map(|worktree| (worktree, repository.to_path_buf()));
            for (worktree, config) in worktrees.chain(modules.worktrees) {
                let is_protected = known.contains(worktree.as_path());
                let is_new = !is_protected && !self.had_held(&worktree);
                let is_read_only = |path: &Path| {
                    let read_only = &self.list.read_only;
                    OF_WORKTREE.iter().any(|name| path.ends_with(name))
                        || path.to_str().is_some_and(|path| read_only.contains(path))
                };
                let is_writable = |path: &Path| !(is_protected && is_read_only(path));
                found.extend(self.settle_worktree(&worktree, is_writable));
                let place = worktree.join(GITDIR);
                if let Some(gitdir) = gitdir_of(&self.tree, &worktree) {
                    let is_known = self.had_link(&place, &gitdir);
                    found.extend(
                        self.settle_at(&place, |_, _, _| !self.leads_astray(&worktree, &gitdir, is_known)),
                    );
                }
                held.push(GitDir { path: worktree, config, is_new });
            }
            if room.is_used_up() {
                found.extend(self.settle_unknown_modules(repository, &known));
                let why =
                    "it holds too many directories: new submodules and worktrees in it may name commands";
                found.push(Leftover {
                    path: self.list.tree.join(repository),
                    moved: Err(io::Error::other(why)),
                });
            }
        }
        held
    }

    /// Whether a link was there at the start, and said this.
    fn had_link(&self, path: &Path, target: &OsString) -> bool {
        self.contents.iter().any(|it| it.has_link(path, target, self.keys))
    }

    /// Whether the directory of a submodule or a worktree was there at the start.
    fn had_held(&self, path: &Path) -> bool {
        self.contents.iter().any(|it| it.has_held(path, self.keys))
    }

    /// Whether a file that names paths is as it was at the start.
    pub(super) fn is_as_it_was(&self, path: &Path) -> bool {
        self.stat(path).is_ok_and(|stat| self.keeps_times_of(&stat))
            && naming_file(&self.tree, path, self.keys)
                .is_some_and(|file| self.contents.iter().any(|it| it.has_naming_file(file)))
    }

    /// Moves aside what git obeys in a directory of a repository, if it came or changed during the run and is not as git makes it.
    pub(super) fn settle_changed(&self, dir: &Path) -> Vec<Leftover> {
        self.settle_obeyed(dir, |path| self.is_changed_in(dir, path))
    }

    /// Moves aside what git obeys in a directory of a repository, of these names, and is not as git makes it.
    pub(super) fn settle_obeyed(&self, dir: &Path, is_new: impl Fn(&Path) -> bool) -> Vec<Leftover> {
        let names = names_in_git().map(|name| (name, dir.join(name))).filter(|(_, path)| is_new(path));
        names
            .filter_map(|(name, path)| self.settle_at(&path, |above, _, _| self.may_stay(dir, name, above)))
            .collect()
    }

    /// Moves aside whatever is new directly in the directory of submodules, where there is too much to be searched.
    fn settle_unknown_modules(&self, repository: &Path, known: &BTreeSet<&Path>) -> Vec<Leftover> {
        let modules = repository.join(MODULES);
        let listed = open_beneath(&self.tree, &modules).and_then(|dir| {
            let names = retry_opened(dir.as_fd(), || entries(dir.as_fd()))?;
            Ok(names.take(MAX_ENTRIES).flatten().map(|(name, _)| modules.join(name)).collect::<Vec<_>>())
        });
        let is_known = |path: &PathBuf| known.iter().any(|known| known.starts_with(path));
        let new = listed.unwrap_or_default().into_iter().filter(|path| !is_known(path));
        new.filter_map(|path| self.settle_name(path)).collect()
    }

    /// Returns whether the `gitdir` of a worktree can lead git to a place that the stage has chosen: `git worktree` writes there and removes
    /// it. In the tree, no link may be on the way. Outside, the caller has made the worktree before the run, or the `.git` there names
    /// this directory: then the caller made it meanwhile. No caller makes one among what exeat keeps for stages.
    pub(super) fn leads_astray(&self, worktree: &Path, gitdir: &OsStr, is_known: bool) -> bool {
        let gitdir = Path::new(gitdir);
        // git before 2.48 takes a relative path from where it was started, and later versions from the directory of the worktree.
        let is_relative = gitdir.is_relative() && !is_known;
        // To git, a slash at the end names something else. What git would not write is empty here.
        let is_named_so = gitdir.as_os_str().as_encoded_bytes().ends_with(b"/.git");
        if is_relative || !is_named_so {
            return true;
        }
        // `l/..` is elsewhere if `l` is a link.
        let mut parts = gitdir.components().skip_while(|part| *part == Component::ParentDir);
        let is_plain = parts.all(|part| part != Component::ParentDir);
        let dir = self.list.tree.join(worktree);
        let place = clean(&dir.join(gitdir));
        match place.strip_prefix(&self.list.tree).ok().and_then(Path::parent) {
            // A worktree that the caller has removed is not there.
            Some(below) => match open_beneath(&self.tree, below) {
                Ok(_) => {
                    let is_link = |stat| kind(&stat) == SFlag::S_IFLNK;
                    !is_plain || self.stat(&below.join(GIT_LINK)).is_ok_and(is_link)
                }
                Err(Errno::ENOENT) => !is_known || !is_plain,
                Err(_) => true,
            },
            None if self.is_of_exeat(&place) => true,
            None if self.place_of(worktree, gitdir).is_some_and(|real| self.is_of_exeat(&real)) => true,
            None if is_known => false,
            None => !is_plain || !points_to(&place, &dir),
        }
    }

    /// Moves the files of a worktree that git does not make here. A worktree shares all but a few files with its repository, so git makes
    /// no configuration for it, and always a `commondir` that leads to the repository. Another worktree may have this directory for its
    /// repository, now or in a later run: so all names of git's count.
    pub(super) fn settle_worktree(&self, worktree: &Path, is_new: impl Fn(&Path) -> bool) -> Vec<Leftover> {
        let is_usual = || {
            let dir = open_beneath(&self.tree, worktree)?;
            let mut text = Vec::new();
            open_file(dir.as_fd(), OsStr::new(COMMON))?.take(64).read_to_end(&mut text)?;
            // git cuts line feeds off at the end, and nothing else.
            let text = text.strip_suffix(b"\n").unwrap_or(&text);
            Ok::<_, io::Error>(text == COMMONDIR)
        };
        let common = worktree.join(COMMON);
        let is_reached = || {
            self.is_written_below(&common) || self.stat(&common).is_ok_and(|stat| self.has_new_name(&stat))
        };
        let is_linked = !is_reached() && (is_usual().unwrap_or(false) || self.is_as_it_was(&common));
        // Without a `commondir`, git treats it as a complete repository.
        let is_own = |path: &Path| path == common || path == worktree.join(CONFIG) && self.is_as_it_was(path);
        self.settle_obeyed(worktree, |path| is_new(path) && !(is_linked && is_own(path)))
    }
}

/// Returns whether the `.git` file of a worktree names a directory. Nothing of a stage's is read: no link is followed, and the file is outside of
/// the tree.
fn points_to(git: &Path, dir: &Path) -> bool {
    let mut text = Vec::new();
    let read = open_regular(git).and_then(|file| file.take(PATH_MAX as u64).read_to_end(&mut text));
    read.is_ok() && git_file_target(git, &text).is_some_and(|to| to == dir)
}

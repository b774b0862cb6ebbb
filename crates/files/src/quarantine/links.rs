//! Symbolic links that a stage makes in a repository's directory, taken away within milliseconds: git on the host would write through
//! them, into any file of the user's. And files that must hold numbers, but hold something else that a shell's prompt would run.
//!
//! Which names git writes to is git's choice, so every directory is watched that the search of a repository looks into.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, readlinkat};
use nix::sys::inotify::{AddWatchFlags, Inotify, InotifyEvent, WatchDescriptor};
use nix::sys::stat::{SFlag, fstatat};

use super::descriptors::{add_watch_for, entries, kind, open_beneath, rename_aside, retry_opened};
use super::git_names::{is_no_number, is_old_head, operation_of};
use super::repository::is_searched;
use super::{Leftover, Watch};

/// Links that are taken away in one run. No tool makes so many, and the host may meet each for a moment.
const MOST: u32 = 1000;
/// Links that are taken and stored at one go: meanwhile nobody looks for the names that programs obey at once.
const AT_ONCE: usize = 16;
/// Directories that are watched. More than at the start mean that the stage makes them for that.
const DIRS: usize = 16_384;

/// The directories of the repositories in all trees of a run.
#[derive(Debug)]
pub(super) struct NewLinks {
    dirs: HashMap<WatchDescriptor, RepositoryDir>,
    /// Names that something has come at; `None` for a whole directory that is not watched yet.
    due: Vec<(RepositoryDir, Option<OsString>)>,
    taken: u32,
}

/// A directory of a repository.
#[derive(Debug, Clone)]
struct RepositoryDir {
    watch: usize,
    repository: usize,
    /// Below the tree.
    path: PathBuf,
}

/// A link that has another name now.
pub(super) struct Taken {
    watch: usize,
    dir: OwnedFd,
    /// Its name before, below the tree.
    path: PathBuf,
    name: String,
}

impl Taken {
    /// Puts it into the quarantine.
    pub(super) fn store(self, watches: &[Watch]) -> Option<Leftover> {
        let Self { watch, dir, path, name } = self;
        watches.get(watch)?.settle_in(dir.as_fd(), &path, OsStr::new(&name), |_, _, _| false)
    }
}

impl NewLinks {
    /// Watches the directories that the search at the start has looked into.
    ///
    /// # Errors
    /// Returns errors of inotify_add_watch(2).
    pub(super) fn new(watches: &[Watch], inotify: &Inotify) -> nix::Result<Self> {
        let mut all = Self { dirs: HashMap::new(), due: Vec::new(), taken: 0 };
        for (number, watch) in watches.iter().enumerate() {
            for (repository, contents) in watch.contents.iter().enumerate() {
                for path in contents.directories().iter().take(DIRS - all.dirs.len()) {
                    let place = RepositoryDir { watch: number, repository, path: path.clone() };
                    if let Some(dir) = open(watch, path)? {
                        all.dirs.insert(watch_dir(inotify, &dir, operation_in(watches, &place))?, place);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Notes what has happened in a directory.
    pub(super) fn note(&mut self, event: &InotifyEvent, watches: &[Watch]) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            let tops = watches.iter().enumerate().flat_map(|(watch, it)| {
                let tops = it.list.repositories.iter().enumerate();
                tops.map(move |(repository, path)| {
                    (RepositoryDir { watch, repository, path: path.into() }, None)
                })
            });
            self.due.extend(tops);
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.dirs.remove(&event.wd);
        }
        if event
            .mask
            .intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_MODIFY)
            && let (Some(place), Some(name)) = (self.dirs.get(&event.wd), &event.name)
        {
            self.due.push((place.clone(), Some(name.clone())));
        }
    }

    /// Whether something has come.
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes away the names of some new links, and watches new directories. `taken` has these links, which the caller must store before it
    /// calls this again.
    ///
    /// # Errors
    /// Returns an error if a link cannot be taken, a directory cannot be watched, or a run has too many: the caller must end the stage.
    pub(super) fn settle(
        &mut self,
        watches: &[Watch],
        inotify: &Inotify,
        taken: &mut Vec<Taken>,
    ) -> io::Result<()> {
        while taken.len() < AT_ONCE
            && let Some((place, name)) = self.due.pop()
        {
            let Some(watch) = watches.get(place.watch) else { continue };
            let Some(dir) = open(watch, &place.path)? else { continue };
            if let Some(name) = name {
                self.look_at(watch, &place, &dir, &name, taken)?;
                continue;
            }
            let watched = watch_dir(inotify, &dir, operation_in(watches, &place))?;
            self.dirs.insert(watched, place.clone());
            if self.dirs.len() > DIRS {
                return Err(io::Error::other(format!(
                    "the stage has made more than {DIRS} directories in repositories"
                )));
            }
            for entry in retry_opened(dir.as_fd(), || entries(dir.as_fd()))? {
                let (name, kind) = entry?;
                if kind != Some(Type::File) || operation_in(watches, &place).is_some() {
                    self.due.push((place.clone(), Some(name)));
                }
            }
        }
        Ok(())
    }

    fn look_at(
        &mut self,
        watch: &Watch,
        place: &RepositoryDir,
        dir: &OwnedFd,
        name: &OsStr,
        taken: &mut Vec<Taken>,
    ) -> io::Result<()> {
        let (Some(repository), Some(contents)) =
            (watch.list.repositories.get(place.repository), watch.contents.get(place.repository))
        else {
            return Ok(());
        };
        let stat = match retry_opened(dir.as_fd(), || fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)) {
            Ok(stat) => stat,
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let path = place.path.join(name);
        if kind(&stat) == SFlag::S_IFDIR && is_searched(Path::new(repository), &place.path, name) {
            self.due.push((RepositoryDir { path, ..place.clone() }, None));
        } else if operation_of(Path::new(repository), &place.path)
            .is_some_and(|operation| is_no_number(operation, dir.as_fd(), name))
        {
            self.take(place, dir, name, path, taken)?;
        } else if kind(&stat) == SFlag::S_IFLNK {
            let Ok(target) = retry_opened(dir.as_fd(), || readlinkat(dir, name)) else { return Ok(()) };
            let is_known = contents.has_link(&path, &target, watch.keys)
                || !contents.knows(&place.path, watch.keys)
                || is_old_head(name, Path::new(&target));
            if !is_known {
                self.take(place, dir, name, path, taken)?;
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        place: &RepositoryDir,
        dir: &OwnedFd,
        name: &OsStr,
        path: PathBuf,
        taken: &mut Vec<Taken>,
    ) -> io::Result<()> {
        self.taken += 1;
        if self.taken > MOST {
            return Err(io::Error::other(format!(
                "the stage has made what git obeys in repositories {MOST} times"
            )));
        }
        match retry_opened(dir.as_fd(), || rename_aside(dir.as_fd(), name)) {
            Ok(name) => taken.push(Taken { watch: place.watch, dir: dir.try_clone()?, path, name }),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }
}

/// Returns the operation that a directory is of, if it has files that must hold numbers.
fn operation_in(watches: &[Watch], place: &RepositoryDir) -> Option<&'static str> {
    let repository = watches.get(place.watch)?.list.repositories.get(place.repository)?;
    operation_of(Path::new(repository), &place.path)
}

/// Watches a directory for new entries, and for changes of the files in it that must hold numbers.
fn watch_dir(inotify: &Inotify, dir: &OwnedFd, operation: Option<&str>) -> nix::Result<WatchDescriptor> {
    let more = if operation.is_some() { AddWatchFlags::IN_MODIFY } else { AddWatchFlags::empty() };
    retry_opened(dir.as_fd(), || add_watch_for(inotify, dir, more))
}

/// Opens a directory of a repository; `None` where there is none any more, or it is another user's and closed.
fn open(watch: &Watch, path: &Path) -> nix::Result<Option<OwnedFd>> {
    match open_beneath(&watch.tree, path) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES) => Ok(None),
        Err(errno) => Err(errno),
    }
}

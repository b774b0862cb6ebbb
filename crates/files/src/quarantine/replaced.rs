//! Files that exeat puts in the place of others while a run goes on.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, Flock, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::descriptors::{FileId, entries, id_of, kind, open_beneath, retry_opened, stat_in};
use super::{Leftover, Watch, store};

/// Files of one tree that are moved aside because they have such names. A killed exeat leaves one or two, and a stage may make more, which
/// lead nowhere.
const DRAFTS: usize = 16;

impl Watch {
    /// Keeps other runs of this user from replacing files until this is dropped.
    ///
    /// # Errors
    /// Returns an error if another run does not release the lock in time.
    pub fn lock(&self) -> io::Result<Option<Flock<File>>> {
        self.state_of_run.lock()
    }

    /// Replaces an entry of the tree with a file that has no name yet, and returns the new name of the old entry in the same directory. The
    /// name leads to one of the two at every moment. A live stage can put something else there meanwhile, so the caller must check what
    /// has the name afterwards.
    ///
    /// # Errors
    /// Returns errors of linkat(2) and renameat(2). Nothing has changed then.
    pub fn replace(&self, name: &Path, new: &File) -> io::Result<OsString> {
        let (above, last) = (self.above(name)?, name.file_name().unwrap_or_default());
        let (old, draft) = (store::beside(), store::beside());
        let replaced = retry_opened(above.as_fd(), || {
            linkat(&above, last, &above, old.as_str(), AtFlags::empty())?;
            link_unnamed(new, above.as_fd(), OsStr::new(&draft))?;
            renameat(&above, draft.as_str(), &above, last)
        });
        if let Err(errno) = replaced {
            for name in [&old, &draft] {
                let _ = retry_opened(above.as_fd(), || {
                    unlinkat(&above, name.as_str(), UnlinkatFlags::NoRemoveDir)
                });
            }
            return Err(errno.into());
        }
        Ok(old.into())
    }

    /// Gives a file that has no name yet a name in the tree.
    ///
    /// # Errors
    /// Returns errors of linkat(2), with `AlreadyExists` if something has the name. Nothing has changed then.
    pub fn give_name(&self, name: &Path, new: &File) -> io::Result<()> {
        let (above, last) = (self.above(name)?, name.file_name().unwrap_or_default());
        retry_opened(above.as_fd(), || link_unnamed(new, above.as_fd(), last)).map_err(io::Error::from)
    }

    /// Moves what was replaced into the quarantine. `old`: what [`Watch::replace`] has returned for the name.
    #[must_use]
    pub fn settle_replaced(&self, name: &Path, old: &OsStr) -> Leftover {
        let above = self.above(name);
        let moved = above.and_then(|above| self.set_aside(above.as_fd(), old, name)).map_err(io::Error::from);
        Leftover { path: self.list.tree.join(name), moved }
    }

    /// Notes a file of exeat's own that replaces another one, so that other runs keep it. Call it with the lock.
    ///
    /// # Errors
    /// Returns an error if the list cannot be written.
    pub fn note_own(&self, file: &File) -> io::Result<()> {
        self.state_of_run.note_own(file)
    }

    /// Whether a run of this user made this file. Call it with the lock.
    #[must_use]
    pub fn is_own(&self, file: &File) -> bool {
        self.state_of_run.is_own(file)
    }

    /// Opens a replaced file for reading. `old`: what [`Watch::replace`] has returned for the name.
    ///
    /// # Errors
    /// Returns errors of openat(2).
    pub fn open_replaced(&self, name: &Path, old: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let above = self.above(name)?;
        Ok(File::from(retry_opened(above.as_fd(), || openat(&above, old, flags, Mode::empty()))?))
    }

    /// Removes a replaced file. Call it if the new file has the same bytes. `old`: what [`Watch::replace`] has returned for the name.
    ///
    /// # Errors
    /// Returns errors of unlinkat(2).
    pub fn remove_replaced(&self, name: &Path, old: &OsStr) -> io::Result<()> {
        let above = self.above(name)?;
        retry_opened(above.as_fd(), || unlinkat(&above, old, UnlinkatFlags::NoRemoveDir))
            .map_err(io::Error::from)
    }

    /// Removes the second names that a killed exeat had given to replaced files, in the directories where something is read-only. By such a
    /// name a later stage could write to the file. The other files with such names are moved aside.
    pub(super) fn settle_replacements(&self) -> Vec<Leftover> {
        // A run that goes on may be replacing a file: then the names are its own.
        let drafts: Vec<_> = match self.lock() {
            Ok(_lock) => self.list.covered.iter().flat_map(|dir| self.remove_twins(Path::new(dir))).collect(),
            Err(_) => Vec::new(),
        };
        drafts.iter().take(DRAFTS).filter_map(|name| self.settle_name(name)).collect()
    }

    /// Removes such names of the files that are read-only in a directory. Returns the other files with such names.
    fn remove_twins(&self, dir: &Path) -> Vec<PathBuf> {
        let is_in = |name: &&Path| name.parent() == Some(dir);
        let own = self.list.read_only.iter().map(Path::new).filter(is_in);
        let own: HashSet<FileId> = own.filter_map(|name| Some(id_of(&self.stat(name).ok()?))).collect();
        let Ok(opened) = open_beneath(&self.tree, dir) else { return Vec::new() };
        let listed = retry_opened(opened.as_fd(), || entries(opened.as_fd()));
        let names = listed.into_iter().flatten().flatten().map(|(name, _)| name);
        let mut drafts = Vec::new();
        for name in names.filter(|name| store::is_quarantine_name(name)) {
            let Ok(stat) = stat_in(opened.as_fd(), name.as_os_str()) else { continue };
            let path = dir.join(&name);
            if own.contains(&id_of(&stat)) && self.remove_replaced(&path, &name).is_ok() {
                continue;
            }
            if kind(&stat) == SFlag::S_IFREG && drafts.len() < DRAFTS {
                drafts.push(path);
            }
        }
        drafts
    }
}

/// Gives a file without a name a name in a directory.
fn link_unnamed(file: &File, dir: BorrowedFd<'_>, name: &OsStr) -> nix::Result<()> {
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(AT_FDCWD, unnamed.as_str(), dir, name, AtFlags::AT_SYMLINK_FOLLOW)
}

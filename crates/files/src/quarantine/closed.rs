//! Directories that a stage has closed to their owner. They are open as long as the end of the run judges what is behind them: a configuration, a
//! link or a file names it by its path, and the owner may open the directory later.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use nix::sys::stat::{FileStat, fstat};

use super::Watch;
use super::descriptors::{Reopened, close_again, id_of, open_beneath, open_to_owner};

/// The owner's rights to list a directory and to look into it.
const READABLE: u32 = 0o500;

impl Watch {
    /// Opens the tree itself, as [`Watch::open_closed`] does.
    pub(super) fn open_tree(&self) {
        if let Ok(stat) = fstat(&self.tree) {
            self.open_closed(Path::new(""), &stat, || self.tree.as_fd().try_clone_to_owned().ok());
        }
    }

    /// Opens a directory that the stage has closed to its owner, until [`Watch::close_again`]. No descriptor of it is kept: a stage can
    /// close more directories than a process may have descriptors.
    pub(super) fn open_closed(&self, path: &Path, stat: &FileStat, open: impl FnOnce() -> Option<OwnedFd>) {
        if stat.st_mode & READABLE == READABLE || !self.may_have_changed(stat) {
            return;
        }
        let is_same = |dir: &OwnedFd| fstat(dir).is_ok_and(|now| id_of(&now) == id_of(stat));
        let opened = open().filter(is_same).and_then(|dir| open_to_owner(dir.as_fd()).ok());
        if let Some((was, now)) = opened {
            self.later.reopened.add(Reopened { path: path.to_path_buf(), id: id_of(stat), was, now });
        }
    }

    /// Closes the directories again, those below another one first. One that has another mode by now keeps it.
    pub(super) fn close_again(&self) {
        for Reopened { path, id, was, now } in self.later.reopened.take().into_iter().rev() {
            let Ok(dir) = open_beneath(&self.tree, &path) else { continue };
            if fstat(&dir).is_ok_and(|stat| id_of(&stat) == id) {
                close_again(dir.as_fd(), was, now);
            }
        }
    }
}

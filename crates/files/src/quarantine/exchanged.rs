//! Directories of a stage that the host sees under another name: an empty directory has their place until the stage has ended.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::descriptors::{FileId, entries, id_of, kind, open_above, open_beneath, retry_opened};
use super::store::{Intent, beside, make_fresh, owner_of, rename_into};
use super::{Item, Leftover, Watch};
use crate::protected::REPOSITORIES;

/// The most entries that are moved at once out of a directory that was empty.
const ENTRIES: usize = 64;
/// The mode of an empty directory of ours: by this other runs know it. The sticky bit says nothing in a directory that only its owner may
/// write to. A stage that makes one so gains nothing: what appears in it is moved.
pub(super) const PLACEHOLDER: Mode = Mode::S_IRWXU.union(Mode::S_ISVTX);

/// A directory of the stage's that was exchanged for an empty one.
#[derive(Debug)]
pub(super) struct Exchanged {
    /// Its earlier path below the tree.
    pub(super) from: PathBuf,
    /// Its present path below the tree.
    pub(super) to: PathBuf,
    pub(super) placeholder: FileId,
    /// The run was killed, and this is a later one.
    pub(super) is_resumed: bool,
}

impl Watch {
    /// Looks up a name of the tree.
    pub(super) fn stat(&self, name: &Path) -> nix::Result<FileStat> {
        let above = self.above(name)?;
        let last = name.file_name().unwrap_or_default();
        retry_opened(above.as_fd(), || fstatat(&above, last, AtFlags::AT_SYMLINK_NOFOLLOW))
    }

    /// The directory that a name of the tree is in.
    pub(super) fn above(&self, name: &Path) -> nix::Result<OwnedFd> {
        open_above(&self.tree, name)
    }

    /// Makes an empty directory at the top of the tree.
    pub(super) fn make_empty(&self, name: &OsStr) -> io::Result<OwnedFd> {
        let owner = owner_of(self.tree())?;
        Ok(retry_opened(self.tree(), || make_fresh(self.tree(), name, PLACEHOLDER, owner))?)
    }

    /// Moves what is in a directory that was empty.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be listed.
    pub(super) fn settle_entries(&self, dir: BorrowedFd<'_>, at: &Path) -> nix::Result<Vec<Leftover>> {
        let listed = retry_opened(dir, || entries(dir))?;
        let names: Vec<_> = listed.flatten().take(ENTRIES).map(|(name, _)| name).collect();
        let settle = |name: &OsString| self.settle_in(dir, &at.join(name), name, |_, _, _| false);
        Ok(names.iter().filter_map(settle).collect())
    }

    /// Takes over what a killed run had exchanged. What it was renaming at that moment goes into the quarantine first: those items are
    /// returned.
    pub(super) fn resume_exchanged(&self, moved: &[Item]) -> Vec<Item> {
        let tree = &self.list.tree;
        let mut all: Vec<Item> = moved.iter().filter(|it| it.tree == *tree).cloned().collect();
        let known = all.len();
        let intents = self.state_of_run.intents();
        all.extend(intents.iter().filter(|it| it.tree == *tree).filter_map(|it| self.resume_intent(it)));
        let exchanged = all.iter().filter(|item| self.stat(&item.to).is_ok()).filter_map(|item| {
            let (from, to) = (item.from.clone(), item.to.clone());
            Some(Exchanged { from, to, placeholder: item.placeholder?, is_resumed: true })
        });
        self.later.exchanged.lock().unwrap_or_else(PoisonError::into_inner).extend(exchanged);
        all.split_off(known)
    }

    fn resume_intent(&self, intent: &Intent) -> Option<Item> {
        let Intent { from, beside, placeholder, .. } = intent;
        let stat = self.stat(beside).ok()?;
        if id_of(&stat) == *placeholder {
            // The two were not exchanged.
            let _ = self.remove_empty(beside);
            return None;
        }
        let (store, last) = (self.store().ok()?, beside.file_name()?);
        let take = || store.take_as(self.tree(), last, from, Some(*placeholder));
        retry_opened(self.tree(), take).ok()
    }

    /// Notes that a directory is about to have another name for a moment. Without the note, a run that is killed at that moment leaves
    /// it under that name.
    pub(super) fn note_intent(&self, from: &Path, beside: &Path, placeholder: FileId) {
        let (tree, from, beside) = (self.list.tree.clone(), from.to_path_buf(), beside.to_path_buf());
        let noted = self.state_of_run.note_intent(&Intent { tree, from, beside, placeholder });
        if let Err(error) = noted {
            let _ = self.later.unlisted.set(format!("`{}`: {error}", self.list.tree.display()));
        }
    }

    /// Removes the empty directories when the stage has ended, and gives repositories their places back. Returns what appeared
    /// in the directories, and the repositories that could not be put back.
    pub(super) fn settle_exchanged(&self) -> Vec<Leftover> {
        let exchanged =
            std::mem::take(&mut *self.later.exchanged.lock().unwrap_or_else(PoisonError::into_inner));
        let mut all = Vec::new();
        // The last first: it may lie in another one.
        for item in exchanged.iter().rev() {
            let is_ours = || self.stat(&item.from).is_ok_and(|stat| id_of(&stat) == item.placeholder);
            let empty = open_beneath(&self.tree, &item.from).ok().filter(|_| is_ours());
            // After a kill what is in it may be the user's.
            let is_theirs = item.is_resumed && !empty.as_ref().is_some_and(|dir| is_empty(dir.as_fd()));
            if let Some(dir) = empty.filter(|_| !item.is_resumed) {
                all.extend(self.settle_entries(dir.as_fd(), &item.from).into_iter().flatten());
            }
            let is_repository = REPOSITORIES.iter().any(|name| item.from.ends_with(name));
            let given_back = match (is_ours() && !is_theirs, is_repository) {
                (true, true) => self.give_back(item, &mut all),
                (true, false) => self.remove_empty(&item.from).map_err(|_| item.to.clone()),
                (false, _) => Err(item.to.clone()),
            };
            if let Err(to) = given_back
                && is_repository
            {
                let at = |path: &Path| self.list.tree.join(path);
                all.push(Leftover { path: at(&item.from), moved: Ok(at(&to)) });
            }
        }
        all
    }

    fn remove_empty(&self, at: &Path) -> nix::Result<()> {
        let (above, last) = (self.above(at)?, at.file_name().unwrap_or_default());
        retry_opened(above.as_fd(), || unlinkat(&above, last, UnlinkatFlags::RemoveDir))
    }

    /// Gives a repository its place back. What git obeys in it is moved first, while it has a name that git does not look for.
    ///
    /// # Errors
    /// Returns the path where the repository is instead.
    fn give_back(&self, item: &Exchanged, found: &mut Vec<Leftover>) -> Result<(), PathBuf> {
        let tree = self.tree();
        let way = PathBuf::from(beside());
        let last = item.to.file_name().unwrap_or_default();
        self.note_intent(&item.from, &way, item.placeholder);
        let renamed = self.above(&item.to).and_then(|from| rename(from.as_fd(), last, tree, way.as_os_str()));
        renamed.map_err(|_| item.to.clone())?;
        let store = self.later.store.get();
        if let Some(store) = store {
            store.give_back(&item.to);
        }
        // A live stage may have put something else in its place.
        let is_dir =
            fstatat(tree, &way, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok_and(|stat| kind(&stat) == SFlag::S_IFDIR);
        let mut moved = Vec::new();
        for name in self.list.names.iter().filter(|_| is_dir) {
            let Ok(inner) = Path::new(&name.name).strip_prefix(&item.from) else { continue };
            let at = way.join(inner);
            match self.above(&at) {
                Ok(dir) => {
                    let last = at.file_name().unwrap_or_default();
                    let may =
                        |dir: BorrowedFd<'_>, _: &OsStr, _: &FileStat| self.may_stay_at(&name.name, dir);
                    moved.extend(self.settle_in(dir.as_fd(), Path::new(&name.name), last, may));
                }
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(errno) => {
                    moved.push(Leftover { path: self.list.tree.join(&at), moved: Err(errno.into()) })
                }
            }
        }
        let is_settled = is_dir && moved.iter().all(|found| found.moved.is_ok());
        found.append(&mut moved);
        let back = || {
            self.remove_empty(&item.from)?;
            let (above, last) = (self.above(&item.from)?, item.from.file_name().unwrap_or_default());
            rename(tree, way.as_os_str(), above.as_fd(), last)
        };
        if is_settled && back().is_ok() {
            return Ok(());
        }
        // Without a quarantine it stays under a name that no program obeys.
        let taken =
            store.and_then(|store| retry_opened(tree, || store.take(tree, way.as_os_str(), &item.from)).ok());
        Err(taken.unwrap_or(way))
    }
}

fn rename(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>, new: &OsStr) -> nix::Result<()> {
    retry_opened(from, || retry_opened(to, || rename_into(from, name, to, new)))
}

/// Returns whether it is an empty directory of a run, or looks like one. It has the set-group-ID bit if the directory above has.
pub(super) fn is_placeholder(stat: &FileStat) -> bool {
    let inherited = Mode::S_ISGID.bits();
    kind(stat) == SFlag::S_IFDIR && stat.st_mode & 0o7777 & !inherited == PLACEHOLDER.bits()
}

pub(super) fn is_empty(dir: BorrowedFd<'_>) -> bool {
    retry_opened(dir, || entries(dir)).is_ok_and(|mut entries| entries.next().is_none())
}

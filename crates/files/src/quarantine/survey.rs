//! The files that programs obey in repositories further down, as the caller had them. A thread reads them while the sandbox is made, so that no
//! start waits for it.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::iter;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};

use nix::sys::stat::{FileStat, SFlag};

use super::descriptors::{entries, kind, let_in, open_above, open_at, open_beneath, open_file, stat_in};
use super::git_names::NAMING;
use super::journal::{Journal, add_noted};
use super::modules::GITDIR;
use super::named::top_of;
use super::nested::{jujutsu_link, obeyed_in_other};
use super::repository::{OPERATIONS, version};
use super::{REPOSITORY, Watch};
use crate::protected::names_in_git;

/// Entries of a directory, and of those in it, that are compared.
const ENTRIES: usize = 1 << 12;
/// Bytes that are read at one place.
const BYTES: u64 = 1 << 20;

/// A thread that reads these files. It ends when this is dropped.
#[derive(Debug)]
pub struct Survey {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Survey {
    /// Starts the thread. Without one, the times of these files decide alone. The journal gets what was noted, for the next start if this
    /// process is killed.
    #[must_use]
    pub fn start(watches: Arc<[Watch]>, journal: Option<&Journal>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let journal = journal.and_then(|journal| journal.to_add().ok());
        let read = move || {
            watches.iter().for_each(|watch| watch.note_nested(&|| over.load(Ordering::Relaxed)));
            let _ = journal.map(|journal| add_noted(journal, &watches));
        };
        let thread = thread::Builder::new().name("survey".into()).spawn(read).ok();
        Self { is_over, thread }
    }
}

impl Drop for Survey {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Watch {
    /// Notes that the stage may run from now on.
    pub fn stage_starts(&self) {
        self.noted.has_stage.store(true, Ordering::SeqCst);
    }

    /// Reads what the caller has in the repositories that are not protected.
    pub(super) fn note_nested(&self, is_over: &dyn Fn() -> bool) {
        self.note_file_modes();
        let nested = self.find_nested(true, is_over);
        let names = || names_in_git().chain(OPERATIONS).chain(NAMING).chain(iter::once(GITDIR));
        for git in nested.dirs.iter().take_while(|_| !is_over()) {
            names().for_each(|name| self.note(&git.path, &git.path.join(name)));
        }
        for (git, work) in self.naming_repositories(&nested).take_while(|_| !is_over()) {
            self.named_by(&git, work).iter().for_each(|path| self.note(top_of(path), path));
        }
        for other in &nested.others {
            obeyed_in_other(other).for_each(|name| self.note(other, &other.join(name)));
            jujutsu_link(other).iter().for_each(|link| self.note(other, link));
        }
        nested.files.iter().for_each(|file| self.note(file, file));
        nested.links.iter().for_each(|link| self.note_unless(link, link, || self.is_new_link(link)));
    }

    fn note(&self, repository: &Path, path: &Path) {
        self.note_unless(repository, path, || self.has_new_time(repository, path));
    }

    fn note_unless(&self, repository: &Path, path: &Path, is_new: impl Fn() -> bool) {
        let Some(mark) = self.mark(repository, path) else { return };
        // In this order: the stage has changed nothing before it runs. Another one may have.
        let has_stage = self.noted.has_stage.load(Ordering::SeqCst) || !self.beside.is_empty();
        if !has_stage || !is_new() {
            self.noted.marks.lock().unwrap_or_else(PoisonError::into_inner).insert(mark);
        }
    }

    /// Returns whether a file or a directory was there at the start with all that is in it now, and git took the repository's directory for
    /// the same kind of thing.
    pub(super) fn is_noted(&self, repository: &Path, path: &Path) -> bool {
        let marks = self.noted.marks.lock().unwrap_or_else(PoisonError::into_inner);
        !marks.is_empty() && self.mark(repository, path).is_some_and(|mark| marks.contains(&mark))
    }

    /// Returns the hash of a place and the versions of all that is there. `None` if nothing is, or too much.
    fn mark(&self, repository: &Path, path: &Path) -> Option<u64> {
        let (mut bytes, mut sum) = (BYTES, 0_u64);
        let visited = self.visit_all(path, |below, dir, name, stat| {
            let version = self.version_in(dir, name, stat, &mut bytes)?;
            sum = sum.wrapping_add(self.keys.hash_one((below.as_os_str(), version)));
            Ok(())
        });
        // Which files git obeys in a directory depends on these names in it.
        let dir = open_beneath(&self.tree, repository).ok();
        let role = dir.map(|dir| REPOSITORY.map(|name| stat_in(dir.as_fd(), name).is_ok()));
        visited.ok().map(|()| self.keys.hash_one((path.as_os_str(), role, sum)))
    }

    /// Returns the version of an entry: the mode and the content of a file, as long as there is room for that, and otherwise the identity and
    /// the time of the last change.
    fn version_in(
        &self,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        stat: &FileStat,
        bytes: &mut u64,
    ) -> io::Result<u64> {
        if kind(stat) == SFlag::S_IFDIR {
            // What is in it is visited, too.
            return Ok(self.keys.hash_one(stat.st_mode));
        }
        let is_file = kind(stat) == SFlag::S_IFREG;
        let is_small = u64::try_from(stat.st_size).is_ok_and(|size| size < *bytes);
        // By a second name it could be written later: the time tells whether that is new.
        if is_file && is_small && stat.st_nlink == 1 {
            let mut text = Vec::new();
            *bytes -= open_file(dir, name)?.take(*bytes).read_to_end(&mut text)? as u64;
            if *bytes > 0 {
                return Ok(self.keys.hash_one((stat.st_mode, text)));
            }
        }
        if is_file && self.keeps_no_times() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(self.keys.hash_one(version(stat)))
    }

    /// Calls a function for an entry of the tree, and for each entry below it if it is a directory, with the path from there.
    ///
    /// # Errors
    /// Returns an error if nothing is there, if there is too much, if a directory cannot be read, or if the function does.
    pub(super) fn visit_all(
        &self,
        path: &Path,
        mut visit: impl FnMut(&Path, BorrowedFd<'_>, &OsStr, &FileStat) -> io::Result<()>,
    ) -> io::Result<()> {
        let (above, name) = (open_above(&self.tree, path)?, path.file_name().unwrap_or_default());
        let stat = stat_in(above.as_fd(), name)?;
        visit(Path::new(""), above.as_fd(), name, &stat)?;
        if kind(&stat) != SFlag::S_IFDIR {
            return Ok(());
        }
        let top = let_in(above.as_fd(), || open_at(above.as_fd(), Path::new(name)))?;
        let (mut next, mut left) = (vec![PathBuf::new()], ENTRIES);
        while let Some(at) = next.pop() {
            let dir = let_in(top.as_fd(), || open_at(top.as_fd(), &at))?;
            for entry in let_in(dir.as_fd(), || entries(dir.as_fd()))? {
                let (name, _) = entry?;
                left = left.checked_sub(1).ok_or(io::ErrorKind::FileTooLarge)?;
                let stat = stat_in(dir.as_fd(), &name)?;
                let below = at.join(&name);
                visit(&below, dir.as_fd(), &name, &stat)?;
                next.extend((kind(&stat) == SFlag::S_IFDIR).then_some(below));
            }
        }
        Ok(())
    }
}

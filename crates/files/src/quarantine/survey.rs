//! The files that programs obey in repositories further down, as the caller had them. A thread reads them while the sandbox is made, so that no
//! start waits for it.

use std::ffi::OsStr;
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::iter;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};

use nix::sys::stat::{FileStat, SFlag};

use super::descriptors::{
    entries, kind, open_above, open_at, open_beneath, open_file, retry_opened, stat_in,
};
use super::git_names::NAMING;
use super::journal::add_noted;
use super::modules::GITDIR;
use super::named::top_of;
use super::nested::{jujutsu_link, obeyed_in_other};
use super::repository::{OPERATIONS, version};
use super::times::LargeRoom;
use super::{REPOSITORY, Watch};
use crate::protected::names_in_git;

/// Entries of a directory, and of those in it, that are compared.
const ENTRIES: usize = 1 << 12;
/// Bytes that are read at one place.
const BYTES: u64 = 1 << 20;
/// Bytes of a file that are hashed at once.
const PART: u64 = 1 << 16;

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
    pub fn start(watches: Arc<[Watch]>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let read = move || {
            watches.iter().for_each(|watch| watch.note_nested(&|| over.load(Ordering::Relaxed)));
            let _ = add_noted(&watches);
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
        let _large = self.noted.large.lock().unwrap_or_else(PoisonError::into_inner);
        self.noted.has_stage.store(true, Ordering::SeqCst);
    }

    /// Reads what the caller has in the repositories that are not protected.
    pub(super) fn note_nested(&self, is_over: &dyn Fn() -> bool) {
        self.note_file_modes();
        let nested = self.find_nested(true, is_over);
        let mut large = Vec::new();
        let names = || names_in_git().chain(OPERATIONS).chain(NAMING).chain(iter::once(GITDIR));
        for git in nested.dirs.iter().take_while(|_| !is_over()) {
            large.extend(names().filter_map(|name| self.note(&git.path, &git.path.join(name))));
        }
        for (git, work) in self.naming_repositories(&nested).take_while(|_| !is_over()) {
            let named = self.named_by(&git, work).into_iter();
            large.extend(named.filter_map(|path| self.note(top_of(&path), &path)));
        }
        for other in &nested.others {
            let names = obeyed_in_other(other).map(|name| other.join(name)).chain(jujutsu_link(other));
            large.extend(names.filter_map(|path| self.note(other, &path)));
        }
        large.extend(nested.files.iter().filter_map(|file| self.note(file, file)));
        for link in &nested.links {
            let _ = self.note_unless(link, link, &mut { BYTES }, || self.is_new_link(link));
        }
        // They come last: the rest is to be read before the stage runs.
        let _large = self.noted.large.lock().unwrap_or_else(PoisonError::into_inner);
        let mut room = LargeRoom::default();
        for (repository, path) in large.iter().take_while(|_| !self.may_have_stage() && !is_over()) {
            let _ = self.note_unless(repository, path, &mut room.0, || true);
        }
    }

    /// Notes a file or a directory. Returns it with its repository if it is too large, and the times in the tree tell nothing.
    fn note(&self, repository: &Path, path: &Path) -> Option<(PathBuf, PathBuf)> {
        let is_new = || self.has_new_time(repository, path);
        let noted = self.note_unless(repository, path, &mut { BYTES }, is_new);
        Self::is_too_large(&noted).then(|| (repository.to_path_buf(), path.to_path_buf()))
    }

    fn note_unless(
        &self,
        repository: &Path,
        path: &Path,
        bytes: &mut u64,
        is_new: impl Fn() -> bool,
    ) -> io::Result<()> {
        let mark = self.mark(repository, path, bytes)?;
        // In this order: the stage has changed nothing before it runs.
        if !self.may_have_stage() || !is_new() {
            self.noted.marks.lock().unwrap_or_else(PoisonError::into_inner).insert(mark);
        }
        Ok(())
    }

    /// Returns whether this stage, or another one, may change something in the tree.
    pub(super) fn may_have_stage(&self) -> bool {
        self.noted.has_stage.load(Ordering::SeqCst) || !self.beside.is_empty()
    }

    fn is_too_large<T>(read: &io::Result<T>) -> bool {
        read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::FileTooLarge)
    }

    /// Returns whether a file or a directory was there at the start with all that is in it now, and git took the repository's directory for
    /// the same kind of thing.
    pub(super) fn is_noted(&self, repository: &Path, path: &Path) -> bool {
        let marks = self.noted.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.is_empty() {
            return false;
        }
        let mut mark = self.mark(repository, path, &mut { BYTES });
        if Self::is_too_large(&mark) {
            let mut room = self.noted.large.lock().unwrap_or_else(PoisonError::into_inner);
            mark = self.mark(repository, path, &mut room.0);
        }
        mark.is_ok_and(|mark| marks.contains(&mark))
    }

    /// Returns the hash of a place and the versions of all that is there. `bytes` is the room for what is read.
    ///
    /// # Errors
    /// Returns the error that prevents reading it, with `FileTooLarge` if that is too much.
    fn mark(&self, repository: &Path, path: &Path, bytes: &mut u64) -> io::Result<u64> {
        let mut sum = 0_u64;
        self.visit_all(path, |below, dir, name, stat| {
            let version = self.version_in(dir, name, stat, bytes)?;
            sum = sum.wrapping_add(self.keys.hash_one((below.as_os_str(), version)));
            Ok(())
        })?;
        // Which files git obeys in a directory depends on these names in it.
        let dir = open_beneath(&self.tree, repository).ok();
        let role = dir.map(|dir| REPOSITORY.map(|name| stat_in(dir.as_fd(), name).is_ok()));
        Ok(self.keys.hash_one((path.as_os_str(), role, sum)))
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
        // By a second name it could be written later. The time tells whether that is new, and otherwise how many there are.
        let has_times = self.keeps_times_of(stat);
        if is_file && is_small && (stat.st_nlink == 1 || !has_times) {
            let (mut file, mut hasher) = (open_file(dir, name)?.take(*bytes), self.keys.hasher());
            stat.st_mode.hash(&mut hasher);
            if stat.st_nlink != 1 {
                (stat.st_nlink, stat.st_ino).hash(&mut hasher);
            }
            let mut part = Vec::new();
            while file.by_ref().take(PART).read_to_end(&mut part)? > 0 {
                part.hash(&mut hasher);
                part.clear();
            }
            *bytes = file.limit();
            if *bytes > 0 {
                return Ok(hasher.finish());
            }
        }
        if is_file && !has_times {
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
        let top = retry_opened(above.as_fd(), || open_at(above.as_fd(), Path::new(name)))?;
        let (mut next, mut left) = (vec![PathBuf::new()], ENTRIES);
        while let Some(at) = next.pop() {
            let dir = retry_opened(top.as_fd(), || open_at(top.as_fd(), &at))?;
            for entry in retry_opened(dir.as_fd(), || entries(dir.as_fd()))? {
                let (name, _) = entry?;
                left = left.checked_sub(1).ok_or(io::ErrorKind::ArgumentListTooLong)?;
                let stat = stat_in(dir.as_fd(), &name)?;
                let below = at.join(&name);
                visit(&below, dir.as_fd(), &name, &stat)?;
                next.extend((kind(&stat) == SFlag::S_IFDIR).then_some(below));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::super::times::Devices;
    use super::super::{StateOfRun, WatchList, finish};
    use super::*;

    /// A tmpfs keeps no time of what is written by a map of the memory.
    #[test]
    fn b14_large_files_are_compared_where_times_tell_nothing() {
        let large = vec![1; 3 << 20];
        let changed = [&large[1..], &[2]].concat();
        // The size of a second file, what the stage writes, and whether the hooks stay.
        for (more, written, stay) in [
            (1 << 20, None, true),
            (1 << 20, Some(&changed), false),
            (1 << 20, Some(&large), true),
            (LargeRoom::default().0, None, false),
        ] {
            let tree = std::env::temp_dir().join(format!("survey-{}", std::process::id()));
            let git = tree.join("x/y/z/n/.git");
            for dir in ["objects", "refs", "hooks"] {
                fs::create_dir_all(git.join(dir)).unwrap();
            }
            fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
            fs::write(git.join("hooks/pre-push"), &large).unwrap();
            File::create(git.join("hooks/tool")).unwrap().set_len(more).unwrap();
            let list = WatchList { tree: tree.clone(), ..WatchList::default() };
            let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
            watch.times.devices.set(Devices::without_times()).unwrap();
            watch.note_nested(&|| false);
            watch.stage_starts();
            written.iter().for_each(|written| fs::write(git.join("hooks/pre-push"), written).unwrap());
            let found = finish([&watch]).named;
            assert_eq!((git.join("hooks").exists(), found.is_empty()), (stay, stay), "{more} {found:?}");
            fs::remove_dir_all(tree).unwrap();
        }
    }
}

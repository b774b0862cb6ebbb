//! Entries of a tree that have changed since the stage started, by the times that the kernel keeps: no stage can set these back.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag};
use nix::unistd::geteuid;

use super::Watch;
use super::descriptors::{kind, open_above, open_file, stat_in};
use super::times::{CLOCKS, Devices, OWN_CLOCK};
use crate::protected::GIT_LINK;

impl Watch {
    /// Returns whether the stage may have put something at a path in a repository's directory, or changed it or what is in it.
    pub(super) fn is_changed_in(&self, git: &Path, path: &Path) -> bool {
        self.has_new_time(git, path) && !self.is_noted(git, path) || self.is_written_below(path)
    }

    /// Returns whether somebody has a file open for writing at a path, or below it, as far as the kernel tells.
    pub(super) fn is_written_below(&self, path: &Path) -> bool {
        let mut is_written = false;
        // The first one ends the visit. What is too much to be visited counts as changed in any case.
        let _ = self.visit_all(path, |_, dir, name, stat| {
            is_written = self.has_writer(dir, name, stat).unwrap_or(false);
            if is_written { Err(io::ErrorKind::ResourceBusy.into()) } else { Ok(()) }
        });
        is_written
    }

    /// Returns whether a file may have got a second name during the run, by which a later stage could write to it.
    pub(super) fn has_new_name(&self, stat: &FileStat) -> bool {
        kind(stat) == SFlag::S_IFREG && stat.st_nlink != 1 && self.may_have_changed(stat)
    }

    /// Returns whether somebody has a file open for writing. No process of this stage is left, but it may have passed the descriptor on to
    /// the stage of another run (unix(7), `SCM_RIGHTS`), or renamed a file that the other stage had opened.
    ///
    /// # Errors
    /// Returns the error that prevents an answer, such as `EINVAL` for a file system without leases.
    pub(super) fn has_writer(&self, dir: BorrowedFd<'_>, name: &OsStr, stat: &FileStat) -> io::Result<bool> {
        match self.later.has_writer.get().filter(|_| kind(stat) == SFlag::S_IFREG) {
            Some(has_writer) => has_writer(open_file(dir, name)?),
            None => Ok(false),
        }
    }

    /// Returns whether a file may be open for writing, where the kernel gives no answer. Nobody gets a lease on another user's file
    /// (fcntl(2)). Without another run that goes on, no stage has it open: the processes of this one have ended.
    pub(super) fn may_have_writer(&self, stat: &FileStat) -> bool {
        let caller = geteuid();
        let is_anothers = !caller.is_root() && stat.st_uid != caller.as_raw();
        let goes_on = || self.later.others.get().is_none_or(|[going_on, _]| going_on.are_any());
        self.may_have_changed(stat) && (!is_anothers || goes_on())
    }

    /// Returns whether the times allow such a change. The stage cannot set the time of one, but it may have made the directory a repository's
    /// by moving it, or with an entry more, which changes the time of that directory alone.
    pub(super) fn has_new_time(&self, git: &Path, path: &Path) -> bool {
        let is_changed = |path: &Path| {
            // The tree itself.
            let Some(name) = path.file_name() else { return true };
            let above = open_above(&self.tree, path);
            let stat = above.and_then(|above| stat_in(above.as_fd(), name));
            stat.map_or(true, |stat| self.may_have_changed(&stat))
        };
        let is_below_changed = || {
            let is_old =
                |stat: &FileStat| if self.may_have_changed(stat) { Err(Errno::ESTALE) } else { Ok(()) };
            let below = self.visit_all(path, |_, _, _, stat| Ok(is_old(stat)?));
            below.is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
        };
        path.ancestors().take_while(|path| path.starts_with(git)).any(is_changed) || is_below_changed()
    }

    fn devices(&self) -> &Devices {
        self.times.devices.get_or_init(|| Devices::of(&self.tree))
    }

    /// Returns whether the time of a file shows each change of it, also one that is made by a memory map. A tmpfs does not note one
    /// (mm/shmem.c).
    pub(super) fn keeps_times_of(&self, stat: &FileStat) -> bool {
        self.devices().keep_times_of(stat.st_dev)
    }

    /// Returns whether an entry has changed since the start, or may have: a clock may differ from this machine's, and this one may have been
    /// set back.
    pub(super) fn may_have_changed(&self, stat: &FileStat) -> bool {
        if kind(stat) == SFlag::S_IFREG && !self.keeps_times_of(stat) {
            return true;
        }
        let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_ctime).unwrap_or(0));
        let passed = self.since.elapsed().unwrap_or_default();
        let set_back = self.times.begun.elapsed().saturating_sub(passed);
        let differ = if self.devices().have_own_clock(stat.st_dev) { OWN_CLOCK } else { CLOCKS };
        changed + set_back + differ >= self.changed_since()
    }

    /// Returns whether there is nothing to find in a directory: it has no directories, nothing has come into it during the run, and it is no
    /// repository. git takes none without a `HEAD` for one, and what else it needs may be files.
    pub(super) fn is_old_leaf(&self, dir: BorrowedFd<'_>, name: &OsStr, stat: &FileStat) -> bool {
        let is_missing = |inside: &str| stat_in(dir, Path::new(name).join(inside)) == Err(Errno::ENOENT);
        stat.st_nlink == 2
            && self.devices().count_links(stat.st_dev)
            && !self.may_have_changed(stat)
            && is_missing(GIT_LINK)
            && is_missing("HEAD")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::super::{StateOfRun, WatchList};
    use super::*;

    /// Nobody can set the time at which something was changed. Whoever moves a directory changes only the directory's.
    #[test]
    fn b14_the_entries_of_a_moved_directory_count_as_changed() {
        let root = std::env::temp_dir().join(format!("paths-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(root.join("old")).unwrap();
        for name in ["a/b/index", "a/index", "old/index"] {
            fs::write(root.join(name), "x").unwrap();
        }
        std::thread::sleep(Duration::from_millis(1100));
        fs::rename(root.join("a/b"), root.join("c")).unwrap();
        let list = WatchList { tree: root.clone(), ..WatchList::default() };
        let mut watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
        let moved = fs::metadata(root.join("c")).unwrap().ctime();
        watch.since = UNIX_EPOCH + Duration::from_secs(u64::try_from(moved).unwrap()) + OWN_CLOCK;
        watch.times.begun = std::time::Instant::now();
        let paths = ["c/index", "c/none", "old/index", "a/index", "old/none"];
        let are_changed =
            paths.map(|path| watch.is_changed_in(Path::new(path).parent().unwrap(), Path::new(path)));
        assert_eq!(are_changed, [true, true, false, true, true]);
        fs::remove_dir_all(root).unwrap();
    }
}

//! Mounts a cover again after a program on the host replaced the file below it by a rename, as git and many editors do.
//!
//! A stage cannot replace a covered file: in its mount namespace the name is a mount point, and rename(2) fails with `EBUSY`. So the
//! first rename over a covered name comes from the host. Until the new file is covered, the stage could write to it or open it. Three
//! facts must show that it did not: the events of the directory, the number of the file's names, and a lease, which is granted while
//! nobody has the file open for writing. The lease is kept: opening the file for writing then waits until the stage was ended, even after
//! an earlier open without an event (`O_PATH`).
//!
//! If they do not show it, and nobody was seen writing to the file either, the stage continues without the file: the file that was
//! covered before is written again, gets a lease before it gets a name, and replaces the new one.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exeat_files::quarantine::{Arrivals, FileId, Leftover, Watch};
use exeat_sandbox::{
    FileHandle, InsideMounts, InsideProcess, KeptFiles, KeptStatus, Lease, Mounted, Notices, Offer, Touch,
    Touches,
};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, Inotify, InotifyEvent, WatchDescriptor};

use super::calls::Calls;
use super::covered::{Covered, Doubt, LastCovers, Name, State};
use super::git_settings::differ_harmlessly;
use super::list::{CoverList, Watched};
use super::saved::{MOST, SavedFile, tree_of};

/// The maximal number of remembered new files. Beyond it they are forgotten, and none of them may replace a covered file.
const NEW_FILES: usize = 4096;
/// The maximal number of files with known uses. Beyond it all uses are forgotten.
const FILES: usize = 16384;
/// The number of reads of events before other work: the kernel keeps 16384 events, and reports when it dropped one.
const READS: usize = 256;
/// The time for which the lost name of a new file is remembered. A host program that has it open may wait for a lease in that time
/// (`/proc/sys/fs/lease-break-time` is 45 s), and then rename what has the name.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The number of renames over one name that are covered without a pause.
pub(super) const RENAMES: usize = 64;
/// The number of attempts to judge a file that is being replaced, or to replace it.
const REPLACED: usize = 3;
/// The number of times that a file is written again in one run, because a stage may cause it.
const PUT_BACK: u32 = 10;

/// The covers that can be mounted again, and the names that the stage must not make visible to the host.
#[derive(Debug)]
pub(super) struct Remounts {
    inotify: Inotify,
    watches: Arc<[Watch]>,
    /// The process that mounts in the sandbox. It has its own inotify instance, and a copy of this one.
    helper: InsideMounts,
    /// The calls of the stage that make no event; `None` if they are not reported.
    calls: Option<Calls>,
    arrivals: Arrivals,
    /// Files that were put into the quarantine and must be reported.
    set_aside: Vec<Leftover>,
    /// The covered files by the watch on their directory and their name in it.
    covers: BTreeMap<Name, Covered>,
    /// The files made since the start, and whether others than their makers may have had them: such a file got its name by a rename, or
    /// another file had its name just before.
    new_files: HashMap<Name, bool>,
    /// The uses of files in the directories of covers, with the number of processes; `None` if they are not reported.
    touches: Option<Touches>,
    uses: HashMap<FileHandle, Uses>,
    /// The times at which names of such files became free, except by a rename over a cover.
    freed: HashMap<Name, Instant>,
    moving: Option<Moving>,
    /// The last time that the kernel or this process dropped events.
    dropped: Option<Instant>,
}

/// A file that is being renamed.
#[derive(Debug)]
struct Moving {
    cookie: u32,
    from: Name,
    /// Whether others than its maker may have had it.
    is_shared: bool,
    /// The files that were opened by that name and may still have it.
    files: Vec<FileHandle>,
}

/// The number of uses of a file, or more: the uses of one process may count twice.
#[derive(Debug, Default)]
struct Uses {
    /// The last name of the file; `None` if that became free.
    name: Option<OsString>,
    /// The name before, until it became free: somebody may use the file by its new name before that is known.
    former: Option<OsString>,
    opened: u32,
    closed: u32,
    is_changed: bool,
}

impl Uses {
    fn add(&mut self, touch: Touch) {
        self.opened += u32::from(touch.is_open);
        self.closed += u32::from(touch.is_close);
        self.is_changed |= touch.is_change;
        let name = Some(touch.name);
        if self.name != name {
            self.former = std::mem::replace(&mut self.name, name);
        }
    }

    /// Returns whether its maker gave it up: a later rename would follow a write. git gives up a file if nothing changed.
    fn is_given_up(&self) -> bool {
        (self.opened, self.closed) == (1, 1) && !self.is_changed
    }
}

/// A new file with harmless content.
enum Acceptable {
    /// A program on the host may have written it.
    Host(SavedFile),
    /// Another run made it, with a lease from before it had a name, so that no stage could open it for writing.
    Own(KeptStatus, Lease, SavedFile),
}

/// The outcome for a cover that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The cover is in place again.
    Restored,
    /// The cover is in place again, on the file that another run wrote.
    ByRun,
    /// The cover is in place again, on a copy of the file that was covered before.
    PutBack,
    /// The file was removed, and nothing has its name.
    Removed,
    /// The cover is lost, or the file below it may be the stage's.
    Lost,
}

/// What [`Remounts::release`] leaves.
pub(super) struct Released {
    pub(super) last: LastCovers,
    /// The places that stay writable, because somebody has a file there open for writing.
    pub(super) busy: Vec<(PathBuf, io::Error)>,
    /// A place that could not be made read-only for another reason.
    pub(super) unsealed: Option<(PathBuf, io::Error)>,
}

impl Remounts {
    /// Watches the directories of these files, given by host path and place, and those of the names in `watches`. Also returns the
    /// process beside the sandbox, which exists in any case.
    ///
    /// # Errors
    /// Returns errors of inotify(7), such as `EMFILE` if the user has no instance left, and errors of the process.
    pub(super) fn new(
        offer: &Offer,
        files: impl Iterator<Item = (PathBuf, PathBuf)>,
        stubs: impl Iterator<Item = (PathBuf, PathBuf)>,
        watches: Arc<[Watch]>,
    ) -> (InsideProcess, io::Result<Self>) {
        let Watched { inotify, renames, arrivals, list } =
            match Watched::new(files, stubs, Arc::clone(&watches)) {
                Ok(watched) => watched,
                Err(why) => return (offer.inside_process(None), Err(why)),
            };
        let CoverList { covers, kept: files, touches, .. } = list;
        let others = [inotify.as_fd()].into_iter().chain(touches.as_ref().map(AsFd::as_fd)).collect();
        let kept = KeptFiles { events: renames.as_fd(), others, files };
        let process = offer.inside_process(Some(kept));
        let helper = process.mounts();
        let remounts = helper.map(|helper| Self {
            inotify,
            watches,
            helper,
            calls: None,
            arrivals,
            set_aside: Vec::new(),
            covers,
            new_files: HashMap::new(),
            touches,
            uses: HashMap::new(),
            freed: HashMap::new(),
            moving: None,
            dropped: None,
        });
        (process, remounts)
    }

    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Returns whether any file is kept covered.
    pub(super) fn has_files(&self) -> bool {
        !self.covers.is_empty()
    }

    /// Takes the reports of the stage's calls. Without them it is unknown who wrote a file that replaces another one.
    pub(super) fn hear_of(&mut self, notices: Option<Notices>) {
        self.calls = notices.and_then(|notices| {
            let calls = Calls::new(notices);
            calls.inspect_err(|why| tracing::warn!(%why, "calls of the stage are not told: they fail")).ok()
        });
    }

    /// Returns the reason that the stage's actions cannot be told from those of the host, if so.
    pub(super) fn untold(&self) -> Option<&'static str> {
        if self.calls.is_none() {
            return Some("a seccomp filter around exeat has a listener already, or no thread was left");
        }
        self.touches
            .is_none()
            .then_some("the kernel, its limits or a file system there have no fanotify for users")
    }

    /// Returns whether others than its maker may have written to a file that nobody can write to any more.
    fn may_be_shared(&mut self, file: &File, key: &Name) -> io::Result<bool> {
        self.read_touches();
        let moved = self.covers.get_mut(key).map(|cover| &mut cover.moved);
        let is_closed_once = FileHandle::from_file(file).ok().zip(moved).is_some_and(|(file, moved)| {
            let known = moved.len();
            moved.retain(|it| *it != file);
            // Everybody who could write to it has closed it by now.
            moved.len() < known && self.uses.get(&file).is_some_and(|uses| uses.closed == 1)
        });
        let made = file.metadata()?.created().ok();
        Ok(!is_closed_once || self.calls.as_ref().is_none_or(|calls| calls.may_have_met(made)))
    }

    /// Returns whether a place may be covered again, or be removed.
    pub(super) fn knows(&self, place: &Path) -> bool {
        self.covers.values().any(|cover| cover.places.iter().any(|it| it == place))
    }

    /// Returns whether a file is covered that was not when the sandbox was made.
    pub(super) fn is_covered(&mut self, host: &Path, (dev, ino): FileId) -> bool {
        let Some(cover) = self.covers.values().find(|cover| cover.host == host) else { return false };
        let number = cover.number;
        let Ok(status) = self.status(number) else { return false };
        let is_covered = status.renames == status.mounts && status.mounted == Mounted { dev, ino };
        if let Some(cover) = self.covers.values_mut().find(|cover| cover.number == number) {
            cover.status = status;
        }
        is_covered
    }

    /// Moves away names that the stage made. `places` returns the places in the sandbox of two host paths. `mounted` gets the number of
    /// each mount, and `in_sight` gets reports as in [`Arrivals::settle`].
    ///
    /// # Errors
    /// Returns the reason that the stage must be ended ([`Arrivals::settle`]).
    pub(super) fn settle_arrivals(
        &mut self,
        places: impl Fn(&Path, &Path) -> Vec<(PathBuf, PathBuf)>,
        mut mounted: impl FnMut(u64),
        in_sight: &dyn Fn(bool),
        found: &mut Vec<Leftover>,
    ) -> io::Result<()> {
        found.append(&mut self.set_aside);
        if !self.arrivals.is_due() {
            return Ok(());
        }
        let Self { arrivals, inotify, helper, .. } = self;
        let mut mount = |source: &Path, target: &Path| {
            let id = |Mounted { dev, ino }: Mounted| (dev, ino);
            // Without a place in the sandbox, the name is moved.
            let mut last: io::Result<(FileId, FileId)> = Err(Errno::EXDEV.into());
            for (source, target) in places(source, target) {
                let bound = helper.bind(&source, &target)?;
                mounted(bound.number);
                let pair = (id(bound.mounted), id(bound.over));
                if last.as_ref().is_ok_and(|last| *last != pair) {
                    return Err(Errno::ENOENT.into());
                }
                last = Ok(pair);
            }
            last
        };
        arrivals.settle(inotify, &mut mount, in_sight, found)
    }

    /// Works like [`Arrivals::first_look`].
    pub(super) fn first_look(&self) -> Duration {
        self.arrivals.first_look()
    }

    /// Requests a check of the names.
    pub(super) fn search_again(&mut self) {
        self.arrivals.search_again();
    }

    /// Returns whether names wait to be moved away.
    pub(super) fn has_arrivals(&self) -> bool {
        self.arrivals.is_due()
    }

    /// Makes these places read-only in the sandbox, and ends the helper, which would keep the sandbox's mounts alive after the sandbox.
    /// Call it when no process of the sandbox is left. Another stage may have a descriptor of a directory there. `below` lists the writable
    /// mounts below a place.
    pub(super) fn release<'a>(
        mut self,
        writable: impl Iterator<Item = &'a Path>,
        below: impl Fn(&Path) -> Vec<PathBuf>,
    ) -> Released {
        let (mut busy, mut unsealed) = (BTreeMap::new(), None);
        for at in writable {
            match self.helper.seal(at) {
                Ok(true) => continue,
                Ok(false) => {}
                // Somebody has a file there open for writing.
                Err(why) if why.raw_os_error() == Some(Errno::EBUSY as i32) => {
                    busy.insert(at.to_path_buf(), why);
                }
                // The mount may be elsewhere than its path says.
                Err(why) => unsealed = unsealed.or(Some((at.to_path_buf(), why))),
            }
            for at in below(at) {
                if let Err(why) = self.helper.seal(&at) {
                    busy.insert(at, why);
                }
            }
        }
        // The root's mounts are all of the sandbox's.
        let unsealed = unsealed.filter(|_| !self.helper.seal(Path::new("/")).is_ok_and(|is_all| is_all));
        // Files that the host has removed are not written again. If the events cannot be read, no removal is known.
        let _ = self.read_events();
        // The last close of such an instance waits for a grace period of the kernel (`fsnotify_destroy_group`, fs/notify/group.c), 10 ms
        // and more. The helper does it, and nobody waits for the helper.
        drop((self.inotify, self.touches));
        self.helper.end();
        Released { last: LastCovers(self.covers), busy: busy.into_iter().collect(), unsealed }
    }

    /// Returns how soon to check again.
    pub(super) fn interval(&self) -> Option<Duration> {
        /// A writer that waits for a lease makes no event.
        const WITH_LEASES: Duration = Duration::from_millis(100);
        self.covers.values().any(|cover| cover.lease.is_some()).then_some(WITH_LEASES)
    }

    /// Reads the events, and covers again what was replaced. Returns the places that lost their cover. Calls `is_busy` before it covers
    /// anything.
    ///
    /// # Errors
    /// Returns errors of read(2) on the events.
    pub(super) fn update(&mut self, is_busy: &dyn Fn()) -> io::Result<Vec<(PathBuf, Fate)>> {
        self.look_after_leases()?;
        self.read_events()?;
        let keys = self.covers.iter().filter(|(_, cover)| cover.needs_care()).map(|(key, _)| key.clone());
        let keys: Vec<_> = keys.collect();
        if !keys.is_empty() {
            is_busy();
        }
        let mut told = Vec::new();
        for key in keys {
            let fate = self.restore(&key)?;
            let places = self.covers.get(&key).map(|cover| cover.places.clone()).unwrap_or_default();
            told.extend(places.into_iter().map(|place| (place, fate)));
        }
        Ok(told)
    }

    /// Asks the helper about files that were replaced once. It notices a second name from the stage, which may have opened the file
    /// without an event.
    fn look_after_leases(&mut self) -> io::Result<()> {
        let leased =
            self.covers.values().filter(|cover| cover.state == State::Covered && cover.lease.is_some());
        let leased: Vec<usize> = leased.map(|cover| cover.number).collect();
        for number in leased {
            let status = self.status(number)?;
            if let Some(cover) = self.covers.values_mut().find(|cover| cover.number == number)
                && cover.status != status
            {
                cover.state = State::Replaced;
            }
        }
        Ok(())
    }

    fn restore(&mut self, key: &Name) -> io::Result<Fate> {
        let Some(cover) = self.covers.get_mut(key) else { return Ok(Fate::Lost) };
        if cover.was_removed && cover.is_obeyed_later {
            // From then on it is a missing name, and the end of the run moves aside what has it.
            cover.state = State::Removed;
            return Ok(Fate::Removed);
        }
        if cover.state == State::Covered {
            // A writer waits, and can write once the stage was ended and the lease is dropped.
            return Ok(Fate::Lost);
        }
        if cover.state == State::Removed {
            let is_absent = std::fs::symlink_metadata(&cover.host)
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            return Ok(if is_absent { Fate::Removed } else { Fate::Lost });
        }
        let mut doubt = Doubt::Again;
        for _ in 0..RENAMES {
            match self.cover(key) {
                Ok(()) => return Ok(Fate::Restored),
                // It was replaced again while it was covered, which only the host can do.
                Err(Doubt::Again) => {}
                Err(why) => {
                    doubt = why;
                    break;
                }
            }
        }
        for _ in 0..REPLACED {
            tracing::debug!(%doubt, ?key, "a cover is lost");
            match self.write_anew(key) {
                Ok(fate) => return Ok(fate),
                Err(why) => doubt = why,
            }
            if !matches!(doubt, Doubt::Again) {
                break;
            }
        }
        tracing::debug!(%doubt, ?key, "a cover is lost for good");
        if let Some(cover) = self.covers.get_mut(key) {
            cover.state = State::Doubtful;
        }
        Ok(Fate::Lost)
    }

    /// Reads a file that the stage may have written, if its content is harmless whoever wrote it. The file itself never stays: a direct
    /// read (open(2), `O_DIRECT`) into a mapping of it changes it after file, mapping and lease show no writer.
    fn read_acceptable(&mut self, key: &Name, watch: &Watch) -> Result<Acceptable, Doubt> {
        let cover = self.covered(key)?;
        let (number, may_be_unknown) = (cover.number, cover.state != State::Doubtful);
        if cover.lease.as_ref().is_some_and(|lease| !lease.is_quiet()) {
            return Err(Doubt::open("somebody waits to write to the last one"));
        }
        let status = self.helper.mount_anew(number)?;
        let cover = self.covered(key)?;
        if cover.has_lease_on(status.mounted) {
            return Err(Doubt::open("the host replaced nothing: what happened is the stage's doing"));
        }
        cover.lease = None;
        // The writer has finished.
        let lease = cover.lease(status.mounted)?;
        let new = SavedFile::read(lease.file(), MOST)?;
        self.read_touches();
        // Only the run that made it may have closed it, and its lease may have ended with that run.
        let is_closed_again = FileHandle::from_file(lease.file())
            .is_ok_and(|file| self.uses.get(&file).is_some_and(|uses| uses.closed > 1));
        if watch.is_own(lease.file()) && !is_closed_again {
            return Ok(Acceptable::Own(status, lease, new));
        }
        let cover = self.covered(key)?;
        let is_harmless = |old: &SavedFile| {
            let is_gits = cover.host.file_name().is_some_and(|it| it == "config" || it == "config.worktree");
            let differ = || is_gits && differ_harmlessly(&old.bytes, &new.bytes);
            old.has_owner_and_mode_of(&new) && (old.bytes == new.bytes || differ())
        };
        if cover.saved.as_ref().is_some_and(is_harmless) {
            return Ok(Acceptable::Host(new));
        }
        let why = "it may be the stage's";
        Err(if may_be_unknown { Doubt::Unknown(why) } else { Doubt::open(why) })
    }

    /// Replaces a file that the stage may have written by a new one, and covers that. The new file has the same content if that is
    /// harmless, and otherwise that of the file covered before.
    fn write_anew(&mut self, key: &Name) -> Result<Fate, Doubt> {
        let watches = Arc::clone(&self.watches);
        let host = self.covered(key)?.host.clone();
        let (watch, name) = tree_of(&watches, &host)?;
        // Another run in the directory may have restored the same file.
        let lock = watch.lock()?;
        let accepted = match self.read_acceptable(key, watch) {
            Ok(Acceptable::Host(new)) => Some(new),
            Ok(Acceptable::Own(status, lease, new)) => {
                self.settle(key, status, lease)?;
                self.covered(key)?.saved = Some(new);
                return Ok(Fate::ByRun);
            }
            Err(Doubt::Unknown(_)) => None,
            Err(why) => return Err(why),
        };
        let cover = self.covered(key)?;
        let number = cover.number;
        let content = accepted.as_ref().or(cover.saved.as_ref());
        let content = content.ok_or_else(|| Doubt::open("what the last one said is not known"))?;
        let lease = content.write_unnamed(watch.tree())?;
        // If another run cannot recognize the file, it writes a new one, too, and then this run must do so again.
        let is_known = watch.note_own(lease.file()).is_ok();
        if accepted.is_none() || !is_known {
            cover.put_back += 1;
            if cover.put_back > PUT_BACK {
                return Err(Doubt::open("it was written anew too often"));
            }
        }
        let old = watch.replace(&name, lease.file())?;
        let covered = self.cover_new(key, number, lease);
        drop(lock);
        let Some(new) = accepted else {
            self.set_aside.push(watch.settle_replaced(&name, &old));
            return covered.map(|()| Fate::PutBack);
        };
        // The host may have replaced it once more after it was read: that update is kept, and reported.
        let replaced = watch.open_replaced(&name, &old).and_then(|file| SavedFile::read(&file, MOST));
        if !replaced.is_ok_and(|replaced| replaced.bytes == new.bytes) {
            self.set_aside.push(watch.settle_replaced(&name, &old));
            return covered.map(|()| Fate::PutBack);
        }
        watch.remove_replaced(&name, &old)?;
        covered?;
        self.covered(key)?.saved = Some(new);
        Ok(Fate::Restored)
    }

    /// Covers a file that exeat put in place.
    fn cover_new(&mut self, key: &Name, number: usize, lease: Lease) -> Result<(), Doubt> {
        let status = self.helper.mount_anew(number)?;
        let about = lease.file().metadata()?;
        if status.mounted != (Mounted { dev: about.dev(), ino: about.ino() }) {
            return Err(Doubt::Again);
        }
        self.settle(key, status, lease)
    }

    /// Accepts a mounted file as covered, unless it was replaced since.
    fn settle(&mut self, key: &Name, status: KeptStatus, lease: Lease) -> Result<(), Doubt> {
        // Events from before the mount do not count.
        self.read_events()?;
        let cover = self.covered(key)?;
        let number = cover.number;
        if !lease.is_quiet() {
            return Err(Doubt::open("somebody waits to write to it"));
        }
        if self.status(number)? != status {
            return Err(Doubt::Again);
        }
        let cover = self.covered(key)?;
        let (rest, from) = (std::mem::take(&mut cover.moved), cover.moved_from.clone());
        (cover.state, cover.status, cover.lease) = (State::Covered, status, Some(lease));
        // Others are the next files of that name, whose uses had been read before the rename of this one.
        if let Some((_, name)) = from {
            for file in rest {
                if let Some(uses) = self.uses.get_mut(&file) {
                    uses.name.get_or_insert_with(|| name.clone());
                }
            }
        }
        Ok(())
    }

    /// Covers a file that was replaced.
    fn cover(&mut self, key: &Name) -> Result<(), Doubt> {
        let number = self.covered(key)?.number;
        let status = self.status(number)?;
        self.read_events()?;
        if status.renames != status.mounts {
            return Err(Doubt::Unknown(
                "it was replaced twice before it was covered, or too soon to be watched",
            ));
        }
        let cover = self.covered(key)?;
        match cover.state {
            State::Replaced => {}
            State::Unknown => return Err(Doubt::Unknown("its maker may not have been alone with it")),
            _ => return Err(Doubt::open("something else happened to it")),
        }
        if cover.status == status && cover.lease.as_ref().is_some_and(Lease::is_quiet) {
            // This is the event of a rename that is already known.
            cover.state = State::Covered;
            return Ok(());
        }
        if cover.has_lease_on(status.mounted) {
            // A process that waits for the lease continues only after the end of the stage.
            return Err(Doubt::open("the stage has hold of it"));
        }
        cover.lease = None;
        cover.state = State::New;
        let lease = cover.lease(status.mounted);
        for _ in 0..super::IN_VAIN {
            self.read_events()?;
            if lease.is_ok() || self.covered(key)?.state != State::New {
                break;
            }
            // The file may have been replaced during the check, and the event may be late.
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_the_last = self.status(number)? == status;
        self.read_events()?;
        let is_shared = lease.as_ref().map_or(Ok(true), |lease| self.may_be_shared(lease.file(), key))?;
        let has_gaps = self.dropped.is_some_and(|at| at.elapsed() <= REMEMBERED);
        let cover = self.covered(key)?;
        match (cover.state, lease) {
            (State::New | State::Replaced, _) if !is_the_last => {
                cover.state = State::Replaced;
                Err(Doubt::Again)
            }
            (State::New | State::Replaced | State::Unknown, Ok(_)) if has_gaps => {
                Err(Doubt::Unknown("not all events are known"))
            }
            (State::New | State::Replaced, Ok(_)) if is_shared => {
                Err(Doubt::Unknown("another process than its maker may have written to it"))
            }
            (State::New | State::Replaced, Ok(lease)) => {
                // Its name may already lead to the next file.
                cover.saved = SavedFile::read(lease.file(), MOST).ok();
                (cover.state, cover.lease, cover.status) = (State::Covered, Some(lease), status);
                Ok(())
            }
            (State::New | State::Replaced, Err(why)) => Err(why),
            (State::Unknown, _) => Err(Doubt::Unknown("it was replaced once more")),
            _ => Err(Doubt::open("it may have been written to")),
        }
    }

    fn status(&self, number: usize) -> io::Result<KeptStatus> {
        self.helper.status(number)
    }

    fn covered(&mut self, key: &Name) -> io::Result<&mut Covered> {
        self.covers.get_mut(key).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn read_events(&mut self) -> io::Result<()> {
        for _ in 0..READS {
            match self.inotify.read_events() {
                Ok(events) => {
                    // Earlier uses are among these.
                    self.read_touches();
                    events.into_iter().for_each(|event| self.note(event));
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {
                    self.read_touches();
                    return Ok(());
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        self.forget();
        Ok(())
    }

    fn read_touches(&mut self) {
        let Some(touches) = &self.touches else { return };
        for _ in 0..READS {
            match touches.read() {
                Ok(some) if some.is_empty() => return,
                Ok(some) => some
                    .into_iter()
                    .for_each(|touch| self.uses.entry(touch.file.clone()).or_default().add(touch)),
                Err(_) => break,
            }
            if self.uses.len() > FILES {
                break;
            }
        }
        self.forget();
    }

    /// Forgets new files because events about them are missing. Names that were free before are remembered no longer than that.
    fn forget(&mut self) {
        self.dropped = Some(Instant::now());
        self.new_files.clear();
        self.uses.clear();
    }

    /// Returns whether a directory contains a cover.
    fn has_covers(&self, dir: WatchDescriptor) -> bool {
        let first = self.covers.range((dir, OsString::new())..).next();
        first.is_some_and(|((first, _), _)| *first == dir)
    }

    fn note(&mut self, event: InotifyEvent) {
        self.arrivals.note(&event);
        let has = |flags: AddWatchFlags| event.mask.intersects(flags);
        if has(AddWatchFlags::IN_Q_OVERFLOW) {
            self.forget();
        }
        let Some(name) = event.name else { return };
        let key = (event.wd, name);
        if let Some(cover) = self.covers.get_mut(&key) {
            let moving =
                self.moving.take().filter(|moving| moving.cookie == event.cookie && !moving.is_shared);
            let replaced = match moving {
                Some(Moving { from, files, .. }) => {
                    // git makes the next file under the same name.
                    self.freed.remove(&from);
                    (cover.moved, cover.moved_from) = (files, Some(from));
                    State::Replaced
                }
                // It came from a directory without a watch, or existed before the stage.
                None => State::Unknown,
            };
            let was_removed = cover.was_removed;
            cover.note(event.mask, replaced);
            if cover.was_removed && !was_removed {
                // Before anything else is done: exeat may be killed at any moment.
                let noted =
                    tree_of(&self.watches, &cover.host).and_then(|(watch, name)| watch.note_free(&name));
                if let Err(why) = noted {
                    tracing::warn!(host = %cover.host.display(), %why, "if exeat is killed, what comes here stays");
                }
            }
            return;
        }
        // In directories without covers, only new names matter.
        if !self.has_covers(key.0) {
            return;
        }
        if has(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO) {
            if self.new_files.len() >= NEW_FILES
                && let Some(one) = self.new_files.keys().next().cloned()
            {
                // A forgotten file replaces a cover only with doubt.
                self.new_files.remove(&one);
            }
            let was_free = self.freed.get(&key).is_none_or(|since| since.elapsed() > REMEMBERED);
            let is_made = has(AddWatchFlags::IN_CREATE) && was_free && !self.new_files.contains_key(&key);
            self.moving = None;
            self.new_files.insert(key, !is_made);
        } else if has(AddWatchFlags::IN_DELETE) {
            let mut files = self.lose_name(&key.1);
            files.extend(self.take_moved(&key));
            let is_given_up = |file: &FileHandle| self.uses.get(file).is_some_and(Uses::is_given_up);
            let given_up = files.iter().position(is_given_up).map(|at| files.swap_remove(at));
            if given_up.is_some() {
                // The uses of the next file of this name may have been read by now: git makes one at once.
                for file in &files {
                    self.uses.entry(file.clone()).or_default().name = Some(key.1.clone());
                }
            }
            if self.new_files.remove(&key).is_none() || given_up.is_none() {
                self.free(key);
            }
        } else if has(AddWatchFlags::IN_MOVED_FROM) {
            let (cookie, from, mut files) = (event.cookie, key.clone(), self.lose_name(&key.1));
            files.extend(self.take_moved(&key));
            let is_shared = self.new_files.remove(&key);
            self.moving = is_shared.map(|is_shared| Moving { cookie, from, is_shared, files });
            self.free(key);
        }
    }

    /// Notes that a name became free in any directory. Returns the files that had it, or got it since.
    fn lose_name(&mut self, name: &OsStr) -> Vec<FileHandle> {
        let lose = |(file, uses): (&FileHandle, &mut Uses)| {
            let names = [&mut uses.former, &mut uses.name];
            let lost = names.into_iter().find(|known| known.as_deref() == Some(name))?;
            *lost = None;
            Some(file.clone())
        };
        self.uses.iter_mut().filter_map(lose).collect()
    }

    /// Takes the candidates from a name that was renamed over a cover, unless one was accepted since.
    fn take_moved(&mut self, from: &Name) -> Vec<FileHandle> {
        let covers = self.covers.values_mut().filter(|cover| cover.moved_from.as_ref() == Some(from));
        covers.flat_map(|cover| std::mem::take(&mut cover.moved)).collect()
    }

    fn free(&mut self, key: Name) {
        if self.freed.len() >= NEW_FILES {
            self.freed.retain(|_, since| since.elapsed() <= REMEMBERED);
        }
        if self.freed.len() < NEW_FILES {
            self.freed.insert(key, Instant::now());
        } else {
            // A stage makes and removes files freely. After this, no file may replace a covered one without doubt.
            self.forget();
        }
    }
}

//! Collects the files to cover, and watches their directories.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exeat_files::names::{open_plain, open_regular};
use exeat_files::protected::is_obeyed_later;
use exeat_files::quarantine::{Arrivals, IN_MASK_ADD, Watch};
use exeat_sandbox::{KeptFile, KeptStatus, Touches};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::covered::{Covered, Name, State};
use super::saved::{MOST, SavedFile};

/// The maximal bytes of all saved files.
const SAVED: usize = 4 << 20;

/// The files to cover, while they are collected.
#[derive(Default)]
pub(super) struct CoverList {
    pub(super) covers: BTreeMap<Name, Covered>,
    /// The bytes saved so far.
    saved: usize,
    /// The files in the helper's form.
    pub(super) kept: Vec<KeptFile>,
    /// The directories, with the watch in each of the two instances.
    dirs: HashMap<PathBuf, (WatchDescriptor, WatchDescriptor)>,
    pub(super) touches: Option<Touches>,
}

impl CoverList {
    /// Adds a file by its path on the host and its place in the sandbox.
    fn add(
        &mut self,
        inotify: &Inotify,
        renames: &Inotify,
        host: &Path,
        at: PathBuf,
        status: KeptStatus,
    ) -> io::Result<()> {
        let (Some(dir), Some(name)) = (host.parent(), host.file_name()) else { return Ok(()) };
        let (watch, of_helper) = match self.dirs.get(dir) {
            Some(known) => *known,
            None => {
                let open = open_plain(dir)?;
                let place = self_path(&open);
                let events =
                    AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ONLYDIR;
                // If one directory cannot be watched, exeat watches none of them: a missing event could be from any.
                self.touches = self.touches.take().and_then(|touches| {
                    let watched = touches.watch(&place);
                    watched
                        .inspect_err(|why| tracing::debug!(dir = %dir.display(), %why, "not watched"))
                        .ok()?;
                    Some(touches)
                });
                let watches = (inotify.add_watch(&place, mask())?, renames.add_watch(&place, events)?);
                *self.dirs.entry(dir.to_path_buf()).or_insert(watches)
            }
        };
        let place = CString::new(at.as_os_str().as_bytes())?;
        match self.covers.entry((watch, name.to_owned())) {
            Entry::Occupied(known) => {
                if let Some(kept) = self.kept.get_mut(known.get().number) {
                    kept.places.push(place);
                }
                known.into_mut().places.push(at);
            }
            Entry::Vacant(new) => {
                if !host.is_dir() {
                    // `KeptFile::mount` adds the same watch for the next file.
                    let mask = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_DONT_FOLLOW;
                    renames.add_watch(host, mask)?;
                }
                let watch = of_helper.as_raw();
                let (name, number) = (CString::new(name.as_bytes())?, self.kept.len());
                self.kept.push(KeptFile { watch, name, places: vec![place], current: -1, status });
                let (places, state, status) = (vec![at], State::Covered, KeptStatus::default());
                let (moved, moved_from) = (Vec::new(), None);
                // The stage has not started yet.
                let saved = open_regular(host).and_then(|file| SavedFile::read(&file, MOST)).ok();
                let saved = saved.filter(|saved| self.saved + saved.bytes.len() <= SAVED);
                self.saved += saved.as_ref().map_or(0, |saved| saved.bytes.len());
                let is_obeyed_later = is_obeyed_later(host) && host.is_file();
                let (host, was_removed, put_back, lease) = (host.to_path_buf(), false, 0, None);
                let cover = Covered {
                    host,
                    number,
                    status,
                    places,
                    state,
                    moved,
                    moved_from,
                    was_removed,
                    is_obeyed_later,
                    put_back,
                    lease,
                    saved,
                };
                new.insert(cover);
            }
        }
        Ok(())
    }
}

/// The watches, before anything is mounted again.
pub(super) struct Watched {
    pub(super) inotify: Inotify,
    /// The helper's instance.
    pub(super) renames: Inotify,
    pub(super) arrivals: Arrivals,
    pub(super) list: CoverList,
}

impl Watched {
    pub(super) fn new(
        files: impl Iterator<Item = (PathBuf, PathBuf)>,
        stubs: impl Iterator<Item = (PathBuf, PathBuf)>,
        watches: Arc<[Watch]>,
    ) -> io::Result<Self> {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        let (inotify, renames) = (Inotify::init(flags)?, Inotify::init(flags)?);
        let stubs: Vec<_> = stubs.collect();
        let held = stubs.iter().map(|(host, _)| host.as_path()).collect();
        // Arrivals come first because covers may use up all watches.
        let arrivals = Arrivals::new(watches, &held, &inotify)?;
        let touches = Touches::new().inspect_err(|why| tracing::debug!(%why, "files are not watched")).ok();
        let mut list = CoverList { touches, ..CoverList::default() };
        // A renamed file is already mounted; a stub must be mounted first.
        let stub = KeptStatus { renames: 1, ..KeptStatus::default() };
        let files = files.map(|(host, at)| (host, at, KeptStatus::default()));
        for (host, at, status) in files.chain(stubs.into_iter().map(|(host, at)| (host, at, stub))) {
            // The file or the directory may be closed, or no watch may be left. Replacing this file then ends the run.
            if let Err(why) = list.add(&inotify, &renames, &host, at, status) {
                tracing::debug!(host = %host.display(), %why, "a cover is not mounted again");
            }
        }
        Ok(Self { inotify, renames, arrivals, list })
    }
}

fn mask() -> AddWatchFlags {
    IN_MASK_ADD
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MODIFY
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_ONLYDIR
}

fn self_path(dir: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(OsStr::new(&dir.as_raw_fd().to_string()))
}

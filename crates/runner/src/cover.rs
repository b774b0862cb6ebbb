//! Watches the mounts that keep a promise to the user and that the host can remove.
//!
//! Hidden and read-only files in a visible tree are mounts over names of the host. When a program on the host renames another file over
//! such a name or removes it, the kernel removes the mount in every other mount namespace (`detach_mounts`, fs/namespace.c). The file
//! that has the name then is as open to the stage as the tree around it. Nothing can prevent that, and only the host can do it. A renamed
//! file takes the mount along, and its old name is free. A mount of the host in a visible tree also appears in the sandbox
//! (mount_namespaces(7), "shared subtrees"), over covers and maybe writable. So the table of mounts is watched, and a stage that lost or
//! got a mount is ended. The exception is a file that the host renamed over a read-only one: it is covered again at once ([`remount`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exeat_sandbox::backend::Handle;
use exeat_sandbox::{InsideProcess, Offer, RunningSandbox, Status};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use exeat_files::layout::{EmptyEntry, Mount};
use exeat_files::lists;
use exeat_files::names::{Row, joined, rows};
use exeat_files::quarantine::{FileId, Leftover, Leftovers, QUARANTINE, Watch};

mod calls;
mod covered;
mod git_settings;
mod list;
mod remount;
mod saved;
mod watchdog;

use covered::LastCovers;
use remount::{Fate, RENAMES, Remounts};
pub(crate) use saved::{Before, SavedFile};
use watchdog::Watchdog;

/// The maximal size of a table of mounts: bubblewrap accepts a few thousand binds.
const TABLE: usize = 8 << 20;
/// The longest time between two checks. The kernel reports a removed mount at once, but not a mount whose name changed.
const BETWEEN: Duration = Duration::from_millis(500);

/// The number of checks, a millisecond apart, for the event of a removed cover. A loaded machine can take many
/// (`synchronize_rcu_expedited` in `namespace_unlock`, fs/namespace.c). The directory is locked during that time.
const IN_VAIN: u32 = 100;

/// The planned mounts of one sandbox.
#[derive(Debug)]
pub(crate) struct Covers {
    /// The sandbox's `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
    table: File,
    /// The places as bytes: comparing paths component by component would be the slowest step here.
    places: BTreeSet<OsString>,
    planned: Vec<Mount>,
    /// Places whose cover may be lost because programs on the host rewrite the file often.
    rewritten: BTreeSet<OsString>,
    /// The mount numbers from before the stage.
    known: BTreeSet<Vec<u8>>,
    /// The table at the last check that found no loss.
    judged: Vec<u8>,
    /// Mounts covers again, or the error that prevents it.
    remounts: io::Result<Remounts>,
    /// Places whose file was replaced and that were covered again.
    replaced: BTreeMap<PathBuf, Replaced>,
    /// Places whose file was removed on the host.
    removed: BTreeSet<PathBuf>,
    /// Names that could not be held.
    not_held: Vec<PathBuf>,
    /// Protected names that the stage made and that the host would have obeyed at once.
    found: Leftovers,
}

/// How often a covered file was replaced, by what happened then. One line tells all of it: several would contradict each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Replaced {
    /// The host's new file stayed.
    kept: u64,
    /// Another run had written the file again.
    by_run: u64,
    /// The stage may have written the new file: it was moved, and the old one written again.
    put_back: u64,
}

impl Replaced {
    fn sum(self) -> u64 {
        self.kept + self.by_run + self.put_back
    }
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kept, by_run, put_back } = *self;
        let times = |count: u64| if count == 1 { String::new() } else { format!(" {count} times") };
        let of_host = times(kept + put_back);
        match (kept, put_back) {
            (0, 0) => {}
            (_, 0) => write!(f, "was replaced on the host{of_host}, and is read-only for the stage again")?,
            (0, _) => write!(
                f,
                "was replaced on the host{of_host}, and the stage may have written to the new file: that was moved, and the last one is in its place again"
            )?,
            _ => write!(
                f,
                "was replaced on the host{of_host}: the new file stayed{}, and the stage may have written to it{}, so it was moved and the one before it was put back",
                times_or_once(kept),
                times_or_once(put_back)
            )?,
        }
        match (by_run, kept + put_back) {
            (0, _) => Ok(()),
            (_, 0) => write!(
                f,
                "was written again by another run{}, and is read-only for the stage again",
                times(by_run)
            ),
            _ => write!(f, "; another run wrote it again{}", times(by_run)),
        }
    }
}

fn times_or_once(count: u64) -> String {
    if count == 1 { " once".into() } else { format!(" {count} times") }
}

/// The changes that the host made under a stage.
#[derive(Debug, Default)]
pub(crate) struct Uncovered {
    /// The changes that ended the stage, or the error that prevented watching.
    pub(crate) over: Option<io::Result<Vec<Change>>>,
    /// Places whose file was rewritten, which the stage could read from then on.
    pub(crate) rewritten: Vec<PathBuf>,
    /// Places whose file was replaced and that were covered again.
    pub(crate) replaced: BTreeMap<PathBuf, Replaced>,
    /// The reason that changes of the host and of the stage could not be told apart, if so.
    pub(crate) untold: Option<&'static str>,
    /// Places whose file was removed.
    pub(crate) removed: BTreeSet<PathBuf>,
    /// Host paths that were removed and appeared again.
    pub(crate) remade: Vec<PathBuf>,
    /// Host paths that may hold the stage's file, with the saved file of the host.
    pub(crate) doubtful: Vec<(PathBuf, SavedFile)>,
    /// Names that could not be held.
    pub(crate) not_held: Vec<PathBuf>,
    /// The reason that nothing could be covered again or moved away.
    pub(crate) no_remounts: Option<String>,
    /// Names moved away during the run; the record already contains them.
    pub(crate) found: Leftovers,
}

impl Uncovered {
    /// Returns pairs of a text for the record and a line for the caller.
    pub(crate) fn lines(&self) -> Vec<(String, String)> {
        let rewritten = self.rewritten.iter().map(|place| {
            let line = format!(
                "`{}` was replaced on the host, as programs there do: the stage could read what is there now",
                display_path(place)
            );
            (place.display().to_string(), line)
        });
        let replaced = self.replaced.iter().map(|(place, replaced)| {
            (place.display().to_string(), format!("`{}` {replaced}", display_path(place)))
        });
        let untold = self.untold.iter().map(|why| {
            let line = "nothing told what the stage did from what the host did: every file that the host replaced was put back";
            (format!("not told: {why}"), format!("{line} ({why})"))
        });
        let removed = self.removed.iter().map(|place| {
            let line = "was removed on the host meanwhile: what has come there since is moved aside";
            (place.display().to_string(), format!("`{}` {line}", display_path(place)))
        });
        let no_remounts = self.no_remounts.iter().map(|why| {
            let line = "protected names could not be watched while the stage ran: what it made there was moved at its end, and no file \
                        that the host replaced could be made read-only again";
            (format!("not watched: {why}"), format!("{line} ({why})"))
        });
        let over = self.over_lines();
        let not_held = self.not_held.iter().map(|path| {
            let line = format!(
                "`{}` could not be held: git on the host obeyed what the stage made there, until its end",
                display_path(path)
            );
            (format!("not held: {}", path.display()), line)
        });
        rewritten
            .chain(not_held)
            .chain(replaced)
            .chain(untold)
            .chain(removed)
            .chain(over)
            .chain(no_remounts)
            .collect()
    }

    /// Returns such pairs for what ended the stage.
    fn over_lines(&self) -> Vec<(String, String)> {
        match &self.over {
            None => Vec::new(),
            Some(Ok(changes)) => {
                changes.iter().map(|change| (change.place().display().to_string(), change.line())).collect()
            }
            Some(Err(error)) => {
                let line = "what is protected could not be protected any more, and the stage was stopped";
                vec![(error.to_string(), format!("{line}: {error}"))]
            }
        }
    }

    /// Returns why the stage was ended, if the host, or what could not be protected any more, ended it.
    pub(crate) fn why_over(&self) -> Option<String> {
        let lines: Vec<_> = self.over_lines().into_iter().map(|(_, line)| line).collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    /// Returns the places inside for which the stage was ended.
    pub(crate) fn into_places(self) -> Vec<PathBuf> {
        let changes = self.over.and_then(Result::ok).unwrap_or_default();
        changes.into_iter().map(|(Change::Gone(place) | Change::Came(place))| place).collect()
    }
}

fn display_path(place: &Path) -> String {
    exeat_record::escape(place.as_os_str().as_bytes(), 1024)
}

/// What the host changed until the end of the stage.
#[derive(Default)]
struct HostChanges {
    /// Places whose file was rewritten, which the stage could read from then on.
    rewritten: Vec<PathBuf>,
    /// Places whose cover was gone at some time, but for those.
    gone: BTreeSet<PathBuf>,
    /// The changes that end the stage, or the error that prevents watching.
    over: Option<io::Result<Vec<Change>>>,
}

/// A change that ends the stage.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// The mount at this place is gone.
    Gone(PathBuf),
    /// A new mount there is writable or covers another mount.
    Came(PathBuf),
}

impl Change {
    /// Returns the place inside.
    fn place(&self) -> &Path {
        let (Self::Gone(place) | Self::Came(place)) = self;
        place
    }

    fn line(&self) -> String {
        let place = display_path(self.place());
        let what = match self {
            Self::Gone(_) => {
                "was replaced, renamed or removed on the host. What has that name now could be the stage's"
            }
            Self::Came(_) => {
                "has a new mount on the host. It came into the sandbox without what was read-only or hidden there"
            }
        };
        format!("`{place}` {what}, so the stage was stopped. Look at it before you use it")
    }
}

impl Covers {
    /// Starts watching before untrusted code runs in the sandbox; `masked` are the paths that a caller hides by name. Also returns the
    /// process beside the sandbox.
    ///
    /// # Errors
    /// Returns [`exeat_sandbox::Error::Watch`] when the table of mounts cannot be read, and [`exeat_sandbox::Error::Replaced`] when a mount
    /// is already gone.
    pub(crate) fn new(
        planned: &[Mount],
        masked: &[PathBuf],
        stubs: &[(PathBuf, FileId)],
        watches: Arc<[Watch]>,
        offer: &Offer,
    ) -> Result<(Self, InsideProcess), exeat_sandbox::Error> {
        let watch = exeat_sandbox::Error::Watch;
        let mut places: BTreeSet<_> =
            planned.iter().filter_map(place).map(|place| place.as_os_str().to_owned()).collect();
        let stub_places: Vec<_> = stubs.iter().flat_map(|(host, _)| places_of(host, planned)).collect();
        let is_rewritten = |mount: &&Mount| {
            let is_hidden = matches!(mount, Mount::Hidden { entry: EmptyEntry::File, .. });
            // The name counts, wherever the file is visible.
            let is_asked_for = |at: &Path| masked.iter().any(|path| path.file_name() == at.file_name());
            let is_known = |at: &Path| lists::REWRITTEN.iter().any(|name| at.ends_with(name));
            // The stage of another run may rename its quarantine, and that contains nothing of the caller's.
            let is_quarantine = |at: &Path| at.ends_with(QUARANTINE);
            place(mount)
                .is_some_and(|at| (is_hidden && is_known(at) || is_quarantine(at)) && !is_asked_for(at))
        };
        let rewritten = planned.iter().filter(is_rewritten).filter_map(place);
        let rewritten = rewritten.map(|place| place.as_os_str().to_owned()).collect();
        let (process, mut remounts) =
            Remounts::new(offer, replaceable(planned), stub_places.iter().cloned(), watches);
        let mut not_held = Vec::new();
        // A run that was killed left it, and it was there when the mounts were planned.
        let is_planned = |stub: &Path| {
            planned.iter().any(|mount| matches!(mount, Mount::ReadOnly { host, .. } if host == stub))
        };
        for (host, id) in stubs {
            let is_held = remounts.as_mut().is_ok_and(|remounts| remounts.is_covered(host, *id));
            let its_places = stub_places.iter().filter(|(stub, _)| stub == host);
            if is_held {
                places.extend(its_places.map(|(_, at)| at.as_os_str().to_owned()));
            } else if its_places.count() > 0 && !is_planned(host) {
                not_held.push(host.clone());
            }
        }
        let mut covers = Self {
            // Waiting reports only mounts that change after the table was opened (`mounts_poll`, fs/proc_namespace.c).
            table: offer.mounts()?,
            places,
            planned: planned.to_vec(),
            rewritten,
            known: BTreeSet::new(),
            judged: Vec::new(),
            remounts,
            replaced: BTreeMap::new(),
            removed: BTreeSet::new(),
            not_held,
            found: Leftovers::default(),
        };
        let text = covers.text().map_err(watch)?;
        covers.known = rows(&text).map(|row| row.id.to_vec()).collect();
        if let Some(gone) = covers.missing_places(&text).next() {
            return Err(exeat_sandbox::Error::Replaced(gone));
        }
        Ok((covers, process))
    }

    /// Fails if protected names cannot be watched while the stage runs.
    pub(crate) fn check_watch(&self) -> io::Result<()> {
        match &self.remounts {
            Ok(_) => Ok(()),
            Err(why) => Err(io::Error::new(why.kind(), format!("protected names cannot be watched: {why}"))),
        }
    }

    /// Returns the filter for calls of the stage that must be reported here; empty for none.
    ///
    /// # Errors
    /// Returns an error if it cannot be compiled.
    pub(crate) fn notice_filter(&self) -> Result<Vec<u8>, exeat_sandbox::Error> {
        let has_files = self.remounts.as_ref().is_ok_and(Remounts::has_files);
        if has_files { exeat_sandbox::seccomp::notice_filter() } else { Ok(Vec::new()) }
    }

    /// Waits until every process of the sandbox has ended. Ends the stage when a mount is gone and cannot be restored, or another one opens
    /// something. Calls `note` for each protected name that the stage made, when it is moved away.
    pub(crate) fn hold(
        mut self,
        mut running: RunningSandbox,
        handle: Handle,
        note: impl Fn(&Leftover),
    ) -> (Result<Status, exeat_sandbox::Error>, Uncovered) {
        if let Ok(remounts) = &mut self.remounts {
            remounts.hear_of(running.take_notices());
        }
        let first_look = self.remounts.as_ref().map(Remounts::first_look).unwrap_or_default();
        let watchdog = Watchdog::new(handle, first_look);
        // The stage may have thousands of runnable processes.
        exeat_sandbox::prefer_this_thread();
        let changes = self.watch_until_end(&mut running, &watchdog, note);
        let is_put_back = self.replaced.values().any(|replaced| replaced.put_back > 0);
        let untold = self.remounts.as_ref().ok().and_then(Remounts::untold).filter(|_| is_put_back);
        let status = running.wait();
        (status, self.release(changes, untold))
    }

    /// Watches until the stage has ended, or must be ended.
    fn watch_until_end(
        &mut self,
        running: &mut RunningSandbox,
        watchdog: &Watchdog,
        note: impl Fn(&Leftover),
    ) -> HostChanges {
        let mut all = HostChanges::default();
        let mut looked = Instant::now();
        while all.over.is_none() {
            let Some(changes) = self.await_changes(running, watchdog) else { break };
            // Some changes make no event, such as a name in another case on a file system that ignores case.
            if looked.elapsed() >= BETWEEN
                && let Ok(remounts) = &mut self.remounts
            {
                remounts.search_again();
                looked = Instant::now();
            }
            for change in changes.iter().flatten() {
                if let Change::Gone(place) = change
                    && !self.rewritten.contains(place.as_os_str())
                {
                    all.gone.insert(place.clone());
                }
            }
            let changes = changes.and_then(|changes| self.settle_arrivals(watchdog, &note).map(|()| changes));
            let fatal = changes.map(|mut changes| {
                changes.retain(|change| !self.may_go(change, &mut all.rewritten));
                changes
            });
            if !fatal.as_ref().is_ok_and(Vec::is_empty) {
                running.kill();
                all.over = Some(fatal.map(|mut changes| {
                    changes.sort();
                    changes.dedup();
                    changes
                }));
            }
        }
        all
    }

    /// Waits for the next changes. Returns `None` when the stage has ended and nothing was lost.
    fn await_changes(
        &mut self,
        running: &mut RunningSandbox,
        watchdog: &Watchdog,
    ) -> Option<io::Result<Vec<Change>>> {
        let (events, longest) = match &self.remounts {
            Ok(remounts) if remounts.has_arrivals() => (Some(remounts.events()), Duration::ZERO),
            Ok(remounts) => (Some(remounts.events()), remounts.interval().unwrap_or(BETWEEN)),
            Err(_) => (None, BETWEEN),
        };
        Some(match running.until_change(&self.table, events, longest) {
            // Also handles changes just before the end.
            Ok(exeat_sandbox::SandboxEvent::Ended) => match self.restore(watchdog) {
                Ok(lost) if lost.is_empty() => return None,
                lost => lost,
            },
            Ok(exeat_sandbox::SandboxEvent::Events) => {
                // A busy stage makes many events. This thread can wait; the helper that renames files cannot.
                std::thread::sleep(Duration::from_millis(1));
                self.restore(watchdog)
            }
            Ok(exeat_sandbox::SandboxEvent::Mounts | exeat_sandbox::SandboxEvent::None) => {
                self.changes(watchdog)
            }
            Err(error) => Err(error),
        })
    }

    /// Returns whether a cover may be lost, because programs on the host rewrite the file often. It is not watched from then on.
    fn may_go(&mut self, change: &Change, rewritten: &mut Vec<PathBuf>) -> bool {
        let place = change.place().as_os_str();
        let may_go = matches!(change, Change::Gone(_)) && self.rewritten.contains(place);
        if may_go {
            self.places.remove(place);
            rewritten.push(PathBuf::from(place));
        }
        may_go
    }

    /// Releases the covers of a sandbox that is gone, and judges what the host changed in the last moment.
    fn release(self, changes: HostChanges, untold: Option<&'static str>) -> Uncovered {
        let HostChanges { rewritten, mut gone, mut over } = changes;
        let writable = self.planned.iter().filter_map(|mount| match mount {
            Mount::Writable { at, .. } => Some(at.as_path()),
            _ => None,
        });
        let table = self.text().unwrap_or_default();
        let below = |at: &Path| {
            let mounts = rows(&table).filter(|row| !row.is_read_only()).map(|row| row.at());
            mounts.filter(|mount| mount.starts_with(at) && mount != at).collect()
        };
        let released = self.remounts.map(|remounts| remounts.release(writable, below));
        let (mut last, mut busy, unsealed) = match released {
            Ok(released) => (Ok(released.last), released.busy, released.unsealed),
            Err(error) => (Err(error), Vec::new(), None),
        };
        match unsealed {
            Some((at, why)) if over.is_none() => over = Some(Err(not_sealed(&at, &why))),
            unsealed => busy.extend(unsealed),
        }
        // The stage may have made a name that the host removed in the last moment.
        let remade = last.as_ref().map(LastCovers::remade).unwrap_or_default();
        let obeyed: Vec<_> = remade.iter().filter(|(_, is_obeyed)| *is_obeyed).collect();
        if over.is_none() && !obeyed.is_empty() {
            over = Some(Ok(obeyed.into_iter().map(|(host, _)| Change::Gone(host.clone())).collect()));
        }
        let mut remade: Vec<PathBuf> = remade.into_iter().map(|(host, _)| host).collect();
        gone.extend(over.iter().flatten().flatten().filter_map(|change| match change {
            Change::Gone(place) => Some(place.clone()),
            Change::Came(_) => None,
        }));
        let is_lost = |place: &Path| gone.contains(place);
        let doubtful = last.as_mut().map(|last| last.doubtful(is_lost)).unwrap_or_default();
        remade.retain(|host| doubtful.iter().all(|(doubtful, _)| doubtful != host));
        if let Ok(last) = &last {
            last.separate();
        }
        // From here on, programs that wait to write to one of the files can continue.
        let no_remounts = last.err().map(|error| error.to_string());
        let Self { replaced, removed, not_held, mut found, planned, .. } = self;
        for (at, why) in busy {
            found.add(Leftover { path: host_of(&at, &planned), moved: Err(stays_writable(&why)) });
        }
        Uncovered {
            over,
            rewritten,
            replaced,
            untold,
            removed,
            remade,
            doubtful,
            not_held,
            no_remounts,
            found,
        }
    }

    /// Moves away what the stage made under names that the host obeys at once.
    fn settle_arrivals(&mut self, watchdog: &Watchdog, note: impl Fn(&Leftover)) -> io::Result<()> {
        let Ok(remounts) = &mut self.remounts else { return Ok(()) };
        let (planned, known) = (&self.planned, &mut self.known);
        let places = |source: &Path, target: &Path| places_of_both(source, target, planned);
        let mounted = |number: u64| {
            known.insert(number.to_string().into_bytes());
        };
        let in_sight = |is_in_sight: bool| watchdog.set(is_in_sight);
        let mut all = Vec::new();
        let settled = remounts.settle_arrivals(places, mounted, &in_sight, &mut all);
        for found in all {
            note(&found);
            self.found.add(found);
        }
        watchdog.rest();
        settled.and_then(|()| watchdog.check())
    }

    fn changes(&mut self, watchdog: &Watchdog) -> io::Result<Vec<Change>> {
        let mut changes = self.restore(watchdog)?;
        let mut text = self.text()?;
        if text == self.judged {
            return Ok(changes);
        }
        // A program may replace a file repeatedly, and the kernel removes the mount before it reports the rename.
        let (mut renames, mut in_vain) = (0, 0);
        while renames < RENAMES && in_vain < IN_VAIN {
            if !self.missing_places(&text).any(|place| self.is_kept(&place)) {
                break;
            }
            let count = |it: &Self| it.replaced.values().map(|replaced| replaced.sum()).sum::<u64>();
            let before = count(self);
            changes.extend(self.restore(watchdog)?);
            text = self.text()?;
            if count(self) > before {
                renames += 1;
            } else {
                in_vain += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // A mount made here is expected, also one whose event has not been read yet.
        let is_ours = |row: &Row<'_>| row.is_read_only() && self.is_kept(&row.at());
        let ours: Vec<_> = rows(&text).filter(is_ours).map(|row| row.id.to_vec()).collect();
        self.known.extend(ours);
        let new = rows(&text).filter(|row| !self.known.contains(row.id) && self.opens(row));
        let found = self.missing_places(&text).map(Change::Gone).chain(new.map(|row| Change::Came(row.at())));
        changes.extend(found);
        self.judged = text;
        Ok(changes)
    }

    /// Returns whether a place is covered again if its cover is lost.
    fn is_kept(&self, place: &Path) -> bool {
        self.remounts.as_ref().is_ok_and(|remounts| remounts.knows(place))
    }

    /// Covers again what the host replaced. Returns what is lost.
    fn restore(&mut self, watchdog: &Watchdog) -> io::Result<Vec<Change>> {
        let Ok(remounts) = &mut self.remounts else { return Ok(Vec::new()) };
        let mut lost = Vec::new();
        for (place, fate) in remounts.update(&|| watchdog.set(true))? {
            match fate {
                Fate::Restored => self.replaced.entry(place).or_default().kept += 1,
                Fate::ByRun => self.replaced.entry(place).or_default().by_run += 1,
                Fate::PutBack => self.replaced.entry(place).or_default().put_back += 1,
                Fate::Removed => {
                    self.places.remove(place.as_os_str());
                    self.removed.insert(place);
                }
                Fate::Lost => {
                    self.removed.remove(&place);
                    lost.push(Change::Gone(place));
                }
            }
        }
        Ok(lost)
    }

    fn missing_places(&self, text: &[u8]) -> impl Iterator<Item = PathBuf> {
        let there: BTreeSet<OsString> = rows(text).map(|row| row.at().into_os_string()).collect();
        self.places.iter().filter(move |place| !there.contains(*place)).map(PathBuf::from)
    }

    /// Returns whether a new mount lets the stage do more than the planned mounts. In a writable tree it does: it lacks the tree's
    /// covers, and devices work in it.
    fn opens(&self, new: &Row<'_>) -> bool {
        const KERNEL: [&[u8]; 4] = [b"proc", b"sysfs", b"devtmpfs", b"devpts"];
        let place = new.at();
        let above = self.planned.iter().filter(|mount| place.starts_with(mount.at()));
        // Of two mounts at one place, the later one is on top.
        let tree = above.max_by_key(|mount| mount.at().components().count());
        let (host, at) = match tree {
            Some(Mount::ReadOnly { host, at, .. }) => (host, at),
            Some(Mount::Writable { .. }) => return true,
            // The mount is below a place that exeat made.
            _ => return false,
        };
        let covers = |it: &OsString| it.len() > place.as_os_str().len() && Path::new(it).starts_with(&place);
        if KERNEL.contains(&new.kind) || self.places.iter().any(covers) {
            return true;
        }
        let is_in_reach = || {
            let below = place.strip_prefix(at).unwrap_or(Path::new(""));
            // A stage that runs as the caller cannot enter what exeat cannot enter. The parent is checked because the mount itself may
            // hang.
            joined(host, below)
                .parent()
                .is_none_or(|dir| access(dir, AccessFlags::X_OK) != Err(Errno::EACCES))
        };
        !new.is_read_only() && is_in_reach()
    }

    fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(16 << 10);
        let mut table = &self.table;
        table.seek(SeekFrom::Start(0))?;
        table.take(TABLE as u64).read_to_end(&mut text)?;
        if text.len() == TABLE {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too many mounts"));
        }
        Ok(text)
    }
}

/// Returns where a mount shows or replaces a part of the host. Files from exeat do not count: `/etc/passwd` below one is readable for
/// everybody, and an upgrade or a new lease replaces it.
fn place(mount: &Mount) -> Option<&Path> {
    match mount {
        Mount::ReadOnly { at, .. }
        | Mount::Writable { at, .. }
        | Mount::Hidden { at, .. }
        | Mount::Tmpfs { at, .. } => Some(at),
        _ => None,
    }
}

/// Lists mounts that only make a name in a writable tree read-only, as pairs of host path and place.
fn replaceable(planned: &[Mount]) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    planned.iter().filter_map(|mount| {
        let Mount::ReadOnly { host, at, .. } = mount else { return None };
        let trees = planned.iter().filter_map(|mount| match mount {
            Mount::Writable { host, at, .. } => Some((host, at)),
            _ => None,
        });
        let mut trees = trees.filter(|(tree, place)| {
            at.strip_prefix(place).is_ok_and(|below| joined(tree, below) == *host) && at != *place
        });
        let is_plain = |meta: fs::Metadata| meta.is_file() || meta.is_dir();
        let is_there = fs::symlink_metadata(host).is_ok_and(is_plain);
        (is_there && trees.next().is_some()).then(|| (host.clone(), at.clone()))
    })
}

/// Pairs a host path in writable trees with each place where the stage sees it.
fn places_of(host: &Path, planned: &[Mount]) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let places: BTreeSet<PathBuf> =
        writable(planned).filter_map(|(tree, at)| place_in(tree, at, host, planned)).collect();
    let host = host.to_path_buf();
    places.into_iter().map(move |place| (host.clone(), place))
}

/// Returns the places of two host paths in each writable tree that contains both.
fn places_of_both(one: &Path, other: &Path, planned: &[Mount]) -> Vec<(PathBuf, PathBuf)> {
    let in_tree = |(tree, at): (&Path, &Path)| {
        Some((place_in(tree, at, one, planned)?, place_in(tree, at, other, planned)?))
    };
    let places: BTreeSet<_> = writable(planned).filter_map(in_tree).collect();
    places.into_iter().collect()
}

fn writable(planned: &[Mount]) -> impl Iterator<Item = (&Path, &Path)> {
    planned.iter().filter_map(|mount| match mount {
        Mount::Writable { host, at, .. } => Some((host.as_path(), at.as_path())),
        _ => None,
    })
}

/// Returns the path on the host of a mount in a writable tree.
fn host_of(place: &Path, planned: &[Mount]) -> PathBuf {
    let trees =
        writable(planned).filter_map(|(tree, at)| Some((at, joined(tree, place.strip_prefix(at).ok()?))));
    let nearest = trees.max_by_key(|(at, _)| at.components().count());
    nearest.map_or_else(|| place.to_path_buf(), |(_, host)| host)
}

/// Returns the error of a run whose mount may be writable after its end.
fn not_sealed(at: &Path, why: &io::Error) -> io::Error {
    io::Error::other(format!(
        "`{}` could not be made read-only at the end: a process of another run that the stage passed a directory of it to may change files \
         there, also protected ones; end that run ({why})",
        display_path(at)
    ))
}

/// Returns the reason to tell of a mount that could not be made read-only.
fn stays_writable(why: &io::Error) -> io::Error {
    io::Error::other(format!(
        "a process of another run may have a file there open for writing, and may change what is in it, also modes of protected files ({why})"
    ))
}

/// Returns the place of a host path in a tree, if the stage sees it there.
fn place_in(tree: &Path, at: &Path, host: &Path, planned: &[Mount]) -> Option<PathBuf> {
    let place = joined(at, host.strip_prefix(tree).ok()?);
    // The topmost mount over it must also lead there.
    let above = planned.iter().filter(|mount| place.starts_with(mount.at()));
    let last = above.max_by_key(|mount| mount.at().components().count());
    let is_shown = match last {
        Some(Mount::ReadOnly { host: tree, at, .. } | Mount::Writable { host: tree, at, .. }) => {
            place.strip_prefix(at).is_ok_and(|below| joined(tree, below) == host)
        }
        _ => false,
    };
    is_shown.then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_tells_what_became_of_a_replaced_file() {
        let said = |kept, by_run, put_back| Replaced { kept, by_run, put_back }.to_string();
        assert_eq!(said(2, 0, 0), "was replaced on the host 2 times, and is read-only for the stage again");
        assert!(said(0, 0, 1).starts_with("was replaced on the host, and the stage may have written"));
        assert_eq!(
            said(1, 0, 2),
            "was replaced on the host 3 times: the new file stayed once, and the stage may have written to it 2 times, \
             so it was moved and the one before it was put back"
        );
        // What another run put back is no change of the host's.
        assert!(said(0, 1, 0).starts_with("was written again by another run, and"));
        assert!(
            said(1, 2, 0).ends_with("is read-only for the stage again; another run wrote it again 2 times")
        );
    }
}

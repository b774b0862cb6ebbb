//! Mounts that hold a promise, and that the host can take away.
//!
//! What is hidden or read-only in a shown tree is a mount over a name of the host's. When somebody on the host renames another
//! file over that name, or removes it, the kernel takes the mount away in every other mount namespace (`detach_mounts`,
//! fs/namespace.c): what has the name now is as open to the stage as the tree around it. Nothing can keep it from that, and
//! only the host can do it. A file that is renamed itself takes the mount along, and its old name is free. And what the host
//! mounts in a shown tree comes into the sandbox (mount_namespaces(7), "shared subtrees"): over covers, and writable where the
//! tree is not. So the table of mounts is watched, and a stage that has lost one, or has got one, is ended.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_sandbox::{Mount, Running};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use crate::lists;
use crate::view::{is_mask, mount_point};
use exeat_files::names::{Row, joined, rows};

/// Bytes of a table of mounts: bubblewrap reads no more binds than a few thousand.
const TABLE: usize = 8 << 20;
/// The longest time between two looks. The kernel tells at once of a mount that is gone, and never of one that has another name.
const BETWEEN: Duration = Duration::from_millis(500);

/// The mounts of one sandbox that were planned.
#[derive(Debug)]
pub(crate) struct Covers {
    /// Its `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
    table: File,
    /// As bytes: a path is compared part by part, which takes longer than all else here.
    places: BTreeSet<OsString>,
    planned: Vec<Mount>,
    /// Of the places, those that may be lost: what is there programs of the host's write anew all day.
    rewritten: BTreeSet<OsString>,
    /// The numbers of those that were there before the stage.
    known: BTreeSet<Vec<u8>>,
    /// The table when nothing had changed for the worse, the last time.
    judged: Vec<u8>,
}

/// What the host took away from over a stage.
#[derive(Debug, Default)]
pub(crate) struct Uncovered {
    /// What the stage was ended for, or why that could not be told any more.
    pub(crate) over: Option<io::Result<Vec<Change>>>,
    /// What was rewritten meanwhile, and was open to the stage from then on.
    pub(crate) rewritten: Vec<PathBuf>,
}

impl Uncovered {
    /// For the record and for the caller, what each is told.
    pub(crate) fn told(&self) -> Vec<(String, String)> {
        let rewritten = self.rewritten.iter().map(|place| {
            let line = format!(
                "`{}` was replaced on the host, as programs there do: the stage could read what is there now",
                shown(place)
            );
            (place.display().to_string(), line)
        });
        let over = match &self.over {
            None => Vec::new(),
            Some(Ok(changes)) => {
                changes.iter().map(|change| (change.place().display().to_string(), change.line())).collect()
            }
            Some(Err(error)) => {
                let line = "whether what is hidden or read-only is so still cannot be told any more: the stage was stopped";
                vec![(error.to_string(), format!("{line}: {error}"))]
            }
        };
        rewritten.chain(over).collect()
    }

    /// What the stage was ended for, by its place inside.
    pub(crate) fn into_places(self) -> Vec<PathBuf> {
        let changes = self.over.and_then(Result::ok).unwrap_or_default();
        changes.into_iter().map(|(Change::Gone(place) | Change::Came(place))| place).collect()
    }
}

fn shown(place: &Path) -> String {
    exeat_audit::escape(place.as_os_str().as_bytes(), 1024)
}

/// What a stage was ended for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// What was mounted at this place is not there any more.
    Gone(PathBuf),
    /// Something was mounted there that is not read-only, or is over what was.
    Came(PathBuf),
}

impl Change {
    /// Where, inside.
    fn place(&self) -> &Path {
        let (Self::Gone(place) | Self::Came(place)) = self;
        place
    }

    fn line(&self) -> String {
        let place = shown(self.place());
        let what = match self {
            Self::Gone(_) => {
                "was replaced, renamed or removed on the host, and what is there now was open to the stage"
            }
            Self::Came(_) => {
                "has a new mount on the host, which came into the sandbox without what was read-only or hidden there"
            }
        };
        format!("`{place}` {what}: the stage was stopped; look at what is there before you use it")
    }
}

impl Covers {
    /// `table` is that of the sandbox, where nothing untrusted has run yet; `masked` is what somebody has hidden by name.
    ///
    /// # Errors
    /// When it cannot be read, and `NotFound` when one is gone already.
    pub(crate) fn new(table: File, planned: &[Mount], masked: &[PathBuf]) -> io::Result<Self> {
        let places = planned.iter().filter_map(place).map(|place| place.as_os_str().to_owned()).collect();
        let is_rewritten = |mount: &&Mount| {
            let is_hidden = matches!(mount, Mount::ReadOnly { host, .. } if is_mask(host));
            // Wherever it is shown.
            let is_asked_for = |at: &Path| masked.iter().any(|path| path.file_name() == at.file_name());
            let is_known = |at: &Path| lists::REWRITTEN.iter().any(|name| at.ends_with(name));
            is_hidden && place(mount).is_some_and(|at| is_known(at) && !is_asked_for(at))
        };
        let rewritten = planned.iter().filter(is_rewritten).filter_map(place);
        let rewritten = rewritten.map(|place| place.as_os_str().to_owned()).collect();
        let planned = planned.to_vec();
        let mut covers =
            Self { table, places, planned, rewritten, known: BTreeSet::new(), judged: Vec::new() };
        let text = covers.text()?;
        covers.known = rows(&text).map(|row| row.id.to_vec()).collect();
        let late = |words: String| Err(io::Error::new(io::ErrorKind::NotFound, words));
        if let Some(gone) = covers.gone(&text).next() {
            return late(format!(
                "`{}` was replaced, renamed or removed on the host meanwhile",
                gone.display()
            ));
        }
        Ok(covers)
    }

    /// Waits until the stage has ended, and ends it when one of the mounts is gone, or another one opens something.
    pub(crate) fn hold(mut self, running: &Running) -> Uncovered {
        let mut rewritten = Vec::new();
        loop {
            let lost = match running.until_change(&self.table, BETWEEN) {
                Ok(exeat_sandbox::Change::Ended) => return Uncovered { over: None, rewritten },
                Ok(exeat_sandbox::Change::Mounts | exeat_sandbox::Change::None) => self.changes(),
                Err(error) => Err(error),
            };
            let lost = lost.map(|mut changes| {
                changes.retain(|change| {
                    let place = change.place().as_os_str();
                    let may_go = matches!(change, Change::Gone(_)) && self.rewritten.contains(place);
                    if may_go {
                        self.places.remove(place);
                        rewritten.push(PathBuf::from(place));
                    }
                    !may_go
                });
                changes
            });
            if lost.as_ref().is_ok_and(Vec::is_empty) {
                continue;
            }
            running.kill();
            return Uncovered { over: Some(lost), rewritten };
        }
    }

    fn changes(&mut self) -> io::Result<Vec<Change>> {
        let text = self.text()?;
        if text == self.judged {
            return Ok(Vec::new());
        }
        let new = rows(&text).filter(|row| !self.known.contains(row.id) && self.opens(row));
        let changes = self.gone(&text).map(Change::Gone).chain(new.map(|row| Change::Came(row.at())));
        let changes = changes.collect();
        self.judged = text;
        Ok(changes)
    }

    fn gone(&self, text: &[u8]) -> impl Iterator<Item = PathBuf> {
        let there: BTreeSet<OsString> = rows(text).map(|row| row.at().into_os_string()).collect();
        self.places.iter().filter(move |place| !there.contains(*place)).map(PathBuf::from)
    }

    /// Whether a mount that has come lets the stage do what the planned ones do not. In a writable tree it does: it has none of the
    /// tree's covers, and devices work in it.
    fn opens(&self, new: &Row<'_>) -> bool {
        const KERNEL: [&[u8]; 4] = [b"proc", b"sysfs", b"devtmpfs", b"devpts"];
        let place = new.at();
        let above =
            self.planned.iter().filter(|mount| mount_point(mount).is_some_and(|at| place.starts_with(at)));
        // Of two at one place the later one is on top.
        let tree = above.max_by_key(|mount| mount_point(mount).map_or(0, |at| at.components().count()));
        let (host, at) = match tree {
            Some(Mount::ReadOnly { host, at }) if !is_mask(host) => (host, at),
            Some(Mount::Writable { .. }) => return true,
            // It is under a place of ours.
            _ => return false,
        };
        let covers = |it: &OsString| it.len() > place.as_os_str().len() && Path::new(it).starts_with(&place);
        if KERNEL.contains(&new.kind) || self.places.iter().any(covers) {
            return true;
        }
        let is_in_reach = || {
            let below = place.strip_prefix(at).unwrap_or(Path::new(""));
            // What exeat may not enter, a stage that is its caller may not either. Not the mount itself is asked, which may be one
            // that does not answer.
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

/// Where something of the host's, or in its place, is mounted. Not our own files: what is under `/etc/passwd` everybody may
/// read, and an upgrade or a new lease replaces it.
fn place(mount: &Mount) -> Option<&Path> {
    match mount {
        Mount::ReadOnly { at, .. } | Mount::Writable { at, .. } | Mount::Tmpfs { at, .. } => Some(at),
        _ => None,
    }
}

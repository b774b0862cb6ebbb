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
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_sandbox::{Mount, Running};

use crate::names::{Row, rows};
use crate::view::{joined, mount_point};

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
    /// The numbers of those that were there before the stage.
    known: BTreeSet<Vec<u8>>,
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
    pub(crate) fn place(&self) -> &Path {
        let (Self::Gone(place) | Self::Came(place)) = self;
        place
    }

    pub(crate) fn into_place(self) -> PathBuf {
        let (Self::Gone(place) | Self::Came(place)) = self;
        place
    }

    /// For the caller.
    pub(crate) fn line(&self) -> String {
        let place = exeat_audit::escape(self.place().as_os_str().as_bytes(), 1024);
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
    /// `table` is that of the sandbox, where nothing untrusted has run yet.
    ///
    /// # Errors
    /// When it cannot be read, and `NotFound` when one is gone already.
    pub(crate) fn new(table: File, planned: &[Mount]) -> io::Result<Self> {
        let places = planned.iter().filter_map(place).map(|place| place.as_os_str().to_owned()).collect();
        let mut covers = Self { table, places, planned: planned.to_vec(), known: BTreeSet::new() };
        let text = covers.text()?;
        covers.known = rows(&text).map(|row| row.id.to_vec()).collect();
        let gone = covers.gone(&text).next();
        match gone {
            None => Ok(covers),
            Some(gone) => {
                let words =
                    format!("`{}` was replaced, renamed or removed on the host meanwhile", gone.display());
                Err(io::Error::new(io::ErrorKind::NotFound, words))
            }
        }
    }

    /// Waits until the stage has ended, and ends it when one of the mounts is gone: `Some` with their places inside, or with why
    /// that cannot be told.
    pub(crate) fn hold(&self, running: &Running) -> Option<io::Result<Vec<Change>>> {
        loop {
            let lost = match running.until_change(&self.table, BETWEEN) {
                Ok(exeat_sandbox::Change::Ended) => return None,
                Ok(exeat_sandbox::Change::Mounts | exeat_sandbox::Change::None) => self.changes(),
                Err(error) => Err(error),
            };
            if lost.as_ref().is_ok_and(Vec::is_empty) {
                continue;
            }
            running.kill();
            return Some(lost);
        }
    }

    fn changes(&self) -> io::Result<Vec<Change>> {
        let text = self.text()?;
        let new = rows(&text).filter(|row| !self.known.contains(row.id) && self.opens(row));
        Ok(self.gone(&text).map(Change::Gone).chain(new.map(|row| Change::Came(row.at()))).collect())
    }

    fn gone(&self, text: &[u8]) -> impl Iterator<Item = PathBuf> {
        let there: BTreeSet<OsString> = rows(text).map(|row| row.at().into_os_string()).collect();
        self.places.iter().filter(move |place| !there.contains(*place)).map(PathBuf::from)
    }

    /// Whether a mount that has come lets the stage do what the planned ones do not.
    fn opens(&self, new: &Row<'_>) -> bool {
        let place = new.at();
        let above =
            self.planned.iter().filter(|mount| mount_point(mount).is_some_and(|at| place.starts_with(at)));
        // Of two at one place the later one is on top.
        let tree = above.max_by_key(|mount| mount_point(mount).map_or(0, |at| at.components().count()));
        let (host, at, is_read_only) = match tree {
            Some(Mount::ReadOnly { host, at }) if host != Path::new("/dev/null") => (host, at, true),
            Some(Mount::Writable { host, at }) => (host, at, false),
            // It is under a place of ours.
            _ => return false,
        };
        let covers = |it: &OsString| it.len() > place.as_os_str().len() && Path::new(it).starts_with(&place);
        if self.places.iter().any(covers) {
            return true;
        }
        let below = place.strip_prefix(at).unwrap_or(Path::new(""));
        // What exeat may not enter, a stage that is its caller may not either.
        let is_in_reach = fs::metadata(joined(host, below)).is_ok();
        is_read_only && !new.is_read_only() && is_in_reach
    }

    fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = vec![0; 16 << 10];
        let mut read = 0;
        loop {
            let count = self.table.read_at(text.get_mut(read..).unwrap_or_default(), read as u64)?;
            if count == 0 {
                text.truncate(read);
                return Ok(text);
            }
            read += count;
            if read == text.len() {
                if read >= TABLE {
                    return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too many mounts"));
                }
                text.resize(read * 2, 0);
            }
        }
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

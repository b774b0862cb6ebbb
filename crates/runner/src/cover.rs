//! Mounts that hold a promise, and that the host can take away.
//!
//! What is hidden or read-only in a shown tree is a mount over a name of the host's. When somebody on the host renames another
//! file over that name, or removes it, the kernel takes the mount away in every other mount namespace (`detach_mounts`,
//! fs/namespace.c): what has the name now is as open to the stage as the tree around it. Nothing can keep it from that, and
//! only the host can do it. A file that is renamed itself takes the mount along, and its old name is free. So the table of mounts
//! is watched, and a stage that has lost one is ended.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_sandbox::{Change, Mount, Running};

use crate::names::unescaped;
use crate::view::mount_points;

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
}

impl Covers {
    /// `table` is that of the sandbox, where nothing untrusted has run yet.
    ///
    /// # Errors
    /// When it cannot be read, and `NotFound` when one is gone already.
    pub(crate) fn new(table: File, planned: &[Mount]) -> io::Result<Self> {
        let places = planned.iter().filter_map(place).map(|place| place.as_os_str().to_owned()).collect();
        let covers = Self { table, places };
        match covers.lost()?.first() {
            None => Ok(covers),
            Some(lost) => {
                let words =
                    format!("`{}` was replaced, renamed or removed on the host meanwhile", lost.display());
                Err(io::Error::new(io::ErrorKind::NotFound, words))
            }
        }
    }

    /// Waits until the stage has ended, and ends it when one of the mounts is gone: `Some` with their places inside, or with why
    /// that cannot be told.
    pub(crate) fn hold(&self, running: &Running) -> Option<io::Result<Vec<PathBuf>>> {
        loop {
            let lost = match running.until_change(&self.table, BETWEEN) {
                Ok(Change::Ended) => return None,
                // Of every kind: a mount of the host's that has come, too.
                Ok(Change::Mounts | Change::None) => self.lost(),
                Err(error) => Err(error),
            };
            if lost.as_ref().is_ok_and(Vec::is_empty) {
                continue;
            }
            // Where it has ended by itself meanwhile, nobody is left to be ended.
            let _ = running.kill();
            return Some(lost);
        }
    }

    fn lost(&self) -> io::Result<Vec<PathBuf>> {
        let there = places(&self.table)?;
        Ok(self.places.difference(&there).map(PathBuf::from).collect())
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

fn places(table: &File) -> io::Result<BTreeSet<OsString>> {
    let mut text = vec![0; 16 << 10];
    let mut read = 0;
    loop {
        let count = table.read_at(text.get_mut(read..).unwrap_or_default(), read as u64)?;
        if count == 0 {
            text.truncate(read);
            return Ok(mount_points(&text).map(|(at, _)| unescaped(at).into_os_string()).collect());
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

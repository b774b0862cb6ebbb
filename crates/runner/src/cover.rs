//! Mounts that hold a promise, and that the host can take away.
//!
//! What is hidden or read-only in a shown tree is a mount over a name of the host's. When somebody on the host renames another
//! file over that name, or removes it, the kernel takes the mount away in every other mount namespace (`detach_mounts`,
//! fs/namespace.c): what has the name now is as open to the stage as the tree around it. Nothing can keep it from that, and
//! only the host can do it. A file that is renamed itself takes the mount along, and its old name is free. So the table of mounts
//! is watched, and a stage that has lost one is ended.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_sandbox::{Change, Mount, Running};

use crate::lists;
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
    places: BTreeSet<PathBuf>,
    /// Of these, what the stage's user may not read either, as long as nobody may: `useradd`, `passwd` and upgrades
    /// replace such files.
    doubly_held: BTreeSet<PathBuf>,
}

impl Covers {
    /// `table` is that of the sandbox, where nothing untrusted has run yet. `is_other`: the stage is not the caller.
    ///
    /// # Errors
    /// When it cannot be read, and `NotFound` when one is gone already.
    pub(crate) fn new(table: File, planned: &[Mount], is_other: bool) -> io::Result<Self> {
        let places = planned.iter().filter_map(place).map(Path::to_path_buf).collect();
        let system = lists::SYSTEM_CREDENTIALS.iter().map(PathBuf::from);
        let doubly_held = system.filter(|path| is_other && is_as_on_the_host(path, planned)).collect();
        let covers = Self { table, places, doubly_held };
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
        let lost = self.places.difference(&there);
        Ok(lost.filter(|place| !self.doubly_held.contains(*place) || is_everybodys(place)).cloned().collect())
    }
}

/// Whether what is around a path is read-only, and shown by its own name: its owners are those of the host, and no link of a
/// stage's leads away from it.
fn is_as_on_the_host(path: &Path, planned: &[Mount]) -> bool {
    let around =
        planned.iter().filter(|mount| place(mount).is_some_and(|at| at != path && path.starts_with(at)));
    let nearest = around.max_by_key(|mount| place(mount).map_or(0, |at| at.components().count()));
    matches!(nearest, Some(Mount::ReadOnly { host, at }) if host == at)
}

/// Whether everybody may read what is at a path, or below it.
fn is_everybodys(path: &Path) -> bool {
    const OTHERS: u32 = 0o007;
    match fs::symlink_metadata(path) {
        Ok(meta) => meta.is_symlink() || meta.mode() & OTHERS != 0,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Where something of the host's, or in its place, is mounted.
fn place(mount: &Mount) -> Option<&Path> {
    match mount {
        Mount::ReadOnly { at, .. }
        | Mount::Writable { at, .. }
        | Mount::Tmpfs { at, .. }
        | Mount::CoverFile { at, .. } => Some(at),
        _ => None,
    }
}

fn places(table: &File) -> io::Result<BTreeSet<PathBuf>> {
    let mut text = vec![0; 16 << 10];
    let mut read = 0;
    loop {
        let count = table.read_at(text.get_mut(read..).unwrap_or_default(), read as u64)?;
        if count == 0 {
            text.truncate(read);
            return Ok(mount_points(&text).map(|(at, _)| unescaped(at)).collect());
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

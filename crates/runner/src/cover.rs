//! Mounts that hold a promise, and that the host can take away.
//!
//! What is hidden or read-only in a shown tree is a mount over a name of the host's. When somebody on the host renames another
//! file over that name, or removes it, the kernel takes the mount away in every other mount namespace (`detach_mounts`,
//! fs/namespace.c): what has the name now is as open to the stage as the tree around it. Nothing can keep it from that, and
//! only the host can do it. A file that is renamed itself takes the mount along, and its old name is free. And what the host
//! mounts in a shown tree comes into the sandbox (mount_namespaces(7), "shared subtrees"): over covers, and writable where the
//! tree is not. So the table of mounts is watched, and a stage that has lost one, or has got one, is ended.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_sandbox::{Mount, Running};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use crate::lists;
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
    /// Of the places, those that may be lost: what is there programs of the host's write anew all day.
    rewritten: BTreeSet<OsString>,
    /// The numbers of those that were there before the stage.
    known: BTreeSet<Vec<u8>>,
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
    /// `table` is that of the sandbox, where nothing untrusted has run yet.
    ///
    /// # Errors
    /// When it cannot be read, and `NotFound` when one is gone already.
    pub(crate) fn new(table: File, planned: &[Mount]) -> io::Result<Self> {
        let places = planned.iter().filter_map(place).map(|place| place.as_os_str().to_owned()).collect();
        let is_rewritten = |mount: &&Mount| {
            let is_mask = matches!(mount, Mount::ReadOnly { host, .. } if host == Path::new("/dev/null"));
            is_mask && lists::REWRITTEN.iter().any(|name| place(mount).is_some_and(|at| at.ends_with(name)))
        };
        let rewritten = planned.iter().filter(is_rewritten).filter_map(place);
        let rewritten = rewritten.map(|place| place.as_os_str().to_owned()).collect();
        let mut covers = Self { table, places, planned: planned.to_vec(), rewritten, known: BTreeSet::new() };
        let text = covers.text()?;
        covers.known = rows(&text).map(|row| row.id.to_vec()).collect();
        let late = |words: String| Err(io::Error::new(io::ErrorKind::NotFound, words));
        if let Some(gone) = covers.gone(&text).next() {
            return late(format!(
                "`{}` was replaced, renamed or removed on the host meanwhile",
                gone.display()
            ));
        }
        if let Some(came) = covers.came_before(&text) {
            return late(format!("something was mounted on the host meanwhile, at `{}`", came.display()));
        }
        Ok(covers)
    }

    /// What the host has mounted while the sandbox was made, where that opens something: bubblewrap makes all that lies in a tree
    /// read-only with the tree, and what covers something comes after it.
    fn came_before(&self, text: &[u8]) -> Option<PathBuf> {
        // A tree that is shown twice has its covers twice: the last one counts.
        let places = rows(text).enumerate().map(|(number, row)| (row.at().into_os_string(), number));
        let last: BTreeMap<OsString, usize> = places.collect();
        let opens = |(number, row): &(usize, Row<'_>)| {
            !self.places.contains(row.at().as_os_str())
                && self.opens(row, |place| last.get(place).is_some_and(|place| place < number))
        };
        rows(text).enumerate().find(opens).map(|(_, row)| row.at())
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

    fn changes(&self) -> io::Result<Vec<Change>> {
        let text = self.text()?;
        let new = rows(&text).filter(|row| !self.known.contains(row.id) && self.opens(row, |_| true));
        Ok(self.gone(&text).map(Change::Gone).chain(new.map(|row| Change::Came(row.at()))).collect())
    }

    fn gone(&self, text: &[u8]) -> impl Iterator<Item = PathBuf> {
        let there: BTreeSet<OsString> = rows(text).map(|row| row.at().into_os_string()).collect();
        self.places.iter().filter(move |place| !there.contains(*place)).map(PathBuf::from)
    }

    /// Whether a mount that was not planned lets the stage do what the planned ones do not; `is_under` tells of a planned one
    /// whether this one came after it.
    fn opens(&self, new: &Row<'_>, is_under: impl Fn(&OsString) -> bool) -> bool {
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
        if self.places.iter().any(|it| covers(it) && is_under(it)) {
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
        is_read_only && !new.is_read_only() && is_in_reach()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A place and its options.
    type Line = (&'static str, &'static str);

    /// A table of these lines.
    fn table(rows: &[Line]) -> File {
        let path = std::env::temp_dir().join(format!("exeat-covers-{}", std::process::id()));
        let line = |(number, (at, options)): (usize, &Line)| {
            format!("{number} 1 0:1 / {at} {options},nosuid - tmpfs x rw\n")
        };
        let text: String = rows.iter().enumerate().map(line).collect();
        std::fs::write(&path, text).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    }

    /// B11: what the host mounts before the watch begins is judged as what it mounts later.
    #[test]
    fn b11_a_mount_that_came_while_the_sandbox_was_made() {
        let read_only = |at: &str| Mount::ReadOnly { host: at.into(), at: at.into() };
        let planned = [
            read_only("/usr"),
            Mount::Tmpfs { at: "/tmp".into(), size: 4096, mode: 0o1777 },
            Mount::Writable { host: "/usr/lib".into(), at: "/usr/lib".into() },
            Mount::ReadOnly { host: "/dev/null".into(), at: "/usr/lib/a/b".into() },
        ];
        let first: [Line; 5] =
            [("/", "rw"), ("/usr", "ro"), ("/usr/share", "ro"), ("/tmp", "rw"), ("/usr/lib", "rw")];
        let before = |more: &[Line]| [&first[..], more, &[("/usr/lib/a/b", "ro")]].concat();
        let after = |more: &[Line]| [&first[..], &[("/usr/lib/a/b", "ro")], more].concat();
        let refused = |rows: Vec<Line>| Covers::new(table(&rows), &planned).err().map(|it| it.to_string());
        for rows in [
            before(&[]),
            // A tree comes with what is mounted in it.
            before(&[("/usr/lib/a", "rw")]),
            [before(&[("/usr/lib/a", "rw")]), before(&[("/usr/lib/a", "rw")])].concat(),
            after(&[("/usr/share/x", "ro"), ("/tmp/x", "rw"), ("/usr/lib/x", "rw"), ("/elsewhere", "rw")]),
        ] {
            assert_eq!(refused(rows), None);
        }
        for (rows, at) in [
            (after(&[("/usr/share/x", "rw")]), "/usr/share/x"),
            (after(&[("/usr/lib/a", "rw")]), "/usr/lib/a"),
            (after(&[("/usr/lib/a", "ro")]), "/usr/lib/a"),
        ] {
            let why = refused(rows).unwrap();
            assert!(why.ends_with(&format!("meanwhile, at `{at}`")), "{why}");
        }
        let gone = refused(first.to_vec()).unwrap();
        assert!(gone.starts_with("`/usr/lib/a/b` was replaced"), "{gone}");
    }
}

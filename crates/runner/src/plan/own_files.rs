//! Checks that the stage cannot write what exeat itself writes or trusts: the record, and the keys.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use exeat_files::fault::{FileFault, PathUse};
use exeat_files::names::{future_path, true_name};
use exeat_files::walk::WalkError;
use exeat_record::place::RecordDir;

use crate::dirs;
use crate::error::Error;
use crate::error::faults::OwnPath;
use crate::request::AuditTo;
use crate::signing::Signing;

/// The trees and streams that the stage can write to.
pub(super) struct Reach<'a> {
    /// The writable trees.
    pub(super) writable: &'a [PathBuf],
    /// Its standard streams, as paths.
    pub(super) streams: &'a [&'a str],
}

/// Refuses a record that the stage could write or replace. Replaces the path of a record by its real one, which `real` returns.
pub(super) fn check_record(
    audit: &mut AuditTo,
    place: Option<&RecordDir>,
    reach: &Reach<'_>,
    real: impl FnOnce(&Path) -> Result<PathBuf, WalkError>,
) -> Result<(), Error> {
    let Reach { writable, streams } = *reach;
    match (audit, place) {
        (AuditTo::Default, None) => Ok(()),
        (AuditTo::Default, Some(place)) => {
            check_outside(OwnPath::State, &place.dir().join("record"), place.dir(), writable)
        }
        (AuditTo::File(record), _) => {
            let what = PathUse::Record;
            *record = real(record).map_err(|error| FileFault::from_walk(what, record, error))?;
            check_outside(OwnPath::Record, record, record, writable)?;
            // Nobody can have a file open that does not exist yet.
            match fs::metadata(&record) {
                Ok(meta) => check_not_stream(record, &meta, streams),
                Err(_) => Ok(()),
            }
        }
        (AuditTo::Fd(fd), _) => check_descriptor_outside(fd.as_fd(), writable, streams),
    }
}

/// Refuses a run whose stage could exchange the sockets of another run. `base` is the directory in which this one makes its own; runs with
/// another environment have another one.
pub(super) fn check_sockets(base: &Path, writable: &[PathBuf]) -> Result<(), Error> {
    check_outside(OwnPath::Sockets, &base.join("exeat"), base, writable)?;
    let of_session = format!("/run/user/{}", geteuid());
    for other in [Path::new("/dev/shm"), Path::new(&of_session), Path::new("/tmp")] {
        if let Some(tree) = writable.iter().find(|tree| other.starts_with(tree))
            && (other != Path::new("/tmp") || dirs::shared() == other)
        {
            return Err(inside(OwnPath::Sockets, other, tree));
        }
    }
    Ok(())
}

/// Refuses a run whose stage could write the key that signs its record, or a file beside the user's own key.
pub(super) fn check_keys(
    signing: &Signing,
    place: Option<&RecordDir>,
    reach: &Reach<'_>,
) -> Result<(), Error> {
    if let Some(key) = signing.path(place) {
        check_outside(OwnPath::Key, &key, &key, reach.writable)?;
    }
    // The stage must not write beside the user's own key, whatever signs this run: it could replace the key of the next run and the one
    // that verifies it.
    if let Some(place) = place
        && let Some(beside) = place.key_path().parent()
    {
        let beside = true_name(beside).unwrap_or_else(|_| future_path(beside));
        if let Some(tree) = reach.writable.iter().find(|tree| tree.starts_with(&beside)) {
            return Err(inside(OwnPath::Key, &place.key_path(), tree));
        }
    }
    Ok(())
}

/// Refuses a path of exeat's own that the stage could write or replace. `shown`: the path in the error.
fn check_outside(what: OwnPath, path: &Path, shown: &Path, writable: &[PathBuf]) -> Result<(), Error> {
    match tree_around(path, writable) {
        Some(tree) => Err(inside(what, shown, tree)),
        None => Ok(()),
    }
}

fn inside(what: OwnPath, path: &Path, tree: &Path) -> Error {
    Error::Inside { what, path: path.to_path_buf(), tree: tree.to_path_buf() }
}

/// Returns the writable tree in which the stage could write or replace a path.
pub(super) fn tree_around<'t>(path: &Path, writable: &'t [PathBuf]) -> Option<&'t Path> {
    // The real path counts, because `/proc/self/cwd` names a tree, too.
    let resolved = true_name(path).unwrap_or_else(|_| future_path(path));
    // Devices and descriptors of pipes are not replaceable files, but /dev/shm contains such files.
    let device =
        (resolved.starts_with("/dev") && !resolved.starts_with("/dev/shm")) || resolved.starts_with("/proc");
    let tree = writable.iter().find(|tree| resolved.starts_with(tree)).filter(|_| !device);
    tree.map(PathBuf::as_path)
}

/// Refuses an open record that the stage could write. Pipes, sockets and terminals have no path.
pub(super) fn check_descriptor_outside(
    record: BorrowedFd<'_>,
    writable: &[PathBuf],
    streams: &[&str],
) -> Result<(), Error> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", record.as_raw_fd()));
    let unreadable = |source| FileFault::Path { what: PathUse::Record, path: link.clone(), source };
    let meta = fs::metadata(&link).map_err(unreadable)?;
    if !meta.is_file() {
        return Ok(());
    }
    check_not_stream(&link, &meta, streams)?;
    let file = fs::read_link(&link).map_err(unreadable)?;
    check_outside(OwnPath::Record, &file, &file, writable)
}

/// Refuses a record that is also a stream of the stage, which would write to it.
pub(super) fn check_not_stream(record: &Path, meta: &fs::Metadata, streams: &[&str]) -> Result<(), Error> {
    let is_record = |stream: &&&str| {
        fs::metadata(stream).is_ok_and(|other| (other.dev(), other.ino()) == (meta.dev(), meta.ino()))
    };
    match streams.iter().find(is_record) {
        Some(stream) if meta.is_file() => Err(inside(OwnPath::Record, record, Path::new(stream))),
        _ => Ok(()),
    }
}

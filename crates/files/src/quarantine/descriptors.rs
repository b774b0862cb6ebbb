//! Entries of a tree that a stage writes to: opened, listed and renamed by descriptors, through no link, also where the stage closed a
//! directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::iter;
use std::mem;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::inotify::{AddWatchFlags, Inotify, WatchDescriptor};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::geteuid;
use rustix::fs::{Dir, FileType};

use super::modes::set_mode;
use crate::names::rename_new;

/// The device and the inode.
pub type FileId = (u64, u64);

/// The suffix of a name that cannot leave its directory.
const SUFFIX: &str = ".exeat-quarantine";
/// Names that are tried. They are drawn after the stage has ended, so that it could not take them.
const DRAWN: u32 = 8;
/// The longest name of a file, in bytes (NAME_MAX of limits.h).
const LONGEST: usize = 255;

/// A number that nobody can foresee.
pub(crate) fn random() -> u64 {
    // The keys of a hasher are drawn by the kernel, and those of two differ.
    RandomState::new().build_hasher().finish()
}

pub(super) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Returns the identity of a file.
pub(super) fn id_of(stat: &FileStat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

/// Returns the state of an entry of a directory, which may be a link.
pub(super) fn stat_in(dir: BorrowedFd<'_>, name: impl AsRef<Path>) -> nix::Result<FileStat> {
    retry_opened(dir, || fstatat(dir, name.as_ref(), AtFlags::AT_SYMLINK_NOFOLLOW))
}

/// The longest path that a call of the kernel takes, in bytes (linux/limits.h).
pub(super) const PATH_MAX: usize = 4096;

/// Names that openat2(2) takes at one go, however long each is.
const STEPS: usize = 15;

/// Opens a directory in the tree, which is "" itself: at one go, in pieces where its path is too long for that, or step by step where
/// a directory on the way was closed.
pub(super) fn open_beneath(tree: impl AsFd, path: &Path) -> nix::Result<OwnedFd> {
    let tree = tree.as_fd();
    match open_deep(tree, path) {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    // `.` asks for the right to search the tree.
    let mut dir = retry_opened(tree, || open_at(tree, Path::new("")))?;
    for part in path.components() {
        let step = retry_opened(dir.as_fd(), || open_at(dir.as_fd(), part.as_ref()))?;
        dir = step;
    }
    Ok(dir)
}

/// Opens a directory in the tree, however long its path is.
pub(super) fn open_deep(tree: BorrowedFd<'_>, path: &Path) -> nix::Result<OwnedFd> {
    match open_at(tree, path) {
        Err(Errno::ENAMETOOLONG) => {}
        other => return other,
    }
    let mut dir = open_at(tree, Path::new(""))?;
    let mut parts = path.components().peekable();
    while parts.peek().is_some() {
        let piece: PathBuf = parts.by_ref().take(STEPS).collect();
        dir = open_at(dir.as_fd(), &piece)?;
    }
    Ok(dir)
}

/// Opens the directory that a path of the tree is in, as [`open_beneath`] does.
pub(super) fn open_above(tree: impl AsFd, path: &Path) -> nix::Result<OwnedFd> {
    open_beneath(tree, path.parent().unwrap_or(Path::new("")))
}

/// An entry of a directory: its name, and its kind, where the file system says that here.
pub(super) type Entry = (OsString, Option<Type>);

/// Lists an open directory, by whatever name it has now. An error is the last that comes.
pub(super) fn entries(dir: BorrowedFd<'_>) -> nix::Result<impl Iterator<Item = nix::Result<Entry>> + use<>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let errno = |errno: rustix::io::Errno| Errno::from_raw(errno.raw_os_error());
    // Not the one of the C library, which asks three times what was just opened.
    let mut listed = Some(Dir::new(openat(dir, ".", flags, Mode::empty())?).map_err(errno)?);
    Ok(iter::from_fn(move || {
        loop {
            match listed.as_mut()?.next() {
                Some(Ok(entry)) if [c".", c".."].contains(&entry.file_name()) => {}
                Some(Ok(entry)) => {
                    let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
                    return Some(Ok((name, kind_of(entry.file_type()))));
                }
                last => {
                    listed = None;
                    return Some(Err(errno(last?.err()?)));
                }
            }
        }
    }))
}

/// The kind of an entry; `None` where the file system does not tell.
fn kind_of(kind: FileType) -> Option<Type> {
    match kind {
        FileType::RegularFile => Some(Type::File),
        FileType::Directory => Some(Type::Directory),
        FileType::Symlink => Some(Type::Symlink),
        FileType::Fifo => Some(Type::Fifo),
        FileType::Socket => Some(Type::Socket),
        FileType::CharacterDevice => Some(Type::CharacterDevice),
        FileType::BlockDevice => Some(Type::BlockDevice),
        FileType::Unknown => None,
    }
}

/// Opens a regular file, which may be a named pipe by now.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = File::from(retry_opened(dir, || openat(dir, name, flags, Mode::empty()))?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Opens a directory below another one, which is "" itself, through no link.
pub(super) fn open_at(dir: BorrowedFd<'_>, path: &Path) -> nix::Result<OwnedFd> {
    // The kernel takes an empty path for a missing file.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(
        dir,
        path,
        open_how_for_directory(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS),
    )
}

/// Returns the options of openat2(2) to open a directory by its path only.
pub(super) fn open_how_for_directory(resolve: ResolveFlag) -> OpenHow {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    OpenHow::new().flags(flags).resolve(resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS)
}

/// Calls `act`. If the directory is closed to its owner, opens it, calls `act` again, and closes it.
pub(super) fn retry_opened<T>(
    dir: BorrowedFd<'_>,
    mut act: impl FnMut() -> nix::Result<T>,
) -> nix::Result<T> {
    match act() {
        Err(Errno::EACCES) => {
            let _opened = OpenedDir::new(dir)?;
            act()
        }
        other => other,
    }
}

/// Lets the owner of a directory list, search and write it. Returns its earlier and its new mode. The caller may open its own directories,
/// and root any.
pub(super) fn open_to_owner(dir: BorrowedFd<'_>) -> nix::Result<(Mode, Mode)> {
    let stat = fstat(dir)?;
    let caller = geteuid();
    if kind(&stat) != SFlag::S_IFDIR || !(caller.is_root() || stat.st_uid == caller.as_raw()) {
        return Err(Errno::EACCES);
    }
    let was = mode_of(&stat);
    let now = was | Mode::S_IRWXU;
    if now != was {
        set_mode(dir, now)?;
    }
    Ok((was, now))
}

/// Gives a directory its earlier mode again. A stage may have set another one meanwhile, which stays; and a directory may stay open to its
/// owner.
pub(super) fn close_again(dir: BorrowedFd<'_>, was: Mode, now: Mode) {
    if now != was && fstat(dir).is_ok_and(|stat| mode_of(&stat) == now) {
        let _ = set_mode(dir, was);
    }
}

/// Returns the permissions of a file.
fn mode_of(stat: &FileStat) -> Mode {
    Mode::from_bits_truncate(stat.st_mode)
}

/// A directory that its owner may list, search and write as long as this lives.
pub(super) struct OpenedDir<'a> {
    dir: BorrowedFd<'a>,
    was: Mode,
    now: Mode,
}

impl<'a> OpenedDir<'a> {
    /// Opens a directory for its owner, as [`open_to_owner`] does.
    pub(super) fn new(dir: BorrowedFd<'a>) -> nix::Result<Self> {
        open_to_owner(dir).map(|(was, now)| Self { dir, was, now })
    }
}

impl Drop for OpenedDir<'_> {
    fn drop(&mut self) {
        close_again(self.dir, self.was, self.now);
    }
}

/// A directory that was opened to its owner, and is to be closed again.
#[derive(Debug)]
pub(super) struct Reopened {
    pub(super) path: PathBuf,
    pub(super) id: FileId,
    pub(super) was: Mode,
    pub(super) now: Mode,
}

/// The directories of one tree that are to be closed again, with the bytes that they take.
#[derive(Debug, Default)]
pub(super) struct ReopenedDirs(Mutex<(Vec<Reopened>, usize)>);

impl ReopenedDirs {
    /// The most bytes of one tree. Directories beyond it stay open to their owner.
    const BYTES: usize = 1 << 24;

    pub(super) fn add(&self, dir: Reopened) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (dirs, bytes) = &mut *all;
        *bytes += size_of::<Reopened>() + dir.path.as_os_str().len();
        if *bytes <= Self::BYTES {
            dirs.push(dir);
        }
    }

    /// Takes all of them, in the order in which they were opened.
    pub(super) fn take(&self) -> Vec<Reopened> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).0
    }
}

/// Renames an entry in its directory, over nothing, and returns the new name.
pub(super) fn rename_aside(dir: BorrowedFd<'_>, name: &OsStr) -> nix::Result<String> {
    let words = name.to_string_lossy();
    for _ in 0..DRAWN {
        let new = drawn(&words);
        match rename_new(dir, name, dir, new.as_str()) {
            Err(Errno::EEXIST) => {}
            other => return other.map(|()| new),
        }
    }
    Err(Errno::EEXIST)
}

/// With a suffix that nobody can have known.
pub(super) fn drawn(name: &str) -> String {
    suffixed(name, &format!("{SUFFIX}.{:016x}", random()))
}

/// The name, shortened as far as the suffix needs it.
pub(super) fn suffixed(name: &str, suffix: &str) -> String {
    let room = LONGEST.saturating_sub(suffix.len());
    let kept = (0..=room.min(name.len())).rev().find_map(|end| name.get(..end)).unwrap_or_default();
    format!("{kept}{suffix}")
}

/// Keeps what a directory is watched for already (inotify(7)), which the crate does not name.
pub const IN_MASK_ADD: AddWatchFlags = AddWatchFlags::from_bits_retain(0x2000_0000);

/// Watches a directory for new entries.
pub(super) fn add_watch(inotify: &Inotify, dir: impl AsFd) -> nix::Result<WatchDescriptor> {
    add_watch_for(inotify, dir, AddWatchFlags::empty())
}

/// Watches a directory for new entries and these events.
pub(super) fn add_watch_for(
    inotify: &Inotify,
    dir: impl AsFd,
    more: AddWatchFlags,
) -> nix::Result<WatchDescriptor> {
    let mask = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_ONLYDIR
        | IN_MASK_ADD
        | more;
    inotify.add_watch(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()).as_str(), mask)
}

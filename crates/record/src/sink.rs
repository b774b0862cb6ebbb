//! The destination of lines: a file, or a descriptor that the caller opened.
//!
//! Does not know what a line says. Never waits for a reader longer than [`DEADLINE`], never truncates, and never continues
//! after a part of a line: the log stops at the first error. Opens a file only once: a file that was renamed
//! or replaced ends the record.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{self, Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, Flock, FlockArg, OFlag, fallocate, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::{Whence, geteuid, lseek};

/// The longest time that a reader may leave a pipe full, or a named pipe unopened.
const DEADLINE: Duration = Duration::from_secs(5);

/// The pause between two attempts at something that the kernel cannot wait for.
const PAUSE: Duration = Duration::from_millis(5);

/// The number of attempts to lock a file, a [`PAUSE`] apart: [`is_being_written`] holds the lock for a few microseconds.
const LOCK_TRIES: u32 = 10;

/// The bytes by which the reserved space of a record grows at once, so that the file system is rarely asked.
const STEP: u64 = 1 << 20;

/// The bytes of the first step, which is smaller because most runs are short.
const FIRST_STEP: u64 = 64 * 1024;

/// The destination of the lines of one run.
#[derive(Debug)]
pub struct Sink {
    file: File,
    kind: Kind,
    deadline: Duration,
    /// Whether each line is on the disk when its write returns.
    sync: bool,
    /// The lock that tells readers that more lines may come. It ends with the last process that has it; programs that are executed do not
    /// inherit it.
    _lock: Option<Flock<File>>,
}

#[derive(Debug)]
enum Kind {
    /// A regular file.
    Regular(Regular),
    /// A pipe, terminal or device: polled, and written to until the line is complete.
    Stream,
    /// A socket: polled as well, with a flag instead of a mode, so that other holders of the descriptor see no change.
    Socket,
}

/// A regular file.
#[derive(Debug)]
struct Regular {
    /// Whether it had a name when the sink was made.
    linked: bool,
    /// The state of a file that the sink opened by its name.
    own: Option<OwnFile>,
    /// The limit on the size of files, in bytes, when the sink was made (`ulimit -f`).
    limit: Option<u64>,
    /// Whether each write goes to the end of the file.
    appends: bool,
}

/// A file that the sink opened by its name, and that nothing else writes to.
#[derive(Debug)]
struct OwnFile {
    /// Its absolute path.
    path: PathBuf,
    /// Its device and inode.
    id: (u64, u64),
    /// Its size.
    size: u64,
    /// The space that the disk reserves for it.
    space: Space,
}

/// The space on the disk that is reserved for a file, whatever else fills the disk.
#[derive(Debug)]
enum Space {
    /// Up to this byte.
    Until(u64),
    /// No space is reserved, for this reason.
    Unknown(io::Error),
}

impl Sink {
    /// Makes a new file at `path`, mode 0600, for appending only.
    ///
    /// Takes an empty regular file of the same user as it is. Refuses a file with content, because a record is one
    /// file with one chain. Devices and named pipes work as they do elsewhere, including `/dev/stdout` and `/dev/null`.
    /// Refuses a symbolic link as the last part of the path, except below `/dev` and `/proc`.
    pub fn create_file(path: &Path) -> Result<Sink, OpenError> {
        Sink::create(path, path)
    }

    /// Does what [`Sink::create_file`] does, in a directory that is already open. `path` is the file's real path.
    pub fn create_in(directory: BorrowedFd<'_>, path: &Path) -> Result<Sink, OpenError> {
        let at = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        Sink::create(&at.join(path.file_name().unwrap_or_default()), path)
    }

    /// Makes a file by the path `at`. Errors name it as `path`.
    fn create(at: &Path, path: &Path) -> Result<Sink, OpenError> {
        match standard_stream(path) {
            Some(fd) => return Sink::from_fd(fd.map_err(|source| OpenError::io(path, source))?),
            None => match open(at, |options| options.create_new(true).mode(0o600)) {
                Ok(file) => return Sink::from_own_file(file, path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(OpenError::io(path, source)),
            },
        }
        let of_the_kernel = is_of_the_kernel(path);
        let flags = if of_the_kernel { OFlag::empty() } else { OFlag::O_NOFOLLOW };
        let file = open_existing(at, path, flags)?;
        let meta = file.metadata().map_err(|source| OpenError::io(path, source))?;
        if of_the_kernel {
            return Sink::from_fd(file.into());
        }
        let owned = meta.uid() == geteuid().as_raw() || meta.uid() == 0;
        if !owned && (meta.file_type().is_file() || meta.file_type().is_fifo()) {
            return Err(OpenError::NotOurs { path: path.to_owned() });
        }
        if !meta.file_type().is_file() {
            return Sink::from_fd(file.into());
        }
        if meta.len() > 0 {
            return Err(OpenError::Exists { path: path.to_owned() });
        }
        Sink::from_own_file(file, path)
    }

    /// Takes a descriptor that the caller opened: a file, pipe, socket or terminal.
    ///
    /// Polls everything but a regular file before each write. If `/proc` allows it, opens pipes and terminals again,
    /// so that only the sink's own descriptor is non-blocking.
    pub fn from_fd(fd: OwnedFd) -> Result<Sink, OpenError> {
        let bad = |source: io::Error| OpenError::Descriptor { fd: fd.as_raw_fd(), source };
        let flags = fcntl(fd.as_fd(), FcntlArg::F_GETFL).map_err(|errno| bad(errno.into()))?;
        if flags & OFlag::O_ACCMODE.bits() == OFlag::O_RDONLY.bits() || flags & OFlag::O_PATH.bits() != 0 {
            return Err(bad(Errno::EBADF.into()));
        }
        let file = File::from(fd.try_clone().map_err(bad)?);
        let kind = file.metadata().map_err(bad)?.file_type();
        if kind.is_file() {
            let linked = file.metadata().map_err(bad)?.nlink() > 0;
            // A lock on the caller's open file would last as long as the caller holds it, so the sink opens the file itself. If that
            // fails, the file is not locked.
            let own = OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
            let lock = own.ok().and_then(|own| Flock::lock(own, FlockArg::LockExclusiveNonblock).ok());
            let regular = Regular::new(&file, linked, None).map_err(bad)?;
            return Ok(Sink::new(file, Kind::Regular(regular), lock));
        }
        if kind.is_socket() {
            return Ok(Sink::new(file, Kind::Socket, None));
        }
        let own = OpenOptions::new()
            .write(true)
            .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
            .open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        // If it cannot be opened again, it is used as it is. A write can still wait in one case: another process fills a blocking
        // pipe between the poll and the write.
        Ok(Sink::new(own.unwrap_or(file), Kind::Stream, None))
    }

    /// Syncs each line to the disk before it counts as written (fdatasync(2)), and the name of the file now.
    ///
    /// # Errors
    /// [`OpenError::NoSync`] for a pipe, a socket or a terminal, which are not on a disk.
    pub fn synced(mut self) -> Result<Sink, OpenError> {
        self.file.sync_data().map_err(|source| OpenError::NoSync { source })?;
        if let Kind::Regular(Regular { own: Some(OwnFile { path, .. }), .. }) = &self.kind
            && let Some(directory) = path.parent()
        {
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(|source| OpenError::io(directory, source))?;
        }
        self.sync = true;
        Ok(self)
    }

    fn new(file: File, kind: Kind, lock: Option<Flock<File>>) -> Sink {
        Sink { file, kind, deadline: DEADLINE, sync: false, _lock: lock }
    }

    /// Takes a file that the sink opened at `path`, and its lock.
    fn from_own_file(file: File, path: &Path) -> Result<Sink, OpenError> {
        let at = |source| OpenError::io(path, source);
        let meta = file.metadata().map_err(at)?;
        let lock = lock(file.try_clone().map_err(at)?, path)?;
        let path = path::absolute(path).map_err(at)?;
        let own = OwnFile { path, id: file_id(&meta), size: meta.len(), space: Space::Until(0) };
        let regular = Regular::new(&file, meta.nlink() > 0, Some(own)).map_err(at)?;
        Ok(Sink::new(file, Kind::Regular(regular), lock))
    }

    /// Reserves space for a line and for `ahead` more bytes.
    ///
    /// # Errors
    /// If the disk is full, or the file may not become that large. Space that was reserved before stays reserved.
    pub(crate) fn reserve(&mut self, line: usize, ahead: u64) -> Result<(), WriteError> {
        let Kind::Regular(Regular { own: Some(own), limit, .. }) = &mut self.kind else { return Ok(()) };
        let end = own.size + line as u64;
        if let Some(limit) = limit.filter(|limit| end + ahead.min(*limit / 4) > *limit) {
            return Err(WriteError::Limit { bytes: limit });
        }
        let Space::Until(space) = own.space else { return Ok(()) };
        let least = end + ahead;
        if least <= space {
            return Ok(());
        }
        let step = if space == 0 { FIRST_STEP } else { STEP };
        let tried = allocate(&self.file, least + step).map(|()| least + step);
        match tried.or_else(|_| allocate(&self.file, least).map(|()| least)) {
            Ok(space) => own.space = Space::Until(space),
            // A disk that is almost full at the start reserves nothing, and takes lines for as long as it can.
            Err(errno) if space == 0 || matches!(errno, Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                own.space = Space::Unknown(errno.into());
            }
            Err(errno) => return Err(WriteError::Io(errno.into())),
        }
        Ok(())
    }

    /// Returns the bytes for which there is space; `None` if that is not known.
    pub(crate) fn space_left(&self) -> Option<u64> {
        let Kind::Regular(Regular { own: Some(own), limit, .. }) = &self.kind else { return None };
        let space = match own.space {
            Space::Until(space) => Some(space),
            Space::Unknown(_) => None,
        };
        let until = [space, *limit].into_iter().flatten().min()?;
        Some(until.saturating_sub(own.size))
    }

    /// Returns why no space is reserved after the end of the file; `None` if it is, and for a destination that is not a file.
    pub(crate) fn reserve_fault(&self) -> Option<String> {
        match &self.kind {
            Kind::Regular(Regular { own: Some(OwnFile { space: Space::Unknown(why), .. }), .. }) => {
                Some(why.to_string())
            }
            Kind::Regular(Regular { own: None, .. }) => Some("it was given as a descriptor".to_owned()),
            _ => None,
        }
    }

    /// Releases the reserved space that is not used.
    pub(crate) fn release_space(&mut self) {
        if let Kind::Regular(Regular { own: Some(own), .. }) = &mut self.kind
            && matches!(own.space, Space::Until(space) if space > own.size)
            && self.file.metadata().is_ok_and(|meta| meta.len() == own.size)
        {
            // If this fails, some space on the disk stays unused.
            let _ = self.file.set_len(own.size);
            own.space = Space::Until(own.size);
        }
    }

    /// Writes one complete line.
    pub(crate) fn write_line(&mut self, line: &[u8]) -> Result<(), WriteError> {
        let Kind::Regular(regular) = &mut self.kind else {
            return self.write_stream(line);
        };
        regular.check(&self.file, line.len())?;
        // One write, except if the disk gets full in the middle of a line: the second write returns the kernel's error.
        (&self.file).write_all(line)?;
        if let Some(own) = &mut regular.own {
            own.size += line.len() as u64;
        }
        if self.sync {
            self.file.sync_data().map_err(WriteError::Sync)?;
        }
        Ok(())
    }

    /// Writes one line to a pipe with one write (a line has at most PIPE_BUF bytes), or to a terminal or socket with several.
    fn write_stream(&self, line: &[u8]) -> Result<(), WriteError> {
        let by = Instant::now() + self.deadline;
        let mut rest = line;
        loop {
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WriteError::Stuck { after: self.deadline });
            }
            let mut polled = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
            // Rounded up, so that the last wait does not become a busy loop.
            let wait = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut polled, wait) {
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {} // ready, or broken: the write says which
                Err(errno) => return Err(WriteError::Io(errno.into())),
            }
            match self.write_now(rest) {
                Ok(wrote) if wrote >= rest.len() => return Ok(()),
                Ok(wrote) => rest = rest.get(wrote..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(PAUSE),
                Err(error) => return Err(WriteError::Io(error)),
            }
        }
    }

    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.kind {
            Kind::Socket => {
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                Ok(send(self.file.as_raw_fd(), bytes, flags)?)
            }
            Kind::Stream | Kind::Regular(_) => (&self.file).write(bytes),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_deadline(mut self, deadline: Duration) -> Sink {
        self.deadline = deadline;
        self
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.release_space();
    }
}

/// Reserves space on the disk for a file up to a byte. The file's size does not change.
fn allocate(file: &File, until: u64) -> Result<(), Errno> {
    let until = libc::off_t::try_from(until).map_err(|_| Errno::EFBIG)?;
    loop {
        match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, until) {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

impl Regular {
    fn new(file: &File, linked: bool, own: Option<OwnFile>) -> io::Result<Regular> {
        let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
        let limit = (limit != RLIM_INFINITY).then_some(limit);
        let appends = fcntl(file, FcntlArg::F_GETFL)? & OFlag::O_APPEND.bits() != 0;
        Ok(Regular { linked, own, limit, appends })
    }

    /// Checks that the next line goes to the file at the record's path, after the last line.
    fn check(&self, file: &File, line: usize) -> Result<(), WriteError> {
        let size = match &self.own {
            Some(own) => own.check(file)?,
            None => {
                let meta = file.metadata()?;
                if self.linked && meta.nlink() == 0 {
                    return Err(WriteError::Removed);
                }
                meta.len()
            }
        };
        // Checked first, because the kernel answers with a signal, which ends a program that does not expect it (setrlimit(2)).
        let Some(limit) = self.limit else { return Ok(()) };
        let at = match self.appends {
            true => size,
            false => u64::try_from(lseek(file, 0, Whence::SeekCur).map_err(io::Error::from)?).unwrap_or(size),
        };
        if at.saturating_add(line as u64) > limit {
            return Err(WriteError::Limit { bytes: limit });
        }
        Ok(())
    }
}

impl OwnFile {
    /// Checks with one system call that the path still names this file, that it has the expected size, and returns that size.
    fn check(&self, file: &File) -> Result<u64, WriteError> {
        match fs::symlink_metadata(&self.path) {
            Ok(there) if file_id(&there) != self.id => Err(WriteError::Replaced),
            Ok(there) if there.len() != self.size => Err(WriteError::Changed),
            Ok(there) => Ok(there.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(if file.metadata()?.nlink() == 0 { WriteError::Removed } else { WriteError::Renamed })
            }
            Err(source) => Err(WriteError::Unseen(source)),
        }
    }
}

/// Returns whether a process has the record open for writing, so that more lines may come. `false` if it is not a regular file,
/// and for a file on a file system without locks (flock(2)).
///
/// A run holds the lock until exeat and its forks have ended; after a `kill -9` that takes a few milliseconds.
///
/// # Errors
/// If the file cannot be opened for reading.
pub fn is_being_written(record: &Path) -> io::Result<bool> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(record)?;
    if !file.metadata()?.file_type().is_file() {
        return Ok(false);
    }
    Ok(matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK))))
}

/// Takes the lock of a record's writer. Returns `None` if the file system has no locks.
fn lock(mut file: File, path: &Path) -> Result<Option<Flock<File>>, OpenError> {
    for _ in 0..LOCK_TRIES {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((unlocked, Errno::EWOULDBLOCK)) => file = unlocked,
            Err(_) => return Ok(None),
        }
        thread::sleep(PAUSE);
    }
    Err(OpenError::InUse { path: path.to_owned() })
}

fn file_id(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// The reason why a record could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub enum OpenError {
    /// The file already holds something.
    #[error("`{}` exists: name a new file or remove it", .path.display())]
    Exists { path: PathBuf },
    /// The file belongs to somebody else, who could change the record.
    #[error("`{}` belongs to another user: name a new file", .path.display())]
    NotOurs { path: PathBuf },
    /// Another run writes to the file.
    #[error("`{}` is the record of another run that is not over: name a new file", .path.display())]
    InUse { path: PathBuf },
    /// Each line should be synced to the disk, and the destination is not on a disk.
    #[error("each line is to be synced to the disk, and this is a pipe, a socket or a terminal")]
    NoSync { source: io::Error },
    /// The path is a symbolic link, which may lead anywhere.
    #[error("`{}` is a symbolic link: name the file that it leads to", .path.display())]
    Link { path: PathBuf },
    /// A named pipe that nobody reads.
    #[error("nobody reads the pipe `{}`", .path.display())]
    NoReader { path: PathBuf },
    /// The file could not be opened.
    #[error("`{}`", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The descriptor cannot be written to.
    #[error("cannot write the record to descriptor {fd}")]
    Descriptor { fd: i32, source: io::Error },
}

impl OpenError {
    fn io(path: &Path, source: io::Error) -> OpenError {
        OpenError::Io { path: path.to_owned(), source }
    }
}

/// The reason why a line was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("its reader took nothing for {} ms", .after.as_millis())]
    Stuck { after: Duration },
    #[error("the file was removed")]
    Removed,
    #[error("the file was renamed")]
    Renamed,
    #[error("the file was renamed or removed, and another one is in its place")]
    Replaced,
    #[error("the file cannot be looked for where it was: {0}")]
    Unseen(io::Error),
    #[error("the line is not known to be on the disk: {0}")]
    Sync(io::Error),
    #[error("the file may not be larger than {bytes} bytes (`ulimit -f`)")]
    Limit { bytes: u64 },
    #[error("something else wrote to the file or truncated it")]
    Changed,
}

/// Returns standard output or standard error, if `path` is one of its names.
///
/// A file that is opened again by such a name has its own offset, so the stage's output would overwrite the record.
fn standard_stream(path: &Path) -> Option<io::Result<OwnedFd>> {
    match path.to_str()? {
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => Some(io::stdout().as_fd().try_clone_to_owned()),
        "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => Some(io::stderr().as_fd().try_clone_to_owned()),
        _ => None,
    }
}

/// Returns whether the path leads through `/dev` or `/proc`, where only root or the kernel makes links.
///
/// Everybody may write to `/dev/shm` and `/dev/mqueue`, so they count as ordinary directories.
fn is_of_the_kernel(path: &Path) -> bool {
    let plain = path.components().all(|part| !matches!(part, Component::ParentDir));
    let open_to_all = path.starts_with("/dev/shm") || path.starts_with("/dev/mqueue");
    plain && !open_to_all && (path.starts_with("/dev") || path.starts_with("/proc"))
}

fn open_existing(at: &Path, path: &Path, flags: OFlag) -> Result<File, OpenError> {
    let by = Instant::now() + DEADLINE;
    loop {
        let flags = flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        match open(at, |options| options.custom_flags(flags.bits())) {
            Ok(file) => return Ok(file),
            Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
                return Err(OpenError::Link { path: path.to_owned() });
            }
            // open(2): ENXIO, a named pipe that no process has open for reading.
            Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
                if Instant::now() >= by {
                    return Err(OpenError::NoReader { path: path.to_owned() });
                }
                thread::sleep(PAUSE);
            }
            Err(source) => return Err(OpenError::io(path, source)),
        }
    }
}

/// Opens a file for appending; `std` adds O_CLOEXEC.
fn open(path: &Path, more: impl Fn(&mut OpenOptions) -> &mut OpenOptions) -> io::Result<File> {
    more(OpenOptions::new().append(true)).open(path)
}

#[cfg(test)]
mod tests;

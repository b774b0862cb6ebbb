//! Where lines go: a file, or a descriptor that somebody opened for us.
//!
//! Knows nothing of what a line says. Never waits for a reader longer than [`DEADLINE`], never truncates, and never goes on
//! after part of a line: the log above stops at the first error. It does not open a file a second time: one that was renamed
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

/// How long a reader may leave a pipe full, or a named pipe unopened, before the log is given up.
const DEADLINE: Duration = Duration::from_secs(5);

/// Pause between two tries of something that the kernel cannot wait for.
const PAUSE: Duration = Duration::from_millis(5);

/// How often a file that is locked is tried again, a [`PAUSE`] apart: [`is_being_written`] holds it for some microseconds.
const LOCK_TRIES: u32 = 10;

/// Bytes by which the space of a record grows at once, so that the file system is rarely asked.
const STEP: u64 = 1 << 20;

/// The same for the first time: most runs are short.
const FIRST_STEP: u64 = 64 * 1024;

/// Where the lines of one run go.
#[derive(Debug)]
pub struct Sink {
    file: File,
    kind: Kind,
    deadline: Duration,
    /// Each line is on the disk when it is written.
    sync: bool,
    /// Tells readers that more lines may come. It goes with the last process that has it; no program that is executed does.
    _lock: Option<Flock<File>>,
}

#[derive(Debug)]
enum Kind {
    /// A regular file.
    Regular(Regular),
    /// A pipe, terminal or device: polled, and written to until the line is whole.
    Stream,
    /// A socket: the same, with a flag instead of a mode so that other holders of the descriptor see no change.
    Socket,
}

/// A regular file.
#[derive(Debug)]
struct Regular {
    /// It had a name when we got it.
    linked: bool,
    /// Where only we write to it.
    ours: Option<Ours>,
    /// The limit on the size of files, in bytes, as it was when we got it (`ulimit -f`).
    limit: Option<u64>,
    /// Each write goes to its end.
    appends: bool,
}

/// A file that we opened by its name.
#[derive(Debug)]
struct Ours {
    /// Its place, absolute.
    path: PathBuf,
    /// Its device and inode.
    id: (u64, u64),
    /// Its size.
    size: u64,
    /// Up to where the disk has space for it.
    space: Space,
}

/// The space on the disk that a file has, whatever else fills the disk.
#[derive(Debug)]
enum Space {
    /// Up to this byte.
    Until(u64),
    /// None is kept, for this reason.
    Unknown(io::Error),
}

impl Sink {
    /// A new file at `path`, mode 0600, for appending only.
    ///
    /// An empty regular file of ours is taken as it is; one that holds something is refused, because a record is one
    /// file with one chain. Devices and named pipes work as they do elsewhere, `/dev/stdout` and `/dev/null` among
    /// them. A symbolic link as the last part of the path is refused, except below `/dev` and `/proc`.
    pub fn create_file(path: &Path) -> Result<Sink, OpenError> {
        Sink::create(path, path)
    }

    /// The same in a directory that is open already. `path` is the file's real path.
    pub fn create_in(directory: BorrowedFd<'_>, path: &Path) -> Result<Sink, OpenError> {
        let at = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        Sink::create(&at.join(path.file_name().unwrap_or_default()), path)
    }

    /// Opens a file by the path `at`, which is known as `path`.
    fn create(at: &Path, path: &Path) -> Result<Sink, OpenError> {
        match standard_stream(path) {
            Some(fd) => return Sink::from_fd(fd.map_err(|source| OpenError::io(path, source))?),
            None => match open(at, |options| options.create_new(true).mode(0o600)) {
                Ok(file) => return Sink::ours(file, path),
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
        Sink::ours(file, path)
    }

    /// A descriptor that somebody opened for us: a file, pipe, socket or terminal.
    ///
    /// Whatever is not a regular file is polled before each write. Where `/proc` allows it, pipes and terminals are
    /// opened anew, so that ours is non-blocking and the other holders' is not.
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
            // A lock on what was opened elsewhere would be held by whoever opened it, after us too: ours is on an open file
            // of our own. Where there can be none, nobody is told.
            let own = OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
            let lock = own.ok().and_then(|own| Flock::lock(own, FlockArg::LockExclusiveNonblock).ok());
            let regular = Regular::new(&file, linked, None).map_err(bad)?;
            return Ok(Sink::of(file, Kind::Regular(regular), lock));
        }
        if kind.is_socket() {
            return Ok(Sink::of(file, Kind::Socket, None));
        }
        let own = OpenOptions::new()
            .write(true)
            .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
            .open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        // What may not be opened anew is used as it is: a blocking pipe that somebody else fills between our poll
        // and our write is the one case in which a write can still wait.
        Ok(Sink::of(own.unwrap_or(file), Kind::Stream, None))
    }

    /// Has each line on the disk before it counts as written (fdatasync(2)), and the name of the file there from here on.
    ///
    /// # Errors
    /// [`OpenError::NoSync`] for what is no file on a disk: a pipe, a socket, a terminal.
    pub fn synced(mut self) -> Result<Sink, OpenError> {
        self.file.sync_data().map_err(|source| OpenError::NoSync { source })?;
        if let Kind::Regular(Regular { ours: Some(Ours { path, .. }), .. }) = &self.kind
            && let Some(directory) = path.parent()
        {
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(|source| OpenError::io(directory, source))?;
        }
        self.sync = true;
        Ok(self)
    }

    fn of(file: File, kind: Kind, lock: Option<Flock<File>>) -> Sink {
        Sink { file, kind, deadline: DEADLINE, sync: false, _lock: lock }
    }

    /// A file that stands at `path`.
    fn ours(file: File, path: &Path) -> Result<Sink, OpenError> {
        let at = |source| OpenError::io(path, source);
        let meta = file.metadata().map_err(at)?;
        let lock = lock(file.try_clone().map_err(at)?, path)?;
        let path = path::absolute(path).map_err(at)?;
        let ours = Ours { path, id: id(&meta), size: meta.len(), space: Space::Until(0) };
        let regular = Regular::new(&file, meta.nlink() > 0, Some(ours)).map_err(at)?;
        Ok(Sink::of(file, Kind::Regular(regular), lock))
    }

    /// Sees to it that there is space for a line and for `ahead` more bytes.
    ///
    /// # Errors
    /// The disk is full, or the file may not be that large. What was kept before is kept.
    pub(crate) fn keep_ahead(&mut self, line: usize, ahead: u64) -> Result<(), WriteError> {
        let Kind::Regular(Regular { ours: Some(ours), limit, .. }) = &mut self.kind else { return Ok(()) };
        let end = ours.size + line as u64;
        if let Some(limit) = limit.filter(|limit| end + ahead.min(*limit / 4) > *limit) {
            return Err(WriteError::Limit { bytes: limit });
        }
        let Space::Until(space) = ours.space else { return Ok(()) };
        let least = end + ahead;
        if least <= space {
            return Ok(());
        }
        let step = if space == 0 { FIRST_STEP } else { STEP };
        let tried = allocate(&self.file, least + step).map(|()| least + step);
        match tried.or_else(|_| allocate(&self.file, least).map(|()| least)) {
            Ok(space) => ours.space = Space::Until(space),
            // A disk that is as good as full at the start keeps nothing, and takes lines for as long as it can.
            Err(errno) if space == 0 || matches!(errno, Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                ours.space = Space::Unknown(errno.into());
            }
            Err(errno) => return Err(WriteError::Io(errno.into())),
        }
        Ok(())
    }

    /// Bytes for which there is space; `None` where that is not known.
    pub(crate) fn left(&self) -> Option<u64> {
        let Kind::Regular(Regular { ours: Some(ours), limit, .. }) = &self.kind else { return None };
        let space = match ours.space {
            Space::Until(space) => Some(space),
            Space::Unknown(_) => None,
        };
        let until = [space, *limit].into_iter().flatten().min()?;
        Some(until.saturating_sub(ours.size))
    }

    /// Why no space is kept ahead of the end of a file; `None` where it is, and for what is not a file.
    pub(crate) fn no_space_kept(&self) -> Option<String> {
        match &self.kind {
            Kind::Regular(Regular { ours: Some(Ours { space: Space::Unknown(why), .. }), .. }) => {
                Some(why.to_string())
            }
            Kind::Regular(Regular { ours: None, .. }) => Some("it was given as a descriptor".to_owned()),
            _ => None,
        }
    }

    /// Gives space back that was kept and is not used.
    pub(crate) fn give_back(&mut self) {
        if let Kind::Regular(Regular { ours: Some(ours), .. }) = &mut self.kind
            && matches!(ours.space, Space::Until(space) if space > ours.size)
            && self.file.metadata().is_ok_and(|meta| meta.len() == ours.size)
        {
            // Where it fails, some room is used for nothing.
            let _ = self.file.set_len(ours.size);
            ours.space = Space::Until(ours.size);
        }
    }

    /// Writes one whole line, or fails.
    pub(crate) fn write_line(&mut self, line: &[u8]) -> Result<(), WriteError> {
        let Kind::Regular(regular) = &mut self.kind else {
            return self.write_stream(line);
        };
        regular.check(&self.file, line.len())?;
        // One write, but where the disk is full in the middle of a line: the rest is tried for the sake of what the kernel says.
        (&self.file).write_all(line)?;
        if let Some(ours) = &mut regular.ours {
            ours.size += line.len() as u64;
        }
        if self.sync {
            self.file.sync_data().map_err(WriteError::Sync)?;
        }
        Ok(())
    }

    /// One write on a pipe (a line is at most PIPE_BUF); on a terminal or socket, as many as it takes.
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
        self.give_back();
    }
}

/// Has the disk keep space for a file up to a byte. Its size is as before.
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
    fn new(file: &File, linked: bool, ours: Option<Ours>) -> io::Result<Regular> {
        let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
        let limit = (limit != RLIM_INFINITY).then_some(limit);
        let appends = fcntl(file, FcntlArg::F_GETFL)? & OFlag::O_APPEND.bits() != 0;
        Ok(Regular { linked, ours, limit, appends })
    }

    /// Whether what is written next stands where the record is looked for, behind what was written before.
    fn check(&self, file: &File, line: usize) -> Result<(), WriteError> {
        let size = match &self.ours {
            Some(ours) => ours.check(file)?,
            None => {
                let meta = file.metadata()?;
                if self.linked && meta.nlink() == 0 {
                    return Err(WriteError::Removed);
                }
                meta.len()
            }
        };
        // Asked before, because the kernel's answer is a signal, which ends a program that does not expect it (setrlimit(2)).
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

impl Ours {
    /// One call of the kernel's for all of it: the size too is that of what stands at the path.
    fn check(&self, file: &File) -> Result<u64, WriteError> {
        match fs::symlink_metadata(&self.path) {
            Ok(there) if id(&there) != self.id => Err(WriteError::Replaced),
            Ok(there) if there.len() != self.size => Err(WriteError::Changed),
            Ok(there) => Ok(there.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(if file.metadata()?.nlink() == 0 { WriteError::Removed } else { WriteError::Renamed })
            }
            Err(source) => Err(WriteError::Unseen(source)),
        }
    }
}

/// Whether some process has the record open for writing: more lines may come. `false` for what is no regular file, and for a
/// file on a file system that has no locks (flock(2)).
///
/// A run holds the lock until exeat and what it forked of itself are gone; after a `kill -9` that is some milliseconds.
///
/// # Errors
/// Where the file cannot be opened for reading.
pub fn is_being_written(record: &Path) -> io::Result<bool> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(record)?;
    if !file.metadata()?.file_type().is_file() {
        return Ok(false);
    }
    Ok(matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK))))
}

/// Takes the lock of a record's writer. `None`: there are no locks here.
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

fn id(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Why a record could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file already holds something.
    #[error("`{}` exists: name a new file or remove it", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file belongs to somebody else, who could change the record.
    #[error("`{}` belongs to another user: name a new file", .path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// Another run writes to the file.
    #[error("`{}` is the record of another run that is not over: name a new file", .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// What was asked to be on the disk after each line is not on one.
    #[error("each line is to be synced to the disk, and this is a pipe, a socket or a terminal")]
    NoSync {
        /// What the kernel said.
        source: io::Error,
    },
    /// The path is a symbolic link, which may lead anywhere.
    #[error("`{}` is a symbolic link: name the file that it leads to", .path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// A named pipe that nobody reads.
    #[error("nobody reads the pipe `{}`", .path.display())]
    NoReader {
        /// The pipe.
        path: PathBuf,
    },
    /// The file could not be opened.
    #[error("cannot open the record `{}`", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The descriptor cannot be written to.
    #[error("cannot write the record to descriptor {fd}")]
    Descriptor {
        /// Its number.
        fd: i32,
        /// What the kernel said.
        source: io::Error,
    },
}

impl OpenError {
    fn io(path: &Path, source: io::Error) -> OpenError {
        OpenError::Io { path: path.to_owned(), source }
    }
}

/// Why a line was not written.
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

/// Standard output or standard error, if `path` is a name of it.
///
/// Opening such a name anew would give a file its own offset, and the stage's output would overwrite the record.
fn standard_stream(path: &Path) -> Option<io::Result<OwnedFd>> {
    match path.to_str()? {
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => Some(io::stdout().as_fd().try_clone_to_owned()),
        "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => Some(io::stderr().as_fd().try_clone_to_owned()),
        _ => None,
    }
}

/// Whether the path leads through `/dev` or `/proc`, whose links only root or the kernel makes.
///
/// `/dev/shm` and `/dev/mqueue` are open to everybody and count as ordinary directories.
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

/// Opens for appending; `std` adds O_CLOEXEC.
fn open(path: &Path, more: impl Fn(&mut OpenOptions) -> &mut OpenOptions) -> io::Result<File> {
    more(OpenOptions::new().append(true)).open(path)
}

#[cfg(test)]
mod tests;

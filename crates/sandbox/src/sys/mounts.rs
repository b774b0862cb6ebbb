//! Keeps names read-only in a sandbox's mount namespace while the stage runs, from the host side.

use std::ffi::{CStr, CString};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::MsgFlags;

use super::asks;
use super::helper::Helper;

/// A file whose name stays read-only in the sandbox: when another file is renamed over it, that one is mounted there.
#[derive(Debug)]
pub struct KeptFile {
    /// The inotify(7) watch on its directory, for `IN_MOVED_TO` and for `IN_CLOSE_WRITE`, which separates two renames. The file has a
    /// watch too, for `IN_ATTRIB`.
    pub watch: i32,
    /// Its name in that directory.
    pub name: CString,
    /// Its paths in the sandbox.
    pub places: Vec<CString>,
    /// The watch on the mounted file, or -1.
    pub current: i32,
    /// The events on this file so far.
    pub status: KeptStatus,
}

/// The events on a file that is kept read-only.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptStatus {
    /// Number of files renamed over it.
    pub renames: u32,
    /// Number of these that were mounted before the next rename.
    pub mounts: u32,
    /// The file mounted last.
    pub mounted: Mounted,
}

/// A helper in a sandbox's mount namespace, which mounts while this exists.
#[derive(Debug)]
pub struct InsideMounts(Arc<Helper>);

/// A completed mount.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// The mounted file.
    pub mounted: Mounted,
    /// The file that the mount covers.
    pub over: Mounted,
    /// Its mount id in `/proc/PID/mountinfo`.
    pub number: u64,
}

/// The file that a name led to when it was mounted.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mounted {
    /// Device number of its file system.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// Bytes of a path, including its final NUL.
const PATH: usize = libc::PATH_MAX as usize;

/// Bytes of a request: the target and the source, each followed by a NUL. An empty source means the target itself, read-only.
pub(super) const ASK: usize = 2 * PATH;

/// An answer in the form in which it is sent.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Answer {
    status: KeptStatus,
    /// The file that a mount covers, and the mount's id.
    over: Mounted,
    number: u64,
    /// The error number of a failure, or 0.
    errno: i32,
    zero: u32,
}

impl InsideMounts {
    /// Lets the helper enter the mount namespace.
    pub(super) fn enter(helper: Arc<Helper>) -> io::Result<Self> {
        let inside = Self(helper);
        inside.ask(&[asks::MOUNTS]).map(|_| inside)
    }

    /// Ends the helper, also for other users of it.
    pub fn end(&self) {
        self.0.end();
    }

    /// Returns the events on a file so far.
    ///
    /// # Errors
    /// Returns `TimedOut` if the helper does not answer within two seconds.
    pub fn status(&self, number: usize) -> io::Result<KeptStatus> {
        let number = u32::try_from(number).map_err(io::Error::other)?;
        self.ask(&[&[asks::STATUS][..], &number.to_ne_bytes()].concat()).map(|answer| answer.status)
    }

    /// Mounts the file that has the name now, whoever put it there, and counts events from then on.
    ///
    /// # Errors
    /// Returns the error of openat2(2), open_tree(2) or move_mount(2), `EMLINK` for a file with a second name, and `TimedOut` if the
    /// helper does not answer within two seconds.
    pub fn mount_anew(&self, number: usize) -> io::Result<KeptStatus> {
        let number = u32::try_from(number).map_err(io::Error::other)?;
        self.ask(&[&[asks::MOUNT_ANEW][..], &number.to_ne_bytes()].concat()).map(|answer| answer.status)
    }

    /// Mounts the sandbox's `source` at `target`. Follows no symbolic link.
    ///
    /// # Errors
    /// Returns the error of openat2(2), open_tree(2) or move_mount(2), and `TimedOut` if the helper does not answer within two
    /// seconds.
    pub fn bind(&self, source: &Path, target: &Path) -> io::Result<Bound> {
        let paths = [target, source].map(|path| path.as_os_str().as_bytes());
        if paths.iter().any(|path| path.len() >= PATH || path.contains(&0)) {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let answer = self.ask(&[paths[0], b"\0", paths[1], b"\0"].concat())?;
        Ok(Bound { mounted: answer.status.mounted, over: answer.over, number: answer.number })
    }

    /// Makes the mount at a path, and each one below it, read-only for good. The mounts of a sandbox outlive it for a process elsewhere that
    /// has a descriptor of a directory, but those over protected files do not. While anybody has a file of one of them open for writing, only
    /// the first is made read-only. Returns whether all are.
    ///
    /// # Errors
    /// Returns the error of openat2(2) or mount_setattr(2), such as `EBUSY` while such a file is in the first one, and `TimedOut` if the
    /// helper does not answer within two seconds.
    pub fn seal(&self, at: &Path) -> io::Result<bool> {
        let path = at.as_os_str().as_bytes();
        if path.len() >= PATH || path.contains(&0) {
            return Err(Errno::ENAMETOOLONG.into());
        }
        self.ask(&[&[asks::SEAL], path, b"\0"].concat()).map(|answer| answer.number == 0)
    }

    fn ask(&self, ask: &[u8]) -> io::Result<Answer> {
        let answer = self.0.with(|socket| {
            nix::sys::socket::send(socket.as_raw_fd(), ask, MsgFlags::MSG_NOSIGNAL)?;
            hear(socket)
        })?;
        match answer.errno {
            0 => Ok(answer),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn hear(socket: &UnixStream) -> io::Result<Answer> {
    let mut answer = Answer::default();
    let read = loop {
        // SAFETY: a live local of that length; any bytes are a valid value.
        let read =
            unsafe { libc::recv(socket.as_raw_fd(), (&raw mut answer).cast(), mem::size_of::<Answer>(), 0) };
        match Errno::result(read) {
            // A call is interrupted by SIGCONT even without a handler (signal(7)).
            Err(Errno::EINTR) => {}
            read => break read?,
        }
    };
    if usize::try_from(read) != Ok(mem::size_of::<Answer>()) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}

/// Handles a request, except for those that [`super::inside`] handles itself.
pub(super) fn answer_to(asked: &[u8], events: RawFd, kept: &mut [KeptFile]) -> Result<Answer, Errno> {
    let index = |number: &[u8]| {
        let number = number.try_into().map(u32::from_ne_bytes).map_err(|_| Errno::EINVAL)?;
        usize::try_from(number).map_err(|_| Errno::EINVAL)
    };
    match asked {
        [asks::STATUS, number @ ..] => {
            let file = kept.get(index(number)?).ok_or(Errno::EINVAL)?;
            Ok(Answer { status: file.status, ..Answer::default() })
        }
        [asks::MOUNT_ANEW, number @ ..] => mount_anew(events, kept, index(number)?),
        [asks::SEAL, path @ ..] => seal(path),
        paths => bind(paths),
    }
}

pub(super) fn answer(control: RawFd, result: Result<Answer, Errno>) {
    let failed = |errno: Errno| Answer { errno: (errno as i32).max(1), ..Answer::default() };
    let answer = result.unwrap_or_else(failed);
    // SAFETY: a live local of that length; all its bytes are initialized.
    unsafe { libc::send(control, (&raw const answer).cast(), mem::size_of::<Answer>(), libc::MSG_NOSIGNAL) };
}

fn seal(path: &[u8]) -> Result<Answer, Errno> {
    let path = CStr::from_bytes_until_nul(path).map_err(|_| Errno::EINVAL)?;
    let mount = OpenPath::at(path)?;
    match set_attributes(&mount, libc::MOUNT_ATTR_RDONLY, libc::AT_RECURSIVE) {
        // The kernel has changed none of them (`do_mount_setattr`, fs/namespace.c).
        Err(Errno::EBUSY) => set_attributes(&mount, libc::MOUNT_ATTR_RDONLY, 0)
            .map(|()| Answer { number: 1, ..Answer::default() }),
        done => done.map(|()| Answer::default()),
    }
}

fn bind(paths: &[u8]) -> Result<Answer, Errno> {
    let text = |bytes| CStr::from_bytes_until_nul(bytes).map_err(|_| Errno::EINVAL);
    let target = text(paths)?;
    let source = text(paths.get(target.count_bytes() + 1..).unwrap_or_default())?;
    let target = OpenPath::at(target)?;
    let (over, _) = target.stat()?;
    let (mounted, number) = place(&OpenPath::at(source)?, &target, 0)?;
    Ok(Answer { status: KeptStatus { mounted, ..KeptStatus::default() }, over, number, ..Answer::default() })
}

/// Mounts the file that has a kept name now, and sets both numbers to the same value.
fn mount_anew(events: RawFd, kept: &mut [KeptFile], number: usize) -> Result<Answer, Errno> {
    let file = kept.get_mut(number).ok_or(Errno::EINVAL)?;
    let (mounted, current) = file.mount(events);
    let (mounted, _) = mounted?;
    (file.current, file.status.mounted, file.status.mounts) = (current, mounted, file.status.renames);
    let status = file.status;
    // Later events count.
    note_renames(events, kept);
    Ok(Answer { status, ..Answer::default() })
}

/// Mounts the files that were renamed over kept ones.
pub(super) fn mount_renamed(events: RawFd, kept: &mut [KeptFile]) {
    note_renames(events, kept);
    for number in 0..kept.len() {
        let Some(file) = kept.get_mut(number) else { break };
        let wanted = file.status.renames;
        if wanted == file.status.mounts {
            continue;
        }
        let (mounted, current) = file.mount(events);
        file.current = current;
        note_renames(events, kept);
        let Some(KeptStatus { renames, mounts, mounted: last }) =
            kept.get_mut(number).map(|it| &mut it.status)
        else {
            break;
        };
        // After two renames before one mount, it is unknown who made the second: the two numbers then stay different.
        if let Ok((mounted, _)) = mounted
            && *renames == wanted
            && wanted == mounts.wrapping_add(1)
        {
            (*mounts, *last) = (wanted, mounted);
        }
    }
}

impl KeptFile {
    /// Mounts the file that has the name now at each place, and returns its watch.
    fn mount(&self, events: RawFd) -> (Result<(Mounted, u64), Errno>, i32) {
        let mut mounted = Err(Errno::ENOENT);
        for path in &self.places {
            mounted = OpenPath::at(path).and_then(|it| place(&it, &it, libc::MOUNT_ATTR_RDONLY));
            if mounted.is_err() {
                break;
            }
        }
        // The kernel merges two successive renames over one name into one event (inotify_merge). An event for the replaced file lies
        // between them and keeps them apart.
        let (Ok(_), Some(path)) = (mounted, self.places.first()) else { return (mounted, -1) };
        // SAFETY: the path is a C string.
        let watch = unsafe { libc::inotify_add_watch(events, path.as_ptr(), MOUNTED_FILE) };
        (Errno::result(watch).and(mounted), watch)
    }
}

/// Events that may mean a write to the file.
const TOUCHED: u32 = libc::IN_ATTRIB | libc::IN_MODIFY | libc::IN_CLOSE_WRITE;
/// Events watched on a mounted file.
const MOUNTED_FILE: u32 =
    libc::IN_ATTRIB | libc::IN_MODIFY | libc::IN_CLOSE_WRITE | libc::IN_MOVE_SELF | libc::IN_DONT_FOLLOW;
/// Counts the renames that the kernel reports.
fn note_renames(events: RawFd, kept: &mut [KeptFile]) {
    /// Size of `struct inotify_event` before the name.
    const HEADER: usize = 16;
    let mut buffer = [0_u8; 4096];
    loop {
        // SAFETY: a live local of that length.
        let read = unsafe { libc::read(events, buffer.as_mut_ptr().cast(), buffer.len()) };
        let mut rest = match usize::try_from(read) {
            Ok(length) if length > 0 => buffer.get(..length).unwrap_or_default(),
            _ => return,
        };
        while let Some((header, after)) = rest.split_at_checked(HEADER) {
            let number = |at: usize| {
                let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
                bytes.map_or(0, u32::from_ne_bytes)
            };
            let (watch, mask, length) = (number(0).cast_signed(), number(4), number(12));
            let Some((name, next)) = after.split_at_checked(usize::try_from(length).unwrap_or(usize::MAX))
            else {
                return;
            };
            rest = next;
            let name = CStr::from_bytes_until_nul(name).unwrap_or_default();
            let is_lost = mask & libc::IN_Q_OVERFLOW != 0;
            for file in kept.iter_mut() {
                if is_lost {
                    // The two numbers then stay different.
                    file.status.renames = file.status.renames.wrapping_add(2);
                } else if mask & libc::IN_MOVED_TO != 0 && file.watch == watch && file.name.as_c_str() == name
                {
                    file.current = -1;
                    file.status.renames = file.status.renames.wrapping_add(1);
                } else if mask & TOUCHED != 0 && file.current == watch && watch > 0 {
                    // The two numbers then stay different.
                    file.status.renames = file.status.renames.wrapping_add(2);
                }
            }
        }
    }
}

/// Mounts a copy of the mount of one file or directory on another. Returns the id of the new mount too.
fn place(source: &OpenPath, target: &OpenPath, attributes: u64) -> Result<(Mounted, u64), Errno> {
    const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;
    const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;
    let recursive = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | recursive.cast_unsigned();
    // SAFETY: each call takes numbers, C strings and pointers to live locals of the size given.
    unsafe {
        let tree = Errno::result(libc::syscall(libc::SYS_open_tree, source.0, c"".as_ptr(), flags))?;
        let tree = OpenPath(RawFd::try_from(tree).map_err(|_| Errno::EBADF)?);
        set_attributes(
            &tree,
            attributes | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
            libc::AT_RECURSIVE,
        )?;
        Errno::result(libc::syscall(
            libc::SYS_move_mount,
            tree.0,
            c"".as_ptr(),
            target.0,
            c"".as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH,
        ))?;
        // From here on nobody can add a second name through this one, and an existing second name bypasses the mount.
        let (mounted, stat) = tree.stat()?;
        if u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG && stat.stx_nlink != 1 {
            return Err(Errno::EMLINK);
        }
        Ok((mounted, stat.stx_mnt_id))
    }
}

/// Adds attributes to a mount and to those below it.
fn set_attributes(mount: &OpenPath, attr_set: u64, below: libc::c_int) -> Result<(), Errno> {
    let attributes = libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let (size, flags) = (mem::size_of::<libc::mount_attr>(), libc::AT_EMPTY_PATH | below);
    // SAFETY: the call takes numbers, a C string and a pointer to a live local of the size given.
    let set = unsafe {
        libc::syscall(libc::SYS_mount_setattr, mount.0, c"".as_ptr(), flags, &raw const attributes, size)
    };
    Errno::result(set).map(|_| ())
}

/// A descriptor that is closed on drop. Nothing here allocates.
struct OpenPath(RawFd);

impl OpenPath {
    /// Opens a path of the sandbox without access to its contents, through no symbolic link.
    fn at(path: &CStr) -> Result<Self, Errno> {
        // SAFETY: all bytes zero are a valid value.
        let mut how: libc::open_how = unsafe { mem::zeroed() };
        how.flags = u64::from((libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC).cast_unsigned());
        how.resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
        let size = mem::size_of::<libc::open_how>();
        // SAFETY: the path is a C string, and `how` is a live local of the size given.
        let opened = Errno::result(unsafe {
            libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), &raw const how, size)
        })?;
        RawFd::try_from(opened).map(Self).map_err(|_| Errno::EBADF)
    }

    fn stat(&self) -> Result<(Mounted, libc::statx), Errno> {
        let wanted = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID | libc::STATX_BTIME;
        // SAFETY: any bytes are a valid value, and it is a live local of the size that the call fills.
        let stat = unsafe {
            let mut stat: libc::statx = mem::zeroed();
            let (fd, at) = (self.0, libc::AT_EMPTY_PATH);
            Errno::result(libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), at, wanted, &raw mut stat))?;
            stat
        };
        let dev = libc::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        Ok((Mounted { dev, ino: stat.stx_ino }, stat))
    }
}

impl Drop for OpenPath {
    fn drop(&mut self) {
        // SAFETY: nothing else uses this descriptor.
        unsafe { libc::close(self.0) };
    }
}

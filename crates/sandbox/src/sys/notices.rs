//! Notices of system calls that wait until they are let go on (seccomp_unotify(2)).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Where the kernel tells of them. Once this is dropped such calls fail with `ENOSYS`.
#[derive(Debug)]
pub struct Notices(OwnedFd);

/// A call that waits.
#[derive(Debug)]
pub struct Notice {
    number: u64,
    /// The thread that makes it, as this process sees it.
    pub thread: libc::pid_t,
    /// Its number.
    pub call: i64,
}

/// What came first.
#[derive(Debug)]
pub enum Next {
    /// A thread is about to make a call.
    Call(Notice),
    /// None, in the time given.
    None,
    /// No thread is left, or the caller gives up.
    Over,
}

impl Notices {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        // Linux 6.6: whoever waits goes on where this process was, at once. Without it the kernel looks for a place.
        const SYNC_WAKE_UP: libc::c_ulong = 1;
        // SAFETY: takes numbers.
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
        Self(fd)
    }

    /// Waits for the next call, at most for `longest`, or until `stop` can be read.
    ///
    /// # Errors
    /// What poll(2) and ioctl(2) say.
    pub fn next(&self, stop: BorrowedFd<'_>, longest: Option<Duration>) -> io::Result<Next> {
        let timeout =
            longest.map_or(PollTimeout::NONE, |time| PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX));
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN), PollFd::new(stop, PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::EINTR) => return Ok(Next::None),
            other => other?,
        };
        let [calls, stop] = fds.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        if !stop.is_empty() || !calls.contains(PollFlags::POLLIN) {
            return Ok(Next::Over);
        }
        // SAFETY: the kernel wants it zero, and any bytes make it a value; the pointer is to a live local of the size that the request
        // names.
        let (told, notice) = unsafe {
            let mut notice: libc::seccomp_notif = mem::zeroed();
            (libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice), notice)
        };
        match Errno::result(told) {
            // The thread has ended, or had a signal.
            Err(Errno::ENOENT | Errno::EINTR) => Ok(Next::None),
            Err(errno) => Err(errno.into()),
            Ok(_) => Ok(Next::Call(Notice {
                number: notice.id,
                thread: notice.pid.cast_signed(),
                call: notice.data.nr.into(),
            })),
        }
    }

    /// Lets a call go on, unseen: what it says may be another thing by the time that it is made.
    ///
    /// # Errors
    /// What ioctl(2) says, but for a thread that has ended.
    pub fn let_go(&self, notice: &Notice) -> io::Result<()> {
        let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1);
        let answer = libc::seccomp_notif_resp { id: notice.number, val: 0, error: 0, flags };
        // SAFETY: the pointer is to a live local of the size that the request names.
        let sent =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
        match Errno::result(sent) {
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

//! Notices of system calls that block until they are allowed to continue (seccomp_unotify(2)).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The listener for notices. After it is dropped, such calls fail with `ENOSYS`.
#[derive(Debug)]
pub struct Notices(OwnedFd);

/// A blocked call.
#[derive(Debug)]
pub struct Notice {
    number: u64,
    /// The thread that makes the call, by its pid in this process's namespace.
    pub thread: libc::pid_t,
    /// The number of the system call.
    pub call: i64,
}

/// The event that ended a wait.
#[derive(Debug)]
pub enum Next {
    /// A thread is about to make a call.
    Call(Notice),
    /// No call in the given time.
    None,
    /// No thread is left, or the caller gave up.
    Over,
}

impl Notices {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        // Linux 6.6: the blocked thread resumes at once on this process's processor. Without it, the kernel searches for one.
        const SYNC_WAKE_UP: libc::c_ulong = 1;
        // SAFETY: takes numbers.
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
        Self(fd)
    }

    /// Waits for the next call, at most for `longest`, or until `stop` is readable.
    ///
    /// # Errors
    /// Returns the error of poll(2) or ioctl(2).
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
        // SAFETY: the kernel requires zeros, and any bytes are a valid value; the pointer is to a live local of the size that the
        // request names.
        let (told, notice) = unsafe {
            let mut notice: libc::seccomp_notif = mem::zeroed();
            (libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice), notice)
        };
        match Errno::result(told) {
            // The thread has ended or received a signal.
            Err(Errno::ENOENT | Errno::EINTR) => Ok(Next::None),
            Err(errno) => Err(errno.into()),
            Ok(_) => Ok(Next::Call(Notice {
                number: notice.id,
                thread: notice.pid.cast_signed(),
                call: notice.data.nr.into(),
            })),
        }
    }

    /// Lets a call continue unchecked: its arguments may change before the kernel makes it.
    ///
    /// # Errors
    /// Returns the error of ioctl(2), except for a thread that has ended.
    pub fn let_continue(&self, notice: &Notice) -> io::Result<()> {
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

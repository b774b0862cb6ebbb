//! Waits for a socket and a process at once.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The event that ended a wait.
#[derive(Debug)]
pub(crate) enum Ready {
    /// The socket is readable, or has a connection to accept.
    Socket,
    /// The process ended.
    Ended,
    /// The caller gave up.
    Cancelled,
}

/// Waits for the socket, the end of the process, or the caller to give up. `None` if the time is over.
pub(crate) fn wait(
    socket: BorrowedFd<'_>,
    process: BorrowedFd<'_>,
    cancel: Option<BorrowedFd<'_>>,
    by: Instant,
) -> io::Result<Option<Ready>> {
    loop {
        let left = by.saturating_duration_since(Instant::now());
        // Rounded up to whole milliseconds, so that the last round does not spin. A deadline in the past means: do not sleep.
        let timeout = if left.is_zero() {
            PollTimeout::ZERO
        } else {
            PollTimeout::try_from(left.saturating_add(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX)
        };
        let cancel = cancel.unwrap_or(process);
        let mut fds = [socket, process, cancel].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, timeout) {
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
            Ok(_) => {}
        }
        let [socket_fd, process_fd, cancel_fd] = &fds;
        if socket_fd.any().unwrap_or(false) {
            return Ok(Some(Ready::Socket));
        }
        if process_fd.any().unwrap_or(false) {
            return Ok(Some(Ready::Ended));
        }
        if cancel_fd.any().unwrap_or(false) {
            return Ok(Some(Ready::Cancelled));
        }
        if left.is_zero() {
            return Ok(None);
        }
    }
}

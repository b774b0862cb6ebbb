//! Into a sandbox's network namespace from the host's side, without a right on the host (setns(2), ioctl_ns(2)).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// `_IO(0xb7, 1)`: the user namespace that owns a namespace (ioctl_ns(2)).
const NS_GET_USERNS: libc::c_ulong = 0xb701;

/// Whether a process of ours may enter the network namespace of a process: a child tries, and ends.
///
/// # Errors
/// What the step says that the kernel refuses.
pub(crate) fn may_enter_network_of(pid: libc::pid_t) -> io::Result<()> {
    let network = File::open(format!("/proc/{pid}/ns/net"))?;
    // SAFETY: takes no third argument; returns a new descriptor, close-on-exec.
    let owner = Errno::result(unsafe { libc::ioctl(network.as_raw_fd(), NS_GET_USERNS) })?;
    // SAFETY: the call has just made it, and nothing else knows its number.
    let owner = unsafe { OwnedFd::from_raw_fd(owner) };
    // SAFETY: with SIGCHLD alone this is fork(2), without the C library's handlers: nothing but what follows runs.
    let child = Errno::result(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })?;
    if child == 0 {
        // SAFETY: system calls on descriptors that are open, in a process with one thread; nothing is allocated.
        unsafe {
            let entered = libc::setns(owner.as_raw_fd(), libc::CLONE_NEWUSER) == 0
                && libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) == 0;
            libc::_exit(if entered { 0 } else { Errno::last_raw() });
        }
    }
    let child = libc::pid_t::try_from(child).map_err(io::Error::other)?;
    let mut status = 0;
    loop {
        // SAFETY: waits for the child that was just made. It makes two system calls and ends, so this needs no deadline.
        match Errno::result(unsafe { libc::waitpid(child, &raw mut status, 0) }) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    match libc::WEXITSTATUS(status) {
        0 if libc::WIFEXITED(status) => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

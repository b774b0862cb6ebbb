//! Helper processes of ours that act in a sandbox's namespaces from the host side.
//!
//! Each is a copy of this process, because a process with threads may not enter a user namespace. It only makes system calls, and
//! answers messages until this process closes its socket or ends. No process of the sandbox sees or may signal it, since its other
//! namespaces are the host's.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};

use super::PidFd;
use super::start::close_all_but;
use crate::spec::Identity;
use crate::wait::wait;

/// The deadline of one answer. The helper makes a few system calls; a late one has been stopped by somebody.
const ANSWER: Duration = Duration::from_secs(2);

/// `_IO(0xb7, 1)`: returns the user namespace that owns a namespace (ioctl_ns(2)).
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// A helper process. It ends when this is dropped, and whenever this process ends.
#[derive(Debug)]
pub(super) struct Helper {
    /// `None` once an answer is missing: a later answer would be mistaken for it.
    control: Mutex<Option<UnixStream>>,
    pid: libc::pid_t,
}

impl Helper {
    /// Forks a helper that runs `body` on its end of the socket. Of the other descriptors it keeps those in `kept`.
    ///
    /// # Safety
    /// `body` runs in a copy of a process with threads: it may only make system calls, and must not allocate.
    pub(super) unsafe fn start(name: &CStr, kept: &[RawFd], body: impl FnOnce(RawFd)) -> Result<Self, Errno> {
        reap();
        let (ours, its) = pair()?;
        let mut open = [&[its.as_raw_fd()], kept].concat();
        open.sort_unstable();
        // SAFETY: see this function's own condition.
        let pid = unsafe { fork(name, &open, || body(its.as_raw_fd())) }?;
        Ok(Self { control: Mutex::new(Some(ours)), pid })
    }

    /// Makes a helper whose answers a test writes.
    #[cfg(test)]
    pub(super) fn played(pid: libc::pid_t) -> (Self, UnixStream) {
        let (ours, its) = pair().unwrap();
        (Self { control: Mutex::new(Some(ours)), pid }, its)
    }

    /// Runs one exchange with the helper. After an error, later exchanges fail at once.
    pub(super) fn with<T>(&self, ask: impl FnOnce(&UnixStream) -> io::Result<T>) -> io::Result<T> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = ask(control.as_ref().ok_or(io::ErrorKind::NotConnected)?);
        if answer.is_err() {
            *control = None;
        }
        answer
    }

    /// Ends the helper without waiting: closing its last descriptors may take a while.
    pub(super) fn end(&self) {
        // End of file ends a helper of another user, which this process may not signal without CAP_KILL. SIGKILL ends a stopped one.
        drop(self.control.lock().unwrap_or_else(PoisonError::into_inner).take());
        // SAFETY: takes numbers. The child is not reaped, so its pid is still its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
        ENDED.lock().unwrap_or_else(PoisonError::into_inner).push(self.pid);
        reap();
    }
}

/// Helpers that were ended but not reaped yet: this process may be a program that runs for a long time.
static ENDED: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// Reaps the ended helpers that are gone.
fn reap() {
    let mut ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: takes the pids of children that nobody else waits for, since their end sends no signal.
    ended.retain(
        |pid| unsafe { libc::waitpid(*pid, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) } == 0,
    );
}

/// Sends a signal to every process of a pid namespace except its first, at once: kill(2) with -1, from within.
///
/// # Errors
/// Returns the error of clone(2), setns(2) or kill(2): `ESRCH` if no other process exists, `TimedOut` after two seconds.
pub(crate) fn signal_namespace(namespace: &File, identity: Identity, signal: libc::c_int) -> io::Result<()> {
    let user = identity.other();
    let number = namespace.as_raw_fd();
    // SAFETY: the bodies only make system calls.
    let child = unsafe {
        fork(c"sandbox-signal", &[number], || {
            let inside = || {
                become_owner(user)?;
                enter(number, libc::CLONE_NEWPID)?;
                // setns(2) applies to children: the first one is in the namespace (pid_namespaces(7)).
                let child = Errno::result(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0))?;
                if child == 0 {
                    // The stage may stop this child, so it ends with its parent.
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    let sent = Errno::result(libc::kill(-1, signal));
                    libc::_exit(sent.err().map_or(0, |errno| errno as i32));
                }
                let mut status = 0;
                Errno::result(libc::waitpid(-1, &raw mut status, libc::__WALL))?;
                match libc::WEXITSTATUS(status) {
                    0 if libc::WIFEXITED(status) => Ok(()),
                    0 => Err(Errno::EINTR),
                    errno => Err(Errno::from_raw(errno)),
                }
            };
            libc::_exit(inside().err().map_or(0, |errno| errno as i32))
        })
    }?;
    let ended = PidFd::open(child).and_then(|process| {
        let process = process.as_fd();
        wait(process, process, None, Instant::now() + ANSWER)
    });
    let mut status = 0;
    // SAFETY: the child is ours, nobody else waits for it, and `status` is a live local.
    unsafe {
        if !matches!(ended, Ok(Some(_))) {
            libc::kill(child, libc::SIGKILL);
        }
        // A child of another user that this process may not kill is left.
        let end = Instant::now() + ANSWER;
        while libc::waitpid(child, &raw mut status, libc::__WALL | libc::WNOHANG) == 0 && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    match (ended?, libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (None, ..) => Err(io::ErrorKind::TimedOut.into()),
        (_, true, 0) => Ok(()),
        (_, true, errno) => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(Errno::EINTR.into()),
    }
}

/// Forks a process that runs `body` and then ends. It keeps the descriptors in `open`, which is sorted.
///
/// # Safety
/// `body` runs in a copy of a process with threads: it may only make system calls, and must not allocate.
unsafe fn fork(name: &CStr, open: &[RawFd], body: impl FnOnce()) -> Result<libc::pid_t, Errno> {
    // As for the reaper, no handler of this process may run in the copy.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // Its end sends no signal: this process may be another program, which waits for its own children.
    // SAFETY: without a stack and flags this is fork(2) without the C library's handlers: only the code below runs.
    let child = Errno::result(unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) });
    if child == Ok(0) {
        // SAFETY: this is the only thread, every signal is blocked, and nothing else of the copy is used again.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
            libc::setsid();
            // Closes the standard streams too: a reader of the stage's output must see its end when the stage closes it.
            close_all_but(0, open);
        }
        body();
        // SAFETY: ends this process without the exit handlers of the original.
        unsafe { libc::_exit(1) }
    }
    // This cannot fail: the mask came from the kernel.
    let _ = mask.thread_set_mask();
    libc::pid_t::try_from(child?).map_err(|_| Errno::ERANGE)
}

/// Makes a pair of sockets that preserves message boundaries.
fn pair() -> Result<(UnixStream, UnixStream), Errno> {
    let (ours, its) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let wait = nix::sys::time::TimeVal::new(i64::try_from(ANSWER.as_secs()).unwrap_or(1), 0);
    setsockopt(&ours, sockopt::ReceiveTimeout, &wait)?;
    setsockopt(&ours, sockopt::SendTimeout, &wait)?;
    Ok((ours.into(), its.into()))
}

/// Becomes the user that owns the namespaces. The owner has every capability there, and root may lack some (user_namespaces(7)).
pub(super) fn become_owner(user: Option<(u32, u32)>) -> Result<(), Errno> {
    user.map_or(Ok(()), |(uid, gid)| super::take_credentials(uid, gid))
}

/// Enters a namespace of this type and the user namespace that owns it.
///
/// # Safety
/// The caller must be the only thread of its process.
unsafe fn enter(namespace: RawFd, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: each call takes numbers or constants.
    unsafe {
        enter_user_of(namespace)?;
        Errno::result(libc::setns(namespace, kind)).map(drop)
    }
}

/// Enters the user namespace that owns a namespace.
///
/// # Safety
/// The caller must be the only thread of its process.
pub(super) unsafe fn enter_user_of(namespace: RawFd) -> Result<(), Errno> {
    // SAFETY: each call takes numbers or constants; the descriptor is closed once.
    unsafe {
        let owner = Errno::result(libc::ioctl(namespace, NS_GET_USERNS))?;
        let entered = Errno::result(libc::setns(owner, libc::CLONE_NEWUSER));
        libc::close(owner);
        entered?;
        // Other processes of the same uid must not inspect this one.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    Ok(())
}

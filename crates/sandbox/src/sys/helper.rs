//! Processes of ours beside a sandbox that act in one of its namespaces from the host's side.
//!
//! Each is a copy of this process, because a process with threads may not enter a user namespace. It makes system calls only, and
//! answers messages until this process closes its socket or ends. No process of the sandbox sees it or may signal it: it is in
//! the host's other namespaces.

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
use crate::control::wait;
use crate::spec::Identity;

/// The deadline of one answer. The helper makes a few system calls; past this somebody has stopped it.
const ANSWER: Duration = Duration::from_secs(2);

/// `_IO(0xb7, 1)`: returns the user namespace that owns a namespace (ioctl_ns(2)).
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// A helper process. It ends when this is dropped, and when this process ends in any way.
#[derive(Debug)]
pub(super) struct Helper {
    /// `None` after an answer that did not come: the next one would be taken for it.
    control: Mutex<Option<UnixStream>>,
    pid: libc::pid_t,
}

impl Helper {
    /// Forks a helper that runs `body` on its end of the socket. Of the other descriptors it has those in `kept`.
    ///
    /// # Safety
    /// `body` runs in a copy of a process with threads: it makes system calls only, and allocates nothing.
    pub(super) unsafe fn start(name: &CStr, kept: &[RawFd], body: impl FnOnce(RawFd)) -> Result<Self, Errno> {
        reap();
        let (ours, its) = pair()?;
        let mut open = [&[its.as_raw_fd()], kept].concat();
        open.sort_unstable();
        // SAFETY: as this function's.
        let pid = unsafe { fork(name, &open, || body(its.as_raw_fd())) }?;
        Ok(Self { control: Mutex::new(Some(ours)), pid })
    }

    /// A helper in whose place a test answers.
    #[cfg(test)]
    pub(super) fn played(pid: libc::pid_t) -> (Self, UnixStream) {
        let (ours, its) = pair().unwrap();
        (Self { control: Mutex::new(Some(ours)), pid }, its)
    }

    /// Asks something. After an error here the helper is asked nothing more.
    pub(super) fn with<T>(&self, ask: impl FnOnce(&UnixStream) -> io::Result<T>) -> io::Result<T> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = ask(control.as_ref().ok_or(io::ErrorKind::NotConnected)?);
        if answer.is_err() {
            *control = None;
        }
        answer
    }

    /// Ends it, and does not wait: what it closes last may take its time.
    pub(super) fn end(&self) {
        // End of file ends it, where it is another user's and this process may not signal those (CAP_KILL). The signal is for one that
        // somebody has stopped.
        drop(self.control.lock().unwrap_or_else(PoisonError::into_inner).take());
        // SAFETY: takes numbers. It is a child that nobody has waited for, so the number is still its own.
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

/// Helpers that were ended, and not waited for yet: this process may be a program that runs for long.
static ENDED: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// Waits for those of them that are gone.
fn reap() {
    let mut ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: takes numbers, of children that nobody else waits for, as they have no signal for their end.
    ended.retain(
        |pid| unsafe { libc::waitpid(*pid, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) } == 0,
    );
}

/// Sends a signal to every process of a pid namespace but its first, at once: kill(2) with -1, from within.
///
/// # Errors
/// What clone(2), setns(2) and kill(2) say; `ESRCH` where there is no other process, `TimedOut` after two seconds.
pub(crate) fn signal_namespace(namespace: &File, identity: Identity, signal: libc::c_int) -> io::Result<()> {
    let user = identity.other();
    let number = namespace.as_raw_fd();
    // SAFETY: the bodies make system calls only.
    let child = unsafe {
        fork(c"sandbox-signal", &[number], || {
            let inside = || {
                become_owner(user)?;
                enter(number, libc::CLONE_NEWPID)?;
                // A child is the first to be in it (pid_namespaces(7)).
                let child = Errno::result(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0))?;
                if child == 0 {
                    // The stage may stop it: it ends with its parent.
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
    // SAFETY: a child of this process that nobody else waits for, and a live local.
    unsafe {
        if !matches!(ended, Ok(Some(_))) {
            libc::kill(child, libc::SIGKILL);
        }
        // Where it is another user's, and may not be killed, it is left.
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

/// Forks a process that runs `body`, and ends. Of the descriptors it has those in `open`, which are in order.
///
/// # Safety
/// `body` runs in a copy of a process with threads: it makes system calls only, and allocates nothing.
unsafe fn fork(name: &CStr, open: &[RawFd], body: impl FnOnce()) -> Result<libc::pid_t, Errno> {
    // As for the guard: no handler of this process runs in the copy.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // No signal tells of its end: this process may be a program of somebody else's, which waits for children of its own.
    // SAFETY: without a stack and flags this is fork(2), without the C library's handlers: nothing but what follows runs.
    let child = Errno::result(unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) });
    if child == Ok(0) {
        // SAFETY: this is the only thread, every signal is blocked, and nothing of the copy is used again.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
            libc::setsid();
            // The standard streams too: a reader of the stage's output must see its end when the stage closes it.
            close_all_but(0, open);
        }
        body();
        // SAFETY: ends this process, without the handlers of the one that it is a copy of.
        unsafe { libc::_exit(1) }
    }
    // It cannot fail: the mask is one that the kernel gave.
    let _ = mask.thread_set_mask();
    libc::pid_t::try_from(child?).map_err(|_| Errno::ERANGE)
}

/// A pair of sockets that keep messages apart.
fn pair() -> Result<(UnixStream, UnixStream), Errno> {
    let (ours, its) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let wait = nix::sys::time::TimeVal::new(i64::try_from(ANSWER.as_secs()).unwrap_or(1), 0);
    setsockopt(&ours, sockopt::ReceiveTimeout, &wait)?;
    setsockopt(&ours, sockopt::SendTimeout, &wait)?;
    Ok((ours.into(), its.into()))
}

/// Becomes the user whose the namespaces are: they give their owner every capability, and root may lack one
/// (user_namespaces(7)).
pub(super) fn become_owner(user: Option<(u32, u32)>) -> Result<(), Errno> {
    user.map_or(Ok(()), |(uid, gid)| super::take_credentials(uid, gid))
}

/// Enters a namespace of this type, and the user namespace that owns it.
///
/// # Safety
/// The caller is the only thread of its process.
unsafe fn enter(namespace: RawFd, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: each call takes numbers or constants.
    unsafe {
        enter_user_of(namespace)?;
        Errno::result(libc::setns(namespace, kind)).map(drop)
    }
}

/// Enters the user namespace that owns this one.
///
/// # Safety
/// As [`enter`].
pub(super) unsafe fn enter_user_of(namespace: RawFd) -> Result<(), Errno> {
    // SAFETY: each call takes numbers or constants; the descriptor is closed once.
    unsafe {
        let owner = Errno::result(libc::ioctl(namespace, NS_GET_USERNS))?;
        let entered = Errno::result(libc::setns(owner, libc::CLONE_NEWUSER));
        libc::close(owner);
        entered?;
        // Nobody of the same uid may look into it.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    Ok(())
}

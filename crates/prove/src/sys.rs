//! The system calls of `exeat prove`: attempts that a stage might make, each in a safe function that returns the kernel's answer.
//!
//! Nothing here judges an answer, and nothing outlives its call: returned descriptors are closed, and lasting changes happen in a
//! child process ([`apart`]).

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{posix_openpt, ptsname_r, unlockpt};
use nix::sys::stat::Mode;

/// The outcome of an attempt in a child process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Apart {
    /// The process wrote these bytes and ended.
    Said(Vec<u8>),
    /// The process was killed by this signal.
    Killed(i32),
    /// The process still ran at its deadline and was killed.
    Late,
}

/// The maximal number of bytes that an attempt may write.
const MOST: u64 = 64 << 10;

/// Makes an attempt in a child process, which may be killed for it, and waits until `limit` has passed.
///
/// # Errors
/// Returns `EDEADLK` if this process has several threads: locks of the others would stay locked in the child (fork(2)). Returns the
/// error of pipe(2), fork(2) or waitpid(2).
pub(crate) fn apart(limit: Duration, attempt: impl FnOnce() -> Vec<u8>) -> io::Result<Apart> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(Errno::EDEADLK.into());
    }
    // SAFETY: this is the only thread, so the child may do everything that this process could.
    unsafe { forked(limit, attempt) }
}

/// # Safety
/// The process has one thread, or the attempt does only what signal-safety(7) allows.
unsafe fn forked(limit: Duration, attempt: impl FnOnce() -> Vec<u8>) -> io::Result<Apart> {
    let (heard, mut say) = io::pipe()?;
    // SAFETY: the caller guarantees it.
    let pid = Errno::result(unsafe { libc::fork() })?;
    if pid == 0 {
        drop(heard);
        let said = attempt();
        let _ = say.write_all(&said);
        // SAFETY: ends this process without the exit handlers, which the parent will run.
        unsafe { libc::_exit(0) };
    }
    let child = Unreaped(pid);
    drop(say);
    let (said, ended) = hear(File::from(OwnedFd::from(heard)), Instant::now() + limit)?;
    let status = if ended { child.wait()? } else { 0 };
    Ok(match (ended, libc::WIFSIGNALED(status)) {
        (false, _) => Apart::Late,
        (true, true) => Apart::Killed(libc::WTERMSIG(status)),
        (true, false) => Apart::Said(said),
    })
}

/// Reads until end of file or `until`. Returns the bytes, and whether it was end of file.
fn hear(mut heard: File, until: Instant) -> io::Result<(Vec<u8>, bool)> {
    let mut said = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok((said, false));
        }
        let mut waited = [PollFd::new(heard.as_fd(), PollFlags::POLLIN)];
        // Rounded up: a wait shorter than a millisecond would spin.
        let timeout = PollTimeout::try_from(left.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut waited, timeout) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut buffer = [0; 4096];
        match heard.read(&mut buffer)? {
            0 => return Ok((said, true)),
            count if (said.len() as u64) < MOST => said.extend(buffer.iter().take(count)),
            _ => {}
        }
    }
}

/// A child that is killed and reaped when this is dropped.
struct Unreaped(libc::pid_t);

impl Unreaped {
    /// Waits for its end and returns its status.
    fn wait(self) -> io::Result<libc::c_int> {
        let pid = self.0;
        std::mem::forget(self);
        reap(pid)
    }
}

impl Drop for Unreaped {
    fn drop(&mut self) {
        // SAFETY: takes numbers; the child is not reaped, so its pid is still its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        let _ = reap(self.0);
    }
}

fn reap(pid: libc::pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a live local.
        match Errno::result(unsafe { libc::waitpid(pid, &raw mut status, 0) }) {
            Ok(_) => return Ok(status),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Makes a socket of any family, type and protocol (socket(2)), and closes it.
///
/// # Errors
/// Returns the kernel's answer.
pub(crate) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<()> {
    // SAFETY: takes numbers only.
    let fd = Errno::result(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    close(fd.into())
}

/// Makes an io_uring (io_uring_setup(2)), whose entries would bypass a filter, and closes it.
///
/// # Errors
/// Returns the kernel's answer.
pub(crate) fn io_uring() -> io::Result<()> {
    // Size of `struct io_uring_params` (include/uapi/linux/io_uring.h).
    let mut params = [0_u8; 120];
    // SAFETY: the kernel reads and fills at most the struct's 120 bytes.
    close(Errno::result(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) })?)
}

/// Calls getpid(2) through the i386 entry, which a filter for one architecture does not cover. May end the process.
///
/// # Errors
/// Returns the kernel's answer, and `ENOSYS` on architectures without that entry.
#[cfg(target_arch = "x86_64")]
pub(crate) fn i386() -> io::Result<()> {
    const GETPID: i64 = 20; // arch/x86/entry/syscalls/syscall_32.tbl
    let pid: i64;
    // SAFETY: getpid takes no arguments; the entry changes eax, and r8 to r11 are declared as changed.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") GETPID => pid, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
    };
    if pid > 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(i32::try_from(-pid).unwrap_or(0))) }
}

/// Calls getpid(2) through the i386 entry.
///
/// # Errors
/// Returns `ENOSYS`: this architecture has no such entry.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn i386() -> io::Result<()> {
    Err(Errno::ENOSYS.into())
}

/// Calls getpid(2) by its x32 number.
///
/// # Errors
/// Returns the kernel's answer: `ENOSYS` if it has no x32.
pub(crate) fn x32() -> io::Result<()> {
    const X32: i64 = 0x4000_0000; // arch/x86/include/uapi/asm/unistd.h
    // SAFETY: getpid takes no arguments.
    Errno::result(unsafe { libc::syscall(X32 + libc::SYS_getpid) }).map(drop).map_err(Into::into)
}

/// Types a byte into a new terminal of this process (TIOCSTI, ioctl_tty(2)), with and without high bits in the request. It starts a
/// session: call it only in a process that is [`apart`].
///
/// # Errors
/// Returns the failed step with the kernel's answer.
pub(crate) fn push_input() -> io::Result<()> {
    // As wide as the register: the C libraries disagree on the type (include/uapi/asm-generic/ioctls.h).
    const TIOCSTI: u64 = 0x5412;
    let step = |what: &str, errno: Errno| {
        io::Error::new(io::Error::from(errno).kind(), format!("{what}: {errno:?}"))
    };
    // The end of the terminal sends SIGHUP to the leader of its session, which is this process.
    ignore(nix::sys::signal::Signal::SIGHUP)?;
    let no_terminal = |errno| step("no terminal of its own", errno);
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY).map_err(no_terminal)?;
    unlockpt(&master).map_err(no_terminal)?;
    let name = ptsname_r(&master).map_err(no_terminal)?;
    nix::unistd::setsid().map_err(|errno| step("no session of its own", errno))?;
    // Opened without O_NOCTTY, so that it becomes the session's terminal. TIOCSTI on any other needs a capability.
    let slave = open(name.as_str(), OFlag::O_RDWR, Mode::empty()).map_err(no_terminal)?;
    let byte = b'#';
    for request in [TIOCSTI, TIOCSTI | (1 << 32)] {
        // SAFETY: TIOCSTI reads one byte, a live local.
        Errno::result(unsafe {
            libc::syscall(libc::SYS_ioctl, slave.as_raw_fd(), request, &raw const byte)
        })?;
    }
    Ok(())
}

/// A kind of namespace for a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// User namespace.
    User,
    /// Network namespace.
    Net,
    /// Mount namespace.
    Mount,
    /// Pid namespace.
    Pid,
    /// System V and POSIX IPC.
    Ipc,
}

impl Namespace {
    fn flag(self) -> i32 {
        match self {
            Self::User => libc::CLONE_NEWUSER,
            Self::Net => libc::CLONE_NEWNET,
            Self::Mount => libc::CLONE_NEWNS,
            Self::Pid => libc::CLONE_NEWPID,
            Self::Ipc => libc::CLONE_NEWIPC,
        }
    }
}

/// Starts a child in a new namespace by clone(2). The child ends at once.
///
/// # Errors
/// Returns the kernel's answer.
pub(crate) fn clone(namespace: Namespace) -> io::Result<()> {
    let flags = namespace.flag() | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and a stack, this is fork(2); the child makes one system call.
    let child = Errno::result(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    end_of(child)
}

/// Starts a child in a new namespace by clone3(2), whose flags a filter cannot see.
///
/// # Errors
/// Returns the kernel's answer.
pub(crate) fn clone3(namespace: Namespace) -> io::Result<()> {
    // The first version of `struct clone_args` (include/uapi/linux/sched.h): flags, pidfd, child_tid, parent_tid, exit_signal, ...
    let mut args = [0_u64; 8];
    args[0] = u64::from(namespace.flag().cast_unsigned());
    args[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    // SAFETY: as in `clone`; the kernel reads the struct's true size.
    let child = Errno::result(unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) })?;
    end_of(child)
}

/// Ends this process if it is the child, or else waits for the child.
fn end_of(child: i64) -> io::Result<()> {
    if child == 0 {
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: a null status is allowed.
    Errno::result(unsafe {
        libc::waitpid(libc::pid_t::try_from(child).unwrap_or(-1), std::ptr::null_mut(), libc::__WALL)
    })?;
    Ok(())
}

/// Opens a new file system by the newer mount calls (fsopen(2)), and closes it.
///
/// # Errors
/// Returns the kernel's answer.
pub(crate) fn open_file_system() -> io::Result<()> {
    // SAFETY: a C string that lives through the call.
    close(Errno::result(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 1_u32) })?)
}

/// Copies the tree below `/` without the mounts on it (open_tree(2) with OPEN_TREE_CLONE), and closes it.
///
/// # Errors
/// Returns the kernel's answer.
pub(crate) fn copy_tree() -> io::Result<()> {
    const OPEN_TREE_CLONE: u32 = 1;
    // SAFETY: a C string that lives through the call.
    close(Errno::result(unsafe {
        libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), OPEN_TREE_CLONE)
    })?)
}

/// Takes a descriptor out of a process (pidfd_getfd(2)), and closes it.
///
/// # Errors
/// Returns the kernel's answer for the first number that is open there.
pub(crate) fn take_descriptor_of(pid: i32) -> io::Result<()> {
    // SAFETY: takes numbers only.
    let process = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0_u32) })?;
    // SAFETY: a new descriptor that nothing else owns.
    let process = unsafe { OwnedFd::from_raw_fd(RawFd::try_from(process).map_err(io::Error::other)?) };
    let mut last = Errno::EBADF;
    for number in 0..64 {
        // SAFETY: takes numbers only.
        match Errno::result(unsafe {
            libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0_u32)
        }) {
            Ok(taken) => return close(taken),
            Err(Errno::EBADF) => {}
            Err(errno) => last = errno,
        }
    }
    Err(last.into())
}

/// Makes a map for BPF programs (bpf(2)), and closes it.
///
/// # Errors
/// Returns the kernel's answer.
pub(crate) fn bpf() -> io::Result<()> {
    const BPF_MAP_CREATE: u32 = 0;
    // map_type BPF_MAP_TYPE_ARRAY, key_size, value_size, max_entries (include/uapi/linux/bpf.h).
    let mut attributes = [0_u32; 32];
    attributes[..4].copy_from_slice(&[2, 4, 4, 1]);
    // SAFETY: the kernel reads the attributes' true size.
    close(Errno::result(unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, attributes.as_ptr(), size_of_val(&attributes))
    })?)
}

/// Opens a performance counter of this process (perf_event_open(2)), and closes it.
///
/// # Errors
/// Returns the kernel's answer.
pub(crate) fn perf() -> io::Result<()> {
    // The first version of `struct perf_event_attr`, 64 bytes (include/uapi/linux/perf_event.h): type 1 (software), size, config 0
    // (the processor's clock).
    let mut attributes = [0_u32; 16];
    attributes[..2].copy_from_slice(&[1, 64]);
    // SAFETY: the kernel reads the 64 bytes that the struct states.
    close(Errno::result(unsafe {
        libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0_u64)
    })?)
}

/// Opens a userfaultfd(2) of the kind that ordinary users may have, and closes it.
///
/// # Errors
/// Returns the kernel's answer.
pub(crate) fn userfaultfd() -> io::Result<()> {
    const UFFD_USER_MODE_ONLY: i32 = 1;
    // SAFETY: takes numbers only.
    close(Errno::result(unsafe { libc::syscall(libc::SYS_userfaultfd, UFFD_USER_MODE_ONLY) })?)
}

/// The session keyring of a thread and its children, which no namespace separates (keyrings(7)).
const SESSION: i32 = -3;

/// Joins a new session keyring and adds a key that every process with this keyring can read. The key ends with the last such process.
///
/// # Errors
/// Returns the error of keyctl(2) or add_key(2).
pub(crate) fn plant_key(name: &str, secret: &str) -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: i32 = 1;
    const KEYCTL_SETPERM: i32 = 5;
    /// Gives all rights to the possessor and the user (keyctl_setperm(3)).
    const PERMISSIONS: u32 = 0x3f3f_0000;
    let name = CString::new(name)?;
    let none: *const libc::c_char = std::ptr::null();
    // SAFETY: C strings that live through the calls, the secret's true length, and numbers.
    unsafe {
        Errno::result(libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, none))?;
        let key = Errno::result(libc::syscall(
            libc::SYS_add_key,
            c"user".as_ptr(),
            name.as_ptr(),
            secret.as_ptr(),
            secret.len(),
            SESSION,
        ))?;
        Errno::result(libc::syscall(libc::SYS_keyctl, KEYCTL_SETPERM, key, PERMISSIONS))?;
    }
    Ok(())
}

/// Finds such a key in this process's session keyring and reads at most 256 bytes of it.
///
/// # Errors
/// Returns the error of keyctl(2).
pub(crate) fn read_key(name: &str) -> io::Result<String> {
    const KEYCTL_SEARCH: i32 = 10;
    const KEYCTL_READ: i32 = 11;
    let name = CString::new(name)?;
    let mut secret = [0_u8; 256];
    // SAFETY: C strings that live through the calls; the kernel writes at most the buffer's length.
    let count = unsafe {
        let key = Errno::result(libc::syscall(
            libc::SYS_keyctl,
            KEYCTL_SEARCH,
            SESSION,
            c"user".as_ptr(),
            name.as_ptr(),
            0,
        ))?;
        Errno::result(libc::syscall(libc::SYS_keyctl, KEYCTL_READ, key, secret.as_mut_ptr(), secret.len()))?
    };
    let count = usize::try_from(count).unwrap_or(0);
    Ok(String::from_utf8_lossy(secret.get(..count).unwrap_or(&secret)).into_owned())
}

/// Ignores a signal in this process from now on.
///
/// # Errors
/// Returns the error of sigaction(2).
pub(crate) fn ignore(signal: nix::sys::signal::Signal) -> io::Result<()> {
    use nix::sys::signal::{SigHandler, signal as set};
    // SAFETY: SIG_IGN installs no handler.
    unsafe { set(signal, SigHandler::SigIgn) }?;
    Ok(())
}

fn close(fd: i64) -> io::Result<()> {
    // SAFETY: the caller just got this descriptor from the kernel, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).map_err(io::Error::other)?) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test harness has threads; the children here only make system calls and allocate nothing.
    fn forked(limit: Duration, attempt: impl FnOnce() -> Vec<u8>) -> Apart {
        // SAFETY: see above.
        unsafe { super::forked(limit, attempt) }.unwrap()
    }

    #[test]
    fn reports_an_attempt_in_its_own_process_or_its_end() {
        let limit = Duration::from_secs(20);
        assert_eq!(forked(limit, Vec::new), Apart::Said(Vec::new()));
        let killed = forked(limit, || {
            // SAFETY: takes numbers only.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            Vec::new()
        });
        assert_eq!(killed, Apart::Killed(libc::SIGKILL));
        let late = forked(Duration::from_millis(30), || {
            // SAFETY: takes a number.
            unsafe { libc::sleep(60) };
            Vec::new()
        });
        assert_eq!(late, Apart::Late);
    }

    /// A child that writes all the time is killed at its deadline too.
    #[test]
    fn a_deadline_is_one_for_those_who_go_on() {
        let (heard, mut say) = io::pipe().unwrap();
        let talking = std::thread::spawn(move || while say.write_all(&[b'x'; 512]).is_ok() {});
        let began = Instant::now();
        let (said, ended) =
            hear(File::from(OwnedFd::from(heard)), began + Duration::from_millis(100)).unwrap();
        assert!(!ended && said.len() as u64 >= MOST, "{} bytes", said.len());
        assert!(began.elapsed() < Duration::from_secs(10));
        talking.join().unwrap();
    }

    /// The test harness has threads.
    #[test]
    fn threads_are_not_forked() {
        let (ready, go) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || go.recv());
        let refused = apart(Duration::from_secs(1), Vec::new).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EDEADLK));
        drop(ready);
        let _ = other.join();
    }
}

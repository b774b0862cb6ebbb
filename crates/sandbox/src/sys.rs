//! System calls that nix does not wrap, or that return a raw descriptor. They contain no policy.

mod asks;
mod helper;
mod inside;
mod lease;
mod mounts;
mod namespaces;
mod netns;
mod notices;
mod quotas;
mod shared_memory;
mod start;
mod stopped;
pub mod terminal;
mod touches;
mod trees;

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};

use crate::spec::Identity;

pub(crate) use helper::signal_namespace;
pub use inside::{InsideProcess, KeptFiles};
pub use lease::{Lease, has_writer};
pub use mounts::{Bound, InsideMounts, KeptFile, KeptStatus, Mounted};
pub(crate) use namespaces::{BirthStep, sealed_program, start_in_namespaces};
pub use netns::{InsideNetwork, NetStep, Network, OpenNetwork, Packets};
pub use notices::{Next, Notice, Notices};
pub(crate) use start::{Failure, Program, Start, Step, spawn};
pub use stopped::{Rest, StopWatch, StoppedProcesses};
pub use touches::{FileHandle, Touch, Touches};
pub use trees::{HostTree, UserMap};

/// Takes over descriptor `number`, which this program's caller left open for it.
///
/// Returns a duplicate. The number itself stays open and close-on-exec, so that no other code in this process loses a descriptor that
/// it owns.
///
/// # Errors
/// Returns `EBADF` if no descriptor of that number is open.
pub fn take_fd(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: the borrow ends with this function; a number that is not open gives EBADF from fcntl.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let copy = fcntl(borrowed, FcntlArg::F_DUPFD_CLOEXEC(3))?;
    if number > 2 {
        fcntl(borrowed, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    }
    // SAFETY: fcntl returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Raises this process's soft limit of open descriptors to the hard one, since a tunnel takes two. Returns the caller's own soft
/// limit, which the stage gets back.
///
/// # Errors
/// Returns the error of getrlimit(2) or setrlimit(2), and an error if the hard limit is below the 64 that a start takes.
pub fn raise_descriptor_limit() -> io::Result<rlim_t> {
    /// The first result: a second run in one process must not mistake the raised limit for the caller's.
    static SOFT: OnceLock<rlim_t> = OnceLock::new();
    /// A start has up to 50 descriptors open before the first connection.
    const LEAST: rlim_t = 64;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < LEAST {
        return Err(io::Error::other(format!(
            "the hard limit is {hard}, and a start takes {LEAST} (ulimit -Hn)"
        )));
    }
    let soft = *SOFT.get_or_init(|| soft);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(soft)
}

/// Returns this process's soft and hard limit of open descriptors.
///
/// # Errors
/// Returns the error of getrlimit(2).
pub fn descriptor_limit() -> io::Result<(rlim_t, rlim_t)> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?)
}

/// Restores the default action of SIGCHLD. A caller may have ignored the signal, which is inherited; the kernel then reaps children
/// and drops their status (wait(2)).
///
/// # Errors
/// Returns the error of sigaction(2).
pub fn notice_children() -> io::Result<()> {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: the default action runs no code of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Lets a write beyond the file size limit (`ulimit -f`) fail with `EFBIG`: by default, its signal ends the process silently
/// (setrlimit(2)). Executed programs get the default action back.
///
/// # Errors
/// Returns the error of sigaction(2).
pub fn survive_file_limit() -> io::Result<()> {
    use nix::sys::signal::{SigHandler, Signal, signal};
    extern "C" fn nothing(_: libc::c_int) {}
    if !ignores(Signal::SIGXFSZ) {
        // SAFETY: the handler does nothing, which is async-signal-safe (signal-safety(7)).
        unsafe { signal(Signal::SIGXFSZ, SigHandler::Handler(nothing)) }?;
    }
    Ok(())
}

/// Whether this process ignores a signal. False if the kernel does not answer.
#[must_use]
pub fn ignores(signal: nix::sys::signal::Signal) -> bool {
    // SAFETY: a null pointer asks for no change, and `now` is a live local that the call fills.
    unsafe {
        let mut now: libc::sigaction = mem::zeroed();
        libc::sigaction(signal as libc::c_int, std::ptr::null(), &raw mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Stops this process by SIGTSTP's default action, or sends that signal to its whole process group as a terminal does. Call it on the
/// main thread. Returns true once the process is continued. Returns false at once for an orphaned process group, which the kernel
/// does not stop since nobody could continue it (setpgid(2)).
///
/// # Errors
/// Returns the error of sigaction(2), raise(3) or killpg(3).
pub fn suspend_this_process(whole_group: bool) -> io::Result<bool> {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, killpg, raise, sigaction};
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of ours.
    let before = unsafe { sigaction(Signal::SIGTSTP, &default) }?;
    // A thread that stops counts as a voluntary context switch (getrusage(2)); no other call here does.
    let waits = || getrusage(UsageWho::RUSAGE_THREAD).map(|usage| usage.voluntary_context_switches());
    let waited = waits();
    // This thread takes the signal before the call returns, for a group too: the kernel tries the main thread first.
    let raised =
        if whole_group { killpg(nix::unistd::getpgrp(), Signal::SIGTSTP) } else { raise(Signal::SIGTSTP) };
    // SAFETY: this restores the previous action.
    unsafe { sigaction(Signal::SIGTSTP, &before) }?;
    raised?;
    Ok(waits()? > waited?)
}

/// Ends this process by SIGINT's default action, or sends that signal to its whole process group as a terminal does. Returns if the signal was
/// ignored when this process started.
///
/// # Errors
/// Returns the error of sigaction(2), raise(3) or killpg(3).
pub fn end_by_interrupt(whole_group: bool) -> io::Result<()> {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, killpg, raise, sigaction};
    if ignores(Signal::SIGINT) {
        return Ok(());
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of ours.
    unsafe { sigaction(Signal::SIGINT, &default) }?;
    SigSet::from(Signal::SIGINT).thread_unblock()?;
    if whole_group { killpg(nix::unistd::getpgrp(), Signal::SIGINT) } else { raise(Signal::SIGINT) }?;
    Ok(())
}

/// Switches this thread alone, permanently, to another user's credentials without supplementary groups. In the kernel, credentials
/// belong to a thread (credentials(7), "C library/kernel differences"). The C library would change all threads and take a lock, so
/// this makes the system calls directly.
pub(crate) fn take_credentials(uid: u32, gid: u32) -> nix::Result<()> {
    leave_groups()?;
    // SAFETY: these take numbers only.
    unsafe {
        Errno::result(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        Errno::result(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// Whether this thread may signal processes of other users (CAP_KILL, capabilities(7)). False if the kernel does not answer.
fn may_signal_others() -> bool {
    const CAP_KILL: u32 = 5;
    capabilities() & (1 << CAP_KILL) != 0
}

/// Whether this thread may mount (CAP_SYS_ADMIN). False if the kernel does not answer.
pub(crate) fn may_mount() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    capabilities() & (1 << CAP_SYS_ADMIN) != 0
}

/// Whether this thread may inspect other users' open files (CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH, and CAP_SYS_PTRACE). False if
/// the kernel does not answer.
pub(crate) fn may_look_at_others() -> bool {
    const CAP_DAC_OVERRIDE: u32 = 1;
    const CAP_DAC_READ_SEARCH: u32 = 2;
    const CAP_SYS_PTRACE: u32 = 19;
    let has = capabilities();
    has & (1 << CAP_SYS_PTRACE) != 0 && has & (1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH) != 0
}

/// Returns this thread's first 32 effective capabilities, one bit each, or 0 if the kernel does not answer.
fn capabilities() -> u32 {
    capability_sets().map_or(0, |[[effective, ..], _]| effective)
}

/// Names this thread to capget(2) and capset(2): the version `LINUX_CAPABILITY_VERSION_3`, and 0.
const THIS_THREAD: [u32; 2] = [0x2008_0522, 0];

/// Returns this thread's effective, permitted and inheritable sets, of 32 capabilities each. Only makes a system call.
fn capability_sets() -> nix::Result<[[u32; 3]; 2]> {
    let mut sets = [[0; 3]; 2];
    // SAFETY: both have the layout of `struct __user_cap_header_struct` and `__user_cap_data_struct` of that version.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, THIS_THREAD.as_ptr(), sets.as_mut_ptr()) })?;
    Ok(sets)
}

/// Translates a pid of another pid namespace into this process's one (`NS_GET_PID_FROM_PIDNS`, ioctl_nsfs(2); since Linux 6.11).
///
/// # Errors
/// Returns `ENOTTY` on an older kernel, and `ESRCH` if no such process exists.
pub(crate) fn pid_here(namespace: BorrowedFd<'_>, pid: libc::pid_t) -> io::Result<libc::pid_t> {
    let request = nix::request_code_read!(0xb7, 6, mem::size_of::<libc::c_int>());
    // SAFETY: takes a number, although the request code describes a pointer.
    Ok(Errno::result(unsafe { libc::ioctl(namespace.as_raw_fd(), request, pid) })?)
}

/// Drops the supplementary groups of this thread alone.
fn leave_groups() -> nix::Result<()> {
    // SAFETY: reads no memory when the count is 0.
    Errno::result(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) }).map(drop)
}

/// Lets this thread alone open and create files with another user's rights and without supplementary groups, until it ends. Only root
/// may call it.
///
/// # Errors
/// Returns `EPERM` if the change failed: setfsuid(2) reports no failure and changes nothing then. Returns the error of setgroups(2).
pub fn open_files_as(uid: u32, gid: u32) -> io::Result<()> {
    leave_groups()?;
    nix::unistd::setfsgid(gid.into());
    nix::unistd::setfsuid(uid.into());
    // No user has this number, so nothing changes; both calls return the current value.
    let (uid_now, gid_now) = (nix::unistd::setfsuid(u32::MAX.into()), nix::unistd::setfsgid(u32::MAX.into()));
    if (uid_now.as_raw(), gid_now.as_raw()) == (uid, gid) { Ok(()) } else { Err(Errno::EPERM.into()) }
}

/// Sends all of `frame`, with the descriptors `passed` at its first byte.
pub(crate) fn send_with_descriptors(
    socket: BorrowedFd<'_>,
    frame: &[u8],
    passed: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let raw: Vec<RawFd> = passed.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let mut control = &rights[..];
    let mut rest = frame;
    while !rest.is_empty() {
        let slices = [IoSlice::new(rest)];
        match sendmsg(socket.as_raw_fd(), &slices, control, MsgFlags::MSG_NOSIGNAL, None::<&UnixAddr>) {
            Ok(count) => {
                rest = rest.get(count..).unwrap_or_default();
                control = &[];
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// A part of a message.
pub(crate) struct Received {
    /// Bytes in the buffer; 0 at end of file.
    pub(crate) count: usize,
    /// At most two descriptors, which are close-on-exec.
    pub(crate) passed: Vec<OwnedFd>,
    /// The sender's pid, if it was asked for.
    pub(crate) sender: Option<libc::pid_t>,
}

/// Reads once into `buffer`.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    receive_into(socket, buffer, nix::cmsg_space!([RawFd; 2]))
}

/// Reads once into `buffer`, from a socket that names its senders (unix(7), SO_PASSCRED).
pub(crate) fn receive_with_sender(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    receive_into(socket, buffer, nix::cmsg_space!([RawFd; 2], libc::ucred))
}

fn receive_into(socket: BorrowedFd<'_>, buffer: &mut [u8], mut space: Vec<u8>) -> io::Result<Received> {
    let mut slices = [IoSliceMut::new(buffer)];
    let message = loop {
        match recvmsg::<UnixAddr>(
            socket.as_raw_fd(),
            &mut slices,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        ) {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    let mut received = Received { count: message.bytes, passed: Vec::new(), sender: None };
    for part in message.cmsgs()? {
        match part {
            ControlMessageOwned::ScmRights(raw) => {
                // SAFETY: the kernel has just installed these descriptors for us, and nothing else knows their numbers.
                received.passed.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
            ControlMessageOwned::ScmCredentials(sender) => received.sender = Some(sender.pid()),
            _ => {}
        }
    }
    Ok(received)
}

/// Opens the process of that pid (pidfd_open(2)). The caller guarantees that the pid has not been reused.
///
/// # Errors
/// Returns the error of pidfd_open(2): `ESRCH` if no such process exists.
pub fn open_process(pid: libc::pid_t) -> io::Result<OwnedFd> {
    PidFd::open(pid).map(|process| process.0)
}

/// A reference to a process that stays valid when its pid is reused (pidfd_open(2)).
#[derive(Debug)]
pub(crate) struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process of that pid. The caller guarantees that the pid has not been reused.
    pub(crate) fn open(pid: libc::pid_t) -> io::Result<Self> {
        // SAFETY: takes numbers only.
        let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0_u32) })?;
        let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
        // SAFETY: the system call returned a new descriptor that nothing else owns; the kernel makes it close-on-exec.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a signal to this process only.
    pub(crate) fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        self.send(signal, 0)
    }

    /// Sends a signal to the process group that this process, of pid `pid`, leads.
    pub(crate) fn signal_group(&self, pid: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
        const PIDFD_SIGNAL_PROCESS_GROUP: u32 = 1 << 2;
        match self.send(signal, PIDFD_SIGNAL_PROCESS_GROUP) {
            // Before Linux 6.9. The pid could only be reused between these two calls if the process ended, was reaped and the whole
            // pid space was used up once.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.signal(0)?;
                // SAFETY: takes numbers only.
                Errno::result(unsafe { libc::kill(-pid, signal) }).map(drop).map_err(io::Error::from)
            }
            other => other,
        }
    }

    fn send(&self, signal: libc::c_int, flags: u32) -> io::Result<()> {
        let none: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: a null siginfo is allowed; no memory is read.
        Errno::result(unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, none, flags)
        })?;
        Ok(())
    }

    /// Waits for the end of this child and returns its wait status (wait(2)).
    pub(crate) fn reap(&self) -> io::Result<libc::c_int> {
        // SAFETY: the struct consists of numbers.
        let mut ended: libc::siginfo_t = unsafe { mem::zeroed() };
        let number = libc::id_t::try_from(self.0.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        loop {
            // SAFETY: takes numbers and a pointer to a live local. `__WALL`: the child may send no signal at its end.
            let waited =
                unsafe { libc::waitid(libc::P_PIDFD, number, &raw mut ended, libc::WEXITED | libc::__WALL) };
            match Errno::result(waited) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(_) => break,
            }
        }
        // SAFETY: waitid(2) fills this field for a child.
        let status = unsafe { ended.si_status() };
        Ok(if ended.si_code == libc::CLD_EXITED { status << 8 } else { status })
    }

    /// Returns the wait status of the process after it was reaped. `None` if the kernel does not report it (before Linux 6.15).
    pub(crate) fn wait_status(&self) -> Option<i32> {
        /// The first version of `struct pidfd_info` (include/uapi/linux/pidfd.h).
        #[repr(C)]
        #[derive(Default)]
        struct Info {
            mask: u64,
            cgroup: u64,
            ids: [u32; 11],
            exit_code: i32,
        }
        const PIDFD_INFO_EXIT: u64 = 1 << 3;
        let mut info = Info { mask: PIDFD_INFO_EXIT, ..Info::default() };
        let request = nix::request_code_readwrite!(0xff, 11, mem::size_of::<Info>());
        // SAFETY: the request code carries the size of `info`, which the kernel fills.
        let told = Errno::result(unsafe { libc::ioctl(self.0.as_raw_fd(), request, &raw mut info) });
        (told.is_ok() && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Calls `look` with the rights of the sandbox's user: in most containers, root lacks the capabilities that reach into another user's
/// processes (CAP_SYS_RESOURCE, CAP_SYS_PTRACE, CAP_KILL).
///
/// A thread takes the rights and ends with them.
///
/// # Errors
/// Returns the error of `look`, that of clone(2) if no thread can start, and `EPERM` without CAP_SETUID and CAP_SETGID.
pub(crate) fn as_user<T: Send>(
    identity: Identity,
    look: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let Identity::Other { uid, gid } = identity else { return look() };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
            take_credentials(uid, gid)?;
            look()
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
    })
}

/// Lowers a resource limit of a process (prlimit(2)). Raises neither number above the process's hard limit.
pub(crate) fn lower_limit(
    pid: libc::pid_t,
    resource: Resource,
    soft: rlim_t,
    hard: rlim_t,
) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a null pointer asks for no change; `now` is a live local.
    Errno::result(unsafe { libc::prlimit(pid, resource as _, std::ptr::null(), &raw mut now) })?;
    let hard = hard.min(now.rlim_max);
    let new = libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard };
    // SAFETY: `new` is a live local, and a null pointer asks for no answer.
    Errno::result(unsafe { libc::prlimit(pid, resource as _, &raw const new, std::ptr::null_mut()) })?;
    Ok(())
}

/// Lets this thread run before the stage's threads, as far as this process may: real-time scheduling, else the best nice value
/// (sched(7)). The thread has to sleep by itself.
pub fn prefer_this_thread() {
    prefer(0);
}

/// Prefers another thread as [`prefer_this_thread`] does, or this one if the number is 0.
pub(crate) fn prefer(thread: libc::pid_t) {
    // The kernel's `struct sched_param` is one such number.
    let lowest: libc::c_int = 1;
    // SAFETY: these take numbers; `lowest` is a live local. The C library applies its versions to whole processes, so this makes the
    // system calls directly.
    unsafe {
        let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
        if libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const lowest) != 0
            && libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, thread, -20) != 0
        {
            take_short_slices(thread);
        }
    }
}

/// Asks for the shortest time slices, so that the thread runs soon after it is woken. Every user may ask (Linux 6.12,
/// `__setparam_fair` in kernel/sched/syscalls.c).
fn take_short_slices(thread: libc::pid_t) {
    /// The first version of `struct sched_attr` (sched_setattr(2)).
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        /// In nanoseconds, set to the kernel's minimum.
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SIZE: u32 = 48;
    let mut attributes = Attributes::default();
    // SAFETY: a live local of that size.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, SIZE, 0) == 0 {
            (attributes.size, attributes.runtime) = (SIZE, 100_000);
            libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0);
        }
    }
}

/// Whether two processes share one address space (kcmp(2)). False if the kernel does not answer.
pub(crate) fn share_memory(one: libc::pid_t, other: libc::pid_t) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

/// Whether two threads share one table of descriptors (kcmp(2)). False if the kernel does not answer.
pub(crate) fn share_descriptors(one: libc::pid_t, other: libc::pid_t) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) == 0 }
}

/// Returns the kernel's Landlock ABI, or 0 without Landlock (landlock(7)).
pub(crate) fn landlock_abi() -> u32 {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    let none: *const libc::c_void = std::ptr::null();
    // SAFETY: with the VERSION flag, the kernel expects a null pointer and size 0 and accesses no memory.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, LANDLOCK_CREATE_RULESET_VERSION)
    };
    u32::try_from(abi).unwrap_or(0)
}

/// Makes an anonymous file that contains `bytes`, with its offset at the start and a descriptor above the standard ones.
pub(crate) fn file_of(bytes: &[u8]) -> io::Result<File> {
    let fd = nix::sys::memfd::memfd_create(c"exeat", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let file = File::from(fd);
    // This write leaves the file offset at the start.
    file.write_all_at(bytes, 0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::backend::{SandboxEvent, change};

    /// B11: a host program's own signals do not delay the check of the mounts.
    #[test]
    fn b11_signals_do_not_put_off_a_look() {
        use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
        extern "C" fn nothing(_: libc::c_int) {}
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing. No other test uses this signal.
        unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
        let (table, _open) = io::pipe().unwrap();
        let process = PidFd::open(std::process::id().cast_signed()).unwrap();
        // SAFETY: takes nothing.
        let (waiting, is_over) = (unsafe { libc::pthread_self() }, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let by = Instant::now() + Duration::from_secs(10);
                while !is_over.load(Ordering::Relaxed) && Instant::now() < by {
                    // SAFETY: that thread waits for this one.
                    assert_eq!(unsafe { libc::pthread_kill(waiting, libc::SIGURG) }, 0);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let start = Instant::now();
            let seen =
                change(table.as_fd(), None, process.as_fd(), start + Duration::from_millis(500)).unwrap();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(seen, SandboxEvent::None);
            let took = start.elapsed();
            assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(5), "{took:?}");
        });
    }

    /// B14: files made for a user are made with that user's rights, or not at all.
    #[test]
    fn b14_a_thread_opens_files_as_another_user_or_says_no() {
        let is_root = nix::unistd::geteuid().is_root();
        let path = std::env::temp_dir().join(format!("exeat-as-another-{}", std::process::id()));
        let made = std::thread::scope(|scope| {
            let made = || -> io::Result<String> {
                open_files_as(12345, 12346)?;
                File::create(&path)?;
                let task = format!("/proc/self/task/{}/status", nix::unistd::gettid());
                std::fs::read_to_string(task)
            };
            scope.spawn(made).join().unwrap()
        });
        let Ok(status) = made else { return assert!(!is_root, "{made:?}") };
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).map(str::trim);
        let about = std::fs::metadata(&path).unwrap();
        assert_eq!((about.uid(), about.gid(), groups), (12345, 12346, Some("")));
        // Other threads keep their own rights.
        std::fs::remove_file(&path).unwrap();
        assert!(is_root);
    }

    /// B10: the user does not keep root's groups.
    #[test]
    #[ignore = "needs root"]
    fn b10_a_thread_that_becomes_another_user_keeps_no_groups() {
        let status = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let groups: [libc::gid_t; 2] = [12_347, 12_348];
                // SAFETY: the kernel reads two numbers of a live local; the change is for this thread alone.
                Errno::result(unsafe { libc::syscall(libc::SYS_setgroups, 2, groups.as_ptr()) }).unwrap();
                as_user(Identity::Other { uid: 12_345, gid: 12_346 }, || {
                    std::fs::read_to_string(format!("/proc/self/task/{}/status", nix::unistd::gettid()))
                })
            });
            thread.join().unwrap().unwrap()
        });
        let of =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        assert_eq!(of("Groups:"), "");
        assert_eq!((of("Uid:"), of("Gid:")), (["12345"; 4].join("\t"), ["12346"; 4].join("\t")));
    }
}

//! System calls that nix does not wrap, or whose result is a raw descriptor. No policy here.

pub mod attempt;
mod helper;
mod inside;
mod lease;
mod mounts;
mod netns;
mod notices;
mod quotas;
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
pub use lease::Lease;
pub use mounts::{Bound, InsideMounts, Kept, KeptStatus, Mounted};
pub use netns::{Inside as InsideNetwork, NetStep, Network, Open as OpenNetwork, Packets};
pub use notices::{Next, Notice, Notices};
pub(crate) use start::{Failure, Program, Start, Step, spawn};
pub use stopped::{Processes as StoppedProcesses, Rest, StopWatch};
pub use touches::{FileHandle, Touch, Touches};
pub(crate) use trees::Places;
pub use trees::{Tree, UserMap};

/// Takes over descriptor `number`, which the caller's caller left open for us.
///
/// The number itself stays open and close-on-exec: what is returned is a duplicate, so that nothing else in the process
/// can be robbed of a descriptor that it owns.
///
/// # Errors
/// `EBADF` when no descriptor of that number is open.
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

/// Raises this process's soft limit of open descriptors to the hard one: a tunnel takes two. What is returned is the
/// caller's own soft limit, which the stage gets back.
///
/// # Errors
/// What getrlimit(2) and setrlimit(2) say, and when the hard limit is below the 64 that a start takes.
pub fn raise_descriptor_limit() -> io::Result<rlim_t> {
    /// The first answer: a second run in one process must not take the raised limit for the caller's.
    static SOFT: OnceLock<rlim_t> = OnceLock::new();
    /// A start has up to 50 open, before the first connection.
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

/// This process's soft and hard limit of open descriptors.
///
/// # Errors
/// What getrlimit(2) says.
pub fn descriptor_limit() -> io::Result<(rlim_t, rlim_t)> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?)
}

/// Makes the end of child processes visible again: a caller may have SIGCHLD ignored, which is inherited, and then the
/// kernel reaps children unasked and nobody learns their status (wait(2)).
///
/// # Errors
/// What sigaction(2) says.
pub fn notice_children() -> io::Result<()> {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: the default action runs no code of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Has a write beyond the limit on the size of files (`ulimit -f`) fail with `EFBIG`: the default action of its signal ends
/// the process without a word (setrlimit(2)). A program that is executed has the default again.
///
/// # Errors
/// What sigaction(2) says.
pub fn survive_file_limit() -> io::Result<()> {
    use nix::sys::signal::{SigHandler, Signal, signal};
    extern "C" fn nothing(_: libc::c_int) {}
    if !ignores(Signal::SIGXFSZ) {
        // SAFETY: the handler does nothing, which is async-signal-safe (signal-safety(7)).
        unsafe { signal(Signal::SIGXFSZ, SigHandler::Handler(nothing)) }?;
    }
    Ok(())
}

/// Whether this process ignores a signal. No where the kernel does not tell.
#[must_use]
pub fn ignores(signal: nix::sys::signal::Signal) -> bool {
    // SAFETY: a null pointer asks for no change, and `now` is a live local that the call fills.
    unsafe {
        let mut now: libc::sigaction = mem::zeroed();
        libc::sigaction(signal as libc::c_int, std::ptr::null(), &raw mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Stops this process as SIGTSTP does by default, whatever it does here, or sends that signal to its whole process group, as a
/// terminal does. To be called by the main thread. Returns true when the process is continued, or false at once where its process
/// group is orphaned: nobody could continue it then, and the kernel does not stop it (setpgid(2)).
///
/// # Errors
/// What sigaction(2), raise(3) and killpg(3) say.
pub fn suspend_this_process(whole_group: bool) -> io::Result<bool> {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, killpg, raise, sigaction};
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of ours.
    let before = unsafe { sigaction(Signal::SIGTSTP, &default) }?;
    // A thread that stops gives the processor up of its own will (getrusage(2)); nothing else that is done here does.
    let waits = || getrusage(UsageWho::RUSAGE_THREAD).map(|usage| usage.voluntary_context_switches());
    let waited = waits();
    // This thread takes it before the call returns: for a group as well, since the kernel asks the main thread first.
    let raised =
        if whole_group { killpg(nix::unistd::getpgrp(), Signal::SIGTSTP) } else { raise(Signal::SIGTSTP) };
    // SAFETY: what was there before is put back.
    unsafe { sigaction(Signal::SIGTSTP, &before) }?;
    raised?;
    Ok(waits()? > waited?)
}

/// Takes another user's credentials, for good, and no groups besides: in this thread alone. To the kernel credentials are a
/// thread's own (credentials(7), "C library/kernel differences"); the C library, which has them changed in all threads and takes
/// a lock for it, is not asked.
pub(crate) fn take_credentials(uid: u32, gid: u32) -> nix::Result<()> {
    leave_groups()?;
    // SAFETY: these take numbers only.
    unsafe {
        Errno::result(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        Errno::result(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// Whether this thread may signal processes of other users (CAP_KILL, capabilities(7)). No where the kernel does not tell.
fn may_signal_others() -> bool {
    const CAP_KILL: u32 = 5;
    capabilities() & (1 << CAP_KILL) != 0
}

/// Whether this thread may see what processes of other users have open (CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH, and
/// CAP_SYS_PTRACE). No where the kernel does not tell.
pub(crate) fn may_look_at_others() -> bool {
    const CAP_DAC_OVERRIDE: u32 = 1;
    const CAP_DAC_READ_SEARCH: u32 = 2;
    const CAP_SYS_PTRACE: u32 = 19;
    let has = capabilities();
    has & (1 << CAP_SYS_PTRACE) != 0 && has & (1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH) != 0
}

/// This thread's first 32 effective capabilities, a bit each. None where the kernel does not tell.
fn capabilities() -> u32 {
    const LINUX_CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    let this_thread = [LINUX_CAPABILITY_VERSION_3, 0];
    // Effective, permitted and inheritable ones, of 32 capabilities each time.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: the two are laid out as the kernel's `struct __user_cap_header_struct` and `__user_cap_data_struct` of that version, and
    // live here.
    let told = unsafe { libc::syscall(libc::SYS_capget, this_thread.as_ptr(), sets.as_mut_ptr()) };
    let [[effective, ..], _] = sets;
    if told == 0 { effective } else { 0 }
}

/// The number, in this process's pid namespace, of the process that has this number in that one (`NS_GET_PID_FROM_PIDNS`,
/// ioctl_nsfs(2); since Linux 6.11).
///
/// # Errors
/// `ENOTTY` before that, `ESRCH` where there is none.
pub(crate) fn pid_here(namespace: BorrowedFd<'_>, pid: libc::pid_t) -> io::Result<libc::pid_t> {
    let request = nix::request_code_read!(0xb7, 6, mem::size_of::<libc::c_int>());
    // SAFETY: takes a number, in spite of how the request is written.
    Ok(Errno::result(unsafe { libc::ioctl(namespace.as_raw_fd(), request, pid) })?)
}

/// Gives up supplementary groups: in this thread alone, as above.
fn leave_groups() -> nix::Result<()> {
    // SAFETY: reads no memory when the count is 0.
    Errno::result(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) }).map(drop)
}

/// Lets this thread, and no other, open and make files with another user's rights and no groups besides: for as long as it lives.
/// Only root may.
///
/// # Errors
/// `EPERM` where it has not become that user: setfsuid(2) tells no failure, and leaves the thread as it was. What setgroups(2)
/// says.
pub fn open_files_as(uid: u32, gid: u32) -> io::Result<()> {
    leave_groups()?;
    nix::unistd::setfsgid(gid.into());
    nix::unistd::setfsuid(uid.into());
    // Nobody has this number, so nothing is changed; both return what was in force.
    let (uid_now, gid_now) = (nix::unistd::setfsuid(u32::MAX.into()), nix::unistd::setfsgid(u32::MAX.into()));
    if (uid_now.as_raw(), gid_now.as_raw()) == (uid, gid) { Ok(()) } else { Err(Errno::EPERM.into()) }
}

/// Sends all of `frame`, with `passed` beside its first byte.
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

/// Reads once into `buffer`; at most two descriptors may come along, close-on-exec. End of file is 0 bytes.
pub(crate) fn receive_with_descriptors(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; 2]);
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
    let mut passed = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: the kernel has just installed these descriptors for us, and nothing else knows their numbers.
            passed.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, passed))
}

/// Opens the process of that number (pidfd_open(2)). The caller makes sure that it is the one that is meant.
///
/// # Errors
/// What pidfd_open(2) says: `ESRCH` where there is none.
pub fn open_process(pid: libc::pid_t) -> io::Result<OwnedFd> {
    PidFd::open(pid).map(|process| process.0)
}

/// A reference to a process that does not pass to another one with its number (pidfd_open(2)).
#[derive(Debug)]
pub(crate) struct PidFd(OwnedFd);

impl PidFd {
    /// The process of that pid. The caller makes sure that it still is the one that is meant.
    pub(crate) fn open(pid: libc::pid_t) -> io::Result<Self> {
        // SAFETY: takes numbers only.
        let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0_u32) })?;
        let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
        // SAFETY: the system call returned a new descriptor that nothing else owns; the kernel makes it close-on-exec.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a signal to the process, and to nothing else.
    pub(crate) fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        self.send(signal, 0)
    }

    /// Sends a signal to the process group that the process, of this pid, leads.
    pub(crate) fn signal_group(&self, pid: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
        const PIDFD_SIGNAL_PROCESS_GROUP: u32 = 1 << 2;
        match self.send(signal, PIDFD_SIGNAL_PROCESS_GROUP) {
            // Before Linux 6.9. The number is the process's for as long as it can be signalled; it could end, be reaped and
            // have its number given away between these two calls, which takes a whole round of the pid space.
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

    /// The wait status of the process, once it has ended and was reaped; `None` where the kernel does not tell (before
    /// Linux 6.15).
    pub(crate) fn wait_status(&self) -> Option<i32> {
        /// `struct pidfd_info` in its first size (include/uapi/linux/pidfd.h).
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

/// Calls `look` with the rights of the user that the sandbox belongs to: root may lack the capabilities that reach into
/// another user's processes (CAP_SYS_RESOURCE, CAP_SYS_PTRACE, CAP_KILL), as in most containers.
///
/// A thread takes them and ends with them.
///
/// # Errors
/// What `look` says; what clone(2) says where no thread can be had; `EPERM` without CAP_SETUID and CAP_SETGID.
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

/// Lowers a resource limit of a process (prlimit(2)). Neither number is raised above the process's hard limit.
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

/// Lets this thread run before the stage's, however many there are, as far as this process may: real-time scheduling, else
/// the best nice value (sched(7)). It has to sleep by itself.
pub fn prefer_this_thread() {
    prefer(0);
}

/// As [`prefer_this_thread`], for another thread, or for this one with the number 0.
pub(crate) fn prefer(thread: libc::pid_t) {
    // A `struct sched_param` is this to the kernel.
    let lowest: libc::c_int = 1;
    // SAFETY: these take numbers; `lowest` is a live local. The C library is not asked: to it these are matters of a
    // process.
    unsafe {
        let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
        if libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const lowest) != 0
            && libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, thread, -20) != 0
        {
            take_short_slices(thread);
        }
    }
}

/// Asks for the shortest time slices: a thread that has them runs soon after it is woken. Everybody may ask (Linux 6.12,
/// `__setparam_fair` in kernel/sched/syscalls.c).
fn take_short_slices(thread: libc::pid_t) {
    /// `struct sched_attr` as it was at first (sched_setattr(2)).
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        /// Nanoseconds: the least that the kernel takes.
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

/// Whether two processes run in one address space (kcmp(2)). No where the kernel does not tell.
pub(crate) fn share_memory(one: libc::pid_t, other: libc::pid_t) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

/// The kernel's Landlock ABI, 0 where it has none (landlock(7)).
pub(crate) fn landlock_abi() -> u32 {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    let none: *const libc::c_void = std::ptr::null();
    // SAFETY: with the VERSION flag the kernel wants a null pointer and size 0 and touches no memory.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, LANDLOCK_CREATE_RULESET_VERSION)
    };
    u32::try_from(abi).unwrap_or(0)
}

/// An anonymous file that holds `bytes`, read from its start, under a descriptor above the standard ones.
pub(crate) fn file_of(bytes: &[u8]) -> io::Result<File> {
    let fd = nix::sys::memfd::memfd_create(c"exeat", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let file = File::from(fd);
    // Leaves the place where reading begins.
    file.write_all_at(bytes, 0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::backend::{Change, change};

    /// B11: a host program's own signals do not put off the look at the mounts.
    #[test]
    fn b11_signals_do_not_put_off_a_look() {
        use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
        extern "C" fn nothing(_: libc::c_int) {}
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing. No other test has this signal.
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
            assert_eq!(seen, Change::None);
            let took = start.elapsed();
            assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(5), "{took:?}");
        });
    }

    /// B14: what is made for a user is made with that user's rights, or not at all.
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
        // Another thread has kept its own.
        std::fs::remove_file(&path).unwrap();
        assert!(is_root);
    }

    /// B10: what root's groups may do is not that user's.
    #[test]
    #[ignore = "needs root"]
    fn b10_a_thread_that_becomes_another_user_keeps_no_groups() {
        let status = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let groups: [libc::gid_t; 2] = [12_347, 12_348];
                // SAFETY: two numbers of a live local are read; it is for this thread alone.
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

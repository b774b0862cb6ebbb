//! Processes, what they inherit, and terminals.

use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::ptr;

use exeat_contract::TerminalSettings;

use super::call::{Errno, Number, Result, syscall};
use super::descriptor::{Descriptor, O_CLOEXEC, O_NOCTTY, O_RDWR};
use super::{SIGNAL_SET, address, address_mut};

/// A child's pid.
pub(crate) struct Pid(usize);

/// Forks a program that has one thread (fork(2)). Returns the child's pid, or `None` in the child.
pub(crate) fn fork() -> Result<Option<Pid>> {
    /// The kernel signals the end of the child to its parent (clone(2)).
    const SIGCHLD: usize = 17;
    // SAFETY: with SIGCHLD alone and no stack, clone(2) is fork(2). stage2 never starts a thread, so the child may do everything that
    // the parent may.
    let child = unsafe { syscall(Number::Clone, [SIGCHLD, 0, 0, 0, 0, 0]) }?;
    Ok((child != 0).then_some(Pid(child)))
}

impl Pid {
    /// Whether it is this pid.
    pub(crate) fn is(&self, pid: usize) -> bool {
        self.0 == pid
    }
}

/// Returns the pid of the parent, which is another one after that has ended (getppid(2)).
pub(crate) fn parent() -> usize {
    // SAFETY: takes nothing. The call always succeeds.
    unsafe { syscall(Number::Getppid, [0; 6]) }.unwrap_or(0)
}

/// Waits for the end of a child.
pub(crate) fn wait_for(child: &Pid) -> Result<()> {
    // SAFETY: with null pointers the kernel writes nothing.
    unsafe { syscall(Number::Wait4, [child.0, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Ends the process without running destructors.
pub(crate) fn exit_now(status: i32) -> ! {
    loop {
        // SAFETY: exit_group(2) only ends the process.
        let _ = unsafe { syscall(Number::ExitGroup, [status.cast_unsigned() as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Becomes the program at `path`, or returns the error.
pub(crate) fn execve(path: &CStr, argv: &[impl AsRef<CStr>], env: &[impl AsRef<CStr>]) -> Errno {
    let (argv, env) = (pointers(argv), pointers(env));
    let lists = [argv.as_ptr().expose_provenance(), env.as_ptr().expose_provenance()];
    // SAFETY: `path` ends with NUL, and so does each string of the two lists, which end with a null pointer. All of them live across
    // the call.
    let answer =
        unsafe { syscall(Number::Execve, [path.as_ptr().expose_provenance(), lists[0], lists[1], 0, 0, 0]) };
    answer.err().unwrap_or(Errno::NOEXEC)
}

fn pointers(strings: &[impl AsRef<CStr>]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ref().as_ptr()).chain([ptr::null()]).collect()
}

/// Enters a directory.
pub(crate) fn chdir(path: &CStr) -> Result<()> {
    // SAFETY: `path` ends with NUL and lives across the call.
    unsafe { syscall(Number::Chdir, [path.as_ptr().expose_provenance(), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Makes this process the leader of a new session (setsid(2)).
pub(crate) fn lead_session() -> Result<()> {
    // SAFETY: takes nothing.
    unsafe { syscall(Number::Setsid, [0; 6]) }.map(drop)
}

/// Hides this process from other processes of its user (PR_SET_DUMPABLE(2const)).
pub(crate) fn forbid_dumps() -> Result<()> {
    const PR_SET_DUMPABLE: usize = 4;
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Prctl, [PR_SET_DUMPABLE, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Gives up privileges that a program file would add (PR_SET_NO_NEW_PRIVS(2const)).
pub(crate) fn forbid_new_privileges() -> Result<()> {
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Prctl, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]) }.map(drop)
}

/// A resource whose use is limited (getrlimit(2)).
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Resource {
    CoreFile = 4,
    Descriptors = 7,
}

/// `struct rlimit64`. `u64::MAX` means unlimited.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Limit {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

pub(crate) fn limit(resource: Resource) -> Result<Limit> {
    let mut limit = Limit { soft: 0, hard: 0 };
    let arguments = [0, resource as usize, 0, address_mut(&mut limit), 0, 0];
    // SAFETY: the kernel writes one rlimit64 through the pointer.
    unsafe { syscall(Number::Prlimit64, arguments) }?;
    Ok(limit)
}

pub(crate) fn set_limit(resource: Resource, limit: Limit) -> Result<()> {
    let arguments = [0, resource as usize, address(&limit), 0, 0, 0];
    // SAFETY: the kernel reads one rlimit64 through the pointer.
    unsafe { syscall(Number::Prlimit64, arguments) }.map(drop)
}

/// Gives SIGPIPE its default action.
pub(crate) fn restore_sigpipe() -> Result<()> {
    const SIGPIPE: u32 = 13;
    restore_default(SIGPIPE)
}

/// Gives a signal its default action.
pub(super) fn restore_default(signal: u32) -> Result<()> {
    // The kernel's `struct sigaction` in zeros: SIG_DFL is 0 (handler, flags, restorer, mask).
    let action: [u64; 4] = [0; 4];
    // SAFETY: the pointer is to a live struct with the kernel's layout, and the default action runs no code of ours.
    unsafe { syscall(Number::RtSigaction, [signal as usize, address(&action), 0, SIGNAL_SET, 0, 0]) }
        .map(drop)
}

/// Unblocks every signal (rt_sigprocmask(2)).
pub(crate) fn unblock_signals() -> Result<()> {
    const SIG_SETMASK: usize = 2;
    let none = 0_u64;
    // SAFETY: the pointer is to a live signal set of the size given.
    unsafe { syscall(Number::RtSigprocmask, [SIG_SETMASK, address(&none), 0, SIGNAL_SET, 0, 0]) }.map(drop)
}

/// Makes a terminal on the sandbox's devpts with these modes and this size (rows and columns, and both in pixels). Returns its master
/// and slave.
pub(crate) fn open_terminal(settings: &TerminalSettings, size: [u16; 4]) -> Result<(Descriptor, Descriptor)> {
    const TIOCSPTLCK: usize = 0x4004_5431;
    const TIOCGPTPEER: usize = 0x5441;
    const TCSETS: usize = 0x5402;
    const TIOCSWINSZ: usize = 0x5414;
    const FLAGS: usize = O_RDWR | O_NOCTTY | O_CLOEXEC;

    let master = super::descriptor::open(c"/dev/ptmx", FLAGS)?;
    // SAFETY: TIOCSPTLCK reads one int: 0 unlocks the slave.
    unsafe { control(&master, TIOCSPTLCK, address(&0_i32)) }?;
    // SAFETY: TIOCGPTPEER takes flags and returns a new descriptor.
    let slave = unsafe { Descriptor::from_answer(control(&master, TIOCGPTPEER, FLAGS)?) }?;
    // SAFETY: TCSETS reads one `struct termios` of the kernel byte by byte, and it has this size.
    unsafe { control(&slave, TCSETS, address(settings)) }?;
    // SAFETY: TIOCSWINSZ reads one `struct winsize`, which consists of four such numbers.
    unsafe { control(&slave, TIOCSWINSZ, address(&size)) }?;
    Ok((master, slave))
}

/// Makes a terminal the controlling one of this process's session (ioctl_tty(2), TIOCSCTTY).
pub(crate) fn control_terminal(slave: &Descriptor) -> Result<()> {
    const TIOCSCTTY: usize = 0x540e;
    // SAFETY: takes numbers.
    unsafe { control(slave, TIOCSCTTY, 0) }.map(drop)
}

/// Calls ioctl(2).
///
/// # Safety
/// `argument` must be valid for `request`.
unsafe fn control(fd: &Descriptor, request: usize, argument: usize) -> Result<usize> {
    // SAFETY: the caller guarantees it.
    unsafe { syscall(Number::Ioctl, [fd.argument(), request, argument, 0, 0, 0]) }
}

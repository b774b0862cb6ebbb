//! System calls that rustix does not wrap, or keeps for C libraries. No policy here.
//!
//! What takes the place of a C library is below: [`heap`], and `start` in a freestanding build.

mod heap;
#[cfg(freestanding)]
mod start;

use alloc::vec::Vec;
use core::arch::asm;
use core::ffi::{CStr, c_char};
use core::mem;
use core::ptr;

use exeat_contract::TerminalSettings;
use linux_raw_sys::general as number;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Pid;

/// A system call of up to five arguments; what it returns when it succeeds.
///
/// # Safety
/// What the call does with these arguments must be sound, as for any use of syscall(2).
unsafe fn syscall(number: u32, arguments: [usize; 5]) -> rustix::io::Result<usize> {
    let [a, b, c, d, e] = arguments;
    let answer: isize;
    // SAFETY: the register use is that of syscall(2) for the architecture; the rest is the caller's promise. The kernel
    // may write memory that the arguments name, so this is neither `nomem` nor `readonly`.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as usize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
            lateout("rcx") _, lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") a => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e,
            options(nostack, preserves_flags),
        );
    }
    // The last page of numbers is errors (syscall(2), IS_ERR_VALUE in include/linux/err.h).
    match i32::try_from(answer) {
        Ok(error @ -4095..=-1) => Err(Errno::from_raw_os_error(-error)),
        _ => Ok(answer.cast_unsigned()),
    }
}

/// A descriptor as an argument: the kernel reads the low half alone.
fn argument(fd: &impl AsFd) -> usize {
    fd.as_fd().as_raw_fd().cast_unsigned() as usize
}

/// Standard input, output and error.
pub(crate) fn standard_streams() -> [BorrowedFd<'static>; 3] {
    // SAFETY: whatever is open under these numbers is replaced now and then, and never closed. The one caller before all of
    // them are sure to be open asks just that.
    [0, 1, 2].map(|number| unsafe { BorrowedFd::borrow_raw(number) })
}

/// fork(2) of a program that has one thread: the child's pid, and nothing in the child.
pub(crate) fn fork() -> rustix::io::Result<Option<Pid>> {
    /// The end of the child is told to its parent (clone(2)).
    const SIGCHLD: usize = 17;
    // SAFETY: with SIGCHLD alone and no stack clone(2) is fork(2). stage2 never starts a thread, so the child may do all
    // that the parent may.
    let child = unsafe { syscall(number::__NR_clone, [SIGCHLD, 0, 0, 0, 0]) }?;
    Ok(i32::try_from(child).ok().and_then(Pid::from_raw))
}

/// Ends the process without running destructors.
pub(crate) fn exit_now(status: i32) -> ! {
    loop {
        // SAFETY: exit_group(2) only ends the process.
        let _ = unsafe { syscall(number::__NR_exit_group, [status.cast_unsigned() as usize, 0, 0, 0, 0]) };
    }
}

/// Becomes the program at `path`, or says why not.
pub(crate) fn execve(path: &CStr, argv: &[impl AsRef<CStr>], env: &[impl AsRef<CStr>]) -> Errno {
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: `path` ends with NUL, and so does each string of the two lists, which end with a null pointer. All of them
    // live across the call.
    let answer = unsafe {
        syscall(number::__NR_execve, [path.as_ptr().addr(), argv.as_ptr().addr(), env.as_ptr().addr(), 0, 0])
    };
    answer.err().unwrap_or(Errno::NOEXEC)
}

fn pointers(strings: &[impl AsRef<CStr>]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ref().as_ptr()).chain([ptr::null()]).collect()
}

/// The interface is up (netdevice(7)).
pub(crate) const IFF_UP: i16 = 1;

/// `struct ifreq` (netdevice(7)): a name that ends with NUL, and a union of 24 bytes that begins with the flags.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

impl InterfaceRequest {
    fn new(name: &str, flags: i16) -> rustix::io::Result<Self> {
        let mut request = Self { name: [0; 16], flags, rest: [0; 22] };
        // One byte stays zero: the name ends with NUL.
        if name.len() >= request.name.len() {
            return Err(Errno::NAMETOOLONG);
        }
        request.name.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte);
        Ok(request)
    }
}

/// The flags of an interface (netdevice(7), SIOCGIFFLAGS).
pub(crate) fn interface_flags(socket: &OwnedFd, name: &str) -> rustix::io::Result<i16> {
    const SIOCGIFFLAGS: usize = 0x8913;
    let mut request = InterfaceRequest::new(name, 0)?;
    let place = (&raw mut request).expose_provenance();
    // SAFETY: SIOCGIFFLAGS reads and writes one ifreq through the pointer, which is valid for the call.
    unsafe { syscall(number::__NR_ioctl, [argument(socket), SIOCGIFFLAGS, place, 0, 0]) }?;
    Ok(request.flags)
}

/// Sets the flags of an interface (netdevice(7), SIOCSIFFLAGS).
pub(crate) fn set_interface_flags(socket: &OwnedFd, name: &str, flags: i16) -> rustix::io::Result<()> {
    const SIOCSIFFLAGS: usize = 0x8914;
    let request = InterfaceRequest::new(name, flags)?;
    let place = (&raw const request).expose_provenance();
    // SAFETY: SIOCSIFFLAGS reads one ifreq through the pointer, which is valid for the call.
    unsafe { syscall(number::__NR_ioctl, [argument(socket), SIOCSIFFLAGS, place, 0, 0]) }.map(drop)
}

/// Sets the modes of a terminal, and its size (ioctl_tty(2)): rows, columns, and both in pixels.
pub(crate) fn set_terminal(
    terminal: &OwnedFd,
    settings: &TerminalSettings,
    size: [u16; 4],
) -> rustix::io::Result<()> {
    const TCSETS: usize = 0x5402;
    const TIOCSWINSZ: usize = 0x5414;
    let place = settings.as_ptr().expose_provenance();
    // SAFETY: TCSETS reads one `struct termios` of the kernel, which has this size, and copies it byte by byte.
    unsafe { syscall(number::__NR_ioctl, [argument(terminal), TCSETS, place, 0, 0]) }?;
    let place = (&raw const size).expose_provenance();
    // SAFETY: TIOCSWINSZ reads one `struct winsize`, which is four of these numbers.
    unsafe { syscall(number::__NR_ioctl, [argument(terminal), TIOCSWINSZ, place, 0, 0]) }.map(drop)
}

/// Marks every descriptor from `first` on close-on-exec (close_range(2), Linux 5.11).
pub(crate) fn close_on_exec_from(first: u32) -> rustix::io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 1 << 2;
    close_range(first, u32::MAX, CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor that is not in `kept`.
pub(crate) fn close_all_except(kept: &[RawFd]) -> rustix::io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    let mut first = 0;
    for fd in kept {
        if let Some(last) = fd.checked_sub(1).filter(|last| *last >= first) {
            close_range(first, last, 0)?;
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX, 0)
}

fn close_range(first: u32, last: u32, flags: u32) -> rustix::io::Result<()> {
    let arguments = [first as usize, last as usize, flags as usize, 0, 0];
    // SAFETY: takes numbers only. Closing is sound because callers give up, or never owned, what they close.
    unsafe { syscall(number::__NR_close_range, arguments) }.map(drop)
}

/// Bytes of the kernel's signal set (rt_sigaction(2), "C library/kernel differences").
const SIGNAL_SET: usize = mem::size_of::<u64>();

/// Gives SIGPIPE its default action.
pub(crate) fn restore_sigpipe() -> rustix::io::Result<()> {
    const SIGPIPE: usize = 13;
    // `struct sigaction` of the kernel, with nothing set: SIG_DFL is 0 (handler, flags, restorer, mask).
    let action: [u64; 4] = [0; 4];
    let action = (&raw const action).expose_provenance();
    // SAFETY: the pointer is to a live struct of the kernel's layout, and the default action runs no code of ours.
    unsafe { syscall(number::__NR_rt_sigaction, [SIGPIPE, action, 0, SIGNAL_SET, 0]) }.map(drop)
}

/// Lets every signal through (rt_sigprocmask(2)).
pub(crate) fn unblock_signals() -> rustix::io::Result<()> {
    const SIG_SETMASK: usize = 2;
    let none = 0_u64;
    let set = (&raw const none).expose_provenance();
    // SAFETY: the pointer is to a live signal set of the size given.
    unsafe { syscall(number::__NR_rt_sigprocmask, [SIG_SETMASK, set, 0, SIGNAL_SET, 0]) }.map(drop)
}

/// `struct landlock_ruleset_attr` of ABI 6 (include/uapi/linux/landlock.h). An older kernel takes the longer struct when
/// the rest of it is zero.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_net_port_attr`.
#[repr(C)]
struct NetPortAttr {
    allowed_access: u64,
    port: u64,
}

/// `struct landlock_path_beneath_attr`, packed as in the kernel's header.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

const LANDLOCK_CREATE_RULESET_VERSION: usize = 1;
const LANDLOCK_RULE_PATH_BENEATH: usize = 1;
const LANDLOCK_ACCESS_FS_WRITE_FILE: u64 = 1 << 1;
const LANDLOCK_ACCESS_FS_READ_FILE: u64 = 1 << 2;
/// EXECUTE to MAKE_SYM: the rights of ABI 1.
const LANDLOCK_ACCESS_FS_ABI_1: u64 = (1 << 13) - 1;
const LANDLOCK_ACCESS_FS_REFER: u64 = 1 << 13;
const LANDLOCK_ACCESS_FS_TRUNCATE: u64 = 1 << 14;
const LANDLOCK_RULE_NET_PORT: usize = 2;
const LANDLOCK_ACCESS_NET_BIND_TCP: u64 = 1 << 0;
const LANDLOCK_ACCESS_NET_CONNECT_TCP: u64 = 1 << 1;
const LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
const LANDLOCK_SCOPE_SIGNAL: u64 = 1 << 1;

/// The kernel's Landlock ABI. `ENOSYS` or `EOPNOTSUPP` where there is none.
pub(crate) fn landlock_abi() -> rustix::io::Result<u32> {
    let arguments = [0, 0, LANDLOCK_CREATE_RULESET_VERSION, 0, 0];
    // SAFETY: with the VERSION flag the kernel wants a null pointer and size 0 and touches no memory.
    let abi = unsafe { syscall(number::__NR_landlock_create_ruleset, arguments) }?;
    u32::try_from(abi).map_err(|_| Errno::OVERFLOW)
}

/// What a stream that was opened with these flags may be opened for again.
pub(crate) fn stream_rights(flags: OFlags) -> u64 {
    let truncate = if flags.contains(OFlags::APPEND) { 0 } else { LANDLOCK_ACCESS_FS_TRUNCATE };
    match flags & OFlags::ACCMODE {
        OFlags::RDONLY => LANDLOCK_ACCESS_FS_READ_FILE,
        OFlags::WRONLY => LANDLOCK_ACCESS_FS_WRITE_FILE | truncate,
        _ => LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | truncate,
    }
}

/// A Landlock domain in the making.
pub(crate) struct Domain {
    ruleset: OwnedFd,
    handled: u64,
}

impl Domain {
    /// A domain of all file rights of `abi` up to 3, of its scopes, and of TCP ports where they are ruled.
    pub(crate) fn new(abi: u32, rules_ports: bool) -> rustix::io::Result<Self> {
        let truncate = if abi >= 3 { LANDLOCK_ACCESS_FS_TRUNCATE } else { 0 };
        let scoped = if abi >= 6 { LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL } else { 0 };
        let handled = LANDLOCK_ACCESS_FS_ABI_1 | LANDLOCK_ACCESS_FS_REFER | truncate;
        let ports =
            if rules_ports { LANDLOCK_ACCESS_NET_BIND_TCP | LANDLOCK_ACCESS_NET_CONNECT_TCP } else { 0 };
        let attr = RulesetAttr { handled_access_fs: handled, handled_access_net: ports, scoped };
        let arguments = [(&raw const attr).expose_provenance(), mem::size_of::<RulesetAttr>(), 0, 0, 0];
        // SAFETY: pointer and size describe one live RulesetAttr.
        let fd = unsafe { syscall(number::__NR_landlock_create_ruleset, arguments) }?;
        let fd = RawFd::try_from(fd).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: the system call returned a new descriptor that nothing else owns.
        Ok(Self { ruleset: unsafe { OwnedFd::from_raw_fd(fd) }, handled })
    }

    pub(crate) fn handled(&self) -> u64 {
        self.handled
    }

    /// Grants `rights` on what `place` refers to, and below it.
    pub(crate) fn allow(&self, place: impl AsFd, rights: u64) -> rustix::io::Result<()> {
        let rule =
            PathBeneathAttr { allowed_access: rights & self.handled, parent_fd: place.as_fd().as_raw_fd() };
        let rule = (&raw const rule).expose_provenance();
        let arguments = [argument(&self.ruleset), LANDLOCK_RULE_PATH_BENEATH, rule, 0, 0];
        // SAFETY: the pointer is to a live struct of the layout that LANDLOCK_RULE_PATH_BENEATH names.
        unsafe { syscall(number::__NR_landlock_add_rule, arguments) }.map(drop)
    }

    /// Lets TCP connections to a port be made.
    pub(crate) fn allow_connect(&self, port: u16) -> rustix::io::Result<()> {
        let rule = NetPortAttr { allowed_access: LANDLOCK_ACCESS_NET_CONNECT_TCP, port: port.into() };
        let rule = (&raw const rule).expose_provenance();
        let arguments = [argument(&self.ruleset), LANDLOCK_RULE_NET_PORT, rule, 0, 0];
        // SAFETY: the pointer is to a live struct of the layout that LANDLOCK_RULE_NET_PORT names.
        unsafe { syscall(number::__NR_landlock_add_rule, arguments) }.map(drop)
    }

    /// Enters it for good. Wants no_new_privs.
    pub(crate) fn enter(self) -> rustix::io::Result<()> {
        // SAFETY: takes a descriptor and flags.
        unsafe { syscall(number::__NR_landlock_restrict_self, [argument(&self.ruleset), 0, 0, 0, 0]) }
            .map(drop)
    }
}

/// `struct sock_fprog` (include/uapi/linux/filter.h).
#[repr(C)]
struct FilterProgram {
    /// Instructions, not bytes.
    length: u16,
    filter: *const u8,
}

/// Installs a seccomp filter for good (seccomp(2)). The program is `struct sock_filter` after `struct sock_filter`.
pub(crate) fn install_seccomp_filter(program: &[u8]) -> rustix::io::Result<()> {
    install(program, 0).map(drop)
}

/// Installs a filter as [`install_seccomp_filter`] does, and returns where its notices are read.
pub(crate) fn install_seccomp_listener(program: &[u8]) -> rustix::io::Result<OwnedFd> {
    const NEW_LISTENER: usize = 1 << 3;
    // Linux 5.19: no signal but SIGKILL ends a wait that the host knows of.
    const WAIT_KILLABLE_RECV: usize = 1 << 5;
    let fd = match install(program, NEW_LISTENER | WAIT_KILLABLE_RECV) {
        Err(Errno::INVAL) => install(program, NEW_LISTENER)?,
        other => other?,
    };
    let fd = RawFd::try_from(fd).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: the system call returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn install(program: &[u8], flags: usize) -> rustix::io::Result<usize> {
    const SECCOMP_SET_MODE_FILTER: usize = 1;
    let (instructions, rest) = program.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Errno::INVAL);
    }
    let length = u16::try_from(instructions.len()).map_err(|_| Errno::TOOBIG)?;
    let description = FilterProgram { length, filter: program.as_ptr() };
    let place = (&raw const description).expose_provenance();
    // SAFETY: `description` describes `program`, and both live across the call; the kernel copies the program byte by byte,
    // whatever its alignment, and checks it.
    unsafe { syscall(number::__NR_seccomp, [SECCOMP_SET_MODE_FILTER, flags, place, 0, 0]) }
}

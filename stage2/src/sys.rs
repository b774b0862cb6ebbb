//! System calls that nix does not wrap, or whose result is a raw descriptor. No policy here.

use std::io::{IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc::{self, c_int};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, UnixAddr, accept4, recvmsg, sendmsg,
};
use nix::unistd::ForkResult;

/// Descriptors that one message may carry: three standard streams.
const PASSED: usize = 3;

/// Sends all of `frame`, with `passed` beside its first byte.
pub(crate) fn send_with_descriptors(socket: &OwnedFd, frame: &[u8], passed: &[&OwnedFd]) -> nix::Result<()> {
    let raw: Vec<RawFd> = passed.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let mut control = if raw.is_empty() { &[] } else { &rights[..] };
    let mut rest = frame;
    while !rest.is_empty() {
        let sent = sendmsg(
            socket.as_raw_fd(),
            &[IoSlice::new(rest)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None::<&UnixAddr>,
        );
        match sent {
            Ok(count) => {
                rest = rest.get(count..).unwrap_or_default();
                control = &[];
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reads once into `buffer`; the descriptors that came along are close-on-exec.
pub(crate) fn receive_with_descriptors(
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> nix::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; PASSED]);
    let mut slices = [IoSliceMut::new(buffer)];
    let message =
        recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    if message.bytes == 0 {
        return Err(Errno::ECONNRESET);
    }
    let mut passed = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: the kernel has just installed these descriptors for us, and nothing else knows their numbers.
            passed.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, passed))
}

/// Accepts a connection, non-blocking and close-on-exec.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let fd = accept4(listener.as_raw_fd(), SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: accept4 returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// fork(2) of a program that has one thread.
pub(crate) fn fork() -> nix::Result<ForkResult> {
    // SAFETY: stage2 never starts a thread, so the child may do all that the parent may.
    unsafe { nix::unistd::fork() }
}

/// Ends the process without running destructors or flushing buffers that the parent also has.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: _exit only ends the process.
    unsafe { libc::_exit(status) }
}

/// The flags of an interface (netdevice(7), SIOCGIFFLAGS).
pub(crate) fn interface_flags(socket: &OwnedFd, name: &str) -> nix::Result<c_int> {
    let mut request = interface_request(name)?;
    // SAFETY: SIOCGIFFLAGS reads and writes one ifreq through the pointer, which is valid for the call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) })?;
    // SAFETY: the kernel has just written this member of the union.
    Ok(c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
}

/// Sets the flags of an interface (netdevice(7), SIOCSIFFLAGS).
pub(crate) fn set_interface_flags(socket: &OwnedFd, name: &str, flags: c_int) -> nix::Result<()> {
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).map_err(|_| Errno::EINVAL)?;
    // SAFETY: SIOCSIFFLAGS reads one ifreq through the pointer, which is valid for the call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) }).map(drop)
}

fn interface_request(name: &str) -> nix::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data, for which all bytes zero is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // One byte stays zero: the name ends with NUL.
    if name.len() >= request.ifr_name.len() {
        return Err(Errno::ENAMETOOLONG);
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    Ok(request)
}

/// Marks every descriptor from `first` on close-on-exec (close_range(2), Linux 5.11).
pub(crate) fn close_on_exec_from(first: u32) -> nix::Result<()> {
    close_range(first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor that is not in `kept`.
pub(crate) fn close_all_except(kept: &[RawFd]) -> nix::Result<()> {
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

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> nix::Result<()> {
    // SAFETY: takes numbers only. Closing is sound because callers give up, or never owned, what they close.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}

/// Sets what a signal does.
pub(crate) fn set_disposition(which: Signal, handler: SigHandler) -> nix::Result<()> {
    // SAFETY: only SIG_DFL and SIG_IGN are passed: no code of ours runs in a handler.
    unsafe { signal(which, handler) }.map(drop)
}

/// `struct landlock_ruleset_attr` of ABI 6 (include/uapi/linux/landlock.h). An older kernel takes the longer struct when
/// the rest of it is zero.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`, packed as in the kernel's header.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
const LANDLOCK_RULE_PATH_BENEATH: u32 = 1;
const LANDLOCK_ACCESS_FS_WRITE_FILE: u64 = 1 << 1;
const LANDLOCK_ACCESS_FS_READ_FILE: u64 = 1 << 2;
/// EXECUTE to MAKE_SYM: the rights of ABI 1.
const LANDLOCK_ACCESS_FS_ABI_1: u64 = (1 << 13) - 1;
const LANDLOCK_ACCESS_FS_REFER: u64 = 1 << 13;
const LANDLOCK_ACCESS_FS_TRUNCATE: u64 = 1 << 14;
const LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
const LANDLOCK_SCOPE_SIGNAL: u64 = 1 << 1;

/// The kernel's Landlock ABI. `ENOSYS` or `EOPNOTSUPP` where there is none.
pub(crate) fn landlock_abi() -> nix::Result<u32> {
    let none: *const RulesetAttr = std::ptr::null();
    // SAFETY: with the VERSION flag the kernel wants a null pointer and size 0 and touches no memory.
    let abi = Errno::result(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, LANDLOCK_CREATE_RULESET_VERSION)
    })?;
    u32::try_from(abi).map_err(|_| Errno::EOVERFLOW)
}

/// What a stream that was opened with these flags may be opened for again.
pub(crate) fn stream_rights(flags: OFlag) -> u64 {
    let truncate = if flags.contains(OFlag::O_APPEND) { 0 } else { LANDLOCK_ACCESS_FS_TRUNCATE };
    match flags & OFlag::O_ACCMODE {
        OFlag::O_RDONLY => LANDLOCK_ACCESS_FS_READ_FILE,
        OFlag::O_WRONLY => LANDLOCK_ACCESS_FS_WRITE_FILE | truncate,
        _ => LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | truncate,
    }
}

/// A Landlock domain in the making.
pub(crate) struct Domain {
    ruleset: OwnedFd,
    handled: u64,
}

impl Domain {
    /// A domain of all file rights of `abi` up to 3, and of its scopes.
    pub(crate) fn new(abi: u32) -> nix::Result<Self> {
        let truncate = if abi >= 3 { LANDLOCK_ACCESS_FS_TRUNCATE } else { 0 };
        let scoped = if abi >= 6 { LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL } else { 0 };
        let handled = LANDLOCK_ACCESS_FS_ABI_1 | LANDLOCK_ACCESS_FS_REFER | truncate;
        let attr = RulesetAttr { handled_access_fs: handled, handled_access_net: 0, scoped };
        // SAFETY: pointer and size describe one live RulesetAttr.
        let fd = Errno::result(unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attr,
                mem::size_of::<RulesetAttr>(),
                0_u32,
            )
        })?;
        let fd = RawFd::try_from(fd).map_err(|_| Errno::EOVERFLOW)?;
        // SAFETY: the system call returned a new descriptor that nothing else owns.
        Ok(Self { ruleset: unsafe { OwnedFd::from_raw_fd(fd) }, handled })
    }

    pub(crate) fn handled(&self) -> u64 {
        self.handled
    }

    /// Grants `rights` on what `place` refers to, and below it.
    pub(crate) fn allow(&self, place: impl AsFd, rights: u64) -> nix::Result<()> {
        let rule =
            PathBeneathAttr { allowed_access: rights & self.handled, parent_fd: place.as_fd().as_raw_fd() };
        // SAFETY: the pointer is to a live struct of the layout that LANDLOCK_RULE_PATH_BENEATH names.
        Errno::result(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.ruleset.as_raw_fd(),
                LANDLOCK_RULE_PATH_BENEATH,
                &raw const rule,
                0_u32,
            )
        })
        .map(drop)
    }

    /// Enters it for good. Wants no_new_privs.
    pub(crate) fn enter(self) -> nix::Result<()> {
        // SAFETY: takes a descriptor and flags.
        Errno::result(unsafe {
            libc::syscall(libc::SYS_landlock_restrict_self, self.ruleset.as_raw_fd(), 0_u32)
        })
        .map(drop)
    }
}

/// Installs a seccomp filter for good (seccomp(2)). The program is `struct sock_filter` after `struct sock_filter`.
pub(crate) fn install_seccomp_filter(program: &[u8]) -> nix::Result<()> {
    let (instructions, rest) = program.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Errno::EINVAL);
    }
    let mut filter: Vec<libc::sock_filter> = instructions
        .iter()
        .map(|&[a, b, jt, jf, k @ ..]| libc::sock_filter {
            code: u16::from_ne_bytes([a, b]),
            jt,
            jf,
            k: u32::from_ne_bytes(k),
        })
        .collect();
    let length = libc::c_ushort::try_from(filter.len()).map_err(|_| Errno::E2BIG)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: `program` describes `filter`, and both live across the call; the kernel copies and checks the program.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
        .map(drop)
}

//! Wraps Landlock and seccomp. It contains no policy.

use core::mem;

use super::address;
use super::call::{Errno, Number, Result, syscall};
use super::descriptor::{Descriptor, O_ACCMODE, O_APPEND, O_WRONLY};

/// `struct landlock_ruleset_attr` of ABI 6 (include/uapi/linux/landlock.h). An older kernel accepts the longer struct if the rest is
/// zero.
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
const LANDLOCK_RULE_NET_PORT: usize = 2;
const LANDLOCK_ACCESS_FS_WRITE_FILE: u64 = 1 << 1;
const LANDLOCK_ACCESS_FS_READ_FILE: u64 = 1 << 2;
/// The rights of ABI 1, from EXECUTE to MAKE_SYM.
const LANDLOCK_ACCESS_FS_ABI_1: u64 = (1 << 13) - 1;
const LANDLOCK_ACCESS_FS_REFER: u64 = 1 << 13;
const LANDLOCK_ACCESS_FS_TRUNCATE: u64 = 1 << 14;
const LANDLOCK_ACCESS_NET_BIND_TCP: u64 = 1 << 0;
const LANDLOCK_ACCESS_NET_CONNECT_TCP: u64 = 1 << 1;
const LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
const LANDLOCK_SCOPE_SIGNAL: u64 = 1 << 1;

/// Reads the kernel's Landlock ABI. Returns `ENOSYS` or `EOPNOTSUPP` without Landlock.
pub(crate) fn landlock_abi() -> Result<u32> {
    let arguments = [0, 0, LANDLOCK_CREATE_RULESET_VERSION, 0, 0, 0];
    // SAFETY: with the VERSION flag, the kernel expects a null pointer and size 0 and accesses no memory.
    let abi = unsafe { syscall(Number::LandlockCreateRuleset, arguments) }?;
    u32::try_from(abi).map_err(|_| Errno::OVERFLOW)
}

/// Returns the rights with which a stream of these flags may be opened again.
pub(crate) fn stream_rights(flags: usize) -> u64 {
    let truncate = if flags & O_APPEND == 0 { LANDLOCK_ACCESS_FS_TRUNCATE } else { 0 };
    match flags & O_ACCMODE {
        0 => LANDLOCK_ACCESS_FS_READ_FILE,
        O_WRONLY => LANDLOCK_ACCESS_FS_WRITE_FILE | truncate,
        _ => LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | truncate,
    }
}

/// A Landlock domain before it is entered.
pub(crate) struct Domain {
    ruleset: Descriptor,
    handled: u64,
}

impl Domain {
    /// Makes a domain that handles all file rights of `abi` up to 3, its scopes, and TCP ports if `rules_ports`.
    pub(crate) fn new(abi: u32, rules_ports: bool) -> Result<Self> {
        let truncate = if abi >= 3 { LANDLOCK_ACCESS_FS_TRUNCATE } else { 0 };
        let scoped = if abi >= 6 { LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL } else { 0 };
        let handled = LANDLOCK_ACCESS_FS_ABI_1 | LANDLOCK_ACCESS_FS_REFER | truncate;
        let ports =
            if rules_ports { LANDLOCK_ACCESS_NET_BIND_TCP | LANDLOCK_ACCESS_NET_CONNECT_TCP } else { 0 };
        let attr = RulesetAttr { handled_access_fs: handled, handled_access_net: ports, scoped };
        let arguments = [address(&attr), mem::size_of::<RulesetAttr>(), 0, 0, 0, 0];
        // SAFETY: pointer and size describe one live RulesetAttr.
        let fd = unsafe { syscall(Number::LandlockCreateRuleset, arguments) }?;
        // SAFETY: the descriptor is new.
        Ok(Self { ruleset: unsafe { Descriptor::from_answer(fd) }?, handled })
    }

    pub(crate) fn handled(&self) -> u64 {
        self.handled
    }

    /// Grants `rights` on the file of `place` and everything below it.
    pub(crate) fn allow(&self, place: &Descriptor, rights: u64) -> Result<()> {
        let rule = PathBeneathAttr { allowed_access: rights & self.handled, parent_fd: place.number() };
        let arguments = [self.ruleset.argument(), LANDLOCK_RULE_PATH_BENEATH, address(&rule), 0, 0, 0];
        // SAFETY: the pointer is to a live struct with the layout of LANDLOCK_RULE_PATH_BENEATH.
        unsafe { syscall(Number::LandlockAddRule, arguments) }.map(drop)
    }

    /// Allows TCP connections to a port.
    pub(crate) fn allow_connect(&self, port: u16) -> Result<()> {
        let rule = NetPortAttr { allowed_access: LANDLOCK_ACCESS_NET_CONNECT_TCP, port: port.into() };
        let arguments = [self.ruleset.argument(), LANDLOCK_RULE_NET_PORT, address(&rule), 0, 0, 0];
        // SAFETY: the pointer is to a live struct with the layout of LANDLOCK_RULE_NET_PORT.
        unsafe { syscall(Number::LandlockAddRule, arguments) }.map(drop)
    }

    /// Enters the domain, permanently. Needs no_new_privs.
    pub(crate) fn enter(self) -> Result<()> {
        // SAFETY: takes a descriptor and flags.
        unsafe { syscall(Number::LandlockRestrictSelf, [self.ruleset.argument(), 0, 0, 0, 0, 0]) }.map(drop)
    }
}

/// `struct sock_fprog` (include/uapi/linux/filter.h).
#[repr(C)]
struct FilterProgram {
    /// Number of instructions.
    length: u16,
    filter: *const u8,
}

/// Installs a seccomp filter, permanently (seccomp(2)). The program is a sequence of `struct sock_filter`.
pub(crate) fn install_seccomp_filter(program: &[u8]) -> Result<()> {
    install(program, 0).map(drop)
}

/// Installs a filter as [`install_seccomp_filter`] does. Returns the descriptor for its notices.
pub(crate) fn install_seccomp_listener(program: &[u8]) -> Result<Descriptor> {
    const NEW_LISTENER: usize = 1 << 3;
    // Linux 5.19: while the host handles a notice, only SIGKILL interrupts the blocked call.
    const WAIT_KILLABLE_RECV: usize = 1 << 5;
    let fd = match install(program, NEW_LISTENER | WAIT_KILLABLE_RECV) {
        Err(Errno::INVAL) => install(program, NEW_LISTENER)?,
        other => other?,
    };
    // SAFETY: the descriptor is new.
    unsafe { Descriptor::from_answer(fd) }
}

fn install(program: &[u8], flags: usize) -> Result<usize> {
    const SECCOMP_SET_MODE_FILTER: usize = 1;
    let (instructions, rest) = program.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Errno::INVAL);
    }
    let length = u16::try_from(instructions.len()).map_err(|_| Errno::TOOBIG)?;
    let description = FilterProgram { length, filter: program.as_ptr() };
    let arguments = [SECCOMP_SET_MODE_FILTER, flags, address(&description), 0, 0, 0];
    // SAFETY: `description` describes `program`, and both live across the call; the kernel copies the program byte by byte, whatever
    // its alignment, and checks it.
    unsafe { syscall(Number::Seccomp, arguments) }
}

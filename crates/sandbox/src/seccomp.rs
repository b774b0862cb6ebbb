//! The system-call filters, compiled to classic BPF.
//!
//! A deny-list behind an architecture guard: what is refused is what reaches past the namespaces (families that have no
//! network namespace, keyrings, io_uring, which would pass every other filter) or is kernel surface that a stage has no
//! use for. [`base`] is given to bubblewrap, so that pid 1 has it too; [`no_unix_sockets`] goes to the stage alone, since
//! stage2 and the relay need such a socket.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::error::Error;

/// Refused to every process of the sandbox with EPERM, whatever the arguments.
const REFUSED: &[i64] = &[
    // Keys: the session keyring is not namespaced (keyrings(7)).
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    // Other processes' memory and descriptors, pid 1's and the relay's among them.
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    // Kernel surface with a history.
    libc::SYS_bpf,
    libc::SYS_fanotify_init,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // Mounts and namespaces: no capability for them is left, this says it twice.
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_umount2,
    // The machine as a whole.
    libc::SYS_acct,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    SYS_KEXEC_FILE_LOAD,
    libc::SYS_kexec_load,
    libc::SYS_quotactl,
    SYS_QUOTACTL_FD,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
];

/// Numbers that the libc crate does not have (include/uapi/asm-generic/unistd.h; the same on x86-64).
const SYS_QUOTACTL_FD: i64 = 443;
const SYS_OPEN_TREE_ATTR: i64 = 467;
const SYS_FCHMODAT2: i64 = 452;
#[cfg(target_arch = "x86_64")]
const SYS_KEXEC_FILE_LOAD: i64 = 320;
#[cfg(target_arch = "aarch64")]
const SYS_KEXEC_FILE_LOAD: i64 = 294;

/// Calls that set a mode, and the place of the mode among the arguments.
const MODES: &[(i64, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (SYS_FCHMODAT2, 2),
    (libc::SYS_mknodat, 2),
    (libc::SYS_openat, 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2),
];

/// Refused with ENOSYS, so that callers fall back: clone3 hides its flags from a filter behind a pointer (glibc then uses
/// clone), and io_uring does what a filter refuses without the system call that the filter sees. openat2 hides its mode in the same way.
const MISSING: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_openat2,
];

/// Socket families that stay: loopback TCP and UDP, local sockets, and routing netlink for getifaddrs(3).
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// First system-call number of the x32 ABI (arch/x86/include/uapi/asm/unistd.h): the same architecture to a filter, with
/// other numbers for the same calls.
const X32_BIT: u32 = 0x4000_0000;

/// A compiled filter: `struct sock_filter` after `struct sock_filter`, native endian.
pub type Program = Vec<u8>;

/// The filters that hold for every process of the sandbox.
///
/// # Errors
/// [`Error::Filter`] when a program does not compile: on an architecture other than x86-64 and aarch64.
pub fn base() -> Result<Vec<Program>, Error> {
    let mut refused: Rules = REFUSED.iter().map(|number| (*number, Vec::new())).collect();
    refused.insert(
        libc::SYS_socket,
        vec![
            rule(FAMILIES.iter().map(|family| (0, SeccompCmpOp::Ne, family.cast_unsigned())))?,
            // NETLINK_ROUTE is protocol 0; audit, netfilter, uevent and sock_diag are not for a stage.
            rule([(0, SeccompCmpOp::Eq, libc::AF_NETLINK.cast_unsigned()), (2, SeccompCmpOp::Ne, 0)])?,
        ],
    );
    // Only the low 32 bits of the request count to the kernel, and so here (CVE-2019-7303 is the other way).
    let terminal_input = |request: u64| -> Result<SeccompRule, Error> {
        rule([(
            1,
            SeccompCmpOp::Eq,
            u32::try_from(request & 0xffff_ffff).map_err(|e| Error::Filter(e.to_string()))?,
        )])
    };
    refused.insert(libc::SYS_ioctl, vec![terminal_input(TIOCSTI)?, terminal_input(TIOCLINUX)?]);
    let user_namespace = libc::CLONE_NEWUSER.cast_unsigned();
    let new_user = || rule([(0, SeccompCmpOp::MaskedEq(u64::from(user_namespace)), user_namespace)]);
    refused.insert(libc::SYS_unshare, vec![new_user()?]);
    refused.insert(libc::SYS_clone, vec![new_user()?]);

    // A file of the stage's that runs with its owner's rights would wait for somebody on the host to run it. Sticky stays.
    for (number, argument) in MODES {
        let bit = |bit: u32| rule([(*argument, SeccompCmpOp::MaskedEq(bit.into()), bit)]);
        refused.insert(*number, vec![bit(libc::S_ISUID)?, bit(libc::S_ISGID)?]);
    }

    let missing = MISSING.iter().map(|number| (*number, Vec::new())).collect();
    Ok(vec![compile(refused, libc::EPERM)?, compile(missing, libc::ENOSYS)?])
}

/// `TIOCSTI` and `TIOCLINUX` (ioctl_tty(2)): input pushed into a terminal runs in the shell that owns it.
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;

/// The filter for views in which sockets of the host may be reachable by path: no new Unix socket but connected pairs.
/// A pair of datagram sockets could be connected again, to a path.
///
/// # Errors
/// As [`base`].
pub fn no_unix_sockets() -> Result<Program, Error> {
    let unix = libc::AF_UNIX.cast_unsigned();
    let datagram = libc::SOCK_DGRAM.cast_unsigned();
    let type_is = |kind: u32| rule([(1, SeccompCmpOp::MaskedEq(0xf), kind)]);
    let rules = BTreeMap::from([
        (libc::SYS_socket, vec![rule([(0, SeccompCmpOp::Eq, unix)])?]),
        // The low four bits are the type, the rest flags (include/linux/net.h, SOCK_TYPE_MASK).
        // The kernel makes a raw Unix socket a datagram one (unix_create, net/unix/af_unix.c).
        (libc::SYS_socketpair, vec![type_is(datagram)?, type_is(libc::SOCK_RAW.cast_unsigned())?]),
    ]);
    compile(rules, libc::EPERM)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// One rule: all of these conditions on arguments' low 32 bits.
fn rule(conditions: impl IntoIterator<Item = (u8, SeccompCmpOp, u32)>) -> Result<SeccompRule, Error> {
    let conditions = conditions
        .into_iter()
        .map(|(argument, op, value)| SeccompCondition::new(argument, Dword, op, value.into()))
        .collect::<Result<Vec<_>, _>>();
    conditions.and_then(SeccompRule::new).map_err(|error| Error::Filter(error.to_string()))
}

fn compile(rules: Rules, errno: i32) -> Result<Program, Error> {
    let fault = |error: seccompiler::BackendError| Error::Filter(error.to_string());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(fault)?;
    let refuse = SeccompAction::Errno(errno.cast_unsigned());
    // Calls by another architecture's table end the process.
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(fault)?;
    let program = BpfProgram::try_from(filter).map_err(fault)?;
    let mut bytes = refuse_x32();
    for instruction in program {
        bytes.extend(words(instruction.code, instruction.jt, instruction.jf, instruction.k));
    }
    Ok(bytes)
}

/// Three instructions before the rest: a number of the x32 table is answered with ENOSYS, as by a kernel without it.
fn refuse_x32() -> Program {
    // linux/bpf_common.h: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JGE|BPF_K, BPF_RET|BPF_K.
    const LOAD: u16 = 0x20;
    const JUMP_GE: u16 = 0x35;
    const RETURN: u16 = 0x06;
    // linux/seccomp.h: the number is the first member of seccomp_data; SECCOMP_RET_ERRNO.
    const NUMBER: u32 = 0;
    const RETURN_ERRNO: u32 = 0x0005_0000;
    let missing = RETURN_ERRNO | libc::ENOSYS.cast_unsigned();
    [words(LOAD, 0, 0, NUMBER), words(JUMP_GE, 0, 1, X32_BIT), words(RETURN, 0, 0, missing)].concat()
}

fn words(code: u16, jt: u8, jf: u8, k: u32) -> [u8; 8] {
    let [a, b] = code.to_ne_bytes();
    let [c, d, e, f] = k.to_ne_bytes();
    [a, b, jt, jf, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_to_whole_instructions_within_the_kernel_s_limit() {
        let mut programs = base().unwrap();
        programs.push(no_unix_sockets().unwrap());
        for program in programs {
            assert_eq!(program.len() % 8, 0);
            // BPF_MAXINSNS.
            assert!(program.len() / 8 <= 4096);
        }
    }
}

//! Defines the system-call filters as data, which is compiled, and printed by [`text()`].
//!
//! The filters are deny-lists after a check of the architecture. They refuse what reaches past the namespaces (families without a
//! network namespace, keyrings, io_uring, which would pass every other filter) and kernel surface of no use to a stage. bubblewrap
//! installs [`base`], so that pid 1 has it too. Only the stage gets [`no_unix_sockets`], since stage2 and the relay need such
//! sockets.

use nix::libc;

use crate::error::Error;

mod program;
mod text;

pub use program::Program;
pub use text::text;

use program::{compile, joined};

/// A system call, by name and number.
#[derive(Debug, Clone, Copy)]
struct Call {
    /// Its name in the C library's header, with the prefix `SYS_`.
    name: &'static str,
    number: i64,
}

/// An argument of a call: its name in the manual page, and its position.
#[derive(Debug, Clone, Copy)]
struct Argument(&'static str, u8);

/// A number and its name.
#[derive(Debug, Clone, Copy)]
struct NamedNumber(&'static str, u32);

/// A condition on an argument. Only its low 32 bits count, to the filter and to the kernel (unlike CVE-2019-7303).
#[derive(Debug, Clone, Copy)]
enum Test {
    Is(NamedNumber),
    IsNot(NamedNumber),
    /// Every bit of the number is set.
    Has(NamedNumber),
    /// The argument has this value under a mask.
    Masked(NamedNumber, NamedNumber),
}

/// Conditions that must all hold.
type Case = Vec<(Argument, Test)>;

/// A call that the filter refuses.
#[derive(Debug, Clone)]
struct Refusal {
    call: Call,
    /// The call is refused in any of these cases, or always if there are none.
    cases: Vec<Case>,
}

/// A filter: the refused calls and the answer.
#[derive(Debug, Clone)]
struct Filter {
    errno: NamedNumber,
    refused: Vec<Refusal>,
}

macro_rules! calls {
    ($($(#[$meta:meta])* $name:path),* $(,)?) => {
        &[$($(#[$meta])* Call { name: stringify!($name), number: $name as i64 }),*]
    };
}

macro_rules! named {
    ($name:path) => {
        NamedNumber(stringify!($name), {
            #[allow(clippy::cast_possible_truncation, reason = "an argument counts by its low half")]
            const VALUE: i32 = $name as i32;
            VALUE.cast_unsigned()
        })
    };
}

/// Calls refused to every process of the sandbox with EPERM, whatever the arguments.
const REFUSED: &[Call] = calls![
    // Keys: the session keyring is not namespaced (keyrings(7)).
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    // Descriptors of other processes, including pid 1 and the relay.
    libc::SYS_pidfd_getfd,
    // Kernel surface with a history.
    libc::SYS_bpf,
    libc::SYS_fanotify_init,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // Mounts and namespaces: a second layer, since the capabilities are already dropped.
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    SYS_open_tree_attr,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_umount2,
    // The machine as a whole.
    libc::SYS_acct,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_quotactl,
    SYS_quotactl_fd,
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

/// Calls on other processes' memory, refused with EPERM unless the stage may be debugged. Then Landlock protects pid 1 and the relay:
/// a domain can only trace processes inside it.
const TRACING: &[Call] =
    calls![libc::SYS_kcmp, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_ptrace,];

/// Calls refused with ENOSYS, so that callers fall back. clone3 and openat2 hide flags and mode behind a pointer (glibc then uses
/// clone), and io_uring acts without the system calls that a filter sees. The memory of memfd_secret counts as that of mapped files,
/// which the limit of memory leaves out. The machine has one number of contexts for asynchronous I/O (fs.aio-max-nr), which one process
/// could use up for all programs (io_setup(2)).
const MISSING: &[Call] = calls![
    libc::SYS_clone3,
    libc::SYS_io_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    SYS_memfd_secret,
    libc::SYS_openat2,
];

/// Numbers that the libc crate lacks (include/uapi/asm-generic/unistd.h; equal on x86-64).
#[expect(non_upper_case_globals, reason = "named as the C library's header names its kind")]
mod numbers {
    pub(super) const SYS_quotactl_fd: i64 = 443;
    pub(super) const SYS_memfd_secret: i64 = 447;
    pub(super) const SYS_fchmodat2: i64 = 452;
    pub(super) const SYS_open_tree_attr: i64 = 467;
    #[cfg(target_arch = "x86_64")]
    pub(super) const SYS_kexec_file_load: i64 = 320;
    #[cfg(target_arch = "aarch64")]
    pub(super) const SYS_kexec_file_load: i64 = 294;
}
use numbers::{SYS_fchmodat2, SYS_kexec_file_load, SYS_memfd_secret, SYS_open_tree_attr, SYS_quotactl_fd};

/// Calls that set a mode, with the position of the mode argument.
const MODES: &[(&[Call], u8)] = &[
    (calls![libc::SYS_fchmod], 1),
    (calls![libc::SYS_fchmodat, SYS_fchmodat2, libc::SYS_mknodat], 2),
    #[cfg(target_arch = "x86_64")]
    (calls![libc::SYS_chmod, libc::SYS_creat, libc::SYS_mknod], 1),
];

/// Calls that use a mode only if they create a file, with the position of the flags before it. Otherwise the mode argument is
/// undefined (open(2)).
const OPENS: &[(&[Call], u8)] = &[
    (calls![libc::SYS_openat], 2),
    #[cfg(target_arch = "x86_64")]
    (calls![libc::SYS_open], 1),
];
/// Flags that create a file. The second is O_TMPFILE without its O_DIRECTORY (include/uapi/asm-generic/fcntl.h).
const MAKING: [NamedNumber; 2] = [named!(libc::O_CREAT), NamedNumber("__O_TMPFILE", 0o20_000_000)];

/// Allowed socket families: loopback TCP and UDP, local sockets, and routing netlink for getifaddrs(3).
const FAMILIES: [NamedNumber; 4] =
    [named!(libc::AF_UNIX), named!(libc::AF_INET), named!(libc::AF_INET6), named!(libc::AF_NETLINK)];

/// Types refused to an internet socket. The kernel loads a module for each protocol on request, and Multipath TCP bypasses the TCP
/// rules of Landlock.
const UNUSUAL_TYPES: [NamedNumber; 4] = [
    named!(libc::SOCK_RDM),
    named!(libc::SOCK_SEQPACKET),
    named!(libc::SOCK_DCCP),
    // The libc crate deprecates it, but the kernel still accepts it for a packet socket (__sock_create, net/socket.c).
    NamedNumber("SOCK_PACKET", 10),
];
const INTERNET_PROTOCOLS: [NamedNumber; 5] = [
    NamedNumber("0", 0),
    named!(libc::IPPROTO_TCP),
    named!(libc::IPPROTO_UDP),
    named!(libc::IPPROTO_ICMP),
    named!(libc::IPPROTO_ICMPV6),
];

/// Requests of ioctl_tty(2): input pushed into a terminal runs in the shell that owns it, anybody may load the kernel module of a line
/// discipline, and nobody can open a terminal any more that was made exclusive.
const TERMINAL: [NamedNumber; 5] = [
    named!(libc::TIOCSTI),
    named!(libc::TIOCLINUX),
    named!(libc::TIOCCONS),
    named!(libc::TIOCSETD),
    named!(libc::TIOCEXCL),
];

/// Requests that change a file's generation and thus its handle (name_to_handle_at(2)), by which exeat recognizes host files
/// (include/uapi/linux/fs.h, fs/ext4/ext4.h).
const GENERATION: [NamedNumber; 2] =
    [NamedNumber("FS_IOC_SETVERSION", 0x4008_7602), NamedNumber("EXT4_IOC_SETVERSION", 0x4008_6604)];

/// Requests that exchange the content of two files without a new time of one of them, by which exeat and programs on the host see a change
/// (fs/ext4/ext4.h; fs/f2fs/f2fs.h).
const CONTENT: [NamedNumber; 2] =
    [NamedNumber("EXT4_IOC_MOVE_EXT", 0xc028_660f), NamedNumber("F2FS_IOC_MOVE_RANGE", 0xc020_f509)];

/// Commands of fcntl(2) that block others: whoever opens a file with a lease or a delegation (include/uapi/linux/fcntl.h) waits until
/// the holder gives it up, by default for 45 seconds.
const LEASES: [NamedNumber; 2] = [named!(libc::F_SETLEASE), NamedNumber("F_SETDELEG", 1040)];

/// Calls that change how the kernel schedules a process, or its limits, with the pid as the first argument.
const SCHEDULING: &[Call] = calls![
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_prlimit64,
];
/// The sandbox's pid 1 has the stage's uid, so the kernel lets the stage slow it. It ends the sandbox, so it has to run in time.
const PID_ONE: Test = Test::Is(NamedNumber("1", 1));
/// ioprio_set(2), include/uapi/linux/ioprio.h.
const IOPRIO_WHO_PROCESS: NamedNumber = NamedNumber("IOPRIO_WHO_PROCESS", 1);

const COMMAND: Argument = Argument("cmd", 1);
const DOMAIN: Argument = Argument("domain", 0);
const TYPE: Argument = Argument("type", 1);
const PROTOCOL: Argument = Argument("protocol", 2);
const REQUEST: Argument = Argument("request", 1);
const FLAGS: Argument = Argument("flags", 0);

/// Mask of the type; the other bits are flags (include/linux/net.h).
const TYPE_MASK: NamedNumber = NamedNumber("SOCK_TYPE_MASK", 0xf);
const NETLINK_ROUTE: NamedNumber = named!(libc::NETLINK_ROUTE);

/// Number of programs that [`base`] returns.
pub const BASE: usize = 2;

/// Compiles the filters for every process of the sandbox. A `debuggable` stage may trace its own processes.
///
/// # Errors
/// Returns [`Error::Filter`] if a program does not compile: on architectures other than x86-64 and aarch64.
pub fn base(debuggable: bool) -> Result<Vec<Program>, Error> {
    compile(&base_filters(debuggable))
}

/// Compiles the filter for views in which host sockets may be reachable by path: the only new Unix sockets are connected pairs.
/// Datagram pairs are refused too, since one could be connected again to a path.
///
/// # Errors
/// Returns an error as [`base`] does.
pub fn no_unix_sockets() -> Result<Program, Error> {
    joined(&[&no_unix_sockets_filter()])
}

/// Calls that change or rename a file without an event in its directory, because they open nothing there (inotify(7)).
const NOTICED: &[Call] = calls![
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_truncate,
];

/// Flags with which open truncates a file that is not open for writing afterwards, so that its close looks like a reader's. The
/// second asks for neither reading nor writing (open(2)).
const CUTS: [NamedNumber; 2] = [named!(libc::O_TRUNC), NamedNumber("O_TRUNC | O_ACCMODE", CUT_MASK.1)];
const CUT_MASK: NamedNumber =
    NamedNumber("(O_TRUNC | O_ACCMODE)", (libc::O_TRUNC | libc::O_ACCMODE).cast_unsigned());

/// Compiles the filter for a stage whose files are covered again when the host replaces them: exeat gets a notice of these few calls
/// before they run (seccomp_unotify(2)), and lets them continue.
///
/// # Errors
/// Returns an error as [`base`] does.
pub fn notice_filter() -> Result<Program, Error> {
    program::notice_filter(&noticed())
}

/// Lists the calls that the notice filter reports.
fn noticed() -> Vec<Refusal> {
    let always = NOTICED.iter().map(|call| Refusal { call: *call, cases: Vec::new() });
    let opens = OPENS.iter().flat_map(|(calls, place)| {
        let cuts = CUTS.map(|cut| vec![(Argument("flags", *place), Test::Masked(CUT_MASK, cut))]);
        refusals(calls, &cuts)
    });
    always.chain(opens).collect()
}

fn base_filters(debuggable: bool) -> [Filter; 4] {
    let always = |calls: &[Call]| -> Vec<Refusal> {
        calls.iter().map(|call| Refusal { call: *call, cases: Vec::new() }).collect()
    };
    let tracing: &[Call] = if debuggable { &[] } else { TRACING };
    let mut refused = [always(REFUSED), always(tracing)].concat();
    refused.extend(sockets());
    refused.extend(refusals(
        calls![libc::SYS_ioctl],
        &TERMINAL
            .into_iter()
            .chain(GENERATION)
            .chain(CONTENT)
            .map(|request| vec![(REQUEST, Test::Is(request))])
            .collect::<Vec<_>>(),
    ));
    refused.extend(refusals(calls![libc::SYS_fcntl], &LEASES.map(|lease| vec![(COMMAND, Test::Is(lease))])));
    let user_namespace = vec![(FLAGS, Test::Has(named!(libc::CLONE_NEWUSER)))];
    refused.extend(refusals(calls![libc::SYS_clone, libc::SYS_unshare], &[user_namespace]));
    refused.extend(scheduling());
    // A stage's set-user-ID file would wait for somebody on the host to run it. The sticky bit stays allowed.
    let has_bit = |place| {
        let bits = [named!(libc::S_ISUID), named!(libc::S_ISGID)];
        bits.map(|bit| (Argument("mode", place), Test::Has(bit)))
    };
    for (calls, place) in MODES {
        refused.extend(refusals(calls, &has_bit(*place).map(|bit| vec![bit])));
    }
    for (calls, place) in OPENS {
        let makes = MAKING.map(|flag| (Argument("flags", *place), Test::Has(flag)));
        let cases = makes.into_iter().flat_map(|makes| has_bit(place + 1).map(|bit| vec![makes, bit]));
        refused.extend(refusals(calls, &cases.collect::<Vec<_>>()));
    }
    let has_fast_open = |place| vec![(Argument("flags", place), Test::Has(named!(libc::MSG_FASTOPEN)))];
    let mut fast_open = refusals(calls![libc::SYS_sendmsg], &[has_fast_open(2)]);
    fast_open.extend(refusals(calls![libc::SYS_sendto, libc::SYS_sendmmsg], &[has_fast_open(3)]));
    [
        Filter { errno: named!(libc::EPERM), refused },
        Filter { errno: named!(libc::ENOSYS), refused: always(MISSING) },
        // A kernel without these protocols answers like this, so callers fall back.
        Filter {
            errno: named!(libc::EPROTONOSUPPORT),
            refused: refusals(calls![libc::SYS_socket], &unusual_internet_sockets()),
        },
        // A kernel with tcp_fastopen off answers like this. Fast open connects without connect(2), past Landlock's TCP rules.
        Filter { errno: named!(libc::EOPNOTSUPP), refused: fast_open },
    ]
}

fn refusals(calls: &[Call], cases: &[Case]) -> Vec<Refusal> {
    calls.iter().map(|call| Refusal { call: *call, cases: cases.to_vec() }).collect()
}

fn sockets() -> Vec<Refusal> {
    let others = FAMILIES.map(|family| (DOMAIN, Test::IsNot(family))).to_vec();
    // getifaddrs(3) needs NETLINK_ROUTE; a stage does not need audit, netfilter, uevent or sock_diag.
    let netlink = vec![(DOMAIN, Test::Is(named!(libc::AF_NETLINK))), (PROTOCOL, Test::IsNot(NETLINK_ROUTE))];
    let mut refused = refusals(calls![libc::SYS_socket], &[others, netlink]);
    let pairs = vec![(DOMAIN, Test::IsNot(named!(libc::AF_UNIX)))];
    refused.extend(refusals(calls![libc::SYS_socketpair], &[pairs]));
    refused
}

/// Changes of pid 1's scheduling. A user and a process group may include pid 1, so only single processes and threads are left.
fn scheduling() -> Vec<Refusal> {
    let mut refused = refusals(SCHEDULING, &[vec![(Argument("pid", 0), PID_ONE)]]);
    let of = |process| {
        vec![vec![(Argument("which", 0), Test::IsNot(process))], vec![(Argument("who", 1), PID_ONE)]]
    };
    refused.extend(refusals(calls![libc::SYS_setpriority], &of(named!(libc::PRIO_PROCESS))));
    refused.extend(refusals(calls![libc::SYS_ioprio_set], &of(IOPRIO_WHO_PROCESS)));
    refused
}

fn unusual_internet_sockets() -> Vec<Case> {
    let internet = [named!(libc::AF_INET), named!(libc::AF_INET6)];
    let types = UNUSUAL_TYPES.map(|kind| vec![(TYPE, Test::Masked(TYPE_MASK, kind))]);
    let protocols = INTERNET_PROTOCOLS.map(|protocol| (PROTOCOL, Test::IsNot(protocol))).to_vec();
    let unusual = || types.iter().chain([&protocols]);
    let of = |family: NamedNumber| {
        unusual().map(move |tests| [&[(DOMAIN, Test::Is(family))], &tests[..]].concat())
    };
    internet.into_iter().flat_map(of).collect()
}

fn no_unix_sockets_filter() -> Filter {
    let unix = named!(libc::AF_UNIX);
    let of_type = |kind: NamedNumber| vec![(TYPE, Test::Masked(TYPE_MASK, kind))];
    let mut refused = refusals(calls![libc::SYS_socket], &[vec![(DOMAIN, Test::Is(unix))]]);
    // The kernel turns a raw Unix socket into a datagram one (unix_create, net/unix/af_unix.c).
    let datagrams = [of_type(named!(libc::SOCK_DGRAM)), of_type(named!(libc::SOCK_RAW))];
    refused.extend(refusals(calls![libc::SYS_socketpair], &datagrams));
    Filter { errno: named!(libc::EPERM), refused }
}

#[cfg(test)]
mod tests;

//! The last steps before `execve`: they drop what the stage must not inherit, and add layers within those of bubblewrap.
//!
//! None of this is the egress boundary, which is the empty network namespace.

use crate::sys::{self, Descriptor, Errno, Limit, Resource};

/// Raises the soft limit of open descriptors to the hard one, for as long as descriptors are passed. Returns the limits before.
///
/// The kernel refuses to pass a descriptor while its sender's user has more in flight than the sender's soft limit (unix(7),
/// ETOOMANYREFS). Another stage of the same user may have many in flight, but fewer than this limit.
pub(crate) fn raise_descriptor_limit() -> sys::Result<Limit> {
    let before = sys::limit(Resource::Descriptors)?;
    sys::set_limit(Resource::Descriptors, Limit { soft: before.hard, hard: before.hard }).map(|()| before)
}

/// Sets the limits of open descriptors to what they were before [`raise_descriptor_limit`].
pub(crate) fn restore_descriptor_limit(before: Limit) -> sys::Result<()> {
    sys::set_limit(Resource::Descriptors, before)
}

/// Sets the stage's limits of open descriptors. No descriptor is passed after this.
pub(crate) fn limit_descriptors(soft: u64, hard: u64) -> sys::Result<()> {
    let hard = sys::limit(Resource::Descriptors)?.hard.min(hard);
    sys::set_limit(Resource::Descriptors, Limit { soft: soft.min(hard), hard })
}

/// Marks every descriptor except the standard streams close-on-exec, and gives the stage ordinary process attributes.
pub(crate) fn limit_process(leads_session: bool) -> sys::Result<()> {
    sys::close_on_exec_from(3)?;
    // A signal for the stage's process group reaches its children, but not pid 1 or the relay. The session is another one than theirs,
    // since the kernel shares out the processors by session, and lets each process slow its own: `autogroup` in sched(7).
    if !leads_session {
        sys::lead_session()?;
    }
    // A caller may ignore SIGPIPE, which is inherited; then `yes | head -1` would never end.
    sys::restore_sigpipe()?;
    sys::unblock_signals()?;
    // A core file would go to the working directory, or to a program on the host, even with a limit of 0. A limit of 1 byte prevents
    // both (do_coredump, fs/coredump.c). A caller with limit 0 cannot raise it (EPERM, setrlimit(2)): then that program gets the
    // core, as without exeat.
    match sys::set_limit(Resource::CoreFile, Limit { soft: 1, hard: 1 }) {
        Err(Errno::PERM) => Ok(()),
        other => other,
    }
}

/// Enters a Landlock domain and returns the kernel's Landlock ABI, or 0 without a domain.
///
/// A domain adds (landlock(7)): no ptrace or `/proc/PID/mem` access to pid 1 and the relay, which are outside it; from ABI 6, no
/// signals to them and no abstract sockets of others. Files open below the sandbox's root only: a standard stream is a host object,
/// and `/proc/self/fd/0` could open a file for writing that the caller opened for reading. Each stream keeps the rights that it was
/// opened with.
///
/// With `ports`, from ABI 4, the stage connects to these TCP ports only and listens on none.
pub(crate) fn enter_landlock_domain(ports: Option<&[u16]>) -> sys::Result<u32> {
    sys::forbid_new_privileges()?;
    let abi = match sys::landlock_abi() {
        // EPERM comes from a container's filter.
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => 0,
        other => other?,
    };
    if ports.is_some() && abi < 4 {
        return Err(Errno::OPNOTSUPP);
    }
    // ABI 1 forbids renames between directories and cannot grant them, which costs more than this layer gains.
    if abi < 2 {
        return Ok(0);
    }
    let domain = sys::Domain::new(abi, ports.is_some())?;
    for port in ports.unwrap_or_default() {
        domain.allow_connect(*port)?;
    }
    let root = sys::open(c"/", sys::O_PATH | sys::O_CLOEXEC)?;
    domain.allow(&root, domain.handled())?;
    for stream in sys::standard_streams() {
        match domain.allow(&stream, sys::stream_rights(sys::open_flags(&stream)?)) {
            // Pipes and sockets are not in a file tree, and need no rule.
            Err(Errno::BADFD) | Ok(()) => {}
            Err(errno) => return Err(errno),
        }
    }
    domain.enter()?;
    Ok(abi)
}

/// Installs the program that the host side sent, if any.
pub(crate) fn install_filter(program: &[u8]) -> sys::Result<()> {
    if program.is_empty() { Ok(()) } else { sys::install_seccomp_filter(program) }
}

/// Installs the program whose calls the kernel reports to the host, if any. Returns the descriptor of the reports, or `None` if a
/// sandbox around this one already has such a filter: only one is possible (seccomp(2), `EBUSY`).
pub(crate) fn install_notice_filter(program: &[u8]) -> sys::Result<Option<Descriptor>> {
    if program.is_empty() {
        return Ok(None);
    }
    match sys::install_seccomp_listener(program) {
        Err(Errno::BUSY) => Ok(None),
        other => other.map(Some),
    }
}

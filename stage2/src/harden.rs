//! The last steps before `execve`: what the stage must not inherit, and the layers within those of bubblewrap.
//!
//! None of this is the egress boundary: that is the empty network namespace.

use crate::sys::{self, Descriptor, Errno, Limit, Resource};

/// Raises the soft limit of open descriptors to the hard one, for as long as descriptors are passed.
///
/// The kernel refuses to pass a descriptor while its sender's user has more in flight than the sender's soft limit (unix(7),
/// ETOOMANYREFS). Another stage of the same user may have many in flight, but fewer than this limit.
pub(crate) fn raise_descriptor_limit() -> sys::Result<()> {
    let hard = sys::limit(Resource::Descriptors)?.hard;
    sys::set_limit(Resource::Descriptors, Limit { soft: hard, hard })
}

/// Sets the stage's limits of open descriptors. Nothing is passed after this.
pub(crate) fn limit_descriptors(soft: u64, hard: u64) -> sys::Result<()> {
    let hard = sys::limit(Resource::Descriptors)?.hard.min(hard);
    sys::set_limit(Resource::Descriptors, Limit { soft: soft.min(hard), hard })
}

/// Marks every descriptor but the standard streams close-on-exec, and gives the stage ordinary process attributes.
pub(crate) fn limit_process(leads_session: bool) -> sys::Result<()> {
    sys::close_on_exec_from(3)?;
    // A process group of its own: a signal for the stage reaches what it started, and not pid 1 or the relay. One that leads
    // a session has it.
    if !leads_session {
        sys::lead_group()?;
    }
    // A caller may ignore SIGPIPE, which is inherited; a stage must not, or `yes | head -1` never ends.
    sys::restore_sigpipe()?;
    sys::unblock_signals()?;
    // A core file would be written into the working directory, or handed to a program on the host: to that one with a limit
    // of 0 as well. At 1 byte there is neither (do_coredump, fs/coredump.c). A caller whose own limit is 0 cannot raise it (EPERM,
    // setrlimit(2)): that program then gets the core, as without exeat.
    match sys::set_limit(Resource::CoreFile, Limit { soft: 1, hard: 1 }) {
        Err(Errno::PERM) => Ok(()),
        other => other,
    }
}

/// Enters a Landlock domain and returns the kernel's Landlock ABI, or 0 where no domain could be made.
///
/// What a domain adds here (landlock(7)): no ptrace or `/proc/PID/mem` access to processes outside it, which are pid 1
/// and the relay; from ABI 6 also no signals to them and no abstract sockets of others. Files are opened below the
/// sandbox's root or not at all: a standard stream is an object of the host's, and `/proc/self/fd/0` would open a file
/// anew for writing that the caller opened for reading. Each stream keeps the rights that it was opened with.
///
/// With `ports`, from ABI 4, the stage connects to these TCP ports alone and listens on none.
pub(crate) fn enter_landlock_domain(ports: Option<&[u16]>) -> sys::Result<u32> {
    sys::forbid_new_privileges()?;
    let abi = match sys::landlock_abi() {
        // EPERM is the answer of a container's filter.
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => 0,
        other => other?,
    };
    if ports.is_some() && abi < 4 {
        return Err(Errno::OPNOTSUPP);
    }
    // ABI 1 forbids renames between directories and cannot grant them: that would cost more than this layer gives.
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
            // Pipes and sockets have no place in a file tree, and need no rule.
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

/// Installs the program whose calls the kernel reports to the host, if any. Returns the descriptor of the reports, or nothing where this
/// process has a filter of that kind already, from a sandbox around this one: there can be only one (seccomp(2), `EBUSY`).
pub(crate) fn install_notice_filter(program: &[u8]) -> sys::Result<Option<Descriptor>> {
    if program.is_empty() {
        return Ok(None);
    }
    match sys::install_seccomp_listener(program) {
        Err(Errno::BUSY) => Ok(None),
        other => other.map(Some),
    }
}

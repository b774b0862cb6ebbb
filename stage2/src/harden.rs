//! The last steps before `execve`: what the stage must not inherit, and the layers behind bubblewrap's.
//!
//! None of this is the egress boundary: that is the empty network namespace.

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{Pid, setpgid};

use crate::sys;

/// Marks every descriptor but the standard streams close-on-exec, and gives the stage ordinary process attributes.
pub(crate) fn close_descriptors() -> nix::Result<()> {
    sys::close_on_exec_from(3)?;
    // A process group of its own: a signal for the stage reaches what it started, and not pid 1 or the relay.
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    // The Rust runtime ignores SIGPIPE; a stage must not, or `yes | head -1` never ends.
    sys::set_disposition(Signal::SIGPIPE, SigHandler::SigDfl)?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // A core file would be written into the working directory, or handed to a program on the host.
    let (_, most) = getrlimit(Resource::RLIMIT_CORE)?;
    setrlimit(Resource::RLIMIT_CORE, 0, most)
}

/// Enters a Landlock domain and returns the kernel's Landlock ABI, or 0 where no domain could be made.
///
/// What a domain adds here (landlock(7)): no ptrace or `/proc/PID/mem` access to processes outside it, which are pid 1
/// and the relay; from ABI 6 also no signals to them and no abstract sockets of others. It limits no file access.
pub(crate) fn enter_landlock_domain() -> nix::Result<u32> {
    prctl::set_no_new_privs()?;
    let abi = match sys::landlock_abi() {
        Err(Errno::ENOSYS | Errno::EOPNOTSUPP) => return Ok(0),
        other => other?,
    };
    match abi {
        6.. => sys::landlock_scope_domain()?,
        // A domain with any file right forbids renames between directories unless REFER is granted again.
        2..=5 => sys::landlock_refer_domain()?,
        // ABI 1 cannot grant them: a stage that could not rename would cost more than this layer gives.
        _ => return Ok(0),
    }
    Ok(abi)
}

/// Installs the program that the host side sent, if any.
pub(crate) fn install_filter(program: &[u8]) -> nix::Result<()> {
    if program.is_empty() { Ok(()) } else { sys::install_seccomp_filter(program) }
}

//! Starts a program as pid 1 of new namespaces: clone(2) with a child that shares this process's memory until it executes.

use std::ffi::{CStr, CString, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SigSet, SigmaskHow};

use super::PidFd;
use super::shared_memory::clone_in_memory;
use super::start::{close_all_but, close_range, join_new_session_keyring};

/// The namespaces of a sandbox, all new. None of the parent's processes, networks or mounts is in them.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// A step of the child before it executes the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BirthStep {
    /// Making the namespaces.
    Namespaces,
    /// Anything else in front of the next one.
    Prepare,
    /// Executing the program.
    Execute,
    /// Any of these: the child was killed, as a filter does with a call that it refuses.
    Killed,
}

/// The memory that the child shares with this process.
struct Shared<'a> {
    image: RawFd,
    null: RawFd,
    argument: &'a CStr,
    /// Descriptors that stay open under the same numbers, sorted.
    kept: &'a [RawFd],
    failure: Option<(BirthStep, Errno)>,
}

/// Executes a program as pid 1 of new namespaces, with one argument. It has every capability in its user namespace, and no user there
/// until the maps are written. Every signal is blocked. Standard input, output and error are `/dev/null`.
///
/// The kernel sends it SIGTERM when the thread that calls this ends. Its end sends no signal to this process.
///
/// # Errors
/// Returns the step that failed, with the kernel's answer. No process is left then.
pub(crate) fn start_in_namespaces(
    program: &File,
    argument: &CString,
    mut kept: Vec<RawFd>,
) -> Result<(libc::pid_t, PidFd), (BirthStep, Errno)> {
    let prepare = |errno| (BirthStep::Prepare, errno);
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|error| prepare(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))))?;
    kept.push(program.as_raw_fd());
    kept.sort_unstable();
    let mut shared = Shared {
        image: program.as_raw_fd(),
        null: null.as_raw_fd(),
        argument: argument.as_c_str(),
        kept: &kept,
        failure: None,
    };
    let mut stack = [MaybeUninit::uninit(); _];
    // No handler of this process may run in the child, which shares its memory.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(prepare)?;
    let mut descriptor: libc::c_int = -1;
    let flags = NAMESPACES | libc::CLONE_VFORK | libc::CLONE_PIDFD;
    // SAFETY: this thread waits until the child has executed the program or ended, so both use the shared memory one after the other.
    // `begin` only makes system calls. The pointers are to live locals.
    let child =
        unsafe { clone_in_memory(begin, (&raw mut shared).cast(), flags, &mut stack, &raw mut descriptor) };
    // This cannot fail: the mask came from the kernel.
    let _ = mask.thread_set_mask();
    let child = child.map_err(|errno| (BirthStep::Namespaces, errno))?;
    // SAFETY: the system call returned a new descriptor that nothing else owns; the kernel makes it close-on-exec.
    let process = PidFd(unsafe { OwnedFd::from_raw_fd(descriptor) });
    let has_ended = || {
        let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) != Ok(0)
    };
    match shared.failure.or_else(|| has_ended().then_some((BirthStep::Killed, Errno::EPERM))) {
        None => Ok((child, process)),
        Some(failure) => {
            let _ = process.reap();
            Err(failure)
        }
    }
}

extern "C" fn begin(shared: *mut c_void) -> libc::c_int {
    // SAFETY: the pointer is to the parent's `Shared`, which the parent does not use before this process has ended or executed.
    let shared = unsafe { &mut *shared.cast::<Shared<'_>>() };
    let Err(failure) = execute(shared);
    shared.failure = Some(failure);
    1
}

fn execute(shared: &Shared<'_>) -> Result<std::convert::Infallible, (BirthStep, Errno)> {
    let arguments = [c"exeat-init".as_ptr(), shared.argument.as_ptr(), ptr::null()];
    let environment: [*const libc::c_char; 1] = [ptr::null()];
    prepare(shared).map_err(|errno| (BirthStep::Prepare, errno))?;
    // SAFETY: the lists are of C strings and end with null; the descriptor is open. On success nothing here runs any more.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            shared.image,
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    Err((BirthStep::Execute, Errno::last()))
}

fn prepare(shared: &Shared<'_>) -> Result<(), Errno> {
    // SAFETY: each call takes numbers, for this process alone: it has its own table of descriptors.
    unsafe {
        for stream in 0..3 {
            Errno::result(libc::dup2(shared.null, stream))?;
        }
        // This closes the parent's end of the control socket first of all: end of file on the other end means the parent's death.
        close_all_but(3, shared.kept);
        Errno::result(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0))?;
    }
    nix::unistd::setsid()?;
    join_new_session_keyring()?;
    keep_capabilities()?;
    close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)?;
    for fd in shared.kept.iter().filter(|fd| **fd != shared.image) {
        // SAFETY: sets the flags of a descriptor of this process.
        Errno::result(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
    }
    Ok(())
}

/// Keeps the capabilities of the new user namespace across execve(2), which takes them from a process without a mapped uid 0
/// (capabilities(7), "Ambient").
fn keep_capabilities() -> Result<(), Errno> {
    let mut sets = super::capability_sets()?;
    for [_, permitted, inheritable] in &mut sets {
        *inheritable = *permitted;
    }
    // SAFETY: both have the layout that the version in the header says.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, super::THIS_THREAD.as_ptr(), sets.as_ptr()) })?;
    let has = |capability: usize| {
        sets.get(capability / 32).is_some_and(|[_, permitted, _]| permitted & (1 << (capability % 32)) != 0)
    };
    for capability in (0..64).filter(|capability| has(*capability)) {
        // SAFETY: takes numbers.
        Errno::result(unsafe {
            libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, capability, 0, 0)
        })?;
    }
    Ok(())
}

/// Makes a file in memory that holds a program, and that nobody can change.
pub(crate) fn sealed_program(bytes: &[u8]) -> io::Result<File> {
    /// Linux 6.3: without it, some kernels make a file that cannot be executed (memfd_create(2)).
    const MFD_EXEC: libc::c_uint = 0x10;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(c"stage2", flags | MFdFlags::from_bits_retain(MFD_EXEC));
    let file = match file {
        Err(Errno::EINVAL) => memfd_create(c"stage2", flags),
        other => other,
    }?;
    let file = File::from(file);
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0)?;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: takes numbers.
    Errno::result(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

//! Other processes of the sandbox: its pid 1, its relay, its parent.

use std::fs::{self, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{FromRawFd, OwnedFd};

use nix::libc;
use nix::unistd::Pid;

use crate::{ProbeResult, check, number};

/// Attaches to a process.
pub(crate) fn ptrace(pid: &str) -> ProbeResult {
    nix::sys::ptrace::seize(Pid::from_raw(number(pid)?), nix::sys::ptrace::Options::empty())?;
    Ok("ok".into())
}

/// Stops a child process, reads its memory and lets it continue, as a debugger does.
pub(crate) fn trace_child() -> ProbeResult {
    let mut child = std::process::Command::new("sleep").arg("30").spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    let traced = nix::sys::ptrace::attach(pid).and_then(|()| {
        nix::sys::wait::waitpid(pid, None)?;
        let registers = nix::sys::ptrace::getregs(pid)?;
        nix::sys::ptrace::detach(pid, None)?;
        Ok(registers)
    });
    child.kill()?;
    child.wait()?;
    traced?;
    Ok("ok".into())
}

/// Takes a descriptor out of a process.
pub(crate) fn steal_fd(pid: &str) -> ProbeResult {
    let pid: i32 = number(pid)?;
    // SAFETY: integers alone; the descriptor is new and ours.
    let pidfd = unsafe { check(libc::syscall(libc::SYS_pidfd_open, pid, 0))? };
    let mut last = io::Error::from_raw_os_error(libc::EBADF);
    for fd in 0..64 {
        // SAFETY: as above.
        match check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0) }) {
            Ok(stolen) => {
                // SAFETY: a new descriptor that nothing else owns.
                drop(unsafe { OwnedFd::from_raw_fd(i32::try_from(stolen).map_err(io::Error::other)?) });
                return Ok(format!("ok: {fd}"));
            }
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Writes one byte back to its place, in the first writable mapping of a process.
pub(crate) fn write_memory(pid: &str) -> ProbeResult {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = maps
        .lines()
        .find(|line| line.contains(" rw"))
        .ok_or_else(|| io::Error::other("no writable mapping"))?;
    let start = line.split('-').next().unwrap_or("");
    let start = u64::from_str_radix(start, 16).map_err(io::Error::other)?;
    let mut memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    memory.seek(SeekFrom::Start(start))?;
    let mut byte = [0];
    io::Read::read_exact(&mut memory, &mut byte)?;
    memory.seek(SeekFrom::Start(start))?;
    memory.write_all(&byte)?;
    Ok("ok".into())
}

/// Prints the environment of a process, on one line.
pub(crate) fn environ(pid: &str) -> ProbeResult {
    let bytes = fs::read(format!("/proc/{pid}/environ"))?;
    Ok(format!("ok: {}", String::from_utf8_lossy(&bytes).replace('\0', " ")))
}

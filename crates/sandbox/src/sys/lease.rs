//! Leases: nobody can open a file for writing while this process has a lease on it (fcntl(2), "Leases").

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt as _;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{AccessFlags, access, setfsuid};

/// include/uapi/asm-generic/fcntl.h.
const F_SETSIG: libc::c_int = 10;

/// Returns whether anybody has a regular file open for writing, also through a shared map of memory or a descriptor on its way
/// through a socket. `file` is open for reading only. Nobody has whom this process may be if it may not write the file.
///
/// # Errors
/// Returns errors of [`Lease::new`] but `WouldBlock`: `PermissionDenied` only if this process may write the file, and cannot ask as its
/// owner, which takes CAP_SETUID.
pub fn has_writer(file: File) -> io::Result<bool> {
    let mut taken = take(&file);
    if taken == Err(Errno::EACCES) {
        let owner = file.metadata()?.uid();
        // For this thread alone. Where that is not allowed, the second call changes nothing either (setfsuid(2)).
        let caller = setfsuid(owner.into());
        taken = take(&file);
        setfsuid(caller);
    }
    match taken {
        Ok(()) => Ok(false),
        Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::EACCES) if !is_writable(&file) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn is_writable(file: &File) -> bool {
    access(format!("/proc/self/fd/{}", file.as_raw_fd()).as_str(), AccessFlags::W_OK) != Err(Errno::EACCES)
}

/// Takes a lease, which ends with the descriptor.
fn take(file: &File) -> nix::Result<()> {
    let fd = file.as_raw_fd();
    // SAFETY: each call takes numbers. The default signal of a lease is SIGIO, which would end this process; SIGURG is ignored by
    // default. After the last call, the kernel sends no signal at all.
    unsafe {
        Errno::result(libc::fcntl(fd, F_SETSIG, libc::SIGURG))?;
        Errno::result(libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK))?;
        Errno::result(libc::fcntl(fd, libc::F_SETOWN, 0))?;
    }
    Ok(())
}

/// A read lease on a regular file. Opening the file for writing blocks until this is dropped, for at most the 45 seconds of
/// `/proc/sys/fs/lease-break-time`.
#[derive(Debug)]
pub struct Lease(File);

impl Lease {
    /// Takes a lease on a file that was opened for reading only.
    ///
    /// # Errors
    /// Returns `WouldBlock` while anybody has the file open for writing, `PermissionDenied` for another user's file without
    /// CAP_LEASE, and `InvalidInput` if the file system has no leases.
    pub fn new(file: File) -> io::Result<Self> {
        take(&file)?;
        Ok(Self(file))
    }

    /// Returns the file, with its offset at the start unless it was read before.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Whether nobody waits to write to the file.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        // SAFETY: takes numbers. The call returns the type that the lease will have next (fcntl_getlease, fs/locks.c).
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
    }
}

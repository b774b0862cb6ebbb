//! Host trees as detached mounts, and maps that change the owners in them (open_tree(2), mount_setattr(2), move_mount(2),
//! user_namespaces(7)).

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::stat::fstat;

use super::shared_memory::{Stack, clone_in_memory};

/// A map of users for mounts: a user namespace without processes.
#[derive(Debug)]
pub struct UserMap(OwnedFd);

impl UserMap {
    /// Makes a map from the lines of `/proc/PID/uid_map` (user_namespaces(7)): the id on the disk, the id in the mount, and how many.
    ///
    /// This starts a process that does nothing, and that has ended when this returns.
    ///
    /// # Errors
    /// Returns the error of clone(2), such as `EPERM` or `ENOSPC` where user namespaces are restricted, and the kernel's answer to
    /// the maps: `EPERM` without CAP_SETUID and CAP_SETGID, and for uid 0 without CAP_SETFCAP since Linux 5.12; `EINVAL` for an
    /// invalid map.
    pub fn new(uids: &str, gids: &str) -> io::Result<Self> {
        let child = Sleeper::start()?;
        let proc = format!("/proc/{}", child.pid);
        fs::write(format!("{proc}/uid_map"), uids)?;
        fs::write(format!("{proc}/gid_map"), gids)?;
        Ok(Self(File::open(format!("{proc}/ns/user"))?.into()))
    }
}

/// A process in a new user namespace. Dropping it ends the process.
struct Sleeper {
    pid: libc::pid_t,
    _stack: Box<Stack>,
}

impl Sleeper {
    fn start() -> io::Result<Self> {
        // SAFETY: the bytes of a stack need no value.
        let mut stack = unsafe { Box::<Stack>::new_uninit().assume_init() };
        let parent = ptr::without_provenance_mut(nix::unistd::getpid().as_raw().cast_unsigned() as usize);
        // No signal at its end, so that other code in this process that waits for any child does not see it: see __WALL in wait(2). It
        // shares the descriptors and uses none.
        let flags = libc::CLONE_NEWUSER | libc::CLONE_FILES;
        // No handler of this process may run in the child, which shares its memory.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        // SAFETY: the stack is kept until the child has been reaped. `sleep` makes system calls that do not fail, and uses only a number.
        let child = unsafe { clone_in_memory(sleep, parent, flags, &mut stack, ptr::null_mut()) };
        // This cannot fail: the mask came from the kernel.
        let _ = mask.thread_set_mask();
        Ok(Self { pid: child?, _stack: stack })
    }
}

/// Waits for SIGKILL, or the end of the parent.
extern "C" fn sleep(parent: *mut c_void) -> c_int {
    // SAFETY: takes numbers and null pointers.
    unsafe {
        // It must not outlive a parent that is killed now, or was before this call.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        while libc::getppid().cast_unsigned() as usize == parent.addr() {
            libc::syscall(libc::SYS_ppoll, 0, 0, 0, 0, 0);
        }
    }
    0
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: takes numbers only. The child is not reaped yet, so its pid is still its own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            while libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) < 0
                && Errno::last() == Errno::EINTR
            {}
        }
    }
}

/// A host tree as a detached mount. Dropping it unmounts it.
#[derive(Debug)]
pub struct HostTree {
    fd: OwnedFd,
    uid: u32,
}

impl HostTree {
    /// Copies the file or directory at a path, with the mounts in it. Later mounts in the original do not appear here. Devices in it
    /// do not work, and set-user-ID programs run without their owner's rights.
    ///
    /// # Errors
    /// Returns `ELOOP` for a path with a symbolic link anywhere in it, which may have been added since the path was checked; `EPERM`
    /// without CAP_SYS_ADMIN; `EINVAL` for what cannot be bound; and the error of openat2(2), open_tree(2) or mount_setattr(2).
    pub fn open(path: &Path) -> io::Result<Self> {
        let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
        Self::from_descriptor(&openat2(AT_FDCWD, path, how)?)
    }

    /// Copies the tree at a descriptor, such as one from `O_PATH`.
    ///
    /// # Errors
    /// Returns an error as [`HostTree::open`] does, except for those of the path.
    pub fn from_descriptor(found: &OwnedFd) -> io::Result<Self> {
        let about = fstat(found)?;
        let flags = libc::OPEN_TREE_CLONE
            | libc::OPEN_TREE_CLOEXEC
            | libc::AT_EMPTY_PATH.cast_unsigned()
            | libc::AT_RECURSIVE.cast_unsigned();
        // SAFETY: the path is a C string; the rest are numbers.
        let fd = Errno::result(unsafe {
            libc::syscall(libc::SYS_open_tree, found.as_raw_fd(), c"".as_ptr(), flags)
        })?;
        let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
        // SAFETY: the system call returned a new descriptor that nothing else owns.
        let tree = Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, uid: about.st_uid };
        let private = libc::mount_attr {
            attr_set: libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
            attr_clr: 0,
            propagation: libc::MS_PRIVATE,
            userns_fd: 0,
        };
        tree.set(private, true)?;
        Ok(tree)
    }

    /// Returns the uid on the disk of the file that was opened, even if its name leads to another file by now.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Changes the owners in the tree. Returns false if mounts in it keep theirs because their file system does not support it.
    ///
    /// # Errors
    /// Returns `EINVAL` if the tree's file system does not support it, `EPERM` if that belongs to another user namespace or already
    /// has a map.
    pub fn map(&self, users: &UserMap) -> io::Result<bool> {
        let userns_fd = u64::try_from(users.0.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        let mapped =
            libc::mount_attr { attr_set: libc::MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd };
        // The kernel changes all mounts or none.
        match self.set(mapped, true) {
            Err(Errno::EINVAL | Errno::EPERM) => Ok(self.set(mapped, false).map(|()| false)?),
            other => Ok(other.map(|()| true)?),
        }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn set(&self, attributes: libc::mount_attr, recursive: bool) -> nix::Result<()> {
        let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
        let size = mem::size_of::<libc::mount_attr>();
        // SAFETY: the path is a C string, and the attributes are a live local of that size.
        Errno::result(unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                self.fd.as_fd().as_raw_fd(),
                c"".as_ptr(),
                flags,
                &raw const attributes,
                size,
            )
        })
        .map(drop)
    }
}

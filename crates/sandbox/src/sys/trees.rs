//! Trees of the host as mounts that are nowhere yet, and users that change places in them (open_tree(2), mount_setattr(2),
//! move_mount(2), user_namespaces(7)).

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::sys::stat::{SFlag, fstat};

/// A map of users for mounts: a user namespace that no process is in.
#[derive(Debug)]
pub struct UserMap(OwnedFd);

impl UserMap {
    /// A map with these lines, as in `/proc/PID/uid_map` (user_namespaces(7)): first the number that is on the disk, then the
    /// number that it is in the mount, then how many.
    ///
    /// Takes a process that does nothing and is gone when this returns.
    ///
    /// # Errors
    /// What clone(2) says, such as `EPERM` and `ENOSPC` where user namespaces are restricted, and what the kernel says to the
    /// maps: `EPERM` without CAP_SETUID and CAP_SETGID, and for uid 0 without CAP_SETFCAP since Linux 5.12; `EINVAL` for what is
    /// no map.
    pub fn new(uids: &str, gids: &str) -> io::Result<Self> {
        let child = Sleeper::start()?;
        let proc = format!("/proc/{}", child.0);
        fs::write(format!("{proc}/uid_map"), uids)?;
        fs::write(format!("{proc}/gid_map"), gids)?;
        Ok(Self(File::open(format!("{proc}/ns/user"))?.into()))
    }
}

/// A process in a user namespace of its own. Dropping it ends it.
struct Sleeper(libc::pid_t);

impl Sleeper {
    fn start() -> io::Result<Self> {
        let parent = nix::unistd::getpid();
        // No signal at its end, so that nobody in this process who waits for any child meets it: see __WALL in wait(2).
        let flags = libc::CLONE_NEWUSER | libc::CLONE_FILES;
        // SAFETY: without CLONE_VM this is fork(2), without the C library's handlers: the child makes system calls only, on
        // numbers, and never returns from here. It shares the descriptors and touches none.
        unsafe {
            let child = Errno::result(libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0))?;
            if child == 0 {
                // Not to outlive a parent that is killed now, or was before this call.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                while libc::getppid() == parent.as_raw() {
                    libc::poll(std::ptr::null_mut(), 0, -1);
                }
                libc::_exit(0);
            }
            Ok(Self(libc::pid_t::try_from(child).map_err(|_| Errno::ERANGE)?))
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: takes numbers only. The child is ours and not waited for yet, so the number is still its own.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            while libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL) < 0
                && Errno::last() == Errno::EINTR
            {}
        }
    }
}

/// A tree of the host as a mount of its own, which is nowhere yet. Dropping it unmounts it.
#[derive(Debug)]
pub struct Tree {
    fd: OwnedFd,
    pub(crate) is_dir: bool,
    uid: u32,
}

impl Tree {
    /// The file or directory at a path, with what is mounted in it. Nothing that is mounted in the original later shows here; no
    /// device of it works, and no program in it has its owner's rights.
    ///
    /// # Errors
    /// `ELOOP` for a path with a symbolic link anywhere in it: somebody could have put it there since the path was looked at.
    /// `EPERM` without CAP_SYS_ADMIN, `EINVAL` for what cannot be bound; what openat2(2), open_tree(2), mount_setattr(2) say.
    pub fn open(path: &Path) -> io::Result<Self> {
        let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
        Self::of(&openat2(AT_FDCWD, path, how)?)
    }

    /// The same for what has been opened, as with `O_PATH`.
    ///
    /// # Errors
    /// As in [`Tree::open`], but for the path.
    pub fn of(found: &OwnedFd) -> io::Result<Self> {
        let about = fstat(found)?;
        let is_dir = SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
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
        let tree = Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, is_dir, uid: about.st_uid };
        let private = libc::mount_attr {
            attr_set: libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
            attr_clr: 0,
            propagation: libc::MS_PRIVATE,
            userns_fd: 0,
        };
        tree.set(private, true)?;
        Ok(tree)
    }

    /// The uid on the disk that owned what was opened, and not what has its name by now.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Lets users change places in it. False: what is mounted in it keeps its own, because a file system there cannot.
    ///
    /// # Errors
    /// `EINVAL` where its file system cannot, `EPERM` where that belongs to another user namespace or its users have changed
    /// places already.
    pub fn map(&self, users: &UserMap) -> io::Result<bool> {
        let userns_fd = u64::try_from(users.0.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        let mapped =
            libc::mount_attr { attr_set: libc::MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd };
        // All of it or nothing is changed.
        match self.set(mapped, true) {
            Err(Errno::EINVAL | Errno::EPERM) => Ok(self.set(mapped, false).map(|()| false)?),
            other => Ok(other.map(|()| true)?),
        }
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

/// Where trees are mounted for bubblewrap, by a process that has their descriptors, in a mount namespace of its own.
#[derive(Debug)]
pub(crate) struct Places {
    /// A directory of ours. What is in it there is only what is mounted.
    dir: CString,
    /// Options of the file system in memory that covers it.
    options: CString,
    /// Each tree's descriptor, its place in the directory, and whether it is a directory.
    trees: Vec<(RawFd, CString, bool)>,
}

impl Places {
    /// Places below `dir`, by name. The descriptors are the caller's, and have to be open when the trees are mounted.
    pub(crate) fn new<'a>(dir: &Path, trees: impl Iterator<Item = (&'a str, &'a Tree)>) -> io::Result<Self> {
        let trees = trees.map(|(name, tree)| {
            Ok((tree.fd.as_raw_fd(), CString::new(dir.join(name).as_os_str().as_bytes())?, tree.is_dir))
        });
        let trees = trees.collect::<io::Result<Vec<_>>>()?;
        // One for each place, and for the root of it.
        let options = format!("mode=0711,size=4k,nr_inodes={}", trees.len() + 2);
        Ok(Self { dir: CString::new(dir.as_os_str().as_bytes())?, options: CString::new(options)?, trees })
    }

    /// The descriptors of the trees.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.trees.iter().map(|(fd, ..)| *fd)
    }

    /// Mounts them. This process leaves the mounts of its parent for a copy that nobody else sees.
    ///
    /// Makes system calls only: it is called between fork and exec.
    pub(crate) fn fill(&self) -> nix::Result<()> {
        const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;
        let none = std::ptr::null();
        let tmpfs = c"tmpfs".as_ptr();
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        // SAFETY: paths and options are C strings of ours, and outlive the calls; the rest are numbers and null pointers, which
        // mount(2) takes for what is not needed.
        unsafe {
            Errno::result(libc::unshare(libc::CLONE_NEWNS))?;
            let private = libc::MS_REC | libc::MS_PRIVATE;
            Errno::result(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
            let options = self.options.as_ptr().cast();
            Errno::result(libc::mount(tmpfs, self.dir.as_ptr(), tmpfs, flags, options))?;
            for (fd, place, is_dir) in &self.trees {
                Errno::result(if *is_dir {
                    libc::mkdir(place.as_ptr(), 0o700)
                } else {
                    libc::mknod(place.as_ptr(), libc::S_IFREG | 0o600, 0)
                })?;
                Errno::result(libc::syscall(
                    libc::SYS_move_mount,
                    *fd,
                    c"".as_ptr(),
                    libc::AT_FDCWD,
                    place.as_ptr(),
                    MOVE_MOUNT_F_EMPTY_PATH,
                ))?;
            }
        }
        Ok(())
    }
}

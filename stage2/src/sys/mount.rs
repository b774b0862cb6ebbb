//! Mounts: open_tree(2), move_mount(2), mount_setattr(2), fsopen(2) and the calls that make their places.

use core::ffi::CStr;

use super::call::{Errno, Number, Result, syscall};
use super::descriptor::{Descriptor, O_CLOEXEC, O_PATH, O_WRONLY};
use super::{address, address_of};

/// Attributes of a mount (mount_setattr(2)).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes(u64);

impl Attributes {
    pub(crate) const READ_ONLY: Self = Self(0x1);
    pub(crate) const NO_SET_ID: Self = Self(0x2);
    pub(crate) const NO_DEVICES: Self = Self(0x4);
    pub(crate) const NO_EXECUTION: Self = Self(0x8);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

const CLONE_NEWNS: usize = 0x2_0000;
const AT_FDCWD: usize = (-100_isize).cast_unsigned();
const AT_EMPTY_PATH: usize = 0x1000;
const AT_RECURSIVE: usize = 0x8000;

/// Moves this process into a copy of its mount namespace, in which mounts are private: neither sees those of the other
/// (mount_namespaces(7)). Needs CAP_SYS_ADMIN.
pub(crate) fn enter_new_mount_namespace() -> Result<()> {
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Unshare, [CLONE_NEWNS, 0, 0, 0, 0, 0]) }?;
    let root = super::open(c"/", O_PATH | O_CLOEXEC)?;
    set_attributes(&root, Attributes(0), true)
}

/// Moves this process into a new user namespace, in which it has every capability, and into a mount namespace of that one. Mounts there
/// do not appear on the host (mount_namespaces(7), "Restrictions on mount namespaces").
pub(crate) fn enter_new_user_namespace() -> Result<()> {
    const CLONE_NEWUSER: usize = 0x1000_0000;
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Unshare, [CLONE_NEWUSER | CLONE_NEWNS, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Copies the mount of a file or directory, with the mounts in it. Nothing is attached yet.
pub(crate) fn clone_tree(path: &CStr) -> Result<Descriptor> {
    clone_at(AT_FDCWD, path, 0)
}

/// Copies the mount of an open file or directory, with the mounts in it.
pub(crate) fn clone_open_tree(file: &Descriptor) -> Result<Descriptor> {
    clone_at(file.argument(), c"", AT_EMPTY_PATH)
}

fn clone_at(directory: usize, path: &CStr, flags: usize) -> Result<Descriptor> {
    const OPEN_TREE_CLONE: usize = 1;
    let flags = flags | OPEN_TREE_CLONE | AT_RECURSIVE | O_CLOEXEC;
    // SAFETY: `path` ends with NUL and lives across the call.
    let fd = unsafe { syscall(Number::OpenTree, [directory, address_of(path), flags, 0, 0, 0]) }?;
    // SAFETY: the descriptor is new.
    unsafe { Descriptor::from_answer(fd) }
}

/// Adds attributes to a mount, and to those in it if `recursive`. The mounts become private: later mounts of the host do not appear
/// in them (mount_namespaces(7)).
pub(crate) fn set_attributes(mount: &Descriptor, set: Attributes, recursive: bool) -> Result<()> {
    /// `struct mount_attr`.
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        userns: u64,
    }
    const MS_PRIVATE: u64 = 1 << 18;
    let attributes = MountAttr { set: set.0, clear: 0, propagation: MS_PRIVATE, userns: 0 };
    let flags = AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 };
    let size = size_of::<MountAttr>();
    let arguments = [mount.argument(), address_of(c""), flags, address(&attributes), size, 0];
    // SAFETY: the path is empty, and the pointer is to a live struct of the size given.
    unsafe { syscall(Number::MountSetattr, arguments) }.map(drop)
}

/// Attaches a detached mount at an open file or directory.
pub(crate) fn attach(mount: &Descriptor, at: &Descriptor) -> Result<()> {
    const FROM_EMPTY_AND_TO_EMPTY: usize = 0x4 | 0x40;
    let empty = address_of(c"");
    let arguments = [mount.argument(), empty, at.argument(), empty, FROM_EMPTY_AND_TO_EMPTY, 0];
    // SAFETY: the paths are empty.
    unsafe { syscall(Number::MoveMount, arguments) }.map(drop)
}

/// Makes a new file system of this kind with these options, as a detached mount.
pub(crate) fn new_file_system(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: Attributes,
) -> Result<Descriptor> {
    const FSOPEN_CLOEXEC: usize = 1;
    const FSCONFIG_SET_FLAG: usize = 0;
    const FSCONFIG_SET_STRING: usize = 1;
    const FSCONFIG_CMD_CREATE: usize = 6;
    const FSMOUNT_CLOEXEC: usize = 1;
    // SAFETY: `kind` ends with NUL. The descriptor is new.
    let context = unsafe {
        Descriptor::from_answer(syscall(Number::Fsopen, [address_of(kind), FSOPEN_CLOEXEC, 0, 0, 0, 0])?)
    }?;
    for (key, value) in options {
        let (command, value) = match value.to_bytes() {
            [] => (FSCONFIG_SET_FLAG, 0),
            _ => (FSCONFIG_SET_STRING, address_of(value)),
        };
        let arguments = [context.argument(), command, address_of(key), value, 0, 0];
        // SAFETY: both texts end with NUL and live across the call; a flag has no value.
        unsafe { syscall(Number::Fsconfig, arguments) }?;
    }
    // SAFETY: takes numbers.
    unsafe { syscall(Number::Fsconfig, [context.argument(), FSCONFIG_CMD_CREATE, 0, 0, 0, 0]) }?;
    let attributes = usize::try_from(attributes.0).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: takes numbers. The descriptor is new.
    unsafe {
        let fd = syscall(Number::Fsmount, [context.argument(), FSMOUNT_CLOEXEC, attributes, 0, 0, 0])?;
        Descriptor::from_answer(fd)
    }
}

/// Makes this mount the root, and detaches the old one with the mounts in it. `between` is the number of mounts on top of the old root's
/// own directory, below this one. The process is in the new root then.
pub(crate) fn replace_root(root: &Descriptor, between: usize) -> Result<()> {
    const MNT_DETACH: usize = 2;
    let here = address_of(c".");
    // SAFETY: the paths end with NUL. After the second call the old root is on top of the new one, and those between are on top of it:
    // pivot_root(2), "pivot_root(".", ".")". Each further call detaches the uppermost.
    unsafe {
        syscall(Number::Fchdir, [root.argument(), 0, 0, 0, 0, 0])?;
        syscall(Number::PivotRoot, [here, here, 0, 0, 0, 0])?;
        for _ in 0..=between {
            syscall(Number::Umount2, [here, MNT_DETACH, 0, 0, 0, 0])?;
        }
    }
    super::chdir(c"/")
}

/// Opens a path below a directory, without links, as O_PATH does.
pub(crate) fn open_below(root: &Descriptor, path: &CStr) -> Result<Descriptor> {
    open_how(root, path, O_PATH)
}

/// Opens a file below a directory for writing, without links.
pub(crate) fn open_to_write_below(root: &Descriptor, path: &CStr) -> Result<Descriptor> {
    open_how(root, path, O_WRONLY)
}

fn open_how(root: &Descriptor, path: &CStr, flags: usize) -> Result<Descriptor> {
    /// `struct open_how` (openat2(2)).
    #[repr(C)]
    struct OpenHow {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
    const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
    const RESOLVE_NO_SYMLINKS: u64 = 0x04;
    const RESOLVE_IN_ROOT: u64 = 0x10;
    let how = OpenHow {
        flags: (flags | O_CLOEXEC) as u64,
        mode: 0,
        resolve: RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT,
    };
    let arguments = [root.argument(), address_of(path), address(&how), size_of::<OpenHow>(), 0, 0];
    // SAFETY: `path` ends with NUL, and the pointer is to a live struct of the size given. The descriptor is new.
    unsafe { Descriptor::from_answer(syscall(Number::Openat2, arguments)?) }
}

/// Makes a directory in an open one.
pub(crate) fn make_directory(parent: &Descriptor, name: &CStr, mode: u32) -> Result<()> {
    // SAFETY: `name` ends with NUL and lives across the call.
    unsafe { syscall(Number::Mkdirat, [parent.argument(), address_of(name), mode as usize, 0, 0, 0]) }
        .map(drop)
}

/// Makes a file in an open directory, and opens it for writing. Fails if the name exists.
pub(crate) fn make_file(parent: &Descriptor, name: &CStr, mode: u32) -> Result<Descriptor> {
    const O_CREAT: usize = 0o100;
    const O_EXCL: usize = 0o200;
    let flags = O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC;
    let arguments = [parent.argument(), address_of(name), flags, mode as usize, 0, 0];
    // SAFETY: `name` ends with NUL and lives across the call. The descriptor is new.
    unsafe { Descriptor::from_answer(syscall(Number::Openat, arguments)?) }
}

/// Makes a symbolic link in an open directory.
pub(crate) fn make_link(target: &CStr, parent: &Descriptor, name: &CStr) -> Result<()> {
    let arguments = [address_of(target), parent.argument(), address_of(name), 0, 0, 0];
    // SAFETY: both texts end with NUL and live across the call.
    unsafe { syscall(Number::Symlinkat, arguments) }.map(drop)
}

/// Removes a file from an open directory.
pub(crate) fn remove_file(parent: &Descriptor, name: &CStr) -> Result<()> {
    // SAFETY: `name` ends with NUL and lives across the call.
    unsafe { syscall(Number::Unlinkat, [parent.argument(), address_of(name), 0, 0, 0, 0]) }.map(drop)
}

/// Whether a name in an open directory exists and may be written by this process.
pub(crate) fn is_writable(parent: &Descriptor, name: &CStr) -> Result<bool> {
    const W_OK: usize = 2;
    // SAFETY: `name` ends with NUL and lives across the call.
    match unsafe { syscall(Number::Faccessat, [parent.argument(), address_of(name), W_OK, 0, 0, 0]) } {
        Ok(_) => Ok(true),
        Err(Errno::ACCESS | Errno::NOENT | Errno::ROFS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether an open file is a directory.
pub(crate) fn is_directory(file: &Descriptor) -> Result<bool> {
    const S_IFDIR: u16 = 0o040_000;
    kind(file).map(|kind| kind == S_IFDIR)
}

/// Whether an open file is a Unix socket.
pub(crate) fn is_socket(file: &Descriptor) -> Result<bool> {
    const S_IFSOCK: u16 = 0o140_000;
    kind(file).map(|kind| kind == S_IFSOCK)
}

/// Returns the kind of an open file, as in its mode (inode(7)).
fn kind(file: &Descriptor) -> Result<u16> {
    /// `struct statx` (statx(2)), up to the mode; it has 256 bytes.
    #[repr(C, align(8))]
    struct Statx {
        before: [u8; 28],
        mode: u16,
        rest: [u8; 226],
    }
    const STATX_TYPE: usize = 1;
    const S_IFMT: u16 = 0o170_000;
    let mut about = Statx { before: [0; 28], mode: 0, rest: [0; 226] };
    let arguments =
        [file.argument(), address_of(c""), AT_EMPTY_PATH, STATX_TYPE, super::address_mut(&mut about), 0];
    // SAFETY: the path is empty, and the kernel writes one struct of 256 bytes through the pointer.
    unsafe { syscall(Number::Statx, arguments) }?;
    Ok(about.mode & S_IFMT)
}

//! Reads what configurations name, and no more of it than is worth it: a stage of an earlier run may have named anything.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::names::is_absent;
use nix::fcntl::OFlag;
use nix::sys::statfs::{self, FsType, fstatfs};

use crate::bounds::LONGEST_PATH;
use crate::git_config::{Setting, settings};
use crate::git_path::{ReadPath, is_whole};

/// Bytes of a configuration.
const CONFIG: u64 = 1 << 20;
/// Bytes of all configurations together: they take about 50 ms.
const TOGETHER: u64 = 8 << 20;
/// Bytes of a file that holds one path: with so many it is too long.
const ONE_PATH: u64 = LONGEST_PATH as u64 + 1;

/// File systems whose files are the kernel's words, made when they are read: to read one may wait for ever, and may take away
/// what somebody else was to read (statfs(2)).
const OF_THE_KERNEL: [FsType; 13] = [
    statfs::PROC_SUPER_MAGIC,
    statfs::SYSFS_MAGIC,
    statfs::TRACEFS_MAGIC,
    statfs::DEBUGFS_MAGIC,
    statfs::SECURITYFS_MAGIC,
    statfs::SELINUX_MAGIC,
    statfs::SMACK_MAGIC,
    statfs::CGROUP_SUPER_MAGIC,
    statfs::CGROUP2_SUPER_MAGIC,
    statfs::BPF_FS_MAGIC,
    statfs::RDTGROUP_SUPER_MAGIC,
    statfs::DEVPTS_SUPER_MAGIC,
    statfs::XENFS_SUPER_MAGIC,
];

/// The unread part of a file, with the reason.
#[derive(Debug)]
pub(super) enum Unread {
    /// The file does not exist, or is not a regular file.
    Absent,
    /// The file could not be opened or read.
    Closed,
    /// The file belongs to the kernel.
    Kernel,
    /// The part beyond [`CONFIG`].
    Rest,
    /// The part beyond [`TOGETHER`].
    Spent,
}

/// Configurations, each read once.
#[derive(Debug)]
pub(super) struct Files {
    known: BTreeMap<PathBuf, Rc<[Setting]>>,
    /// Bytes that can still be read.
    room: u64,
}

impl Default for Files {
    fn default() -> Self {
        Self { known: BTreeMap::new(), room: TOGETHER }
    }
}

impl Files {
    /// The settings of a file as far as it can be read, and what was not.
    pub(super) fn settings(&mut self, path: &Path) -> (Rc<[Setting]>, Option<Unread>) {
        if let Some(known) = self.known.get(path) {
            return (known.clone(), None);
        }
        let most = CONFIG.min(self.room);
        let (bytes, unread) = match read(path, most + 1) {
            Ok(bytes) => (bytes, None),
            Err(unread) => (Vec::new(), Some(unread)),
        };
        let size = bytes.len() as u64;
        self.room = self.room.saturating_sub(size);
        let unread = match unread {
            None if size <= most => None,
            None if most == CONFIG => Some(Unread::Rest),
            None => Some(Unread::Spent),
            unread => unread,
        };
        let found: Rc<[Setting]> = settings(&bytes).into();
        self.known.insert(path.to_path_buf(), found.clone());
        (found, unread)
    }
}

/// Returns the path in a file, read by one of [`git_path`](crate::git_path).
pub(super) fn path_in(file: &Path, read_path: ReadPath) -> Result<PathBuf, Unread> {
    let bytes = read(file, ONE_PATH)?;
    read_path(&bytes).map(Path::to_path_buf).ok_or(if is_whole(&bytes) {
        Unread::Absent
    } else {
        Unread::Rest
    })
}

/// The first bytes of a regular file.
fn read(path: &Path, most: u64) -> Result<Vec<u8>, Unread> {
    // A usual configuration at one go.
    let mut bytes = Vec::with_capacity(1 << 10);
    let done = open(path)?.take(most).read_to_end(&mut bytes);
    done.map_err(|error| why(&error))?;
    Ok(bytes)
}

/// Opens a regular file, and nothing else: a stage of another run may put a pipe in its place at any time, which would wait for a
/// writer, or a link to a device. So it is looked at as it was opened, before anything is done to it (open(2), `O_PATH`).
fn open(path: &Path) -> Result<File, Unread> {
    let flags = OFlag::O_PATH;
    let place = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).map_err(|it| why(&it))?;
    if !place.metadata().map_err(|error| why(&error))?.is_file() {
        return Err(Unread::Absent);
    }
    let about = fstatfs(&place).map_err(|errno| why(&errno.into()))?;
    if OF_THE_KERNEL.contains(&about.filesystem_type()) {
        return Err(Unread::Kernel);
    }
    // A lease that somebody has on the file is not waited for either.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let again = format!("/proc/self/fd/{}", place.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(again).map_err(|error| why(&error))
}

fn why(error: &io::Error) -> Unread {
    if is_absent(error) { Unread::Absent } else { Unread::Closed }
}

//! Opens files for reading, and accepts regular files only.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a file of exeat for reading. Never waits, and does not follow a link.
///
/// # Errors
/// Fails as open(2) does, and for everything but a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    match open_with(path, OFlag::O_NOFOLLOW) {
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ELOOP as i32) => {
            Err(io::Error::other("it is a symbolic link"))
        }
        opened => opened,
    }
}

/// Opens a file that a user has named, also through a link.
///
/// # Errors
/// Fails as [`open`] does.
pub fn open_linked(path: &Path) -> io::Result<File> {
    open_with(path, OFlag::empty())
}

fn open_with(path: &Path, flags: OFlag) -> io::Result<File> {
    let flags = flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

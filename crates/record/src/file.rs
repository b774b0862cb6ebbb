//! Opening what is read back: a regular file, whatever somebody put in its place.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a file of exeat's own for reading. Waits for nobody, and follows no link.
///
/// # Errors
/// Those of open(2), and what is there where it is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    match open_with(path, OFlag::O_NOFOLLOW) {
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ELOOP as i32) => {
            Err(io::Error::other("it is a symbolic link"))
        }
        opened => opened,
    }
}

/// Opens a file that a user has named, which may be by a link.
///
/// # Errors
/// As [`open`].
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

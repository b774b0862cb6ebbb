//! Saves the content of a file, to write it back later.

use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use exeat_files::place::FilePlace;
use exeat_sandbox::Lease;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, fchown, geteuid};

/// The maximal size of a saved file.
pub(super) const MOST: u64 = 256 << 10;

/// The content, mode and owner of a file.
#[derive(Debug)]
pub(crate) struct SavedFile {
    pub(super) bytes: Vec<u8>,
    about: Metadata,
}

impl SavedFile {
    /// Reads an open file.
    ///
    /// # Errors
    /// Returns errors of read(2), `InvalidInput` for anything but a regular file, and `FileTooLarge` beyond `most` bytes.
    pub(super) fn read(file: &File, most: u64) -> io::Result<Self> {
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The spare capacity avoids reading the end in small pieces.
        let mut bytes = Vec::with_capacity(usize::try_from(about.len().min(most)).unwrap_or(0) + 64);
        let read = file.take(most + 1).read_to_end(&mut bytes)?;
        if read as u64 > most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(Self { bytes, about })
    }

    /// Writes the content as a new file that replaces whatever has the name.
    ///
    /// # Errors
    /// Returns the error that prevents writing.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let write = |out: &mut dyn io::Write| out.write_all(&self.bytes);
        FilePlace::open(path)?.replace_with(0o600, write, |file| self.give_owner_and_mode(file))
    }

    /// Writes the content as a new file without a name, on the file system of a directory. From then on, opening it for writing waits.
    ///
    /// # Errors
    /// Returns the error that prevents writing, and errors of [`Lease::new`].
    pub(super) fn write_unnamed(&self, dir: BorrowedFd<'_>) -> io::Result<Lease> {
        let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(dir, ".", flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        file.write_all(&self.bytes)?;
        self.give_owner_and_mode(&file)?;
        let readable = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        drop(file);
        Lease::new(readable)
    }

    fn give_owner_and_mode(&self, file: &File) -> io::Result<()> {
        if geteuid().is_root() {
            fchown(file, Some(Uid::from_raw(self.about.uid())), Some(Gid::from_raw(self.about.gid())))?;
        }
        file.set_permissions(self.about.permissions())
    }

    /// Returns whether owner and mode are equal.
    pub(super) fn has_owner_and_mode_of(&self, other: &Self) -> bool {
        let all = |it: &Self| (it.about.uid(), it.about.gid(), it.about.mode());
        all(self) == all(other)
    }
}

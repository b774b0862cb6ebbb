//! Saves the content of a file, to write it back later.

use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use exeat_files::place::FilePlace;
use exeat_files::quarantine::{Leftover, Watch};
use exeat_sandbox::{Lease, has_writer};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, fchown, geteuid};

/// The maximal size of a saved file.
pub(super) const MOST: u64 = 256 << 10;

/// The file that had the name before a saved file was put back.
pub(crate) enum Before {
    /// A file with the same content, which stays.
    Same,
    /// No file.
    Missing,
    /// Another file, which is in the quarantine. Until the lease is dropped, opening the new file for writing waits.
    Replaced(Leftover, Lease),
}

/// Finds the innermost watched tree that contains a path, and the path below it.
pub(super) fn tree_of<'a>(watches: &'a [Watch], host: &Path) -> io::Result<(&'a Watch, PathBuf)> {
    let below = |watch: &Watch| Some(host.strip_prefix(&watch.list().tree).ok()?.to_path_buf());
    let trees = watches.iter().filter_map(|watch| Some((watch, below(watch)?)));
    let innermost = trees.min_by_key(|(_, name)| name.as_os_str().len());
    innermost.ok_or_else(|| io::Error::other("it is in no tree that is watched"))
}

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

    /// Puts the content in place of what has the name, in one step: if the name were free in between, another run would take that for a
    /// removal, and the new file for its stage's.
    ///
    /// # Errors
    /// Returns the error that prevents this, such as `EOPNOTSUPP` on a file system without files that have no name.
    pub(crate) fn put_back(&self, host: &Path, watches: &[Watch]) -> io::Result<Before> {
        let (watch, name) = tree_of(watches, host)?;
        let before = self.put_in_place(watch, &name)?;
        if let Err(why) = watch.note_put_back(&name) {
            tracing::warn!(host = %host.display(), %why, "if exeat is killed, the next start moves it");
        }
        Ok(before)
    }

    fn put_in_place(&self, watch: &Watch, name: &Path) -> io::Result<Before> {
        // Another run in the directory may put the same file back.
        let lock = watch.lock()?;
        let is_same = watch.open_replaced(name, name.file_name().unwrap_or_default()).and_then(|file| {
            let now = Self::read(&file, MOST)?;
            Ok(now.bytes == self.bytes && now.has_owner_and_mode_of(self) && !has_writer(file)?)
        });
        if is_same.unwrap_or(false) {
            return Ok(Before::Same);
        }
        let lease = self.write_unnamed(watch.tree())?;
        // A run that does not recognize it compares the contents.
        let _ = watch.note_own(lease.file());
        let replaced = watch.replace(name, lease.file());
        // What makes a quarantine takes the lock itself.
        drop(lock);
        match replaced {
            Ok(old) => Ok(Before::Replaced(watch.settle_replaced(name, &old), lease)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                watch.give_name(name, lease.file()).map(|()| Before::Missing)
            }
            Err(error) => Err(error),
        }
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

//! A file that is written whole or not at all, in a place that a stage may have changed in the meantime.
//!
//! It is written beside its place and renamed into it, below a directory that was opened before: whatever a stage has made of
//! the place since, nothing outside that directory is written, and what is read there afterwards is ours.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use exeat_files::walk::LinkRule;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

/// A place for a file.
#[derive(Debug)]
pub(crate) struct WholeFile {
    directory: OwnedFd,
    name: PathBuf,
}

impl WholeFile {
    /// Opens the directory of a path, and finds out whether a file can be made there.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let (directory, name) = LinkRule::from_env().walk_parent(path)?;
        let file = Self { directory: directory.file, name: name.into() };
        let draft = draft(&file.name);
        file.create(&draft)?;
        unlinkat(&file.directory, &draft, UnlinkatFlags::NoRemoveDir)?;
        Ok(file)
    }

    /// Removes what is in its place.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match unlinkat(&self.directory, self.name.as_path(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(nix::Error::ENOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts these bytes in its place.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let draft = draft(&self.name);
        let written = self.create(&draft)?.write_all(bytes);
        let written = written
            .and_then(|()| Ok(renameat(&self.directory, &draft, &self.directory, self.name.as_path())?));
        written.inspect_err(|_| {
            // The first error tells more than a second one would.
            let _ = unlinkat(&self.directory, &draft, UnlinkatFlags::NoRemoveDir);
        })
    }

    fn create(&self, name: &Path) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // A stage of an earlier run may have left something at the draft's name; it is no one's.
        let _ = unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir);
        Ok(openat(&self.directory, name, flags, Mode::from_bits_truncate(0o666))?.into())
    }
}

/// The name under which a file is written before it is moved to its place.
pub(crate) fn draft(name: &Path) -> PathBuf {
    PathBuf::from(format!(".{}.exeat-{}", name.display(), std::process::id()))
}

//! A place for a file that exeat writes, where a stage may have changed something in the meantime.
//!
//! The directory is opened once, through the link rule. What is written whole is written beside the place and renamed into it:
//! whatever a stage has made of the place since, nothing outside that directory is written, and what is read there afterwards
//! is ours.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::quarantine::random;
use crate::walk::LinkRule;

/// A place for a file.
#[derive(Debug)]
pub struct FilePlace {
    directory: OwnedFd,
    path: PathBuf,
    name: OsString,
}

impl FilePlace {
    /// Opens the directory of a path. Its last name may be missing, and is not followed if it is a link.
    ///
    /// # Errors
    /// What keeps the link rule from the directory; `IsADirectory` where there is one at the place itself.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let (directory, name) = LinkRule::from_env().walk_parent(path)?;
        Ok(Self { path: directory.real.join(&name), directory: directory.file, name })
    }

    /// Finds out whether a file can be made there.
    ///
    /// # Errors
    /// What keeps it from being made.
    pub fn checked(self) -> io::Result<Self> {
        let (draft, _) = self.draft(0o600)?;
        self.unlink(&draft)?;
        Ok(self)
    }

    /// The real path, as it was when the directory was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory, opened with `O_PATH`.
    #[must_use]
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Removes what is there.
    ///
    /// # Errors
    /// What unlinkat(2) says, if something is there.
    pub fn remove(&self) -> io::Result<()> {
        match self.unlink(&self.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Puts a new file with these bytes there, whole or not at all.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.replace(0o666, |out| out.write_all(bytes))
    }

    /// Puts a new file of this mode there, whole or not at all.
    ///
    /// # Errors
    /// What `write` says, or what keeps the file from its place.
    pub fn replace(&self, mode: u32, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let (draft, file) = self.draft(mode)?;
        let mut out = BufWriter::new(file);
        let rename = || renameat(&self.directory, &*draft, &self.directory, &*self.name);
        write(&mut out).and_then(|()| out.flush()).and_then(|()| Ok(rename()?)).inspect_err(|_| {
            // The first error tells more than a second one would.
            let _ = self.unlink(&draft);
        })
    }

    /// Makes an empty file beside the place. No stage can have put something at its name.
    fn draft(&self, mode: u32) -> io::Result<(OsString, File)> {
        let name = OsString::from(format!(".exeat-new.{:016x}", random()));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&self.directory, &*name, flags, Mode::from_bits_truncate(mode))?;
        Ok((name, file.into()))
    }

    fn unlink(&self, name: &OsString) -> io::Result<()> {
        unlinkat(&self.directory, &**name, UnlinkatFlags::NoRemoveDir).map_err(Errno::into)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A stage may write where a file goes: it gains nothing outside, and nothing of its own passes for ours.
    #[test]
    fn l01_a_file_stays_in_the_directory_that_was_opened() {
        let root = std::env::current_exe().unwrap().with_file_name(format!("place-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let (out, precious) = (root.join("work/out"), root.join("precious"));
        fs::create_dir_all(&out).unwrap();
        fs::create_dir(root.join("elsewhere")).unwrap();
        fs::write(&precious, "mine").unwrap();
        let place = FilePlace::open(&out.join("r.json")).unwrap().checked().unwrap();
        symlink(&precious, out.join("r.json")).unwrap();
        place.replace(0o640, |out| out.write_all(b"one")).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
        let meta = fs::symlink_metadata(out.join("r.json")).unwrap();
        assert!(meta.is_file() && meta.permissions().mode() & 0o137 == 0);

        fs::rename(&out, root.join("moved")).unwrap();
        symlink(root.join("elsewhere"), &out).unwrap();
        place.replace(0o640, |out| out.write_all(b"two")).unwrap();
        assert_eq!(fs::read_to_string(root.join("moved/r.json")).unwrap(), "two");
        let fails = place.replace(0o640, |out| out.write_all(b"part").and(Err(Errno::EIO.into())));
        assert_eq!(fails.unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
        assert_eq!(fs::read_to_string(root.join("moved/r.json")).unwrap(), "two");
        assert_eq!(fs::read_dir(root.join("moved")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(root.join("elsewhere")).unwrap().count(), 0);
        place.remove().unwrap();
        place.remove().unwrap();
        // A link on the way, and a directory in the place.
        assert!(FilePlace::open(&out.join("r.json")).unwrap_err().to_string().contains("a stage could have"));
        assert_eq!(FilePlace::open(&root).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        fs::remove_dir_all(&root).unwrap();
    }
}

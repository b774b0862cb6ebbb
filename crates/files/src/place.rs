//! A place for a file that exeat writes, where a stage may have changed something in the meantime.
//!
//! The directory is opened once, through the link rule. What is written whole is written beside the place and renamed into it:
//! whatever a stage has made of the place since, nothing outside that directory is written. The stage of a run that goes on may
//! exchange what is written there for its own. That it has not is asked before the rename and after it; what it does later is not
//! known.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek as _, Write};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::quarantine::random;
use crate::walk::{End, LinkRule};

const EXCHANGED: &str = "something else was put in its place while it was written: a stage that still runs can write to this \
                         directory, so choose one that no stage can write to";

/// Where a command puts what it was asked to write.
#[derive(Debug)]
pub enum Output {
    /// A pipe, a terminal or a device: written as it stands, and never replaced.
    Stream(File),
    /// A file: replaced whole, or not at all.
    Whole(FilePlace),
}

impl Output {
    /// Opens it. A link at the place itself is replaced, unless it leads to a pipe or a device. Opening a pipe waits for its reader, as
    /// a shell's `>` does; with `O_NONBLOCK` among the flags it does not.
    ///
    /// # Errors
    /// What keeps it from being opened, or a file from being made there.
    pub fn open(path: &Path, flags: OFlag) -> io::Result<Self> {
        let is_special = |end: &End| end.metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
        match LinkRule::from_env().walk(path).ok().filter(is_special) {
            Some(end) => {
                let mut options = OpenOptions::new();
                options.write(true).custom_flags(flags.bits());
                options.open(format!("/proc/self/fd/{}", end.file.as_raw_fd())).map(Self::Stream)
            }
            None => FilePlace::open(path).and_then(FilePlace::checked).map(Self::Whole),
        }
    }

    /// Writes it, where it is a file with this mode.
    ///
    /// # Errors
    /// What `write` says, or what keeps the file from its place.
    pub fn write(
        &self,
        mode: u32,
        mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::Stream(file) => {
                let mut out = BufWriter::new(file);
                write(&mut out).and_then(|()| out.flush())
            }
            Self::Whole(place) => place.replace(mode, write),
        }
    }
}

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

    /// Puts a new file of this mode there, whole or not at all. What a stage puts there instead is removed, and it is tried once
    /// more: `write` is called again then.
    ///
    /// # Errors
    /// What `write` says, or what keeps the file from its place.
    pub fn replace(
        &self,
        mode: u32,
        mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        for _ in 0..2 {
            let (draft, file) = self.draft(mode)?;
            let mut out = BufWriter::new(file);
            let written = write(&mut out).and_then(|()| out.flush());
            let placed = written.and_then(|()| self.place(&draft, out.get_mut()));
            if let Ok(true) = placed {
                return Ok(());
            }
            // The first error tells more than a second one would.
            let _ = self.unlink(&draft);
            placed?;
        }
        Err(io::Error::other(EXCHANGED))
    }

    /// Renames a file that was written into its place, and says whether it is there.
    fn place(&self, draft: &OsStr, file: &mut File) -> io::Result<bool> {
        let written = file.stream_position()?;
        let is_there = |name: &OsStr| match fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => Ok(false),
            named => {
                let (named, own) = (named?, fstat(&*file)?);
                // With a second name a later stage could write to it.
                let is_whole = own.st_nlink == 1 && u64::try_from(own.st_size) == Ok(written);
                Ok::<_, Errno>(is_whole && (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino))
            }
        };
        if !is_there(draft)? {
            return Ok(false);
        }
        match renameat(&self.directory, draft, &self.directory, &*self.name) {
            // The draft is gone, or something else has its name now.
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(false),
            renamed => renamed?,
        }
        let is_there = is_there(&self.name)?;
        if !is_there {
            // It would be taken for ours.
            self.remove()?;
        }
        Ok(is_there)
    }

    /// Makes an empty file beside the place.
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

    /// The stage of another run that goes on in the directory takes the draft's name for something of its own, once or again and
    /// again, at any moment.
    #[test]
    fn l10_what_a_stage_puts_in_the_place_of_a_draft_does_not_pass_for_ours() {
        let root = std::env::current_exe().unwrap().with_file_name(format!("draft-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        let (place, prepared) = (FilePlace::open(&root.join("r.json")).unwrap(), root.join("prepared"));
        fs::write(&prepared, "evil").unwrap();
        let drafts = || {
            let entries = fs::read_dir(&root).unwrap().flatten().map(|entry| entry.path());
            entries.filter(|path| path.to_string_lossy().contains(".exeat-new."))
        };
        let draft = || drafts().find(|path| path.is_file()).unwrap();
        let exchange: [&dyn Fn(); 6] = [
            &|| fs::remove_file(draft()).unwrap(),
            &|| {
                let at = draft();
                fs::remove_file(&at).unwrap();
                fs::hard_link(&prepared, at).unwrap();
            },
            &|| {
                let at = draft();
                fs::remove_file(&at).unwrap();
                symlink(&prepared, at).unwrap();
            },
            &|| {
                let at = draft();
                fs::remove_file(&at).unwrap();
                fs::create_dir(at).unwrap();
            },
            &|| fs::hard_link(draft(), root.join(format!("second-{:x}", random()))).unwrap(),
            &|| fs::write(draft(), "longer than ours").unwrap(),
        ];
        for exchange in exchange {
            let written = |rounds: usize| {
                let mut left = rounds;
                place.replace(0o600, |out| {
                    if left > 0 {
                        left -= 1;
                        exchange();
                    }
                    out.write_all(b"ours")
                })
            };
            fs::write(place.path(), "old").unwrap();
            written(1).unwrap();
            assert_eq!(fs::read(place.path()).unwrap(), b"ours");
            let error = written(2).unwrap_err().to_string();
            assert!(error.contains("a stage that still runs"), "{error}");
            assert_ne!(fs::read(place.path()).unwrap_or_default(), b"evil");
            for dir in drafts() {
                fs::remove_dir(dir).unwrap();
            }
        }
        // At any moment: what is said to be written is ours.
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    for at in drafts() {
                        let _ = fs::remove_file(&at).and_then(|()| fs::hard_link(&prepared, &at));
                    }
                }
            });
            for _ in 0..500 {
                if place.write(b"ours").is_ok() {
                    assert_eq!(fs::read(place.path()).unwrap(), b"ours");
                } else {
                    assert_ne!(fs::read(place.path()).unwrap_or_default(), b"evil");
                }
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        fs::remove_dir_all(&root).unwrap();
    }
}

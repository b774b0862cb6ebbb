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
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::names::rename_new;
use crate::quarantine::random;
use crate::walk::{End, LinkRule};

const EXCHANGED: &str = "something else was put in its place while it was written: a stage that still runs can write to this \
                         directory, so choose one that no stage can write to";

const UNREAD: &str = "it is a named pipe that nobody reads: start its reader first, or remove it";
/// The longest wait for a reader of a named pipe, which a script starts just before.
const READER: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);
/// The longest time that a reader may read nothing, in milliseconds.
const STUCK: u16 = 10_000;

/// The output of a command.
#[derive(Debug)]
pub enum Output {
    /// A pipe, a terminal or a device: written as it stands, and never replaced.
    Stream(File),
    /// A pipe that has a name: any stage that writes its directory can have made it, and nobody may read it.
    NamedPipe(File),
    /// A file: replaced whole, or not at all.
    Whole(FilePlace),
}

impl Output {
    /// Opens the output. A link at the path itself is replaced, unless it leads to a pipe or a device.
    ///
    /// # Errors
    /// Returns an error if the output cannot be opened, no file can be made there, or it is a named pipe that nobody reads.
    pub fn open(path: &Path) -> io::Result<Self> {
        let is_special = |end: &End| end.metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
        let Some(end) = LinkRule::from_env().walk(path).ok().filter(is_special) else {
            return FilePlace::open(path).and_then(FilePlace::checked).map(Self::Whole);
        };
        let held = format!("/proc/self/fd/{}", end.file.as_raw_fd());
        let mut options = OpenOptions::new();
        options.write(true);
        // A pipe that was passed has no name, and whoever passed it has its other end.
        if end.metadata()?.file_type().is_fifo() && end.real.symlink_metadata().is_ok() {
            options.custom_flags(OFlag::O_NONBLOCK.bits());
            return open_pipe(|| options.open(&held)).map(Self::NamedPipe);
        }
        options.open(held).map(Self::Stream)
    }

    /// Writes the output. A file gets this mode.
    ///
    /// # Errors
    /// Returns errors of `write`, and an error if the file cannot be put in its place.
    pub fn write(
        &self,
        mode: u32,
        mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut through = |out: &mut dyn Write| {
            let mut out = BufWriter::new(out);
            write(&mut out).and_then(|()| out.flush())
        };
        match self {
            Self::Stream(file) => through(&mut &*file),
            Self::NamedPipe(file) => through(&mut PipeWriter(file)),
            Self::Whole(place) => place.replace(mode, write),
        }
    }
}

/// Opens a named pipe that somebody reads.
fn open_pipe(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    let until = Instant::now() + READER;
    loop {
        match open() {
            Err(error) if error.raw_os_error() != Some(Errno::ENXIO as i32) => return Err(error),
            Err(_) if Instant::now() >= until => return Err(io::Error::other(UNREAD)),
            Err(_) => thread::sleep(PAUSE),
            opened => return opened,
        }
    }
}

/// Writes to a named pipe, and gives up where its reader takes nothing.
struct PipeWriter<'a>(&'a File);

impl Write for PipeWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match (&mut &*self.0).write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)], STUCK)? == 0 {
                        return Err(io::Error::other(UNREAD));
                    }
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A place for a file.
#[derive(Debug)]
pub struct FilePlace {
    directory: OwnedFd,
    path: PathBuf,
    name: OsString,
    /// Whether it replaces no file.
    is_new: bool,
}

impl FilePlace {
    /// Opens the directory of a path. Its last name may be missing, and is not followed if it is a link.
    ///
    /// # Errors
    /// Returns an error if the link rule does not lead to the directory, and `IsADirectory` if the path itself is a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let (directory, name) = LinkRule::from_env().walk_parent(path)?;
        Ok(Self { path: directory.real.join(&name), directory: directory.file, name, is_new: false })
    }

    /// Finds out whether a file can be made there.
    ///
    /// # Errors
    /// Returns an error if it cannot be made.
    pub fn checked(self) -> io::Result<Self> {
        let (draft, _) = self.draft(0o600)?;
        self.unlink(&draft)?;
        Ok(self)
    }

    /// Has it replace no file: also one that comes meanwhile stays, and writing is an error.
    #[must_use]
    pub fn only_new(self) -> Self {
        Self { is_new: true, ..self }
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

    /// Removes the file, if it exists.
    ///
    /// # Errors
    /// Returns errors of unlinkat(2), except for a missing file.
    pub fn remove(&self) -> io::Result<()> {
        match self.unlink(&self.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Puts a new file with these bytes there, whole or not at all.
    ///
    /// # Errors
    /// Returns the errors of [`replace`](Self::replace).
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.replace(0o666, |out| out.write_all(bytes))
    }

    /// Puts a new file of this mode there, whole or not at all. What a stage puts there instead is removed, and it is tried once
    /// more: `write` is called again then.
    ///
    /// # Errors
    /// Returns errors of `write`, and an error if the file cannot be put in its place.
    pub fn replace(&self, mode: u32, write: impl FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        self.replace_with(mode, write, |_| Ok(()))
    }

    /// Replaces the file like [`FilePlace::replace`], and calls `finish` to set its owner and mode before it gets its name.
    ///
    /// # Errors
    /// Returns errors of `finish`, and those of [`FilePlace::replace`].
    pub fn replace_with(
        &self,
        mode: u32,
        mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
        finish: impl Fn(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        for _ in 0..2 {
            let (draft, file) = self.draft(mode)?;
            let mut out = BufWriter::new(file);
            let written = write(&mut out).and_then(|()| out.flush()).and_then(|()| finish(out.get_ref()));
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

    fn is_link(&self) -> bool {
        fstatat(&self.directory, &*self.name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK)
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
        let replace = || renameat(&self.directory, draft, &self.directory, &*self.name);
        let renamed = match self.is_new {
            true => match rename_new(&self.directory, draft, &self.directory, &self.name) {
                // A stage may have made a link meanwhile, and nobody loses it.
                Err(Errno::EEXIST) if self.is_link() => replace(),
                renamed => renamed,
            },
            false => replace(),
        };
        match renamed {
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

    /// A stage may write to the directory of a file: it gains nothing outside, and exeat takes no file of the stage for its own.
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

    /// The stage of another live run in the directory gives the draft's name to another file, once or repeatedly, at any moment.
    #[test]
    fn l10_never_publishes_a_draft_that_a_stage_exchanged() {
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

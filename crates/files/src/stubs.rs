//! Files that reserve a protected name of git's while a stage runs, because the name must not be the stage's for a moment.
//!
//! git obeys such a name at once, in a shell prompt or an editor. Where it was missing at the start, a file of ours has it during the
//! run, is read-only for the stage, and says to git what a missing one says. Runs share it: each has a shared lock on it, and
//! whoever gets the lock alone at its end removes it. One that was left behind by `kill -9` is removed at the end of the next run.
//! A list in the user's state directory, which no stage reaches, says which files are such: what a file says proves nothing.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, lstat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, unlinkat};
use serde::{Deserialize, Serialize};

use crate::names::{open_plain, rename_new};
use crate::quarantine::{FileId, StateOfRun};

/// Names that are reserved, and a text that git reads as if there were no file.
const RESERVED: [(&str, &str); 2] = [
    // An empty one is fatal to git.
    ("commondir", ".\n"),
    ("config.worktree", "# exeat holds this name while a stage runs\n"),
];
/// The list of the stubs, beside the manifests.
const LIST: &str = "stubs";
/// The longest list that is read.
const LONGEST_LIST: u64 = 1 << 20;
/// A list that is longer is searched for stubs that are gone.
const LONG_LIST: usize = 4 << 10;
/// Attempts, where another run removes the file at the same moment.
const ATTEMPTS: u32 = 8;

/// Finds the text that holds this name, and the repository's directory. `None` for a name that is not held.
fn text_of(path: &Path) -> Option<(&'static str, PathBuf)> {
    let (name, text) = RESERVED.iter().find(|(name, _)| path.ends_with(name))?;
    let repository = path.ancestors().nth(Path::new(name).components().count())?;
    Some((text, repository.to_path_buf()))
}

/// The longest configuration that is read.
const LONGEST_CONFIG: u64 = 1 << 20;

/// Whether git reads the same with a `commondir` of ours. Where there is one it passes over `core.bare` and `core.worktree`
/// (`check_repository_format_gently` in git's setup.c). That of a submodule says what its `.git` file says already.
fn may_have_commondir(repository: &Path) -> bool {
    let is_submodule = repository.ancestors().skip(1).any(|above| above.ends_with(".git/modules"));
    let text = || {
        // It may be a pipe.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(repository.join("config")).ok()?;
        file.metadata().ok().filter(Metadata::is_file)?;
        io::read_to_string(file.take(LONGEST_CONFIG)).ok()
    };
    let says_more = |line: &str| {
        let line = line.to_ascii_lowercase();
        let line = line.rsplit(']').next().unwrap_or_default().trim();
        line.starts_with("worktree") || (line.starts_with("bare") && !line.ends_with("false"))
    };
    is_submodule || (repository.ends_with(".git") && text().is_some_and(|text| !text.lines().any(says_more)))
}

/// A stub that was made: a line of the list.
#[derive(Debug, Serialize, Deserialize)]
struct Made {
    #[serde(with = "crate::bytes")]
    path: PathBuf,
    mark: Mark,
}

/// A file as it was when it was made: device, inode, and the time of its last change. Nobody can set that time, and writing, a
/// second link and a new name change it, as does another file that gets the same inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    id: FileId,
    changed: (i64, i64),
}

impl Mark {
    fn from_stat(stat: &FileStat) -> Self {
        Self { id: (stat.st_dev, stat.st_ino), changed: (stat.st_ctime, stat.st_ctime_nsec) }
    }
}

/// The text of the list, empty where there is none.
fn list(dir: &Path) -> String {
    let mut bytes = Vec::with_capacity(2 * LONG_LIST);
    let read = File::open(dir.join(LIST)).and_then(|file| file.take(LONGEST_LIST).read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Notes a stub at the end of the list. The caller has the lock of the list.
fn note(state_of_run: &StateOfRun, path: &Path, mark: Mark) -> io::Result<()> {
    let Some(dir) = state_of_run.manifests() else { return Ok(()) };
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(dir.join(LIST))?;
    if file.metadata()?.size() > LONG_LIST as u64 {
        forget_gone(&dir)?;
        file = OpenOptions::new().append(true).open(dir.join(LIST))?;
    }
    // A line whose writer was killed has no end: this one is not to be its end.
    let line = serde_json::to_string(&Made { path: path.to_path_buf(), mark })?;
    file.write_all(format!("\n{line}\n").as_bytes())
}

/// Takes the stubs off the list that are gone. File systems write a file to the disk that is renamed over another one, so this
/// is not done each time.
fn forget_gone(dir: &Path) -> io::Result<()> {
    // A file that cannot be inspected now may still exist.
    let is_gone = |made: &Made| match lstat(&made.path) {
        Ok(stat) => Mark::from_stat(&stat) != made.mark,
        Err(errno) => errno == Errno::ENOENT,
    };
    let mut text = String::new();
    let all = list(dir);
    let all = all.lines().filter_map(|line| serde_json::from_str(line).ok());
    for made in all.filter(|made| !is_gone(made)) {
        text += &serde_json::to_string(&made)?;
        text.push('\n');
    }
    let beginning = dir.join(format!(".{LIST}"));
    std::fs::write(&beginning, text)?;
    std::fs::rename(&beginning, dir.join(LIST))
}

/// Whether a file is a stub that exeat has made, and nothing has happened to it since.
fn is_known(state_of_run: &StateOfRun, file: &File) -> io::Result<bool> {
    let stat = fstat(file)?;
    let listed = state_of_run.manifests().map(|dir| list(&dir)).unwrap_or_default();
    // A line ends like this. A path cannot imitate it, because JSON escapes quotation marks.
    let end = format!(",\"mark\":{}}}", serde_json::to_string(&Mark::from_stat(&stat))?);
    Ok(stat.st_nlink == 1 && listed.lines().any(|line| line.ends_with(&end)))
}

/// A name that is held. Dropping it releases the name, and removes the file where nobody else holds it.
#[derive(Debug)]
pub struct Stub {
    path: PathBuf,
    dir: OwnedFd,
    name: OsString,
    text: &'static str,
    lock: Option<Flock<File>>,
}

impl Stub {
    /// Whether a name is one that can be held.
    #[must_use]
    pub fn can_hold(path: &Path) -> bool {
        text_of(path).is_some()
    }

    /// Holds a name in an existing repository, if the name can be held. Returns `None` also for a file that somebody else has made.
    ///
    /// # Errors
    /// Returns an error if the file cannot be made or locked, or if a file has the text of a stub and exeat has not made it.
    pub fn hold(path: &Path, state_of_run: &StateOfRun) -> io::Result<Option<Self>> {
        let Some((text, repository)) = text_of(path) else { return Ok(None) };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let there = |error: &io::Error| {
            !matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ENOENT | Errno::ENOTDIR))
        };
        // Without a HEAD git takes nothing there for a repository.
        let is_repository = repository.join("HEAD").symlink_metadata().is_ok();
        if name == "commondir" && !may_have_commondir(&repository) {
            return Ok(None);
        }
        let dir = match open_plain(parent) {
            Ok(dir) if is_repository => dir,
            Err(error) if there(&error) => return Err(error),
            _ => return Ok(None),
        };
        let mut stub = Self { path: path.to_path_buf(), dir, name: name.to_owned(), text, lock: None };
        // No other run looks at a stub of ours before it is in the list.
        let _list = state_of_run.lock()?;
        let mut made = None;
        for _ in 0..ATTEMPTS {
            match open(&stub.dir, name.as_ref()) {
                Ok(file) if !says(&file, text) => return Ok(None),
                Ok(file)
                    if made != Some(Mark::from_stat(&fstat(&file)?)) && !is_known(state_of_run, &file)? =>
                {
                    // The last run that held it has removed it since.
                    if fstat(&file)?.st_nlink > 0 {
                        return Err(io::Error::other(UNKNOWN));
                    }
                }
                Ok(file) => {
                    let lock = Flock::lock(file, FlockArg::LockSharedNonblock);
                    // Locked alone by a run that removes it now.
                    let Ok(lock) = lock else {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    };
                    stub.lock = Some(lock);
                    if stub.is_in_place() {
                        return Ok(Some(stub));
                    }
                    stub.lock = None;
                }
                Err(Errno::ENOENT) => {
                    made = make(&stub.dir, name.as_ref(), text)?;
                    if let Some(mark) = made
                        && let Err(error) = note(state_of_run, path, mark)
                    {
                        let _ = unlinkat(&stub.dir, name, UnlinkatFlags::NoRemoveDir);
                        return Err(error);
                    }
                }
                // A symbolic link.
                Err(Errno::ELOOP) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Returns its path on the host.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that holds the name.
    #[must_use]
    pub fn id(&self) -> Option<FileId> {
        let stat = fstat(self.lock.as_ref()?.as_fd()).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    /// Whether the name is still that of the file, and the file says what it said.
    fn is_in_place(&self) -> bool {
        let named = fstatat(&self.dir, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let is_same = named.is_ok_and(|stat| Some((stat.st_dev, stat.st_ino)) == self.id());
        is_same && self.lock.as_ref().is_some_and(|file| says(file, self.text))
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let is_ours = self.is_in_place();
        let Some(lock) = self.lock.take() else { return };
        // Other runs that hold it keep their locks, and their stub.
        if is_ours && lock.relock(FlockArg::LockExclusiveNonblock).is_ok() {
            let _ = unlinkat(&self.dir, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Whether a file is a stub of a run's, by its path below a tree. One that only says the same is not: whoever made it may have
/// another name for it, and write there later.
pub(crate) fn is_stub(path: &Path, dir: BorrowedFd<'_>, name: &OsStr, state_of_run: &StateOfRun) -> bool {
    text_of(path).is_some_and(|(text, _)| {
        let file = open(dir, name.as_ref()).ok().filter(|file| says(file, text));
        // The run that makes one just now has the lock.
        file.is_some_and(|file| {
            state_of_run.lock().is_ok_and(|_list| is_known(state_of_run, &file).unwrap_or(false))
        })
    })
}

const UNKNOWN: &str =
    "a file there says what one of exeat's says, and exeat has not made it: remove it, unless it is yours";

fn open(dir: impl AsFd, name: &Path) -> nix::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    openat(dir, name, flags, Mode::empty()).map(File::from)
}

/// Whether a file says what a stub says. It may be anybody's.
fn says(file: &File, text: &str) -> bool {
    let mut read = vec![0; text.len()];
    let is_short = file.metadata().is_ok_and(|meta| meta.is_file() && meta.size() == text.len() as u64);
    is_short && file.read_exact_at(&mut read, 0).is_ok() && read == text.as_bytes()
}

/// Makes a stub, in one step for whoever looks. `None` where something is there by then.
fn make(dir: &OwnedFd, name: &Path, text: &str) -> io::Result<Option<Mark>> {
    let new = format!(".exeat-{:016x}", crate::quarantine::random());
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(dir, new.as_str(), flags, Mode::from_bits_truncate(0o644))?;
    let mut file = File::from(file);
    let owner = fstat(dir)?;
    let made = file.write_all(text.as_bytes()).and_then(|()| {
        if geteuid().is_root() {
            fchown(&file, Some(Uid::from_raw(owner.st_uid)), Some(Gid::from_raw(owner.st_gid)))?;
        }
        rename_new(dir, new.as_str(), dir, name)?;
        Ok(Mark::from_stat(&fstat(&file)?))
    });
    match made {
        Ok(mark) => Ok(Some(mark)),
        Err(error) => {
            let _ = unlinkat(dir, new.as_str(), UnlinkatFlags::NoRemoveDir);
            if error.kind() == io::ErrorKind::AlreadyExists { Ok(None) } else { Err(error) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Creates a separate repository for a test.
    fn repository(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("stubs-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join(".git")).unwrap();
        fs::write(dir.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(dir.join(".git/config"), "[core]\n\tbare = false\n").unwrap();
        dir.canonicalize().unwrap()
    }

    fn state_of_run(dir: &Path) -> StateOfRun {
        StateOfRun { run: "RUN".into(), dir: Some(dir.join("state")) }
    }

    /// A file of the stage's that says the same may have another name, through which a later stage writes.
    #[test]
    fn l06_takes_no_file_that_says_the_same_for_a_stub() {
        let dir = repository("lookalike");
        let (path, state_of_run) = (dir.join(".git/commondir"), state_of_run(&dir));
        let is_ours = || {
            let git = OwnedFd::from(File::open(dir.join(".git")).unwrap());
            is_stub(Path::new(".git/commondir"), git.as_fd(), OsStr::new("commondir"), &state_of_run)
        };
        fs::write(&path, ".\n").unwrap();
        assert!(!is_ours() && Stub::hold(&path, &state_of_run).is_err());
        fs::remove_file(&path).unwrap();
        let stub = Stub::hold(&path, &state_of_run).unwrap().unwrap();
        assert!(is_ours());
        // Nor is one of exeat's that somebody has linked, or has made anew.
        fs::hard_link(&path, dir.join("link")).unwrap();
        assert!(!is_ours() && Stub::hold(&path, &state_of_run).is_err());
        fs::remove_file(dir.join("link")).unwrap();
        assert!(!is_ours(), "its time has changed");
        drop(stub);
        assert!(!path.exists());
        // Without a state directory nobody knows of the others'.
        let nowhere = StateOfRun { run: "RUN".into(), dir: None };
        let stub = Stub::hold(&path, &nowhere).unwrap().unwrap();
        assert!(Stub::hold(&path, &nowhere).is_err());
        drop(stub);
        assert!(!path.exists());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn l06_removes_only_stubs_and_only_with_their_last_holder() {
        let dir = repository("shared");
        let state_of_run = state_of_run(&dir);
        for name in [".git/commondir", ".git/config.worktree"] {
            let path = dir.join(name);
            let one = Stub::hold(&path, &state_of_run).unwrap().unwrap();
            let other = Stub::hold(&path, &state_of_run).unwrap().unwrap();
            assert_eq!(one.id(), other.id());
            drop(one);
            assert!(path.exists(), "{name} is the other's still");
            drop(other);
            assert!(!path.exists(), "{name}");
            // Left behind, as after SIGKILL.
            Stub::hold(&path, &state_of_run).unwrap().unwrap().lock = None;
            assert!(path.exists());
            drop(Stub::hold(&path, &state_of_run).unwrap().unwrap());
            assert!(!path.exists(), "{name}");
            fs::write(&path, "somebody's").unwrap();
            assert!(Stub::hold(&path, &state_of_run).unwrap().is_none());
            fs::remove_file(&path).unwrap();
            let stub = Stub::hold(&path, &state_of_run).unwrap().unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, "somebody's").unwrap();
            drop(stub);
            assert!(path.exists(), "{name} is not the file that was made");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    /// Stubs that are gone are taken off, but not at each start; a line whose writer was killed costs no other.
    #[test]
    fn l06_keeps_a_short_list_of_stubs() {
        let dir = repository("list");
        let (path, state_of_run) = (dir.join(".git/config.worktree"), state_of_run(&dir));
        let other = Stub::hold(&dir.join(".git/commondir"), &state_of_run).unwrap().unwrap();
        let list = state_of_run.manifests().unwrap().join(LIST);
        let mut longest = 0;
        for _ in 0..100 {
            fs::OpenOptions::new().append(true).open(&list).unwrap().write_all(b"{\"path\":\"\xc3").unwrap();
            let stub = Stub::hold(&path, &state_of_run).unwrap().unwrap();
            let file = open(&stub.dir, Path::new("config.worktree")).unwrap();
            assert!(is_known(&state_of_run, &file).unwrap());
            longest = longest.max(fs::metadata(&list).unwrap().len());
        }
        assert!((LONG_LIST as u64..2 * LONG_LIST as u64).contains(&longest), "{longest}");
        // The one that is held by now was made first.
        assert!(is_known(&state_of_run, &open(&other.dir, Path::new("commondir")).unwrap()).unwrap());
        drop(other);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn l06_makes_stubs_only_in_a_repository() {
        let dir = repository("none");
        fs::remove_file(dir.join(".git/HEAD")).unwrap();
        for name in [".git/commondir", "commondir", ".git/other", "away/.git/commondir"] {
            assert!(Stub::hold(&dir.join(name), &state_of_run(&dir)).unwrap().is_none(), "{name}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    /// git passes over both settings where there is a `commondir`.
    #[test]
    fn l06_makes_no_commondir_in_a_bare_repository_or_with_core_worktree() {
        let dir = repository("bare");
        let (path, state_of_run) = (dir.join(".git/commondir"), state_of_run(&dir));
        for (config, is_held) in [
            ("[core]\n\tbare = true\n", false),
            ("[core] bare\n", false),
            ("[Core]\n\tWorkTree = /x\n", false),
            ("[core]\n\tbare = false\n", true),
        ] {
            fs::write(dir.join(".git/config"), config).unwrap();
            assert_eq!(Stub::hold(&path, &state_of_run).unwrap().is_some(), is_held, "{config}");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}

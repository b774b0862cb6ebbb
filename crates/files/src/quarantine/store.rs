//! The directory of a tree in which what stages made under protected names is set aside: `.exeat-quarantine/git~1/RUN/`.
//!
//! It is made when the stage has made something, and not before: then no process of the stage is left. Everything is reached
//! from a descriptor of the tree, through no symbolic link, and what the stage may have put in the way is moved away with the rest.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, fchown, geteuid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::descriptors::{
    FileId, OpenedDir, entries, id_of, kind, open_above, open_at, random, retry_opened,
};
use super::modes::set_mode;
use crate::names::rename_new;

/// The name of the quarantine, at the top of a tree.
pub const QUARANTINE: &str = ".exeat-quarantine";
/// The directory in it that has those of the runs. git adds no path through a directory of this name to an index (`is_ntfs_dotgit` of its
/// path.c). It does not check an index that it reads: the end of a run does.
pub(super) const RUNS: &str = "git~1";

/// Whether a name in a tree is that of its quarantine, or of one that was moved out of the way.
#[must_use]
pub fn is_quarantine_name(name: &OsStr) -> bool {
    let rest = name.as_encoded_bytes().strip_prefix(QUARANTINE.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

/// Returns a random name next to the quarantine, which nobody can have foreseen.
pub(super) fn beside() -> String {
    format!("{QUARANTINE}.{:016x}", random())
}

/// The directory of manifests below the user's state directory. No stage sees it.
pub(super) const MANIFESTS: &str = "exeat/quarantine";
/// The list of the directories that no stage may see, beside the manifests.
const DIRECTORIES: &str = "directories";
/// The list of the files with which runs have replaced others, beside the manifests.
const OWN_FILES: &str = "own-files";
/// The list of the repositories that stages may have made, beside the manifests.
const MADE_REPOSITORIES: &str = "repositories";
/// The list of those of them that the user trusts, beside the manifests.
const TRUSTED_REPOSITORIES: &str = "trusted-repositories";
/// Files in that list. An older one is not known any more, and is replaced like a host's.
const MOST_OWN_FILES: usize = 64;
/// The longest wait for another run that makes such a directory at the same moment.
const PATIENCE: Duration = Duration::from_secs(2);
/// Names that are tried for one thing: numbers, and then some that nobody foresees.
const TRIES: u32 = 16;
/// No clock of a file system is coarser that keeps the time of creation in parts of a second: a tick of the kernel's is 10 ms at most.
const TICK: Duration = Duration::from_millis(20);
/// Directories in one another that are made for one thing. What was further down is put directly into the run's: stages can make many.
const DEEPEST: usize = 16;
/// Things that are kept open for a tick.
const FRESH: usize = 32;
/// The longest manifest that is read.
const LONGEST_MANIFEST: u64 = 64 << 20;

/// A run that sets entries aside, and the directory of its manifest.
#[derive(Debug, Clone)]
pub struct StateOfRun {
    /// The run.
    pub run: String,
    /// The user's state directory. Without it exeat writes no manifests, and `exeat state` does not know the run.
    pub dir: Option<PathBuf>,
}

/// An entry that was set aside: a line of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The tree.
    #[serde(with = "crate::bytes")]
    pub tree: PathBuf,
    /// Its earlier path below the tree.
    #[serde(with = "crate::bytes")]
    pub from: PathBuf,
    /// Its present path below the tree.
    #[serde(with = "crate::bytes")]
    pub to: PathBuf,
    /// When it was moved, in seconds since 1970.
    pub at: u64,
    /// The tree's quarantine.
    pub directory: DirectoryId,
    /// The empty directory that has its name instead, for as long as the stage runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placeholder: Option<FileId>,
    /// The identity of the entry. A live stage can replace the entry in the quarantine, and write to a file that it had open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<ItemId>,
}

/// A directory that is renamed in two steps: a line of a manifest, written before the first one. A run that is killed in between leaves
/// the directory under a name that nobody else knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Intent {
    #[serde(with = "crate::bytes")]
    pub(super) tree: PathBuf,
    /// Its path below the tree.
    #[serde(with = "crate::bytes")]
    pub(super) from: PathBuf,
    /// Its name after the first step, at the top of the tree.
    #[serde(with = "crate::bytes")]
    pub(super) beside: PathBuf,
    /// The empty directory that has its path meanwhile.
    pub(super) placeholder: FileId,
}

/// Tells a directory from every other one, whatever its name. An inode is given out again when what had it is gone, and the time
/// of creation tells the next one apart. Some file systems keep none, such as NFS before version 4.2: there a new directory with the
/// inode of one that is gone is taken for that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DirectoryId {
    file: FileId,
    /// Since 1970.
    created: Option<Duration>,
}

impl DirectoryId {
    /// Asks the kernel, by statx(2).
    pub(super) fn read(dir: BorrowedFd<'_>) -> io::Result<Self> {
        let meta = File::from(dir.try_clone_to_owned()?).metadata()?;
        let created = meta.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(Self { file: (meta.dev(), meta.ino()), created })
    }
}

/// Tells what was set aside from everything else that may have its name and its inode later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemId {
    /// The type, of the mode's bits.
    kind: u32,
    file: FileId,
    /// When it was created, since 1970. A file system that keeps no such time tells when the inode was last changed: one that somebody
    /// has written to is not known again then.
    time: Duration,
}

impl ItemId {
    /// Asks the kernel, by statx(2). `item` may be open with `O_PATH`.
    pub(super) fn read(item: &File) -> io::Result<Self> {
        let meta = item.metadata()?;
        let created = meta.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = || {
            let (seconds, rest) = (u64::try_from(meta.ctime()), u32::try_from(meta.ctime_nsec()));
            Duration::new(seconds.unwrap_or(0), rest.unwrap_or(0))
        };
        let time = created.unwrap_or_else(changed);
        Ok(Self { kind: meta.mode() & SFlag::S_IFMT.bits(), file: (meta.dev(), meta.ino()), time })
    }
}

/// Opens something by `O_PATH`, whatever it is. Its inode is not given out again before it is closed.
pub(super) fn open_item(dir: BorrowedFd<'_>, name: &OsStr) -> nix::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(dir, name, flags, Mode::empty()).map(File::from)
}

/// A directory that no stage may see: a line of a list.
#[derive(Debug, Serialize, Deserialize)]
struct Known {
    #[serde(with = "crate::bytes")]
    path: PathBuf,
    /// The identity of the quarantine, if exeat made it; otherwise this is an entry with that name that was renamed, or a directory of
    /// temporary files.
    made: Option<DirectoryId>,
}

impl StateOfRun {
    /// The directory of the manifests.
    pub(crate) fn manifests(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join(MANIFESTS))
    }

    /// Takes the lock of the directory of the manifests: whoever holds it makes directories of trees.
    pub(crate) fn lock(&self) -> io::Result<Option<Flock<File>>> {
        let Some(dir) = self.manifests() else { return Ok(None) };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let mut file = File::open(&dir)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Some(lock)),
                Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < end => file = back,
                Err((_, errno)) => return Err(errno.into()),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Notes a file of exeat's own that replaces another one, so that other runs keep it. Call it with the lock.
    pub(crate) fn note_own(&self, file: &File) -> io::Result<()> {
        let Some(dir) = self.manifests() else { return Ok(()) };
        let mut lines = read_lines(&dir, OWN_FILES)?;
        lines.push(identity(file)?);
        let from = lines.len().saturating_sub(MOST_OWN_FILES);
        write_lines(&dir, OWN_FILES, lines.drain(from..))
    }

    /// Whether a run of this user made this file. Call it with the lock.
    pub(crate) fn is_own(&self, file: &File) -> bool {
        let lines = self.manifests().and_then(|dir| read_lines(&dir, OWN_FILES).ok()).unwrap_or_default();
        identity(file).is_ok_and(|file| lines.contains(&file))
    }

    /// Notes the directory of a repository that the stage may have made.
    pub(super) fn note_repository(&self, id: DirectoryId) -> io::Result<()> {
        let Some(dir) = self.manifests() else { return Ok(()) };
        add_repository(&dir, MADE_REPOSITORIES, id)
    }

    /// Whether exeat has made this directory of a tree. Without a list nobody can tell, and nothing is lost: what is set
    /// aside goes into a new directory of it.
    fn has_made(&self, id: DirectoryId) -> bool {
        self.manifests().is_none_or(|dir| known(&dir).iter().any(|known| known.made == Some(id)))
    }

    /// Whether exeat has made this directory, and made it here: a mount can show it elsewhere. Without a list one at the tree's top counts.
    pub(super) fn has_made_at(&self, path: &Path, tree: &Path, dir: BorrowedFd<'_>) -> bool {
        let Some(manifests) = self.manifests() else { return path == tree.join(QUARANTINE) };
        let id_at = |path: &Path| DirectoryId::read(File::open(path).ok()?.as_fd()).ok();
        let id = DirectoryId::read(dir).ok();
        known(&manifests).iter().any(|known| id.is_some() && known.made == id && id_at(&known.path) == id)
    }

    /// Hides a directory from the stages of later runs.
    ///
    /// # Errors
    /// Returns errors of making or writing the list in the state directory.
    pub fn hide(&self, path: &Path) -> io::Result<()> {
        let Some(dir) = self.manifests() else { return Ok(()) };
        if known(&dir).iter().any(|known| known.path == path) {
            return Ok(());
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        self.note(path.to_path_buf(), None)
    }

    /// Notes a directory that no stage may see.
    fn note(&self, path: PathBuf, made: Option<DirectoryId>) -> io::Result<()> {
        let Some(dir) = self.manifests() else { return Ok(()) };
        let line = serde_json::to_string(&Known { path, made }).map_err(io::Error::other)?;
        append_line(&mut open_list(&dir.join(DIRECTORIES))?, &line)
    }

    /// Lists the entries that the run set aside so far.
    pub(super) fn listed(&self) -> Vec<Item> {
        self.manifests().map(|dir| manifest_of(&dir, &self.run)).unwrap_or_default()
    }

    /// Lists the directories that the run was renaming.
    pub(super) fn intents(&self) -> Vec<Intent> {
        self.manifests().map(|dir| read_manifest(&manifest_in(&dir, &self.run))).unwrap_or_default()
    }

    /// Notes that a directory is about to be renamed.
    pub(super) fn note_intent(&self, intent: &Intent) -> io::Result<()> {
        self.manifest()?.map_or(Ok(()), |mut manifest| add_line(&mut manifest, intent))
    }

    fn manifest(&self) -> io::Result<Option<File>> {
        let Some(dir) = self.manifests() else { return Ok(None) };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        open_list(&manifest_in(&dir, &self.run)).map(Some)
    }
}

/// Returns what no other file has or gets: the kernel sets the time of creation, and nobody can change it.
fn identity(file: &File) -> io::Result<String> {
    let about = file.metadata()?;
    let created = about.created()?.duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    Ok(format!("{} {} {}", about.dev(), about.ino(), created.as_nanos()))
}

/// Reads a list beside the manifests; a missing list is empty.
///
/// # Errors
/// Returns errors of open(2) and read(2), `InvalidData` for bytes that are not UTF-8, and `FileTooLarge` beyond 64 MiB.
fn read_lines(manifests: &Path, list: &str) -> io::Result<Vec<String>> {
    let file = match File::open(manifests.join(list)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let text = io::read_to_string(file.take(LONGEST_MANIFEST + 1))?;
    if text.len() as u64 > LONGEST_MANIFEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text.lines().map(str::to_owned).collect())
}

/// Adds the directory of a repository to a list beside the manifests, unless it is in it.
fn add_repository(manifests: &Path, list: &str, id: DirectoryId) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(manifests)?;
    let line = serde_json::to_string(&id).map_err(io::Error::other)?;
    if read_lines(manifests, list).is_ok_and(|lines| lines.contains(&line)) {
        return Ok(());
    }
    append_line(&mut open_list(&manifests.join(list))?, &line)
}

/// Opens a list to add lines.
fn open_list(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// Adds a line to a list. Part of another may be at its end, of which a full disk or a kill left no more: it takes no other with it.
fn append_line(list: &mut File, line: &str) -> io::Result<()> {
    let mut last = [b'\n'];
    if let Some(end) = list.metadata()?.len().checked_sub(1) {
        list.read_exact_at(&mut last, end)?;
    }
    let begin = if last == [b'\n'] { "" } else { "\n" };
    list.write_all(format!("{begin}{line}\n").as_bytes())
}

/// Replaces a list beside the manifests.
fn write_lines(manifests: &Path, list: &str, lines: impl Iterator<Item = String>) -> io::Result<()> {
    let beginning = manifests.join(format!(".{list}"));
    fs::write(&beginning, lines.map(|line| line + "\n").collect::<String>())?;
    fs::rename(&beginning, manifests.join(list))
}

/// Reads the list of the directories that no stage may see.
fn known(manifests: &Path) -> Vec<Known> {
    let lines = read_lines(manifests, DIRECTORIES).unwrap_or_default();
    lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Takes a directory that is gone off the list.
pub(super) fn forget_made(manifests: &Path, id: DirectoryId) {
    forget(manifests, |known| known.made == Some(id));
}

fn forget(manifests: &Path, is_gone: impl Fn(&Known) -> bool) {
    if read_lines(manifests, DIRECTORIES).is_err() {
        return;
    }
    let kept = known(manifests).into_iter().filter(|known| !is_gone(known));
    let lines = kept.filter_map(|known| serde_json::to_string(&known).ok());
    // A list that stays as it is names a directory too many.
    let _ = write_lines(manifests, DIRECTORIES, lines);
}

/// Returns whether a run has noted the directory of a repository, and the user does not trust it. A directory that cannot be read may be
/// any. If the list cannot be read, each repository may be in it.
pub(super) fn is_noted_repository(state: &Path, id: Option<DirectoryId>) -> bool {
    let manifests = state.join(MANIFESTS);
    let line = id.and_then(|id| serde_json::to_string(&id).ok());
    let has = |lines: &[String]| line.as_ref().is_none_or(|line| lines.contains(line));
    let is_made =
        read_lines(&manifests, MADE_REPOSITORIES).map_or(true, |made| !made.is_empty() && has(&made));
    let is_trusted =
        || line.is_some() && read_lines(&manifests, TRUSTED_REPOSITORIES).is_ok_and(|it| has(&it));
    is_made && !is_trusted()
}

/// Notes that the user trusts the directory of a repository.
pub(super) fn note_trusted_repository(state: &Path, id: DirectoryId) -> io::Result<()> {
    add_repository(&state.join(MANIFESTS), TRUSTED_REPOSITORIES, id)
}

/// Lists the directories that no stage may see: those that exeat has made in trees of this user, what it has moved out of their
/// way and could not set aside, and each quarantine in some directories.
#[must_use]
pub fn directories<'a>(state: Option<&Path>, near: impl IntoIterator<Item = &'a Path>) -> BTreeSet<PathBuf> {
    let known = state.map(|state| known(&state.join(MANIFESTS))).unwrap_or_default();
    let known = known.into_iter().map(|known| known.path);
    let all: BTreeSet<PathBuf> = known.chain(near.into_iter().map(|dir| dir.join(QUARANTINE))).collect();
    all.into_iter().filter(|path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())).collect()
}

fn manifest_in(dir: &Path, run: &str) -> PathBuf {
    dir.join(format!("{run}.jsonl"))
}

/// Reads what one run has set aside.
pub(super) fn manifest_of(dir: &Path, run: &str) -> Vec<Item> {
    read_manifest(&manifest_in(dir, run))
}

/// Lists the trees in which exeat has made a quarantine, each with that.
pub(super) fn made_directories(manifests: &Path) -> Vec<(PathBuf, DirectoryId)> {
    let tree = |known: Known| Some((known.path.parent()?.to_path_buf(), known.made?));
    known(manifests).into_iter().filter_map(tree).collect()
}

/// Adds a line to a manifest, which stays as short as it may be to be read.
fn add_line(manifest: &mut File, line: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(line)?;
    if manifest.metadata()?.len() + line.len() as u64 > LONGEST_MANIFEST {
        return Err(io::Error::other("the list has 64 MiB"));
    }
    append_line(manifest, &line)
}

/// Reads the lines of one kind in a manifest: items or intents. A manifest that is too long is left out.
fn read_manifest<Line: DeserializeOwned>(path: &Path) -> Vec<Line> {
    let short = |file: &File| file.metadata().is_ok_and(|meta| meta.len() <= LONGEST_MANIFEST);
    let text = File::open(path).ok().filter(short).and_then(|file| io::read_to_string(file).ok());
    text.unwrap_or_default().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Reads all manifests in a directory: the runs, and what each has set aside. What cannot be read is left out.
pub(super) fn list(dir: &Path) -> Vec<(String, Vec<Item>)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(run) = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_suffix(".jsonl"))
        else {
            continue;
        };
        if entry.metadata().is_ok_and(|meta| meta.is_file()) {
            all.push((run.to_owned(), read_manifest(&path)));
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// A run's directory in the quarantine of one tree.
#[derive(Debug)]
pub struct Store {
    dir: OwnedFd,
    /// The quarantine that it is in.
    outer: OwnedFd,
    /// [`RUNS`] there.
    runs: OwnedFd,
    /// Its place below the tree.
    place: PathBuf,
    /// The tree's place on the host.
    tree: PathBuf,
    /// The tree's owner, where that is not this process's user.
    owner: Option<(Uid, Gid)>,
    directory: DirectoryId,
    /// The present path, below the tree, of an entry that had the name of the quarantine and was not exeat's.
    strange: Option<PathBuf>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    manifest: Option<File>,
    /// Entries that were put into the directory. Nothing is put into them.
    taken: HashSet<PathBuf>,
    /// Names that were numbered.
    numbered: u64,
    /// The reason that the manifest is incomplete.
    unlisted: Option<io::Error>,
    /// Entries that were set aside a moment ago. While they are open, no new file gets their inodes.
    fresh: VecDeque<(Instant, File)>,
}

impl Store {
    /// Makes the run's directory in a tree.
    pub(super) fn open(tree: BorrowedFd<'_>, path: &Path, state_of_run: &StateOfRun) -> io::Result<Self> {
        let (stat, owner) = (fstat(tree)?, owner_of(tree)?);
        let _lock = state_of_run.lock()?;
        let (mut strange, mut is_new) = (None, true);
        let outer = match retry_opened(tree, || open_at(tree, Path::new(QUARANTINE))) {
            Ok(dir) if is_ours(&dir, &stat, state_of_run)? => {
                is_new = false;
                dir
            }
            Err(Errno::ENOENT) => make_outer(tree, owner)?,
            // The stage's, whatever it is: it has no business under this name, and is set aside first.
            Ok(_) | Err(Errno::ELOOP | Errno::ENOTDIR) => {
                let name = move_strange(tree, path, state_of_run)?;
                let made = make_outer(tree, owner).inspect_err(|_| {
                    let back = || rename_new(tree, name.as_str(), tree, QUARANTINE);
                    let _ = retry_opened(tree, back);
                });
                strange = Some(name);
                made?
            }
            Err(errno) => return Err(errno.into()),
        };
        let directory = DirectoryId::read(outer.as_fd())?;
        let noted = if is_new { state_of_run.note(path.join(QUARANTINE), Some(directory)) } else { Ok(()) };
        let runs = match make_fresh(outer.as_fd(), OsStr::new(RUNS), Mode::S_IRWXU, owner) {
            Err(Errno::EEXIST) => open_at(outer.as_fd(), Path::new(RUNS))?,
            other => other?,
        };
        let mut name = state_of_run.run.clone();
        let dir = match make_fresh(runs.as_fd(), OsStr::new(&name), Mode::S_IRWXU, owner) {
            Err(Errno::EEXIST) => {
                name = format!("{}.{:016x}", state_of_run.run, random());
                make_fresh(runs.as_fd(), OsStr::new(&name), Mode::S_IRWXU, owner)?
            }
            other => other?,
        };
        let (manifest, unlisted) = match state_of_run.manifest() {
            Ok(manifest) => (manifest, noted.err()),
            Err(error) => (None, Some(error)),
        };
        let inner = Inner { manifest, taken: HashSet::new(), numbered: 0, unlisted, fresh: VecDeque::new() };
        let mut store = Self {
            dir,
            outer,
            runs,
            place: [QUARANTINE, RUNS, &name].iter().collect(),
            tree: path.to_path_buf(),
            owner,
            directory,
            strange: None,
            inner: Mutex::new(inner),
        };
        if let Some(name) = strange {
            let take = || store.take(tree, OsStr::new(&name), Path::new(QUARANTINE));
            store.strange = Some(retry_opened(tree, take)?);
            if let Some(dir) = state_of_run.manifests() {
                forget(&dir, |known| known.path == path.join(&name));
            }
        }
        Ok(store)
    }

    /// The directory: 0700, and on the tree's file system.
    #[must_use]
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Its place below the tree.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Renames an entry of a directory into this one, and says where it is then, below the tree. `path`: where it was, below the
    /// tree.
    pub fn take(&self, from: BorrowedFd<'_>, last: &OsStr, path: &Path) -> nix::Result<PathBuf> {
        self.take_as(from, last, path, None).map(|item| item.to)
    }

    /// Works like [`take`](Self::take) for an entry that was renamed, with a placeholder at its own name.
    pub(super) fn take_as(
        &self,
        from: BorrowedFd<'_>,
        last: &OsStr,
        path: &Path,
        placeholder: Option<FileId>,
    ) -> nix::Result<Item> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // What has the name afterwards may be another thing, which a live stage has put there.
        let moved = open_item(from, last)?;
        let (parent, mut to) = self.parent_for(path, &inner.taken)?;
        for round in 0.. {
            let name = to.file_name().unwrap_or(last);
            match rename_into(from, last, parent.as_fd(), name) {
                // A live stage may take names.
                Err(Errno::EEXIST) if round < TRIES => {
                    inner.numbered += 1;
                    let number = if round < TRIES / 2 { inner.numbered } else { random() };
                    to.set_file_name(numbered(path.file_name().unwrap_or(last), number));
                }
                other => {
                    other?;
                    break;
                }
            }
        }
        let item = Item {
            tree: self.tree.clone(),
            from: path.to_path_buf(),
            to: self.place.join(&to),
            at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            directory: self.directory,
            placeholder,
            what: ItemId::read(&moved).ok(),
        };
        if let Some(manifest) = &mut inner.manifest
            && let Err(error) = add_line(manifest, &item)
        {
            inner.unlisted = Some(error);
            inner.manifest = None;
        }
        inner.taken.insert(to);
        let is_past = |(since, _): &(Instant, File)| since.elapsed() > TICK;
        while inner.fresh.len() >= FRESH || inner.fresh.front().is_some_and(is_past) {
            inner.fresh.pop_front();
        }
        inner.fresh.push_back((Instant::now(), moved));
        Ok(item)
    }

    /// Gives the quarantine and the run's directory in it their names back, which a live stage can take from them. Returns where what had
    /// the names is now, below the tree, if the stage has put something there.
    pub(super) fn put_back(&self, tree: BorrowedFd<'_>) -> io::Result<Vec<PathBuf>> {
        let run = self.place.file_name().unwrap_or_default();
        let outer = put_dir_back(tree, self.outer.as_fd(), tree, OsStr::new(QUARANTINE))?;
        let runs = put_dir_back(tree, self.runs.as_fd(), self.outer.as_fd(), OsStr::new(RUNS))?;
        let inner = put_dir_back(tree, self.dir.as_fd(), self.runs.as_fd(), run)?;
        let mut taken = Vec::new();
        for (dir, way) in [(tree, outer), (self.outer.as_fd(), runs), (self.runs.as_fd(), inner)] {
            let Some(way) = way else { continue };
            taken.push(retry_opened(dir, || self.take(dir, OsStr::new(&way), Path::new(QUARANTINE)))?);
        }
        Ok(taken)
    }

    /// The identity of the quarantine.
    pub(super) fn outer_id(&self) -> nix::Result<FileId> {
        fstat(&self.outer).map(|stat| id_of(&stat))
    }

    /// Forgets something that has its old place again.
    pub(super) fn give_back(&self, to: &Path) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(place) = to.strip_prefix(&self.place) {
            inner.taken.remove(place);
        }
    }

    /// Returns the present path, below the tree, of an entry that had the name of the quarantine and was not exeat's.
    pub(super) fn strange(&self) -> Option<&Path> {
        self.strange.as_deref()
    }

    /// Returns the reason that `exeat state list` does not know all entries.
    pub(super) fn unlisted(&self) -> Option<String> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.unlisted.as_ref().map(ToString::to_string)
    }

    /// The directory for something that was at a path of the tree, and its path in this one. What was put here is entered by
    /// nothing else, as the stage may have made what is in it.
    fn parent_for(&self, path: &Path, taken: &HashSet<PathBuf>) -> nix::Result<(OwnedFd, PathBuf)> {
        let flat = || {
            let to = PathBuf::from(path.file_name().unwrap_or(OsStr::new("unnamed")));
            Ok((open_at(self.dir.as_fd(), Path::new(""))?, to))
        };
        let above = path.parent().unwrap_or(Path::new(""));
        if above.components().count() > DEEPEST || above.ancestors().any(|it| taken.contains(it)) {
            return flat();
        }
        let mut dir = open_at(self.dir.as_fd(), Path::new(""))?;
        for part in above.components() {
            let Component::Normal(part) = part else { return flat() };
            dir = match open_at(dir.as_fd(), Path::new(part)) {
                Err(Errno::ENOENT) => match make_fresh(dir.as_fd(), part, Mode::S_IRWXU, self.owner) {
                    Err(Errno::ENAMETOOLONG) => return flat(),
                    other => other?,
                },
                Err(Errno::ENOTDIR | Errno::ELOOP) => return flat(),
                other => other?,
            };
        }
        Ok((dir, path.to_path_buf()))
    }
}

/// Gives a directory of the tree its name in another one back. Returns the present name there of what had it.
fn put_dir_back(
    tree: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &OsStr,
) -> io::Result<Option<String>> {
    let there = retry_opened(to, || open_at(to, Path::new(name)));
    let id = DirectoryId::read(dir)?;
    if there.is_ok_and(|there| DirectoryId::read(there.as_fd()).is_ok_and(|there| there == id)) {
        return Ok(None);
    }
    // The kernel tells its name now.
    let path = |fd: BorrowedFd<'_>| fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let now = path(dir)?;
    let below = now.strip_prefix(path(tree)?).map_err(|_| io::Error::other("the stage moved it away"))?;
    let (above, last) = (open_above(tree, below)?, below.file_name().unwrap_or_default());
    let way = beside();
    let is_taken = match retry_opened(to, || rename_new(to, name, to, way.as_str())) {
        Err(Errno::ENOENT) => false,
        moved => moved.map(|()| true)?,
    };
    retry_opened(above.as_fd(), || retry_opened(to, || rename_into(above.as_fd(), last, to, name)))?;
    Ok(is_taken.then_some(way))
}

/// Moves what has the name of the quarantine out of its way, and says how it is called until it is set aside. Where the run is
/// killed before that, or it cannot be set aside, no later stage sees it all the same.
fn move_strange(tree: BorrowedFd<'_>, path: &Path, state_of_run: &StateOfRun) -> io::Result<String> {
    let name = beside();
    // Without a list it is set aside like the rest.
    let _ = state_of_run.note(path.join(&name), None);
    retry_opened(tree, || rename_new(tree, QUARANTINE, tree, name.as_str()))?;
    Ok(name)
}

/// Whether there is something in a tree under the name of the quarantine that is not exeat's.
pub(super) fn is_strange(tree: BorrowedFd<'_>, state_of_run: &StateOfRun) -> bool {
    // A run that makes one just now has the lock.
    let _lock = state_of_run.lock();
    match retry_opened(tree, || open_at(tree, Path::new(QUARANTINE))) {
        Ok(dir) => !fstat(tree).is_ok_and(|tree| is_ours(&dir, &tree, state_of_run).unwrap_or(false)),
        // There is something, or the tree is a single file.
        Err(_) => fstatat(tree, QUARANTINE, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok(),
    }
}

/// Whether a quarantine is one that exeat has made. That it was there before the stage started proves nothing: an earlier stage may
/// have made it. One that a stage has opened to other users is closed again. Its mode is also the mask of its access control list
/// (acl(5)). Without a list of what exeat has made, an open one is not exeat's.
fn is_ours(dir: &OwnedFd, tree: &FileStat, state_of_run: &StateOfRun) -> io::Result<bool> {
    let stat = fstat(dir)?;
    let is_private = stat.st_uid == tree.st_uid || stat.st_uid == geteuid().as_raw();
    if !is_private || !state_of_run.has_made(DirectoryId::read(dir.as_fd())?) {
        return Ok(false);
    }
    if stat.st_mode & 0o7777 != Mode::S_IRWXU.bits() {
        if state_of_run.manifests().is_none() {
            return Ok(false);
        }
        set_mode(dir.as_fd(), Mode::S_IRWXU)?;
    }
    Ok(true)
}

/// Makes the quarantine of a tree, which git passes over.
fn make_outer(tree: BorrowedFd<'_>, owner: Option<(Uid, Gid)>) -> nix::Result<OwnedFd> {
    let dir = retry_opened(tree, || make_fresh(tree, OsStr::new(QUARANTINE), Mode::S_IRWXU, owner))?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    if let Ok(file) = openat(&dir, ".gitignore", flags, Mode::S_IRUSR | Mode::S_IWUSR) {
        let mut file = File::from(file);
        // Without it git shows the directory as untracked: no harm.
        let _ = file.write_all(b"*\n");
        if let Some((uid, gid)) = owner {
            let _ = fchown(&file, Some(uid), Some(gid));
        }
    }
    Ok(dir)
}

/// The owner of a tree, where root makes something in another user's.
pub(super) fn owner_of(tree: BorrowedFd<'_>) -> nix::Result<Option<(Uid, Gid)>> {
    let (stat, caller) = (fstat(tree)?, geteuid());
    let is_anothers = stat.st_uid != caller.as_raw() && caller.is_root();
    Ok(is_anothers.then(|| (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))))
}

/// Makes an empty directory and gives it to the tree's owner. What somebody puts in its place meanwhile is not given away.
pub(super) fn make_fresh(
    above: BorrowedFd<'_>,
    name: &OsStr,
    mode: Mode,
    owner: Option<(Uid, Gid)>,
) -> nix::Result<OwnedFd> {
    mkdirat(above, name, mode)?;
    let dir = open_at(above, Path::new(name))?;
    let stat = fstat(&dir)?;
    if stat.st_uid != geteuid().as_raw() || kind(&stat) != SFlag::S_IFDIR {
        return Err(Errno::EEXIST);
    }
    if let Some((uid, gid)) = owner {
        let readable = File::from(openat(&dir, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?);
        if entries(readable.as_fd()).map_or(true, |mut entries| entries.next().is_some()) {
            return Err(Errno::EEXIST);
        }
        fchown(&readable, Some(uid), Some(gid))?;
    }
    Ok(dir)
}

/// Renames over nothing. To move a directory elsewhere is to write its `..`, which a mode of the stage's may forbid.
pub(super) fn rename_into(
    from: BorrowedFd<'_>,
    last: &OsStr,
    to: BorrowedFd<'_>,
    name: &OsStr,
) -> nix::Result<()> {
    let rename = || rename_new(from, last, to, name);
    match rename() {
        Err(Errno::EACCES) => {
            // Refused for the directory above, which the caller opens, or for this one.
            let Ok(dir) = open_at(from, Path::new(last)) else { return Err(Errno::EACCES) };
            let _opened = OpenedDir::new(dir.as_fd())?;
            rename()
        }
        other => other,
    }
}

/// Appends a number to a name.
fn numbered(name: &OsStr, number: u64) -> String {
    super::descriptors::suffixed(&name.to_string_lossy(), &format!("~{number}"))
}

#[cfg(test)]
mod tests;

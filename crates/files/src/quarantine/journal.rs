//! Journals of what live runs watch, written before the stage starts: `exeat/live/RUN.json` in the user's state directory.
//!
//! A run that is killed leaves its journal, and the next start settles what its stage has made. A run that starts beside a live one
//! learns from the journal which names that one's stage has made: they are not the caller's, and are neither covered nor
//! trusted. Each journal is locked as long as a process of its run is left.
//!
//! What becomes known later follows as further values ([`Added`]). A run can be killed while it writes one: then that one does not count.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::mem;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::additions::{Added, Additions, LONGEST};
use super::descriptors::FileId;
use super::finish::{finish_until, share_trees};
use super::modes::{Access, Modes};
use super::pointers::Pointer;
use super::repository::{Contents, Keys};
use super::store::{DirectoryId, ItemId, is_noted_repository, note_trusted_repository, open_item};
use super::times::{NotedHashes, Times};
use super::{
    Beside, FurtherDown, HasWriter, Item, Later, Leftover, Leftovers, OtherRuns, StateOfRun, Watch, WatchList,
};
use crate::names::open_plain;
use crate::protected::{GIT_LINK, matches_pattern};

/// The directory of journals below the user's state directory. No stage sees it.
const LIVE: &str = "exeat/live";
/// The mode of a journal whose run has begun to settle. The owner's right to execute a journal says nothing else.
const ENDING: u32 = 0o700;
/// Journals that are read at one start.
const MOST: usize = 4096;
/// The longest time that a journal is kept whose tree is missing.
const PATIENCE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Killed runs that are kept because their trees are not found.
const WAITING: usize = 256;

/// A watch in a journal.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(rename = "missing")]
    list: WatchList,
    /// The tree. Another directory may have its path and its inode later.
    id: DirectoryId,
    pointers: Vec<Pointer>,
    contents: Vec<Contents>,
    modes: Modes,
    keys: Keys,
    /// A hash that another version of exeat may compute otherwise: then the hashes of `contents` say nothing.
    check: u64,
    directory: Option<FileId>,
    /// The earliest time of a change by this stage, or by one beside it.
    since: SystemTime,
    /// The tree was not found when the run was to be settled: that was told.
    waits: bool,
    /// The hashes that the survey has noted. They come later than the rest.
    #[serde(default)]
    noted: NotedHashes,
}

const CHECK: &str = "check";

impl Entry {
    fn new(watch: &Watch) -> io::Result<Self> {
        Ok(Self {
            list: watch.list.clone(),
            id: DirectoryId::read(watch.tree.as_fd())?,
            pointers: watch.pointers.clone(),
            contents: watch.contents.clone(),
            modes: watch.modes.clone(),
            keys: watch.keys,
            check: watch.keys.hash_one(CHECK),
            directory: watch.directory,
            since: watch.earliest(|_| true),
            waits: false,
            noted: NotedHashes::default(),
        })
    }

    /// Opens the tree, if it is still the same.
    fn tree(&self) -> io::Result<File> {
        let tree = File::from(open_plain(&self.list.tree)?);
        if DirectoryId::read(tree.as_fd())? != self.id {
            return Err(io::Error::other("another directory has its name now"));
        }
        Ok(tree)
    }

    /// Watches again in the tree.
    fn resume(self, tree: File, state_of_run: &StateOfRun) -> Watch {
        let mut list = self.list;
        let mut contents = self.contents;
        if self.keys.hash_one(CHECK) != self.check {
            list.repositories.clear();
            contents.clear();
        }
        Watch {
            list,
            tree,
            pointers: self.pointers,
            contents,
            modes: self.modes,
            keys: self.keys,
            directory: self.directory,
            state_of_run: state_of_run.clone(),
            since: self.since,
            beside: Vec::new(),
            times: Times::start(),
            noted: self.noted.into(),
            later: Later::default(),
        }
    }
}

/// The journal of a live run. It stays when its process is killed.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    lock: Flock<File>,
}

impl Journal {
    /// Writes the list of watched names.
    ///
    /// # Errors
    /// Returns errors of writing to the state directory.
    pub fn write(state: &Path, run: &str, watches: &[Watch]) -> io::Result<Self> {
        let dir = state.join(LIVE);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let entries = watches.iter().map(Entry::new).collect::<io::Result<Vec<_>>>()?;
        let bytes = serde_json::to_vec(&entries)?;
        if bytes.len() as u64 > LONGEST {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the names to watch take more than 64 MiB",
            ));
        }
        let (beginning, path) = (dir.join(format!(".{run}")), dir.join(format!("{run}.json")));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&beginning)?;
        let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
        // Nobody sees it before it is whole and locked.
        let written = lock.write_all(&bytes).and_then(|()| fs::rename(&beginning, &path));
        if let Err(error) = written {
            let _ = fs::remove_file(&beginning);
            return Err(error);
        }
        let additions = Arc::new(Additions::new(lock.try_clone()?));
        for watch in watches {
            let _ = watch.later.journal.set(Arc::clone(&additions));
        }
        Ok(Self { path, lock })
    }

    /// Returns a descriptor that keeps the journal locked until the last copy of it is closed.
    ///
    /// # Errors
    /// Returns errors of dup(2).
    pub fn keep_locked(&self) -> io::Result<OwnedFd> {
        self.lock.try_clone().map(OwnedFd::from)
    }

    /// Tells other runs that the end of this one has begun, so that it does not settle what they leave from now on.
    ///
    /// # Errors
    /// Returns errors of fchmod(2).
    pub fn begin_end(&self) -> io::Result<()> {
        self.lock.set_permissions(fs::Permissions::from_mode(ENDING))
    }

    /// Removes it: the run is settled.
    pub fn remove(self) {
        // One that stays is settled again by the next start, which finds nothing.
        let _ = fs::remove_file(&self.path);
    }
}

/// Adds what a survey of these trees has noted to the journal of their run. Call it once.
///
/// # Errors
/// Returns errors of write(2), and `FileTooLarge` if the journal could not be read then.
pub(super) fn add_noted(watches: &[Watch]) -> io::Result<()> {
    let noted: Vec<_> = watches.iter().map(|watch| watch.noted.hashes()).collect();
    match watches.first().and_then(|watch| watch.later.journal.get()) {
        Some(journal) if !noted.iter().all(NotedHashes::is_empty) => journal.add(&Added::Noted(noted)),
        _ => Ok(()),
    }
}

/// The journals that are there: paths and the runs.
fn journals(state: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(state.join(LIVE)).into_iter().flatten().flatten().take(MOST);
    let found = entries.filter_map(|entry| {
        let run = entry.file_name().to_str()?.strip_suffix(".json")?.to_owned();
        Some((entry.path(), run))
    });
    found.filter(|(_, run)| !run.starts_with('.')).collect()
}

/// A run that has a journal: it goes on, or it was killed and is not settled yet.
#[derive(Debug)]
pub struct UnsettledRun {
    /// The run.
    pub run: String,
    /// Whether a process of it is left, or its journal could not be asked.
    pub is_live: bool,
    /// The trees that are watched.
    pub trees: Vec<PathBuf>,
}

/// Lists the runs that are not settled.
#[must_use]
pub fn unsettled_runs(state: &Path) -> Vec<UnsettledRun> {
    let open = |(path, run): (PathBuf, String)| {
        let file = File::open(path).ok()?;
        let trees = read(&file).unwrap_or_default().into_iter().map(|entry| entry.list.tree);
        let trees = trees.collect();
        // A shared lock, held for a moment, is in the way of nobody but a start that would settle this run just now.
        let is_live = Flock::lock(file, FlockArg::LockSharedNonblock).is_err();
        Some(UnsettledRun { run, is_live, trees })
    };
    journals(state).into_iter().filter_map(open).collect()
}

fn read(file: &File) -> io::Result<Vec<Entry>> {
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    let mut values = serde_json::Deserializer::from_slice(&bytes);
    let mut entries = Vec::<Entry>::deserialize(&mut values)?;
    let mut free = BTreeSet::new();
    while let Ok(added) = Added::deserialize(&mut values) {
        match added {
            Added::Noted(noted) => {
                entries.iter_mut().zip(noted).for_each(|(entry, noted)| entry.noted = noted);
            }
            Added::Free(path) => drop(free.insert(path)),
            Added::PutBack(path) => drop(free.remove(&path)),
        }
    }
    for path in free {
        let trees = entries.iter_mut().filter(|entry| path.starts_with(&entry.list.tree));
        let Some(entry) = trees.max_by_key(|entry| entry.list.tree.as_os_str().len()) else { continue };
        let name = path.strip_prefix(&entry.list.tree).ok().and_then(|name| name.to_str());
        entry.list.removed.extend(name.map(str::to_owned));
    }
    Ok(entries)
}

/// A run that was killed, and what its stage had left.
#[derive(Debug)]
pub struct Interrupted {
    /// The run.
    pub run: String,
    /// The entries that were moved aside now.
    pub found: Leftovers,
    /// The reasons that trees were not inspected.
    pub passed: Vec<String>,
}

/// The result of settling killed runs at a start.
#[derive(Debug, Default)]
pub struct Settlement {
    /// The runs.
    pub runs: Vec<Interrupted>,
    /// Runs in other trees for which the time was too short: the next start goes on with them.
    pub waiting: usize,
}

/// Settles the runs that were killed: moves aside what their stages have made under protected names. A tree that is not found, or
/// whose name is a link now, stays in its journal, as it may come back. Runs that have nothing to do with these trees are settled until
/// that is over.
#[must_use]
pub fn settle_interrupted(
    state: &Path,
    trees: &[&Path],
    has_writer: HasWriter,
    is_over: &dyn Fn() -> bool,
) -> Settlement {
    let mut all = Settlement::default();
    let mut waiting = 0;
    for (path, run) in journals(state) {
        let Some(lock) = lock_of_killed(&path) else { continue };
        // How long it waits is counted from the start of the run.
        let since = lock.metadata().and_then(|meta| meta.modified()).unwrap_or_else(|_| SystemTime::now());
        let is_old = since.elapsed().is_ok_and(|age| age > PATIENCE);
        let read = read(&lock);
        let is_ours = |entry: &Entry| {
            trees.iter().any(|tree| tree.starts_with(&entry.list.tree) || entry.list.tree.starts_with(tree))
        };
        let must = read.iter().flatten().any(is_ours);
        let is_over = || !must && is_over();
        if is_over() {
            all.waiting += 1;
            continue;
        }
        let state_of_run = StateOfRun { run, dir: Some(state.to_path_buf()) };
        let may_wait = !is_old && waiting < WAITING;
        let mut one = SettledRun::new(&state_of_run.run);
        match read {
            Ok(entries) => one.settle(entries, &state_of_run, may_wait, has_writer, &is_over),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                one.told.passed.push(format!("`{}` is damaged, and was removed", path.display()));
            }
            // It is read again by the next start.
            Err(error) => {
                one.told.passed.push(format!("`{}`: {error}", path.display()));
                all.runs.push(one.told);
                continue;
            }
        }
        if mem::take(&mut one.told.found.is_cut) {
            all.waiting += 1;
        } else if one.later.is_empty() {
            let _ = fs::remove_file(&path);
        } else {
            waiting += 1;
            if one.has_changed
                && let Err(error) = keep(&path, &one.later, since)
            {
                one.told.passed.push(format!("`{}`: {error}", path.display()));
            }
        }
        if one.has_changed || !one.told.passed.is_empty() {
            all.runs.push(one.told);
        }
    }
    all
}

/// Locks the journal of a run that was killed. Returns `None` if a live run or another start has it.
fn lock_of_killed(path: &Path) -> Option<Flock<File>> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
    let same = |locked: fs::Metadata| fs::symlink_metadata(path).is_ok_and(|it| it.ino() == locked.ino());
    lock.metadata().is_ok_and(same).then_some(lock)
}

/// What has become of one killed run.
struct SettledRun {
    told: Interrupted,
    /// The trees that a later start looks for.
    later: Vec<Entry>,
    /// Whether the journal does not say what is left to do any more.
    has_changed: bool,
}

impl SettledRun {
    fn new(run: &str) -> Self {
        let told = Interrupted { run: run.to_owned(), found: Leftovers::default(), passed: Vec::new() };
        Self { told, later: Vec::new(), has_changed: false }
    }

    /// Moves aside what the stage has left in the trees that are found. The others wait, if they may.
    fn settle(
        &mut self,
        entries: Vec<Entry>,
        state_of_run: &StateOfRun,
        may_wait: bool,
        has_writer: HasWriter,
        is_over: &dyn Fn() -> bool,
    ) {
        let mut moved = state_of_run.listed();
        let mut watches = Vec::new();
        for mut entry in entries {
            let why = match entry.tree() {
                Ok(tree) => {
                    self.has_changed = true;
                    let watch = entry.resume(tree, state_of_run);
                    let renamed = watch.resume_exchanged(&moved);
                    moved.extend(renamed);
                    watches.push(watch);
                    continue;
                }
                Err(error) => format!("`{}`: {error}", entry.list.tree.display()),
            };
            if !may_wait {
                self.told.passed.push(format!("{why}; it is not looked for any more"));
                continue;
            }
            if !entry.waits {
                self.has_changed = true;
                self.told.passed.push(format!("{why}; starts of the next 30 days look for it"));
            }
            entry.waits = true;
            self.later.push(entry);
        }
        // Before anything is judged: a file with a second name would be moved.
        let replacements: Vec<_> = watches.iter().flat_map(Watch::settle_replacements).collect();
        let found = &mut self.told.found;
        *found = finish_until(&watches, has_writer, is_over);
        replacements.into_iter().for_each(|replacement| found.add(replacement));
        // Nobody has told of these.
        let is_told = found.is_cut;
        let is_there = |item: &&Item| item.what.is_some() && item.what == item_at(&item.new_path());
        for item in moved.iter().filter(|_| !is_told).filter(is_there) {
            found.add(Leftover { path: item.old_path(), moved: Ok(item.new_path()) });
        }
    }
}

/// Returns the identity of the entry at a path. exeat can have made a directory where an entry was that has its old place again.
fn item_at(path: &Path) -> Option<ItemId> {
    let (above, last) = (open_plain(path.parent()?).ok()?, path.file_name()?);
    ItemId::read(&open_item(above.as_fd(), last).ok()?).ok()
}

/// Writes a journal anew with the trees that were not found, as old as it was.
fn keep(path: &Path, entries: &[Entry], since: SystemTime) -> io::Result<()> {
    let beginning = path.with_extension("later");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beginning)?;
    file.write_all(&serde_json::to_vec(entries)?)?;
    file.set_modified(since)?;
    fs::rename(&beginning, path)
}

/// Names that the stages of live runs, and of killed ones that are not settled yet, may have made: they were missing or different when
/// those runs started.
#[derive(Debug, Default)]
pub struct Live {
    state: Option<PathBuf>,
    runs: HashSet<String>,
    names: HashSet<PathBuf>,
    patterns: Vec<(PathBuf, String, Vec<String>)>,
    links: HashMap<PathBuf, PathBuf>,
    pointers: HashMap<PathBuf, Pointer>,
    further: HashMap<PathBuf, Vec<WatchedFurther>>,
    access: HashMap<PathBuf, Access>,
    /// The trees, each with its run.
    trees: Vec<Beside>,
    at_start: Vec<TreeAtStart>,
}

/// A directory further down, and the names that are let through in it.
type WatchedFurther = (FurtherDown, Arc<[String]>);

impl Live {
    /// Adds the runs that are in the state directory now, and says whether there are new ones.
    pub fn read(&mut self, state: &Path) -> bool {
        let before = self.runs.len();
        self.state = Some(state.to_path_buf());
        for (path, run) in journals(state) {
            if self.runs.contains(&run) {
                continue;
            }
            // One that has ended meanwhile has settled its names.
            let Ok(entries) = File::open(&path).and_then(|file| read(&file)) else { continue };
            entries.into_iter().for_each(|entry| self.add(entry, &run));
            self.runs.insert(run);
        }
        self.runs.len() > before
    }

    /// Reads the runs other than this one: those that go on and have not begun to settle, and the rest. What a run of the first kind
    /// watches and is there now is there when it settles, unless its own stage takes it away.
    fn others(state_of_run: &StateOfRun) -> [Self; 2] {
        let [mut going_on, mut rest] = <[Self; 2]>::default();
        for (path, run) in state_of_run.dir.as_deref().map(journals).unwrap_or_default() {
            let Some(file) = File::open(&path).ok().filter(|_| run != state_of_run.run) else { continue };
            let (Ok(entries), Ok(open)) = (read(&file), file.try_clone()) else { continue };
            let locked = Flock::lock(open, FlockArg::LockSharedNonblock);
            let is_held = matches!(locked, Err((_, Errno::EWOULDBLOCK)));
            let is_ending = !file.metadata().is_ok_and(|it| it.mode() & 0o777 != ENDING);
            let kind = if is_held && !is_ending { &mut going_on } else { &mut rest };
            entries.into_iter().for_each(|entry| kind.add(entry, &run));
            kind.runs.insert(run);
        }
        [going_on, rest]
    }

    fn add(&mut self, entry: Entry, run: &str) {
        // The names of another directory at its place are the caller's.
        if entry.waits && entry.tree().is_err() {
            return;
        }
        for dir in entry.list.holders() {
            let Some(was) = entry.modes.access_to(&dir) else { continue };
            let known = self.access.entry(entry.list.tree.join(dir));
            known.and_modify(|known| *known = known.limit_to(was)).or_insert(was);
        }
        self.at_start.push(TreeAtStart::new(&entry));
        let WatchList { tree, names, removed, patterns, links, pointers, further, let_through, .. } =
            entry.list;
        self.trees.push(Beside { run: run.to_owned(), tree: tree.clone(), since: entry.since });
        let let_through: Arc<[String]> = let_through.into();
        for it in further {
            self.further.entry(tree.join(&it.dir)).or_default().push((it, Arc::clone(&let_through)));
        }
        self.names.extend(names.into_iter().map(|it| it.name).chain(removed).map(|name| tree.join(name)));
        self.patterns.extend(patterns.into_iter().map(|it| (tree.join(it.dir), it.name, it.known)));
        self.links.extend(links.into_iter().map(|(name, target)| (tree.join(name), target)));
        self.pointers.extend(pointers.into_iter().map(|name| tree.join(name)).zip(entry.pointers));
    }

    /// Returns who could write to a directory before such a run started, if one of them watches it.
    pub(super) fn access(&self, dir: &Path) -> Option<Access> {
        self.access.get(dir).copied()
    }

    /// Whether the entry at a path, or a directory above it, was made during such a run, so that it is not the caller's.
    #[must_use]
    pub fn has_made(&self, path: &Path) -> bool {
        !self.runs.is_empty() && path.ancestors().any(|path| self.has_made_entry(path))
    }

    fn has_made_entry(&self, path: &Path) -> bool {
        let is_pattern = |(dir, pattern, known): &(PathBuf, String, Vec<String>)| {
            path.parent() == Some(dir)
                && path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
                    matches_pattern(pattern, name) && !known.iter().any(|known| known == name)
                })
        };
        let is_further = |dir: &Path| {
            let known = self.further.get(dir).into_iter().flatten();
            path.strip_prefix(dir).is_ok_and(|name| {
                known.into_iter().any(|(it, let_through)| it.has_missing(name, let_through))
            })
        };
        self.names.contains(path)
            || path.ancestors().skip(1).any(is_further)
            || self.patterns.iter().any(is_pattern)
            || self.links.get(path).is_some_and(|was| !fs::read_link(path).is_ok_and(|is| is == *was))
            || self.pointers.get(path).is_some_and(|was| {
                fs::symlink_metadata(path)
                    .is_ok_and(|meta| !meta.is_dir() && *was != Pointer::File((meta.dev(), meta.ino())))
            })
    }

    /// Returns since when such a run has gone on in a tree with this path.
    #[must_use]
    pub fn since(&self, path: &Path) -> Option<SystemTime> {
        self.trees.iter().filter(|it| path.starts_with(&it.tree)).map(|it| it.since).min()
    }

    /// Returns whether the stage of such a run may have had a path lead to a directory outside of the run's tree.
    #[must_use]
    pub fn may_have_led(&self, path: &Path, to: &Path) -> bool {
        path.ancestors()
            .skip(1)
            .any(|above| self.trees.iter().any(|it| it.tree == above) && !to.starts_with(above))
    }

    /// Returns whether the stage of such a run, or of an earlier one, may have made the directory of a repository.
    pub(crate) fn may_have_made_repository(&self, git: &Path) -> bool {
        let id = open_plain(git).and_then(|dir| DirectoryId::read(dir.as_fd())).ok();
        self.is_new_repository(git, id)
            || self.state.as_ref().is_some_and(|state| is_noted_repository(state, id))
    }

    /// Returns whether the directory of a repository was missing, or another one, when such a run started.
    fn is_new_repository(&self, git: &Path, id: Option<DirectoryId>) -> bool {
        let is_missing = |it: &WatchedFurther| !it.0.known.iter().any(|name| name == GIT_LINK);
        let further = git.parent().and_then(|dir| self.further.get(dir));
        let was = self.pointers.get(git);
        further.is_some_and(|known| known.iter().any(is_missing))
            || was.is_some_and(|was| id.is_none_or(|id| *was != Pointer::Directory(id)))
    }
}

/// The result of [`trust_repository`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// The repository is trusted now.
    Added,
    /// No stage is known to have made the repository.
    Unneeded,
    /// A run goes on, or is not settled, whose stage may have made the repository. Nothing has changed.
    Unsettled,
}

/// Trusts a repository that the stage of an earlier run may have made: later runs in its subdirectories are shown it.
///
/// # Errors
/// Returns errors of open(2) for a `git` that is not a directory or cannot be read, and errors of writing the list in the state
/// directory.
pub fn trust_repository(state: &Path, git: &Path) -> io::Result<Trust> {
    let id = DirectoryId::read(open_plain(git)?.as_fd())?;
    let mut live = Live::default();
    live.read(state);
    if live.is_new_repository(git, Some(id)) {
        return Ok(Trust::Unsettled);
    }
    if !is_noted_repository(state, Some(id)) {
        return Ok(Trust::Unneeded);
    }
    note_trusted_repository(state, id).map(|()| Trust::Added)
}

impl OtherRuns for Live {
    fn have_made(&self, path: &Path) -> bool {
        self.has_made(path)
    }

    fn are_any(&self) -> bool {
        !self.runs.is_empty()
    }
}

impl Watch {
    /// Notes in the journal that the host has removed a name that was read-only for the stage: what has it from now on may be the stage's.
    /// `name`: its place below the tree.
    ///
    /// # Errors
    /// Returns errors of writing to the journal. If exeat is killed then, what the stage makes there stays.
    pub fn note_free(&self, name: &Path) -> io::Result<()> {
        let added = Added::Free(self.list.tree.join(name));
        self.later.journal.get().map_or(Ok(()), |journal| journal.add(&added))
    }

    /// Notes in the journal that the earlier file has such a name again.
    ///
    /// # Errors
    /// Returns errors of writing to the journal. If exeat is killed then, the next start moves the file aside.
    pub fn note_put_back(&self, name: &Path) -> io::Result<()> {
        let added = Added::PutBack(self.list.tree.join(name));
        self.later.journal.get().map_or(Ok(()), |journal| journal.add(&added))
    }

    /// Finds what the stages of other runs have made by now.
    pub(super) fn find_others(&self) {
        let others = Live::others(&self.state_of_run);
        // One that goes on judges at its own end what its stage has made, as far as that is still in its tree.
        let [going_on, _] = &others;
        let will_judge =
            |it: &Beside| going_on.runs.contains(&it.run) && self.list.tree.starts_with(&it.tree);
        let _ = self.later.unsettled_since.set(self.earliest(|it| !will_judge(it)));
        let _ = self.later.others.set(others.map(|runs| Box::new(runs) as Box<dyn OtherRuns>));
    }

    /// Returns the earliest time of a change by this stage, or by those of the runs beside it that count.
    fn earliest(&self, counts: impl Fn(&Beside) -> bool) -> SystemTime {
        let beside = self.beside.iter().filter(|it| counts(it)).map(|it| it.since);
        beside.fold(self.since, SystemTime::min)
    }

    /// Returns the earliest time of a change that this run judges.
    pub(super) fn changed_since(&self) -> SystemTime {
        self.later.unsettled_since.get().copied().unwrap_or_else(|| self.earliest(|_| true))
    }

    /// Starts a watch on each tree. A directory that a stage of another live run may have opened to other users counts as it was before
    /// that run.
    ///
    /// # Errors
    /// Returns the error that prevents opening a tree.
    pub fn start_all(
        list: impl IntoIterator<Item = WatchList>,
        state_of_run: &StateOfRun,
    ) -> io::Result<Vec<Self>> {
        let mut live = Live::default();
        let mut read = || state_of_run.dir.as_deref().map(|state| live.read(state));
        // A run that ends in the meantime has no journal afterwards, and one that starts has none before.
        read();
        let watches = list.into_iter().map(|list| Self::start(list, state_of_run.clone()));
        let mut watches = watches.collect::<io::Result<Vec<_>>>()?;
        read();
        for watch in &mut watches {
            let tree = &watch.list.tree;
            let is_here = |it: &&Beside| it.tree.starts_with(tree) || tree.starts_with(&it.tree);
            watch.beside = live.trees.iter().filter(is_here).cloned().collect();
            watch.modes.limit_to(|dir| live.access(&watch.list.tree.join(dir)));
        }
        share_trees(&watches.iter().collect::<Vec<_>>());
        Ok(watches)
    }
}

mod writers;

use writers::TreeAtStart;

#[cfg(test)]
mod tests;

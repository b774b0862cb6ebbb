//! Protected names that were missing when the stage started and are there when it has ended: moved aside, and reported.
//!
//! What was there at the start is bound read-only. A missing name cannot be, so it is watched, and what appears is moved into the
//! tree's quarantine ([`Store`]) by one rename. The stage has made what is found here: every step is relative to a directory
//! that was opened before it ran, and no symbolic link is followed. It has set the modes, too: a directory of the caller's is
//! opened for the move, and closed again.
//!
//! The parts of [`Watch`], by file:
//!
//! - here: the start, the names that are known, directories that the stage opened to others. `finish`: the order of the end.
//! - `arrivals`, `exchanged`: what is moved while the stage runs, and the empty directories that have its place meanwhile. `replaced`: files
//!   that exeat writes again.
//! - `store`, `kept`: the quarantine. `journal`, `additions`: runs that were killed, and runs beside this one.
//! - `changes`, `times`, `survey`: whether the stage may have made or changed an entry, or has it open (`has_writer`, `may_have_changed`).
//! - `repository`, `paths`, `file_lists`, `links`, `plain`, `pointers`: a repository's directory, and what its files name.
//! - `held`, `modules`: submodules and linked worktrees. `nested`, `own`: repositories further down. `further`: names further down.
//! - `named`, `astray`: where configurations and links lead.
//! - `closed`, `descriptors`: directories that the stage closed. `modes`, `file_modes`: what it may have opened to others.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, ResolveFlag, openat2, readlinkat};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::unistd::{AccessFlags, access, geteuid};

use serde::{Deserialize, Serialize};

use crate::listing::{self, Listing};
use crate::names::open_plain;
use crate::protected::{Obeyed, matches_pattern};

mod additions;
mod arrivals;
mod astray;
mod changes;
mod closed;
mod descriptors;
mod exchanged;
mod file_lists;
mod file_modes;
mod finish;
mod further;
mod git_names;
mod held;
mod journal;
mod kept;
mod leftovers;
mod links;
mod modes;
mod modules;
mod named;
mod nested;
mod own;
mod path_room;
mod paths;
mod plain;
mod pointers;
mod replaced;
mod repository;
mod store;
mod survey;
mod times;

use additions::Additions;
pub use arrivals::{Arrivals, MountOver};
pub(crate) use descriptors::random;
pub use descriptors::{FileId, IN_MASK_ADD};
use descriptors::{
    ReopenedDirs, entries, id_of, kind, open_at, open_beneath, open_how_for_directory, rename_aside,
    retry_opened, stat_in,
};
use exchanged::Exchanged;
pub use finish::finish_until;
pub use further::{DirState, FurtherDown, first_parts_in};
use git_names::{MODULES, WORKTREES};
pub use journal::{
    Interrupted, Journal, Live, Settlement, Trust, UnsettledRun, settle_interrupted, trust_repository,
    unsettled_runs,
};
pub use kept::{
    Kind, SetAside, Standing, absent, delete, remove_empty_directories, restore, set_aside, tidy,
};
pub use leftovers::{Leftover, Leftovers};
use modes::{Modes, above, dir_of};
pub(crate) use modules::{is_git_dir, is_gits_own};
pub use own::{OF_RUN, TEMPORARY};
use path_room::PathRoom;
use pointers::Pointer;
pub use repository::beyond_search;
use repository::{Contents, Keys};
pub use store::{Item, ItemId, QUARANTINE, StateOfRun, Store, directories, is_quarantine_name};
pub use survey::Survey;
use times::{Noted, Times};

/// Entries of a directory that are compared with a pattern.
pub const MAX_ENTRIES: usize = 1 << 16;

/// A name that was missing at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingName {
    /// Its place below the tree.
    pub name: String,
    /// When a program on the host obeys it.
    pub obeyed: Obeyed,
}

/// Names in one directory that are all protected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// The directory's place below the tree, which is "" itself.
    pub dir: String,
    /// The pattern ([`crate::protected::matches_pattern`]).
    pub name: String,
    /// The names that were there at the start.
    pub known: Vec<String>,
    /// When a program on the host obeys them.
    pub obeyed: Obeyed,
}

impl Pattern {
    /// Whether a name is among these that the pattern stands for and that was not there at the start.
    fn is_new_in(&self, names: &[String]) -> bool {
        names.iter().any(|name| matches_pattern(&self.name, name) && !self.known.contains(name))
    }
}

/// The place of a directory below the tree, which need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDir(#[serde(with = "crate::bytes")] pub PathBuf);

/// A path that the user's own configuration of git names from the top of each working tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedEverywhere {
    /// The relative path.
    #[serde(with = "crate::bytes")]
    pub path: PathBuf,
    /// Whether it counts only where it is a file.
    pub is_file: bool,
}

/// What is watched in one writable tree: names that were missing at the start, and what was there and must stay as it was.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WatchList {
    /// The tree.
    #[serde(with = "crate::bytes")]
    pub tree: PathBuf,
    /// Names that were missing.
    pub names: Vec<MissingName>,
    /// Names that were read-only for the stage until the host removed them. Nothing that comes there stays.
    #[serde(default)]
    pub removed: Vec<String>,
    /// Patterns of names, each in one directory.
    pub patterns: Vec<Pattern>,
    /// Links that were there, and what they said: a name of the list leads through them.
    pub links: Vec<(String, PathBuf)>,
    /// Names of `.git`, which is a directory or nothing: git is led elsewhere by a file or a link there.
    pub pointers: Vec<String>,
    /// Missing names that would make a directory a repository without a `.git` ([`is_repository`]).
    pub bare: Vec<String>,
    /// Directories of repositories, whether they are there or not: the list does not name what git would follow in them.
    /// The tree itself is "".
    pub repositories: Vec<String>,
    /// Directories of submodules and linked worktrees in those that were there.
    pub held: Vec<HeldDir>,
    /// Directories further down, in which the names of the table are protected as well.
    pub further: Vec<FurtherDown>,
    /// Names that are let through in these.
    pub let_through: Vec<String>,
    /// Directories in which something is read-only for the stage: who may write there could replace it.
    pub covered: BTreeSet<String>,
    /// The names that are read-only in the directories of `covered`.
    #[serde(default)]
    pub read_only: BTreeSet<String>,
    /// Paths that git obeys in each repository.
    pub everywhere: Vec<NamedEverywhere>,
    /// Whether the caller lets the stage write everything of git's: then no repository is searched for.
    pub is_git_open: bool,
}

impl WatchList {
    /// The [`WatchList::holders`] that may be in an open tree.
    fn holders_in(&self, tree: BorrowedFd<'_>) -> impl Iterator<Item = String> {
        let listing = Listing::read(tree);
        self.holders().into_iter().filter(move |dir| !listing::lacks(listing.as_ref(), dir))
    }

    /// Whether there is nothing to watch.
    pub fn is_empty(&self) -> bool {
        let names = [&self.pointers, &self.bare, &self.repositories];
        self.names.is_empty()
            && self.removed.is_empty()
            && self.further.is_empty()
            && self.patterns.is_empty()
            && self.links.is_empty()
            && self.covered.is_empty()
            && names.iter().all(|names| names.is_empty())
    }

    /// The directories that hold names which are watched or read-only, or in which git makes such, and those above them.
    fn holders(&self) -> BTreeSet<String> {
        let names = self.names.iter().map(|it| &it.name).chain(self.links.iter().map(|(name, _)| name));
        let names = names.chain(&self.removed).chain(&self.pointers).chain(&self.bare);
        let names = names.map(|name| dir_of(name));
        let patterns = self.patterns.iter().map(|it| it.dir.as_str());
        let further = self.further.iter().map(|it| it.dir.as_str());
        let whole = self.repositories.iter().chain(&self.covered).map(String::as_str);
        let whole = whole.chain(self.held.iter().filter_map(|held| held.0.to_str()));
        let mut dirs = BTreeSet::from([String::new()]);
        for dir in names.chain(patterns).chain(further).chain(whole) {
            // What is known has those above it.
            dirs.extend(
                above(dir).take_while(|dir| !dirs.contains(*dir)).map(str::to_owned).collect::<Vec<_>>(),
            );
        }
        let of_git = |git: &String| {
            [MODULES, WORKTREES].map(|name| {
                let name = Path::new(git).join(name);
                name.to_str().unwrap_or_default().to_owned()
            })
        };
        dirs.extend(self.repositories.iter().flat_map(of_git));
        dirs
    }
}

/// Names that make a directory a repository, in the order in which they are taken away from one.
pub const REPOSITORY: [&str; 4] = ["HEAD", "commondir", "objects", "refs"];

/// Whether git takes a directory for a repository: `is_git_directory` of git's setup.c. It does not check what the names stand for,
/// because that can change. `is_there` returns whether a name exists, whatever it stands for.
pub fn is_repository(is_there: impl Fn(&str) -> bool) -> bool {
    let [head, commondir, objects, refs] = REPOSITORY;
    is_there(head) && (is_there(commondir) || is_there(objects) && is_there(refs))
}

/// Returns whether git takes an open directory for a repository, or for that of its linked worktrees, which needs no `HEAD`: no worktree
/// has to be there today.
fn is_open_repository(dir: BorrowedFd<'_>) -> bool {
    let is_there = |name: &str| stat_in(dir, name).is_ok();
    is_repository(is_there) || ["objects", "refs", WORKTREES].into_iter().all(is_there)
}

/// Knows what the stages of other runs made. A trait for one type, because that is in `journal`, which uses this file: with the files of other
/// parts they would form a circle.
trait OtherRuns: std::fmt::Debug + Send + Sync {
    /// Whether one of these runs watches a path, and its stage may have made the entry there.
    fn have_made(&self, path: &Path) -> bool;

    /// Whether there are such runs.
    fn are_any(&self) -> bool;
}

/// The names, and the tree as it was opened before the stage started.
#[derive(Debug)]
pub struct Watch {
    list: WatchList,
    tree: File,
    /// The pointers at the start. A file is mounted read-only, so the stage did not make it.
    pointers: Vec<Pointer>,
    /// The contents of the repositories at the start.
    contents: Vec<Contents>,
    modes: Modes,
    keys: Keys,
    /// The tree's quarantine.
    directory: Option<FileId>,
    state_of_run: StateOfRun,
    /// When the watch started: the stage has made nothing that is older.
    since: SystemTime,
    beside: Vec<Beside>,
    times: Times,
    noted: Noted,
    later: Later,
}

/// What is known of a watched tree after its start.
#[derive(Debug, Default)]
struct Later {
    /// The trees that the stage can write to, each with its path, and this one among them: a submodule may lie in another tree than its
    /// repository.
    trees: OnceLock<Arc<[(PathBuf, File)]>>,
    /// The earliest time of a change that only this run can still judge. Known at the end.
    unsettled_since: OnceLock<SystemTime>,
    /// The other runs, known at the end of this one.
    others: OnceLock<[Box<dyn OtherRuns>; 2]>,
    /// Known at the end.
    has_writer: OnceLock<HasWriter>,
    /// The rest of what the end reads of files that name paths.
    paths: Mutex<PathRoom>,
    /// Made when something is to be moved.
    store: OnceLock<Store>,
    /// The run's journal, once it is written.
    journal: OnceLock<Arc<Additions>>,
    /// The reason that something was moved aside without the quarantine, and so without its list.
    unlisted: OnceLock<String>,
    /// Directories that the stage has made, and that the host does not see under their names for now.
    exchanged: Mutex<Vec<Exchanged>>,
    /// Directories that the stage has closed and that are open while the end of the run is judged.
    reopened: ReopenedDirs,
}

/// A run that went on in the same tree when this one started. While this stage renames directories, that run may pass over something at its end.
#[derive(Debug, Clone)]
struct Beside {
    run: String,
    /// A tree that its stage may write to.
    tree: PathBuf,
    /// The earliest time of a change by its stage, or by a stage beside that.
    since: SystemTime,
}

impl Watch {
    /// Opens the tree.
    pub fn start(list: WatchList, state_of_run: StateOfRun) -> io::Result<Self> {
        // Its name had no link in it when the view was made: one that has come since leads to a tree that is not the stage's.
        // The tree may also be a single file, or one that waits for a writer.
        let since = SystemTime::now();
        let tree = File::from(open_plain(&list.tree)?);
        let pointers = list.pointers.iter().map(|name| Pointer::read(&tree, name)).collect();
        let keys = Keys::draw();
        let contents = list.repositories.iter().map(|name| Contents::read(&tree, Path::new(name), keys));
        let contents = contents.collect();
        let modes = Modes::read(&tree, list.holders_in(tree.as_fd()), |dir| {
            open_beneath(&tree, Path::new(dir)).ok()
        })?;
        let directory = open_at(tree.as_fd(), Path::new(QUARANTINE)).and_then(|dir| fstat(&dir));
        let directory = directory.ok().map(|stat| id_of(&stat));
        Ok(Self {
            list,
            tree,
            pointers,
            contents,
            modes,
            keys,
            directory,
            state_of_run,
            since,
            beside: Vec::new(),
            times: Times::start(),
            noted: Noted::default(),
            later: Later::default(),
        })
    }

    /// Returns what is watched.
    #[must_use]
    pub fn list(&self) -> &WatchList {
        &self.list
    }

    /// The tree, as it was opened before the stage started.
    #[must_use]
    pub fn tree(&self) -> BorrowedFd<'_> {
        self.tree.as_fd()
    }

    /// Returns the run's directory in the tree's quarantine, and makes it on first use.
    ///
    /// # Errors
    /// Returns an error if it cannot be made. Each call tries again.
    pub fn store(&self) -> io::Result<&Store> {
        if let Some(store) = self.later.store.get() {
            return Ok(store);
        }
        let store = Store::open(self.tree(), &self.list.tree, &self.state_of_run)?;
        Ok(self.later.store.get_or_init(|| store))
    }

    /// Moves aside what stands at a name of the tree that was missing at the start, if there is anything now.
    #[must_use]
    pub fn settle_name(&self, name: impl AsRef<Path>) -> Option<Leftover> {
        self.settle_at(name, |_, _, _| false)
    }

    /// Moves an entry of a directory into the tree's quarantine, and returns its new path. If the quarantine has no room or is in another
    /// file system, the entry gets another name in its directory.
    fn set_aside(&self, dir: BorrowedFd<'_>, last: &OsStr, below: &Path) -> nix::Result<PathBuf> {
        let refused = match self.store() {
            Ok(store) => match retry_opened(dir, || store.take(dir, last, below)) {
                Ok(to) => return Ok(self.list.tree.join(to)),
                // It is gone; or something is mounted there, which keeps it wherever it would go.
                Err(errno @ (Errno::ENOENT | Errno::EBUSY)) => return Err(errno),
                Err(errno) => errno.into(),
            },
            Err(error) => error,
        };
        let new = retry_opened(dir, || rename_aside(dir, last))?;
        let _ = self.later.unlisted.set(format!("`{}`: {refused}", self.list.tree.display()));
        Ok(self.list.tree.join(below).with_file_name(new))
    }

    /// Moves aside what stands at a name in a directory, unless `may` accepts it. `below`: its place below the tree.
    fn settle_in(
        &self,
        dir: BorrowedFd<'_>,
        below: &Path,
        last: &OsStr,
        mut may: impl FnMut(BorrowedFd<'_>, &OsStr, &FileStat) -> bool,
    ) -> Option<Leftover> {
        let mut is_wrong_now = |stat: &FileStat| {
            let may_stay = may(dir, last, stat)
                && !self.has_new_name(stat)
                && !self.has_writer(dir, last, stat).unwrap_or_else(|_| self.may_have_writer(stat));
            let is_stub = || crate::stubs::is_stub(below, dir, last, &self.state_of_run);
            !may_stay && !is_stub() && !self.is_of_other_run(dir, below, last, stat)
        };
        let is_wrong = retry_opened(dir, || {
            let look = || fstatat(dir, last, AtFlags::AT_SYMLINK_NOFOLLOW);
            // The host, or another run, may replace a file while it is judged.
            for _ in 0..JUDGED_AGAIN {
                let stat = match look() {
                    // The tree is a single file.
                    Err(Errno::ENOTDIR) => return Ok(false),
                    stat => stat?,
                };
                if !is_wrong_now(&stat) {
                    return Ok(false);
                }
                if id_of(&look()?) == id_of(&stat) {
                    break;
                }
            }
            Ok(true)
        });
        let moved =
            is_wrong.and_then(|is_wrong| is_wrong.then(|| self.set_aside(dir, last, below)).transpose());
        let moved = match moved {
            Ok(None) | Err(Errno::ENOENT) => return None,
            Ok(Some(new)) => Ok(new),
            Err(errno) => Err(errno.into()),
        };
        Some(Leftover { path: self.list.tree.join(below), moved })
    }

    /// Returns whether another run settles an entry: an empty directory that stands for one of its stage's, or what is older than this run
    /// and that run goes on. To move it would take it from that stage.
    fn is_of_other_run(&self, dir: BorrowedFd<'_>, below: &Path, last: &OsStr, stat: &FileStat) -> bool {
        let Some([going_on, rest]) = self.later.others.get() else { return false };
        let path = self.list.tree.join(below);
        let is_older = || {
            let created = store::open_item(dir, last).ok()?.metadata().ok()?.created().ok()?;
            Some(created < self.since)
        };
        let is_placeholder = exchanged::is_placeholder(stat);
        let is_empty = || open_at(dir, Path::new(last)).is_ok_and(|dir| exchanged::is_empty(dir.as_fd()));
        going_on.have_made(&path) && (is_placeholder || is_older() == Some(true))
            || is_placeholder && rest.have_made(&path) && is_empty()
    }

    /// Moves aside what has appeared under the names that are known. How many these are is not for the stage to say.
    fn settle_names(&self) -> Vec<Leftover> {
        let mut found = Vec::new();
        // Most names are absent, and one list shows that. It counts as long as nothing has been moved.
        let listing = Listing::read(self.tree());
        let lacks =
            |found: &Vec<Leftover>, name: &str| found.is_empty() && listing::lacks(listing.as_ref(), name);
        // First: what stands behind such a pointer has other names once it is gone.
        for (name, was) in self.list.pointers.iter().zip(&self.pointers) {
            if !lacks(&found, name) {
                let may = |_: BorrowedFd<'_>, _: &OsStr, stat: &FileStat| {
                    kind(stat) == SFlag::S_IFDIR || was.is_file(stat)
                };
                found.extend(self.settle_at(name, may));
            }
        }
        for name in self.list.names.iter().map(|it| &it.name) {
            if !lacks(&found, name) {
                found.extend(self.settle_at(name, |dir, _, _| self.may_stay_at(name, dir)));
            }
        }
        for name in &self.list.removed {
            if !lacks(&found, name) {
                found.extend(self.settle_at(name, |_, _, _| false));
            }
        }
        for pattern in &self.list.patterns {
            let is_absent = match pattern.dir.as_str() {
                "" => listing.as_ref().is_some_and(|listing| !pattern.is_new_in(listing.names())),
                dir => lacks(&found, dir),
            };
            if !(found.is_empty() && is_absent) {
                found.extend(self.settle_pattern(pattern));
            }
        }
        for (name, target) in &self.list.links {
            if !lacks(&found, name) {
                let may = |dir: BorrowedFd<'_>, last: &OsStr, _: &FileStat| {
                    readlinkat(dir, last).is_ok_and(|said| said == **target)
                };
                found.extend(self.settle_at(name, may));
            }
        }
        for name in &self.list.bare {
            if !lacks(&found, name) {
                let may = |dir: BorrowedFd<'_>, _: &OsStr, _: &FileStat| {
                    let is_there = |name: &str| fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
                    !is_repository(is_there)
                };
                found.extend(self.settle_at(name, may));
            }
        }
        found
    }

    /// Gives the quarantine its names back, if a live stage has taken them. Returns what the stage has put there.
    fn put_directory_back(&self) -> Vec<Leftover> {
        let Some(store) = self.later.store.get() else { return Vec::new() };
        let found = |moved| Leftover { path: self.list.tree.join(QUARANTINE), moved };
        match store.put_back(self.tree()) {
            Ok(taken) => taken.into_iter().map(|to| found(Ok(self.list.tree.join(to)))).collect(),
            Err(error) => vec![found(Err(error))],
        }
    }

    /// Moves aside what the stage has put under the name of the quarantine, also where nothing else is to be moved: the next run
    /// would find it there.
    fn settle_directory(&self) -> Option<Leftover> {
        let path = self.list.tree.join(QUARANTINE);
        let is_new = || {
            let there = retry_opened(self.tree(), || open_at(self.tree(), Path::new(QUARANTINE)));
            let there = there.and_then(|dir| fstat(&dir)).map(|stat| id_of(&stat));
            // One that was there before stays until there is something to move: it may be another user's quarantine.
            self.directory.is_none() || there.ok() != self.directory
        };
        // Also closes one of exeat's that the stage has opened.
        let is_strange = store::is_strange(self.tree(), &self.state_of_run);
        if self.later.store.get().is_none() && !(is_strange && is_new()) {
            return None;
        }
        match self.store() {
            Ok(store) => {
                let to = self.list.tree.join(store.strange()?);
                Some(Leftover { path, moved: Ok(to) })
            }
            Err(error) => store::is_strange(self.tree(), &self.state_of_run)
                .then_some(Leftover { path, moved: Err(error) }),
        }
    }

    /// Moves aside what a pattern stands for and was not there at the start.
    fn settle_pattern(&self, pattern: &Pattern) -> Vec<Leftover> {
        self.settle_pattern_by(MAX_ENTRIES, pattern)
    }

    /// `most` is the number of entries that are read at once.
    fn settle_pattern_by(&self, most: usize, pattern: &Pattern) -> Vec<Leftover> {
        let mut found = Vec::new();
        loop {
            let before = found.len();
            let is_cut = self.settle_some_of(most, pattern, &mut found);
            // Moved entries make room for others among the entries that are read.
            let is_moved = |found: &Leftover| found.moved.is_ok();
            if !is_cut || !found.get(before..).is_some_and(|found| found.iter().any(is_moved)) {
                return found;
            }
            found.retain(is_moved);
        }
    }

    /// Moves aside those among the first entries. Returns whether there are more entries.
    fn settle_some_of(&self, most: usize, pattern: &Pattern, found: &mut Vec<Leftover>) -> bool {
        let path = |name: &str| self.list.tree.join(Path::new(&pattern.dir).join(name));
        let known: HashSet<&str> = pattern.known.iter().map(String::as_str).collect();
        let listed = open_beneath(&self.tree, Path::new(&pattern.dir)).and_then(|dir| {
            retry_opened(dir.as_fd(), || {
                let mut entries = entries(dir.as_fd())?;
                let names = entries.by_ref().take(most).flatten();
                let names = names.filter_map(|(name, _)| name.into_string().ok());
                let names = names
                    .filter(|name| matches_pattern(&pattern.name, name) && !known.contains(name.as_str()));
                Ok((names.collect::<Vec<_>>(), entries.next().is_some()))
            })
        });
        match listed {
            Ok((names, is_cut)) => {
                let names = names.iter().map(|name| Path::new(&pattern.dir).join(name));
                let names = names.filter_map(|name| name.to_str().map(str::to_owned));
                found.extend(names.filter_map(|name| self.settle_at(&name, |_, _, _| false)));
                found.extend(is_cut.then(|| Leftover {
                    path: path(&pattern.name),
                    moved: Err(io::Error::other(
                        "the directory holds too many names to look for those of this pattern",
                    )),
                }));
                is_cut
            }
            // A link on the way is moved aside for the exact names beside the pattern.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => false,
            Err(Errno::EACCES) if self.is_closed(Path::new(&pattern.dir)) => false,
            Err(errno) => {
                found.push(Leftover { path: path(&pattern.name), moved: Err(errno.into()) });
                false
            }
        }
    }

    /// Moves aside the entry at a name, unless `may` accepts it.
    fn settle_at(
        &self,
        name: impl AsRef<Path>,
        may: impl Fn(BorrowedFd<'_>, &OsStr, &FileStat) -> bool,
    ) -> Option<Leftover> {
        let name = name.as_ref();
        let above = name.parent().filter(|above| *above != Path::new(""));
        // Most names are at the top of the tree, which is open.
        let opened = above.map(|above| open_beneath(&self.tree, above)).transpose();
        let opened = match opened {
            Ok(dir) => dir,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return None,
            Err(errno) => {
                let link = above.and_then(|above| self.link_on_the_way(above));
                let found = || Leftover { path: self.list.tree.join(name), moved: Err(errno.into()) };
                return Some(link.unwrap_or_else(found));
            }
        };
        let dir = opened.as_ref().map_or(self.tree.as_fd(), AsFd::as_fd);
        self.settle_in(dir, name, name.file_name()?, may)
    }
}

impl Watch {
    /// Moves a link that is where a directory was expected. exeat does not inspect the target, and may not move it.
    fn link_on_the_way(&self, path: &Path) -> Option<Leftover> {
        let above: Vec<&Path> = path.ancestors().filter(|name| *name != Path::new("")).collect();
        let mut names = above.into_iter().rev();
        names.find_map(|name| self.settle_at(name, |_, _, stat| kind(stat) != SFlag::S_IFLNK))
    }
}

impl Watch {
    /// Whether a directory is another user's, and this one and so the stage can make nothing in it.
    fn is_closed(&self, dir: &Path) -> bool {
        let opened = match open_beneath(&self.tree, dir) {
            Ok(opened) => opened,
            Err(errno) => return errno == Errno::EACCES,
        };
        let is_others = fstat(&opened).is_ok_and(|stat| stat.st_uid != geteuid().as_raw());
        let at = format!("/proc/self/fd/{}", opened.as_raw_fd());
        is_others && access(at.as_str(), AccessFlags::W_OK | AccessFlags::X_OK) == Err(Errno::EACCES)
    }
}

impl Watch {
    /// Closes the directories that the stage has opened to others. What cannot be closed is left, and told.
    pub(super) fn settle_modes(&self, told: &mut Leftovers) {
        for dir in self.list.holders_in(self.tree()) {
            let Some(was) = self.modes.access_to(&dir) else { continue };
            let Ok(opened) = open_beneath(&self.tree, Path::new(&dir)) else { continue };
            match was.restore(opened.as_fd(), self.modes.owner()) {
                Ok(false) => {}
                Ok(true) => told.add_closed(self.path_of(&dir)),
                Err(why) => told.add(self.open_to_others(&dir, why)),
            }
        }
    }

    /// Reports links that replace such directories and lead to places where other users may write. A link may have been there before
    /// the stage started, so it stays.
    fn tell_links(&self) -> Vec<Leftover> {
        let leads_to_open = |dir: &String| {
            let is_link = open_beneath(&self.tree, Path::new(dir)).err() == Some(Errno::ELOOP);
            let Some(was) = self.modes.access_to(dir).filter(|_| is_link) else { return false };
            match openat2(&self.tree, dir.as_str(), open_how_for_directory(ResolveFlag::RESOLVE_BENEATH)) {
                Ok(end) => was.is_exceeded_by(end.as_fd(), self.modes.owner()),
                Err(errno) => !matches!(errno, Errno::ENOENT | Errno::ENOTDIR),
            }
        };
        let dirs = self.list.holders_in(self.tree()).filter(leads_to_open);
        let why = "a link is in its place that leads out of the tree or to where other users may write";
        dirs.map(|dir| Leftover { path: self.path_of(&dir), moved: Err(io::Error::other(why)) }).collect()
    }

    fn path_of(&self, dir: &str) -> PathBuf {
        if dir.is_empty() { self.list.tree.clone() } else { self.list.tree.join(dir) }
    }

    fn open_to_others(&self, dir: &str, why: impl Display) -> Leftover {
        let why = format!("the stage may have opened it to other users, and it stays so ({why})");
        Leftover { path: self.path_of(dir), moved: Err(io::Error::other(why)) }
    }
}

/// The number of times that a file is judged if it is replaced meanwhile.
const JUDGED_AGAIN: usize = 16;

/// Returns whether anybody has a file open for writing, which was opened for reading.
pub type HasWriter = fn(File) -> io::Result<bool>;

/// Returns the directory of a run in a tree's quarantine.
#[cfg(test)]
fn aside_of(tree: &Path, run: &str) -> PathBuf {
    tree.join(QUARANTINE).join(store::RUNS).join(run)
}

#[cfg(test)]
fn finish<'a>(watches: impl IntoIterator<Item = &'a Watch>) -> Leftovers {
    finish_until(watches, |_| Ok(false), &|| false)
}

#[cfg(test)]
mod tests;

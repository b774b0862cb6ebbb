//! What live runs watch, written down before the stage starts: `exeat/live/RUN.json` in the user's state directory.
//!
//! A run that is killed leaves its journal, and the next start settles what its stage has made. A run that starts beside a live one
//! learns from the journal which names that one's stage has made: they are not the caller's, and are neither covered nor
//! trusted. Each journal is locked as long as a process of its run is left.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::fstat;
use serde::{Deserialize, Serialize};

use super::repository::Contents;
use super::{FileId, Keeper, Keys, Leftovers, Missing, Watch, finish};
use crate::names::open_plain;
use crate::protected::matches_pattern;

/// Where journals are, below the user's state directory. No stage sees it.
const LIVE: &str = "exeat/live";
/// The longest journal that is read.
const LONGEST: u64 = 64 << 20;
/// Journals that are read at one start.
const MOST: usize = 4096;

/// One watch of a journal.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    missing: Missing,
    /// The tree's device and inode.
    id: FileId,
    files: Vec<Option<FileId>>,
    contents: Vec<Contents>,
    keys: Keys,
    /// A hash that another version of exeat may compute otherwise: then the hashes of `contents` say nothing.
    check: u64,
    directory: Option<FileId>,
}

const CHECK: &str = "check";

impl Entry {
    fn new(watch: &Watch) -> io::Result<Self> {
        let stat = fstat(&watch.tree)?;
        Ok(Self {
            missing: watch.missing.clone(),
            id: (stat.st_dev, stat.st_ino),
            files: watch.files.clone(),
            contents: watch.contents.clone(),
            keys: watch.keys,
            check: watch.keys.hash_one(CHECK),
            directory: watch.directory,
        })
    }

    /// Watches again, if the tree is still the same.
    fn resume(self, keeper: &Keeper) -> io::Result<Watch> {
        let tree = File::from(open_plain(&self.missing.tree)?);
        let stat = fstat(&tree)?;
        if (stat.st_dev, stat.st_ino) != self.id {
            return Err(io::Error::new(io::ErrorKind::NotFound, "another directory has its name now"));
        }
        let mut missing = self.missing;
        let mut contents = self.contents;
        if self.keys.hash_one(CHECK) != self.check {
            missing.repositories.clear();
            contents.clear();
        }
        Ok(Watch {
            missing,
            tree,
            files: self.files,
            contents,
            keys: self.keys,
            directory: self.directory,
            keeper: keeper.clone(),
            store: OnceLock::new(),
        })
    }
}

/// The journal of a live run. It stays when its process is killed.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    lock: Flock<File>,
}

impl Journal {
    /// Writes down what is watched.
    ///
    /// # Errors
    /// What writing to the state directory says.
    pub fn write(state: &Path, run: &str, watches: &[Watch]) -> io::Result<Self> {
        let dir = state.join(LIVE);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let entries = watches.iter().map(Entry::new).collect::<io::Result<Vec<_>>>()?;
        let bytes = serde_json::to_vec(&entries)?;
        let (beginning, path) = (dir.join(format!(".{run}")), dir.join(format!("{run}.json")));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&beginning)?;
        let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
        // Nobody sees it before it is whole and locked.
        let written = lock.write_all(&bytes).and_then(|()| fs::rename(&beginning, &path));
        if let Err(error) = written {
            let _ = fs::remove_file(&beginning);
            return Err(error);
        }
        Ok(Self { path, lock })
    }

    /// A descriptor that keeps the journal locked until the last copy of it is closed.
    ///
    /// # Errors
    /// What dup(2) says.
    pub fn keep_locked(&self) -> io::Result<OwnedFd> {
        self.lock.try_clone().map(OwnedFd::from)
    }

    /// Removes it: the run is settled.
    pub fn remove(self) {
        // One that stays is settled again by the next start, which finds nothing.
        let _ = fs::remove_file(&self.path);
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
pub struct Open {
    /// The run.
    pub run: String,
    /// Whether a process of it is left, or its journal could not be asked.
    pub is_live: bool,
    /// The trees that are watched.
    pub trees: Vec<PathBuf>,
}

/// Lists the runs that are not settled.
#[must_use]
pub fn open_runs(state: &Path) -> Vec<Open> {
    let open = |(path, run): (PathBuf, String)| {
        let file = File::open(path).ok()?;
        let trees = read(&file).unwrap_or_default().into_iter().map(|entry| entry.missing.tree);
        let trees = trees.collect();
        // A shared lock, held for a moment, is in the way of nobody but a start that would settle this run just now.
        let is_live = Flock::lock(file, FlockArg::LockSharedNonblock).is_err();
        Some(Open { run, is_live, trees })
    };
    journals(state).into_iter().filter_map(open).collect()
}

fn read(file: &File) -> io::Result<Vec<Entry>> {
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// A run that was killed, and what its stage had left.
#[derive(Debug)]
pub struct Interrupted {
    /// The run.
    pub run: String,
    /// What was moved aside now.
    pub found: Leftovers,
    /// Why a tree was not looked at, in words.
    pub passed: Vec<String>,
}

/// Settles the runs that were killed: moves aside what their stages have made under protected names.
#[must_use]
pub fn settle_interrupted(state: &Path) -> Vec<Interrupted> {
    let mut all = Vec::new();
    for (path, run) in journals(state) {
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
        // Held by a live run, or by another start that settles it.
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
        let same = |held: fs::Metadata| fs::symlink_metadata(&path).is_ok_and(|it| it.ino() == held.ino());
        if !lock.metadata().is_ok_and(same) {
            continue;
        }
        let mut settled = Interrupted { run: run.clone(), found: Leftovers::default(), passed: Vec::new() };
        let keeper = Keeper { run, state: Some(state.to_path_buf()) };
        match read(&lock) {
            Ok(entries) => {
                let mut watches = Vec::new();
                for entry in entries {
                    let tree = entry.missing.tree.clone();
                    match entry.resume(&keeper) {
                        Ok(watch) => watches.push(watch),
                        // With the tree went what was in it.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => settled.passed.push(format!("`{}`: {error}", tree.display())),
                    }
                }
                settled.found = finish(&watches);
            }
            Err(error) => settled.passed.push(format!("`{}`: {error}", path.display())),
        }
        let _ = fs::remove_file(&path);
        all.push(settled);
    }
    all
}

/// What the stages of live runs, and of killed ones that are not settled yet, may have made: names that were missing, or different,
/// when those runs started.
#[derive(Debug, Default)]
pub struct Live {
    runs: HashSet<String>,
    names: HashSet<PathBuf>,
    patterns: Vec<(PathBuf, String, Vec<String>)>,
    links: HashMap<PathBuf, PathBuf>,
    pointers: HashMap<PathBuf, Option<FileId>>,
}

impl Live {
    /// Adds the runs that are in the state directory now, and says whether there are new ones.
    pub fn read(&mut self, state: &Path) -> bool {
        let before = self.runs.len();
        for (path, run) in journals(state) {
            if self.runs.contains(&run) {
                continue;
            }
            // One that has ended meanwhile has settled its names.
            let Ok(entries) = File::open(&path).and_then(|file| read(&file)) else { continue };
            self.runs.insert(run);
            entries.into_iter().for_each(|entry| self.add(entry));
        }
        self.runs.len() > before
    }

    fn add(&mut self, entry: Entry) {
        let Missing { tree, names, patterns, links, pointers, .. } = entry.missing;
        self.names.extend(names.into_iter().map(|it| tree.join(it.name)));
        self.patterns.extend(patterns.into_iter().map(|it| (tree.join(it.dir), it.name, it.known)));
        self.links.extend(links.into_iter().map(|(name, target)| (tree.join(name), target)));
        self.pointers.extend(pointers.into_iter().map(|name| tree.join(name)).zip(entry.files));
    }

    /// Whether what stands at a path was made while such a run went on: it is not the caller's.
    #[must_use]
    pub fn has_made(&self, path: &Path) -> bool {
        if self.runs.is_empty() {
            return false;
        }
        let is_pattern = |(dir, pattern, known): &(PathBuf, String, Vec<String>)| {
            path.parent() == Some(dir)
                && path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
                    matches_pattern(pattern, name) && !known.iter().any(|known| known == name)
                })
        };
        self.names.contains(path)
            || self.patterns.iter().any(is_pattern)
            || self.links.get(path).is_some_and(|was| !fs::read_link(path).is_ok_and(|is| is == *was))
            || self.pointers.get(path).is_some_and(|was| {
                fs::symlink_metadata(path)
                    .is_ok_and(|meta| !meta.is_dir() && Some((meta.dev(), meta.ino())) != *was)
            })
    }
}

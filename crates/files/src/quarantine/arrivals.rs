//! Names that programs on the host obey at once, watched while a stage runs: what is made there is taken from the host's sight
//! within milliseconds, and not at the end of the run.
//!
//! A file is moved into the tree's quarantine. A directory must stay where it is for the stage, which works in it: `git init` makes a
//! `.git` and fills it. So it is mounted in the sandbox over an empty directory of ours, and then the host exchanges the two names
//! (`RENAME_EXCHANGE`, rename(2)): the mount goes with the empty directory, the stage keeps its own under its name, and the host has the
//! empty one there. A repository gets its place back when the stage has ended, and what git obeys in it is moved then as always.
//!
//! The stage may have opened the empty directory before it was covered. So that is watched, too, and what appears in it is moved.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, RenameFlags, readlinkat, renameat2};
use nix::sys::inotify::{AddWatchFlags, Inotify, InotifyEvent, WatchDescriptor};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::store::{DIRECTORY, Item};
use super::{FileId, Found, Watch, is_repository, kind, let_in, open_at, random};
use crate::protected::{Obeyed, REPOSITORIES};

/// What is taken from the host's sight in one run. A stage that makes more is at nothing good, and each leaves a file behind.
const MOST: usize = 1000;
/// Entries of an empty directory of ours that are moved at one look.
const ENTRIES: usize = 64;

/// The names of all trees of a run.
#[derive(Debug)]
pub struct Arrivals {
    watches: Arc<[Watch]>,
    /// Directories and names, as trees: each tree's top comes before what is in it.
    nodes: Vec<Node>,
    dirs: HashMap<WatchDescriptor, Watched>,
    is_due: bool,
    /// How much was taken.
    taken: usize,
}

/// A directory on the way to a name, or a name.
#[derive(Debug)]
struct Node {
    watch: usize,
    /// Its place below the tree.
    path: PathBuf,
    children: BTreeMap<OsString, usize>,
    rule: Option<Rule>,
    /// What may stand there: another run's, or an empty directory of ours.
    known: Option<FileId>,
}

/// What may not stand at a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    /// Anything.
    Absent,
    /// Anything. A directory gets its place back at the end.
    Repository,
    /// Anything but a directory, or this file.
    Pointer(Option<FileId>),
    /// Anything but a link that says this.
    Link(PathBuf),
    /// Anything that makes the directory a repository.
    Bare,
}

/// What a watched directory is.
#[derive(Debug, Clone, Copy)]
enum Watched {
    /// One in which names matter: a node.
    Way(usize),
    /// An empty directory of ours, in the place of a node.
    Empty(usize),
}

impl Arrivals {
    /// The names of these trees that are obeyed at once. What stands at one by now was there before the stage, and stays.
    ///
    /// # Errors
    /// What inotify_add_watch(2) says.
    pub fn new(watches: Arc<[Watch]>, inotify: &Inotify) -> io::Result<Self> {
        let (nodes, dirs) = (Vec::new(), HashMap::new());
        let mut arrivals = Self { watches: Arc::clone(&watches), nodes, dirs, is_due: false, taken: 0 };
        for (number, watch) in watches.iter().enumerate() {
            arrivals.add_tree(number, watch);
        }
        for (node, stat) in arrivals.look(inotify)? {
            if let Some(node) = arrivals.nodes.get_mut(node) {
                node.known = Some(id(&stat));
            }
        }
        arrivals.is_due = false;
        Ok(arrivals)
    }

    /// Whether there is nothing to watch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn add_tree(&mut self, number: usize, watch: &Watch) {
        let missing = &watch.missing;
        let stat = |name: &Path| watch.stat(name);
        let mut rules: Vec<(PathBuf, Rule)> = Vec::new();
        for name in &missing.pointers {
            let rule = match stat(Path::new(name)) {
                Some(stat) => Rule::Pointer(Some(id(&stat)).filter(|_| kind(&stat) == SFlag::S_IFREG)),
                None => Rule::Repository,
            };
            rules.push((name.into(), rule));
        }
        for name in missing.names.iter().filter(|name| name.obeyed == Obeyed::AtOnce) {
            let name = Path::new(&name.name);
            let mut ways = name.ancestors().skip(1).filter(|way| way.file_name().is_some());
            let repository = ways.find(|way| REPOSITORIES.iter().any(|it| way.ends_with(it)));
            match repository.filter(|repository| stat(repository).is_none()) {
                Some(repository) => rules.push((repository.to_path_buf(), Rule::Repository)),
                None => rules.push((name.to_path_buf(), Rule::Absent)),
            }
        }
        rules.extend(missing.links.iter().map(|(name, target)| (name.into(), Rule::Link(target.clone()))));
        rules.extend(missing.bare.iter().map(|name| (name.into(), Rule::Bare)));
        if rules.is_empty() {
            return;
        }
        let top = self.nodes.len();
        self.nodes.push(Node::new(number, PathBuf::new()));
        for (name, rule) in rules {
            let mut at = top;
            let mut path = PathBuf::new();
            for part in &name {
                path.push(part);
                let next = self.nodes.len();
                let Some(node) = self.nodes.get_mut(at) else { return };
                at = *node.children.entry(part.to_owned()).or_insert(next);
                if at == next {
                    self.nodes.push(Node::new(number, path.clone()));
                }
            }
            if let Some(node) = self.nodes.get_mut(at) {
                node.rule.get_or_insert(rule);
            }
        }
    }

    /// Notes what has happened in a directory.
    pub fn note(&mut self, event: &InotifyEvent) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            self.is_due = true;
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.dirs.remove(&event.wd);
        }
        if !event.mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO) {
            return;
        }
        self.is_due |= match (self.dirs.get(&event.wd), &event.name) {
            (Some(Watched::Way(node)), Some(name)) => {
                self.nodes.get(*node).is_some_and(|node| node.children.contains_key(name))
            }
            (Some(Watched::Empty(_)), _) => true,
            _ => false,
        };
    }

    /// Whether something may have come.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Takes what has come from the host's sight. `mount` mounts a directory over another one in the sandbox, by their paths on
    /// the host, and says which directory was mounted; where it fails the stage's directory is moved away from under it.
    ///
    /// # Errors
    /// What cannot be taken, and that more has come than is taken in one run: the stage is to be ended.
    pub fn settle(
        &mut self,
        inotify: &Inotify,
        mount: &mut dyn FnMut(&Path, &Path) -> io::Result<FileId>,
    ) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        // What lies deeper is seen when the directories above it are watched.
        while self.is_due {
            self.is_due = false;
            let mut found = self.settle_empty();
            for (number, stat) in self.look(inotify)? {
                let is_bare = self.nodes.get(number).is_some_and(|node| node.rule == Some(Rule::Bare));
                let may_stay = kind(&stat) == SFlag::S_IFDIR && !is_bare;
                let exchange = if may_stay { self.exchange(inotify, number, &stat, mount)? } else { Exchange::Impossible };
                match exchange {
                    Exchange::Done(taken) => found.extend(taken),
                    Exchange::Again => self.is_due = true,
                    Exchange::Impossible => found.extend(self.take(number)),
                }
                self.taken += 1;
            }
            self.taken += found.len();
            if self.taken > MOST {
                return Err(io::Error::other(format!("the stage has made protected names {MOST} times")));
            }
            all.append(&mut found);
        }
        Ok(all)
    }

    /// Looks for what stands at the names, and has the directories on the way watched. Returns nodes that stand for something.
    fn look(&mut self, inotify: &Inotify) -> io::Result<Vec<(usize, FileStat)>> {
        let mut found = Vec::new();
        let watches = Arc::clone(&self.watches);
        let mut last = None;
        for number in 0..self.nodes.len() {
            let Some(watch) = self.nodes.get(number).map(|node| node.watch) else { break };
            // The first node of each watch is its tree.
            if last.replace(watch) != Some(watch)
                && let Some(watch) = watches.get(watch)
            {
                self.look_in(inotify, watch, watch.tree(), number, &mut found)?;
            }
        }
        Ok(found)
    }

    fn look_in(
        &mut self,
        inotify: &Inotify,
        watch: &Watch,
        dir: BorrowedFd<'_>,
        number: usize,
        found: &mut Vec<(usize, FileStat)>,
    ) -> io::Result<()> {
        let watched = let_in(dir, || add_watch(inotify, dir));
        match watched {
            Ok(watched) => drop(self.dirs.insert(watched, Watched::Way(number))),
            // The tree is a single file.
            Err(Errno::ENOTDIR | Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let Some(node) = self.nodes.get(number) else { return Ok(()) };
        for (name, child) in node.children.clone() {
            let looked = let_in(dir, || fstatat(dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW));
            let Ok(stat) = looked else { continue };
            let Some(node) = self.nodes.get(child) else { continue };
            let is_way = !node.children.is_empty();
            if node.known != Some(id(&stat)) && node.is_wrong(watch, dir, &name, &stat) {
                found.push((child, stat));
            } else if is_way && kind(&stat) == SFlag::S_IFDIR && node.known.is_none() {
                match let_in(dir, || open_at(dir, Path::new(&name))) {
                    Ok(below) => self.look_in(inotify, watch, below.as_fd(), child, found)?,
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => self.is_due = true,
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }

    /// Moves what stands at a name.
    fn take(&self, number: usize) -> Option<Found> {
        let node = self.nodes.get(number)?;
        let watch = self.watches.get(node.watch)?;
        let dir = watch.above(&node.path).ok()?;
        let may = |dir: BorrowedFd<'_>, name: &OsStr, stat: &FileStat| {
            node.known == Some(id(stat)) || !node.is_wrong(watch, dir, name, stat)
        };
        watch.settle_in(dir.as_fd(), &node.path, node.path.file_name()?, may)
    }

    /// Puts an empty directory in the place of one that the stage has made.
    fn exchange(
        &mut self,
        inotify: &Inotify,
        number: usize,
        stat: &FileStat,
        mount: &mut dyn FnMut(&Path, &Path) -> io::Result<FileId>,
    ) -> io::Result<Exchange> {
        let watches = Arc::clone(&self.watches);
        let Some(node) = self.nodes.get_mut(number) else { return Ok(Exchange::Impossible) };
        let Some(watch) = watches.get(node.watch) else { return Ok(Exchange::Impossible) };
        let (tree, at) = (watch.tree(), |path: &Path| watch.missing.tree.join(path));
        let Some(last) = node.path.file_name() else { return Ok(Exchange::Impossible) };
        // First what can fail.
        let (Ok(store), Ok(above)) = (watch.store(), watch.above(&node.path)) else {
            return Ok(Exchange::Impossible);
        };
        let empty = PathBuf::from(format!("{DIRECTORY}.{:016x}", random()));
        let Ok(made) = watch.make_empty(empty.as_os_str()) else { return Ok(Exchange::Impossible) };
        let given_up = |errno: Errno| {
            // What is mounted there goes with it.
            let _ = let_in(tree, || unlinkat(tree, &empty, UnlinkatFlags::RemoveDir));
            Ok(if errno == Errno::ENOENT { Exchange::Again } else { Exchange::Impossible })
        };
        let ours = id(&fstat(&made)?);
        let watched = match add_watch(inotify, &made) {
            Ok(watched) => watched,
            Err(errno) => return given_up(errno),
        };
        match mount(&at(&node.path), &at(&empty)) {
            Ok(mounted) if mounted == id(stat) => {}
            // The stage has made another one meanwhile.
            Ok(_) => return given_up(Errno::ENOENT),
            Err(error) => return given_up(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
        }
        let swap = || renameat2(&above, last, tree, &empty, RenameFlags::RENAME_EXCHANGE);
        if let Err(errno) = let_in(above.as_fd(), || let_in(tree, swap)) {
            return given_up(errno);
        }
        let now = |dir: BorrowedFd<'_>, name: &OsStr| {
            let_in(dir, || fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)).map(|stat| id(&stat))
        };
        if now(above.as_fd(), last) != Ok(ours) {
            // The stage has given its own the name of the empty one before that was covered.
            let path = at(&node.path);
            return Err(io::Error::other(format!("`{}` was exchanged for another directory", path.display())));
        }
        node.known = Some(ours);
        self.dirs.insert(watched, Watched::Empty(number));
        let is_same = now(tree, empty.as_os_str()) == Ok(id(stat));
        let placeholder = Some(ours).filter(|_| is_same);
        let item = let_in(tree, || store.take_as(tree, empty.as_os_str(), &node.path, placeholder))?;
        let found = Found { path: at(&node.path), moved: Ok(at(&item.to)) };
        let is_told = node.rule != Some(Rule::Repository) || !is_same;
        if is_same {
            watch.exchanged.lock().unwrap_or_else(PoisonError::into_inner).push(item);
        }
        Ok(Exchange::Done(is_told.then_some(found)))
    }

    /// Moves what has appeared in the empty directories.
    fn settle_empty(&self) -> Vec<Found> {
        let empty = self.dirs.values().filter_map(|watched| match watched {
            Watched::Empty(node) => self.nodes.get(*node),
            Watched::Way(_) => None,
        });
        empty.flat_map(|node| self.watches.get(node.watch).map(|watch| watch.settle_entries(&node.path))).flatten().collect()
    }
}

/// What became of a directory that was to be exchanged.
enum Exchange {
    /// The host does not see it any more. What is to be told.
    Done(Option<Found>),
    /// The stage has changed it meanwhile.
    Again,
    /// It is to be moved.
    Impossible,
}

impl Node {
    fn new(watch: usize, path: PathBuf) -> Self {
        Self { watch, path, children: BTreeMap::new(), rule: None, known: None }
    }

    /// Whether what stands at the name may not.
    fn is_wrong(&self, watch: &Watch, dir: BorrowedFd<'_>, name: &OsStr, stat: &FileStat) -> bool {
        let is_dir = kind(stat) == SFlag::S_IFDIR;
        match &self.rule {
            // A directory is no name; a link would lead the host to what lies behind it.
            None => kind(stat) == SFlag::S_IFLNK,
            Some(Rule::Absent) => !crate::stubs::is_stub(&self.path, dir, name, &watch.keeper),
            Some(Rule::Repository) => true,
            Some(Rule::Pointer(was)) => !is_dir && *was != Some(id(stat)),
            Some(Rule::Link(said)) => !readlinkat(dir, name).is_ok_and(|says| says == **said),
            Some(Rule::Bare) => {
                is_repository(|name: &str| fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok())
            }
        }
    }
}

impl Watch {
    /// What stands at a name of the tree.
    fn stat(&self, name: &Path) -> Option<FileStat> {
        let above = self.above(name).ok()?;
        fstatat(&above, name.file_name()?, AtFlags::AT_SYMLINK_NOFOLLOW).ok()
    }

    /// The directory that a name of the tree is in.
    fn above(&self, name: &Path) -> nix::Result<OwnedFd> {
        let above = name.parent().filter(|above| !above.as_os_str().is_empty());
        super::open_beneath(&self.tree, above.unwrap_or(Path::new(".")))
    }

    /// Makes an empty directory at the top of the tree.
    fn make_empty(&self, name: &OsStr) -> io::Result<OwnedFd> {
        let owner = super::store::owner_of(self.tree())?;
        Ok(let_in(self.tree(), || super::store::make_fresh(self.tree(), name, owner))?)
    }

    /// Moves what is in a directory that was empty.
    fn settle_entries(&self, at: &Path) -> Vec<Found> {
        let Ok(dir) = super::open_beneath(&self.tree, at) else { return Vec::new() };
        let listed = let_in(dir.as_fd(), || {
            fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))
                .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
        });
        let names = listed.into_iter().flatten().flatten().take(ENTRIES).map(|entry| entry.file_name());
        let names: Vec<_> = names.collect();
        names.iter().filter_map(|name| self.settle_in(dir.as_fd(), &at.join(name), name, |_, _, _| false)).collect()
    }

    /// Removes the empty directories when the stage has ended, and gives repositories their places back. Returns what had appeared
    /// in the one and what keeps the other away.
    pub(super) fn settle_exchanged(&self) -> Vec<Found> {
        let exchanged = std::mem::take(&mut *self.exchanged.lock().unwrap_or_else(PoisonError::into_inner));
        let mut all = Vec::new();
        // The last first: it may lie in another one.
        for item in exchanged.iter().rev() {
            let is_ours = || self.stat(&item.from).is_some_and(|stat| Some(id(&stat)) == item.placeholder);
            if is_ours() {
                all.extend(self.settle_entries(&item.from));
            }
            let is_repository = REPOSITORIES.iter().any(|name| item.from.ends_with(name));
            let given_back = if is_ours() { self.give_back(item, is_repository) } else { Err(Errno::EEXIST) };
            if given_back.is_err() && is_repository {
                all.push(Found { path: item.old_path(), moved: Ok(item.new_path()) });
            }
        }
        all
    }

    fn give_back(&self, item: &Item, is_repository: bool) -> nix::Result<()> {
        let (above, last) = (self.above(&item.from)?, item.from.file_name().unwrap_or_default());
        let_in(above.as_fd(), || unlinkat(&above, last, UnlinkatFlags::RemoveDir))?;
        if is_repository {
            let from = self.above(&item.to)?;
            let name = item.to.file_name().unwrap_or_default();
            let_in(above.as_fd(), || super::store::rename_into(from.as_fd(), name, above.as_fd(), last))?;
            if let Ok(store) = self.store() {
                store.give_back(item);
            }
        }
        Ok(())
    }
}

fn add_watch(inotify: &Inotify, dir: impl AsFd) -> nix::Result<WatchDescriptor> {
    /// The directory may be watched for more already (inotify(7)).
    const IN_MASK_ADD: AddWatchFlags = AddWatchFlags::from_bits_retain(0x2000_0000);
    let mask = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR | IN_MASK_ADD;
    inotify.add_watch(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()).as_str(), mask)
}

fn id(stat: &FileStat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

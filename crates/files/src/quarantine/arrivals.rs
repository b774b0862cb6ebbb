//! Names that programs on the host obey at once, watched while a stage runs: what is made there is taken from the host's sight
//! within milliseconds, and not at the end of the run.
//!
//! A file is moved into the tree's quarantine. A directory must stay where it is for the stage, which works in it: `git init` makes a
//! `.git` and fills it. So it is mounted in the sandbox over an empty directory of ours, and then the host exchanges the two names
//! (`RENAME_EXCHANGE`, rename(2)): the mount goes with the empty directory, the stage keeps its own under its name, and the host has the
//! empty one there. A repository gets its place back when the stage has ended, and what git obeys in it is moved then as always.
//!
//! The stage may have opened the empty directory before it was covered. So that is watched, too, and what appears in it is moved.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, readlinkat};
use nix::sys::inotify::{AddWatchFlags, Inotify, InotifyEvent, WatchDescriptor};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use rustix::fs::RenameFlags;

use super::descriptors::{FileId, add_watch, id_of, kind, open_at, retry_opened};
use super::exchanged::{Exchanged, is_empty, is_placeholder};
use super::links::NewLinks;
use super::store::beside;
use super::{Leftover, QUARANTINE, Watch, is_repository};
use crate::listing::{Listing, lacks};
use crate::names::rename_with;
use crate::protected::{Obeyed, REPOSITORIES};

/// The most names that are taken away in one run. Each leaves a file in the quarantine, and no tool makes so many.
const MOST: usize = 1000;
/// The most times that one name is taken away, because the host sees it for a moment each time.
const TIMES: u32 = 20;
/// Directories are watched up to this number. More mean that the stage replaces those on the way to a name.
const DIRS: usize = 4096;
/// Names of a directory that are asked for one by one at the first look. To list it costs as much.
const FEW: usize = 8;

/// Mounts a directory over another one in the sandbox, by their paths on the host, and says which two these were.
pub type MountOver<'a> = dyn FnMut(&Path, &Path) -> io::Result<(FileId, FileId)> + 'a;

/// The names of all trees of a run.
#[derive(Debug)]
pub struct Arrivals {
    watches: Arc<[Watch]>,
    /// Directories and names, as trees: each tree's top comes before what is in it.
    nodes: Vec<Node>,
    dirs: HashMap<WatchDescriptor, Watched>,
    links: NewLinks,
    is_due: bool,
    /// The number of names that were taken away.
    taken: usize,
    first_look: Duration,
    /// The trees whose quarantine the stage does not reach.
    covered: HashSet<usize>,
}

/// A directory on the way to a name, or a name.
#[derive(Debug)]
struct Node {
    watch: usize,
    /// Its place below the tree.
    path: PathBuf,
    children: BTreeMap<OsString, usize>,
    rule: Option<Rule>,
    /// The file that may stand there: another run's, or an empty directory of ours.
    known: Option<FileId>,
    /// The number of times that an entry appeared.
    times: u32,
}

/// The entries that must not exist at a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    /// Anything.
    Absent,
    /// Anything but a file: one of exeat's is mounted there, and whatever replaces it is covered like any other protected file.
    Held,
    /// Anything. A directory gets its place back at the end.
    Repository,
    /// Anything but a directory, or this file.
    Pointer(Option<FileId>),
    /// Anything but a link that says this.
    Link(PathBuf),
    /// Anything that makes the directory a repository.
    Bare,
}

/// The part that a watched directory has.
#[derive(Debug)]
enum Watched {
    /// A directory on the way to a name: a node.
    Way(usize),
    /// An empty directory of ours at a node's name.
    Empty(usize, OwnedFd),
}

impl Arrivals {
    /// Watches the names of these trees that are obeyed at once. A link on the way that is there by now stays. What else stands at a name
    /// came while another run went on, and is the next to be taken; but for that run's empty directories. `held`: the paths on the host at
    /// which exeat's own files stand.
    ///
    /// # Errors
    /// Returns errors of inotify_add_watch(2).
    pub fn new(watches: Arc<[Watch]>, held: &HashSet<&Path>, inotify: &Inotify) -> io::Result<Self> {
        let began = Instant::now();
        let (nodes, dirs, first_look) = (Vec::new(), HashMap::new(), Duration::ZERO);
        let links = NewLinks::new(&watches, inotify)?;
        let mut arrivals = Self {
            watches: Arc::clone(&watches),
            nodes,
            dirs,
            links,
            is_due: false,
            taken: 0,
            first_look,
            covered: HashSet::new(),
        };
        for (number, watch) in watches.iter().enumerate() {
            arrivals.add_tree(number, watch, held);
        }
        for seen in arrivals.find_arrivals(inotify)? {
            let Some(node) = arrivals.nodes.get_mut(seen.node) else { continue };
            let Some(watch) = watches.get(node.watch) else { continue };
            let (Ok(above), Some(last)) = (watch.above(&node.path), node.path.file_name()) else {
                arrivals.is_due = true;
                continue;
            };
            if node.rule.is_none()
                && let Ok(said) = readlinkat(&above, last)
            {
                node.rule = Some(Rule::Link(said.into()));
            } else if let Ok(dir) = open_at(above.as_fd(), Path::new(last))
                && let Ok(watched) = retry_opened(dir.as_fd(), || add_watch(inotify, &dir))
                && is_empty(dir.as_fd())
            {
                node.known = Some(id_of(&seen.stat));
                arrivals.dirs.insert(watched, Watched::Empty(seen.node, dir));
            } else {
                arrivals.is_due = true;
            }
        }
        arrivals.first_look = began.elapsed();
        Ok(arrivals)
    }

    fn add_tree(&mut self, number: usize, watch: &Watch, held: &HashSet<&Path>) {
        let list = &watch.list;
        // Of each of these directories there are several names.
        let mut repositories: HashMap<&Path, bool> = HashMap::new();
        // An entry that cannot be inspected counts as present.
        let look = |name: &Path| matches!(watch.stat(name), Err(Errno::ENOENT | Errno::ENOTDIR));
        let mut rules: Vec<(PathBuf, Rule)> = Vec::new();
        for name in &list.pointers {
            let rule = match watch.stat(Path::new(name)) {
                Err(Errno::ENOENT | Errno::ENOTDIR) => Rule::Repository,
                stat => Rule::Pointer(
                    stat.ok().filter(|stat| kind(stat) == SFlag::S_IFREG).map(|stat| id_of(&stat)),
                ),
            };
            rules.push((name.into(), rule));
        }
        for name in list.names.iter().filter(|name| name.obeyed == Obeyed::AtOnce) {
            let name = Path::new(&name.name);
            let mut ways = name.ancestors().skip(1).filter(|way| way.file_name().is_some());
            let repository = ways.find(|way| REPOSITORIES.iter().any(|it| way.ends_with(it)));
            let mut is_missing = |name| *repositories.entry(name).or_insert_with(|| look(name));
            match repository.filter(|repository| is_missing(repository)) {
                Some(repository) => rules.push((repository.to_path_buf(), Rule::Repository)),
                None => {
                    let is_held = !held.is_empty() && held.contains(&*list.tree.join(name));
                    rules.push((name.to_path_buf(), if is_held { Rule::Held } else { Rule::Absent }));
                }
            }
        }
        rules.extend(list.links.iter().map(|(name, target)| (name.into(), Rule::Link(target.clone()))));
        rules.extend(list.bare.iter().map(|name| (name.into(), Rule::Bare)));
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
        self.links.note(event, &self.watches);
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            self.is_due = true;
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED)
            && let Some(Watched::Empty(node, _)) = self.dirs.remove(&event.wd)
            && let Some(node) = self.nodes.get_mut(node)
        {
            // It is gone, and another directory may have its inode.
            node.known = None;
            self.is_due = true;
        }
        if !event.mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO) {
            return;
        }
        self.is_due |= match (self.dirs.get(&event.wd), &event.name) {
            (Some(Watched::Way(node)), Some(name)) => {
                self.nodes.get(*node).is_some_and(|node| node.children.contains_key(name))
            }
            (Some(Watched::Empty(..)), _) => true,
            _ => false,
        };
    }

    /// Has the names looked at, also where no event told of one.
    pub fn search_again(&mut self) {
        self.is_due = true;
    }

    /// Returns the duration of the first look at all names, a measure of the machine and its file systems.
    #[must_use]
    pub fn first_look(&self) -> Duration {
        self.first_look
    }

    /// Whether something may have come.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_due || self.links.is_due()
    }

    /// Hides new entries from the host. If `mount` fails, the stage's directory is moved away from under it. `in_sight` is called when the
    /// host may see something, and when it does not any more.
    ///
    /// # Errors
    /// Returns an error if an entry cannot be hidden, or if a run has more entries than the limit: the caller must end the stage. `found`
    /// has what was hidden.
    pub fn settle(
        &mut self,
        inotify: &Inotify,
        mount: &mut MountOver<'_>,
        in_sight: &dyn Fn(bool),
        found: &mut Vec<Leftover>,
    ) -> io::Result<()> {
        self.settle_names(inotify, mount, in_sight, found)?;
        while self.links.is_due() {
            in_sight(true);
            let mut taken = Vec::new();
            let settled = self.links.settle(&self.watches, inotify, &mut taken);
            in_sight(false);
            self.is_due |= !taken.is_empty();
            // To make the quarantine may take long on a busy disk.
            found.extend(taken.into_iter().filter_map(|link| link.store(&self.watches)));
            settled?;
            self.settle_names(inotify, mount, in_sight, found)?;
        }
        self.cover_quarantines(mount)
    }

    fn settle_names(
        &mut self,
        inotify: &Inotify,
        mount: &mut MountOver<'_>,
        in_sight: &dyn Fn(bool),
        found: &mut Vec<Leftover>,
    ) -> io::Result<()> {
        // Deeper entries are seen when the directories above them are watched.
        while self.is_due {
            self.is_due = false;
            in_sight(true);
            let mut filled = Vec::new();
            for (node, mut moved) in self.settle_empty() {
                self.taken += moved.len();
                found.append(&mut moved);
                filled.push(node);
            }
            // There may be more.
            self.is_due |= !filled.is_empty();
            // Who fills one again and again shows the host what it has each time.
            filled.into_iter().try_for_each(|node| self.count(node))?;
            let mut hidden = Vec::new();
            let taken = self.hide_all(inotify, mount, &mut hidden);
            in_sight(false);
            // To make the quarantine may take long on a busy disk.
            found.extend(hidden.into_iter().filter_map(|hidden| self.store(hidden)));
            taken?;
        }
        Ok(())
    }

    /// Mounts an empty directory over each quarantine in the sandbox, so that the stage cannot rename it, or reach what is in it.
    fn cover_quarantines(&mut self, mount: &mut MountOver<'_>) -> io::Result<()> {
        let watches = Arc::clone(&self.watches);
        for (number, watch) in watches.iter().enumerate() {
            let Some(store) = watch.later.store.get().filter(|_| !self.covered.contains(&number)) else {
                continue;
            };
            let empty = PathBuf::from(beside());
            let Ok(made) = watch.make_empty(empty.as_os_str()) else { continue };
            let at = |path: &Path| watch.list.tree.join(path);
            let mounted = mount(&at(&empty), &at(Path::new(QUARANTINE)));
            let tree = watch.tree();
            let _ = retry_opened(tree, || unlinkat(tree, &empty, UnlinkatFlags::RemoveDir));
            match mounted {
                Ok(ids) if ids == (id_of(&fstat(&made)?), store.outer_id()?) => {
                    self.covered.insert(number);
                }
                // The stage was faster. Its end puts everything back.
                Ok(_) => return Err(io::Error::other("the stage has moved exeat's quarantine away")),
                // Then the end alone puts it back.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Takes their names from all that have come.
    fn hide_all(
        &mut self,
        inotify: &Inotify,
        mount: &mut MountOver<'_>,
        hidden: &mut Vec<Hidden>,
    ) -> io::Result<()> {
        for seen in self.find_arrivals(inotify)? {
            match self.hide(inotify, &seen, mount)? {
                Hiding::Hidden(arrival) => hidden.push(arrival),
                Hiding::Again => {}
                // The stage does nothing there, so it is not counted.
                Hiding::Mounted => continue,
            }
            self.count(seen.node)?;
        }
        if self.taken > MOST {
            return Err(io::Error::other(format!("the stage has made protected names {MOST} times")));
        }
        if self.dirs.len() > DIRS {
            return Err(io::Error::other(format!("the stage has replaced directories {DIRS} times")));
        }
        Ok(())
    }

    /// Counts what came at a name.
    fn count(&mut self, number: usize) -> io::Result<()> {
        self.taken += 1;
        let Some(node) = self.nodes.get_mut(number) else { return Ok(()) };
        node.times += 1;
        if node.times > TIMES {
            let path = node.path.display();
            return Err(io::Error::other(format!(
                "the stage has made the protected name `{path}` {TIMES} times"
            )));
        }
        Ok(())
    }

    /// Looks for what stands at the names, and has the directories on the way watched. Returns what may not stand there.
    fn find_arrivals(&mut self, inotify: &Inotify) -> io::Result<Vec<Arrival>> {
        let mut found = Vec::new();
        let watches = Arc::clone(&self.watches);
        let mut last = None;
        for number in 0..self.nodes.len() {
            let Some(watch) = self.nodes.get(number).map(|node| node.watch) else { break };
            // The first node of each watch is its tree.
            if last.replace(watch) != Some(watch)
                && let Some(watch) = watches.get(watch)
            {
                match self.find_arrivals_in(inotify, watch, watch.tree(), number, &mut found) {
                    // The tree is a single file; or it is another user's, and closed.
                    Err(Errno::ENOTDIR | Errno::ENOENT) => {}
                    Err(Errno::EACCES) if !is_callers(watch.tree()) => {}
                    looked => looked?,
                }
            }
        }
        Ok(found)
    }

    fn find_arrivals_in(
        &mut self,
        inotify: &Inotify,
        watch: &Watch,
        dir: BorrowedFd<'_>,
        number: usize,
        found: &mut Vec<Arrival>,
    ) -> nix::Result<()> {
        let watched = retry_opened(dir, || add_watch(inotify, dir))?;
        // The stage may have given it another name; one of ours stays one.
        if !matches!(self.dirs.get(&watched), Some(Watched::Empty(..))) {
            self.dirs.insert(watched, Watched::Way(number));
        }
        let Some(node) = self.nodes.get(number) else { return Ok(()) };
        // What comes after this list makes an event. Later on something has just come.
        let is_first = self.first_look.is_zero() && node.children.len() > FEW;
        let listing = is_first.then(|| Listing::read(dir)).flatten();
        for (name, child) in node.children.clone() {
            if lacks(listing.as_ref(), &name) {
                continue;
            }
            let looked = retry_opened(dir, || fstatat(dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW));
            let stat = match looked {
                Ok(stat) => stat,
                Err(Errno::ENOENT) => continue,
                Err(errno) => return Err(errno),
            };
            let Some(node) = self.nodes.get(child) else { continue };
            let is_way = !node.children.is_empty();
            if node.known != Some(id_of(&stat)) && node.is_wrong(watch, dir, &name, &stat) {
                if self.adopt(inotify, dir, &name, child, &stat) {
                    continue;
                }
                found.push(Arrival { node: child, stat, is_closed: false });
            } else if is_way && kind(&stat) == SFlag::S_IFDIR && node.known.is_none() {
                let below = match retry_opened(dir, || open_at(dir, Path::new(&name))) {
                    Ok(below) => below,
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {
                        self.is_due = true;
                        continue;
                    }
                    Err(errno) => return Err(errno),
                };
                match self.find_arrivals_in(inotify, watch, below.as_fd(), child, found) {
                    // The stage closes it again and again: then it is taken as it is.
                    Err(Errno::EACCES) if is_callers(below.as_fd()) => {
                        found.push(Arrival { node: child, stat, is_closed: true });
                    }
                    Err(Errno::EACCES | Errno::ENOENT | Errno::ENOTDIR) => {}
                    looked => looked?,
                }
            }
        }
        Ok(())
    }

    /// Takes another run's empty directory for one of ours: what appears in it is moved. If each run exchanged the other's, neither
    /// would come to an end.
    fn adopt(
        &mut self,
        inotify: &Inotify,
        above: BorrowedFd<'_>,
        name: &OsStr,
        number: usize,
        stat: &FileStat,
    ) -> bool {
        if !is_placeholder(stat) {
            return false;
        }
        let Ok(dir) = retry_opened(above, || open_at(above, Path::new(name))) else { return false };
        let is_same = fstat(&dir).is_ok_and(|now| id_of(&now) == id_of(stat));
        let Ok(watched) = retry_opened(dir.as_fd(), || add_watch(inotify, &dir)) else { return false };
        let Some(node) = self.nodes.get_mut(number).filter(|_| is_same && is_empty(dir.as_fd())) else {
            return false;
        };
        node.known = Some(id_of(stat));
        self.taken += 1;
        self.dirs.insert(watched, Watched::Empty(number, dir));
        true
    }

    /// Takes the name from something.
    fn hide(&mut self, inotify: &Inotify, seen: &Arrival, mount: &mut MountOver<'_>) -> io::Result<Hiding> {
        let Some(node) = self.nodes.get(seen.node) else { return Ok(Hiding::Again) };
        let may_stay = kind(&seen.stat) == SFlag::S_IFDIR && node.rule != Some(Rule::Bare) && !seen.is_closed;
        if may_stay {
            match self.exchange(inotify, seen, mount)? {
                Exchange::Done(hidden) => return Ok(Hiding::Hidden(hidden)),
                Exchange::Again => {
                    self.is_due = true;
                    return Ok(Hiding::Again);
                }
                Exchange::Impossible => {}
            }
        }
        match self.rename(seen) {
            Ok(hidden) => Ok(hidden.map_or(Hiding::Again, Hiding::Hidden)),
            Err(Errno::ENOENT) => {
                self.is_due = true;
                Ok(Hiding::Again)
            }
            // Something is mounted there, by somebody on the host. The end of the run tells.
            Err(Errno::EBUSY) => Ok(Hiding::Mounted),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Renames something in its directory.
    fn rename(&self, seen: &Arrival) -> nix::Result<Option<Hidden>> {
        let Some(node) = self.nodes.get(seen.node) else { return Ok(None) };
        let Some(watch) = self.watches.get(node.watch) else { return Ok(None) };
        let (dir, last) = (watch.above(&node.path)?, node.path.file_name().unwrap_or_default());
        let stat = retry_opened(dir.as_fd(), || fstatat(&dir, last, AtFlags::AT_SYMLINK_NOFOLLOW))?;
        let may_stay = || node.known == Some(id_of(&stat)) || !node.is_wrong(watch, dir.as_fd(), last, &stat);
        if !seen.is_closed && may_stay() {
            return Ok(None);
        }
        let new = retry_opened(dir.as_fd(), || super::descriptors::rename_aside(dir.as_fd(), last))?;
        Ok(Some(Hidden { node: seen.node, at: node.path.with_file_name(new), placeholder: None }))
    }

    /// Exchanges a directory that the stage has made for an empty one.
    fn exchange(
        &mut self,
        inotify: &Inotify,
        seen: &Arrival,
        mount: &mut MountOver<'_>,
    ) -> io::Result<Exchange> {
        let watches = Arc::clone(&self.watches);
        let Some(node) = self.nodes.get_mut(seen.node) else { return Ok(Exchange::Impossible) };
        let Some(watch) = watches.get(node.watch) else { return Ok(Exchange::Impossible) };
        let (tree, at) = (watch.tree(), |path: &Path| watch.list.tree.join(path));
        let (Ok(above), Some(last)) = (watch.above(&node.path), node.path.file_name()) else {
            return Ok(Exchange::Impossible);
        };
        let empty = PathBuf::from(beside());
        let Ok(made) = watch.make_empty(empty.as_os_str()) else { return Ok(Exchange::Impossible) };
        let given_up = |errno: Errno| {
            // What is mounted there goes with it.
            let _ = retry_opened(tree, || unlinkat(tree, &empty, UnlinkatFlags::RemoveDir));
            Ok(if errno == Errno::ENOENT { Exchange::Again } else { Exchange::Impossible })
        };
        let (ours, theirs) = (id_of(&fstat(&made)?), id_of(&seen.stat));
        watch.note_intent(&node.path, &empty, ours);
        // Until something is mounted at them, names in the sandbox are in the stage's hands.
        let is_tampered = || {
            let path = at(&node.path);
            Err(io::Error::other(format!("the stage kept `{}` from being taken away", path.display())))
        };
        let watched = match add_watch(inotify, &made) {
            Ok(watched) => watched,
            Err(errno) => return given_up(errno),
        };
        match mount(&at(&node.path), &at(&empty)) {
            Ok((_, over)) if over != ours => return is_tampered(),
            Ok((mounted, _)) if mounted == theirs => {}
            // The stage has made another one meanwhile.
            Ok(_) => return given_up(Errno::ENOENT),
            Err(error) => return given_up(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
        }
        let swap = || rename_with(&above, last, tree, &empty, RenameFlags::EXCHANGE);
        if let Err(errno) = retry_opened(above.as_fd(), || retry_opened(tree, swap)) {
            return given_up(errno);
        }
        let now = |dir: BorrowedFd<'_>, name: &OsStr| {
            retry_opened(dir, || fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)).map(|stat| id_of(&stat))
        };
        if now(above.as_fd(), last) != Ok(ours) {
            return is_tampered();
        }
        let is_same = now(tree, empty.as_os_str()) == Ok(theirs);
        let taken = retry_opened(tree, || fstatat(tree, &empty, AtFlags::AT_SYMLINK_NOFOLLOW));
        if !is_same && taken.is_ok_and(|stat| is_placeholder(&stat)) {
            // Another run was faster.
            retry_opened(above.as_fd(), || retry_opened(tree, swap))?;
            return given_up(Errno::ENOENT);
        }
        node.known = Some(ours);
        self.dirs.insert(watched, Watched::Empty(seen.node, made));
        let placeholder = Some(ours).filter(|_| is_same);
        Ok(Exchange::Done(Hidden { node: seen.node, at: empty, placeholder }))
    }

    /// Puts what has lost its name into the quarantine, and says what is to be told.
    fn store(&self, Hidden { node, at, placeholder }: Hidden) -> Option<Leftover> {
        let node = self.nodes.get(node)?;
        let watch = self.watches.get(node.watch)?;
        let stored = watch.above(&at).map_err(io::Error::from).and_then(|dir| {
            let (store, last) = (watch.store()?, at.file_name().unwrap_or_default());
            Ok(retry_opened(dir.as_fd(), || store.take_as(dir.as_fd(), last, &node.path, placeholder))?)
        });
        // Without a quarantine it stays where it is, under a name that nobody obeys.
        let to = stored.map_or(at, |item| item.to);
        let moved = watch.list.tree.join(&to);
        let is_given_back = placeholder.is_some() && node.rule == Some(Rule::Repository);
        if let Some(placeholder) = placeholder {
            let from = node.path.clone();
            let exchanged = Exchanged { from, to, placeholder, is_resumed: false };
            watch.later.exchanged.lock().unwrap_or_else(PoisonError::into_inner).push(exchanged);
        }
        (!is_given_back).then(|| Leftover { path: watch.list.tree.join(&node.path), moved: Ok(moved) })
    }

    /// Moves what has appeared in the empty directories, wherever they are now.
    fn settle_empty(&self) -> Vec<(usize, Vec<Leftover>)> {
        let settle = |watched: &Watched| {
            let Watched::Empty(number, dir) = watched else { return None };
            let node = self.nodes.get(*number)?;
            match self.watches.get(node.watch)?.settle_entries(dir.as_fd(), &node.path) {
                Ok(moved) => Some((*number, moved)).filter(|(_, moved)| !moved.is_empty()),
                // A stage closes it again and again: that counts as well.
                Err(Errno::EACCES) => Some((*number, Vec::new())),
                Err(_) => None,
            }
        };
        self.dirs.values().filter_map(settle).collect()
    }
}

/// Something that stands at a name and may not.
struct Arrival {
    node: usize,
    stat: FileStat,
    /// Whether it is a directory on the way that cannot be opened.
    is_closed: bool,
}

/// An entry that has another name now.
struct Hidden {
    node: usize,
    /// Its path below the tree.
    at: PathBuf,
    /// The empty directory that has its name.
    placeholder: Option<FileId>,
}

/// The outcome of taking a name away.
enum Hiding {
    /// The entry has another name now.
    Hidden(Hidden),
    /// The stage has changed the entry meanwhile.
    Again,
    /// The host has mounted something there.
    Mounted,
}

/// The outcome of an exchange.
enum Exchange {
    /// The host does not see the entry any more.
    Done(Hidden),
    /// The stage has changed the entry meanwhile.
    Again,
    /// The entry must be moved instead.
    Impossible,
}

impl Node {
    fn new(watch: usize, path: PathBuf) -> Self {
        Self { watch, path, children: BTreeMap::new(), rule: None, known: None, times: 0 }
    }

    /// Whether the entry at the name is not allowed there.
    fn is_wrong(&self, watch: &Watch, dir: BorrowedFd<'_>, name: &OsStr, stat: &FileStat) -> bool {
        let is_dir = kind(stat) == SFlag::S_IFDIR;
        match &self.rule {
            // A directory on the way is allowed. A link leads the host to its target.
            None => kind(stat) == SFlag::S_IFLNK,
            Some(Rule::Held) => kind(stat) != SFlag::S_IFREG,
            Some(Rule::Absent) => !crate::stubs::is_stub(&self.path, dir, name, &watch.state_of_run),
            Some(Rule::Repository) => true,
            Some(Rule::Pointer(was)) => !is_dir && *was != Some(id_of(stat)),
            Some(Rule::Link(said)) => !readlinkat(dir, name).is_ok_and(|says| says == **said),
            Some(Rule::Bare) => {
                is_repository(|name: &str| fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok())
            }
        }
    }
}

/// Whether a directory is the caller's, who may open it to itself.
fn is_callers(dir: BorrowedFd<'_>) -> bool {
    fstat(dir).is_ok_and(|stat| stat.st_uid == geteuid().as_raw())
}

#[cfg(test)]
mod tests;

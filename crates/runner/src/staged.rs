//! Holds root's trees by descriptor, and mounts them so that a stage of another user can use them.
//!
//! If root starts exeat, the stage has another kernel user. Its writable trees belong to root or to somebody else on disk. An idmapped
//! mount (mount_setattr(2)) exchanges that owner and the stage's user: the stage owns the owner's files there, and its new files belong
//! to the owner. A read-only tree may be in a directory that the stage cannot enter, such as below `/root`. It is mounted by its
//! descriptor, so its siblings do not become visible.
//!
//! The view has already decided what is shown. Nothing here changes files that other processes see.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_files::fault::{FileFault, PathUse};
use exeat_files::layout::{EmptyEntry, Mount, MountList, Why};
use exeat_files::lists;
use exeat_files::names::{plain_name, rows, true_name};
use exeat_files::permissions::{Ids, enters, is_closed, is_mine, resolve_links};
use exeat_sandbox::{HostTree, Staging, UserMap};
use nix::errno::Errno;

use crate::cache::Steps;
use crate::dirs::{RunDir, names};
use crate::error::Error;
use crate::uids::{ROOT, has, ranges, with_group};

/// The trees that are held for a stage, and the users that are exchanged in them.
#[derive(Debug)]
pub(crate) struct Staged {
    /// The stage's kernel user.
    who: Ids,
    /// The maps of this user namespace.
    known: IdMaps,
    maps: BTreeMap<Ids, UserMap>,
    held: Vec<HeldTree>,
    /// The known answers of [`Staged::is_open`].
    open: BTreeMap<PathBuf, bool>,
    /// Trees whose names lead through a link that another user could have made.
    doubtful: Vec<PathBuf>,
    /// Lines for the caller.
    notes: Vec<String>,
}

/// The maps of users and groups of this process's user namespace (user_namespaces(7)).
#[derive(Debug)]
struct IdMaps {
    uids: String,
    gids: String,
}

impl IdMaps {
    fn read() -> Self {
        let read = |name| fs::read_to_string(format!("/proc/self/{name}_map")).unwrap_or_default();
        Self { uids: read("uid"), gids: read("gid") }
    }

    /// Creates a map that exchanges two users.
    fn exchange(&self, one: Ids, other: Ids) -> io::Result<UserMap> {
        let uids = exchange_lines(&self.uids, one.0, other.0).ok_or(Errno::EINVAL)?;
        let gids = exchange_lines(&self.gids, one.1, other.1).ok_or(Errno::EINVAL)?;
        UserMap::new(&uids, &gids)
    }
}

/// A tree that is held by its descriptor.
#[derive(Debug)]
struct HeldTree {
    /// The path on the host without links.
    host: PathBuf,
    /// The owner on disk whose files the stage owns, if that is another user.
    owner: Option<Ids>,
    tree: Source,
}

#[derive(Debug)]
enum Source {
    /// The tree exists.
    Tree(HostTree),
    /// The tree is made when the run starts.
    ToMake(Steps),
}

/// The source of a mount's tree, instead of its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountSource {
    /// The name of a tree in the staging directory.
    pub(crate) name: String,
    /// The path below that tree.
    pub(crate) below: PathBuf,
}

/// The facts about a tree for the dry run and the fingerprint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeSummary {
    pub(crate) name: String,
    pub(crate) host: PathBuf,
    pub(crate) owner: Option<Ids>,
}

/// The reason that a stage cannot have its trees as another user.
#[derive(Debug)]
pub(crate) enum TreeFault {
    /// The machine does not allow it; the text is the end of a sentence.
    Refused(String),
    /// An operation failed.
    Failed(Error),
}

impl Staged {
    /// Creates an empty set of trees for this user.
    ///
    /// # Errors
    /// Returns the reason that nothing can be mounted by its descriptor here, as the end of a sentence.
    pub(crate) fn new(who: Ids) -> Result<Self, String> {
        let known = IdMaps::read();
        if exchange_lines(&known.uids, 0, who.0).is_none() || exchange_lines(&known.gids, 0, who.1).is_none()
        {
            return Err(format!("the users of this container have no uid {}", who.0));
        }
        HostTree::open(Path::new("/dev/null")).map_err(|error| match error.raw_os_error() {
            Some(libc) if libc == Errno::EPERM as i32 && !has_sys_admin() => {
                "exeat has no CAP_SYS_ADMIN here".to_owned()
            }
            Some(libc) if libc == Errno::EPERM as i32 => {
                "open_tree(2) or mount_setattr(2) is refused, as by the filter of a container, or in a user namespace that has no mount namespace of its own"
                    .to_owned()
            }
            _ => format!("nothing can be mounted by its descriptor here: {error}"),
        })?;
        let (maps, open) = <(BTreeMap<_, _>, BTreeMap<_, _>)>::default();
        Ok(Self { who, known, maps, held: Vec::new(), open, doubtful: Vec::new(), notes: Vec::new() })
    }

    /// Checks the names that the caller gave to trees, each with the place that the view resolved. If a name leads through a link that
    /// another user could have made, the tree keeps that user's rights: otherwise root would open the link's target for the stage. The
    /// same applies if a name now leads elsewhere, because there was such a link when the view resolved it.
    pub(crate) fn check_names(&mut self, names: &[(PathBuf, PathBuf)]) {
        for (name, host) in names {
            let why = match resolve_links(name) {
                Some((Some(link), _)) => format!(
                    "the way there leads through the link `{}`, which root alone should be able to make",
                    link.display()
                ),
                Some((None, end)) if end == *host || plain_name(&end).is_ok_and(|it| it == *host) => continue,
                None => "more links are on the way there than the kernel follows".to_owned(),
                Some((None, _)) => format!("it led to `{}`, and has changed since", host.display()),
            };
            self.notes.push(format!("of `{}` the stage sees what permissions let it: {why}", name.display()));
            self.doubtful.push(host.clone());
        }
    }

    /// Prepares the cache, which [`Staged::make`] makes if it is missing. Returns its path without links.
    ///
    /// # Errors
    /// Returns an error when its file system cannot map it, or a link is on the path; then nothing has changed.
    pub(crate) fn cache(&mut self, cache: &Path) -> io::Result<PathBuf> {
        let steps = Steps::toward(cache)?;
        let host = steps.end();
        let tree = HostTree::from_descriptor(steps.dir())?;
        // Root makes a missing cache.
        let owner = self.other(if steps.is_made() { with_group(tree.uid(), &self.known.gids) } else { ROOT });
        self.exchange(&tree, steps.place(), owner)?;
        let tree = if steps.is_made() { Source::Tree(tree) } else { Source::ToMake(steps) };
        self.held.push(HeldTree { host: host.clone(), owner, tree });
        Ok(host)
    }

    /// Makes the cache if it is missing.
    ///
    /// # Errors
    /// Returns an error when it cannot be made; the other trees stay usable.
    pub(crate) fn make(&mut self) -> io::Result<()> {
        for held in &mut self.held {
            let Source::ToMake(steps) = &mut held.tree else { continue };
            let tree = HostTree::from_descriptor(steps.make()?)?;
            if tree.uid() != ROOT.0 {
                return Err(io::Error::other("another user has made it since"));
            }
            if let Some(map) = held.owner.and_then(|owner| self.maps.get(&owner)) {
                tree.map(map)?;
            }
            held.tree = Source::Tree(tree);
        }
        Ok(())
    }

    /// Checks that the file system of a directory can exchange root and the stage.
    ///
    /// # Errors
    /// Returns an error when it cannot.
    pub(crate) fn check_mappable(&mut self, dir: &Path) -> io::Result<()> {
        self.open(&true_name(dir)?, self.other(ROOT)).map(drop)
    }

    /// Returns the owner if it must be exchanged with the stage.
    fn other(&self, owner: Ids) -> Option<Ids> {
        Some(owner).filter(|owner| owner.0 != self.who.0)
    }

    /// Finds the source of each mount's tree. Leaves out mounts that would only hide what the stage cannot reach. Replaces a closed
    /// directory that contains a shown path by an empty one.
    ///
    /// With `must`, a tree that the stage cannot write as this user is a fault. So is `start`, where the stage starts, if it cannot enter
    /// that.
    pub(crate) fn arrange(
        &mut self,
        mounts: Vec<Mount>,
        start: &Path,
        must: bool,
    ) -> Result<(Vec<Mount>, Vec<Option<MountSource>>), TreeFault> {
        let mut out = MountList::default();
        let mut taken: Vec<Option<MountSource>> = Vec::new();
        for mount in mounts {
            match self.access(&out, &taken, &mount) {
                Access::Open => {}
                Access::Useless => continue,
                Access::Cover(at) => {
                    let entry = EmptyEntry::Dir { mode: 0o555 };
                    out.push(Mount::Hidden { at, entry, why: Why::Closed });
                    taken.push(None);
                }
            }
            taken.push(match &mount {
                Mount::ReadOnly { host, .. } => self.source(host, false, must && host == start)?,
                Mount::Writable { host, .. } => self.source(host, true, must)?,
                _ => None,
            });
            out.push(mount);
        }
        Ok((out.into_vec(), taken))
    }

    /// Returns lines for the caller.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Describes the trees in order.
    pub(crate) fn summaries(&self) -> Vec<TreeSummary> {
        let told = |(number, held): (usize, &HeldTree)| TreeSummary {
            name: name_of(number),
            host: held.host.clone(),
            owner: held.owner,
        };
        self.held.iter().enumerate().map(told).collect()
    }

    /// Collects the entries that bubblewrap finds at the run directory: the trees and the directory's own files.
    pub(crate) fn into_staging(self, dir: &RunDir) -> io::Result<Staging> {
        let mut staging = Staging::new(dir.path());
        for (name, tree) in self.into_trees() {
            staging.add(name, tree);
        }
        for (name, path) in names(dir) {
            staging.add(name, HostTree::open(&path)?);
        }
        Ok(staging)
    }

    /// Returns the trees with their names, to be mounted. Leaves out a cache that could not be made.
    fn into_trees(self) -> impl Iterator<Item = (String, HostTree)> {
        self.held.into_iter().enumerate().filter_map(|(number, held)| match held.tree {
            Source::Tree(tree) => Some((name_of(number), tree)),
            Source::ToMake(_) => None,
        })
    }

    /// Returns the source of a tree; `None` for its own path.
    fn source(&mut self, host: &Path, writable: bool, must: bool) -> Result<Option<MountSource>, TreeFault> {
        let failed = |source| {
            TreeFault::Failed(
                FileFault::Path { what: PathUse::Tree, path: host.to_path_buf(), source }.into(),
            )
        };
        // The cache of a user with a home may be missing: that user makes it.
        let Ok(meta) = fs::metadata(host) else { return Ok(self.held_with(host)) };
        // Links are followed once here. A later link is not opened.
        let (link, real) = resolve_links(host).ok_or(Errno::ELOOP).map_err(|errno| failed(errno.into()))?;
        let owner = self.other(with_group(meta.uid(), &self.known.gids));
        if let Some(source) = self.held_with(&real) {
            // In a tree of another user the stage would not own what it must write.
            if !writable || owner.is_none() || self.owner(&source).is_some() {
                return Ok(Some(source));
            }
        }
        let is_open = self.is_open(host) && self.is_open(&real);
        let is_doubtful = link.is_some() || self.doubtful.iter().any(|doubtful| real.starts_with(doubtful));
        if is_doubtful || (is_open && (!writable || owner.is_none())) {
            return Ok(None);
        }
        let opened = HostTree::open(&real).and_then(|tree| {
            // The owner of the opened tree counts, whatever has its name by now.
            let owner = self.other(with_group(tree.uid(), &self.known.gids));
            self.exchange(&tree, &real, owner)?;
            Ok((owner, tree))
        });
        let (owner, tree) = match opened {
            Ok(opened) => opened,
            Err(error) if owner.is_some() && is_refusal(&error) => {
                let kind = file_system(&real).map(|kind| format!(" ({kind})")).unwrap_or_default();
                let why = format!(
                    "`{}` is on a file system{kind} that cannot be mounted for another user: {error}",
                    host.display()
                );
                if must {
                    return Err(TreeFault::Refused(why));
                }
                if writable {
                    self.notes.push(format!("{why}; the stage writes there what permissions let it"));
                }
                if is_open {
                    return Ok(None);
                }
                (None, HostTree::open(&real).map_err(failed)?)
            }
            Err(error) => return Err(failed(error)),
        };
        let name = name_of(self.held.len());
        self.held.push(HeldTree { host: real, owner, tree: Source::Tree(tree) });
        Ok(Some(MountSource { name, below: PathBuf::new() }))
    }

    /// Returns whether the stage may enter a directory and every one above it, which many trees share.
    fn is_open(&mut self, path: &Path) -> bool {
        if let Some(known) = self.open.get(path) {
            return *known;
        }
        let is_open = fs::metadata(path).is_ok_and(|meta| enters(&meta, self.who, None))
            && path.parent().is_none_or(|above| self.is_open(above));
        self.open.insert(path.to_path_buf(), is_open);
        is_open
    }

    /// Returns the innermost held tree that contains a path.
    fn held_with(&self, host: &Path) -> Option<MountSource> {
        let trees = self.held.iter().enumerate().filter(|(_, held)| host.starts_with(&held.host));
        let (number, held) = trees.max_by_key(|(_, held)| held.host.components().count())?;
        let below = host.strip_prefix(&held.host).ok()?.to_path_buf();
        Some(MountSource { name: name_of(number), below })
    }

    fn open(&mut self, real: &Path, owner: Option<Ids>) -> io::Result<HostTree> {
        let tree = HostTree::open(real)?;
        self.exchange(&tree, real, owner)?;
        Ok(tree)
    }

    /// Exchanges an owner and the stage in a tree.
    fn exchange(&mut self, tree: &HostTree, real: &Path, owner: Option<Ids>) -> io::Result<()> {
        if let Some(owner) = owner {
            let map = match self.maps.entry(owner) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    new.insert(self.known.exchange(owner, self.who)?)
                }
            };
            if !tree.map(map)? {
                self.notes.push(format!(
                    "what is mounted below `{}` keeps its owners: the stage writes there what permissions let it",
                    real.display()
                ));
            }
        }
        Ok(())
    }

    /// Returns whether the stage can reach a place, and otherwise what to do about the mount.
    fn access(&self, before: &MountList, taken: &[Option<MountSource>], mount: &Mount) -> Access {
        let place = mount.at();
        let Some(above) = place.parent() else { return Access::Open };
        let Some((number, tree)) = before.over(above).next() else { return Access::Open };
        let (Mount::ReadOnly { host, at, .. } | Mount::Writable { host, at, .. }) = tree else {
            return Access::Open;
        };
        let owner = taken.get(number).and_then(Option::as_ref).and_then(|source| self.owner(source));
        let Ok(below) = above.strip_prefix(at) else { return Access::Open };
        // The check starts at the tree's own directory.
        let mut steps: Vec<&Path> = below.ancestors().collect();
        steps.reverse();
        if is_mask(mount) && owner.is_none() && self.keeps_its_own(tree, place) {
            return Access::Useless;
        }
        let closed = steps.into_iter().find(|step| {
            fs::metadata(host.join(step))
                .is_ok_and(|meta| !is_mine(&meta, self.who, owner) && !enters(&meta, self.who, owner))
        });
        let Some(closed) = closed else { return Access::Open };
        let is_cover = match mount {
            Mount::Tmpfs { .. } | Mount::Hidden { .. } => true,
            Mount::ReadOnly { host: other, .. } | Mount::Writable { host: other, .. } => {
                // This mount pins a path that is already visible.
                let is_same = place.strip_prefix(at).is_ok_and(|rest| *other == host.join(rest));
                is_same && matches!(tree, Mount::Writable { .. })
            }
            _ => false,
        };
        if is_cover { Access::Useless } else { Access::Cover(at.join(closed)) }
    }

    /// Returns whether credentials already keep the stage out by their permissions. A mount over such a file lasts only until a program
    /// replaces it, as `passwd`, shells and upgrades do at any time.
    fn keeps_its_own(&self, tree: &Mount, place: &Path) -> bool {
        let is_as_on_the_host = matches!(tree, Mount::ReadOnly { host, at, .. } if host == at);
        let is_known = lists::SYSTEM_CREDENTIALS.iter().any(|path| place == Path::new(path))
            || lists::REWRITTEN.iter().any(|name| place.ends_with(name));
        is_as_on_the_host
            && is_known
            && fs::symlink_metadata(place).is_ok_and(|meta| is_closed(&meta, self.who))
    }

    fn owner(&self, source: &MountSource) -> Option<Ids> {
        self.held.get(source.name.parse::<usize>().ok()?)?.owner
    }
}

impl From<TreeFault> for Error {
    fn from(fault: TreeFault) -> Self {
        match fault {
            TreeFault::Failed(error) => error,
            TreeFault::Refused(why) => {
                Self::Prepare { what: "the trees of the view", source: io::Error::other(why) }
            }
        }
    }
}

/// The answer to whether the stage can reach a place.
enum Access {
    Open,
    /// The stage cannot reach the place, and a mount there would only hide something from it.
    Useless,
    /// The stage cannot enter this directory, which must be covered.
    Cover(PathBuf),
}

fn name_of(number: usize) -> String {
    number.to_string()
}

/// Returns the lines of a map that exchanges two ids, in a user namespace with the map `known`; `None` if it lacks one of them.
fn exchange_lines(known: &str, one: u32, other: u32) -> Option<String> {
    if !has(known, one) || !has(known, other) {
        return None;
    }
    let (one, other) = (u64::from(one), u64::from(other));
    let mut lines = String::new();
    // Writing to a String cannot fail.
    if one != other {
        let _ = writeln!(lines, "{one} {other} 1\n{other} {one} 1");
    }
    for (mut first, end) in ranges(known) {
        let cuts = [one.min(other), one.max(other)].into_iter().filter(|_| one != other);
        for cut in cuts.chain([end]) {
            if (first..=end).contains(&cut) {
                if cut > first {
                    let _ = writeln!(lines, "{first} {first} {}", cut - first);
                }
                first = cut + 1;
            }
        }
    }
    Some(lines)
}

/// Returns whether a mount only hides the entry below it.
fn is_mask(mount: &Mount) -> bool {
    matches!(mount, Mount::Hidden { entry: EmptyEntry::File | EmptyEntry::Dir { mode: 0 }, .. })
}

/// Returns whether this process has an effective CAP_SYS_ADMIN (proc_pid_status(5)).
fn has_sys_admin() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & CAP_SYS_ADMIN != 0)
}

/// Returns whether the error means that the machine cannot map owners, and not a fault of the path or a lack of memory.
fn is_refusal(error: &io::Error) -> bool {
    let refusals =
        [Errno::EINVAL, Errno::EPERM, Errno::ENOSYS, Errno::EOPNOTSUPP, Errno::EACCES, Errno::ENOSPC];
    error.raw_os_error().is_some_and(|number| refusals.contains(&Errno::from_raw(number)))
}

/// Returns the type of the file system at a path, for a message.
fn file_system(real: &Path) -> Option<String> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let within = rows(&table).filter(|row| real.starts_with(row.at()));
    let top = within.max_by_key(|row| row.at().components().count())?;
    Some(String::from_utf8_lossy(top.kind).into_owned())
}

#[cfg(test)]
mod tests;

//! Root's trees for a stage that is not root: held by descriptor, and mounted so that the stage can use them.
//!
//! Started by root, the stage is another user to the kernel. A tree that it must write belongs to root, or somebody else, on
//! the disk: that owner and the stage's user change places in it (an idmapped mount, mount_setattr(2)), so that the stage owns
//! there what the owner owns, and what it makes belongs to the owner. A tree that it only reads may lie in a directory that is
//! closed to it, such as below `/root`: it is mounted by its descriptor, and nothing beside it is opened.
//!
//! Decides nothing about what is shown: the view has done that. Changes nothing that anybody sees.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exeat_contract::NOBODY;
use exeat_files::names::{plain_name, rows, true_name};
use exeat_files::users::user_of;
use exeat_sandbox::{Mount, Tree, UserMap};
use nix::errno::Errno;
use nix::unistd::Uid;

use crate::bounds::follow;
use crate::cache::Steps;
use crate::error::Error;
use crate::lists;
use crate::uids::ranges;
use crate::view;

/// A kernel uid and gid.
pub(crate) type Ids = (u32, u32);

/// Root.
const ROOT: Ids = (0, 0);

/// Trees that are held for a stage, and the users that change places in them.
#[derive(Debug)]
pub(crate) struct Staged {
    /// Who the stage is to the kernel.
    who: Ids,
    maps: BTreeMap<Ids, UserMap>,
    held: Vec<Held>,
    /// Trees whose names lead through a link that somebody else could have made.
    doubtful: Vec<PathBuf>,
    /// Lines for the caller.
    notes: Vec<String>,
}

/// A tree, by its descriptor.
#[derive(Debug)]
struct Held {
    /// Where it is on the host, without links.
    host: PathBuf,
    /// The owner on the disk that the stage is taken for, where that is another one than itself.
    owner: Option<Ids>,
    tree: Source,
}

#[derive(Debug)]
enum Source {
    /// It is there.
    Tree(Tree),
    /// It is made when the run starts.
    ToMake(Steps),
}

/// Where a mount's tree is found instead of at its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The name of a tree in the staging directory.
    pub(crate) name: String,
    /// What of it.
    pub(crate) below: PathBuf,
}

/// What the dry run and the fingerprint tell of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) name: String,
    pub(crate) host: PathBuf,
    pub(crate) owner: Option<Ids>,
}

/// Trees that a stage must have, as another user, and cannot.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The machine does not allow it: said as the end of a sentence.
    Refused(String),
    /// Something failed.
    Failed(Error),
}

impl Staged {
    /// Trees for this user.
    ///
    /// # Errors
    /// Why nothing can be mounted by its descriptor here, as the end of a sentence.
    pub(crate) fn new(who: Ids) -> Result<Self, String> {
        let known = |name| fs::read_to_string(format!("/proc/self/{name}_map")).unwrap_or_default();
        if swapped(&known("uid"), 0, who.0).is_none() || swapped(&known("gid"), 0, who.1).is_none() {
            return Err(format!("the users of this container have no uid {}", who.0));
        }
        Tree::open(Path::new("/dev/null")).map_err(|error| match error.raw_os_error() {
            Some(libc) if libc == Errno::EPERM as i32 && !has_sys_admin() => {
                "exeat has no CAP_SYS_ADMIN here".to_owned()
            }
            Some(libc) if libc == Errno::EPERM as i32 => {
                "open_tree(2) or mount_setattr(2) is refused, as by the filter of a container, or in a user namespace that has no mount namespace of its own"
                    .to_owned()
            }
            _ => format!("nothing can be mounted by its descriptor here: {error}"),
        })?;
        Ok(Self { who, maps: BTreeMap::new(), held: Vec::new(), doubtful: Vec::new(), notes: Vec::new() })
    }

    /// Looks at the names that the caller gave to trees, each with the place that the view took it for. One that leads through
    /// a link that another user could have made is left to that user's rights: root would open for the stage what the link
    /// leads to. So is one that leads elsewhere by now: there was such a link when the view looked.
    pub(crate) fn named(&mut self, names: &[(PathBuf, PathBuf)]) {
        for (name, host) in names {
            let why = match way_to(name) {
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

    /// Makes room for the cache, which [`Staged::make`] makes if it is not there. Where that is, without links.
    ///
    /// # Errors
    /// When its file system cannot do it, or a link is on the way; nothing has changed then.
    pub(crate) fn cache(&mut self, cache: &Path) -> io::Result<PathBuf> {
        let steps = Steps::toward(cache)?;
        let host = steps.end();
        let tree = Tree::of(steps.dir())?;
        // What is made is made by root.
        let owner = self.other(if steps.is_made() { owner_of(tree.uid()) } else { ROOT });
        self.exchange(&tree, steps.place(), owner)?;
        let tree = if steps.is_made() { Source::Tree(tree) } else { Source::ToMake(steps) };
        self.held.push(Held { host: host.clone(), owner, tree });
        Ok(host)
    }

    /// Makes the cache, where it is to be made.
    ///
    /// # Errors
    /// When it cannot be made. The other trees are as they were.
    pub(crate) fn make(&mut self) -> io::Result<()> {
        for held in &mut self.held {
            let Source::ToMake(steps) = &mut held.tree else { continue };
            let tree = Tree::of(steps.make()?)?;
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

    /// Whether the file system of a directory lets root and the stage change places.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn takes(&mut self, dir: &Path) -> io::Result<()> {
        self.open(&true_name(dir)?, self.other(ROOT)).map(drop)
    }

    /// An owner with whom the stage changes places.
    fn other(&self, owner: Ids) -> Option<Ids> {
        Some(owner).filter(|owner| owner.0 != self.who.0)
    }

    /// Finds for each mount where its tree is to be taken from. What would hide something that the stage cannot reach is
    /// left out; a closed directory with something in it that is shown gives way to an empty one.
    ///
    /// `must`: a tree that the stage cannot write as this user is a fault, and so is `start`, where it starts, if it cannot enter
    /// that.
    pub(crate) fn arrange(
        &mut self,
        mounts: Vec<Mount>,
        start: &Path,
        must: bool,
    ) -> Result<(Vec<Mount>, Vec<Option<Taken>>), Fault> {
        let mut out: Vec<Mount> = Vec::new();
        let mut taken: Vec<Option<Taken>> = Vec::new();
        for mount in mounts {
            match self.way(&out, &taken, &mount) {
                Way::Open => {}
                Way::Useless => continue,
                Way::Cover(at) => {
                    out.push(Mount::Tmpfs { at, size: view::MASK_SIZE, mode: 0o555 });
                    taken.push(None);
                }
            }
            taken.push(match &mount {
                Mount::ReadOnly { host, .. } if !view::is_mask(host) => {
                    self.source(host, false, must && host == start)?
                }
                Mount::Writable { host, .. } => self.source(host, true, must)?,
                _ => None,
            });
            out.push(mount);
        }
        Ok((out, taken))
    }

    /// Lines for the caller.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The trees, in order.
    pub(crate) fn told(&self) -> Vec<Told> {
        let told = |(number, held): (usize, &Held)| Told {
            name: name_of(number),
            host: held.host.clone(),
            owner: held.owner,
        };
        self.held.iter().enumerate().map(told).collect()
    }

    /// The trees and their names, to be mounted. What was to be made and could not be is left out.
    pub(crate) fn into_trees(self) -> impl Iterator<Item = (String, Tree)> {
        self.held.into_iter().enumerate().filter_map(|(number, held)| match held.tree {
            Source::Tree(tree) => Some((name_of(number), tree)),
            Source::ToMake(_) => None,
        })
    }

    /// Where a tree is taken from: `None` from its own path.
    fn source(&mut self, host: &Path, writable: bool, must: bool) -> Result<Option<Taken>, Fault> {
        let failed = |source| {
            Fault::Failed(Error::Path { what: "a tree that is shown", path: host.to_path_buf(), source })
        };
        // Not there: the cache of a user who has a home, and that user makes it.
        let Ok(meta) = fs::metadata(host) else { return Ok(self.held_with(host)) };
        // Followed once. What has become a link since then is not opened.
        let (link, real) = way_to(host).ok_or(Errno::ELOOP).map_err(|errno| failed(errno.into()))?;
        let owner = self.other(owner_of(meta.uid()));
        if let Some(source) = self.held_with(&real) {
            // In a tree of somebody else's the stage would not own what it has to write.
            if !writable || owner.is_none() || self.owner(&source).is_some() {
                return Ok(Some(source));
            }
        }
        let is_open = is_open_to(self.who, host) && is_open_to(self.who, &real);
        let is_doubtful = link.is_some() || self.doubtful.iter().any(|doubtful| real.starts_with(doubtful));
        if is_doubtful || (is_open && (!writable || owner.is_none())) {
            return Ok(None);
        }
        let opened = Tree::open(&real).and_then(|tree| {
            // The owner of what was opened, whatever has its name by now.
            let owner = self.other(owner_of(tree.uid()));
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
                    return Err(Fault::Refused(why));
                }
                if writable {
                    self.notes.push(format!("{why}; the stage writes there what permissions let it"));
                }
                if is_open {
                    return Ok(None);
                }
                (None, Tree::open(&real).map_err(failed)?)
            }
            Err(error) => return Err(failed(error)),
        };
        let name = name_of(self.held.len());
        self.held.push(Held { host: real, owner, tree: Source::Tree(tree) });
        Ok(Some(Taken { name, below: PathBuf::new() }))
    }

    /// The innermost tree that has a path in it, if one is held.
    fn held_with(&self, host: &Path) -> Option<Taken> {
        let trees = self.held.iter().enumerate().filter(|(_, held)| host.starts_with(&held.host));
        let (number, held) = trees.max_by_key(|(_, held)| held.host.components().count())?;
        let below = host.strip_prefix(&held.host).ok()?.to_path_buf();
        Some(Taken { name: name_of(number), below })
    }

    fn open(&mut self, real: &Path, owner: Option<Ids>) -> io::Result<Tree> {
        let tree = Tree::open(real)?;
        self.exchange(&tree, real, owner)?;
        Ok(tree)
    }

    /// Lets an owner and the stage change places in a tree.
    fn exchange(&mut self, tree: &Tree, real: &Path, owner: Option<Ids>) -> io::Result<()> {
        if let Some(owner) = owner {
            let map = match self.maps.entry(owner) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => new.insert(map(owner, self.who)?),
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

    /// Whether the stage gets as far as a place, and what to do about it.
    fn way(&self, before: &[Mount], taken: &[Option<Taken>], mount: &Mount) -> Way {
        let Some(place) = view::mount_point(mount) else { return Way::Open };
        let Some(above) = place.parent() else { return Way::Open };
        let top = before.iter().rposition(|it| view::mount_point(it).is_some_and(|at| above.starts_with(at)));
        let Some((number, tree)) = top.and_then(|number| Some((number, before.get(number)?))) else {
            return Way::Open;
        };
        let (Mount::ReadOnly { host, at } | Mount::Writable { host, at }) = tree else { return Way::Open };
        let owner = taken.get(number).and_then(Option::as_ref).and_then(|source| self.owner(source));
        let Ok(below) = above.strip_prefix(at) else { return Way::Open };
        // From the tree's own directory down.
        let mut steps: Vec<&Path> = below.ancestors().collect();
        steps.reverse();
        if is_mask(mount) && owner.is_none() && self.keeps_its_own(tree, place) {
            return Way::Useless;
        }
        let closed = steps.into_iter().find(|step| {
            fs::metadata(host.join(step))
                .is_ok_and(|meta| !is_mine(&meta, self.who, owner) && !enters(&meta, self.who, owner))
        });
        let Some(closed) = closed else { return Way::Open };
        let is_cover = match mount {
            Mount::Tmpfs { .. } => true,
            Mount::ReadOnly { host: other, .. } | Mount::Writable { host: other, .. } => {
                // What is at this place anyway, and is to be fastened there.
                let is_same = place.strip_prefix(at).is_ok_and(|rest| *other == host.join(rest));
                is_mask(mount) || (is_same && matches!(tree, Mount::Writable { .. }))
            }
            _ => false,
        };
        if is_cover { Way::Useless } else { Way::Cover(at.join(closed)) }
    }

    /// Whether a place of credentials keeps the stage out by its own permissions. A mount over such a file lasts until a program
    /// replaces it, as `passwd`, shells and upgrades do at any time.
    fn keeps_its_own(&self, tree: &Mount, place: &Path) -> bool {
        let is_as_on_the_host = matches!(tree, Mount::ReadOnly { host, at } if host == at);
        let is_known = lists::SYSTEM_CREDENTIALS.iter().any(|path| place == Path::new(path))
            || lists::REWRITTEN.iter().any(|name| place.ends_with(name));
        is_as_on_the_host
            && is_known
            && fs::symlink_metadata(place).is_ok_and(|meta| is_closed(&meta, self.who))
    }

    fn owner(&self, source: &Taken) -> Option<Ids> {
        let (_, held) = self.held.iter().enumerate().find(|(number, _)| name_of(*number) == source.name)?;
        held.owner
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Failed(error) => error,
            Fault::Refused(why) => {
                Self::Prepare { what: "the trees of the view", source: io::Error::other(why) }
            }
        }
    }
}

/// Whether the stage gets as far as a place.
enum Way {
    Open,
    /// No, and what was to be there would only hide something from it.
    Useless,
    /// Not through this directory.
    Cover(PathBuf),
}

fn name_of(number: usize) -> String {
    number.to_string()
}

/// The owner's own group, not the tree's: that may be anybody's.
fn owner_of(uid: u32) -> Ids {
    if uid == 0 {
        return ROOT;
    }
    let user = user_of(Uid::from_raw(uid)).ok().flatten();
    (uid, user.map_or(NOBODY, |user| user.gid.as_raw()))
}

/// A map in which two users change places.
fn map(one: Ids, other: Ids) -> io::Result<UserMap> {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}_map"));
    let uids = swapped(&read("uid")?, one.0, other.0).ok_or(Errno::EINVAL)?;
    let gids = swapped(&read("gid")?, one.1, other.1).ok_or(Errno::EINVAL)?;
    UserMap::new(&uids, &gids)
}

/// The lines of such a map, in a user namespace that has `known` as its own. `None` where it lacks one of them.
fn swapped(known: &str, one: u32, other: u32) -> Option<String> {
    let ranges: Vec<(u64, u64)> = ranges(known).collect();
    let (one, other) = (u64::from(one), u64::from(other));
    let has = |id: u64| ranges.iter().any(|(first, end)| (*first..*end).contains(&id));
    if !has(one) || !has(other) {
        return None;
    }
    let mut lines = String::new();
    // Writing to a String cannot fail.
    if one != other {
        let _ = writeln!(lines, "{one} {other} 1\n{other} {one} 1");
    }
    for (mut first, end) in ranges {
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

/// A symbolic link on the way to a path that another user than root could have made, or made to lead elsewhere.
pub(crate) fn doubtful_link(path: &Path) -> Option<PathBuf> {
    way_to(path).map_or_else(|| Some(path.to_path_buf()), |(link, _)| link)
}

/// The first such link, and where the path leads. `None` where the kernel would follow no further.
pub(crate) fn way_to(path: &Path) -> Option<(Option<PathBuf>, PathBuf)> {
    let (links, end) = follow(path)?;
    Some((links.into_iter().find(|link| !is_root_s_to_make(link)), end))
}

/// Whether root alone can put something else at a path: in its directory, and in each one above that.
pub(crate) fn is_root_s_to_make(link: &Path) -> bool {
    link.ancestors().zip(link.ancestors().skip(1)).all(|(entry, dir)| {
        let about = |path: &Path| fs::symlink_metadata(path).ok().filter(|meta| meta.uid() == 0);
        about(dir).is_some_and(|dir| {
            dir.mode() & 0o022 == 0 || (dir.mode() & 0o1000 != 0 && about(entry).is_some())
        })
    })
}

/// Whether a user may enter a directory and every one above it, by the permission bits.
pub(crate) fn is_open_to(who: Ids, path: &Path) -> bool {
    path.ancestors().all(|part| fs::metadata(part).is_ok_and(|meta| enters(&meta, who, None)))
}

/// The same for one directory, in a tree in which an owner and this user have changed places.
fn enters(meta: &Metadata, who: Ids, owner: Option<Ids>) -> bool {
    let bit = match (is_mine(meta, who, owner), changed(meta.gid(), who.1, owner.map(|ids| ids.1)) == who.1) {
        (true, _) => 0o100,
        (false, true) => 0o010,
        (false, false) => 0o001,
    };
    !meta.is_dir() || meta.mode() & bit != 0
}

/// Whether a file is one of others, and closed to everybody but them.
fn is_closed(meta: &Metadata, who: Ids) -> bool {
    const EVERYBODY: u32 = 0o007;
    !meta.is_symlink() && meta.uid() != who.0 && meta.gid() != who.1 && meta.mode() & EVERYBODY == 0
}

/// Whether a mount does nothing but hide what is there.
fn is_mask(mount: &Mount) -> bool {
    match mount {
        Mount::Tmpfs { mode, .. } => *mode == 0,
        Mount::ReadOnly { host, .. } => view::is_mask(host),
        _ => false,
    }
}

/// Whether it belongs to this user there.
fn is_mine(meta: &Metadata, who: Ids, owner: Option<Ids>) -> bool {
    changed(meta.uid(), who.0, owner.map(|ids| ids.0)) == who.0
}

/// A number after two have changed places.
fn changed(id: u32, one: u32, other: Option<u32>) -> u32 {
    match other {
        Some(other) if id == one => other,
        Some(other) if id == other => one,
        _ => id,
    }
}

/// Whether this process has CAP_SYS_ADMIN in force (proc_pid_status(5)).
fn has_sys_admin() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & CAP_SYS_ADMIN != 0)
}

/// Whether a machine says no to other owners, and not a path or a lack of memory.
fn is_refusal(error: &io::Error) -> bool {
    let refusals =
        [Errno::EINVAL, Errno::EPERM, Errno::ENOSYS, Errno::EOPNOTSUPP, Errno::EACCES, Errno::ENOSPC];
    error.raw_os_error().is_some_and(|number| refusals.contains(&Errno::from_raw(number)))
}

/// The kind of file system at a path, for a message.
fn file_system(real: &Path) -> Option<String> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let within = rows(&table).filter(|row| real.starts_with(row.at()));
    let top = within.max_by_key(|row| row.at().components().count())?;
    Some(String::from_utf8_lossy(top.kind).into_owned())
}

#[cfg(test)]
mod tests;

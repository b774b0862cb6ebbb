//! Builds the view: from the request and the host to an ordered list of mounts.
//!
//! Reads the host and changes nothing. The order is the contract: base view, private places, our files, toolchains, then by
//! depth the caller's trees and masks (of two at one place the read-only tree wins over the writable one, the work directory
//! over both, and a mask over all), and last the host's sockets. What is hidden or protected is so by its path on the host, in
//! every tree that shows it, at whatever place: directly after the tree's own mount, so that only a deeper tree of the
//! caller's opens it. What a ceiling hides no tree opens: a tree in it is left out.
//!
//! Ceilings and the stage's declaration cut the caller's trees down before anything is mounted. Where a tree is cut, what it
//! would have covered stays covered: a bound must not bring to light what the caller had hidden with a bind.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::layout::{EmptyEntry, Mount, MountList, Why, visible};
use crate::listing::{Listing, lacks};
use crate::names::{Mounts, future_path, is_absent, joined, rows, true_name, whole};
use crate::protected::LetThrough;
use crate::quarantine::{Live, WatchList};
use crate::request::Files;
use crate::users::user_of;
use crate::walk::{End, LinkRule, clean};
use exeat_policy::{Nested, Size, View};
use nix::unistd::{Uid, geteuid};

use crate::bounds::{DeclaredPaths, Extent, Limit, existing};
use crate::fault::{FileFault, PathUse};
use crate::lists;
use crate::permissions::{Ids, doubtful_link, is_open_to};

mod belongs;
mod closed;
mod git;
mod place;
mod protected;
pub mod scratch;
mod sockets;
mod system;
mod trees;
pub mod work;

use closed::closed_directory_above;
pub use git::Everywhere;

/// The description of the sandbox for an agent, which docs/agents.md repeats.
const AGENTS: &str = include_str!("agents.txt");
/// The directory below a home that holds most credentials.
const CONFIG: &str = ".config";
/// Bytes of `/run`: sockets, pid files, and stage2.
const RUN_SIZE: u64 = 64 << 20;
/// Bytes of `/dev/shm`: browsers and databases share memory there.
const SHM_SIZE: u64 = 512 << 20;

/// Places that are private in every view, whatever the host has there.
const PRIVATE: [&str; 6] = ["/tmp", "/var/tmp", "/run", "/sys", "/proc", "/dev"];

/// Facts that a view depends on.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The working directory, without links.
    pub cwd: &'a Path,
    /// A link on the way that the shell took into the working directory, which a stage could have made, and its end.
    pub cwd_link: Option<(PathBuf, PathBuf)>,
    /// The home directory, without links.
    pub home: &'a Path,
    /// The home directory as the caller writes it.
    pub home_words: &'a Path,
    /// The rule for links on a path.
    pub links: &'a LinkRule,
    /// The settings that the caller's git obeys in every repository.
    pub git: Everywhere,
    /// Users as whom the stage may read somewhere, the caller among them.
    pub owners: BTreeSet<u32>,
    /// The caller's PATH.
    pub path: Option<&'a OsStr>,
    /// The stage's HOME.
    pub stage_home: &'a Path,
    /// The behavior of a run inside this one.
    pub nested: Nested,
    /// Trees that variables of the caller's environment name, and files of certificates.
    pub named: Vec<PathBuf>,
    /// Trees that variables name which were given a value. They were requested, like binds.
    pub asked: Vec<PathBuf>,
    /// Certificates that a stage with a work directory needs to trust what it may reach.
    pub certificates: Vec<PathBuf>,
    /// The private cache on the host, where there is one.
    pub cache: Option<&'a Path>,
    /// The directory of all caches, if the caller's own uid makes them. No stage sees the others' in it.
    pub caches: Option<&'a Path>,
    /// The directory on the host that the stage has as `/tmp`, where that is not in memory.
    pub tmp_dir: Option<&'a Path>,
    /// Directories that exeat itself writes to, besides those of [`lists::OWN`].
    pub own: &'a [PathBuf],
    /// The one of them that every user's programs write to.
    pub shared: PathBuf,
    /// The program that sets the sandbox up from inside.
    pub helper: &'static [u8],
    /// The key that signs the record, those that sign other runs', and what was set aside: nothing opens them to the stage.
    pub unseen: &'a [PathBuf],
    /// The names that other runs watch.
    pub live: Live,
    /// The caller is root.
    pub root: bool,
    /// Who the stage becomes, where that is not the caller.
    pub other: Option<Other>,
    /// The size limit of the private `/tmp` and `/var/tmp`, if there is one.
    pub tmp: Option<Size>,
}

/// Who a stage is that root has started.
#[derive(Debug, Clone, Copy)]
pub struct Other {
    /// Kernel uid and gid.
    pub ids: Ids,
    /// A tree that is closed to it can be mounted by its descriptor.
    pub by_descriptor: bool,
}

impl Other {
    /// Whether a tree of the view, at its own name, is closed to this user, and whether it can be shown all the same.
    fn reaches(self, root: &Path) -> (bool, bool) {
        let is_open = is_open_to(self.ids, root);
        (is_open, is_open || (self.by_descriptor && doubtful_link(root).is_none()))
    }
}

/// A view, ready for the sandbox.
#[derive(Debug)]
pub struct Built {
    /// The pieces of the file tree, in the order in which they are mounted.
    pub mounts: Vec<Mount>,
    /// The working directory of the stage.
    pub cwd: PathBuf,
    /// Lines for the caller.
    pub notes: Vec<String>,
    /// The notes about entries of PATH and variables that are not shown, where a missing command may lie.
    pub left_out: Vec<String>,
    /// Promises that cannot be kept.
    pub lost: Vec<String>,
    /// A socket of the host may be reachable by path: no Unix sockets for the stage.
    pub sockets_exposed: bool,
    /// Host paths that the stage can write below.
    pub writable: Vec<PathBuf>,
    /// What is watched in each writable tree.
    pub watched: Vec<WatchList>,
    /// The paths that the caller named, each with its real path.
    pub named: Vec<(PathBuf, PathBuf)>,
}

/// The users who own what of the host is mounted: in a tree that is mapped the stage may read as its owner.
pub fn owners(mounts: &[Mount]) -> impl Iterator<Item = u32> {
    let host = |mount: &Mount| match mount {
        Mount::ReadOnly { host, .. } | Mount::Writable { host, .. } => fs::metadata(host).ok(),
        _ => None,
    };
    mounts.iter().filter_map(host).map(|meta| meta.uid())
}

/// Builds the view.
pub fn build(files: &Files, facts: &Facts<'_>) -> Result<Built, FileFault> {
    let built = arranged(files, facts)?;
    place::check(&built.mounts)?;
    Ok(Built { mounts: visible(built.mounts), ..built })
}

/// A view, before it is known that each of its mounts has a place.
fn arranged(files: &Files, facts: &Facts<'_>) -> Result<Built, FileFault> {
    let mut view = Builder::new(files, facts)?;
    view.base();
    view.private_places();
    view.our_files();
    // In the whole tree of the host is everything that is open to the stage.
    if view.kind == View::Project || (view.kind == View::Host && facts.other.is_some()) {
        view.toolchains();
    }
    view.show_named(facts.certificates.iter().cloned().collect(), Why::Certificates);
    let cwd = view.working_directory();
    let originals = view.originals(cwd)?;
    let cwd = originals.iter().find(|tree| tree.why == Why::WorkingDirectory);
    let wide = cwd.filter(|tree| tree.rank == Rank::Wide).map(|tree| tree.at.clone());
    let is_cut = originals.iter().any(|tree| tree.at == facts.cwd && !tree.is_whole());
    let (writable, watched) = view.trees(originals)?;
    let listed = view.host_sockets(Path::new("/proc/net/unix"), wide.as_deref());
    view.check_declared()?;
    let start = view.start(is_cut);
    let sockets_exposed = view.kind == View::Host || wide.is_some() || !listed || view.tools_expose_sockets();
    let cache = facts.cache.filter(|_| files.cache.is_on_disk()).map(Path::to_path_buf);
    let writable = writable.into_iter().map(|(host, _)| host).chain(cache);
    let writable = writable.chain(facts.tmp_dir.map(Path::to_path_buf)).collect();
    let Builder { mounts, notes, named, left_out, lost, .. } = view;
    let mounts = mounts.into_vec();
    Ok(Built { mounts, cwd: start, notes, left_out, lost, sockets_exposed, writable, watched, named })
}

/// Real paths with the reason that they are hidden, and the names by which a flag can open them.
type HiddenPaths = BTreeMap<PathBuf, (Why, Vec<PathBuf>)>;

/// Finds the home directories of the users as whom the stage may read, and lines on those that are not known.
fn homes(facts: &Facts<'_>) -> (BTreeSet<PathBuf>, Vec<String>) {
    // Credentials are where the user's programs put them, whatever HOME says for this run.
    let (mut homes, mut unknown) = (BTreeSet::from([facts.home.to_path_buf()]), Vec::new());
    for uid in facts.owners.iter().copied().map(Uid::from_raw) {
        match home_of(uid) {
            Ok(home) => homes.extend(home),
            Err(error) => {
                let whose = if uid == geteuid() { "you".to_owned() } else { format!("uid {uid}") };
                unknown.push(format!(
                    "the home directory that passwd(5) has for {whose} is not known ({}): credentials may be shown in it",
                    error.desc()
                ));
            }
        }
    }
    (homes, unknown)
}

/// Finds what no tree shows unless the caller names it: credentials, and what exeat keeps for itself. Returns each real path
/// with the names by which a flag can open it.
fn hidden(
    facts: &Facts<'_>,
    homes: &BTreeSet<PathBuf>,
    own: &[PathBuf],
    notes: &mut Vec<String>,
) -> HiddenPaths {
    let credentials = homes.iter().flat_map(|home| {
        let (names, config) = (Listing::read_path(home), Listing::read_path(&home.join(CONFIG)));
        let is_absent = move |name: &str| {
            let in_config = name.strip_prefix(CONFIG).and_then(|name| name.strip_prefix('/'));
            lacks(names.as_ref(), name) || in_config.is_some_and(|name| lacks(config.as_ref(), name))
        };
        lists::CREDENTIALS.iter().filter(move |name| !is_absent(name)).map(|name| home.join(name))
    });
    let system = lists::SYSTEM_CREDENTIALS.iter().filter(|_| facts.root).map(PathBuf::from);
    let credentials = credentials.chain(system).map(|path| (Why::Credentials, path));
    // Not the shared base of run directories: the stage has its own `/tmp` and `/dev/shm`.
    let own = own.iter().filter(|path| **path != facts.shared).map(|path| (Why::Own, path.clone()));
    // Most of the others do not exist. One system call shows that, but `canonicalize` needs one for each part of a path.
    let missing =
        |path: &Path| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    // It is made before the stage starts: a stage that made it would choose what later runs find in it.
    let caches = facts.caches.map(future_path).filter(|caches| missing(caches));
    let mut found: HiddenPaths = caches.into_iter().map(|path| (path, (Why::Own, Vec::new()))).collect();
    let there = credentials.chain(own).filter(|(_, path)| !missing(path));
    for (why, path) in there {
        match true_name(&path) {
            // Where it really is: what is masked at a link would be a detour.
            Ok(real) => found.entry(real).or_insert((why, Vec::new())).1.push(path),
            // A dangling link has nothing to hide.
            Err(error) if is_absent(&error) => {}
            // A stage may have closed the directory that it lies in, and could open it again.
            Err(_) => {
                let Some(closed) = closed_directory_above(&path) else { continue };
                if found.insert(closed.clone(), (why, Vec::new())).is_none() {
                    notes.push(format!(
                        "`{}` is hidden from the stage: it is closed, and credentials may be in it",
                        closed.display()
                    ));
                }
            }
        }
    }
    found
}

/// The home directory that the machine knows of a user, from passwd(5) or wherever else it asks (nsswitch.conf(5)).
fn home_of(uid: Uid) -> nix::Result<Option<PathBuf>> {
    let home = user_of(uid)?.map(|user| user.dir);
    // Of a user without one it is the root directory, or a place that is not there.
    Ok(home.filter(|home| home.is_absolute() && home != Path::new("/")))
}

/// Whose word it is that a path is hidden. Of two the later one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// Ours: a bind that names the path, or something in it, opens it.
    Default,
    /// The caller's: a bind that names something in it opens that.
    Caller,
    /// A ceiling's, or of what no stage may see: nothing opens it.
    Ceiling,
}

/// A hidden path. Of two masks the greater one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Mask {
    by: By,
    why: Why,
}

impl Mask {
    /// A mask that nothing opens.
    const fn fixed(why: Why) -> Self {
        Self { by: By::Ceiling, why }
    }
}

/// The order of what is mounted by the caller's wish: among things at one place the later one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// More than a project, and before everything else: it may hold credentials and sockets.
    Wide,
    Writable,
    ReadOnly,
    Mask,
}

/// A requested tree of the host, and the part of it within the bounds.
#[derive(Debug, Clone)]
struct Original {
    host: PathBuf,
    at: PathBuf,
    rank: Rank,
    why: Why,
    /// The path as the caller wrote it. Only this opens a mask, never the target of a link.
    words: Option<PathBuf>,
    extent: Extent,
}

impl Original {
    fn new(host: PathBuf, at: PathBuf, writable: bool, why: Why) -> Self {
        let rank = if writable { Rank::Writable } else { Rank::ReadOnly };
        Self { extent: Extent::new(&host, writable), host, at, rank, why, words: None }
    }

    /// Returns the caller's words for a part of it.
    fn words_for(&self, part: &Path) -> Option<PathBuf> {
        let below = part.strip_prefix(&self.host).ok()?;
        Some(joined(self.words.as_ref()?, below))
    }

    fn is_whole(&self) -> bool {
        self.extent.read.cover(&self.host)
    }
}

/// Trees, host and guest.
type Places = Vec<(PathBuf, PathBuf)>;

/// A path that takes something from the stage, now and in the next run of the same words.
struct Restricting {
    what: PathUse,
    path: PathBuf,
    end: End,
}

struct Builder<'a> {
    files: &'a Files,
    facts: &'a Facts<'a>,
    mounts: MountList,
    notes: Vec<String>,
    /// Host trees that are shown at their own place.
    shown: Vec<PathBuf>,
    /// The home directories of the users as whom the stage may read.
    homes: BTreeSet<PathBuf>,
    /// Directories that exeat itself writes to, without links.
    own: Vec<PathBuf>,
    /// Host paths that are masked in every tree that shows them.
    masks: BTreeMap<PathBuf, Mask>,
    /// Other names of theirs, by which the words of a flag can mean them.
    mask_names: BTreeMap<PathBuf, Vec<PathBuf>>,
    /// Paths that restrict the stage, each with the links on its way: a stage that could replace one would lift the restriction.
    restricting: Vec<Restricting>,
    /// Promises that cannot be kept.
    lost: Vec<String>,
    /// The paths that the caller named, each with its real path.
    named: Vec<(PathBuf, PathBuf)>,
    /// Lines on what PATH and variables name that is not shown.
    left_out: Vec<String>,
    /// The host's mounts.
    host_mounts: Mounts,
    /// The shown paths of these that are not the system's, each with its real path.
    tools: Vec<(PathBuf, PathBuf)>,
    /// The working directory is left empty because of what it holds.
    is_cwd_empty: bool,
    /// The view, no wider than any ceiling's.
    kind: View,
    /// Git's configuration and hooks are given up, and no ceiling forbids it.
    git_is_open: bool,
    /// Protected names that are let through, as far as the ceilings let them.
    let_through: Vec<LetThrough>,
    /// The ceilings.
    limits: Vec<Limit>,
    /// The paths that the stage declared.
    declared: Option<DeclaredPaths>,
}

impl<'a> Builder<'a> {
    fn new(files: &'a Files, facts: &'a Facts<'a>) -> Result<Self, FileFault> {
        let mut notes = Vec::new();
        let mut kind = files.view;
        let mut let_through = files.allow_write.clone();
        let mut limits = Vec::new();
        for bound in &files.bounds {
            if let Some(widest) = bound.view.filter(|widest| *widest < kind) {
                notes.push(format!(
                    "the view is `{widest}`, not `{kind}`: {} allows no wider one",
                    bound.label()
                ));
                kind = widest;
            }
            let_through.retain(|name| {
                let is_allowed = bound.allows_write(name);
                if !is_allowed {
                    notes
                        .push(format!("`{name}` stays protected: {} does not let it through", bound.label()));
                }
                is_allowed
            });
            limits.push(Limit::resolve(bound, facts.links, &mut notes)?);
        }
        let git_is_open = let_through.iter().any(LetThrough::is_git);
        let_through.retain(|name| !(git_is_open && (name.is_git() || name.is_of_git())));
        let declared = files
            .declared
            .as_ref()
            .map(|declared| DeclaredPaths::new(declared, facts.links, &mut notes))
            .transpose()?;
        let (homes, lost) = homes(facts);
        let usual = homes.iter().flat_map(|home| lists::OWN.iter().map(|name| home.join(name)));
        // Real paths are used because they are compared with the working directory, which has no links.
        let own = facts.own.iter().cloned().chain(usual);
        let own: Vec<PathBuf> =
            own.map(|path| true_name(&path).unwrap_or_else(|_| future_path(&path))).collect();
        let hidden = hidden(facts, &homes, &own, &mut notes);
        let mut masks: BTreeMap<PathBuf, Mask> = BTreeMap::new();
        let mut mask_names: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
        for (path, (why, names)) in hidden {
            masks.insert(path.clone(), Mask { by: By::Default, why });
            mask_names.insert(path, names);
        }
        let mut restricting = Vec::new();
        for path in &files.deciding {
            let end = facts
                .links
                .walk(path)
                .map_err(|error| FileFault::from_walk(PathUse::Deciding, path, error))?;
            restricting.push(Restricting { what: PathUse::Deciding, path: path.clone(), end });
        }
        for path in &files.mask {
            match existing(PathUse::Masked, path, facts.links)? {
                Some(end) => {
                    mask_names.entry(end.real.clone()).or_default().push(clean(path));
                    masks.insert(end.real.clone(), Mask { by: By::Caller, why: Why::Masked });
                    restricting.push(Restricting { what: PathUse::Masked, path: path.clone(), end });
                }
                None => notes.push(format!("there is no `{}` to mask", path.display())),
            }
        }
        let excluded = limits.iter().flat_map(|limit| &limit.mask);
        masks.extend(excluded.map(|path| (path.clone(), Mask::fixed(Why::Ceiling))));
        let table = whole(Path::new("/proc/self/mountinfo")).unwrap_or_default();
        let processes = process_files(&table);
        // A user's own key is hidden even if another key signs this run, because it signs other runs.
        let keys = homes.iter().map(|home| home.join(lists::OWN_KEY));
        let unseen = facts.unseen.iter().cloned().chain(keys).filter_map(|path| true_name(&path).ok());
        masks.extend(unseen.map(|path| (path, Mask::fixed(Why::Own))));
        // It is made before the stage starts, and other runs have their own in it.
        let tmp = facts.tmp_dir.and_then(Path::parent).map(Path::to_path_buf);
        masks.extend(tmp.map(|path| (path, Mask::fixed(Why::Own))));
        masks.extend(processes.into_iter().map(|path| (path, Mask::fixed(Why::Processes))));
        // What a bind mount of the host's shows a second time is hidden there too.
        let host_mounts = Mounts::new(&table);
        let aliases =
            masks.iter().flat_map(|(path, mask)| host_mounts.aliases(path).into_iter().map(|it| (it, *mask)));
        for (path, mask) in aliases.collect::<Vec<_>>() {
            let known = masks.entry(path).or_insert(mask);
            *known = mask.max(*known);
        }
        let (mounts, shown, named) = (MountList::default(), Vec::new(), Vec::new());
        Ok(Self {
            files,
            facts,
            mounts,
            notes,
            shown,
            homes,
            own,
            masks,
            mask_names,
            restricting,
            lost,
            named,
            left_out: Vec::new(),
            host_mounts,
            tools: Vec::new(),
            is_cwd_empty: false,
            kind,
            git_is_open,
            let_through,
            limits,
            declared,
        })
    }

    /// The host's trees as they are mounted now: the mount's number, its real path on the host, the place inside.
    fn mounted(&self) -> Vec<(usize, PathBuf, PathBuf)> {
        let tree = |(number, mount): (usize, &Mount)| match mount {
            Mount::ReadOnly { host, at, .. } | Mount::Writable { host, at, .. } => {
                Some((number, host.clone(), at.clone()))
            }
            _ => None,
        };
        self.mounts.iter().enumerate().filter_map(tree).collect()
    }

    /// The mount that decides what is seen at a place.
    fn top(&self, place: &Path) -> Option<usize> {
        let decides = |(_, mount): &(usize, &Mount)| {
            !matches!(
                mount,
                Mount::Dir { .. } | Mount::Symlink { .. } | Mount::File { .. } | Mount::CoverFile { .. }
            )
        };
        self.mounts.over(place).find(decides).map(|(number, _)| number)
    }

    /// Sockets that somebody on the host listens on in the trees: no mount option keeps a stage from connecting. False when
    /// they cannot be listed. Where all of the host or a `wide` directory is shown, the stage has no Unix sockets anyway.
    fn host_sockets(&mut self, table: &Path, wide: Option<&Path>) -> bool {
        let names = match listening_names(table) {
            Ok(names) => names,
            Err(error) => {
                self.notes.push(format!(
                    "the stage has no Unix sockets: the host's cannot be listed (`{}`: {error})",
                    table.display()
                ));
                return false;
            }
        };
        let mut trees = self.mounted();
        trees.retain(|(_, _, at)| wide != Some(at) && !(self.kind == View::Host && at == Path::new("/")));
        // A name may be relative to where its server was started: most are, to the tree's own directory.
        let mut sockets = BTreeSet::new();
        for name in &names {
            let bases = trees.iter().map(|(_, host, _)| host.as_path()).filter(|_| name.is_relative());
            for path in bases.chain(name.is_absolute().then_some(Path::new("/"))).map(|base| base.join(name))
            {
                let parent = path.parent().and_then(|parent| true_name(parent).ok());
                let Some(real) = parent.zip(path.file_name()).map(|(dir, last)| dir.join(last)) else {
                    continue;
                };
                if fs::symlink_metadata(&real).is_ok_and(|meta| meta.file_type().is_socket()) {
                    sockets.insert(real);
                }
            }
        }
        let mut hidden = Vec::new();
        for socket in sockets {
            let mut places = Vec::new();
            for (number, host, at) in &trees {
                let Ok(below) = socket.strip_prefix(host) else { continue };
                let place = joined(at, below);
                if self.top(&place) == Some(*number) {
                    places.push(place);
                }
            }
            if !places.is_empty() {
                self.notes.push(format!(
                    "`{}` is hidden from the stage: a program on the host listens there",
                    socket.display()
                ));
            }
            hidden.extend(places);
        }
        for place in hidden {
            self.pin(&place);
            self.hide(place, EmptyEntry::File, Why::Socket);
        }
        true
    }
}

/// Lists the mounts of process file systems on this machine, because a tree of the host shows its mounts too.
fn process_files(mounts: &[u8]) -> Vec<PathBuf> {
    let found = rows(mounts).filter(|row| row.kind == b"proc").map(|row| row.at());
    [PathBuf::from("/proc")].into_iter().chain(found).collect()
}

/// The names of Unix sockets in this network namespace, from `/proc/net/unix` (proc_net(5)), without the abstract ones.
fn listening_names(table: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let table = whole(table)?;
    let mut names = BTreeSet::new();
    for line in table.split(|byte| *byte == b'\n').skip(1) {
        // Seven columns, and then the name, which may hold spaces.
        let mut rest = line;
        for _ in 0..7 {
            rest = rest.trim_ascii_start();
            let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            rest = rest.get(end..).unwrap_or_default();
        }
        let name = rest.strip_prefix(b" ").unwrap_or_default();
        if !name.is_empty() && !name.starts_with(b"@") {
            names.insert(PathBuf::from(OsStr::from_bytes(name)));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;

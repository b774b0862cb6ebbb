//! What the stage sees of the file tree: from the request and the host to an ordered list of mounts.
//!
//! Reads the host and changes nothing. The order is the contract: base view, private places, our files, toolchains, then by
//! depth the caller's trees and masks (of two at one place the read-only tree wins over the writable one, the work directory
//! over both, and a mask over all), and last the host's sockets. What is hidden or protected is so by its path on the host, in
//! every tree that shows it, at whatever place: directly after the tree's own mount, so that only a deeper tree of the
//! caller's opens it. What a ceiling hides no tree opens: a tree in it is left out.
//!
//! Ceilings and the stage's declaration cut the caller's trees down before anything is mounted. Where a tree is cut, what it
//! would have covered stays covered: a bound must not bring to light what the caller had hidden with a bind.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use exeat_contract::{CACHE, HOME, NAME_SERVER, NESTED, NOBODY, README, STAGE2};
use exeat_policy::HostName;
use exeat_policy::Size;
use exeat_record::RunId;
use exeat_sandbox::spec::Bytes;
use exeat_sandbox::{Held, Mount, STAGE2_IMAGE};
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::unistd::{Uid, geteuid};

use crate::bounds::{Extent, Found, Limit, Tops, existing, told};
use crate::cache::CACHE_OF_RUN;
use crate::error::{Error, FS_READ, FS_WRITE};
use crate::lists;
use crate::request::{Bind, Cache, Files, Home, Nested, View, WORK, Work};
use crate::staged::{Ids, doubtful_link, is_open_to};
use crate::uids::user_of;
use exeat_files::names::{Mounts, first_below, holds, is_absent, is_same, joined, rows, true_name, whole};
use exeat_files::protected::LetThrough;
use exeat_files::quarantine::{Live, Missing, beyond_search};
use exeat_files::walk::{End, LinkRule, WalkError, clean};

mod belongs;
mod closed;
mod git;
mod place;
mod protected;
mod sockets;

use closed::keeper;
pub(crate) use git::Everywhere;
pub(crate) use place::mount_point;
use place::{Followed, Seen};
use protected::Protected;

/// Bytes of the private `/tmp` and `/var/tmp`, each: compilers spool there.
pub(crate) const TMP_SIZE: u64 = 1 << 30;
/// What an agent should know of the sandbox, which docs/agents.md has, too.
const AGENTS: &str = include_str!("agents.txt");
/// Bytes of `/run`: sockets, pid files, and stage2.
const RUN_SIZE: u64 = 64 << 20;
/// Bytes of `/dev/shm`: browsers and databases share memory there.
const SHM_SIZE: u64 = 512 << 20;
/// Bytes of a directory that stands for something hidden.
pub(crate) const MASK_SIZE: u64 = 4096;

/// What is mounted over a file that is hidden.
const MASK: &str = "/dev/null";

/// Whether what is mounted somewhere only hides a file there.
pub(crate) fn is_mask(host: &Path) -> bool {
    host == Path::new(MASK)
}

/// What a mask is given for.
const MASKED: &str = "the masked path";
/// What a file that decided about a run is given for.
const DECIDING: &str = "the file that decides about this run";

/// What a work directory is given for.
pub(crate) const WORK_PATH: &str = "the work directory";

/// Places that are private in every view, whatever the host has there.
const PRIVATE: [&str; 6] = ["/tmp", "/var/tmp", "/run", "/sys", "/proc", "/dev"];

/// Facts that a view depends on.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) cwd: &'a Path,
    /// A link on the way that the shell took into the working directory, which a stage could have made, and its end.
    pub(crate) cwd_link: Option<(PathBuf, PathBuf)>,
    pub(crate) home: &'a Path,
    /// The home directory as the caller writes it.
    pub(crate) home_words: &'a Path,
    /// Which links a path may lead through.
    pub(crate) links: &'a LinkRule,
    /// What the caller's git obeys in every repository.
    pub(crate) git: Everywhere,
    /// Users as whom the stage may read somewhere, the caller among them.
    pub(crate) owners: BTreeSet<u32>,
    /// The caller's PATH.
    pub(crate) path: Option<&'a OsStr>,
    /// The stage's HOME.
    pub(crate) stage_home: &'a Path,
    /// What a run inside this one does.
    pub(crate) nested: Nested,
    /// Trees that variables of the caller's environment name, and files of certificates.
    pub(crate) named: Vec<PathBuf>,
    /// The same of variables that were given a value: trees that are asked for, like binds.
    pub(crate) asked: Vec<PathBuf>,
    /// Certificates that a stage with a work directory needs to trust what it may reach.
    pub(crate) certificates: Vec<PathBuf>,
    /// The private cache on the host, where there is one.
    pub(crate) cache: Option<&'a Path>,
    /// The directory on the host that the stage has as `/tmp`, where that is not in memory.
    pub(crate) tmp_dir: Option<&'a Path>,
    /// Directories that exeat itself writes to.
    pub(crate) own: &'a [PathBuf],
    /// The key that signs the record, those that sign other runs', and what was set aside: nothing opens them to the stage.
    pub(crate) unseen: &'a [PathBuf],
    /// What other runs watch.
    pub(crate) live: Live,
    /// The caller is root.
    pub(crate) root: bool,
    /// Who the stage becomes, where that is not the caller.
    pub(crate) other: Option<Other>,
    /// Of each of the private `/tmp` and `/var/tmp`, where the caller has a limit.
    pub(crate) tmp: Option<Size>,
}

/// Who a stage is that root has started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Other {
    /// Kernel uid and gid.
    pub(crate) ids: Ids,
    /// A tree that is closed to it can be mounted by its descriptor.
    pub(crate) by_descriptor: bool,
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
pub(crate) struct Built {
    pub(crate) mounts: Vec<Mount>,
    /// Where the stage starts.
    pub(crate) cwd: PathBuf,
    /// Lines for the caller.
    pub(crate) notes: Vec<String>,
    /// Those of them on what PATH and variables name that is not shown: a missing command may lie there.
    pub(crate) left_out: Vec<String>,
    pub(crate) held: Held,
    /// A socket of the host may be reachable by path: no Unix sockets for the stage.
    pub(crate) sockets_exposed: bool,
    /// Host paths that the stage can write below.
    pub(crate) writable: Vec<PathBuf>,
    /// Protected names that do not exist, and are watched.
    pub(crate) missing: Vec<Missing>,
    /// What the caller has named to be shown, each with the place that it led to.
    pub(crate) named: Vec<(PathBuf, PathBuf)>,
}

/// The users who own what of the host is mounted: in a tree that is mapped the stage may read as its owner.
pub(crate) fn owners(mounts: &[Mount]) -> impl Iterator<Item = u32> {
    let host = |mount: &Mount| match mount {
        Mount::ReadOnly { host, .. } | Mount::Writable { host, .. } => fs::metadata(host).ok(),
        _ => None,
    };
    mounts.iter().filter_map(host).map(|meta| meta.uid())
}

/// Builds the view.
pub(crate) fn build(files: &Files, facts: &Facts<'_>) -> Result<Built, Error> {
    let built = arranged(files, facts)?;
    place::check(&built.mounts)?;
    Ok(built)
}

/// A view, before it is known that each of its mounts has a place.
fn arranged(files: &Files, facts: &Facts<'_>) -> Result<Built, Error> {
    let mut view = Builder::new(files, facts)?;
    view.base();
    view.private_places();
    view.our_files();
    // In the whole tree of the host is everything that is open to the stage.
    if view.kind == View::Project || (view.kind == View::Host && facts.other.is_some()) {
        view.toolchains();
    }
    view.show_named(facts.certificates.iter().cloned().collect());
    let cwd = view.working_directory();
    let originals = view.originals(cwd)?;
    let cwd = originals.iter().find(|tree| tree.how == How::Start);
    let wide = cwd.filter(|tree| tree.rank == Rank::Wide).map(|tree| tree.at.clone());
    let is_cut = cwd.is_some_and(|tree| !tree.is_whole());
    let (writable, missing) = view.trees(originals)?;
    let listed = view.host_sockets(Path::new("/proc/net/unix"), wide.as_deref());
    view.check_declared()?;
    let start = view.start(is_cut);
    let sockets_exposed = view.kind == View::Host || wide.is_some() || !listed || view.tools_expose_sockets();
    let held =
        if view.lost.is_empty() { Held::Full } else { Held::Partial { missing: view.lost.join("; ") } };
    let cache = facts.cache.filter(|_| files.cache.is_on_disk()).map(Path::to_path_buf);
    let writable = writable.into_iter().map(|(host, _)| host).chain(cache);
    let writable = writable.chain(facts.tmp_dir.map(Path::to_path_buf)).collect();
    let Builder { mounts, notes, named, left_out, .. } = view;
    Ok(Built { mounts, cwd: start, notes, left_out, held, sockets_exposed, writable, missing, named })
}

/// Finds what no tree shows unless the caller names it: credentials, and what exeat keeps for itself. Returns each real path
/// with the names by which a flag can open it, and lines on what could not be found out.
fn hidden(facts: &Facts<'_>, notes: &mut Vec<String>) -> (BTreeMap<PathBuf, Vec<PathBuf>>, Vec<String>) {
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
    let credentials = homes.iter().flat_map(|home| lists::CREDENTIALS.iter().map(|name| home.join(name)));
    // Not the shared base of run directories: the stage has a `/tmp` and a `/dev/shm` of its own.
    let shared = crate::dirs::shared();
    let own = facts.own.iter().filter(|path| **path != shared).cloned();
    let system = lists::SYSTEM_CREDENTIALS.iter().filter(|_| facts.root).map(PathBuf::from);
    // Most are not there. One look says so, where `canonicalize` takes one for each part of a path.
    let missing =
        |path: &Path| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let there = credentials.chain(own).chain(system).filter(|path| !missing(path));
    let mut found: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for path in there {
        match true_name(&path) {
            // Where it really is: what is masked at a link would be a detour.
            Ok(real) => found.entry(real).or_default().push(path),
            // A dangling link has nothing to hide.
            Err(error) if is_absent(&error) => {}
            // A stage may have closed the directory that it lies in, and could open it again.
            Err(_) => {
                let Some(keeper) = keeper(&path) else { continue };
                if found.insert(keeper.clone(), Vec::new()).is_none() {
                    notes.push(format!(
                        "`{}` is hidden from the stage: it is closed, and credentials may be in it",
                        keeper.display()
                    ));
                }
            }
        }
    }
    (found, unknown)
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

/// How a tree came into the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// The stage starts in it.
    Start,
    /// The caller named it.
    Named,
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

/// A tree of the host that is asked for, and what the bounds leave of it.
#[derive(Debug, Clone)]
struct Original {
    host: PathBuf,
    at: PathBuf,
    rank: Rank,
    how: How,
    /// What the caller wrote for it: only that opens a mask, never what a link makes of it.
    words: Option<PathBuf>,
    extent: Extent,
}

impl Original {
    fn new(host: PathBuf, at: PathBuf, writable: bool, how: How) -> Self {
        let rank = if writable { Rank::Writable } else { Rank::ReadOnly };
        Self { extent: Extent::new(&host, writable), host, at, rank, how, words: None }
    }

    /// What the caller wrote for a part of it.
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
    what: &'static str,
    path: PathBuf,
    end: End,
}

struct Builder<'a> {
    files: &'a Files,
    facts: &'a Facts<'a>,
    mounts: Vec<Mount>,
    notes: Vec<String>,
    /// Host trees that are shown at their own place.
    shown: Vec<PathBuf>,
    /// Host paths that are masked in every tree that shows them.
    masks: BTreeMap<PathBuf, By>,
    /// Other names of theirs, by which the words of a flag can mean them.
    mask_names: BTreeMap<PathBuf, Vec<PathBuf>>,
    /// Paths that restrict the stage, each with the links on its way: a stage that could replace one would lift the restriction.
    restricting: Vec<Restricting>,
    /// What cannot be kept.
    lost: Vec<String>,
    /// What the caller has named, and where it led.
    named: Vec<(PathBuf, PathBuf)>,
    /// Lines on what PATH and variables name that is not shown.
    left_out: Vec<String>,
    /// The host's mounts.
    host_mounts: Mounts,
    /// What they name that is shown and not the system's, each with the place that it led to.
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
    /// What the stage declared.
    declared: Option<Found>,
}

impl<'a> Builder<'a> {
    fn new(files: &'a Files, facts: &'a Facts<'a>) -> Result<Self, Error> {
        let mut notes = Vec::new();
        let mut kind = files.view;
        let mut let_through = files.allow_write.clone();
        let mut limits = Vec::new();
        for bound in &files.bounds {
            if let Some(widest) = bound.view.filter(|widest| widest.narrower(kind) != kind) {
                notes.push(format!(
                    "the view is `{widest}`, not `{kind}`: {} allows no wider one",
                    bound.said()
                ));
                kind = widest;
            }
            let_through.retain(|name| {
                let is_allowed = bound.allows_write(name);
                if !is_allowed {
                    notes.push(format!("`{name}` stays protected: {} does not let it through", bound.said()));
                }
                is_allowed
            });
            limits.push(Limit::of(bound, facts.links, &mut notes)?);
        }
        let git_is_open = let_through.iter().any(LetThrough::is_git);
        let_through.retain(|name| !(git_is_open && (name.is_git() || name.is_of_git())));
        let declared = files
            .declared
            .as_ref()
            .map(|declared| Found::new(declared, facts.links, &mut notes))
            .transpose()?;
        let (hidden, lost) = hidden(facts, &mut notes);
        let mut mask_names = hidden;
        let mut restricting = Vec::new();
        for path in &files.deciding {
            let end = facts.links.walk(path).map_err(|error| Error::from_walk(DECIDING, path, error))?;
            restricting.push(Restricting { what: DECIDING, path: path.clone(), end });
        }
        let mut masks: BTreeMap<PathBuf, By> =
            mask_names.keys().map(|path| (path.clone(), By::Default)).collect();
        for path in &files.mask {
            match existing(MASKED, path, facts.links)? {
                Some(end) => {
                    mask_names.entry(end.real.clone()).or_default().push(clean(path));
                    masks.insert(end.real.clone(), By::Caller);
                    restricting.push(Restricting { what: MASKED, path: path.clone(), end });
                }
                None => notes.push(format!("there is no `{}` to mask", path.display())),
            }
        }
        masks.extend(
            limits.iter().flat_map(|limit| limit.mask.iter().map(|path| (path.clone(), By::Ceiling))),
        );
        let table = whole(Path::new("/proc/self/mountinfo")).unwrap_or_default();
        let processes = process_files(&table);
        let unseen = facts.unseen.iter().filter_map(|path| true_name(path).ok());
        masks.extend(unseen.map(|path| (path, By::Ceiling)));
        masks.extend(processes.into_iter().map(|path| (path, By::Ceiling)));
        // What a bind mount of the host's shows a second time is hidden there too.
        let host_mounts = Mounts::new(&table);
        let aliases =
            masks.iter().flat_map(|(path, by)| host_mounts.aliases(path).into_iter().map(|it| (it, *by)));
        for (path, by) in aliases.collect::<Vec<_>>() {
            let known = masks.entry(path).or_insert(by);
            *known = by.max(*known);
        }
        let (mounts, shown, named) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            files,
            facts,
            mounts,
            notes,
            shown,
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

    fn base(&mut self) {
        match self.kind {
            View::Host => self.show(Path::new("/")),
            View::Project => {
                for tree in lists::SYSTEM.iter().map(Path::new) {
                    match fs::symlink_metadata(tree) {
                        Ok(meta) if meta.is_symlink() => {
                            if let Ok(target) = fs::read_link(tree) {
                                self.mounts.push(Mount::Symlink { target, at: tree.to_path_buf() });
                                self.shown.push(tree.to_path_buf());
                            }
                        }
                        Ok(meta) if meta.is_dir() => self.show(tree),
                        _ => {}
                    }
                }
            }
            View::Minimal => {
                let store = Path::new("/nix/store");
                if store.is_dir() {
                    self.show(store);
                }
            }
        }
    }

    fn show(&mut self, tree: &Path) {
        if let Ok(end) = self.facts.links.walk(tree) {
            self.show_real(tree, &end.real);
        }
    }

    /// Shows a tree of the view at its own name, from its real path.
    fn show_real(&mut self, tree: &Path, real: &Path) {
        let at = place::follow(&self.mounts, tree).map_or_else(|| tree.to_path_buf(), |way| way.place);
        self.bind(real, &at, false, None);
        self.shown.push(tree.to_path_buf());
    }

    /// Mounts a tree of the host, by its real path, and masks what is hidden in it. `words` is what the caller wrote for it.
    fn bind(&mut self, real: &Path, at: &Path, writable: bool, words: Option<&Path>) {
        self.open_way(at);
        if self.is_masked(real, words) {
            return self.mask(at.to_path_buf(), real.is_dir());
        }
        let (from, to) = (real.to_path_buf(), at.to_path_buf());
        self.mounts.push(if writable {
            Mount::Writable { host: from, at: to }
        } else {
            Mount::ReadOnly { host: from, at: to }
        });
        let mut places: Vec<(PathBuf, bool)> = Vec::new();
        let mut above: Option<&Path> = None;
        for path in self.masks.keys() {
            let Ok(below) = path.strip_prefix(real) else { continue };
            let covered = at == Path::new("/") && PRIVATE.iter().any(|place| path.starts_with(place));
            if covered || path == real || above.is_some_and(|above| path.starts_with(above)) {
                continue;
            }
            above = Some(path);
            places.push((at.join(below), path.is_dir()));
        }
        for (place, is_dir) in places {
            self.pin(&place);
            self.mask(place, is_dir);
        }
    }

    /// Makes the directories above a place in a writable tree mount points: one that is not can be renamed, and what is mounted
    /// in it is then missing from its place in the next run. They come directly after the tree, below all else in it.
    fn pin(&mut self, place: &Path) {
        let Some(number) = self.top(place) else { return };
        let Some(Mount::Writable { host, at }) = self.mounts.get(number).cloned() else { return };
        let Ok(below) = place.strip_prefix(&at) else { return };
        // The inner one first, since each is put before the last.
        for above in below.ancestors().skip(1).filter(|above| *above != Path::new("")) {
            let (host, at) = (host.join(above), at.join(above));
            if host.is_dir() {
                self.mounts.insert(number + 1, Mount::Writable { host, at });
            }
        }
    }

    /// Whether all of a tree is hidden. A mask opens for the words of a flag alone, never for what a link makes of them.
    fn is_masked(&self, real: &Path, words: Option<&Path>) -> bool {
        real.ancestors().any(|path| match self.masks.get(path) {
            None => false,
            Some(By::Default) => !self.is_meant(path, words),
            Some(By::Caller) => path == real || !self.is_meant(path, words),
            Some(By::Ceiling) => true,
        })
    }

    /// Whether the words of a flag name a hidden path, or something in it.
    fn is_meant(&self, hidden: &Path, words: Option<&Path>) -> bool {
        let Some(words) = words else { return false };
        // A shell that was led here through a link has not named what lies above.
        if self.facts.cwd_link.is_some() && self.facts.cwd.starts_with(hidden) {
            return false;
        }
        let in_home = words.strip_prefix(self.facts.home_words).ok().map(|below| self.facts.home.join(below));
        let names = self.mask_names.get(hidden).into_iter().flatten().map(PathBuf::as_path);
        [hidden].into_iter().chain(names).any(|name| {
            words.starts_with(name) || in_home.as_ref().is_some_and(|words| words.starts_with(name))
        })
    }

    /// Whether a part of a tree is hidden in it: what is hidden in the whole is not opened by showing less.
    fn is_masked_in(&self, tree: &Original, part: &Path) -> bool {
        let between = part.ancestors().take_while(|path| *path != tree.host);
        let mut inside = between.filter(|path| path.starts_with(&tree.host));
        self.is_masked(&tree.host, tree.words.as_deref()) || inside.any(|path| self.masks.contains_key(path))
    }

    /// What lies in a masked directory is reached through it: of the directory it can then be seen that it is there.
    fn open_way(&mut self, place: &Path) {
        for mount in &mut self.mounts {
            match mount {
                Mount::Tmpfs { at, mode: mode @ 0, .. } if place.starts_with(&at) => *mode = 0o555,
                _ => {}
            }
        }
    }

    fn private_places(&mut self) {
        self.mounts.push(Mount::Proc);
        self.mounts.push(Mount::Dev { shm: SHM_SIZE });
        let tmp = self.facts.tmp.map_or(TMP_SIZE, Size::get);
        self.mounts.push(match self.facts.tmp_dir {
            Some(host) => Mount::Writable { host: host.to_path_buf(), at: TMP.into() },
            None => tmp_in_memory(tmp),
        });
        for (at, size, mode) in [("/var/tmp", tmp, 0o1777), ("/run", RUN_SIZE, 0o755)] {
            self.mounts.push(Mount::Tmpfs { at: at.into(), size, mode });
        }
        if self.kind == View::Host {
            self.mounts.push(Mount::Tmpfs { at: "/sys".into(), size: MASK_SIZE, mode: 0o555 });
        } else {
            self.mounts.push(Mount::Dir { at: "/sys".into() });
            self.mounts.push(Mount::Symlink { target: "../run".into(), at: "/var/run".into() });
        }
        // NixOS has its programs and its setuid wrappers behind names in /run.
        for tree in ["/run/current-system", "/run/wrappers"].map(Path::new) {
            if self.kind != View::Minimal && tree.exists() {
                self.show(tree);
            }
        }
    }

    fn our_files(&mut self) {
        self.mounts.push(Mount::File {
            at: STAGE2.into(),
            bytes: Bytes(Cow::Borrowed(STAGE2_IMAGE)),
            mode: 0o555,
        });
        let about = Cow::Borrowed(AGENTS.as_bytes());
        self.mounts.push(Mount::File { at: README.into(), bytes: Bytes(about), mode: 0o444 });
        if self.facts.nested == Nested::Pass {
            let about = Cow::Borrowed(b"A run inside this one executes its command as it is.\n".as_slice());
            self.mounts.push(Mount::File { at: NESTED.into(), bytes: Bytes(about), mode: 0o444 });
        }
        let home = self.facts.stage_home.display();
        let passwd =
            format!("root:x:0:0:root:/root:/bin/sh\nnobody:x:{NOBODY}:{NOBODY}:nobody:{home}:/bin/sh\n");
        let group = format!("root:x:0:\nnogroup:x:{NOBODY}:\n");
        self.cover("/etc/passwd".into(), passwd);
        self.cover("/etc/group".into(), group);
        self.cover("/etc/hosts".into(), hosts());
        let resolver = format!(
            "# exeat: answers for what the rules grant, and asks nobody.\nnameserver {NAME_SERVER}\n"
        );
        if let Some(at) = resolved_place(Path::new("/etc/resolv.conf")) {
            self.cover(at, resolver);
        }
        if self.files.cache != Cache::None {
            match self.facts.cache {
                Some(host) => {
                    self.mounts.push(Mount::Writable { host: host.to_path_buf(), at: CACHE.into() })
                }
                None => {
                    self.mounts.push(cache_in_memory());
                    if self.files.home == Home::Private {
                        self.mounts.push(Mount::Dir { at: HOME.into() });
                    }
                }
            }
        }
    }

    /// A file of ours at a place of the system's: mounted over what is there, or else simply made.
    fn cover(&mut self, at: PathBuf, text: String) {
        let bytes = Bytes(Cow::Owned(text.into_bytes()));
        let Some(way) = place::follow(&self.mounts, &at) else { return };
        match place::seen(&self.mounts, &way.place) {
            Seen::File => self.mounts.push(Mount::CoverFile { at: way.place, bytes }),
            Seen::Absent => self.mounts.push(Mount::File { at: way.place, bytes, mode: 0o444 }),
            // In a read-only tree that lacks the name there is nothing to cover and nothing can be made.
            Seen::Dir | Seen::Link { .. } | Seen::Closed(_) => {}
        }
    }

    fn is_shown(&self, path: &Path) -> bool {
        let within = |tree: &Path| path.starts_with(tree);
        self.shown.iter().any(|tree| {
            within(tree)
                && !PRIVATE.map(Path::new).iter().any(|place| within(place) && !tree.starts_with(place))
        })
    }

    fn toolchains(&mut self) {
        let mut roots = BTreeSet::new();
        let dirs = self.facts.path.map(std::env::split_paths).into_iter().flatten();
        for dir in dirs.filter(|dir| dir.is_absolute() && plain(dir)) {
            roots.extend(toolchain_roots(&dir, self.facts.home));
        }
        roots.extend(self.facts.named.iter().chain(&self.facts.asked).cloned());
        self.show_named(roots);
    }

    /// Shows what PATH and variables name, but for what is shown already or holds too much.
    fn show_named(&mut self, mut roots: BTreeSet<PathBuf>) {
        roots.retain(|path| path.is_absolute() && plain(path));
        let mut unreadable = Vec::new();
        // In order, so that a tree comes before what lies in it.
        for root in roots {
            let (is_open, is_in_reach) = self.facts.other.map_or((true, true), |other| other.reaches(&root));
            if (self.is_shown(&root) && is_open) || self.shows_cwd() && root.starts_with(self.facts.cwd) {
                continue;
            }
            let real = match self.facts.links.walk(&root) {
                Ok(end) => end.real,
                Err(error @ WalkError::Link { .. }) => {
                    self.leave_out(&root, &error.to_string());
                    continue;
                }
                Err(WalkError::Io(_)) => continue,
            };
            if is_too_much(&real, self.facts.home) {
                // Named by its own path it says nothing more than before; a link that leads there would.
                if real != root {
                    self.leave_out(&root, &format!("it is `{}`, and more than programs", real.display()));
                }
                continue;
            }
            if let Some(hidden) = real.ancestors().find(|path| self.masks.contains_key(*path)) {
                let why = format!(
                    "it lies in `{}`, which is hidden; --ro {} shows it",
                    hidden.display(),
                    root.display()
                );
                self.leave_out(&root, &why);
                continue;
            }
            if !self.may_ask_for(&root, &real) {
                continue;
            }
            if !is_in_reach {
                unreadable.push(root.display().to_string());
                continue;
            }
            self.show_real(&root, &real);
            if !lists::SYSTEM.iter().any(|tree| real.starts_with(tree)) {
                self.tools.push((root, real));
            }
        }
        if !unreadable.is_empty() {
            let list = unreadable.join(", ");
            self.notes.push(format!(
                "only root may read these programs of PATH, and the stage is not root: {list}"
            ));
        }
    }

    /// Tells the caller that PATH or a variable names something that is not shown.
    fn leave_out(&mut self, root: &Path, why: &str) {
        let line = format!("`{}` of PATH or a variable is left out: {why}", root.display());
        self.left_out.push(line.clone());
        self.notes.push(line);
    }

    /// Whether what PATH and variables name may hold sockets of the host's that are not hidden. The caller is told of the first one.
    fn tools_expose_sockets(&mut self) -> bool {
        let exposed = self
            .tools
            .iter()
            .find_map(|(root, real)| Some((root, sockets::why_exposed(real, &self.host_mounts)?)));
        let Some((root, why)) = exposed else { return false };
        self.notes.push(format!(
            "the stage gets no Unix sockets of its own: PATH or a variable has `{}` shown, and {why}",
            root.display()
        ));
        true
    }

    /// Whether no ceiling keeps a tree out that a variable names which was given a value. It comes into the view like a
    /// toolchain of the caller's, but it is a grant.
    fn may_ask_for(&mut self, root: &Path, real: &Path) -> bool {
        if !self.facts.asked.iter().any(|asked| asked == root)
            || self.facts.named.iter().any(|own| own == root)
        {
            return true;
        }
        match self.limits.iter().find(|limit| !limit.allows(real, false)) {
            Some(limit) => {
                self.notes.push(format!(
                    "`{}` is not shown: {} does not allow it",
                    root.display(),
                    limit.said
                ));
                false
            }
            None => true,
        }
    }

    /// Whether anything of the working directory may be shown.
    fn shows_cwd(&self) -> bool {
        let cwd = self.facts.cwd;
        // `/run` itself is where stage2 and the proxy's socket are put.
        let never = [Path::new("/"), Path::new("/run")].contains(&cwd)
            || lists::KERNEL.iter().any(|place| cwd.starts_with(place));
        self.kind != View::Minimal && self.files.work.is_none() && !never
    }

    /// The working directory's tree, if it is to be shown.
    fn working_directory(&mut self) -> Option<Original> {
        let cwd = self.facts.cwd;
        if self.kind == View::Minimal || self.files.work.is_some() {
            return None;
        }
        let shown = cwd.display();
        if !self.shows_cwd() {
            self.notes.push(format!(
                "the working directory `{shown}` is read-only for the stage, and is not the host's"
            ));
            return None;
        }
        if let Some(why) = holds_home(self.facts, cwd).filter(|_| self.kind != View::Host) {
            self.notes.push(format!(
                "the working directory `{shown}` is empty for the stage but for what flags name: {why}"
            ));
            self.is_cwd_empty = true;
            return None;
        }
        if self.is_masked(cwd, None) {
            self.notes.push(format!(
                "the working directory `{shown}` is hidden from the stage: credentials, or files of exeat's, are kept there; \
                 --ro . shows it, and --rw . makes it writable"
            ));
            self.is_cwd_empty = true;
            return None;
        }
        let mut tree = Original::new(cwd.to_path_buf(), cwd.to_path_buf(), true, How::Start);
        let why = unwritable(self.facts, cwd);
        let is_wide = why.is_some();
        let obeyed = || {
            obeyed(self.files, cwd).map(|path| {
                format!(
                    "programs on the host obey what is in `{}`; start exeat above that, or give it --rw . if the stage is to write there",
                    path.display()
                )
            })
        };
        if let Some(why) = why.or_else(obeyed).or_else(|| by_habit(self.files, self.facts, cwd)) {
            self.notes.push(format!("the working directory `{shown}` is read-only for the stage: {why}"));
            tree = Original::new(cwd.to_path_buf(), cwd.to_path_buf(), false, How::Start);
        }
        if is_wide {
            tree.rank = Rank::Wide;
        }
        Some(tree)
    }

    fn mask(&mut self, at: PathBuf, is_dir: bool) {
        self.mounts.push(if is_dir {
            Mount::Tmpfs { at, size: MASK_SIZE, mode: 0o000 }
        } else {
            Mount::ReadOnly { host: MASK.into(), at }
        });
    }

    /// What the caller asks for, and what the bounds leave of it.
    fn originals(&mut self, cwd: Option<Original>) -> Result<Vec<Original>, Error> {
        let mut trees: Vec<Original> = Vec::new();
        if let Some(mut tree) = cwd {
            let name = format!("the working directory `{}`", tree.host.display());
            tree.extent = self.bounded(&name, tree.extent.clone(), false);
            if tree.rank == Rank::Wide && tree.is_whole() {
                self.shown.push(tree.at.clone());
            }
            trees.push(tree);
        }
        trees.extend(self.repository(&trees));
        let work = match &self.files.work {
            Some(Work::Host(dir)) => Some(Bind { host: dir.clone(), guest: WORK.into() }),
            _ => None,
        };
        let named = work.iter().map(|bind| (bind, true, WORK_PATH));
        let named = named.chain(self.files.rw.iter().map(|bind| (bind, true, Error::WRITABLE)));
        let named = named.chain(self.files.ro.iter().map(|bind| (bind, false, Error::READ_ONLY)));
        for (bind, writable, what) in named {
            let end = self.facts.links.walk(&bind.host);
            let end = end.map_err(|error| Error::from_walk(what, &bind.host, error))?;
            let host = end.real.clone();
            if !writable && clean(&bind.guest) == clean(&bind.host) {
                self.restricting.push(Restricting { what, path: bind.host.clone(), end });
            }
            if let Some((link, real)) =
                self.facts.cwd_link.as_ref().filter(|_| writable && host == self.facts.cwd)
            {
                let (link, real) = (link.clone(), real.clone());
                return Err(Error::StrayLink { what, path: bind.host.clone(), link, real });
            }
            self.named.push((bind.host.clone(), host.clone()));
            if self.files.work.is_some() && bind.guest == Path::new(WORK) && what != WORK_PATH {
                self.notes.push(format!(
                    "`{}` is not shown: the work directory is in its place",
                    bind.host.display()
                ));
                continue;
            }
            if is_procfs(&host) {
                return Err(Error::Procfs { what, path: bind.host.clone() });
            }
            let words = clean(&bind.host);
            // The same holds for what the host obeys: a link does not give the caller's word that a stage may write there.
            let obeyed =
                protected::around(&host).filter(|path| !words.starts_with(path)).map(Path::to_path_buf);
            if let Some(path) = obeyed.as_ref().filter(|_| writable && words != host) {
                self.notes.push(format!(
                    "`{}` is read-only for the stage: it is `{}`, and programs on the host obey what is in `{}`",
                    bind.host.display(),
                    host.display(),
                    path.display()
                ));
            }
            let writable = writable && (obeyed.is_none() || words == host);
            let mut tree = Original::new(host, bind.guest.clone(), writable, How::Named);
            tree.words = Some(words);
            let name = format!("`{}`", bind.host.display());
            tree.extent = self.bounded(&name, tree.extent.clone(), what != WORK_PATH);
            trees.push(tree);
        }
        Ok(trees)
    }

    /// The repository of the working directory, as far as it lies elsewhere: its working tree read-only, and the directory that
    /// git writes to.
    fn repository(&mut self, trees: &[Original]) -> Vec<Original> {
        let Some(cwd) = trees.first().filter(|tree| tree.rank != Rank::Wide && tree.is_whole()) else {
            return Vec::new();
        };
        let Some(found) = belongs::find(&cwd.host, self.facts.links) else { return Vec::new() };
        let binds = self.files.ro.iter().chain(&self.files.rw);
        let named: Vec<PathBuf> = binds.map(|bind| clean(&bind.guest)).collect();
        let is_read_only = self.files.ro.iter().any(|bind| clean(&bind.guest) == cwd.at);
        let may_write = cwd.rank == Rank::Writable && !is_read_only;
        let parts = found.top.into_iter().map(|top| (top, false)).chain([(found.git, may_write)]);
        let mut shown = Vec::new();
        for (part, writable) in parts {
            // What a flag names has its own rights.
            if named.iter().any(|at| part.starts_with(at)) || self.is_masked(&part, None) {
                continue;
            }
            // A repository of settings in a home says nothing about the projects there.
            if holds_home(self.facts, &part).is_some() {
                break;
            }
            if let Some(why) = unwritable(self.facts, &part) {
                self.notes.push(format!("the repository `{}` is not shown: {why}", part.display()));
                break;
            }
            let mut tree = Original::new(part.clone(), part.clone(), writable, How::Named);
            tree.extent = self.bounded(&format!("`{}`", part.display()), tree.extent.clone(), false);
            shown.push(tree);
        }
        shown
    }

    /// What the ceilings leave of a tree, and the declaration, which is not asked for where the stage starts.
    fn bounded(&mut self, name: &str, mut extent: Extent, is_declared: bool) -> Extent {
        let declared = self.declared.as_ref().filter(|_| is_declared).map(Limit::declared);
        for limit in self.limits.iter().chain(&declared) {
            let met = limit.meet(&extent);
            self.notes.extend(told(name, &limit.said, &extent, &met));
            extent = met;
        }
        extent
    }

    /// Mounts what is left of the trees, and the caller's masks. Returns what is writable, host and guest, and what is watched
    /// in it.
    fn trees(&mut self, mut trees: Vec<Original>) -> Result<(Places, Vec<Missing>), Error> {
        // Where a stage can make links.
        let loose = trees.iter().filter(|tree| tree.rank == Rank::Writable);
        let loose: Vec<PathBuf> = loose.map(|tree| tree.host.clone()).collect();
        let tops = trees.iter().filter(|tree| tree.rank == Rank::Writable).flat_map(|tree| {
            let parts = tree.extent.write.iter().map(Path::to_path_buf);
            parts.chain((!tree.extent.write.is_empty()).then(|| tree.host.clone()))
        });
        let tops: BTreeSet<PathBuf> = tops.collect();
        let mut protected =
            protected::find(&tops, self.git_is_open, &self.let_through, &self.facts.git, &self.facts.live)?;
        self.check_restricting(&tops)?;
        // What decided about this run decides about the next one, too.
        let deciding = self.restricting.iter().filter(|it| it.what == DECIDING).map(|it| &it.end.real);
        protected.paths.extend(deciding.filter(|path| tops.iter().any(|top| path.starts_with(top))).cloned());
        let mut missing = std::mem::take(&mut protected.watched);
        self.lost.append(&mut protected.lost);
        self.notes.append(&mut protected.notes);
        for tree in trees.iter_mut().filter(|tree| tree.rank == Rank::Writable) {
            if protected.covers(&tree.host) && !tree.extent.write.is_empty() {
                tree.rank = Rank::ReadOnly;
                tree.extent.write = Tops::default();
                self.notes.push(format!(
                    "`{}` is read-only for the stage: programs on the host obey what is in it",
                    tree.host.display()
                ));
            }
        }
        trees.sort_by_key(|tree| order(&tree.at, tree.rank));
        let mut masks = self.mask_places();
        let first = self.mounts.len();
        let mut writable = Vec::new();
        if self.files.work == Some(Work::Scratch) {
            // What is bound deeper is mounted in it.
            self.mounts.push(Mount::Tmpfs { at: WORK.into(), size: TMP_SIZE, mode: 0o700 });
        }
        let mut trees = VecDeque::from(trees);
        while let Some(mut tree) = trees.pop_front() {
            let at = self.settled(&tree, &loose, first)?;
            if at != tree.at {
                tree.at = at;
                // A link can lead deeper, to where what comes next would cover it.
                let turn = |other: &Original| order(&other.at, other.rank) < order(&tree.at, tree.rank);
                let spot = trees.partition_point(turn);
                if spot > 0 {
                    trees.insert(spot, tree);
                    continue;
                }
            }
            let before = masks.partition_point(|place| order(place, Rank::Mask) < order(&tree.at, tree.rank));
            for place in masks.drain(..before) {
                self.mask_place(&place);
            }
            writable.retain(|(_, covered): &(_, PathBuf)| !covered.starts_with(&tree.at));
            self.tree(&tree, &protected, &mut writable);
        }
        for place in masks {
            self.mask_place(&place);
        }
        for it in &mut missing {
            let Missing { tree, names, patterns, links, pointers, bare, repositories, held, further, .. } =
                it;
            let is_open = |name: &str| {
                let path = tree.join(name);
                writable.iter().any(|(host, _)| path.starts_with(host))
            };
            names.retain(|it| is_open(&it.name));
            patterns.retain(|it| is_open(&it.dir));
            links.retain(|(name, _)| is_open(name));
            pointers.retain(|name| is_open(name));
            bare.retain(|name| is_open(name));
            repositories.retain(|name| is_open(name));
            held.retain(|name| is_open(name));
            further.retain(|it| is_open(&it.dir));
        }
        missing.retain(|it| !it.is_empty());
        self.lost.extend(missing.iter().flat_map(beyond_search));
        if self.git_is_open {
            self.lost.push("git's configuration and hooks are writable (--allow-write .git)".into());
        }
        self.notes.extend(self.lost.iter().cloned());
        Ok((writable, missing))
    }

    /// Refuses a path that restricts the stage and that a stage could have mean something else in the next run: by another link in
    /// its place, or by another name of the file.
    fn check_restricting(&self, tops: &BTreeSet<PathBuf>) -> Result<(), Error> {
        for Restricting { what, path, end } in &self.restricting {
            let can_replace = |link: &&PathBuf| tops.iter().any(|top| link.starts_with(top));
            if let Some(link) = end.links.iter().find(can_replace) {
                let (path, link, real) = (path.clone(), link.clone(), end.real.clone());
                return Err(Error::StrayLink { what, path, link, real });
            }
            let about = end.metadata();
            let has_names = |about: &fs::Metadata| {
                about.is_file() && about.nlink() > 1 && about.uid() == geteuid().as_raw()
            };
            let is_in_reach = |about: &fs::Metadata| {
                tops.iter().any(|top| fs::metadata(top).is_ok_and(|top| top.dev() == about.dev()))
            };
            if *what == DECIDING && about.is_ok_and(|about| has_names(&about) && is_in_reach(&about)) {
                return Err(Error::SecondName { what, path: path.clone() });
            }
        }
        Ok(())
    }

    /// Where a tree is mounted: in a tree of the host's a link leads where it leads there, elsewhere the place is made as it was
    /// named. What was mounted since `first` is the caller's, and no link may lead over it.
    fn settled(&self, tree: &Original, loose: &[PathBuf], first: usize) -> Result<PathBuf, Error> {
        let refused = |why: String| Err(place::no_place(Some(&tree.host), &tree.at, why));
        let Some(Followed { place, links }) = place::follow(&self.mounts, &tree.at) else {
            return refused("too many symbolic links are on the way".into());
        };
        for (at, host) in links {
            let real = host.parent().and_then(|dir| true_name(dir).ok());
            let real = real.zip(host.file_name()).map_or(host.clone(), |(dir, name)| dir.join(name));
            let end = self.on_host(&place);
            let strays = |tree: &&PathBuf| {
                real.starts_with(tree) && !end.as_ref().is_some_and(|end| end.starts_with(tree))
            };
            let is_untrusted = matches!(self.facts.links.walk(&host), Err(WalkError::Link { .. }));
            if is_untrusted || loose.iter().any(|tree| strays(&tree)) {
                return refused(format!(
                    "`{}` is a symbolic link there, and a stage could have made it",
                    at.display()
                ));
            }
        }
        if place::is_reserved(&place) {
            let is_root = place == Path::new("/");
            let why = if is_root { "that is the sandbox's root" } else { "exeat has its own files there" };
            return refused(why.into());
        }
        let later = self.mounts.get(first..).unwrap_or_default();
        if place != tree.at && later.iter().filter_map(place::mount_point).any(|at| at.starts_with(&place)) {
            return refused(format!(
                "a link leads to `{}`, where something is mounted already",
                place.display()
            ));
        }
        Ok(place)
    }

    /// Where the host has what is seen at a place.
    fn on_host(&self, place: &Path) -> Option<PathBuf> {
        match self.mounts.get(self.top(place)?)? {
            Mount::ReadOnly { host, at } | Mount::Writable { host, at } => {
                Some(joined(host, place.strip_prefix(at).ok()?))
            }
            _ => None,
        }
    }

    /// Mounts what is left of one tree.
    fn tree(&mut self, tree: &Original, protected: &Protected, writable: &mut Places) {
        if !tree.is_whole() {
            self.cover_cut(tree);
        }
        for (host, may_write) in tree.extent.parts() {
            let below = host.strip_prefix(&tree.host).unwrap_or(Path::new(""));
            let at = joined(&tree.at, below);
            if self.is_masked_in(tree, &host) {
                if host == tree.host {
                    self.bind(&host, &at, false, tree.words.as_deref());
                }
                continue;
            }
            let may_write = may_write && !protected.covers(&host);
            let words = tree.words_for(&host);
            self.bind(&host, &at, may_write, words.as_deref());
            if may_write {
                self.protect(&host, &at, protected, words.as_deref());
                writable.push((host, at));
            }
        }
    }

    /// What a tree would have covered stays covered where not all of the tree is shown.
    fn cover_cut(&mut self, tree: &Original) {
        let Some((under, is_dir)) = self.covers(&tree.at) else { return };
        // The same is under it, read-only: shown by the view, or by what the bound in question does not bind.
        let is_same = self.is_read_only_view_of(&tree.at, &tree.host);
        if is_same || (!under && tree.extent.read.is_empty()) {
            return;
        }
        self.mounts.push(if is_dir {
            Mount::Tmpfs { at: tree.at.clone(), size: MASK_SIZE, mode: 0o555 }
        } else {
            Mount::ReadOnly { host: MASK.into(), at: tree.at.clone() }
        });
    }

    /// Whether a tree of the host that is mounted already has something at a place, and whether that is a directory. `None`
    /// where no tree of the host's is.
    fn beneath(&self, place: &Path) -> Option<(bool, bool)> {
        let (host, at) = match self.mounts.get(self.top(place)?)? {
            Mount::ReadOnly { host, .. } if is_mask(host) => return None,
            Mount::ReadOnly { host, at } | Mount::Writable { host, at } => (host, at),
            _ => return None,
        };
        let meta = fs::symlink_metadata(joined(host, place.strip_prefix(at).ok()?));
        Some(meta.map_or((false, true), |meta| (true, meta.is_dir())))
    }

    /// The same for what is mounted at a place or anywhere below it.
    fn covers(&self, place: &Path) -> Option<(bool, bool)> {
        let is_below = |mount: &Mount| match mount {
            Mount::ReadOnly { at, .. } | Mount::Writable { at, .. } => at != place && at.starts_with(place),
            _ => false,
        };
        self.beneath(place).or_else(|| self.mounts.iter().any(is_below).then_some((true, true)))
    }

    fn is_read_only_view_of(&self, place: &Path, real: &Path) -> bool {
        match self.top(place).and_then(|number| self.mounts.get(number)) {
            Some(Mount::ReadOnly { host, at }) => {
                let below = place.strip_prefix(at).unwrap_or(Path::new(""));
                true_name(&joined(host, below)).is_ok_and(|under| under == real)
            }
            _ => false,
        }
    }

    /// The names that the caller gave to masks, in the order in which they are mounted.
    fn mask_places(&self) -> Vec<PathBuf> {
        let given = self.files.mask.iter().filter(|path| plain(path)).cloned();
        let real = self.masks.iter().filter(|(_, by)| **by == By::Caller).map(|(path, _)| path.clone());
        let places: BTreeSet<PathBuf> = given.chain(real).collect();
        let mut places: Vec<PathBuf> = places.into_iter().collect();
        places.sort_by_key(|place| order(place, Rank::Mask));
        places
    }

    /// Hides whatever is shown under the name of a mask.
    fn mask_place(&mut self, place: &Path) {
        let is_link = self.is_link(place);
        if let Some((true, is_dir)) = self.covers(place).filter(|_| !is_link) {
            self.pin(place);
            self.mask(place.to_path_buf(), is_dir);
        }
    }

    fn is_link(&self, place: &Path) -> bool {
        match self.top(place).and_then(|number| self.mounts.get(number)) {
            Some(Mount::ReadOnly { host, at } | Mount::Writable { host, at }) => {
                let below = place.strip_prefix(at).unwrap_or(Path::new(""));
                // Where nothing is, there is no link.
                links_in(host, below).unwrap_or_else(|error| !is_absent(&error))
            }
            _ => false,
        }
    }

    /// Whether the stage sees a path of the host's somewhere, and whether it can write there.
    fn sees(&self, real: &Path) -> Option<bool> {
        let mut seen = None;
        for (number, host, at) in self.mounted() {
            let Ok(below) = real.strip_prefix(&host) else { continue };
            if self.top(&joined(&at, below)) == Some(number) {
                seen = Some(
                    seen.unwrap_or(false) || matches!(self.mounts.get(number), Some(Mount::Writable { .. })),
                );
            }
        }
        seen
    }

    /// What the stage says it needs and would not have.
    fn check_declared(&mut self) -> Result<(), Error> {
        let (Some(found), Some(declared)) = (&self.declared, &self.files.declared) else { return Ok(()) };
        let read = found.read.iter().map(|path| (FS_READ, path, false));
        let mut notes = Vec::new();
        for (effect, path, write) in read.chain(found.write.iter().map(|path| (FS_WRITE, path, true))) {
            match self.sees(path) {
                Some(writable) if writable || !write => continue,
                _ => {}
            }
            let ceiling = self.limits.iter().find(|limit| !limit.allows(path, write));
            let error = Error::Ungranted {
                effect,
                path: path.clone(),
                ceiling: ceiling.map(|limit| limit.said.clone()),
            };
            if !declared.narrow {
                return Err(error);
            }
            notes.push(error.to_string());
        }
        self.notes.extend(notes);
        Ok(())
    }

    /// Where the stage starts: in its work directory, or the working directory where that is there. Where a ceiling keeps that
    /// out, in an empty directory of its name, so that relative paths fail by themselves and the stage is not moved.
    fn start(&mut self, is_cut: bool) -> PathBuf {
        let at = if self.files.work.is_some() { Path::new(WORK) } else { self.facts.cwd };
        // The stage starts in an empty directory of that name rather than elsewhere.
        let is_wanted = is_cut || self.files.work.is_some() || self.is_cwd_empty;
        let is_root = at == Path::new("/");
        let is_private = self.kind == View::Host && PRIVATE.iter().any(|place| at == Path::new(place));
        match self.beneath(at) {
            _ if is_root || is_private => at.to_path_buf(),
            Some((true, true)) => at.to_path_buf(),
            None if is_wanted => {
                self.open_way(at);
                self.mounts.push(Mount::Dir { at: at.to_path_buf() });
                at.to_path_buf()
            }
            _ => "/tmp".into(),
        }
    }

    /// Makes the protected paths in a writable tree read-only there, but for what is let through in them.
    fn protect(&mut self, host: &Path, at: &Path, protected: &Protected, words: Option<&Path>) {
        let mut outer: Option<&Path> = None;
        for path in &protected.paths {
            let Ok(below) = path.strip_prefix(host) else { continue };
            // What is masked in this tree stays masked, and the inside of a protected directory is protected with it.
            let masked =
                self.masks.keys().any(|it| it != host && it.starts_with(host) && path.starts_with(it));
            if masked || outer.is_some_and(|outer| protected.keeps(outer, path)) {
                continue;
            }
            outer = Some(path);
            // A directory above it could be renamed away and made anew.
            self.pin(&joined(at, below));
            let words = words.map(|words| joined(words, below));
            self.bind(path, &joined(at, below), false, words.as_deref());
            for open in protected.holes(path) {
                if let Ok(below) = open.strip_prefix(host) {
                    self.bind(open, &joined(at, below), true, None);
                }
            }
        }
    }

    /// The host's trees as they are mounted now: the mount's number, its real path on the host, the place inside.
    fn mounted(&self) -> Vec<(usize, PathBuf, PathBuf)> {
        let tree = |(number, mount): (usize, &Mount)| match mount {
            Mount::ReadOnly { host, at } | Mount::Writable { host, at } => {
                Some((number, host.clone(), at.clone()))
            }
            _ => None,
        };
        self.mounts.iter().enumerate().filter_map(tree).collect()
    }

    /// The mount that decides what is seen at a place.
    fn top(&self, place: &Path) -> Option<usize> {
        self.mounts.iter().rposition(|mount| match mount {
            Mount::ReadOnly { at, .. } | Mount::Writable { at, .. } | Mount::Tmpfs { at, .. } => {
                place.starts_with(at)
            }
            Mount::Proc => place.starts_with("/proc"),
            Mount::Dev { .. } => place.starts_with("/dev"),
            _ => false,
        })
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
            self.mask(place, false);
        }
        true
    }
}

/// Whether a directory holds more than a toolchain: homes, other programs' files, or the kernel's.
fn is_too_much(real: &Path, home: &Path) -> bool {
    const FOR_EVERYTHING: [&str; 8] = ["/home", "/media", "/mnt", "/run", "/srv", "/tmp", "/var", "/var/tmp"];
    home.starts_with(real)
        || FOR_EVERYTHING.iter().any(|dir| real == Path::new(dir))
        || real.parent() == Some(Path::new("/home"))
        || [".local", ".config"].iter().any(|name| real == home.join(name))
        || lists::KERNEL.iter().any(|place| real.starts_with(place))
}

/// Whether a path is the process file system's.
fn is_procfs(path: &Path) -> bool {
    statfs(path).is_ok_and(|about| about.filesystem_type() == PROC_SUPER_MAGIC)
}

/// Where process file systems are mounted on this machine: a tree of the host's shows its mounts too.
fn process_files(mounts: &[u8]) -> Vec<PathBuf> {
    let found = rows(mounts).filter(|row| row.kind == b"proc").map(|row| row.at());
    [PathBuf::from("/proc")].into_iter().chain(found).collect()
}

/// The order of mounts: wide trees, then by depth.
fn order(at: &Path, rank: Rank) -> (bool, usize, PathBuf, Rank) {
    (rank != Rank::Wide, at.components().count(), at.to_path_buf(), rank)
}

/// Why a working directory is read-only for a stage, if it is.
fn unwritable(facts: &Facts<'_>, cwd: &Path) -> Option<String> {
    let within = |trees: &[&str]| trees.iter().any(|tree| cwd.starts_with(tree));
    let is = |what: &str| Some(what.to_owned());
    if let Some(why) = holds_home(facts, cwd) {
        Some(why)
    } else if within(lists::SYSTEM)
        || within(&["/nix", "/gnu"])
        || ["/var", "/boot"].map(Path::new).contains(&cwd)
    {
        is("it belongs to the system")
    } else if within(&["/run"])
        || ["/tmp", "/var/tmp"].map(Path::new).iter().any(|place| place.starts_with(cwd))
    {
        is("other programs' temporary files and sockets are in it")
    } else {
        let own = first_below(cwd, facts.own.iter().map(PathBuf::as_path));
        own.map(|own| format!("exeat's own files are in it, at `{}`", own.display()))
    }
}

/// Why nothing of a working directory is shown unless it is named: it is a home, or homes lie in it.
fn holds_home(facts: &Facts<'_>, cwd: &Path) -> Option<String> {
    let why = if is_same(cwd, facts.home) {
        "it is the home directory"
    } else if holds(cwd, facts.home) {
        "the home directory lies in it"
    } else if is_home_of_owner(facts, cwd) {
        "it is its owner's home directory"
    } else if cwd == Path::new("/home") {
        "home directories lie in it"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Why a working directory is read-only although it could be a project: programs are started, or settings read, from there,
/// or a link that a stage could have made leads there. `--rw` of it or of a directory above overrides the first two.
fn by_habit(files: &Files, facts: &Facts<'_>, cwd: &Path) -> Option<String> {
    if let Some((link, _)) = &facts.cwd_link {
        return Some(format!(
            "the shell came here through the symbolic link `{}`, which a stage could have made; cd {} first",
            link.display(),
            cwd.display()
        ));
    }
    let is_named = |bind: &Bind| bind.guest == bind.host && cwd.starts_with(clean(&bind.host));
    if files.rw.iter().any(is_named) {
        return None;
    }
    let fix = "give it --rw . if the stage is to write there";
    if let Some(dir) = facts.links.kept_directory(cwd) {
        return Some(format!("programs of yours, or their settings, are kept in `{}`; {fix}", dir.display()));
    }
    let path = facts.path.map(std::env::split_paths).into_iter().flatten();
    let mut programs = path.filter(|dir| dir.is_absolute()).filter_map(|dir| true_name(&dir).ok());
    programs
        .find(|dir| cwd.starts_with(dir))
        .map(|dir| format!("`{}` is on PATH, and programs are started from there; {fix}", dir.display()))
}

/// Whether root starts a stage in somebody else's home directory. Where the user database does not answer, the line about that
/// user's credentials says so.
fn is_home_of_owner(facts: &Facts<'_>, cwd: &Path) -> bool {
    let owner = facts.root.then(|| fs::metadata(cwd).ok()).flatten().map(|meta| Uid::from_raw(meta.uid()));
    let home = owner.and_then(|owner| home_of(owner).ok().flatten());
    home.is_some_and(|home| is_same(cwd, &home))
}

/// The protected path that the working directory is, or lies in, unless the caller has named that, or something in it, to be
/// writable.
fn obeyed<'a>(files: &Files, cwd: &'a Path) -> Option<&'a Path> {
    let path = protected::around(cwd)?;
    let is_asked_for = |bind: &Bind| {
        let real = true_name(&bind.host).ok().filter(|_| bind.guest == bind.host);
        real.is_some_and(|real| cwd.starts_with(&real) && real.starts_with(path))
    };
    (!files.rw.iter().any(is_asked_for)).then_some(path)
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

/// Whether a component of `name` below `base` is a symbolic link.
fn links_in(base: &Path, name: &Path) -> io::Result<bool> {
    let mut path = base.to_path_buf();
    for part in name.components() {
        path.push(part);
        if fs::symlink_metadata(&path)?.is_symlink() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Without `..`, which says nothing about where a path leads.
fn plain(path: &Path) -> bool {
    path.components().all(|part| !matches!(part, Component::ParentDir))
}

/// What a directory on PATH needs to be shown for its programs to run.
fn toolchain_roots(dir: &Path, home: &Path) -> Vec<PathBuf> {
    if let Ok(below) = dir.strip_prefix(home) {
        let known = lists::TOOLCHAINS.iter().find(|(name, _)| below.starts_with(name));
        if let Some((_, needed)) = known {
            return needed.iter().map(|name| home.join(name)).collect();
        }
    }
    // `PREFIX/bin` needs what lies beside it, unless that would be all of HOME or of a directory for everything.
    let parent = dir
        .parent()
        .filter(|_| dir.file_name().is_some_and(|name| name == "bin" || name == "sbin" || name == "shims"));
    let too_much = |tree: &Path| {
        home.starts_with(tree)
            || tree == home.join(".local")
            || tree == home.join(".config")
            || tree.components().count() < 3
    };
    vec![parent.filter(|tree| !too_much(tree)).unwrap_or(dir).to_path_buf()]
}

/// The names of the loopback. What else is in the machine's own file would lead clients to an address where they are refused, past the
/// name server and the proxy, which both know that file.
fn hosts() -> String {
    let own = nix::sys::utsname::uname().ok();
    let own = own.and_then(|it| it.nodename().to_str()?.parse::<HostName>().ok());
    let own = own.map(|name| format!("127.0.0.1 {name}\n")).unwrap_or_default();
    format!(
        "127.0.0.1 localhost\n{own}::1 localhost ip6-localhost ip6-loopback\nff02::1 ip6-allnodes\nff02::2 ip6-allrouters\n"
    )
}

/// Where a file is written that is to be read at `path`: links are followed by their words, since inside they may dangle.
fn resolved_place(path: &Path) -> Option<PathBuf> {
    /// As many links as the kernel follows (path_resolution(7)).
    const LINKS: usize = 40;
    let mut place = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(target) = fs::read_link(&place) else { return Some(place) };
        place = clean(&place.parent()?.join(target));
    }
    None
}

/// Where programs put what they need for a while.
pub(crate) const TMP: &str = "/tmp";

/// The `/tmp` of a run that has none on the disk.
pub(crate) fn tmp_in_memory(size: u64) -> Mount {
    Mount::Tmpfs { at: TMP.into(), size, mode: 0o1777 }
}

/// Returns a directory for one run in that which TMPDIR names, if a stage has its `/tmp` there: not where that would be another
/// machine-wide `/tmp`.
pub(crate) fn tmp_dir(named: Option<&Path>, links: &LinkRule) -> Option<PathBuf> {
    let named = named.filter(|dir| dir.is_absolute())?;
    let real = links.walk(named).ok()?.real;
    let is_usual = [TMP, "/var/tmp"].map(Path::new).contains(&real.as_path());
    let user = geteuid();
    let run = || real.join(format!("exeat-{user}")).join(format!("{CACHE_OF_RUN}{}", RunId::new()));
    (real.is_dir() && !is_usual).then(run)
}

/// The cache of a run that has no lasting one.
pub(crate) fn cache_in_memory() -> Mount {
    Mount::Tmpfs { at: CACHE.into(), size: TMP_SIZE, mode: 0o755 }
}

/// Returns the directory for a cache on the disk: of this working directory, or of one run alone.
pub(crate) fn cache_dir(base: &Path, cwd: &Path, kind: Cache) -> PathBuf {
    if kind == Cache::Run {
        return base.join("exeat").join(format!("{CACHE_OF_RUN}{}", RunId::new()));
    }
    let digest = exeat_record::sha256_hex(cwd.as_os_str().as_bytes());
    base.join("exeat").join(digest.get(..16).unwrap_or(&digest))
}

#[cfg(test)]
mod tests;

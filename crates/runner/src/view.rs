//! What the stage sees of the file tree: from the request and the host to an ordered list of mounts.
//!
//! Reads the host and changes nothing. The order is the contract: base view, private places, our files, toolchains, then the
//! caller's trees by depth (of two at one place the read-only one wins), the host's sockets, and last the caller's masks,
//! which nothing opens again. What is hidden or protected is so by its path on the host, in every tree that shows it, at
//! whatever place: directly after the tree's own mount, so that only a deeper tree of the caller's opens it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use exeat_contract::{CACHE, NOBODY, STAGE2};
use exeat_sandbox::spec::Bytes;
use exeat_sandbox::{Held, Mount, STAGE2_IMAGE};

use crate::error::Error;
use crate::lists;
use crate::quarantine::Missing;
use crate::request::{Bind, Cache, Files, View};

/// Bytes of the private `/tmp` and `/var/tmp`, each: compilers spool there.
const TMP_SIZE: u64 = 1 << 30;
/// Bytes of `/run`: sockets, pid files, and stage2.
const RUN_SIZE: u64 = 64 << 20;
/// Bytes of `/dev/shm`: browsers and databases share memory there.
const SHM_SIZE: u64 = 512 << 20;
/// Bytes of a directory that stands for something hidden.
const MASK_SIZE: u64 = 4096;

/// Places that are private in every view, whatever the host has there.
const PRIVATE: [&str; 6] = ["/tmp", "/var/tmp", "/run", "/sys", "/proc", "/dev"];

/// Facts that a view depends on.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) cwd: &'a Path,
    pub(crate) home: &'a Path,
    /// The caller's PATH.
    pub(crate) path: Option<&'a OsStr>,
    /// Trees that variables of the environment name, and files of certificates.
    pub(crate) named: Vec<PathBuf>,
    /// The private cache on the host, where there is one.
    pub(crate) cache: Option<&'a Path>,
    /// Directories that exeat itself writes to.
    pub(crate) own: &'a [PathBuf],
    /// The stage keeps root's kernel uid.
    pub(crate) root: bool,
    /// The kernel uid and gid that the stage becomes, where that is not the caller's.
    pub(crate) other: Option<(u32, u32)>,
}

/// A view, ready for the sandbox.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) mounts: Vec<Mount>,
    /// Where the stage starts.
    pub(crate) cwd: PathBuf,
    /// Lines for the caller.
    pub(crate) notes: Vec<String>,
    pub(crate) held: Held,
    /// A socket of the host may be reachable by path: no Unix sockets for the stage.
    pub(crate) sockets_exposed: bool,
    /// Host paths that the stage can write below.
    pub(crate) writable: Vec<PathBuf>,
    /// Protected names that do not exist, and are watched.
    pub(crate) missing: Vec<Missing>,
}

/// Builds the view.
pub(crate) fn build(files: &Files, facts: &Facts<'_>) -> Result<Built, Error> {
    let mut view = Builder {
        files,
        facts,
        mounts: Vec::new(),
        notes: Vec::new(),
        shown: Vec::new(),
        hidden: hidden(facts),
        lost: Vec::new(),
    };
    view.base();
    view.private_places();
    view.our_files();
    if files.view == View::Project {
        view.toolchains();
    }
    let cwd = view.working_directory();
    // A wide working directory comes before the caller's other trees, wherever they lie.
    if let Some(tree) = cwd.as_ref().filter(|tree| tree.wide) {
        view.show(&tree.host);
    }
    let (writable, missing) = view.trees(cwd.as_ref())?;
    let wide = cwd.as_ref().filter(|tree| tree.wide).map(|tree| tree.at.as_path());
    let listed = view.host_sockets(Path::new("/proc/net/unix"), wide);
    view.masks()?;
    let start = match &cwd {
        Some(Tree { at, .. }) => at.clone(),
        None if files.view == View::Host => facts.cwd.to_path_buf(),
        None => view.fallback_directory(&writable),
    };
    let sockets_exposed = files.view == View::Host || wide.is_some() || !listed;
    let held =
        if view.lost.is_empty() { Held::Full } else { Held::Partial { missing: view.lost.join("; ") } };
    let cache = facts.cache.filter(|_| files.cache == Cache::Private).map(Path::to_path_buf);
    let writable = writable.into_iter().map(|(host, _)| host).chain(cache).collect();
    Ok(Built { mounts: view.mounts, cwd: start, notes: view.notes, held, sockets_exposed, writable, missing })
}

/// What no tree shows unless the caller names it: credentials, and what exeat keeps for itself. Sorted.
fn hidden(facts: &Facts<'_>) -> BTreeSet<PathBuf> {
    let credentials = lists::CREDENTIALS.iter().map(|name| facts.home.join(name));
    let own = facts.own.iter().filter(|path| *path != Path::new("/tmp")).cloned();
    let system = lists::SYSTEM_CREDENTIALS.iter().filter(|_| facts.root).map(PathBuf::from);
    // Most are not there. One look says so, where `canonicalize` takes one for each part of a path.
    let missing =
        |path: &Path| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let there = credentials.chain(own).chain(system).filter(|path| !missing(path));
    // Where it really is: what is masked at a link would be a detour. A dangling link has nothing to hide.
    there.filter_map(|path| path.canonicalize().ok()).collect()
}

/// A tree of the host in the view.
#[derive(Debug, Clone)]
struct Tree {
    host: PathBuf,
    at: PathBuf,
    writable: bool,
    /// More than a project: it may hold credentials and sockets.
    wide: bool,
}

/// Trees, host and guest.
type Places = Vec<(PathBuf, PathBuf)>;

struct Builder<'a> {
    files: &'a Files,
    facts: &'a Facts<'a>,
    mounts: Vec<Mount>,
    notes: Vec<String>,
    /// Host trees that are shown at their own place.
    shown: Vec<PathBuf>,
    /// Host paths that are masked in every tree above them.
    hidden: BTreeSet<PathBuf>,
    /// What cannot be kept.
    lost: Vec<String>,
}

impl Builder<'_> {
    fn base(&mut self) {
        match self.files.view {
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
        self.bind(tree, tree, false, false);
        self.shown.push(tree.to_path_buf());
    }

    /// Mounts a tree of the host, and masks what is hidden in it. A tree that the caller `named` opens its own top.
    fn bind(&mut self, host: &Path, at: &Path, writable: bool, named: bool) {
        let (from, to) = (host.to_path_buf(), at.to_path_buf());
        self.mounts.push(if writable {
            Mount::Writable { host: from, at: to }
        } else {
            Mount::ReadOnly { host: from, at: to }
        });
        let real = host.canonicalize().unwrap_or_else(|_| host.to_path_buf());
        let mut masks: Vec<(PathBuf, bool)> = Vec::new();
        let mut above: Option<&Path> = None;
        for path in &self.hidden {
            let Ok(below) = path.strip_prefix(&real) else { continue };
            let covered = at == Path::new("/") && PRIVATE.iter().any(|place| path.starts_with(place));
            if covered || (named && *path == real) || above.is_some_and(|above| path.starts_with(above)) {
                continue;
            }
            above = Some(path);
            // Not `join`: with nothing to add it would make `FILE/`.
            let place = if below == Path::new("") { at.to_path_buf() } else { at.join(below) };
            masks.push((place, path.is_dir()));
        }
        for (place, is_dir) in masks {
            self.mask(place, is_dir);
        }
    }

    fn private_places(&mut self) {
        self.mounts.push(Mount::Proc);
        self.mounts.push(Mount::Dev { shm: SHM_SIZE });
        for (at, size, mode) in
            [("/tmp", TMP_SIZE, 0o1777), ("/var/tmp", TMP_SIZE, 0o1777), ("/run", RUN_SIZE, 0o755)]
        {
            self.mounts.push(Mount::Tmpfs { at: at.into(), size, mode });
        }
        if self.files.view == View::Host {
            self.mounts.push(Mount::Tmpfs { at: "/sys".into(), size: MASK_SIZE, mode: 0o555 });
        } else {
            self.mounts.push(Mount::Dir { at: "/sys".into() });
            self.mounts.push(Mount::Symlink { target: "../run".into(), at: "/var/run".into() });
        }
        // NixOS has its programs and its setuid wrappers behind names in /run.
        for tree in ["/run/current-system", "/run/wrappers"].map(Path::new) {
            if self.files.view != View::Minimal && tree.exists() {
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
        let home = self.facts.home.display();
        let passwd =
            format!("root:x:0:0:root:/root:/bin/sh\nnobody:x:{NOBODY}:{NOBODY}:nobody:{home}:/bin/sh\n");
        let group = format!("root:x:0:\nnogroup:x:{NOBODY}:\n");
        self.cover("/etc/passwd".into(), passwd);
        self.cover("/etc/group".into(), group);
        let resolver = "# exeat: names are resolved by the proxy, outside.\nnameserver 127.0.0.53\noptions attempts:1 timeout:1\n";
        if let Some(at) = resolved_place(Path::new("/etc/resolv.conf")) {
            self.cover(at, resolver.into());
        }
        if self.files.cache == Cache::Private {
            match self.facts.cache {
                Some(host) => {
                    self.mounts.push(Mount::Writable { host: host.to_path_buf(), at: CACHE.into() })
                }
                None => self.mounts.push(Mount::Tmpfs { at: CACHE.into(), size: TMP_SIZE, mode: 0o755 }),
            }
        }
    }

    /// A file of ours at a place of the system's: mounted over what is there, or else simply made.
    fn cover(&mut self, at: PathBuf, text: String) {
        let bytes = Bytes(Cow::Owned(text.into_bytes()));
        let from_host = self.is_shown(&at);
        if from_host && at.exists() {
            self.mounts.push(Mount::CoverFile { at, bytes });
        } else if !from_host {
            self.mounts.push(Mount::File { at, bytes, mode: 0o444 });
        }
        // In a read-only tree that lacks the name there is nothing to cover and nothing can be made.
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
        roots.extend(self.facts.named.iter().filter(|path| path.is_absolute() && plain(path)).cloned());
        let mut unreadable = Vec::new();
        // In order, so that a tree comes before what lies in it.
        for root in roots {
            let kept_out = self.is_shown(&root)
                || root.starts_with(self.facts.cwd)
                || self.facts.home.starts_with(&root)
                || lists::KERNEL.iter().any(|place| root.starts_with(place));
            if kept_out || !root.exists() {
                continue;
            }
            if self.facts.other.is_some_and(|who| !is_open_to(who, &root)) {
                unreadable.push(root.display().to_string());
                continue;
            }
            self.show(&root);
        }
        if !unreadable.is_empty() {
            let list = unreadable.join(", ");
            self.notes.push(format!(
                "only root may read these programs of PATH, and the stage is not root: {list}"
            ));
        }
    }

    /// The working directory's tree, if it is to be shown.
    fn working_directory(&mut self) -> Option<Tree> {
        let cwd = self.facts.cwd;
        let within = |trees: &[&str]| trees.iter().any(|tree| cwd.starts_with(tree));
        if self.files.view == View::Minimal {
            return None;
        }
        // `/run` itself is where stage2 and the proxy's socket are put.
        if [Path::new("/"), Path::new("/run")].contains(&cwd) || within(lists::KERNEL) {
            self.notes.push(format!(
                "the working directory `{}` is read-only for the stage, and is not the host's",
                cwd.display()
            ));
            return None;
        }
        let is = |what: &str| Some(what.to_owned());
        let why = if cwd == self.facts.home {
            is("it is the home directory")
        } else if self.facts.home.starts_with(cwd) {
            is("the home directory lies in it")
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
            let own = self.facts.own.iter().find(|own| own.starts_with(cwd));
            own.map(|own| format!("exeat's own files are in it, at `{}`", own.display()))
        };
        if let Some(why) = &why {
            self.notes
                .push(format!("the working directory `{}` is read-only for the stage: {why}", cwd.display()));
        }
        Some(Tree {
            host: cwd.to_path_buf(),
            at: cwd.to_path_buf(),
            writable: why.is_none(),
            wide: why.is_some(),
        })
    }

    fn mask(&mut self, at: PathBuf, is_dir: bool) {
        self.mounts.push(if is_dir {
            Mount::Tmpfs { at, size: MASK_SIZE, mode: 0o000 }
        } else {
            Mount::ReadOnly { host: "/dev/null".into(), at }
        });
    }

    /// The caller's trees by depth. Returns the writable ones, host and guest, and what is watched in them.
    fn trees(&mut self, cwd: Option<&Tree>) -> Result<(Places, Vec<Missing>), Error> {
        let tree = |bind: &Bind, writable| {
            let what = if writable { "the path of --rw" } else { "the path of --ro" };
            let source = bind.host.canonicalize().map_err(|source| Error::Path {
                what,
                path: bind.host.clone(),
                source,
            })?;
            // In a tree of the host's a link leads where it leads there; elsewhere the place is made as it was named.
            let linked = bind.guest == bind.host && self.is_shown(&bind.guest);
            let at = if linked { source.clone() } else { bind.guest.clone() };
            Ok(Tree { host: source, at, writable, wide: false })
        };
        let mut trees: Vec<Tree> = cwd.filter(|tree| !tree.wide).cloned().into_iter().collect();
        for bind in &self.files.rw {
            trees.push(tree(bind, true)?);
        }
        for bind in &self.files.ro {
            trees.push(tree(bind, false)?);
        }
        let (protected, mut missing) = self.protected(&trees);
        for tree in trees.iter_mut().filter(|tree| tree.writable) {
            if protected.iter().any(|path| tree.host.starts_with(path)) {
                tree.writable = false;
                self.notes.push(format!(
                    "`{}` is read-only for the stage: programs on the host obey what is in it",
                    tree.host.display()
                ));
            }
        }
        trees.sort_by_key(|tree| (tree.at.components().count(), tree.at.clone(), !tree.writable));
        let mut writable = Vec::new();
        for Tree { host, at, writable: may_write, .. } in trees {
            self.bind(&host, &at, may_write, true);
            if may_write {
                self.protect(&host, &at, &protected);
                writable.push((host, at));
            } else {
                writable.retain(|(_, covered)| !covered.starts_with(&at));
            }
        }
        missing.retain(|missing| writable.iter().any(|(host, _)| *host == missing.tree));
        if self.files.allow_git_config {
            self.lost.push("git's configuration and hooks are writable (--allow-git-config)".into());
        }
        self.notes.extend(self.lost.iter().cloned());
        Ok((writable, missing))
    }

    /// Host paths in the writable trees that the host obeys later, and the names that are not there yet.
    fn protected(&mut self, trees: &[Tree]) -> (BTreeSet<PathBuf>, Vec<Missing>) {
        // The names that the caller did not give up.
        let given_up = |name: &str| self.files.allow_git_config && name.starts_with(lists::GIT);
        let names: Vec<&'static str> =
            lists::PROTECTED.iter().copied().filter(|name| !given_up(name)).collect();
        let mut found = BTreeSet::new();
        let mut all = Vec::new();
        for Tree { host, .. } in trees.iter().filter(|tree| tree.writable) {
            let mut missing = Vec::new();
            for &name in &names {
                match links_in(host, Path::new(name)) {
                    Ok(false) => drop(found.insert(host.join(name))),
                    Ok(true) => self.lose(&host.join(name)),
                    // There is nothing to bind: watched instead.
                    Err(_) => missing.push(name),
                }
            }
            let link = host.join(lists::GIT_LINK);
            if fs::symlink_metadata(&link).is_ok_and(|meta| meta.is_file()) {
                found.insert(link);
            }
            // A tree in a repository's `.git`: its names begin above the tree.
            for dir in host.ancestors().filter(|dir| dir.ends_with(lists::GIT_LINK)) {
                let inside = host.strip_prefix(dir).unwrap_or(Path::new(""));
                for name in &names {
                    let Some(name) = name.strip_prefix(lists::GIT) else { continue };
                    let below = Path::new(name).strip_prefix(inside).ok().and_then(Path::to_str);
                    match (links_in(dir, Path::new(name)), below) {
                        (Ok(false), _) => drop(found.insert(dir.join(name))),
                        (Ok(true), Some(_)) => self.lose(&dir.join(name)),
                        (Err(_), Some(below)) => missing.push(below),
                        (Ok(true) | Err(_), None) => {}
                    }
                }
            }
            all.push(Missing { tree: host.clone(), names: missing });
        }
        (found, all)
    }

    fn lose(&mut self, path: &Path) {
        let line = format!("`{}` is behind a symbolic link and is not protected", path.display());
        if !self.lost.contains(&line) {
            self.lost.push(line);
        }
    }

    /// Makes the protected paths in a writable tree read-only there.
    fn protect(&mut self, host: &Path, at: &Path, protected: &BTreeSet<PathBuf>) {
        let mut held = BTreeSet::new();
        let mut outer: Option<&Path> = None;
        for path in protected {
            let Ok(below) = path.strip_prefix(host) else { continue };
            // What is masked in this tree stays masked, and the inside of a protected directory is protected with it.
            let masked =
                self.hidden.iter().any(|it| it != host && it.starts_with(host) && path.starts_with(it));
            if masked || outer.is_some_and(|outer| path.starts_with(outer)) {
                continue;
            }
            outer = Some(path);
            // A directory above it could be renamed away and made anew, unless it is a mount point itself.
            let above = below.ancestors().skip(1).filter(|above| *above != Path::new(""));
            let mut above: Vec<&Path> = above.collect();
            // The outer one first: a mount covers what was mounted below its place before.
            above.reverse();
            for above in above {
                if held.insert(above.to_path_buf()) {
                    self.bind(&host.join(above), &at.join(above), true, true);
                }
            }
            self.bind(path, &at.join(below), false, true);
        }
    }

    /// The host's trees as they are mounted now: the mount's number, where it really is on the host, the place inside.
    fn mounted(&self) -> Vec<(usize, PathBuf, PathBuf)> {
        let tree = |(number, mount): (usize, &Mount)| match mount {
            Mount::ReadOnly { host, at } | Mount::Writable { host, at } => {
                Some((number, host.canonicalize().ok()?, at.clone()))
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
        trees.retain(|(_, _, at)| {
            wide != Some(at) && !(self.files.view == View::Host && at == Path::new("/"))
        });
        // A name may be relative to where its server was started: most are, to the tree's own directory.
        let mut sockets = BTreeSet::new();
        for name in &names {
            let bases = trees.iter().map(|(_, host, _)| host.as_path()).filter(|_| name.is_relative());
            for path in bases.chain(name.is_absolute().then_some(Path::new("/"))).map(|base| base.join(name))
            {
                let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
                let Some(real) = parent.zip(path.file_name()).map(|(dir, last)| dir.join(last)) else {
                    continue;
                };
                if fs::symlink_metadata(&real).is_ok_and(|meta| meta.file_type().is_socket()) {
                    sockets.insert(real);
                }
            }
        }
        for socket in sockets {
            let mut is_seen = false;
            for (number, host, at) in &trees {
                let Ok(below) = socket.strip_prefix(host) else { continue };
                let place = if below == Path::new("") { at.clone() } else { at.join(below) };
                if self.top(&place) == Some(*number) {
                    self.mask(place, false);
                    is_seen = true;
                }
            }
            if is_seen {
                self.notes.push(format!(
                    "`{}` is hidden from the stage: a program on the host listens there",
                    socket.display()
                ));
            }
        }
        true
    }

    /// The caller's masks, wherever a tree shows what they name.
    fn masks(&mut self) -> Result<(), Error> {
        if self.files.mask.is_empty() {
            return Ok(());
        }
        let trees = self.mounted();
        let mut places = BTreeMap::new();
        for path in &self.files.mask {
            let twin = path.canonicalize();
            let twin = twin.map_err(|source| Error::Path {
                what: "the path of --mask",
                path: path.clone(),
                source,
            })?;
            let is_dir = twin.is_dir();
            for (number, host, at) in &trees {
                let alias = match (twin.strip_prefix(host), host.starts_with(&twin)) {
                    // The tree lies in what is masked. The private cache is exeat's and holds nothing of the caller's.
                    (_, true) if at != Path::new(CACHE) => Some((at.clone(), host.is_dir())),
                    (Ok(below), false) => Some((at.join(below), is_dir)),
                    _ => None,
                };
                places.extend(alias.filter(|(place, _)| self.top(place) == Some(*number)));
            }
            // At the name that was given as well, where that is a place of its own.
            if *path != twin
                && fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_symlink())
                && links_in(Path::new("/"), path).is_ok_and(|links| !links)
            {
                places.insert(path.clone(), is_dir);
            }
            places.insert(twin, is_dir);
        }
        let mut outer: Option<PathBuf> = None;
        for (place, is_dir) in places {
            if outer.as_ref().is_none_or(|outer| !place.starts_with(outer)) {
                outer = Some(place.clone());
                self.mask(place, is_dir);
            }
        }
        Ok(())
    }

    /// Where a stage starts whose working directory is not in the view.
    fn fallback_directory(&mut self, writable: &[(PathBuf, PathBuf)]) -> PathBuf {
        let cwd = self.facts.cwd;
        let visible = writable.iter().any(|(_, at)| cwd.starts_with(at));
        if visible || cwd == Path::new("/") { cwd.to_path_buf() } else { "/tmp".into() }
    }
}

/// The names of Unix sockets in this network namespace, from `/proc/net/unix` (proc_net(5)), without the abstract ones.
fn listening_names(table: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let table = fs::read(table)?;
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

/// Whether a user may enter a directory and every one above it, by the permission bits.
fn is_open_to((uid, gid): (u32, u32), path: &Path) -> bool {
    path.ancestors().all(|part| {
        fs::metadata(part).is_ok_and(|meta| {
            let bit = match (meta.uid() == uid, meta.gid() == gid) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            !meta.is_dir() || meta.mode() & bit != 0
        })
    })
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

/// Where a file is written that is to be read at `path`: links are followed by their words, since inside they may dangle.
fn resolved_place(path: &Path) -> Option<PathBuf> {
    /// As many links as the kernel follows (path_resolution(7)).
    const LINKS: usize = 40;
    let mut place = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(target) = fs::read_link(&place) else { return Some(place) };
        place = normal(&place.parent()?.join(target));
    }
    None
}

/// Without `.` and `..`, by words.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

/// A directory for the private cache that belongs to this working directory.
pub(crate) fn cache_dir(base: &Path, cwd: &Path) -> PathBuf {
    let digest = exeat_audit::sha256_hex(cwd.as_os_str().as_bytes());
    base.join("exeat").join(digest.get(..16).unwrap_or(&digest))
}

#[cfg(test)]
mod tests;

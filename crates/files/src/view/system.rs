//! The parts of every view: the system's trees, private directories, exeat's files, and toolchains.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use crate::layout::{EMPTY_DIR_SIZE, EmptyEntry, Mount, Why};
use crate::walk::WalkError;
use exeat_contract::{CACHE, DIR, HOME, NAME_SERVER, NESTED, NOBODY, README, STAGE2};
use exeat_policy::{Cache, Home, HostName, Nested, Size, View};

use super::place::EntryAt;
use super::scratch::{TMP, TMP_SIZE, cache_in_memory, resolved_place, tmp_in_memory};
use super::trees::plain;
use super::work::is_too_much;
use super::{AGENTS, Builder, By, Original, PRIVATE, RUN_SIZE, SHM_SIZE, place, sockets};
use crate::lists;

impl<'a> Builder<'a> {
    pub(super) fn base(&mut self) {
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

    pub(super) fn show(&mut self, tree: &Path) {
        if let Ok(end) = self.facts.links.walk(tree) {
            self.show_real(tree, &end.real, Why::View);
        }
    }

    /// Shows a tree of the view at its own name, from its real path.
    pub(super) fn show_real(&mut self, tree: &Path, real: &Path, why: Why) {
        let at = place::follow(&self.mounts, tree).map_or_else(|| tree.to_path_buf(), |way| way.place);
        self.bind(real, &at, false, None, why);
        self.shown.push(tree.to_path_buf());
    }

    /// Mounts a tree of the host, by its real path, and masks what is hidden in it. `words` is what the caller wrote for it.
    pub(super) fn bind(&mut self, real: &Path, at: &Path, writable: bool, words: Option<&Path>, why: Why) {
        self.open_way(at);
        if let Some(why) = self.why_masked(real, words) {
            return self.mask(at.to_path_buf(), real.is_dir(), why);
        }
        let (host, to) = (real.to_path_buf(), at.to_path_buf());
        self.mounts.push(if writable {
            Mount::Writable { host, at: to, why }
        } else {
            Mount::ReadOnly { host, at: to, why }
        });
        let mut places: Vec<(PathBuf, bool, Why)> = Vec::new();
        let mut above: Option<&Path> = None;
        for (path, mask) in self.masks.range::<Path, _>((Bound::Excluded(real), Bound::Unbounded)) {
            // What lies in a directory comes directly after it.
            let Ok(below) = path.strip_prefix(real) else { break };
            let covered = at == Path::new("/") && PRIVATE.iter().any(|place| path.starts_with(place));
            if covered || above.is_some_and(|above| path.starts_with(above)) {
                continue;
            }
            above = Some(path);
            // One of exeat's own that is missing is made before the stage starts, and is a directory.
            let is_dir = path.is_dir() || mask.why == Why::Own && !path.exists();
            places.push((at.join(below), is_dir, mask.why));
        }
        for (place, is_dir, why) in places {
            self.pin(&place);
            self.mask(place, is_dir, why);
        }
    }

    /// Makes the directories above a place in a writable tree mount points: one that is not can be renamed, and what is mounted
    /// in it is then missing from its place in the next run. They come directly after the tree, below all else in it.
    pub(super) fn pin(&mut self, place: &Path) {
        let Some(number) = self.top(place) else { return };
        let Some(Mount::Writable { host, at, .. }) = self.mounts.get(number).cloned() else { return };
        let Ok(below) = place.strip_prefix(&at) else { return };
        // The inner one first, since each is put before the last.
        for above in below.ancestors().skip(1).filter(|above| *above != Path::new("")) {
            let (host, at) = (host.join(above), at.join(above));
            if host.is_dir() {
                self.mounts.insert(number + 1, Mount::Writable { host, at, why: Why::Pinned });
            }
        }
    }

    /// Whether all of a tree is hidden. A mask opens for the words of a flag alone, never for what a link makes of them.
    pub(super) fn is_masked(&self, real: &Path, words: Option<&Path>) -> bool {
        self.why_masked(real, words).is_some()
    }

    /// Returns the reason that all of a tree is hidden, if it is.
    pub(super) fn why_masked(&self, real: &Path, words: Option<&Path>) -> Option<Why> {
        real.ancestors().find_map(|path| {
            let mask = self.masks.get(path)?;
            let is_hidden = match mask.by {
                By::Default => !self.is_meant(path, words),
                By::Caller => path == real || !self.is_meant(path, words),
                By::Ceiling => true,
            };
            is_hidden.then_some(mask.why)
        })
    }

    /// Whether the words of a flag name a hidden path, or something in it.
    pub(super) fn is_meant(&self, hidden: &Path, words: Option<&Path>) -> bool {
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
    pub(super) fn is_masked_in(&self, tree: &Original, part: &Path) -> bool {
        let between = part.ancestors().take_while(|path| *path != tree.host);
        let mut inside = between.filter(|path| path.starts_with(&tree.host));
        self.is_masked(&tree.host, tree.words.as_deref()) || inside.any(|path| self.masks.contains_key(path))
    }

    /// Opens the way to a path in a masked directory. The stage can then see that the directory exists.
    pub(super) fn open_way(&mut self, place: &Path) {
        for mount in self.mounts.iter_mut() {
            match mount {
                Mount::Hidden { at, entry: EmptyEntry::Dir { mode: mode @ 0 }, .. }
                    if place.starts_with(&at) =>
                {
                    *mode = 0o555;
                }
                _ => {}
            }
        }
    }

    pub(super) fn private_places(&mut self) {
        self.mounts.push(Mount::Proc);
        self.mounts.push(Mount::Dev { shm: SHM_SIZE });
        let tmp = self.facts.tmp.map_or(TMP_SIZE, Size::get);
        self.mounts.push(match self.facts.tmp_dir {
            Some(host) => Mount::Writable { host: host.to_path_buf(), at: TMP.into(), why: Why::Temporary },
            None => tmp_in_memory(tmp),
        });
        for (at, size, mode) in [("/var/tmp", tmp, 0o1777), ("/run", RUN_SIZE, 0o755)] {
            self.mounts.push(Mount::Tmpfs { at: at.into(), size, mode });
        }
        // Of its own, so that the stage can neither rename it nor, as soon as all is in it, make a name there.
        self.mounts.push(Mount::Tmpfs { at: DIR.into(), size: RUN_SIZE, mode: 0o755 });
        if self.kind == View::Host {
            self.mounts.push(Mount::Tmpfs { at: "/sys".into(), size: EMPTY_DIR_SIZE, mode: 0o555 });
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

    pub(super) fn our_files(&mut self) {
        self.mounts.push(Mount::File {
            at: STAGE2.into(),
            bytes: Cow::Borrowed(self.facts.helper),
            mode: 0o555,
        });
        let about = Cow::Borrowed(AGENTS.as_bytes());
        self.mounts.push(Mount::File { at: README.into(), bytes: about, mode: 0o444 });
        if self.facts.nested == Nested::Pass {
            let about = Cow::Borrowed(b"A run inside this one executes its command as it is.\n".as_slice());
            self.mounts.push(Mount::File { at: NESTED.into(), bytes: about, mode: 0o444 });
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
                    self.mounts.push(Mount::Writable {
                        host: host.to_path_buf(),
                        at: CACHE.into(),
                        why: Why::Cache,
                    });
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

    /// Puts a file of exeat at a path of the system: mounted over an existing file, or created if the path does not exist.
    pub(super) fn cover(&mut self, at: PathBuf, text: String) {
        let bytes = Cow::Owned(text.into_bytes());
        let Some(way) = place::follow(&self.mounts, &at) else { return };
        match place::entry_at(&self.mounts, &way.place) {
            EntryAt::File => self.mounts.push(Mount::CoverFile { at: way.place, bytes }),
            EntryAt::Absent => self.mounts.push(Mount::File { at: way.place, bytes, mode: 0o444 }),
            // In a read-only tree that lacks the name there is nothing to cover and nothing can be made.
            EntryAt::Dir | EntryAt::Link { .. } | EntryAt::Closed(_) => {}
        }
    }

    pub(super) fn is_shown(&self, path: &Path) -> bool {
        let within = |tree: &Path| path.starts_with(tree);
        self.shown.iter().any(|tree| {
            within(tree)
                && !PRIVATE.map(Path::new).iter().any(|place| within(place) && !tree.starts_with(place))
        })
    }

    pub(super) fn toolchains(&mut self) {
        let mut roots = BTreeSet::new();
        let dirs = self.facts.path.map(std::env::split_paths).into_iter().flatten();
        for dir in dirs.filter(|dir| dir.is_absolute() && plain(dir)) {
            roots.extend(toolchain_roots(&dir, self.facts.home));
        }
        roots.extend(self.facts.named.iter().chain(&self.facts.asked).cloned());
        self.show_named(roots, Why::Tools);
    }

    /// Shows what PATH and variables name, but for what is shown already or holds too much.
    pub(super) fn show_named(&mut self, mut roots: BTreeSet<PathBuf>, why: Why) {
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
            self.show_real(&root, &real, why);
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
    pub(super) fn leave_out(&mut self, root: &Path, why: &str) {
        let line = format!("`{}` of PATH or a variable is left out: {why}", root.display());
        self.left_out.push(line.clone());
        self.notes.push(line);
    }

    /// Whether the trees that PATH and variables name may hold sockets of the host that are not hidden. A note names the first one.
    pub(super) fn tools_expose_sockets(&mut self) -> bool {
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
    pub(super) fn may_ask_for(&mut self, root: &Path, real: &Path) -> bool {
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
                    limit.label
                ));
                false
            }
            None => true,
        }
    }
}

/// Lists the trees that the programs in a directory of PATH need.
pub(super) fn toolchain_roots(dir: &Path, home: &Path) -> Vec<PathBuf> {
    if let Ok(below) = dir.strip_prefix(home) {
        let known = lists::TOOLCHAINS.iter().find(|(name, _)| below.starts_with(name));
        if let Some((_, needed)) = known {
            return needed.iter().map(|name| home.join(name)).collect();
        }
    }
    // `PREFIX/bin` needs the other directories in PREFIX, unless PREFIX is HOME or another directory for everything.
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
pub(super) fn hosts() -> String {
    let own = nix::sys::utsname::uname().ok();
    let own = own.and_then(|it| it.nodename().to_str()?.parse::<HostName>().ok());
    let own = own.map(|name| format!("127.0.0.1 {name}\n")).unwrap_or_default();
    format!(
        "127.0.0.1 localhost\n{own}::1 localhost ip6-localhost ip6-loopback\nff02::1 ip6-allnodes\nff02::2 ip6-allrouters\n"
    )
}

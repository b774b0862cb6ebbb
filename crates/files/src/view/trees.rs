//! The trees that a view shows, as flags and the working directory ask for them: bounded, covered, and in the order of their mounts.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::layout::{EmptyEntry, Mount, Why};
use crate::names::{is_absent, joined, links_in, true_name};
use crate::quarantine::{WatchList, beyond_search, is_quarantine_name};
use crate::request::{Bind, WORK, WorkDir};
use crate::walk::{WalkError, clean};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::geteuid;

use super::place::{EntryAt, Followed};
use super::protected::Protected;
use super::scratch::TMP_SIZE;
use super::work::{holds_home, unwritable};
use super::{Builder, By, Original, Places, Rank, Restricting, belongs, place, protected};
use crate::bounds::{Extent, Limit, Tops, describe_change};
use crate::fault::{Excess, FS_READ, FS_WRITE, FileFault, PathUse};
use crate::lists;

impl<'a> Builder<'a> {
    pub(super) fn mask(&mut self, at: PathBuf, is_dir: bool, why: Why) {
        // Who goes through a whole tree passes an empty directory without an error. Nobody looks for anything in a quarantine.
        let mode = if at.file_name().is_some_and(is_quarantine_name) { 0o555 } else { 0 };
        self.hide(at, if is_dir { EmptyEntry::Dir { mode } } else { EmptyEntry::File }, why);
    }

    pub(super) fn hide(&mut self, at: PathBuf, entry: EmptyEntry, why: Why) {
        self.mounts.push(Mount::Hidden { at, entry, why });
    }

    /// Returns the trees that the caller requests, within the bounds.
    pub(super) fn originals(&mut self, cwd: Option<Original>) -> Result<Vec<Original>, FileFault> {
        let mut trees: Vec<Original> = Vec::new();
        if let Some(mut tree) = cwd {
            let name = format!("the working directory `{}`", tree.host.display());
            tree.extent = self.bounded(&name, tree.extent.clone(), None);
            if tree.rank == Rank::Wide && tree.is_whole() {
                self.shown.push(tree.at.clone());
            }
            trees.push(tree);
        }
        trees.extend(self.repository(&trees));
        let work = match &self.files.work {
            Some(WorkDir::Host(dir)) => Some(Bind { host: dir.clone(), guest: WORK.into() }),
            _ => None,
        };
        let named = work.iter().map(|bind| (bind, true, PathUse::WorkDirectory));
        let named = named.chain(self.files.rw.iter().map(|bind| (bind, true, PathUse::Writable)));
        let named = named.chain(self.files.ro.iter().map(|bind| (bind, false, PathUse::ReadOnly)));
        for (bind, writable, what) in named {
            let end = self.facts.links.walk(&bind.host);
            let end = end.map_err(|error| FileFault::from_walk(what, &bind.host, error))?;
            let host = end.real.clone();
            let is_procfs = is_procfs(&end.file);
            if !writable && clean(&bind.guest) == clean(&bind.host) {
                self.restricting.push(Restricting { what, path: bind.host.clone(), end });
            }
            if let Some((link, real)) =
                self.facts.cwd_link.as_ref().filter(|_| writable && host == self.facts.cwd)
            {
                let (link, real) = (link.clone(), real.clone());
                return Err(FileFault::StrayLink { what, path: bind.host.clone(), link, real });
            }
            self.named.push((bind.host.clone(), host.clone()));
            if self.files.work.is_some() && bind.guest == Path::new(WORK) && what != PathUse::WorkDirectory {
                self.notes.push(format!(
                    "`{}` is not shown: the work directory is in its place",
                    bind.host.display()
                ));
                continue;
            }
            if is_procfs {
                return Err(FileFault::Procfs { what, path: bind.host.clone() });
            }
            let words = clean(&bind.host);
            // The same holds for what the host obeys: a link does not give the caller's word that a stage may write there.
            let obeyed = (writable && words != host)
                .then(|| protected::around(&host).filter(|path| !words.starts_with(path)))
                .flatten();
            if let Some(path) = obeyed {
                self.notes.push(format!(
                    "`{}` is read-only for the stage: it is `{}`, and programs on the host obey what is in `{}`",
                    bind.host.display(),
                    host.display(),
                    path.display()
                ));
            }
            let writable = writable && obeyed.is_none();
            let mut tree = Original::new(host, bind.guest.clone(), writable, Why::Requested);
            tree.words = Some(words);
            let name = format!("`{}`", bind.host.display());
            // The view shows the working directory whatever is declared, so a bind of it must not take it away.
            let is_cwd = trees.first().is_some_and(|first| {
                first.why == Why::WorkingDirectory && first.host == tree.host && first.at == clean(&tree.at)
            });
            let declared = self.declared.as_ref().filter(|_| what != PathUse::WorkDirectory);
            let declared = declared.map(|found| Limit::declared(found, is_cwd));
            tree.extent = self.bounded(&name, tree.extent.clone(), declared);
            trees.push(tree);
        }
        if self.declaration_grants() {
            self.join_declared(&mut trees);
        }
        Ok(trees)
    }

    /// Whether the binds are what the stage declares.
    fn declaration_grants(&self) -> bool {
        self.files.declared.as_ref().is_some_and(|declared| declared.grants)
    }

    /// Keeps writable what is declared to be read in a tree that the stage may write. Effects are a union, while a read-only bind of the
    /// caller's takes the right to write.
    fn join_declared(&mut self, trees: &mut Vec<Original>) {
        let writable: Vec<Original> =
            trees.iter().filter(|tree| tree.rank == Rank::Writable).cloned().collect();
        trees.retain_mut(|tree| {
            // The name of something hidden opens it, for reading alone.
            if tree.rank != Rank::ReadOnly || tree.why != Why::Requested || self.is_masked(&tree.host, None) {
                return true;
            }
            let around = writable.iter().filter(|outer| outer.extent.read.cover(&tree.host));
            let Some(outer) = around.max_by_key(|outer| outer.host.components().count()) else { return true };
            let restricts = |it: &Restricting| it.what == PathUse::ReadOnly && it.end.real == tree.host;
            self.restricting.retain(|it| !restricts(it));
            let below = tree.host.strip_prefix(&outer.host).unwrap_or(Path::new(""));
            // A link led there: it has the right to write at that name, too.
            tree.rank = Rank::Writable;
            tree.extent.write = outer.extent.write.meet(&tree.extent.read);
            joined(&outer.at, below) != clean(&tree.at)
        });
    }

    /// The repository of the working directory, as far as it lies elsewhere: its working tree read-only, and the directory that
    /// git writes to.
    pub(super) fn repository(&mut self, trees: &[Original]) -> Vec<Original> {
        let Some(cwd) = trees.first().filter(|tree| tree.rank != Rank::Wide && tree.is_whole()) else {
            return Vec::new();
        };
        let Some(found) = belongs::find(&cwd.host, self.facts.links) else { return Vec::new() };
        if let Some(top) = found.top.as_ref().filter(|_| self.facts.live.may_have_made_repository(&found.git))
        {
            let (top, git) = (top.display(), found.git.display());
            self.notes.push(format!(
                "the repository `{top}` of the working directory is not shown: a stage may have made `{git}`; `--ro {top}` shows it to one run, `exeat state trust {top}` to all"
            ));
            return Vec::new();
        }
        // What is declared to be read takes nothing.
        let ro = if self.declaration_grants() { &[][..] } else { &self.files.ro };
        let named: Vec<PathBuf> = ro.iter().chain(&self.files.rw).map(|bind| clean(&bind.guest)).collect();
        let is_read_only = ro.iter().any(|bind| clean(&bind.guest) == cwd.at);
        let may_write = cwd.rank == Rank::Writable && !is_read_only;
        let parts = found.top.into_iter().map(|top| (top, false)).chain([(found.git, may_write)]);
        let mut shown = Vec::new();
        for (part, writable) in parts {
            // A tree that a flag names has its own rights.
            if named.iter().any(|at| part.starts_with(at)) || self.is_masked(&part, None) {
                continue;
            }
            // A repository of settings in a home says nothing about the projects there.
            if holds_home(self.facts, &part).is_some() {
                break;
            }
            if let Some(why) = unwritable(self.facts, &self.own, &part) {
                self.notes.push(format!("the repository `{}` is not shown: {why}", part.display()));
                break;
            }
            let mut tree = Original::new(part.clone(), part.clone(), writable, Why::Repository);
            tree.extent = self.bounded(&format!("`{}`", part.display()), tree.extent.clone(), None);
            shown.push(tree);
        }
        shown
    }

    /// Bounds a tree by the ceilings and, if it is a bind, by the declaration.
    pub(super) fn bounded(&mut self, name: &str, mut extent: Extent, declared: Option<Limit>) -> Extent {
        for limit in self.limits.iter().chain(&declared) {
            let met = limit.meet(&extent);
            self.notes.extend(describe_change(name, &limit.label, &extent, &met));
            extent = met;
        }
        extent
    }

    /// Mounts what is left of the trees, and the caller's masks. Returns what is writable, host and guest, and what is watched
    /// in it.
    pub(super) fn trees(&mut self, mut trees: Vec<Original>) -> Result<(Places, Vec<WatchList>), FileFault> {
        // A read-only tree at the same place covers a writable one.
        let covering: BTreeSet<PathBuf> = trees
            .iter()
            .filter(|tree| tree.rank == Rank::ReadOnly && tree.is_whole())
            .map(|tree| tree.at.clone())
            .collect();
        trees.retain(|tree| tree.rank != Rank::Writable || !covering.contains(&tree.at));
        // Where a stage can make links.
        let loose = trees.iter().filter(|tree| tree.rank == Rank::Writable);
        let loose: Vec<PathBuf> = loose.map(|tree| tree.host.clone()).collect();
        let tops = trees.iter().filter(|tree| tree.rank == Rank::Writable).flat_map(|tree| {
            let parts = tree.extent.write.iter().map(Path::to_path_buf);
            parts.chain((!tree.extent.write.is_empty()).then(|| tree.host.clone()))
        });
        let tops: BTreeSet<PathBuf> = tops.collect();
        let settings = self.homes.iter().map(|home| home.join(lists::OWN_SETTINGS));
        let settings: Vec<PathBuf> = self.files.settings.iter().cloned().chain(settings).collect();
        let mut protected =
            protected::find(&tops, self.git_is_open, &self.let_through, &settings, self.facts)?;
        self.check_restricting(&tops)?;
        // A file that decided about this run decides about the next one, too.
        let deciding =
            self.restricting.iter().filter(|it| it.what == PathUse::Deciding).map(|it| &it.end.real);
        protected.paths.extend(deciding.filter(|path| tops.iter().any(|top| path.starts_with(top))).cloned());
        if self.host_mounts.are_below(&tops) {
            // A mount of the host's in a tree may show them a second time.
            let again = protected.paths.iter().flat_map(|path| self.host_mounts.aliases(path));
            let again = again.filter(|path| tops.iter().any(|top| path.starts_with(top)));
            let again: Vec<_> = again.collect();
            protected.paths.extend(again);
        }
        protected.watch_directories(&tops);
        let mut watched = std::mem::take(&mut protected.watched);
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
        if self.files.work == Some(WorkDir::Scratch) {
            // Deeper binds are mounted in it.
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
        self.show_outer_works(&protected.outer_works);
        for it in &mut watched {
            let WatchList {
                tree,
                names,
                patterns,
                links,
                pointers,
                bare,
                repositories,
                held,
                further,
                covered,
                ..
            } = it;
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
            held.retain(|dir| writable.iter().any(|(host, _)| tree.join(&dir.0).starts_with(host)));
            further.retain(|it| is_open(&it.dir));
            covered.retain(|dir| is_open(dir));
        }
        watched.retain(|it| !it.is_empty());
        self.lost.extend(watched.iter().flat_map(beyond_search));
        if self.git_is_open {
            self.lost.push("git's configuration and hooks are writable (--allow-write .git)".into());
        }
        self.notes.extend(self.lost.iter().cloned());
        Ok((writable, watched))
    }

    /// Shows the `.git` files of linked worktrees that are not shown: without its file, git takes a worktree for removed, and `git gc` and
    /// `git worktree prune` delete what the repository has of it.
    fn show_outer_works(&mut self, files: &BTreeSet<PathBuf>) {
        for git in files {
            let is_allowed = self.limits.iter().all(|limit| limit.allows(git, false))
                && self.why_masked(git, None).is_none()
                && self.facts.other.is_none_or(|other| other.reaches(git).1);
            if is_allowed && place::entry_at(&self.mounts, git) == EntryAt::Absent {
                self.bind(git, git, false, None, Why::Repository);
            }
        }
    }

    /// Refuses a path that restricts the stage and that a stage could have mean something else in the next run: by another link in
    /// its place, or by another name of the file.
    pub(super) fn check_restricting(&self, tops: &BTreeSet<PathBuf>) -> Result<(), FileFault> {
        for Restricting { what, path, end } in &self.restricting {
            let can_replace = |link: &&PathBuf| tops.iter().any(|top| link.starts_with(top));
            if let Some(link) = end.links.iter().find(can_replace) {
                let (path, link, real) = (path.clone(), link.clone(), end.real.clone());
                return Err(FileFault::StrayLink { what: *what, path, link, real });
            }
            let has_names = |about: &fs::Metadata| {
                about.is_file() && about.nlink() > 1 && about.uid() == geteuid().as_raw()
            };
            let is_in_reach = |about: &fs::Metadata| {
                tops.iter().any(|top| fs::metadata(top).is_ok_and(|top| top.dev() == about.dev()))
            };
            let has_other_name = |about: fs::Metadata| has_names(&about) && is_in_reach(&about);
            if *what == PathUse::Deciding && end.metadata().is_ok_and(has_other_name) {
                return Err(FileFault::SecondName { what: *what, path: path.clone() });
            }
        }
        Ok(())
    }

    /// Returns the mount point of a tree. In a tree of the host, links are followed as on the host; elsewhere the path is made as it was
    /// named. What was mounted since `first` is the caller's, and no link may lead over it.
    pub(super) fn settled(
        &self,
        tree: &Original,
        loose: &[PathBuf],
        first: usize,
    ) -> Result<PathBuf, FileFault> {
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
        if place != tree.at && later.iter().any(|mount| mount.at().starts_with(&place)) {
            return refused(format!(
                "a link leads to `{}`, where something is mounted already",
                place.display()
            ));
        }
        Ok(place)
    }

    /// Returns the path on the host of the entry at a place.
    pub(super) fn on_host(&self, place: &Path) -> Option<PathBuf> {
        match self.mounts.get(self.top(place)?)? {
            Mount::ReadOnly { host, at, .. } | Mount::Writable { host, at, .. } => {
                Some(joined(host, place.strip_prefix(at).ok()?))
            }
            _ => None,
        }
    }

    /// Mounts what is left of one tree.
    pub(super) fn tree(&mut self, tree: &Original, protected: &Protected, writable: &mut Places) {
        if !tree.is_whole() {
            self.cover_cut(tree);
        }
        for (host, may_write) in tree.extent.parts() {
            let below = host.strip_prefix(&tree.host).unwrap_or(Path::new(""));
            let at = joined(&tree.at, below);
            if self.is_masked_in(tree, &host) {
                if host == tree.host {
                    self.bind(&host, &at, false, tree.words.as_deref(), tree.why);
                }
                continue;
            }
            let may_write = may_write && !protected.covers(&host);
            let words = tree.words_for(&host);
            self.bind(&host, &at, may_write, words.as_deref(), tree.why);
            if may_write {
                self.protect(&host, &at, protected, words.as_deref());
                writable.push((host, at));
            }
        }
    }

    /// Keeps the covers that a partly shown tree would have brought.
    pub(super) fn cover_cut(&mut self, tree: &Original) {
        let Some((under, is_dir)) = self.covers(&tree.at) else { return };
        // The same is under it, read-only: shown by the view, or by what the bound in question does not bind.
        let is_same = self.is_read_only_view_of(&tree.at, &tree.host);
        if is_same || (!under && tree.extent.read.is_empty()) {
            return;
        }
        let entry = if is_dir { EmptyEntry::Dir { mode: 0o555 } } else { EmptyEntry::File };
        self.hide(tree.at.clone(), entry, Why::Ceiling);
    }

    /// Whether a tree of the host that is mounted already has something at a place, and whether that is a directory. `None`
    /// where no tree of the host's is.
    pub(super) fn beneath(&self, place: &Path) -> Option<(bool, bool)> {
        let (host, at) = match self.mounts.get(self.top(place)?)? {
            Mount::ReadOnly { host, at, .. } | Mount::Writable { host, at, .. } => (host, at),
            _ => return None,
        };
        let meta = fs::symlink_metadata(joined(host, place.strip_prefix(at).ok()?));
        Some(meta.map_or((false, true), |meta| (true, meta.is_dir())))
    }

    /// Works like [`beneath`](Self::beneath), and also finds mounts below the place.
    pub(super) fn covers(&self, place: &Path) -> Option<(bool, bool)> {
        let is_below = |mount: &Mount| match mount {
            Mount::ReadOnly { at, .. } | Mount::Writable { at, .. } => at != place && at.starts_with(place),
            _ => false,
        };
        self.beneath(place).or_else(|| self.mounts.iter().any(is_below).then_some((true, true)))
    }

    pub(super) fn is_read_only_view_of(&self, place: &Path, real: &Path) -> bool {
        match self.top(place).and_then(|number| self.mounts.get(number)) {
            Some(Mount::ReadOnly { host, at, .. }) => {
                let below = place.strip_prefix(at).unwrap_or(Path::new(""));
                true_name(&joined(host, below)).is_ok_and(|under| under == real)
            }
            _ => false,
        }
    }

    /// The names that the caller gave to masks, in the order in which they are mounted.
    pub(super) fn mask_places(&self) -> Vec<PathBuf> {
        let given = self.files.mask.iter().filter(|path| plain(path)).cloned();
        let real = self.masks.iter().filter(|(_, mask)| mask.by == By::Caller).map(|(path, _)| path.clone());
        let places: BTreeSet<PathBuf> = given.chain(real).collect();
        let mut places: Vec<PathBuf> = places.into_iter().collect();
        places.sort_by_key(|place| order(place, Rank::Mask));
        places
    }

    /// Hides whatever is shown under the name of a mask.
    pub(super) fn mask_place(&mut self, place: &Path) {
        let is_link = self.is_link(place);
        if let Some((true, is_dir)) = self.covers(place).filter(|_| !is_link) {
            self.pin(place);
            self.mask(place.to_path_buf(), is_dir, Why::Masked);
        }
    }

    pub(super) fn is_link(&self, place: &Path) -> bool {
        match self.top(place).and_then(|number| self.mounts.get(number)) {
            Some(Mount::ReadOnly { host, at, .. } | Mount::Writable { host, at, .. }) => {
                let below = place.strip_prefix(at).unwrap_or(Path::new(""));
                // A missing path is not a link.
                links_in(host, below).unwrap_or_else(|error| !is_absent(&error))
            }
            _ => false,
        }
    }

    /// Whether the stage sees a path of the host's somewhere, and whether it can write there.
    pub(super) fn sees(&self, real: &Path) -> Option<bool> {
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

    /// Refuses a stage that would not get what it declared.
    pub(super) fn check_declared(&mut self) -> Result<(), FileFault> {
        let (Some(found), Some(declared)) = (&self.declared, &self.files.declared) else { return Ok(()) };
        let read = found.read.iter().map(|path| (FS_READ, path, false));
        let mut paths = Vec::new();
        for (effect, path, write) in read.chain(found.write.iter().map(|path| (FS_WRITE, path, true))) {
            match self.sees(path) {
                Some(writable) if writable || !write => continue,
                _ => {}
            }
            let ceiling = self.limits.iter().find(|limit| !limit.allows(path, write));
            paths.push(Excess::path(effect, path, ceiling.map(|limit| limit.label.as_str())));
        }
        let mut excess = declared.beyond.clone();
        if declared.narrow {
            self.notes.extend(paths.into_iter().map(|path| format!("left out: {}", path.said)));
        } else {
            excess.append(&mut paths);
        }
        // Flags for paths that are not declared only keep the declaration from granting: another flag would not make them useful.
        let binds = self.files.ro.iter().chain(&self.files.rw);
        // A flag for the working directory changes what can be written there, whatever is declared.
        let is_idle = |bind: &Bind| !declared.covers(&bind.host) && clean(&bind.host) != self.facts.cwd;
        let helps = excess.iter().all(|one| one.flag.is_some()) && binds.into_iter().all(is_idle);
        let idle = if helps { declared.instead.clone() } else { Vec::new() };
        if excess.is_empty() { Ok(()) } else { Err(FileFault::Excess { excess, idle }) }
    }

    /// Makes the protected paths in a writable tree read-only there, but for what is let through in them.
    pub(super) fn protect(&mut self, host: &Path, at: &Path, protected: &Protected, words: Option<&Path>) {
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
            let is_deciding = |it: &Restricting| it.what == PathUse::Deciding && it.end.real == *path;
            let why = if self.restricting.iter().any(is_deciding) { Why::Deciding } else { Why::Protected };
            self.bind(path, &joined(at, below), false, words.as_deref(), why);
            for open in protected.holes(path) {
                if let Ok(below) = open.strip_prefix(host) {
                    self.bind(open, &joined(at, below), true, None, Why::LetThrough);
                }
            }
        }
    }
}

/// Whether an open entry is the process file system's.
pub(super) fn is_procfs(entry: impl AsFd) -> bool {
    fstatfs(entry).is_ok_and(|about| about.filesystem_type() == PROC_SUPER_MAGIC)
}

/// The order of mounts: wide trees, then by depth.
pub(super) fn order(at: &Path, rank: Rank) -> (bool, usize, PathBuf, Rank) {
    (rank != Rank::Wide, at.components().count(), at.to_path_buf(), rank)
}

/// Without `..`, which says nothing about where a path leads.
pub(super) fn plain(path: &Path) -> bool {
    path.components().all(|part| !matches!(part, Component::ParentDir))
}

//! Finds the names in writable trees that programs on the host obey later: existing paths, which become read-only, and missing ones,
//! which are watched. Reads the host and changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::git_path::jujutsu_path;
use crate::listing::{Listing, lacks};
use crate::names::{is_absent, links_in, open_plain};
use crate::protected::{self, LetThrough, Obeyed};
use crate::quarantine::{
    DirState, FurtherDown, HeldDir, Live, MAX_ENTRIES, MissingName, Pattern, REPOSITORY, WatchList,
    is_repository,
};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{SFlag, fstatat};

use super::Facts;
use super::closed::{self, closed_directory_above};
use super::git;
use crate::bounds::{Lookups, ResolvedPath, follow, resolve_path};
use crate::fault::FileFault;

/// The findings in all trees.
#[derive(Debug, Default)]
pub(super) struct Protected {
    /// Made read-only, by their places on the host.
    pub(super) paths: BTreeSet<PathBuf>,
    /// Watched.
    pub(super) watched: Vec<WatchList>,
    /// `.git` files of linked worktrees outside of their repositories' trees.
    pub(super) outer_works: BTreeSet<PathBuf>,
    /// Names that are let through, by their places on the host, whether they exist or not.
    pub(super) open: BTreeSet<PathBuf>,
    /// Names that are neither protected nor watched, for the caller.
    pub(super) lost: Vec<String>,
    /// Notes about directories that could not be read and are read-only.
    pub(super) notes: Vec<String>,
}

impl Protected {
    /// Whether a path is read-only to the stage: it is protected, or lies in what is, and is not let through there.
    pub(super) fn covers(&self, path: &Path) -> bool {
        self.paths.iter().any(|outer| self.keeps(outer, path))
    }

    /// Whether a path lies in a protected one, and not in what is let through there.
    pub(super) fn keeps(&self, outer: &Path, path: &Path) -> bool {
        path.starts_with(outer) && !self.holes(outer).any(|open| path.starts_with(open))
    }

    /// Has the directories watched that these paths are in, all of which are in the trees.
    pub(super) fn watch_directories(&mut self, trees: &BTreeSet<PathBuf>) {
        for path in &self.paths {
            let Some(tree) = trees.iter().find(|tree| path.starts_with(tree)) else { continue };
            let Some(dir) = path.strip_prefix(tree).ok().and_then(Path::parent) else { continue };
            let Some(dir) = dir.to_str() else {
                let line = format!("`{}` cannot be watched: its name is not UTF-8", tree.join(dir).display());
                if !self.lost.contains(&line) {
                    self.lost.push(line);
                }
                continue;
            };
            let known = self.watched.iter().position(|it| it.tree == *tree);
            let at = known.unwrap_or(self.watched.len());
            if known.is_none() {
                self.watched.push(WatchList { tree: tree.clone(), ..WatchList::default() });
            }
            if let Some(watched) = self.watched.get_mut(at) {
                watched.covered.insert(dir.to_owned());
                let below = path.strip_prefix(tree).ok().and_then(Path::to_str);
                watched.read_only.extend(below.map(str::to_owned));
            }
        }
    }

    /// Lists the names that are let through in a protected path.
    pub(super) fn holes<'p>(&'p self, outer: &'p Path) -> impl Iterator<Item = &'p Path> {
        let open = self.open.iter().map(PathBuf::as_path);
        open.filter(move |open| *open != outer && open.starts_with(outer))
    }
}

/// Looks into the trees, which are where they really are. `git_is_open`: git's configuration and hooks are given up.
/// `let_through`: names that are. `settings`: directories of exeat's.
pub(super) fn find(
    trees: &BTreeSet<PathBuf>,
    git_is_open: bool,
    let_through: &[LetThrough],
    settings: &[PathBuf],
    Facts { git: everywhere, live, .. }: &Facts<'_>,
) -> Result<Protected, FileFault> {
    let at_tops = |name: &LetThrough| trees.iter().map(|tree| tree.join(name.as_str())).collect::<Vec<_>>();
    let mut search = Search {
        trees,
        further: BTreeSet::new(),
        seen: HashSet::new(),
        live,
        paths: BTreeSet::new(),
        watched: BTreeMap::new(),
        missing: BTreeMap::new(),
        lost: Vec::new(),
        closed: BTreeSet::new(),
        outer_works: BTreeSet::new(),
        open: let_through.iter().flat_map(at_tops).collect(),
        opened: None,
        listed: None,
        lookups: Lookups::default(),
    };
    let given_up = |name: &str| git_is_open && name.starts_with(protected::GIT);
    let names: Vec<(&str, Obeyed)> = protected::names().filter(|(name, _)| !given_up(name)).collect();
    for tree in trees {
        search.listed = Some(Listed::read(tree));
        for (name, obeyed) in &names {
            search.find_name(tree, name, *obeyed);
        }
        search.listed = None;
        search.link(&tree.join(protected::GIT_LINK));
        search.jujutsu(tree);
        if !git_is_open {
            search.pointer(&tree.join(protected::GIT_LINK));
            search.bare(tree);
            search.repository(&tree.join(protected::GIT_LINK));
        }
        search.inside_of_git(tree, &names);
        search.on_the_way(tree, &names);
        if git_is_open {
            let git::GitFindings { closed, further, left, .. } =
                git::further_down(tree, search.around(everywhere));
            search.closed.extend(closed);
            search.further(tree, further, let_through);
            left.into_iter().for_each(|line| search.report_gap(line));
        } else {
            let further = search.obeyed_by_git(tree, everywhere);
            search.further(tree, further, let_through);
        }
    }
    settings.iter().for_each(|dir| search.settings(dir));
    for name in let_through {
        search.let_through(name)?;
    }
    let whole = let_through.iter().filter(|name| name.is_whole()).map(|name| name.as_str().to_owned());
    let whole: Vec<String> = whole.collect();
    for ((tree, name), obeyed) in search.missing {
        search.watched.entry(tree).or_default().names.push(MissingName { name, obeyed });
    }
    let watched = search.watched.into_iter().map(|(tree, list)| WatchList {
        tree: tree.to_path_buf(),
        let_through: if list.further.is_empty() { Vec::new() } else { whole.clone() },
        is_git_open: git_is_open,
        ..list
    });
    let watched = watched.collect();
    let notes = search.closed.iter().filter(|dir| {
        let mut above = dir.ancestors().skip(1);
        !above.any(|above| search.closed.contains(above))
    });
    let notes = closed::lines(notes);
    search.paths.extend(search.closed);
    let Search { paths, outer_works, open, lost, .. } = search;
    Ok(Protected { paths, watched, outer_works, open, lost, notes })
}

/// The protected path that a directory is, or lies in: the outermost one of its repository. Agents keep work trees of their own
/// in their directories, such as `.claude/worktrees/NAME`, and no stage could have made one there. Not those of git, which are
/// known by their repository.
pub(super) fn around(dir: &Path) -> Option<&Path> {
    let is_one = |above: &Path| {
        let bytes = above.as_os_str().as_encoded_bytes();
        let mut names = protected::names().filter(|(name, _)| !name.starts_with(protected::GIT));
        // To compare paths part by part takes long.
        names.any(|(name, _)| bytes.ends_with(name.as_bytes()) && above.ends_with(name))
    };
    let mut outermost = None;
    for above in dir.ancestors() {
        if is_one(above) {
            outermost = Some(above);
        }
        if fs::symlink_metadata(above.join(protected::GIT_LINK)).is_ok() {
            break;
        }
    }
    outermost
}

/// Directories further down, with their state and the entries in them that names of the table begin with.
type Further = Vec<(PathBuf, Option<DirState>, Vec<String>)>;

/// Entries below the top of one tree that are protected. Each takes a mount, and so does the directory that it is in.
const SETTINGS: usize = 128;

struct Search<'a> {
    trees: &'a BTreeSet<PathBuf>,
    /// Directories further down in which something is that the table has.
    further: BTreeSet<PathBuf>,
    /// Directories further down that were looked at.
    seen: HashSet<PathBuf>,
    /// Names that the stages of other runs made. They are not covered, because their own runs move them aside.
    live: &'a Live,
    paths: BTreeSet<PathBuf>,
    /// What is watched in each tree, but for the names that are missing.
    watched: BTreeMap<&'a Path, WatchList>,
    /// Names that are missing, each in its tree.
    missing: BTreeMap<(&'a Path, String), Obeyed>,
    lost: Vec<String>,
    /// Directories that could not be looked into.
    closed: BTreeSet<PathBuf>,
    /// See [`Protected::outer_works`].
    outer_works: BTreeSet<PathBuf>,
    /// Names that are let through.
    open: BTreeSet<PathBuf>,
    /// The directory that names were looked for in last. Most are in the same one.
    opened: Option<(PathBuf, File)>,
    /// The directory in which all names are looked for.
    listed: Option<Listed>,
    /// The remaining lookups of paths, for all trees.
    lookups: Lookups,
}

/// A directory in which all names are looked for, with the names that are in it and in its `.git`: most others are absent, and are not
/// asked for one by one.
struct Listed {
    dir: PathBuf,
    names: Option<Listing>,
    in_git: Option<Listing>,
}

impl Listed {
    fn read(dir: &Path) -> Self {
        // What lies behind a link has other names.
        let in_git = open_plain(&dir.join(protected::GIT_LINK)).ok().and_then(Listing::read);
        Self { dir: dir.to_path_buf(), names: Listing::read_path(dir), in_git }
    }

    /// Whether nothing is at a name in the directory.
    fn lacks(&self, name: &str) -> bool {
        let in_git = name.strip_prefix(protected::GIT);
        lacks(self.names.as_ref(), name) || in_git.is_some_and(|name| lacks(self.in_git.as_ref(), name))
    }
}

impl<'a> Search<'a> {
    fn around<'s>(&'s self, everywhere: &'s git::Everywhere) -> git::Around<'s> {
        git::Around { everywhere, live: self.live, lookups: &self.lookups }
    }

    /// Looks for a name, or for all names of a pattern, in a directory.
    fn find_name(&mut self, dir: &Path, name: &str, obeyed: Obeyed) {
        let path = dir.join(name);
        if self.open.contains(&path) {
            return;
        }
        if protected::is_pattern(name) {
            return self.find_pattern(dir, name, obeyed);
        }
        match self.has_links(dir, name) {
            _ if self.live.has_made(&path) => self.missing(&path, obeyed),
            Ok(false) => drop(self.paths.insert(path)),
            Ok(true) => self.behind_links(&path, obeyed),
            Err(error) => self.unseen(&path, &error, obeyed),
        }
    }

    /// Protects a directory of exeat's settings, there or not. A policy in it bounds later runs, and admits that of a project.
    fn settings(&mut self, dir: &Path) {
        let real =
            dir.parent().and_then(follow).zip(dir.file_name()).map(|((_, above), name)| above.join(name));
        for dir in [Some(dir.to_path_buf()), real].into_iter().flatten() {
            let inner = self.trees.iter().filter(|tree| tree.starts_with(&dir)).cloned();
            self.paths.extend(inner);
            if let Some((tree, below)) = self.watchable(self.tree_of(&dir), &dir) {
                self.find_name(tree, &below, Obeyed::WhenStarted);
            }
        }
    }

    /// Returns the lists for a directory in which all names are looked for.
    fn listed_in(&self, dir: &Path) -> Option<&Listed> {
        self.listed.as_ref().filter(|listed| listed.dir == dir)
    }

    /// Whether a part of a name in a directory is a symbolic link.
    fn has_links(&mut self, dir: &Path, name: &str) -> io::Result<bool> {
        if self.listed_in(dir).is_some_and(|listed| listed.lacks(name)) {
            return Err(Errno::ENOENT.into());
        }
        let open = match &mut self.opened {
            Some((known, open)) if known == dir => open,
            other => {
                let open = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(dir)?;
                &mut other.insert((dir.to_path_buf(), open)).1
            }
        };
        let ends = name.match_indices('/').map(|(end, _)| end).chain([name.len()]);
        for part in ends.filter_map(|end| name.get(..end)) {
            let stat = fstatat(&*open, part, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks for the names that a pattern stands for, and has new ones watched.
    fn find_pattern(&mut self, dir: &Path, name: &str, obeyed: Obeyed) {
        let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
        let Some((at, names)) = self.entries_for(dir, above, last) else { return };
        let is_one =
            |name: &String| protected::matches_pattern(last, name) && !self.live.has_made(&at.join(name));
        let mut known: Vec<String> = names.into_iter().filter(is_one).collect();
        // A name that is let through counts as known, whether it exists or not.
        let let_through = self.open.iter().filter(|open| open.parent() == Some(&dir.join(above)));
        let let_through = let_through.filter_map(|open| open.file_name()?.to_str().map(str::to_owned));
        let let_through: BTreeSet<String> =
            let_through.filter(|name| protected::matches_pattern(last, name)).collect();
        for entry in known.iter().filter(|entry| !let_through.contains(*entry)) {
            self.find_name(&at, entry, obeyed);
        }
        known.extend(let_through);
        let found = self.tree_of(&at).or_else(|| self.own_tree(&at));
        let Some((tree, dir)) = self.watchable(found, &at) else { return };
        let pattern = Pattern { dir, name: last.to_owned(), known, obeyed };
        self.watched.entry(tree).or_default().patterns.push(pattern);
    }

    /// Follows the way to a directory and lists it for the last part of a pattern. `None` where no way leads there, or the directory is
    /// closed.
    fn entries_for(&mut self, dir: &Path, above: &str, last: &str) -> Option<(PathBuf, Vec<String>)> {
        if let Some(listed) = self.listed_in(dir) {
            if let Some(names) = listed.names.as_ref().filter(|_| above.is_empty()) {
                return Some((dir.to_path_buf(), names.names().to_vec()));
            }
            if !above.is_empty() && listed.lacks(above) {
                return Some((dir.join(above), Vec::new()));
            }
        }
        // Where a link is on the way, the exact names beside the pattern have it watched.
        let (_, at) = follow(&dir.join(above))?;
        let mut names = Vec::new();
        match fs::read_dir(&at) {
            Ok(entries) => {
                let mut entries = entries.flatten();
                let some = entries.by_ref().take(MAX_ENTRIES);
                names.extend(some.filter_map(|it| it.file_name().into_string().ok()));
                if entries.next().is_some() {
                    self.report_gap(format!(
                        "`{}` holds more than {MAX_ENTRIES} names: not all of `{last}` in it are protected",
                        at.display()
                    ));
                }
            }
            Err(error) if is_absent(&error) => {}
            Err(_) => {
                if let Some(closed) = closed_directory_above(&at) {
                    self.close(closed);
                    return None;
                }
                // In another user's directory, which the stage may rename away all the same and make anew.
            }
        }
        Some((at, names))
    }

    /// Watches a missing name. If it cannot be read, the directory that prevents that becomes read-only.
    fn unseen(&mut self, path: &Path, error: &io::Error, obeyed: Obeyed) {
        if is_absent(error) {
            return self.missing(path, obeyed);
        }
        match closed_directory_above(path) {
            Some(closed) => self.close(closed),
            // It is in another user's directory, which the stage may rename away and make anew.
            None => self.missing(path, obeyed),
        }
    }

    /// Makes a directory read-only that keeps a path from being read, if it is in a tree.
    fn close(&mut self, closed: PathBuf) {
        let is_in_tree = self.trees.iter().any(|tree| closed.starts_with(tree));
        self.closed.extend(is_in_tree.then_some(closed));
    }

    /// Watches a missing name if it would be in a tree.
    fn missing(&mut self, path: &Path, obeyed: Obeyed) {
        if self.open.contains(path) {
            return;
        }
        let Some(name) = self.watchable(self.tree_of(path), path) else { return };
        let known = self.missing.entry(name).or_insert(obeyed);
        *known = obeyed.min(*known);
    }

    /// Follows the links of a name. The target is protected as far as a stage could write it, and each link that a stage could replace
    /// is watched.
    fn behind_links(&mut self, path: &Path, obeyed: Obeyed) {
        let Some(ResolvedPath { links, place, .. }) = resolve_path(path, &self.lookups) else {
            let is_spent = self.lookups.are_spent();
            let tree = self.tree_of(path).filter(|_| is_spent).map(|(tree, _)| git::too_much(tree));
            let line = || format!("`{}` leads through too many links and is not protected", path.display());
            return self.report_gap(tree.unwrap_or_else(line));
        };
        for link in links {
            let Some((tree, below)) = self.tree_of(&link) else { continue };
            match (below.to_str(), fs::read_link(&link)) {
                (Some(below), Ok(target)) => {
                    let entry = (below.to_owned(), target);
                    let names = self.watched.entry(tree).or_default();
                    if !names.links.contains(&entry) {
                        names.links.push(entry);
                    }
                }
                _ => self.report_gap(format!("the link `{}` cannot be watched", link.display())),
            }
        }
        if self.tree_of(&place).is_none() || self.open.contains(&place) {
            return;
        }
        match fs::symlink_metadata(&place) {
            Ok(_) if self.live.has_made(&place) => self.missing(&place, obeyed),
            Ok(_) => drop(self.paths.insert(place)),
            Err(error) => self.unseen(&place, &error, obeyed),
        }
    }

    /// The outermost tree that a path lies in, and its name there.
    fn tree_of<'p>(&self, path: &'p Path) -> Option<(&'a Path, &'p Path)> {
        let inside = |tree: &'a PathBuf| Some((tree.as_path(), path.strip_prefix(tree).ok()?));
        self.trees.iter().filter_map(inside).find(|(_, below)| *below != Path::new(""))
    }

    /// The tree that a path is, like [`tree_of`](Self::tree_of).
    fn own_tree(&self, path: &Path) -> Option<(&'a Path, &'static Path)> {
        Some((self.trees.get(path)?, Path::new("")))
    }

    /// Returns the tree that a path was found in, and its name there as the lists have it. A name that is not UTF-8 is reported.
    fn watchable(&mut self, found: Option<(&'a Path, &Path)>, path: &Path) -> Option<(&'a Path, String)> {
        let (tree, below) = found?;
        let name = below.to_str();
        if name.is_none() {
            self.report_gap(format!("`{}` cannot be watched: its name is not UTF-8", path.display()));
        }
        Some((tree, name?.to_owned()))
    }

    /// A `.git` that says in which directory the repository is.
    fn link(&mut self, path: &Path) {
        if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()) && !self.live.has_made(path) {
            self.paths.insert(path.to_path_buf());
        }
    }

    /// Watches a `.git` that is not a link, so that no file or link that leads elsewhere replaces it. A link is watched as a link.
    fn pointer(&mut self, path: &Path) {
        if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink()) {
            return;
        }
        let Some((tree, below)) = self.watchable(self.tree_of(path), path) else { return };
        self.watched.entry(tree).or_default().pointers.push(below);
    }

    /// Jujutsu's repository, which a file may say the place of, too, relative to its own directory. The links on the way are
    /// watched with the configuration in it.
    fn jujutsu(&mut self, tree: &Path) {
        let Some((_, repo)) = follow(&tree.join(protected::JJ_LINK)) else { return };
        if self.tree_of(&repo).is_none() {
            return;
        }
        self.pointer(&repo);
        if fs::symlink_metadata(&repo).is_ok_and(|meta| meta.is_file())
            && let Some(above) = repo.parent()
        {
            self.behind_links(
                &above.join(git::path_of(&repo, jujutsu_path).unwrap_or_default()).join("config.toml"),
                Obeyed::AtOnce,
            );
            self.link(&repo);
        }
    }

    /// Without a `.git` that it can use, git takes the directory itself for the repository, if it looks like one. Where it does
    /// already, what git obeys in it is protected; where it does not, a stage is not to make it one.
    fn bare(&mut self, tree: &Path) {
        let is_there = |name: &str| fs::symlink_metadata(tree.join(name)).is_ok();
        if is_repository(is_there) {
            self.repository(tree);
            for name in protected::names_in_git() {
                self.find_name(tree, name, Obeyed::AtOnce);
            }
            return;
        }
        for name in REPOSITORY.into_iter().filter(|name| !is_there(name)) {
            let path = tree.join(name);
            let Some((tree, below)) = self.tree_of(&path) else { continue };
            match below.to_str() {
                Some(below) => self.watched.entry(tree).or_default().bare.push(below.to_owned()),
                None => {
                    self.report_gap(format!("`{}` cannot be watched: its name is not UTF-8", below.display()))
                }
            }
        }
    }

    /// A repository's directory, which may be a tree itself.
    fn repository(&mut self, dir: &Path) {
        let found = self.tree_of(dir).or_else(|| self.own_tree(dir));
        let Some((tree, below)) = self.watchable(found, dir) else { return };
        let repositories = &mut self.watched.entry(tree).or_default().repositories;
        if !repositories.contains(&below) {
            repositories.push(below);
        }
    }

    /// A tree in a repository's `.git`: the names begin above the tree.
    fn inside_of_git(&mut self, tree: &Path, names: &[(&str, Obeyed)]) {
        for dir in tree.ancestors().filter(|dir| dir.ends_with(protected::GIT_LINK)) {
            if names.iter().any(|(name, _)| name.starts_with(protected::GIT)) {
                self.repository(dir);
            }
            for (name, obeyed) in names {
                if let Some(name) = name.strip_prefix(protected::GIT) {
                    self.find_name(dir, name, *obeyed);
                }
            }
        }
    }

    /// A tree that a name leads through, such as a `.cargo`: the name begins above the tree.
    fn on_the_way(&mut self, tree: &Path, names: &[(&str, Obeyed)]) {
        for (name, obeyed) in names.iter().filter(|(name, _)| !name.starts_with(protected::GIT)) {
            for way in
                Path::new(name).ancestors().skip(1).filter(|way| *way != Path::new("") && tree.ends_with(way))
            {
                if let Some(dir) = tree.ancestors().nth(way.components().count()) {
                    self.find_name(dir, name, *obeyed);
                }
            }
        }
    }

    /// Protects what git on the host would obey elsewhere in a tree. Returns the directories in which [`Search::further`] looks.
    fn obeyed_by_git(&mut self, tree: &'a Path, everywhere: &git::Everywhere) -> Further {
        let git::GitFindings {
            directories,
            held,
            outer_works,
            links,
            named,
            turns,
            closed,
            further,
            everywhere,
            left,
        } = git::obeyed(tree, self.around(everywhere));
        self.outer_works.extend(outer_works);
        self.watched.entry(tree).or_default().everywhere = everywhere;
        self.closed.extend(closed);
        for (dir, names) in directories {
            self.repository(&dir);
            for name in names {
                self.find_name(&dir, name, Obeyed::AtOnce);
            }
        }
        for dir in held {
            let Some((tree, below)) = self.tree_of(&dir) else { continue };
            self.watched.entry(tree).or_default().held.push(HeldDir(below.to_path_buf()));
        }
        for link in links {
            self.link(&link);
        }
        for path in named {
            self.behind_links(&path, Obeyed::AtOnce);
        }
        for turn in turns {
            self.pointer(&turn);
        }
        for line in left {
            self.report_gap(line);
        }
        further
    }

    /// Looks for the names of the table in directories further down, and has these watched for more.
    fn further(&mut self, tree: &Path, found: Further, let_through: &[LetThrough]) {
        let mut room = SETTINGS;
        for (dir, state, entries) in found {
            // A separate tree has been searched already, and the contents of a protected directory are protected with it.
            if !self.seen.insert(dir.clone())
                || self.trees.contains(&dir)
                || dir.ancestors().any(|above| self.paths.contains(above))
            {
                continue;
            }
            if !entries.is_empty() {
                self.open.extend(let_through.iter().map(|name| dir.join(name.as_str())));
            }
            for entry in &entries {
                if room == 0 {
                    self.report_gap(format!(
                        "editor and agent settings and the like below the top of `{}` beyond the first {SETTINGS} are not protected",
                        tree.display()
                    ));
                    break;
                }
                room -= 1;
                for (name, obeyed) in protected::names_from(entry) {
                    // A pattern that is a name's first part stands for the entry.
                    let is_entry = !name.contains('/');
                    if !(is_entry && self.open.contains(&dir.join(name))) {
                        self.find_name(&dir, if is_entry { entry } else { name }, obeyed);
                    }
                }
            }
            if !entries.is_empty() {
                self.further.insert(dir.clone());
            }
            let Some((tree, below)) = self.watchable(self.tree_of(&dir), &dir) else { continue };
            let it = FurtherDown { dir: below, known: entries, state };
            self.watched.entry(tree).or_default().further.push(it);
        }
    }

    /// Says what is let through. In a protected directory that is only what stands there: nothing new can be made in one that is
    /// read-only, and one that is missing is moved aside as a whole.
    fn let_through(&mut self, name: &LetThrough) -> Result<(), FileFault> {
        if name.is_whole() {
            self.report_gap(format!(
                "`{name}` is writable, and stays as the stage leaves it (--allow-write)"
            ));
            return Ok(());
        }
        let mut is_any = self.trees.is_empty();
        // Git's names are released at the top alone.
        let further = self.further.iter().filter(|_| !name.is_of_git());
        let dirs: Vec<PathBuf> = self.trees.iter().chain(further).cloned().collect();
        for tree in &dirs {
            let path = tree.join(name.as_str());
            let is_there = self.paths.contains(&tree.join(name.entry()))
                && matches!(links_in(tree, Path::new(name.as_str())), Ok(false));
            if is_there {
                is_any = true;
                self.report_gap(format!(
                    "`{}` is writable, and stays as the stage leaves it (--allow-write)",
                    path.display()
                ));
            } else {
                self.open.remove(&path);
            }
        }
        if is_any { Ok(()) } else { Err(FileFault::NothingToLetThrough { name: name.clone() }) }
    }

    fn report_gap(&mut self, line: String) {
        if !self.lost.contains(&line) {
            self.lost.push(line);
        }
    }
}

//! Finds what git on the host obeys in a writable tree, in addition to the names that are the same in every repository: repositories
//! further down, submodules, linked worktrees, and paths that a configuration names.
//!
//! Looks and changes nothing. Everything is bounded: what is not looked at is said. A stage of an earlier run may have made
//! what is found, and more than is looked at.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use crate::git_path::{ReadPath, commondir_path, git_file_path, gitdir_path};
use crate::names::{is_absent, true_name};
use crate::protected::{self, is_first_part};
use crate::quarantine::{
    DirState, Live, NamedEverywhere, first_parts_in, is_git_dir, is_gits_own, is_quarantine_name,
    is_repository,
};
use crate::walk::clean;
use nix::unistd::geteuid;

use super::closed::{closed_directory_above, may_search};
use crate::bounds::{LONGEST_PATH, Lookups, ResolvedPath, resolve_path};

mod everywhere;
mod files;

use crate::git_config::{Setting, resolve_value};
pub use everywhere::Everywhere;
use files::{Files, Unread, path_in};

/// The maximal depth of repositories below a tree: `tree/a/b/.git`.
const DEPTH: usize = 2;
/// Directories that are looked at, in one tree.
const DIRECTORIES: usize = 8192;
/// Names that are read for that, files among them.
const NAMES: usize = 1 << 18;
/// Repositories in one tree that have a working tree in it, and as many submodules and linked worktrees that are known from a
/// repository's directory alone. Each takes a few mounts.
const REPOSITORIES: usize = 32;
/// The maximal depth of submodules in `.git/modules`: names may contain slashes, and submodules may have submodules.
const MODULE_DEPTH: usize = 8;
/// Files that one configuration includes, and those include.
const INCLUDES: usize = 16;
/// Places that configurations of one tree name. Each is looked at, and watched where there is nothing.
const NAMED: usize = 256;
/// Directories in one tree that cannot be looked into. Each is a mount.
const CLOSED: usize = 32;

/// Directories that hold what was installed or built: their repositories are others' and nobody works in them.
const PASSED_OVER: &[&str] =
    &["node_modules", "target", "vendor", "venv", "dist", "build", "__pycache__", "site-packages"];

/// Names in the directory of a linked worktree, in the repository that it belongs to.
const OF_WORKTREES: &[&str] = &["commondir", "gitdir", "config.worktree"];

/// The findings in a tree, without anything outside of it.
#[derive(Debug, Default)]
pub(super) struct GitFindings {
    /// Directories, each with names in it that git obeys. Not the tree itself, nor the `.git` in it.
    pub(super) directories: Vec<(PathBuf, Vec<&'static str>)>,
    /// Directories of submodules and linked worktrees, whether they are among these or beyond what there is room for.
    pub(super) held: Vec<PathBuf>,
    /// `.git` files of linked worktrees that lie elsewhere and whose files here lead back to them.
    pub(super) outer_works: BTreeSet<PathBuf>,
    /// `.git` of repositories further down: read-only where it is a file.
    pub(super) links: BTreeSet<PathBuf>,
    /// Paths that configurations name: hooks, programs, and included files. The key is the real path; the value has the written paths
    /// that lead through links in the tree.
    pub(super) named: BTreeSet<PathBuf>,
    /// Directories before a `..` in such a path: a link that replaces one would lead the path elsewhere.
    pub(super) turns: BTreeSet<PathBuf>,
    /// Directories that could not be read.
    pub(super) closed: BTreeSet<PathBuf>,
    /// Directories further down, each with its state and the entries that names of the table of protected names begin with.
    pub(super) further: Vec<(PathBuf, Option<DirState>, Vec<String>)>,
    /// Relative paths that the user's configuration names.
    pub(super) everywhere: Vec<NamedEverywhere>,
    /// Notes for the caller about what was not read.
    pub(super) left: Vec<String>,
}

/// The surroundings of a tree that is searched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) everywhere: &'a Everywhere,
    pub(super) live: &'a Live,
    /// The remaining lookups of paths, for all trees.
    pub(super) lookups: &'a Lookups,
}

/// Looks into a tree.
pub(super) fn obeyed(tree: &Path, around: Around<'_>) -> GitFindings {
    obeyed_within(tree, around, DIRECTORIES)
}

fn obeyed_within(tree: &Path, around: Around<'_>, most: usize) -> GitFindings {
    let mut search = Search::new(tree, around, most);
    // They may lie in the tree themselves, or lead there, as where it holds the user's settings.
    for file in search.of_the_user() {
        search.protect_named(&file);
    }
    search.everywhere();
    // All of them, as a stage can make the nearest invalid: git then goes on to the next.
    for above in tree.ancestors() {
        for dirs in search.repositories_at(above) {
            if above == tree || search.is_trusted(above, &dirs) {
                search.repository(&dirs, above);
            }
        }
    }
    search.submodules();
    search.below();
    search.add_noted();
    search.add_closed();
    search.found
}

/// Looks for what is further down in a tree and no repository's.
pub(super) fn further_down(tree: &Path, around: Around<'_>) -> GitFindings {
    let mut search = Search::new(tree, around, DIRECTORIES);
    search.below();
    search.add_closed();
    let GitFindings { closed, further, left, .. } = search.found;
    GitFindings { closed, further, left, ..GitFindings::default() }
}

/// The values of configurations that name a place.
#[derive(Default)]
struct Values {
    /// Directories of hooks.
    hooks: BTreeSet<OsString>,
    /// Programs, and a template of repositories.
    programs: BTreeSet<OsString>,
    /// Other values, which count only where they are files.
    files: BTreeSet<OsString>,
    worktree: Option<OsString>,
}

/// Something that may be a repository in the tree, and when it was made.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// The tree's `.gitmodules` does not name it, which no stage could have written.
    is_unnamed: bool,
    /// A stage makes younger ones, though it can give the name to an older directory (statx(2), `stx_btime`).
    born: Option<SystemTime>,
    what: What,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The top of a working tree.
    Work(PathBuf),
    /// The directory of a submodule, in the repository of what it is a part of.
    Module(PathBuf),
    /// The directory of a linked worktree.
    Worktree(PathBuf),
}

struct Search<'a> {
    tree: &'a Path,
    around: Around<'a>,
    found: GitFindings,
    /// Directories that are looked at: so many in `.git`, and so many further down.
    most: usize,
    /// Directories that can still be looked at.
    room: usize,
    /// Names that can still be read.
    names: usize,
    next: Vec<Candidate>,
    /// Directories that could not be read.
    closed: BTreeSet<PathBuf>,
    /// Repositories' directories: a linked worktree leads back to the one that lists it.
    searched: BTreeSet<PathBuf>,
    /// Paths that configurations have named: the same one leads to the same place.
    followed: HashSet<PathBuf>,
    files: Files,
}

impl<'a> Search<'a> {
    fn new(tree: &'a Path, around: Around<'a>, most: usize) -> Self {
        Self {
            tree,
            around,
            found: GitFindings::default(),
            most,
            room: most,
            names: NAMES,
            next: Vec::new(),
            closed: BTreeSet::new(),
            searched: BTreeSet::new(),
            followed: HashSet::new(),
            files: Files::default(),
        }
    }

    /// The directories of the repositories that git finds in a directory: of each its own, and the one that it shares with
    /// others.
    fn repositories_at(&mut self, work: &Path) -> Vec<Vec<PathBuf>> {
        let git = work.join(".git");
        let by_git = match fs::metadata(&git) {
            Ok(meta) if meta.is_dir() => Some(git),
            Err(error) if is_absent(&error) => None,
            Err(_) => {
                self.note_closed(&git);
                None
            }
            // gitrepository-layout(5): a file that says where the directory is.
            Ok(_) => self.path_in(&git, git_file_path).and_then(|path| self.resolve(&work.join(path))),
        };
        let itself = is_repository(|name| fs::symlink_metadata(work.join(name)).is_ok());
        let dirs = by_git.into_iter().chain(itself.then(|| work.to_path_buf())).collect::<Vec<_>>();
        let of = |own: PathBuf| {
            let common = self.path_in(&own.join("commondir"), commondir_path);
            let common = common.and_then(|common| self.resolve(&own.join(common)));
            std::iter::once(own).chain(common).collect()
        };
        dirs.into_iter().map(of).collect()
    }

    /// Returns the path that a file contains. git cannot use a file that cannot be read either, but may be able to later.
    fn path_in(&mut self, file: &Path, read_path: ReadPath) -> Option<PathBuf> {
        match path_in(file, read_path) {
            Ok(path) => Some(path),
            Err(unread) => {
                self.unread(file, &unread);
                None
            }
        }
    }

    /// Notes that a file could not be read completely.
    fn unread(&mut self, file: &Path, unread: &Unread) {
        let why = match unread {
            Unread::Absent => return,
            Unread::Closed => return self.note_closed(file),
            Unread::Kernel => "is the kernel's and is not read",
            Unread::Rest => "is too large to be read",
            Unread::Spent => "is too large to be read, with what was read before it",
        };
        self.report_gap(format!("`{}` {why}: what it names is not protected", file.display()));
    }

    /// Notes what keeps a path from being looked at.
    fn note_closed(&mut self, path: &Path) {
        let Some(closed) = closed_directory_above(path).filter(|closed| closed.starts_with(self.tree)) else {
            return;
        };
        if fs::symlink_metadata(&closed).is_ok_and(|meta| meta.is_dir()) {
            self.closed.insert(closed);
        } else {
            self.report_gap(format!("`{}` cannot be read: what it names is not protected", closed.display()));
        }
    }

    /// Adds what could not be looked into, the oldest first: a stage may have closed as many as it likes.
    fn add_closed(&mut self) {
        let closed = std::mem::take(&mut self.closed);
        let mut outer: Vec<PathBuf> = Vec::new();
        for dir in closed {
            if !outer.last().is_some_and(|outer| dir.starts_with(outer)) {
                outer.push(dir);
            }
        }
        if outer.len() > CLOSED {
            self.report_gap(format!(
                "of {} directories in `{}` that are closed only the oldest {CLOSED} are protected: repositories may be in them",
                outer.len(),
                self.tree.display()
            ));
            outer.sort_by_cached_key(|path| born(path));
            outer.truncate(CLOSED);
        }
        self.found.closed.extend(outer);
    }

    /// The settings of a file. What is not read of it is said.
    fn settings(&mut self, file: &Path) -> Rc<[Setting]> {
        let (settings, unread) = self.files.settings(file);
        if let Some(unread) = unread {
            self.unread(file, &unread);
        }
        settings
    }

    /// Whether git obeys a repository above the tree: not one that somebody else owns, unless it was told to (git-config(1),
    /// `safe.directory`). Whoever owns the tree is asked as the user is: root's stage may work in another's tree.
    fn is_trusted(&mut self, work: &Path, dirs: &[PathBuf]) -> bool {
        let owner = |path: &Path| fs::symlink_metadata(path).ok().map(|meta| meta.uid());
        let ours = [Some(geteuid().as_raw()), owner(self.tree)];
        let own = dirs.first().map(PathBuf::as_path);
        let is_ours = |path: &Path| ours.contains(&owner(path));
        let git = work.join(".git");
        let mut is_safe = || {
            let mut files = self.of_the_user().into_iter();
            files.any(|file| self.settings(&file).contains(&Setting::SafeDirectory))
        };
        let link = fs::symlink_metadata(&git).is_ok().then_some(git.as_path());
        [Some(work), link, own].into_iter().flatten().all(is_ours) || is_safe()
    }

    /// The machine's configuration and the user's, as git at the top of the tree finds them.
    fn of_the_user(&self) -> Vec<PathBuf> {
        self.around.everywhere.files.iter().map(|file| self.tree.join(file)).collect()
    }

    /// Adds what a repository with these directories names for its working tree, and notes its submodules and worktrees.
    fn repository(&mut self, dirs: &[PathBuf], work: &Path) {
        for dir in dirs {
            self.directory(dir);
        }
        self.configuration(dirs, work);
    }

    /// Adds a repository's directory, and notes its submodules and worktrees. Outside of the tree is nothing of a stage's.
    fn directory(&mut self, dir: &Path) {
        if !dir.starts_with(self.tree) || !self.searched.insert(dir.to_path_buf()) {
            return;
        }
        if dir != self.tree && dir != self.tree.join(".git") {
            let is_shared = fs::symlink_metadata(dir.join("commondir")).is_ok();
            let names = if is_shared { OF_WORKTREES.to_vec() } else { protected::names_in_git().collect() };
            self.found.directories.push((dir.to_path_buf(), names));
        }
        self.modules(&dir.join("modules"), MODULE_DEPTH);
        let worktrees = self.children(&dir.join("worktrees"));
        for worktree in self.oldest(worktrees) {
            self.found.held.push(worktree.clone());
            self.modules(&worktree.join("modules"), MODULE_DEPTH);
            self.note(true, What::Worktree(worktree));
        }
    }

    /// Notes submodules' directories: those with a HEAD. One that git does not take for a repository may hold others.
    fn modules(&mut self, dir: &Path, depth: usize) {
        let mut children = self.children(dir);
        if is_git_dir(dir) {
            children.retain(|child| child.file_name().is_some_and(|name| !is_gits_own(name)));
        }
        let children = self.oldest(children);
        if depth == 0 && !children.is_empty() {
            return self.report_gap(format!(
                "submodules in `{}` lie too deep, and are not protected",
                dir.display()
            ));
        }
        for module in children {
            if fs::symlink_metadata(module.join("HEAD")).is_ok() {
                self.found.held.push(module.clone());
                self.note(true, What::Module(module.clone()));
            }
            self.modules(&module, depth - 1);
        }
    }

    /// Notes what `.gitmodules` says.
    fn submodules(&mut self) {
        for setting in self.settings(&self.tree.join(".gitmodules")).iter() {
            if let Setting::Submodule(path) = setting {
                let work = clean(&self.tree.join(path));
                if work.starts_with(self.tree) && work != self.tree {
                    self.note_work(false, work);
                }
            }
        }
    }

    /// Notes repositories further down, and what else programs obey there.
    fn below(&mut self) {
        // Whatever was found in `.git`.
        (self.room, self.names) = (self.most, NAMES);
        let mut level = vec![self.tree.to_path_buf()];
        for _ in 0..DEPTH {
            let mut next = Vec::new();
            for dir in &level {
                let state = DirState::read(dir);
                let (children, mut entries) = self.list(dir);
                if dir != self.tree {
                    entries.retain(|name| {
                        name != protected::GIT_LINK || !is_of_other_run(self.around.live, dir)
                    });
                    self.found.further.push((dir.clone(), state, entries));
                }
                next.extend(children.into_iter().filter(|child| {
                    let name = child.file_name().unwrap_or_default();
                    name != ".git" && !PASSED_OVER.iter().any(|known| name == *known)
                }));
            }
            level = self.oldest(next);
            for work in &level {
                self.note_work(true, work.clone());
            }
        }
        self.found.further.extend(level.into_iter().map(|dir| {
            let state = DirState::read(&dir);
            let mut entries = first_parts_in(&dir);
            entries.retain(|name| name != protected::GIT_LINK || !is_of_other_run(self.around.live, &dir));
            (dir, state, entries)
        }));
    }

    /// The directories in a directory.
    fn children(&mut self, dir: &Path) -> Vec<PathBuf> {
        self.list(dir).0
    }

    /// The directories in a directory, and the entries that protected names begin with.
    fn list(&mut self, dir: &Path) -> (Vec<PathBuf>, Vec<String>) {
        match self.try_list(dir) {
            Ok(found) => found,
            Err(error) => {
                if !is_absent(&error) {
                    self.note_closed(dir);
                }
                Default::default()
            }
        }
    }

    fn try_list(&mut self, dir: &Path) -> io::Result<(Vec<PathBuf>, Vec<String>)> {
        let (mut found, mut first_parts) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(dir)? {
            if self.names == 0 {
                self.report_the_rest();
                break;
            }
            self.names -= 1;
            let entry = entry?;
            first_parts.extend(entry.file_name().into_string().ok().filter(|name| is_first_part(name)));
            let kind = match entry.file_type() {
                // One that is gone since.
                Err(error) if is_absent(&error) => None,
                kind => Some(kind?),
            };
            // Another run may be making its quarantine now, and what is in there is nobody's repository.
            if kind.is_some_and(|kind| kind.is_dir()) && !is_quarantine_name(&entry.file_name()) {
                found.push(entry.path());
            }
        }
        // To list it is one right, and to look into what it lists another.
        if !found.is_empty() {
            may_search(dir)?;
        }
        Ok((found, first_parts))
    }

    /// Returns as many of the directories as the bound allows, the oldest first.
    fn oldest(&mut self, mut dirs: Vec<PathBuf>) -> Vec<PathBuf> {
        if dirs.len() > self.room {
            self.report_the_rest();
            dirs.sort_by_cached_key(|path| born(path));
            dirs.truncate(self.room);
        }
        self.room -= dirs.len();
        dirs
    }

    fn report_the_rest(&mut self) {
        self.report_gap(format!(
            "what programs on the host obey further down in `{}` may not be protected: it holds too much",
            self.tree.display()
        ));
    }

    /// Notes a directory if it is the top of a working tree, or a repository itself.
    fn note_work(&mut self, is_unnamed: bool, work: PathBuf) {
        let is_there = |name: &str| fs::symlink_metadata(work.join(name)).is_ok();
        if fs::symlink_metadata(work.join(".git")).is_err_and(|error| !is_absent(&error)) {
            return self.note_closed(&work.join(".git"));
        }
        if (is_there(".git") || is_repository(is_there)) && !is_of_other_run(self.around.live, &work) {
            self.note(is_unnamed, What::Work(work));
        }
    }

    fn note(&mut self, is_unnamed: bool, what: What) {
        let born = match &what {
            What::Work(work) => born(&work.join(".git")).or_else(|| born(work)),
            What::Module(dir) | What::Worktree(dir) => born(dir),
        };
        self.next.push(Candidate { is_unnamed, born, what });
    }

    /// Adds what was noted, and what is noted on the way. What has a working tree in sight comes before what a repository's
    /// directory holds, and loses no room to it: a stage makes what it likes in that directory.
    fn add_noted(&mut self) {
        let noted = std::mem::take(&mut self.next);
        let (works, held): (Vec<_>, Vec<_>) =
            noted.into_iter().partition(|it| matches!(it.what, What::Work(_)));
        self.add_oldest(works, REPOSITORIES, "repositories");
        self.next.extend(held);
        let mut room = REPOSITORIES;
        while !self.next.is_empty() {
            let held = std::mem::take(&mut self.next);
            room -= self.add_oldest(held, room, "submodules and linked worktrees");
        }
    }

    /// Adds these, the oldest first, as far as there is room; how many were new. What there was no room for is said.
    fn add_oldest(&mut self, mut candidates: Vec<Candidate>, room: usize, what: &str) -> usize {
        candidates.sort();
        let is_undated = candidates.iter().any(|it| it.born.is_none());
        let mut count = 0;
        for candidate in candidates {
            if count == room {
                self.report_gap(format!(
                    "{what} in `{}` beyond the first {REPOSITORIES} are not protected{}",
                    self.tree.display(),
                    if is_undated { "; its file system does not tell which are the oldest" } else { "" }
                ));
                break;
            }
            count += usize::from(self.add(candidate.what));
        }
        count
    }

    /// Adds one; whether it is new.
    fn add(&mut self, what: What) -> bool {
        let before = self.found.directories.len() + self.found.links.len();
        match what {
            What::Work(work) => self.work(&work),
            What::Module(dir) => {
                self.directory(&dir);
                if let Some(work) = self.configuration(std::slice::from_ref(&dir), &dir) {
                    self.link(&work);
                }
            }
            What::Worktree(dir) => {
                // Its working tree may lie anywhere.
                let git = self.path_in(&dir.join("gitdir"), gitdir_path).map(|path| dir.join(path));
                if let Some(work) = git.as_deref().and_then(Path::parent).and_then(|work| self.resolve(work))
                {
                    self.work(&work);
                    self.outer_work(&work, &dir);
                }
                if !self.found.directories.iter().any(|(known, _)| *known == dir) {
                    self.searched.insert(dir.clone());
                    self.found.directories.push((dir, OF_WORKTREES.to_vec()));
                }
            }
        }
        self.found.directories.len() + self.found.links.len() > before
    }

    /// Adds the `.git` file of a working tree that lies elsewhere, if it leads to this directory of the tree.
    fn outer_work(&mut self, work: &Path, dir: &Path) {
        let git = work.join(protected::GIT_LINK);
        let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
        if work.starts_with(self.tree) || !is_file(&git) {
            return;
        }
        let to = self.path_in(&git, git_file_path).and_then(|path| self.resolve(&work.join(path)));
        if to.is_some_and(|to| to == dir) {
            self.found.outer_works.insert(git);
        }
    }

    /// Adds a working tree.
    fn work(&mut self, work: &Path) {
        if work.starts_with(self.tree) && work != self.tree {
            self.link(work);
            for dirs in self.repositories_at(work) {
                self.repository(&dirs, work);
            }
        }
    }

    /// Adds the `.git` of a working tree, where that is a file.
    fn link(&mut self, work: &Path) {
        let git = work.join(".git");
        if git.starts_with(self.tree)
            && work != self.tree
            && !git.is_dir()
            && fs::symlink_metadata(&git).is_ok()
        {
            self.found.links.insert(git);
        }
    }

    fn report_gap(&mut self, line: String) {
        if !self.found.left.contains(&line) {
            self.found.left.push(line);
        }
    }

    /// Adds a path that a configuration names: where it leads, and what leads there. A stage cannot write what lies
    /// elsewhere, and protecting a directory above the tree would take all of the tree away.
    fn protect_named(&mut self, path: &Path) {
        if self.found.named.len() + self.found.turns.len() >= NAMED {
            return self.report_gap(format!(
                "what git's configuration names in `{}` beyond the first {NAMED} places is not protected",
                self.tree.display()
            ));
        }
        if self.around.lookups.are_spent() || self.followed.contains(path) {
            return self.report_spent();
        }
        self.followed.insert(path.to_path_buf());
        let Some(ResolvedPath { links, turns, place }) = self.follow(path) else { return };
        let Some(led) = self.as_named(&place) else { return };
        let is_inside = |path: &PathBuf| path.starts_with(self.tree) && path != self.tree;
        // A repository's own directory has to stay so, and so does the tree.
        let is_own = self.found.directories.iter().any(|(dir, _)| *dir == led);
        if is_own || led == self.tree || led == self.tree.join(".git") {
            return self.report_gap(format!(
                "git's configuration names `{}` itself, which stays writable",
                led.display()
            ));
        }
        if is_inside(&led) {
            self.found.named.insert(led);
        }
        if links.iter().any(is_inside) {
            self.found.named.insert(path.to_path_buf());
        }
        self.found.turns.extend(turns.into_iter().filter(is_inside));
    }

    /// Adds what the configuration of a repository with these directories names; returns the working tree that it names.
    fn configuration(&mut self, dirs: &[PathBuf], work: &Path) -> Option<PathBuf> {
        // The machine's and the user's own name hooks for every repository; their other words lie outside of the tree.
        let mut files = self.of_the_user();
        files.extend(dirs.iter().flat_map(|dir| [dir.join("config"), dir.join("config.worktree")]));
        let own = dirs.first().map_or(work, PathBuf::as_path);
        let Values { hooks, programs, files, worktree } = self.values(files, own);
        let tree = worktree.and_then(|value| self.resolve(&self.place(own, &value)));
        // In a linked worktree of a submodule, `core.worktree` is that of the submodule.
        let works = || [Some(work), tree.as_deref()].into_iter().flatten();
        for value in hooks {
            // For a push, git stands in the repository's directory (githooks(5)).
            for base in works().chain(dirs.iter().map(PathBuf::as_path)) {
                self.protect_named(&self.place(base, &value));
            }
        }
        for work in works() {
            let programs = programs.iter().map(|value| self.place(work, value));
            let files = files.iter().map(|value| self.place(work, value)).filter(|file| file.is_file());
            programs.chain(files).collect::<Vec<_>>().iter().for_each(|path| self.protect_named(path));
        }
        tree
    }

    /// Lists the relative paths that the machine's configuration and the user's name.
    fn everywhere(&mut self) {
        let Values { hooks, programs, files, .. } = self.values(self.of_the_user(), self.tree);
        let found = hooks.into_iter().chain(programs).map(|value| (value, false));
        let found = found.chain(files.into_iter().map(|value| (value, true)));
        let is_relative =
            |value: &OsString| !["/", "~"].iter().any(|it| value.as_bytes().starts_with(it.as_bytes()));
        let found = found.filter(|(value, _)| is_relative(value));
        self.found
            .everywhere
            .extend(found.map(|(path, is_file)| NamedEverywhere { path: path.into(), is_file }));
    }

    /// Reads what configurations name, and adds the files that they include. `own`: the directory of the repository.
    fn values(&mut self, mut files: Vec<PathBuf>, own: &Path) -> Values {
        let mut found = Values::default();
        let most = files.len() + INCLUDES;
        let mut next = 0;
        while let Some(file) = files.get(next).cloned() {
            if next == most {
                self.report_gap(format!(
                    "the configuration in `{}` includes too many files: what they name is not protected",
                    own.display()
                ));
                break;
            }
            next += 1;
            let above = file.parent().unwrap_or(own);
            for setting in self.settings(&file).iter() {
                match setting {
                    Setting::HooksPath(value) => found.hooks.extend([value.clone()]),
                    Setting::Program(value) | Setting::Template(value) => {
                        found.programs.extend([value.clone()]);
                    }
                    Setting::File(value) => found.files.extend([value.clone()]),
                    Setting::Worktree(value) => found.worktree = Some(value.clone()),
                    Setting::Include(value) => {
                        let path = self.place(above, value);
                        self.protect_named(&path);
                        // One more than are read, so that it is known.
                        if files.len() <= most && !files.contains(&path) {
                            files.push(path);
                        }
                    }
                    Setting::SafeDirectory | Setting::Submodule(_) => {}
                }
            }
        }
        found
    }

    /// Finds where a path leads. What cannot be followed is said.
    fn follow(&mut self, path: &Path) -> Option<ResolvedPath> {
        let way = resolve_path(path, self.around.lookups);
        if way.is_none() && path.as_os_str().len() > LONGEST_PATH {
            self.report_gap(format!(
                "a path that git is told in `{}` is longer than {LONGEST_PATH} bytes, and is passed over",
                self.tree.display()
            ));
        } else if way.is_none() && !self.around.lookups.are_spent() {
            self.report_gap(format!(
                "`{}` leads through too many links and is not protected",
                path.display()
            ));
        }
        self.report_spent();
        way
    }

    /// Says that nothing more is followed, if that is so.
    fn report_spent(&mut self) {
        if self.around.lookups.are_spent() {
            self.report_gap(too_much(self.tree));
        }
    }

    /// Returns the real path of a path that may not exist.
    fn resolve(&mut self, path: &Path) -> Option<PathBuf> {
        let way = self.follow(path)?;
        self.as_named(&way.place)
    }

    /// A path without links and `..`, as the kernel calls it; what is not there keeps its name.
    fn as_named(&mut self, path: &Path) -> Option<PathBuf> {
        let named = as_named(path, self.around.lookups);
        self.report_spent();
        named
    }

    /// Resolves a value in a directory.
    fn place(&self, base: &Path, value: &OsStr) -> PathBuf {
        resolve_value(base, value, &self.around.everywhere.home)
    }
}

/// Returns whether the repository in a directory came while another run goes on: its stage may be making it now, and a file of ours in
/// it would be in the way of both runs. The ends of the two judge what git obeys there.
fn is_of_other_run(live: &Live, work: &Path) -> bool {
    let git = work.join(protected::GIT_LINK);
    live.since(&git).is_some_and(|since| born(&git).or_else(|| born(work)).is_some_and(|born| born >= since))
}

/// When it was made, where the file system tells.
fn born(path: &Path) -> Option<SystemTime> {
    fs::symlink_metadata(path).ok()?.created().ok()
}

/// The note if links and configurations contain more than is followed.
pub(super) fn too_much(tree: &Path) -> String {
    format!(
        "links and configurations in `{}` lead to more than is looked at: not all that they name is protected",
        tree.display()
    )
}

/// A path without links and `..`, as the kernel calls it; what is not there keeps its name. `None` where that takes too much.
fn as_named(path: &Path, lookups: &Lookups) -> Option<PathBuf> {
    for above in path.ancestors() {
        lookups.take(above.components().count())?;
        let Ok(led) = true_name(above) else { continue };
        return Some(match path.strip_prefix(above) {
            Ok(below) if below != Path::new("") => led.join(below),
            _ => led,
        });
    }
    Some(path.to_path_buf())
}

/// Returns the path in a file, read by one of [`git_path`](crate::git_path).
pub(super) fn path_of(file: &Path, read_path: ReadPath) -> Option<PathBuf> {
    path_in(file, read_path).ok()
}

/// Returns the working tree that the configuration in a repository's directory names. `git sparse-checkout` moves that to `config.worktree`.
pub(super) fn worktree_of(dir: &Path) -> Option<PathBuf> {
    let mut files = Files::default();
    ["config.worktree", "config"].into_iter().find_map(|name| {
        let (settings, _) = files.settings(&dir.join(name));
        // git takes the last one.
        settings.iter().rev().find_map(|setting| match setting {
            Setting::Worktree(value) => Some(PathBuf::from(value)),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests;

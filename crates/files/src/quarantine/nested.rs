//! Repositories that a stage has made or changed further down in a tree. git enters one when somebody works in it, and also from the top, when a
//! commit or an index names it as a submodule. Which do is for stages to say, so all are searched for.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::dir::Type;
use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag};

use super::descriptors::{PATH_MAX, entries, kind, open_at, open_beneath, open_file, retry_opened, stat_in};
use super::git_names::{WORKTREES, is_worktree};
use super::modules::{GITDIR, GitDir, gitdir_of, is_git_dir, is_gits_own};
use super::named::{repository_at, repository_of, top_of};
use super::pointers::Pointer;
use super::store::{QUARANTINE, RUNS};
use super::{Leftover, Watch, WatchList, is_open_repository};
use crate::git_path::{git_file_path, git_file_target};
use crate::protected::{self, GIT_LINK, REPOSITORIES};

/// Directories that are opened in one tree, and names in these: about two seconds.
const DIRECTORIES: usize = 1 << 17;
const ENTRIES: usize = 1 << 22;
/// Names from the tree to a directory that cost nothing more.
const NEAR: usize = 16;
/// The wait for the repository to which a new `.git` file leads: so many looks, with this time between them.
const LOOKS: usize = 10;
const LOOK: Duration = Duration::from_millis(5);
/// Names from the tree to the directory of a repository that is found at the start with all that it names: two directories and `.git`.
const SEARCHED: usize = 3;
/// The repositories of a tree, by their places below it.
#[derive(Default)]
pub(super) struct Nested {
    /// Directories of repositories, submodules and worktrees.
    pub(super) dirs: Vec<GitDir>,
    /// Directories of repositories of other version control systems.
    pub(super) others: Vec<PathBuf>,
    /// Entries named `.git` that are not directories.
    pub(super) files: Vec<PathBuf>,
    /// Links named like the directory of another version control system, and links into directories that exeat keeps for stages.
    pub(super) links: Vec<PathBuf>,
    /// The reason that not all of the tree was searched.
    unsearched: Option<io::Error>,
}

/// A search of one tree.
struct Search<'a> {
    watch: &'a Watch,
    /// Directories, and whether one above may have got its place during the run: then links in them lead elsewhere than before.
    next: Vec<(PathBuf, bool)>,
    /// Whether this is the search at the start.
    is_start: bool,
    /// The directories of repositories of worktrees that were found.
    of_worktrees: BTreeSet<PathBuf>,
    found: Nested,
}

impl Watch {
    /// Finds the repositories of the tree that were not known at the start.
    pub(super) fn find_nested(&self, is_start: bool, is_over: &dyn Fn() -> bool) -> Nested {
        let mut search = Search {
            watch: self,
            next: vec![(PathBuf::new(), false)],
            is_start,
            of_worktrees: BTreeSet::new(),
            found: Nested::default(),
        };
        let (mut directories, mut names) = (DIRECTORIES, ENTRIES);
        if self.list.is_git_open {
            search.next.clear();
        }
        while let Some((at, is_moved)) = search.next.pop() {
            directories = directories.saturating_sub(1 + at.components().count() / NEAR);
            if directories == 0 || names == 0 {
                let why =
                    "it holds too much to look for new repositories: git in one obeys its configuration";
                search.found.unsearched = Some(io::Error::other(why));
                break;
            }
            if is_over() {
                break;
            }
            let read = open_beneath(&self.tree, &at);
            let read = read.and_then(|dir| search.read(&at, is_moved, &dir, &mut names));
            match read {
                // A missing directory contains nothing, and one that the caller cannot read does not belong to a stage.
                Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES) => {}
                Err(errno) => search.found.unsearched = Some(errno.into()),
            }
        }
        // A repository of a worktree is one to git without a `HEAD`, too (setup.c).
        let of_worktrees = std::mem::take(&mut search.of_worktrees);
        let dirs = of_worktrees.into_iter().filter(|at| !self.is_known_repository(at));
        let dirs: Vec<_> = dirs.map(|at| GitDir { path: at.clone(), config: at, is_new: true }).collect();
        search.found.dirs.extend(dirs);
        search.found
    }

    /// Moves aside what git obeys in these repositories and is not as git makes it, as far as it came or changed during the run. `judged` are
    /// the directories to which a `.git` file may lead, by their paths on the host.
    pub(super) fn settle_nested(&self, nested: &mut Nested, judged: &BTreeSet<PathBuf>) -> Vec<Leftover> {
        let mut found = Vec::new();
        for git in &nested.dirs {
            found.extend(if is_worktree(&git.path) {
                self.settle_worktree(&git.path, |path| self.is_changed_in(&git.path, path))
            } else {
                self.settle_changed(&git.path)
            });
            let gitdir = git.path.join(GITDIR);
            if let Some(to) = gitdir_of(&self.tree, &git.path)
                && (self.is_changed_in(&git.path, &gitdir) || self.is_new_way(&gitdir, Path::new(&to)))
            {
                found.extend(self.settle_at(gitdir, |_, _, _| !self.leads_astray(&git.path, &to, false)));
            }
        }
        for at in &nested.others {
            let paths = obeyed_in_other(at).map(|it| at.join(it));
            let changed = paths.filter(|path| self.is_changed_in(at, path));
            found.extend(changed.filter_map(|path| self.settle_name(path)));
            let link = jujutsu_link(at).filter(|link| self.is_changed_in(at, link));
            found.extend(
                link.and_then(|link| self.settle_at(&link, |_, _, stat| kind(stat) == SFlag::S_IFDIR)),
            );
        }
        let counts =
            |at: &&PathBuf| self.is_new_link(at) && !self.is_noted(at, at) || self.leads_to_stages(at);
        let links = nested.links.iter().filter(counts);
        found.extend(links.filter_map(|at| self.settle_at(at, |_, _, stat| kind(stat) != SFlag::S_IFLNK)));
        for at in &nested.files {
            let was_there = |stat: &FileStat| {
                let pointers = self.list.pointers.iter().zip(&self.pointers);
                !self.may_have_changed(stat) && !self.is_new_pointer(at)
                    || pointers.into_iter().any(|(name, was)| Path::new(name) == at && was.is_file(stat))
            };
            let may_stay = |_: BorrowedFd<'_>, _: &OsStr, stat: &FileStat| {
                was_there(stat)
                    || self.is_noted(at, at)
                    || kind(stat) == SFlag::S_IFREG && self.leads_to_judged(at, judged)
            };
            found.extend(self.settle_at(at, may_stay));
        }
        let unsearched = nested.unsearched.take();
        found.extend(unsearched.map(|why| Leftover { path: self.list.tree.clone(), moved: Err(why) }));
        found
    }

    /// Returns whether a `.git` file came during the run and leads to none of these directories. The host, or another run, may be making the
    /// repository: git writes this file first, so the repository gets a little time.
    pub(super) fn has_unknown_pointer(&self, nested: &Nested, judged: &BTreeSet<PathBuf>) -> bool {
        let is_new = |at: &&PathBuf| self.stat(at).is_ok_and(|stat| self.may_have_changed(&stat));
        let unknown = nested.files.iter().filter(is_new).filter(|at| !self.leads_to_judged(at, judged));
        let in_tree = |dir: &PathBuf| dir.starts_with(&self.list.tree);
        let target = |at: &PathBuf| git_file_target(&self.list.tree.join(at), &self.read_pointer(at)?);
        let unknown: Vec<_> = unknown.filter_map(target).filter(in_tree).collect();
        for _ in 0..LOOKS {
            if unknown.iter().all(is_git_dir) {
                break;
            }
            thread::sleep(LOOK);
        }
        !unknown.is_empty()
    }

    /// Returns whether a link may have come during the run, or may lead elsewhere since. Other systems obey one of their own names.
    pub(super) fn is_new_link(&self, at: &Path) -> bool {
        let is_others = REPOSITORIES.iter().any(|known| at.ends_with(known));
        self.leads_anew(at) || is_others && self.has_new_time(top_of(at), at)
    }

    /// Returns whether a `.git` file may lead elsewhere since the run has started.
    fn is_new_pointer(&self, at: &Path) -> bool {
        match self.read_pointer(at) {
            Some(text) => git_file_path(&text).is_some_and(|to| self.is_new_way(at, to)),
            // A link, which git follows.
            None => self.leads_anew(at),
        }
    }

    /// Returns whether a `.git` file leads to a directory that was looked at, as git writes such a file: through no link, and without
    /// anything that git would read otherwise.
    fn leads_to_judged(&self, at: &Path, judged: &BTreeSet<PathBuf>) -> bool {
        let read = || {
            let (text, is_alone) = self.read_alone(at)?;
            let to = git_file_path(&text).filter(|_| is_alone)?;
            let mut parts = to.components().skip_while(|part| *part == Component::ParentDir);
            let is_plain = parts.all(|part| matches!(part, Component::Normal(_) | Component::RootDir));
            git_file_target(&self.list.tree.join(at), &text).filter(|_| is_plain)
        };
        read().is_some_and(|to| judged.contains(&to))
    }
}

/// Returns the place in a directory of Jujutsu's at which a file leads to the repository.
pub(super) fn jujutsu_link(dir: &Path) -> Option<PathBuf> {
    let link = dir.with_file_name("").join(protected::JJ_LINK);
    link.starts_with(dir).then_some(link)
}

/// Lists the names that a program obeys in the directory of another version control system.
pub(super) fn obeyed_in_other(dir: &Path) -> impl Iterator<Item = &'static str> {
    let name = dir.file_name().and_then(OsStr::to_str).map(|name| format!("{name}/"));
    protected::names().filter_map(move |(it, _)| it.strip_prefix(name.as_deref()?))
}

impl Watch {
    /// Returns whether it is a repository's directory that was known at the start. What git obeys there is read-only for the stage.
    pub(super) fn is_known_repository(&self, at: &Path) -> bool {
        let WatchList { repositories, held, .. } = &self.list;
        at.to_str().is_some_and(|at| repositories.iter().any(|known| known == at))
            || held.iter().any(|held| held.0 == at)
    }

    fn read_pointer(&self, at: &Path) -> Option<Vec<u8>> {
        self.read_alone(at).map(|(text, _)| text)
    }

    /// Reads a `.git` file, and says whether it has no second name, by which a later stage could write to it.
    fn read_alone(&self, at: &Path) -> Option<(Vec<u8>, bool)> {
        let mut text = Vec::new();
        let above = open_beneath(&self.tree, at.parent()?).ok()?;
        let file = open_file(above.as_fd(), at.file_name()?).ok()?;
        let is_alone = file.metadata().ok()?.nlink() == 1;
        file.take(PATH_MAX as u64).read_to_end(&mut text).ok()?;
        Some((text, is_alone))
    }

    /// Lists the repositories whose configurations may name files of the tree, with the working tree of those to which a `.git` file leads.
    pub(super) fn naming_repositories<'a>(
        &'a self,
        nested: &'a Nested,
    ) -> impl Iterator<Item = (Cow<'a, GitDir>, Option<&'a Path>)> {
        let tree = &self.list.tree;
        // A repository may have several working trees, and names not each of them.
        let outer = nested.files.iter().filter_map(move |file| {
            let git = match self.read_pointer(file) {
                Some(text) => repository_of(tree, file, &text)?,
                // A link, which git follows.
                None => repository_at(tree.join(file).canonicalize().ok()?),
            };
            Some((Cow::Owned(git), file.parent()))
        });
        // What the others name is read-only for the stage. A worktree near the top leads to one that is far.
        let is_far = |name: &String| Path::new(name).components().count() > SEARCHED;
        let was_missing = |name: &String| {
            let pointers = self.list.pointers.iter().zip(&self.pointers);
            pointers.into_iter().any(|(known, was)| known == name && *was == Pointer::WatchList)
        };
        let counts = move |name: &&String| !self.list.is_git_open && (is_far(name) || was_missing(name));
        let known = self.list.repositories.iter().filter(counts).map(|name| {
            let git = GitDir { path: name.into(), config: name.into(), is_new: false };
            (Cow::Owned(git), None)
        });
        nested.dirs.iter().map(|git| (Cow::Borrowed(git), None)).chain(outer).chain(known)
    }
}

impl Search<'_> {
    /// Notes what is in a directory.
    fn read(&mut self, at: &Path, is_moved: bool, dir: &OwnedFd, names: &mut usize) -> nix::Result<()> {
        let is_in_git = at.iter().any(|part| part.eq_ignore_ascii_case(GIT_LINK));
        let listed = retry_opened(dir.as_fd(), || entries(dir.as_fd()))?;
        let mut directories = Vec::new();
        for entry in listed.take(*names) {
            let (name, known) = entry?;
            *names -= 1;
            let is_git = name.eq_ignore_ascii_case(GIT_LINK);
            let known = known.or_else(|| self.kind(dir, &name));
            match known {
                Some(Type::Directory) => directories.push((name, is_git)),
                _ if is_git => self.found.files.push(at.join(name)),
                Some(Type::Symlink)
                    if REPOSITORIES.iter().any(|known| name == *known)
                        || !is_in_git && self.watch.leads_astray_to(at, dir, &name) =>
                {
                    self.found.links.push(at.join(name));
                }
                _ => {}
            }
        }
        let is_known = self.watch.is_known_repository(at);
        let is_git = at.file_name().is_some_and(|name| name.eq_ignore_ascii_case(GIT_LINK));
        // git makes no repository among what is its own. Submodules may have these names, too.
        let holds_own = is_git || is_in_git && is_git_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        // Among what is git's, something may still be missing in the directory of a worktree.
        let is_of_git = is_git || is_in_git && is_worktree(at) || is_open_repository(dir.as_fd());
        if !is_known && is_of_git {
            let repository = at.ancestors().nth(2).filter(|_| is_worktree(at)).map(Path::to_path_buf);
            let config = repository.clone().unwrap_or_else(|| at.into());
            self.found.dirs.push(GitDir { path: at.into(), config, is_new: true });
            self.of_worktrees.extend(repository);
        }
        for (name, is_git) in directories {
            let path = at.join(&name);
            let stat = stat_in(dir.as_fd(), &name).ok();
            let is_moved = is_moved || stat.is_none_or(|stat| self.watch.is_moved_here(&path, Some(&stat)));
            match stat {
                Some(stat) if self.is_start => self.watch.note_place(&path, &stat),
                Some(stat) => self.watch.open_closed(&path, &stat, || {
                    retry_opened(dir.as_fd(), || open_at(dir.as_fd(), Path::new(&name))).ok()
                }),
                None => {}
            }
            if !is_git && REPOSITORIES.iter().any(|known| name == *known) {
                self.found.others.extend(Some(path.clone()).filter(|at| !self.is_covered(at)));
            }
            let is_searched = if is_git {
                // The others' submodules and worktrees are searched for there.
                !self.watch.is_known_repository(&path)
            } else if is_in_git {
                !(holds_own && is_gits_own(&name)) || name == WORKTREES
            } else {
                // Most of a tree are leaves, and they are not opened.
                let is_leaf = |stat| self.watch.is_old_leaf(dir.as_fd(), &name, stat);
                !self.is_moved(at, dir, &name) && (is_moved || !stat.as_ref().is_some_and(is_leaf))
            };
            if is_searched {
                self.next.push((path, is_moved));
            }
        }
        Ok(())
    }

    fn kind(&self, dir: &OwnedFd, name: &OsStr) -> Option<Type> {
        match kind(&stat_in(dir.as_fd(), name).ok()?) {
            SFlag::S_IFDIR => Some(Type::Directory),
            SFlag::S_IFLNK => Some(Type::Symlink),
            _ => None,
        }
    }

    /// Returns whether what is obeyed in a directory was there at the start, and is read-only for the stage.
    fn is_covered(&self, at: &Path) -> bool {
        self.watch.list.covered.iter().any(|covered| Path::new(covered).starts_with(at))
    }

    /// Returns whether a directory has what exeat has moved. git enters nothing there.
    fn is_moved(&self, at: &Path, dir: &OwnedFd, name: &OsStr) -> bool {
        let tree = &self.watch.list.tree;
        name == RUNS
            && at.ends_with(QUARANTINE)
            && self.watch.state_of_run.has_made_at(&tree.join(at), tree, dir.as_fd())
    }
}

//! Entries that a stage leaves in a repository's directory under names that git chooses: symbolic links, through which git on the
//! host would write, and unfinished operations such as a rebase, whose files name programs that git runs.
//!
//! How much is there is for stages to choose. A directory is searched and forgotten; of what was there at the start a hash is
//! kept, whose keys no stage knows.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, readlinkat};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::unistd::geteuid;

use serde::{Deserialize, Serialize};

use super::descriptors::{Entry, entries, open_beneath, open_deep, random, retry_opened, stat_in};
use super::git_names::{MODULES, NAMING, OF_WORKTREE, is_fan_out, is_old_head, is_repository_name};
use super::store::{QUARANTINE, RUNS};
use crate::protected::{GIT_LINK, REPOSITORIES};

mod settle;
mod stores;

pub use settle::beyond_search;

/// Directories of a repository that are not searched here: the hooks are protected as a whole, and submodules are repositories of their
/// own. All others are, whoever makes them: git's (gitrepository-layout(5)) and those of tools, but for the [`is_fan_out`] of the objects.
const PASSED_OVER: [&str; 2] = ["hooks", MODULES];
/// The directories of git-lfs and of git-annex. Both have a store of objects: see `stores`.
const LFS: &str = "lfs";
const ANNEX: &str = "annex";
/// git makes the graph of commits, the index of packs and lists of both in place (commit-graph.c, midx.c, server-info.c).
const OBJECTS: &str = "objects";
/// The directories of git's unfinished operations: rebases, patches that are applied one by one, cherry-picks and reverts. It obeys most of
/// what is in these when it continues one or ends it: steps, which may be commands, a strategy and its options, which name a
/// program, patches and commits.
pub(super) const OPERATIONS: [&str; 3] = ["rebase-merge", "rebase-apply", "sequencer"];

/// The remaining names and directories that are read in one repository.
#[derive(Debug, Clone, Copy)]
struct Budget {
    /// Names: each branch has two.
    names: usize,
    /// Bytes of the names of directories that are still to be looked at, counted from the tree.
    bytes: usize,
}

/// Names from the tree to a directory that cost nothing. Each one more costs a name of the [`Budget`]: a directory is opened from the top,
/// so a chain of them would take as many lookups as half the square of its length.
const NEAR: usize = 16;
/// So much takes about 30 ms.
const BUDGET: Budget = Budget { names: 1 << 16, bytes: 1 << 24 };
/// Links that are moved at the end of one run, in all repositories together: a few seconds on a busy machine.
pub(super) const MOVED: usize = 1 << 16;

/// The key of hashes: a stage does not know it, so it can make no name whose hash is another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Keys([u64; 2]);

impl Keys {
    pub(super) fn draw() -> Self {
        Self([random(), random()])
    }

    pub(super) fn hash_one(self, it: impl Hash) -> u64 {
        let mut hasher = self.hasher();
        it.hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn hasher(self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher
    }
}

/// The contents of a repository, each as a hash that includes its name in the tree.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Contents {
    /// Links with what they say.
    links: HashSet<u64>,
    /// Directories of unfinished operations, each with the versions of all files in it.
    operations: HashSet<u64>,
    /// The files that name paths, each with its version: those of the repository, of its submodules and of its worktrees.
    naming: HashSet<u64>,
    /// The directories of these.
    held: HashSet<u64>,
    /// Directories that were not read to their end: what was in them, and further down, is not known.
    unread: HashSet<u64>,
    /// The directories, by their paths below the tree. A killed run has nobody who watches them.
    #[serde(skip)]
    directories: Vec<PathBuf>,
}

/// A link that was found.
struct Link {
    name: OsString,
    /// The hash of its whole name and what it says.
    mark: u64,
    /// Whether it is a `HEAD` in the old form: a link to the branch.
    is_old_head: bool,
}

/// The entries of one directory.
#[derive(Default)]
struct Listed {
    links: Vec<Link>,
    /// Names of repositories of any system. git makes none among what is its own.
    repositories: Vec<PathBuf>,
    /// In a directory of an unfinished operation, the sum of the hashes of all files.
    operation: Option<u64>,
}

/// A search of one repository.
struct Search<'a> {
    tree: &'a File,
    keys: Keys,
    /// Directories of the caller's that the stage has closed are opened for it.
    opens: bool,
    /// Tells what may have changed since the stage started. Only at the end: then objects are searched where there are directories among
    /// them.
    is_new: Option<&'a dyn Fn(&FileStat) -> bool>,
    budget: Budget,
}

impl Search<'_> {
    /// Looks into the directories of a repository at this name in the tree, nearer ones first. Returns those that were not read to
    /// their end.
    fn each(
        mut self,
        repository: &Path,
        mut visit: impl FnMut(&Path, BorrowedFd<'_>, Listed),
    ) -> Vec<PathBuf> {
        let mut next = VecDeque::from([repository.to_path_buf()]);
        let mut unread = Vec::new();
        while let Some(at) = next.pop_front() {
            let far = at.components().count().saturating_sub(NEAR);
            let Some(names) = self.budget.names.checked_sub(far) else {
                unread.push(at);
                unread.extend(next);
                break;
            };
            self.budget.names = names;
            let opened = self.open(&at).and_then(|dir| {
                let names = self.names(&dir)?;
                Ok((dir, names))
            });
            let (dir, names) = match opened {
                Ok(opened) => opened,
                Err(Errno::EACCES) if !self.opens => {
                    unread.push(at);
                    continue;
                }
                // A missing directory contains nothing, and one that the caller cannot read does not belong to a stage. A link is found
                // in the directory that contains it.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES) => continue,
                Err(_) => {
                    unread.push(at);
                    continue;
                }
            };
            let mut listed = Listed::default();
            let is_whole = self.list(repository, &at, &dir, names, &mut listed, &mut next);
            visit(&at, dir.as_fd(), listed);
            if !is_whole {
                unread.push(at);
                unread.extend(next);
                break;
            }
        }
        unread
    }

    /// Lists a directory; whether there was budget for all of it.
    fn list(
        &mut self,
        repository: &Path,
        at: &Path,
        dir: &OwnedFd,
        names: impl Iterator<Item = nix::Result<Entry>>,
        listed: &mut Listed,
        next: &mut VecDeque<PathBuf>,
    ) -> bool {
        for entry in names {
            let Ok(entry) = entry else { return false };
            if self.budget.names == 0 {
                return false;
            }
            self.budget.names -= 1;
            let (name, known) = entry;
            // Where the tree itself is a repository, others are the caller's.
            if at != Path::new("") && is_repository_name(&name) && (at != repository || name != GIT_LINK) {
                listed.repositories.push(name.clone().into());
            }
            let is = |kind: Type, bits: SFlag| match known {
                Some(known) => known == kind,
                // Not every file system says it here.
                None => fstatat(dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| super::descriptors::kind(&stat) == bits),
            };
            if is(Type::Symlink, SFlag::S_IFLNK) {
                if let Ok(target) = readlinkat(dir, name.as_os_str()) {
                    let mark = self.keys.hash_one((at.join(&name).as_os_str(), &target));
                    let is_old_head = is_old_head(&name, Path::new(&target));
                    listed.links.push(Link { name, mark, is_old_head });
                }
            } else if is(Type::Directory, SFlag::S_IFDIR) {
                let is_passed_over = !is_searched(repository, at, &name);
                let of_objects = self.is_new.filter(|_| is_passed_over && is_fan_out(&name));
                let stat = of_objects.and_then(|_| stat_in(dir.as_fd(), &name).ok());
                if of_objects.zip(stat.as_ref()).is_some_and(|(is_new, stat)| is_new(stat)) {
                    let inner = REPOSITORIES.iter().map(|inner| Path::new(&name).join(inner));
                    listed.repositories.extend(inner.filter(|inner| stat_in(dir.as_fd(), inner).is_ok()));
                }
                if !is_passed_over || stat.is_some_and(|stat| stat.st_nlink > 2) {
                    let path = at.join(&name);
                    let Some(bytes) = self.budget.bytes.checked_sub(path.as_os_str().len()) else {
                        return false;
                    };
                    self.budget.bytes = bytes;
                    // Few, and first: a crowd elsewhere hides none.
                    if is_operation(repository, &path) { next.push_front(path) } else { next.push_back(path) }
                }
            } else if is_operation(repository, at) {
                let stat = || fstatat(dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
                let stat = if self.opens { retry_opened(dir.as_fd(), stat) } else { stat() };
                if !matches!(stat, Err(Errno::ENOENT)) {
                    let version = stat.map(|stat| version(&stat)).map_err(|errno| errno as i32);
                    let file = self.keys.hash_one((at.join(&name).as_os_str(), version));
                    listed.operation = Some(listed.operation.unwrap_or(0).wrapping_add(file));
                }
            }
        }
        true
    }

    fn open(&self, at: &Path) -> nix::Result<OwnedFd> {
        if self.opens { open_beneath(self.tree, at) } else { open_deep(self.tree.as_fd(), at) }
    }

    /// The names in a directory.
    fn names(&self, dir: &OwnedFd) -> nix::Result<impl Iterator<Item = nix::Result<Entry>> + use<>> {
        let names = || entries(dir.as_fd());
        if self.opens {
            return retry_opened(dir.as_fd(), names);
        }
        match names() {
            // Somebody else has closed it, and to a stage too.
            Err(Errno::EACCES) if fstat(dir)?.st_uid != geteuid().as_raw() => Err(Errno::ENOENT),
            names => names,
        }
    }
}

/// Whether a directory in a directory of a repository is searched.
pub(super) fn is_searched(repository: &Path, at: &Path, name: &OsStr) -> bool {
    if at == repository {
        !PASSED_OVER.iter().any(|known| name == *known)
    } else {
        // Where the tree itself is the directory of a repository.
        let is_moved = name == RUNS && repository == Path::new("") && at == Path::new(QUARANTINE);
        let Ok(at) = at.strip_prefix(repository) else { return true };
        let is_object = is_fan_out(name) && at == Path::new(OBJECTS);
        let is_store = name == OBJECTS && [LFS, ANNEX].iter().any(|tool| at == Path::new(tool));
        !is_object && !is_store && !is_moved
    }
}

/// Whether something is a directory of an unfinished operation or further down in one, of a repository or of a worktree of it. A
/// branch may have such a name.
fn is_operation(repository: &Path, at: &Path) -> bool {
    let Ok(below) = at.strip_prefix(repository) else { return false };
    let mut parts = below.components().map(Component::as_os_str);
    let first = parts.next();
    let named = if first.is_some_and(|it| it == "worktrees") { parts.nth(1) } else { first };
    named.is_some_and(|named| OPERATIONS.iter().any(|known| named == *known))
}

/// Returns the hash of a file that names paths, with its version.
pub(super) fn naming_file(tree: &File, path: &Path, keys: Keys) -> Option<u64> {
    let (above, name) = (open_beneath(tree, path.parent()?).ok()?, path.file_name()?);
    let stat = retry_opened(above.as_fd(), || fstatat(&above, name, AtFlags::AT_SYMLINK_NOFOLLOW)).ok()?;
    Some(keys.hash_one((path.as_os_str(), version(&stat))))
}

/// A file as it is: the device, the inode, and when it was last changed, which nobody can set.
pub(super) fn version(stat: &FileStat) -> (u64, u64, i64, i64) {
    (stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
}

impl Contents {
    /// Looks into a repository at this name in the tree.
    pub(super) fn read(tree: &File, repository: &Path, keys: Keys) -> Self {
        Self::within(BUDGET, tree, repository, keys)
    }

    fn within(budget: Budget, tree: &File, repository: &Path, keys: Keys) -> Self {
        let mut found = Self::default();
        let search = Search { tree, keys, opens: true, is_new: None, budget };
        let unread = search.each(repository, |at, _, listed| {
            found.directories.push(at.to_path_buf());
            found.links.extend(listed.links.iter().map(|link| link.mark));
            found.operations.extend(listed.operation);
        });
        let (links, dirs) = super::modules::pointers(tree, repository);
        found.links.extend(links.iter().map(|(path, target)| keys.hash_one((path.as_os_str(), target))));
        for dir in dirs {
            let names = NAMING.iter().chain(&OF_WORKTREE);
            found.naming.extend(names.filter_map(|name| naming_file(tree, &dir.join(name), keys)));
            found.held.insert(keys.hash_one(dir.as_os_str()));
        }
        found.unread = unread.iter().map(|at| keys.hash_one(at.as_os_str())).collect();
        found
    }

    /// Lists the directories that were looked into.
    pub(super) fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// Whether a link was there, and said this.
    pub(super) fn has_link(&self, path: &Path, target: &OsString, keys: Keys) -> bool {
        self.links.contains(&keys.hash_one((path.as_os_str(), target)))
    }

    /// Whether the directory of a submodule or a worktree was there.
    pub(super) fn has_held(&self, path: &Path, keys: Keys) -> bool {
        self.held.contains(&keys.hash_one(path.as_os_str()))
    }

    /// Whether a file that names paths was there in this version ([`naming_file`]).
    pub(super) fn has_naming_file(&self, file: u64) -> bool {
        self.naming.contains(&file)
    }

    /// Whether all that was in a directory is known.
    pub(super) fn knows(&self, at: &Path, keys: Keys) -> bool {
        self.unread.is_empty()
            || !at.ancestors().any(|above| self.unread.contains(&keys.hash_one(above.as_os_str())))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::leftovers::Leftovers;
    use super::super::{StateOfRun, Watch, WatchList};
    use super::*;

    struct Scene {
        root: PathBuf,
        watch: Watch,
    }

    impl Scene {
        /// With `.git/logs/refs`, two names.
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("repository-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join(".git/logs/refs")).unwrap();
            let repositories = vec![".git".into()];
            let list = WatchList { tree: root.clone(), repositories, ..WatchList::default() };
            Self { watch: Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap(), root }
        }

        fn link(&self, name: &str) {
            symlink("x", self.root.join(name)).unwrap();
        }

        /// Reads the contents with a bound on names.
        fn read(&self, names: usize) -> Contents {
            let watch = &self.watch;
            Contents::within(Budget { names, ..BUDGET }, &watch.tree, Path::new(".git"), watch.keys)
        }

        fn settle(&self, before: &Contents, budget: Budget, mut left: usize) -> Vec<(String, bool)> {
            let mut told = Leftovers::default();
            if self.watch.settle_within(
                budget,
                Path::new(".git"),
                Some(before),
                &mut left,
                &mut told,
                &|| false,
            ) {
                let moved = Err(std::io::Error::other("too much"));
                told.add_always(super::super::Leftover { path: self.root.join(".git"), moved });
            }
            let name = |path: &Path| path.strip_prefix(&self.root).unwrap().to_str().unwrap().to_owned();
            told.named.iter().map(|it| (name(&it.path), it.moved.is_ok())).collect()
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.root).unwrap();
        }
    }

    #[test]
    fn l18_searches_a_chain_of_directories_only_so_far() {
        const LENGTH: usize = 2000;
        let scene = Scene::new("chain");
        let mut dir = File::open(scene.root.join(".git/logs")).unwrap();
        for _ in 0..LENGTH {
            nix::sys::stat::mkdirat(&dir, "d", nix::sys::stat::Mode::S_IRWXU).unwrap();
            dir = open_deep(dir.as_fd(), Path::new("d")).unwrap().into();
        }
        let found = scene.read(BUDGET.names);
        assert!(!found.unread.is_empty());
        // Half the square of this is what there is budget for.
        assert!(found.directories.len() < 400, "{}", found.directories.len());
    }

    /// A repository beyond the bound is reported. If it was beyond the bound at the start, links are moved only in the directories that
    /// were read to their end.
    #[test]
    fn b14_a_repository_with_too_much_in_it() {
        let scene = Scene::new("bound");
        let budget = |names| Budget { names, ..BUDGET };
        let (whole, cut) = (scene.read(2), scene.read(1));
        assert!(!cut.unread.is_empty() && whole.unread.is_empty());
        scene.link(".git/logs/refs/x");
        assert_eq!(scene.settle(&whole, budget(2), 9), [(".git".into(), false)]);
        assert_eq!(scene.settle(&cut, budget(3), 9), [(".git/logs/refs/x".into(), false)]);
        assert_eq!(scene.settle(&whole, budget(3), 0), [(".git/logs/refs/x".into(), false)]);
        scene.link(".git/COMMIT_EDITMSG");
        let told = [(".git/COMMIT_EDITMSG".into(), true), (".git/logs/refs/x".into(), false)];
        assert_eq!(scene.settle(&cut, budget(4), 9), told);
        let whole = scene.read(9);
        assert_eq!(scene.settle(&whole, budget(9), 9), [], "what was there is the caller's");
        // The directories that are still to be looked at take budget too.
        let narrow = Budget { bytes: ".git/logs".len(), ..BUDGET };
        assert_eq!(scene.settle(&whole, narrow, 9), [(".git".into(), false)]);
    }

    /// The stage chooses the number of links, and all are moved. But it does not choose the number of lines.
    #[test]
    fn b12_many_links_are_moved_and_a_few_are_named() {
        let scene = Scene::new("many");
        let (one, other) = (super::super::leftovers::NAMED, 7);
        (0..one + other).for_each(|n| scene.link(&format!(".git/logs/refs/{n}")));
        let settle = |mut left: usize| {
            let mut told = Leftovers::default();
            scene.watch.settle(".git", &scene.watch.contents[0], &mut left, &mut told, &|| false);
            (told.named.len(), told.more_moved, told.more_left)
        };
        assert_eq!(settle(MOVED), (one, other as u64, 0));
        assert_eq!(fs::read_dir(scene.root.join(".git/logs/refs")).unwrap().count(), 0);
        let aside = crate::quarantine::aside_of(&scene.root, "RUN").join(".git/logs/refs");
        assert_eq!(fs::read_dir(aside).unwrap().count(), one + other);
        assert_eq!(settle(MOVED), (0, 0, 0));
        // Where nothing is to be moved any more, that is counted.
        (0..one + other).for_each(|n| scene.link(&format!(".git/logs/refs/{n}")));
        assert_eq!(settle(0), (one, 0, other as u64));
    }

    /// The path from the tree may be longer than the kernel takes at one go, and that from the repository short enough for git.
    #[test]
    fn b14_links_further_down_than_a_path_is_long() {
        let scene = Scene::new("deep");
        let before = scene.read(BUDGET.names);
        let flags = nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_DIRECTORY;
        let mut dir = OwnedFd::from(File::open(scene.root.join(".git/logs/refs")).unwrap());
        let name = "d".repeat(200);
        for _ in 0..30 {
            nix::sys::stat::mkdirat(&dir, name.as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
            dir = nix::fcntl::openat(&dir, name.as_str(), flags, nix::sys::stat::Mode::empty()).unwrap();
        }
        nix::unistd::symlinkat("x", &dir, "link").unwrap();
        let told = scene.settle(&before, BUDGET, 9);
        assert!(matches!(&told[..], [(path, true)] if path.ends_with("/link")), "{told:?}");
        assert!(readlinkat(&dir, "link").is_err());
        let again = scene.read(BUDGET.names);
        assert!(again.unread.is_empty());
    }

    /// Any file of these may be obeyed, by one git or another: a strategy and its options name programs, steps are commands, and
    /// a file that is gone says something too.
    #[test]
    fn b15_an_unfinished_operation_that_the_stage_began_or_changed_is_told() {
        let scene = Scene::new("operations");
        let git = scene.root.join(".git");
        let all = [
            "rebase-merge",
            "rebase-apply",
            "sequencer",
            "worktrees/w/rebase-merge",
            "worktrees/w/sequencer",
        ];
        for name in all {
            fs::create_dir_all(git.join(name)).unwrap();
        }
        fs::create_dir_all(git.join("refs/heads/sequencer")).unwrap();
        let empty = scene.read(BUDGET.names);
        assert_eq!(scene.settle(&empty, BUDGET, 9), []);
        for name in all {
            let dir = git.join(name);
            let told = [(format!(".git/{name}"), false)];
            for file in [
                "strategy",
                "strategy_opts",
                "opts",
                "todo",
                "git-rebase-todo",
                "gpg_sign_opt",
                "0001",
                "new",
            ] {
                // It began, and was there and has more in it.
                let before = scene.read(BUDGET.names);
                assert_eq!(scene.settle(&before, BUDGET, 9), [], "as it was: {name}");
                fs::write(dir.join(file), "one").unwrap();
                assert_eq!(scene.settle(&before, BUDGET, 9), told, "{file}");
                // Changed in place, for another file, and without one.
                let before = scene.read(BUDGET.names);
                std::thread::sleep(std::time::Duration::from_millis(20));
                fs::write(dir.join(file), "two").unwrap();
                assert_eq!(scene.settle(&before, BUDGET, 9), told, "{file}");
                let before = scene.read(BUDGET.names);
                fs::write(git.join("made"), "two").unwrap();
                fs::rename(git.join("made"), dir.join(file)).unwrap();
                assert_eq!(scene.settle(&before, BUDGET, 9), told, "{file}");
            }
            let before = scene.read(BUDGET.names);
            fs::remove_file(dir.join("todo")).unwrap();
            assert_eq!(scene.settle(&before, BUDGET, 9), told);
            // It is done, or given up.
            fs::remove_dir_all(&dir).unwrap();
            assert_eq!(scene.settle(&before, BUDGET, 9), []);
        }
        // A branch of such a name is none.
        let before = scene.read(BUDGET.names);
        fs::write(git.join("refs/heads/sequencer/opts"), "x").unwrap();
        assert_eq!(scene.settle(&before, BUDGET, 9), []);
        // Closed by the stage, and in a crowd.
        fs::create_dir(git.join("sequencer")).unwrap();
        fs::write(git.join("sequencer/opts"), "x").unwrap();
        let mode =
            |mode| fs::set_permissions(git.join("sequencer"), fs::Permissions::from_mode(mode)).unwrap();
        for closed in [0, 0o400, 0o600] {
            mode(closed);
            assert_eq!(scene.settle(&before, BUDGET, 9), [(".git/sequencer".into(), false)]);
            mode(0o700);
        }
        fs::create_dir(git.join("info")).unwrap();
        for n in 0..64 {
            fs::write(git.join(format!("info/{n}")), "").unwrap();
        }
        let narrow = Budget { names: 32, ..BUDGET };
        let told = [(".git/sequencer".into(), false), (".git".into(), false)];
        assert_eq!(scene.settle(&before, narrow, 9), told);
    }

    /// git-lfs, git-annex and git-svn keep files in the repository, too.
    #[test]
    fn b14_links_in_the_directories_of_tools() {
        let scene = Scene::new("tools");
        for dir in ["lfs/tmp", "lfs/objects/ab", "annex/objects/ab", "svn/refs/remotes"] {
            fs::create_dir_all(scene.root.join(".git").join(dir)).unwrap();
        }
        let before = scene.read(BUDGET.names);
        let made = ["lfs/tmp/x", "svn/.metadata", "svn/refs/remotes/x"].map(|name| format!(".git/{name}"));
        made.iter().for_each(|name| scene.link(name));
        scene.link(".git/lfs/objects/ab/x");
        let mut told = scene.settle(&before, BUDGET, 9);
        told.sort();
        assert_eq!(told, made.map(|name| (name, true)));
    }

    /// git makes files in these by name; what is in a fan-out directory it renames into its place.
    #[test]
    fn b14_links_among_the_objects() {
        let scene = Scene::new("objects");
        let objects = scene.root.join(".git/objects");
        for dir in ["info/commit-graphs", "pack", "ab"] {
            fs::create_dir_all(objects.join(dir)).unwrap();
        }
        let before = scene.read(BUDGET.names);
        let made =
            ["cd", "info/commit-graph", "info/commit-graphs/commit-graph-chain", "pack/multi-pack-index"]
                .map(|name| format!(".git/objects/{name}"));
        made.iter().for_each(|name| scene.link(name));
        scene.link(".git/objects/ab/c");
        let mut told = scene.settle(&before, BUDGET, 9);
        told.sort();
        assert_eq!(told, made.map(|name| (name, true)));
        // A branch may have the name of such a directory.
        fs::create_dir_all(scene.root.join(".git/logs/objects/ab")).unwrap();
        scene.link(".git/logs/objects/ab/c");
        assert!(scene.settle(&before, BUDGET, 9).contains(&(".git/logs/objects/ab/c".into(), true)));
    }
}

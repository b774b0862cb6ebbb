//! Protected names that were missing when the stage started and are there when it has ended: moved aside, and reported.
//!
//! What was there at the start is bound read-only. A missing name cannot be, and a stand-in would stay on the host as a
//! stub; so the name is watched. The stage has made what is found here: every step is relative to a directory that was
//! opened before it ran, and no symbolic link is followed. It has set the modes, too: a directory of the caller's is opened
//! for the move, and closed again.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::RandomState;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use exeat_audit::random_number;
use nix::errno::Errno;
use nix::fcntl::{
    AT_FDCWD, AtFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, openat2, readlinkat, renameat2,
};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstat, fstatat};
use nix::unistd::geteuid;

use exeat_files::names::open_plain;
use exeat_files::protected::{Obeyed, matches_pattern};

mod leftovers;
mod repository;

pub use leftovers::{Found, Leftovers};
pub(crate) use repository::beyond_search;
use repository::{Contents, MOVED, Moved};

/// What is appended to the name.
const SUFFIX: &str = ".exeat-quarantine";
/// Names that are tried when that one is taken. They are drawn after the stage has ended, so that it could not take them.
const DRAWN: u32 = 8;
/// The longest name of a file, in bytes (NAME_MAX of limits.h).
const LONGEST: usize = 255;

/// Entries of a directory that are compared with a pattern.
pub(crate) const MAX_ENTRIES: usize = 1 << 16;

/// A name that was missing at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingName {
    /// Its place below the tree.
    pub(crate) name: String,
    pub(crate) obeyed: Obeyed,
}

/// Names in one directory that are all protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The directory's place below the tree, which is "" itself.
    pub(crate) dir: String,
    /// The pattern ([`exeat_files::protected::matches_pattern`]).
    pub(crate) name: String,
    /// The names that were there at the start.
    pub(crate) known: Vec<String>,
    pub(crate) obeyed: Obeyed,
}

/// Names in one writable tree that were missing at the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Missing {
    pub(crate) tree: PathBuf,
    pub(crate) names: Vec<MissingName>,
    /// Patterns of names, each in one directory.
    pub(crate) patterns: Vec<Pattern>,
    /// Links that were there, and what they said: a name of the list leads through them.
    pub(crate) links: Vec<(String, PathBuf)>,
    /// Names of `.git`, which is a directory or nothing: git is led elsewhere by a file or a link there.
    pub(crate) pointers: Vec<String>,
    /// Of the names that make a directory a repository without a `.git` ([`is_repository`]), those that were missing.
    pub(crate) bare: Vec<String>,
    /// Directories of repositories, whether they are there or not: what git would follow in them is no name of the list. The
    /// tree itself is "".
    pub(crate) repositories: Vec<String>,
}

impl Missing {
    /// Whether there is nothing to watch.
    pub(crate) fn is_empty(&self) -> bool {
        let names = [&self.pointers, &self.bare, &self.repositories];
        self.names.is_empty()
            && self.patterns.is_empty()
            && self.links.is_empty()
            && names.iter().all(|names| names.is_empty())
    }
}

/// Names that make a directory a repository, in the order in which they are taken away from one.
pub(crate) const REPOSITORY: [&str; 4] = ["HEAD", "commondir", "objects", "refs"];

/// Whether git takes a directory for a repository: `is_git_directory` of git's setup.c. What the names stand for is not asked,
/// as that can change. `is_there` tells of a name, whatever it stands for.
pub(crate) fn is_repository(is_there: impl Fn(&str) -> bool) -> bool {
    let [head, commondir, objects, refs] = REPOSITORY;
    is_there(head) && (is_there(commondir) || is_there(objects) && is_there(refs))
}

/// The names, and the tree as it was opened before the stage started.
#[derive(Debug)]
pub(crate) struct Watch {
    missing: Missing,
    tree: File,
    /// `.git` files that are there at the start, by their pointers: bound read-only, and no stage's work.
    files: Vec<Option<FileId>>,
    /// What is in the repositories at the start.
    contents: Vec<Contents>,
    /// Drawn by the kernel: no stage can make a name whose hash is another's.
    keys: RandomState,
}

/// The device and the inode.
type FileId = (u64, u64);

impl Watch {
    /// Opens the tree.
    pub(crate) fn start(missing: Missing) -> io::Result<Self> {
        // Its name had no link in it when the view was made: one that has come since leads to a tree that is not the stage's.
        // The tree may also be a single file, or one that waits for a writer.
        let tree = File::from(open_plain(&missing.tree)?);
        let files = missing.pointers.iter().map(|name| file_at(&tree, name)).collect();
        let keys = RandomState::new();
        let contents = missing.repositories.iter().map(|name| Contents::of(&tree, Path::new(name), &keys));
        let contents = contents.collect();
        Ok(Self { missing, tree, files, contents, keys })
    }

    /// Moves aside what has appeared under the names that are known. How many these are is not for the stage to say.
    fn settle_names(&self) -> Vec<Found> {
        // First: what stands behind such a pointer has other names once it is gone.
        let pointers = self.missing.pointers.iter().zip(&self.files);
        let pointers = pointers.filter_map(|(name, was)| {
            self.look(name, |_, _, stat| {
                kind(stat) == SFlag::S_IFDIR || was.is_some() && file_id(stat) == *was
            })
        });
        let names = self.missing.names.iter().filter_map(|it| self.look(&it.name, |_, _, _| false));
        let patterns = self.missing.patterns.iter().flat_map(|pattern| self.settle_pattern(pattern));
        let links = self.missing.links.iter().filter_map(|(name, target)| {
            self.look(name, |dir, last, _| readlinkat(dir, last).is_ok_and(|said| said == **target))
        });
        let bare = self.missing.bare.iter().filter_map(|name| {
            self.look(name, |dir, _, _| {
                let is_there = |name: &str| fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
                !is_repository(is_there)
            })
        });
        pointers.chain(names).chain(patterns).chain(links).chain(bare).collect()
    }

    /// Moves aside what a pattern stands for and was not there at the start.
    fn settle_pattern(&self, pattern: &Pattern) -> Vec<Found> {
        let at = if pattern.dir.is_empty() { "." } else { pattern.dir.as_str() };
        let path = |name: &str| Path::new(&pattern.dir).join(name);
        let listed = open_beneath(&self.tree, Path::new(at)).and_then(|dir| {
            let_in(dir.as_fd(), || {
                let entries = fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()));
                let mut entries =
                    entries.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
                let names = entries.by_ref().take(MAX_ENTRIES).flatten();
                let names = names.filter_map(|entry| entry.file_name().into_string().ok());
                let names = names
                    .filter(|name| matches_pattern(&pattern.name, name) && !pattern.known.contains(name));
                Ok((names.collect::<Vec<_>>(), entries.next().is_some()))
            })
        });
        match listed {
            Ok((names, is_cut)) => {
                let names = names.iter().filter_map(|name| path(name).to_str().map(str::to_owned));
                let found = names.filter_map(|name| self.look(&name, |_, _, _| false));
                let cut = is_cut.then(|| Found {
                    path: self.missing.tree.join(path(&pattern.name)),
                    moved: Err(io::Error::other(
                        "the directory holds too many names to look for those of this pattern",
                    )),
                });
                found.chain(cut).collect()
            }
            // A link on the way is moved aside for the exact names beside the pattern.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Vec::new(),
            Err(errno) => {
                vec![Found { path: self.missing.tree.join(path(&pattern.name)), moved: Err(errno.into()) }]
            }
        }
    }

    /// What stands at a name, unless it may.
    fn look(&self, name: &str, may: impl Fn(BorrowedFd<'_>, &OsStr, &FileStat) -> bool) -> Option<Found> {
        let (above, last) = name.rsplit_once('/').map_or((None, name), |(above, last)| (Some(above), last));
        let path = self.missing.tree.join(name);
        // Most names are at the top of the tree, which is open.
        let opened = above.map(|above| open_beneath(&self.tree, Path::new(above))).transpose();
        let opened = match opened {
            Ok(dir) => dir,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return None,
            Err(errno) => {
                let link = above.and_then(|above| self.link_on_the_way(above));
                return Some(link.unwrap_or(Found { path, moved: Err(errno.into()) }));
            }
        };
        let dir = opened.as_ref().map_or(self.tree.as_fd(), AsFd::as_fd);
        settle_in(dir, path, OsStr::new(last), may)
    }
}

impl Watch {
    /// A link where a directory was expected is moved itself: nothing behind it is looked at, or is ours to move.
    fn link_on_the_way(&self, path: &str) -> Option<Found> {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        let mut names = ends.filter_map(|end| path.get(..end));
        names.find_map(|name| self.look(name, |_, _, stat| kind(stat) != SFlag::S_IFLNK))
    }
}

/// Moves aside what has appeared in these trees.
pub(crate) fn finish(watches: &[Watch]) -> Leftovers {
    let mut told = Leftovers::default();
    // Names that are known come first: what a stage can make many of is not to take their place among those that are named.
    let settled: Vec<Vec<Found>> = watches.iter().map(Watch::settle_names).collect();
    let mut aside = Vec::new();
    for (watch, found) in watches.iter().zip(settled) {
        let mut moved = Moved::default();
        for found in found {
            moved.add(watch, &found);
            told.add(found);
        }
        aside.push(moved);
    }
    let mut left = MOVED;
    for (watch, mut moved) in watches.iter().zip(aside) {
        for (name, before) in watch.missing.repositories.iter().zip(&watch.contents) {
            watch.settle(name, before, &mut moved, &mut left, &mut told);
        }
    }
    told
}

/// What stands at a name in a directory, unless it may. `path` is its place on the host.
fn settle_in(
    dir: BorrowedFd<'_>,
    path: PathBuf,
    last: &OsStr,
    may: impl Fn(BorrowedFd<'_>, &OsStr, &FileStat) -> bool,
) -> Option<Found> {
    let settled = let_in(dir, || {
        let stat = match fstatat(dir, last, AtFlags::AT_SYMLINK_NOFOLLOW) {
            // The tree is a single file.
            Err(Errno::ENOTDIR) => return Ok(None),
            stat => stat?,
        };
        if may(dir, last, &stat) { Ok(None) } else { aside(dir, last).map(Some) }
    });
    match settled {
        Ok(None) | Err(Errno::ENOENT) => None,
        Ok(Some(new)) => Some(Found { moved: Ok(path.with_file_name(new)), path }),
        Err(errno) => Some(Found { path, moved: Err(errno.into()) }),
    }
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Which file it is, if it is a regular one.
fn file_id(stat: &FileStat) -> Option<FileId> {
    (kind(stat) == SFlag::S_IFREG).then_some((stat.st_dev, stat.st_ino))
}

fn file_at(tree: &File, name: &str) -> Option<FileId> {
    let (above, last) = name.rsplit_once('/').unwrap_or((".", name));
    let dir = open_beneath(tree, Path::new(above)).ok()?;
    file_id(&fstatat(&dir, last, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?)
}

/// Opens a directory in the tree: at one go, or step by step where a directory on the way was closed.
fn open_beneath(tree: &File, path: &Path) -> nix::Result<OwnedFd> {
    match open_at(tree.as_fd(), path) {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    // `.` asks for the right to search the tree.
    let mut dir = let_in(tree.as_fd(), || open_at(tree.as_fd(), Path::new(".")))?;
    for part in path.components() {
        let step = let_in(dir.as_fd(), || open_at(dir.as_fd(), part.as_ref()))?;
        dir = step;
    }
    Ok(dir)
}

/// Opens a directory below another one, through no link.
fn open_at(dir: BorrowedFd<'_>, path: &Path) -> nix::Result<OwnedFd> {
    let resolve =
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(resolve);
    openat2(dir, path, how)
}

/// Does it; where that is refused, with the directory opened for its owner as long as it takes.
fn let_in<T>(dir: BorrowedFd<'_>, act: impl Fn() -> nix::Result<T>) -> nix::Result<T> {
    match act() {
        Err(Errno::EACCES) => {
            let _opened = Opened::new(dir)?;
            act()
        }
        other => other,
    }
}

/// A directory that its owner may list, search and write as long as this lives.
struct Opened<'a> {
    dir: BorrowedFd<'a>,
    was: Mode,
}

impl<'a> Opened<'a> {
    /// Of the caller's directories only; root's rights reach further, and are used as they are.
    fn new(dir: BorrowedFd<'a>) -> nix::Result<Self> {
        let stat = fstat(dir)?;
        let caller = geteuid();
        if kind(&stat) != SFlag::S_IFDIR || !(caller.is_root() || stat.st_uid == caller.as_raw()) {
            return Err(Errno::EACCES);
        }
        let was = Mode::from_bits_truncate(stat.st_mode);
        set_mode(dir, was | Mode::S_IRWXU)?;
        Ok(Self { dir, was })
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // It was ours to change a moment ago; a directory that stays open to its owner is no loss.
        let _ = set_mode(self.dir, self.was);
    }
}

/// fchmod(2) takes no descriptor that was opened with O_PATH (open(2)), and another may need the mode that is set here.
fn set_mode(dir: BorrowedFd<'_>, mode: Mode) -> nix::Result<()> {
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    fchmodat(AT_FDCWD, path.as_str(), mode, FchmodatFlags::FollowSymlink)
}

/// Renames it in its directory, over nothing, and gives the new name.
fn aside(dir: BorrowedFd<'_>, name: &OsStr) -> nix::Result<String> {
    let words = name.to_string_lossy();
    for attempt in 0..=DRAWN {
        let new = if attempt == 0 { suffixed(&words, SUFFIX) } else { drawn(&words) };
        match renameat2(dir, name, dir, new.as_str(), RenameFlags::RENAME_NOREPLACE) {
            Err(Errno::EEXIST) => {}
            other => return other.map(|()| new),
        }
    }
    Err(Errno::EEXIST)
}

/// With a suffix that nobody can have known.
fn drawn(name: &str) -> String {
    suffixed(name, &format!("{SUFFIX}.{:016x}", random_number()))
}

/// The name, shortened as far as the suffix needs it.
fn suffixed(name: &str, suffix: &str) -> String {
    let room = LONGEST.saturating_sub(suffix.len());
    let kept = (0..=room.min(name.len())).rev().find_map(|end| name.get(..end)).unwrap_or_default();
    format!("{kept}{suffix}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("quarantine-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("tree")).unwrap();
        root
    }

    fn missing(names: &[&str]) -> Vec<MissingName> {
        let missing = |name: &&str| MissingName { name: (*name).into(), obeyed: Obeyed::AtOnce };
        names.iter().map(missing).collect()
    }

    fn done(watch: Watch) -> Vec<Found> {
        finish(&[watch]).named
    }

    fn watch(root: &Path) -> Watch {
        Watch::start(Missing {
            tree: root.join("tree"),
            names: missing(&[".git/hooks", ".envrc"]),
            patterns: Vec::new(),
            links: vec![("link".into(), "x".into())],
            pointers: Vec::new(),
            bare: Vec::new(),
            repositories: Vec::new(),
        })
        .unwrap()
    }

    fn watch_git(root: &Path) -> Watch {
        Watch::start(Missing {
            tree: root.join("tree"),
            names: missing(&[".git/hooks"]),
            patterns: Vec::new(),
            links: Vec::new(),
            pointers: vec![".git".into()],
            bare: Vec::new(),
            repositories: vec![".git".into()],
        })
        .unwrap()
    }

    fn mode(path: &Path, to: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(to)).unwrap();
    }

    fn names_in(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn b12_what_appears_is_moved_and_nothing_is_left_where_nothing_appeared() {
        let root = scratch("moved");
        assert!(done(watch(&root)).is_empty());
        assert_eq!(fs::read_dir(root.join("tree")).unwrap().count(), 0, "no stubs");

        for _ in 0..2 {
            let watch = watch(&root);
            fs::create_dir_all(root.join("tree/.git/hooks")).unwrap();
            fs::write(root.join("tree/.envrc"), "evil").unwrap();
            let found = done(watch);
            assert_eq!(found.len(), 2, "{found:?}");
            assert!(found.iter().all(|found| found.moved.is_ok()));
            assert!(!root.join("tree/.git/hooks").exists() && !root.join("tree/.envrc").exists());
        }
        let hooks = names_in(&root.join("tree/.git"));
        assert!(hooks.len() == 2 && hooks[1].starts_with("hooks.exeat-quarantine."), "{hooks:?}");
        assert_eq!(fs::read(root.join("tree/.envrc.exeat-quarantine")).unwrap(), b"evil");
        fs::remove_dir_all(root).unwrap();
    }

    /// Unchanged it stays; another one, or anything else in its place, is what the stage has made.
    #[test]
    fn b13_a_link_that_was_replaced_is_moved() {
        let root = scratch("replaced");
        let at = root.join("tree/link");
        symlink("x", &at).unwrap();
        assert!(done(watch(&root)).is_empty());
        let replace: [fn(&Path); 3] = [
            |at| symlink("y", at).unwrap(),
            |at| fs::write(at, "x").unwrap(),
            |at| fs::create_dir(at).unwrap(),
        ];
        for replace in replace {
            let watch = watch(&root);
            fs::remove_file(&at).unwrap();
            replace(&at);
            let found = done(watch);
            assert!(found.len() == 1 && found[0].moved.is_ok(), "{found:?}");
            assert!(fs::symlink_metadata(&at).is_err());
            symlink("x", &at).unwrap();
        }
        fs::remove_file(&at).unwrap();
        assert!(done(watch(&root)).is_empty(), "what is gone does nothing");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn b14_a_link_does_not_lead_the_move_out_of_the_tree() {
        let root = scratch("link");
        let watch = watch(&root);
        fs::create_dir_all(root.join("outside/hooks")).unwrap();
        symlink(root.join("outside"), root.join("tree/.git")).unwrap();
        let found = done(watch);
        let [Found { path, moved: Ok(moved) }] = &found[..] else { panic!("{found:?}") };
        assert_eq!((path, names_in(&root.join("outside"))), (&root.join("tree/.git"), vec!["hooks".into()]));
        assert_eq!(fs::read_link(moved).unwrap(), root.join("outside"), "the link, and nothing behind it");
        fs::remove_dir_all(root).unwrap();
    }

    /// Further down, and in a directory that the stage has closed.
    #[test]
    fn b12_a_link_on_the_way_is_moved() {
        let root = scratch("way");
        let tree = root.join("tree");
        let missing = Missing {
            tree: tree.clone(),
            names: missing(&["a/b/c/name", "a/b/other"]),
            patterns: Vec::new(),
            links: Vec::new(),
            pointers: Vec::new(),
            bare: Vec::new(),
            repositories: Vec::new(),
        };
        fs::create_dir_all(root.join("outside/c")).unwrap();
        fs::write(root.join("outside/c/name"), "mine").unwrap();
        let watch = Watch::start(missing).unwrap();
        fs::create_dir_all(tree.join("a")).unwrap();
        symlink("../../outside", tree.join("a/b")).unwrap();
        mode(&tree.join("a"), 0o500);
        let found = done(watch);
        mode(&tree.join("a"), 0o755);
        assert!(found.len() == 1 && found[0].moved.is_ok(), "{found:?}");
        assert_eq!(names_in(&tree.join("a")), ["b.exeat-quarantine"]);
        assert_eq!(fs::read(root.join("outside/c/name")).unwrap(), b"mine");
        fs::remove_dir_all(root).unwrap();
    }

    /// What was missing of a repository without a `.git` is moved where the stage has completed it, and only then.
    #[test]
    fn b12_a_bare_repository_is_none_afterwards() {
        for (before, made, moved) in [
            ("", "HEAD objects refs", "HEAD"),
            ("", "HEAD commondir", "HEAD"),
            ("HEAD", "objects refs commondir", "commondir objects"),
            ("HEAD objects", "refs", "refs"),
            ("objects refs", "HEAD", "HEAD"),
            ("", "HEAD refs", ""),
            ("", "objects refs commondir", ""),
            ("objects", "HEAD", ""),
        ] {
            let root = scratch("bare");
            let tree = root.join("tree");
            before.split_whitespace().for_each(|name| fs::create_dir(tree.join(name)).unwrap());
            let is_missing = |name: &&&str| !before.contains(**name);
            let watch = Watch::start(Missing {
                tree: tree.clone(),
                names: Vec::new(),
                patterns: Vec::new(),
                links: Vec::new(),
                pointers: Vec::new(),
                bare: REPOSITORY.iter().filter(is_missing).map(ToString::to_string).collect(),
                repositories: Vec::new(),
            });
            // Links that lead nowhere may lead somewhere tomorrow.
            made.split_whitespace().for_each(|name| symlink("x", tree.join(name)).unwrap());
            let found = done(watch.unwrap());
            let names: Vec<_> = found.iter().map(|found| found.path.file_name().unwrap()).collect();
            assert_eq!(names, moved.split_whitespace().collect::<Vec<_>>(), "{before}, then {made}");
            assert!(!is_repository(|name| fs::symlink_metadata(tree.join(name)).is_ok()));
            fs::remove_dir_all(root).unwrap();
        }
    }

    #[test]
    fn b14_a_link_on_the_way_to_the_tree_is_not_followed() {
        let root = scratch("swapped");
        fs::rename(root.join("tree"), root.join("elsewhere")).unwrap();
        symlink("elsewhere", root.join("tree")).unwrap();
        let missing = |tree: &str| Missing {
            tree: root.join(tree),
            names: missing(&[".envrc"]),
            patterns: Vec::new(),
            ..Missing::default()
        };
        let error = Watch::start(missing("tree")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::libc::ELOOP), "{error}");
        Watch::start(missing("elsewhere")).unwrap();
        fs::remove_dir_all(root).unwrap();
    }

    /// Root's rights reach through any mode: then this says nothing, and tests/e2e/escape/quarantine.rs is what counts.
    #[test]
    fn b12_a_mode_keeps_nothing_in_its_place() {
        let root = scratch("modes");
        let (tree, git) = (root.join("tree"), root.join("tree/.git"));
        for (of_git, of_tree) in [(0o555, 0o555), (0o555, 0o755), (0o000, 0o000), (0o400, 0o2500)] {
            let watch = watch(&root);
            fs::create_dir_all(git.join("hooks")).unwrap();
            fs::write(tree.join(".envrc"), "evil").unwrap();
            mode(&git, of_git);
            mode(&tree, of_tree);
            let found = done(watch);
            assert_eq!(fs::metadata(&tree).unwrap().permissions().mode() & 0o7777, of_tree);
            mode(&tree, 0o755);
            assert_eq!(fs::metadata(&git).unwrap().permissions().mode() & 0o7777, of_git);
            mode(&git, 0o755);
            assert!(found.len() == 2 && found.iter().all(|found| found.moved.is_ok()), "{found:?}");
            assert!(!git.join("hooks").exists() && !tree.join(".envrc").exists());
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn b12_a_pointer_to_another_repository_is_moved() {
        let root = scratch("pointer");
        let git = root.join("tree/.git");
        fs::create_dir_all(root.join("tree/x/hooks")).unwrap();
        let make: [fn(&Path); 2] = [|at| fs::write(at, "gitdir: x").unwrap(), |at| symlink("x", at).unwrap()];
        for make in make {
            let watch = watch_git(&root);
            make(&git);
            let found = done(watch);
            assert!(found.len() == 1 && found[0].path == git && found[0].moved.is_ok(), "{found:?}");
            assert!(fs::symlink_metadata(&git).is_err());
        }
        assert!(root.join("tree/x/hooks").is_dir(), "nothing behind it is touched");

        // There at the start, and bound read-only: the caller's own.
        fs::write(&git, "gitdir: mine").unwrap();
        assert!(done(watch_git(&root)).is_empty());
        fs::remove_file(&git).unwrap();
        // A directory may be made; what git obeys in it may not.
        let watch = watch_git(&root);
        fs::create_dir_all(git.join("hooks")).unwrap();
        let found = done(watch);
        assert!(found.len() == 1 && found[0].path == git.join("hooks"), "{found:?}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn b12_taken_and_long_names_keep_nothing_in_its_place() {
        let root = scratch("taken");
        let tree = root.join("tree");
        let long = format!("{}\u{fc}", "n".repeat(236));
        assert_eq!(long.len() + SUFFIX.len(), 255);
        let longer = "\u{fc}".repeat(127);
        let names = missing(&[".envrc", &long, &longer]);
        let missing = Missing {
            tree: tree.clone(),
            names,
            patterns: Vec::new(),
            links: Vec::new(),
            pointers: Vec::new(),
            bare: Vec::new(),
            repositories: Vec::new(),
        };
        let watch = Watch::start(missing).unwrap();
        for name in [".envrc", &long, &longer] {
            fs::write(tree.join(name), "evil").unwrap();
        }
        fs::write(tree.join(".envrc.exeat-quarantine"), "mine").unwrap();
        fs::write(tree.join(format!("{long}.exeat-quarantine")), "mine").unwrap();
        for number in 1..100 {
            fs::write(tree.join(format!(".envrc.exeat-quarantine.{number}")), "").unwrap();
        }
        let found = done(watch);
        assert!(found.len() == 3 && found.iter().all(|found| found.moved.is_ok()), "{found:?}");
        for Found { path, moved } in &found {
            assert!(fs::symlink_metadata(path).is_err());
            assert_eq!(fs::read(moved.as_ref().unwrap()).unwrap(), b"evil");
        }
        assert_eq!(fs::read(tree.join(".envrc.exeat-quarantine")).unwrap(), b"mine");
        fs::remove_dir_all(root).unwrap();
    }
}

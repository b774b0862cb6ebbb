//! Files of a repository that name paths to which git writes: the index, and the list of conflicts of rerere. git does not check these
//! paths: `git checkout -- .` writes the files of the index, also `.git/hooks/post-checkout` and `../../.bashrc`.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::iter;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, readlinkat};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::unistd::geteuid;

use super::descriptors::{entries, id_of, kind, let_in, open_above, open_beneath, open_file};
use super::file_lists::{FILE_LISTS, PARTS, is_part, is_right_list};
use super::git_names::{CONFLICTS, INDEX, NAMING, NUMBERS, is_no_number};
use super::modules::{GitDir, gitdir_of};
use super::path_room::PathRoom;
use super::{DIRECTORY, Leftover, MAX_ENTRIES, Watch, is_repository};
use crate::git_config::{Setting, settings};
use crate::index::{Conflicts, check_entries, conflicts};
use crate::names::joined;
use crate::protected::GIT_LINK;
use crate::walk::clean;

/// The words that `git mergetool` adds to the name of a file with a conflict, before a number, for its copies.
const COPIES: [&str; 6] = ["_BACKUP_", "_LOCAL_", "_REMOTE_", "_BASE_", "_LOCAL_LCONFL_", "_REMOTE_RCONFL_"];
/// The beginning of the names of indexes that others build upon (gitformat-index(5), "Split index").
const SHARED_INDEX: &str = "sharedindex.";
/// Bytes of a configuration, and of a list of conflicts, that are read.
const CONFIG: u64 = 1 << 20;
/// Why a file that stays is told.
const UNREAD: &str =
    "it cannot be read, so links to files with conflicts may stay: git mergetool writes through them";
/// A search of the files that name paths.
struct PathSearch<'a> {
    room: &'a mut PathRoom,
    /// The trees that the stage could write to: a working tree may lie in another one than its repository.
    watches: &'a [&'a Watch],
    /// Whether there may be new links in the working trees.
    has_new_links: bool,
    is_over: &'a dyn Fn() -> bool,
}

impl Watch {
    /// Moves aside the indexes of these directories that name a path outside of the working tree or in a repository's directory, or that
    /// cannot be read, lists of conflicts, and links on the way to a file with a conflict. `has_new_links`: whether there may be links in the
    /// working trees that came during the run.
    pub(super) fn settle_paths<'a>(
        &self,
        dirs: impl IntoIterator<Item = &'a GitDir>,
        watches: &[&Self],
        has_new_links: bool,
        is_over: &dyn Fn() -> bool,
    ) -> Vec<Leftover> {
        let mut room = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let mut search = PathSearch { room: &mut room, watches, has_new_links, is_over };
        dirs.into_iter().flat_map(|dir| self.settle_paths_by(MAX_ENTRIES, dir, &mut search)).collect()
    }

    /// `most` is the number of names that are read in one directory.
    fn settle_paths_by(&self, most: usize, git: &GitDir, search: &mut PathSearch<'_>) -> Vec<Leftover> {
        let dir = open_beneath(&self.tree, &git.path).ok().filter(|_| !(search.is_over)());
        let Some(dir) = dir else { return Vec::new() };
        let is_there =
            |name: &str| let_in(dir.as_fd(), || fstatat(&dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)).is_ok();
        // Other directories have files of these names, too.
        if !git.is_held() && !git.path.ends_with(GIT_LINK) && !is_repository(is_there) {
            return Vec::new();
        }
        let mut found = self.settle_numbers(git);
        found.extend(self.settle_file_lists(most, git, &mut search.room.lists));
        if search.has_new_links {
            self.settle_links_to_works(git, search.watches, &mut found);
        }
        let (shared, is_whole) =
            let_in(dir.as_fd(), || shared_indexes(most, dir.as_fd())).unwrap_or_default();
        let (mut works, names) = (None, NAMING.map(OsString::from).into_iter().chain(shared));
        for name in names {
            if (search.is_over)() {
                break;
            }
            let below = git.path.join(&name);
            let file = match open_file(dir.as_fd(), &name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // A stage may have closed it, or put something else there.
                file => file.ok(),
            };
            // The index may build upon one that is not listed.
            let is_unclear = !is_whole && name == INDEX;
            let is_known =
                !is_unclear && (self.is_as_it_was(&below) || !self.is_changed_in(&git.path, &below));
            let is_wrong = match file {
                // It stays. The stage may have put a link on the way to what it names.
                Some(file) if is_known && search.has_new_links => {
                    let works = works.get_or_insert_with(|| self.works_of(git));
                    let is_list = name == CONFLICTS;
                    let paths =
                        if is_list { listed(&file) } else { conflicts(&file, &mut search.room.old_indexes) };
                    match paths {
                        Some(paths) => self.settle_links_to(&paths, works.as_deref(), search, &mut found),
                        None => found.push(Leftover {
                            path: self.missing.tree.join(&below),
                            moved: Err(io::Error::other(UNREAD)),
                        }),
                    }
                    false
                }
                _ if is_known => false,
                None => true,
                Some(file) if name == CONFLICTS => file.metadata().map_or(true, |meta| meta.len() > 0),
                Some(file) => {
                    let works = works.get_or_insert_with(|| self.works_of(git));
                    !self.is_index_right(&file, works.as_deref(), search, &mut found) || is_unclear
                }
            };
            found.extend(self.settle_in(dir.as_fd(), &below, &name, |_, _, _| !is_wrong));
        }
        found
    }

    /// Moves aside files that list others by name, and name one elsewhere.
    fn settle_file_lists(&self, most: usize, git: &GitDir, room: &mut u64) -> Vec<Leftover> {
        let mut found = Vec::new();
        let mut settle = |at: &Path| {
            // A link, and one on the way, is not for this to judge.
            let room = RefCell::new(&mut *room);
            let may = |dir: BorrowedFd<'_>, name: &OsStr, stat: &FileStat| {
                let right = |file: File| is_right_list(name, &file, &mut room.borrow_mut());
                kind(stat) == SFlag::S_IFLNK || open_file(dir, name).is_ok_and(right)
            };
            let at = git.path.join(at);
            let dir = open_above(&self.tree, &at).ok();
            found.extend(
                dir.zip(at.file_name()).and_then(|(dir, name)| self.settle_in(dir.as_fd(), &at, name, may)),
            );
        };
        FILE_LISTS.iter().for_each(|at| settle(Path::new(at)));
        let Ok(dir) = open_beneath(&self.tree, &git.path.join(PARTS)) else { return found };
        let mut names = let_in(dir.as_fd(), || entries(dir.as_fd())).into_iter().flatten();
        let parts = names.by_ref().take(most).flatten().filter(|(name, _)| is_part(name));
        parts.for_each(|(name, _)| settle(&Path::new(PARTS).join(name)));
        // One may be among too many names.
        if names.next().is_some() {
            found.extend(self.settle_at(git.path.join(PARTS), |_, _, _| false));
        }
        found
    }

    /// Moves aside files that must hold numbers, and hold something else.
    fn settle_numbers(&self, git: &GitDir) -> Vec<Leftover> {
        let mut found = Vec::new();
        for (operation, names) in NUMBERS {
            let at = git.path.join(operation);
            let Ok(dir) = open_beneath(&self.tree, &at) else { continue };
            for name in names {
                let path = at.join(name);
                let may =
                    |dir: BorrowedFd<'_>, name: &OsStr, _: &FileStat| !is_no_number(operation, dir, name);
                found.extend(self.settle_in(dir.as_fd(), &path, OsStr::new(name), may));
            }
        }
        found
    }

    /// Returns whether an index is right. `found` gets the links that were moved.
    fn is_index_right(
        &self,
        file: &File,
        works: Option<&[PathBuf]>,
        search: &mut PathSearch<'_>,
        found: &mut Vec<Leftover>,
    ) -> bool {
        let Ok(id) = fstat(file).map(|stat| id_of(&stat)) else { return false };
        let key = (id, works.map(<[PathBuf]>::to_vec));
        if let Some(is_right) = search.room.read.get(&key) {
            return *is_right;
        }
        let is_root = geteuid().is_root();
        let is_harmless = |path: &[u8], is_unmerged: bool| is_harmless(path, is_unmerged, is_root);
        let unmerged = check_entries(file, &mut search.room.indexes, is_file_of_tree, is_harmless);
        let is_alone = file.metadata().is_ok_and(|meta| meta.nlink() == 1);
        let is_right = is_alone && unmerged.as_ref().is_some_and(|paths| works.is_some() || paths.is_empty());
        self.settle_links_to(&unmerged.unwrap_or_default(), works, search, found);
        search.room.read.insert(key, is_right);
        is_right
    }

    /// Moves links on the way to files with conflicts, and links that have the name of such a file or of one that `git mergetool` makes beside
    /// it: `git mergetool` writes to these wherever the link leads. `found` gets what was moved.
    fn settle_links_to(
        &self,
        unmerged: &Conflicts,
        works: Option<&[PathBuf]>,
        search: &mut PathSearch<'_>,
        found: &mut Vec<Leftover>,
    ) {
        let mut dirs: BTreeMap<OsString, HashMap<&OsStr, bool>> = BTreeMap::new();
        for work in works.into_iter().flatten() {
            for (path, is_link) in unmerged {
                let path = Path::new(path);
                let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { continue };
                dirs.entry(work.join(above).into()).or_default().insert(name, *is_link);
            }
        }
        let is_over = || (search.is_over)();
        for (at, conflicts) in dirs.into_iter().take_while(|_| !is_over()) {
            let (at, names) = (Path::new(&at), &mut search.room.names);
            // A stage puts no link elsewhere.
            let Some((watch, below)) = watch_of(search.watches, at) else { continue };
            // It is opened from the top.
            *names = names.saturating_sub(below.components().count());
            match open_beneath(&watch.tree, below) {
                Ok(dir) => watch.settle_links_in(&dir, below, &conflicts, names, found),
                Err(Errno::ELOOP) => found.extend(watch.link_on_the_way(below)),
                Err(_) => {}
            }
            if *names == 0 {
                let moved = Err(io::Error::other(UNREAD));
                found.push(Leftover { path: at.to_path_buf(), moved });
                break;
            }
        }
    }

    /// Moves the links of a directory to which `git mergetool` writes for a file in it with a conflict. Reads at most so many `names`.
    fn settle_links_in(
        &self,
        dir: &OwnedFd,
        at: &Path,
        conflicts: &HashMap<&OsStr, bool>,
        names: &mut usize,
        found: &mut Vec<Leftover>,
    ) {
        let is_no_link = |_: BorrowedFd<'_>, _: &OsStr, stat: &FileStat| kind(stat) != SFlag::S_IFLNK;
        let listed = let_in(dir.as_fd(), || entries(dir.as_fd()));
        for (name, file_type) in listed.into_iter().flatten().flatten().take(*names) {
            *names -= 1;
            // Where a version is a link, git copies what it leads to.
            let leads_out = || {
                let to = readlinkat(dir, name.as_os_str()).ok();
                let place = to.and_then(|to| self.place_of(at, Path::new(&to)));
                place.is_some_and(|place| !place.starts_with(&self.missing.tree))
            };
            let is_written = || {
                written_for(&name).any(|(file, is_itself)| {
                    let of_conflict = conflicts.get(file.as_os_str());
                    of_conflict.is_some_and(|is_link| !is_itself || !is_link || leads_out())
                })
            };
            if file_type.is_none_or(|it| it == Type::Symlink) && is_written() {
                found.extend(self.settle_in(dir.as_fd(), &at.join(&name), &name, is_no_link));
            }
        }
    }

    /// Moves links that came on the way to a working tree which a configuration names, however old that is: git writes to where they lead.
    fn settle_links_to_works(&self, git: &GitDir, watches: &[&Self], found: &mut Vec<Leftover>) {
        for work in self.works_of(git).into_iter().flatten() {
            let Some((watch, below)) = watch_of(watches, &work) else { continue };
            if open_beneath(&watch.tree, below).err() == Some(Errno::ELOOP)
                && watch.is_new_way(Path::new(GIT_LINK), below)
            {
                found.extend(watch.link_on_the_way(below));
            }
        }
    }

    /// Lists the working trees that a repository may have. `None` if it has none.
    fn works_of(&self, git: &GitDir) -> Option<Vec<PathBuf>> {
        let dir = joined(&self.missing.tree, &git.path);
        let place = |to: &OsStr| clean(&dir.join(to));
        // Its directory may also be known as a repository of its own.
        let linked = gitdir_of(&self.tree, &git.path);
        let linked = linked.map(|to| place(to.as_ref()).parent().map(Path::to_path_buf));
        if git.path != git.config {
            return Some(vec![linked??]);
        }
        let read = || {
            let file = open_file(open_beneath(&self.tree, &git.config)?.as_fd(), OsStr::new("config"))?;
            let mut text = Vec::new();
            file.take(CONFIG).read_to_end(&mut text)?;
            Ok::<_, io::Error>(text)
        };
        let own = dir.parent().filter(|_| dir.ends_with(GIT_LINK)).map(Path::to_path_buf);
        let set = settings(&read().unwrap_or_default()).into_iter().filter_map(|setting| match setting {
            Setting::Worktree(to) => Some(place(to.as_ref())),
            _ => None,
        });
        // The configuration may be moved aside later, and change in another run.
        let works: Vec<_> = own.into_iter().chain(linked.flatten()).chain(set).collect();
        Some(works).filter(|works| !works.is_empty())
    }
}

/// Returns the innermost tree that a place lies in, and the place below it.
fn watch_of<'w, 'p>(watches: &[&'w Watch], place: &'p Path) -> Option<(&'w Watch, &'p Path)> {
    let around =
        watches.iter().filter_map(|watch| Some((*watch, place.strip_prefix(&watch.missing.tree).ok()?)));
    around.min_by_key(|(_, below)| below.components().count())
}

/// Reads the paths in a list of conflicts of rerere: a hash, a tab and a path that ends with a zero (rerere.c).
fn listed(file: &File) -> Option<Conflicts> {
    let mut text = Vec::new();
    file.take(CONFIG).read_to_end(&mut text).ok()?;
    let path = |entry: &[u8]| {
        let at = entry.iter().position(|byte| *byte == b'\t')?;
        entry.get(at + 1..).map(|path| OsStr::from_bytes(path).to_owned())
    };
    let entries = text.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
    entries.map(|entry| Some((path(entry)?, false))).collect()
}

/// Returns the files with conflicts for which `git mergetool` writes to a name beside them (git-mergetool.sh): the file itself, which may be a link
/// if one of its versions is one, what it was, and copies of its versions.
fn written_for(name: &OsStr) -> impl Iterator<Item = (OsString, bool)> {
    let name = name.as_encoded_bytes();
    let dot = name.iter().rposition(|byte| *byte == b'.').unwrap_or(name.len());
    let of_copy = || {
        let (start, end) = name.split_at_checked(dot)?;
        let digits = start.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let start = start.get(..start.len() - digits)?;
        let stem = COPIES.iter().find_map(|copy| start.strip_suffix(copy.as_bytes()));
        stem.map(|stem| [stem, end].concat())
    };
    let others = [name.strip_suffix(b".orig").map(<[u8]>::to_vec), of_copy()];
    let file = |file: Vec<u8>, is_itself| (OsString::from_vec(file), is_itself);
    iter::once(file(name.to_vec(), true))
        .chain(others.into_iter().flatten().map(move |other| file(other, false)))
}

/// Lists the shared indexes of a directory, and says whether these are all.
fn shared_indexes(most: usize, dir: BorrowedFd<'_>) -> nix::Result<(Vec<OsString>, bool)> {
    let mut entries = entries(dir)?;
    let names = entries.by_ref().take(most).flatten().map(|(name, _)| name);
    let shared = names.filter(|name| name.as_encoded_bytes().starts_with(SHARED_INDEX.as_bytes())).collect();
    Ok((shared, entries.next().is_none()))
}

/// Returns whether a path of an index leads to a place in the working tree and to no repository's directory (`verify_path` of git's
/// read-cache.c). A directory that a sparse index names ends with a slash. An entry of a split index may have no path: then it has that of
/// the shared index.
fn is_file_of_tree(path: &[u8]) -> bool {
    if path.is_empty() {
        return true;
    }
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.split(|byte| *byte == b'/').all(|part| {
        // Nobody tracks what exeat has moved. git would enter a repository there as a submodule.
        let is_quarantine = part.eq_ignore_ascii_case(DIRECTORY.as_bytes());
        !matches!(part, b"" | b"." | b"..") && !is_git_link(part) && !is_quarantine
    })
}

/// Returns whether git may take a path from bytes that are something else. An index that git wrote has such paths by chance: from bytes of a
/// hash or of a number they are no text, and from bytes of a path they have a conflict, because each byte of a text marks one there, or an
/// index that git refuses. A stage can choose these bytes, but nothing obeys a file below `/` in a directory whose name is no text.
fn is_harmless(path: &[u8], is_unmerged: bool, is_root: bool) -> bool {
    let Some(below) = path.strip_prefix(b"/") else {
        return matches!(path, b"" | b".") || is_file_of_tree(path);
    };
    let top = below.split(|byte| *byte == b'/').next().unwrap_or_default();
    let is_there = || fs::symlink_metadata(Path::new("/").join(OsStr::from_bytes(top))).is_ok();
    let is_text = || str::from_utf8(top).is_ok_and(|top| !top.chars().any(char::is_control));
    // Only root makes something in `/`.
    !is_there() && (!is_text() || is_unmerged && !is_root) && is_file_of_tree(below)
}

/// Returns whether a name is `.git`, also on a file system of Windows (`is_ntfs_dotgit` of git's path.c).
fn is_git_link(name: &[u8]) -> bool {
    let end = name.iter().position(|byte| *byte == b':').unwrap_or(name.len());
    let name = name.get(..end).unwrap_or(name);
    let last = name.iter().rposition(|byte| !matches!(byte, b' ' | b'.')).map_or(0, |last| last + 1);
    let name = name.get(..last).unwrap_or(name);
    name.eq_ignore_ascii_case(b".git") || name.eq_ignore_ascii_case(b"git~1")
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::super::{Keeper, Missing};
    use super::*;

    /// An index may build upon a shared one that is among too many names.
    #[test]
    fn b14_a_crowd_hides_no_shared_index() {
        let root = std::env::temp_dir().join(format!("crowd-{}", std::process::id()));
        fs::create_dir_all(root.join(".git/refs")).unwrap();
        let empty = [&b"DIRC"[..], &2_u32.to_be_bytes(), &[0; 4], &[0; 20]].concat();
        fs::write(root.join(".git/index"), &empty).unwrap();
        fs::write(root.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        let missing = Missing { tree: root.clone(), ..Missing::default() };
        let watch = Watch::start(missing, Keeper { run: "RUN".into(), state: None }).unwrap();
        let git = GitDir { path: GIT_LINK.into(), config: GIT_LINK.into(), is_new: false };
        let settled = |most| {
            let mut room = PathRoom::default();
            let mut search =
                PathSearch { room: &mut room, watches: &[&watch], has_new_links: false, is_over: &|| false };
            watch.settle_paths_by(most, &git, &mut search).len()
        };
        assert_eq!(settled(3), 0, "every name was read");
        assert_eq!(settled(2), 1, "a name more");
        assert!(!root.join(".git/index").exists());
        fs::remove_dir_all(root).unwrap();
    }

    /// A stage chooses how many conflicts an index has, and how deep their directories are.
    #[test]
    fn b14_directories_of_conflicts_are_opened_within_a_bound() {
        let root = std::env::temp_dir().join(format!("conflicts-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        std::os::unix::fs::symlink("/", root.join("a/b/c")).unwrap();
        let missing = Missing { tree: root.clone(), ..Missing::default() };
        let watch = Watch::start(missing, Keeper { run: "RUN".into(), state: None }).unwrap();
        let unmerged = ["a/b/c", "none/1/x", "none/2/x", "none/3/x"].map(|path| (path.into(), false)).into();
        let settle = |names| {
            let mut room = PathRoom { names, ..PathRoom::default() };
            let mut search =
                PathSearch { room: &mut room, watches: &[&watch], has_new_links: true, is_over: &|| false };
            let mut found = Vec::new();
            watch.settle_links_to(&unmerged, Some(slice::from_ref(&root)), &mut search, &mut found);
            found.iter().map(|it| it.moved.is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(settle(2), [false], "the first directory is opened, and none of its names is read");
        assert_eq!(settle(5), [true, false]);
        assert_eq!(settle(10), [] as [bool; 0]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn b14_git_mergetool_writes_to_these_names() {
        let is_written = |file: &str, name: &str| {
            written_for(OsStr::new(name)).any(|(it, is_itself)| it == file && (!is_itself || file != "link"))
        };
        for (file, name) in [
            ("a.c", "a.c"),
            ("a.c", "a.c.orig"),
            ("a.c", "a_BACKUP_12.c"),
            ("a.b.c", "a.b_REMOTE_4194304.c"),
            ("make", "make_LOCAL_1"),
            ("a.c", "a_LOCAL_LCONFL_7.c"),
            (".x", "_BASE_1.x"),
            ("link", "link.orig"),
        ] {
            assert!(is_written(file, name), "{file} {name}");
        }
        for (file, name) in [
            ("a.c", "a"),
            ("a.c", "a.c.orig.x"),
            ("a.c", "a_BACKUP_x.c"),
            ("a.c", "a_OTHER_1.c"),
            ("link", "link"),
            ("a", "b"),
        ] {
            assert!(!is_written(file, name), "{file} {name}");
        }
    }

    #[test]
    fn b14_a_path_by_chance_leads_to_no_place_that_is_there() {
        for is_root in [true, false] {
            for path in ["", ".", "a", "a/b", "dir/"] {
                assert!(is_harmless(path.as_bytes(), false, is_root), "{path}");
            }
            for path in [
                "/", "//", "/etc", "/etc/x", "//etc/x", "//x", "../a", "a/..", ".git/x", "a//GIT~1", "a//b",
                "./a",
            ] {
                assert!(
                    [false, true].map(|it| is_harmless(path.as_bytes(), it, is_root)) == [false; 2],
                    "{path}"
                );
            }
        }
        let (yes, no) = ([true; 2], [false; 2]);
        for (path, of_user, of_root) in [
            (&b"/\x01x"[..], yes, yes),
            (b"/\xff\x80/x", yes, yes),
            (b"/nowhere-\x01/etc", yes, yes),
            (b"/nowhere/a", [false, true], no),
            (b"/nowhere", [false, true], no),
            (b"/\xff/.git/a", no, no),
        ] {
            let harmless = |is_root| [false, true].map(|it| is_harmless(path, it, is_root));
            assert_eq!([harmless(false), harmless(true)], [of_user, of_root], "{path:?}");
        }
    }

    #[test]
    fn b14_a_path_of_an_index_stays_in_the_working_tree() {
        for path in [
            "",
            "a",
            "a/b",
            "dir/",
            ".gitignore",
            "a/.github/x",
            "..a/.b",
            "...",
            ".git-x/a",
            "git~2",
            ":.git",
            "a .git",
        ] {
            assert!(is_file_of_tree(path.as_bytes()), "{path}");
        }
        let outside = [
            "/",
            "/a",
            "a//b",
            "a//",
            ".",
            "..",
            "../a",
            "a/../b",
            "a/./b",
            ".git",
            ".git/x",
            "a/.GIT/x",
            "a/.Git",
            "git~1/x",
            "GIT~1",
            ".git ./x",
            ".git::$INDEX_ALLOCATION/x",
        ];
        for path in outside {
            assert!(!is_file_of_tree(path.as_bytes()), "{path}");
        }
    }
}

//! Files of a repository that name paths to which git writes: the index, and the list of conflicts of rerere. git does not check these
//! paths: `git checkout -- .` writes the files of the index, also `.git/hooks/post-checkout` and `../../.bashrc`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::PoisonError;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::unistd::geteuid;

use super::descriptors::{entries, id_of, kind, open_above, open_beneath, open_file, retry_opened};
use super::file_lists::{FILE_LISTS, PARTS, is_part, is_right_list};
use super::git_names::{CONFLICTS, INDEX, NAMING, NUMBERS, is_no_number};
use super::modules::GitDir;
use super::path_room::PathRoom;
use super::{Leftover, MAX_ENTRIES, QUARANTINE, Watch, is_repository};
use crate::git_config::{Setting, settings};
use crate::index::check_entries;
use crate::names::joined;
use crate::protected::GIT_LINK;
use crate::walk::clean;

/// The beginning of the names of indexes that others build upon (gitformat-index(5), "Split index").
const SHARED_INDEX: &str = "sharedindex.";
/// Bytes of a configuration that are read.
const CONFIG: u64 = 1 << 20;

impl Watch {
    /// Moves aside the indexes of these directories that name a path outside of the working tree or in a repository's directory, or that
    /// cannot be read, lists of conflicts, and links on the way to a working tree that a configuration names.
    pub(super) fn settle_paths<'a>(
        &self,
        dirs: impl IntoIterator<Item = &'a GitDir>,
        watches: &[&Self],
        is_over: &dyn Fn() -> bool,
    ) -> Vec<Leftover> {
        let mut room = self.later.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        for git in dirs.into_iter().take_while(|_| !is_over()) {
            found.extend(self.settle_paths_by(MAX_ENTRIES, git, &mut room, is_over));
            self.settle_links_to_works(git, watches, &mut found);
        }
        found
    }

    /// `most` is the number of names that are read in one directory.
    fn settle_paths_by(
        &self,
        most: usize,
        git: &GitDir,
        room: &mut PathRoom,
        is_over: &dyn Fn() -> bool,
    ) -> Vec<Leftover> {
        let Ok(dir) = open_beneath(&self.tree, &git.path) else { return Vec::new() };
        let is_there = |name: &str| {
            retry_opened(dir.as_fd(), || fstatat(&dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)).is_ok()
        };
        // Other directories have files of these names, too.
        if !git.is_held() && !git.path.ends_with(GIT_LINK) && !is_repository(is_there) {
            return Vec::new();
        }
        let mut found = self.settle_numbers(git);
        found.extend(self.settle_file_lists(most, git, &mut room.lists));
        let (shared, is_whole) =
            retry_opened(dir.as_fd(), || shared_indexes(most, dir.as_fd())).unwrap_or_default();
        for name in NAMING.map(OsString::from).into_iter().chain(shared).take_while(|_| !is_over()) {
            let below = git.path.join(&name);
            // The index may build upon one that is not listed.
            let is_unclear = !is_whole && name == INDEX;
            let is_known =
                !is_unclear && (self.is_as_it_was(&below) || !self.is_changed_in(&git.path, &below));
            let may = |dir: BorrowedFd<'_>, name: &OsStr, _: &FileStat| {
                is_known
                    || match open_file(dir, name) {
                        // A stage may have closed it, or put something else there.
                        Err(_) => false,
                        Ok(file) if name == CONFLICTS => file.metadata().is_ok_and(|meta| meta.len() == 0),
                        Ok(file) => is_right_index(&file, room) && !is_unclear,
                    }
            };
            found.extend(self.settle_in(dir.as_fd(), &below, &name, may));
        }
        found
    }

    /// Moves aside files that list others by name, and name one elsewhere.
    fn settle_file_lists(&self, most: usize, git: &GitDir, room: &mut u64) -> Vec<Leftover> {
        let mut found = Vec::new();
        let mut settle = |at: &Path| {
            // A link, and one on the way, is not for this to judge.
            let may = |dir: BorrowedFd<'_>, name: &OsStr, stat: &FileStat| {
                let right = |file: File| is_right_list(name, &file, room);
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
        let mut names = retry_opened(dir.as_fd(), || entries(dir.as_fd())).into_iter().flatten();
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

    /// Moves links that came on the way to a working tree which a configuration names, however old that is: git writes to where they lead.
    fn settle_links_to_works(&self, git: &GitDir, watches: &[&Self], found: &mut Vec<Leftover>) {
        let read = |dir: &Path, name: &str| {
            let file = open_file(open_beneath(&self.tree, dir)?.as_fd(), OsStr::new(name))?;
            let mut text = Vec::new();
            file.take(CONFIG).read_to_end(&mut text)?;
            Ok::<_, io::Error>(settings(&text))
        };
        let read = [read(&git.config, "config"), read(&git.path, "config.worktree")];
        for setting in read.into_iter().flatten().flatten() {
            let Setting::Worktree(to) = setting else { continue };
            let work = clean(&joined(&self.list.tree, &git.path).join(OsStr::new(&to)));
            let Some((watch, below)) = watch_of(watches, &work) else { continue };
            if open_beneath(&watch.tree, below).err() == Some(Errno::ELOOP)
                && watch.is_new_way(Path::new(GIT_LINK), below)
            {
                found.extend(watch.link_on_the_way(below));
            }
        }
    }
}

/// Returns whether an index names only files of its working tree, and has no other name by which it could be written later.
fn is_right_index(file: &File, room: &mut PathRoom) -> bool {
    let Ok(stat) = fstat(file) else { return false };
    let is_root = geteuid().is_root();
    // git may have replaced it meanwhile, and another file gets its number.
    stat.st_nlink == 1
        && *room.read.entry((id_of(&stat), stat.st_ctime, stat.st_ctime_nsec)).or_insert_with(|| {
            check_entries(file, &mut room.indexes, is_file_of_tree, |path, is_unmerged| {
                is_harmless(path, is_unmerged, is_root)
            })
        })
}

/// Returns the innermost tree that a place lies in, and the place below it.
fn watch_of<'w, 'p>(watches: &[&'w Watch], place: &'p Path) -> Option<(&'w Watch, &'p Path)> {
    let around =
        watches.iter().filter_map(|watch| Some((*watch, place.strip_prefix(&watch.list.tree).ok()?)));
    around.min_by_key(|(_, below)| below.components().count())
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
        let is_quarantine = part.eq_ignore_ascii_case(QUARANTINE.as_bytes());
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
    use super::super::{StateOfRun, WatchList};
    use super::*;

    /// An index may build upon a shared one that is among too many names.
    #[test]
    fn b14_a_crowd_hides_no_shared_index() {
        let root = std::env::temp_dir().join(format!("crowd-{}", std::process::id()));
        fs::create_dir_all(root.join(".git/refs")).unwrap();
        let empty = [&b"DIRC"[..], &2_u32.to_be_bytes(), &[0; 4], &[0; 20]].concat();
        fs::write(root.join(".git/index"), &empty).unwrap();
        fs::write(root.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        let list = WatchList { tree: root.clone(), ..WatchList::default() };
        let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
        let git = GitDir { path: GIT_LINK.into(), config: GIT_LINK.into(), is_new: false };
        let settled = |most| watch.settle_paths_by(most, &git, &mut PathRoom::default(), &|| false).len();
        assert_eq!(settled(3), 0, "every name was read");
        assert_eq!(settled(2), 1, "a name more");
        assert!(!root.join(".git/index").exists());
        fs::remove_dir_all(root).unwrap();
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

//! Files of a repository that name paths to which git writes: the index, and the list of conflicts of rerere. git does not check these
//! paths: `git checkout -- .` writes the files of the index, also `.git/hooks/post-checkout` and `../../.bashrc`.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;

use super::descriptors::{entries, let_in, open_beneath, open_file};
use super::modules::GitDir;
use super::{Leftover, MAX_ENTRIES, Watch, is_repository};
use crate::index::{HASHES, check_paths};
use crate::protected::GIT_LINK;

/// The paths that git tracks.
const INDEX: &str = "index";
/// The beginning of the names of indexes that others build upon (gitformat-index(5), "Split index").
const SHARED_INDEX: &str = "sharedindex.";
/// A file that git's rerere writes: the paths with conflicts, which it reads and writes when a commit is made (rerere.c).
const CONFLICTS: &str = "MERGE_RR";
/// Bytes of all indexes that are read at the end of one run. One of 100000 files has some 12 MiB.
const READ: u64 = 1 << 30;
/// Bytes of a configuration that are read.
const CONFIG: u64 = 1 << 20;
/// The greatest difference between the clocks of a file system, which may be another machine's, and of this process.
const CLOCKS: Duration = Duration::from_secs(300);

impl Watch {
    /// Moves aside the indexes of these directories that name a path outside of the working tree or in a repository's directory, or that
    /// cannot be read, and lists of conflicts.
    pub(super) fn settle_paths<'a>(&self, dirs: impl IntoIterator<Item = &'a GitDir>) -> Vec<Leftover> {
        let mut room = READ;
        dirs.into_iter().flat_map(|dir| self.settle_paths_by(MAX_ENTRIES, dir, &mut room)).collect()
    }

    /// `most` is the number of names that are read in one directory.
    fn settle_paths_by(&self, most: usize, git: &GitDir, room: &mut u64) -> Vec<Leftover> {
        let Ok(dir) = open_beneath(&self.tree, &git.path) else { return Vec::new() };
        let is_there =
            |name: &str| let_in(dir.as_fd(), || fstatat(&dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)).is_ok();
        // Other directories have files of these names, too.
        if !git.is_held() && !git.path.ends_with(GIT_LINK) && !is_repository(is_there) {
            return Vec::new();
        }
        let (shared, is_whole) =
            let_in(dir.as_fd(), || shared_indexes(most, dir.as_fd())).unwrap_or_default();
        let names = [OsString::from(INDEX), OsString::from(CONFLICTS)].into_iter().chain(shared);
        let (mut found, mut hash) = (Vec::new(), None);
        for name in names {
            let below = git.path.join(&name);
            let file = match open_file(dir.as_fd(), &name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // A stage may have closed it, or put something else there.
                file => file.ok(),
            };
            // The index may build upon one that is not listed.
            let is_unclear = !is_whole && name == INDEX;
            if !is_unclear && !self.is_changed_at(&below) {
                continue;
            }
            let is_wrong = match file {
                None => true,
                Some(file) if name == CONFLICTS => file.metadata().map_or(true, |meta| meta.len() > 0),
                Some(file) => {
                    let hash = *hash.get_or_insert_with(|| self.hash_length(&git.config));
                    is_unclear || check_paths(&file, room, hash, is_file_of_tree) != Some(true)
                }
            };
            if is_wrong {
                found.extend(self.settle_in(dir.as_fd(), &below, &name, |_, _, _| false));
            }
        }
        found
    }

    /// Returns whether the stage may have put something at a path of the tree, or changed it. It cannot set the time of a change, but it
    /// may have moved a directory above with all that is in it, which changes the time of that directory alone.
    fn is_changed_at(&self, path: &Path) -> bool {
        let is_changed = |path: &Path| {
            let above = open_beneath(&self.tree, path.parent()?).ok()?;
            let name = path.file_name()?;
            let stat = let_in(above.as_fd(), || fstatat(&above, name, AtFlags::AT_SYMLINK_NOFOLLOW));
            let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.ok()?.st_ctime).unwrap_or(0));
            Some(changed + CLOCKS >= self.since)
        };
        path.ancestors()
            .filter(|path| !path.as_os_str().is_empty())
            .any(|path| is_changed(path).unwrap_or(true))
    }

    /// Returns the length of the names of a repository's objects, in bytes.
    fn hash_length(&self, config: &Path) -> usize {
        let read = || {
            let file = open_file(open_beneath(&self.tree, config)?.as_fd(), OsStr::new("config"))?;
            let mut text = Vec::new();
            file.take(CONFIG).read_to_end(&mut text)?;
            Ok::<_, io::Error>(String::from_utf8_lossy(&text).to_ascii_lowercase())
        };
        let [sha1, sha256] = HASHES;
        let is_long = |line: &str| {
            let setting = line.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            setting == Some(("objectformat", "sha256"))
        };
        if read().is_ok_and(|text| text.lines().any(is_long)) { sha256 } else { sha1 }
    }
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
    path.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b"..") && !is_git_link(part))
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
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::super::{Keeper, Missing};
    use super::*;

    /// Nobody can set the time at which something was changed. Whoever moves a directory changes only the directory's.
    #[test]
    fn b14_the_entries_of_a_moved_directory_count_as_changed() {
        let root = std::env::temp_dir().join(format!("paths-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(root.join("old")).unwrap();
        for name in ["a/b/index", "old/index"] {
            fs::write(root.join(name), "x").unwrap();
        }
        std::thread::sleep(Duration::from_millis(1100));
        fs::rename(root.join("a"), root.join("c")).unwrap();
        let missing = Missing { tree: root.clone(), ..Missing::default() };
        let mut watch = Watch::start(missing, Keeper { run: "RUN".into(), state: None }).unwrap();
        let moved = fs::metadata(root.join("c")).unwrap().ctime();
        watch.since = UNIX_EPOCH + Duration::from_secs(u64::try_from(moved).unwrap()) + CLOCKS;
        let paths = ["c/b/index", "c/b", "old/index", "old", "none"];
        let are_changed = paths.map(|path| watch.is_changed_at(Path::new(path)));
        assert_eq!(are_changed, [true, true, false, false, true]);
        fs::remove_dir_all(root).unwrap();
    }

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
        let settled = |most| watch.settle_paths_by(most, &git, &mut READ.clone()).len();
        assert_eq!(settled(3), 0, "every name was read");
        assert_eq!(settled(2), 1, "a name more");
        assert!(!root.join(".git/index").exists());
        fs::remove_dir_all(root).unwrap();
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

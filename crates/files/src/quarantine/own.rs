//! The directories that exeat keeps for stages and for itself. Stages write to some of them, and no run judges the repositories there.

use std::collections::HashSet;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, geteuid};

use super::descriptors::FileId;
use crate::lists;
use crate::users::{home_of, user_of};
use crate::walk::clean;

/// The name of the directory in `TMPDIR` for temporary files of a user's stages, before the user's number.
pub const TEMPORARY: &str = "exeat-";
/// The beginning of the name of a directory of one run.
pub const OF_RUN: &str = "run-";
/// The name of each of exeat's directories.
const NAME: &str = "exeat";
/// Digits of the name of a working directory's cache.
const DIGITS: usize = 16;
/// Entries of a directory that are looked at.
const ENTRIES: usize = 64;

/// The directories below the homes of the user and of the tree's owner that exeat writes to, and those above them. The same directory can have
/// several paths, by mounts.
#[derive(Debug)]
pub(super) struct OwnDirectories {
    tree: PathBuf,
    /// Their paths, also of those that are not there yet.
    paths: Vec<PathBuf>,
    own: HashSet<FileId>,
    above: HashSet<FileId>,
}

impl OwnDirectories {
    /// Finds those in the present environment, and in that of a user who owns the tree.
    pub(super) fn find(tree: &Path, owner: Option<Uid>) -> Self {
        let variables = ["XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"];
        let named = variables.into_iter().filter_map(env::var_os);
        let named = named.map(|dir| Path::new(&dir).join(NAME)).filter(|dir| dir.is_absolute());
        let temporary =
            env::var_os("TMPDIR").map(|dir| Path::new(&dir).join(format!("{TEMPORARY}{}", geteuid())));
        let named = named.chain(temporary.filter(|dir| dir.is_absolute()));
        let users = owner.into_iter().chain([geteuid()]);
        let homes = users.filter_map(|user| user_of(user).ok()?).map(|user| user.dir);
        let homes = homes.chain([home_of(env::var_os("HOME").as_deref())]).filter(|home| home.is_absolute());
        let in_homes = homes.flat_map(|home| lists::OWN.iter().map(move |dir| home.join(dir)));
        let paths: Vec<PathBuf> = in_homes.chain(named).map(|path| clean(&path)).collect();
        let above = paths.iter().flat_map(|dir| dir.ancestors().skip(1));
        Self {
            tree: tree.to_path_buf(),
            own: paths.iter().filter_map(|dir| id_at(dir)).collect(),
            above: above.filter_map(id_at).collect(),
            paths,
        }
    }

    /// Returns whether a path is one of them, or in one. Another run may have other ones, so those of each user count.
    pub(super) fn contain(&self, path: &Path) -> bool {
        // What the tree itself is called says nothing about what is in it.
        is_named(path.strip_prefix(&self.tree).unwrap_or(path))
            || self.paths.iter().any(|own| path.starts_with(own))
            || path.ancestors().filter_map(id_at).any(|id| self.own.contains(&id))
    }

    /// Returns whether one of them is below a directory.
    pub(super) fn are_below(&self, dir: &Path) -> bool {
        self.paths.iter().any(|own| own.starts_with(dir))
            || id_at(dir).is_some_and(|id| self.above.contains(&id))
    }
}

/// Returns whether a path has the names of one of exeat's directories, of any user and with any environment.
fn is_named(path: &Path) -> bool {
    let names: Vec<&[u8]> = path.iter().map(OsStr::as_encoded_bytes).collect();
    let is_temporary = |name: &[u8]| name.strip_prefix(TEMPORARY.as_bytes()).is_some_and(is_number);
    let is_usual = |own: &&str| {
        let own: Vec<&[u8]> = Path::new(own).iter().map(OsStr::as_encoded_bytes).collect();
        names.windows(own.len()).any(|part| *part == own)
    };
    lists::OWN.iter().any(is_usual)
        || names.windows(2).any(|pair| match pair {
            [name, of_stage] if *name == NAME.as_bytes() => is_of_stage(of_stage),
            [name, run] => is_temporary(name) && run.starts_with(OF_RUN.as_bytes()),
            _ => false,
        })
        || path.is_absolute() && path.ends_with(NAME) && may_have_caches(path)
}

/// Returns whether a name is that of the cache of a working directory, or of one run.
fn is_of_stage(name: &[u8]) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.starts_with(OF_RUN.as_bytes()) || name.len() == DIGITS && name.iter().all(is_digit)
}

/// Returns whether a directory is missing, or has the caches of stages. Others have its name, too: that of the sources of exeat.
fn may_have_caches(dir: &Path) -> bool {
    let is_cache = |entry: io::Result<DirEntry>| {
        entry.is_ok_and(|entry| is_of_stage(entry.file_name().as_encoded_bytes()))
    };
    match fs::read_dir(dir) {
        Ok(entries) => entries.take(ENTRIES).any(is_cache),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn is_number(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(u8::is_ascii_digit)
}

fn id_at(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b14_the_names_of_exeat_s_directories_count_anywhere() {
        let root = std::env::temp_dir().join(format!("own-{}", std::process::id()));
        fs::create_dir_all(root.join("exeat/crates")).unwrap();
        let own = OwnDirectories {
            tree: "/work".into(),
            paths: vec!["/data/own/exeat".into()],
            own: HashSet::new(),
            above: HashSet::new(),
        };
        for path in [
            "/data/own/exeat/x",
            "/home/a/.cache/exeat",
            "/home/a/.local/state/exeat/live",
            "/home/a/y/exeat/0123456789abcdef",
            "/home/a/y/exeat/run-1/x",
            "/home/a/y/exeat",
            "/jobs/exeat-7/run-1",
        ] {
            assert!(own.contain(Path::new(path)), "{path}");
        }
        for path in [
            "/home/a/exeat/src",
            "/home/a/exeat/0123456789abcdeg",
            "/home/a/.cache/pip",
            "/jobs/exeat-x/run-1",
        ] {
            assert!(!own.contain(Path::new(path)), "{path}");
        }
        assert!(own.are_below(Path::new("/data/own")) && own.are_below(Path::new("/")));
        assert!(!own.are_below(Path::new("/data/other")));
        assert!(!own.contain(&root.join("exeat")), "the sources");
        // In the tree, whose own name does not count.
        let tree = Path::new("/srv/.cache/exeat");
        let in_tree = OwnDirectories { tree: tree.into(), ..OwnDirectories::find(Path::new("/x"), None) };
        for (path, is_own) in [("a", false), ("exeat", false), ("", false), (".cache/exeat/x", true)] {
            assert_eq!(in_tree.contain(&tree.join(path)), is_own, "{path}");
        }
        fs::create_dir(root.join("exeat/0123456789abcdef")).unwrap();
        assert!(own.contain(&root.join("exeat")), "it has a cache");
        fs::remove_dir_all(root).unwrap();
    }
}

//! The private cache, and how it is made. Root makes it in directories that may be another user's, so that no link in them is
//! followed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use exeat_files::names::true_name;
use exeat_files::removal::remove_tree;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::lists::CACHE_SETTINGS;
use crate::staged::{Ids, way_to};

/// The way to a directory, as far as it is there.
#[derive(Debug)]
pub(crate) struct Steps {
    at: OwnedFd,
    /// Where that is, without links.
    place: PathBuf,
    /// What is to be made, the first one last.
    left: Vec<OsString>,
}

impl Steps {
    /// The way to exeat's directory for caches and one in it. Above these, links are followed which root alone could have made.
    ///
    /// # Errors
    /// `ELOOP` where there is any other link on the way; what openat2(2) says.
    pub(crate) fn toward(cache: &Path) -> io::Result<Self> {
        let mut above = cache.ancestors().skip(2);
        let above = above.find(|path| fs::symlink_metadata(path).is_ok()).ok_or(Errno::ENOENT)?;
        let (None, place) = way_to(above).ok_or(Errno::ELOOP)? else { return Err(Errno::ELOOP.into()) };
        let at = enter(AT_FDCWD, &place, ResolveFlag::empty())?;
        let below = cache.strip_prefix(above).unwrap_or(Path::new(""));
        let mut left: Vec<OsString> = below.iter().map(OsString::from).collect();
        left.reverse();
        let mut steps = Self { at, place, left };
        while let Some(name) = steps.left.last() {
            match enter(&steps.at, Path::new(name), ResolveFlag::RESOLVE_BENEATH) {
                Ok(next) => steps.take(next),
                Err(Errno::ENOENT) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(steps)
    }

    fn take(&mut self, next: OwnedFd) {
        self.at = next;
        self.place.extend(self.left.pop());
    }

    /// The innermost directory that is there.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// The same, open.
    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.at
    }

    /// Whether nothing is left to be made.
    pub(crate) fn is_made(&self) -> bool {
        self.left.is_empty()
    }

    /// Where the way ends.
    pub(crate) fn end(&self) -> PathBuf {
        self.place.iter().chain(self.left.iter().rev().map(OsString::as_os_str)).collect()
    }

    /// Makes what is left, each in the one before it.
    ///
    /// # Errors
    /// `ELOOP` where somebody has put a link there since; what mkdirat(2) and openat2(2) say.
    pub(crate) fn make(&mut self) -> io::Result<&OwnedFd> {
        while let Some(name) = self.left.last() {
            match mkdirat(&self.at, Path::new(name), Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let next = enter(&self.at, Path::new(name), ResolveFlag::RESOLVE_BENEATH)?;
            self.take(next);
        }
        Ok(&self.at)
    }
}

/// Makes the cache with this process's rights, and removes the settings of earlier stages.
///
/// # Errors
/// What mkdir(2) says, and what keeps a setting in its place.
pub(crate) fn make(cache: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(cache)?;
    remove_settings(&enter(AT_FDCWD, &true_name(cache)?, ResolveFlag::empty())?)
}

/// Makes it with another user's rights, below a directory of that user's, who may have put links there.
///
/// # Errors
/// What mkdir(2) says; `EPERM` where it cannot be done as that user.
pub(crate) fn make_as(cache: &Path, (uid, gid): Ids) -> io::Result<()> {
    // They are a thread's own (setfsuid(2)), so the thread ends with them.
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            exeat_sandbox::open_files_as(uid, gid)?;
            make(cache)
        });
        maker.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes it ended early")))
    })
}

/// Removes settings from a cache that is there: an earlier stage may have left them, and this one's programs would obey them.
///
/// # Errors
/// What keeps one of them in its place.
pub(crate) fn remove_settings(top: &OwnedFd) -> io::Result<()> {
    for name in CACHE_SETTINGS {
        let (above, last) = name.split_once('/').unwrap_or((".", name));
        match enter(top, Path::new(above), ResolveFlag::RESOLVE_BENEATH) {
            Ok(dir) => remove_tree(dir.as_fd(), OsStr::new(last))?,
            Err(Errno::ENOENT) => {}
            // What is no directory leads the tool elsewhere, or nowhere.
            Err(Errno::ELOOP | Errno::ENOTDIR) => unlinkat(top, above, UnlinkatFlags::NoRemoveDir)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Opens a directory without following a link.
fn enter(from: impl AsFd, name: &Path, more: ResolveFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS | more;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat2(from, name, OpenHow::new().flags(flags).resolve(resolve))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn l11_settings_are_removed_from_a_cache_through_no_link() {
        let dir = std::env::temp_dir().join(format!("settings-{}", std::process::id()));
        let (cache, outside) = (dir.join("cache"), dir.join("outside"));
        fs::create_dir_all(outside.join("init.d")).unwrap();
        fs::create_dir_all(cache.join("cargo/registry")).unwrap();
        fs::write(cache.join("cargo/config.toml"), "evil").unwrap();
        symlink(&outside, cache.join("gradle")).unwrap();
        symlink(&outside, cache.join("cargo/credentials")).unwrap();
        // Deeper than a process has descriptors, and closed.
        let mut deep = cache.join("cargo/bin");
        for _ in 0..300 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("x"), "evil").unwrap();
        symlink(&outside, deep.join("l")).unwrap();
        fs::set_permissions(cache.join("cargo/bin/d/d"), Permissions::from_mode(0o000)).unwrap();
        let cache = cache.canonicalize().unwrap();
        // Twice: what is gone is no fault.
        make(&cache).unwrap();
        make(&cache).unwrap();
        let names: Vec<_> =
            fs::read_dir(cache.join("cargo")).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["registry"], "data stays");
        assert!(outside.join("init.d").is_dir(), "nothing that a link leads to is touched");
        assert!(fs::symlink_metadata(cache.join("gradle")).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    /// B14.
    #[test]
    fn b14_a_cache_is_made_through_no_link() {
        let dir = std::env::temp_dir().join(format!("cache-{}", std::process::id()));
        fs::create_dir_all(dir.join("elsewhere")).unwrap();
        let dir = dir.canonicalize().unwrap();
        let cache = dir.join("base/exeat/0123");
        let mut steps = Steps::toward(&cache).unwrap();
        assert_eq!((steps.place(), steps.end(), steps.is_made()), (dir.as_path(), cache.clone(), false));
        // A link that comes between the look and the making, at each step.
        for name in ["base", "base/exeat", "base/exeat/0123"] {
            symlink(dir.join("elsewhere"), dir.join(name)).unwrap();
            assert_eq!(steps.make().unwrap_err().raw_os_error(), Some(Errno::ELOOP as i32), "{name}");
            assert_eq!(fs::read_dir(dir.join("elsewhere")).unwrap().count(), 0, "{name}");
            fs::remove_file(dir.join(name)).unwrap();
            fs::create_dir(dir.join(name)).unwrap();
        }
        steps.make().unwrap();
        assert!(steps.is_made() && Steps::toward(&cache).unwrap().is_made());
        // One that is there already.
        fs::remove_dir_all(dir.join("base/exeat")).unwrap();
        symlink("../elsewhere", dir.join("base/exeat")).unwrap();
        assert!(Steps::toward(&cache).is_err());
        fs::remove_file(dir.join("base/exeat")).unwrap();
        Steps::toward(&cache).unwrap().make().unwrap();
        assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o7777, 0o700);
        fs::remove_dir_all(&dir).unwrap();
    }
}

//! The names in a directory at one moment, by which many names are known to be absent without a system call for each.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC,
    fstatfs,
};
use rustix::fs::RawDir;

/// XFS_SUPER_MAGIC (statfs(2)), which nix has for glibc alone.
pub(crate) const XFS: FsType = FsType(0x5846_5342);

/// File systems whose directories get the time of each change of their entries, and list whatever has a name in them. Others leave that
/// to a server, or to a program.
pub(crate) const TIMED: [FsType; 6] =
    [BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS];

/// Entries that are read. Of a directory that holds more, each name costs less than the list.
const MOST: usize = 1024;
/// Bytes that are read at once: the names of most directories.
const BUFFER: usize = 16 << 10;
/// The time that a directory must have been left alone. Its time of change is that of the clock's last tick, of which there are 100 in a second or
/// more.
const TICKS: Duration = Duration::from_millis(20);

/// The names in a directory: all that it held at one moment. Whoever has one asks it which names are absent, and the directory for all others.
#[derive(Debug)]
pub(crate) struct Listing {
    names: Vec<String>,
    /// The names in lowercase, sorted.
    folded: Vec<String>,
}

impl Listing {
    /// Lists the directory at a path, which may lead through links. `None` if the list could miss a name that is there.
    pub(crate) fn read_path(dir: &Path) -> Option<Self> {
        let flags = (OFlag::O_DIRECTORY | OFlag::O_NONBLOCK).bits();
        Self::list(&OpenOptions::new().read(true).custom_flags(flags).open(dir).ok()?, MOST)
    }

    /// Lists an open directory, which may be opened by its path only. `None` as for [`Listing::read_path`].
    pub(crate) fn read(dir: impl AsFd) -> Option<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Self::list(&File::from(openat(dir, ".", flags, Mode::empty()).ok()?), MOST)
    }

    fn list(dir: &File, most: usize) -> Option<Self> {
        let before = SystemTime::now();
        if !TIMED.contains(&fstatfs(dir).ok()?.filesystem_type()) {
            return None;
        }
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut listed = RawDir::new(dir, buffer.spare_capacity_mut());
        let mut names = Vec::new();
        while let Some(entry) = listed.next() {
            let entry = entry.ok()?;
            let name = entry.file_name().to_str().ok()?;
            if matches!(name, "." | "..") {
                continue;
            }
            // Where a file system ignores case, it may take such a name for one that is written otherwise.
            if !name.is_ascii() || names.len() == most {
                return None;
            }
            names.push(name.to_owned());
        }
        // What is renamed meanwhile may be missing in the list although it was there at each moment.
        if !is_left_alone(&fstat(dir).ok()?, before) {
            return None;
        }
        let mut folded: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        folded.sort_unstable();
        Some(Self { names, folded })
    }

    /// Whether nothing can be at a path below the directory, because nothing has its first name, in whatever case.
    fn lacks(&self, path: impl AsRef<Path>) -> bool {
        let path = path.as_ref().to_str().filter(|path| path.is_ascii());
        let first = path.and_then(|path| path.split('/').next());
        let first = first.filter(|first| !matches!(*first, "" | "." | ".."));
        first.is_some_and(|first| self.folded.binary_search(&first.to_ascii_lowercase()).is_err())
    }

    /// The names.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }
}

/// Whether a list is there, and shows that nothing can be at a path below its directory.
pub(crate) fn lacks(listing: Option<&Listing>, path: impl AsRef<Path>) -> bool {
    listing.is_some_and(|listing| listing.lacks(path))
}

/// Whether a directory has not changed since a moment. A time without a fraction may be one that the file system has rounded.
fn is_left_alone(dir: &FileStat, since: SystemTime) -> bool {
    let (Ok(secs), Ok(nanos)) = (u64::try_from(dir.st_ctime), u32::try_from(dir.st_ctime_nsec)) else {
        return false;
    };
    let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(secs, nanos) + TICKS);
    nanos != 0 && changed.is_some_and(|changed| changed < since)
}

/// Lists a directory once it has been left alone for long enough.
#[cfg(test)]
pub(crate) fn settled(dir: &Path) -> Listing {
    let until = SystemTime::now() + Duration::from_secs(10);
    while SystemTime::now() < until {
        if let Some(listing) = Listing::read_path(dir) {
            return listing;
        }
    }
    panic!("`{}` is in a file system that keeps no times", dir.display());
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn b37_a_listing_says_only_what_is_surely_absent() {
        let dir = std::env::temp_dir().join(format!("listing-{}", std::process::id()));
        fs::create_dir_all(dir.join(".Git")).unwrap();
        fs::write(dir.join("README.md"), "").unwrap();
        assert!(Listing::read_path(&dir).is_none(), "it has changed just now");
        let listing = settled(&dir);
        assert_eq!(listing.names().len(), 2);
        for name in [".hg", ".hg/hgrc", "readme", ".git2", "x/../.git"] {
            assert!(listing.lacks(name), "{name}");
        }
        // A name in another case, ways that begin elsewhere, and what another name may be folded to.
        for name in [".git", ".GIT/config", "readme.MD", "", ".", "..", "./x", "../x", "/x", "é"] {
            assert!(!listing.lacks(name), "{name}");
        }
        let open = File::open(&dir).unwrap();
        assert!(Listing::list(&open, 2).is_some());
        let open = File::open(&dir).unwrap();
        assert!(Listing::list(&open, 1).is_none(), "it holds more");
        assert!(
            Listing::read_path(&dir.join("README.md")).is_none()
                && Listing::read_path(&dir.join("x")).is_none()
        );
        assert!(Listing::read_path(Path::new("/proc")).is_none(), "its directories keep no times");
        fs::write(dir.join("\u{212a}"), "").unwrap();
        let stat = || fstat(File::open(&dir).unwrap()).unwrap();
        while !is_left_alone(&stat(), SystemTime::now()) {}
        assert!(
            Listing::read_path(&dir).is_none(),
            "a Kelvin sign is a `k` to a file system that ignores case"
        );
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn b37_a_time_of_change_tells_that_a_directory_was_left_alone() {
        let dir = std::env::temp_dir();
        let mut stat = fstat(File::open(&dir).unwrap()).unwrap();
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        (stat.st_ctime, stat.st_ctime_nsec) = (10, 500_000_000);
        assert!(is_left_alone(&stat, at(10_521)));
        assert!(!is_left_alone(&stat, at(10_520)) && !is_left_alone(&stat, at(10_000)));
        stat.st_ctime_nsec = 0;
        assert!(!is_left_alone(&stat, at(60_000)), "it may be rounded");
        stat.st_ctime = -1;
        assert!(!is_left_alone(&stat, at(60_000)));
    }
}

//! Names of one file: the kernel's name of a path, and other paths to the same place.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{fstatat, makedev};
use rustix::fs::RenameFlags;

/// Returns the kernel's name of a path: links followed, and each name as the file system has it. If a file system treats `.SSH` as
/// `.ssh`, both give one name here, while realpath(3) keeps the words.
///
/// # Errors
/// Returns errors of open(2) with `O_PATH`, and `NotFound` if nothing has that name any more.
pub fn true_name(path: &Path) -> io::Result<PathBuf> {
    let place = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(path)?;
    let name = fs::read_link(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    // Removed since it was opened: the kernel appends to the name.
    if name.is_absolute() && !name.as_os_str().as_bytes().ends_with(b" (deleted)") {
        return Ok(name);
    }
    path.canonicalize()
}

/// Returns the real path of a file that does not exist yet; the directories above it may be missing, too.
#[must_use]
pub fn future_path(path: &Path) -> PathBuf {
    let known = path.ancestors().skip(1).find_map(|above| Some((above, true_name(above).ok()?)));
    match known {
        Some((above, resolved)) => resolved.join(path.strip_prefix(above).unwrap_or(path)),
        None => path.to_path_buf(),
    }
}

/// Opens the entry at a path that contains no link, of any kind, without access to its contents (`O_PATH`).
///
/// # Errors
/// Returns `ELOOP` at a link, and other errors of openat2(2).
pub fn open_plain(path: &Path) -> io::Result<OwnedFd> {
    open_without_links(path, OFlag::O_PATH)
}

/// Opens the regular file at a path that has no link in it, for reading. Nothing that has the name makes the open wait.
///
/// # Errors
/// Returns errors of [`open_plain`], and `InvalidInput` for anything but a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::from(open_without_links(path, flags)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

fn open_without_links(path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    Ok(openat2(AT_FDCWD, path, how)?)
}

/// Whether a name was not found because nothing has it, and not because somebody keeps it from being seen.
#[must_use]
pub fn is_absent(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG))
}

/// Returns the device and the inode of the entry at a path that contains no link.
///
/// # Errors
/// Returns errors of [`open_plain`].
pub fn id_of_plain(path: &Path) -> io::Result<(u64, u64)> {
    let meta = File::from(open_plain(path)?).metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// Returns the [`true_name`] of such a path.
///
/// # Errors
/// Returns errors of [`open_plain`].
pub fn plain_name(path: &Path) -> io::Result<PathBuf> {
    let place = open_plain(path)?;
    fs::read_link(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

/// Renames over nothing. Some file systems take no flags of renameat2(2), such as NFS, 9P and FUSE without them: there, this
/// checks that the name is free and then uses a plain rename.
///
/// # Errors
/// Returns `EEXIST` if the name is taken, and other errors of rename(2).
pub(crate) fn rename_new(
    from: impl AsFd,
    name: impl AsRef<Path>,
    to: impl AsFd,
    new: impl AsRef<Path>,
) -> nix::Result<()> {
    let (name, new) = (name.as_ref(), new.as_ref());
    match rename_with(&from, name, &to, new, RenameFlags::NOREPLACE) {
        Err(Errno::EINVAL | Errno::ENOSYS) => rename_after_look(from, name, to, new),
        renamed => renamed,
    }
}

/// Renames with flags. nix has renameat2(2) for glibc alone.
pub(crate) fn rename_with(
    from: impl AsFd,
    name: impl AsRef<Path>,
    to: impl AsFd,
    new: impl AsRef<Path>,
    flags: RenameFlags,
) -> nix::Result<()> {
    rustix::fs::renameat_with(from, name.as_ref(), to, new.as_ref(), flags)
        .map_err(|errno| Errno::from_raw(errno.raw_os_error()))
}

fn rename_after_look(from: impl AsFd, name: &Path, to: impl AsFd, new: &Path) -> nix::Result<()> {
    match fstatat(&to, new, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EEXIST),
        Err(Errno::ENOENT) => renameat(from, name, to, new),
        Err(errno) => Err(errno),
    }
}

/// A mount, as proc_pid_mountinfo(5) has it.
struct Mounted {
    /// Major and minor number of the file system.
    device: Vec<u8>,
    /// The mounted part of the file system.
    root: PathBuf,
    /// The mount point.
    at: PathBuf,
}

/// A line of a table of mounts, in the kernel's own words (proc_pid_mountinfo(5)).
pub struct Row<'a> {
    /// A number that no other mount has as long as this one is there.
    pub id: &'a [u8],
    device: &'a [u8],
    root: &'a [u8],
    at: &'a [u8],
    options: &'a [u8],
    /// The file system's.
    pub kind: &'a [u8],
}

impl Row<'_> {
    /// The mount point.
    pub fn at(&self) -> PathBuf {
        unescaped(self.at)
    }

    /// The device of the files in it, as stat(2) gives it.
    pub fn device(&self) -> Option<u64> {
        let (major, minor) = std::str::from_utf8(self.device).ok()?.split_once(':')?;
        Some(makedev(major.parse().ok()?, minor.parse().ok()?))
    }

    /// Whether this mount itself is read-only.
    pub fn is_read_only(&self) -> bool {
        self.options.split(|byte| *byte == b',').any(|option| option == b"ro")
    }
}

/// The lines of such a table; of two mounts at one place the later one is on top.
pub fn rows(table: &[u8]) -> impl Iterator<Item = Row<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let (id, device) = (words.next()?, words.nth(1)?);
        let (root, at, options) = (words.next()?, words.next()?, words.next()?);
        // The fields before the hyphen vary in number; a hyphen alone is in none of them.
        words.find(|word| *word == b"-")?;
        Some(Row { id, device, root, at, options, kind: words.next()? })
    })
}

/// The mounts of this process.
pub struct Mounts(Vec<Mounted>);

impl Mounts {
    /// From the text of `/proc/self/mountinfo`.
    pub fn new(table: &[u8]) -> Self {
        let mounted =
            |row: Row<'_>| Mounted { device: row.device.to_vec(), root: unescaped(row.root), at: row.at() };
        Self(rows(table).map(mounted).collect())
    }

    /// Whether all of a file system is mounted at a path.
    pub fn has_whole(&self, path: &Path) -> bool {
        self.0.iter().any(|mount| mount.at == path && mount.root == Path::new("/"))
    }

    /// Returns whether anything is mounted below one of these directories.
    pub fn are_below(&self, dirs: &BTreeSet<PathBuf>) -> bool {
        self.0.iter().any(|mount| dirs.iter().any(|dir| mount.at.starts_with(dir) && mount.at != *dir))
    }

    /// Other paths to the same file or directory, by way of bind mounts.
    pub fn aliases(&self, path: &Path) -> BTreeSet<PathBuf> {
        // Of those at one place the last is on top.
        let above = self.0.iter().filter(|mount| path.starts_with(&mount.at));
        let Some(own) = above.max_by_key(|mount| mount.at.components().count()) else {
            return BTreeSet::new();
        };
        let Ok(below) = path.strip_prefix(&own.at) else { return BTreeSet::new() };
        let inside = joined(&own.root, below);
        let others = self.0.iter().filter(|mount| mount.device == own.device);
        let others =
            others.filter_map(|mount| Some(joined(&mount.at, inside.strip_prefix(&mount.root).ok()?)));
        // What something else is mounted over is not the same any more.
        others.filter(|other| other != path && is_same(other, path)).collect()
    }
}

/// The file system and the number of what a path leads to; `None` where there is nothing.
fn id(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether two paths lead to one file or directory.
pub fn is_same(one: &Path, other: &Path) -> bool {
    one == other || id(one).is_some_and(|it| id(other) == Some(it))
}

/// Whether a directory is a path, or one of the directories above it, by whatever name.
pub fn holds(dir: &Path, path: &Path) -> bool {
    first_below(dir, [path]).is_some()
}

/// The first of some paths that a directory is, or lies above, by whatever name.
pub fn first_below<'a>(dir: &Path, paths: impl IntoIterator<Item = &'a Path>) -> Option<&'a Path> {
    let own = OnceCell::new();
    // Directories that are not this one; nor are those above them.
    let mut others: Vec<&OsStr> = Vec::new();
    let mut is_new = |above: &&'a Path| {
        let is_new = !others.contains(&above.as_os_str());
        others.push(above.as_os_str());
        is_new
    };
    paths.into_iter().find(|path| {
        path.starts_with(dir)
            || own.get_or_init(|| id(dir)).is_some_and(|own| {
                path.ancestors().take_while(&mut is_new).any(|above| id(above) == Some(own))
            })
    })
}

/// Reads a whole file whose size is not known beforehand, as in `/proc`, where the standard library begins with 32 bytes.
///
/// # Errors
/// Returns errors of open(2) and read(2).
pub fn whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(16 << 10);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The place of what lies `below` a tree. Not `join`: with nothing to add it would make `FILE/`.
pub fn joined(at: &Path, below: &Path) -> PathBuf {
    if below == Path::new("") { at.to_path_buf() } else { at.join(below) }
}

/// A path as the kernel writes it, with `\040` and the like for what would end a word.
fn unescaped(mut rest: &[u8]) -> PathBuf {
    let mut out = Vec::new();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(code.unwrap_or(*first));
        rest = code.and_then(|_| after.get(3..)).unwrap_or(after);
    }
    PathBuf::from(OsStr::from_bytes(&out))
}

/// Returns whether a component of `name` below `base` is a symbolic link.
pub(crate) fn links_in(base: &Path, name: &Path) -> io::Result<bool> {
    let mut path = base.to_path_buf();
    for part in name.components() {
        path.push(part);
        if fs::symlink_metadata(&path)?.is_symlink() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn l07_renames_over_nothing_without_flags() {
        let dir = std::env::temp_dir().join(format!("rename-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let open = File::open(&dir).unwrap();
        fs::write(dir.join("a"), "a").unwrap();
        fs::write(dir.join("b"), "b").unwrap();
        let rename = |to: &str| rename_after_look(&open, Path::new("a"), &open, Path::new(to));
        assert_eq!(rename("b"), Err(Errno::EEXIST));
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"b");
        assert_eq!(rename("c"), Ok(()));
        assert!(dir.join("c").exists() && !dir.join("a").exists());
        assert_eq!(rename("d"), Err(Errno::ENOENT));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn b37_a_path_has_one_name() {
        let root = std::env::temp_dir().join(format!("names-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("a/b", root.join("link")).unwrap();
        let real_root = root.canonicalize().unwrap();
        for name in ["a/b", "link", "a/../link", "./a//b/."] {
            assert_eq!(true_name(&root.join(name)).unwrap(), real_root.join("a/b"), "{name}");
        }
        assert_eq!(true_name(Path::new("/")).unwrap(), Path::new("/"));
        assert_eq!(true_name(&root.join("c")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir(root.join("x (deleted)")).unwrap();
        assert_eq!(true_name(&root.join("x (deleted)")).unwrap(), real_root.join("x (deleted)"));
        assert!(
            holds(&root.join("link/.."), &root.join("a/b")) && !holds(&root.join("a/b"), &root.join("a"))
        );
        // The second lies elsewhere, and the third in a directory that was looked at for the first.
        let [first, second, third] = ["a/x", "y/z", "a/b/c"].map(|below| root.join(below));
        let below = |dir: &str| first_below(&root.join(dir), [&first, &second, &third].map(PathBuf::as_path));
        assert_eq!(
            (below("link"), below("link/.."), below("y")),
            (Some(&*third), Some(&*first), Some(&*second))
        );
        assert_eq!((below("."), below("b")), (Some(&*first), None));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn b37_aliases_come_from_the_table_of_mounts() {
        let table = b"1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /home rw - ext4 b rw\n3 1 8:2 /ann /mnt/a\\040b rw - ext4 b rw\n\
                      4 1 0:9 / /proc rw - proc p rw\n5 1 8:1 /srv /also rw - ext4 a rw\n";
        let mounts = Mounts::new(table);
        // None of these is there, so that nothing is the same.
        assert!(mounts.aliases(Path::new("/home/ann/.ssh")).is_empty());
        let [_, home, ann, ..] = mounts.0.as_slice() else { panic!() };
        assert_eq!((home.at.as_path(), ann.at.as_path()), (Path::new("/home"), Path::new("/mnt/a b")));
        assert_eq!((ann.root.as_path(), ann.device.as_slice()), (Path::new("/ann"), b"8:2".as_slice()));
    }
}

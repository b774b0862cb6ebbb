//! Makes the private cache for a run, and lists and deletes all caches. Root makes one in directories that may belong to another user, so
//! links in them are not followed.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use exeat_files::lists::CACHE_SETTINGS;
use exeat_files::names::{open_plain, true_name};
use exeat_files::permissions::{Ids, resolve_links};
use exeat_files::quarantine::{OF_RUN, TEMPORARY};
use exeat_files::removal::{open_for_owner, remove_tree};
use exeat_files::view::scratch::TMP;
use exeat_files::walk::LinkRule;
use exeat_policy::{Cache, Home};
use exeat_record::RunId;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, geteuid, unlinkat};

use crate::dirs::is_private;

/// The path to a cache, of which the last components may not exist yet.
#[derive(Debug)]
pub(crate) struct Steps {
    at: OwnedFd,
    /// The path of `at`, without links.
    place: PathBuf,
    /// The components to create, the first one last.
    left: Vec<OsString>,
}

impl Steps {
    /// Opens the existing part of the path to a cache and its parent. Above these two, links that only root could have made are followed.
    ///
    /// # Errors
    /// Returns `ELOOP` for any other link on the path, and errors of openat2(2).
    pub(crate) fn toward(cache: &Path) -> io::Result<Self> {
        let mut above = cache.ancestors().skip(2);
        let above = above.find(|path| fs::symlink_metadata(path).is_ok()).ok_or(Errno::ENOENT)?;
        let (None, place) = resolve_links(above).ok_or(Errno::ELOOP)? else {
            return Err(Errno::ELOOP.into());
        };
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

    /// Returns the innermost existing directory.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// Returns the innermost existing directory, open.
    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.at
    }

    /// Returns whether the whole path exists.
    pub(crate) fn is_made(&self) -> bool {
        self.left.is_empty()
    }

    /// Returns the whole path.
    pub(crate) fn end(&self) -> PathBuf {
        self.place.iter().chain(self.left.iter().rev().map(OsString::as_os_str)).collect()
    }

    /// Creates the missing components, each in the one before it.
    ///
    /// # Errors
    /// Returns `ELOOP` if somebody put a link there in the meantime, and errors of mkdirat(2) and openat2(2).
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

/// Makes the directory of all caches as this process.
///
/// # Errors
/// Returns errors of mkdir(2).
pub(crate) fn make_base(caches: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(caches)
}

/// Makes the cache as this process, and [prepares](prepare) it.
///
/// # Errors
/// Returns errors of mkdir(2), and of removing a setting.
pub(crate) fn make(cache: &Path, home: Home) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(cache)?;
    prepare(&enter(AT_FDCWD, &true_name(cache)?, ResolveFlag::empty())?, home)
}

/// Removes the settings of earlier stages from a cache, and makes the home directory in it if one is wanted. The contents of that
/// directory are only for stages with the same working directory.
///
/// # Errors
/// Returns errors of removing a setting, and of mkdirat(2).
pub(crate) fn prepare(top: &OwnedFd, home: Home) -> io::Result<()> {
    // A stage may have closed it.
    open_for_owner(top)?;
    remove_settings(top)?;
    if home == Home::Caller {
        return Ok(());
    }
    // A stage may have put something else in its place.
    let is_dir = |stat: FileStat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
    if fstatat(top, HOME, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok_and(|stat| !is_dir(stat)) {
        unlinkat(top, HOME, UnlinkatFlags::NoRemoveDir)?;
    }
    match mkdirat(top, HOME, Mode::S_IRWXU) {
        Ok(()) if geteuid().is_root() => {
            let meta = fstat(top)?;
            let (user, group) = (Uid::from_raw(meta.st_uid), Gid::from_raw(meta.st_gid));
            Ok(fchownat(top, HOME, Some(user), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW)?)
        }
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The name of the home directory in a cache.
const HOME: &str = "home";

/// Makes the cache as another user, in a directory where that user may have put links.
///
/// # Errors
/// Returns errors of mkdir(2), and `EPERM` if this process cannot act as that user.
pub(crate) fn make_as(cache: &Path, (uid, gid): Ids, of: &Path, home: Home) -> io::Result<UsedCache> {
    // The ids belong to one thread (setfsuid(2)), so that thread ends with them.
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            exeat_sandbox::open_files_as(uid, gid)?;
            make(cache, home)?;
            hold(cache, of)
        });
        maker.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes it ended early")))
    })
}

/// Makes a run's directory for `/tmp` in a directory that only this user can enter.
///
/// # Errors
/// Returns errors of mkdir(2), and `EPERM` if that directory belongs to another user or is open to others.
pub(crate) fn make_tmp(dir: &Path) -> io::Result<()> {
    let base = dir.parent().ok_or(Errno::ENOENT)?;
    match DirBuilder::new().mode(0o700).create(base) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !is_private(&fs::symlink_metadata(base)?) {
        return Err(Errno::EPERM.into());
    }
    DirBuilder::new().mode(0o700).create(dir)
}

/// Returns the directory for a cache on the disk: of this working directory, or of one run alone.
pub(crate) fn cache_dir(base: &Path, cwd: &Path, kind: Cache) -> PathBuf {
    if kind == Cache::Run {
        return base.join("exeat").join(format!("{CACHE_OF_RUN}{}", RunId::new()));
    }
    let digest = exeat_record::sha256_hex(cwd.as_os_str().as_bytes());
    base.join("exeat").join(digest.get(..16).unwrap_or(&digest))
}

/// Returns a directory for one run in that which TMPDIR names, if a stage has its `/tmp` there: not where that would be another
/// machine-wide `/tmp`.
pub(crate) fn tmp_dir(named: Option<&Path>, links: &LinkRule) -> Option<PathBuf> {
    let named = named.filter(|dir| dir.is_absolute())?;
    let real = links.walk(named).ok()?.real;
    let is_usual = [TMP, "/var/tmp"].map(Path::new).contains(&real.as_path());
    let user = geteuid();
    let run = || real.join(format!("{TEMPORARY}{user}")).join(format!("{CACHE_OF_RUN}{}", RunId::new()));
    (real.is_dir() && !is_usual).then(run)
}

/// The prefix of the name of a cache for one run.
pub(crate) const CACHE_OF_RUN: &str = OF_RUN;
/// The age after which an unlocked cache of one run was left by a killed run. A run locks its own at once.
const LEFT: Duration = Duration::from_secs(2);

/// A cache in use, which nobody may delete. Dropping it deletes a cache of one run.
#[derive(Debug)]
pub(crate) struct UsedCache {
    _note: Flock<File>,
    base: OwnedFd,
    /// Its name in `base`, until it is deleted.
    of_run: Option<OsString>,
}

impl UsedCache {
    /// Deletes a cache of one run; any other stays.
    ///
    /// # Errors
    /// Returns what prevents the deletion: then it stays for `exeat state prune --caches`.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.of_run.take().map_or(Ok(()), |name| remove(&self.base, &name, None))
    }
}

impl Drop for UsedCache {
    fn drop(&mut self) {
        // The run did not start, so its cache is empty.
        let _ = self.end();
    }
}

/// Deletes caches of killed runs beside this cache of one run. What cannot be deleted stays for `exeat state prune`.
pub(crate) fn sweep(cache: &Path) {
    if !is_of_run(cache.file_name()) {
        return;
    }
    let Some(caches) = cache.parent().and_then(|base| PrivateCaches::open(base).ok()) else { return };
    let names = caches.names().unwrap_or_default();
    let until = Some(Instant::now() + REMOVING);
    // The check locks each cache for a moment, so it skips lasting ones.
    for left in
        names.iter().filter(|name| is_of_run(Some(OsStr::new(name)))).map(|name| caches.describe(name))
    {
        let is_old = left.last_use.is_some_and(|at| at.elapsed().is_ok_and(|age| age > LEFT));
        if is_old && !left.is_used {
            // The next such start goes on.
            let _ = caches.delete_until(&left, until);
        }
    }
}

/// Returns the path of a cache without the part that names one run.
pub(crate) fn of_any_run(cache: &Path) -> Cow<'_, Path> {
    match is_of_run(cache.file_name()) {
        true => Cow::Owned(cache.with_file_name(CACHE_OF_RUN)),
        false => Cow::Borrowed(cache),
    }
}

fn is_of_run(name: Option<&OsStr>) -> bool {
    name.is_some_and(|name| name.as_bytes().starts_with(CACHE_OF_RUN.as_bytes()))
}

/// Deletes a cache, then its note.
fn remove(base: &OwnedFd, name: &OsStr, until: Option<Instant>) -> io::Result<()> {
    match remove_tree(base.as_fd(), name, until) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut note = name.to_owned();
    note.push(NOTE);
    Ok(unlinkat(base, note.as_os_str(), UnlinkatFlags::NoRemoveDir)?)
}

/// The suffix of the note beside a cache, which no stage sees. The note contains the path of the working directory, and is locked while a
/// run uses the cache.
const NOTE: &str = ".dir";
/// The longest wait of a start for a cache that is being deleted.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest time that a start removes what earlier stages left in caches.
const REMOVING: Duration = Duration::from_secs(1);
/// The longest path in a note (PATH_MAX of limits.h).
const LONGEST: u64 = 4096;
/// The maximal number of listed caches.
const MOST: usize = 4096;
/// The maximal number of names that the size of a cache counts.
const COUNTED: usize = 200_000;
/// The maximal bytes of directory names that wait to be counted.
const ROOM: usize = 16 << 20;

/// Writes the working directory of a cache to its note, and locks the cache for as long as the result lives.
///
/// # Errors
/// Returns `EWOULDBLOCK` if the cache is being deleted, and errors of openat(2) and write(2).
pub(crate) fn hold(cache: &Path, of: &Path) -> io::Result<UsedCache> {
    let (Some(base), Some(name)) = (cache.parent(), cache.file_name()) else {
        return Err(Errno::ENOENT.into());
    };
    let base = enter(AT_FDCWD, &true_name(base)?, ResolveFlag::empty())?;
    let end = Instant::now() + PATIENCE;
    loop {
        let note = open_note(&base, name, OFlag::O_RDWR | OFlag::O_CREAT)?;
        match Flock::lock(note, FlockArg::LockSharedNonblock) {
            Ok(note) => {
                let bytes = of.as_os_str().as_bytes();
                note.write_all_at(bytes, 0)?;
                note.set_len(u64::try_from(bytes.len()).unwrap_or(0))?;
                // A deletion removes the note last, so the cache may be gone.
                enter(&base, Path::new(name), ResolveFlag::RESOLVE_BENEATH)?;
                let of_run = is_of_run(Some(name)).then(|| name.to_owned());
                return Ok(UsedCache { _note: note, base, of_run });
            }
            Err((_, errno)) if Instant::now() > end => return Err(errno.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn open_note(base: &OwnedFd, cache: &OsStr, flags: OFlag) -> io::Result<File> {
    let mut name = cache.to_owned();
    name.push(NOTE);
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::from(openat(base, name.as_os_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(Errno::EINVAL.into()) }
}

/// A private cache on the disk.
#[derive(Debug)]
pub struct PrivateCache {
    /// The path.
    pub path: PathBuf,
    /// The working directory that it belongs to; `None` if it has no note.
    pub of: Option<PathBuf>,
    /// When a run last started to use it.
    pub last_use: Option<SystemTime>,
    /// Whether a run uses it now.
    pub is_used: bool,
    /// Whether it contains a private home directory.
    pub has_home: bool,
}

/// The private caches of one user.
#[derive(Debug)]
pub struct PrivateCaches {
    base: OwnedFd,
    path: PathBuf,
}

impl PrivateCaches {
    /// Opens the directory of caches: `exeat` in the user's cache directory. Its path must not contain a link.
    ///
    /// # Errors
    /// Returns errors of openat2(2), and `NotFound` if there was never a cache.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { base: open_plain(path)?, path: path.to_path_buf() })
    }

    /// Lists the caches sorted by name.
    ///
    /// # Errors
    /// Returns errors of reading the directory.
    pub fn list(&self) -> io::Result<Vec<PrivateCache>> {
        let caches = self.names()?.into_iter().map(|name| self.describe(&name));
        Ok(caches.filter(|cache| cache.path.symlink_metadata().is_ok()).collect())
    }

    /// Lists the names of caches, also of one of which only the note is left: the run that deleted it was killed.
    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(format!("/proc/self/fd/{}", self.base.as_raw_fd()))?;
        let is_cache = |name: &str| match name.strip_prefix(CACHE_OF_RUN) {
            Some(run) => run.bytes().all(|byte| byte.is_ascii_alphanumeric()),
            None => name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()),
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let names = names.map(|name| match name.strip_suffix(NOTE) {
            Some(cache) if cache.starts_with(CACHE_OF_RUN) => cache.to_owned(),
            _ => name,
        });
        let names: BTreeSet<String> = names.filter(|name| is_cache(name)).take(MOST).collect();
        Ok(names.into_iter().collect())
    }

    fn describe(&self, name: &str) -> PrivateCache {
        let path = self.path.join(name);
        let home = fstatat(&self.base, &Path::new(name).join(HOME), AtFlags::AT_SYMLINK_NOFOLLOW);
        let has_home =
            home.is_ok_and(|meta| SFlag::from_bits_truncate(meta.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR);
        let Ok(note) = open_note(&self.base, OsStr::new(name), OFlag::O_RDONLY) else {
            return PrivateCache { path, of: None, last_use: None, is_used: false, has_home };
        };
        let last_use = note.metadata().and_then(|meta| meta.modified()).ok();
        let mut bytes = Vec::new();
        let read = (&note).take(LONGEST).read_to_end(&mut bytes);
        let of = PathBuf::from(OsString::from_vec(bytes));
        // The lock is held only for a moment, so that a start does not wait longer.
        let is_used = Flock::lock(note, FlockArg::LockExclusiveNonblock).is_err();
        let of = (read.is_ok() && of.is_absolute()).then_some(of);
        PrivateCache { path, of, last_use, is_used, has_home }
    }

    /// Returns the bytes that a cache uses on disk, and whether everything was counted.
    #[must_use]
    pub fn size(&self, cache: &PrivateCache) -> (u64, bool) {
        let Some(name) = cache.path.file_name() else { return (0, false) };
        let (mut left, mut room, mut bytes, mut is_whole) = (COUNTED, ROOM, 0_u64, true);
        let mut dirs = vec![PathBuf::from(name)];
        while let Some(dir) = dirs.pop() {
            room += dir.as_os_str().len();
            // Directories that cannot be entered, or whose path is too long, are not counted.
            let listed = enter(&self.base, &dir, ResolveFlag::RESOLVE_BENEATH)
                .map_err(io::Error::from)
                .and_then(|open| fs::read_dir(format!("/proc/self/fd/{}", open.as_raw_fd())));
            let Ok(entries) = listed else {
                is_whole = false;
                continue;
            };
            for entry in entries {
                let Ok((entry, meta)) = entry.and_then(|it| it.metadata().map(|meta| (it, meta))) else {
                    is_whole = false;
                    continue;
                };
                if left == 0 {
                    return (bytes, false);
                }
                left -= 1;
                bytes = bytes.saturating_add(meta.blocks().saturating_mul(512));
                if meta.is_dir() {
                    let below = dir.join(entry.file_name());
                    match room.checked_sub(below.as_os_str().len()) {
                        Some(less) => {
                            room = less;
                            dirs.push(below);
                        }
                        None => is_whole = false,
                    }
                }
            }
        }
        (bytes, is_whole)
    }

    /// Deletes a cache with its note. Returns false if a run uses it.
    ///
    /// # Errors
    /// Returns what prevents the deletion.
    pub fn delete(&self, cache: &PrivateCache) -> io::Result<bool> {
        self.delete_until(cache, None)
    }

    fn delete_until(&self, cache: &PrivateCache, until: Option<Instant>) -> io::Result<bool> {
        let Some(name) = cache.path.file_name() else { return Ok(false) };
        // A start in the meantime waits, or finds no cache and uses memory.
        let note = open_note(&self.base, name, OFlag::O_RDWR | OFlag::O_CREAT)?;
        let Ok(_lock) = Flock::lock(note, FlockArg::LockExclusiveNonblock) else { return Ok(false) };
        remove(&self.base, name, until)?;
        Ok(true)
    }
}

/// Removes settings from an existing cache. An earlier stage may have left them, and programs would obey them.
///
/// # Errors
/// Returns what prevents the removal of one.
fn remove_settings(top: &OwnedFd) -> io::Result<()> {
    let until = Some(Instant::now() + REMOVING);
    let names = CACHE_SETTINGS.iter().map(|name| name.split_once('/').unwrap_or((".", name)));
    let names: Vec<(&str, &str)> = names.collect();
    for of_one in names.chunk_by(|(above, _), (other, _)| above == other) {
        let above = of_one.first().map_or(".", |(above, _)| above);
        let Some(dir) = open_settings(top, Path::new(above))? else { continue };
        for (_, last) in of_one {
            remove_tree(dir.as_fd(), OsStr::new(last), until)?;
        }
    }
    Ok(())
}

/// Opens a directory of a cache, also if a stage has closed it. Removes an entry that is not a directory, because it sends the tool to
/// another place or to none.
fn open_settings(top: &OwnedFd, path: &Path) -> io::Result<Option<OwnedFd>> {
    let mut dir = top.try_clone()?;
    for name in path.iter().filter(|name| *name != ".") {
        dir = match enter(&dir, Path::new(name), ResolveFlag::RESOLVE_BENEATH) {
            Ok(below) => below,
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ELOOP | Errno::ENOTDIR) => {
                unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir)?;
                return Ok(None);
            }
            Err(errno) => return Err(errno.into()),
        };
        open_for_owner(&dir)?;
    }
    Ok(Some(dir))
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
        // The directories are deeper than the limit of open descriptors, and one cannot be entered.
        let mut deep = cache.join("cargo/bin");
        for _ in 0..300 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("x"), "evil").unwrap();
        symlink(&outside, deep.join("l")).unwrap();
        fs::set_permissions(cache.join("cargo/bin/d/d"), Permissions::from_mode(0o000)).unwrap();
        // Settings in a directory that the stage has closed.
        fs::create_dir_all(cache.join("go/bin")).unwrap();
        fs::set_permissions(cache.join("go"), Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(&cache, Permissions::from_mode(0o000)).unwrap();
        let cache = cache.canonicalize().unwrap();
        // A busy disk can take longer than a start may wait. The next start goes on with the removal.
        let is_late =
            |made: &io::Result<()>| made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
        let removed = (0..30).map(|_| make(&cache, Home::default())).find(|made| !is_late(made));
        removed.expect("a start that removed the rest").unwrap();
        // A second time, because a missing setting is not an error.
        make(&cache, Home::default()).unwrap();
        let names: Vec<_> =
            fs::read_dir(cache.join("cargo")).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["registry"], "data stays");
        assert_eq!(fs::read_dir(cache.join("go")).unwrap().count(), 0);
        assert!(outside.join("init.d").is_dir(), "nothing that a link leads to is touched");
        assert!(fs::symlink_metadata(cache.join("gradle")).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    /// The run that removed the cache was killed before it removed the note.
    #[test]
    fn a_note_without_its_cache_is_removed() {
        let dir = std::env::temp_dir().join(format!("note-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let dir = dir.canonicalize().unwrap();
        for (name, age) in [("run-OLD.dir", LEFT * 2), ("run-YOUNG.dir", Duration::ZERO)] {
            fs::write(dir.join(name), "/work").unwrap();
            let file = fs::File::options().write(true).open(dir.join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        }
        assert!(PrivateCaches::open(&dir).unwrap().list().unwrap().is_empty());
        sweep(&dir.join("run-NEXT"));
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["run-YOUNG.dir"]);
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
        // A link appears between the check and the creation, at each step.
        for name in ["base", "base/exeat", "base/exeat/0123"] {
            symlink(dir.join("elsewhere"), dir.join(name)).unwrap();
            assert_eq!(steps.make().unwrap_err().raw_os_error(), Some(Errno::ELOOP as i32), "{name}");
            assert_eq!(fs::read_dir(dir.join("elsewhere")).unwrap().count(), 0, "{name}");
            fs::remove_file(dir.join(name)).unwrap();
            fs::create_dir(dir.join(name)).unwrap();
        }
        steps.make().unwrap();
        assert!(steps.is_made() && Steps::toward(&cache).unwrap().is_made());
        // The link exists from the start.
        fs::remove_dir_all(dir.join("base/exeat")).unwrap();
        symlink("../elsewhere", dir.join("base/exeat")).unwrap();
        assert!(Steps::toward(&cache).is_err());
        fs::remove_file(dir.join("base/exeat")).unwrap();
        Steps::toward(&cache).unwrap().make().unwrap();
        assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o7777, 0o700);
        fs::remove_dir_all(&dir).unwrap();
    }
}

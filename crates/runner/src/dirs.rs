//! Manages the directory of one run: the proxy's sockets and the denials file, until stage2 has connected.
//!
//! They are bind-mounted into the sandbox, and a bind mount outlives the name. After the names are removed, even SIGKILL leaves nothing
//! behind. The next run removes what a run left that was killed earlier.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{AccessFlags, UnlinkatFlags, access, geteuid, unlinkat};

use exeat_files::names::true_name;

/// The prefix of a run directory's name.
const PREFIX: &str = "exeat-";
const SOCKET: &str = "proxy.sock";
const SOCKS5_SOCKET: &str = "socks5.sock";
const DENIALS: &str = "denials.jsonl";
const LOCK: &str = "lock";
/// The number of directories that one start tries. It loses one only to a start in the same few microseconds.
const TRIES: usize = 16;
/// The maximal number of names that one sweep inspects: a full `/tmp` must not slow a start.
const SWEPT: usize = 4096;

/// A private directory, which is removed with its contents on drop.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    /// The open directory: the user that it is given to may replace its path.
    dir: File,
    /// Held for as long as the directory is in use.
    _lock: Flock<File>,
}

impl RunDir {
    /// Makes a directory with a random name and mode 0700 in a place that [`base`] returns.
    pub(crate) fn create(base: &Path) -> io::Result<Self> {
        sweep(base);
        let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
        for _ in 0..TRIES {
            match Self::lock_new(base) {
                Ok(Some(dir)) => return Ok(dir),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound && base.is_dir() => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Makes a directory and locks it. Returns `None` if the sweep of another start removed it, which can happen between making and
    /// locking the lock file.
    fn lock_new(base: &Path) -> io::Result<Option<Self>> {
        let path = nix::unistd::mkdtemp(&base.join(format!("{PREFIX}XXXXXX")))?;
        let dir = open_dir(&path)?;
        let name = path.join(LOCK);
        let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name)?;
        let Ok(lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
        let held = lock.metadata()?;
        let named = fs::symlink_metadata(&name).ok();
        if named.is_some_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
            return Ok(Some(Self { path, dir, _lock: lock }));
        }
        Ok(None)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn socket_path(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    pub(crate) fn socks5_path(&self) -> PathBuf {
        self.path.join(SOCKS5_SOCKET)
    }

    pub(crate) fn denials_path(&self) -> PathBuf {
        self.path.join(DENIALS)
    }

    /// Binds the proxy's socket. bind(2) refuses a path of more than 107 bytes.
    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        listen_at(&self.socket_path())
    }

    /// Binds the socket for SOCKS5 through a relay.
    pub(crate) fn listen_socks5(&self) -> io::Result<UnixListener> {
        listen_at(&self.socks5_path())
    }

    /// Opens the denials file for appending; the stage can read it.
    pub(crate) fn denials(&self) -> io::Result<File> {
        let path = self.denials_path();
        let file = OpenOptions::new().append(true).create_new(true).mode(0o644).open(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        Ok(file)
    }

    /// Gives the directory to another user. Only root calls this, for a stage that becomes that user where nothing can be mounted for it.
    pub(crate) fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        std::os::unix::fs::chown(&self.path, Some(uid), Some(gid))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The next start sweeps what cannot be removed now.
        let _ = remove(&self.dir, &self.path);
    }
}

/// Lists the sockets and the denials file that exist in a run directory.
pub(crate) fn names(dir: &RunDir) -> Vec<(&'static str, PathBuf)> {
    let all = [SOCKET, SOCKS5_SOCKET, DENIALS].map(|name| (name, dir.path.join(name)));
    all.into_iter().filter(|(_, path)| path.exists()).collect()
}

fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    // Nobody else reaches the socket because the directory is 0700. Any user that the stage may be can write to it.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Returns where run directories are made: the user's runtime directory if it is private, otherwise [`shared`].
pub(crate) fn base(runtime_dir: Option<&Path>) -> PathBuf {
    let is_usable =
        |path: &&Path| path.is_absolute() && fs::symlink_metadata(path).is_ok_and(|it| is_private(&it));
    runtime_dir.filter(is_usable).map_or_else(shared, Path::to_path_buf)
}

/// Returns whether it is a directory that only this user can enter.
pub(crate) fn is_private(meta: &fs::Metadata) -> bool {
    meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0
}

/// Returns where users without a private place have their run directories. A file system in memory is preferred because a directory on a
/// disk takes up to a millisecond to make and remove. Its mode is 0700 there, too.
pub(crate) fn shared() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if is_shared_memory(memory) { memory.to_path_buf() } else { real_name(Path::new("/tmp")) }
}

/// Returns whether a directory is a writable tmpfs where only root can rename or remove entries of other users.
fn is_shared_memory(path: &Path) -> bool {
    let is_sticky = |meta: &fs::Metadata| meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o1000 != 0;
    fs::symlink_metadata(path).is_ok_and(|meta| is_sticky(&meta))
        && statfs(path).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
        && access(path, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Resolves links, because mounting for bubblewrap refuses them.
fn real_name(path: &Path) -> PathBuf {
    true_name(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Removes run directories of ended runs. It skips any directory that may not be exeat's.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten().take(SWEPT) {
        if !entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        // A failure is harmless, and the next start tries again.
        let _ = sweep_one(&entry.path());
    }
}

fn sweep_one(path: &Path) -> io::Result<()> {
    let me = geteuid();
    let dir = open_dir(path)?;
    let meta = dir.metadata()?;
    let is_own = meta.uid() == me.as_raw();
    // Root may have given the directory to a stage's user; the lock stays root's.
    if meta.mode() & 0o7777 != 0o700 || !(is_own || me.is_root()) {
        return Ok(());
    }
    let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let lock = match openat(&dir, LOCK, flags, Mode::empty()) {
        Ok(lock) => File::from(lock),
        // The run was killed before it made its lock, or is about to: then it makes another directory. Only an empty directory is
        // removed.
        Err(_) if is_own => return fs::remove_dir(path),
        Err(errno) => return Err(errno.into()),
    };
    if lock.metadata()?.uid() != me.as_raw() {
        return Ok(());
    }
    // The lock is held until the directory is gone, so a start that has not locked its file yet notices.
    let Ok(_held) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else { return Ok(()) };
    remove(&dir, path)
}

fn open_dir(path: &Path) -> io::Result<File> {
    let flags = nix::libc::O_DIRECTORY | nix::libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Removes exeat's files from a directory, and the directory if it is empty then.
fn remove(dir: &File, path: &Path) -> io::Result<()> {
    for name in [SOCKET, SOCKS5_SOCKET, DENIALS, LOCK] {
        match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("dirs-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        path
    }

    /// K25, K49.
    #[test]
    fn b36_b27_a_run_directory_is_private_and_leaves_nothing() {
        let base = scratch("private");
        let dir = RunDir::create(&base).unwrap();
        assert_eq!(fs::metadata(&dir.path).unwrap().mode() & 0o7777, 0o700);
        let _listeners = [dir.listen().unwrap(), dir.listen_socks5().unwrap()];
        let _denials = dir.denials().unwrap();
        drop(dir);
        assert_eq!(fs::read_dir(&base).unwrap().count(), 0);
        fs::remove_dir(&base).unwrap();
    }

    #[test]
    fn a_tmp_that_is_a_link_is_followed() {
        let dir = scratch("tmp").canonicalize().unwrap();
        fs::create_dir(dir.join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("tmp")).unwrap();
        assert_eq!(real_name(&dir.join("tmp")), dir.join("real"));
        fs::remove_dir_all(&dir).unwrap();
    }

    /// A directory of another user, or where anybody can remove others' entries, is not used.
    #[test]
    fn b36_only_a_sticky_tmpfs_of_root_s_is_used_beside_tmp() {
        let dir = scratch("memory");
        assert!(!is_shared_memory(&dir) && !is_shared_memory(&dir.join("missing")));
        assert!(!is_shared_memory(Path::new("/proc")) && !is_shared_memory(Path::new("/")));
        let places = [Path::new("/dev/shm").to_path_buf(), Path::new("/tmp").canonicalize().unwrap()];
        assert!(places.contains(&shared()));
        assert_eq!(base(Some(&dir)), shared(), "mkdir gives it to others");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(base(Some(&dir)), dir);
        let link = dir.join("link");
        std::os::unix::fs::symlink("/dev/shm", &link).unwrap();
        assert!(!is_shared_memory(&link));
        fs::remove_dir_all(&dir).unwrap();
    }

    /// K25, K50.
    #[test]
    fn b32_sweeps_the_directory_of_a_killed_run_but_not_one_in_use() {
        let base = scratch("sweep");
        let killed = RunDir::create(&base).unwrap();
        let path = killed.path.clone();
        let _socket = killed.listen().unwrap();
        // This simulates SIGKILL: the lock is gone, the names stay.
        let RunDir { _lock, .. } = &killed;
        let used = RunDir::create(&base).unwrap();
        assert!(path.exists(), "swept while its lock is held");
        fs::remove_file(path.join(LOCK)).unwrap();
        fs::write(path.join(LOCK), "").unwrap();
        let third = RunDir::create(&base).unwrap();
        assert!(!path.exists(), "not swept");
        let empty = nix::unistd::mkdtemp(&base.join("exeat-XXXXXX")).unwrap();
        sweep(&base);
        assert!(!empty.exists(), "killed before it had a lock");
        assert!(used.path.exists());
        drop((killed, used, third));
        fs::remove_dir(&base).unwrap();
    }

    /// K25: root sweeps a directory that it gave to a stage's user, but not one that the user made.
    #[test]
    #[ignore = "needs root"]
    fn b32_root_sweeps_a_directory_that_it_gave_to_another_user() {
        let base = scratch("given");
        let left = [RunDir::create(&base).unwrap(), RunDir::create(&base).unwrap()];
        let used = RunDir::create(&base).unwrap();
        for dir in left.iter().chain([&used]) {
            dir.give_to(12_345, 12_345).unwrap();
        }
        // This simulates SIGKILL: the locks are gone, the names stay.
        for dir in &left {
            fs::remove_file(dir.path.join(LOCK)).unwrap();
            fs::write(dir.path.join(LOCK), "").unwrap();
        }
        let [killed, other] = left;
        std::os::unix::fs::chown(other.path.join(LOCK), Some(12_345), None).unwrap();
        sweep(&base);
        assert_eq!([&killed, &other, &used].map(|dir| dir.path.exists()), [false, true, true]);
        drop((killed, other, used));
        fs::remove_dir(&base).unwrap();
    }

    /// K50.
    #[test]
    fn starts_at_the_same_time_do_not_sweep_each_other() {
        let base = scratch("crowd");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let dir = RunDir::create(&base).unwrap();
                        let _listener = dir.listen().unwrap();
                        let _denials = dir.denials().unwrap();
                    }
                });
            }
        });
        sweep(&base);
        assert_eq!(fs::read_dir(&base).unwrap().count(), 0);
        fs::remove_dir(&base).unwrap();
    }

    #[test]
    fn b27_a_path_over_107_bytes_is_refused() {
        let base = scratch(&"x".repeat(100));
        let dir = RunDir::create(&base).unwrap();
        assert!(dir.listen().is_err());
        drop(dir);
        fs::remove_dir(&base).unwrap();
    }
}

//! Makes a control group whose memory the kernel bounds, if this process may.
//!
//! Supports only control groups of version 2: `Documentation/admin-guide/cgroup-v2.rst` of the kernel.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use exeat_policy::Size;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{AccessFlags, access, geteuid};

/// The prefix of the names of these groups.
const PREFIX: &str = "exeat-";

/// A control group for one stage, which is removed on drop.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    path: PathBuf,
    /// The lock that shows other runs that the group is in use.
    _lock: Flock<File>,
}

/// Returns the group in which this process can make groups with counted memory: the one above its own, if it was delegated to its user.
///
/// Returns `None` for root of the machine, who may write everywhere: exeat cannot know what was delegated to root, and systemd expects to
/// be alone in the rest.
pub(crate) fn delegated() -> Option<PathBuf> {
    let is_the_machines = geteuid().is_root()
        && fs::read_to_string("/proc/self/uid_map").ok()?.split_whitespace().eq(["0", "0", "4294967295"]);
    if is_the_machines {
        return None;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let above = above(&fs::read_to_string("/proc/self/cgroup").ok()?, &mounts)?;
    let counted = fs::read_to_string(above.join("cgroup.subtree_control")).ok()?;
    let is_writable = |path: &Path| access(path, AccessFlags::W_OK).is_ok();
    let is_delegated = is_writable(&above) && is_writable(&above.join("cgroup.procs"));
    (is_delegated && counted.split_whitespace().any(|name| name == "memory")).then_some(above)
}

/// Returns the directory of the group above this one, from `/proc/self/cgroup` (cgroups(7)) and `/proc/self/mountinfo`.
fn above(groups: &str, mounts: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // The fields are the root of the mount, its place, and after a dash its type. The whole tree must be mounted.
    let place = mounts.lines().find_map(|line| {
        let (known, kind) = line.split_once(" - ")?;
        let mut fields = known.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        (kind.starts_with("cgroup2 ") && root == "/" && !place.contains('\\')).then_some(place)
    })?;
    let own = Path::new(own).strip_prefix("/").ok()?;
    // A group outside the group namespace has `..` in its path.
    let is_within = own.components().all(|part| matches!(part, Component::Normal(_)));
    (is_within && own.components().next().is_some())
        .then(|| Path::new(place).join(own.parent().unwrap_or(own)))
}

impl MemoryGroup {
    /// Makes a group in this one, whose processes are killed together at the limit.
    ///
    /// # Errors
    /// Returns errors of mkdir(2), open(2) and write(2).
    pub(crate) fn make(above: &Path, run: &str, limit: Size) -> io::Result<Self> {
        remove_left(above);
        let path = above.join(format!("{PREFIX}{run}"));
        fs::create_dir(&path)?;
        let lock = match Flock::lock(File::open(&path)?, FlockArg::LockSharedNonblock) {
            Ok(lock) => lock,
            Err((_, errno)) => return Err(errno.into()),
        };
        let group = Self { path, _lock: lock };
        group.set("memory.max", &limit.get().to_string())?;
        // The file does not exist without swap.
        match group.set("memory.swap.max", "0") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        group.set("memory.oom.group", "1")?;
        Ok(group)
    }

    /// Opens the file that takes the number of a process to add.
    pub(crate) fn processes(&self) -> io::Result<File> {
        File::options().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Returns whether the kernel killed a process in the group at the limit.
    pub(crate) fn has_killed(&self) -> bool {
        let events = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        let killed = events.lines().filter_map(|line| line.strip_prefix("oom_kill "));
        killed.into_iter().any(|count| count != "0")
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        // The kernel creates these files.
        File::options().write(true).open(self.path.join(name))?.write_all(value.as_bytes())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        /// Milliseconds that the last process may take to leave. A later run removes the group otherwise.
        const ATTEMPTS: u32 = 20;
        for _ in 0..ATTEMPTS {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                _ => return,
            }
        }
    }
}

/// Removes the groups of killed runs.
fn remove_left(above: &Path) {
    /// The maximal number of inspected names.
    const MOST: usize = 1000;
    /// The age after which a group without a lock is unused: a new one is locked at once.
    const OLD: Duration = Duration::from_secs(60);
    let Ok(names) = fs::read_dir(above) else { return };
    for entry in names.take(MOST).flatten() {
        let is_old = || entry.metadata().ok()?.modified().ok()?.elapsed().ok().map(|age| age > OLD);
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && is_old() == Some(true)
            && let Ok(dir) = File::open(entry.path())
            && let Ok(_lock) = Flock::lock(dir, FlockArg::LockExclusiveNonblock)
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "24 1 0:22 / / rw - ext4 /dev/vda rw\n\
        31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_group_above_is_found() {
        let above = |groups| above(groups, MOUNTS);
        let app = "/sys/fs/cgroup/user.slice/app.slice";
        assert_eq!(above("0::/user.slice/app.slice/a.scope\n"), Some(app.into()));
        assert_eq!(above("4:memory:/x\n0::/a\n"), Some("/sys/fs/cgroup/".into()));
        for none in ["0::/\n", "0::/../a\n", "4:memory:/a/b\n", ""] {
            assert_eq!(above(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_tree_that_is_mounted_in_part_is_none() {
        let groups = "0::/a/b\n";
        for none in [
            "",
            "31 24 0:27 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "31 24 0:27 / /c\\040d rw - cgroup2 x rw\n",
        ] {
            assert_eq!(above(groups, none), None, "{none:?}");
        }
    }
}

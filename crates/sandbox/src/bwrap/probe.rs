//! Finds a bubblewrap to trust, and explains its failures.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::layer::RefusingLayer;
use crate::said;

/// Paths where distributions install it. PATH is ignored: a stage of an earlier run may have planted a program there.
const TRUSTED: [&str; 4] =
    ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap", "/run/current-system/sw/bin/bwrap"];

/// Time for the answer about the version. A loaded machine takes a second.
const VERSION: Duration = Duration::from_secs(10);

/// Returns the bubblewrap at the first trusted path, with symbolic links resolved.
///
/// # Errors
/// Returns [`Error::NoBwrap`] if no path holds an executable file that only root can replace.
pub fn find() -> Result<PathBuf, Error> {
    let mut looked = Vec::new();
    for place in TRUSTED.map(Path::new) {
        let Ok(resolved) = place.canonicalize() else {
            looked.push(place.display().to_string());
            continue;
        };
        match distrust(&resolved) {
            None => return Ok(resolved),
            Some(why) => looked.push(format!("{}: {why}", place.display())),
        }
    }
    Err(Error::NoBwrap { looked: looked.join(", ") })
}

/// Returns the bubblewrap at this path, with symbolic links resolved.
///
/// # Errors
/// Returns [`Error::NoBwrap`] if it is not an executable file that only root can replace.
pub fn trusted(place: &Path) -> Result<PathBuf, Error> {
    let shown = place.display();
    let resolved =
        place.canonicalize().map_err(|error| Error::NoBwrap { looked: format!("{shown}: {error}") })?;
    match distrust(&resolved) {
        None => Ok(resolved),
        Some(why) => Err(Error::NoBwrap { looked: format!("{shown}: {why}") }),
    }
}

/// Returns what this bubblewrap says of its version, such as `bubblewrap 0.8.0`.
///
/// # Errors
/// Returns an error if it cannot be started or does not end in time.
pub fn version(path: &Path) -> io::Result<String> {
    said::first_line(path, "--version", Instant::now() + VERSION)
}

/// Describes what is wrong with the file or with a directory above it.
fn distrust(path: &Path) -> Option<String> {
    let trusted_owner = |uid: u32| uid == 0 || (in_user_namespace() && uid == overflow_uid());
    for part in path.ancestors() {
        let Ok(meta) = fs::symlink_metadata(part) else { return Some("not readable".into()) };
        if !trusted_owner(meta.uid()) {
            return Some(format!("`{}` does not belong to root", part.display()));
        }
        let writable = meta.permissions().mode() & 0o022;
        if writable != 0 && meta.permissions().mode() & 0o1000 == 0 {
            return Some(format!("`{}` can be changed by others than root", part.display()));
        }
    }
    let meta = fs::metadata(path).ok()?;
    if meta.is_file() && meta.permissions().mode() & 0o111 != 0 {
        None
    } else {
        Some("not executable".into())
    }
}

/// Whether uid 0 here is another uid outside: the real root's files then show the overflow uid.
pub(crate) fn in_user_namespace() -> bool {
    let whole = ["0", "0", "4294967295"];
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.split_whitespace().eq(whole)
}

fn overflow_uid() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(exeat_contract::NOBODY)
}

/// Whether this process runs in a run's sandbox. The host side's mounts prove it, since no other program mounts at these paths;
/// anyone could set or unset a variable.
#[must_use]
pub fn is_nested() -> bool {
    // The standard library begins with 32 bytes, and the kernel makes the table anew for each part.
    let mut table = String::with_capacity(16 << 10);
    let read = File::open("/proc/self/mountinfo").and_then(|mut file| file.read_to_string(&mut table));
    read.is_ok() && is_mounted(&table)
}

/// Whether the run around this process lets a nested run execute its command directly.
#[must_use]
pub fn is_passed() -> bool {
    // Most runs are not nested, and one call shows it.
    Path::new(exeat_contract::NESTED).is_file() && is_nested()
}

/// Searches proc_pid_mountinfo(5), where the fifth field is the mount point.
fn is_mounted(mountinfo: &str) -> bool {
    let ours = [exeat_contract::SOCKET, exeat_contract::DENIALS];
    mountinfo.lines().any(|line| line.split(' ').nth(4).is_some_and(|place| ours.contains(&place)))
}

/// Returns the layer that refused, from bubblewrap's output and the host's settings.
#[must_use]
pub fn layer(said: &str) -> RefusingLayer {
    if said.contains("Unknown option") || said.contains("nknown option") {
        return RefusingLayer::OldBwrap;
    }
    if said.contains("mount proc") {
        return RefusingLayer::MaskedProc;
    }
    let namespaces = [
        "amespace",
        "uid map",
        "gid map",
        "loopback",
        "Operation not permitted",
        "Permission denied",
        "No space left",
    ];
    if !namespaces.iter().any(|word| said.contains(word)) {
        return RefusingLayer::Unknown;
    }
    host_layer()
}

/// Returns the layer of this host that refuses namespaces, from its settings.
pub(crate) fn host_layer() -> RefusingLayer {
    if is_nested() {
        return RefusingLayer::Nested;
    }
    if let Some(layer) = refusing_setting() {
        return layer;
    }
    let filtered =
        setting("/proc/self/status").lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2'));
    if filtered { RefusingLayer::Container } else { RefusingLayer::Unknown }
}

/// Returns the layer whose setting refuses user namespaces to the programs of an ordinary user.
pub(crate) fn refusing_setting() -> Option<RefusingLayer> {
    if setting("/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        return Some(RefusingLayer::UsernsCloneSysctl);
    }
    if setting("/proc/sys/user/max_user_namespaces") == "0" {
        return Some(RefusingLayer::MaxUserNamespaces);
    }
    let is_restricted = setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1";
    is_restricted.then_some(RefusingLayer::AppArmor)
}

fn setting(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N19.
    #[test]
    fn b17_a_planted_bwrap_is_not_trusted() {
        let dir = std::env::temp_dir().join(format!("exeat-probe-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let planted = dir.join("bwrap");
        fs::write(&planted, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&planted, fs::Permissions::from_mode(0o777)).unwrap();
        // A file of an ordinary user does not belong to root either.
        let is_root = nix::unistd::geteuid().is_root();
        let why = if is_root { "can be changed" } else { "does not belong to root" };
        assert!(distrust(&planted).unwrap().contains(why), "world-writable");
        if is_root {
            fs::set_permissions(&planted, fs::Permissions::from_mode(0o755)).unwrap();
            std::os::unix::fs::chown(&planted, Some(12345), None).unwrap();
            assert!(distrust(&planted).unwrap().contains("does not belong to root"));
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_host_s_bwrap_is_found() {
        assert!(find().unwrap().is_absolute());
    }

    #[test]
    fn recognizes_a_run_by_its_mounts() {
        let line = |place: &str| {
            format!("30 1 0:1 / / rw - ext4 /dev/vda rw\n140 131 254:0 /a {place} ro - ext4 /dev/vda rw\n")
        };
        assert!(is_mounted(&line("/run/exeat/proxy.sock")) && is_mounted(&line("/run/exeat/denials.jsonl")));
        assert!(!is_mounted(&line("/srv/run/exeat/proxy.sock")) && !is_mounted(&line("/run/exeat")));
        assert!(!is_nested(), "these tests run outside");
    }

    #[test]
    fn finds_the_layer_in_bwraps_words() {
        assert_eq!(layer("bwrap: Unknown option --disable-userns"), RefusingLayer::OldBwrap);
        assert_eq!(
            layer("bwrap: Can't mount proc on /newroot/proc: Operation not permitted"),
            RefusingLayer::MaskedProc
        );
        assert_eq!(
            layer("bwrap: Can't find source path /nonexistent: No such file or directory"),
            RefusingLayer::Unknown
        );
    }
}

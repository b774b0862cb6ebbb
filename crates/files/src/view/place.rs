//! Follows paths of the sandbox through earlier mounts, to find where a mount will be.
//!
//! bubblewrap makes the place of each mount, and follows the symbolic links on the way while the host's tree still lies
//! beside the new one: a link that a stage has left could make it create files outside of everything that the stage may
//! write. So no link is left to it: each place is followed here, as the stage would follow it, and checked at the end.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::layout::{EmptyEntry, Mount, MountList, Why};
use exeat_contract::{DENIALS, SOCKET, SOCKS5_SOCKET, STAGE2};

use crate::fault::FileFault;
use crate::walk::{MAX_LINKS, pieces};

/// The entry at a path of the sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EntryAt {
    Dir,
    /// Anything that is neither a directory nor a link.
    File,
    Link {
        target: PathBuf,
        /// The path of the link on the host, if it is the host's.
        host: Option<PathBuf>,
    },
    /// No entry: bubblewrap makes one.
    Absent,
    /// No entry, and none can be made.
    Closed(String),
}

/// Returns the entry at `place` after `mounts`. The path must not contain links.
pub(super) fn entry_at(mounts: &MountList, place: &Path) -> EntryAt {
    if place == Path::new("/") {
        return EntryAt::Dir;
    }
    let last_below = mounts.last_below(place);
    for (number, mount) in mounts.over(place) {
        if last_below > Some(number) {
            break;
        }
        let at = mount.at();
        let Ok(below) = place.strip_prefix(at) else { continue };
        let is_top = below == Path::new("");
        match mount {
            Mount::ReadOnly { host, .. } => return on_host(host, below, Some(at)),
            Mount::Writable { host, .. } => return on_host(host, below, None),
            Mount::Hidden { entry: EmptyEntry::File, .. } if is_top => return EntryAt::File,
            Mount::Hidden { entry: EmptyEntry::File, .. } => {
                return EntryAt::Closed(format!("`{}` is hidden, and not a directory", at.display()));
            }
            Mount::Hidden { .. } | Mount::Tmpfs { .. } => {
                return if is_top { EntryAt::Dir } else { EntryAt::Absent };
            }
            Mount::Proc if !is_top => return in_proc(below),
            Mount::Dev { .. } if !is_top => return in_dev(below),
            Mount::Proc | Mount::Dev { .. } | Mount::Dir { .. } if is_top => return EntryAt::Dir,
            Mount::Symlink { target, .. } if is_top => {
                return EntryAt::Link { target: target.clone(), host: None };
            }
            Mount::File { .. } if is_top => return EntryAt::File,
            // bubblewrap has removed the source of this mount, and the kernel mounts nothing over a removed file.
            Mount::CoverFile { .. } if is_top => {
                return EntryAt::Closed("exeat has a file of its own there".into());
            }
            _ => {}
        }
    }
    if last_below.is_some() { EntryAt::Dir } else { EntryAt::Absent }
}

/// Returns the entry at `below` in a tree of the host. `read_only` is the tree's place, if no entry can be made in it.
fn on_host(host: &Path, below: &Path, read_only: Option<&Path>) -> EntryAt {
    let is_top = below == Path::new("");
    let path = if is_top { host.to_path_buf() } else { host.join(below) };
    // The top is what the tree's own path leads to.
    let meta = if is_top { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
    match meta {
        Ok(meta) if meta.is_dir() => EntryAt::Dir,
        Ok(meta) if meta.is_symlink() => match fs::read_link(&path) {
            Ok(target) => EntryAt::Link { target, host: Some(path) },
            Err(error) => EntryAt::Closed(format!("`{}` cannot be read: {error}", path.display())),
        },
        Ok(_) => EntryAt::File,
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            EntryAt::Closed(format!("`{}` cannot be looked at: {error}", path.display()))
        }
        Err(_) => match read_only {
            Some(at) => {
                EntryAt::Closed(format!("`{}` is read-only and has nothing of that name", at.display()))
            }
            None => EntryAt::Absent,
        },
    }
}

/// The kernel's own files are the same inside; those of processes are not, and hold links that lead anywhere.
fn in_proc(below: &Path) -> EntryAt {
    let first = below.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit()) || name.ends_with("self");
    if first.as_deref().is_none_or(process) {
        return EntryAt::Closed("processes have their files there".into());
    }
    on_host(Path::new("/proc"), below, Some(Path::new("/proc")))
}

/// Returns the entry that bubblewrap makes in `/dev` (bwrap(1), `--dev`).
fn in_dev(below: &Path) -> EntryAt {
    match below.to_str() {
        Some("shm" | "pts") => EntryAt::Dir,
        Some("null" | "zero" | "full" | "random" | "urandom" | "tty") => EntryAt::File,
        Some(name) if name.starts_with("shm/") => EntryAt::Absent,
        _ => EntryAt::Closed("`/dev` is the sandbox's own".into()),
    }
}

/// A path without links.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) place: PathBuf,
    /// The host's links that were followed: where each is, inside and on the host.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
}

/// Follows a path inside. `None` if links form a circle.
pub(super) fn follow(mounts: &MountList, path: &Path) -> Option<Followed> {
    let mut left = pieces(path);
    let mut followed = Followed { place: PathBuf::from("/"), links: Vec::new() };
    let mut count = 0;
    while let Some(part) = left.pop() {
        if part == Path::new("..") {
            followed.place.pop();
            continue;
        }
        let next = followed.place.join(&part);
        let EntryAt::Link { target, host } = entry_at(mounts, &next) else {
            followed.place = next;
            continue;
        };
        count += 1;
        if count > MAX_LINKS {
            return None;
        }
        followed.links.extend(host.map(|host| (next, host)));
        if target.is_absolute() {
            followed.place = PathBuf::from("/");
        }
        left.extend(pieces(&target));
    }
    Some(followed)
}

/// Whether something of ours would be out of the stage's reach, or the whole tree hidden.
pub(super) fn is_reserved(place: &Path) -> bool {
    [STAGE2, SOCKET, SOCKS5_SOCKET, DENIALS].map(Path::new).iter().any(|ours| ours.starts_with(place))
}

/// Checks that bubblewrap finds or can make the place of each mount, and follows no link on the way.
pub(super) fn check(mounts: &[Mount]) -> Result<(), FileFault> {
    let mut before = MountList::default();
    for mount in mounts {
        let (host, is_dir) = match mount {
            Mount::ReadOnly { host, .. } | Mount::Writable { host, .. } => (Some(host), Some(host.is_dir())),
            // exeat's own is there, or is made before the stage starts.
            Mount::Hidden { why: Why::Own, .. } => (None, None),
            Mount::Hidden { entry: EmptyEntry::Dir { .. }, .. } | Mount::Tmpfs { .. } | Mount::Dir { .. } => {
                (None, Some(true))
            }
            Mount::Hidden { entry: EmptyEntry::File, .. } | Mount::File { .. } | Mount::CoverFile { .. } => {
                (None, Some(false))
            }
            // Fixed places, and links that nothing was mounted before.
            Mount::Proc | Mount::Dev { .. } | Mount::Symlink { .. } => (None, None),
        };
        let at = mount.at();
        if let Some(why) = is_dir.and_then(|is_dir| obstacle(&before, at, is_dir)) {
            return Err(no_place(host.map(PathBuf::as_path), at, why));
        }
        before.push(mount.clone());
    }
    Ok(())
}

/// Returns the reason that a directory or file cannot be mounted at a place.
fn obstacle(before: &MountList, at: &Path, is_dir: bool) -> Option<String> {
    let parts = at.components().filter(|part| matches!(part, Component::Normal(_))).count();
    let mut place = PathBuf::from("/");
    for (number, part) in at.components().skip(1).enumerate() {
        place.push(part);
        let is_last = number + 1 == parts;
        let name = place.display();
        match entry_at(before, &place) {
            EntryAt::Dir if !is_last || is_dir => {}
            EntryAt::File if is_last && !is_dir => {}
            EntryAt::Absent => return None,
            EntryAt::Dir => return Some(format!("`{name}` is a directory there")),
            EntryAt::File if is_dir => return Some(format!("`{name}` is not a directory there")),
            EntryAt::File => return Some(format!("`{name}` is a file there")),
            EntryAt::Link { target, .. } => {
                return Some(format!("`{name}` is a symbolic link there, to `{}`", target.display()));
            }
            EntryAt::Closed(why) => return Some(why),
        }
    }
    None
}

/// The error of a mount that has no place.
pub(super) fn no_place(host: Option<&Path>, at: &Path, why: String) -> FileFault {
    let what = host.map_or_else(|| "something".into(), |host| format!("`{}`", host.display()));
    FileFault::NoPlace { what, at: at.to_path_buf(), why }
}

//! Links of a tree that lead a program on the host to a place in which nobody judges the repositories.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::PoisonError;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::sys::statfs::FsType;
use nix::unistd::Uid;

use super::Watch;
use super::descriptors::{kind, open_above, stat_in};
use super::own::OwnDirectories;
use super::store::QUARANTINE;
use super::times::file_system;
use crate::protected::GIT_LINK;
use crate::walk::clean;

/// PROC_SUPER_MAGIC (statfs(2)), which nix has for glibc alone.
const PROC: FsType = FsType(0x9fa0);
/// Links of procfs that are texts. All others lead each process elsewhere, whatever they say (proc(5)).
const TEXTS: [&str; 4] = ["mounts", "net", "self", "thread-self"];
/// The descriptors of a terminal or a pipe, which nobody enters.
const STREAMS: [&str; 3] = ["0", "1", "2"];
/// Names and links on the way to a place. The kernel follows 40 links (path_resolution(7)).
const STEPS: usize = 1 << 10;
const LINKS: usize = 40;

/// Where a path leads.
enum End {
    /// A place on the host.
    There(PathBuf),
    /// Something is missing on the way: the place at which it would be.
    WatchList(PathBuf),
    /// A file of the kernel's, which is the same kind of thing for each process.
    File,
    /// A place that depends on who asks, or that takes too many steps.
    Unclear,
}

/// A path that is followed on the host, name by name.
struct Way {
    end: End,
    /// Whether something on the way may have come during the run.
    is_new: bool,
}

impl Watch {
    /// Returns whether a link in a working tree leads to a place in which nobody judges the repositories: a directory that exeat keeps for
    /// stages, such as a package cache, or one above it; a quarantine; the directory of a repository. What `/proc` leads to is another place
    /// for each process.
    pub(super) fn leads_astray_to(&self, at: &Path, dir: &OwnedFd, name: &OsStr) -> bool {
        let Ok(to) = readlinkat(dir, name) else { return false };
        let (above, to) = (self.list.tree.join(at), Path::new(&to));
        let place = clean(&above.join(to));
        let is_named = |place: &Path| {
            let place = place.strip_prefix(&self.list.tree).unwrap_or(place);
            place.iter().any(|part| part == QUARANTINE || part.eq_ignore_ascii_case(GIT_LINK))
        };
        // git-annex has a link for each file. Nobody enters a file.
        if is_annexed(&place) && place.starts_with(&self.list.tree) && !above.join(name).is_dir() {
            return false;
        }
        let leads = |place: &Path| {
            is_named(place) || self.is_of_exeat(place) || self.own_directories().are_below(place)
        };
        is_named(to)
            || is_named(&place)
            || match self.follow(at, to).end {
                End::There(real) => leads(&real),
                // Another stage can make what is missing there.
                End::WatchList(real) => !is_plain(to) || leads(&place) || leads(&real),
                End::File => false,
                End::Unclear => true,
            }
    }

    /// Returns whether a link leads into a directory that exeat keeps for stages: then it counts however old it is. One that was not known
    /// for such a directory may be one by now, or in the environment of another run. Nobody enters a file.
    pub(super) fn leads_to_stages(&self, at: &Path) -> bool {
        let above = open_above(&self.tree, at).ok();
        let to = above.zip(at.file_name()).and_then(|(above, name)| readlinkat(above, name).ok());
        let Some(to) = to else { return false };
        let at = at.parent().unwrap_or(Path::new(""));
        let leads = |place: &Path| self.own_directories().contain(place);
        match self.follow(at, Path::new(&to)).end {
            End::There(real) => real.is_dir() && leads(&real),
            End::WatchList(real) => leads(&real) || leads(&clean(&self.list.tree.join(at).join(&to))),
            End::File | End::Unclear => false,
        }
    }

    /// Returns whether a link, or something on the way to where it leads, may have come during the run.
    pub(super) fn leads_anew(&self, at: &Path) -> bool {
        let Ok((above, name)) = open_above(&self.tree, at).map(|above| (above, at.file_name())) else {
            return true;
        };
        let name = name.unwrap_or_default();
        !stat_in(above.as_fd(), name).is_ok_and(|stat| !self.may_have_changed(&stat))
            || readlinkat(&above, name).is_ok_and(|to| self.is_new_way(at, Path::new(&to)))
    }

    /// Returns whether something may have come during the run on the way to a path that a file or a link says.
    pub(super) fn is_new_way(&self, file: &Path, to: &Path) -> bool {
        self.follow(file.parent().unwrap_or(Path::new("")), to).is_new
    }

    /// Returns the place to which a path leads from a directory of the tree, if that is one for each process.
    pub(super) fn place_of(&self, at: &Path, to: &Path) -> Option<PathBuf> {
        match self.follow(at, to).end {
            End::There(place) => Some(place).filter(|place| !place.starts_with("/dev")),
            End::WatchList(_) | End::File | End::Unclear => None,
        }
    }

    /// Follows a path from a directory of the tree.
    fn follow(&self, at: &Path, to: &Path) -> Way {
        let mut is_new = false;
        let end = self.end_of(at, to, &mut is_new);
        let end = end.unwrap_or_else(|errno| match errno {
            // The caller may open the directory later.
            Errno::EACCES => End::Unclear,
            _ => End::WatchList(clean(&self.list.tree.join(at).join(to))),
        });
        Way { end, is_new }
    }

    fn end_of(&self, at: &Path, to: &Path, is_new: &mut bool) -> nix::Result<End> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let enter = |dir: &OwnedFd, name: &OsStr| openat(dir, name, flags, Mode::empty());
        let mut place = self.list.tree.join(at);
        let mut dir = open(&place, flags, Mode::empty())?;
        let (mut is_proc, mut links) = (false, LINKS);
        let mut left: Vec<OsString> = parts_of(to);
        for _ in 0..STEPS {
            let Some(name) = left.pop() else {
                return Ok(match is_proc {
                    false => End::There(place),
                    true if kind(&fstat(&dir)?) == SFlag::S_IFDIR => End::Unclear,
                    true => End::File,
                });
            };
            let below = |place: &Path| place.strip_prefix(&self.list.tree).ok().map(Path::to_path_buf);
            if name == "/" {
                (dir, place, is_proc) = (open("/", flags, Mode::empty())?, PathBuf::from("/"), false);
                continue;
            }
            if name == ".." {
                // Its own name in the directory above may be new.
                *is_new |= below(&place).is_some_and(|at| self.is_moved_here(&at, fstat(&dir).ok().as_ref()));
                if is_proc {
                    return Ok(End::Unclear);
                }
                dir = enter(&dir, &name)?;
                place.pop();
                continue;
            }
            let entry = match enter(&dir, &name) {
                Err(_) if is_proc => return Ok(End::Unclear),
                Err(Errno::ENOENT) => {
                    place.push(name);
                    place.extend(left.iter().rev());
                    return Ok(End::WatchList(clean(&place)));
                }
                entry => entry?,
            };
            let stat = fstat(&entry)?;
            *is_new |= below(&place.join(&name)).is_some_and(|at| self.is_moved_here(&at, Some(&stat)));
            if kind(&stat) == SFlag::S_IFLNK {
                if is_proc && !TEXTS.iter().any(|text| name == *text) {
                    let is_stream = !place.ends_with("fd") || STREAMS.iter().any(|stream| name == *stream);
                    let is_file = fstatat(&dir, name.as_os_str(), AtFlags::empty())
                        .is_ok_and(|stat| kind(&stat) != SFlag::S_IFDIR);
                    let is_end = left.is_empty() && is_stream && is_file;
                    return Ok(if is_end { End::File } else { End::Unclear });
                }
                let Some(fewer) = links.checked_sub(1) else { return Ok(End::Unclear) };
                links = fewer;
                left.extend(parts_of(Path::new(&readlinkat(&dir, name.as_os_str())?)));
                continue;
            }
            is_proc = file_system(&entry) == Some(PROC);
            place.push(name);
            dir = entry;
        }
        Ok(End::Unclear)
    }

    /// Returns whether something in the tree may have got its place during the run. A directory changes with each entry, also where it stays.
    pub(super) fn is_moved_here(&self, at: &Path, stat: Option<&FileStat>) -> bool {
        // The tree itself is no stage's to move, and its repositories are covered. A file leads nowhere.
        let is_fixed = at == Path::new("") || self.is_known_repository(at);
        let is_old = |stat: &FileStat| kind(stat) == SFlag::S_IFREG || !self.may_have_changed(stat);
        !is_fixed && !stat.is_some_and(|stat| is_old(stat) || self.is_noted_at(at, stat))
    }

    /// Notes that a directory has its place.
    pub(super) fn note_place(&self, at: &Path, stat: &FileStat) {
        if !self.may_have_stage() || !self.may_have_changed(stat) {
            let mark = self.place_mark(at, stat);
            self.noted.places.lock().unwrap_or_else(PoisonError::into_inner).insert(mark);
        }
    }

    fn is_noted_at(&self, at: &Path, stat: &FileStat) -> bool {
        let places = self.noted.places.lock().unwrap_or_else(PoisonError::into_inner);
        kind(stat) == SFlag::S_IFDIR && places.contains(&self.place_mark(at, stat))
    }

    fn place_mark(&self, at: &Path, stat: &FileStat) -> u64 {
        self.keys.hash_one((at.as_os_str(), stat.st_dev, stat.st_ino))
    }

    /// Returns whether a path is in a directory that exeat keeps for stages, or in a quarantine.
    pub(super) fn is_of_exeat(&self, path: &Path) -> bool {
        path.iter().any(|part| part == QUARANTINE) || self.own_directories().contain(path)
    }

    fn own_directories(&self) -> &OwnDirectories {
        let owner = || fstat(&self.tree).ok().map(|stat| Uid::from_raw(stat.st_uid));
        self.noted.own.get_or_init(|| OwnDirectories::find(&self.list.tree, owner()))
    }
}

/// Lists the names of a path, the first one last.
fn parts_of(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts.rev().map(|part| part.as_os_str().to_owned()).collect()
}

/// Returns whether a path goes up at its beginning alone: `l/..` is elsewhere if `l` is a link.
fn is_plain(path: &Path) -> bool {
    let mut parts = path.components().skip_while(|part| *part == Component::ParentDir);
    parts.all(|part| part != Component::ParentDir)
}

/// Returns whether a path is that of a file of git-annex: `.git/annex/objects/../../KEY/KEY`.
fn is_annexed(path: &Path) -> bool {
    let mut parts = path.iter().rev();
    let (key, dir) = (parts.next(), parts.next());
    let above: Vec<_> = parts.skip(2).take(3).collect();
    let is_key = |key: &OsStr| key.as_encoded_bytes().windows(2).any(|two| two == b"--");
    key == dir && key.is_some_and(is_key) && above == ["objects", "annex", GIT_LINK]
}

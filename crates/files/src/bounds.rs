//! Bounds what a run may show and change: the ceilings' lists of files and variables, and the stage's declaration.
//!
//! Nothing is granted here. Each bound narrows a tree of the caller's in turn, so that only what all of them allow remains. Real paths
//! are compared, so that a link leads no further than its target may.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::names::open_plain;
use crate::request::{Bounds, Declared};
use crate::walk::{End, LinkRule, MAX_LINKS, WalkError, clean, pieces};
use nix::unistd::geteuid;

use crate::fault::{FS_READ, FS_WRITE, FileFault, PathUse};

/// A set of paths with everything below them. No path is below another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tops(BTreeSet<PathBuf>);

impl Tops {
    pub(crate) fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        // The set is sorted, so a path comes before the paths below it.
        let sorted: BTreeSet<PathBuf> = paths.into_iter().collect();
        let mut tops = Self::default();
        for path in sorted {
            if !tops.cover(&path) {
                tops.0.insert(path);
            }
        }
        tops
    }

    /// Returns whether a path is in the set.
    pub(crate) fn cover(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.0.contains(above))
    }

    /// Returns what is in both sets.
    pub(crate) fn meet(&self, other: &Self) -> Self {
        let ours = self.0.iter().filter(|path| other.cover(path));
        let theirs = other.0.iter().filter(|path| self.cover(path));
        Self::new(ours.chain(theirs).cloned())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(PathBuf::as_path)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The visible and the writable part of one host tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) read: Tops,
    pub(crate) write: Tops,
}

impl Extent {
    pub(crate) fn new(host: &Path, writable: bool) -> Self {
        let whole = Tops::new([host.to_path_buf()]);
        Self { write: if writable { whole.clone() } else { Tops::default() }, read: whole }
    }

    /// Returns the parts with their host path and whether they are writable, the outer ones first.
    pub(crate) fn parts(&self) -> Vec<(PathBuf, bool)> {
        let shown = self.read.iter().map(|top| (top.to_path_buf(), self.write.cover(top)));
        let inner = self.write.iter().filter(|top| !self.read.0.contains(*top));
        let mut parts: Vec<_> = shown.chain(inner.map(|top| (top.to_path_buf(), true))).collect();
        parts.sort();
        parts
    }
}

/// A bound on trees, resolved on this machine.
#[derive(Debug)]
pub(crate) struct Limit {
    /// The source of the bound, for messages.
    pub(crate) label: String,
    /// The visible paths; `None` for no bound.
    read: Option<Tops>,
    /// The writable paths; `None` for everything visible.
    write: Option<Tops>,
    /// The hidden paths.
    pub(crate) mask: Vec<PathBuf>,
}

impl Limit {
    /// Resolves a ceiling on this machine. Leaves out a listed path that leads through a link which a stage could have made.
    pub(crate) fn resolve(
        bounds: &Bounds,
        links: &LinkRule,
        notes: &mut Vec<String>,
    ) -> Result<Self, FileFault> {
        let mut find = |paths: &[PathBuf]| {
            let mut found = Vec::new();
            for path in paths {
                match links.walk(path) {
                    Ok(end) => found.push(end.real),
                    Err(error @ WalkError::Link { .. }) => {
                        notes.push(format!("`{}` of {} is left out: {error}", path.display(), bounds.label()))
                    }
                    Err(WalkError::Io(_)) => {}
                }
            }
            found
        };
        let write = bounds.rw.as_deref().map(&mut find);
        let read = bounds.ro.as_deref().map(&mut find);
        let read = read.map(|read| Tops::new(read.into_iter().chain(write.iter().flatten().cloned())));
        let mut mask = Vec::new();
        for path in &bounds.mask {
            match existing(PathUse::CeilingMask, path, links) {
                // The stage has at most the caller's rights, so it cannot get there either.
                Err(_) if is_closed(path) => {}
                Err(error) => return Err(error),
                Ok(Some(end)) => mask.push(end.real),
                // The mask hides nothing: the file that it is for may have another name now.
                Ok(None) => {
                    notes.push(format!(
                        "there is no `{}` to mask: {} names it",
                        path.display(),
                        bounds.label()
                    ));
                }
            }
        }
        Ok(Self { label: bounds.label(), read, write: write.map(Tops::new), mask })
    }

    /// Returns the bound from the stage's declaration. `is_shown` if the stage sees the tree in any case.
    pub(crate) fn declared(found: &DeclaredPaths, is_shown: bool) -> Self {
        Self {
            label: "the stage's declaration".into(),
            read: (!is_shown).then(|| Tops::new(found.read.iter().chain(&found.write).cloned())),
            write: Some(Tops::new(found.write.iter().cloned())),
            mask: Vec::new(),
        }
    }

    /// Returns the part of a tree within the bound.
    pub(crate) fn meet(&self, extent: &Extent) -> Extent {
        let bounded = |tops: &Tops, bound: &Option<Tops>| {
            let met = bound.as_ref().map_or_else(|| tops.clone(), |bound| tops.meet(bound));
            Tops::new(met.0.into_iter().filter(|top| !self.masks(top)))
        };
        let read = bounded(&extent.read, &self.read);
        let write = bounded(&extent.write, &self.write).meet(&read);
        Extent { read, write }
    }

    /// Returns whether the bound lets a path be read or written.
    pub(crate) fn allows(&self, path: &Path, write: bool) -> bool {
        let within = |bound: &Option<Tops>| bound.as_ref().is_none_or(|bound| bound.cover(path));
        within(&self.read) && (!write || within(&self.write)) && !self.masks(path)
    }

    fn masks(&self, path: &Path) -> bool {
        self.mask.iter().any(|mask| path.starts_with(mask))
    }
}

/// Describes for the caller what a bound changed; `None` if nothing. `name` is the tree in words.
pub(crate) fn describe_change(name: &str, label: &str, before: &Extent, after: &Extent) -> Option<String> {
    let list = |tops: &Tops| {
        let names: Vec<_> = tops.iter().map(|path| format!("`{}`", path.display())).collect();
        names.join(", ")
    };
    if after.read.is_empty() {
        (!before.read.is_empty())
            .then(|| format!("{name} cannot be read by the stage: {label} does not allow it"))
    } else if after.read != before.read {
        let writable = match (before.write.is_empty(), after.write.is_empty()) {
            (true, _) => String::new(),
            (false, true) => ", read-only".into(),
            (false, false) if after.write == after.read => String::new(),
            (false, false) => format!(", writable only in {}", list(&after.write)),
        };
        Some(format!("of {name} only {} is shown{writable}: {label} allows no more", list(&after.read)))
    } else if after.write == before.write {
        None
    } else if after.write.is_empty() {
        Some(format!("{name} is read-only for the stage: {label} does not let it be written"))
    } else {
        Some(format!("{name} is writable only in {}: {label} allows no more", list(&after.write)))
    }
}

/// A declaration, resolved on this machine.
#[derive(Debug, Default)]
pub(crate) struct DeclaredPaths {
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
}

impl DeclaredPaths {
    /// Finds the declared paths.
    pub(crate) fn new(
        declared: &Declared,
        links: &LinkRule,
        notes: &mut Vec<String>,
    ) -> Result<Self, FileFault> {
        let mut find = |what: PathUse, paths: &[PathBuf]| {
            let mut found = Vec::new();
            for path in paths {
                match links.walk(path).map_err(|error| FileFault::from_walk(what, path, error)) {
                    Ok(end) => found.push(end.real),
                    Err(error) if declared.narrow => notes.push(format!("left out: {}", error.line())),
                    Err(error) => return Err(error),
                }
            }
            Ok(found)
        };
        let read = find(PathUse::Declared(FS_READ), &declared.read)?;
        Ok(Self { read, write: find(PathUse::Declared(FS_WRITE), &declared.write)? })
    }
}

/// Follows a path to its end; `None` if nothing exists.
pub(crate) fn existing(what: PathUse, path: &Path, links: &LinkRule) -> Result<Option<End>, FileFault> {
    match links.walk(path) {
        Ok(end) => Ok(Some(end)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(FileFault::from_walk(what, path, error)),
    }
}

/// Returns whether another user's directory prevents the caller from reaching a path. The caller could open an own one.
fn is_closed(path: &Path) -> bool {
    let refused =
        |path: &Path| fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    // A link as the last entry does not show the owner of its target's directory.
    let last = path.ancestors().find(|above| fs::symlink_metadata(above).is_ok());
    let dir = last.and_then(|last| fs::metadata(last).ok());
    refused(path) && dir.is_some_and(|dir| dir.uid() != geteuid().as_raw())
}

/// Returns the symbolic links on a path, each by its real path, and the target, even if it does not exist. Returns `None` if there are
/// more links than the kernel follows.
pub(crate) fn follow(path: &Path) -> Option<(Vec<PathBuf>, PathBuf)> {
    resolve_path(path, &Lookups::default()).map(|way| (way.links, way.place))
}

/// A path as the kernel resolves it.
#[derive(Debug)]
pub(crate) struct ResolvedPath {
    /// The symbolic links on the path, each by its real path.
    pub(crate) links: Vec<PathBuf>,
    /// The real path of each entry that a `..` follows; it may not exist.
    pub(crate) turns: Vec<PathBuf>,
    /// The target of the path.
    pub(crate) place: PathBuf,
}

/// The remaining budget of name lookups for one plan. A stage of an earlier run may have left links and configurations that would take
/// minutes.
#[derive(Debug)]
pub(crate) struct Lookups(Cell<usize>);

impl Default for Lookups {
    fn default() -> Self {
        Self(Cell::new(1 << 19))
    }
}

impl Lookups {
    /// Takes the cost of a path with this many names. Returns `None` if the budget is spent, now and later.
    pub(crate) fn take(&self, names: usize) -> Option<()> {
        /// A system call costs as much as this many names.
        const CALL: usize = 8;
        let left = self.0.get().checked_sub(names.saturating_add(CALL));
        self.0.set(left.unwrap_or_default());
        left.map(drop)
    }

    /// Returns whether the budget is spent.
    pub(crate) fn are_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// The longest path that the kernel opens, in bytes (PATH_MAX of limits.h, with its NUL).
pub(crate) const LONGEST_PATH: usize = 4095;

/// Resolves a path like [`follow`], with the entries that must stay directories for the path to lead there.
pub(crate) fn resolve_path(path: &Path, lookups: &Lookups) -> Option<ResolvedPath> {
    if path.as_os_str().len() > LONGEST_PATH {
        return None;
    }
    let (mut links, mut turns) = (Vec::new(), Vec::new());
    let mut left: Vec<PathBuf> = pieces(path);
    let taken = lookups.take(left.len());
    // Most paths have no link: one cheap call checks the whole existing part.
    let is_plain = |opened: io::Result<OwnedFd>| match opened {
        Ok(_) => true,
        Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    };
    let has_turns = left.iter().any(|part| part == Path::new(".."));
    if path.is_absolute() && !has_turns && is_plain(open_plain(path)) {
        return Some(ResolvedPath { links, turns, place: clean(path) });
    }
    taken?;
    let (mut place, mut depth) = (PathBuf::from("/"), 0_usize);
    while let Some(part) = left.pop() {
        lookups.take(depth)?;
        if part == Path::new("..") {
            turns.push(place.clone());
            place.pop();
            depth = depth.saturating_sub(1);
            continue;
        }
        place.push(&part);
        depth += 1;
        if place.as_os_str().len() > LONGEST_PATH {
            return None;
        }
        match fs::read_link(&place) {
            Ok(_) if links.len() >= MAX_LINKS => return None,
            Ok(target) => {
                links.push(place.clone());
                if target.is_absolute() {
                    (place, depth) = (PathBuf::from("/"), 0);
                } else {
                    place.pop();
                    depth -= 1;
                }
                left.extend(pieces(&target));
            }
            Err(_) => {}
        }
    }
    Some(ResolvedPath { links, turns, place })
}

#[cfg(test)]
mod tests;

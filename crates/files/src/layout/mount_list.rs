//! Mounts in their order, which are found by their places: a view can have a thousand of them.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::Mount;

/// The mounts of a view, in the order in which they are mounted.
#[derive(Debug, Default)]
pub struct MountList {
    mounts: Vec<Mount>,
    /// The mounts at each place and below it, by number.
    places: HashMap<PathBuf, AtPlace>,
}

#[derive(Debug, Default)]
struct AtPlace {
    mounts: Vec<usize>,
    /// The last mount that lies deeper.
    last_below: Option<usize>,
}

impl MountList {
    /// Adds a mount after all others.
    pub fn push(&mut self, mount: Mount) {
        self.note_place(self.mounts.len(), mount.at());
        self.mounts.push(mount);
    }

    /// Inserts a mount, which has this number then.
    pub(crate) fn insert(&mut self, number: usize, mount: Mount) {
        for there in self.places.values_mut() {
            let numbers = there.mounts.iter_mut().chain(&mut there.last_below);
            numbers.filter(|it| **it >= number).for_each(|it| *it += 1);
        }
        self.note_place(number, mount.at());
        self.mounts.insert(number, mount);
    }

    fn note_place(&mut self, number: usize, at: &Path) {
        self.at(at).mounts.push(number);
        for above in at.ancestors().skip(1) {
            let there = self.at(above);
            there.last_below = there.last_below.max(Some(number));
        }
    }

    fn at(&mut self, place: &Path) -> &mut AtPlace {
        self.places.entry(place.to_path_buf()).or_default()
    }

    /// Returns the mounts at a place and those above it with their numbers, the last first.
    pub fn over(&self, place: &Path) -> impl Iterator<Item = (usize, &Mount)> {
        let there = place.ancestors().filter_map(|above| self.places.get(above));
        let mut numbers: Vec<usize> = there.flat_map(|there| &there.mounts).copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().rev().filter_map(|number| Some((number, self.mounts.get(number)?)))
    }

    /// Returns the number of the last mount that lies deeper than a place.
    pub(crate) fn last_below(&self, place: &Path) -> Option<usize> {
        self.places.get(place)?.last_below
    }

    /// Returns a mount to change it, but not its place.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Mount> {
        self.mounts.iter_mut()
    }

    /// Returns the mounts.
    #[must_use]
    pub fn into_vec(self) -> Vec<Mount> {
        self.mounts
    }
}

impl Deref for MountList {
    type Target = [Mount];

    fn deref(&self) -> &[Mount] {
        &self.mounts
    }
}

/// Returns the mounts without those that later ones cover as a whole: nobody sees them, and nothing can be changed in them.
#[must_use]
pub fn visible(mounts: Vec<Mount>) -> Vec<Mount> {
    let mut covered: HashSet<PathBuf> = HashSet::new();
    let mut visible: Vec<Mount> = Vec::with_capacity(mounts.len());
    for mount in mounts.into_iter().rev() {
        let is_of_host = matches!(mount, Mount::ReadOnly { .. } | Mount::Writable { .. });
        let may_go = is_of_host || matches!(mount, Mount::Hidden { .. });
        if may_go && mount.at().ancestors().any(|above| covered.contains(above)) {
            continue;
        }
        if is_of_host {
            covered.insert(mount.at().to_path_buf());
        }
        visible.push(mount);
    }
    visible.reverse();
    visible
}

#[cfg(test)]
mod tests {
    use super::super::Why;
    use super::*;

    #[test]
    fn leaves_out_what_a_later_mount_covers() {
        let at = |at: &str| PathBuf::from(at);
        let read = |place: &str| Mount::ReadOnly { host: at("/h"), at: at(place), why: Why::Requested };
        let write = |place: &str| Mount::Writable { host: at("/h"), at: at(place), why: Why::Requested };
        let mounts = vec![
            write("/w"),
            read("/w/x"),
            Mount::Dir { at: at("/w/d") },
            write("/v"),
            read("/w"),
            read("/w/y"),
        ];
        let left: Vec<_> = visible(mounts).iter().map(|mount| mount.at().to_path_buf()).collect();
        assert_eq!(left, ["/w/d", "/v", "/w", "/w/y"].map(at));
    }

    #[test]
    fn finds_mounts_by_their_places_after_an_insertion() {
        let dir = |at: &str| Mount::Dir { at: at.into() };
        let mut mounts = MountList::default();
        for at in ["/a", "/a/b/c", "/", "/d", "/a/b"] {
            mounts.push(dir(at));
        }
        let over = |mounts: &MountList, place: &str| {
            mounts.over(Path::new(place)).map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!(over(&mounts, "/a/b//x/."), [4, 2, 0]);
        assert_eq!(mounts.last_below(Path::new("/a")), Some(4));
        mounts.insert(1, dir("/a/x"));
        assert_eq!(over(&mounts, "/a/x"), [3, 1, 0]);
        assert_eq!(over(&mounts, "/a/b"), [5, 3, 0]);
        assert_eq!(mounts.last_below(Path::new("/a/b")), Some(2));
        assert_eq!(mounts.last_below(Path::new("/d")), None);
        let last_of_all = mounts.iter().rposition(|mount| mount.at() != Path::new("/"));
        assert_eq!(mounts.last_below(Path::new("/")), last_of_all);
    }
}

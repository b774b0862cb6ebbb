//! Paths that a stage was given and does not see: words of its command, and links in the working directory and in what these words name.
//! Workflow managers stage the inputs of a task as such links.

use std::fs;
use std::path::{Path, PathBuf};

use crate::layout::Mount;
use crate::walk::clean;

/// Entries of a directory that are inspected.
const ENTRIES: usize = 1000;

/// Words of a command whose places are searched for links.
const WORDS: usize = 100;

/// Links whose ends exist on the host, but not in the stage's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnseenLinks {
    /// The number of links.
    pub count: usize,
    /// The first of them by name: its path, and its end on the host.
    pub first: (PathBuf, PathBuf),
}

/// Finds the first word of a command that names a file of the host that the stage does not see. `at` is its working directory.
#[must_use]
pub fn find_unseen_word(mounts: &[Mount], at: &Path, command: &[PathBuf]) -> Option<PathBuf> {
    let words = command.iter().filter(|word| word.components().count() > 1);
    let mut paths = words.map(|word| clean(&at.join(word)));
    paths.find(|path| fs::symlink_metadata(path).is_ok() && !is_seen(mounts, path))
}

/// Finds such links directly in the working directory `at`, then on the way to what a word of the command names, and directly in it.
#[must_use]
pub fn find_unseen_links(mounts: &[Mount], at: &Path, command: &[PathBuf]) -> Option<UnseenLinks> {
    let mut named = command.iter().take(WORDS).map(|word| clean(&at.join(word)));
    links_in(mounts, at)
        .or_else(|| named.find_map(|path| link_to(mounts, &path).or_else(|| links_in(mounts, &path))))
}

/// Finds the first such link on the way to a path inside.
fn link_to(mounts: &[Mount], path: &Path) -> Option<UnseenLinks> {
    let mount = mount_of(mounts, path)?;
    let (root, below) = (mount.access()?.1?, path.strip_prefix(mount.at()).ok()?);
    let mut names: Vec<&Path> = below.ancestors().filter(|name| !name.as_os_str().is_empty()).collect();
    names.reverse();
    names.into_iter().find_map(|name| {
        let end = fs::read_link(root.join(name)).ok()?;
        let end = clean(&mount.at().join(name).parent()?.join(end));
        let is_unseen = fs::symlink_metadata(&end).is_ok() && !is_seen(mounts, &end);
        is_unseen.then(|| UnseenLinks { count: 1, first: (root.join(name), end) })
    })
}

/// Finds such links directly in a directory that a stage sees at this place.
fn links_in(mounts: &[Mount], at: &Path) -> Option<UnseenLinks> {
    let mount = mount_of(mounts, at)?;
    let dir = mount.access()?.1?.join(at.strip_prefix(mount.at()).ok()?);
    let entries = fs::read_dir(&dir).ok()?.flatten().take(ENTRIES);
    let links = entries.filter_map(|entry| {
        let end = clean(&at.join(fs::read_link(entry.path()).ok()?));
        (fs::symlink_metadata(&end).is_ok() && !is_seen(mounts, &end)).then(|| (entry.path(), end))
    });
    let links: Vec<_> = links.collect();
    Some(UnseenLinks { count: links.len(), first: links.into_iter().min()? })
}

/// Returns whether the stage sees something of the host at a path.
fn is_seen(mounts: &[Mount], path: &Path) -> bool {
    mount_of(mounts, path).is_some_and(|mount| !is_empty(mount))
}

/// Returns the mount that a path in the sandbox lies in.
fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let over = mounts.iter().filter(|mount| path.starts_with(mount.at()));
    over.max_by_key(|mount| mount.at().components().count())
}

/// Returns whether nothing of the host is in a mount.
fn is_empty(mount: &Mount) -> bool {
    matches!(mount, Mount::Hidden { .. } | Mount::Tmpfs { .. } | Mount::Dir { .. })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::layout::{EmptyEntry, Why};

    #[test]
    fn finds_links_that_lead_out_of_the_view() {
        let root = std::env::temp_dir().join(format!("unseen-{}", std::process::id()));
        let at = |name: &str| root.join(name);
        for dir in ["work", "data", "shown", "hidden"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let link = |name: &str, end: &str| symlink(end, at("work").join(name)).unwrap();
        let mount = |name: &str| Mount::ReadOnly { host: at(name), at: at(name), why: Why::Requested };
        let hidden =
            Mount::Hidden { at: at("shown/hidden"), entry: EmptyEntry::Dir { mode: 0 }, why: Why::Masked };
        let mounts = [mount("work"), mount("shown"), hidden];
        link("own", ".");
        link("shown", "../shown");
        link("nowhere", "../nothing");
        assert_eq!(find_unseen_links(&mounts, &at("work"), &[]), None);
        symlink("../data", at("shown/sample")).unwrap();
        let links = |word: &str| find_unseen_links(&mounts, &at("work"), &["sh".into(), word.into()]);
        let found = UnseenLinks { count: 1, first: (at("shown/sample"), at("data")) };
        for word in ["../shown", "../shown/sample", "../shown/sample/a/b", "shown/../../shown/sample/a"] {
            assert_eq!(links(word), Some(found.clone()), "{word}");
        }
        assert_eq!([links("../shown/other"), links("own"), links("../data")], [None, None, None]);

        link("b", "../data");
        link("a", at("data").to_str().unwrap());
        fs::create_dir_all(at("shown/hidden")).unwrap();
        link("c", "../shown/hidden");
        let word = |word: &str| find_unseen_word(&mounts, &at("work"), &["sh".into(), word.into()]);
        assert_eq!(word("../data"), Some(at("data")));
        assert_eq!([word("../shown"), word("data"), word("../nothing")], [None, None, None]);
        let found = UnseenLinks { count: 3, first: (at("work/a"), at("data")) };
        assert_eq!(find_unseen_links(&mounts, &at("work"), &[]), Some(found));
        assert_eq!(find_unseen_links(&mounts, &at("elsewhere"), &[]), None);
        fs::remove_dir_all(root).unwrap();
    }
}

//! Describes what the caller can do about names that were moved aside.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use exeat_files::index::tracked;
use exeat_files::names::open_regular;
use exeat_files::quarantine::{Leftover, QUARANTINE, absent};

/// The number of names in a line.
const NAMED: usize = 5;
/// The longest path that a call of the kernel takes, in bytes (linux/limits.h).
const PATH_MAX: u64 = 4096;

/// The names that a run moved and no later run moved again.
struct Moved {
    run: String,
    paths: Vec<PathBuf>,
    /// The number of earlier runs that moved some of these, too.
    earlier: usize,
}

impl Moved {
    /// Sorts what runs moved, the last run first: of several files that had one name, people look for the last one.
    fn last_first(runs: BTreeMap<String, Vec<PathBuf>>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        // The names of runs are in the order of their starts.
        for (run, mut paths) in runs.into_iter().rev() {
            for later in &mut all {
                later.earlier += usize::from(paths.iter().any(|path| later.paths.contains(path)));
            }
            paths.retain(|path| !all.iter().any(|later| later.paths.contains(path)));
            if !paths.is_empty() {
                all.push(Self { run, paths, earlier: 0 });
            }
        }
        all
    }

    /// Says how many earlier runs did the same.
    fn earlier(&self) -> String {
        match self.earlier {
            0 => String::new(),
            1 => ", as 1 earlier run did".to_owned(),
            count => format!(", as {count} earlier runs did"),
        }
    }

    /// Lists the paths that git tracks.
    fn deleted(&self) -> Option<String> {
        deleted(self.paths.iter().map(PathBuf::as_path).collect())
    }
}

/// Returns a line for each run that moved names, the last one first: how to restore them, and what git does in the meantime.
pub(crate) fn moved_lines(found: &[Leftover]) -> Vec<String> {
    let mut runs: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let mut in_worktrees = BTreeSet::new();
    for Leftover { path, moved } in found {
        let Ok(moved) = moved.as_deref() else { continue };
        if let Some(run) = run_of(moved) {
            runs.entry(run.to_owned()).or_default().push(path.clone());
            in_worktrees.extend(is_in_linked_worktree(moved).then(|| run.to_owned()));
        }
    }
    let line = |moved: Moved| {
        let Moved { run, paths, .. } = &moved;
        match moved.deleted() {
            _ if paths.iter().all(|path| path.symlink_metadata().is_ok()) => {
                format!(
                    "something has the place of what the run {run} moved: compare the two, and take what you need"
                )
            }
            Some(names) => format!(
                "git tracks {names} and takes that for deleted now: a commit would record it so, such as `git commit -a`; \
                 `exeat state restore {run}` gives back what was moved"
            ),
            None if in_worktrees.contains(run) => format!(
                "`exeat state restore {run}` gives back what was moved, if you want it: do that before `git worktree remove`, which deletes it"
            ),
            None => format!("`exeat state restore {run}` gives back what was moved, if you want it"),
        }
    };
    Moved::last_first(runs).into_iter().map(line).collect()
}

/// Returns whether a place in a quarantine is in a linked worktree. `git worktree remove` deletes the quarantine without a question, because
/// git ignores it.
fn is_in_linked_worktree(moved: &Path) -> bool {
    let quarantine = moved.ancestors().find(|dir| dir.ends_with(QUARANTINE));
    let Some(tree) = quarantine.and_then(Path::parent) else { return false };
    let mut text = Vec::new();
    let read = open_regular(&tree.join(".git")).and_then(|file| file.take(PATH_MAX).read_to_end(&mut text));
    // The `.git` file of a submodule leads to `modules`.
    read.is_ok() && String::from_utf8_lossy(&text).contains("/worktrees/")
}

/// Returns a line for each run that moved files which git tracks in these trees, if they are still missing. A file is named with the last
/// run that moved it.
pub(crate) fn absent_lines<'a>(state: &Path, trees: impl Iterator<Item = &'a Path>) -> Vec<String> {
    let mut runs: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (run, paths) in trees.flat_map(|tree| absent(state, tree)) {
        runs.entry(run).or_default().extend(paths);
    }
    let line = |moved: Moved| {
        let (names, run, earlier) = (moved.deleted()?, &moved.run, moved.earlier());
        Some(format!(
            "git tracks {names}, which the run {run} has moved aside{earlier}: a commit would record it as deleted, such as `git commit -a`; \
             `exeat state restore {run}` gives it back"
        ))
    };
    Moved::last_first(runs).into_iter().filter_map(line).collect()
}

/// Returns the run that moved a file to a place.
fn run_of(moved: &Path) -> Option<&str> {
    let mut parts = moved.components();
    parts.find(|part| *part == Component::Normal(QUARANTINE.as_ref()))?;
    let mut parts = parts.skip(1);
    // A number follows if the name was taken.
    parts.next()?.as_os_str().to_str()?.split('.').next()
}

/// Lists those of these paths that git tracks.
fn deleted(paths: Vec<&Path>) -> Option<String> {
    let tracked = tracked(paths);
    let names = tracked.iter().take(NAMED);
    let names: Vec<String> =
        names.map(|path| format!("`{}`", exeat_record::escape(path.as_os_str().as_bytes(), 1024))).collect();
    let more = tracked.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!names.is_empty()).then(|| names.join(", ") + &more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_by_the_place_in_its_quarantine() {
        for (moved, run) in [
            ("/a/.exeat-quarantine/git~1/01KB/.envrc", Some("01KB")),
            ("/a/.exeat-quarantine/git~1/01KB.728047ce916e0a14/b/.envrc", Some("01KB")),
            ("/a/.envrc.exeat-quarantine.728047ce916e0a14", None),
        ] {
            assert_eq!(run_of(Path::new(moved)), run, "{moved}");
        }
    }
}

//! The end of a run: what the stage has left in its trees is judged, in the order that makes each judgement hold.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::modules::GitDir;
use super::nested::Nested;
use super::repository::MOVED;
use super::{HasWriter, Leftover, Leftovers, Watch};

/// Moves aside what has appeared in these trees until `is_over`. Known names are always moved; entries that must be searched for may
/// stay. What a stage could still write to is moved, too.
pub fn finish_until<'a>(
    watches: impl IntoIterator<Item = &'a Watch>,
    has_writer: HasWriter,
    is_over: &dyn Fn() -> bool,
) -> Leftovers {
    let watches: Vec<&Watch> = watches.into_iter().collect();
    share_trees(&watches);
    for watch in &watches {
        watch.find_others();
        let _ = watch.later.has_writer.set(has_writer);
    }
    watches.iter().for_each(|watch| watch.open_tree());
    let mut told = Leftovers::default();
    let settle = |told: &mut Leftovers, settle: &dyn Fn(&Watch) -> Vec<Leftover>| {
        // All trees before anything is told: one may lie in another.
        let settled: Vec<Vec<Leftover>> = watches.iter().copied().map(settle).collect();
        settled.into_iter().flatten().for_each(|found| told.add(found));
    };
    settle(&mut told, &Watch::put_directory_back);
    // Then everything is put where the stage had it.
    settle(&mut told, &Watch::settle_exchanged);
    watches.iter().for_each(|watch| watch.settle_modes(&mut told));
    settle(&mut told, &Watch::settle_file_modes);
    // Names that are known come first: what a stage can make many of is not to take their place among those that are named.
    settle(&mut told, &Watch::settle_names);
    settle(&mut told, &|watch| watch.settle_further(is_over));
    settle(&mut told, &Watch::note_repositories);
    settle(&mut told, &|watch| watch.settle_directory().into_iter().collect());
    let mut found = find_repositories(&watches, &mut told, is_over);
    // git, or another run, may have made one since, and a `.git` file that leads to it.
    let mut judged = paths_of(&watches, &found);
    if watches.iter().zip(&found).any(|(watch, found)| watch.has_unknown_pointer(&found.nested, &judged)) {
        found = find_repositories(&watches, &mut told, is_over);
        judged = paths_of(&watches, &found);
    }
    let mut left = MOVED;
    for (watch, found) in watches.iter().zip(&found).take_while(|_| !is_over()) {
        watch.settle_new_modules(&found.held, &mut left, &mut told, is_over);
        found.all().for_each(|git| watch.settle_stores(git, &mut told, is_over));
        let found = watch.settle_paths(found.all(), &watches, is_over);
        found.into_iter().for_each(|found| told.add(found));
    }
    for (watch, Repositories { nested, .. }) in watches.iter().zip(&mut found).take_while(|_| !is_over()) {
        watch.settle_nested(nested, &judged).into_iter().for_each(|found| told.add(found));
        for (git, work) in watch.naming_repositories(nested).take_while(|_| !is_over()) {
            watch.settle_named(&git, work).into_iter().for_each(|found| told.add(found));
        }
        watch.settle_nested_links(&nested.dirs, &mut left, &mut told, is_over);
    }
    // Links that were moved by now are not reported again.
    settle(&mut told, &Watch::tell_links);
    for watch in &watches {
        for (name, before) in watch.list.repositories.iter().zip(&watch.contents) {
            if !is_over() {
                watch.settle(name, before, &mut left, &mut told, is_over);
            }
        }
    }
    watches.iter().for_each(|watch| watch.close_again());
    told.is_cut = is_over();
    told.unlisted = watches.iter().find_map(|watch| {
        watch.later.unlisted.get().cloned().or_else(|| watch.later.store.get()?.unlisted())
    });
    told
}

/// The repositories of one tree.
struct Repositories {
    /// The repositories that were known at the start.
    known: Vec<GitDir>,
    /// The submodules and worktrees of these.
    held: Vec<GitDir>,
    nested: Nested,
}

impl Repositories {
    fn all(&self) -> impl Iterator<Item = &GitDir> {
        self.known.iter().chain(&self.held).chain(&self.nested.dirs)
    }
}

/// Finds the repositories of each tree, and moves aside what git obeys in new submodules and worktrees.
fn find_repositories(
    watches: &[&Watch],
    told: &mut Leftovers,
    is_over: &dyn Fn() -> bool,
) -> Vec<Repositories> {
    let find = |watch: &&Watch| {
        let known = watch.list.repositories.iter();
        let known =
            known.map(|name| GitDir { path: name.into(), config: name.into(), is_new: false }).collect();
        let mut found = Vec::new();
        let held = if is_over() { Vec::new() } else { watch.settle_held(&mut found) };
        found.into_iter().for_each(|found| told.add(found));
        Repositories { known, held, nested: watch.find_nested(false, is_over) }
    };
    watches.iter().map(find).collect()
}

/// Returns the paths of these repositories on the host.
fn paths_of(watches: &[&Watch], found: &[Repositories]) -> BTreeSet<PathBuf> {
    let found = watches.iter().zip(found);
    found.flat_map(|(watch, found)| found.all().map(|git| watch.list.tree.join(&git.path))).collect()
}

/// Tells the watches of one run of each other's trees. One that cannot be opened again counts as none of them.
pub(super) fn share_trees(watches: &[&Watch]) {
    let trees = watches.iter().filter_map(|it| Some((it.list.tree.clone(), it.tree.try_clone().ok()?)));
    let trees: Arc<[_]> = trees.collect();
    for watch in watches {
        let _ = watch.later.trees.set(Arc::clone(&trees));
    }
}

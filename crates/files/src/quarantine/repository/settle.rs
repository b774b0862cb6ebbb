//! Moves links aside that a stage made in a repository, and tells which unfinished operation it changed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::stat::{FileStat, SFlag};

use super::{BUDGET, Budget, Contents, Keys, Link, Listed, Search};
use crate::names::open_plain;
use crate::quarantine::descriptors::kind;
use crate::quarantine::git_names::is_worktree;
use crate::quarantine::leftovers::{Leftover, Leftovers};
use crate::quarantine::modules::GitDir;
use crate::quarantine::{Watch, WatchList, is_open_repository};

/// Repositories that hold more than is looked at, or a directory of the caller's that is closed: of the links that a stage makes
/// in them not all would be moved. A line for each; changes nothing.
pub fn beyond_search(list: &WatchList) -> Vec<String> {
    let Ok(tree) = open_plain(&list.tree) else { return Vec::new() };
    let (tree, keys) = (File::from(tree), Keys::draw());
    let is_beyond = |name: &&String| {
        let search = Search { tree: &tree, keys, opens: false, is_new: None, budget: BUDGET };
        !search.each(Path::new(name), |_, _, _| ()).is_empty()
    };
    let beyond = list.repositories.iter().filter(is_beyond);
    let told = beyond.map(|name| {
        format!(
            "`{}` holds more than {} names, or directories far down or closed: links that the stage makes there may stay, and git would \
             write through them",
            list.tree.join(name).display(),
            BUDGET.names
        )
    });
    told.collect()
}

impl Watch {
    /// Moves the links aside that were not in the repository before, and says which unfinished operation is not as it was. `left`: how many
    /// may still be moved.
    pub(in crate::quarantine) fn settle(
        &self,
        repository: &str,
        before: &Contents,
        left: &mut usize,
        told: &mut Leftovers,
        is_over: &dyn Fn() -> bool,
    ) {
        if self.settle_within(BUDGET, Path::new(repository), Some(before), left, told, is_over) {
            told.add_always(stays(self.list.tree.join(repository), CUT));
        }
    }

    /// Moves the links aside in directories of submodules that came during the run.
    pub(in crate::quarantine) fn settle_new_modules(
        &self,
        held: &[GitDir],
        left: &mut usize,
        told: &mut Leftovers,
        is_over: &dyn Fn() -> bool,
    ) {
        let modules: Vec<&GitDir> = held.iter().filter(|it| it.is_new && it.path == it.config).collect();
        let budget = Budget { names: MODULES / modules.len().max(1), ..BUDGET };
        for module in modules {
            if self.settle_within(budget, &module.path, Some(&Contents::default()), left, told, is_over) {
                told.add_always(stays(self.list.tree.join(&module.path), CUT));
            }
        }
    }

    /// Moves the links aside that came during the run in repositories that were not known, and says which have operations that the stage began
    /// or changed.
    pub(in crate::quarantine) fn settle_nested_links(
        &self,
        nested: &[GitDir],
        left: &mut usize,
        told: &mut Leftovers,
        is_over: &dyn Fn() -> bool,
    ) {
        let budget = Budget { names: (MODULES / nested.len().max(1)).max(LEAST), ..BUDGET };
        let mut is_cut = false;
        for git in nested {
            is_cut |= self.settle_within(budget, &git.path, None, left, told, is_over);
        }
        if is_cut {
            told.add_always(stays(self.list.tree.clone(), CUT_BELOW));
        }
    }

    /// Moves aside what is new in one repository. `before` are the contents at the start; if they are not known, what has not changed since is
    /// passed over. Returns whether the repository held too much to be searched.
    pub(super) fn settle_within(
        &self,
        budget: Budget,
        repository: &Path,
        before: Option<&Contents>,
        left: &mut usize,
        told: &mut Leftovers,
        is_over: &dyn Fn() -> bool,
    ) -> bool {
        let is_new = |stat: &FileStat| self.may_have_changed(stat);
        let search = Search { tree: &self.tree, keys: self.keys, opens: true, is_new: Some(&is_new), budget };
        let mut inside = Vec::new();
        let unread = search.each(repository, |at, dir, Listed { links, repositories, operation }| {
            // A later stage could move such a thing to a place at which it is obeyed.
            let new =
                repositories.iter().map(|name| at.join(name)).filter(|it| self.is_changed_in(repository, it));
            new.filter_map(|path| self.settle_name(path)).for_each(|found| told.add(found));
            // A remote may lead to it, or the `commondir` of a worktree's worktree. Other worktrees are judged by themselves.
            let is_outer = is_worktree(at) && !at.ancestors().nth(2).is_some_and(is_worktree);
            if at != repository && !is_outer && !self.is_known_repository(at) && is_open_repository(dir) {
                inside.push(at.to_path_buf());
            }
            let is_new = |link: &Link| {
                !link.is_old_head
                    && match before {
                        Some(before) => !before.links.contains(&link.mark),
                        None => self.is_changed_in(repository, &at.join(&link.name)),
                    }
            };
            let links: Vec<Link> = links.into_iter().filter(is_new).collect();
            let is_known = links.is_empty() || before.is_none_or(|before| before.knows(at, self.keys));
            for Link { name, .. } in links {
                let path = self.list.tree.join(at).join(&name);
                let found = if !is_known {
                    Some(stays(path, UNKNOWN))
                } else if *left == 0 {
                    Some(stays(path, TOO_MANY))
                } else {
                    *left -= 1;
                    self.settle_in(dir, &at.join(&name), &name, |_, _, stat| kind(stat) != SFlag::S_IFLNK)
                };
                if let Some(found) = found {
                    told.add(found);
                }
            }
            let is_begun = operation.is_some_and(|operation| match before {
                Some(before) => !before.operations.contains(&operation),
                None => self.is_changed_in(repository, at),
            });
            if is_begun {
                told.add(stays(self.list.tree.join(at), OPERATION));
            }
        });
        self.settle_inside(inside, told, is_over);
        !unread.is_empty()
    }

    /// Moves aside what git obeys in repositories that lie in the directory of another one, and indexes there that are not right.
    pub(super) fn settle_inside(
        &self,
        inside: Vec<PathBuf>,
        told: &mut Leftovers,
        is_over: &dyn Fn() -> bool,
    ) {
        let dirs = inside.into_iter().map(|at| GitDir { path: at.clone(), config: at, is_new: true });
        let dirs: Vec<GitDir> = dirs.collect();
        dirs.iter().flat_map(|git| self.settle_changed(&git.path)).for_each(|found| told.add(found));
        self.settle_paths(&dirs, &[self], is_over).into_iter().for_each(|found| told.add(found));
    }
}

/// Names that are read in all new submodules together: about 120 ms.
const MODULES: usize = 1 << 18;
/// Names that are read in each repository that was not known.
const LEAST: usize = 1 << 12;
const UNKNOWN: &str =
    "a symbolic link, and the repository held too much to tell whose it is: git writes through it";
const TOO_MANY: &str = "a symbolic link, and too many others were moved before it: git writes through it";
const OPERATION: &str = "the stage began or changed what git has not finished there, and its files can name commands: look at them \
                         before you have git continue or abort it";
const CUT: &str = "it holds too much to be searched for symbolic links, through which git would write, and for rebases that the \
                   stage began";

const CUT_BELOW: &str =
    "repositories in it hold too much to be searched for symbolic links, through which git would write";

fn stays(path: PathBuf, why: &str) -> Leftover {
    Leftover { path, moved: Err(io::Error::other(why)) }
}

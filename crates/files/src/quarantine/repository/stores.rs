//! The directories in which git-lfs and git-annex keep the contents of large files. Both write to and read from a path that is made of a hash,
//! through links on the way.

use std::io;
use std::os::fd::AsFd as _;

use nix::dir::Type;
use nix::sys::stat::SFlag;

use super::{ANNEX, LFS, OBJECTS, is_repository_name};
use crate::quarantine::descriptors::{entries, kind, open_beneath, retry_opened, stat_in};
use crate::quarantine::modules::GitDir;
use crate::quarantine::{Leftover, Leftovers, Watch, is_open_repository};

/// Directories that are opened, and names in these, in one repository: about half a second.
const DIRECTORIES: usize = 1 << 15;
const ENTRIES: usize = 1 << 20;

impl Watch {
    /// Moves the links aside that came into such a directory during the run.
    pub(in crate::quarantine) fn settle_stores(
        &self,
        git: &GitDir,
        told: &mut Leftovers,
        is_over: &dyn Fn() -> bool,
    ) {
        let mut next = [LFS, ANNEX].map(|tool| git.path.join(tool).join(OBJECTS)).to_vec();
        let (mut directories, mut names, mut inside) = (DIRECTORIES, ENTRIES, Vec::new());
        while let Some(at) = next.pop() {
            let Ok(dir) = open_beneath(&self.tree, &at) else { continue };
            directories = directories.saturating_sub(1);
            if directories == 0 || names == 0 {
                let why =
                    "it holds too much to be searched for symbolic links, through which git would write";
                told.add_always(Leftover {
                    path: self.list.tree.join(at),
                    moved: Err(io::Error::other(why)),
                });
                break;
            }
            if is_open_repository(dir.as_fd()) {
                inside.push(at.clone());
            }
            let Ok(listed) = retry_opened(dir.as_fd(), || entries(dir.as_fd())) else { continue };
            for (name, known) in listed.flatten().take(names).collect::<Vec<_>>() {
                names -= 1;
                let below = at.join(&name);
                if known.is_none_or(|kind| kind == Type::Symlink) {
                    let found = self.settle_in(dir.as_fd(), &below, &name, |_, _, stat| {
                        kind(stat) != SFlag::S_IFLNK || !self.may_have_changed(stat)
                    });
                    found.into_iter().for_each(|found| told.add(found));
                }
                if is_repository_name(&name) && self.is_changed_in(&at, &below) {
                    self.settle_name(&below).into_iter().for_each(|found| told.add(found));
                    continue;
                }
                let is_leaf = || {
                    stat_in(dir.as_fd(), &name).is_ok_and(|stat| self.is_old_leaf(dir.as_fd(), &name, &stat))
                };
                if known.is_none_or(|kind| kind == Type::Directory) && !is_leaf() {
                    next.push(below);
                }
            }
        }
        self.settle_inside(inside, told, is_over);
    }
}

//! Repositories further down in a working tree, which git at the top enters when an index names them as submodules: `git status` obeys
//! their configuration.

use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use nix::dir::Type;
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstatat};

use super::descriptors::{PATH_MAX, entries, kind, let_in, open_beneath, open_file};
use super::held::obeyed_in;
use super::modules::GitDir;
use super::store::is_directory_name;
use super::submodules::{Judged, PACKAGES, Submodules};
use super::{Leftover, Watch};
use crate::protected::GIT_LINK;
use crate::walk::clean;

/// Directories that are searched in one tree, and names in these: about a second.
const DIRECTORIES: usize = 1 << 16;
const ENTRIES: usize = 1 << 21;
/// Names from the tree to a directory that cost nothing more.
const NEAR: usize = 16;

impl Watch {
    /// Moves aside what git obeys in new repositories of the tree that may be these submodules, and `.git` files that lead elsewhere. Also
    /// returns the repositories, whose indexes may name others.
    pub(super) fn settle_nested(
        &self,
        submodules: &Submodules,
        judged: &Judged,
        is_over: &dyn Fn() -> bool,
    ) -> (Vec<Leftover>, Vec<GitDir>) {
        let (mut next, mut found, mut nested) = (vec![PathBuf::new()], Vec::new(), Vec::new());
        // First those whose places are known: a crowd hides none of these.
        let places = judged.work.iter().flat_map(|work| submodules.paths_in(work));
        for place in places.take(DIRECTORIES) {
            if let Ok(at) = place.strip_prefix(&self.missing.tree) {
                self.settle_git(at, judged, &mut found, &mut nested);
            }
        }
        let are_in_packages = submodules.are_in_packages();
        let (mut directories, mut names) = (DIRECTORIES, ENTRIES);
        while let Some(at) = next.pop() {
            let cost = 1 + at.components().count() / NEAR;
            directories = directories.saturating_sub(cost);
            if directories == 0 || names == 0 || is_over() {
                let why = "it holds too much to look for new repositories, and git enters those that an index names as submodules";
                found.push(Leftover { path: self.missing.tree.clone(), moved: Err(io::Error::other(why)) });
                break;
            }
            let Ok(dir) = open_beneath(&self.tree, &at) else { continue };
            let Ok(listed) = let_in(dir.as_fd(), || entries(dir.as_fd())) else { continue };
            for (name, known) in listed.flatten().take(names) {
                names -= 1;
                let is_dir = || match known {
                    Some(kind) => kind == Type::Directory,
                    None => {
                        let_in(dir.as_fd(), || fstatat(&dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW))
                            .is_ok_and(|stat| kind(&stat) == SFlag::S_IFDIR)
                    }
                };
                if name.eq_ignore_ascii_case(GIT_LINK) {
                    if submodules.may_have(&self.missing.tree.join(&at)) {
                        self.settle_git(&at.join(&name), judged, &mut found, &mut nested);
                    }
                } else if is_dir()
                    && !(at.as_os_str().is_empty() && is_directory_name(&name))
                    && (are_in_packages || name != PACKAGES)
                {
                    next.push(at.join(&name));
                }
            }
        }
        (found, nested)
    }

    fn settle_git(&self, at: &Path, judged: &Judged, found: &mut Vec<Leftover>, nested: &mut Vec<GitDir>) {
        let Ok(stat) = self.stat(at) else { return };
        nested.push(GitDir { path: at.into(), config: at.into(), is_new: true });
        // Those that were there at the start are protected as a whole.
        let is_known = at.to_str().is_some_and(|at| self.missing.repositories.iter().any(|it| it == at));
        if kind(&stat) == SFlag::S_IFDIR {
            let names = obeyed_in(at).filter(|path| !is_known && self.is_changed_at(path));
            found.extend(names.filter_map(|path| self.settle_name(path)));
        } else if !(kind(&stat) == SFlag::S_IFREG && self.leads_to_judged(at, judged))
            && self.is_changed_at(at)
        {
            found.extend(self.settle_name(at));
        }
    }

    /// Returns whether a `.git` file leads to a directory that was looked at, as git writes such a file: through no link, and without
    /// anything that git would read otherwise.
    fn leads_to_judged(&self, at: &Path, judged: &Judged) -> bool {
        let read = || {
            let mut text = Vec::new();
            let above = open_beneath(&self.tree, at.parent()?).ok()?;
            open_file(above.as_fd(), at.file_name()?)
                .ok()?
                .take(PATH_MAX as u64)
                .read_to_end(&mut text)
                .ok()?;
            let to =
                Path::new(std::ffi::OsStr::from_bytes(text.strip_prefix(b"gitdir: ")?.strip_suffix(b"\n")?));
            let mut parts = to.components().skip_while(|part| *part == Component::ParentDir);
            let is_plain = parts.all(|part| matches!(part, Component::Normal(_) | Component::RootDir));
            let to = clean(&self.missing.tree.join(at).parent()?.join(to));
            is_plain.then_some(to)
        };
        read().is_some_and(|to| judged.dirs.contains(&to))
    }
}

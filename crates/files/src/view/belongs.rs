//! The repository that a working directory belongs to, where that lies outside of it: a subdirectory's, a linked worktree's or a
//! submodule's. Without it git finds nothing in the sandbox.
//!
//! An earlier stage may have written a `.git` file. So what it names counts only if the repository names the working tree back,
//! as git has it do (gitrepository-layout(5)): no stage can write that in a repository that it was not shown. A `.git` directory that a
//! stage may have made shows nothing of what is around it ([`crate::quarantine::Live`]).

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::git_path::{commondir_path, git_file_path, gitdir_path};
use crate::quarantine::is_repository;
use crate::walk::LinkRule;
use nix::unistd::geteuid;

use super::git;

/// Directories above a working directory that are searched. Deeper projects start exeat further up.
const MOST_ABOVE: usize = 64;

/// The parts of a repository to show, by real paths.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Repository {
    /// The top of the working tree, if the working directory lies below it.
    pub(super) top: Option<PathBuf>,
    /// The directory that git writes to.
    pub(super) git: PathBuf,
}

/// Finds the repository of a working directory, unless it lies in the directory itself. Trees that another user owns do not count,
/// as with git (git-config(1), `safe.directory`).
pub(super) fn find(cwd: &Path, links: &LinkRule) -> Option<Repository> {
    let owners = [Some(geteuid().as_raw()), owner(cwd)];
    let is_ours = |path: &Path| owners.contains(&owner(path));
    let mut above = cwd.ancestors().take(MOST_ABOVE);
    let (top, about) = above.find_map(|dir| Some((dir, fs::symlink_metadata(dir.join(".git")).ok()?)))?;
    if !is_ours(top) || !owners.contains(&Some(about.uid())) {
        return None;
    }
    let git = directory(top, &about, links)?;
    let is_inside = git.starts_with(cwd);
    let top = (top != cwd).then(|| top.to_path_buf());
    (is_ours(&git) && !is_inside).then_some(Repository { top, git })
}

fn owner(path: &Path) -> Option<u32> {
    fs::symlink_metadata(path).ok().map(|about| about.uid())
}

/// The directory that git writes to for a working tree.
fn directory(top: &Path, about: &Metadata, links: &LinkRule) -> Option<PathBuf> {
    let link = top.join(".git");
    let real = |path: PathBuf| links.walk(&path).ok().map(|end| end.real);
    let is_repository = |dir: &Path| is_repository(|name| fs::symlink_metadata(dir.join(name)).is_ok());
    if about.is_dir() {
        return is_repository(&link).then_some(link);
    }
    if !about.is_file() {
        return None;
    }
    let own = real(top.join(git::path_of(&link, git_file_path)?))?;
    if let Some(common) = git::path_of(&own.join("commondir"), commondir_path) {
        // A linked worktree: `COMMON/worktrees/NAME`, whose `gitdir` is the worktree's `.git`.
        let common = real(own.join(common))?;
        let is_below = own.parent() == Some(common.join("worktrees").as_path());
        let is_named_back = real(own.join(git::path_of(&own.join("gitdir"), gitdir_path)?))? == link;
        return (is_below && is_named_back && is_git_s(&common) && is_repository(&common)).then_some(common);
    }
    // A submodule: the configuration in its directory names the working tree.
    let is_named_back = real(own.join(git::worktree_of(&own)?))? == top;
    let is_below = own.ancestors().any(|above| above.ends_with(".git/modules"));
    (is_below && is_named_back && is_repository(&own)).then_some(own)
}

/// Whether a directory has the name of a repository's.
fn is_git_s(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name: &OsStr| name.as_bytes().ends_with(b".git"))
}

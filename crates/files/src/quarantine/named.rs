//! Files of a tree that the configuration of a repository names: git obeys these, too.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use nix::sys::stat::SFlag;

use super::descriptors::{PATH_MAX, kind, open_file};
use super::modules::{GitDir, gitdir_of};
use super::{Leftover, Watch};
use crate::git_config::{Setting, resolve_value, settings};
use crate::git_path::{commondir_path, git_file_target};
use crate::names::{is_absent, open_regular};
use crate::protected::{GIT_LINK, names_in_git};
use crate::users::home_of;
use crate::walk::clean;

/// The configurations in the directory of a repository.
const CONFIGS: [&str; 2] = ["config", "config.worktree"];
/// Bytes of a configuration.
const BYTES: u64 = 1 << 20;
/// Configurations of one repository, with those that they include.
const FILES: usize = 16;
/// Places that these name.
const PLACES: usize = 256;

impl Watch {
    /// Moves aside what the stage has put at the places that a repository's configuration names.
    pub(super) fn settle_named(&self, git: &GitDir, work: Option<&Path>) -> Vec<Leftover> {
        let changed =
            self.named_by(git, work).into_iter().filter(|path| self.is_changed_in(top_of(path), path));
        let is_copy =
            |path: &PathBuf| work.is_some_and(|work| self.is_copy(git, work, path).unwrap_or(false));
        changed.filter(|path| !is_copy(path)).filter_map(|path| self.settle_name(path)).collect()
    }

    /// Returns whether a place in a linked worktree is as it is in the repository's own working tree, where the stage has changed nothing: git
    /// has checked it out.
    fn is_copy(&self, git: &GitDir, work: &Path, path: &Path) -> io::Result<bool> {
        let repository = git.config.strip_prefix(&self.list.tree).unwrap_or(&git.config);
        let main = repository.parent().filter(|_| repository.ends_with(GIT_LINK));
        let (Some(main), Ok(below)) = (main, path.strip_prefix(work)) else { return Ok(false) };
        let original = main.join(below);
        Ok(self.is_known_repository(repository)
            && !self.is_written_below(path)
            && !self.has_new_time(top_of(&original), &original)
            && self.content_of(path)? == self.content_of(&original)?)
    }

    /// Returns the content of a file, or of all files in a directory.
    fn content_of(&self, path: &Path) -> io::Result<BTreeMap<PathBuf, (u32, Vec<u8>)>> {
        let (mut found, mut left) = (BTreeMap::new(), BYTES);
        self.visit_all(path, |below, dir, name, stat| {
            let mut content = Vec::new();
            match kind(stat) {
                SFlag::S_IFDIR => {}
                // By another name it could be written later.
                SFlag::S_IFREG if stat.st_nlink == 1 => {
                    left -= open_file(dir, name)?.take(left).read_to_end(&mut content)? as u64;
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
            found.insert(below.to_path_buf(), (stat.st_mode, content));
            if left == 0 { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
        })?;
        Ok(found)
    }

    /// Lists the places of the tree that the configuration of a repository and the user's own name for it, and those to which links in the
    /// repository's directory lead, at names that git obeys. `work`: the working tree, if that directory does not name it.
    pub(super) fn named_by(&self, git: &GitDir, work: Option<&Path>) -> BTreeSet<PathBuf> {
        let place = |path: &Path| self.list.tree.join(path);
        let dir = place(&git.path);
        let mut works = vec![dir.clone()];
        works.extend(work.map(place));
        works.extend(dir.parent().filter(|_| git.path.ends_with(GIT_LINK)).map(Path::to_path_buf));
        let of_worktree = gitdir_of(&self.tree, &git.path).map(|to| dir.join(to));
        works.extend(of_worktree.as_deref().and_then(Path::parent).map(Path::to_path_buf));
        let mut files = CONFIGS.map(|name| place(&git.config).join(name)).to_vec();
        files.extend(CONFIGS.map(|name| dir.join(name)).into_iter().filter(|_| git.path != git.config));
        let home = self.noted.home.get_or_init(|| home_of(env::var_os("HOME").as_deref()));
        let (mut found, mut values) = (BTreeSet::new(), Vec::new());
        let mut next = 0;
        while let Some(file) = files.get(next).cloned().filter(|_| next < FILES) {
            next += 1;
            let settings = read(&file).unwrap_or_else(|error| {
                // What it names cannot be judged, so it must not stay if it is the stage's.
                if !is_absent(&error) {
                    self.add_place(&file, false, &works, &mut found);
                }
                Vec::new()
            });
            for setting in settings {
                match setting {
                    Setting::HooksPath(value) | Setting::Program(value) | Setting::Template(value) => {
                        values.push((value, false));
                    }
                    Setting::File(value) => values.push((value, true)),
                    Setting::Worktree(value) => works.push(clean(&dir.join(value))),
                    Setting::Include(value) => {
                        let path = resolve_value(file.parent().unwrap_or(&dir), &value, home);
                        self.add_place(&path, false, &works, &mut found);
                        files.push(path);
                    }
                    Setting::SafeDirectory | Setting::Submodule(_) => {}
                }
            }
        }
        let everywhere = self.list.everywhere.iter();
        values.extend(everywhere.map(|it| (it.path.clone().into_os_string(), it.is_file)));
        for (value, is_file) in &values {
            let places = works.iter().map(|work| resolve_value(work, value, home));
            places.for_each(|place| self.add_place(&place, *is_file, &works, &mut found));
        }
        for path in names_in_git().map(|name| dir.join(name)) {
            if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_symlink()) {
                self.add_place(&path, false, &works, &mut found);
            }
        }
        found
    }

    /// Adds a path, and what it leads to. `is_file`: only a file counts.
    fn add_place(&self, path: &Path, is_file: bool, works: &[PathBuf], found: &mut BTreeSet<PathBuf>) {
        for path in [Some(self.first_link(clean(path))), path.canonicalize().ok()].into_iter().flatten() {
            let Ok(below) = path.strip_prefix(&self.list.tree) else { continue };
            // A repository's directory, and its working tree, hold more than that.
            let is_above = works.iter().any(|work| work.starts_with(&path));
            let is_kind = || !is_file || fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
            if !is_above && found.len() < PLACES && is_kind() {
                found.insert(below.to_path_buf());
            }
        }
    }

    /// Returns the first link in the tree on the way to a path, or else the path: what is behind a link has another name.
    fn first_link(&self, path: PathBuf) -> PathBuf {
        let above = path.ancestors().skip(1).take_while(|above| above.starts_with(&self.list.tree));
        let links = above.filter(|above| fs::symlink_metadata(above).is_ok_and(|meta| meta.is_symlink()));
        links.last().map(Path::to_path_buf).unwrap_or(path)
    }
}

/// Returns the directory of the repository to which a `.git` file leads, by its path on the host.
pub(super) fn repository_of(tree: &Path, file: &Path, text: &[u8]) -> Option<GitDir> {
    Some(repository_at(git_file_target(&tree.join(file), text)?))
}

/// Returns a directory of git's with that of its configuration, by their paths on the host.
pub(super) fn repository_at(path: PathBuf) -> GitDir {
    let mut common = Vec::new();
    let read = open_regular(&path.join("commondir"))
        .and_then(|it| it.take(PATH_MAX as u64).read_to_end(&mut common));
    let common = commondir_path(&common).filter(|_| read.is_ok());
    let config = common.map_or_else(|| path.clone(), |common| clean(&path.join(common)));
    GitDir { path, config, is_new: false }
}

/// Returns the first part of a place in the tree.
pub(super) fn top_of(path: &Path) -> &Path {
    path.ancestors().filter(|above| *above != Path::new("")).last().unwrap_or(path)
}

fn read(file: &Path) -> io::Result<Vec<Setting>> {
    let mut text = Vec::new();
    open_regular(&file.canonicalize()?)?.take(BYTES).read_to_end(&mut text)?;
    Ok(settings(&text))
}

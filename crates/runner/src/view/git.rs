//! What git on the host would obey in a writable tree, beyond the names that are the same in every repository: repositories
//! further down, submodules, linked worktrees, and what a configuration names.
//!
//! Looks and changes nothing. Everything is bounded: what is not looked at is said.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

mod config;

use config::Setting;

/// How deep below a tree repositories are looked for: `tree/a/b/.git`.
const DEPTH: usize = 2;
/// Names that are looked at for that, in one tree.
const ENTRIES: usize = 8192;
/// Repositories in one tree, submodules and worktrees included. Each takes a few mounts.
const REPOSITORIES: usize = 32;
/// How deep submodules lie in `.git/modules`: their names may hold slashes, and they may have submodules of their own.
const MODULE_DEPTH: usize = 8;
/// Files that one configuration includes, and those include.
const INCLUDES: usize = 16;
/// Bytes of a configuration.
const CONFIG: u64 = 1 << 20;

/// Directories that hold what was installed or built: their repositories are others' and nobody works in them.
const PASSED_OVER: &[&str] =
    &["node_modules", "target", "vendor", "venv", "dist", "build", "__pycache__", "site-packages"];

/// Names in a repository's directory that git obeys.
pub(super) const OBEYED: &[&str] = &["hooks", "config", "config.worktree", "info/attributes", "commondir"];
/// Names in the directory of a linked worktree, in the repository that it belongs to.
const OF_WORKTREES: &[&str] = &["commondir", "gitdir", "config.worktree"];

/// What was found in a tree.
#[derive(Debug, Default)]
pub(super) struct Obeyed {
    /// Directories, each with names in it that git obeys. Not that of the tree's own repository.
    pub(super) directories: Vec<(PathBuf, &'static [&'static str])>,
    /// `.git` of repositories further down: read-only where it is a file.
    pub(super) links: BTreeSet<PathBuf>,
    /// What configurations name: hooks, and files that they include.
    pub(super) named: BTreeSet<PathBuf>,
    /// What was not looked at, for the caller.
    pub(super) left: Vec<String>,
}

/// Looks into a tree. `home` is what `~/` means to git.
pub(super) fn obeyed(tree: &Path, home: &Path) -> Obeyed {
    let mut found = Obeyed::default();
    if let Some((work, dirs)) = repository_of(tree) {
        for dir in &dirs {
            found.repository(dir, &work, home);
        }
    }
    for work in found.below(tree) {
        let dir = work.join(".git");
        if found.directories.len() + found.links.len() >= REPOSITORIES {
            found.lose(format!(
                "repositories in `{}` beyond the first {REPOSITORIES} are not protected",
                tree.display()
            ));
            break;
        }
        if dir.is_dir() {
            found.directories.push((dir.clone(), OBEYED));
            found.repository(&dir, &work, home);
        } else {
            found.links.insert(dir);
        }
    }
    // What lies elsewhere is no stage's to write, and a directory above the tree would take all of it away.
    let named = std::mem::take(&mut found.named);
    for path in named.into_iter().filter(|path| path.starts_with(tree)) {
        if path == tree {
            found.lose(format!("git takes hooks from `{}` itself, which stays writable", path.display()));
        } else {
            found.named.insert(path);
        }
    }
    found
}

/// The repository that a directory belongs to, as git finds it: the top of its working tree, and the directories whose
/// configuration counts.
fn repository_of(dir: &Path) -> Option<(PathBuf, Vec<PathBuf>)> {
    let (work, git) = dir.ancestors().find_map(|above| {
        let git = above.join(".git");
        fs::symlink_metadata(&git).is_ok().then(|| (above.to_path_buf(), git))
    })?;
    let own = match git.is_dir() {
        true => git,
        // gitrepository-layout(5): a file that says where the directory is.
        false => super::normal(&work.join(read(&git).strip_prefix("gitdir:")?.trim())),
    };
    let common = own.join("commondir");
    let common =
        fs::symlink_metadata(&common).is_ok().then(|| super::normal(&own.join(read(&common).trim())));
    Some((work, std::iter::once(own).chain(common).collect()))
}

impl Obeyed {
    /// Working trees below a directory, the oldest first: those that a stage makes to be looked at in the place of others are
    /// younger, and nobody can make them look older (statx(2), `stx_btime`).
    fn below(&mut self, tree: &Path) -> Vec<PathBuf> {
        let mut room = ENTRIES;
        let mut works = Vec::new();
        let mut dirs = vec![(tree.to_path_buf(), DEPTH)];
        while let Some((dir, depth)) = dirs.pop() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                if room == 0 {
                    self.lose(format!(
                        "repositories further down in `{}` may not be protected: it holds too much",
                        tree.display()
                    ));
                    dirs.clear();
                    break;
                }
                room -= 1;
                let name = entry.file_name();
                let passed_over = name == ".git" || PASSED_OVER.iter().any(|known| name == *known);
                if passed_over || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                let child = dir.join(name);
                if let Ok(meta) = fs::symlink_metadata(child.join(".git")) {
                    works.push((meta.created().ok(), child.clone()));
                }
                if depth > 1 {
                    dirs.push((child, depth - 1));
                }
            }
        }
        works.sort();
        works.into_iter().map(|(_, work)| work).collect()
    }

    fn lose(&mut self, line: String) {
        if !self.left.contains(&line) {
            self.left.push(line);
        }
    }

    /// Adds what the repository with this directory names, and its submodules and worktrees.
    fn repository(&mut self, dir: &Path, work: &Path, home: &Path) {
        self.configuration(dir, work, home);
        self.modules(&dir.join("modules"), MODULE_DEPTH, home);
        for entry in fs::read_dir(dir.join("worktrees")).into_iter().flatten().flatten() {
            if self.is_full(dir) {
                break;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.directories.push((entry.path(), OF_WORKTREES));
            }
        }
    }

    /// Whether there is no room for another directory, which is then said.
    fn is_full(&mut self, dir: &Path) -> bool {
        let is_full = self.directories.len() >= REPOSITORIES;
        if is_full {
            self.lose(format!(
                "submodules and worktrees of `{}` beyond the first are not protected",
                dir.display()
            ));
        }
        is_full
    }

    /// Submodules' directories: those with a HEAD.
    fn modules(&mut self, dir: &Path, depth: usize, home: &Path) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        if depth == 0 {
            return self
                .lose(format!("submodules in `{}` lie too deep, and are not protected", dir.display()));
        }
        for entry in entries.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if self.is_full(dir) {
                return;
            }
            let module = entry.path();
            if !module.join("HEAD").is_file() {
                self.modules(&module, depth - 1, home);
                continue;
            }
            self.directories.push((module.clone(), OBEYED));
            let work = self.configuration(&module, &module, home);
            if let Some(work) = work {
                self.links.insert(work.join(".git"));
            }
            self.modules(&module.join("modules"), depth - 1, home);
        }
    }

    /// Adds what a repository's configuration names; returns the working tree that it names.
    fn configuration(&mut self, dir: &Path, work: &Path, home: &Path) -> Option<PathBuf> {
        let mut tree = None;
        // The machine's and the user's own name hooks for every repository; their other words lie outside of the tree.
        let mut files: Vec<PathBuf> = [".gitconfig", ".config/git/config"].map(|name| home.join(name)).into();
        files.extend([PathBuf::from("/etc/gitconfig"), dir.join("config"), dir.join("config.worktree")]);
        let most = files.len() + INCLUDES;
        let mut hooks = Vec::new();
        let mut next = 0;
        while let Some(file) = files.get(next).cloned() {
            if next == most {
                self.lose(format!(
                    "the configuration in `{}` includes too many files: what they name is not protected",
                    dir.display()
                ));
                break;
            }
            next += 1;
            let above = file.parent().unwrap_or(dir);
            if fs::metadata(&file).is_ok_and(|meta| meta.is_file() && meta.len() > CONFIG) {
                self.lose(format!(
                    "`{}` is too large to be read: what it names is not protected",
                    file.display()
                ));
            }
            for setting in config::settings(&read(&file)) {
                match setting {
                    Setting::HooksPath(value) => hooks.push(value),
                    Setting::Worktree(value) => tree = Some(place(above, &value, home)),
                    Setting::Include(value) => {
                        let path = place(above, &value, home);
                        self.named.insert(path.clone());
                        if !files.contains(&path) {
                            files.push(path);
                        }
                    }
                }
            }
        }
        let work = tree.as_deref().unwrap_or(work);
        self.named.extend(hooks.iter().map(|value| place(work, value, home)));
        tree
    }
}

/// What a value means: relative to a directory, or below HOME.
fn place(base: &Path, value: &str, home: &Path) -> PathBuf {
    let path = match value.strip_prefix("~/") {
        Some(below) => home.join(below),
        None => base.join(value),
    };
    super::normal(&path)
}

/// A configuration; empty where it is none.
fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file).and_then(|_| fs::File::open(path).ok());
    if let Some(file) = file {
        // What cannot be read is no configuration to git either.
        let _ = file.take(CONFIG).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;

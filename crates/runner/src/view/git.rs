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
/// Directories that are looked into, in one tree.
const DIRECTORIES: usize = 512;
/// Repositories in one tree, submodules included. Each takes a few mounts.
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
    pub(super) left: Option<String>,
}

/// Looks into a tree. `home` is what `~/` means to git.
pub(super) fn obeyed(tree: &Path, home: &Path) -> Obeyed {
    let mut found = Obeyed::default();
    let mut room = DIRECTORIES;
    let mut repositories = Vec::new();
    if tree.join(".git").is_dir() {
        repositories.push(tree.to_path_buf());
    }
    below(tree, DEPTH, &mut room, &mut repositories, &mut found.links);
    if room == 0 {
        found.left = Some(format!(
            "repositories further down in `{}` may be unprotected: it has too many directories",
            tree.display()
        ));
    }
    for (number, work) in repositories.iter().enumerate() {
        let dir = work.join(".git");
        if number > 0 || work != tree {
            found.directories.push((dir.clone(), OBEYED));
        }
        found.repository(&dir, work, home);
    }
    if found.directories.len() > REPOSITORIES {
        found.directories.truncate(REPOSITORIES);
        found.left = Some(format!(
            "repositories in `{}` beyond the first {REPOSITORIES} are unprotected",
            tree.display()
        ));
    }
    // What lies elsewhere is no stage's to write, and a directory above the tree would take all of it away.
    let named = std::mem::take(&mut found.named);
    let is_in = |path: &PathBuf| path.starts_with(tree) && path != tree;
    let (named, over): (BTreeSet<_>, BTreeSet<_>) =
        named.into_iter().filter(|path| path.starts_with(tree) || tree.starts_with(path)).partition(is_in);
    found.named = named;
    if let Some(path) = over.iter().find(|path| path.starts_with(tree)) {
        found.left = Some(format!("git takes hooks from `{}` itself, which stays writable", path.display()));
    }
    found
}

/// Working trees below a directory, and `.git` files.
fn below(
    dir: &Path,
    depth: usize,
    room: &mut usize,
    repositories: &mut Vec<PathBuf>,
    links: &mut BTreeSet<PathBuf>,
) {
    if depth == 0 || *room == 0 {
        return;
    }
    *room -= 1;
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let passed_over = name == ".git" || PASSED_OVER.iter().any(|known| name == *known);
        if passed_over || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let child = dir.join(name);
        match fs::symlink_metadata(child.join(".git")) {
            Ok(meta) if meta.is_dir() => repositories.push(child.clone()),
            Ok(meta) if meta.is_file() => drop(links.insert(child.join(".git"))),
            _ => {}
        }
        below(&child, depth - 1, room, repositories, links);
    }
}

impl Obeyed {
    /// Adds what the repository with this directory names, and its submodules and worktrees.
    fn repository(&mut self, dir: &Path, work: &Path, home: &Path) {
        self.configuration(dir, work, home);
        self.modules(&dir.join("modules"), MODULE_DEPTH, home);
        for entry in fs::read_dir(dir.join("worktrees")).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.directories.push((entry.path(), OF_WORKTREES));
            }
        }
    }

    /// Submodules' directories: those with a HEAD.
    fn modules(&mut self, dir: &Path, depth: usize, home: &Path) {
        // One more than is taken, so that it is seen that there are more.
        if depth == 0 || self.directories.len() > REPOSITORIES {
            return;
        }
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
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
        // The user's own names hooks for every repository; its other words lie outside of the tree.
        let mut files: Vec<PathBuf> = [".gitconfig", ".config/git/config"].map(|name| home.join(name)).into();
        files.extend([dir.join("config"), dir.join("config.worktree")]);
        let mut hooks = Vec::new();
        let mut next = 0;
        while let Some(file) = files.get(next).cloned().filter(|_| next < INCLUDES) {
            next += 1;
            let above = file.parent().unwrap_or(dir);
            for setting in config::settings(&read(&file)) {
                match setting {
                    Setting::HooksPath(value) => hooks.push(value),
                    Setting::Worktree(value) => tree = Some(place(above, &value, home)),
                    Setting::Include(value) => {
                        let path = place(above, &value, home);
                        self.named.insert(path.clone());
                        files.push(path);
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

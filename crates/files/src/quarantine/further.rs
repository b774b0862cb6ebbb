//! Protected names in directories further down in a tree: moved aside at the end of the run, where the stage has made them.
//!
//! There may be thousands of such directories, and a hundred names for each. So a directory is listed once, and only what begins a name
//! of the table is looked at. What the stage makes in a directory of its own is its own.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;
use serde::{Deserialize, Serialize};

use super::repository::MOVED;
use super::{Found, MAX_ENTRIES, Pattern, Watch, entries, let_in, open_beneath};
use crate::names::is_absent;
use crate::protected::{first_parts, is_first_part, is_pattern, matches_pattern, names_from};

/// A directory further down in a tree, that was there at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherDown {
    /// Its place below the tree.
    pub dir: String,
    /// Entries that begin protected names and were there at the start: what is to be watched in them is watched by itself.
    pub known: Vec<String>,
}

/// Whether one of these names, or a pattern among them, is a name of the table.
fn includes(names: &[String], name: &str) -> bool {
    names.iter().any(|known| known == name || is_pattern(known) && matches_pattern(known, name))
}

impl FurtherDown {
    /// Whether a name below the directory is one that was missing in it. `open`: names that are let through.
    pub(super) fn has_missing(&self, name: &Path, open: &[String]) -> bool {
        let Some(name) = name.to_str() else { return false };
        let entry = name.split('/').next().unwrap_or(name);
        let is_it = |known: &str| {
            let (above, last) = known.rsplit_once('/').unwrap_or(("", known));
            let (in_dir, it) = name.rsplit_once('/').unwrap_or(("", name));
            known == name || above == in_dir && matches_pattern(last, it)
        };
        !self.known.iter().any(|known| known == entry)
            && !includes(open, name)
            && names_from(entry).any(|(known, _)| is_it(known))
    }
}

impl Watch {
    /// Moves aside what has appeared further down.
    pub(super) fn settle_further(&self) -> Vec<Found> {
        let mut found = Vec::new();
        for it in &self.missing.further {
            let dir = Path::new(&it.dir);
            match self.first_parts_in(dir) {
                Ok(entries) => {
                    for entry in entries.iter().filter(|entry| !it.known.contains(entry)) {
                        self.settle_from(dir, entry, &mut found);
                    }
                }
                // Gone, or a file by now.
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(Errno::ELOOP) if !self.leads_to_names(dir) => {}
                Err(Errno::ELOOP) => found.extend(self.link_on_the_way(&it.dir)),
                Err(errno) => {
                    found.push(Found { path: self.missing.tree.join(dir), moved: Err(errno.into()) });
                }
            }
        }
        found
    }

    /// Moves aside the names that an entry of a directory begins.
    fn settle_from(&self, dir: &Path, entry: &str, found: &mut Vec<Found>) {
        for (name, obeyed) in names_from(entry) {
            // A pattern that is a name's first part stands for the entry.
            let name = if name.contains('/') { name } else { entry };
            let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
            if includes(&self.missing.let_through, name) {
                continue;
            }
            let path = dir.join(name);
            if found.len() >= MOVED {
                let why = "too many others were moved before it";
                found.push(Found { path: self.missing.tree.join(path), moved: Err(io::Error::other(why)) });
                return;
            }
            if is_pattern(last) {
                if let Some(dir) = dir.join(above).to_str() {
                    let (dir, name) = (dir.to_owned(), last.to_owned());
                    found.extend(self.settle_pattern(&Pattern { dir, name, known: Vec::new(), obeyed }));
                }
            } else if let Some(path) = path.to_str() {
                found.extend(self.settle_name(path));
            }
        }
    }

    /// Whether a link in the place of a directory, or of one above it, leads the host to names of the table. What cannot be looked at may.
    fn leads_to_names(&self, dir: &Path) -> bool {
        let place = self.missing.tree.join(dir);
        let mut listed = match fs::read_dir(&place) {
            Ok(listed) => listed,
            Err(error) => return !is_absent(&error),
        };
        let is_open = |name: &str| includes(&self.missing.let_through, name);
        let has_name = |entry: &fs::DirEntry| {
            entry.file_name().to_str().is_some_and(|entry| names_from(entry).any(|(name, _)| !is_open(name)))
        };
        let mut first = listed.by_ref().take(MAX_ENTRIES);
        first.any(|entry| entry.is_ok_and(|entry| has_name(&entry))) || listed.next().is_some()
    }

    fn first_parts_in(&self, dir: &Path) -> nix::Result<BTreeSet<String>> {
        self.first_parts_within(MAX_ENTRIES, dir)
    }

    /// Lists the entries of a directory that protected names begin with. One that holds more than so much is asked for each.
    fn first_parts_within(&self, most: usize, dir: &Path) -> nix::Result<BTreeSet<String>> {
        let dir = open_beneath(&self.tree, dir)?;
        let_in(dir.as_fd(), || {
            let mut listed = entries(dir.as_fd())?;
            let names = listed.by_ref().take(most).flatten();
            let names = names.filter_map(|(name, _)| name.into_string().ok());
            let mut known: BTreeSet<String> = names.filter(|name| is_first_part(name)).collect();
            if listed.next().is_some() {
                let is_there = |name: &&str| fstatat(&dir, *name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
                known.extend(first_parts().filter(is_there).map(str::to_owned));
            }
            Ok(known)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::{Keeper, Missing, finish};
    use super::*;

    fn settle(name: &str, known: &[&str], let_through: &[&str], make: impl Fn(&Path)) -> Vec<String> {
        let root = std::env::temp_dir().join(format!("further-{name}-{}", std::process::id()));
        let (tree, state) = (root.join("tree"), root.join("state"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        known.iter().for_each(|name| fs::create_dir(tree.join("a/b").join(name)).unwrap());
        let strings = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let further = vec![
            FurtherDown { dir: "a".into(), known: Vec::new() },
            FurtherDown { dir: "a/b".into(), known: strings(known) },
        ];
        let let_through = strings(let_through);
        let missing = Missing { tree: tree.clone(), further, let_through, ..Missing::default() };
        let watch = Watch::start(missing, Keeper { run: "RUN".into(), state: Some(state) }).unwrap();
        make(&tree);
        let found = finish([&watch]);
        let moved = found.named.iter().map(|it| {
            assert!(it.moved.is_ok() && fs::symlink_metadata(&it.path).is_err(), "{it:?}");
            it.path.strip_prefix(&tree).unwrap().to_str().unwrap().to_owned()
        });
        let moved = moved.collect();
        fs::remove_dir_all(root).unwrap();
        moved
    }

    /// K6, K45.
    #[test]
    fn b12_names_further_down_are_moved_and_all_else_stays() {
        let make = |tree: &Path| {
            for name in [
                "a/.vscode/tasks.json",
                "a/b/.mcp.json",
                "a/b/.vim/coc-settings.json",
                "a/b/.vim/vimrc",
                "a/b/mise.x.toml",
                "a/b/.config/mise.x.toml",
                "a/b/.envrc",
                "a/b/pyvenv.cfg",
                "a/b/.idea/x",
                "a/b/x",
                "new/.vscode/tasks.json",
            ] {
                fs::create_dir_all(tree.join(name).parent().unwrap()).unwrap();
                fs::write(tree.join(name), "evil").unwrap();
            }
            symlink("x", tree.join("a/.npmrc")).unwrap();
        };
        let all = [
            "a/.npmrc",
            "a/.vscode",
            "a/b/.config/mise.x.toml",
            "a/b/.envrc",
            "a/b/.mcp.json",
            "a/b/.vim/coc-settings.json",
            "a/b/mise.x.toml",
        ];
        assert_eq!(settle("all", &[".idea"], &[], make), all);
        let open = ["mise.*.toml", ".vscode", ".config/mise.*.toml"];
        assert_eq!(
            settle("open", &[".idea"], &open, make),
            ["a/.npmrc", "a/b/.envrc", "a/b/.mcp.json", "a/b/.vim/coc-settings.json"]
        );
    }

    /// A link in the place of a directory, or of one above it, leads the host to what the stage has made. One that leads to no such name stays.
    #[test]
    fn b16_a_link_that_leads_to_names_is_moved() {
        for (link, to, made, moved) in [
            ("a/b", "../new", "new/.vscode", Some("a/b")),
            ("a", "new", "new/b/.mcp.json", Some("a")),
            ("a", "new", "new/b/mise.x.toml", Some("a")),
            ("a", "new", "new/b/src", None),
            ("a/b", "/nowhere", "new/.vscode", None),
        ] {
            let swap = |tree: &Path| {
                fs::remove_dir_all(tree.join(link)).unwrap();
                fs::create_dir_all(tree.join(made)).unwrap();
                symlink(to, tree.join(link)).unwrap();
            };
            assert_eq!(settle("swap", &[], &[], swap), moved.as_slice(), "{link} -> {to}, {made}");
        }
    }

    #[test]
    fn b12_a_directory_with_many_names_is_asked_for_each() {
        let root = std::env::temp_dir().join(format!("further-many-{}", std::process::id()));
        let names = [".mcp.json", ".envrc", ".vscode", "1", "2"];
        fs::create_dir_all(root.join("a")).unwrap();
        names.iter().for_each(|name| fs::write(root.join("a").join(name), "").unwrap());
        let missing = Missing { tree: root.clone(), ..Missing::default() };
        let watch = Watch::start(missing, Keeper { run: "RUN".into(), state: None }).unwrap();
        for most in 0..6 {
            let found = watch.first_parts_within(most, Path::new("a")).unwrap();
            assert!(found.iter().eq([".envrc", ".mcp.json", ".vscode"]), "{most}: {found:?}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn l10_what_a_live_run_has_made_further_down_is_known() {
        let it = FurtherDown { dir: "a".into(), known: vec![".idea".into()] };
        let open = [".vscode".to_owned()];
        for (name, is_missing) in [
            (".mcp.json", true),
            ("mise.x.toml", true),
            (".config/mise.x.toml", true),
            (".kiro/hooks", true),
            (".kiro", false),
            (".idea", false),
            (".vscode", false),
            (".mcp.json/x", false),
            ("x", false),
        ] {
            assert_eq!(it.has_missing(Path::new(name), &open), is_missing, "{name}");
        }
    }
}

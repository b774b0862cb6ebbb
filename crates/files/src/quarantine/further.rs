//! Protected names in directories further down in a tree: moved aside at the end of the run, where the stage has made them.
//!
//! There may be thousands of such directories, and a hundred names for each. So a directory is listed once, and only what begins a name
//! of the table is looked at. At the end it is listed again only where something in it has changed. What the stage makes in a directory of
//! its own is its own.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, lstat};
use nix::sys::statfs::statfs;
use serde::{Deserialize, Serialize};

use super::descriptors::{FileId, entries, id_of, open_beneath, retry_opened};
use super::pointers::Pointer;
use super::repository::MOVED;
use super::{Leftover, MAX_ENTRIES, Pattern, Watch};
use crate::listing::TIMED;
use crate::names::{is_absent, open_plain};
use crate::protected::{GIT_LINK, first_parts, is_first_part, is_pattern, matches_pattern, names_from};

/// A directory further down in a tree, that was there at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherDown {
    /// Its place below the tree.
    pub dir: String,
    /// Entries that begin protected names and were there at the start: what is to be watched in them is watched by itself.
    pub known: Vec<String>,
    /// Its state before it was listed; `None` where it is to be listed again in any case.
    pub state: Option<DirState>,
}

/// The identity of a directory, and the time of the last change of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirState {
    id: FileId,
    changed: (i64, i64),
}

impl DirState {
    /// Reads the state of a directory that is listed next. `None` where a change of its entries might leave its time as it is: on file
    /// systems that are not known to set it, and where it has changed just now.
    #[must_use]
    pub fn read(dir: &Path) -> Option<Self> {
        let stat = lstat(dir).ok()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
        let is_timed = TIMED.contains(&statfs(dir).ok()?.filesystem_type());
        (is_timed && is_settled(stat.st_ctime, now)).then_some(Self::from_stat(&stat))
    }

    fn from_stat(stat: &FileStat) -> Self {
        Self { id: id_of(stat), changed: (stat.st_ctime, stat.st_ctime_nsec) }
    }
}

/// Whether a change after `now` has another time than the last one, both in seconds. The time is that of the clock's last tick, and in old
/// ext file systems a whole second.
fn is_settled(changed: i64, now: u64) -> bool {
    u64::try_from(changed).is_ok_and(|changed| changed.saturating_add(2) < now)
}

/// Entries of a directory that are listed. In one that holds more, each name of the table is asked for.
const LISTED: usize = 1024;

/// Lists the entries of a directory that protected names begin with, and `.git`, by a path without links. One that cannot be listed is asked for each.
#[must_use]
pub fn first_parts_in(dir: &Path) -> Vec<String> {
    let Ok(dir) = open_plain(dir) else { return Vec::new() };
    list_first_parts(dir.as_fd(), LISTED).unwrap_or_else(|_| ask_for_first_parts(dir.as_fd()))
}

fn list_first_parts(dir: BorrowedFd<'_>, most: usize) -> nix::Result<Vec<String>> {
    let mut listed = entries(dir)?;
    let names = listed.by_ref().take(most).flatten().filter_map(|(name, _)| name.into_string().ok());
    let names = names.filter(|name| is_first_part(name) || name == GIT_LINK).collect();
    Ok(if listed.next().is_some() { ask_for_first_parts(dir) } else { names })
}

/// Asks a directory for each name of the table. A pattern cannot be asked for and stands for what it matches.
fn ask_for_first_parts(dir: BorrowedFd<'_>) -> Vec<String> {
    let is_there = |name: &&str| fstatat(dir, *name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
    let names = first_parts().chain([GIT_LINK]);
    names.filter(|name| is_pattern(name) || is_there(name)).map(str::to_owned).collect()
}

/// The targets of one tree's links. A stage can make thousands of links to one directory, or to as many directories.
struct LinkEnds {
    /// Whether names of the table are in a directory.
    known: HashMap<FileId, bool>,
    /// Entries of such directories that can still be listed.
    entries: usize,
    /// When nothing more is looked at.
    until: Instant,
}

impl Default for LinkEnds {
    fn default() -> Self {
        Self { known: HashMap::new(), entries: MAX_ENTRIES, until: Instant::now() + LOOK }
    }
}

/// The longest time that the links of one tree are followed.
const LOOK: Duration = Duration::from_secs(1);

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
    /// Moves aside what has appeared further down, until that is over.
    pub(super) fn settle_further(&self, is_over: &dyn Fn() -> bool) -> Vec<Leftover> {
        let (mut found, mut ends) = (Vec::new(), LinkEnds::default());
        for it in &self.list.further {
            if is_over() {
                break;
            }
            let dir = Path::new(&it.dir);
            match self.new_first_parts(it) {
                Ok(entries) => entries.iter().for_each(|entry| self.settle_from(it, entry, &mut found)),
                // Gone, or a file by now.
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(Errno::EACCES) if self.is_closed(dir) => {}
                Err(Errno::ELOOP) if !self.leads_to_names(dir, &mut ends) => {}
                Err(Errno::ELOOP) => found.extend(self.link_on_the_way(Path::new(&it.dir))),
                Err(errno) => {
                    found.push(Leftover { path: self.list.tree.join(dir), moved: Err(errno.into()) });
                }
            }
        }
        found
    }

    /// Moves aside the names that an entry of a directory begins.
    fn settle_from(&self, it: &FurtherDown, entry: &str, found: &mut Vec<Leftover>) {
        let dir = Path::new(&it.dir);
        if entry == GIT_LINK {
            found.extend(self.note_repository(&format!("{}/{GIT_LINK}", it.dir), Pointer::WatchList));
        }
        for (name, obeyed) in names_from(entry) {
            // A pattern that is a name's first part stands for the entry.
            let name = if name.contains('/') { name } else { entry };
            let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
            if includes(&self.list.let_through, name) {
                continue;
            }
            let path = dir.join(name);
            if found.len() >= MOVED {
                let why = "too many others were moved before it";
                found.push(Leftover { path: self.list.tree.join(path), moved: Err(io::Error::other(why)) });
                return;
            }
            if is_pattern(last) {
                if let Some(dir) = dir.join(above).to_str() {
                    let known = if above.is_empty() { it.known.clone() } else { Vec::new() };
                    let (dir, name) = (dir.to_owned(), last.to_owned());
                    found.extend(self.settle_pattern(&Pattern { dir, name, known, obeyed }));
                }
            } else if let Some(path) = path.to_str() {
                found.extend(self.settle_name(path));
            }
        }
    }

    /// Whether a link that replaces a directory, or one above it, leads the host to names of the table. Also true if the directory
    /// cannot be read or is beyond the bounds of these searches.
    fn leads_to_names(&self, dir: &Path, ends: &mut LinkEnds) -> bool {
        if Instant::now() > ends.until {
            return true;
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = match open(&self.list.tree.join(dir), flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(errno) => return !is_absent(&errno.into()),
        };
        let Ok(id) = fstat(&dir).map(|stat| id_of(&stat)) else { return true };
        if let Some(known) = ends.known.get(&id) {
            return *known;
        }
        let is_open = |name: &str| includes(&self.list.let_through, name);
        let has_name = |name: &OsStr| {
            name.to_str().is_some_and(|entry| names_from(entry).any(|(name, _)| !is_open(name)))
        };
        let leads = entries(dir.as_fd()).map_or(true, |mut listed| {
            listed.any(|entry| {
                let Some(left) = ends.entries.checked_sub(1) else { return true };
                ends.entries = left;
                entry.is_ok_and(|(name, _)| has_name(&name))
            })
        });
        ends.known.insert(id, leads);
        leads
    }

    /// Lists the entries that protected names begin with and that were not there at the start.
    fn new_first_parts(&self, it: &FurtherDown) -> nix::Result<Vec<String>> {
        let dir = open_beneath(&self.tree, Path::new(&it.dir))?;
        if it.state.is_some() && it.state == fstat(&dir).ok().as_ref().map(DirState::from_stat) {
            return Ok(Vec::new());
        }
        let mut entries = retry_opened(dir.as_fd(), || list_first_parts(dir.as_fd(), LISTED))?;
        entries.retain(|entry| !includes(&it.known, entry));
        // The lines about moved entries have the same order each time.
        entries.sort();
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::{StateOfRun, WatchList, finish, finish_until};
    use super::*;

    /// The state as if it had not changed just now.
    fn state_of(dir: &Path) -> Option<DirState> {
        lstat(dir).ok().as_ref().map(DirState::from_stat)
    }

    /// Waits until the clock has ticked, so that the next change has another time.
    fn tick(place: &Path) {
        let time = || {
            fs::write(place, "").unwrap();
            lstat(place).map(|stat| (stat.st_ctime, stat.st_ctime_nsec)).unwrap()
        };
        let before = time();
        while time() == before {}
        fs::remove_file(place).unwrap();
    }

    fn settle(name: &str, known: &[&str], let_through: &[&str], make: impl Fn(&Path)) -> Vec<String> {
        let root = std::env::temp_dir().join(format!("further-{name}-{}", std::process::id()));
        let (tree, state) = (root.join("tree"), root.join("state"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        known.iter().for_each(|name| fs::create_dir(tree.join("a/b").join(name)).unwrap());
        let strings = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let further = vec![
            FurtherDown { dir: "a".into(), known: Vec::new(), state: state_of(&tree.join("a")) },
            FurtherDown { dir: "a/b".into(), known: strings(known), state: state_of(&tree.join("a/b")) },
        ];
        let let_through = strings(let_through);
        let list = WatchList { tree: tree.clone(), further, let_through, ..WatchList::default() };
        let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: Some(state) }).unwrap();
        tick(&root.join("tick"));
        make(&tree);
        let found = finish([&watch]);
        // A link that leads out of the tree is told, and stays.
        let moved = found.named.iter().filter(|it| !it.path.is_symlink()).map(|it| {
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

    /// A link that replaces a directory, or one above it, leads the host to what the stage has made. A link that leads to no such
    /// name stays.
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

    /// Thousands of links can lead to one directory, and along thousands of others: what they lead to is listed once, and so much in all.
    #[test]
    fn l18_lists_each_linked_directory_once_and_bounds_the_total() {
        let root = std::env::temp_dir().join(format!("further-ends-{}", std::process::id()));
        for (dir, count) in [("one", 3), ("two", 2), ("three", 3)] {
            fs::create_dir_all(root.join(dir)).unwrap();
            (0..count).for_each(|n| fs::write(root.join(dir).join(format!("{n}")), "").unwrap());
        }
        let list = WatchList { tree: root.clone(), ..WatchList::default() };
        let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
        let mut ends = LinkEnds { entries: 7, ..LinkEnds::default() };
        let mut look = |dir: &str| (watch.leads_to_names(Path::new(dir), &mut ends), ends.entries);
        // A link to one of them is what is asked for.
        for (dir, looked) in [
            ("one", (false, 4)),
            ("one", (false, 4)),
            ("two", (false, 2)),
            ("three", (true, 0)),
            ("three", (true, 0)),
            ("one", (false, 0)),
            ("nowhere", (false, 0)),
        ] {
            assert_eq!(look(dir), looked, "{dir}");
        }
        ends.until = Instant::now();
        assert!(watch.leads_to_names(Path::new("one"), &mut ends), "its time is over");
        // A look that is over leaves all in its place, and says so.
        let further = vec![FurtherDown { dir: "one".into(), known: Vec::new(), state: None }];
        let list = WatchList { tree: root.clone(), further, ..WatchList::default() };
        let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
        fs::write(root.join("one/.envrc"), "evil").unwrap();
        let found = finish_until([&watch], |_| Ok(false), &|| true);
        assert!(found.is_cut && found.named.is_empty() && root.join("one/.envrc").exists(), "{found:?}");
        let found = finish([&watch]);
        assert!(!found.is_cut && !root.join("one/.envrc").exists(), "{found:?}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn b12_a_directory_with_many_names_is_asked_for_each() {
        let root = std::env::temp_dir().join(format!("further-many-{}", std::process::id()));
        let names = [".mcp.json", ".envrc", ".vscode", "1", "2"];
        fs::create_dir_all(&root).unwrap();
        names.iter().for_each(|name| fs::write(root.join(name), "").unwrap());
        let dir = open_plain(&root).unwrap();
        for most in 0..6 {
            let mut found = list_first_parts(dir.as_fd(), most).unwrap();
            found.retain(|name| !is_pattern(name) || most == 5);
            found.sort();
            assert_eq!(found, [".envrc", ".mcp.json", ".vscode"], "{most}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    /// Names that a pattern matches are moved there too, unless they existed at the start.
    #[test]
    fn b12_a_pattern_in_a_directory_with_many_names() {
        let fill = |dir: &Path| (0..LISTED).for_each(|n| fs::write(dir.join(n.to_string()), "").unwrap());
        let made = |tree: &Path| {
            fill(&tree.join("a/b"));
            fs::write(tree.join("a/b/mise.new.toml"), "evil").unwrap();
        };
        assert_eq!(settle("full", &["mise.old.toml"], &[], made), ["a/b/mise.new.toml"]);
        // Where it was full at the start nobody could ask, and the pattern is watched by itself.
        assert!(settle("was-full", &["mise.*.toml"], &[], made).is_empty());
    }

    /// A directory is listed again where an entry of it was made, removed or renamed, or where it is another one.
    #[test]
    fn b12_a_directory_that_has_changed_is_listed_again() {
        let root = std::env::temp_dir().join(format!("further-changed-{}", std::process::id()));
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/.envrc"), "of the caller").unwrap();
        let (state, known) = (state_of(&root.join("a")), Vec::new());
        let list = WatchList { tree: root.clone(), ..WatchList::default() };
        let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
        let listed = |state| {
            watch
                .new_first_parts(&FurtherDown { dir: "a".into(), known: known.clone(), state })
                .unwrap()
                .len()
        };
        assert_eq!((listed(state), listed(None)), (0, 1), "what was there is not looked for again");
        let changes: [fn(&Path); 4] = [
            |dir| fs::write(dir.join("new"), "").unwrap(),
            |dir| fs::rename(dir.join("new"), dir.join("other")).unwrap(),
            |dir| fs::remove_file(dir.join("other")).unwrap(),
            |dir| {
                fs::rename(dir, dir.with_extension("old")).unwrap();
                fs::create_dir(dir).unwrap();
                fs::write(dir.join(".envrc"), "evil").unwrap();
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            let state = state_of(&root.join("a"));
            tick(&root.join("tick"));
            change(&root.join("a"));
            assert_eq!(listed(state), 1, "{number}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn b12_the_state_of_a_directory_that_just_changed_is_unknown() {
        for (changed, now, expected) in
            [(100, 103, true), (100, 102, false), (100, 100, false), (100, 50, false), (-1, 5, false)]
        {
            assert_eq!(is_settled(changed, now), expected, "{changed}, {now}");
        }
        let root = std::env::temp_dir().join(format!("further-settled-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        assert_eq!(DirState::read(&root), None);
        fs::remove_dir_all(root).unwrap();
        assert_eq!(DirState::read(Path::new("/proc/self")), None, "a file system without such times");
    }

    #[test]
    fn l10_knows_which_names_further_down_a_live_run_has_made() {
        let it = FurtherDown { dir: "a".into(), known: vec![".idea".into()], state: None };
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

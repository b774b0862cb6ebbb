//! Entries that are still in a quarantine: found by the manifests, restored, and deleted.
//!
//! A manifest names a tree by its path. What is there now is entered without following a link, and only where its quarantine is
//! the one that the manifest names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::descriptors::{entries, id_of, kind, open_above, open_at, open_file, retry_opened};
use super::store::{
    DirectoryId, ItemId, MANIFESTS, RUNS, forget_made, list, made_directories, manifest_of, open_item,
    rename_into,
};
use super::{Item, QUARANTINE, StateOfRun, unsettled_runs};
use crate::names::open_plain;
use crate::removal::remove_tree;

/// Levels of quarantines in one another that are searched.
const NESTED: usize = 4;

/// The file in a quarantine that has git pass over it.
const IGNORE: &str = ".gitignore";

/// The kind of an entry that was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file of so many bytes.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A socket, a named pipe or a device.
    Other,
}

/// The present state of an entry that a manifest names.
#[derive(Debug)]
pub enum Standing {
    /// In the quarantine.
    Here(Kind),
    /// No longer there: restored, or removed.
    Gone,
    /// The tree or its quarantine is not where it was.
    Away(io::Error),
}

/// A run and the entries that it set aside.
#[derive(Debug)]
pub struct SetAside {
    /// The run.
    pub run: String,
    /// The entries of its manifest, outer names first.
    pub items: Vec<(Item, Standing)>,
}

impl Item {
    /// Returns its earlier path on the host.
    #[must_use]
    pub fn old_path(&self) -> PathBuf {
        self.tree.join(&self.from)
    }

    /// Returns its path in the quarantine on the host.
    #[must_use]
    pub fn new_path(&self) -> PathBuf {
        self.tree.join(&self.to)
    }

    /// The name of the run's directory in [`RUNS`].
    fn run_directory(&self, run: &str) -> io::Result<&OsStr> {
        let odd =
            || io::Error::new(io::ErrorKind::InvalidData, "its manifest names a place that no run uses");
        let below = self.to.strip_prefix(Path::new(QUARANTINE).join(RUNS)).map_err(|_| odd())?;
        let mut parts = below.components();
        let Some(Component::Normal(inner)) = parts.next() else { return Err(odd()) };
        let is_the_runs = inner.to_str().and_then(|it| it.strip_prefix(run)).is_some_and(|rest| {
            // A number follows where the name was taken.
            rest.is_empty() || rest.starts_with('.')
        });
        let is_plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        let is_good = is_the_runs && is_plain(&self.to) && is_plain(&self.from);
        if is_good && parts.next().is_some() && self.from.file_name().is_some() {
            Ok(inner)
        } else {
            Err(odd())
        }
    }
}

/// A tree and its quarantine, both open.
struct OpenQuarantine {
    tree: File,
    dir: File,
}

impl OpenQuarantine {
    /// Opens them, if the quarantine is the one that is named, or has that one in it. A run of another user, who may not move it elsewhere,
    /// has given it a name beside that.
    fn open(tree: &Path, directory: DirectoryId) -> io::Result<Self> {
        let tree = File::from(open_plain(tree)?);
        let there = retry_opened(tree.as_fd(), || open_at(tree.as_fd(), Path::new(QUARANTINE)));
        let mut outer: Vec<OwnedFd> = match there {
            Err(errno) if errno != Errno::ENOENT => return Err(errno.into()),
            there => there.into_iter().chain(renamed(&tree)?).collect(),
        };
        if outer.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        for _ in 0..NESTED {
            for dir in &outer {
                if DirectoryId::read(dir.as_fd())? == directory {
                    return Ok(Self { tree, dir: File::from(dir.try_clone()?) });
                }
            }
            outer = outer.iter().flat_map(nested).take(MAX_RUNS).collect();
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "something else has its name now"))
    }

    fn for_item(item: &Item) -> io::Result<Self> {
        Self::open(&item.tree, item.directory)
    }

    /// The directory that something was put into, and its name there.
    fn entry<'a>(&self, item: &'a Item) -> io::Result<(OwnedFd, &'a OsStr)> {
        let below = item.to.strip_prefix(QUARANTINE).map_err(io::Error::other)?;
        Ok((open_above(&self.dir, below)?, below.file_name().unwrap_or_default()))
    }

    fn standing(&self, item: &Item) -> Standing {
        let looked = self.entry(item).and_then(|(dir, last)| {
            Ok(retry_opened(dir.as_fd(), || fstatat(&dir, last, AtFlags::AT_SYMLINK_NOFOLLOW))?)
        });
        match looked {
            Ok(stat) => Standing::Here(match kind(&stat) {
                SFlag::S_IFREG => Kind::File(u64::try_from(stat.st_size).unwrap_or(0)),
                SFlag::S_IFDIR => Kind::Directory,
                SFlag::S_IFLNK => Kind::Link,
                _ => Kind::Other,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Standing::Gone,
            Err(error) => Standing::Away(error),
        }
    }
}

/// Opens directories of a tree that had the name of the quarantine before.
fn renamed(tree: &File) -> io::Result<Vec<OwnedFd>> {
    let names = retry_opened(tree.as_fd(), || entries(tree.as_fd()))?.flatten().take(MAX_NAMES);
    let prefix = format!("{QUARANTINE}{QUARANTINE}.");
    let is_one = |name: &OsStr| name.as_encoded_bytes().starts_with(prefix.as_bytes());
    let names = names.map(|(name, _)| name).filter(|name| is_one(name)).take(MAX_RUNS);
    Ok(names.filter_map(|name| open_at(tree.as_fd(), Path::new(&name)).ok()).collect())
}

/// Opens the quarantines in one: a run with another state directory does not know it, and moves it aside like something of a stage's.
fn nested(dir: &OwnedFd) -> Vec<OwnedFd> {
    let Ok(dir) = retry_opened(dir.as_fd(), || open_at(dir.as_fd(), Path::new(RUNS))) else {
        return Vec::new();
    };
    let Ok(runs) = retry_opened(dir.as_fd(), || entries(dir.as_fd())) else { return Vec::new() };
    let inner = |(run, _): (OsString, _)| {
        let path = Path::new(&run).join(QUARANTINE);
        retry_opened(dir.as_fd(), || open_at(dir.as_fd(), &path)).ok()
    };
    runs.flatten().take(MAX_RUNS).filter_map(inner).collect()
}

/// Lists what all runs of a user have set aside.
#[must_use]
pub fn set_aside(state: &Path) -> Vec<SetAside> {
    let runs = list(&state.join(MANIFESTS)).into_iter();
    runs.map(|(run, items)| stand(run, items)).collect()
}

/// Names of one tree among which those of quarantines are searched for.
const MAX_NAMES: usize = 1 << 16;

/// Runs of one tree that are asked what they have set aside.
const MAX_RUNS: usize = 256;

/// Lists what runs have set aside in a tree, where nothing has its name since: the old places, by the run. Those of runs that go on or
/// are not settled are left out.
#[must_use]
pub fn absent(state: &Path, tree: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    // The directory names the runs, so that what a user has in other places is not read.
    let names = fs::read_dir(tree.join(QUARANTINE).join(RUNS));
    let names = names.into_iter().flatten().flatten().take(MAX_RUNS);
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let runs =
        names.filter_map(|name| name.split('.').next().filter(|run| !run.is_empty()).map(str::to_owned));
    let mut absent: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for run in runs.collect::<BTreeSet<_>>() {
        let items =
            manifest_of(&state.join(MANIFESTS), &run).into_iter().filter(|item| item.tree == tree).collect();
        let is_missing = |path: &PathBuf| {
            fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let here = stand(run.clone(), items).items.into_iter();
        let here = here.filter(|(_, standing)| matches!(standing, Standing::Here(_)));
        let places: Vec<_> = here.map(|(item, _)| item.old_path()).filter(is_missing).collect();
        if !places.is_empty() {
            absent.insert(run, places);
        }
    }
    if !absent.is_empty() {
        unsettled_runs(state).iter().for_each(|open| drop(absent.remove(&open.run)));
    }
    absent
}

/// Finds where the things of a run are.
fn stand(run: String, mut items: Vec<Item>) -> SetAside {
    // The order in which they were set aside stays among those of one place.
    items.sort_by(|one, other| (&one.tree, &one.from).cmp(&(&other.tree, &other.from)));
    let mut places: HashMap<(PathBuf, DirectoryId), Rc<io::Result<OpenQuarantine>>> = HashMap::new();
    let items = items.into_iter().map(|item| {
        let quarantine = places.entry((item.tree.clone(), item.directory));
        let quarantine = Rc::clone(quarantine.or_insert_with(|| Rc::new(OpenQuarantine::for_item(&item))));
        let standing = match (item.run_directory(&run), quarantine.as_ref()) {
            (Err(error), _) => Standing::Away(error),
            (Ok(_), Ok(quarantine)) => quarantine.standing(&item),
            (Ok(_), Err(error)) => Standing::Away(io::Error::new(error.kind(), error.to_string())),
        };
        (item, standing)
    });
    let mut items: Vec<(Item, Standing)> = items.collect();
    // A directory that was given its place back leaves a place in the quarantine, where exeat makes one for what was moved from in it.
    // Nothing is put into what was set aside.
    let parents: BTreeSet<(PathBuf, PathBuf)> = items
        .iter()
        .flat_map(|(item, _)| {
            item.to.ancestors().skip(1).map(|above| (item.tree.clone(), above.to_path_buf()))
        })
        .collect();
    for (item, standing) in &mut items {
        if parents.contains(&(item.tree.clone(), item.to.clone())) {
            *standing = Standing::Gone;
        }
    }
    // The last one counts of two at one place: the first one was given back before.
    items.reverse();
    let mut seen = BTreeSet::new();
    items.retain(|(item, _)| seen.insert((item.tree.clone(), item.to.clone())));
    items.reverse();
    SetAside { run, items }
}

const CHANGED: &str = "it is not known to be what was set aside, as it may have been replaced: look at it, and move it yourself if it is yours";

/// Bytes of a file that is compared with the one in its place.
const COMPARED: usize = 1 << 20;

/// Moves an entry back to its place, by one rename. Deletes it if its place has a file with the same content.
///
/// # Errors
/// Returns `InvalidData` for an entry that is not the one set aside, `AlreadyExists` if its place is taken, and any other error that keeps
/// it in the quarantine. Nothing has changed then.
pub fn restore(run: &str, item: &Item) -> io::Result<()> {
    item.run_directory(run)?;
    let quarantine = OpenQuarantine::for_item(item)?;
    let (dir, last) = quarantine.entry(item)?;
    let changed = || io::Error::new(io::ErrorKind::InvalidData, CHANGED);
    let opened = retry_opened(dir.as_fd(), || open_item(dir.as_fd(), last))?;
    if item.what != Some(ItemId::read(&opened)?) {
        return Err(changed());
    }
    let above = open_above(&quarantine.tree, &item.from)?;
    let name = item.from.file_name().unwrap_or_default();
    let moved = retry_opened(above.as_fd(), || {
        retry_opened(dir.as_fd(), || rename_into(dir.as_fd(), last, above.as_fd(), name))
    });
    if moved == Err(Errno::EEXIST)
        && is_same_file((dir.as_fd(), last), (above.as_fd(), name)).unwrap_or(false)
    {
        return Ok(retry_opened(dir.as_fd(), || unlinkat(&dir, last, UnlinkatFlags::NoRemoveDir))?);
    }
    moved?;
    // A live stage may have put something else there since it was looked at, which is still open.
    let is_same = |stat: FileStat| fstat(&opened).is_ok_and(|opened| id_of(&opened) == id_of(&stat));
    if retry_opened(above.as_fd(), || fstatat(&above, name, AtFlags::AT_SYMLINK_NOFOLLOW)).is_ok_and(is_same)
    {
        return Ok(());
    }
    let back = || retry_opened(dir.as_fd(), || rename_into(above.as_fd(), name, dir.as_fd(), last));
    retry_opened(above.as_fd(), back)?;
    Err(changed())
}

/// Returns whether two names have files with the same content and the same permissions.
fn is_same_file(one: (BorrowedFd<'_>, &OsStr), other: (BorrowedFd<'_>, &OsStr)) -> io::Result<bool> {
    let read = |(dir, name)| {
        let file = open_file(dir, name)?;
        let mut content = Vec::new();
        let permissions = file.metadata()?.permissions();
        file.take(COMPARED as u64).read_to_end(&mut content)?;
        Ok::<_, io::Error>((content, permissions))
    };
    let (one, other) = (read(one)?, read(other)?);
    Ok(one == other && one.0.len() < COMPARED)
}

/// Deletes all that a run has set aside. Returns what could not be deleted, by the tree, and why.
pub fn delete(aside: &SetAside) -> Vec<(PathBuf, io::Error)> {
    let mut failed = Vec::new();
    for (tree, directory, name) in run_directories(aside) {
        let deleted = OpenQuarantine::open(&tree, directory).and_then(|quarantine| {
            let runs =
                retry_opened(quarantine.dir.as_fd(), || open_at(quarantine.dir.as_fd(), Path::new(RUNS)))?;
            remove_tree(runs.as_fd(), &name, None)
        });
        match deleted {
            Err(error) if error.kind() != io::ErrorKind::NotFound => failed.push((tree, error)),
            _ => {}
        }
    }
    failed
}

/// The run's directories: trees, their quarantines, and names in them.
fn run_directories(aside: &SetAside) -> BTreeSet<(PathBuf, DirectoryId, OsString)> {
    let of = |item: &Item| {
        let name = item.run_directory(&aside.run).ok()?;
        Some((item.tree.clone(), item.directory, name.to_owned()))
    };
    aside.items.iter().filter_map(|(item, _)| of(item)).collect()
}

/// Removes what is empty after things of a run were restored or deleted: directories of exeat's, and at last the manifest.
pub fn tidy(state: &Path, aside: SetAside) {
    // Whoever makes such a directory holds this lock.
    let state_of_run = StateOfRun { run: aside.run.clone(), dir: Some(state.to_path_buf()) };
    let Ok(_lock) = state_of_run.lock() else { return };
    let SetAside { run, items } = aside;
    let items: Vec<Item> = items.into_iter().map(|(item, _)| item).collect();
    for item in &items {
        if let (Ok(_), Ok(quarantine)) = (item.run_directory(&run), OpenQuarantine::for_item(item)) {
            remove_empty(&quarantine, item);
        }
    }
    let now = stand(run.clone(), items);
    if now.items.iter().all(|(_, standing)| matches!(standing, Standing::Gone)) {
        let _ = fs::remove_file(state.join(MANIFESTS).join(format!("{run}.jsonl")));
    }
}

/// Removes each quarantine of a user in which nothing is left, but for those that a run may use which goes on or is not settled.
pub fn remove_empty_directories(state: &Path) {
    // Whoever makes such a directory holds this lock, and has written down its trees before.
    let state_of_run = StateOfRun { run: String::new(), dir: Some(state.to_path_buf()) };
    let Ok(_lock) = state_of_run.lock() else { return };
    let open: Vec<PathBuf> = unsettled_runs(state).into_iter().flat_map(|open| open.trees).collect();
    // A run shows what lies in its tree.
    let is_used = |tree: &Path| open.iter().any(|used| tree.starts_with(used) || used.starts_with(tree));
    let manifests = state.join(MANIFESTS);
    for (tree, directory) in made_directories(&manifests) {
        if !is_used(&tree)
            && let Ok(quarantine) = OpenQuarantine::open(&tree, directory)
            && remove_if_empty(&quarantine)
        {
            forget_made(&manifests, directory);
        }
    }
}

/// Removes the empty directories above something that is gone, up to the run's.
fn remove_empty(quarantine: &OpenQuarantine, item: &Item) {
    let Ok(below) = item.to.strip_prefix(QUARANTINE) else { return };
    for dir in below.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()) {
        let (Ok(above), Some(name)) = (open_above(&quarantine.dir, dir), dir.file_name()) else { continue };
        match unlinkat(&above, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            // Something is left in it.
            Err(_) => return,
        }
    }
}

/// Removes a quarantine in which nothing is left, and says whether it is gone.
fn remove_if_empty(quarantine: &OpenQuarantine) -> bool {
    let _ =
        retry_opened(quarantine.dir.as_fd(), || unlinkat(&quarantine.dir, RUNS, UnlinkatFlags::RemoveDir));
    let Ok(mut entries) = entries(quarantine.dir.as_fd()) else { return false };
    if !entries.all(|entry| entry.is_ok_and(|(name, _)| name == IGNORE)) {
        return false;
    }
    let _ = unlinkat(&quarantine.dir, IGNORE, UnlinkatFlags::NoRemoveDir);
    retry_opened(quarantine.tree.as_fd(), || unlinkat(&quarantine.tree, QUARANTINE, UnlinkatFlags::RemoveDir))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::super::descriptors::rename_aside;
    use super::super::{Journal, MissingName, Watch, WatchList, directories, finish};
    use super::*;
    use crate::protected::Obeyed;

    struct Scene(PathBuf);

    impl Scene {
        fn new(name: &str) -> Self {
            let scene = Self(std::env::temp_dir().join(format!("kept-{name}-{}", std::process::id())));
            fs::create_dir_all(scene.tree()).unwrap();
            scene
        }

        fn tree(&self) -> PathBuf {
            self.0.join("tree")
        }

        fn quarantine(&self) -> PathBuf {
            self.tree().join(QUARANTINE)
        }

        fn state(&self) -> PathBuf {
            self.0.join("state")
        }

        /// A run whose stage has made `.envrc` and a directory `.vscode`.
        fn run(&self, run: &str) -> SetAside {
            let names = [".envrc", ".vscode"];
            let names = names.map(|name| MissingName { name: name.into(), obeyed: Obeyed::AtOnce });
            let list = WatchList { tree: self.tree(), names: names.into(), ..WatchList::default() };
            let watch = Watch::start(list, StateOfRun { run: run.into(), dir: Some(self.state()) });
            fs::write(self.tree().join(".envrc"), "evil").unwrap();
            fs::create_dir(self.tree().join(".vscode")).unwrap();
            assert_eq!(finish(&[watch.unwrap()]).named.len(), 2);
            self.aside(run).unwrap()
        }

        fn aside(&self, run: &str) -> Option<SetAside> {
            set_aside(&self.state()).into_iter().find(|aside| aside.run == run)
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// A live stage reaches the quarantine.
    #[test]
    fn l08_nothing_is_restored_that_was_replaced_in_the_quarantine() {
        let scene = Scene::new("replaced");
        let aside = scene.run("RUN");
        for (item, _) in &aside.items {
            fs::rename(item.new_path(), scene.0.join("theirs")).unwrap();
            fs::create_dir(item.new_path()).unwrap();
            assert_eq!(restore("RUN", item).unwrap_err().kind(), io::ErrorKind::InvalidData);
            assert!(item.new_path().exists() && !item.old_path().exists());
            fs::remove_dir(item.new_path()).unwrap();
            fs::rename(scene.0.join("theirs"), item.new_path()).unwrap();
            restore("RUN", item).unwrap();
        }
    }

    #[test]
    fn l08_deletes_a_kept_file_whose_place_has_the_same_content() {
        let scene = Scene::new("same");
        let aside = scene.run("RUN");
        let (item, _) = aside.items.iter().find(|(item, _)| item.from == Path::new(".envrc")).unwrap();
        fs::write(item.old_path(), "other").unwrap();
        assert_eq!(restore("RUN", item).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(item.new_path().exists());
        fs::copy(item.new_path(), item.old_path()).unwrap();
        restore("RUN", item).unwrap();
        assert!(item.old_path().exists() && !item.new_path().exists());
    }

    /// Another user, or the same one with another state directory, runs in the tree.
    #[test]
    fn l08_names_are_restored_from_a_quarantine_that_another_run_moved() {
        let scene = Scene::new("moved");
        scene.run("ONE");
        for run in ["TWO", "THREE"] {
            let names = vec![MissingName { name: ".npmrc".into(), obeyed: Obeyed::AtOnce }];
            let list = WatchList { tree: scene.tree(), names, ..WatchList::default() };
            let state = scene.0.join(run);
            let watch = Watch::start(list, StateOfRun { run: run.into(), dir: Some(state) });
            fs::write(scene.tree().join(".npmrc"), "evil").unwrap();
            assert_eq!(finish(&[watch.unwrap()]).named.len(), 2, "the name, and the quarantine");
        }
        let aside = scene.aside("ONE").unwrap();
        assert_eq!(aside.items.len(), 2);
        for (item, standing) in &aside.items {
            assert!(matches!(standing, Standing::Here(_)), "{standing:?}");
            restore("ONE", item).unwrap();
            assert!(item.old_path().exists());
        }
        tidy(&scene.state(), aside);
        assert!(scene.aside("ONE").is_none(), "nothing of it is left");
    }

    /// The user may not move the directory of another one out of the tree's, and gives it a new name there.
    #[test]
    fn l08_names_are_restored_from_a_quarantine_that_another_user_s_run_renamed() {
        let scene = Scene::new("renamed");
        scene.run("ONE");
        let there = fs::File::open(scene.tree()).unwrap();
        rename_aside(there.as_fd(), OsStr::new(QUARANTINE)).unwrap();
        for (item, standing) in &scene.aside("ONE").unwrap().items {
            assert!(matches!(standing, Standing::Here(_)), "{standing:?}");
            restore("ONE", item).unwrap();
            assert!(item.old_path().exists());
        }
    }

    /// A file system gives the inode of what is gone to something new.
    #[test]
    fn l08_restore_refuses_an_entry_with_a_reused_inode() {
        type Make<'a> = (&'a str, &'a dyn Fn(&Path));
        let scene = Scene::new("inode");
        let aside = scene.run("RUN");
        let inode = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
        let makes: [Make<'_>; 3] = [
            (".envrc", &|at| fs::write(at, "evil").unwrap()),
            (".envrc", &|at| symlink("x", at).unwrap()),
            (".vscode", &|at| fs::create_dir(at).unwrap()),
        ];
        for (name, make) in makes {
            let (item, _) = aside.items.iter().find(|(item, _)| item.from == Path::new(name)).unwrap();
            let (at, was) = (item.new_path(), inode(&item.new_path()));
            if at.is_dir() { fs::remove_dir(&at) } else { fs::remove_file(&at) }.unwrap();
            // What is made meanwhile stays, so that the inode is given out one day.
            for number in 0..300 {
                make(&at);
                if inode(&at) == was {
                    break;
                }
                fs::rename(&at, scene.0.join(format!("{name}-{number}-{was}"))).unwrap();
            }
            if !at.is_symlink() && !at.exists() {
                eprintln!("not given out again: {name}");
                make(&at);
            }
            assert_eq!(restore("RUN", item).unwrap_err().kind(), io::ErrorKind::InvalidData, "{name}");
            assert!(fs::symlink_metadata(&at).is_ok() && fs::symlink_metadata(item.old_path()).is_err());
        }
    }

    #[test]
    fn l08_an_odd_manifest_and_a_link_at_the_tree_lead_nowhere() {
        let scene = Scene::new("odd");
        let aside = scene.run("RUN");
        let item = &aside.items[0].0;
        let to = item.to.to_str().unwrap();
        let other = scene.quarantine().join("OTHER");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("x"), "mine").unwrap();
        for (from, to) in [
            ("../out", to),
            ("a/../b", to),
            ("/tmp/out", to),
            ("", to),
            (".envrc", ".exeat-quarantine/git~1/OTHER/x"),
            (".envrc", ".exeat-quarantine/git~1/RUN/../OTHER/x"),
            (".envrc", ".exeat-quarantine/git~1/RUN"),
            (".envrc", "other/RUN/.envrc"),
        ] {
            let odd = Item { from: from.into(), to: to.into(), ..item.clone() };
            let error = restore("RUN", &odd).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{odd:?}");
            let odd = SetAside { run: "RUN".into(), items: vec![(odd, Standing::Gone)] };
            if to != item.to.to_str().unwrap() {
                assert!(delete(&odd).is_empty() && other.join("x").exists() && item.new_path().exists());
            }
        }
        fs::rename(scene.tree(), scene.0.join("away")).unwrap();
        symlink("away", scene.tree()).unwrap();
        assert!(matches!(scene.aside("RUN").unwrap().items[0].1, Standing::Away(_)));
        assert!(restore("RUN", item).is_err() && !delete(&aside).is_empty());
        assert!(item.new_path().exists() && !item.old_path().exists());
        fs::remove_file(scene.tree()).unwrap();
        fs::rename(scene.0.join("away"), scene.tree()).unwrap();
        restore("RUN", item).unwrap();
        assert!(item.old_path().exists() && !item.new_path().exists());
    }

    /// The lists know what is left, and a quarantine that another run has or may use stays.
    #[test]
    fn l08_removes_only_empty_and_unused_quarantine_directories() {
        let scene = Scene::new("tidy");
        let (one, two) = (scene.run("ONE"), scene.run("TWO"));
        restore("ONE", &one.items[0].0).unwrap();
        tidy(&scene.state(), one);
        let one = scene.aside("ONE").unwrap();
        assert!(matches!(one.items[0].1, Standing::Gone));
        assert!(matches!(one.items[1].1, Standing::Here(Kind::Directory)));
        assert!(delete(&one).is_empty());
        tidy(&scene.state(), one);
        remove_empty_directories(&scene.state());
        assert!(scene.aside("ONE").is_none() && !scene.quarantine().join("ONE").exists());
        assert!(scene.quarantine().join(IGNORE).exists() && two.items[0].0.new_path().exists());
        assert!(directories(Some(&scene.state()), []).contains(&scene.quarantine()));
        assert!(delete(&two).is_empty());
        tidy(&scene.state(), two);
        // A run that goes on in the tree, or above it, may use the directory; one in another tree does not.
        for (tree, is_kept) in [(scene.tree(), true), (scene.0.clone(), true), (scene.state(), false)] {
            let list = WatchList { tree, ..WatchList::default() };
            let watch =
                Watch::start(list, StateOfRun { run: "LIVE".into(), dir: Some(scene.state()) }).unwrap();
            let journal = Journal::write(&scene.state(), "LIVE", &[watch]).unwrap();
            remove_empty_directories(&scene.state());
            assert_eq!(scene.quarantine().join(IGNORE).exists(), is_kept);
            journal.remove();
        }
        assert!(scene.aside("TWO").is_none() && !scene.quarantine().exists());
        let known = fs::read_to_string(scene.state().join(MANIFESTS).join("directories")).unwrap();
        assert_eq!(known, "", "another one may get its inode");
    }
}

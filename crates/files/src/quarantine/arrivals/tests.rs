use std::collections::HashSet;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use nix::sys::inotify::InitFlags;

use super::super::exchanged::PLACEHOLDER;
use super::super::{
    Journal, MissingName, QUARANTINE, StateOfRun, WatchList, aside_of, finish, settle_interrupted,
};
use super::*;

fn id_of(path: &Path) -> io::Result<FileId> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// A tree, and a run that watches it.
struct Scene {
    root: PathBuf,
    watches: Arc<[Watch]>,
    arrivals: Arrivals,
    inotify: Inotify,
}

impl Scene {
    fn new(name: &str, before: impl FnOnce(&Path)) -> Self {
        let root = std::env::temp_dir().join(format!("arrivals-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("tree")).unwrap();
        before(&root.join("tree"));
        let obeyed = Obeyed::AtOnce;
        let names =
            [".git/config", ".git/hooks", ".vscode", ".mcp.json", ".kiro/hooks", ".vim/coc.json", ".hg/hgrc"];
        let mut names: Vec<_> =
            names.iter().map(|name| MissingName { name: (*name).into(), obeyed }).collect();
        names.push(MissingName { name: ".npmrc".into(), obeyed: Obeyed::WhenStarted });
        let list = WatchList {
            tree: root.join("tree"),
            names,
            pointers: vec![".git".into()],
            links: vec![("link".into(), "x".into())],
            bare: super::super::REPOSITORY.iter().map(ToString::to_string).collect(),
            repositories: vec![".git".into()],
            ..WatchList::default()
        };
        let state_of_run = StateOfRun { run: "RUN".into(), dir: Some(root.join("state")) };
        let watches: Arc<[Watch]> = Arc::new([Watch::start(list, state_of_run).unwrap()]);
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).unwrap();
        let arrivals = Arrivals::new(Arc::clone(&watches), &HashSet::new(), &inotify).unwrap();
        Self { root, watches, arrivals, inotify }
    }

    fn tree(&self, name: &str) -> PathBuf {
        self.root.join("tree").join(name)
    }

    fn aside(&self, name: &str) -> PathBuf {
        aside_of(&self.tree(""), "RUN").join(name)
    }

    fn write(&self, name: &str) {
        fs::create_dir_all(self.tree(name).parent().unwrap()).unwrap();
        fs::write(self.tree(name), "evil").unwrap();
    }

    /// Settles and returns the names that were taken away. The test replaces the mount by an action.
    fn settle_with(&mut self, mut instead: impl FnMut(&Path, &Path)) -> io::Result<Vec<String>> {
        while let Ok(events) = self.inotify.read_events() {
            events.iter().for_each(|event| self.arrivals.note(event));
        }
        let mut mount = |source: &Path, target: &Path| {
            let ids = (id_of(source)?, id_of(target)?);
            if !target.ends_with(QUARANTINE) {
                instead(source, target);
            }
            Ok(ids)
        };
        let mut found = Vec::new();
        self.arrivals.settle(&self.inotify, &mut mount, &|_| (), &mut found)?;
        let name = |found: &Leftover| {
            assert!(found.moved.is_ok(), "{found:?}");
            found.path.strip_prefix(self.root.join("tree")).unwrap().to_str().unwrap().to_owned()
        };
        Ok(found.iter().map(name).collect())
    }

    fn settle(&mut self) -> Vec<String> {
        self.settle_with(|_, _| ()).unwrap()
    }

    fn finish(&self) -> Vec<PathBuf> {
        finish(self.watches.iter()).named.into_iter().map(|found| found.path).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).unwrap();
    }
}

/// Opens every directory, so that what is in them can be looked at and removed.
fn open_all(dir: &Path) {
    fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            open_all(&entry.path());
        }
    }
}

#[test]
fn l07_a_file_is_moved_at_once_however_it_came() {
    let mut scene = Scene::new("file", |_| ());
    assert!(scene.settle().is_empty());
    let from = scene.tree("from");
    let make: [fn(&Path, &Path); 4] = [
        |_, at| fs::write(at, "evil").unwrap(),
        |from, at| fs::rename(from, at).unwrap(),
        |from, at| fs::hard_link(from, at).unwrap(),
        |from, at| symlink(from, at).unwrap(),
    ];
    for make in make {
        for (name, moved) in [
            (".mcp.json", ".mcp.json"),
            (".kiro/hooks", ".kiro/hooks"),
            (".vscode", ".vscode"),
            (".git", ".git"),
        ] {
            fs::write(&from, "evil").unwrap();
            let at = scene.tree(name);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            // The directory on the way is new, too.
            make(&from, &at);
            assert_eq!(scene.settle(), [moved]);
            assert!(fs::symlink_metadata(&at).is_err());
        }
        let _ = fs::remove_dir_all(scene.tree(".kiro"));
    }
    // A link where a directory would be on the way.
    fs::create_dir_all(scene.root.join("elsewhere/hooks")).unwrap();
    symlink("../elsewhere", scene.tree(".kiro")).unwrap();
    assert_eq!(scene.settle(), [".kiro"]);
    assert!(scene.root.join("elsewhere/hooks").is_dir());
    // A name that is obeyed when something is started stays until the end.
    scene.write(".npmrc");
    assert!(scene.settle().is_empty() && scene.tree(".npmrc").exists());
    assert_eq!(scene.finish(), [scene.tree(".npmrc")]);
}

/// git on the host would write through it.
#[test]
fn l07_a_new_link_in_a_repository_is_moved_at_once() {
    let mut scene = Scene::new("links", |tree| {
        for dir in ["logs/refs", "refs/heads", "objects/info", "other"] {
            fs::create_dir_all(tree.join(".git").join(dir)).unwrap();
        }
        fs::write(tree.join(".git/HEAD"), "ref: refs/heads/main").unwrap();
        symlink("x", tree.join(".git/mine")).unwrap();
    });
    let link = |scene: &Scene, name: &str| symlink("x", scene.tree(name)).unwrap();
    for name in [".git/COMMIT_EDITMSG", ".git/logs/refs/x", ".git/objects/info/commit-graph"] {
        link(&scene, name);
        assert_eq!(scene.settle(), [name]);
        assert!(fs::symlink_metadata(scene.tree(name)).is_err());
        assert!(fs::symlink_metadata(scene.aside(name)).unwrap().is_symlink());
    }
    // One that was there, a file, and one among the hooks, which are protected as a whole.
    fs::rename(scene.tree(".git/mine"), scene.tree(".git/moved")).unwrap();
    fs::rename(scene.tree(".git/moved"), scene.tree(".git/mine")).unwrap();
    fs::write(scene.tree(".git/index"), "x").unwrap();
    fs::rename(scene.tree(".git/other"), scene.tree(".git/hooks")).unwrap();
    assert_eq!(scene.settle(), [".git/hooks"]);
    // In directories that are new, or were moved away and back.
    fs::create_dir_all(scene.tree(".git/refs/heads/a/b")).unwrap();
    link(&scene, ".git/refs/heads/a/b/x");
    fs::create_dir_all(scene.tree("made/rebase-merge")).unwrap();
    link(&scene, "made/rebase-merge/x");
    fs::rename(scene.tree("made/rebase-merge"), scene.tree(".git/rebase-merge")).unwrap();
    fs::rename(scene.tree(".git/logs"), scene.tree("away")).unwrap();
    link(&scene, "away/refs/y");
    fs::rename(scene.tree("away"), scene.tree(".git/logs")).unwrap();
    let mut moved = scene.settle();
    moved.sort();
    assert_eq!(moved, [".git/logs/refs/y", ".git/rebase-merge/x", ".git/refs/heads/a/b/x"]);
    link(&scene, ".git/refs/heads/a/b/z");
    assert_eq!(scene.settle(), [".git/refs/heads/a/b/z"]);
    // Who goes on with it is ended.
    let ended = (0..1100).any(|n| {
        link(&scene, &format!(".git/{n}"));
        scene.settle_with(|_, _| ()).is_err()
    });
    assert!(ended);
}

/// A shell's prompt would run the contents of such a file.
#[test]
fn l07_a_number_of_a_rebase_that_is_none_is_moved_at_once() {
    let mut scene = Scene::new("numbers", |tree| fs::create_dir_all(tree.join(".git/rebase-apply")).unwrap());
    let write = |scene: &Scene, name: &str, text: &str| {
        fs::create_dir_all(scene.tree(name).parent().unwrap()).unwrap();
        fs::write(scene.tree(name), text).unwrap();
    };
    for name in ["rebase-merge/msgnum", "rebase-merge/end", "rebase-apply/next", "rebase-apply/last"] {
        let name = format!(".git/{name}");
        for (text, is_number) in
            [("12\n", true), ("", true), ("7", true), ("$(x)\n", false), ("1\n$(x)", false)]
        {
            write(&scene, &name, text);
            let taken = scene.settle();
            assert_eq!(taken.is_empty(), is_number, "{name}: {text}: {taken:?}");
            assert_eq!(scene.tree(&name).exists(), is_number);
        }
        // Written after it was there.
        write(&scene, &name, "1\n");
        assert!(scene.settle().is_empty());
        write(&scene, &name, "$(x)\n");
        assert_eq!(scene.settle(), [name.as_str()]);
    }
    write(&scene, ".git/rebase-merge/onto", "x");
    assert!(scene.settle().is_empty());
}

#[test]
fn l07_runs_do_not_exchange_the_empty_directories_of_each_other() {
    let mut scene = Scene::new("each-other", |_| ());
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).unwrap();
    let mut other = Arrivals::new(Arc::clone(&scene.watches), &HashSet::new(), &inotify).unwrap();
    scene.write(".vscode/tasks.json");
    scene.write(".git/config");
    assert_eq!(scene.settle(), [".vscode"]);
    let at = |name: &str| fs::symlink_metadata(scene.tree(name)).unwrap().ino();
    let before = [at(".vscode"), at(".git")];
    let mut look = || {
        other.search_again();
        let mut found = Vec::new();
        let mut mount = |source: &Path, target: &Path| {
            assert!(target.ends_with(QUARANTINE), "only the quarantine is covered");
            Ok((id_of(source)?, id_of(target)?))
        };
        other.settle(&inotify, &mut mount, &|_| (), &mut found).unwrap();
        found.len()
    };
    assert_eq!(look(), 0);
    assert_eq!([at(".vscode"), at(".git")], before);
    // It goes on to look into them.
    scene.write(".vscode/launch.json");
    assert_eq!(look(), 1);
    assert!(!scene.tree(".vscode/launch.json").exists());
}

#[test]
fn l07_a_directory_is_exchanged_and_a_repository_given_back() {
    let mut scene = Scene::new("exchanged", |_| ());
    for name in [".git/config", ".git/HEAD", ".vscode/tasks.json", ".hg/hgrc", ".hg/store"] {
        scene.write(name);
    }
    assert_eq!(scene.settle(), [".vscode"], "the repositories come back");
    for name in [".git", ".hg", ".vscode"] {
        assert_eq!(fs::read_dir(scene.tree(name)).unwrap().count(), 0, "{name} is empty for the host");
        assert!(scene.aside(name).read_dir().unwrap().count() > 0, "{name}");
    }
    assert!(scene.settle().is_empty(), "the empty directories are ours");
    let mut found = scene.finish();
    found.sort();
    assert_eq!(found, [scene.tree(".git/config"), scene.tree(".hg/hgrc")]);
    assert!(scene.tree(".git/HEAD").exists() && scene.tree(".hg/store").exists());
    assert!(!scene.tree(".vscode").exists() && scene.aside(".vscode/tasks.json").exists());
    assert!(scene.aside(".git/config").exists() && scene.aside(".hg/hgrc").exists());
}

/// A prompt of the host's runs git at every moment.
#[test]
fn l07_git_obeys_nothing_of_a_repository_that_is_given_back() {
    for round in 0..20 {
        let mut scene = Scene::new(&format!("back-{round}"), |_| ());
        scene.write(".git/config");
        scene.settle();
        let (config, end) = (scene.tree(".git/config"), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                let mut is_seen = false;
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    is_seen |= config.exists();
                }
                is_seen
            });
            scene.finish();
            end.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(!seen.join().unwrap(), "round {round}");
        });
    }
}

/// The stage may have opened it before something was mounted there.
#[test]
fn l07_moves_the_entries_that_appear_in_an_empty_directory() {
    let mut scene = Scene::new("opened", |_| ());
    scene.write(".git/HEAD");
    let mut opened = None;
    let found = scene.settle_with(|_, empty| opened = Some(fs::File::open(empty).unwrap()));
    assert!(found.unwrap().is_empty());
    let below = |name: &str| format!("/proc/self/fd/{}/{name}", opened.as_ref().unwrap().as_raw_fd());
    fs::write(below("HEAD"), "evil").unwrap();
    fs::create_dir(below("objects")).unwrap();
    (0..200).for_each(|number| fs::write(below(&number.to_string()), "evil").unwrap());
    let found = scene.settle();
    assert!(found.len() == 202 && found.contains(&".git/HEAD".into()), "{}", found.len());
    // A directory on the way is renamed to another one: the only event is that it has arrived.
    assert_eq!(fs::read_dir(scene.tree(".git")).unwrap().count(), 0);
    fs::create_dir(scene.tree(".kiro")).unwrap();
    scene.settle();
    fs::rename(scene.tree(".kiro"), scene.tree(".vim")).unwrap();
    assert!(scene.settle().is_empty());
    scene.write(".vim/coc.json");
    assert_eq!(scene.settle(), [".vim/coc.json"]);
    // The directory that it lies in may have another name by then.
    scene.write(".kiro/hooks/x");
    let mut other = None;
    scene.settle_with(|_, empty| other = Some(fs::File::open(empty).unwrap())).unwrap();
    fs::rename(scene.tree(".kiro"), scene.tree("away")).unwrap();
    fs::write(format!("/proc/self/fd/{}/x", other.as_ref().unwrap().as_raw_fd()), "evil").unwrap();
    assert_eq!(scene.settle(), [".kiro/hooks/x"]);
    assert_eq!(fs::read_dir(scene.tree("away/hooks")).unwrap().count(), 0);
    // At the last moment.
    fs::write(below("config"), "evil").unwrap();
    assert_eq!(scene.finish(), [scene.tree(".git/config")]);
    assert_eq!(fs::read(scene.tree(".git/HEAD")).unwrap(), b"evil", "the stage's repository");
    assert!(!scene.tree(".git/config").exists());
}

/// Both names are in the stage's hands until something is mounted at them.
#[test]
fn l07_no_exchange_gives_the_stage_s_own_a_name() {
    let mut scene = Scene::new("swapped", |_| ());
    scene.write(".git/HEAD");
    let swap = |empty: &Path| {
        fs::rename(empty, empty.with_file_name("x")).unwrap();
        fs::create_dir(empty).unwrap();
        fs::write(empty.join("HEAD"), "evil").unwrap();
    };
    let swapped = scene.settle_with(|_, empty| swap(empty));
    assert!(swapped.is_err(), "{swapped:?}");
    drop(scene);

    // It is the stage's for the moment of the mount, and ours again after it.
    let mut scene = Scene::new("target", |_| ());
    scene.write(".git/HEAD");
    while let Ok(events) = scene.inotify.read_events() {
        events.iter().for_each(|event| scene.arrivals.note(event));
    }
    let mut mount = |source: &Path, target: &Path| {
        swap(target);
        let ids = (id_of(source)?, id_of(target)?);
        fs::remove_dir_all(target)?;
        fs::rename(target.with_file_name("x"), target)?;
        Ok(ids)
    };
    let mut found = Vec::new();
    assert!(scene.arrivals.settle(&scene.inotify, &mut mount, &|_| (), &mut found).is_err());
    drop(scene);

    // What came under the name meanwhile is moved, and the other one is the stage's.
    let mut scene = Scene::new("changed", |_| ());
    scene.write(".git/HEAD");
    let found = scene.settle_with(|name, _| {
        fs::rename(name, name.with_file_name("x")).unwrap();
        fs::create_dir(name).unwrap();
        fs::write(name.join("HEAD"), "other").unwrap();
    });
    assert_eq!(found.unwrap(), [".git"]);
    assert_eq!(fs::read_dir(scene.tree(".git")).unwrap().count(), 0);
    assert_eq!(fs::read(scene.aside(".git/HEAD")).unwrap(), b"other");
    drop(scene);

    // Another one came before the mount: that one is exchanged.
    let mut scene = Scene::new("again", |_| ());
    scene.write(".git/HEAD");
    while let Ok(events) = scene.inotify.read_events() {
        events.iter().for_each(|event| scene.arrivals.note(event));
    }
    let mut times = 0;
    let mut mount = |source: &Path, target: &Path| {
        times += 1;
        if times == 1 {
            fs::rename(source, source.with_file_name("x"))?;
            fs::create_dir(source)?;
            fs::write(source.join("other"), "other")?;
        }
        Ok((id_of(source)?, id_of(target)?))
    };
    let mut found = Vec::new();
    scene.arrivals.settle(&scene.inotify, &mut mount, &|_| (), &mut found).unwrap();
    assert!(found.is_empty());
    assert_eq!(times, 3, "twice the directory, and the quarantine");
    assert!(scene.finish().is_empty() && scene.tree(".git/other").exists(), "it is given back");
    drop(scene);

    // It is gone before it is mounted: nothing is left of the exchange.
    let mut scene = Scene::new("gone", |_| ());
    scene.write(".vscode/x");
    fs::remove_dir_all(scene.tree(".vscode")).unwrap();
    assert!(scene.settle().is_empty());
    assert!(scene.root.join("tree").read_dir().unwrap().next().is_none());
}

#[test]
fn l07_a_directory_that_cannot_be_mounted_is_moved() {
    let mut scene = Scene::new("unmounted", |_| ());
    scene.write(".git/HEAD");
    while let Ok(events) = scene.inotify.read_events() {
        events.iter().for_each(|event| scene.arrivals.note(event));
    }
    let mut refuse = |_: &Path, _: &Path| Err(Errno::EPERM.into());
    let mut found = Vec::new();
    scene.arrivals.settle(&scene.inotify, &mut refuse, &|_| (), &mut found).unwrap();
    assert!(
        found.len() == 1 && !scene.tree(".git").exists() && scene.aside(".git/HEAD").exists(),
        "{found:?}"
    );
    let rest = scene.root.join("tree").read_dir().unwrap().count();
    assert_eq!(rest, 1, "the quarantine alone");
}

/// Names that stand for something by now came while another run went on.
#[test]
fn l07_keeps_the_links_and_directories_that_were_there_at_the_start() {
    let mut scene = Scene::new("before", |tree| {
        fs::create_dir(tree.join(".git")).unwrap();
        symlink("x", tree.join("link")).unwrap();
        symlink("away", tree.join(".kiro")).unwrap();
        // That run's empty directory, and what came in its last milliseconds.
        fs::create_dir(tree.join(".vscode")).unwrap();
        fs::write(tree.join(".mcp.json"), "evil").unwrap();
    });
    assert_eq!(scene.settle(), [".mcp.json"]);
    assert!(scene.tree(".vscode").exists() && scene.tree(".kiro").is_symlink());
    scene.write("other");
    scene.write(".git/config");
    assert_eq!(scene.settle(), [".git/config"]);
    for (link, moved) in [("link", "link"), (".kiro", ".kiro")] {
        fs::remove_file(scene.tree(link)).unwrap();
        symlink("y", scene.tree(link)).unwrap();
        assert_eq!(scene.settle(), [moved]);
    }
    fs::rename(scene.tree(".git"), scene.tree("away")).unwrap();
    fs::create_dir(scene.tree(".git")).unwrap();
    assert!(scene.settle().is_empty(), "a directory as before");
    fs::remove_dir(scene.tree(".git")).unwrap();
    fs::write(scene.tree(".git"), "gitdir: away").unwrap();
    assert_eq!(scene.settle(), [".git"]);
    scene.write("HEAD");
    scene.write("refs/x");
    assert!(scene.settle().is_empty(), "not yet a repository");
    scene.write("objects/x");
    assert_eq!(scene.settle(), ["HEAD"]);
}

/// The one of another run has no mount over it in this run's sandbox: this stage gives it another name and back, fills it, or
/// makes another one.
#[test]
fn l07_an_empty_directory_of_another_run_stays_empty() {
    let mut scene = Scene::new("others", |tree| fs::create_dir(tree.join(".vscode")).unwrap());
    assert!(scene.settle().is_empty());
    let (one, other) = (scene.tree(".vscode"), scene.tree(".kiro"));
    fs::rename(&one, &other).unwrap();
    scene.settle();
    fs::rename(&other, &one).unwrap();
    scene.write(".vscode/tasks.json");
    assert_eq!(scene.settle(), [".vscode/tasks.json"]);
    // The next directory may get its inode.
    fs::remove_dir(&one).unwrap();
    scene.write(".vscode/tasks.json");
    assert_eq!(scene.settle(), [".vscode"]);
    assert_eq!(fs::read_dir(&one).unwrap().count(), 0);
}

/// The stage takes the mode back as often as it is set.
#[test]
fn l07_a_directory_that_stays_closed_is_taken_as_it_is() {
    if geteuid().is_root() {
        return;
    }
    let mut scene = Scene::new("closed", |_| ());
    scene.write(".kiro/hooks/x");
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (kiro, aside) = (scene.tree(".kiro"), scene.aside(".kiro"));
        let end = &end;
        scope.spawn(move || {
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                for at in [&kiro, &aside] {
                    let _ = fs::set_permissions(at, std::os::unix::fs::PermissionsExt::from_mode(0o400));
                }
            }
        });
        let begin = std::time::Instant::now();
        while scene.tree(".kiro/hooks").exists() || scene.tree(".kiro").exists() {
            if begin.elapsed().as_secs() > 10 {
                break;
            }
            scene.arrivals.is_due = true;
            let _ = scene.settle_with(|_, _| ());
        }
        end.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    // It is closed wherever it was moved.
    open_all(&scene.root);
    assert!(fs::read_dir(scene.tree(".kiro")).map_or(true, |mut entries| entries.next().is_none()));
}

/// The stage makes one like another run's, fills it, and takes the right to list it as often as it is set: that ends the stage.
#[test]
fn l07_nothing_stays_in_an_empty_directory_that_is_closed_again_and_again() {
    use std::sync::atomic::{AtomicBool, Ordering};
    if geteuid().is_root() {
        return;
    }
    for _ in 0..10 {
        let mut scene = Scene::new("refilled", |_| ());
        let mode = |bits| std::os::unix::fs::PermissionsExt::from_mode(bits);
        fs::create_dir(scene.tree(".git")).unwrap();
        fs::set_permissions(scene.tree(".git"), mode(PLACEHOLDER.bits())).unwrap();
        assert!(scene.settle().is_empty());
        let (dir, end) = (fs::File::open(scene.tree(".git")).unwrap(), AtomicBool::new(false));
        let mut stays = false;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        let _ = dir.set_permissions(mode(0o300));
                    }
                });
            }
            let filled = scene.tree(".git/HEAD");
            while !stays {
                scene.write("HEAD");
                let is_ended = fs::rename(scene.tree("HEAD"), &filled).is_err();
                if is_ended || scene.settle_with(|_, _| ()).is_err() {
                    break;
                }
                stays = fs::symlink_metadata(&filled).is_ok();
            }
            end.store(true, Ordering::Relaxed);
        });
        dir.set_permissions(mode(0o700)).unwrap();
        assert!(!stays);
    }
}

#[test]
fn l07_a_stage_that_makes_names_again_and_again_is_ended() {
    let mut scene = Scene::new("often", |_| ());
    let mut count = 0;
    loop {
        scene.write(".mcp.json");
        match scene.settle_with(|_, _| ()) {
            Ok(found) => count += found.len(),
            Err(_) => break,
        }
        assert!(count < 100);
    }
    assert_eq!(count, TIMES as usize);
    // And many names are, too, however seldom each comes.
    let mut scene = Scene::new("many", |_| ());
    scene.arrivals.taken = MOST;
    scene.write(".mcp.json");
    assert!(scene.settle_with(|_, _| ()).is_err());
}

#[test]
fn l07_after_a_kill_the_next_start_puts_things_back() {
    let mut scene = Scene::new("killed", |_| ());
    let state = scene.root.join("state");
    drop(Journal::write(&state, "RUN", &scene.watches).unwrap());
    for name in [".git/config", ".git/HEAD", ".vscode/tasks.json", ".mcp.json"] {
        scene.write(name);
    }
    scene.settle();
    scene.watches = Arc::new([]);
    let settled = settle_interrupted(&state, &[], |_| Ok(false), &|| false).runs;
    let mut told: Vec<_> =
        settled.iter().flat_map(|run| &run.found.named).map(|it| it.path.clone()).collect();
    told.sort();
    assert_eq!(told, [scene.tree(".git/config"), scene.tree(".mcp.json"), scene.tree(".vscode")]);
    assert!(scene.tree(".git/HEAD").exists() && !scene.tree(".vscode").exists());
    assert!(settle_interrupted(&state, &[], |_| Ok(false), &|| false).runs.is_empty());
    drop(scene);

    // A run that is killed before the exchange, and after it.
    for is_exchanged in [false, true] {
        let mut scene = Scene::new("between", |_| ());
        let state = scene.root.join("state");
        drop(Journal::write(&state, "RUN", &scene.watches).unwrap());
        for name in [".git/config", ".git/HEAD", ".vscode/tasks.json"] {
            scene.write(name);
        }
        let killed = catch_unwind(AssertUnwindSafe(|| {
            scene.settle_with(|source, target| {
                if is_exchanged {
                    rename_with(rustix::fs::CWD, source, rustix::fs::CWD, target, RenameFlags::EXCHANGE)
                        .unwrap();
                }
                resume_unwind(Box::new(()));
            })
        }));
        killed.unwrap_err();
        assert_eq!(scene.tree(".git/HEAD").exists(), !is_exchanged);
        scene.watches = Arc::new([]);
        let settled = settle_interrupted(&state, &[], |_| Ok(false), &|| false).runs;
        let mut told: Vec<_> =
            settled.iter().flat_map(|run| &run.found.named).map(|it| it.path.clone()).collect();
        told.sort();
        assert_eq!(told, [scene.tree(".git/config"), scene.tree(".vscode")]);
        assert!(scene.tree(".git/HEAD").exists());
        let mut left: Vec<_> =
            fs::read_dir(scene.tree("")).unwrap().map(|it| it.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [QUARANTINE, ".git"]);
    }

    // The user makes a repository where the empty directory is: it is theirs.
    let mut scene = Scene::new("user", |_| ());
    drop(Journal::write(&scene.root.join("state"), "RUN", &scene.watches).unwrap());
    scene.write(".git/HEAD");
    scene.settle();
    scene.watches = Arc::new([]);
    fs::write(scene.tree(".git/HEAD"), "mine").unwrap();
    let settled = settle_interrupted(&scene.root.join("state"), &[], |_| Ok(false), &|| false);
    assert_eq!(fs::read(scene.tree(".git/HEAD")).unwrap(), b"mine", "{settled:?}");
    assert_eq!(fs::read(scene.aside(".git/HEAD")).unwrap(), b"evil");
}

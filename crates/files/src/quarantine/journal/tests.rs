use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;

use super::super::{MissingName, Pattern, Survey};
use super::*;
use crate::protected::Obeyed;

struct Scene(PathBuf);

impl Scene {
    /// A run that was killed, whose stage has made `.envrc` in `tree`.
    fn new(name: &str) -> Self {
        let scene = Self(std::env::temp_dir().join(format!("journal-{name}-{}", std::process::id())));
        fs::create_dir_all(scene.tree()).unwrap();
        let names = vec![MissingName { name: ".envrc".into(), obeyed: Obeyed::AtOnce }];
        let list = WatchList { tree: scene.tree(), names, ..WatchList::default() };
        let state_of_run = StateOfRun { run: "RUN".into(), dir: Some(scene.state()) };
        let watch = Watch::start(list, state_of_run).unwrap();
        drop(Journal::write(&scene.state(), "RUN", &[watch]).unwrap());
        fs::write(scene.tree().join(".envrc"), "evil").unwrap();
        scene
    }

    fn tree(&self) -> PathBuf {
        self.0.join("tree")
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    /// Returns the numbers of settled runs, of lines, and of moved names.
    fn settle(&self) -> (usize, usize, usize) {
        let all = settle_interrupted(&self.state(), &[], |_| Ok(false), &|| false).runs;
        let sum = |count: fn(&Interrupted) -> usize| all.iter().map(count).sum();
        (all.len(), sum(|it| it.passed.len()), sum(|it| it.found.named.len()))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// For the moment of a start the tree may have another name, or a link or another directory its name.
#[test]
fn l08_a_killed_run_is_settled_when_its_tree_is_back() {
    let instead: [fn(&Path); 3] =
        [|_| (), |tree| symlink("away", tree).unwrap(), |tree| fs::create_dir(tree).unwrap()];
    for (number, instead) in instead.into_iter().enumerate() {
        let scene = Scene::new(&format!("back-{number}"));
        let (tree, away) = (scene.tree(), scene.0.join("away"));
        fs::rename(&tree, &away).unwrap();
        instead(&tree);
        assert_eq!(scene.settle(), (1, 1, 0), "told once");
        assert_eq!(scene.settle(), (0, 0, 0));
        let mut live = Live::default();
        live.read(&scene.state());
        assert!(!live.has_made(&tree.join(".envrc")), "another directory has other names");
        let _ = fs::remove_file(&tree).or_else(|_| fs::remove_dir(&tree));
        fs::rename(&away, &tree).unwrap();
        assert_eq!(scene.settle(), (1, 0, 1));
        assert!(!tree.join(".envrc").exists());
        assert_eq!(journals(&scene.state()), []);
    }
}

/// A new directory may get the inode of one that was removed.
#[test]
fn l08_a_killed_run_leaves_a_new_tree_with_the_same_inode_alone() {
    let scene = Scene::new("inode");
    let inode = || fs::metadata(scene.tree()).unwrap().ino();
    let was = inode();
    let mut is_same = false;
    for _ in 0..100 {
        fs::remove_dir_all(scene.tree()).unwrap();
        fs::create_dir(scene.tree()).unwrap();
        is_same = inode() == was;
        if is_same {
            break;
        }
    }
    fs::write(scene.tree().join(".envrc"), "mine").unwrap();
    assert_eq!(scene.settle(), (1, 1, 0), "{is_same}");
    assert!(scene.tree().join(".envrc").exists());
}

/// Another version of exeat settles what this one leaves.
#[test]
fn keeps_the_keys_of_a_journal() {
    let scene = Scene::new("keys");
    let text = fs::read(scene.state().join(LIVE).join("RUN.json")).unwrap();
    let entries: Vec<BTreeMap<String, serde_json::Value>> = serde_json::from_slice(&text).unwrap();
    let keys = [
        "check",
        "contents",
        "directory",
        "id",
        "keys",
        "missing",
        "modes",
        "noted",
        "pointers",
        "since",
        "waits",
    ];
    assert!(entries[0].keys().eq(keys), "{entries:?}");
}

#[test]
fn l08_a_damaged_journal_is_named_once_without_the_words_of_a_parser() {
    for text in ["", "xx", "{}", "[{]"] {
        let scene = Scene::new(&format!("damaged-{}", text.len()));
        fs::write(scene.state().join(LIVE).join("RUN.json"), text).unwrap();
        let settled = settle_interrupted(&scene.state(), &[], |_| Ok(false), &|| false).runs;
        assert!(settled[0].passed[0].ends_with("RUN.json` is damaged, and was removed"), "{settled:?}");
        assert_eq!(scene.settle(), (0, 0, 0));
    }
}

#[test]
fn l08_drops_the_journal_of_a_killed_run_if_its_tree_stays_missing() {
    let scene = Scene::new("gone");
    fs::remove_dir_all(scene.tree()).unwrap();
    let journal = || File::options().write(true).open(scene.state().join(LIVE).join("RUN.json")).unwrap();
    let a_day_ago = SystemTime::now() - Duration::from_secs(24 * 60 * 60);
    journal().set_modified(a_day_ago).unwrap();
    assert_eq!(scene.settle(), (1, 1, 0));
    assert_eq!(journal().metadata().unwrap().modified().unwrap(), a_day_ago, "it waits no longer for that");
    let long_ago = SystemTime::now() - PATIENCE - Duration::from_secs(60);
    journal().set_modified(long_ago).unwrap();
    assert_eq!(scene.settle(), (1, 1, 0), "and that is told");
    assert_eq!(journals(&scene.state()), []);
}

/// The time for runs in other trees is over at once here.
#[test]
fn l18_a_start_settles_other_trees_for_so_long() {
    let scene = Scene::new("over");
    let settle = |trees: &[&Path]| {
        let Settlement { runs, waiting } = settle_interrupted(&scene.state(), trees, |_| Ok(false), &|| true);
        (runs.len(), waiting)
    };
    assert_eq!(settle(&[]), (0, 1));
    assert_eq!(settle(&[&scene.0.join("elsewhere")]), (0, 1));
    assert!(scene.tree().join(".envrc").exists() && journals(&scene.state()).len() == 1);
    assert_eq!(settle(&[&scene.tree().join("sub")]), (1, 0), "its own tree is settled in any case");
    assert!(!scene.tree().join(".envrc").exists() && journals(&scene.state()).is_empty());
}

#[test]
fn l08_a_crowd_of_killed_runs_is_not_waited_for() {
    let scene = Scene::new("crowd");
    let live = scene.state().join(LIVE);
    (1..WAITING + 2).for_each(|number| {
        fs::copy(live.join("RUN.json"), live.join(format!("RUN{number}.json"))).unwrap();
    });
    fs::remove_dir_all(scene.tree()).unwrap();
    assert_eq!(scene.settle(), (WAITING + 2, WAITING + 2, 0));
    assert_eq!(journals(&scene.state()).len(), WAITING);
    fs::create_dir(scene.tree()).unwrap();
}

/// Whatever a start meets that a live run's stage has made is that run's, and stays where it is until that one ends.
#[test]
fn l10_a_start_knows_which_names_the_stage_of_a_live_run_has_made() {
    let scene = Scene(std::env::temp_dir().join(format!("journal-live-{}", std::process::id())));
    let (tree, state) = (scene.tree(), scene.state());
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("mise.a.toml"), "mine").unwrap();
    fs::write(tree.join(".git"), "gitdir: mine").unwrap();
    symlink("x", tree.join("link")).unwrap();
    let list = WatchList {
        tree: tree.clone(),
        names: vec![MissingName { name: ".envrc".into(), obeyed: Obeyed::AtOnce }],
        patterns: vec![Pattern {
            dir: String::new(),
            name: "mise.*.toml".into(),
            known: vec!["mise.a.toml".into()],
            obeyed: Obeyed::AfterConsent,
        }],
        links: vec![("link".into(), "x".into())],
        pointers: vec![".git".into()],
        ..WatchList::default()
    };
    let state_of_run = StateOfRun { run: "LIVE".into(), dir: Some(state.clone()) };
    let watch = Watch::start(list, state_of_run).unwrap();
    let journal = Journal::write(&state, "LIVE", &[watch]).unwrap();
    let names = [".envrc", "mise.b.toml", "mise.a.toml", "link", ".git", "other"];
    let made = || -> Vec<&str> {
        let mut live = Live::default();
        assert!(live.read(&state));
        names.into_iter().filter(|name| live.has_made(&tree.join(name))).collect()
    };
    // Those that are missing would be the stage's.
    assert_eq!(made(), [".envrc", "mise.b.toml"]);
    for name in [".envrc", "mise.b.toml", "other"] {
        fs::write(tree.join(name), "evil").unwrap();
    }
    fs::remove_file(tree.join("link")).unwrap();
    symlink("y", tree.join("link")).unwrap();
    fs::write(tree.join("new"), "gitdir: evil").unwrap();
    fs::rename(tree.join("new"), tree.join(".git")).unwrap();
    assert_eq!(made(), [".envrc", "mise.b.toml", "link", ".git"]);
    // As long as a process of it is left nobody settles it.
    let kept = journal.keep_locked().unwrap();
    // Closed as by SIGKILL: to drop it is to unlock it for all that share it.
    let open = journal.lock.as_raw_fd();
    std::mem::forget(journal);
    nix::unistd::close(open).unwrap();
    assert_eq!(scene.settle(), (0, 0, 0));
    assert!(tree.join(".envrc").exists());
    drop(kept);
    assert_eq!(scene.settle(), (1, 0, 4));
    let left: std::collections::BTreeSet<_> =
        fs::read_dir(&tree).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(left, [".exeat-quarantine", "mise.a.toml", "other"].map(str::to_owned).into());
}

/// Until the other run has begun to settle: then nobody else would.
#[test]
fn l10_a_run_leaves_earlier_names_to_the_live_run_that_made_them() {
    let scene = Scene(std::env::temp_dir().join(format!("journal-leave-{}", std::process::id())));
    let (tree, state) = (scene.tree(), scene.state());
    fs::create_dir_all(&tree).unwrap();
    let names = [".envrc", ".vscode", ".npmrc"];
    let start = |run: &str| {
        let names = names.map(|name| MissingName { name: name.into(), obeyed: Obeyed::WhenStarted });
        let list = WatchList { tree: tree.clone(), names: names.into(), ..WatchList::default() };
        let state_of_run = StateOfRun { run: run.into(), dir: Some(state.clone()) };
        let watches = Watch::start_all([list], &state_of_run).unwrap();
        let journal = Journal::write(&state, run, &watches).unwrap();
        (watches, journal)
    };
    let left = || names.map(|name| tree.join(name).exists());
    // The kernel's time of creation may be a tick old.
    let tick = || std::thread::sleep(Duration::from_millis(20));
    let (first, of_first) = start("FIRST");
    tick();
    fs::write(tree.join(".envrc"), "x").unwrap();
    fs::create_dir(tree.join(".vscode")).unwrap();
    tick();
    let (second, of_second) = start("SECOND");
    let (third, of_third) = start("THIRD");
    tick();
    fs::write(tree.join(".npmrc"), "x").unwrap();
    // The placeholder of a run that started later, too.
    fs::set_permissions(tree.join(".vscode"), fs::Permissions::from_mode(0o1700)).unwrap();
    of_second.begin_end().unwrap();
    assert_eq!(super::super::finish(&second).named.len(), 1);
    of_second.remove();
    assert_eq!(left(), [true, true, false]);
    of_first.begin_end().unwrap();
    of_third.begin_end().unwrap();
    // An empty directory of that run stays even then, and whatever is full does not.
    fs::write(tree.join(".vscode/x"), "x").unwrap();
    super::super::finish(&third);
    assert_eq!(left(), [false; 3]);
    of_third.remove();
    super::super::finish(&first);
    of_first.remove();
}

/// A `.git` file that was there before the killed run is the caller's.
#[test]
fn l08_settling_a_killed_run_keeps_a_git_file_that_was_there_before() {
    let scene = Scene(std::env::temp_dir().join(format!("journal-before-{}", std::process::id())));
    let tree = scene.tree();
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join(".git"), "gitdir: mine").unwrap();
    let list = WatchList { tree: tree.clone(), pointers: vec![".git".into()], ..WatchList::default() };
    let state_of_run = StateOfRun { run: "RUN".into(), dir: Some(scene.state()) };
    drop(Journal::write(&scene.state(), "RUN", &[Watch::start(list, state_of_run).unwrap()]).unwrap());
    assert_eq!(scene.settle(), (1, 0, 0));
    assert_eq!(fs::read(tree.join(".git")).unwrap(), b"gitdir: mine");
}

/// The stage of another run may rename directories while this run searches for what its own has made.
#[test]
fn l08_judges_a_repository_that_another_run_missed() {
    let scene = Scene::new("beside");
    let start = |run: &str| {
        let state_of_run = StateOfRun { run: run.into(), dir: Some(scene.state()) };
        let list = WatchList { tree: scene.tree(), ..WatchList::default() };
        let mut watches = Watch::start_all([list], &state_of_run).unwrap();
        // The start is later than all that is there, by more than clocks may differ.
        watches[0].since += Duration::from_secs(4);
        let journal = Journal::write(&scene.state(), run, &watches).unwrap();
        watches[0].note_nested(&|| false);
        (watches, journal)
    };
    scene.settle();
    let (_first, journal) = {
        let state_of_run = StateOfRun { run: "FIRST".into(), dir: Some(scene.state()) };
        let list = WatchList { tree: scene.tree(), ..WatchList::default() };
        let watches = Watch::start_all([list], &state_of_run).unwrap();
        let journal = Journal::write(&scene.state(), "FIRST", &watches).unwrap();
        (watches, journal)
    };
    let git = scene.tree().join("x/y/z/n/.git");
    for dir in ["objects", "refs"] {
        fs::create_dir_all(git.join(dir)).unwrap();
    }
    fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(git.join("config"), "[core]\nfsmonitor = evil\n").unwrap();
    let (second, of_second) = start("SECOND");
    let (third, of_third) = start("THIRD");
    assert!(finish_until(&second, |_| Ok(false), &|| false).is_empty(), "the first run judges it");
    of_second.remove();
    journal.remove();
    let found = finish_until(&third, |_| Ok(false), &|| false);
    of_third.remove();
    assert_eq!(found.named.iter().map(|it| &it.path).collect::<Vec<_>>(), [&git.join("config")]);
    assert!(!git.join("config").exists());
}

/// A commit changes the directory of a repository, so that the times of what is in it say nothing.
#[test]
fn l08_after_a_kill_the_callers_own_files_are_known() {
    /// What a stage does, whether the tree is elsewhere at the next start, how much of the journal a full disk took, and what is moved.
    type Case = (fn(&Path), bool, u64, &'static [&'static str]);
    let commit = |git: &Path| fs::write(git.join("COMMIT_EDITMSG"), "x").unwrap();
    let change = |git: &Path| fs::write(git.join("hooks/pre-push"), "evil").unwrap();
    let cases: [Case; 4] = [
        (commit, false, 0, &[]),
        (commit, true, 0, &[]),
        (change, false, 0, &["hooks"]),
        (commit, false, 1, &["hooks", "config"]),
    ];
    for (number, (stage, is_away, lost, moved)) in cases.into_iter().enumerate() {
        let scene =
            Scene(std::env::temp_dir().join(format!("journal-noted-{number}-{}", std::process::id())));
        let git = scene.tree().join("x/y/z/n/.git");
        for dir in ["objects", "refs", "hooks"] {
            fs::create_dir_all(git.join(dir)).unwrap();
        }
        for (name, text) in
            [("HEAD", "ref: refs/heads/main\n"), ("config", "[alias]\nst = !x\n"), ("hooks/pre-push", "mine")]
        {
            fs::write(git.join(name), text).unwrap();
        }
        let list = WatchList { tree: scene.tree(), ..WatchList::default() };
        let state_of_run = StateOfRun { run: "RUN".into(), dir: Some(scene.state()) };
        let watches: Arc<[Watch]> = [Watch::start(list, state_of_run).unwrap()].into();
        let journal = Journal::write(&scene.state(), "RUN", &watches).unwrap();
        let length = || journal.lock.metadata().unwrap().len();
        let before = length();
        let survey = Survey::start(Arc::clone(&watches));
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while length() == before && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        drop(survey);
        watches[0].stage_starts();
        stage(&git);
        journal.lock.set_len(length() - lost).unwrap();
        drop(journal);
        if is_away {
            let away = scene.0.join("away");
            fs::rename(scene.tree(), &away).unwrap();
            assert_eq!(scene.settle(), (1, 1, 0), "told once");
            fs::rename(&away, scene.tree()).unwrap();
        }
        let mut settled = settle_interrupted(&scene.state(), &[], |_| Ok(false), &|| false).runs;
        let named = settled.remove(0).found.named;
        let named: Vec<_> = named.iter().map(|it| it.path.strip_prefix(&git).unwrap()).collect();
        assert_eq!(named, moved.iter().map(Path::new).collect::<Vec<_>>(), "{number}");
    }
}

/// The host has removed a file that was read-only for the stage. A part of the last value is missing where exeat was killed.
#[test]
fn l08_a_name_that_became_free_is_one_that_was_missing() {
    for (number, (is_back, lost, is_moved)) in
        [(false, 0, true), (true, 0, false), (false, 1, false), (true, 1, true)].into_iter().enumerate()
    {
        let scene = Scene(std::env::temp_dir().join(format!("journal-free-{number}-{}", std::process::id())));
        fs::create_dir_all(scene.tree().join("sub")).unwrap();
        let name = Path::new("sub/.npmrc");
        fs::write(scene.tree().join(name), "mine").unwrap();
        let list = WatchList { tree: scene.tree(), ..WatchList::default() };
        let state_of_run = StateOfRun { run: "RUN".into(), dir: Some(scene.state()) };
        let watch = Watch::start(list, state_of_run).unwrap();
        let watches = [watch];
        let journal = Journal::write(&scene.state(), "RUN", &watches).unwrap();
        watches[0].note_free(name).unwrap();
        if is_back {
            watches[0].note_put_back(name).unwrap();
        }
        let length = journal.lock.metadata().unwrap().len();
        journal.lock.set_len(length - lost).unwrap();
        drop((journal, watches));
        let mut live = Live::default();
        live.read(&scene.state());
        assert_eq!(live.has_made(&scene.tree().join(name)), is_moved);
        assert_eq!(scene.settle().2, usize::from(is_moved));
    }
}

/// exeat is killed while it replaces a file: one more name leads to the old one, or to that which was to replace it.
#[test]
fn l08_no_name_of_a_replaced_file_stays_after_a_kill() {
    let scene = Scene(std::env::temp_dir().join(format!("journal-replaced-{}", std::process::id())));
    let dir = scene.tree().join(".vscode");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("tasks.json"), "mine").unwrap();
    let list = WatchList {
        tree: scene.tree(),
        covered: [".vscode".into()].into(),
        read_only: [".vscode/tasks.json".into()].into(),
        ..WatchList::default()
    };
    let state_of_run = StateOfRun { run: "RUN".into(), dir: Some(scene.state()) };
    let watches = [Watch::start(list, state_of_run).unwrap()];
    drop(Journal::write(&scene.state(), "RUN", &watches).unwrap());
    let [twin, draft, other] =
        [".exeat-quarantine.1", ".exeat-quarantine.2", "other"].map(|name| dir.join(name));
    fs::hard_link(dir.join("tasks.json"), &twin).unwrap();
    fs::write(&draft, "new").unwrap();
    fs::write(&other, "theirs").unwrap();
    for number in 0..100 {
        fs::write(dir.join(format!(".exeat-quarantine.crowd{number}")), "of the stage").unwrap();
    }
    fs::remove_file(&draft).unwrap();
    assert_eq!(scene.settle(), (1, 0, 16), "a crowd is not worth more");
    assert_eq!([&twin, &other].map(|path| path.exists()), [false, true]);
    assert_eq!(fs::metadata(dir.join("tasks.json")).unwrap().nlink(), 1);
}

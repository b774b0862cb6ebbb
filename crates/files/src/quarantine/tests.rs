use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::listing::settled;

fn scratch(name: &str) -> PathBuf {
    let root = std::env::temp_dir().join(format!("quarantine-{name}-{}", std::process::id()));
    fs::create_dir_all(root.join("tree")).unwrap();
    root
}

fn list(names: &[&str]) -> Vec<MissingName> {
    let list = |name: &&str| MissingName { name: (*name).into(), obeyed: Obeyed::AtOnce };
    names.iter().map(list).collect()
}

fn start(list: WatchList) -> io::Result<Watch> {
    Watch::start(list, StateOfRun { run: "RUN".into(), dir: None })
}

fn done(watch: Watch) -> Vec<Leftover> {
    finish(&[watch]).named
}

fn watch(root: &Path) -> Watch {
    start(WatchList {
        tree: root.join("tree"),
        names: list(&[".git/hooks", ".envrc"]),
        patterns: Vec::new(),
        links: vec![("link".into(), "x".into())],
        pointers: Vec::new(),
        bare: Vec::new(),
        repositories: Vec::new(),
        held: Vec::new(),
        ..WatchList::default()
    })
    .unwrap()
}

fn watch_git(root: &Path) -> Watch {
    start(WatchList {
        tree: root.join("tree"),
        names: list(&[".git/hooks"]),
        patterns: Vec::new(),
        links: Vec::new(),
        pointers: vec![".git".into()],
        bare: Vec::new(),
        repositories: vec![".git".into()],
        held: Vec::new(),
        ..WatchList::default()
    })
    .unwrap()
}

fn mode(path: &Path, to: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(to)).unwrap();
}

fn names_in(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn b12_moves_the_names_that_appear_and_leaves_no_stubs() {
    let root = scratch("moved");
    assert!(done(watch(&root)).is_empty());
    assert_eq!(fs::read_dir(root.join("tree")).unwrap().count(), 0, "no stubs");

    for number in 0..2 {
        let watch = watch(&root);
        fs::create_dir_all(root.join("tree/.git/hooks")).unwrap();
        fs::write(root.join("tree/.git/hooks/pre-commit"), "evil").unwrap();
        fs::write(root.join("tree/.envrc"), "evil").unwrap();
        let found = done(watch);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|found| found.moved.is_ok()));
        assert!(!root.join("tree/.git/hooks").exists() && !root.join("tree/.envrc").exists());
        let runs = names_in(aside_of(&root.join("tree"), "RUN").parent().unwrap());
        assert_eq!(runs.len(), number + 1, "one for each run: {runs:?}");
    }
    let quarantine = root.join("tree").join(QUARANTINE);
    assert_eq!(fs::metadata(&quarantine).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(fs::read(quarantine.join(".gitignore")).unwrap(), b"*\n");
    let moved = aside_of(&root.join("tree"), "RUN");
    assert_eq!(fs::read(moved.join(".envrc")).unwrap(), b"evil");
    assert!(moved.join(".git/hooks").is_dir());
    fs::remove_dir_all(root).unwrap();
}

/// A directory that is listed lacks no name that is in it, whatever its case.
#[test]
fn b12_moves_the_names_in_a_directory_that_was_left_alone() {
    let root = scratch("listed");
    let tree = root.join("tree");
    let pattern = Pattern {
        dir: String::new(),
        name: "mise.*.toml".into(),
        known: vec!["mise.a.toml".into()],
        obeyed: Obeyed::AtOnce,
    };
    let start = || {
        let names = list(&[".git/hooks", ".envrc", ".vscode", ".idea"]);
        let (pointers, bare) = (vec![".git".into()], vec!["HEAD".into()]);
        let links = vec![("link".into(), "x".into())];
        let patterns = vec![pattern.clone()];
        start(WatchList {
            tree: tree.clone(),
            names,
            patterns,
            links,
            pointers,
            bare,
            ..WatchList::default()
        })
    };
    fs::write(tree.join("mise.a.toml"), "").unwrap();
    settled(&tree);
    let watch = start().unwrap();
    settled(&tree);
    assert!(done(watch).is_empty());
    for made in [".git/hooks", ".envrc", ".vscode", "mise.b.toml", "link"] {
        let watch = start().unwrap();
        fs::create_dir_all(tree.join(made)).unwrap();
        fs::write(tree.join(made).join("pre-commit"), "evil").unwrap();
        settled(&tree);
        let found = done(watch);
        assert!(
            matches!(&found[..], [it] if it.path == tree.join(made) && it.moved.is_ok()),
            "{made}: {found:?}"
        );
        assert!(!tree.join(made).exists(), "{made}");
    }
    fs::remove_dir_all(root).unwrap();
}

/// Unchanged it stays; another one, or anything else in its place, is what the stage has made.
#[test]
fn b13_a_link_that_was_replaced_is_moved() {
    let root = scratch("replaced");
    let at = root.join("tree/link");
    symlink("x", &at).unwrap();
    assert!(done(watch(&root)).is_empty());
    let replace: [fn(&Path); 3] =
        [|at| symlink("y", at).unwrap(), |at| fs::write(at, "x").unwrap(), |at| fs::create_dir(at).unwrap()];
    for replace in replace {
        let watch = watch(&root);
        fs::remove_file(&at).unwrap();
        replace(&at);
        let found = done(watch);
        assert!(found.len() == 1 && found[0].moved.is_ok(), "{found:?}");
        assert!(fs::symlink_metadata(&at).is_err());
        symlink("x", &at).unwrap();
    }
    fs::remove_file(&at).unwrap();
    assert!(done(watch(&root)).is_empty(), "what is gone does nothing");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn b12_too_many_names_beside_a_pattern_are_told() {
    let root = scratch("crowd");
    let tree = root.join("tree");
    let pattern = Pattern {
        dir: String::new(),
        name: "mise.*.toml".into(),
        known: Vec::new(),
        obeyed: Obeyed::AfterConsent,
    };
    let watch = start(WatchList { tree: tree.clone(), patterns: vec![pattern], ..WatchList::default() });
    fs::write(tree.join("one"), "").unwrap();
    for number in 0..MAX_ENTRIES {
        // Links of one file are made sooner than files; 60 000 are more than some file systems allow.
        let first = tree.join(if number < MAX_ENTRIES / 2 { "one" } else { "0" });
        let new = tree.join(number.to_string());
        if number == 0 { fs::write(new, "").unwrap() } else { fs::hard_link(first, new).unwrap() }
    }
    let found = done(watch.unwrap());
    let [Leftover { path, moved: Err(error) }] = &found[..] else { panic!("{found:?}") };
    assert!(path.ends_with("mise.*.toml") && error.to_string().contains("too many names"), "{error}");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn b12_names_of_a_pattern_are_moved_but_for_those_that_were_there() {
    let root = scratch("pattern");
    let tree = root.join("tree");
    let pattern = |dir: &str| Pattern {
        dir: dir.into(),
        name: "mise.*.toml".into(),
        known: vec!["mise.mine.toml".into()],
        obeyed: Obeyed::AfterConsent,
    };
    let patterns = vec![pattern(""), pattern(".config")];
    for dir in [tree.clone(), tree.join(".config")] {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("mise.mine.toml"), "mine").unwrap();
    }
    let watch = start(WatchList { tree: tree.clone(), patterns, ..WatchList::default() }).unwrap();
    for name in ["mise.x.toml", ".config/mise.y.toml", "mise.toml", "other.toml"] {
        fs::write(tree.join(name), "evil").unwrap();
    }
    let found = done(watch);
    assert!(found.len() == 2 && found.iter().all(|found| found.moved.is_ok()), "{found:?}");
    assert_eq!(names_in(&tree), [".config", QUARANTINE, "mise.mine.toml", "mise.toml", "other.toml"]);
    assert_eq!(names_in(&tree.join(".config")), ["mise.mine.toml"]);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn b14_a_link_does_not_lead_the_move_out_of_the_tree() {
    let root = scratch("link");
    let watch = watch(&root);
    fs::create_dir_all(root.join("outside/hooks")).unwrap();
    symlink(root.join("outside"), root.join("tree/.git")).unwrap();
    let found = done(watch);
    let [Leftover { path, moved: Ok(moved) }] = &found[..] else { panic!("{found:?}") };
    assert_eq!((path, names_in(&root.join("outside"))), (&root.join("tree/.git"), vec!["hooks".into()]));
    assert_eq!(fs::read_link(moved).unwrap(), root.join("outside"), "the link, and nothing behind it");
    fs::remove_dir_all(root).unwrap();
}

/// git on the host, or another run, replaces files while a run ends.
#[test]
fn a_file_that_is_replaced_while_it_is_judged_is_judged_again() {
    let root = scratch("again");
    let tree = root.join("tree");
    let watch = watch(&root);
    watch.later.has_writer.set(|_| Ok(false)).unwrap();
    let looks = std::cell::Cell::new(0);
    let settle = |rights: usize| {
        looks.set(0);
        fs::write(tree.join("file"), "0").unwrap();
        watch.settle_at("file", |_, _, _| {
            let look = looks.replace(looks.get() + 1);
            if look == rights {
                return true;
            }
            let new = tree.join("new");
            fs::write(&new, "1").unwrap();
            fs::rename(new, tree.join("file")).unwrap();
            false
        })
    };
    assert!(settle(3).is_none());
    assert!(settle(JUDGED_AGAIN).is_some_and(|found| found.moved.is_ok()), "a stage can go on with that");
    assert_eq!(looks.get(), JUDGED_AGAIN);
    fs::remove_dir_all(root).unwrap();
}

/// Further down, and in a directory that the stage has closed.
#[test]
fn b12_a_link_on_the_way_is_moved() {
    let root = scratch("way");
    let tree = root.join("tree");
    let list = WatchList {
        tree: tree.clone(),
        names: list(&["a/b/c/name", "a/b/other"]),
        patterns: Vec::new(),
        links: Vec::new(),
        pointers: Vec::new(),
        bare: Vec::new(),
        repositories: Vec::new(),
        held: Vec::new(),
        ..WatchList::default()
    };
    fs::create_dir_all(root.join("outside/c")).unwrap();
    fs::write(root.join("outside/c/name"), "mine").unwrap();
    let watch = start(list).unwrap();
    fs::create_dir_all(tree.join("a")).unwrap();
    symlink("../../outside", tree.join("a/b")).unwrap();
    mode(&tree.join("a"), 0o500);
    let found = done(watch);
    mode(&tree.join("a"), 0o755);
    assert!(found.len() == 1 && found[0].moved.is_ok(), "{found:?}");
    assert!(names_in(&tree.join("a")).is_empty());
    assert_eq!(fs::read_link(aside_of(&tree, "RUN").join("a/b")).unwrap(), Path::new("../../outside"));
    assert_eq!(fs::read(root.join("outside/c/name")).unwrap(), b"mine");
    fs::remove_dir_all(root).unwrap();
}

/// A missing name of a bare repository is moved only if the stage has completed the repository.
#[test]
fn b12_a_bare_repository_is_none_afterwards() {
    for (before, made, moved) in [
        ("", "HEAD objects refs", "HEAD"),
        ("", "HEAD commondir", "HEAD"),
        ("HEAD", "objects refs commondir", "commondir objects"),
        ("HEAD objects", "refs", "refs"),
        ("objects refs", "HEAD", "HEAD"),
        ("", "HEAD refs", ""),
        ("", "objects refs commondir", ""),
        ("objects", "HEAD", ""),
    ] {
        let root = scratch("bare");
        let tree = root.join("tree");
        before.split_whitespace().for_each(|name| fs::create_dir(tree.join(name)).unwrap());
        let is_missing = |name: &&&str| !before.contains(**name);
        let watch = start(WatchList {
            tree: tree.clone(),
            names: Vec::new(),
            patterns: Vec::new(),
            links: Vec::new(),
            pointers: Vec::new(),
            bare: REPOSITORY.iter().filter(is_missing).map(ToString::to_string).collect(),
            repositories: Vec::new(),
            held: Vec::new(),
            ..WatchList::default()
        });
        // Links that lead nowhere may lead somewhere tomorrow.
        made.split_whitespace().for_each(|name| symlink("x", tree.join(name)).unwrap());
        let found = done(watch.unwrap());
        let names: Vec<_> = found.iter().map(|found| found.path.file_name().unwrap()).collect();
        assert_eq!(names, moved.split_whitespace().collect::<Vec<_>>(), "{before}, then {made}");
        assert!(!is_repository(|name| fs::symlink_metadata(tree.join(name)).is_ok()));
        fs::remove_dir_all(root).unwrap();
    }
}

#[test]
fn b14_a_link_on_the_way_to_the_tree_is_not_followed() {
    let root = scratch("swapped");
    fs::rename(root.join("tree"), root.join("elsewhere")).unwrap();
    symlink("elsewhere", root.join("tree")).unwrap();
    let list = |tree: &str| WatchList {
        tree: root.join(tree),
        names: list(&[".envrc"]),
        patterns: Vec::new(),
        ..WatchList::default()
    };
    let error = start(list("tree")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::ELOOP), "{error}");
    start(list("elsewhere")).unwrap();
    fs::remove_dir_all(root).unwrap();
}

/// Root's rights reach through any mode: then this says nothing, and tests/e2e/escape/quarantine.rs is what counts.
#[test]
fn b12_moves_names_out_of_directories_without_write_permission() {
    let root = scratch("modes");
    let (tree, git) = (root.join("tree"), root.join("tree/.git"));
    for (of_git, of_tree) in [(0o555, 0o555), (0o555, 0o755), (0o000, 0o000), (0o400, 0o2500)] {
        let watch = watch(&root);
        fs::create_dir_all(git.join("hooks")).unwrap();
        fs::write(git.join("hooks/pre-commit"), "evil").unwrap();
        fs::write(tree.join(".envrc"), "evil").unwrap();
        mode(&git, of_git);
        mode(&tree, of_tree);
        let found = done(watch);
        assert_eq!(fs::metadata(&tree).unwrap().permissions().mode() & 0o7777, of_tree);
        mode(&tree, 0o755);
        assert_eq!(fs::metadata(&git).unwrap().permissions().mode() & 0o7777, of_git);
        mode(&git, 0o755);
        assert!(found.len() == 2 && found.iter().all(|found| found.moved.is_ok()), "{found:?}");
        assert!(!git.join("hooks").exists() && !tree.join(".envrc").exists());
    }
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn b12_a_pointer_to_another_repository_is_moved() {
    let root = scratch("pointer");
    let git = root.join("tree/.git");
    fs::create_dir_all(root.join("tree/x/hooks")).unwrap();
    let make: [fn(&Path); 2] = [|at| fs::write(at, "gitdir: x").unwrap(), |at| symlink("x", at).unwrap()];
    for make in make {
        let watch = watch_git(&root);
        make(&git);
        let found = done(watch);
        assert!(found.len() == 1 && found[0].path == git && found[0].moved.is_ok(), "{found:?}");
        assert!(fs::symlink_metadata(&git).is_err());
    }
    assert!(root.join("tree/x/hooks").is_dir(), "nothing behind it is touched");

    // There at the start, and bound read-only: the caller's own.
    fs::write(&git, "gitdir: mine").unwrap();
    assert!(done(watch_git(&root)).is_empty());
    fs::remove_file(&git).unwrap();
    // A directory may be made; what git obeys in it may not.
    let watch = watch_git(&root);
    fs::create_dir_all(git.join("hooks")).unwrap();
    fs::write(git.join("hooks/pre-commit"), "evil").unwrap();
    let found = done(watch);
    assert!(found.len() == 1 && found[0].path == git.join("hooks"), "{found:?}");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn b12_moves_names_that_are_taken_or_too_long_in_the_quarantine() {
    let root = scratch("taken");
    let tree = root.join("tree");
    let long = format!("{}\u{fc}", "n".repeat(236));
    let longer = "\u{fc}".repeat(127);
    let names = list(&[".envrc", &long, &longer]);
    let list = WatchList {
        tree: tree.clone(),
        names,
        patterns: Vec::new(),
        links: Vec::new(),
        pointers: Vec::new(),
        bare: Vec::new(),
        repositories: Vec::new(),
        held: Vec::new(),
        ..WatchList::default()
    };
    let watch = start(list).unwrap();
    for name in [".envrc", &long, &longer] {
        fs::write(tree.join(name), "evil").unwrap();
    }
    // The run's directory, and what is to lie in it.
    fs::create_dir_all(aside_of(&tree, "RUN").join(".envrc")).unwrap();
    let found = done(watch);
    assert!(found.len() == 4 && found.iter().all(|found| found.moved.is_ok()), "{found:?}");
    assert_eq!(found[3].path, tree.join(QUARANTINE), "the stage's own");
    for Leftover { path, moved } in &found[..3] {
        assert!(fs::symlink_metadata(path).is_err());
        assert_eq!(fs::read(moved.as_ref().unwrap()).unwrap(), b"evil");
    }
    fs::remove_dir_all(root).unwrap();
}

/// Names that meet in the quarantine keep one another; and what was put there is entered by nothing else.
#[test]
fn l08_a_moved_entry_neither_replaces_nor_enters_an_earlier_one() {
    let root = scratch("meet");
    let tree = root.join("tree");
    let watch = watch(&root);
    for name in ["one", "two"] {
        fs::create_dir(tree.join(name)).unwrap();
        fs::write(tree.join(name).join("x"), name).unwrap();
    }
    fs::create_dir(tree.join("a")).unwrap();
    let store = watch.store().unwrap();
    let take = |dir: &str, last: &str, path: &str| {
        let dir = open_at(watch.tree(), Path::new(dir)).unwrap();
        tree.join(store.take(dir.as_fd(), OsStr::new(last), Path::new(path)).unwrap())
    };
    let aside = take(".", "a", "a");
    let (first, second) = (take("one", "x", "a/x"), take("two", "x", "a/x"));
    assert_eq!((fs::read(first).unwrap(), fs::read(second).unwrap()), (b"one".to_vec(), b"two".to_vec()));
    assert!(names_in(&aside).is_empty(), "the stage has made it");
    fs::remove_dir_all(root).unwrap();
}

/// Whatever the stage puts under the name of the quarantine leads nowhere, and is set aside with the rest.
#[test]
fn l08_the_quarantine_cannot_be_made_beforehand() {
    let make: [fn(&Path, &Path); 5] = [
        |at, _| {
            // As exeat makes its own.
            fs::create_dir(at).unwrap();
            mode(at, 0o700);
        },
        |at, outside| symlink(outside, at).unwrap(),
        |at, _| fs::write(at, "x").unwrap(),
        |at, outside| {
            fs::create_dir(at).unwrap();
            mode(at, 0o755);
            symlink(outside, at.join("RUN")).unwrap();
        },
        |at, _| {
            fs::create_dir(at).unwrap();
            mode(at, 0o000);
        },
    ];
    for (number, make) in make.into_iter().enumerate() {
        let root = scratch(&format!("forged-{number}"));
        let (tree, outside, state) = (root.join("tree"), root.join("outside"), root.join("state"));
        fs::create_dir(&outside).unwrap();
        let names = list(&[".envrc"]);
        let list = WatchList { tree: tree.clone(), names, ..WatchList::default() };
        let state_of_run = StateOfRun { run: "RUN".into(), dir: Some(state.clone()) };
        let watch = Watch::start(list, state_of_run).unwrap();
        fs::write(tree.join(".envrc"), "evil").unwrap();
        make(&tree.join(QUARANTINE), &outside);
        let found = done(watch);
        let [Leftover { moved: Ok(moved), .. }, Leftover { path, moved: Ok(_) }] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(*path, tree.join(QUARANTINE));
        assert_eq!(*moved, aside_of(&tree, "RUN").join(".envrc"));
        assert_eq!(fs::read(moved).unwrap(), b"evil");
        assert!(fs::symlink_metadata(aside_of(&tree, "RUN").join(QUARANTINE)).is_ok());
        assert!(names_in(&outside).is_empty(), "the link was followed");
        assert_eq!(names_in(&tree), [QUARANTINE], "nothing of the stage's is left beside it");
        // A second run finds the directory of the first one, and uses it.
        assert_eq!(directories(Some(&state), []), BTreeSet::from([tree.join(QUARANTINE)]));
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
        mode(&aside_of(&tree, "RUN").join(QUARANTINE), 0o700);
        fs::remove_dir_all(root).unwrap();
    }
}

/// A directory like exeat's own that an earlier stage has made is not taken for one, and goes though nothing else does.
/// A live stage gives it another name, and puts its own there.
#[test]
fn l08_the_quarantine_gets_its_name_back() {
    for has_other in [false, true] {
        let root = scratch(&format!("name-back-{has_other}"));
        let watch = watch(&root);
        fs::write(root.join("tree/.envrc"), "evil").unwrap();
        assert!(watch.settle_name(".envrc").is_some_and(|found| found.moved.is_ok()));
        let (own, away) = (root.join("tree").join(QUARANTINE), root.join("tree/a"));
        fs::create_dir(&away).unwrap();
        fs::rename(&own, away.join("b")).unwrap();
        if has_other {
            fs::create_dir_all(own.join("RUN")).unwrap();
            fs::write(own.join("RUN/.envrc"), "other").unwrap();
        }
        let found = done(watch);
        assert_eq!(found.len(), usize::from(has_other), "{found:?}");
        assert!(found.iter().all(|found| found.path == own && found.moved.is_ok()), "{found:?}");
        assert_eq!(fs::read(aside_of(&root.join("tree"), "RUN").join(".envrc")).unwrap(), b"evil");
        assert!(!away.join("b").exists());
        fs::remove_dir_all(root).unwrap();
    }
}

#[test]
fn l08_a_quarantine_that_exeat_did_not_make_is_moved() {
    let root = scratch("adopted");
    let (tree, state) = (root.join("tree"), root.join("state"));
    let start = |run: &str| {
        let list = WatchList { tree: tree.clone(), names: list(&[".envrc"]), ..WatchList::default() };
        Watch::start(list, StateOfRun { run: run.into(), dir: Some(state.clone()) }).unwrap()
    };
    let forge = || {
        fs::create_dir(tree.join(QUARANTINE)).unwrap();
        mode(&tree.join(QUARANTINE), 0o700);
    };
    let watch = start("ONE");
    forge();
    let found = done(watch);
    let [Leftover { path, moved: Ok(moved) }] = &found[..] else { panic!("{found:?}") };
    assert_eq!((path, moved), (&tree.join(QUARANTINE), &aside_of(&tree, "ONE").join(QUARANTINE)));
    assert!(done(start("TWO")).is_empty(), "exeat's own stays");
    // One of which nobody knows any more who made it.
    // Moved, not removed: the file system may give its inode to the next directory.
    fs::rename(tree.join(QUARANTINE), root.join("away")).unwrap();
    forge();
    let watch = start("THREE");
    fs::write(tree.join(".envrc"), "evil").unwrap();
    assert_eq!(done(watch).len(), 2);
    assert_eq!(fs::read(tree.join(QUARANTINE).join(".gitignore")).unwrap(), b"*\n");
    fs::remove_dir_all(root).unwrap();
}

/// A stage may close the top of the tree. For root no directory is closed.
#[test]
fn l08_a_closed_tree_keeps_the_quarantine_that_exeat_made() {
    let root = scratch("closed");
    let (tree, state) = (root.join("tree"), root.join("state"));
    for number in 0..3 {
        let list = WatchList { tree: tree.clone(), names: list(&[".envrc"]), ..WatchList::default() };
        let state_of_run = StateOfRun { run: format!("RUN{number}"), dir: Some(state.clone()) };
        let watch = Watch::start(list, state_of_run).unwrap();
        fs::write(tree.join(".envrc"), "evil").unwrap();
        // In the first round the tree has no quarantine yet; in the last one the stage made it.
        if number == 2 {
            fs::rename(tree.join(QUARANTINE), root.join("away")).unwrap();
            fs::create_dir(tree.join(QUARANTINE)).unwrap();
        }
        mode(&tree, 0);
        let found = done(watch);
        assert_eq!(fs::metadata(&tree).unwrap().permissions().mode() & 0o777, 0);
        mode(&tree, 0o755);
        assert_eq!(found.len(), if number == 2 { 2 } else { 1 }, "{found:?}");
        assert!(found.iter().all(|found| found.moved.is_ok()), "{found:?}");
        assert_eq!(names_in(&tree), [QUARANTINE]);
    }
    assert_eq!(names_in(&root.join("away/git~1")), ["RUN0", "RUN1"]);
    fs::remove_dir_all(root).unwrap();
}

/// If the quarantine cannot be made, entries are renamed in place.
#[test]
fn l08_without_room_for_a_quarantine_names_are_moved_all_the_same() {
    let root = scratch("no-room");
    let mut watch = watch(&root);
    fs::write(root.join("tree/.envrc"), "evil").unwrap();
    // A file is in the way of the manifests.
    fs::write(root.join("state"), "").unwrap();
    watch.state_of_run.dir = Some(root.join("state"));
    let told = finish(&[watch]);
    let [Leftover { moved: Ok(moved), .. }] = &told.named[..] else { panic!("{told:?}") };
    assert!(moved.to_string_lossy().contains(".envrc.exeat-quarantine."), "{moved:?}");
    assert!(told.unlisted.is_some(), "`exeat state list` does not know it, and nobody says so");
    assert!(!root.join("tree/.envrc").exists());
    fs::remove_dir_all(root).unwrap();
}

/// The directory is read again until nothing more can be moved.
#[test]
fn l08_more_names_of_a_pattern_than_are_read_at_once_are_moved() {
    let root = std::env::temp_dir().join(format!("pattern-flood-{}", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    let pattern = Pattern {
        dir: String::new(),
        name: "m.*.toml".into(),
        known: vec!["m.known.toml".into()],
        obeyed: Obeyed::WhenStarted,
    };
    let list = WatchList { tree: root.clone(), ..WatchList::default() };
    let watch = Watch::start(list, StateOfRun { run: "RUN".into(), dir: None }).unwrap();
    let made = (0..10).map(|number| format!("m.{number}.toml"));
    for name in made.chain(["m.known.toml".into(), "other".into()]) {
        fs::write(root.join(name), "").unwrap();
    }
    let told = watch.settle_pattern_by(4, &pattern);
    assert_eq!(told.iter().filter(|it| it.moved.is_ok()).count(), 10, "{told:?}");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 3);
    fs::remove_dir_all(root).unwrap();
}

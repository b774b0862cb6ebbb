use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn scratch(name: &str) -> (PathBuf, StateOfRun) {
    let at = format!("store-{name}-{}", std::process::id());
    let root = std::env::current_exe().unwrap().with_file_name(at);
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("tree")).unwrap();
    let state_of_run = StateOfRun { run: "RUN".into(), dir: Some(root.join("state")) };
    (root, state_of_run)
}

#[test]
fn l19_any_repository_counts_as_noted_if_the_list_cannot_be_read_unless_it_is_trusted() {
    let (root, state_of_run) = scratch("unread");
    let (noted, other) = (DirectoryId::read(File::open(&root).unwrap().as_fd()).unwrap(), root.join("tree"));
    let other = DirectoryId::read(File::open(other).unwrap().as_fd()).unwrap();
    state_of_run.note_repository(noted).unwrap();
    let state = root.join("state");
    let are_noted = || [noted, other].map(|id| is_noted_repository(&state, Some(id)));
    assert_eq!(are_noted(), [true, false]);
    let list = state_of_run.manifests().unwrap().join(MADE_REPOSITORIES);
    OpenOptions::new().append(true).open(list).unwrap().write_all(b"\xff\n").unwrap();
    assert_eq!(are_noted(), [true, true]);
    note_trusted_repository(&state, noted).unwrap();
    assert_eq!((are_noted(), is_noted_repository(&state, None)), ([false, true], true));
    let trusted = state_of_run.manifests().unwrap().join(TRUSTED_REPOSITORIES);
    OpenOptions::new().append(true).open(trusted).unwrap().write_all(b"\xff\n").unwrap();
    assert_eq!(are_noted(), [true, true]);
    fs::remove_dir_all(root).unwrap();
}

/// The run was killed when it had moved it out of the way, or could not set it aside.
#[test]
fn l08_a_strange_directory_that_was_moved_is_hidden() {
    let (root, state_of_run) = scratch("moved");
    let path = root.join("tree");
    let tree = File::open(&path).unwrap();
    let make = || fs::DirBuilder::new().mode(0o700).create(path.join(QUARANTINE)).unwrap();
    let hidden = || directories(state_of_run.dir.as_deref(), []);
    make();
    fs::create_dir_all(state_of_run.manifests().unwrap()).unwrap();
    let name = move_strange(tree.as_fd(), &path, &state_of_run).unwrap();
    assert_eq!(hidden(), BTreeSet::from([path.join(&name)]));
    // It is not exeat's for that, whatever its name.
    fs::rename(path.join(&name), path.join(QUARANTINE)).unwrap();
    assert!(is_strange(tree.as_fd(), &state_of_run) && hidden().is_empty());
    // The entry that was set aside no longer has that name.
    Store::open(tree.as_fd(), &path, &state_of_run).unwrap();
    assert_eq!(hidden(), BTreeSet::from([path.join(QUARANTINE)]));
    assert_eq!(known(&state_of_run.manifests().unwrap()).len(), 2);
    fs::remove_dir_all(&root).unwrap();
}

/// Other users could replace what was set aside.
#[test]
fn l19_a_quarantine_that_the_stage_opened_is_closed_again() {
    let (root, state_of_run) = scratch("opened");
    let (path, dir) = (root.join("tree"), root.join("tree").join(QUARANTINE));
    let start = || {
        let list = super::super::WatchList { tree: path.clone(), ..Default::default() };
        super::super::Watch::start(list, state_of_run.clone()).unwrap()
    };
    let set = |mode| fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
    Store::open(File::open(&path).unwrap().as_fd(), &path, &state_of_run).unwrap();
    for mode in [0o777, 0o2770, 0o705, 0o000] {
        let watch = start();
        set(mode);
        assert!(super::super::finish([&watch]).named.is_empty());
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700, "{mode:o}");
    }
    // The directory of a stage, or of another user, stays as it is.
    fs::remove_dir_all(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    set(0o755);
    assert!(is_strange(File::open(&path).unwrap().as_fd(), &state_of_run));
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o755);
    fs::remove_dir_all(&root).unwrap();
}

/// The quarantine was removed by hand, and a stage has made a directory that got its inode.
#[test]
fn l08_a_directory_with_the_inode_of_one_that_is_gone_is_strange() {
    let (root, state_of_run) = scratch("inode");
    let (path, dir) = (root.join("tree"), root.join("tree").join(QUARANTINE));
    let tree = File::open(&path).unwrap();
    let made = Store::open(tree.as_fd(), &path, &state_of_run).unwrap().directory;
    assert!(!is_strange(tree.as_fd(), &state_of_run));
    if made.created.is_none() {
        return eprintln!("skipped: this file system keeps no time of creation");
    }
    // Whatever the file system gives out.
    let later = made.created.map(|time| time + Duration::from_nanos(1));
    assert!(state_of_run.has_made(made) && !state_of_run.has_made(DirectoryId { created: later, ..made }));
    for _ in 0..100 {
        fs::remove_dir_all(&dir).unwrap();
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        assert!(is_strange(tree.as_fd(), &state_of_run));
        if DirectoryId::read(File::open(&dir).unwrap().as_fd()).unwrap().file == made.file {
            break;
        }
    }
    let store = Store::open(tree.as_fd(), &path, &state_of_run).unwrap();
    assert_eq!(store.strange(), Some(&*store.place().join(QUARANTINE)));
    fs::remove_dir_all(&root).unwrap();
}

/// The stage chooses how many names there are, and how long they are.
#[test]
fn l08_a_list_that_is_full_stays_readable() {
    let (root, state_of_run) = scratch("full");
    fs::create_dir_all(state_of_run.manifests().unwrap()).unwrap();
    let tree = File::open(root.join("tree")).unwrap();
    let store = Store::open(tree.as_fd(), &root.join("tree"), &state_of_run).unwrap();
    let mut manifest = state_of_run.manifest().unwrap().unwrap();
    let take = |name: &str| {
        fs::write(root.join("tree").join(name), "").unwrap();
        store.take(tree.as_fd(), OsStr::new(name), Path::new(name)).unwrap();
    };
    take("first");
    let length = LONGEST_MANIFEST - manifest.metadata().unwrap().len() - 1;
    manifest.write_all(&vec![b'x'; usize::try_from(length).unwrap()]).unwrap();
    take("second");
    assert_eq!(store.unlisted().as_deref(), Some("the list has 64 MiB"));
    let listed: Vec<_> = state_of_run.listed().into_iter().map(|item| item.from).collect();
    assert_eq!(listed, [Path::new("first")]);
    fs::remove_dir_all(root).unwrap();
}

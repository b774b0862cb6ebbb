use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use crate::testing::Dir;

fn place(dir: &Dir) -> RecordDir {
    RecordDir::from_env(Some(dir.path().as_os_str()), None).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_place_follows_the_environment() {
    let dir = |state: Option<&str>, home: Option<&str>| {
        RecordDir::from_env(state.map(OsStr::new), home.map(OsStr::new)).ok().map(|place| place.dir)
    };
    assert_eq!(dir(Some("/s"), Some("/h")), Some("/s/exeat/runs".into()));
    assert_eq!(dir(None, Some("/h")), Some("/h/.local/state/exeat/runs".into()));
    assert_eq!(dir(Some(""), Some("/h")), Some("/h/.local/state/exeat/runs".into()));
    assert_eq!(dir(Some("relative"), Some("/h")), Some("/h/.local/state/exeat/runs".into()));
    assert_eq!(dir(None, Some("relative")), None);
    assert_eq!(dir(None, None), None);
}

/// A02: only the owner may read what is made.
#[test]
fn a02_directories_and_files_are_private() {
    let dir = Dir::new();
    let place = RecordDir::from_env(Some(dir.join("new/state").as_os_str()), None).unwrap();
    let (_, path) = place.create(RunId::new()).unwrap();
    let policy = store_policy(&path, "{}", true).unwrap();
    for made in ["new", "new/state", "new/state/exeat", "new/state/exeat/runs"] {
        assert_eq!(mode(&dir.join(made)), 0o700, "{made}");
    }
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&policy), 0o600);
    assert_eq!(policy.to_str(), path.to_str().map(|path| path.replace(".jsonl", ".policy.json")).as_deref());
    assert!(store_policy(&path, "{}", false).is_err(), "a policy is stored once");
}

/// The error names a file that is where a directory should be, and the file stays.
#[test]
fn something_else_in_the_place_of_a_directory_is_refused() {
    for name in ["state", "state/exeat", "state/exeat/runs"] {
        for is_link in [false, true] {
            let dir = Dir::new();
            let at = dir.join(name);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            match is_link {
                false => fs::write(&at, "mine").unwrap(),
                true => symlink("nowhere", &at).unwrap(),
            }
            if name != "state" {
                set_mode(at.parent().unwrap(), 0o700);
            }
            let place = RecordDir::from_env(Some(dir.join("state").as_os_str()), None).unwrap();
            let error = place.prepare().unwrap_err();
            assert!(
                matches!(&error, DirError::Io { path, source } if *path == at && source.kind() == io::ErrorKind::AlreadyExists),
                "{error:?}"
            );
            assert!(is_link || fs::read(&at).unwrap() == b"mine");
        }
    }
}

/// A05, H16: a policy that a full disk cut off does not block the same policy later, and is not mistaken for another's.
#[test]
fn a05_a_policy_is_stored_whole_or_not_at_all() {
    let dir = Dir::new();
    let path = dir.join("run.policy-0123456789abcdef.json");
    let full = |mut file: &File| {
        file.write_all(b"{")?;
        Err(io::ErrorKind::StorageFull.into())
    };
    assert_eq!(new_file(&path, full).unwrap_err().kind(), io::ErrorKind::StorageFull);
    let digest = "0123456789abcdef".repeat(4);
    let store = |text| store_reloaded(&dir.join("run.jsonl"), &digest, text, true);
    assert_eq!(store("{}").unwrap(), path);
    assert_eq!(store("{}").unwrap(), path, "it is there already");
    assert!(store("{1}").is_err(), "another one of this name");
    assert_eq!(new_file(&path, full).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"{}");
}

#[test]
fn a_policy_stands_beside_a_record_of_any_name() {
    assert_eq!(policy_path(Path::new("a/run.jsonl")), Path::new("a/run.policy.json"));
    assert_eq!(policy_path(Path::new("a/run.log")), Path::new("a/run.log.policy.json"));
    assert_eq!(policy_path(Path::new("run")), Path::new("run.policy.json"));
}

/// A02: a directory that others may write to is refused.
#[test]
fn a02_directories_that_others_may_write_to_are_refused() {
    for (made, bits, ok) in [
        ("exeat", 0o700, true),
        ("exeat", 0o755, true),
        ("exeat", 0o770, false),
        ("exeat", 0o707, false),
        ("exeat/runs", 0o702, false),
        ("exeat/runs", 0o720, false),
        ("", 0o775, true),
        ("", 0o777, false),
        ("", 0o1777, true),
    ] {
        let dir = Dir::new();
        fs::create_dir_all(dir.join("exeat/runs")).unwrap();
        set_mode(&dir.join("exeat"), 0o700);
        set_mode(&dir.join("exeat/runs"), 0o700);
        set_mode(&dir.join(made), bits);
        let made_it = place(&dir).create(RunId::new());
        assert_eq!(made_it.is_ok(), ok, "{made:?} {bits:o}");
        assert!(ok || matches!(made_it, Err(DirError::Unsafe { .. })));
    }
}

#[test]
fn somebody_elses_directory_is_refused() {
    // `/proc` belongs to root in every namespace, and nobody may write to it.
    if geteuid().is_root() {
        let dir = Dir::new();
        fs::create_dir(dir.join("exeat")).unwrap();
        std::os::unix::fs::chown(dir.join("exeat"), Some(65534), Some(65534)).unwrap();
        assert!(matches!(place(&dir).create(RunId::new()), Err(DirError::Unsafe { .. })));
        std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
        assert!(matches!(place(&dir).create(RunId::new()), Err(DirError::Unsafe { .. })));
    } else {
        assert!(matches!(check_own(Path::new("/proc")), Err(DirError::Unsafe { .. })));
    }
}

#[test]
fn a_link_of_our_own_may_lead_elsewhere() {
    let dir = Dir::new();
    fs::create_dir(dir.join("elsewhere")).unwrap();
    set_mode(&dir.join("elsewhere"), 0o700);
    symlink(dir.join("elsewhere"), dir.join("exeat")).unwrap();
    place(&dir).create(RunId::new()).unwrap();
    set_mode(&dir.join("elsewhere"), 0o777);
    assert!(matches!(place(&dir).create(RunId::new()), Err(DirError::Unsafe { .. })));
}

#[test]
fn records_are_listed_newest_first() {
    let dir = Dir::new();
    let place = place(&dir);
    assert!(place.records().unwrap().is_empty());
    assert!(matches!(place.last(), Err(DirError::Empty { .. })));
    let runs: Vec<RunId> =
        ["01JD8Z3V5Q0000000000000000", "01JD8Z3V5R0000000000000000", "01KD8Z3V5Q0000000000000000"]
            .iter()
            .map(|run| run.parse().unwrap())
            .collect();
    for run in &runs {
        place.create(*run).unwrap();
    }
    for other in ["notes.txt", "01JD8Z3V5Q0000000000000000.policy.json", "01jd8z3v5q0000000000000000.jsonl"] {
        fs::write(place.dir().join(other), "").unwrap();
    }
    assert_eq!(place.records().unwrap(), [2, 1, 0].map(|at: usize| place.path_for(runs[at])));
    assert_eq!(place.last().unwrap(), place.path_for(runs[2]));
}

#[test]
fn a_run_is_found_by_name_prefix_and_path() {
    let dir = Dir::new();
    let place = place(&dir);
    let [a, b] =
        ["01JD8Z3V5Q0000000000000000", "01JD8Z3V5R0000000000000000"].map(|run| run.parse::<RunId>().unwrap());
    place.create(a).unwrap();
    place.create(b).unwrap();
    let found = |name: &str| place.find(name);
    assert_eq!(found(&a.to_string()).unwrap(), place.path_for(a));
    assert_eq!(found("01JD8Z3V5R").unwrap(), place.path_for(b));
    assert_eq!(found("01jd8z3v5q").unwrap(), place.path_for(a));
    assert_eq!(found("./01JD").unwrap(), Path::new("./01JD"));
    assert_eq!(found("run.jsonl").unwrap(), Path::new("run.jsonl"));
    assert!(
        matches!(found("01JD8Z"), Err(DirError::Ambiguous { candidates, more: 0, .. }) if candidates.len() == 2)
    );
    assert!(matches!(found("01ZZ"), Err(DirError::NotFound { .. })));
    assert!(matches!(found(""), Err(DirError::NotFound { .. })));
}

#[test]
fn finds_files_beside_a_record() {
    let dir = Dir::new();
    let record = dir.join("run.jsonl");
    assert_eq!(stored_policies(&record).unwrap(), Vec::<PathBuf>::new());
    assert_eq!(read_policy(&policy_path(&record)).unwrap(), None);
    let first = store_policy(&record, "{}", false).unwrap();
    let again = store_reloaded(&record, &"ab".repeat(32), "{\"x\":1}", false).unwrap();
    for other in [
        "run.policy-short.json",
        "run.policy-abababababababab.json.x",
        "run2.policy.json",
        "run.policyx.json",
    ] {
        fs::write(dir.join(other), "").unwrap();
    }
    assert_eq!(stored_policies(&record).unwrap(), [first.clone(), again]);
    assert_eq!(read_policy(&first).unwrap().as_deref(), Some("{}"));
    assert!(read_policy(dir.path()).is_err(), "a directory");
}

/// The record is removed last: the record shows an interrupted removal, and a policy alone would not.
#[test]
fn the_files_of_a_run_are_removed_together() {
    let dir = Dir::new();
    let place = RecordDir::from_env(Some(dir.path().as_os_str()), None).unwrap();
    let run = RunId::new();
    let (sink, record) = place.create(run).unwrap();
    drop(sink);
    fs::write(&record, "12345").unwrap();
    let policy = store_policy(&record, "{}", false).unwrap();
    let again = store_reloaded(&record, &"ab".repeat(32), "{}", false).unwrap();
    let stray = place.dir().join("01JD8Z3V5Q0000000000000000.policy.json");
    fs::write(&stray, "").unwrap();
    fs::write(place.dir().join(format!("{run}.notes.json")), "").unwrap();
    let [stored] = &place.stored_runs().unwrap()[..] else { panic!("one run") };
    assert_eq!((stored.run, &stored.path, stored.bytes()), (run, &record, 9));
    let mut policies = stored.policies.clone();
    policies.sort();
    assert_eq!(policies, [again.clone(), policy.clone()]);
    assert!(stored.last_written().unwrap() >= run.created_at());
    // A policy that cannot be removed keeps the record.
    fs::remove_file(&again).unwrap();
    fs::create_dir(&again).unwrap();
    assert!(stored.remove().is_err() && record.exists());
    fs::remove_dir(&again).unwrap();
    stored.remove().unwrap();
    assert!(!record.exists() && !policy.exists() && stray.exists());
    stored.remove().unwrap();
    assert_eq!(place.stored_runs().unwrap(), []);
}

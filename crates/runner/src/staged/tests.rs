use std::os::unix::fs::{PermissionsExt, symlink};

use exeat_contract::NOBODY;

use super::*;

#[test]
fn two_users_change_places_and_the_others_stay() {
    let all = "         0          0 4294967295\n";
    let lines = "0 65534 1\n65534 0 1\n1 1 65533\n65535 65535 4294901760\n";
    assert_eq!(exchange_lines(all, 0, 65534).as_deref(), Some(lines));
    assert_eq!(exchange_lines(all, 65534, 0).unwrap().lines().count(), 4);
    assert_eq!(exchange_lines(all, 7, 7).as_deref(), Some("0 0 4294967295\n"));
    // A container cannot map ids that it does not have.
    let some = "0 100000 1000\n5000 200000 2\n";
    assert_eq!(exchange_lines(some, 0, 65534), None);
    assert_eq!(exchange_lines(some, 0, 1000), None);
    assert_eq!(
        exchange_lines(some, 999, 5001).as_deref(),
        Some("999 5001 1\n5001 999 1\n0 0 999\n5000 5000 1\n")
    );
    assert_eq!(exchange_lines("0 1000 1\n", 0, 65534), None);
    assert_eq!(exchange_lines("", 0, 0), None);
}

#[test]
#[ignore = "needs root"]
fn the_kernel_takes_such_a_map() {
    IdMaps::read().exchange((0, 0), (NOBODY, NOBODY)).unwrap();
}

/// B10: a name that led elsewhere when the view resolved it opens nothing of root's.
#[test]
#[ignore = "needs root"]
fn b10_a_name_that_has_changed_is_doubtful() {
    let dir = std::env::temp_dir().join(format!("staged-raced-{}", std::process::id()));
    fs::create_dir_all(dir.join("users/name")).unwrap();
    fs::create_dir_all(dir.join("closed/tree")).unwrap();
    let dir = dir.canonicalize().unwrap();
    let (name, tree) = (dir.join("users/name"), dir.join("closed/tree"));
    fs::set_permissions(dir.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(dir.join("users"), Some(1), None).unwrap();
    let taken = |names: &[(PathBuf, PathBuf)]| {
        let mut staged = Staged::new((NOBODY, NOBODY)).unwrap();
        staged.check_names(names);
        let mount = Mount::ReadOnly { host: tree.clone(), at: "/seen".into(), why: Why::Requested };
        let (_, taken) = staged.arrange(vec![mount], Path::new("/"), true).unwrap();
        (taken[0].is_some(), staged.notes().len())
    };
    assert_eq!(taken(&[(tree.clone(), tree.clone())]), (true, 0), "by its own name");
    // The name is a directory now, and was a link to the tree before.
    assert_eq!(taken(&[(name.clone(), tree.clone())]), (false, 1));
    fs::remove_dir(&name).unwrap();
    assert_eq!(taken(&[(name.clone(), tree.clone())]), (false, 1), "nothing by now");
    symlink(&tree, &name).unwrap();
    assert_eq!(taken(&[(name.clone(), tree.clone())]), (false, 1), "a link of that user's");
    fs::remove_file(&name).unwrap();
    symlink(&name, &name).unwrap();
    let mut staged = Staged::new((NOBODY, NOBODY)).unwrap();
    staged.check_names(&[(name, tree.clone())]);
    assert!(staged.notes()[0].contains("more links are on the way there"), "{:?}", staged.notes());
    fs::remove_dir_all(&dir).unwrap();
}

/// B10: a mask over an unreachable file is left out, and a closed directory is replaced by an empty one with the shown tree.
#[test]
#[ignore = "needs root"]
fn b10_a_closed_directory_is_not_opened() {
    let root = std::env::temp_dir().join(format!("staged-closed-{}", std::process::id()));
    fs::create_dir_all(root.join("closed/tree")).unwrap();
    let root = root.canonicalize().unwrap();
    let (closed, tree) = (root.join("closed"), root.join("closed/tree"));
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let all = Mount::ReadOnly { host: "/".into(), at: "/".into(), why: Why::View };
    let hidden = |at: PathBuf, entry: EmptyEntry, why: Why| Mount::Hidden { at, entry, why };
    let mask = hidden(closed.join("mask"), EmptyEntry::Dir { mode: 0 }, Why::Masked);
    let file = hidden(closed.join("file"), EmptyEntry::File, Why::Masked);
    let shown = Mount::Writable { host: tree.clone(), at: tree.clone(), why: Why::WorkingDirectory };
    let inside = hidden(tree.join("mask"), EmptyEntry::Dir { mode: 0 }, Why::Masked);
    let mut staged = Staged::new((NOBODY, NOBODY)).unwrap();
    let mounts = vec![all.clone(), mask, file, shown.clone(), inside.clone()];
    let (mounts, taken) = staged.arrange(mounts, &tree, true).unwrap();
    let cover = hidden(closed, EmptyEntry::Dir { mode: 0o555 }, Why::Closed);
    assert_eq!(mounts, [all, cover, shown, inside]);
    let own = MountSource { name: "0".into(), below: PathBuf::new() };
    assert_eq!(taken, [None, None, Some(own), None]);
    assert_eq!(staged.summaries(), [TreeSummary { name: "0".into(), host: tree, owner: Some(ROOT) }]);
    fs::remove_dir_all(&root).unwrap();
}

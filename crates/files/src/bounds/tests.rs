//! Tests sets of paths and messages.

use proptest::prelude::*;

use super::*;

fn tops(paths: &[&str]) -> Tops {
    Tops::new(paths.iter().map(PathBuf::from))
}

#[test]
fn tops_hold_the_outer_paths_and_compare_whole_components() {
    let set = tops(&["/a/b", "/a", "/ab", "/c/d"]);
    assert_eq!(set, tops(&["/a", "/ab", "/c/d"]));
    assert!(set.cover(Path::new("/a/x")) && !set.cover(Path::new("/abc")) && !set.cover(Path::new("/c")));
    assert_eq!(set.meet(&tops(&["/c", "/a/x", "/a/y", "/d"])), tops(&["/a/x", "/a/y", "/c/d"]));
    assert!(set.meet(&Tops::default()).is_empty());
}

proptest! {
    #[test]
    fn k13_an_intersection_covers_exactly_the_paths_that_both_sets_cover(
        ours in proptest::collection::vec("(/[ab]){1,3}", 0..4),
        theirs in proptest::collection::vec("(/[ab]){1,3}", 0..4),
        path in "(/[ab]){1,4}",
    ) {
        let (ours, theirs) = (Tops::new(ours.into_iter().map(PathBuf::from)), Tops::new(theirs.into_iter().map(PathBuf::from)));
        let path = Path::new(&path);
        prop_assert_eq!(ours.meet(&theirs).cover(path), ours.cover(path) && theirs.cover(path));
    }
}

#[test]
fn a_change_is_told_in_one_line() {
    let whole = Extent::new(Path::new("/srv"), true);
    let extent = |read: &[&str], write: &[&str]| Extent { read: tops(read), write: tops(write) };
    let cases = [
        (extent(&["/srv"], &["/srv"]), None),
        (extent(&[], &[]), Some("`/srv` cannot be read by the stage: S does not allow it")),
        (extent(&["/srv"], &[]), Some("`/srv` is read-only for the stage: S does not let it be written")),
        (extent(&["/srv"], &["/srv/a"]), Some("`/srv` is writable only in `/srv/a`: S allows no more")),
        (extent(&["/srv/a"], &["/srv/a"]), Some("of `/srv` only `/srv/a` is shown: S allows no more")),
        (extent(&["/srv/a"], &[]), Some("of `/srv` only `/srv/a` is shown, read-only: S allows no more")),
        (
            extent(&["/srv/a", "/srv/b"], &["/srv/a"]),
            Some("of `/srv` only `/srv/a`, `/srv/b` is shown, writable only in `/srv/a`: S allows no more"),
        ),
    ];
    for (after, expected) in cases {
        assert_eq!(describe_change("`/srv`", "S", &whole, &after).as_deref(), expected);
    }
    assert_eq!(
        describe_change("`/srv`", "S", &extent(&[], &[]), &extent(&[], &[])),
        None,
        "an earlier one has said it"
    );
}

/// A mask that neither the caller nor the stage can reach is skipped, but not one whose directory the caller could open again.
#[test]
fn a_mask_behind_somebody_else_s_closed_directory_is_skipped() {
    use std::os::unix::fs::PermissionsExt;

    let own = std::env::temp_dir().join(format!("bounds-closed-{}", std::process::id()));
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o000)).unwrap();
    assert!(!is_closed(&own.join("key")), "one's own");
    assert!(!is_closed(Path::new("/nowhere/key")), "not closed but absent");
    fs::remove_dir(&own).unwrap();
    // For an ordinary user, root's home belongs to another user.
    let closed =
        fs::metadata("/root/key").is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    assert_eq!(is_closed(Path::new("/root/key")), closed && !geteuid().is_root());
}

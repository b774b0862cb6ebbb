//! N22: the host's password hashes and the user's keys, in both views that show more than named paths.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b13_host_secrets", attack);
    list.users("escape::b13_the_home_in_passwd", registered);
    list.users("escape::b13_exeat_s_files_in_the_home_in_passwd", registered_state);
}

fn attack(cx: &Cx) {
    let keys = cx.home().join(".ssh");
    let key = keys.join("id_ed25519");
    fs::create_dir(&keys).expect(".ssh");
    fs::write(&key, "hunter2").expect("a key");
    for path in [&keys, &key] {
        cx.bench().give(path, cx.is_root());
    }
    let probe = cx.probe();
    let script = format!("{probe} read {}; {probe} read /etc/shadow", key.display());
    let outside = cx.outside(["sh", "-c", &script]).run();
    outside.shows("ok: 7 bytes\n");
    assert_eq!(outside.stdout().matches("ok: ").count(), if cx.is_root() { 2 } else { 1 }, "{outside:?}");
    for view in ["project", "host"] {
        let done = cx.exeat(["run", "--fs", view, "--", "sh", "-c", &script]).run();
        let said = done.exits(0).stdout();
        assert_eq!(said.lines().count(), 2, "{done:?}");
        for line in said.lines() {
            assert!(["ENOENT", "EACCES", "ok: 0 bytes"].contains(&line), "{view}: {done:?}");
        }
    }
}

/// HOME names another directory; the user's home is the one in passwd(5), whatever other users' entries contain.
fn registered(cx: &Cx) {
    let home = cx.home().join("registered");
    let key = home.join(".ssh/id_ed25519");
    fs::create_dir_all(home.join(".ssh")).expect(".ssh");
    fs::write(&key, "hunter2").expect("a key");
    let other = cx.home().join("other");
    fs::create_dir(&other).expect("a directory");
    for path in [&home, &home.join(".ssh"), &key, &other] {
        cx.bench().give(path, cx.is_root());
    }
    let uid = cx.bench().uid(cx.is_root());
    let mut passwd = b"ada:x:7:7:Ad\xe1:/nowhere:/bin/sh\n".to_vec();
    passwd.extend(format!("ann:x:{uid}:{uid}:Ann:{}:/bin/sh\n", home.display()).bytes());
    let place = cx.home().join("passwd");
    fs::write(&place, passwd).expect("passwd");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o644)).expect("passwd");
    let mounts = format!("mount --bind {} /etc/passwd", place.display());
    let read = |flags: &[&str]| {
        let words = ["run", "--fs", "host"].iter().chain(flags).copied();
        let words: Vec<&str> = words.chain(["--", "cat", key.to_str().expect("ASCII")]).collect();
        cx.exeat(words).env("HOME", other.to_str().expect("ASCII")).in_mounts(&mounts).run()
    };
    let done = read(&[]);
    assert_eq!((done.code, done.stdout()), (Some(1), String::new()), "the key is in sight: {done:?}");
    // The control: without the entry it is an ordinary file.
    fs::write(&place, "").expect("passwd");
    read(&[]).prints("hunter2");
    // An unreadable file is reported, and protection holds in part. Root can read any mode.
    fs::set_permissions(&place, fs::Permissions::from_mode(0o000)).expect("passwd");
    if !cx.is_root() {
        read(&[]).says("the home directory that passwd(5) has for you is not known");
        read(&["--require", "full"]).exits(125);
    }
}

/// The same for what exeat keeps there: a stage that writes a journal of a killed run has the next start move files.
fn registered_state(cx: &Cx) {
    let (home, other) = (cx.home().join("registered"), cx.home().join("other"));
    let state = home.join(".local/state/exeat");
    let (key, journal) = (state.join("audit.key"), state.join("live/x"));
    let dirs =
        [".local", ".local/state", ".local/state/exeat", ".local/state/exeat/live"].map(|it| home.join(it));
    for dir in [&home, &other].into_iter().chain(&dirs) {
        fs::create_dir(dir).expect("a directory");
        cx.bench().give(dir, cx.is_root());
    }
    fs::write(&key, "hunter2").expect("a key");
    cx.bench().give(&key, cx.is_root());
    let uid = cx.bench().uid(cx.is_root());
    let place = cx.home().join("passwd");
    fs::write(&place, format!("ann:x:{uid}:{uid}:Ann:{}:/bin/sh\n", home.display())).expect("passwd");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o644)).expect("passwd");
    let mounts = format!("mount --bind {} /etc/passwd", place.display());
    let script =
        format!("cat {}; echo evil >{1} && rm {1} && echo wrote; true", key.display(), journal.display());
    let tree = home.display().to_string();
    let run = |flags: &[&str]| {
        let words: Vec<&str> = [&["run"], flags, &["--", "sh", "-c", &script]].concat();
        cx.exeat(words).env("HOME", other.to_str().expect("ASCII")).in_mounts(&mounts).run()
    };
    for flags in [["--fs", "host"], ["--rw", &tree]] {
        run(&flags).exits(0).prints("");
    }
    // The control: without the entry they are ordinary files.
    fs::write(&place, "").expect("passwd");
    run(&["--fs", "host"]).exits(0).shows("hunter2");
    run(&["--rw", &tree]).exits(0).prints("hunter2wrote\n");
}

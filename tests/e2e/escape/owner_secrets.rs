//! B10: started by root in another user's home, the stage has that user's rights there. That user's keys are hidden as
//! in their own run, and files that only root may read are hidden if the stage has root's rights.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.root("escape::b10_keys_of_the_owner", of_owner);
    list.root("escape::b10_exeat_s_files_of_the_owner", state_of_owner);
    list.root("escape::b10_files_of_the_system_in_a_mapped_tree", of_system);
    list.root("escape::b10_another_user_s_home_is_read_only", home_of_owner);
}

fn of_owner(cx: &Cx) {
    let home = cx.home().join("theirs");
    let keys = home.join(".ssh");
    fs::create_dir_all(&keys).expect("a home");
    fs::write(keys.join("id"), "hunter2").expect("a key");
    fs::write(home.join("letter"), "open").expect("a file");
    for path in [&home, &keys, &keys.join("id"), &home.join("letter")] {
        chown(path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
        let mode = if path.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let passwd = cx.home().join("passwd");
    let line = format!("theirs:x:{ORDINARY}:{ORDINARY}::{}:/bin/sh\n", home.display());
    // One byte that is not UTF-8, in another user's line.
    let known =
        [b"else:x:7777:7777:Andr\xe9:/:/bin/sh\nroot:x:0:0::/root:/bin/sh\n".as_slice(), line.as_bytes()];
    fs::write(&passwd, known.concat()).expect("passwd");
    let known = format!("mount --bind {} /etc/passwd", passwd.display());
    let script = format!("cat {0}/letter; cat {0}/.ssh/id; ls -A {0}/.ssh", home.display());
    let shown = home.display().to_string();
    let start = || cx.sh(&[], &script).cwd(&home);
    let bind = |flag: &str| cx.exeat(["run", flag, &shown, "--", "sh", "-c", &script]);
    for (what, run) in [("cwd", start()), ("--rw", bind("--rw")), ("--ro", bind("--ro"))] {
        let done = run.in_mounts(&known).run();
        // L03: no part of a home is shown only because exeat starts there.
        assert_eq!(done.stdout().starts_with("open"), what != "cwd", "{what}: {done:?}");
        assert!(!done.stdout().contains("hunter2"), "{what}: {done:?}");
    }
    // The control: a user without a database entry has no home to protect.
    for run in [start(), bind("--rw"), bind("--ro")] {
        run.run().exits(0).prints("openhunter2id\n");
    }
    // Root may show it by its own name.
    let named = keys.display().to_string();
    let done = cx.exeat(["run", "--ro", &named, "--", "cat", &format!("{named}/id")]).in_mounts(&known).run();
    done.exits(0).prints("hunter2");
}

/// Root's stage neither reads nor writes what exeat keeps in the owner's home, as in a run of the owner's own.
fn state_of_owner(cx: &Cx) {
    let home = cx.home().join("theirs");
    let state = home.join(".local/state/exeat");
    let (live, cache) = (state.join("live"), home.join(".cache/exeat"));
    let beside = home.join(".local/state/beside");
    for dir in [&live, &cache, &beside, &home.join(".config")] {
        fs::create_dir_all(dir).expect("a directory");
    }
    for dir in [&state, &cache] {
        fs::write(dir.join("audit.key"), "hunter2").expect("a key");
    }
    let owned = format!("chown -R {ORDINARY}:{ORDINARY} {}", home.display());
    cx.outside(["sh", "-c", &owned]).run().exits(0);
    let passwd = cx.home().join("passwd");
    let line = format!("theirs:x:{ORDINARY}:{ORDINARY}::{}:/bin/sh\n", home.display());
    fs::write(&passwd, format!("root:x:0:0::/root:/bin/sh\n{line}")).expect("passwd");
    let known = format!("mount --bind {} /etc/passwd", passwd.display());
    let script = format!(
        "cd {0}; cat .local/state/exeat/audit.key .cache/exeat/audit.key; \
         for it in .local/state/exeat/live/x .cache/exeat/x .local/state/x; do echo evil >$it && rm $it && echo wrote; done; \
         mkdir .config/exeat; true",
        home.display()
    );
    let [shown, named] = [&home, &state].map(|path| path.display().to_string());
    let bind = |flag: &str, tree: &str| cx.exeat(["run", flag, tree, "--", "sh", "-c", &script]);
    let start = |dir: &Path| cx.sh(&[], &script).cwd(dir);
    let settings = home.join(".config/exeat");
    bind("--rw", &shown).in_mounts(&known).run().exits(0).prints("wrote\n");
    assert!(!settings.exists(), "a later run would obey a ceiling there");
    bind("--ro", &shown).in_mounts(&known).run().exits(0).prints("");
    // The directory can be named, the key cannot.
    let done = bind("--ro", &named).in_mounts(&known).run();
    assert!(!done.stdout().contains("hunter2"), "{done:?}");
    let above = start(state.parent().expect("a directory")).in_mounts(&known).run();
    above.prints("").says("is read-only for the stage: exeat's own files are in it");
    for dir in [&state, &live, &cache] {
        start(dir).in_mounts(&known).run().prints("").says("or files of exeat's, are kept there");
    }
    start(&beside).in_mounts(&known).run().prints("");
    // The control: a user without a database entry has no home to protect.
    bind("--rw", &shown).run().exits(0).prints("hunter2hunter2wrote\nwrote\nwrote\n");
    assert!(settings.exists());
    start(&state).run().prints("hunter2wrote\n");
}

/// Root's stage cannot write a file such as `.bashrc`, which that user would obey, as in a run of the user's own.
fn home_of_owner(cx: &Cx) {
    let home = cx.home().join("theirs");
    let project = home.join("project");
    fs::create_dir_all(&project).expect("a home");
    for path in [&home, &project] {
        chown(path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
    }
    let passwd = cx.home().join("passwd");
    let line = format!("theirs:x:{ORDINARY}:{ORDINARY}::{}:/bin/sh\n", home.display());
    fs::write(&passwd, format!("root:x:0:0::/root:/bin/sh\n{line}")).expect("passwd");
    let known = format!("mount --bind {} /etc/passwd", passwd.display());
    let write = |dir: &Path| {
        cx.sh(&[], "(echo evil >.bash_made) 2>/dev/null && echo wrote").cwd(dir).in_mounts(&known).run()
    };
    write(&home)
        .prints("")
        .says("is empty for the stage but for what flags name: it is its owner's home directory");
    assert!(!home.join(".bash_made").exists());
    write(&project).exits(0).prints("wrote\n");
    // The control: a user without a database entry has no home to protect.
    cx.sh(&[], "echo evil >.bash_made && echo wrote").cwd(&home).run().exits(0).prints("wrote\n");
}

fn of_system(cx: &Cx) {
    let probe = cx.probe();
    let read = |tree: &str| {
        let done = cx.exeat(["run", "--rw", tree, "--", probe, "read", "/etc/shadow"]).run();
        done.exits(0).stdout()
    };
    let masked = read("/etc");
    assert!(["EACCES\n", "ok: 0 bytes\n"].contains(&masked.as_str()), "{masked}");
    // Root may show it by its own name, and the stage has the right to read it.
    let control = read("/etc/shadow");
    assert!(control.starts_with("ok: ") && control != "ok: 0 bytes\n", "{control}");
}

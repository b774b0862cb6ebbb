//! B10: started by root in somebody's home directory, the stage has that user's rights there. Their keys are hidden as from a run
//! of their own, and what only root reads of the system's is hidden where root's rights are the stage's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.root("escape::b10_keys_of_the_owner", of_owner);
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
    // One byte that is not UTF-8, in somebody else's line.
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
        // L03: nothing of a home is shown only because exeat starts there.
        assert_eq!(done.stdout().starts_with("open"), what != "cwd", "{what}: {done:?}");
        assert!(!done.stdout().contains("hunter2"), "{what}: {done:?}");
    }
    // Who is in no database has no home: what an attack does without the protection.
    for run in [start(), bind("--rw"), bind("--ro")] {
        run.run().exits(0).prints("openhunter2id\n");
    }
    // By its own name root may show it.
    let named = keys.display().to_string();
    let done = cx.exeat(["run", "--ro", &named, "--", "cat", &format!("{named}/id")]).in_mounts(&known).run();
    done.exits(0).prints("hunter2");
}

/// As that user's own stage would find it: what root's stage wrote there, such as a `.bashrc`, would be the user's to obey.
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
    let write = |dir: &std::path::Path| {
        cx.sh(&[], "(echo evil >.bash_made) 2>/dev/null && echo wrote").cwd(dir).in_mounts(&known).run()
    };
    write(&home)
        .prints("")
        .says("is empty for the stage but for what flags name: it is its owner's home directory");
    assert!(!home.join(".bash_made").exists());
    write(&project).exits(0).prints("wrote\n");
    // Who is in no database has no home: what the stage does without the protection.
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
    // By its own name root may show it; and the stage's rights would do.
    let control = read("/etc/shadow");
    assert!(control.starts_with("ok: ") && control != "ok: 0 bytes\n", "{control}");
}

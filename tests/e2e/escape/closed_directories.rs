//! B13, B15: a stage closes a directory, for the next one to open: its contents must stay protected.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b15_closed_directories", repositories);
    list.on_a_host_of_root(|list| list.once("escape::b15_another_user_s_directory_stays", foreign));
    list.users("escape::b13_credentials_in_a_closed_directory", credentials);
}

/// Root's exeat reads through any mode, and protects what it finds; an ordinary user's reports what it cannot see.
fn repositories(cx: &Cx) {
    let made = "git init -q . && git init -q packages/lib && git init -q --bare .git/modules/m";
    let hook = "packages/lib/.git/hooks/pre-commit";
    for (close, open, mode, target) in [
        ("packages", "packages", "0311", hook),
        ("packages", "packages", "0600", hook),
        ("packages/lib", "packages/lib", "0", hook),
        ("packages/lib/.git", "packages/lib/.git", "0", hook),
        (".git/modules", ".git/modules", "0", ".git/modules/m/hooks/pre-commit"),
        (".git", ".git", "0", ".git/hooks/pre-commit"),
        (".git/hooks/..", ".git", "0600", ".git/hooks/pre-commit"),
        (".cargo", ".cargo", "0", ".cargo/config.toml"),
    ] {
        cx.outside(["sh", "-c", made]).run().exits(0);
        cx.outside(["sh", "-c", "mkdir .cargo; touch .cargo/config.toml"]).run().exits(0);
        cx.sh(&[], &format!("chmod {mode} {close}")).run().exits(0);
        let write = format!("chmod 755 {open} 2>/dev/null; (echo evil >>{target}) 2>/dev/null && echo wrote");
        let done = cx.sh(&[], &write).run();
        let look = format!("chmod 755 {open}; cat {target}");
        let now = cx.outside(["sh", "-c", &look]).run();
        assert!(!now.stdout().contains("evil"), "{mode} {close}: {done:?}");
        assert!(!now.stderr().contains("cat: .cargo"), "the caller's own file is gone: {now:?}");
        if !cx.is_root() {
            done.says(&format!("{open}` is read-only for the stage")).says("`chmod u+rwx /");
        }
        cx.outside(["rm", "-rf", "packages", ".git", ".cargo"]).run().exits(0);
    }

    // The control: without the protection it is written.
    cx.outside(["sh", "-c", made]).run().exits(0);
    let open = |script: &str| cx.exeat(["run", "--allow-write=.git", "--", "sh", "-c", script]).run();
    open(&format!("echo evil >{hook}")).exits(0);
    cx.outside(["cat", hook]).run().prints("evil\n");
    // It may still contain settings of editors.
    open("chmod 0311 packages").exits(0);
    let done = open(&format!("chmod 755 packages; echo worse >{hook}"));
    cx.outside(["sh", "-c", &format!("chmod 755 packages; cat {hook}")]).run().prints(if cx.is_root() {
        "worse\n"
    } else {
        "evil\n"
    });
    if !cx.is_root() {
        done.says("packages` is read-only for the stage");
    }
}

/// A database of a container, or the `lost+found` of a file system.
fn foreign(cx: &Cx) {
    for (name, mode) in [("data/pg", 0o700), ("data/pg", 0o711), ("lost+found", 0o700), ("a/b/c", 0o750)] {
        let dir = cx.dir().join(name);
        cx.outside(["mkdir", "-p", &dir.parent().expect("a parent").display().to_string()]).run().exits(0);
        fs::create_dir(&dir).expect("a directory");
        fs::write(dir.join("f"), "x").expect("a file");
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).expect("chmod");
        let done = cx.exeat(["run", "--", "true"]).run();
        assert!(!done.exits(0).stderr().contains("moved"), "{name} {mode:o}: {done:?}");
        assert!(dir.join("f").exists(), "{name} {mode:o}: {done:?}");
        fs::remove_dir_all(&dir).expect("the directory");
    }
    // What the stage makes under its name is moved.
    let dir = cx.dir().join("data/pg");
    fs::create_dir(&dir).expect("a directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("chmod");
    let make = "mv data/pg data/old; mkdir data/pg; touch data/pg/mise.x.toml data/pg/.npmrc";
    cx.sh(&[], make).run().exits(0);
    assert!(!dir.join("mise.x.toml").exists() && !dir.join(".npmrc").exists());
}

/// A home that the stage may write, except for what is hidden in it.
fn credentials(cx: &Cx) {
    let home = cx.home().join("inner").display().to_string();
    let key = cx.home().join("audit.key").display().to_string();
    let run =
        // The audit key may not lie where the stage can write.
        |script: &str| cx.exeat(["run", "--rw", &home, "--audit-key", &key, "--", "sh", "-c", script]).env("HOME", &home).run();
    let outside = |script: &str| cx.outside(["sh", "-c", script]).env("HOME", &home).run();
    outside("mkdir -p ~/.cargo; echo secret >~/.cargo/credentials.toml").exits(0);
    let file = format!("{home}/.cargo/credentials.toml");
    run(&format!("cat {file} 2>/dev/null; chmod 0 {home}/.cargo")).exits(0).prints("");
    let done = run(&format!("chmod 755 {home}/.cargo 2>/dev/null; cat {file} 2>/dev/null; true"));
    done.exits(0).prints("");
    if !cx.is_root() {
        done.says(".cargo` is hidden from the stage: it is closed");
    }
    outside("chmod 755 ~/.cargo; cat ~/.cargo/credentials.toml").prints("secret\n");
}

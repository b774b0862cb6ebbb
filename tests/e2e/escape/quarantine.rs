//! B12: a stage prevents the move at the end of the run, or its report.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b12_closed_directories", closed);
    list.users("escape::b12_a_full_stderr", silenced);
    list.users("escape::b12_reports_names_that_cannot_be_moved", mounted_name);
    list.users("escape::b12_git_is_led_elsewhere", led_elsewhere);
    list.users("escape::b12_taken_names", used_names);
    list.root("escape::b12_a_quarantine_belongs_to_the_owner_of_its_tree", owned);
    list.users("escape::b12_a_quarantine_is_hidden_from_a_run_above_it", hidden_above);
    list.users("escape::b12_a_hidden_quarantine_is_no_error", no_error);
    list.users("escape::b12_reports_nothing_that_is_closed_to_the_caller", closed_to_the_caller);
    list.users("escape::b12_jujutsu_is_led_elsewhere", jujutsu);
    list.users("escape::b12_many_links_are_few_lines", many);
}

/// A rename needs write permission on the directory, which the stage removes.
fn closed(cx: &Cx) {
    let script =
        "mkdir -p .git/hooks .vscode; echo evil >.git/hooks/pre-commit; echo '{}' >.vscode/tasks.json
        chmod 0500 .git/hooks; chmod MODE .git .";
    for mode in ["0555", "0000"] {
        let done = cx.sh(&[], &script.replace("MODE", mode)).run();
        let found = fs::metadata(cx.dir()).expect("work").permissions().mode() & 0o777;
        fs::set_permissions(cx.dir(), Permissions::from_mode(0o755)).expect("work");
        fs::set_permissions(cx.dir().join(".git"), Permissions::from_mode(0o755)).expect(".git");
        done.exits(0).says(".git/hooks` was moved").says(".vscode` was moved");
        assert_eq!(format!("{found:04o}"), mode, "the stage's mode is put back: {done:?}");
        assert!(!cx.dir().join(".git/hooks").exists() && !cx.dir().join(".vscode").exists(), "{done:?}");
    }
}

/// The stage's stderr is exeat's, with its flags: nonblocking and full, it takes no messages.
fn silenced(cx: &Cx) {
    let script = "echo evil >.envrc; exec python3 -c 'import fcntl, os
fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_NONBLOCK)
try:
    while True: os.write(2, b\"x\")
except BlockingIOError: pass'";
    let flags = "import fcntl, os; print(\"flags:\", fcntl.fcntl(2, fcntl.F_GETFL) & os.O_NONBLOCK)";
    let outside = format!("(\"$@\"; python3 -c '{flags}') 2>&1 | (sleep 4; cat)");
    let done = cx.sh(&[], script).under(["sh", "-c", &outside, "sh"]).run();
    let said = done.stdout();
    assert!(said.contains(".envrc` was moved to"), "exeat was silenced: {} bytes", said.len());
    assert!(said.contains("flags: 0\n"), "the flag stays for who comes next");
}

/// A name with a mount over it is not moved: the record and the result report where it stays. A link is moved, but not
/// its target.
fn mounted_name(cx: &Cx) {
    let result = cx.home().join("result.json");
    let script = "mkdir c .helix; echo '[build]' >c/config.toml; ln -s c .cargo; echo evil >.envrc; echo made; read end";
    let words = ["run", "--result", result.to_str().expect("ASCII"), "--", "sh", "-c", script];
    let mut live = cx.exeat(words).stdin_open().start();
    live.until_prints("made");
    let over = cx.dir().join(".helix");
    e2e::bench::bind(cx.dir(), &over);
    let done = live.wait();
    nix::mount::umount(&over).expect("umount");
    done.says(".helix` could not be moved aside").says(".envrc` was moved").says(".cargo` was moved");
    let log = done.record();
    let notes = log.events("note");
    let of = |what: &str| -> Vec<String> {
        let those = notes.iter().filter(|note| note["what"] == what);
        those.map(|note| note["error"].as_str().expect("words").to_owned()).collect()
    };
    let path = |name: &str| cx.dir().join(name).display().to_string();
    let mut moved = of("quarantined");
    moved.sort();
    assert_eq!(moved, [path(".cargo"), path(".envrc")]);
    assert!(cx.dir().join("c/config.toml").exists(), "nothing behind the link is touched");
    let [left] = &of("not_quarantined")[..] else { panic!("{notes:?}") };
    assert!(left.ends_with(&path(".helix")) && left.contains("busy"), "{left}");
    let told: serde_json::Value =
        serde_json::from_slice(&fs::read(result).expect("the result")).expect("JSON");
    let moved = told["quarantined"].as_array().expect("a list");
    let envrc = moved.iter().find(|one| one["path"] == path(".envrc")).expect(".envrc");
    assert_eq!(envrc["moved"], cx.aside(".envrc").display().to_string());
    assert_eq!(told["left"][0]["path"], path(".helix"));
    assert!(told["left"][0]["error"].as_str().is_some_and(|error| error.contains("busy")), "{told}");
}

/// A `.git` that is a file or a link makes git take hooks and configuration from a directory of the stage's.
fn led_elsewhere(cx: &Cx) {
    let ran = cx.home().join("ran");
    for at in [".", "sub"] {
        fs::create_dir_all(cx.dir().join(at)).expect("a directory");
        cx.bench().give(&cx.dir().join(at), cx.is_root());
        for kind in ["true", "rm -f .git; ln -s x .git"] {
            let script = format!(
                "set -e; cd {at}; rm -rf x .git*; git init -q --separate-git-dir x .; export GIT_DIR=x; git config user.email a@example.com
                git config user.name a; printf '#!/bin/sh\\necho ran >>$HOOK_RAN\\n' >x/hooks/pre-commit
                chmod +x x/hooks/pre-commit; {kind}"
            );
            let commit = || {
                let commit = ["git", "-C", at, "commit", "-q", "--allow-empty", "-m", "one"];
                cx.outside(commit).env("HOOK_RAN", ran.to_str().expect("ASCII")).run()
            };
            let words = ["run", "--rw", at, "--", "sh", "-c", script.as_str()];
            let done = cx.exeat(words).run();
            done.exits(0).says(".git` was moved to");
            assert!(fs::symlink_metadata(cx.dir().join(at).join(".git")).is_err(), "{done:?}");
            commit();
            assert!(!ran.exists(), "the stage's hook has run on the host: {done:?}");

            // The control: with git's protection off, the same hook runs.
            let words = ["run", "--allow-write=.git", "--rw", at, "--", "sh", "-c", script.as_str()];
            cx.exeat(words).run().exits(0);
            commit().exits(0);
            assert_eq!(fs::read_to_string(&ran).expect("the hook ran"), "ran\n");
            fs::remove_file(&ran).expect("ran");
            // Its configuration would be taken for the caller's.
            cx.outside(["sh", "-c", "rm -r .git x"]).cwd(&cx.dir().join(at)).run().exits(0);
        }
    }
}

/// The names in the quarantine are already in use.
fn used_names(cx: &Cx) {
    let script = "echo evil >.envrc; mkdir -m 0700 -p .exeat-quarantine/git~1/$EXEAT_RUN_ID/.envrc; ln -s / .exeat-quarantine/x";
    let done = cx.sh(&[], script).run();
    done.exits(0).says(".envrc` was moved to");
    assert!(fs::symlink_metadata(cx.dir().join(".envrc")).is_err(), "{done:?}");
    assert_eq!(fs::read_to_string(cx.aside(".envrc")).expect("moved aside"), "evil\n");
    assert!(
        cx.aside(".exeat-quarantine/x").is_symlink(),
        "what the stage made under that name is aside, too"
    );
    // The next stage does not see it, and cannot make another one either.
    let script =
        "ls -A .exeat-quarantine; mv .exeat-quarantine x 2>/dev/null; echo x >.exeat-quarantine/x; echo end";
    cx.sh(&[], script).run().exits(0).prints("end\n");
    assert!(cx.dir().join(".exeat-quarantine/.gitignore").exists());
    cx.exeat(["run", "--ro", ".:/w", "--", "sh", "-c", "ls -A /w/.exeat-quarantine; echo end"])
        .run()
        .exits(0)
        .prints("end\n");
}

/// Root's run in a user's directory leaves nothing there that this user cannot inspect and remove.
fn owned(cx: &Cx) {
    std::os::unix::fs::chown(cx.dir(), Some(4242), Some(4243)).expect("chown");
    cx.sh(&[], "mkdir -p .git/info; echo evil >.git/info/attributes").run().exits(0).says("was moved");
    let aside = cx.aside(".git/info/attributes");
    let paths: Vec<_> = aside.ancestors().skip(1).take_while(|path| *path != cx.dir()).collect();
    assert_eq!(paths.len(), 5);
    for path in
        paths.into_iter().map(Path::to_path_buf).chain([cx.dir().join(".exeat-quarantine/.gitignore")])
    {
        let about = fs::metadata(&path).expect("metadata");
        assert_eq!((about.uid(), about.gid()), (4242, 4243), "{}", path.display());
        assert!(!about.is_dir() || about.mode() & 0o7777 == 0o700, "{}", path.display());
    }
}

/// A run in a parent tree does not see it either.
fn hidden_above(cx: &Cx) {
    let sub = cx.dir().join("sub");
    fs::create_dir(&sub).expect("a directory");
    cx.bench().give(&sub, cx.is_root());
    cx.sh(&[], "echo evil >.envrc").cwd(&sub).run().exits(0).says("was moved");
    let script =
        "ls -A sub/.exeat-quarantine; cat sub/.exeat-quarantine/*/*/.envrc; rm -rf sub/.exeat-quarantine
        mv sub/.exeat-quarantine sub/x; echo x >sub/.exeat-quarantine/x; echo end";
    cx.sh(&[], script).run().exits(0).prints("end\n");
    assert_eq!(fs::read_to_string(cx.aside_in(&sub, ".envrc")).expect("moved aside"), "evil\n");
}

/// Programs that walk a whole tree find an empty directory instead of a quarantine, and no error.
fn no_error(cx: &Cx) {
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let sub = cx.dir().join("sub");
    fs::create_dir(&sub).expect("a directory");
    cx.bench().give(&sub, cx.is_root());
    for dir in [cx.dir(), &sub] {
        cx.sh(&[], "echo evil >.envrc").cwd(dir).run().exits(0).says("was moved");
    }
    for (tool, code) in [
        ("grep -r evil .", 1),
        ("tar cf /tmp/all.tar .", 0),
        ("cp -r . /tmp/all", 0),
        ("find . -name evil", 0),
        ("du -s . >/dev/null", 0),
        ("git status --porcelain 2>&1 >/dev/null", 0),
        ("git add -A -n 2>&1 >/dev/null", 0),
        ("python3 -c 'import shutil; shutil.copytree(\".\", \"/tmp/all\")'", 0),
    ] {
        let done = cx.sh(&[], &format!("{{ {tool}; }} 2>&1")).run();
        done.exits(code).prints("");
    }
    let script = "ls -A .exeat-quarantine sub/.exeat-quarantine; echo x >.exeat-quarantine/x || echo closed";
    cx.sh(&[], script).run().exits(0).prints(".exeat-quarantine:\n\nsub/.exeat-quarantine:\nclosed\n");
    assert_eq!(fs::read_to_string(cx.aside(".envrc")).expect("moved aside"), "evil\n");
}

/// The stage of this caller cannot enter it either.
fn closed_to_the_caller(cx: &Cx) {
    fs::create_dir_all(cx.dir().join("closed/more")).expect("a directory");
    fs::set_permissions(cx.dir().join("closed"), Permissions::from_mode(0o700)).expect("closed");
    let done = cx.sh(&[], "touch closed/.envrc 2>/dev/null; exit 0").run();
    assert!(!done.exits(0).stderr().contains("could not be moved"), "{done:?}");
}

/// A `.jj/repo` that is a file makes Jujutsu take its configuration from another directory.
fn jujutsu(cx: &Cx) {
    let repo = cx.dir().join(".jj/repo");
    fs::create_dir_all(&repo).expect(".jj/repo");
    for path in [cx.dir().join(".jj"), repo.clone()] {
        cx.bench().give(&path, cx.is_root());
    }
    let attack = "mv .jj/repo evil; echo '[ui]' >evil/config.toml; KIND .jj/repo";
    for kind in ["printf ../evil >", "ln -s ../evil"] {
        let done = cx.sh(&[], &attack.replace("KIND", kind)).run();
        done.exits(0).says(".jj/repo` was moved to");
        assert!(fs::symlink_metadata(&repo).is_err(), "{done:?}");
        cx.outside(["sh", "-c", "rm -rf .exeat-quarantine evil/config.toml; mv evil .jj/repo"])
            .run()
            .exits(0);
    }
    // A caller's `.jj/repo` that is a file stays.
    cx.outside(["sh", "-c", "mv .jj/repo real; printf ../real >.jj/repo"]).run().exits(0);
    let attack =
        "(printf ../evil >.jj/repo) 2>/dev/null && echo written; rm -f .jj/repo 2>/dev/null && echo removed
        mv .jj jj 2>/dev/null && echo moved; echo '[ui]' >real/config.toml; echo end";
    let done = cx.sh(&[], attack).run();
    done.exits(0).prints("end\n").says("real/config.toml` was moved");
}

/// The stage chooses the number of links. It costs a second, and few lines.
fn many(cx: &Cx) {
    let result = cx.home().join("result.json");
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let attack = "import os
os.makedirs('.git/logs/x'); open('.envrc', 'w')
for n in range(900): os.symlink('x', f'.git/logs/x/{n}')";
    let words = ["run", "--result", result.to_str().expect("ASCII"), "--", "python3", "-c", attack];
    let done = cx.exeat(words).run();
    done.exits(0).says(".envrc` was moved").says("801 more were moved");
    let lines = done.stderr().lines().count();
    assert!(lines < 110, "{lines} lines");
    assert_eq!(fs::read_dir(cx.dir().join(".git/logs/x")).expect("x").count(), 0);
    assert_eq!(fs::read_dir(cx.aside(".git/logs/x")).expect("aside").count(), 900);
    let log = done.record();
    let notes = log.events("note");
    let of = |note: &&serde_json::Value| note["what"] == "quarantined";
    // Links that were moved at once have a line each, and one line is for the others.
    let counted: u64 = notes.iter().copied().filter(of).map(|note| note["count"].as_u64().unwrap_or(1)).sum();
    assert_eq!(counted, 901);
    let told: serde_json::Value =
        serde_json::from_slice(&fs::read(result).expect("the result")).expect("JSON");
    assert_eq!(told["quarantined"].as_array().map(Vec::len), Some(100));
    assert_eq!(told["quarantined_more"], 801);
}

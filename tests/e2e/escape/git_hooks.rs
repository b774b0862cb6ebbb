//! K5, K50, B11, B15, B16: files of the working directory that would run on the host later, written directly or around
//! the mount.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b15_git_hooks_and_config", attack);
    list.matrix("escape::b12_names_that_appear", appear);
    list.users("escape::b15_where_else_git_looks", elsewhere);
}

fn attack(cx: &Cx) {
    let git = cx.dir().join(".git");
    fs::create_dir_all(git.join("hooks")).expect(".git/hooks");
    fs::create_dir_all(git.join("objects")).expect(".git/objects");
    fs::write(git.join("config"), "[core]\n").expect(".git/config");
    for path in [&git, &git.join("hooks"), &git.join("objects"), &git.join("config")] {
        cx.bench().give(path, cx.is_root());
    }
    let script = "
        (echo evil >>.git/config) 2>/dev/null && echo wrote-config
        (echo evil >.git/hooks/pre-commit) 2>/dev/null && echo wrote-hook
        mv .git/config .git/config2 2>/dev/null && echo moved-config
        mv .git/hooks .git/hooks2 2>/dev/null && echo moved-hooks
        rm -rf .git/hooks .git/config 2>/dev/null && echo removed
        mv .git .git2 2>/dev/null && echo moved-git
        ln .git/config alias 2>/dev/null && (echo evil >>alias) 2>/dev/null && echo linked
        echo object >.git/objects/x && echo object-written";
    let done = cx.sh(&[], script).run();
    assert_eq!(done.stdout(), "object-written\n", "{done:?}");
    assert_eq!(fs::read_to_string(git.join("config")).expect("config"), "[core]\n");
    assert_eq!(fs::read_dir(git.join("hooks")).expect("hooks").count(), 0);
}

/// A repository in a subdirectory, a submodule, a linked worktree, hooks that the configuration names, and a file that
/// it includes.
fn elsewhere(cx: &Cx) {
    let made = "set -e
        git init -q -b main . ; git config user.email a@example.com; git config user.name a
        git config core.hooksPath tools/hooks; mkdir -p tools/hooks; git config include.path ../common.cfg; touch common.cfg
        git commit -q --allow-empty -m one
        git init -q -b main libs/inner; git -C libs/inner config user.email a@example.com; git -C libs/inner config user.name a
        git init -q -b main ../lib; git -C ../lib config user.email a@example.com; git -C ../lib config user.name a
        git -C ../lib commit -q --allow-empty -m lib
        git -c protocol.file.allow=always submodule --quiet add ../lib sub/lib; git commit -qm sub
        git worktree add -q -b other tree; mkdir later-hooks";
    cx.outside(["sh", "-c", made]).run().exits(0);
    let hook = "printf '#!/bin/sh\\necho ran >>$HOOK_RAN\\n'";
    let places = [
        "tools/hooks/pre-commit",
        "libs/inner/.git/hooks/pre-commit",
        ".git/modules/sub/lib/hooks/pre-commit",
        ".git/modules/sub/lib/config",
        "libs/inner/.git/config",
        "common.cfg",
        "tree/.git",
        ".git/worktrees/tree/commondir",
        "sub/lib/.git",
    ];
    let write =
        places.map(|place| format!("({hook} >>{place}) 2>/dev/null && echo wrote {place}")).join("\n");
    let moves = "for d in tools libs/inner/.git .git/modules/sub .git/worktrees/tree; do mv $d $d.away 2>/dev/null && echo moved $d; done
        chmod +x tools/hooks/* 2>/dev/null; git -C libs/inner commit -q --allow-empty -m inner && echo commits-work";
    let done = cx.sh(&[], &format!("{write}\n{moves}")).run();
    assert_eq!(done.stdout(), "commits-work\n", "{done:?}");
    let status = "git status --short --ignore-submodules; git -C libs/inner log --format=%s; git -C sub/lib log --format=%s; git -C tree log -1 --format=%s";
    let after = cx.outside(["sh", "-c", status]).run();
    assert!(after.exits(0).stdout().ends_with("inner\nlib\nsub\n"), "{after:?}");

    // The control: with the protection off, everything is written, and the hook runs on the host.
    let words = ["run", "--allow-write=.git", "--", "sh", "-c"];
    let writes = format!("{hook} >tools/hooks/pre-commit && chmod +x tools/hooks/pre-commit && echo wrote");
    cx.exeat(words.iter().copied().chain([writes.as_str()])).run().exits(0).prints("wrote\n");
    let ran = cx.home().join("ran");
    let commit = cx
        .outside(["git", "commit", "-q", "--allow-empty", "-m", "two"])
        .env("HOOK_RAN", ran.to_str().expect("ASCII"));
    commit.run().exits(0);
    assert_eq!(fs::read_to_string(&ran).expect("the hook ran"), "ran\n");
}

/// Names that the stage makes: moved aside at the end, and reported. No placeholder is left for others.
fn appear(cx: &Cx) {
    let before: Vec<_> = names(cx);
    cx.sh(&[], "true").run().exits(0).silent();
    assert_eq!(names(cx), before, "a run that does nothing leaves nothing");
    let done = cx
        .sh(
            &[],
            "mkdir -p .git/hooks .vscode; echo evil >.git/hooks/pre-commit; echo '{}' >.vscode/tasks.json; echo end",
        )
        .run();
    assert!(
        !cx.dir().join(".git/hooks/pre-commit").exists(),
        "a hook stands in the working directory: {done:?}"
    );
    assert!(
        !cx.dir().join(".vscode/tasks.json").exists(),
        "an editor task stands in the working directory: {done:?}"
    );
    done.says("exeat-quarantine");
    let log = done.record();
    let notes: Vec<String> = log.events("note").iter().map(|note| note.to_string()).collect();
    assert!(notes.iter().any(|note| note.contains("quarantined")), "{notes:?}");
    assert!(names(cx).iter().any(|name| name == ".exeat-quarantine"), "{:?}", names(cx));
}

fn names(cx: &Cx) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        fs::read_dir(cx.dir()).expect("work").flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    names
}

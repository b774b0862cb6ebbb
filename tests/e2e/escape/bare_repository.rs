//! B12, B15: the top of a tree as a repository. Without a usable `.git`, git takes the directory itself for one.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b12_a_bare_repository_at_the_top", appears);
    list.users("escape::b15_a_repository_without_a_git_directory", is_there);
}

/// The stage's script: makes a repository with its own configuration and hooks.
const MAKE: &str =
    "set -e; git init -q --bare .; git config -f config core.bare false; git config -f config core.worktree .
    git config -f config user.email a@example.com; git config -f config user.name a
    git config -f config exeat.mark configuration
    git config -f config core.fsmonitor 'echo fsmonitor >>$RAN; false'
    printf '#!/bin/sh\\necho hook >>$RAN\\n' >hooks/pre-commit; chmod +x hooks/pre-commit";

/// The caller's script afterwards.
const WORK: &str = "git config --get exeat.mark >>$RAN; git status >/dev/null 2>&1; git commit -q --allow-empty -m one >/dev/null 2>&1; exit 0";

fn appears(cx: &Cx) {
    // A completed repository is moved aside at once, so that mv(1) may not find it.
    let aside = |then: &str| {
        let make = MAKE.replace("set -e;", "");
        format!("set -e; mkdir new; cd new; {make}; {then}; cd ..; mv new/* . || :; rm -rf new")
    };
    let ran = cx.home().join("ran");
    for (at, before, script) in [
        ("none", "true", aside("true")),
        ("invalid", "git init -q .", format!("rm .git/HEAD; {}", aside("true"))),
        ("led", "mkdir objects refs", aside("true")),
        (
            "half",
            "git init -q --bare .; rm -r refs",
            MAKE.replace("git init -q --bare .;", "") + "; mkdir refs",
        ),
        ("common", "true", aside("mkdir x; mv objects refs config hooks x; echo x >commondir")),
    ] {
        let dir = cx.dir().join(at);
        fs::create_dir(&dir).expect("a directory");
        cx.bench().give(&dir, cx.is_root());
        cx.outside(["sh", "-c", before]).cwd(&dir).run().exits(0);
        let works = || {
            cx.outside(["sh", "-c", WORK]).cwd(&dir).env("RAN", ran.to_str().expect("ASCII")).run().exits(0);
            fs::read_to_string(&ran).unwrap_or_default()
        };
        let done = cx.exeat(["run", "--", "sh", "-c", &script]).cwd(&dir).run();
        assert_eq!(works(), "", "{at}: what the stage has written ran on the host: {done:?}");
        done.exits(0).says("exeat-quarantine");

        // The control: with git's protection off, git obeys the configuration.
        let reset = "rm -rf -- * .git .exeat-quarantine";
        cx.outside(["sh", "-c", reset]).cwd(&dir).run().exits(0);
        cx.outside(["sh", "-c", before]).cwd(&dir).run().exits(0);
        cx.exeat(["run", "--allow-write=.git", "--", "sh", "-c", &script]).cwd(&dir).run().exits(0);
        let said = works();
        let is_work_tree = at != "common";
        for word in ["configuration\n", "fsmonitor\n", "hook\n"] {
            assert!(said.contains(word) || word != "configuration\n" && !is_work_tree, "{at}: {said:?}");
        }
        fs::remove_file(&ran).expect("ran");
    }
}

/// A repository that exists at the start: its configuration and hooks stay the caller's, wherever `.git` locates them.
fn is_there(cx: &Cx) {
    let separate = "mkdir deep; git init -q --separate-git-dir deep/own .; cd deep/own; git config user.email a@example.com; git config user.name a";
    let bare = "git init -q --bare .; git config core.bare false; git config core.worktree .; git config user.email a@example.com; git config user.name a";
    for (at, made, git) in
        [("bare", bare, "."), ("separate", separate, "deep/own"), ("sub/nested", separate, "deep/own")]
    {
        let dir = cx.dir().join(at);
        let top = if at.contains('/') { cx.dir().join("sub") } else { dir.clone() };
        fs::create_dir_all(&dir).expect("a directory");
        cx.bench().give(&top, cx.is_root());
        cx.bench().give(&dir, cx.is_root());
        cx.outside(["sh", "-ec", made]).cwd(&dir).run().exits(0);
        let script = format!(
            "cd {}/{git}; (echo evil >>config) 2>/dev/null && echo wrote-config
            (echo evil >hooks/pre-commit) 2>/dev/null && echo wrote-hook
            mv config config2 2>/dev/null && echo moved-config
            mv hooks hooks2 2>/dev/null && echo moved-hooks
            cd {}; mv deep deep2 2>/dev/null && echo moved-it
            git commit -q --allow-empty -m one && echo commits-work",
            dir.display(),
            dir.display()
        );
        let done = cx.exeat(["run", "--", "sh", "-c", &script]).cwd(&top).run();
        assert_eq!(done.stdout(), "commits-work\n", "{at}: {done:?}");
    }
}

//! L06: what the host's git obeys at once, while the stage runs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use e2e::case::{Cases, Cx};
use e2e::wait_for;
use nix::sys::signal::Signal;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::l06_holds_the_names_that_git_obeys_during_a_run", held);
    list.users("escape::l06_git_works_beside_and_with_the_names_that_are_held", git_works);
    list.users("escape::l06_removes_what_kill_9_left_behind", left_behind);
}

/// Each says to git what a missing one says.
const NAMES: [&str; 4] = [
    ".git/commondir",
    ".git/config.worktree",
    ".git/modules/sub/commondir",
    ".git/modules/sub/config.worktree",
];

fn git(cx: &Cx, dir: &Path, words: &str) {
    let options = "-c user.name=a -c user.email=a@b -c protocol.file.allow=always";
    let line = format!("git {options} {words}");
    cx.outside(["sh", "-c", &line]).cwd(dir).run().exits(0);
}

/// A repository with a commit and a submodule.
fn repository(cx: &Cx) {
    let from = cx.home().join("from");
    cx.outside(["git", "init", "-q", "from"]).cwd(cx.home()).run().exits(0);
    git(cx, &from, "commit -q --allow-empty -m x");
    git(cx, cx.dir(), "init -q .");
    git(cx, cx.dir(), "commit -q --allow-empty -m x");
    git(cx, cx.dir(), &format!("submodule --quiet add {} sub", from.display()));
    git(cx, cx.dir(), "commit -q -m sub");
}

fn absent(cx: &Cx) {
    for name in NAMES {
        assert!(!cx.dir().join(name).exists(), "{name} is left");
    }
}

/// A stage that has git on the host take its directory for the repository's.
fn held(cx: &Cx) {
    repository(cx);
    let script = format!(
        "mkdir -p d/objects d/refs; printf '[core]\\n\\tfsmonitor = \"%s/evil\"\\n' \"$PWD\" >d/config; \
         printf '#!/bin/sh\\ntouch \"%s/OWNED\"\\n' \"$PWD\" >evil; chmod +x evil; \
         for it in {}; do echo \"$PWD/d\" >\"$it\" && echo written; mv d/config \"$it\" && echo moved; \
         rm -f \"$it\"; [ -e \"$it\" ] || echo removed; done 2>/dev/null; \
         echo ready; read -r go; exit 7",
        NAMES.join(" ")
    );
    let mut live = cx.sh(&[], &script).stdin_open().start();
    live.until_prints("ready");
    git(cx, cx.dir(), "status --short");
    assert!(!cx.dir().join("OWNED").exists(), "the host ran the stage's program");
    live.wait().exits(7).prints("ready\n");
    git(cx, cx.dir(), "status --short");
    assert!(!cx.dir().join("OWNED").exists(), "the host ran the stage's program");
    absent(cx);
}

/// git inside, and git on the host while the stage runs, do what they do without exeat.
fn git_works(cx: &Cx) {
    repository(cx);
    let options = "-c user.name=a -c user.email=a@b";
    let script = format!(
        "set -e; git() {{ command git {options} \"$@\"; }}; echo 1 >f; git add f; git commit -qm f; \
         git status --short; echo 2 >f; git stash -q; git stash pop -q; git commit -qam g; \
         git worktree add -q wt; git -C wt status --short; git worktree remove wt; git branch -d wt -q; \
         git checkout -qb b HEAD~1; echo 3 >h; git add h; git commit -qm h; git rebase -q -; \
         git gc -q; git fsck --no-progress; git submodule status >s; git -C sub status --short; \
         echo ready; read -r go || :; git log --oneline | wc -l"
    );
    let mut live = cx.sh(&[], &script).stdin_open().start();
    live.until_prints("ready");
    for words in [
        "status --short",
        "commit -q --allow-empty -m host",
        "worktree add -q ../hostwt",
        "worktree remove ../hostwt",
        "gc -q",
        "fsck --no-progress",
        // Not `submodule update`: it replaces a configuration twice within milliseconds, and on a loaded machine that ends a run.
        "submodule status",
        "clone -q . ../cloned",
        "stash list",
    ] {
        git(cx, cx.dir(), words);
    }
    assert!(!live.ended());
    let done = live.wait();
    done.exits(0);
    assert!(done.stdout().ends_with("6\n"), "{done:?}");
    absent(cx);
}

/// Two runs hold the same names; one of them is killed, and the last one that ends removes them.
fn left_behind(cx: &Cx) {
    repository(cx);
    let start = || {
        let mut live = cx.sh(&[], "echo ready; read -r go; exit 7").stdin_open().start();
        live.until_prints("ready");
        live
    };
    let (one, mut other) = (start(), start());
    one.wait().exits(7);
    std::thread::sleep(Duration::from_millis(700));
    assert!(!other.ended(), "the end of one run ends no other");
    assert!(cx.dir().join(".git/commondir").exists(), "the other run holds it");
    other.signal(Signal::SIGKILL);
    wait_for(Duration::from_secs(10), "the end", || other.ended().then_some(()));
    other.wait();
    assert_eq!(fs::read_to_string(cx.dir().join(".git/commondir")).expect("a stub"), ".\n");
    git(cx, cx.dir(), "status --short");
    cx.sh(&[], "true").run().exits(0);
    absent(cx);
}

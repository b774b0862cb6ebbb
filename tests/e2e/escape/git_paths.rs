//! B15: paths in a configuration that git reads differently than they look: other line endings, bytes that are not
//! text, `..` after a link, the directory of a push, working trees far below, and programs.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b15_paths_in_a_configuration", attack);
}

/// Defines `evil`, which writes the program `$1` that reports its own run.
const EVIL: &str = "evil() { printf '#!/bin/sh\\necho ran >>$HOOK_RAN\\n' >\"$1\" && chmod +x \"$1\"; }";
const COMMIT: &str = "git commit -q --allow-empty -m x";

/// The caller's setup, the stage's script, and the caller's script afterwards.
const CASES: &[(&str, &str, &str)] = &[
    (
        "printf '[user]\\r\\n\\tname = a \\\\\\r\\n b\\r\\n[core]\\r\\n\\thooksPath = hk\\r\\n' >>.git/config; mkdir hk",
        "evil hk/pre-commit",
        COMMIT,
    ),
    (
        "d=$(printf 'h\\366ks'); printf '[core]\\nhooksPath = %s\\n' \"$d\" >>.git/config; mkdir \"$d\"",
        "evil \"$(printf 'h\\366ks')/pre-commit\"",
        COMMIT,
    ),
    (
        "mkdir -p x/y x/hk hk; ln -s x/y lnk; git config core.hooksPath lnk/../hk",
        "evil x/hk/pre-commit",
        COMMIT,
    ),
    (
        "mkdir -p x/y x/hk sub hk; git config core.hooksPath sub/../hk",
        "mv sub away; ln -s x/y sub; evil x/hk/pre-commit",
        COMMIT,
    ),
    (
        "git config core.hooksPath hk; git config receive.denyCurrentBranch ignore; git clone -q . $HOME/clone",
        "mkdir .git/hk; evil .git/hk/pre-receive",
        "cd $HOME/clone; git commit -q --allow-empty -m x; git push -q",
    ),
    (
        "git config core.hooksPath hk; git worktree add -q a/b/c/d/w; mkdir a/b/c/d/w/hk",
        "evil a/b/c/d/w/hk/pre-commit",
        "cd a/b/c/d/w; git commit -q --allow-empty -m x",
    ),
    ("touch fsm; chmod +x fsm; git config core.fsmonitor ./fsm", "evil fsm", "git status >/dev/null"),
    ("mkdir bin; touch bin/x; git config alias.x '!bin/x --now'", "evil bin/x", "git x; true"),
    (
        "mkdir template; git config --global init.templateDir $PWD/template",
        "mkdir template/hooks; evil template/hooks/post-checkout",
        "git clone -q . $HOME/other",
    ),
];

fn attack(cx: &Cx) {
    let ran = cx.home().join("ran");
    let outside = |script: &str, dir: &str| {
        let script = format!("cd {dir} && {script}");
        let run = cx.outside(["sh", "-c", &script]).env("HOOK_RAN", ran.to_str().expect("ASCII"));
        let names = ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"];
        names.iter().fold(run, |run, name| run.env(name, "a@example.com")).run()
    };
    let mut wrong = Vec::new();
    for (number, (made, evil, then)) in CASES.iter().enumerate() {
        for (flag, is_open) in [("--quiet", false), ("--allow-write=.git", true)] {
            let name = format!("{number}-{is_open}");
            let made = format!("git init -q . && git commit -q --allow-empty -m one && {{ {made}; }}");
            fs::create_dir(cx.dir().join(&name)).expect("a directory");
            cx.bench().give(&cx.dir().join(&name), cx.is_root());
            outside(&made, &name).exits(0);
            let script = format!("{EVIL}; {evil}");
            let done = cx.exeat(["run", flag, "--", "sh", "-c", &script]).cwd(&cx.dir().join(&name)).run();
            outside(then, &name);
            if ran.exists() != is_open {
                wrong.push((*evil, is_open, done));
            }
            let _ = fs::remove_file(&ran);
            outside(
                "rm -rf $HOME/clone $HOME/other; git config --global --unset init.templateDir; true",
                &name,
            );
        }
    }
    assert!(wrong.is_empty(), "what a stage made ran, or nothing did where it may: {wrong:?}");
}

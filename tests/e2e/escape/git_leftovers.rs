//! B14, B15: what a stage leaves in a repository beside its hooks and its configuration, for git on the host to follow.

use std::fs;
use std::os::unix::fs::symlink;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b14_links_in_a_repository", links);
    list.users("escape::b15_remotes_of_the_old_way", remotes);
    list.users("escape::b15_a_rebase_that_the_stage_began", rebase);
}

/// Started and committed to by the caller.
fn repository(cx: &Cx) {
    let made = "set -e; rm -rf .git evil; git init -q -b main .; git config user.email a@example.com; git config user.name a
        git config core.logAllRefUpdates true; git commit -q --allow-empty -m one; git branch other";
    cx.outside(["sh", "-c", made]).run().exits(0);
}

/// Git appends to its logs and writes messages in place: through a link, to any file of the caller's, and words of the stage's.
fn links(cx: &Cx) {
    let victims = ["bashrc", "profile", "rc"].map(|name| cx.home().join(name));
    let [bashrc, profile, rc] = victims.each_ref().map(|path| path.to_str().expect("ASCII"));
    let attack = format!(
        "set -e; rm -f .git/logs/HEAD .git/COMMIT_EDITMSG; ln -s {bashrc} .git/logs/HEAD; ln -s {profile} .git/COMMIT_EDITMSG
        rm .git/logs/refs/heads/other; ln -s {rc} .git/logs/refs/heads/other; chmod 0300 .git/logs/refs/heads
        ln -s {rc} .git/remotes; ln -s {rc} \"$(printf '.git/logs/\\377')\""
    );
    let work = || {
        let work = "chmod 0755 .git/logs/refs/heads; git checkout -q other; git commit -q --allow-empty -m hello; git checkout -q main";
        cx.outside(["sh", "-c", work]).run().exits(0);
    };
    let rewritten = || victims.iter().filter(|path| fs::read(path).expect("a file") != b"mine\n").count();
    for (words, expected) in [(&["--allow-git-config"][..], 3), (&[], 0)] {
        repository(cx);
        // The caller's own stay: one that git knows, one that it does not, and the old way to say which branch it is.
        symlink("../../excluded", cx.dir().join(".git/info/excluded")).expect("a link");
        symlink("../elsewhere", cx.dir().join(".git/own")).expect("a link");
        fs::remove_file(cx.dir().join(".git/HEAD")).expect("HEAD");
        symlink("refs/heads/main", cx.dir().join(".git/HEAD")).expect("a link");
        for path in &victims {
            fs::write(path, "mine\n").expect("a file");
            cx.bench().give(path, cx.is_root());
        }
        let done = cx.exeat(["run"].iter().chain(words).chain(&["--", "sh", "-c", &attack])).run();
        done.exits(0);
        if words.is_empty() {
            done.says(".git/logs/HEAD` was renamed").says(".git/COMMIT_EDITMSG` was renamed");
            done.says("logs/refs/heads/other` was renamed")
                .says("was renamed to `\\xef\\xbf\\xbd.exeat-quarantine`");
            assert!(!done.stderr().contains("exeat-quarantine.exeat-quarantine"), "moved twice: {done:?}");
            for name in [".git/info/excluded", ".git/own", ".git/HEAD"] {
                assert!(cx.dir().join(name).is_symlink(), "{name} is the caller's: {done:?}");
            }
        }
        work();
        assert_eq!(rewritten(), expected, "{done:?}");
    }
    // The directory of the repository is the tree itself.
    let words = ["run", "--rw", ".git:/g", "--", "sh", "-c", "ln -s x /g/logs/later"];
    cx.exeat(words).run().exits(0).says("work/.git/logs/later` was renamed");
    let done = cx.sh(&[], "ln -s x logs/more").cwd(&cx.dir().join(".git")).run();
    done.exits(0).says("work/.git/logs/more` was renamed to `more.exeat-quarantine`");
}

/// A remote needs no configuration: git asks `.git/remotes` and `.git/branches`, and a push runs the hooks of where it goes.
fn remotes(cx: &Cx) {
    let ran = cx.home().join("ran");
    let dir = cx.dir().display();
    for (words, runs) in [(&["--allow-git-config"][..], true), (&[], false)] {
        for name in ["remotes", "branches"] {
            repository(cx);
            let made = cx.dir().join(".git").join(name);
            // Where a template makes it, it is read-only.
            let _ = fs::remove_dir_all(&made);
            let attack = format!(
                "set -e; git init -q --bare evil; mkdir .git/{name}
                printf '#!/bin/sh\\necho ran >>$HOOK_RAN\\n' >evil/hooks/pre-receive; chmod +x evil/hooks/pre-receive
                case {name} in remotes) printf 'URL: {dir}/evil\\nPush: HEAD:refs/heads/x\\n';; *) echo {dir}/evil;; esac >.git/{name}/origin"
            );
            let done = cx.exeat(["run"].iter().chain(words).chain(&["--", "sh", "-c", &attack])).run();
            done.exits(0);
            let push = cx.outside(["git", "push", "-q", "origin", "HEAD:refs/heads/x"]);
            push.env("HOOK_RAN", ran.to_str().expect("ASCII")).run();
            assert_eq!(fs::remove_file(&ran).is_ok(), runs, "{name}: {done:?}");
            assert_eq!(fs::symlink_metadata(&made).is_ok(), runs, "{name}: {done:?}");
        }
    }
}

/// It may be work, and stays; its steps may be commands, and exeat says so. Not of a rebase that is as it was.
fn rebase(cx: &Cx) {
    repository(cx);
    let begin =
        "git commit -q --allow-empty -m two && GIT_SEQUENCE_EDITOR='echo break >' git rebase -q -i --root";
    let done = cx.sh(&[], begin).run();
    done.exits(0).says("git-rebase-todo` is left where it is: the stage began this rebase");
    assert!(cx.dir().join(".git/rebase-merge").is_dir());
    cx.sh(&[], "git status").run().exits(0).silent();
    let done = cx.sh(&[], "echo 'exec true' >>.git/rebase-merge/git-rebase-todo").run();
    done.exits(0).says("look at its steps before you continue it");
}

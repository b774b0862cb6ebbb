//! B14, B15: files of a repository besides hooks and configuration that a stage leaves, and git on the host follows.

use std::fs;
use std::os::unix::fs::symlink;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b14_links_in_a_repository", links);
    list.users("escape::b14_links_among_the_objects", objects);
    list.alone("escape::b14_a_crowd_hides_no_link", crowd);
    list.users("escape::b15_remotes_of_the_old_way", remotes);
    list.users("escape::b15_a_rebase_that_the_stage_began", rebase);
}

/// Makes a repository with a commit of the caller.
fn repository(cx: &Cx) {
    let made = "set -e; rm -rf .git evil; git init -q -b main .; git config user.email a@example.com; git config user.name a
        git config core.logAllRefUpdates true; git commit -q --allow-empty -m one; git branch other";
    cx.outside(["sh", "-c", made]).run().exits(0);
}

/// Git appends to its logs and writes messages in place: through a link, to any file of the caller's, with the stage's
/// text.
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
    for (words, expected) in [(&["--allow-write=.git"][..], 3), (&[], 0)] {
        repository(cx);
        // The caller's own links stay: one that git knows, one that it does not, and the old form of HEAD.
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
            done.says(".git/logs/HEAD` was moved").says(".git/COMMIT_EDITMSG` was moved");
            done.says("logs/refs/heads/other` was moved")
                .says(".git/logs/\\xff`: the stage may have made it");
            for name in [".git/info/excluded", ".git/own", ".git/HEAD"] {
                assert!(cx.dir().join(name).is_symlink(), "{name} is the caller's: {done:?}");
            }
        }
        work();
        assert_eq!(rewritten(), expected, "{done:?}");
    }
    // The repository's directory is the tree itself.
    let words = ["run", "--rw", ".git:/g", "--", "sh", "-c", "ln -s x /g/logs/later"];
    cx.exeat(words).run().exits(0).says("work/.git/logs/later` was moved");
    let done = cx.sh(&[], "ln -s x logs/more").cwd(&cx.dir().join(".git")).run();
    done.exits(0).says("work/.git/logs/more` was moved to");
}

/// Git writes the commit graph and the pack index in place, through links, and follows a link for the first two digits
/// of an object's name.
fn objects(cx: &Cx) {
    let victims = ["bashrc", "profile", "rc"].map(|name| cx.home().join(name));
    let [bashrc, profile, rc] = victims.each_ref().map(|path| path.to_str().expect("ASCII"));
    let out = cx.home().join("out");
    let attack = format!(
        "set -e; cd .git/objects; mkdir -p info/commit-graphs; ln -s {bashrc} info/commit-graph
        ln -s {rc} info/commit-graphs/commit-graph-chain; rm -f pack/multi-pack-index; ln -s {profile} pack/multi-pack-index
        for n in $(seq 0 255); do d=$(printf %02x $n); rm -rf $d; ln -s {} $d; done",
        out.display()
    );
    for (words, expected) in [(&["--allow-write=.git"][..], true), (&[], false)] {
        repository(cx);
        cx.outside(["git", "repack", "-adq"]).run().exits(0);
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).expect("a directory");
        cx.bench().give(&out, cx.is_root());
        for path in &victims {
            fs::write(path, "mine\n").expect("a file");
            cx.bench().give(path, cx.is_root());
        }
        let done = cx.exeat(["run"].iter().chain(words).chain(&["--", "sh", "-c", &attack])).run();
        done.exits(0);
        if !expected {
            done.says("159 more were moved");
        }
        let work = "rm -rf spare; git commit -q --allow-empty -m two; cp -a .git spare; git --git-dir=spare commit-graph write --reachable --split; git repack -dq
            git multi-pack-index write; git commit -q --allow-empty -m three; git commit-graph write --reachable; exit 0";
        let worked = cx.outside(["sh", "-c", work]).run();
        let rewritten = victims.each_ref().map(|path| fs::read(path).expect("a file") != b"mine\n");
        let written = fs::read_dir(&out).expect("out").count();
        assert_eq!((rewritten, written > 0), ([expected; 3], expected), "{done:?} {worked:?}");
        cx.outside(["git", "log", "-1", "--format=%s"]).run().prints("three\n");
    }
}

/// An earlier stage leaves more in one directory than exeat searches. Links in other directories are still moved, and
/// `--require full` prevents the run.
fn crowd(cx: &Cx) {
    repository(cx);
    let fill = "import os
os.makedirs('.git/logs/big', exist_ok=True)
for n in range(65537): os.close(os.open(f'.git/logs/big/{n}', os.O_CREAT | os.O_WRONLY))";
    cx.sh(&[], &format!("python3 -c \"{fill}\"")).run().exits(0).says("it holds too much");
    let refused = cx.exeat(["run", "--require", "full", "--", "sh", "-c", "touch ran"]).run();
    refused.exits(125).says("holds more than 65536 names");
    assert!(!cx.dir().join("ran").exists(), "{refused:?}");
    let attack = "rm -f .git/COMMIT_EDITMSG .git/logs/HEAD; ln -s x .git/COMMIT_EDITMSG; ln -s x .git/logs/HEAD; ln -s x .git/logs/big/x
        find .git/logs/big -type f -delete";
    let done = cx.sh(&[], attack).run();
    done.exits(0)
        .says("holds more than 65536 names")
        .says("COMMIT_EDITMSG` was moved")
        .says("logs/HEAD` was moved");
    // Its maker is unknown.
    done.says("logs/big/x` is left where it is");
    assert!(cx.dir().join(".git/logs/big/x").is_symlink());
    let log = done.record();
    let fs = &log.events("run_start")[0]["enforcement"]["fs"];
    assert!(fs.to_string().contains("holds more than 65536 names"), "{fs}");
    // The search opens a closed directory, but a plan does not.
    cx.outside(["sh", "-c", "rm -r .git/logs/big; mkdir .git/logs/shut; chmod 0 .git/logs/shut"])
        .run()
        .exits(0);
    let refused = cx.exeat(["run", "--require", "full", "--", "true"]).run();
    refused.exits(if cx.is_root() { 0 } else { 125 });
    cx.sh(&[], "chmod 0700 .git/logs/shut; ln -s x .git/logs/shut/x").run().says("shut/x` was moved");
}

/// A remote needs no configuration: git reads `.git/remotes` and `.git/branches`, and a push runs the hooks of its
/// target.
fn remotes(cx: &Cx) {
    let ran = cx.home().join("ran");
    let dir = cx.dir().display();
    for (words, runs) in [(&["--allow-write=.git"][..], true), (&[], false)] {
        for name in ["remotes", "branches"] {
            repository(cx);
            let made = cx.dir().join(".git").join(name);
            // If a template makes it, it is read-only.
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

/// A rebase may be work, so it stays, but its steps may be commands, so exeat reports it. An unchanged rebase is not
/// reported.
fn rebase(cx: &Cx) {
    repository(cx);
    let begin =
        "git commit -q --allow-empty -m two && GIT_SEQUENCE_EDITOR='echo break >' git rebase -q -i --root";
    let done = cx.sh(&[], begin).run();
    done.exits(0).says(
        "rebase-merge` is left where it is: the stage began or changed what git has not finished there",
    );
    assert!(cx.dir().join(".git/rebase-merge").is_dir());
    cx.sh(&[], "git status").run().exits(0).silent();
    for change in [
        "echo 'exec true' >>.git/rebase-merge/git-rebase-todo",
        "echo x/../evil >.git/rebase-merge/strategy",
        "printf '%s\\n' --x >.git/rebase-merge/strategy_opts; chmod 0300 .git/rebase-merge",
    ] {
        let done = cx.sh(&[], change).run();
        done.exits(0)
            .says("rebase-merge` is left where it is")
            .says("before you have git continue or abort it");
        cx.outside(["chmod", "0755", ".git/rebase-merge"]).run().exits(0);
    }
    // The caller's cherry-pick, whose options name a program.
    repository(cx);
    let pick = "set -e; echo 1 >f; git add f; git commit -qm 1; git checkout -q other; echo 2 >f; git add f; git commit -qm 2
        git commit -q --allow-empty -m 3; git checkout -q main; ! git cherry-pick main..other; test -d .git/sequencer";
    cx.outside(["sh", "-c", pick]).run().exits(0);
    cx.sh(&[], "git status; git diff; echo 3 >f; git add f").run().exits(0).silent();
    let done = cx.sh(&[], "printf '[options]\n\tstrategy = x/../evil\n' >>.git/sequencer/opts").run();
    done.exits(0).says(".git/sequencer` is left where it is");
    // A cherry-pick that the stage finishes is not reported.
    cx.sh(&[], "git cherry-pick --quit").run().exits(0).silent();
}

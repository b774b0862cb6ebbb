//! Entries that a stage leaves in a repository for ordinary git commands of the host, in places that git has for other things: directories of
//! submodules and worktrees, unfinished operations, the index, and links.

use std::fs;

use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.users("escape::b14_no_submodule_hides_among_git_s_own_directories", submodules);
    list.users("escape::b14_a_worktree_without_commondir_names_no_program", worktree);
    list.users("escape::b14_a_repository_without_head_names_no_program", worktree_without_head);
    list.users("escape::b14_a_new_repository_names_no_program", nested);
    list.users("escape::b14_a_hook_further_down_is_not_changed_in_place", hook);
    list.users("escape::b14_what_a_configuration_further_down_names_is_not_changed", change_named);
    list.users("escape::b14_what_the_caller_s_configuration_names_is_judged_in_each_repository", everywhere);
    list.users("escape::b14_what_a_configuration_names_is_judged_in_each_worktree", worktrees);
    list.users("escape::b14_a_submodule_s_tree_leads_back", tree_of_submodule);
    list.once("escape::b14_a_link_is_moved_once_where_the_tree_is_a_repository_s_directory", moved_once);
    list.users("escape::b14_repositories_of_the_caller_further_down_lose_nothing", keep_further);
    list.users("escape::b14_large_hooks_of_the_caller_stay_on_a_tmpfs", keep_large);
    list.users("escape::b14_a_repository_of_an_earlier_run_names_no_program", earlier);
    list.users("escape::b15_a_program_under_a_tool_s_own_key_is_read_only", tools);
    list.users("escape::b14_the_numbers_of_a_rebase_are_numbers", prompt);
    list.users("escape::b14_git_writes_through_no_link_elsewhere", links);
    list.users("escape::b15_a_filter_in_the_repository_is_read_only", filter);
    list.once("escape::b14_a_conflict_of_the_caller_stays", keep_conflict);
    list.users("escape::b14_a_repository_as_git_makes_it_stays", keep_clone);
    list.users("escape::b14_git_enters_nothing_that_was_moved", moved);
    list.users("escape::b14_no_link_leads_to_a_repository_of_an_earlier_stage", kept_for_stages);
    list.users("escape::b14_what_the_caller_s_configuration_names_is_judged_in_a_new_repository", new_top);
    list.users("escape::b14_a_second_working_tree_counts_in_later_runs", second_tree);
    list.users("escape::b14_what_has_the_same_content_stays", same_content);
    list.users("escape::b14_git_takes_no_worktree_elsewhere_for_removed", keep_worktrees);
}

/// Runs an attack without exeat and with it, each in a new repository, and then the host's command. `$MARK` is made by the attack's program,
/// and `$OUT` is a file outside of the tree.
pub(super) fn attack(cx: &Cx, before: &str, stage: &str, host: &str) {
    attack_in(cx, "", before, stage, host);
}

/// Works like [`attack`], with the stage and the host in this directory of the repository.
pub(super) fn attack_in(cx: &Cx, dir: &str, before: &str, stage: &str, host: &str) {
    let place = cx.dir().with_file_name("attack");
    let (mark, out) = (place.join("mark"), place.join("out"));
    let env = |script: &str| {
        format!(
            "export MARK={} OUT={} GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test\n{script}",
            mark.display(),
            out.display()
        )
    };
    for is_inside in [false, true] {
        let _ = fs::remove_dir_all(&place);
        let make = format!(
            "mkdir -p {0}/p; cd {0}/p; echo mine > $OUT; git init -q -b main; echo one > a; git add a; git commit -qm one; {before}",
            place.display()
        );
        cx.outside(["bash", "-ec", &env(&make)]).run().exits(0);
        let work = place.join("p").join(dir);
        let done = if is_inside {
            cx.exeat(["run", "--", "bash", "-c", &env(stage)]).cwd(&work).run()
        } else {
            cx.outside(["bash", "-c", &env(stage)]).cwd(&work).run()
        };
        let host = cx.outside(["bash", "-c", &env(host)]).cwd(&work).run();
        let is_changed = fs::read_to_string(&out).expect("a file") != "mine\n";
        assert_eq!(mark.exists() || is_changed, !is_inside, "{stage}: {done:?} {host:?}");
    }
}

/// `git fetch` enters each submodule for which a directory is in `.git/modules`, whatever its name is. It reads `.gitmodules` from the index.
fn submodules(cx: &Cx) {
    let deep = "d/".repeat(40);
    for name in ["a/info", "a/objects/ab", ".", &format!("{deep}d"), "a/refs/x"] {
        let stage = format!(
            r#"m=.git/modules/{name}; git init -q t; (cd t; echo s > s; git add s; git commit -qm s); c=$(git -C t rev-parse HEAD); mkdir -p .git/modules/a
            case {name} in a/*) cp -r t/.git/HEAD t/.git/objects t/.git/refs .git/modules/a/;; esac
            mkdir -p $m; cp -r t/.git/HEAD t/.git/objects t/.git/refs $m/; rm -rf t
            printf '[core]\nrepositoryformatversion=0\nbare=false\n[remote "origin"]\nurl=x\nuploadpack=touch %s;false\nfetch=+refs/heads/*:refs/remotes/origin/*\n' "$MARK" > $m/config
            b=$(printf '[submodule "%s"]\npath = s\nurl = ./nowhere\nfetchRecurseSubmodules = true\n' {name} | git hash-object -w --stdin)
            git update-index --add --cacheinfo 100644,$b,.gitmodules --cacheinfo 160000,$c,s; git commit -qm sub; mkdir -p s"#
        );
        let before =
            "git init -q --bare ../up.git; git remote add origin ../up.git; git push -q -u origin main";
        attack(cx, before, &stage, "git fetch");
    }
}

/// Without a `commondir`, git treats the directory of a worktree as a complete repository.
fn worktree(cx: &Cx) {
    let stage = r#"git worktree add -q w -b w; cd .git/worktrees/w; rm commondir; mkdir -p objects refs; cp -r ../../objects/. objects/; cp -r ../../refs/. refs/
        printf '[core]\nrepositoryformatversion=0\nbare=false\nfsmonitor=touch %s;false\n' "$MARK" > config"#;
    attack(cx, "", stage, "git worktree remove w");
}

/// git asks for a `HEAD` in the directory of a worktree, and not in that of its repository.
fn worktree_without_head(cx: &Cx) {
    let stage = r#"mkdir -p x/y/z; git init -q x/y/z/r; cd x/y/z/r; git commit -q --allow-empty -m 1; git worktree add -q ../w -b w; mv .git ../c; cd ../; rm c/HEAD
        echo "gitdir: $PWD/c/worktrees/w" > w/.git; echo "$PWD/w/.git" > c/worktrees/w/gitdir
        printf '#!/bin/sh\ntouch %s\n' "$MARK" > c/hooks/pre-commit; chmod +x c/hooks/pre-commit; git config -f c/config core.fsmonitor "touch $MARK;false""#;
    attack(cx, "", stage, "cd x/y/z/w; git status; git commit --allow-empty -m x");
}

/// A directory deep in the tree with a repository that names a program, for the present directory.
const EVIL: &str = r#"mkdir -p x/y/z; (cd x/y/z; git init -q s; cd s; echo s > s; git add s; git commit -qm s; git config core.fsmonitor "touch $MARK;false")"#;

/// `git status` enters what the index has as a submodule. What it has can come from a commit, or from a conflict, and a submodule has its own
/// index.
fn nested(cx: &Cx) {
    let add = "git -c advice.addEmbeddedRepo=false add -f";
    let stage = format!("{EVIL}; {add} x; git commit -qm sub; git rm -qr --cached x");
    attack(cx, "", &stage, "git reset -q; git status");
    let stage = format!(
        r#"{EVIL}; c=$(git -C x/y/z/s -c core.fsmonitor=false rev-parse HEAD); printf "160000 $c 1\tx/y/z/s\n160000 $c 2\tx/y/z/s\n" | git update-index --index-info"#
    );
    attack(cx, "", &stage, "git status");
    let name = ".exeat-quarantine.0123456789abcdef";
    let stage = format!("mkdir {name}; (cd {name}; {EVIL}); {add} {name}; git commit -qm sub");
    attack(cx, "", &stage, "git status");
    let stage = format!(
        "top=$PWD; for n in 1 2 3 4 5 6 7 8 9 10 11 12; do mkdir d; cd d; git init -q; done; {EVIL}
        while {add} -A && git commit -qm sub && [ $PWD != $top ]; do cd ..; done"
    );
    attack(cx, "", &stage, "git status");
    // Below the directory of another system, and in the modules of a new one.
    let stage = format!("mkdir .hg; (cd .hg; {EVIL}); {add} .hg/x; git commit -qm sub");
    attack(cx, "", &stage, "git status");
    // A remote is a repository among git's own files.
    let stage = r#"git init -q --bare .git/objects/e.git; printf '#!/bin/sh\ntouch %s\n' "$MARK" > .git/objects/e.git/hooks/pre-receive; chmod +x .git/objects/e.git/hooks/pre-receive
        git init -q s; cd s; git commit -q --allow-empty -m x; git remote add origin ../.git/objects/e.git"#;
    attack(cx, "", stage, "cd s; git push origin HEAD");
    // Mercurial enters its own.
    let stage = r#"hg init x/y/z; (cd x/y/z; echo x > x; hg add -q x; hg commit -u a -m x; printf 'import os\nos.system("touch %s")\n' "$MARK" > e.py; printf '[extensions]\ne = %s/e.py\n' $PWD > .hg/hgrc)
        echo 'x/y/z = x/y/z' > .hgsub; hg --config extensions.e=! add -q .hgsub"#;
    attack(cx, "hg init", stage, "hg diff");
    // Also through a link.
    for (at, host) in
        [("n", "cd n; hg status"), ("x/y/z/n", "cd x/y/z/n; hg status"), ("x/y/z/n", "hg status -S")]
    {
        let stage = format!(
            r#"mkdir -p {at}; hg init {at}; (cd {at}; echo x > x; hg add -q x; hg commit -u a -m x; mv .hg zz; ln -s zz .hg; printf 'import os\nos.system("touch %s")\n' "$MARK" > e.py; printf '[extensions]\ne = %s/e.py\n' $PWD > zz/hgrc)
            echo '{at} = {at}' > .hgsub; hg --config extensions.e=! add -q .hgsub"#
        );
        attack(cx, "hg init", &stage, host);
    }
    let make = r#"mkdir -p x/y/z; cd x/y/z; git init -q s; cd s; echo s > s; git add s; git commit -qm s; git config core.fsmonitor "touch $MARK;false""#;
    let stage = format!("({make}); git -c advice.addEmbeddedRepo=false add x; git commit -qm sub");
    attack(cx, "", &stage, "git status");
    // The repository is elsewhere, and its `.git` a file.
    let stage = format!(
        "({make}); git -c advice.addEmbeddedRepo=false add x; git commit -qm sub; mv x/y/z/s/.git x/git; echo gitdir: ../../../git > x/y/z/s/.git"
    );
    attack(cx, "", &stage, "git status");
    // The index is the host's, and names a submodule that is not there yet.
    let before = "mkdir -p x/y/z/s; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),x/y/z/s; git commit -qm sub; git status";
    attack(cx, before, &format!("({make})"), "git status");
    attack(
        cx,
        &format!(
            "{before}; git config core.sparseCheckout true; git sparse-checkout set --sparse-index a 2>/dev/null || true"
        ),
        &format!("mkdir -p x/y/z; ({make})"),
        "git status",
    );
    // It is the submodule of a submodule.
    let stage = format!(
        "git init -q lib; (cd lib; {make}; cd ../../../../; git -c advice.addEmbeddedRepo=false add x; git commit -qm sub); git -c advice.addEmbeddedRepo=false add lib; git commit -qm lib"
    );
    attack(cx, "", &stage, "git status");
}

/// A write to a file changes the time of no directory.
fn hook(cx: &Cx) {
    let before = r#"mkdir -p x/y/z; git init -q x/y/z/r; cd x/y/z/r/.git/hooks; mkdir d; printf '#!/bin/sh\n. .git/hooks/d/e\n' > pre-commit; chmod +x pre-commit; echo true > d/e; sleep 3"#;
    for name in ["pre-commit", "d/e"] {
        let stage = format!(r#"echo "touch $MARK" >> x/y/z/r/.git/hooks/{name}"#);
        attack(cx, before, &stage, "cd x/y/z/r; git commit --allow-empty -m x");
    }
}

/// A relative path in the user's own configuration counts in each repository, whoever made it.
fn everywhere(cx: &Cx) {
    let run = r#"printf '#!/bin/sh\ntouch %s\n' "$MARK" >"#;
    let init = "git config --global core.hooksPath .hk; git config --global filter.f.clean ./t/f; git config --global core.fsmonitor t/m";
    let add = "git -c advice.addEmbeddedRepo=false -c core.hooksPath= -c core.fsmonitor=false add";
    for (name, host) in [
        (".hk/post-index-change", "git status"),
        ("t/m", "git status"),
        ("t/f", "cd new; touch -d 1999-01-01 s; git add s"),
    ] {
        let dir = name.split('/').next().unwrap_or_default();
        let attributes = if name == "t/f" { "echo 's filter=f' > .gitattributes;" } else { "" };
        let repository = format!(
            "git init -q new; cd new; echo s > s; {add} s; git -c core.hooksPath= -c core.fsmonitor=false commit -qm s; {attributes} mkdir -p {dir}; {run} {name}; chmod +x {name}; touch -d 1999-01-01 s; cd ..; {add} new"
        );
        attack(cx, init, &repository, host);
        let deep = format!("{init}; mkdir -p x/y/z; cd x/y/z; git init -q new; sleep 3");
        let host = if host.starts_with("cd") { host.to_owned() } else { format!("cd new; {host}") };
        attack(cx, &deep, &format!("cd x/y/z; {repository}"), &format!("cd x/y/z; {host}"));
    }
}

/// The configuration is the caller's, and what it names lies in the tree.
fn change_named(cx: &Cx) {
    let run = r#"printf '#!/bin/sh\ntouch %s\n' "$MARK" >"#;
    let script = r"printf '#!/bin/sh\ntrue\n' > t/f; chmod +x t/f";
    for (before, stage, host) in [
        (
            "git config core.hooksPath hk",
            format!("mkdir -p hk; {run} hk/pre-commit; chmod +x hk/pre-commit"),
            "git commit --allow-empty -m x",
        ),
        ("git config core.fsmonitor t/f", format!("{run} t/f"), "git status"),
        (
            "git config include.path ../inc; touch inc",
            r#"printf '[core]\nfsmonitor = touch %s;false\n' "$MARK" > inc"#.to_owned(),
            "git status",
        ),
        (
            "git commit -q --allow-empty -m 1; git config core.hooksPath hk; git worktree add -q ../w; mkdir -p ../w/hk; cd ../w",
            format!("cd ../w; {run} hk/pre-commit; chmod +x hk/pre-commit"),
            "cd ../w; git commit --allow-empty -m x",
        ),
        (
            "git init -q ../../../../../o; cd ../../../../../o; git commit -q --allow-empty -m 1; git config core.hooksPath hk; git worktree add -q ../p/x/y/z/w; cd ../p/x/y/z/w; mkdir hk",
            format!("cd ../w; {run} hk/pre-commit; chmod +x hk/pre-commit"),
            "cd ../w; git commit --allow-empty -m x",
        ),
        (
            "git commit -q --allow-empty -m 1; git config core.hooksPath hk; git worktree add -q ../../../../near; mkdir hk",
            format!("{run} hk/pre-commit; chmod +x hk/pre-commit"),
            "git commit --allow-empty -m x",
        ),
        // Only its linked worktree is new.
        (
            "git commit -q --allow-empty -m 1; git config core.hooksPath hk",
            format!(
                "git worktree add -q ../w; mkdir ../w/hk; {run} ../w/hk/pre-commit; chmod +x ../w/hk/pre-commit"
            ),
            "cd ../w; git commit --allow-empty -m x",
        ),
        ("git config core.fsmonitor '~/attack/p/x/y/z/r/t/f'", format!("{run} t/f"), "git status"),
        ("git config alias.z '!t/f'", format!("{run} t/f"), "git z"),
        (
            "rm -r .git/hooks; mkdir hk; ln -s ../hk .git/hooks",
            format!("{run} hk/pre-commit; chmod +x hk/pre-commit"),
            "git commit --allow-empty -m x",
        ),
    ] {
        let before =
            format!("mkdir -p x/y/z; git init -q x/y/z/r; cd x/y/z/r; mkdir t; {script}; {before}; sleep 3");
        attack(cx, &before, &format!("cd x/y/z/r; {stage}"), &format!("cd x/y/z/r; {host}"));
    }
    // What is as it was stays, also if a stage has worked in the repository, and around the file.
    let make = format!(
        "mkdir -p x/y/z; git init -q x/y/z/r; cd x/y/z/r; mkdir t; {script}; git config alias.z '!t/f'; ln -s t l; touch t/inc; git config include.path ../l/inc"
    );
    cx.outside(["sh", "-ec", &make]).cwd(cx.dir()).run().exits(0);
    let done = cx.sh(&[], "cd x/y/z/r; git z; git add t; touch t/more f; mkdir ../more").run();
    assert!(!done.exits(0).stderr().contains("was moved"), "{done:?}");
}

/// A relative path counts from the top of each linked worktree, also of a submodule, whose configuration names another working tree.
fn worktrees(cx: &Cx) {
    let hook = r#"printf '#!/bin/sh\ntouch %s\n' "$MARK" > hk/pre-commit; chmod +x hk/pre-commit"#;
    let submodule = "git init -q ../s; git -C ../s commit -q --allow-empty -m s; git -c protocol.file.allow=always submodule -q add $PWD/../s s; git commit -qm s; cd s; git config core.hooksPath hk";
    let new = |at: &str| format!("git worktree add -q {at} -b w; cd {at}; mkdir hk; {hook}");
    let commit = |at: &str| format!("cd {at}; git commit --allow-empty -m x");
    let hooks = "git config core.hooksPath hk";
    attack(cx, hooks, &new("w"), &commit("w"));
    attack(cx, hooks, &new("x/y/z/w"), &commit("x/y/z/w"));
    attack(cx, submodule, &format!("cd s; {}", new("../w")), &commit("w"));
    let old = format!("{submodule}; git worktree add -q ../w -b w; sleep 3");
    attack(cx, &old, &format!("cd w; mkdir hk; {hook}"), &commit("w"));
    // What git checks out stays.
    let make = "git init -q o; cd o; mkdir hk; echo true > hk/pre-commit; git add hk; git commit -qm 1; git config core.hooksPath hk; sleep 3";
    let env = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test; ";
    cx.outside(["sh", "-ec", &format!("{env}{make}")]).cwd(cx.dir()).run().exits(0);
    let stage = "git worktree add -q w; git worktree add -q x/y/z/w -b u; touch w/more";
    let done = cx.sh(&[], &format!("{env}{stage}")).cwd(&cx.dir().join("o")).run();
    assert!(!done.exits(0).stderr().contains("was moved"), "{done:?}");
    // A submodule of a linked worktree loses nothing.
    let make = format!(
        "git init -q t; cd t; git commit -q --allow-empty -m 1; git worktree add -q w -b w; cd w; {submodule}; echo true > $(git rev-parse --git-dir)/hooks/pre-commit; sleep 3"
    );
    cx.outside(["sh", "-ec", &format!("{env}{make}")]).cwd(cx.dir()).run().exits(0);
    let done =
        cx.sh(&[], &format!("{env}cd w/s; git commit -q --allow-empty -m 2")).cwd(&cx.dir().join("t")).run();
    assert!(!done.exits(0).stderr().contains("was moved"), "{done:?}");
}

/// git would write the files of a commit into any directory that `core.worktree` names.
fn tree_of_submodule(cx: &Cx) {
    let before = "mkdir own; git init -q own; mkdir own/t; git -C own config core.hooksPath t";
    let stage = r#"mkdir -p m/.git/modules; cd m; git init -q .; git init -q sm; cd sm; mkdir t; printf '#!/bin/sh\ntouch %s\n' "$MARK" > t/pre-commit
        chmod +x t/pre-commit; git add t; git commit -qm t; cd ..; mv sm/.git .git/modules/sm; rm -r sm; mkdir sm
        echo 'gitdir: ../.git/modules/sm' > sm/.git; git -C sm config core.worktree ../../../../own"#;
    attack(cx, before, stage, "(cd m/sm; git checkout -f HEAD); cd own; git commit --allow-empty -m x");
}

/// The tree's quarantine is in the directory of the repository then, and no part of it.
fn moved_once(cx: &Cx) {
    cx.outside(["sh", "-ec", "git init -q .; mkdir src"]).cwd(cx.dir()).run().exits(0);
    let done = cx.sh(&[], "ln -s x ../.git/foo; sleep 1").cwd(&cx.dir().join("src")).run();
    assert_eq!(done.exits(0).stderr().matches("was moved to").count(), 1, "{done:?}");
}

/// Somebody starts a stage above repositories, and it works in them.
fn keep_further(cx: &Cx) {
    let env = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test; ";
    let make = r"for r in a/b/c/d e/f/g/h; do mkdir -p $r; cd $r; git init -q; git config alias.x '!true'; echo true > .git/hooks/pre-commit; cd ../../../..; done; hg init i/j/k; printf '[alias]\nx = st\n' > i/j/k/.hg/hgrc";
    cx.outside(["sh", "-ec", make]).cwd(cx.dir()).run().exits(0);
    let work = "cd a/b/c/d; echo 1 > f; git add f; git commit -qm 1; git x; cd ../../../../e/f/g/h; git commit -q --allow-empty -m 1; cd ../../../../i/j/k; echo 1 > f; hg commit -qA -u a -m 1";
    let done = cx.exeat(["run", "--", "sh", "-ec", &format!("{env}{work}")]).run();
    assert!(!done.exits(0).stderr().contains("was moved"), "{done:?}");
    let host = "git -C a/b/c/d x; git -C e/f/g/h x; cat a/b/c/d/.git/hooks/pre-commit e/f/g/h/.git/hooks/pre-commit i/j/k/.hg/hgrc";
    cx.outside(["sh", "-ec", host]).cwd(cx.dir()).run().exits(0);
}

/// A tmpfs keeps no time of what is written by a map of the memory, so that content decides.
fn keep_large(cx: &Cx) {
    let none = None::<&str>;
    nix::mount::mount(Some("tmpfs"), cx.dir(), Some("tmpfs"), nix::mount::MsFlags::empty(), none)
        .expect("a mount");
    cx.bench().give(cx.dir(), cx.is_root());
    let make = "mkdir -p a/b/c/d/bin; cd a/b/c/d; git init -q; head -c 3000000 /dev/urandom | tee .git/hooks/pre-push > bin/tool; \
                chmod +x .git/hooks/pre-push bin/tool; git config filter.x.clean bin/tool";
    cx.outside(["sh", "-ec", make]).cwd(cx.dir()).run().exits(0);
    let run = |script: &str| cx.exeat(["run", "--", "sh", "-ec", script]).cwd(cx.dir()).run();
    let kept = run("echo x > a/b/c/d/.git/COMMIT_EDITMSG");
    let changed = run("cd a/b/c/d; printf x | dd of=bin/tool conv=notrunc seek=2000000 bs=1 2>/dev/null");
    let names = ["a/b/c/d/bin/tool", "a/b/c/d/.git/hooks/pre-push"].map(|name| cx.dir().join(name).exists());
    nix::mount::umount(cx.dir()).expect("umount");
    assert!(!kept.exits(0).stderr().contains("was moved"), "{kept:?}");
    changed.exits(0).says("bin/tool` was moved");
    assert_eq!(names, [false, true], "{changed:?}");
}

/// One stage makes the repository, and a later one has git enter it.
fn earlier(cx: &Cx) {
    let make = "git init -q -b main; mkdir x; echo one > x/a; git add x; git commit -qm one";
    let name = "c=$(git -C x/s -c core.fsmonitor=false rev-parse HEAD); git update-index --add --cacheinfo 160000,$c,x/s";
    two_stages(cx, make, [&EVIL.replace("x/y/z", "x"), name], "git status");
}

/// Runs two stages, outside and then inside, and then the host's command.
pub(super) fn two_stages(cx: &Cx, make: &str, stages: [&str; 2], host: &str) {
    let mark = cx.dir().with_file_name("mark");
    let env = format!(
        "export MARK={} GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test; ",
        mark.display()
    );
    for is_inside in [false, true] {
        let work = cx.dir().join(if is_inside { "inside" } else { "outside" });
        let _ = fs::remove_dir_all(&work);
        cx.outside(["mkdir", work.to_str().expect("ASCII")]).run().exits(0);
        cx.outside(["bash", "-ec", &format!("{env}{make}")]).cwd(&work).run().exits(0);
        for stage in stages {
            let stage = format!("{env}{stage}");
            if is_inside {
                cx.exeat(["run", "--", "bash", "-c", &stage]).cwd(&work).run();
            } else {
                cx.outside(["bash", "-c", &stage]).cwd(&work).run();
            }
        }
        let _ = fs::remove_file(&mark);
        let host = cx.outside(["bash", "-c", &format!("{env}{host}")]).cwd(&work).run();
        assert_eq!(mark.exists(), !is_inside, "{host:?}");
    }
}

/// git-lfs has commands under keys of its own, and users name the top of the tree.
fn tools(cx: &Cx) {
    let stage = r#"printf '#!/bin/sh\ntouch %s\ncat\n' "$MARK" > t/p; echo z >> a"#;
    let before = r#"mkdir t; printf '#!/bin/sh\ncat\n' > t/p; chmod +x t/p; git add t; git commit -qm t; echo 'a filter=q' > .git/info/attributes"#;
    attack(
        cx,
        &format!("{before}; git config filter.q.clean '$(git rev-parse --show-toplevel)/t/p'"),
        stage,
        "git diff",
    );
    let lfs = "git lfs install --local; git config lfs.extension.e.clean './t/p %f'; git config lfs.extension.e.smudge cat; git config lfs.extension.e.priority 0";
    let before = before.replace("filter=q", "filter=lfs");
    attack(cx, &format!("{before}; {lfs}"), stage, "git add a");
    // A link in its store.
    let stage = r#"echo z >> a; h=$(sha256sum < a | cut -c1-64); d=.git/lfs/objects/$(echo $h | cut -c1-2); mkdir -p $d; ln -s "$(dirname "$OUT")/o" $d/$(echo $h | cut -c3-4)"#;
    attack(
        cx,
        &format!("{before}; git lfs install --local; mkdir ../o"),
        stage,
        "git add a; if ls ../o/*; then touch $MARK; fi",
    );
}

/// A repository that a stage makes or clones has a configuration and samples of hooks, wherever it is.
fn keep_clone(cx: &Cx) {
    let env = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test; ";
    let make = "git init -q; git commit -q --allow-empty -m 1; git init -q sub; git -C sub commit -q --allow-empty -m 1
        git -c advice.addEmbeddedRepo=false add sub; git commit -qm sub; git init -q --bare ../up";
    cx.outside(["bash", "-ec", &format!("{env}{make}")]).cwd(cx.dir()).run().exits(0);
    let up = cx.dir().with_file_name("up");
    let up = up.to_str().expect("ASCII");
    let stage = format!(
        "{env}mkdir deps; git clone -q {up} deps/x; git clone -q {up} deps/a/b/c/d; git -C deps/a/b/c/d config user.name x; git init -q new/a/b; echo 1 > sub/f"
    );
    let done = cx.exeat(["run", "--ro", up, "--", "sh", "-ec", &stage]).run();
    done.exits(0);
    let kept = ["deps/x", "sub", "deps/a/b/c/d", "new/a/b"];
    for name in kept.map(|name| format!("{name}/.git/config")) {
        assert!(cx.dir().join(&name).exists(), "{name}: {done:?}");
    }
    assert!(!done.stderr().contains("was moved"), "{done:?}");
    let empty = cx.dir().join("empty");
    cx.outside(["mkdir", empty.to_str().expect("ASCII")]).run().exits(0);
    let make = format!(
        "{env}git init -q; git config user.name x; git remote add origin https://example.test/x; git commit -q --allow-empty -m 1"
    );
    let done = cx.exeat(["run", "--", "sh", "-ec", &make]).cwd(&empty).run();
    done.exits(0);
    assert!(!done.stderr().contains("was moved"), "{done:?}");
    let remote = cx.outside(["git", "remote", "get-url", "origin"]).cwd(&empty).run();
    assert_eq!(remote.exits(0).stdout(), "https://example.test/x\n");
}

/// exeat moves a directory with a repository in it to a place that the stage knows.
fn moved(cx: &Cx) {
    let evil = |at: &str| EVIL.replace("x/y/z", at);
    // The control has no quarantine, and git takes no path through `git~1`: the same repository is a submodule under its own name.
    let add = r#"git update-index --add --cacheinfo 160000,$(git -C .helix/s -c core.fsmonitor=false rev-parse HEAD)"#;
    let sub = r#"${EXEAT_RUN_ID:+.exeat-quarantine/$EXEAT_RUN_ID/}.helix/s"#;
    attack(cx, "", &format!("mkdir .helix; {}; {add},{sub}", evil(".helix")), "git status");
    // By a link, and by a place of its own in the quarantine.
    let sub = r#"${EXEAT_RUN_ID:+.exeat-quarantine/git~1/$EXEAT_RUN_ID/}.helix/s"#;
    let stage = format!("mkdir .helix; {}; ln -s {sub} l", evil(".helix"));
    attack(cx, "", &stage, "cd l && git status");
    for at in [".exeat-quarantine", ".git/.exeat-quarantine", ".git/.exeat-quarantine.0123456789abcdef"] {
        let stage = format!("mkdir -p {at}/e; {}; ln -s {at}/e/s l", evil(&format!("{at}/e")));
        attack(cx, "", &stage, "cd l && git status");
    }
}

/// The private cache lasts, and nobody judges the repositories in it.
fn kept_for_stages(cx: &Cx) {
    let cache = r#"c=$(awk '$5=="/run/exeat/cache"{print $4}' /proc/self/mountinfo); d=/run/exeat/cache; [ -n "$c" ] || { c=$PWD/../cache; d=$c; mkdir -p $d; }; rm -rf $d/e; mkdir $d/e"#;
    let stage = format!("{cache}; here=$PWD; cd $d/e; {EVIL}; ln -s $c/e/x/y/z/s $here/l");
    attack(cx, "", &stage, "cd l && git status");
    // Through links that are no such links themselves, and among the objects, where exeat does not look.
    let stage = format!(
        "{cache}; here=$PWD; cd $d/e; {EVIL}; ln -s $(dirname $(dirname $c)) $here/h; ln -s h/$(basename $(dirname $c))/$(basename $c)/e/x/y/z/s $here/l"
    );
    attack(cx, "", &stage, "cd l && git status");
    let stage = format!(
        "{EVIL}; mkdir -p .git/objects/ab src/.exeat-quarantine; mv x src/.exeat-quarantine/git~1; ln -s $PWD/src/.exeat-quarantine/git~1/y/z/s .git/objects/ab/l; ln -s .git/objects/ab/l l"
    );
    attack(cx, "", &stage, "cd l && git status");
    for link in ["/dev/fd/../cwd", "L/cwd"] {
        let stage = format!(
            "{cache}; here=$PWD; cd $d/e; {EVIL}; cd $here; ln -s /proc/self L; ln -s {link}/$(realpath -m --relative-to $here $c/e/x/y/z/s) l"
        );
        attack(cx, "", &stage, "cd l && git status");
    }
    let stage = format!(
        "{EVIL}; mkdir .exeat-quarantine; mv x .exeat-quarantine/git~1; ln -s /proc/self/cwd/.exeat-quarantine/git~1/y/z/s l"
    );
    attack(cx, "", &stage, "cd l && git status");
    let stage = format!(
        r#"{cache}; git init -q --bare $d/e/b; printf '#!/bin/sh\ntouch %s\n' "$MARK" > $d/e/b/hooks/pre-receive; chmod +x $d/e/b/hooks/pre-receive
        git init -q -b main new; cd new; git commit -q --allow-empty -m 1; git remote add origin $c/e/b; git config branch.main.remote origin"#
    );
    attack(cx, "", &stage, "cd new; git push origin HEAD");
}

/// The repository came during the run, and a relative path of the caller's own configuration counts in it.
fn new_top(cx: &Cx) {
    let run = r#"printf '#!/bin/sh\ntouch %s\n' "$MARK" >"#;
    let hook = format!("git init -q; mkdir hk; {run} hk/pre-commit; chmod +x hk/pre-commit");
    let monitor = format!("git init -q; mkdir t; {run} t/f; chmod +x t/f");
    for (setting, stage, host) in [
        ("core.hooksPath hk", hook, "git commit --allow-empty -m x"),
        ("core.fsmonitor ./t/f", monitor, "git status"),
    ] {
        cx.outside(["sh", "-c", &format!("git config --global {setting}")]).run().exits(0);
        attack(cx, "rm -rf .git", &stage, host);
        let key = setting.split(' ').next().expect("a key");
        cx.outside(["git", "config", "--global", "--unset", key]).run().exits(0);
    }
    // The directory of the repository is apart from its working tree, in one way and in another.
    for link in [
        "git init -q --separate-git-dir=x/g/h/r.git x/y/z/r",
        "git init -q x/y/z/r; mkdir -p x/g/h; mv x/y/z/r/.git x/g/h/r.git; ln -s ../../../g/h/r.git x/y/z/r/.git",
    ] {
        let before =
            format!("mkdir -p x/y/z x/g/h; {link}; git -C x/y/z/r config core.hooksPath hk; sleep 3");
        let stage = format!("cd x/y/z/r; mkdir hk; {run} hk/pre-commit; chmod +x hk/pre-commit");
        attack(cx, &before, &stage, "cd x/y/z/r; git commit --allow-empty -m x");
    }
}

/// One stage makes a directory another working tree of the caller's repository, and a later one makes what the configuration names there.
fn second_tree(cx: &Cx) {
    // By a second name a later stage writes to a file, and has only that name in its tree.
    let make = "git init -q -b main; mkdir -p lib a/b/c/r; cd a/b/c/r; git init -q; git commit -q --allow-empty -m 1; echo true > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; sleep 3";
    for (name, change) in [
        ("config", r#"printf '[core]\nfsmonitor = touch %s;false\n' "$MARK" > lib/n"#),
        ("hooks/pre-commit", r#"printf '#!/bin/sh\ntouch %s\n' "$MARK" > lib/n"#),
    ] {
        let link = format!("ln a/b/c/r/.git/{name} lib/n");
        two_stages(cx, make, [&link, change], "cd a/b/c/r; git status; git commit --allow-empty -m x");
    }
    let make = "git init -q -b main; git commit -q --allow-empty -m 1; git config core.hooksPath hk";
    let link = "mkdir -p a/b/c/d; echo gitdir: $PWD/.git > a/b/c/d/.git";
    let hook = r#"cd a/b/c/d; mkdir hk; printf '#!/bin/sh\ntouch %s\n' "$MARK" > hk/pre-commit; chmod +x hk/pre-commit"#;
    two_stages(cx, make, [link, hook], "cd a/b/c/d; git commit --allow-empty -m x");
}

/// A change of times alone, or of modes to what they are, is none.
fn same_content(cx: &Cx) {
    let make = r"mkdir -p a/b/c; git init -q a/b/c/r; cd a/b/c/r; git config alias.x '!true'; echo true > .git/hooks/pre-commit; sleep 3";
    cx.outside(["sh", "-ec", make]).cwd(cx.dir()).run().exits(0);
    for stage in ["chmod -R u+w a", "find a -type f -exec touch {} +", "true"] {
        let done = cx.sh(&[], stage).run();
        assert!(!done.exits(0).stderr().contains("was moved"), "{stage}: {done:?}");
    }
    let stage = "git -C a/b/c/r config alias.y '!false'";
    cx.sh(&[], stage).run().exits(0).says("r/.git/config` was moved");
}

/// The prompt that comes with git has the shell expand these files.
fn prompt(cx: &Cx) {
    let host = r#"printf '%s\n' ". /usr/lib/git-core/git-sh-prompt" "PROMPT_COMMAND='__git_ps1 \"x\" \"y\"'" > ../rc; printf '\nexit\n' | script -qec "bash --rcfile ../rc -i" /dev/null"#;
    for (dir, number, other) in [("rebase-merge", "msgnum", "end"), ("rebase-apply", "next", "last")] {
        let stage = format!(
            r#"mkdir .git/{dir}; printf '$(touch %s)\n' "$MARK" > .git/{dir}/{number}; echo 1 > .git/{dir}/{other}; echo refs/heads/main > .git/{dir}/head-name"#
        );
        attack(cx, "", &stage, host);
    }
}

/// `git fsck` writes to names that are not in a directory of git's layout.
fn links(cx: &Cx) {
    let stage = r#"b=$(echo evil | git hash-object -w --stdin); mkdir -p .git/lost-found/other; ln -s "$OUT" .git/lost-found/other/$b"#;
    attack(cx, "", stage, "git fsck --lost-found");
}

/// transcrypt's filter is found by a command.
fn filter(cx: &Cx) {
    let before = r#"mkdir .git/crypt; printf '#!/bin/sh\ncat\n' > .git/crypt/transcrypt; chmod +x .git/crypt/transcrypt
        git config filter.crypt.clean '"$(git rev-parse --git-common-dir)"/crypt/transcrypt clean'; echo 'a filter=crypt' > .git/info/attributes"#;
    let stage = r#"printf '#!/bin/sh\ntouch %s\ncat\n' "$MARK" > .git/crypt/transcrypt; echo z >> a"#;
    attack(cx, before, stage, "git diff");
}

/// rerere keeps the resolution of a conflict that was there before the run.
fn keep_conflict(cx: &Cx) {
    let make = "git config --global init.defaultBranch main; git init -q; git config rerere.enabled true; echo 1 > f; git add f; git commit -qm 1
        git checkout -qb b; echo 2 > f; git commit -qam 2; git checkout -q main; echo 3 > f; git commit -qam 3; git merge b || true; test -s .git/MERGE_RR";
    let env = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test; ";
    cx.outside(["bash", "-ec", &format!("{env}{make}")]).cwd(cx.dir()).run().exits(0);
    let done = cx.sh(&[], "git status; touch .git/x; rm .git/x").run();
    assert!(!done.exits(0).stderr().contains("MERGE_RR"), "{done:?}");
    let resolve = format!("{env}echo 4 > f; git add f; git commit -qm 4; ls .git/rr-cache/*/postimage");
    cx.outside(["bash", "-ec", &resolve]).cwd(cx.dir()).run().exits(0);
}

/// git deletes what a repository has of a worktree whose place it does not find: at once when told to, and after three months with
/// `git gc`. The stage sees neither the worktree beside its own nor its files.
fn keep_worktrees(cx: &Cx) {
    let place = cx.dir().with_file_name("worktrees");
    let at = |name: &str| place.join(name);
    let make = "mkdir -p main; cd main; git init -q -b main; echo one >a; git add a; git commit -qm one; \
                git worktree add -q ../own -b own; git worktree add -q --detach ../other; \
                cd ../other; git commit -q --allow-empty -m lost; echo staged >b; git add b; \
                touch -d '100 days ago' ../main/.git/worktrees/*/index";
    let name = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test";
    let make = format!("{name}; mkdir {0}; cd {0}; {make}", place.display());
    cx.outside(["bash", "-ec", &make]).run().exits(0);
    let files = || {
        cx.outside([
            "sh",
            "-c",
            "cd \"$1\"; find . | sort",
            "sh",
            at("main/.git/worktrees/other").to_str().expect("UTF-8"),
        ])
        .run()
        .stdout()
    };
    let before = files();
    for dir in ["main", "own"] {
        let stage = "git worktree prune -v; git gc -q; git worktree list --porcelain | grep -c prunable; ls -A ../other";
        let done = cx.exeat(["run", "--", "sh", "-c", stage]).cwd(&at(dir)).run();
        assert_eq!(done.exits(0).stdout(), "0\n.git\n", "{dir}: {done:?}");
        assert_eq!(files(), before, "{dir}: {done:?}");
        let status =
            cx.outside(["git", "-C", at("other").to_str().expect("UTF-8"), "status", "--short"]).run();
        status.exits(0).prints("A  b\n");
    }
}

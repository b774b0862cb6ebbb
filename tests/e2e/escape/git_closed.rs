//! Directories that a stage closes, so that what is behind them cannot be found by its path: the user opens them later, and git goes on.

use e2e::case::{Cases, Cx};

use super::git_further::attack;

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b14_what_a_configuration_names_is_judged_behind_a_closed_directory", attack_named);
    list.users("escape::b14_no_link_leads_astray_behind_a_closed_directory", links);
    list.users("escape::b14_git_writes_through_no_link_in_a_closed_directory", links_of_git);
    list.users("escape::b14_what_the_caller_has_behind_a_closed_directory_stays", keep);
    list.users("escape::b14_judges_what_is_named_behind_a_closed_top", attack_below_closed_top);
    list.users("escape::b14_more_directories_are_closed_than_files_may_be_open", many);
}

/// A repository of the caller's that is too far down to be read-only.
const MAKE: &str =
    "mkdir -p x/y/z; git init -q x/y/z/r; cd x/y/z/r; git commit -q --allow-empty -m 1; mkdir hk";

fn attack_named(cx: &Cx) {
    let hook = r#"printf '#!/bin/sh\ntouch %s\n' "$MARK" > hk/pre-commit; chmod +x hk/pre-commit"#;
    let include = r#"printf '[core]\nfsmonitor = touch %s;false\n' "$MARK" > inc"#;
    let of_worktree = format!("cd ../w; mkdir hk; {hook}; cd ../r");
    let add_worktree = "git config core.hooksPath hk; git worktree add -q ../w";
    let cases = [
        ("git config core.hooksPath hk", hook, "git commit --allow-empty -m x"),
        ("touch inc; git config include.path ../inc", include, "git status"),
        ("touch inc; ln -s inc l; git config include.path ../l", include, "git status"),
        (add_worktree, &of_worktree, "cd ../w; git commit --allow-empty -m x"),
        (
            "mv .git ../g; ln -s ../g .git; git config core.hooksPath hk",
            hook,
            "git commit --allow-empty -m x",
        ),
        ("rm -r .git/hooks; ln -s ../hk .git/hooks", hook, "git commit --allow-empty -m x"),
    ];
    for (before, stage, host) in cases {
        for (close, mode) in [("x/y", "0"), ("x/y/z/r/.git", "0"), ("x/y/z", "0400")] {
            attack(
                cx,
                &format!("{MAKE}; {before}"),
                &format!("(cd x/y/z/r; {stage}); chmod {mode} $(realpath {close})"),
                &format!("chmod -R u+rwX . 2>/dev/null; cd x/y/z/r; {host}"),
            );
        }
    }
}

fn attack_below_closed_top(cx: &Cx) {
    let dir = cx.dir().display();
    let make = format!(
        "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test
        {MAKE}; git config core.hooksPath hk"
    );
    cx.outside(["sh", "-ec", &make]).cwd(cx.dir()).run().exits(0);
    for mode in ["0", "400"] {
        let stage = format!("echo true >x/y/z/r/hk/pre-commit; chmod {mode} .");
        cx.sh(&[], &stage).run().exits(0).says("x/y/z/r/hk` was moved");
        let look = format!("stat -c %a {dir}; chmod 700 {dir}; cd {dir}/x/y/z/r; test ! -e hk; mkdir hk");
        cx.outside(["sh", "-ec", &look]).run().exits(0).prints(&format!("{mode}\n"));
    }
}

/// A program that follows such a link is where nobody judges the repositories.
fn links(cx: &Cx) {
    for close in ["x/y/z", "x/y", "x/y/z/d"] {
        let stage = format!(
            "mkdir -p x/y/z/d; cd x/y/z/d; ln -s /proc/self/cwd p; ln -s p/x q; cd ../../../..; chmod 0 {close}"
        );
        let done = cx.sh(&[], &stage).run();
        let host = "chmod -R u+rwX x; ls x/y/z/d; rm -r x";
        let left = cx.outside(["sh", "-c", host]).cwd(cx.dir()).run();
        assert_eq!(left.exits(0).stdout(), "", "{close}: {done:?}");
    }
    // The control: links in the tree stay.
    let stage = "mkdir -p x/y/z/d; cd x/y/z/d; touch f; ln -s f l; ln -s ../d m; ln -s ../../../../x n; cd ../../../..; chmod 0 x/y/z";
    cx.sh(&[], stage).run().exits(0);
    cx.outside(["sh", "-c", "chmod -R u+rwX x; ls x/y/z/d"]).cwd(cx.dir()).run().prints("f\nl\nm\nn\n");
}

fn links_of_git(cx: &Cx) {
    let stage = r#"cd x/y/z/r/.git; b=$(echo evil | git hash-object -w --stdin); mkdir -p lost-found/other; ln -s "$OUT" lost-found/other/$b; chmod 0400 lost-found/other"#;
    attack(cx, MAKE, stage, "chmod -R u+rwX .; cd x/y/z/r; git fsck --lost-found");
}

/// The end keeps no descriptor of a closed directory, and each has its mode again afterwards.
fn many(cx: &Cx) {
    cx.outside(["mkdir", "-p", "x/y/z"]).cwd(cx.dir()).run().exits(0);
    let stage = "git init -q x/y/z/r; echo '[core] fsmonitor = touch mark' >>x/y/z/r/.git/config
        for n in $(seq 300); do mkdir d$n; chmod 0 d$n; done";
    let done = cx.sh(&[], stage).under(["prlimit", "--nofile=256:256", "--"]).run();
    done.exits(0).says("x/y/z/r/.git/config` was moved");
    let closed = "find . -maxdepth 1 -name 'd*' -perm 0 | wc -l; rmdir d*";
    cx.outside(["sh", "-c", closed]).cwd(cx.dir()).run().exits(0).prints("300\n");
}

/// The stage only closes the directory.
fn keep(cx: &Cx) {
    let make = format!(
        "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.test
        {MAKE}; echo true > hk/pre-commit; git config core.hooksPath hk; touch inc; git config include.path ../inc; ln -s inc l; sleep 3"
    );
    for close in ["x/y", "x/y/z/r", "x/y/z/r/.git"] {
        cx.outside(["sh", "-ec", &make]).cwd(cx.dir()).run().exits(0);
        let done = cx.sh(&[], &format!("chmod 0 {close}")).run();
        assert!(!done.exits(0).stderr().contains("was moved"), "{done:?}");
        // It is closed as before.
        let look = format!(
            "stat -c %a {close}; chmod -R u+rwX x; cd x/y/z/r; cat hk/pre-commit inc l; git config core.hooksPath; cd ../../../..; rm -r x"
        );
        cx.outside(["sh", "-ec", &look]).cwd(cx.dir()).run().exits(0).prints("0\ntrue\nhk\n");
    }
}

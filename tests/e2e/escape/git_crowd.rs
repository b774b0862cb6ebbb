//! B15: a stage makes many repositories, to use up the room for the caller's own.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b15_fake_submodules_take_no_room", attack);
}

/// A run leaves false submodules and worktrees in `.git`. The caller's later clone is younger than they are, and the
/// next run attacks its hooks.
fn attack(cx: &Cx) {
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let crowd =
        "set -e; n=0; while [ $n -lt 40 ]; do n=$((n + 1)); mkdir -p .git/modules/m$n .git/worktrees/w$n
        echo 'ref: refs/heads/x' >.git/modules/m$n/HEAD; echo /nowhere/.git >.git/worktrees/w$n/gitdir; done";
    cx.sh(&[], crowd).run().exits(0);
    cx.outside(["git", "init", "-q", "packages/lib"]).run().exits(0);
    let write = "echo evil >packages/lib/.git/hooks/pre-commit";
    let done = cx.sh(&[], &format!("({write}) 2>/dev/null && echo wrote")).run();
    let hook = cx.dir().join("packages/lib/.git/hooks/pre-commit");
    assert!(fs::symlink_metadata(&hook).is_err(), "a hook in the caller's repository: {done:?}");
    done.prints("").says("submodules and linked worktrees in").says("beyond the first 32");

    // The control: without the protection it is written.
    cx.exeat(["run", "--allow-write=.git", "--", "sh", "-c", write]).run().exits(0);
    assert_eq!(fs::read_to_string(&hook).expect("written"), "evil\n");
}

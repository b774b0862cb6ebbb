//! The repository of a working directory: git works in a subdirectory, a linked worktree and a submodule, the files
//! that git obeys there stay protected, and no pointer from a stage shows another repository.

use std::fs;
use std::path::{Path, PathBuf};

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::l06_git_works_in_parts_of_a_repository_and_gains_nothing", parts);
    list.users("escape::l01_a_pointer_that_a_stage_wrote_shows_no_repository", pointers);
    list.users("escape::l01_a_repository_that_a_stage_made_shows_nothing_around_it", hide_surroundings);
    list.once("escape::a_worktree_inside_the_repository_is_no_reason_for_a_note", inside);
}

const GIT: &str = "git -c user.name=a -c user.email=a@example.test -c protocol.file.allow=always";

/// Runs a script on the host as the trial's user.
fn host(cx: &Cx, dir: &Path, script: &str) {
    cx.outside(["sh", "-ec", script]).cwd(dir).run().exits(0);
}

fn inside_of(cx: &Cx, dir: &Path, script: &str) -> e2e::run::Done {
    cx.exeat(["run", "--", "sh", "-c", script]).cwd(dir).run()
}

/// Makes `app` with `app/pkg`, a linked worktree, and a submodule.
fn scene(cx: &Cx) -> PathBuf {
    let script = format!(
        "{GIT} init -q app; cd app; mkdir pkg; echo 1 > pkg/f; echo 1 > top; {GIT} add .; {GIT} commit -qm one; \
         {GIT} worktree add -q ../app-wt; cd ..; {GIT} init -q lib; cd lib; {GIT} commit -q --allow-empty -m lib; \
         cd ../app; {GIT} submodule --quiet add ../lib sub 2>/dev/null; {GIT} commit -qam sub"
    );
    host(cx, cx.dir(), &script);
    cx.dir().to_path_buf()
}

fn parts(cx: &Cx) {
    let root = scene(cx);
    for (dir, file) in [("app/pkg", "f"), ("app-wt", "top"), ("app/sub", "new")] {
        let at = root.join(dir);
        let script = format!(
            "echo 2 >> {file}; {GIT} add {file} && {GIT} commit -qm two && {GIT} status --porcelain && {GIT} log -1 --format=%s"
        );
        let done = inside_of(cx, &at, &script);
        done.exits(0);
        assert!(done.stdout().ends_with("two\n"), "{dir}: {done:?}");
        assert!(!done.stdout().contains(" D "), "the whole working tree is shown: {done:?}");
        // Nothing that the host's git obeys is writable.
        let git = "$(git rev-parse --git-common-dir)";
        let attack = format!(
            "git config core.fsmonitor ./evil; echo x >> {git}/config; mkdir -p {git}/hooks; echo x > {git}/hooks/pre-commit; \
             cp /dev/null ../stray; git rev-parse --git-common-dir"
        );
        inside_of(cx, &at, &attack).exits(0);
        let script = "! git config --get core.fsmonitor; test ! -e $(git rev-parse --git-common-dir)/hooks/pre-commit; test ! -e ../stray";
        host(cx, &at, script);
    }
    // Only the working directory is writable of the working tree.
    inside_of(cx, &root.join("app/pkg"), "cat ../top; echo x 2>/dev/null > ../top || echo refused")
        .exits(0)
        .prints("1\nrefused\n");
    let read_only = [
        "run",
        "--ro",
        ".",
        "--",
        "sh",
        "-c",
        "touch $(git rev-parse --git-dir)/x 2>/dev/null || echo refused",
    ];
    cx.exeat(read_only).cwd(&root.join("app/pkg")).run().exits(0).prints("refused\n");
}

fn pointers(cx: &Cx) {
    let root = scene(cx);
    let victim = cx.home().join("victim");
    host(cx, cx.home(), &format!("{GIT} init -q victim; echo secret > victim/secret"));
    let look = format!("cat {0}/secret {0}/.git/HEAD; touch {0}/.git/x {0}/x", victim.display());
    // As a worktree, as a submodule, with `commondir`, and as a link; in the directory of a later run.
    let plant = format!(
        "mkdir a b c d e; echo 'gitdir: {0}/.git' > a/.git; mkdir -p b/own; echo {0}/.git > b/own/commondir; \
         echo \"$PWD/b/.git\" > b/own/gitdir; echo 'gitdir: own' > b/.git; ln -s {0}/.git c/.git; \
         mkdir -p d/x.git/worktrees/y; echo \"$PWD/d/.git\" > d/x.git/worktrees/y/gitdir; echo {0} > d/x.git/worktrees/y/commondir; \
         echo 'gitdir: x.git/worktrees/y' > d/.git; ln -s {0}/.git e/git; echo 'gitdir: git' > e/.git",
        victim.display()
    );
    inside_of(cx, &root, &plant).exits(0);
    for dir in ["a", "b", "c", "d", "e"] {
        let done = inside_of(cx, &root.join(dir), &look);
        assert!(!done.stdout().contains("secret") && !done.stdout().contains("ref"), "{dir}: {done:?}");
        assert!(!victim.join(".git/x").exists() && !victim.join("x").exists(), "{dir}");
    }
    // If the home directory is the repository, it is not shown for a project in it.
    host(cx, cx.home(), &format!("{GIT} init -q .; echo secret > letter"));
    let alone = cx.home().join("alone");
    host(cx, cx.home(), "mkdir alone");
    let done = inside_of(cx, &alone, "cat ../letter");
    assert!(!done.stdout().contains("secret"), "{done:?}");
    fs::remove_dir_all(cx.home().join(".git")).expect("the repository");
}

/// A later stage does not see what a flag hid from an earlier one, even if the earlier one made a `.git` there.
fn hide_surroundings(cx: &Cx) {
    let scene = "mkdir -p app/secrets app/sub app/a/b/secrets app/a/b/sub app/c/d/sub; git init -q app/c/d; echo mine > app/c/d/f; echo s > app/secrets/key; echo s > app/a/b/secrets/key";
    host(cx, cx.dir(), scene);
    let app = cx.dir().join("app");
    let tops = [app.clone(), app.join("a/b")];
    let read = |top: &Path| inside_of(cx, &top.join("sub"), "cat ../secrets/key 2>/dev/null; git status -s");
    tops.iter()
        .for_each(|top| assert!(!read(top).stdout().contains('s'), "nothing is shown without a repository"));
    let plant = format!("for dir in . a/b; do {GIT} init -q $dir; done; cat secrets/key");
    cx.exeat(["run", "--mask", "secrets", "--", "sh", "-c", &plant]).cwd(&app).run().exits(1);
    // A repository that existed before is still shown.
    inside_of(cx, &app.join("c/d/sub"), "cat ../f").exits(0).prints("mine\n").silent();
    for top in &tops {
        assert!(top.join(".git/objects").is_dir(), "the repository stays");
        let done = read(top);
        assert!(!done.stdout().contains('s'), "{done:?}");
        done.says("a stage may have made").says(&format!("`--ro {}` shows it to one run", top.display()));
        // A flag shows it, and what the host makes is shown.
        let words = ["run", "--ro", "..", "--", "cat", "../secrets/key"];
        cx.exeat(words).cwd(&top.join("sub")).run().exits(0).prints("s\n");
        // So does the caller's trust.
        let trust = || cx.exeat(["state", "trust", ".."]).cwd(&top.join("sub")).run();
        trust().exits(0).prints(&format!("trusted {}\n", top.join(".git").display()));
        assert!(read(top).stdout().starts_with("s\n"));
        trust().exits(0).says("no stage is known to have made");
        host(cx, top, &format!("rm -rf .git; {GIT} init -q"));
        let done = read(top);
        assert!(done.stdout().starts_with("s\n"), "{done:?}");
    }
}

fn inside(cx: &Cx) {
    let script =
        format!("{GIT} init -q r; cd r; {GIT} commit -q --allow-empty -m one; {GIT} worktree add -q wt2");
    host(cx, cx.dir(), &script);
    let done = cx.exeat(["run", "--", "true"]).cwd(&cx.dir().join("r")).run();
    done.exits(0).silent();
    cx.exeat(["run", "--", "git", "-C", "wt2", "status"]).cwd(&cx.dir().join("r")).run().exits(0);
    cx.exeat(["run", "--", "git", "status"]).cwd(&cx.dir().join("r/wt2")).run().exits(0);
}

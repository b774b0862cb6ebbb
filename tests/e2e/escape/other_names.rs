//! B37: a second name for what is hidden or read-only. A case-insensitive file system or a bind mount gives one
//! directory two spellings, and a comparison of paths knows only one.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b37_other_names", attack);
}

fn attack(cx: &Cx) {
    let home = cx.home();
    for name in [".netrc", "work/token"] {
        fs::write(home.join(name), "hunter2\n").expect("a file");
        cx.bench().give(&home.join(name), cx.is_root());
    }
    let alias = home.parent().expect("above").join(format!("alias-{}", cx.good()));
    fs::create_dir(&alias).expect("a directory");
    let mounts = format!("mount --bind {} {}", home.display(), alias.display());
    let shown = alias.display().to_string();
    let token = cx.dir().join("token").display().to_string();
    // Credentials of the home directory, and a mask of the caller's, in a tree that is shown by its other name.
    let read = format!(
        "cat {shown}/.netrc {shown}/work/token 2>/dev/null; ls {shown}/work/token >/dev/null && echo there"
    );
    let words = ["run", "--ro", &shown, "--mask", &token, "--", "sh", "-c", &read];
    let done = cx.exeat(words).in_mounts(&mounts).run();
    assert_eq!(done.stdout(), "there\n", "{done:?}");
    // The home directory by its other name is not accepted as a writable working directory.
    let done = cx
        .sh(&[], "touch made 2>/dev/null || echo refused; cat .netrc 2>/dev/null")
        .cwd(&alias)
        .in_mounts(&format!("{mounts}; cd {shown}"));
    let done = done.run();
    assert_eq!(done.stdout(), "refused\n", "{done:?}");
    done.says("it is the home directory");
    // The control: a file that is not hidden is readable by either name.
    fs::write(home.join("plain"), "plain\n").expect("a file");
    cx.bench().give(&home.join("plain"), cx.is_root());
    let words = ["run", "--ro", &shown, "--", "cat", &format!("{shown}/plain")];
    cx.exeat(words).in_mounts(&mounts).run().exits(0).prints("plain\n");
    fs::remove_dir(&alias).expect("nothing is left mounted");

    // A read-only path of a tree is read-only wherever another mount shows the tree or a part of it.
    let made = "git init -q .; mkdir -p a/b/c/d/tree e/f/g/h/git .vscode; echo old >.envrc; echo old >.vscode/x; echo old >.git/hooks/x; echo schema = 1 >own.toml";
    cx.outside(["sh", "-c", made]).run().exits(0);
    let dir = cx.dir().display();
    let mounts = format!("mount --bind {dir} {dir}/a/b/c/d/tree; mount --bind {dir}/.git {dir}/e/f/g/h/git");
    let written = "cd a/b/c/d/tree; for it in .envrc .vscode/x .git/hooks/x .git/config own.toml ../../../../e/f/g/h/git/hooks/x ../../../../e/f/g/h/git/config; do \
                   echo '#evil' 2>/dev/null >>$it && echo wrote $it; done; mv .vscode gone 2>/dev/null && echo moved; echo new >plain";
    let words = ["run", "--policy", "own.toml", "--", "sh", "-c", written];
    cx.exeat(words).in_mounts(&format!("{mounts}; cd {dir}")).run().exits(0).prints("");
    assert_eq!(fs::read_to_string(cx.dir().join("plain")).expect("what is not protected"), "new\n");
}

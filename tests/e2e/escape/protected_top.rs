//! B16: exeat starts in a directory that programs on the host obey, or below one.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b16_started_in_a_protected_directory", attack);
    list.users("escape::b16_a_work_tree_of_an_agent", worktree);
    list.users("escape::b16_started_above_a_protected_file", above);
}

/// The host would obey everything that the stage could write.
fn attack(cx: &Cx) {
    for (name, file) in [
        (".vscode", "tasks.json"),
        (".husky/own", "pre-commit"),
        (".github/hooks", "hook.json"),
        (".devcontainer", "devcontainer.json"),
    ] {
        let dir = cx.dir().join(name);
        fs::create_dir_all(&dir).expect("directories");
        dir.ancestors().take_while(|it| *it != cx.dir()).for_each(|it| cx.bench().give(it, cx.is_root()));
        let write = format!("(echo evil >{file}) 2>/dev/null && echo wrote");
        let done = cx.sh(&[], &write).cwd(&dir).run();
        assert!(!dir.join(file).exists(), "{name}: {done:?}");
        done.prints("").says("is read-only for the stage").says("start exeat above").says("--rw .");

        // The caller's explicit choice.
        cx.exeat(["run", "--rw", ".", "--", "sh", "-c", &write]).cwd(&dir).run().exits(0).prints("wrote\n");
        assert_eq!(fs::read_to_string(dir.join(file)).expect("written"), "evil\n");
    }
}

/// Agents keep work trees of a repository in their own directory.
fn worktree(cx: &Cx) {
    let git = |words: &[&str]| {
        let options = ["git", "-c", "user.name=a", "-c", "user.email=a"];
        cx.outside([&options, words].concat()).cwd(cx.dir()).run().exits(0);
    };
    git(&["init", "-q", "."]);
    git(&["commit", "-q", "--allow-empty", "-m", "one"]);
    git(&["worktree", "add", "-q", ".claude/worktrees/one"]);
    let dir = cx.dir().join(".claude/worktrees/one");
    let script = "echo mine >x; mkdir sub; cd sub; echo mine >y; echo evil 2>/dev/null >../../x; echo end";
    cx.sh(&[], script).cwd(&dir).run().exits(0).prints("end\n");
    assert!(
        dir.join("x").exists()
            && dir.join("sub/y").exists()
            && !cx.dir().join(".claude/worktrees/x").exists()
    );
    cx.sh(&[], "echo z >z; echo end").cwd(&dir.join("sub")).run().exits(0).prints("end\n");
    assert!(dir.join("sub/z").exists());
}

/// The protected name starts with the directory's own name: existing files are read-only, and new ones are moved aside.
fn above(cx: &Cx) {
    let dir = cx.dir().join(".cargo");
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("config.toml"), "[build]\n").expect("a file");
    for path in [&dir, &dir.join("config.toml")] {
        cx.bench().give(path, cx.is_root());
    }
    let script = "(echo evil >>config.toml) 2>/dev/null; rm -f config.toml 2>/dev/null; echo evil >config; echo mine >x; echo end";
    let done = cx.sh(&[], script).cwd(&dir).run();
    assert_eq!(fs::read_to_string(dir.join("config.toml")).expect("config.toml"), "[build]\n", "{done:?}");
    assert!(!dir.join("config").exists(), "{done:?}");
    done.exits(0).prints("end\n").says("config` was moved to");
    assert_eq!(fs::read_to_string(dir.join("x")).expect("the directory itself is the stage's"), "mine\n");
}

//! B13: a protected name that is a symbolic link, valid or dangling. The stage writes through it, and replaces it.

use std::fs;
use std::os::unix::fs::symlink;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b13_names_that_are_links", attack);
    list.users("escape::b13_links_lead_nowhere", nowhere);
}

fn attack(cx: &Cx) {
    let dir = cx.dir();
    fs::create_dir(dir.join("editor")).expect("a directory");
    fs::write(dir.join("editor/tasks.json"), "{}").expect("a file");
    for path in [dir.join("editor"), dir.join("editor/tasks.json")] {
        cx.bench().give(&path, cx.is_root());
    }
    symlink("editor", dir.join(".vscode")).expect("a link");
    symlink("later/env", dir.join(".envrc")).expect("a link");
    let script = "
        (echo evil >.vscode/tasks.json) 2>/dev/null && echo written-through
        (echo evil >>editor/tasks.json) 2>/dev/null && echo written-behind
        mv editor editor2 2>/dev/null && echo moved-target
        mkdir later && echo evil >.envrc && echo made
        rm .vscode && mkdir .vscode && echo evil >.vscode/tasks.json && echo replaced";
    let done = cx.sh(&[], script).run();
    done.exits(0).prints("made\nreplaced\n").says("later/env").says(".vscode");
    assert_eq!(fs::read_to_string(dir.join("editor/tasks.json")).expect("a file"), "{}");
    assert!(fs::symlink_metadata(dir.join(".vscode")).is_err(), "what replaced the link is in its place");
    assert!(!dir.join(".envrc").exists() && !dir.join("later/env").exists(), "{done:?}");
    assert!(cx.aside(".vscode/tasks.json").exists());
    let notes: Vec<String> = done.record().events("note").iter().map(ToString::to_string).collect();
    assert_eq!(notes.iter().filter(|note| note.contains("quarantined")).count(), 2, "{notes:?}");
}

/// Links out of the tree, to paths that the view does not have.
fn nowhere(cx: &Cx) {
    fs::write(cx.home().join("secret"), "hunter2").expect("secret");
    std::os::unix::fs::symlink(cx.home(), cx.dir().join("up")).expect("link");
    std::os::unix::fs::symlink("../secret", cx.dir().join("secret")).expect("link");
    cx.sh(&[], "cat up/secret secret ../secret 2>/dev/null; echo end").run().prints("end\n");
}

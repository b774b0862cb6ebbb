//! K5, K50, B11, B15, B16: files of the working directory that would run on the host later, written directly or around the
//! mount.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b15_git_hooks_and_config", attack);
    list.matrix("escape::b12_names_that_appear", appear);
}

fn attack(cx: &Cx) {
    let git = cx.dir().join(".git");
    fs::create_dir_all(git.join("hooks")).expect(".git/hooks");
    fs::create_dir_all(git.join("objects")).expect(".git/objects");
    fs::write(git.join("config"), "[core]\n").expect(".git/config");
    for path in [&git, &git.join("hooks"), &git.join("objects"), &git.join("config")] {
        cx.bench().give(path, cx.is_root());
    }
    let script = "
        (echo evil >>.git/config) 2>/dev/null && echo wrote-config
        (echo evil >.git/hooks/pre-commit) 2>/dev/null && echo wrote-hook
        mv .git/config .git/config2 2>/dev/null && echo moved-config
        mv .git/hooks .git/hooks2 2>/dev/null && echo moved-hooks
        rm -rf .git/hooks .git/config 2>/dev/null && echo removed
        mv .git .git2 2>/dev/null && echo moved-git
        ln .git/config alias 2>/dev/null && (echo evil >>alias) 2>/dev/null && echo linked
        echo object >.git/objects/x && echo object-written";
    let done = cx.sh(&[], script).run();
    assert_eq!(done.stdout(), "object-written\n", "{done:?}");
    assert_eq!(fs::read_to_string(git.join("config")).expect("config"), "[core]\n");
    assert_eq!(fs::read_dir(git.join("hooks")).expect("hooks").count(), 0);
}

/// Missing at the start, made by the stage: moved aside at the end, and said. No stub is left where nothing was made.
fn appear(cx: &Cx) {
    let before: Vec<_> = names(cx);
    cx.sh(&[], "true").run().exits(0).silent();
    assert_eq!(names(cx), before, "a run that does nothing leaves nothing");
    let done = cx
        .sh(
            &[],
            "mkdir -p .git/hooks .vscode; echo evil >.git/hooks/pre-commit; echo '{}' >.vscode/tasks.json; echo end",
        )
        .run();
    assert!(
        !cx.dir().join(".git/hooks/pre-commit").exists(),
        "a hook stands in the working directory: {done:?}"
    );
    assert!(
        !cx.dir().join(".vscode/tasks.json").exists(),
        "an editor task stands in the working directory: {done:?}"
    );
    done.says("exeat-quarantine");
    let log = done.record();
    let notes: Vec<String> = log.events("note").iter().map(|note| note.to_string()).collect();
    assert!(notes.iter().any(|note| note.contains("quarantined")), "{notes:?}");
    assert!(
        names(cx).iter().any(|name| name.to_string_lossy().ends_with(".exeat-quarantine")),
        "{:?}",
        names(cx)
    );
}

fn names(cx: &Cx) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        fs::read_dir(cx.dir()).expect("work").flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    names
}

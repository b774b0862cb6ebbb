//! B12: `--allow-write` lets one protected name through, and nothing else.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b12_a_name_that_is_let_through", through);
    list.users("escape::b12_something_in_a_protected_directory_is_let_through", inside);
    list.users("escape::b12_a_ceiling_on_what_is_let_through", bounded);
}

fn make(cx: &Cx, names: &[&str]) {
    for name in names {
        let path = cx.dir().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        fs::write(&path, "mine\n").expect("a file");
        path.ancestors().take_while(|it| *it != cx.dir()).for_each(|it| cx.bench().give(it, cx.is_root()));
    }
}

fn read(cx: &Cx, name: &str) -> Option<String> {
    fs::read_to_string(cx.dir().join(name)).ok()
}

/// A missing name stays, with the stage's content. An existing one is changed.
fn through(cx: &Cx) {
    let all = [".vscode/tasks.json", ".idea/x.xml", "mise.local.toml", "mise.other.toml", ".envrc"];
    let write = all.map(|name| format!("mkdir -p $(dirname {name}); echo stage >{name}")).join("; ");
    let write = format!("({write}) 2>/dev/null; echo end");
    let words =
        ["run", "--allow-write", ".vscode/", "--allow-write", "mise.local.toml", "--", "sh", "-c", &write];
    for is_there in [false, true] {
        if is_there {
            make(cx, &all);
        }
        let done = cx.exeat(words).run();
        done.exits(0).prints("end\n").says("`.vscode` is writable").says("`mise.local.toml` is writable");
        for name in all {
            let is_open = [".vscode/tasks.json", "mise.local.toml"].contains(&name);
            let expected = match (is_open, is_there) {
                (true, _) => Some("stage\n"),
                (false, true) => Some("mine\n"),
                (false, false) => None,
            };
            assert_eq!(read(cx, name).as_deref(), expected, "{name}: {done:?}");
        }
        let log = done.record();
        let fs = &log.events("run_start")[0]["enforcement"]["fs"];
        assert!(fs.to_string().contains("`.vscode` is writable"), "{fs}");
        let moved: Vec<String> = log.events("note").iter().map(|note| note.to_string()).collect();
        assert!(!moved.iter().any(|note| note.contains(".vscode")), "{moved:?}");
    }
    // `--require full` prevents the run, and a name that no table entry covers is refused.
    let strict = ["run", "--require", "full", "--allow-write", ".vscode", "--", "touch", "ran"];
    cx.exeat(strict).run().exits(125).says("`.vscode` is writable");
    for (name, hint) in [
        (".vscod", "probably meant: .vscode"),
        (".cargo", "probably meant: .cargo/config"),
        ("/.vscode", "relative"),
        ("./.vscode", "relative"),
        ("src/../.vscode", "relative"),
        ("src", "docs/files.md"),
    ] {
        cx.exeat(["run", "--allow-write", name, "--", "touch", "ran"]).run().exits(2).says(hint);
    }
    assert!(!cx.dir().join("ran").exists());
    // Git's names too, one by one.
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let write =
        "mkdir -p .git/hooks; echo stage >.git/hooks/own; (echo stage >>.git/config) 2>/dev/null; echo end";
    cx.exeat(["run", "--allow-write", ".git/hooks", "--", "sh", "-c", write]).run().exits(0).prints("end\n");
    assert_eq!(read(cx, ".git/hooks/own").as_deref(), Some("stage\n"));
    assert!(!read(cx, ".git/config").expect("git's configuration").contains("stage"));
}

/// The other files of the directory stay; in an allowed directory repositories are protected as elsewhere.
fn inside(cx: &Cx) {
    let script = "echo stage >.claude/commands/new; echo stage >.claude/commands/old
        (echo stage >.claude/settings.json; echo stage >.claude/other; rm .claude/settings.json
        mv .claude/commands .claude/moved; mv .claude .away; mkdir .claude; ln -s x .claude/agents
        echo stage >.claude/commands/.git/hooks/pre-commit) 2>/dev/null; echo end";
    let words = ["run", "--allow-write", ".claude/commands", "--", "sh", "-c", script];
    // A missing directory, and one that cannot contain the name, have nothing to let through.
    cx.exeat(words).run().exits(2).says("`.claude/commands` cannot be let through").says("make it first");
    make(cx, &[".claude/settings.json"]);
    cx.exeat(words).run().exits(2).says("make it first");
    std::os::unix::fs::symlink("../src", cx.dir().join(".claude/commands")).expect("a link");
    fs::create_dir(cx.dir().join("src")).expect("a directory");
    cx.exeat(words).run().exits(2).says("without links");
    fs::remove_file(cx.dir().join(".claude/commands")).expect("the link");

    make(cx, &[".claude/commands/old"]);
    cx.outside(["git", "init", "-q", ".claude/commands"]).run().exits(0);
    make(cx, &[".claude/commands/.git/hooks/pre-commit"]);
    let done = cx.exeat(words).run();
    done.exits(0).prints("end\n").says(".claude/commands` is writable");
    for (name, expected) in [
        (".claude/commands/new", Some("stage\n")),
        (".claude/commands/old", Some("stage\n")),
        (".claude/settings.json", Some("mine\n")),
        (".claude/other", None),
        (".claude/commands/.git/hooks/pre-commit", Some("mine\n")),
    ] {
        assert_eq!(read(cx, name).as_deref(), expected, "{name}: {done:?}");
    }
    assert!(!cx.dir().join(".claude/agents").is_symlink() && !cx.dir().join(".away").exists(), "{done:?}");
    // A single file can be written in place.
    let script = "(echo x >.claude/commands/old) 2>/dev/null; echo stage >.claude/settings.json; (rm .claude/settings.json) 2>/dev/null; echo end";
    let words = ["run", "--allow-write", ".claude/settings.json", "--", "sh", "-c", script];
    let done = cx.exeat(words).run();
    done.exits(0).prints("end\n").says(".claude/settings.json` is writable");
    assert_eq!(read(cx, ".claude/settings.json").as_deref(), Some("stage\n"), "{done:?}");
    assert_eq!(read(cx, ".claude/commands/old").as_deref(), Some("stage\n"), "{done:?}");
    // Without the flag all of it is protected.
    let done = cx.sh(&[], "(echo evil >.claude/commands/new) 2>/dev/null; echo end").run();
    assert_eq!(read(cx, ".claude/commands/new").as_deref(), Some("stage\n"), "{done:?}");
}

/// A ceiling lets through only what it lists. An unnamed project file lets nothing through if no ceiling mentions it.
fn bounded(cx: &Cx) {
    make(cx, &[".vscode/tasks.json", ".envrc", ".claude/commands/old", ".claude/settings.json"]);
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let all =
        [".vscode/tasks.json", ".envrc", ".claude/commands/old", ".claude/settings.json", ".git/config"];
    let write = all.map(|name| format!("(echo stage >>{name}) 2>/dev/null && echo {name}")).join("\n");
    let write = format!("{write}\ntrue");
    let run = |words: &[&str]| cx.exeat(["run"].iter().chain(words).chain(&["--", "sh", "-c", &write])).run();
    let flags = ["--allow-write", ".vscode", "--allow-write", ".envrc", "--allow-write", ".claude/commands"];
    let with = |ceiling: &'static str| [&flags[..], &["--ceiling", ceiling]].concat();

    let ceiling = |name: &str, text: &str| drop(cx.write(name, &format!("schema = 1\n[fs]\n{text}\n")));
    ceiling("none.toml", "allow_write = []");
    ceiling("some.toml", "allow_write = [\".vscode\", \".claude\"]");
    ceiling("other.toml", "view = \"project\"");
    ceiling("git.toml", "allow_write = [\".git\"]");

    let done = run(&with("none.toml"));
    done.exits(0).prints("").says("`.vscode` stays protected: the ceiling `none.toml`");
    let done = run(&with("some.toml"));
    done.prints(".vscode/tasks.json\n.claude/commands/old\n").says("`.envrc` stays protected");
    run(&with("other.toml")).prints(".vscode/tasks.json\n.envrc\n.claude/commands/old\n");
    run(&["--allow-write", ".git/config", "--ceiling", "some.toml"])
        .prints("")
        .says("`.git/config` stays protected");
    let done = run(&["--allow-write=.git", "--ceiling", "some.toml"]);
    done.prints("").says("`.git` stays protected");
    for name in ["other.toml", "git.toml"] {
        run(&["--allow-write=.git", "--ceiling", name]).prints(".git/config\n");
    }

    cx.write(".exeat.toml", "schema = 1\n[fs]\nallow_write = [\".vscode\", \".envrc\"]\n");
    run(&["--ceiling", "other.toml"]).prints("").says("no ceiling bounds it: fs.allow_write");
    run(&["--ceiling", "some.toml"]).prints(".vscode/tasks.json\n").says("`.envrc` stays protected");
    run(&["--policy", ".exeat.toml"]).prints(".vscode/tasks.json\n.envrc\n");
}

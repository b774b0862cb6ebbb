//! B15: hooks of the user's configuration, if variables name its file (git-config(1), ENVIRONMENT).

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b15_configuration_that_variables_name", attack);
}

/// The stage makes the hook, which the caller's git, in exeat's environment, would run.
fn attack(cx: &Cx) {
    let script = "set -e; mkdir hooks; printf '#!/bin/sh\\necho ran >>$HOOK_RAN\\n' >hooks/pre-commit; chmod +x hooks/pre-commit";
    let ran = cx.home().join("ran");
    let ran_text = ran.to_str().expect("ASCII");
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let xdg = cx.home().join("xdg");
    let place = |below: &str| {
        let path = xdg.join(below);
        fs::create_dir_all(path.parent().expect("below a directory")).expect("directories");
        fs::write(&path, "[core]\nhooksPath = hooks\n").expect("a configuration");
        path.to_str().expect("ASCII").to_owned()
    };
    place("git/config");
    let xdg = xdg.to_str().expect("ASCII");
    for (name, value) in [
        ("XDG_CONFIG_HOME", xdg.to_owned()),
        ("GIT_CONFIG_GLOBAL", place("global")),
        ("GIT_CONFIG_SYSTEM", place("system")),
    ] {
        let commit = || {
            let words = [
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@example.com",
                "commit",
                "-q",
                "--allow-empty",
                "-mx",
            ];
            let run = cx.outside(["git"].iter().chain(&words)).env(name, &value).env("HOOK_RAN", ran_text);
            run.run().exits(0);
            fs::read(&ran).is_ok()
        };
        let done = cx.sh(&[], script).env(name, &value).run();
        done.exits(0).says("/hooks`: the stage may have made it");
        assert!(!commit(), "{name}: the hook of a stage ran");
        fs::remove_dir_all(cx.aside("hooks")).expect("moved aside");

        // With the protection off, it runs.
        cx.exeat(["run", "--allow-write=.git", "--", "sh", "-c", script]).env(name, &value).run().exits(0);
        assert!(commit(), "{name}: git takes no hook from there, and the test shows nothing");
        fs::remove_file(&ran).expect("ran");
        fs::remove_dir_all(cx.dir().join("hooks")).expect("hooks");
    }
}

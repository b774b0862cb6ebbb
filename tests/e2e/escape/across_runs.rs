//! L08 and L10: what one run leaves for the next, and how parallel runs in one directory affect each other.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use e2e::case::{Cases, Cx};
use nix::sys::signal::Signal;
use serde_json::Value;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::l08_a_killed_run_is_settled_by_the_next_one", killed);
    list.users("escape::l08_a_killed_run_has_noted_the_names_that_the_host_removed", removed_name);
    list.users("escape::l19_directories_of_protected_names_stay_closed_to_other_users", opened_directory);
    list.users("escape::l11_a_cache_carries_no_settings", cached_settings);
    list.users("escape::l11_a_read_only_stage_leaves_no_cache", read_only);
    list.users("escape::l11_a_cache_of_one_run_ends_with_it", cache_of_run);
    list.users("escape::l11_a_private_home_lasts_and_carries_nothing_to_the_host", private_home);
    list.users("escape::l10_two_runs_end_with_their_own_codes", two_runs);
    list.users("escape::l10_runs_make_the_same_names_at_the_same_time", same_names);
    list.users("escape::l10_one_of_several_runs_puts_the_last_file_back", one_puts_back);
    list.users("escape::l10_six_runs_end_with_their_own_codes", six_runs);
    list.users("escape::l10_a_configuration_that_is_made_anew_is_put_back", made_anew);
    list.users("escape::l10_runs_in_two_worktrees_keep_the_configuration", two_worktrees);
}

/// A directory that the stage opened would let another user of the machine replace `.git/config` after the run.
fn opened_directory(cx: &Cx) {
    // All that git obeys there is read-only, and nothing is missing.
    let setup = "git init -q . && mkdir -p tools/hooks/all && git config core.hooksPath tools/hooks/all";
    cx.outside(["sh", "-c", setup]).run().exits(0);
    let mode =
        |name: &str| fs::metadata(cx.dir().join(name)).expect("a directory").permissions().mode() & 0o7777;
    let names = ["", ".git", ".git/info", "tools", "tools/hooks"];
    let before = names.map(mode);
    let attack = "chmod 777 . .git .git/info tools tools/hooks; mkdir -m 777 .cargo own; stat -c %a . .git .git/info; echo ready; read -r go; true";
    for is_killed in [false, true] {
        let mut live = cx.sh(&[], attack).stdin_open().start();
        live.until_prints("ready");
        assert_eq!(names.map(mode), [0o777; 5], "the stage has opened nothing, and the test shows nothing");
        if is_killed {
            live.signal(Signal::SIGKILL);
            live.wait();
            cx.exeat(["run", "--", "true"])
                .run()
                .exits(0)
                .says("let other users write since the start of the run");
        } else {
            live.wait().exits(0).says(
                "and 5 more directories let other users write since the start of the run, and no longer",
            );
        }
        assert_eq!(names.map(mode), before);
        assert_eq!((mode(".cargo") & 0o22, mode("own") & 0o777), (before[0] & 0o22, 0o777));
        for name in [".cargo", "own"] {
            fs::remove_dir(cx.dir().join(name)).expect("an empty directory");
        }
    }

    // The second run starts when the first stage has opened them, and its stage opens them again at the end.
    let mut first = cx.sh(&[], attack).stdin_open().start();
    first.until_prints("ready");
    let again = "echo ready; read -r go; chmod 777 . .git .git/info tools tools/hooks .cargo";
    let mut second = cx.sh(&[], again).stdin_open().start();
    second.until_prints("ready");
    first.wait().exits(0);
    second.wait().exits(0);
    assert_eq!(names.map(mode), before);
    assert_eq!(mode(".cargo") & 0o22, before[0] & 0o22);
}

/// SIGKILL, as when memory runs out: nothing is moved then, so the next start moves it before it decides anything.
fn killed(cx: &Cx) {
    let result = cx.home().join("result.json");
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let plant = "mkdir .vscode; echo '{}' >.vscode/tasks.json; echo evil >.envrc; echo /x >.git/info/attributes; echo evil >mise.ci.toml
        git init -q sub; git -C sub config core.fsmonitor evil
        ln -s /etc/passwd .git/COMMIT_EDITMSG; echo ready; exec sleep 100";
    let names = [".envrc", "mise.ci.toml", "sub/.git/config"];
    let mut live = cx.sh(&[], plant).start();
    live.until_prints("ready");
    let is_there = |name: &&str| fs::symlink_metadata(cx.dir().join(name)).is_ok();
    // Files that the host obeys at once are also moved at once, when their maker is unknown.
    let at_once = [".vscode/tasks.json", ".git/info/attributes", ".git/COMMIT_EDITMSG"];
    e2e::wait_for(Duration::from_secs(2), "what is obeyed at once to be moved", || {
        (!at_once.iter().any(is_there)).then_some(())
    });
    // They are renamed first, and moved to the quarantine afterwards.
    e2e::wait_for(Duration::from_secs(5), "what was moved to be in the quarantine", || {
        at_once.iter().all(|name| cx.find_aside(cx.dir(), name).is_some()).then_some(())
    });
    std::thread::sleep(Duration::from_millis(50));
    live.signal(Signal::SIGKILL);
    live.wait();
    assert!(names.iter().all(is_there), "the stage has made nothing, and the test shows nothing");
    // A plan changes nothing.
    cx.exeat(["run", "--dry-run", "--", "true"]).run().exits(0);
    assert!(names.iter().all(is_there));

    e2e::wait_for(Duration::from_secs(5), "the end of the sandbox", || {
        let done =
            cx.exeat(["run", "--result", result.to_str().expect("ASCII"), "--", "sh", "-c", "ls -A"]).run();
        done.exits(0);
        let said = done.stderr();
        let settled = said.contains("was killed before its end: what its stage had left was moved aside now");
        if settled {
            assert!(!said.contains("could not be held"), "{done:?}");
            let left: Vec<_> = names.iter().chain(&[".vscode"]).filter(|name| is_there(name)).collect();
            assert!(left.is_empty(), "{left:?} in place: {done:?}");
            assert!(!done.stdout().contains(".vscode"), "the next stage has met it: {done:?}");
            let log = done.record();
            let notes = log.events("note");
            let moved = notes.iter().filter(|note| note["what"] == "quarantined").count();
            assert_eq!(moved, 6, "{notes:?}");
        }
        settled.then_some(())
    });
    let told: serde_json::Value = serde_json::from_slice(&fs::read(result).expect("a result")).expect("JSON");
    assert_eq!(told["quarantined"].as_array().map(Vec::len), Some(6), "{told}");
    for name in [".vscode/tasks.json", ".envrc", ".git/info/attributes", "mise.ci.toml"] {
        assert!(cx.aside(name).exists());
    }
    // It happens once.
    let done = cx.sh(&[], "true").run();
    assert!(!done.stderr().contains("killed before its end"), "{done:?}");
}

/// The host removes a protected file, the stage makes its own, and exeat is killed.
fn removed_name(cx: &Cx) {
    let state = cx.home().join("state");
    let exeat = |words: &[&str]| {
        cx.exeat_plain([&["run", "--"], words].concat()).env("XDG_STATE_HOME", state.to_str().expect("ASCII"))
    };
    for name in [".npmrc", ".envrc"] {
        cx.write(name, "honest\n");
        let script = "echo ready; until { echo evil >$1; } 2>/dev/null && test -e $1; do sleep 0.01; done; echo wrote; exec sleep 100";
        let mut live = exeat(&["sh", "-c", script, "sh", name]).start();
        live.until_prints("ready");
        fs::remove_file(cx.dir().join(name)).expect("the host's file");
        live.until_prints("wrote");
        e2e::wait_for(Duration::from_secs(5), "the journal to have the removed name", || {
            let mut journals = fs::read_dir(state.join("exeat/live")).ok()?.flatten();
            let is_noted = |text: String| text.contains("Free");
            journals.any(|it| fs::read_to_string(it.path()).is_ok_and(is_noted)).then_some(())
        });
        live.signal(Signal::SIGKILL);
        live.wait();
        assert_eq!(fs::read_to_string(cx.dir().join(name)).expect("the stage's file"), "evil\n");
        // A start before the sandbox has fully ended takes the run for a live one.
        e2e::wait_for(Duration::from_secs(20), "the names of a killed run", || {
            let done = exeat(&["true"]).run();
            done.exits(0).stderr().contains(&format!("{name}` was moved")).then_some(())
        });
        assert!(!cx.dir().join(name).exists(), "{name}");
    }
}

/// With `--ro .` the cache ends with the run, unless a lasting one is requested, so that its contents do not reach a
/// later run.
fn read_only(cx: &Cx) {
    let leave = "mkdir -p $CARGO_HOME; echo code >$CARGO_HOME/data; cat $CARGO_HOME/data";
    let look = || cx.sh(&[], "cat $CARGO_HOME/data 2>/dev/null; echo end").run();
    let work = cx.dir().to_str().expect("ASCII");
    for ro in [".", work, "../work"] {
        cx.exeat(["run", "--ro", ro, "--", "sh", "-c", leave]).run().exits(0).prints("code\n");
        look().exits(0).prints("end\n");
    }
    // Shown at another path besides the writable one, the tree does not make a read-only stage.
    for words in [&["--ro", ".", "--set", "fs.cache=private"][..], &["--ro", ".:/w"]] {
        let words = [&["run"], words, &["--", "sh", "-c", leave]].concat();
        cx.exeat(words).run().exits(0).prints("code\n");
        look().exits(0).prints("code\nend\n");
        cx.exeat_plain(["state", "prune", "--caches", "--all"]).run().exits(0);
    }
}

/// No part of it is left after the run, and a later run deletes what a killed run has left.
fn cache_of_run(cx: &Cx) {
    let caches = || {
        let done = cx.exeat_plain(["state", "list", "--format", "json"]).run();
        let listed: Value = serde_json::from_str(&done.exits(0).stdout()).expect("JSON");
        listed["caches"].as_array().expect("a list").clone()
    };
    let start = |words: &[&str]| {
        let stage = "mkdir -p $CARGO_HOME/a; echo code >$CARGO_HOME/a/data; chmod 0 $CARGO_HOME/a; echo ready; read -r go || exit 0";
        let words = [&["run"], words, &["--", "sh", "-c", stage]].concat();
        let mut run = cx.exeat(words).stdin_open().start();
        run.until_prints("ready");
        run
    };
    let live = start(&["--set", "fs.cache=run"]);
    let path = |cache: &Value| PathBuf::from(cache["path"].as_str().expect("a path"));
    let of_run = path(&caches()[0]);
    assert!(of_run.join("cargo").is_dir(), "{of_run:?}");
    live.wait().exits(0);
    assert!(caches().is_empty(), "{:?}", caches());

    let live = start(&["--set", "fs.cache=run"]);
    let left = path(&caches()[0]);
    assert_ne!(left, of_run, "each run has its own");
    live.signal(Signal::SIGKILL);
    live.wait();
    let old = SystemTime::now() - Duration::from_secs(3600);
    let note = left.with_extension("dir");
    e2e::wait_for(Duration::from_secs(5), "a later run to delete what is left", || {
        File::options().write(true).open(&note).and_then(|note| note.set_modified(old)).expect("its note");
        cx.exeat(["run", "--set", "fs.cache=run", "--", "true"]).run().exits(0);
        (!left.exists()).then_some(())
    });
    assert!(caches().is_empty(), "{:?}", caches());
    // A lasting one stays.
    start(&["--set", "fs.cache=private"]).wait().exits(0);
    cx.exeat(["run", "--set", "fs.cache=run", "--", "true"]).run().exits(0);
    assert_eq!(caches().len(), 1);
}

/// Programs that write to HOME start, and the next stage of the directory finds their files. Nothing of the caller's
/// obeys them: neither the host nor a client that is asked for its hosts.
fn private_home(cx: &Cx) {
    let home = ["--set", "fs.home=private"];
    let stage = |words: &[&str], script: &str| {
        cx.exeat([&["run"], words, &["--", "sh", "-c", script]].concat()).run()
    };
    // aider, codex and npm start like this: with a directory and settings.
    let write = "mkdir $HOME/.aider && echo registry=https://evil.test/ >$HOME/.npmrc && echo $HOME && stat -c %a $HOME \
                 && awk -F: '/^nobody/ {print $6}' /etc/passwd";
    assert_ne!(stage(&[], write).code, Some(0), "without it HOME is read-only or absent");
    stage(&home, write).exits(0).prints("/run/exeat/cache/home\n700\n/run/exeat/cache/home\n");
    stage(&home, "ls -A $HOME").exits(0).prints(".aider\n.npmrc\n");
    assert!(!cx.home().join(".npmrc").exists() && !cx.home().join(".aider").exists());
    let npm = cx.home().join("tools/npm");
    fs::create_dir_all(npm.parent().expect("a parent")).expect("a directory");
    fs::write(&npm, "#!/bin/sh\ncat $HOME/.npmrc\nexit 3\n").expect("a stand-in");
    fs::set_permissions(&npm, fs::Permissions::from_mode(0o755)).expect("its mode");
    let path = format!("{}:/usr/bin:/bin", cx.home().join("tools").display());
    let asked =
        cx.exeat(["run", "--set", "fs.home=private", "-p", "npm", "--", "true"]).env("PATH", &path).run();
    asked.exits(125).says("without asking for any");
    assert!(!asked.stderr().contains("evil.test"), "{asked:?}");

    // A home that ends with the run; a link instead of it; no cache.
    stage(&["--set", "fs.home=private", "--set", "fs.cache=run"], "ls -A $HOME; touch $HOME/x")
        .exits(0)
        .prints("");
    stage(&home, "rm -r $HOME; ln -s /etc $HOME").exits(0);
    // The link is removed, and the home made anew.
    stage(&home, "touch $HOME/x").exits(0);
    assert!(!std::path::Path::new("/etc/x").exists());
    stage(&["--set", "fs.home=private", "--set", "fs.cache=none"], "true")
        .exits(2)
        .says("a private HOME lies in the cache");

    // It is listed and deleted like the cache.
    let list = || cx.exeat_plain(["state", "list"]).run().exits(0).stdout();
    assert!(list().contains("cache with a home of "), "{}", list());
    cx.exeat_plain(["state", "prune", "--caches", "--all"]).run().exits(0).shows("(cache with a home of ");
    stage(&home, "ls -A $HOME").exits(0).prints("");
}

/// A stage that may change nothing leaves settings in the cache for the next stage's programs.
fn cached_settings(cx: &Cx) {
    let names = "$CARGO_HOME/config.toml $CARGO_HOME/bin/x $GRADLE_USER_HOME/init.d/x $GOPATH/bin/x";
    let script = format!(
        "for f in {names}; do mkdir -p $(dirname $f); echo evil >$f; done; echo data >$CARGO_HOME/data; chmod 0 $GOPATH/bin $GRADLE_USER_HOME"
    );
    cx.exeat(["run", "--ro", ".", "--set", "fs.cache=private", "--", "sh", "-c", &script]).run().exits(0);
    let done = cx.sh(&[], &format!("cat {names} 2>/dev/null; cat $CARGO_HOME/data; echo end")).run();
    done.exits(0).prints("data\nend\n");
}

/// The second run starts when the stage of the first has made protected names, and continues when the first has moved
/// them.
fn two_runs(cx: &Cx) {
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    let make = "mkdir .vscode; echo x >.vscode/a; echo evil >.envrc; echo x >.RData; echo x >.git/info/attributes; echo x >mise.ci.toml";
    let mut first = cx.sh(&[], &format!("{make}; echo ready; read -r go; exit 3")).stdin_open().start();
    first.until_prints("ready");
    let script = "echo ready; read -r go; echo evil >.envrc; echo it-went-on; exit 4";
    let mut second = cx.sh(&[], script).stdin_open().start();
    second.until_prints("ready");
    first.wait().exits(3).says(".envrc` was moved to").says(".vscode` was moved to");
    assert!(!cx.dir().join(".envrc").exists() && !cx.dir().join(".vscode").exists());
    // It may not use the name either, which was never the caller's.
    second.wait().exits(4).prints("ready\nit-went-on\n").says(".envrc` was moved to");
    assert!(!cx.dir().join(".envrc").exists());

    // A neighbor that starts and ends meanwhile takes nothing away, and reports nothing.
    let script = "mkdir .vscode; echo x >.vscode/a; echo x >.npmrc; echo x >mise.ci.toml; echo ready; read -r go; \
                  cat .vscode/a; echo y >>.npmrc; exit 3";
    let mut first = cx.sh(&[], script).stdin_open().start();
    first.until_prints("ready");
    let is_hidden = || fs::read_dir(cx.dir().join(".vscode")).is_ok_and(|mut dir| dir.next().is_none());
    e2e::wait_for(Duration::from_secs(5), "the host to see nothing of it", || is_hidden().then_some(()));
    let neighbor = cx.sh(&[], "true").run().exits(0).stderr();
    assert!(!neighbor.contains("was moved to"), "{neighbor}");
    let done = first.wait();
    done.exits(3).prints("ready\nx\n");
    for name in [".vscode", ".npmrc", "mise.ci.toml"] {
        done.says(&format!("{name}` was moved to"));
        assert!(!cx.dir().join(name).exists(), "{name}");
    }
    let aside = cx.find_aside(cx.dir(), ".npmrc").expect("the file");
    assert_eq!(fs::read_to_string(aside).expect("the file"), "x\ny\n");
}

/// Each run takes the names out of the host's sight, and leaves the empty directories that the others put there. The
/// host obeys none of the stages' files, neither meanwhile nor afterwards.
fn same_names(cx: &Cx) {
    for round in 0..3 {
        let script = "for it in .vscode .claude .git/hooks; do mkdir -p $it; echo x >$it/$$; done; \
                      echo evil >.git/config; echo ready; read -r go; exit 7";
        let mut runs: Vec<_> = (0..3).map(|_| cx.sh(&[], script).stdin_open().start()).collect();
        for run in &mut runs {
            run.until_prints("ready");
        }
        let nothing =
            |name: &str| fs::read_dir(cx.dir().join(name)).map_or(true, |mut dir| dir.next().is_none());
        e2e::wait_for(Duration::from_secs(2), "the host to see nothing of it", || {
            [".vscode", ".claude", ".git"].iter().all(|name| nothing(name)).then_some(())
        });
        for run in runs {
            run.wait().exits(7);
        }
        for name in [".vscode", ".claude", ".git/hooks", ".git/config"] {
            assert!(!cx.dir().join(name).exists(), "{name}, round {round}");
        }
        let _ = fs::remove_dir_all(cx.dir().join(".git"));
    }
}

/// The host replaces a protected file, and its maker is unknown. One run puts the previous one back, and the others
/// accept it.
fn one_puts_back(cx: &Cx) {
    cx.write(".mcp.json", "old");
    fs::create_dir(cx.dir().join("other")).expect("a directory");
    let script = "echo ready; read -r go; echo evil >>.mcp.json; exit 7";
    let mut runs: Vec<_> = (0..3).map(|_| cx.sh(&[], script).stdin_open().start()).collect();
    for run in &mut runs {
        run.until_prints("ready");
    }
    let new = cx.dir().join("other/new");
    fs::write(&new, "doubtful").expect("a file");
    cx.bench().give(&new, cx.is_root());
    fs::rename(&new, cx.dir().join(".mcp.json")).expect("a rename");
    std::thread::sleep(Duration::from_millis(500));
    let mut told = [0; 2];
    for run in runs {
        let said = run.wait().exits(7).stderr();
        let lines = ["was replaced on the host", "was written again by another run"];
        let which = lines.iter().position(|line| said.contains(&format!(".mcp.json` {line}")));
        told[which.unwrap_or_else(|| panic!("{said}"))] += 1;
    }
    assert!(told[0] > 0, "one run has put it back: {told:?}");
    assert_eq!(fs::read_to_string(cx.dir().join(".mcp.json")).expect("a file"), "old");
    assert_eq!(fs::read_to_string(cx.aside(".mcp.json")).expect("a file"), "doubtful");
}

/// Each run makes its own names and meets those of the others, and they end in another order.
fn six_runs(cx: &Cx) {
    let names = [".envrc", ".RData", ".npmrc", ".mcp.json", "mise.toml", ".bashrc"];
    let mut runs: Vec<_> = names
        .iter()
        .map(|name| {
            let script =
                format!("echo x >{name}; mkdir -p .vscode; echo ready; read -r go; echo x >{name}; exit 7");
            let mut run = cx.sh(&[], &script).stdin_open().start();
            run.until_prints("ready");
            run
        })
        .collect();
    while !runs.is_empty() {
        let next = if runs.len() % 2 == 0 { 0 } else { runs.len() - 1 };
        runs.remove(next).wait().exits(7);
    }
    let left: Vec<_> = names.iter().filter(|name| cx.dir().join(name).exists()).collect();
    assert!(left.is_empty() && !cx.dir().join(".vscode").exists(), "{left:?}");
}

/// A repository with two linked worktrees, whose paths are returned.
fn worktrees(cx: &Cx) -> [PathBuf; 2] {
    let setup = "git init -q .; git config user.name a; git config user.email a@b; git remote add origin https://git.test/a
        git commit -q --allow-empty -m 1; git worktree add -q ../wa; git worktree add -q ../wb";
    cx.outside(["sh", "-ec", setup]).run().exits(0);
    ["wa", "wb"].map(|name| cx.dir().with_file_name(name))
}

/// An editor renames the configuration away and writes a new one, and so it looks to a run if another one moves the file
/// and puts it back. The new one may be a stage's, and is moved; the repository keeps its remotes.
fn made_anew(cx: &Cx) {
    let trees = worktrees(cx);
    let mut runs =
        trees.each_ref().map(|tree| cx.sh(&[], "echo ready; read -r go").cwd(tree).stdin_open().start());
    for run in &mut runs {
        run.until_prints("ready");
    }
    let config = cx.dir().join(".git/config");
    let edit = "mv .git/config .git/config~; printf '[core]\n\tfsmonitor = evil\n' >.git/config";
    cx.outside(["sh", "-ec", edit]).run().exits(0);
    let done = runs.map(e2e::run::Live::wait);
    let said = fs::read_to_string(&config).unwrap_or_default();
    assert!(said.contains("git.test/a") && !said.contains("evil"), "{said:?}: {done:?}");
    for done in &done {
        done.exits(137).says("it said when it was covered last");
    }
}

/// The host writes the configuration twice at once, as `git remote add` does, while stages commit.
fn two_worktrees(cx: &Cx) {
    let trees = worktrees(cx);
    let stage = "echo ready; for i in 1 2 3 4 5 6 7 8; do git commit -q --allow-empty -m x; sleep .05; done";
    for round in 0..10 {
        let mut runs = trees.each_ref().map(|tree| cx.sh(&[], stage).cwd(tree).start());
        for run in &mut runs {
            run.until_prints("ready");
        }
        cx.outside(["git", "remote", "add", &format!("r{round}"), "https://git.test/b"]).run();
        let done = runs.map(e2e::run::Live::wait);
        let said = fs::read_to_string(cx.dir().join(".git/config")).unwrap_or_default();
        assert!(said.contains("a@b") && said.contains("git.test/a"), "round {round}: {said:?}: {done:?}");
    }
}

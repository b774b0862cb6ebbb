//! L09: the files that decided about a run are read-only for its stage, so that the caller's text decides about the
//! next run. What the stage of a live or a killed run may have made decides about no other run.

use std::fs;
use std::time::Duration;

use e2e::case::{Cases, Cx};
use e2e::wait_for;
use nix::sys::signal::Signal;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::l09_no_stage_rewrites_what_decided_about_it", attack);
    list.users("escape::l09_no_stage_decides_about_a_run_beside_it", beside);
    list.users("escape::l09_no_stage_decides_by_a_directory_that_it_made_or_renamed", own_directory);
    list.users("escape::l09_no_stage_decides_about_a_run_by_another_mount", another_mount);
    list.users("escape::l09_no_stage_decides_about_a_run_by_a_link_on_the_way", link_on_the_way);
    list.users("escape::l09_no_stage_makes_the_ceiling_of_a_run_beside_it", ceiling_beside);
    list.users("escape::l09_no_killed_stage_decides_about_the_next_run", killed);
}

fn attack(cx: &Cx) {
    fs::create_dir_all(cx.dir().join("pol/in")).expect("directory");
    for dir in ["pol", "pol/in"] {
        cx.bench().give(&cx.dir().join(dir), cx.is_root());
    }
    let policy = format!("[network]\nallow = [\"{}\"]\n", cx.good());
    let effects = format!(r#"[{{"effect":"NetworkHosts","hosts":["{}"]}}]"#, cx.good());
    let files = [
        ("pol/in/stage.toml", policy.as_str()),
        ("ceiling.toml", policy.as_str()),
        ("effects.json", effects.as_str()),
        ("rules.txt", &cx.good()),
        ("pol/free.toml", ""),
    ];
    for (name, text) in files {
        cx.write(name, text);
    }
    let attempts = "for f in pol/in/stage.toml ceiling.toml effects.json rules.txt; do \
                    echo x 2>/dev/null >> $f && echo wrote $f; rm -f $f 2>/dev/null && echo removed $f; \
                    cp /etc/hostname new; mv -f new $f 2>/dev/null && echo replaced $f; done; \
                    mv pol/in pol/gone 2>/dev/null && echo moved pol/in; mv pol gone 2>/dev/null && echo moved pol; \
                    echo y >> pol/free.toml && echo free";
    let rules = "@rules.txt";
    let done = cx
        .exeat([
            "run",
            "--policy",
            "pol/in/stage.toml",
            "--ceiling",
            "ceiling.toml",
            "--effects",
            "effects.json",
            "--allow",
            rules,
            "--",
            "sh",
            "-c",
            attempts,
        ])
        .run();
    assert_eq!(done.stdout(), "free\n", "{done:?}");
    for (name, text) in files.iter().take(4) {
        assert_eq!(&fs::read_to_string(cx.dir().join(name)).expect(name), text, "{name}");
    }
}

/// The stage's project file, which shows a file outside of the tree.
const PLANT: &str =
    "printf 'schema = 1\\n[fs]\\nro = [\"%s\"]\\n' \"$1\" >.exeat.toml; cp .exeat.toml egress.lock";

/// Writes a secret outside of the tree and a ceiling that would permit the project file to show it. Returns the paths of both.
fn plant_for(cx: &Cx) -> [String; 2] {
    let secret = cx.home().join("data/secret");
    fs::create_dir(cx.home().join("data")).expect("a directory");
    fs::write(&secret, "of the user\n").expect("a secret");
    let home = cx.home().display().to_string();
    let ceiling = cx.home().join("ceiling.toml");
    fs::write(&ceiling, format!("schema = 1\n[fs]\nro = [\"{home}\"]\nrw = [\"{home}\"]\n"))
        .expect("a ceiling");
    for path in [&secret, &cx.home().join("data"), &ceiling] {
        cx.bench().give(path, cx.is_root());
    }
    [secret, ceiling].map(|path| path.display().to_string())
}

/// A second run starts while the first one's stage has just made its files.
fn beside(cx: &Cx) {
    let [secret, ceiling] = plant_for(cx);
    let look = |flags: &[&str]| {
        cx.exeat_plain([&["run", "--ceiling", &ceiling], flags, &["--", "cat", &secret]].concat()).run()
    };
    // The caller's own file, as a control.
    let own = format!("schema = 1\n[fs]\nro = [\"{}\"]\n", cx.home().join("data").display());
    cx.write(".exeat.toml", &own);
    look(&[]).exits(0).prints("of the user\n").says("is used, within the ceilings");
    fs::remove_file(cx.dir().join(".exeat.toml")).expect("the project's file");

    let dir = cx.home().join("data").display().to_string();
    let script = format!("{PLANT}; echo ready; sleep 100");
    let mut live = cx.exeat(["run", "--", "sh", "-c", &script, "sh", &dir]).start();
    live.until_prints("ready");
    look(&[]).exits(1).says(
        ".exeat.toml was found and not used: it, or a directory above it, came or changed while another run",
    );
    for flags in
        [&["--policy", ".exeat.toml"][..], &["--effects", ".exeat.toml"], &["--allow", "@.exeat.toml"]]
    {
        look(flags).exits(2);
    }
    look(&["--policy", ".exeat.toml"]).says("came or changed while another run was going on in `");
    live.signal(Signal::SIGTERM);
    live.wait();
}

/// The stage has made or renamed the directory. What the user had there before counts, also if the stage works beside it.
fn own_directory(cx: &Cx) {
    let [secret, ceiling] = plant_for(cx);
    for name in ["sub", "other", "own"] {
        fs::create_dir(cx.dir().join(name)).expect("a directory");
        cx.bench().give(&cx.dir().join(name), cx.is_root());
    }
    let dir = cx.home().join("data").display().to_string();
    let own = format!("schema = 1\n[fs]\nro = [\"{dir}\"]\n");
    for name in ["own/.exeat.toml", "own.toml", "theirs.toml"] {
        cx.write(name, &own);
    }
    let script = format!(
        "{PLANT}; mkdir new; cp .exeat.toml new; cp .exeat.toml sub; mv sub moved; mv other sub; cp .exeat.toml sub
        cp .exeat.toml new.toml; echo >>theirs.toml; touch own/x; echo ready; read -r go; true"
    );
    let mut live = cx.exeat(["run", "--", "sh", "-c", &script, "sh", &dir]).stdin_open().start();
    live.until_prints("ready");
    let look = |from: &str, words: &[&str]| {
        let words = [&["run", "--ceiling", &ceiling], words, &["--", "cat", &secret]].concat();
        cx.exeat_plain(words).cwd(&cx.dir().join(from)).run()
    };
    for from in ["new", "moved", "sub"] {
        assert!(cx.dir().join(from).join(".exeat.toml").exists(), "{from}: the test shows nothing");
        let done = look(from, &[]);
        done.exits(1)
            .says("came or changed while another run was going on")
            .says("name a copy outside of its tree");
        look(from, &["--policy", ".exeat.toml"]).exits(2);
    }
    for name in ["new.toml", "theirs.toml"] {
        look("", &["--policy", name]).exits(2).says("wait until that run has ended");
    }
    look("", &["--policy", "own.toml"]).exits(0).prints("of the user\n");
    look("own", &[]).exits(0).prints("of the user\n");
    // The host replaces a file that is read-only for the stage.
    cx.write("own/next", &own);
    fs::rename(cx.dir().join("own/next"), cx.dir().join("own/.exeat.toml")).expect("the user's file");
    look("own", &[]).exits(0).prints("of the user\n");
    live.wait().exits(0);
}

/// A link on the way to the file leads on in its own directory, so that it is followed.
fn link_on_the_way(cx: &Cx) {
    let [secret, ceiling] = plant_for(cx);
    let data = cx.home().join("data").display().to_string();
    let make = format!(
        "mkdir -p v/strict v/loose; echo 'schema = 1' >v/strict/policy.toml; ln -s v/strict current; ln -s strict v/inner
        printf 'schema = 1\n[fs]\nro = [\"%s\"]\n' {data} >v/loose/policy.toml"
    );
    cx.outside(["sh", "-ec", &make]).cwd(cx.dir()).run().exits(0);
    let look = |from: &str| {
        let policy = cx.dir().join(from).join("policy.toml").display().to_string();
        cx.exeat_plain(["run", "--ceiling", &ceiling, "--policy", &policy, "--", "cat", &secret])
            .cwd(cx.home())
            .run()
    };
    look("current").exits(1);
    look("v/loose").exits(0).prints("of the user\n");
    let mut live = cx
        .sh(&[], "ln -sfn v/loose current; ln -sfn loose v/inner; echo ready; read -r go; true")
        .stdin_open()
        .start();
    live.until_prints("ready");
    for from in ["current", "v/inner"] {
        look(from).exits(2).says("whose stage may have written it");
    }
    // Nothing on the way to it has changed but what a link was made in.
    look("v/strict").exits(1);
    live.wait().exits(0);
}

/// The second run reaches the directory, or one in it, by another mount.
fn another_mount(cx: &Cx) {
    let [secret, ceiling] = plant_for(cx);
    fs::create_dir(cx.dir().join("sub")).expect("a directory");
    cx.bench().give(&cx.dir().join("sub"), cx.is_root());
    let alias = cx.home().join("alias");
    fs::create_dir(&alias).expect("a mount point");
    let dir = cx.home().join("data").display().to_string();
    let script = format!("{PLANT}; cp .exeat.toml sub/; echo ready; read -r go; true");
    let mut live = cx.exeat(["run", "--", "sh", "-c", &script, "sh", &dir]).stdin_open().start();
    live.until_prints("ready");
    let exeat = cx.bench().bin.join("exeat").display().to_string();
    let [work, alias] = [cx.dir(), &alias].map(|path| path.display().to_string());
    for (source, from) in [("", ""), ("", "/sub"), ("/sub", "")] {
        let look = |words: &str| {
            let script =
                format!("cd {alias}{from} && {exeat} run --ceiling {ceiling} {words} -- cat {secret}");
            cx.outside(["sh", "-c", &script]).in_mounts(&format!("mount --bind {work}{source} {alias}")).run()
        };
        look("").exits(1).says(".exeat.toml was found and not used: it, or a directory above it, came");
        look("--policy .exeat.toml").exits(2).says(&format!("another run was going on in `{work}`"));
        look(&format!("--policy {alias}{from}/.exeat.toml")).exits(2);
    }
    live.wait().exits(0);
}

/// HOME is in the tree of the live run and has no ceiling of the user's. With one, the project's file counts.
fn ceiling_beside(cx: &Cx) {
    let [secret, ceiling] = plant_for(cx);
    let [home, project, work] = ["home", "project", "work"].map(|name| cx.dir().join(name));
    for dir in [&home, &project, &work] {
        fs::create_dir(dir).expect("a directory");
        cx.bench().give(dir, cx.is_root());
    }
    let data = cx.home().join("data").display().to_string();
    cx.write("project/.exeat.toml", &format!("schema = 1\n[fs]\nro = [\"{data}\"]\n"));
    let text = fs::read_to_string(&ceiling).expect("the ceiling");
    cx.write("ceiling", &text);
    let [home_dir, state] = [home.clone(), cx.home().join("state")].map(|dir| dir.display().to_string());
    let exeat = |words: &[&str]| {
        let run = cx.exeat_plain([&["run"], words].concat());
        run.env("HOME", &home_dir).env("XDG_STATE_HOME", &state)
    };
    let look = || exeat(&["--", "cat", &secret]).cwd(&project).run();
    look().exits(1).says(".exeat.toml was found and not used");

    let script =
        "mkdir -p ~/.config/exeat; cp ../ceiling ~/.config/exeat/policy.toml; echo ready; read -r go; true";
    let live = exeat(&["--rw", "..", "--env", &format!("HOME={home_dir}"), "--", "sh", "-c", script]);
    let mut live = live.cwd(&work).stdin_open().start();
    live.until_prints("ready");
    assert!(home.join(".config/exeat/policy.toml").exists(), "the test shows nothing");
    let refused = look();
    refused
        .exits(2)
        .says(".config/exeat/policy.toml`, or a directory above it, came ")
        .says("whose stage may have written it");
    refused.says("wait until that run has ended");
    live.wait().exits(0);
    look().exits(1).says(".exeat.toml was found and not used");

    // Made by the user.
    fs::create_dir_all(home.join(".config/exeat")).expect("a directory");
    cx.write("home/.config/exeat/policy.toml", &text);
    for dir in [".config", ".config/exeat"] {
        cx.bench().give(&home.join(dir), cx.is_root());
    }
    look().exits(0).prints("of the user\n");
}

/// exeat is killed before it has moved what the stage made. A file that cannot be read is in no start's way.
fn killed(cx: &Cx) {
    let [secret, ceiling] = plant_for(cx);
    let dir = cx.home().join("data").display().to_string();
    for close in ["true", "chmod 0 .exeat.toml", "rm .exeat.toml; mkdir -m 0 .exeat.toml"] {
        let script = format!("{PLANT}; {close}; echo ready; sleep 100");
        let mut live = cx.exeat(["run", "--", "sh", "-c", &script, "sh", &dir]).start();
        live.until_prints("ready");
        live.signal(Signal::SIGKILL);
        live.wait();
        // A start before the sandbox has fully ended takes the run for a live one.
        let mut told = String::new();
        wait_for(Duration::from_secs(20), "the names of a killed run", || {
            let done = cx.exeat_plain(["run", "--ceiling", &ceiling, "--", "cat", &secret]).run();
            told += &done.exits(1).stderr();
            told.contains(".exeat.toml` was moved").then_some(())
        });
        assert!(!cx.dir().join(".exeat.toml").exists(), "{close}: {told}");
    }
}

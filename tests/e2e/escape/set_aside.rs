//! L08: names that were set aside are listed, restored and deleted, and nothing else is touched.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::case::{Cases, Cx};
use nix::sys::signal::Signal;
use serde_json::Value;

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::l08_quarantined_names_are_listed_restored_and_pruned", commands);
    list.users("escape::l08_a_run_with_two_trees_is_restored_in_parts", parts);
    list.users("escape::l08_empty_quarantines_are_removed", empty_directories);
    list.users("escape::l08_a_repository_that_is_back_is_not_listed", given_back);
    list.users("escape::l08_a_killed_run_is_listed", killed);
    list.users("escape::l08_a_run_that_is_not_settled_is_left_alone", unsettled);
    list.users("escape::l08_in_another_file_system_a_name_is_renamed_where_it_stands", elsewhere);
    list.users("escape::l11_private_caches_are_listed_and_deleted", caches);
}

/// The stage leaves links, a name with terminal escapes, and directories nested deeper than the longest path.
fn commands(cx: &Cx) {
    let outside = cx.home().join("outside");
    fs::create_dir(&outside).expect("outside");
    fs::write(outside.join("mine"), "mine").expect("mine");
    let attack = "import os
open('.envrc', 'w').write('evil')
open('mise.\\x1b[31m.toml', 'w').write('evil')
os.mkdir('.vscode'); os.symlink('OUTSIDE', '.vscode/link'); open('.vscode/tasks.json', 'w').write('{}')
os.symlink('OUTSIDE', '.idea')
os.chdir('.vscode')
for n in range(3000): os.mkdir('d'); os.chdir('d')
os.symlink('OUTSIDE', 'link'); os.chmod('.', 0)";
    let attack = attack.replace("OUTSIDE", outside.to_str().expect("ASCII"));
    cx.exeat(["run", "--", "python3", "-c", attack.as_str()]).run().exits(0).says(".vscode` was moved");
    let state = |words: &[&str]| cx.exeat_plain([&["state"], words].concat()).run();
    let path = |name: &str| cx.dir().join(name).display().to_string();
    let listed =
        || -> Value { serde_json::from_str(&state(&["list", "--format", "json"]).stdout()).expect("JSON") };

    let told = state(&["list"]);
    told.exits(0)
        .shows(&format!("{}  file, 4 B\n", path(".envrc")))
        .shows(&format!("{}  link", path(".idea")));
    told.shows("mise.\\u{1b}[31m.toml").shows(&cx.aside(".vscode").display().to_string());
    assert!(!told.stdout().contains('\u{1b}'), "{told:?}");
    assert!(state(&["list", "--dir", outside.to_str().expect("ASCII")]).stdout().is_empty());
    assert_eq!(listed()["schema"], 1);
    let first = &listed()["set_aside"][0];
    let run = first["run"].as_str().expect("a run").to_owned();
    assert_eq!((&first["from"], &first["running"]), (&Value::from(path(".envrc")), &Value::from(false)));

    // An existing file is not overwritten.
    fs::write(cx.dir().join(".envrc"), "mine").expect(".envrc");
    let done = state(&["restore", &run, ".envrc"]);
    done.exits(1).says("something else is there now");
    assert_eq!(fs::read(cx.dir().join(".envrc")).expect(".envrc"), b"mine");
    fs::remove_file(cx.dir().join(".envrc")).expect(".envrc");
    state(&["restore", &run[..20], ".envrc"]).exits(0).prints(&format!("restored {}\n", path(".envrc")));
    assert_eq!(fs::read(cx.dir().join(".envrc")).expect(".envrc"), b"evil");
    state(&["restore", &run, ".envrc"]).exits(2);
    state(&["restore", "01", "x/../../.."]).exits(2);
    state(&["restore", "nothing"]).exits(2);
    // A link or another directory instead of the quarantine: the manifest names neither.
    let (quarantine, hidden) = (cx.dir().join(".exeat-quarantine"), cx.dir().join("q"));
    fs::rename(&quarantine, &hidden).expect("a rename");
    fs::create_dir_all(outside.join(&run).join(".vscode")).expect("a decoy");
    for path in [outside.clone(), outside.join(&run), outside.join(&run).join(".vscode")] {
        cx.bench().give(&path, cx.is_root());
    }
    let make: [fn(&Path, &Path) -> io::Result<()>; 2] =
        [|outside, at| symlink(outside, at), |outside, at| fs::rename(outside, at)];
    for make in make {
        make(&outside, &quarantine).expect("a decoy");
        state(&["prune", "--all"]).exits(0).prints("0 names deleted\n");
        state(&["restore", &run]).exits(1).says("is not restored: its quarantine in `");
        let told = state(&["list"]);
        told.exits(0).says("is not there any more");
        assert!(!told.stdout().contains(".vscode"), "{told:?}");
        assert!(quarantine.join("mine").exists() && quarantine.join(&run).join(".vscode").exists());
        if quarantine.is_symlink() {
            fs::remove_file(&quarantine).expect("the link");
        } else {
            fs::rename(&quarantine, &outside).expect("the decoy");
        }
    }
    fs::rename(&hidden, &quarantine).expect("a rename");
    assert!(state(&["prune", "--older-than", "1d"]).stdout() == "0 names deleted\n");
    state(&["prune", "--all", "--dry-run"])
        .exits(0)
        .shows("would delete")
        .shows("3 names would be deleted\n");
    assert!(cx.aside(".vscode").is_dir());
    state(&["prune", "--all", "--dir", outside.to_str().expect("ASCII")])
        .exits(0)
        .prints("0 names deleted\n");
    assert!(cx.aside(".vscode").is_dir());
    let done = state(&["prune", "--all", "--dir", cx.dir().to_str().expect("ASCII")]);
    done.exits(0).shows("3 names deleted\n").shows(&format!("(from {})", path(".vscode")));
    assert!(!quarantine.exists(), "an empty quarantine stays: {done:?}");
    assert_eq!(fs::read(outside.join("mine")).expect("mine"), b"mine");
    assert_eq!(listed()["set_aside"], Value::Array(Vec::new()));
    state(&["restore", &run]).exits(2);
    state(&["prune"]).exits(2);
    // The next run sets names aside again.
    fs::remove_file(cx.dir().join(".envrc")).expect(".envrc");
    cx.sh(&[], "echo evil >.envrc").run().exits(0);
    let run = listed()["set_aside"][0]["run"].as_str().expect("a run").to_owned();
    // A link on the path to the target is not followed.
    cx.sh(&[], "mkdir .vscode; echo {} >.vscode/tasks.json").run().exits(0);
    state(&["restore", &run]).exits(0);
    assert!(cx.dir().join(".envrc").exists());
    assert_eq!(listed()["set_aside"].as_array().map(Vec::len), Some(1));
}

/// A tree whose last name is back has no quarantine any more. Nor has one where the user removed it.
fn parts(cx: &Cx) {
    let other = cx.home().join("other");
    fs::create_dir(&other).expect("a directory");
    cx.bench().give(&other, cx.is_root());
    let at = other.to_str().expect("ASCII");
    let quarantines = [cx.dir().join(".exeat-quarantine"), other.join(".exeat-quarantine")];
    let state = |words: &[&str]| cx.exeat_plain([&["state"], words].concat()).run();
    let silent = |words: &[&str]| {
        let done = state(words);
        assert!(!done.stderr().contains("not there"), "{done:?}");
        done
    };
    let run = || {
        let script = format!("echo evil >.envrc; echo evil >{at}/.npmrc");
        cx.exeat(["run", "--rw", at, "--", "sh", "-c", &script]).run().exits(0).says(".npmrc` was moved");
        let listed: Value =
            serde_json::from_str(&state(&["list", "--format", "json"]).stdout()).expect("JSON");
        assert_eq!(listed["set_aside"].as_array().map(Vec::len), Some(2), "{listed}");
        listed["set_aside"][0]["run"].as_str().expect("a run").to_owned()
    };
    let none = |run: &str| {
        silent(&["list"]).exits(0);
        let done = silent(&["restore", run]);
        done.exits(2).says(&format!("nothing that a run `{run}` set aside is left"));
        fs::remove_file(cx.dir().join(".envrc")).expect(".envrc");
    };

    let first = run();
    let (mine, theirs) = (cx.dir().join(".envrc"), other.join(".npmrc"));
    silent(&["restore", &first, ".envrc"]).exits(0).prints(&format!("restored {}\n", mine.display()));
    assert!(!quarantines[0].exists() && quarantines[1].exists());
    silent(&["list"]).exits(0).shows(&format!("  {}  file", theirs.display()));
    silent(&["restore", &first]).exits(0).prints(&format!("restored {}\n", theirs.display()));
    assert!(!quarantines[1].exists());
    none(&first);
    fs::remove_file(&theirs).expect(".npmrc");

    let second = run();
    fs::remove_dir_all(&quarantines[1]).expect("the quarantine");
    silent(&["restore", &second]).exits(0).prints(&format!("restored {}\n", mine.display()));
    none(&second);

    // What has moved with its tree is not lost.
    let third = run();
    fs::rename(&other, cx.home().join("moved")).expect("a rename");
    state(&["list"]).exits(0).says(&format!("what was set aside in `{at}` is not there"));
    state(&["restore", &third]).exits(1).says(&format!("its quarantine in `{at}` is not there"));
    fs::rename(cx.home().join("moved"), &other).expect("a rename");
    silent(&["restore", &third]).exits(0).prints(&format!("restored {}\n", theirs.display()));
    none(&third);
}

/// A live run in the same directory keeps the empty quarantine, and the next command removes it.
fn empty_directories(cx: &Cx) {
    let state = |words: &[&str]| cx.exeat_plain([&["state"], words].concat()).run();
    let elsewhere = cx.home().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    cx.bench().give(&elsewhere, cx.is_root());
    let quarantine = cx.dir().join(".exeat-quarantine");
    for (dir, is_kept) in [(elsewhere.as_path(), false), (cx.dir(), true)] {
        let mut live = cx.sh(&[], "echo ready; read -r go; true").cwd(dir).stdin_open().start();
        live.until_prints("ready");
        cx.sh(&[], "echo evil >.envrc").run().exits(0).says("was moved");
        state(&["prune", "--all"]).exits(0).shows("1 name deleted\n");
        assert_eq!(quarantine.exists(), is_kept);
        live.wait().exits(0);
        state(&["prune", "--all"]).exits(0).prints("0 names deleted\n");
        assert!(!quarantine.exists());
    }
}

/// A repository that was set aside during the run is back. The parts that git obeys are still aside, and can be
/// restored.
fn given_back(cx: &Cx) {
    let done = cx
        .sh(&[], "git init -q . && until [ -e .git/config ]; do :; done; sleep 1; git config core.pager x")
        .run();
    done.exits(0).says(".git/config` was moved");
    let listed = cx.exeat_plain(["state", "list", "--format", "json"]).run();
    let listed: Value = serde_json::from_str(&listed.stdout()).expect("JSON");
    let all = listed["set_aside"].as_array().expect("a list");
    let repository = cx.dir().join(".git").display().to_string();
    assert!(!all.is_empty() && all.iter().all(|item| item["from"] != repository.as_str()), "{listed}");
    let run = all[0]["run"].as_str().expect("a run");
    cx.exeat_plain(["state", "restore", run]).run().exits(0);
    assert!(cx.dir().join(".git/config").exists());
    assert!(!cx.dir().join(".exeat-quarantine").exists());
}

/// After a kill its files stay in place until the next start, and `exeat state` says so.
fn killed(cx: &Cx) {
    let mut live = cx.sh(&[], "echo evil >.envrc; echo ready; exec sleep 100").start();
    live.until_prints("ready");
    let list = || cx.exeat_plain(["state", "list"]).run();
    assert!(!list().stdout().contains("killed"));
    live.signal(Signal::SIGKILL);
    live.wait();
    e2e::wait_for(Duration::from_secs(5), "the end of the sandbox", || {
        let listed = list();
        listed.stdout().contains("killed, and its directories are not checked yet").then(|| {
            listed.exits(0).shows(&format!("  in {}\n", cx.dir().display()));
        })
    });
    assert!(cx.dir().join(".envrc").exists());
    cx.sh(&[], "true").run().exits(0).says("killed before its end");
    let listed = list();
    assert!(!listed.stdout().contains("killed"), "{listed:?}");
    listed.shows(&cx.dir().join(".envrc").display().to_string());
}

/// Names that a live or killed run has set aside are neither restored nor deleted.
fn unsettled(cx: &Cx) {
    let state = |words: &[&str]| cx.exeat_plain([&["state"], words].concat()).run();
    let mut live = cx.sh(&[], "echo evil >.mcp.json; echo evil >.envrc; echo ready; exec sleep 100").start();
    live.until_prints("ready");
    let first =
        e2e::wait_for(Duration::from_secs(5), "a name that is set aside while the stage runs", || {
            let listed: Value =
                serde_json::from_str(&state(&["list", "--format", "json"]).stdout()).expect("JSON");
            listed["set_aside"].get(0).cloned()
        });
    assert_eq!(first["running"], Value::from(true));
    let (run, to) = (first["run"].as_str().expect("a run"), first["to"].as_str().expect("a path"));
    let stays = |why: &str| {
        let (restored, pruned) = (state(&["restore", run]), state(&["prune", "--all"]));
        assert!(Path::new(to).exists() && !cx.dir().join(".mcp.json").exists(), "{restored:?} {pruned:?}");
        restored.exits(1).says(why);
        pruned.exits(0).prints("0 names deleted\n").says("what it set aside stays");
    };
    stays("goes on, and would set it aside again");
    live.signal(Signal::SIGKILL);
    live.wait();
    e2e::wait_for(Duration::from_secs(5), "the end of the sandbox", || {
        state(&["list"]).stdout().contains("killed, and its directories are not checked yet").then_some(())
    });
    stays("was killed, and its directories are not checked yet");
    cx.sh(&[], "true").run().exits(0).says("killed before its end");
    state(&["restore", run, ".mcp.json"]).exits(0);
    assert!(cx.dir().join(".mcp.json").exists() && !cx.dir().join(".envrc").exists());
}

/// A rename cannot cross file systems, and a copy could be as large as the stage likes.
fn elsewhere(cx: &Cx) {
    let at = cx.dir().join(".cargo");
    fs::create_dir(&at).expect("a directory");
    let none = None::<&str>;
    nix::mount::mount(Some("tmpfs"), &at, Some("tmpfs"), nix::mount::MsFlags::empty(), none)
        .expect("a mount");
    cx.bench().give(&at, cx.is_root());
    let done = cx.sh(&[], "echo evil >.cargo/config.toml; echo evil >.envrc").run();
    let names = || fs::read_dir(&at).expect("names").map(|it| it.expect("a name").file_name().into_string());
    let names: Vec<String> = names().collect::<Result<_, _>>().expect("UTF-8");
    let text = names.first().map(|name| fs::read_to_string(at.join(name)).expect("the file"));
    nix::mount::umount(&at).expect("umount");
    let [name] = &names[..] else { panic!("{names:?}: {done:?}") };
    let digits = name.strip_prefix("config.toml.exeat-quarantine.").unwrap_or_default();
    assert!(digits.len() == 16 && text.as_deref() == Some("evil\n"), "{name}: {done:?}");
    done.exits(0).says(&format!(".cargo/config.toml` was moved to `{}`", at.join(name).display()));
    assert!(cx.aside(".envrc").exists());
}

/// A cache is named after its working directory, and deleted with all that stages have put into it, but not while a run
/// uses it.
fn caches(cx: &Cx) {
    let outside = cx.home().join("outside");
    fs::create_dir(&outside).expect("outside");
    fs::write(outside.join("mine"), "mine").expect("mine");
    for path in [outside.clone(), outside.join("mine")] {
        cx.bench().give(&path, cx.is_root());
    }
    let state = |words: &[&str]| cx.exeat_plain([&["state"], words].concat()).run();
    let listed =
        || -> Value { serde_json::from_str(&state(&["list", "--format", "json"]).stdout()).expect("JSON") };
    let script = format!(
        "cd $XDG_CACHE_HOME; ln -s {0} link; mkdir -p npm/closed; ln -s {0} npm/closed/x; chmod 0 npm/closed
        ls -a ..; echo evil >../x.dir; echo ready; read end",
        outside.display()
    );
    let mut live = cx.exeat(["run", "--", "sh", "-c", &script]).stdin_open().start();
    live.until_prints("ready");
    state(&["list"]).exits(0).shows(&format!("cache of {}  ", cx.dir().display())).shows(", in use\n");
    let cache = listed()["caches"][0].clone();
    assert_eq!((&cache["dir"], &cache["running"]), (&cx.dir().display().to_string().into(), &true.into()));
    let at = PathBuf::from(cache["path"].as_str().expect("a path"));
    let done = state(&["prune", "--caches", "--all"]);
    done.exits(0).prints("0 caches deleted\n").says("is in use, and stays");
    assert!(at.join("link").is_symlink());
    assert!(!live.wait().stdout().contains(".dir"), "the stage sees the note");

    state(&["list", "--dir", "."]).shows(", last used ");
    assert!(state(&["list", "--dir", "/usr"]).stdout().is_empty());
    state(&["prune", "--caches", "--older-than", "1d"]).exits(0).prints("0 caches deleted\n");
    // Names that were set aside are listed separately.
    state(&["prune", "--all"]).exits(0).prints("0 names deleted\n");
    state(&["prune", "--caches", "--all", "--dry-run"]).exits(0).shows("1 cache would be deleted\n");
    assert!(at.join("link").is_symlink());
    let done = state(&["prune", "--caches", "--all"]);
    done.exits(0).shows(&format!("(cache of {}, ", cx.dir().display())).shows("1 cache deleted\n");
    assert_eq!(fs::read_dir(at.parent().expect("a directory")).expect("caches").count(), 0, "{done:?}");
    assert_eq!(fs::read(outside.join("mine")).expect("mine"), b"mine");
    // A link instead of a cache is not one, and is not followed.
    symlink(&outside, &at).expect("a link");
    state(&["prune", "--caches", "--all"]).exits(0);
    assert!(outside.join("mine").exists() && !at.is_symlink());
    cx.sh(&[], "ls -A $XDG_CACHE_HOME; echo end").run().exits(0).prints("end\n");
    assert_eq!(listed()["caches"][0]["running"], Value::from(false));
}

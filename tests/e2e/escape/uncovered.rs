//! B11: a hidden or read-only file has a mount over its name, and the kernel removes the mount when a program on the
//! host removes the name, or renames another file over it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::case::{Cases, Cx};
use e2e::run::Live;
use e2e::wait_for;
use nix::sys::signal::{Signal, kill};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b11_a_file_that_the_host_replaces", replaced);
    list.matrix("escape::b11_covers_again_what_the_host_replaces", covered_again);
    // How soon a cover stands is what it is about.
    list.alone("escape::b11_goes_on_where_the_host_sets_what_a_branch_follows", tracked);
    list.users("escape::b11_goes_on_with_the_last_file_where_the_next_may_be_the_stage_s", put_back);
    list.alone("escape::b11_ends_a_stage_that_writes_before_the_cover_stands", raced);
    list.matrix("escape::b11_knows_the_stage_s_hand_in_what_the_host_writes", written_beside);
    list.once("escape::b11_puts_the_last_file_back_where_calls_are_not_told", untold);
    list.users("escape::b11_ends_a_stage_that_has_hold_of_a_configuration", flipped);
    list.users("escape::b11_a_protected_name_that_the_host_removes", removed);
    list.users("escape::b11_a_version_that_is_checked_out_on_the_host_ends_nothing", checked_out);
    list.once("escape::b11_what_the_host_mounts", mounts);
    list.once("escape::b11_what_the_host_mounts_is_not_in_copies", later_mounts);
    list.once("escape::b11_the_record_says_that_nothing_could_be_watched", unwatched);
    list.root("escape::b11_what_only_root_may_read", of_root);
    list.users("escape::b11_what_programs_replace_at_home", at_home);
    list.users("escape::b11_a_home_that_is_a_mount", mounted_home);
    list.root("escape::b11_files_of_ours_may_be_replaced", public_files);
}

/// Checks that the run ends by itself, without input.
fn ends(live: &mut Live<'_>) {
    wait_for(Duration::from_secs(10), "the end of the run", || live.ended().then_some(()));
}

/// Waits for the end of the run, or shows that it continues.
#[track_caller]
fn ends_only_if(is_over: bool, live: &mut Live<'_>, what: &str) {
    if is_over {
        return ends(live);
    }
    std::thread::sleep(Duration::from_millis(1200));
    assert!(!live.ended(), "{what}");
}

/// Programs and many editors write like this. The stage never reads a hidden file that becomes visible.
fn replaced(cx: &Cx) {
    let result = cx.home().join("result.json");
    for (flags, name) in [
        (vec!["--mask", "keys"], "keys"),
        (vec!["--mask", ".bash_history"], ".bash_history"),
        (vec!["--mask", "dir"], "dir"),
    ] {
        let path = cx.dir().join(name);
        match name {
            "keys" | ".bash_history" => drop(cx.write(name, "old")),
            "dir" => fs::create_dir(&path).expect("a directory"),
            _ => {}
        }
        let script = format!("echo ready; read -r go; cat {name}; echo evil >>{name}; echo it-went-on");
        let mut words = vec!["run", "--result", result.to_str().expect("ASCII")];
        words.extend(flags);
        words.extend(["--", "sh", "-c", &script]);
        let mut live = cx.exeat(words).stdin_open().start();
        live.until_prints("ready");
        let new = path.with_file_name("new");
        if name == "dir" {
            fs::rename(&path, &new).expect("a rename");
        } else {
            fs::write(&new, "[alias]\n\tx = status\n").expect("a file");
            fs::rename(&new, &path).expect("a rename");
        }
        ends(&mut live);
        let done = live.wait();
        done.exits(137)
            .prints("ready\n")
            .says(&format!("{name}` was replaced, renamed or removed on the host"));
        assert!(done.took < Duration::from_secs(10), "{done:?}");
        let said = fs::read_to_string(&result).expect("a result");
        assert!(said.contains(r#""cause":"uncovered""#) && said.contains(&format!("{name}\"]")), "{said}");
        let log = done.record();
        assert_eq!(log.events("note")[0]["what"], "uncovered");
        assert_eq!(log.events("run_end")[0]["cause"], "uncovered");
    }
}

/// Waits until the name is covered in the sandbox, as the helper sees it.
fn until_covered(live: &mut Live<'_>, path: &Path) {
    let place = format!(" {} ", path.display());
    wait_for(Duration::from_secs(10), "the cover", || {
        let mut tables = live.pids("sandbox-inside").into_iter().map(|pid| format!("/proc/{pid}/mountinfo"));
        let is_covered =
            tables.any(|table| fs::read_to_string(table).is_ok_and(|text| text.contains(&place)));
        (is_covered || live.ended()).then_some(())
    });
}

/// Waits until a file has this content, or the run has ended.
fn until_says(live: &mut Live<'_>, path: &Path, words: &str) {
    wait_for(Duration::from_secs(10), words, || {
        (live.ended() || fs::read_to_string(path).is_ok_and(|text| text == words)).then_some(())
    });
}

/// Runs git on the host.
fn git(cx: &Cx, words: &[&str]) {
    cx.outside([&["git"], words].concat()).cwd(cx.dir()).run().exits(0);
}

/// Replaces a file as editors do, and git its configuration. Returns its inode.
fn save(cx: &Cx, name: &str, text: &str) -> u64 {
    let new = Path::new(name).with_extension("saved");
    save_as(cx, new.to_str().expect("ASCII"), name, text).expect("a rename")
}

/// Writes a file under one name, and renames it to another. Fails if a stage has removed the first name. Returns the
/// file's inode.
fn save_as(cx: &Cx, new: &str, name: &str, text: &str) -> io::Result<u64> {
    let (path, new) = (cx.dir().join(name), cx.dir().join(new));
    fs::write(&new, text).expect("a file");
    cx.bench().give(&new, cx.is_root());
    // Editors wait for the disk here.
    std::thread::sleep(Duration::from_millis(50));
    let inode = fs::metadata(&new)?.ino();
    fs::rename(&new, &path)?;
    Ok(inode)
}

/// git and editors on the host work while a stage runs, and the stage continues. The new file is as read-only as the
/// old one.
fn covered_again(cx: &Cx) {
    git(cx, &["init", "-q", "."]);
    fs::create_dir(cx.dir().join(".vscode")).expect("a directory");
    cx.write(".vscode/settings.json", "old");
    cx.write(".mcp.json", "old");
    let script = "echo ready; read -r go; grep -c new .git/config .mcp.json .vscode/settings.json; \
                  for it in .git/config .mcp.json .vscode/settings.json; do echo evil >>$it; rm -f $it; done; \
                  echo x >x; mv x .git/config; exit 7";
    let mut live = cx.sh(&[], script).stdin_open().start();
    live.until_prints("ready");
    for text in ["[a]\n\tnew = 1\n", "[a]\n\tnew = 2\n"] {
        save(cx, ".git/config", text);
        std::thread::sleep(Duration::from_millis(100));
    }
    for name in [".mcp.json", ".vscode/settings.json"] {
        save(cx, name, "new");
    }
    // git makes a file here, too, and removes it.
    cx.outside(["git", "config", "--unset", "no.such"]).cwd(cx.dir()).run().exits(5);
    std::thread::sleep(Duration::from_millis(300));
    save_as(cx, ".git/config.lock", ".git/config", "[a]\n\tnew = 3\n").expect("a rename");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!live.ended());
    let done = live.wait();
    done.exits(7).prints("ready\n.git/config:1\n.mcp.json:1\n.vscode/settings.json:1\n");
    done.says(".git/config` was replaced on the host 3 times, and is read-only for the stage again");
    done.says(".mcp.json` was replaced on the host, and is read-only for the stage again");
    for name in [".git/config", ".mcp.json", ".vscode/settings.json"] {
        let text = fs::read_to_string(cx.dir().join(name)).expect("a file");
        assert!(text.contains("new") && !text.contains("evil"), "{name}: {text}");
    }
    let log = done.record();
    assert_eq!(log.events("note").iter().filter(|note| note["what"] == "uncovered").count(), 2);
    assert_eq!(log.events("run_end")[0]["cause"], "exit");
}

/// Host programs may replace a configuration twice before it is covered again. The maker of the second file is then
/// unknown, which does not matter if it only says which branch follows which.
fn tracked(cx: &Cx) {
    git(cx, &["init", "-q", "-b", "main", "."]);
    git(cx, &["config", "remote.origin.url", "https://git.test/a.git"]);
    let config = cx.dir().join(".git/config");
    let fake = ["remote.origin.url", "https://evil.test/a.git"];
    for (settings, goes_on) in [
        ([["branch.main.remote", "origin"], ["branch.main.merge", "refs/heads/main"]], true),
        ([["branch.main.remote", "."], ["branch.main.rebase", "true"]], true),
        ([["branch.main.remote", "origin"], ["core.fsmonitor", "./x"]], false),
        ([["branch.main.remote", "https://evil.test/"], ["branch.main.rebase", "false"]], false),
        ([fake, ["branch.main.remote", "origin"]], false),
    ] {
        // On a busy machine the run may end, or the stage's text be moved, which is safe.
        assert!((0..4).any(|_| try_tracked(cx, settings, goes_on)), "{settings:?}");
    }
    // A push makes the lock file twice more within a millisecond, and removes it once.
    let up = cx.dir().with_file_name("up.git");
    git(cx, &["init", "-q", "--bare", up.to_str().expect("ASCII")]);
    git(cx, &["config", "remote.up.url", up.to_str().expect("ASCII")]);
    let commit =
        ["-c", "user.name=a", "-c", "user.email=a@example.test", "commit", "-q", "--allow-empty", "-m1"];
    git(cx, &commit);
    let branches = ["one", "two", "three", "four", "five", "six"];
    let is_kept = |branch: &&str| {
        let mut live = cx.sh(&[], "echo ready; read -r go; true").stdin_open().start();
        live.until_prints("ready");
        git(cx, &["checkout", "-q", "-b", branch]);
        git(cx, &["push", "-q", "-u", "up", branch]);
        git(cx, &["config", &format!("alias.{branch}"), "status"]);
        until_covered(&mut live, &config);
        live.wait();
        fs::read_to_string(&config).expect("a file").contains(&format!("{branch} = status"))
    };
    let kept = branches.iter().filter(|branch| is_kept(branch)).count();
    assert!(kept >= 4, "{kept} of {}", branches.len());
}

/// Replaces the configuration by two files before either is covered. Returns whether the run goes on as it should.
fn try_tracked(cx: &Cx, settings: [[&str; 2]; 2], goes_on: bool) -> bool {
    let (config, next) = (cx.dir().join(".git/config"), cx.dir().join("next"));
    // Copied in advance: the helper stops only for a limited time.
    fs::copy(&config, &next).expect("a file");
    let texts = settings.map(|[key, value]| {
        git(cx, &["config", "--file", "next", key, value]);
        fs::read(&next).expect("a file")
    });
    let script = "echo ready; read -r go; echo evil >>.git/config || exit 7";
    let mut live = cx.sh(&[], script).stdin_open().start();
    live.until_prints("ready");
    let helper = live.pids("sandbox-inside")[0];
    kill(helper, Signal::SIGSTOP).expect("a signal");
    for text in texts {
        let lock = cx.dir().join(".git/config.lock");
        fs::write(&lock, text).expect("a file");
        cx.bench().give(&lock, cx.is_root());
        fs::rename(&lock, &config).expect("a rename");
    }
    kill(helper, Signal::SIGCONT).expect("a signal");
    if !goes_on {
        let [key, value] = settings[1];
        let last = format!("{} = {value}", key.rsplit('.').next().expect("a key"));
        wait_for(Duration::from_secs(10), "the last file", || {
            (live.ended() || fs::read_to_string(&config).is_ok_and(|text| !text.contains(&last)))
                .then_some(())
        });
    }
    until_covered(&mut live, &config);
    let has_ended = live.ended();
    let done = live.wait();
    let text = fs::read_to_string(&config).expect("a file");
    let [key, value] = settings[1];
    let last = format!("{} = {value}", key.rsplit('.').next().expect("a key"));
    let is_evil = text.lines().any(|line| line == "evil") || !goes_on && text.contains(&last);
    assert!(!is_evil, "{settings:?}: {text}");
    if has_ended || done.code != Some(7) || goes_on && !text.contains(&last) {
        return false;
    }
    assert_eq!(text.contains(&last), goes_on, "{settings:?}: {text}");
    let what =
        if goes_on { "is read-only for the stage again" } else { "the last one is in its place again" };
    done.exits(7).says(".git/config` was replaced on the host").says(what);
    true
}

/// Returns how many files the quarantine of a run has under this name, and the content of the first.
fn set_aside(cx: &Cx, name: &str) -> (usize, String) {
    let runs = fs::read_dir(cx.dir().join(".exeat-quarantine/git~1"));
    let dirs = runs.into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    let files = dirs.flat_map(|run| fs::read_dir(run.path()).expect("a directory").flatten());
    let mut files: Vec<_> = files
        .map(|file| file.path())
        .filter(|path| path.ends_with(name) || path.to_string_lossy().contains(&format!("{name}.")))
        .collect();
    files.sort();
    let first = files.first().map(|path| fs::read_to_string(path).expect("a file")).unwrap_or_default();
    (files.len(), first)
}

/// If nobody was seen writing the host's new file, and its maker is unknown, the stage continues with the previous
/// file. This works a few times.
fn put_back(cx: &Cx) {
    fs::create_dir(cx.dir().join("other")).expect("a directory");
    let at = |name: &str| cx.dir().join(name);
    let write = |name: &str, text: &str| {
        fs::write(at(name), text).expect("a file");
        cx.bench().give(&at(name), cx.is_root());
    };
    cx.bench().give(&at("other"), cx.is_root());
    let from_elsewhere = |text: &str| {
        write("other/new", text);
        let inode = fs::metadata(at("other/new")).expect("a file").ino();
        fs::rename(at("other/new"), at(".mcp.json")).expect("a rename");
        inode
    };
    let of_a_name_that_was_free = |text: &str| {
        write(".mcp.saved", "x");
        fs::remove_file(at(".mcp.saved")).expect("a file");
        save(cx, ".mcp.json", text)
    };
    let of_a_link = |text: &str| {
        write("other/new", text);
        fs::hard_link(at("other/new"), at(".mcp.new")).expect("a link");
        fs::remove_file(at("other/new")).expect("a file");
        let inode = fs::metadata(at(".mcp.new")).expect("a file").ino();
        fs::rename(at(".mcp.new"), at(".mcp.json")).expect("a rename");
        inode
    };
    let replaces: [&dyn Fn(&str) -> u64; 3] = [&from_elsewhere, &of_a_name_that_was_free, &of_a_link];
    for (number, replace) in replaces.into_iter().enumerate() {
        let _ = fs::remove_dir_all(at(".exeat-quarantine"));
        let _ = fs::remove_file(at(".mcp.json"));
        cx.write(".mcp.json", "old\n");
        let script = "echo ready; read -r go; cat .mcp.json; echo evil >>.mcp.json; rm -f .mcp.json; echo x >x; mv x .mcp.json; exit 7";
        let mut live = cx.sh(&[], script).stdin_open().start();
        live.until_prints("ready");
        replace("doubtful\n");
        until_says(&mut live, &at(".mcp.json"), "old\n");
        until_covered(&mut live, &at(".mcp.json"));
        wait_for(Duration::from_secs(10), "the new file", || {
            (set_aside(cx, ".mcp.json").0 == 1).then_some(())
        });
        assert!(!live.ended(), "{number}");
        assert_eq!(fs::read_to_string(at(".mcp.json")).expect("a file"), "old\n", "{number}");
        assert_eq!(set_aside(cx, ".mcp.json"), (1, "doubtful\n".to_owned()), "{number}");
        // Equal content raises no doubt, but a pending open could still change the file, so a new one replaces it.
        let inode = replace("old\n");
        wait_for(Duration::from_secs(10), "a new file with the same words", || {
            fs::metadata(at(".mcp.json")).is_ok_and(|about| about.ino() != inode).then_some(())
        });
        until_covered(&mut live, &at(".mcp.json"));
        let done = live.wait();
        done.exits(7).prints("ready\nold\n");
        // Two lines, one for each, would contradict each other.
        done.says(
            ".mcp.json` was replaced on the host 2 times: the new file stayed once, and the stage may have",
        );
        assert_eq!(fs::read_to_string(at(".mcp.json")).expect("a file"), "old\n", "{number}");
        assert_eq!(set_aside(cx, ".mcp.json").0, 1, "{number}");
        let whats: Vec<_> = done.record().events("note").iter().map(|note| note["what"].clone()).collect();
        assert_eq!(whats.iter().filter(|what| *what == "quarantined").count(), 1, "{whats:?}");
        assert_eq!(whats.iter().filter(|what| *what == "uncovered").count(), 1, "{whats:?}");
    }
    // The list of exeat's own files cannot be written now, as on file systems without creation times: that alone ends
    // no run.
    let list = cx.home().join(".local/state/exeat/quarantine/.own-files");
    fs::create_dir(&list).expect("a directory");
    cx.bench().give(&list, cx.is_root());
    let mut live = cx.sh(&[], "echo ready; read -r go").stdin_open().start();
    live.until_prints("ready");
    let ended = (0..12).find(|round| {
        from_elsewhere(&format!("doubtful {round}\n"));
        until_says(&mut live, &at(".mcp.json"), "old\n");
        until_covered(&mut live, &at(".mcp.json"));
        live.ended()
    });
    // One replacement may be seen twice.
    assert!(matches!(ended, Some(9 | 10)), "{ended:?}");
    live.wait().exits(137);
    assert_eq!(fs::read_to_string(at(".mcp.json")).expect("a file"), "old\n");
}

/// A stage waits for the moment between the host's rename and the new cover. What it has written ends the run.
fn raced(cx: &Cx) {
    cx.write("evil", "evil");
    let writes = "echo evil >>.mcp.json";
    let renames = "ln -f evil e; mv -f e .mcp.json";
    let links = "ln .mcp.json .git-link && echo evil >>.git-link; rm -f .git-link";
    // A read-only descriptor can reopen the file for writing.
    let waits = "exec 3<.mcp.json; read -r word <&3; [ \"$word\" = old ] || { sleep 0.2; echo evil >>/proc/self/fd/3; }";
    // The stage replaces the host's new file before the host renames it.
    let gives_its_own = "[ -e .mcp.saved ] && sleep 0.02 && rm .mcp.saved && ln evil .mcp.saved && sleep 1";
    let makes_another =
        "[ -e .mcp.saved ] && sleep 0.02 && rm .mcp.saved && echo evil >.mcp.saved && sleep 1";
    let moves_another = "[ -e .mcp.saved ] && sleep 0.02 && cp evil e && mv -f e .mcp.saved && sleep 1";
    let moves_it_away =
        "[ -e .mcp.saved ] && sleep 0.02 && mv .mcp.saved e && echo evil >.mcp.saved && sleep 1";
    // With a second name, in an unwatched directory, the stage opens the file before the rename, and writes after its
    // maker has closed it.
    let links_before = "[ -d zz ] || mkdir zz; [ -e .mcp.saved ] && ln .mcp.saved zz/x && { rm zz/x; sleep 0.02; echo evil; } >>zz/x";
    for attack in [
        writes,
        renames,
        links,
        links_before,
        waits,
        gives_its_own,
        makes_another,
        moves_another,
        moves_it_away,
    ] {
        let script = format!("echo ready; while :; do {{ {attack}; }} 2>/dev/null; done");
        for _ in 0..3 {
            save(cx, ".mcp.json", "old\n");
            let mut live = cx.sh(&[], &script).start();
            live.until_prints("ready");
            for round in 0..10 {
                let _ = save_as(cx, ".mcp.saved", ".mcp.json", &format!("new {round}\n"));
                std::thread::sleep(Duration::from_millis(30));
                if live.ended() {
                    break;
                }
            }
            std::thread::sleep(Duration::from_millis(300));
            let is_over = live.ended();
            if !is_over {
                live.signal(Signal::SIGTERM);
            }
            let done = live.wait();
            let text = fs::read_to_string(cx.dir().join(".mcp.json")).expect("a file");
            assert!(!text.contains("evil"), "{attack}: {text}: {done:?}");
        }
    }
}

/// A stage writes to the host's new file while the host does, in ways that inotify does not report, or reports for one
/// process only. exeat's processes are stopped meanwhile, as on a busy machine.
fn written_beside(cx: &Cx) {
    // Between its steps the stage waits for the next name in an unwatched directory.
    let prelude = "import os, time\n\
                   os.makedirs('zz', exist_ok=True)\n\
                   def wait(name):\n\
                   \x20 while not os.path.exists(name): time.sleep(.001)\n\
                   def say(name): open('zz/' + name, 'w').close()\n\
                   print('ready', flush=True)\n\
                   wait('zz/made')\n";
    let links = "os.link('.mcp.saved', 'zz/x')\n\
                 fd = os.open('zz/x', os.O_WRONLY | os.O_APPEND)\n\
                 os.unlink('zz/x')\n\
                 say('opened'); wait('zz/wrote')\n\
                 os.write(fd, b'evil'); os.close(fd)\n";
    let opens = "fd = os.open('.mcp.saved', os.O_WRONLY | os.O_APPEND)\n\
                 say('opened'); wait('zz/wrote')\n\
                 os.write(fd, b'evil'); os.close(fd)\n";
    let cuts = "say('opened'); wait('zz/wrote'); os.truncate('.mcp.saved', 5)\n";
    // A close after reading is not a writer's.
    let cuts_by_opening =
        "say('opened'); wait('zz/wrote'); os.close(os.open('.mcp.saved', os.O_RDONLY | os.O_TRUNC))\n";
    let mut said = Vec::new();
    for attack in [links, opens, cuts, cuts_by_opening] {
        let _ = fs::remove_dir_all(cx.dir().join("zz"));
        cx.write(".mcp.json", "old\n");
        cx.write("attack.py", &format!("{prelude}{attack}say('did')\ntime.sleep(30)\n"));
        let mut live = cx.sh(&[], "exec python3 attack.py").start();
        live.until_prints("ready");
        let until = |name: &str| {
            let name = cx.dir().join("zz").join(name);
            wait_for(Duration::from_secs(10), "the stage", || name.exists().then_some(()));
        };
        let helper = live.pids("sandbox-inside")[0];
        // A call that exeat is notified of waits for it.
        let stopped = if attack == opens { vec![helper, live.pid()] } else { vec![helper] };
        stopped.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP).expect("a signal"));
        let saved = cx.dir().join(".mcp.saved");
        let mut file = fs::File::create(&saved).expect("a file");
        cx.bench().give(&saved, cx.is_root());
        fs::write(cx.dir().join("zz/made"), "").expect("a file");
        until("opened");
        file.write_all(b"new 1\nnew 2\n").expect("a file");
        fs::write(cx.dir().join("zz/wrote"), "").expect("a file");
        until("did");
        drop(file);
        kill(helper, Signal::SIGCONT).expect("a signal");
        // Gives the check of new files enough time.
        std::thread::sleep(Duration::from_millis(300));
        fs::rename(&saved, cx.dir().join(".mcp.json")).expect("a rename");
        stopped.iter().for_each(|pid| kill(*pid, Signal::SIGCONT).expect("a signal"));
        let text = || fs::read_to_string(cx.dir().join(".mcp.json")).unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(10);
        while !live.ended() && text() != "old\n" && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(3));
        }
        if !live.ended() {
            live.signal(Signal::SIGTERM);
        }
        live.wait();
        said.push(text());
    }
    assert_eq!(said, ["old\n"; 4], "by a link, by its name, cut, cut by opening");
}

/// A process can have only one filter that notifies of calls. Below another one exeat gets no notifications, and treats
/// every replaced file as one that the stage may have written to.
fn untold(cx: &Cx) {
    // The filter allows every call. The process with its descriptor stays.
    let filtered = "import ctypes, os, struct, subprocess, sys\n\
                    code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n\
                    program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(code)))\n\
                    libc = ctypes.CDLL(None)\n\
                    libc.prctl(38, 1, 0, 0, 0)\n\
                    call = 277 if os.uname().machine == 'aarch64' else 317\n\
                    assert libc.syscall(call, 1, 8, program) > 2\n\
                    sys.exit(subprocess.call(sys.argv[1:]))\n";
    cx.write("filtered.py", filtered);
    cx.write(".mcp.json", "old\n");
    let filtered = cx.dir().join("filtered.py");
    let script = "echo ready; read -r go; cat .mcp.json";
    let run = cx.sh(&[], script).stdin_open().under(["python3", filtered.to_str().expect("ASCII")]);
    let mut live = run.start();
    live.until_prints("ready");
    save(cx, ".mcp.json", "new\n");
    let text = || fs::read_to_string(cx.dir().join(".mcp.json")).unwrap_or_default();
    wait_for(Duration::from_secs(10), "the last file in its place", || (text() == "old\n").then_some(()));
    let done = live.wait();
    done.exits(0).prints("ready\nold\n").says("every file that the host replaced was put back");
    let notes = done.record();
    let said = notes
        .events("note")
        .into_iter()
        .any(|note| note["error"].as_str().is_some_and(|why| why.starts_with("not told: ")));
    assert!(said, "{done:?}");
}

/// A stage keeps a path to a file of the host's, gives it a second name, and opens it when it is covered: the pending
/// open may not write after the lease, and the same file is not accepted for its content.
fn flipped(cx: &Cx) {
    git(cx, &["init", "-q", "-b", "main", "."]);
    cx.write(
        "flip.py",
        "import os, time\n\
         print('ready', flush=True)\n\
         fd = None\n\
         while fd is None:\n\
         \x20 try: fd = os.open('.git/config.saved', os.O_PATH)\n\
         \x20 except OSError: pass\n\
         while os.stat('.git/config').st_ino != os.fstat(fd).st_ino: pass\n\
         time.sleep(.3)\n\
         os.link(f'/proc/self/fd/{fd}', '.git/y', src_dir_fd=os.open('.', os.O_RDONLY))\n\
         os.unlink('.git/y')\n\
         out = os.open(f'/proc/self/fd/{fd}', os.O_WRONLY | os.O_APPEND)\n\
         size = os.fstat(out).st_size\n\
         os.write(out, b'[a]\\n\\tevil = 1\\n')\n\
         open('written', 'w')\n\
         time.sleep(.1)\n\
         os.truncate(out, size)\n\
         os.close(out)\n\
         time.sleep(9)\n",
    );
    for _ in 0..3 {
        // A stage that was ended between the two steps has left it.
        let _ = fs::remove_file(cx.dir().join(".git/y"));
        let mut live = cx.sh(&[], "exec python3 flip.py").start();
        live.until_prints("ready");
        save(cx, ".git/config", "[a]\n\tb = c\n");
        // On a busy machine exeat may have replaced the file, and the stage writes to one that nobody obeys.
        let written = cx.dir().join("written");
        wait_for(Duration::from_secs(10), "the end of the stage", || {
            (live.ended() || written.exists()).then_some(())
        });
        if fs::remove_file(&written).is_ok() {
            drop(live);
        } else {
            live.wait().exits(137).says(".git/config` was replaced, renamed or removed on the host");
        }
        let text = fs::read_to_string(cx.dir().join(".git/config")).expect("a file");
        assert!(!text.contains("evil"), "{text}");
    }
}

/// The host checks out another version, where nothing obeys the name at once: git removes and remakes the file, and
/// nothing shows whether the stage was faster. The run continues, and the file is moved at its end.
fn checked_out(cx: &Cx) {
    git(cx, &["init", "-q", "-b", "main", "."]);
    for text in ["one", "two"] {
        save(cx, ".npmrc", text);
        git(cx, &["add", ".npmrc"]);
        git(cx, &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", text]);
    }
    for evil in ["true", "until grep -q one .npmrc 2>/dev/null; do :; done; echo evil >>.npmrc"] {
        let script = format!("echo ready; {evil}; read -r go; exit 7");
        let mut live = cx.sh(&[], &script).stdin_open().start();
        live.until_prints("ready");
        git(cx, &["checkout", "-q", "HEAD~1"]);
        // As long as it takes to notice a name in other letters.
        std::thread::sleep(Duration::from_millis(700));
        assert!(!live.ended());
        let done = live.wait();
        done.exits(7).says(".npmrc` was removed on the host meanwhile").says(".npmrc` was moved to");
        done.says("git tracks `").says("exeat state restore 01");
        assert!(!cx.dir().join(".npmrc").exists(), "{done:?}");
        let text = fs::read_to_string(cx.aside(".npmrc")).expect("a file");
        assert_eq!(text, if evil == "true" { "one" } else { "oneevil\n" });
        git(cx, &["checkout", "-q", "-f", "main"]);
    }
}

/// A name that the host removes is free. The run continues until the stage takes it.
fn removed(cx: &Cx) {
    for (takes, code) in [(false, 7), (true, 137)] {
        cx.write(".mcp.json", "old");
        let script = if takes { "echo evil >.mcp.json; exec sleep 100" } else { "exit 7" };
        let script = format!("echo ready; read -r go; {script}");
        let mut live = cx.sh(&[], &script).stdin_open().start();
        live.until_prints("ready");
        fs::remove_file(cx.dir().join(".mcp.json")).expect("a file");
        std::thread::sleep(Duration::from_millis(700));
        assert!(!live.ended());
        let done = live.wait();
        done.exits(code);
        let line = if takes { "was replaced, renamed or removed" } else { "was removed on the host" };
        done.says(&format!(".mcp.json` {line}"));
        assert!(!cx.dir().join(".mcp.json").exists());
    }
}

/// Mounts that the host makes during a run propagate into the sandbox if mounts are shared, as systemd makes them.
fn mounts(cx: &Cx) {
    cx.outside(["git", "init", "-q", "."]).cwd(cx.dir()).run().exits(0);
    for name in ["conf", "conf/below", "sub"] {
        fs::create_dir(cx.dir().join(name)).expect("a directory");
    }
    let (git, conf, below, sub) = (".git", "conf", "conf/below", "sub");
    let there = |name: &str| cx.dir().join(name).display().to_string();
    let ends = [(git, "0777"), (conf, "0777"), (below, "0777"), (sub, "0777"), ("/mnt", "0777")];
    let goes_on = [(below, "0777,ro"), ("/mnt", "0777,ro"), ("/tmp", "0777")];
    let all = ends.into_iter().map(|it| (it, true)).chain(goes_on.into_iter().map(|it| (it, false)));
    for ((place, mode), is_over) in all {
        let path = if place.starts_with('/') { place.to_owned() } else { there(place) };
        let script = format!("echo ready; read -r go; touch {path}/x && echo written; echo went-on");
        let fs = if place.starts_with('/') { "host" } else { "project" };
        // What bubblewrap binds gets the later mounts of the host.
        let backend = "sandbox.backend=bwrap-alone";
        let words = ["run", "--set", backend, "--fs", fs, "--ro", conf, "--", "sh", "-c", &script];
        let run = cx.exeat(words).stdin_open();
        let mut live = run.in_mounts("mount --make-rshared /").start();
        live.until_prints("ready");
        let mount = format!("mount -t tmpfs -o mode={mode} x {path}");
        let done = Command::new("nsenter")
            .args(["-m", "-t", &live.pid().to_string(), "sh", "-c", &mount])
            .status()
            .expect("nsenter");
        assert!(done.success(), "{mount}");
        ends_only_if(is_over, &mut live, &mount);
        let done = live.wait();
        if is_over {
            done.exits(137).prints("ready\n").says(&format!("`{path}` has a new mount on the host"));
            assert_eq!(done.record().events("run_end")[0]["cause"], "uncovered");
        } else {
            done.exits(0);
            let written = mode == "0777";
            assert_eq!(done.stdout().contains("written"), written, "{mount}: {done:?}");
        }
    }
}

/// exeat copies the mounts, and the copies are private.
fn later_mounts(cx: &Cx) {
    cx.outside(["git", "init", "-q", "."]).cwd(cx.dir()).run().exits(0);
    fs::create_dir(cx.dir().join("sub")).expect("a directory");
    for backend in ["bwrap", "native"] {
        for name in [".git", "sub"] {
            let path = cx.dir().join(name).display().to_string();
            let script = format!("echo ready; read -r go; cat {path}/planted; echo went-on");
            let backend = format!("sandbox.backend={backend}");
            let run = cx.exeat(["run", "--set", &backend, "--", "sh", "-c", &script]).stdin_open();
            let mut live = run.in_mounts("mount --make-rshared /").start();
            live.until_prints("ready");
            let mount = format!("mount -t tmpfs x {path} && echo x >{path}/planted");
            let done = Command::new("nsenter")
                .args(["-m", "-t", &live.pid().to_string(), "sh", "-c", &mount])
                .status()
                .expect("nsenter");
            assert!(done.success(), "{mount}");
            ends_only_if(false, &mut live, &mount);
            live.wait().exits(0).prints("ready\nwent-on\n");
        }
    }
}

/// Shells write their histories at any time; a password store or a login does not change.
fn at_home(cx: &Cx) {
    let routine = [".bash_history", ".python_history", ".Xauthority"];
    let write = |name: &str, mode: u32| {
        let (path, new) = (cx.home().join(name), cx.home().join("new"));
        let mut file =
            fs::OpenOptions::new().mode(mode).create_new(true).write(true).open(&new).expect("a file");
        file.write_all(b"secret").expect("a file");
        cx.bench().give(&new, cx.is_root());
        fs::rename(&new, &path).expect("a rename");
    };
    // A history with mode 0600 needs no cover against root's stage, which is another user.
    let modes: &[u32] = if cx.is_root() { &[0o600, 0o644] } else { &[0o600] };
    for mode in modes.iter().copied() {
        let is_covered = !cx.is_root() || mode == 0o644;
        for (names, is_over) in [(&routine[..], false), (&[".netrc"][..], true)] {
            names.iter().for_each(|name| write(name, mode));
            let paths = names.iter().map(|name| cx.home().join(name).display().to_string());
            let all = paths.collect::<Vec<_>>().join(" ");
            let script = format!("cat {all}; echo ready; read -r go; echo went-on");
            let mut live = cx.exeat(["run", "--fs", "host", "--", "sh", "-c", &script]).stdin_open().start();
            live.until_prints("ready");
            names.iter().for_each(|name| write(name, mode));
            ends_only_if(is_over, &mut live, &format!("{names:?} {mode:o}"));
            let done = live.wait();
            let log = done.record();
            let said = log.events("note").iter().filter(|note| note["what"] == "uncovered").count();
            assert_eq!(
                said,
                if is_over || is_covered { names.len() } else { 0 },
                "{names:?} {mode:o}: {done:?}"
            );
            if is_over {
                done.exits(137).prints("ready\n");
            } else {
                done.exits(0).prints("ready\nwent-on\n");
                let line = "was replaced on the host, as programs there do";
                assert_eq!(done.stderr().matches(line).count(), said, "{done:?}");
            }
        }
    }
}

/// A home on a separate file system, as with systemd-homed and on many servers, and trees over it.
fn mounted_home(cx: &Cx) {
    let home = cx.home().display().to_string();
    let secret = cx.home().join(".netrc");
    fs::write(&secret, "secret").expect("a file");
    cx.bench().give(&secret, cx.is_root());
    let above = cx.home().parent().expect("a directory");
    let mounts = format!("mount --bind {home} {home}");
    for (flags, cwd) in [
        (&["--fs", "host"][..], above),
        (&["--fs", "host"], cx.home()),
        (&["--fs", "host", "--ro", "/home"], cx.dir()),
        (&["--ro", "/home", "--ro", &home], cx.dir()),
        (&["--ro", "/home"], cx.home()),
    ] {
        let script = format!("cat {}; echo end", secret.display());
        let words = [&["run"], flags, &["--", "sh", "-c", &script]].concat();
        let done = cx.exeat(words).in_mounts(&mounts).cwd(cwd).run();
        done.exits(0).prints("end\n");
        assert!(done.stderr().contains("Permission denied"), "{flags:?}: {done:?}");
    }
}

/// exeat's `/etc/passwd` and `/etc/resolv.conf` cover public files: `useradd` and a new lease do not end the run.
fn public_files(cx: &Cx) {
    let private = "mount --make-rprivate / && mount -t tmpfs x /mnt && cp -a /etc /mnt && mount --bind /mnt/etc /etc && exec \"$@\"";
    let live = cx.sh(&[], "echo ready; read -r go; echo went-on").stdin_open();
    let mut live = live.under(["unshare", "-m", "sh", "-c", private, "sh"]).start();
    live.until_prints("ready");
    let change = format!(
        "nsenter -m -t {} sh -c 'for it in passwd group resolv.conf; do cp /etc/$it /etc/new; mv /etc/new /etc/$it; done'",
        live.pid()
    );
    cx.outside(["sh", "-c", &change]).run().exits(0);
    std::thread::sleep(Duration::from_millis(1200));
    live.wait().exits(0).prints("ready\nwent-on\n");
}

/// Root's stage is another user. A file that this user may not read on the host has no mount over it, so that `passwd`
/// on the host uncovers nothing; a public file has one.
fn of_root(cx: &Cx) {
    for (mode, is_covered) in [("0640", false), ("0644", true)] {
        let private = format!(
            "mount --make-rprivate / && mount -t tmpfs x /mnt && cp -a /etc /mnt && mount --bind /mnt/etc /etc && \
             chmod {mode} /etc/shadow && exec \"$@\""
        );
        let live = cx.sh(&[], "cat /etc/shadow; echo ready; read -r go; cat /etc/shadow; echo went-on");
        let mut live = live.stdin_open().under(["unshare", "-m", "sh", "-c", &private, "sh"]).start();
        live.until_prints("ready");
        let change = format!(
            "nsenter -m -t {} sh -c 'echo planted >/etc/new; chmod 0640 /etc/new; mv /etc/new /etc/shadow'",
            live.pid()
        );
        cx.outside(["sh", "-c", &change]).run().exits(0);
        ends_only_if(is_covered, &mut live, mode);
        let done = live.wait();
        if is_covered {
            done.exits(137).prints("ready\n");
            done.says("/etc/shadow` was replaced, renamed or removed on the host");
        } else {
            done.exits(0).prints("ready\nwent-on\n");
            assert_eq!(done.stderr().matches("Permission denied").count(), 2, "{done:?}");
        }
    }
}

/// Without an inotify instance exeat cannot watch, which is not known yet when `run_start` is written. The record says
/// so at the end, and a file that the host replaces ends the stage.
fn unwatched(cx: &Cx) {
    // The limit of a private user namespace: other trials of this user need theirs.
    let none = r#"exec unshare --user --map-root-user sh -c 'echo 0 >/proc/sys/user/max_inotify_instances &&
        u=$1 g=$2 && shift 2 && exec unshare --user --map-user=$u --map-group=$g -- "$@"' sh $(id -u) $(id -g) "$@""#;
    cx.outside(["git", "init", "-q", "."]).run().exits(0);
    save(cx, ".envrc", "mine\n");
    let run = |script: &str| cx.sh(&[], script).under(["sh", "-c", none, "sh"]);
    let notes = |done: &e2e::run::Done| -> Vec<String> {
        let notes = done.record();
        let notes = notes.events("note").into_iter().filter(|note| note["what"] == "uncovered");
        notes.map(|note| note["error"].as_str().expect("words").to_owned()).collect()
    };
    let done = run("mkdir .vscode; echo x >>.envrc; true").run();
    done.exits(0).says("could not be watched").says(".vscode` was moved to");
    let said = notes(&done);
    assert!(said.iter().any(|note| note.starts_with("not watched: ")), "{said:?}");
    for name in [".git/commondir", ".git/config.worktree"] {
        let held = format!("not held: {}", cx.dir().join(name).display());
        assert!(said.contains(&held), "{said:?}");
    }
    assert_eq!(
        fs::read_to_string(cx.dir().join(".envrc")).expect(".envrc"),
        "mine\n",
        "read-only all the same"
    );

    // With `--require full` nothing starts, and for root never.
    let words = ["run", "--require", "full", "--", "echo", "started"];
    let full = |done: e2e::run::Done| (done.code, done.stdout(), done.stderr());
    let (with, said, _) = full(cx.exeat(words).run());
    let (without, none_said, why) = full(cx.exeat(words).under(["sh", "-c", none, "sh"]).run());
    if with == Some(0) {
        assert!(said == "started\n" && without == Some(125) && none_said.is_empty(), "{why}");
        assert!(why.contains("protected names cannot be watched"), "{why}");
    }

    let mut live = run("echo ready; exec sleep 30").start();
    live.until_prints("ready");
    save(cx, ".envrc", "new\n");
    let done = live.wait();
    done.exits(137).says("the stage was stopped");
    let said = notes(&done);
    let has = |words: &str| said.iter().any(|note| note.contains(words));
    assert!(has("not watched: ") && has(".envrc"), "{said:?}");
    // With watches the run continues.
    let mut live = cx.sh(&[], "echo ready; read end; true").stdin_open().start();
    live.until_prints("ready");
    save(cx, ".envrc", "newer\n");
    live.wait().exits(0);
}

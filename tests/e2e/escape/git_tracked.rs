//! Tracked files that a run has moved aside are reported at the end of the run, and by the next run, until they are
//! back.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b12_reports_moved_names_that_git_tracks", tracked);
    list.users("escape::b12_a_moved_name_is_told_with_its_flag_and_its_way_back", way_back);
}

fn git(cx: &Cx, words: &str) -> String {
    let done = cx.outside(["git"].into_iter().chain(words.split(' '))).run();
    done.exits(0);
    done.stdout()
}

/// Every merge, pull or checkout in a stage that brings such names has them moved.
fn tracked(cx: &Cx) {
    for words in ["init -q -b main .", "config user.email a@example.com", "config user.name a"] {
        git(cx, words);
    }
    git(cx, "commit -q --allow-empty -m one");
    git(cx, "checkout -q -b feat");
    let make = "mkdir -p .vscode sub; echo a >.npmrc; echo a >sub/.envrc; echo '{}' >.vscode/settings.json; echo a >README";
    cx.outside(["sh", "-c", make]).run().exits(0);
    git(cx, "add .npmrc .vscode sub README");
    git(cx, "commit -q -m two");
    git(cx, "checkout -q main");
    fs::create_dir_all(cx.dir().join("sub")).expect("sub");
    cx.bench().give(&cx.dir().join("sub"), cx.is_root());

    let done = cx.sh(&[], "git merge -q feat 2>&1; touch pyvenv.cfg").run();
    done.exits(0).says("a commit would record it so, such as `git commit -a`; `exeat state restore 01");
    for name in [".npmrc", ".vscode", "sub/.envrc"] {
        done.says(&cx.dir().join(name).display().to_string());
        assert!(!cx.dir().join(name).exists(), "{done:?}");
    }
    let line = done.stderr().lines().find(|line| line.contains("git tracks")).expect("a line").to_owned();
    assert!(!line.contains("pyvenv.cfg") && !line.contains("README"), "{line}");
    let run =
        line.split("exeat state restore ").nth(1).and_then(|rest| rest.split('`').next()).expect("a run");

    // The next run reports it before its stage could commit the deletion, in a subdirectory as well.
    let told = "has moved aside: a commit would record it as deleted";
    cx.sh(&[], "true").run().exits(0).says(told).says(&format!("`exeat state restore {run}`"));
    fs::write(cx.dir().join(".npmrc"), "mine").expect(".npmrc");
    let next = cx.sh(&[], "true").run();
    next.exits(0).says(told);
    assert!(!next.stderr().contains(".npmrc"), "{next:?}");
    fs::remove_file(cx.dir().join(".npmrc")).expect(".npmrc");

    // A file that several runs have moved is named once, with the last of them.
    let again = cx.sh(&[], "git checkout -q -- .npmrc; echo last >.npmrc").run();
    again.exits(0).says(".npmrc` was moved to ");
    let next = cx.sh(&[], "true").run();
    let told: Vec<_> = next.exits(0).stderr().lines().map(str::to_owned).collect();
    let told: Vec<_> = told.iter().filter(|line| line.contains("git tracks")).collect();
    let of = |line: &str| line.split("exeat state restore ").nth(1).map(str::to_owned);
    assert_eq!(told.len(), 2, "{next:?}");
    assert!(of(told[0]) > of(told[1]) && told[1].contains(run), "{next:?}");
    assert!(
        told[0].contains(".npmrc") && told[0].contains("has moved aside, as 1 earlier run did:"),
        "{next:?}"
    );
    assert!(!told[1].contains(".npmrc") && told[1].contains("has moved aside: "), "{next:?}");
    // Without a run, the runs are named.
    let unnamed = cx.exeat_plain(["state", "restore"]).run();
    unnamed.exits(2).says(&format!("\n  {run}\n")).says("hint: exeat state restore 01");
    let last = of(told[0]).and_then(|rest| rest.split('`').next().map(str::to_owned)).expect("a run");
    // The same in the directory above. Elsewhere the runs are named with their trees.
    let elsewhere = cx.exeat_plain(["state", "restore"]).cwd(cx.home()).run();
    elsewhere.exits(2).says("several runs have set something aside here:\n");
    let other = cx.home().join("other");
    fs::create_dir(&other).expect("other");
    cx.bench().give(&other, cx.is_root());
    let elsewhere = cx.exeat_plain(["state", "restore"]).cwd(&other).run();
    elsewhere.exits(2).says(&format!("{run}  in {}", cx.dir().display())).says("but in other directories:\n");
    cx.exeat_plain(["state", "restore", &last]).run().exits(0);
    assert_eq!(fs::read_to_string(cx.dir().join(".npmrc")).expect(".npmrc"), "last\n");
    fs::remove_file(cx.dir().join(".npmrc")).expect(".npmrc");

    // Only one run is left here, whatever there is elsewhere.
    cx.sh(&[], "touch .npmrc").cwd(&other).run().exits(0).says(".npmrc` was moved");
    cx.exeat_plain(["state", "restore"]).cwd(&cx.dir().join("sub")).run().exits(0);
    assert_eq!(git(cx, "status --porcelain --untracked-files=no"), "");
    let last = cx.sh(&[], "true").run();
    assert!(!last.stderr().contains("git tracks"), "{last:?}");
}

/// A user can restore the file, or allow a stage to make it with a flag.
fn way_back(cx: &Cx) {
    let done = cx.sh(&[], "touch pyvenv.cfg .npmrc; mkdir .idea").run();
    for name in ["pyvenv.cfg", ".npmrc", ".idea"] {
        done.exits(0).says(&format!("--allow-write {name} leaves it in place"));
    }
    let back = done.stderr().lines().filter(|line| line.contains("`exeat state restore 01")).count();
    assert_eq!(back, 1, "{done:?}");
    done.says("gives back what was moved, if you want it");
    assert!(!done.stderr().contains("git worktree remove"), "{done:?}");
    // git ignores the quarantine, and deletes it with the worktree.
    let make = "git init -q m; git -C m -c user.name=a -c user.email=a@example.test commit -q --allow-empty -m 1; git -C m worktree add -q ../w";
    cx.outside(["sh", "-ec", make]).cwd(cx.dir()).run().exits(0);
    let done = cx.sh(&[], "touch .npmrc").cwd(&cx.dir().join("w")).run();
    done.exits(0).says("do that before `git worktree remove`, which deletes it");
}

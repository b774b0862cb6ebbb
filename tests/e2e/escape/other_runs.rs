//! B26: two runs of one user at the same time.

use e2e::case::{Bridge, Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.bridges("escape::b26_two_at_once_do_not_meet", two_at_once);
    list.once("escape::b26_no_stage_reaches_the_temporary_files_of_a_later_run", later_tmp);
    list.once("escape::b26_no_stage_makes_a_cache_for_another_run", later_cache);
    list.once("escape::b26_two_in_a_set_group_id_directory_do_not_end_each_other", in_shared_group);
}

/// K50: two sandboxes of one user: neither reaches a socket of the other, and policies stay apart.
fn two_at_once(cx: &Cx) {
    let (good, other) = (cx.good(), cx.name("other", e2e::dns::Answer::Addrs(vec![cx.good_addrs().0])));
    let hold = format!("hold {good}:7 1");
    let mut first = cx.probing(&[&format!("{good}:7")], &hold).stdin_open().start();
    first.until_prints("holding 1");
    let probe = cx.probe();
    let script =
        format!("{probe} sockets; {probe} ask {good}:7 | head -n 1; {probe} ask {other}:7 | head -n 1");
    let second = cx.sh(&[&format!("{other}:7")], &script).run();
    let said = second.exits(0).stdout();
    let lines: Vec<&str> = said.lines().collect();
    let own_alone = lines[0] == "none"
        || (cx.bridge() == Bridge::Relay && !lines[0].contains(' ') && lines[0].starts_with("/run/exeat/"));
    assert!(own_alone, "sockets in reach: {}", lines[0]);
    assert!(lines[1].starts_with("HTTP/1.1 403 ") && lines[2].starts_with("HTTP/1.1 200 "), "{said}");
}

/// The directory that `TMPDIR` names lies in the tree of the first run, and is empty when that starts.
fn later_tmp(cx: &Cx) {
    let jobs = cx.dir().join("jobs");
    let elsewhere = cx.home().join("elsewhere");
    for has_mask in [true, false] {
        cx.outside(["sh", "-c", "rm -rf jobs; mkdir -p jobs ../elsewhere"]).cwd(cx.dir()).run().exits(0);
        let place = jobs.to_str().expect("ASCII");
        let look = "echo ready; read line; cat jobs/exeat-*/run-*/secret; for file in jobs/exeat-*/run-*/tool; do echo 'echo evil' > $file; done";
        let first = cx.exeat(["run", "--", "sh", "-c", look]).stdin_open();
        // Without the variable its own `/tmp` is in memory.
        let mut first = if has_mask { first.env("TMPDIR", place) } else { first }.start();
        first.until_prints("ready");
        let work =
            "echo secret > /tmp/secret; echo 'echo good' > /tmp/tool; echo ready; read line; sh /tmp/tool";
        let second =
            cx.exeat(["run", "--", "sh", "-c", work]).cwd(&elsewhere).env("TMPDIR", place).stdin_open();
        let mut second = second.start();
        second.until_prints("ready");
        let first = first.wait();
        assert!(!first.stdout().contains("secret"), "{first:?}");
        second.wait().exits(0).prints("ready\ngood\n");
    }
}

/// The place of a cache is not there yet when the first run starts.
fn later_cache(cx: &Cx) {
    let caches = cx.dir().join("caches");
    let place = caches.to_str().expect("ASCII");
    cx.outside(["mkdir", "-p", place, "other"]).cwd(cx.dir()).run().exits(0);
    let make = "mkdir -p caches/exeat/0123456789abcdef; echo ready; read line";
    let mut first =
        cx.exeat(["run", "--", "sh", "-c", make]).env("XDG_CACHE_HOME", place).stdin_open().start();
    first.until_prints("ready");
    first.wait();
    assert!(!caches.join("exeat/0123456789abcdef").exists());
    // A run with another environment does not know the place.
    let make = "rm -rf caches/exeat; mkdir -p caches/exeat; chmod 700 caches/exeat; echo ready; read line";
    let mut first = cx.exeat(["run", "--", "sh", "-c", make]).stdin_open().start();
    first.until_prints("ready");
    let second =
        cx.exeat(["run", "--", "true"]).cwd(&cx.dir().join("other")).env("XDG_CACHE_HOME", place).run();
    second
        .exits(0)
        .says("the package cache is in memory and ends with the run: the stage of another run can write to");
    first.wait();
}

/// Each new entry of such a directory inherits the bit, exeat's own entries too.
fn in_shared_group(cx: &Cx) {
    cx.outside(["chmod", "g+s", "."]).run().exits(0);
    let mut first = cx.sh(&[], "echo ready; sleep 1; mkdir .vscode; sleep 1").start();
    first.until_prints("ready");
    cx.sh(&[], "sleep 2").run().exits(0);
    first.wait().exits(0);
}

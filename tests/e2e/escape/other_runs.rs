//! B26: two runs of one user at the same time.

use e2e::case::{Bridge, Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.bridges("escape::b26_two_at_once_do_not_meet", two_at_once);
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

/// Each new entry of such a directory inherits the bit, exeat's own entries too.
fn in_shared_group(cx: &Cx) {
    cx.outside(["chmod", "g+s", "."]).run().exits(0);
    let mut first = cx.sh(&[], "echo ready; sleep 1; mkdir .vscode; sleep 1").start();
    first.until_prints("ready");
    cx.sh(&[], "sleep 2").run().exits(0);
    first.wait().exits(0);
}

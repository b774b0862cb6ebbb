//! B19: files that every program of the host reads: the resolver's and the loader's.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b19_files_of_the_system", attack);
}

fn attack(cx: &Cx) {
    let files = [
        "/etc/hosts",
        "/etc/resolv.conf",
        "/etc/ld.so.preload",
        "/etc/ld.so.cache",
        "/etc/passwd",
        "/etc/profile",
    ];
    let probe = cx.probe();
    let script: String = files.map(|path| format!("{probe} write {path}; {probe} create {path}.new; mv {path} {path}.old 2>/dev/null && echo moved\n")).concat();
    let done = cx.sh(&[], &script).run();
    let said = done.stdout();
    assert_eq!(said.lines().count(), 2 * files.len(), "{done:?}");
    for line in said.lines() {
        assert!(["EROFS", "EACCES", "EPERM", "ENOENT"].contains(&line), "{done:?}");
    }
    // The control: the same write to the caller's own file succeeds.
    cx.outside(["sh", "-c", &format!("{probe} create own; {probe} write own")]).run().prints("ok\nok\n");
}

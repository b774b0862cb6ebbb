//! B21: programs that would raise privileges do not.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b21_setuid", attack);
}

fn attack(cx: &Cx) {
    super::refused_inside(cx, "setuid 0", &["EPERM", "EINVAL"]);
    let done = cx.sh(&[], "grep -h '^NoNewPrivs' /proc/self/status /proc/1/status").run();
    let said = done.exits(0).stdout();
    assert!(said.lines().all(|line| line.ends_with('1')), "{done:?}");
}

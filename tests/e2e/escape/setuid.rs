//! N22, B21: programs that would raise privileges do not.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b21_setuid", attack);
    list.bridges("escape::b21_planted_setuid", planted);
}

fn attack(cx: &Cx) {
    super::refused_inside(cx, "setuid 0", &["EPERM", "EINVAL"]);
    let done = cx.sh(&[], "grep -h '^NoNewPrivs' /proc/self/status /proc/1/status").run();
    let said = done.exits(0).stdout();
    assert!(said.lines().all(|line| line.ends_with('1')), "{done:?}");
}

/// A setuid program that the stage leaves would wait for somebody on the host to run it.
fn planted(cx: &Cx) {
    let script = "cp /bin/true left; chmod 4755 left || chmod 2755 left || chmod 755 left; \
                  mkdir -p ordinary; chmod 1755 ordinary; stat -c %a left";
    cx.sh(&[], script).run().exits(0).prints("755\n");
    cx.outside(["sh", "-c", "chmod 4755 left; stat -c %a left"]).run().prints("4755\n");
}

//! B22: a private user namespace gives capabilities in it, and more of the kernel to attack.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b22_user_namespace", attack);
}

fn attack(cx: &Cx) {
    super::works_outside(cx, "userns");
    super::refused_inside(cx, "userns", &["ENOSPC", "EPERM"]);
    let done = cx.sh(&[], "unshare -Urn true 2>/dev/null && echo nested; bwrap --unshare-all --ro-bind / / true 2>/dev/null && echo nested; echo end").run();
    done.prints("end\n");
}

//! B29: the caller's session keyring travels with its processes, through every namespace.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b29_session_keyring", attack);
}

fn attack(cx: &Cx) {
    let name = format!("e2e-{}", cx.good());
    let holder = [cx.probe(), "with-key", &name];
    let outside = cx.outside([cx.probe(), "read-key", &name]).under(holder).run();
    outside.prints("ok: a-secret-of-the-host\n");
    let done = cx.probing(&[], &format!("read-key {name}")).under(holder).run();
    assert!(["EPERM\n", "ENOKEY\n", "ENOSYS\n", "EACCES\n"].contains(&done.stdout().as_str()), "{done:?}");
    super::refused_inside(cx, "keyctl", &["EPERM", "ENOSYS", "EACCES"]);
}

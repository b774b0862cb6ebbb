//! B29: the caller's session keyring is inherited through every namespace.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b29_session_keyring", attack);
}

fn attack(cx: &Cx) {
    super::refused_inside(cx, "keyctl", &["EPERM", "ENOSYS", "EACCES"]);
    let name = format!("e2e-{}", cx.good());
    let holder = [cx.probe(), "with-key", &name];
    let outside = cx.outside([cx.probe(), "read-key", &name]).under(holder).run();
    if outside.stdout() == "EDQUOT\n" {
        // Keyrings of ended processes count against an ordinary user's quota until the kernel collects them, minutes
        // later; after some hundred runs no key fits.
        cx.cannot("the user's quota of keys is used up; it is free again some minutes after the last of these trials");
    }
    outside.prints("ok: a-secret-of-the-host\n");
    cx.outside(["cat", "/proc/keys"]).under(holder).run().shows(&name);
    cx.run(&[], ["cat", "/proc/keys"]).under(holder).run().exits(0).prints("");
    let done = cx.probing(&[], &format!("read-key {name}")).under(holder).run();
    assert!(["EPERM\n", "ENOKEY\n", "ENOSYS\n", "EACCES\n"].contains(&done.stdout().as_str()), "{done:?}");
}

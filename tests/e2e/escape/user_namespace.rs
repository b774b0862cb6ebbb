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
    // The messages blame the kernel's settings, and the end of the run says nothing: the text for agents has their words.
    let readme = cx.sh(&[], r#"cat "$EXEAT""#).run().stdout();
    for (tool, words) in [
        ("bwrap --unshare-all --ro-bind / / true", "No permissions to create new namespace"),
        ("unshare -Ur true", "unshare failed: Operation not permitted"),
    ] {
        let said = cx.sh(&[], &format!("{tool} 2>&1")).run().stdout();
        assert!(said.contains(words) && readme.contains(words), "{tool}: {said}\n{readme}");
    }
}

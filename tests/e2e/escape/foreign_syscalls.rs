//! B07: a filter that looks at one architecture alone is passed by the other's numbers.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b07_i386_and_x32", attack);
}

fn attack(cx: &Cx) {
    if cfg!(not(target_arch = "x86_64")) {
        cx.cannot("only x86-64 has two foreign entries");
    }
    let i386 = cx.probing(&[], "i386").run();
    let killed = i386.code == Some(128 + 31);
    assert!(killed || ["ENOSYS\n", "EPERM\n"].contains(&i386.stdout().as_str()), "{i386:?}");
    let x32 = cx.probing(&[], "x32").run();
    let killed = x32.code == Some(128 + 31);
    assert!(killed || ["ENOSYS\n", "EPERM\n"].contains(&x32.stdout().as_str()), "{x32:?}");
}

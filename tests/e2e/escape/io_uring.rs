//! B06: a ring does its socket calls in the kernel, where no filter looks.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b06_io_uring", attack);
}

fn attack(cx: &Cx) {
    // Where the kernel has it switched off, the sandbox has nothing to show, but nothing to fear either.
    let open = super::outside(cx, "io-uring").stdout() == "ok\n";
    super::refused_inside(cx, "io-uring", &["ENOSYS", "EPERM"]);
    if !open {
        cx.cannot("io_uring is switched off on this machine");
    }
}

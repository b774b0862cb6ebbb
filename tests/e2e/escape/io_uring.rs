//! B06: a ring makes its socket calls in the kernel, where no filter sees them.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b06_io_uring", attack);
}

fn attack(cx: &Cx) {
    // If the kernel has io_uring turned off, the trial shows nothing, and a stage cannot use it either.
    let open = super::outside(cx, "io-uring").stdout() == "ok\n";
    super::refused_inside(cx, "io-uring", &["ENOSYS", "EPERM"]);
    if !open {
        cx.cannot("io_uring is switched off on this machine");
    }
}

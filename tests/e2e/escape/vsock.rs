//! B04: AF_VSOCK is not namespaced: on a virtual machine it reaches the hypervisor and its services.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b04_vsock", attack);
}

fn attack(cx: &Cx) {
    let open = super::outside(cx, "socket 40 1 0").stdout() == "ok\n";
    super::refused_inside(cx, "socket 40 1 0", &["EPERM", "EAFNOSUPPORT", "EACCES"]);
    if !open {
        cx.cannot("this kernel has no AF_VSOCK");
    }
}

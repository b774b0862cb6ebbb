//! B03: sockets without a file belong to a network namespace, and the stage is not in the host's.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b03_abstract_socket", attack);
}

fn attack(cx: &Cx) {
    let name = format!("e2e-{}", cx.good());
    let addr = SocketAddr::from_abstract_name(&name).expect("a name");
    let _listener = UnixListener::bind_addr(&addr).expect("a socket on the host");
    super::works_outside(cx, &format!("abstract {name}"));
    super::refused_inside(cx, &format!("abstract {name}"), &["ECONNREFUSED", "EPERM", "EACCES"]);
}

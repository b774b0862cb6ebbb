//! N22, B30: services on the host's own loopback, directly and through the proxy.

use std::net::TcpListener;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b30_host_loopback", attack);
}

fn attack(cx: &Cx) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a service on the host");
    let port = listener.local_addr().expect("bound").port();
    super::works_outside(cx, &format!("tcp 127.0.0.1:{port}"));
    super::refused_inside(cx, &format!("tcp 127.0.0.1:{port}"), &["ECONNREFUSED"]);
    cx.write(
        "targets",
        &["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]"]
            .map(|host| format!("{host}:{port}\n"))
            .concat(),
    );
    let name = cx.name("inner", e2e::dns::Answer::Addrs(vec!["127.0.0.1".parse().expect("an address")]));
    let rules = [&format!("{name}:*"), &format!("localhost:{port}")];
    let done = cx.probing(&rules.map(String::as_str), "ask-all targets").run();
    done.prints("403\n403\n403\n403\n403\n");
    cx.probing(&rules.map(String::as_str), &format!("ask {name}:{port}")).run().shows("HTTP/1.1 403 ");
}

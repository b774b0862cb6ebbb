//! B05: families beyond INET and INET6 reach devices, the kernel and other namespaces.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b05_socket_families", attack);
}

fn attack(cx: &Cx) {
    // Family, type, protocol: ALG, KEY, BLUETOOTH, TIPC, RDS, CAN, XDP, PACKET; NETLINK uevent, audit, xfrm, sock_diag;
    // raw sockets of both families.
    let refused = [
        "38 5 0", "15 3 2", "31 3 1", "30 1 0", "21 5 0", "29 3 1", "44 3 0", "17 3 3", "16 3 15", "16 3 9",
        "16 3 6", "16 3 4", "2 3 1", "10 3 58",
    ];
    let probe = cx.probe();
    let script: String = refused.iter().map(|words| format!("{probe} socket {words}\n")).collect();
    // The control shows which families this kernel has for a user with enough rights.
    let control = cx.outside(["sh", "-c", &script]).run();
    let control = control.stdout();
    let done = cx.sh(&[], &script).run();
    let said = done.exits(0).stdout();
    assert_eq!((control.lines().count(), said.lines().count()), (refused.len(), refused.len()), "{done:?}");
    let mut shown = 0;
    for ((words, outside), line) in refused.iter().zip(control.lines()).zip(said.lines()) {
        assert!(
            ["EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT"].contains(&line),
            "socket({words}): {line}"
        );
        shown += usize::from(outside == "ok");
    }
    // The four of NETLINK need neither rights nor a module.
    assert!(shown >= 4, "only {shown} of them can be had without the sandbox: {control}");
    // Necessary sockets work: TCP, UDP, and the route family that getifaddrs uses.
    let script: String =
        ["2 1 0", "10 1 0", "2 2 0", "16 3 0"].map(|words| format!("{probe} socket {words}\n")).concat();
    cx.sh(&[], &script).run().prints("ok\nok\nok\nok\n");
}

//! `sandbox.loopback = "proxy"`: the second layer after the empty namespace. The stage connects only to the proxy, by
//! any method, and binds no port.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b05_loopback_ports", attack);
    list.matrix("escape::b05_internet_protocols", protocols);
}

fn attack(cx: &Cx) {
    let probe = cx.probe();
    let good = cx.good();
    let script = format!(
        "{probe} tcp 127.0.0.1:9; {probe} tcp [::1]:9; {probe} listen 8080; {probe} fast-open 127.0.0.1:9
         {probe} ask {good}:443 | head -n 1"
    );
    let with = |flags: &[&str]| {
        let words = [&["run", "--allow", good.as_str()], flags, &["--", "sh", "-c", &script]].concat();
        let done = cx.exeat(words).run();
        let said = done.exits(0).stdout();
        let lines: Vec<String> = said.lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 5, "{done:?}");
        assert!(lines[4].starts_with("HTTP/1.1 200 "), "{done:?}");
        lines[..4].to_vec()
    };
    // Without the flag the stage may use all ports.
    assert_eq!(with(&[]), ["ECONNREFUSED", "ECONNREFUSED", "ok", "EOPNOTSUPP"]);
    assert_eq!(with(&["--set", "sandbox.loopback=proxy"]), ["EACCES", "EACCES", "EACCES", "EOPNOTSUPP"]);
    assert_eq!(
        with(&["--set", "sandbox.loopback=proxy", "--set", "network.socks5=true"]),
        ["EACCES", "EACCES", "EACCES", "EOPNOTSUPP"]
    );
    // On the host each method reaches the kernel's network code.
    let script = format!("{probe} tcp 127.0.0.1:9; {probe} fast-open 127.0.0.1:9");
    let outside = cx.outside(["sh", "-c", &script]).run();
    assert_eq!(outside.stdout(), "ECONNREFUSED\nECONNREFUSED\n", "{outside:?}");
}

/// Multipath TCP bypasses Landlock's rules, and a request for another protocol loads a module into the kernel.
fn protocols(cx: &Cx) {
    // Family, type, protocol: MPTCP of both families, SCTP, DCCP, UDP-Lite, sequenced packets, the old packet socket.
    let odd = ["2 1 262", "10 1 262", "2 1 132", "2 6 33", "2 2 136", "2 5 0", "10 5 132", "2 10 768"];
    let probe = cx.probe();
    let script: String = odd.iter().map(|words| format!("{probe} socket {words}\n")).collect();
    let outside = cx.outside(["sh", "-c", &script]).run();
    assert!(outside.stdout().lines().any(|line| line == "ok"), "none of them is there outside: {outside:?}");
    let done = cx.sh(&[], &script).run();
    assert_eq!(done.exits(0).stdout(), "EPROTONOSUPPORT\n".repeat(odd.len()), "{done:?}");
}

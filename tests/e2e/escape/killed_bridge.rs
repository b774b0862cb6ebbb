//! B24: the stage kills every process that it can see, the relay among them.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.bridges("escape::b24_killed_bridge_opens_nothing", killed_bridge);
}

/// K29: the stage kills everything that it can see. It loses its own network at most.
fn killed_bridge(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    let script = format!(
        "for p in /proc/[0-9]*; do p=${{p#/proc/}}; [ $p = 1 ] || [ $p = $$ ] || kill -9 $p 2>/dev/null; done
         {0} ask {good}:443 | head -n 1
         {0} ask {evil}:443 | head -n 1
         {0} tcp {v4}:443; {0} tcp [{v6}]:443; {0} dns-udp 8.8.8.8:53 x.test",
        cx.probe(),
        good = cx.good(),
        evil = cx.evil(),
    );
    let done = cx.sh(&[&cx.good()], &script).run();
    let said = done.exits(0).stdout();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 5, "{done:?}");
    assert!(
        lines[0] == "ECONNREFUSED" || lines[0] == "HTTP/1.1 200 OK" || lines[0].starts_with("HTTP/1.1 200 "),
        "{said}"
    );
    assert!(lines[1] == "ECONNREFUSED" || lines[1].starts_with("HTTP/1.1 403 "), "{said}");
    assert_eq!(lines[2..], ["ECONNREFUSED"; 3], "{said}");
    done.record();
}

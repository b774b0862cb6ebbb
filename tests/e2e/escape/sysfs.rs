//! B29: /sys names the host's interfaces and devices.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b29_sysfs_and_kcore", attack);
}

fn attack(cx: &Cx) {
    cx.outside(["ls", "/sys/class/net"]).run().exits(0);
    let done = cx.sh(&[], "ls /sys/class/net /sys/devices 2>/dev/null; cat /proc/net/dev | grep -c host0; head -c1 /proc/kcore 2>/dev/null | wc -c").run();
    done.prints("0\n0\n");
}

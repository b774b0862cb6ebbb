//! D12, B31: helpers of the host that would resolve, sign or start things when asked by path.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::d12_resolver_sockets", attack);
}

fn attack(cx: &Cx) {
    let script = "for path in /run/nscd /var/run/nscd /run/systemd /run/dbus /run/docker.sock /var/run/docker.sock \
                  /run/containerd /run/user /run/host /run/snapd.socket /tmp/.X11-unix; do [ -e $path ] && echo $path; done; echo end";
    cx.sh(&[], script).run().exits(0).prints("end\n");
}

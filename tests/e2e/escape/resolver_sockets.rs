//! D12, B31: helpers of the host that resolve, sign or start things on request, by path.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::d12_resolver_sockets", attack);
}

/// The sockets of helpers that a host may have, and their directories.
const SOCKETS: [&str; 8] = [
    "/run/nscd/socket",
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/dbus/system_bus_socket",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/user/0/bus",
    "/run/snapd.socket",
    "/tmp/.X11-unix/X0",
];

/// On a private `/run` and `/tmp`, each socket exists and answers; inside none may, in any view.
fn attack(cx: &Cx) {
    let helper = cx.home().join("helper");
    let listener = UnixListener::bind(&helper).expect("a socket");
    // It reads the question and does not answer: clients continue without an answer.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 64]);
        }
    });
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o777)).expect("chmod");
    let plant = format!(
        "mount -t tmpfs -o mode=755 x /run; mount -t tmpfs -o mode=1777 x /tmp
         for it in {}; do mkdir -p ${{it%/*}}; touch $it; mount --bind {} $it; done",
        SOCKETS.join(" "),
        helper.display()
    );
    let asks: String = SOCKETS.map(|path| format!("{} unix {path}\n", cx.probe())).concat();
    cx.outside(["sh", "-c", &asks]).in_mounts(&plant).run().prints(&"ok\n".repeat(SOCKETS.len()));
    for view in ["project", "host"] {
        let words = ["run", "--fs", view, "--", "sh", "-c", &asks];
        let done = cx.exeat(words).in_mounts(&plant).run();
        let said = done.exits(0).stdout();
        assert_eq!(said.lines().count(), SOCKETS.len(), "{view}: {done:?}");
        for (path, line) in SOCKETS.iter().zip(said.lines()) {
            assert!(
                ["ENOENT", "EPERM", "EACCES", "ECONNREFUSED"].contains(&line),
                "{view}: {path} said {line}"
            );
        }
    }
}

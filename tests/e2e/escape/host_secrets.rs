//! N22: the host's password hashes and the user's keys, in both views that show more than was named.

use std::fs;

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b13_host_secrets", attack);
}

fn attack(cx: &Cx) {
    let keys = cx.home().join(".ssh");
    let key = keys.join("id_ed25519");
    fs::create_dir(&keys).expect(".ssh");
    fs::write(&key, "hunter2").expect("a key");
    for path in [&keys, &key] {
        cx.bench().give(path, cx.is_root());
    }
    let probe = cx.probe();
    let script = format!("{probe} read {}; {probe} read /etc/shadow", key.display());
    let outside = cx.outside(["sh", "-c", &script]).run();
    outside.shows("ok: 7 bytes\n");
    assert_eq!(outside.stdout().matches("ok: ").count(), if cx.is_root() { 2 } else { 1 }, "{outside:?}");
    for view in ["project", "host"] {
        let done = cx.exeat(["run", "--fs", view, "--", "sh", "-c", &script]).run();
        let said = done.exits(0).stdout();
        assert_eq!(said.lines().count(), 2, "{done:?}");
        for line in said.lines() {
            assert!(["ENOENT", "EACCES", "ok: 0 bytes"].contains(&line), "{view}: {done:?}");
        }
    }
}

//! B09: bwrap's own environment and arguments can be read at /proc/1, whatever `--clearenv` does to the stage.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b09_environ_of_pid_one", attack);
}

fn attack(cx: &Cx) {
    let words = [
        "bwrap",
        "--unshare-all",
        "--clearenv",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        cx.probe(),
        "environ",
        "1",
    ];
    let bare = cx.outside(words).env("SECRET", "hunter2").run();
    bare.shows("hunter2");
    let script = format!(
        "{} environ 1; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' ' '; echo end",
        cx.probe()
    );
    let done = cx.sh(&[], &script).env("SECRET", "hunter2").run();
    let said = done.exits(0).stdout();
    assert!(said.ends_with("end\n") && !said.contains("hunter2"), "{done:?}");
    let arguments = cx.run(&[], ["cat", "/proc/1/cmdline"]).run().stdout();
    assert!(
        !arguments.contains("/var/tmp") && !arguments.contains("/run/user"),
        "pid 1 tells of the host: {arguments}"
    );
}

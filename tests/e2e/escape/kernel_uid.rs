//! B10: started by root in another user's directory, the stage runs as that user to the kernel, and not as a root with
//! another number.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.root("escape::b10_root_becomes_the_owner", attack);
}

fn attack(cx: &Cx) {
    let secret = cx.home().join("secret");
    fs::write(&secret, "hunter2").expect("secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("chmod");
    for path in [cx.home(), cx.dir()] {
        chown(path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
    }
    let script = format!(
        "echo made >made; cat /data 2>/dev/null; {0} read /data; {0} write /proc/sys/kernel/core_pattern",
        cx.probe()
    );
    let bind = format!("{}:/data", secret.display());
    let done = cx.exeat(["run", "--ro", &bind, "--", "sh", "-c", &script]).run();
    let said = done.exits(0).stdout();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.first(), Some(&"EACCES"), "a file of root's alone: {done:?}");
    assert!(["EROFS", "EACCES"].contains(&lines[1]), "{done:?}");
    assert_eq!(fs::metadata(cx.dir().join("made")).expect("made").uid(), ORDINARY);
}

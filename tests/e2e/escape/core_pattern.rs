//! B10, B29: a pipe in core_pattern runs on the host as root. For root, a user namespace alone does not prevent the
//! write: the real uid must change and /proc/sys must be read-only.

use e2e::bench::Powers;
use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b10_core_pattern", attack);
    list.root("escape::b10_bare_bwrap_lets_root_write", control);
}

/// The control: the same flags without exeat's protection. Opens the file, and writes nothing.
fn control(cx: &Cx) {
    assert_eq!(cx.bench().powers, Powers::Root);
    let bwrap = "bwrap --unshare-all --unshare-user --uid 65534 --gid 65534 --cap-drop ALL --ro-bind / / --proc /proc";
    let words: Vec<&str> =
        bwrap.split(' ').chain([cx.probe(), "write", "/proc/sys/kernel/core_pattern"]).collect();
    let done = cx.outside(words).run();
    if done.stdout() != "ok\n" {
        cx.cannot("this kernel or bubblewrap already refuses the write");
    }
}

fn attack(cx: &Cx) {
    let probe = cx.probe();
    let script = format!(
        "{probe} write /proc/sys/kernel/core_pattern; {probe} writable-sysctls; {probe} read /etc/shadow
         {probe} write /proc/sysrq-trigger; {probe} read /root"
    );
    let done = cx.sh(&[], &script).run();
    let said = done.stdout();
    let lines: Vec<&str> = said.lines().collect();
    let refused = ["EROFS", "EACCES", "EPERM", "ENOENT"];
    assert!(refused.contains(&lines[0]), "core_pattern: {done:?}");
    assert_eq!(lines[1], "none", "settings that can be written: {done:?}");
    assert!(refused.contains(&lines[2]), "/etc/shadow: {done:?}");
    assert!(refused.contains(&lines[3]), "sysrq: {done:?}");
    assert!(refused.contains(&lines[4]) || lines[4] == "ok: 0 entries", "/root: {done:?}");
}

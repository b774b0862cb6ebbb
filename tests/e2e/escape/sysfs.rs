//! B29: /sys names the host's interfaces and devices.

use e2e::case::{Backend, Cases, Cx};

use super::root_only_files::with_kernel_uid_0;

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b29_sysfs_and_kcore", attack);
    list.root("escape::b29_a_stage_with_root_s_uid_changes_no_setting_of_the_machine", settings);
}

/// The directories are read-only to everybody, and files in them belong to root. Each write changes nothing if it succeeds.
fn settings(cx: &Cx) {
    let script = "
        for file in /proc/irq/default_smp_affinity /proc/irq/*/smp_affinity; do (: >>$file) 2>&- && echo $file; done
        chmod $(stat -c %a /dev/null) /dev/null 2>&- && echo /dev/null; echo end";
    let outside = cx.outside(["sh", "-c", script]).run().exits(0).stdout();
    assert!(outside.contains("default_smp_affinity\n") && outside.contains("/dev/null\n"), "{outside}");
    for backend in Backend::ALL.map(Backend::name) {
        let run = cx.exeat(["run", "--backend", backend, "--", "sh", "-c", script]);
        let done = with_kernel_uid_0(run).run();
        // bubblewrap's own `/dev` has writable nodes.
        let left = if backend == "bwrap-alone" { "/dev/null\nend\n" } else { "end\n" };
        done.exits(0).prints(left);
    }
}

fn attack(cx: &Cx) {
    cx.outside(["ls", "/sys/class/net"]).run().exits(0);
    let done = cx.sh(&[], "ls /sys/class/net /sys/devices 2>/dev/null; cat /proc/net/dev | grep -c host0; head -c1 /proc/kcore 2>/dev/null | wc -c").run();
    done.prints("0\n0\n");
}

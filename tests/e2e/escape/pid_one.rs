//! B23, B38: pid 1 of the sandbox is bubblewrap, and a relay is one more process of exeat's. The stage must not control
//! either.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b23_trace_pid_one", attack);
    list.matrix("escape::b38_memory_of_pid_one", memory);
}

fn attack(cx: &Cx) {
    super::refused_inside(cx, "ptrace 1", &["EPERM", "EACCES", "ENOSYS"]);
    super::refused_inside(cx, "steal-fd 1", &["EPERM", "EACCES", "ENOSYS"]);
    // Every other process that the stage did not start.
    let script = format!(
        "for p in /proc/[0-9]*; do p=${{p#/proc/}}; [ $p = $$ ] || {{ {0} ptrace $p; {0} steal-fd $p; }}; done",
        cx.probe()
    );
    let done = cx.sh(&[], &script).run();
    assert!(done.stdout().lines().count() >= 2, "pid 1 was not tried: {done:?}");
    for line in done.exits(0).stdout().lines() {
        assert!(["EPERM", "EACCES", "ENOSYS", "ESRCH"].contains(&line), "{done:?}");
    }
}

/// The Landlock domain refuses the write; without Landlock pid 1 still has the base filter.
fn memory(cx: &Cx) {
    super::works_outside(cx, "write-memory self");
    let done = cx.probing(&[], "write-memory 1").run();
    if done.stdout() == "ok\n"
        && !std::fs::read_to_string("/sys/kernel/security/lsm").is_ok_and(|all| all.contains("landlock"))
    {
        cx.cannot("this kernel has no Landlock");
    }
    assert!(["EPERM\n", "EACCES\n"].contains(&done.stdout().as_str()), "{done:?}");
}

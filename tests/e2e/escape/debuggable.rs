//! B23: `sandbox.debuggable` lets a stage trace its children, and nothing above it: the Landlock domain then protects
//! pid 1 and the relay.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b23_debuggable_traces_its_own_alone", attack);
}

fn attack(cx: &Cx) {
    let probe = cx.probe();
    // Of the visible processes only those of the stage's domain may be traced; the shell itself is one.
    let script = format!(
        "{probe} trace-child; {probe} ptrace $$
         for p in /proc/[0-9]*; do p=${{p#/proc/}}; read -r name </proc/$p/comm
           case $name in sh|probe) ;; *) echo other: $({probe} ptrace $p) $({probe} write-memory $p) $({probe} steal-fd $p);; esac
         done"
    );
    let done = cx.exeat(["run", "--set", "sandbox.debuggable=true", "--", "sh", "-c", &script]).run();
    let said = done.exits(0).stdout();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["ok", "ok"], "{done:?}");
    assert!(lines.len() > 2, "pid 1 was not tried: {done:?}");
    for line in &lines[2..] {
        let mut answers = line.split(' ').skip(1);
        assert!(answers.all(|answer| ["EPERM", "EACCES"].contains(&answer)), "{done:?}");
    }
    done.record();
    let done = cx.sh(&[], &format!("{probe} trace-child")).run();
    assert_eq!(done.stdout(), "EPERM\n", "{done:?}");
}

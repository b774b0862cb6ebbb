//! B28: the host's processes are not visible, and cannot be signaled or read.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b28_host_processes", attack);
}

fn attack(cx: &Cx) {
    let ours = std::process::id();
    let script = format!(
        "ls -d /proc/[0-9]* | wc -l; kill -0 {ours} 2>/dev/null && echo reached; ls -A /proc/1/root/root /proc/1/root/home 2>/dev/null"
    );
    let done = cx.sh(&[], &script).run();
    let said = done.stdout();
    let count: usize = said.lines().next().and_then(|line| line.trim().parse().ok()).expect("a count");
    assert!(count <= 6, "{count} processes in sight: {done:?}");
    assert!(!said.contains("reached"), "{done:?}");
    for namespace in ["pid", "net", "ipc", "uts", "mnt", "user", "cgroup"] {
        let done = cx.run(&[], ["readlink", &format!("/proc/self/ns/{namespace}")]).run();
        let host = std::fs::read_link(format!("/proc/self/ns/{namespace}")).expect("ours");
        assert_ne!(done.stdout().trim(), host.to_string_lossy(), "the {namespace} namespace is the host's");
    }
}

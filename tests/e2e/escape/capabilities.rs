//! N18, B10: the stage has no capability, in any set, and cannot regain one.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b10_capabilities", attack);
}

fn attack(cx: &Cx) {
    let done = cx
        .sh(&[], "grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/self/status; cat /proc/self/uid_map")
        .run();
    let said = done.exits(0).stdout();
    let value = |name: &str| {
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name} in {said}"));
        line.trim_start_matches(':').trim().to_string()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(value(set), "0000000000000000", "{set}");
    }
    assert_eq!((value("NoNewPrivs").as_str(), value("Seccomp").as_str()), ("1", "2"), "{said}");
    let probe = cx.probe();
    let script = format!(
        "{probe} socket 17 3 768; {probe} socket 2 3 1; {probe} bpf; chroot / true 2>/dev/null || echo no"
    );
    let done = cx.sh(&[], &script).run();
    assert_eq!(done.stdout().lines().count(), 4, "{done:?}");
    for line in done.stdout().lines() {
        assert!(["EPERM", "EACCES", "EAFNOSUPPORT", "ENOSYS", "no"].contains(&line), "{done:?}");
    }
}

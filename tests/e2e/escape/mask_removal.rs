//! B10, B35: taking a mask away, or mounting something over it.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b10_mask_removal", attack);
}

fn attack(cx: &Cx) {
    let secrets = cx.dir().join("secrets");
    std::fs::create_dir(&secrets).expect("secrets");
    std::fs::write(secrets.join("key"), "hunter2").expect("secret");
    let probe = cx.probe();
    let script = format!(
        "{probe} unmount secrets; {probe} unmount /proc; {probe} mount-tmpfs /tmp; {probe} read secrets/key
         grep -rl hunter2 . /tmp 2>/dev/null || echo nothing"
    );
    let done = cx.exeat(["run", "--mask", "secrets", "--", "sh", "-c", &script]).run();
    let said = done.stdout();
    let lines: Vec<&str> = said.lines().collect();
    for line in &lines[..3] {
        assert!(["EPERM", "EINVAL", "EACCES", "ENOSYS"].contains(line), "{done:?}");
    }
    assert!(["ENOENT", "EACCES", "ok: 0 bytes"].contains(&lines[3]), "{done:?}");
    assert_eq!(lines[4], "nothing", "{done:?}");
}

//! B10: started by root in a directory of root's own, with the whole tree of the host in view: files that only root may
//! read stay unreadable, and so does a closed directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use e2e::case::{Cases, Cx};
use e2e::run::Run;

pub(super) fn cases(list: &mut Cases) {
    list.root("escape::b10_files_of_root_s_alone", attack);
}

/// The control: without CAP_SYS_ADMIN the stage keeps root's uid.
pub(super) fn with_kernel_uid_0(run: Run<'_>) -> Run<'_> {
    run.under(["setpriv", "--bounding-set", "-sys_admin", "--"])
}

fn attack(cx: &Cx) {
    let (secret, closed) = (cx.home().join("secret"), cx.home().join("closed"));
    fs::write(&secret, "hunter2").expect("a secret");
    fs::create_dir(&closed).expect("a directory");
    fs::write(closed.join("open"), "hunter2").expect("a file in it");
    for (path, mode) in [(&secret, 0o600), (&closed, 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let (secret, closed) = (secret.display(), closed.display());
    let probe = cx.probe();
    let script = format!(
        "{probe} read {secret}; {probe} read {closed}/open; {probe} read {closed}; {probe} write {secret}
         chmod 644 {secret} 2>&1 || echo no; mv {secret} here 2>&1 || echo no"
    );
    let run = || cx.exeat(["run", "--fs", "host", "--", "sh", "-c", &script]);
    let done = run().run();
    let said = done.exits(0).stdout();
    assert!(!said.contains("ok"), "{done:?}");
    assert_eq!(said.matches("EACCES\n").count(), 4, "{done:?}");
    assert_eq!(said.matches("no\n").count(), 2, "{done:?}");
    let done = with_kernel_uid_0(run()).run();
    done.shows("ok: 7 bytes\nok: 7 bytes\nok: 1 entries\n").says("keeps root's kernel uid");
}

//! B10: started by root in another user's directory, the stage runs as that user for the kernel, and not as root with
//! another number.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};

use super::root_only_files::with_kernel_uid_0;

pub(super) fn cases(list: &mut Cases) {
    list.root("escape::b10_root_becomes_the_owner", attack);
    list.root("escape::b10_an_owner_s_uid_holds_in_part", in_part);
    list.root("escape::b10_no_other_user_to_be_had", no_other_user);
    list.root("escape::b10_the_owner_where_no_uid_is_left", few_uids);
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

/// The owner's other processes may look into the sandbox, so this is reported, and refused with `--require full`.
fn in_part(cx: &Cx) {
    chown(cx.dir(), Some(ORDINARY), Some(ORDINARY)).expect("chown");
    let words = "the stage is the owner of the working directory, and no user of its own: exeat has no CAP_SYS_ADMIN here";
    let full = with_kernel_uid_0(cx.exeat(["run", "--require", "full", "--", "touch", "started"])).run();
    full.exits(125).says("identity: partial").says(words);
    assert!(!cx.dir().join("started").exists());
    let done = with_kernel_uid_0(cx.sh(&[], "echo made >made")).run();
    done.exits(0).says(words).says("start exeat as that user");
    assert_eq!(fs::metadata(cx.dir().join("made")).expect("made").uid(), ORDINARY);
}

/// Root that may not become another user does not run the stage as root instead.
fn no_other_user(cx: &Cx) {
    chown(cx.dir(), Some(ORDINARY), Some(ORDINARY)).expect("chown");
    for caps in ["-setuid", "-setgid", "-setuid,-kill"] {
        let less = cx.sh(&[], "touch started").under(["setpriv", "--bounding-set", caps, "--"]);
        less.run().exits(125).says("cannot become the stage's user, which takes CAP_SETUID and CAP_SETGID");
    }
    assert!(!cx.dir().join("started").exists());
}

/// A container with fewer users than a private one needs.
fn few_uids(cx: &Cx) {
    const OWNER: u32 = 1001;
    chown(cx.dir(), Some(OWNER), Some(OWNER)).expect("chown");
    let script = "unshare --user sleep 100 & p=$!
        until [ \"$(readlink /proc/$p/ns/user)\" != \"$(readlink /proc/self/ns/user)\" ]; do sleep 0.1; done
        echo 0 0 2000 >/proc/$p/uid_map; echo 0 0 2000 >/proc/$p/gid_map
        nsenter --user --target $p -- \"$@\"; code=$?; kill $p; exit $code";
    let run = |words: &[&str]| {
        let words = ["run"].iter().chain(words).copied().collect::<Vec<_>>();
        cx.exeat(words).under(["sh", "-c", script, "sh"]).run()
    };
    let done = run(&["--dry-run", "--", "true"]);
    let line = "partial: the stage is the owner of the working directory, and no user of its own: the users of this container have no uid to spare";
    assert!(done.exits(0).stdout().contains(line), "{done:?}");
    run(&["--", "touch", "made"]).exits(0).says("no uid to spare");
    assert_eq!(fs::metadata(cx.dir().join("made")).expect("made").uid(), OWNER);
}

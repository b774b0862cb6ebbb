//! B10: host processes with the stage's kernel uid. They may look into the sandbox (`/proc/PID/root`), where this uid
//! owns root's files, and no filter applies to them: a setuid file made there belongs to root on the disk.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

use e2e::bench::ORDINARY;
use e2e::case::{Cases, Cx};
use e2e::wait_for;

pub(super) fn cases(list: &mut Cases) {
    list.root("escape::b10_nobody_shares_the_stage_s_uid", attack);
}

fn attack(cx: &Cx) {
    // The directory is root's, and then another user's, with an additional tree of root's.
    for owner in [0, ORDINARY] {
        let trees = cx.home().join(format!("trees-{owner}"));
        fs::create_dir(&trees).expect("a directory");
        chown(cx.dir(), Some(owner), Some(owner)).expect("chown");
        let mark = format!("7654.{owner}1");
        let shown = trees.display().to_string();
        let live = cx.exeat(["run", "--rw", &shown, "--", "sleep", &mark]).start();
        let stage = wait_for(Duration::from_secs(10), "the stage", || stage(&mark));
        let uid = fs::metadata(format!("/proc/{stage}")).expect("the stage").uid();
        let plant = |uid: u32, name: &str| {
            let script = format!(
                "cp /bin/true /proc/{stage}/root{shown}/{name} && chmod 4755 /proc/{stage}/root{shown}/{name}"
            );
            let ids = uid.to_string();
            let words = ["--reuid", &ids, "--regid", &ids, "--clear-groups", "sh", "-c", &script];
            Command::new("setpriv").args(words).output().expect("setpriv").status.success()
        };
        for other in [65_534, ORDINARY] {
            assert_ne!(uid, other);
            assert!(!plant(other, "planted"), "a process of uid {other} is in");
        }
        assert!(!trees.join("planted").exists());
        // The control: a process with that uid gets in, and its files belong to root.
        assert!(plant(uid, "control"), "the control failed, so the trial would say nothing");
        let meta = fs::metadata(trees.join("control")).expect("made");
        assert_eq!((meta.uid(), meta.permissions().mode() & 0o7777), (0, 0o4755));
        live.signal(nix::sys::signal::Signal::SIGKILL);
        live.wait();
    }
}

/// Finds the host process with this word on its command line that is in another user namespace.
fn stage(word: &str) -> Option<i32> {
    let own = fs::read_link("/proc/self/ns/user").expect("a namespace");
    fs::read_dir("/proc").expect("/proc").flatten().find_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let is_it =
            line.starts_with(b"sleep\0") && line.split(|byte| *byte == 0).any(|it| it == word.as_bytes());
        let other = fs::read_link(entry.path().join("ns/user")).ok()? != own;
        (is_it && other).then(|| entry.file_name().to_str()?.parse().ok())?
    })
}

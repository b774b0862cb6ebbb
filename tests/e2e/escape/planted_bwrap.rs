//! B17, N19: an earlier stage has put a `bwrap` on the PATH of the next run.

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.users("escape::b17_planted_bwrap_is_ignored", attack);
}

fn attack(cx: &Cx) {
    let planted = cx.write("bwrap", "#!/bin/sh\necho planted\ntouch planted-ran\n");
    std::fs::set_permissions(&planted, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let path = format!("{}:{}", cx.dir().display(), e2e::bench::PATH);
    cx.sh(&[], "echo real").env("PATH", &path).run().exits(0).prints("real\n");
    assert!(!cx.dir().join("planted-ran").exists());
}

//! B27, B36: the directory for the proxy's socket has an unpredictable name, nobody else can enter it, and planted
//! names do not redirect it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b36_names_of_run_directories", names);
    list.users("escape::b27_socket_paths", paths);
}

fn entries(dir: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the runtime directory").flatten();
    entries.map(|entry| entry.file_name().into_string().expect("ASCII")).collect()
}

/// A stage guesses: it makes directories and links under likely names before the run.
fn names(cx: &Cx) {
    let runtime = cx.home().join("runtime");
    let victim = cx.home().join("victim");
    for dir in [&runtime, &victim] {
        fs::create_dir(dir).expect("a directory");
        cx.bench().give(dir, cx.is_root());
    }
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).expect("chmod");
    for name in ["exeat", "exeat-", "exeat-000000", "exeat-XXXXXX", "exeat-proxy.sock"] {
        symlink(&victim, runtime.join(name)).expect("a link");
    }
    let planted = entries(&runtime).len();
    let start = || {
        cx.sh(&[], "echo ready; exec sleep 30")
            .env("XDG_RUNTIME_DIR", runtime.to_str().expect("ASCII"))
            .start()
    };
    let mut first = start();
    let mut second = start();
    first.until_prints("ready");
    second.until_prints("ready");
    // Unlinked at the hello: while the stages run there is nothing to find or to replace.
    assert_eq!(entries(&runtime).len(), planted, "{:?}", entries(&runtime));
    assert!(entries(&victim).is_empty(), "{:?}", entries(&victim));
    for live in [first, second] {
        live.signal(nix::sys::signal::Signal::SIGTERM);
        live.wait();
    }
    assert_eq!(entries(&runtime).len(), planted);
}

/// A path that bind(2) would cut or refuse prevents the run, with a message.
fn paths(cx: &Cx) {
    let long = cx.home().join("l".repeat(100));
    fs::create_dir(&long).expect("a directory");
    cx.bench().give(&long, cx.is_root());
    fs::set_permissions(&long, fs::Permissions::from_mode(0o700)).expect("chmod");
    let done = cx.sh(&[], "touch ran").env("XDG_RUNTIME_DIR", long.to_str().expect("ASCII")).run();
    // Root's stage that becomes another user has its socket in /tmp, whatever the variable contains.
    if done.code == Some(125) {
        done.says("socket");
        assert!(!cx.dir().join("ran").exists(), "{done:?}");
    } else {
        assert!(cx.is_root(), "{done:?}");
    }
    assert!(entries(&long).is_empty(), "{:?}", entries(&long));
}

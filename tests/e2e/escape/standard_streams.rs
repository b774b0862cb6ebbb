//! B20: a standard stream is an object of the host's. It must not become a path to the host's network or files.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use e2e::case::{Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.bridges("escape::b20_directory_as_standard_input", directory);
    list.users("escape::b20_sockets_as_standard_streams", sockets);
    list.bridges("escape::b20_reopened_for_writing", reopened);
}

fn directory(cx: &Cx) {
    let made = cx.dir().join("made");
    cx.sh(&[], "touch made").redirect("</").run().exits(2).says("standard input is a directory");
    for path in ["</proc/self/mem", "<>/proc/self/comm"] {
        let done = cx.sh(&[], "touch made").redirect(path).run();
        done.exits(2).says("standard input is a file of /proc that gives access to a process");
    }
    assert!(!made.exists(), "nothing may have run");
    cx.sh(&[], "touch made").redirect("</proc/self/comm").run().exits(0);
    assert!(made.exists());
    fs::remove_file(&made).expect("made");
}

/// A socket that can still be connected, bound or accepted on would act in the host's network: refused, on each stream.
fn sockets(cx: &Cx) {
    let probe = cx.bench().bin.join("probe").display().to_string();
    let with = |kind: &str, stream: &str| {
        cx.sh(&[], "touch made").under([probe.as_str(), "with-stream", kind, stream]).run()
    };
    let made = cx.dir().join("made");
    let kinds = [
        ("unconnected", "a Unix socket that is not connected"),
        ("bound", "a Unix socket that is not connected"),
        ("listener", "a Unix socket that listens"),
        ("listener-in-a-file", "a Unix socket that listens"),
        ("packets", "a Unix socket of datagrams or packets"),
        ("packets-listener", "a Unix socket of datagrams or packets"),
        ("packets-pair", "a Unix socket of datagrams or packets"),
        ("datagrams", "a Unix socket of datagrams or packets"),
        ("datagram-pair", "a Unix socket of datagrams or packets"),
        ("tcp", "a network socket, or one of the kernel's"),
        ("udp", "a network socket, or one of the kernel's"),
        ("netlink", "a network socket, or one of the kernel's"),
        ("vsock", "a network socket, or one of the kernel's"),
        ("alg", "a network socket, or one of the kernel's"),
        ("path", "a directory"),
        ("path-of-a-file", "a path that is not open (O_PATH)"),
    ];
    for (kind, what) in kinds {
        let done = with(kind, "0");
        if ["EAFNOSUPPORT\n", "ENODEV\n"].contains(&done.stdout().as_str()) {
            eprintln!("skipped: this kernel has no socket `{kind}`");
            continue;
        }
        done.exits(2).says(&format!("standard input is {what}")).says("put a pipe between");
        assert!(!made.exists(), "{kind}: nothing may have run");
    }
    for kind in ["unconnected", "listener", "datagram-pair"] {
        with(kind, "1").exits(2).says("standard output is a Unix socket");
        // The message cannot be shown.
        with(kind, "2").exits(2);
        assert!(!made.exists(), "{kind}: nothing may have run");
    }
    // Many programs give their children a socketpair as a pipe.
    for (kind, stream) in
        [("pair", "0"), ("pair", "1"), ("pair", "2"), ("pair-without-peer", "0"), ("connected", "0")]
    {
        with(kind, stream).exits(0);
        fs::remove_file(&made).unwrap_or_else(|error| panic!("{kind} as {stream}: {error}"));
    }
}

/// A9: outside, `/proc/self/fd/0` reopens a read-only file for writing; the control shows it.
fn reopened(cx: &Cx) {
    let script = "{ echo changed >/proc/self/fd/0; } 2>/dev/null; cat";
    let file = cx.home().join("kept");
    let from = format!("<{}", file.display());
    let owner = fs::metadata(cx.dir()).expect("the directory").uid();
    for (inside, left) in [(true, "as it was\n"), (false, "changed\n")] {
        fs::write(&file, "as it was\n").expect("a file outside the view");
        chown(&file, Some(owner), None).expect("the caller's file");
        let run = if inside { cx.sh(&[], script) } else { cx.outside(["sh", "-c", script]) };
        run.redirect(&from).run().exits(0);
        assert_eq!(fs::read_to_string(&file).expect("the file"), left, "inside: {inside}");
    }
}

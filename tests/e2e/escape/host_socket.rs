//! B01, B02: a socket in the file system is reachable through any mount, read-only or not. It must be hidden, or the
//! family must be refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use e2e::case::{Backend, Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b01_host_socket", attack);
    list.matrix("escape::b01_host_socket_in_host_view", in_host_view);
    list.users("escape::b01_the_relay_dials_no_socket_that_the_stage_names", by_the_relay);
    list.users("escape::b01_unix_sockets_by_word", by_word);
    list.users("escape::b01_a_socket_beside_programs", beside_programs);
    list.users("escape::b01_host_socket_in_working_directory", in_working_directory);
}

const GONE: [&str; 4] = ["ENOENT", "EACCES", "EPERM", "ECONNREFUSED"];

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("chmod");
}

fn attack(cx: &Cx) {
    for place in [Path::new("/tmp"), cx.home()] {
        let stream = place.join(format!("{}.sock", cx.good()));
        let datagram = place.join(format!("{}.dgram", cx.good()));
        let _listener = UnixListener::bind(&stream).expect("a socket on the host");
        let _receiver = UnixDatagram::bind(&datagram).expect("a socket on the host");
        open_to_all(&stream);
        open_to_all(&datagram);
        for words in [format!("unix {}", stream.display()), format!("unix-dgram {}", datagram.display())] {
            super::works_outside(cx, &words);
            super::refused_inside(cx, &words, &GONE);
        }
    }
    let done = cx.probing(&[], "sockets").run();
    let said = done.stdout();
    assert!(
        said == "none\n" || said.trim_end().split(' ').all(|path| path.starts_with("/run/exeat/")),
        "{done:?}"
    );
}

/// A server of the host has its socket in the project.
fn in_working_directory(cx: &Cx) {
    let stream = cx.dir().join("server.sock");
    let _listener = UnixListener::bind(&stream).expect("a socket on the host");
    open_to_all(&stream);
    super::works_outside(cx, "unix server.sock");
    super::refused_inside(cx, "unix server.sock", &GONE);
}

/// A socket in a tree that PATH or a variable names, whose name the kernel does not have, because it was made under
/// another one.
fn beside_programs(cx: &Cx) {
    let tools = cx.home().join("tools");
    fs::create_dir_all(tools.join("bin")).expect("directories");
    let (made, socket) = (cx.home().join("made.sock"), tools.join("run.sock"));
    let _listener = UnixListener::bind(&made).expect("a socket on the host");
    open_to_all(&made);
    fs::rename(&made, &socket).expect("a rename");
    let words = format!("unix {}", socket.display());
    super::works_outside(cx, &words);
    let path = format!("{}/bin:{}", tools.display(), e2e::bench::PATH);
    for (name, value) in [("PATH", path.as_str()), ("VIRTUAL_ENV", tools.to_str().expect("ASCII"))] {
        let done = cx.probing(&[], &words).env(name, value).run();
        assert!(GONE.iter().any(|code| done.stdout().contains(code)), "{name}: {done:?}");
        done.says("the stage gets no Unix sockets of its own").says("run.sock");
        // The setting allows the socket, as with the host's own tree.
        let words = [
            "run",
            "--set",
            "sandbox.unix_sockets=on",
            "--",
            cx.probe(),
            "unix",
            socket.to_str().expect("ASCII"),
        ];
        let done = cx.exeat(words).env(name, value).run();
        assert!(!GONE.iter().any(|code| done.stdout().contains(code)), "the socket is not there: {done:?}");
    }
}

/// The whole tree is visible, so the family is refused, and socketpairs stay.
fn in_host_view(cx: &Cx) {
    let stream = cx.home().join("host.sock");
    let datagram = cx.home().join("host.dgram");
    let _listener = UnixListener::bind(&stream).expect("a socket on the host");
    let _receiver = UnixDatagram::bind(&datagram).expect("a socket on the host");
    open_to_all(&stream);
    open_to_all(&datagram);
    let probe = cx.probe();
    let script = format!(
        "{probe} unix {}; {probe} unix-dgram {}; {probe} socket 1 1 0",
        stream.display(),
        datagram.display()
    );
    cx.outside(["sh", "-c", &script]).run().prints("ok\nok\nok\n");
    let done = cx.exeat(["run", "--fs", "host", "--", "sh", "-c", &script]).run();
    assert_eq!(done.exits(0).stdout().lines().count(), 3, "{done:?}");
    for line in done.stdout().lines() {
        assert!(GONE.contains(&line) || line == "EAFNOSUPPORT", "{done:?}");
    }
}

/// The relay may connect to Unix sockets where the stage may not. The stage puts a link to a host's socket where the proxy's is.
fn by_the_relay(cx: &Cx) {
    let (good, decoy) = (cx.good(), cx.home().join("decoy.sock"));
    let listener = UnixListener::bind(&decoy).expect("a socket on the host");
    listener.set_nonblocking(true).expect("fcntl");
    open_to_all(&decoy);
    let script = format!(
        "mv /run/exeat /run/moved && mkdir /run/exeat
         mv /run/exeat/proxy.sock /run/exeat/moved; touch /run/exeat/file
         ln -s {} /run/exeat/proxy.sock && echo exchanged
         timeout 5 {} ask {}:443 | head -n 1 | cut -c1-12",
        decoy.display(),
        cx.probe(),
        good,
    );
    for backend in Backend::ALL {
        for view in ["host", "project"] {
            let words = ["run", "--backend", backend.name(), "--set", "sandbox.bridge=relay", "--fs", view];
            let words = words.into_iter().chain(["--allow", good.as_str(), "--", "sh", "-c", &script]);
            let done = cx.exeat(words).run();
            let reached = listener.accept().is_ok();
            assert!(!reached, "the relay connected to a socket of the host: {done:?}");
            done.exits(0).prints("HTTP/1.1 200\n");
        }
    }
}

/// `sandbox.unix_sockets`: the setting overrides the view's default, and the value that allows sockets is reported and
/// recorded.
fn by_word(cx: &Cx) {
    let stream = cx.home().join("word.sock");
    let _listener = UnixListener::bind(&stream).expect("a socket on the host");
    open_to_all(&stream);
    let probe = cx.probe();
    let script = format!("{probe} unix {}; {probe} socket 1 1 0", stream.display());
    let with = |view: &str, word: &str| {
        cx.exeat([
            "run",
            "--fs",
            view,
            "--set",
            &format!("sandbox.unix_sockets={word}"),
            "--",
            "sh",
            "-c",
            &script,
        ])
        .run()
    };
    assert_eq!(with("project", "off").exits(0).stdout(), "EPERM\nEPERM\n");
    assert_eq!(with("project", "on").exits(0).stdout(), "ENOENT\nok\n");
    assert_eq!(with("host", "auto").exits(0).stdout(), "EPERM\nEPERM\n");
    let open = with("host", "on");
    open.exits(0).prints("ok\nok\n").says("--set sandbox.unix_sockets=on");
    let held = open.record().events("run_start")[0]["enforcement"]["fs"].to_string();
    assert!(held.contains("partial: the stage can connect to sockets of the host"), "{held}");
    let full = ["run", "--fs", "host", "--set", "sandbox.unix_sockets=on", "--require", "full", "--", "true"];
    cx.exeat(full).run().exits(125);
    let ceiling = cx.write("ceiling.toml", "schema = 1\n[network]\nallow = []\n");
    let below = [
        "run",
        "--ceiling",
        ceiling.to_str().expect("ASCII"),
        "--fs",
        "host",
        "--set",
        "sandbox.unix_sockets=on",
    ];
    let done = cx.exeat(below.iter().copied().chain(["--", "sh", "-c", &script])).run();
    assert_eq!(done.exits(0).stdout(), "EPERM\nEPERM\n");
}

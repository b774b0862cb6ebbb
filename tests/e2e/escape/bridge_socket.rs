//! B25, B26: the bind-mounted socket of the bridge. With handoff it is closed once the stage runs; with a relay it is
//! the same server with the same policy.

use e2e::case::{Bridge, Cases, Cx};

pub(super) fn cases(list: &mut Cases) {
    list.matrix("escape::b25_bridge_socket", attack);
    list.matrix("escape::r11_no_descriptor_gets_to_the_bridge", passed);
}

fn attack(cx: &Cx) {
    let hex = |name: &str| {
        let head = format!("CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n");
        head.bytes().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    cx.write("evil", &format!("quiet 3000\nsend {}\n", hex(&cx.evil())));
    // `-type s` would ask the directory, which knows only the empty file below the mounted socket.
    let script = format!(
        "for socket in $(find /run /tmp -exec test -S {{}} ';' -print); do echo $socket >&2; {} bytes-unix $socket evil; done; echo done",
        cx.probe()
    );
    let done = cx.sh(&[&cx.good()], &script).run();
    let said = done.exits(0).stdout();
    let refusal: String = b"HTTP/1.1 403".iter().map(|byte| format!("{byte:02x}")).collect();
    let answers: Vec<&str> = said.lines().filter(|line| *line != "done").collect();
    assert!(!answers.is_empty(), "no socket was found, so nothing was tried: {done:?}");
    for line in answers {
        let dead = ["ECONNREFUSED", "EPERM", "EACCES", "ENOENT"].contains(&line);
        let judged = cx.bridge() == Bridge::Relay && line.starts_with(&format!("closed {refusal}"));
        assert!(dead || judged, "the socket said {line}: {done:?}");
    }
    assert!(said.ends_with("done\n"), "{done:?}");
    done.record();
}

/// R11: the kernel refuses to send a descriptor to the proxy, whose close could block it.
fn passed(cx: &Cx) {
    let dead = if cx.bridge() == Bridge::Relay { "EPERM" } else { "ECONNREFUSED" };
    cx.needs_linux(6, 16);
    cx.probing(&[], "pass-to /run/exeat/proxy.sock").run().exits(0).prints(&format!("{dead}\n"));
}

//! The name inside TLS: it must be the requested name, before a byte goes out.

use std::sync::atomic::Ordering;

use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("tls::t01_other_name_in_the_hello", other_name);
    list.bridges("tls::t02_no_name_in_the_hello", no_name);
    list.bridges("tls::t06_not_tls_on_443", not_tls);
    list.bridges("tls::other_ports_carry_anything", other_ports);
    list.matrix("tls::l13_a_second_hello_names_the_same_host", second_hello);
}

/// Checks that nothing of the tunnel has reached the origin.
fn origin_heard_nothing(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    for visit in [v4, v6].iter().flat_map(|addr| cx.bench().internet.visits(*addr)) {
        assert_eq!(visit.bytes.load(Ordering::SeqCst), 0, "{visit:?}");
    }
}

/// Returns the last decision about the only connection.
fn last_decision(done: &e2e::run::Done) -> serde_json::Value {
    let log = done.record();
    let decisions = log.events("decision");
    (*decisions.last().expect("a decision")).clone()
}

/// T07, X03: CONNECT names the granted host, the hello another one.
fn other_name(cx: &Cx) {
    let connect_to = format!("{}:443:{}:443", cx.evil(), cx.good());
    let url = cx.evil_url();
    let curl = ["curl", "-sSk", "--connect-to", &connect_to, &url];
    let done = cx.run(&[&cx.good()], curl).run();
    assert_ne!(done.code, Some(0), "{done:?}");
    let decision = last_decision(&done);
    assert_eq!(
        (&decision["verdict"], &decision["reason"]),
        (&"deny".into(), &"sni_mismatch".into()),
        "{decision}"
    );
    assert_eq!(decision["sni"], cx.evil().as_str());
    origin_heard_nothing(cx);
}

fn no_name(cx: &Cx) {
    let connect_to = format!("{}:443:{}:443", cx.good_addrs().0, cx.good());
    let url = format!("https://{}/", cx.good_addrs().0);
    let done = cx.run(&[&cx.good()], ["curl", "-sSk", "--connect-to", &connect_to, &url]).run();
    assert_ne!(done.code, Some(0), "{done:?}");
    assert_eq!(last_decision(&done)["reason"], "sni_missing");
    origin_heard_nothing(cx);
}

fn not_tls(cx: &Cx) {
    let good = cx.good();
    let done = cx.probing(&[&good], &format!("echo {good}:443 100")).run();
    assert!(!done.stdout().starts_with("ok"), "{done:?}");
    assert_eq!(last_decision(&done)["reason"], "not_tls");
    origin_heard_nothing(cx);
}

fn other_ports(cx: &Cx) {
    let good = cx.good();
    cx.probing(&[&format!("{good}:7")], &format!("echo {good}:7 100")).run().exits(0).prints("ok: 100\n");
}

/// L13: the origin asks for a second hello, because the first has no key for its curves. One for the same host passes;
/// one for another host is refused before a byte goes up.
fn second_hello(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let done =
        cx.run(&[&good], ["curl", "-sSk", "--tlsv1.3", "--curves", "P-521:X25519", &cx.good_url()]).run();
    done.exits(0).shows("hello from");
    assert_eq!(done.record().events("decision").len(), 1);
    for (second, reason) in [(&evil, Some("sni_mismatch")), (&good, None)] {
        let script = format!("{SECOND_HELLO}\nrun('{good}', '{good}', '{second}')\n");
        let done = cx.run(&[&good], ["/usr/bin/python3", "-c", &script]).run();
        done.exits(0).shows("asked again: True");
        let log = done.record();
        let decisions = log.events("decision");
        assert_eq!(decisions.get(1).and_then(|late| late["reason"].as_str()), reason, "{done:?}");
        done.shows(if reason.is_none() { "answer: 22 2" } else { "answer: 21 " });
    }
}

/// Sends two hellos: the first has no key, so that any server asks again.
const SECOND_HELLO: &str = r#"
import os, socket, struct
def ext(kind, body): return struct.pack(">HH", kind, len(body)) + body
def counted(width, body): return len(body).to_bytes(width, "big") + body
session, random = os.urandom(32), os.urandom(32)
def hello(name, key):
    share = b"\x00\x1d" + counted(2, b"\x09" + bytes(31)) if key else b""
    body = ext(0, counted(2, b"\0" + counted(2, name.encode()))) + ext(10, counted(2, b"\x00\x1d"))
    body += ext(13, counted(2, b"\x08\x04\x04\x03\x04\x01\x08\x07")) + ext(43, counted(1, b"\x03\x04"))
    body += ext(45, counted(1, b"\x01")) + ext(51, counted(2, share))
    body = b"\x03\x03" + random + counted(1, session) + counted(2, b"\x13\x01\x13\x02\x13\x03") + counted(1, b"\0") + counted(2, body)
    return b"\x16\x03\x01" + counted(2, b"\x01" + counted(3, body))
RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
def run(host, first, second):
    s = socket.create_connection(("127.0.0.1", 3128)); s.settimeout(10)
    s.sendall(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
    s.recv(4096)
    s.sendall(hello(first, False))
    print("asked again:", RETRY in s.recv(65536))
    s.sendall(b"\x14\x03\x03\x00\x01\x01" + hello(second, True))
    got = s.recv(65536)
    while got[:1] == b"\x14": got = got[6:] or s.recv(65536)
    print("answer:", *got[:1], *got[5:6])
"#;

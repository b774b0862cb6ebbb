//! The name inside TLS: it has to be the one that was asked for, before a byte goes out.

use std::sync::atomic::Ordering;

use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("tls::t01_other_name_in_the_hello", other_name);
    list.bridges("tls::t02_no_name_in_the_hello", no_name);
    list.bridges("tls::t06_not_tls_on_443", not_tls);
    list.bridges("tls::other_ports_carry_anything", other_ports);
}

/// Nothing of the tunnel may have reached the origin.
fn origin_heard_nothing(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    for visit in [v4, v6].iter().flat_map(|addr| cx.bench().internet.visits(*addr)) {
        assert_eq!(visit.bytes.load(Ordering::SeqCst), 0, "{visit:?}");
    }
}

/// The last word about the only connection.
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

//! SOCKS5: a second entry with the same rules if enabled, and no entry otherwise.

use std::sync::atomic::Ordering;
use std::time::Duration;

use e2e::case::{Cases, Cx};
use e2e::run::Run;
use e2e::wait_for;

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("socks::k37_curl_and_plain_traffic", clients);
    list.matrix("socks::k37_off_by_default", off);
    list.matrix("socks::s02_s03_s08_rules_hold", rules_hold);
    list.bridges("socks::s04_s07_nothing_else_is_spoken", nothing_else);
    list.bridges("socks::t01_other_name_in_the_hello", other_name);
    list.bridges("socks::other_host_in_plain_http", other_host);
    list.bridges("socks::many_of_both_kinds", many);
    list.bridges("socks::k37_by_a_policy_file", by_policy);
    list.once("socks::k37_the_host_side_alone", alone);
}

/// Prepares `exeat run --set network.socks5=true --allow RULE... -- sh -c SCRIPT`.
fn sh<'a>(cx: &'a Cx, rules: &[&str], script: &str) -> Run<'a> {
    cx.probe();
    let rules = rules.iter().flat_map(|rule| ["--allow", *rule]);
    cx.exeat(
        ["run", "--set", "network.socks5=true"].into_iter().chain(rules).chain(["--", "sh", "-c", script]),
    )
}

/// K37, K49, K50: curl with an option and with `ALL_PROXY`, traffic that is neither TLS nor HTTP, and a server that
/// speaks first.
fn clients(cx: &Cx) {
    let good = cx.good();
    let url = cx.good_url();
    let script = format!(
        "env | grep -i ^all_proxy= | sort
         curl -sS --max-time 20 --cacert ca.pem --noproxy '' --socks5-hostname 127.0.0.1:1080 {url}
         unset HTTPS_PROXY https_proxy
         curl -sS --max-time 20 --cacert ca.pem {url}
         ./probe socks-echo {good}:7 200000
         ./probe socks-greeting {good}:5432"
    );
    let done = sh(cx, &[&format!("{good}:443,7,5432")], &script).run();
    let hello = format!("hello from {good}: GET 0\n");
    done.exits(0).silent().prints(&format!(
        "ALL_PROXY=socks5h://127.0.0.1:1080\nall_proxy=socks5h://127.0.0.1:1080\n{hello}{hello}ok: 200000\n220 origin ready\n"
    ));
    let log = done.record();
    let decisions = log.events("decision");
    assert_eq!(decisions.len(), 4);
    for decision in decisions {
        assert_eq!(
            (&decision["via"], &decision["verdict"]),
            (&"socks5".into(), &"allow".into()),
            "{decision}"
        );
    }
}

/// Without `network.socks5` nothing listens, no variable names it, and the sandbox has no second socket.
fn off(cx: &Cx) {
    let probe = cx.probe();
    let done = cx
        .sh(
            &[&cx.good()],
            &format!("env | grep -i all_proxy; {probe} tcp 127.0.0.1:1080; ls /run/exeat/socks5.sock"),
        )
        .env("ALL_PROXY", "socks5h://127.0.0.1:1080")
        .run();
    done.exits(2).prints("ECONNREFUSED\n");
    assert!(done.record().events("decision").is_empty());
}

/// The rules equal those of CONNECT: a literal needs an IP rule, a name its port, a private address a separate rule;
/// refusals are reported the same way.
fn rules_hold(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let (v4, v6) = cx.good_addrs();
    let asked = [
        ("socks", format!("{good}:22"), 2, "port"),
        ("socks", format!("{evil}:443"), 2, "default"),
        ("socks", format!("{v4}:443"), 2, "ip_literal"),
        ("socks", format!("[{v6}]:443"), 2, "ip_literal"),
        ("socks", "127.0.0.1:3128".into(), 2, "ip_literal"),
        ("socks", "[::1]:22".into(), 2, "ip_literal"),
        ("socks", "[::ffff:127.0.0.1]:22".into(), 2, "ip_literal"),
        ("socks", "169.254.169.254:80".into(), 2, "metadata_ip"),
        ("socks", "10.0.0.1:443".into(), 2, "ip_literal"),
        ("socks-name", format!("{v4} 443"), 2, "ip_literal"),
        ("socks-name", "127.0.0.1 22".into(), 2, "ip_literal"),
        ("socks-name", "169.254.169.254 80".into(), 2, "metadata_ip"),
        ("socks-name", "[::1] 22".into(), 2, "ip_literal"),
        ("socks-name", "0x7f.1 443".into(), 1, "malformed"),
        ("socks-name", format!("{good}:443 443"), 1, "malformed"),
    ];
    let script: String =
        asked.iter().map(|(probe, words, ..)| format!("./probe {probe} {words}\n")).collect();
    let script = format!(
        "{script}curl -sS --max-time 20 --socks5-hostname 127.0.0.1:1080 {} || echo $?\n",
        cx.evil_url()
    );
    let done = sh(cx, &[&good], &format!("{script}grep -c reason $EXEAT_DENIALS")).run();
    let codes: String = asked.iter().map(|(_, _, code, _)| format!("code {code}\n")).collect();
    // Each of the ten targets has one line. Malformed requests have no target to name.
    done.exits(0).prints(&format!("{codes}97\n10\n"));
    done.says("allowed on 443 only").says(&format!("--allow {good}:22"));
    let log = done.record();
    let decisions = log.events("decision");
    let reasons: Vec<&str> = decisions.iter().filter_map(|decision| decision["reason"].as_str()).collect();
    let expected: Vec<&str> = asked.iter().map(|(.., reason)| *reason).chain(["default"]).collect();
    assert_eq!(reasons, expected, "{decisions:?}");
    assert!(decisions.iter().all(|decision| decision["via"] == "socks5"));
    assert!(cx.bench().dns.queries(&good).is_empty(), "D10: nothing was granted, so nothing is looked up");
    for addr in [v4, v6] {
        assert!(cx.bench().internet.visits(addr).is_empty());
    }
}

/// BIND and UDP ASSOCIATE are refused; HTTP is closed without an answer, and so is SOCKS5 on the port of HTTP.
fn nothing_else(cx: &Cx) {
    let good = cx.good();
    let send = |bytes: &[u8]| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("send {hex}\n")
    };
    let connect = format!("CONNECT {good}:443 HTTP/1.1\r\nHost: {good}:443\r\n\r\n");
    cx.write("connect", &send(connect.as_bytes()));
    cx.write("greeting", &send(&[5, 1, 0]));
    let script = "./probe socks-command 2
         ./probe socks-command 3
         https_proxy=http://127.0.0.1:1080 HTTPS_PROXY=http://127.0.0.1:1080 ./probe bytes connect
         ./probe bytes greeting | head -c 31";
    let done = sh(cx, &[&good], script).run();
    // Closed without a byte, and `HTTP/1.1 400`.
    done.exits(0).prints("code 7\ncode 7\nclosed \nclosed 485454502f312e3120343030");
    let log = done.record();
    let reasons: Vec<_> = log.events("decision").iter().map(|decision| decision["reason"].clone()).collect();
    assert_eq!(reasons, ["scheme", "scheme", "malformed", "malformed"]);
}

/// A hello with another name reaches nobody, as with CONNECT.
fn other_name(cx: &Cx) {
    let connect_to = format!("{}:443:{}:443", cx.evil(), cx.good());
    let script = format!(
        "unset HTTPS_PROXY https_proxy; curl -sSk --max-time 20 --connect-to {connect_to} {}",
        cx.evil_url()
    );
    let done = sh(cx, &[&cx.good()], &script).run();
    assert_ne!(done.code, Some(0), "{done:?}");
    let log = done.record();
    let decisions = log.events("decision");
    assert_eq!(decisions.last().expect("a decision")["reason"], "sni_mismatch");
    let (v4, v6) = cx.good_addrs();
    for visit in [v4, v6].iter().flat_map(|addr| cx.bench().internet.visits(*addr)) {
        assert_eq!(visit.bytes.load(Ordering::SeqCst), 0, "{visit:?}");
    }
}

/// Only requests for the tunnel's host pass, as in a tunnel of CONNECT to port 80.
fn other_host(cx: &Cx) {
    let good = cx.good();
    let curl = format!("curl -sS --max-time 20 --noproxy '' --socks5-hostname 127.0.0.1:1080 http://{good}/");
    let rule = format!("{good}:80");
    let done = sh(cx, &[&rule], &curl).run();
    assert!(done.exits(0).stdout().starts_with(&format!("hello from {good}")), "{done:?}");
    let done =
        sh(cx, &[&rule], &format!("{curl} -H 'Host: {}' -w '%{{http_code}}' -o /dev/null", cx.evil())).run();
    done.prints("400");
    let log = done.record();
    let decisions = log.events("decision");
    let last = decisions.last().expect("a decision");
    assert_eq!((&last["via"], &last["reason"]), (&"socks5".into(), &"host_mismatch".into()), "{last}");
}

/// Parallel connections on both ports, each judged by its own entry.
fn many(cx: &Cx) {
    let good = cx.good();
    let script = format!(
        "for n in 1 2 3 4 5 6 7 8; do
           ./probe socks-echo {good}:7 300000 & ./probe echo {good}:7 300000 &
         done; wait"
    );
    let done = sh(cx, &[&format!("{good}:7")], &script).run();
    done.exits(0).prints(&"ok: 300000\n".repeat(16));
    let log = done.record();
    let via = |word: &str| log.events("decision").iter().filter(|decision| decision["via"] == word).count();
    assert_eq!((via("socks5"), via("connect")), (8, 8));
}

/// The key of a policy file, for a run and for `exeat env`.
fn by_policy(cx: &Cx) {
    let good = cx.good();
    cx.write("p.toml", &format!("[network]\nsocks5 = true\nallow = [\"{good}:7\"]\n"));
    let command = ["--", cx.probe(), "socks-echo", &format!("{good}:7"), "100"];
    cx.exeat(["run", "--policy", "p.toml"].into_iter().chain(command)).run().exits(0).prints("ok: 100\n");
    for words in [&["env", "--policy", "p.toml"][..], &["env", "--set", "network.socks5=true"]] {
        cx.exeat(words).run().exits(0).shows("ALL_PROXY").shows("socks5h://127.0.0.1:1080");
    }
    assert!(!cx.exeat(["env"]).run().stdout().contains("ALL_PROXY"));
}

/// `exeat proxy` with a listener for each.
fn alone(cx: &Cx) {
    let good = cx.good();
    let [http, socks] = ["http.sock", "socks.sock"].map(|name| cx.home().join(name));
    let places = [&http, &socks].map(|path| format!("unix:{}", path.display()));
    let live = cx
        .exeat_plain(["proxy", "--listen", &places[0], "--listen-socks5", &places[1], "--allow", &good])
        .start();
    wait_for(Duration::from_secs(10), "both sockets", || (http.exists() && socks.exists()).then_some(()));
    let length = u8::try_from(good.len()).expect("a short name");
    let asked = [&[5, 1, 0, 5, 1, 0, 3, length], good.as_bytes(), &443_u16.to_be_bytes()].concat();
    let hex: String = asked.iter().map(|byte| format!("{byte:02x}")).collect();
    cx.write("asked", &format!("send {hex}\n"));
    let socket = socks.to_str().expect("ASCII");
    cx.outside([cx.probe(), "bytes-unix", socket, "asked"])
        .run()
        .exits(0)
        .shows("050005000001000000000000\n");
    live.signal(nix::sys::signal::Signal::SIGTERM);
    let done = live.wait();
    done.exits(0).says(&format!("listening on {}, for SOCKS5 on {}", places[0], places[1]));
    assert!(!http.exists() && !socks.exists());
}

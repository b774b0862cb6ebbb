//! Granted hosts work, without configuration and byte for byte.

use std::sync::atomic::Ordering;

use e2e::bench::OWN4;
use e2e::case::{Cases, Cx};
use e2e::dns::Answer;

pub(crate) fn cases(list: &mut Cases) {
    list.once("allow::bench_answers_without_a_sandbox", bench_answers);
    list.matrix("allow::curl_gets_an_answer", curl_gets_an_answer);
    list.matrix("allow::granted_literal", granted_literal);
    list.matrix("allow::hosts_file_name", hosts_file_name);
    list.bridges("allow::wildcard_reaches_below", wildcard_reaches_below);
    list.bridges("allow::other_ports_when_named", other_ports_when_named);
    list.bridges("allow::private_address_with_an_ip_rule", private_address);
    list.bridges("allow::falls_back_to_the_other_family", falls_back);
    list.bridges("allow::policy_file", policy_file);
    list.bridges("allow::rules_from_a_file", rules_from_a_file);
    list.once("allow::other_clients", other_clients);
}

/// The control: without a sandbox every name is reachable, so the refusals of other trials mean something. Also shows
/// that the search list of resolv.conf applies to names that are not absolute.
fn bench_answers(cx: &Cx) {
    cx.outside(cx.curl(&cx.good_url())).run().exits(0).prints(&format!("hello from {}: GET 0\n", cx.good()));
    assert!(
        !cx.bench().dns.queries(&format!("{}.evil-search", cx.good())).is_empty(),
        "ndots:5 has no effect"
    );
}

fn curl_gets_an_answer(cx: &Cx) {
    let done = cx.run(&[&cx.good()], cx.curl(&cx.good_url())).run();
    done.exits(0).prints(&format!("hello from {}: GET 0\n", cx.good())).silent();

    let log = done.record();
    let decision = log.decision(&cx.good());
    assert_eq!(decision["verdict"], "allow");
    assert_eq!(decision["reason"], "rule");
    assert_eq!(decision["via"], "connect");
    assert_eq!(decision["rule"], cx.good().as_str());
    assert_eq!(decision["rule_src"], "--allow");
    let (v4, v6) = cx.good_addrs();
    for addr in [v4, v6] {
        assert!(decision["ips"].to_string().contains(&addr.to_string()), "{decision}");
    }
    let visits: Vec<_> = [v4, v6].iter().flat_map(|addr| cx.bench().internet.visits(*addr)).collect();
    assert_eq!(visits.len(), 1, "one connection: {visits:?}");
    assert_eq!(visits[0].sni(), Some(cx.good()));
    let close = log.close_of(decision);
    assert_eq!(close["bytes_up"], visits[0].bytes.load(Ordering::SeqCst), "{close}");
    assert_eq!(close["ip"], visits[0].to.ip().to_string().as_str(), "{close}");
}

fn granted_literal(cx: &Cx) {
    let (v4, v6) = cx.good_addrs();
    for target in [v4.to_string(), format!("[{v6}]")] {
        let done = cx.run(&[&target], ["curl", "-sSk", &format!("https://{target}/")]).run();
        done.exits(0).prints(&format!("hello from {target}: GET 0\n"));
        done.record();
    }
    assert!(cx.bench().dns.queries(&v4.to_string()).is_empty(), "a literal is never looked up");
}

/// The hosts file comes before the resolver, with exact names.
fn hosts_file_name(cx: &Cx) {
    cx.probing(&["hosts-file.test:7"], "echo hosts-file.test:7 1000").run().exits(0).prints("ok: 1000\n");
    assert!(cx.bench().dns.queries("hosts-file").is_empty(), "a name of the hosts file is not looked up");
    let done = cx.probing(&["hosts-private.test"], "ask hosts-private.test:443").run();
    done.shows("HTTP/1.1 403 ");
    assert_eq!(done.record().decision("hosts-private.test")["reason"], "private_ip");
}

fn wildcard_reaches_below(cx: &Cx) {
    let deep = cx.name("a.b", Answer::Addrs(vec![cx.good_addrs().0]));
    let base = deep.trim_start_matches("a.b.").to_string();
    let rule = format!("*.{base}:7");
    cx.probing(&[&rule], &format!("echo {deep}:7 10")).run().exits(0).prints("ok: 10\n");
    cx.probing(&[&rule], &format!("ask {base}:7")).run().shows("HTTP/1.1 403 ");
}

fn other_ports_when_named(cx: &Cx) {
    let good = cx.good();
    let rule = format!("{good}:5432,7");
    cx.probing(&[&rule], &format!("echo {good}:7 10")).run().exits(0).prints("ok: 10\n");
    cx.probing(&[&rule], &format!("greeting {good}:5432"))
        .run()
        .exits(0)
        .prints("220 origin ready and then we\n");
    let done = cx.probing(&[&rule], &format!("ask {good}:443")).run();
    done.shows("this host is allowed on port");
    assert_eq!(done.record().decision(&good)["reason"], "port");
}

/// A name that resolves into private space needs an additional IP rule.
fn private_address(cx: &Cx) {
    // The guard treats the host's own address as private; it is the only special address that the bench can serve.
    let name = cx.name("own", Answer::Addrs(vec![OWN4.into()]));
    let listener = std::net::TcpListener::bind((OWN4, 0)).expect("a port on the host");
    let port = listener.local_addr().expect("bound").port();
    let rule = format!("{name}:{port}");
    cx.probing(&[&rule], &format!("ask {name}:{port}")).run().shows("HTTP/1.1 403 ");
    let address = format!("{OWN4}:{port}");
    cx.probing(&[&rule, &address], &format!("ask {name}:{port}")).run().shows("HTTP/1.1 200 ");
}

/// The first address refuses the connection; the other one answers.
fn falls_back(cx: &Cx) {
    let (v4, _) = cx.good_addrs();
    let closed = "2606:2800:200::1:1".parse().expect("an address on the link where nobody is");
    let name = cx.name("dual", Answer::Addrs(vec![closed, v4]));
    cx.probing(&[&format!("{name}:7")], &format!("echo {name}:7 10")).run().exits(0).prints("ok: 10\n");
}

fn policy_file(cx: &Cx) {
    let policy = cx.home().join("policy.toml");
    let text = format!("schema = 1\nstage = \"nightly\"\n\n[network]\nallow = [\n  \"{}\",\n]\n", cx.good());
    std::fs::write(&policy, text).expect("policy");
    let mut words = vec!["run".into(), "--policy".into(), policy.display().to_string(), "--".into()];
    words.extend(cx.curl(&cx.good_url()));
    let done = cx.exeat(words).run();
    done.exits(0).shows("hello from");
    let log = done.record();
    let decision = log.decision(&cx.good());
    assert!(
        decision["rule_src"].as_str().is_some_and(|place| place.ends_with("policy.toml:6")),
        "{decision}"
    );
    assert_eq!(decision["stage"], "nightly");
}

fn rules_from_a_file(cx: &Cx) {
    let list = cx.home().join("hosts.txt");
    std::fs::write(&list, format!("# hosts\n\n{} # ours\n!{}\n", cx.good(), cx.evil())).expect("list");
    let mut words = vec!["run".into(), "--allow".into(), format!("@{}", list.display()), "--".into()];
    words.extend(cx.curl(&cx.good_url()));
    let done = cx.exeat(words).run();
    done.exits(0).shows("hello from");
    let log = done.record();
    assert!(
        log.decision(&cx.good())["rule_src"].as_str().is_some_and(|place| place.ends_with("hosts.txt:3"))
    );
}

/// Common clients work with no configuration but the certificate authority.
fn other_clients(cx: &Cx) {
    let url = cx.good_url();
    let python =
        format!("import urllib.request; print(urllib.request.urlopen('{url}').read().decode(), end='')");
    let clients = [
        ("/usr/bin/python3", format!("SSL_CERT_FILE=ca.pem python3 -c \"{python}\"")),
        ("/usr/bin/wget", format!("wget -q -O - --ca-certificate=ca.pem {url}")),
    ];
    for (program, script) in clients {
        cx.needs(&[program]);
        let done = cx.sh(&[&cx.good()], &script).run();
        done.exits(0).prints(&format!("hello from {}: GET 0\n", cx.good()));
    }
}

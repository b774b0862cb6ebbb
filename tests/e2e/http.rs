//! Plain HTTP, as a request and in a tunnel, and TLS on other ports than 443: what a stage can abuse.

use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("http::clients_get_their_answer", clients);
    list.bridges("http::p01_one_decision_for_both_forms", denied);
    list.bridges("http::p02_host_is_the_target_s", fronting);
    list.bridges("http::p02_a_tunnel_to_port_80_is_for_its_host", fronting_in_a_tunnel);
    list.bridges("http::d14_a_tunnel_to_port_80_carries_one_request", one_request);
    list.once("http::p02_fronting_works_where_the_check_is_given_up", fronting_with_the_check_off);
    list.bridges("http::t01_tls_on_any_port_names_its_host", tls_elsewhere);
    list.bridges("http::l14_plain_http_elsewhere_is_for_its_host", plain_http_elsewhere);
}

/// Clients use the variables, with and without a tunnel.
fn clients(cx: &Cx) {
    let good = cx.good();
    let url = format!("http://{good}/some/where?q=1");
    let python =
        format!("import urllib.request; print(urllib.request.urlopen('{url}').read().decode(), end='')");
    let says = format!("hello from {good}: GET 0\n");
    for words in [
        vec!["curl", "-sSf", &url],
        vec!["curl", "-sSf", "-p", &url],
        vec!["wget", "-q", "-O", "-", &url],
        vec!["python3", "-c", &python],
    ] {
        let done = cx.run(&[&format!("{good}:80")], &words).run();
        done.exits(0).prints(&says).silent();
        let log = done.record();
        let decision = log.decision(&good);
        let tunnelled = words.contains(&"-p");
        assert_eq!((&decision["verdict"], &decision["port"]), (&"allow".into(), &80.into()));
        assert_eq!(decision["via"], if tunnelled { "connect" } else { "http" });
        let text = format!("{:?}", log.records());
        assert!(!text.contains("some/where") && !text.contains("q=1"), "A03: {text}");
    }
    let body = "x".repeat(100_000);
    let post = ["curl", "-sSf", "--data-binary", &body, &url].map(str::to_owned);
    cx.run(&[&format!("{good}:80")], post)
        .run()
        .exits(0)
        .prints(&format!("hello from {good}: POST 100000\n"));
}

/// P01: a request is refused wherever CONNECT is, and is listed at the end.
fn denied(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    for (rules, host) in [(format!("{good}:80"), &evil), (good.clone(), &good)] {
        let done = cx.run(&[&rules], ["curl", "-sS", &format!("http://{host}/")]).run();
        done.shows(&format!("exeat denied {host}:80")).says(&format!("--allow {host}:80"));
        assert_eq!(done.record().decision(host)["verdict"], "deny");
    }
    assert!(cx.bench().internet.visits(cx.good_addrs().0).is_empty());
    assert!(cx.bench().internet.visits(cx.good_addrs().1).is_empty());
    assert!(cx.bench().dns.queries(&evil).is_empty());
}

fn heads(cx: &Cx) -> String {
    let (v4, v6) = cx.good_addrs();
    let visits = [v4, v6].into_iter().flat_map(|addr| cx.bench().internet.visits(addr));
    visits.map(|visit| String::from_utf8_lossy(&visit.wire()).into_owned()).collect()
}

/// P02, X03: the granted host's address, with another host's name in the request.
fn fronting(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let host = format!("Host: {evil}");
    let done =
        cx.run(&[&format!("{good}:80")], ["curl", "-sS", "-H", &host, &format!("http://{good}/")]).run();
    done.exits(0).prints(&format!("hello from {good}: GET 0\n"));
    assert!(!heads(cx).contains(&evil), "{}", heads(cx));
}

/// P02, P12, P18, X03: a request in a tunnel to port 80 must name the tunnel's host, or none of it goes upstream.
fn fronting_in_a_tunnel(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let host = format!("Host: {evil}");
    let url = format!("http://{good}/");
    let done = cx.run(&[&format!("{good}:80")], ["curl", "-sS", "-p", "-H", &host, &url]).run();
    done.shows("the request does not name the host of this tunnel");
    let log = done.record();
    let decisions = log.events("decision");
    assert_eq!(decisions.len(), 2, "the tunnel, and the refusal in it");
    assert_eq!(decisions[1]["reason"], "host_mismatch");
    assert_eq!(heads(cx), "");
    // Bytes that are not HTTP, and a proxy request.
    for line in ["SSH-2.0-x", &format!("CONNECT {evil}:443 HTTP/1.1")] {
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT {good}:80 HTTP/1.1\\r\\nHost: {good}:80\\r\\n\\r\\n' >&3; \
             head -c 39 <&3 >/dev/null; printf '{line}\\r\\nHost: {good}\\r\\n\\r\\n' >&3; cat <&3"
        );
        let done = cx.run(&[&format!("{good}:80")], ["bash", "-c", &script]).run();
        done.shows("HTTP/1.1 400 ");
        assert_eq!(heads(cx), "", "{line}");
    }
}

/// D14, P16: the decision covers one request. A second one after it, for any host, goes nowhere.
fn one_request(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    for host in [&good, &evil] {
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT {good}:80 HTTP/1.1\\r\\nHost: {good}:80\\r\\n\\r\\n' >&3; \
             head -c 39 <&3 >/dev/null; printf 'GET /first HTTP/1.1\\r\\nHost: {good}\\r\\n\\r\\nGET /second HTTP/1.1\\r\\n\
             Host: {host}\\r\\n\\r\\n' >&3; cat <&3"
        );
        let done = cx.run(&[&format!("{good}:80")], ["bash", "-c", &script]).run();
        assert_eq!(done.exits(0).stdout().matches("HTTP/1.1 ").count(), 1, "{done:?}");
        assert_eq!(done.record().events("decision").len(), 1);
    }
    let heads = heads(cx);
    assert_eq!((heads.matches("GET /first ").count(), heads.contains("second")), (2, false), "{heads}");
}

/// Shows that the attacks above work if a rule turns the check off.
fn fronting_with_the_check_off(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let host = format!("Host: {evil}");
    let rule = format!("{good}:80");
    let mut words =
        vec!["run".to_owned(), "--allow".into(), rule.clone(), "--tls-off".into(), rule, "--".into()];
    words.extend(["curl", "-sS", "-p", "-H", &host, &format!("http://{good}/")].map(str::to_owned));
    cx.exeat(words).run().exits(0).prints(&format!("hello from {evil}: GET 0\n"));
}

/// T01: TLS is checked on every port. The tunnel is for one host, the hello names another.
fn tls_elsewhere(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let rule = format!("{good}:8443");
    let done = cx.run(&[&rule], cx.curl(&format!("https://{good}:8443/"))).run();
    done.exits(0).shows("hello from");
    assert_eq!(done.record().events("close")[0]["sni"], good.as_str());
    let seen = heads(cx).len();

    let there = format!("{evil}:8443:{good}:8443");
    let url = format!("https://{evil}:8443/");
    let front = ["curl", "-sSk", "-p", "--connect-to", &there, &url];
    let done = cx.run(&[&rule], front).run();
    assert_ne!(done.code, Some(0));
    let log = done.record();
    assert_eq!(log.events("decision")[1]["reason"], "sni_mismatch");
    assert_eq!(heads(cx).len(), seen, "zero upstream");
    // With the check off it works.
    let mut words =
        vec!["run".to_owned(), "--allow".into(), rule.clone(), "--tls-off".into(), rule, "--".into()];
    words.extend(front.map(str::to_owned));
    cx.exeat(words).run().exits(0).shows("hello from");
}

/// L14: a tunnel to another port that starts with a request is checked like one to port 80.
fn plain_http_elsewhere(cx: &Cx) {
    let (good, evil) = (cx.good(), cx.evil());
    let rule = format!("{good}:8443");
    let url = format!("http://{good}:8443/");
    let host = format!("Host: {evil}");
    for (words, reason) in [
        (vec!["curl", "-sS", "-p", "-H", &host, &url], "host_mismatch"),
        (vec!["curl", "-sS", "-p", "-X", "get", "-H", &host, &url], "host_mismatch"),
        (vec!["curl", "-sS", "-p", "--http2-prior-knowledge", &url], "malformed"),
    ] {
        let done = cx.run(&[&rule], words).run();
        let log = done.record();
        let decisions = log.events("decision");
        assert_eq!(decisions.len(), 2, "{decisions:?}");
        assert_eq!(decisions[1]["reason"], reason);
        assert_eq!(log.events("close")[0]["bytes_up"], 0);
    }
    assert_eq!(heads(cx), "");
}

//! K36, K49: tests connections through another proxy, which is a script here.

use exeat_policy::{Bypass, Credentials, UpstreamUrl};

use super::*;
use crate::UpstreamProxy;

/// The name of the proxies in these tests. The table of names has their address.
const NAME: &str = "proxy.test";

const YES: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Sends everything through the proxy at this port, which asks for credentials.
fn chained(rules: &[&str], port: u16, bypass: &str) -> Setup {
    let mut setup = setup(rules);
    setup.names.push((NAME, Ok(vec![IpAddr::from(Ipv4Addr::LOCALHOST)])));
    setup.limits.connect = Duration::from_millis(600);
    let mut list = Bypass::default();
    if !bypass.is_empty() {
        bypass.split(',').for_each(|entry| list.add(entry).unwrap());
    }
    let url: UpstreamUrl = format!("http://{NAME}:{port}").parse().unwrap();
    let credentials = Credentials::parse(b"user:hunter2").unwrap();
    setup.upstream = Some(UpstreamProxy::new(url, list, Some(credentials)));
    setup
}

fn asked_for(target: &str) -> Vec<u8> {
    let basic = "dXNlcjpodW50ZXIy";
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {basic}\r\n\r\n")
        .into()
}

/// Sends a request with fields that must not reach the next proxy, and bytes after it.
async fn early(proxy: &Proxy, way: Transport, target: &str, first: &[u8]) -> (Box<dyn Client>, String) {
    let mut client = proxy.connect(way).await;
    let head = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic c3RhZ2U6eA==\r\nUser-Agent: x\r\n\r\n"
    );
    client.write_all(&[head.as_bytes(), first].concat()).await.unwrap();
    let head = read_head(&mut *client).await;
    (client, head)
}

/// K49, P13, D10: the upstream proxy resolves the name, and exeat does not. Bytes right after either head belong to
/// the tunnel.
#[tokio::test]
async fn lets_the_upstream_proxy_resolve_a_name() {
    for way in TRANSPORTS {
        let upstream =
            origin(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nVia: 1.1 x\r\n\r\nwelcome").await;
        let proxy = chained(&["allowed.test:7777"], upstream.port(), "").start().await;
        let (mut client, head) = early(&proxy, way, "allowed.test:7777", b"early and ").await;
        assert_eq!(head, "HTTP/1.1 200 Connection established\r\n\r\n");
        client.write_all(b"later").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut *client).await, b"welcome");
        assert_eq!(upstream.bytes(), [&asked_for("allowed.test:7777")[..], b"early and later"].concat());

        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["allow:rule"]);
        let (decision, close) = (ended.events("decision")[0], ended.events("close")[0]);
        assert_eq!(decision["upstream"], format!("{NAME}:{}", upstream.port()));
        assert!(decision.get("ips").is_none() && decision["host"] == "allowed.test", "{decision}");
        assert_eq!((&close["bytes_up"], &close["bytes_down"]), (&15.into(), &7.into()));
        assert_eq!((&close["ip"], &close["ended_by"]), (&"127.0.0.1".into(), &"client".into()));
        ended.closes_follow_decisions();
        assert_eq!(ended.asked, [NAME]);
        assert!(!format!("{:?}", ended.lines).contains("hunter2"));
    }
}

/// Early bytes of the server, in one segment with the answer or much later, are neither lost nor delayed.
#[tokio::test]
async fn leaves_tunnel_bytes_after_the_upstream_answer() {
    let welcome = vec![b'w'; 300_000];
    let answer: &'static [u8] = Box::leak([YES, &welcome].concat().into_boxed_slice());
    let upstream = origin(answer).await;
    let proxy = chained(&["allowed.test:7777"], upstream.port(), "").start().await;
    let (mut client, head) = proxy.ask(Transport::Unix, "allowed.test:7777").await;
    assert!(head.starts_with("HTTP/1.1 200 "));
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut *client).await, welcome);
    proxy.end().await;
}

/// D10: an attack: a denied name never reaches the upstream proxy, and that proxy's own name is not looked up for
/// it.
#[tokio::test]
async fn d10_keeps_denied_names_from_the_upstream_proxy() {
    let upstream = origin(YES).await;
    let proxy = chained(&["allowed.test:7777", "!10.0.0.1"], upstream.port(), "").start().await;
    for target in ["evil.test:7777", "allowed.test:7778", "10.0.0.1:7777", "169.254.169.254:7777"] {
        let (_, head) = proxy.ask(Transport::Tcp, target).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    }
    let ended = proxy.end().await;
    assert_eq!(upstream.connections(), 0);
    assert_eq!(ended.asked, Vec::<String>::new());
    assert!(ended.events("decision").iter().all(|line| line.get("upstream").is_none()));
}

/// D15: a literal is judged here, and forwarded as it is.
#[tokio::test]
async fn d15_judges_a_literal_before_the_upstream_proxy() {
    let upstream = origin(YES).await;
    let proxy = chained(&["10.1.2.3:7777", "203.0.113.0/24:7777"], upstream.port(), "").start().await;
    let (client, head) = proxy.ask(Transport::Tcp, "10.1.2.3:7777").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    drop(client);
    let (_, head) = proxy.ask(Transport::Tcp, "127.0.0.1:7777").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    let ended = proxy.end().await;
    assert_eq!(upstream.bytes(), asked_for("10.1.2.3:7777"));
    assert_eq!(ended.decisions(), ["allow:rule", "deny:ip_literal"]);
    assert_eq!(ended.events("decision")[0]["ips"][0], "10.1.2.3");
    assert!(ended.events("decision")[1].get("upstream").is_none());
}

/// K49: a bypassed target is dialed directly, with all the usual checks.
#[tokio::test]
async fn k49_dials_bypassed_targets_directly() {
    let (upstream, there) = (origin(YES).await, origin(b"welcome").await);
    let port = there.port();
    let rules = [format!("allowed.test:{port}"), format!("localhost:{port}"), format!("127.0.0.1:{port}")];
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let mut setup = chained(&rules, upstream.port(), ".allowed.test,127.0.0.0/8");
    setup.names.push(("localhost", Ok(vec![IpAddr::from(Ipv4Addr::LOCALHOST)])));
    let proxy = setup.start().await;
    for target in ["allowed.test", "localhost", "127.0.0.1"] {
        let (mut client, head) = proxy.ask(Transport::Tcp, &format!("{target}:{port}")).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        client.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut *client).await, b"welcome");
    }
    let ended = proxy.end().await;
    assert_eq!(upstream.connections(), 0);
    assert_eq!(ended.asked, ["allowed.test", "localhost"]);
    assert!(ended.events("decision").iter().all(|line| line.get("upstream").is_none()));
}

/// K49, P13: every failure of an upstream proxy is a 502 or 504 of ours. Nothing of its answer reaches the client,
/// the record has the status, and nothing is reached without it.
#[tokio::test]
async fn k49_answers_502_for_every_upstream_failure() {
    let endless: &'static [u8] =
        Box::leak([b"HTTP/1.1 200 OK\r\n", "X: y\r\n".repeat(3000).as_bytes()].concat().into_boxed_slice());
    let interim: &'static [u8] =
        Box::leak("HTTP/1.1 103 Early\r\n\r\n".repeat(20).into_bytes().into_boxed_slice());
    for (answer, status, said, recorded) in [
        (
            &b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=\"secret\"\r\n\r\nsecret"[..],
            502,
            "wants credentials",
            "answered 407",
        ),
        (b"HTTP/1.1 403 secret\r\n\r\nsecret", 502, "refused", "answered 403"),
        (b"HTTP/1.1 302 secret\r\nLocation: http://secret/\r\n\r\n", 502, "refused", "answered 302"),
        (b"HTTP/1.1 504 secret\r\n\r\n", 502, "refused", "answered 504"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", 502, "refused", "answered 101"),
        (b"SSH-2.0-secret\r\n", 502, "no usable answer", "is not HTTP"),
        (b"HTTP/1.1 200 OK\nX: y\n\n\r\n\r\n", 502, "no usable answer", "not well-formed"),
        (endless, 502, "no usable answer", "too large"),
        (interim, 502, "refused", "answered 103"),
        (b"HTTP/1.1 200", 504, "did not answer in time", "no answer in time"),
        (b"", 504, "did not answer in time", "no answer in time"),
    ] {
        let upstream = origin(answer).await;
        let proxy = chained(&["allowed.test:7777"], upstream.port(), "").start().await;
        let (mut client, head) = proxy.ask(Transport::Tcp, "allowed.test:7777").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let body = String::from_utf8(read_to_end(&mut *client).await).unwrap();
        assert!(head.contains("Proxy-Status: exeat; error=") && body.contains(said), "{head}{body}");
        assert!(
            !format!("{head}{body}").contains("secret") && !head.contains("Proxy-Authenticate"),
            "{head}{body}"
        );
        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["allow:rule"]);
        let close = ended.events("close")[0];
        let error = close["error"].as_str().unwrap();
        assert!(error.contains(recorded) && error.contains(NAME), "{error}");
        assert!(error.starts_with(if status == 504 { "timeout: " } else { "connect_error: " }), "{error}");
        assert!(!format!("{:?}", ended.lines).contains("hunter2"), "A03");
        assert_eq!(ended.summary.reached, 0);
        assert_eq!(ended.asked, [NAME], "nothing is reached without it");
    }
}

/// A proxy that hangs up, one that is not there, and one that has no address.
#[tokio::test]
async fn answers_502_without_the_upstream_proxy() {
    let (_held, gone) = closed_port();
    for (answer, said) in [
        (Ok(vec![IpAddr::from(Ipv4Addr::LOCALHOST)]), "cannot be reached"),
        (Err(Failure::NoSuchName), "has no usable address"),
        (Ok(vec![]), "has no usable address"),
        // D05: the operator may choose any address except these.
        (Ok(vec!["127.0.0.1".parse().unwrap(), "169.254.169.254".parse().unwrap()]), "has no usable address"),
        (Ok(vec!["0.0.0.0".parse().unwrap()]), "has no usable address"),
        (Ok(vec!["::ffff:169.254.169.254".parse().unwrap()]), "has no usable address"),
        (Ok(vec!["224.0.0.1".parse().unwrap()]), "has no usable address"),
    ] {
        let mut setup = chained(&["allowed.test:7777"], gone, "");
        setup.names.retain(|(name, _)| *name != NAME);
        setup.names.push((NAME, answer));
        let proxy = setup.start().await;
        let (_, head) = proxy.ask(Transport::Tcp, "allowed.test:7777").await;
        assert!(head.starts_with("HTTP/1.1 502 ") && head.contains(said), "{head}");
        assert_eq!(proxy.end().await.asked, [NAME]);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = chained(&["allowed.test:7777"], listener.local_addr().unwrap().port(), "").start().await;
    let (asked, ()) = tokio::join!(proxy.ask(Transport::Tcp, "allowed.test:7777"), async {
        drop(listener.accept().await.unwrap());
    });
    assert!(asked.1.starts_with("HTTP/1.1 502 ") && asked.1.contains("no usable answer"), "{}", asked.1);
    proxy.end().await;
}

/// T01: after the upstream's 200, the name in the hello is checked as usual.
#[tokio::test]
async fn t01_checks_the_tls_name_through_an_upstream_proxy() {
    for (name, passes) in [("allowed.test", true), ("evil.test", false)] {
        let upstream = origin(YES).await;
        let proxy = chained(&["allowed.test"], upstream.port(), "").start().await;
        let hello = real(name, &[]);
        let (mut client, head) = early(&proxy, Transport::Tcp, "allowed.test:443", &hello).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let head = asked_for("allowed.test:443");
        if passes {
            eventually(|| upstream.bytes().len() == head.len() + hello.len()).await;
            drop(client);
            proxy.end().await;
        } else {
            read_to_end(&mut *client).await;
            assert_eq!(upstream.bytes(), head, "not a byte of the client's");
            let ended = proxy.end().await;
            assert_eq!(ended.decisions(), ["allow:rule", "deny:sni_mismatch"]);
            assert!(ended.events("decision").iter().all(|line| line.get("upstream").is_some()));
        }
    }
}

/// P02: a request for an `http://` URL also goes through a tunnel, and is built anew for its origin.
#[tokio::test]
async fn p02_sends_plain_http_through_the_upstream_proxy() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let proxy = chained(&["allowed.test:80"], port, "").start().await;
    let upstream = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let asked = read_head(&mut stream).await;
        stream.write_all(YES).await.unwrap();
        let inner = read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 204 No Content\r\nX: origin\r\n\r\n").await.unwrap();
        (asked, inner)
    };
    let mut client = proxy.connect(Transport::Tcp).await;
    client
        .write_all(b"GET http://allowed.test/path HTTP/1.1\r\nHost: allowed.test\r\nProxy-Authorization: Basic eA==\r\n\r\n")
        .await
        .unwrap();
    let (head, (asked, inner)) = tokio::join!(read_head(&mut *client), upstream);
    assert!(head.starts_with("HTTP/1.1 204 ") && head.to_ascii_lowercase().contains("x: origin"), "{head}");
    assert_eq!(asked.into_bytes(), asked_for("allowed.test:80"));
    assert!(inner.starts_with("GET /path HTTP/1.1\r\n") && !inner.contains("Proxy-"), "{inner}");
    proxy.end().await;
}

/// A05: the record is written before the upstream proxy is dialed; without it, nothing is asked of the proxy.
#[tokio::test]
async fn a05_asks_no_upstream_proxy_without_a_record() {
    let upstream = origin(YES).await;
    let mut setup = chained(&["allowed.test:7777"], upstream.port(), "");
    setup.sink = Some("/dev/full");
    let proxy = setup.start().await;
    let (_, head) = proxy.ask(Transport::Tcp, "allowed.test:7777").await;
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert_eq!((upstream.connections(), proxy.end().await.asked.len()), (0, 0));
}

/// L15: an attack: a name that a ceiling allows leads the proxy to loopback, which the ceiling does not open.
/// Nothing is sent there.
#[tokio::test]
async fn l15_checks_upstream_addresses_against_ceilings() {
    let upstream = origin(YES).await;
    let port = upstream.port();
    let bounded = |ceiling: &[String]| {
        let mut layers = Layers::default();
        let allow = |builder: &mut PolicyBuilder, rule: &str| {
            let origin = Origin::Flag { flag: "--allow".into() };
            builder.add(rule, Action::Allow, origin, Note::default()).unwrap();
        };
        allow(&mut layers.grants, "allowed.test:7777");
        let mut rules = PolicyBuilder::new();
        allow(&mut rules, "allowed.test:7777");
        ceiling.iter().for_each(|rule| allow(&mut rules, rule));
        layers.ceilings.push(("site.toml".into(), rules));
        layers.build()
    };
    let name = format!("{NAME}:{port}");
    let proxy = chained(&[], port, "").start().await;
    let serve = |policy| {
        let under = Arc::new(Under { policy_sha256: String::new(), mode: Mode::Enforce });
        proxy.cx.replace_policy(policy, under);
    };
    for (ceiling, expect) in [
        (vec![], "502"),
        (vec![name.clone()], "502"),
        (vec![name.clone(), "127.0.0.0/8:1".to_owned()], "502"),
        (vec![name.clone(), "0.0.0.0/0:*".to_owned()], "502"),
        (vec![format!("127.0.0.1:{port}")], "502"),
        (vec![name.clone(), format!("!{name}")], "502"),
        (vec![name, format!("127.0.0.1:{port}")], "200"),
    ] {
        serve(bounded(&ceiling));
        let (_, head) = proxy.ask(Transport::Tcp, "allowed.test:7777").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {expect}")), "{ceiling:?}: {head}");
        if expect == "502" {
            assert!(upstream.bytes().is_empty(), "{ceiling:?}");
        }
    }
    let ended = proxy.end().await;
    let errors: Vec<_> = ended.events("close").iter().map(|close| close["error"].clone()).collect();
    let said = "the ceiling site.toml does not allow";
    assert!(
        errors.iter().any(|error| error.as_str().is_some_and(|error| error.contains(said))),
        "{errors:?}"
    );
}

//! Tests whole connections of the SOCKS5 entry: rows S of the threats, and that decisions equal those for CONNECT.

use super::*;

/// Builds a reply with this code.
fn reply(code: u8) -> Vec<u8> {
    vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Builds a request for a name.
fn name(text: &[u8], port: u16) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    [&[5, 1, 0, 3, length], text, &port.to_be_bytes()].concat()
}

/// Builds a request for an address.
fn literal(ip: &str, port: u16) -> Vec<u8> {
    let (kind, octets) = match ip.parse().unwrap() {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (4, ip.octets().to_vec()),
    };
    [&[5, 1, 0, kind], &octets[..], &port.to_be_bytes()].concat()
}

impl Proxy {
    pub(super) async fn socks(&self, way: Transport) -> Box<dyn Client> {
        match way {
            Transport::Tcp => Box::new(TcpSocket::new_v4().unwrap().connect(self.socks).await.unwrap()),
            Transport::Unix => Box::new(UnixStream::connect(self.dir.join("socks")).await.unwrap()),
        }
    }

    /// Opens a tunnel to a name.
    pub(super) async fn socks_to(&self, way: Transport, host: &str, port: u16) -> Box<dyn Client> {
        let (client, code) = self.ask_socks(way, &name(host.as_bytes(), port)).await;
        assert_eq!(code, 0);
        client
    }

    /// Sends greeting and request, and reads the code of the reply.
    async fn ask_socks(&self, way: Transport, request: &[u8]) -> (Box<dyn Client>, u8) {
        let mut client = self.socks(way).await;
        client.write_all(&[5, 2, 2, 0]).await.unwrap();
        let mut method = [0; 2];
        client.read_exact(&mut method).await.unwrap();
        assert_eq!(method, [5, 0]);
        client.write_all(request).await.unwrap();
        let mut answer = [0; 10];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer.to_vec(), reply(answer[1]));
        (client, answer[1])
    }

    /// Sends `bytes` at once and returns everything that comes back.
    async fn send_and_read_socks(&self, way: Transport, bytes: &[u8]) -> Vec<u8> {
        let mut client = self.socks(way).await;
        let _ = client.write_all(bytes).await;
        read_to_end(&mut *client).await
    }
}

/// K37: one allowed connection, all of it sent at once, from greeting to close.
#[tokio::test]
async fn opens_a_socks_tunnel() {
    for way in TRANSPORTS {
        let origin = origin(b"welcome").await;
        let port = origin.port();
        let proxy = setup(&[&format!("allowed.test:{port}"), &format!("127.0.0.1:{port}")]).start().await;
        let mut client = proxy.socks(way).await;
        let early = [&[5, 1, 0], &name(b"ALLOWED.test", port)[..], b"early and "].concat();
        client.write_all(&early).await.unwrap();
        let mut answer = vec![0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, [vec![5, 0], reply(0)].concat());
        client.write_all(b"later").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut *client).await, b"welcome");
        assert_eq!(origin.bytes(), b"early and later");

        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["allow:rule"]);
        let (decision, close) = (ended.events("decision")[0], ended.events("close")[0]);
        assert_eq!((&decision["via"], &decision["host"]), (&"socks5".into(), &"allowed.test".into()));
        assert_eq!((&close["bytes_up"], &close["bytes_down"]), (&15.into(), &7.into()));
        ended.closes_follow_decisions();
        assert_eq!((ended.summary.reached, ended.summary.counts.allowed), (1, 1));
        assert_eq!(ended.asked, ["allowed.test"]);
    }
}

/// S06: byte by byte, without reading one too many.
#[tokio::test]
async fn s06_parses_split_reads() {
    let origin = origin(b"").await;
    let port = origin.port();
    let proxy = setup(&[&format!("127.0.0.1:{port}")]).start().await;
    let mut client = proxy.socks(Transport::Tcp).await;
    for byte in [&[5, 2, 2, 0], &literal("127.0.0.1", port)[..], b"payload"].concat() {
        client.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut answer = vec![0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, [vec![5, 0], reply(0)].concat());
    eventually(|| origin.bytes() == b"payload").await;
    proxy.end().await;
}

/// S01, S03, S06: text that CONNECT does not accept as a host is refused before the policy is asked, and nothing is
/// looked up or dialed. The record has the name, escaped, and no userinfo.
#[tokio::test]
async fn s01_s03_s06_refuses_odd_names() {
    let long = [b'a'; 255];
    for (text, kept) in [
        (&b"allowed.test\0.evil.test"[..], "allowed.test\\x00.evil.test"),
        (b"allowed.test\n", "allowed.test"),
        (b"u:secret@allowed.test", "***@allowed.test"),
        (b"0x7f.1", "0x7f.1"),
        (b"2130706433", "2130706433"),
        (b"127.1", "127.1"),
        (b"::1", "::1"),
        (b"allowed.test:443", "allowed.test:443"),
        (&long, std::str::from_utf8(&long).unwrap()),
        (b"", ""),
    ] {
        let proxy = setup(&["allowed.test:1-65535", "127.0.0.1:1-65535", "[::1]:1-65535"]).start().await;
        let (mut client, code) = proxy.ask_socks(Transport::Tcp, &name(text, 443)).await;
        assert_eq!(code, 1, "{text:?}");
        assert_eq!(read_to_end(&mut *client).await, b"");
        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["deny:malformed"], "{text:?}");
        ended.closes_follow_decisions();
        let decision = ended.events("decision")[0];
        assert_eq!(decision["via"], "socks5");
        assert_eq!(decision["host_raw"].as_str().unwrap_or_default(), kept, "{text:?}");
        assert!(ended.asked.is_empty());
    }
}

/// S02, S03, S08: a literal needs an IP rule and a name a name rule, on that port, in every spelling. Every
/// decision equals that for CONNECT: verdict, reason, rule and addresses.
#[tokio::test]
async fn s02_s03_s08_decides_as_connect_does() {
    let origin = origin(b"").await;
    let port = origin.port();
    let rules =
        [&format!("allowed.test:{port}"), &format!("127.0.0.1:{port}"), "ports.test:443", "evil.test:443"];
    for (request, target, code, reason) in [
        (name(b"allowed.test", port), format!("allowed.test:{port}"), 0, "rule"),
        (literal("127.0.0.1", port), format!("127.0.0.1:{port}"), 0, "rule"),
        (name(b"127.0.0.1", port), format!("127.0.0.1:{port}"), 0, "rule"),
        // S08: the grant is for 443, the request for 22.
        (name(b"ports.test", 22), "ports.test:22".into(), 2, "port"),
        (name(b"other.test", 443), "other.test:443".into(), 2, "default"),
        // S02: a name rule does not open an address, and no rule opens these.
        (literal("127.0.0.1", 22), "127.0.0.1:22".into(), 2, "port"),
        (literal("169.254.169.254", 80), "169.254.169.254:80".into(), 2, "metadata_ip"),
        (literal("10.0.0.1", 443), "10.0.0.1:443".into(), 2, "ip_literal"),
        (literal("93.184.215.14", 443), "93.184.215.14:443".into(), 2, "ip_literal"),
        (literal("::1", 443), "[::1]:443".into(), 2, "ip_literal"),
        (literal("fd00:ec2::254", 80), "[fd00:ec2::254]:80".into(), 2, "metadata_ip"),
        // The kernel would make an IPv4 address of it.
        (literal("::ffff:127.0.0.1", port), format!("[::ffff:127.0.0.1]:{port}"), 2, "ip_literal"),
        // S03: the same address as text.
        (name(b"169.254.169.254", 80), "169.254.169.254:80".into(), 2, "metadata_ip"),
        (name(b"[::1]", 443), "[::1]:443".into(), 2, "ip_literal"),
        // D01: a granted name that resolves to a private address.
        (name(b"evil.test", 443), "evil.test:443".into(), 2, "private_ip"),
    ] {
        let proxy = setup(&rules.map(AsRef::as_ref)).start().await;
        let (_, got) = proxy.ask_socks(Transport::Unix, &request).await;
        let (_, head) = proxy.ask(Transport::Unix, &target).await;
        assert_eq!(got == 0, head.starts_with("HTTP/1.1 200 "), "{target}: {got} and {head}");
        let ended = proxy.end().await;
        let [socks, connect] = ended.events("decision")[..] else { panic!("{:?}", ended.lines) };
        assert_eq!((got, &socks["reason"]), (code, &reason.into()), "{target}");
        for field in ["host", "port", "verdict", "reason", "rule", "rule_src", "ips", "error"] {
            assert_eq!(socks[field], connect[field], "{field} of {target}");
        }
        assert_eq!((&socks["via"], &connect["via"]), (&"socks5".into(), &"connect".into()));
        let inside: Vec<&str> = ended.denials.lines().collect();
        assert_eq!(inside.len(), usize::from(got == 2), "{target}: {inside:?}");
    }
}

/// S04: BIND, UDP ASSOCIATE and unknown commands are refused at once, closed, and recorded.
#[tokio::test]
async fn s04_refuses_other_commands() {
    for command in [2, 3, 0, 0xf0] {
        let proxy = setup(&["127.0.0.1:1-65535"]).start().await;
        let request = [&[5, command, 0, 1], &[127, 0, 0, 1, 0, 80][..]].concat();
        let (mut client, code) = proxy.ask_socks(Transport::Tcp, &request).await;
        assert_eq!(code, 7);
        assert_eq!(read_to_end(&mut *client).await, b"");
        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["deny:scheme"]);
        assert_eq!(ended.events("decision")[0]["via"], "socks5");
        ended.closes_follow_decisions();
    }
    let proxy = setup(&[]).start().await;
    assert_eq!(
        proxy.ask_socks(Transport::Tcp, &[5, 1, 0, 2]).await.1,
        8,
        "an address type that there is not"
    );
    assert_eq!(proxy.ask_socks(Transport::Tcp, &[5, 1, 1, 1]).await.1, 1, "a reserved byte");
    // A sub-negotiation instead of a request, with a password.
    assert_eq!(proxy.ask_socks(Transport::Tcp, b"\x01\x01u\x06secret").await.1, 1);
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["deny:malformed"; 3]);
    assert!(!format!("{:?}", ended.lines).contains("secret"));
}

/// S05: a client without "no authentication" is refused, whatever follows. A password that it sends is not stored.
#[tokio::test]
async fn s05_refuses_other_methods() {
    let origin = origin(b"").await;
    let port = origin.port();
    for greeting in [&[5, 0][..], &[5, 1, 2], &[5, 2, 1, 2], &[5, 1, 255]] {
        for behind in [name(b"127.0.0.1", port), b"\x01\x04user\x06secret".to_vec()] {
            let proxy = setup(&[&format!("127.0.0.1:{port}")]).start().await;
            assert_eq!(
                proxy.send_and_read_socks(Transport::Tcp, &[greeting, &behind].concat()).await,
                [5, 0xff],
                "{greeting:?}"
            );
            let ended = proxy.end().await;
            assert_eq!(ended.decisions(), ["deny:malformed"]);
            ended.closes_follow_decisions();
            assert!(!format!("{:?}", ended.lines).contains("secret"));
        }
    }
    assert_eq!(origin.connections(), 0);
}

/// S07: HTTP and other protocols are closed without an answer, and are not parsed as HTTP. SOCKS5 on the HTTP port
/// is refused there.
#[tokio::test]
async fn s07_refuses_the_protocol_of_the_other_port() {
    let origin = origin(b"").await;
    let port = origin.port();
    let proxy = setup(&[&format!("127.0.0.1:{port}")]).start().await;
    let http = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    let socks4 = [&[4, 1], &port.to_be_bytes()[..], &[127, 0, 0, 1, 0]].concat();
    for way in TRANSPORTS {
        for bytes in
            [http.as_bytes(), b"GET http://u:secret@a.test/ HTTP/1.1\r\n\r\n", &socks4, b"\x16\x03\x01"]
        {
            assert_eq!(proxy.send_and_read_socks(way, bytes).await, b"", "{bytes:?}");
        }
        let mut client = proxy.connect(way).await;
        let _ = client.write_all(&[&[5, 1, 0], &literal("127.0.0.1", port)[..]].concat()).await;
        let answer = read_to_end(&mut *client).await;
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    }
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["deny:malformed"; 10]);
    ended.closes_follow_decisions();
    assert!(!format!("{:?}", ended.lines).contains("secret"));
    assert_eq!(origin.connections(), 0);
}

/// P19: greeting and request share one deadline. A silent client asks for nothing.
#[tokio::test]
async fn refuses_a_slow_socks_client() {
    let proxy = setup(&[]).start().await;
    let start = Instant::now();
    assert_eq!(proxy.send_and_read_socks(Transport::Tcp, &[]).await, b"");
    assert_eq!(proxy.send_and_read_socks(Transport::Tcp, &[5]).await, b"");
    assert_eq!(proxy.send_and_read_socks(Transport::Tcp, &[5, 1, 0]).await, [vec![5, 0], reply(1)].concat());
    let mut client = proxy.socks(Transport::Unix).await;
    for byte in [&[5, 1, 0][..], &name(b"allowed.test", 443)].concat() {
        let _ = client.write_all(&[byte]).await;
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(read_to_end(&mut *client).await, [vec![5, 0], reply(1)].concat());
    assert!(start.elapsed() < Duration::from_secs(6));
    let mut client = proxy.socks(Transport::Tcp).await;
    client.write_all(&[5, 1, 0, 5]).await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut *client).await, [vec![5, 0], reply(1)].concat());
    let ended = proxy.end().await;
    let expected = ["deny:timeout", "deny:timeout", "deny:timeout", "deny:malformed"];
    assert_eq!(ended.decisions(), expected, "none for the first");
    ended.closes_follow_decisions();
}

/// K37: failures have the codes of RFC 1928.
#[tokio::test]
async fn answers_failures_with_socks_codes() {
    let (_held, dead) = closed_port();
    let mut setup = setup(&[&format!("127.0.0.1:{dead}"), "gone.test", "slow.test"]);
    setup.names.push(("slow.test", Err(Failure::ResolverTimeout)));
    let proxy = setup.start().await;
    for (request, code) in
        [(literal("127.0.0.1", dead), 5), (name(b"gone.test", 443), 4), (name(b"slow.test", 443), 6)]
    {
        assert_eq!(proxy.ask_socks(Transport::Tcp, &request).await.1, code, "{request:?}");
    }
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["allow:rule", "error:resolve_error", "error:timeout"]);
    ended.closes_follow_decisions();
}

/// A05: what cannot be recorded is not dialed over SOCKS5 either.
#[tokio::test]
async fn refuses_socks_on_a_full_disk() {
    let origin = origin(b"").await;
    let mut setup = setup(&[&format!("127.0.0.1:{}", origin.port())]);
    setup.sink = Some("/dev/full");
    let proxy = setup.start().await;
    for request in [literal("127.0.0.1", origin.port()), name(b"evil.test", 443)] {
        assert_eq!(proxy.ask_socks(Transport::Tcp, &request).await.1, 1);
    }
    proxy.end().await;
    assert_eq!(origin.connections(), 0);
}

/// R01: both ports share the slots, and a client without a slot gets a SOCKS5 reply.
#[tokio::test]
async fn refuses_too_many_connections_of_both_kinds() {
    let origin = origin(b"").await;
    let target = format!("127.0.0.1:{}", origin.port());
    let mut setup = setup(&[&target]);
    setup.limits.connections = 1;
    let proxy = setup.start().await;
    let held = proxy.ask(Transport::Tcp, &target).await;
    assert_eq!(proxy.ask_socks(Transport::Tcp, &literal("127.0.0.1", origin.port())).await.1, 1);
    drop(held);
    sleep(Duration::from_millis(100)).await;
    let _held = proxy.ask_socks(Transport::Tcp, &literal("127.0.0.1", origin.port())).await;
    assert!(proxy.ask(Transport::Tcp, &target).await.1.starts_with("HTTP/1.1 503 "));
    proxy.end().await;
}

/// T01: the TLS name is checked as for CONNECT, and a wrong one sends no byte upstream.
#[tokio::test]
async fn checks_the_name_in_the_hello_over_socks() {
    for (hello, reason) in [
        (real("allowed.test", &["h2"]), None),
        (real("evil.test", &[]), Some("sni_mismatch")),
        (b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), Some("not_tls")),
    ] {
        let origin = origin(b"").await;
        let port = origin.port();
        let mut setup = setup(&[&format!("127.0.0.1:{port}")]);
        setup.rules.push((format!("allowed.test:{port}"), TlsCheck::Sni));
        let proxy = setup.start().await;
        let (mut client, code) = proxy.ask_socks(Transport::Tcp, &name(b"allowed.test", port)).await;
        assert_eq!(code, 0);
        let _ = client.write_all(&hello).await;
        if let Some(reason) = reason {
            read_to_end(&mut *client).await;
            let ended = proxy.end().await;
            assert_eq!(ended.decisions(), ["allow:rule".to_owned(), format!("deny:{reason}")]);
            assert_eq!(ended.events("decision")[1]["via"], "socks5");
            ended.closes_follow_decisions();
            assert_eq!(origin.bytes(), b"", "zero upstream");
        } else {
            eventually(|| origin.bytes() == hello).await;
            proxy.end().await;
        }
    }
}

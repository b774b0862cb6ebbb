//! Tests what one run may use: connections to a host, and bytes sent under a rule.

use super::http::{OK, web};
use super::*;

/// The number of connections to one host in these tests.
const MOST: usize = 3;

async fn head_of(mut client: Box<dyn Client>, bytes: &[u8]) -> (Box<dyn Client>, Vec<u8>) {
    client.write_all(bytes).await.unwrap();
    let mut head = vec![0; 12];
    timeout(Duration::from_secs(5), client.read_exact(&mut head)).await.unwrap().unwrap();
    (client, head)
}

/// R01: over the limit of one host a client gets 429, before anything is looked up or dialed, on every entry. Other
/// hosts are not affected, and a released place can be used again.
#[tokio::test]
async fn r01_connections_to_one_host() {
    let origin = origin(b"").await;
    let port = origin.port();
    let mut setup =
        setup(&[&format!("allowed.test:{port}"), &format!("evil.test:{port}"), &format!("127.0.0.1:{port}")]);
    setup.limits.per_host = MOST;
    let proxy = setup.start().await;
    let target = format!("allowed.test:{port}");
    let mut held = Vec::new();
    for way in [Transport::Tcp, Transport::Unix, Transport::Tcp] {
        let (client, head) = proxy.ask(way, &target).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        held.push(client);
    }
    for way in TRANSPORTS {
        let (_, head) = proxy.ask(way, &target).await;
        assert!(
            head.starts_with("HTTP/1.1 429 exeat has too many open connections to allowed.test\r\n"),
            "{head}"
        );
        assert!(
            head.contains("\r\nRetry-After: 1\r\n") && head.contains("details=\"budget_conns\""),
            "{head}"
        );
        // A plain request and SOCKS5 get the same.
        let request =
            format!("GET http://ALLOWED.test:{port}/ HTTP/1.1\r\nHost: allowed.test:{port}\r\n\r\n");
        let (_, head) = head_of(proxy.connect(way).await, request.as_bytes()).await;
        assert_eq!(head, b"HTTP/1.1 429");
        let mut request = b"\x05\x01\x00\x05\x01\x00\x03\x0callowed.test".to_vec();
        request.extend(port.to_be_bytes());
        let (_, head) = head_of(proxy.socks(way).await, &request).await;
        assert_eq!(head[..4], [5, 0, 5, 1]);
    }
    for other in [format!("evil.test:{port}"), format!("127.0.0.1:{port}")] {
        assert!(proxy.ask(Transport::Tcp, &other).await.1.starts_with("HTTP/1.1 200 "), "{other}");
    }
    // The end of a tunnel releases its place.
    drop(held.pop());
    let again = Instant::now();
    let client = loop {
        let (client, head) = proxy.ask(Transport::Unix, &target).await;
        if head.starts_with("HTTP/1.1 200 ") {
            break client;
        }
        assert!(again.elapsed() < Duration::from_secs(5), "{head}");
    };
    assert!(proxy.ask(Transport::Tcp, &target).await.1.starts_with("HTTP/1.1 429 "));
    drop((client, held));

    let ended = proxy.end().await;
    ended.closes_follow_decisions();
    assert_eq!(origin.connections(), MOST + 2 + 1, "what is refused is not dialed");
    assert_eq!(ended.asked.len(), MOST + 1 + 1, "nor looked up");
    let refused: Vec<_> =
        ended.events("decision").into_iter().filter(|line| line["verdict"] == "deny").collect();
    assert!(refused.len() >= 7);
    assert!(refused.iter().all(|line| line["reason"] == "budget_conns" && line["rule"] == target.as_str()));
    assert_eq!(ended.summary.denied[0].count, refused.len() as u64);
    assert_eq!(ended.summary.denied[0].said, "3 connections to this host are open, and no more at one time");
    assert!(ended.denials.contains("budget_conns"));
}

/// A plain HTTP exchange holds its place until it ends.
#[tokio::test]
async fn r01_counts_a_request_until_it_ends() {
    let web = web(OK).await;
    let port = web.port;
    let mut setup = setup(&[&format!("127.0.0.1:{port}")]);
    setup.limits.per_host = 1;
    let proxy = setup.start().await;
    // Two in a row, then one that is unfinished while another arrives.
    let request = format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    let mut lingering = Vec::new();
    for _ in 0..2 {
        let mut client = proxy.connect(Transport::Tcp).await;
        client.write_all(request.as_bytes()).await.unwrap();
        assert!(read_to_end(&mut *client).await.starts_with(b"HTTP/1.1 200 OK\r\n"));
        lingering.push(client);
    }
    let mut open = proxy.connect(Transport::Unix).await;
    let post = format!("POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
    open.write_all(post.as_bytes()).await.unwrap();
    eventually(|| web.requests().last().is_some_and(|seen| seen.ends_with("bo"))).await;
    let (_, head) = head_of(proxy.connect(Transport::Tcp).await, request.as_bytes()).await;
    assert_eq!(head, b"HTTP/1.1 429");
    open.write_all(b"dy").await.unwrap();
    assert!(read_to_end(&mut *open).await.starts_with(b"HTTP/1.1 200 OK\r\n"));
    proxy.end().await;
}

/// Lets a run send `limit` bytes to `allowed.test`, by replacing the whole policy.
fn bounded(proxy: &Proxy, port: u16, limit: u64) {
    let mut builder = PolicyBuilder::new();
    for (rule, max_upload) in [
        (format!("allowed.test:{port}"), exeat_policy::Size::new(limit)),
        (format!("127.0.0.1:{port}"), None),
    ] {
        let note = Note { max_upload, ..Note::default() };
        builder.add(&rule, Action::Allow, Origin::Flag { flag: "--allow".into() }, note).unwrap();
    }
    let under = Under { policy_sha256: String::new(), mode: Mode::Enforce };
    proxy.cx.replace_policy(builder.build(), Arc::new(under));
}

/// Writes until the other side stops reading, and waits for the end or the reset.
async fn push(client: &mut dyn Client, bytes: usize) {
    let _ = client.write_all(&vec![b'x'; bytes]).await;
    let _ = client.shutdown().await;
    let mut rest = Vec::new();
    let _ = timeout(Duration::from_secs(5), client.read_to_end(&mut rest)).await.expect("an end");
}

/// X09: exactly the bytes up to the limit go out, over several connections of every kind, and across a policy that
/// is read again. After that nothing is dialed.
#[tokio::test]
async fn x09_counts_an_upload_budget_exactly() {
    const LIMIT: u64 = 100_000;
    for way in TRANSPORTS {
        let origin = origin(b"").await;
        let port = origin.port();
        let proxy = setup(&[]).start().await;
        bounded(&proxy, port, LIMIT);
        let target = format!("allowed.test:{port}");

        // Bytes right after the head count.
        let mut client = proxy.connect(way).await;
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nearly");
        client.write_all(request.as_bytes()).await.unwrap();
        assert!(read_head(&mut *client).await.starts_with("HTTP/1.1 200 "));
        client.shutdown().await.unwrap();
        eventually(|| origin.bytes() == b"early").await;
        bounded(&proxy, port, LIMIT);

        // Bytes over SOCKS5 count, and so do those of two tunnels at the same time.
        let mut request = b"\x05\x01\x00\x05\x01\x00\x03\x0callowed.test".to_vec();
        request.extend(port.to_be_bytes());
        let (mut socks, head) = head_of(proxy.socks(way).await, &request).await;
        assert_eq!(head[..4], [5, 0, 5, 0]);
        let (mut first, _) = proxy.ask(way, &target).await;
        let (mut second, _) = proxy.ask(way, &target).await;
        tokio::join!(push(&mut *socks, 60_000), push(&mut *first, 60_000), push(&mut *second, 60_000),);
        let before = origin.connections();
        for way in TRANSPORTS {
            let (_, head) = proxy.ask(way, &target).await;
            let expected = format!("HTTP/1.1 429 exeat denied {target} (its upload budget is used up)\r\n");
            assert!(head.starts_with(&expected) && !head.contains("Retry-After"), "{head}");
        }
        assert!(proxy.ask(way, &format!("127.0.0.1:{port}")).await.1.starts_with("HTTP/1.1 200 "));
        assert_eq!(origin.connections(), before + 1);

        let ended = proxy.end().await;
        ended.closes_follow_decisions_and_cuts();
        let sent: u64 = ended.events("close").iter().map(|close| close["bytes_up"].as_u64().unwrap()).sum();
        assert_eq!(sent, LIMIT);
        // A reset discards what is on its way.
        assert!(origin.bytes().len() as u64 <= LIMIT, "{}", origin.bytes().len());
        let cut: Vec<_> =
            ended.events("close").into_iter().filter(|close| close["ended_by"] == "budget").collect();
        assert!(!cut.is_empty());
        let said = format!("the upload budget of 100kB is used up (grants {target})");
        assert!(cut.iter().all(|close| close["error"] == said.as_str()), "{cut:?}");
        assert_eq!(ended.summary.denied[0].said, said);
        assert!(ended.decisions().contains(&"deny:budget_bytes".to_owned()), "{:?}", ended.decisions());
    }
}

impl Ended {
    /// Checks that every connection has one close, and a cut one a second decision before it.
    fn closes_follow_decisions_and_cuts(&self) {
        self.closes_follow_decisions();
        for close in self.events("close") {
            let decisions = self.events("decision");
            let of_it: Vec<_> = decisions.iter().filter(|line| line["conn"] == close["conn"]).collect();
            assert_eq!(of_it.len(), if close["ended_by"] == "budget" { 2 } else { 1 }, "{of_it:?}");
        }
    }
}

/// Exactly the limit is allowed.
#[tokio::test]
async fn x09_sends_exactly_the_limit() {
    let origin = origin(b"").await;
    let port = origin.port();
    let proxy = setup(&[]).start().await;
    bounded(&proxy, port, 70_000);
    let (mut client, _) = proxy.ask(Transport::Tcp, &format!("allowed.test:{port}")).await;
    client.write_all(&vec![b'x'; 70_000]).await.unwrap();
    client.shutdown().await.unwrap();
    assert!(read_to_end(&mut *client).await.is_empty());
    assert_eq!(origin.bytes().len(), 70_000);
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["allow:rule"]);
    assert_eq!(ended.events("close")[0]["ended_by"], "client");
}

/// X09: plain HTTP. The head counts with the body, the client is told why, and the origin gets no whole request.
#[tokio::test]
async fn x09_limits_requests_and_websockets() {
    for way in TRANSPORTS {
        let web = web(OK).await;
        let port = web.port;
        let proxy = setup(&[]).start().await;
        bounded(&proxy, port, 20_000);
        let post = |length: usize| {
            let mut request = format!(
                "POST http://allowed.test:{port}/ HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
            )
            .into_bytes();
            request.extend(vec![b'x'; length]);
            request
        };
        let mut client = proxy.connect(way).await;
        client.write_all(&post(10_000)).await.unwrap();
        assert!(read_to_end(&mut *client).await.starts_with(b"HTTP/1.1 200 OK\r\n"));
        let mut client = proxy.connect(way).await;
        let _ = client.write_all(&post(15_000)).await;
        let answer = String::from_utf8(read_to_end(&mut *client).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
        assert!(web.requests().concat().len() <= 20_000);

        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["allow:rule", "allow:rule", "deny:budget_bytes"]);
        ended.closes_follow_decisions_and_cuts();
        let sent: u64 = ended.events("close").iter().map(|close| close["bytes_up"].as_u64().unwrap()).sum();
        assert_eq!(sent, 20_000);
        assert_eq!(ended.events("close")[1]["ended_by"], "budget");
    }

    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: a\r\n\r\n";
    let web = web(switch).await;
    let port = web.port;
    let proxy = setup(&[]).start().await;
    bounded(&proxy, port, 20_000);
    let request = format!(
        "GET http://allowed.test:{port}/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: k\r\n\r\n"
    );
    let (mut client, head) = head_of(proxy.connect(Transport::Tcp).await, request.as_bytes()).await;
    assert_eq!(head, b"HTTP/1.1 101");
    push(&mut *client, 30_000).await;
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["allow:rule", "deny:budget_bytes"]);
    assert_eq!(
        (&ended.events("close")[0]["bytes_up"], &ended.events("close")[0]["ended_by"]),
        (&20_000.into(), &"budget".into())
    );
}

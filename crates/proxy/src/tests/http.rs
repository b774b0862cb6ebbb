//! Tests plain HTTP requests through the proxy, to origins that store every byte.

use exeat_policy::TlsCheck;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

/// An origin that stores what it receives, and answers each connection with a fixed text after a whole request. It
/// also stores what a client sends after the answer.
pub(super) struct Web {
    pub(super) port: u16,
    seen: Arc<Mutex<Vec<String>>>,
    _task: JoinHandle<()>,
}

/// Whether `bytes` contain a whole request.
pub(super) fn whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    match length.map(|length| length.parse::<usize>().unwrap()) {
        Some(length) => body.len() >= length,
        None if head.contains("transfer-encoding: chunked") => body.ends_with("0\r\n\r\n"),
        None => true,
    }
}

#[expect(clippy::disallowed_methods, reason = "the test owns the task")]
pub(super) async fn web(answer: impl Into<Vec<u8>>) -> Web {
    let answer: Arc<[u8]> = answer.into().into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&seen);
    let task = tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
            let place = {
                let mut log = log.lock().unwrap();
                log.push(String::new());
                log.len() - 1
            };
            tasks.spawn(async move {
                let mut got = Vec::new();
                let mut buffer = vec![0; 65536];
                let mut answered = false;
                while let Ok(read) = stream.read(&mut buffer).await {
                    if read == 0 {
                        break;
                    }
                    got.extend(&buffer[..read]);
                    log.lock().unwrap()[place] = String::from_utf8_lossy(&got).into_owned();
                    if !answered && whole(&got) {
                        answered = true;
                        let _ = stream.write_all(&answer).await;
                        if !answer.starts_with(b"HTTP/1.1 101") {
                            let _ = stream.shutdown().await;
                        }
                    }
                }
            });
        }
    });
    Web { port, seen, _task: task }
}

impl Web {
    pub(super) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

pub(super) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// Starts a proxy that grants `allowed.test` on the origin's port.
async fn proxy_to(web: &Web) -> Proxy {
    let port = web.port;
    setup(&[&format!("allowed.test:{port}"), &format!("127.0.0.1:{port}")]).start().await
}

impl Proxy {
    /// Sends bytes and reads until the proxy closes.
    async fn send_and_read(&self, way: Transport, bytes: &[u8]) -> String {
        let mut client = self.connect(way).await;
        client.write_all(bytes).await.unwrap();
        String::from_utf8_lossy(&read_to_end(&mut *client).await).into_owned()
    }
}

fn fields_of(request: &str) -> Vec<&str> {
    request.split("\r\n\r\n").next().unwrap().lines().skip(1).collect()
}

/// P02, P13, P14: the proxy builds the outgoing message anew. `Host` is that of the target, whatever the client
/// wrote. Fields for one hop or for a proxy are removed, and so are fields that `Connection` names, unless they
/// frame the message.
#[tokio::test]
async fn p02_p13_p14_builds_a_request_anew() {
    let web = web(OK).await;
    let proxy = proxy_to(&web).await;
    let port = web.port;
    for way in TRANSPORTS {
        let request = format!(
            "POST http://ALLOWED.test:{port}/a/b?c=d&e HTTP/1.1\r\nHost: evil.test\r\nAccept: text/html\r\n\
             Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n\
             TE: trailers\r\nConnection: x-secret, Host, Content-Length, keep-alive\r\nX-Secret: 1\r\n\
             X-kept: yes\r\nContent-Length: 4\r\n\r\nbody"
        );
        let answer = proxy.send_and_read(way, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
        let seen = web.requests().pop().unwrap();
        let mut fields: Vec<String> =
            fields_of(&seen).iter().map(|field| field.to_ascii_lowercase()).collect();
        fields.sort_unstable();
        assert!(seen.starts_with("POST /a/b?c=d&e HTTP/1.1\r\n"), "{seen}");
        let host = format!("host: allowed.test:{port}");
        let ours = [
            "accept: text/html",
            "connection: close",
            "content-length: 4",
            &host,
            "via: 1.1 exeat",
            "x-kept: yes",
        ];
        assert_eq!(fields, ours, "{seen}");
        assert!(seen.contains("X-kept: yes"), "names as the client spells them: {seen}");
        assert!(seen.ends_with("\r\n\r\nbody"), "{seen}");
    }
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["allow:rule"; 2]);
    for line in ended.events("decision") {
        assert_eq!((&line["via"], &line["method"]), (&"http".into(), &"POST".into()));
        assert!(!line.to_string().contains("a/b"), "neither path nor query: {line}");
    }
    ended.closes_follow_decisions();
    assert_eq!(ended.summary.reached, 1);
}

/// P01, P10, P16, D14: one request, one decision, one connection. What follows a request is never read as another
/// request, to any host.
#[tokio::test]
async fn p01_p16_serves_one_request_per_connection() {
    let web = web(OK).await;
    let proxy = proxy_to(&web).await;
    let port = web.port;
    for second in [
        format!("GET http://allowed.test:{port}/2 HTTP/1.1\r\nHost: allowed.test\r\n\r\n"),
        format!("GET http://evil.test:{port}/2 HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
        format!("CONNECT evil.test:{port} HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n"),
    ] {
        let first = format!("GET http://allowed.test:{port}/1 HTTP/1.1\r\nHost: allowed.test\r\n\r\n");
        let answer = proxy.send_and_read(Transport::Tcp, [first, second].concat().as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
    assert_eq!(web.requests().len(), 3);
    assert!(
        web.requests()
            .iter()
            .all(|seen| seen.starts_with("GET /1 ") && seen.matches("HTTP/1.1").count() == 1)
    );

    // P01, P10: the decision is that for CONNECT, and after a refused request with a body nothing more is read.
    let denied = format!(
        "POST http://evil.test:{port}/ HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 70\r\n\r\n\
         GET http://allowed.test:{port}/smuggled HTTP/1.1\r\nHost: allowed.test\r\n\r\n"
    );
    let answer = proxy.send_and_read(Transport::Tcp, denied.as_bytes()).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 403 exeat denied evil.test:{port}")), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert_eq!(web.requests().len(), 3);
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["allow:rule", "allow:rule", "allow:rule", "deny:default"]);
}

/// P05, P06, P07, P08, P09, P17: ambiguous requests are refused before anything is dialed. A body that turns out
/// malformed never becomes a whole request.
#[tokio::test]
async fn p05_to_p09_refuses_smuggling() {
    let web = web(OK).await;
    let proxy = proxy_to(&web).await;
    let port = web.port;
    let line = format!("POST http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test\r\n");
    for (row, fields) in [
        ("P05", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("P05", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"),
        ("P06", "Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody"),
        ("P06", "Content-Length: 4, 4\r\n\r\nbody"),
        ("P07", "Content-Length: +4\r\n\r\nbody"),
        ("P07", "Content-Length: 4_0\r\n\r\nbody"),
        ("P08", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("P08", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        ("P08", "Transfer-Encoding: identity\r\n\r\n"),
        ("P09", "X: a\n\r\n"),
        ("P09", "X: a\r\n b\r\n\r\n"),
        ("P09", "X: a\rb\r\n\r\n"),
        ("P17", "X : a\r\n\r\n"),
    ] {
        let answer = proxy.send_and_read(Transport::Tcp, format!("{line}{fields}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{row} {fields:?}: {answer}");
        assert!(web.requests().is_empty(), "{row} {fields:?}");
    }
    for body in [
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    ] {
        let request = format!("{line}Transfer-Encoding: chunked\r\n\r\n{body}");
        let answer = proxy.send_and_read(Transport::Tcp, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "P07, P09 {body:?}: {answer}");
        assert!(
            web.requests().iter().all(|seen| !whole(seen.as_bytes())),
            "P07, P09 {body:?}: {:?}",
            web.requests()
        );
    }
    proxy.end().await;
}

/// P12, P11: only a WebSocket can be switched to, and only by the origin. h2c is not forwarded, and an unrequested
/// 101 is not accepted.
#[tokio::test]
async fn p11_p12_switches_to_websockets_only() {
    // h2c: it is forwarded as an ordinary request.
    let plain = web(OK).await;
    let proxy = proxy_to(&plain).await;
    let port = plain.port;
    let get = format!("GET http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test\r\n");
    let h2c = format!(
        "{get}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    );
    assert!(proxy.send_and_read(Transport::Tcp, h2c.as_bytes()).await.starts_with("HTTP/1.1 200 OK"));
    let seen = plain.requests().pop().unwrap().to_ascii_lowercase();
    assert!(!seen.contains("h2c") && !seen.contains("http2-settings") && !seen.contains("upgrade"), "{seen}");
    // The origin refuses a WebSocket: nothing after the head goes up.
    let ask =
        format!("{get}Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n");
    let answer =
        proxy.send_and_read(Transport::Tcp, format!("{ask}GET /smuggled HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let seen = plain.requests().pop().unwrap();
    assert!(seen.contains("Upgrade: websocket\r\n") && seen.contains("Sec-WebSocket-Key: k"), "{seen}");
    assert!(!seen.contains("smuggled"), "{seen}");
    proxy.end().await;

    // A 101 without a request, and one to another protocol.
    for answer in [
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ] {
        let odd = web(answer).await;
        let proxy = proxy_to(&odd).await;
        for asks in [
            get.replace(&port.to_string(), &odd.port.to_string()) + "\r\n",
            ask.replace(&port.to_string(), &odd.port.to_string()),
        ] {
            let heard = proxy.send_and_read(Transport::Tcp, asks.as_bytes()).await;
            assert!(heard.starts_with("HTTP/1.1 502 "), "{heard}");
        }
        proxy.end().await;
    }
}

/// P11: after the origin's 101, and not before, bytes go both ways, early ones too.
#[tokio::test]
async fn p11_turns_a_websocket_into_a_tunnel() {
    let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: a\r\n\r\nserver-first";
    let web = web(answer).await;
    let proxy = proxy_to(&web).await;
    let port = web.port;
    for way in TRANSPORTS {
        let mut client = proxy.connect(way).await;
        let ask = format!(
            "GET http://allowed.test:{port}/chat HTTP/1.1\r\nHost: allowed.test\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\nclient-early"
        );
        client.write_all(ask.as_bytes()).await.unwrap();
        let head = read_head(&mut *client).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.to_ascii_lowercase().contains("upgrade: websocket\r\n"), "{head}");
        assert!(head.contains("Sec-WebSocket-Accept: a\r\n"), "{head}");
        // Some clients compare the whole field.
        assert!(head.contains("Connection: Upgrade\r\n"), "{head}");
        let mut first = [0; 12];
        client.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"server-first");
        client.write_all(b" client-late").await.unwrap();
        eventually(|| web.requests().pop().unwrap().ends_with("\r\n\r\nclient-early client-late")).await;
        client.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut *client).await, b"");
    }
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["allow:rule"; 2]);
    ended.closes_follow_decisions();
    for close in ended.events("close") {
        assert_eq!(close["ended_by"], "client");
        assert_eq!(close["bytes_down"], answer.len(), "{close}");
        assert_eq!(close["bytes_up"], web.requests()[0].len(), "{close}");
    }
}

/// R10: malformed answers are a 502, and nothing of them reaches the client.
#[tokio::test]
async fn r10_answers_502_to_odd_answers() {
    let endless = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(9000);
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(200));
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(200_000));
    for answer in [
        endless.as_str(),
        &many,
        &long,
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\nX : y\r\n\r\n",
        "",
    ] {
        let web = web(answer).await;
        let proxy = proxy_to(&web).await;
        let port = web.port;
        let request = format!("GET http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n");
        let heard = proxy.send_and_read(Transport::Tcp, request.as_bytes()).await;
        let shown: String = answer.chars().take(60).collect();
        assert!(heard.starts_with("HTTP/1.1 502 exeat could not reach allowed.test"), "{shown:?}: {heard}");
        let ended = proxy.end().await;
        assert_eq!(ended.events("close")[0]["ended_by"], "error", "{shown:?}");
        assert_eq!(ended.summary.failed.len(), 1, "{shown:?}");
    }
}

/// P13: the answer is built anew too, with our own framing: chunked, by length, or until the end.
#[tokio::test]
async fn builds_answers_anew() {
    for (answer, head, body) in [
        ("HTTP/1.1 200 Fine\r\nX-A: b\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 Fine", "\r\n\r\nok"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n",
            "HTTP/1.1 200 OK",
            "\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
        (
            "HTTP/1.0 200 OK\r\n\r\nuntil the end",
            "HTTP/1.1 200 OK",
            "\r\n\r\nD\r\nuntil the end\r\n0\r\n\r\n",
        ),
        (
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 204 No",
            "\r\n\r\n",
        ),
        (
            "HTTP/1.1 407 No\r\nProxy-Authenticate: Basic\r\nKeep-Alive: x\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 407 No",
            "\r\n\r\n",
        ),
    ] {
        let web = web(answer).await;
        let proxy = proxy_to(&web).await;
        let port = web.port;
        let request = format!("GET http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n");
        let heard = proxy.send_and_read(Transport::Tcp, request.as_bytes()).await;
        assert!(heard.starts_with(head) && heard.ends_with(body), "{answer:?}: {heard:?}");
        let lower = heard.to_ascii_lowercase();
        assert!(
            !lower.contains("proxy-auth") && !lower.contains("keep-alive") && !lower.contains("x-t:"),
            "{heard}"
        );
        assert!(!(lower.contains("content-length") && lower.contains("transfer-encoding")), "{heard}");
        proxy.end().await;
    }
}

/// An incomplete answer must not look complete, to HTTP/1.1 or to HTTP/1.0, which has only the end of the
/// connection.
#[tokio::test]
async fn resets_the_client_after_a_broken_answer() {
    for version in ["1.1", "1.0"] {
        let web = web("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort").await;
        let proxy = proxy_to(&web).await;
        let port = web.port;
        let mut client = proxy.connect(Transport::Tcp).await;
        let request = format!("GET http://allowed.test:{port}/ HTTP/{version}\r\nHost: allowed.test\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        let error = timeout(Duration::from_secs(5), client.read_to_end(&mut heard)).await.unwrap();
        assert!(error.is_err(), "HTTP/{version}: {}", String::from_utf8_lossy(&heard));
        let ended = proxy.end().await;
        assert_eq!(ended.events("close")[0]["ended_by"], "error");
    }
}

/// P15: other schemes, and forms that are not for a proxy.
#[tokio::test]
async fn p15_refuses_other_schemes() {
    let proxy = setup(&["allowed.test:80,443"]).start().await;
    for (target, reason) in [
        ("https://allowed.test/", "scheme"),
        ("ftp://allowed.test/", "scheme"),
        ("gopher://allowed.test:70/x", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("urn:isbn:1", "scheme"),
        ("http+unix://%2Fvar%2Frun%2Fdocker.sock/info", "scheme"),
        ("http:/allowed.test/", "malformed"),
        ("http:allowed.test", "malformed"),
        ("http://", "malformed"),
        ("http:///path", "malformed"),
        ("http://user:pw@allowed.test/", "malformed"),
        ("http://allowed.test:0/", "malformed"),
        ("http://allowed.test:/", "malformed"),
        ("http://allowed.test:080/", "malformed"),
        ("http://allowed.test/#frag", "malformed"),
        ("http://evil.test#@allowed.test/", "malformed"),
        ("http://127.1/", "malformed"),
        ("http://[::1%25lo]/", "malformed"),
        ("/", "malformed"),
        ("*", "malformed"),
        ("allowed.test:80", "scheme"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: allowed.test\r\n\r\n");
        let answer = proxy.send_and_read(Transport::Tcp, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{target}: {answer}");
        assert!(answer.contains(&format!("details=\"{reason}\"")), "{target}: {answer}");
        assert!(!answer.contains("pw"), "A03: {answer}");
    }
    let ended = proxy.end().await;
    assert!(ended.asked.is_empty(), "D10: {:?}", ended.asked);
    assert!(ended.decisions().iter().all(|decided| decided.starts_with("deny:")));
}

/// T06: where TLS is granted, plain HTTP is refused, and nothing is dialed for it.
#[tokio::test]
async fn refuses_plain_http_where_tls_is_granted() {
    let web = web(OK).await;
    let port = web.port;
    let mut given = setup(&[&format!("127.0.0.1:{port}"), "allowed.test"]);
    given.rules.push((format!("allowed.test:{port}"), TlsCheck::Sni));
    let proxy = given.start().await;
    for port in [443, port] {
        let request = format!("GET http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n");
        let answer = proxy.send_and_read(Transport::Tcp, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("only TLS"), "{answer}");
    }
    assert!(web.requests().is_empty());
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["deny:not_tls"; 2]);
    assert!(ended.asked.is_empty());
}

/// P17: a client that waits for `100 Continue` gets it (RFC 9110 section 10.1.1).
#[tokio::test]
async fn answers_expect_with_100_continue() {
    let web = web(OK).await;
    let proxy = proxy_to(&web).await;
    let port = web.port;
    let mut client = proxy.connect(Transport::Tcp).await;
    let request = format!(
        "PUT http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 5\r\n\
         Expect: 100-continue\r\n\r\n"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    assert!(read_head(&mut *client).await.starts_with("HTTP/1.1 100 "));
    client.write_all(b"hello").await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut *client).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(!web.requests()[0].to_ascii_lowercase().contains("expect"), "{}", web.requests()[0]);
    proxy.end().await;
}

/// R02, R04: a large body is streamed both ways, and a length allocates no memory.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the test owns the task")]
async fn r02_r04_streams_bodies() {
    let body = "x".repeat(3 << 20);
    let web = web(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
    let proxy = proxy_to(&web).await;
    let port = web.port;
    let request = format!(
        "PUT http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let heard = proxy.send_and_read(Transport::Tcp, request.as_bytes()).await;
    assert!(heard.ends_with(&body) && heard.starts_with("HTTP/1.1 200 OK"), "{} bytes", heard.len());
    assert!(web.requests()[0].ends_with(&body));
    // A length of petabytes without a body has no effect.
    let (done, mut waiting) = mpsc::channel::<()>(1);
    let mut client = proxy.connect(Transport::Tcp).await;
    let request = format!(
        "PUT http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 999999999999999999\r\n\r\nx"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let reader = tokio::spawn(async move {
        let _done = done;
        read_to_end(&mut *client).await
    });
    assert!(timeout(Duration::from_millis(300), waiting.recv()).await.is_err());
    reader.abort();
    let ended = proxy.end().await;
    let closes = ended.events("close");
    assert!(
        closes[0]["bytes_up"].as_u64() > Some(3 << 20) && closes[0]["bytes_down"].as_u64() > Some(3 << 20)
    );
}

/// An empty body keeps the length that its client sent, because some origins need it.
#[tokio::test]
async fn keeps_the_length_of_an_empty_body() {
    let web = web(OK).await;
    let proxy = proxy_to(&web).await;
    let port = web.port;
    for (length, kept) in [("Content-Length: 0\r\n", true), ("", false)] {
        let request =
            format!("POST http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test\r\n{length}\r\n");
        assert!(proxy.send_and_read(Transport::Tcp, request.as_bytes()).await.starts_with("HTTP/1.1 200 OK"));
        let seen = web.requests().pop().unwrap().to_ascii_lowercase();
        assert_eq!(seen.contains("content-length: 0\r\n"), kept, "{seen}");
        assert!(!seen.contains("transfer-encoding"), "{seen}");
    }
    proxy.end().await;
}

/// An answer before the end of the request arrives whole, also at a client that reads only after it has sent
/// everything.
#[tokio::test]
async fn delivers_an_early_answer_whole() {
    let body = "x".repeat(4 << 20);
    let early =
        origin(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).leak().as_bytes())
            .await;
    let port = early.port();
    for version in ["1.0", "1.1"] {
        let proxy = setup(&[&format!("127.0.0.1:{port}")]).start().await;
        let mut client = proxy.connect(Transport::Tcp).await;
        let head = format!(
            "PUT http://127.0.0.1:{port}/ HTTP/{version}\r\nHost: a\r\nContent-Length: 300000\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        sleep(Duration::from_millis(100)).await;
        client.write_all(&[b'y'; 300_000]).await.unwrap();
        sleep(Duration::from_millis(300)).await;
        let answer = String::from_utf8(read_to_end(&mut *client).await).unwrap();
        assert!(answer.starts_with("HTTP/1.") && answer.ends_with(&body), "{} bytes", answer.len());
        proxy.end().await;
    }
}

/// P21: a client that has closed its direction still gets its answer.
#[tokio::test]
async fn p21_answers_a_half_closed_client() {
    let web = web(OK).await;
    let proxy = proxy_to(&web).await;
    let port = web.port;
    for way in TRANSPORTS {
        let mut client = proxy.connect(way).await;
        let request = format!("GET http://allowed.test:{port}/ HTTP/1.0\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let answer = String::from_utf8(read_to_end(&mut *client).await).unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
    }
    proxy.end().await;
}

/// R03: an exchange without progress ends, and so does one that takes too long in total.
#[tokio::test]
async fn r03_ends_an_exchange_at_its_deadlines() {
    let silent = origin(b"").await;
    let port = silent.port();
    for (limits, end) in [
        (ProxyLimits { idle: Duration::from_millis(200), ..ProxyLimits::default() }, "idle"),
        (ProxyLimits { total: Duration::from_millis(200), ..ProxyLimits::default() }, "budget"),
    ] {
        let mut given = setup(&[&format!("127.0.0.1:{port}")]);
        given.limits = limits;
        let proxy = given.start().await;
        let request = format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut client = proxy.connect(Transport::Tcp).await;
        client.write_all(request.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        let _ = timeout(Duration::from_secs(5), client.read_to_end(&mut heard)).await.expect("ends");
        let ended = proxy.end().await;
        assert_eq!(ended.events("close")[0]["ended_by"], end);
    }
}

//! Tests attacks that no other file covers: input that must not count, and data that must not leave.

use super::http::web;
use super::*;

/// P23, A09: the socket identifies the client. A PROXY line is not a request, and no field changes the identity.
#[tokio::test]
async fn p23_a09_ignores_claimed_identities() {
    let binary =
        [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", &[10, 9, 8, 7, 127, 0, 0, 1, 0, 80, 1, 187][..]].concat();
    for way in TRANSPORTS {
        let origin = origin(b"").await;
        let target = format!("127.0.0.1:{}", origin.port());
        let ask = |fields: &str| {
            format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{fields}\r\n").into_bytes()
        };
        let proxy = setup(&[&target]).start().await;
        for forged in [&b"PROXY TCP4 10.9.8.7 127.0.0.1 80 443\r\n"[..], b"PROXY UNKNOWN\r\n", &binary] {
            let mut client = proxy.connect(way).await;
            client.write_all(&[forged, &ask("")].concat()).await.unwrap();
            let answer = read_to_end(&mut *client).await;
            assert!(answer.starts_with(b"HTTP/1.1 400 "), "{forged:?}: {}", answer.escape_ascii());
            let mut client = proxy.socks(way).await;
            let _ = client.write_all(&[forged, &[5, 1, 0]].concat()).await;
            assert_eq!(read_to_end(&mut *client).await, b"", "{forged:?}");
        }
        assert_eq!(origin.connections(), 0);
        let fields = "X-Forwarded-For: 10.9.8.7\r\nForwarded: for=10.9.8.7\r\nX-Real-IP: 10.9.8.7\r\nVia: 1.1 forged\r\n\
                      User-Agent: forged\r\nProxy-Authorization: Basic Zm9yZ2Vk\r\nX-Stage: forged\r\nX-Run: forged\r\n";
        let mut client = proxy.connect(way).await;
        client.write_all(&ask(fields)).await.unwrap();
        assert!(read_head(&mut *client).await.starts_with("HTTP/1.1 200 "));
        let run = proxy.cx.run().to_string();
        let ended = proxy.end().await;
        assert_eq!(ended.decisions()[6..], ["allow:rule"]);
        assert!(ended.lines.iter().all(|line| line["run"] == run.as_str() && line.get("stage").is_none()));
        let said = format!("{:?}", &ended.events("decision")[6..]) + &format!("{:?}", ended.events("close"));
        for word in ["10.9.8.7", "forged", "Zm9yZ2Vk"] {
            assert!(!said.contains(word), "{word} in {said}");
        }
    }
}

/// P18: bytes in a tunnel are never a request to exeat, and no second decision allows anything. On a port that may
/// carry anything they are refused (L14); without the check they go to the origin.
#[tokio::test]
async fn p18_treats_a_request_in_a_tunnel_as_bytes() {
    let inner = b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n";
    for (early, tls) in
        [(true, TlsCheck::Off), (false, TlsCheck::Off), (true, TlsCheck::Auto), (false, TlsCheck::Auto)]
    {
        let origin = origin(b"").await;
        let target = format!("allowed.test:{}", origin.port());
        let mut given = setup(&[&format!("127.0.0.1:{}", origin.port())]);
        given.rules.push((target.clone(), tls));
        let proxy = given.start().await;
        let mut client = proxy.connect(Transport::Unix).await;
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes();
        let together = if early { [&head[..], inner].concat() } else { head };
        client.write_all(&together).await.unwrap();
        assert!(read_head(&mut *client).await.starts_with("HTTP/1.1 200 "));
        if !early {
            client.write_all(inner).await.unwrap();
        }
        let mut decisions = vec!["allow:rule"];
        if tls == TlsCheck::Off {
            eventually(|| origin.bytes() == inner).await;
        } else {
            assert!(read_head(&mut *client).await.starts_with("HTTP/1.1 400 "));
            assert!(origin.bytes().is_empty());
            decisions.push("deny:malformed");
        }
        client.shutdown().await.unwrap();
        drop(client);
        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), decisions);
        assert_eq!(ended.asked, ["allowed.test"]);
    }
}

/// T07, X06: a name can carry data. A refused one goes only to the record, where it is cut.
#[tokio::test]
async fn t07_x06_sends_nothing_of_a_refused_hello() {
    let data = "secret-0123456789abcdef".repeat(2);
    let full = format!("{data}.{data}.{data}.{data}.{data}.test");
    let endless = "s".repeat(30_000);
    for sni in [full.as_str(), &endless] {
        for entry in [Transport::Tcp, Transport::Unix] {
            let origin = origin(b"").await;
            let port = origin.port();
            let mut given = setup(&[&format!("127.0.0.1:{port}")]);
            given.rules.push((format!("allowed.test:{port}"), TlsCheck::Sni));
            let proxy = given.start().await;
            let (mut client, _) = proxy.ask(entry, &format!("allowed.test:{port}")).await;
            let hello = with_server_name(Some(&entries(&[(0, sni.as_bytes())])), 0);
            let _ = client.write_all(&hello).await;
            read_to_end(&mut *client).await;
            let ended = proxy.end().await;
            assert_eq!(origin.bytes(), b"");
            assert_eq!(ended.asked, ["allowed.test"], "the name inside is not looked up");
            let [_, refused] = ended.events("decision")[..] else { panic!("{:?}", ended.lines) };
            assert_eq!(refused["verdict"], "deny");
            for field in ["decision", "close"].iter().flat_map(|event| ended.events(event)) {
                let kept = field["sni"].as_str().unwrap_or_default();
                assert!(kept.len() <= limits::TEXT && sni.starts_with(kept), "{kept}");
                assert!(field.to_string().len() < 1500, "{field}");
            }
            // The file that the stage reads does not repeat it either.
            assert!(
                !ended.denials.contains("secret-") && !ended.denials.contains("sss"),
                "{}",
                ended.denials
            );
        }
    }
}

/// X06: a refused request goes only to the record, which holds only the part that names the target, escaped and
/// cut.
#[tokio::test]
async fn x06_sends_nothing_of_a_refused_request() {
    let origin = origin(b"").await;
    let port = origin.port();
    let proxy = setup(&[&format!("allowed.test:{port}")]).start().await;
    let long = format!("x\u{1b}[2K{}", "d".repeat(4000));
    let requests = [
        format!(
            "CONNECT evil.test:{port} HTTP/1.1\r\nHost: evil.test:{port}\r\nX: secret-field\r\n\r\nsecret-body"
        ),
        format!(
            "POST http://evil.test:{port}/secret-path?secret-query HTTP/1.1\r\nHost: evil.test\r\nCookie: secret-cookie\r\n\
             Content-Length: 11\r\n\r\nsecret-body"
        ),
        format!("CONNECT {long}:443 HTTP/1.1\r\nX: secret-field\r\n\r\n"),
        format!("GET http://u:secret-word@{long}/secret-path HTTP/1.1\r\n\r\n"),
    ];
    for request in &requests {
        let mut client = proxy.connect(Transport::Tcp).await;
        let _ = client.write_all(request.as_bytes()).await;
        let answer = String::from_utf8(read_to_end(&mut *client).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert!(!answer.contains("secret") && !answer.contains('\u{1b}'), "{answer}");
    }
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["deny:default", "deny:default", "deny:malformed", "deny:malformed"]);
    assert_eq!((origin.connections(), ended.asked.len()), (0, 0));
    let kept = format!("{:?}{}", ended.lines, ended.denials);
    assert!(!kept.contains("secret"), "{kept}");
    for decision in &ended.events("decision")[2..] {
        let raw = decision["host_raw"].as_str().unwrap();
        assert!(raw.contains("\\x1b[2Kddd") && raw.len() <= limits::TEXT, "{raw}");
    }
}

/// The caller reads which name was refused, and the stage which character: a password next to it stays unsaid.
#[tokio::test]
async fn a_name_with_a_wrong_character_is_named() {
    let proxy = setup(&["allowed.test:80"]).start().await;
    let name = format!("my_db.{}:443", "d".repeat(200));
    for request in [
        "GET http://my_db.test:8080/secret-path HTTP/1.1\r\nHost: my_db.test\r\n\r\n".to_owned(),
        format!("CONNECT {name} HTTP/1.1\r\nHost: x\r\n\r\n"),
    ] {
        let mut client = proxy.connect(Transport::Tcp).await;
        client.write_all(request.as_bytes()).await.unwrap();
        let answer = String::from_utf8(read_to_end(&mut *client).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("no host name has the character `_`"), "{answer}");
    }
    let ended = proxy.end().await;
    let said = &ended.summary.denied[0].said;
    assert_eq!(
        said,
        "no host name has the character `_`: only letters, digits, `-` and `.`: http://my_db.test:8080"
    );
    assert_eq!(ended.events("decision")[0]["host_raw"], "http://my_db.test:8080");
    assert!(ended.summary.denied[1].said.len() < 200, "{:?}", ended.summary.denied[1]);
    assert!(!format!("{:?}", ended.summary.denied).contains("secret"));
}

/// X08: the client follows redirects. The answer passes unchanged, nothing is sent to the other host, and a request
/// of the client gets another decision.
#[tokio::test]
async fn x08_decides_again_after_a_redirect() {
    let evil = origin(b"").await;
    let there = format!("http://evil.test:{}/next", evil.port());
    let web = web(format!("HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n")).await;
    let rules = [format!("allowed.test:{}", web.port), format!("127.0.0.1:{},{}", web.port, evil.port())];
    let proxy = setup(&rules.each_ref().map(String::as_str)).start().await;
    let mut answers = Vec::new();
    for url in [format!("http://allowed.test:{}/", web.port), there.clone()] {
        let mut client = proxy.connect(Transport::Tcp).await;
        client.write_all(format!("GET {url} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
        answers.push(String::from_utf8(read_to_end(&mut *client).await).unwrap());
    }
    assert!(
        answers[0].starts_with("HTTP/1.1 302 Found\r\n") && answers[0].contains(&there),
        "{}",
        answers[0]
    );
    assert!(answers[1].starts_with("HTTP/1.1 403 "), "{}", answers[1]);
    let ended = proxy.end().await;
    assert_eq!(ended.decisions(), ["allow:rule", "deny:default"]);
    assert_eq!((evil.connections(), ended.asked), (0, vec!["allowed.test".to_owned()]));
}

/// L14: plain HTTP must name its host on every port and entry, in any spelling and any pieces. The answer of the
/// granted host arrives, and nothing of a refused request reaches it.
#[tokio::test]
async fn l14_checks_the_host_of_plain_http_on_any_port() {
    let evil = "Host: evil.test\r\n\r\n";
    for (request, reason) in [
        (format!("GET / HTTP/1.1\r\n{evil}"), "host_mismatch"),
        (format!("FOO / HTTP/1.1\r\n{evil}"), "host_mismatch"),
        ("GET http://evil.test/ HTTP/1.1\r\nHost: TARGET\r\n\r\n".to_owned(), "host_mismatch"),
        (format!("GET / HTTP/1.1\r\nHost: TARGET\r\n{evil}"), "malformed"),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), "malformed"),
        ("GET http://evil.test/\r\n".to_owned(), "malformed"),
        (format!("get / http/1.1\r\n{evil}"), "malformed"),
        (format!("\r\nGET / HTTP/1.1\r\n{evil}"), "malformed"),
        (format!("GET\t/\tHTTP/1.1\r\n{evil}"), "malformed"),
        (format!("GET / HTTP/1.1\n{}", evil.replace('\r', "")), "malformed"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "malformed"),
        (format!("PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\nGET / HTTP/1.1\r\n{evil}"), "malformed"),
        (format!("{} / HTTP/1.1\r\n{evil}", "M".repeat(40_000)), "malformed"),
        (format!("CONNECT evil.test:443 HTTP/1.1\r\n{evil}"), "malformed"),
    ] {
        for (socks, pieces) in [(false, 1), (false, 2), (true, 1)] {
            let web = web("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi".to_owned()).await;
            let target = format!("allowed.test:{}", web.port);
            let proxy = setup(&[&target, &format!("127.0.0.1:{}", web.port)]).start().await;
            let mut client = if socks {
                proxy.socks_to(Transport::Tcp, "allowed.test", web.port).await
            } else {
                proxy.ask(Transport::Tcp, &target).await.0
            };
            let request = request.replace("TARGET", &target);
            for piece in request.as_bytes().chunks(request.len().div_ceil(pieces)) {
                let _ = client.write_all(piece).await;
                sleep(Duration::from_millis(20)).await;
            }
            let answer = String::from_utf8_lossy(&read_to_end(&mut *client).await).into_owned();
            assert!(answer.starts_with("HTTP/1.1 4"), "{request:.60?}: {answer}");
            assert!(!web.requests().concat().contains('\n'), "{request:.60?}");
            let ended = proxy.end().await;
            assert_eq!(
                ended.decisions(),
                ["allow:rule".to_owned(), format!("deny:{reason}")],
                "{request:.60?}"
            );
            ended.closes_follow_decisions();
        }
    }
    let web = web("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi".to_owned()).await;
    let target = format!("allowed.test:{}", web.port);
    let proxy = setup(&[&target, &format!("127.0.0.1:{}", web.port)]).start().await;
    let (mut client, _) = proxy.ask(Transport::Tcp, &target).await;
    // Another request after it is not read as one.
    let both = format!("GET /1 HTTP/1.1\r\nHost: {target}\r\n\r\nGET /2 HTTP/1.1\r\nHost: evil.test\r\n\r\n");
    client.write_all(both.as_bytes()).await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut *client).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hi"), "{answer}");
    let seen = web.requests().concat();
    assert!(seen.contains(&format!("Host: {target}\r\n")) && !seen.contains("evil"), "{seen}");
}

/// L14: bytes of an unknown protocol go on if they contain no complete request, and answers come at once.
#[tokio::test]
async fn l14_forwards_other_protocols_at_once() {
    for (greeting, asked) in [
        (&b""[..], &b"ping"[..]),
        (b"", b"\r\n"),
        (b"", b"hello from the stage"),
        (b"", b"0032git-upload-pack /project.git\0host=allowed.test\0"),
        (b"", b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"),
        (b"220 mail.test\r\n", b"EHLO stage.test\r\n"),
        (b"", b"get user:1\r\n"),
    ] {
        for early in [true, false] {
            let origin = origin(greeting).await;
            let target = format!("allowed.test:{}", origin.port());
            let proxy = setup(&[&target, &format!("127.0.0.1:{}", origin.port())]).start().await;
            let mut client = proxy.connect(Transport::Tcp).await;
            let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes();
            client.write_all(&if early { [&head, asked].concat() } else { head }).await.unwrap();
            read_head(&mut *client).await;
            let mut heard = vec![0; greeting.len()];
            client.read_exact(&mut heard).await.unwrap();
            let start = Instant::now();
            if !early {
                client.write_all(asked).await.unwrap();
            }
            eventually(|| origin.bytes() == asked).await;
            // Well under the deadline for a hello, which is 500 ms here.
            assert!(start.elapsed() < Duration::from_millis(300), "{}", asked.escape_ascii());
            client.write_all(b" more").await.unwrap();
            eventually(|| origin.bytes() == [asked, b" more"].concat()).await;
            client.shutdown().await.unwrap();
            drop(client);
            sleep(Duration::from_millis(20)).await;
            let ended = proxy.end().await;
            assert_eq!(ended.decisions(), ["allow:rule"], "{}", asked.escape_ascii());
            assert_eq!(ended.events("close")[0]["bytes_up"], asked.len() + 5);
        }
    }
}

/// L14: a partial request is closed at the deadline; the end of the stream counts as the end of its line.
#[tokio::test]
async fn l14_closes_half_a_request() {
    for (bytes, ends, reason) in [
        (&b"GET"[..], false, "hello_timeout"),
        (b"GET / HTTP/1.1", false, "hello_timeout"),
        (b"FOO x\r", false, "hello_timeout"),
        (b"GET http://evil.test/ HTTP/1.1", true, "malformed"),
        (b"FOO http://evil.test/ HTTP/1.1", true, "malformed"),
    ] {
        let origin = origin(b"").await;
        let target = format!("allowed.test:{}", origin.port());
        let proxy = setup(&[&target, &format!("127.0.0.1:{}", origin.port())]).start().await;
        let (mut client, _) = proxy.ask(Transport::Tcp, &target).await;
        client.write_all(bytes).await.unwrap();
        if ends {
            client.shutdown().await.unwrap();
        }
        read_to_end(&mut *client).await;
        let ended = proxy.end().await;
        assert_eq!(
            ended.decisions(),
            ["allow:rule".to_owned(), format!("deny:{reason}")],
            "{}",
            bytes.escape_ascii()
        );
    }
}

/// Starts an origin with a script: it sends each part after it has read so many bytes, and stores what it read.
#[expect(clippy::disallowed_methods, reason = "the test owns the task")]
async fn scripted(script: Vec<(usize, Vec<u8>)>) -> (u16, Arc<Mutex<Vec<u8>>>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
    let log = Arc::clone(&seen);
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut buffer = vec![0; 65536];
        let mut script = script.into_iter().peekable();
        while let Ok(read) = stream.read(&mut buffer).await {
            if read == 0 {
                break;
            }
            let total = {
                let mut log = log.lock().unwrap();
                log.extend(&buffer[..read]);
                log.len()
            };
            let Some((_, part)) = script.next_if(|(after, _)| total >= *after) else { continue };
            // The part may arrive in any pieces.
            for piece in part.chunks(part.len().div_ceil(3).max(1)) {
                let _ = stream.write_all(piece).await;
                sleep(Duration::from_millis(2)).await;
            }
        }
    });
    (port, seen, task)
}

/// L13: if a server asks for a second hello, that hello must name the same server, whenever and however it is sent,
/// on port 443 and on a port that may carry anything.
#[tokio::test]
async fn l13_refuses_a_second_hello_for_another_host() {
    let hello = |name: &[u8]| with_server_name(Some(&entries(&[(0, name)])), 0);
    let (good, evil) = (hello(b"allowed.test"), hello(b"evil.test"));
    let ccs = tls_record(20, &[1]);
    let early_data = tls_record(23, &[9; 300]);
    let cases: Vec<(Vec<u8>, Option<&str>)> = vec![
        (good.clone(), None),
        ([&ccs[..], &good].concat(), None),
        ([&early_data[..], &ccs, &in_records(&good, 50), &early_data].concat(), None),
        (evil.clone(), Some("sni_mismatch")),
        ([&ccs[..], &evil].concat(), Some("sni_mismatch")),
        ([&early_data[..], &ccs, &in_records(&evil, 1)].concat(), Some("sni_mismatch")),
        ([&tls_record(21, &[1, 0])[..], &evil].concat(), Some("sni_mismatch")),
        (with_server_name(None, 0), Some("sni_missing")),
        (
            with_server_name(Some(&entries(&[(0, b"allowed.test"), (0, b"evil.test")])), 0),
            Some("hello_malformed"),
        ),
        (
            [&tls_record(22, &good[5..])[..5], &good[5..50], &ccs, &good[50..]].concat(),
            Some("hello_malformed"),
        ),
        ([&[22, 2][..], &evil[2..]].concat(), Some("not_tls")),
        (vec![0x80, 0x2e, 1, 3, 1, 0, 3, 0, 0, 0, 32], Some("hello_malformed")),
        (b"GET / HTTP/1.1\r\n".to_vec(), Some("hello_malformed")),
        (ccs.clone(), Some("hello_timeout")),
        (evil[..60].to_vec(), Some("hello_timeout")),
    ];
    for (second, reason) in cases {
        for tls in [TlsCheck::Sni, TlsCheck::Auto] {
            for (pipelined, record) in [(false, 1000), (true, 1000), (false, 7)] {
                let retry: Vec<u8> =
                    server_says_retry().chunks(record).flat_map(|piece| tls_record(22, piece)).collect();
                let (port, seen, _task) = scripted(vec![
                    (good.len(), retry),
                    (good.len() + second.len(), tls_record(22, &server_says_plain())),
                ])
                .await;
                let mut given = setup(&[&format!("127.0.0.1:{port}")]);
                given.rules.push((format!("allowed.test:{port}"), tls));
                let proxy = given.start().await;
                let (mut client, _) = proxy.ask(Transport::Tcp, &format!("allowed.test:{port}")).await;
                if pipelined {
                    client.write_all(&[&good[..], &second].concat()).await.unwrap();
                } else {
                    client.write_all(&good).await.unwrap();
                    assert_eq!(client.read_u8().await.unwrap(), 22);
                    let half = second.len() / 2;
                    client.write_all(&second[..half]).await.unwrap();
                    sleep(Duration::from_millis(5)).await;
                    client.write_all(&second[half..]).await.unwrap();
                }
                let what =
                    format!("{:?} {tls:?} {pipelined} {record} {reason:?}", &second[..5.min(second.len())]);
                if reason.is_some() {
                    read_to_end(&mut *client).await;
                } else {
                    eventually(|| seen.lock().unwrap().len() == good.len() + second.len()).await;
                    client.write_all(&evil).await.unwrap();
                    // From here on, the tunnel only moves bytes.
                    eventually(|| seen.lock().unwrap().ends_with(&evil)).await;
                }
                drop(client);
                sleep(Duration::from_millis(20)).await;
                let ended = proxy.end().await;
                let late = ended.decisions().get(1).cloned();
                assert_eq!(late, reason.map(|reason| format!("deny:{reason}")), "{what}");
                if reason.is_some() {
                    let seen = seen.lock().unwrap();
                    let up = &seen[good.len()..];
                    assert!(!up.windows(9).any(|bytes| bytes == b"evil.test"), "{what}");
                    assert!(up.iter().zip(&second).all(|(a, b)| a == b), "{what}");
                }
                ended.closes_follow_decisions();
                if reason == Some("sni_mismatch") {
                    assert_eq!(ended.events("decision")[1]["sni"], "evil.test");
                    assert_eq!(ended.events("close")[0]["sni_ok"], false);
                }
            }
        }
    }
}

/// L13: a third hello must name the same server too, and a second one in the record of the first goes nowhere.
#[tokio::test]
async fn l13_checks_every_further_hello() {
    let hello = |name: &[u8]| with_server_name(Some(&entries(&[(0, name)])), 0);
    let (good, evil) = (hello(b"allowed.test"), hello(b"evil.test"));
    let retry = tls_record(22, &server_says_retry());
    let together = tls_record(22, &[&good[5..], &evil[5..]].concat());
    for (sent, reason) in [
        (vec![good.clone(), good.clone(), evil.clone()], "sni_mismatch"),
        (vec![together], "hello_malformed"),
    ] {
        let (port, seen, _task) =
            scripted(vec![(good.len(), retry.clone()), (2 * good.len(), retry.clone())]).await;
        let proxy = setup(&[&format!("allowed.test:{port}"), &format!("127.0.0.1:{port}")]).start().await;
        let (mut client, _) = proxy.ask(Transport::Tcp, &format!("allowed.test:{port}")).await;
        for hello in sent {
            let _ = client.write_all(&hello).await;
            sleep(Duration::from_millis(50)).await;
        }
        read_to_end(&mut *client).await;
        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["allow:rule".to_owned(), format!("deny:{reason}")]);
        assert!(!seen.lock().unwrap().windows(9).any(|bytes| bytes == b"evil.test"));
    }
}

/// L13: a handshake with a real server that asks again succeeds, and moves the same bytes.
#[tokio::test]
async fn l13_passes_a_handshake_without_a_second_hello() {
    let good = with_server_name(Some(&entries(&[(0, b"allowed.test")])), 0);
    let early_data = tls_record(23, &[9; 9000]);
    for answer in [
        tls_record(22, &server_says_plain()),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        vec![21, 3, 3, 0, 2, 2, 40],
    ] {
        let (port, seen, _task) = scripted(vec![(good.len(), answer.clone())]).await;
        let proxy = setup(&[&format!("allowed.test:{port}"), &format!("127.0.0.1:{port}")]).start().await;
        let (mut client, _) = proxy.ask(Transport::Tcp, &format!("allowed.test:{port}")).await;
        // Early data does not wait for the server.
        client.write_all(&[&good[..], &early_data].concat()).await.unwrap();
        let mut heard = vec![0; answer.len()];
        timeout(Duration::from_secs(5), client.read_exact(&mut heard)).await.unwrap().unwrap();
        assert_eq!(heard, answer);
        eventually(|| seen.lock().unwrap().len() == good.len() + early_data.len()).await;
        drop(client);
        sleep(Duration::from_millis(20)).await;
        let ended = proxy.end().await;
        assert_eq!(ended.decisions(), ["allow:rule"]);
        assert_eq!(ended.events("close")[0]["bytes_up"], good.len() + early_data.len());
        assert_eq!(ended.events("close")[0]["bytes_down"], answer.len());
    }
}

/// L16: a loop against a closed port does not grow the record without bound, and every attempt is counted. A
/// connection that opens meanwhile has its own lines, with the decision before any byte.
#[tokio::test]
async fn l16_counts_failed_dials_exactly() {
    let origin = origin(b"").await;
    let (_held, closed) = closed_port();
    let (open, closed) = (format!("127.0.0.1:{}", origin.port()), format!("127.0.0.1:{closed}"));
    let proxy = setup(&[&open, &closed]).start().await;
    let own = usize::try_from(limits::FAILED_DIALS.0).unwrap();
    let more = 300;
    let mut statuses = Vec::new();
    for number in 0..own + more {
        let (client, head) = proxy.ask(TRANSPORTS[number % 2], &closed).await;
        statuses.push(head.starts_with("HTTP/1.1 502 "));
        drop(client);
    }
    assert!(statuses.iter().all(|status| *status));
    let (mut client, head) = proxy.ask(Transport::Tcp, &open).await;
    assert!(head.starts_with("HTTP/1.1 200 "));
    client.write_all(b"\0bytes").await.unwrap();
    eventually(|| origin.bytes() == b"\0bytes").await;
    drop(client);
    sleep(Duration::from_millis(50)).await;
    let ended = proxy.end().await;
    let decisions = ended.events("decision");
    let (stood, failed): (Vec<&Value>, Vec<&Value>) = decisions
        .iter()
        .copied()
        .partition(|line| line["verdict"] == "allow" && line["port"] == origin.port());
    assert_eq!(stood.len(), 1);
    assert_eq!(ended.events("close").iter().filter(|close| close["conn"] == stood[0]["conn"]).count(), 1);
    let counted = |line: &&Value| line["count"].as_u64().unwrap_or(1);
    assert_eq!(failed.iter().map(counted).sum::<u64>(), (own + more) as u64);
    let folded: Vec<_> = failed.iter().filter(|line| line["verdict"] == "error").collect();
    assert!(!folded.is_empty() && failed.len() < own + 60, "{}", failed.len());
    for line in folded {
        assert_eq!(
            (&line["reason"], &line["error"]),
            (&"connect_error".into(), &"connection refused".into())
        );
        assert!(line.get("conn").is_none());
    }
    assert_eq!(ended.summary.failed[0].count, (own + more) as u64);
}

/// L08: unfinished heads share one budget, and a small request is served meanwhile.
#[tokio::test]
async fn l08_shares_one_budget_among_unfinished_heads() {
    let origin = origin(b"hi").await;
    let target = format!("127.0.0.1:{}", origin.port());
    let mut given = setup(&[&target]);
    given.limits.head = Duration::from_secs(60);
    let proxy = given.start().await;
    let head = [b"GET http://a.test/ HTTP/1.1\r\nX: ", &vec![b'a'; 31_000][..]].concat();
    let mut held = Vec::new();
    let mut refused = 0;
    for number in 0..limits::HELD_BYTES / head.len() + 50 {
        let mut client = proxy.connect(TRANSPORTS[number % 2]).await;
        client.write_all(&head).await.unwrap();
        held.push(client);
    }
    sleep(Duration::from_millis(300)).await;
    for client in &mut held {
        let mut status = [0; 12];
        if let Ok(Ok(_)) = timeout(Duration::from_millis(1), client.read_exact(&mut status)).await {
            assert_eq!(&status, b"HTTP/1.1 503");
            refused += 1;
        }
    }
    assert!(refused >= 50, "{refused}");
    let (mut client, answer) = proxy.ask(Transport::Tcp, &target).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(client.read_u16().await.unwrap(), 0x6869);
    drop((client, held));
    let ended = proxy.end().await;
    let words = ended.decisions();
    assert!(words.iter().any(|word| word == "deny:budget_conns"));
}

/// L16: with a full record, every new connection is refused, whatever the policy says. Open ones continue, their closes
/// and the counts of refusals are recorded, and the record stays within its size.
#[tokio::test]
async fn l16_refuses_connections_with_a_full_record() {
    let size = 64 * 1024;
    let origin = origin(b"").await;
    let target = format!("127.0.0.1:{}", origin.port());
    let mut given = setup(&[&target]);
    given.limits.audit_size = size;
    let proxy = given.start().await;
    let (mut standing, _) = proxy.ask(Transport::Tcp, &target).await;
    let asked = 200;
    let mut full = 0;
    for number in 0..asked {
        let (client, head) = proxy.ask(TRANSPORTS[number % 2], &target).await;
        if head.starts_with("HTTP/1.1 503 ") {
            assert!(head.contains("details=\"record_full\""), "{head}");
            full += 1;
        }
        drop(client);
    }
    assert!((100..asked).contains(&full), "{full}");
    let reached = origin.connections();
    let (_, head) = proxy.ask(Transport::Tcp, "denied.test:443").await;
    assert!(head.contains("record_full"), "{head}");
    let mut malformed = proxy.connect(Transport::Tcp).await;
    malformed.write_all(b"\r\n").await.unwrap();
    assert!(read_to_end(&mut *malformed).await.starts_with(b"HTTP/1.1 400 "));
    standing.write_all(b"\0goes on").await.unwrap();
    eventually(|| origin.bytes().ends_with(b"\0goes on")).await;
    assert_eq!(origin.connections(), reached);
    standing.shutdown().await.unwrap();
    drop(standing);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(proxy.cx.summary().record_full, full as u64 + 1);
    let ended = proxy.end().await;
    let allowed = ended.events("decision").iter().filter(|line| line["verdict"] == "allow").count();
    assert_eq!(allowed, 1 + asked - full);
    assert_eq!(ended.events("close").len(), allowed, "each that was let out has a close");
    let counts = |reason: &str| -> Vec<u64> {
        let lines = ended.events("decision").into_iter().filter(|line| line["reason"] == reason);
        lines.map(|line| line["count"].as_u64().unwrap_or(1)).collect()
    };
    let mut refused = counts("record_full");
    refused.sort_unstable();
    assert_eq!(refused, [1, full as u64]);
    assert_eq!(counts("malformed"), [1]);
    let bytes: usize = ended.lines.iter().map(|line| line.to_string().len() + 1).sum();
    assert!(bytes as u64 <= size, "{bytes}");
}

/// Returns the lines of one event in the record of a running proxy.
fn recorded(proxy: &Proxy, event: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(proxy.dir.join("record.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["event"] == event).collect()
}

/// L17: the record has the bytes of an open connection of every kind: a line for each doubling from 1 MB on.
#[tokio::test]
async fn l17_records_the_bytes_of_open_connections() {
    const MB: usize = 1_000_000;
    let sent = vec![b'\0'; 5 * MB];
    for kind in ["tunnel", "socks5", "http", "silent client", "websocket"] {
        let origin = origin(match kind {
            "silent client" => Box::leak(vec![b'\0'; 5 * MB].into_boxed_slice()),
            "websocket" => {
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                  Sec-WebSocket-Accept: a\r\n\r\n"
            }
            _ => b"",
        })
        .await;
        let port = origin.port();
        let target = format!("127.0.0.1:{port}");
        let proxy = setup(&[&target]).start().await;
        let mut client = match kind {
            "tunnel" | "silent client" => proxy.ask(Transport::Tcp, &target).await.0,
            "socks5" => {
                let mut client = proxy.socks(Transport::Tcp).await;
                let ask = [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1], &port.to_be_bytes()[..]].concat();
                client.write_all(&ask).await.unwrap();
                client.read_exact(&mut [0; 12]).await.unwrap();
                client
            }
            kind => {
                let mut client = proxy.connect(Transport::Tcp).await;
                let fields = match kind {
                    "http" => "Content-Length: 6000000",
                    _ => "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k",
                };
                let method = if kind == "http" { "POST" } else { "GET" };
                let ask = format!("{method} http://{target}/ HTTP/1.1\r\nHost: {target}\r\n{fields}\r\n\r\n");
                client.write_all(ask.as_bytes()).await.unwrap();
                if kind == "websocket" {
                    read_head(&mut *client).await;
                }
                client
            }
        };
        let direction = if kind == "silent client" {
            client.read_exact(&mut vec![0; 5 * MB]).await.unwrap();
            "bytes_down"
        } else {
            client.write_all(&sent).await.unwrap();
            eventually(|| origin.bytes().len() >= 5 * MB).await;
            "bytes_up"
        };
        eventually(|| recorded(&proxy, "progress").len() == 3).await;
        let lines = recorded(&proxy, "progress");
        for (line, least) in lines.iter().zip([MB, 2 * MB, 4 * MB]) {
            let moved = usize::try_from(line[direction].as_u64().unwrap()).unwrap();
            assert!((least..least + MB).contains(&moved), "{kind}: {line}");
            assert_eq!((&line["host"], &line["port"]), (&"127.0.0.1".into(), &port.into()), "{kind}");
            assert_eq!(line["conn"], recorded(&proxy, "decision")[0]["conn"], "{kind}");
        }
        assert!(recorded(&proxy, "close").is_empty(), "{kind}");
        drop(client);
        let ended = proxy.end().await;
        assert!(ended.events("close")[0][direction].as_u64() >= Some(5 * MB as u64), "{kind}");
        assert_eq!(ended.events("progress").len(), 3, "{kind}");
    }
}

/// L17: bytes since the last line are recorded a minute later, if there are 64 kB or more.
#[tokio::test]
async fn l17_records_the_bytes_of_quiet_connections_after_a_minute() {
    // For a client that has sent something, and for one that has not: its tunnel may still become anything.
    for first in [&b"\0hello"[..], b""] {
        let origin = origin(Box::leak(vec![b'\0'; 70_000].into_boxed_slice())).await;
        let target = format!("127.0.0.1:{}", origin.port());
        let mut given = setup(&[&target]);
        given.limits.progress = Duration::from_millis(200);
        let proxy = given.start().await;
        let (mut client, _) = proxy.ask(Transport::Tcp, &target).await;
        client.write_all(first).await.unwrap();
        client.read_exact(&mut vec![0; 70_000]).await.unwrap();
        eventually(|| recorded(&proxy, "progress").len() == 1).await;
        let line = recorded(&proxy, "progress").remove(0);
        // On a busy machine the line may be written before the last bytes arrive.
        let down = line["bytes_down"].as_u64().unwrap();
        assert!(line["bytes_up"] == first.len() && (64_000..=70_000).contains(&down), "{line}");
        client.write_all(&[b'\0'; 10_000]).await.unwrap();
        sleep(Duration::from_millis(600)).await;
        assert_eq!(recorded(&proxy, "progress").len(), 1, "little has moved since");
        proxy.end().await;
    }
}

/// L17: an abandoned dial is a failure in the record and in the summary, and the host does not count as reached.
#[tokio::test]
async fn l17_counts_an_abandoned_dial_as_failed() {
    // A full queue makes loopback silent.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = silent.listen(1).unwrap();
    let dark = silent.local_addr().unwrap();
    let mut fill = Vec::new();
    let connect = || TcpSocket::new_v4().unwrap().connect(dark);
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(100), connect()).await {
        fill.push(stream);
    }
    let target = dark.to_string();
    let proxy = setup(&[&target]).start().await;
    let mut client = proxy.connect(Transport::Tcp).await;
    client
        .write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    eventually(|| recorded(&proxy, "decision").len() == 1).await;
    let log = proxy.cx.log().clone();
    let ended = proxy.end().await;
    let close = ended.events("close")[0];
    assert_eq!((&close["ended_by"], close.get("ip")), (&"error".into(), None), "{close}");
    assert_eq!(close["error"], "connect_error: given up while it was dialled");
    assert_eq!((ended.summary.failed.len(), ended.summary.reached), (1, 0));
    assert_eq!((log.counts().allowed, log.counts().failed), (1, 1));
}

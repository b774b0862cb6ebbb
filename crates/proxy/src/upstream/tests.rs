use super::*;

/// P13: the whole of what an upstream proxy is sent.
#[test]
fn p13_sends_only_the_target_of_the_client() {
    let url: UpstreamUrl = "http://proxy.test:3128".parse().unwrap();
    let target: Target = "[2001:db8::1]:443".parse().unwrap();
    let proxy = UpstreamProxy::new(url.clone(), Bypass::default(), None);
    assert_eq!(
        connect_request(&proxy, &target),
        "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n"
    );
    let proxy = UpstreamProxy::new(url, Bypass::default(), Credentials::parse(b"u:p").ok());
    let target: Target = "A.test:80".parse().unwrap();
    assert_eq!(
        connect_request(&proxy, &target),
        "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\nProxy-Authorization: Basic dTpw\r\n\r\n"
    );
}

/// P19, R10: heads of answers, and text that is none.
#[test]
fn parses_the_status_of_an_answer() {
    let fields = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(count));
    for (head, expect) in [
        ("HTTP/1.1 200 Connection established\r\n\r\n".to_owned(), Some(200)),
        ("HTTP/1.0 200\r\n\r\n".to_owned(), Some(200)),
        ("HTTP/1.1 407 \r\nProxy-Authenticate: Basic realm=\"x\"\r\n\r\n".to_owned(), Some(407)),
        ("HTTP/1.1 200 gr\u{fc}n\r\nX:\u{e9}\ty\r\n\r\n".to_owned(), Some(200)),
        (fields(limits::FIELDS), Some(200)),
        (fields(limits::FIELDS + 1), None),
        ("HTTP/2.0 200 OK\r\n\r\n".to_owned(), None),
        ("HTTP/1.2 200 OK\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 20 OK\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 2000 OK\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 099 OK\r\n\r\n".to_owned(), None),
        ("HTTP/1.1  200 OK\r\n\r\n".to_owned(), None),
        ("http/1.1 200 OK\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 200 OK\r\n folded: x\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 200 OK\r\nspace : x\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 200 OK\r\n: x\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 200 OK\nX: y\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 200 OK\rX\r\n\r\n".to_owned(), None),
        ("HTTP/1.1 200 OK\r\nX: \0\r\n\r\n".to_owned(), None),
        ("\r\n\r\n".to_owned(), None),
        (String::new(), None),
    ] {
        assert_eq!(parse_status(head.as_bytes()), expect, "{head:?}");
    }
}

/// The end is found in whatever pieces the head arrives.
#[test]
fn finds_the_end_of_a_head_in_any_pieces() {
    let bytes = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbehind\r\n\r\n";
    for seen in 0..25 {
        assert_eq!(find_head_end(bytes, seen), Some(25), "{seen}");
        assert_eq!(find_head_end(&bytes[..seen], 0), None, "{seen}");
    }
}

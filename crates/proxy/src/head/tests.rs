use proptest::prelude::*;

use super::*;

const CURL: &str = "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\nUser-Agent: curl/8.5.0\r\nProxy-Connection: Keep-Alive\r\n\r\n";
const GO: &str = "CONNECT proxy.go.example:443 HTTP/1.1\r\nHost: proxy.go.example:443\r\nUser-Agent: Go-http-client/1.1\r\n\r\n";
const PYTHON_OLD: &str = "CONNECT packages.example.org:443 HTTP/1.0\r\n\r\n";
const NODE: &str = "CONNECT registry.example.org:443 HTTP/1.1\r\nhost: registry.example.org\r\nconnection: close\r\nContent-Length: 0\r\n\r\n";
const JAVA: &str = "CONNECT repo.java.example:443 HTTP/1.1\r\nUser-Agent: Java/21\r\nHost: repo.java.example\r\nAccept: */*\r\nProxy-Connection: keep-alive\r\n\r\n";

fn parse(bytes: &[u8]) -> Parsed<'_> {
    Parser::default().advance(bytes)
}

fn fault(head: &str) -> Fault {
    match parse(head.as_bytes()) {
        Parsed::Fault(fault) => fault,
        other => panic!("{head:?}: {other:?}"),
    }
}

fn target(head: &str) -> Result<String, Fault> {
    match parse(head.as_bytes()) {
        Parsed::Head(head) => head.parse_connect().map(|target| target.to_string()),
        Parsed::Fault(fault) => Err(fault),
        Parsed::Incomplete => panic!("{head:?} is incomplete"),
    }
}

#[test]
fn parses_real_clients() {
    assert_eq!(target(CURL), Ok("api.example.com:443".into()));
    assert_eq!(target(GO), Ok("proxy.go.example:443".into()));
    assert_eq!(target(PYTHON_OLD), Ok("packages.example.org:443".into()));
    assert_eq!(target(NODE), Ok("registry.example.org:443".into()));
    assert_eq!(target(JAVA), Ok("repo.java.example:443".into()));
}

/// Every prefix is incomplete, and the whole head gives one answer, in any pieces and with any bytes after it.
#[test]
fn every_prefix_is_incomplete_then_one_answer() {
    for head in [CURL, GO, PYTHON_OLD, NODE, JAVA] {
        let behind = format!("{head}\x16\x03\x01 anything\n\n");
        let mut parser = Parser::default();
        for end in 0..head.len() {
            assert_eq!(parse(&head.as_bytes()[..end]), Parsed::Incomplete, "at {end} of {head:?}");
            assert_eq!(parser.advance(&head.as_bytes()[..end]), Parsed::Incomplete);
        }
        let Parsed::Head(whole) = parser.advance(behind.as_bytes()) else { panic!("{head:?}") };
        assert_eq!(whole.len, head.len());
        assert_eq!(parse(head.as_bytes()), Parsed::Head(whole));
    }
}

/// K49, P05, P06, P07, P08, P09, P17: tricks in the request line and in framing.
#[test]
fn faults_are_told_apart() {
    let h = "Host: a.test\r\n";
    for (head, expected) in [
        ("\x16\x03\x01".into(), Fault::Byte),
        ("\x05\x01\x00".into(), Fault::Byte),
        ("\r\nGET / HTTP/1.1\r\n".into(), Fault::RequestLine),
        ("\n".into(), Fault::BareLf),
        (" GET / HTTP/1.1\r\n".into(), Fault::RequestLine),
        ("GET http://a.test/\r\n".into(), Fault::RequestLine),
        ("CONNECT  a.test:443 HTTP/1.1\r\n".into(), Fault::RequestLine),
        ("CONNECT a.test:443  HTTP/1.1\r\n".into(), Fault::RequestLine),
        ("CONNECT a.test:443 b.test:443 HTTP/1.1\r\n".into(), Fault::RequestLine),
        ("CONNECT a.test:443 HTTP/1.1 \r\n".into(), Fault::RequestLine),
        ("CONNECT\ta.test:443 HTTP/1.1\r\n".into(), Fault::Byte),
        ("CON\"NECT a.test:443 HTTP/1.1\r\n".into(), Fault::RequestLine),
        ("PRI * HTTP/2.0\r\n".into(), Fault::Version),
        ("CONNECT a.test:443 http/1.1\r\n".into(), Fault::Version),
        ("CONNECT a.test:443 HTTP/1.10\r\n".into(), Fault::Version),
        ("CONNECT a.test:443 HTTP/1.1\rHost".into(), Fault::BareCr),
        ("CONNECT a.test:443 HTTP/1.1\r\r\n".into(), Fault::BareCr),
        ("CONNECT a.test:443 HTTP/1.1\n".into(), Fault::BareLf),
        (format!("GET / HTTP/1.1\r\n {h}"), Fault::Folded),
        (format!("GET / HTTP/1.1\r\n{h}X: 1\r\n\t2\r\n"), Fault::Folded),
        ("GET / HTTP/1.1\r\nHost : a.test\r\n".into(), Fault::FieldName),
        ("GET / HTTP/1.1\r\nHost\r\n".into(), Fault::FieldName),
        ("GET / HTTP/1.1\r\n: a\r\n".into(), Fault::FieldName),
        ("GET / HTTP/1.1\r\nX\u{1}A: 1\r\n".into(), Fault::Byte),
        ("GET / HTTP/1.1\r\nX: \u{0}\r\n".into(), Fault::Byte),
        ("GET / HTTP/1.1\r\nX: \u{7f}\r\n".into(), Fault::Byte),
        (format!("GET / HTTP/1.1\r\n{h}{h}"), Fault::TwoHosts),
        ("GET / HTTP/1.1\r\n\r\n".into(), Fault::NoHost),
        (format!("GET / HTTP/1.1\r\n{h}Content-Length: 5\r\nContent-Length: 5\r\n"), Fault::ContentLength),
        (format!("GET / HTTP/1.1\r\n{h}Content-Length: +5\r\n"), Fault::ContentLength),
        (format!("GET / HTTP/1.1\r\n{h}Content-Length: 0x5\r\n"), Fault::ContentLength),
        (format!("GET / HTTP/1.1\r\n{h}Content-Length: 5, 5\r\n"), Fault::ContentLength),
        (format!("GET / HTTP/1.1\r\n{h}Content-Length:\r\n"), Fault::ContentLength),
        (format!("GET / HTTP/1.1\r\n{h}Content-Length: 18446744073709551621\r\n"), Fault::ContentLength),
        (format!("GET / HTTP/1.1\r\n{h}Transfer-Encoding: \"chunked\"\r\n"), Fault::TransferEncoding),
        (format!("GET / HTTP/1.1\r\n{h}Transfer-Encoding: gzip, chunked\r\n"), Fault::TransferEncoding),
        (format!("GET / HTTP/1.0\r\n{h}Transfer-Encoding: chunked\r\n\r\n"), Fault::TransferEncoding),
        (
            format!("GET / HTTP/1.1\r\n{h}Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n"),
            Fault::TransferEncoding,
        ),
    ] {
        assert_eq!(fault(&head), expected, "{head:?}");
    }
}

/// P02: CONNECT names one host.
#[test]
fn parses_connect_targets_strictly() {
    let with = |target: &str, host: &str| {
        self::target(&format!("CONNECT {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    };
    for (asked, host) in [
        ("a.test:443", "a.test:443"),
        ("a.test:443", "a.test"),
        ("A.Test:443", "a.TEST"),
        ("a.test:443", "a.test."),
        ("a.test.:443", "a.test:443"),
        ("a.test:443", " \t a.test:443 \t"),
    ] {
        assert_eq!(with(asked, host), Ok("a.test:443".into()), "{asked} {host}");
    }
    assert_eq!(with("192.0.2.1:80", "192.0.2.1"), Ok("192.0.2.1:80".into()));
    assert_eq!(with("[2001:db8::1]:80", "[2001:db8::1]"), Ok("[2001:db8::1]:80".into()));
    for host in ["b.test:443", "b.test", "a.test:80", "", "a.test, b.test", "a.test:443:443", "xa.test"] {
        assert_eq!(with("a.test:443", host), Err(Fault::OtherHost), "{host}");
    }
    for asked in ["a.test", "a.test:0", "u@a.test:443", "a.test:443/", "http://a.test:443", "127.1:443", "*"]
    {
        assert_eq!(with(asked, "a.test"), Err(Fault::Authority), "{asked}");
    }
}

/// A name with a character that no host name has is a mistake of people: `_` is in names of containers.
#[test]
fn a_character_that_no_host_name_has_is_named() {
    let connect = |asked: &str| target(&format!("CONNECT {asked} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let plain = |url: &str| {
        let head = format!("GET {url} HTTP/1.1\r\nHost: x\r\n\r\n");
        let Parsed::Head(head) = parse(head.as_bytes()) else { panic!("{head:?}") };
        head.parse_absolute().map(|plain| plain.target.to_string())
    };
    assert_eq!(connect("my_db.test:443"), Err(Fault::HostByte(b'_')));
    for url in ["http://my_db.test", "http://my_db.test:8080/x", "http://_:x@y"] {
        let fault = if url.contains('@') { Fault::AbsoluteForm } else { Fault::HostByte(b'_') };
        assert_eq!(plain(url), Err(fault), "{url}");
    }
    // A03: a character of a password stays unsaid, and one that delimits the host is no mistake in it.
    for url in [
        "http://user:pa^ss@a.test/",
        "http://pa^ss/x@a.test/",
        "http://user:pa^ss",
        "http://[fe80::1%25eth0]/",
        "http://*.test/",
    ] {
        assert_eq!(plain(url), Err(Fault::AbsoluteForm), "{url}");
    }
    let told = Fault::HostByte(b'_').to_string();
    assert_eq!(told, "no host name has the character `_`: only letters, digits, `-` and `.`");
}

/// A body after CONNECT has no meaning; some clients announce that there is none.
#[test]
fn refuses_connect_with_a_body() {
    let with =
        |field: &str| target(&format!("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n{field}\r\n\r\n"));
    assert_eq!(with("Content-Length: 0"), Ok("a.test:443".into()));
    assert_eq!(with("Content-Length: 5"), Err(Fault::ConnectBody));
    assert_eq!(with("Transfer-Encoding: chunked"), Err(Fault::ConnectBody));
}

/// P20: 100 fields pass and 101 do not; 32 KiB pass and one byte more does not.
#[test]
fn bounds_sizes() {
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: 1\r\n".repeat(count - 1));
    assert!(matches!(parse(fields(limits::FIELDS).as_bytes()), Parsed::Head(_)));
    assert_eq!(fault(&fields(limits::FIELDS + 1)), Fault::TooManyFields);

    let frame = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n";
    let long = |len: usize| frame.replace("X: ", &format!("X: {}", "v".repeat(len - frame.len())));
    let fits = long(limits::HEAD_BYTES);
    assert_eq!(fits.len(), limits::HEAD_BYTES);
    assert!(matches!(parse(fits.as_bytes()), Parsed::Head(_)));
    assert_eq!(fault(&long(limits::HEAD_BYTES + 1)), Fault::TooLarge);
    assert_eq!(fault(&"G".repeat(limits::HEAD_BYTES + 1)), Fault::TooLarge);
}

/// Each byte is read once, so a head in single bytes costs no more than a whole one.
#[test]
fn reads_each_byte_once() {
    let mut parser = Parser::default();
    let head = "G".repeat(limits::HEAD_BYTES);
    for end in 0..head.len() {
        let _ = parser.advance(&head.as_bytes()[..end]);
        assert_eq!(parser.seen, end);
    }
}

fn head_like() -> impl Strategy<Value = Vec<u8>> {
    let line_end = prop_oneof![8 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r"), 1 => Just("\r\n ")];
    let word = prop_oneof![
        Just("CONNECT"),
        Just("a.test:443"),
        Just("HTTP/1.1"),
        Just("HTTP/1.0"),
        Just("Host:"),
        Just("Content-Length:"),
        Just("Transfer-Encoding:"),
        Just("chunked"),
        Just("0"),
        Just(" "),
        Just("\t"),
        Just("\u{e9}"),
        Just("\u{0}"),
    ];
    let line = (prop::collection::vec(word, 0..5), line_end)
        .prop_map(|(words, end)| format!("{}{end}", words.join("")));
    prop::collection::vec(line, 0..6).prop_map(|lines| {
        format!("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n{}\r\n", lines.concat()).into_bytes()
    })
}

/// Checks that httparse accepts what we accept, and reads the same.
fn agrees(bytes: &[u8]) {
    let Parsed::Head(head) = parse(bytes) else { return };
    let mut fields = [httparse::EMPTY_HEADER; limits::FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let len = request.parse(bytes).unwrap().unwrap();
    assert_eq!(len, head.len);
    assert_eq!(request.method.unwrap().as_bytes(), head.method);
    assert_eq!(request.path.unwrap().as_bytes(), head.target);
    let host = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case("host"));
    assert_eq!(host.map(|field| field.value), head.host);
}

/// Builds requests for `http://` targets that are well-formed except for a line or two.
fn request_like() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        Just("Content-Length: 5"),
        Just("Content-Length: 0"),
        Just("Content-Length: +5"),
        Just("Content-Length: 5, 5"),
        Just("Content-Length:"),
        Just("Content-Length: 5\u{b}"),
        Just("Content_Length: 5"),
        Just("content..length: x"),
        Just("Content-Length : 5"),
        Just("Transfer-Encoding: chunked"),
        Just("Transfer-Encoding: CHUNKED"),
        Just("Transfer-Encoding: gzip"),
        Just("Transfer-Encoding: gzip, chunked"),
        Just("Transfer-Encoding: chunked, identity"),
        Just("Transfer-Encoding: x"),
        Just("Transfer-Encoding: chunked;a=b"),
        Just("Transfer-Encoding:\tchunked"),
        Just("Transfer_Encoding: chunked"),
        Just("Transfer-Encoding"),
        Just(" folded"),
        Just("X: a\u{0}b"),
        Just("X: \u{e9}"),
        Just(": no name"),
        Just("X\u{1}: a"),
        Just("Connection: close"),
        Just("Upgrade: websocket"),
        Just("Accept: */*"),
    ];
    let end = prop_oneof![12 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r")];
    let method = prop_oneof![Just("GET"), Just("HEAD"), Just("POST"), Just("PUT"), Just("DELETE"), Just("m")];
    let target =
        prop_oneof![Just("http://a.test/"), Just("http://a.test:80/a?b"), Just("HTTP://a.test"), Just("/")];
    let version = prop_oneof![6 => Just("HTTP/1.1"), 1 => Just("HTTP/1.0"), 1 => Just("HTTP/1.2")];
    let lines = prop::collection::vec((line, end), 0..4);
    (method, target, version, lines).prop_map(|(method, target, version, lines)| {
        let lines: String = lines.into_iter().map(|(line, end)| format!("{line}{end}")).collect();
        format!("{method} {target} {version}\r\nHost: a.test\r\n{lines}\r\n").into_bytes()
    })
}

/// P05, P06, P07, P08, P09, P17: we refuse whatever a parser for smuggling attacks does not call compliant.
fn is_compliant(bytes: &[u8]) {
    use http_desync_guardian::RequestSafetyTier::Compliant;
    use http_desync_guardian::request_analyzer::HttpRequestData;
    let Parsed::Head(head) = parse(bytes) else { return };
    let said = HttpRequestData::analyze_raw_request(&bytes[..head.len]);
    assert_eq!(said.tier, Compliant, "{:?} {}", said.reason, String::from_utf8_lossy(bytes));
}

/// P05, P06, P07, P08, P09: fields that some reader takes for framing.
#[test]
fn p05_to_p09_refuses_ambiguous_framing() {
    for (fields, fault_of_it) in [
        ("Content_Length: 5", Fault::LookAlike),
        ("CONTENT.LENGTH: 5", Fault::LookAlike),
        ("Transfer_Encoding: chunked", Fault::LookAlike),
        ("transferencoding: chunked", Fault::LookAlike),
        ("Contentc-Length: 0", Fault::LookAlike),
        ("_Content-Length_: 0", Fault::LookAlike),
        ("Tr****************: x", Fault::LookAlike),
        ("!contente!!!L*: 5", Fault::LookAlike),
        ("Content-Length: 5", Fault::BodyOfGet),
        ("Content-Length: 0", Fault::BodyOfGet),
        ("Transfer-Encoding: chunked", Fault::BodyOfGet),
    ] {
        for method in ["GET", "HEAD"] {
            let head = format!("{method} http://a.test/ HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n\r\n");
            assert_eq!(fault(&head), fault_of_it, "{method} {fields}");
        }
    }
}

#[test]
fn accepts_fields_that_clients_send() {
    for name in [
        "Content-Type",
        "Content-Encoding",
        "Content-Disposition",
        "Content-MD5",
        "Content-Range",
        "TE",
        "Trailer",
        "Transfer",
        "Content",
        "Content-Security-Policy",
        "X-Content-Length",
        "X-Transfer-Encoding",
        "Content-Language",
        "Content-Location",
        "C",
        "T",
        "X-Amz-Decoded-Content-Length",
    ] {
        assert!(!looks_like_framing(name.as_bytes()), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        agrees(&bytes);
    }

    #[test]
    fn accepts_only_heads_that_httparse_accepts(bytes in head_like()) {
        agrees(&bytes);
    }

    #[test]
    fn accepts_only_compliant_heads(bytes in request_like()) {
        is_compliant(&bytes);
        agrees(&bytes);
    }

    #[test]
    fn parses_heads_alike_in_any_pieces(bytes in head_like(), cuts in prop::collection::vec(0usize..400, 0..8)) {
        let mut parser = Parser::default();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        cuts.push(bytes.len());
        let cut_up = cuts.into_iter().map(|end| parser.advance(&bytes[..end])).find(|parsed| *parsed != Parsed::Incomplete);
        prop_assert_eq!(cut_up.unwrap_or(Parsed::Incomplete), parse(&bytes));
    }
}

use proptest::prelude::*;

use super::*;

const HELLO: &[u8] = &[5, 1, 0];

fn name(text: &[u8], port: u16) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    [&[5, 1, 0, 3, length], text, &port.to_be_bytes()].concat()
}

/// Parses a request that follows a greeting; returns its target and the length of both.
fn ask(request: &[u8]) -> Result<(String, usize), Parsed> {
    let bytes = [HELLO, request].concat();
    let mut parser = Parser::default();
    assert_eq!(parser.advance(&bytes), Parsed::Greeting);
    match parser.advance(&bytes) {
        Parsed::Request { target, len } => Ok((target.to_string(), len - HELLO.len())),
        other => Err(other),
    }
}

fn fault(request: &[u8]) -> Fault {
    match ask(request) {
        Err(Parsed::Fault(fault)) => fault,
        other => panic!("{request:?}: {other:?}"),
    }
}

/// Parses a greeting.
fn greet(bytes: &[u8]) -> Parsed {
    Parser::default().advance(bytes)
}

/// Names and literals of both kinds; the bytes after them are left alone.
#[test]
fn parses_requests() {
    let ipv4 = [5, 1, 0, 1, 192, 0, 2, 1, 1, 187];
    let ipv6 = [&[5, 1, 0, 4][..], &"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets(), &[31, 144]].concat();
    for (request, target) in [
        (name(b"api.example.com", 443), "api.example.com:443"),
        (name(b"API.example.com.", 443), "api.example.com:443"),
        (ipv4.to_vec(), "192.0.2.1:443"),
        (ipv6, "[2001:db8::1]:8080"),
    ] {
        let behind = [&request[..], b"\x16\x03\x01 what comes next"].concat();
        assert_eq!(ask(&behind), Ok((target.to_owned(), request.len())));
        assert_eq!(ask(&request), Ok((target.to_owned(), request.len())));
        for end in 0..request.len() {
            assert_eq!(ask(&request[..end]), Err(Parsed::Incomplete), "{end} of {target}");
        }
    }
}

/// S05: only without authentication. The whole list of methods is read, and no byte more.
#[test]
fn methods() {
    let all: Vec<u8> = (0..=254).rev().collect();
    let full = [&[5, 255][..], &all].concat();
    for (bytes, expected) in [
        (&[][..], Parsed::Incomplete),
        (&[5], Parsed::Incomplete),
        (&[5, 1], Parsed::Incomplete),
        (&[5, 1, 0], Parsed::Greeting),
        (&[5, 3, 2, 1], Parsed::Incomplete),
        (&[5, 3, 2, 1, 0], Parsed::Greeting),
        (&full[..256], Parsed::Incomplete),
        (&full, Parsed::Greeting),
        (&[5, 0], Parsed::Fault(Fault::Methods)),
        (&[5, 0, 0], Parsed::Fault(Fault::Methods)),
        (&[5, 1, 2], Parsed::Fault(Fault::Methods)),
        (&[5, 2, 1, 2], Parsed::Fault(Fault::Methods)),
        // The 0 after the list is not an offer.
        (&[5, 1, 2, 0], Parsed::Fault(Fault::Methods)),
        (&[5, 1, 255, 0], Parsed::Fault(Fault::Methods)),
    ] {
        assert_eq!(greet(bytes), expected, "{bytes:?}");
    }
}

/// S07: the first byte shows that it is not SOCKS5.
#[test]
fn other_protocols() {
    for bytes in
        [&b"CONNECT a.test:443 HTTP/1.1\r\n"[..], b"GET", b"\x04\x01\x01\xbb", b"\x16\x03\x01", b"\0"]
    {
        assert_eq!(greet(bytes), Parsed::Fault(Fault::NotSocks), "{bytes:?}");
        assert_eq!(greet(&bytes[..1]), Parsed::Fault(Fault::NotSocks), "{bytes:?}");
    }
}

/// S04, S05: another command, a reserved byte, and a sub-negotiation instead of a request.
#[test]
fn faults_are_told_apart() {
    for (request, expected) in [
        (&[1, 4][..], Fault::Version),
        (b"CONNECT ", Fault::Version),
        (&[5, 2], Fault::Command),
        (&[5, 3], Fault::Command),
        (&[5, 0], Fault::Command),
        (&[5, 0xf0], Fault::Command),
        (&[5, 1, 1], Fault::Reserved),
        (&[5, 1, 0, 0], Fault::AddressType),
        (&[5, 1, 0, 2], Fault::AddressType),
        (&[5, 1, 0, 5], Fault::AddressType),
        (&[5, 1, 0, 3, 0], Fault::Authority),
        (&[5, 1, 0, 1, 192, 0, 2, 1, 0, 0], Fault::Authority),
        (&[5, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], Fault::Authority),
    ] {
        assert_eq!(fault(request), expected, "{request:?}");
    }
}

/// S01, S03: the text of a name is read as for CONNECT, whatever it contains.
#[test]
fn parses_names_as_connect_does() {
    for (text, target) in [
        ("127.0.0.1", Some("127.0.0.1:443")),
        ("[::1]", Some("[::1]:443")),
        ("0x7f.1", None),
        ("2130706433", None),
        ("127.1", None),
        ("0177.0.0.1", None),
        ("::1", None),
        ("[::1", None),
        ("[::1]:22", None),
        ("[fe80::1%25eth0]", None),
        ("a.test:22", None),
        ("a.test:443", None),
        ("user@a.test", None),
        ("a.test/", None),
        ("a.test\0.evil.test", None),
        ("a.test\0", None),
        ("a.test\r\n", None),
        ("a\u{7f}.test", None),
        ("a test", None),
        ("*.test", None),
        ("b\u{fc}cher.test", None),
        (".", None),
    ] {
        let asked = ask(&name(text.as_bytes(), 443)).ok().map(|(target, _)| target);
        assert_eq!(asked.as_deref(), target, "{text:?}");
        let connect = Target::parse(format!("{text}:443").as_bytes()).ok();
        assert_eq!(asked, connect.map(|target| target.to_string()), "{text:?} for CONNECT");
    }
    assert_eq!(fault(&name(b"a.test", 0)), Fault::Authority);
    assert_eq!(fault(&name(b"my_db.test", 443)), Fault::HostByte(b'_'));
    assert_eq!(fault(&name(b"u:se^cret@a.test", 443)), Fault::Authority);
}

/// S06: the longest name is read to its end, refused for its content, and known afterwards.
#[test]
fn parses_the_longest_name() {
    let long = [b'a'; 255];
    let request = name(&long, 443);
    for end in 0..request.len() {
        assert_eq!(ask(&request[..end]), Err(Parsed::Incomplete), "{end}");
    }
    let bytes = [HELLO, &request].concat();
    let mut parser = Parser::default();
    assert_eq!(parser.advance(&bytes), Parsed::Greeting);
    assert_eq!(parser.name(&bytes), None);
    assert_eq!(parser.advance(&bytes), Parsed::Fault(Fault::Authority));
    assert_eq!(parser.name(&bytes), Some(&long[..]));
    // A name may have 253 bytes (RFC 1035 section 2.3.4).
    let longest = [&[b'a'; 61][..], &[b"." as &[u8], &[b'b'; 63]].concat().repeat(3)].concat();
    assert_eq!(longest.len(), 253);
    assert!(ask(&name(&longest, 65535)).is_ok());
}

proptest! {
    /// S06: in any pieces the answer is that of the whole, and bytes after it change nothing.
    #[test]
    fn cuts_change_nothing(
        methods in prop::collection::vec(0_u8..3, 1..5),
        request in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..12),
            ("[a-z0-9.:\\[\\]-]{1,20}", any::<u16>()).prop_map(|(text, port)| name(text.as_bytes(), port)),
            any::<([u8; 4], u16)>().prop_map(|(ip, port)| [&[5, 1, 0, 1], &ip[..], &port.to_be_bytes()].concat()),
            any::<([u8; 16], u16)>().prop_map(|(ip, port)| [&[5, 1, 0, 4], &ip[..], &port.to_be_bytes()].concat()),
        ],
        behind in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let greeting = [&[5, u8::try_from(methods.len()).unwrap()], &methods[..]].concat();
        let bytes = [greeting, request, behind].concat();
        crate::fuzz_seeds::checks::socks(&bytes);
    }
}

use std::sync::Arc;

use proptest::prelude::*;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

/// Returns the first flight of a real client.
pub(crate) fn real(name: &str, alpn: &[&str]) -> Vec<u8> {
    let mut config =
        ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// Splits the message of `hello` into records of `piece` bytes.
pub(crate) fn in_records(hello: &[u8], piece: usize) -> Vec<u8> {
    let message = &hello[5..];
    let mut bytes = Vec::new();
    for fragment in message.chunks(piece) {
        bytes.extend([22, 3, 1]);
        bytes.extend(u16::try_from(fragment.len()).unwrap().to_be_bytes());
        bytes.extend(fragment);
    }
    bytes
}

/// Builds a real hello whose server_name extension has this content, with `padding` bytes in another extension.
pub(crate) fn with_server_name(extension: Option<&[u8]>, padding: usize) -> Vec<u8> {
    let padding = (padding > 0).then(|| (21, vec![0; padding]));
    with_extensions(padding.into_iter().chain(extension.map(|content| (0, content.to_vec()))))
}

/// Builds a hello for this name, with an encrypted one as browsers send it (RFC 9849 section 5): an outer one, with
/// HKDF-SHA256 and AES-128-GCM, and a random key and payload.
pub(crate) fn with_ech(name: &[u8]) -> Vec<u8> {
    let outer = [&[0, 0, 1, 0, 1, 7, 0, 32][..], &[9; 32], &[0, 144], &[9; 144]].concat();
    with_extensions([(0, entries(&[(0, name)])), (super::ECH, outer)])
}

/// Builds a real hello with these extensions instead of its server_name.
fn with_extensions(more: impl IntoIterator<Item = (usize, Vec<u8>)>) -> Vec<u8> {
    let hello = real("x.test", &[]);
    let body = &hello[9..];
    let mut all = parse_extensions(body).unwrap();
    let head_len = body.len() - all.0.len() - 2;
    let mut list = Vec::new();
    let mut push = |kind: usize, content: &[u8]| {
        list.extend(u16::try_from(kind).unwrap().to_be_bytes());
        list.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        list.extend(content);
    };
    while !all.0.is_empty() {
        let kind = all.number(2).unwrap();
        let content = all.prefixed(2).unwrap();
        if kind != 0 {
            push(kind, content);
        }
    }
    for (kind, content) in more {
        push(kind, &content);
    }
    let mut message = body[..head_len].to_vec();
    message.extend(u16::try_from(list.len()).unwrap().to_be_bytes());
    message.extend(list);
    let mut whole = vec![0; 5];
    whole.push(1);
    whole.extend(&u32::try_from(message.len()).unwrap().to_be_bytes()[1..]);
    whole.extend(message);
    in_records(&whole, 16 * 1024)
}

pub(crate) fn entries(names: &[(u8, &[u8])]) -> Vec<u8> {
    let mut list = Vec::new();
    for (kind, name) in names {
        list.push(*kind);
        list.extend(u16::try_from(name.len()).unwrap().to_be_bytes());
        list.extend(*name);
    }
    let mut extension = u16::try_from(list.len()).unwrap().to_be_bytes().to_vec();
    extension.extend(list);
    extension
}

fn read(bytes: &[u8]) -> Result<Option<Hello>, HelloFault> {
    Reader::new().advance(bytes)
}

fn sni(bytes: &[u8]) -> Result<Option<String>, HelloFault> {
    read(bytes).map(|hello| hello.expect("complete").sni)
}

/// T03: every prefix is incomplete, and the whole hello gives one answer, in one piece, in single bytes, or in
/// one-byte records.
#[test]
fn every_prefix_is_incomplete_then_one_answer() {
    let hello = real("allowed.test", &["h2", "http/1.1"]);
    let expected = Hello { sni: Some("allowed.test".into()), alpn: Some(b"h2".to_vec()), ech: false };
    for bytes in [hello.clone(), in_records(&hello, 1), in_records(&hello, 100)] {
        let mut reader = Reader::new();
        for end in 1..bytes.len() {
            assert_eq!(reader.advance(&bytes[..end]), Ok(None), "at {end}");
        }
        assert_eq!(reader.advance(&bytes), Ok(Some(expected.clone())));
        assert_eq!(read(&bytes), Ok(Some(expected.clone())));
        let behind = [bytes.as_slice(), b"anything"].concat();
        assert_eq!(read(&behind), Ok(Some(expected.clone())));
    }
}

/// T02, T05: no name, two names, odd types, odd bytes, a trailing dot, an address.
#[test]
fn refuses_odd_server_names() {
    let one = |name: &[u8]| with_server_name(Some(&entries(&[(0, name)])), 0);
    assert_eq!(sni(&one(b"allowed.test")), Ok(Some("allowed.test".into())));
    assert_eq!(sni(&one(b"ALLOWED.test")), Ok(Some("ALLOWED.test".into())));
    assert_eq!(sni(&with_server_name(None, 0)), Ok(None));
    for name in [
        &b""[..],
        b"a\0.test",
        b"a\r\n.test",
        b"a.test\0evil.test",
        b"a test",
        b"\xc3\xa9.test",
        b"a/b",
        b"192.0.2.1",
        b"2001:db8::1",
    ] {
        assert_eq!(sni(&one(name)), Err(HelloFault::Malformed), "{name:?}");
    }
    for list in [
        entries(&[(0, b"allowed.test"), (0, b"evil.test")]),
        entries(&[(0, b"allowed.test"), (1, b"evil.test")]),
        entries(&[(1, b"allowed.test")]),
        entries(&[(1, b"evil.test"), (0, b"allowed.test")]),
        entries(&[]),
        vec![],
        [entries(&[(0, b"allowed.test")]), vec![0]].concat(),
    ] {
        assert_eq!(sni(&with_server_name(Some(&list), 0)), Err(HelloFault::Malformed), "{list:?}");
    }
}

/// T04: the name may come late, and the size limit holds.
#[test]
fn reads_large_hellos() {
    let name = entries(&[(0, b"allowed.test")]);
    for padding in [2_000, 16_000, 40_000] {
        assert_eq!(
            sni(&with_server_name(Some(&name), padding)),
            Ok(Some("allowed.test".into())),
            "{padding}"
        );
    }
    let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
    endless.resize(5 + 0x4000, 0);
    while endless.len() < limits::HELLO_BYTES {
        endless.extend([22, 3, 1, 0x40, 0]);
        endless.resize(endless.len() + 0x4000, 0);
    }
    assert!(matches!(read(&endless), Err(HelloFault::TooLarge | HelloFault::Malformed)));
    // One-byte records have 6 bytes for each byte: the limit counts buffered bytes, not message bytes.
    let slow = in_records(&with_server_name(Some(&name), 20_000), 1);
    assert_eq!(read(&slow[..limits::HELLO_BYTES]), Err(HelloFault::TooLarge));
}

/// T06: the first byte shows that it is not TLS.
#[test]
fn not_tls() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"SSH-2.0-x",
        b"\x80\x2e\x01\x03\x01",
        b"\x16\x02",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x17\x03\x03",
    ] {
        assert_eq!(read(bytes), Err(HelloFault::NotTls), "{bytes:?}");
    }
    assert_eq!(read(b"\x16\x03\x01\x00\x04\x02\x00\x00\x00"), Err(HelloFault::Malformed), "a ServerHello");
    assert_eq!(read(b"\x16\x03\x01\x00\x00"), Err(HelloFault::Malformed), "an empty record");
}

/// T01, T02: the name must be the requested host; a literal must come without a name.
#[test]
fn compares_server_names() {
    let check = |target: &str, sni: Option<&str>| {
        let hello = Hello { sni: sni.map(str::to_owned), alpn: None, ech: false };
        let target = Target::parse(target.as_bytes()).unwrap();
        let judged = hello.check(&target, Ech::Record);
        assert_eq!(hello.check(&target, Ech::Refuse), judged);
        // T08: ECH is only recorded by default; in strict mode it is refused whatever the outer name is.
        let hidden = Hello { ech: true, ..hello };
        assert_eq!(hidden.check(&target, Ech::Record), judged);
        assert_eq!(hidden.check(&target, Ech::Refuse), Err(HelloFault::Hidden));
        judged
    };
    assert_eq!(check("a.test:443", Some("A.TEST")), Ok(()));
    assert_eq!(check("a.test:443", Some("b.test")), Err(HelloFault::OtherName));
    assert_eq!(check("a.test:443", Some("x.a.test")), Err(HelloFault::OtherName));
    assert_eq!(check("a.test:443", Some("a.test.")), Err(HelloFault::OtherName));
    assert_eq!(check("a.test:443", None), Err(HelloFault::NoName));
    assert_eq!(check("192.0.2.1:443", None), Ok(()));
    assert_eq!(check("192.0.2.1:443", Some("192.0.2.1")), Err(HelloFault::OtherName));
    assert_eq!(check("192.0.2.1:443", Some("a.test")), Err(HelloFault::OtherName));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    /// T10.
    #[test]
    fn changed_bytes_do_no_harm(
        changes in prop::collection::vec((0usize..600, any::<u8>()), 1..8),
        piece in 1usize..300,
    ) {
        let mut bytes = in_records(&real("allowed.test", &["h2"]), piece);
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let _ = read(&bytes);
    }

    #[test]
    fn random_bytes_do_no_harm(rest in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&rest);
        let _ = read(&[&[22, 3, 1, 0, 200, 1, 0, 0, 190], rest.as_slice()].concat());
    }
}

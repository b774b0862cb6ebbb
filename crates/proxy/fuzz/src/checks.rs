//! Checks what must hold for any bytes. Each function panics if it does not hold.
//!
//! The programs in `bin/` pass libFuzzer's bytes, and `fuzz_seeds.rs` of the proxy includes this file and passes
//! every committed seed. So this file may use only what both can see.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a check fails loudly, and is called from another crate or from a test of this one"
)]

use std::net::IpAddr;

use http_desync_guardian::RequestSafetyTier;
use http_desync_guardian::request_analyzer::HttpRequestData;
use hyper::Uri;
use hyper::http::uri::PathAndQuery;

use exeat_policy::{Ech, Host, HostName, Target};
use simple_dns::{Packet, PacketFlag, QTYPE};

use crate::gateway::dns::{self, Answer, Code, Message, Pair, Question, QuestionType};
use crate::head::{Head, Parsed, Parser, Version};
use crate::hello::{Hello, HelloFault, Reader};
use crate::hosts_file;
use crate::socks;

/// A check of some bytes.
pub type Check = fn(&[u8]);

/// Every target, by the name of its program and its seeds.
pub const TARGETS: &[(&str, Check)] = &[
    ("absolute", absolute),
    ("dns", dns),
    ("head", head),
    ("hello", hello),
    ("hosts", hosts),
    ("socks", socks),
];

/// Checks the bytes that a client sends before it gets an answer.
pub fn head(data: &[u8]) {
    let whole = Parser::default().advance(data);
    // Byte by byte, the answer is the same, and comes as soon as it is known.
    let mut parser = Parser::default();
    let mut ends = 0..=data.len();
    let early = ends.find_map(|end| match parser.advance(&data[..end]) {
        Parsed::Incomplete => None,
        answer => Some((end, answer)),
    });
    match (&whole, &early) {
        (Parsed::Incomplete, None) => {}
        (Parsed::Fault(fault), Some((_, Parsed::Fault(other)))) => assert_eq!(fault, other),
        (Parsed::Head(head), Some((end, Parsed::Head(other)))) => {
            assert_eq!(head, other);
            assert_eq!(head.len, *end);
        }
        _ => panic!("{whole:?} in one piece, {early:?} byte by byte"),
    }
    // The same in two pieces, cut anywhere.
    if data.len() <= 600 {
        for cut in 0..data.len() {
            let mut parser = Parser::default();
            let first = parser.advance(&data[..cut]);
            let answer = if first == Parsed::Incomplete { parser.advance(data) } else { first };
            assert_eq!(answer, whole, "cut at {cut}");
        }
    }
    match whole {
        Parsed::Head(head) => accepted(data, &head),
        Parsed::Fault(fault) => {
            assert!(matches!(fault.status(), 400 | 431), "{fault}");
            // The text goes into the body of a reply, so it must not repeat the client's text.
            assert!(fault.to_string().bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{fault}");
        }
        Parsed::Incomplete => {}
    }
}

/// Checks that other parsers also accept an accepted head.
fn accepted(data: &[u8], head: &Head<'_>) {
    let bytes = &data[..head.len];
    assert!(bytes.ends_with(b"\r\n\r\n"));
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\n' => assert_eq!(bytes[at - 1], b'\r', "a bare line feed at {at}"),
            b'\r' => assert_eq!(bytes[at + 1], b'\n', "a bare carriage return at {at}"),
            0..=8 | 11..=31 | 127 => panic!("a control byte at {at}"),
            _ => {}
        }
    }
    let text: Vec<char> = bytes.iter().map(|byte| char::from(*byte)).collect();
    let text: String = text.into_iter().collect();
    let mut lines = text.strip_suffix("\r\n\r\n").unwrap().split("\r\n");
    let shown = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
    let version = match head.version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
    };
    assert_eq!(lines.next(), Some(&*format!("{} {} {version}", shown(head.method), shown(head.target))));

    let fields: Vec<(String, &str)> = lines
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            assert!(!name.is_empty() && !name.contains([' ', '\t']), "{line:?}");
            (name.to_ascii_lowercase(), value.trim_matches([' ', '\t']))
        })
        .collect();
    let values = |name: &str| -> Vec<&str> {
        fields.iter().filter(|(other, _)| other == name).map(|(_, value)| *value).collect()
    };
    assert_eq!(values("host"), head.host.map(shown).iter().map(String::as_str).collect::<Vec<_>>());
    assert!(head.host.is_some() || head.version == Version::Http10);
    let (length, coding) = (values("content-length"), values("transfer-encoding"));
    assert!(length.len() + coding.len() <= 1, "{length:?} {coding:?}");
    let length = length.first().is_some_and(|length| length.parse::<u64>().unwrap() > 0);
    assert_eq!(head.body, length || !coding.is_empty());

    // hyper reads everything except CONNECT with httparse.
    let mut room = [httparse::EMPTY_HEADER; crate::limits::FIELDS];
    let mut other = httparse::Request::new(&mut room);
    match other.parse(data) {
        Ok(httparse::Status::Complete(len)) => {
            assert_eq!(len, head.len);
            assert_eq!(other.method.map(str::as_bytes), Some(head.method));
            assert_eq!(other.path.map(str::as_bytes), Some(head.target));
            assert_eq!(other.version, Some(u8::from(head.version == Version::Http11)));
            assert_eq!(other.headers.len(), fields.len());
            let host = other.headers.iter().find(|field| field.name.eq_ignore_ascii_case("host"));
            assert_eq!(host.map(|host| host.value), head.host);
        }
        Ok(httparse::Status::Partial) => panic!("httparse waits for more"),
        // It may be stricter about a byte: the request then gets a refusal.
        Err(_) => {}
    }

    if let Ok(target) = head.parse_connect() {
        assert!(!head.body);
        assert_eq!(Target::parse(head.target).as_ref(), Ok(&target));
        // The `Host` field names the same host.
        if let Some(host) = head.host.map(shown) {
            let host = host.to_ascii_lowercase();
            match &target.host {
                Host::Name(name) => assert!(host.starts_with(name.as_str()), "{host} beside {target}"),
                Host::Ip(ip) => assert!(
                    host.contains(&ip.to_string()) || ip.is_ipv6() && host.contains(':'),
                    "{host} beside {target}"
                ),
            }
        }
    }
}

/// Checks a request other than CONNECT: to the proxy, or in a tunnel to port 80 of `a.test`.
pub fn absolute(data: &[u8]) {
    let Parsed::Head(head) = Parser::default().advance(data) else { return };
    if head.method == b"CONNECT" {
        return;
    }
    // P05 to P09: a head is refused if a parser for smuggling attacks does not call it compliant.
    let said = HttpRequestData::analyze_raw_request(&data[..head.len]);
    assert_eq!(said.tier, RequestSafetyTier::Compliant, "{:?}", said.reason);
    let outgoing = |path: &PathAndQuery| {
        let path = path.as_str();
        assert!(path.starts_with('/') || path == "*" && head.method == b"OPTIONS", "{path:?}");
        assert!(path.bytes().all(|byte| (b'!'..=b'~').contains(&byte) && byte != b'#'), "{path:?}");
    };
    if let Ok(plain) = head.parse_absolute() {
        outgoing(&plain.path);
        // hyper reads the same target.
        let uri: Uri = std::str::from_utf8(head.target).unwrap().parse().unwrap();
        assert_eq!(uri.scheme_str(), Some("http"));
        let authority = uri.authority().unwrap().as_str();
        let target = Target::parse(authority.as_bytes())
            .or_else(|_| Target::parse(format!("{authority}:80").as_bytes()))
            .unwrap();
        assert_eq!(target, plain.target);
        if plain.path.as_str() != "*" {
            let theirs = uri.path_and_query().unwrap().as_str();
            assert_eq!(theirs.trim_start_matches('/'), plain.path.as_str().trim_start_matches('/'));
        }
    }
    let inside = Target::parse(b"a.test:80").unwrap();
    if let Ok(path) = head.parse_inner(&inside) {
        outgoing(&path);
        let host = head.host.unwrap().to_ascii_lowercase();
        assert!([&b"a.test"[..], b"a.test.", b"a.test:80", b"a.test.:80"].contains(&&*host), "{host:?}");
        if let Ok(plain) = head.parse_absolute() {
            assert_eq!(plain.target, inside);
        }
    }
}

/// Checks a hosts file.
pub fn hosts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let read = hosts_file::parse(&text);
    for (name, ips) in &read {
        assert!(!ips.is_empty() && !name.is_empty());
        assert!(
            !name.contains(|char: char| char == '#'
                || char.is_ascii_whitespace()
                || char.is_ascii_uppercase())
        );
        // Each entry comes from a line that begins with the address and has the name.
        for (at, ip) in ips.iter().enumerate() {
            assert!(!ips[..at].contains(ip), "twice");
            assert!(text.lines().any(|line| {
                let line = line.split('#').next().unwrap().to_ascii_lowercase();
                let words: Vec<&str> = line.split_ascii_whitespace().collect();
                words.first().and_then(|word| word.parse().ok()) == Some(*ip) && words[1..].contains(&&**name)
            }));
        }
    }
}

/// Checks what a client sends after the answer 200.
pub fn hello(data: &[u8]) {
    let whole = read(data);
    let mut reader = Reader::new();
    let mut early = None;
    for end in 1..=data.len() {
        match reader.advance(&data[..end]) {
            Ok(None) => {}
            answer => {
                early = Some((end, answer));
                break;
            }
        }
    }
    match (&whole, early) {
        (Ok(None), None) => {}
        (Ok(Some(hello)), Some((end, Ok(Some(other))))) => {
            assert_eq!(*hello, other);
            // Every prefix is incomplete, and bytes after it change nothing.
            assert_eq!(read(&data[..end]), whole);
            let step = 1 + end / 256;
            for shorter in (0..end).step_by(step) {
                assert_eq!(read(&data[..shorter]), Ok(None), "the first {shorter} of {end}");
            }
            check_name(hello);
        }
        (Err(fault), Some((_, Err(other)))) => {
            assert_eq!(*fault == HelloFault::NotTls, other == HelloFault::NotTls, "{fault:?} or {other:?}");
        }
        (whole, early) => panic!("{whole:?} in one piece, {early:?} byte by byte"),
    }
}

fn read(data: &[u8]) -> Result<Option<Hello>, HelloFault> {
    Reader::new().advance(data)
}

/// Checks that a name has only valid bytes, and passes for its own host only.
fn check_name(hello: &Hello) {
    let asked = |host: &str| Target::parse(format!("{host}:443").as_bytes());
    let other = asked("other.example").unwrap();
    let literal = asked("192.0.2.1").unwrap();
    let Some(sni) = &hello.sni else {
        assert_eq!(hello.check(&other, Ech::Record), Err(HelloFault::NoName));
        assert_eq!(hello.check(&literal, Ech::Record), Ok(()));
        return;
    };
    assert!(
        !sni.is_empty() && sni.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    );
    assert_eq!(hello.check(&literal, Ech::Record), Err(HelloFault::OtherName));
    if hello.ech {
        assert_eq!(hello.check(&other, Ech::Refuse), Err(HelloFault::Hidden));
    }
    if !sni.eq_ignore_ascii_case("other.example") {
        assert_eq!(hello.check(&other, Ech::Record), Err(HelloFault::OtherName));
    }
    if let Ok(target) = asked(sni) {
        // A trailing dot is not part of a server name (RFC 6066 section 3).
        assert_eq!(
            hello.check(&target, Ech::Record).is_ok(),
            target.host.name().is_some() && !sni.ends_with('.'),
            "{sni}"
        );
    }
}

/// Checks what a client of the SOCKS5 port sends.
pub fn socks(data: &[u8]) {
    let read = |bytes: &[u8]| {
        let mut parser = socks::Parser::default();
        match parser.advance(bytes) {
            // The parser reports it once; the request is parsed from the same bytes.
            socks::Parsed::Greeting => (parser.greeted(), parser.advance(bytes)),
            other => (parser.greeted(), other),
        }
    };
    let whole = read(data);
    // Byte by byte, the answer is the same, comes as soon as it is known, and does not depend on later bytes.
    let mut parser = socks::Parser::default();
    let mut early = None;
    for end in 0..=data.len() {
        assert_eq!(
            read(&data[..end]).1 == socks::Parsed::Incomplete,
            early.is_none() && {
                let mut answer = parser.advance(&data[..end]);
                if answer == socks::Parsed::Greeting {
                    answer = parser.advance(&data[..end]);
                }
                if answer != socks::Parsed::Incomplete {
                    early = Some((end, (parser.greeted(), answer)));
                }
                early.is_none()
            }
        );
        if let Some((_, answer)) = &early {
            assert_eq!(read(&data[..end]), *answer);
            break;
        }
    }
    match (&whole.1, early) {
        (socks::Parsed::Incomplete, None) => assert!(data.len() < 257 + 262, "{} bytes wait", data.len()),
        (answer, Some((end, other))) => {
            assert_eq!(whole, other);
            if let socks::Parsed::Request { target, len } = answer {
                assert_eq!(*len, end);
                requested(&data[..end], target);
            }
        }
        (answer, None) => panic!("{answer:?} in one piece, none byte by byte"),
    }
}

/// Parses an accepted greeting and request from the end, in the opposite order.
fn requested(data: &[u8], target: &Target) {
    let methods = usize::from(data[1]);
    assert!(data[0] == 5 && data[2..2 + methods].contains(&0));
    let (request, port) = data[2 + methods..].split_at(data.len() - 2 - methods - 2);
    assert_eq!(target.port.get(), u16::from(port[0]) << 8 | u16::from(port[1]));
    assert_eq!(request[..3], [5, 1, 0]);
    let host = &request[4..];
    let text = match request[3] {
        1 => host.iter().map(ToString::to_string).collect::<Vec<_>>().join("."),
        4 => {
            let groups =
                host.chunks(2).map(|pair| format!("{:x}", u16::from(pair[0]) << 8 | u16::from(pair[1])));
            format!("[{}]", groups.collect::<Vec<_>>().join(":"))
        }
        3 => {
            assert_eq!(usize::from(host[0]), host.len() - 1);
            String::from_utf8(host[1..].to_vec()).unwrap()
        }
        other => panic!("address type {other}"),
    };
    // CONNECT reads the same host in it, and so does the reader of records.
    assert_eq!(Target::parse(format!("{text}:{}", target.port).as_bytes()).as_ref(), Ok(target));
    assert_eq!(Target::parse(target.to_string().as_bytes()).as_ref(), Ok(target));
}

/// Checks a datagram to the gateway's name server.
pub fn dns(data: &[u8]) {
    match dns::parse(data) {
        // The header is incomplete, or it is an answer.
        Message::Mute => assert!(data.len() < 12 || data[2] & 0x80 != 0),
        Message::Refused(answer) => {
            answered(data, &answer);
            assert_eq!(answer[6..10], [0; 4], "no answer and no authority");
        }
        Message::Question(question) => questioned(data, &question),
    }
}

/// Checks that another library finds the same question, and can read every answer.
fn questioned(data: &[u8], question: &Question) {
    let section = section(data).unwrap();
    let alone = legible(data, section);
    // Further records that it cannot parse are not part of the question.
    let edns = Packet::parse(&legible(data, data.len())).ok().map(|packet| packet.opt().is_some());
    let theirs = Packet::parse(&alone).unwrap();
    let [asked] = &theirs.questions[..] else { panic!("{:?}", theirs.questions) };
    assert!(theirs.answers.is_empty() && theirs.name_servers.is_empty());
    let labels: Vec<&[u8]> = asked.qname.iter().map(AsRef::as_ref).collect();
    assert_eq!(question.is_root(), labels.is_empty());
    let kind = u16::from(data[section - 4]) << 8 | u16::from(data[section - 3]);
    assert_eq!(
        question.kind(),
        match kind {
            1 => QuestionType::V4,
            28 => QuestionType::V6,
            255 => QuestionType::Both,
            12 => QuestionType::Name,
            _ => QuestionType::Other,
        }
    );
    let joined = labels.join(&b'.');
    let name = std::str::from_utf8(&joined).ok();
    if let Some(host) = question.host() {
        assert_eq!(host.labels().count(), labels.len());
        assert!(name.unwrap().eq_ignore_ascii_case(host.as_str()));
        assert_eq!(question.host_below(), Some(host));
        assert_eq!(question.text(), joined);
    } else {
        // The only other reason for a negative answer is a dot that separates no labels.
        let dotted = labels.iter().any(|label| label.contains(&b'.'));
        let parsed = name.and_then(|name| name.parse::<HostName>().ok());
        assert!(dotted || parsed.is_none(), "{name:?}");
    }
    if let Some(ip) = question.reverse_address() {
        let name = name.unwrap().to_ascii_lowercase();
        let (digits, suffix) = match ip {
            IpAddr::V4(ip) => (ip.octets().map(|byte| byte.to_string()).to_vec(), "in-addr.arpa"),
            IpAddr::V6(ip) => {
                (format!("{:032x}", ip.to_bits()).chars().map(String::from).collect(), "ip6.arpa")
            }
        };
        let digits: Vec<String> = digits.into_iter().rev().collect();
        assert_eq!(name, format!("{}.{suffix}", digits.join(".")));
    }

    let pair = Pair { v4: [198, 18, 0, 1].into(), v6: 1.into() };
    let said = |answer| {
        let bytes = question.answer(answer);
        assert_eq!(bytes[12..section], data[12..section], "the question, byte for byte");
        answered(data, &bytes);
        let bytes = legible(&bytes, bytes.len());
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.opt().is_some(), edns.unwrap_or(packet.opt().is_some()));
        let kinds: Vec<u16> = packet.answers.iter().map(|record| record.rdata.type_code().into()).collect();
        assert!(packet.answers.iter().all(|record| record.name == asked.qname));
        (kinds, packet.name_servers.len())
    };
    let addresses = match kind {
        1 | 28 => vec![kind],
        255 => vec![1, 28],
        _ => Vec::new(),
    };
    let negative = usize::from(addresses.is_empty());
    assert_eq!(said(Answer::At(pair)), (addresses, negative));
    assert_eq!(said(Answer::Nothing), (Vec::new(), 1));
    assert_eq!(said(Answer::Code(Code::NoSuchName)), (Vec::new(), 1));
    assert_eq!(said(Answer::Code(Code::Failed)), (Vec::new(), 0));
    if question.reverse_address().is_some() {
        let host = "a.test".parse().unwrap();
        let name = if kind == 12 { (vec![12], 0) } else { (Vec::new(), 1) };
        assert_eq!(said(Answer::Name(&host)), name);
    }
}

/// Checks every answer to `data`, whatever it contains.
fn answered(data: &[u8], answer: &[u8]) {
    assert!(answer.len() <= crate::limits::ANSWER_BYTES, "{} bytes", answer.len());
    assert_eq!(answer[..2], data[..2]);
    // The answer has the same opcode and is not truncated; RD and CD are copied, and AD is not set.
    assert_eq!(answer[2], 0x80 | data[2] & 0x79);
    assert_eq!(answer[3] & 0xf0, 0x80 | data[3] & 0x10);
    let answer = legible(answer, answer.len());
    let packet = Packet::parse(&answer).unwrap();
    assert!(packet.has_flags(PacketFlag::RESPONSE));
    assert!(packet.additional_records.is_empty(), "but for OPT");
}

/// Finds the end of the one question of a message.
fn section(message: &[u8]) -> Option<usize> {
    let mut at = 12;
    while *message.get(at)? != 0 {
        at += 1 + usize::from(message[at]);
    }
    (message[5] == 1 && message.len() >= at + 5).then_some(at + 5)
}

/// Returns the first `len` bytes of a message, with TXT and IN instead of types and classes that the other library
/// does not know, and without the reserved bit, which we ignore.
fn legible(message: &[u8], len: usize) -> Vec<u8> {
    let mut message = message.to_vec();
    message[3] &= 0xbf;
    if let Some(end) = section(&message) {
        if QTYPE::try_from(u16::from_be_bytes([message[end - 4], message[end - 3]])).is_err() {
            message[end - 4..end - 2].copy_from_slice(&[0, 16]);
        }
        message[end - 2..end].copy_from_slice(&[0, 1]);
        if len == end {
            message[10..12].fill(0);
        }
    }
    message.truncate(len);
    message
}

//! Checks request text: what is accepted, and as what, against a second parser.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use exeat_policy::{Host, Target, TargetError};

/// Checks the authority of a CONNECT request.
pub fn check(data: &[u8]) {
    let parsed = Target::parse(data);
    let expected = read(data);
    match (&parsed, &expected) {
        (Ok(target), Some((host, port))) => {
            let same = match (&target.host, host) {
                (Host::Name(name), Naive::Name(other)) => name.as_str() == other,
                (Host::Ip(ip), Naive::Ip(other)) => ip == other,
                _ => false,
            };
            assert!(same && target.port.get() == *port, "read as {target}, not {expected:?}");
            // A name never looks like an address to a later reader.
            if let Host::Name(name) = &target.host {
                assert!(name.as_str().parse::<IpAddr>().is_err(), "{name} is an address");
            }
            let shown = target.to_string();
            assert_eq!(Target::parse(shown.as_bytes()).as_ref(), Ok(target), "{shown}");
            assert_eq!(shown.parse().as_ref(), Ok(target));
            assert_eq!(Host::parse(&target.host.to_string()).as_ref(), Ok(&target.host));
        }
        (Err(error), None) => {
            let bad = data.iter().position(|byte| !allowed(*byte));
            if let TargetError::Byte { at } = error {
                assert_eq!(Some(*at), bad);
            }
            // The text may contain a password, so a message has only our own words.
            assert!(error.to_string().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            let told = Target::parse(b"other..text:443").unwrap_err();
            if std::mem::discriminant(error) == std::mem::discriminant(&told) && data.len() > 8 {
                let text = String::from_utf8_lossy(data);
                assert!(!error.to_string().contains(&*text), "{error} repeats the text");
            }
        }
        _ => panic!("{parsed:?}, and should be {expected:?}"),
    }
    if let Ok(text) = std::str::from_utf8(data) {
        assert_eq!(text.parse::<Target>(), parsed);
        let _ = Host::parse(text);
    }
}

#[derive(Debug)]
enum Naive {
    Name(String),
    Ip(IpAddr),
}

fn allowed(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b':' | b'[' | b']')
}

/// Parses it literally by the grammar: host, colon, port, and nothing else.
fn read(data: &[u8]) -> Option<(Naive, u16)> {
    if data.len() > 260 || !data.iter().all(|byte| allowed(*byte)) {
        return None;
    }
    let text = std::str::from_utf8(data).ok()?;
    let colon = text.rfind(':')?;
    let (host, port) = (&text[..colon], &text[colon + 1..]);
    let digits = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || port.starts_with('0') {
        return None;
    }
    let port = u16::try_from(port.parse::<u32>().ok()?).ok()?;
    let host = if host.starts_with('[') {
        let inner = host.strip_prefix('[')?.strip_suffix(']')?;
        Naive::Ip(IpAddr::V6(v6(inner)?))
    } else if let Some(ip) = v4(host) {
        Naive::Ip(IpAddr::V4(ip))
    } else {
        Naive::Name(name(host)?)
    };
    Some((host, port))
}

/// Parses four decimal numbers up to 255 without leading zeros.
fn v4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = text.split('.').collect();
    let mut octets = [0; 4];
    if parts.len() != 4 {
        return None;
    }
    for (octet, part) in octets.iter_mut().zip(parts) {
        let plain = (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        if !plain || (part.len() > 1 && part.starts_with('0')) {
            return None;
        }
        *octet = u8::try_from(part.parse::<u32>().ok()?).ok()?;
    }
    Some(Ipv4Addr::from(octets))
}

/// Parses RFC 4291 section 2.2: eight groups, or fewer around one `::`; the last two may be a dotted quad.
fn v6(text: &str) -> Option<Ipv6Addr> {
    let groups = |part: &str, last: bool| -> Option<Vec<u16>> {
        let mut groups = Vec::new();
        if part.is_empty() {
            return Some(groups);
        }
        let pieces: Vec<&str> = part.split(':').collect();
        for (i, piece) in pieces.iter().enumerate() {
            if last && i + 1 == pieces.len() && piece.contains('.') {
                let [a, b, c, d] = v4(piece)?.octets().map(u16::from);
                groups.extend([a << 8 | b, c << 8 | d]);
            } else if (1..=4).contains(&piece.len()) && piece.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                groups.push(u16::from_str_radix(piece, 16).ok()?);
            } else {
                return None;
            }
        }
        Some(groups)
    };
    let all = match text.split_once("::") {
        None => groups(text, true)?,
        Some((head, tail)) => {
            let (head, tail) = (groups(head, false)?, groups(tail, true)?);
            let zeros = 8_usize.checked_sub(head.len() + tail.len())?;
            if zeros == 0 {
                return None;
            }
            [head, vec![0; zeros], tail].concat()
        }
    };
    Some(Ipv6Addr::from(<[u16; 8]>::try_from(all).ok()?))
}

/// Parses labels of letters, digits and inner hyphens, the last not starting with a digit, with an optional
/// trailing dot.
fn name(text: &str) -> Option<String> {
    let bare = text.strip_suffix('.').unwrap_or(text);
    let labels: Vec<&str> = bare.split('.').collect();
    let fine = labels.iter().all(|label| {
        let bytes = label.as_bytes();
        let letters = bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
        (1..=63).contains(&bytes.len()) && letters && bytes[0] != b'-' && bytes[bytes.len() - 1] != b'-'
    });
    let numeric = labels.last()?.as_bytes().first()?.is_ascii_digit();
    (fine && !numeric && bare.len() <= 253).then(|| bare.to_ascii_lowercase())
}

//! Reads the name in a TLS ClientHello. It does not terminate TLS, negotiate, or change a byte. It says whether the
//! bytes so far are a hello, and which server it names.
//!
//! Two readers must agree. rustls reassembles records and checks the message. This file checks in the raw extension
//! what rustls does not show: an address or a second entry in the server name list, or an odd name type.

use rustls::server::Acceptor;

use exeat_policy::{Ech, Host, Reason, Target};

use crate::cursor::Cursor;
use crate::limits;
use crate::retry::RECORD;

/// Reads a hello that arrives in pieces of any size. It stores positions, not bytes.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The start of the next record.
    at: usize,
    /// Message bytes in the records before it.
    have: usize,
    /// Type and length of the message, as far as they have arrived.
    head: [u8; 4],
}

/// The contents of a complete hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The server name as sent; `None` without the extension.
    pub(crate) sni: Option<String>,
    /// The first application protocol in the list.
    pub(crate) alpn: Option<Vec<u8>>,
    /// Whether there is an encrypted_client_hello extension (RFC 9849). The server name above is then an outer one,
    /// and another may be inside. Browsers send this extension to every server, with random content (GREASE).
    pub(crate) ech: bool,
}

/// encrypted_client_hello (RFC 9849 section 5).
const ECH: usize = 0xfe0d;
/// The predecessor of ECH, encrypted_server_name, from drafts that some clients still use.
const ESNI: usize = 0xffce;

/// The reason why bytes are not a readable hello, or name the wrong server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloFault {
    #[error("the client does not speak TLS")]
    NotTls,
    #[error("the TLS hello is malformed")]
    Malformed,
    #[error("the TLS hello is longer than {} bytes", limits::HELLO_BYTES)]
    TooLarge,
    #[error("the TLS hello did not arrive in time")]
    Timeout,
    #[error("the first bytes did not show in time what the tunnel carries")]
    Undecided,
    #[error("hellos that are not complete take up all the memory that there is for them")]
    NoRoom,
    #[error("the TLS hello names no server")]
    NoName,
    #[error("the TLS hello names another server")]
    OtherName,
    #[error("the TLS hello may hide its server name (ECH), which the policy refuses")]
    Hidden,
}

impl HelloFault {
    /// Returns the reason for the record.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::NotTls => Reason::NotTls,
            Self::Malformed => Reason::HelloMalformed,
            Self::TooLarge => Reason::HelloTooLarge,
            Self::Timeout | Self::Undecided => Reason::HelloTimeout,
            Self::NoRoom => Reason::BudgetConns,
            Self::NoName => Reason::SniMissing,
            Self::OtherName => Reason::SniMismatch,
            Self::Hidden => Reason::Ech,
        }
    }
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Reads everything received so far. Returns `None` while the hello is incomplete.
    pub(crate) fn advance(&mut self, all: &[u8]) -> Result<Option<Hello>, HelloFault> {
        loop {
            let rest = all.get(self.at..).unwrap_or_default();
            if !could_be_tls(rest) {
                return Err(if self.at == 0 { HelloFault::NotTls } else { HelloFault::Malformed });
            }
            let mut record = Cursor(rest);
            let (Some(_), Some(length)) = (record.take(3), record.number(2)) else { break };
            if length == 0 || length > RECORD {
                return Err(HelloFault::Malformed);
            }
            let Some(fragment) = record.take(length) else { break };
            for (place, &byte) in self.head.iter_mut().skip(self.have).zip(fragment) {
                *place = byte;
            }
            self.have += length;
            self.at += 5 + length;
            if self.at > limits::HELLO_BYTES {
                return Err(HelloFault::TooLarge);
            }
            let [kind, a, b, c] = self.head;
            let message = 4 + (usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c));
            match self.have {
                _ if kind != 1 => return Err(HelloFault::Malformed),
                0..4 => {}
                _ if message > limits::HELLO_BYTES => return Err(HelloFault::TooLarge),
                have if have < message => {}
                have if have == message => {
                    return parse_hello(all.get(..self.at).unwrap_or_default()).map(Some);
                }
                // Anything after the hello in its last record could be another hello (RFC 8446 section 5.1).
                _ => return Err(HelloFault::Malformed),
            }
        }
        if all.len() >= limits::HELLO_BYTES { Err(HelloFault::TooLarge) } else { Ok(None) }
    }

    /// Returns the number of bytes in the records of a complete hello.
    pub(crate) fn len(&self) -> usize {
        self.at
    }
}

impl Hello {
    /// Checks that the hello names the requested host. A hello for an IP literal has no name (RFC 6066 section 3).
    pub(crate) fn check(&self, target: &Target, ech: Ech) -> Result<(), HelloFault> {
        match (&target.host, &self.sni) {
            _ if self.ech && ech == Ech::Refuse => Err(HelloFault::Hidden),
            (Host::Name(name), Some(sni)) if sni.eq_ignore_ascii_case(name.as_str()) => Ok(()),
            (Host::Name(_), None) => Err(HelloFault::NoName),
            (Host::Ip(_), None) => Ok(()),
            (Host::Name(_) | Host::Ip(_), Some(_)) => Err(HelloFault::OtherName),
        }
    }
}

/// Whether a client opens with TLS, well-formed or not; `None` until enough bytes are there.
///
/// This includes whatever some server takes for the beginning of a handshake. Some servers skip alerts before a
/// hello and ignore the version, so a record of any type and version counts. So does the SSL 2.0 form of a hello
/// (RFC 5246 appendix E.2). Its length is below 0x7f00, because Telnet begins with 0xff.
pub(crate) fn opens_with_tls(bytes: &[u8]) -> Option<bool> {
    match *bytes {
        [] => None,
        [20..=24, ..] => Some(true),
        [0x80..=0xfe, _, 1, 3, ..] => Some(true),
        [0x80..=0xfe] | [0x80..=0xfe, _] | [0x80..=0xfe, _, 1] => None,
        _ => Some(false),
    }
}

/// Whether the bytes can be a handshake record of TLS 1.x (RFC 8446 section 5.1).
fn could_be_tls(bytes: &[u8]) -> bool {
    let content_type = bytes.first().is_none_or(|&byte| byte == 22);
    let major = bytes.get(1).is_none_or(|&byte| byte == 3);
    content_type && major
}

/// Reads the records of one hello with both readers, and compares the results.
fn parse_hello(records: &[u8]) -> Result<Hello, HelloFault> {
    let message = reassemble(records).ok_or(HelloFault::Malformed)?;
    let (sni, ech) = parse_server_name(&message)?;
    let mut acceptor = Acceptor::default();
    let mut rest = records;
    let accepted = loop {
        // The source is memory, so the only error is that rustls reaches its own limit.
        let read = acceptor.read_tls(&mut rest).map_err(|_| HelloFault::TooLarge)?;
        match acceptor.accept() {
            Ok(Some(accepted)) => break accepted,
            Ok(None) if read > 0 => {}
            _ => return Err(HelloFault::Malformed),
        }
    };
    let seen = accepted.client_hello();
    // INVARIANT: the two readers agree, except for letter case (rustls folds it). Otherwise one of them was fooled.
    let agreed = match (&sni, seen.server_name()) {
        (Some(ours), Some(theirs)) => ours.eq_ignore_ascii_case(theirs),
        (None, None) => true,
        _ => false,
    };
    if !agreed {
        return Err(HelloFault::Malformed);
    }
    let alpn = seen.alpn().and_then(|mut protocols| protocols.next()).map(<[u8]>::to_vec);
    Ok(Hello { sni, alpn, ech })
}

/// Reassembles the body of the first handshake message from its records.
fn reassemble(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(bytes.len());
    let mut records = Cursor(bytes);
    loop {
        let content_type = records.number(1)?;
        let version = records.number(2)?;
        let fragment = records.prefixed(2)?;
        if content_type != 22 || version >> 8 != 3 || fragment.is_empty() {
            return None;
        }
        message.extend_from_slice(fragment);
        let mut whole = Cursor(&message);
        if let (Some(kind), Some(body)) = (whole.number(1), whole.prefixed(3)) {
            return (kind == 1).then(|| body.to_vec());
        }
    }
}

/// Reads the server_name extension (RFC 6066 section 3): one entry of type host_name, with valid characters. An
/// address there is read as a name, and then matches no target. Also returns whether the name may be an outer one.
fn parse_server_name(hello: &[u8]) -> Result<(Option<String>, bool), HelloFault> {
    let mut extensions = parse_extensions(hello).ok_or(HelloFault::Malformed)?;
    let mut found = None;
    let mut ech = false;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2).ok_or(HelloFault::Malformed)?;
        let body = extensions.prefixed(2).ok_or(HelloFault::Malformed)?;
        ech |= matches!(kind, ECH | ESNI);
        if kind == 0 {
            let name = parse_host_name(body).ok_or(HelloFault::Malformed)?;
            if found.replace(name).is_some() {
                return Err(HelloFault::Malformed);
            }
        }
    }
    Ok((found, ech))
}

fn parse_host_name(extension: &[u8]) -> Option<String> {
    let mut outer = Cursor(extension);
    let mut list = Cursor(outer.prefixed(2)?);
    let name_type = list.number(1)?;
    let name = list.prefixed(2)?;
    let shape = outer.0.is_empty() && list.0.is_empty() && name_type == 0;
    let bytes = name.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(byte));
    (shape && bytes && !name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Returns the extensions of a ClientHello body (RFC 8446 section 4.1.2); a body without any gives an empty list.
fn parse_extensions(hello: &[u8]) -> Option<Cursor<'_>> {
    let mut body = Cursor(hello);
    let _legacy_version = body.number(2)?;
    let _random = body.take(32)?;
    let _session_id = body.prefixed(1)?;
    let _cipher_suites = body.prefixed(2)?;
    let _compression = body.prefixed(1)?;
    if body.0.is_empty() {
        return Some(Cursor(&[]));
    }
    let extensions = body.prefixed(2)?;
    body.0.is_empty().then_some(Cursor(extensions))
}

#[cfg(test)]
pub(crate) mod tests;

//! Reads and writes DNS messages for a name server that only knows addresses (RFC 1035, RFC 6891). It reads no
//! sockets.
//!
//! It parses one question strictly, and writes one answer. Every length on the wire is checked against the bytes
//! that are there. Names in questions are read without compression, which questions do not need.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use exeat_policy::HostName;

use crate::cursor::Cursor;
use crate::limits;

/// The kind of a received message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A question that can be judged.
    Question(Question),
    /// Another message that must be answered, with the answer.
    Refused(Vec<u8>),
    /// A message that gets no answer: its header is incomplete, or it is itself an answer. Otherwise two servers
    /// could answer each other forever.
    Mute,
}

/// A question about one name, of class IN.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Question {
    head: Head,
    /// The bytes of the question section. An answer repeats them exactly, with the client's letter case.
    section: Vec<u8>,
    asks: QuestionType,
    /// Set if the client uses EDNS; the answer must then use it too.
    edns: Option<Edns>,
}

/// The record type that a question asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuestionType {
    /// A.
    V4,
    /// AAAA.
    V6,
    /// ANY, which gets both addresses.
    Both,
    /// PTR.
    Name,
    /// A type without records here.
    Other,
}

/// The contents of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// The name's addresses.
    At(Pair),
    /// The name of an address.
    Name(&'a HostName),
    /// The name exists, but has no record of this type.
    Nothing,
    /// Only a code.
    Code(Code),
}

/// The addresses of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

/// The code in an answer's header (RFC 1035 section 4.1.1, RFC 6891 section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Ok = 0,
    Malformed = 1,
    Failed = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
    /// The version is not supported. This code has 12 bits; the upper 8 are in the OPT record.
    BadVersion = 16,
}

/// The id and flags of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    id: u16,
    flags: u16,
}

/// The fields of a question's OPT record that an answer needs. The client's maximum size is not stored, because every
/// answer fits any client ([`limits::ANSWER_BYTES`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Edns {
    version: u8,
    /// The DO bit, which an answer repeats (RFC 3225 section 3).
    dnssec: bool,
}

const RESPONSE: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;
const CHECKING_DISABLED: u16 = 0x0010;

const A: u16 = 1;
const PTR: u16 = 12;
const AAAA: u16 = 28;
const OPT: u16 = 41;
const ANY: u16 = 255;

/// The class IN.
const INTERNET: u16 = 1;

/// Length of a header.
const HEADER: usize = 12;

/// Maximum length of a name on the wire, with its root label (RFC 1035 section 2.3.4).
const NAME_BYTES: usize = 255;

/// Maximum length of a label; larger values are pointers or reserved.
const LABEL_BYTES: usize = 63;

/// A pointer to the question's name, for use in an answer (RFC 1035 section 4.1.4).
const ASKED: [u8; 2] = [0xc0, 12];

/// Seconds for which a client may cache an address. Addresses do not change during a run.
const TTL: u32 = 60;

/// The SOA record, which limits how long a negative answer may be cached (RFC 2308). The limit is a second, because
/// the policy may change. Its owner is the root, which is above every name. It has class IN, TTL 1, and 22 bytes:
/// two names, which are the root too, and five numbers, all 1. MINIMUM is the last one; the others have no meaning
/// here.
const START_OF_AUTHORITY: &[u8] =
    b"\0\0\x06\0\x01\0\0\0\x01\0\x16\0\0\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01";

/// Parses a message from a client.
pub(crate) fn parse(message: &[u8]) -> Message {
    let mut rest = Cursor(message);
    let (Some(id), Some(flags)) = (read_u16(&mut rest), read_u16(&mut rest)) else { return Message::Mute };
    let head = Head { id, flags };
    if message.len() < HEADER || flags & RESPONSE != 0 {
        return Message::Mute;
    }
    if flags & OPCODE != 0 {
        return Message::Refused(head.answer(Code::NotImplemented));
    }
    let read = (message.len() <= limits::QUESTION_BYTES).then(|| question(head, rest)).flatten();
    let Some((question, class)) = read else { return Message::Refused(head.answer(Code::Malformed)) };
    let code = match question.edns {
        Some(edns) if edns.version != 0 => Code::BadVersion,
        _ if class != INTERNET => Code::Refused,
        _ => return Message::Question(question),
    };
    Message::Refused(question.answer(Answer::Code(code)))
}

/// Parses what follows the flags: the counts, one question, and at most two more records. Returns `None` if it is
/// malformed.
fn question(head: Head, mut rest: Cursor<'_>) -> Option<(Question, u16)> {
    let counts = [read_u16(&mut rest)?, read_u16(&mut rest)?, read_u16(&mut rest)?, read_u16(&mut rest)?];
    let [1, 0, 0, more @ 0..=2] = counts else { return None };
    let from = rest.0;
    parse_name(&mut rest)?;
    let asks = match read_u16(&mut rest)? {
        A => QuestionType::V4,
        AAAA => QuestionType::V6,
        ANY => QuestionType::Both,
        PTR => QuestionType::Name,
        _ => QuestionType::Other,
    };
    let class = read_u16(&mut rest)?;
    let section = from.get(..from.len() - rest.0.len())?.to_vec();
    let mut edns = None;
    for _ in 0..more {
        parse_record(&mut rest, &mut edns)?;
    }
    rest.0.is_empty().then_some((Question { head, section, asks, edns }, class))
}

/// Parses a record after the question: OPT, at most once (RFC 6891 section 6.1.2), or another one, such as a
/// signature, which is ignored.
fn parse_record(rest: &mut Cursor<'_>, edns: &mut Option<Edns>) -> Option<()> {
    let owner = parse_name(rest)?;
    let kind = read_u16(rest)?;
    let _class = read_u16(rest)?;
    let _extended_code = rest.number(1)?;
    let version = rest.take(1)?;
    let flags = read_u16(rest)?;
    let mut data = Cursor(rest.prefixed(2)?);
    if kind != OPT {
        return Some(());
    }
    while !data.0.is_empty() {
        let _code = read_u16(&mut data)?;
        let _option = data.prefixed(2)?;
    }
    let [version] = *version else { return None };
    let first = edns.replace(Edns { version, dnssec: flags & 0x8000 != 0 }).is_none();
    (first && owner.is_empty()).then_some(())
}

/// Parses a name without pointers. Returns its labels with their lengths, without the root.
fn parse_name<'a>(rest: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let from = rest.0;
    loop {
        let at = from.len() - rest.0.len();
        match rest.prefixed(1)? {
            [] => return from.get(..at),
            label if label.len() > LABEL_BYTES || at + 1 + label.len() >= NAME_BYTES => return None,
            _ => {}
        }
    }
}

fn read_u16(rest: &mut Cursor<'_>) -> Option<u16> {
    rest.take(2)?.try_into().ok().map(u16::from_be_bytes)
}

impl Head {
    /// Builds the header of an answer. Some flags are copied (CD by RFC 4035 section 3.2.2); AD is never set.
    fn answer_header(self, code: u16, counts: [u16; 4]) -> Vec<u8> {
        let copied = self.flags & (OPCODE | RECURSION_DESIRED | CHECKING_DISABLED);
        let mut out = Vec::with_capacity(limits::ANSWER_BYTES);
        out.extend(self.id.to_be_bytes());
        out.extend((RESPONSE | RECURSION_AVAILABLE | copied | code & 0xf).to_be_bytes());
        counts.into_iter().for_each(|count| out.extend(count.to_be_bytes()));
        out
    }

    /// Builds an answer to a message that could not be parsed.
    fn answer(self, code: Code) -> Vec<u8> {
        self.answer_header(code as u16, [0; 4])
    }
}

impl Question {
    pub(crate) fn kind(&self) -> QuestionType {
        self.asks
    }

    /// Serializes an answer, of at most [`limits::ANSWER_BYTES`].
    pub(crate) fn answer(&self, answer: Answer<'_>) -> Vec<u8> {
        let code = if let Answer::Code(code) = answer { code as u16 } else { Code::Ok as u16 };
        let mut records = Vec::with_capacity(2);
        match answer {
            Answer::At(Pair { v4, v6 }) => {
                if matches!(self.asks, QuestionType::V4 | QuestionType::Both) {
                    records.push((A, v4.octets().to_vec()));
                }
                if matches!(self.asks, QuestionType::V6 | QuestionType::Both) {
                    records.push((AAAA, v6.octets().to_vec()));
                }
            }
            Answer::Name(name) if self.asks == QuestionType::Name => records.push((PTR, encode_name(name))),
            Answer::Name(_) | Answer::Nothing | Answer::Code(_) => {}
        }
        let negative = match answer {
            Answer::Code(code) => code == Code::NoSuchName,
            _ => records.is_empty(),
        };
        // There are at most two records.
        let answers = u16::try_from(records.len()).unwrap_or_default();
        let counts = [1, answers, u16::from(negative), u16::from(self.edns.is_some())];
        let mut out = self.head.answer_header(code, counts);
        out.extend(&self.section);
        for (kind, data) in records {
            out.extend(ASKED);
            out.extend(kind.to_be_bytes());
            out.extend(INTERNET.to_be_bytes());
            out.extend(TTL.to_be_bytes());
            out.extend(u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
            out.extend(data);
        }
        if negative {
            out.extend(START_OF_AUTHORITY);
        }
        if let Some(edns) = self.edns {
            out.push(0); // the root
            out.extend(OPT.to_be_bytes());
            out.extend(limits::QUESTION_SIZE.to_be_bytes()); // the size that we accept, instead of a class
            out.extend((code >> 4).to_be_bytes().get(1)); // the upper bits of the code
            out.push(0); // our version
            out.extend(if edns.dnssec { [0x80, 0] } else { [0, 0] });
            out.extend([0, 0]); // no options
        }
        out
    }

    /// Returns the name if it is a host name. It is never repaired: a dot inside a label does not separate labels.
    pub(crate) fn host(&self) -> Option<HostName> {
        host(self.labels())
    }

    /// Returns the host name after labels that begin with an underscore, as in `_443._tcp.example.com` (RFC 8552).
    pub(crate) fn host_below(&self) -> Option<HostName> {
        host(self.labels().skip_while(|label| label.starts_with(b"_")))
    }

    /// Whether the name is the root, which has no labels.
    pub(crate) fn is_root(&self) -> bool {
        self.labels().next().is_none()
    }

    /// Returns the address of a reverse name (RFC 1035 section 3.5, RFC 3596 section 2.5), in exactly that form.
    pub(crate) fn reverse_address(&self) -> Option<IpAddr> {
        let mut labels: Vec<&[u8]> = self.labels().collect();
        if !labels.pop()?.eq_ignore_ascii_case(b"arpa") {
            return None;
        }
        let family = labels.pop()?;
        labels.reverse();
        if family.eq_ignore_ascii_case(b"in-addr") {
            let [a, b, c, d] = *labels else { return None };
            Some(Ipv4Addr::new(parse_octet(a)?, parse_octet(b)?, parse_octet(c)?, parse_octet(d)?).into())
        } else if family.eq_ignore_ascii_case(b"ip6") && labels.len() == 32 {
            let bits = labels.into_iter().try_fold(0, |bits, label| Some(bits << 4 | parse_nibble(label)?));
            bits.map(|bits| Ipv6Addr::from_bits(bits).into())
        } else {
            None
        }
    }

    /// Formats the name as text (RFC 1035 section 5.1). A dot inside a label is escaped with a backslash.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(NAME_BYTES);
        for (at, label) in self.labels().enumerate() {
            if at > 0 {
                text.push(b'.');
            }
            for &byte in label {
                if matches!(byte, b'.' | b'\\') {
                    text.push(b'\\');
                }
                text.push(byte);
            }
        }
        text
    }

    /// Iterates over the labels of the name, from the left.
    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = Cursor(&self.section);
        std::iter::from_fn(move || rest.prefixed(1).filter(|label| !label.is_empty()))
    }
}

/// Parses labels as a host name, with the parser of the policy.
fn host<'a>(labels: impl Iterator<Item = &'a [u8]>) -> Option<HostName> {
    let mut text = String::with_capacity(NAME_BYTES);
    for label in labels {
        if label.contains(&b'.') {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(std::str::from_utf8(label).ok()?);
    }
    text.parse().ok()
}

/// Encodes a name for the wire.
fn encode_name(name: &HostName) -> Vec<u8> {
    let mut out = Vec::with_capacity(NAME_BYTES);
    for label in name.labels() {
        // INVARIANT: a label of a host name has at most 63 bytes.
        out.push(u8::try_from(label.len()).unwrap_or_default());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

/// Parses a decimal number without leading zeros.
fn parse_octet(label: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(label).ok()?;
    let number = text.parse().ok()?;
    (text == u8::to_string(&number)).then_some(number)
}

/// Parses one hexadecimal digit.
fn parse_nibble(label: &[u8]) -> Option<u128> {
    let [digit] = *label else { return None };
    char::from(digit).to_digit(16).map(u128::from)
}

#[cfg(test)]
pub(crate) mod tests;

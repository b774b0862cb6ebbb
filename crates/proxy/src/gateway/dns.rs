//! DNS messages, as far as a name server needs them that knows addresses alone (RFC 1035, RFC 6891). Reads no sockets.
//!
//! One question is read, strictly, and one answer written. Nothing is taken from a number on the wire but what it says of bytes that are
//! there; names in questions are read without compression, which has no place in them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use exeat_policy::HostName;

use crate::cursor::Cursor;
use crate::limits;

/// What a message turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A question that can be judged.
    Question(Question),
    /// Something else that is owed an answer: this one.
    Refused(Vec<u8>),
    /// Nothing that is: no whole header, or an answer itself. Two servers that answered answers would never stop.
    Mute,
}

/// One question about one name, of class IN.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Question {
    head: Head,
    /// The question section, byte for byte: an answer repeats it so, whatever letter case the client has drawn for it.
    section: Vec<u8>,
    asks: Asks,
    /// The client speaks EDNS, and so must an answer.
    edns: Option<Edns>,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// A.
    V4,
    /// AAAA.
    V6,
    /// ANY: here both.
    Both,
    /// PTR.
    Name,
    /// Something of which there is none.
    Other,
}

/// What a name server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// The name's addresses.
    At(Pair),
    /// The name of an address.
    Name(&'a HostName),
    /// There is such a name, and nothing of what was asked for.
    Nothing,
    /// Another word.
    Code(Code),
}

/// The addresses of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

/// What stands in an answer's header (RFC 1035 section 4.1.1, RFC 6891 section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Ok = 0,
    Malformed = 1,
    Failed = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
    /// Of 12 bits, the upper 8 of which stand in the OPT record.
    BadVersion = 16,
}

/// The first bytes of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    id: u16,
    flags: u16,
}

/// What an answer needs of the OPT record of a question. The size of the answers that the client takes is not kept: all are short enough for
/// anybody ([`limits::ANSWER_BYTES`]).
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

/// Bytes of a header.
const HEADER: usize = 12;

/// Bytes of a name on the wire, its root label included (RFC 1035 section 2.3.4).
const NAME_BYTES: usize = 255;

/// Bytes of a label; what is more is a pointer, or reserved.
const LABEL_BYTES: usize = 63;

/// Where the question's name stands in an answer, as a pointer to it (RFC 1035 section 4.1.4).
const ASKED: [u8; 2] = [0xc0, 12];

/// How long an address may be kept, in seconds: it stays the same for as long as the run lasts.
const TTL: u32 = 60;

/// The SOA record that says how long a "no" may be kept (RFC 2308): a second, since the next question may be another policy's. The root is
/// its owner, below which every name is. Class IN, TTL 1, 22 bytes: two names, which are the root too, and five numbers, all 1, of which
/// MINIMUM comes last. The others mean nothing here.
const START_OF_AUTHORITY: &[u8] =
    b"\0\0\x06\0\x01\0\0\0\x01\0\x16\0\0\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01";

/// Reads what a client sent.
pub(crate) fn read(message: &[u8]) -> Message {
    let mut rest = Cursor(message);
    let (Some(id), Some(flags)) = (short(&mut rest), short(&mut rest)) else { return Message::Mute };
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

/// What follows the flags: the counts, one question, and at most two more records. `None`: it is malformed.
fn question(head: Head, mut rest: Cursor<'_>) -> Option<(Question, u16)> {
    let counts = [short(&mut rest)?, short(&mut rest)?, short(&mut rest)?, short(&mut rest)?];
    let [1, 0, 0, more @ 0..=2] = counts else { return None };
    let from = rest.0;
    name(&mut rest)?;
    let asks = match short(&mut rest)? {
        A => Asks::V4,
        AAAA => Asks::V6,
        ANY => Asks::Both,
        PTR => Asks::Name,
        _ => Asks::Other,
    };
    let class = short(&mut rest)?;
    let section = from.get(..from.len() - rest.0.len())?.to_vec();
    let mut edns = None;
    for _ in 0..more {
        record(&mut rest, &mut edns)?;
    }
    rest.0.is_empty().then_some((Question { head, section, asks, edns }, class))
}

/// A record behind the question: OPT (RFC 6891 section 6.1.2), once, or another one, such as a signature, that says nothing here.
fn record(rest: &mut Cursor<'_>, edns: &mut Option<Edns>) -> Option<()> {
    let owner = name(rest)?;
    let kind = short(rest)?;
    let _class = short(rest)?;
    let _extended_code = rest.number(1)?;
    let version = rest.take(1)?;
    let flags = short(rest)?;
    let mut data = Cursor(rest.prefixed(2)?);
    if kind != OPT {
        return Some(());
    }
    while !data.0.is_empty() {
        let _code = short(&mut data)?;
        let _option = data.prefixed(2)?;
    }
    let [version] = *version else { return None };
    let first = edns.replace(Edns { version, dnssec: flags & 0x8000 != 0 }).is_none();
    (first && owner.is_empty()).then_some(())
}

/// A name without pointers, and what it is made of: labels behind their lengths, without the root's.
fn name<'a>(rest: &mut Cursor<'a>) -> Option<&'a [u8]> {
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

fn short(rest: &mut Cursor<'_>) -> Option<u16> {
    rest.take(2)?.try_into().ok().map(u16::from_be_bytes)
}

impl Head {
    /// The header of an answer: what is copied is copied (RFC 4035 section 3.2.2 for CD), and nothing is authentic.
    fn of_answer(self, code: u16, counts: [u16; 4]) -> Vec<u8> {
        let copied = self.flags & (OPCODE | RECURSION_DESIRED | CHECKING_DISABLED);
        let mut out = Vec::with_capacity(limits::ANSWER_BYTES);
        out.extend(self.id.to_be_bytes());
        out.extend((RESPONSE | RECURSION_AVAILABLE | copied | code & 0xf).to_be_bytes());
        counts.into_iter().for_each(|count| out.extend(count.to_be_bytes()));
        out
    }

    /// An answer to what could not be read.
    fn answer(self, code: Code) -> Vec<u8> {
        self.of_answer(code as u16, [0; 4])
    }
}

impl Question {
    pub(crate) fn asks(&self) -> Asks {
        self.asks
    }

    /// The answer as it goes out, of at most [`limits::ANSWER_BYTES`].
    pub(crate) fn answer(&self, answer: Answer<'_>) -> Vec<u8> {
        let code = if let Answer::Code(code) = answer { code as u16 } else { Code::Ok as u16 };
        let mut records = Vec::with_capacity(2);
        match answer {
            Answer::At(Pair { v4, v6 }) => {
                if matches!(self.asks, Asks::V4 | Asks::Both) {
                    records.push((A, v4.octets().to_vec()));
                }
                if matches!(self.asks, Asks::V6 | Asks::Both) {
                    records.push((AAAA, v6.octets().to_vec()));
                }
            }
            Answer::Name(name) if self.asks == Asks::Name => records.push((PTR, wire(name))),
            Answer::Name(_) | Answer::Nothing | Answer::Code(_) => {}
        }
        let negative = match answer {
            Answer::Code(code) => code == Code::NoSuchName,
            _ => records.is_empty(),
        };
        // At most two, zero or one.
        let answers = u16::try_from(records.len()).unwrap_or_default();
        let counts = [1, answers, u16::from(negative), u16::from(self.edns.is_some())];
        let mut out = self.head.of_answer(code, counts);
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
            out.extend(limits::QUESTION_SIZE.to_be_bytes()); // what we take, in place of a class
            out.extend((code >> 4).to_be_bytes().get(1)); // the upper bits of the code
            out.push(0); // our version
            out.extend(if edns.dnssec { [0x80, 0] } else { [0, 0] });
            out.extend([0, 0]); // no options
        }
        out
    }

    /// The name, where it is a host's. It is never repaired: a dot inside a label is no dot between labels.
    pub(crate) fn host(&self) -> Option<HostName> {
        host(self.labels())
    }

    /// The host name below labels that begin with an underscore, such as in `_443._tcp.example.com` (RFC 8552).
    pub(crate) fn host_below(&self) -> Option<HostName> {
        host(self.labels().skip_while(|label| label.starts_with(b"_")))
    }

    /// The root has a name without labels.
    pub(crate) fn is_root(&self) -> bool {
        self.labels().next().is_none()
    }

    /// The address that is asked about by its own name (RFC 1035 section 3.5, RFC 3596 section 2.5), in exactly that form.
    pub(crate) fn reverse(&self) -> Option<IpAddr> {
        let mut labels: Vec<&[u8]> = self.labels().collect();
        if !labels.pop()?.eq_ignore_ascii_case(b"arpa") {
            return None;
        }
        let family = labels.pop()?;
        labels.reverse();
        if family.eq_ignore_ascii_case(b"in-addr") {
            let [a, b, c, d] = *labels else { return None };
            Some(Ipv4Addr::new(octet(a)?, octet(b)?, octet(c)?, octet(d)?).into())
        } else if family.eq_ignore_ascii_case(b"ip6") && labels.len() == 32 {
            let bits = labels.into_iter().try_fold(0, |bits, label| Some(bits << 4 | nibble(label)?));
            bits.map(|bits| Ipv6Addr::from_bits(bits).into())
        } else {
            None
        }
    }

    /// The name as text (RFC 1035 section 5.1): what would be a dot between labels, and is none, has a backslash before it.
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

    /// Each label of the name, from the left.
    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = Cursor(&self.section);
        std::iter::from_fn(move || rest.prefixed(1).filter(|label| !label.is_empty()))
    }
}

/// The policy's own reader says what a host name is.
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

/// A name as it stands in a record.
fn wire(name: &HostName) -> Vec<u8> {
    let mut out = Vec::with_capacity(NAME_BYTES);
    for label in name.labels() {
        // INVARIANT: a label of a host name has at most 63 bytes.
        out.push(u8::try_from(label.len()).unwrap_or_default());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

/// A decimal number without leading zeros.
fn octet(label: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(label).ok()?;
    let number = text.parse().ok()?;
    (text == u8::to_string(&number)).then_some(number)
}

/// One hexadecimal digit.
fn nibble(label: &[u8]) -> Option<u128> {
    let [digit] = *label else { return None };
    char::from(digit).to_digit(16).map(u128::from)
}

#[cfg(test)]
pub(crate) mod tests;

//! Parses a SOCKS5 client strictly (RFC 1928): greeting, then request. It does not read sockets, decide, or answer.
//! It says whether the bytes so far are a valid prefix, a greeting, a request, or a fault.
//!
//! Only CONNECT without authentication is supported. The parser for CONNECT also parses the name here, as
//! `name:port`, so that no text means different hosts on different entries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use exeat_policy::{Host, Port, Reason, Target};

use crate::head::wrong_byte;

/// The version in the first byte of greeting, request and reply.
pub(crate) const VERSION: u8 = 5;
/// The method "no authentication required".
pub(crate) const NO_AUTHENTICATION: u8 = 0;

const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// The state of the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A valid prefix.
    Incomplete,
    /// A greeting that offers a supported method. The parser reports it once, then waits for the request.
    Greeting,
    /// A request; what follows it starts at `len`.
    Request {
        /// The host and port that the client asks for.
        target: Target,
        /// Bytes of greeting and request together.
        len: usize,
    },
    /// No continuation can make this a supported request.
    Fault(Fault),
}

/// The ways in which a client can fail before its target is known. No text repeats what the client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the first byte is not the version of SOCKS5")]
    NotSocks,
    #[error("the client offers no method without authentication, and there is no other here")]
    Methods,
    #[error("the request does not begin with the version of SOCKS5")]
    Version,
    #[error("only the command CONNECT is served, neither BIND nor UDP ASSOCIATE")]
    Command,
    #[error("the reserved byte of the request is not 0")]
    Reserved,
    #[error("the address is neither IPv4, IPv6 nor a name")]
    AddressType,
    #[error("the name and port of the request are not those of a host")]
    Authority,
    #[error("no host name has the character `{}`: only letters, digits, `-` and `.`", .0.escape_ascii())]
    HostByte(u8),
    #[error("the connection ended inside the greeting or the request")]
    CutShort,
    #[error("greeting and request did not arrive in time")]
    TooSlow,
    #[error("requests that are not complete take up all the memory that there is for them")]
    NoRoom,
}

/// The state between reads.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// Length of the greeting, once it is complete.
    greeting: Option<usize>,
    /// Position of the name, once it is complete.
    name: Option<Range<usize>>,
}

impl Fault {
    /// Returns the code of the reply (RFC 1928 section 6).
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Command => 7,
            Self::AddressType => 8,
            _ => 1,
        }
    }

    /// Returns the reason for the record.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Command => Reason::Scheme,
            Self::TooSlow => Reason::Timeout,
            Self::NoRoom => Reason::BudgetConns,
            _ => Reason::Malformed,
        }
    }
}

impl Parser {
    /// Parses `bytes`, which must begin with those of the previous call: at most 257 of a greeting and 262 of a
    /// request. After a request or a fault, the parser must not be used again.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Parsed {
        let mut fields = Fields { bytes, taken: self.greeting.unwrap_or(0) };
        let read = match self.greeting {
            None => greeting(&mut fields).map(|()| {
                self.greeting = Some(fields.taken);
                Parsed::Greeting
            }),
            Some(_) => self.request(&mut fields),
        };
        read.unwrap_or_else(|stop| stop)
    }

    /// Whether the greeting is complete. Before it, SOCKS5 has no way to say why a request failed.
    pub(crate) fn greeted(&self) -> bool {
        self.greeting.is_some()
    }

    /// Returns the name in the request, if it has one. After a fault it may contain anything.
    pub(crate) fn name<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.get(self.name.clone()?)
    }

    fn request(&mut self, fields: &mut Fields<'_>) -> Result<Parsed, Parsed> {
        fields.expect(|version| version == VERSION, Fault::Version)?;
        fields.expect(|command| command == CONNECT, Fault::Command)?;
        fields.expect(|reserved| reserved == 0, Fault::Reserved)?;
        let kind = fields.expect(|kind| matches!(kind, IPV4 | NAME | IPV6), Fault::AddressType)?;
        let target = match kind {
            IPV4 => {
                let ip = Ipv4Addr::from(*fields.array::<4>()?);
                literal(ip.into(), fields.port()?)
            }
            IPV6 => {
                let ip = Ipv6Addr::from(*fields.array::<16>()?);
                literal(ip.into(), fields.port()?)
            }
            _ => {
                let length = fields.expect(|length| length != 0, Fault::Authority)?;
                let start = fields.taken;
                let name = fields.take(length.into())?;
                self.name = Some(start..fields.taken);
                let port = fields.port()?;
                // The parser refuses port 0.
                let target = Target::parse(&[name, format!(":{port}").as_bytes()].concat());
                let fault = |error| wrong_byte(name, &error).map_or(Fault::Authority, Fault::HostByte);
                target.map_err(fault)
            }
        };
        let target = target.map_err(Parsed::Fault)?;
        Ok(Parsed::Request { target, len: fields.taken })
    }
}

fn greeting(fields: &mut Fields<'_>) -> Result<(), Parsed> {
    fields.expect(|version| version == VERSION, Fault::NotSocks)?;
    let count = fields.expect(|count| count != 0, Fault::Methods)?;
    let methods = fields.take(count.into())?;
    if methods.contains(&NO_AUTHENTICATION) { Ok(()) } else { Err(Parsed::Fault(Fault::Methods)) }
}

fn literal(ip: IpAddr, port: u16) -> Result<Target, Fault> {
    Ok(Target { host: Host::Ip(ip), port: Port::new(port).ok_or(Fault::Authority)? })
}

/// Reads consecutive fields. A field that has not arrived is [`Parsed::Incomplete`].
struct Fields<'a> {
    bytes: &'a [u8],
    taken: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Parsed> {
        let field = self.bytes.get(self.taken..self.taken + length).ok_or(Parsed::Incomplete)?;
        self.taken += length;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], Parsed> {
        self.take(N)?.first_chunk().ok_or(Parsed::Incomplete)
    }

    fn expect(&mut self, is_good: impl Fn(u8) -> bool, fault: Fault) -> Result<u8, Parsed> {
        let [byte] = *self.array()?;
        if is_good(byte) { Ok(byte) } else { Err(Parsed::Fault(fault)) }
    }

    fn port(&mut self) -> Result<u16, Parsed> {
        self.array().copied().map(u16::from_be_bytes)
    }
}

#[cfg(test)]
mod tests;

//! What a client asks for: one host and one port. Request text is judged here and nowhere else, by a byte
//! allow-list before anything is folded; it is never repaired, decoded or handed to a resolver to find out.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::name::{HostName, MAX_NAME, NameError};
use crate::port::Port;

/// Longest authority that can be valid: a name, its trailing dot, `:` and five digits.
const MAX_AUTHORITY: usize = MAX_NAME + 1 + 6;

/// The host part of a target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name, to be resolved only once it is admitted.
    Name(HostName),
    /// A literal address.
    Ip(IpAddr),
}

impl Host {
    /// A host as it stands in a request: a name, a strict dotted quad, or an IPv6 address in brackets.
    ///
    /// # Errors
    ///
    /// [`TargetError`] names the first fault.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        if let Some(rest) = text.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or(TargetError::Brackets)?;
            return parse_ipv6(inner).map(|ip| Self::Ip(ip.into())).ok_or(TargetError::Ipv6);
        }
        // std takes exactly four decimal octets without leading zeros; every other number-like spelling
        // ends in a label that starts with a digit, which `HostName` refuses.
        if let Ok(ip) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Ip(ip.into()));
        }
        text.parse().map(Self::Name).map_err(TargetError::Name)
    }

    /// The address, if this is a literal.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip(ip) => Some(*ip),
            Self::Name(_) => None,
        }
    }

    /// The name, if this is one.
    pub fn name(&self) -> Option<&HostName> {
        match self {
            Self::Name(name) => Some(name),
            Self::Ip(_) => None,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

/// One host and one port, as asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Whom the client wants to reach.
    pub host: Host,
    /// On which port.
    pub port: Port,
}

impl Target {
    /// Parses the authority-form of CONNECT (RFC 9112 section 3.2.3): `host:port`, both required.
    ///
    /// Letter case and one trailing dot of a name are folded; a leading zero in the port, a zone id,
    /// userinfo, a percent sign and every other byte outside `A-Z a-z 0-9 . - : [ ]` are refused.
    ///
    /// # Errors
    ///
    /// [`TargetError`] names the first fault and never repeats the text: it may hold a password.
    pub fn parse(bytes: &[u8]) -> Result<Self, TargetError> {
        if bytes.is_empty() {
            return Err(TargetError::Empty);
        }
        if bytes.len() > MAX_AUTHORITY {
            return Err(TargetError::TooLong);
        }
        if let Some(at) = bytes.iter().position(|b| !is_authority_byte(*b)) {
            return Err(TargetError::Byte { at });
        }
        let text = std::str::from_utf8(bytes).map_err(|e| TargetError::Byte { at: e.valid_up_to() })?;
        let (host, port) = if text.starts_with('[') {
            let end = text.find(']').ok_or(TargetError::Brackets)?;
            let (host, rest) = text.split_at_checked(end + 1).ok_or(TargetError::Brackets)?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')) };
            (host, port.map(|port| port.ok_or(TargetError::Brackets)).transpose()?)
        } else {
            match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        let host = Host::parse(host)?;
        let port = port.ok_or(TargetError::NoPort)?;
        Ok(Self { host, port: Port::parse(port).ok_or(TargetError::Port)? })
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        Self::parse(text.as_bytes())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Why a request names no target. Each is a bad request (400), never a policy refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// No bytes at all.
    #[error("the target is empty")]
    Empty,
    /// Longer than any valid target.
    #[error("the target is too long")]
    TooLong,
    /// A byte that no host or port has.
    #[error("byte {at} of the target belongs to no host and no port")]
    Byte {
        /// Offset in the target.
        at: usize,
    },
    /// Brackets anywhere but around an IPv6 address.
    #[error("brackets stand around an IPv6 address only")]
    Brackets,
    /// Brackets around something that is not an IPv6 address; zone ids and short IPv4 tails are not.
    #[error("the brackets hold no IPv6 address")]
    Ipv6,
    /// Neither a name nor a strict dotted quad.
    #[error("{0}")]
    Name(NameError),
    /// The authority-form requires a port.
    #[error("the target has no port")]
    NoPort,
    /// Not 1 to 65535 in plain digits.
    #[error("a port is a number from 1 to 65535 without leading zeros")]
    Port,
}

/// The textual forms of RFC 4291 section 2.2, as std reads them: groups of one to four digits, one `::`,
/// no zone id, and only a strict dotted quad as an IPv4 tail.
pub(crate) fn parse_ipv6(text: &str) -> Option<Ipv6Addr> {
    text.parse().ok()
}

fn is_authority_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']')
}

#[cfg(test)]
mod tests;

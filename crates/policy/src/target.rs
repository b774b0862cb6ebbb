//! Parses what a client asks for: one host and one port. Only this file judges request text, by a byte allow-list
//! before anything is normalized. It repairs and decodes nothing, and never asks a resolver.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::name::{HostName, MAX_NAME, NameError};
use crate::port::Port;

/// Maximum length of a valid authority: a name, its trailing dot, `:` and five digits.
const MAX_AUTHORITY: usize = MAX_NAME + 1 + 6;

/// The host part of a target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name, which may be resolved only after it is admitted.
    Name(HostName),
    /// A literal address.
    Ip(IpAddr),
}

impl Host {
    /// Parses the host of a request: a name, a strict dotted quad, or an IPv6 address in brackets.
    ///
    /// # Errors
    ///
    /// Returns a [`TargetError`] with the first fault.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        if let Some(rest) = text.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or(TargetError::Brackets)?;
            return parse_ipv6(inner).map(|ip| Self::Ip(ip.into())).ok_or(TargetError::Ipv6);
        }
        // std accepts exactly four decimal octets without leading zeros. Every other number-like spelling ends in a
        // label that starts with a digit, which `HostName` refuses.
        if let Ok(ip) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Ip(ip.into()));
        }
        text.parse().map(Self::Name).map_err(TargetError::Name)
    }

    /// Returns the address, if this is a literal.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip(ip) => Some(*ip),
            Self::Name(_) => None,
        }
    }

    /// Returns the name, if this is one.
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

/// The requested host and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: Port,
}

impl Target {
    /// Parses the authority-form of CONNECT (RFC 9112 section 3.2.3): `host:port`, both required.
    ///
    /// Letter case and one trailing dot of a name are normalized. A leading zero in the port, a zone id, userinfo,
    /// a percent sign and every other byte outside `A-Z a-z 0-9 . - : [ ]` are refused.
    ///
    /// # Errors
    ///
    /// Returns a [`TargetError`] with the first fault. It never repeats the text, which may contain a password.
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

/// The reason why a request names no target. Each is a bad request (400), never a policy refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The text is empty.
    #[error("the target is empty")]
    Empty,
    /// The text is longer than any valid target.
    #[error("the target is too long")]
    TooLong,
    /// A byte cannot be part of a host or port.
    #[error("byte {at} of the target is none of A-Z a-z 0-9 . - : [ ]")]
    Byte {
        /// The offset in the target.
        at: usize,
    },
    /// Brackets are not around an IPv6 address.
    #[error("brackets stand around an IPv6 address only")]
    Brackets,
    /// The brackets contain something other than an IPv6 address, such as a zone id or a short IPv4 tail.
    #[error("there is no IPv6 address in the brackets")]
    Ipv6,
    /// The host is neither a name nor a strict dotted quad.
    #[error("{0}")]
    Name(NameError),
    /// The port is missing.
    #[error("the target has no port")]
    NoPort,
    /// The port is not 1 to 65535 in plain digits.
    #[error("a port is a number from 1 to 65535 without leading zeros")]
    Port,
}

/// Parses the forms of RFC 4291 section 2.2, as std does: groups of one to four digits, one `::`, no zone id, and
/// only a strict dotted quad as an IPv4 tail.
pub(crate) fn parse_ipv6(text: &str) -> Option<Ipv6Addr> {
    text.parse().ok()
}

fn is_authority_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']')
}

#[cfg(test)]
mod tests;

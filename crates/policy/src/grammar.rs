//! Parses the text of a rule: `["!"] target [":" ports]`. Anything else is an error with its position and with what
//! was probably meant. Only letter case and one trailing dot are normalized.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use crate::name::{HostName, NameError, NameFault};
use crate::pattern::HostPattern;
use crate::port::{Port, PortSet};
use crate::rule::{Action, Pattern};
use crate::suffix::{Shared, find_shared};
use crate::target::parse_ipv6;

mod meant;

/// Permissions of a policy to load rules that are refused otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowances {
    /// Allows `*`, every name. A deny rule does not need it.
    pub any: bool,
    /// Allows `*.d` if the names below d have many owners.
    pub shared_suffix: bool,
}

/// The parsed text of a rule, before it has an origin.
///
/// It is displayed in its canonical spelling, always with ports. Parsing that gives the same value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleSpec {
    /// Allow, or deny if the text starts with `!`.
    pub action: Action,
    /// Names or addresses.
    pub pattern: Pattern,
    /// The ports. Without any in the text: 443 to allow, every port to deny.
    pub ports: PortSet,
}

impl RuleSpec {
    /// Parses one rule. `default` is the action of a text without `!`. In a list of deny rules, where it is
    /// [`Action::Deny`], the mark is refused as a likely mistake.
    ///
    /// # Errors
    ///
    /// Returns a [`RuleError`] with the position of the fault and, if possible, the rule that was probably meant.
    pub fn parse(text: &str, default: Action, allowances: Allowances) -> Result<Self, RuleError> {
        parse(text, default, allowances).map_err(|(fault, at)| RuleError {
            meant: meant::guess(text, default),
            text: text.to_owned(),
            fault,
            at,
        })
    }
}

impl FromStr for RuleSpec {
    type Err = RuleError;

    /// Parses an allow rule, or a deny rule with `!`, without allowances.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        Self::parse(text, Action::Allow, Allowances::default())
    }
}

impl fmt::Display for RuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deny = if self.action == Action::Deny { "!" } else { "" };
        write!(f, "{deny}{}:{}", self.pattern, self.ports)
    }
}

/// A text that is not a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    text: String,
    fault: RuleFault,
    at: Range<usize>,
    meant: Option<String>,
}

impl RuleError {
    /// Returns the text as typed. It may contain anything, also control characters.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the fault.
    pub fn fault(&self) -> &RuleFault {
        &self.fault
    }

    /// Returns the bytes of the text that are wrong.
    pub fn span(&self) -> Range<usize> {
        self.at.clone()
    }

    /// Returns a valid rule that was probably meant. It is never wider than the text.
    pub fn suggestion(&self) -> Option<&str> {
        self.meant.as_deref()
    }
}

/// Formats the escaped text and the fault. The caller prints the hint on its own line.
impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a rule: {}", crate::escape::visible(&self.text), self.fault)
    }
}

impl std::error::Error for RuleError {}

/// The faults of a rule's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleFault {
    /// No text.
    #[error("it is empty")]
    Empty,
    /// A space or a control character.
    #[error("a rule has no spaces and no control characters")]
    Space,
    /// `!` with nothing after it.
    #[error("`!` denies what follows it, and nothing follows")]
    BareMark,
    /// `!` in a list of deny rules, or twice.
    #[error("it is a deny rule already: `!` has no place here")]
    DoubleMark,
    /// The text has a scheme.
    #[error("a rule is a host and ports, not a URL")]
    Url,
    /// `user@host`.
    #[error("a rule has no user name")]
    Userinfo,
    /// The text has a path, a query or a fragment.
    #[error("a rule covers a host, not a path on it")]
    Path,
    /// The host is not a host name.
    #[error("{0}")]
    Name(NameFault),
    /// A `*` is not the whole first label.
    #[error("`*` stands only as a whole first label, as in `*.example.com`")]
    Wildcard,
    /// `*` alone.
    #[error("`*` covers every host: say so with `allow_any = true` in a policy file")]
    Any,
    /// `*.com`, `*.co.uk`, `*.test`.
    #[error(
        "anyone can register names below this suffix: `allow_shared_suffix = true` in a policy file permits it"
    )]
    PublicSuffix,
    /// `*.github.io`, `*.amazonaws.com`.
    #[error(
        "names below this suffix belong to many tenants: `allow_shared_suffix = true` in a policy file permits it"
    )]
    SharedSuffix,
    /// Brackets are open, are followed by text, or contain something other than an IPv6 address.
    #[error("brackets stand around an IPv6 address only, as in `[2001:db8::1]:443` or `[2001:db8::/32]`")]
    Brackets,
    /// An IPv6 address has no brackets.
    #[error("an IPv6 address is written in brackets")]
    Unbracketed,
    /// The address family does not have this prefix length.
    #[error("a prefix length is a number from 0 to {max}")]
    Prefix {
        /// 32 or 128.
        max: u8,
    },
    /// The address of a CIDR is not the first of its net.
    #[error("the address has bits beyond its prefix; the network is `{network}`")]
    HostBits {
        /// The network that contains the address.
        network: String,
    },
    /// The port is not a number, a range or `*`.
    #[error("ports are numbers from 1 to 65535, as in `443,8443`, `8000-8100` or `*`")]
    Port,
    /// `8100-8000`.
    #[error("the range of ports is backwards")]
    Range,
}

type SpanFault = (RuleFault, Range<usize>);

fn parse(text: &str, default: Action, allowances: Allowances) -> Result<RuleSpec, SpanFault> {
    let all = 0..text.len();
    if text.is_empty() {
        return Err((RuleFault::Empty, all));
    }
    if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_whitespace() || c.is_control()) {
        return Err((RuleFault::Space, at..at + c.len_utf8()));
    }
    let (action, body, start) = match text.strip_prefix('!') {
        Some(body) if default == Action::Deny || body.starts_with('!') => {
            return Err((RuleFault::DoubleMark, if body.starts_with('!') { 1..2 } else { 0..1 }));
        }
        Some("") => return Err((RuleFault::BareMark, all)),
        Some(body) => (Action::Deny, body, 1),
        None => (default, text, 0),
    };
    not_a_url(body).map_err(|fault| shift(fault, start))?;
    let (target, ports) = split_ports(body).map_err(|fault| shift(fault, start))?;
    let pattern = parse_target(target, action, allowances).map_err(|fault| shift(fault, start))?;
    let ports = match ports {
        Some((ports, at)) => parse_ports(ports).map_err(|fault| shift(fault, start + at))?,
        None if action == Action::Allow => PortSet::one(Port::HTTPS),
        None => PortSet::all(),
    };
    Ok(RuleSpec { action, pattern, ports })
}

fn shift((fault, at): SpanFault, by: usize) -> SpanFault {
    (fault, at.start + by..at.end + by)
}

/// Checks for faults of pasted addresses, before the parts are parsed.
fn not_a_url(body: &str) -> Result<(), SpanFault> {
    if let Some(at) = body.find("://") {
        return Err((RuleFault::Url, 0..at + 3));
    }
    if let Some(at) = body.find('@') {
        return Err((RuleFault::Userinfo, 0..at + 1));
    }
    if let Some(at) = body.find(['?', '#', '\\']) {
        return Err((RuleFault::Path, at..body.len()));
    }
    Ok(())
}

/// The text of a target, and of its ports with their offset.
type Parts<'a> = (&'a str, Option<(&'a str, usize)>);

fn split_ports(body: &str) -> Result<Parts<'_>, SpanFault> {
    let (end, brackets) = match body.strip_prefix('[') {
        Some(_) => match body.find(']') {
            Some(at) => (at + 1, true),
            None => return Err((RuleFault::Brackets, 0..body.len())),
        },
        None => (body.find(':').unwrap_or(body.len()), false),
    };
    let Some((target, rest)) = body.split_at_checked(end) else {
        return Err((RuleFault::Brackets, 0..body.len()));
    };
    let ports = match rest.strip_prefix(':') {
        Some(ports) => Some((ports, end + 1)),
        None if rest.is_empty() => None,
        None => return Err((RuleFault::Brackets, end..body.len())),
    };
    // For `::1`, `::1:8080` and `2001:db8::/32`, an address is tried before a port.
    let bare = body.split_once('/').map_or(body, |(address, _)| address);
    if !brackets && parse_ipv6(bare).is_some() {
        return Err((RuleFault::Unbracketed, 0..body.len()));
    }
    Ok((target, ports))
}

fn parse_target(target: &str, action: Action, allowances: Allowances) -> Result<Pattern, SpanFault> {
    let all = 0..target.len();
    if let Some(inner) = target.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return parse_v6_net(inner).map_err(|fault| shift(fault, 1));
    }
    if let Some((address, len)) = target.split_once('/') {
        let after = address.len() + 1;
        let Ok(ip) = address.parse::<Ipv4Addr>() else {
            return Err((RuleFault::Path, address.len()..target.len()));
        };
        let Some(net) = parse_len(len, 32).and_then(|len| Ipv4Net::new(ip, len).ok()) else {
            return Err((RuleFault::Prefix { max: 32 }, after..target.len()));
        };
        return first_of(net.into()).map(Pattern::Net).map_err(|fault| (fault, all));
    }
    if let Ok(ip) = target.parse::<Ipv4Addr>() {
        return Ok(Pattern::Net(IpNet::from(IpAddr::V4(ip))));
    }
    if target == "*" {
        // A deny rule may have any width, because it only removes.
        let is_taken = allowances.any || action == Action::Deny;
        return if is_taken { Ok(Pattern::Name(HostPattern::Any)) } else { Err((RuleFault::Any, all)) };
    }
    let (base, start) = target.strip_prefix("*.").map_or((target, 0), |base| (base, 2));
    if let Some(at) = base.find('*') {
        return Err((RuleFault::Wildcard, start + at..start + at + 1));
    }
    let name: HostName = base
        .parse()
        .map_err(|NameError { fault, at }| (RuleFault::Name(fault), start + at.start..start + at.end))?;
    if start == 0 {
        return Ok(Pattern::Name(HostPattern::Exact(name)));
    }
    if action == Action::Allow && !allowances.shared_suffix && !allowances.any {
        match find_shared(&name) {
            Some(Shared::Public) => return Err((RuleFault::PublicSuffix, all)),
            Some(Shared::Platform) => return Err((RuleFault::SharedSuffix, all)),
            None => {}
        }
    }
    Ok(Pattern::Name(HostPattern::Subdomains(name)))
}

fn parse_v6_net(inner: &str) -> Result<Pattern, SpanFault> {
    let (address, len) = match inner.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (inner, None),
    };
    let Some(ip) = parse_ipv6(address) else {
        return Err((RuleFault::Brackets, 0..address.len()));
    };
    let Some(len) = len else {
        return Ok(Pattern::Net(IpNet::from(IpAddr::V6(ip))));
    };
    let Some(net) = parse_len(len, 128).and_then(|len| IpNet::new(ip.into(), len).ok()) else {
        return Err((RuleFault::Prefix { max: 128 }, address.len() + 1..inner.len()));
    };
    first_of(net).map(Pattern::Net).map_err(|fault| (fault, 0..inner.len()))
}

fn first_of(net: IpNet) -> Result<IpNet, RuleFault> {
    if net.trunc() == net {
        Ok(net)
    } else {
        Err(RuleFault::HostBits { network: Pattern::Net(net.trunc()).to_string() })
    }
}

fn parse_len(text: &str, max: u8) -> Option<u8> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits || (text.starts_with('0') && text != "0") {
        return None;
    }
    text.parse().ok().filter(|len| *len <= max)
}

fn parse_ports(text: &str) -> Result<PortSet, SpanFault> {
    if text == "*" {
        return Ok(PortSet::all());
    }
    let mut ports = PortSet::empty();
    let mut start = 0;
    for item in text.split(',') {
        let at = start..start + item.len();
        start = at.end + 1;
        let range = item.split_once('-').map_or((item, item), |range| range);
        let (Some(first), Some(last)) = (Port::parse(range.0), Port::parse(range.1)) else {
            return Err((RuleFault::Port, at));
        };
        if first > last {
            return Err((RuleFault::Range, at));
        }
        ports.extend(&PortSet::range(first, last));
    }
    Ok(ports)
}

#[cfg(test)]
mod tests;

//! A rule with everything that is known about it: what it says, where it was written and by whose leave.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

use crate::day::Day;
use crate::escape::printable;
use crate::limits::Size;
use crate::name::HostName;
use crate::pattern::HostPattern;
use crate::port::{Port, PortSet};
use crate::target::Target;

/// The place of a rule in its policy: `policy.rules()[id]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub(crate) u32);

impl RuleId {
    /// The number, from 0 in the order of addition.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a rule does with what it covers. A deny rule wins over every allow rule, in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Grants.
    Allow,
    /// Forbids.
    Deny,
}

/// What a rule covers. The two kinds never meet: a name never matches a net, a literal never a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Host names.
    Name(HostPattern),
    /// Addresses of one family, host bits zero.
    Net(IpNet),
}

impl Pattern {
    /// The name pattern, if it is one.
    pub fn name(&self) -> Option<&HostPattern> {
        match self {
            Self::Name(pattern) => Some(pattern),
            Self::Net(_) => None,
        }
    }

    /// The net, if it is one.
    pub fn net(&self) -> Option<&IpNet> {
        match self {
            Self::Net(net) => Some(net),
            Self::Name(_) => None,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(pattern) => pattern.fmt(f),
            Self::Net(net) => {
                let single = net.prefix_len() == net.max_prefix_len();
                match (net.addr(), single) {
                    (IpAddr::V4(ip), true) => ip.fmt(f),
                    (IpAddr::V4(ip), false) => write!(f, "{ip}/{}", net.prefix_len()),
                    (IpAddr::V6(ip), true) => write!(f, "[{ip}]"),
                    (IpAddr::V6(ip), false) => write!(f, "[{ip}/{}]", net.prefix_len()),
                }
            }
        }
    }
}

/// Whether the server name in a TLS hello must be the host that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum TlsCheck {
    /// Enforced on port 443.
    #[default]
    Auto,
    /// Enforced on every port of the rule.
    Sni,
    /// Not enforced: the server speaks first, or the protocol is not TLS.
    Off,
}

impl TlsCheck {
    /// Whether a connection to `port` must open with a matching TLS hello.
    pub fn enforced_on(self, port: Port) -> bool {
        match self {
            Self::Auto => port == Port::HTTPS,
            Self::Sni => true,
            Self::Off => false,
        }
    }

    /// Of two, the one that is enforced on more ports.
    #[must_use]
    pub fn strictest(self, other: Self) -> Self {
        match (self, other) {
            (Self::Sni, _) | (_, Self::Sni) => Self::Sni,
            (Self::Auto, _) | (_, Self::Auto) => Self::Auto,
            (Self::Off, Self::Off) => Self::Off,
        }
    }
}

/// Where a rule was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// A command-line flag, such as `--allow`.
    Flag {
        /// The flag with its dashes.
        flag: String,
    },
    /// A line of a file.
    File {
        /// The path as the user wrote it.
        path: String,
        /// From 1.
        line: u32,
    },
    /// A preset that comes with the program.
    Preset {
        /// Its name.
        name: String,
        /// The rule in it, as written there.
        rule: String,
    },
    /// A declared effect of the stage.
    Effect {
        /// Its tag, such as `NetworkHosts`.
        effect: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag { flag } => f.write_str(flag),
            // A path is the only part that a stranger may have named, by naming a file.
            Self::File { path, line } => write!(f, "{}:{line}", printable(path)),
            Self::Preset { name, rule } => write!(f, "preset:{name}#{rule}"),
            Self::Effect { effect } => write!(f, "effect:{effect}"),
        }
    }
}

/// What an author may say about a rule besides the rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Note {
    /// Why it exists.
    pub reason: Option<String>,
    /// Who agreed to it.
    pub approved_by: Option<String>,
    /// The first day, in UTC, on which it grants nothing. A deny rule never expires.
    pub expires: Option<Day>,
    /// Whether the TLS server name is checked.
    pub tls: TlsCheck,
    /// What may be sent to the rule's targets in one run, all connections together.
    pub max_upload: Option<Size>,
}

/// One rule of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// Its place in the policy.
    pub id: RuleId,
    /// The text as typed.
    pub text: String,
    /// Allow or deny.
    pub action: Action,
    /// Names or addresses.
    pub pattern: Pattern,
    /// On which ports.
    pub ports: PortSet,
    /// Where it was written.
    pub origin: Origin,
    /// What its author said about it.
    pub note: Note,
}

impl Rule {
    /// Whether the rule still grants on `today`.
    pub fn is_live(&self, today: Day) -> bool {
        self.action == Action::Deny || self.note.expires.is_none_or(|expires| today < expires)
    }

    /// What else this allow rule opens, in words: hosts and ports besides the target. `None`: nothing.
    pub fn also_opens(&self, target: &Target) -> Option<String> {
        let hosts = match &self.pattern {
            Pattern::Name(HostPattern::Exact(_)) => None,
            Pattern::Name(HostPattern::Subdomains(base)) => Some(format!("every other name below {base}")),
            Pattern::Name(HostPattern::Any) => Some("every other name".to_owned()),
            Pattern::Net(net) if net.prefix_len() == net.max_prefix_len() => None,
            Pattern::Net(_) => Some(format!("every other address of {}", self.pattern)),
        };
        let others = self.ports.without(&PortSet::one(target.port));
        let ports = match self.ports == PortSet::all() {
            _ if others.is_empty() => None,
            true => Some("every other port".to_owned()),
            false if others.single().is_some() => Some(format!("port {others}")),
            false => Some(format!("ports {others}")),
        };
        match (hosts, ports) {
            (None, None) => None,
            (Some(hosts), None) => Some(format!("{hosts}, on {}", self.ports)),
            (None, Some(ports)) => Some(ports),
            (Some(hosts), Some(ports)) => Some(format!("{hosts}, and {ports}")),
        }
    }

    /// Whether the rule covers this name, whatever the port.
    pub fn covers_name(&self, name: &HostName) -> bool {
        self.pattern.name().is_some_and(|pattern| pattern.matches(name))
    }

    /// Whether the rule covers this address, whatever the port. No address is unwrapped.
    pub fn covers_ip(&self, ip: IpAddr) -> bool {
        self.pattern.net().is_some_and(|net| net.contains(&ip))
    }
}

/// The rule in its one canonical spelling, ports always said.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deny = if self.action == Action::Deny { "!" } else { "" };
        write!(f, "{deny}{}:{}", self.pattern, self.ports)
    }
}

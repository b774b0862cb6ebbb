//! Defines a rule with everything known about it: its contents, its origin and who approved it.

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
use crate::words;

/// The index of a rule in its policy: `policy.rules()[id]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub(crate) u32);

impl RuleId {
    /// Returns the number, from 0 in the order of addition.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The action of a rule. A deny rule wins over every allow rule, in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The rule grants.
    Allow,
    /// The rule forbids.
    Deny,
}

/// The hosts of a rule. A name never matches a net, and a literal never matches a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Host names.
    Name(HostPattern),
    /// Addresses of one family; host bits are zero.
    Net(IpNet),
}

impl Pattern {
    /// Returns the name pattern, if it is one.
    pub fn name(&self) -> Option<&HostPattern> {
        match self {
            Self::Name(pattern) => Some(pattern),
            Self::Net(_) => None,
        }
    }

    /// Returns the net, if it is one.
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

words! {
    /// Whether the server name in a TLS hello must be the requested host.
    #[derive(PartialOrd, Ord, Hash, Default)]
    pub enum TlsCheck {
        /// The check applies on port 443.
        #[default]
        Auto = "auto",
        /// The check applies on every port of the rule.
        Sni = "sni",
        /// The check is off: the server speaks first, or the protocol is not TLS.
        Off = "off",
    }
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

    /// Returns the one that applies on more ports.
    #[must_use]
    pub fn strictest(self, other: Self) -> Self {
        match (self, other) {
            (Self::Sni, _) | (_, Self::Sni) => Self::Sni,
            (Self::Auto, _) | (_, Self::Auto) => Self::Auto,
            (Self::Off, Self::Off) => Self::Off,
        }
    }
}

/// The place where a rule was written.
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
        /// The line, from 1.
        line: u32,
    },
    /// A preset that comes with the program.
    Preset {
        /// The name of the preset.
        name: String,
        /// The rule in it, as written there.
        rule: String,
    },
    /// A declared effect of the stage.
    Effect {
        /// The tag, such as `NetworkHosts`.
        effect: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag { flag } => f.write_str(flag),
            // Only a path can be untrusted, through the name of a file.
            Self::File { path, line } => write!(f, "{}:{line}", printable(path)),
            Self::Preset { name, rule } => write!(f, "preset:{name}#{rule}"),
            Self::Effect { effect } => write!(f, "effect:{effect}"),
        }
    }
}

/// An author's remarks about a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Note {
    /// The reason for the rule.
    pub reason: Option<String>,
    /// Who approved it.
    pub approved_by: Option<String>,
    /// The first day, in UTC, on which it no longer grants. A deny rule never expires.
    pub expires: Option<Day>,
    /// Whether the TLS server name is checked.
    pub tls: TlsCheck,
    /// The upload budget of the rule's targets in one run, for all connections together.
    pub max_upload: Option<Size>,
}

/// A rule of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// Its index in the policy.
    pub id: RuleId,
    /// The text as typed.
    pub text: String,
    /// Allow or deny.
    pub action: Action,
    /// Names or addresses.
    pub pattern: Pattern,
    /// The ports.
    pub ports: PortSet,
    /// The place where it was written.
    pub origin: Origin,
    /// The author's remarks.
    pub note: Note,
}

impl Rule {
    /// Whether the rule still grants on `today`.
    pub fn is_live(&self, today: Day) -> bool {
        self.action == Action::Deny || self.note.expires.is_none_or(|expires| today < expires)
    }

    /// Describes what else this allow rule opens besides the target, or returns `None` if it is nothing.
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

    /// Whether the rule covers this name, on any port.
    pub fn covers_name(&self, name: &HostName) -> bool {
        self.pattern.name().is_some_and(|pattern| pattern.matches(name))
    }

    /// Whether the rule covers this address, on any port. Inner addresses are not considered.
    pub fn covers_ip(&self, ip: IpAddr) -> bool {
        self.pattern.net().is_some_and(|net| net.contains(&ip))
    }
}

/// Formats the rule in its canonical spelling, always with ports.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deny = if self.action == Action::Deny { "!" } else { "" };
        write!(f, "{deny}{}:{}", self.pattern, self.ports)
    }
}

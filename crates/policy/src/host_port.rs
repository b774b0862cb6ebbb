//! Defines a service of this machine that a stage may use, by its port. It grants an ordinary rule. The listener on
//! the stage's own loopback is created elsewhere.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::grammar::RuleSpec;
use crate::policy::PolicyBuilder;
use crate::port::{Port, PortSet};
use crate::rule::{Action, Note, Origin, Pattern, TlsCheck};
use crate::target::{Host, Target};

/// A service `PORT` or `PORT:INNER`: the stage finds `127.0.0.1:PORT` of this machine on its own loopback, at
/// INNER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// The port of the service, on `127.0.0.1` of this machine.
    pub port: Port,
    /// The port on the loopback of the sandbox.
    pub inner: Port,
}

/// Ports inside that exeat needs in every run, with their use.
pub(crate) const TAKEN: [(u16, &str); 2] = [(53, "names are answered there"), (3128, "the proxy is there")];

impl HostPort {
    /// Creates a service with the same port on both sides.
    #[must_use]
    pub const fn same(port: Port) -> Self {
        Self { port, inner: port }
    }

    /// Returns what uses the port inside in every run, if something does.
    #[must_use]
    pub fn taken_by(self) -> Option<&'static str> {
        TAKEN.iter().find(|(port, _)| *port == self.inner.get()).map(|(_, by)| *by)
    }

    /// Returns the target of connections to it.
    #[must_use]
    pub const fn target(self) -> Target {
        Target { host: Host::Ip(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST)), port: self.port }
    }

    /// Adds the rule that grants it: `127.0.0.1:PORT`. The service may use any protocol, so no TLS name is checked.
    pub fn grant(self, to: &mut PolicyBuilder, origin: Origin) {
        let spec = RuleSpec {
            action: Action::Allow,
            pattern: Pattern::Net(IpNet::from(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST))),
            ports: PortSet::one(self.port),
        };
        let note = Note { tls: TlsCheck::Off, ..Note::default() };
        to.push(spec, &self.target().to_string(), origin, note);
    }

    /// Returns its origin on a command line.
    #[must_use]
    pub fn flag(self) -> Origin {
        Origin::Flag { flag: format!("--host-port {self}") }
    }
}

/// The text is not a port of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is PORT or PORT:INNER, each a number from 1 to 65535 without leading zeros")]
pub struct HostPortError;

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let (port, inner) = text.split_once(':').unwrap_or((text, text));
        let read = |text| Port::parse(text).ok_or(HostPortError);
        Ok(Self { port: read(port)?, inner: read(inner)? })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.port.fmt(f)?;
        if self.inner == self.port { Ok(()) } else { write!(f, ":{}", self.inner) }
    }
}

#[cfg(test)]
mod tests {
    use crate::day::Day;
    use crate::policy::Policy;

    use super::*;

    fn read(text: &str) -> Option<String> {
        text.parse().ok().map(|port: HostPort| port.to_string())
    }

    #[test]
    fn parses_one_port_or_two() {
        assert_eq!(read("5432").as_deref(), Some("5432"));
        assert_eq!(read("11434:80").as_deref(), Some("11434:80"));
        assert_eq!(read("80:80").as_deref(), Some("80"));
        for text in [
            "",
            "0",
            "65536",
            "05",
            "+5",
            "5432:",
            ":80",
            "1:0",
            "1:2:3",
            "localhost:80",
            "80-90",
            "80,81",
            " 80",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    /// A service opens one port of one address, and does not determine the host inside.
    #[test]
    fn grants_one_port_of_one_address() {
        let mut rules = PolicyBuilder::new();
        let port: HostPort = "11434:80".parse().unwrap();
        port.grant(&mut rules, port.flag());
        let policy: Policy = rules.build();
        let admits = |target: &str| policy.admit(target.parse().unwrap(), Day::from_unix(0)).ok();
        let admitted = admits("127.0.0.1:11434").unwrap();
        assert_eq!(admitted.rule().unwrap().origin.to_string(), "--host-port 11434:80");
        assert_eq!((admitted.target(), admitted.tls()), (&port.target(), TlsCheck::Off));
        for other in ["127.0.0.1:80", "127.0.0.2:11434", "[::1]:11434", "localhost:11434"] {
            assert!(admits(other).is_none(), "{other}");
        }
        assert!(policy.served_addresses(Day::from_unix(0)).is_empty(), "the loopback is the sandbox's own");
        let typed = {
            let mut rules = PolicyBuilder::new();
            let note = Note { tls: TlsCheck::Off, ..Note::default() };
            rules.add("127.0.0.1:11434", Action::Allow, port.flag(), note).unwrap();
            rules.build()
        };
        assert_eq!(policy.canonical_json(), typed.canonical_json());
        assert_eq!(policy.rules()[0].text, typed.rules()[0].text);
    }
}

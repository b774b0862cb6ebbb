//! Determines what the transparent gateway serves: the ports of each name, and the addresses and ports of address
//! rules. It decides nothing: [`Policy::admit`] checks every connection there too. Everything else is reached
//! through the proxy.
//!
//! Listeners exist before anybody connects, so their number needs a bound. A rule for every port has none.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use crate::day::Day;
use crate::decision::REPORTED;
use crate::name::HostName;
use crate::policy::{Policy, Role};
use crate::port::{Port, PortSet};
use crate::rule::{Action, Rule};
use crate::target::{Host, Target};
use crate::terms::Mode;

/// Maximum ports that one name or address is served on. For a rule with more ports, the well-known ones are served.
pub const MAX_PORTS: usize = 64;

/// Maximum addresses of an address rule that is served.
pub const MAX_ADDRESSES: u32 = 16;

/// Maximum addresses with their ports that are served in all.
pub const MAX_LITERALS: usize = 256;

/// The ports that are served for a rule with more than [`MAX_PORTS`] ports: those that programs without proxy
/// support use most. They include the ports of the web, on which report mode allows names.
pub const WELL_KNOWN: [u16; 38] = [
    22, 25, 80, 443, 465, 587, 993, 995, 1433, 1521, 1883, 2222, 3000, 3306, 3389, 4222, 5000, 5432, 5671,
    5672, 6379, 6432, 6443, 8000, 8080, 8443, 8883, 8888, 9000, 9042, 9092, 9093, 9200, 9418, 11211, 11434,
    27017, 50051,
];

/// The reason why the gateway does not serve a target that the policy admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unserved {
    /// The sandbox has its own loopback, where the stage looks for it.
    Loopback,
    /// No machine can have this address: it is unspecified, multicast or broadcast.
    NoHost,
    /// The host is granted on more ports than are served, and no rule names this one.
    Ports,
    /// No rule with few enough addresses grants this one.
    Addresses,
    /// More addresses and ports are granted than are served in all.
    Full,
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("the sandbox has a loopback of its own"),
            Self::NoHost => f.write_str("it is no address of a machine"),
            Self::Ports => write!(
                f,
                "of a rule with more than {MAX_PORTS} ports, the gateway serves the well-known ones"
            ),
            Self::Addresses => {
                write!(f, "the gateway serves address rules of at most {MAX_ADDRESSES} addresses")
            }
            Self::Full => write!(f, "the gateway serves at most {MAX_LITERALS} addresses with their ports"),
        }
    }
}

impl Policy {
    /// Returns the ports on which the gateway serves a name, in ascending order. A name that is not granted has
    /// none and needs no address. All returned ports are granted. Up to [`MAX_PORTS`] all granted ports are
    /// returned; otherwise the [`WELL_KNOWN`] ones, then those of rules with at most that many ports.
    ///
    /// Names of the loopback have none, because they never leave the sandbox.
    pub fn served_ports(&self, name: &HostName, today: Day) -> Vec<Port> {
        if name.is_local() {
            return Vec::new();
        }
        self.limited_ports(&Host::Name(name.clone()), today)
    }

    /// Returns the addresses and ports on which the gateway serves address rules, at most [`MAX_LITERALS`], in the
    /// order of the rules.
    ///
    /// Each is granted. Only rules with at most [`MAX_ADDRESSES`] addresses count. The ports of an address have the
    /// bounds of those of a name.
    pub fn served_addresses(&self, today: Day) -> Vec<SocketAddr> {
        let mut seen = BTreeSet::new();
        let mut served = Vec::new();
        let fresh = self.literal_rules(today).flat_map(addresses).filter(|ip| seen.insert(*ip));
        for ip in fresh.filter(|ip| why_unservable(*ip).is_none()) {
            let ports = self.limited_ports(&Host::Ip(ip), today);
            let room = MAX_LITERALS.saturating_sub(served.len());
            served.extend(ports.into_iter().take(room).map(|port| SocketAddr::new(ip, port.get())));
            if served.len() >= MAX_LITERALS {
                break;
            }
        }
        served
    }

    /// Returns why the gateway does not serve this admitted target, or `None` if it does.
    pub fn unserved(&self, target: &Target, today: Day) -> Option<Unserved> {
        match &target.host {
            Host::Name(name) if name.is_local() => Some(Unserved::Loopback),
            Host::Name(name) => {
                (!self.served_ports(name, today).contains(&target.port)).then_some(Unserved::Ports)
            }
            Host::Ip(ip) => why_unservable(*ip).or_else(|| {
                if self.served_addresses(today).contains(&SocketAddr::new(*ip, target.port.get())) {
                    None
                } else if !self.literal_rules(today).any(|net| net.contains(ip)) {
                    Some(Unserved::Addresses)
                } else if self.limited_ports(&target.host, today).contains(&target.port) {
                    Some(Unserved::Full)
                } else {
                    Some(Unserved::Ports)
                }
            }),
        }
    }

    /// Returns the granted ports of a host, limited to those that are served.
    fn limited_ports(&self, host: &Host, today: Day) -> Vec<Port> {
        let about: Vec<&Rule> = self.about(host).collect();
        // This also runs for names that are asked in a loop, so a name without a rule costs one lookup.
        if self.terms().mode == Mode::Enforce && !about.iter().any(|rule| rule.action == Action::Allow) {
            return Vec::new();
        }
        let granted = self.granted_ports_of(host, &about, today);
        if granted.len() <= MAX_PORTS {
            return granted.iter().collect();
        }
        let is_known = |port: &Port| WELL_KNOWN.contains(&port.get());
        let known = WELL_KNOWN.into_iter().filter_map(Port::new).filter(|port| granted.contains(*port));
        let named = about.iter().filter(|rule| rule.action == Action::Allow && rule.is_live(today));
        let named = PortSet::union(named.map(|rule| &rule.ports).filter(|ports| ports.len() <= MAX_PORTS));
        let named = named.intersection(&granted);
        let mut ports: Vec<Port> =
            known.chain(named.iter().filter(|port| !is_known(port))).take(MAX_PORTS).collect();
        ports.sort_unstable();
        ports
    }

    /// Returns the ports on which [`Policy::admit`] admits a host. It asks once for each range of ports that no
    /// rule about the host, nor report mode, distinguishes.
    fn granted_ports_of(&self, host: &Host, about: &[&Rule], today: Day) -> PortSet {
        let web = REPORTED.into_iter().filter_map(Port::new).map(|port| (port, port));
        // Nothing is granted below the first port of the first rule.
        let ranges = about.iter().flat_map(|rule| rule.ports.ranges()).chain(web);
        let starts: BTreeSet<u16> = ranges
            .flat_map(|(first, last)| [Some(first.get()), last.get().checked_add(1)])
            .flatten()
            .collect();
        let ends = starts.iter().skip(1).map(|next| next - 1).chain([u16::MAX]);
        let stretches = starts.iter().zip(ends);
        let stretches = stretches.filter_map(|(first, last)| Some((Port::new(*first)?, Port::new(last)?)));
        let admitted = stretches
            .filter(|(port, _)| self.admit(Target { host: host.clone(), port: *port }, today).is_ok());
        let admitted: Vec<PortSet> = admitted.map(|(first, last)| PortSet::range(first, last)).collect();
        PortSet::union(&admitted)
    }

    /// Returns the nets of live grants with few enough addresses.
    fn literal_rules(&self, today: Day) -> impl Iterator<Item = &IpNet> {
        let grants = self.layers().iter().filter(|layer| layer.role() == Role::Grants);
        let rules = grants.flat_map(|layer| self.rules_of(layer));
        let live = rules.filter(move |rule| rule.action == Action::Allow && rule.is_live(today));
        let small =
            |net: &&IpNet| u32::from(net.max_prefix_len() - net.prefix_len()) <= MAX_ADDRESSES.ilog2();
        live.filter_map(|rule| rule.pattern.net()).filter(small)
    }
}

/// Returns why no listener of the gateway can have this address, whatever the rules are.
fn why_unservable(ip: IpAddr) -> Option<Unserved> {
    let plain = ip.to_canonical();
    if plain.is_loopback() {
        Some(Unserved::Loopback)
    } else if plain.is_unspecified() || plain.is_multicast() || plain == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some(Unserved::NoHost)
    } else if plain != ip {
        // The kernel takes an IPv4-mapped address for the one inside.
        Some(Unserved::Addresses)
    } else {
        None
    }
}

/// Returns the first [`MAX_ADDRESSES`] addresses of a net.
fn addresses(net: &IpNet) -> impl Iterator<Item = IpAddr> {
    let first = net.network();
    let all = (0..MAX_ADDRESSES).map_while(move |number| match first {
        IpAddr::V4(ip) => ip.to_bits().checked_add(number).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(ip) => {
            ip.to_bits().checked_add(number.into()).map(|bits| Ipv6Addr::from_bits(bits).into())
        }
    });
    let net = *net;
    all.take_while(move |ip| net.contains(ip))
}

#[cfg(test)]
mod tests;

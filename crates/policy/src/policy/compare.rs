//! Compares what two policies, two layers or two rules grant.
//!
//! It makes real decisions about sample targets, with one of each kind that the rules can distinguish. So this file
//! does not repeat the logic of decisions, and finds every difference.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::addr::{self, AddrClass, Opening, OwnAddrs, classify};
use crate::day::Day;
use crate::decision::{Admitted, Why};
use crate::name::HostName;
use crate::pattern::HostPattern;
use crate::port::{Port, PortSet};
use crate::rule::{Action, Pattern, Rule, RuleId};
use crate::target::{Host, Target};

use super::{Layer, Policy, Role};

/// A difference between what two policies grant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The targets.
    pub pattern: Pattern,
    /// The ports.
    pub ports: PortSet,
    /// The kind of difference: a rule or its check was added or removed.
    pub why: ChangeKind,
}

/// Kinds of differences between two policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ChangeKind {
    /// Allow rules differ, in any layer.
    Allow,
    /// A deny rule differs.
    Deny,
    /// The check of the TLS server name differs.
    Tls,
    /// The upload budget differs.
    Upload,
}

/// A declared rule that the other layers do not grant.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Excess<'a> {
    /// The declared rule.
    pub rule: &'a Rule,
    /// Its ports that are not granted.
    pub ports: PortSet,
    /// The layer that does not grant them; `None` if a deny rule forbids them.
    pub missing_in: Option<&'a Layer>,
    /// The deny rule.
    pub denied_by: Option<&'a Rule>,
}

/// A target of each kind that some rules can distinguish.
struct Samples {
    names: Vec<HostName>,
    ips: Vec<IpAddr>,
}

impl Samples {
    fn new<'a>(rules: impl Iterator<Item = &'a Rule>, nat64: bool) -> Self {
        let mut known = BTreeSet::new();
        let mut nets = Vec::new();
        for rule in rules {
            match &rule.pattern {
                Pattern::Name(HostPattern::Exact(name) | HostPattern::Subdomains(name)) => {
                    known.insert(name.clone());
                }
                Pattern::Name(HostPattern::Any) => {}
                Pattern::Net(net) => nets.push((*net, rule.action)),
            }
        }
        let others = known.iter().filter_map(|base| find_other_name(&known, &format!(".{base}")));
        let mut names: Vec<HostName> = others.chain(find_other_name(&known, "")).collect();
        names.extend(known);
        Self { names, ips: sample_ips(&nets, nat64) }
    }

    fn hosts(self) -> impl Iterator<Item = Host> {
        self.names.into_iter().map(Host::Name).chain(self.ips.into_iter().map(Host::Ip))
    }
}

/// Returns a name directly below a suffix that no rule names. It represents all such names.
fn find_other_name(known: &BTreeSet<HostName>, suffix: &str) -> Option<HostName> {
    let letters = ('a'..='z').chain('0'..='9').map(String::from);
    let labels = letters.chain((0..=known.len()).map(|n| format!("x{n}")));
    let names = labels.filter_map(|label| format!("{label}{suffix}").parse::<HostName>().ok());
    names.into_iter().find(|name| !known.contains(name))
}

/// Returns the first address of each range in which neither the class nor a rule changes. IPv6 addresses that
/// contain IPv4 ones are included where a rule reaches them.
fn sample_ips(nets: &[(IpNet, Action)], nat64: bool) -> Vec<IpAddr> {
    let mut v4: BTreeSet<Ipv4Addr> = addr::borders_v4().collect();
    let mut v6: BTreeSet<Ipv6Addr> = addr::borders_v6().collect();
    for (net, _) in nets {
        match net {
            IpNet::V4(net) => {
                v4.insert(net.network());
                v4.extend(net.broadcast().to_bits().checked_add(1).map(Ipv4Addr::from_bits));
            }
            IpNet::V6(net) => {
                v6.insert(net.network());
                v6.extend(net.broadcast().to_bits().checked_add(1).map(Ipv6Addr::from_bits));
            }
        }
    }
    for (net, _) in nets.iter().filter(|(_, action)| *action == Action::Allow) {
        if let IpNet::V6(net) = net {
            addr::carriers_in(net, &v4, |ip| {
                v6.insert(ip);
            });
        }
    }
    if nat64 {
        addr::carriers_in(&addr::NAT64, &v4, |ip| {
            v6.insert(ip);
        });
    }
    v4.into_iter().map(IpAddr::from).chain(v6.into_iter().map(IpAddr::from)).collect()
}

/// Splits `ports` into ranges within which no rule begins or ends. 443 is a range by itself, because TLS is checked
/// there.
fn port_ranges<'a>(ports: &PortSet, rules: impl Iterator<Item = &'a Rule>) -> Vec<(Port, Port)> {
    if ports.is_empty() {
        return Vec::new();
    }
    let ranges = rules.flat_map(|rule| rule.ports.ranges()).chain([(Port::HTTPS, Port::HTTPS)]);
    let cuts: BTreeSet<u16> =
        ranges.flat_map(|(first, last)| [Some(first.get()), last.get().checked_add(1)]).flatten().collect();
    let mut all = Vec::new();
    for (first, last) in ports.ranges() {
        let mut start = first.get();
        for cut in cuts.range(start.saturating_add(1)..).take_while(|cut| **cut <= last.get()) {
            all.extend(Port::new(start).zip(Port::new(cut - 1)));
            start = *cut;
        }
        all.extend(Port::new(start).zip(Some(last)));
    }
    all
}

/// Differences by pattern and kind, so that a wide rule is one line.
#[derive(Default)]
struct Differences(BTreeMap<(Pattern, ChangeKind), PortSet>);

impl Differences {
    fn add(&mut self, pattern: &Pattern, why: ChangeKind, (first, last): (Port, Port)) {
        self.0.entry((pattern.clone(), why)).or_default().extend(&PortSet::range(first, last));
    }

    fn changes(self) -> Vec<Change> {
        let mut all: Vec<_> =
            self.0.into_iter().map(|((pattern, why), ports)| Change { pattern, ports, why }).collect();
        all.sort_by(|a, b| (&a.pattern, &a.ports, a.why).cmp(&(&b.pattern, &b.ports, b.why)));
        all
    }
}

impl Policy {
    /// Returns what this policy grants on `today` and `other` does not, so what a change from `other` to this
    /// opens. Swapping the two gives what it closes. The result is empty exactly if `other` grants every target of
    /// this policy, every address of its names, at least the same budgets, and no more unchecked TLS names.
    ///
    /// A wider rule appears whole, even if a part of it was granted before. The addresses of this machine are
    /// unknown here: a rule for exactly such an address opens it, and a wider one does not.
    pub fn opens(&self, other: &Self, today: Day) -> Vec<Change> {
        let mut found = Differences::default();
        let nat64 = self.terms().nat64 || other.terms().nat64;
        let Samples { names, ips } = Samples::new(self.rules().iter().chain(other.rules()), nat64);
        let mut by_name = PortSet::empty();
        for name in names {
            self.compare_host(other, &Host::Name(name), today, &mut found, &mut by_name);
        }
        let own = OwnAddrs::default();
        for ip in ips {
            let mut by_literal = PortSet::empty();
            self.compare_host(other, &Host::Ip(ip), today, &mut found, &mut by_literal);
            self.compare_answer(other, ip, &by_name, &own, today, &mut found);
        }
        found.changes()
    }

    /// Compares one host on every port, and adds the ports that this policy grants to `granted`.
    fn compare_host(
        &self,
        other: &Self,
        host: &Host,
        today: Day,
        found: &mut Differences,
        granted: &mut PortSet,
    ) {
        let allowed = self.about(host).filter(|rule| rule.action == Action::Allow);
        let ports = PortSet::union(allowed.map(|rule| &rule.ports));
        for (first, last) in port_ranges(&ports, self.about(host).chain(other.about(host))) {
            let ask = |policy: &Self| policy.admit(Target { host: host.clone(), port: first }, today);
            let Ok(ours) = ask(self) else { continue };
            if !PortSet::range(first, last).is_within(granted) {
                granted.extend(&PortSet::range(first, last));
            }
            let Some(pattern) = self.narrowest(ours.rules()) else { continue };
            match ask(other) {
                Err(denial) => {
                    let deny = denial.rule().filter(|rule| rule.action == Action::Deny);
                    match deny {
                        Some(deny) if pattern.covers(&deny.pattern) => {
                            found.add(&deny.pattern, ChangeKind::Deny, (first, last));
                        }
                        Some(_) => found.add(pattern, ChangeKind::Deny, (first, last)),
                        None => found.add(pattern, ChangeKind::Allow, (first, last)),
                    }
                }
                Ok(theirs) => {
                    let most = |admitted: &Admitted| {
                        admitted.upload_budgets().map(|(_, bytes)| bytes).min().unwrap_or(u64::MAX)
                    };
                    if most(&ours) > most(&theirs) {
                        found.add(pattern, ChangeKind::Upload, (first, last));
                    }
                    if theirs.tls().enforced_on(first) && !ours.tls().enforced_on(first) {
                        found.add(pattern, ChangeKind::Tls, (first, last));
                    }
                }
            }
        }
    }

    /// Compares one address to which a name may resolve that is granted on these ports.
    fn compare_answer(
        &self,
        other: &Self,
        ip: IpAddr,
        ports: &PortSet,
        own: &OwnAddrs,
        today: Day,
        found: &mut Differences,
    ) {
        let host = Host::Ip(ip);
        // If no rule concerns an address, its class decides, which is the same for both.
        if self.about(&host).chain(other.about(&host)).next().is_none() {
            return;
        }
        let Ok(name) = "a".parse::<HostName>() else { return };
        for (first, last) in port_ranges(ports, self.about(&host).chain(other.about(&host))) {
            let target = Target { host: Host::Name(name.clone()), port: first };
            let Ok(opened_by) = self.vet(&target, &[ip], own, today) else { continue };
            let net = Pattern::Net(IpNet::from(ip));
            match other.vet(&target, &[ip], own, today) {
                Ok(_) => {}
                Err((Why::DenyRule { rule, .. }, _)) => {
                    found.add(&other.rule(rule).pattern, ChangeKind::Deny, (first, last));
                }
                Err(_) => {
                    let pattern = opened_by.map_or(&net, |rule| &self.rule(rule).pattern);
                    found.add(pattern, ChangeKind::Allow, (first, last));
                }
            }
        }
    }

    /// Returns the narrowest of some patterns that all cover one host.
    fn narrowest(&self, rules: &[RuleId]) -> Option<&Pattern> {
        let patterns = rules.iter().map(|id| &self.rule(*id).pattern);
        patterns.reduce(|narrow, other| if narrow.covers(other) { other } else { narrow })
    }

    /// Returns what the stage declared beyond the grants of the other layers on `today`. It is empty without a
    /// declaration.
    pub fn excess(&self, today: Day) -> Vec<Excess<'_>> {
        let Some(declared) = self.layers().iter().find(|layer| layer.role() == Role::Declared) else {
            return Vec::new();
        };
        // A stage may declare what it has not reached yet.
        let others: Vec<&Layer> = self
            .layers()
            .iter()
            .filter(|layer| !matches!(layer.role(), Role::Declared | Role::Lock))
            .collect();
        // By rule, then by layer in the order in which they are asked.
        let mut missing: BTreeMap<RuleId, BTreeMap<usize, PortSet>> = BTreeMap::new();
        for host in Samples::new(self.rules().iter(), self.terms().nat64).hosts() {
            let allowed =
                self.about(&host).filter(|rule| rule.action == Action::Allow && declared.has(rule.id));
            let ports = PortSet::union(allowed.map(|rule| &rule.ports));
            for (first, last) in port_ranges(&ports, self.about(&host)) {
                let Ok(rule) = self.grant_of(declared, &host, first, today) else { continue };
                for (at, layer) in others.iter().enumerate() {
                    if self.grant_of(layer, &host, first, today).is_err() {
                        let ports = missing.entry(rule).or_default().entry(at).or_default();
                        ports.extend(&PortSet::range(first, last));
                    }
                }
            }
        }
        let mut excess = Vec::new();
        for rule in self.rules_of(declared).iter().filter(|rule| rule.action == Action::Allow) {
            if let Some(deny) = self.find_forbidding_rule(rule) {
                let ports = rule.ports.clone();
                excess.push(Excess { rule, ports, missing_in: None, denied_by: Some(deny) });
            } else if let Some((at, ports)) = missing.get(&rule.id).and_then(BTreeMap::first_key_value) {
                let missing_in = others.get(*at).copied();
                excess.push(Excess { rule, ports: ports.clone(), missing_in, denied_by: None });
            }
        }
        excess
    }
}

/// Whether a rule for `wide` grants everything that one for `narrow` grants, on the same ports. Covering it is not
/// enough: a wide network opens no special-use address, but one inside the block of such an address does.
pub(super) fn grants_all_of(wide: &Pattern, narrow: &Pattern) -> bool {
    let (Pattern::Net(inner), Pattern::Net(outer)) = (narrow, wide) else { return wide.covers(narrow) };
    wide.covers(narrow)
        && (!addr::may_be_special(inner)
            || sample_ips(&[(*inner, Action::Allow)], false)
                .iter()
                .filter(|ip| opens(inner, ip))
                .all(|ip| opens(outer, ip)))
}

/// Returns the classes of the special addresses that a rule for a network opens, and of the IPv4 addresses inside
/// them.
pub(super) fn opened_classes(net: &IpNet) -> BTreeSet<AddrClass> {
    if !addr::may_be_special(net) {
        return BTreeSet::new();
    }
    let samples = sample_ips(&[(*net, Action::Allow)], false);
    let opened = samples.iter().filter(|ip| opens(net, ip)).copied();
    opened
        .flat_map(|ip| std::iter::once(ip).chain(addr::possible_inner_addresses(ip).map(IpAddr::from)))
        .map(classify)
        .collect()
}

/// Whether a rule for a network allows this address to be dialed.
fn opens(net: &IpNet, ip: &IpAddr) -> bool {
    match addr::opening_for(*ip) {
        Opening::Public => net.contains(ip),
        Opening::Within(block) => net.contains(ip) && block.contains(net),
        Opening::Never => false,
    }
}

#[cfg(test)]
mod tests;

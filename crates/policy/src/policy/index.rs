//! Indexes rules by what they cover, so that a decision costs the same at ten thousand rules as at ten. The caller
//! determines which of the rules decides.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::name::HostName;
use crate::pattern::HostPattern;
use crate::rule::{Action, Note, Pattern, Rule, RuleId, TlsCheck};

/// The rules of one action.
#[derive(Debug, Default)]
pub(super) struct Index {
    exact: HashMap<HostName, Vec<RuleId>>,
    /// The wildcard rules, by the name above.
    below: HashMap<HostName, Vec<RuleId>>,
    any: Vec<RuleId>,
    /// The rules for addresses, by net. A lookup asks once for each prefix length that occurs.
    nets: HashMap<IpNet, Vec<RuleId>>,
    /// The prefix lengths of `nets`, longest first.
    v4_lens: Vec<u8>,
    v6_lens: Vec<u8>,
}

impl Index {
    pub(super) fn new(rules: &[Rule], action: Action) -> Self {
        let mut index = Self::default();
        let mut wanted: Vec<&Rule> = rules.iter().filter(|rule| rule.action == action).collect();
        // Among rules for the same names or net, the one that says more comes first: the smallest upload budget,
        // then a lifted TLS check, then a stricter one.
        wanted.sort_by_key(|rule| {
            let Note { max_upload, tls, .. } = rule.note;
            let check = match tls {
                TlsCheck::Off => 0,
                TlsCheck::Sni => 1,
                TlsCheck::Auto => 2,
            };
            (max_upload.is_none(), max_upload, check, rule.id)
        });
        for rule in wanted {
            let bucket = match &rule.pattern {
                Pattern::Name(HostPattern::Exact(name)) => index.exact.entry(name.clone()).or_default(),
                Pattern::Name(HostPattern::Subdomains(base)) => index.below.entry(base.clone()).or_default(),
                Pattern::Name(HostPattern::Any) => &mut index.any,
                Pattern::Net(net) => {
                    let lens = if net.addr().is_ipv4() { &mut index.v4_lens } else { &mut index.v6_lens };
                    lens.push(net.prefix_len());
                    index.nets.entry(*net).or_default()
                }
            };
            bucket.push(rule.id);
        }
        for lens in [&mut index.v4_lens, &mut index.v6_lens] {
            lens.sort_unstable_by(|a, b| b.cmp(a));
            lens.dedup();
        }
        index
    }

    /// Returns every rule that covers `name`: the name itself, then the nearest wildcard outward, then `*`.
    pub(super) fn by_name(&self, name: &HostName) -> impl Iterator<Item = RuleId> {
        let exact = self.exact.get(name).into_iter().flatten();
        let below = name.parents().filter_map(|parent| self.below.get(parent)).flatten();
        exact.chain(below).chain(&self.any).copied()
    }

    /// Returns every rule that covers all of `pattern`, on any ports.
    pub(super) fn covering<'a>(&'a self, pattern: &'a Pattern) -> impl Iterator<Item = RuleId> + 'a {
        self.buckets(pattern).flatten().copied()
    }

    /// Returns these rules grouped by pattern.
    pub(super) fn buckets<'a>(
        &'a self,
        pattern: &'a Pattern,
    ) -> Box<dyn Iterator<Item = &'a Vec<RuleId>> + 'a> {
        let any = (!self.any.is_empty()).then_some(&self.any);
        match pattern {
            Pattern::Name(HostPattern::Exact(name)) => {
                let exact = self.exact.get(name).into_iter();
                Box::new(exact.chain(name.parents().filter_map(|base| self.below.get(base))).chain(any))
            }
            Pattern::Name(HostPattern::Subdomains(base)) => {
                let bases = std::iter::once(base.as_str()).chain(base.parents());
                Box::new(bases.filter_map(|base| self.below.get(base)).chain(any))
            }
            Pattern::Name(HostPattern::Any) => Box::new(any.into_iter()),
            Pattern::Net(net) => {
                let lens = if net.addr().is_ipv4() { &self.v4_lens } else { &self.v6_lens };
                let wider = lens.iter().filter(move |len| **len <= net.prefix_len());
                let nets = wider.filter_map(move |len| Some(IpNet::new(net.addr(), *len).ok()?.trunc()));
                Box::new(nets.filter_map(|net| self.nets.get(&net)))
            }
        }
    }

    /// Returns the patterns in an order that keeps those within another one together.
    pub(super) fn sorted(&self) -> Sorted<'_> {
        let mut sorted = Sorted::default();
        for (name, ids) in self.exact.iter().chain(&self.below) {
            sorted.names.entry(reversed_labels(name)).or_default().push(ids);
        }
        for (net, ids) in &self.nets {
            sorted.nets.insert((net.addr(), net.prefix_len()), (*net, ids));
        }
        sorted
    }

    /// Returns every rule that covers `ip`, the narrowest net first.
    pub(super) fn by_ip(&self, ip: IpAddr) -> impl Iterator<Item = RuleId> {
        let lens = if ip.is_ipv4() { &self.v4_lens } else { &self.v6_lens };
        let nets = lens.iter().filter_map(move |len| Some(IpNet::new(ip, *len).ok()?.trunc()));
        nets.filter_map(|net| self.nets.get(&net)).flatten().copied()
    }
}

/// The patterns of an index, with the rules of each.
#[derive(Debug, Default)]
pub(super) struct Sorted<'a> {
    /// Keyed by the labels from the last one on, so that a name and those below it are adjacent.
    names: BTreeMap<String, Vec<&'a Vec<RuleId>>>,
    nets: BTreeMap<(IpAddr, u8), (IpNet, &'a Vec<RuleId>)>,
}

impl<'a> Sorted<'a> {
    /// Returns every rule whose pattern lies within `pattern` and differs from it.
    pub(super) fn within<'s>(&'s self, pattern: &'s Pattern) -> Box<dyn Iterator<Item = RuleId> + 's> {
        match pattern {
            Pattern::Name(HostPattern::Exact(_)) => Box::new(std::iter::empty()),
            Pattern::Name(HostPattern::Subdomains(base)) => {
                let base = reversed_labels(base);
                let from = self.names.range(base.clone()..);
                let below = from.take_while({
                    let base = base.clone();
                    move |(name, _)| name.starts_with(&base)
                });
                let below = below.filter(move |(name, _)| **name != base);
                Box::new(below.flat_map(|(_, ids)| ids).flat_map(|ids| *ids).copied())
            }
            Pattern::Name(HostPattern::Any) => {
                Box::new(self.names.values().flatten().flat_map(|ids| *ids).copied())
            }
            Pattern::Net(net) => Box::new(self.nets_within(net).flat_map(|(_, ids)| ids).copied()),
        }
    }

    /// Returns every narrower net in a net, with its rules.
    pub(super) fn nets_within(&self, net: &IpNet) -> impl Iterator<Item = (IpNet, &'a Vec<RuleId>)> + '_ {
        // A net that begins inside another one is either narrower and inside it, or at its beginning.
        let first = (net.network(), net.prefix_len().saturating_add(1));
        self.nets.range(first..=(net.broadcast(), u8::MAX)).map(|(_, net)| *net)
    }
}

/// Formats `api.example.com` as `com.example.api.`.
fn reversed_labels(name: &HostName) -> String {
    let mut text = String::with_capacity(name.as_str().len() + 1);
    for label in name.as_str().rsplit('.') {
        text.push_str(label);
        text.push('.');
    }
    text
}

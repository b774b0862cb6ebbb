//! Rules by what they cover, so that a decision costs the same at ten thousand rules as at ten.
//! Which rule then decides, and whether it does, is the caller's business.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::name::HostName;
use crate::pattern::HostPattern;
use crate::rule::{Action, Pattern, Rule, RuleId, TlsCheck};

/// The rules of one action.
#[derive(Debug, Default)]
pub(super) struct Index {
    exact: HashMap<HostName, Vec<RuleId>>,
    /// By the name that they lie below.
    below: HashMap<HostName, Vec<RuleId>>,
    any: Vec<RuleId>,
    /// By net; a lookup asks once for each prefix length that occurs.
    nets: HashMap<IpNet, Vec<RuleId>>,
    /// Longest first.
    v4_lens: Vec<u8>,
    v6_lens: Vec<u8>,
}

impl Index {
    pub(super) fn new(rules: &[Rule], action: Action) -> Self {
        let mut index = Self::default();
        let mut wanted: Vec<&Rule> = rules.iter().filter(|rule| rule.action == action).collect();
        // Of rules for the same names or net, one that lifts the TLS check is meant to: it comes first.
        wanted.sort_by_key(|rule| (rule.note.tls != TlsCheck::Off, rule.id));
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

    /// Every rule that covers `name`: the name itself, then the nearest wildcard outward, then `*`.
    pub(super) fn by_name(&self, name: &HostName) -> impl Iterator<Item = RuleId> {
        let exact = self.exact.get(name).into_iter().flatten();
        let below = name.parents().filter_map(|parent| self.below.get(parent)).flatten();
        exact.chain(below).chain(&self.any).copied()
    }

    /// Every rule that covers all that `pattern` covers, whatever the ports.
    pub(super) fn covering<'a>(&'a self, pattern: &'a Pattern) -> Box<dyn Iterator<Item = RuleId> + 'a> {
        match pattern {
            Pattern::Name(HostPattern::Exact(name)) => Box::new(self.by_name(name)),
            Pattern::Name(HostPattern::Subdomains(base)) => {
                let bases = std::iter::once(base.as_str()).chain(base.parents());
                let below = bases.filter_map(|base| self.below.get(base)).flatten();
                Box::new(below.chain(&self.any).copied())
            }
            Pattern::Name(HostPattern::Any) => Box::new(self.any.iter().copied()),
            Pattern::Net(net) => {
                let lens = if net.addr().is_ipv4() { &self.v4_lens } else { &self.v6_lens };
                let wider = lens.iter().filter(move |len| **len <= net.prefix_len());
                let nets = wider.filter_map(move |len| Some(IpNet::new(net.addr(), *len).ok()?.trunc()));
                Box::new(nets.filter_map(|net| self.nets.get(&net)).flatten().copied())
            }
        }
    }

    /// Every rule that covers `ip`, the narrowest net first.
    pub(super) fn by_ip(&self, ip: IpAddr) -> impl Iterator<Item = RuleId> {
        let lens = if ip.is_ipv4() { &self.v4_lens } else { &self.v6_lens };
        let nets = lens.iter().filter_map(move |len| Some(IpNet::new(ip, *len).ok()?.trunc()));
        nets.filter_map(|net| self.nets.get(&net)).flatten().copied()
    }
}

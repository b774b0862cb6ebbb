//! Finds rules that are risky, dead or duplicate, and describes what a change of policy does. It only advises.

use std::collections::BTreeSet;
use std::fmt;

use ipnet::IpNet;

use crate::addr::{AddrClass, Opening, opening_for};
use crate::day::Day;
use crate::pattern::HostPattern;
use crate::port::PortSet;
use crate::rule::{Action, Note, Origin, Pattern, Rule, TlsCheck};
use crate::suffix::find_shared;
use crate::words;

use super::compare::{grants_all_of, opened_classes};
use super::effective::Effective;
use super::{Layer, Policy, Role};

/// Days before an expiry from which it is reported.
const SOON: i64 = 14;

/// A remark about a rule for its author.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remark<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// The kind of remark.
    pub lint: Lint,
    /// The other rule that causes it.
    pub by: Option<&'a Rule>,
}

words! {
    /// Kinds of remarks about valid rules.
    #[derive(PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum Lint {
        /// The rule covers every name.
        Any = "any",
        /// The rule is a wildcard, and the names below have many owners.
        SharedSuffix = "shared_suffix",
        /// A deny rule, or a layer above, leaves nothing of it.
        Unreachable = "unreachable",
        /// Another rule of the same layer grants all of it.
        Duplicate = "duplicate",
        /// The only grant of a listed host is `Network`, which opens every other host too.
        Swallowed = "swallowed",
        /// The rule has expired.
        Expired = "expired",
        /// The rule expires within two weeks.
        ExpiresSoon = "expires_soon",
        /// The rule is a range of special-use addresses without a written port.
        RangeWithoutPort = "range_without_port",
        /// The rule is a range of special-use addresses on every port.
        RangeAllPorts = "range_all_ports",
        /// The rule is a net that contains special-use addresses, but is too wide to open them.
        NetOpensNothing = "net_opens_nothing",
        /// The rule is a service on the loopback of the host machine.
        OwnMachine = "own_machine",
        /// The rule is an address at which a cloud gives credentials to a machine.
        Metadata = "metadata",
        /// The rule covers addresses of the same link.
        LinkLocal = "link_local",
        /// The rule covers addresses of a private network.
        Private = "private",
        /// The rule turns off the check of the TLS server name on port 443.
        TlsOff = "tls_off",
        /// A nearer rule grants a part of it without its `max_upload` or `tls`, or it replaces one that has them.
        Shadowed = "shadowed",
    }
}

impl fmt::Display for Remark<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lint {
            Lint::Any if matches!(self.rule.pattern, Pattern::Net(_)) => {
                f.write_str("it allows every public address of its kind")?;
            }
            Lint::Any => f.write_str("it allows every host")?,
            Lint::SharedSuffix => f.write_str("anyone can get a name below this one")?,
            Lint::Unreachable if self.by.is_none() => {
                f.write_str("the ceilings and the declared effects allow none of its targets")?;
            }
            Lint::Unreachable => f.write_str("a deny rule refuses all of its targets")?,
            Lint::Duplicate => f.write_str("another rule allows all of it already")?,
            Lint::Swallowed => {
                f.write_str("`Network` allows it and everything else: the list has no effect")?
            }
            Lint::Expired => f.write_str("it has expired")?,
            Lint::ExpiresSoon => f.write_str("it expires within two weeks")?,
            Lint::RangeWithoutPort => {
                f.write_str("a range of private addresses without a port means 443; write the port")?;
            }
            Lint::RangeAllPorts => f.write_str("every port of every host in this private range")?,
            Lint::NetOpensNothing => {
                f.write_str("it is wider than the special-use ranges in it, and opens none of them")?;
            }
            Lint::Shadowed if self.by.is_some_and(|by| by.pattern == self.rule.pattern) => {
                f.write_str("another rule for the same targets says otherwise, and one of them counts")?;
            }
            Lint::Shadowed => {
                f.write_str("its `max_upload` and `tls` do not hold where a nearer rule counts")?
            }
            Lint::OwnMachine => f.write_str(
                "it opens a service on the loopback of this machine, which other machines cannot reach",
            )?,
            Lint::Metadata => {
                f.write_str("it opens an address where a cloud tells a machine its credentials")?
            }
            Lint::LinkLocal => f.write_str("it opens addresses of the same link, which need no router")?,
            Lint::Private => f.write_str("it opens addresses of a private network")?,
            Lint::TlsOff => f.write_str("on port 443 a tunnel without the check can carry any host")?,
        }
        match self.by {
            Some(by) => write!(f, ": {} ({})", by.text, by.origin),
            None => Ok(()),
        }
    }
}

impl Policy {
    /// Returns remarks about the rules, in their order.
    pub fn review(&self, today: Day) -> Vec<Remark<'_>> {
        let mut findings = Vec::new();
        for layer in self.layers() {
            for rule in self.rules_of(layer).iter().filter(|rule| rule.action == Action::Allow) {
                self.review_one(layer, rule, today, &mut findings);
            }
        }
        for layer in self.layers() {
            self.review_notes(layer, today, &mut findings);
        }
        self.review_bounds(&mut findings);
        findings.sort_by_key(|finding| finding.rule.id);
        // What a declaration grants is a rule of the grants, and one of the declaration.
        let mut seen = BTreeSet::new();
        findings.retain(|Remark { rule, lint, by }| match &rule.origin {
            Origin::Effect { effect } => {
                let by = by.map(|by| (by.origin.to_string(), &by.text));
                seen.insert((effect, &rule.text, lint.as_str(), by))
            }
            _ => true,
        });
        findings
    }

    /// Finds rules whose `max_upload` or `tls` does not apply to everything that they cover, because another rule
    /// decides for a part. A narrower rule that says more than a wider one is a usual exception, and is not
    /// reported.
    fn review_notes<'a>(&'a self, layer: &Layer, today: Day, findings: &mut Vec<Remark<'a>>) {
        let says = |rule: &Rule| rule.note.max_upload.is_some() || rule.note.tls != TlsCheck::Auto;
        let live = |rule: &&Rule| rule.action == Action::Allow && rule.is_live(today);
        let rules = || self.rules_of(layer).iter().filter(live);
        // Most policies have no such rules.
        if !rules().any(says) {
            return;
        }
        let sorted = layer.allow.sorted();
        for rule in rules().filter(|rule| says(rule)) {
            let unlike = |other: &&Rule| {
                let Note { max_upload, tls, .. } = other.note;
                live(other)
                    && other.ports.meets(&rule.ports)
                    && (max_upload, tls) != (rule.note.max_upload, rule.note.tls)
            };
            let same = layer.allow.covering(&rule.pattern).map(|id| self.rule(id));
            let same = same.filter(|other| other.pattern == rule.pattern && other.id != rule.id);
            let nearer = sorted.within(&rule.pattern).map(|id| self.rule(id));
            // A rule that says less is reported; one that says more is an exception.
            let nearer = nearer.filter(|near| near.pattern != rule.pattern && says_less(near, rule));
            if let Some(by) = same.chain(nearer).find(unlike) {
                findings.push(Remark { rule, lint: Lint::Shadowed, by: Some(by) });
            }
        }
    }

    /// Finds grants of which the layers above leave nothing.
    fn review_bounds<'a>(&'a self, findings: &mut Vec<Remark<'a>>) {
        let Some(grants) = self.layers().iter().find(|layer| layer.role() == Role::Grants) else { return };
        let Effective { allow, truncated, .. } = self.effective();
        // The rest of an overlong list is unknown.
        if self.layers().len() < 2 || truncated {
            return;
        }
        let kept: BTreeSet<_> =
            allow.iter().filter_map(|rule| rule.from.last()).map(|rule| rule.id).collect();
        for rule in self.rules_of(grants).iter().filter(|rule| rule.action == Action::Allow) {
            if !kept.contains(&rule.id) {
                findings.push(Remark { rule, lint: Lint::Unreachable, by: None });
            }
        }
    }

    fn review_one<'a>(&'a self, layer: &Layer, rule: &'a Rule, today: Day, findings: &mut Vec<Remark<'a>>) {
        let mut say = |lint, by| findings.push(Remark { rule, lint, by });
        let effect = matches!(&rule.origin, Origin::Effect { effect } if effect == "Network");
        // An upper bound is wide on purpose. So is a bare `Network`, which is reported when it is read.
        let wide = !matches!(layer.role(), Role::Ceiling | Role::Lock) && !effect;
        match &rule.pattern {
            Pattern::Name(HostPattern::Any) if wide => say(Lint::Any, None),
            Pattern::Net(net) if wide && net.prefix_len() == 0 => say(Lint::Any, None),
            Pattern::Name(HostPattern::Subdomains(base)) if wide && find_shared(base).is_some() => {
                say(Lint::SharedSuffix, None);
            }
            Pattern::Net(net) if wide => {
                let single = net.prefix_len() == net.max_prefix_len();
                match opening_for(net.addr()) {
                    Opening::Within(block) if block.contains(net) && !single => {
                        // The text shows whether a port was written. A net in brackets contains colons itself.
                        let typed = rule.text.rsplit_once(']').map_or(rule.text.as_str(), |(_, ports)| ports);
                        if !typed.contains(':') {
                            say(Lint::RangeWithoutPort, None);
                        } else if rule.ports == PortSet::all() {
                            say(Lint::RangeAllPorts, None);
                        }
                    }
                    Opening::Within(block) if !block.contains(net) => say(Lint::NetOpensNothing, None),
                    Opening::Within(_) | Opening::Public | Opening::Never => {}
                }
            }
            _ => {}
        }
        if wide && rule.pattern.net().is_some_and(|net| net.addr().to_canonical().is_loopback()) {
            say(Lint::OwnMachine, None);
        }
        if let Pattern::Net(net) = &rule.pattern
            && wide
        {
            special_kinds(net).into_iter().for_each(|lint| say(lint, None));
        }
        if rule.note.tls == TlsCheck::Off && rule.ports.contains(crate::port::Port::HTTPS) {
            say(Lint::TlsOff, None);
        }
        match rule.note.expires {
            Some(day) if day <= today => say(Lint::Expired, None),
            Some(day) if day.days_after(today) <= SOON => say(Lint::ExpiresSoon, None),
            _ => {}
        }
        if let Some(deny) = self.find_forbidding_rule(rule) {
            say(Lint::Unreachable, Some(deny));
            return;
        }
        let same = |other: &&Rule| {
            other.id != rule.id
                && rule.ports.is_within(&other.ports)
                && grants_all_of(&other.pattern, &rule.pattern)
                && other.is_live(today)
                // A rule with a different note exists for its note. Of two equal rules, the later one is the
                // duplicate.
                && other.note == rule.note
                && (other.pattern != rule.pattern || other.ports != rule.ports || other.id < rule.id)
        };
        if let Some(other) = layer.allow.covering(&rule.pattern).map(|id| self.rule(id)).find(same) {
            let bare = matches!(&other.origin, Origin::Effect { effect } if effect == "Network");
            say(if bare { Lint::Swallowed } else { Lint::Duplicate }, Some(other));
        }
    }
}

/// Returns the kinds of special addresses that a rule for a network opens and that its author should know about.
fn special_kinds(net: &IpNet) -> BTreeSet<Lint> {
    let classes = opened_classes(net);
    let kinds = classes.into_iter().filter_map(|class| match class {
        AddrClass::Metadata => Some(Lint::Metadata),
        AddrClass::LinkLocal => Some(Lint::LinkLocal),
        AddrClass::Private | AddrClass::UniqueLocal | AddrClass::Cgnat | AddrClass::SiteLocal => {
            Some(Lint::Private)
        }
        _ => None,
    });
    kinds.collect()
}

/// Whether a rule omits what the other one says about uploads or the TLS check.
fn says_less(rule: &Rule, other: &Rule) -> bool {
    let (note, said) = (&rule.note, &other.note);
    note.max_upload.is_none() && said.max_upload.is_some()
        || note.tls == TlsCheck::Auto && said.tls != TlsCheck::Auto
}

#[cfg(test)]
mod tests;

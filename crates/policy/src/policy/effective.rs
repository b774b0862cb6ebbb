//! Computes what all layers allow together, for people. Decisions are made layer by layer, not from this.

use ipnet::IpNet;

use crate::day::Day;
use crate::limits::{Size, least};
use crate::port::PortSet;
use crate::rule::{Action, Pattern, Rule, TlsCheck};

use super::compare::grants_all_of;
use super::{Layer, Policy, Role};

/// Maximum rules of an intersection. A longer list does not help a reader.
const MAX_EFFECTIVE: usize = 200_000;

/// The intersection of all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effective {
    /// The granted targets, each with the rules that grant it.
    pub allow: Vec<EffectiveRule>,
    /// Whether there are more than are listed.
    pub truncated: bool,
}

/// Targets that a rule of every layer grants.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EffectiveRule {
    /// The pattern that all of the rules cover.
    pub pattern: Pattern,
    /// The ports that all of the rules have.
    pub ports: PortSet,
    /// Whether the TLS server name is checked: the strictest value of the grant and the ceilings.
    pub tls: TlsCheck,
    /// The first day on which one of the rules has expired.
    pub expires: Option<Day>,
    /// The upload budget: the smallest of the grant and the ceilings.
    pub max_upload: Option<Size>,
    /// A rule of each layer, in the order of the layers. The last one is the grant.
    pub from: Vec<Rule>,
    /// The widest of the nets, for addresses. A special-use address is open only if this net lies in its block.
    widest: Option<IpNet>,
}

impl EffectiveRule {
    /// Returns where the rules were written: the grant first, then what bounds it. Effects that are both appear
    /// once.
    pub fn origins(&self) -> Vec<String> {
        let mut all: Vec<_> = self.from.iter().rev().map(|rule| rule.origin.to_string()).collect();
        all.dedup();
        all
    }

    fn from_rule(rule: &Rule) -> Self {
        Self {
            pattern: rule.pattern.clone(),
            ports: rule.ports.clone(),
            tls: rule.note.tls,
            expires: rule.note.expires,
            max_upload: rule.note.max_upload,
            from: vec![rule.clone()],
            widest: rule.pattern.net().copied(),
        }
    }

    fn intersect(&self, rule: &Rule, role: Role) -> Option<Self> {
        if !self.ports.meets(&rule.ports) {
            return None;
        }
        let pattern = self.pattern.intersection(&rule.pattern)?.clone();
        let ports = self.ports.intersection(&rule.ports);
        let widest = self.widest.zip(rule.pattern.net()).map(|(a, b)| if a.contains(b) { a } else { *b });
        // A wide net opens no special-use block, so its overlap with a narrow net there is empty.
        if let Some(widest) = widest
            && !grants_all_of(&Pattern::Net(widest), &pattern)
        {
            return None;
        }
        // Declarations and locks do not concern the TLS check.
        let tls = match role {
            Role::Declared | Role::Lock => self.tls,
            Role::Ceiling | Role::Grants => self.tls.strictest(rule.note.tls),
        };
        let expires = least(self.expires, rule.note.expires);
        let max_upload = least(self.max_upload, rule.note.max_upload);
        let mut from = vec![rule.clone()];
        from.extend_from_slice(&self.from);
        Some(Self { pattern, ports, tls, expires, max_upload, from, widest })
    }
}

impl Pattern {
    /// Returns what both cover. If two patterns overlap, one lies within the other.
    pub fn intersection<'a>(&'a self, other: &'a Self) -> Option<&'a Self> {
        match (self, other) {
            (Self::Name(a), Self::Name(b)) => {
                let both = a.intersection(b)?;
                Some(if std::ptr::eq(both, a) { self } else { other })
            }
            (Self::Net(a), Self::Net(b)) => {
                if a.contains(b) {
                    Some(other)
                } else {
                    b.contains(a).then_some(self)
                }
            }
            _ => None,
        }
    }

    /// Whether it covers everything that `other` covers.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(a), Self::Name(b)) => a.covers(b),
            (Self::Net(a), Self::Net(b)) => a.contains(b),
            _ => false,
        }
    }
}

impl Policy {
    /// Returns the intersection of all layers: of their patterns, ports and addresses.
    ///
    /// Deny rules are not subtracted. They are in [`Policy::rules`] and win over all of this.
    pub fn effective(&self) -> Effective {
        let mut truncated = false;
        // From the grants outward.
        let mut layers = self.layers().iter().rev();
        let allow = |layer: &Layer| {
            self.rules_of(layer).iter().filter(|rule| rule.action == Action::Allow).collect::<Vec<_>>()
        };
        let mut met: Vec<EffectiveRule> =
            layers.next().map(&allow).into_iter().flatten().map(EffectiveRule::from_rule).collect();
        for layer in layers {
            let sorted = layer.allow.sorted();
            let mut next = Vec::new();
            for one in &met {
                // If two patterns overlap, one lies within the other.
                let ids = layer.allow.covering(&one.pattern).chain(sorted.within(&one.pattern));
                next.extend(
                    ids.filter_map(|id| one.intersect(self.rule(id), layer.role())).take(MAX_EFFECTIVE + 1),
                );
                if next.len() > MAX_EFFECTIVE {
                    next.truncate(MAX_EFFECTIVE);
                    truncated = true;
                    break;
                }
            }
            met = next;
        }
        Effective { allow: met, truncated }
    }

    /// Returns a deny rule that leaves nothing of this allow rule.
    pub(super) fn find_forbidding_rule(&self, rule: &Rule) -> Option<&Rule> {
        let denies = self.0.deny.covering(&rule.pattern).map(|id| self.rule(id));
        denies.into_iter().find(|deny| rule.ports.is_within(&deny.ports))
    }
}

#[cfg(test)]
mod tests;

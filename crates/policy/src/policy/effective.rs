//! What the layers come to together, for people: decisions are made layer by layer and not from this.

use ipnet::IpNet;

use crate::day::Day;
use crate::limits::Size;
use crate::port::PortSet;
use crate::rule::{Action, Pattern, Rule, TlsCheck};

use super::compare::grants_all_of;
use super::{Layer, Policy, Role};

/// The most rules that an intersection is spelled out to: more tell a reader nothing.
const MAX_EFFECTIVE: usize = 200_000;

/// The intersection of all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effective {
    /// What is granted, each with the rules that it comes from.
    pub allow: Vec<EffectiveRule>,
    /// Whether there is more than is listed.
    pub truncated: bool,
}

/// Targets that a rule of every layer grants.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EffectiveRule {
    /// What all of them cover.
    pub pattern: Pattern,
    /// The ports that all of them have.
    pub ports: PortSet,
    /// Whether the TLS server name is checked: the strictest word of the grant and the ceilings.
    pub tls: TlsCheck,
    /// The first day on which one of them has expired.
    pub expires: Option<Day>,
    /// What a run may send there: the smallest word of the grant and the ceilings.
    pub max_upload: Option<Size>,
    /// A rule of each layer, in the order of the layers; the last is the grant.
    pub from: Vec<Rule>,
    /// For addresses: the widest of the nets. A special-use address is open only if this lies in its block.
    widest: Option<IpNet>,
}

/// Something that the stage declared and the other layers do not grant.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Excess<'a> {
    /// The declared rule.
    pub rule: &'a Rule,
    /// The ports of it that are not granted.
    pub ports: PortSet,
    /// The layer that does not grant them; `None`: a deny rule forbids them.
    pub missing_in: Option<&'a Layer>,
    /// The deny rule.
    pub denied_by: Option<&'a Rule>,
}

impl EffectiveRule {
    /// Where it was written: the grant, then what bounds it. Effects alone are both, and stand once.
    pub fn origins(&self) -> Vec<String> {
        let mut all: Vec<_> = self.from.iter().rev().map(|rule| rule.origin.to_string()).collect();
        all.dedup();
        all
    }

    fn of(rule: &Rule) -> Self {
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

    fn and(&self, rule: &Rule, role: Role) -> Option<Self> {
        if !self.ports.meets(&rule.ports) {
            return None;
        }
        let pattern = self.pattern.intersection(&rule.pattern)?.clone();
        let ports = self.ports.intersection(&rule.ports);
        let widest = self.widest.zip(rule.pattern.net()).map(|(a, b)| if a.contains(b) { a } else { *b });
        // A wide net opens no special-use block, so what it has in common with a narrow one there is nothing.
        if let Some(widest) = widest
            && !grants_all_of(&Pattern::Net(widest), &pattern)
        {
            return None;
        }
        // What a stage declares, or has reached, cannot speak of the TLS check.
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

fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Pattern {
    /// What both cover, if they meet: of two that meet, one always lies within the other.
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

    /// Whether everything that `other` covers is covered.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(a), Self::Name(b)) => a.covers(b),
            (Self::Net(a), Self::Net(b)) => a.contains(b),
            _ => false,
        }
    }
}

impl Policy {
    /// What is granted once every layer has had its say: patterns, ports and addresses met with one another.
    ///
    /// Deny rules are not taken out of it; they stand in [`Policy::rules`] and win over all of this.
    pub fn effective(&self) -> Effective {
        let mut truncated = false;
        // From the grants outward.
        let mut layers = self.layers().iter().rev();
        let allow = |layer: &Layer| {
            self.rules_of(layer).iter().filter(|rule| rule.action == Action::Allow).collect::<Vec<_>>()
        };
        let mut met: Vec<EffectiveRule> =
            layers.next().map(&allow).into_iter().flatten().map(EffectiveRule::of).collect();
        for layer in layers {
            let sorted = layer.allow.sorted();
            let mut next = Vec::new();
            for one in &met {
                // Of two patterns that meet, one lies within the other.
                let ids = layer.allow.covering(&one.pattern).chain(sorted.within(&one.pattern));
                next.extend(
                    ids.filter_map(|id| one.and(self.rule(id), layer.role())).take(MAX_EFFECTIVE + 1),
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

    /// A deny rule that leaves nothing of this allow rule.
    pub(super) fn forbidden(&self, rule: &Rule) -> Option<&Rule> {
        let denies = self.0.deny.covering(&rule.pattern).map(|id| self.rule(id));
        denies.into_iter().find(|deny| rule.ports.is_within(&deny.ports))
    }
}

#[cfg(test)]
mod tests;

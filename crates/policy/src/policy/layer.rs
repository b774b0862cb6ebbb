//! Defines the layers of a policy. `policy.rs` decides what a layer grants.

use std::fmt;
use std::ops::Range;

use crate::rule::{Action, Rule, RuleId};

use super::index::Index;

/// The owner of a layer's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// An upper bound of a site or a user, which no grant can lift.
    Ceiling,
    /// The stage, which declares what it needs.
    Declared,
    /// A lock of what the stage reached before. It bounds the requested hosts and ports, not the addresses of names.
    Lock,
    /// The caller, who grants.
    Grants,
}

/// A set of rules of a policy.
#[derive(Debug)]
pub struct Layer {
    role: Role,
    name: Option<String>,
    places: Range<usize>,
    pub(super) allow: Index,
    /// Whether this layer must allow the upstream proxy of a run. See [`Policy::admit_upstream`].
    bounds_upstream: bool,
}

impl Layer {
    /// Adds a layer's rules to those of the policy, and numbers them.
    pub(super) fn append(
        role: Role,
        name: Option<String>,
        added: Vec<Rule>,
        bounds_upstream: bool,
        rules: &mut Vec<Rule>,
    ) -> Self {
        let start = rules.len();
        rules.extend(added);
        for (at, rule) in rules.iter_mut().enumerate().skip(start) {
            // INVARIANT: 2^32 rules do not fit in memory, because files are bounded and arguments are few.
            rule.id = RuleId(u32::try_from(at).unwrap_or(u32::MAX));
        }
        let allow = Index::new(rules.get(start..).unwrap_or_default(), Action::Allow);
        Self { role, name, places: start..rules.len(), allow, bounds_upstream }
    }

    /// Copies the layer into a policy that begins with `rules`.
    pub(super) fn copy_to(&self, rules: &mut Vec<Rule>, own: &[Rule]) -> Self {
        Self::append(self.role, self.name.clone(), own.to_vec(), self.bounds_upstream, rules)
    }

    /// Returns whose rules it contains.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the file of a ceiling or a lock, as it was given.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether this layer must allow the upstream proxy of a run.
    pub(super) fn bounds_upstream(&self) -> bool {
        self.bounds_upstream
    }

    /// Whether a rule belongs to this layer.
    pub(crate) fn has(&self, id: RuleId) -> bool {
        usize::try_from(id.get()).is_ok_and(|at| self.places.contains(&at))
    }

    /// Returns the range of its rules in [`Policy::rules`].
    pub(super) fn places(&self) -> Range<usize> {
        self.places.clone()
    }
}

/// Formats it as in the record: `ceiling FILE`, `declared`, `lock FILE`, `grants`.
impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.role, &self.name) {
            (Role::Ceiling, Some(file)) => write!(f, "ceiling {file}"),
            (Role::Ceiling, None) => f.write_str("ceiling"),
            (Role::Declared, _) => f.write_str("declared"),
            (Role::Lock, Some(file)) => write!(f, "lock {file}"),
            (Role::Lock, None) => f.write_str("lock"),
            (Role::Grants, _) => f.write_str("grants"),
        }
    }
}

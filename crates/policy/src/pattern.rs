//! Which names a rule covers. The only matcher of names in the system; it knows nothing of ports or addresses.

use std::fmt;

use crate::name::HostName;

/// A set of host names: one name, the names below one, or (only where a policy spells it out) every name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// `api.example.com`: that name only.
    Exact(HostName),
    /// `*.example.com`: one or more labels below, never the name itself.
    Subdomains(HostName),
    /// `*`: every name, no literal address. Loads only with `allow_any`.
    Any,
}

impl HostPattern {
    /// Whether `name` is covered, by whole labels.
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Subdomains(base) => name.parents().any(|parent| parent == base.as_str()),
            Self::Any => true,
        }
    }

    /// Whether every name that `other` covers is covered.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Exact(name)) => self.matches(name),
            (Self::Subdomains(base), Self::Subdomains(other)) => {
                base == other || other.parents().any(|parent| parent == base.as_str())
            }
            (Self::Exact(_), _) | (_, Self::Any) => false,
        }
    }

    /// The names that both cover: of two patterns that meet, one always lies within the other.
    pub fn intersection<'a>(&'a self, other: &'a Self) -> Option<&'a Self> {
        if self.covers(other) { Some(other) } else { other.covers(self).then_some(self) }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => name.fmt(f),
            Self::Subdomains(base) => write!(f, "*.{base}"),
            Self::Any => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests;

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

//! Matches names against patterns. It is the only such matcher, and knows nothing of ports or addresses.

use std::fmt;

use crate::name::HostName;

/// A set of host names: one name, the names below one, or every name if a policy allows that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// A single name, such as `api.example.com`.
    Exact(HostName),
    /// The names below a name at any depth, such as `*.example.com`, but not the name itself.
    Subdomains(HostName),
    /// Every name (`*`), but no literal address. It loads only with `allow_any`.
    Any,
}

impl HostPattern {
    /// Whether it covers `name`, by whole labels.
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Subdomains(base) => name.parents().any(|parent| parent == base.as_str()),
            Self::Any => true,
        }
    }

    /// Whether it covers every name that `other` covers.
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

    /// Returns the names that both cover. If two patterns overlap, one lies within the other.
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

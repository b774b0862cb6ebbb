//! Defines ports and sets of ports. Nothing here knows service names.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A TCP port, 1 to 65535.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(NonZeroU16);

impl Port {
    /// Port 443, the default of a rule.
    pub const HTTPS: Self = Self(NonZeroU16::MIN.saturating_add(442));

    /// Creates a port; `None` for 0.
    pub const fn new(port: u16) -> Option<Self> {
        match NonZeroU16::new(port) {
            Some(port) => Some(Self(port)),
            None => None,
        }
    }

    /// Returns the number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// Parses one to five digits without sign or leading zero, 1 to 65535.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = !text.is_empty() && text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits || text.starts_with('0') {
            return None;
        }
        Self::new(text.parse().ok()?)
    }
}

/// The text is not a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a port is a number from 1 to 65535 without leading zeros")]
pub struct PortError;

impl FromStr for Port {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        Self::parse(text).ok_or(PortError)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({})", self.0)
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.get())
    }
}

/// A set of ports, as sorted ranges that neither touch nor overlap, so that equal sets are equal values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortSet(Vec<(u16, u16)>);

impl PortSet {
    /// Creates a set without ports.
    pub const fn empty() -> Self {
        Self(Vec::new())
    }

    /// Creates a set of every port, 1 to 65535.
    pub fn all() -> Self {
        Self(vec![(1, u16::MAX)])
    }

    /// Creates a set of one port.
    pub fn one(port: Port) -> Self {
        Self(vec![(port.get(), port.get())])
    }

    /// Creates a set of a range, including both ends. A backward range is empty.
    pub fn range(first: Port, last: Port) -> Self {
        if first > last { Self::empty() } else { Self(vec![(first.get(), last.get())]) }
    }

    /// Whether the set contains `port`.
    pub fn contains(&self, port: Port) -> bool {
        !self.around(port.get(), port.get()).is_empty()
    }

    /// Whether the set contains no port.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of ports.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    }

    /// Iterates over the ports in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Port> {
        self.0.iter().flat_map(|&(first, last)| first..=last).filter_map(Port::new)
    }

    /// Returns the port of a set with only one.
    pub fn single(&self) -> Option<Port> {
        match self.0.as_slice() {
            [(first, last)] if first == last => Port::new(*first),
            _ => None,
        }
    }

    /// Iterates over the ranges in ascending order, both ends included.
    pub fn ranges(&self) -> impl Iterator<Item = (Port, Port)> {
        self.0.iter().filter_map(|&(first, last)| Some((Port::new(first)?, Port::new(last)?)))
    }

    /// Returns the ranges that overlap the one from `first` to `last`.
    fn around(&self, first: u16, last: u16) -> &[(u16, u16)] {
        let from = self.0.partition_point(|range| range.1 < first);
        let to = self.0.partition_point(|range| range.0 <= last);
        self.0.get(from..to).unwrap_or_default()
    }

    /// Whether the two sets have a port in common.
    pub fn meets(&self, other: &Self) -> bool {
        let (few, many) = if self.0.len() < other.0.len() { (self, other) } else { (other, self) };
        few.0.iter().any(|&(first, last)| !many.around(first, last).is_empty())
    }

    /// Whether `other` contains every port of this set.
    pub fn is_within(&self, other: &Self) -> bool {
        // The ranges of a set do not touch, so one of them contains all of a range or none does.
        self.0.iter().all(|&(first, last)| {
            matches!(other.around(first, last), [(from, to)] if *from <= first && last <= *to)
        })
    }

    /// Returns the ports that both sets contain.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (few, many) = if self.0.len() < other.0.len() { (self, other) } else { (other, self) };
        let both = few.0.iter().flat_map(|&(first, last)| {
            let met = many.around(first, last).iter();
            met.map(move |range| (range.0.max(first), range.1.min(last)))
        });
        // Intersections of sorted ranges are sorted, and do not touch because the originals do not.
        Self(both.collect())
    }

    /// Returns the ports that `other` does not contain.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut rest = Vec::new();
        for &(first, last) in &self.0 {
            // The first port that may not be in `other`; none above 65535.
            let mut next = Some(first);
            for &(from, to) in other.around(first, last) {
                if let Some(start) = next
                    && start < from
                {
                    rest.push((start, from - 1));
                }
                next = to.checked_add(1).filter(|next| *next <= last);
            }
            rest.extend(next.map(|start| (start, last)));
        }
        Self(rest)
    }

    /// Adds every port of `other`.
    pub fn extend(&mut self, other: &Self) {
        *self = Self::union([&*self, other]);
    }

    /// Returns every port of every set.
    pub fn union<'a>(sets: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all: Vec<(u16, u16)> = sets.into_iter().flat_map(|set| &set.0).copied().collect();
        all.sort_unstable();
        let mut union: Vec<(u16, u16)> = Vec::new();
        for (first, last) in all {
            match union.last_mut() {
                Some(open) if first <= open.1.saturating_add(1) => open.1 = open.1.max(last),
                _ => union.push((first, last)),
            }
        }
        Self(union)
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == [(1, u16::MAX)] {
            return f.write_str("*");
        }
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &[(u16, u16)]) -> PortSet {
        let port = |n| Port::new(n).unwrap();
        let parts: Vec<_> =
            text.iter().map(|(first, last)| PortSet::range(port(*first), port(*last))).collect();
        PortSet::union(&parts)
    }

    #[test]
    fn normalizes_sets() {
        for (ranges, shown) in [
            (&[][..], ""),
            (&[(443, 443)], "443"),
            (&[(8443, 8443), (443, 443), (443, 443)], "443,8443"),
            (&[(1, 10), (11, 20)], "1-20"),
            (&[(1, 10), (12, 20)], "1-10,12-20"),
            (&[(5, 9), (1, 20)], "1-20"),
            (&[(1, 65535)], "*"),
            (&[(1, 65534), (65535, 65535)], "*"),
            (&[(9, 5)], ""),
        ] {
            assert_eq!(set(ranges).to_string(), shown);
        }
    }

    #[test]
    fn intersects_and_subtracts_sets() {
        for (a, b, both, rest) in [
            (&[(443, 443)][..], &[(1, 65535)][..], "443", ""),
            (&[(1, 65535)], &[(443, 443)], "443", "1-442,444-65535"),
            (&[(10, 20), (30, 40)], &[(15, 35)], "15-20,30-35", "10-14,36-40"),
            (&[(10, 20)], &[(21, 30)], "", "10-20"),
            (&[(10, 20)], &[(1, 10), (20, 65535)], "10,20", "11-19"),
            (&[], &[(1, 5)], "", ""),
        ] {
            assert_eq!(set(a).intersection(&set(b)).to_string(), both);
            assert_eq!(set(b).intersection(&set(a)).to_string(), both);
            assert_eq!(set(a).without(&set(b)).to_string(), rest);
            assert_eq!(set(a).meets(&set(b)), !both.is_empty());
            assert_eq!(set(b).meets(&set(a)), !both.is_empty());
            assert_eq!(set(a).is_within(&set(b)), rest.is_empty());
        }
    }

    #[test]
    fn contains_both_ends_of_a_range() {
        let set = set(&[(80, 80), (8000, 8100)]);
        for (port, inside) in
            [(79, false), (80, true), (81, false), (7999, false), (8000, true), (8100, true), (8101, false)]
        {
            assert_eq!(set.contains(Port::new(port).unwrap()), inside, "{port}");
        }
        assert!(
            PortSet::all().contains(Port::new(1).unwrap())
                && PortSet::all().contains(Port::new(65535).unwrap())
        );
        assert_eq!(PortSet::one(Port::HTTPS).single(), Port::new(443));
        assert_eq!(set.single(), None);
    }
}

//! Ports and sets of ports. Nothing here knows a service name.

use std::fmt;
use std::num::NonZeroU16;

use serde::{Serialize, Serializer};

/// A TCP port, 1 to 65535.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(NonZeroU16);

impl Port {
    /// 443, the port of a rule that names none.
    pub const HTTPS: Self = Self(NonZeroU16::MIN.saturating_add(442));

    /// `None` for 0.
    pub const fn new(port: u16) -> Option<Self> {
        match NonZeroU16::new(port) {
            Some(port) => Some(Self(port)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// One to five digits, no sign, no leading zero, 1 to 65535.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = !text.is_empty() && text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits || text.starts_with('0') {
            return None;
        }
        Self::new(text.parse().ok()?)
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

/// A set of ports, kept as sorted ranges that neither touch nor overlap, so that equal sets compare equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortSet(Vec<(u16, u16)>);

impl PortSet {
    /// No port.
    pub const fn empty() -> Self {
        Self(Vec::new())
    }

    /// Every port, 1 to 65535.
    pub fn all() -> Self {
        Self(vec![(1, u16::MAX)])
    }

    /// One port.
    pub fn one(port: Port) -> Self {
        Self(vec![(port.get(), port.get())])
    }

    /// Both ends belong to the set; a range given backwards is empty.
    pub fn range(first: Port, last: Port) -> Self {
        if first > last { Self::empty() } else { Self(vec![(first.get(), last.get())]) }
    }

    /// Whether `port` belongs to the set.
    pub fn contains(&self, port: Port) -> bool {
        self.0.iter().any(|&(first, last)| (first..=last).contains(&port.get()))
    }

    /// Whether there is no port in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The single port of the set, if it has one only.
    pub fn single(&self) -> Option<Port> {
        match self.0.as_slice() {
            [(first, last)] if first == last => Port::new(*first),
            _ => None,
        }
    }

    /// The ranges, both ends included, in ascending order.
    pub fn ranges(&self) -> impl Iterator<Item = (Port, Port)> {
        self.0.iter().filter_map(|&(first, last)| Some((Port::new(first)?, Port::new(last)?)))
    }

    /// Adds every port of `other`.
    pub fn extend(&mut self, other: &Self) {
        let mut all = std::mem::take(&mut self.0);
        all.extend_from_slice(&other.0);
        all.sort_unstable();
        for (first, last) in all {
            match self.0.last_mut() {
                Some(open) if first <= open.1.saturating_add(1) => open.1 = open.1.max(last),
                _ => self.0.push((first, last)),
            }
        }
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

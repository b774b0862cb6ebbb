//! Defines host names for policies. Nothing here resolves names, decodes punycode or parses literal addresses.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum bytes of a name without its trailing dot (RFC 1035 section 2.3.4, less the root label).
pub const MAX_NAME: usize = 253;
/// Maximum bytes of one label (RFC 1035 section 2.3.4).
pub const MAX_LABEL: usize = 63;

/// A host name: lower-case A-labels, no trailing dot, never an IP literal (RFC 1123 section 2.1, RFC 5891).
///
/// Parsing normalizes ASCII case and one trailing dot, and nothing else. Two names are the same host exactly if
/// their bytes are equal; a punycode label is never decoded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Arc<str>);

impl HostName {
    /// Returns the name as lower-case ASCII.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is `localhost` or a name below it (RFC 6761 section 6.3).
    pub fn is_local(&self) -> bool {
        self.labels().next_back() == Some("localhost")
    }

    /// Iterates over the labels from left to right; there is at least one.
    pub fn labels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }

    /// Iterates over the names above this one, nearest first: `b.c`, `c` for `a.b.c`.
    ///
    /// Only this function defines "below": every wildcard comparison uses it.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        let mut rest = self.as_str();
        std::iter::from_fn(move || {
            let (_, parent) = rest.split_once('.')?;
            rest = parent;
            Some(parent)
        })
    }
}

impl FromStr for HostName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let bare = text.strip_suffix('.').unwrap_or(text);
        check(bare)?;
        Ok(Self(Arc::from(bare.to_ascii_lowercase())))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostName({})", self.0)
    }
}

// This lets an index keyed by `HostName` look up a borrowed parent. `Hash` of `Arc<str>` is that of `str`.
impl Borrow<str> for HostName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for HostName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The reason why a text is not a host name, and the position of the fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameError {
    /// The fault.
    pub fault: NameFault,
    /// The bytes of the text that are wrong.
    pub at: Range<usize>,
}

/// The faults of a host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameFault {
    /// The text is empty, or only the root dot.
    Empty,
    /// The name has more than [`MAX_NAME`] bytes.
    TooLong,
    /// Two dots are adjacent, or a dot comes first.
    EmptyLabel,
    /// A label has more than [`MAX_LABEL`] bytes.
    LongLabel,
    /// A character is not ASCII; policies use A-labels.
    NotAscii,
    /// An ASCII byte is not a letter, a digit, `-` or `.`.
    Byte,
    /// A label starts or ends with a hyphen (RFC 1123 section 2.1), such as `xn--` alone.
    Hyphen,
    /// The last label starts with a digit, as in `inet_aton` spellings of addresses such as `127.1`.
    Numeric,
}

impl fmt::Display for NameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "there is no host name",
            Self::TooLong => "a host name has at most 253 characters",
            Self::EmptyLabel => "a label is empty",
            Self::LongLabel => "a label has at most 63 characters",
            Self::NotAscii => "a host name has only ASCII: write its A-label, `xn--...`",
            Self::Byte => "a host name has only letters, digits, `-` and `.`",
            Self::Hyphen => "a label neither starts nor ends with `-`",
            Self::Numeric => {
                "this is neither a name nor an address: the last label starts with a digit, \
                 and an IPv4 address is four decimal numbers without leading zeros"
            }
        })
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)
    }
}

impl std::error::Error for NameError {}

fn check(bare: &str) -> Result<(), NameError> {
    let fail = |fault, at| Err(NameError { fault, at });
    // The characters are checked first, because a wrong byte explains more than a length.
    if let Some((at, c)) = bare.char_indices().find(|(_, c)| !is_name_char(*c)) {
        let fault = if c.is_ascii() { NameFault::Byte } else { NameFault::NotAscii };
        return fail(fault, at..at + c.len_utf8());
    }
    if bare.is_empty() {
        return fail(NameFault::Empty, 0..0);
    }
    if bare.len() > MAX_NAME {
        return fail(NameFault::TooLong, 0..bare.len());
    }
    let mut start = 0;
    let mut last = "";
    for label in bare.split('.') {
        let at = start..start + label.len();
        if label.is_empty() {
            return fail(NameFault::EmptyLabel, at);
        }
        if label.len() > MAX_LABEL {
            return fail(NameFault::LongLabel, at);
        }
        if label.starts_with('-') || label.ends_with('-') {
            return fail(NameFault::Hyphen, at);
        }
        start = at.end + 1;
        last = label;
    }
    if last.starts_with(|c: char| c.is_ascii_digit()) {
        return fail(NameFault::Numeric, bare.len() - last.len()..bare.len());
    }
    Ok(())
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '.'
}

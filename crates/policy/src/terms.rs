//! What a policy says besides rules: how strictly they are held, and how two kinds of connections that no rule can
//! name are judged.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::decision::{WordError, word};

/// What holds for every rule of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// What becomes of a name that no rule grants.
    pub mode: Mode,
    /// Whether an address behind the well-known prefix of NAT64, `64:ff9b::/96` (RFC 6052 section 2.1), is judged by the
    /// IPv4 address in it. Otherwise it is closed like every other embedding.
    pub nat64: bool,
    /// What becomes of a TLS hello that hides its server name.
    pub ech: Ech,
}

impl Terms {
    /// What whoever starts a run should know, because it weakens what is enforced.
    pub fn note(self) -> Option<&'static str> {
        match self.mode {
            Mode::Enforce => None,
            Mode::Report => Some(
                "report mode: names that no rule allows are let through on ports 80 and 443, and recorded as would_deny",
            ),
        }
    }
}

/// Whether a host that no rule grants is refused or let through and recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mode {
    /// What is not granted is refused.
    #[default]
    Enforce,
    /// A name that is not granted is let through on the ports 80 and 443, and recorded as `would_deny`. Everything else is
    /// enforced: see [`Denial::is_reportable`](crate::Denial::is_reportable).
    Report,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 2] = [Self::Enforce, Self::Report];

    /// The word in policies and records; stable.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Report => "report",
        }
    }
}

/// What becomes of a TLS hello with the `encrypted_client_hello` extension (RFC 9849): the name that it shows need not be
/// the one that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Ech {
    /// It is let through, and the record tells of it. Browsers send such an extension with random content (GREASE) to
    /// every server.
    #[default]
    Record,
    /// It is refused.
    Refuse,
}

impl Ech {
    /// Both words.
    pub const ALL: [Self; 2] = [Self::Record, Self::Refuse];

    /// The word in policies; stable.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Refuse => "refuse",
        }
    }
}

word!(Mode);
word!(Ech);

#[cfg(test)]
mod tests;

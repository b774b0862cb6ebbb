//! Defines the settings of a policy that apply to all rules: how strictly they hold, and how two kinds of
//! connections are judged that no rule can describe.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::reason::{WordError, word};

/// The settings that apply to every rule of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// The treatment of a name that no rule grants.
    pub mode: Mode,
    /// Whether an address behind the well-known prefix of NAT64, `64:ff9b::/96` (RFC 6052 section 2.1), is judged
    /// by the IPv4 address inside. Otherwise it is closed like every other embedding.
    pub nat64: bool,
    /// The treatment of a TLS hello that hides its server name.
    pub ech: Ech,
}

impl Terms {
    /// Returns a note for whoever starts a run, if the settings weaken what is enforced.
    pub fn note(self) -> Option<&'static str> {
        match self.mode {
            Mode::Enforce => None,
            Mode::Report => Some(
                "report mode: names that no rule allows are let through on ports 80 and 443, and recorded as would_deny",
            ),
        }
    }
}

/// Whether a host that no rule grants is refused, or allowed and recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mode {
    /// A target that is not granted is refused.
    #[default]
    Enforce,
    /// A name that is not granted is allowed on ports 80 and 443, and recorded as `would_deny`. Everything else is
    /// enforced. See [`Denial::is_reportable`](crate::Denial::is_reportable).
    Report,
}

impl Mode {
    /// Lists every mode.
    pub const ALL: [Self; 2] = [Self::Enforce, Self::Report];

    /// Returns the word in policies and records; stable.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Report => "report",
        }
    }
}

/// The treatment of a TLS hello with the `encrypted_client_hello` extension (RFC 9849), whose visible name may not
/// be the real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Ech {
    /// The hello is allowed and recorded. Browsers send this extension with random content (GREASE) to every server.
    #[default]
    Record,
    /// The hello is refused.
    Refuse,
}

impl Ech {
    /// Lists both words.
    pub const ALL: [Self; 2] = [Self::Record, Self::Refuse];

    /// Returns the word in policies; stable.
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

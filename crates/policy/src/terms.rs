//! Defines the settings of a policy that apply to all rules: how strictly they hold, and how two kinds of
//! connections are judged that no rule can describe.

use crate::words;

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

words! {
    /// Whether a host that no rule grants is refused, or allowed and recorded.
    #[derive(PartialOrd, Ord, Hash, Default)]
    pub enum Mode {
        /// A target that is not granted is refused.
        #[default]
        Enforce = "enforce",
        /// A name that is not granted is allowed on ports 80 and 443, and recorded as `would_deny`. Everything else is
        /// enforced. See [`Denial::is_reportable`](crate::Denial::is_reportable).
        Report = "report",
    }

    /// The treatment of a TLS hello with the `encrypted_client_hello` extension (RFC 9849), whose visible name may not
    /// be the real one.
    #[derive(PartialOrd, Ord, Hash, Default)]
    pub enum Ech {
        /// The hello is allowed and recorded. Browsers send this extension with random content (GREASE) to every server.
        #[default]
        Record = "record",
        /// The hello is refused.
        Refuse = "refuse",
    }
}

#[cfg(test)]
mod tests;

//! Defines the words of the record: verdicts, and the reasons for them.

use crate::words;

words! {
    /// The outcome of a decision.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Verdict {
        /// The target is allowed.
        Allow = "allow",
        /// The policy refuses the target.
        Deny = "deny",
        /// Report mode allows the target, but enforcing would refuse it.
        WouldDeny = "would_deny",
        /// The connection failed for a reason other than policy.
        Error = "error",
    }

    /// The effect that a rule had on an attempt.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum RuleEffect {
        /// The rule let the attempt through. Something else may have refused it afterwards.
        Allows = "allows",
        /// The rule refused the attempt.
        Denies = "denies",
        /// The rule would have let the attempt through, but had expired.
        Expired = "expired",
    }
}

/// Declares [`Reason`]: each row has its name, its stable word in records and replies, and its sentence for people.
macro_rules! reasons {
    ($($name:ident $word:literal $sentence:literal;)*) => {
        words! {
            /// The reason for a verdict. Records, replies, the command line and documents use the same words.
            #[derive(PartialOrd, Ord, Hash)]
            #[non_exhaustive]
            pub enum Reason {
                $(#[doc = concat!("`", $word, "`: ", $sentence, ".")] $name = $word,)*
            }
        }

        impl Reason {
            /// Returns a sentence for people, without a capital letter and a full stop.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => $sentence,)*
                }
            }
        }
    };
}

reasons! {
    Rule "rule" "a rule allows it";
    Default "default" "no rule allows this host";
    DenyRule "deny_rule" "a deny rule forbids this host";
    Port "port" "this host is allowed on other ports only";
    Scheme "scheme" "this kind of request is not served";
    IpLiteral "ip_literal" "no IP rule allows this address";
    PrivateIp "private_ip" "its address is not public";
    MetadataIp "metadata_ip" "its address is cloud metadata, and no name opens it";
    DnsEmpty "dns_empty" "the name has no address";
    SniMissing "sni_missing" "the TLS hello names no host";
    SniMismatch "sni_mismatch" "the TLS hello names another host";
    HostMismatch "host_mismatch" "the request names another host";
    NotTls "not_tls" "what was sent is not TLS";
    Malformed "malformed" "the request could not be read";
    BudgetBytes "budget_bytes" "all that may be sent there was sent";
    BudgetConns "budget_conns" "no room for it beside the other connections";
    Expired "expired" "the rule that allowed this host has expired";
    AuditUnavailable "audit_unavailable" "it could not be recorded";
    RecordFull "record_full" "the record had no room for more";
    HelloTimeout "hello_timeout" "no TLS hello came in time";
    HelloMalformed "hello_malformed" "the TLS hello could not be read";
    HelloTooLarge "hello_too_large" "the TLS hello is too large";
    Ech "ech" "the TLS hello hides its host name";
    Direct "direct" "an attempt to leave without the proxy";
    ResolveError "resolve_error" "the name could not be looked up";
    ConnectError "connect_error" "the host did not answer";
    Timeout "timeout" "it took too long";
}

impl Reason {
    /// Returns what the decision says about the rule of an attempt with this reason. Without a rule it is [`RuleEffect::Allows`].
    pub const fn effect_of_rule(self) -> RuleEffect {
        match self {
            Self::DenyRule => RuleEffect::Denies,
            Self::Expired => RuleEffect::Expired,
            Self::Rule
            | Self::Default
            | Self::Port
            | Self::Scheme
            | Self::IpLiteral
            | Self::PrivateIp
            | Self::MetadataIp
            | Self::DnsEmpty
            | Self::SniMissing
            | Self::SniMismatch
            | Self::HostMismatch
            | Self::NotTls
            | Self::Malformed
            | Self::BudgetBytes
            | Self::BudgetConns
            | Self::AuditUnavailable
            | Self::RecordFull
            | Self::HelloTimeout
            | Self::HelloMalformed
            | Self::HelloTooLarge
            | Self::Ech
            | Self::Direct
            | Self::ResolveError
            | Self::ConnectError
            | Self::Timeout => RuleEffect::Allows,
        }
    }
}

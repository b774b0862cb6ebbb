//! What the end of a run tells: who was denied, what failed, how much was reached. Bounded, whatever a stage does.

use exeat_policy::Reason;

/// The connections of a run, counted by host.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Denied targets, in the order in which each was first denied.
    pub denied: Vec<DeniedHost>,
    /// Allowed targets that could not be reached, in the order in which each first failed.
    pub failed: Vec<FailedHost>,
    /// Distinct targets to which a connection was opened.
    pub reached: u64,
    /// Denials beyond the bound of `denied`, folded into one number.
    pub denied_more: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Decisions to allow.
    pub allowed: u64,
    /// Decisions to deny, malformed requests included.
    pub denied_total: u64,
}

/// One denied target, with how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeniedHost {
    /// Host as it was matched (lower-case A-labels, or an address); empty for a request that could not be parsed.
    pub host: String,
    /// Port; 0 for a request that could not be parsed.
    pub port: u16,
    /// Reason, in the words of the record.
    pub reason: Reason,
    /// Why, for people on the host: may name addresses and files.
    pub said: String,
    /// How often.
    pub count: u64,
    /// The flag that would allow it, if one would.
    pub flag: Option<String>,
}

/// One allowed target that could not be reached, with how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedHost {
    /// Host as it was matched.
    pub host: String,
    /// Port.
    pub port: u16,
    /// What went wrong, for people on the host.
    pub said: String,
    /// How often.
    pub count: u64,
}

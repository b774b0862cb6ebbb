//! Stands in for the runner's check of addresses until it offers one: a literal is judged, a name is not resolved.

use exeat_policy::{Admitted, Denial, OwnAddrs, Vetted};

/// Why an admitted target did not pass.
pub(super) enum Unchecked {
    /// By policy.
    Denied(Denial),
    /// Its addresses could not be found.
    Failed(String),
}

/// Judges the addresses of an admitted target.
pub(super) fn check_addresses(admitted: Admitted) -> Result<Vetted, Unchecked> {
    match admitted.target().host.ip() {
        Some(ip) => admitted.vet(&[ip], &OwnAddrs::default()).map_err(Unchecked::Denied),
        None => Err(Unchecked::Failed("this build cannot resolve names".to_owned())),
    }
}

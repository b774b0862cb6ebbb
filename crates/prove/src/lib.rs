//! `exeat prove`: makes attempts to get out of the sandbox, watches the host for their effects, and judges the results.
//!
//! One file for each subject defines the attempts, [`inside`] makes them, and [`host`] listens outside and judges. An attempt never
//! judges its own result: it reports what it saw, and the host side adds what its canaries saw. Shortly before, the same attempt is
//! made outside, to show that it can succeed at all.

pub mod attempt;
mod canary;
mod files;
mod gateway;
pub mod host;
pub mod inside;
mod kernel;
mod net;
mod processes;
mod proxy;
mod scratch;
mod secrets;
mod sockets;
pub mod survive;
#[expect(unsafe_code, reason = "attempts that no safe function makes")]
mod sys;

use attempt::Attempt;

/// Every attempt, in the order in which they are made.
pub fn attempts() -> impl Iterator<Item = &'static Attempt> {
    // The last attempt would end the others if it succeeded.
    [net::ATTEMPTS, gateway::ATTEMPTS, sockets::ATTEMPTS, proxy::ATTEMPTS, secrets::ATTEMPTS]
        .into_iter()
        .chain([files::ATTEMPTS, kernel::ATTEMPTS, processes::ATTEMPTS])
        .flatten()
}

//! `exeat prove`: attempts that a stage might make to get out, the host on which they would be seen, and what came of them.
//!
//! The files of each subject say how a stage tries, [`inside`] makes the attempts, and [`host`] listens outside and judges. An
//! attempt never decides whether its answer is right: it says what it saw, and the host side adds what its canaries saw. In the
//! same minute the attempt is made outside, which shows that it can get out at all.

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
    // The last one would end the others if it succeeded.
    [net::ATTEMPTS, gateway::ATTEMPTS, sockets::ATTEMPTS, proxy::ATTEMPTS, secrets::ATTEMPTS]
        .into_iter()
        .chain([files::ATTEMPTS, kernel::ATTEMPTS, processes::ATTEMPTS])
        .flatten()
}

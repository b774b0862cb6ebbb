//! Runs the host side of exeat: accepts connections, checks targets and addresses, dials, and moves bytes.
//!
//! Other crates decide (`exeat-policy`) and format records (`exeat-record`). This crate reads only the first
//! messages of a tunnel (a request, or the TLS hellos, which are in the clear). It receives its listeners and does
//! not know about sandboxes.
//!
//! Start with `connect.rs`: it follows one connection from start to end.
#![forbid(unsafe_code)]

mod connect;
mod context;
mod cursor;
mod denials;
mod dial;
mod fold;
mod forward;
mod gateway;
mod guard;
mod head;
mod held;
mod hello;
mod hosts_file;
mod http;
pub mod limits;
mod opening;
mod per_host;
mod pool;
mod progress;
mod reach;
mod record;
mod refusals;
mod reply;
mod retry;
mod rights;
mod room;
mod server;
mod socks;
mod stream;
mod tally;
mod thread;
mod tunnel;
mod upload;
mod upstream;
mod who;

#[cfg(test)]
mod fuzz_seeds;
#[cfg(test)]
mod tests;

pub use context::{Context, Entry};
pub use forward::{Forward, LostConnections, forward};
pub use gateway::{Gateway, ListenerFactory, PacketSource, Sockets};
pub use guard::{AddressCheckError, check_addresses, own_addresses};
pub use limits::ProxyLimits;
pub use rights::listen_unix;
pub use server::{Listener, ServeReport, serve};
pub use tally::{ConnectionSummary, DeniedHost, FailedHost, ReachedHost};
pub use upstream::UpstreamProxy;
pub use who::ProcessFinder;

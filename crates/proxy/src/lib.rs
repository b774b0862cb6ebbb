//! The host side of exeat: connections in, CONNECT and SOCKS5, address guard, dial, TLS name check, tunnel.
//!
//! It does not decide (`exeat-policy` does), does not format records (`exeat-record` does), does not look inside a
//! tunnel beyond its first messages (a request, or the hellos in the clear), and knows nothing of sandboxes: it is given listeners.
//!
//! The way in is `connect.rs`, which reads like one connection.
#![forbid(unsafe_code)]

mod connect;
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
mod hosts;
mod http;
pub mod limits;
mod opening;
mod per_host;
mod progress;
mod reach;
mod record;
mod refusals;
mod reply;
mod retry;
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

pub use forward::{Forward, Lost, forward};
pub use gateway::{Gateway, Listen, Packets, Sockets};
pub use guard::{Unchecked, check_addresses, own_addresses};
pub use limits::Limits;
pub use server::{Context, Entry, Listener, ServeReport, serve};
pub use tally::{DeniedHost, FailedHost, ReachedHost, Summary};
pub use upstream::UpstreamProxy;
pub use who::Who;

//! The host side of exeat: connections in, CONNECT, address guard, dial, TLS name check, tunnel.
//!
//! It does not decide (`exeat-policy` does), does not format records (`exeat-audit` does), does not look inside a
//! tunnel beyond the first ClientHello, and knows nothing of sandboxes: it is given listeners.
//!
//! The way in is `connect.rs`, which reads like one connection.
#![forbid(unsafe_code)]

mod limits;
mod server;
mod tally;

pub use limits::Limits;
pub use server::{Context, Listener, ServeReport, serve};
pub use tally::{DeniedHost, FailedHost, Summary};

//! Builds the proxy's parsers of untrusted bytes from their own files, because they are private to the proxy.
#![allow(dead_code, reason = "a part of the proxy, without what uses it")]

#[path = "../../src/cursor.rs"]
mod cursor;
#[path = "../../src/gateway/dns.rs"]
mod dns;
#[path = "../../src/head.rs"]
mod head;
#[path = "../../src/hello.rs"]
mod hello;
#[path = "../../src/hosts_file.rs"]
mod hosts_file;
#[path = "../../src/limits.rs"]
mod limits;
#[path = "../../src/retry.rs"]
mod retry;
#[path = "../../src/socks.rs"]
mod socks;

pub mod checks;

/// A copy of the proxy's function.
mod gateway {
    pub(crate) use super::dns;
}

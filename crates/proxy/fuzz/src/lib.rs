//! The proxy's parsers of bytes that others write, built here from their own files: they are private to the proxy, and
//! nothing of it is opened for this.
#![allow(dead_code, reason = "a part of the proxy, without what uses it")]

#[path = "../../src/cursor.rs"]
mod cursor;
#[path = "../../src/gateway/dns.rs"]
mod dns;
#[path = "../../src/head.rs"]
mod head;
#[path = "../../src/hello.rs"]
mod hello;
#[path = "../../src/hosts.rs"]
mod hosts;
#[path = "../../src/limits.rs"]
mod limits;
#[path = "../../src/socks.rs"]
mod socks;

pub mod checks;

/// As the proxy has it.
mod gateway {
    pub(crate) use super::dns;
}

//! What the host side and stage2 must agree on: places, the port, and the messages of the control socket.
//!
//! No dependencies and no I/O: stage2 links this next to hostile code, so it stays small enough to read at one sitting, and
//! without the standard library, which stage2 has not.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

pub mod message;

pub use message::{DecodeError, Go, Hello, Message, Step, Terminal, TerminalSettings};

/// Directory of our files inside the sandbox, on the private `/run`.
pub const DIR: &str = "/run/exeat";
/// The bind-mounted socket of the host side.
pub const SOCKET: &str = "/run/exeat/proxy.sock";
/// The bind-mounted socket of the host side for the relay's SOCKS5 connections.
pub const SOCKS5_SOCKET: &str = "/run/exeat/socks5.sock";
/// The helper itself.
pub const STAGE2: &str = "/run/exeat/stage2";
/// One line per denial, written by the host and read-only inside.
pub const DENIALS: &str = "/run/exeat/denials.jsonl";
/// What an agent should know of the sandbox, in words.
pub const README: &str = "/run/exeat/README";
/// The private package cache.
pub const CACHE: &str = "/run/exeat/cache";
/// The private home directory, in the cache.
pub const HOME: &str = "/run/exeat/cache/home";
/// A file that is there where a run inside this one executes its command as it is.
pub const NESTED: &str = "/run/exeat/nested";

/// TCP port of the proxy on the sandbox's loopback: the registered port of an HTTP proxy's best-known implementation,
/// which no client mistakes for something else.
pub const PROXY_PORT: u16 = 3128;

/// TCP port of SOCKS5 on the sandbox's loopback, where it is offered: the registered one (IANA).
pub const SOCKS5_PORT: u16 = 1080;

/// The sandbox's name server: where systemd-resolved has its own, so that no program takes it for odd.
pub const NAME_SERVER: core::net::Ipv4Addr = core::net::Ipv4Addr::new(127, 0, 0, 53);

/// Uid and gid of the stage inside its user namespace: the kernel's overflow id, owner of nothing.
pub const NOBODY: u32 = 65_534;

/// How TCP in the namespace reaches the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeKind {
    /// The listener is passed to the host.
    Handoff,
    /// A process stays and copies.
    Relay,
}

impl BridgeKind {
    /// The word in the record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handoff => "handoff",
            Self::Relay => "relay",
        }
    }

    /// stage2's one argument: the bridge, and whether SOCKS5 is offered.
    #[must_use]
    pub fn argument(self, socks5: bool) -> &'static str {
        match (self, socks5) {
            (Self::Handoff, false) => "handoff",
            (Self::Handoff, true) => "handoff+socks5",
            (Self::Relay, false) => "relay",
            (Self::Relay, true) => "relay+socks5",
        }
    }

    /// What an argument asks for.
    #[must_use]
    pub fn from_argument(argument: &[u8]) -> Option<(Self, bool)> {
        match argument {
            b"handoff" => Some((Self::Handoff, false)),
            b"handoff+socks5" => Some((Self::Handoff, true)),
            b"relay" => Some((Self::Relay, false)),
            b"relay+socks5" => Some((Self::Relay, true)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage2_is_asked_for_what_the_host_meant() {
        for (argument, meant) in [
            ("handoff", Some((BridgeKind::Handoff, false))),
            ("handoff+socks5", Some((BridgeKind::Handoff, true))),
            ("relay", Some((BridgeKind::Relay, false))),
            ("relay+socks5", Some((BridgeKind::Relay, true))),
            ("socks5", None),
            ("relay+", None),
            ("", None),
        ] {
            assert_eq!(BridgeKind::from_argument(argument.as_bytes()), meant, "{argument}");
        }
    }
}

//! Defines what the host side and stage2 must agree on: paths, ports, and the messages of the control socket.
//!
//! The crate has no dependencies and no I/O, because stage2 links it next to hostile code: it stays small enough to read at one
//! sitting. Like stage2, it does without the standard library.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod assembly;
pub mod construction;
pub mod message;
mod wire;

use wire::{Wire, wire};

pub use assembly::Assembly;
pub use construction::{Construction, MountStep, Staged};
pub use message::{DecodeError, Go, Hello, Message, Step, Terminal, TerminalSettings};

/// The word in front of the number of stage2's control socket, if stage2 builds the sandbox itself.
pub const BUILD_WORD: &str = "build:";
/// The word in front of that number, if stage2 makes the file tree for bubblewrap.
pub const ASSEMBLE_WORD: &str = "assemble:";
/// The directory of the host that the file tree for bubblewrap covers, as that sandbox alone sees it. Only root can rename it, so that the path
/// leads bubblewrap to the tree; it exists on every host, and bubblewrap needs nothing in it.
pub const ASSEMBLY: &str = "/dev";

/// Directory of our files inside the sandbox, on the private `/run`.
pub const DIR: &str = "/run/exeat";
/// The bind-mounted socket of the host side.
pub const SOCKET: &str = "/run/exeat/proxy.sock";
/// The bind-mounted socket of the host side for the relay's SOCKS5 connections.
pub const SOCKS5_SOCKET: &str = "/run/exeat/socks5.sock";
/// The helper program stage2.
pub const STAGE2: &str = "/run/exeat/stage2";
/// The log of denials, a line for each, written by the host and read-only inside.
pub const DENIALS: &str = "/run/exeat/denials.jsonl";
/// A description of the sandbox for an agent.
pub const README: &str = "/run/exeat/README";
/// The private package cache.
pub const CACHE: &str = "/run/exeat/cache";
/// The private home directory, in the cache.
pub const HOME: &str = "/run/exeat/cache/home";
/// A file that exists if a run inside this one executes its command directly.
pub const NESTED: &str = "/run/exeat/nested";

/// TCP port of the proxy on the sandbox's loopback: the port of a well-known HTTP proxy, so that clients recognize it.
pub const PROXY_PORT: u16 = 3128;

/// TCP port of SOCKS5 on the sandbox's loopback, if it is offered: the registered one (IANA).
pub const SOCKS5_PORT: u16 = 1080;

/// The sandbox's name server, at the address of systemd-resolved, which programs expect.
pub const NAME_SERVER: core::net::Ipv4Addr = core::net::Ipv4Addr::new(127, 0, 0, 53);

/// Uid and gid of the stage inside its user namespace: the kernel's overflow id, which owns nothing.
pub const NOBODY: u32 = 65_534;

wire! {
    /// The way in which TCP in the namespace reaches the proxy.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum BridgeKind {
        /// stage2 passes the listener to the host.
        #[default]
        Handoff = 0,
        /// A process in the sandbox copies each connection.
        Relay = 1,
    }
}

impl BridgeKind {
    /// Returns the word in the record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handoff => "handoff",
            Self::Relay => "relay",
        }
    }

    /// Returns stage2's one argument: the bridge, and whether SOCKS5 is offered.
    #[must_use]
    pub fn argument(self, socks5: bool) -> &'static str {
        match (self, socks5) {
            (Self::Handoff, false) => "handoff",
            (Self::Handoff, true) => "handoff+socks5",
            (Self::Relay, false) => "relay",
            (Self::Relay, true) => "relay+socks5",
        }
    }

    /// Parses stage2's argument.
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
    fn stage2_reads_the_argument_that_the_host_writes() {
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

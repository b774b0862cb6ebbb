//! What the host side and stage2 must agree on: places, the port, and the messages of the control socket.
//!
//! No dependencies and no I/O: stage2 links this next to hostile code, so it stays small enough to read at one sitting, and
//! without the standard library, which stage2 has not.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

pub mod message;

pub use message::{DecodeError, Go, Hello, Message, Step};

/// Directory of our files inside the sandbox, on the private `/run`.
pub const DIR: &str = "/run/exeat";
/// The bind-mounted socket of the host side.
pub const SOCKET: &str = "/run/exeat/proxy.sock";
/// The helper itself.
pub const STAGE2: &str = "/run/exeat/stage2";
/// One line per denial, written by the host and read-only inside.
pub const DENIALS: &str = "/run/exeat/denials.jsonl";
/// The private package cache.
pub const CACHE: &str = "/run/exeat/cache";

/// TCP port of the proxy on the sandbox's loopback: the registered port of an HTTP proxy's best-known implementation,
/// which no client mistakes for something else.
pub const PROXY_PORT: u16 = 3128;

/// Uid and gid of the stage inside its user namespace: the kernel's overflow id, owner of nothing.
pub const NOBODY: u32 = 65_534;

/// How TCP in the namespace reaches the proxy, as stage2's first argument spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeKind {
    /// The listener is passed to the host.
    Handoff,
    /// A process stays and copies.
    Relay,
}

impl BridgeKind {
    /// The word on stage2's command line and in the record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handoff => "handoff",
            Self::Relay => "relay",
        }
    }

    /// The bridge of that name.
    #[must_use]
    pub fn from_word(word: &[u8]) -> Option<Self> {
        match word {
            b"handoff" => Some(Self::Handoff),
            b"relay" => Some(Self::Relay),
            _ => None,
        }
    }
}

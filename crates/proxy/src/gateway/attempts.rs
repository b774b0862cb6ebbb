//! Attempts that lead nowhere: questions for names that no rule grants, and packets to anywhere else. Each is recorded; what is
//! tried again and again is folded into lines with a count.

use std::net::SocketAddr;
use std::sync::Arc;

use exeat_policy::HostName;

use crate::server::Context;

/// What a packet was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Proto {
    Tcp,
    Udp,
    /// Another one, by its number (IANA).
    Other(u8),
}

/// Records them.
pub(crate) struct Attempts {
    cx: Arc<Context>,
}

impl Attempts {
    pub(crate) fn new(cx: Arc<Context>) -> Self {
        Self { cx }
    }

    /// A question for a name that no rule grants.
    pub(crate) fn name_denied(&self, name: &HostName) {
        let _ = (&self.cx, name);
    }

    /// A question for something that is no host name.
    pub(crate) fn name_malformed(&self, raw: &[u8]) {
        let _ = (&self.cx, raw);
    }

    /// A packet that asked for a connection, or carried something, to a place where nothing of ours listens. `name`: whose
    /// synthetic address it is.
    pub(crate) fn direct(&self, proto: Proto, to: SocketAddr, name: Option<&HostName>) {
        let _ = (&self.cx, proto, to, name);
    }

    /// Packets that the tap missed.
    pub(crate) fn missed(&self, count: u64) {
        let _ = (&self.cx, count);
    }

    /// Writes what is folded and not yet written. The last thing that is called.
    pub(crate) fn flush(&self) {}
}

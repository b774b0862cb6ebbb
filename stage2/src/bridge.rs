//! The bridge, which connects TCP on the sandbox's loopback to the host side.

pub(crate) mod relay;

use crate::sys::{self, Descriptor};

/// Connections that may wait to be accepted. The kernel lowers this to net.core.somaxconn (4096 by default); a burst of connections
/// waits instead of failing.
const BACKLOG: u16 = 4096;

/// Makes a listener on `127.0.0.1:port`. It is non-blocking: the flag belongs to the open file description, so the host side gets it.
pub(crate) fn listen(port: u16) -> sys::Result<Descriptor> {
    let listener = sys::socket(sys::AF_INET, sys::SOCK_STREAM | sys::SOCK_NONBLOCK)?;
    sys::listen_on_loopback(&listener, port, BACKLOG)?;
    Ok(listener)
}

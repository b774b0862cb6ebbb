//! The bridge: TCP on the sandbox's loopback to the host side.

pub(crate) mod relay;

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen as listen_on, socket,
};

/// A listener on `127.0.0.1:port`, non-blocking: the flag lives on the open file description, so the host side gets it.
pub(crate) fn listen(port: u16) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    bind(listener.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port))?;
    // The kernel lowers this to net.core.somaxconn (4096 by default); a burst of connections waits instead of failing.
    listen_on(&listener, Backlog::MAXALLOWABLE)?;
    Ok(listener)
}

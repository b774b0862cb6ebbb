//! The bridge: TCP on the sandbox's loopback to the host side.

pub(crate) mod relay;

use core::net::{Ipv4Addr, SocketAddrV4};

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as listen_on, socket_with};

/// Connections that may wait to be accepted. The kernel lowers this to net.core.somaxconn (4096 by default); a burst of
/// connections waits instead of failing.
const BACKLOG: i32 = 4096;

/// A listener on `127.0.0.1:port`, non-blocking: the flag lives on the open file description, so the host side gets it.
pub(crate) fn listen(port: u16) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    listen_on(&listener, BACKLOG)?;
    Ok(listener)
}

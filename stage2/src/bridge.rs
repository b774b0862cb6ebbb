//! The bridge: TCP on the sandbox's loopback to the host side.

pub(crate) mod relay;

use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};

use exeat_contract::{PROXY_PORT, SOCKET, SOCKS5_PORT, SOCKS5_SOCKET};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as listen_on, socket_with};

/// Connections that may wait to be accepted. The kernel lowers this to net.core.somaxconn (4096 by default); a burst of
/// connections waits instead of failing.
const BACKLOG: i32 = 4096;

/// A way in: which one a connection takes is told by its listener, and never by its bytes.
pub(crate) struct Door {
    /// On the loopback.
    pub(crate) listener: OwnedFd,
    /// The host side behind it, for a relay.
    pub(crate) socket: &'static str,
}

/// The proxy's port, and that of SOCKS5 where it is offered.
pub(crate) fn doors(socks5: bool) -> rustix::io::Result<Vec<Door>> {
    let second = socks5.then_some((SOCKS5_PORT, SOCKS5_SOCKET));
    [(PROXY_PORT, SOCKET)]
        .into_iter()
        .chain(second)
        .map(|(port, socket)| Ok(Door { listener: listen(port)?, socket }))
        .collect()
}

/// A listener on `127.0.0.1:port`, non-blocking: the flag lives on the open file description, so the host side gets it.
fn listen(port: u16) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    listen_on(&listener, BACKLOG)?;
    Ok(listener)
}

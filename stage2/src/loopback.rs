//! The loopback interface of the sandbox. bubblewrap brings it up itself; this makes sure.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sys::{self, IFF_UP};

/// Brings `lo` up unless it is up already.
pub(crate) fn ensure_up() -> rustix::io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let flags = sys::interface_flags(&socket, "lo")?;
    if flags & IFF_UP != 0 {
        return Ok(());
    }
    match sys::set_interface_flags(&socket, "lo", flags | IFF_UP) {
        // Without the capability the answer is about us, not about the interface: say that it is down.
        Err(Errno::PERM) => Err(Errno::NETDOWN),
        other => other,
    }
}

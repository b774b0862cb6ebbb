//! The loopback interface of the sandbox. bubblewrap brings it up; this module makes sure.

use crate::sys::{self, Errno, IFF_UP};

/// Brings `lo` up unless it is already up.
pub(crate) fn ensure_up() -> sys::Result<()> {
    let socket = sys::socket(sys::AF_INET, sys::SOCK_DGRAM)?;
    let flags = sys::interface_flags(&socket, "lo")?;
    if flags & IFF_UP != 0 {
        return Ok(());
    }
    match sys::set_interface_flags(&socket, "lo", flags | IFF_UP) {
        // Without the capability, the error says nothing about the interface: report that it is down.
        Err(Errno::PERM) => Err(Errno::NETDOWN),
        other => other,
    }
}

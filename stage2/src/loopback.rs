//! The loopback interface of the sandbox. bubblewrap brings it up itself; this makes sure.

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::sys;

/// Brings `lo` up unless it is up already.
pub(crate) fn ensure_up() -> nix::Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let flags = sys::interface_flags(&socket, "lo")?;
    if flags & nix::libc::IFF_UP != 0 {
        return Ok(());
    }
    match sys::set_interface_flags(&socket, "lo", flags | nix::libc::IFF_UP) {
        // Without the capability the answer is about us, not about the interface: say that it is down.
        Err(Errno::EPERM) => Err(Errno::ENETDOWN),
        other => other,
    }
}

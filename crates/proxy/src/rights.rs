//! Makes Unix sockets to which nobody can send a descriptor (`SCM_RIGHTS`, unix(7)).
//!
//! A read without room for descriptors does not keep them out: the kernel takes them out of the queue and closes them in the same call
//! (`scm_destroy`, net/core/scm.c). If that is the last close of a TCP socket with `SO_LINGER` (socket(7)), the call returns when the
//! sender likes.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::sockopt::SetBool;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, setsockopt, socket,
};
use tokio::net::{UnixSocket, UnixStream};

/// `SO_PASSRIGHTS` (include/uapi/asm-generic/socket.h), from Linux 6.16 on.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Whether a Unix socket receives descriptors.
#[derive(Debug, Clone, Copy)]
struct PassRights;

nix::setsockopt_impl!(PassRights, libc::SOL_SOCKET, SO_PASSRIGHTS, bool, SetBool);

/// Makes a listener for clients that may come at once. Whoever sends a descriptor to one of its connections gets `EPERM`, if the kernel can refuse descriptors.
///
/// # Errors
/// Returns the error of socket(2), setsockopt(2), bind(2) or listen(2).
pub fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let address = UnixAddr::new(path)?;
    let listener = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // A connection takes the option from the listener when the client connects (unix_stream_connect, net/unix/af_unix.c).
    refuse_descriptors(&listener)?;
    bind(listener.as_raw_fd(), &address)?;
    listen(&listener, Backlog::MAXCONN)?;
    Ok(listener.into())
}

/// Connects to a listener that must not send descriptors either.
pub(crate) async fn connect_unix(to: &Path) -> io::Result<UnixStream> {
    let client = UnixSocket::new_stream()?;
    refuse_descriptors(&client)?;
    client.connect(to).await
}

/// Has the kernel refuse descriptors for this socket. Before Linux 6.16 it cannot.
pub(crate) fn refuse_descriptors(socket: &impl AsFd) -> io::Result<()> {
    match setsockopt(socket, PassRights, &false) {
        Ok(()) | Err(Errno::ENOPROTOOPT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

//! The sockets that a gateway gets from the sandbox's network namespace.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use exeat_policy::Target;

/// Makes listeners in the sandbox's network namespace.
pub trait ListenerFactory: Send + Sync + 'static {
    /// Opens a listener at this address and port. It may block for about a second.
    ///
    /// # Errors
    /// Returns the error of bind(2) or listen(2): `AddrInUse` if the stage itself uses the port.
    fn listen(&self, at: SocketAddr) -> io::Result<std::net::TcpListener>;
}

/// The sockets of a gateway, all from the sandbox's network namespace.
#[derive(Debug)]
pub struct Sockets {
    /// The datagram socket of the name server.
    pub udp: std::net::UdpSocket,
    /// The stream listener of the name server.
    pub tcp: std::net::TcpListener,
    /// The sockets that see every attempt to send something elsewhere.
    pub taps: Vec<Box<dyn PacketSource>>,
}

/// A non-blocking raw socket (raw(7)). Its filter passes packets that ask for a connection, and packets sent
/// without one.
pub trait PacketSource: AsFd + fmt::Debug + Send + Sync + 'static {
    /// Reads the next packet from its IP header on, truncated to the buffer.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the queue is empty.
    fn read(&self, packet: &mut [u8]) -> io::Result<usize>;

    /// Returns how many packets were dropped since the last call because the queue was full.
    ///
    /// # Errors
    /// Returns the error of getsockopt(2).
    fn missed_packets(&self) -> io::Result<u64>;
}

/// A listener, and the target of connections to it.
pub(crate) struct Door {
    pub(crate) listener: std::net::TcpListener,
    pub(crate) target: Arc<Target>,
}

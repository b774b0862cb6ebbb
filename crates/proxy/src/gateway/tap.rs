//! Reads the packets that the sandbox sends to its loopback, and reports those that lead nowhere. It delays nothing
//! and lets nothing through: it sees only copies of packets that reach nobody.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use exeat_policy::HostName;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::gateway::attempts::{Attempts, Proto};
use crate::gateway::names::Names;
use crate::gateway::sockets::PacketSource;
use crate::limits;

/// Answers what an address inside the sandbox is.
pub(crate) trait Places: Send + Sync {
    /// Returns the name with this synthetic address.
    fn name_at(&self, ip: IpAddr) -> Option<HostName>;

    /// Whether a listener of the gateway has this address.
    fn listens_at(&self, at: SocketAddr) -> bool;
}

impl Places for Names {
    fn name_at(&self, ip: IpAddr) -> Option<HostName> {
        self.name_at(ip)
    }

    fn listens_at(&self, at: SocketAddr) -> bool {
        self.listens_at(at)
    }
}

/// Reads one of the raw sockets.
pub(crate) struct Tap {
    /// A duplicate of `socket`, used only to wait. To poll(2) all datagram sockets are the same.
    packets: UnixDatagram,
    socket: Box<dyn PacketSource>,
    places: Arc<dyn Places>,
    attempts: Arc<Attempts>,
}

impl Tap {
    /// Takes over the socket. Call it inside a runtime.
    pub(crate) fn new(
        socket: Box<dyn PacketSource>,
        places: Arc<dyn Places>,
        attempts: Arc<Attempts>,
    ) -> io::Result<Self> {
        let packets = std::os::unix::net::UnixDatagram::from(socket.as_fd().try_clone_to_owned()?);
        packets.set_nonblocking(true)?;
        Ok(Self { packets: UnixDatagram::from_std(packets)?, socket, places, attempts })
    }

    /// Watches until `stop` is cancelled, then reads what is left.
    pub(crate) async fn watch(self, stop: CancellationToken) {
        let mut look = interval(limits::TAP_LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = look.tick() => {
                    self.count_missed();
                    self.attempts.write_due();
                }
                () = self.read_available() => {}
            }
        }
        // An error does not matter here: the stage has ended, and the bound is larger than the queue.
        let _ = self.read_packets(limits::TAP_LAST);
        self.count_missed();
    }

    /// Reads the packets that are there, within bounds, and waits if there are none. Cancel-safe.
    async fn read_available(&self) {
        // A read reports any error of the socket.
        let _ = self.packets.readable().await;
        if self.packets.try_io(Interest::READABLE, || self.read_packets(limits::TAP_BURST)).is_ok() {
            // The pause keeps a flooding stage from using up this thread, on which the proxy runs.
            sleep(limits::TAP_PAUSE).await;
        }
    }

    /// Reads up to `most` packets. Fails with `WouldBlock` once the queue is empty.
    fn read_packets(&self, most: usize) -> io::Result<()> {
        let mut packet = [0; limits::PACKET];
        for _ in 0..most {
            match self.socket.read(&mut packet) {
                Ok(length) => self.note_packet(packet.get(..length).unwrap_or(&packet)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(error) => {
                    // Such as ENETDOWN, which occurs once. A lasting error is retried after a pause.
                    tracing::debug!(%error, "cannot read what the sandbox sends");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn note_packet(&self, packet: &[u8]) {
        let Some((proto, to)) = parse(packet) else { return };
        // A connection to a listener of the gateway gets its own decision.
        if proto == Proto::Tcp && self.places.listens_at(to) {
            return;
        }
        self.attempts.count_packet(proto, to, self.places.name_at(to.ip()).as_ref());
    }

    fn count_missed(&self) {
        match self.socket.missed_packets() {
            Ok(count) => self.attempts.count_missed(count),
            Err(error) => tracing::debug!(%error, "cannot ask what the tap missed"),
        }
    }
}

/// Parses the protocol and the destination of a packet. The port is 0 if it is absent or not visible. Returns
/// `None` for packets that are not reported: those after the first of a connection, later fragments, ICMP, and
/// those for the loopback.
fn parse(packet: &[u8]) -> Option<(Proto, SocketAddr)> {
    let (number, to, rest) = match packet.first()? >> 4 {
        4 => ipv4(packet)?,
        6 => ipv6(packet)?,
        _ => return None,
    };
    let at = |place: usize| rest.get(place).copied();
    let port = || Some(u16::from_be_bytes([at(2)?, at(3)?]));
    let port = match number {
        // If the flags of TCP (RFC 9293 section 3.1) are not visible, the packet counts as an attempt.
        TCP if at(13).is_some_and(|flags| flags & (SYN | ACK) != SYN) => return None,
        ICMP if to.is_ipv4() => return None,
        ICMPV6 if to.is_ipv6() => return None,
        TCP | UDP => port().unwrap_or(0),
        _ => 0,
    };
    let proto = match number {
        TCP => Proto::Tcp,
        UDP => Proto::Udp,
        other => Proto::Other(other),
    };
    (!to.is_loopback()).then_some((proto, SocketAddr::new(to, port)))
}

/// Parses an IPv4 header (RFC 791 section 3.1). Returns the protocol, the destination, and what follows.
fn ipv4(packet: &[u8]) -> Option<(u8, IpAddr, &[u8])> {
    let (header, _) = packet.split_first_chunk::<20>()?;
    let words = usize::from(header[0] & 0x0f);
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
    if words < 5 || fragment != 0 {
        return None;
    }
    let to = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
    Some((header[9], to.into(), packet.get(words * 4..)?))
}

/// Parses an IPv6 header (RFC 8200 section 3). Returns the protocol, the destination, and what follows. The
/// protocol is that of the first header that could not be skipped.
fn ipv6(packet: &[u8]) -> Option<(u8, IpAddr, &[u8])> {
    let (header, mut rest) = packet.split_first_chunk::<40>()?;
    let (_, to) = header.split_last_chunk::<16>()?;
    let to = Ipv6Addr::from(*to).into();
    let mut next = header[6];
    for _ in 0..limits::PACKET_HEADERS {
        let Some((&[following, length, high, low], _)) = rest.split_first_chunk::<4>() else { break };
        let bytes = match next {
            HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(length) + 1) * 8,
            AUTHENTICATION => (usize::from(length) + 2) * 4,
            FRAGMENT if u16::from_be_bytes([high, low]) >> 3 != 0 => return None,
            FRAGMENT => 8,
            _ => break,
        };
        let Some(behind) = rest.get(bytes..) else { break };
        (next, rest) = (following, behind);
    }
    Some((next, to, rest))
}

// IANA, "Protocol Numbers".
const HOP_BY_HOP: u8 = 0;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
const DESTINATION: u8 = 60;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

#[cfg(test)]
mod tests;

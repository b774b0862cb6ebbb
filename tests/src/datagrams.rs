//! Logs every UDP datagram that arrives at the internet, to any address and port, on raw sockets. Answers nothing: the
//! kernel reports that nobody listens.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;

use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, recvmsg,
    setsockopt, socket, sockopt,
};

/// The bytes of a datagram that are kept.
const KEPT: usize = 512;
/// The length of the UDP header: both ports, a length, a checksum.
const UDP_HEADER: usize = 8;
/// The offset of the destination address in an IPv4 header.
const TO: usize = 16;

/// A datagram.
#[derive(Debug, Clone)]
pub struct Datagram {
    /// The destination address.
    pub to: IpAddr,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

/// The log.
#[derive(Clone, Default)]
pub struct Datagrams(Arc<Mutex<Vec<Datagram>>>);

impl Datagrams {
    /// Starts the log in the network namespace of the calling thread.
    pub fn start() -> Self {
        let log = Self::default();
        let open = |family| {
            socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Udp).expect("a raw socket")
        };
        let (v4, v6) = (open(AddressFamily::Inet), open(AddressFamily::Inet6));
        setsockopt(&v6, sockopt::Ipv6RecvPacketInfo, &true).expect("IPV6_RECVPKTINFO");
        for (name, socket, read) in
            [("udp-v4", v4, read_v4 as fn(&OwnedFd) -> Option<Datagram>), ("udp-v6", v6, read_v6)]
        {
            let log = log.clone();
            let listen = move || loop {
                if let Some(datagram) = read(&socket) {
                    log.0.lock().expect("datagrams").push(datagram);
                }
            };
            thread::Builder::new().name(name.into()).spawn(listen).expect("a thread");
        }
        log
    }

    /// Returns the datagrams to an address, oldest first.
    pub fn to(&self, addr: IpAddr) -> Vec<Datagram> {
        self.log(|it| it.to == addr)
    }

    /// Returns the datagrams that contain these bytes, to any address.
    pub fn with(&self, word: &[u8]) -> Vec<Datagram> {
        self.log(|it| it.bytes.windows(word.len()).any(|window| window == word))
    }

    fn log(&self, wanted: impl Fn(&Datagram) -> bool) -> Vec<Datagram> {
        self.0.lock().expect("datagrams").iter().filter(|it| wanted(it)).cloned().collect()
    }
}

/// Reads a datagram with its IPv4 header.
fn read_v4(socket: &OwnedFd) -> Option<Datagram> {
    let mut packet = [0; KEPT];
    let count = nix::sys::socket::recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty()).ok()?;
    let packet = packet.get(..count)?;
    let to: [u8; 4] = packet.get(TO..TO + 4)?.try_into().ok()?;
    let header = usize::from(packet.first()? & 0x0f) * 4;
    Some(Datagram { to: Ipv4Addr::from(to).into(), bytes: packet.get(header + UDP_HEADER..)?.to_vec() })
}

/// Reads a datagram without its header; the kernel adds the address.
fn read_v6(socket: &OwnedFd) -> Option<Datagram> {
    let mut packet = [0; KEPT];
    let mut space = nix::cmsg_space!(nix::libc::in6_pktinfo);
    let mut parts = [IoSliceMut::new(&mut packet)];
    let message =
        recvmsg::<SockaddrIn6>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).ok()?;
    let count = message.bytes;
    let to = message.cmsgs().ok()?.find_map(|it| match it {
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::from(info.ipi6_addr.s6_addr)),
        _ => None,
    })?;
    Some(Datagram { to, bytes: packet.get(UDP_HEADER..count)?.to_vec() })
}

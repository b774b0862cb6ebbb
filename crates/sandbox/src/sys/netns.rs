//! Works in a sandbox's network namespace from the host side: configures it once, opens the sockets of a gateway, and makes listeners
//! on request ([`super::inside`]).

use std::io::{self, IoSliceMut};
use std::mem;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use exeat_contract::{NAME_SERVER, steps};
use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::asks;
use super::helper::Helper;

mod filter;

/// The index of the loopback interface in every network namespace (LOOPBACK_IFINDEX, include/net/flow.h).
const LOOPBACK: u8 = 1;

/// The name server's port.
const DNS: u16 = 53;

/// Connections that may wait to be accepted; the kernel lowers it to its own bound (somaxconn).
const BACKLOG: c_int = 1024;

steps! {
    /// A step of the helper in the network namespace.
    pub enum NetStep {
        User = 1, "become the stage's user";
        Enter = 2, "enter the sandbox's network namespace";
        Routes = 3, "set the sandbox's routes";
        NameServer = 4, "open the sandbox's name server";
        Tap = 5, "open raw sockets in the sandbox's network";
        Tell = 6, "hear from the process in the sandbox's network";
    }
}

/// A sandbox's network namespace. Its descriptors pin it: close them at the end.
#[derive(Debug)]
pub struct Network {
    /// The sockets of a gateway, if every address was made local.
    pub open: Option<OpenNetwork>,
    /// Makes listeners.
    pub inside: InsideNetwork,
    /// A sock_diag(7) socket that reports the sockets there; no process of the sandbox may have one. `None` if the kernel lacks it.
    pub(crate) diag: Option<OwnedFd>,
}

/// The sockets of a gateway.
#[derive(Debug)]
pub struct OpenNetwork {
    /// The name server's datagram socket.
    pub udp: UdpSocket,
    /// The name server's stream listener.
    pub tcp: TcpListener,
    /// Raw sockets that see attempts: for TCP and UDP, in each family that the kernel has.
    pub taps: Vec<Packets>,
}

/// A raw socket (raw(7)) that gets the first bytes of each packet that opens a TCP connection, or of each datagram, to any address
/// except loopback. It gets copies; the packets continue.
///
/// One packet socket could see all of these. But its last close waits for all processors to be quiet (synchronize_net,
/// net/packet/af_packet.c), which adds 11 to 18 ms to each run.
#[derive(Debug)]
pub struct Packets {
    socket: OwnedFd,
    kind: Kind,
    /// The kernel's counter of dropped packets at the last query.
    missed: AtomicU32,
}

/// The packets that a raw socket sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    v6: bool,
    protocol: u8,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The kinds of taps, in the order in which the helper passes them.
const KINDS: [Kind; 4] = [
    Kind { v6: false, protocol: TCP },
    Kind { v6: false, protocol: UDP },
    Kind { v6: true, protocol: TCP },
    Kind { v6: true, protocol: UDP },
];

/// Bytes that may wait to be read, as the kernel counts them: about 800 for each small packet.
const QUEUE: c_int = 1 << 20;

/// Length of an IPv6 header, which a raw socket leaves out.
const HEADER: usize = 40;

impl Packets {
    /// Reads the next packet's first bytes, from its IP header on. An IPv6 header has only its version, next header and destination
    /// filled in.
    ///
    /// # Errors
    /// Returns `WouldBlock` without a packet, and `InvalidInput` for a buffer of 40 bytes or less.
    pub fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        if !self.kind.v6 {
            return Ok(nix::sys::socket::recv(self.socket.as_raw_fd(), packet, MsgFlags::MSG_DONTWAIT)?);
        }
        let (header, rest) = packet.split_at_mut_checked(HEADER).ok_or(io::ErrorKind::InvalidInput)?;
        let mut space = nix::cmsg_space!(libc::in6_pktinfo);
        let mut slices = [IoSliceMut::new(rest)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
        let to = message.cmsgs()?.find_map(|part| match part {
            ControlMessageOwned::Ipv6PacketInfo(info) => Some(info.ipi6_addr.s6_addr),
            _ => None,
        });
        let count = message.bytes;
        header.fill(0);
        let fields = [(0, 0x60), (6, self.kind.protocol)].into_iter();
        let to = to.unwrap_or_default().into_iter().enumerate().map(|(at, byte)| (24 + at, byte));
        for (at, byte) in fields.chain(to) {
            if let Some(place) = header.get_mut(at) {
                *place = byte;
            }
        }
        Ok(HEADER + count)
    }

    /// Returns how many packets of its protocol the kernel has dropped from its full queue since the last query, including those of
    /// established connections (SO_MEMINFO, net/core/sock.c).
    ///
    /// # Errors
    /// Returns the error of getsockopt(2).
    pub fn count_missed(&self) -> io::Result<u64> {
        /// SK_MEMINFO_DROPS and SK_MEMINFO_VARS (include/uapi/linux/sock_diag.h).
        const DROPS: usize = 8;
        const VARS: usize = 9;
        let mut numbers = [0_u32; VARS];
        let mut length = length_of::<[u32; VARS]>();
        // SAFETY: a live local of the length given; any bytes are a valid value.
        Errno::result(unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                numbers.as_mut_ptr().cast(),
                &raw mut length,
            )
        })?;
        let now = numbers.get(DROPS).copied().unwrap_or(0);
        Ok(now.wrapping_sub(self.missed.swap(now, Ordering::Relaxed)).into())
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Makes listeners in the namespace.
#[derive(Debug)]
pub struct InsideNetwork(Arc<Helper>);

/// `AF_INET` and `AF_INET6` as bytes.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

fn length_of<T>() -> u32 {
    u32::try_from(mem::size_of::<T>()).unwrap_or(u32::MAX)
}

/// A request for a listener on this address.
#[derive(Clone, Copy)]
struct Ask {
    /// The kernel's `struct sockaddr_in` or `struct sockaddr_in6`.
    address: [u8; 28],
    length: u32,
}

impl Ask {
    fn new(at: SocketAddr) -> Self {
        let mut address = [0; 28];
        let mut put = |from: usize, bytes: &[u8]| {
            address.iter_mut().skip(from).zip(bytes).for_each(|(place, byte)| *place = *byte);
        };
        put(2, &at.port().to_be_bytes());
        let (family, length) = match at.ip() {
            IpAddr::V4(ip) => {
                put(4, &ip.octets());
                (AF_INET, length_of::<libc::sockaddr_in>())
            }
            IpAddr::V6(ip) => {
                put(8, &ip.octets());
                (AF_INET6, length_of::<libc::sockaddr_in6>())
            }
        };
        put(0, &u16::from(family).to_ne_bytes());
        Self { address, length }
    }

    /// Parses a request.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (address, length) = bytes.split_first_chunk()?;
        Some(Self { address: *address, length: u32::from_ne_bytes(length.try_into().ok()?) })
    }

    fn is_v6(&self) -> bool {
        self.length == length_of::<libc::sockaddr_in6>()
    }
}

impl InsideNetwork {
    /// Makes a listener in the sandbox's network namespace, on an address that no interface needs to have.
    ///
    /// # Errors
    /// Returns the error of bind(2) or listen(2), and `TimedOut` if the helper does not answer within two seconds.
    pub fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        Ok(self.0.with(|socket| ask(socket, Ask::new(at)))??.into())
    }
}

fn ask(socket: &UnixStream, ask: Ask) -> io::Result<Result<OwnedFd, Errno>> {
    let asked = [&[asks::LISTEN][..], &ask.address, &ask.length.to_ne_bytes()].concat();
    nix::sys::socket::send(socket.as_raw_fd(), &asked, MsgFlags::MSG_NOSIGNAL)?;
    let (errno, passed) = match hear(socket) {
        // The answer came, but no descriptor is free for its listener (MSG_CTRUNC). A later request may succeed.
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Err(Errno::EMFILE)),
        heard => heard?,
    };
    match (errno, passed.into_iter().next()) {
        (0, Some(listener)) => Ok(Ok(listener)),
        (0, None) => Err(io::ErrorKind::InvalidData.into()),
        (errno, _) => Ok(Err(Errno::from_raw(errno))),
    }
}

/// Reads one answer: a number and descriptors.
fn hear(socket: &UnixStream) -> io::Result<(i32, Vec<OwnedFd>)> {
    let mut bytes = [0; 4];
    let super::Received { count, passed, .. } = super::receive(socket.as_fd(), &mut bytes)?;
    if count != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((i32::from_ne_bytes(bytes), passed))
}

/// Lets the helper enter the network namespace ([`super::InsideProcess::network`]).
pub(super) fn enter(helper: Arc<Helper>, open: bool) -> Result<Network, (NetStep, io::Error)> {
    let other = |error: io::Error| (NetStep::Tell, error);
    let inside = InsideNetwork(helper);
    let mut diag = None;
    // A failed step is the last answer.
    let entered = inside.0.with(|socket| {
        nix::sys::socket::send(socket.as_raw_fd(), &[asks::NETWORK, open.into()], MsgFlags::MSG_NOSIGNAL)?;
        let mut sockets = Vec::new();
        // Each answer has room for two descriptors.
        for number in 0..=if open { ANSWERS } else { 0 } {
            match (hear(socket)?, number) {
                ((0, mut passed), 0) => diag = passed.pop(),
                ((0, passed), _) => sockets.extend(passed),
                ((code, _), _) => return Ok(Err(decode_failure(code))),
            }
        }
        Ok(Ok(sockets.into_iter()))
    });
    let mut sockets = entered.map_err(other)??;
    let open = match (sockets.next(), sockets.next()) {
        (Some(udp), Some(tcp)) if open => {
            let taps = sockets.zip(KINDS);
            let taps = taps.map(|(socket, kind)| Packets { socket, kind, missed: AtomicU32::new(0) });
            Some(OpenNetwork { udp: udp.into(), tcp: tcp.into(), taps: taps.collect() })
        }
        (None, _) if !open => None,
        _ => return Err(other(io::ErrorKind::InvalidData.into())),
    };
    Ok(Network { open, inside, diag })
}

/// Answers after the first one, which has the sock_diag socket: the name server's sockets, and the raw ones of each family.
const ANSWERS: usize = 3;

/// Encodes a step and an error number as one number that is not 0.
fn encode_failure(step: NetStep, errno: Errno) -> i32 {
    (step as i32) << 16 | (errno as i32 & 0xffff).max(1)
}

fn decode_failure(code: i32) -> (NetStep, io::Error) {
    let step = u8::try_from(code >> 16).ok().and_then(NetStep::from_byte).unwrap_or(NetStep::Tell);
    (step, io::Error::from_raw_os_error(code & 0xffff))
}

/// Enters the network namespace and passes on the sockets that it opens there.
///
/// # Safety
/// The caller must be the only thread of its process.
pub(super) unsafe fn answer_enter(
    control: RawFd,
    namespaces: Result<[RawFd; 2], (NetStep, Errno)>,
    open: bool,
) {
    // SAFETY: each call takes numbers or slices of numbers. The closed descriptors are this process's copies, which nothing here uses
    // again.
    unsafe {
        match namespaces.and_then(|[net, _]| prepare(net, open)) {
            Ok((diag, opened)) => {
                let (names, v4, v6) = match &opened {
                    Some(GatewaySockets { names, v4, v6 }) => {
                        (&names[..], &v4[..], v6.as_ref().map_or(&[][..], |v6| v6))
                    }
                    None => (&[][..], &[][..], &[][..]),
                };
                let answers = [diag.as_slice(), names, v4, v6];
                for sockets in answers.iter().take(if opened.is_some() { 1 + ANSWERS } else { 1 }) {
                    answer(control, 0, sockets);
                    for socket in *sockets {
                        libc::close(*socket);
                    }
                }
            }
            Err((step, errno)) => answer(control, encode_failure(step, errno), &[]),
        }
    }
}

/// Makes a listener on an address and passes it on.
///
/// # Safety
/// The caller must be the only thread of its process.
pub(super) unsafe fn answer_listen(control: RawFd, address: &[u8]) {
    // SAFETY: each call takes numbers and live locals; the listener is closed once.
    unsafe {
        match Ask::parse(address).ok_or(Errno::EINVAL).and_then(|ask| listener(&ask)) {
            Ok(listener) => {
                answer(control, 0, &[listener]);
                libc::close(listener);
            }
            Err(errno) => answer(control, (errno as i32).max(1), &[]),
        }
    }
}

/// Sends an answer with up to two descriptors. The socket has room, since nobody asks twice before an answer.
unsafe fn answer(control: RawFd, number: i32, fds: &[RawFd]) {
    let bytes = number.to_ne_bytes();
    // Room for a header and two descriptors, aligned as the header is.
    let mut space = [0_u64; 8];
    // SAFETY: the message describes live locals; the control part lies within `space`, which has room for two descriptors.
    unsafe {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        let fds = fds.get(..fds.len().min(2)).unwrap_or_default();
        if !fds.is_empty() {
            let length = u32::try_from(mem::size_of_val(fds)).unwrap_or(0);
            message.msg_control = space.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            ptr::copy_nonoverlapping(
                fds.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                mem::size_of_val(fds),
            );
        }
        libc::sendmsg(control, &raw const message, libc::MSG_NOSIGNAL);
    }
}

/// Sockets opened in the namespace.
struct GatewaySockets {
    names: [RawFd; 2],
    v4: [RawFd; 2],
    /// `None` if the kernel lacks IPv6.
    v6: Option<[RawFd; 2]>,
}

/// include/uapi/linux/netlink.h.
const NETLINK_SOCK_DIAG: c_int = 4;

/// Enters the namespace and opens its sockets, before the first request.
unsafe fn prepare(
    namespace: RawFd,
    open: bool,
) -> Result<(Option<RawFd>, Option<GatewaySockets>), (NetStep, Errno)> {
    let at = |step: NetStep| move |errno: Errno| (step, errno);
    // SAFETY: as in `answer_enter`.
    unsafe {
        Errno::result(libc::setns(namespace, libc::CLONE_NEWNET)).map_err(at(NetStep::Enter))?;
        let how = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Without this socket, the process behind a connection is unknown; nothing else changes.
        let diag = Errno::result(libc::socket(libc::AF_NETLINK, how, NETLINK_SOCK_DIAG)).ok();
        if !open {
            return Ok((diag, None));
        }
        routes().map_err(at(NetStep::Routes))?;
        let address = Ask::new(SocketAddr::new(IpAddr::V4(NAME_SERVER), DNS));
        let udp = bound(&address, libc::SOCK_DGRAM).map_err(at(NetStep::NameServer))?;
        let tcp = listener(&address).map_err(at(NetStep::NameServer))?;
        let [tcp4, udp4, tcp6, udp6] = KINDS.map(|kind| tap(kind));
        let at_tap = at(NetStep::Tap);
        let v6 = match (tcp6, udp6) {
            (Err(Errno::EAFNOSUPPORT), _) => None,
            (tcp, udp) => Some([tcp.map_err(at_tap)?, udp.map_err(at_tap)?]),
        };
        let v4 = [tcp4.map_err(at_tap)?, udp4.map_err(at_tap)?];
        Ok((diag, Some(GatewaySockets { names: [udp, tcp], v4, v6 })))
    }
}

/// Binds a socket to an address that no interface needs to have (`IP_FREEBIND`, ip(7)).
unsafe fn bound(at: &Ask, kind: c_int) -> Result<RawFd, Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let family = c_int::from(if at.is_v6() { AF_INET6 } else { AF_INET });
    // SAFETY: as in `answer_enter`; the address is of the length given.
    unsafe {
        let socket = Errno::result(libc::socket(family, kind | flags, 0))?;
        let mut set = set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        if at.is_v6() {
            set = set
                .and_then(|()| self::set(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1))
                .and_then(|()| self::set(socket, libc::IPPROTO_IPV6, IPV6_FREEBIND, 1));
        } else {
            set = set.and_then(|()| self::set(socket, libc::IPPROTO_IP, libc::IP_FREEBIND, 1));
        }
        let length = at.length;
        let bound = set
            .and_then(|()| Errno::result(libc::bind(socket, at.address.as_ptr().cast(), length)).map(drop));
        match bound {
            Ok(()) => Ok(socket),
            Err(errno) => {
                libc::close(socket);
                Err(errno)
            }
        }
    }
}

/// include/uapi/linux/in6.h; the C library's header guards it differently.
const IPV6_FREEBIND: c_int = 78;

unsafe fn listener(at: &Ask) -> Result<RawFd, Errno> {
    // SAFETY: as in `answer_enter`.
    unsafe {
        let socket = bound(at, libc::SOCK_STREAM)?;
        match Errno::result(libc::listen(socket, BACKLOG)) {
            Ok(_) => Ok(socket),
            Err(errno) => {
                libc::close(socket);
                Err(errno)
            }
        }
    }
}

unsafe fn set(socket: RawFd, level: c_int, option: c_int, value: c_int) -> Result<(), Errno> {
    let length = length_of::<c_int>();
    // SAFETY: a live local of that length.
    Errno::result(unsafe { libc::setsockopt(socket, level, option, (&raw const value).cast(), length) })
        .map(drop)
}

/// Does what `ip route add local default dev lo` does, in each family that the kernel has (rtnetlink(7)).
unsafe fn routes() -> Result<(), Errno> {
    // SAFETY: as in `answer_enter`.
    unsafe {
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let socket = Errno::result(libc::socket(libc::AF_NETLINK, flags, libc::NETLINK_ROUTE))?;
        let v4 = route(socket, AF_INET);
        let v6 = match route(socket, AF_INET6) {
            // EACCES: IPv6 is turned off (net.ipv6.conf.*.disable_ipv6), and every IPv6 address is refused anyway.
            Err(Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP | Errno::EACCES) => Ok(()),
            other => other,
        };
        libc::close(socket);
        v4.and(v6)
    }
}

/// `struct nlmsghdr`, `struct rtmsg` and an attribute with one number.
#[repr(C)]
struct RouteRequest {
    header: libc::nlmsghdr,
    family: u8,
    dst_len: u8,
    src_len: u8,
    tos: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
    attribute_length: u16,
    attribute: u16,
    interface: u32,
}

unsafe fn route(socket: RawFd, family: u8) -> Result<(), Errno> {
    const RTPROT_BOOT: u8 = 3;
    /// NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE and NLM_F_EXCL (netlink(7)).
    const FLAGS: u16 = 0x605;
    let length = mem::size_of::<RouteRequest>();
    let request = RouteRequest {
        header: libc::nlmsghdr {
            nlmsg_len: length_of::<RouteRequest>(),
            nlmsg_type: libc::RTM_NEWROUTE,
            nlmsg_flags: FLAGS,
            nlmsg_seq: 1,
            nlmsg_pid: 0,
        },
        family,
        dst_len: 0,
        src_len: 0,
        tos: 0,
        table: libc::RT_TABLE_LOCAL,
        protocol: RTPROT_BOOT,
        scope: libc::RT_SCOPE_HOST,
        kind: libc::RTN_LOCAL,
        flags: 0,
        // The attribute's header, and its number.
        attribute_length: 8,
        attribute: libc::RTA_OIF,
        interface: LOOPBACK.into(),
    };
    /// `struct nlmsgerr` begins with the error; the copy of the request after it is not read.
    #[repr(C)]
    struct Answer {
        header: libc::nlmsghdr,
        error: i32,
        rest: [u8; 128],
    }
    // SAFETY: live locals of the lengths given, with the kernel's layout.
    unsafe {
        Errno::result(libc::send(socket, (&raw const request).cast(), length, 0))?;
        let mut answer: Answer = mem::zeroed();
        let read = Errno::result(libc::recv(socket, (&raw mut answer).cast(), mem::size_of::<Answer>(), 0))?;
        let least = mem::size_of::<libc::nlmsghdr>() + mem::size_of::<i32>();
        if usize::try_from(read).unwrap_or(0) < least
            || c_int::from(answer.header.nlmsg_type) != libc::NLMSG_ERROR
        {
            return Err(Errno::EBADMSG);
        }
        match answer.error {
            0 => Ok(()),
            error => Err(Errno::from_raw(error.saturating_neg())),
        }
    }
}

/// Opens a raw socket. No packet can arrive before its filter is set, since nothing has run in the sandbox yet.
unsafe fn tap(kind: Kind) -> Result<RawFd, Errno> {
    let program = match kind {
        Kind { v6: false, protocol: TCP } => &filter::TCP_4[..],
        Kind { v6: false, .. } => &filter::UDP_4,
        Kind { v6: true, protocol: TCP } => &filter::TCP_6,
        Kind { v6: true, .. } => &filter::UDP_6,
    };
    let family = c_int::from(if kind.v6 { AF_INET6 } else { AF_INET });
    // SAFETY: as in `answer_enter`; the program is a constant, and the kernel copies it.
    unsafe {
        let how = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = Errno::result(libc::socket(family, how, kind.protocol.into()))?;
        let program = libc::sock_fprog {
            len: u16::try_from(program.len()).unwrap_or(0),
            filter: program.as_ptr().cast_mut().cast(),
        };
        let length = length_of::<libc::sock_fprog>();
        let place = (&raw const program).cast();
        let made =
            Errno::result(libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, place, length));
        // The system may grant less (net.core.rmem_max). A flood that is not read in time leaves a gap in the record.
        let made = made.and_then(|_| set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, QUEUE));
        let made = made.and_then(|()| match kind.v6 {
            true => set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
            false => Ok(()),
        });
        match made {
            Ok(()) => Ok(socket),
            Err(errno) => {
                libc::close(socket);
                Err(errno)
            }
        }
    }
}

#[cfg(test)]
mod tests;

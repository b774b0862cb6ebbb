//! Attempts to bypass the proxy: directly to an address, and to a name server.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use crate::sys;
use nix::libc;

use crate::attempt::{Attempt, Saw, Spec, answer, name, several};

/// The longest wait for an answer that comes at once or never.
pub(super) const PATIENCE: Duration = Duration::from_millis(700);
/// A name that is reserved and that every name server answers for (RFC 2606).
const NAME: &str = "example.com";
/// Public addresses that are unused and routed like any other (RFC 5737, RFC 3849).
const NOBODY4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const NOBODY6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// The sandbox's name server. Many hosts have their own name server at the same address.
pub(super) const NAME_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)), 53);

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt::new("tcp-v4", "TCP to a public IPv4 address", &["P24", "D16"], |_| public_tcp(NOBODY4))
        .controlled_by(|_| route(NOBODY4)),
    Attempt::new("tcp-v6", "TCP to a public IPv6 address", &["P24", "D16"], |_| public_tcp(NOBODY6))
        .controlled_by(|_| route(NOBODY6)),
    Attempt::new("udp-v4", "UDP to a public IPv4 address", &["P24", "D16"], |_| public_udp(NOBODY4))
        .controlled_by(|_| route(NOBODY4)),
    Attempt::new("udp-v6", "UDP to a public IPv6 address", &["P24", "D16"], |_| public_udp(NOBODY6))
        .controlled_by(|_| route(NOBODY6)),
    Attempt::new("host-tcp-v4", "TCP to the host's loopback, IPv4", &["B30", "P24"], |spec| {
        host_tcp(spec, "tcp4", "host-tcp-v4")
    })
    .controlled()
    .watched(&["tcp4"]),
    Attempt::new("host-tcp-v6", "TCP to the host's loopback, IPv6", &["B30", "P24"], |spec| {
        host_tcp(spec, "tcp6", "host-tcp-v6")
    })
    .controlled()
    .watched(&["tcp6"]),
    Attempt::new("host-udp-v4", "UDP to the host's loopback, IPv4", &["B30"], |spec| {
        host_udp(spec, "udp4", "host-udp-v4")
    })
    .controlled()
    .watched(&["udp4"]),
    Attempt::new("host-udp-v6", "UDP to the host's loopback, IPv6", &["B30"], |spec| {
        host_udp(spec, "udp6", "host-udp-v6")
    })
    .controlled()
    .watched(&["udp6"]),
    Attempt::new("dns-udp", "asking a name server, UDP", &["D11", "D10"], |spec| ask_resolver(spec, ask_udp))
        .controlled(),
    Attempt::new("dns-tcp", "asking a name server, TCP", &["D11", "D10"], |spec| ask_resolver(spec, ask_tcp))
        .controlled(),
    Attempt::new("lookup", "a name through the C library", &["D11", "D12"], |_| lookup()).controlled(),
    Attempt::new("protocols", "internet sockets but TCP, UDP and ping", &["B05"], |_| protocols())
        .controlled_by(|_| mptcp()),
    Attempt::new("raw-sockets", "raw and packet sockets", &["B05"], |_| raw()),
];

fn public_tcp(to: IpAddr) -> Saw {
    match TcpStream::connect_timeout(&SocketAddr::new(to, 443), PATIENCE) {
        Ok(_) => Saw::Out(format!("connected to {to}")),
        // The packet was sent and not refused; only the answer is missing.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Saw::Out(format!("sent to {to}")),
        Err(error) => Saw::Refused(name(&error)),
    }
}

fn public_udp(to: IpAddr) -> Saw {
    let sent = socket_for(to).and_then(|socket| {
        socket.connect((to, 443))?;
        let from = socket.local_addr()?.ip();
        let own = from == to || from.is_loopback();
        socket.send(b"exeat")?;
        match socket.recv(&mut [0; 8]) {
            // The gateway gives every address to the sandbox, and packets to it have that or a loopback address as their source: they do
            // not leave. Otherwise both a refusal and silence mean that a packet left.
            Err(error) if own => Err(error),
            _ => Ok(()),
        }
    });
    answer(sent, &format!("sent to {to}"))
}

/// Looks for a route to an address. Connecting a UDP socket sends nothing.
fn route(to: IpAddr) -> Saw {
    answer(socket_for(to).and_then(|socket| socket.connect((to, 443))), &format!("a route to {to}"))
}

fn socket_for(to: IpAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn host_tcp(spec: &Spec, canary: &str, id: &str) -> Saw {
    let Some(to) = spec.sockets.get(canary) else { return Saw::NotMade(no_listener(canary)) };
    match TcpStream::connect_timeout(to, PATIENCE) {
        Ok(stream) => heard(stream, spec, id),
        Err(error) => Saw::Refused(name(&error)),
    }
}

/// Sends the name of the attempt and reads the canary's answer.
pub(super) fn heard(mut stream: TcpStream, spec: &Spec, id: &str) -> Saw {
    let mut exchange = || -> io::Result<String> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{id}\n").as_bytes())?;
        let mut said = vec![0; 256];
        let count = stream.read(&mut said)?;
        said.truncate(count);
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    match exchange() {
        Ok(said) if said.contains(&spec.token) => Saw::Out("the host's listener answered".into()),
        Ok(_) => Saw::Out("connected to something".into()),
        Err(error) => Saw::Out(format!("connected, then {}", name(&error))),
    }
}

fn host_udp(spec: &Spec, canary: &str, id: &str) -> Saw {
    let Some(to) = spec.sockets.get(canary) else { return Saw::NotMade(no_listener(canary)) };
    let exchange = || -> io::Result<usize> {
        let socket = socket_for(to.ip())?;
        socket.connect(to)?;
        socket.send(id.as_bytes())?;
        socket.recv(&mut [0; 64])
    };
    match exchange() {
        Ok(_) => Saw::Out("the host's listener answered".into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Saw::Refused("no answer".into()),
        Err(error) => Saw::Refused(name(&error)),
    }
}

pub(super) fn no_listener(canary: &str) -> String {
    let family = if canary.ends_with('6') { "IPv6" } else { "IPv4" };
    format!("no {family} on this machine's loopback")
}

type Ask = fn(SocketAddr, &str, u16) -> io::Result<Reply>;

fn ask_resolver(spec: &Spec, ask: Ask) -> Saw {
    match spec.resolver {
        Some(server) => match ask(server, NAME, 1) {
            // The sandbox's own name server gives this answer for every name that is not granted.
            Ok(Reply { records: 0, code }) if server == NAME_SERVER => Saw::Refused(code.into()),
            Ok(_) => Saw::Out(format!("{server} answered")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Saw::Refused("no answer".into()),
            Err(error) => Saw::Refused(name(&error)),
        },
        None => Saw::NotMade("/etc/resolv.conf names no server".into()),
    }
}

/// The answer of a name server.
pub(super) struct Reply {
    /// The name of the response code (RFC 1035, section 4.1.1).
    pub(super) code: &'static str,
    /// The number of records in the answer.
    pub(super) records: u16,
}

impl Reply {
    fn read(bytes: &[u8]) -> io::Result<Self> {
        let Some([_, _, _, code, _, _, a, b]) = bytes.first_chunk() else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let code = match code & 0x0f {
            0 => "no record",
            2 => "SERVFAIL",
            3 => "NXDOMAIN",
            5 => "REFUSED",
            _ => "an error",
        };
        Ok(Self { code, records: u16::from_be_bytes([*a, *b]) })
    }
}

/// Queries a name server over UDP.
pub(super) fn ask_udp(server: SocketAddr, name: &str, kind: u16) -> io::Result<Reply> {
    let socket = socket_for(server.ip())?;
    socket.connect(server)?;
    socket.send(&question(name, kind))?;
    let mut reply = [0; 512];
    let count = socket.recv(&mut reply)?;
    Reply::read(reply.get(..count).unwrap_or_default())
}

/// Queries a name server over TCP.
pub(super) fn ask_tcp(server: SocketAddr, name: &str, kind: u16) -> io::Result<Reply> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let question = question(name, kind);
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &question].concat())?;
    let mut reply = [0; 14];
    stream.read_exact(&mut reply)?;
    Reply::read(reply.get(2..).unwrap_or_default())
}

/// Encodes a query for a record of a name (RFC 1035, section 4.1).
fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0x65, 0x78, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(0));
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1]);
    bytes
}

fn lookup() -> Saw {
    match (NAME, 443).to_socket_addrs().map(|mut addrs| addrs.next()) {
        Ok(Some(_)) => Saw::Out(format!("an address of {NAME}")),
        Ok(None) => Saw::Refused("no address".into()),
        // The C library's message is in the user's language, and adds nothing.
        Err(_) => Saw::Refused("no address".into()),
    }
}

fn raw() -> Saw {
    let all = 0x0300; // ETH_P_ALL, network byte order
    several([
        ("ICMP".into(), sys::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
        ("ICMPv6".into(), sys::socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6)),
        ("raw IPv4".into(), sys::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW)),
        ("packet".into(), sys::socket(libc::AF_PACKET, libc::SOCK_RAW, all)),
        ("packet, cooked".into(), sys::socket(libc::AF_PACKET, libc::SOCK_DGRAM, all)),
    ])
}

/// Opens an MPTCP socket. MPTCP is never a module, so this loads nothing into the host's kernel.
fn mptcp() -> Saw {
    answer(sys::socket(libc::AF_INET, libc::SOCK_STREAM, MPTCP), "an MPTCP socket")
}

/// Linux 5.6, include/uapi/linux/in.h.
const MPTCP: i32 = 262;

/// Opens sockets of protocols that equal TCP or make the kernel load a module.
fn protocols() -> Saw {
    const DCCP: (i32, i32) = (6, 33); // SOCK_DCCP, IPPROTO_DCCP
    let kinds = [
        ("MPTCP", libc::SOCK_STREAM, MPTCP),
        ("SCTP", libc::SOCK_STREAM, libc::IPPROTO_SCTP),
        ("SCTP, one to many", libc::SOCK_SEQPACKET, libc::IPPROTO_SCTP),
        ("DCCP", DCCP.0, DCCP.1),
        ("UDP-Lite", libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE),
    ];
    let families = [("IPv4", libc::AF_INET), ("IPv6", libc::AF_INET6)];
    several(families.iter().flat_map(|(family_name, family)| {
        kinds.map(|(name, kind, protocol)| {
            (format!("{name} over {family_name}"), sys::socket(*family, kind, protocol))
        })
    }))
}

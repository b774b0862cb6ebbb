//! Paths around the proxy: addresses, resolvers and other programs' sockets.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{self as unix_net, UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::{ProbeResult, number};

const PATIENCE: Duration = Duration::from_secs(3);

/// Connects, and sends a hello that an origin would log.
pub(crate) fn tcp(addr: &str) -> ProbeResult {
    let mut stream = TcpStream::connect_timeout(&address(addr)?, PATIENCE)?;
    stream.write_all(b"hello")?;
    Ok("ok".into())
}

/// Sends one datagram. A refusal arrives at once.
pub(crate) fn udp(addr: &str) -> ProbeResult {
    let addr = address(addr)?;
    let socket = UdpSocket::bind(if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    socket.connect(addr)?;
    socket.send(b"hello")?;
    match socket.recv(&mut [0; 8]) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok("ok".into()),
    }
}

/// Asks a resolver for an address.
pub(crate) fn dns_udp(server: &str, name: &str) -> ProbeResult {
    let server = address(server)?;
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(server)?;
    socket.send(&question(name))?;
    let mut reply = [0; 512];
    let count = socket.recv(&mut reply)?;
    Ok(format!("ok: code {}, {count} bytes", reply[3] & 0x0f))
}

/// Asks a resolver for an address over TCP.
pub(crate) fn dns_tcp(server: &str, name: &str) -> ProbeResult {
    let mut stream = TcpStream::connect_timeout(&address(server)?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let question = question(name);
    let length = u16::try_from(question.len()).map_err(io::Error::other)?.to_be_bytes();
    stream.write_all(&[&length[..], &question].concat())?;
    let mut reply = [0; 514];
    let count = stream.read(&mut reply)?;
    Ok(format!("ok: code {}, {count} bytes", reply[5] & 0x0f))
}

/// Connects to a socket in the file system.
pub(crate) fn unix(path: &str) -> ProbeResult {
    UnixStream::connect(path)?.write_all(b"hello")?;
    Ok("ok".into())
}

/// Sends to a datagram socket in the file system, without connecting.
pub(crate) fn unix_dgram(path: &str) -> ProbeResult {
    UnixDatagram::unbound()?.send_to(b"hello", path)?;
    Ok("ok".into())
}

/// Connects to an abstract socket.
pub(crate) fn abstract_stream(name: &str) -> ProbeResult {
    let addr = unix_net::SocketAddr::from_abstract_name(name)?;
    UnixStream::connect_addr(&addr)?.write_all(b"hello")?;
    Ok("ok".into())
}

/// Listens on an abstract socket until standard input ends.
pub(crate) fn listen_abstract(name: &str) -> ProbeResult {
    let addr = unix_net::SocketAddr::from_abstract_name(name)?;
    let _listener = UnixListener::bind_addr(&addr)?;
    println!("listening");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok("ok".into())
}

/// Serves one connection on loopback, as a stage may.
pub(crate) fn serve(port: &str) -> ProbeResult {
    let listener = TcpListener::bind(("127.0.0.1", number(port)?))?;
    let addr = listener.local_addr()?;
    let client = std::thread::spawn(move || tcp(&addr.to_string()));
    let mut heard = String::new();
    listener.accept()?.0.read_to_string(&mut heard)?;
    client.join().map_err(|_| io::Error::other("client"))??;
    Ok(format!("ok: {heard}"))
}

/// Binds a port of the loopback, and frees it.
pub(crate) fn listen(port: &str) -> ProbeResult {
    TcpListener::bind(("127.0.0.1", number(port)?))?;
    Ok("ok".into())
}

/// Connects by sending, without connect(2) (MSG_FASTOPEN, sendto(2)).
pub(crate) fn fast_open(addr: &str) -> ProbeResult {
    let SocketAddr::V4(addr) = address(addr)? else { return Err(io::Error::other("IPv4 alone")) };
    let to = nix::sys::socket::SockaddrIn::from(addr);
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Stream,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let flags = nix::sys::socket::MsgFlags::from_bits_retain(nix::libc::MSG_FASTOPEN);
    nix::sys::socket::sendto(std::os::fd::AsRawFd::as_raw_fd(&socket), b"hello", &to, flags)?;
    Ok("ok".into())
}

/// Lists every socket in the file system that accepts a connection, separated by blanks; `none` is expected.
pub(crate) fn sockets() -> ProbeResult {
    let mut found = Vec::new();
    for place in ["/run", "/tmp", "/var", "/home", "/root", "/dev", "."] {
        walk(Path::new(place), &mut found);
    }
    Ok(if found.is_empty() { "none".into() } else { found.join(" ") })
}

fn walk(place: &Path, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            walk(&entry.path(), found);
        } else if kind.is_socket() && UnixStream::connect(entry.path()).is_ok() {
            found.push(entry.path().display().to_string());
        }
    }
}

fn address(text: &str) -> io::Result<SocketAddr> {
    text.parse().map_err(|_| io::Error::other(format!("`{text}` is no address")))
}

/// Encodes a query for an A record.
fn question(name: &str) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(63));
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
    bytes
}

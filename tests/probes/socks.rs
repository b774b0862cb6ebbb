//! The SOCKS5 port as a client sees it, from `ALL_PROXY`.

use std::env;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::proxy::echo_through;
use crate::{ProbeResult, number};

const PATIENCE: Duration = Duration::from_secs(25);

/// Prints the code of the reply: an address is sent as one, anything else as a name.
pub(crate) fn ask(target: &str) -> ProbeResult {
    let (_, code) = send(&request(target)?)?;
    Ok(format!("code {code}"))
}

/// Asks for an address in the form of a name.
pub(crate) fn ask_name(name: &str, port: &str) -> ProbeResult {
    let (_, code) = send(&name_request(name, number(port)?)?)?;
    Ok(format!("code {code}"))
}

/// Sends BIND, UDP ASSOCIATE, or another command by its number.
pub(crate) fn command(number_of: &str) -> ProbeResult {
    let (_, code) = send(&[5, number(number_of)?, 0, 1, 0, 0, 0, 0, 0, 0])?;
    Ok(format!("code {code}"))
}

/// Sends this many bytes and closes its side; all of them must come back, and then the end.
pub(crate) fn echo(target: &str, count: &str) -> ProbeResult {
    echo_through(tunnel(target)?, number(count)?)
}

/// Prints the greeting of a server that speaks first.
pub(crate) fn greeting(target: &str) -> ProbeResult {
    let mut heard = [0; 64];
    let count = tunnel(target)?.read(&mut heard)?;
    Ok(String::from_utf8_lossy(&heard[..count]).trim().into())
}

fn tunnel(target: &str) -> io::Result<TcpStream> {
    match send(&request(target)?)? {
        (stream, 0) => Ok(stream),
        (_, code) => Err(io::Error::other(format!("code {code}"))),
    }
}

fn send(request: &[u8]) -> io::Result<(TcpStream, u8)> {
    let url = env::var("ALL_PROXY").map_err(io::Error::other)?;
    let addr = url.strip_prefix("socks5h://").ok_or(io::ErrorKind::InvalidInput)?;
    let mut stream =
        TcpStream::connect_timeout(&addr.parse::<SocketAddr>().map_err(io::Error::other)?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[5, 1, 0])?;
    let mut method = [0; 2];
    stream.read_exact(&mut method)?;
    if method != [5, 0] {
        return Err(io::Error::other(format!("method {method:?}")));
    }
    stream.write_all(request)?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    Ok((stream, reply[1]))
}

fn request(target: &str) -> io::Result<Vec<u8>> {
    let (host, port) = target.rsplit_once(':').ok_or(io::ErrorKind::InvalidInput)?;
    let port: u16 = number(port)?;
    let octets = match host.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(ip)) => [&[1], &ip.octets()[..]].concat(),
        Ok(IpAddr::V6(ip)) => [&[4], &ip.octets()[..]].concat(),
        Err(_) => return name_request(host, port),
    };
    Ok([&[5, 1, 0], &octets[..], &port.to_be_bytes()].concat())
}

fn name_request(name: &str, port: u16) -> io::Result<Vec<u8>> {
    let length = u8::try_from(name.len()).map_err(io::Error::other)?;
    Ok([&[5, 1, 0, 3, length], name.as_bytes(), &port.to_be_bytes()].concat())
}

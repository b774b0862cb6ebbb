//! Attempts through the proxy: requests that it must refuse, on the port that it serves.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::attempt::{Attempt, Saw, Spec, name, some};
use crate::net::{heard, no_listener};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt::new("denied-name", "a name that no rule allows", &["H15", "D10", "P22"], |spec| {
        refused(spec, "denied-name", &[DENIED.to_owned()])
    }),
    Attempt::new(
        "private-name",
        "an allowed name that leads to the host's loopback",
        &["D01", "B30"],
        |spec| on_canary(spec, "private-name", &["localhost"]),
    )
    .controlled_by(|spec| host_answers(spec, "private-name"))
    .watched(&["tcp4", "tcp6"]),
    Attempt::new("loopback-literal", "loopback addresses, asked of the proxy", &["B30", "D05"], |spec| {
        on_canary(spec, "loopback-literal", &["127.0.0.1", "[::1]", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]"])
    })
    .controlled_by(|spec| host_answers(spec, "loopback-literal"))
    .watched(&["tcp4", "tcp6"]),
    Attempt::new("metadata", "cloud metadata, asked of the proxy", &["D06", "D07"], |spec| {
        refused(spec, "metadata", &METADATA.map(str::to_owned))
    }),
    Attempt::new(
        "server-name",
        "another TLS server name than the host asked for",
        &["T01", "T07"],
        server_name,
    )
    .watched(&["origin4", "origin6"])
    .leaving(OTHER_NAME),
    Attempt::new("bridge-socket", "forged messages to exeat's own socket", &["B25"], |_| bridge_socket()),
];

/// A reserved name, which never exists (RFC 6761).
const DENIED: &str = "exeat-prove.invalid:443";
/// The server name in a ClientHello that the proxy must refuse.
const OTHER_NAME: &str = "other-name.exeat-prove.invalid";
/// The metadata services of clouds in both families. They hand out a machine's credentials.
const METADATA: [&str; 3] = ["169.254.169.254:80", "[fd00:ec2::254]:80", "168.63.129.16:80"];
/// exeat's socket inside (docs/threats.md, B25).
const SOCKET: &str = "/run/exeat/proxy.sock";
/// The longest wait for an answer, which may need a lookup.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connects to the proxy that the environment names.
fn dial() -> io::Result<TcpStream> {
    let url = std::env::var("HTTPS_PROXY").map_err(|_| io::Error::other("HTTPS_PROXY is not set"))?;
    let addr: SocketAddr = url
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .parse()
        .map_err(|_| io::Error::other("HTTPS_PROXY is no address"))?;
    let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends CONNECT, and returns the code of the answer.
fn connect(target: &str) -> io::Result<(u16, TcpStream)> {
    let mut stream = dial()?;
    stream.write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or_else(|| io::Error::other("the proxy's answer is not HTTP"))?, stream))
}

/// Requests targets that the policy must refuse with 400 or 403. Any other answer comes after a lookup or a dial.
fn refused(spec: &Spec, id: &str, targets: &[String]) -> Saw {
    let (mut out, mut refused) = (Vec::new(), Vec::new());
    for target in targets {
        match connect(target) {
            Ok((code @ (400 | 403), _)) => refused.push(code.to_string()),
            Ok((200, stream)) => {
                let _ = heard(stream, spec, id);
                out.push(format!("200 for {target}"));
            }
            Ok((code, _)) => out.push(format!("{code} for {target}")),
            Err(error) => return Saw::NotMade(format!("the proxy does not answer: {}", name(&error))),
        }
    }
    refused.dedup();
    if out.is_empty() { Saw::Refused(refused.join(", ")) } else { Saw::Out(some(&out)) }
}

/// Asks the proxy for hosts that resolve to the listener on the host's loopback.
fn on_canary(spec: &Spec, id: &str, hosts: &[&str]) -> Saw {
    let Some(port) = canary_port(spec) else { return Saw::NotMade(no_listener("4")) };
    let targets: Vec<_> = hosts.iter().map(|host| format!("{host}:{port}")).collect();
    refused(spec, id, &targets)
}

fn canary_port(spec: &Spec) -> Option<u16> {
    spec.sockets.get("tcp4").map(SocketAddr::port)
}

/// Makes the control: the same listener answers on the host.
fn host_answers(spec: &Spec, id: &str) -> Saw {
    let Some(addr) = spec.sockets.get("tcp4") else { return Saw::NotMade(no_listener("4")) };
    match TcpStream::connect_timeout(addr, PATIENCE) {
        Ok(stream) => heard(stream, spec, id),
        Err(error) => Saw::Refused(name(&error)),
    }
}

/// Opens two tunnels to an allowed origin. The right server name must arrive there, and the other one must not.
fn server_name(spec: &Spec) -> Saw {
    let Some(origin) = spec.sockets.get("origin4") else { return Saw::NotMade(no_listener("4")) };
    let target = format!("localhost:{}", origin.port());
    match greet(spec, &target, "localhost") {
        Ok(true) => {}
        Ok(false) => return Saw::NotMade("the right name did not reach the origin either".into()),
        Err(why) => return Saw::NotMade(format!("the right name did not reach the origin either: {why}")),
    }
    match greet(spec, &target, OTHER_NAME) {
        Ok(true) => Saw::Out("the origin answered to another name".into()),
        Ok(false) => Saw::Refused("closed".into()),
        Err(why) => Saw::Refused(why),
    }
}

/// Opens a tunnel and sends a ClientHello with a server name. Returns whether the origin answered.
fn greet(spec: &Spec, target: &str, server_name: &str) -> Result<bool, String> {
    let (code, mut stream) = connect(target).map_err(|error| name(&error))?;
    if code != 200 {
        return Err(format!("{code} for {target}"));
    }
    let mut exchange = || -> io::Result<Vec<u8>> {
        stream.write_all(&hello(server_name))?;
        let mut said = Vec::new();
        Read::by_ref(&mut stream).take(256).read_to_end(&mut said)?;
        Ok(said)
    };
    match exchange() {
        Ok(said) => Ok(String::from_utf8_lossy(&said).contains(&spec.token)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
        Err(error) => Err(name(&error)),
    }
}

/// Encodes a ClientHello with a server name (RFC 8446, section 4.1.2; RFC 6066, section 3).
fn hello(server_name: &str) -> Vec<u8> {
    let name = with_length(server_name.as_bytes(), 2);
    let extensions = [
        extension(0, &with_length(&[&[0], &name[..]].concat(), 2)), // server_name
        extension(10, &with_length(&[0x00, 0x1d], 2)),              // supported_groups: x25519
        extension(13, &with_length(&[0x04, 0x03, 0x08, 0x04], 2)),  // signature_algorithms
        extension(43, &with_length(&[0x03, 0x04, 0x03, 0x03], 1)),  // supported_versions: 1.3, 1.2
        extension(51, &with_length(&[], 2)),                        // key_share: none
    ]
    .concat();
    let body = [
        &[0x03, 0x03][..],                                                  // legacy_version
        &[0x65; 32],                                                        // random
        &[0],                                                               // legacy_session_id
        &with_length(&[0x13, 0x01, 0x13, 0x02, 0xc0, 0x2b, 0xc0, 0x2f], 2), // cipher_suites
        &[1, 0],                                                            // legacy_compression_methods
        &with_length(&extensions, 2),
    ]
    .concat();
    let message = [&[1][..], &with_length(&body, 3)].concat();
    [&[22, 0x03, 0x01][..], &with_length(&message, 2)].concat()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &with_length(body, 2)].concat()
}

/// Prefixes bytes with their length, which is `width` bytes long.
fn with_length(bytes: &[u8], width: usize) -> Vec<u8> {
    let length = bytes.len().to_be_bytes();
    [length.get(length.len().saturating_sub(width)..).unwrap_or(&length), bytes].concat()
}

/// Sends messages that only stage2 and the host side may send, and a request that no rule allows. The socket must be dead, or
/// be served like the port of the proxy.
fn bridge_socket() -> Saw {
    // Length, tag and fields: crates/contract/src/message.rs.
    let hello: &[u8] = &[3, 0, 0, 0, 1, 0x39, 0x30];
    let failed: &[u8] = &[6, 0, 0, 0, 4, 1, 1, 0, 0, 0];
    let go: &[u8] = &[5, 0, 0, 0, 2, 0, 0, 0, 0];
    let request = format!("CONNECT {DENIED} HTTP/1.1\r\nHost: {DENIED}\r\n\r\n");
    if !Path::new(SOCKET).exists() {
        return Saw::NotMade(format!("there is no {SOCKET}"));
    }
    let mut seen = Vec::new();
    for forged in [hello, failed, go, request.as_bytes()] {
        match speak(forged) {
            Ok(said) if said.starts_with(b"HTTP/1.1 4") => {
                seen.push("refused as a client's bytes".to_owned())
            }
            Ok(said) if said.is_empty() => seen.push("closed".into()),
            Ok(said) => return Saw::Out(format!("an answer of {} bytes", said.len())),
            Err(error) => seen.push(name(&error)),
        }
    }
    seen.dedup();
    Saw::Refused(some(&seen))
}

fn speak(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(SOCKET)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(bytes)?;
    // A server that waits for more bytes gets the end of the stream instead.
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut said = Vec::new();
    stream.take(4096).read_to_end(&mut said)?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_has_its_lengths() {
        let hello = hello("a.example");
        assert_eq!(usize::from(u16::from_be_bytes([hello[3], hello[4]])), hello.len() - 5);
        assert_eq!(usize::from(u16::from_be_bytes([hello[7], hello[8]])), hello.len() - 9);
        assert!(hello.windows(9).any(|window| window == b"a.example"));
    }
}

//! Ways through the gateway: its name server, and the addresses that it gives.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream};

use crate::attempt::{Attempt, Saw, name, several, some};
use crate::net::{NAME_SERVER, PATIENCE, Reply, ask_tcp, ask_udp};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt::new(
        "gateway-name",
        "a name that no rule allows, asked of the sandbox's name server",
        &["D10", "D11"],
        |_| questions(&[(DENIED.into(), A), (DENIED.into(), AAAA)]),
    ),
    Attempt::new("gateway-port", "a granted name, on a port that is not", &["H18", "P24"], |_| other_port()),
    Attempt::new("dns-tunnel", "data in questions for names", &["D11", "X04"], |_| {
        let data = |kind| (format!("{DATA}.{DENIED}"), kind);
        questions(&[data(TXT), data(A), data(NULL), (format!("{DATA}.{DATA}"), MX)])
    }),
];

/// The one name that a proof's run allows on port 443. Nobody connects to it. Reserved: it exists nowhere (RFC 6761).
pub(super) const GRANTED: &str = "granted.exeat-gateway.invalid";
/// Reserved as well.
const DENIED: &str = "denied.exeat-gateway.invalid";
/// The payload of a DNS tunnel.
const DATA: &str = "a2v5cyB0byB0aGUga2luZ2RvbQ";
/// A port on which the name is not granted.
const OTHER: u16 = 8443;

/// Types of records (RFC 1035, section 3.2.2, and RFC 3596).
const A: u16 = 1;
const AAAA: u16 = 28;
const TXT: u16 = 16;
const NULL: u16 = 10;
const MX: u16 = 15;

/// Asks each question over UDP and TCP. An answer with a record in it is a way out.
fn questions(all: &[(String, u16)]) -> Saw {
    let (mut out, mut refused) = (Vec::new(), BTreeSet::new());
    for (asked, kind) in all {
        for ask in [ask_udp, ask_tcp] {
            match ask(NAME_SERVER, asked, *kind) {
                Ok(Reply { records: 0, code }) => drop(refused.insert(code.to_owned())),
                Ok(_) => out.push(format!("an answer for {asked}")),
                Err(error) => drop(refused.insert(name(&error))),
            }
        }
    }
    let refused: Vec<String> = refused.into_iter().collect();
    if out.is_empty() { Saw::Refused(refused.join(", ")) } else { Saw::Out(some(&out)) }
}

/// Connects to the name's addresses on another port.
fn other_port() -> Saw {
    let addresses: Vec<IpAddr> = std::net::ToSocketAddrs::to_socket_addrs(&(GRANTED, OTHER))
        .map(|all| all.map(|addr| addr.ip()).collect())
        .unwrap_or_default();
    if addresses.is_empty() {
        return Saw::NotMade("there is no gateway".into());
    }
    several(addresses.into_iter().map(|ip| {
        let to = SocketAddr::new(ip, OTHER);
        (format!("connected to {to}"), TcpStream::connect_timeout(&to, PATIENCE))
    }))
}

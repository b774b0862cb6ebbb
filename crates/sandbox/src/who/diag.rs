//! Asks the kernel for the inode of one TCP socket (sock_diag(7)). Each question has one answer, however many sockets there are: it
//! never asks for a list.
//!
//! The answers are checked although they are the kernel's: for their length, and that they describe this socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{MsgFlags, NetlinkAddr, recvfrom, send};

/// SOCK_DIAG_BY_FAMILY (include/uapi/linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST (netlink(7)). Without NLM_F_DUMP, the kernel sends exactly one answer.
const REQUEST: u16 = 1;
const TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// TCP_LISTEN (include/net/tcp_states.h): the kernel answers with the listener if no connection matches.
const LISTEN: u8 = 10;

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct inet_diag_sockid`.
const ID: usize = 48;
/// The header and `struct inet_diag_req_v2`.
const QUESTION: usize = HEADER + 8 + ID;
/// The header and `struct inet_diag_msg`.
const ANSWER: usize = HEADER + 4 + ID + 20;

/// Most answers to read for one question: unread answers to earlier questions come first.
const ANSWERS: usize = 8;

/// A socket on which the kernel answers about the network namespace that it was made in.
#[derive(Debug)]
pub(super) struct Diag {
    socket: OwnedFd,
    questions: u32,
}

impl Diag {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, questions: 0 }
    }

    /// Returns the inode of the socket at `of` that is connected to `to`, or `None` if no process has it.
    pub(super) fn inode(&mut self, of: SocketAddr, to: SocketAddr) -> Option<u32> {
        self.questions = self.questions.wrapping_add(1);
        let question = question(self.questions, of, to)?;
        let fd = self.socket.as_raw_fd();
        send(fd, &question, MsgFlags::MSG_DONTWAIT).ok()?;
        let mut bytes = [0; 512];
        // The kernel has already answered when `send` returns.
        for _ in 0..ANSWERS {
            let (count, from) = recvfrom::<NetlinkAddr>(fd, &mut bytes).ok()?;
            if from.is_none_or(|from| from.pid() != 0) {
                continue;
            }
            match answer(bytes.get(..count)?, self.questions, of, to) {
                Answer::Unrelated => {}
                Answer::NoSocket => return None,
                Answer::Inode(inode) => return Some(inode),
            }
        }
        None
    }
}

/// The meaning of one message.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The message answers another question.
    Unrelated,
    /// A socket with these addresses belongs to no process.
    NoSocket,
    Inode(u32),
}

/// Encodes a question, or `None` for addresses of two families.
fn question(number: u32, of: SocketAddr, to: SocketAddr) -> Option<[u8; QUESTION]> {
    let family = match (of.ip(), to.ip()) {
        (IpAddr::V4(_), IpAddr::V4(_)) => AF_INET,
        (IpAddr::V6(_), IpAddr::V6(_)) => AF_INET6,
        _ => return None,
    };
    let mut bytes = Vec::with_capacity(QUESTION);
    bytes.extend(u32::try_from(QUESTION).ok()?.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend([0; 4]); // port: the kernel's
    bytes.extend([family, TCP, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes()); // states
    bytes.extend(of.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    for ip in [of.ip(), to.ip()] {
        let mut place = [0; 16];
        let octets: &[u8] = match &ip {
            IpAddr::V4(ip) => &ip.octets(),
            IpAddr::V6(ip) => &ip.octets(),
        };
        place.iter_mut().zip(octets).for_each(|(place, octet)| *place = *octet);
        bytes.extend(place);
    }
    bytes.extend([0; 4]); // interface: any
    bytes.extend([0xff; 8]); // INET_DIAG_NOCOOKIE
    bytes.try_into().ok()
}

/// Reads the state, the addresses and the inode of a `struct inet_diag_msg`.
fn answer(bytes: &[u8], number: u32, of: SocketAddr, to: SocketAddr) -> Answer {
    let at = |from: usize| bytes.get(from..from + 4)?.try_into().ok().map(u32::from_ne_bytes);
    if at(8) != Some(number) {
        return Answer::Unrelated;
    }
    let kind = bytes.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    let whole = bytes.len() >= ANSWER && at(0).is_some_and(|length| length as usize >= ANSWER);
    if kind != Some(BY_FAMILY) || !whole {
        return Answer::NoSocket;
    }
    let family = bytes.get(HEADER).copied();
    let port = |from: usize| bytes.get(from..from + 2)?.try_into().ok().map(u16::from_be_bytes);
    let ip = |from: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = bytes.get(from..from + 16)?.try_into().ok()?;
        match family {
            Some(AF_INET) => Some(Ipv4Addr::from(<[u8; 4]>::try_from(octets.get(..4)?).ok()?).into()),
            // A client may reach an IPv4 address with an IPv6 socket.
            Some(AF_INET6) => Some(Ipv6Addr::from(octets).to_canonical()),
            _ => None,
        }
    };
    const PORTS: usize = HEADER + 4;
    let same =
        [(of, PORTS, PORTS + 4), (to, PORTS + 2, PORTS + 20)].iter().all(|(expected, at_port, at_ip)| {
            port(*at_port) == Some(expected.port()) && ip(*at_ip) == Some(expected.ip().to_canonical())
        });
    let state = bytes.get(HEADER + 1);
    match at(ANSWER - 4) {
        Some(inode) if inode != 0 && same && state.is_some_and(|&state| state != LISTEN) => {
            Answer::Inode(inode)
        }
        _ => Answer::NoSocket,
    }
}

#[cfg(test)]
mod tests;

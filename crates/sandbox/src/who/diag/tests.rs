#![expect(clippy::disallowed_methods, reason = "connects to itself")]

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::*;

/// Opens a socket that asks about this machine's network.
fn diag() -> Diag {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let made = socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkSockDiag);
    Diag::new(made.unwrap())
}

fn inode(of: impl AsFd) -> u32 {
    let file = std::fs::File::from(of.as_fd().try_clone_to_owned().unwrap());
    u32::try_from(file.metadata().unwrap().ino()).unwrap()
}

/// The client's end is distinguished from the server's end and from the listener, in both families.
#[test]
fn the_socket_of_a_connection_is_found() {
    let mut diag = diag();
    for place in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(place).unwrap();
        let server = listener.local_addr().unwrap();
        let client = TcpStream::connect(server).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(diag.inode(peer, server), Some(inode(&client)));
        assert_eq!(diag.inode(server, peer), Some(inode(&accepted)));
        // The client's end is closed or never existed; the listener does not count.
        drop(client);
        assert_eq!(diag.inode(peer, server), None);
        let nobody = SocketAddr::new(server.ip(), 9);
        assert_eq!(diag.inode(server, nobody), None, "{server} listens");
    }
    let (v4, v6) = ("127.0.0.1:1".parse().unwrap(), "[::1]:1".parse().unwrap());
    assert_eq!(diag.inode(v4, v6), None);
}

/// A client reaches an IPv4 address with an IPv6 socket.
#[test]
fn a_mapped_address_is_found() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let mapped = format!("[::ffff:127.0.0.1]:{}", server.port());
    let Ok(client) = TcpStream::connect(mapped) else {
        return assert!(std::env::var_os("E2E_STRICT").is_none(), "this machine has no IPv6");
    };
    let (_accepted, peer) = listener.accept().unwrap();
    assert_eq!(diag().inode(peer, server), Some(inode(&client)));
}

/// Lays out an answer as the kernel does.
fn answer_to(question: &[u8; QUESTION], state: u8, inode: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(u32::try_from(ANSWER).unwrap().to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(&question[8..12]);
    bytes.extend([0; 4]);
    bytes.extend([2, state, 0, 0]);
    bytes.extend(&question[HEADER + 8..]);
    bytes.extend([0; 16]);
    bytes.extend(inode.to_ne_bytes());
    bytes
}

#[test]
fn an_answer_is_taken_whole_and_of_that_socket_alone() {
    let (of, to) = ("127.0.0.1:4000".parse().unwrap(), "127.0.0.1:3128".parse().unwrap());
    let asked = question(7, of, to).unwrap();
    assert_eq!(
        (asked.len(), &asked[16..18], &asked[24..28]),
        (72, &[2, 6][..], &[0x0f, 0xa0, 0x0c, 0x38][..])
    );
    let whole = answer_to(&asked, 1, 99);
    assert_eq!((whole.len(), answer(&whole, 7, of, to)), (88, Answer::Inode(99)));
    assert_eq!(answer(&whole, 8, of, to), Answer::Unrelated);
    for (state, inode) in [(LISTEN, 99), (1, 0)] {
        assert_eq!(answer(&answer_to(&asked, state, inode), 7, of, to), Answer::NoSocket, "{state} {inode}");
    }
    // Cut short anywhere.
    for length in 0..whole.len() {
        assert!(!matches!(answer(&whole[..length], 7, of, to), Answer::Inode(_)), "{length}");
    }
    // Answers about another socket: each byte of the ports, the addresses, the kind and the family counts.
    for at in (20..28).chain(40..44).chain([4, 5, 16]) {
        let mut other = whole.clone();
        other[at] ^= 1;
        assert_eq!(answer(&other, 7, of, to), Answer::NoSocket, "{at}");
    }
    // An IPv6 socket connected to the same IPv4 address.
    let mut mapped = whole.clone();
    mapped[16] = 10;
    for at in [24, 40] {
        let v4: [u8; 4] = mapped[at..at + 4].try_into().unwrap();
        mapped[at..at + 16].copy_from_slice(&Ipv4Addr::from(v4).to_ipv6_mapped().octets());
    }
    assert_eq!(answer(&mapped, 7, of, to), Answer::Inode(99));
    // A length that is too small, and the kernel's error message.
    let mut short = whole.clone();
    short[..4].copy_from_slice(&20_u32.to_ne_bytes());
    assert_eq!(answer(&short, 7, of, to), Answer::NoSocket);
    let mut error = whole;
    error[4..6].copy_from_slice(&2_u16.to_ne_bytes());
    assert_eq!(answer(&error, 7, of, to), Answer::NoSocket);
}

/// Unread answers to earlier questions are skipped.
#[test]
fn an_old_answer_is_none_to_a_new_question() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let client = TcpStream::connect(server).unwrap();
    let (_accepted, peer) = listener.accept().unwrap();
    let mut diag = diag();
    for number in [1000, 1001] {
        let old = question(number, server, peer).unwrap();
        send(diag.socket.as_raw_fd(), &old, MsgFlags::empty()).unwrap();
    }
    assert_eq!(diag.inode(peer, server), Some(inode(&client)));
    // A descriptor that is not a socket.
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(Diag::new(reader.into()).inode(peer, server), None);
}

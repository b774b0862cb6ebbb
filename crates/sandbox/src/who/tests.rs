#![expect(clippy::disallowed_methods, reason = "connects to itself")]

use std::net::{TcpListener, TcpStream};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::*;

/// Treats this machine as a sandbox, in the pid namespace of the tests.
fn finder() -> Finder {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let diag =
        socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkSockDiag).unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    Finder::new(diag, Meter::open(own, &[]).unwrap(), Identity::Caller)
}

/// Connects to itself. Returns the listener, the client's end, the accepted end, and both addresses as the server sees them.
fn connection() -> (TcpListener, TcpStream, TcpStream, SocketAddr, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let client = TcpStream::connect(server).unwrap();
    let (accepted, peer) = listener.accept().unwrap();
    (listener, client, accepted, peer, server)
}

const LONG: Duration = Duration::from_secs(10);

#[test]
fn the_process_is_found_and_found_again() {
    let mut finder = finder();
    for _ in 0..3 {
        let (_listener, _client, _accepted, peer, server) = connection();
        let found = finder.find(peer, server, LONG).unwrap();
        assert_eq!(found.pid, std::process::id());
        assert_eq!(found.ppid, Some(std::os::unix::process::parent_id()));
        assert_eq!(found.exe, std::env::current_exe().ok());
    }
    let (_listener, client, _accepted, peer, server) = connection();
    drop(client);
    assert_eq!(finder.find(peer, server, LONG), None, "nobody has it");
}

#[test]
fn without_processor_time_nothing_is_read() {
    let (_listener, _client, _accepted, peer, server) = connection();
    let mut finder = finder();
    assert_eq!(finder.find(peer, server, Duration::ZERO), None);
    assert!(finder.find(peer, server, LONG).is_some());
}

/// R01: thousands of descriptors take only the time given, and a second connection of the same process is found at once.
#[test]
fn r01_searches_a_crowd_of_descriptors_within_the_time_given() {
    let files: Vec<_> = (0..900).map_while(|_| std::fs::File::open("/dev/null").ok()).collect();
    assert!(files.len() > 500, "{}", files.len());
    let mut finder = finder();
    let (_listener, client, _accepted, peer, server) = connection();
    // Place it after the crowd: another test may have closed a low number.
    let _client = fcntl(&client, FcntlArg::F_DUPFD_CLOEXEC(500)).unwrap();
    drop(client);
    let mut took = |longest| {
        let start = cpu_time();
        let found = finder.find(peer, server, longest);
        (found.is_some(), cpu_time().saturating_sub(start))
    };
    let (found, short) = took(Duration::from_micros(50));
    assert!(!found && short < Duration::from_millis(20), "{short:?}");
    let (found, long) = took(LONG);
    assert!(found, "{long:?}");
    let (found, again) = took(Duration::from_micros(500));
    assert!(found && again < long, "{again:?} after {long:?}");
}

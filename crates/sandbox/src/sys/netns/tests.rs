use std::net::{Ipv6Addr, TcpStream};
use std::os::fd::FromRawFd;
use std::time::Duration;

use super::*;

/// Runs `body` in a thread with an empty network namespace, with a sandbox's routes and taps. Threads of an ordinary user may not make
/// one, so the test runs again in a user namespace.
fn in_network(body: impl FnOnce(Vec<Packets>) + Send + 'static) {
    in_network_after(|| {}, body);
}

/// Runs `before` in the namespace before the routes are made.
fn in_network_after(
    before: impl FnOnce() + Send + 'static,
    body: impl FnOnce(Vec<Packets>) + Send + 'static,
) {
    let body = || {
        // SAFETY: takes a number; only this thread changes its namespace.
        let unshared = Errno::result(unsafe { libc::unshare(libc::CLONE_NEWNET) });
        if unshared == Err(Errno::EPERM) && std::env::var_os(AGAIN).is_none() {
            return false;
        }
        unshared.unwrap();
        before();
        // SAFETY: live locals of the lengths given; `SIOCSIFFLAGS` with `IFF_UP` brings the loopback up (netdevice(7)). Nothing
        // else owns the descriptors that `tap` returns.
        let taps = unsafe {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            let mut request: libc::ifreq = mem::zeroed();
            request.ifr_name[0] = b'l' as libc::c_char;
            request.ifr_name[1] = b'o' as libc::c_char;
            request.ifr_ifru.ifru_flags = 1;
            Errno::result(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)).unwrap();
            routes().unwrap();
            let taps = KINDS.map(|kind| (OwnedFd::from_raw_fd(tap(kind).unwrap()), kind));
            taps.map(|(socket, kind)| Packets { socket, kind, missed: AtomicU32::new(0) })
        };
        body(taps.into());
        true
    };
    if !std::thread::spawn(body).join().unwrap() {
        run_in_user_namespace();
    }
}

/// Set in the process that runs a test again.
const AGAIN: &str = "EXEAT_TEST_IN_A_USER_NAMESPACE";

/// Runs this test again as root of a user namespace.
#[expect(clippy::disallowed_methods, reason = "a test that starts itself")]
fn run_in_user_namespace() {
    let this = std::thread::current();
    let mut again = std::process::Command::new("unshare");
    again.args(["--user", "--map-root-user"]).arg(std::env::current_exe().unwrap());
    again.args(["--exact", this.name().unwrap()]).env(AGAIN, "1");
    assert!(again.status().unwrap().success());
}

fn drained(tap: &Packets) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut packet = [0; 256];
    while let Ok(count) = tap.read(&mut packet) {
        all.push(packet[..count].to_vec());
    }
    all
}

/// D11, D16: an attempt is refused at once and seen once, with its destination.
#[test]
fn d11_refuses_and_sees_attempts_but_no_local_traffic() {
    in_network(|taps| {
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
        let places: [(IpAddr, usize); 2] = [([198, 51, 100, 7].into(), 0), (v6.into(), 2)];
        for (ip, first) in places {
            let to = SocketAddr::new(ip, 443);
            let refused = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let any = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(to).unwrap();
            socket.send(b"out").unwrap();
            assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            for (tap, protocol) in taps.iter().skip(first).zip([TCP, UDP]) {
                let seen = drained(tap);
                assert_eq!(seen.len(), 1, "{ip} {protocol}: {seen:?}");
                let packet = &seen[0];
                let (header, at, to): (usize, usize, Vec<u8>) = match ip {
                    IpAddr::V4(ip) => (20, 9, ip.octets().into()),
                    IpAddr::V6(ip) => (HEADER, 6, ip.octets().into()),
                };
                assert_eq!((packet[at], &packet[header - to.len()..header]), (protocol, &to[..]));
                assert_eq!(packet[header + 2..header + 4], 443_u16.to_be_bytes());
            }
        }
        // An established connection, and the loopback's own traffic.
        for place in ["127.0.0.1:0", "[::1]:0", "198.51.100.8:0"] {
            let listener = if place.starts_with('1') && !place.starts_with("127") {
                let ask = Ask::new(place.parse().unwrap());
                // SAFETY: nothing else owns it.
                TcpListener::from(unsafe { OwnedFd::from_raw_fd(listener(&ask).unwrap()) })
            } else {
                TcpListener::bind(place).unwrap()
            };
            let to = listener.local_addr().unwrap();
            let mut client = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
            std::io::Write::write_all(&mut client, &[7; 10_000]).unwrap_or_default();
        }
        let counts: Vec<usize> = taps.iter().map(|tap| drained(tap).len()).collect();
        assert_eq!(counts, [1, 0, 0, 0], "the one to the address that is not the loopback's");
    });
}

/// Makes a helper whose answers this thread writes, or nobody.
fn inside(pid: libc::pid_t) -> (InsideNetwork, UnixStream) {
    let (helper, its) = Helper::played(pid);
    (InsideNetwork(Arc::new(helper)), its)
}

/// R01: after a moment without free descriptors, the next request works.
#[test]
fn r01_answers_again_after_a_shortage_of_descriptors() {
    // SAFETY: the child only ends, which is allowed after fork(2).
    let pid = match unsafe { libc::fork() } {
        // SAFETY: ends the child.
        0 => unsafe { libc::_exit(0) },
        pid => pid,
    };
    let (inside, its) = inside(pid);
    let file = std::fs::File::open("/dev/null").unwrap();
    // One descriptor too many; the kernel reports this like having no free descriptor.
    for fds in [&[file.as_fd(); 3][..], &[file.as_fd()]] {
        crate::sys::send_with_descriptors(its.as_fd(), &0_i32.to_ne_bytes(), fds).unwrap();
    }
    let at = "127.0.0.1:1".parse().unwrap();
    assert_eq!(inside.listen(at).unwrap_err().raw_os_error(), Some(libc::EMFILE));
    inside.listen(at).unwrap();
}

/// Ending a helper that somebody stopped does not wait for it to continue.
#[test]
fn a_process_that_is_stopped_is_ended() {
    // SAFETY: the child makes system calls only.
    let pid = match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: takes a number.
            unsafe { libc::raise(libc::SIGSTOP) };
        },
        pid => pid,
    };
    let (inside, _its) = inside(pid);
    drop(inside);
    // It may be reaped already.
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let is_over = || stat().map_or(true, |stat| stat.contains(") Z "));
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !is_over() && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(is_over());
}

/// With IPv6 turned off, IPv4 still has its routes.
#[test]
fn without_ipv6_there_are_routes_for_ipv4() {
    let off = || {
        for which in ["all", "default", "lo"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            std::fs::write(path, "1").unwrap();
        }
    };
    in_network_after(off, |_| {
        let places: [SocketAddr; 2] =
            ["198.51.100.7:443".parse().unwrap(), "[2001:db8::7]:443".parse().unwrap()];
        let [v4, v6] = places.map(|to| TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap_err());
        assert_eq!(v4.kind(), io::ErrorKind::ConnectionRefused);
        assert!(v6.kind() != io::ErrorKind::TimedOut, "{v6}");
    });
}

/// A08: the packets that a tap misses are counted exactly, once.
#[test]
fn a08_missed_packets_are_counted() {
    const SENT: usize = 5000;
    in_network(|taps| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // Not connected, so that the socket reports no refusal.
        (0..SENT).for_each(|_| drop(socket.send_to(b"x", "198.51.100.7:9")));
        let tap = &taps[1];
        let read = drained(tap).len();
        let missed = usize::try_from(tap.count_missed().unwrap()).unwrap();
        assert!(read > 0 && missed > 0, "{read} {missed}");
        assert_eq!(read + missed, SENT);
        assert_eq!(tap.count_missed().unwrap(), 0, "each was counted already");
    });
}

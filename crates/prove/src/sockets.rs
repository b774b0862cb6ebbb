//! Attempts on sockets other than those of the Internet: Unix sockets of the host and of other runs, and other families.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::sys;
use nix::libc;

use crate::attempt::{Attempt, Other, Saw, Spec, answer, several};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt::new("unix-tmp", "a host socket in /tmp", &["B01", "B02"], |spec| by_path(spec, "unix-tmp"))
        .controlled()
        .watched(&["unix-tmp"]),
    Attempt::new("unix-runtime", "a host socket in the runtime directory", &["B01", "B02", "B31"], |spec| {
        by_path(spec, "unix-runtime")
    })
    .controlled()
    .watched(&["unix-runtime"]),
    Attempt::new("unix-home", "a host socket in the home directory", &["B01", "B02"], |spec| {
        by_path(spec, "unix-home")
    })
    .controlled()
    .watched(&["unix-home"]),
    Attempt::new("unix-workdir", "a host socket in the working directory", &["B01", "B02"], |spec| {
        by_path(spec, "unix-workdir")
    })
    .controlled()
    .watched(&["unix-workdir"]),
    Attempt::new("abstract", "a host socket without a file", &["B03"], abstract_socket)
        .controlled()
        .watched(&["abstract"]),
    Attempt::new("other-run", "sockets and files of another run", &["B26"], other_run).beside_another_run(),
    Attempt::new("vsock", "vsock, which has no namespace", &["B04"], |_| {
        answer(sys::socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0), "a vsock socket")
    })
    .controlled_by(|_| has_vsock()),
    Attempt::new("families", "sockets of other families", &["B05"], |_| families()),
    Attempt::new("netlink", "netlink but for routes", &["B05"], |_| netlink(1..=22))
        .controlled_by(|_| netlink(GENERIC..=GENERIC)),
    Attempt::new("io-uring", "io_uring, past every filter", &["B06"], |_| answer(sys::io_uring(), "a ring"))
        .controlled(),
];

const PATIENCE: Duration = Duration::from_millis(700);

fn by_path(spec: &Spec, canary: &str) -> Saw {
    let Some(path) = spec.paths.get(canary) else {
        return Saw::NotMade("no such directory, or no socket can be made in it".into());
    };
    let mut datagram = path.clone().into_os_string();
    datagram.push(".d");
    let datagrams = UnixDatagram::unbound()
        .and_then(|socket| socket.send_to(canary.as_bytes(), Path::new(&datagram)).map(drop));
    let stream = UnixStream::connect(path).and_then(|mut stream| stream.write_all(canary.as_bytes()));
    several([("stream".into(), stream), ("datagram".into(), datagrams)])
}

fn abstract_socket(spec: &Spec) -> Saw {
    match &spec.abstract_name {
        Some(name) => answer(say_to(name, "abstract"), "connected"),
        None => Saw::NotMade("no such socket can be made".into()),
    }
}

fn say_to(abstract_name: &str, id: &str) -> io::Result<()> {
    let addr = unix::SocketAddr::from_abstract_name(abstract_name)?;
    UnixStream::connect_addr(&addr)?.write_all(id.as_bytes())
}

/// Connects to the stage of another run, which listens on its loopback and on an abstract name, and has reached both itself.
fn other_run(spec: &Spec) -> Saw {
    let Some(other) = &spec.other else { return Saw::NotMade("no other run could be started".into()) };
    let port = SocketAddr::from((Ipv4Addr::LOCALHOST, other.port));
    let mut calls = vec![("its loopback".to_owned(), TcpStream::connect_timeout(&port, PATIENCE).map(drop))];
    if !other.abstract_name.is_empty() {
        calls.push(("its abstract socket".to_owned(), say_to(&other.abstract_name, "other-run")));
    }
    for path in &other.paths {
        let reached = std::fs::metadata(path).map(drop).and_then(|()| enter(path));
        calls.push((path.display().to_string(), reached));
    }
    several(calls)
}

/// Connects to a socket, lists a directory, or opens a file.
fn enter(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return std::fs::read_dir(path).map(drop);
    }
    UnixStream::connect(path).map(drop).or_else(|_| std::fs::File::open(path).map(drop))
}

/// Runs the stage of the other run: listens, shows that it can be reached, prints its addresses, and waits for the end of its input.
pub(super) fn stand_by(token: &str) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    TcpStream::connect_timeout(&addr, PATIENCE)?;
    let mut name = format!("{token}-other");
    let unix = UnixListener::bind_addr(&unix::SocketAddr::from_abstract_name(&name)?);
    // A stage gets no Unix sockets if its view may contain host sockets.
    if unix.is_err() || say_to(&name, "itself").is_err() {
        name.clear();
    }
    let other = Other { port: addr.port(), abstract_name: name, paths: Vec::new() };
    let mut line = serde_json::to_vec(&other)?;
    line.push(b'\n');
    io::stdout().lock().write_all(&line)?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Looks for vsock without creating a socket. Creating one would make the kernel load a module, and the control must not change
/// the host.
fn has_vsock() -> Saw {
    let protocols = std::fs::read_to_string("/proc/net/protocols").unwrap_or_default();
    if Path::new("/dev/vsock").exists() || protocols.lines().any(|line| line.starts_with("AF_VSOCK")) {
        Saw::Out("this kernel has vsock".into())
    } else {
        Saw::NotMade("no vsock in this kernel".into())
    }
}

/// Tries every family except Unix, IPv4, IPv6, netlink, and vsock, which has a separate attempt (linux/socket.h).
fn families() -> Saw {
    const LAST: i32 = 45;
    let of_stage = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_VSOCK];
    let kinds = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET];
    let families = (0..=LAST).filter(|family| !of_stage.contains(family));
    let seen = several(families.map(|family| {
        let made = kinds.iter().map(|kind| sys::socket(family, *kind, 0));
        // Keep the most telling answer: a family of the kernel also refuses socket types that it lacks.
        let made = made.fold(None, |best: Option<io::Result<()>>, next| match best {
            Some(Ok(())) => best,
            _ => Some(next),
        });
        (format!("family {family}"), made.unwrap_or(Ok(())))
    }));
    match seen {
        // A filter would give another answer.
        Saw::Refused(all) if all.ends_with(" x EAFNOSUPPORT") && !all.contains(',') => {
            Saw::NotMade("no such family in this kernel".into())
        }
        seen => seen,
    }
}

/// Generic netlink, which every kernel with netlink has built in.
const GENERIC: i32 = 16;

/// Opens netlink sockets of all protocols except 0, for routes, with which a stage queries its own namespace (linux/netlink.h).
fn netlink(protocols: std::ops::RangeInclusive<i32>) -> Saw {
    several(protocols.map(|protocol| {
        (format!("protocol {protocol}"), sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol))
    }))
}

//! Gives another program sockets as standard streams.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, UnixAddr, bind, connect, listen, socket,
    socketpair,
};
use nix::sys::stat::Mode;

use crate::{ProbeResult, check, number};

/// Becomes a command that has a socket of this kind as one of its standard streams.
pub(crate) fn with_stream(kind: &str, stream: &str, command: &[&str]) -> ProbeResult {
    let socket = socket_of(kind)?;
    // SAFETY: takes numbers only; the copy is for the program that this process becomes.
    check(unsafe { libc::dup2(socket.as_raw_fd(), number(stream)?) }.into())?;
    let (name, words) = command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    Err(Command::new(name).args(words).exec())
}

fn socket_of(kind: &str) -> std::io::Result<OwnedFd> {
    let unix = |kind| socket(AddressFamily::Unix, kind, SockFlag::empty(), None);
    let pair = |kind| socketpair(AddressFamily::Unix, kind, None, SockFlag::empty());
    // A unique name among the trials.
    let name = UnixAddr::new_abstract(format!("exeat-probe-{}", std::process::id()).as_bytes())?;
    let listener = |kind| {
        let listener = unix(kind)?;
        bind(listener.as_raw_fd(), &name)?;
        listen(&listener, Backlog::new(1)?)?;
        Ok::<_, nix::Error>(listener)
    };
    Ok(match kind {
        "unconnected" => unix(SockType::Stream)?,
        "bound" => {
            let bound = unix(SockType::Stream)?;
            bind(bound.as_raw_fd(), &name)?;
            bound
        }
        "listener" => listener(SockType::Stream)?,
        "listener-in-a-file" => {
            let path = std::env::current_dir()?.join("listener");
            let listener = unix(SockType::Stream)?;
            bind(listener.as_raw_fd(), &UnixAddr::new(&path)?)?;
            listen(&listener, Backlog::new(1)?)?;
            listener
        }
        "path" => open(".", OFlag::O_PATH, Mode::empty())?,
        "path-of-a-file" => open("/proc/self/exe", OFlag::O_PATH, Mode::empty())?,
        "packets" => unix(SockType::SeqPacket)?,
        "packets-listener" => listener(SockType::SeqPacket)?,
        "packets-pair" => pair(SockType::SeqPacket)?.0,
        "datagrams" => unix(SockType::Datagram)?,
        "datagram-pair" => pair(SockType::Datagram)?.0,
        "tcp" => socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?,
        "udp" => socket(AddressFamily::Inet6, SockType::Datagram, SockFlag::empty(), None)?,
        "netlink" => {
            let protocol = Some(SockProtocol::NetlinkRoute);
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::empty(), protocol)?
        }
        "vsock" => socket(AddressFamily::Vsock, SockType::Stream, SockFlag::empty(), None)?,
        "alg" => socket(AddressFamily::Alg, SockType::SeqPacket, SockFlag::empty(), None)?,
        // Pure byte streams.
        "pair" => {
            let (ours, theirs) = pair(SockType::Stream)?;
            std::mem::forget(theirs);
            ours
        }
        "pair-without-peer" => pair(SockType::Stream)?.0,
        "connected" => {
            let listener = listener(SockType::Stream)?;
            let client = UnixStream::from(unix(SockType::Stream)?);
            connect(client.as_raw_fd(), &name)?;
            std::mem::forget(listener);
            client.into()
        }
        other => return Err(std::io::Error::other(format!("no such kind of socket: {other}"))),
    })
}

//! The relay: a process that stays in the sandbox and copies each TCP connection to a new connection on the socket.
//!
//! It holds no secret and no policy: what it forwards is judged by the host side, which would judge the same bytes from
//! the stage itself. It is not the stage's child (a stage that waits for all children must not wait for it), it is not
//! dumpable (its descriptors are not for the stage), and it ends with the sandbox.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use exeat_contract::SOCKET;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{self, AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, read};

use crate::sys;

/// Bytes moved by one read, and the most that one direction of one connection keeps while its reader is slow. The knee of
/// the measured curve: 16 KiB costs half as much again in CPU, 256 KiB gains nothing.
const CHUNK: usize = 64 * 1024;
/// Reads from one connection before the others have their turn.
const TURNS: usize = 16;
/// Milliseconds without accepting after the process has run out of descriptors.
const ACCEPT_PAUSE_MS: u16 = 50;
/// Connections accepted before the copies have their turn.
const ACCEPTS: usize = 64;

/// Leaves a relay behind, a child of the sandbox's pid 1. The descriptor that is returned reaches end of file when it dies.
pub(crate) fn start(listener: OwnedFd) -> nix::Result<OwnedFd> {
    let (ours, lifeline) =
        socket::socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    match sys::fork()? {
        ForkResult::Parent { child } => {
            waitpid(child, None)?;
            Ok(ours)
        }
        ForkResult::Child => {
            drop(ours);
            // The middle process ends at once, so that pid 1 inherits the relay.
            if let Ok(ForkResult::Child) = sys::fork() {
                let failed = serve(listener, lifeline);
                sys::exit_now(i32::from(failed.is_err()));
            }
            sys::exit_now(0)
        }
    }
}

fn serve(listener: OwnedFd, lifeline: OwnedFd) -> nix::Result<()> {
    prctl::set_dumpable(false)?;
    nix::unistd::setsid()?;
    sys::close_all_except(&[listener.as_raw_fd(), lifeline.as_raw_fd()])?;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Relay::new(listener)?.run()
}

struct Relay {
    epoll: Epoll,
    listener: OwnedFd,
    /// A slot is reused only after the events of a round are handled, so that no late event meets a new connection.
    pairs: Vec<Option<Pair>>,
    free: Vec<usize>,
    freed: Vec<usize>,
    buffer: Vec<u8>,
}

/// The listener's token; connections take `2 * slot + side`.
const LISTENER: u64 = u64::MAX;

impl Relay {
    fn new(listener: OwnedFd) -> nix::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            epoll,
            listener,
            pairs: Vec::new(),
            free: Vec::new(),
            freed: Vec::new(),
            buffer: vec![0; CHUNK],
        })
    }

    fn run(mut self) -> nix::Result<()> {
        let mut events = [EpollEvent::empty(); 128];
        let mut accepting = true;
        loop {
            let timeout = if accepting { EpollTimeout::NONE } else { EpollTimeout::from(ACCEPT_PAUSE_MS) };
            let ready = match self.epoll.wait(&mut events, timeout) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            let mut waiting = !accepting;
            for event in events.iter().take(ready) {
                match event.data() {
                    LISTENER => waiting = true,
                    token => self.serve_pair(token, event.events()),
                }
            }
            self.free.append(&mut self.freed);
            if waiting {
                let now = self.accept_all();
                if now != accepting {
                    let interest = if now { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
                    self.epoll.modify(&self.listener, &mut EpollEvent::new(interest, LISTENER))?;
                    accepting = now;
                }
            }
        }
    }

    /// Whether to go on accepting; not for a while once descriptors or memory have run out.
    fn accept_all(&mut self) -> bool {
        for _ in 0..ACCEPTS {
            let accepted = sys::accept(self.listener.as_fd());
            match accepted {
                Ok(tcp) => {
                    // A host side that does not answer shows as a closed connection, as it would without a relay.
                    if self.open_pair(tcp).is_err() {
                        return true;
                    }
                }
                Err(Errno::EAGAIN) => return true,
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => return false,
                // The client went away first, or a signal: the next one.
                Err(_) => {}
            }
        }
        true
    }

    fn open_pair(&mut self, tcp: OwnedFd) -> nix::Result<()> {
        socket::setsockopt(&tcp, sockopt::TcpNoDelay, &true)?;
        let unix = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        socket::connect(unix.as_raw_fd(), &UnixAddr::new(SOCKET)?)?;
        sys::set_nonblocking(unix.as_fd())?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            self.pairs.len() - 1
        });
        let token = slot as u64 * 2;
        let pair = Pair { sides: [Side::new(tcp), Side::new(unix)] };
        for (side, token) in pair.sides.iter().zip([token, token + 1]) {
            self.epoll.add(&side.fd, EpollEvent::new(side.interest, token))?;
        }
        if let Some(place) = self.pairs.get_mut(slot) {
            *place = Some(pair);
        }
        Ok(())
    }

    fn serve_pair(&mut self, token: u64, events: EpollFlags) {
        let Ok(slot) = usize::try_from(token / 2) else { return };
        let Some(place) = self.pairs.get_mut(slot) else { return };
        let Some(pair) = place.as_mut() else { return };
        let from_unix = token % 2 == 1;
        let over = pair.turn(&mut self.buffer, from_unix, events).is_err() || pair.is_over();
        if over || pair.watch(&self.epoll, token & !1).is_err() {
            // Closing the descriptors removes them from the epoll set.
            *place = None;
            self.freed.push(slot);
        }
    }
}

/// One connection: the stage's TCP side and the host's Unix side.
struct Pair {
    sides: [Side; 2],
}

struct Side {
    fd: OwnedFd,
    /// Bytes read from the other side that this one would not take yet: at most [`CHUNK`].
    pending: Vec<u8>,
    sent: usize,
    /// This side has sent its end of file.
    ended: bool,
    /// The other side's end of file was passed on to this one.
    shut: bool,
    interest: EpollFlags,
}

impl Side {
    fn new(fd: OwnedFd) -> Self {
        Self { fd, pending: Vec::new(), sent: 0, ended: false, shut: false, interest: EpollFlags::EPOLLIN }
    }

    /// Writes what is pending; whether all of it went.
    fn flush(&mut self) -> nix::Result<bool> {
        while let Some(rest) = self.pending.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match socket::send(self.fd.as_raw_fd(), rest, MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::EAGAIN) => return Ok(false),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        // An idle connection holds no buffer.
        self.pending = Vec::new();
        self.sent = 0;
        Ok(true)
    }
}

impl Pair {
    fn turn(&mut self, buffer: &mut [u8], from_unix: bool, events: EpollFlags) -> nix::Result<()> {
        let [tcp, unix] = &mut self.sides;
        copy(tcp, unix, buffer)?;
        if let Err(errno) = copy(unix, tcp, buffer) {
            // The host side reset the connection: say so to the client in the same way.
            socket::setsockopt(&tcp.fd, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
            return Err(errno);
        }
        // Both directions of the side that raised this are closed: nothing can be written to it any more.
        let (gone, other) = if from_unix { (unix, tcp) } else { (tcp, unix) };
        let hung_up = events.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        if hung_up && gone.ended && other.pending.is_empty() { Err(Errno::EPIPE) } else { Ok(()) }
    }

    fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.ended && side.shut)
    }

    fn watch(&mut self, epoll: &Epoll, token: u64) -> nix::Result<()> {
        let [tcp, unix] = &mut self.sides;
        let wants = |from: &Side, to: &Side| {
            let mut interest = EpollFlags::empty();
            interest.set(EpollFlags::EPOLLIN, !from.ended && to.pending.is_empty());
            interest.set(EpollFlags::EPOLLOUT, !from.pending.is_empty());
            interest
        };
        let wanted = [wants(tcp, unix), wants(unix, tcp)];
        for ((side, interest), token) in [tcp, unix].into_iter().zip(wanted).zip([token, token + 1]) {
            if interest != side.interest {
                epoll.modify(&side.fd, &mut EpollEvent::new(interest, token))?;
                side.interest = interest;
            }
        }
        Ok(())
    }
}

fn copy(from: &mut Side, to: &mut Side, buffer: &mut [u8]) -> nix::Result<()> {
    for _ in 0..TURNS {
        if !to.flush()? {
            return Ok(());
        }
        if from.ended {
            if !to.shut {
                to.shut = true;
                match socket::shutdown(to.fd.as_raw_fd(), Shutdown::Write) {
                    // The other end is gone already; its own direction ends by itself.
                    Err(Errno::ENOTCONN) | Ok(()) => {}
                    Err(errno) => return Err(errno),
                }
            }
            return Ok(());
        }
        match read(&from.fd, buffer) {
            Ok(0) => from.ended = true,
            Ok(count) => {
                let Some(bytes) = buffer.get(..count) else { return Err(Errno::EIO) };
                let sent = match socket::send(to.fd.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
                    Ok(sent) => sent,
                    Err(Errno::EAGAIN | Errno::EINTR) => 0,
                    Err(errno) => return Err(errno),
                };
                to.pending.extend_from_slice(bytes.get(sent..).unwrap_or_default());
                // A short read is the last for now: the next one would only say so.
                if count < buffer.len() && to.pending.is_empty() {
                    return Ok(());
                }
            }
            Err(Errno::EAGAIN) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

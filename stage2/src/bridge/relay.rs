//! The relay: a process that stays in the sandbox and copies each TCP connection to a new connection on the socket.
//!
//! It has no secret and no policy: the host side judges what it forwards, as it would judge the same bytes from the stage itself. It
//! is not a child of the stage, which may wait for all of its children; it is not dumpable, so that the stage cannot get its
//! descriptors; and it ends with the sandbox.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;

use crate::mounts::number;
use crate::sys::{
    self, Descriptor, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, Epoll, EpollEvent, Errno,
};

/// Bytes moved by one read, and the most that one direction of one connection buffers for a slow reader. The knee of the measured
/// curve: 16 KiB costs half as much again in CPU, 256 KiB gains nothing.
const CHUNK: usize = 64 * 1024;
/// Reads from one connection before the others get their turn.
const TURNS: usize = 16;
/// Milliseconds without accepting, after descriptors have run out or the host side's backlog is full.
const ACCEPT_PAUSE: u16 = 50;
/// Connections accepted before the open ones get their turn.
const ACCEPTS: usize = 64;

/// Starts a relay as a child of the sandbox's pid 1, and waits until it can serve. The returned descriptor reaches end of file when
/// the relay dies.
///
/// `socket` is opened once, before there is a stage: the relay may reach what the stage may not, and the stage could put another socket
/// at the path later.
pub(crate) fn start(listener: Descriptor, socket: &CStr) -> sys::Result<Descriptor> {
    let socket = sys::open(socket, sys::O_PATH | sys::O_NOFOLLOW | sys::O_CLOEXEC)?;
    if !sys::is_socket(&socket)? {
        return Err(Errno::NOTSOCK);
    }
    let (ours, lifeline) = sys::socket_pair()?;
    match sys::fork()? {
        Some(child) => {
            // Only the relay and the process that starts it may hold the other end; a third holder would hide their end.
            drop((listener, socket, lifeline));
            sys::wait_for(&child)?;
            came_up(&ours)?;
            Ok(ours)
        }
        None => {
            drop(ours);
            // The middle process ends at once, so that pid 1 inherits the relay.
            match sys::fork() {
                Ok(None) => {
                    let failed = serve(listener, &socket, &lifeline);
                    sys::exit_now(i32::from(failed.is_err()));
                }
                Ok(Some(_)) => {}
                Err(errno) => report(&lifeline, errno.number()),
            }
            sys::exit_now(0)
        }
    }
}

/// Waits for the result that [`report`] sends.
fn came_up(lifeline: &Descriptor) -> sys::Result<()> {
    let mut said = [0; 4];
    let mut have = 0;
    while let Some(space) = said.get_mut(have..).filter(|space| !space.is_empty()) {
        match sys::read(lifeline, space) {
            // It died before it could report, most likely for lack of memory.
            Ok(0) => return Err(Errno::AGAIN),
            Ok(count) => have += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    match i32::from_le_bytes(said) {
        0 => Ok(()),
        errno => Err(Errno::from_number(errno)),
    }
}

/// Reports the start of the relay: an `errno`, or 0 if it is up.
fn report(lifeline: &Descriptor, errno: i32) {
    // Without a reader, nobody needs the result.
    let _ = sys::send(lifeline, &errno.to_le_bytes());
}

fn serve(listener: Descriptor, socket: &Descriptor, lifeline: &Descriptor) -> sys::Result<()> {
    let made = detach(&listener, socket, lifeline).and_then(|()| Relay::new(listener, socket));
    report(lifeline, made.as_ref().err().map_or(0, |errno| errno.number()));
    made?.run()
}

/// Gives up everything inherited from bubblewrap.
fn detach(listener: &Descriptor, socket: &Descriptor, lifeline: &Descriptor) -> sys::Result<()> {
    sys::forbid_dumps()?;
    sys::lead_session()?;
    // The standard numbers stay in use: a connection with such a number would receive a panic's message.
    let nothing = sys::open(c"/dev/null", sys::O_RDWR | sys::O_CLOEXEC)?;
    (0..3).try_for_each(|number| sys::replace_stream(&nothing, number))?;
    drop(nothing);
    sys::close_all_except(&[0, 1, 2, listener.number(), socket.number(), lifeline.number()])
}

struct Relay {
    epoll: Epoll,
    listener: Descriptor,
    /// The path of this process's descriptor of the host side's socket. `/proc` is a mount point, which the stage cannot exchange.
    socket: String,
    /// A connection that the host side could not take yet. It is served next.
    held: Option<Descriptor>,
    /// A slot is reused only after the events of a round, so that no late event reaches a new connection.
    pairs: Vec<Option<Pair>>,
    free: Vec<usize>,
    freed: Vec<usize>,
    buffer: Vec<u8>,
}

/// The listener's token; connections take `2 * slot + side`.
const LISTENER: u64 = u64::MAX;

impl Relay {
    fn new(listener: Descriptor, socket: &Descriptor) -> sys::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, EPOLLIN)?;
        let digits = number(u64::try_from(socket.number()).map_err(|_| Errno::INVAL)?, 10);
        let socket = String::from_utf8([b"/proc/self/fd/".as_slice(), &digits].concat());
        let socket = socket.map_err(|_| Errno::INVAL)?;
        Ok(Self {
            epoll,
            listener,
            socket,
            held: None,
            pairs: Vec::new(),
            free: Vec::new(),
            freed: Vec::new(),
            buffer: vec![0; CHUNK],
        })
    }

    fn run(mut self) -> sys::Result<()> {
        let mut events = [EpollEvent { events: 0, token: 0 }; 128];
        let mut accepting = true;
        loop {
            let timeout = if accepting { None } else { Some(ACCEPT_PAUSE) };
            let ready = match self.epoll.wait(&mut events, timeout) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            let mut waiting = !accepting;
            for event in events.iter().take(ready) {
                match event.token {
                    LISTENER => waiting = true,
                    token => self.serve_pair(token, event.events),
                }
            }
            self.free.append(&mut self.freed);
            if waiting {
                let now = self.accept_all();
                if now != accepting {
                    let interest = if now { EPOLLIN } else { 0 };
                    self.epoll.modify(&self.listener, LISTENER, interest)?;
                    accepting = now;
                }
            }
        }
    }

    /// Accepts connections. Returns false to pause, if descriptors, memory or the host side's backlog have run out.
    fn accept_all(&mut self) -> bool {
        for _ in 0..ACCEPTS {
            let accepted = self.held.take().map_or_else(|| sys::accept(&self.listener), Ok);
            let tcp = match accepted {
                Ok(tcp) => tcp,
                Err(Errno::AGAIN) => return true,
                Err(errno) if is_shortage(errno) => return false,
                // The client has already left, or a signal came: try the next one.
                Err(_) => continue,
            };
            match dial(&self.socket) {
                // A connection that cannot be watched is closed; the others continue.
                Ok(unix) => drop(self.open_pair(tcp, unix)),
                Err(errno) if errno == Errno::AGAIN || is_shortage(errno) => {
                    self.held = Some(tcp);
                    return false;
                }
                // If the host side does not answer, the client sees a closed connection, as without a relay.
                Err(_) => {}
            }
        }
        true
    }

    fn open_pair(&mut self, tcp: Descriptor, unix: Descriptor) -> sys::Result<()> {
        sys::set_no_delay(&tcp)?;
        let pair = Pair { sides: [Side::new(tcp, EPOLLIN), Side::new(unix, FROM_HOST)] };
        // The slot leaves the list only after everything else has succeeded.
        let slot = self.free.last().copied().unwrap_or(self.pairs.len());
        let token = slot as u64 * 2;
        for (side, token) in pair.sides.iter().zip([token, token + 1]) {
            self.epoll.add(&side.fd, token, side.interest)?;
        }
        self.free.pop();
        match self.pairs.get_mut(slot) {
            Some(place) => *place = Some(pair),
            None => self.pairs.push(Some(pair)),
        }
        Ok(())
    }

    fn serve_pair(&mut self, token: u64, events: u32) {
        let Ok(slot) = usize::try_from(token / 2) else { return };
        let Some(place) = self.pairs.get_mut(slot) else { return };
        let Some(pair) = place.as_mut() else { return };
        let from_unix = token % 2 == 1;
        let over = pair.turn(&mut self.buffer, from_unix, events).is_err() || pair.is_over();
        if over || pair.watch(&self.epoll, token & !1, from_unix, events).is_err() {
            // Closing the descriptors removes them from the epoll set.
            *place = None;
            self.freed.push(slot);
        }
    }
}

/// Connects to the host side without blocking: open tunnels continue while the backlog is full.
fn dial(socket: &str) -> sys::Result<Descriptor> {
    let unix = sys::socket(sys::AF_UNIX, sys::SOCK_STREAM | sys::SOCK_NONBLOCK)?;
    sys::connect(&unix, socket)?;
    Ok(unix)
}

fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}

/// Events of a fresh Unix side: bytes, and the end of its sending, which must be noticed when it happens.
const FROM_HOST: u32 = EPOLLIN | EPOLLRDHUP;

/// A connection: the stage's TCP side and the host's Unix side.
struct Pair {
    sides: [Side; 2],
}

struct Side {
    fd: Descriptor,
    /// Bytes from the other side that this one did not take yet: at most [`CHUNK`].
    pending: Vec<u8>,
    sent: usize,
    /// Whether this side has sent its end of file.
    ended: bool,
    /// Whether the other side's end of file was passed to this one.
    shut: bool,
    /// Whether this side, the host's, has ended its sending but still receives.
    half_closed: bool,
    /// Removed from the epoll set: epoll always reports the hang-up of this side, which must wait until the other side has taken its
    /// pending bytes.
    parked: bool,
    interest: u32,
}

impl Side {
    fn new(fd: Descriptor, interest: u32) -> Self {
        Self {
            fd,
            pending: Vec::new(),
            sent: 0,
            ended: false,
            shut: false,
            half_closed: false,
            parked: false,
            interest,
        }
    }

    /// Writes pending bytes, and returns whether all are written.
    fn flush(&mut self) -> sys::Result<bool> {
        while let Some(rest) = self.pending.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match sys::send(&self.fd, rest) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        // An idle connection keeps no buffer.
        self.pending = Vec::new();
        self.sent = 0;
        Ok(true)
    }
}

impl Pair {
    fn turn(&mut self, buffer: &mut [u8], from_unix: bool, events: u32) -> sys::Result<()> {
        let [tcp, unix] = &mut self.sides;
        let hung_up = events & (EPOLLHUP | EPOLLERR) != 0;
        unix.half_closed |= from_unix && !hung_up && events & EPOLLRDHUP != 0;

        let up = copy(tcp, unix, buffer).and_then(|()| pass_end(tcp, unix));
        // Even if the way up is broken: a host side that takes no more bytes may have sent a reason.
        let down = copy(unix, tcp, buffer).and_then(|()| {
            if is_cut(unix)? {
                return Err(Errno::CONNRESET);
            }
            pass_end(unix, tcp)
        });
        if let Err(errno) = up.and(down) {
            // A broken stream must not look complete: the client gets a reset, as without a relay.
            if !tcp.shut {
                sys::reset_on_close(&tcp.fd)?;
            }
            return Err(errno);
        }
        // The side of this event is closed in both directions: nothing can be written to it any more.
        let (gone, other) = if from_unix { (unix, tcp) } else { (tcp, unix) };
        if hung_up && gone.ended && other.pending.is_empty() { Err(Errno::PIPE) } else { Ok(()) }
    }

    fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.ended && side.shut)
    }

    /// Watches for the next events. `events` are those of the side that `from_unix` names.
    fn watch(&mut self, epoll: &Epoll, token: u64, from_unix: bool, events: u32) -> sys::Result<()> {
        let hung_up = events & (EPOLLHUP | EPOLLERR) != 0;
        let [tcp, unix] = &mut self.sides;
        let wants = |from: &Side, to: &Side| {
            let input = if !from.ended && to.pending.is_empty() { EPOLLIN } else { 0 };
            let output = if from.pending.is_empty() { 0 } else { EPOLLOUT };
            input | output
        };
        let its_end = if unix.ended || unix.half_closed { 0 } else { EPOLLRDHUP };
        let from_host = wants(unix, tcp) | its_end;
        let blocked = [!unix.pending.is_empty(), !tcp.pending.is_empty()];
        let raised = [hung_up && !from_unix, hung_up && from_unix];
        let wanted = [wants(tcp, unix), from_host];
        let sides = [tcp, unix].into_iter().zip(wanted).zip(blocked).zip(raised).zip([token, token + 1]);
        for ((((side, interest), blocked), hung_up), token) in sides {
            if side.parked {
                if !blocked {
                    epoll.add(&side.fd, token, interest)?;
                    side.parked = false;
                    side.interest = interest;
                }
            } else if hung_up && blocked {
                epoll.delete(&side.fd)?;
                side.parked = true;
            } else if interest != side.interest {
                epoll.modify(&side.fd, token, interest)?;
                side.interest = interest;
            }
        }
        Ok(())
    }
}

/// Whether the host side, whose end of file was just read, cut the connection instead of ending it.
///
/// The host side ends a stream, or a refusal, by closing its sending half and reading until the client's end or for a second. It
/// closes both halves at once to reset a connection, and when a limit or the end of the run cuts a tunnel. After the client's end,
/// closing both is an ordinary end. A relay without a turn in that second mistakes a refusal for a cut, but has sent the reply before
/// the reset, so the client can read it.
fn is_cut(unix: &mut Side) -> sys::Result<bool> {
    if !unix.ended || unix.half_closed || unix.shut {
        return Ok(false);
    }
    // Queried now, because the events of this round may be older than the end.
    let [conditions] = sys::conditions([&unix.fd])?;
    let cut = conditions & (sys::POLLHUP | sys::POLLERR) != 0;
    unix.half_closed = !cut;
    Ok(cut)
}

/// Passes the end of one side on after all bytes before it.
fn pass_end(from: &Side, to: &mut Side) -> sys::Result<()> {
    if !from.ended || to.shut || !to.pending.is_empty() {
        return Ok(());
    }
    to.shut = true;
    match sys::end_sending(&to.fd) {
        // The other end has already closed; its own direction ends by itself.
        Err(Errno::NOTCONN) | Ok(()) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Moves bytes from `from` to `to`, as many as `to` takes.
fn copy(from: &mut Side, to: &mut Side, buffer: &mut [u8]) -> sys::Result<()> {
    for _ in 0..TURNS {
        if !to.flush()? || from.ended {
            return Ok(());
        }
        match sys::read(&from.fd, buffer) {
            Ok(0) => from.ended = true,
            Ok(count) => {
                let Some(bytes) = buffer.get(..count) else { return Err(Errno::IO) };
                let sent = match sys::send(&to.fd, bytes) {
                    Ok(sent) => sent,
                    Err(Errno::AGAIN | Errno::INTR) => 0,
                    Err(errno) => return Err(errno),
                };
                let rest = bytes.get(sent..).unwrap_or_default();
                // Without memory, this connection ends and the others continue.
                to.pending.try_reserve_exact(rest.len()).map_err(|_| Errno::NOMEM)?;
                to.pending.extend_from_slice(rest);
                // After a short read, nothing more is there: another read would only confirm it.
                if count < buffer.len() && to.pending.is_empty() {
                    return Ok(());
                }
            }
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

//! The host side of the control socket: one connection, from this run's stage2.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use exeat_contract::message::MAX_FRAME;
use exeat_contract::{Assembly, Construction, Go, Message};
use nix::sys::socket::{getsockopt, sockopt};

use crate::error::Error;
use crate::sys;

/// Maximum size of a frame from stage2, which sends small ones only.
const FRAME: usize = 64;

/// The connection from this run's stage2.
#[derive(Debug)]
pub(crate) struct Control {
    stream: UnixStream,
    /// The pid on the host of the process at the other end.
    pub(crate) pid: i32,
    /// Whether each message has its sender.
    has_senders: bool,
}

impl Control {
    /// Takes a connection to pid 1, from which stage2 inherits the other end. It names its senders (unix(7), SO_PASSCRED).
    pub(crate) fn new(stream: UnixStream, init: i32) -> Self {
        Self { stream, pid: init, has_senders: true }
    }

    /// Accepts the connection and checks that it is from the child of the sandbox's pid 1.
    pub(crate) fn accept(listener: &UnixListener, init: i32) -> Result<Self, Error> {
        let (stream, _) = listener.accept().map_err(Error::Control)?;
        stream.set_nonblocking(false).map_err(Error::Control)?;
        let peer =
            getsockopt(&stream, sockopt::PeerCredentials).map_err(|errno| Error::Control(errno.into()))?;
        let pid = peer.pid();
        // The peer waits in a read: its pid cannot pass to another process before the connection ends.
        if stat_of(pid).is_some_and(|stat| stat.parent == init) {
            Ok(Self { stream, pid, has_senders: false })
        } else {
            Err(Error::Stranger { pid })
        }
    }

    pub(crate) fn set_deadline(&self, wait: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(wait))?;
        self.stream.set_write_timeout(Some(wait))
    }

    /// Reads the next message with its descriptors, or `None` at end of file.
    pub(crate) fn receive(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>, Error> {
        self.read_frame().map_err(Error::Control)
    }

    fn read_frame(&mut self) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        let mut head = [0; 4];
        let receive = if self.has_senders { sys::receive_with_sender } else { sys::receive };
        let sys::Received { count, passed, sender } = receive(self.stream.as_fd(), &mut head)?;
        if count == 0 {
            return Ok(None);
        }
        self.pid = sender.unwrap_or(self.pid);
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        self.stream.read_exact(head.get_mut(count..).ok_or_else(malformed)?)?;
        let length = usize::try_from(u32::from_le_bytes(head)).map_err(|_| malformed())?;
        if length > FRAME.min(MAX_FRAME) {
            return Err(malformed());
        }
        let mut body = [0; FRAME];
        let body = body.get_mut(..length).ok_or_else(malformed)?;
        self.stream.read_exact(body)?;
        let message = Message::decode(body).map_err(|_| malformed())?;
        Ok(Some((message, passed)))
    }

    /// Sends the description of the sandbox.
    pub(crate) fn send_construction(&self, construction: Construction) -> Result<(), Error> {
        self.send_description(&Message::Build(construction))?.map_err(Error::Control)
    }

    /// Sends the description of the file tree. The inner error is that of the connection: the other process may have ended.
    pub(crate) fn send_assembly(&self, assembly: Assembly) -> Result<io::Result<()>, Error> {
        self.send_description(&Message::Assemble(assembly))
    }

    fn send_description(&self, message: &Message) -> Result<io::Result<()>, Error> {
        let too_large = || {
            let error = "the sandbox has too many mounts or too large files";
            Error::Control(io::Error::new(io::ErrorKind::InvalidInput, error))
        };
        let frame = message.encode().ok_or_else(too_large)?;
        Ok(sys::send_with_descriptors(self.stream.as_fd(), &frame, &[]))
    }

    /// Sends the go with the stage's standard streams.
    pub(crate) fn send_go(&mut self, go: Go, streams: [BorrowedFd<'_>; 3]) -> Result<(), Error> {
        let too_large = || {
            io::Error::new(
                io::ErrorKind::ArgumentListTooLong,
                "the command and its environment are too large",
            )
        };
        let frame = Message::Go(go).encode().ok_or_else(|| Error::Control(too_large()))?;
        sys::send_with_descriptors(self.stream.as_fd(), &frame, &streams).map_err(Error::Control)
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Fields of `/proc/PID/stat` (proc_pid_stat(5)).
pub(crate) struct Stat {
    /// `T` for a process that a signal has stopped.
    pub(crate) state: char,
    pub(crate) parent: i32,
}

/// Reads a process's `stat`, or `None` if it does not exist or `/proc` cannot be read.
pub(crate) fn stat_of(pid: i32) -> Option<Stat> {
    Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

impl Stat {
    pub(crate) fn parse(stat: &str) -> Option<Self> {
        // The second field is a name in parentheses that may itself contain spaces and parentheses.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?.chars().next()?;
        Some(Self { state, parent: fields.next()?.parse().ok()? })
    }
}

/// Whether a process neither catches nor ignores nor blocks a signal (proc_pid_status(5)).
pub(crate) fn takes_default(pid: i32, signal: i32) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bit = 1_u64.checked_shl(u32::try_from(signal).ok()?.checked_sub(1)?)?;
    let is_in = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(u64::from_str_radix(mask.trim(), 16).ok()? & bit != 0)
    };
    Some(!is_in("SigBlk:")? && !is_in("SigIgn:")? && !is_in("SigCgt:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_this_process_is_the_one_the_kernel_names() {
        let parent = nix::unistd::getppid().as_raw();
        assert_eq!(stat_of(nix::unistd::getpid().as_raw()).map(|stat| stat.parent), Some(parent));
        assert!(stat_of(-1).is_none());
    }

    /// The standard library ignores SIGPIPE; SIGURG keeps its default here.
    #[test]
    fn a_signal_that_is_ignored_has_not_its_default_action() {
        // Read for this thread: the thread that starts others blocks every signal for a moment.
        let pid = nix::unistd::gettid().as_raw();
        let found = [nix::libc::SIGPIPE, nix::libc::SIGURG, 0, 65].map(|signal| takes_default(pid, signal));
        assert_eq!(found, [Some(false), Some(true), None, None]);
        assert_eq!(takes_default(-1, nix::libc::SIGURG), None);
    }
}

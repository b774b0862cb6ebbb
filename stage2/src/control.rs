//! The control socket: one connection to the host side, closed by `execve`.

use std::os::fd::{AsRawFd, OwnedFd};

use exeat_contract::message::MAX_FRAME;
use exeat_contract::{Go, Message};
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, read};

use crate::sys;

pub(crate) struct Control(OwnedFd);

impl Control {
    pub(crate) fn connect(path: &str) -> nix::Result<Self> {
        let fd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Self(fd))
    }

    /// Sends a frame, and the descriptors beside its first byte.
    pub(crate) fn send(&self, message: &Message, passed: &[&OwnedFd]) -> nix::Result<()> {
        let frame = message.encode().ok_or(Errno::EMSGSIZE)?;
        sys::send_with_descriptors(&self.0, &frame, passed)
    }

    /// Waits for the host side's answer. There is no deadline here: the host side has one, and kills the sandbox.
    pub(crate) fn receive_go(&self) -> nix::Result<(Go, Vec<OwnedFd>)> {
        let mut head = [0; 4];
        let (count, passed) = sys::receive_with_descriptors(&self.0, &mut head)?;
        self.read_exact(head.get_mut(count..).ok_or(Errno::EBADMSG)?)?;
        let length = usize::try_from(u32::from_le_bytes(head)).map_err(|_| Errno::EBADMSG)?;
        if length > MAX_FRAME {
            return Err(Errno::EMSGSIZE);
        }
        let mut body = vec![0; length];
        self.read_exact(&mut body)?;
        match Message::decode(&body) {
            Ok(Message::Go(go)) => Ok((go, passed)),
            _ => Err(Errno::EBADMSG),
        }
    }

    fn read_exact(&self, mut rest: &mut [u8]) -> nix::Result<()> {
        while !rest.is_empty() {
            match read(&self.0, rest) {
                // The host side went away before it said go: nothing may run.
                Ok(0) => return Err(Errno::ECONNRESET),
                Ok(count) => rest = rest.get_mut(count..).ok_or(Errno::EBADMSG)?,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Makes the three descriptors standard input, output and error.
pub(crate) fn take_streams(streams: Vec<OwnedFd>) -> nix::Result<()> {
    let [input, output, error] = <[OwnedFd; 3]>::try_from(streams).map_err(|_| Errno::EBADMSG)?;
    dup2_stdin(&input)?;
    dup2_stdout(&output)?;
    dup2_stderr(&error)
}

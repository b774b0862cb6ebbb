//! The control socket: one connection to the host side, closed by `execve`. And the standard streams, before and after.

use alloc::vec;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use exeat_contract::message::MAX_FRAME;
use exeat_contract::{Go, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, IoSlice, IoSliceMut, read, write};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::sys;

/// Descriptors that one message may carry: three standard streams.
const PASSED: usize = 3;

pub(crate) struct Control(OwnedFd);

impl Control {
    pub(crate) fn connect(path: &str) -> rustix::io::Result<Self> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Self(fd))
    }

    /// Sends a frame, and the descriptors beside its first byte.
    pub(crate) fn send(&self, message: &Message, passed: &[&OwnedFd]) -> rustix::io::Result<()> {
        let frame = message.encode().ok_or(Errno::MSGSIZE)?;
        let passed: Vec<BorrowedFd<'_>> = passed.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !passed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&passed)) {
            return Err(Errno::MSGSIZE);
        }
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            match sendmsg(&self.0, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    control.clear();
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Waits for the host side's answer. There is no deadline here: the host side has one, and kills the sandbox.
    pub(crate) fn receive_go(&self) -> rustix::io::Result<(Go, Vec<OwnedFd>)> {
        let mut head = [0; 4];
        let (count, passed) = self.receive_with_descriptors(&mut head)?;
        self.read_exact(head.get_mut(count..).ok_or(Errno::BADMSG)?)?;
        let length = usize::try_from(u32::from_le_bytes(head)).map_err(|_| Errno::BADMSG)?;
        if length > MAX_FRAME {
            return Err(Errno::MSGSIZE);
        }
        let mut body = vec![0; length];
        self.read_exact(&mut body)?;
        match Message::decode(&body) {
            Ok(Message::Go(go)) => Ok((go, passed)),
            _ => Err(Errno::BADMSG),
        }
    }

    /// Reads once into `buffer`; the descriptors that came along are close-on-exec.
    fn receive_with_descriptors(&self, buffer: &mut [u8]) -> rustix::io::Result<(usize, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(buffer)];
        let message = recvmsg(&self.0, slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if message.bytes == 0 {
            return Err(Errno::CONNRESET);
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::NOBUFS);
        }
        let mut passed = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                passed.extend(descriptors);
            }
        }
        Ok((message.bytes, passed))
    }

    fn read_exact(&self, mut rest: &mut [u8]) -> rustix::io::Result<()> {
        while !rest.is_empty() {
            match read(&self.0, &mut *rest) {
                // The host side went away before it said go: nothing may run.
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(count) => rest = rest.get_mut(count..).ok_or(Errno::BADMSG)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Makes the three descriptors standard input, output and error.
pub(crate) fn take_streams(streams: Vec<OwnedFd>) -> rustix::io::Result<()> {
    let [input, output, error] = <[OwnedFd; 3]>::try_from(streams).map_err(|_| Errno::BADMSG)?;
    dup2_stdin(&input)?;
    dup2_stdout(&output)?;
    dup2_stderr(&error)
}

/// Fills the standard numbers that are not open: a socket of ours that got one would be lost to [`take_streams`].
pub(crate) fn hold_standard_numbers() -> rustix::io::Result<()> {
    let mut streams =
        sys::standard_streams().map(|stream| PollFd::from_borrowed_fd(stream, PollFlags::empty()));
    poll(&mut streams, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    for _ in streams.iter().filter(|stream| stream.revents().contains(PollFlags::NVAL)) {
        // The lowest free number is the one that is missing. Never closed.
        let _ = open(c"/dev/null", OFlags::RDWR, Mode::empty())?.into_raw_fd();
    }
    Ok(())
}

/// Words on standard error, which is bubblewrap's: the host reads them when the sandbox does not come up.
pub(crate) fn say(parts: &[&str]) {
    let [_, _, error] = sys::standard_streams();
    for part in parts {
        // Nobody left to hear it, nobody to tell.
        let _ = write(error, part.as_bytes());
    }
}

/// The answers of connect(2) to a socket's path, in the C library's words.
pub(crate) fn describe(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => "Permission denied",
        Errno::AGAIN => "Resource temporarily unavailable",
        Errno::CONNREFUSED => "Connection refused",
        Errno::NOENT => "No such file or directory",
        Errno::PERM => "Operation not permitted",
        _ => "the socket does not answer",
    }
}

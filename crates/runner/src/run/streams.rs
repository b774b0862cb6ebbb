//! The standard streams of a stage.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, SockType, SockaddrLike as _, SockaddrStorage, getpeername, getsockname, getsockopt,
    sockopt,
};
use nix::sys::stat::{SFlag, fstat};

use crate::error::Error;

/// What the stage gets as its standard streams.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Input, output, error.
    pub(super) fds: [OwnedFd; 3],
    /// They are exeat's own, which gives them up when the stage has them.
    pub(super) own: bool,
}

/// The status flags of exeat's own streams (`O_NONBLOCK`, `O_APPEND`: fcntl(2)), which go with the open file and not with the
/// descriptor: what a stage sets there is set for exeat too. Put back when this is dropped.
#[derive(Debug)]
pub(super) struct Flags(Vec<(OwnedFd, OFlag)>);

impl Flags {
    /// Of standard error, and of what else can be kept open until the end. Of a pipe or a socket the other side is to see when
    /// the stage has closed it; nothing is written there by exeat.
    pub(super) fn of([input, output, error]: &[OwnedFd; 3]) -> io::Result<Self> {
        let mut kept = Vec::new();
        for stream in [input, output] {
            let kind = SFlag::from_bits_truncate(fstat(stream)?.st_mode) & SFlag::S_IFMT;
            if kind == SFlag::S_IFCHR || kind == SFlag::S_IFREG {
                kept.push(stream);
            }
        }
        kept.push(error);
        let kept = kept.into_iter().map(|stream| {
            let flags = fcntl(stream, FcntlArg::F_GETFL)?;
            Ok((stream.try_clone()?, OFlag::from_bits_retain(flags)))
        });
        kept.collect::<io::Result<_>>().map(Self)
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        for (stream, flags) in &self.0 {
            // Where it is refused (an append-only file keeps O_APPEND) they are as the kernel wants them.
            let _ = fcntl(stream, FcntlArg::F_SETFL(*flags));
        }
    }
}

/// What messages call the three.
pub(super) const STREAMS: [&str; 3] = ["standard input", "standard output", "standard error"];

impl Streams {
    /// exeat's own.
    pub(super) fn of_the_caller() -> Result<Self, Error> {
        let [input, output, error] = STREAMS;
        let copy = |fd: BorrowedFd<'_>, what| {
            fd.try_clone_to_owned().map_err(|source| Error::Prepare { what, source })
        };
        let fds = [
            copy(io::stdin().as_fd(), input)?,
            copy(io::stdout().as_fd(), output)?,
            copy(io::stderr().as_fd(), error)?,
        ];
        Ok(Self { fds, own: true })
    }

    /// Streams that were opened for the stage, or copied for it.
    pub(crate) fn made(fds: [OwnedFd; 3]) -> Self {
        Self { fds, own: false }
    }
}

/// Describes a stream that is more than a way for bytes. A directory opens files that the view does not have. A socket that can still be
/// connected, bound or accepted on does so in the host's network, where it was made.
pub(super) fn leads_out(stream: &OwnedFd) -> io::Result<Option<&'static str>> {
    let kind = SFlag::from_bits_truncate(fstat(stream)?.st_mode) & SFlag::S_IFMT;
    if kind == SFlag::S_IFDIR {
        return Ok(Some("a directory"));
    }
    if kind != SFlag::S_IFSOCK {
        return Ok(None);
    }
    // A family that has no addresses (AF_ALG) does not answer, and is not Unix.
    let address = getsockname::<SockaddrStorage>(stream.as_raw_fd()).ok();
    if address.and_then(|address| address.family()) != Some(AddressFamily::Unix) {
        return Ok(Some("a network socket, or one of the kernel's"));
    }
    // A stream is what many programs give their children for a pipe. One of packets or datagrams can be connected again.
    if getsockopt(stream, sockopt::SockType)? != SockType::Stream {
        return Ok(Some("a Unix socket of datagrams or packets"));
    }
    if getsockopt(stream, sockopt::AcceptConn)? {
        return Ok(Some("a Unix socket that listens"));
    }
    // A connected stream stays so, also after its peer has closed (unix_stream_connect, net/unix/af_unix.c).
    let peer = getpeername::<SockaddrStorage>(stream.as_raw_fd());
    Ok(peer.is_err().then_some("a Unix socket that is not connected"))
}

/// Puts `/dev/null` in the place of this process's standard input and output.
pub(super) fn release_streams() -> io::Result<()> {
    let null = null()?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    Ok(())
}

pub(super) fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

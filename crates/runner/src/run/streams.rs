//! Prepares the standard streams of a stage.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, SockType, SockaddrLike as _, SockaddrStorage, getpeername, getsockname, getsockopt,
    sockopt,
};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::error::Error;

/// The standard streams for a stage.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Input, output and error.
    pub(super) fds: [OwnedFd; 3],
    /// Whether they are exeat's own, which exeat closes once the stage has them.
    pub(super) own: bool,
}

/// The status flags of exeat's own streams (`O_NONBLOCK`, `O_APPEND`: fcntl(2)). They belong to the open file, so a change by the stage
/// also affects exeat. Dropping this restores them.
#[derive(Debug)]
pub(super) struct Flags(Vec<(OwnedFd, OFlag)>);

impl Flags {
    /// Saves the flags of standard error, and of input and output unless they are pipes or sockets: their other side must see when the
    /// stage closes them, and exeat does not write there.
    pub(super) fn save([input, output, error]: &[OwnedFd; 3]) -> io::Result<Self> {
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
            // A refusal is fine: an append-only file keeps O_APPEND.
            let _ = fcntl(stream, FcntlArg::F_SETFL(*flags));
        }
    }
}

/// The names of the streams in messages.
pub(super) const STREAMS: [&str; 3] = ["standard input", "standard output", "standard error"];

impl Streams {
    /// Copies exeat's own streams.
    pub(super) fn from_process() -> Result<Self, Error> {
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

    /// Wraps streams that were opened or copied for the stage.
    pub(crate) fn for_stage(fds: [OwnedFd; 3]) -> Self {
        Self { fds, own: false }
    }
}

/// Describes a stream that gives more access than bytes. A directory opens files outside the view. A socket that can still connect, bind
/// or accept does so in the host's network.
pub(super) fn leads_out(stream: &OwnedFd) -> io::Result<Option<&'static str>> {
    let kind = SFlag::from_bits_truncate(fstat(stream)?.st_mode) & SFlag::S_IFMT;
    if kind == SFlag::S_IFDIR {
        return Ok(Some("a directory"));
    }
    // The stage could open the path anew, with any access that permissions allow (open(2), "O_PATH").
    let flags = OFlag::from_bits_retain(fcntl(stream, FcntlArg::F_GETFL)?);
    if flags.contains(OFlag::O_PATH) {
        return Ok(Some("a path that is not open (O_PATH)"));
    }
    // `mem` is the memory of a process, and what is written to others changes a process (proc(5)).
    if kind == SFlag::S_IFREG && fstatfs(stream)?.filesystem_type() == PROC_SUPER_MAGIC {
        let path = fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd()))?;
        if path.ends_with("mem") || flags & OFlag::O_ACCMODE != OFlag::O_RDONLY {
            return Ok(Some("a file of /proc that gives access to a process"));
        }
    }
    if kind != SFlag::S_IFSOCK {
        return Ok(None);
    }
    // A family without addresses (AF_ALG) returns an error, and is not Unix.
    let address = getsockname::<SockaddrStorage>(stream.as_raw_fd()).ok();
    if address.and_then(|address| address.family()) != Some(AddressFamily::Unix) {
        return Ok(Some("a network socket, or one of the kernel's"));
    }
    // Programs often give their children a stream socket as a pipe. A packet or datagram socket can be connected again.
    if getsockopt(stream, sockopt::SockType)? != SockType::Stream {
        return Ok(Some("a Unix socket of datagrams or packets"));
    }
    if getsockopt(stream, sockopt::AcceptConn)? {
        return Ok(Some("a Unix socket that listens"));
    }
    // A connected stream stays connected, even after its peer has closed (unix_stream_connect, net/unix/af_unix.c).
    let peer = getpeername::<SockaddrStorage>(stream.as_raw_fd());
    Ok(peer.is_err().then_some("a Unix socket that is not connected"))
}

/// Replaces this process's standard input and output by `/dev/null`.
pub(super) fn release_streams() -> io::Result<()> {
    let null = null()?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    Ok(())
}

pub(crate) fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

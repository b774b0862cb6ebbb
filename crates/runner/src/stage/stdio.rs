//! Defines the standard streams that a caller sets for a stage.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::run::streams::null;

/// The destination of one standard stream of a stage.
///
/// Use `Stdio::from` for files, pipes, terminals and connected Unix stream pairs. A directory, or a socket that can connect again, would
/// lead out of the sandbox: then the start fails ([`Error::Stream`](crate::Error::Stream)).
#[derive(Debug, Clone)]
pub struct Stdio(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Inherit,
    Null,
    Piped,
    Fd(Arc<OwnedFd>),
}

impl Stdio {
    /// Uses a copy of this process's own stream, which stays open here.
    #[must_use]
    pub fn inherit() -> Self {
        Self(Kind::Inherit)
    }

    /// Uses `/dev/null`.
    #[must_use]
    pub fn null() -> Self {
        Self(Kind::Null)
    }

    /// Uses a pipe, whose other end [`Running`](crate::Running) has.
    #[must_use]
    pub fn piped() -> Self {
        Self(Kind::Piped)
    }

    /// Opens standard input: returns the stage's end, and the caller's end if there is one.
    pub(super) fn input(&self) -> io::Result<(OwnedFd, Option<PipeWriter>)> {
        if matches!(self.0, Kind::Piped) {
            let (reader, writer) = io::pipe()?;
            return Ok((reader.into(), Some(writer)));
        }
        Ok((self.copy(io::stdin().as_fd())?, None))
    }

    /// Opens an output: returns the stage's end, and the caller's end if there is one. `own` is this process's stream.
    pub(super) fn output(&self, own: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<PipeReader>)> {
        if matches!(self.0, Kind::Piped) {
            let (reader, writer) = io::pipe()?;
            return Ok((writer.into(), Some(reader)));
        }
        Ok((self.copy(own)?, None))
    }

    fn copy(&self, own: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        match &self.0 {
            Kind::Inherit => own.try_clone_to_owned(),
            Kind::Fd(fd) => fd.as_fd().try_clone_to_owned(),
            Kind::Null | Kind::Piped => Ok(null()?.into()),
        }
    }

    /// Returns a path that leads to the open stream; `own` is the number of this process's stream.
    pub(super) fn path(&self, own: u8) -> Option<String> {
        match &self.0 {
            Kind::Inherit => Some(format!("/proc/self/fd/{own}")),
            Kind::Fd(fd) => Some(format!("/proc/self/fd/{}", fd.as_raw_fd())),
            Kind::Null | Kind::Piped => None,
        }
    }
}

impl From<OwnedFd> for Stdio {
    fn from(fd: OwnedFd) -> Self {
        Self(Kind::Fd(Arc::new(fd)))
    }
}

impl From<File> for Stdio {
    fn from(file: File) -> Self {
        OwnedFd::from(file).into()
    }
}

impl From<PipeReader> for Stdio {
    fn from(pipe: PipeReader) -> Self {
        OwnedFd::from(pipe).into()
    }
}

impl From<PipeWriter> for Stdio {
    fn from(pipe: PipeWriter) -> Self {
        OwnedFd::from(pipe).into()
    }
}

//! Provides one type for both kinds of socket, and a wrapper that replays bytes. Nothing here parses bytes.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout};

use crate::limits;

/// A connected stream socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Appends the bytes of one read, at most `room` and at most [`limits::EARLY_BYTES`]. Returns 0 at the end.
    pub(crate) async fn read_some(&self, into: &mut Vec<u8>, room: usize) -> io::Result<usize> {
        loop {
            self.readable().await?;
            match self.try_read_some(into, room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    /// Appends the bytes of one read without waiting. Fails with `WouldBlock` if there are none.
    pub(crate) fn try_read_some(&self, into: &mut Vec<u8>, room: usize) -> io::Result<usize> {
        let mut chunk = [0; limits::EARLY_BYTES];
        let read = self.try_read(chunk.get_mut(..room).unwrap_or_default())?;
        let bytes = chunk.get(..read).unwrap_or_default();
        let len = into.len() + read;
        if len > into.capacity() {
            // It grows by no more than needed, because thousands of clients may stop at this point.
            into.reserve_exact(len.next_multiple_of(limits::HELD_STEP) - into.len());
        }
        into.extend_from_slice(bytes);
        Ok(read)
    }

    /// Reads once without waiting.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(into),
            Self::Unix(stream) => stream.try_read(into),
        }
    }

    /// Waits until a write would make progress. Cancel-safe.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
        }
    }

    /// Writes as much as is possible without waiting.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// Waits until a read would return something. Cancel-safe.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    /// Writes all of `bytes`, until `by`.
    pub(crate) async fn write_until(&mut self, bytes: &[u8], by: Instant) -> io::Result<()> {
        use tokio::io::AsyncWriteExt;
        tokio::time::timeout_at(by, self.write_all(bytes)).await?
    }

    /// Closes our direction (FIN). A peer that has left is not an error.
    pub(crate) fn finish(&self) {
        let _ = shutdown(self.as_raw_fd(), Shutdown::Write);
    }

    /// Closes as RFC 9112 section 9.6 describes: our direction first, then it discards what the client still sends,
    /// for a moment. Closing with unread input would reset the connection, which could destroy the reply. Nothing
    /// is parsed.
    pub(crate) async fn linger(self, limit: Duration) {
        self.finish();
        let drain = async {
            let mut thrown = 0;
            while thrown < limits::LINGER_BYTES && self.readable().await.is_ok() {
                match self.try_read(&mut [0; limits::EARLY_BYTES]) {
                    Ok(read) if read > 0 => thrown += read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    _ => break,
                }
            }
        };
        let _ = timeout(limit, drain).await;
    }

    /// Makes the next close a reset, so that the peer can tell a broken stream from a finished one.
    pub(crate) fn will_reset(&self) {
        if let Self::Tcp(stream) = self {
            let _ = stream.set_zero_linger();
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A stream that replays bytes which were read from it before.
#[derive(Debug)]
pub(crate) struct PrefixedIo {
    prefix: Vec<u8>,
    given: usize,
    inner: Stream,
}

impl PrefixedIo {
    /// Creates a stream that returns `prefix` first, then the bytes of `inner`.
    pub(crate) fn new(prefix: Vec<u8>, inner: Stream) -> Self {
        Self { prefix, given: 0, inner }
    }

    /// Returns the stream, and the unread rest of the prefix.
    pub(crate) fn into_parts(mut self) -> (Stream, Vec<u8>) {
        let left = self.prefix.split_off(self.given.min(self.prefix.len()));
        (self.inner, left)
    }
}

impl AsyncRead for PrefixedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let left = this.prefix.get(this.given..).unwrap_or_default();
        if left.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let count = left.len().min(buf.remaining());
        buf.put_slice(left.get(..count).unwrap_or_default());
        this.given += count;
        if this.given == this.prefix.len() {
            (this.prefix, this.given) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PrefixedIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

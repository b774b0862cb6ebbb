//! Copies a stage's output to its reader and counts it.

use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use exeat_policy::Size;
use exeat_sandbox::backend::Handle;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::Sender;

use crate::ended::Reached;
use crate::limits::Stop;

/// Bytes of one copy: PIPE_BUF, which a writable pipe accepts without blocking (pipe(7)).
const CHUNK: usize = 4096;

/// Counts a stage's output on all streams, and stops a stage that writes too much.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    /// The remaining bytes of all streams together.
    left: Arc<AtomicU64>,
    limit: Size,
    /// The handle is set before the stage can write.
    handle: Arc<OnceLock<Handle>>,
    stop: Sender<Stop>,
}

impl Meter {
    pub(crate) fn new(limit: Size, handle: &Arc<OnceLock<Handle>>, stop: &Sender<Stop>) -> Self {
        let left = Arc::new(AtomicU64::new(limit.get()));
        Self { left, limit, handle: Arc::clone(handle), stop: stop.clone() }
    }

    /// Takes up to `wanted` bytes from the remaining ones. If it returns less, call [`Meter::stop`].
    pub(crate) fn take(&self, wanted: usize) -> usize {
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let take = |left: u64| Some(left.saturating_sub(wanted));
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        usize::try_from(left.min(wanted)).unwrap_or(0)
    }

    /// Ends the stage because it wrote too much.
    pub(crate) fn stop(&self) {
        let _ = self.stop.try_send(Stop { reached: Reached::OutputSize(self.limit), blind: None });
        if let Some(handle) = self.handle.get() {
            handle.kill();
        }
    }
}

/// Pipes that count what the stage writes to its standard output and error.
#[derive(Debug)]
pub(crate) struct Copies {
    threads: Vec<JoinHandle<()>>,
    /// Closing it makes the threads drop undelivered output.
    cancel: Option<io::PipeWriter>,
    /// Reaches end of file when all threads have ended.
    done: pipe::Receiver,
}

impl Copies {
    /// Replaces each stream by a pipe. Two streams of the same file share one pipe, so that the order of their output stays. Needs a
    /// runtime.
    pub(crate) fn between(streams: Vec<&mut OwnedFd>, meter: &Meter) -> io::Result<Self> {
        let (done, alive) = io::pipe()?;
        let (cancelled, cancel) = io::pipe()?;
        let done = pipe::Receiver::from_owned_fd(done.into())?;
        let mut copies = Self { threads: Vec::new(), cancel: Some(cancel), done };
        let mut first: Option<(OwnedFd, &mut OwnedFd)> = None;
        for stream in streams {
            if let Some((original, pipe)) = &first
                && are_one(original, stream)?
            {
                *stream = pipe.try_clone()?;
                continue;
            }
            let (reader, writer) = io::pipe()?;
            let original = std::mem::replace(stream, writer.into());
            let to = original.try_clone()?.into();
            let copy = Copy { from: reader, to, cancelled: cancelled.try_clone()?, meter: meter.clone() };
            let alive = alive.try_clone()?;
            let body = move || {
                // The stage notices an error when this thread closes its end of the pipe.
                if let Err(error) = copy.run() {
                    tracing::debug!(%error, "an output stream ended");
                }
                drop(alive);
            };
            copies.threads.push(std::thread::Builder::new().name("output".into()).spawn(body)?);
            first.get_or_insert((original, stream));
        }
        Ok(copies)
    }

    /// Drops undelivered output.
    pub(crate) fn cancel(&mut self) {
        drop(self.cancel.take());
    }

    /// Waits until all output is delivered or dropped.
    pub(crate) async fn finished(&self) {
        // Nobody writes to it, so it becomes readable at end of file.
        let _ = self.done.readable().await;
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.cancel();
        for thread in self.threads.drain(..) {
            // A thread that hangs in a write (to a stopped terminal) ends with this process.
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

/// Returns whether two streams lead to the same file with the same flags.
fn are_one(output: &OwnedFd, error: &OwnedFd) -> io::Result<bool> {
    let what = |stream: &OwnedFd| -> io::Result<_> {
        let meta = fstat(stream)?;
        Ok((meta.st_dev, meta.st_ino, fcntl(stream, FcntlArg::F_GETFL)?))
    };
    Ok(what(output)? == what(error)?)
}

/// The copy of one stream.
struct Copy {
    from: PipeReader,
    to: std::fs::File,
    cancelled: PipeReader,
    meter: Meter,
}

impl Copy {
    fn run(mut self) -> io::Result<()> {
        let mut buffer = [0; CHUNK];
        loop {
            // Polling also notices a closed reader without a write.
            if !self.wait(self.from.as_fd(), PollFlags::POLLIN)? {
                return Ok(());
            }
            let count = match self.from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let bytes = buffer.get(..count).unwrap_or_default();
            let granted = self.meter.take(bytes.len());
            self.deliver(bytes.get(..granted).unwrap_or_default())?;
            if granted < bytes.len() {
                self.meter.stop();
                return Ok(());
            }
        }
    }

    fn deliver(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            if !self.wait(self.to.as_fd(), PollFlags::POLLOUT)? {
                return Ok(());
            }
            match self.to.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                // Another process may have made the file description non-blocking.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until `fd` is ready. Returns false if it was canceled or the reader is gone.
    fn wait(&self, fd: BorrowedFd<'_>, events: PollFlags) -> io::Result<bool> {
        loop {
            let mut fds = [
                PollFd::new(fd, events),
                PollFd::new(self.cancelled.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.to.as_fd(), PollFlags::empty()),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(_) => {}
            }
            let [ready, cancelled, to] = &fds;
            if cancelled.any().unwrap_or(false) || to.revents().is_some_and(|found| !found.is_empty()) {
                return Ok(false);
            }
            if ready.any().unwrap_or(false) {
                return Ok(true);
            }
        }
    }
}

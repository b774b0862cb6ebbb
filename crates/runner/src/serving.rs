//! Serves connections on a thread of its own.
//!
//! A client can make a system call of the proxy take long, for instance by a descriptor that blocks when it is closed (before Linux 6.16),
//! and so can a disk that does not answer. The clock, signals and the end of a run must not wait for that thread.

use std::future::Future;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use exeat_proxy::limits::CLOSING;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The time that the thread may take to end beyond the drain of its connections, on a busy machine too.
const MARGIN: Duration = Duration::from_secs(2);

/// The line for the caller if the thread did not end in time.
pub(crate) const BLOCKED: &str =
    "the proxy was blocked at the end: the record may lack the ends of connections and refusals";

/// A thread that runs tasks until [`ServingThread::end`].
#[derive(Debug)]
pub(crate) struct ServingThread {
    runtime: Handle,
    /// Dropping it ends the thread.
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
    tasks: JoinSet<()>,
}

impl ServingThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns the error of epoll_create(2), eventfd(2) or clone(2).
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (ending, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("proxy".into()).spawn(move || {
            // It only ends by the drop of the sender.
            let _ = runtime.block_on(stopped);
            // This closes what is still open, which may take long, too.
            drop(runtime);
            drop(ending);
        })?;
        Ok(Self { runtime: handle, stop, ended, thread, tasks: JoinSet::new() })
    }

    /// Calls `open`, which opens sockets for tasks of this thread.
    pub(crate) fn open<T>(&self, open: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        open()
    }

    /// Runs `work` on the thread and returns its result.
    ///
    /// # Errors
    /// Returns its error, or an error if it panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        self.runtime.spawn(work).await.map_err(io::Error::other)?
    }

    /// Begins a task on the thread.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Completes when all tasks have ended. Cancel-safe.
    pub(crate) async fn finished(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Waits until all tasks and the thread have ended. Returns whether they have: a thread that is still blocked after the time for a
    /// drain of `drain` is left alone. It ends with the process at the latest.
    pub(crate) async fn end(mut self, drain: Duration) -> bool {
        let limit = drain + CLOSING + MARGIN;
        let done = timeout(limit, async move {
            self.finished().await;
            drop(self.stop);
            // The sender was dropped by the thread.
            let _ = self.ended.await;
            self.thread
        });
        done.await.is_ok_and(|thread| thread.join().is_ok())
    }
}

#[cfg(test)]
mod tests;

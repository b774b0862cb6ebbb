//! Accepts connections and owns their tasks. `connect.rs` reads them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use exeat_record::ConnId;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::connect;
use crate::context::{Context, Entry};
use crate::limits::{self};
use crate::rights::refuse_descriptors;
use crate::room::Capacity;
use crate::stream::Stream;
use crate::tally::Tally;

/// A source of connections. Both kinds get the same service and the same verdicts.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket on the host, bound into the sandbox.
    Unix(tokio::net::UnixListener),
    /// A TCP listener, usually handed over from the sandbox's network namespace.
    Tcp(tokio::net::TcpListener),
}

impl Listener {
    /// Takes a Unix listener over, and makes it non-blocking. Call it inside a runtime.
    ///
    /// From here on nobody can send a descriptor to a new connection, if the kernel can refuse them. For an earlier connection, make the
    /// listener with [`listen_unix`](crate::listen_unix).
    pub fn unix(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        refuse_descriptors(&listener)?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener).map(Self::Unix)
    }

    /// Takes a TCP listener over, and makes it non-blocking. Call it inside a runtime.
    pub fn tcp(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(listener).map(Self::Tcp)
    }

    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                // Without this, a small answer waits until the previous one is acknowledged (Nagle).
                let _ = stream.set_nodelay(true);
                Stream::Tcp(stream)
            }),
        }
    }
}

/// The counts of a listener that has stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeReport {
    /// Connections accepted on this listener.
    pub accepted: u64,
    /// Connections that were aborted because they were still open after the drain, or when it was cut short.
    pub aborted: u64,
    /// Connections that were refused or closed because too many were open.
    pub busy: u64,
    /// Failed accepts.
    pub accept_errors: u64,
}

/// Serves connections from `listener` with the protocol of `entry`, until `stop` is cancelled. Open tunnels then
/// get `limits.drain` to deliver what their clients sent, unless [`Context::cut`] is called; other connections are
/// dropped. Several calls may share one context.
///
/// Dropping the future aborts every connection at once. Each still writes its `close` record, but nothing waits for
/// it. Cancel `stop` instead, and call [`cut`](Context::cut) to cut the drain short.
pub async fn serve(
    listener: Listener,
    entry: Entry,
    cx: Arc<Context>,
    stop: CancellationToken,
) -> ServeReport {
    accept(listener, entry, cx, stop).await
}

/// Handles the connections of a listener.
pub(crate) trait Service: Send + Sync + 'static {
    /// Returns the shared limits and slots.
    fn room(&self) -> &Capacity;

    /// Completes when open connections get no more time.
    fn drain_cancelled(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Runs alongside `accept`; never completes; cancel-safe.
    fn run_background(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Called when the last connection of a listener has ended.
    fn on_finished(&self) {}

    /// Counts an accepted connection.
    fn count_accepted(&self) {}

    /// Counts a connection that gets no slot.
    fn count_turned_away(&self);

    /// Serves one connection until it closes.
    fn serve(
        &self,
        client: Stream,
        entry: Entry,
        conn: ConnId,
        stop: &CancellationToken,
    ) -> impl Future<Output = ()> + Send;

    /// Answers a connection that gets no slot.
    fn turn_away(&self, client: Stream, entry: Entry, conn: ConnId) -> impl Future<Output = ()> + Send;
}

impl Service for Context {
    fn room(&self) -> &Capacity {
        Context::room(self)
    }

    async fn drain_cancelled(&self) {
        self.until_cut().await;
    }

    async fn run_background(&self) {
        self.refusals().run_background(self.log()).await;
    }

    fn on_finished(&self) {
        self.refusals().flush(self.log());
    }

    fn count_accepted(&self) {
        self.tally(Tally::count_accepted);
    }

    fn count_turned_away(&self) {
        self.tally(Tally::count_turned_away);
    }

    async fn serve(&self, client: Stream, entry: Entry, conn: ConnId, stop: &CancellationToken) {
        connect::serve(client, entry, conn, self, stop).await;
    }

    async fn turn_away(&self, client: Stream, entry: Entry, conn: ConnId) {
        connect::refuse_busy(client, entry, conn, self).await;
    }
}

/// Runs the accept loop of a listener, and owns the task of every connection.
pub(crate) async fn accept<S: Service>(
    listener: Listener,
    entry: Entry,
    cx: Arc<S>,
    stop: CancellationToken,
) -> ServeReport {
    let mut report = ServeReport::default();
    let mut tasks = JoinSet::new();
    let mut backoff = Backoff::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = tasks.join_next() => {
                note_panic(ended);
                continue;
            }
            accepted = listener.accept() => accepted,
            () = cx.run_background() => continue,
        };
        let client = match accepted {
            Ok(client) => client,
            Err(error) => {
                report.accept_errors += 1;
                tracing::debug!(%error, "accept failed");
                if !concerns_one_connection(&error) {
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = sleep(backoff.next()) => {}
                    }
                }
                continue;
            }
        };
        backoff = Backoff::default();
        report.accepted += 1;
        cx.count_accepted();
        let conn = cx.room().next_number();
        let (cx, stop, entry) = (Arc::clone(&cx), stop.clone(), entry.clone());
        if let Ok(slot) = Arc::clone(&cx.room().slots).try_acquire_owned() {
            tasks.spawn(async move {
                cx.serve(client, entry, conn, &stop).await;
                drop(slot);
            });
        } else {
            report.busy += 1;
            cx.count_turned_away();
            if let Ok(slot) = Arc::clone(&cx.room().busy).try_acquire_owned() {
                tasks.spawn(async move {
                    cx.turn_away(client, entry, conn).await;
                    drop(slot);
                });
            }
        }
    }
    drop(listener);
    report.aborted = drain(tasks, cx.room().limits.drain + limits::CLOSING, cx.drain_cancelled()).await;
    cx.on_finished();
    report
}

/// Waits for the connections to end, until `limit` has passed or `hurried` completes. Then aborts the rest and
/// returns their number.
async fn drain(mut tasks: JoinSet<()>, limit: Duration, hurried: impl Future<Output = ()>) -> u64 {
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            note_panic(ended);
        }
    };
    tokio::select! {
        _ = timeout(limit, all) => {}
        () = hurried => {}
    }
    let left = tasks.len() as u64;
    tasks.shutdown().await;
    left
}

/// Logs a panic. It ends only its own task, but is a bug.
pub(crate) fn note_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a task panicked");
    }
}

/// Whether an error of `accept` concerns only the connection that was about to be accepted, not the listener
/// (accept(2)).
pub(crate) fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

/// The pause after a failed accept, so that a full descriptor table does not make the loop spin (R01).
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(limits::ACCEPT_BACKOFF.0)
    }
}

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(limits::ACCEPT_BACKOFF.1);
        pause
    }
}

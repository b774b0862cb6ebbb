//! Forwards connections to another proxy, byte for byte. It parses and decides nothing: the other proxy does, and
//! its record has the decisions.
//!
//! Invariant: nothing but that proxy's socket is opened. If it does not answer, the client is told so.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use exeat_record::{ConnId, Event, Log, RunNote, What};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::connect::unread_reply;
use crate::context::Entry;
use crate::limits::{self, ProxyLimits};
use crate::reply::Refusal;
use crate::rights::connect_unix;
use crate::room::Capacity;
use crate::server::{Listener, ServeReport, Service, accept};
use crate::stream::Stream;
use crate::tally::ConnectionSummary;
use crate::tunnel::{self, Early, Moved};

/// The state that all forwarded connections of one run share.
pub struct Forward {
    to: PathBuf,
    log: Log,
    room: Capacity,
    turned_away: AtomicU64,
    lost: Mutex<LostConnections>,
}

/// Connections that could not reach the other proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostConnections {
    /// The number of connections.
    pub count: u64,
    /// The error of the first one.
    pub why: Option<String>,
}

impl Forward {
    /// Creates a forwarder with the default limits, to the proxy that listens on this Unix socket. Each connection
    /// opens the path anew, so a restarted proxy is used again. Wrap it in an [`Arc`].
    #[must_use]
    pub fn new(to: PathBuf, log: Log) -> Self {
        Self {
            to,
            log,
            room: Capacity::new(ProxyLimits::default()),
            turned_away: AtomicU64::new(0),
            lost: Mutex::default(),
        }
    }

    /// Returns how many connections there were so far, and how many were refused because too many were open.
    #[must_use]
    pub fn summary(&self) -> ConnectionSummary {
        ConnectionSummary {
            connections: self.room.count(),
            turned_away: self.turned_away.load(Ordering::Relaxed),
            ..ConnectionSummary::default()
        }
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn with_limits(mut self, limits: ProxyLimits) -> Self {
        self.room = Capacity::new(limits);
        self
    }

    /// Returns the connections so far that could not reach the other proxy.
    #[must_use]
    pub fn lost_connections(&self) -> LostConnections {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_lost(&self, error: &io::Error) {
        let first = {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.count += 1;
            lost.why.is_none().then(|| lost.why.insert(error.to_string()).clone())
        };
        if let Some(why) = first {
            let mut note = RunNote::new(What::ProxyLost);
            note.error = Some(why);
            // An error needs no handling: the log fails closed by itself.
            let _ = self.log.write(Event::Note(note));
        }
    }

    async fn refuse(&self, mut client: Stream, entry: Entry, conn: ConnId, refusal: &Refusal) {
        let reply = unread_reply(refusal, &entry, self.log.run(), conn);
        if client.write_until(&reply, Instant::now() + limits::REPLY).await.is_ok() {
            client.linger(self.room.limits.linger).await;
        }
    }
}

/// Serves connections from `listener`, by forwarding them, until `stop` is cancelled. See [`serve`](crate::serve).
///
/// Dropping the future cuts every connection at once: cancel `stop` instead.
pub async fn forward(
    listener: Listener,
    entry: Entry,
    cx: Arc<Forward>,
    stop: CancellationToken,
) -> ServeReport {
    accept(listener, entry, cx, stop).await
}

impl Service for Forward {
    fn room(&self) -> &Capacity {
        &self.room
    }

    fn count_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    async fn serve(&self, client: Stream, entry: Entry, conn: ConnId, stop: &CancellationToken) {
        if entry != Entry::Http {
            // The other proxy reads HTTP on its socket. It would take the bytes of another protocol for a request.
            return self.refuse(client, entry, conn, &Refusal::NoProxy).await;
        }
        let connecting = connect(&self.to, Instant::now() + self.room.limits.connect);
        let upstream = match stop.run_until_cancelled(connecting).await {
            None => return,
            Some(Ok(upstream)) => Stream::Unix(upstream),
            Some(Err(error)) => {
                tracing::debug!(%conn, %error, "no proxy");
                self.note_lost(&error);
                return self.refuse(client, entry, conn, &Refusal::NoProxy).await;
            }
        };
        let moved = Moved::default();
        let early = Early::default();
        let ended =
            tunnel::run(client, upstream, early, &moved, &self.room.pool, &self.room.limits, stop).await;
        tracing::debug!(%conn, end = ?ended.end, up = moved.up(), down = moved.down(), "closed");
    }

    async fn turn_away(&self, client: Stream, entry: Entry, conn: ConnId) {
        self.refuse(client, entry, conn, &Refusal::Busy).await;
    }
}

/// Connects to the socket, and retries while its queue is full (`EAGAIN`, unix(7)), until `by`.
async fn connect(to: &Path, by: Instant) -> io::Result<UnixStream> {
    let asking = async {
        loop {
            match connect_unix(to).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(limits::ACCEPT_BACKOFF.0).await;
                }
                done => return done,
            }
        }
    };
    timeout_at(by, asking).await?
}

#[cfg(test)]
mod tests;

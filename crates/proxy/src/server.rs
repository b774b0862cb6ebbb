//! Accepts connections and owns their tasks. `connect.rs` reads them.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use exeat_policy::{Policy, Reason, Target};
use exeat_record::{ConnId, Decision, Header, Log, Proto, RunId, Under};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::connect;
use crate::denials::Denials;
use crate::guard::{Guard, System};
use crate::held::HeadMemory;
use crate::limits::{self, ProxyLimits};
use crate::per_host::PerHost;
use crate::refusals::{Recorded, Refusals};
use crate::room::Room;
use crate::stream::Stream;
use crate::tally::{ConnectionSummary, DeniedHost, Tally};
use crate::tunnel::Pool;
use crate::upload::Uploads;
use crate::upstream::UpstreamProxy;
use crate::who::ProcessFinder;

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
    pub fn unix(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
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

/// The protocol of a listener's clients. The listener determines it, never what they send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// HTTP: `CONNECT host:port`, and requests for `http://` URLs.
    Http,
    /// SOCKS5 (RFC 1928), without authentication.
    Socks5,
    /// The protocol of this target, which is all that the client can reach: the gateway's entry.
    Gateway(Arc<Target>),
    /// The protocol of this target, for a port of the host.
    Forward(Arc<Target>),
}

/// A policy, and its name in the record. A decision is made and written with the same ruling.
#[derive(Debug)]
pub(crate) struct Ruling {
    pub(crate) policy: Policy,
    pub(crate) under: Arc<Under>,
}

/// What all connections of one run share: policy, log, limits, tally.
pub struct Context {
    ruling: RwLock<Arc<Ruling>>,
    log: Log,
    run: RunId,
    room: Room,
    denials: Option<Denials>,
    guard: Guard,
    upstream: Option<UpstreamProxy>,
    who: Option<Arc<dyn ProcessFinder>>,
    tally: Mutex<Tally>,
    refusals: Refusals,
    /// The open connections to each host.
    per_host: PerHost,
    /// The bytes sent under each budget.
    uploads: Uploads,
    /// A permit for each delayed answer.
    slowed: Semaphore,
    /// Cancelled to end the wait for open connections.
    cut: CancellationToken,
}

impl Context {
    /// Creates a context with the default limits and without a denials file. Wrap it in an [`Arc`] when it is
    /// complete.
    #[must_use]
    pub fn new(policy: Policy, log: Log, run: RunId) -> Self {
        let Header { policy_sha256, mode, .. } = log.header();
        let under = Under { policy_sha256: policy_sha256.clone(), mode: *mode };
        Self {
            ruling: RwLock::new(Arc::new(Ruling { policy, under: Arc::new(under) })),
            log,
            run,
            room: Room::new(ProxyLimits::default()),
            denials: None,
            guard: Guard::new(Arc::new(System::for_this_host())),
            upstream: None,
            who: None,
            tally: Mutex::default(),
            refusals: Refusals::new(),
            per_host: PerHost::default(),
            uploads: Uploads::default(),
            slowed: Semaphore::new(limits::SLOWED),
            cut: CancellationToken::new(),
        }
    }

    /// Writes one JSON line per denial to `file`, which the stage may read.
    #[must_use]
    pub fn with_denials(mut self, file: File) -> Self {
        self.denials = Some(Denials::new(file));
        self
    }

    /// Reports the first refusal to `watch`, and once each target that is refused again and again, with its count.
    #[must_use]
    pub fn with_watch(self, watch: UnboundedSender<DeniedHost>) -> Self {
        self.tally(|tally| tally.set_watch(watch));
        self
    }

    /// Delays the answer to a target that was refused too often.
    pub(crate) async fn slow_down(&self, refusals: u64) {
        let over = refusals.saturating_sub(limits::ANSWERED_AT_ONCE);
        if over > 0
            && let Ok(_place) = self.slowed.try_acquire()
        {
            sleep(Duration::from_millis(over).min(limits::SLOWED_MOST)).await;
        }
    }

    /// Sends connections through another proxy. If it fails they fail, because no connection is made without it.
    #[must_use]
    pub fn with_upstream(mut self, proxy: Option<UpstreamProxy>) -> Self {
        self.upstream = proxy;
        self
    }

    /// Records the processes behind connections, as far as `who` finds them.
    #[must_use]
    pub fn with_process_finder(mut self, who: Option<Arc<dyn ProcessFinder>>) -> Self {
        self.who = who;
        self
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn with_limits(mut self, limits: ProxyLimits) -> Self {
        self.room = Room::new(limits);
        self
    }

    #[cfg(test)]
    pub(crate) fn with_resolver(mut self, resolver: Arc<dyn crate::guard::Resolve>) -> Self {
        self.guard = Guard::new(resolver);
        self
    }

    /// Returns what has happened so far, after writing all of it to the record.
    #[must_use]
    pub fn summary(&self) -> ConnectionSummary {
        self.refusals.flush(&self.log);
        self.tally(|tally| tally.summary(self.log.counts()))
    }

    /// Uses this policy for further decisions, and names it `under` in the record. Connections with a decision
    /// continue. A decision that has begun, such as one that waits for a name lookup, still uses the old policy.
    pub fn replace_policy(&self, policy: Policy, under: Arc<Under>) {
        *self.ruling.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Ruling { policy, under });
    }

    /// Ends the wait for open connections. A [`serve`] that is stopped then cuts them at once, and returns after
    /// their `close` records are written.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// Returns the current policy. [`Record::ruling`](crate::record::Record::ruling) takes it once for each
    /// connection.
    pub(crate) fn ruling(&self) -> Arc<Ruling> {
        Arc::clone(&self.ruling.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Records a refusal of something that was not let out before.
    pub(crate) fn refuse(&self, decision: Decision) -> Result<Recorded, exeat_record::Error> {
        self.record_is_full();
        self.refusals.write(&self.log, decision)
    }

    /// Whether the record has reached its size, or the disk is full. From then on no connection is let out, and
    /// refusals are only counted.
    pub(crate) fn record_is_full(&self) -> bool {
        let size = self.room.limits.audit_size;
        let kept = (size / limits::AUDIT_KEPT).min(limits::AUDIT_KEPT_MOST);
        let is_full = self.log.is_beyond(size - kept);
        if is_full {
            self.refusals.hold_back();
        }
        is_full
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    pub(crate) fn limits(&self) -> &ProxyLimits {
        &self.room.limits
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Returns the upstream proxy for a target, or `None` if it is dialed directly.
    pub(crate) fn upstream_for(&self, target: &Target) -> Option<&UpstreamProxy> {
        self.upstream.as_ref().filter(|proxy| proxy.applies_to(target))
    }

    pub(crate) fn who(&self) -> Option<&dyn ProcessFinder> {
        self.who.as_deref()
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.room.pool
    }

    pub(crate) fn head_memory(&self) -> &HeadMemory {
        &self.room.head_memory
    }

    pub(crate) fn per_host(&self) -> &PerHost {
        &self.per_host
    }

    pub(crate) fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    pub(crate) fn tally<T>(&self, count: impl FnOnce(&mut Tally) -> T) -> T {
        count(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes one line for the stage to read. `flag` must hold only what the stage may know.
    pub(crate) fn deny_inside(&self, target: &str, proto: Proto, reason: Reason, flag: Option<&str>) {
        if let Some(denials) = &self.denials {
            denials.write(target, proto, reason, flag);
        }
    }
}

/// How serving ended.
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
/// it. Cancel `stop` instead, and call [`cut`](Context::cut) if there is no time.
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
    fn room(&self) -> &Room;

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
    fn room(&self) -> &Room {
        &self.room
    }

    async fn drain_cancelled(&self) {
        self.cut.cancelled().await;
    }

    async fn run_background(&self) {
        self.refusals.run_background(&self.log).await;
    }

    fn on_finished(&self) {
        self.refusals.flush(&self.log);
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

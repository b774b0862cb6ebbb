//! Accepts connections and owns their tasks. It does not read them: `connect.rs` does.

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
use crate::held::Held;
use crate::limits::{self, Limits};
use crate::per_host::PerHost;
use crate::refusals::{Refusals, Told};
use crate::room::Room;
use crate::stream::Stream;
use crate::tally::{DeniedHost, Summary, Tally};
use crate::tunnel::Pool;
use crate::upload::Uploads;
use crate::upstream::UpstreamProxy;
use crate::who::Who;

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

    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                // Without it a small answer waits for the acknowledgement of the one before (Nagle).
                let _ = stream.set_nodelay(true);
                Stream::Tcp(stream)
            }),
        }
    }
}

/// What the clients of a listener speak: told by the listener, and never by what they send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// HTTP: `CONNECT host:port`, and requests for `http://` URLs.
    Http,
    /// SOCKS5 (RFC 1928), without authentication.
    Socks5,
    /// What they would speak with this target, which is all that they can reach: the gateway's.
    Gateway(Arc<Target>),
    /// The same, for a port of the host.
    Forward(Arc<Target>),
}

/// The policy of a moment, and what the record calls it: a decision is made, and written, with one and the same.
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
    who: Option<Arc<dyn Who>>,
    tally: Mutex<Tally>,
    refusals: Refusals,
    /// The connections to each host.
    per_host: PerHost,
    /// What went up under each budget.
    uploads: Uploads,
    /// Places of answers that wait.
    slowed: Semaphore,
    /// Cancelled once nobody waits for connections that are open at the end.
    cut: CancellationToken,
}

impl Context {
    /// A context with the default limits and without a denials file. Wrap it in an [`Arc`] when it is complete.
    #[must_use]
    pub fn new(policy: Policy, log: Log, run: RunId) -> Self {
        let Header { policy_sha256, mode, .. } = log.header();
        let under = Under { policy_sha256: policy_sha256.clone(), mode: *mode };
        Self {
            ruling: RwLock::new(Arc::new(Ruling { policy, under: Arc::new(under) })),
            log,
            run,
            room: Room::new(Limits::default()),
            denials: None,
            guard: Guard::new(Arc::new(System::of_this_host())),
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

    /// Writes one JSON line per denial to `file`, which the stage may read: target, reason, flag.
    #[must_use]
    pub fn with_denials(mut self, file: File) -> Self {
        self.denials = Some(Denials::new(file));
        self
    }

    /// Tells of the first refusal, and once of each target that is refused again and again, with how often it was.
    #[must_use]
    pub fn with_watch(self, watch: UnboundedSender<DeniedHost>) -> Self {
        self.tally(|tally| tally.watched_by(watch));
        self
    }

    /// Waits before the answer to a target that has been refused so often.
    pub(crate) async fn slow_down(&self, refusals: u64) {
        let over = refusals.saturating_sub(limits::ANSWERED_AT_ONCE);
        if over > 0
            && let Ok(_place) = self.slowed.try_acquire()
        {
            sleep(Duration::from_millis(over).min(limits::SLOWED_MOST)).await;
        }
    }

    /// Leaves connections to another proxy. When that fails they fail: none is made without it.
    #[must_use]
    pub fn with_upstream(mut self, proxy: Option<UpstreamProxy>) -> Self {
        self.upstream = proxy;
        self
    }

    /// Tells the record of the processes behind connections, as far as they are found.
    #[must_use]
    pub fn with_who(mut self, who: Option<Arc<dyn Who>>) -> Self {
        self.who = who;
        self
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.room = Room::new(limits);
        self
    }

    #[cfg(test)]
    pub(crate) fn with_resolver(mut self, resolver: Arc<dyn crate::guard::Resolve>) -> Self {
        self.guard = Guard::new(resolver);
        self
    }

    /// What has happened so far; all of it is in the record then.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.refusals.flush(&self.log);
        self.tally(|tally| tally.summary(self.log.counts()))
    }

    /// From here on this policy is asked, and `under` stands in the lines of its decisions. A connection that was decided
    /// already goes on, and one that is being decided, such as while its name is looked up, is decided by the policy with
    /// which that began.
    pub fn replace_policy(&self, policy: Policy, under: Arc<Under>) {
        *self.ruling.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Ruling { policy, under });
    }

    /// From here on nothing waits for connections that are open when serving stops: a [`serve`] that is stopped cuts them at
    /// once, and has their `close` records written when it returns.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// The policy of this moment. [`Record::ruling`](crate::record::Record::ruling) takes it, once for each connection.
    pub(crate) fn ruling(&self) -> Arc<Ruling> {
        Arc::clone(&self.ruling.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Has a refusal on record: of nothing that was let out before.
    pub(crate) fn refuse(&self, decision: Decision) -> Result<Told, exeat_record::Error> {
        self.record_is_full();
        self.refusals.write(&self.log, decision)
    }

    /// Whether the record has the size that it may have, or the disk no space for more of it: then no connection is let out any more, and
    /// what is refused is counted.
    pub(crate) fn record_is_full(&self) -> bool {
        let size = self.room.limits.audit_size;
        let kept = (size / limits::AUDIT_KEPT).min(limits::AUDIT_KEPT_MOST);
        let is_full = self.log.is_beyond(size - kept);
        if is_full {
            self.refusals.hold_back();
        }
        is_full
    }

    /// Dials that fail in a flood.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.room.limits
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The proxy that a target is left to, where it is not reached directly.
    pub(crate) fn next_hop(&self, target: &Target) -> Option<&UpstreamProxy> {
        self.upstream.as_ref().filter(|proxy| proxy.takes(target))
    }

    pub(crate) fn who(&self) -> Option<&dyn Who> {
        self.who.as_deref()
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.room.pool
    }

    pub(crate) fn held(&self) -> &Held {
        &self.room.held
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

    /// One line for the stage to read; `flag` holds only what it may know.
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
    /// Connections that were still open when the drain was over, or was cut short, and were aborted.
    pub aborted: u64,
    /// Connections refused, or closed, because too many were open.
    pub busy: u64,
    /// Failed accepts.
    pub accept_errors: u64,
}

/// Serves connections from `listener`, whose clients speak `entry`, until `stop` is cancelled. A tunnel still open then gets `limits.drain` to deliver
/// what its client has sent, or until [`Context::cut`]; a connection that has no tunnel yet is dropped. Several calls may share one context.
///
/// Dropping the future aborts every connection at once. Each still writes its `close` record, but nothing waits for
/// it: cancel `stop` instead, and [`cut`](Context::cut) where there is no time.
pub async fn serve(
    listener: Listener,
    entry: Entry,
    cx: Arc<Context>,
    stop: CancellationToken,
) -> ServeReport {
    accept(listener, entry, cx, stop).await
}

/// What is done with the connections of a listener.
pub(crate) trait Service: Send + Sync + 'static {
    /// The room that they share.
    fn room(&self) -> &Room;

    /// Ends when these get no more time.
    fn hurried(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// What is to be done while connections are waited for. Does not end, and is dropped at any moment.
    fn tend(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// No connection of a listener is left.
    fn finished(&self) {}

    /// Counts a connection.
    fn accepted(&self) {}

    /// Counts one of these for which there is no room.
    fn turned_away(&self);

    /// Serves one to its end.
    fn serve(
        &self,
        client: Stream,
        entry: Entry,
        conn: ConnId,
        stop: &CancellationToken,
    ) -> impl Future<Output = ()> + Send;

    /// Answers one for which there is no room.
    fn turn_away(&self, client: Stream, entry: Entry, conn: ConnId) -> impl Future<Output = ()> + Send;
}

impl Service for Context {
    fn room(&self) -> &Room {
        &self.room
    }

    async fn hurried(&self) {
        self.cut.cancelled().await;
    }

    async fn tend(&self) {
        self.refusals.tend(&self.log).await;
    }

    fn finished(&self) {
        self.refusals.flush(&self.log);
    }

    fn accepted(&self) {
        self.tally(Tally::accepted);
    }

    fn turned_away(&self) {
        self.tally(Tally::turned_away);
    }

    async fn serve(&self, client: Stream, entry: Entry, conn: ConnId, stop: &CancellationToken) {
        connect::serve(client, entry, conn, self, stop).await;
    }

    async fn turn_away(&self, client: Stream, entry: Entry, conn: ConnId) {
        connect::too_many(client, entry, conn, self).await;
    }
}

/// The loop of a listener: it owns the task of every connection.
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
            () = cx.tend() => continue,
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
        cx.accepted();
        let conn = cx.room().number();
        let (cx, stop, entry) = (Arc::clone(&cx), stop.clone(), entry.clone());
        if let Ok(slot) = Arc::clone(&cx.room().slots).try_acquire_owned() {
            tasks.spawn(async move {
                cx.serve(client, entry, conn, &stop).await;
                drop(slot);
            });
        } else {
            report.busy += 1;
            cx.turned_away();
            if let Ok(slot) = Arc::clone(&cx.room().busy).try_acquire_owned() {
                tasks.spawn(async move {
                    cx.turn_away(client, entry, conn).await;
                    drop(slot);
                });
            }
        }
    }
    drop(listener);
    report.aborted = drain(tasks, cx.room().limits.drain + limits::CLOSING, cx.hurried()).await;
    cx.finished();
    report
}

/// Waits for the connections to end, at most `limit` and not beyond `hurried`; then aborts the rest and says how many they
/// were.
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

/// A panic ends its own task and nothing else; it is a bug all the same.
pub(crate) fn note_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a task panicked");
    }
}

/// Errors of `accept` that belong to the connection that was about to be accepted, and not to the listener (accept(2)).
pub(crate) fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

/// Pauses between failed accepts, so that a full descriptor table does not make the loop spin (R01).
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

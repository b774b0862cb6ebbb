//! The state that all connections of one run share.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use exeat_policy::{Policy, Reason, Target};
use exeat_record::{Header, Log, Proto, RequestDecision, RunId, Under};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::denials::Denials;
use crate::guard::{Guard, System};
use crate::held::HeadMemory;
use crate::limits::{self, ProxyLimits};
use crate::per_host::PerHost;
use crate::pool::Pool;
use crate::refusals::{Recorded, Refusals};
use crate::room::Capacity;
use crate::tally::{ConnectionSummary, DeniedHost, Tally};
use crate::upload::Uploads;
use crate::upstream::UpstreamProxy;
use crate::who::ProcessFinder;

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

/// The state that all connections of one run share: policy, log, limits, tally.
pub struct Context {
    ruling: RwLock<Arc<Ruling>>,
    log: Log,
    run: RunId,
    room: Capacity,
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
            room: Capacity::new(ProxyLimits::default()),
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
        self.room = Capacity::new(limits);
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

    /// Ends the wait for open connections. A [`serve`](crate::serve) that is stopped then cuts them at once, and returns after
    /// their `close` records are written.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// Waits until [`cut`](Self::cut) is called.
    pub(crate) async fn until_cut(&self) {
        self.cut.cancelled().await;
    }

    /// Returns the current policy. [`Record::ruling`](crate::record::Record::ruling) takes it once for each
    /// connection.
    pub(crate) fn ruling(&self) -> Arc<Ruling> {
        Arc::clone(&self.ruling.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Records a refusal. The connection must not have been let through before.
    pub(crate) fn refuse(&self, decision: RequestDecision) -> Result<Recorded, exeat_record::LogError> {
        self.record_is_full();
        self.refusals.write(&self.log, decision)
    }

    /// Whether the record has reached its size, or the disk is full. From then on every connection is refused, and
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

    pub(crate) fn room(&self) -> &Capacity {
        &self.room
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

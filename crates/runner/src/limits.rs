//! Enforces the limits of a run: by the kernel if it has such a limit, otherwise by watching from the host.
//!
//! `exeat_policy::Limits` defines the limits; `run.rs` enforces `timeout` because it waits for the end anyway.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exeat_files::layout::Mount;
use exeat_policy::{LEAST_AUDIT_SIZE, LEAST_MEMORY, Limit, Limits, Size};
use exeat_record::RunId;
use exeat_sandbox::backend::Handle;
use exeat_sandbox::{MemoryFiles, Meter, Offer, Resource, Rlimit};
use tokio::sync::mpsc::Sender;

use crate::ended::Reached;
use crate::error::faults::LimitFault;

mod group;

use group::MemoryGroup;
pub(crate) use group::delegated;

/// The time between two counts of the sandbox's tasks: two CPUs fork some 100 times in it.
const COUNT: Duration = Duration::from_millis(5);
/// The time between two checks of the sandbox's memory. A stage on one CPU writes some 100 MB of new memory in it.
const INTERVAL: Duration = Duration::from_millis(50);
/// The longest wait between two checks, however long a check takes: see [`pause`].
const LONGEST: Duration = Duration::from_millis(500);
/// The time until a second check confirms too much memory: a process that starts another one can look like two for a moment.
const CONFIRM: Duration = Duration::from_millis(10);
/// The time for walking page tables, after which the rest is estimated, and estimated high.
const WALK: Duration = Duration::from_secs(1);
/// The time for looking for memory files in one check; the next check continues there.
const FILES: Duration = Duration::from_millis(50);
/// The time that the sandbox may be unreadable, for example for lack of descriptors, before the stage is stopped.
const BLIND: Duration = Duration::from_secs(2);

/// The way in which a limit is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EnforcedBy {
    /// The kernel refuses what goes beyond (setrlimit(2)).
    Rlimit,
    /// The kernel bounds the memory of a control group.
    Group,
    /// The kernel bounds the size of a file system.
    Mount,
    /// exeat stops the stage at the limit.
    Supervision,
    /// exeat checks it periodically, and stops a stage beyond the limit: not exact.
    Watch,
    /// The proxy refuses connections beyond the limit.
    Proxy,
}

impl fmt::Display for EnforcedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rlimit => "rlimit",
            Self::Group => "cgroup",
            Self::Mount => "mount",
            Self::Supervision => "supervised",
            Self::Watch => "watched",
            Self::Proxy => "proxy",
        })
    }
}

/// The limits of one run on this machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunLimits {
    pub(crate) limits: Limits,
    /// Whether the stage keeps root's uid. Then the kernel ignores RLIMIT_NPROC, so exeat counts the processes.
    root: bool,
    /// The control group in which one with a memory limit can be made.
    delegated: Option<PathBuf>,
}

impl RunLimits {
    /// Checks the limits. With `root` the stage keeps root's kernel uid.
    pub(crate) fn new(limits: Limits, root: bool) -> Result<Self, LimitFault> {
        for (limit, value) in limits.counts() {
            let least = *limit.range().start();
            if value < least {
                return Err(LimitFault::TooSmall { key: limit.key(), least });
            }
        }
        check_audit_size(&limits)?;
        match limits.memory.filter(|size| *size < LEAST_MEMORY) {
            Some(size) => Err(LimitFault::Memory(size)),
            None => Ok(Self { limits, root, delegated: limits.memory.and_then(|_| group::delegated()) }),
        }
    }

    /// Returns the key, the value and the enforcement of each limit.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, String, EnforcedBy)> {
        self.limits.set().map(|(limit, value)| (limit.key(), value, self.enforced_by(limit)))
    }

    fn enforced_by(&self, limit: Limit) -> EnforcedBy {
        match limit {
            // Only what `Limit::is_of_proxy` names reaches the proxy.
            Limit::Connections | Limit::ConnectionsPerHost | Limit::AuditSize => EnforcedBy::Proxy,
            Limit::CpuTime | Limit::OpenFiles | Limit::FileSize => EnforcedBy::Rlimit,
            Limit::TmpfsSize => EnforcedBy::Mount,
            Limit::Memory if self.delegated.is_some() => EnforcedBy::Group,
            Limit::Memory => EnforcedBy::Watch,
            Limit::Pids if self.root => EnforcedBy::Watch,
            Limit::Pids => EnforcedBy::Rlimit,
            Limit::Timeout | Limit::Grace | Limit::OutputSize => EnforcedBy::Supervision,
        }
    }

    /// Returns a text like `memory=2GiB (watched)` for each limit.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.each().map(|(key, value, by)| format!("{key}={value} ({by})")).collect()
    }

    fn watches_pids(&self) -> Option<u32> {
        self.limits.pids.filter(|_| self.root)
    }

    /// Returns the kernel's limits. `own` is the number of tasks in the sandbox that do not belong to the stage.
    fn rlimits(&self, own: u64) -> Vec<Rlimit> {
        // stage2 itself sets `open_files` after it has passed its descriptors: see `RunLimits::descriptors`.
        let Limits { cpu_time, memory, pids, file_size, .. } = self.limits;
        let same = |what, resource, value: u64| Rlimit { what, resource, soft: value, hard: value };
        let mut list = Vec::new();
        if let Some(time) = cpu_time {
            let time = time.get();
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            // The soft limit sends SIGXCPU, which a program may catch to clean up; the hard limit sends SIGKILL.
            let (soft, hard) = (seconds, seconds + 1);
            list.push(Rlimit { what: "processor time", resource: Resource::RLIMIT_CPU, soft, hard });
        }
        if let Some(size) = memory {
            list.push(same("memory", Resource::RLIMIT_DATA, data_limit(size)));
        }
        if let Some(number) = pids {
            list.push(same("processes", Resource::RLIMIT_NPROC, u64::from(number).saturating_add(own)));
        }
        if let Some(size) = file_size {
            list.push(same("file size", Resource::RLIMIT_FSIZE, size.get()));
        }
        list
    }

    /// Returns the stage's soft and hard limits of open descriptors, from those of the caller.
    ///
    /// Without `open_files` the hard limit is half of the caller's. The kernel refuses to pass a descriptor while the sender's user has
    /// more in flight than the sender's soft limit (unix(7), ETOOMANYREFS). A stage and exeat are the same user to it. A stage with half
    /// of the limit cannot use up what exeat may have in flight.
    pub(crate) fn descriptors(&self, soft: u64, hard: u64) -> (u64, u64) {
        /// A soft limit up to here is not lowered: ordinary programs need that many.
        const ORDINARY: u64 = 4096;
        match self.limits.open_files {
            Some(number) => (number.into(), number.into()),
            None => {
                let most = (hard / 2).max(soft.min(ORDINARY)).min(hard);
                (soft.min(most), most)
            }
        }
    }

    /// Sets the kernel's limits on a sandbox that waits for its start, and starts the watch for the other limits.
    pub(crate) fn hold(
        &self,
        offer: &Offer,
        mounts: &[Mount],
        run: RunId,
        stop: Sender<Stop>,
    ) -> Result<Option<Watch>, exeat_sandbox::Error> {
        let Limits { memory, pids, .. } = self.limits;
        let group = memory.zip(self.delegated.as_deref()).map(|(limit, above)| {
            let made = MemoryGroup::make(above, &run.to_string(), limit);
            let entered = made.and_then(|group| Ok((offer.enter(&group.processes()?)?, group)));
            entered.map(|((), group)| (group, limit, stop.clone()))
        });
        let group =
            group.transpose().map_err(|source| exeat_sandbox::Error::Limit { what: "memory", source })?;
        // The kernel already bounds the memory of a group.
        let memory = memory.filter(|_| group.is_none());
        if memory.is_none() && pids.is_none() {
            offer.limit(&self.rlimits(0))?;
            return Ok(group.map(|group| Watch { group: Some(group), threads: Vec::new() }));
        }
        let inside = offer.meter(&in_memory(mounts))?;
        let usage = inside.usage().map_err(exeat_sandbox::Error::Watch)?;
        // The stage counts as one of the tasks, as stage2 does now.
        let own = usage.tasks().saturating_sub(1);
        offer.limit(&self.rlimits(own))?;
        let mut watch = Watch { group, threads: Vec::new() };
        let inside = Arc::new(inside);
        let what = [
            memory.map(Watched::Memory),
            self.watches_pids().map(|most| Watched::Pids { most, all: u64::from(most).saturating_add(own) }),
        ];
        for what in what.into_iter().flatten() {
            let files = MemoryFiles::new().map_err(exeat_sandbox::Error::Watch)?;
            let (inside, handle) = (Arc::clone(&inside), offer.handle());
            let watcher = Watcher { inside, files, handle, what, stop: stop.clone() };
            watch.add(watcher).map_err(exeat_sandbox::Error::Watch)?;
        }
        Ok(Some(watch))
    }
}

/// Refuses a record size that leaves no room for a run.
pub(crate) fn check_audit_size(limits: &Limits) -> Result<(), LimitFault> {
    match limits.audit_size.filter(|size| *size < LEAST_AUDIT_SIZE) {
        Some(size) => Err(LimitFault::AuditSize(size)),
        None => Ok(()),
    }
}

/// Descriptors that are not for connections: standard streams, listeners, record, sandbox, lookups, and clients that are refused for
/// lack of room.
const DESCRIPTORS_KEPT: u64 = 256;

/// Returns the limits of the proxy: those that [`Limit::is_of_proxy`] names, and no others. Each connection needs two descriptors. The number of connections is limited to what `descriptors`
/// suffice for, so that a client beyond the limit gets an answer and does not wait. With a gateway, a quarter of the descriptors is for
/// its listeners, so that neither side uses up the other's.
pub(crate) fn proxy_limits(limits: &Limits, descriptors: u64, has_gateway: bool) -> exeat_proxy::ProxyLimits {
    let limits = limits.of_proxy();
    let mut of_proxy = exeat_proxy::ProxyLimits::default();
    let number = |limit: Option<u32>| limit.and_then(|limit| usize::try_from(limit).ok());
    if let Some(connections) = number(limits.connections) {
        of_proxy.connections = connections;
    }
    if let Some(per_host) = number(limits.connections_per_host) {
        of_proxy.per_host = per_host;
    }
    if let Some(size) = limits.audit_size {
        of_proxy.audit_size = size.get();
    }
    let room = descriptors.saturating_sub(DESCRIPTORS_KEPT.min(descriptors / 2));
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    of_proxy.listeners = if has_gateway { of_proxy.listeners.min(room / 4) } else { 0 };
    of_proxy.connections = of_proxy.connections.min((room - of_proxy.listeners) / 2).max(1);
    of_proxy
}

/// Returns the limit of private writable mappings of each process, touched or not (RLIMIT_DATA), in case the machine is too busy to
/// watch. It is wide because a JVM maps a heap of a sixty-fourth of the machine's memory before it runs.
fn data_limit(memory: Size) -> u64 {
    memory.get().saturating_mul(2).saturating_add(2 << 30)
}

/// Lists the sandbox's writable file systems in memory. A tree of the host that covers one is not the stage's memory, even if it is in
/// memory.
fn in_memory(mounts: &[Mount]) -> Vec<PathBuf> {
    let place = |mount: &Mount| match mount {
        Mount::Tmpfs { at, mode, .. } if mode & 0o200 != 0 => Some(at.clone()),
        Mount::Dev { .. } => Some("/dev/shm".into()),
        _ => None,
    };
    let covers = |mount: &Mount, place: &Path| match mount {
        Mount::ReadOnly { at, .. }
        | Mount::Writable { at, .. }
        | Mount::Hidden { at, .. }
        | Mount::Tmpfs { at, .. } => place.starts_with(at),
        _ => false,
    };
    let mut places = Vec::new();
    for mount in mounts {
        places.retain(|place: &PathBuf| !covers(mount, place));
        places.extend(place(mount));
    }
    places
}

/// Reports that a limit was reached and that the stage is being killed.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) reached: Reached,
    /// The reason that usage could not be measured any more, if that stopped the stage.
    pub(crate) blind: Option<String>,
}

/// Enforces limits while a stage runs, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The group with its limit, and the receiver for reaching it.
    group: Option<(MemoryGroup, Size, Sender<Stop>)>,
    /// A thread for each watched limit.
    threads: Vec<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Watch {
    fn add(&mut self, watcher: Watcher) -> io::Result<()> {
        let (over, is_over) = mpsc::channel();
        let thread = std::thread::Builder::new().name("limits".into());
        self.threads.push((over, thread.spawn(move || watcher.watch(&is_over))?));
        Ok(())
    }

    /// Reports a limit that the kernel enforced, after the stage ended.
    pub(crate) fn tell(&self) {
        if let Some((group, limit, stop)) = &self.group
            && group.has_killed()
        {
            let _ = stop.try_send(Stop { reached: Reached::Memory(*limit), blind: None });
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (over, thread) in self.threads.drain(..) {
            drop(over);
            // A check takes little more than WALK. A panic there was already reported, and the stage is over.
            let _ = thread.join();
        }
    }
}

struct Watcher {
    inside: Arc<Meter>,
    files: MemoryFiles,
    handle: Handle,
    what: Watched,
    stop: Sender<Stop>,
}

#[derive(Debug, Clone, Copy)]
enum Watched {
    Memory(Size),
    Pids {
        most: u32,
        /// `most` plus the tasks that do not belong to the stage.
        all: u64,
    },
}

impl Watcher {
    fn watch(mut self, is_over: &mpsc::Receiver<()>) {
        if matches!(self.what, Watched::Pids { .. }) {
            // A fork bomb that is ahead stays ahead: with thousands of runnable processes, this thread would wait for seconds.
            exeat_sandbox::prefer_this_thread();
        }
        let reached = match self.what {
            Watched::Memory(size) => Reached::Memory(size),
            Watched::Pids { most, .. } => Reached::Pids(most),
        };
        let mut seen = Instant::now();
        let mut wait = self.pause(Duration::ZERO);
        while is_over.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let began = Instant::now();
            let blind = match self.is_reached(is_over) {
                Ok(false) => {
                    seen = began;
                    wait = self.pause(began.elapsed());
                    continue;
                }
                Ok(true) => None,
                Err(error) if seen.elapsed() < BLIND => {
                    tracing::debug!(%error, "cannot measure the sandbox");
                    continue;
                }
                Err(error) => Some(error.to_string()),
            };
            // The reason is sent first, so that the end is never seen without it.
            let _ = self.stop.try_send(Stop { reached, blind });
            // The receiver may be busy with the stage's connections, so the stage is killed here.
            self.handle.kill();
            return;
        }
    }

    /// Returns whether the limit is exceeded.
    fn is_reached(&mut self, is_over: &mpsc::Receiver<()>) -> io::Result<bool> {
        match self.what {
            Watched::Pids { all, .. } => self.inside.has_more_tasks_than(all),
            Watched::Memory(limit) => Ok(self.is_over_memory(limit)?
                && is_over.recv_timeout(CONFIRM) == Err(RecvTimeoutError::Timeout)
                && self.is_over_memory(limit)?),
        }
    }

    fn is_over_memory(&mut self, limit: Size) -> io::Result<bool> {
        let usage = self.inside.usage()?;
        // These cheap values settle nearly every check.
        if usage.memory_at_most(MemoryFiles::at_most()) <= limit.get() {
            return Ok(false);
        }
        let files = self.files.bytes(&self.inside, Instant::now() + FILES)?;
        Ok(usage.memory_at_most(files) > limit.get()
            && self.inside.memory(&usage, files, Instant::now() + WALK)? > limit.get())
    }

    fn pause(&self, took: Duration) -> Duration {
        match self.what {
            Watched::Memory(_) => pause(took, INTERVAL, LONGEST),
            Watched::Pids { .. } => pause(took, COUNT, INTERVAL),
        }
    }
}

/// Returns the wait after a check that took this long. Checks use at most a tenth of one CPU, except where `longest` asks for more.
fn pause(took: Duration, shortest: Duration, longest: Duration) -> Duration {
    took.saturating_mul(9).clamp(shortest, longest)
}

#[cfg(test)]
mod tests {
    use exeat_policy::LEAST_OPEN_FILES;

    use super::*;
    use crate::error::Error;

    fn tmpfs(at: &str, mode: u32) -> Mount {
        Mount::Tmpfs { at: at.into(), size: 1, mode }
    }

    #[test]
    fn memory_of_the_host_is_not_the_stage_s() {
        let bind = |at: &str| Mount::Writable {
            host: "/dev/shm".into(),
            at: at.into(),
            why: exeat_files::layout::Why::Requested,
        };
        let all = [Mount::Dev { shm: 1 }, tmpfs("/tmp", 0o1777), tmpfs("/run", 0o755), tmpfs("/home", 0)];
        let places = |more: Mount| in_memory(&[&all[..], &[more]].concat());
        let shown =
            |more| places(more).iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(shown(bind("/tmp/below")), "/dev/shm /tmp /run");
        assert_eq!(shown(bind("/tmp")), "/dev/shm /run");
        assert_eq!(shown(bind("/dev")), "/tmp /run");
        assert_eq!(shown(tmpfs("/tmp", 0o1777)), "/dev/shm /run /tmp");
    }

    #[test]
    fn a_memory_in_which_no_command_starts_is_refused() {
        let held = |text: &str| {
            RunLimits::new(Limits { memory: text.parse().ok(), ..Limits::default() }, false).map(|_| ())
        };
        assert!(held("1MiB").is_ok());
        let error = Error::from(held("100").unwrap_err());
        assert_eq!((error.code(), error.fix().as_deref()), (2, Some("probably meant: \"100M\"")), "{error}");
    }

    fn every_limit() -> Limits {
        Limits {
            timeout: "10m".parse().ok(),
            grace: "90s".parse().ok(),
            cpu_time: "1500ms".parse().ok(),
            memory: "1GiB".parse().ok(),
            pids: Some(7),
            open_files: Some(64),
            file_size: "10MB".parse().ok(),
            tmpfs_size: "1MiB".parse().ok(),
            output_size: "1kB".parse().ok(),
            connections: Some(512),
            connections_per_host: Some(64),
            audit_size: "1MiB".parse().ok(),
        }
    }

    /// The proxy enforces a limit exactly if the limit says so: the note of `exeat proxy` about limits without effect relies on it.
    #[test]
    fn the_proxy_enforces_what_is_said_to_be_its_own() {
        let of = |limits: Limits| format!("{:?}", proxy_limits(&limits, u64::MAX, true));
        let run = RunLimits::default();
        for &limit in Limit::ALL {
            let is_of_proxy = limit.is_of_proxy();
            assert_eq!(
                run.enforced_by(limit) == EnforcedBy::Proxy,
                is_of_proxy,
                "enforced_by: {}",
                limit.key()
            );
            let is_used = of(every_limit().filter(|one| one == limit)) != of(Limits::default());
            assert_eq!(is_used, is_of_proxy, "proxy_limits: {}", limit.key());
        }
    }

    /// K11: the kernel's limits and their descriptions.
    #[test]
    fn k11_lists_each_limit_with_its_enforcement() {
        let limits = every_limit();
        let of_proxy = proxy_limits(&limits, 1 << 20, true);
        assert_eq!((of_proxy.connections, of_proxy.per_host, of_proxy.audit_size), (512, 64, 1 << 20));
        let usual = exeat_proxy::ProxyLimits::default();
        let of_proxy = proxy_limits(&Limits::default(), u64::MAX, true);
        assert_eq!((of_proxy.connections, of_proxy.per_host), (usual.connections, usual.per_host));
        // R01: the descriptors suffice for all connections.
        for (descriptors, alone, beside, listeners) in [
            (20_000, 8192, 8192, 2048),
            (4096, 1920, 1440, 960),
            (1024, 384, 288, 192),
            (64, 16, 12, 8),
            (0, 1, 1, 0),
        ] {
            let of = |gateway| proxy_limits(&Limits::default(), descriptors, gateway);
            assert_eq!((of(false).connections, of(false).listeners), (alone, 0));
            assert_eq!((of(true).connections, of(true).listeners), (beside, listeners));
        }
        let lines = |root| RunLimits::new(limits, root).unwrap().lines().join(", ");
        let expect = "timeout=10m (supervised), grace=1m30s (supervised), cpu_time=1s500ms (rlimit), memory=1GiB (watched), pids=7 (rlimit), \
                      open_files=64 (rlimit), file_size=10MB (rlimit), tmpfs_size=1MiB (mount), \
                      output_size=1kB (supervised), connections=512 (proxy), connections_per_host=64 (proxy), \
                      audit_size=1MiB (proxy)";
        assert_eq!(lines(false), expect);
        assert_eq!(lines(false).split(", ").count(), Limit::ALL.len(), "a limit is not listed");
        assert_eq!(lines(true), expect.replace("pids=7 (rlimit)", "pids=7 (watched)"));
        assert_eq!(RunLimits::new(limits, false).unwrap().descriptors(1024, 20_000), (64, 64));
        let rlimits = RunLimits::new(limits, false).unwrap().rlimits(2);
        let found: Vec<_> = rlimits.iter().map(|one| (one.what, one.soft, one.hard)).collect();
        assert_eq!(
            found,
            [
                ("processor time", 2, 3),
                ("memory", 4 << 30, 4 << 30),
                ("processes", 9, 9),
                ("file size", 10_000_000, 10_000_000),
            ]
        );
    }

    #[test]
    fn a_limit_that_lets_nothing_start_is_refused() {
        for limits in [
            Limits { pids: Some(0), ..Limits::default() },
            Limits { connections: Some(0), ..Limits::default() },
            Limits { audit_size: "1000kB".parse().ok(), ..Limits::default() },
            Limits { connections_per_host: Some(0), ..Limits::default() },
            Limits { open_files: Some(LEAST_OPEN_FILES - 1), ..Limits::default() },
        ] {
            assert_eq!(Error::from(RunLimits::new(limits, false).unwrap_err()).code(), 2, "{limits:?}");
        }
        assert!(
            RunLimits::new(
                Limits { pids: Some(1), open_files: Some(LEAST_OPEN_FILES), ..Limits::default() },
                true
            )
            .is_ok()
        );
    }

    #[test]
    fn a_slow_look_is_not_repeated_at_once() {
        let waits =
            [0, 4, 10, 1000].map(|took| pause(Duration::from_millis(took), INTERVAL, LONGEST).as_millis());
        assert_eq!(waits, [50, 50, 90, 500]);
    }
}

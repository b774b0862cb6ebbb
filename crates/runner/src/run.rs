//! Executes one run, from the plan to the outcome.
//!
//! Uses three threads: this one handles requests and limits; one serves the proxy; one makes the sandbox and waits for it, which blocks.
//! [`Within`] holds everything that a run does to its own process.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

use exeat_contract::Go;
use exeat_files::layout::Mount;
use exeat_files::quarantine::{FileId, Watch};
use exeat_policy::Tty;
use exeat_proxy::{
    ConnectionSummary, Context, DeniedHost, Entry, Forward, Listener, ProcessFinder, ServeReport, forward,
    serve,
};
use exeat_record::{Event, Log, RunId, RunNote, RunStart, What};
use exeat_sandbox::{Bridge, Identity, Launch, Staging, descriptor_limit, raise_descriptor_limit, seccomp};
use nix::sys::signal::Signal;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::caller;
use crate::dirs::RunDir;
use crate::environment::RUN_ID;
use crate::error::Error;
use crate::gateway::{NetworkExits, NetworkNeeds, off_state};
use crate::ledger::{Listed, RunLedger, begin};
use crate::limits;
use crate::output::{Copies, Meter};
use crate::plan::Plan;
use crate::serving::{BLOCKED, ServingThread};
use crate::signals::{RunRequest, RunRequests, Signals};
use crate::staged::Staged;
use crate::terminal::{Terminal, refuse_reads};
use crate::who::ProcessLookup;

mod closing;
mod opening;
pub(crate) mod outcome;
pub(crate) mod oversight;
pub(crate) mod protected;
pub(crate) mod record;
mod sandbox;
mod starting;
pub(crate) mod streams;

use closing::Closing;
use opening::{Opened, UsedDirs};
use outcome::{Done, OtherProxy, Outcome};
use oversight::{LineCallback, OnDenied, Oversight};
use record::{holds, keep_record};
use sandbox::{Sandbox, Thread, watch_relay};
use starting::{Offered, Reports, StageStreams, Starting, judge};
use streams::{Streams, release_streams};

/// The number of limits that can be reached before one is handled: of each output stream, and of the watch.
const STOPS: usize = 4;

/// Executes a plan on the caller's standard streams, and returns when no process of the stage is left. The stage takes over standard
/// input and output at its start; this process then has `/dev/null` there.
///
/// # Errors
/// Returns an error when the stage did not start: then no untrusted code ran. The record says so, too, if it could be opened.
pub fn run(plan: Plan, oversight: Oversight) -> Result<Outcome, Error> {
    let mut streams = Streams::from_process()?;
    let has_own = plan.tty == Tty::Auto && Terminal::is_wanted(&streams.fds);
    let prepare = |source| Error::Prepare { what: "the terminal", source };
    if !has_own
        && refuse_reads(&mut streams.fds).map_err(prepare)?
        && let Some(live) = &oversight.live
    {
        live(IN_THE_BACKGROUND);
    }
    run_here(plan, streams, oversight).map(|(outcome, _)| outcome)
}

const IN_THE_BACKGROUND: &str =
    "note: in the background at the start: the stage's standard input is /dev/null instead of the terminal";

/// Executes a plan on any streams. Also returns the first signal that arrived while the stage ran.
pub(crate) fn run_here(
    plan: Plan,
    streams: Streams,
    oversight: Oversight,
) -> Result<(Outcome, Option<Signal>), Error> {
    notice_children()?;
    survive_file_limit()?;
    run_on(plan, RunId::new(), streams, Within::Exeat(oversight))
}

/// Restores the default action of SIGCHLD in this process. An inherited "ignore" would hide how a child ended.
///
/// # Errors
/// Returns [`Error::Prepare`] with the error of sigaction(2).
pub fn notice_children() -> Result<(), Error> {
    exeat_sandbox::notice_children().map_err(|source| Error::Prepare { what: "the signal handlers", source })
}

/// Makes a file that reaches the size limit (`ulimit -f`) fail its writes instead of ending this process.
pub(crate) fn survive_file_limit() -> Result<(), Error> {
    exeat_sandbox::survive_file_limit()
        .map_err(|source| Error::Prepare { what: "the signal handlers", source })
}

/// Executes a plan on any streams in any process. Also returns the first signal that asked for the end.
pub(crate) fn run_on(
    mut plan: Plan,
    run: RunId,
    streams: Streams,
    within: Within,
) -> Result<(Outcome, Option<Signal>), Error> {
    let began = Instant::now();
    let dirs = UsedDirs::make(&mut plan);
    let staged = plan.staged.take();
    let prepare = |what| move |source| Error::Prepare { what, source };
    // This comes first because some libraries panic if there are too few.
    let (soft, hard) = descriptor_limits(&within).map_err(prepare("the limit of open descriptors"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(prepare("the runtime"))?;
    runtime.block_on(async {
        let is_own = matches!(within, Within::Exeat(_));
        let (asks, started, on_denied, live) = match within {
            Within::Exeat(Oversight { parent, on_denied, live }) => {
                // From here on a signal does not end this process, so that it can end the stage first.
                let signals = Signals::for_run().map_err(prepare("the signal handlers"))?;
                (RunRequests::from_signals(signals, parent), None, on_denied, live)
            }
            Within::Program { asks, on_denied, started } => {
                (RunRequests::from_owner(asks), Some(started), on_denied, None)
            }
        };
        let interrupted = mem::take(&mut plan.settled);
        let mut opened = Opened::open(&plan, run, dirs, &streams)?;
        let ledger = mem::replace(&mut opened.record.ledger, RunLedger::None);
        let made = opened.stubs.iter().filter_map(|it| Some((it.path().to_path_buf(), it.id()?)));
        let this = Run {
            plan: &plan,
            stubs: &made.collect::<Vec<_>>(),
            watches: &opened.watches,
            run,
            descriptors: plan.limits.descriptors(soft, hard),
            log: opened.record.log.clone(),
            ledger: Cell::new(ledger),
            has_begun: Cell::new(false),
            listed: Cell::new(Listed::None),
            held: Cell::new(opened.held.take()),
            on_denied,
            live,
        };
        let mut outcome = keep_record(&this.log, this.carry_out(staged, streams, asks, started)).await;
        if !this.has_begun.get() {
            // The sandbox was not created as required. The log itself stops the run if it cannot write.
            let why = match &outcome {
                Err(Error::Gateway { source, .. }) => Some(source),
                _ => None,
            };
            let _ = this.begin(&off_state(why));
        }
        let listed = this.listed.replace(Listed::None);
        let lost = outcome.as_mut().map(|done| mem::take(&mut done.over.uncovered)).unwrap_or_default();
        let mut closing = Closing::settle(&plan, opened, interrupted, lost, is_own).await;
        if let Ok(done) = &mut outcome
            && !(done.summary.denied.is_empty() && done.summary.denied_more == 0)
        {
            done.over.ended = on_denied.judge(done.over.ended);
        }
        closing.close_record(&outcome, listed);
        match outcome {
            Ok(done) => Ok(closing.into_outcome(plan, run, done, || began.elapsed())),
            Err(error) => Err(closing.into_error(&plan, run, error)),
        }
    })
}

/// Returns the soft and the hard limit of open descriptors. exeat raises its own soft limit first.
fn descriptor_limits(within: &Within) -> io::Result<(u64, u64)> {
    let soft = match within {
        Within::Exeat(_) => raise_descriptor_limit()?,
        Within::Program { .. } => descriptor_limit()?.0,
    };
    Ok((soft, descriptor_limit()?.1))
}

/// The process that a run is part of, and the permitted changes to it.
pub(crate) enum Within {
    /// exeat itself: the run handles its signals, and raises its limit of descriptors.
    Exeat(Oversight),
    /// Another program, which is not changed. It sends requests through a channel.
    Program {
        /// The requests.
        asks: UnboundedReceiver<RunRequest>,
        /// The effect of a refusal.
        on_denied: OnDenied,
        /// Receives a message when the stage has started.
        started: Sender<()>,
    },
}

/// The server of the stage's connections.
#[derive(Clone)]
enum Server {
    /// exeat's own proxy.
    Own(Arc<Context>),
    /// Another proxy at this socket. Connections to it start here: it is not mounted inside.
    Through(Arc<Forward>, PathBuf),
}

impl Server {
    async fn serve(self, listener: Listener, entry: Entry, stop: CancellationToken) -> ServeReport {
        match self {
            Self::Own(context) => serve(listener, entry, context, stop).await,
            Self::Through(forwarder, _) => forward(listener, entry, forwarder, stop).await,
        }
    }

    fn summary(&self) -> (ConnectionSummary, Option<OtherProxy>) {
        match self {
            Self::Own(context) => (context.summary(), None),
            Self::Through(forwarder, socket) => {
                let through = OtherProxy { socket: socket.clone(), lost: forwarder.lost_connections() };
                (forwarder.summary(), Some(through))
            }
        }
    }
}

struct Run<'a> {
    plan: &'a Plan,
    /// Files that hold a missing name, to be made read-only.
    stubs: &'a [(PathBuf, FileId)],
    watches: &'a Arc<[Watch]>,
    run: RunId,
    /// The stage's limits of open descriptors, soft and hard.
    descriptors: (u64, u64),
    log: Log,
    /// The ledger, until the record has its first line.
    ledger: Cell<RunLedger>,
    /// Whether the record has its first line, or writing that has failed.
    has_begun: Cell<bool>,
    /// The state of the run in the ledger.
    listed: Cell<Listed>,
    /// A descriptor that stays open until no process of the sandbox is left.
    held: Cell<Option<OwnedFd>>,
    on_denied: OnDenied,
    live: Option<LineCallback>,
}

impl Run<'_> {
    /// Reports a target that is refused repeatedly, before the end of the run.
    fn tell_of_storm(&self, denied: &DeniedHost) {
        let more = denied.flag.as_deref().unwrap_or(&denied.said);
        // The first refusal of all is reported at a lower count.
        if let Some(live) = self.live.as_ref().filter(|_| denied.count > 1) {
            live(&format!("{} refused {} times so far: {more}", denied.target(), denied.count));
        }
    }

    /// Writes the first lines of the record, before the stage starts and before any decision.
    fn begin(&self, gateway: &str) -> Result<(), Error> {
        let Plan { enforcement: held, .. } = self.plan;
        let aspects = [
            ("net", &held.net),
            ("fs", &held.fs),
            ("syscalls", &held.syscalls),
            ("identity", &held.identity),
        ];
        let start = RunStart {
            version: env!("CARGO_PKG_VERSION").into(),
            command: self.plan.command.first().cloned(),
            user: caller::user_name(),
            machine: caller::machine_name(),
            dir: Some(self.plan.cwd.clone().into_os_string()),
            trace: caller::parse_trace(self.plan.traceparent.as_deref()),
            backend_why: self.plan.choice.why.clone(),
            backend: Some(self.plan.choice.builder.name().into()),
            bridge: Some(self.plan.bridge.as_str().into()),
            proxy: self.plan.via.as_ref().map(|socket| format!("unix:{}", socket.display())),
            upstream: self.plan.upstream.as_ref().map(ToString::to_string),
            gateway: Some(gateway.into()),
            enforcement: aspects.into_iter().map(|(name, held)| (name.to_owned(), holds(held))).collect(),
            limits: self.plan.limits.lines(),
            labels: self.plan.labels.clone(),
            ..RunStart::default()
        };
        // This also applies if writing fails: a second start of the record would not help.
        self.has_begun.set(true);
        let ledger = self.ledger.replace(RunLedger::None);
        self.listed.set(begin(&self.log, ledger, start, &self.plan.sources)?);
        for doubt in &self.plan.doubts {
            let mut note = RunNote::new(What::HostsMissing);
            note.error = Some(doubt.clone());
            // The log itself stops the run if it cannot write.
            let _ = self.log.write(Event::Note(note));
        }
        Ok(())
    }

    async fn carry_out(
        &self,
        staged: Option<Staged>,
        streams: Streams,
        mut asks: RunRequests,
        started: Option<Sender<()>>,
    ) -> Result<Done, Error> {
        let prepare = |what| move |source| Error::Prepare { what, source };
        let dir = RunDir::create(&self.plan.run_base).map_err(prepare("the run directory"))?;
        let listener = dir.listen().map_err(prepare("the proxy's socket"))?;
        let socks5 = self.plan.has_socks5_socket().then(|| dir.listen_socks5()).transpose();
        let socks5 = socks5.map_err(prepare("the proxy's socket"))?;
        let denials = dir.denials().map_err(prepare("the denials file"))?;
        let staging = staged.map(|staged| staged.into_staging(&dir)).transpose();
        let staging = staging.map_err(prepare("the trees of the view"))?;
        match self.plan.identity {
            Identity::Other { uid, gid } if staging.is_none() => {
                dir.give_to(uid, gid).map_err(prepare("the run directory"))?;
            }
            _ => {}
        }
        let (room, _) = descriptor_limit().map_err(prepare("the limit of open descriptors"))?;
        let limits = limits::proxy_limits(
            &self.plan.limits.limits,
            room,
            NetworkNeeds::from_plan(self.plan).has_gateway(),
        );
        let (drain, own_streams) = (limits.drain, streams.own);
        let (mut thread, mut sandbox) = self.start_sandbox(&dir, staging, listener, streams)?;
        let Offered { bridge, handle, mut network } = sandbox.offered(&mut asks).await?;
        self.plan.choice.remember();
        let finder = network.take_finder();
        let (refused_to, mut refused) = mpsc::unbounded_channel();
        let server = match &self.plan.via {
            None => {
                let context = Context::new(self.plan.policy.clone(), self.log.clone(), self.run);
                let who = finder.map(|finder| Arc::new(ProcessLookup::new(finder)) as Arc<dyn ProcessFinder>);
                let context = context.with_upstream(self.plan.upstream.clone()).with_process_finder(who);
                let context = context.with_denials(denials).with_watch(refused_to);
                Server::Own(Arc::new(context.with_limits(limits)))
            }
            // The other proxy reports denials in its answers.
            Some(socket) => {
                let forwarder = Forward::new(socket.clone(), self.log.clone()).with_limits(limits);
                Server::Through(Arc::new(forwarder), socket.clone())
            }
        };
        let mut exits = NetworkExits::new(self.plan, network)?;
        self.begin(&exits.state())?;
        let no_gateway = exits.note();
        // All names are mounted now, so nothing is left on the host from here on.
        drop(dir);

        let stop = CancellationToken::new();
        let mut serving = ServingThread::start().map_err(prepare("the proxy's thread"))?;
        let (http, socks5, lifelines) = match bridge {
            Bridge::Handoff { http, socks5 } => {
                serving.open(|| (Listener::tcp(http), socks5.map(Listener::tcp), [None, None]))
            }
            Bridge::Relay { listener, lifeline, socks5: second } => serving
                .open(|| (Listener::unix(listener), socks5.map(Listener::unix), [Some(lifeline), second])),
        };
        let http = http.map_err(prepare("the bridge's listener"))?;
        let socks5 = socks5.transpose().map_err(prepare("the bridge's listener"))?;
        let over = CancellationToken::new();
        for lifeline in lifelines.into_iter().flatten() {
            let watch = watch_relay(lifeline, handle.clone(), self.log.clone(), over.clone());
            serving.spawn(async move { drop(watch.await) });
        }
        let entries = [Some((http, Entry::Http)), socks5.map(|socks5| (socks5, Entry::Socks5))];
        let forwards = mem::take(&mut exits.forwards).into_iter().map(|(listener, target)| {
            let listener = Listener::tcp(listener).map_err(prepare("the listener of a host port"))?;
            Ok((listener, Entry::Forward(target)))
        });
        let forwards = serving.open(|| forwards.collect::<Result<Vec<_>, Error>>())?;
        for (listener, entry) in entries.into_iter().flatten().chain(forwards) {
            let served = server.clone().serve(listener, entry.clone(), stop.clone());
            serving.spawn(async move {
                let report = served.await;
                tracing::debug!(?entry, ?report, "the proxy has stopped");
            });
        }
        let has_gateway = exits.has_gateway();
        if let Server::Own(context) = &server {
            let context = Arc::clone(context);
            let gateway = serving.run(async move { exits.gateway(&context).await }).await;
            if let Some(gateway) = gateway.map_err(prepare("the gateway's sockets"))? {
                serving.spawn(gateway.serve(stop.clone()));
            }
        }

        let on_start = || {
            if let Some(started) = started {
                // Nobody may wait for it any more: the owner also learns of the end.
                let _ = started.send(());
            }
            // The reader of a stream must see its end when the stage closes it.
            if own_streams { release_streams() } else { Ok(()) }
        };
        let limits = &self.plan.limits.limits;
        let ended = sandbox
            .become_stage(handle, has_gateway, &mut asks, limits, on_start, (self, &mut refused))
            .await;
        over.cancel();
        stop.cancel();
        let blocked = (!serving.end(drain).await).then(|| BLOCKED.to_owned());
        thread.join();
        let over = ended?;
        let (summary, through) = server.summary();
        Ok(Done { over, no_gateway, blocked, summary, through })
    }

    /// Starts the thread that owns the sandbox.
    fn start_sandbox(
        &self,
        dir: &RunDir,
        staging: Option<Staging>,
        listener: UnixListener,
        streams: Streams,
    ) -> Result<(Thread, Sandbox), Error> {
        let prepare = |what| move |source| Error::Prepare { what, source };
        let StageStreams { fds: mut streams, terminal, is_attended } =
            StageStreams::prepare(streams, self.plan.tty)?;
        let (stop, stops) = mpsc::channel(STOPS);
        let known = Arc::new(OnceLock::new());
        let meter = self.plan.limits.limits.output_size.map(|limit| Meter::new(limit, &known, &stop));
        let copies = meter.as_ref().map(|meter| {
            let on_terminal = |number| terminal.as_ref().is_some_and(|terminal| terminal.replaces(number));
            let outputs = streams.iter_mut().enumerate().skip(1).filter(|(number, _)| !on_terminal(*number));
            Copies::between(outputs.map(|(_, stream)| stream).collect(), meter)
        });
        let copies = copies.transpose().map_err(prepare("the pipes for the output"))?;
        let (cancelled, cancel) = io::pipe().map_err(prepare("a pipe"))?;
        let written = self.plan.mounts.iter().filter_map(|mount| match mount {
            Mount::Writable { host, .. } => Some(host.as_path()),
            _ => None,
        });
        let links = &self.plan.links;
        links.note_written(written).map_err(prepare("the list of trees whose links are not followed"))?;
        let launch = Launch {
            builder: self.plan.choice.builder.clone(),
            spec: self.plan.spec(dir.socket_path(), dir.socks5_path(), dir.denials_path()),
            listener,
            cancel: cancelled.into(),
            expected: judge(&self.plan.mounts),
            staging,
            held: self.held.take(),
        };
        // Trees that root holds by descriptor can be mounted only once.
        let again = launch.staging.is_none().then(|| launch.try_clone()).transpose();
        let again = again.map_err(prepare("a descriptor"))?;
        let starting = Starting {
            go: self.go(terminal.as_ref())?,
            without_gateway: self.variables(&self.plan.without_gateway),
            network: NetworkNeeds::from_plan(self.plan),
            limits: self.plan.limits.clone(),
            run: self.run,
            mounts: self.plan.mounts.clone(),
            masked: self.plan.masked.clone(),
            stubs: self.stubs.to_vec(),
            watches: Arc::clone(self.watches),
            is_full_required: self.plan.is_full_required,
            log: self.log.clone(),
            stop: stop.clone(),
            known,
            streams,
        };
        let (offer_to, offered) = oneshot::channel();
        let (go_to, may_go) = oneshot::channel();
        let (started_to, started) = oneshot::channel();
        let (status_to, status) = oneshot::channel();
        let reports = Reports { offer: offer_to, may_go, started: started_to, status: status_to };
        let body = move || starting.run(launch, again, reports);
        let thread = std::thread::Builder::new().name("sandbox".into()).spawn(body);
        let thread = thread.map_err(prepare("the sandbox's thread"))?;
        let sandbox = Sandbox {
            offered: Some(offered),
            cancel: Some(cancel),
            go: Some(go_to),
            started,
            status,
            terminal,
            is_attended,
            meter,
            copies,
            stops,
            _stop: stop,
        };
        Ok((Thread(Some(thread)), sandbox))
    }

    /// Returns the stage's environment with additional variables, in the form for execve(2).
    fn variables(&self, more: &BTreeMap<OsString, OsString>) -> Vec<Vec<u8>> {
        let mut env: BTreeMap<_, _> = self.plan.env.iter().chain(more).collect();
        let (name, run) = (RUN_ID.into(), self.run.to_string().into());
        env.insert(&name, &run);
        env.into_iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect()
    }

    fn go(&self, terminal: Option<&Terminal>) -> Result<Go, Error> {
        let filter = if self.plan.unix_sockets {
            Vec::new()
        } else {
            seccomp::no_unix_sockets().map_err(Error::Sandbox)?
        };
        Ok(Go {
            argv: self.plan.command.iter().cloned().map(OsString::into_vec).collect(),
            env: self.variables(&BTreeMap::new()),
            cwd: self.plan.cwd.as_os_str().as_bytes().to_vec(),
            filter,
            notice_filter: Vec::new(),
            descriptors: self.descriptors.0,
            most_descriptors: self.descriptors.1,
            ports: self.plan.ports(),
            terminal: terminal.map(|terminal| terminal.wanted),
        })
    }
}

//! Executes one run, from the plan to the outcome.
//!
//! Uses three threads: this one handles requests and limits; one serves the proxy; one makes the sandbox and waits for it, which blocks.
//! [`Within`] holds everything that a run does to its own process.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::{fmt, mem};

use exeat_contract::Go;
use exeat_files::layout::{EMPTY_FILE, EmptyEntry, Mount};
use exeat_files::names::id_of_plain;
use exeat_files::quarantine::{FileId, Journal, Leftover, Survey, Watch};
use exeat_policy::Tty;
use exeat_proxy::{
    ConnectionSummary, Context, DeniedHost, Entry, Forward, Listener, ProcessFinder, ServeReport, forward,
    serve,
};
use exeat_record::place::remove_empty;
use exeat_record::{Event, Log, RunId, RunNote, RunStart, What};
use exeat_sandbox::{
    Bridge, ExpectedFile, Identity, Launch, Staging, descriptor_limit, raise_descriptor_limit, seccomp,
};
use nix::sys::signal::Signal;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::caller;
use crate::cover::Covers;
use crate::dirs::RunDir;
use crate::ended::Ended;
use crate::environment::RUN_ID;
use crate::error::{Error, chain};
use crate::gateway::{NetworkExits, NetworkNeeds, off_state};
use crate::ledger::{Listed, RunLedger, begin};
use crate::limits;
use crate::output::{Copies, Meter};
use crate::parent::Parent;
use crate::plan::Plan;
use crate::serving::{BLOCKED, ServingThread};
use crate::signals::{RunRequest, RunRequests, Signals};
use crate::staged::Staged;
use crate::terminal::{Terminal, refuse_reads};
use crate::who::ProcessLookup;

pub(crate) mod outcome;
pub(crate) mod protected;
pub(crate) mod record;
mod sandbox;
pub(crate) mod streams;

use outcome::SandboxEnd;
use outcome::{Done, OtherProxy, Outcome, end_dirs, not_executed, unseen_line, with_leftovers};
use protected::{
    CUT, PutBack, hold_stubs, journal, keeper, look_until_signal, move_aside, quarantine_lines,
    quarantine_more_lines, quarantine_more_notes, quarantine_note, settlement_lines, watch_remade,
};
use record::{OpenRecord, holds, keep_record, lost_end, open_log, record_full, run_end, turned_away_note};
use sandbox::{Offered, Sandbox, Thread, watch_relay};
use streams::{Flags, STREAMS, Streams, leads_out, null, release_streams};

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

/// Additional control over a run of exeat's own executable.
#[derive(Default)]
pub struct Oversight {
    /// A process whose end ends the run, like SIGTERM.
    pub parent: Option<Parent>,
    /// The effect of a refusal on the run.
    pub on_denied: OnDenied,
    /// Receives lines that should not wait for the end of the run. It must not block.
    pub live: Option<LineCallback>,
}

/// A callback for a line.
pub type LineCallback = Box<dyn Fn(&str)>;

impl fmt::Debug for Oversight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oversight").field("on_denied", &self.on_denied).finish_non_exhaustive()
    }
}

/// The effect of a refusal on a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnDenied {
    /// No effect: the end of the run reports it.
    #[default]
    Note,
    /// The first refusal ends the run, as SIGTERM would.
    End,
    /// A run that would exit 0 fails.
    Fail,
}

impl OnDenied {
    /// Returns the end of a run in which a connection was refused.
    fn judge(self, ended: Ended) -> Ended {
        match (self, ended) {
            (Self::End, Ended::Exit(_) | Ended::Signal(_)) | (Self::Fail, Ended::Exit(0)) => Ended::Denied,
            (_, ended) => ended,
        }
    }
}

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
    let or_line = |made: Result<_, String>| made.map_or_else(|line| (None, Some(line)), |used| (used, None));
    let (used_cache, no_cache) = or_line(plan.make_cache());
    let (used_tmp, no_tmp) = or_line(plan.make_tmp());
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
        let keeper = keeper(&plan, run);
        let hide = |dir: Option<&Path>| dir.map_or(Ok(()), |dir| keeper.hide(dir)).err();
        let base = plan.tmp.as_deref().and_then(Path::parent).filter(|_| used_tmp.is_some());
        let no_tmp = no_tmp.or_else(|| {
            hide(base).map(|error| format!("other runs may see the files in the stage's /tmp: {error}"))
        });
        // Every run hides the usual place.
        let caches = plan.cache.as_deref().and_then(Path::parent).filter(|_| used_cache.is_some());
        let caches = caches.filter(|caches| !caches.ends_with(".cache/exeat"));
        let no_cache = no_cache
            .or_else(|| hide(caches).map(|error| format!("other runs may see the package cache: {error}")));
        let interrupted = mem::take(&mut plan.settled);
        let watches = Watch::start_all(plan.missing.iter().cloned(), &keeper);
        let watches: Arc<[Watch]> = watches.map_err(prepare("the watch on protected names"))?.into();
        let flags = streams.own.then(|| Flags::save(&streams.fds)).transpose();
        let flags = flags.map_err(prepare("the flags of the standard streams"))?;
        let (journal, no_journal) = journal(&keeper, &watches);
        let survey = Survey::start(Arc::clone(&watches));
        if let Some(why) = no_journal.clone().filter(|_| plan.is_full_required) {
            return Err(Error::NotHeld(why));
        }
        // This is the last step that can fail without a line in the record.
        let OpenRecord { log, path: audit, ledger } = match open_log(&plan, run) {
            Ok(record) => record,
            Err(error) => {
                journal.into_iter().for_each(Journal::remove);
                return Err(error);
            }
        };
        let descriptors = plan.limits.descriptors(soft, hard);
        let held = journal.as_ref().map(Journal::keep_locked).transpose();
        let held = Cell::new(held.map_err(prepare("the journal of what is watched"))?);
        let (stubs, not_made) = hold_stubs(&plan, &keeper);
        let made: Vec<_> = stubs.iter().filter_map(|it| Some((it.path().to_path_buf(), it.id()?))).collect();
        let (log_of_run, ledger) = (log.clone(), Cell::new(Some(ledger)));
        let this = Run {
            plan: &plan,
            stubs: &made,
            watches: &watches,
            run,
            descriptors,
            log: log_of_run,
            ledger,
            listed: Cell::new(Listed::None),
            held,
            on_denied,
            live,
        };
        let mut outcome = keep_record(&log, this.carry_out(staged, streams, asks, started)).await;
        if !this.has_begun() {
            // The sandbox was not created as required. The log itself stops the run if it cannot write.
            let why = match &outcome {
                Err(Error::Gateway { source, .. }) => Some(source),
                _ => None,
            };
            let _ = this.begin(&off_state(why));
        }
        // The flags are restored for the following lines and for the next user of these streams.
        drop(flags);
        // No process of the stage is left, so what is found now does not change any more.
        drop((stubs, survey));
        let mut lost = outcome.as_mut().map(|done| mem::take(&mut done.over.uncovered)).unwrap_or_default();
        let put_back = PutBack::replace(mem::take(&mut lost.doubtful), &watches);
        let remade = lost.remade.iter().chain(put_back.unmoved());
        let remade = watch_remade(&plan, &keeper, remade);
        if let Some(Err(why)) = journal.as_ref().map(Journal::begin_end) {
            tracing::warn!(%why, "another run may leave to this one what it does not see any more");
        }
        let looked_at = Arc::clone(&watches);
        let look = move |is_over: &dyn Fn() -> bool| move_aside(looked_at.iter().chain(&remade), is_over);
        let signals = is_own.then(|| Signals::ending().ok()).flatten();
        let mut found = look_until_signal(signals, look).await;
        let cut = found.is_cut.then(|| CUT.to_owned());
        let put_back = put_back.end(&mut found);
        if let Some(journal) = journal.filter(|_| !found.is_cut) {
            journal.remove();
        }
        let dirs_left = end_dirs(&plan, used_cache, used_tmp);
        let settled = settlement_lines(interrupted, &mut found);
        for note in found.named.iter().map(quarantine_note).chain(quarantine_more_notes(&found)) {
            // The log itself stops the run if it cannot write, and a line below reports that.
            let _ = log.write(Event::Note(note));
        }
        // The record contains these since they were found.
        found.extend(mem::take(&mut lost.found));
        let told = quarantine_lines(&found).chain(quarantine_more_lines(&found));
        let before =
            no_cache.into_iter().chain(no_tmp).chain(no_journal).chain(settled).chain(not_made).chain(cut);
        let mut notes: Vec<String> = before.chain(told).chain(put_back).chain(dirs_left).collect();
        for (words, line) in lost.lines() {
            let mut note = RunNote::new(What::Uncovered);
            note.error = Some(words);
            let _ = log.write(Event::Note(note));
            notes.push(line);
        }
        let uncovered = lost.into_places();
        if let Some(note) = outcome.as_ref().ok().and_then(|done| turned_away_note(&done.summary)) {
            notes.extend(note.error.clone());
            let _ = log.write(Event::Note(note));
        }
        if let Ok(done) = &mut outcome
            && !(done.summary.denied.is_empty() && done.summary.denied_more == 0)
        {
            done.over.ended = on_denied.judge(done.over.ended);
        }
        let end = match &outcome {
            Ok(done) => run_end(done.over.ended, &done.summary),
            Err(error) => lost_end(error),
        };
        let cause = end.cause;
        let ended = log.write(Event::RunEnd(end));
        // The ledger cannot vouch for a record without its end.
        let listed = this.listed.replace(Listed::None);
        let (ledger, unlisted) = if ended.is_ok() { listed.end(&log, cause) } else { (None, None) };
        notes.extend(unlisted);
        let done = match outcome {
            Ok(done) => done,
            Err(error) => {
                if error.code() == 125 {
                    plan.choice.forget();
                }
                if let Some(record) = plan.audit.in_default_place(audit.as_deref()) {
                    remove_empty(record);
                }
                return Err(with_leftovers(error, run, audit, found, notes));
            }
        };
        let Done { over, no_gateway, blocked, summary, through } = done;
        let SandboxEnd { ended: how, why_not, signal, blind, untold, .. } = over;
        notes.extend(no_gateway.into_iter().chain(blocked));
        // The stage ran and its code is returned; a note reports an incomplete record.
        let record_lost = ended.err().map(|error| chain(&error));
        notes.extend(record_lost.as_ref().map(|why| format!("the record is incomplete: {why}")));
        notes.extend(record_full(&summary, log.full().as_deref()));
        notes.extend(untold);
        if how != Ended::Exit(0) {
            notes.extend(unseen_line(&plan));
        }
        if let Some(why) = blind {
            notes.push(format!("what the stage uses could not be measured any more: {why}"));
        }
        let why_not = not_executed(&plan, how, why_not);
        if how == Ended::NotFound {
            notes.extend(plan.left_out.iter().cloned());
        }
        Ok((
            Outcome {
                run,
                ended: how,
                why_not,
                summary,
                through,
                backend: plan.choice.builder.name(),
                backend_why: plan.choice.why.clone(),
                audit,
                sealed: log.sealed(),
                ledger,
                found,
                uncovered,
                record_lost,
                duration: began.elapsed(),
                stage: plan.stage,
                labels: plan.labels,
                notes,
            },
            signal,
        ))
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
    ledger: Cell<Option<RunLedger>>,
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
        let ledger = self.ledger.take().unwrap_or(RunLedger::None);
        self.listed.set(begin(&self.log, ledger, start, &self.plan.sources)?);
        for doubt in &self.plan.doubts {
            let mut note = RunNote::new(What::HostsMissing);
            note.error = Some(doubt.clone());
            // The log itself stops the run if it cannot write.
            let _ = self.log.write(Event::Note(note));
        }
        Ok(())
    }

    /// Returns whether the record has its first line.
    fn has_begun(&self) -> bool {
        let ledger = self.ledger.take();
        let has_begun = ledger.is_none();
        self.ledger.set(ledger);
        has_begun
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
        let mut ways = NetworkExits::new(self.plan, network)?;
        self.begin(&ways.state())?;
        let no_gateway = ways.note();
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
        let forwards = mem::take(&mut ways.forwards).into_iter().map(|(listener, target)| {
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
        let has_gateway = ways.has_gateway();
        if let Server::Own(context) = &server {
            let context = Arc::clone(context);
            let gateway = serving.run(async move { ways.gateway(&context).await }).await;
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
        Streams { fds: mut streams, own }: Streams,
    ) -> Result<(Thread, Sandbox), Error> {
        let prepare = |what| move |source| Error::Prepare { what, source };
        for (stream, name) in streams.iter().zip(STREAMS) {
            if let Some(what) = leads_out(stream).map_err(prepare("the standard streams"))? {
                return Err(Error::Stream { stream: name, what });
            }
        }
        let is_attended = own && streams.iter().any(IsTerminal::is_terminal);
        let terminal = if own && self.plan.tty == Tty::Auto {
            Terminal::for_streams(&streams).map_err(prepare("the terminal"))?
        } else {
            None
        };
        let on_terminal = |number| terminal.as_ref().is_some_and(|terminal| terminal.replaces(number));
        for (number, stream) in streams.iter_mut().enumerate().filter(|(number, _)| on_terminal(*number)) {
            // The caller's terminal does not go inside: stage2 opens its own here.
            *stream = null().map_err(prepare(STREAMS.get(number).copied().unwrap_or_default()))?.into();
        }
        let (stop, stops) = mpsc::channel(STOPS);
        let known = Arc::new(OnceLock::new());
        let meter = self.plan.limits.limits.output_size.map(|limit| Meter::new(limit, &known, &stop));
        let copies = meter.as_ref().map(|meter| {
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
        let mut go = self.go(terminal.as_ref())?;
        let wanted = NetworkNeeds::from_plan(self.plan);
        let without_gateway = self.variables(&self.plan.without_gateway);
        let (limits, run) = (self.plan.limits.clone(), self.run);
        let mounts = self.plan.mounts.clone();
        let masked = self.plan.masked.clone();
        let stubs = self.stubs.to_vec();
        let (watches, starting) = (Arc::clone(self.watches), Arc::clone(self.watches));
        let is_full_required = self.plan.is_full_required;
        let log = self.log.clone();
        let says = stop.clone();
        let (offer_to, offered) = oneshot::channel();
        let (go_to, may_go) = oneshot::channel::<bool>();
        let (started_to, started) = oneshot::channel();
        let (status_to, status) = oneshot::channel();
        let body = move || {
            let start = |launch: Launch| {
                let offer = launch.start()?;
                let covered = Covers::new(&mounts, &masked, &stubs, Arc::clone(&watches), &offer)?;
                Ok::<_, exeat_sandbox::Error>((offer, covered))
            };
            // A closed receiver means that nobody is interested: dropping the rest ends the sandbox.
            let started = match (start(launch), again) {
                // Programs on the host rename files while they work: one replacement is not an attack.
                (Err(why), Some(again)) if why.is_replacement() => {
                    tracing::debug!(%why, "the start is made anew");
                    start(Launch { expected: judge(&mounts), ..again })
                }
                (started, _) => started,
            };
            let (mut offer, (covers, process)) = match started {
                Ok(started) => started,
                Err(error) => return drop(offer_to.send(Err(error))),
            };
            let Some(bridge) = offer.take_bridge() else { return };
            let network = wanted.enter(&offer, &process);
            drop(process);
            let offered = Offered { bridge, handle: offer.handle(), network };
            if offer_to.send(Ok(offered)).is_err() {
                return;
            }
            let Ok(has_gateway) = may_go.blocking_recv() else { return };
            if !has_gateway {
                go.env = without_gateway;
            }
            // The handle is set before the stage can write.
            let _ = known.set(offer.handle());
            if is_full_required && let Err(error) = covers.check_watch() {
                return drop(started_to.send(Err(exeat_sandbox::Error::Watch(error))));
            }
            let watch = match limits.hold(&offer, &mounts, run, says) {
                Ok(watch) => watch,
                Err(error) => return drop(started_to.send(Err(error))),
            };
            go.notice_filter = match covers.notice_filter() {
                Ok(program) => program,
                Err(error) => return drop(started_to.send(Err(error))),
            };
            let handle = offer.handle();
            starting.iter().for_each(Watch::stage_starts);
            let [input, output, error] = &streams;
            let mut running = match offer.go(go, [input.as_fd(), output.as_fd(), error.as_fd()]) {
                Ok(running) => running,
                Err(error) => return drop(started_to.send(Err(error))),
            };
            // The stage has its own copies: a reader of its output must see the end when the stage closes it.
            drop(streams);
            if started_to.send(Ok(running.take_terminal())).is_ok() {
                // The log itself stops the run if it cannot write, and a line reports that at the end.
                let note = |found: &Leftover| drop(log.write(Event::Note(quarantine_note(found))));
                let status = covers.hold(running, handle, note);
                if let Some(watch) = &watch {
                    watch.tell();
                }
                drop(status_to.send(status));
            }
            drop(watch);
        };
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

/// Returns the file that each host mount must show, unless a later mount covers it. The paths had no links in the plan: one that appeared
/// since then matches no file.
fn judge(mounts: &[Mount]) -> Vec<ExpectedFile> {
    let points: HashMap<&Path, usize> =
        mounts.iter().enumerate().map(|(number, mount)| (mount.at(), number)).collect();
    let shown = mounts.iter().enumerate().filter_map(|(number, mount)| match mount {
        Mount::ReadOnly { host, at, .. } | Mount::Writable { host, at, .. } => {
            Some((number, host.as_path(), at))
        }
        Mount::Hidden { at, entry: EmptyEntry::File, .. } => Some((number, Path::new(EMPTY_FILE), at)),
        _ => None,
    });
    let shown = shown.filter(|(number, _, at)| {
        !at.ancestors().any(|above| points.get(above).is_some_and(|later| later > number))
    });
    shown.map(|(_, host, at)| ExpectedFile { at: at.clone(), file: id_of_plain(host).ok() }).collect()
}

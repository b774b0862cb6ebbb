//! One run, from the plan to the outcome.
//!
//! Two threads: this one serves the proxy and does what it is asked; the other makes the sandbox and waits for it, which
//! blocks. What a run does to the process that it is part of is in [`Within`], and nowhere else.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::future::{Future, pending, poll_fn};
use std::io::{self, IsTerminal, PipeWriter};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use exeat_contract::Go;
use exeat_files::names::id_of_plain;
use exeat_files::place::FilePlace;
use exeat_files::protected::{self, GIT, GIT_LINK};
use exeat_policy::{Limits, Policy, Span};
use exeat_proxy::{
    Context, DeniedHost, Entry, Forward, Listener, Lost, ServeReport, Summary, Who, forward, serve,
};
use exeat_record::ledger::Head;
use exeat_record::place::{remove_empty, store_policy};
use exeat_record::{
    Cause, Event, Header, Holds, Log, Note, OpenError, RunEnd, RunId, RunStart, Sealed, Sink, What,
    sha256_hex,
};
use exeat_sandbox::backend::Handle;
use exeat_sandbox::{
    Bridge, Held, Identity, Judged, Launch, Mount, Staging, Status, Tree, descriptor_limit,
    raise_descriptor_limit, seccomp,
};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockType, SockaddrLike, SockaddrStorage, getpeername, getsockname, getsockopt, sockopt,
};
use nix::sys::stat::{SFlag, fstat};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::caller::{self, is_callers};
use crate::cover::{Covers, SavedFile, Uncovered};
use crate::dirs::{RunDir, names};
use crate::ended::{Ended, Stopped, StoppedHow};
use crate::environment::RUN_ID;
use crate::error::{Error, RunLost, chain};
use crate::gateway::{Entered, Wanted, Ways, off};
use crate::ledger::{Listed, RunLedger, begin};
use crate::limits::{self, Stop};
use crate::output::{Copies, Meter};
use crate::parent::Parent;
use crate::plan::Plan;
use crate::request::{AuditTo, Tty};
use crate::signals::{Ask, Asks, Signals, may_suspend};
use crate::signing::{Signing, key_place};
use crate::staged::Staged;
use crate::stopping::{GRACE, GRACE_UNATTENDED, KILLING, Stopping};
use crate::terminal::Terminal;
use crate::view::mount_point;
use crate::who::Looking;
use exeat_files::protected::Obeyed;
use exeat_files::quarantine::{
    self, DIRECTORY, FileId, Found, Interrupted, Journal, Keeper, Leftovers, Missing, MissingName, Watch,
};
use exeat_files::stubs::Stub;

/// From a signal to the word that the command has started, which is on its way when it has.
const STARTING: Duration = Duration::from_secs(1);

/// Limits that can be reached before anybody takes note: each of the two streams, and the watch.
const STOPS: usize = 4;

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The run.
    pub run: RunId,
    /// How the stage ended.
    pub ended: Ended,
    /// Why it never was, in words; only where it never was. A line of `notes` says the same.
    pub why_not: Option<String>,
    /// What the proxy saw.
    pub summary: Summary,
    /// Somebody else's proxy, where the run went through one: `summary` then knows of no host.
    pub through: Option<Through>,
    /// The record; `None` when it went to a descriptor.
    pub audit: Option<PathBuf>,
    /// What the last checkpoint of the record says; `None` where nothing signs it.
    pub sealed: Option<Sealed>,
    /// The line that the ledger has of the end of the run; `None` where it has none.
    pub ledger: Option<Head>,
    /// Protected names that the stage has made: moved aside, or still where they were.
    pub found: Leftovers,
    /// With [`Ended::Uncovered`]: what was hidden or read-only until the host replaced or removed it, or mounted something
    /// there, by its place inside.
    pub uncovered: Vec<PathBuf>,
    /// Why the record is not whole, in words; `None` where it is.
    pub record_lost: Option<String>,
    /// From the beginning of the run to its end.
    pub duration: Duration,
    /// The name of the stage.
    pub stage: Option<String>,
    /// The labels of the run. Of two with one name the later counts.
    pub labels: Vec<(String, String)>,
    /// Lines for the caller.
    pub notes: Vec<String>,
}

/// Somebody else's proxy, through which a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Through {
    /// Its Unix socket.
    pub socket: PathBuf,
    /// Connections for which it was not there.
    pub lost: Lost,
}

/// Carries a plan out, on the caller's standard streams, and returns when no process of the stage is left. Standard input
/// and output are the stage's from its start on: in this process `/dev/null` takes their place.
///
/// # Errors
/// When the stage was not started: nothing untrusted has run then. The record says so too, where it could be opened.
pub fn run(plan: Plan, oversight: Oversight) -> Result<Outcome, Error> {
    run_here(plan, Streams::of_the_caller()?, oversight).map(|(outcome, _)| outcome)
}

/// Who else has a say in a run of exeat's own executable.
#[derive(Default)]
pub struct Oversight {
    /// The run ends with this process, as by SIGTERM.
    pub parent: Option<Parent>,
    /// What a refusal does to it.
    pub on_denied: OnDenied,
    /// Told, while the run goes on, what should not wait for its end. It must not block.
    pub live: Option<Live>,
}

/// Takes a line.
pub type Live = Box<dyn Fn(&str)>;

impl fmt::Debug for Oversight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oversight").field("on_denied", &self.on_denied).finish_non_exhaustive()
    }
}

/// What a refusal does to a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnDenied {
    /// Nothing: the end of the run tells of it.
    #[default]
    Note,
    /// The first one ends the run, as SIGTERM would.
    End,
    /// A run that would exit 0 has failed.
    Fail,
}

impl OnDenied {
    /// How a run ended in which something was refused.
    fn judge(self, ended: Ended) -> Ended {
        match (self, ended) {
            (Self::End, Ended::Exit(_) | Ended::Signal(_)) | (Self::Fail, Ended::Exit(0)) => Ended::Denied,
            (_, ended) => ended,
        }
    }
}

/// The same on any streams; also tells the first signal that came while the stage ran, whatever the stage made of it.
pub(crate) fn run_here(
    plan: Plan,
    streams: Streams,
    oversight: Oversight,
) -> Result<(Outcome, Option<Signal>), Error> {
    notice_children()?;
    survive_file_limit()?;
    run_on(plan, RunId::new(), streams, Within::Exeat(oversight))
}

/// Gives SIGCHLD its default action in this process: with it ignored, which is inherited, nobody learns how a child ended.
///
/// # Errors
/// [`Error::Prepare`] with what sigaction(2) says.
pub fn notice_children() -> Result<(), Error> {
    exeat_sandbox::notice_children().map_err(|source| Error::Prepare { what: "the signal handlers", source })
}

/// Has a file that reached the size limit (`ulimit -f`) end what is written to it, and not this process.
pub(crate) fn survive_file_limit() -> Result<(), Error> {
    exeat_sandbox::survive_file_limit()
        .map_err(|source| Error::Prepare { what: "the signal handlers", source })
}

/// Carries a plan out on any streams, in whatever process this is. The signal is the first that was asked for.
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
    // First: where there are too few, not every library says so without a panic.
    let soft = match within {
        Within::Exeat(_) => raise_descriptor_limit(),
        Within::Program { .. } => descriptor_limit().map(|(soft, _)| soft),
    };
    let hard = descriptor_limit().map(|(_, hard)| hard);
    let (soft, hard) =
        soft.and_then(|soft| Ok((soft, hard?))).map_err(prepare("the limit of open descriptors"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(prepare("the runtime"))?;
    runtime.block_on(async {
        let (asks, started, on_denied, live) = match within {
            Within::Exeat(Oversight { parent, on_denied, live }) => {
                // From here on a signal no longer ends this process, so that it can end the stage first.
                let signals = Signals::of_a_run().map_err(prepare("the signal handlers"))?;
                (Asks::of_signals(signals, parent), None, on_denied, live)
            }
            Within::Program { asks, on_denied, started } => {
                (Asks::of_owner(asks), Some(started), on_denied, None)
            }
        };
        let keeper = keeper(&plan, run);
        let interrupted = keeper.state.as_deref().map(quarantine::settle_interrupted).unwrap_or_default();
        let watches = plan.missing.iter().cloned().map(|missing| Watch::start(missing, keeper.clone()));
        let watches = watches.collect::<io::Result<Vec<_>>>();
        let watches: Arc<[Watch]> = watches.map_err(prepare("the watch on protected names"))?.into();
        let flags = streams.own.then(|| Flags::of(&streams.fds)).transpose();
        let flags = flags.map_err(prepare("the flags of the standard streams"))?;
        // The last thing that can fail without a word in the record.
        let Opened { log, path: audit, ledger } = open_log(&plan, run)?;
        let (journal, no_journal) = journal(&keeper, &watches);
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
        let mut outcome = keeping(&log, this.carry_out(staged, streams, asks, started)).await;
        if !this.has_begun() {
            // The sandbox never stood, or not as it was demanded. The log fails closed by itself.
            let why = match &outcome {
                Err(Error::Gateway { source, .. }) => Some(source),
                _ => None,
            };
            let _ = this.begin(&off(why));
        }
        // As they were for the lines that follow, and for whoever has these streams next.
        drop(flags);
        // No process of the stage is left: what is found now stays as it is found.
        drop(stubs);
        let mut lost = outcome.as_mut().map(|done| mem::take(&mut done.uncovered)).unwrap_or_default();
        let doubtful = mem::take(&mut lost.doubtful);
        let remade = lost.remade.iter().chain(doubtful.iter().map(|(path, _)| path)).filter_map(|path| {
            let (tree, name) = place_of(&plan, path)?;
            let names = vec![MissingName { name, obeyed: Obeyed::AtOnce }];
            Watch::start(Missing { tree, names, ..Missing::default() }, keeper.clone()).ok()
        });
        let remade: Vec<_> = remade.collect();
        let mut found = quarantine::finish(watches.iter().chain(&remade));
        let put_back: Vec<_> = doubtful.iter().map(|(path, saved)| put_back(path, saved)).collect();
        if let Some(journal) = journal {
            journal.remove();
        }
        let cache_left = used_cache.and_then(|mut cache| cache.end().err()).map(|error| {
            let place = plan.cache.as_deref().unwrap_or(Path::new("")).display();
            format!("the package cache of the run is left at `{place}` ({error}); `exeat state prune --caches` deletes it")
        });
        let tmp_left = used_tmp.and_then(|mut tmp| tmp.end().err()).map(|error| {
            let place = plan.tmp.as_deref().unwrap_or(Path::new("")).display();
            format!("the temporary files of the run are left at `{place}` ({error})")
        });
        let settled = settled(interrupted, &mut found);
        for note in found.named.iter().map(noted).chain(noted_more(&found)) {
            // The log fails closed by itself, and the line below tells.
            let _ = log.write(Event::Note(note));
        }
        // These are in the record since they came.
        found.extend(mem::take(&mut lost.found));
        let told = found.named.iter().map(told).chain(told_more(&found));
        let before = no_cache.into_iter().chain(no_tmp).chain(no_journal).chain(settled).chain(not_made);
        let mut notes: Vec<String> = before.chain(told).chain(put_back).chain(cache_left).chain(tmp_left).collect();
        for (words, line) in lost.told() {
            let mut note = Note::new(What::Uncovered);
            note.error = Some(words);
            let _ = log.write(Event::Note(note));
            notes.push(line);
        }
        let uncovered = lost.into_places();
        if let Some(note) = outcome.as_ref().ok().and_then(|done| turned_away(&done.summary)) {
            notes.extend(note.error.clone());
            let _ = log.write(Event::Note(note));
        }
        if let Ok(done) = &mut outcome
            && !(done.summary.denied.is_empty() && done.summary.denied_more == 0)
        {
            done.ended = on_denied.judge(done.ended);
        }
        let end = match &outcome {
            Ok(done) => run_end(done.ended, &done.summary),
            Err(error) => lost_end(error),
        };
        let cause = end.cause;
        let ended = log.write(Event::RunEnd(end));
        // Without its end the record is not what the ledger could vouch for.
        let listed = this.listed.replace(Listed::None);
        let (ledger, unlisted) = if ended.is_ok() { listed.end(&log, cause) } else { (None, None) };
        notes.extend(unlisted);
        let done = match outcome {
            Ok(done) => done,
            Err(error) => {
                if let Some(record) = plan.audit.in_default_place(audit.as_deref()) {
                    remove_empty(record);
                }
                return Err(lost_with(error, run, audit, found, notes));
            }
        };
        let Done { ended: how, why_not, signal, blind, untold, no_gateway, summary, through, .. } = done;
        notes.extend(no_gateway);
        // The stage has run and its code is the caller's; that the record is not whole is said, not hidden.
        let record_lost = ended.err().map(|error| chain(&error));
        notes.extend(record_lost.as_ref().map(|why| format!("the record is incomplete: {why}")));
        notes.extend(record_full(&summary, log.full().as_deref()));
        notes.extend(untold);
        if let Some(why) = blind {
            notes.push(format!("what the stage uses could not be measured any more: {why}"));
        }
        let why_not = match how {
            Ended::NotFound => Some("the sandbox has no such command, or not the interpreter that it names"),
            Ended::NotExecutable => Some(why_not.unwrap_or("not executable")),
            _ => None,
        };
        let why_not = why_not.map(|why| format!("cannot execute `{}`: {why}", shown(&plan)));
        notes.extend(why_not.clone());
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

/// The error of a run, with what its stage has left, where that has to be told.
pub(crate) fn lost_with(
    error: Error,
    run: RunId,
    audit: Option<PathBuf>,
    found: Leftovers,
    notes: Vec<String>,
) -> Error {
    if found.is_empty() {
        error
    } else {
        Error::RunLost(Box::new(RunLost { run, error, audit, found, notes }))
    }
}

/// The process that a run is part of, and what may be done to it.
pub(crate) enum Within {
    /// exeat itself: the run takes its signals, and raises its limit of descriptors.
    Exeat(Oversight),
    /// Somebody else's program: nothing of it is touched. It asks through a channel.
    Program {
        /// What it asks.
        asks: UnboundedReceiver<Ask>,
        /// What a refusal does.
        on_denied: OnDenied,
        /// Told once, when the stage has started.
        started: Sender<()>,
    },
}

/// What the stage gets as its standard streams.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Input, output, error.
    fds: [OwnedFd; 3],
    /// They are exeat's own, which gives them up when the stage has them.
    own: bool,
}

/// The status flags of exeat's own streams (`O_NONBLOCK`, `O_APPEND`: fcntl(2)), which go with the open file and not with the
/// descriptor: what a stage sets there is set for exeat too. Put back when this is dropped.
#[derive(Debug)]
struct Flags(Vec<(OwnedFd, OFlag)>);

impl Flags {
    /// Of standard error, and of what else can be kept open until the end. Of a pipe or a socket the other side is to see when
    /// the stage has closed it; nothing is written there by exeat.
    fn of([input, output, error]: &[OwnedFd; 3]) -> io::Result<Self> {
        let mut kept = Vec::new();
        for stream in [input, output] {
            let kind = SFlag::from_bits_truncate(fstat(stream)?.st_mode) & SFlag::S_IFMT;
            if kind == SFlag::S_IFCHR || kind == SFlag::S_IFREG {
                kept.push(stream);
            }
        }
        kept.push(error);
        let kept = kept.into_iter().map(|stream| {
            let flags = fcntl(stream, FcntlArg::F_GETFL)?;
            Ok((stream.try_clone()?, OFlag::from_bits_retain(flags)))
        });
        kept.collect::<io::Result<_>>().map(Self)
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        for (stream, flags) in &self.0 {
            // Where it is refused (an append-only file keeps O_APPEND) they are as the kernel wants them.
            let _ = fcntl(stream, FcntlArg::F_SETFL(*flags));
        }
    }
}

/// What messages call the three.
const STREAMS: [&str; 3] = ["standard input", "standard output", "standard error"];

impl Streams {
    /// exeat's own.
    fn of_the_caller() -> Result<Self, Error> {
        let [input, output, error] = STREAMS;
        let copy = |fd: BorrowedFd<'_>, what| {
            fd.try_clone_to_owned().map_err(|source| Error::Prepare { what, source })
        };
        let fds = [
            copy(io::stdin().as_fd(), input)?,
            copy(io::stdout().as_fd(), output)?,
            copy(io::stderr().as_fd(), error)?,
        ];
        Ok(Self { fds, own: true })
    }

    /// Streams that were opened for the stage, or copied for it.
    pub(crate) fn made(fds: [OwnedFd; 3]) -> Self {
        Self { fds, own: false }
    }
}

/// A stage that has come to its end.
struct Done {
    ended: Ended,
    /// The kernel's words, where the command could not be executed.
    why_not: Option<&'static str>,
    /// The first signal that came for the stage.
    signal: Option<Signal>,
    /// Why the stage was stopped for a limit that may not have been reached.
    blind: Option<String>,
    /// A line on a signal that was not passed on.
    untold: Option<String>,
    /// What the host took away from over it.
    uncovered: Uncovered,
    /// A line on a gateway that could not be had.
    no_gateway: Option<String>,
    summary: Summary,
    through: Option<Through>,
}

fn noted(Found { path, moved }: &Found) -> Note {
    let path = path.display();
    let (what, words) = match moved {
        Ok(_) => (What::Quarantined, path.to_string()),
        // The reason first: a record cuts long words at their end.
        Err(error) => (What::NotQuarantined, format!("{error}: {path}")),
    };
    let mut note = Note::new(what);
    note.error = Some(words);
    note
}

/// Holds the names of git's that are missing, and those that a stub of another run's has. Returns a line for each that cannot be
/// held; what a stage makes there is set aside at the end of the run.
fn hold_stubs(plan: &Plan, keeper: &Keeper) -> (Vec<Stub>, Vec<String>) {
    let missing = plan.missing.iter().flat_map(|it| it.names.iter().map(|name| it.tree.join(&name.name)));
    let missing = missing.filter(|path| Stub::can_hold(path));
    let there = plan.mounts.iter().filter_map(|mount| match mount {
        Mount::ReadOnly { host, .. } => Some(host.clone()),
        _ => None,
    });
    let there: BTreeSet<PathBuf> = there.collect();
    let mut stubs = Vec::new();
    let mut lines: Vec<String> = linked_elsewhere(plan, &there).into_iter().collect();
    let names: BTreeSet<_> = missing.chain(there.into_iter().filter(|path| Stub::can_hold(path))).collect();
    if keeper.state.is_none() {
        // Nobody would know them for ours, and they would be moved as what the stage has made.
        lines.extend(names.first().map(|name| {
            format!(
                "`{}` and its like are not held, as there is no state directory of your own: what the stage makes there is moved",
                exeat_record::escape(name.as_os_str().as_bytes(), 1024)
            )
        }));
        return (stubs, lines);
    }
    for name in &names {
        match Stub::hold(name, keeper) {
            Ok(stub) => stubs.extend(stub),
            // Where the caller may not make it, neither may the stage.
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && name.parent().is_some_and(|dir| is_callers(dir) == Some(false)) => {}
            Err(error) => lines.push(format!(
                "`{}` could not be held ({error}): what the stage makes there is moved at its end",
                exeat_record::escape(name.as_os_str().as_bytes(), 1024)
            )),
        }
    }
    (stubs, lines)
}

/// Returns a line on protected files in writable trees that have another name: read-only is the protected one alone.
fn linked_elsewhere(plan: &Plan, names: &BTreeSet<PathBuf>) -> Option<String> {
    let is_linked = |name: &&PathBuf| {
        plan.missing.iter().any(|missing| name.starts_with(&missing.tree))
            && std::fs::symlink_metadata(name).is_ok_and(|meta| meta.is_file() && meta.nlink() > 1)
    };
    let mut linked = names.iter().filter(is_linked);
    let first = linked.next()?;
    let others = match linked.count() {
        0 => String::new(),
        others => format!(", and {others} more protected files"),
    };
    let first = exeat_record::escape(first.as_os_str().as_bytes(), 1024);
    Some(format!(
        "`{first}`{others}: the file has more than one name (a hard link), and the stage may write to it through another one. \
         Make it one of its own: copy it, and rename the copy over it"
    ))
}

/// The writable tree that a path lies in, and its place there.
fn place_of(plan: &Plan, path: &Path) -> Option<(PathBuf, String)> {
    let mut trees = plan.missing.iter().map(|missing| missing.tree.as_path());
    let tree = trees.rfind(|tree| path.starts_with(tree)).or_else(|| path.parent())?;
    Some((tree.to_path_buf(), path.strip_prefix(tree).ok()?.to_str()?.to_owned()))
}

/// Who sets aside what this run's stage makes under protected names.
fn keeper(plan: &Plan, run: RunId) -> Keeper {
    // Not in a directory that somebody else may write to.
    let place = key_place(plan.place.as_ref()).filter(|place| place.prepare().is_ok());
    Keeper { run: run.to_string(), state: place.map(|place| place.state_dir().to_path_buf()) }
}

/// Writes a file of the host's to its place again, when what was there has been moved. Returns the line that tells.
fn put_back(path: &Path, saved: &SavedFile) -> String {
    let path_shown = path.display();
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => return format!("`{path_shown}` may be the stage's: look at it before you use it"),
    }
    match saved.write(path) {
        Ok(()) => format!(
            "`{path_shown}` says again what it said when it was covered last: what came since may be the stage's"
        ),
        Err(error) => format!("`{path_shown}` could not be written again as it was: {error}"),
    }
}

/// Writes down what is watched, for the next start if this process is killed, and for runs that start meanwhile; or a line on why
/// that cannot be.
fn journal(keeper: &Keeper, watches: &[Watch]) -> (Option<Journal>, Option<String>) {
    let written = match &keeper.state {
        _ if watches.is_empty() => return (None, None),
        Some(state) => Journal::write(state, &keeper.run, watches),
        None => Err(io::Error::other("there is no state directory of your own")),
    };
    match written {
        Ok(journal) => (Some(journal), None),
        Err(error) => {
            let line = format!(
                "if exeat is killed, the names that the stage made stay in their places: \
                 what is watched cannot be written down ({error})"
            );
            (None, Some(line))
        }
    }
}

/// Adds what runs have left that were killed, and returns a line for each.
fn settled(interrupted: Vec<Interrupted>, found: &mut Leftovers) -> Vec<String> {
    let mut lines = Vec::new();
    for Interrupted { run, found: left, passed } in interrupted {
        if !left.is_empty() {
            lines.push(format!(
                "the run {run} was killed before its end: what its stage had left was moved aside now"
            ));
        }
        lines.extend(passed.into_iter().map(|why| {
            format!(
                "the run {run} was killed before its end, and what its stage has left is not known: {why}"
            )
        }));
        found.extend(left);
    }
    lines
}

fn told(found: &Found) -> String {
    let path = exeat_record::escape(found.path.as_os_str().as_bytes(), 1024);
    let why = "the stage may have made it, and something on the host could run or obey it";
    let kept = if is_git(&found.path) { "; --allow-write .git has it left where it is" } else { "" };
    match &found.moved {
        Ok(new) => {
            let new = exeat_record::escape(new.as_os_str().as_bytes(), 1024);
            format!("`{path}` was moved to `{new}`: {why}") + kept
        }
        // Words of our own say all there is to say.
        Err(error) if error.get_ref().is_some() => format!("`{path}` is left where it is: {error}"),
        Err(error) => format!(
            "`{path}` could not be moved aside ({error}): if the stage made it, something on the host could run or obey it"
        ),
    }
}

/// Of those that have no line of their own.
fn noted_more(found: &Leftovers) -> impl Iterator<Item = Note> {
    let more = [(What::Quarantined, found.more_moved), (What::NotQuarantined, found.more_left)];
    more.into_iter().filter(|(_, count)| *count > 0).map(|(what, count)| {
        let mut note = Note::new(what);
        note.count = Some(count);
        note.error = Some("as many more, which have no note of their own".into());
        note
    })
}

fn told_more(found: &Leftovers) -> impl Iterator<Item = String> {
    let moved = (found.more_moved > 0).then(|| {
        format!(
            "{} more were moved aside, which the stage made as well: look into `{DIRECTORY}`",
            found.more_moved
        )
    });
    let unlisted = found.unlisted.as_ref().map(|why| {
        format!("`exeat state list` does not know all that was moved aside, as the list could not be written: {why}")
    });
    let left = (found.more_left > 0).then(|| {
        format!(
            "{} more are left where they are, or could not be moved aside: something on the host could run or obey them",
            found.more_left
        )
    });
    moved.into_iter().chain(left).chain(unlisted)
}

/// Whether it is what `--allow-write .git` leaves alone.
fn is_git(path: &Path) -> bool {
    protected::names().any(|(name, _)| name.starts_with(GIT) && path.ends_with(name))
        || path.ends_with(GIT_LINK)
}

fn shown(plan: &Plan) -> String {
    plan.command.first().map(|name| exeat_record::escape(name.as_bytes(), 256)).unwrap_or_default()
}

fn run_end(ended: Ended, summary: &Summary) -> RunEnd {
    let limit = match ended {
        Ended::Limit(reached) => Some(reached.key().to_owned()),
        _ => None,
    };
    RunEnd {
        cause: ended.cause(),
        exit: Some(ended.code().into()),
        limit,
        signal: ended.signal(),
        stopped_by: ended.stopped_by(),
        connections: summary.connections,
        dropped: 0,
    }
}

/// The end of a run that came to an error.
fn lost_end(error: &Error) -> RunEnd {
    let (signal, stopped_by) = error.stopped_by().unzip();
    let cause = if signal.is_some() { Cause::Stopped } else { Cause::Setup };
    let exit = signal.map(|_| error.code().into());
    RunEnd { cause, exit, limit: None, signal, stopped_by, connections: 0, dropped: 0 }
}

/// What the caller is told of connections that the record had no room for.
pub(crate) fn record_full(summary: &Summary, no_space: Option<&str>) -> Option<String> {
    let count = summary.record_full;
    let plural = if count == 1 { "" } else { "s" };
    match no_space {
        Some(why) => Some(format!(
            "there was no space for more of the record ({why}), and {count} connection{plural} got 503 for that"
        )),
        None if count == 0 => None,
        None => Some(format!(
            "the record reached its size, and {count} connection{plural} got 503 for that: raise limits.audit_size if it is too small"
        )),
    }
}

/// What the record and the caller are told of connections for which there was no room. A line for each would let a flood of
/// them fill the disk.
pub(crate) fn turned_away(summary: &Summary) -> Option<Note> {
    let count = Some(summary.turned_away).filter(|count| *count > 0)?;
    let mut note = Note::new(What::TurnedAway);
    note.count = Some(count);
    let plural = if count == 1 { "" } else { "s" };
    note.error = Some(format!("{count} connection{plural} turned away: too many were open at one time"));
    Some(note)
}

/// Opens the record.
fn open_log(plan: &Plan, run: RunId) -> Result<Opened, Error> {
    let record = Record {
        audit: &plan.audit,
        sync: plan.audit_sync,
        signing: &plan.signing,
        place: plan.place.as_ref(),
        stage: plan.stage.clone(),
        policy: plan.via.is_none().then_some(&plan.policy),
    };
    record.open(run)
}

/// What a record begins with, of a run and of a proxy alone.
pub(crate) struct Record<'a> {
    pub(crate) audit: &'a AuditTo,
    /// Each line is on the disk before what it tells of is done.
    pub(crate) sync: bool,
    pub(crate) signing: &'a Signing,
    pub(crate) place: Option<&'a exeat_record::place::Place>,
    pub(crate) stage: Option<String>,
    /// `None` where somebody else's decides.
    pub(crate) policy: Option<&'a Policy>,
}

/// A record that is open.
pub(crate) struct Opened {
    pub(crate) log: Log,
    /// Where it is, unless it goes to a descriptor.
    pub(crate) path: Option<PathBuf>,
    /// The ledger that the run is to be in.
    pub(crate) ledger: RunLedger,
}

impl Record<'_> {
    /// Opens the record.
    pub(crate) fn open(self, run: RunId) -> Result<Opened, Error> {
        let key = self.signing.load(self.place)?;
        let (mut sink, path) = open_record(self.audit, self.place, run)?;
        if self.sync {
            sink = sink.synced().map_err(Error::Record)?;
        }
        let canonical = self.policy.map(Policy::canonical_json);
        // Beside the record in its usual place; elsewhere nothing is put that nobody asked for.
        if let (AuditTo::Default, Some(path), Some(canonical)) = (self.audit, &path, &canonical) {
            // A record without its policy and without a line tells of no run.
            store_policy(path, canonical, self.sync).map_err(Error::Place).inspect_err(|_| {
                let _ = fs::remove_file(path);
            })?;
        }
        let policy_sha256 = canonical.map(|it| sha256_hex(it.as_bytes())).unwrap_or_default();
        let mode = self.policy.map(|policy| policy.terms().mode).unwrap_or_default();
        let header = Header { run, stage: self.stage, policy_sha256, mode };
        let ledger = RunLedger::find(self.signing, key.as_ref(), self.place, self.audit, self.sync);
        let log = match key {
            Some(key) => Log::start_signed(sink, header, key),
            None => Log::start(sink, header),
        };
        Ok(Opened { log: log.map_err(Error::Log)?, path, ledger })
    }
}

/// Runs alongside `work`, has every line of the record signed within a second, and space kept for its end. Returns what `work` does.
pub(crate) async fn keeping<T>(log: &Log, work: impl Future<Output = T>) -> T {
    tokio::select! {
        done = work => done,
        never = keep_signed(log) => match never {},
        never = keep_space(log) => match never {},
    }
}

/// A run that lasts longer than this has space kept for the end of its record, also where its stage attempts nothing.
const KEEP_SPACE: Duration = Duration::from_secs(1);

/// Keeps space on the disk for the end of a record.
async fn keep_space(log: &Log) -> Infallible {
    tokio::time::sleep(KEEP_SPACE).await;
    log.keep_space();
    pending().await
}

async fn keep_signed(log: &Log) -> Infallible {
    loop {
        let due = poll_fn(|cx| log.poll_unsigned(cx)).await;
        sleep_until(due.into()).await;
        log.sign_due();
    }
}

/// The sink, and its path where it has one.
fn open_record(
    audit: &AuditTo,
    place: Option<&exeat_record::place::Place>,
    run: RunId,
) -> Result<(Sink, Option<PathBuf>), Error> {
    match (audit, place) {
        (AuditTo::Default, Some(place)) => {
            let (sink, path) = place.create(run).map_err(Error::Place)?;
            Ok((sink, Some(path)))
        }
        (AuditTo::Default, None) => Err(Error::Place(exeat_record::place::Error::NoHome)),
        (AuditTo::File(path), _) => {
            let opened = |source| Error::Record(OpenError::Io { path: path.clone(), source });
            let record = FilePlace::open(path).map_err(opened)?;
            let sink = Sink::create_in(record.directory(), record.path()).map_err(Error::Record)?;
            Ok((sink, Some(path.clone())))
        }
        (AuditTo::Fd(fd), _) => {
            let fd = fd
                .try_clone()
                .map_err(|source| Error::Prepare { what: "the record's descriptor", source })?;
            Ok((Sink::from_fd(fd).map_err(Error::Record)?, None))
        }
    }
}

fn holds(held: &Held) -> Holds {
    match held {
        Held::Full => Holds::Held,
        Held::Partial { missing } => Holds::Partial(missing.clone()),
        Held::Absent => Holds::Absent,
    }
}

/// What serves the stage's connections.
#[derive(Clone)]
enum Server {
    /// Our own proxy.
    Own(Arc<Context>),
    /// Somebody else's, at this socket. It is reached from here: nothing of it is mounted inside.
    Through(Arc<Forward>, PathBuf),
}

impl Server {
    async fn serve(self, listener: Listener, entry: Entry, stop: CancellationToken) -> ServeReport {
        match self {
            Self::Own(context) => serve(listener, entry, context, stop).await,
            Self::Through(forwarder, _) => forward(listener, entry, forwarder, stop).await,
        }
    }

    fn summary(&self) -> (Summary, Option<Through>) {
        match self {
            Self::Own(context) => (context.summary(), None),
            Self::Through(forwarder, socket) => {
                let through = Through { socket: socket.clone(), lost: forwarder.lost() };
                (forwarder.summary(), Some(through))
            }
        }
    }
}

struct Run<'a> {
    plan: &'a Plan,
    /// Files that hold a name which was missing, to be made read-only.
    stubs: &'a [(PathBuf, FileId)],
    watches: &'a Arc<[Watch]>,
    run: RunId,
    /// The stage's limits of open descriptors, soft and hard.
    descriptors: (u64, u64),
    log: Log,
    /// The ledger, until the record has its first line.
    ledger: Cell<Option<RunLedger>>,
    /// What the ledger has of the run.
    listed: Cell<Listed>,
    /// What is to stay open until no process of the sandbox is left.
    held: Cell<Option<OwnedFd>>,
    on_denied: OnDenied,
    live: Option<Live>,
}

impl Run<'_> {
    /// Says what should not wait for the end of a target that was refused again and again.
    fn tell_of_storm(&self, denied: &DeniedHost) {
        let more = denied.flag.as_deref().unwrap_or(&denied.said);
        // The first refusal of all is told with fewer.
        if let Some(live) = self.live.as_ref().filter(|_| denied.count > 1) {
            live(&format!("{} refused {} times so far: {more}", denied.target(), denied.count));
        }
    }

    /// Writes the first lines of the record. Before the stage starts, and before anything is decided.
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
            user: caller::user(),
            machine: caller::machine(),
            dir: Some(self.plan.cwd.clone().into_os_string()),
            trace: caller::trace(self.plan.traceparent.as_deref()),
            backend: Some("bwrap".into()),
            bridge: Some(self.plan.bridge.as_str().into()),
            proxy: self.plan.via.as_ref().map(|socket| format!("unix:{}", socket.display())),
            upstream: self.plan.upstream.as_ref().map(ToString::to_string),
            gateway: Some(gateway.into()),
            enforcement: aspects.into_iter().map(|(name, held)| (name.to_owned(), holds(held))).collect(),
            limits: self.plan.limits.lines(),
            labels: self.plan.labels.clone(),
            ..RunStart::default()
        };
        // Also where it cannot be written: to begin twice would not mend it.
        let ledger = self.ledger.take().unwrap_or(RunLedger::None);
        self.listed.set(begin(&self.log, ledger, start, &self.plan.sources)?);
        for doubt in &self.plan.doubts {
            let mut note = Note::new(What::HostsMissing);
            note.error = Some(doubt.clone());
            // The log fails closed by itself.
            let _ = self.log.write(Event::Note(note));
        }
        Ok(())
    }

    /// Whether the record has its first line.
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
        mut asks: Asks,
        started: Option<Sender<()>>,
    ) -> Result<Done, Error> {
        let prepare = |what| move |source| Error::Prepare { what, source };
        let dir = RunDir::create(&self.plan.run_base).map_err(prepare("the run directory"))?;
        let listener = dir.listen().map_err(prepare("the proxy's socket"))?;
        let socks5 = self.plan.has_socks5_socket().then(|| dir.listen_socks5()).transpose();
        let socks5 = socks5.map_err(prepare("the proxy's socket"))?;
        let denials = dir.denials().map_err(prepare("the denials file"))?;
        let staging = staged.map(|staged| staging(staged, &dir)).transpose();
        let staging = staging.map_err(prepare("the trees of the view"))?;
        match self.plan.identity {
            Identity::Other { uid, gid } if staging.is_none() => {
                dir.give_to(uid, gid).map_err(prepare("the run directory"))?;
            }
            _ => {}
        }
        let (room, _) = descriptor_limit().map_err(prepare("the limit of open descriptors"))?;
        let limits =
            limits::of_connections(&self.plan.limits.limits, room, Wanted::of(self.plan).has_gateway());
        let own_streams = streams.own;
        let (mut thread, mut sandbox) = self.start_sandbox(&dir, staging, listener, streams)?;
        let Offered { bridge, handle, mut network } = sandbox.offered(&mut asks).await?;
        let finder = network.take_finder();
        let (refused_to, mut refused) = mpsc::unbounded_channel();
        let server = match &self.plan.via {
            None => {
                let context = Context::new(self.plan.policy.clone(), self.log.clone(), self.run);
                let who = finder.map(|finder| Arc::new(Looking::new(finder)) as Arc<dyn Who>);
                let context = context.with_upstream(self.plan.upstream.clone()).with_who(who);
                let context = context.with_denials(denials).with_watch(refused_to);
                Server::Own(Arc::new(context.with_limits(limits)))
            }
            // Who was denied is for that proxy to say, in its answers.
            Some(socket) => {
                let forwarder = Forward::new(socket.clone(), self.log.clone()).with_limits(limits);
                Server::Through(Arc::new(forwarder), socket.clone())
            }
        };
        let mut ways = Ways::new(self.plan, network)?;
        self.begin(&ways.word())?;
        let no_gateway = ways.note();
        // All names are mounted now: nothing is left on the host from here on, whatever happens.
        drop(dir);

        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (http, socks5, lifelines) = match bridge {
            Bridge::Handoff { http, socks5 } => {
                (Listener::tcp(http), socks5.map(Listener::tcp), [None, None])
            }
            Bridge::Relay { listener, lifeline, socks5: second } => {
                (Listener::unix(listener), socks5.map(Listener::unix), [Some(lifeline), second])
            }
        };
        let http = http.map_err(prepare("the bridge's listener"))?;
        let socks5 = socks5.transpose().map_err(prepare("the bridge's listener"))?;
        let over = CancellationToken::new();
        for lifeline in lifelines.into_iter().flatten() {
            let watch = watch_relay(lifeline, handle.clone(), self.log.clone(), over.clone());
            tasks.spawn(async move { drop(watch.await) });
        }
        let entries = [Some((http, Entry::Http)), socks5.map(|socks5| (socks5, Entry::Socks5))];
        let forwards = mem::take(&mut ways.forwards).into_iter().map(|(listener, target)| {
            let listener = Listener::tcp(listener).map_err(prepare("the listener of a host port"))?;
            Ok((listener, Entry::Forward(target)))
        });
        let forwards = forwards.collect::<Result<Vec<_>, Error>>()?;
        for (listener, entry) in entries.into_iter().flatten().chain(forwards) {
            let serving = server.clone().serve(listener, entry.clone(), stop.clone());
            tasks.spawn(async move {
                let report = serving.await;
                tracing::debug!(?entry, ?report, "the proxy has stopped");
            });
        }
        let has_gateway = ways.has_gateway();
        if let Server::Own(context) = &server
            && let Some(gateway) = ways.gateway(context).await.map_err(prepare("the gateway's sockets"))?
        {
            tasks.spawn(gateway.serve(stop.clone()));
        }

        let on_start = || {
            if let Some(started) = started {
                // Nobody waits for it any more: the owner is told of the end all the same.
                let _ = started.send(());
            }
            // What the stage closes must end for whoever is at the other end.
            if own_streams { release_streams() } else { Ok(()) }
        };
        let limits = &self.plan.limits.limits;
        let ended = sandbox
            .become_stage(handle, has_gateway, &mut asks, limits, on_start, (self, &mut refused))
            .await;
        over.cancel();
        stop.cancel();
        // The server drains for a bounded time by itself.
        while tasks.join_next().await.is_some() {}
        thread.join();
        let Over { ended, why_not, signal, blind, untold, uncovered } = ended?;
        let (summary, through) = server.summary();
        Ok(Done { ended, why_not, signal, blind, untold, uncovered, no_gateway, summary, through })
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
            Terminal::of(&streams).map_err(prepare("the terminal"))?
        } else {
            None
        };
        let on_terminal = |number| terminal.as_ref().is_some_and(|terminal| terminal.replaces(number));
        for (number, stream) in streams.iter_mut().enumerate().filter(|(number, _)| on_terminal(*number)) {
            // Nothing of the caller's terminal goes in: stage2 puts its own in this place.
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
            bwrap: self.plan.bwrap.clone(),
            spec: self.plan.spec(dir.socket_path(), dir.socks5_path(), dir.denials_path()),
            listener,
            cancel: cancelled.into(),
            judged: judge(&self.plan.mounts),
            staging,
            held: self.held.take(),
        };
        // Trees that root holds by descriptor are mounted once.
        let again = launch.staging.is_none().then(|| launch.try_clone()).transpose();
        let again = again.map_err(prepare("a descriptor"))?;
        let mut go = self.go(terminal.as_ref())?;
        let wanted = Wanted::of(self.plan);
        let without_gateway = self.variables(&self.plan.without_gateway);
        let (limits, run) = (self.plan.limits.clone(), self.run);
        let mounts = self.plan.mounts.clone();
        let masked = self.plan.masked.clone();
        let stubs = self.stubs.to_vec();
        let watches = Arc::clone(self.watches);
        let is_full_required = self.plan.is_full_required;
        let log = self.log.clone();
        let says = stop.clone();
        let (offer_to, offered) = oneshot::channel();
        let (go_to, may_go) = oneshot::channel::<bool>();
        let (started_to, started) = oneshot::channel();
        let (status_to, status) = oneshot::channel();
        let body = move || {
            // A receiver that is gone has lost interest: what is dropped here ends the sandbox.
            let started = match (launch.start(), again) {
                // Programs on the host rename files while they work: once is no attack.
                (Err(exeat_sandbox::Error::Replaced(place)), Some(again)) => {
                    tracing::debug!(place = %place.display(), "the start is made anew");
                    Launch { judged: judge(&mounts), ..again }.start()
                }
                (started, _) => started,
            };
            let mut offer = match started {
                Ok(offer) => offer,
                Err(error) => return drop(offer_to.send(Err(error))),
            };
            let Some(bridge) = offer.take_bridge() else { return };
            let made = Covers::new(&mounts, &masked, &stubs, watches, &offer);
            let (covers, process) = match made {
                Ok(made) => made,
                Err(error) => return drop(offer_to.send(Err(error))),
            };
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
            // The handle is known before the stage can write.
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
            let [input, output, error] = &streams;
            let mut running = match offer.go(go, [input.as_fd(), output.as_fd(), error.as_fd()]) {
                Ok(running) => running,
                Err(error) => return drop(started_to.send(Err(error))),
            };
            // The stage has its own: a reader of its output must see the end when the stage closes it.
            drop(streams);
            if started_to.send(Ok(running.take_terminal())).is_ok() {
                // The log fails closed by itself, and a line tells at the end.
                let note = |found: &Found| drop(log.write(Event::Note(noted(found))));
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

    /// The stage's environment with these besides, as execve(2) takes it.
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

/// What each mount of the host's must show, where no later mount covers it. The paths have no links: one that has come since
/// the plan is equal to nothing.
fn judge(mounts: &[Mount]) -> Vec<Judged> {
    let points: HashMap<&Path, usize> =
        mounts.iter().enumerate().filter_map(|(number, mount)| Some((mount_point(mount)?, number))).collect();
    let shown = mounts.iter().enumerate().filter_map(|(number, mount)| match mount {
        Mount::ReadOnly { host, at } | Mount::Writable { host, at } => Some((number, host, at)),
        _ => None,
    });
    let shown = shown.filter(|(number, _, at)| {
        !at.ancestors().any(|above| points.get(above).is_some_and(|later| later > number))
    });
    shown.map(|(_, host, at)| Judged { at: at.clone(), file: id_of_plain(host).ok() }).collect()
}

/// The sandbox's thread, joined at the end.
struct Thread(Option<std::thread::JoinHandle<()>>);

impl Thread {
    fn join(&mut self) {
        if let Some(thread) = self.0.take() {
            // It has sent its last word; a panic there has been reported already as a closed channel.
            let _ = thread.join();
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.join();
    }
}

/// A sandbox that stands.
struct Offered {
    bridge: Bridge,
    handle: Handle,
    /// Its network, where that could be entered.
    network: Entered,
}

/// The other thread, as seen from this one.
struct Sandbox {
    offered: Option<oneshot::Receiver<Result<Offered, exeat_sandbox::Error>>>,
    /// Dropping it gives up a sandbox that does not stand yet.
    cancel: Option<PipeWriter>,
    /// Whether there is a gateway.
    go: Option<oneshot::Sender<bool>>,
    /// With the master of the stage's terminal, where it has one of its own.
    started: oneshot::Receiver<Result<Option<OwnedFd>, exeat_sandbox::Error>>,
    /// With what the host took away from over the stage.
    status: oneshot::Receiver<(Result<Status, exeat_sandbox::Error>, Uncovered)>,
    /// The caller's terminal, where the stage has one of its own.
    terminal: Option<Terminal>,
    /// One of the caller's standard streams is a terminal.
    is_attended: bool,
    /// Counts the output, where that is limited.
    meter: Option<Meter>,
    /// What is between the stage and its output, where that is limited.
    copies: Option<Copies>,
    /// Limits that were reached.
    stops: mpsc::Receiver<Stop>,
    /// Keeps that channel open: not every run has somebody who watches.
    _stop: mpsc::Sender<Stop>,
}

fn lost<T>(_: T) -> Error {
    Error::Prepare { what: "the sandbox", source: io::Error::other("its thread ended early") }
}

impl Sandbox {
    /// Waits until the sandbox stands. Asked for the end, it is given up: the command is not started at all.
    async fn offered(&mut self, asks: &mut Asks) -> Result<Offered, Error> {
        let offered = self.offered.take().ok_or(()).map_err(lost)?;
        tokio::select! {
            offered = offered => offered.map_err(lost)?.map_err(Error::Sandbox),
            (ask, signal) = asks.ending() => {
                drop(self.cancel.take());
                Err(Error::stopped(ask, signal))
            }
        }
    }

    /// Lets the stage start, does what is asked, and waits for the end.
    async fn become_stage(
        mut self,
        handle: Handle,
        has_gateway: bool,
        asks: &mut Asks,
        limits: &Limits,
        on_start: impl FnOnce() -> io::Result<()>,
        (run, refused): (&Run<'_>, &mut UnboundedReceiver<DeniedHost>),
    ) -> Result<Over, Error> {
        // Asked while the sandbox was made: the stage is not started at all.
        tokio::select! {
            biased;
            (ask, signal) = asks.ending() => return Err(Error::stopped(ask, signal)),
            () = std::future::ready(()) => {}
        }
        self.go.take().and_then(|go| go.send(has_gateway).ok()).ok_or(()).map_err(lost)?;
        let mut early = None;
        let started = tokio::select! {
            // What has started is not reported as stopped before it did.
            biased;
            started = &mut self.started => started.map_err(lost)?,
            (ask, signal) = asks.ending() => match tokio::time::timeout(STARTING, &mut self.started).await {
                // It had, and the word of it was on its way.
                Ok(started) => {
                    early = Some((ask, signal));
                    started.map_err(lost)?
                }
                Err(_) => {
                    // The command may lie on a file system that does not answer. There is no sandbox left to report an error.
                    handle.kill();
                    return Err(Error::stopped(ask, signal));
                }
            },
        };
        let terminal = match started {
            // The stage has the streams now.
            Ok(master) => {
                let copying = self.terminal.take().zip(master).map(|(terminal, master)| {
                    terminal.copy(master, handle.clone(), self.meter.take(), may_suspend())
                });
                let ready = on_start().map_err(|source| ("the standard streams", source));
                let ready =
                    ready.and_then(|()| copying.transpose().map_err(|source| ("the terminal", source)));
                match ready {
                    Ok(copying) => copying,
                    Err((what, source)) => {
                        // It runs already, and nobody would hold it to its time.
                        handle.kill();
                        return Err(Error::Prepare { what, source });
                    }
                }
            }
            Err(exeat_sandbox::Error::Exec(errno)) => {
                let absent = errno as i32 == libc::ENOENT;
                let ended = if absent { Ended::NotFound } else { Ended::NotExecutable };
                return Ok(Over {
                    ended,
                    why_not: Some(errno.desc()),
                    signal: None,
                    blind: None,
                    untold: None,
                    uncovered: Uncovered::default(),
                });
            }
            Err(error) => return Err(Error::Sandbox(error)),
        };
        let mut timeout = limits.timeout.and_then(|limit| Instant::now().checked_add(limit.get()));
        let grace = if self.is_attended { GRACE } else { GRACE_UNATTENDED };
        let mut stopping = Stopping::new(handle, limits.grace.map_or(grace, Span::get), terminal);
        let (mut timed_out, mut is_denied) = (false, false);
        // The first ask for the end.
        let mut first = None;
        if let Some((ask, signal)) = early {
            first = Some((ask.by(), signal, Instant::now()));
            stopping.asked(ask);
        }
        let mut stop: Option<Stop> = None;
        let (status, uncovered) = loop {
            let deadline = stopping.deadline;
            tokio::select! {
                over = &mut self.status => {
                    let (status, uncovered) = over.map_err(lost)?;
                    break (status.map_err(Error::Sandbox)?, uncovered);
                }
                ask = asks.next() => {
                    first = first.or_else(|| Some((ask.by(), ask.ends()?, Instant::now())));
                    match ask {
                        Ask::Suspend => stopping.suspend(false).await,
                        ask => stopping.asked(ask),
                    }
                }
                () = stopping.suspend_typed() => stopping.suspend(true).await,
                () = until(timeout), if stop.is_none() => {
                    timeout = None;
                    // One that was asked to end before is killed now, and was stopped all the same.
                    timed_out = first.is_none() && !is_denied;
                    stopping.signal(Signal::SIGTERM);
                }
                Some(denied) = refused.recv() => {
                    run.tell_of_storm(&denied);
                    if run.on_denied == OnDenied::End && !is_denied && !timed_out && first.is_none() {
                        is_denied = true;
                        stopping.signal(Signal::SIGTERM);
                    }
                }
                reached = self.stops.recv(), if !timed_out && stop.is_none() => {
                    stop = reached;
                    stopping.kill();
                }
                () = until(deadline), if deadline.is_some() => stopping.kill(),
            }
        };
        let over = Instant::now();
        stopping.over();
        if self.copies.is_some() || stopping.terminal.is_some() {
            // What the stage has written goes on to whoever reads it, for as long as that takes: without a pipe between, it
            // would have gone there before the stage could end. A stage that was stopped, or a signal, does not wait so long.
            let by = stopping.deadline.map(|_| Instant::now() + KILLING);
            loop {
                let copied = async {
                    if let Some(copies) = &self.copies {
                        copies.finished().await;
                    }
                };
                let shown = async {
                    match &stopping.terminal {
                        Some(terminal) => terminal.finished().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    // Restores the caller's terminal, whose keys may be needed while the rest goes on.
                    () = shown => drop(stopping.terminal.take()),
                    () = copied, if stopping.terminal.is_none() => break,
                    ask = asks.next() => match ask {
                        Ask::Suspend => stopping.suspend(false).await,
                        ask if ask.ends().is_some() => break,
                        ask => stopping.asked(ask),
                    },
                    () = until(by.or(timeout)) => {
                        timed_out |= by.is_none();
                        break;
                    }
                }
            }
            if let Some(copies) = &mut self.copies {
                copies.cancel();
            }
            // Restores the caller's terminal.
            drop(stopping.terminal.take());
        }
        if !timed_out && stop.is_none() {
            stop = self.stops.try_recv().ok();
        }
        let ended = match (&stop, first, status) {
            _ if uncovered.over.is_some() => Ended::Uncovered,
            _ if timed_out => Ended::Timeout,
            (Some(stop), ..) => Ended::Limit(stop.reached),
            _ if is_denied => Ended::Denied,
            (None, Some((by, signal, at)), status) => {
                let how = match status {
                    Status::Exit(code) => StoppedHow::Exit(code),
                    Status::Signal(libc::SIGKILL) if stopping.killed => StoppedHow::Killed,
                    Status::Signal(signal) => StoppedHow::Signal(signal),
                };
                Ended::Stopped(Stopped { signal: signal as i32, by, after: over - at, how })
            }
            (None, None, Status::Exit(code)) => Ended::Exit(code),
            (None, None, Status::Signal(signal)) => Ended::Signal(signal),
        };
        let blind = stop.and_then(|stop| stop.blind);
        Ok(Over {
            ended,
            why_not: None,
            signal: first.map(|(_, signal, _)| signal),
            blind,
            untold: stopping.untold,
            uncovered,
        })
    }
}

/// How the sandbox's thread saw the end.
struct Over {
    ended: Ended,
    why_not: Option<&'static str>,
    signal: Option<Signal>,
    blind: Option<String>,
    /// A line on a signal that was not passed on.
    untold: Option<String>,
    uncovered: Uncovered,
}

/// Describes a stream that is more than a way for bytes. A directory opens files that the view does not have. A socket that can still be
/// connected, bound or accepted on does so in the host's network, where it was made.
fn leads_out(stream: &OwnedFd) -> io::Result<Option<&'static str>> {
    let kind = SFlag::from_bits_truncate(fstat(stream)?.st_mode) & SFlag::S_IFMT;
    if kind == SFlag::S_IFDIR {
        return Ok(Some("a directory"));
    }
    if kind != SFlag::S_IFSOCK {
        return Ok(None);
    }
    // A family that has no addresses (AF_ALG) does not answer, and is not Unix.
    let address = getsockname::<SockaddrStorage>(stream.as_raw_fd()).ok();
    if address.and_then(|address| address.family()) != Some(AddressFamily::Unix) {
        return Ok(Some("a network socket, or one of the kernel's"));
    }
    // A stream is what many programs give their children for a pipe. One of packets or datagrams can be connected again.
    if getsockopt(stream, sockopt::SockType)? != SockType::Stream {
        return Ok(Some("a Unix socket of datagrams or packets"));
    }
    if getsockopt(stream, sockopt::AcceptConn)? {
        return Ok(Some("a Unix socket that listens"));
    }
    // A connected stream stays so, also after its peer has closed (unix_stream_connect, net/unix/af_unix.c).
    let peer = getpeername::<SockaddrStorage>(stream.as_raw_fd());
    Ok(peer.is_err().then_some("a Unix socket that is not connected"))
}

/// Puts `/dev/null` in the place of this process's standard input and output.
fn release_streams() -> io::Result<()> {
    let null = null()?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    Ok(())
}

fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

/// Sleeps until then, or for ever.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// How long the stage may outlive its relay without that being a loss: both end with pid 1, in any order.
const TOGETHER: Duration = Duration::from_millis(200);

/// Writes a note when the relay dies before the stage.
async fn watch_relay(lifeline: OwnedFd, handle: Handle, log: Log, over: CancellationToken) -> io::Result<()> {
    let lifeline = std::os::unix::net::UnixStream::from(lifeline);
    lifeline.set_nonblocking(true)?;
    let lifeline = UnixStream::from_std(lifeline)?;
    tokio::select! {
        () = over.cancelled() => return Ok(()),
        // The relay never writes: readable means end of file.
        ready = lifeline.readable() => ready?,
    }
    tokio::select! {
        () = over.cancelled() => return Ok(()),
        () = tokio::time::sleep(TOGETHER) => {}
    }
    if !handle.stage_is_over() {
        tracing::warn!("the relay ended before the stage");
        // The log fails closed by itself.
        let _ = log.write(Event::Note(Note::new(What::BridgeLost)));
    }
    Ok(())
}

/// What bubblewrap is to find in the place of the run directory: the trees, and the directory's own files.
pub(crate) fn staging(staged: Staged, dir: &RunDir) -> io::Result<Staging> {
    let mut staging = Staging::new(dir.path());
    for (name, tree) in staged.into_trees() {
        staging.add(name, tree);
    }
    for (name, path) in names(dir) {
        staging.add(name, Tree::open(&path)?);
    }
    Ok(staging)
}

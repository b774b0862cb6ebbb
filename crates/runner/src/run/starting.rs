//! Starts a sandbox in a thread of its own, and waits there until it is gone.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use exeat_contract::Go;
use exeat_files::layout::{EMPTY_FILE, EmptyEntry, Mount};
use exeat_files::names::id_of_plain;
use exeat_files::quarantine::{FileId, Leftover, Watch};
use exeat_policy::Tty;
use exeat_record::{Event, Log, RunId};
use exeat_sandbox::backend::Handle;
use exeat_sandbox::{Bridge, ExpectedFile, InsideProcess, Launch, Offer, Status};
use tokio::sync::{mpsc, oneshot};

use super::protected::quarantine_note;
use super::streams::{STREAMS, Streams, leads_out, null};
use crate::cover::{Covers, Uncovered};
use crate::error::Error;
use crate::gateway::{EnteredNetwork, NetworkNeeds};
use crate::limits::{self, RunLimits, Stop};
use crate::terminal::Terminal;

/// The standard streams of a stage, ready to pass.
pub(super) struct StageStreams {
    /// Input, output and error; `/dev/null` where the stage has its own terminal.
    pub(super) fds: [OwnedFd; 3],
    /// The caller's terminal, if the stage has its own.
    pub(super) terminal: Option<Terminal>,
    /// Whether one of the caller's standard streams is a terminal.
    pub(super) is_attended: bool,
}

impl StageStreams {
    /// Refuses streams that give more access than bytes, and replaces the caller's terminal.
    pub(super) fn prepare(streams: Streams, tty: Tty) -> Result<Self, Error> {
        let prepare = |what| move |source| Error::Prepare { what, source };
        let Streams { fds: mut streams, own } = streams;
        for (stream, name) in streams.iter().zip(STREAMS) {
            if let Some(what) = leads_out(stream).map_err(prepare("the standard streams"))? {
                return Err(Error::Stream { stream: name, what });
            }
        }
        let is_attended = own && streams.iter().any(IsTerminal::is_terminal);
        let terminal = if own && tty == Tty::Auto {
            Terminal::for_streams(&streams).map_err(prepare("the terminal"))?
        } else {
            None
        };
        let on_terminal = |number| terminal.as_ref().is_some_and(|terminal| terminal.replaces(number));
        for (number, stream) in streams.iter_mut().enumerate().filter(|(number, _)| on_terminal(*number)) {
            // The caller's terminal does not go inside: stage2 opens its own here.
            *stream = null().map_err(prepare(STREAMS.get(number).copied().unwrap_or_default()))?.into();
        }
        Ok(Self { fds: streams, terminal, is_attended })
    }
}

/// A sandbox that is ready for its stage.
pub(super) struct Offered {
    pub(super) bridge: Bridge,
    pub(super) handle: Handle,
    /// The network, if it could be entered.
    pub(super) network: EnteredNetwork,
}

/// The thread's side of the channels to the thread that serves the proxy. If the other side of one is closed, nobody is interested, and the
/// sandbox ends.
pub(super) struct Reports {
    pub(super) offer: oneshot::Sender<Result<Offered, exeat_sandbox::Error>>,
    /// Receives whether there is a gateway, which starts the stage.
    pub(super) may_go: oneshot::Receiver<bool>,
    /// Sends the master of the stage's own terminal, if it has one.
    pub(super) started: oneshot::Sender<Result<Option<OwnedFd>, exeat_sandbox::Error>>,
    /// Sends the end of the stage, with the changes of the host.
    pub(super) status: oneshot::Sender<(Result<Status, exeat_sandbox::Error>, Uncovered)>,
}

/// What the sandbox's thread needs besides the sandbox.
pub(super) struct Starting {
    pub(super) go: Go,
    /// The stage's environment if there is no gateway.
    pub(super) without_gateway: Vec<Vec<u8>>,
    pub(super) network: NetworkNeeds,
    pub(super) limits: RunLimits,
    pub(super) run: RunId,
    pub(super) mounts: Vec<Mount>,
    /// Paths that the caller or a ceiling hides by name.
    pub(super) masked: Vec<PathBuf>,
    /// Files that hold a missing name.
    pub(super) stubs: Vec<(PathBuf, FileId)>,
    pub(super) watches: Arc<[Watch]>,
    pub(super) is_full_required: bool,
    pub(super) log: Log,
    /// Receives limits that were reached.
    pub(super) stop: mpsc::Sender<Stop>,
    /// Gets the handle of the sandbox, with which a meter ends it.
    pub(super) known: Arc<OnceLock<Handle>>,
    pub(super) streams: [OwnedFd; 3],
}

impl Starting {
    /// Starts the sandbox, reports each step, and waits for its end. `again` is for one more attempt if a program on the host replaces a
    /// file meanwhile.
    pub(super) fn run(mut self, launch: Launch, again: Option<Launch>, reports: Reports) {
        let Reports { offer: offer_to, may_go, started: started_to, status: status_to } = reports;
        let (mut offer, (covers, process)) = match self.start(launch, again) {
            Ok(started) => started,
            Err(error) => return drop(offer_to.send(Err(error))),
        };
        let Some(bridge) = offer.take_bridge() else { return };
        let network = self.network.enter(&offer, &process);
        drop(process);
        let offered = Offered { bridge, handle: offer.handle(), network };
        if offer_to.send(Ok(offered)).is_err() {
            return;
        }
        let Ok(has_gateway) = may_go.blocking_recv() else { return };
        if !has_gateway {
            self.go.env = std::mem::take(&mut self.without_gateway);
        }
        let watch = match self.arm(&offer, &covers) {
            Ok(watch) => watch,
            Err(error) => return drop(started_to.send(Err(error))),
        };
        let handle = offer.handle();
        self.watches.iter().for_each(Watch::stage_starts);
        let [input, output, error] = &self.streams;
        let mut running = match offer.go(self.go, [input.as_fd(), output.as_fd(), error.as_fd()]) {
            Ok(running) => running,
            Err(error) => return drop(started_to.send(Err(error))),
        };
        // The stage has its own copies: a reader of its output must see the end when the stage closes it.
        drop(self.streams);
        if started_to.send(Ok(running.take_terminal())).is_ok() {
            // The log itself stops the run if it cannot write, and a line reports that at the end.
            let note = |found: &Leftover| drop(self.log.write(Event::Note(quarantine_note(found))));
            let status = covers.hold(running, handle, note);
            if let Some(watch) = &watch {
                watch.tell();
            }
            drop(status_to.send(status));
        }
        drop(watch);
    }

    /// Starts the sandbox and the watch on its mounts.
    fn start(
        &self,
        launch: Launch,
        again: Option<Launch>,
    ) -> Result<(Offer, (Covers, InsideProcess)), exeat_sandbox::Error> {
        let start = |launch: Launch| {
            let offer = launch.start()?;
            let watches = Arc::clone(&self.watches);
            let covered = Covers::new(&self.mounts, &self.masked, &self.stubs, watches, &offer)?;
            Ok::<_, exeat_sandbox::Error>((offer, covered))
        };
        match (start(launch), again) {
            // Programs on the host rename files while they work: one replacement is not an attack.
            (Err(why), Some(again)) if why.is_replacement() => {
                tracing::debug!(%why, "the start is made anew");
                start(Launch { expected: judge(&self.mounts), ..again })
            }
            (started, _) => started,
        }
    }

    /// Prepares what must hold before the stage runs: its limits, and the filter for calls that are reported. Returns the watch on limits.
    fn arm(&mut self, offer: &Offer, covers: &Covers) -> Result<Option<limits::Watch>, exeat_sandbox::Error> {
        // The handle is set before the stage can write.
        let _ = self.known.set(offer.handle());
        if self.is_full_required {
            covers.check_watch().map_err(exeat_sandbox::Error::Watch)?;
        }
        let watch = self.limits.hold(offer, &self.mounts, self.run, self.stop.clone())?;
        self.go.notice_filter = covers.notice_filter()?;
        Ok(watch)
    }
}

/// Returns the file that each host mount must show, unless a later mount covers it. The paths had no links in the plan: one that appeared
/// since then matches no file.
pub(super) fn judge(mounts: &[Mount]) -> Vec<ExpectedFile> {
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

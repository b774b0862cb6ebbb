//! Receives signals and requests during a run, and passes signals on. A signal that was ignored at the start of exeat stays ignored
//! (nohup(1), background jobs).

use std::future::pending;
use std::io;
use std::time::Duration;

use exeat_record::StoppedBy;
use exeat_sandbox::ignores;
use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::parent::Parent;

/// The signals that ask a stage to end.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// The signals that are passed on without another effect.
const TOLD: [Signal; 4] = [Signal::SIGCONT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];

/// A request to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunRequest {
    /// exeat received a signal: it is passed on, and the second one kills.
    Signal(Signal),
    /// The run must end: SIGTERM now, and SIGKILL after this time.
    Stop(Duration),
    /// The run must end at once.
    Kill,
    /// The process that started exeat has ended. Like [`RunRequest::Signal`] with SIGTERM, but never counts as a second signal.
    ParentEnded,
    /// exeat received a signal that only the stage must get.
    Tell(Signal),
    /// The stage and this process must stop until they are continued.
    Suspend,
}

impl RunRequest {
    /// Returns the equivalent signal of a request to end.
    pub(crate) fn ending_signal(self) -> Option<Signal> {
        match self {
            Self::Signal(signal) => Some(signal),
            Self::Stop(_) | Self::ParentEnded => Some(Signal::SIGTERM),
            Self::Kill => Some(Signal::SIGKILL),
            Self::Tell(_) | Self::Suspend => None,
        }
    }

    /// Returns who asks.
    pub(crate) fn requester(self) -> StoppedBy {
        match self {
            Self::Stop(_) | Self::Kill => StoppedBy::Program,
            Self::ParentEnded => StoppedBy::Parent,
            Self::Signal(_) | Self::Tell(_) | Self::Suspend => StoppedBy::Signal,
        }
    }
}

/// The requests to a run, in order.
#[derive(Debug)]
pub(crate) struct RunRequests {
    asker: RequestSource,
    /// Requests from before the start of the stage, without duplicates.
    kept: Vec<RunRequest>,
}

/// The source of requests.
#[derive(Debug)]
enum RequestSource {
    /// Signals to this process, and the end of the process that started it.
    Signals(Signals, Option<Parent>),
    /// The part of this program that started the run. When it is gone, the run ends.
    Owner(UnboundedReceiver<RunRequest>),
}

impl RunRequests {
    /// Creates requests from signals to this process, and from the end of `parent`.
    pub(crate) fn from_signals(signals: Signals, parent: Option<Parent>) -> Self {
        Self { asker: RequestSource::Signals(signals, parent), kept: Vec::new() }
    }

    /// Creates requests from the part of this program that started the run.
    pub(crate) fn from_owner(asks: UnboundedReceiver<RunRequest>) -> Self {
        Self { asker: RequestSource::Owner(asks), kept: Vec::new() }
    }

    /// Returns the next request. Cancel-safe.
    pub(crate) async fn next(&mut self) -> RunRequest {
        if !self.kept.is_empty() {
            return self.kept.remove(0);
        }
        self.asker.next().await
    }

    /// Returns the next request to end, with its signal. Keeps the others for [`RunRequests::next`]. Cancel-safe.
    pub(crate) async fn ending(&mut self) -> (RunRequest, Signal) {
        loop {
            let ask = self.asker.next().await;
            if let Some(signal) = ask.ending_signal() {
                return (ask, signal);
            }
            // Of a stop and its end the later one counts, as for the kernel (signal(7)).
            let undone = match ask {
                RunRequest::Suspend => Some(RunRequest::Tell(Signal::SIGCONT)),
                RunRequest::Tell(Signal::SIGCONT) => Some(RunRequest::Suspend),
                _ => None,
            };
            self.kept.retain(|kept| *kept != ask && Some(*kept) != undone);
            self.kept.push(ask);
        }
    }
}

impl RequestSource {
    async fn next(&mut self) -> RunRequest {
        match self {
            Self::Signals(signals, parent) => {
                let signal = tokio::select! {
                    signal = signals.next() => signal,
                    () = ended(parent.as_mut()) => {
                        *parent = None;
                        return RunRequest::ParentEnded;
                    }
                };
                match signal {
                    Signal::SIGTSTP => RunRequest::Suspend,
                    told if TOLD.contains(&told) => RunRequest::Tell(told),
                    signal => RunRequest::Signal(signal),
                }
            }
            Self::Owner(asks) => asks.recv().await.unwrap_or(RunRequest::Kill),
        }
    }
}

async fn ended(parent: Option<&mut Parent>) {
    match parent {
        Some(parent) => parent.ended().await,
        None => pending().await,
    }
}

/// Returns whether this process cannot see the end of its children: with SIGCHLD ignored the kernel reaps them (wait(2)).
pub(crate) fn children_unseen() -> bool {
    ignores(Signal::SIGCHLD)
}

/// Returns whether this process may be suspended: a shell without job control forbids it.
pub(crate) fn may_suspend() -> bool {
    !ignores(Signal::SIGTSTP)
}

/// A set of handled signals.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    /// Handles the signals that end a process. Needs a runtime.
    pub(crate) fn ending() -> io::Result<Self> {
        Self::listen(&ENDING)
    }

    /// Handles all signals that affect a run. Needs a runtime.
    pub(crate) fn for_run() -> io::Result<Self> {
        Self::listen(&[&ENDING[..], &TOLD, &[Signal::SIGTSTP]].concat())
    }

    pub(crate) fn listen(signals: &[Signal]) -> io::Result<Self> {
        let wanted = signals.iter().copied().filter(|which| !ignores(*which));
        let streams = wanted.map(|which| Ok((which, signal(SignalKind::from_raw(which as i32))?)));
        streams.collect::<io::Result<_>>().map(Self)
    }

    /// Returns the next signal. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (which, stream) in &mut self.0 {
                if stream.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*which);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

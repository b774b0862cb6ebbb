//! What a run is asked while it goes on, and which signals exeat passes on. A signal that was ignored when exeat started stays ignored (nohup(1), background jobs).

use std::future::pending;
use std::io;
use std::time::Duration;

use exeat_record::StoppedBy;
use exeat_sandbox::ignores;
use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::parent::Parent;

/// The signals that end a stage politely.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// The signals that are passed on, and change nothing else.
const TOLD: [Signal; 4] = [Signal::SIGCONT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];

/// What a run can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A signal came to exeat: it is passed on, and the second one kills.
    Signal(Signal),
    /// End: SIGTERM now, and SIGKILL when this time is over.
    Stop(Duration),
    /// End at once.
    Kill,
    /// The process that had started exeat has ended: as [`Ask::Signal`] with SIGTERM, but not one of two.
    ParentEnded,
    /// A signal came to exeat that only the stage is to know of.
    Tell(Signal),
    /// Stop the stage and this process, until it is continued.
    Suspend,
}

impl Ask {
    /// The signal that says the same, where the run is asked to end.
    pub(crate) fn ends(self) -> Option<Signal> {
        match self {
            Self::Signal(signal) => Some(signal),
            Self::Stop(_) | Self::ParentEnded => Some(Signal::SIGTERM),
            Self::Kill => Some(Signal::SIGKILL),
            Self::Tell(_) | Self::Suspend => None,
        }
    }

    /// Who asks.
    pub(crate) fn by(self) -> StoppedBy {
        match self {
            Self::Stop(_) | Self::Kill => StoppedBy::Program,
            Self::ParentEnded => StoppedBy::Parent,
            Self::Signal(_) | Self::Tell(_) | Self::Suspend => StoppedBy::Signal,
        }
    }
}

/// What a run is asked, in order.
#[derive(Debug)]
pub(crate) struct Asks {
    asker: Asker,
    /// What came before there was a stage: each ask once at the most.
    kept: Vec<Ask>,
}

/// Who asks.
#[derive(Debug)]
enum Asker {
    /// Whoever sends signals to this process, and the end of the process that had started it.
    Signals(Signals, Option<Parent>),
    /// The part of this program that started the run. When it is gone, the run ends.
    Owner(UnboundedReceiver<Ask>),
}

impl Asks {
    /// From whoever sends signals to this process. With `parent`, its end is an ask too.
    pub(crate) fn of_signals(signals: Signals, parent: Option<Parent>) -> Self {
        Self { asker: Asker::Signals(signals, parent), kept: Vec::new() }
    }

    /// From the part of this program that started the run.
    pub(crate) fn of_owner(asks: UnboundedReceiver<Ask>) -> Self {
        Self { asker: Asker::Owner(asks), kept: Vec::new() }
    }

    /// What is asked next. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Ask {
        if !self.kept.is_empty() {
            return self.kept.remove(0);
        }
        self.asker.next().await
    }

    /// The next that asks for the end, as its signal. The others are kept for [`Asks::next`]. Dropping the future loses nothing.
    pub(crate) async fn ending(&mut self) -> (Ask, Signal) {
        loop {
            let ask = self.asker.next().await;
            if let Some(signal) = ask.ends() {
                return (ask, signal);
            }
            // Of a stop and its end the later one counts, as for the kernel (signal(7)).
            let undone = match ask {
                Ask::Suspend => Some(Ask::Tell(Signal::SIGCONT)),
                Ask::Tell(Signal::SIGCONT) => Some(Ask::Suspend),
                _ => None,
            };
            self.kept.retain(|kept| *kept != ask && Some(*kept) != undone);
            self.kept.push(ask);
        }
    }
}

impl Asker {
    async fn next(&mut self) -> Ask {
        match self {
            Self::Signals(signals, parent) => {
                let signal = tokio::select! {
                    signal = signals.next() => signal,
                    () = ended(parent.as_mut()) => {
                        *parent = None;
                        return Ask::ParentEnded;
                    }
                };
                match signal {
                    Signal::SIGTSTP => Ask::Suspend,
                    told if TOLD.contains(&told) => Ask::Tell(told),
                    signal => Ask::Signal(signal),
                }
            }
            Self::Owner(asks) => asks.recv().await.unwrap_or(Ask::Kill),
        }
    }
}

async fn ended(parent: Option<&mut Parent>) {
    match parent {
        Some(parent) => parent.ended().await,
        None => pending().await,
    }
}

/// Whether the end of a child process goes unseen here: with SIGCHLD ignored the kernel reaps unasked (wait(2)).
pub(crate) fn children_unseen() -> bool {
    ignores(Signal::SIGCHLD)
}

/// Whether the caller lets this process be suspended: a shell without job control may not.
pub(crate) fn may_suspend() -> bool {
    !ignores(Signal::SIGTSTP)
}

/// Waits for signals.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    /// Takes the signals that end something over from their default actions. Needs a runtime.
    pub(crate) fn that_end() -> io::Result<Self> {
        Self::listen(&ENDING)
    }

    /// Takes all signals over that mean something to a run. Needs a runtime.
    pub(crate) fn of_a_run() -> io::Result<Self> {
        Self::listen(&[&ENDING[..], &TOLD, &[Signal::SIGTSTP]].concat())
    }

    pub(crate) fn listen(signals: &[Signal]) -> io::Result<Self> {
        let wanted = signals.iter().copied().filter(|which| !ignores(*which));
        let streams = wanted.map(|which| Ok((which, signal(SignalKind::from_raw(which as i32))?)));
        streams.collect::<io::Result<_>>().map(Self)
    }

    /// The next signal. Dropping the future loses none.
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

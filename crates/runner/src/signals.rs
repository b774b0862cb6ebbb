//! What a run is asked while it goes on, and which signals exeat passes on. A signal that was ignored when exeat started stays ignored (nohup(1), background jobs).

use std::fs;
use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;

/// The signals that end a stage politely.
const PASSED: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// What a run can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A signal came to exeat: it is passed on, and the second one kills.
    Signal(Signal),
    /// End: SIGTERM now, and SIGKILL when this time is over.
    Stop(Duration),
    /// End at once.
    Kill,
}

impl Ask {
    /// The signal that says the same.
    pub(crate) fn signal(self) -> Signal {
        match self {
            Self::Signal(signal) => signal,
            Self::Stop(_) => Signal::SIGTERM,
            Self::Kill => Signal::SIGKILL,
        }
    }
}

/// Who asks.
#[derive(Debug)]
pub(crate) enum Asks {
    /// Whoever sends signals to this process.
    Signals(Signals),
    /// The part of this program that started the run. When it is gone, the run ends.
    Owner(UnboundedReceiver<Ask>),
}

impl Asks {
    /// What is asked next. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Ask {
        match self {
            Self::Signals(signals) => Ask::Signal(signals.next().await),
            Self::Owner(asks) => asks.recv().await.unwrap_or(Ask::Kill),
        }
    }
}

/// Whether the end of a child process goes unseen here: with SIGCHLD ignored the kernel reaps unasked (wait(2)).
pub(crate) fn children_unseen() -> bool {
    ignored() & (1 << (Signal::SIGCHLD as u32 - 1)) != 0
}

/// Waits for the signals that are passed on.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    /// Takes the signals over from their default actions. Needs a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let wanted = PASSED.into_iter().filter(|which| ignored & (1 << (*which as u32 - 1)) == 0);
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

/// The mask of ignored signals (proc_pid_status(5), SigIgn); none where it cannot be read.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

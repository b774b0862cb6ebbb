//! What is asked of a stage that runs: to end, to be told of a signal, to be suspended.

use std::time::Duration;

use exeat_sandbox::backend::Handle;
use exeat_sandbox::suspend_this_process;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use crate::signals::Ask;

/// From a polite signal to SIGKILL: long enough for a package manager to remove its lock file.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// From SIGTSTP to SIGSTOP for a stage that catches it: long enough to put a screen in order.
const SUSPENDING: Duration = Duration::from_millis(500);
/// The same for one that does not: it has nothing to do, and what it started in its group may have.
const SUSPENDING_PLAINLY: Duration = Duration::from_millis(20);
/// From one look whether the stage has stopped to the next.
const LOOK: Duration = Duration::from_millis(5);

/// A stage that is asked to end, and made to when it does not: after the grace period or at the second signal.
pub(crate) struct Stopping {
    handle: Handle,
    /// When it is killed.
    pub(crate) deadline: Option<Instant>,
    /// The stage was continued with this process, and the signal that did it is still on its way here.
    continued: bool,
}

impl Stopping {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle, deadline: None, continued: false }
    }

    /// Does what does not take time: all but [`Ask::Suspend`], which is [`Stopping::suspend`].
    pub(crate) fn asked(&mut self, ask: Ask) {
        match ask {
            Ask::Signal(signal) => self.signal(signal),
            Ask::Stop(grace) => {
                let by = Instant::now().checked_add(grace);
                if self.deadline.is_none() {
                    self.tell(Signal::SIGTERM);
                }
                // Asked again, the sooner of the two.
                self.deadline = self.deadline.into_iter().chain(by).min();
            }
            Ask::Kill => self.kill(),
            Ask::Tell(Signal::SIGCONT) if std::mem::take(&mut self.continued) => {}
            Ask::Tell(signal) => self.tell(signal),
            Ask::Suspend => {}
        }
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.deadline.is_some() {
            return self.kill();
        }
        self.deadline = Some(Instant::now() + GRACE);
        self.tell(signal);
    }

    /// Passes a signal on.
    pub(crate) fn tell(&self, signal: Signal) {
        // A stage that is over already needs no signal.
        let _ = self.handle.signal(signal as i32);
    }

    pub(crate) fn kill(&mut self) {
        // Not again: from here on only the end is waited for.
        self.deadline = Instant::now().checked_add(GRACE);
        let _ = self.handle.kill();
    }

    /// Stops the stage's process group, then this process; returns when both go on. Where nobody could continue this process
    /// (its process group is orphaned), both go on at once, as if SIGTSTP had its default action here.
    ///
    /// SIGTSTP alone would not do. A stage may catch it and go on. And one that leads a session, as on a terminal of the
    /// sandbox's own, is in an orphaned process group: its parent is in another session. The default action of SIGTSTP
    /// does not stop such a group (setpgid(2)); SIGSTOP stops any.
    pub(crate) async fn suspend(&mut self) {
        let plainly = self.handle.stage_takes_default(Signal::SIGTSTP as i32);
        self.tell(Signal::SIGTSTP);
        let by = Instant::now() + if plainly { SUSPENDING_PLAINLY } else { SUSPENDING };
        while !self.handle.stage_is_stopped() && Instant::now() < by {
            sleep(LOOK).await;
        }
        self.tell(Signal::SIGSTOP);
        if let Err(error) = suspend_this_process() {
            // The stage is not left as it is, where nobody would wake it.
            tracing::warn!(%error, "cannot be suspended");
        }
        self.tell(Signal::SIGCONT);
        self.continued = true;
    }
}

//! What is asked of a stage that runs: to end, to be told of a signal, to be suspended.

use std::io;
use std::time::Duration;

use exeat_sandbox::backend::Handle;
use exeat_sandbox::{Rest, StopWatch, suspend_this_process};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use crate::signals::Ask;
use crate::terminal::Copying;

/// From a polite signal to SIGKILL, where somebody waits at a terminal: long enough for a package manager to remove its lock file.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// The same where nobody does. Less than the 10 seconds that container runtimes give.
pub(crate) const GRACE_UNATTENDED: Duration = Duration::from_secs(8);
/// From SIGKILL to the next one, and what readers of the output have to take the rest of it.
pub(crate) const KILLING: Duration = Duration::from_secs(5);

/// From SIGTSTP to SIGSTOP for a stage that catches it: long enough to put a screen in order.
const SUSPENDING: Duration = Duration::from_millis(500);
/// The same for one that does not: it has nothing to do, and what it started in its group may have.
const SUSPENDING_PLAINLY: Duration = Duration::from_millis(20);
/// For names that a stage made just before it was stopped.
const LAST_LOOK: Duration = Duration::from_millis(100);
/// From one look whether the stage has stopped to the next.
const LOOK: Duration = Duration::from_millis(5);
/// From one look whether all processes have stopped to the next, each of which goes through `/proc`.
const SETTLING_LOOK: Duration = Duration::from_millis(20);
/// From SIGSTOP for all processes to all of them stopped: long enough for a slow disk, or for many processes on a busy machine.
const SETTLING: Duration = Duration::from_secs(3);
/// Why a run was ended that was suspended.
const WENT_ON: &str =
    "a process of the stage went on while the run was suspended, or somebody ended it: the run was ended";

/// A stage that is asked to end, and made to when it does not: after the grace period or at the second signal.
pub(crate) struct Stopping {
    handle: Handle,
    /// From a polite signal to SIGKILL.
    grace: Duration,
    /// When it is killed.
    pub(crate) deadline: Option<Instant>,
    /// A signal came, or its time was over: the next one kills.
    signalled: bool,
    /// It was killed.
    pub(crate) killed: bool,
    /// The stage was continued with this process, and the signal that did it is still on its way here.
    continued: bool,
    /// Why a signal was not passed on, the last time, as a line for the caller.
    pub(crate) untold: Option<String>,
    /// What goes on between the stage's terminal and the caller's, where the stage has one of its own.
    pub(crate) terminal: Option<Copying>,
}

impl Stopping {
    pub(crate) fn new(handle: Handle, grace: Duration, terminal: Option<Copying>) -> Self {
        Self {
            handle,
            grace,
            deadline: None,
            signalled: false,
            killed: false,
            continued: false,
            untold: None,
            terminal,
        }
    }

    /// Waits until somebody has typed that the stage is to be suspended.
    pub(crate) async fn suspend_typed(&mut self) {
        match &mut self.terminal {
            Some(terminal) => terminal.suspend_typed().await,
            None => std::future::pending().await,
        }
    }

    /// No process of the stage is left.
    pub(crate) fn over(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.end();
        }
    }

    /// Does what does not take time: all but [`Ask::Suspend`], which is [`Stopping::suspend`].
    pub(crate) fn asked(&mut self, ask: Ask) {
        match ask {
            Ask::Signal(signal) => self.signal(signal),
            Ask::Stop(grace) => self.end_by(grace, Signal::SIGTERM),
            // Whoever ends the parent may send a signal here too, before or after.
            Ask::ParentEnded => self.end_by(self.grace, Signal::SIGTERM),
            Ask::Kill => self.kill(),
            Ask::Tell(signal) => self.told(signal),
            Ask::Suspend => {}
        }
    }

    fn told(&mut self, signal: Signal) {
        match (signal, &mut self.terminal) {
            // The kernel tells whoever is in the foreground there, if the size is another one.
            (Signal::SIGWINCH, Some(terminal)) => return terminal.resized(),
            // Who stopped this process, and what happened to the terminal meanwhile, is not known.
            (Signal::SIGCONT, Some(terminal)) if !self.continued => terminal.resume(),
            _ => {}
        }
        let known = signal == Signal::SIGCONT && std::mem::take(&mut self.continued);
        if !known {
            self.tell(signal);
        }
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.signalled {
            return self.kill();
        }
        self.signalled = true;
        self.end_by(self.grace, signal);
    }

    /// Tells the stage of the signal that has it end, unless it was told before. Asked again, the sooner of the two ends counts.
    fn end_by(&mut self, grace: Duration, signal: Signal) {
        let by = Instant::now().checked_add(grace);
        if self.deadline.is_none() {
            self.tell(signal);
        }
        self.deadline = self.deadline.into_iter().chain(by).min();
    }

    /// Passes a signal on.
    pub(crate) fn tell(&mut self, signal: Signal) {
        match self.handle.signal(signal as i32) {
            // A stage that is over already needs no signal.
            Err(error) if error.raw_os_error() != Some(Errno::ESRCH as i32) => {
                self.untold = Some(format!("{signal} could not be passed on to the stage: {error}"));
            }
            _ => {}
        }
    }

    pub(crate) fn kill(&mut self) {
        // Not again: from here on only the end is waited for.
        self.killed = true;
        self.deadline = Instant::now().checked_add(KILLING);
        self.handle.kill();
    }

    /// Stops the stage's process group, then its other processes and this one; returns when both go on. Where nobody could continue this process
    /// (its process group is orphaned), both go on at once, as if SIGTSTP had its default action here. `typed`: on a terminal,
    /// which would have stopped the whole process group of this process.
    ///
    /// SIGTSTP alone would not do. A stage may catch it and go on. And one that leads a session, as on a terminal of the
    /// sandbox's own, is in an orphaned process group: its parent is in another session. The default action of SIGTSTP
    /// does not stop such a group (setpgid(2)); SIGSTOP stops any.
    pub(crate) async fn suspend(&mut self, typed: bool) {
        let plainly = self.handle.stage_takes_default(Signal::SIGTSTP as i32);
        self.tell(Signal::SIGTSTP);
        let by = Instant::now() + if plainly { SUSPENDING_PLAINLY } else { SUSPENDING };
        while !self.handle.stage_is_stopped() && Instant::now() < by {
            sleep(LOOK).await;
        }
        // All processes: what one makes now is not taken from the host's sight. A stage that is over has none left.
        if let Err(error) = self.handle.signal_all(Signal::SIGSTOP as i32)
            && !is_over(&error)
        {
            return self.not_suspended(&error);
        }
        // What it made at the last moment is taken from the host's sight by another thread meanwhile.
        sleep(LAST_LOOK).await;
        let watch = match self.settle().await {
            Ok(watch) => Some(watch),
            Err(Unsettled::Over) => None,
            Err(Unsettled::GoesOn) => {
                self.untold = Some(WENT_ON.to_owned());
                return self.kill();
            }
            Err(Unsettled::Unknown(error)) => return self.not_suspended(&error),
        };
        if let Some(terminal) = &mut self.terminal {
            terminal.suspend();
        }
        self.continued = suspend_this_process(typed).unwrap_or_else(|error| {
            // The stage is not left as it is, where nobody would wake it.
            tracing::warn!(%error, "cannot be suspended");
            false
        });
        if let Some(terminal) = &mut self.terminal {
            terminal.resume();
        }
        // What does not answer has been ended itself, and nobody knows what it would have seen.
        if watch.is_some_and(|watch| watch.end().unwrap_or(true)) {
            self.untold = Some(WENT_ON.to_owned());
            return self.kill();
        }
        if let Err(error) = self.handle.signal_all(Signal::SIGCONT as i32)
            && !is_over(&error)
        {
            self.untold = Some(format!("the stage could not be continued, and was ended: {error}"));
            self.kill();
        }
    }

    /// Waits until every process of the sandbox has stopped, and has what ends the sandbox when one goes on: a stage may have the
    /// kernel continue it, while nobody looks at the names that it makes.
    async fn settle(&self) -> Result<StopWatch, Unsettled> {
        let by = Instant::now() + SETTLING;
        let mut last = None;
        loop {
            let seen = self.handle.processes().map_err(Unsettled::Unknown)?;
            let rest = seen.rest();
            if rest == Rest::Stopped && last.as_ref() == Some(&seen) {
                return self.handle.watch_stopped(&seen).map_err(|error| {
                    if is_over(&error) { Unsettled::Over } else { Unsettled::Unknown(error) }
                });
            }
            if Instant::now() >= by {
                let why = match rest {
                    Rest::GoesOn => return Err(Unsettled::GoesOn),
                    Rest::Waiting => "a process waits for a file system or a device",
                    Rest::Stopped => "its processes took too long to stop",
                };
                return Err(Unsettled::Unknown(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            last = Some(seen);
            sleep(SETTLING_LOOK).await;
        }
    }

    /// Has the stage go on, and says why it was not suspended.
    fn not_suspended(&mut self, error: &io::Error) {
        tracing::warn!(%error, "the stage could not be suspended");
        self.untold = Some(format!("the stage could not be suspended, and went on: {error}"));
        // It may have been stopped all the same.
        if self.handle.signal_all(Signal::SIGCONT as i32).is_err_and(|error| !is_over(&error)) {
            self.kill();
        }
    }
}

/// Why the processes of a sandbox are not known to be stopped.
enum Unsettled {
    /// There is none.
    Over,
    /// One goes on.
    GoesOn,
    /// Anything else.
    Unknown(io::Error),
}

/// No process is left to send a signal to.
fn is_over(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ESRCH as i32)
}

//! Executes requests to a running stage: to end, to get a signal, to suspend.

use std::io;
use std::time::Duration;

use exeat_sandbox::backend::Handle;
use exeat_sandbox::{Rest, StopWatch, suspend_this_process};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use crate::signals::RunRequest;
use crate::terminal::Copying;

/// The time from a polite signal to SIGKILL if a user waits at a terminal: enough for a package manager to remove its lock file.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// The time from a polite signal to SIGKILL without a user. It is less than the 10 seconds of container runtimes.
pub(crate) const GRACE_UNATTENDED: Duration = Duration::from_secs(8);
/// The time from SIGKILL to the next one, and the time that readers of the output have for the rest of it.
pub(crate) const KILLING: Duration = Duration::from_secs(5);

/// The time from SIGTSTP to SIGSTOP for a stage that catches it: enough to restore a screen.
const SUSPENDING: Duration = Duration::from_millis(500);
/// The time from SIGTSTP to SIGSTOP for a stage that does not catch it; other processes of its group may.
const SUSPENDING_PLAINLY: Duration = Duration::from_millis(20);
/// The time to move away names that a stage made just before it stopped.
const LAST_LOOK: Duration = Duration::from_millis(100);
/// The time between two checks whether the stage has stopped.
const LOOK: Duration = Duration::from_millis(5);
/// The time between two checks whether all processes have stopped, each of which reads `/proc`.
const SETTLING_LOOK: Duration = Duration::from_millis(20);
/// The time from SIGSTOP until all processes must have stopped: enough for a slow disk, or for many processes on a busy machine.
const SETTLING: Duration = Duration::from_secs(3);
/// The reason for ending a suspended run.
const WENT_ON: &str =
    "a process of the stage went on while the run was suspended, or somebody ended it: the run was ended";

/// Asks a stage to end, and kills it after the grace period or at the second signal.
pub(crate) struct Stopping {
    handle: Handle,
    /// The time from a polite signal to SIGKILL.
    grace: Duration,
    /// The time at which the stage is killed.
    pub(crate) deadline: Option<Instant>,
    /// Whether a signal arrived or the time was over: then the next one kills.
    signalled: bool,
    /// Whether the stage was killed.
    pub(crate) killed: bool,
    /// Whether the stage was continued with this process, whose SIGCONT is still to be received.
    continued: bool,
    /// A line for the caller on why the last signal was not passed on.
    pub(crate) not_passed_on: Option<String>,
    /// Whether the user typed the character that interrupts.
    pub(crate) interrupted: bool,
    /// The copying between the stage's own terminal and the caller's.
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
            not_passed_on: None,
            interrupted: false,
            terminal,
        }
    }

    /// Waits until the user types the character that suspends.
    pub(crate) async fn suspend_typed(&mut self) {
        match &mut self.terminal {
            Some(terminal) => terminal.suspend_typed().await,
            None => std::future::pending().await,
        }
    }

    /// Notes that no process of the stage is left.
    pub(crate) fn note_end(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            self.interrupted = terminal.end();
        }
    }

    /// Handles every request except [`RunRequest::Suspend`], for which [`Stopping::suspend`] waits.
    pub(crate) fn handle_request(&mut self, ask: RunRequest) {
        match ask {
            RunRequest::Signal(signal) => self.signal(signal),
            RunRequest::Stop(grace) => self.end_by(grace, Signal::SIGTERM),
            // The program that ends the parent may also send a signal here, before or after.
            RunRequest::ParentEnded => self.end_by(self.grace, Signal::SIGTERM),
            RunRequest::Kill => self.kill(),
            RunRequest::Tell(signal) => self.pass_on(signal),
            RunRequest::Suspend => {}
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        match (signal, &mut self.terminal) {
            // The kernel signals the foreground processes if the size differs.
            (Signal::SIGWINCH, Some(terminal)) => return terminal.resized(),
            // It is not known who stopped this process, and what happened to the terminal in the meantime.
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

    /// Sends the stage the signal to end, unless it got one before. Of several calls the earliest end counts.
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
            // A stage that is over needs no signal.
            Err(error) if error.raw_os_error() != Some(Errno::ESRCH as i32) => {
                self.not_passed_on = Some(format!("{signal} could not be passed on to the stage: {error}"));
            }
            _ => {}
        }
    }

    pub(crate) fn kill(&mut self) {
        // A second call only waits for the end.
        self.killed = true;
        self.deadline = Instant::now().checked_add(KILLING);
        self.handle.kill();
    }

    /// Stops the stage's process group, then its other processes and this one. Returns when both continue. If this process has an
    /// orphaned process group, nobody could continue it: then both continue at once, as with the default action of SIGTSTP. `typed` means
    /// that the character came from a terminal, which would have stopped this process's whole group.
    ///
    /// SIGTSTP alone is not enough, because a stage may catch it. Also, a stage that leads a session, as on its own terminal, is in an
    /// orphaned process group: its parent is in another session. The default action of SIGTSTP does not stop such a group (setpgid(2));
    /// SIGSTOP stops any.
    pub(crate) async fn suspend(&mut self, typed: bool) {
        let plainly = self.handle.stage_takes_default(Signal::SIGTSTP as i32);
        self.tell(Signal::SIGTSTP);
        let by = Instant::now() + if plainly { SUSPENDING_PLAINLY } else { SUSPENDING };
        while !self.handle.stage_is_stopped() && Instant::now() < by {
            sleep(LOOK).await;
        }
        // All processes are stopped because nobody moves away names that they make from now on. A stage that is over has none.
        if let Err(error) = self.handle.signal_all(Signal::SIGSTOP as i32)
            && !is_over(&error)
        {
            return self.not_suspended(&error);
        }
        // Meanwhile another thread moves away the names that it made last.
        sleep(LAST_LOOK).await;
        let watch = match self.wait_until_stopped().await {
            Ok(watch) => Some(watch),
            Err(Unsettled::Over) => None,
            Err(Unsettled::GoesOn) => {
                self.not_passed_on = Some(WENT_ON.to_owned());
                return self.kill();
            }
            Err(Unsettled::Unknown(error)) => return self.not_suspended(&error),
        };
        if let Some(terminal) = &mut self.terminal {
            terminal.suspend();
        }
        self.continued = suspend_this_process(typed).unwrap_or_else(|error| {
            // The stage must not stay stopped, because nobody would wake it.
            tracing::warn!(%error, "cannot be suspended");
            false
        });
        if let Some(terminal) = &mut self.terminal {
            terminal.resume();
        }
        // A watch that does not answer has ended, and what it missed is unknown.
        if watch.is_some_and(|watch| watch.end().unwrap_or(true)) {
            self.not_passed_on = Some(WENT_ON.to_owned());
            return self.kill();
        }
        if let Err(error) = self.handle.signal_all(Signal::SIGCONT as i32)
            && !is_over(&error)
        {
            self.not_passed_on = Some(format!("the stage could not be continued, and was ended: {error}"));
            self.kill();
        }
    }

    /// Waits until every process of the sandbox has stopped. Returns a watch that ends the sandbox if one continues: a stage may get the
    /// kernel to continue it, while nobody checks the names that it makes.
    async fn wait_until_stopped(&self) -> Result<StopWatch, Unsettled> {
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

    /// Continues the stage, and reports why it was not suspended.
    fn not_suspended(&mut self, error: &io::Error) {
        tracing::warn!(%error, "the stage could not be suspended");
        self.not_passed_on = Some(format!("the stage could not be suspended, and went on: {error}"));
        // The stage may be stopped nevertheless.
        if self.handle.signal_all(Signal::SIGCONT as i32).is_err_and(|error| !is_over(&error)) {
            self.kill();
        }
    }
}

/// The reason that the processes of a sandbox are not known to be stopped.
enum Unsettled {
    /// No process is left.
    Over,
    /// A process continues to run.
    GoesOn,
    /// The state is unknown.
    Unknown(io::Error),
}

/// Returns whether the error means that no process is left.
fn is_over(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ESRCH as i32)
}

//! The sandbox of a run, as the thread sees it that serves the proxy: waiting for its start, and for its end.

use std::io::{self, PipeWriter};
use std::os::fd::OwnedFd;
use std::time::Duration;

use exeat_policy::{Limits, Span};
use exeat_proxy::DeniedHost;
use exeat_record::{Event, Log, Note, What};
use exeat_sandbox::backend::Handle;
use exeat_sandbox::{Bridge, Staging, Status, Tree};
use nix::libc;
use nix::sys::signal::Signal;
use tokio::net::UnixStream;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{OnDenied, Run};
use crate::cover::Uncovered;
use crate::dirs::{RunDir, names};
use crate::ended::{Ended, Stopped, StoppedHow};
use crate::error::Error;
use crate::gateway::Entered;
use crate::limits::Stop;
use crate::output::{Copies, Meter};
use crate::signals::{Ask, Asks, may_suspend};
use crate::staged::Staged;
use crate::stopping::{GRACE, GRACE_UNATTENDED, KILLING, Stopping};
use crate::terminal::Terminal;

/// From a signal to the word that the command has started, which is on its way when it has.
const STARTING: Duration = Duration::from_secs(1);

/// The sandbox's thread, joined at the end.
pub(super) struct Thread(pub(super) Option<std::thread::JoinHandle<()>>);

impl Thread {
    pub(super) fn join(&mut self) {
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
pub(super) struct Offered {
    pub(super) bridge: Bridge,
    pub(super) handle: Handle,
    /// Its network, where that could be entered.
    pub(super) network: Entered,
}

/// The other thread, as seen from this one.
pub(super) struct Sandbox {
    pub(super) offered: Option<oneshot::Receiver<Result<Offered, exeat_sandbox::Error>>>,
    /// Dropping it gives up a sandbox that does not stand yet.
    pub(super) cancel: Option<PipeWriter>,
    /// Whether there is a gateway.
    pub(super) go: Option<oneshot::Sender<bool>>,
    /// With the master of the stage's terminal, where it has one of its own.
    pub(super) started: oneshot::Receiver<Result<Option<OwnedFd>, exeat_sandbox::Error>>,
    /// With what the host took away from over the stage.
    pub(super) status: oneshot::Receiver<(Result<Status, exeat_sandbox::Error>, Uncovered)>,
    /// The caller's terminal, where the stage has one of its own.
    pub(super) terminal: Option<Terminal>,
    /// One of the caller's standard streams is a terminal.
    pub(super) is_attended: bool,
    /// Counts the output, where that is limited.
    pub(super) meter: Option<Meter>,
    /// What is between the stage and its output, where that is limited.
    pub(super) copies: Option<Copies>,
    /// Limits that were reached.
    pub(super) stops: mpsc::Receiver<Stop>,
    /// Keeps that channel open: not every run has somebody who watches.
    pub(super) _stop: mpsc::Sender<Stop>,
}

fn lost<T>(_: T) -> Error {
    Error::Prepare { what: "the sandbox", source: io::Error::other("its thread ended early") }
}

impl Sandbox {
    /// Waits until the sandbox stands. Asked for the end, it is given up: the command is not started at all.
    pub(super) async fn offered(&mut self, asks: &mut Asks) -> Result<Offered, Error> {
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
    pub(super) async fn become_stage(
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
pub(super) struct Over {
    pub(super) ended: Ended,
    /// The kernel's words, where the command could not be executed.
    pub(super) why_not: Option<&'static str>,
    /// The first signal that came for the stage.
    pub(super) signal: Option<Signal>,
    /// The reason to stop the stage for a limit that it may not have reached.
    pub(super) blind: Option<String>,
    /// A line on a signal that was not passed on.
    pub(super) untold: Option<String>,
    /// The covers that the host took away.
    pub(super) uncovered: Uncovered,
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
pub(super) async fn watch_relay(
    lifeline: OwnedFd,
    handle: Handle,
    log: Log,
    over: CancellationToken,
) -> io::Result<()> {
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

//! Follows the sandbox of a run from the thread that handles requests: waits for its start and its end.

use std::io::{self, PipeWriter};
use std::os::fd::OwnedFd;
use std::time::Duration;

use exeat_policy::{Limits, Span};
use exeat_proxy::DeniedHost;
use exeat_record::{Event, Log, RunNote, StoppedBy, What};
use exeat_sandbox::Status;
use exeat_sandbox::backend::Handle;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use tokio::net::UnixStream;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Run;
use super::outcome::SandboxEnd;
use super::oversight::OnDenied;
use super::starting::Offered;
use crate::cover::Uncovered;
use crate::ended::{Ended, Stopped, StoppedHow};
use crate::error::Error;
use crate::limits::Stop;
use crate::output::{Copies, Meter};
use crate::signals::{RunRequest, RunRequests, may_suspend};
use crate::stopping::{GRACE, GRACE_UNATTENDED, KILLING, Stopping};
use crate::terminal::{Copying, Terminal};

/// The longest wait after a signal for a report of the start that may be under way.
const STARTING: Duration = Duration::from_secs(1);

/// The sandbox's thread, which is joined at the end.
pub(super) struct Thread(pub(super) Option<std::thread::JoinHandle<()>>);

impl Thread {
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.0.take() {
            // It has sent its last message; a panic was already reported as a closed channel.
            let _ = thread.join();
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.join();
    }
}

/// The channels to the sandbox's thread.
pub(super) struct Sandbox {
    pub(super) offered: Option<oneshot::Receiver<Result<Offered, exeat_sandbox::Error>>>,
    /// Dropping it cancels a sandbox that is not ready yet.
    pub(super) cancel: Option<PipeWriter>,
    /// Sends whether there is a gateway, which starts the stage.
    pub(super) go: Option<oneshot::Sender<bool>>,
    /// Receives the master of the stage's own terminal, if it has one.
    pub(super) started: oneshot::Receiver<Result<Option<OwnedFd>, exeat_sandbox::Error>>,
    /// Receives the end of the stage, with the changes of the host.
    pub(super) status: oneshot::Receiver<(Result<Status, exeat_sandbox::Error>, Uncovered)>,
    /// The caller's terminal, if the stage has its own.
    pub(super) terminal: Option<Terminal>,
    /// Whether one of the caller's standard streams is a terminal.
    pub(super) is_attended: bool,
    /// The count of a limited output.
    pub(super) meter: Option<Meter>,
    /// The pipes for a limited output.
    pub(super) copies: Option<Copies>,
    /// Limits that were reached.
    pub(super) stops: mpsc::Receiver<Stop>,
    /// Keeps the channel open, because not every run has a watch.
    pub(super) _stop: mpsc::Sender<Stop>,
}

fn thread_ended<T>(_: T) -> Error {
    Error::Prepare { what: "the sandbox", source: io::Error::other("its thread ended early") }
}

impl Sandbox {
    /// Waits until the sandbox is ready. A request to end cancels it: the command does not start.
    pub(super) async fn offered(&mut self, asks: &mut RunRequests) -> Result<Offered, Error> {
        let offered = self.offered.take().ok_or(()).map_err(thread_ended)?;
        tokio::select! {
            offered = offered => offered.map_err(thread_ended)?.map_err(Error::Sandbox),
            (ask, signal) = asks.ending() => {
                drop(self.cancel.take());
                Err(Error::stopped(ask, signal))
            }
        }
    }

    /// Starts the stage, handles requests, and waits for the end.
    pub(super) async fn become_stage(
        mut self,
        handle: Handle,
        has_gateway: bool,
        asks: &mut RunRequests,
        limits: &Limits,
        on_start: impl FnOnce() -> io::Result<()>,
        (run, refused): (&Run<'_>, &mut UnboundedReceiver<DeniedHost>),
    ) -> Result<SandboxEnd, Error> {
        let (started, early) = self.start_stage(&handle, has_gateway, asks).await?;
        let terminal = match started {
            Ok(master) => self.attach_streams(master, &handle, on_start)?,
            Err(exeat_sandbox::Error::Exec(errno)) => return Ok(not_executed(errno)),
            Err(error) => return Err(Error::Sandbox(error)),
        };
        let grace = if self.is_attended { GRACE } else { GRACE_UNATTENDED };
        let grace = limits.grace.map_or(grace, Span::get);
        let mut course = Course {
            stopping: Stopping::new(handle, grace, terminal),
            timeout: limits.timeout.and_then(|limit| Instant::now().checked_add(limit.get())),
            timed_out: false,
            is_denied: false,
            first: None,
            stop: None,
        };
        if let Some((ask, signal)) = early {
            course.first = Some((ask.requester(), signal, Instant::now()));
            course.stopping.handle_request(ask);
        }
        let (status, uncovered) = self.follow(&mut course, asks, run, refused).await?;
        let over = Instant::now();
        course.stopping.note_end();
        if self.copies.is_some() || course.stopping.terminal.is_some() {
            self.finish_output(&mut course, asks).await;
        }
        if !course.timed_out && course.stop.is_none() {
            course.stop = self.stops.try_recv().ok();
        }
        Ok(course.end(status, uncovered, over))
    }

    /// Sends "go", and waits until the stage has started or could not be. Also returns a request to end that came meanwhile.
    async fn start_stage(
        &mut self,
        handle: &Handle,
        has_gateway: bool,
        asks: &mut RunRequests,
    ) -> Result<(Result<Option<OwnedFd>, exeat_sandbox::Error>, Option<(RunRequest, Signal)>), Error> {
        // After a request during the setup the stage does not start.
        tokio::select! {
            biased;
            (ask, signal) = asks.ending() => return Err(Error::stopped(ask, signal)),
            () = std::future::ready(()) => {}
        }
        self.go.take().and_then(|go| go.send(has_gateway).ok()).ok_or(()).map_err(thread_ended)?;
        tokio::select! {
            // A started stage is not reported as stopped before its start.
            biased;
            started = &mut self.started => Ok((started.map_err(thread_ended)?, None)),
            (ask, signal) = asks.ending() => match tokio::time::timeout(STARTING, &mut self.started).await {
                // The stage had started, and the report was under way.
                Ok(started) => Ok((started.map_err(thread_ended)?, Some((ask, signal)))),
                Err(_) => {
                    // The command may be on a file system that does not answer. The sandbox is gone, so it cannot report an error.
                    handle.kill();
                    Err(Error::stopped(ask, signal))
                }
            },
        }
    }

    /// Gives the streams to a started stage, and copies between its terminal and the caller's if it has one of its own.
    fn attach_streams(
        &mut self,
        master: Option<OwnedFd>,
        handle: &Handle,
        on_start: impl FnOnce() -> io::Result<()>,
    ) -> Result<Option<Copying>, Error> {
        // The stage has the streams now.
        let copying = self.terminal.take().zip(master).map(|(terminal, master)| {
            terminal.copy(master, handle.clone(), self.meter.take(), may_suspend())
        });
        let ready = on_start().map_err(|source| ("the standard streams", source));
        let ready = ready.and_then(|()| copying.transpose().map_err(|source| ("the terminal", source)));
        ready.map_err(|(what, source)| {
            // The stage runs, but without this thread nobody would enforce its limits.
            handle.kill();
            Error::Prepare { what, source }
        })
    }

    /// Handles requests, limits and refusals until the sandbox has ended.
    async fn follow(
        &mut self,
        course: &mut Course,
        asks: &mut RunRequests,
        run: &Run<'_>,
        refused: &mut UnboundedReceiver<DeniedHost>,
    ) -> Result<(Status, Uncovered), Error> {
        loop {
            let (deadline, timeout) = (course.stopping.deadline, course.timeout);
            tokio::select! {
                over = &mut self.status => {
                    let (status, uncovered) = over.map_err(thread_ended)?;
                    return Ok((status.map_err(Error::Sandbox)?, uncovered));
                }
                ask = asks.next() => {
                    let asked = || Some((ask.requester(), ask.ending_signal()?, Instant::now()));
                    course.first = course.first.or_else(asked);
                    match ask {
                        RunRequest::Suspend => course.stopping.suspend(false).await,
                        ask => course.stopping.handle_request(ask),
                    }
                }
                () = course.stopping.suspend_typed() => course.stopping.suspend(true).await,
                () = until(timeout), if course.stop.is_none() => {
                    course.timeout = None;
                    // A stage that was asked to end is killed now, but still counts as stopped.
                    course.timed_out = course.first.is_none() && !course.is_denied;
                    course.stopping.signal(Signal::SIGTERM);
                }
                Some(denied) = refused.recv() => {
                    run.tell_of_storm(&denied);
                    let is_ending = course.is_denied || course.timed_out || course.first.is_some();
                    if run.on_denied == OnDenied::End && !is_ending {
                        course.is_denied = true;
                        course.stopping.signal(Signal::SIGTERM);
                    }
                }
                reached = self.stops.recv(), if !course.timed_out && course.stop.is_none() => {
                    course.stop = reached;
                    course.stopping.kill();
                }
                () = until(deadline), if deadline.is_some() => course.stopping.kill(),
            }
        }
    }

    /// Waits until the rest of the output has been copied, and then restores the caller's terminal.
    ///
    /// The rest goes to its reader without a time limit: without a pipe between them, the stage could not have ended before. After a stop
    /// or a signal the wait is short.
    async fn finish_output(&mut self, course: &mut Course, asks: &mut RunRequests) {
        let stopping = &mut course.stopping;
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
                // The caller's terminal is restored first, because its keys may be needed during the rest.
                () = shown => drop(stopping.terminal.take()),
                () = copied, if stopping.terminal.is_none() => break,
                ask = asks.next() => match ask {
                    RunRequest::Suspend => stopping.suspend(false).await,
                    ask if ask.ending_signal().is_some() => break,
                    ask => stopping.handle_request(ask),
                },
                () = until(by.or(course.timeout)) => {
                    course.timed_out |= by.is_none();
                    break;
                }
            }
        }
        if let Some(copies) = &mut self.copies {
            copies.cancel();
        }
        // Dropping it restores the caller's terminal.
        drop(stopping.terminal.take());
    }
}

/// The state of a run while its stage runs.
struct Course {
    stopping: Stopping,
    /// The end of the run's time, until it has come.
    timeout: Option<Instant>,
    timed_out: bool,
    /// Whether a refusal ends the run.
    is_denied: bool,
    /// The first request to end.
    first: Option<(StoppedBy, Signal, Instant)>,
    /// The limit that was reached.
    stop: Option<Stop>,
}

impl Course {
    /// Returns the end of the run, from the status of the sandbox that was over at this time.
    fn end(self, status: Status, uncovered: Uncovered, over: Instant) -> SandboxEnd {
        let Self { stopping, timed_out, is_denied, first, stop, .. } = self;
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
            (None, None, Status::Signal(libc::SIGINT)) if stopping.interrupted => Ended::Interrupted,
            (None, None, Status::Signal(signal)) => Ended::Signal(signal),
        };
        SandboxEnd {
            ended,
            why_not: None,
            signal: first.map(|(_, signal, _)| signal),
            blind: stop.and_then(|stop| stop.blind),
            untold: stopping.not_passed_on,
            uncovered,
        }
    }
}

/// Returns the end of a run whose command could not be executed.
fn not_executed(errno: Errno) -> SandboxEnd {
    let is_absent = errno == Errno::ENOENT;
    SandboxEnd {
        ended: if is_absent { Ended::NotFound } else { Ended::NotExecutable },
        why_not: Some(errno.desc()),
        signal: None,
        blind: None,
        untold: None,
        uncovered: Uncovered::default(),
    }
}

/// Sleeps until the deadline, or forever without one.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The time that the stage may outlive its relay normally: both end with pid 1, in any order.
const TOGETHER: Duration = Duration::from_millis(200);

/// Writes a note if the relay ends before the stage.
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
        // The relay never writes, so readable means end of file.
        ready = lifeline.readable() => ready?,
    }
    tokio::select! {
        () = over.cancelled() => return Ok(()),
        () = tokio::time::sleep(TOGETHER) => {}
    }
    if !handle.stage_is_over() {
        tracing::warn!("the relay ended before the stage");
        // The log itself stops the run if it cannot write.
        let _ = log.write(Event::Note(RunNote::new(What::BridgeLost)));
    }
    Ok(())
}

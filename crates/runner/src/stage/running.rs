//! Controls a started stage, and the thread that serves it.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use exeat_record::RunId;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::plan::Plan;
use crate::run::outcome::Outcome;
use crate::run::oversight::OnDenied;
use crate::run::streams::Streams;
use crate::run::{Within, run_on};
use crate::signals::RunRequest;

/// A started stage. Two threads of this process serve it until its end.
///
/// Dropping it kills every process of the sandbox with SIGKILL, and waits until all have ended and the record is closed. That takes
/// milliseconds, or up to two seconds if bytes of the stage are still under way to an allowed host. For a polite end, call
/// [`Running::stop`] and then [`Running::wait`].
#[derive(Debug)]
pub struct Running {
    run: RunId,
    stopper: Stopper,
    over: Receiver<Result<Outcome, Error>>,
    /// The sender is dropped without a value after the outcome was sent.
    is_over: oneshot::Receiver<()>,
    /// The received outcome.
    ended: Option<Result<Outcome, Error>>,
    thread: Option<JoinHandle<()>>,
    pub(super) stdin: Option<PipeWriter>,
    pub(super) stdout: Option<PipeReader>,
    pub(super) stderr: Option<PipeReader>,
}

/// Ends a stage from another thread. It does nothing after the end of the stage.
#[derive(Debug, Clone)]
pub struct Stopper(UnboundedSender<RunRequest>);

impl Stopper {
    /// Works like [`Running::stop`].
    pub fn stop(&self, grace: Duration) {
        // Without a receiver the run is over.
        let _ = self.0.send(RunRequest::Stop(grace));
    }

    /// Works like [`Running::kill`].
    pub fn kill(&self) {
        let _ = self.0.send(RunRequest::Kill);
    }
}

impl Running {
    /// Starts the run in its own thread, and waits until the stage was executed or failed to.
    pub(super) fn start(plan: Plan, streams: Streams, on_denied: OnDenied) -> Result<Self, Error> {
        let run = RunId::new();
        let (asks, asked) = unbounded_channel();
        let (started_to, started) = mpsc::channel();
        let (over_to, over) = mpsc::channel();
        let (is_over_to, is_over) = oneshot::channel::<()>();
        let body = move || {
            let mut notes = plan.notes().to_vec();
            let within = Within::Program { asks: asked, on_denied, started: started_to };
            let done = run_on(plan, run, streams, within).map(|(mut outcome, _)| {
                notes.append(&mut outcome.notes);
                Outcome { notes, ..outcome }
            });
            // The owner may be gone.
            let _ = over_to.send(done);
            drop(is_over_to);
        };
        let thread = thread::Builder::new().name("exeat-run".into()).spawn(body);
        let thread = thread.map_err(|source| Error::Prepare { what: "the run's thread", source })?;
        let mut running = Self {
            run,
            stopper: Stopper(asks),
            over,
            is_over,
            ended: None,
            thread: Some(thread),
            stdin: None,
            stdout: None,
            stderr: None,
        };
        // The sender is dropped unsent when the stage did not start.
        if started.recv().is_err() {
            running.ended = Some(Ok(running.receive()?));
        }
        Ok(running)
    }

    /// Returns the id of the run: the name of its record, and `EXEAT_RUN_ID` inside.
    #[must_use]
    pub fn id(&self) -> RunId {
        self.run
    }

    /// Takes the pipe to the stage's standard input, if it was [`Stdio::piped`](crate::Stdio::piped). Dropping the pipe ends the input.
    pub fn take_stdin(&mut self) -> Option<PipeWriter> {
        self.stdin.take()
    }

    /// Takes the pipe from the stage's standard output, if it was [`Stdio::piped`](crate::Stdio::piped).
    pub fn take_stdout(&mut self) -> Option<PipeReader> {
        self.stdout.take()
    }

    /// Takes the pipe from the stage's standard error, if it was [`Stdio::piped`](crate::Stdio::piped).
    pub fn take_stderr(&mut self) -> Option<PipeReader> {
        self.stderr.take()
    }

    /// Waits until no process of the stage is left and the record is closed. Closes the pipe to standard input first, unless it was
    /// taken. A stage may wait forever for a reader of its piped output: read it first, or use [`Stage::output`](crate::Stage::output).
    ///
    /// # Errors
    /// Returns an error when the run was lost after the start; no process of the stage is left then either.
    pub fn wait(mut self) -> Result<Outcome, Error> {
        drop(self.stdin.take());
        match self.ended.take() {
            Some(ended) => ended,
            None => self.receive(),
        }
    }

    /// Waits like [`wait`](Running::wait) without blocking the thread. It needs no particular async runtime. Dropping the future drops
    /// the `Running`, which ends the stage.
    ///
    /// # Errors
    /// Fails as [`wait`](Running::wait) does.
    pub async fn outcome(mut self) -> Result<Outcome, Error> {
        drop(self.stdin.take());
        // The sender is dropped without a value.
        let _ = (&mut self.is_over).await;
        self.wait()
    }

    /// Waits up to `limit`. If it returns true, the run is over and [`Running::wait`] returns at once.
    pub fn wait_timeout(&mut self, limit: Duration) -> bool {
        if self.ended.is_none() {
            self.ended = match self.over.recv_timeout(limit) {
                Ok(ended) => Some(ended),
                Err(mpsc::RecvTimeoutError::Timeout) => return false,
                Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(thread_ended())),
            };
        }
        true
    }

    /// Asks the stage to end: SIGTERM to its process group now, and SIGKILL to everything in the sandbox after `grace`. Does not wait. Of
    /// several calls the earliest end counts.
    pub fn stop(&self, grace: Duration) {
        self.stopper.stop(grace);
    }

    /// Kills every process of the sandbox with SIGKILL. Does not wait.
    pub fn kill(&self) {
        self.stopper.kill();
    }

    /// Returns a handle that ends this stage while [`Running::wait`] waits.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    fn receive(&self) -> Result<Outcome, Error> {
        self.over.recv().unwrap_or_else(|_| Err(thread_ended()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if let Some(thread) = self.thread.take() {
            // The missing outcome already shows a panic.
            let _ = thread.join();
        }
    }
}

fn thread_ended() -> Error {
    Error::Prepare { what: "the run", source: io::Error::other("its thread ended early") }
}

/// Reads to the end. More than `most` bytes end the stage.
pub(super) fn collect(
    pipe: Option<PipeReader>,
    most: usize,
    name: &'static str,
    stopper: &Stopper,
) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let Some(pipe) = pipe else { return Ok(bytes) };
    let room = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let read = pipe.take(room).read_to_end(&mut bytes).map_err(Error::Output);
    if read.is_err() || bytes.len() > most {
        stopper.kill();
    }
    match read {
        Ok(_) if bytes.len() > most => Err(Error::OutputTooLong(most, name)),
        Ok(_) => Ok(bytes),
        Err(error) => Err(error),
    }
}

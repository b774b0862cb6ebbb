//! Runs a program and reads its output until it ends: by itself, at its deadline, or when the value is dropped.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::stop::stopped;

/// The maximal number of bytes that are kept of each stream.
const MOST: usize = 1 << 20;
/// The longest time that the streams of an ended program may stay open.
const SETTLE: Duration = Duration::from_millis(500);
/// The longest wait for a program that was asked to end.
const PATIENCE: Duration = Duration::from_secs(3);
/// The interval between two checks.
const LOOK: Duration = Duration::from_millis(3);

/// A running program.
pub(super) struct Started {
    child: Child,
    out: Stream,
    err: Stream,
}

/// A program that has ended.
pub struct Done {
    status: ExitStatus,
    pub(crate) stdout: String,
    /// The program's standard error.
    pub stderr: String,
}

impl Started {
    pub(super) fn new(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (out, err) = (Stream::read(child.stdout.take()), Stream::read(child.stderr.take()));
        Ok(Self { child, out, err })
    }

    /// Returns the standard output so far.
    pub(super) fn heard(&self) -> String {
        self.out.so_far()
    }

    /// Waits until the program has printed `text` or has ended, or until `limit` has passed.
    pub(super) fn until_says(&mut self, text: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while Instant::now() < end && stopped().is_none() {
            if self.heard().contains(text) {
                return true;
            }
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                self.settle();
                return self.heard().contains(text);
            }
            std::thread::sleep(LOOK);
        }
        false
    }

    /// Kills the program with SIGKILL, so that no handler runs.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for the program's end. Ends it if `limit` has passed or a signal asks for it.
    pub(super) fn end(mut self, limit: Duration) -> io::Result<Done> {
        drop(self.child.stdin.take());
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > end || stopped().is_some() {
                break self.stop()?;
            }
            std::thread::sleep(LOOK);
        };
        self.settle();
        Ok(Done { status, stdout: self.out.so_far(), stderr: self.err.so_far() })
    }

    /// Asks the program to end, as a terminal would, and then kills it. An exeat that is killed while it starts leaves a directory
    /// that only its next start removes.
    fn stop(&mut self) -> io::Result<ExitStatus> {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(LOOK);
        }
        self.kill();
        self.child.wait()
    }

    /// Waits a moment for the rest of the output. A process that lives on keeps the streams open; other code notices that.
    fn settle(&self) {
        let end = Instant::now() + SETTLE;
        while !(self.out.reader.is_finished() && self.err.reader.is_finished()) && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.stop();
        }
    }
}

impl Done {
    /// Returns the exit code, or the code that a shell uses for a signal.
    pub fn code(&self) -> i32 {
        self.status.code().or_else(|| self.status.signal().map(|signal| 128 + signal)).unwrap_or(125)
    }
}

/// A stream that a thread reads, so that the program never waits for a full pipe.
struct Stream {
    said: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Stream {
    fn read(stream: Option<impl Read + Send + 'static>) -> Self {
        let said: Arc<Mutex<Vec<u8>>> = Arc::default();
        let keep = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            let Some(mut stream) = stream else { return };
            let mut buffer = vec![0; 8192];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let mut said = keep.lock().unwrap_or_else(PoisonError::into_inner);
                if said.len() < MOST {
                    said.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
            }
        });
        Self { said, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

//! Waits for the end of the process that started exeat.
//!
//! Uses a process descriptor (pidfd_open(2)) because PR_SET_PDEATHSIG (prctl(2)) reports the end of the *thread* that made the child, and
//! is lost when execve changes the user.

use std::os::fd::OwnedFd;
use std::{io, mem};

use exeat_sandbox::open_process;
use nix::errno::Errno;
use nix::unistd::{Pid, getppid};
use tokio::net::unix::pipe;

/// The process that started exeat.
#[derive(Debug)]
pub struct Parent(State);

#[derive(Debug)]
enum State {
    Held(OwnedFd),
    WaitedFor(pipe::Receiver),
    Ended,
}

impl Parent {
    /// Opens the process with this number, which was the parent when this process started. If the number belongs to another process by
    /// now, this process has another parent.
    ///
    /// # Errors
    /// Returns errors of pidfd_open(2), and `EINVAL` for a parent outside this PID namespace.
    pub fn hold(number: Pid) -> io::Result<Self> {
        match open_process(number.as_raw()) {
            Ok(process) if getppid() == number => Ok(Self(State::Held(process))),
            Ok(_) => Ok(Self(State::Ended)),
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(Self(State::Ended)),
            Err(error) => Err(error),
        }
    }

    /// Waits for the end of the process. Needs a runtime. Cancel-safe.
    pub(crate) async fn ended(&mut self) {
        if matches!(self.0, State::Held(_))
            && let State::Held(process) = mem::replace(&mut self.0, State::Ended)
            // poll(2) reports an ended process as readable, as it does for a pipe.
            && let Ok(process) = pipe::Receiver::from_file_unchecked(process.into())
        {
            self.0 = State::WaitedFor(process);
        }
        if let State::WaitedFor(process) = &self.0 {
            // It becomes readable when all threads of the process have ended.
            let _ = process.readable().await;
        }
    }
}

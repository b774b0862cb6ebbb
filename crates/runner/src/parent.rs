//! The process that had started exeat, and the wait for its end.
//!
//! By a descriptor of the process (pidfd_open(2)), and not by PR_SET_PDEATHSIG (prctl(2)): that one tells of the end of the *thread*
//! that made the child, and is lost at an execution that changes the user.

use std::os::fd::OwnedFd;
use std::{io, mem};

use exeat_sandbox::open_process;
use nix::errno::Errno;
use nix::unistd::{Pid, getppid};
use tokio::net::unix::pipe;

/// The process that had started exeat.
#[derive(Debug)]
pub struct Parent(State);

#[derive(Debug)]
enum State {
    Held(OwnedFd),
    WaitedFor(pipe::Receiver),
    Ended,
}

impl Parent {
    /// Holds the process of this number, which was this process's parent when it began. Its number may be another one's by
    /// now: then this process has another parent.
    ///
    /// # Errors
    /// What pidfd_open(2) says; `EINVAL` for a parent outside of this PID namespace.
    pub fn hold(number: Pid) -> io::Result<Self> {
        match open_process(number.as_raw()) {
            Ok(process) if getppid() == number => Ok(Self(State::Held(process))),
            Ok(_) => Ok(Self(State::Ended)),
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(Self(State::Ended)),
            Err(error) => Err(error),
        }
    }

    /// Waits until it has ended. Needs a runtime. Dropping the future loses nothing.
    pub(crate) async fn ended(&mut self) {
        if matches!(self.0, State::Held(_))
            && let State::Held(process) = mem::replace(&mut self.0, State::Ended)
            // It is no pipe, but what is waited for is the same: that poll(2) calls it readable.
            && let Ok(process) = pipe::Receiver::from_file_unchecked(process.into())
        {
            self.0 = State::WaitedFor(process);
        }
        if let State::WaitedFor(process) = &self.0 {
            // When all threads of the process have ended.
            let _ = process.readable().await;
        }
    }
}

//! Describes how a stage ended, with its exit code and its text.

use std::fmt;
use std::time::Duration;

use exeat_policy::Size;
use exeat_record::{Cause, StoppedBy, signal_name};
use nix::libc::{SIGINT, SIGKILL};

/// The way in which a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The stage exited with this code.
    Exit(u8),
    /// The stage was killed by this signal, which exeat did not send.
    Signal(i32),
    /// The stage was killed by the SIGINT of a key that was typed at its terminal.
    Interrupted,
    /// The stage ended after a request to end the run.
    Stopped(Stopped),
    /// A connection was refused, and [`OnDenied`](crate::OnDenied) ends or fails the run for that.
    Denied,
    /// The stage was stopped when its time was over.
    Timeout,
    /// The stage was killed when it reached this limit.
    Limit(Reached),
    /// The stage was killed when the host removed a mount that kept a file hidden or read-only.
    Uncovered,
    /// The stage never started: no such command.
    NotFound,
    /// The stage never started: the command cannot be executed.
    NotExecutable,
}

/// The end of a stage after a request to end the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// The signal that the stage received first.
    pub signal: i32,
    /// Who requested the end.
    pub by: StoppedBy,
    /// The time from the request to the end of the stage.
    pub after: Duration,
    /// The stage's own end.
    pub how: StoppedHow,
}

/// The way in which a stage ended after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoppedHow {
    /// The stage exited with this code.
    Exit(u8),
    /// The stage was killed by this signal, usually the one that it received.
    Signal(i32),
    /// The stage was killed when its grace was over, or at a second signal.
    Killed,
}

impl Ended {
    /// Returns exeat's exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Exit(code) | Self::Stopped(Stopped { how: StoppedHow::Exit(code), .. }) => code,
            Self::Signal(signal) | Self::Stopped(Stopped { how: StoppedHow::Signal(signal), .. }) => {
                signal_code(signal)
            }
            Self::Interrupted => signal_code(SIGINT),
            // The code is that of a process that the kernel kills for lack of memory.
            Self::Stopped(_) | Self::Limit(_) | Self::Uncovered => signal_code(SIGKILL),
            Self::Denied => 123,
            Self::Timeout => 124,
            Self::NotFound => 127,
            Self::NotExecutable => 126,
        }
    }

    /// Returns the cause for the record and the result.
    #[must_use]
    pub fn cause(self) -> Cause {
        match self {
            Self::Exit(_) => Cause::Exit,
            Self::Signal(_) | Self::Interrupted => Cause::Signal,
            Self::Stopped(_) => Cause::Stopped,
            Self::Denied => Cause::Denied,
            Self::Timeout => Cause::Timeout,
            Self::Limit(_) => Cause::Limit,
            Self::Uncovered => Cause::Uncovered,
            Self::NotFound | Self::NotExecutable => Cause::Setup,
        }
    }

    /// Returns the signal that ended the stage or asked it to end.
    #[must_use]
    pub fn signal(self) -> Option<i32> {
        match self {
            Self::Signal(signal) | Self::Stopped(Stopped { signal, .. }) => Some(signal),
            Self::Interrupted => Some(SIGINT),
            _ => None,
        }
    }

    /// Returns who asked for the end, if it is [`Ended::Stopped`].
    #[must_use]
    pub fn stopped_by(self) -> Option<StoppedBy> {
        match self {
            Self::Stopped(Stopped { by, .. }) => Some(by),
            _ => None,
        }
    }
}

/// The sum fits because signals end at 64 (SIGRTMAX); any other number gives 255.
fn signal_code(signal: i32) -> u8 {
    u8::try_from(signal).ok().and_then(|signal| signal.checked_add(128)).unwrap_or(255)
}

/// Displays it like `stopped by SIGTERM; the stage was killed 8 s later`.
impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            StoppedBy::Signal => write!(f, "stopped by {}", signal_name(self.signal))?,
            StoppedBy::Parent => f.write_str("stopped by the end of the process that had started exeat")?,
            StoppedBy::Program => f.write_str("stopped by the program that had started it")?,
        }
        let when = match tenths(self.after).as_str() {
            "0" => "at once".to_owned(),
            seconds => format!("{seconds} s later"),
        };
        match self.how {
            StoppedHow::Exit(code) => write!(f, "; the stage ended by itself {when}, with code {code}"),
            StoppedHow::Signal(signal) => write!(f, "; the stage ended {when}, by {}", signal_name(signal)),
            StoppedHow::Killed => write!(f, "; the stage was killed {when}"),
        }
    }
}

/// Formats seconds with one decimal if it is not zero: `0.3`, but `8` for 8.04.
fn tenths(time: Duration) -> String {
    let text = format!("{:.1}", time.as_secs_f64());
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// The limit that ended a stage, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reached {
    /// `memory`.
    Memory(Size),
    /// `pids`, if it is watched.
    Pids(u32),
    /// `output_size`.
    OutputSize(Size),
}

impl Reached {
    /// Returns the limit's key in a policy file.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Pids(_) => "pids",
            Self::OutputSize(_) => "output_size",
        }
    }
}

/// Displays it like `memory limit of 2GiB`.
impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(size) => write!(f, "memory limit of {size}"),
            Self::Pids(number) => write!(f, "pids limit of {number}"),
            Self::OutputSize(size) => write!(f, "output limit of {size}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K28.
    #[test]
    fn the_codes_are_those_that_are_documented() {
        let stopped =
            |how| Ended::Stopped(Stopped { signal: 15, by: StoppedBy::Signal, after: Duration::ZERO, how });
        for (ended, code) in [
            (Ended::Exit(0), 0),
            (Ended::Exit(7), 7),
            (Ended::Signal(9), 137),
            (Ended::Signal(15), 143),
            (Ended::Signal(64), 192),
            (Ended::Denied, 123),
            (Ended::Timeout, 124),
            (Ended::Limit(Reached::Pids(7)), 137),
            (Ended::Uncovered, 137),
            (Ended::NotExecutable, 126),
            (Ended::NotFound, 127),
            (stopped(StoppedHow::Exit(0)), 0),
            (stopped(StoppedHow::Signal(15)), 143),
            (stopped(StoppedHow::Killed), 137),
        ] {
            assert_eq!(ended.code(), code, "{ended:?}");
        }
    }

    #[test]
    fn describes_who_stopped_a_stage_and_how_it_ended() {
        let stopped = |by, millis, how| {
            Stopped { signal: 15, by, after: Duration::from_millis(millis), how }.to_string()
        };
        assert_eq!(
            stopped(StoppedBy::Signal, 8012, StoppedHow::Killed),
            "stopped by SIGTERM; the stage was killed 8 s later"
        );
        assert_eq!(
            stopped(StoppedBy::Parent, 312, StoppedHow::Exit(0)),
            "stopped by the end of the process that had started exeat; the stage ended by itself 0.3 s later, with code 0"
        );
        assert_eq!(
            stopped(StoppedBy::Program, 2, StoppedHow::Signal(15)),
            "stopped by the program that had started it; the stage ended at once, by SIGTERM"
        );
    }
}

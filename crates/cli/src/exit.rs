//! Defines all exit codes of exeat. The code of a stage is passed on; `--result` distinguishes the two.

use std::fs::File;
use std::io::{self, Write as _};
use std::process::ExitCode;

use exeat_runner::{Ended, Stopped, StoppedHow};
use nix::libc::SIGINT;
use nix::unistd::{getpgrp, tcgetpgrp};

/// The exit codes of exeat's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; for `check`: yes, allowed.
    Yes,
    /// For `check`: no, denied.
    No,
    /// Bad arguments, policy or input. Nothing ran.
    BadInput,
    /// exeat could not do its part: no sandbox, no listener, no answer. Nothing ran.
    CouldNot,
    /// The stage's own code, or the code for the way in which the stage ended.
    Stage(u8),
    /// A SIGINT ended the stage. `is_key`: a key of the stage's own terminal sent it, so the processes around exeat have not got one.
    Interrupted { is_key: bool },
    /// exeat itself was ended by this signal.
    Signal(i32),
}

impl Exit {
    /// Returns the number that the caller of exeat sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Yes => 0,
            Self::No => 1,
            Self::BadInput => 2,
            Self::CouldNot => 125,
            Self::Stage(code) => code,
            Self::Interrupted { .. } => 128 + 2,
            // Signals end at 64 (SIGRTMAX), so the sum fits; 255 stands for a number outside of them.
            Self::Signal(signal) => u8::try_from(signal).ok().and_then(|n| n.checked_add(128)).unwrap_or(255),
        }
    }
}

impl Exit {
    /// Ends this process. A shell ends a loop or a script if SIGINT has ended a command of it, and not if the command has exited with 130.
    pub(crate) fn end(self) -> ExitCode {
        if let Self::Interrupted { is_key } = self {
            let _ = io::stdout().flush();
            // The standard streams may be closed by now.
            let is_foreground =
                File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()));
            let _ = exeat_runner::end_by_interrupt(is_key && is_foreground);
        }
        ExitCode::from(self.code())
    }
}

impl From<Ended> for Exit {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Interrupted => Self::Interrupted { is_key: true },
            Ended::Signal(SIGINT) | Ended::Stopped(Stopped { how: StoppedHow::Signal(SIGINT), .. }) => {
                Self::Interrupted { is_key: false }
            }
            _ => Self::Stage(ended.code()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K28.
    #[test]
    fn the_codes_that_are_documented() {
        for (exit, code) in [
            (Exit::from(Ended::Exit(0)), 0),
            (Exit::from(Ended::Exit(7)), 7),
            (Exit::from(Ended::Signal(2)), 130),
            (Exit::from(Ended::Interrupted), 130),
            (Exit::Signal(15), 143),
            (Exit::CouldNot, 125),
            (Exit::BadInput, 2),
            (Exit::No, 1),
            (Exit::Yes, 0),
        ] {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }
}

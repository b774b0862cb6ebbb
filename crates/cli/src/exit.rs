//! The exit codes of exeat, all of them. A stage's own code passes through: `--result` tells the two apart.

use std::process::ExitCode;

use exeat_runner::Ended;

/// How a command of exeat ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; for `check`: yes, allowed.
    Yes,
    /// For `check`: no, denied.
    No,
    /// Bad arguments, policy or input. Nothing ran.
    BadInput,
    /// The stage ran for its `--timeout`, as timeout(1) says it.
    TimedOut,
    /// exeat could not do its part: no sandbox, no listener, no answer. Nothing ran.
    CouldNot,
    /// The stage was found and could not be executed, as sh(1) says it.
    NotExecutable,
    /// There is no such command in the sandbox.
    NotFound,
    /// The stage's own code.
    Stage(u8),
    /// The stage died of this signal.
    Signal(i32),
}

impl Exit {
    /// The number that the caller of exeat sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Yes => 0,
            Self::No => 1,
            Self::BadInput => 2,
            Self::TimedOut => 124,
            Self::CouldNot => 125,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Stage(code) => code,
            // Signals end at 64 (SIGRTMAX), so the sum fits; a number that is none of them says "of a signal".
            Self::Signal(signal) => u8::try_from(signal).ok().and_then(|n| n.checked_add(128)).unwrap_or(255),
        }
    }
}

impl From<Ended> for Exit {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Exit(code) => Self::Stage(code),
            Ended::Signal(signal) => Self::Signal(signal),
            Ended::Timeout => Self::TimedOut,
            // Killed, as the kernel kills one that is out of memory.
            Ended::Limit(_) | Ended::Uncovered => Self::Signal(9),
            Ended::NotFound => Self::NotFound,
            Ended::NotExecutable => Self::NotExecutable,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
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
            (Exit::from(Ended::Signal(9)), 137),
            (Exit::from(Ended::Signal(15)), 143),
            (Exit::from(Ended::Signal(64)), 192),
            (Exit::from(Ended::Timeout), 124),
            (Exit::from(Ended::Limit(exeat_runner::Reached::Pids(7))), 137),
            (Exit::from(Ended::Uncovered), 137),
            (Exit::from(Ended::NotExecutable), 126),
            (Exit::from(Ended::NotFound), 127),
            (Exit::CouldNot, 125),
            (Exit::BadInput, 2),
            (Exit::No, 1),
            (Exit::Yes, 0),
        ] {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }
}

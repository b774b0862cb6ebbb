//! Defines all exit codes of exeat. The code of a stage is passed on; `--result` distinguishes the two.

use std::process::ExitCode;

use exeat_runner::Ended;

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
            // Signals end at 64 (SIGRTMAX), so the sum fits; 255 stands for a number outside of them.
            Self::Signal(signal) => u8::try_from(signal).ok().and_then(|n| n.checked_add(128)).unwrap_or(255),
        }
    }
}

impl From<Ended> for Exit {
    fn from(ended: Ended) -> Self {
        Self::Stage(ended.code())
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

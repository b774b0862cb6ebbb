//! What a caller controls of a run besides its plan.

use std::fmt;

use crate::ended::Ended;
use crate::parent::Parent;

/// Additional control over a run of exeat's own executable.
#[derive(Default)]
pub struct Oversight {
    /// A process whose end ends the run, like SIGTERM.
    pub parent: Option<Parent>,
    /// The effect of a refusal on the run.
    pub on_denied: OnDenied,
    /// Receives lines that should not wait for the end of the run. It must not block.
    pub live: Option<LineCallback>,
}

/// A callback for a line.
pub type LineCallback = Box<dyn Fn(&str)>;

impl fmt::Debug for Oversight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oversight").field("on_denied", &self.on_denied).finish_non_exhaustive()
    }
}

/// The effect of a refusal on a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnDenied {
    /// No effect: the end of the run reports it.
    #[default]
    Note,
    /// The first refusal ends the run, as SIGTERM would.
    End,
    /// A run that would exit 0 fails.
    Fail,
}

impl OnDenied {
    /// Returns the end of a run in which a connection was refused.
    pub(super) fn judge(self, ended: Ended) -> Ended {
        match (self, ended) {
            (Self::End, Ended::Exit(_) | Ended::Signal(_)) | (Self::Fail, Ended::Exit(0)) => Ended::Denied,
            (_, ended) => ended,
        }
    }
}

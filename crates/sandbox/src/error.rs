//! Explains why a sandbox could not be set up: the step, the cause and the layer that refused.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use exeat_contract::Step;
use nix::errno::Errno;

use crate::fix::Fix;
use crate::layer::RefusingLayer;
use crate::sys::NetStep;

/// A failure to set up a sandbox. Nothing untrusted has run, except for [`Error::Watch`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No trusted path has a bubblewrap.
    #[error("no bubblewrap at a trusted path (looked at {looked})")]
    NoBwrap {
        /// Paths that were tried, comma-separated, each with its defect.
        looked: String,
    },
    /// A file for the sandbox could not be prepared.
    #[error("cannot prepare {what} for the sandbox")]
    Prepare {
        /// Name of the file.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The seccomp filter could not be compiled.
    #[error("cannot compile the seccomp filter: {0}")]
    Filter(String),
    /// bubblewrap could not be started.
    #[error("cannot start `{}`", .path.display())]
    Spawn {
        /// The executable.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The process could not switch to the stage's user.
    #[error("cannot become the stage's user, which takes CAP_SETUID and CAP_SETGID")]
    User(#[source] io::Error),
    /// bubblewrap ended before stage2 reported.
    #[error("bubblewrap could not build the sandbox: {said}")]
    Bwrap {
        /// The executable.
        path: PathBuf,
        /// Its error output, or its exit status.
        said: String,
        /// The layer that refused, if known.
        layer: RefusingLayer,
    },
    /// exeat could not build the sandbox itself.
    #[error("cannot {what}")]
    Build {
        /// The step, worded to follow "cannot".
        what: String,
        /// The kernel's answer.
        source: Errno,
        /// The layer that refused, if known.
        layer: RefusingLayer,
    },
    /// stage2 did not report in time.
    #[error("the sandbox did not come up within {} s", .0.as_secs())]
    Late(Duration),
    /// The caller gave up before stage2 was ready.
    #[error("given up before the sandbox stood")]
    Cancelled,
    /// A mount shows another file than the one that the plan checked.
    #[error("`{}` was replaced on the host while the sandbox was being made", .0.display())]
    Replaced(PathBuf),
    /// Another process connected to the control socket.
    #[error("a process that is not this run's helper (pid {pid}) connected to the control socket")]
    Stranger {
        /// Its pid on the host.
        pid: i32,
    },
    /// The control connection broke or carried something other than the protocol.
    #[error("the control connection to the sandbox failed")]
    Control(#[source] io::Error),
    /// stage2 reported a failed step.
    #[error("cannot {}", .step.as_str())]
    Stage2 {
        /// The step.
        step: Step,
        /// The kernel's answer.
        source: Errno,
    },
    /// The sandbox's network could not be configured from the host's side.
    #[error("cannot {}", .step.as_str())]
    Network {
        /// The step.
        step: NetStep,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A resource limit could not be set.
    #[error("cannot limit the stage's {what}")]
    Limit {
        /// Name of the resource.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The command could not be executed: the fault is in the command, not in the sandbox.
    #[error("cannot execute the command")]
    Exec(#[source] Errno),
    /// The sandbox's processes could not be watched.
    #[error("cannot watch the sandbox's processes")]
    Watch(#[source] io::Error),
}

impl Error {
    /// Returns whether the start failed because a file was replaced on the host. To the kernel, a name that is replaced while a mount on it is
    /// made is not there.
    #[must_use]
    pub fn is_replacement(&self) -> bool {
        matches!(self, Self::Replaced(_) | Self::Build { source: Errno::ENOENT, .. })
    }

    /// Returns the layer that refused, if bubblewrap failed.
    #[must_use]
    pub fn layer(&self) -> Option<RefusingLayer> {
        match self {
            Self::Bwrap { layer, .. } | Self::Build { layer, .. } => Some(*layer),
            _ => None,
        }
    }

    /// Returns a remedy, if one is known.
    #[must_use]
    pub fn fix(&self) -> Option<Fix> {
        match self {
            Self::NoBwrap { .. } => Some(Fix::install()),
            Self::Bwrap { path, layer, .. } => layer.fix(path),
            Self::Build { layer, .. } => layer.fix(&std::env::current_exe().ok()?),
            Self::Replaced(_) => Some(Fix::words("start it again when no other program renames files there")),
            _ => None,
        }
    }
}

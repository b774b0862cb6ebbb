//! Describes why a run did not happen: the step, the cause, the fix.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use exeat_compose::Fault;
use exeat_files::fault::FileFault;
use exeat_files::quarantine::Leftovers;
use exeat_policy::Target;
use exeat_record::{RunId, StoppedBy, signal_name};
use nix::sys::signal::Signal;

use crate::backend::error::BackendError;
use crate::discover::error::DiscoveryError;
use crate::signals::RunRequest;

pub(crate) mod faults;

use faults::{HostPortFault, LimitFault, OwnPath, WordFault};

/// The reason that a run did not happen, or that it was lost after its start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The policy could not be composed.
    #[error(transparent)]
    Policy(Box<Fault>),
    /// The request has no command.
    #[error("there is no command to run")]
    NoCommand,
    /// A path of the request cannot be used.
    #[error(transparent)]
    Files(#[from] FileFault),
    /// There are more mounts than bubblewrap accepts.
    #[error("the view needs {words} words, and bubblewrap reads at most {most}")]
    TooMany {
        /// The number of words needed.
        words: usize,
        /// The largest number that bubblewrap accepts.
        most: usize,
    },
    /// Something that no stage may write or replace would be inside a tree that the stage can write.
    #[error("{}", .what.describe(.path, .tree))]
    Inside {
        /// What it is.
        what: OwnPath,
        /// Its path.
        path: PathBuf,
        /// The writable tree.
        tree: PathBuf,
    },
    /// The listener would be reachable from other hosts on the network.
    #[error("`{0}` is not a loopback address: everybody who reaches it could use the proxy")]
    ListenAnywhere(std::net::SocketAddr),
    /// A limit leaves no room for a run.
    #[error(transparent)]
    Limit(#[from] LimitFault),
    /// The place of the record could not be used.
    #[error("cannot keep the record")]
    Place(#[source] exeat_record::place::DirError),
    /// The record could not be opened.
    #[error("cannot open the record")]
    Record(#[source] exeat_record::OpenError),
    /// The key that signs the record could not be used.
    #[error("cannot sign the record")]
    Key(#[source] exeat_record::KeyError),
    /// The state directory for the signing key could not be used.
    #[error("cannot keep the key that signs the record")]
    KeyPlace(#[source] exeat_record::place::DirError),
    /// The record could not be written.
    #[error("cannot write the record")]
    Log(#[source] exeat_record::LogError),
    /// A preparation on the host failed.
    #[error("cannot prepare {what}")]
    Prepare {
        /// The thing to prepare.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The proxy could not listen.
    #[error("cannot listen on `{place}`")]
    Listen {
        /// The place.
        place: String,
        /// The cause.
        source: io::Error,
    },
    /// The sandbox could not be set up.
    #[error("cannot set up the sandbox")]
    Sandbox(#[source] exeat_sandbox::Error),
    /// The request needs access to the sandbox's network, which is not available on this machine.
    #[error("{flag} cannot be had on this machine")]
    Gateway {
        /// The flag that needs it.
        flag: &'static str,
        /// The cause.
        #[source]
        source: exeat_sandbox::Error,
    },
    /// No listener for a port of this machine could be created.
    #[error("cannot listen on port {inner} of the sandbox's loopback")]
    HostPort {
        /// The port.
        inner: u16,
        /// The cause.
        source: io::Error,
    },
    /// A standard stream would let the stage leave the sandbox.
    #[error("{stream} is {what}: a stage could use it to leave the sandbox")]
    Stream {
        /// The name of the stream.
        stream: &'static str,
        /// The description of the stream.
        what: &'static str,
    },
    /// The client of a preset did not report its hosts.
    #[error("preset `{preset}` asks {client} which hosts it uses, and {why}")]
    Preset {
        /// The preset.
        preset: String,
        /// Its client.
        client: &'static str,
        /// The reason.
        why: DiscoveryError,
    },
    /// The plan's fingerprint differs from the approved one.
    #[error("the plan of this stage differs from the approved one")]
    NotApproved,
    /// A word of the command or of its environment cannot be passed.
    #[error(transparent)]
    Word(#[from] WordFault),
    /// The request contains both a whole policy and single rules, of which one would be lost.
    #[error("both a whole policy and single rules were given")]
    PolicyAndRules,
    /// The request contains an option that only exeat's own proxy could enforce.
    #[error("the run goes through somebody else's proxy, so {0} could not be held here")]
    ViaAnd(&'static str),
    /// A ceiling of the policy does not allow the upstream proxy.
    #[error("the upstream proxy {proxy} is not within the ceilings: {why}")]
    UpstreamDenied {
        /// The host and port of the proxy.
        proxy: Target,
        /// The ceiling that refuses it, and why.
        why: String,
    },
    /// The request asks for a private HOME without a cache, which would contain it.
    #[error("a private HOME lies in the cache, and there is none (`fs.cache` is `none`)")]
    NoPlaceForHome,
    /// The request needs another loopback service, and the stage may connect only to the proxy.
    #[error("the stage may connect to the proxy alone, which leaves no place for {0}")]
    LoopbackAnd(&'static str),
    /// A service of this machine cannot be offered.
    #[error(transparent)]
    HostPorts(#[from] HostPortFault),
    /// The path of the other proxy is not a socket.
    #[error("`{}` is no socket, so no proxy listens there", .0.display())]
    ViaNoSocket(PathBuf),
    /// The other proxy does not answer.
    #[error("cannot connect to the proxy at `unix:{}`", .path.display())]
    ViaDead {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No sandbox is available.
    #[error("no sandbox")]
    Backend(#[source] BackendError),
    /// The request requires every part of the isolation to hold, and one does not.
    #[error("not everything holds, and that was required: {0}")]
    NotHeld(String),
    /// The kernel's Landlock lacks a requested feature.
    #[error("{what} needs Landlock of Linux {linux} or later, which this kernel lacks")]
    Landlock {
        /// The feature.
        what: &'static str,
        /// The first Linux version that has it.
        linux: &'static str,
    },
    /// SIGCHLD is ignored in this process.
    #[error("this process ignores SIGCHLD, so it cannot see the end of a stage")]
    ChildrenUnseen,
    /// The stage wrote more output than the caller's buffer may hold, and was killed.
    #[error("the stage wrote more than {0} bytes to {1}, and was killed")]
    OutputTooLong(usize, &'static str),
    /// The output could not be read, and the stage was killed.
    #[error("cannot read what the stage writes")]
    Output(#[source] io::Error),
    /// The run was asked to end before the stage started.
    #[error("stopped by {} before the command was started", stopper(*.signal, *.by))]
    Stopped {
        /// The signal, or its equivalent.
        signal: i32,
        /// Who asked.
        by: StoppedBy,
    },
    /// The run ended in another of these errors, after the stage had made protected names.
    #[error(transparent)]
    RunLost(Box<RunLost>),
}

/// An error after the stage started, with the facts that must still be reported.
#[derive(Debug)]
pub struct RunLost {
    /// The run's id.
    pub run: RunId,
    /// The error; never [`Error::RunLost`].
    pub error: Error,
    /// The record's path; `None` if it went to a descriptor.
    pub audit: Option<PathBuf>,
    /// Protected names that the stage made, moved aside or still in place. At least one.
    pub found: Leftovers,
    /// Lines for the caller, also about `found`.
    pub notes: Vec<String>,
}

impl fmt::Display for RunLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RunLost {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

fn stopper(signal: i32, by: StoppedBy) -> String {
    match by {
        StoppedBy::Signal => signal_name(signal),
        StoppedBy::Parent => "the end of the process that had started exeat".into(),
        StoppedBy::Program => "the program that starts it".into(),
    }
}

impl Error {
    /// Reports a request to end the run before the stage started.
    pub(crate) fn stopped(ask: RunRequest, signal: Signal) -> Self {
        Self::Stopped { signal: signal as i32, by: ask.requester() }
    }

    /// Returns exeat's exit code: 2 for an error in the input, 125 for a failure on this machine, 128+n for a signal.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::RunLost(lost) => lost.error.code(),
            Self::Policy(fault) if fault.is_input => 2,
            Self::NoCommand
            | Self::Files(_)
            | Self::TooMany { .. }
            | Self::Inside { .. }
            | Self::ListenAnywhere(_)
            | Self::Word(_)
            | Self::PolicyAndRules
            | Self::ViaAnd(_)
            | Self::UpstreamDenied { .. }
            | Self::LoopbackAnd(_)
            | Self::NoPlaceForHome
            | Self::HostPorts(_)
            | Self::ViaNoSocket(_)
            | Self::NotApproved
            | Self::Limit(_)
            | Self::Stream { .. } => 2,
            Self::Record(
                exeat_record::OpenError::Exists { .. }
                | exeat_record::OpenError::InUse { .. }
                | exeat_record::OpenError::NoSync { .. },
            ) => 2,
            Self::Record(exeat_record::OpenError::Io { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                2
            }
            Self::Stopped { signal, .. } => u8::try_from(128 + signal).unwrap_or(125),
            // All of them, so that a new fault of the input does not become one of the machine unnoticed.
            Self::Policy(_)
            | Self::Place(_)
            | Self::Record(_)
            | Self::Key(_)
            | Self::KeyPlace(_)
            | Self::Log(_)
            | Self::Prepare { .. }
            | Self::Listen { .. }
            | Self::Sandbox(_)
            | Self::Gateway { .. }
            | Self::HostPort { .. }
            | Self::Preset { .. }
            | Self::ViaDead { .. }
            | Self::Backend(_)
            | Self::NotHeld(_)
            | Self::Landlock { .. }
            | Self::ChildrenUnseen
            | Self::OutputTooLong(..)
            | Self::Output(_) => 125,
        }
    }

    /// Returns the cause for the result object.
    #[must_use]
    pub fn cause_word(&self) -> &'static str {
        match self {
            Self::RunLost(lost) => lost.error.cause_word(),
            Self::Stopped { .. } => "stopped",
            Self::Policy(fault) if fault.is_input => "policy",
            Self::Files(FileFault::Excess { .. }) | Self::HostPorts(HostPortFault::Denied { .. }) => "policy",
            _ => "setup",
        }
    }

    /// Returns the signal or its equivalent that ended the run before the stage started, and who asked.
    #[must_use]
    pub fn stopped_by(&self) -> Option<(i32, StoppedBy)> {
        match self {
            Self::RunLost(lost) => lost.error.stopped_by(),
            Self::Stopped { signal, by } => Some((*signal, *by)),
            _ => None,
        }
    }

    /// Returns whether the error comes from a run inside a run. There, steps before the sandbox fail, too: the home directory is
    /// read-only, and the filter refuses calls that a run needs.
    #[must_use]
    pub fn is_of_nesting(&self) -> bool {
        self.code() == 125 && exeat_sandbox::is_nested()
    }

    /// Returns a command or change that fixes it, if one is known.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        if self.is_of_nesting() {
            return exeat_sandbox::RefusingLayer::Nested.fix(Path::new("bwrap")).map(|fix| fix.text);
        }
        match self {
            Self::RunLost(lost) => lost.error.fix(),
            Self::Policy(fault) => fault.hint.clone(),
            Self::NoCommand => {
                Some("exeat run --allow api.example.com -- curl -sS https://api.example.com/".into())
            }
            Self::Files(fault) => fault.fix(),
            Self::TooMany { .. } => {
                Some("bind directories in place of what is in them; leave masks out that need none".into())
            }
            Self::Inside { what, .. } => Some(what.fix().into()),
            Self::Key(exeat_record::KeyError::Exposed { path }) => {
                Some(format!("chmod 600 {}", path.display()))
            }
            Self::Key(_) => Some(
                "--audit-key FILE names another key, --audit-key none leaves the record without signature"
                    .into(),
            ),
            Self::KeyPlace(_) => Some(
                "XDG_STATE_HOME=DIR names a directory of yours that the key and the record can be in".into(),
            ),
            Self::Place(exeat_record::place::DirError::Io { .. }) => {
                Some("--audit FILE keeps it elsewhere, --audit fd:N in what the caller has open".into())
            }
            Self::Record(exeat_record::OpenError::NoSync { .. }) => {
                Some("name a file: --audit FILE; or leave audit.sync out".into())
            }
            Self::Stream { .. } => {
                Some("put a pipe between: `cat |` before exeat, or `| cat` after it".into())
            }
            Self::Preset { why: DiscoveryError::Denied { .. } | DiscoveryError::Special { .. }, .. } => None,
            Self::Preset { .. } => Some("name its hosts instead: --allow HOST".into()),
            Self::Limit(fault) => fault.fix(),
            Self::ListenAnywhere(_) => Some("add --listen-anywhere if that is meant".into()),
            Self::NotApproved => {
                Some("look at the plan again, and approve its fingerprint if that is meant".into())
            }
            Self::PolicyAndRules => Some("add the rules to the policy before it is built".into()),
            Self::UpstreamDenied { proxy, .. } => Some(format!(
                "leave the proxy out, or have the ceiling name it: its `[network.upstream]`, or a rule for {proxy}"
            )),
            Self::ViaAnd(_) => Some("give it to that proxy, or let the run have its own".into()),
            Self::HostPorts(fault) => fault.fix(),
            Self::LoopbackAnd(_) | Self::NoPlaceForHome => Some("leave one of the two out".into()),
            Self::ViaNoSocket(path) | Self::ViaDead { path, .. } => {
                Some(format!("exeat proxy --listen unix:{} listens there", path.display()))
            }
            Self::Backend(error) => error.fix().map(str::to_owned),
            Self::ChildrenUnseen => {
                Some("give SIGCHLD its default action back before the stage is started".into())
            }
            Self::Landlock { .. } => {
                Some("leave the flag out, or start a newer kernel with Landlock on".into())
            }
            Self::Sandbox(error @ exeat_sandbox::Error::Bwrap { .. }) => {
                Some(error.fix().map_or_else(|| "exeat doctor tries each step alone".into(), |fix| fix.text))
            }
            Self::Sandbox(error) => error.fix().map(|fix| fix.text),
            _ => None,
        }
    }

    /// Returns the layer that refused, if it is known.
    #[must_use]
    pub fn layer(&self) -> Option<&'static str> {
        match self {
            Self::RunLost(lost) => lost.error.layer(),
            Self::Sandbox(error) => error.layer().and_then(exeat_sandbox::RefusingLayer::as_str),
            _ if self.is_of_nesting() => exeat_sandbox::RefusingLayer::Nested.as_str(),
            _ => None,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Policy(Box::new(fault))
    }
}

/// Joins an error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use exeat_files::fault::Excess;

    use super::*;

    /// N12.
    #[test]
    fn n12_a_fault_of_a_path_is_an_input_error_and_an_ungranted_one_concerns_the_policy() {
        let path = Excess { said: "`/a`".into(), flag: Some("--ro /a".into()), can_be_left_out: true };
        let ungranted = FileFault::Excess { excess: vec![path], idle: Vec::new() };
        let procfs =
            FileFault::Procfs { what: exeat_files::fault::PathUse::ReadOnly, path: "/proc/1".into() };
        for (fault, cause) in [(ungranted, "policy"), (procfs, "setup")] {
            let error = Error::from(fault);
            assert_eq!((error.code(), error.cause_word(), error.fix().is_some()), (2, cause, true));
        }
    }
}

//! Faults of a request that differ in their words alone: what is exposed to the stage, limits, ports of this machine, words of the command.

use std::path::Path;

use exeat_policy::{HostPort, LEAST_AUDIT_SIZE, LEAST_MEMORY, Size, memory_meant};

/// Something of exeat's own, or of the proxy that a run goes through, which no stage may write or replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnPath {
    /// The record.
    Record,
    /// The directory of the runs' sockets: the stage could answer for another run.
    Sockets,
    /// The directory in which exeat keeps records and keys.
    State,
    /// The key that signs the record.
    Key,
    /// The socket of the other proxy.
    Via,
}

impl OwnPath {
    /// Says that it is in a tree that the stage can write.
    pub(super) fn describe(self, path: &Path, tree: &Path) -> String {
        let (path, tree) = (path.display(), tree.display());
        match self {
            Self::Record => format!("the record `{path}` would lie in `{tree}`, which the stage can write"),
            Self::Sockets => format!(
                "the sockets of runs are made in `{path}`, and the stage could write there: `{tree}` is writable"
            ),
            Self::State => format!(
                "`{path}`, in which exeat keeps its records and keys, would lie in `{tree}`, which the stage can write"
            ),
            Self::Key => format!("the key `{path}` is inside `{tree}`, which the stage can write"),
            Self::Via => format!("the proxy's socket `{path}` lies in `{tree}`, which the stage can write"),
        }
    }

    pub(super) fn fix(self) -> &'static str {
        match self {
            Self::Record => "name a file outside the working directory and every --rw, or leave --audit out",
            Self::Sockets => "show the stage only a directory of it",
            Self::State => {
                "XDG_STATE_HOME=DIR keeps exeat's own files elsewhere; or show the stage only a directory of it"
            }
            Self::Key => {
                "--audit-key FILE names another one, outside the working directory and every --rw; --audit-key none leaves the record without signature"
            }
            Self::Via => "let it listen outside the working directory and every --rw, such as in /run",
        }
    }
}

/// A limit that leaves no room for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitFault {
    /// A limit leaves no room for any command.
    #[error("a `{key}` limit below {least} lets no command start")]
    TooSmall {
        /// The limit's key.
        key: &'static str,
        /// The smallest accepted value.
        least: u32,
    },
    /// A `memory` limit leaves no room for any command.
    #[error("a `memory` limit of {0} lets no command start: the least is {LEAST_MEMORY}")]
    Memory(Size),
    /// An `audit_size` leaves no room for a run.
    #[error("`audit_size` of {0} is too small for a record: the least is {LEAST_AUDIT_SIZE}")]
    AuditSize(Size),
}

impl LimitFault {
    pub(super) fn fix(self) -> Option<String> {
        match self {
            Self::Memory(size) => memory_meant(size).map(|meant| format!("probably meant: \"{meant}\"")),
            Self::TooSmall { .. } | Self::AuditSize(_) => None,
        }
    }
}

/// A service of this machine that a stage cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostPortFault {
    /// It is asked for at a port that exeat uses.
    #[error("no service of this machine can be at port {} inside: {by}", .port.inner)]
    Taken {
        /// The service.
        port: HostPort,
        /// The user of the port.
        by: &'static str,
    },
    /// Two services are asked for at one port.
    #[error("port {} inside is asked for twice: by `{other}` and by `{port}`", .port.inner)]
    Twice {
        /// The second service.
        port: HostPort,
        /// The first service.
        other: HostPort,
    },
    /// The policy does not grant it.
    #[error("{rule_src}: {}: {why}", .port.target())]
    Denied {
        /// The service.
        port: HostPort,
        /// The place of the rule that asks for it.
        rule_src: String,
        /// The reason.
        why: String,
    },
    /// The request asks for too many services.
    #[error("{asked} services of this machine are asked for; at most {most} are offered")]
    TooMany {
        /// The number of services.
        asked: usize,
        /// The largest accepted number.
        most: usize,
    },
}

impl HostPortFault {
    pub(super) fn fix(&self) -> Option<String> {
        match self {
            Self::Taken { port, .. } | Self::Twice { port, .. } => {
                Some(format!("another port inside: `{}:INNER`", port.port))
            }
            Self::Denied { .. } | Self::TooMany { .. } => None,
        }
    }
}

/// A word of the command or of its environment that execve(2) cannot pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordFault {
    /// It contains a NUL byte.
    #[error("{0} holds a NUL byte")]
    Nul(&'static str),
    /// A variable's name is empty or contains `=`.
    #[error("`{0}` cannot be the name of a variable")]
    EnvName(String),
}

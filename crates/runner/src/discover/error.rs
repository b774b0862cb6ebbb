//! Describes why a client did not report its hosts.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use exeat_policy::AddrClass;

use crate::ended::Ended;

/// The maximal number of hosts of one client. A mirror and its extra indexes are a handful.
pub(super) const HOSTS: usize = 16;

/// The reason that a client did not report its hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// The program is not on PATH.
    Absent {
        /// The program.
        program: &'static str,
    },
    /// The program is on PATH in a tree of the project, or in one that the stage may write.
    InUntrustedTree {
        /// The tree.
        tree: PathBuf,
    },
    /// The client ended without asking for a host.
    Failed {
        /// The end of its run.
        ended: Ended,
        /// The most telling line of its output, escaped; may be empty.
        said: String,
    },
    /// The client asked for no host within its time.
    Late {
        /// The time limit.
        limit: Duration,
    },
    /// The time for all clients was over before this client's turn.
    NoTime {
        /// The time limit.
        limit: Duration,
    },
    /// The client asked the proxy for something that is not a host and a port.
    Malformed,
    /// The client is configured to use a denied host.
    Denied {
        /// The host and port.
        target: String,
        /// The reason.
        said: String,
    },
    /// The client is configured to use an address of a kind that no preset permits.
    Special {
        /// The address and port.
        target: String,
        /// The kind of address.
        class: AddrClass,
        /// The flag that permits it; `None` where nothing should.
        flag: Option<String>,
    },
    /// The client asked for too many hosts.
    TooMany,
    /// The client failed when it was last asked, and is not asked again so soon.
    Earlier {
        /// The preset.
        preset: String,
        /// Why it failed.
        said: String,
        /// How long ago it was asked.
        age: Duration,
    },
    /// The client of this preset cannot be asked by this version of exeat.
    Unknown,
}

impl DiscoveryError {
    /// Returns whether it reports this target.
    pub(super) fn is_about(&self, shown: &str) -> bool {
        matches!(self, Self::Special { target, .. } if target == shown)
    }
}

/// Completes the sentence "asks pip which hosts it uses, and ...".
impl fmt::Display for DiscoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { program } => write!(f, "{program} is not on PATH"),
            Self::InUntrustedTree { tree } => {
                write!(f, "the one on PATH lies in `{}`, where the stage could change it", tree.display())
            }
            Self::Failed { ended, said } => {
                let how = match ended {
                    Ended::Exit(code) => format!("exited {code}"),
                    Ended::Interrupted => "was interrupted".into(),
                    Ended::Signal(signal) => format!("died of signal {signal}"),
                    Ended::Limit(reached) => format!("reached its {reached}"),
                    Ended::Stopped(_) | Ended::Denied | Ended::Timeout | Ended::Uncovered => {
                        "was stopped".into()
                    }
                    Ended::NotFound | Ended::NotExecutable => "could not be executed".into(),
                };
                write!(f, "it {how} without asking for any")?;
                if said.is_empty() { Ok(()) } else { write!(f, ": `{said}`") }
            }
            Self::Late { limit } => write!(f, "it asked for none in {}", seconds(*limit)),
            Self::NoTime { limit } => write!(f, "the {} for asking were over", seconds(*limit)),
            Self::Malformed => f.write_str("it asked for something that is not a host and a port"),
            Self::Denied { target, said } => write!(f, "it uses `{target}`, which is refused: {said}"),
            Self::Special { target, class, flag } => {
                write!(f, "it is configured for `{target}` ({class}), which no preset opens")?;
                flag.as_ref().map_or(Ok(()), |flag| write!(f, "; {flag} does"))
            }
            Self::TooMany => write!(f, "it asked for more than {HOSTS}"),
            Self::Earlier { preset, said, age } => write!(f, "{said} {}", earlier(preset, *age)),
            Self::Unknown => f.write_str("this version cannot ask it"),
        }
    }
}

/// Says that an answer is an earlier one, and how to get another.
pub(super) fn earlier(preset: &str, age: Duration) -> String {
    let ago = match age.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    };
    format!("(asked {ago} ago; `exeat preset {preset} --ask` forgets that and asks again)")
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f32())
}

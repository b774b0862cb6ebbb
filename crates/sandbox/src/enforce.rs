//! What holds in a run, said aspect by aspect: never one bool.

use std::fmt;

/// Whether one aspect of the sandbox is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// All of it.
    Full,
    /// Some of it.
    Partial {
        /// What is lost, for a person.
        missing: String,
    },
    /// None of it.
    Absent,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("held"),
            Self::Partial { missing } => write!(f, "partial: {missing}"),
            Self::Absent => f.write_str("absent"),
        }
    }
}

/// What holds in one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    /// The network namespace: nothing but the bridge leads out.
    pub net: Held,
    /// The file view.
    pub fs: Held,
    /// The seccomp filters, and the Landlock domain behind them.
    pub syscalls: Held,
    /// The kernel identity: an unprivileged uid.
    pub identity: Held,
}

/// The kernel's Landlock ABI (landlock(7)); 0 where it has none.
#[must_use]
pub fn landlock_abi() -> u32 {
    crate::sys::landlock_abi()
}

/// Whether the layers on system calls hold on this kernel: the filters always, the Landlock domain behind them by its ABI.
#[must_use]
pub fn syscalls() -> Held {
    match crate::sys::landlock_abi() {
        6.. => Held::Full,
        2..=5 => Held::Partial {
            missing: "no Landlock scopes: pid 1 and the relay may be signalled (Linux 6.12)".into(),
        },
        _ => Held::Partial {
            missing: "no Landlock domain: pid 1's memory is writable to the stage (Linux 5.19)".into(),
        },
    }
}

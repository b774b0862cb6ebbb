//! Describes what a run enforces, aspect by aspect.

use std::fmt;

/// The degree to which one aspect of the sandbox is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforced {
    /// The aspect is fully enforced.
    Full,
    /// The aspect is partly enforced.
    Partial {
        /// The part that is lost, for people.
        missing: String,
    },
    /// The aspect is not enforced.
    Absent,
}

impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("held"),
            Self::Partial { missing } => write!(f, "partial: {missing}"),
            Self::Absent => f.write_str("absent"),
        }
    }
}

/// The layers that a run enforces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    /// The network namespace: nothing but the bridge leads out.
    pub net: Enforced,
    /// The file view.
    pub fs: Enforced,
    /// The seccomp filters, with the Landlock domain as a second layer.
    pub syscalls: Enforced,
    /// The kernel identity: an unprivileged uid.
    pub identity: Enforced,
}

/// Returns the kernel's Landlock ABI (landlock(7)), or 0 without Landlock.
#[must_use]
pub fn landlock_abi() -> u32 {
    crate::sys::landlock_abi()
}

/// Returns how far this kernel restricts system calls: the filters always work, the Landlock domain depends on its ABI.
#[must_use]
pub fn syscalls() -> Enforced {
    match crate::sys::landlock_abi() {
        6.. => Enforced::Full,
        2..=5 => Enforced::Partial {
            missing: "no Landlock scopes: pid 1 and the relay may be signalled (Linux 6.12)".into(),
        },
        _ => Enforced::Partial {
            missing: "no Landlock domain: pid 1's memory is writable to the stage (Linux 5.19)".into(),
        },
    }
}

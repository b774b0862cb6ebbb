//! Names the layers of a host that can refuse a namespace.

/// The layer that refused a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusingLayer {
    /// AppArmor's restriction of unprivileged user namespaces (Ubuntu 23.10 and later).
    AppArmor,
    /// `kernel.unprivileged_userns_clone` (Debian, Arch).
    UsernsCloneSysctl,
    /// `user.max_user_namespaces`.
    MaxUserNamespaces,
    /// The seccomp filter of a container around exeat.
    Container,
    /// Mounts over parts of `/proc`, as container runtimes make them: the kernel refuses a new `/proc` in a user namespace that would
    /// show what they hide (mount_too_revealing, fs/namespace.c).
    MaskedProc,
    /// A bubblewrap older than 0.8.
    OldBwrap,
    /// The sandbox of another run, which lets a stage make no namespaces.
    Nested,
    /// Another layer, not known.
    Unknown,
}

impl RefusingLayer {
    /// Describes the layer, if known.
    #[must_use]
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Self::AppArmor => Some("AppArmor restricts unprivileged user namespaces"),
            Self::UsernsCloneSysctl => Some("the sysctl kernel.unprivileged_userns_clone is 0"),
            Self::MaxUserNamespaces => Some("the sysctl user.max_user_namespaces is 0"),
            Self::Container => Some("the seccomp filter of the container around exeat"),
            Self::MaskedProc => Some("the container around exeat hides parts of /proc"),
            Self::OldBwrap => Some("this bubblewrap is older than 0.8"),
            Self::Nested => Some("a run inside a run: exeat does not nest"),
            Self::Unknown => None,
        }
    }
}

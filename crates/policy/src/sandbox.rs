//! Defines the words of a policy about how a stage is confined.

use crate::words;

words! {
    /// The bridge: how connections reach the proxy.
    #[derive(Default)]
    pub enum Bridge {
        /// stage2 passes its listener to the proxy and nothing stays resident.
        #[default]
        Handoff = "handoff",
        /// stage2 leaves a process behind that copies each connection to the bind-mounted socket.
        Relay = "relay",
    }

    /// The program that builds the sandbox.
    #[derive(Default)]
    pub enum BackendName {
        /// bubblewrap where it works, else exeat itself.
        #[default]
        Auto = "auto",
        /// bubblewrap. exeat makes the file tree for it, where an ordinary user's programs may make user namespaces.
        Bwrap = "bwrap",
        /// bubblewrap, which makes the file tree too. It takes more time.
        BwrapAlone = "bwrap-alone",
        /// exeat itself. It needs Linux 5.12, and takes less time.
        Native = "native",
    }

    /// The servers that a stage may use on the loopback of its sandbox.
    #[derive(Default)]
    pub enum Loopback {
        /// The stage may use the proxy, and its own servers there.
        #[default]
        Own = "own",
        /// The stage may use only the proxy, and cannot listen on any TCP port. Landlock enforces this as a second
        /// layer besides the empty network namespace. It needs Linux 6.7.
        Proxy = "proxy",
    }

    /// Whether a stage has Unix sockets.
    #[derive(Default)]
    pub enum UnixSockets {
        /// Yes, if no socket of the host can be reached by its path.
        #[default]
        Auto = "auto",
        /// Always. Visible sockets of the host can then be connected to. Below a ceiling it counts as `Auto`.
        On = "on",
        /// Only connected pairs.
        Off = "off",
    }

    /// The replacement for the caller's terminal.
    #[derive(Default)]
    pub enum Tty {
        /// A terminal of the sandbox, if standard input and output are both the caller's controlling terminal and
        /// the caller is in its foreground. Otherwise it is like [`Tty::Off`].
        #[default]
        Auto = "auto",
        /// The caller's streams unchanged, in a session without a terminal.
        Off = "off",
    }

    /// Whether programs that ignore the proxy variables are served.
    #[derive(Default)]
    pub enum Transparent {
        /// Yes, if this machine allows it and the request does not exclude it.
        #[default]
        Auto = "auto",
        /// Yes, and otherwise the stage does not start.
        On = "on",
        /// No program is served.
        Off = "off",
    }

    /// The part of the host's files that the stage sees, the narrowest first.
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub enum View {
        /// Only what is declared, plus `/nix/store` where it exists.
        Minimal = "minimal",
        /// The system's trees and the toolchains on PATH read-only, the working directory writable.
        #[default]
        Project = "project",
        /// The whole tree read-only with credentials masked.
        Host = "host",
    }

    /// The place where package managers keep their downloads.
    #[derive(Default)]
    pub enum Cache {
        /// In a writable, persistent cache of exeat, one per work directory.
        Private = "private",
        /// In a writable cache of exeat on the disk, empty at the start and removed after the run.
        #[default]
        Run = "run",
        /// Nowhere. Clients that need a cache write to the private `/tmp`, or fail.
        None = "none",
    }

    /// The place of the stage's HOME.
    #[derive(Default)]
    pub enum Home {
        /// At the caller's path; the view determines what is visible there.
        #[default]
        Caller = "caller",
        /// In a writable directory in the cache, which lasts as long as the cache. See [`Cache`].
        Private = "private",
    }

    /// The behavior of `exeat run` inside a stage.
    #[derive(Default)]
    pub enum Nested {
        /// The inner run fails, because a sandbox cannot be created inside a sandbox.
        #[default]
        Refuse = "refuse",
        /// The inner run starts its command unchanged, confined only by the outer run.
        Pass = "pass",
    }

    /// The reaction to a stage that declares more than it is granted.
    #[derive(Default)]
    pub enum OnExcess {
        /// The stage does not start.
        #[default]
        Refuse = "refuse",
        /// The stage runs with what it is granted.
        Narrow = "narrow",
    }
}

impl Cache {
    /// Whether it is a directory of exeat on the disk.
    #[must_use]
    pub const fn is_on_disk(self) -> bool {
        matches!(self, Self::Private | Self::Run)
    }
}

//! Words of a policy about how a stage is held, besides what it reaches and sees.

/// Defines choices that a policy names by a word.
macro_rules! choices {
    ($($(#[$about:meta])* $name:ident { $($(#[$of:meta])* $choice:ident = $word:literal,)* })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $choice,)*
        }

        impl $name {
            /// Lists every choice.
            pub const ALL: &[Self] = &[$(Self::$choice,)*];

            /// Lists their words in policies; stable.
            pub const WORDS: &[&str] = &[$($word,)*];

            /// Returns its word in policies.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$choice => $word,)*
                }
            }
        }
    )*};
}

choices! {
    /// How connections reach the proxy.
    Bridge {
        /// stage2 passes its listener to the proxy and nothing stays resident.
        #[default]
        Handoff = "handoff",
        /// stage2 leaves a process behind that copies each connection to the bind-mounted socket.
        Relay = "relay",
    }

    /// What a stage may connect to on the loopback of its sandbox.
    Loopback {
        /// The proxy, and whatever the stage serves there itself.
        #[default]
        Own = "own",
        /// The proxy alone, and the stage cannot listen on any TCP port: a second layer, by Landlock, behind the empty
        /// network namespace. Takes Linux 6.7.
        Proxy = "proxy",
    }

    /// Whether a stage has Unix sockets.
    UnixSockets {
        /// Where no socket of the host's can be reached by its path.
        #[default]
        Auto = "auto",
        /// Always. Sockets of the host's that are in sight can then be connected to. Counts as `Auto` below a ceiling.
        On = "on",
        /// Never, but for connected pairs.
        Off = "off",
    }

    /// What a stage gets instead of the caller's terminal.
    Tty {
        /// A terminal of the sandbox's own, where standard input and output both are the caller's controlling terminal, and
        /// the caller is in its foreground. Otherwise as [`Tty::Off`].
        #[default]
        Auto = "auto",
        /// The caller's streams as they are, in a session that has no terminal.
        Off = "off",
    }

    /// Whether programs that ignore the proxy variables are served.
    Transparent {
        /// Where this machine allows it, and nothing in the request speaks against it.
        #[default]
        Auto = "auto",
        /// Or the stage does not start.
        On = "on",
        /// No.
        Off = "off",
    }

    /// Where package managers keep what they download.
    Cache {
        /// A writable, persistent cache of exeat's own, one per working directory.
        Private = "private",
        /// A writable one of exeat's own on the disk, empty at the start and gone with the run.
        #[default]
        Run = "run",
        /// None: clients that need a cache write to the private `/tmp`, or fail.
        None = "none",
    }

    /// Where the stage's HOME is.
    Home {
        /// At the caller's path, of which the view shows what it shows of any directory.
        #[default]
        Caller = "caller",
        /// A writable directory in the cache, which lasts as long as that: see [`Cache`].
        Private = "private",
    }

    /// What an `exeat run` does that the stage starts.
    Nested {
        /// It is an error: a sandbox cannot be made inside a sandbox.
        #[default]
        Refuse = "refuse",
        /// It executes its command as it is, under this run's walls and none of its own.
        Pass = "pass",
    }

    /// What happens when a stage declares more than it is granted.
    OnExcess {
        /// Nothing runs.
        #[default]
        Refuse = "refuse",
        /// The stage runs with what it is granted.
        Narrow = "narrow",
    }
}

impl Cache {
    /// Whether it is a directory of exeat's on the disk.
    #[must_use]
    pub const fn is_on_disk(self) -> bool {
        matches!(self, Self::Private | Self::Run)
    }
}

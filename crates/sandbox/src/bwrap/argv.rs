//! Builds bubblewrap's arguments from a [`SandboxSpec`], and from what `/proc` has on this machine. A dry run prints what a run uses.
//!
//! The options reach bubblewrap through `--args FD`, NUL-separated. Its command line, which the stage can read in `/proc/1/cmdline`,
//! then contains none of them, and no path can be taken for an option.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use exeat_contract::{ASSEMBLY, CACHE, NOBODY, STAGE2};
use nix::unistd::geteuid;

use crate::spec::{Bytes, Identity, Mount, SandboxSpec};

/// Size of bubblewrap's own `/dev` in memory: it holds nodes, not data.
const DEV_SIZE: u64 = 1 << 20;

/// The list of keys (proc(5)), which has those of the caller.
const KEYS: &str = "/proc/keys";

/// Files below `/proc/1` that change how bubblewrap's pid 1 runs: its weight against other sessions (sched(7)), and walks of its page
/// tables. They belong to the stage's user.
const OF_PID_ONE: [&str; 3] = ["autogroup", "clear_refs", "task/1/clear_refs"];

/// Size of a directory that is there to be a mount point.
const PIN_SIZE: u64 = 1 << 20;

/// An argument for bubblewrap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// A literal argument.
    Text(OsString),
    /// The number of a descriptor from which bubblewrap reads these bytes.
    Data(Bytes),
    /// The number of the descriptor of the n-th seccomp program.
    Seccomp(usize),
    /// The number of the descriptor to which bubblewrap reports what it started.
    Info,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.display().fmt(f),
            Self::Data(bytes) => write!(f, "FD[{} bytes]", bytes.0.len()),
            Self::Seccomp(number) => write!(f, "FD[seccomp {number}]"),
            Self::Info => f.write_str("FD[info]"),
        }
    }
}

/// The options for `--args`, and the command after them.
#[derive(Debug, Clone)]
pub struct Argv {
    /// The options.
    pub options: Vec<Word>,
    /// stage2 with its argument.
    pub command: Vec<OsString>,
}

impl Argv {
    /// Builds the arguments for `spec` with `filters` seccomp programs: bubblewrap makes the file tree.
    #[must_use]
    pub fn new(spec: &SandboxSpec, filters: usize) -> Self {
        Self::with_tree(spec, filters, |argv| {
            for mount in &spec.mounts {
                argv.mount(mount, spec.identity);
            }
            argv.freeze(Path::new("/"));
        })
    }

    /// Builds the arguments for a file tree at [`ASSEMBLY`] that is complete except for `/proc`, which shows the sandbox's own processes.
    #[must_use]
    pub fn around_tree(spec: &SandboxSpec, filters: usize) -> Self {
        Self::with_tree(spec, filters, |argv| {
            // Each mount in it has its attributes. --bind would take the devices from `/dev`.
            argv.texts(&["--dev-bind", ASSEMBLY, "/"]);
            if spec.mounts.contains(&Mount::Proc) {
                argv.mount(&Mount::Proc, spec.identity);
            }
        })
    }

    fn with_tree(spec: &SandboxSpec, filters: usize, add_tree: impl FnOnce(&mut Self)) -> Self {
        let mut argv = Self {
            options: Vec::new(),
            command: vec![STAGE2.into(), spec.bridge.argument(spec.socks5).into()],
        };
        let nobody = NOBODY.to_string();
        // The network namespace is bubblewrap's own, with loopback only. --unshare-all includes the user namespace only as an option:
        // without it, a stage of root would keep its rights.
        argv.texts(&["--unshare-all", "--unshare-user", "--disable-userns"]);
        argv.texts(&["--uid", &nobody, "--gid", &nobody, "--cap-drop", "ALL"]);
        argv.texts(&["--die-with-parent", "--new-session"]);
        add_tree(&mut argv);
        for number in 0..filters {
            argv.text("--add-seccomp-fd").options.push(Word::Seccomp(number));
        }
        argv.text("--info-fd").options.push(Word::Info);
        argv
    }

    /// Counts the mounts that bubblewrap makes for these options. Each takes about 0.17 ms.
    #[must_use]
    pub fn mount_count(&self) -> usize {
        let is_mount = |word: &&Word| {
            let Word::Text(text) = word else { return false };
            ["--ro-bind", "--bind", "--tmpfs", "--ro-bind-data", "--proc", "--remount-ro"]
                .iter()
                .any(|option| text == option)
        };
        // --dev makes nine mounts: the tmpfs, six nodes, devpts and the console.
        let devs =
            self.options.iter().filter(|word| matches!(word, Word::Text(text) if text == "--dev")).count();
        self.options.iter().filter(is_mount).count() + devs * 9
    }

    fn mount(&mut self, mount: &Mount, identity: Identity) {
        match mount {
            Mount::ReadOnly { host, at } => self.text("--ro-bind").path(host).path(at),
            Mount::Writable { host, at } => self.text("--bind").path(host).path(at),
            Mount::Tmpfs { at, size, mode } => self.tmpfs(at, *size, *mode),
            Mount::Dir { at } => self.text("--dir").path(at),
            // bubblewrap cannot mount a directory of the sandbox over itself, and the private home has more than an empty one.
            Mount::Pin { at } if at.starts_with(CACHE) => self.text("--dir").path(at),
            Mount::Pin { at } => self.tmpfs(at, PIN_SIZE, 0o755),
            Mount::Symlink { target, at } => self.text("--symlink").path(target).path(at),
            Mount::File { at, bytes, mode } => {
                self.texts(&["--perms", &format!("{mode:04o}"), "--file"]).data(bytes).path(at)
            }
            Mount::CoverFile { at, bytes } => {
                self.texts(&["--perms", "0444", "--ro-bind-data"]).data(bytes).path(at)
            }
            Mount::Proc => self.proc(identity),
            Mount::Dev { shm } => self
                .texts(&["--dev", "/dev"])
                .tmpfs(Path::new("/dev/shm"), *shm, 0o1777)
                .freeze(Path::new("/dev")),
            Mount::Freeze { at } => self.freeze(at),
        };
    }

    fn proc(&mut self, identity: Identity) -> &mut Self {
        // When root starts bubblewrap, /proc/sys stays writable: core_pattern there runs a program on the host.
        self.texts(&["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]);
        if identity == Identity::Caller && geteuid().is_root() {
            // bubblewrap covers these if the directories are writable, and they never are: their files are.
            for settings in ["/proc/irq", "/proc/bus"] {
                self.texts(&["--ro-bind-try", settings, settings]);
            }
        }
        // A kernel may lack them.
        if Path::new(KEYS).exists() {
            self.cover(Path::new(KEYS));
        }
        for name in OF_PID_ONE {
            if Path::new("/proc/self").join(name.trim_start_matches("task/1/")).exists() {
                self.cover(&Path::new("/proc/1").join(name));
            }
        }
        self
    }

    /// Covers a file with an empty one.
    fn cover(&mut self, at: &Path) -> &mut Self {
        self.texts(&["--perms", "0444", "--ro-bind-data"]).data(&Bytes(Cow::Borrowed(&[]))).path(at);
        self
    }

    fn tmpfs(&mut self, at: &Path, size: u64, mode: u32) -> &mut Self {
        let size = size.max(DEV_SIZE.min(4096)).to_string();
        self.texts(&["--perms", &format!("{mode:04o}"), "--size", &size, "--tmpfs"]).path(at)
    }

    fn freeze(&mut self, at: &Path) -> &mut Self {
        self.text("--remount-ro").path(at)
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.options.push(Word::Text(text.into()));
        self
    }

    fn texts(&mut self, texts: &[&str]) -> &mut Self {
        self.options.extend(texts.iter().map(|text| Word::Text(text.into())));
        self
    }

    fn path(&mut self, path: &Path) -> &mut Self {
        self.options.push(Word::Text(path.into()));
        self
    }

    fn data(&mut self, bytes: &Bytes) -> &mut Self {
        self.options.push(Word::Data(bytes.clone()));
        self
    }
}

#[cfg(test)]
mod tests;

//! Describes why a path of a request cannot be used: the cause, and the fix.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use exeat_policy::shell_word;

use crate::protected::LetThrough;
use crate::walk::WalkError;

/// The use of a path of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathUse {
    /// A `--rw`, or a key like it.
    Writable,
    /// A `--ro`, or a key like it.
    ReadOnly,
    /// A `--mask`, or a key like it.
    Masked,
    /// A mask of a ceiling.
    CeilingMask,
    /// A policy, a ceiling or another file that decides about the run.
    Deciding,
    /// A path of a stage's declaration, with the name of the effect.
    Declared(&'static str),
    /// The directory that a stage sees as `/work`.
    WorkDirectory,
    /// The directory in which a stage starts.
    WorkingDirectory,
    /// A place in the sandbox.
    Inside,
    /// A tree of the view.
    Tree,
    /// The caller's HOME.
    Home,
    /// The directory in which exeat keeps records and keys.
    State,
    /// The record of the run.
    Record,
    /// The socket of another proxy.
    ProxySocket,
}

impl fmt::Display for PathUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Writable => "the writable path",
            Self::ReadOnly => "the read-only path",
            Self::Masked => "the masked path",
            Self::CeilingMask => "the path of a ceiling's mask",
            Self::Deciding => "the file that decides about this run",
            Self::Declared(effect) => return write!(f, "the path of the declared `{effect}`"),
            Self::WorkDirectory => "the work directory",
            Self::WorkingDirectory => "the working directory",
            Self::Inside => "as a place inside",
            Self::Tree => "a tree that is shown",
            Self::Home => "the home directory",
            Self::State => "the state directory",
            Self::Record => "the record",
            Self::ProxySocket => "the proxy's socket",
        })
    }
}

/// The reason that a view cannot be built as the request asks. The caller can change each by other words.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileFault {
    /// A path of the request does not exist or cannot be read.
    #[error("cannot use {what} `{}`", .path.display())]
    Path {
        /// The use of the path.
        what: PathUse,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A path leads elsewhere through a link that a stage could have made.
    #[error("{what} `{}` leads through the symbolic link `{}` to `{}`, and a stage could have made that link", .path.display(), .link.display(), .real.display())]
    StrayLink {
        /// The use of the path.
        what: PathUse,
        /// The path.
        path: PathBuf,
        /// The link.
        link: PathBuf,
        /// The target of the link.
        real: PathBuf,
    },
    /// A file that restricts the stage has another name, through which a stage could write to it.
    #[error("{what} `{}` has another name (a hard link), which a stage could have made", .path.display())]
    SecondName {
        /// The use of the file.
        what: PathUse,
        /// The path.
        path: PathBuf,
    },
    /// A host path belongs to the process file system, which would show the host's processes.
    #[error("{what} `{}` belongs to the process file system: a stage would see this machine's processes", .path.display())]
    Procfs {
        /// The use of the path.
        what: PathUse,
        /// The path.
        path: PathBuf,
    },
    /// A name in a protected directory should stay writable, but no writable tree contains it.
    #[error("`{name}` cannot be let through: it is not there, and `{}` is protected as a whole", .name.entry())]
    NothingToLetThrough {
        /// The name.
        name: LetThrough,
    },
    /// A file or directory has no place in the sandbox.
    #[error("{what} cannot be shown at `{}`: {why}", .at.display())]
    NoPlace {
        /// The file or directory.
        what: String,
        /// The place inside.
        at: PathBuf,
        /// The reason.
        why: String,
    },
    /// The stage declares more than it is granted; one thing at least.
    #[error("{}", excess_message(.excess))]
    Excess {
        /// What it would not get.
        excess: Vec<Excess>,
        /// Flags that show nothing, as the stage does not declare their paths, and without which it would get what it declares.
        idle: Vec<String>,
    },
}

/// Something that a stage declares and would not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    /// The declared host, path or kind, and the reason that it is not granted.
    pub said: String,
    /// The flag that grants it, if one can.
    pub flag: Option<String>,
    /// Whether the stage can run without it, if the caller wants that. It cannot run without a kind of effect.
    pub can_be_left_out: bool,
}

impl Excess {
    /// A path that nothing in the view shows, or not as a writable one, or that a ceiling does not allow.
    pub(crate) fn path(effect: &str, path: &Path, ceiling: Option<&str>) -> Self {
        let (flag, lacking) = match effect {
            FS_WRITE => ("--rw", "nothing makes it writable"),
            _ => ("--ro", "nothing shows it"),
        };
        let why =
            ceiling.map_or_else(|| lacking.to_owned(), |ceiling| format!("{ceiling} does not allow it"));
        let path = path.display().to_string();
        Self {
            said: format!("effect:{effect}: `{path}`: {why}"),
            flag: ceiling.is_none().then(|| format!("{flag} {}", shell_word(&path))),
            can_be_left_out: true,
        }
    }
}

/// The name of the effect of reading below a path.
pub(crate) const FS_READ: &str = "FsRead";
/// The name of the effect of writing below a path.
pub(crate) const FS_WRITE: &str = "FsWrite";

/// Returns the error for a declaration with these excesses.
pub fn excess_message(excess: &[Excess]) -> String {
    let listed = match excess {
        [one] => format!(" {}", one.said),
        all => all.iter().map(|one| format!("\n  {}", one.said)).collect(),
    };
    format!("the stage declares more than it is granted:{listed}")
}

/// Returns what to do about these excesses.
pub fn excess_hint(excess: &[Excess]) -> Option<String> {
    let it = if excess.len() == 1 { "it" } else { "them" };
    let flags: Vec<&str> = excess.iter().filter_map(|one| one.flag.as_deref()).collect();
    let granted = if flags.len() == excess.len() { it } else { "what a flag can" };
    let grants = (!flags.is_empty()).then(|| format!("{} grants {granted}", flags.join(" ")));
    let without = excess.iter().all(|one| one.can_be_left_out);
    let without = without.then(|| format!("--set effects.on_excess=narrow runs without {it}"));
    let hints: Vec<_> = grants.into_iter().chain(without).collect();
    (!hints.is_empty()).then(|| hints.join("; "))
}

/// Returns what makes paths that are to be writable and do not exist. Whether they are files is not known.
#[must_use]
pub fn making_hint(paths: &[&PathBuf]) -> String {
    let words = |paths: BTreeSet<&Path>| -> String {
        paths.iter().map(|path| format!(" {}", shell_word(&path.display().to_string()))).collect()
    };
    let all = words(paths.iter().map(|path| path.as_path()).collect());
    let dirs = words(paths.iter().filter_map(|path| path.parent()).collect());
    format!("mkdir -p{all} for a directory, mkdir -p{dirs} && touch{all} for a file")
}

impl FileFault {
    /// Reports why a path cannot be used.
    #[must_use]
    pub fn from_walk(what: PathUse, path: &Path, error: WalkError) -> Self {
        let path = path.to_path_buf();
        match error {
            WalkError::Link { link, end: real } => Self::StrayLink { what, path, link, real },
            WalkError::Io(source) => Self::Path { what, path, source },
        }
    }

    /// Returns the fault and its cause in one line.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Path { source, .. } => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }

    /// Returns a command or change that fixes it, if one is known.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        Some(match self {
            Self::Path { what: PathUse::Writable, path, source }
                if source.kind() == io::ErrorKind::NotFound =>
            {
                format!("{}; or leave it out", making_hint(&[path]))
            }
            // An empty directory instead of an input would pass for one without data.
            Self::Path { what: PathUse::ReadOnly, source, .. }
                if source.kind() == io::ErrorKind::NotFound =>
            {
                "check the path; or leave it out".into()
            }
            Self::Path { .. } => return None,
            Self::StrayLink { real, .. } => {
                format!(
                    "if that is meant, write `{}` instead; `:DEST` gives it a place inside",
                    real.display()
                )
            }
            Self::SecondName { path, .. } => {
                let word = shell_word(&path.display().to_string());
                format!("copy it to a file of its own: cp {word} {word}.new && mv {word}.new {word}")
            }
            Self::Procfs { .. } => "leave it out: the stage has a `/proc` of its own".into(),
            Self::NothingToLetThrough { name } => format!(
                "make it first, without links; or --allow-write {} lets all of that through",
                shell_word(name.entry())
            ),
            Self::NoPlace { at, .. } if at == Path::new("/") => {
                "--fs host shows the whole tree, read-only".into()
            }
            Self::NoPlace { .. } => {
                "give it a place of its own, such as `:/mnt/NAME`, or name one without links".into()
            }
            Self::Excess { idle, .. } if !idle.is_empty() => {
                let them = if idle.len() == 1 { "it" } else { "them" };
                format!(
                    "leave {} out: the stage does not declare {them}, and without {them} it gets what it declares",
                    idle.join(" ")
                )
            }
            Self::Excess { excess, .. } => return excess_hint(excess),
        })
    }
}

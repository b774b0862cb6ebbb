//! Describes why a path of a request cannot be used: the cause, and the fix.

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
    /// The stage declares paths that it would not get; one at least.
    #[error("{}", lines(.0))]
    Ungranted(Vec<UngrantedPath>),
}

/// A path that a stage declares and would not get.
#[derive(Debug, thiserror::Error)]
#[error("the stage declares `{effect}` `{}`, and {}", .path.display(), lacking(.effect, .ceiling.as_deref()))]
pub struct UngrantedPath {
    /// The effect.
    pub effect: &'static str,
    /// The path.
    pub path: PathBuf,
    /// The ceiling that does not allow it, if that is the reason.
    pub ceiling: Option<String>,
}

impl UngrantedPath {
    /// Returns the flag that grants it, if one can.
    fn flag(&self) -> Option<String> {
        let flag = if self.effect == FS_WRITE { "--rw" } else { "--ro" };
        self.ceiling.is_none().then(|| format!("{flag} {}", self.path.display()))
    }
}

/// The name of the effect of reading below a path.
pub(crate) const FS_READ: &str = "FsRead";
/// The name of the effect of writing below a path.
pub(crate) const FS_WRITE: &str = "FsWrite";

/// Returns the hint for a declaration with `count` excesses, of which these flags grant all, or those that `part` describes.
pub fn excess_hint(flags: &[String], count: usize, part: &str) -> String {
    let it = if count == 1 { "it" } else { "them" };
    let without = format!("--set effects.on_excess=narrow runs without {it}");
    match flags.len() {
        0 => without,
        some if some == count => format!("{} grants {it}; {without}", flags.join(" ")),
        _ => format!("{} grants {part}; {without}", flags.join(" ")),
    }
}

fn lines(paths: &[UngrantedPath]) -> String {
    paths.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn lacking(effect: &str, ceiling: Option<&str>) -> String {
    match ceiling {
        Some(ceiling) => format!("{ceiling} does not allow it"),
        None if effect == FS_WRITE => "nothing makes it writable".into(),
        None => "nothing shows it".into(),
    }
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
                format!("mkdir -p {}; or leave it out", path.display())
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
            Self::Ungranted(paths) => {
                let flags: Vec<_> = paths.iter().filter_map(UngrantedPath::flag).collect();
                excess_hint(&flags, paths.len(), "what nothing shows")
            }
        })
    }
}

//! The request for a view: the paths that a stage may see and change, as the caller and the ceilings name them, before the host is
//! read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use exeat_policy::{Cache, Home, View, printable};

use crate::fault::Excess;
use crate::protected::LetThrough;

/// The request for a view of the host's files.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// The base view.
    pub view: View,
    /// Additional read-only binds.
    pub ro: Vec<Bind>,
    /// Additional writable binds.
    pub rw: Vec<Bind>,
    /// Paths that the stage must not see, files or directories.
    pub mask: Vec<PathBuf>,
    /// The package caches.
    pub cache: Cache,
    /// The stage's HOME. A private one needs a cache.
    pub home: Home,
    /// Protected names that are writable, and neither watched nor moved aside; `.git`: all that git obeys in repositories.
    /// Recorded in the plan.
    pub allow_write: Vec<LetThrough>,
    /// The bounds of the ceilings. All of them apply.
    pub bounds: Vec<Bounds>,
    /// The paths that the stage declared, if they bound the binds.
    pub declared: Option<Declared>,
    /// A separate directory in which the stage starts, instead of in the working directory.
    pub work: Option<WorkDir>,
    /// Files that decided about this run, such as its policy, as the caller named them: read-only to the stage. Absolute.
    pub deciding: Vec<PathBuf>,
    /// Directories of exeat's settings, which may be missing: the stage neither changes nor makes them. Absolute.
    pub settings: Vec<PathBuf>,
}

/// What a stage says it needs: its files, and what else it declares and would not get. A path that nothing in the view shows is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// Absolute paths that the stage reads.
    pub read: Vec<PathBuf>,
    /// Absolute paths that the stage reads and writes.
    pub write: Vec<PathBuf>,
    /// Run with fewer files, and say so, instead of refusing.
    pub narrow: bool,
    /// What is refused besides files: kinds and hosts. One fault names it together with the files, which are known with the view.
    pub beyond: Vec<Excess>,
    /// Whether the binds are these paths, because nothing else grants any.
    pub grants: bool,
    /// Flags that grant paths in place of the declaration, which would grant without them.
    pub instead: Vec<String>,
    /// The file that declares, or the flag.
    pub name: String,
}

impl Declared {
    /// Returns the declared paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.read.iter().chain(&self.write)
    }

    /// Whether a path, or what it leads to, is declared.
    pub(crate) fn covers(&self, path: &Path) -> bool {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        self.paths().any(|declared| real(path).starts_with(real(declared)))
    }

    /// The declaration in a message.
    pub(crate) fn shown(&self) -> String {
        printable(&self.name)
    }
}

/// The place of [`WorkDir`] in the sandbox.
pub const WORK: &str = "/work";

/// The directory [`WORK`] of a stage. It is the stage's HOME too, and where it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkDir {
    /// Empty, private, writable, and gone with the run.
    Scratch,
    /// A directory of the host, writable except for its protected paths.
    Host(PathBuf),
}

/// A path of the host shown at a path in the sandbox. Both absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// The path on the host.
    pub host: PathBuf,
    /// The path in the sandbox.
    pub guest: PathBuf,
}

/// A ceiling's word on files and variables. What is absent limits nothing; an empty list allows nothing. Paths are absolute
/// and mean what they lead to; a listed path that does not exist allows nothing.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// The ceiling's file, for the reader of a note.
    pub name: String,
    /// The widest view.
    pub view: Option<View>,
    /// The paths that binds and the working directory may show, together with [`rw`](Self::rw). The view's own trees are not bounded.
    pub ro: Option<Vec<PathBuf>>,
    /// The paths that may be writable.
    pub rw: Option<Vec<PathBuf>>,
    /// Paths that no view, bind or working directory shows. Those that do not exist are skipped.
    pub mask: Vec<PathBuf>,
    /// The protected names that are let through at most, with what lies in them.
    pub allow_write: Option<Vec<LetThrough>>,
    /// The variables that may be passed or set besides the standard ones.
    pub env: Option<Vec<OsString>>,
}

impl Bounds {
    /// With every path put in its place.
    #[must_use]
    pub fn placed(&self, place: impl Fn(&Path) -> PathBuf) -> Self {
        let all = |paths: &[PathBuf]| paths.iter().map(|path| place(path)).collect();
        Self {
            ro: self.ro.as_deref().map(all),
            rw: self.rw.as_deref().map(all),
            mask: all(&self.mask),
            ..self.clone()
        }
    }

    /// Whether a protected name may be let through.
    #[must_use]
    pub fn allows_write(&self, name: &LetThrough) -> bool {
        let is_listed = |list: &Vec<LetThrough>| list.iter().any(|listed| name.is_in(listed));
        self.allow_write.as_ref().is_none_or(is_listed)
    }

    /// The ceiling in a note.
    #[must_use]
    pub fn label(&self) -> String {
        format!("the ceiling `{}`", self.name)
    }
}

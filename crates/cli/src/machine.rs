//! What of the machine the meaning of arguments depends on, and the files that arguments name.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use exeat_files::walk::{LinkRule, clean, cwd_by_name};
use exeat_policy::file::{BindSpec, PathSpec};
use exeat_runner::Bind;

use crate::env_vars;
use crate::failure::Failure;

/// The machine as a command finds it.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// Absolute, as the kernel says it: without symbolic links.
    pub(crate) cwd: PathBuf,
    /// The same as the shell that led here names it, links included: where relative paths begin. A link on that way is judged like
    /// any other.
    pub(crate) base: PathBuf,
    /// Our own environment.
    pub(crate) env: BTreeMap<OsString, OsString>,
    /// The files that were read to decide about a run.
    pub(crate) deciding: RefCell<Vec<PathBuf>>,
    /// The link rule, once it is asked for.
    pub(crate) links: OnceCell<LinkRule>,
}

/// Why a path of an argument or a file has no place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    /// `~` without a home.
    #[error("`~` is HOME, and HOME is not set to an absolute path")]
    NoHome,
}

impl Machine {
    /// This one.
    pub(crate) fn here() -> Result<Self, Failure> {
        let cwd = std::env::current_dir()
            .map_err(|error| Failure::could("cannot tell the working directory").because(error))?;
        let pwd = std::env::var_os("PWD");
        let base = pwd.as_deref().and_then(|pwd| cwd_by_name(pwd, &cwd)).unwrap_or(&cwd).to_path_buf();
        let env = std::env::vars_os().collect();
        Ok(Self { cwd, base, env, deciding: RefCell::default(), links: OnceCell::new() })
    }

    /// Which links a path of this caller's may lead through.
    pub(crate) fn links(&self) -> &LinkRule {
        let new = || LinkRule::new(&self.home_or_database(), self.directory("XDG_RUNTIME_DIR").as_deref());
        self.links.get_or_init(new)
    }

    /// Notes the file that a descriptor is, if it is one: it decides about a run.
    pub(crate) fn note_descriptor(&self, n: i32) {
        let end = self.links().walk(&PathBuf::from(format!("/proc/self/fd/{n}")));
        self.deciding.borrow_mut().extend(end.ok().filter(|end| end.real.is_file()).map(|end| end.real));
    }

    /// Opens a file that decides about a run: a policy, an effects file, a ceiling, a list of rules, a lock. The run keeps it
    /// from the stage.
    pub(crate) fn open_deciding(&self, path: &Path) -> io::Result<File> {
        let path = self.base.join(path);
        let end = self.links().walk(&path)?;
        // Whoever opens a named pipe waits for a writer, and a stage may have made it. One that was passed has no name.
        if end.metadata()?.file_type().is_fifo() && end.real.symlink_metadata().is_ok() {
            return Err(io::Error::other("it is a named pipe; pass its content by a descriptor (/dev/fd/N)"));
        }
        let file = end.read()?;
        if file.metadata()?.is_file() {
            self.deciding.borrow_mut().push(path);
        }
        Ok(file)
    }

    /// The path from here on, without `.` in it; links and `..` stay as they are.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.base.join(path).components().collect()
    }

    /// The user's configuration directory (XDG Base Directory Specification). Without HOME the user database says where it is:
    /// an unset variable must not lift the ceiling in it.
    pub(crate) fn config(&self) -> PathBuf {
        self.directory(env_vars::XDG_CONFIG_HOME).unwrap_or_else(|| self.home_or_database().join(".config"))
    }

    /// The directory of the private caches.
    pub(crate) fn caches(&self) -> PathBuf {
        let base = self.directory("XDG_CACHE_HOME");
        base.unwrap_or_else(|| self.home_or_database().join(".cache")).join("exeat")
    }

    /// HOME, or what the user database says.
    pub(crate) fn home_or_database(&self) -> PathBuf {
        exeat_runner::home_of(self.env.get(OsStr::new(env_vars::HOME)).map(OsString::as_os_str))
    }

    fn home(&self) -> Option<PathBuf> {
        self.directory(env_vars::HOME)
    }

    fn directory(&self, variable: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.env.get(&OsString::from(variable))?);
        path.is_absolute().then_some(path)
    }

    /// A bind with both paths absolute. The guest's path holds no `..`: bubblewrap would take it by its letters.
    pub(crate) fn place_bind(&self, bind: &BindSpec, base: &Path) -> Result<Bind, PlaceError> {
        let host = self.place(&bind.host, base)?;
        let guest = match &bind.guest {
            Some(guest) => self.place(guest, base)?,
            None => host.clone(),
        };
        Ok(Bind { host, guest: clean(&guest) })
    }

    /// A path of a policy, absolute; relative ones start at `base`.
    pub(crate) fn place(&self, path: &PathSpec, base: &Path) -> Result<PathBuf, PlaceError> {
        Ok(match path {
            PathSpec::Absolute(path) => PathBuf::from(path),
            PathSpec::Home(below) if below.is_empty() => self.home().ok_or(PlaceError::NoHome)?,
            PathSpec::Home(below) => self.home().ok_or(PlaceError::NoHome)?.join(below),
            PathSpec::Relative(path) => base.join(path).components().collect(),
        })
    }
}

//! Resolves paths in arguments against this machine, and opens the files that arguments name.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use exeat_files::quarantine::Live;
use exeat_files::request::Bind;
use exeat_files::users::{home_of, walk_home};
use exeat_files::walk::{LinkRule, clean, cwd_by_name};
use exeat_policy::file::{BindSpec, PathSpec};
use exeat_policy::printable;

use crate::fault::Fault;
use crate::named::{SITE_CEILING, USER_CEILING};

/// The operations of a machine that the runner carries out.
#[derive(Debug, Clone, Copy)]
pub struct Calls {
    /// Takes over the descriptor with this number, so that no stage inherits it.
    pub take_fd: fn(RawFd) -> io::Result<OwnedFd>,
    /// Adds the runs that are not settled, for a caller with this environment.
    pub read_runs: fn(&BTreeMap<OsString, OsString>, &mut Live),
}

/// The directories and variables that arguments are resolved against.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The absolute working directory from the kernel, without symbolic links.
    pub cwd: PathBuf,
    /// The working directory as `PWD` names it, links included. Relative paths start here, and the link rule applies to its links.
    pub base: PathBuf,
    /// The environment of this process.
    pub env: BTreeMap<OsString, OsString>,
    /// The files that were read to decide about a run.
    deciding: RefCell<Vec<PathBuf>>,
    /// The home directory, found on first use.
    home: OnceCell<PathBuf>,
    /// The link rule, computed on first use.
    links: OnceCell<LinkRule>,
    calls: Calls,
}

/// The reason that a path of an argument or a file cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The path starts with `~`, and `HOME` is not set to an absolute path.
    #[error("`~` is HOME, and HOME is not set to an absolute path")]
    NoHome,
}

impl Machine {
    /// Describes the machine that this process runs on.
    ///
    /// # Errors
    /// Returns a [`Fault`] where the working directory does not exist any more.
    pub fn here(calls: Calls) -> Result<Self, Fault> {
        let cwd = std::env::current_dir().map_err(|error| {
            Fault::machine("cannot find the working directory")
                .because(error)
                .hint("change to a directory that exists: cd DIR")
        })?;
        let pwd = std::env::var_os("PWD");
        let base = pwd.as_deref().and_then(|pwd| cwd_by_name(pwd, &cwd)).unwrap_or(&cwd).to_path_buf();
        Ok(Self { base, ..Self::new(cwd, std::env::vars_os().collect(), calls) })
    }

    /// Creates one with this working directory and these variables.
    #[must_use]
    pub fn new(cwd: PathBuf, env: BTreeMap<OsString, OsString>, calls: Calls) -> Self {
        let (deciding, home, links) = Default::default();
        Self { base: cwd.clone(), cwd, env, deciding, home, links, calls }
    }

    /// Takes over an inherited descriptor, so that no stage inherits it.
    ///
    /// # Errors
    /// Returns a [`Fault`] where it is not open.
    pub fn take_fd(&self, flag: &str, n: RawFd) -> Result<OwnedFd, Fault> {
        (self.calls.take_fd)(n).map_err(|error| descriptor_not_open(flag, n, error))
    }

    /// Adds the runs of this user that are not settled now.
    pub(crate) fn read_runs(&self, runs: &mut Live) {
        (self.calls.read_runs)(&self.env, runs);
    }

    /// Returns the files that were read to decide about a run.
    pub fn take_deciding(&self) -> Vec<PathBuf> {
        self.deciding.take()
    }

    /// Returns the rule for links on the caller's paths.
    pub fn links(&self) -> &LinkRule {
        let new = || LinkRule::new(&self.home_or_database(), self.directory("XDG_RUNTIME_DIR").as_deref());
        self.links.get_or_init(new)
    }

    /// Notes the file behind a descriptor, if there is one, as deciding about a run.
    pub(crate) fn note_descriptor(&self, n: i32) {
        let end = self.links().walk(&PathBuf::from(format!("/proc/self/fd/{n}")));
        self.deciding.borrow_mut().extend(end.ok().filter(|end| end.real.is_file()).map(|end| end.real));
    }

    /// Opens a file that decides about a run: a policy, an effects file, a ceiling, a list of rules, a lock. The run hides it from
    /// the stage.
    pub(crate) fn open_deciding(&self, path: &Path) -> io::Result<File> {
        let path = self.base.join(path);
        let end = self.links().walk(&path)?;
        let file = end.read()?;
        if file.metadata()?.is_file() {
            self.deciding.borrow_mut().push(path);
        }
        Ok(file)
    }

    /// Makes a path absolute and removes `.` from it; links and `..` stay.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        self.base.join(path).components().collect()
    }

    /// Returns the user's configuration directory (XDG Base Directory Specification). Without HOME the user database names it: an
    /// unset variable must not lift the ceiling in it.
    pub fn config(&self) -> PathBuf {
        self.directory("XDG_CONFIG_HOME").unwrap_or_else(|| self.home_or_database().join(".config"))
    }

    /// Returns the directories of exeat's settings, also those of the user in an environment without XDG_CONFIG_HOME.
    pub(crate) fn settings(&self) -> Vec<PathBuf> {
        let users =
            [self.config().join(USER_CEILING), self.home_or_database().join(".config").join(USER_CEILING)];
        let ceilings = users.into_iter().chain([PathBuf::from(SITE_CEILING)]);
        ceilings.filter_map(|ceiling| ceiling.parent().map(Path::to_path_buf)).collect()
    }

    /// Returns the directory of the private caches.
    pub fn caches(&self) -> PathBuf {
        let base = self.directory("XDG_CACHE_HOME");
        base.unwrap_or_else(|| self.home_or_database().join(".cache")).join("exeat")
    }

    /// Returns HOME, or the home directory of the user database.
    pub fn home_or_database(&self) -> PathBuf {
        let find = || home_of(self.env.get(OsStr::new("HOME")).map(OsString::as_os_str));
        self.home.get_or_init(find).clone()
    }

    /// Refuses a home directory behind a link that a stage could have made.
    pub(crate) fn check_home(&self) -> Result<(), Fault> {
        let checked = walk_home(self.env.get(OsStr::new("HOME")).map(OsString::as_os_str));
        checked.map(drop).map_err(|(home, link)| {
            let shown = printable(&home.display().to_string());
            Fault::input(format!("cannot use the home directory `{shown}`")).because(link)
        })
    }

    fn home(&self) -> Option<PathBuf> {
        self.directory("HOME")
    }

    fn directory(&self, variable: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.env.get(&OsString::from(variable))?);
        path.is_absolute().then_some(path)
    }

    /// Makes both paths of a bind absolute. The guest's path keeps no `..`, which bubblewrap would not resolve.
    pub fn place_bind(&self, bind: &BindSpec, base: &Path) -> Result<Bind, PlaceError> {
        let host = self.place(&bind.host, base)?;
        let guest = match &bind.guest {
            Some(guest) => self.place(guest, base)?,
            None => host.clone(),
        };
        Ok(Bind { host, guest: clean(&guest) })
    }

    /// Makes a path of a policy absolute; relative ones start at `base`.
    pub fn place(&self, path: &PathSpec, base: &Path) -> Result<PathBuf, PlaceError> {
        Ok(match path {
            PathSpec::Absolute(path) => PathBuf::from(path),
            PathSpec::Home(below) if below.is_empty() => self.home().ok_or(PlaceError::NoHome)?,
            PathSpec::Home(below) => self.home().ok_or(PlaceError::NoHome)?.join(below),
            PathSpec::Relative(path) => base.join(path).components().collect(),
        })
    }
}

/// Reports a descriptor in an argument that was not open when exeat started.
pub fn descriptor_not_open(flag: &str, n: RawFd, error: io::Error) -> Fault {
    let fault = Fault::input(format!("`{flag} fd:{n}`: descriptor {n} is not open"));
    let fault = if error.kind() == io::ErrorKind::NotFound { fault } else { fault.because(error) };
    // The wrong sign would empty a file that is to be read.
    let sign = if matches!(flag, "--audit" | "--result" | "--output") { '>' } else { '<' };
    fault.hint(format!("open it for exeat: exeat run {flag} fd:{n} ... {n}{sign}FILE"))
}

//! The one walker for host paths, and the rule that says which symbolic links it follows.
//!
//! A stage can leave a symbolic link in each directory that it writes. A later run that names a path through such a link would
//! be led wherever the earlier stage wanted. So every host path is walked one name at a time, by descriptor, and each link on
//! the way is followed only where no stage of this caller can have made it, or where it leads nowhere that matters:
//!
//! - a system link: root's link in a directory that root alone writes. What a stage makes that root started is root's as well,
//!   so root follows them only in the system's own trees and directly below a few top directories;
//! - a link on a read-only mount;
//! - a link directly in the caller's home, or in one of its configuration directories: no stage can write there;
//! - a link whose end lies below the directory that holds the link (`current -> versions/20`);
//! - a link whose end lies in the same toolchain as the link (`bin/node -> ../Cellar/node/20/bin/node`).
//!
//! `/dev/fd/N` and `/proc/self/fd/N` mean the caller's own descriptors and are followed.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::geteuid;

use crate::listing::{Listing, lacks};
use crate::names::{is_same, true_name};
use crate::users::user_of;

/// The number of links that the kernel follows in one path (path_resolution(7)).
pub(crate) const MAX_LINKS: usize = 40;

/// Trees of the system. No stage writes there by default: a working directory in one of them is read-only.
const SYSTEM_TREES: [&str; 11] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/nix", "/gnu", "/snap"];

/// Directories in which root's own links are followed for root: directly in them, and no deeper.
const TOP_DIRECTORIES: [&str; 9] = ["/", "/dev", "/home", "/media", "/mnt", "/opt", "/run", "/srv", "/var"];

/// Directories below a home whose links are followed, directly in them. The home itself, written "", is one.
const CONFIGURATION: [&str; 18] = [
    "",
    ".cargo",
    ".config",
    ".config/exeat",
    ".config/systemd/user",
    ".gnupg",
    ".local",
    ".local/bin",
    ".local/lib",
    ".local/share",
    ".local/share/applications",
    ".local/share/fonts",
    ".local/state",
    ".local/state/fnm_multishells",
    ".local/state/nix",
    ".local/state/nix/profiles",
    ".rustup",
    ".ssh",
];

/// Roots of toolchains below a home, whose links lead around inside them.
const TOOLCHAINS: [&str; 23] = [
    ".asdf",
    ".bun",
    ".cargo",
    ".deno",
    ".fnm",
    ".goenv",
    ".jenv",
    ".linuxbrew",
    ".local/pipx",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".local/share/uv",
    ".nodenv",
    ".nvm",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman",
    ".volta",
    "anaconda3",
    "miniconda3",
];

/// Roots of toolchains at fixed places.
const SHARED_TOOLCHAINS: [&str; 3] = ["/home/linuxbrew/.linuxbrew", "/opt/homebrew", "/nix"];

/// The reason that a path was not followed to its end.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// A link on the way that a stage could have made.
    #[error("it leads through the symbolic link `{}`, which a stage could have made: write `{}` instead", link.display(), end.display())]
    Link {
        /// The link, by its real place.
        link: PathBuf,
        /// The end of the whole path: the caller can write this instead.
        end: PathBuf,
    },
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl WalkError {
    /// Whether nothing is at the path. Unlike [`is_absent`](crate::names::is_absent), this is false for links that lead in a circle: a
    /// caller who named such a path is told.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    }
}

impl From<WalkError> for io::Error {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Io(error) => error,
            link @ WalkError::Link { .. } => Self::other(link),
        }
    }
}

impl From<Errno> for WalkError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The end of a path: what stands there, held by a descriptor.
#[derive(Debug)]
pub struct End {
    /// Opened with `O_PATH`. What is judged and what is used later are the same file.
    pub file: OwnedFd,
    /// The path without links, as the kernel names it.
    pub real: PathBuf,
    /// The links that were followed, each by its real place.
    pub links: Vec<PathBuf>,
}

impl End {
    /// Describes what stands at the end.
    ///
    /// # Errors
    /// Returns errors of fstat(2).
    pub fn metadata(&self) -> io::Result<Metadata> {
        File::from(self.file.try_clone()?).metadata()
    }

    /// Opens the end for reading.
    ///
    /// # Errors
    /// Returns errors of open(2), and an error for a named pipe: to open one waits for a writer, and a stage may have made it. An inherited
    /// pipe has no name.
    pub fn read(&self) -> io::Result<File> {
        if self.metadata()?.file_type().is_fifo() && self.real.symlink_metadata().is_ok() {
            return Err(io::Error::other("it is a named pipe; pass its content by a descriptor (/dev/fd/N)"));
        }
        // A path opened with O_PATH is opened again through /proc (open(2), O_PATH).
        fs::OpenOptions::new().read(true).open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// A rule for the symbolic links that a caller's paths may lead through.
#[derive(Debug, Clone)]
pub struct LinkRule {
    caller: u32,
    home: PathBuf,
    /// The caller's runtime directory, where fnm keeps the links that it puts on PATH.
    runtime: Option<PathBuf>,
    /// Real paths of the directories in [`CONFIGURATION`], once one is asked for.
    configuration: OnceCell<Vec<PathBuf>>,
    /// Real paths of the roots in [`TOOLCHAINS`] and [`SHARED_TOOLCHAINS`], once one is asked for.
    toolchains: OnceCell<Vec<PathBuf>>,
    /// Trees that a stage could write once, once they are asked for.
    written: OnceCell<Vec<PathBuf>>,
    /// The file that lists them.
    written_file: PathBuf,
    /// Whether uid 65534 stands for owners that this user namespace does not map.
    has_unmapped: OnceCell<bool>,
}

impl LinkRule {
    /// Makes the rule for this process's user.
    ///
    /// `home` is the caller's home directory and `runtime` the value of XDG_RUNTIME_DIR, if it has one.
    #[must_use]
    pub fn new(home: &Path, runtime: Option<&Path>) -> Self {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
        let state = state.unwrap_or_else(|| home.join(".local/state"));
        Self {
            caller: geteuid().as_raw(),
            home: home.to_path_buf(),
            written_file: state.join("exeat/written"),
            runtime: runtime.filter(|dir| dir.is_absolute()).map(Path::to_path_buf),
            configuration: OnceCell::new(),
            toolchains: OnceCell::new(),
            written: OnceCell::new(),
            has_unmapped: OnceCell::new(),
        }
    }

    /// Makes the rule for the way to a home directory. It follows no link because of a home: a link must not make itself trusted.
    pub(crate) fn without_home() -> Self {
        let usual = user_of(geteuid()).ok().flatten().map_or_else(|| "/".into(), |user| user.dir);
        let (configuration, toolchains) = (OnceCell::from(Vec::new()), OnceCell::from(Vec::new()));
        Self { configuration, toolchains, ..Self::new(&usual, None) }
    }

    /// Makes the rule from this process's environment: HOME, or else what the user database says, and XDG_RUNTIME_DIR.
    #[must_use]
    pub fn from_env() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let known = || user_of(geteuid()).ok().flatten().map(|user| user.dir);
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        Self::new(&home.or_else(known).unwrap_or_else(|| "/".into()), runtime.as_deref())
    }

    /// Follows a path to its end. A relative path starts at the working directory.
    ///
    /// # Errors
    /// Returns [`WalkError::Link`] for a link that must not be followed, and errors of openat(2).
    pub fn walk(&self, path: &Path) -> Result<End, WalkError> {
        // A relative path begins where the caller's shell says that it is: a link on that way is judged like any other.
        let pwd = std::env::var_os("PWD").filter(|_| path.is_relative());
        let base = pwd.as_deref().and_then(|pwd| cwd_by_name(pwd, Path::new(".")));
        let path = &base.map_or_else(|| path.to_path_buf(), |base| base.join(path));
        let plain = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(plain);
        match openat2(AT_FDCWD, path, how) {
            Ok(file) => {
                let real = name_of(file.as_fd())?;
                return Ok(End { file, real, links: Vec::new() });
            }
            // Inside a run openat2(2) is refused like a system call that is not there; the error to report comes later.
            Err(Errno::ELOOP | Errno::ENOSYS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let path = &std::path::absolute(path)?;
        let mut walker = Walker { rule: self, links: Vec::new(), within: Vec::new() };
        let end = walker.resolve(Position::root()?, pieces(path)).map_err(|error| match error {
            WalkError::Link { link, end } => WalkError::Link { end: true_name(path).unwrap_or(end), link },
            other => other,
        })?;
        // A `..` after a link can lead out of what the link was trusted for.
        if let Some((link, _)) =
            walker.within.iter().find(|(_, tree)| end.path == *tree || !end.path.starts_with(tree))
        {
            return Err(WalkError::Link { link: link.clone(), end: end.path });
        }
        let real = name_of(end.file.as_fd())?;
        Ok(End { file: end.file, real, links: walker.links })
    }

    /// Follows the directory of a path whose last name may be missing or is to be replaced. That name is not followed if it
    /// is a link.
    ///
    /// # Errors
    /// Returns errors of [`walk`](Self::walk) for the directory.
    pub fn walk_parent(&self, path: &Path) -> Result<(End, OsString), WalkError> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::EISDIR.into());
        };
        let dir = if dir == Path::new("") { Path::new(".") } else { dir };
        Ok((self.walk(dir)?, name.to_owned()))
    }

    /// Follows a path as far as it exists, for a directory that is to be made.
    ///
    /// # Errors
    /// Returns errors of [`walk`](Self::walk) for the part that exists. A link to nothing is an error.
    pub fn walk_existing(&self, path: &Path) -> Result<End, WalkError> {
        let mut last = WalkError::from(Errno::ENOENT);
        for above in path.ancestors() {
            match self.walk(above) {
                Err(error) if error.is_absent() && !above.is_symlink() => last = error,
                end => return end,
            }
        }
        Err(last)
    }

    /// Opens a directory, and makes what is missing of it with this mode: name by name, each in the directory that was judged.
    ///
    /// # Errors
    /// Returns errors of [`walk`](Self::walk) for the part that exists, and of mkdirat(2).
    pub fn make_directory(&self, path: &Path, mode: Mode) -> Result<OwnedFd, WalkError> {
        let mut missing = Vec::new();
        for above in path.ancestors() {
            let above = if above == Path::new("") { Path::new(".") } else { above };
            match (self.walk(above), above.file_name()) {
                (Err(error), Some(name)) if error.is_absent() && !above.is_symlink() => missing.push(name),
                (end, _) => {
                    let mut dir = end?.file;
                    for name in missing.iter().rev() {
                        match mkdirat(&dir, *name, mode) {
                            Ok(()) | Err(Errno::EEXIST) => {}
                            Err(errno) => return Err(errno.into()),
                        }
                        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                        dir = openat(&dir, *name, flags, Mode::empty())?;
                    }
                    return Ok(dir);
                }
            }
        }
        Err(Errno::ENOENT.into())
    }

    /// Returns the real path of a file that may be missing, whose last name is not followed.
    ///
    /// # Errors
    /// Returns errors of [`walk_parent`](Self::walk_parent).
    pub fn place(&self, path: &Path) -> Result<PathBuf, WalkError> {
        self.walk_parent(path).map(|(dir, name)| dir.real.join(name))
    }

    /// Returns the real path of a file that may be missing, whose last name is followed. A link to nothing is an error.
    ///
    /// # Errors
    /// Returns errors of [`walk`](Self::walk).
    pub fn place_at_end(&self, path: &Path) -> Result<PathBuf, WalkError> {
        match self.walk(path) {
            Err(error) if error.is_absent() && !path.is_symlink() => self.place(path),
            end => end.map(|end| end.real),
        }
    }

    /// The directories in which links are followed because of where they lie. The second list is worked out when it is come to.
    fn trusted(&self) -> impl Iterator<Item = Trusted<'_>> {
        let system = SYSTEM_TREES.iter().map(|tree| Trusted { dir: Path::new(tree), by: By::System });
        let top = TOP_DIRECTORIES.iter().map(|dir| Trusted { dir: Path::new(dir), by: By::Top });
        let own = std::iter::once_with(|| self.configuration()).flatten();
        system.chain(top).chain(own.map(|dir| Trusted { dir, by: By::Caller }))
    }

    /// Whether a link may be followed, and if only its end makes it so, the tree that the whole path must stay in.
    fn judge(&self, dir: &Position, link: &FileStat, end: &Path) -> Result<Trust, Errno> {
        if fstatvfs(&dir.file)?.flags().contains(FsFlags::ST_RDONLY) {
            return Ok(Trust::Full);
        }
        let about = fstat(&dir.file)?;
        let is_root_s = self.is_root(link.st_uid) && self.is_root(about.st_uid);
        let root_alone_writes =
            about.st_mode & 0o002 == 0 && (about.st_mode & 0o020 == 0 || about.st_gid == 0);
        let is_own = |uid: u32| uid == self.caller || self.is_root(uid);
        let is_made_by = |by| match by {
            By::System | By::Top if self.caller == 0 => is_root_s && about.st_mode & 0o002 == 0,
            By::System => is_root_s,
            By::Top => false,
            By::Caller => is_own(link.st_uid) && is_own(about.st_uid),
        };
        let is_root_alone_s = self.caller != 0 && is_root_s && root_alone_writes;
        let is_trusted =
            is_root_alone_s || self.trusted().any(|it| is_made_by(it.by) && it.includes(&dir.path));
        if is_trusted && !self.written().iter().any(|tree| dir.path.starts_with(tree)) {
            return Ok(Trust::Full);
        }
        // In a directory like /tmp anybody can make a link; the kernel asks the same of it (proc_sys_fs(5), protected_symlinks).
        let is_shared = about.st_mode & 0o1002 == 0o1002;
        if is_shared && link.st_uid != self.caller && link.st_uid != about.st_uid {
            return Ok(Trust::None);
        }
        let is_below = |tree: &Path| end != tree && end.starts_with(tree);
        if is_below(&dir.path) && !self.may_pass(link.st_uid, &dir.path, end) {
            return Ok(Trust::None);
        }
        let toolchain = self.toolchains().iter().find(|root| dir.path.starts_with(root) && is_below(root));
        let below = is_below(&dir.path).then_some(&dir.path);
        Ok(below.or(toolchain).map_or(Trust::None, |tree| Trust::Within(tree.clone())))
    }

    /// Whether whoever made a link may enter what it leads to below its directory. Root's stage is another user and may not; what
    /// root shows is mounted by itself, past all that is closed on the way.
    fn may_pass(&self, maker: u32, dir: &Path, end: &Path) -> bool {
        self.caller != 0
            || end.ancestors().take_while(|part| *part != dir).all(|part| {
                let needed = if part.is_dir() { 0o005 } else { 0o004 };
                fs::symlink_metadata(part)
                    .is_ok_and(|about| about.uid() == maker || about.mode() & needed == needed)
            })
    }

    /// The directory of programs or settings that a directory is, or lies in. A stage that writes there could leave links that
    /// later paths are led through, and programs that are started later.
    #[must_use]
    pub fn kept_directory(&self, dir: &Path) -> Option<&Path> {
        let is_top = self.caller == 0 && TOP_DIRECTORIES.iter().any(|top| dir == Path::new(top));
        let known = TOP_DIRECTORIES.iter().map(Path::new).find(|top| is_top && dir == *top);
        let mut homes = self.configuration().iter().chain(self.toolchains()).map(PathBuf::as_path);
        known.or_else(|| homes.find(|known| dir.starts_with(known) && !self.home.starts_with(known)))
    }

    /// Notes trees that a stage is about to write, if links in them would be followed later. Rules that are made from then on do not
    /// follow these links.
    ///
    /// # Errors
    /// Returns errors of the file `written` in the state directory.
    pub fn note_written<'a>(&self, trees: impl IntoIterator<Item = &'a Path>) -> io::Result<()> {
        let is_trusted = |tree: &Path| self.trusted().any(|it| it.dir.starts_with(tree) || it.includes(tree));
        let known = self.written();
        let is_new = |tree: &&Path| is_trusted(tree) && !known.iter().any(|known| tree.starts_with(known));
        let mut lines = Vec::new();
        for tree in trees.into_iter().filter(is_new) {
            lines.extend_from_slice(tree.as_os_str().as_bytes());
            // A NUL ends each: no path holds one.
            lines.push(0);
        }
        if lines.is_empty() {
            return Ok(());
        }
        let flags = OFlag::O_NOFOLLOW.bits();
        let mut options = fs::OpenOptions::new();
        options
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(&self.written_file)?
            .write_all(&lines)
    }

    fn written(&self) -> &[PathBuf] {
        self.written.get_or_init(|| self.read_written())
    }

    /// Trees that a stage could write once, although links there would otherwise be followed.
    fn read_written(&self) -> Vec<PathBuf> {
        /// Bytes that are read: some thousand paths.
        const MOST: u64 = 1 << 20;
        let mut bytes = Vec::new();
        let flags = OFlag::O_NOFOLLOW.bits();
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(&self.written_file);
        match file.and_then(|file| file.take(MOST).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            // A list that cannot be read may name any tree.
            Err(_) => return vec!["/".into()],
        }
        let paths = bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect()
    }

    /// Whether a user id stands for root. An owner that this user namespace does not map counts as root: nobody in it can
    /// make files of that owner.
    fn is_root(&self, uid: u32) -> bool {
        const UNMAPPED: u32 = 65534;
        let has_unmapped = || {
            let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
            !map.split_whitespace().eq(["0", "0", "4294967295"])
        };
        uid == 0 || uid == UNMAPPED && *self.has_unmapped.get_or_init(has_unmapped)
    }

    fn configuration(&self) -> &[PathBuf] {
        self.configuration.get_or_init(|| {
            let homes = CONFIGURATION.iter().map(|name| self.home.join(name));
            let runtime = self.runtime.iter().map(|dir| dir.join("fnm_multishells"));
            homes.chain(runtime).filter_map(|dir| true_name(&dir).ok()).collect()
        })
    }

    fn toolchains(&self) -> &[PathBuf] {
        self.toolchains.get_or_init(|| {
            // Most are absent, and one list shows that.
            let names = Listing::read_path(&self.home);
            let homes = TOOLCHAINS
                .iter()
                .filter(|name| !lacks(names.as_ref(), name))
                .map(|name| self.home.join(name));
            let shared = SHARED_TOOLCHAINS.iter().map(PathBuf::from);
            homes.chain(shared).filter_map(|root| true_name(&root).ok()).collect()
        })
    }
}

/// A directory in which links are followed because of where they lie.
struct Trusted<'a> {
    dir: &'a Path,
    by: By,
}

/// Who must have made such a link.
#[derive(Clone, Copy)]
enum By {
    /// Root, in one of the [`SYSTEM_TREES`] at any depth.
    System,
    /// Root, directly in one of the [`TOP_DIRECTORIES`], and for root alone.
    Top,
    /// Root or the caller, directly in one of the [`CONFIGURATION`] directories.
    Caller,
}

impl Trusted<'_> {
    /// Whether links directly in this directory are meant.
    fn includes(&self, dir: &Path) -> bool {
        dir == self.dir || matches!(self.by, By::System) && dir.starts_with(self.dir)
    }
}

/// The ends that a link may lead to.
enum Trust {
    Full,
    /// The path's end must lie below this directory.
    Within(PathBuf),
    None,
}

/// A place on the way: its real path, and what stands there.
struct Position {
    path: PathBuf,
    file: OwnedFd,
}

impl Position {
    fn root() -> Result<Self, Errno> {
        let file =
            openat(AT_FDCWD, "/", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self { path: "/".into(), file })
    }

    fn enter(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        openat(&self.file, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
    }
}

/// A walk along one path.
struct Walker<'a> {
    rule: &'a LinkRule,
    /// The links that were followed.
    links: Vec<PathBuf>,
    /// Links that are trusted for their end alone, each with the tree that the path must stay in.
    within: Vec<(PathBuf, PathBuf)>,
}

impl Walker<'_> {
    /// Follows names from a place on; the last name comes first.
    fn resolve(&mut self, mut place: Position, mut left: Vec<PathBuf>) -> Result<Position, WalkError> {
        while let Some(name) = left.pop() {
            if name == Path::new("..") {
                // The descriptor knows its real parent, also where a bind mount lies between.
                let file = place.enter(OsStr::new(".."))?;
                place = Position { path: name_of(file.as_fd())?, file };
                continue;
            }
            let file = place.enter(name.as_os_str())?;
            let about = fstat(&file)?;
            if SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT != SFlag::S_IFLNK {
                place = Position { path: place.path.join(&name), file };
                continue;
            }
            let link = place.path.join(&name);
            if self.links.len() >= MAX_LINKS {
                return Err(Errno::ELOOP.into());
            }
            self.links.push(link.clone());
            if fstatfs(&place.file)?.filesystem_type() == PROC_SUPER_MAGIC {
                place = self.follow_in_proc(place, &name)?;
                continue;
            }
            let target = PathBuf::from(readlinkat(&file, "")?);
            let start = if target.is_absolute() {
                Position::root()?
            } else {
                Position { path: place.path.clone(), file: place.file.try_clone()? }
            };
            let end = self.resolve(start, pieces(&target))?;
            match self.rule.judge(&place, &about, &end.path)? {
                Trust::Full => {}
                Trust::Within(tree) => self.within.push((link, tree)),
                Trust::None => return Err(WalkError::Link { link, end: end.path }),
            }
            place = end;
        }
        Ok(place)
    }

    /// Follows a link of the process file system: names of this process, and what this process has open.
    fn follow_in_proc(&mut self, place: Position, name: &Path) -> Result<Position, WalkError> {
        let own = format!("/proc/{}", std::process::id());
        let is_own = place.path.starts_with(&own);
        let is_name = place.path == Path::new("/proc")
            && ["self", "thread-self", "mounts", "net"].iter().any(|known| name == Path::new(known));
        if is_name {
            let target = PathBuf::from(readlinkat(&place.file, name)?);
            return self.resolve(place, pieces(&target));
        }
        let link = place.path.join(name);
        if !is_own {
            return Err(WalkError::Link { end: leads_to(&link), link });
        }
        let file = openat(&place.file, name, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        // The name of a pipe or a socket is not a path.
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Position { path, file })
    }
}

/// The working directory as the shell that led here names it, if the value of PWD names it. Programs that change the directory
/// do not all set PWD: one that names another directory says nothing.
#[must_use]
pub fn cwd_by_name<'a>(pwd: &'a OsStr, cwd: &Path) -> Option<&'a Path> {
    Some(Path::new(pwd)).filter(|pwd| pwd.is_absolute() && is_same(pwd, cwd))
}

/// The name that the kernel has for what is open.
fn name_of(file: BorrowedFd<'_>) -> io::Result<PathBuf> {
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    // The kernel appends this to the name of what was removed.
    if name.as_os_str().as_bytes().ends_with(b" (deleted)") && true_name(&name).is_err() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(name)
}

/// Returns the end of a link as the kernel would follow it, for a message.
fn leads_to(path: &Path) -> PathBuf {
    true_name(path).or_else(|_| fs::read_link(path)).unwrap_or_else(|_| path.to_path_buf())
}

/// The names in a path, the last one first.
#[must_use]
pub fn pieces(path: &Path) -> Vec<PathBuf> {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    let mut parts: Vec<PathBuf> = parts.map(|part| PathBuf::from(part.as_os_str())).collect();
    parts.reverse();
    parts
}

/// A path by its words alone: without `.`, and each `..` with the name before it taken away.
#[must_use]
pub fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests;

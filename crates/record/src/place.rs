//! The default place of records: `exeat/runs` below the user's state directory.
//!
//! Reads no policy and prints nothing. Only the owner may read what it makes: directories have mode 0700, files 0600.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::sink::OpenError;
use crate::{RunId, Sink};

/// The letters of a run's name that give the millisecond of its start. With at least that many, no later run makes a short name ambiguous.
const SHORT: usize = 10;

/// The most runs that the error about an ambiguous prefix names.
const MAX_CANDIDATES: usize = 5;

/// The directory of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordDir {
    /// The user's state directory.
    base: PathBuf,
    /// The home directory, if the state directory is below it.
    home: Option<PathBuf>,
    /// `exeat/runs` in it.
    dir: PathBuf,
}

impl RecordDir {
    /// Finds the place from the values of `XDG_STATE_HOME` and `HOME`.
    ///
    /// Ignores a relative or empty `XDG_STATE_HOME` (XDG Base Directory Specification).
    pub fn from_env(xdg_state_home: Option<&OsStr>, home: Option<&OsStr>) -> Result<RecordDir, DirError> {
        let absolute = |value: Option<&OsStr>| value.map(PathBuf::from).filter(|path| path.is_absolute());
        let (base, home) = match absolute(xdg_state_home) {
            Some(base) => (base, None),
            None => {
                let home = absolute(home).ok_or(DirError::NoHome)?;
                (home.join(".local/state"), Some(home))
            }
        };
        Ok(RecordDir { dir: base.join("exeat/runs"), base, home })
    }

    /// Refuses a home directory that does not exist. Many service users have such a `HOME`.
    pub fn check_home(&self) -> Result<(), DirError> {
        self.home.as_deref().map_or(Ok(()), |home| metadata(home).map(drop))
    }

    /// Returns the directory of records, which need not exist yet.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the user's state directory, which need not exist yet.
    pub fn state_dir(&self) -> &Path {
        &self.base
    }

    /// Returns the path of a run's record.
    pub fn path_for(&self, run: RunId) -> PathBuf {
        self.dir.join(format!("{run}.jsonl"))
    }

    /// Makes the missing directories, and the empty record of a run.
    ///
    /// Refuses a directory that another user owns or may write to.
    pub fn create(&self, run: RunId) -> Result<(Sink, PathBuf), DirError> {
        self.prepare()?;
        let path = self.path_for(run);
        let sink = Sink::create_file(&path)?;
        Ok((sink, path))
    }

    /// Returns the path of the key that signs the records.
    pub fn key_path(&self) -> PathBuf {
        self.base.join("exeat/audit.key")
    }

    /// Returns the directory of the ledgers, which also has the key.
    pub fn ledger_dir(&self) -> PathBuf {
        self.base.join("exeat")
    }

    /// Makes the missing directories except the home directory, and refuses the same as [`RecordDir::create`].
    pub fn prepare(&self) -> Result<(), DirError> {
        self.check_home()?;
        make(&self.base, check_base)?;
        make(&self.base.join("exeat"), check_own)?;
        make(&self.dir, check_own)
    }

    /// Returns the paths of the records, the newest first.
    pub fn records(&self) -> Result<Vec<PathBuf>, DirError> {
        Ok(self.runs()?.into_iter().map(|run| self.path_for(run)).collect())
    }

    /// Returns the shortest names that identify the runs, each with at least 10 letters.
    pub fn short_names(&self) -> Result<BTreeMap<RunId, String>, DirError> {
        let runs: Vec<String> = self.runs()?.iter().map(RunId::to_string).collect();
        let common = |a: &str, b: Option<&String>| {
            b.map_or(0, |b| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count())
        };
        // They are sorted, so a run shares the longest prefix with the one before it or after it.
        let name = |(at, run): (usize, &String)| {
            let before = at.checked_sub(1).and_then(|at| runs.get(at));
            let shared = common(run, before).max(common(run, runs.get(at + 1)));
            let short = run.get(..SHORT.max(shared + 1)).unwrap_or(run).to_owned();
            Some((run.parse().ok()?, short))
        };
        Ok(runs.iter().enumerate().filter_map(name).collect())
    }

    /// Returns the newest record.
    pub fn last(&self) -> Result<PathBuf, DirError> {
        let newest =
            self.runs()?.into_iter().next().ok_or_else(|| DirError::Empty { dir: self.dir.clone() })?;
        Ok(self.path_for(newest))
    }

    /// Finds the record that `name` means: a run, the beginning of its name (in either case, if it is unique), or a path.
    ///
    /// A name with a `/` or a `.` is a path.
    pub fn find(&self, name: &str) -> Result<PathBuf, DirError> {
        let path = PathBuf::from(name);
        if name.contains(['/', '.']) {
            return Ok(path);
        }
        let prefix = name.to_ascii_uppercase();
        let mut found: Vec<RunId> = match prefix.is_empty() {
            true => Vec::new(),
            false => self.runs()?.into_iter().filter(|run| run.to_string().starts_with(&prefix)).collect(),
        };
        match (found.pop(), found.len()) {
            (Some(run), 0) => Ok(self.path_for(run)),
            (Some(last), others) => {
                let mut candidates: Vec<String> =
                    found.iter().take(MAX_CANDIDATES - 1).map(ToString::to_string).collect();
                candidates.push(last.to_string());
                let more = (others + 1).saturating_sub(candidates.len());
                Err(DirError::Ambiguous { name: name.to_owned(), candidates, more })
            }
            (None, _) if path.is_file() => Ok(path),
            (None, _) => Err(DirError::NotFound { name: name.to_owned(), dir: self.dir.clone() }),
        }
    }

    /// Returns the files of each run that has a record, the oldest first.
    pub fn stored_runs(&self) -> Result<Vec<StoredRun>, DirError> {
        let at = |source| DirError::Io { path: self.dir.clone(), source };
        let mut stored: Vec<StoredRun> = self
            .runs()?
            .into_iter()
            .rev()
            .map(|run| StoredRun { run, path: self.path_for(run), policies: Vec::new() })
            .collect();
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(_) if stored.is_empty() => return Ok(stored),
            Err(error) => return Err(at(error)),
        };
        for entry in entries {
            let name = entry.map_err(at)?.file_name();
            let run = name.to_str().and_then(run_of_policy);
            let at = run.and_then(|run| stored.binary_search_by_key(&run, |stored| stored.run).ok());
            if let Some(stored) = at.and_then(|at| stored.get_mut(at)) {
                stored.policies.push(self.dir.join(name));
            }
        }
        Ok(stored)
    }

    /// Returns the runs that have a policy here and no record, so their record was removed.
    pub fn runs_without_record(&self) -> Result<BTreeSet<RunId>, DirError> {
        let names = self.names()?;
        let mut runs: BTreeSet<RunId> =
            names.iter().filter_map(|name| name.to_str().and_then(run_of_policy)).collect();
        // A run makes its record before its policy, so a run that starts meanwhile has its record already.
        for run in self.runs()? {
            runs.remove(&run);
        }
        Ok(runs)
    }

    /// Returns the names of all runs, the newest first. A directory that does not exist has none.
    fn runs(&self) -> Result<Vec<RunId>, DirError> {
        let names = self.names()?;
        let mut runs: Vec<RunId> = names.iter().filter_map(|name| run_in_name(Path::new(name))).collect();
        runs.sort_unstable_by(|a, b| b.cmp(a));
        Ok(runs)
    }

    /// Returns the names in the directory. A directory that does not exist has none.
    fn names(&self) -> Result<Vec<OsString>, DirError> {
        let at = |source| DirError::Io { path: self.dir.clone(), source };
        match fs::read_dir(&self.dir) {
            Ok(entries) => entries.map(|entry| Ok(entry.map_err(at)?.file_name())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(at(error)),
        }
    }
}

/// Returns the run in the name of a stored policy.
fn run_of_policy(name: &str) -> Option<RunId> {
    let (run, rest) = name.split_once('.')?;
    let rest = rest.strip_suffix(".json")?;
    (rest == "policy" || is_reloaded(rest.strip_prefix("policy-")?)).then_some(run)?.parse().ok()
}

/// Returns the path of a record's effective policy: `run.policy.json` next to `run.jsonl`.
pub fn policy_path(record: &Path) -> PathBuf {
    if record.extension().is_some_and(|extension| extension == "jsonl") {
        return record.with_extension("policy.json");
    }
    let mut name = record.as_os_str().to_owned();
    name.push(".policy.json");
    PathBuf::from(name)
}

/// Returns the paths of a record's stored policies: the first policy of the run, then those that were read again, by name.
pub fn stored_policies(record: &Path) -> io::Result<Vec<PathBuf>> {
    let first = policy_path(record);
    let dir = first.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".json").unwrap_or(&name);
    let is_ours = |other: &str| {
        let digits = other.strip_prefix(stem)?.strip_prefix('-')?.strip_suffix(".json")?;
        is_reloaded(digits).then_some(())
    };
    let mut again = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().and_then(is_ours).is_some() {
            again.push(first.with_file_name(entry.file_name()));
        }
    }
    again.sort_unstable();
    let found = fs::symlink_metadata(&first).is_ok().then_some(first);
    Ok(found.into_iter().chain(again).collect())
}

/// Reads a stored policy. Returns `None` if the file does not exist.
pub fn read_policy(path: &Path) -> io::Result<Option<String>> {
    // A policy of ten thousand rules has one or two megabytes.
    const MOST: u64 = 64 * 1024 * 1024;
    let file = match OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > MOST {
        return Err(io::Error::other("not a file of at most 64 MiB"));
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Stores the canonical effective policy next to its record, in a new file of mode 0600. With `sync` the file is on the disk when
/// this returns, so that a record whose lines are synced does not lose its policy in a crash of the machine.
pub fn store_policy(record: &Path, canonical_json: &str, sync: bool) -> Result<PathBuf, DirError> {
    let path = policy_path(record);
    new_file(&path, |file| write_policy(file, &path, canonical_json, sync))
        .map_err(|source| DirError::Io { path: path.clone(), source })?;
    Ok(path)
}

/// Removes an empty record in the default place, and its policy. Its run could not write the first line, so the two describe no run.
pub fn remove_empty(record: &Path) {
    if fs::symlink_metadata(record).is_ok_and(|meta| meta.is_file() && meta.len() == 0) {
        let _ = fs::remove_file(policy_path(record));
        // If this fails, `exeat audit verify` reports a run that did not begin.
        let _ = fs::remove_file(record);
    }
}

/// Stores a policy that was read again next to its record, in the file `run.policy-DIGEST.json`, with the first
/// [`DIGITS`] digits of the policy's digest. Accepts a file that already has this policy. `sync` works as for [`store_policy`].
pub fn store_reloaded(
    record: &Path,
    policy_sha256: &str,
    canonical_json: &str,
    sync: bool,
) -> Result<PathBuf, DirError> {
    let path = reloaded_path(record, policy_sha256).ok_or_else(|| DirError::Io {
        path: record.to_owned(),
        source: io::Error::other("what it is to have its name from is no digest"),
    })?;
    let at = |source| DirError::Io { path: path.clone(), source };
    match new_file(&path, |file| write_policy(file, &path, canonical_json, sync)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let there = fs::read(&path).map_err(at)?;
            let same = there == canonical_json.as_bytes();
            if same { Ok(path.clone()) } else { Err(at(error)) }
        }
        stored => stored.map_err(at).map(|()| path.clone()),
    }
}

/// Returns the path of a policy that was read again: `run.policy-DIGEST.json` next to `run.jsonl`. Returns `None` for text that is not
/// a digest, because a record may say anything, and no part of a path may come from it.
pub fn reloaded_path(record: &Path, policy_sha256: &str) -> Option<PathBuf> {
    let digits = policy_sha256.get(..DIGITS).filter(|_| is_digest(policy_sha256))?;
    Some(policy_path(record).with_extension("").with_extension(format!("policy-{digits}.json")))
}

/// Returns whether this is a SHA-256 in hexadecimal.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Makes a new file that only its owner may read, complete or not at all: a part of a policy, left by a full disk, would block the next
/// attempt.
fn new_file(path: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)?;
    write(&file).inspect_err(|_| {
        // The first error says more than a second one would.
        let _ = fs::remove_file(path);
    })
}

/// Writes a policy. With `sync` also syncs the file and its name to the disk.
fn write_policy(mut file: &File, path: &Path, canonical_json: &str, sync: bool) -> io::Result<()> {
    file.write_all(canonical_json.as_bytes())?;
    match path.parent().filter(|_| sync) {
        Some(directory) => file.sync_data().and_then(|()| File::open(directory)?.sync_all()),
        None => Ok(()),
    }
}

/// The digits of a digest that distinguish the policies of one record.
pub const DIGITS: usize = 16;

fn is_reloaded(digits: &str) -> bool {
    digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The files of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredRun {
    /// The run.
    pub run: RunId,
    /// Its record.
    pub path: PathBuf,
    /// Its policies.
    pub policies: Vec<PathBuf>,
}

impl StoredRun {
    /// Returns the time of the last write to the record, or of the start of the run if that is later.
    pub fn last_written(&self) -> io::Result<SystemTime> {
        Ok(fs::symlink_metadata(&self.path)?.modified()?.max(self.run.created_at()))
    }

    /// Returns the bytes of the record and the policies.
    pub fn bytes(&self) -> u64 {
        let len = |path: &PathBuf| fs::symlink_metadata(path).map_or(0, |meta| meta.len());
        self.policies.iter().chain([&self.path]).map(len).sum()
    }

    /// Removes all files, the record last, so that an interrupted removal can be completed later.
    pub fn remove(&self) -> io::Result<()> {
        self.policies.iter().chain([&self.path]).try_for_each(|path| match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
    }
}

/// Returns the run in the name of a record in the default place.
pub fn run_in_name(path: &Path) -> Option<RunId> {
    let name = path.file_name()?.to_str()?.strip_suffix(".jsonl")?;
    name.parse().ok().filter(|run: &RunId| run.to_string() == name)
}

/// Makes a directory if it is missing, and checks it. Most are there.
fn make(dir: &Path, check: fn(&Path) -> Result<fs::Metadata, DirError>) -> Result<(), DirError> {
    match check(dir) {
        Ok(meta) if meta.is_dir() => return Ok(()),
        Err(DirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        // The error says that something else is there.
        Ok(_) => {}
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| DirError::Io { path: dir.to_owned(), source })?;
    check(dir).map(drop)
}

/// Checks a directory that existed before: only this user and root may replace files in it.
fn check_base(dir: &Path) -> Result<fs::Metadata, DirError> {
    const STICKY: u32 = 0o1000;
    let meta = metadata(dir)?;
    let owned = meta.uid() == geteuid().as_raw() || meta.uid() == 0;
    // Many systems make a user's directories writable for the user's own group, so that is accepted.
    if !owned || (meta.mode() & 0o002 != 0 && meta.mode() & STICKY == 0) {
        return Err(DirError::Unsafe { dir: dir.to_owned() });
    }
    Ok(meta)
}

/// Checks a directory of exeat: it and a link that leads to it belong to this user, and nobody else may write to it.
fn check_own(dir: &Path) -> Result<fs::Metadata, DirError> {
    let link = fs::symlink_metadata(dir).map_err(|source| DirError::Io { path: dir.to_owned(), source })?;
    let us = geteuid().as_raw();
    let is_ours = link.uid() == us;
    let meta = if link.is_symlink() { metadata(dir)? } else { link };
    if !is_ours || meta.uid() != us || meta.mode() & 0o022 != 0 {
        return Err(DirError::Unsafe { dir: dir.to_owned() });
    }
    Ok(meta)
}

fn metadata(path: &Path) -> Result<fs::Metadata, DirError> {
    fs::metadata(path).map_err(|source| DirError::Io { path: path.to_owned(), source })
}

/// The reason why a record was not made or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub enum DirError {
    /// Neither variable names a directory.
    #[error("no place for the record: set HOME or XDG_STATE_HOME, or name a file")]
    NoHome,
    /// Another user could change the records.
    #[error("`{}` belongs to another user or may be written to by others", .dir.display())]
    Unsafe { dir: PathBuf },
    /// The record could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The kernel refused.
    #[error("cannot use `{}`", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The directory has no record.
    #[error("no record in `{}`", .dir.display())]
    Empty { dir: PathBuf },
    /// No run has this name.
    #[error("no run `{name}` in `{}`", .dir.display())]
    NotFound { name: String, dir: PathBuf },
    /// The names of several runs begin with this.
    #[error("`{name}` is the beginning of several runs: {}{}", .candidates.join(", "), and_more(*.more))]
    Ambiguous {
        name: String,
        /// Some of these runs, the newest first.
        candidates: Vec<String>,
        /// The number of the others.
        more: usize,
    },
}

fn and_more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" and {count} more") }
}

#[cfg(test)]
mod tests;

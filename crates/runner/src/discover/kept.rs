//! Stores answers of clients for a day, because asking one takes seconds, and answers of clients that failed for ten minutes. An answer
//! is found by everything that it depends on: the program, the files and variables of settings, the rules and ceilings.
//!
//! The answers are in the state directory, which no stage sees.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use exeat_files::place::FilePlace;
use exeat_policy::Target;
use exeat_record::file;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::fingerprint::Fields;

/// The lifetime of an answer: a client's system files and an index may change unnoticed.
const AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// The lifetime of the answer of a client that failed: the reason may be a network or a registry that soon works again.
const FAILED_AGE: Duration = Duration::from_secs(10 * 60);
/// The maximal size of an answer: a few host names and lines.
const LENGTH: u64 = 64 << 10;
/// The maximal size of a compared settings file. With a longer one the client is asked each time.
const SETTINGS: u64 = 1 << 20;
/// The number of answers whose age is checked when one is stored.
const LISTED: usize = 256;
/// The files and directories of system settings for npm, pip and apt, compared by their times.
const SYSTEM: [&str; 7] = [
    "/etc/npmrc",
    "/usr/etc/npmrc",
    "/etc/pip.conf",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
    "/etc/apt/apt.conf",
    "/etc/apt/apt.conf.d",
];

/// The hosts that a client asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientHosts {
    pub(super) targets: Vec<Target>,
    /// Lines for the caller.
    pub(super) notes: Vec<String>,
    /// A line that explains why hosts may be missing; `None` where the client finished.
    pub(super) doubt: Option<String>,
}

/// An answer of a client: its hosts, or why it asked for none.
pub(super) type ClientAnswer = Result<ClientHosts, String>;

fn is_complete(given: &ClientAnswer) -> bool {
    matches!(given, Ok(ClientHosts { doubt: None, .. }))
}

/// A stored answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    /// The digest of the question: a file may have been renamed.
    question: String,
    /// Seconds since 1970.
    made: u64,
    /// Hosts with ports.
    targets: Vec<String>,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    doubt: Option<String>,
    /// Why the client asked for no host.
    #[serde(skip_serializing_if = "Option::is_none")]
    nothing: Option<String>,
}

/// The inputs that determine an answer.
#[derive(Debug)]
pub(super) struct Question(Fields);

impl Question {
    pub(super) fn new() -> Self {
        let mut it = Self(Fields::default());
        it.add("version", env!("CARGO_PKG_VERSION"));
        for path in SYSTEM {
            it.file(Path::new(path));
        }
        it
    }

    /// Adds a named value.
    pub(super) fn add(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.words(name, value.as_ref());
    }

    /// Adds the current state of a file or directory, by its times.
    pub(super) fn file(&mut self, path: &Path) {
        self.add("path", path);
        if let Ok(meta) = fs::metadata(path) {
            let (changed, status) = ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()));
            self.add("state", format!("{:?}", (meta.dev(), meta.ino(), meta.len(), changed, status)));
        }
    }

    /// Adds the content of a settings file.
    ///
    /// # Errors
    /// Returns errors of reading, and `FileTooLarge` above 1 MiB.
    pub(super) fn settings(&mut self, path: &Path) -> io::Result<()> {
        let mut text = Vec::new();
        file::open_linked(path)?.take(SETTINGS + 1).read_to_end(&mut text)?;
        if text.len() as u64 > SETTINGS {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.bytes("settings", &text);
        Ok(())
    }

    fn digest(&self) -> String {
        self.0.digest()
    }
}

/// The stored answers of one user.
#[derive(Debug)]
pub(super) struct Answers {
    dir: PathBuf,
}

impl Answers {
    /// Returns the store in a state directory.
    pub(super) fn in_state(state: &Path) -> Self {
        Self { dir: state.join("presets") }
    }

    fn place(&self, digest: &str) -> PathBuf {
        self.dir.join(format!("{digest}.json"))
    }

    /// The place of the answer of a client that failed, whose preset is in the name. A complete answer is not replaced by it.
    fn failed_place(&self, preset: &str, digest: &str) -> PathBuf {
        self.dir.join(format!("{}{digest}.json", failed_prefix(preset)))
    }

    /// Returns a complete answer less than a day old, or the answer of a client that failed less than ten minutes ago, and its age.
    pub(super) fn get(&self, question: &Question, preset: &str) -> Option<(ClientAnswer, Duration)> {
        let digest = question.digest();
        let complete = read(&self.place(&digest), &digest).filter(|(given, _)| is_complete(given));
        let failed =
            || read(&self.failed_place(preset, &digest), &digest).filter(|(given, _)| !is_complete(given));
        complete.filter(|(_, age)| *age < AGE).or_else(|| failed().filter(|(_, age)| *age < FAILED_AGE))
    }

    /// Stores an answer. If that fails, the client is asked again next time.
    pub(super) fn keep(&self, question: &Question, preset: &str, given: &ClientAnswer) {
        let digest = question.digest();
        let (targets, notes, doubt, nothing) = match given {
            Ok(ClientHosts { targets, notes, doubt }) => {
                (targets.as_slice(), notes.clone(), doubt.clone(), None)
            }
            Err(why) => (&[][..], Vec::new(), None, Some(why.clone())),
        };
        let targets = targets.iter().map(ToString::to_string).collect();
        let answer = Answer { question: digest.clone(), made: now(), targets, notes, doubt, nothing };
        let Ok(text) = serde_json::to_vec(&answer) else { return };
        if DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).is_err() {
            return;
        }
        self.remove(|_, age| age > AGE);
        let place = if is_complete(given) { self.place(&digest) } else { self.failed_place(preset, &digest) };
        let _ = FilePlace::open(&place).and_then(|place| place.write(&text));
    }

    /// Removes the answers of a preset's client that failed, whatever the configuration.
    pub(super) fn forget_failed(&self, preset: &str) {
        let prefix = failed_prefix(preset);
        self.remove(|name, _| name.starts_with(&prefix));
    }

    /// Removes the answers, known by name and age, for which this holds.
    fn remove(&self, is_over: impl Fn(&str, Duration) -> bool) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten().take(LISTED) {
            let changed = entry.metadata().and_then(|meta| meta.modified());
            let age = changed.ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
            if is_over(&entry.file_name().to_string_lossy(), age) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// No name of a preset contains a dot.
fn failed_prefix(preset: &str) -> String {
    format!("{preset}.failed.")
}

/// Reads an answer and its age.
fn read(place: &Path, digest: &str) -> Option<(ClientAnswer, Duration)> {
    let file = file::open(place).ok()?;
    let meta = file.metadata().ok()?;
    // A file that other users can write is not trusted.
    if meta.uid() != geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        return None;
    }
    let mut text = String::new();
    file.take(LENGTH).read_to_string(&mut text).ok()?;
    let Answer { question, made, targets, notes, doubt, nothing } = serde_json::from_str(&text).ok()?;
    if question != digest {
        return None;
    }
    // A clock that was set back makes an answer from the future, which does not count.
    let age = Duration::from_secs(now().checked_sub(made)?);
    let target = |text: &String| Target::parse(text.as_bytes()).ok();
    let given = match nothing {
        Some(why) => Err(why),
        None => Ok(ClientHosts { targets: targets.iter().map(target).collect::<Option<_>>()?, notes, doubt }),
    };
    Some((given, age))
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Makes a directory with a settings file, and a store of answers in it.
    fn scene(name: &str) -> (PathBuf, Answers) {
        let dir = std::env::temp_dir().join(format!("kept-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("npmrc"), "registry=a").unwrap();
        let answers = Answers::in_state(&dir);
        (dir, answers)
    }

    fn question(dir: &Path, words: &str) -> Question {
        let mut question = Question::new();
        question.add("words", words);
        question.settings(&dir.join("npmrc")).unwrap();
        question
    }

    fn hosts(doubt: Option<&str>) -> ClientAnswer {
        let targets = vec![Target::parse(b"a.example:443").unwrap()];
        Ok(ClientHosts { targets, notes: vec!["note".into()], doubt: doubt.map(Into::into) })
    }

    /// Makes a stored answer this much older.
    fn age(place: &Path, made: u64) {
        let mut answer: Answer = serde_json::from_slice(&fs::read(place).unwrap()).unwrap();
        answer.made = made;
        fs::write(place, serde_json::to_vec(&answer).unwrap()).unwrap();
    }

    #[test]
    fn an_answer_is_had_for_a_day_and_for_the_same_question() {
        let (dir, answers) = scene("day");
        let get = |words: &str| answers.get(&question(&dir, words), "npm").map(|(given, _)| given);
        assert_eq!(get("x"), None);
        answers.keep(&question(&dir, "x"), "npm", &hosts(None));
        assert_eq!(get("x"), Some(hosts(None)));
        assert_eq!(get("y"), None);
        fs::write(dir.join("npmrc"), "registry=b").unwrap();
        assert_eq!(get("x"), None);
        fs::write(dir.join("npmrc"), "registry=a").unwrap();
        assert_eq!(get("x"), Some(hosts(None)));
        // Other users could have written the file, or its time is wrong.
        let place = answers.place(&question(&dir, "x").digest());
        fs::set_permissions(&place, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(get("x"), None);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
        for made in [now() - 24 * 60 * 60, now() + 60] {
            age(&place, made);
            assert_eq!(get("x"), None, "{made}");
        }
        fs::write(&place, "{").unwrap();
        assert_eq!(get("x"), None);
        fs::File::options().write(true).open(&place).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        answers.keep(&question(&dir, "z"), "npm", &hosts(None));
        assert!(!place.exists(), "an old one is removed");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_answer_of_a_client_that_failed_is_had_for_ten_minutes_or_until_it_is_forgotten() {
        let (dir, answers) = scene("failed");
        let x = question(&dir, "x");
        let get = || answers.get(&x, "npm").map(|(given, _)| given);
        for failed in [hosts(Some("doubt")), Err("it exited 7".into())] {
            answers.keep(&x, "npm", &failed);
            let place = answers.failed_place("npm", &x.digest());
            age(&place, now() - 9 * 60);
            let (given, asked) = answers.get(&x, "npm").unwrap();
            assert_eq!((given, asked.as_secs() / 60), (failed.clone(), 9));
            age(&place, now() - 10 * 60);
            assert_eq!(get(), None);
            answers.keep(&x, "npm", &failed);
            for (other, is_left) in [("npm-extra", true), ("np", true), ("npm", false)] {
                answers.forget_failed(other);
                assert_eq!(get().is_some(), is_left, "{other}");
            }
        }
        // A complete answer counts, whichever is newer, and stays.
        answers.keep(&x, "npm", &hosts(None));
        answers.keep(&x, "npm", &hosts(Some("doubt")));
        answers.forget_failed("npm");
        assert_eq!(get(), Some(hosts(None)));
        fs::remove_dir_all(&dir).unwrap();
    }
}

//! Stores answers of clients for a day, because asking one takes seconds. An answer is found by everything that it depends on: the
//! program, the files and variables of settings, the rules and ceilings.
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

    /// Returns the targets and lines of an answer less than a day old.
    pub(super) fn get(&self, question: &Question) -> Option<(Vec<Target>, Vec<String>)> {
        let file = file::open(&self.place(&question.digest())).ok()?;
        let meta = file.metadata().ok()?;
        // A file that other users can write is not trusted.
        if meta.uid() != geteuid().as_raw() || meta.mode() & 0o022 != 0 {
            return None;
        }
        let mut text = String::new();
        file.take(LENGTH).read_to_string(&mut text).ok()?;
        let Answer { question: of, made, targets, notes } = serde_json::from_str(&text).ok()?;
        if of != question.digest() {
            return None;
        }
        // A clock that was set back makes an answer from the future, which does not count.
        let age = now().checked_sub(made)?;
        let targets =
            targets.iter().map(|text| Target::parse(text.as_bytes()).ok()).collect::<Option<_>>()?;
        (Duration::from_secs(age) < AGE).then_some((targets, notes))
    }

    /// Stores an answer. If that fails, the client is asked again next time.
    pub(super) fn keep(&self, question: &Question, targets: &[Target], notes: &[String]) {
        let answer = Answer {
            question: question.digest(),
            made: now(),
            targets: targets.iter().map(ToString::to_string).collect(),
            notes: notes.to_vec(),
        };
        let Ok(text) = serde_json::to_vec(&answer) else { return };
        if DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).is_err() {
            return;
        }
        self.remove_old();
        let place = FilePlace::open(&self.place(&question.digest()));
        let _ = place.and_then(|place| place.write(&text));
    }

    fn remove_old(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten().take(LISTED) {
            let changed = entry.metadata().and_then(|meta| meta.modified());
            if changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > AGE)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_answer_is_had_for_a_day_and_for_the_same_question() {
        let dir = std::env::temp_dir().join(format!("kept-{}", std::process::id()));
        let (answers, settings) = (Answers::in_state(&dir), dir.join("npmrc"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(&settings, "registry=a").unwrap();
        let question = |words: &str| {
            let mut question = Question::new();
            question.add("words", words);
            question.settings(&settings).unwrap();
            question
        };
        let targets = [Target::parse(b"a.example:443").unwrap()];
        assert_eq!(answers.get(&question("x")), None);
        answers.keep(&question("x"), &targets, &["note".into()]);
        let kept = Some((targets.to_vec(), vec!["note".to_owned()]));
        assert_eq!(answers.get(&question("x")), kept);
        assert_eq!(answers.get(&question("y")), None);
        fs::write(&settings, "registry=b").unwrap();
        assert_eq!(answers.get(&question("x")), None);
        fs::write(&settings, "registry=a").unwrap();
        assert_eq!(answers.get(&question("x")), kept);
        // Other users could have written the file, or its time is wrong.
        let place = answers.place(&question("x").digest());
        fs::set_permissions(&place, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(answers.get(&question("x")), None);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
        for made in [now() - 24 * 60 * 60, now() + 60] {
            let (targets, question_of) = (vec!["a.example:443".into()], question("x").digest());
            let answer = Answer { question: question_of, made, targets, notes: Vec::new() };
            fs::write(&place, serde_json::to_vec(&answer).unwrap()).unwrap();
            assert_eq!(answers.get(&question("x")), None, "{made}");
        }
        fs::write(&place, "{").unwrap();
        assert_eq!(answers.get(&question("x")), None);
        fs::File::options().write(true).open(&place).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        answers.keep(&question("z"), &targets, &[]);
        assert!(!place.exists(), "an old one is removed");
        fs::remove_dir_all(&dir).unwrap();
    }
}

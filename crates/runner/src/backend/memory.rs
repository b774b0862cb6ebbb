//! Remembers which back end works, until the next boot. Anything strange about the file counts as no answer.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use exeat_record::place::RecordDir;
use exeat_record::random_number;
use exeat_sandbox::Identity;
use nix::fcntl::OFlag;
use nix::sys::utsname::uname;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::choice::WHY;
use crate::identity::StageUser;

/// The name of the file in exeat's state directory.
const NAME: &str = "backend.json";
/// Bytes of the file. It has two paths and a sentence.
const SIZE: u64 = 16 << 10;
/// A new value at each boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The answer of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    /// Whether exeat builds the sandbox itself.
    pub(super) is_native: bool,
    pub(super) why: String,
}

/// The file of the answer, and what the answer is for.
#[derive(Debug)]
pub(crate) struct Memory {
    place: RecordDir,
    subject: Subject,
}

/// What an answer is for. With another one, it does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subject {
    boot: String,
    kernel: String,
    /// Whether the sandbox is for another user than the caller.
    other_user: bool,
    /// `None` where there is no bubblewrap.
    bwrap: Option<Program>,
    /// This program, which a security module may restrict by its path.
    exeat: Program,
}

/// An executable file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    path: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    schema: u32,
    subject: Subject,
    answer: Answer,
}

/// The version of the file.
const SCHEMA: u32 = 1;

impl Memory {
    /// Returns where the answer about this bubblewrap is, for this user of a stage. `None` if the machine does not say what it is.
    pub(super) fn find(place: &RecordDir, bwrap: Option<&Path>, who: &StageUser) -> Option<Self> {
        let text = |path: &str| {
            let mut text = String::new();
            File::open(path).ok()?.take(SIZE).read_to_string(&mut text).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let subject = Subject {
            boot: text(BOOT_ID)?,
            kernel: uname().ok()?.release().to_str()?.to_owned(),
            other_user: who.identity().0 != Identity::Caller,
            bwrap: match bwrap {
                Some(path) => Some(Program::at(path.to_path_buf()).ok()?),
                None => None,
            },
            exeat: std::env::current_exe().and_then(Program::at).ok()?,
        };
        Some(Self { place: place.clone(), subject })
    }

    fn path(&self) -> PathBuf {
        path_in(&self.place)
    }

    /// Returns the answer, if there is one for this machine as it is.
    pub(super) fn read(&self) -> Option<Answer> {
        let Stored { schema, subject, answer } =
            serde_json::from_slice(&read_own(&self.path()).ok()?).ok()?;
        let is_known = schema == SCHEMA && subject == self.subject;
        let is_line = answer.why.len() <= WHY && !answer.why.contains(char::is_control);
        Some(answer).filter(|_| is_known && is_line)
    }

    /// Writes the answer if exeat has its directory already and has another answer there. Without it, the next run tries again.
    pub(super) fn write(&self, answer: &Answer) {
        if self.read().as_ref() == Some(answer) || !self.place.ledger_dir().is_dir() {
            return;
        }
        let stored = Stored { schema: SCHEMA, subject: self.subject.clone(), answer: answer.clone() };
        let (path, new) = (self.path(), self.path().with_extension(format!("{:016x}", random_number())));
        let written = self.place.prepare().map_err(io::Error::other).and_then(|()| {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
            let written =
                file.write_all(&serde_json::to_vec(&stored)?).and_then(|()| fs::rename(&new, &path));
            if written.is_err() {
                let _ = fs::remove_file(&new);
            }
            written
        });
        if let Err(error) = written {
            tracing::debug!(%error, "the back end that works is not remembered");
        }
    }

    /// Deletes the answer, whatever it is for.
    pub(super) fn forget(&self) {
        forget_in(&self.place);
    }
}

/// Deletes the answer in this place, whatever it is for.
pub(crate) fn forget_in(place: &RecordDir) {
    // Usually there is none. One that cannot be deleted is for the next run, which may replace it.
    let _ = fs::remove_file(path_in(place));
}

fn path_in(place: &RecordDir) -> PathBuf {
    place.ledger_dir().join(NAME)
}

/// Reads a small regular file that only this user can have written.
fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe of this name must not hold the start up.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let meta = file.metadata()?;
    let is_own = meta.uid() == geteuid().as_raw() && meta.permissions().mode() & 0o077 == 0;
    if !meta.is_file() || !is_own || meta.len() > SIZE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    file.take(SIZE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Program {
    fn at(path: PathBuf) -> io::Result<Self> {
        let meta = fs::metadata(&path)?;
        let modified = (meta.mtime(), meta.mtime_nsec());
        Ok(Self { path, device: meta.dev(), inode: meta.ino(), size: meta.size(), modified })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scene(PathBuf);

    impl Scene {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("exeat-memory-{name}-{}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            fs::copy("/bin/true", dir.join("bwrap")).unwrap();
            Self(dir)
        }

        fn place(&self) -> RecordDir {
            RecordDir::from_env(Some(self.0.as_os_str()), None).unwrap()
        }

        fn memory(&self) -> Memory {
            Memory::find(&self.place(), Some(&self.0.join("bwrap")), &StageUser::Caller).unwrap()
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn answer() -> Answer {
        Answer { is_native: true, why: "bubblewrap 0.6.2 is too old".into() }
    }

    #[test]
    fn an_answer_holds_for_the_same_program_of_the_same_boot() {
        let scene = Scene::new("same");
        scene.memory().write(&answer());
        assert!(!scene.place().ledger_dir().exists(), "no directory is made for it");
        scene.place().prepare().unwrap();
        assert_eq!(scene.memory().read(), None);
        scene.memory().write(&answer());
        let path = scene.memory().path();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2, "a new file is left");
        assert_eq!(scene.memory().read(), Some(answer()));

        // The same bytes in another file, as after an upgrade.
        let program = scene.0.join("bwrap");
        fs::copy(&program, scene.0.join("other")).unwrap();
        fs::rename(scene.0.join("other"), &program).unwrap();
        assert_eq!(scene.memory().read(), None, "another inode");
        scene.memory().write(&answer());
        assert_eq!(scene.memory().read(), Some(answer()), "replaced");
        let without = Memory::find(&scene.place(), None, &StageUser::Caller).unwrap();
        assert_eq!(without.read(), None, "without bubblewrap");
        type Change = fn(&mut Subject);
        let changes: [Change; 4] = [
            |it| it.boot.push('0'),
            |it| it.kernel.push('0'),
            |it| it.other_user = true,
            |it| it.exeat.size += 1,
        ];
        for change in changes {
            let mut other = scene.memory();
            change(&mut other.subject);
            assert_eq!(other.read(), None, "{:?}", other.subject);
        }
        scene.memory().forget();
        assert_eq!(scene.memory().read(), None);
        scene.memory().forget();
    }

    #[test]
    fn a_strange_file_is_no_answer_and_is_replaced() {
        let scene = Scene::new("strange");
        scene.place().prepare().unwrap();
        scene.memory().write(&answer());
        let path = scene.memory().path();
        let good = fs::read_to_string(&path).unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        for text in [
            String::new(),
            "{".to_owned(),
            good.replace("\"schema\":1", "\"schema\":2"),
            good.replace("\"answer\"", "\"more\":1,\"answer\""),
            good.replace("too old", "too\\nold"),
            good.replace("too old", &"x".repeat(WHY)),
            format!("{good}{}", " ".repeat(usize::try_from(SIZE).unwrap())),
        ] {
            assert_ne!(text, good);
            fs::write(&path, &text).unwrap();
            assert_eq!(scene.memory().read(), None, "{text}");
        }
        fs::write(&path, &good).unwrap();
        assert_eq!(scene.memory().read(), Some(answer()));
        mode(0o640);
        assert_eq!(scene.memory().read(), None, "others may read it");
        mode(0o600);
        fs::rename(&path, scene.0.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(scene.0.join("elsewhere"), &path).unwrap();
        assert_eq!(scene.memory().read(), None, "a link");
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(scene.memory().read(), None, "a pipe");
        scene.memory().write(&answer());
        assert_eq!(scene.memory().read(), Some(answer()), "replaced");
    }
}

//! A policy that is read again while it is served: who notices, and who reads. It does not decide what holds afterwards:
//! `alone.rs` does.
//!
//! One thread looks at the files once a second and reads them. A look takes a few system calls, and sees what no watch on
//! a file does: another file renamed into its place, a link that leads elsewhere, a ceiling that was not there before, a
//! file system that tells nobody of changes.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use exeat_compose::FileState;
use exeat_policy::Policy;
use exeat_record::Source;
use tokio::sync::mpsc;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// A file that changed is read when it has been left alone for so long: an editor writes in several steps. It is also
/// longer than the ticks in which file systems count time, so that no change falls into the tick of the one before.
const SETTLED: Duration = Duration::from_millis(100);
/// A file that does not come to rest is read all the same. What changes later is another change.
const RESTLESS: Duration = Duration::from_secs(2);

/// A policy that was read again, whole.
#[derive(Debug)]
pub struct Reloaded {
    /// The policy.
    pub policy: Policy,
    /// The files that it was made from, for the record.
    pub sources: Vec<Source>,
    /// All that was looked at for it, each from before it was read: also what was not there.
    pub inspected: Vec<FileState>,
    /// Lines for the user.
    pub notes: Vec<String>,
}

/// Reads the policy again, from where it came. An error says why it cannot be had, in words.
pub type Load = Box<dyn FnMut() -> Result<Reloaded, String> + Send>;

/// The thread that looks and reads, as seen from the one that serves. It ends when this is dropped, or soon after: whoever
/// ends the process does not wait for it.
pub(crate) struct Reloader {
    asks: SyncSender<()>,
    done: mpsc::Receiver<Result<Reloaded, String>>,
}

impl Reloader {
    /// Starts to look. `seen` is what was looked at for the policy that holds now.
    pub(crate) fn start(load: Load, inspected: Vec<FileState>) -> io::Result<Self> {
        // One question more than the one that is being answered: it is about what may have changed meanwhile.
        let (asks, asked) = sync_channel(1);
        let (tell, done) = mpsc::channel(1);
        let look = move || {
            let mut watch = Watch { load, inspected };
            loop {
                let asked = match asked.recv_timeout(LOOK) {
                    Ok(()) => true,
                    Err(RecvTimeoutError::Timeout) => false,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if let Some(done) = watch.look(asked)
                    && tell.blocking_send(done).is_err()
                {
                    return;
                }
            }
        };
        thread::Builder::new().name("policy".into()).spawn(look)?;
        Ok(Self { asks, done })
    }

    /// Has the policy read again, changed or not. `false`: nobody is left who would.
    pub(crate) fn ask(&self) -> bool {
        !matches!(self.asks.try_send(()), Err(TrySendError::Disconnected(())))
    }

    /// What the next reading came to. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Reloaded, String> {
        match self.done.recv().await {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }
}

struct Watch {
    load: Load,
    inspected: Vec<FileState>,
}

impl Watch {
    /// Reads, if something changed or somebody asked.
    fn look(&mut self, asked: bool) -> Option<Result<Reloaded, String>> {
        let now = self.now();
        if !asked && now == self.inspected {
            return None;
        }
        self.inspected = now;
        self.settle();
        let done = (self.load)();
        if let Ok(Reloaded { inspected, .. }) = &done {
            // There may be others among them: a policy names no files, but a ceiling may have come.
            self.inspected.clone_from(inspected);
        }
        Some(done)
    }

    fn settle(&mut self) {
        let by = Instant::now() + RESTLESS;
        loop {
            thread::sleep(SETTLED);
            let now = self.now();
            let settled = now == self.inspected;
            self.inspected = now;
            if settled || Instant::now() > by {
                return;
            }
        }
    }

    fn now(&self) -> Vec<FileState> {
        self.inspected.iter().map(FileState::current).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A file in a directory of its own, and a watch on it that counts what it reads.
    struct Setup {
        dir: PathBuf,
        file: PathBuf,
    }

    impl Setup {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("reload-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            let file = dir.join("policy.toml");
            fs::write(&file, "one").unwrap();
            Self { dir, file }
        }

        fn watch(&self) -> Watch {
            let file = self.file.clone();
            let load: Load = Box::new(move || {
                let inspected = vec![FileState::at(&file)];
                let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
                if text == "broken" {
                    return Err(text);
                }
                let policy = exeat_policy::PolicyBuilder::new().build();
                Ok(Reloaded { policy, sources: Vec::new(), inspected, notes: vec![text] })
            });
            Watch { load, inspected: vec![FileState::at(&self.file)] }
        }
    }

    impl Drop for Setup {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    fn text(looked: Option<Result<Reloaded, String>>) -> Option<Result<String, String>> {
        looked.map(|done| done.map(|reloaded| reloaded.notes.concat()))
    }

    /// H16: every way in which another text comes to be at a path, each seen once; and nothing where nothing changed.
    #[test]
    fn whatever_changes_at_the_path_is_read_once() {
        let setup = Setup::new("ways");
        let mut watch = setup.watch();
        assert_eq!(text(watch.look(false)), None);
        assert_eq!(text(watch.look(true)), Some(Ok("one".into())), "asked, and nothing changed");

        // The same length, in the same place.
        fs::write(&setup.file, "two").unwrap();
        assert_eq!(text(watch.look(false)), Some(Ok("two".into())));
        assert_eq!(text(watch.look(false)), None);

        let beside = setup.dir.join("beside");
        fs::write(&beside, "new").unwrap();
        fs::rename(&beside, &setup.file).unwrap();
        assert_eq!(text(watch.look(false)), Some(Ok("new".into())));

        fs::write(&beside, "led").unwrap();
        fs::remove_file(&setup.file).unwrap();
        std::os::unix::fs::symlink(&beside, &setup.file).unwrap();
        assert_eq!(text(watch.look(false)), Some(Ok("led".into())));
        fs::write(&beside, "far").unwrap();
        assert_eq!(text(watch.look(false)), Some(Ok("far".into())), "behind a link");

        fs::remove_file(&setup.file).unwrap();
        assert!(matches!(watch.look(false), Some(Err(_))));
        assert_eq!(text(watch.look(false)), None, "told once");
        fs::write(&setup.file, "broken").unwrap();
        assert!(matches!(watch.look(false), Some(Err(_))));
        fs::write(&setup.file, "mended").unwrap();
        assert_eq!(text(watch.look(false)), Some(Ok("mended".into())));
    }

    /// A change while the file is read is seen at the next look.
    #[test]
    fn a_change_between_look_and_read_is_one() {
        let setup = Setup::new("between");
        let mut watch = setup.watch();
        let mut inner = std::mem::replace(&mut watch.load, Box::new(|| Err("unused".into())));
        let file = setup.file.clone();
        let mut raced = false;
        watch.load = Box::new(move || {
            let done = inner();
            if !std::mem::replace(&mut raced, true) {
                fs::write(&file, "later").unwrap();
            }
            done
        });
        assert_eq!(text(watch.look(true)), Some(Ok("one".into())));
        assert_eq!(text(watch.look(false)), Some(Ok("later".into())));
        assert_eq!(text(watch.look(false)), None);
    }
}

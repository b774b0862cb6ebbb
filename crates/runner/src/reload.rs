//! Reads a policy again while it is served. `alone.rs` decides what applies afterwards.
//!
//! One thread inspects the files once a second and reads them. A check takes a few system calls, and detects more than a watch on a file:
//! a rename over it, a link with a new target, a new ceiling, a file system without events.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use exeat_compose::FileState;
use exeat_policy::Policy;
use exeat_record::Source;
use tokio::sync::mpsc;

/// The time between two checks.
const LOOK: Duration = Duration::from_secs(1);
/// The time without a change after which a file is read, because an editor writes in several steps. It is longer than the clock ticks of
/// file systems, so that no later change has the same time.
const SETTLED: Duration = Duration::from_millis(100);
/// The time after which a file that keeps changing is read anyway. A later change counts as another one.
const RESTLESS: Duration = Duration::from_secs(2);

/// A whole policy that was read again.
#[derive(Debug)]
pub struct Reloaded {
    /// The policy.
    pub policy: Policy,
    /// The files that the policy was composed from, for the record.
    pub sources: Vec<Source>,
    /// The state of each inspected path before it was read; also of paths without a file.
    pub inspected: Vec<FileState>,
    /// Lines for the user.
    pub notes: Vec<String>,
}

/// Reads the policy again from its sources. An error is the reason for people.
pub type LoadPolicy = Box<dyn FnMut() -> Result<Reloaded, String> + Send>;

/// The handle of the thread that reads. Dropping it ends the thread soon; the end of the process does not wait for it.
pub(crate) struct Reloader {
    asks: SyncSender<()>,
    done: mpsc::Receiver<Result<Reloaded, String>>,
}

impl Reloader {
    /// Starts the thread. `inspected` belongs to the current policy.
    pub(crate) fn start(load: LoadPolicy, inspected: Vec<FileState>) -> io::Result<Self> {
        // One more request can wait than the one in progress: a file may have changed since that began.
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
                if let Some(done) = watch.check(asked)
                    && tell.blocking_send(done).is_err()
                {
                    return;
                }
            }
        };
        thread::Builder::new().name("policy".into()).spawn(look)?;
        Ok(Self { asks, done })
    }

    /// Requests a reading even without a change. Returns false if the thread is gone.
    pub(crate) fn ask(&self) -> bool {
        !matches!(self.asks.try_send(()), Err(TrySendError::Disconnected(())))
    }

    /// Returns the result of the next reading. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Reloaded, String> {
        match self.done.recv().await {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }
}

struct Watch {
    load: LoadPolicy,
    inspected: Vec<FileState>,
}

impl Watch {
    /// Reads the policy if a file changed or a reading was requested.
    fn check(&mut self, asked: bool) -> Option<Result<Reloaded, String>> {
        let now = self.now();
        if !asked && now == self.inspected {
            return None;
        }
        self.inspected = now;
        self.wait_until_stable();
        let done = (self.load)();
        if let Ok(Reloaded { inspected, .. }) = &done {
            // The set of files may differ, for example because a ceiling was added.
            self.inspected.clone_from(inspected);
        }
        Some(done)
    }

    fn wait_until_stable(&mut self) {
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

    /// A file in its own directory, with a watch that returns its text.
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
            let load: LoadPolicy = Box::new(move || {
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

    /// H16: each way to change the text at a path is noticed once, and no change is reported without one.
    #[test]
    fn whatever_changes_at_the_path_is_read_once() {
        let setup = Setup::new("ways");
        let mut watch = setup.watch();
        assert_eq!(text(watch.check(false)), None);
        assert_eq!(text(watch.check(true)), Some(Ok("one".into())), "asked, and nothing changed");

        // The file keeps its inode and its length.
        fs::write(&setup.file, "two").unwrap();
        assert_eq!(text(watch.check(false)), Some(Ok("two".into())));
        assert_eq!(text(watch.check(false)), None);

        let beside = setup.dir.join("beside");
        fs::write(&beside, "new").unwrap();
        fs::rename(&beside, &setup.file).unwrap();
        assert_eq!(text(watch.check(false)), Some(Ok("new".into())));

        fs::write(&beside, "led").unwrap();
        fs::remove_file(&setup.file).unwrap();
        std::os::unix::fs::symlink(&beside, &setup.file).unwrap();
        assert_eq!(text(watch.check(false)), Some(Ok("led".into())));
        fs::write(&beside, "far").unwrap();
        assert_eq!(text(watch.check(false)), Some(Ok("far".into())), "behind a link");

        fs::remove_file(&setup.file).unwrap();
        assert!(matches!(watch.check(false), Some(Err(_))));
        assert_eq!(text(watch.check(false)), None, "told once");
        fs::write(&setup.file, "broken").unwrap();
        assert!(matches!(watch.check(false), Some(Err(_))));
        fs::write(&setup.file, "mended").unwrap();
        assert_eq!(text(watch.check(false)), Some(Ok("mended".into())));
    }

    /// A change during a reading is noticed by the next check.
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
        assert_eq!(text(watch.check(true)), Some(Ok("one".into())));
        assert_eq!(text(watch.check(false)), Some(Ok("later".into())));
        assert_eq!(text(watch.check(false)), None);
    }
}

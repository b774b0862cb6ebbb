//! Starts the bubblewrap process, explains its failures and ends it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exeat_contract::Message;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use crate::assembly::{Assembler, Tree};
use crate::bwrap::{Argv, Word, probe};
use crate::error::Error;
use crate::said::what_is_there;
use crate::seccomp::Program;
use crate::spec::Identity;
use crate::sys::{self, PidFd};
use crate::wait::{Ready, wait};

/// Time from the first sign of a failure to the end of bubblewrap.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Time in which the process that makes the file tree reads its description.
const SEND: Duration = Duration::from_secs(10);
/// Bytes of bubblewrap's report on what it started: one small JSON object.
const INFO: usize = 4096;

/// A bubblewrap process. Dropping it ends the sandbox.
#[derive(Debug)]
pub(crate) struct Bwrap {
    /// The executable.
    path: PathBuf,
    child: Child,
    process: PidFd,
    /// Pipe on which the reaper reports a step that failed.
    told: File,
    info: File,
    lifeline: Lifeline,
    /// The process that becomes bubblewrap, if it makes the file tree first.
    assembler: Option<Assembler>,
    over: bool,
}

/// Connection to the reaper, or to a pid 1 of ours. It ends the sandbox at its end of file, by [`Lifeline::cut`] or the end of this process.
#[derive(Debug, Clone)]
pub(crate) struct Lifeline(Arc<UnixStream>);

impl Lifeline {
    /// Takes this end of a pair of sockets whose other end ends the sandbox.
    pub(crate) fn new(line: UnixStream) -> Self {
        Self(Arc::new(line))
    }

    /// Lets the reaper end the sandbox, and does not wait. The reaper has the right to, whoever runs the stage.
    ///
    /// Dropping the socket is not enough: a process forked from this one may have a copy. shutdown(2) acts on the socket that all
    /// copies share. It has no error for a connected pair, and a reaper that has ended needs no message.
    pub(crate) fn cut(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl AsFd for Lifeline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Bwrap {
    #[expect(clippy::disallowed_methods, reason = "the one place that starts a process")]
    pub(crate) fn spawn(
        path: &Path,
        argv: &Argv,
        filters: &[Program],
        identity: Identity,
        tree: Option<Tree>,
        held: Option<OwnedFd>,
    ) -> Result<Self, Error> {
        let prepare = |what| move |source| Error::Prepare { what, source };
        let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(|errno| prepare("a pipe")(errno.into()));
        let ((info, info_writer), (heard, told)) = (pipe()?, pipe()?);
        let (lifeline_end, lifeline) = UnixStream::pair().map_err(prepare("a pair of sockets"))?;
        let mut passed = Passed { files: Vec::new(), info: info_writer };
        let filters = filters
            .iter()
            .map(|program| passed.file(program))
            .collect::<io::Result<Vec<_>>>()
            .map_err(prepare("the seccomp filters"))?;
        let options = passed.options(argv, &filters).map_err(prepare("its arguments"))?;
        let options = passed.file(&options).map_err(prepare("its arguments"))?;

        let options = options.to_string();
        let before = ["--args", &options, "--"].map(OsStr::new);
        let arguments: Vec<&OsStr> =
            before.into_iter().chain(argv.command.iter().map(OsString::as_os_str)).collect();
        // With an empty environment, /proc/1/environ holds nothing of the caller.
        let mut kept = passed.numbers();
        let (program, connection) = match &tree {
            None => (sys::Program::new(path, &arguments).map_err(prepare("its arguments"))?, None),
            Some(tree) => {
                let (program, more, connection) = tree.program().map_err(prepare("stage2"))?;
                kept.extend(more);
                (program, Some(connection))
            }
        };
        let (its, ours) = connection.unzip();

        let mut command = Command::new(path);
        command.current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let lifeline_end = lifeline_end.into();
        let spawn = |source| Error::Spawn { path: path.to_path_buf(), source };
        let lifeline = Lifeline::new(lifeline);
        let takes_user = !tree.as_ref().is_some_and(Tree::becomes_user);
        let start = sys::Start { program, kept, lifeline: lifeline_end, identity, takes_user, told, held };
        // `spawn` takes these, and closes this process's copies of the ends that only the reaper may hold: of the lifeline and of the
        // pipe.
        let mut child = sys::spawn(command, start).map_err(spawn)?;
        let process = watched(&mut child, &lifeline, PidFd::open).map_err(spawn)?;
        // Only the process that makes the file tree has its end now.
        drop(its);
        let (told, info) = (heard.into(), info.into());
        let mut bwrap = Self {
            path: path.to_path_buf(),
            child,
            process,
            told,
            info,
            lifeline,
            assembler: None,
            over: false,
        };
        if let Some((tree, ours)) = tree.zip(ours) {
            bwrap.assembler = Some(tree.send(ours, path, &arguments, SEND)?);
        }
        Ok(bwrap)
    }

    /// Returns a connection that can end the sandbox from elsewhere.
    pub(crate) fn lifeline(&self) -> Lifeline {
        self.lifeline.clone()
    }

    /// Returns the pid of the sandbox's pid 1 on the host.
    pub(crate) fn init_pid(&mut self, by: Instant) -> Result<i32, Error> {
        let mut text = Vec::new();
        // bubblewrap writes the object in several writes.
        while !text.contains(&b'}') && text.len() < INFO {
            let mut part = [0; 256];
            match wait(self.info.as_fd(), self.process.as_fd(), None, by).map_err(Error::Watch)? {
                Some(Ready::Socket) => {}
                Some(Ready::Ended) => return Err(self.explain()),
                Some(Ready::Cancelled) | None => break,
            }
            let count = self.info.read(&mut part).map_err(Error::Watch)?;
            if count == 0 {
                break;
            }
            text.extend_from_slice(part.get(..count).unwrap_or_default());
        }
        let text = String::from_utf8_lossy(&text);
        let number = text.split_once("\"child-pid\"").and_then(|(_, rest)| {
            let digits = rest.trim_start_matches([':', ' ']);
            digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        });
        number.ok_or_else(|| {
            Error::Watch(io::Error::new(
                io::ErrorKind::InvalidData,
                "bubblewrap did not tell its child's pid",
            ))
        })
    }

    /// Returns the step that failed before bubblewrap was executed, if one did.
    fn failure(&self) -> Option<Error> {
        let failure = sys::Failure::decode(&what_is_there(&self.told))?;
        let source = io::Error::from(failure.errno);
        let path = self.path.clone();
        Some(match failure.step {
            sys::Step::User => Error::User(source),
            sys::Step::Other => Error::Spawn { path, source },
        })
    }

    /// Returns the step of the file tree that failed, if one did. Waits for the end of the process.
    pub(crate) fn assembly_failure(&mut self) -> Option<Message> {
        let _ = wait(self.process.as_fd(), self.process.as_fd(), None, Instant::now() + LAST_WORDS);
        self.assembler.as_mut()?.failure()
    }

    /// Explains why bubblewrap ended early, by its own output and the layer that refused. Ends it if it still runs.
    pub(crate) fn explain(&mut self) -> Error {
        // It is about to end by itself, and its own status says more than that of a killed process.
        let _ = wait(self.process.as_fd(), self.process.as_fd(), None, Instant::now() + LAST_WORDS);
        self.lifeline.cut();
        let status = self.child.wait();
        self.over = true;
        if let Some(failure) = self.failure() {
            return failure;
        }
        let said = self.child.stderr.take().map(what_is_there).unwrap_or_default();
        let mut said = String::from_utf8_lossy(&said).trim().replace('\n', "; ");
        let layer = probe::layer(&said);
        if said.is_empty() {
            said = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        }
        Error::Bwrap { path: self.path.clone(), said, layer }
    }

    /// Waits for its end until `by`: `None` if it still runs, else the result of [`wait`](Self::wait).
    pub(crate) fn wait_until(&mut self, by: Instant) -> io::Result<Option<Option<i32>>> {
        match wait(self.process.as_fd(), self.process.as_fd(), None, by)? {
            Some(_) => Ok(Some(self.child.wait()?.code())),
            None => Ok(None),
        }
    }

    /// Waits for its end and returns the exit code, or `None` if a signal killed it.
    pub(crate) fn wait(&mut self) -> io::Result<Option<i32>> {
        let status = self.child.wait()?;
        self.over = true;
        Ok(status.code())
    }
}

/// Opens the reaper's descriptor with `open`. If that fails, ends the sandbox and reaps the reaper.
fn watched(
    child: &mut Child,
    lifeline: &Lifeline,
    open: impl FnOnce(i32) -> io::Result<PidFd>,
) -> io::Result<PidFd> {
    // The child is not reaped yet, so the pid is still its own.
    let process = i32::try_from(child.id()).map_err(io::Error::other).and_then(open);
    if process.is_err() {
        lifeline.cut();
        let _ = child.wait();
    }
    process
}

impl AsFd for Bwrap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

impl Drop for Bwrap {
    fn drop(&mut self) {
        if !self.over {
            // The reaper kills bubblewrap and its processes, and then ends. No error could be handled here.
            self.lifeline.cut();
            let _ = self.child.wait();
        }
    }
}

/// Descriptors that bubblewrap reads from or writes to.
struct Passed {
    files: Vec<File>,
    info: OwnedFd,
}

impl Passed {
    /// Returns the number of a descriptor from which `bytes` can be read.
    fn file(&mut self, bytes: &[u8]) -> io::Result<RawFd> {
        let file = sys::file_of(bytes)?;
        let number = file.as_raw_fd();
        self.files.push(file);
        Ok(number)
    }

    /// Returns the options, each followed by a NUL byte.
    fn options(&mut self, argv: &Argv, filters: &[RawFd]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        for word in &argv.options {
            let word: OsString = match word {
                Word::Text(text) => text.clone(),
                Word::Data(bytes) => self.file(&bytes.0)?.to_string().into(),
                Word::Seccomp(number) => {
                    let missing = || io::Error::from(io::ErrorKind::NotFound);
                    filters.get(*number).ok_or_else(missing)?.to_string().into()
                }
                Word::Info => self.info.as_raw_fd().to_string().into(),
            };
            if word.as_bytes().contains(&0) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "a path holds a NUL byte"));
            }
            out.extend(word.into_vec());
            out.push(0);
        }
        Ok(out)
    }

    fn numbers(&self) -> Vec<RawFd> {
        let files = self.files.iter().map(AsRawFd::as_raw_fd);
        files.chain([self.info.as_raw_fd()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::sys::wait::waitpid;
    use nix::unistd::Pid;

    use super::*;

    /// Simulates a process without a free descriptor.
    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "a child that ends with its input, as a reaper with its lifeline"
    )]
    fn b32_a_reaper_that_cannot_be_watched_is_ended_and_reaped() {
        let (ours, its) = UnixStream::pair().unwrap();
        let mut child = Command::new("cat").stdin(OwnedFd::from(its)).stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        let lifeline = Lifeline(Arc::new(ours));
        let none = watched(&mut child, &lifeline, |_| Err(Errno::EMFILE.into()));
        assert_eq!(none.unwrap_err().raw_os_error(), Some(Errno::EMFILE as i32));
        assert_eq!(waitpid(pid, None), Err(Errno::ECHILD));
    }
}

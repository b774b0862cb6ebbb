//! Runs the real binary: a clean environment, a deadline, and all output.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::audit::AuditLog;
use crate::bench::PATH;
use crate::case::Cx;
use crate::leftover::below;
use crate::wait_for;

const DEADLINE: Duration = Duration::from_secs(40);

/// A command that has not started yet.
pub struct Run<'a> {
    pub(crate) cx: &'a Cx,
    pub(crate) words: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: PathBuf,
    stdin: Option<Vec<u8>>,
    stdin_open: bool,
    mounts: Option<String>,
    redirections: String,
    own_group: bool,
    audit: Option<PathBuf>,
    pub(crate) deadline: Duration,
}

impl<'a> Run<'a> {
    pub(crate) fn new(cx: &'a Cx, words: Vec<String>, audit: Option<PathBuf>) -> Self {
        let env = [("PATH", PATH), ("LANG", "C.UTF-8"), ("HOME", cx.home().to_str().expect("ASCII"))];
        Self {
            cx,
            words,
            env: env.map(|(name, value)| (name.to_string(), value.to_string())).to_vec(),
            cwd: cx.dir().to_path_buf(),
            stdin: None,
            stdin_open: false,
            mounts: None,
            redirections: String::new(),
            own_group: false,
            audit,
            deadline: DEADLINE,
        }
    }

    /// Sets a variable of exeat's own environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_string(), value.to_string()));
        self
    }

    /// Sets the working directory, which is otherwise the trial's.
    pub fn cwd(mut self, dir: &Path) -> Self {
        self.cwd = dir.to_path_buf();
        self
    }

    /// Sets standard input, which is otherwise empty.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Keeps standard input open and empty until the run is dropped or waited for.
    pub fn stdin_open(mut self) -> Self {
        self.stdin_open = true;
        self
    }

    /// Runs a shell script in a private mount namespace first, as the bench's root.
    pub fn in_mounts(mut self, script: &str) -> Self {
        self.mounts = Some(script.to_string());
        self
    }

    /// Opens descriptors as a shell would: `3>FILE`, `4<FILE`, for names without special characters.
    pub fn redirect(mut self, redirections: &str) -> Self {
        self.redirections = redirections.to_string();
        self
    }

    /// Uses a separate process group, like a job of a shell: it can be stopped and continued.
    pub fn own_group(mut self) -> Self {
        self.own_group = true;
        self
    }

    /// Puts words before the command: a program that becomes exeat.
    pub fn under<S: AsRef<str>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.words.splice(0..0, words.into_iter().map(|word| word.as_ref().to_string()));
        self
    }

    /// Sets the deadline instead of 40 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Starts the command without waiting for its end.
    pub fn start(self) -> Live<'a> {
        let argv = self.argv();
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).env_clear().envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.cwd).stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.own_group {
            command.process_group(0);
        }
        let piped = self.stdin.is_some() || self.stdin_open;
        command.stdin(if piped { Stdio::piped() } else { Stdio::null() });
        let began = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", argv[0]));
        if let Some(bytes) = self.stdin {
            let mut pipe = child.stdin.take().expect("piped");
            // The stage may stop reading at any time.
            thread::spawn(move || drop(pipe.write_all(&bytes)));
        }
        let stdout = collect(child.stdout.take().expect("piped"));
        let stderr = collect(child.stderr.take().expect("piped"));
        let deadline = began + self.deadline;
        Live {
            cx: self.cx,
            words: self.words,
            child,
            stdout,
            stderr,
            audit: self.audit,
            began,
            deadline,
            status: None,
        }
    }

    /// Starts the command and waits for its end.
    pub fn run(self) -> Done {
        self.start().wait()
    }

    pub(crate) fn argv(&self) -> Vec<String> {
        let mut argv = Vec::new();
        if let Some(script) = &self.mounts {
            argv.extend(["unshare", "--mount", "sh", "-ec"].map(str::to_string));
            argv.push(format!("{script}\nexec \"$@\""));
            argv.push("sh".to_string());
        }
        argv.extend(self.cx.bench().become_user(self.cx.is_root()));
        if !self.redirections.is_empty() {
            argv.extend(["sh".to_string(), "-c".to_string()]);
            argv.push(format!("exec \"$@\" {}", self.redirections));
            argv.push("sh".to_string());
        }
        argv.extend(self.words.iter().cloned());
        argv
    }
}

/// A running command.
pub struct Live<'a> {
    cx: &'a Cx,
    words: Vec<String>,
    child: Child,
    stdout: Collected,
    stderr: Collected,
    audit: Option<PathBuf>,
    began: Instant,
    deadline: Instant,
    status: Option<ExitStatus>,
}

impl Live<'_> {
    /// Returns the process id of exeat.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    /// Sends a signal to exeat alone.
    pub fn signal(&self, signal: Signal) -> &Self {
        kill(self.pid(), signal).expect("exeat runs");
        self
    }

    /// Waits until the stage has printed a line with `text`.
    pub fn until_prints(&mut self, text: &str) -> &mut Self {
        while !self.printed().contains(text) {
            let (printed, errors) = (self.printed(), self.errors());
            assert!(
                Instant::now() < self.deadline,
                "waited in vain for `{text}`\n--- stdout\n{printed}\n--- stderr\n{errors}"
            );
            std::thread::sleep(Duration::from_millis(3));
        }
        self
    }

    /// Returns the stage's output so far.
    pub fn printed(&mut self) -> String {
        self.stdout.take_in();
        String::from_utf8_lossy(&self.stdout.bytes).into_owned()
    }

    /// Returns all of stderr so far.
    pub fn errors(&mut self) -> String {
        self.stderr.take_in();
        String::from_utf8_lossy(&self.stderr.bytes).into_owned()
    }

    /// Waits until exeat is stopped, or is not.
    pub fn until_stopped(&self, stopped: bool) -> &Self {
        let what = if stopped { "exeat to be stopped" } else { "exeat to go on" };
        wait_for(Duration::from_secs(10), what, || {
            (state_of(self.child.id()) == Some('T')).eq(&stopped).then_some(())
        });
        self
    }

    /// Returns the states of all descendants of exeat with this name (proc_pid_stat(5)).
    pub fn states(&self, name: &str) -> Vec<char> {
        self.pids(name).into_iter().filter_map(|pid| state_of(pid.as_raw().cast_unsigned())).collect()
    }

    /// Returns the descendants of exeat with this name.
    pub fn pids(&self, name: &str) -> Vec<Pid> {
        let below = below(self.child.id());
        let named = below.iter().filter_map(|line| line.split_once(' ')).filter(|(_, known)| *known == name);
        named.filter_map(|(pid, _)| pid.parse().ok()).map(Pid::from_raw).collect()
    }

    /// Returns whether it has ended.
    pub fn ended(&mut self) -> bool {
        self.status = self.status.or_else(|| self.child.try_wait().expect("wait"));
        self.status.is_some()
    }

    /// Returns a field of `/proc/PID/status` in kB, such as `VmHWM`.
    pub fn memory_kb(&self, field: &str) -> u64 {
        memory_kb(self.pid(), field)
    }

    /// Returns the processor time of exeat and its descendants, in the ticks of proc(5): hundredths of a second.
    pub fn ticks(&self) -> u64 {
        let below = below(self.child.id());
        let pids = below.iter().filter_map(|line| line.split(' ').next()?.parse().ok()).map(Pid::from_raw);
        pids.chain([self.pid()]).map(ticks).sum()
    }

    /// Waits for the end; a run over its deadline is killed and fails the trial.
    pub fn wait(mut self) -> Done {
        drop(self.child.stdin.take());
        while !self.ended() {
            if Instant::now() > self.deadline {
                let _ = self.child.kill();
                let status = self.child.wait().expect("wait");
                let done = self.done(status);
                panic!("the run took longer than its deadline: {done:?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
        let status = self.status.expect("ended");
        self.done(status)
    }

    fn done(&mut self, status: ExitStatus) -> Done {
        let done = Done {
            words: self.words.join(" "),
            code: status.code(),
            signal: status.signal(),
            raw_stdout: self.stdout.finish(),
            raw_stderr: self.stderr.finish(),
            audit: self.audit.take(),
            took: self.began.elapsed(),
        };
        self.cx.remember(&done);
        done
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        if !self.ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns a field of a process's `/proc/PID/status` in kB.
pub fn memory_kb(pid: Pid, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Returns the state of a process (proc_pid_stat(5)), unless it has ended.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns whether a process is in the foreground of its terminal: fields 5 and 8 of `/proc/PID/stat`
/// (proc_pid_stat(5)) are equal.
pub(crate) fn is_in_foreground(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let groups: Vec<&str> = fields.split(' ').skip(2).step_by(3).take(2).collect();
    matches!(groups[..], [own, foreground] if own == foreground)
}

/// Returns the user and system time of a process: fields 14 and 15 of `/proc/PID/stat` (proc(5)); 0 after its end.
pub fn ticks(pid: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// A stream that a thread reads, so that no writer blocks.
struct Collected {
    chunks: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Collected {
    fn take_in(&mut self) {
        self.bytes.extend(self.chunks.try_iter().flatten());
    }

    /// Takes in what arrives shortly after the end. A process that outlives exeat would keep the pipe open forever.
    fn finish(&mut self) -> Vec<u8> {
        let end = Instant::now() + Duration::from_secs(2);
        while let Ok(chunk) = self.chunks.recv_timeout(end.saturating_duration_since(Instant::now())) {
            self.bytes.extend(chunk);
        }
        std::mem::take(&mut self.bytes)
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> Collected {
    let (send, chunks) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if send.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    Collected { chunks, bytes: Vec::new() }
}

/// An ended run.
pub struct Done {
    words: String,
    /// The exit code, unless a signal ended exeat itself.
    pub code: Option<i32>,
    /// The signal that ended exeat itself.
    pub signal: Option<i32>,
    /// Standard output, byte for byte.
    pub raw_stdout: Vec<u8>,
    raw_stderr: Vec<u8>,
    audit: Option<PathBuf>,
    /// The time from start to end.
    pub took: Duration,
}

impl Done {
    /// Returns standard output as text.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.raw_stdout).into_owned()
    }

    /// Returns standard error as text.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.raw_stderr).into_owned()
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn exits(&self, code: i32) -> &Self {
        // A shell says 130 for both.
        let code_or_signal =
            self.code.or(self.signal.filter(|signal| *signal == 2).map(|signal| 128 + signal));
        assert_eq!(code_or_signal, Some(code), "exit code of {self:?}");
        self
    }

    /// Checks that standard output is exactly this.
    #[track_caller]
    pub fn prints(&self, text: &str) -> &Self {
        assert_eq!(self.stdout(), text, "stdout of {self:?}");
        self
    }

    /// Checks that standard output contains this.
    #[track_caller]
    pub fn shows(&self, text: &str) -> &Self {
        assert!(self.stdout().contains(text), "no `{text}` on stdout of {self:?}");
        self
    }

    /// Checks that standard error contains this.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(self.stderr().contains(text), "no `{text}` on stderr of {self:?}");
        self
    }

    /// Checks that standard error is empty.
    #[track_caller]
    pub fn silent(&self) -> &Self {
        assert_eq!(self.stderr(), "", "stderr of {self:?}");
        self
    }

    /// Checks that standard error contains only the note about unchecked signatures.
    #[track_caller]
    pub fn says_nothing_more(&self) -> &Self {
        assert_eq!(
            self.stderr(),
            "exeat: note: signatures are not checked here; `exeat audit verify` checks them\n",
            "stderr of {self:?}"
        );
        self
    }

    /// Parses standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.raw_stdout)
            .unwrap_or_else(|error| panic!("{error} in stdout of {self:?}"))
    }

    /// Returns the record of the run, and checks it.
    #[track_caller]
    pub fn record(&self) -> AuditLog {
        let log = self.record_so_far();
        log.sound();
        log
    }

    /// Returns the record of a killed run, which may lack its end.
    pub fn record_so_far(&self) -> AuditLog {
        AuditLog::read(self.audit.as_ref().expect("a run with --audit"))
    }

    /// Returns the path of the record.
    pub fn record_path(&self) -> Option<&Path> {
        self.audit.as_deref()
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = |text: String| {
            if text.len() > 4000 { format!("{}...", &text[..4000.min(text.len())]) } else { text }
        };
        writeln!(f, "`{}`", self.words)?;
        writeln!(f, "  code {:?}, signal {:?}, {:?}", self.code, self.signal, self.took)?;
        writeln!(f, "--- stdout\n{}", cut(String::from_utf8_lossy(&self.raw_stdout).into_owned()))?;
        writeln!(f, "--- stderr\n{}", cut(self.stderr()))
    }
}

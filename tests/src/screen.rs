//! Runs a command on a terminal: a real pair, whose other side types and reads.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::poll::{PollFd, PollFlags, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};
use nix::unistd::Pid;

use crate::run::{Run, is_in_foreground, state_of};
use crate::wait_for;

/// The rows and columns at the start.
pub const SIZE: (u16, u16) = (33, 99);
/// The longest wait for one event.
const WAIT: Duration = Duration::from_secs(20);

/// A command on a private terminal, which controls it. Dropping this hangs up and kills the command.
pub struct Screen {
    master: Option<File>,
    /// Keeps the terminal's settings readable after the command.
    slave: Option<OwnedFd>,
    name: PathBuf,
    child: Child,
    bytes: Receiver<Vec<u8>>,
    /// Ends the reading thread, which has a copy of the master.
    over: Arc<AtomicBool>,
    reader: Option<thread::JoinHandle<()>>,
    shown: String,
    words: String,
    deadline: Instant,
}

impl Run<'_> {
    /// Starts the command in the foreground of a terminal.
    pub fn on_terminal(self) -> Screen {
        // Close-on-exec from the start: a copy in another trial's process would prevent a hang-up.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let master = posix_openpt(flags).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("its other side");
        let name = PathBuf::from(ptsname_r(&master).expect("its name"));
        let slave = open(&name, flags, Mode::empty()).expect("its other side");
        let stream = || Stdio::from(slave.try_clone().expect("a copy"));
        set_size(&name, SIZE);
        let mut command = Command::new("setsid");
        command.arg("--ctty").args(self.argv()).env_clear().env("TERM", "xterm");
        command.envs(self.env.iter().map(|(name, value)| (name, value))).current_dir(&self.cwd);
        let child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().expect("setsid");
        drop(command);
        let master = File::from(OwnedFd::from(master));
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("without blocking");
        let mut reader = master.try_clone().expect("a copy");
        // Keeps few chunks here, so that unread output stays in the terminal.
        let (send, bytes) = mpsc::sync_channel(4);
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !is_over.load(Ordering::SeqCst) {
                let mut fds = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
                if poll(&mut fds, 20_u8) == Ok(0) {
                    continue;
                }
                let count = match reader.read(&mut buffer) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Ok(count @ 1..) => count,
                    _ => return,
                };
                let mut chunk = buffer[..count].to_vec();
                while let Err(TrySendError::Full(back)) = send.try_send(chunk) {
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    thread::sleep(Duration::from_millis(1));
                    chunk = back;
                }
            }
        });
        Screen {
            master: Some(master),
            slave: Some(slave),
            name,
            child,
            bytes,
            over,
            reader: Some(reader),
            shown: String::new(),
            words: self.words.join(" "),
            deadline: Instant::now() + self.deadline,
        }
    }
}

impl Screen {
    /// Returns the process id of the command.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    /// Returns the terminal's path on the host.
    pub fn name(&self) -> &str {
        self.name.to_str().expect("ASCII")
    }

    /// Types.
    pub fn types(&mut self, keys: impl AsRef<[u8]>) -> &mut Self {
        let mut master = self.master.as_ref().expect("not hung up");
        let mut rest = keys.as_ref();
        let end = Instant::now() + WAIT;
        while !rest.is_empty() {
            match master.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(1))
                }
                Err(error) => panic!("typing: {error}"),
            }
            assert!(Instant::now() < end, "`{}` takes no more: {} bytes are left", self.words, rest.len());
        }
        self
    }

    /// Waits for `text` in the output after the last match. Returns the output before it.
    #[track_caller]
    pub fn until(&mut self, text: &str) -> String {
        let end = Instant::now() + WAIT;
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            if !self.take_in(Duration::from_millis(20)) && Instant::now() > end {
                panic!("no `{text}` on the terminal of `{}`, but `{}`", self.words, self.tail());
            }
        }
    }

    /// Returns the output after the last match, once it has been quiet for this time.
    pub fn rest(&mut self, quiet: Duration) -> String {
        while self.take_in(quiet) {}
        std::mem::take(&mut self.shown)
    }

    fn take_in(&mut self, wait: Duration) -> bool {
        let chunk = self.bytes.recv_timeout(wait);
        chunk.map(|chunk| self.shown.push_str(&String::from_utf8_lossy(&chunk))).is_ok()
    }

    /// Returns the end of what was shown.
    #[must_use]
    pub fn tail(&self) -> String {
        let start = self.shown.len().saturating_sub(2000);
        self.shown.chars().skip(start).collect()
    }

    /// Returns the terminal's settings.
    pub fn settings(&self) -> Termios {
        tcgetattr(self.master.as_ref().expect("not hung up")).expect("settings")
    }

    /// Waits until the terminal is in raw mode, or is not.
    #[track_caller]
    pub fn until_raw(&mut self, raw: bool) -> &mut Self {
        let is_raw = || !self.settings().local_flags.intersects(LocalFlags::ICANON | LocalFlags::ISIG);
        wait_for(WAIT, "the terminal to be set", || (is_raw() == raw).then_some(()));
        self
    }

    /// Returns the descendants of the command whose names start with this.
    pub fn pids(&self, name: &str) -> Vec<u32> {
        let below = crate::leftover::below(self.child.id());
        let named =
            below.iter().filter_map(|line| line.split_once(' ')).filter(|(_, it)| it.starts_with(name));
        named.filter_map(|(pid, _)| pid.parse().ok()).collect()
    }

    /// Waits until a process of that name sleeps, so that it has started and is not stopped.
    #[track_caller]
    pub fn until_waits(&mut self, name: &str) -> &mut Self {
        wait_for(WAIT, &format!("`{name}` to wait"), || {
            let pids = self.pids(name);
            (!pids.is_empty() && pids.iter().all(|pid| state_of(*pid) == Some('S'))).then_some(())
        });
        self
    }

    /// Waits until a process of that name is in the foreground of its terminal, and gets the keys.
    #[track_caller]
    pub fn until_foreground(&mut self, name: &str) -> &mut Self {
        wait_for(WAIT, &format!("`{name}` in the foreground"), || {
            self.pids(name).into_iter().any(is_in_foreground).then_some(())
        });
        self
    }

    /// Waits until the process of that name stops writing, because nobody reads.
    #[track_caller]
    pub fn until_quiet(&mut self, name: &str) -> &mut Self {
        /// The number of looks without a new byte.
        const LOOKS: u32 = 50;
        let (mut before, mut looks) = (None, 0);
        wait_for(WAIT, &format!("`{name}` to write no more"), || {
            let now = self.pids(name).first().and_then(|pid| written(*pid));
            looks = if now.is_some() && now == before { looks + 1 } else { 0 };
            before = now;
            (looks >= LOOKS).then_some(())
        });
        self
    }

    /// Sets the size, as when a window is enlarged.
    pub fn resize(&mut self, rows: u16, columns: u16) -> &mut Self {
        set_size(&self.name, (rows, columns));
        self
    }

    /// Sets the terminal with words of stty(1), as a shell or a user would.
    pub fn set(&mut self, words: &[&str]) -> &mut Self {
        let done = Command::new("stty").arg("-F").arg(&self.name).args(words).status();
        assert!(done.expect("stty").success());
        self
    }

    /// Returns rows and columns.
    pub fn size(&self) -> (u16, u16) {
        let said = Command::new("stty").arg("-F").arg(&self.name).arg("size").output().expect("stty").stdout;
        let said = String::from_utf8(said).expect("ASCII");
        let mut numbers = said.split_whitespace().map(|word| word.parse().expect("a number"));
        (numbers.next().expect("rows"), numbers.next().expect("columns"))
    }

    /// Returns whether the command has ended, without reading the terminal.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// Sends a signal to the command alone.
    pub fn signal(&self, signal: Signal) -> &Self {
        kill(self.pid(), signal).expect("it runs");
        self
    }

    /// Hangs up, as when a window is closed.
    pub fn hang_up(&mut self) -> &mut Self {
        self.over.store(true, Ordering::SeqCst);
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader");
        }
        drop(self.slave.take());
        drop(self.master.take());
        self
    }

    /// Waits for the end. Returns the exit code, or the negative number of the signal.
    #[track_caller]
    pub fn wait(&mut self) -> i32 {
        loop {
            while self.take_in(Duration::ZERO) {}
            if let Some(status) = self.child.try_wait().expect("wait") {
                while self.take_in(Duration::from_millis(20)) {}
                return status.code().unwrap_or_else(|| -status.signal().expect("one of the two"));
            }
            assert!(Instant::now() < self.deadline, "`{}` takes too long: `{}`", self.words, self.tail());
            thread::sleep(Duration::from_millis(3));
        }
    }
}

/// Returns the number of bytes that a process has written (proc_pid_io(5), `wchar`).
fn written(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("wchar: "))?.parse().ok()
}

fn set_size(name: &Path, (rows, columns): (u16, u16)) {
    let (rows, columns) = (rows.to_string(), columns.to_string());
    let done = Command::new("stty").arg("-F").arg(name).args(["rows", &rows, "cols", &columns]).status();
    assert!(done.expect("stty").success());
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

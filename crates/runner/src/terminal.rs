//! Copies between the caller's terminal and the stage's own terminal.
//!
//! The caller's terminal stays outside the sandbox: the stage's settings, queries and injected input affect only its own. stage2 makes
//! that terminal inside, and this module has its master. A thread copies in both directions without blocking, and buffers a bounded
//! number of bytes. It interprets only the characters that interrupt and suspend.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exeat_contract::{Terminal as Wanted, TerminalSettings};
use exeat_sandbox::backend::Handle;
use exeat_sandbox::terminal::{RestoredOnDeath, set_size, signal_foreground, size};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::stat::{fstat, makedev};
use nix::sys::termios::{
    FlushArg, InputFlags, LocalFlags, OutputFlags, SetArg, SpecialCharacterIndices, Termios, cfmakeraw,
    tcflush, tcgetattr, tcsetattr,
};
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::net::unix::pipe;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::output::Meter;
use crate::run::streams::null;

/// Bytes that are buffered in each direction for a slow reader.
const ROOM: usize = 64 << 10;
/// Bytes of one read: the kernel's buffer of a terminal (N_TTY_BUF_SIZE, drivers/tty/n_tty.c).
const CHUNK: usize = 4096;
/// The device number of every pseudo-terminal's master (devices.txt of the kernel: `/dev/ptmx`, and devpts has the same).
const PTMX: libc::dev_t = makedev(5, 2);
/// The time between two checks in the background, because a shell's `fg` of a running job sends no signal.
const BACKGROUND: u8 = 200; // ms
/// The time between two checks of a closed terminal, which the stage may open again.
const CLOSED: u8 = 50; // ms
/// The time from the end of the stage to the end of its terminal, which no process has open then.
const LAST: Duration = Duration::from_secs(1);

/// The caller's terminal of a stage that gets its own.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Opened again with `O_NONBLOCK`: the flag belongs to the open file, which the caller's streams share.
    tty: File,
    /// The settings that stage2 must apply.
    pub(crate) wanted: Wanted,
}

impl Terminal {
    /// Whether the stage gets its own terminal: when standard input and output are this process's controlling terminal.
    pub(crate) fn is_wanted([input, output, _]: &[OwnedFd; 3]) -> bool {
        is_controlling(output) && is_controlling(input)
    }

    /// Returns `None` if the stage gets its streams unchanged.
    ///
    /// # Errors
    /// Returns an error when that terminal cannot be opened again or inspected.
    pub(crate) fn for_streams(streams: &[OwnedFd; 3]) -> io::Result<Option<Self>> {
        if !Self::is_wanted(streams) {
            return Ok(None);
        }
        let [input, ..] = streams;
        let tty = opened_anew(input)?;
        let mut found = tcgetattr(&tty)?;
        if tcgetpgrp(&tty) != Ok(getpgrp()) {
            // The foreground has set it for itself, such as a shell that edits its line.
            found.input_flags.insert(InputFlags::ICRNL);
            found.output_flags.insert(OutputFlags::OPOST | OutputFlags::ONLCR);
            let line = LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG | LocalFlags::IEXTEN;
            found.local_flags.insert(line);
        }
        // Other terminals stay where they are, like files.
        let numbers = streams.iter().enumerate().filter(|(_, stream)| is_controlling(stream));
        let wanted = Wanted {
            streams: numbers.fold(0, |mask, (number, _)| mask | 1 << number),
            size: size(&tty)?,
            settings: settings(&found),
        };
        Ok(Some(Self { tty, wanted }))
    }

    /// Returns whether the terminal replaces the stream with this number.
    pub(crate) fn replaces(&self, number: usize) -> bool {
        self.wanted.streams & (1 << number) != 0
    }

    /// Starts to copy. Needs a runtime.
    pub(crate) fn copy(
        self,
        master: OwnedFd,
        stage: Handle,
        meter: Option<Meter>,
        may_suspend: bool,
    ) -> io::Result<Copying> {
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (wake_end, wake) = io::pipe()?;
        let (done, alive) = io::pipe()?;
        let (suspend_to, suspends) = channel(1);
        let caller = Arc::new(Caller { tty: self.tty, state: Mutex::new(State::default()) });
        let mut pump = Pump {
            caller: Arc::clone(&caller),
            master: master.into(),
            wake: wake_end,
            input: VecDeque::with_capacity(ROOM),
            output: VecDeque::with_capacity(ROOM),
            meter,
            stage,
            suspends: may_suspend.then_some(suspend_to),
            size: self.wanted.size,
            closed: false,
            stuck: false,
        };
        let done = pipe::Receiver::from_owned_fd(done.into())?;
        let body = move || {
            // By default these signals stop a background process; a thread that blocks them may use the terminal.
            let _ = job_control_signals().thread_block();
            if let Err(error) = pump.run() {
                tracing::debug!(%error, "the terminal ended");
            }
            drop(alive);
        };
        let thread = std::thread::Builder::new().name("terminal".into()).spawn(body)?;
        Ok(Copying { caller, wake: Some(wake), suspends, done, thread: Some(thread) })
    }
}

/// The handle of the copying thread. Dropping it ends the copying, and restores the caller's terminal.
#[derive(Debug)]
pub(crate) struct Copying {
    caller: Arc<Caller>,
    /// Closing it makes the thread drop undelivered output.
    wake: Option<PipeWriter>,
    suspends: Receiver<()>,
    /// Reaches end of file when the thread has ended.
    done: pipe::Receiver,
    thread: Option<JoinHandle<()>>,
}

impl Copying {
    /// Waits until the user types the character that suspends, and the stage is one that it would suspend.
    pub(crate) async fn suspend_typed(&mut self) {
        if self.suspends.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Notes that the caller's terminal may have a new size.
    pub(crate) fn resized(&mut self) {
        self.tell(|state| state.resize = true);
    }

    /// Restores the caller's terminal until [`Copying::resume`].
    pub(crate) fn suspend(&mut self) {
        let mut state = self.caller.state();
        state.suspended = true;
        self.caller.restore(&mut state);
    }

    /// Continues, in the foreground or not.
    pub(crate) fn resume(&mut self) {
        self.tell(|state| {
            state.suspended = false;
            (state.check, state.resize) = (true, true);
        });
    }

    /// Notes that no process of the stage is left: its output is still delivered, but no input is read. Returns whether the user has typed
    /// the character that interrupts.
    pub(crate) fn end(&mut self) -> bool {
        self.tell(|state| {
            state.over.get_or_insert_with(Instant::now);
        });
        self.caller.state().interrupted
    }

    /// Waits until all output is delivered or dropped.
    pub(crate) async fn finished(&self) {
        // Nobody writes to it, so it becomes readable at end of file.
        let _ = self.done.readable().await;
    }

    fn tell(&mut self, change: impl FnOnce(&mut State)) {
        change(&mut self.caller.state());
        if let Some(wake) = &mut self.wake {
            // A thread that has ended needs no wake-up.
            let _ = wake.write(&[0]);
        }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // The thread never blocks. A panic in it was already reported.
            let _ = thread.join();
        }
        self.caller.restore(&mut self.caller.state());
    }
}

/// Keeps a stage without its own terminal from reading the caller's, if this process is in the background there: the kernel stops
/// no reader of another session. Returns whether standard input was replaced.
///
/// # Errors
/// Returns an error when the terminal or `/dev/null` cannot be opened.
pub(crate) fn refuse_reads(streams: &mut [OwnedFd; 3]) -> io::Result<bool> {
    let is_read = |stream: &OwnedFd| is_controlling(stream) && tcgetpgrp(stream) != Ok(getpgrp());
    let [input, outputs @ ..] = streams;
    for output in outputs.iter_mut().filter(|output| is_read(output)) {
        let write = OpenOptions::new().write(true).custom_flags(OFlag::O_NOCTTY.bits()).open("/dev/tty");
        let write = write.map_err(|error| {
            let fix = "start in the foreground, or send the output through a pipe or into a file";
            io::Error::other(format!("/dev/tty: {error}; {fix}"))
        });
        *output = write?.into();
    }
    let is_replaced = is_read(input);
    if is_replaced {
        *input = null()?.into();
    }
    Ok(is_replaced)
}

/// Returns whether this is this process's controlling terminal, by any name. The kernel returns ENOTTY for any other (tcgetpgrp(3)),
/// except for a pseudo-terminal's master (tiocgpgrp, drivers/tty/tty_jobctrl.c), which never is one.
fn is_controlling(stream: impl AsFd) -> bool {
    tcgetpgrp(&stream).is_ok() && fstat(&stream).is_ok_and(|stat| stat.st_rdev != PTMX)
}

/// Opens the controlling terminal `input` again. Its name may be missing in a container or under chroot(8), and the stream's own may be
/// closed to this user after su(1).
fn opened_anew(input: &OwnedFd) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let open = |path: &str| {
        let tty = OpenOptions::new().read(true).write(true).custom_flags(flags.bits()).open(path);
        let tty = tty.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))?;
        is_controlling(&tty).then_some(tty).ok_or(Errno::ENOTTY)
    };
    open("/dev/tty").or_else(|named| {
        open(&format!("/proc/self/fd/{}", input.as_raw_fd())).map_err(|stream| {
            let fix = "`--set sandbox.tty=off` gives the stage the streams as they are";
            io::Error::other(format!("/dev/tty: {named}; standard input, opened anew: {stream}; {fix}"))
        })
    })
}

/// The caller's terminal and its state.
#[derive(Debug)]
struct Caller {
    tty: File,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The settings from before the terminal was made raw.
    raw: Option<Raw>,
    /// Whether a shell may have changed the terminal in the meantime.
    check: bool,
    suspended: bool,
    resize: bool,
    /// Whether the user has typed the character that interrupts.
    interrupted: bool,
    over: Option<Instant>,
}

impl State {
    /// Notes whether these bytes have the character that interrupts, for the stage and for the caller. The stage could choose any other.
    fn note_interrupt(&mut self, keys: &Keys, typed: &[u8]) {
        let callers = self.raw.as_ref().and_then(|raw| Keys::from_settings(&raw.before).interrupt);
        self.interrupted |= keys.interrupt.is_some_and(|key| callers == Some(key) && typed.contains(&key));
    }
}

#[derive(Debug)]
struct Raw {
    before: Termios,
    /// The settings that were applied.
    made: Termios,
    /// Whether its keys are bytes for the stage.
    keys: bool,
    _on_death: RestoredOnDeath,
}

impl Caller {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_in_foreground(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(getpgrp())
    }

    /// Makes every key a byte for the stage's terminal, which turns some into signals.
    fn enter(&self, state: &mut State) -> io::Result<()> {
        let before = tcgetattr(&self.tty)?;
        if state.raw.as_ref().is_some_and(|raw| raw.made == before) {
            // Nobody has changed the settings.
            return Ok(());
        }
        let on_death = RestoredOnDeath::new(self.tty.try_clone()?.into(), &settings(&before))?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        // Input that was typed ahead is kept.
        tcsetattr(&self.tty, SetArg::TCSANOW, &raw)?;
        state.raw = Some(Raw { before, made: tcgetattr(&self.tty)?, keys: true, _on_death: on_death });
        Ok(())
    }

    /// Restores the meaning of keys, because nobody reads them any more. The remaining output is still shown raw.
    fn return_keys(&self, state: &mut State) -> io::Result<()> {
        let Some(raw) = state.raw.as_mut().filter(|raw| raw.keys) else { return Ok(()) };
        let mut shows = raw.before.clone();
        shows.output_flags.remove(OutputFlags::OPOST);
        tcsetattr(&self.tty, SetArg::TCSANOW, &shows)?;
        (raw.made, raw.keys) = (tcgetattr(&self.tty)?, false);
        Ok(())
    }

    /// Restores the settings in the foreground; in the background the terminal belongs to others.
    fn restore(&self, state: &mut State) {
        let Some(raw) = state.raw.take() else { return };
        let old = job_control_signals().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        if self.is_in_foreground() {
            // A terminal that is gone needs no restoring.
            let _ = tcsetattr(&self.tty, SetArg::TCSANOW, &raw.before);
        }
        if let Ok(old) = old {
            let _ = old.thread_set_mask();
        }
    }
}

fn job_control_signals() -> SigSet {
    [Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect()
}

/// The thread that copies.
struct Pump {
    caller: Arc<Caller>,
    master: File,
    wake: PipeReader,
    /// Typed bytes that the stage's terminal has not taken yet.
    input: VecDeque<u8>,
    /// Output of the stage that the caller's terminal has not taken yet.
    output: VecDeque<u8>,
    meter: Option<Meter>,
    stage: Handle,
    suspends: Option<Sender<()>>,
    /// The last size that was passed on.
    size: [u16; 4],
    /// Whether nobody has the stage's terminal open, temporarily or permanently.
    closed: bool,
    /// Whether nobody has it open, its output does not fit here, and it takes no input: then poll(2) would return at once.
    stuck: bool,
}

impl Pump {
    /// Returns at the end of the stage or of the caller's terminal, or when it is canceled. Closing the master sends SIGHUP to processes
    /// that are left on the stage's terminal, which they cannot use any more.
    fn run(&mut self) -> io::Result<()> {
        loop {
            let Now { reads, writes, foreground, over } = self.settle()?;
            if let Some(since) = over
                && self.output.is_empty()
                && (self.closed || since.elapsed() > LAST)
            {
                return Ok(());
            }
            let mut typed = PollFlags::empty();
            typed.set(PollFlags::POLLIN, reads && self.input.len() < ROOM);
            typed.set(PollFlags::POLLOUT, writes && !self.output.is_empty());
            let mut made = PollFlags::empty();
            made.set(PollFlags::POLLIN, self.output.len() < ROOM);
            made.set(PollFlags::POLLOUT, !self.input.is_empty());
            let timeout = match (self.closed || self.stuck || over.is_some(), foreground) {
                (true, _) => PollTimeout::from(CLOSED),
                (false, false) => PollTimeout::from(BACKGROUND),
                (false, true) => PollTimeout::NONE,
            };
            let mut fds = vec![
                PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.caller.tty.as_fd(), typed),
            ];
            if !self.closed && !self.stuck && !made.is_empty() {
                fds.push(PollFd::new(self.master.as_fd(), made));
            }
            match poll(&mut fds, timeout) {
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(_) => {}
            }
            let found = |n: usize| fds.get(n).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
            let (wake, tty, master) = (found(0), found(1), found(2));
            if !wake.is_empty() && self.wake.read(&mut [0; 64])? == 0 {
                return Ok(());
            }
            if tty.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
                return Ok(());
            }
            if tty.contains(PollFlags::POLLIN) {
                self.read_typed()?;
            }
            if over.is_some() {
                self.input.clear();
            }
            self.stuck = master.contains(PollFlags::POLLHUP);
            if !self.input.is_empty() && (self.closed || master.contains(PollFlags::POLLOUT)) {
                self.stuck &= !self.write_typed()?;
            }
            let gone = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
            if self.output.len() < ROOM && (self.closed || master.intersects(gone)) {
                self.read_made()?;
                self.stuck = false;
            }
            if tty.contains(PollFlags::POLLOUT) {
                self.write_made()?;
            }
        }
    }

    /// Updates the state of the caller's terminal, and the size of the stage's.
    fn settle(&mut self) -> io::Result<Now> {
        let foreground = self.caller.is_in_foreground();
        let mut state = self.caller.state();
        if !foreground {
            state.check = true;
        } else if !state.suspended && (state.raw.is_none() || state.check) {
            self.caller.enter(&mut state)?;
            (state.check, state.resize) = (false, true);
        }
        if foreground && !state.suspended && state.over.is_some() && !self.output.is_empty() {
            self.caller.return_keys(&mut state)?;
        }
        if std::mem::take(&mut state.resize) {
            let size = size(&self.caller.tty)?;
            // The stage may have set another size, which stays until the window changes.
            if size != self.size {
                set_size(&self.master, size)?;
                self.size = size;
            }
        }
        let stops = LocalFlags::TOSTOP;
        let writes = foreground || !tcgetattr(&self.caller.tty)?.local_flags.contains(stops);
        let reads = foreground && !state.suspended && state.over.is_none();
        Ok(Now { reads, writes, foreground, over: state.over })
    }

    fn read_typed(&mut self) -> io::Result<()> {
        if !self.input.is_empty() {
            self.write_typed()?;
        }
        // The stage's terminal accepts no more input for now.
        let stuck = !self.input.is_empty();
        let mut chunk = [0; CHUNK];
        let room = chunk.len().min(ROOM - self.input.len());
        let Some(count) = now((&self.caller.tty).read(chunk.get_mut(..room).unwrap_or_default()), true)?
        else {
            return Ok(());
        };
        let typed = chunk.get(..count).unwrap_or_default();
        let keys = Keys::read(&self.master)?;
        self.caller.state().note_interrupt(&keys, typed);
        let typed = match keys.interrupts(typed).filter(|_| stuck) {
            Some((at, signal)) => {
                // The kernel would process the key only after the rest is read, which may be never. It drops the earlier input.
                self.input.clear();
                tcflush(&self.master, FlushArg::TCOFLUSH)?;
                signal_foreground(&self.master, signal)?;
                typed.get(at + 1..).unwrap_or_default()
            }
            None => typed,
        };
        if keys.suspends(typed)
            && self.stage.stage_is_in_foreground(self.master.as_fd())
            && self.stage.stage_takes_default(Signal::SIGTSTP as libc::c_int)
            && let Some(suspends) = &self.suspends
        {
            // One pending request is enough.
            let _ = suspends.try_send(());
        }
        self.input.extend(typed);
        Ok(())
    }

    /// Returns whether any byte was accepted. A terminal that nobody has open may refuse input while there is still output to read.
    fn write_typed(&mut self) -> io::Result<bool> {
        let (bytes, _) = self.input.as_slices();
        let taken = now(self.master.write(bytes), true)?.unwrap_or(0);
        self.input.drain(..taken);
        Ok(taken > 0)
    }

    fn read_made(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        let room = chunk.len().min(ROOM - self.output.len());
        let count = match self.master.read(chunk.get_mut(..room).unwrap_or_default()) {
            // The kernel returns this if nobody has the other side open (drivers/tty/pty.c, TTY_OTHER_CLOSED).
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                self.closed = true;
                return Ok(());
            }
            other => now(other, false)?,
        };
        self.closed = false;
        let made = chunk.get(..count.unwrap_or(0)).unwrap_or_default();
        let granted = self.meter.as_ref().map_or(made.len(), |meter| meter.take(made.len()));
        self.output.extend(made.get(..granted).unwrap_or_default());
        if let Some(meter) = &self.meter
            && granted < made.len()
        {
            meter.stop();
        }
        Ok(())
    }

    fn write_made(&mut self) -> io::Result<()> {
        let (bytes, _) = self.output.as_slices();
        let taken = now((&self.caller.tty).write(bytes), false)?;
        self.output.drain(..taken.unwrap_or(0));
        Ok(())
    }
}

/// The possible actions of one round.
struct Now {
    reads: bool,
    writes: bool,
    foreground: bool,
    over: Option<Instant>,
}

/// Returns the number of bytes, or `None` if nothing was possible for now. With `background`, that includes the kernel's refusal for a
/// background process, or for a terminal that nobody has open.
fn now(done: io::Result<usize>, background: bool) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) if background && error.raw_os_error() == Some(libc::EIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The special characters of the stage's terminal.
struct Keys {
    interrupt: Option<u8>,
    quit: Option<u8>,
    suspend: Option<u8>,
    /// Whether input before the character is kept.
    keeps: bool,
}

impl Keys {
    fn read(master: &File) -> io::Result<Self> {
        Ok(Self::from_settings(&tcgetattr(master)?))
    }

    fn from_settings(found: &Termios) -> Self {
        let signals = found.local_flags.contains(LocalFlags::ISIG);
        let key = |which: SpecialCharacterIndices| {
            let key = found.control_chars.get(which as usize).copied();
            key.filter(|key| signals && *key != libc::_POSIX_VDISABLE)
        };
        Self {
            interrupt: key(SpecialCharacterIndices::VINTR),
            quit: key(SpecialCharacterIndices::VQUIT),
            suspend: key(SpecialCharacterIndices::VSUSP),
            keeps: found.local_flags.contains(LocalFlags::NOFLSH),
        }
    }

    /// Returns the last character that interrupts, if it drops the input before it.
    fn interrupts(&self, typed: &[u8]) -> Option<(usize, Signal)> {
        let keys = [(self.interrupt, Signal::SIGINT), (self.quit, Signal::SIGQUIT)];
        let last = |key: u8| typed.iter().rposition(|byte| *byte == key);
        let found = keys.into_iter().filter_map(|(key, signal)| Some((key.and_then(last)?, signal)));
        found.max_by_key(|(at, _)| *at).filter(|_| !self.keeps)
    }

    fn suspends(&self, typed: &[u8]) -> bool {
        self.suspend.is_some_and(|key| typed.contains(&key))
    }
}

/// Returns the settings in the kernel's format.
fn settings(termios: &Termios) -> TerminalSettings {
    let words = [
        termios.input_flags.bits(),
        termios.output_flags.bits(),
        termios.control_flags.bits(),
        termios.local_flags.bits(),
    ];
    let mut settings = [0; 36];
    // The line discipline between flags and characters stays 0, which is N_TTY.
    let flags = words.into_iter().flat_map(u32::to_ne_bytes);
    let bytes = flags.chain([0]).chain(termios.control_chars);
    settings.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    settings
}

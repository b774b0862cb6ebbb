//! A stage on a terminal of the sandbox's own, and the copying between that and exeat's.
//!
//! exeat's terminal stays out of the sandbox: what the stage sets, asks or pushes, it does to its own. It is made inside, by
//! stage2; here is its master. A thread copies both ways, never blocks, and holds a bounded number of bytes. What this does
//! not do: look at what is copied, but for the characters that interrupt and suspend.

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
    FlushArg, LocalFlags, OutputFlags, SetArg, SpecialCharacterIndices, Termios, cfmakeraw, tcflush,
    tcgetattr, tcsetattr,
};
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::net::unix::pipe;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::output::Meter;

/// Bytes that are held in each direction while its reader is slow.
const ROOM: usize = 64 << 10;
/// Bytes that are read at a time: the kernel's own buffer of a terminal (N_TTY_BUF_SIZE, drivers/tty/n_tty.c).
const CHUNK: usize = 4096;
/// The device of every pseudo-terminal's master (devices.txt of the kernel: `/dev/ptmx`, and devpts has the same).
const PTMX: libc::dev_t = makedev(5, 2);
/// In the background there is no word of being in the foreground again: a shell's `fg` of a job that runs sends no signal.
const BACKGROUND: u8 = 200; // ms
/// A stage that has closed its terminal everywhere may open it again.
const CLOSED: u8 = 50; // ms
/// From the end of the stage to the end of its terminal, which no process has open any more by then.
const LAST: Duration = Duration::from_secs(1);

/// exeat's terminal, where the stage is to have one of its own.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Opened anew and non-blocking: the flag belongs to the description, and that of the streams is the caller's too.
    tty: File,
    /// What to ask of stage2.
    pub(crate) wanted: Wanted,
}

impl Terminal {
    /// `None` where the stage gets its streams as they are: when not both standard input and output are this process's
    /// controlling terminal, or when this process is in its background.
    ///
    /// # Errors
    /// When that terminal cannot be opened anew, or says nothing of itself.
    pub(crate) fn of(streams: &[OwnedFd; 3]) -> io::Result<Option<Self>> {
        let [input, output, _] = streams;
        if !is_controlling(output) || !is_controlling(input) || tcgetpgrp(input) != Ok(getpgrp()) {
            return Ok(None);
        }
        let tty = opened_anew(input)?;
        // Another terminal stays where it is, as a file does.
        let numbers = streams.iter().enumerate().filter(|(_, stream)| is_controlling(stream));
        let wanted = Wanted {
            streams: numbers.fold(0, |mask, (number, _)| mask | 1 << number),
            size: size(&tty)?,
            settings: settings(&tcgetattr(&tty)?),
        };
        Ok(Some(Self { tty, wanted }))
    }

    /// Whether the terminal takes the place of this stream, by its number.
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
            // To a process in the background these mean stop; to a thread that blocks them, that the terminal may be used.
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

/// The copying, as seen from the thread that waits for the stage. Dropping it ends it, and restores exeat's terminal.
#[derive(Debug)]
pub(crate) struct Copying {
    caller: Arc<Caller>,
    /// Its end of file makes the thread give up what is not delivered.
    wake: Option<PipeWriter>,
    suspends: Receiver<()>,
    /// Reaches end of file when the thread has ended.
    done: pipe::Receiver,
    thread: Option<JoinHandle<()>>,
}

impl Copying {
    /// Waits until somebody has typed the character that suspends, and the stage is one that it would suspend.
    pub(crate) async fn suspend_typed(&mut self) {
        if self.suspends.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// exeat's terminal may have another size now.
    pub(crate) fn resized(&mut self) {
        self.tell(|state| state.resize = true);
    }

    /// Gives exeat's terminal back, until [`Copying::resume`].
    pub(crate) fn suspend(&mut self) {
        let mut state = self.caller.state();
        state.suspended = true;
        self.caller.leave(&mut state);
    }

    /// Goes on, in the foreground or not.
    pub(crate) fn resume(&mut self) {
        self.tell(|state| {
            state.suspended = false;
            (state.check, state.resize) = (true, true);
        });
    }

    /// No process of the stage is left: what it wrote is delivered, and nothing more is read.
    pub(crate) fn end(&mut self) {
        self.tell(|state| {
            state.over.get_or_insert_with(Instant::now);
        });
    }

    /// Waits until all is delivered or given up.
    pub(crate) async fn finished(&self) {
        // Nobody writes there: readable is the end of file.
        let _ = self.done.readable().await;
    }

    fn tell(&mut self, change: impl FnOnce(&mut State)) {
        change(&mut self.caller.state());
        if let Some(wake) = &mut self.wake {
            // A thread that has ended needs no waking.
            let _ = wake.write(&[0]);
        }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // It never blocks. A panic in it has been reported.
            let _ = thread.join();
        }
        self.caller.leave(&mut self.caller.state());
    }
}

/// Whether this leads to this process's controlling terminal, by whatever name it was opened. The kernel says ENOTTY of any
/// other (tcgetpgrp(3)), but not of a pseudo-terminal's master (tiocgpgrp, drivers/tty/tty_jobctrl.c): one is never ours.
fn is_controlling(stream: impl AsFd) -> bool {
    tcgetpgrp(&stream).is_ok() && fstat(&stream).is_ok_and(|stat| stat.st_rdev != PTMX)
}

/// The controlling terminal, which `input` is. Its name may be missing, in a container or under chroot(8); the stream's own
/// may be closed to this user, after su(1).
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

/// exeat's terminal, and what is done to it.
#[derive(Debug)]
struct Caller {
    tty: File,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How the terminal was before it was made raw.
    raw: Option<Raw>,
    /// A shell may have set the terminal as it likes meanwhile.
    check: bool,
    suspended: bool,
    resize: bool,
    over: Option<Instant>,
}

#[derive(Debug)]
struct Raw {
    before: Termios,
    /// How it was then.
    made: Termios,
    /// Its keys are bytes for the stage.
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

    /// Every key is a byte for the stage's own terminal, which makes signals of some.
    fn enter(&self, state: &mut State) -> io::Result<()> {
        let before = tcgetattr(&self.tty)?;
        if state.raw.as_ref().is_some_and(|raw| raw.made == before) {
            // Nobody has touched it.
            return Ok(());
        }
        let on_death = RestoredOnDeath::new(self.tty.try_clone()?.into(), &settings(&before))?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        // What was typed ahead is kept.
        tcsetattr(&self.tty, SetArg::TCSANOW, &raw)?;
        state.raw = Some(Raw { before, made: tcgetattr(&self.tty)?, keys: true, _on_death: on_death });
        Ok(())
    }

    /// The keys mean again what they did: nobody is left to read them. What is still to be shown is shown as it is.
    fn return_keys(&self, state: &mut State) -> io::Result<()> {
        let Some(raw) = state.raw.as_mut().filter(|raw| raw.keys) else { return Ok(()) };
        let mut shows = raw.before.clone();
        shows.output_flags.remove(OutputFlags::OPOST);
        tcsetattr(&self.tty, SetArg::TCSANOW, &shows)?;
        (raw.made, raw.keys) = (tcgetattr(&self.tty)?, false);
        Ok(())
    }

    /// In the background the terminal is as somebody else wants it.
    fn leave(&self, state: &mut State) {
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
    /// Typed, and not taken by the stage's terminal yet.
    input: VecDeque<u8>,
    /// Written by the stage, and not taken by exeat's terminal yet.
    output: VecDeque<u8>,
    meter: Option<Meter>,
    stage: Handle,
    suspends: Option<Sender<()>>,
    /// Of exeat's terminal, when it was last passed on.
    size: [u16; 4],
    /// Nobody has the stage's terminal open, at the moment or for good.
    closed: bool,
    /// The same, and what it wrote has no room here, and it takes nothing: poll(2) would return at once, for nothing.
    stuck: bool,
}

impl Pump {
    /// Returns at the end of the stage, of exeat's terminal, or when it is cancelled. The master is closed then: whoever is
    /// left on the stage's terminal gets SIGHUP, and can use it no more.
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

    /// Makes exeat's terminal what it should be by now, and the stage's as large.
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
            // The stage may have set another one for itself, which stays as long as the window does.
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
        // The stage's terminal takes no more for now.
        let stuck = !self.input.is_empty();
        let mut chunk = [0; CHUNK];
        let room = chunk.len().min(ROOM - self.input.len());
        let Some(count) = now((&self.caller.tty).read(chunk.get_mut(..room).unwrap_or_default()), true)?
        else {
            return Ok(());
        };
        let typed = chunk.get(..count).unwrap_or_default();
        let keys = Keys::of(&self.master)?;
        let typed = match keys.interrupts(typed).filter(|_| stuck) {
            Some((at, signal)) => {
                // The kernel would come to it when the rest is read, which may be never. It throws away what is before.
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
            // One that is asked for already is enough.
            let _ = suspends.try_send(());
        }
        self.input.extend(typed);
        Ok(())
    }

    /// Whether anything was taken. A terminal that nobody has open may refuse it, while there is still something to read.
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
            // Nobody has the other side open (drivers/tty/pty.c, TTY_OTHER_CLOSED).
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

/// What holds for one round.
struct Now {
    reads: bool,
    writes: bool,
    foreground: bool,
    over: Option<Instant>,
}

/// What went through; `None` where nothing could, for now. `background`: also where the kernel refuses what is not in the
/// foreground, or what nobody has open.
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

/// What some characters mean to the stage's terminal at the moment.
struct Keys {
    interrupt: Option<u8>,
    quit: Option<u8>,
    suspend: Option<u8>,
    /// Nothing that was typed before is thrown away.
    keeps: bool,
}

impl Keys {
    fn of(master: &File) -> io::Result<Self> {
        let found = tcgetattr(master)?;
        let signals = found.local_flags.contains(LocalFlags::ISIG);
        let key = |which: SpecialCharacterIndices| {
            let key = found.control_chars.get(which as usize).copied();
            key.filter(|key| signals && *key != libc::_POSIX_VDISABLE)
        };
        Ok(Self {
            interrupt: key(SpecialCharacterIndices::VINTR),
            quit: key(SpecialCharacterIndices::VQUIT),
            suspend: key(SpecialCharacterIndices::VSUSP),
            keeps: found.local_flags.contains(LocalFlags::NOFLSH),
        })
    }

    /// The last character that interrupts, and throws away what is before it.
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

/// The kernel's form of settings.
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

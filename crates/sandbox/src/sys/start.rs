//! Starts bubblewrap, with a reaper process that stays until it has ended.
//!
//! [`Command`] forks a *reaper*, which never returns to the code of this process. The reaper forks the process that becomes bubblewrap,
//! and waits. Both report failures through a pipe, so that the caller can stop waiting for the start.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::unistd::Pid;

use crate::spec::Identity;

/// The reason why the program was not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: Errno,
}

/// A step of the program's process before it executes the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Becoming the stage's user.
    User,
    /// Anything else.
    Other,
}

impl Failure {
    /// Length of an encoded failure: the step and the error number.
    pub(crate) const LENGTH: usize = 5;

    fn encode(self) -> [u8; Self::LENGTH] {
        let [a, b, c, d] = (self.errno as i32).to_le_bytes();
        let step = match self.step {
            Step::Other => 0,
            Step::User => 1,
        };
        [step, a, b, c, d]
    }

    /// Decodes a failure. `None` without bytes: the program was executed, or its process was killed before.
    pub(crate) fn decode(told: &[u8]) -> Option<Self> {
        let [step, errno @ ..] = told else { return None };
        let errno = errno.try_into().map_or(Errno::EIO, |bytes| Errno::from_raw(i32::from_le_bytes(bytes)));
        let step = match step {
            1 => Step::User,
            _ => Step::Other,
        };
        Some(Self { step, errno })
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self { step: Step::Other, errno }
    }
}

/// A program and its arguments, as execve(2) takes them. Its environment is empty.
#[derive(Debug)]
pub(crate) struct Program {
    executable: Executable,
    arguments: Vec<CString>,
}

#[derive(Debug)]
enum Executable {
    Path(CString),
    /// A file in memory.
    Open(File),
}

impl Program {
    /// Prepares an executable at an absolute path.
    ///
    /// # Errors
    /// Returns `EINVAL` for a NUL byte.
    pub(crate) fn new(path: &Path, arguments: &[&OsStr]) -> io::Result<Self> {
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL);
        let name = [path.as_os_str()];
        let arguments = name.iter().chain(arguments).map(|it| text(it)).collect::<Result<_, _>>()?;
        Ok(Self { executable: Executable::Path(text(path.as_os_str())?), arguments })
    }

    /// Prepares an executable in memory.
    pub(crate) fn from_memory(file: File, arguments: Vec<CString>) -> Self {
        Self { executable: Executable::Open(file), arguments }
    }
}

/// The settings of a start beyond those of [`Command`].
#[derive(Debug)]
pub(crate) struct Start {
    /// The program to execute.
    pub(crate) program: Program,
    /// Descriptors that stay open across exec, under the same numbers.
    pub(crate) kept: Vec<RawFd>,
    /// An end of a socket pair. Only this process holds the other end, so end of file means that this process has ended or asks for the
    /// end.
    pub(crate) lifeline: OwnedFd,
    /// The user of the sandbox's processes.
    pub(crate) identity: Identity,
    /// Whether the program is started as that user. Otherwise it becomes that user itself.
    pub(crate) takes_user: bool,
    /// A pipe for a [`Failure`]. Close-on-exec.
    pub(crate) told: OwnedFd,
    /// A descriptor that the reaper keeps open until it ends. Close-on-exec.
    pub(crate) held: Option<OwnedFd>,
}

/// Data of the reaper and the program's process. It exists before the fork, because they cannot allocate.
struct Plan {
    start: Start,
    /// The arguments' addresses, followed by a null.
    words: Vec<usize>,
    /// Descriptors that the reaper keeps, sorted.
    open: Vec<RawFd>,
    /// Signals that are blocked when the program starts: those that the caller's thread blocks.
    mask: SigSet,
    /// The real uid that the reaper needs for its signals, if it differs.
    real_uid: Option<u32>,
    /// Whether the reaper asks the kernel to spare it longer when memory runs out.
    is_to_be_protected: bool,
}

/// Starts a command and waits only for the fork. Its child is the reaper, which ends if the program is not executed, with the reason
/// on `told`.
///
/// No handler of this process may run in the child, since handlers write to sockets that the parent shares. So this thread blocks
/// every signal before the fork, and neither `Command` nor the reaper unblocks them.
///
/// # Errors
/// Returns the error of fork(2) and of the preparations of `Command`.
pub(crate) fn spawn(mut command: Command, start: Start) -> io::Result<Child> {
    let addresses = start.program.arguments.iter().map(|it| it.as_ptr().expose_provenance());
    let words = addresses.chain([0]).collect();
    let own = [start.lifeline.as_raw_fd(), start.told.as_raw_fd()];
    let held = start.held.iter().map(AsRawFd::as_raw_fd);
    let image = match &start.program.executable {
        Executable::Open(file) => Some(file.as_raw_fd()),
        Executable::Path(_) => None,
    };
    let mut open: Vec<RawFd> = start.kept.iter().copied().chain(own).chain(held).chain(image).collect();
    open.sort_unstable();
    let real_uid = match start.identity {
        Identity::Other { uid, .. } if !super::may_signal_others() => Some(uid),
        _ => None,
    };
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let plan = Plan { start, words, open, mask, real_uid, is_to_be_protected: is_oom_score_above(-500) };
    // SAFETY: the closure only makes system calls and allocates nothing, so it is sound in the child of a process with threads. It
    // never returns, so nothing uses the descriptors that it closes.
    unsafe { command.pre_exec(move || reaper(&plan)) };
    let child = command.spawn();
    mask.thread_set_mask()?;
    child
}

/// Stays between this process and bubblewrap until bubblewrap has ended, and then ends with its code.
///
/// bubblewrap's child waits for its parent before it asks to die with it: if bubblewrap is killed then, the child stays for ever. So
/// the reaper adopts bubblewrap's orphans (PR_SET_CHILD_SUBREAPER, prctl(2)) and kills them when bubblewrap or exeat has ended. The
/// end of exeat, even by SIGKILL, is end of file on the lifeline.
///
/// The processes may belong to another user. Root needs CAP_KILL to signal these, and a dying process needs it for the parent-death
/// signals of its children (`group_send_sig_info`, kernel/signal.c). Without it, the reaper takes that user's real uid, which suffices
/// (kill(2)), and keeps root's effective uid, so that the user cannot inspect it.
///
/// Runs in the child of a process with threads, with every signal blocked, so it only makes system calls.
fn reaper(plan: &Plan) -> ! {
    let lifeline = plan.start.lifeline.as_raw_fd();
    // SAFETY: each call takes numbers or pointers to live locals; none takes a lock or allocates. The closed descriptors are this
    // process's copies, which nothing here uses again.
    unsafe {
        // As in `notice_children`, for this process and for bubblewrap.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"sandbox-reaper".as_ptr());
        libc::setsid();
        // This closes the other end of the lifeline, and the pipe on which `Command` waits.
        close_all_but(3, &plan.open);
        let own = nix::unistd::getpid();
        if plan.is_to_be_protected {
            let _ = set_oom_score(c"-500");
        }
        let started = take_real_uid(plan.real_uid).and_then(|()| {
            // With SIGCHLD alone this is fork(2) without the C library's handlers: only the code below runs.
            Ok(Errno::result(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0))?)
        });
        let program = match started {
            Ok(0) => execute(plan, own),
            Ok(program) => libc::pid_t::try_from(program).map_err(|_| Errno::ERANGE.into()),
            Err(failure) => Err(failure),
        };
        let program = match program {
            Ok(program) => program,
            Err(failure) => {
                tell(plan, failure);
                libc::_exit(1);
            }
        };
        let watched = libc::syscall(libc::SYS_pidfd_open, program, 0_u32);
        let watched = RawFd::try_from(watched).unwrap_or(-1);
        let held = plan.start.held.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let mut left = [lifeline, watched, held];
        left.sort_unstable();
        close_all_but(3, &left);
        libc::_exit(watch(program, lifeline, watched))
    }
}

/// Takes a real uid and keeps the effective one with its rights. Call it before the clone, since the program's process may become
/// that user at once.
fn take_real_uid(uid: Option<u32>) -> Result<(), Failure> {
    let Some(uid) = uid else { return Ok(()) };
    // SAFETY: takes numbers only, for this process with one thread; the largest number means no change.
    let taken = Errno::result(unsafe { libc::syscall(libc::SYS_setresuid, uid, u32::MAX, u32::MAX) });
    taken.map(drop).map_err(|errno| Failure { step: Step::User, errno })
}

/// Reports a failure on the pipe. The pipe has room, since nobody else has written.
fn tell(plan: &Plan, failure: Failure) {
    let bytes = failure.encode();
    // SAFETY: a live local of that length.
    unsafe { libc::write(plan.start.told.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
}

/// Closes every descriptor from `first` on, except `these`, which are sorted.
///
/// # Safety
/// Nothing uses the closed descriptors any more.
pub(super) unsafe fn close_all_but(first: libc::c_uint, these: &[RawFd]) {
    let mut next = first;
    for number in these.iter().filter_map(|fd| libc::c_uint::try_from(*fd).ok()) {
        if number > next {
            let _ = close_range(next, number - 1, 0);
        }
        next = next.max(number.saturating_add(1));
    }
    let _ = close_range(next, libc::c_uint::MAX, 0);
}

/// Runs the program's process up to execve(2), and reports a failure.
fn execute(plan: &Plan, reaper: Pid) -> ! {
    let failure = prepare(&plan.start, reaper).err().unwrap_or_else(|| {
        let nothing: [*const libc::c_char; 1] = [ptr::null()];
        // SAFETY: the path is a C string, the words are pointers to C strings and a final null, and the plan holds all of them. No
        // handler is left that the mask could let run.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, plan.mask.as_ref(), ptr::null_mut());
            let (words, nothing) = (plan.words.as_ptr().cast(), nothing.as_ptr());
            match &plan.start.program.executable {
                Executable::Path(path) => {
                    libc::execve(path.as_ptr(), words, nothing);
                }
                Executable::Open(file) => {
                    let (file, empty) = (file.as_raw_fd(), c"".as_ptr());
                    libc::syscall(libc::SYS_execveat, file, empty, words, nothing, libc::AT_EMPTY_PATH);
                }
            }
        }
        Errno::last().into()
    });
    tell(plan, failure);
    // SAFETY: ends this process without the exit handlers of the original.
    unsafe { libc::_exit(1) }
}

/// Sets the score by which the kernel chooses a process to kill when memory runs out, for this process and its children:
/// proc_pid_oom_score_adj(5). Only makes system calls.
fn set_oom_score(score: &CStr) -> nix::Result<()> {
    // SAFETY: C strings that live as long as the calls; the descriptor is closed once.
    unsafe {
        let path = c"/proc/self/oom_score_adj";
        let file = Errno::result(libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC))?;
        let written = Errno::result(libc::write(file, score.as_ptr().cast(), score.count_bytes()));
        libc::close(file);
        written.map(drop)
    }
}

/// Whether this process's score is above this one. Only CAP_SYS_RESOURCE may lower it.
fn is_oom_score_above(score: i32) -> bool {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj");
    own.is_ok_and(|own| own.trim().parse().is_ok_and(|own: i32| own > score))
}

/// Prepares the program's process.
fn prepare(start: &Start, reaper: Pid) -> Result<(), Failure> {
    no_handlers();
    // When memory runs out, the kernel should kill the stage, and not exeat, which cleans up after it. Set with CAP_SYS_RESOURCE, so
    // as root, the stage cannot undo it. Without a writable `/proc` the score stays.
    let _ = set_oom_score(c"1000");
    // Asked before bubblewrap asks for the same, since the reaper may be killed too.
    die_with(reaper)?;
    // A new session: exeat gets the terminal's signals and passes them on in order.
    nix::unistd::setsid()?;
    join_new_session_keyring()?;
    if let (true, Identity::Other { uid, gid }) = (start.takes_user, start.identity) {
        // Permanent. A system call for this one thread; the C library's call is for all, and takes a lock.
        super::take_credentials(uid, gid).map_err(|errno| Failure { step: Step::User, errno })?;
        // The change of credentials clears the request (commit_creds, kernel/cred.c).
        die_with(reaper)?;
    }
    close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)?;
    for fd in &start.kept {
        // SAFETY: sets the flags of a descriptor that stays open until this process executes the program.
        Errno::result(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
    }
    Ok(())
}

/// Resets every handled signal to its default action, in this process only (clone(2) without CLONE_SIGHAND).
fn no_handlers() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: live locals. The C library refuses the two signals that it reserves, and nobody sends those here.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            let asked = libc::sigaction(signal, ptr::null(), &raw mut action);
            if asked == 0 && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) {
                action = mem::zeroed();
                libc::sigaction(signal, &raw const action, ptr::null_mut());
            }
        }
    }
}

/// Asks for SIGKILL when the reaper ends.
///
/// # Errors
/// Returns `ESRCH` if the reaper has already ended.
fn die_with(reaper: Pid) -> nix::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if nix::unistd::getppid() == reaper { Ok(()) } else { Err(Errno::ESRCH) }
}

/// Waits for the end of the program or the lifeline, kills all leftovers, and returns the program's code.
///
/// # Safety
/// The caller must be the only thread and block every signal; `watched` is the program's pidfd, or negative.
unsafe fn watch(program: libc::pid_t, lifeline: RawFd, watched: RawFd) -> libc::c_int {
    // SAFETY: as in `reaper`.
    unsafe {
        let mut fds = [lifeline, watched].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // poll ignores a negative descriptor. Without a pidfd, an end is noticed within a second.
        let timeout = if watched < 0 { 1000 } else { -1 };
        loop {
            let ready = libc::poll(fds.as_mut_ptr(), 2, timeout);
            let [life, _] = &mut fds;
            if ready > 0 && life.revents != 0 {
                if libc::kill(program, libc::SIGKILL) != 0 && Errno::last() != Errno::ESRCH {
                    // The kernel refuses although the uids are right; waiting would never end. exeat kills the sandbox's pid 1
                    // itself, and reports what prevents it.
                    return KILLED;
                }
                // The lifeline is done; from here on, wait only for the end of bubblewrap.
                life.fd = -1;
            }
            let mut ended: libc::siginfo_t = mem::zeroed();
            let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            let number = libc::id_t::try_from(program).unwrap_or(0);
            let looked = libc::waitid(libc::P_PID, number, &raw mut ended, look);
            if looked != 0 || ended.si_pid() == program {
                break;
            }
        }
        // Not reaped yet, so the id of its process group is still its own, with the child that waits in it. Processes out of reach of
        // this signal are children of this process by now, and are killed next.
        libc::kill(-program, libc::SIGKILL);
        let mut status = 0;
        libc::waitpid(program, &raw mut status, 0);
        kill_children();
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
    }
}

/// The exit code of a reaper whose program was killed, in a shell's convention.
const KILLED: libc::c_int = 128 + libc::SIGKILL;

/// Kills every child of this process until all have ended, or the others do not end.
///
/// # Safety
/// The caller must be the only thread and block every signal, and every child may be killed.
unsafe fn kill_children() {
    /// Most rounds of a millisecond in which no child ends. A killed process usually ends within a few. One that the kernel cannot end
    /// now (an uninterruptible wait), or that may not be killed, is left after these.
    const MAX_IDLE_ROUNDS: u32 = 2000;
    /// Most rounds in total, including those in which a child ends.
    const MAX_ROUNDS: u32 = 100_000;
    /// Pause after a round in which no child ended: a new one may have come.
    static PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let mut list = [0_u8; 512];
    let mut idle_rounds = 0;
    for _ in 0..MAX_ROUNDS {
        // SAFETY: as in `reaper`; `list` is a live buffer of the length given.
        unsafe {
            let file = libc::open(c"/proc/thread-self/children".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            let count = libc::read(file, list.as_mut_ptr().cast(), list.len());
            libc::close(file);
            let mut pid: libc::pid_t = 0;
            for byte in list.iter().take(usize::try_from(count).unwrap_or(0)) {
                match byte {
                    b'0'..=b'9' => {
                        pid = pid.saturating_mul(10).saturating_add(libc::pid_t::from(byte - b'0'))
                    }
                    _ if pid > 1 => {
                        libc::kill(pid, libc::SIGKILL);
                        pid = 0;
                    }
                    _ => pid = 0,
                }
            }
            loop {
                match libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) {
                    // No child is left.
                    -1 => return,
                    0 => break,
                    _ => {}
                }
            }
            // Every signal is blocked, so the end of a child stays pending even if it comes before the call.
            let mut ended: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&raw mut ended);
            libc::sigaddset(&raw mut ended, libc::SIGCHLD);
            if libc::sigtimedwait(&raw const ended, ptr::null_mut(), &raw const PAUSE) < 0 {
                idle_rounds += 1;
            }
        }
        if idle_rounds == MAX_IDLE_ROUNDS {
            return;
        }
    }
}

pub(super) fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> nix::Result<()> {
    // SAFETY: takes numbers only. Callers close unused descriptors, or set a flag that acts at exec.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}

/// Leaves the caller's session keyring, whose keys a process of the sandbox could otherwise read (keyctl(2)).
pub(super) fn join_new_session_keyring() -> nix::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    let none: *const libc::c_char = ptr::null();
    // SAFETY: a null name asks for an anonymous keyring; the kernel reads no memory.
    match Errno::result(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, none) }) {
        // A kernel without keyrings needs no change. A container that refuses this call refuses it to the stage too.
        Err(Errno::ENOSYS | Errno::EPERM | Errno::EDQUOT) | Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicI32, Ordering};

    use nix::sys::signal::{SaFlags, SigAction, SigHandler, sigaction};

    use super::*;

    thread_local! {
        /// Whether a child that this thread forks signals itself at once.
        static SIGNALS: Cell<bool> = const { Cell::new(false) };
    }
    /// The descriptor that the handler writes to.
    static HANDLED: AtomicI32 = AtomicI32::new(-1);

    /// Simulates a signal to the group, as by Ctrl-C, during the fork.
    #[test]
    fn no_handler_of_this_process_runs_in_the_reaper() {
        extern "C" fn forked() {
            if SIGNALS.get() {
                // SAFETY: takes a number.
                unsafe { libc::raise(libc::SIGUSR2) };
            }
        }
        extern "C" fn handle(_: libc::c_int) {
            // SAFETY: writes one byte of a constant to a descriptor that is open as long as the test runs.
            unsafe { libc::write(HANDLED.load(Ordering::Relaxed), c"x".as_ptr().cast(), 1) };
        }
        let (handled, handler) = io::pipe().unwrap();
        HANDLED.store(handler.as_raw_fd(), Ordering::Relaxed);
        let action = SigAction::new(SigHandler::Handler(handle), SaFlags::empty(), SigSet::empty());
        // SAFETY: both make one system call, and no other test uses this signal.
        unsafe {
            sigaction(Signal::SIGUSR2, &action).unwrap();
            assert_eq!(libc::pthread_atfork(None, None, Some(forked)), 0);
        }
        let before = SigSet::thread_get_mask().unwrap();
        let ((its, _lifeline), (heard, told)) = (UnixStream::pair().unwrap(), io::pipe().unwrap());
        let path = Path::new("/bin/grep");
        // The program inherits the mask of this thread.
        let words = ["-q", "^SigBlk:.*0000000000000000$", "/proc/self/status"].map(OsStr::new);
        let start = Start {
            program: Program::new(path, &words).unwrap(),
            kept: Vec::new(),
            lifeline: its.into(),
            identity: Identity::Caller,
            takes_user: true,
            told: told.into(),
            held: None,
        };
        SIGNALS.set(true);
        #[expect(clippy::disallowed_methods, reason = "what is started is the test's own")]
        let child = spawn(Command::new(path), start);
        SIGNALS.set(false);
        drop(handler);
        assert!(child.unwrap().wait().unwrap().success());
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
        for mut pipe in [heard, handled] {
            let mut said = Vec::new();
            pipe.read_to_end(&mut said).unwrap();
            assert_eq!(said, b"");
        }
    }

    #[test]
    fn a_failure_is_told_in_whole() {
        for step in [Step::User, Step::Other] {
            let failure = Failure { step, errno: Errno::ENOSPC };
            assert_eq!(Failure::decode(&failure.encode()), Some(failure));
        }
        assert_eq!(Failure::decode(&[]), None);
        // A truncated message is still a failure.
        assert_eq!(Failure::decode(&[0, 1]).map(|it| it.errno), Some(Errno::EIO));
    }
}

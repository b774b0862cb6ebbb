//! How bubblewrap is started, and who stands by until it has ended.
//!
//! [`Command`] forks a *guard*, which never comes back to the code of this process. The guard forks the process that becomes
//! bubblewrap, and waits. What fails in either is told through a pipe, so that whoever waits for the start may stop waiting.

use std::ffi::{CStr, CString, OsStr};
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

use super::Places;
use crate::spec::Identity;

/// Why the program was not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: Errno,
}

/// What its process does before it executes the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Mounting the trees.
    Mount,
    /// Taking the stage's user.
    User,
    /// Anything else.
    Other,
}

impl Failure {
    /// Bytes that tell of it: the step, and the error number.
    pub(crate) const LENGTH: usize = 5;

    fn encode(self) -> [u8; Self::LENGTH] {
        let [a, b, c, d] = (self.errno as i32).to_le_bytes();
        let step = match self.step {
            Step::Other => 0,
            Step::Mount => 1,
            Step::User => 2,
        };
        [step, a, b, c, d]
    }

    /// What the bytes tell; `None` where there are none: the program was executed, or somebody killed its process before.
    pub(crate) fn decode(told: &[u8]) -> Option<Self> {
        let [step, errno @ ..] = told else { return None };
        let errno = errno.try_into().map_or(Errno::EIO, |bytes| Errno::from_raw(i32::from_le_bytes(bytes)));
        let step = match step {
            1 => Step::Mount,
            2 => Step::User,
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
    path: CString,
    arguments: Vec<CString>,
}

impl Program {
    /// An executable at an absolute path.
    ///
    /// # Errors
    /// `EINVAL` for a NUL byte.
    pub(crate) fn new(path: &Path, arguments: &[&OsStr]) -> io::Result<Self> {
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL);
        let name = [path.as_os_str()];
        let arguments = name.iter().chain(arguments).map(|it| text(it)).collect::<Result<_, _>>()?;
        Ok(Self { path: text(path.as_os_str())?, arguments })
    }
}

/// What is started, beside what [`Command`] does.
#[derive(Debug)]
pub(crate) struct Start {
    /// What is executed.
    pub(crate) program: Program,
    /// Descriptors that stay open across exec, under the same numbers.
    pub(crate) kept: Vec<RawFd>,
    /// One end of a pair whose other end only this process holds: its end of file is this process's end, or asks for the same.
    pub(crate) lifeline: OwnedFd,
    pub(crate) identity: Identity,
    /// What is mounted for bubblewrap before it starts.
    pub(crate) places: Option<Places>,
    /// A pipe that takes a [`Failure`]. Close-on-exec.
    pub(crate) told: OwnedFd,
    /// The guard has it open until it ends. Close-on-exec.
    pub(crate) held: Option<OwnedFd>,
}

/// What the guard and the program's process work with. Made before the fork: they allocate nothing.
struct Plan {
    start: Start,
    /// The arguments' addresses, and a null.
    words: Vec<usize>,
    /// Descriptors of the guard's, in order.
    open: Vec<RawFd>,
    /// Signals that the program starts with blocked: those that the caller's thread has.
    mask: SigSet,
    /// The real uid that the guard needs for its signals to be let through, where that is another one.
    real_uid: Option<u32>,
    /// The guard asks the kernel to end it later than others when memory runs out.
    is_to_be_protected: bool,
}

/// Starts a command, which waits for the fork alone. Its child is the guard, which ends where the program is not executed: `told` says
/// why.
///
/// No handler of this process's runs in the child: every signal is blocked in this thread from before the fork, which the child
/// inherits (`Command` leaves the mask as it is), and the guard leaves it so. They write to sockets that are the parent's too.
///
/// # Errors
/// What fork(2) says, and what `Command` needs for it.
pub(crate) fn spawn(mut command: Command, start: Start) -> io::Result<Child> {
    let addresses = start.program.arguments.iter().map(|it| it.as_ptr().expose_provenance());
    let words = addresses.chain([0]).collect();
    let trees = start.places.iter().flat_map(Places::descriptors);
    let own = [start.lifeline.as_raw_fd(), start.told.as_raw_fd()];
    let held = start.held.iter().map(AsRawFd::as_raw_fd);
    let mut open: Vec<RawFd> = start.kept.iter().copied().chain(trees).chain(own).chain(held).collect();
    open.sort_unstable();
    let real_uid = match start.identity {
        Identity::Other { uid, .. } if !super::may_signal_others() => Some(uid),
        _ => None,
    };
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let plan = Plan { start, words, open, mask, real_uid, is_to_be_protected: is_oom_score_above(-500) };
    // SAFETY: the closure makes system calls only, and allocates nothing, so that it is sound in the child of a process with
    // threads. It does not return, so that what it closes is closed for good.
    unsafe { command.pre_exec(move || guard(&plan)) };
    let child = command.spawn();
    mask.thread_set_mask()?;
    child
}

/// Stands between this process and bubblewrap until bubblewrap has ended, and then ends with its code.
///
/// bubblewrap's own child waits for its parent before it has asked to die with it: killed in that moment, bubblewrap would
/// leave it behind for ever. So the orphans of bubblewrap come here (PR_SET_CHILD_SUBREAPER, prctl(2)), and are killed: when
/// bubblewrap has ended, and when exeat has, even by SIGKILL, which shows as end of file on the lifeline.
///
/// What it ends may be another user's. Root may signal that with CAP_KILL alone; and the kernel asks the same of a process that
/// dies, for the parent-death signals of its children (`group_send_sig_info`, kernel/signal.c). Without it the guard has that user's
/// real uid, which is as good (kill(2)), and root's effective one, so that nobody may look into it.
///
/// Runs in the child of a process with threads, with every signal blocked, so it makes system calls only.
fn guard(plan: &Plan) -> ! {
    let lifeline = plan.start.lifeline.as_raw_fd();
    // SAFETY: each call takes numbers or pointers to live locals; none takes a lock or allocates. The descriptors that are
    // closed are this process's copies, which nothing here uses again.
    unsafe {
        // As in `notice_children`, for this process and for bubblewrap.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"sandbox-guard".as_ptr());
        libc::setsid();
        // The other end of the lifeline among them, and the pipe by which `Command` waits.
        close_all_but(3, &plan.open);
        let own = nix::unistd::getpid();
        if plan.is_to_be_protected {
            let _ = set_oom_score(c"-500");
        }
        let started = take_real_uid(plan.real_uid).and_then(|()| {
            // With SIGCHLD alone this is fork(2), without the C library's handlers: nothing but what follows runs.
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

/// Takes a real uid, and keeps the effective one and what comes with it. Before the clone: the program's process may be that user
/// from its first moment on.
fn take_real_uid(uid: Option<u32>) -> Result<(), Failure> {
    let Some(uid) = uid else { return Ok(()) };
    // SAFETY: takes numbers only, for this one process with one thread; the largest stands for no change.
    let taken = Errno::result(unsafe { libc::syscall(libc::SYS_setresuid, uid, u32::MAX, u32::MAX) });
    taken.map(drop).map_err(|errno| Failure { step: Step::User, errno })
}

/// Tells the other end of the pipe what failed. There is room in it: nobody else has written.
fn tell(plan: &Plan, failure: Failure) {
    let bytes = failure.encode();
    // SAFETY: a live local of that length.
    unsafe { libc::write(plan.start.told.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
}

/// Closes every descriptor from `first` on that is not among these, which are in order.
///
/// # Safety
/// Nothing uses the others any more.
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

/// The program's process, from its first step to execve(2). What fails is told.
fn execute(plan: &Plan, guard: Pid) -> ! {
    let failure = prepare(&plan.start, guard).err().unwrap_or_else(|| {
        let nothing: [*const libc::c_char; 1] = [ptr::null()];
        // SAFETY: the path is a C string, the words are pointers to such and a null at the end, and the plan holds all of them. No
        // handler is left that the mask could let run.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, plan.mask.as_ref(), ptr::null_mut());
            libc::execve(plan.start.program.path.as_ptr(), plan.words.as_ptr().cast(), nothing.as_ptr());
        }
        Errno::last().into()
    });
    tell(plan, failure);
    // SAFETY: ends this process, without the handlers of the one that it is a copy of.
    unsafe { libc::_exit(1) }
}

/// Sets what the kernel adds to the size of this process, and of those that it starts, when it looks for one to end because memory
/// has run out: proc_pid_oom_score_adj(5). Makes system calls only.
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

/// Whether this process has a score above this one, which only CAP_SYS_RESOURCE may lower.
fn is_oom_score_above(score: i32) -> bool {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj");
    own.is_ok_and(|own| own.trim().parse().is_ok_and(|own: i32| own > score))
}

/// What is done for the program in its process.
fn prepare(start: &Start, guard: Pid) -> Result<(), Failure> {
    no_handlers();
    // When memory runs out the kernel ends the stage first, and not this side, which tidies up after it. With CAP_SYS_RESOURCE, and so
    // while this is root, the stage cannot take it back. Anybody may raise it; where `/proc` cannot be written it stays as it is.
    let _ = set_oom_score(c"1000");
    // Before bubblewrap asks for the same: the guard, too, may be killed.
    die_with(guard)?;
    // A session of its own: the terminal's signals are for exeat, which passes them on in order.
    nix::unistd::setsid()?;
    join_new_session_keyring()?;
    if let Some(places) = &start.places {
        places.fill().map_err(|errno| Failure { step: Step::Mount, errno })?;
    }
    if let Identity::Other { uid, gid } = start.identity {
        // For good. It is a system call, for this one thread: the C library's is for all, and takes a lock for it.
        super::take_credentials(uid, gid).map_err(|errno| Failure { step: Step::User, errno })?;
        // The change has cleared it (commit_creds, kernel/cred.c).
        die_with(guard)?;
    }
    close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)?;
    for fd in &start.kept {
        // SAFETY: sets the flags of a descriptor that stays open until this process has execed.
        Errno::result(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
    }
    Ok(())
}

/// Gives every signal that has a handler its default action, in this process alone: clone(2) without CLONE_SIGHAND.
fn no_handlers() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: live locals. The C library refuses the two signals that it keeps for itself, and nobody sends those here.
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

/// Asks for SIGKILL at the guard's end.
///
/// # Errors
/// `ESRCH` for a guard that was killed before: it sends nothing any more.
fn die_with(guard: Pid) -> nix::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if nix::unistd::getppid() == guard { Ok(()) } else { Err(Errno::ESRCH) }
}

/// Waits for the program's end or for the lifeline's, leaves nothing behind, and returns the program's code.
///
/// # Safety
/// The caller is the only thread and has blocked every signal; `watched` is the program's pidfd, or negative.
unsafe fn watch(program: libc::pid_t, lifeline: RawFd, watched: RawFd) -> libc::c_int {
    // SAFETY: as in `guard`.
    unsafe {
        let mut fds = [lifeline, watched].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // Without a pidfd (a negative descriptor is passed over by poll) a second is the longest that an end goes unseen.
        let timeout = if watched < 0 { 1000 } else { -1 };
        loop {
            let ready = libc::poll(fds.as_mut_ptr(), 2, timeout);
            let [life, _] = &mut fds;
            if ready > 0 && life.revents != 0 {
                if libc::kill(program, libc::SIGKILL) != 0 && Errno::last() != Errno::ESRCH {
                    // Refused, though the uids are right. To wait would be for ever. exeat asks the sandbox's pid 1 itself, and says
                    // what keeps it.
                    return KILLED;
                }
                // It has said what it has to say; only the end of bubblewrap is waited for now.
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
        // Not reaped yet, so the number of its process group is nobody else's. The child that waits is still in it. Whoever this
        // does not reach is a child of this process by now, and comes next.
        libc::kill(-program, libc::SIGKILL);
        let mut status = 0;
        libc::waitpid(program, &raw mut status, 0);
        kill_children();
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
    }
}

/// The code of a guard whose program was killed, as a shell would give it.
const KILLED: libc::c_int = 128 + libc::SIGKILL;

/// Kills whatever has become a child of this process, until there is none, or none that ends.
///
/// # Safety
/// The caller is the only thread and has blocked every signal, and every child may be killed.
unsafe fn kill_children() {
    /// Looks after which no child ended, a millisecond each. A process that was killed is gone in a few; one that the kernel cannot
    /// end now (in an uninterruptible wait) ends when it can. One that may not be killed is looked at as often, and left.
    const IN_VAIN: u32 = 2000;
    /// Looks in all: each of the others is for a child that ended.
    const LOOKS: u32 = 100_000;
    /// Between two looks, where no child ends: one may have come meanwhile.
    static LOOK: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let mut list = [0_u8; 512];
    let mut in_vain = 0;
    for _ in 0..LOOKS {
        // SAFETY: as in `guard`; `list` is a live buffer of the length given.
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
                    // None is left.
                    -1 => return,
                    0 => break,
                    _ => {}
                }
            }
            // Every signal is blocked, so that the end of a child waits here even if it comes before the call.
            let mut ended: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&raw mut ended);
            libc::sigaddset(&raw mut ended, libc::SIGCHLD);
            if libc::sigtimedwait(&raw const ended, ptr::null_mut(), &raw const LOOK) < 0 {
                in_vain += 1;
            }
        }
        if in_vain == IN_VAIN {
            return;
        }
    }
}

fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> nix::Result<()> {
    // SAFETY: takes numbers only. Callers close what nothing uses any more, or set a flag that acts at exec.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}

/// Leaves the caller's session keyring, whose keys a process of the sandbox could otherwise read (keyctl(2)).
fn join_new_session_keyring() -> nix::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    let none: *const libc::c_char = ptr::null();
    // SAFETY: a null name asks for an anonymous keyring; no memory is read.
    match Errno::result(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, none) }) {
        // A kernel without keyrings has none to leave. A container may refuse the call: the stage may not call it either.
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
    /// Where the handler writes.
    static HANDLED: AtomicI32 = AtomicI32::new(-1);

    /// As a group is signalled, by Ctrl-C, in the moment of the fork.
    #[test]
    fn no_handler_of_this_process_runs_in_the_guard() {
        extern "C" fn forked() {
            if SIGNALS.get() {
                // SAFETY: takes a number.
                unsafe { libc::raise(libc::SIGUSR2) };
            }
        }
        extern "C" fn handle(_: libc::c_int) {
            // SAFETY: one byte of a constant, to a descriptor that is open for as long as the test runs.
            unsafe { libc::write(HANDLED.load(Ordering::Relaxed), c"x".as_ptr().cast(), 1) };
        }
        let (handled, handler) = io::pipe().unwrap();
        HANDLED.store(handler.as_raw_fd(), Ordering::Relaxed);
        let action = SigAction::new(SigHandler::Handler(handle), SaFlags::empty(), SigSet::empty());
        // SAFETY: both make one system call, and no other test has this signal.
        unsafe {
            sigaction(Signal::SIGUSR2, &action).unwrap();
            assert_eq!(libc::pthread_atfork(None, None, Some(forked)), 0);
        }
        let before = SigSet::thread_get_mask().unwrap();
        let ((its, _lifeline), (heard, told)) = (UnixStream::pair().unwrap(), io::pipe().unwrap());
        let path = Path::new("/bin/grep");
        // The program has the mask that this thread has.
        let words = ["-q", "^SigBlk:.*0000000000000000$", "/proc/self/status"].map(OsStr::new);
        let start = Start {
            program: Program::new(path, &words).unwrap(),
            kept: Vec::new(),
            lifeline: its.into(),
            identity: Identity::Caller,
            places: None,
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
        for step in [Step::Mount, Step::User, Step::Other] {
            let failure = Failure { step, errno: Errno::ENOSPC };
            assert_eq!(Failure::decode(&failure.encode()), Some(failure));
        }
        assert_eq!(Failure::decode(&[]), None);
        // Cut off, it is a failure still.
        assert_eq!(Failure::decode(&[0, 1]).map(|it| it.errno), Some(Errno::EIO));
    }
}

//! A sandbox from its description to its end, on bubblewrap.
//!
//! Blocking, in three steps: [`Launch::start`] until stage2 has offered the bridge, [`Offer::go`] until the stage is
//! executed, [`Running::wait`] until it is over. A caller that serves something meanwhile gives them a thread.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exeat_contract::{BridgeKind, Go, Message, Step};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::Resource;
use nix::sys::stat::{Mode, fstat};

use crate::bwrap::Argv;
use crate::child::{Bwrap, Lifeline};
use crate::control::{self, Control, Ready, wait};
use crate::error::Error;
use crate::inside::Inside;
use crate::seccomp;
use crate::spec::{Identity, SandboxSpec};
use crate::staging::Staging;
use crate::sys::{self, InsideProcess, KeptFiles, Network, Notices, PidFd};
use crate::who::Finder;

/// From the start of bubblewrap to stage2's hello. A loaded machine takes a second; past this something hangs.
const START: Duration = Duration::from_secs(30);
/// From the go to `execve`. The command may lie on a slow network file system.
const GO: Duration = Duration::from_secs(60);
/// From the end of bubblewrap to the end of the sandbox's pid 1, which the kernel has killed by then.
const END: Duration = Duration::from_secs(10);

/// The longest wait for a change.
const A_LOOK: Duration = Duration::from_secs(24 * 60 * 60);

/// What it takes to start a sandbox.
#[derive(Debug)]
pub struct Launch {
    /// bubblewrap, from [`bwrap::find`](crate::bwrap::find).
    pub bwrap: PathBuf,
    /// The sandbox.
    pub spec: SandboxSpec,
    /// The listening socket that the spec mounts at [`exeat_contract::SOCKET`].
    pub listener: UnixListener,
    /// Reaches end of file when the caller gives up before the sandbox stands.
    pub cancel: OwnedFd,
    /// Trees that are mounted for bubblewrap first: the spec names their places. Needs CAP_SYS_ADMIN.
    pub staging: Option<Staging>,
    /// Stays open until no process of the sandbox is left, also where this process is killed.
    pub held: Option<OwnedFd>,
    /// What the mounts of the spec must show. Names can be exchanged between the plan and the mount.
    pub judged: Vec<Judged>,
}

/// What was judged for a mount: the start fails if the sandbox has something else at its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The place inside, without links.
    pub at: PathBuf,
    /// Device and inode on the host; `None` is equal to nothing.
    pub file: Option<(u64, u64)>,
}

/// stage2 stands and waits. Dropping this ends the sandbox; nothing untrusted has run.
#[derive(Debug)]
pub struct Offer {
    bridge: Option<Bridge>,
    control: Control,
    handle: Handle,
    bwrap: Bwrap,
    identity: Identity,
}

/// How the stage's TCP arrives.
#[derive(Debug)]
pub enum Bridge {
    /// Listeners in the sandbox's network namespace. They pin the namespace: close them at the end.
    Handoff {
        /// That of the proxy.
        http: TcpListener,
        /// That of SOCKS5, where the spec asks for it.
        socks5: Option<TcpListener>,
    },
    /// Connections come through the bind-mounted socket, and those of SOCKS5 through the one that the spec mounts at
    /// [`exeat_contract::SOCKS5_SOCKET`].
    Relay {
        /// The socket.
        listener: UnixListener,
        /// Reaches end of file when its relay dies.
        lifeline: OwnedFd,
        /// The same for the relay of SOCKS5, where the spec asks for it.
        socks5: Option<OwnedFd>,
    },
}

/// A resource limit of the stage (setrlimit(2)).
#[derive(Debug, Clone, Copy)]
pub struct Rlimit {
    /// What it limits, for a message.
    pub what: &'static str,
    /// Which one.
    pub resource: Resource,
    /// The soft limit, in the resource's unit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// The stage runs.
#[derive(Debug)]
pub struct Running {
    handle: Handle,
    bwrap: Bwrap,
    terminal: Option<OwnedFd>,
    notices: Option<Notices>,
}

/// What a sandbox that runs is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Its table of mounts is another.
    Mounts,
    /// The other descriptor can be read.
    Events,
    /// It is ending, or has ended.
    Ended,
    /// Nothing, in the time given.
    None,
}

/// Signals for a running stage; may be used from any thread.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Processes>);

#[derive(Debug)]
struct Processes {
    /// The stage's pid as the host sees it: valid for as long as the pidfd beside it can be signalled.
    pid: i32,
    stage: PidFd,
    init: PidFd,
    /// The pid of the sandbox's pid 1 as the host sees it, with the same validity.
    init_pid: i32,
    /// Whose they are.
    identity: Identity,
    /// Of the guard, which may kill them.
    lifeline: Lifeline,
}

/// How a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// By itself, with this code.
    Exit(u8),
    /// By this signal.
    Signal(i32),
}

impl Launch {
    /// The same start once more. Staged trees are left out: they are mounted once.
    ///
    /// # Errors
    /// What dup(2) says.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            bwrap: self.bwrap.clone(),
            spec: self.spec.clone(),
            listener: self.listener.try_clone()?,
            cancel: self.cancel.try_clone()?,
            staging: None,
            held: self.held.as_ref().map(OwnedFd::try_clone).transpose()?,
            judged: self.judged.clone(),
        })
    }

    /// Builds the sandbox and waits for stage2's offer.
    ///
    /// # Errors
    /// Every variant of [`Error`] that names a step before `execve`; the sandbox is gone then.
    pub fn start(self) -> Result<Offer, Error> {
        let by = Instant::now() + START;
        let filters = seccomp::base(self.spec.debuggable)?;
        let argv = Argv::new(&self.spec, filters.len());
        let mut bwrap =
            Bwrap::spawn(&self.bwrap, &argv, &filters, self.spec.identity, self.staging.as_ref(), self.held)?;
        // They are bubblewrap's now.
        drop(self.staging);
        match wait(self.listener.as_fd(), bwrap.as_fd(), Some(self.cancel.as_fd()), by)
            .map_err(Error::Watch)?
        {
            Some(Ready::Socket) => {}
            Some(Ready::Ended) => return Err(bwrap.explain()),
            Some(Ready::Cancelled) => return Err(Error::Cancelled),
            None => return Err(Error::Late(START)),
        }
        // bubblewrap tells the pid before it lets the sandbox go on, so it is there by now.
        let init = bwrap.init_pid(by)?;
        let mut control = Control::accept(&self.listener, init)?;
        control
            .set_deadline(by.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
            .map_err(Error::Control)?;
        let handle = Handle(Arc::new(Processes {
            pid: control.pid,
            stage: PidFd::open(control.pid).map_err(Error::Watch)?,
            init: PidFd::open(init).map_err(Error::Watch)?,
            init_pid: init,
            identity: self.spec.identity,
            lifeline: bwrap.lifeline(),
        }));
        let passed = match control.receive()? {
            Some((Message::Hello(_), passed)) => passed,
            Some((Message::Failed { step, errno }, _)) => return Err(failed(step, errno)),
            None => return Err(bwrap.explain()),
            Some(_) => return Err(Error::Control(io::ErrorKind::InvalidData.into())),
        };
        let root = compare(init, &self.judged);
        match root {
            // Root without CAP_SYS_PTRACE may not look into a process of another user.
            Err(Error::Watch(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                sys::as_user(self.spec.identity, || Ok(compare(init, &self.judged)))
                    .map_err(Error::Watch)??;
            }
            compared => compared?,
        }
        stands(&handle.0.init)?;
        let mut passed = passed.into_iter();
        let (http, socks5) = match (passed.next(), passed.next()) {
            (Some(http), socks5) if socks5.is_some() == self.spec.socks5 => (http, socks5),
            _ => return Err(Error::Control(io::ErrorKind::InvalidData.into())),
        };
        let bridge = match self.spec.bridge {
            BridgeKind::Handoff => Bridge::Handoff { http: http.into(), socks5: socks5.map(Into::into) },
            BridgeKind::Relay => Bridge::Relay { listener: self.listener, lifeline: http, socks5 },
        };
        Ok(Offer { bridge: Some(bridge), control, handle, bwrap, identity: self.spec.identity })
    }
}

impl Offer {
    /// The bridge, to be served. `None` the second time.
    pub fn take_bridge(&mut self) -> Option<Bridge> {
        self.bridge.take()
    }

    /// Signals for the stage.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Sets resource limits for the stage. The caller's own hard limits are never exceeded.
    ///
    /// They hold for stage2 from here on, and go over to the stage with execve(2): stage2 needs 16 descriptors or fewer.
    ///
    /// # Errors
    /// [`Error::Limit`]: what prlimit(2) says.
    pub fn limit(&self, limits: &[Rlimit]) -> Result<(), Error> {
        limits.iter().try_for_each(|Rlimit { what, resource, soft, hard }| {
            let set = || sys::lower_limit(self.control.pid, *resource, *soft, *hard);
            sys::as_user(self.identity, set).map_err(|source| Error::Limit { what, source })
        })
    }

    /// Puts the process that becomes the stage into a control group, by its file `cgroup.procs` (cgroups(7)).
    ///
    /// # Errors
    /// What write(2) says.
    pub fn enter(&self, mut processes: &File) -> io::Result<()> {
        processes.write_all(self.control.pid.to_string().as_bytes())
    }

    /// The sandbox, to be measured from the host. `tmpfs` are its file systems in memory, by their paths inside.
    ///
    /// # Errors
    /// [`Error::Watch`] when its `/proc` or one of these cannot be opened.
    pub fn inside(&self, tmpfs: &[PathBuf]) -> Result<Inside, Error> {
        let Processes { init, init_pid, .. } = &*self.handle.0;
        let inside = sys::as_user(self.identity, || Inside::open(*init_pid, tmpfs)).map_err(Error::Watch)?;
        stands(init)?;
        Ok(inside)
    }

    /// The sandbox's table of mounts (proc_pid_mountinfo(5)).
    ///
    /// # Errors
    /// [`Error::Watch`] when it cannot be opened.
    pub fn mounts(&self) -> Result<File, Error> {
        let Processes { init, init_pid, .. } = &*self.handle.0;
        let table = File::open(format!("/proc/{init_pid}/mountinfo")).map_err(Error::Watch)?;
        stands(init)?;
        Ok(table)
    }

    /// Starts a process of ours for what is done in the sandbox's namespaces from the host's side. Nothing of it is inside. Where it cannot
    /// be started, what is asked of it says why. `kept` is what it mounts when the host replaces it.
    #[must_use]
    pub fn inside_process(&self, kept: Option<KeptFiles<'_>>) -> InsideProcess {
        InsideProcess::start(self.control.pid, self.identity, kept)
    }

    /// Enters the sandbox's network. Where it is to be `open`, every address there is local afterwards, so that a connection to any is
    /// accepted by whoever listens there, and refused at once where nobody does.
    ///
    /// # Errors
    /// [`Error::Network`] with the step that the kernel refuses; the sandbox stands as before.
    pub fn network(&self, process: &InsideProcess, open: bool) -> Result<Network, Error> {
        process.network(open).map_err(|(step, source)| Error::Network { step, source })
    }

    /// What finds the process behind a connection in the sandbox's network. To be taken before anything untrusted runs.
    ///
    /// # Errors
    /// [`Error::Watch`] where the sandbox's `/proc` cannot be opened, or the kernel does not tell of sockets.
    pub fn finder(&self, network: &mut Network) -> Result<Finder, Error> {
        let absent = || Error::Watch(io::ErrorKind::Unsupported.into());
        let diag = network.diag.take().ok_or_else(absent)?;
        Ok(Finder::new(diag, self.inside(&[])?, self.identity))
    }

    /// Lets stage2 become the stage, on these standard streams, and waits until it has.
    ///
    /// # Errors
    /// [`Error::Exec`] when the command cannot be executed, [`Error::Stage2`] when a step before that failed,
    /// [`Error::Control`] when the sandbox went away. Nothing untrusted has run, and the sandbox is gone.
    pub fn go(mut self, go: Go, streams: [BorrowedFd<'_>; 3]) -> Result<Running, Error> {
        self.control.set_deadline(GO).map_err(Error::Control)?;
        let (has_terminal, may_tell) = (go.terminal.is_some(), !go.notice_filter.is_empty());
        self.control.send_go(go, streams)?;
        let passed = match self.control.receive()? {
            // The record has said already what holds.
            Some((Message::Hardened { landlock }, _)) if landlock < sys::landlock_abi() => {
                return Err(Error::Stage2 { step: Step::Landlock, source: nix::errno::Errno::EPERM });
            }
            Some((Message::Hardened { landlock }, passed)) => {
                tracing::debug!(landlock, "stage2 hardened itself");
                passed
            }
            Some((Message::Failed { step, errno }, _)) => return Err(failed(step, errno)),
            _ => return Err(Error::Control(io::ErrorKind::UnexpectedEof.into())),
        };
        let mut passed = passed.into_iter();
        let terminal = if has_terminal { passed.next() } else { None };
        let notices = if may_tell { passed.next().map(Notices::new) } else { None };
        if terminal.is_some() != has_terminal || passed.next().is_some() {
            return Err(Error::Control(io::ErrorKind::InvalidData.into()));
        }
        match self.control.receive()? {
            None => Ok(Running { handle: self.handle, bwrap: self.bwrap, terminal, notices }),
            Some((Message::Failed { step, errno }, _)) => Err(failed(step, errno)),
            Some(_) => Err(Error::Control(io::ErrorKind::InvalidData.into())),
        }
    }
}

/// Compares what the sandbox with this pid 1 has at its places with what was judged.
fn compare(init: i32, judged: &[Judged]) -> Result<(), Error> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let root =
        nix::fcntl::open(format!("/proc/{init}/root").as_str(), flags | OFlag::O_DIRECTORY, Mode::empty());
    let root = root.map_err(|errno| Error::Watch(errno.into()))?;
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let how = OpenHow::new().flags(flags).resolve(resolve);
    for Judged { at, file } in judged {
        let there = openat2(&root, at.as_path(), how).and_then(fstat).map(|stat| (stat.st_dev, stat.st_ino));
        match there {
            Ok(there) if *file == Some(there) => {}
            Err(errno @ (Errno::EACCES | Errno::EPERM | Errno::EMFILE | Errno::ENFILE)) => {
                return Err(Error::Watch(errno.into()));
            }
            _ => return Err(Error::Replaced(at.clone())),
        }
    }
    Ok(())
}

/// This process still runs, so that its number was its own until now.
fn stands(process: &PidFd) -> Result<(), Error> {
    match wait(process.as_fd(), process.as_fd(), None, Instant::now()).map_err(Error::Watch)? {
        None => Ok(()),
        Some(_) => Err(Error::Control(io::ErrorKind::UnexpectedEof.into())),
    }
}

fn failed(step: Step, errno: i32) -> Error {
    let source = nix::errno::Errno::from_raw(errno);
    if step == Step::Exec { Error::Exec(source) } else { Error::Stage2 { step, source } }
}

impl Running {
    /// The master of the stage's terminal, where the go asked for one; once.
    pub fn take_terminal(&mut self) -> Option<OwnedFd> {
        self.terminal.take()
    }

    /// Where the calls of the stage are told that the go has a filter for; once. `None` where another sandbox around this one is told of
    /// calls, and this one cannot be (seccomp(2), `EBUSY`).
    pub fn take_notices(&mut self) -> Option<Notices> {
        self.notices.take()
    }

    /// Waits until the sandbox's table of mounts, from [`Offer::mounts`], has changed since the last time, `events` can be read, or
    /// bubblewrap has ended, but not longer than this, nor than a day.
    ///
    /// # Errors
    /// What poll(2) says.
    pub fn until_change(
        &self,
        table: &File,
        events: Option<BorrowedFd<'_>>,
        longest: Duration,
    ) -> io::Result<Change> {
        change(table.as_fd(), events, self.bwrap.as_fd(), Instant::now() + longest.min(A_LOOK))
    }

    /// As [`Handle::kill`].
    pub fn kill(&self) {
        self.handle.kill();
    }

    /// Waits until no process of the sandbox is left.
    ///
    /// # Errors
    /// [`Error::Watch`] when the processes cannot be waited for; they are killed then.
    pub fn wait(mut self) -> Result<Status, Error> {
        let code = self.bwrap.wait().map_err(Error::Watch)?;
        let processes = &*self.handle.0;
        let Processes { stage, init, .. } = processes;
        // All processes of a pid namespace end before its pid 1 does.
        if wait(init.as_fd(), init.as_fd(), None, Instant::now() + END).map_err(Error::Watch)?.is_none() {
            // The guard is gone.
            processes.permitted(|| init.signal(libc::SIGKILL)).map_err(Error::Watch)?;
        }
        Ok(match stage.wait_status() {
            Some(status) if libc::WIFSIGNALED(status) => Status::Signal(libc::WTERMSIG(status)),
            Some(status) if libc::WIFEXITED(status) => exit(libc::WEXITSTATUS(status)),
            // bubblewrap folds a signal into the code as a shell does, so an old kernel cannot tell `exit 143` from SIGTERM.
            _ => match code {
                Some(code @ 129..=159) => Status::Signal(code - 128),
                Some(code) => exit(code),
                // bubblewrap itself was killed, and the sandbox with it.
                None => Status::Signal(libc::SIGKILL),
            },
        })
    }
}

/// As [`Running::until_change`], for a table of mounts and a process.
pub(crate) fn change(
    table: BorrowedFd<'_>,
    events: Option<BorrowedFd<'_>>,
    process: BorrowedFd<'_>,
    by: Instant,
) -> io::Result<Change> {
    let mut fds = [
        PollFd::new(table, PollFlags::POLLPRI),
        PollFd::new(process, PollFlags::POLLIN),
        PollFd::new(events.unwrap_or(process), PollFlags::POLLIN),
    ];
    loop {
        // Rounded up, and what is left of it each time: signals may come more often than it is long.
        let left = by.saturating_duration_since(Instant::now()).saturating_add(Duration::from_millis(1));
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Err(Errno::EINTR) if Instant::now() < by => continue,
            Err(Errno::EINTR) | Ok(0) => return Ok(Change::None),
            Err(errno) => return Err(errno.into()),
            Ok(_) => {}
        }
        let [has_table, has_ended, has_events] = fds.each_ref().map(|fd| fd.any().unwrap_or(false));
        // In this order, so that a change is not missed because the end came with it.
        return Ok(match (has_table, has_events && !has_ended) {
            (true, _) => Change::Mounts,
            (false, true) => Change::Events,
            (false, false) => Change::Ended,
        });
    }
}

fn exit(code: i32) -> Status {
    Status::Exit(u8::try_from(code).unwrap_or(u8::MAX))
}

impl Handle {
    /// Sends a signal to the stage and to the processes of its group.
    ///
    /// # Errors
    /// What pidfd_send_signal(2) says: `ESRCH` alone means that the stage is over. What clone(2) says where root has no CAP_KILL and
    /// no thread can be had.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.0.permitted(|| self.0.stage.signal_group(self.0.pid, signal))
    }

    /// Sends a signal to every process of the sandbox but its first, also to those that have left the stage's group.
    ///
    /// # Errors
    /// What open(2), clone(2), setns(2) and kill(2) say; `ESRCH` where none is left, and `TimedOut` after two seconds.
    pub fn signal_all(&self, signal: i32) -> io::Result<()> {
        let Processes { init, init_pid, identity, .. } = &*self.0;
        let opened = sys::as_user(*identity, || File::open(format!("/proc/{init_pid}/ns/pid")));
        // The number may be another process's by now.
        if !matches!(wait(init.as_fd(), init.as_fd(), None, Instant::now()), Ok(None)) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        sys::signal_namespace(&opened?, *identity, signal)
    }

    /// The sandbox's processes without its first, and what they do; none where it is over.
    ///
    /// # Errors
    /// Where `/proc` cannot be read, or does not show the stage. What clone(2) says where root can have no thread.
    pub fn processes(&self) -> io::Result<sys::StoppedProcesses> {
        let Processes { init_pid, identity, .. } = &*self.0;
        let processes = sys::as_user(*identity, || sys::StoppedProcesses::of(*init_pid))?;
        if !processes.has(self.0.pid) && !self.stage_is_over() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "/proc does not show the stage's process"));
        }
        Ok(processes)
    }

    /// Starts what ends the sandbox when one of these goes on, and then continues this process.
    ///
    /// # Errors
    /// What pidfd_open(2), socketpair(2) and clone(2) say; `ESRCH` where the sandbox is over.
    pub fn watch_stopped(&self, processes: &sys::StoppedProcesses) -> io::Result<sys::StopWatch> {
        let Processes { init, lifeline, .. } = &*self.0;
        // The number may have been another process's.
        if !matches!(wait(init.as_fd(), init.as_fd(), None, Instant::now()), Ok(None)) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        processes.watch(init, lifeline.as_fd())
    }

    /// Whether the stage's own process has ended.
    #[must_use]
    pub fn stage_is_over(&self) -> bool {
        let stage = self.0.stage.as_fd();
        // Whatever is wrong with the descriptor, there is no stage behind it any more.
        !matches!(wait(stage, stage, None, Instant::now()), Ok(None))
    }

    /// Whether the stage's own process is stopped. No where `/proc` does not tell.
    #[must_use]
    pub fn stage_is_stopped(&self) -> bool {
        control::stat_of(self.0.pid).is_some_and(|stat| stat.state == 'T')
    }

    /// Whether a signal has its default action for the stage's own process. No where `/proc` does not tell.
    #[must_use]
    pub fn stage_takes_default(&self, signal: i32) -> bool {
        control::takes_default(self.0.pid, signal) == Some(true) && !self.stage_is_over()
    }

    /// Whether the stage's own process group is in the foreground of the terminal with this master.
    #[must_use]
    pub fn stage_is_in_foreground(&self, master: BorrowedFd<'_>) -> bool {
        nix::unistd::tcgetpgrp(master).is_ok_and(|group| group.as_raw() == self.0.pid)
    }

    /// Ends every process of the sandbox at once; there is nothing to do where it is over.
    ///
    /// Cannot fail: where the kernel refuses the signal, as it does to root without CAP_KILL whose stage is another user, the guard
    /// sends it.
    pub fn kill(&self) {
        let Processes { init, init_pid, lifeline, .. } = &*self.0;
        match init.signal(libc::SIGKILL) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return,
            Err(_) => lifeline.cut(),
            Ok(()) => {}
        }
        // The others end when the kernel runs pid 1 to its end. Among a thousand processes that fork, that is not soon.
        sys::prefer(*init_pid);
    }
}

impl Processes {
    /// Sends a signal to one of them: where this process may not, as the user whose they are.
    fn permitted(&self, send: impl Fn() -> io::Result<()> + Sync) -> io::Result<()> {
        match send() {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => sys::as_user(self.identity, &send),
            sent => sent,
        }
    }
}

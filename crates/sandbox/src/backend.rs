//! Runs a sandbox, from its description to its end. bubblewrap builds it, or exeat itself does.
//!
//! The calls block. [`Launch::start`] returns once stage2 has offered the bridge, [`Offer::go`] once the stage is executed,
//! [`RunningSandbox::wait`] once it has ended. A caller that serves connections meanwhile uses a thread.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exeat_contract::{BridgeKind, Go, Message, Step};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::Resource;
use nix::sys::stat::{Mode, fstat};

use crate::assembly::Tree;
use crate::builder::Builder;
use crate::bwrap::Argv;
use crate::child::{Bwrap, Lifeline};
use crate::control::{self, Control};
use crate::error::Error;
use crate::inside::Meter;
use crate::mount_steps::explain;
use crate::native::Init;
use crate::seccomp::{self, Program};
use crate::spec::{Identity, SandboxSpec};
use crate::staging::Staging;
use crate::sys::{self, InsideProcess, KeptFiles, Network, Notices, PidFd};
use crate::wait::{Ready, wait};
use crate::who::Finder;

/// Time from the start of bubblewrap to stage2's hello. A loaded machine takes a second; after this, something hangs.
const START: Duration = Duration::from_secs(30);
/// Time from the go to `execve`. The command may lie on a slow network file system.
const GO: Duration = Duration::from_secs(60);
/// Time from the end of bubblewrap to the end of the sandbox's pid 1, which the kernel has killed by then.
const END: Duration = Duration::from_secs(10);

/// The longest wait for a change.
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The settings for starting a sandbox.
#[derive(Debug)]
pub struct Launch {
    /// The program that builds the sandbox.
    pub builder: Builder,
    /// Description of the sandbox.
    pub spec: SandboxSpec,
    /// The listening socket that the spec mounts at [`exeat_contract::SOCKET`].
    pub listener: UnixListener,
    /// Reaches end of file when the caller gives up before stage2 is ready.
    pub cancel: OwnedFd,
    /// Trees to mount first: the spec refers to them. Needs CAP_SYS_ADMIN.
    pub staging: Option<Staging>,
    /// Descriptor that stays open until the sandbox has no process left, even if this process is killed.
    pub held: Option<OwnedFd>,
    /// Files that the mounts of the spec must show: names can be exchanged between the plan and the mount.
    pub expected: Vec<ExpectedFile>,
}

/// A file that the plan checked for a mount. The start fails if the sandbox has another one at that path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedFile {
    /// Path inside the sandbox, without links.
    pub at: PathBuf,
    /// Device and inode on the host. `None` matches no file.
    pub file: Option<(u64, u64)>,
}

/// A sandbox whose stage2 is ready and waits. Dropping it ends the sandbox before anything untrusted has run.
#[derive(Debug)]
pub struct Offer {
    bridge: Option<Bridge>,
    control: Control,
    handle: Handle,
    root: RootProcess,
    identity: Identity,
}

/// The process of ours whose end is the end of the sandbox. Dropping it ends the sandbox.
#[derive(Debug)]
enum RootProcess {
    Bwrap(Bwrap),
    Native(Init),
}

/// The way in which the stage's TCP connections reach the host side.
#[derive(Debug)]
pub enum Bridge {
    /// Listeners in the sandbox's network namespace. They pin the namespace: close them at the end.
    Handoff {
        /// Listener for the HTTP proxy.
        http: TcpListener,
        /// Listener for SOCKS5, if the spec asks for it.
        socks5: Option<TcpListener>,
    },
    /// Connections arrive on the bind-mounted socket. Those of SOCKS5 arrive on the socket that the spec mounts at
    /// [`exeat_contract::SOCKS5_SOCKET`].
    Relay {
        /// Listening side of the bind-mounted socket.
        listener: UnixListener,
        /// Reaches end of file when the relay dies.
        lifeline: OwnedFd,
        /// Reaches end of file when the SOCKS5 relay dies, if the spec asks for SOCKS5.
        socks5: Option<OwnedFd>,
    },
}

/// A resource limit of the stage (setrlimit(2)).
#[derive(Debug, Clone, Copy)]
pub struct Rlimit {
    /// Name of the limited resource, for messages.
    pub what: &'static str,
    /// The limited resource.
    pub resource: Resource,
    /// The soft limit, in the resource's unit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// A sandbox whose stage runs.
#[derive(Debug)]
pub struct RunningSandbox {
    handle: Handle,
    root: RootProcess,
    terminal: Option<OwnedFd>,
    notices: Option<Notices>,
}

/// An event in a running sandbox that ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxEvent {
    /// The sandbox's table of mounts changed.
    Mounts,
    /// The caller's descriptor is readable.
    Events,
    /// The sandbox is ending or has ended.
    Ended,
    /// The given time passed without a change.
    None,
}

/// Sends signals to a running stage. Any thread may use it.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Processes>);

#[derive(Debug)]
struct Processes {
    /// The stage's pid on the host, valid for as long as `stage` can be signaled.
    pid: i32,
    stage: PidFd,
    init: PidFd,
    /// The pid of the sandbox's pid 1 on the host, valid for as long as `init` can be signaled.
    init_pid: i32,
    /// User that runs the processes.
    identity: Identity,
    /// Connection to the reaper, or to pid 1: either can end the sandbox.
    lifeline: Lifeline,
}

/// The way in which a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The stage exited with this code.
    Exit(u8),
    /// The stage was killed by this signal.
    Signal(i32),
}

impl Launch {
    /// Copies the launch, without its staged trees: these are mounted only once.
    ///
    /// # Errors
    /// Returns the error of dup(2).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            builder: self.builder.clone(),
            spec: self.spec.clone(),
            listener: self.listener.try_clone()?,
            cancel: self.cancel.try_clone()?,
            staging: None,
            held: self.held.as_ref().map(OwnedFd::try_clone).transpose()?,
            expected: self.expected.clone(),
        })
    }

    /// Builds the sandbox and waits for stage2's offer.
    ///
    /// # Errors
    /// Returns any variant of [`Error`] that names a step before `execve`. The sandbox has ended by then.
    pub fn start(self) -> Result<Offer, Error> {
        let by = Instant::now() + START;
        let filters = seccomp::base(self.spec.debuggable)?;
        let (mut root, mut control, init) = match &self.builder {
            Builder::Bwrap(path) | Builder::BwrapAlone(path) => self.start_bwrap(path, &filters, by)?,
            Builder::Native => self.start_natively(&filters, by)?,
        };
        // Whoever builds the sandbox has its own copies now.
        drop(self.staging);
        let (identity, lifeline) = match &root {
            RootProcess::Bwrap(bwrap) => (self.spec.identity, bwrap.lifeline()),
            // This process owns the namespaces, and has every right over what is in them (user_namespaces(7)).
            RootProcess::Native(init) => (Identity::Caller, init.lifeline()),
        };
        control
            .set_deadline(by.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
            .map_err(Error::Control)?;
        let passed = match (control.receive()?, &mut root) {
            (Some((Message::Hello(_), passed)), _) => passed,
            (Some((message, _)), RootProcess::Native(_)) => return Err(explain(&message, &self.spec)),
            (Some((Message::Failed { step, errno }, _)), _) => return Err(failed(step, errno)),
            (None, RootProcess::Bwrap(bwrap)) => return Err(bwrap.explain()),
            (None, RootProcess::Native(_)) => {
                return Err(Error::Control(io::ErrorKind::UnexpectedEof.into()));
            }
            (Some(_), _) => return Err(Error::Control(io::ErrorKind::InvalidData.into())),
        };
        let handle = Handle(Arc::new(Processes {
            pid: control.pid,
            stage: PidFd::open(control.pid).map_err(Error::Watch)?,
            init: PidFd::open(init).map_err(Error::Watch)?,
            init_pid: init,
            identity,
            lifeline,
        }));
        let root_of = compare(init, &self.expected);
        match root_of {
            // Root without CAP_SYS_PTRACE may not inspect a process of another user.
            Err(Error::Watch(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                sys::as_user(identity, || Ok(compare(init, &self.expected))).map_err(Error::Watch)??;
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
        Ok(Offer { bridge: Some(bridge), control, handle, root, identity })
    }

    fn start_bwrap(
        &self,
        path: &Path,
        filters: &[Program],
        by: Instant,
    ) -> Result<(RootProcess, Control, i32), Error> {
        let staging = self.staging.as_ref();
        let (argv, tree) = match &self.builder {
            Builder::BwrapAlone(_) => {
                let tree = staging.map(|it| Tree::staged_alone(self.spec.identity, it));
                (Argv::new(&self.spec, filters.len()), tree)
            }
            _ => {
                let tree = Tree::new(&self.spec, staging);
                (Argv::around_tree(&self.spec, filters.len()), Some(tree))
            }
        };
        let held = self.held.as_ref().map(OwnedFd::try_clone).transpose();
        let held = held.map_err(|source| Error::Prepare { what: "a descriptor", source })?;
        let mut bwrap = Bwrap::spawn(path, &argv, filters, self.spec.identity, tree, held)?;
        match wait(self.listener.as_fd(), bwrap.as_fd(), Some(self.cancel.as_fd()), by)
            .map_err(Error::Watch)?
        {
            Some(Ready::Socket) => {}
            Some(Ready::Ended) => {
                let failure = bwrap.assembly_failure();
                return Err(failure.map_or_else(|| bwrap.explain(), |message| explain(&message, &self.spec)));
            }
            Some(Ready::Cancelled) => return Err(Error::Cancelled),
            None => return Err(Error::Late(START)),
        }
        // bubblewrap writes the pid before it lets the sandbox continue, so the pid is available now.
        let init = bwrap.init_pid(by)?;
        let control = Control::accept(&self.listener, init)?;
        Ok((RootProcess::Bwrap(bwrap), control, init))
    }

    fn start_natively(&self, filters: &[Program], by: Instant) -> Result<(RootProcess, Control, i32), Error> {
        let (init, control) = Init::spawn(&self.spec, filters, self.staging.as_ref(), self.held.as_ref())?;
        match wait(control.as_fd(), init.as_fd(), Some(self.cancel.as_fd()), by).map_err(Error::Watch)? {
            // If it has ended, the socket says so.
            Some(Ready::Socket | Ready::Ended) => {}
            Some(Ready::Cancelled) => return Err(Error::Cancelled),
            None => return Err(Error::Late(START)),
        }
        let pid = init.pid;
        Ok((RootProcess::Native(init), control, pid))
    }
}

impl RootProcess {
    /// Waits for its end and returns its exit code, or `None` if a signal killed it.
    fn wait(&mut self) -> io::Result<Option<i32>> {
        match self {
            Self::Bwrap(bwrap) => bwrap.wait(),
            Self::Native(init) => init.wait(),
        }
    }
}

impl AsFd for RootProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Bwrap(bwrap) => bwrap.as_fd(),
            Self::Native(init) => init.as_fd(),
        }
    }
}

impl Offer {
    /// Returns the bridge to serve, or `None` on later calls.
    pub fn take_bridge(&mut self) -> Option<Bridge> {
        self.bridge.take()
    }

    /// Returns a handle that sends signals to the stage.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Sets resource limits for the stage, and never exceeds the caller's own hard limits.
    ///
    /// The limits apply to stage2 from now on and pass to the stage with execve(2). stage2 needs at most 16 descriptors.
    ///
    /// # Errors
    /// Returns [`Error::Limit`] with the error of prlimit(2).
    pub fn limit(&self, limits: &[Rlimit]) -> Result<(), Error> {
        limits.iter().try_for_each(|Rlimit { what, resource, soft, hard }| {
            let set = || sys::lower_limit(self.control.pid, *resource, *soft, *hard);
            sys::as_user(self.identity, set).map_err(|source| Error::Limit { what, source })
        })
    }

    /// Moves the process that becomes the stage into the control group of this `cgroup.procs` file (cgroups(7)).
    ///
    /// # Errors
    /// Returns the error of write(2).
    pub fn enter(&self, mut processes: &File) -> io::Result<()> {
        processes.write_all(self.control.pid.to_string().as_bytes())
    }

    /// Opens the sandbox for measurements from the host. `tmpfs` lists its file systems in memory, by their paths inside.
    ///
    /// # Errors
    /// Returns [`Error::Watch`] if its `/proc` or one of these file systems cannot be opened.
    pub fn meter(&self, tmpfs: &[PathBuf]) -> Result<Meter, Error> {
        let Processes { init, init_pid, .. } = &*self.handle.0;
        let inside = sys::as_user(self.identity, || Meter::open(*init_pid, tmpfs)).map_err(Error::Watch)?;
        stands(init)?;
        Ok(inside)
    }

    /// Opens the sandbox's table of mounts (proc_pid_mountinfo(5)).
    ///
    /// # Errors
    /// Returns [`Error::Watch`] if the table cannot be opened.
    pub fn mounts(&self) -> Result<File, Error> {
        let Processes { init, init_pid, .. } = &*self.handle.0;
        let table = File::open(format!("/proc/{init_pid}/mountinfo")).map_err(Error::Watch)?;
        stands(init)?;
        Ok(table)
    }

    /// Starts a process of ours that acts in the sandbox's namespaces from the host side; the stage cannot reach it. If it cannot
    /// start, each request to it returns the reason. It mounts `kept` again when the host replaces those files.
    #[must_use]
    pub fn inside_process(&self, kept: Option<KeptFiles<'_>>) -> InsideProcess {
        InsideProcess::start(self.control.pid, self.identity, kept)
    }

    /// Enters the sandbox's network. If `open`, makes every address there local: a listener in the sandbox accepts a connection to
    /// any address, and without a listener the connection is refused at once.
    ///
    /// # Errors
    /// Returns [`Error::Network`] with the step that the kernel refuses. The sandbox is unchanged then.
    pub fn network(&self, process: &InsideProcess, open: bool) -> Result<Network, Error> {
        process.network(open).map_err(|(step, source)| Error::Network { step, source })
    }

    /// Returns a finder of the process that owns a connection in the sandbox. Call it before anything untrusted runs.
    ///
    /// # Errors
    /// Returns [`Error::Watch`] if the sandbox's `/proc` cannot be opened, or the kernel does not report sockets.
    pub fn finder(&self, network: &mut Network) -> Result<Finder, Error> {
        let absent = || Error::Watch(io::ErrorKind::Unsupported.into());
        let diag = network.diag.take().ok_or_else(absent)?;
        Ok(Finder::new(diag, self.meter(&[])?, self.identity))
    }

    /// Lets stage2 become the stage, on these standard streams, and waits until it has.
    ///
    /// # Errors
    /// Returns [`Error::Exec`] if the command cannot be executed, [`Error::Stage2`] if an earlier step failed, and [`Error::Control`]
    /// if the sandbox ended. The sandbox has ended then, and nothing untrusted has run.
    pub fn go(mut self, go: Go, streams: [BorrowedFd<'_>; 3]) -> Result<RunningSandbox, Error> {
        self.control.set_deadline(GO).map_err(Error::Control)?;
        let (has_terminal, may_tell) = (go.terminal.is_some(), !go.notice_filter.is_empty());
        self.control.send_go(go, streams)?;
        let passed = match self.control.receive()? {
            // The record already states which layers hold, so a weaker Landlock domain is an error.
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
            None => Ok(RunningSandbox { handle: self.handle, root: self.root, terminal, notices }),
            Some((Message::Failed { step, errno }, _)) => Err(failed(step, errno)),
            Some(_) => Err(Error::Control(io::ErrorKind::InvalidData.into())),
        }
    }
}

/// Compares the files at the sandbox's mounts with those that the plan checked.
fn compare(init: i32, expected: &[ExpectedFile]) -> Result<(), Error> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let root =
        nix::fcntl::open(format!("/proc/{init}/root").as_str(), flags | OFlag::O_DIRECTORY, Mode::empty());
    let root = root.map_err(|errno| Error::Watch(errno.into()))?;
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let how = OpenHow::new().flags(flags).resolve(resolve);
    for ExpectedFile { at, file } in expected {
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

/// Checks that this process still runs, so that its pid has not been reused.
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

impl RunningSandbox {
    /// Returns the master of the stage's terminal, if the go asked for one. Later calls return `None`.
    pub fn take_terminal(&mut self) -> Option<OwnedFd> {
        self.terminal.take()
    }

    /// Returns the notices of the calls that the go's filter selects, once. `None` if a sandbox around this one already receives
    /// notices, since the kernel allows one listener (seccomp(2), `EBUSY`).
    pub fn take_notices(&mut self) -> Option<Notices> {
        self.notices.take()
    }

    /// Waits until the sandbox's table of mounts, from [`Offer::mounts`], changes, `events` is readable, bubblewrap ends, or the time
    /// is over. It waits for a day at most.
    ///
    /// # Errors
    /// Returns the error of poll(2).
    pub fn until_change(
        &self,
        table: &File,
        events: Option<BorrowedFd<'_>>,
        longest: Duration,
    ) -> io::Result<SandboxEvent> {
        change(table.as_fd(), events, self.root.as_fd(), Instant::now() + longest.min(MAX_WAIT))
    }

    /// Kills the sandbox as [`Handle::kill`] does.
    pub fn kill(&self) {
        self.handle.kill();
    }

    /// Waits until the sandbox has no process left.
    ///
    /// # Errors
    /// Returns [`Error::Watch`] if the processes cannot be waited for. They are killed then.
    pub fn wait(mut self) -> Result<Status, Error> {
        let code = self.root.wait().map_err(Error::Watch)?;
        let processes = &*self.handle.0;
        let Processes { stage, init, .. } = processes;
        // All processes of a pid namespace end before its pid 1 does.
        if wait(init.as_fd(), init.as_fd(), None, Instant::now() + END).map_err(Error::Watch)?.is_none() {
            // The reaper has ended without killing it.
            processes.permitted(|| init.signal(libc::SIGKILL)).map_err(Error::Watch)?;
        }
        Ok(match stage.wait_status() {
            Some(status) if libc::WIFSIGNALED(status) => Status::Signal(libc::WTERMSIG(status)),
            Some(status) if libc::WIFEXITED(status) => exit(libc::WEXITSTATUS(status)),
            // bubblewrap folds a signal into the code as a shell does: on an old kernel, `exit 143` looks like SIGTERM.
            _ => match code {
                Some(code @ 129..=159) => Status::Signal(code - 128),
                Some(code) => exit(code),
                // bubblewrap itself was killed, and the sandbox with it.
                None => Status::Signal(libc::SIGKILL),
            },
        })
    }
}

/// Waits as [`RunningSandbox::until_change`] does, on any table of mounts and any process.
pub(crate) fn change(
    table: BorrowedFd<'_>,
    events: Option<BorrowedFd<'_>>,
    process: BorrowedFd<'_>,
    by: Instant,
) -> io::Result<SandboxEvent> {
    let mut fds = [
        PollFd::new(table, PollFlags::POLLPRI),
        PollFd::new(process, PollFlags::POLLIN),
        PollFd::new(events.unwrap_or(process), PollFlags::POLLIN),
    ];
    loop {
        // Round up, and compute the rest of the time anew each round: signals may interrupt often.
        let left = by.saturating_duration_since(Instant::now()).saturating_add(Duration::from_millis(1));
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Err(Errno::EINTR) if Instant::now() < by => continue,
            Err(Errno::EINTR) | Ok(0) => return Ok(SandboxEvent::None),
            Err(errno) => return Err(errno.into()),
            Ok(_) => {}
        }
        let [has_table, has_ended, has_events] = fds.each_ref().map(|fd| fd.any().unwrap_or(false));
        // Mounts first, so that the end of the sandbox does not hide a change.
        return Ok(match (has_table, has_events && !has_ended) {
            (true, _) => SandboxEvent::Mounts,
            (false, true) => SandboxEvent::Events,
            (false, false) => SandboxEvent::Ended,
        });
    }
}

fn exit(code: i32) -> Status {
    Status::Exit(u8::try_from(code).unwrap_or(u8::MAX))
}

impl Handle {
    /// Sends a signal to the stage and to its process group.
    ///
    /// # Errors
    /// Returns the error of pidfd_send_signal(2); only `ESRCH` means that the stage has ended. If root has no CAP_KILL and no thread
    /// can start, returns the error of clone(2).
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.0.permitted(|| self.0.stage.signal_group(self.0.pid, signal))
    }

    /// Sends a signal to every process of the sandbox except pid 1, including those that left the stage's group.
    ///
    /// # Errors
    /// Returns the error of open(2), clone(2), setns(2) or kill(2): `ESRCH` if no process is left, `TimedOut` after two seconds.
    pub fn signal_all(&self, signal: i32) -> io::Result<()> {
        let Processes { init, init_pid, identity, .. } = &*self.0;
        let opened = sys::as_user(*identity, || File::open(format!("/proc/{init_pid}/ns/pid")));
        // The pid may have been reused.
        if !matches!(wait(init.as_fd(), init.as_fd(), None, Instant::now()), Ok(None)) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        sys::signal_namespace(&opened?, *identity, signal)
    }

    /// Lists the sandbox's processes except pid 1, with their states. The list is empty once the sandbox has ended.
    ///
    /// # Errors
    /// Returns an error if `/proc` cannot be read or does not show the stage, or if root cannot start a thread (clone(2)).
    pub fn processes(&self) -> io::Result<sys::StoppedProcesses> {
        let Processes { init_pid, identity, .. } = &*self.0;
        let processes = sys::as_user(*identity, || sys::StoppedProcesses::descendants_of(*init_pid))?;
        if !processes.has(self.0.pid) && !self.stage_is_over() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "/proc does not show the stage's process"));
        }
        Ok(processes)
    }

    /// Starts a watch that ends the sandbox and continues this process as soon as one of these processes continues.
    ///
    /// # Errors
    /// Returns the error of pidfd_open(2), socketpair(2) or clone(2): `ESRCH` if the sandbox has ended.
    pub fn watch_stopped(&self, processes: &sys::StoppedProcesses) -> io::Result<sys::StopWatch> {
        let Processes { init, lifeline, .. } = &*self.0;
        // The pid may have been reused.
        if !matches!(wait(init.as_fd(), init.as_fd(), None, Instant::now()), Ok(None)) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        processes.watch(init, lifeline.as_fd())
    }

    /// Whether the stage's own process has ended.
    #[must_use]
    pub fn stage_is_over(&self) -> bool {
        let stage = self.0.stage.as_fd();
        // A descriptor that cannot be polled belongs to a stage that has ended.
        !matches!(wait(stage, stage, None, Instant::now()), Ok(None))
    }

    /// Whether the stage's own process is stopped. False if `/proc` cannot be read.
    #[must_use]
    pub fn stage_is_stopped(&self) -> bool {
        control::stat_of(self.0.pid).is_some_and(|stat| stat.state == 'T')
    }

    /// Whether a signal has its default action in the stage's own process. False if `/proc` cannot be read.
    #[must_use]
    pub fn stage_takes_default(&self, signal: i32) -> bool {
        control::takes_default(self.0.pid, signal) == Some(true) && !self.stage_is_over()
    }

    /// Whether the stage's process group is in the foreground of the terminal with this master.
    #[must_use]
    pub fn stage_is_in_foreground(&self, master: BorrowedFd<'_>) -> bool {
        nix::unistd::tcgetpgrp(master).is_ok_and(|group| group.as_raw() == self.0.pid)
    }

    /// Kills every process of the sandbox at once. Does nothing if the sandbox has ended.
    ///
    /// Cannot fail: the reaper sends the signal if the kernel refuses it to this process (root without CAP_KILL, with a stage of
    /// another user).
    pub fn kill(&self) {
        let Processes { init, init_pid, lifeline, .. } = &*self.0;
        match init.signal(libc::SIGKILL) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return,
            Err(_) => lifeline.cut(),
            Ok(()) => {}
        }
        // The other processes end when the kernel runs pid 1 to its end. Among a thousand processes that fork, this takes long.
        sys::prefer(*init_pid);
    }
}

impl Processes {
    /// Sends a signal to one of the processes, as their user if this process lacks the permission.
    fn permitted(&self, send: impl Fn() -> io::Result<()> + Sync) -> io::Result<()> {
        match send() {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => sys::as_user(self.identity, &send),
            sent => sent,
        }
    }
}

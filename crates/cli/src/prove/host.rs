//! The host side of a proof: plants what a stage must not find, listens, makes the control, starts the runs, and judges.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exeat_runner::{RunId, attempt, lists};
use nix::sys::signal::{SigSet, Signal};

use super::canary::{Canaries, Files, Visit};
use super::inside::Line;
use super::scratch::{Scratch, resolver, sockets_of_runs};
use super::{Attempt, Control, INSIDE, Node, Other, Saw, Spec, survive};
use crate::failure::Failure;
use crate::machine::Machine;

/// Where the stage finds this binary.
const PLACE: &str = "/run/exeat-prove";
/// How long one run may take: each attempt has a shorter limit of its own.
const RUN: Duration = Duration::from_secs(60);
/// How long a run may take to be there.
const START: Duration = Duration::from_secs(15);
/// How long what is left of a run may take to be gone.
const GONE: Duration = Duration::from_secs(2);

/// What came of one attempt over one bridge.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) rows: &'static [&'static str],
    pub(crate) bridge: &'static str,
    /// What was seen inside, and by the canaries.
    pub(crate) seen: String,
    /// What the same attempt saw outside, if it was made there.
    pub(crate) outside: Option<Saw>,
    /// `None`: it could not be made, or nothing shows that it could succeed.
    pub(crate) held: Option<bool>,
    /// Why that is so.
    pub(crate) why: String,
}

/// The choice of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) bridge: &'static str,
    pub(crate) view: Option<&'a str>,
}

/// The machine with everything planted. Dropped, nothing of it is left.
pub(crate) struct Host {
    exe: PathBuf,
    token: String,
    spec: Spec,
    canaries: Canaries,
    scratch: Scratch,
    _open: Option<fs::File>,
    _sockets: Vec<Files>,
}

/// The signal that asked for the end, 0 for none.
static STOP: AtomicI32 = AtomicI32::new(0);

/// The signal that asked for the end.
pub(crate) fn stopped() -> Option<i32> {
    Some(STOP.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// From here on SIGINT, SIGTERM and SIGHUP end a proof in order, so that nothing is left. Before any thread is made.
fn watch_signals() {
    let mut asks = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| asks.add(signal));
    // A program that is started gets an empty mask: the standard library sees to it.
    if asks.thread_block().is_ok() {
        std::thread::spawn(move || {
            while let Ok(signal) = asks.wait() {
                STOP.store(signal as i32, Ordering::SeqCst);
            }
        });
    }
}

impl Host {
    /// Plants everything. What cannot be planted is left out, and its attempt then says so.
    pub(crate) fn new(machine: &Machine) -> Result<Self, Failure> {
        let could_not = |what: &str| {
            let message = format!("cannot {what}");
            move |error: io::Error| Failure::could(message).because(error)
        };
        // On this thread, which starts every program: the keyring goes to its children.
        let token = RunId::new().to_string().to_lowercase();
        let key = format!("exeat-prove:{token}");
        let key = attempt::plant_key(&key, &token).ok().map(|()| key);
        watch_signals();

        let exe = std::env::current_exe().map_err(could_not("tell where this program is"))?;
        let scratch = Scratch::new().map_err(could_not("make a directory for the proof"))?;
        let canaries = Canaries::new(&token);
        let sockets = [canaries.tcp(["tcp4", "tcp6"]), canaries.tcp(["origin4", "origin6"])];
        let sockets = sockets.into_iter().flatten().chain(canaries.udp(["udp4", "udp6"])).collect();
        let (paths, files) = host_sockets(&canaries, &scratch, machine, &token);
        let abstract_name = format!("exeat-prove-{token}");
        let abstract_name = canaries.abstract_name("abstract", &abstract_name).ok().map(|()| abstract_name);
        let open = scratch.open_file().ok();
        let spec = Spec {
            sockets,
            resolver: resolver(),
            paths,
            abstract_name,
            other: None,
            variable: Some(variable(&token)),
            key,
            hidden: hidden(machine),
            read_only: ["/etc/hosts", "/etc/resolv.conf", "/etc", "/usr", "/usr/bin"]
                .into_iter()
                .filter_map(|path| Node::at(Path::new(path)).ok())
                .collect(),
            own: own(machine),
            descriptor: open.as_ref().and_then(|(path, _)| Node::at(path).ok()),
            namespaces: ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"]
                .into_iter()
                .filter_map(|name| {
                    let number = fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
                    Some((name.to_owned(), number.to_string_lossy().into_owned()))
                })
                .collect(),
            token: token.clone(),
        };
        let open = open.map(|(_, file)| file);
        Ok(Self { exe, token, spec, canaries, scratch, _open: open, _sockets: files })
    }

    /// Makes these attempts over one bridge: outside first, then in a run.
    ///
    /// # Errors
    /// [`Failure`] with the words of the run that did not start.
    pub(crate) fn over(&mut self, path: Way<'_>, attempts: &[&'static Attempt]) -> Result<Vec<Found>, NoRun> {
        if attempts.is_empty() {
            return Ok(Vec::new());
        }
        let beside_another = attempts.iter().any(|attempt| attempt.beside_another);
        let other = if beside_another { self.other_run(path)? } else { None };
        let spec = serde_json::to_string(&self.spec).map_err(io::Error::other)?;
        let names: Vec<&str> = attempts.iter().map(|attempt| attempt.id).collect();

        let mut control = self.program(&self.exe);
        control.args([INSIDE, "controls", &spec]).args(&names).current_dir(self.scratch.outside());
        let outside = lines(&Started::new(control)?.end(RUN)?.stdout);
        self.canaries.take();

        let mut run = self.run(path, "attempts");
        run.args(["attempts", &spec]).args(&names);
        let done = Started::new(run)?.end(RUN)?;
        let visits = self.canaries.take();
        drop(other);
        let inside = lines(&done.stdout);
        if inside.is_empty() {
            return Err(NoRun::Said(done));
        }
        let mut ended = false;
        Ok(attempts
            .iter()
            .map(|attempt| {
                let here = inside.iter().find(|line| line.id == attempt.id).map(|line| &line.saw);
                let there = outside.iter().find(|line| line.id == attempt.id).map(|line| &line.saw);
                let first_missing = here.is_none() && !ended;
                ended |= here.is_none();
                judge(attempt, path.bridge, here, there, &visits, first_missing)
            })
            .collect())
    }

    /// Kills an exeat whose stage has a process that ignores what can be ignored, and looks what is left.
    pub(crate) fn survive(&mut self, path: Way<'_>) -> Result<Found, NoRun> {
        let token = format!("{}-{}-survives", self.token, path.bridge);
        let mut run = self.run(path, "survive");
        run.args(["survive", &token]);
        let mut started = Started::new(run)?;
        let found = |seen: String, held: Option<bool>, why: &str| Found {
            id: survive::ID,
            title: survive::TITLE,
            rows: survive::ROWS,
            bridge: path.bridge,
            seen,
            outside: None,
            held,
            why: why.into(),
        };
        if !started.until_says(survive::ALIVE, START) {
            let done = started.end(Duration::ZERO)?;
            return if done.stderr.is_empty() {
                Ok(found(String::new(), None, "the process that was to survive did not start"))
            } else {
                Err(NoRun::Said(done))
            };
        }
        let before = survive::named(&token).len();
        let began = Instant::now();
        started.kill();
        let left = survive::until_gone(&token, GONE);
        let took = began.elapsed().as_millis();
        for pid in &left {
            let _ = nix::sys::signal::kill(*pid, Signal::SIGKILL);
        }
        let _ = started.end(GONE);
        Ok(match (before, left.len()) {
            // The stage, its survivor, and what of exeat carries the word.
            (0..2, _) => found(format!("{before} processes"), None, "its processes cannot be seen from here"),
            (_, 0) => {
                found(format!("{before} processes, all gone after {took} ms"), Some(true), "nothing was left")
            }
            (_, left) => found(format!("{left} of {before} processes lived on"), Some(false), "it lived on"),
        })
    }

    /// Starts another run, whose stage listens on its loopback, and notes where it is. It ends when the value is dropped.
    fn other_run(&mut self, path: Way<'_>) -> Result<Option<Started>, NoRun> {
        let mut run = self.run(path, "other");
        run.args(["wait", &self.token]).stdin(Stdio::piped());
        let mut started = Started::new(run)?;
        self.spec.other = None;
        if !started.until_says("\n", START) {
            let done = started.end(Duration::ZERO)?;
            return if done.stderr.is_empty() { Ok(None) } else { Err(NoRun::Said(done)) };
        }
        if let Ok(mut other) = serde_json::from_str::<Other>(started.heard().trim()) {
            for socket in sockets_of_runs() {
                other.paths.extend(socket.parent().map(Path::to_owned));
                other.paths.push(socket);
            }
            self.spec.other = Some(other);
        }
        self.spec.own.retain(|node| !node.path.starts_with(self.scratch.at("")));
        self.spec.own.extend(Node::at(&self.record("other", path)).ok());
        Ok(Some(started))
    }

    fn record(&self, name: &str, path: Way<'_>) -> PathBuf {
        self.scratch.at(&format!("record-{name}-{}.jsonl", path.bridge))
    }

    /// `exeat run ... -- exeat prove-inside`, as anybody would start it, with a way out that one attempt misuses.
    fn run(&self, path: Way<'_>, name: &str) -> Command {
        let mut run = self.program(&self.exe);
        run.args(["run", "--quiet", "--cache", "none", "--bridge", path.bridge, "--timeout", "55s"]);
        if let Some(view) = path.view {
            run.args(["--fs", view]);
        }
        run.arg("--audit").arg(self.record(name, path));
        let mut bind = self.exe.clone().into_os_string();
        bind.push(format!(":{PLACE}"));
        run.arg("--ro").arg(bind);
        for rule in self.rules() {
            run.args(["--allow", &rule]);
        }
        run.current_dir(self.scratch.work());
        if path.view == Some("minimal") {
            run.args(["--rw", "."]);
            for library in libraries() {
                run.arg("--ro").arg(library);
            }
        }
        run.arg("--").args(loader(path)).args([PLACE, INSIDE]);
        run
    }

    /// A name that leads to the host's loopback is allowed on two ports; the addresses behind it on one.
    fn rules(&self) -> Vec<String> {
        let port = |name: &str| self.spec.sockets.get(name).map(|addr| addr.port());
        let mut rules = Vec::new();
        rules.extend(port("tcp4").map(|port| format!("localhost:{port}")));
        if let Some(port) = port("origin4") {
            rules.extend(["localhost", "127.0.0.1", "[::1]"].map(|host| format!("{host}:{port}")));
        }
        rules
    }

    /// A program that gets what a careless caller of exeat would give it.
    #[expect(
        clippy::disallowed_methods,
        reason = "exeat starts itself, as its user would: a library call would be another path"
    )]
    fn program(&self, exe: &Path) -> Command {
        let mut program = Command::new(exe);
        program.env(variable(&self.token), &self.token).stdin(Stdio::null());
        program
    }
}

/// Why there is nothing to judge.
pub(crate) enum NoRun {
    /// The run did not start, and said why.
    Said(Done),
    /// This side failed.
    Io(io::Error),
}

impl From<io::Error> for NoRun {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The files that this program is made of besides itself: those that are mapped to be executed (proc_pid_maps(5)).
fn libraries() -> Vec<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mapped = maps.lines().filter(|line| line.contains(" r-xp ")).filter_map(|line| line.split_once('/'));
    let mut files: Vec<PathBuf> = mapped.map(|(_, path)| PathBuf::from(format!("/{path}"))).collect();
    let own = std::env::current_exe().unwrap_or_default();
    files.retain(|file| *file != own);
    files.sort();
    files.dedup();
    files
}

/// The words that start a program whose loader and libraries are not where it looks for them (ld.so(8)): in a view that shows
/// only what is named, there are no links to them.
fn loader(way: Way<'_>) -> Vec<PathBuf> {
    if way.view != Some("minimal") {
        return Vec::new();
    }
    let files = libraries();
    let named =
        |file: &&PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-"));
    let Some(loader) = files.iter().find(named) else { return Vec::new() };
    let mut directories: Vec<_> = files.iter().filter_map(|file| file.parent()?.to_str()).collect();
    directories.sort_unstable();
    directories.dedup();
    vec![loader.clone(), "--library-path".into(), directories.join(":").into()]
}

fn variable(token: &str) -> String {
    format!("EXEAT_PROVE_{token}")
}

/// The sockets in files: in `/tmp`, the runtime directory, the home directory and the working directory.
fn host_sockets(
    canaries: &Canaries,
    scratch: &Scratch,
    machine: &Machine,
    token: &str,
) -> (std::collections::BTreeMap<String, PathBuf>, Vec<Files>) {
    let name = format!(".exeat-prove-{token}");
    let runtime = machine.env.get(std::ffi::OsStr::new("XDG_RUNTIME_DIR")).map(PathBuf::from);
    let runtime = runtime.or_else(|| Some(format!("/run/user/{}", nix::unistd::geteuid()).into()));
    let places = [
        ("unix-tmp", Some(scratch.at("host.sock"))),
        ("unix-runtime", runtime.map(|place| place.join(&name))),
        ("unix-home", Some(machine.home_or_database().join(&name))),
        ("unix-workdir", Some(scratch.work().join("host.sock"))),
    ];
    let mut files = Vec::new();
    let made = places.into_iter().filter_map(|(canary, path)| {
        let path = path?;
        files.push(canaries.path(canary, &path).ok()?);
        Some((canary.to_owned(), path))
    });
    (made.collect(), files)
}

/// The listed credentials that the caller can open.
fn hidden(machine: &Machine) -> Vec<Node> {
    const OTHERS_READ: u32 = 0o004;
    let home = machine.home_or_database();
    let of_user = lists::credentials().iter().map(|name| home.join(name));
    // What everybody may read is hidden from nobody where the stage runs as somebody else.
    let of_system = lists::system_credentials()
        .iter()
        .map(PathBuf::from)
        .filter(|path| fs::metadata(path).is_ok_and(|meta| meta.mode() & OTHERS_READ == 0));
    let opened = of_user.chain(of_system).filter(|path| fs::File::open(path).is_ok());
    opened.filter_map(|path| Node::at(&path).ok()).collect()
}

/// exeat's own places.
fn own(machine: &Machine) -> Vec<Node> {
    let state = machine.env.get(std::ffi::OsStr::new(crate::env_vars::XDG_STATE_HOME)).map(PathBuf::from);
    let state = state.unwrap_or_else(|| machine.home_or_database().join(".local/state"));
    let places = [state.join("exeat"), state.join("exeat/runs"), machine.config().join("exeat")];
    places.iter().filter_map(|place| Node::at(place).ok()).collect()
}

/// What an attempt's answers mean.
fn judge(
    attempt: &Attempt,
    bridge: &'static str,
    inside: Option<&Saw>,
    outside: Option<&Saw>,
    visits: &[Visit],
    first_missing: bool,
) -> Found {
    let mut found = Found {
        id: attempt.id,
        title: attempt.title,
        rows: attempt.rows,
        bridge,
        seen: String::new(),
        outside: outside.cloned(),
        held: None,
        why: String::new(),
    };
    let visited = visits.iter().any(|visit| {
        attempt.canaries.contains(&visit.canary.as_str())
            // A proxy that waits for a hello has connected, and said nothing: that is no way out.
            && (visit.said.contains(attempt.trace) || visit.said.is_empty() && attempt.trace == attempt.id)
    });
    let (seen, held, why) = match inside {
        Some(Saw::Out(seen)) => (seen.as_str(), Some(false), "it got out"),
        Some(Saw::Refused(seen) | Saw::NotMade(seen)) if visited => {
            (seen.as_str(), Some(false), "a listener on the host saw it")
        }
        None if first_missing => ("the stage ended here", Some(false), "it ended the stage"),
        None => ("", None, "the stage had ended before"),
        Some(Saw::NotMade(seen)) => (seen.as_str(), None, "it could not be made"),
        Some(Saw::Refused(seen)) => match (attempt.control, outside) {
            (Control::None, _) | (_, Some(Saw::Out(_))) => (seen.as_str(), Some(true), "refused"),
            (_, Some(Saw::Refused(there) | Saw::NotMade(there))) => {
                found.why = format!("it does not succeed outside either: {there}");
                (seen.as_str(), None, "")
            }
            (_, None) => (seen.as_str(), None, "it was not made outside"),
        },
    };
    found.seen = seen.to_owned();
    found.held = held;
    if found.why.is_empty() {
        found.why = why.to_owned();
    }
    found
}

fn lines(stdout: &str) -> Vec<Line> {
    stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// A program that runs, with what it has said so far.
struct Started {
    child: Child,
    said: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
    readers: [JoinHandle<Vec<u8>>; 2],
}

/// A program that ended.
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Started {
    fn new(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let said = std::sync::Arc::default();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let readers = [read(out, Some(std::sync::Arc::clone(&said))), read(err, None)];
        Ok(Self { child, said, readers })
    }

    fn heard(&self) -> String {
        let said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Waits until it has said that, or has ended, or the time is over.
    fn until_says(&mut self, text: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while Instant::now() < end && stopped().is_none() {
            if self.heard().contains(text) {
                return true;
            }
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                std::thread::sleep(Duration::from_millis(20));
                return self.heard().contains(text);
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        false
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for its end, and makes one when the time is over or somebody asks for it.
    fn end(mut self, limit: Duration) -> io::Result<Done> {
        drop(self.child.stdin.take());
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > end || stopped().is_some() {
                self.kill();
                break self.child.wait()?;
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        // Whoever lives on holds the pipes; that is seen elsewhere, and not waited for here.
        let settled = Instant::now() + Duration::from_millis(500);
        while !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < settled {
            std::thread::sleep(Duration::from_millis(3));
        }
        let [out, err] = self.readers.map(|reader| {
            let bytes = if reader.is_finished() { reader.join().unwrap_or_default() } else { Vec::new() };
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Done { status, stdout: out, stderr: err })
    }
}

impl Done {
    /// The exit code, or that of a shell for a signal.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().or_else(|| self.status.signal().map(|signal| 128 + signal)).unwrap_or(125)
    }
}

/// Reads a stream to its end, on a thread of its own: nobody waits for a full pipe.
fn read(
    stream: Option<impl Read + Send + 'static>,
    so_far: Option<std::sync::Arc<std::sync::Mutex<Vec<u8>>>>,
) -> JoinHandle<Vec<u8>> {
    const MOST: usize = 1 << 20;
    std::thread::spawn(move || {
        let Some(mut stream) = stream else { return Vec::new() };
        let (mut all, mut buffer) = (Vec::new(), vec![0; 8192]);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let part = buffer.get(..count).unwrap_or_default();
            if all.len() < MOST {
                all.extend_from_slice(part);
                if let Some(so_far) = &so_far {
                    so_far.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend_from_slice(part);
                }
            }
        }
        all
    })
}

#[cfg(test)]
#[path = "host/tests.rs"]
mod tests;

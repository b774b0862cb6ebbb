//! The host side of a proof: plants secrets that a stage must not find, listens, makes the controls, starts the runs, and judges.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use exeat_compose::Machine;
use exeat_runner::RunId;

use crate::sys;
use nix::sys::signal::{Signal, kill};

use crate::attempt::{Attempt, Node, Other, Spec};
use crate::canary::{Canaries, Files};
use crate::gateway::GRANTED;
use crate::inside::INSIDE;
use crate::inside::Line;
use crate::scratch::{Scratch, resolver, sockets_of_runs};
use crate::survive;

mod child;
mod judge;
mod loader;
mod planted;
mod stop;

use child::Started;
use judge::{Ended, judge, survived};

pub use child::Done;
pub use judge::Finding;
pub use stop::stopped;

/// The path of this binary in the stage's view.
const PLACE: &str = "/run/exeat-prove";
/// The longest duration of one run. Each attempt has a shorter limit.
const RUN: Duration = Duration::from_secs(60);
/// The longest wait for a run to start.
const START: Duration = Duration::from_secs(15);
/// The longest wait for the leftovers of a run to disappear.
const GONE: Duration = Duration::from_secs(2);

/// The choice of a run.
#[derive(Debug, Clone, Copy)]
pub struct Scenario<'a> {
    /// `handoff` or `relay`.
    pub bridge: &'static str,
    /// The value of `--fs`, if it was given.
    pub view: Option<&'a str>,
    /// The value of `--backend`, if it was given.
    pub backend: Option<&'static str>,
}

/// An error while preparing the host.
#[derive(Debug)]
pub struct HostError {
    /// The action, for a message that begins with "cannot".
    pub what: String,
    /// The cause.
    pub source: io::Error,
}

/// The machine with all planted objects, which are removed when the value is dropped.
pub struct Host {
    exe: PathBuf,
    token: String,
    spec: Spec,
    canaries: Canaries,
    scratch: Scratch,
    /// The results of the controls, once they were made.
    outside: Option<Vec<Line>>,
    _open: Option<fs::File>,
    _sockets: Vec<Files>,
}

impl Host {
    /// Plants all objects. Omits those that cannot be planted; their attempts then report it.
    pub fn new(machine: &Machine) -> Result<Self, HostError> {
        let could_not = |what: &str| {
            let what = what.to_owned();
            move |source: io::Error| HostError { what, source }
        };
        // On this thread, which starts every program: the keyring goes to its children.
        let token = RunId::new().to_string().to_lowercase();
        let key = format!("exeat-prove:{token}");
        let key = sys::plant_key(&key, &token).ok().map(|()| key);
        stop::watch_signals();

        let exe = std::env::current_exe().map_err(could_not("tell where this program is"))?;
        let scratch = Scratch::new().map_err(could_not(&format!(
            "make a directory for the proof in `{}`",
            std::env::temp_dir().display()
        )))?;
        let canaries = Canaries::new(&token);
        let sockets = [canaries.tcp(["tcp4", "tcp6"]), canaries.tcp(["origin4", "origin6"])];
        let sockets = sockets.into_iter().flatten().chain(canaries.udp(["udp4", "udp6"])).collect();
        let (paths, files) = planted::host_sockets(&canaries, &scratch, machine, &token);
        let abstract_name = format!("exeat-prove-{token}");
        let abstract_name = canaries.abstract_name("abstract", &abstract_name).ok().map(|()| abstract_name);
        let open = scratch.open_file().ok();
        let spec = Spec {
            sockets,
            resolver: resolver(),
            paths,
            abstract_name,
            other: None,
            variable: Some(planted::variable(&token)),
            key,
            hidden: planted::hidden(machine),
            read_only: planted::read_only(),
            own: planted::own(machine),
            descriptor: open.as_ref().and_then(|(path, _)| Node::at(path).ok()),
            namespaces: planted::namespaces(),
            token: token.clone(),
        };
        let open = open.map(|(_, file)| file);
        Ok(Self { exe, token, spec, canaries, scratch, outside: None, _open: open, _sockets: files })
    }

    /// Makes these attempts over one bridge: first outside, unless that was already done, then in a run.
    ///
    /// # Errors
    /// Returns [`NoRun`] if there is no result to judge, for example because the run did not start.
    pub fn over(
        &mut self,
        scenario: Scenario<'_>,
        attempts: &[&'static Attempt],
    ) -> Result<Vec<Finding>, NoRun> {
        if attempts.is_empty() {
            return Ok(Vec::new());
        }
        let beside_another = attempts.iter().any(|attempt| attempt.beside_another);
        let other = if beside_another { self.other_run(scenario)? } else { None };
        let spec = serde_json::to_string(&self.spec).map_err(io::Error::other)?;
        let names: Vec<&str> = attempts.iter().map(|attempt| attempt.id).collect();

        if self.outside.is_none() {
            let mut control = self.program(&self.exe);
            control.args([INSIDE, "controls", &spec]).args(&names).current_dir(self.scratch.outside());
            self.outside = Some(lines(&Started::new(control)?.end(RUN)?.stdout));
        }
        self.canaries.take();

        let mut run = self.run(scenario, "attempts");
        run.args(["attempts", &spec]).args(&names);
        let done = Started::new(run)?.end(RUN)?;
        let seen = self.canaries.take();
        if let Some(other) = other {
            other.end(GONE)?;
        }
        let inside = lines(&done.stdout);
        if inside.is_empty() {
            return Err(NoRun::Said(done));
        }
        let late = done.code() == i32::from(exeat_runner::Ended::Timeout.code());
        let mut ended = if late { Ended::InTime } else { Ended::Here };
        let outside = self.outside.as_deref().unwrap_or_default();
        let of = |lines: &'_ [Line], id: &str| {
            lines.iter().find(|line| line.id == id).map(|line| line.saw.clone())
        };
        let judged = attempts.iter().map(|attempt| {
            let (here, there) = (of(&inside, attempt.id), of(outside, attempt.id));
            let found = judge(attempt, scenario.bridge, here.as_ref(), there.as_ref(), &seen, ended);
            if here.is_none() && ended == Ended::Here {
                ended = Ended::Before;
            }
            found
        });
        Ok(judged.collect())
    }

    /// Kills an exeat whose stage has a process that ignores signals, and checks which processes survive.
    pub fn survive(&mut self, scenario: Scenario<'_>) -> Result<Finding, NoRun> {
        let token = format!("{}-{}-survives", self.token, scenario.bridge);
        let mut run = self.run(scenario, "survive");
        run.args(["survive", &token]);
        let mut started = Started::new(run)?;
        let found = |seen: String, held: Option<bool>, why: &str| Finding {
            id: survive::ID,
            title: survive::TITLE,
            rows: survive::ROWS,
            bridge: scenario.bridge,
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
        let before = survive::find_processes(&token).len();
        let began = Instant::now();
        started.kill();
        let left = survive::until_gone(&token, GONE);
        let began_to_gone = began.elapsed();
        for pid in &left {
            let _ = kill(*pid, Signal::SIGKILL);
        }
        let _ = started.end(GONE);
        let (seen, held, why) = survived(before, left.len(), began_to_gone);
        Ok(found(seen, held, why))
    }

    /// Starts another run, whose stage listens on its loopback, and notes its addresses. The run ends when the value is dropped.
    fn other_run(&mut self, scenario: Scenario<'_>) -> Result<Option<Started>, NoRun> {
        let mut run = self.run(scenario, "other");
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
        let own = [self.record("other", scenario), self.scratch.at("state/exeat")];
        self.spec.own.extend(own.iter().filter_map(|path| Node::at(path).ok()));
        Ok(Some(started))
    }

    fn record(&self, name: &str, scenario: Scenario<'_>) -> PathBuf {
        self.scratch.at(&format!("record-{name}-{}.jsonl", scenario.bridge))
    }

    /// Creates the command `exeat run ... -- exeat prove-inside` as a user would, with an allowed host that one attempt misuses.
    fn run(&self, scenario: Scenario<'_>, name: &str) -> Command {
        let mut run = self.program(&self.exe);
        run.args(["run", "--quiet", "--set", "fs.cache=none", "--timeout", "55s"]);
        run.arg("--set").arg(format!("sandbox.bridge={}", scenario.bridge));
        if let Some(view) = scenario.view {
            run.args(["--fs", view]);
        }
        if let Some(backend) = scenario.backend {
            run.args(["--backend", backend]);
        }
        run.arg("--audit").arg(self.record(name, scenario));
        let mut bind = self.exe.clone().into_os_string();
        bind.push(format!(":{PLACE}"));
        run.arg("--ro").arg(bind);
        for rule in self.rules() {
            run.args(["--allow", &rule]);
        }
        // The state of these runs is removed with the proof, unless the user chose a directory, which is then part of the proof.
        if name == "survive" || std::env::var_os("XDG_STATE_HOME").is_none() {
            run.env("XDG_STATE_HOME", self.scratch.at("state"));
        }
        run.current_dir(self.scratch.work());
        let mut loader = Vec::new();
        if scenario.view == Some("minimal") {
            // This view shows only named paths.
            run.args(["--rw", "."]);
            for library in loader::libraries() {
                run.arg("--ro").arg(library);
            }
            loader = loader::loader();
        }
        run.arg("--").args(loader).args([PLACE, INSIDE]);
        run
    }

    /// Returns the allow rules: a name that no attempt connects to, a name that resolves to the host's loopback on two ports, and its
    /// addresses on one port.
    fn rules(&self) -> Vec<String> {
        let port = |name: &str| self.spec.sockets.get(name).map(|addr| addr.port());
        let mut rules = vec![GRANTED.to_owned()];
        rules.extend(port("tcp4").map(|port| format!("localhost:{port}")));
        if let Some(port) = port("origin4") {
            rules.extend(["localhost", "127.0.0.1", "[::1]"].map(|host| format!("{host}:{port}")));
        }
        rules
    }

    /// Creates the command of a program that inherits what a careless caller of exeat would pass to it.
    #[expect(
        clippy::disallowed_methods,
        reason = "exeat starts itself, as its user would: a library call would be another path"
    )]
    fn program(&self, exe: &Path) -> Command {
        let mut program = Command::new(exe);
        program.env(planted::variable(&self.token), &self.token).stdin(Stdio::null());
        program
    }
}

/// The reason why a run has no result to judge.
pub enum NoRun {
    /// The run did not start, and printed the reason.
    Said(Done),
    /// An error on the host.
    Io(io::Error),
}

impl From<io::Error> for NoRun {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn lines(stdout: &str) -> Vec<Line> {
    stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[cfg(test)]
#[path = "host/tests.rs"]
mod tests;

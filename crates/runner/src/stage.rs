//! Starts a stage from a program, with an interface like [`std::process::Command`].
//!
//! The calling process is not changed: no signal handler, descriptor, limit, directory or umask.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::mem::take;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use exeat_compose::{Effects, EnvRule, Machine, NextHop, PolicyRequest, Site, compose_for_run};
use exeat_files::fault::{FileFault, PathUse};
use exeat_files::protected::NoName;
use exeat_files::request::{Bind, Bounds, WorkDir};
use exeat_policy::{
    Action, Bridge, Cache, EffectSet, Home, HostPort, Limits, Note, Origin, Policy, RuleError, Span,
    Transparent, Tty, View,
};
use exeat_proxy::UpstreamProxy;

use crate::backend::Backend;
use crate::discover::Clients;
use crate::error::Error;
use crate::error::faults::WordFault;
use crate::fingerprint::Fingerprint;
use crate::plan::{Plan, plan_with};
use crate::request::{AuditTo, Hardening, Request};
use crate::run::outcome::{Outcome, with_leftovers};
use crate::run::oversight::OnDenied;
use crate::run::protected::{CALLS, settle_killed, settle_killed_of};
use crate::run::streams::Streams;
use crate::signals;
use crate::signing::{Signing, prepare_key};

mod running;
mod stdio;

pub use running::{Running, Stopper};
pub use stdio::Stdio;

/// Bytes of each output stream that [`Stage::output`] keeps by default; [`Stage::output_most`] changes it.
const OUTPUT_MOST: usize = 16 << 20;

/// A command for its own sandbox, which reaches only what is allowed here.
///
/// Use it like [`std::process::Command`]. It keeps its settings and can start several times. A clone has the same settings and can get
/// others, as for many stages under one policy. The differences:
///
/// - A stage gets a short list of the caller's variables (`PATH`, `LANG`, `TERM` and the like) and those that
///   [`env_pass`](Stage::env_pass) names; the proxy's variables are always set.
/// - The file tree is a view: see [`View`], [`ro`](Stage::ro), [`rw`](Stage::rw), [`mask`](Stage::mask).
/// - Nothing starts without a sandbox. If one is not possible, the result is an [`Error`], and nothing has run.
///
/// ```
/// use exeat_runner::{Ended, Stage};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = std::env::temp_dir().join(format!("exeat-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// let output = Stage::new("sh")
///     .args(["-c", "echo $0 and $GREETING", "--not-an-option"])
///     .env("GREETING", "hello")
///     .allow("api.example.com")?
///     .deny("telemetry.example.com")?
/// #   .current_dir(&dir)
/// #   .host_env([("PATH".into(), "/usr/bin:/bin".into()), ("HOME".into(), dir.clone().into())])
///     .output()?;
/// assert_eq!(output.outcome.ended, Ended::Exit(0));
/// assert_eq!(output.stdout, b"--not-an-option and hello\n");
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Stage {
    command: Vec<OsString>,
    cwd: Option<PathBuf>,
    /// The environment; `None` for that of this process at planning.
    host_env: Option<BTreeMap<OsString, OsString>>,
    /// The policy and the files, with the given paths.
    asked: PolicyRequest,
    policy: Option<Policy>,
    host_ports: Vec<HostPort>,
    via: Option<PathBuf>,
    backend: Option<Backend>,
    require_full: bool,
    labels: Vec<(String, String)>,
    approved: Option<Fingerprint>,
    audit: Arc<AuditTo>,
    signing: Signing,
    on_denied: OnDenied,
    stdin: Option<Stdio>,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
    output_most: usize,
}

/// The output of a stage, and its end.
#[derive(Debug)]
#[non_exhaustive]
pub struct Output {
    /// The outcome of the run.
    pub outcome: Outcome,
    /// The whole standard output; empty if it was not set to a pipe.
    pub stdout: Vec<u8>,
    /// The whole standard error; empty if it was not set to a pipe.
    pub stderr: Vec<u8>,
}

impl Stage {
    /// Creates a stage for a command without arguments that may reach nothing. A program without `/` is looked up in the stage's `PATH`,
    /// inside its view.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            command: vec![program.as_ref().into()],
            cwd: None,
            host_env: None,
            asked: PolicyRequest::default(),
            policy: None,
            host_ports: Vec::new(),
            via: None,
            backend: None,
            require_full: false,
            labels: Vec::new(),
            approved: None,
            audit: Arc::default(),
            signing: Signing::Own,
            on_denied: OnDenied::default(),
            stdin: None,
            stdout: None,
            stderr: None,
            output_most: OUTPUT_MOST,
        }
    }

    /// Copies the program, its arguments, its set and removed variables, and the working directory.
    ///
    /// A [`Command`](std::process::Command) reveals neither its standard streams nor whether its environment was cleared. Set the streams
    /// here; a stage's environment is almost empty anyway.
    pub fn from_command(command: &std::process::Command) -> Self {
        let mut stage = Self::new(command.get_program());
        stage.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => stage.env(name, value),
                None => stage.env_remove(name),
            };
        }
        stage.cwd = command.get_current_dir().map(Path::to_path_buf);
        stage
    }

    /// Adds an argument. The program gets it unchanged, even if it looks like an option or is `--`.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.command.push(arg.as_ref().into());
        self
    }

    /// Adds arguments.
    pub fn args(&mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        self.command.extend(args.into_iter().map(|arg| arg.as_ref().into()));
        self
    }

    /// Sets a variable of the stage. The last call for a name wins. The proxy's variables keep their values.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.asked.env.push(EnvRule::Set(name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Sets variables.
    pub fn envs(
        &mut self,
        vars: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> &mut Self {
        for (name, value) in vars {
            self.env(name, value);
        }
        self
    }

    /// Removes a variable, even one that every stage gets. The proxy's variables stay.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.asked.env.push(EnvRule::Remove(name.as_ref().into()));
        self
    }

    /// Passes the caller's value, if there is one.
    pub fn env_pass(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.asked.env.push(EnvRule::Pass(name.as_ref().into()));
        self
    }

    /// Sets the environment that counts as the caller's, instead of this process's: the source of passed variables, `PATH`, `HOME` and
    /// the XDG directories of caches and records.
    pub fn host_env(&mut self, vars: impl IntoIterator<Item = (OsString, OsString)>) -> &mut Self {
        self.host_env = Some(vars.into_iter().collect());
        self
    }

    /// Sets where the stage starts, by default this process's working directory. The stage can write it, unless it is a home directory or
    /// above one. Relative paths of this stage start there.
    pub fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Self {
        self.cwd = Some(dir.as_ref().into());
        self
    }

    /// Sets standard input, which is inherited by default, and empty for [`Stage::output`].
    pub fn stdin(&mut self, stream: impl Into<Stdio>) -> &mut Self {
        self.stdin = Some(stream.into());
        self
    }

    /// Sets standard output, which is inherited by default, and collected by [`Stage::output`].
    pub fn stdout(&mut self, stream: impl Into<Stdio>) -> &mut Self {
        self.stdout = Some(stream.into());
        self
    }

    /// Sets standard error, which is inherited by default, and collected by [`Stage::output`].
    pub fn stderr(&mut self, stream: impl Into<Stdio>) -> &mut Self {
        self.stderr = Some(stream.into());
        self
    }

    /// Sets the maximal bytes of each stream that [`Stage::output`] keeps, by default 16 MiB. A stage that writes more is killed.
    pub fn output_most(&mut self, bytes: usize) -> &mut Self {
        self.output_most = bytes;
        self
    }

    /// Allows the targets of a rule, such as `api.example.com`, `*.cdn.example.com:443,8443` or `10.2.0.0/16:5432`.
    ///
    /// # Errors
    /// Returns a [`RuleError`] when the text is not a rule; it may suggest one.
    pub fn allow(&mut self, rule: &str) -> Result<&mut Self, RuleError> {
        self.rule(rule, Action::Allow, "Stage::allow")
    }

    /// Denies the targets of a rule, on every port if it names none. A denial wins over every allow rule.
    ///
    /// # Errors
    /// Fails like [`Stage::allow`].
    pub fn deny(&mut self, rule: &str) -> Result<&mut Self, RuleError> {
        self.rule(rule, Action::Deny, "Stage::deny")
    }

    fn rule(&mut self, rule: &str, action: Action, origin: &str) -> Result<&mut Self, RuleError> {
        self.asked.rules.add(rule, action, Origin::Flag { flag: origin.into() }, Note::default())?;
        Ok(self)
    }

    /// Sets what the stage declares, as `--effects` does. The effects bound the hosts and files that other calls grant. If no other call
    /// grants any, the stage gets exactly what the effects need. The last call of this and [`effects_file`](Stage::effects_file) counts.
    pub fn effects(&mut self, effects: &EffectSet) -> &mut Self {
        self.asked.effects = Some(Effects::Set(effects.clone()));
        self
    }

    /// Sets a whole policy with its layers. Together with [`Stage::allow`] or [`Stage::deny`] the start fails with
    /// [`Error::PolicyAndRules`].
    pub fn policy(&mut self, policy: Policy) -> &mut Self {
        self.policy = Some(policy);
        self
    }

    /// Adds a policy file, as `--policy` does: its rules, files, variables, limits and settings of the sandbox. A value that is set here
    /// replaces that of the file. A relative path starts at the stage's working directory.
    pub fn policy_file(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.asked.policy.push(path.as_ref().into());
        self
    }

    /// Sets a key of a policy file, as `--set` does: `effects.on_excess=narrow`. It replaces that of every file.
    pub fn set(&mut self, pair: impl Into<String>) -> &mut Self {
        self.asked.set.push(pair.into());
        self
    }

    /// Adds a preset, as `--preset` does. A preset of a package manager asks it for its hosts at each start.
    pub fn preset(&mut self, name: impl Into<String>) -> &mut Self {
        self.asked.preset.push(name.into());
        self
    }

    /// Reads what the stage declares from a file: see [`effects`](Stage::effects). A relative path starts at the stage's working
    /// directory.
    pub fn effects_file(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.asked.effects = Some(Effects::File(path.as_ref().into()));
        self
    }

    /// Connects through another `exeat proxy` on this Unix socket: its policy decides, and it records the decisions. Together with rules,
    /// a policy or SOCKS5 the start fails with [`Error::ViaAnd`]. [`Stage::require_full`] refuses it because the reachable hosts are not
    /// known here.
    pub fn via(&mut self, socket: impl AsRef<Path>) -> &mut Self {
        self.via = Some(socket.as_ref().into());
        self
    }

    /// Sets the base view of the file tree.
    pub fn view(&mut self, view: View) -> &mut Self {
        self.asked.view = Some(view);
        self
    }

    /// Shows a file or directory read-only at its own path.
    pub fn ro(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.ro_at(path.as_ref(), path.as_ref())
    }

    /// Shows a file or directory read-only at another path, which must be absolute without `..`.
    pub fn ro_at(&mut self, host: impl AsRef<Path>, guest: impl AsRef<Path>) -> &mut Self {
        self.asked.ro.push(Bind { host: host.as_ref().into(), guest: guest.as_ref().into() });
        self
    }

    /// Shows a file or directory writable at its own path.
    pub fn rw(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.rw_at(path.as_ref(), path.as_ref())
    }

    /// Shows a file or directory writable at another path, which must be absolute without `..`.
    pub fn rw_at(&mut self, host: impl AsRef<Path>, guest: impl AsRef<Path>) -> &mut Self {
        self.asked.rw.push(Bind { host: host.as_ref().into(), guest: guest.as_ref().into() });
        self
    }

    /// Hides a file or directory in every place where the stage would see it.
    pub fn mask(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.asked.mask.push(path.as_ref().into());
        self
    }

    /// Leaves a protected name writable at the top of each writable tree: one of docs/files.md, or a part of one. It is neither watched
    /// nor moved aside. The record says so, and [`Stage::require_full`] refuses it.
    ///
    /// # Errors
    /// Returns [`NoName`] when the text is not such a name.
    pub fn allow_write(&mut self, name: &str) -> Result<&mut Self, NoName> {
        self.asked.allow_write.push(name.parse()?);
        Ok(self)
    }

    /// Starts the stage in its own directory instead of the working directory: [`WORK`](crate::WORK), which is also its HOME. It is empty
    /// and deleted with the run, or a directory of the host.
    pub fn work(&mut self, work: WorkDir) -> &mut Self {
        self.asked.work = Some(work);
        self
    }

    /// Sets the ceilings that apply to this stage. By default these are those of the site (`/etc/exeat/policy.toml`) and of the user
    /// (`exeat/policy.toml` in the configuration directory of [`host_env`](Stage::host_env)), as for `exeat run`.
    /// [`Site::none`] turns them off.
    pub fn site(&mut self, site: Site) -> &mut Self {
        self.asked.site = site;
        self
    }

    /// Bounds what the stage sees and changes, whatever other calls grant. All bounds apply; relative paths start at the stage's working
    /// directory. For hosts see [`Layers`](exeat_policy::Layers).
    pub fn bound(&mut self, bounds: Bounds) -> &mut Self {
        self.asked.bounds.push(bounds);
        self
    }

    /// Sets the package caches that the stage sees.
    pub fn cache(&mut self, cache: Cache) -> &mut Self {
        self.asked.cache = Some(cache);
        self
    }

    /// Sets where the stage's HOME is; a private one needs a [`cache`](Stage::cache).
    pub fn home(&mut self, home: Home) -> &mut Self {
        self.asked.home = Some(home);
        self
    }

    /// Sets how TCP leaves the sandbox.
    pub fn bridge(&mut self, bridge: Bridge) -> &mut Self {
        self.asked.sandbox.bridge = Some(bridge);
        self
    }

    /// Offers SOCKS5 as well as the HTTP proxy, on its own port and under the same rules.
    pub fn socks5(&mut self, offered: bool) -> &mut Self {
        self.asked.socks5 = offered;
        self
    }

    /// Sets parts of the sandbox that restrict more or less than the default.
    pub fn hardening(&mut self, hardening: Hardening) -> &mut Self {
        let Hardening { loopback, unix_sockets, debuggable, nested } = hardening;
        let sandbox = &mut self.asked.sandbox;
        (sandbox.loopback, sandbox.unix_sockets) = (Some(loopback), Some(unix_sockets));
        (sandbox.debuggable, sandbox.nested) = (Some(debuggable), Some(nested));
        self
    }

    /// Gives the stage a service of this machine: `127.0.0.1` at one port, on the stage's own loopback. This adds a rule for it; a whole
    /// [`policy`](Stage::policy) must grant it itself, as by [`HostPort::grant`]. A service without a grant, or with a taken port inside,
    /// fails at the start.
    pub fn host_port(&mut self, port: HostPort) -> &mut Self {
        self.host_ports.push(port);
        self
    }

    /// Sets whether the gateway serves programs that do not use the proxy. [`Transparent::On`] fails at the start with
    /// [`via`](Stage::via), and with a loopback that has only the proxy.
    pub fn transparent(&mut self, transparent: Transparent) -> &mut Self {
        self.asked.sandbox.transparent = Some(transparent);
        self
    }

    /// Sends connections through another HTTP proxy. It resolves names itself, so their addresses are not checked here. If a ceiling of
    /// the [`policy`](Stage::policy) does not allow it, the start fails with [`Error::UpstreamDenied`].
    pub fn upstream_proxy(&mut self, proxy: UpstreamProxy) -> &mut Self {
        let hop = NextHop::new(proxy.url().clone(), proxy.bypass(), proxy.credentials().cloned());
        self.asked.next_hop = Some(hop);
        self
    }

    /// Sets the sandbox, by default bubblewrap from a place that only root can change, where it works, else exeat itself. A ceiling may
    /// forbid it. [`Backend::None`] fails at the start.
    pub fn backend(&mut self, backend: Backend) -> &mut Self {
        self.asked.sandbox.backend = backend.word();
        self.backend = Some(backend);
        self
    }

    /// Refuses to start with partial isolation, such as on a kernel without a layer, or for some stages of root.
    pub fn require_full(&mut self) -> &mut Self {
        self.require_full = true;
        self
    }

    /// Sets the wall-clock limit. At the limit the stage is stopped and ends as [`Ended::Timeout`](crate::Ended::Timeout). The limit is
    /// between a millisecond and 366 days; other values are clamped.
    pub fn timeout(&mut self, limit: Duration) -> &mut Self {
        self.asked.limits.timeout = Some(Span::nearest(limit));
        self
    }

    /// Sets all limits of the stage, replacing earlier ones. A stage that is killed for one ends as
    /// [`Ended::Limit`](crate::Ended::Limit).
    pub fn limits(&mut self, limits: Limits) -> &mut Self {
        self.asked.limits = limits;
        self
    }

    /// Sets the effect of a refusal on the run, by default none. A run that ends or fails for it is
    /// [`Ended::Denied`](crate::Ended::Denied).
    pub fn on_denied(&mut self, what: OnDenied) -> &mut Self {
        self.on_denied = what;
        self
    }

    /// Adds a label to the record.
    pub fn label(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.labels.push((name.into(), value.into()));
        self
    }

    /// Sets the stage's name, which every line of the record contains.
    pub fn stage_name(&mut self, name: impl Into<String>) -> &mut Self {
        self.asked.stage = Some(name.into());
        self
    }

    /// Starts only an approved plan: one with another [`Plan::fingerprint`] fails with [`Error::NotApproved`]. The executed plan itself
    /// is compared, so nothing can change in between.
    pub fn approved(&mut self, fingerprint: Fingerprint) -> &mut Self {
        self.approved = Some(fingerprint);
        self
    }

    /// Sets the destination of the record. Each start creates the file, so it must not exist.
    pub fn audit(&mut self, to: AuditTo) -> &mut Self {
        self.audit = Arc::new(to);
        self
    }

    /// Sets whether each line of the record reaches the disk (fdatasync(2)) before the action that it describes. Then a pipe or a socket
    /// is refused. Without it the kernel has the line, which a crash of the machine can lose.
    pub fn audit_sync(&mut self, on: bool) -> &mut Self {
        self.asked.audit_sync = on;
        self
    }

    /// Sets the signing of the record, by default with the user's own key.
    pub fn signing(&mut self, with: Signing) -> &mut Self {
        self.signing = with;
        self
    }

    /// Returns the plan of a start; changes nothing, and starts nothing.
    ///
    /// # Errors
    /// Returns the error of a start, as far as it is known in advance.
    pub fn plan(&self) -> Result<Plan, Error> {
        let (request, notes) = self.request(self.machine()?)?;
        self.plan_on(request, notes, [&Stdio::inherit(), &Stdio::inherit(), &Stdio::inherit()])
    }

    /// Runs the stage on this process's standard streams, or on the ones set, and waits until no process of it is left.
    ///
    /// # Errors
    /// Returns an error when the stage did not start, or was lost later; see [`Error`]. A command that fails is an [`Outcome`].
    pub fn run(&self) -> Result<Outcome, Error> {
        self.spawn()?.wait()
    }

    /// Runs the stage with an empty standard input by default, and collects its output.
    ///
    /// # Errors
    /// Fails like [`Stage::run`]. Also returns [`Error::OutputTooLong`] for a stream longer than [`Stage::output_most`] bytes, inside an
    /// [`Error::RunLost`] when the stage had made protected names.
    pub fn output(&self) -> Result<Output, Error> {
        let mut running = self.start([Stdio::null(), Stdio::piped(), Stdio::piped()])?;
        let (stdout, stderr) = (running.take_stdout(), running.take_stderr());
        drop(running.take_stdin());
        let stopper = running.stopper();
        let most = self.output_most;
        thread::scope(|scope| {
            let reader = thread::Builder::new().name("exeat-output".into());
            let other = reader
                .spawn_scoped(scope, || running::collect(stderr, most, "its standard error", &stopper))
                .map_err(|source| Error::Prepare { what: "the output's thread", source })?;
            let stdout = running::collect(stdout, most, "its standard output", &stopper);
            let outcome = running.wait();
            let stderr = other.join().unwrap_or_else(|_| {
                Err(Error::Output(io::Error::other("the thread that reads it ended early")))
            });
            match (stdout, stderr, outcome) {
                (Ok(stdout), Ok(stderr), Ok(outcome)) => Ok(Output { outcome, stdout, stderr }),
                (Err(error), _, Ok(outcome)) | (Ok(_), Err(error), Ok(outcome)) => {
                    let Outcome { run, audit, found, notes, .. } = outcome;
                    Err(with_leftovers(error, run, audit, found, notes))
                }
                // This error contains what the stage left.
                (_, _, Err(error @ Error::RunLost(_))) => Err(error),
                (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => Err(error),
            }
        })
    }

    /// Starts the stage and returns when it was executed. [`Running::wait`] reports a command that could not be executed.
    ///
    /// # Errors
    /// Returns an error when the stage did not start: then no untrusted code ran, and nothing is left.
    pub fn spawn(&self) -> Result<Running, Error> {
        self.start([Stdio::inherit(), Stdio::inherit(), Stdio::inherit()])
    }

    fn start(&self, [stdin, stdout, stderr]: [Stdio; 3]) -> Result<Running, Error> {
        if signals::children_unseen() {
            return Err(Error::ChildrenUnseen);
        }
        let stdin = self.stdin.as_ref().unwrap_or(&stdin);
        let stdout = self.stdout.as_ref().unwrap_or(&stdout);
        let stderr = self.stderr.as_ref().unwrap_or(&stderr);
        if self.via.is_some() && self.on_denied != OnDenied::Note {
            return Err(Error::ViaAnd("what a refusal does"));
        }
        let machine = self.machine()?;
        let mut settled = settle_killed(&machine.env, &[&machine.cwd]);
        let (request, notes) = self.request(machine)?;
        let key = prepare_key(&request.signing, &request.host_env)?;
        settle_killed_of(&request, &mut settled);
        let mut plan = self.plan_on(request, notes, [stdin, stdout, stderr])?;
        plan.report_settled(settled);
        key.keep();
        let prepare = |what| move |source| Error::Prepare { what, source };
        let (input, to_stage) = stdin.input().map_err(prepare("standard input"))?;
        let (output, from_output) =
            stdout.output(io::stdout().as_fd()).map_err(prepare("standard output"))?;
        let (error, from_error) = stderr.output(io::stderr().as_fd()).map_err(prepare("standard error"))?;
        let mut running = Running::start(plan, Streams::for_stage([input, output, error]), self.on_denied)?;
        (running.stdin, running.stdout, running.stderr) = (to_stage, from_output, from_error);
        Ok(running)
    }

    fn plan_on(
        &self,
        request: Request,
        [notes, doubts]: [Vec<String>; 2],
        [stdin, stdout, stderr]: [&Stdio; 3],
    ) -> Result<Plan, Error> {
        let open = [(stdin, 0), (stdout, 1), (stderr, 2)].map(|(stream, own)| stream.path(own));
        let open: Vec<&str> = open.iter().filter_map(Option::as_deref).collect();
        let mut plan = plan_with(request, self.backend.as_ref(), &open)?;
        plan.add_notes(notes.into_iter().chain(doubts.iter().cloned()));
        plan.record_doubts(doubts);
        if self.require_full {
            plan.require_full()?;
        }
        if self.approved.as_ref().is_some_and(|approved| *approved != plan.fingerprint()) {
            return Err(Error::NotApproved);
        }
        Ok(plan)
    }

    /// Describes the machine that the stage starts on.
    fn machine(&self) -> Result<Machine, Error> {
        let here = || {
            let what = "the working directory";
            std::env::current_dir().map_err(|source| Error::Prepare { what, source })
        };
        let cwd = match &self.cwd {
            Some(dir) if dir.is_absolute() => dir.clone(),
            Some(dir) => here()?.join(dir),
            None => here()?,
        };
        let host_env = self.host_env.clone().unwrap_or_else(|| std::env::vars_os().collect());
        Ok(Machine::new(cwd, host_env, CALLS))
    }

    /// Composes the request with the ceilings. Also returns notes for the caller, and why hosts of a preset may be missing.
    fn request(&self, machine: Machine) -> Result<(Request, [Vec<String>; 2]), Error> {
        self.check_words()?;
        let mut rules = self.asked.rules.clone();
        match &self.policy {
            Some(_) if !rules.rules().is_empty() => return Err(Error::PolicyAndRules),
            Some(_) => {}
            None => self.host_ports.iter().for_each(|port| port.grant(&mut rules, port.flag())),
        }
        let cwd = &machine.cwd;
        let binds = |list: &[Bind]| list.iter().map(|bind| place(bind, cwd)).collect::<Result<Vec<_>, _>>();
        // An absolute path is never standard input, a descriptor or JSON.
        let effects = |effects: &Effects| match effects {
            Effects::File(path) => Effects::File(absolute(path, cwd)),
            set @ Effects::Set(_) => set.clone(),
        };
        let asked = PolicyRequest {
            rules,
            layers: self.policy.as_ref().map(Policy::to_layers),
            via: self.via.is_some(),
            ro: binds(&self.asked.ro)?,
            rw: binds(&self.asked.rw)?,
            mask: self.asked.mask.iter().map(|path| absolute(path, cwd)).collect(),
            bounds: self.asked.bounds.iter().map(|it| it.placed(|path| absolute(path, cwd))).collect(),
            policy: self.asked.policy.iter().map(|path| absolute(path, cwd)).collect(),
            effects: self.asked.effects.as_ref().map(effects),
            ..self.asked.clone()
        };
        let audit = match &*self.audit {
            AuditTo::Default => AuditTo::Default,
            AuditTo::File(path) => AuditTo::File(absolute(path, cwd)),
            AuditTo::Fd(fd) => {
                let what = "the record's descriptor";
                AuditTo::Fd(fd.try_clone().map_err(|source| Error::Prepare { what, source })?)
            }
        };
        let signing = match &self.signing {
            Signing::File(path) => Signing::File(absolute(path, cwd)),
            other => other.clone(),
        };
        let mut composed = compose_for_run(&asked, &machine, &Clients { say: &|_| {} })?;
        composed.keep_secrets();
        composed.host_ports.extend(&self.host_ports);
        if let Some(missing) = composed.missing.take() {
            return Err(missing.into());
        }
        let (notes, doubts) = (take(&mut composed.notes), take(&mut composed.doubts));
        let request = Request {
            command: self.command.clone(),
            tty: Tty::Off,
            via: self.via.clone(),
            labels: self.labels.clone(),
            audit,
            signing,
            ..Request::from_composed(composed, machine)?
        };
        Ok((request, [notes, doubts]))
    }

    /// Refuses words that execve(2) cannot pass.
    fn check_words(&self) -> Result<(), Error> {
        let nul = |word: &OsStr| word.as_bytes().contains(&0);
        if self.command.iter().any(|word| nul(word)) {
            return Err(WordFault::Nul("the command").into());
        }
        for rule in &self.asked.env {
            let (EnvRule::Set(name, _) | EnvRule::Pass(name) | EnvRule::Remove(name)) = rule;
            let bytes = name.as_bytes();
            if bytes.is_empty() || bytes.iter().any(|byte| [b'=', 0].contains(byte)) {
                return Err(WordFault::EnvName(exeat_record::escape(bytes, 256)).into());
            }
            if matches!(rule, EnvRule::Set(_, value) if nul(value)) {
                return Err(WordFault::Nul("a variable's value").into());
            }
        }
        Ok(())
    }
}

/// Makes both paths of a bind absolute. bubblewrap does not resolve the path inside.
fn place(bind: &Bind, cwd: &Path) -> Result<Bind, Error> {
    let host = absolute(&bind.host, cwd);
    if bind.guest == bind.host {
        return Ok(Bind { guest: without_dots(&host), host });
    }
    let dots = bind.guest.components().any(|part| part == Component::ParentDir);
    if dots || !bind.guest.is_absolute() {
        let why = "it must be absolute, without `..`";
        let source = io::Error::new(io::ErrorKind::InvalidInput, why);
        return Err(FileFault::Path { what: PathUse::Inside, path: bind.guest.clone(), source }.into());
    }
    Ok(Bind { guest: bind.guest.components().collect(), host })
}

fn absolute(path: &Path, cwd: &Path) -> PathBuf {
    cwd.join(path).components().collect()
}

/// Resolves `..` without following links: `/a/b/../c` becomes `/a/c`.
fn without_dots(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            part => out.push(part),
        }
    }
    out
}

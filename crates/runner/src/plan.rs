//! Turns a request into a plan: inspects the machine, changes nothing.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use exeat_contract::{BridgeKind, DENIALS, DIR, PROXY_PORT, SOCKET, SOCKS5_PORT, SOCKS5_SOCKET, STAGE2};
use exeat_files::fault::{FileFault, PathUse};
use exeat_files::layout::{EMPTY_DIR_SIZE, EMPTY_FILE, EmptyEntry, Mount, Why};
use exeat_files::names::joined;
use exeat_files::permissions::Ids;
use exeat_files::quarantine::{Settlement, WatchList};
use exeat_files::request::WorkDir;
use exeat_files::users::walk_home;
use exeat_files::walk::LinkRule;
use exeat_files::ways::Ways;
use exeat_policy::{
    Action, Bridge, Cache, Effective, Home, HostPort, Loopback, Policy, Rule, Transparent, Tty,
};
use exeat_proxy::UpstreamProxy;
use exeat_record::place::RecordDir;
use exeat_record::{Source, today};
use exeat_sandbox::bwrap::Argv;
use exeat_sandbox::spec::Bytes;
use exeat_sandbox::{
    Builder, Enforced, Enforcement, Identity, Mount as Step, SandboxSpec, seccomp, shell_word,
};
use nix::unistd::geteuid;
use serde_json::json;

use crate::backend::Backend;
use crate::backend::choice::{Choice, choose};
use crate::cache::{self, Steps, UsedCache};
use crate::environment::{Environment, Variable, stage_home};
use crate::error::Error;
use crate::identity::StageUser;
use crate::request::{AuditTo, Request};
use crate::signing::{Signing, key_place, state_place_below};
use crate::staged::{MountSource, Staged, TreeFault};
use crate::uids::Own;
use crate::view_input::{UserView, ViewInput};
use crate::{environment, host_ports, limits, remedy, upstream, via};
use exeat_files::view::scratch::{TMP_SIZE, cache_in_memory, tmp_in_memory};

mod checks;
mod own_files;
mod pins;

use checks::{can_harden, check_other_proxy, core_dump_note, decide_unix_sockets};
use own_files::Reach;

/// The plan of one run.
#[derive(Debug)]
pub struct Plan {
    /// Killed runs that were settled before.
    pub(crate) settled: Settlement,
    pub(crate) command: Vec<OsString>,
    pub(crate) policy: Policy,
    pub(crate) choice: Choice,
    /// The rule that judged the links on its paths.
    pub(crate) links: LinkRule,
    pub(crate) mounts: Vec<Mount>,
    /// The source of each mount, if it is not the tree's own path.
    pub(crate) taken: Vec<Option<MountSource>>,
    /// Trees that are mapped for another user than root.
    pub(crate) staged: Option<Staged>,
    /// The directory inside where the stage starts.
    pub(crate) cwd: PathBuf,
    pub(crate) env: BTreeMap<OsString, OsString>,
    /// Variables that are added if the run has no gateway.
    pub(crate) without_gateway: BTreeMap<OsString, OsString>,
    pub(crate) bridge: BridgeKind,
    pub(crate) socks5: bool,
    pub(crate) tty: Tty,
    /// Services of this machine on the stage's loopback; each is granted.
    pub(crate) host_ports: Vec<HostPort>,
    /// The gateway; `Off` also if the request leaves no place for it.
    pub(crate) transparent: Transparent,
    /// The socket of another proxy that decides.
    pub(crate) via: Option<PathBuf>,
    pub(crate) upstream: Option<UpstreamProxy>,
    pub(crate) identity: Identity,
    /// The user of the run, held for as long as the plan.
    pub(crate) own: Option<Own>,
    /// Whether the stage may make Unix sockets.
    pub(crate) unix_sockets: bool,
    pub(crate) loopback: Loopback,
    pub(crate) debuggable: bool,
    pub(crate) watched: Vec<WatchList>,
    /// Whether partial isolation is an error at the start.
    pub(crate) is_full_required: bool,
    /// Lines about paths in PATH and variables that are not shown.
    pub(crate) left_out: Vec<String>,
    /// What shows the stage more, for hints.
    pub(crate) ways: Ways,
    /// Paths that the caller or a ceiling hides by name.
    pub(crate) masked: Vec<PathBuf>,
    pub(crate) enforcement: Enforcement,
    pub(crate) cache: Option<PathBuf>,
    /// The user who makes the cache, if it is not the caller.
    pub(crate) cache_maker: Option<Ids>,
    /// The directory of all caches, if this run has none and hides it.
    hidden_caches: Option<PathBuf>,
    /// The working directory that the cache belongs to.
    cache_of: PathBuf,
    /// Whether the cache contains a home directory.
    home: Home,
    /// The directory for the stage's `/tmp`, if it is on disk.
    pub(crate) tmp: Option<PathBuf>,
    /// The directory in which the run directory is made.
    pub(crate) run_base: PathBuf,
    pub(crate) audit: AuditTo,
    pub(crate) audit_sync: bool,
    pub(crate) signing: Signing,
    /// The caller's place in a trace, from its environment.
    pub(crate) traceparent: Option<OsString>,
    pub(crate) place: Option<RecordDir>,
    pub(crate) stage: Option<String>,
    pub(crate) sources: Vec<Source>,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) limits: limits::RunLimits,
    notes: Vec<String>,
    /// Lines on why rules may be missing.
    pub(crate) doubts: Vec<String>,
}

/// Plans what a request means on this machine.
///
/// # Errors
/// Returns an error when the request cannot be met, or when the stage could write its own record.
pub fn plan(request: Request) -> Result<Plan, Error> {
    plan_with(request, None, &STREAMS)
}

/// Plans with this back end, else with that of the request, for a stage on these streams; each is a path to an open stream.
pub(crate) fn plan_with(
    mut request: Request,
    backend: Option<&Backend>,
    streams: &[&str],
) -> Result<Plan, Error> {
    if request.command.is_empty() {
        return Err(Error::NoCommand);
    }
    if request.files.home == Home::Private && request.files.cache == Cache::None {
        return Err(Error::NoPlaceForHome);
    }
    let paths = RealPaths::walk(&request)?;
    let stage_home = stage_home(&request, &paths.home);
    let environment = environment::build(&request, &stage_home);
    let (who, mut seen) = view_for_user(&request, &environment, &paths)?;
    let (identity, identity_held) = who.identity();
    let limits = limits::RunLimits::new(request.limits, matches!(who, StageUser::Kept(_)))?;
    let mut notes = lines_for_caller(&request, &environment, &paths, &who, &seen);
    check_own_files(&mut request, &paths, &seen, streams)?;
    let (unix_sockets, line) = decide_unix_sockets(&request, seen.built.sockets_exposed);
    notes.extend(line.map(str::to_owned));
    seen.built.lost.extend(line.filter(|_| unix_sockets).map(str::to_owned));
    let fs = match seen.built.lost.is_empty() {
        true => Enforced::Full,
        false => Enforced::Partial { missing: seen.built.lost.join("; ") },
    };
    can_harden(request.hardening)?;
    let Network { via, host_ports, transparent, held: net } =
        check_network(&request, &paths, &seen.built.writable)?;
    // Last, because it takes a sandbox to try one.
    let choice = match backend {
        Some(backend) => Choice::accept(backend.builder()?),
        None => choose(request.backend, &who, paths.place.as_ref())?,
    };
    if choice.builder == Builder::Native {
        leave_out_stage2(&mut seen);
    }
    let UserView { built, taken, staged, cache, cache_maker, hidden_caches, tmp, run_base, .. } = seen;
    let RealPaths { home: _, links, cwd, work: _, place } = paths;
    let traceparent = variable(&request, "TRACEPARENT").map(OsStr::to_owned);
    let masked = request.files.mask.iter().chain(request.files.bounds.iter().flat_map(|bound| &bound.mask));
    let masked = masked.cloned().collect();
    let ways = Ways::new(&request.files);
    let plan = Plan {
        settled: Settlement::default(),
        command: request.command,
        policy: request.policy,
        choice,
        links,
        mounts: built.mounts,
        taken,
        staged,
        cwd: built.cwd,
        env: by_name(environment.variables),
        without_gateway: by_name(environment.without_gateway),
        bridge: match request.bridge {
            Bridge::Handoff => BridgeKind::Handoff,
            Bridge::Relay => BridgeKind::Relay,
        },
        socks5: request.socks5,
        tty: request.tty,
        host_ports,
        transparent,
        via,
        upstream: request.upstream,
        identity,
        own: if let StageUser::Own(own) = who { Some(own) } else { None },
        unix_sockets,
        loopback: request.hardening.loopback,
        debuggable: request.hardening.debuggable,
        watched: built.watched,
        is_full_required: false,
        left_out: built.left_out,
        ways,
        masked,
        enforcement: Enforcement {
            net,
            fs,
            syscalls: exeat_sandbox::enforce::syscalls(),
            identity: identity_held,
        },
        cache,
        cache_maker,
        hidden_caches,
        cache_of: cwd,
        home: request.files.home,
        tmp,
        run_base,
        audit: request.audit,
        audit_sync: request.audit_sync,
        signing: request.signing,
        traceparent,
        place,
        stage: request.stage,
        sources: request.sources,
        labels: request.labels,
        limits,
        notes,
        doubts: Vec::new(),
    };
    if matches!(plan.choice.builder, Builder::BwrapAlone(_)) {
        let (argv, _) = plan.argv();
        // Three words come on top: `--args FD --` before the command.
        let words = argv.options.len() + 3 + argv.command.len();
        if words > BWRAP_WORDS {
            return Err(Error::TooMany { words, most: BWRAP_WORDS });
        }
    }
    Ok(plan)
}

/// Returns a variable of the caller.
fn variable<'a>(request: &'a Request, name: &str) -> Option<&'a OsStr> {
    request.host_env.get(OsStr::new(name)).map(OsString::as_os_str)
}

/// The paths of a request without links.
struct RealPaths {
    home: PathBuf,
    /// The rule that judges the links on other paths.
    links: LinkRule,
    cwd: PathBuf,
    work: Option<PathBuf>,
    /// The place of records.
    place: Option<RecordDir>,
}

impl RealPaths {
    /// Follows the links on the paths that the caller and its environment name.
    fn walk(request: &Request) -> Result<Self, Error> {
        let walked = walk_home(variable(request, "HOME"));
        let (Ok(home) | Err((home, _))) = &walked;
        let home = home.clone();
        let links = LinkRule::new(&home, variable(request, "XDG_RUNTIME_DIR").map(Path::new));
        let real = |what: PathUse, path: &Path| {
            links.walk(path).map(|end| end.real).map_err(|error| FileFault::from_walk(what, path, error))
        };
        let cwd = real(PathUse::WorkingDirectory, &request.cwd)?;
        let work = match &request.files.work {
            Some(WorkDir::Host(dir)) => Some(real(PathUse::WorkDirectory, dir)?),
            _ => None,
        };
        let place = Some(state_place_below(walked, &request.host_env)?);
        Ok(Self { home, links, cwd, work, place })
    }
}

/// Builds the view for the preferred user of the stage, or for the fallback where the preferred one cannot have the trees.
fn view_for_user(
    request: &Request,
    environment: &Environment,
    paths: &RealPaths,
) -> Result<(StageUser, UserView), Error> {
    let base = ViewInput {
        request,
        environment,
        cwd: &paths.cwd,
        home: &paths.home,
        links: &paths.links,
        place: paths.place.as_ref(),
    };
    let view = |who: StageUser| base.view(&who).map(|seen| (who, seen));
    match StageUser::preferred().map_err(TreeFault::Refused).and_then(view) {
        Err(TreeFault::Refused(why)) => {
            view(StageUser::fallback(why, paths.work.as_deref().unwrap_or(&paths.cwd))?)
        }
        other => other,
    }
    .map_err(Error::from)
}

/// Returns what the caller should know about the stage's user, the policy, the environment and the view.
fn lines_for_caller(
    request: &Request,
    environment: &Environment,
    paths: &RealPaths,
    who: &StageUser,
    seen: &UserView,
) -> Vec<String> {
    let mut notes = Vec::new();
    if let (_, Enforced::Partial { missing }) = who.identity() {
        notes.push(format!("{missing} ({})", who.fix().unwrap_or_default()));
    }
    notes.extend(request.policy.terms().note().map(str::to_owned));
    notes.extend(request.upstream.as_ref().map(UpstreamProxy::note));
    notes.extend(environment.notes.iter().cloned());
    notes.extend(seen.notes.iter().cloned());
    if let Some(state) = key_place(paths.place.as_ref()) {
        let trees = seen.built.watched.iter().map(|list| list.tree.as_path());
        notes.extend(remedy::absent_lines(state.state_dir(), trees));
    }
    notes.extend(core_dump_note());
    notes
}

/// Refuses a run whose stage could write its own record, its keys, or the sockets of other runs.
fn check_own_files(
    request: &mut Request,
    paths: &RealPaths,
    seen: &UserView,
    streams: &[&str],
) -> Result<(), Error> {
    let writable = &seen.built.writable;
    let reach = Reach { writable, streams };
    let placed = |record: &Path| paths.links.place(&paths.cwd.join(record));
    own_files::check_record(&mut request.audit, paths.place.as_ref(), &reach, placed)?;
    own_files::check_keys(&request.signing, paths.place.as_ref(), &reach)?;
    own_files::check_sockets(&seen.run_base, writable)
}

/// What the stage reaches besides the rules of its policy.
struct Network {
    via: Option<PathBuf>,
    host_ports: Vec<HostPort>,
    transparent: Transparent,
    held: Enforced,
}

/// Checks the other proxy, the upstream proxy, the ports of this machine and the gateway against the rest of the request.
fn check_network(request: &Request, paths: &RealPaths, writable: &[PathBuf]) -> Result<Network, Error> {
    let via = match &request.via {
        Some(socket) => {
            check_other_proxy(request)?;
            Some(via::find(&paths.cwd.join(socket), &paths.links, writable)?)
        }
        None => None,
    };
    if let Some(proxy) = &request.upstream {
        upstream::check_ceilings(&request.policy, proxy.target(), today())?;
    }
    let host_ports = host_ports::check(&request.host_ports, request.socks5, &request.policy, today())?;
    let transparent = match (request.transparent, request.hardening.loopback) {
        (Transparent::On, Loopback::Proxy) => return Err(Error::LoopbackAnd("the transparent gateway")),
        (_, Loopback::Proxy) => Transparent::Off,
        _ if via.is_some() => Transparent::Off,
        (asked, Loopback::Own) => asked,
    };
    let held = match &via {
        None => Enforced::Full,
        Some(socket) => Enforced::Partial { missing: via::missing(socket) },
    };
    Ok(Network { via, host_ports, transparent, held })
}

/// Takes out the mount of stage2. Only bubblewrap executes it in the sandbox: on the native back end, pid 1 is that program already.
fn leave_out_stage2(UserView { built, taken, .. }: &mut UserView) {
    if let Some(number) = built.mounts.iter().position(|mount| mount.at() == Path::new(STAGE2)) {
        built.mounts.remove(number);
        taken.remove(number);
    }
}

/// Returns the step of the sandbox for a mount; `dir` is the staging directory, which holds its tree if that has a source.
fn step(mount: &Mount, dir: &Path, source: Option<&MountSource>) -> Step {
    let place = source.map(|source| joined(&dir.join(&source.name), &source.below));
    let from = |host: &PathBuf| place.unwrap_or_else(|| host.clone());
    match mount.clone() {
        Mount::ReadOnly { host, at, .. } => Step::ReadOnly { host: from(&host), at },
        Mount::Writable { host, at, .. } => Step::Writable { host: from(&host), at },
        Mount::Hidden { at, entry: EmptyEntry::File, .. } => Step::ReadOnly { host: EMPTY_FILE.into(), at },
        Mount::Hidden { at, entry: EmptyEntry::Dir { mode }, .. } => {
            Step::Tmpfs { at, size: EMPTY_DIR_SIZE, mode }
        }
        Mount::Tmpfs { at, size, mode } => Step::Tmpfs { at, size, mode },
        Mount::Dir { at } => Step::Dir { at },
        Mount::Symlink { target, at } => Step::Symlink { target, at },
        Mount::File { at, bytes, mode } => Step::File { at, bytes: Bytes(bytes), mode },
        Mount::CoverFile { at, bytes } => Step::CoverFile { at, bytes: Bytes(bytes) },
        Mount::Proc => Step::Proc,
        Mount::Dev { shm } => Step::Dev { shm },
    }
}

/// The number of words that bubblewrap accepts, in its arguments and from a descriptor together (its `MAX_ARGS`).
const BWRAP_WORDS: usize = 9000;

impl Plan {
    /// Returns the effective policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns lines that the caller must see before the stage starts.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the places where the stage sees files of the host's.
    #[must_use]
    pub fn shown(&self) -> Vec<PathBuf> {
        let is_shown = |mount: &&Mount| matches!(mount, Mount::ReadOnly { .. } | Mount::Writable { .. });
        self.mounts.iter().filter(is_shown).map(|mount| mount.at().to_path_buf()).collect()
    }

    /// Returns what shows the stage more, for hints.
    #[must_use]
    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    /// Returns what this run enforces, by aspect.
    #[must_use]
    pub fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    /// Returns the sandbox with the files of a run directory.
    pub(crate) fn spec(&self, socket: PathBuf, socks5: PathBuf, denials: PathBuf) -> SandboxSpec {
        let dir = socket.parent().unwrap_or(Path::new("/"));
        let pins = pins::before_each(&self.mounts);
        let mounts = self.mounts.iter().zip(&self.taken).zip(pins);
        let steps = mounts.flat_map(|((mount, source), pins)| {
            let pins = pins.into_iter().map(|at| Step::Pin { at });
            pins.chain([step(mount, dir, source.as_ref())])
        });
        let mut mounts: Vec<Step> = steps.collect();
        mounts.push(Step::ReadOnly { host: socket, at: SOCKET.into() });
        if self.has_socks5_socket() {
            mounts.push(Step::ReadOnly { host: socks5, at: SOCKS5_SOCKET.into() });
        }
        mounts.push(Step::ReadOnly { host: denials, at: DENIALS.into() });
        // What it holds is exeat's, and the stage's uid owns it.
        mounts.push(Step::Freeze { at: DIR.into() });
        SandboxSpec {
            mounts,
            bridge: self.bridge,
            socks5: self.socks5,
            identity: self.identity,
            debuggable: self.debuggable,
        }
    }

    /// Inserts notes for the caller before those of the plan.
    pub(crate) fn add_notes(&mut self, notes: impl Iterator<Item = String>) {
        self.notes.splice(0..0, notes);
    }

    /// Sets the killed runs that were settled before: the run reports them.
    pub fn report_settled(&mut self, settled: Settlement) {
        self.settled = settled;
    }

    /// Sets the lines for the record on why rules may be missing: hosts that [`discover`](crate::discover) could not find.
    pub fn record_doubts(&mut self, doubts: Vec<String>) {
        self.doubts = doubts;
    }

    /// Makes the cache, or falls back to memory.
    ///
    /// # Errors
    /// Returns why it is in memory, as a line for the caller.
    pub(crate) fn make_cache(&mut self) -> Result<Option<UsedCache>, String> {
        if let Some(caches) = &self.hidden_caches {
            // If it cannot be made, it cannot be hidden, and the start says so.
            let _ = cache::make_base(caches);
        }
        let Some(dir) = &self.cache else { return Ok(None) };
        let (of, home) = (&self.cache_of, self.home);
        let made = match (&mut self.staged, self.cache_maker) {
            (Some(staged), _) => staged
                .make()
                .and_then(|()| Steps::toward(dir))
                .and_then(|steps| cache::prepare(steps.dir(), home))
                .and_then(|()| cache::hold(dir, of)),
            (None, Some(maker)) => cache::make_as(dir, maker, of, home),
            (None, None) if geteuid().is_root() => Steps::toward(dir)
                .and_then(|mut steps| cache::prepare(steps.make()?, home))
                .and_then(|()| cache::hold(dir, of)),
            (None, None) => cache::make(dir, home).and_then(|()| cache::hold(dir, of)),
        };
        self.used_or_in_memory(dir.clone(), made, cache_in_memory()).map_err(|why| {
            self.cache = None;
            format!("the package cache was in memory, and has ended with the run: {why}")
        })
    }

    /// Makes the directory for the stage's `/tmp`, or falls back to memory.
    ///
    /// # Errors
    /// Returns why it is in memory, as a line for the caller.
    pub(crate) fn make_tmp(&mut self) -> Result<Option<UsedCache>, String> {
        let Some(dir) = &self.tmp else { return Ok(None) };
        let made = cache::make_tmp(dir).and_then(|()| cache::hold(dir, &self.cache_of));
        self.used_or_in_memory(dir.clone(), made, tmp_in_memory(TMP_SIZE)).map_err(|why| {
            self.tmp = None;
            format!("the stage's /tmp was in memory: {why}")
        })
    }

    /// Deletes leftovers of killed runs beside the directory, or mounts memory instead if it was not made.
    ///
    /// # Errors
    /// Returns why it was not made.
    fn used_or_in_memory(
        &mut self,
        dir: PathBuf,
        made: io::Result<UsedCache>,
        memory: Mount,
    ) -> Result<Option<UsedCache>, String> {
        let error = match made {
            Ok(used) => {
                cache::sweep(&dir);
                return Ok(Some(used));
            }
            Err(error) => error,
        };
        let mounts = self.mounts.iter_mut().zip(&mut self.taken);
        for (mount, taken) in
            mounts.filter(|(mount, _)| matches!(mount, Mount::Writable { host, .. } if *host == dir))
        {
            (*mount, *taken) = (memory.clone(), None);
        }
        Err(format!("`{}` cannot be made: {error}", dir.display()))
    }

    /// Returns the TCP ports that the stage may connect to; `None` for all.
    pub(crate) fn ports(&self) -> Option<Vec<u16>> {
        let socks5 = self.socks5.then_some(SOCKS5_PORT);
        let host_ports = self.host_ports.iter().map(|port| port.inner.get());
        let all = [PROXY_PORT].into_iter().chain(socks5).chain(host_ports);
        (self.loopback == Loopback::Proxy).then(|| all.collect())
    }

    /// Returns whether SOCKS5 has a socket: a relay reaches the host through it, while a handoff passes the listener itself.
    pub(crate) fn has_socks5_socket(&self) -> bool {
        self.socks5 && self.bridge == BridgeKind::Relay
    }

    /// Refuses partial isolation, such as on an older kernel or for a stage that keeps root's uid.
    ///
    /// # Errors
    /// Returns [`Error::NotHeld`] with the missing parts. What shows only at the start ends the start ([`crate::run()`]).
    pub fn require_full(&mut self) -> Result<(), Error> {
        self.is_full_required = true;
        let Enforcement { net, fs, syscalls, identity } = &self.enforcement;
        let lacks: Vec<String> =
            [("network", net), ("files", fs), ("system calls", syscalls), ("identity", identity)]
                .into_iter()
                .filter(|(_, held)| **held != Enforced::Full)
                .map(|(aspect, held)| format!("{aspect}: {held}"))
                .collect();
        if lacks.is_empty() { Ok(()) } else { Err(Error::NotHeld(lacks.join("; "))) }
    }

    fn denied(&self) -> impl Iterator<Item = &Rule> {
        self.policy.rules().iter().filter(|rule| rule.action == Action::Deny)
    }

    /// Returns the arguments that a run would give to bubblewrap, and the number of mounts.
    fn argv(&self) -> (Argv, usize) {
        let dir = self.run_base.join("exeat-XXXXXX");
        let [socket, socks5, denials] =
            ["proxy.sock", "socks5.sock", "denials.jsonl"].map(|name| dir.join(name));
        let spec = self.spec(socket, socks5, denials);
        let alone = Argv::new(&spec, FILTERS);
        let mounts = alone.mount_count();
        match &self.choice.builder {
            Builder::Bwrap(_) => (Argv::around_tree(&spec, FILTERS), mounts),
            Builder::BwrapAlone(_) | Builder::Native => (alone, mounts),
        }
    }

    /// Describes the plan for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let (argv, mounts) = self.argv();
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "command      {}", shell_words(&self.command));
        let _ = writeln!(out, "starts in    {}", self.cwd.display());
        let _ = writeln!(out, "backend      {}", self.choice.describe());
        let socks5 = if self.socks5 { ", with SOCKS5" } else { "" };
        let _ = writeln!(out, "bridge       {}{socks5}", self.bridge.as_str());
        let _ = writeln!(out, "tty          {}", self.tty.as_str());
        let _ = writeln!(out, "transparent  {}", self.transparent.as_str());
        for port in &self.host_ports {
            let _ = writeln!(
                out,
                "host port    127.0.0.1:{} inside is this machine's {}",
                port.inner,
                port.target()
            );
        }
        if let Some(socket) = &self.via {
            let _ = writeln!(out, "via          unix:{}", socket.display());
        }
        if let Some(upstream) = &self.upstream {
            let known = if upstream.has_credentials() { ", with credentials" } else { "" };
            let _ = writeln!(out, "upstream     {upstream}{known}");
            if !upstream.bypass().is_empty() {
                let _ = writeln!(out, "directly     {}", upstream.bypass());
            }
        }
        let Enforcement { net, fs, syscalls, identity } = &self.enforcement;
        for (aspect, held) in
            [("network", net), ("files", fs), ("syscalls", syscalls), ("identity", identity)]
        {
            let _ = writeln!(out, "{aspect:<12} {held}");
        }
        let limits = self.limits.lines();
        if !limits.is_empty() {
            let _ = writeln!(out, "{:<12} {}", "limits", limits.join(", "));
        }
        if let Some(staged) = &self.staged {
            for tree in staged.summaries() {
                let host = tree.host.display();
                let owner = tree.owner.map(|(uid, _)| format!(", where the stage owns what uid {uid} owns"));
                let _ =
                    writeln!(out, "{:<12} {} is `{host}`{}", "tree", tree.name, owner.unwrap_or_default());
            }
        }
        let _ = writeln!(out, "\nfiles");
        let shown = self.mounts.iter().filter_map(|mount| Some((mount.at(), mount.access()?)));
        for (at, (access, host, why)) in shown.filter(|(_, (_, _, why))| *why != Why::Pinned) {
            let from =
                host.filter(|host| *host != at).map(|host| format!("; on the host `{}`", host.display()));
            let (access, why, from) = (access.as_str(), why.describe(), from.unwrap_or_default());
            let _ = writeln!(out, "  {access:<6} {}  ({why}{from})", at.display());
        }
        let _ = writeln!(out, "\nrules");
        let Effective { allow, truncated, .. } = self.policy.effective();
        if self.via.is_some() {
            let _ = writeln!(out, "  those of the proxy that it goes through");
        } else if allow.is_empty() {
            let _ = writeln!(out, "  none: nothing is reachable");
        }
        for rule in &allow {
            let expires = rule.expires.map(|day| format!("; expires on {day}")).unwrap_or_default();
            let from = rule.origins().join(", within ");
            let _ = writeln!(out, "  allow  {}:{}  ({from}{expires})", rule.pattern, rule.ports);
        }
        if truncated {
            let _ = writeln!(out, "  ... and more: exeat policy show has them");
        }
        for rule in self.denied() {
            let _ = writeln!(out, "  deny   {}:{}  ({})", rule.pattern, rule.ports, rule.origin);
        }
        let _ = writeln!(out, "\nenvironment");
        for name in self.env.keys() {
            let _ = writeln!(out, "  {}", name.display());
        }
        let Some(bwrap) = self.choice.builder.bwrap() else {
            let _ = writeln!(out, "\nsandbox   {mounts} mounts, made by exeat itself");
            return out;
        };
        let by =
            if matches!(self.choice.builder, Builder::Bwrap(_)) { ", made by exeat before it" } else { "" };
        let _ = write!(out, "\nbubblewrap   {mounts} mounts{by}\n  {}", bwrap.display());
        for word in &argv.options {
            let word = word.to_string();
            out.push_str(if word.starts_with("--") { " \\\n    " } else { " " });
            out.push_str(&word);
        }
        let _ = writeln!(out, " \\\n    -- {}", shell_words(&argv.command));
        out
    }

    /// Returns the plan as one JSON object. It has no values of variables because they can be secrets.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let (argv, mounts) = self.argv();
        let words = |list: &[OsString]| {
            list.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let Enforcement { net, fs, syscalls, identity } = &self.enforcement;
        let Effective { allow, truncated, .. } = self.policy.effective();
        let allow = allow.iter().map(|rule| {
            let mut from = rule.origins().into_iter();
            let expires = rule.expires.map(|day| day.to_string());
            json!({
                "rule": format!("{}:{}", rule.pattern, rule.ports), "action": "allow", "rule_src": from.next(),
                "within": from.collect::<Vec<_>>(), "expires": expires,
            })
        });
        let deny = self.denied().map(|rule| {
            let text = format!("{}:{}", rule.pattern, rule.ports);
            json!({"rule": text, "action": "deny", "rule_src": rule.origin.to_string()})
        });
        let rules = allow.chain(deny);
        let files = self.mounts.iter().filter_map(|mount| {
            let (access, host, why) = mount.access()?;
            let host = host.map(Path::to_string_lossy);
            Some(json!({
                "at": mount.at().to_string_lossy(), "access": access.as_str(), "host": host, "why": why.as_str(),
            }))
        });
        let limits = self.limits.each();
        let limits =
            limits.map(|(key, value, by)| (key.to_owned(), json!({"value": value, "held": by.to_string()})));
        json!({
            "schema": 1,
            "command": words(&self.command),
            "cwd": self.cwd.to_string_lossy(),
            "bridge": self.bridge.as_str(),
            "socks5": self.socks5,
            "tty": self.tty.as_str(),
            "transparent": self.transparent.as_str(),
            "host_ports": self.host_ports.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "via": self.via.as_ref().map(|socket| format!("unix:{}", socket.display())),
            "upstream": self.upstream.as_ref().map(|upstream| json!({
                "proxy": upstream.to_string(), "credentials": upstream.has_credentials(),
                "bypass": upstream.bypass().entries(),
            })),
            "stage": self.stage,
            "files": files.collect::<Vec<_>>(),
            "rules": rules.collect::<Vec<_>>(),
            "rules_more": truncated,
            "environment": words(&self.env.keys().cloned().collect::<Vec<_>>()),
            "enforcement": {
                "net": net.to_string(), "fs": fs.to_string(), "syscalls": syscalls.to_string(), "identity": identity.to_string(),
            },
            "limits": limits.collect::<serde_json::Map<_, _>>(),
            "trees": self.staged.iter().flat_map(Staged::summaries).map(|tree| json!({
                "name": tree.name, "host": tree.host.to_string_lossy(), "stage_is_uid": tree.owner.map(|(uid, _)| uid),
            })).collect::<Vec<_>>(),
            "backend": self.choice.builder.name(),
            "backend_why": self.choice.why,
            "bwrap": self.choice.builder.bwrap().map(Path::to_string_lossy),
            "options": argv.options.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "helper": words(&argv.command),
            "mounts": mounts,
            "notes": self.notes,
        })
    }
}

/// Returns the JSON Schema of [`Plan::to_json`].
#[must_use]
pub fn plan_schema() -> &'static str {
    include_str!("plan.schema.json")
}

/// The number of seccomp programs of a run, for the dry run.
pub(crate) const FILTERS: usize = seccomp::BASE;

fn shell_words(words: &[OsString]) -> String {
    words.iter().map(|word| shell_word(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

fn by_name(variables: Vec<Variable>) -> BTreeMap<OsString, OsString> {
    variables.into_iter().map(|variable| (variable.name, variable.value)).collect()
}

/// The paths of the caller's standard streams, which the stage gets.
const STREAMS: [&str; 3] = ["/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"];

#[cfg(test)]
mod tests;

//! Asks a package client which hosts it is configured to use, by running it without network access and reading its requests. So a
//! company's mirror works as it is, and exeat contains no list of registries.
//!
//! The client runs in its own sandbox with an empty directory, the system's settings and the user's own. It sees neither the project nor
//! anything that the coming stage may write: no settings or programs there influence what the stage may reach. The first round grants
//! nothing. Later rounds grant what was found before, and only that, because an index names the host of its files. Each round leaves a
//! record like any run. The contents of an index count less than the user's settings: they lead only to names, and to no port of their
//! choice. Only the user can permit addresses of the machine and its nearest neighbors, with a rule.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, PipeReader, Read};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fmt};

use exeat_compose::{Ask, Discovered, EnvRule, Services};
use exeat_contract::PROXY_PORT;
use exeat_files::layout::Mount;
use exeat_files::request::{Bind, Bounds, Files};
use exeat_files::users::home_of;
use exeat_policy::file::PRESET_STAGE;
use exeat_policy::preset::{Preset, PresetRule, always_denied};
use exeat_policy::{
    Action, AddrClass, Allowances, Cache, Host, Limits, OwnAddrs, Pattern, Policy, PolicyBuilder, Port,
    Reason, RuleSpec, Size, Span, Target, Transparent, Tty, View, classify,
};
use exeat_proxy::{ConnectionSummary, DeniedHost, own_addresses};
use exeat_record::place::RecordDir;
use exeat_record::{StoppedBy, today};

use crate::ended::Ended;
use crate::error::Error;
use crate::plan::plan;
use crate::request::Request;
use crate::run::oversight::Oversight;
use crate::run::run_here;
use crate::run::streams::Streams;
use crate::signing::{Signing, prepare_key};
use crate::stopping::GRACE;
use crate::upstream::check_ceilings;
use client::{Question, question};
use error::{DiscoveryError, HOSTS, earlier};
use exeat_files::lists;
use kept::{Answers, ClientHosts};

mod client;
pub mod error;
mod kept;
mod waiting;

/// The number of runs of a client: for an index, the host of its files, a redirect, and a last one that finds nothing new.
const ROUNDS: usize = 4;
/// Bytes of a client's output that are kept, from its end.
const SAID: usize = 4096;
/// Bytes of one line of output that a message shows.
const SHOWN: usize = 200;
/// The limits of one round if no ceiling is lower: ten times what clients need, and less than the whole machine. These are
/// [`Limits::pids`] and [`Limits::memory`]; for root they are watched as in any run.
const PIDS: u32 = 512;
const MEMORY: u64 = 2 << 30;
/// A working directory that no view shows: the stage starts in its own empty `/tmp`, and nothing is made on the host.
const NOWHERE: &str = "/proc";

/// The time limits of a discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The limit of one round of one client. After it the client is asked to end, and killed 5 seconds later.
    pub round: Duration,
    /// The limit of all clients together.
    pub all: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { round: Duration::from_secs(15), all: Duration::from_secs(60) }
    }
}

/// A series of questions to clients with one deadline.
pub struct Discovery<'a> {
    ask: Ask<'a>,
    times: Times,
    home: PathBuf,
    /// Trees that belong to the project or that the stage may write.
    untrusted: Vec<PathBuf>,
    /// PATH without directories in those trees.
    path: OsString,
    /// The addresses of this host, which no client's settings permit.
    addrs: OwnAddrs,
    by: Instant,
}

/// The runner's services for composing a policy.
pub struct Clients<'a> {
    /// Called with a line for the user while a client takes long.
    pub say: &'a (dyn Fn(&str) + Sync),
}

impl Services for Clients<'_> {
    type Error = Error;

    fn check_upstream(&self, policy: &Policy, proxy: &Target) -> Result<(), Error> {
        check_ceilings(policy, proxy, today())
    }

    fn ask_clients(
        &self,
        ask: Ask<'_>,
        presets: &[(&'static Preset, bool)],
    ) -> Result<Vec<Option<Discovered>>, Error> {
        let discovery = Discovery::start(ask, Times::default())?;
        let answer = |(preset, is_named): &(&'static Preset, bool)| {
            let client = preset.from_client.map(|client| client.as_str()).unwrap_or_default();
            let line = format!("preset {}: asking {client} which hosts it uses", preset.name);
            let say = || (self.say)(&line);
            match waiting::call_if_slow(waiting::PATIENCE, say, || discovery.ask(preset)) {
                Err(Error::Preset { why: DiscoveryError::Absent { .. }, .. }) if !is_named => Ok(None),
                found => found.map(Some),
            }
        };
        presets.iter().map(answer).collect()
    }
}

impl<'a> Discovery<'a> {
    /// Prepares the questions and starts the clock. Runs nothing.
    ///
    /// # Errors
    /// Returns an error when the coming run could not be planned.
    pub fn start(ask: Ask<'a>, times: Times) -> Result<Self, Error> {
        let by = Instant::now() + times.all;
        let home = home_of(ask.host_env.get(OsStr::new("HOME")).map(OsString::as_os_str));
        let untrusted = untrusted_trees(&ask, &home)?;
        let dirs = ask.host_env.get(OsStr::new("PATH")).map(env::split_paths).into_iter().flatten();
        let ours = dirs.filter(|dir| dir.is_absolute() && lies_in(dir, &untrusted).is_none());
        // A name from PATH cannot contain a colon.
        let path = env::join_paths(ours).unwrap_or_default();
        let addrs = own_addresses()
            .map_err(|source| Error::Prepare { what: "the list of this host's addresses", source })?;
        Ok(Self { ask, times, home, untrusted, path, addrs, by })
    }

    /// Asks the client of a preset. A preset without a client has no hosts.
    ///
    /// Blocks for at most [`Times::round`] and 5 seconds for each of four rounds, and not longer than [`Times::all`].
    ///
    /// # Errors
    /// Returns [`Error::Preset`] when the client did not report its hosts, and another error when its sandbox failed or a signal arrived.
    pub fn ask(&self, preset: &Preset) -> Result<Discovered, Error> {
        let Some(client) = preset.from_client else { return Ok(Discovered::default()) };
        self.hosts(preset).map_err(|error| match error {
            Failure::DiscoveryError(why) => {
                Error::Preset { preset: preset.name.clone(), client: client.as_str(), why }
            }
            Failure::Run(error) => error,
        })
    }

    fn hosts(&self, preset: &Preset) -> Result<Discovered, Failure> {
        let question = preset.from_client.and_then(question).ok_or(DiscoveryError::Unknown)?;
        let program = self.program(question)?;
        let asked = self.question(preset, question, &program)?;
        let answers = self.answers();
        let name = &preset.name;
        if let Some(answers) = &answers
            && !self.ask.may_be_kept
        {
            answers.forget_failed(name);
        } else if let (Some(asked), Some(answers)) = (&asked, &answers)
            && let Some((given, age)) = answers.get(asked, name)
        {
            let found = given.map_err(|said| DiscoveryError::Earlier { preset: name.clone(), said, age })?;
            // The machine may have a new address since.
            let is_special = |it: &Target| it.host.ip().is_some_and(|ip| special(ip, &self.addrs).is_some());
            if !found.targets.iter().any(is_special) {
                let doubt = found.doubt.map(|doubt| format!("{doubt} {}", earlier(name, age)));
                return Ok(Discovered { rules: rules(preset, &found.targets)?, notes: found.notes, doubt });
            }
        }
        let given = match self.rounds(preset, question, &program) {
            Ok(found) => Ok(found),
            Err(Failure::DiscoveryError(why)) => Err(why),
            Err(error) => return Err(error),
        };
        // Another time, the client may have longer.
        let may_be_kept = match &given {
            Ok(ClientHosts { doubt: None, .. }) => true,
            Ok(_)
            | Err(DiscoveryError::Failed { ended: Ended::Exit(_), .. } | DiscoveryError::Late { .. }) => {
                !self.remaining_time().is_zero()
            }
            Err(_) => false,
        };
        if let (Some(asked), Some(answers), true) = (asked, answers, may_be_kept) {
            answers.keep(&asked, name, &given.as_ref().map_err(ToString::to_string).cloned());
        }
        let ClientHosts { targets, notes, doubt } = given?;
        Ok(Discovered { rules: rules(preset, &targets)?, notes, doubt })
    }

    /// Returns how long another round may take, until the time for all clients is over.
    fn remaining_time(&self) -> Duration {
        self.by.saturating_duration_since(Instant::now()).saturating_sub(GRACE)
    }

    /// Asks a client, in several rounds.
    fn rounds(&self, preset: &Preset, question: &Question, program: &Path) -> Result<ClientHosts, Failure> {
        let began = Instant::now();
        let mut notes = Vec::new();
        let mut found = Hosts::default();
        let mut last = None;
        for round in 0..ROUNDS {
            let limit = self.remaining_time();
            if limit.is_zero() && round == 0 {
                return Err(DiscoveryError::NoTime { limit: self.times.all }.into());
            }
            if limit.is_zero() {
                break;
            }
            let limit = limit.min(self.times.round).min(question.limit.unwrap_or(Duration::MAX));
            let limit = limit.min(self.ask.limits.timeout.map_or(Duration::MAX, Span::get));
            let rules = rules(preset, &found.targets)?;
            let seen = self.round(preset, question, program, &rules, limit, &mut notes)?;
            let news = found.learn(&seen.summary, round == 0, &self.addrs)?;
            // Hosts that the caller's own rules allow need no preset; asking for one still counts.
            if found.targets.is_empty() && seen.summary.counts.allowed == 0 && seen.ended != Ended::Exit(0) {
                let special = found.special.into_iter().next();
                return Err(match (special, seen.ended) {
                    (Some(special), _) => special,
                    (None, Ended::Timeout) => DiscoveryError::Late { limit },
                    (None, ended) => DiscoveryError::Failed { ended, said: seen.said },
                }
                .into());
            }
            last = Some(seen);
            if !news {
                break;
            }
        }
        let name = &preset.name;
        notes.extend(found.notes.iter().map(|note| format!("preset `{name}`: {note}")));
        let mut doubt = None;
        match last {
            Some(seen) if seen.ended == Ended::Exit(0) && found.targets.is_empty() => {
                let beside =
                    if seen.summary.counts.allowed == 0 { "" } else { " beside those of your own rules" };
                let programs = question.programs.join(" or ");
                notes.push(format!("preset `{name}`: {programs} needs no host{beside}"));
            }
            Some(seen) if seen.ended != Ended::Exit(0) => {
                let why = found.stop_reason(&seen.summary).unwrap_or(seen.said);
                let why = if why.is_empty() { why } else { format!(": {why}") };
                doubt = Some(format!(
                    "preset `{name}`: hosts may be missing (--allow HOST adds one): the client could not fetch the package that exeat asks it for, and tried it for {:.1} s{why}",
                    began.elapsed().as_secs_f64()
                ));
            }
            _ => {}
        }
        Ok(ClientHosts { targets: found.targets, notes, doubt })
    }

    fn answers(&self) -> Option<Answers> {
        let variable = |name: &str| self.ask.host_env.get(OsStr::new(name)).map(OsString::as_os_str);
        let place = RecordDir::from_env(variable("XDG_STATE_HOME"), Some(self.home.as_os_str())).ok()?;
        Some(Answers::in_state(place.dir().parent()?))
    }

    /// Collects everything that the first answer of a client depends on; `None` if a settings file cannot be compared.
    fn question(
        &self,
        preset: &Preset,
        question: &Question,
        program: &Path,
    ) -> Result<Option<kept::Question>, Failure> {
        let mut asked = kept::Question::new();
        asked.add("preset", &preset.name);
        asked.file(program);
        asked.add("script", question.script);
        asked.add("policy", (self.ask.finish)(self.grants(&[])).canonical_json());
        // A client may fail for lack of time or memory.
        asked.add("limits", format!("{:?}", self.limits(self.times.round)));
        for Bounds { mask, .. } in self.masks() {
            mask.iter().for_each(|path| asked.add("mask", path));
        }
        for Bind { host, guest } in self.settings(question, &mut Vec::new()) {
            asked.add("file", &host);
            asked.add("at", &guest);
            if asked.settings(&host).is_err() {
                return Ok(None);
            }
        }
        for rule in self.environment(question) {
            match rule {
                EnvRule::Pass(name) => {
                    asked.add("passed", &name);
                    asked.add("value", self.ask.host_env.get(&name).cloned().unwrap_or_default());
                }
                EnvRule::Set(name, value) => {
                    asked.add("set", name);
                    asked.add("value", value);
                }
                EnvRule::Remove(name) => asked.add("removed", name),
            }
        }
        for (name, value) in self.host_env() {
            if name == "PATH" || name == "HOME" || lists::TOOLCHAIN_VARIABLES.iter().any(|it| name == *it) {
                asked.add("variable", name);
                asked.add("value", value);
            }
        }
        Ok(Some(asked))
    }

    /// Returns the grants of one round: the hosts found so far, and the caller's rules for addresses and denials.
    fn grants(&self, found: &[PresetRule]) -> PolicyBuilder {
        let mut grants = PolicyBuilder::new();
        for rule in found.iter().chain(always_denied().unwrap_or_default()) {
            rule.add_to(&mut grants);
        }
        for rule in self.ask.own {
            if rule.action == Action::Deny || matches!(rule.pattern, Pattern::Net(_)) {
                let spec = RuleSpec {
                    action: rule.action,
                    pattern: rule.pattern.clone(),
                    ports: rule.ports.clone(),
                };
                grants.push(spec, &rule.text, rule.origin.clone(), rule.note.clone());
            }
        }
        grants
    }

    /// Runs the client once.
    fn round(
        &self,
        preset: &Preset,
        question: &Question,
        program: &Path,
        found: &[PresetRule],
        limit: Duration,
        notes: &mut Vec<String>,
    ) -> Result<RoundResult, Failure> {
        let request = Request {
            command: ["/bin/sh", "-c", question.script]
                .map(Into::into)
                .into_iter()
                .chain([program.into()])
                .collect(),
            cwd: NOWHERE.into(),
            policy: (self.ask.finish)(self.grants(found)),
            files: Files {
                view: View::Project,
                ro: self.settings(question, notes),
                mask: self.untrusted.iter().filter(|tree| can_be_masked(tree, &self.home)).cloned().collect(),
                cache: Cache::None,
                bounds: self.masks(),
                ..Files::default()
            },
            env: self.environment(question),
            host_env: self.host_env(),
            tty: Tty::Off,
            transparent: Transparent::Off,
            stage: Some(format!("{PRESET_STAGE}{}", preset.name)),
            limits: self.limits(limit),
            ..Request::default()
        };
        let key = prepare_key(&request.signing, &request.host_env)?;
        let plan = plan(request)?;
        key.keep();
        let prepare = |source| Error::Prepare { what: "the client's streams", source };
        let null = File::open("/dev/null").map_err(prepare)?;
        let (reader, writer) = io::pipe().map_err(prepare)?;
        let output = writer.try_clone().map_err(prepare)?;
        let streams = Streams::for_stage([null.into(), output.into(), writer.into()]);
        // The write ends close with the run, so reading ends with it.
        let tail =
            std::thread::Builder::new().name("said".into()).spawn(|| last_words(reader)).map_err(prepare)?;
        let ran = run_here(plan, streams, Oversight::default());
        let said = tail.join().unwrap_or_default();
        let (outcome, signal) = ran?;
        if let Some(signal) = signal {
            return Err(Error::Stopped { signal: signal as i32, by: StoppedBy::Signal }.into());
        }
        Ok(RoundResult { ended: outcome.ended, summary: outcome.summary, said: telling_line(&said) })
    }

    /// Returns the limits of one round of this duration.
    fn limits(&self, round: Duration) -> Limits {
        let own = Limits {
            timeout: Some(Span::nearest(round)),
            grace: Some(Span::nearest(GRACE)),
            memory: Size::new(MEMORY),
            pids: Some(PIDS),
            ..Limits::default()
        };
        own.min(self.ask.limits)
    }

    /// Returns the masks of the ceilings. Their other bounds are about the stage, and the client is the user's.
    fn masks(&self) -> Vec<Bounds> {
        let masks = self.ask.files.bounds.iter();
        let masks = masks.map(|Bounds { name, mask, .. }| Bounds {
            name: name.clone(),
            mask: mask.clone(),
            ..Bounds::default()
        });
        masks.collect()
    }

    /// Finds the program in a directory of the user's or the system's.
    fn program(&self, question: &Question) -> Result<PathBuf, DiscoveryError> {
        let on = |path: &OsStr| {
            let dirs: Vec<PathBuf> = env::split_paths(path).filter(|dir| dir.is_absolute()).collect();
            let named = question.programs.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
            named.filter(|path| is_executable(path)).collect::<Vec<_>>()
        };
        let ours = on(&self.path).into_iter().find(|path| lies_in(path, &self.untrusted).is_none());
        if let Some(program) = ours {
            return Ok(program);
        }
        let all = self.ask.host_env.get(OsStr::new("PATH")).map(|path| on(path)).unwrap_or_default();
        match all.iter().find_map(|path| lies_in(path, &self.untrusted)) {
            Some(tree) => Err(DiscoveryError::InUntrustedTree { tree: tree.to_path_buf() }),
            None => Err(DiscoveryError::Absent {
                program: question.programs.first().copied().unwrap_or_default(),
            }),
        }
    }

    /// Binds the user's settings files to where the client looks for them.
    fn settings(&self, question: &Question, notes: &mut Vec<String>) -> Vec<Bind> {
        let variable = |name: &str| {
            self.ask.host_env.get(OsStr::new(name)).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let own = question.files.iter().map(|setting| setting.places(&self.home, variable));
        let named = question.named.iter().filter_map(|name| variable(name)).map(|path| (path.clone(), path));
        let mut binds: Vec<Bind> = Vec::new();
        for (host, guest) in own.chain(named) {
            // A special file such as /dev/null already exists inside, or contains nothing.
            if !host.is_file() || binds.iter().any(|bind| bind.guest == guest) {
                continue;
            }
            if lies_in(&host, &self.untrusted).is_none() {
                binds.push(Bind { host, guest });
                continue;
            }
            let note = format!("`{}` is not asked for registries: the stage could change it", host.display());
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        binds
    }

    fn environment(&self, question: &Question) -> Vec<EnvRule> {
        let untrusted = |value: &OsStr| lies_in(Path::new(value), &self.untrusted).is_some();
        let passed = self.ask.host_env.iter().filter(|(name, value)| {
            let name = name.to_str().unwrap_or_default();
            let listed = question.pass.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == *pattern,
            });
            listed || (question.named.contains(&name) && !untrusted(value))
        });
        let passed = passed.map(|(name, _)| EnvRule::Pass(name.clone()));
        let set = question.set.iter().map(|(name, value)| EnvRule::Set(name.into(), value.into()));
        let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
        let proxy = question.proxy.iter().map(|name| EnvRule::Set(name.into(), proxy.clone().into()));
        passed.chain(set).chain(proxy).collect()
    }

    /// Returns the caller's environment without values that point into the project or the stage's trees.
    fn host_env(&self) -> BTreeMap<OsString, OsString> {
        let mut vars = self.ask.host_env.clone();
        for name in lists::TOOLCHAIN_VARIABLES.iter().chain(lists::CERTIFICATES) {
            let name = OsStr::new(name);
            if vars.get(name).is_some_and(|value| lies_in(Path::new(value), &self.untrusted).is_some()) {
                vars.remove(name);
            }
        }
        vars.insert("PATH".into(), self.path.clone());
        vars
    }
}

impl fmt::Debug for Discovery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discovery").field("untrusted", &self.untrusted).finish_non_exhaustive()
    }
}

/// Joins the two kinds of failure before they become [`Error`].
enum Failure {
    DiscoveryError(DiscoveryError),
    Run(Error),
}

impl From<DiscoveryError> for Failure {
    fn from(why: DiscoveryError) -> Self {
        Self::DiscoveryError(why)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Run(error)
    }
}

/// The result of one round.
struct RoundResult {
    ended: Ended,
    summary: ConnectionSummary,
    /// The most telling line of the client's output, escaped.
    said: String,
}

/// The requests of a client so far.
#[derive(Default)]
struct Hosts {
    targets: Vec<Target>,
    /// The ports of the first round, which the user configured, and the port of https.
    ports: Vec<Port>,
    /// Configured targets that a preset does not permit, each as a [`DiscoveryError::Special`].
    special: Vec<DiscoveryError>,
    notes: Vec<String>,
}

/// The verdict on one refused target.
enum Verdict {
    /// The target becomes a host of the client.
    Yes,
    /// The policy denies the target for another reason.
    Refused,
    /// The target is an address of a kind that no preset permits.
    Special(AddrClass),
    /// The target has a port that only an index names.
    OtherPort,
}

impl Hosts {
    /// Adds the targets that one round was refused. Returns whether any is new.
    fn learn(
        &mut self,
        summary: &ConnectionSummary,
        first: bool,
        own: &OwnAddrs,
    ) -> Result<bool, DiscoveryError> {
        let before = self.targets.len();
        for denied in &summary.denied {
            let shown = format!("{}:{}", denied.host, denied.port);
            let target = Target::parse(shown.as_bytes()).map_err(|_| DiscoveryError::Malformed)?;
            if denied.reason == Reason::Malformed {
                return Err(DiscoveryError::Malformed);
            }
            if self.targets.contains(&target) || self.special.iter().any(|it| it.is_about(&shown)) {
                continue;
            }
            match self.judge(&target, denied.reason, first, own) {
                Verdict::Yes => {
                    if target.port.get() == 80 {
                        self.note(format!(
                            "`{shown}` is asked by plain http: nothing proves who answers, and what it sends"
                        ));
                    }
                    self.targets.push(target);
                }
                Verdict::Special(class) => self.special(shown, class, denied),
                Verdict::Refused if first => {
                    return Err(DiscoveryError::Denied { target: shown, said: denied.said.clone() });
                }
                Verdict::Refused => self.note(format!("`{shown}` is not among its hosts: {}", denied.said)),
                Verdict::OtherPort => self.note(format!(
                    "`{shown}` is not among its hosts: an index leads to ports that its user has set, and to 443"
                )),
            }
        }
        if first {
            self.ports = self.targets.iter().map(|target| target.port).chain([Port::HTTPS]).collect();
        }
        if summary.denied_more > 0 || self.targets.len() > HOSTS {
            return Err(DiscoveryError::TooMany);
        }
        Ok(self.targets.len() > before)
    }

    /// Judges one target. In the first round it comes from the user's settings. Later it comes from an index: that permits no address,
    /// and no new port, where another service may listen.
    fn judge(&self, target: &Target, reason: Reason, first: bool, own: &OwnAddrs) -> Verdict {
        match (&target.host, reason) {
            (Host::Name(_), Reason::Default | Reason::Port | Reason::Scheme) => {
                if first || self.ports.contains(&target.port) { Verdict::Yes } else { Verdict::OtherPort }
            }
            (Host::Ip(ip), Reason::IpLiteral | Reason::PrivateIp | Reason::Port | Reason::Scheme)
                if first =>
            {
                special(*ip, own).map_or(Verdict::Yes, Verdict::Special)
            }
            _ => Verdict::Refused,
        }
    }

    fn special(&mut self, target: String, class: AddrClass, denied: &DeniedHost) {
        let special = DiscoveryError::Special { target, class, flag: denied.flag.clone() };
        self.note(special.to_string());
        self.special.push(special);
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns why a client that failed stopped, if a connection explains it.
    fn stop_reason(&self, summary: &ConnectionSummary) -> Option<String> {
        let denied = summary.denied.first().map(|denied| {
            let flag = denied.flag.as_ref().map(|flag| format!("; {flag}")).unwrap_or_default();
            format!("{}:{} {}{flag}", denied.host, denied.port, denied.said)
        });
        let failed = || summary.failed.first().map(|it| format!("{}:{} {}", it.host, it.port, it.said));
        denied.or_else(failed)
    }
}

/// Returns the kind of an address that a client's settings do not permit: all except public and private addresses of other machines. A
/// company's mirror may have a private address. This machine's own services, its link and its cloud's metadata are not mirrors, and a
/// settings file is easier to change than a policy.
fn special(ip: IpAddr, own: &OwnAddrs) -> Option<AddrClass> {
    match classify(ip) {
        class if class == AddrClass::Metadata || class.is_never_dialed() => Some(class),
        _ if own.contains(ip) => Some(AddrClass::Own),
        AddrClass::Public | AddrClass::Private | AddrClass::UniqueLocal => None,
        class => Some(class),
    }
}

/// Returns the rules for these targets, in the preset's name.
fn rules(preset: &Preset, targets: &[Target]) -> Result<Vec<PresetRule>, DiscoveryError> {
    let rule = |target: &Target| {
        let text = match &target.host {
            Host::Name(name) if target.port == Port::HTTPS => name.to_string(),
            _ => target.to_string(),
        };
        let spec = RuleSpec::parse(&text, Action::Allow, Allowances::default());
        let spec = spec.map_err(|_| DiscoveryError::Malformed)?;
        Ok(PresetRule { origin: preset.origin(&text), spec, text })
    };
    targets.iter().map(rule).collect()
}

/// Returns the trees whose programs and settings do not count: those that the stage may write, its working directory, and each repository
/// around it.
fn untrusted_trees(ask: &Ask<'_>, home: &Path) -> Result<Vec<PathBuf>, Error> {
    let plan = plan(Request {
        command: vec!["true".into()],
        cwd: ask.cwd.clone(),
        files: ask.files.clone(),
        host_env: ask.host_env.clone(),
        tty: Tty::Off,
        transparent: Transparent::Off,
        signing: Signing::Off,
        ..Request::default()
    })?;
    let writable = plan.mounts.iter().filter_map(|mount| match mount {
        Mount::Writable { host, .. } => Some(host.canonicalize().unwrap_or_else(|_| host.clone())),
        _ => None,
    });
    let cwd = ask.cwd.canonicalize().unwrap_or_else(|_| ask.cwd.clone());
    // Each repository counts: the one around a submodule belongs to the project, too.
    let repositories = cwd
        .ancestors()
        .filter(|dir| fs::symlink_metadata(dir.join(exeat_files::protected::GIT_LINK)).is_ok());
    // The home directory and the system belong to no project, and a stage that starts there cannot write to them.
    let is_project = |dir: &Path| {
        !home.starts_with(dir)
            && !lists::SYSTEM.iter().any(|tree| dir.starts_with(tree) || Path::new(tree).starts_with(dir))
    };
    let project = repositories.chain([cwd.as_path()]).filter(|dir| is_project(dir)).map(Path::to_path_buf);
    let mut trees: Vec<PathBuf> = writable.chain(project).collect();
    trees.sort();
    trees.dedup();
    Ok(trees)
}

/// Returns whether hiding a tree leaves everything that a client needs. Its programs and settings do not count either way.
fn can_be_masked(tree: &Path, home: &Path) -> bool {
    let needed = ["/tmp", "/usr", NOWHERE].map(Path::new);
    tree.exists() && !needed.iter().chain([&home]).any(|path| path.starts_with(tree))
}

/// Returns the tree that contains a path, with links resolved or not.
fn lies_in<'t>(path: &Path, trees: &'t [PathBuf]) -> Option<&'t Path> {
    let real = path.canonicalize();
    let within =
        |tree: &&PathBuf| path.starts_with(tree) || real.as_ref().is_ok_and(|real| real.starts_with(tree));
    trees.iter().find(within).map(PathBuf::as_path)
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Reads a pipe until it is closed, and returns the end of the text.
fn last_words(mut reader: PipeReader) -> Vec<u8> {
    let mut tail: Vec<u8> = Vec::new();
    let mut chunk = [0; SAID];
    while let Ok(count @ 1..) = reader.read(&mut chunk) {
        tail.extend_from_slice(chunk.get(..count).unwrap_or_default());
        let surplus = tail.len().saturating_sub(SAID);
        tail.drain(..surplus);
    }
    tail
}

/// Returns the first line that begins like an error, otherwise the last line: advice and log names follow an error.
fn telling_line(said: &[u8]) -> String {
    const ERRORS: [&str; 3] = ["error", "npm err", "e: "];
    let lines = said.split(|byte| matches!(byte, b'\n' | b'\r')).map(<[u8]>::trim_ascii);
    let mut lines = lines.filter(|line| !line.is_empty());
    let is_error = |line: &&[u8]| {
        let start =
            |word: &str| line.get(..word.len()).is_some_and(|it| it.eq_ignore_ascii_case(word.as_bytes()));
        ERRORS.into_iter().any(start)
    };
    let first = lines.clone().find(is_error);
    exeat_record::escape(first.or_else(|| lines.next_back()).unwrap_or_default(), SHOWN)
}

#[cfg(test)]
mod tests;

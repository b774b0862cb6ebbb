//! Flags, files, presets, effects and ceilings in, one [`Composed`] out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use exeat_files::protected::{self, LetThrough, NoName};
use exeat_files::request::{Bind, Bounds, Files, Work};
use exeat_policy::file::{self, BindSpec, PathSpec, PolicyFile, SandboxSection};
use exeat_policy::preset::{self, PresetError};
use exeat_policy::{
    Action, Cache, Ech, EffectKind, EffectSet, FileError, FileRole, Finding, Home, HostPort, Layers, Limits,
    Lint, Mode, Note, OnExcess, Origin, Policy, PolicyBuilder, Role, RuleError, RuleFault, StoredPolicy,
    Terms, TlsCheck, View, printable, shell_word,
};
use exeat_record::{Source, SourceRole};

use crate::clock::today;
use crate::elsewhere;
use crate::fault::{Fault, Place};
use crate::machine::{Machine, PlaceError};
use crate::reading::Reading;
use crate::request::{EnvRule, PolicyRequest};
use crate::seen::Seen;
use crate::services::Services;
use crate::text::{is_stdin, open, text_of};
use crate::upstream::{self, NextHop};

/// The project's policy file: used where a caller names it, and where a ceiling bounds it; only said to exist otherwise.
pub const PROJECT_FILE: &str = ".exeat.toml";

/// What messages and the record call a policy on stdin, and effects in an argument.
pub(crate) const STDIN: &str = "stdin";
pub(crate) const INLINE: &str = "--effects";
pub(crate) const INLINE_POLICY: &str = "--policy";

/// The site's ceiling.
pub(crate) const SITE_CEILING: &str = "/etc/exeat/policy.toml";

/// The user's, below the configuration directory.
pub(crate) const USER_CEILING: &str = "exeat/policy.toml";

/// What holds in the end.
#[derive(Debug)]
pub struct Composed {
    /// All rules of all layers.
    pub policy: Policy,
    /// Another proxy that connections are left to.
    pub next_hop: Option<NextHop>,
    /// What files and effects say besides rules.
    pub said: Said,
    /// What ceilings bound besides rules.
    pub bounds: Vec<Bounds>,
    /// The smallest limits of all ceilings.
    pub ceiling_limits: Limits,
    /// The effects, where their paths bound what others show and are not themselves what is shown.
    pub declared: Option<EffectSet>,
    /// The stage declares `Llm`.
    pub llm: bool,
    /// The files that were read, for the record.
    pub sources: Vec<Source>,
    /// What was looked at, read or not there, each from before that.
    pub seen: Vec<Seen>,
    /// What cannot be read a second time, if anything.
    pub once: Option<String>,
    /// What the user should know: what was found, used, narrowed.
    pub notes: Vec<String>,
    /// Why hosts of a preset may be missing: what the user should see last.
    pub doubts: Vec<String>,
    /// Variables that send the clients of the presets to other hosts.
    pub redirected_by: Vec<&'static str>,
}

/// What policy files and effects say besides rules.
#[derive(Debug, Default)]
pub struct Said {
    /// The stage's name.
    pub stage: Option<String>,
    /// The base view.
    pub view: Option<View>,
    /// Read-only binds; those of the caller as well.
    pub ro: Vec<Bind>,
    /// Writable binds; those of the caller as well.
    pub rw: Vec<Bind>,
    /// What is hidden; what the caller hides as well.
    pub mask: Vec<PathBuf>,
    /// Protected names that are let through.
    pub allow_write: Vec<LetThrough>,
    /// Rules about the environment.
    pub env: Vec<EnvRule>,
    /// The limits of the policies; ceilings may have smaller ones.
    pub limits: Limits,
    /// Where the stage works, if not where the caller is.
    pub work: Option<Work>,
    /// Whether SOCKS5 is offered.
    pub socks5: bool,
    /// The package caches.
    pub cache: Option<Cache>,
    /// Where the stage's HOME is.
    pub home: Option<Home>,
    /// What is held tighter than usual, or looser.
    pub sandbox: SandboxSection,
    /// Whether each line of the record is on the disk before what it describes is done.
    pub audit_sync: bool,
    /// What happens when the stage declares more than it is granted.
    pub on_excess: Option<OnExcess>,
    /// Services of this machine that the stage finds on its loopback; those of the caller as well.
    pub host_ports: Vec<HostPort>,
    /// Where a file names a path of the host, and by which key.
    places: Vec<(PathBuf, &'static str, String)>,
    /// Which file said what may be said once only.
    by: Vec<(&'static str, String)>,
}

impl Composed {
    /// All lines for the user, the doubts last.
    pub fn lines(&self) -> impl Iterator<Item = &String> {
        self.notes.iter().chain(&self.doubts)
    }

    /// The limits that hold: those of files, and no more than a ceiling's.
    pub fn limits(&self) -> Limits {
        self.said.limits.min(self.ceiling_limits)
    }

    /// What to tell the user of `exeat proxy`, which starts no stage that could be shown files or given variables.
    pub fn note_without_stage(&self) -> Option<String> {
        let Said { view, ro, rw, mask, env, limits, socks5, host_ports, sandbox, .. } = &self.said;
        let fs = view.is_some() || !(ro.is_empty() && rw.is_empty() && mask.is_empty());
        // Those of connections are for both.
        let of_stage = Limits { connections: None, connections_per_host: None, ..*limits };
        let limits = of_stage != Limits::default();
        let parts = [
            ("[network] socks5", *socks5),
            ("[network] host_port", !host_ports.is_empty()),
            ("[fs]", fs),
            ("[env]", !env.is_empty()),
            ("[limits]", limits),
            ("[sandbox]", *sandbox != SandboxSection::default()),
        ];
        let parts: Vec<_> = parts.iter().filter(|(_, said)| *said).map(|(name, _)| *name).collect();
        (!parts.is_empty())
            .then(|| format!("{} of the policy: for exeat run; not used here", parts.join(", ")))
    }
}

/// Composes what a caller says with what the site and the user allow at most.
///
/// # Errors
/// A [`Fault`] in what was said, or what the services say.
pub fn compose<S: Services>(
    args: &PolicyRequest,
    machine: &Machine,
    services: &S,
) -> Result<Composed, S::Error> {
    let mut reading = Reading::new(machine);
    if args.policy.iter().chain(&args.ceiling).filter(|path| is_stdin(path)).count() > 1 {
        return Err(Fault::input("`-` stands twice, and stdin is read once").into());
    }

    if args.via {
        elsewhere::flags(args)?;
    }
    let ceilings = reading.ceilings(&args.ceiling)?;
    let mut files = Vec::new();
    let mut stored = Vec::new();
    for path in &args.policy {
        files.push(reading.policy(path, &mut stored)?);
    }
    files.extend(reading.project(&args.policy, &ceilings)?);
    let mut grants_are_named = !files.is_empty();
    let set = reading.settings(&args.set)?;
    let mut upstream_set = None;
    if let Some(mut set) = set {
        for Named { file, .. } in &mut files {
            file.yield_to(&set.file);
        }
        upstream_set = set.file.upstream.take();
        grants_are_named |=
            !(set.file.rules.is_empty() && set.file.presets.is_empty() && set.file.host_ports.is_empty());
        files.push(set);
    }
    if args.via {
        elsewhere::files(&files, &ceilings)?;
    }
    let effects = match &args.effects {
        Some(text) => Some(reading.effects(text)?),
        None => None,
    };
    if let Some(effects) = &effects {
        allowed_kinds(effects, files.iter().chain(&ceilings))?;
        hosts_required(effects, &ceilings)?;
    }

    let terms = terms(args, &files, &ceilings)?;
    let next_hop = upstream::next_hop(
        args.upstream_proxy.as_deref(),
        upstream_set.as_ref(),
        &files,
        &ceilings,
        machine,
        &mut reading.notes,
    )?;
    let mut said = Said::default();
    let mut grants = PolicyBuilder::new();
    // What is set on the command line holds for the rules that stand there, too.
    let is_set = |key: &str| {
        let value = |set: &String| {
            set.split_once('=').filter(|(set, _)| set.trim() == key).map(|(_, value)| value.trim() == "true")
        };
        args.set.iter().filter_map(value).next_back() == Some(true)
    };
    grants.allow_any(is_set("network.allow_any")).allow_shared_suffix(is_set("network.allow_shared_suffix"));
    rules(args, &mut grants, &mut reading)?;
    let mut names: Vec<(String, Option<Origin>)> =
        args.preset.iter().map(|name| (name.clone(), None)).collect();
    let granted = !(args.allow.is_empty()
        && args.tls_off.is_empty()
        && args.host_port.is_empty()
        && !grants_are_named
        && names.is_empty());
    for Named { mut file, base, shown, weak } in files {
        if weak {
            file.stage = file.stage.filter(|_| said.stage.is_none());
            file.fs.view = file.fs.view.filter(|_| said.view.is_none());
        }
        file.apply(&mut grants);
        names.extend(file.presets.iter().map(|(name, origin)| (name.clone(), Some(origin.clone()))));
        said.add(file, &base, &shown, machine)?;
    }

    // Hosts and files each: declared and granted is what is in both; alone, the effects are the grants.
    let of_files = !args.ro.is_empty() || !args.rw.is_empty();
    said.ro.extend_from_slice(&args.ro);
    said.rw.extend_from_slice(&args.rw);
    said.mask.extend_from_slice(&args.mask);
    said.host_ports.extend(&args.host_port);
    let mut declared = Declared::default();
    if let Some(effects) = &effects {
        // Alone they are declared as well, so that who refuses is named as it is: no flag would help.
        declared.hosts = Some(effects);
        if !granted {
            grants.add_effects(effects);
        }
        if granted || of_files {
            declared.files = Some(effects.clone());
        } else {
            said.show(effects, machine)?;
        }
    }

    let bounds = ceilings.iter().map(|ceiling| bounds_of(ceiling, machine)).collect::<Result<Vec<_>, _>>()?;
    let ceiling_limits =
        ceilings.iter().fold(Limits::default(), |limits, ceiling| limits.min(ceiling.file.limits));
    let stored = LayersOfRecord::of(stored, declared.hosts.is_some(), args.lock.is_some())?;
    let above = Above { declared: declared.hosts, ceilings: &ceilings, stored, terms };
    if let Some(hop) = &next_hop {
        // Before anything else is asked or started.
        services.check_upstream(&above.over(PolicyBuilder::new(), None, Mode::Enforce)?, hop.target())?;
    }
    reading.presets(
        &names,
        &mut grants,
        &above,
        &said,
        (&bounds, ceiling_limits),
        (services, args.asks_anew),
    )?;
    let lock = args.lock.as_ref().map(|at| reading.lock(at, said.stage.as_deref())).transpose()?;
    let policy = above.over(grants, lock, terms.mode)?;
    reading.notes.extend(lost_flags(&policy));
    if let Some(effects) = &effects {
        reading.excess(&policy, said.on_excess.unwrap_or_default(), effects)?;
    }
    let llm = effects.as_ref().is_some_and(|effects| effects.has(EffectKind::Llm));
    let Reading { sources, seen, once, notes, doubts, redirected_by, .. } = reading;
    let declared = declared.files;
    Ok(Composed {
        policy,
        next_hop,
        said,
        bounds,
        ceiling_limits,
        declared,
        llm,
        sources,
        seen,
        once,
        notes,
        doubts,
        redirected_by,
    })
}

/// Reads what every run here reads unasked: the ceilings of this machine and this user, and the project's policy within them. Returns
/// the files.
///
/// # Errors
/// A [`Fault`] in one of them.
pub fn standing(machine: &Machine) -> Result<Vec<String>, Fault> {
    let mut reading = Reading::new(machine);
    let ceilings = reading.ceilings(&[])?;
    for ceiling in &ceilings {
        bounds_of(ceiling, machine)?;
    }
    let project = reading.project(&[], &ceilings)?;
    Ok(ceilings.into_iter().chain(project).map(|named| named.shown).collect())
}

/// The effects, where they bound what others grant.
#[derive(Default)]
struct Declared<'a> {
    hosts: Option<&'a EffectSet>,
    files: Option<EffectSet>,
}

/// A file that was read, and where its relative paths start.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) file: PolicyFile,
    pub(crate) base: PathBuf,
    pub(crate) shown: String,
    /// Nobody named it: what a named file says once stands.
    pub(crate) weak: bool,
}

/// What stands above the grants.
pub(crate) struct Above<'a> {
    declared: Option<&'a EffectSet>,
    ceilings: &'a [Named],
    stored: LayersOfRecord,
    terms: Terms,
}

/// What stood above the grants of policies that were stored beside records.
#[derive(Default)]
struct LayersOfRecord {
    ceilings: Vec<(String, PolicyBuilder)>,
    declared: Option<PolicyBuilder>,
    lock: Option<(String, PolicyBuilder)>,
}

impl LayersOfRecord {
    /// Ceilings add up. Of what a stage declared and of locks there is one in a policy: of two, nobody knows which is meant.
    fn of(stored: Vec<(String, StoredPolicy)>, mut declared: bool, mut locked: bool) -> Result<Self, Fault> {
        let mut all = Self::default();
        for (shown, policy) in stored {
            let twice = |what: &str| {
                Fault::input(format!(
                    "`{}` has {what} of its own, and one was given already",
                    printable(&shown)
                ))
            };
            let StoredPolicy { ceilings, declared: of_stage, lock, .. } = policy;
            if of_stage.is_some() && std::mem::replace(&mut declared, true) {
                return Err(twice("what the stage declared"));
            }
            if lock.is_some() && std::mem::replace(&mut locked, true) {
                return Err(twice("a lock"));
            }
            all.declared = of_stage.or(all.declared);
            all.lock = lock.map(|rules| (shown.clone(), rules)).or(all.lock);
            all.ceilings.extend(ceilings.into_iter().map(|rules| (shown.clone(), rules)));
        }
        Ok(all)
    }
}

impl Above<'_> {
    pub(crate) fn over(
        &self,
        grants: PolicyBuilder,
        lock: Option<(String, PolicyBuilder)>,
        mode: Mode,
    ) -> Result<Policy, Fault> {
        let declared = self.declared.map(|effects| {
            let mut rules = PolicyBuilder::new();
            rules.add_effects(effects);
            rules
        });
        let declared = declared.or_else(|| self.stored.declared.clone());
        let lock = lock.or_else(|| self.stored.lock.clone());
        let mut ceilings = self.stored.ceilings.clone();
        for Named { file, shown, .. } in self.ceilings {
            let mut rules = PolicyBuilder::new();
            rules.leave_upstream_open(file.upstream.is_some() || !file.network);
            file.apply(&mut rules);
            for (name, origin) in &file.presets {
                for group in groups(name, Some(origin))? {
                    group.add_to(&mut rules);
                }
            }
            ceilings.push((shown.clone(), rules));
        }
        Ok(Layers { grants, declared, ceilings, lock, terms: Terms { mode, ..self.terms } }.build())
    }
}

/// Reads a policy file that may name our presets.
pub fn parse(text: &str, shown: &str, role: FileRole) -> Result<PolicyFile, Fault> {
    PolicyFile::parse(text, shown, role, &|| preset::names().collect()).map_err(from_file)
}

/// `--allow`, `--deny`, `--tls-off` and `--host-port`.
fn rules(args: &PolicyRequest, grants: &mut PolicyBuilder, reading: &mut Reading<'_>) -> Result<(), Fault> {
    for rule in &args.tls_off {
        if rule.starts_with(['!', '@']) {
            return Err(Fault::input(format!("`--tls-off {rule}`: one allow rule is needed here")));
        }
        let note = Note { tls: TlsCheck::Off, ..Note::default() };
        add(grants, "--tls-off", rule, Action::Allow, note)?;
    }
    for port in &args.host_port {
        port.grant(grants, port.flag());
    }
    for (flag, action, rules) in
        [("--allow", Action::Allow, &args.allow), ("--deny", Action::Deny, &args.deny)]
    {
        for rule in rules {
            match rule.strip_prefix('@') {
                Some("") => {
                    return Err(Fault::input(format!("`{flag} @`: the path of a file follows the `@`")));
                }
                Some(path) => {
                    reading.look(Path::new(path));
                    let text = text_of(open(Path::new(path), path, reading.machine)?, path)?;
                    for rule in file::parse_rule_lines(&text, path, action).map_err(from_file)? {
                        rule.apply(grants);
                    }
                    reading.read(SourceRole::Rules, path, &text);
                }
                None => add(grants, flag, rule, action, Note::default())?,
            }
        }
    }
    Ok(())
}

/// A line for each allow rule of a flag of which a ceiling, or what the stage declares, leaves nothing.
fn lost_flags(policy: &Policy) -> Vec<String> {
    // A lock is meant to leave less than the flags, and names what it has.
    let is_bounded = policy.layers().iter().any(|layer| layer.role() != Role::Grants);
    if !is_bounded || policy.layers().iter().any(|layer| layer.role() == Role::Lock) {
        return Vec::new();
    }
    let is_lost = |finding: &Finding<'_>| {
        finding.lint == Lint::Unreachable
            && finding.rule.action == Action::Allow
            && matches!(finding.rule.origin, Origin::Flag { .. })
    };
    let said = |finding: Finding<'_>| {
        format!("{} {}: {finding}", finding.rule.origin, shell_word(&finding.rule.text))
    };
    policy.review(today()).into_iter().filter(is_lost).map(said).collect()
}

/// What flags and files say of all rules, as far as the ceilings leave it.
fn terms(args: &PolicyRequest, files: &[Named], ceilings: &[Named]) -> Result<Terms, Fault> {
    let any = |says: fn(&PolicyFile) -> bool| files.iter().find(|named| says(&named.file));
    let refused_by = |says: fn(&PolicyFile) -> bool| ceilings.iter().find(|named| says(&named.file));
    let forbidden = |what: &str, by: Option<&Named>, ceiling: &Named| {
        let by = by.map(|file| format!("{}: ", file.shown)).unwrap_or_default();
        Fault::input(format!("{by}{what} is forbidden by the ceiling {}", ceiling.shown))
    };

    let reporting = any(|file| file.mode == Some(Mode::Report));
    let mode = args.mode.unwrap_or(if reporting.is_some() { Mode::Report } else { Mode::Enforce });
    if mode == Mode::Report
        && let Some(ceiling) = refused_by(|file| file.report == Some(false))
    {
        let by = reporting.filter(|_| args.mode.is_none());
        let failure = forbidden("report mode", by, ceiling);
        return Err(failure.hint("--mode enforce runs with what the rules allow"));
    }
    let translating = any(|file| file.nat64 == Some(true));
    if translating.is_some()
        && let Some(ceiling) = refused_by(|file| file.nat64 == Some(false))
    {
        return Err(forbidden("nat64", translating, ceiling));
    }
    let refusing = any(|file| file.ech == Some(Ech::Refuse)).map(|_| Ech::Refuse);
    let bound = refused_by(|file| file.ech == Some(Ech::Refuse)).map(|_| Ech::Refuse);
    let ech = bound.or(refusing).unwrap_or_default();
    Ok(Terms { mode, nat64: translating.is_some(), ech })
}

/// N30: the kinds that the operator lets a stage declare: those of all lists.
fn allowed_kinds<'n>(effects: &EffectSet, lists: impl Iterator<Item = &'n Named>) -> Result<(), Fault> {
    for Named { file, shown, .. } in lists {
        let Some(allowed) = &file.effects.allow else { continue };
        let allowed = allowed.iter().copied().collect();
        if let Some(effect) = effects.beyond(&allowed).next() {
            let (kind, shown) = (effect.kind(), printable(shown));
            let why = format!("the stage declares `{kind}`, which `effects.allow` of {shown} does not list");
            return Err(Fault::input(why));
        }
    }
    Ok(())
}

fn hosts_required(effects: &EffectSet, ceilings: &[Named]) -> Result<(), Fault> {
    let requires = ceilings.iter().find(|ceiling| ceiling.file.require_hosts == Some(true));
    match requires {
        Some(ceiling) if effects.has(EffectKind::Network) => Err(Fault::input(format!(
            "the stage declares `Network` without naming hosts, which the ceiling {} refuses",
            ceiling.shown
        ))
        .hint(r#"declare them: {"effect": "NetworkHosts", "hosts": ["api.example.com"]}"#)),
        _ => Ok(()),
    }
}

pub(crate) fn groups(name: &str, origin: Option<&Origin>) -> Result<Vec<&'static preset::Preset>, Fault> {
    preset::expand(name).map_err(|error| from_preset(&error, origin))
}

/// Says which preset there is not, and where it was named.
pub fn from_preset(error: &PresetError, origin: Option<&Origin>) -> Fault {
    let place = origin.map(|origin| format!("{origin}: ")).unwrap_or_default();
    let failure = Fault::input(format!("{place}{error}"));
    match error.meant() {
        Some(meant) => failure.hint(format!("probably meant: {meant}")),
        None if matches!(error, PresetError::Unknown { name, .. } if name == "auto") => {
            failure.hint("auto is for --preset on the command line only")
        }
        None if matches!(error, PresetError::Unknown { name, .. } if name.contains(',')) => {
            failure.hint("one name each: -p A -p B")
        }
        None => failure.hint("exeat preset lists them"),
    }
}

fn bounds_of(ceiling: &Named, machine: &Machine) -> Result<Bounds, Fault> {
    let Named { file, base, shown, .. } = ceiling;
    let places = |binds: &Option<Vec<BindSpec>>, key: &str| {
        let Some(binds) = binds else { return Ok(None) };
        let placed = binds.iter().map(|bind| machine.place(&bind.host, base));
        placed
            .collect::<Result<Vec<_>, _>>()
            .map(Some)
            .map_err(|error| place_error(&format!("{shown}: fs.{key}"), error))
    };
    let mask = file.fs.mask.iter().map(|path| machine.place(path, base));
    let key = |key: &str| format!("{shown}: fs.{key}");
    Ok(Bounds {
        name: shown.clone(),
        view: file.fs.view,
        ro: places(&file.fs.ro, "ro")?,
        rw: places(&file.fs.rw, "rw")?,
        mask: mask
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| place_error(&format!("{shown}: fs.mask"), error))?,
        allow_write: file
            .fs
            .allow_write
            .as_ref()
            .map(|names| names_to_write(names, &key("allow_write")))
            .transpose()?,
        env: file.env.pass.as_ref().map(|names| names.iter().map(Into::into).collect()),
    })
}

/// Calls [`agree`] for each value that is said.
macro_rules! agree_all {
    ($said:ident, $shown:ident, $($what:literal: $known:expr, $new:expr;)*) => {$(
        if let Some(new) = $new {
            agree(&mut $said.by, &mut $known, new, $shown, $what)?;
        }
    )*};
}

impl Said {
    /// What the stage sees and changes, for whoever must not trust what it could have changed.
    pub(crate) fn files(&self, bounds: &[Bounds]) -> Files {
        let work = self.work.iter().filter_map(|work| match work {
            Work::Scratch => None,
            Work::Host(path) => Some(Bind { host: path.clone(), guest: path.clone() }),
        });
        Files {
            view: self.view.unwrap_or_default(),
            ro: self.ro.clone(),
            rw: self.rw.iter().cloned().chain(work).collect(),
            mask: self.mask.clone(),
            bounds: bounds.to_vec(),
            ..Files::default()
        }
    }

    /// The first path that a file names and that is not there. The runner asks as well, and knows no file and no line.
    pub fn missing(&self) -> Option<Fault> {
        let is_missing =
            |path: &Path| fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        let mut missing = self.places.iter().filter(|(path, ..)| is_missing(path));
        let (path, key, place) = missing.next()?;
        let more = match missing.count() {
            0 => String::new(),
            more => format!(" (and {more} more of the policy's paths)"),
        };
        let failure =
            Fault::input(format!("{place}: there is no `{}` for `{key}` to show{more}", path.display()));
        let make = shell_word(&path.display().to_string());
        Some(failure.hint(format!("mkdir -p {make}; or leave it out")))
    }

    /// The paths of effects, where they are granted as they stand.
    fn show(&mut self, effects: &EffectSet, machine: &Machine) -> Result<(), Fault> {
        for (list, paths, tag) in [
            (&mut self.ro, effects.fs_read().collect::<Vec<_>>(), "FsRead"),
            (&mut self.rw, effects.fs_write().collect::<Vec<_>>(), "FsWrite"),
        ] {
            for path in paths {
                let path = machine.place(path, &machine.base).map_err(|error| place_error(tag, error))?;
                list.push(Bind { host: path.clone(), guest: path });
            }
        }
        Ok(())
    }

    fn add(&mut self, file: PolicyFile, base: &Path, shown: &str, machine: &Machine) -> Result<(), Fault> {
        if let Some(stage) = file.stage {
            agree(&mut self.by, &mut self.stage, stage, shown, "the stage's name")?;
        }
        if let Some(view) = file.fs.view {
            agree(&mut self.by, &mut self.view, view, shown, "the view")?;
        }
        for (list, binds, key) in [(&mut self.ro, file.fs.ro, "ro"), (&mut self.rw, file.fs.rw, "rw")] {
            for bind in binds.into_iter().flatten() {
                let line = bind.line.map(|line| format!(":{line}")).unwrap_or_default();
                let bind = machine.place_bind(&bind, base);
                let bind = bind.map_err(|error| place_error(&format!("{shown}: fs.{key}"), error))?;
                self.places.push((bind.host.clone(), key, format!("{shown}{line}")));
                list.push(bind);
            }
        }
        for path in &file.fs.mask {
            let path = machine.place(path, base);
            self.mask.push(path.map_err(|error| place_error(&format!("{shown}: fs.mask"), error))?);
        }
        if let Some(work) = file.work {
            let work = match work {
                file::Work::Scratch => Work::Scratch,
                file::Work::Host(path) => Work::Host(
                    machine
                        .place(&path, base)
                        .map_err(|error| place_error(&format!("{shown}: work_host"), error))?,
                ),
            };
            agree(&mut self.by, &mut self.work, work, shown, "where the stage works")?;
        }
        let names = file.fs.allow_write.unwrap_or_default();
        self.allow_write.extend(names_to_write(&names, &format!("{shown}: fs.allow_write"))?);
        self.socks5 |= file.socks5 == Some(true);
        self.audit_sync |= file.audit_sync == Some(true);
        self.hold((file.fs.cache, file.fs.home), file.effects.on_excess, file.sandbox, shown)?;
        self.host_ports.extend(file.host_ports.iter().map(|(port, _)| port));
        self.env.extend(file.env.pass.into_iter().flatten().map(|name| EnvRule::Pass(name.into())));
        for (name, value) in file.env.set {
            let value = match value.parse::<PathSpec>() {
                Ok(path @ PathSpec::Home(_)) => {
                    let at = || format!("{shown}: env.set.{name}");
                    machine.place(&path, base).map_err(|error| place_error(&at(), error))?.into_os_string()
                }
                _ => value.into(),
            };
            self.env.push(EnvRule::Set(name.into(), value));
        }
        // Several policies are a union everywhere else; of limits each one is meant.
        self.limits = self.limits.min(file.limits);
        Ok(())
    }

    /// Takes words that two files must agree about.
    fn hold(
        &mut self,
        (cache, home): (Option<Cache>, Option<Home>),
        on_excess: Option<OnExcess>,
        sandbox: SandboxSection,
        shown: &str,
    ) -> Result<(), Fault> {
        agree_all! { self, shown,
            "`fs.cache`": self.cache, cache;
            "`fs.home`": self.home, home;
            "`effects.on_excess`": self.on_excess, on_excess;
            "`sandbox.bridge`": self.sandbox.bridge, sandbox.bridge;
            "`sandbox.loopback`": self.sandbox.loopback, sandbox.loopback;
            "`sandbox.unix_sockets`": self.sandbox.unix_sockets, sandbox.unix_sockets;
            "`sandbox.transparent`": self.sandbox.transparent, sandbox.transparent;
            "`sandbox.debuggable`": self.sandbox.debuggable, sandbox.debuggable;
            "`sandbox.tty`": self.sandbox.tty, sandbox.tty;
            "`sandbox.nested`": self.sandbox.nested, sandbox.nested;
        }
        Ok(())
    }
}

/// Two files may say the same; where they differ, only the user knows which one is meant.
fn agree<T: PartialEq>(
    by: &mut Vec<(&'static str, String)>,
    known: &mut Option<T>,
    new: T,
    shown: &str,
    what: &'static str,
) -> Result<(), Fault> {
    if known.as_ref().is_some_and(|known| *known != new) {
        let first = by.iter().find(|(about, _)| *about == what).map_or("", |(_, file)| file);
        return Err(Fault::input(format!("`{first}` and `{shown}` differ about {what}"))
            .hint("leave it to one of the files"));
    }
    *known = Some(new);
    by.push((what, shown.to_owned()));
    Ok(())
}

fn add(grants: &mut PolicyBuilder, flag: &str, rule: &str, action: Action, note: Note) -> Result<(), Fault> {
    grants
        .add(rule, action, Origin::Flag { flag: flag.into() }, note)
        .map_err(|error| from_rule(flag, &error))
}

fn from_rule(flag: &str, error: &RuleError) -> Fault {
    let before = error.text().get(..error.span().start).unwrap_or_default();
    let place = Place {
        file: flag.to_owned(),
        line: None,
        column: Some(u32::try_from(before.chars().count() + 1).unwrap_or(u32::MAX)),
        error: error.to_string(),
        meant: error.meant().map(str::to_owned),
    };
    let failure = Fault::input(format!("{flag}: {error}")).at(vec![place]);
    match error.meant() {
        Some(meant) => {
            // Inside `--deny` a marked text would be refused again, and under `--allow` it denies.
            failure.hint(format!("probably meant: {flag} {}", shell_word(meant)))
        }
        None if *error.fault() == RuleFault::Any => {
            failure.hint("--set network.allow_any=true permits it here")
        }
        None if matches!(error.fault(), RuleFault::PublicSuffix | RuleFault::SharedSuffix) => {
            failure.hint("--set network.allow_shared_suffix=true permits it here")
        }
        None if error.text().contains([',', ' ']) => {
            failure.hint(format!("one rule each: {flag} RULE {flag} RULE; commas are for ports"))
        }
        None => failure,
    }
}

pub(crate) fn from_file(error: FileError) -> Fault {
    let places = error.problems().iter().map(|problem| Place {
        file: error.path().to_owned(),
        line: Some(problem.line),
        column: Some(problem.column),
        error: problem.message.clone(),
        meant: problem.meant.clone(),
    });
    Fault::input(error.to_string()).at(places.collect())
}

/// Reads protected names that are to be let through. `place`: where they stand, for a message.
pub fn names_to_write(names: &[String], place: &str) -> Result<Vec<LetThrough>, Fault> {
    names.iter().map(|name| name_to_write(name, place)).collect()
}

fn name_to_write(name: &str, place: &str) -> Result<LetThrough, Fault> {
    name.parse().map_err(|error: NoName| {
        let shown = exeat_record::escape(name.as_bytes(), 256);
        let failure = Fault::input(format!("{place}: `{shown}`: {error}"));
        let known = || protected::names().map(|(name, _)| name);
        let lies_in = |known: &&str| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
        match known().find(lies_in).or_else(|| exeat_policy::file::nearest(name, known())) {
            Some(meant) => failure.hint(format!("probably meant: {meant}")),
            None => failure.hint(
                "docs/files.md lists the protected names; .vscode is one, .claude/commands lies in one",
            ),
        }
    })
}

pub(crate) fn place_error(what: &str, error: PlaceError) -> Fault {
    Fault::input(what).because(error)
}

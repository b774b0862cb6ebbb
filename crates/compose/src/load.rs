//! Composes flags, files, presets, effects and ceilings into one [`Composed`].

use std::path::Path;

use exeat_files::fault::{excess_hint, excess_message};
use exeat_files::request::{Bounds, Files};
use exeat_policy::file::{self, SandboxSection, UpstreamSection};
use exeat_policy::{
    Action, Cache, EffectKind, Home, HostPort, Limit, Limits, Lint, Mode, Note, Origin, Policy,
    PolicyBuilder, Remark, Role, RuleError, RuleFault, StoredPolicy, TlsCheck, shell_word,
};
use exeat_record::{Source, SourceRole, today};

use crate::fault::{Fault, Position};
use crate::file_state::FileState;
use crate::flags::{flag_faults, join_faults};
use crate::layers::{self, StoredLayers, UpperLayers, kinds_beyond, terms};
use crate::machine::Machine;
use crate::named::{LoadedFile, from_file};
use crate::reading::Reading;
use crate::request::{EnvRule, PolicyRequest, Site};
use crate::services::Services;
use crate::settings::{Settings, bounds_of};
use crate::text::{is_stdin, open, text_of};
use crate::upstream::{self, NextHop};
use crate::via;

/// The bounds that apply to a run.
#[derive(Debug)]
pub struct Composed {
    /// The rules of all layers.
    pub policy: Policy,
    /// The proxy that connections go through.
    pub next_hop: Option<NextHop>,
    /// The files that the stage sees and may write, with the bounds on them.
    pub files: Files,
    /// The rules about the environment, in order.
    pub environment: Vec<EnvRule>,
    /// The limits. Those of the caller replace those of files, and a ceiling bounds both.
    pub limits: Limits,
    /// The settings of `[sandbox]`.
    pub sandbox: SandboxSection,
    /// The package caches, if anything sets them; [`files`](Self::files) contains the default.
    pub cache: Option<Cache>,
    /// The stage's HOME, if anything sets it.
    pub home: Option<Home>,
    /// Services of this machine that the stage reaches on its own loopback.
    pub host_ports: Vec<HostPort>,
    /// Whether SOCKS5 is offered.
    pub socks5: bool,
    /// Whether each line of the record reaches the disk before the action that it describes.
    pub audit_sync: bool,
    /// The stage's name.
    pub stage: Option<String>,
    /// Whether the stage declares `Llm`.
    pub llm: bool,
    /// The files that were read, for the record.
    pub sources: Vec<Source>,
    /// The state of each inspected path before it was read; also of paths without a file.
    pub inspected: Vec<FileState>,
    /// The name of a source that cannot be read a second time, if there is one.
    pub once: Option<String>,
    /// Lines for the user about files found, used or narrowed.
    pub notes: Vec<String>,
    /// Lines that the user should see last: why hosts of a preset may be missing.
    pub doubts: Vec<String>,
    /// Variables that send the clients of the presets to other hosts.
    pub redirected_by: Vec<&'static str>,
    /// The error for a path that a file names and that does not exist: a run cannot be planned.
    pub missing: Option<Fault>,
    /// The parts of the policy that apply only to a stage.
    pub stage_only: Vec<&'static str>,
}

impl Composed {
    /// Returns all lines for the user, the doubts last.
    pub fn lines(&self) -> impl Iterator<Item = &String> {
        self.notes.iter().chain(&self.doubts)
    }

    /// Hides the file or the variable that holds the next hop's credentials from the stage, whatever the policy says.
    pub fn keep_secrets(&mut self) {
        let what = "the credentials of the upstream proxy";
        if let Some(name) = self.next_hop.as_ref().and_then(NextHop::secret_variable) {
            let is_it = |rule: &EnvRule| matches!(rule, EnvRule::Pass(passed) if passed == name);
            if self.environment.iter().any(is_it) {
                self.notes.push(format!("the variable `{name}` holds {what}: it is not passed"));
            }
            self.environment.push(EnvRule::Remove(name.into()));
        }
        if let Some(path) = self.next_hop.as_ref().and_then(NextHop::secret_file) {
            let mask = vec![path.to_path_buf()];
            self.files.bounds.push(Bounds { name: what.into(), mask, ..Bounds::default() });
        }
    }
}

/// Composes the request of a caller with the bounds of the site and the user.
///
/// # Errors
/// Returns a [`Fault`] in the request, also if a stage declares more than it is granted, or an error of the services.
pub fn compose<S: Services>(
    args: &PolicyRequest,
    machine: &Machine,
    services: &S,
) -> Result<Composed, S::Error> {
    let composed = compose_for_run(args, machine, services)?;
    match composed.files.declared.as_ref().map(|declared| declared.beyond.as_slice()) {
        None | Some([]) => Ok(composed),
        Some(beyond) => {
            Err(Fault { hint: excess_hint(beyond), ..Fault::input(excess_message(beyond)) }.into())
        }
    }
}

/// Composes like [`compose`], for a caller that plans a run of a stage: its view refuses what the stage declares beyond its grants, in one
/// fault with the paths.
///
/// # Errors
/// Returns a [`Fault`] in the request, or an error of the services.
pub fn compose_for_run<S: Services>(
    args: &PolicyRequest,
    machine: &Machine,
    services: &S,
) -> Result<Composed, S::Error> {
    if let Some(fault) = join_faults(flag_faults(args)) {
        return Err(fault.into());
    }
    let mut reading = Reading::new(machine);
    if args.policy.iter().chain(&args.ceiling).filter(|path| is_stdin(path)).count() > 1 {
        return Err(Fault::input("`-` stands twice, and stdin is read once").into());
    }

    if args.via {
        via::refuse_flags(args)?;
    }
    let FilesRead { ceilings, files, stored, upstream_set, grants_are_named } =
        read_files(args, &mut reading)?;
    if args.via {
        via::refuse_files(&files, &ceilings)?;
    }
    let declaration = args.effects.as_ref().map(|effects| reading.effects(effects)).transpose()?;
    let effects = declaration.as_ref().map(|declaration| &declaration.set);
    let kinds = effects.map(|effects| kinds_beyond(effects, &files, &ceilings));

    let terms = terms(args, &files, &ceilings)?;
    let next_hop = upstream::next_hop(
        (args.next_hop.as_ref(), args.upstream_proxy.as_deref()),
        upstream_set.as_ref(),
        &files,
        &ceilings,
        machine,
        &mut reading.notes,
    )?;
    let files_with_rules: Vec<String> = files.iter().map(|file| file.shown.clone()).collect();
    let mut said = Settings::default();
    let whole = args.layers.clone().unwrap_or_default();
    let mut grants = if args.layers.is_some() { whole.grants } else { args.rules.clone() };
    // A key that is set on the command line applies to the rules there, too.
    grants
        .allow_any(is_set(args, "network.allow_any"))
        .allow_shared_suffix(is_set(args, "network.allow_shared_suffix"));
    rules(args, &mut grants, &mut reading)?;
    let mut names: Vec<(String, Option<Origin>)> =
        args.preset.iter().map(|name| (name.clone(), None)).collect();
    let granted = !(args.allow.is_empty()
        && args.tls_off.is_empty()
        && args.host_port.is_empty()
        && !grants_are_named
        && names.is_empty());
    for LoadedFile { mut file, base, shown, weak } in files {
        if weak {
            file.stage = file.stage.filter(|_| said.stage.is_none());
            file.fs.view = file.fs.view.filter(|_| said.view.is_none());
        }
        file.apply(&mut grants);
        names.extend(file.presets.iter().map(|(name, origin)| (name.clone(), Some(origin.clone()))));
        said.add(file, &base, &shown, machine)?;
    }

    let mut sandbox = args.sandbox.or(&said.sandbox);
    sandbox.backend = layers::backend(args.sandbox.backend, said.backend(), &ceilings)?;
    // With grants, the stage gets what is both declared and granted. Without grants, the effects are the grants.
    said.ro.extend_from_slice(&args.ro);
    said.rw.extend_from_slice(&args.rw);
    let of_files = !said.ro.is_empty() || !said.rw.is_empty();
    said.mask.extend_from_slice(&args.mask);
    said.host_ports.extend(&args.host_port);
    let declaration_grants = !(granted || of_files);
    if let Some(effects) = effects {
        if !granted {
            grants.add_effects(effects);
        }
        if declaration_grants {
            said.show(effects, machine)?;
        }
    }
    said.name_places(args, declaration.as_ref(), machine)?;

    reading.notes.extend(lowered_limits(args.limits, &ceilings));
    let bounds = ceilings.iter().map(|ceiling| bounds_of(ceiling, machine)).collect::<Result<Vec<_>, _>>()?;
    let ceiling_limits =
        ceilings.iter().fold(Limits::default(), |limits, ceiling| limits.min(ceiling.file.limits));
    let own = (whole.ceilings, whole.declared, whole.lock);
    let stored = StoredLayers::new(own, stored, effects.is_some(), args.lock.is_some())?;
    // Effects without grants are declared as well, so that a refusal names the declaration: no flag would help.
    let above = UpperLayers { declared: effects, ceilings: &ceilings, stored, terms };
    if let Some(hop) = &next_hop {
        // This check comes before anything else is asked or started.
        services.check_upstream(&above.policy(PolicyBuilder::new(), None, Mode::Enforce)?, hop.target())?;
    }
    reading.presets(
        &names,
        &mut grants,
        &above,
        &said,
        (&bounds, ceiling_limits),
        (services, args.asks_anew),
    )?;
    let stage = args.stage.clone().or(said.stage.take());
    let lock = args.lock.as_ref().map(|path| reading.lock(path, stage.as_deref())).transpose()?;
    let policy = above.policy(grants, lock, terms.mode)?;
    reading.notes.extend(lost_rules(&policy, &files_with_rules));
    let mut beyond = kinds.unwrap_or_default();
    if let Some(effects) = effects {
        beyond.extend(reading.hosts_beyond(&policy, said.on_excess.unwrap_or_default(), effects));
    }
    let llm = effects.is_some_and(|effects| effects.has(EffectKind::Llm));
    let who_grants = (granted, declaration_grants);
    let declared = declaration
        .as_ref()
        .map(|declaration| declaration.place(beyond, said.on_excess, who_grants, args, machine))
        .transpose()?;
    let (missing, stage_only) = (said.missing(), said.stage_only());
    let deciding = machine.take_deciding();
    reading.check_deciding(&deciding)?;
    let Reading { sources, inspected, once, notes, doubts, redirected_by, .. } = reading;
    let (cache, home) = (args.cache.or(said.cache), args.home.or(said.home));
    Ok(Composed {
        policy,
        next_hop,
        files: Files {
            view: args.view.or(said.view).unwrap_or_default(),
            ro: said.ro,
            rw: said.rw,
            mask: said.mask,
            cache: cache.unwrap_or_default(),
            home: home.unwrap_or_default(),
            allow_write: said.allow_write.into_iter().chain(args.allow_write.iter().cloned()).collect(),
            bounds: args.bounds.iter().cloned().chain(bounds).collect(),
            declared,
            work: args.work.clone().or(said.work),
            deciding,
            settings: machine.settings(),
        },
        environment: said.env.into_iter().chain(args.env.iter().cloned()).collect(),
        limits: said.limits.overridden_by(args.limits).min(ceiling_limits),
        sandbox,
        cache,
        home,
        host_ports: said.host_ports,
        socks5: said.socks5 || args.socks5,
        audit_sync: said.audit_sync || args.audit_sync,
        stage,
        llm,
        sources,
        inspected,
        once,
        notes,
        doubts,
        redirected_by,
        missing,
        stage_only,
    })
}

/// The policy files of a request.
struct FilesRead {
    ceilings: Vec<LoadedFile>,
    /// The files that grant, and `--set` as the last one.
    files: Vec<LoadedFile>,
    /// The policies of records among them, with their names.
    stored: Vec<(String, StoredPolicy)>,
    /// The upstream proxy of `--set`.
    upstream_set: Option<UpstreamSection>,
    /// Whether a file, a setting or the caller's rules say what is granted, even if that is nothing.
    grants_are_named: bool,
}

/// Reads the ceilings, then the policy files, then the project's file and `--set`.
fn read_files(args: &PolicyRequest, reading: &mut Reading<'_>) -> Result<FilesRead, Fault> {
    let ceilings = reading.ceilings(&args.ceiling, args.site)?;
    let mut files = Vec::new();
    let mut stored = Vec::new();
    for path in &args.policy {
        files.push(reading.policy(path, &mut stored)?);
    }
    if args.uses_project {
        files.extend(reading.project(&args.policy, &ceilings)?);
    }
    let grants_any = args.rules.rules().iter().any(|rule| rule.action == Action::Allow);
    let mut grants_are_named = !files.is_empty() || args.layers.is_some() || grants_any;
    let mut upstream_set = None;
    if let Some(mut set) = reading.settings(&args.set)? {
        for LoadedFile { file, .. } in &mut files {
            file.yield_to(&set.file);
        }
        upstream_set = set.file.upstream.take();
        grants_are_named |=
            !(set.file.rules.is_empty() && set.file.presets.is_empty() && set.file.host_ports.is_empty());
        files.push(set);
    }
    Ok(FilesRead { ceilings, files, stored, upstream_set, grants_are_named })
}

/// Whether `--set` turns this key on.
pub(crate) fn is_set(args: &PolicyRequest, key: &str) -> bool {
    let value = |set: &String| {
        set.split_once('=').filter(|(set, _)| set.trim() == key).map(|(_, value)| value.trim() == "true")
    };
    args.set.iter().filter_map(value).next_back() == Some(true)
}

/// Reads the files that every run here reads without being told: the ceilings of this machine and this user, and the project's
/// policy within them. Returns their names.
///
/// # Errors
/// Returns a [`Fault`] in one of them.
pub fn read_unnamed(machine: &Machine) -> Result<Vec<String>, Fault> {
    let mut reading = Reading::new(machine);
    let ceilings = reading.ceilings(&[], Site::default())?;
    for ceiling in &ceilings {
        bounds_of(ceiling, machine)?;
    }
    let project = reading.project(&[], &ceilings)?;
    Ok(ceilings.into_iter().chain(project).map(|named| named.shown).collect())
}

/// Adds the rules of `--allow`, `--deny`, `--tls-off` and `--host-port`.
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
                    reading.inspect(Path::new(path));
                    let text = text_of(open("list of rules", Path::new(path), path, reading.machine)?, path)?;
                    for rule in file::parse_rule_lines(&text, path, action).map_err(from_file)? {
                        rule.apply(grants);
                    }
                    reading.note_source(SourceRole::Rules, path, &text);
                }
                None => add(grants, flag, rule, action, Note::default())?,
            }
        }
    }
    Ok(())
}

/// Lists the allow rules of flags that a ceiling or the declared effects leave without any target, and counts those of files.
fn lost_rules(policy: &Policy, files: &[String]) -> Vec<String> {
    // A lock is meant to leave less than the flags, and lists its own targets.
    let is_bounded = policy.layers().iter().any(|layer| layer.role() != Role::Grants);
    if !is_bounded || policy.layers().iter().any(|layer| layer.role() == Role::Lock) {
        return Vec::new();
    }
    let mut findings = policy.review(today());
    findings.retain(|finding| finding.lint == Lint::Unreachable && finding.rule.action == Action::Allow);
    let flags = findings.iter().filter(|finding| matches!(finding.rule.origin, Origin::Flag { .. }));
    let flags =
        flags.map(|finding| format!("{} {}: {finding}", finding.rule.origin, shell_word(&finding.rule.text)));
    // One policy serves stages that declare less.
    let is_declared = policy.layers().iter().any(|layer| layer.role() == Role::Declared);
    let in_files = files.iter().filter(|_| !is_declared).filter_map(|file| {
        let is_of =
            |finding: &&Remark<'_>| matches!(&finding.rule.origin, Origin::File { path, .. } if path == file);
        let lost: Vec<_> = findings.iter().filter(is_of).collect();
        let first = lost.first()?;
        let more = if lost.len() > 1 {
            format!("; and {} more (exeat policy lint)", lost.len() - 1)
        } else {
            String::new()
        };
        Some(format!("{} `{}`: {first}{more}", first.rule.origin, first.rule.text))
    });
    flags.chain(in_files).collect()
}

/// Describes each limit of a flag that a ceiling lowers.
fn lowered_limits(flags: Limits, ceilings: &[LoadedFile]) -> Vec<String> {
    let lower = |(limit, asked): (Limit, String)| {
        ceilings.iter().find_map(|ceiling| {
            let (_, bounded) = flags.min(ceiling.file.limits).set().find(|(other, _)| *other == limit)?;
            let name = exeat_policy::printable(&ceiling.shown);
            (bounded != asked)
                .then(|| format!("--{} {asked}: the ceiling {name} allows {bounded}", limit.key()))
        })
    };
    flags.set().filter_map(lower).collect()
}

pub(crate) fn add(
    grants: &mut PolicyBuilder,
    flag: &str,
    rule: &str,
    action: Action,
    note: Note,
) -> Result<(), Fault> {
    grants
        .add(rule, action, Origin::Flag { flag: flag.into() }, note)
        .map_err(|error| from_rule(flag, &error))
}

fn from_rule(flag: &str, error: &RuleError) -> Fault {
    let before = error.text().get(..error.span().start).unwrap_or_default();
    let place = Position {
        file: flag.to_owned(),
        line: None,
        column: Some(u32::try_from(before.chars().count() + 1).unwrap_or(u32::MAX)),
        error: error.to_string(),
        meant: error.suggestion().map(str::to_owned),
    };
    let failure = Fault::input(format!("{flag}: {error}")).at(vec![place]);
    match error.suggestion() {
        Some(meant) => {
            // `--deny` would refuse a text with the mark `!`, and under `--allow` the mark denies.
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

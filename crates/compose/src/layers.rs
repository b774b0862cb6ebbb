//! The layers that bound the grants: ceilings, the effects that the stage declares, and a lock.

use exeat_files::fault::Excess;
use exeat_policy::{
    BackendName, Ech, Effect, EffectKind, EffectSet, Layers, Mode, Policy, PolicyBuilder, PolicyFile,
    StoredPolicy, Terms, printable,
};

use crate::fault::{Fault, Position};
use crate::named::{LoadedFile, groups};
use crate::request::PolicyRequest;

/// The layers that bound the grants.
pub(crate) struct UpperLayers<'a> {
    pub(crate) declared: Option<&'a EffectSet>,
    pub(crate) ceilings: &'a [LoadedFile],
    pub(crate) stored: StoredLayers,
    pub(crate) terms: Terms,
}

/// The layers that bounded the grants of policies stored beside records.
#[derive(Default)]
pub(crate) struct StoredLayers {
    ceilings: Vec<(String, PolicyBuilder)>,
    declared: Option<PolicyBuilder>,
    lock: Option<(String, PolicyBuilder)>,
}

/// The ceilings of one policy, the rules of its declared effects, and its lock.
type Own = (Vec<(String, PolicyBuilder)>, Option<PolicyBuilder>, Option<(String, PolicyBuilder)>);

impl StoredLayers {
    /// Collects all layers. Two lists of declared effects or two locks are an error because either could be meant.
    pub(crate) fn new(
        own: Own,
        stored: Vec<(String, StoredPolicy)>,
        mut declared: bool,
        mut locked: bool,
    ) -> Result<Self, Fault> {
        let mut all = Self::default();
        let stored = stored.into_iter().map(|(shown, policy)| {
            let named = |rules| (shown.clone(), rules);
            let StoredPolicy { ceilings, declared, lock, .. } = policy;
            let layers: Own = (ceilings.into_iter().map(named).collect(), declared, lock.map(named));
            (shown, layers)
        });
        for (shown, (ceilings, of_stage, lock)) in
            std::iter::once(("the policy".to_owned(), own)).chain(stored)
        {
            let twice = |what: &str| {
                Fault::input(format!(
                    "`{}` has {what} of its own, and one was given already",
                    printable(&shown)
                ))
            };
            if of_stage.is_some() && std::mem::replace(&mut declared, true) {
                return Err(twice("what the stage declared"));
            }
            if lock.is_some() && std::mem::replace(&mut locked, true) {
                return Err(twice("a lock"));
            }
            all.declared = of_stage.or(all.declared);
            all.lock = lock.or(all.lock);
            all.ceilings.extend(ceilings);
        }
        Ok(all)
    }
}

impl UpperLayers<'_> {
    pub(crate) fn policy(
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
        for LoadedFile { file, shown, .. } in self.ceilings {
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

/// Computes the settings that apply to all rules: those that flags and files ask for, as far as the ceilings permit.
pub(crate) fn terms(
    args: &PolicyRequest,
    files: &[LoadedFile],
    ceilings: &[LoadedFile],
) -> Result<Terms, Fault> {
    let any = |says: fn(&PolicyFile) -> bool| files.iter().find(|named| says(&named.file));
    let refused_by = |says: fn(&PolicyFile) -> bool| ceilings.iter().find(|named| says(&named.file));
    let forbidden = |what: &str, by: Option<&LoadedFile>, ceiling: &LoadedFile| {
        let why = format!("{what} is forbidden by the ceiling {}", ceiling.shown);
        match by {
            Some(file) => Fault::at_each(vec![Position::new(&file.shown, None, why)]),
            None => Fault::input(why),
        }
    };

    let own = args.layers.as_ref().map(|layers| layers.terms).unwrap_or_default();
    let reporting = any(|file| file.mode == Some(Mode::Report));
    let mode = args.mode.unwrap_or(if reporting.is_some() { Mode::Report } else { own.mode });
    if mode == Mode::Report
        && let Some(ceiling) = refused_by(|file| file.report == Some(false))
    {
        let by = reporting.filter(|_| args.mode.is_none());
        let failure = forbidden("report mode", by, ceiling);
        return Err(failure.hint("--mode enforce runs with what the rules allow"));
    }
    let translating = any(|file| file.nat64 == Some(true));
    let nat64 = translating.is_some() || own.nat64;
    if nat64 && let Some(ceiling) = refused_by(|file| file.nat64 == Some(false)) {
        return Err(forbidden("nat64", translating, ceiling));
    }
    let refusing = any(|file| file.ech == Some(Ech::Refuse)).map(|_| Ech::Refuse);
    let bound = refused_by(|file| file.ech == Some(Ech::Refuse)).map(|_| Ech::Refuse);
    let ech = bound.or(refusing).unwrap_or(own.ech);
    Ok(Terms { mode, nat64, ech })
}

/// Returns what builds the sandbox: what the caller asks for, else what the files do, as far as the ceilings permit. A ceiling that names
/// one also decides where `auto` is asked for.
pub(crate) fn backend(
    asked: Option<BackendName>,
    said: Option<(BackendName, &str)>,
    ceilings: &[LoadedFile],
) -> Result<Option<BackendName>, Fault> {
    let is_one = |name: &BackendName| *name != BackendName::Auto;
    let wanted = asked.map(|name| (name, None)).or(said.map(|(name, file)| (name, Some(file))));
    let mut chosen = wanted;
    for LoadedFile { file, shown, .. } in ceilings {
        let Some(only) = file.sandbox.backend.filter(is_one) else { continue };
        match chosen.filter(|(name, _)| is_one(name)) {
            Some((name, by)) if name != only => {
                let (name, only) = (name.as_str(), only.as_str());
                let why = format!(
                    "the back end `{name}` is forbidden by the ceiling {shown}, which permits `{only}`"
                );
                // No flag helps where two ceilings differ.
                let asks = wanted.is_some_and(|(name, _)| is_one(&name));
                let fault = match by {
                    Some(file) => Fault::at_each(vec![Position::new(file, None, why)]),
                    None => Fault::input(why),
                };
                return Err(if asks { fault.hint(format!("--backend {only}")) } else { fault });
            }
            Some(_) => {}
            None => chosen = Some((only, Some(shown))),
        }
    }
    Ok(chosen.map(|(name, _)| name))
}

/// N30: finds the declared kinds of effects that `effects.allow` of a file does not list, and hosts that are not named where a ceiling
/// wants that.
pub(crate) fn kinds_beyond(
    effects: &EffectSet,
    files: &[LoadedFile],
    ceilings: &[LoadedFile],
) -> Vec<Excess> {
    let mut lines = Vec::new();
    for LoadedFile { file, shown, .. } in files.iter().chain(ceilings) {
        let Some(allowed) = &file.effects.allow else { continue };
        let (allowed, shown) = (allowed.iter().copied().collect(), printable(shown));
        let mut kinds: Vec<EffectKind> = Vec::new();
        for kind in effects.beyond(&allowed).map(Effect::kind) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        lines.extend(
            kinds.into_iter().map(|kind| format!("`{kind}`: `effects.allow` of {shown} does not list it")),
        );
    }
    let requires = ceilings.iter().find(|ceiling| ceiling.file.require_hosts == Some(true));
    lines.extend(requires.filter(|_| effects.has(EffectKind::Network)).map(|ceiling| {
        let shown = &ceiling.shown;
        format!(
            "`Network`: the ceiling {shown} wants hosts to be named: {{\"effect\": \"NetworkHosts\", \"hosts\": [\"api.example.com\"]}}"
        )
    }));
    lines.into_iter().map(|said| Excess { said, flag: None, can_be_left_out: false }).collect()
}

//! `exeat policy ...`: prints and compares policies. Runs nothing, and decides about no connection.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use exeat_audit::table;
use exeat_compose::Machine;
use exeat_compose::{Composed, EnvRule, NextHop};
use exeat_files::protected::{self, LetThrough};
use exeat_files::request::{self, Bind, Bounds};
use exeat_policy::file::{EffectsSection, SandboxSection, UpstreamSection, WorkDir};
use exeat_policy::{
    Action, AuthSpec, Cache, Change, ChangeKind, Day, Ech, Effective, FileRole, Home, Layers, Mode, OnExcess,
    Policy, PolicyBuilder, PolicyFile, Remark, Role, Rule, Size, StoredPolicy, Terms, TlsCheck, View, preset,
    printable, schema,
};
use exeat_record::{sha256_hex, today};
use serde_json::{Value, json};

use crate::args::{PolicyArgs, PolicyDiffArgs, PolicyLintArgs, PolicySchemaArgs, PolicyShowArgs, SchemaOf};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::stdio;
use crate::terminal::Paint;

/// Prints the effective policy.
pub(crate) fn show(args: &PolicyShowArgs, out: Paint) -> Result<Exit, Failure> {
    let loaded = loaded(&args.policy, &args.files, &crate::request::here()?)?;
    let text = if args.format.is_json() {
        shown_json(&loaded).to_string()
    } else {
        policy_text(&loaded, today(), out)
    };
    stdio::out(&text, args.format.is_json())?;
    Ok(Exit::Yes)
}

/// Prints the rules that are risky, dead or duplicate.
pub(crate) fn lint(args: &PolicyLintArgs, out: Paint) -> Result<Exit, Failure> {
    let machine = crate::request::here()?;
    let loaded = loaded(&args.policy, &args.files, &machine)?;
    let findings = loaded.policy.review(today());
    let groups = risky(&loaded);
    let mut text = String::new();
    for finding in &findings {
        if args.format.is_json() {
            let Remark { rule, lint, by, .. } = finding;
            let by = by.map(|by| by.origin.to_string());
            let line = json!({
                "rule": rule.text, "rule_src": rule.origin.to_string(), "lint": lint.as_str(),
                "said": finding.to_string(), "by": by,
            });
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{line}");
        } else {
            let Remark { rule, lint, .. } = finding;
            let said = printable(&format!("{}: `{}`: {finding}", rule.origin, rule.text));
            let _ = writeln!(text, "{said}  [{}]", out.odd(lint.as_str()));
        }
    }
    let secrets = secrets(&loaded, &machine);
    for (key, path, secret) in &secrets {
        let said = format!("shows the stage `~/{secret}`, which is hidden unless named");
        if args.format.is_json() {
            let line = json!({"path": path, "lint": "credential", "said": said});
            let _ = writeln!(text, "{line}");
        } else {
            let said = printable(&format!("fs.{key}: `{path}`: {said}"));
            let _ = writeln!(text, "{said}  [{}]", out.odd("credential"));
        }
    }
    for (name, said) in &groups {
        if args.format.is_json() {
            let line = json!({"preset": name, "lint": "risk", "said": said});
            let _ = writeln!(text, "{line}");
        } else {
            let _ = writeln!(text, "preset {name}: {said}  [{}]", out.odd("risk"));
        }
    }
    let blind: Vec<_> =
        loaded.next_hop.iter().flat_map(|_| NextHop::weakened_rules(&loaded.policy)).collect();
    for rule in &blind {
        let said =
            "names that go through the upstream proxy are looked up there: this denies them no address";
        if args.format.is_json() {
            let line = json!({
                "rule": rule.text, "rule_src": rule.origin.to_string(), "lint": "upstream", "said": said,
            });
            let _ = writeln!(text, "{line}");
        } else {
            let said = printable(&format!("{}: `{}`: {said}", rule.origin, rule.text));
            let _ = writeln!(text, "{said}  [{}]", out.odd("upstream"));
        }
    }
    stdio::out(&text, args.format.is_json())?;
    let clean = findings.is_empty() && groups.is_empty() && secrets.is_empty() && blind.is_empty();
    if clean && !args.format.is_json() {
        stdio::write_stderr("exeat: nothing found\n");
    }
    Ok(if clean { Exit::Yes } else { Exit::No })
}

/// Prints what a change opens and closes.
pub(crate) fn diff(args: &PolicyDiffArgs, out: Paint) -> Result<Exit, Failure> {
    let machine = crate::request::here()?;
    let role = if args.ceiling { FileRole::Ceiling } else { FileRole::Policy };
    let before = Side::read(&args.before, role, &machine)?;
    let after = Side::read(&args.after, role, &machine)?;
    if before.is_stored != after.is_stored {
        stdio::line(
            "note",
            "the policy of a record has rules alone: files, variables and limits are not compared",
        );
    }
    let today = today();
    let mut lines: Vec<(&str, Value, String)> = Vec::new();
    for (word, changes) in [
        ("opens", after.policy.opens(&before.policy, today)),
        ("closes", before.policy.opens(&after.policy, today)),
    ] {
        for change in changes {
            let Change { pattern, ports, why, .. } = &change;
            let target = format!("{pattern}:{ports}");
            let said = match (why, word) {
                (ChangeKind::Deny, "opens") => " (a deny rule is gone, where an allow rule covers it)",
                (ChangeKind::Deny, _) => " (a deny rule)",
                (ChangeKind::Tls, "opens") => " (the TLS name is not checked any more)",
                (ChangeKind::Tls, _) => " (the TLS name is checked)",
                (ChangeKind::Upload, "opens") => " (more may be sent)",
                (ChangeKind::Upload, _) => " (less may be sent)",
                _ => "",
            };
            lines.push((word, json!({"change": word, "target": target}), format!("{target}{said}")));
        }
    }
    for (section, old, new) in before.rest(&after) {
        let word = if old.is_empty() {
            "adds"
        } else if new.is_empty() {
            "removes"
        } else {
            "changes"
        };
        let said = match word {
            "adds" => format!("{section} {new}"),
            "removes" => format!("{section} {old}"),
            _ => format!("{section} {old} -> {new}"),
        };
        lines.push((word, json!({"change": word, "key": section, "before": old, "after": new}), said));
    }
    let mut text = String::new();
    for (word, value, said) in &lines {
        if args.format.is_json() {
            let _ = writeln!(text, "{value}");
        } else {
            let painted = if *word == "opens" { out.bad(word) } else { out.good(word) };
            let pad = " ".repeat("changes".len().saturating_sub(word.len()));
            let _ = writeln!(text, "{painted}{pad}  {}", printable(said));
        }
    }
    stdio::out(&text, args.format.is_json())?;
    Ok(if lines.is_empty() { Exit::Yes } else { Exit::No })
}

/// Prints a JSON Schema.
pub(crate) fn schema(args: &PolicySchemaArgs) -> Result<Exit, Failure> {
    let made = |value: Value| {
        // Text and numbers always serialize.
        format!("{}\n", serde_json::to_string_pretty(&value).unwrap_or_default()).into()
    };
    let text: Cow<'static, str> = match args.of {
        SchemaOf::Policy => made(schema::policy_json_schema(FileRole::Policy)),
        SchemaOf::Ceiling => made(schema::policy_json_schema(FileRole::Ceiling)),
        SchemaOf::Effects => made(schema::effects_json_schema()),
        SchemaOf::Result => exeat_runner::result_schema().into(),
        SchemaOf::Record => exeat_record::line_schema().into(),
        SchemaOf::Check => include_str!("check.schema.json").into(),
        SchemaOf::PolicyShow => include_str!("policy.schema.json").into(),
        SchemaOf::Plan => exeat_runner::plan_schema().into(),
        SchemaOf::AuditList => table::list_schema().into(),
        SchemaOf::StateList => include_str!("state.schema.json").into(),
    };
    stdio::data(text.as_bytes())?;
    Ok(Exit::Yes)
}

fn loaded(args: &PolicyArgs, files: &[PathBuf], machine: &Machine) -> Result<Composed, Failure> {
    let mut policy = args.request();
    policy.policy.extend_from_slice(files);
    let loaded = crate::request::compose_some(&policy, machine)?;
    for note in loaded.lines() {
        stdio::line("note", note);
    }
    Ok(loaded)
}

/// Returns the binds that open a path which is otherwise hidden: key, path, and the name below the home directory.
fn secrets(loaded: &Composed, machine: &Machine) -> Vec<(&'static str, String, &'static str)> {
    let home = machine.home_or_database();
    let binds = [("ro", &loaded.files.ro), ("rw", &loaded.files.rw)];
    let all = binds.iter().flat_map(|(key, binds)| binds.iter().map(move |bind| (*key, &bind.host)));
    let found = all.filter_map(|(key, path)| {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let secret = exeat_files::lists::CREDENTIALS.iter().find(|name| real.starts_with(home.join(name)))?;
        Some((key, path.display().to_string(), *secret))
    });
    found.collect()
}

/// Returns the presets in use that let a stage send data to strangers, with the reasons.
fn risky(loaded: &Composed) -> Vec<(&'static str, String)> {
    let used = |name: &str| {
        loaded.policy.rules().iter().any(
            |rule| matches!(&rule.origin, exeat_policy::Origin::Preset { name: used, .. } if used == name),
        )
    };
    let high = preset::groups().iter().filter(|group| group.risk == preset::Risk::High && used(&group.name));
    let said = high.map(|group| {
        let flags: Vec<_> = group.flags.iter().map(|flag| flag.as_str()).collect();
        let flags = if flags.is_empty() { String::new() } else { format!(" ({})", flags.join(", ")) };
        let note = group.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        (group.name.as_str(), format!("high risk{flags}{note}"))
    });
    said.collect()
}

fn policy_text(loaded: &Composed, today: Day, out: Paint) -> String {
    let Composed { policy, files: shown, .. } = loaded;
    let mut text = String::new();
    let Effective { allow, truncated, .. } = policy.effective();
    let layers: Vec<_> = policy
        .layers()
        .iter()
        .filter(|layer| layer.role() != Role::Grants)
        .map(ToString::to_string)
        .collect();
    let _ = writeln!(text, "{}", out.strong("network"));
    if allow.is_empty() {
        let _ = writeln!(text, "  nothing is reachable");
    }
    let denied: Vec<_> = policy.rules().iter().filter(|rule| rule.action == Action::Deny).collect();
    let of_allow = allow.iter().map(|rule| format!("{}:{}", rule.pattern, rule.ports).len());
    let of_deny = denied.iter().map(|rule| format!("{}:{}", rule.pattern, rule.ports).len());
    // One name of 250 bytes would push every origin off the screen.
    let width = of_allow.chain(of_deny).max().unwrap_or(0).min(48);
    for rule in &allow {
        let target = format!("{}:{}", rule.pattern, rule.ports);
        let mut notes = vec![rule.origins().join(", within ")];
        match rule.tls {
            TlsCheck::Auto => {}
            TlsCheck::Sni => notes.push("TLS name checked".into()),
            TlsCheck::Off => notes.push("TLS name not checked".into()),
        }
        notes.extend(rule.max_upload.map(|size| format!("at most {size} sent in a run")));
        let expired = rule.expires.is_some_and(|day| day <= today);
        notes.extend(
            rule.expires.map(|day| format!("{} on {day}", if expired { "expired" } else { "expires" })),
        );
        if let Some(grant) = rule.from.last() {
            notes.extend(grant.note.reason.clone());
            notes.extend(grant.note.approved_by.as_ref().map(|by| format!("approved by {by}")));
        }
        let word = if expired { out.odd("never") } else { out.good("allow") };
        let _ = writeln!(text, "  {word}  {target:width$}  {}", printable(&notes.join("; ")));
    }
    if truncated {
        let _ = writeln!(text, "  ... and more");
    }
    for rule in denied {
        let target = format!("{}:{}", rule.pattern, rule.ports);
        let origin = printable(&rule.origin.to_string());
        let _ = writeln!(text, "  {}   {target:width$}  {origin}", out.bad("deny"));
    }
    for said in terms(policy.terms()) {
        let _ = writeln!(text, "  {said}");
    }
    if let Some(hop) = &loaded.next_hop {
        let _ = writeln!(text, "  through the upstream proxy {}", printable(&hop.description()));
    }
    for port in &loaded.host_ports {
        let _ = writeln!(text, "  127.0.0.1:{} inside is this machine's {}", port.inner, port.target());
    }
    if loaded.socks5 {
        let _ = writeln!(text, "  SOCKS5 is offered");
    }
    if !layers.is_empty() {
        let _ = writeln!(text, "  bounded by {}", printable(&layers.join(", ")));
    }
    let _ = writeln!(text, "\n{}", out.strong("files"));
    for (key, value) in files(loaded) {
        let _ = writeln!(text, "  {key:6} {}", printable(&value));
    }
    for bound in &shown.bounds {
        for (key, value) in bounded(bound) {
            let _ = writeln!(text, "  {key:6} {} (ceiling {})", printable(&value), printable(&bound.name));
        }
    }
    let (hidden, kept) = (exeat_files::lists::CREDENTIALS.len(), protected::names().count());
    let _ = writeln!(
        text,
        "  besides: exeat hides {hidden} names below your home unless you name them, and protects {kept} names in the working directory, \
         there or not (docs/files.md; --format json lists them)"
    );
    if !loaded.environment.is_empty() {
        let _ = writeln!(text, "\n{}", out.strong("environment"));
        for rule in &loaded.environment {
            let _ = writeln!(text, "  {}", printable(&variable(rule)));
        }
    }
    let held: Vec<_> =
        unusual_keys(&loaded.sandbox).chain(loaded.audit_sync.then_some(("audit.sync", "true"))).collect();
    if !held.is_empty() {
        let _ = writeln!(text, "\n{}", out.strong("sandbox"));
        for (key, word) in held {
            let _ = writeln!(text, "  {key} {word}");
        }
    }
    let limits: Vec<_> = loaded.limits.set().map(|(limit, value)| (limit.key(), value)).collect();
    if !limits.is_empty() {
        let _ = writeln!(text, "\n{}", out.strong("limits"));
        let width = limits.iter().map(|(key, _)| key.len()).max().unwrap_or(0).max(10);
        for (key, value) in limits {
            let _ = writeln!(text, "  {key:width$} {value}");
        }
    }
    let _ = writeln!(text, "\npolicy {}", sha256_hex(policy.canonical_json().as_bytes()));
    text
}

fn shown_json(loaded: &Composed) -> Value {
    let Composed { policy, files: shown, sources, .. } = loaded;
    let Effective { allow, truncated, .. } = policy.effective();
    let of = |rule: &Rule| json!({"rule": rule.to_string(), "rule_src": rule.origin.to_string()});
    let allow = allow.iter().map(|rule| {
        let from: Vec<_> = rule.from.iter().rev().map(of).collect();
        let tls = match rule.tls {
            TlsCheck::Auto => None,
            TlsCheck::Sni => Some("sni"),
            TlsCheck::Off => Some("off"),
        };
        json!({
            "target": format!("{}:{}", rule.pattern, rule.ports), "from": from, "tls": tls,
            "expires": rule.expires.map(|day| day.to_string()), "max_upload": rule.max_upload.map(Size::get),
        })
    });
    let deny = policy.rules().iter().filter(|rule| rule.action == Action::Deny).map(of);
    let bind =
        |bind: &Bind| json!({"host": bind.host.to_string_lossy(), "guest": bind.guest.to_string_lossy()});
    let ceilings = shown.bounds.iter().map(|bound| {
        let bounds: serde_json::Map<_, _> =
            bounded(bound).into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        json!({"file": bound.name, "bounds": bounds})
    });
    let limits: serde_json::Map<String, Value> =
        loaded.limits.set().map(|(limit, value)| (limit.key().to_owned(), value.into())).collect();
    json!({
        "schema": 1,
        "mode": policy.terms().mode,
        "nat64": policy.terms().nat64,
        "ech": policy.terms().ech,
        "socks5": loaded.socks5,
        "host_ports": loaded.host_ports.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "upstream": loaded.next_hop.as_ref().map(NextHop::description),
        "policy_sha256": sha256_hex(policy.canonical_json().as_bytes()),
        "sources": sources.iter().map(|source| json!({
            "role": source.role.as_str(), "file": source.file, "sha256": source.sha256,
        })).collect::<Vec<_>>(),
        "allow": allow.collect::<Vec<_>>(),
        "truncated": truncated,
        "deny": deny.collect::<Vec<_>>(),
        "ceilings": ceilings.collect::<Vec<_>>(),
        "fs": {
            "view": shown.view.to_string(),
            "ro": shown.ro.iter().map(bind).collect::<Vec<_>>(),
            "rw": shown.rw.iter().map(bind).collect::<Vec<_>>(),
            "mask": shown.mask.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
            "work": shown.work.as_ref().map(at),
            "allow_write": shown.allow_write.iter().map(LetThrough::as_str).collect::<Vec<_>>(),
            "credentials": exeat_files::lists::CREDENTIALS,
            "protected": protected::names().map(|(name, _)| name).collect::<Vec<_>>(),
        },
        // Names only: a value can be a secret.
        "env": loaded.environment.iter().map(|rule| match rule {
            EnvRule::Pass(name) => json!({"pass": name.to_string_lossy()}),
            EnvRule::Set(name, _) => json!({"set": name.to_string_lossy()}),
            EnvRule::Remove(name) => json!({"remove": name.to_string_lossy()}),
        }).collect::<Vec<_>>(),
        "limits": limits,
        "sandbox": unusual_keys(&loaded.sandbox)
            .map(|(key, word)| (key.trim_start_matches("sandbox.").to_owned(), word.into()))
            .collect::<serde_json::Map<_, _>>(),
        "audit_sync": loaded.audit_sync,
    })
}

/// Lists settings that differ from the defaults for all rules.
fn terms(terms: Terms) -> impl Iterator<Item = &'static str> {
    let report = terms.mode == Mode::Report;
    let said = [
        (report, "report mode: what no rule allows is let through on ports 80 and 443, and recorded"),
        (terms.nat64, "addresses in 64:ff9b::/96 are judged by the IPv4 address inside (nat64)"),
        (terms.ech == Ech::Refuse, "a TLS hello that hides its server name is refused (ech)"),
    ];
    said.into_iter().filter(|(is, _)| *is).map(|(_, said)| said)
}

fn files(composed: &Composed) -> Vec<(&'static str, String)> {
    let bind = |bind: &Bind| {
        let host = bind.host.display();
        if bind.host == bind.guest { host.to_string() } else { format!("{host} at {}", bind.guest.display()) }
    };
    let files = &composed.files;
    let mut all = vec![("view", files.view.to_string())];
    all.extend(files.ro.iter().map(|path| ("ro", bind(path))));
    all.extend(files.rw.iter().map(|path| ("rw", bind(path))));
    all.extend(files.mask.iter().map(|path| ("mask", path.display().to_string())));
    all.extend(files.work.as_ref().map(|work| ("work", at(work))));
    all.extend(composed.cache.map(|cache| ("cache", cache.as_str().to_owned())));
    all.extend(composed.home.map(|home| ("home", home.as_str().to_owned())));
    all.extend(
        files
            .allow_write
            .iter()
            .map(|name| ("write", format!("{name}, though it is protected (allow_write)"))),
    );
    all
}

/// Lists the keys of `[sandbox]` that differ from the defaults.
fn unusual_keys(sandbox: &SandboxSection) -> impl Iterator<Item = (&'static str, &'static str)> {
    let SandboxSection {
        bridge, loopback, unix_sockets, transparent, debuggable, tty, nested, backend, ..
    } = *sandbox;
    let usual = |key, word: &'static str, is_usual: bool| (!is_usual).then_some((key, word));
    [
        bridge.and_then(|it| usual("sandbox.bridge", it.as_str(), it == Default::default())),
        loopback.and_then(|it| usual("sandbox.loopback", it.as_str(), it == Default::default())),
        unix_sockets.and_then(|it| usual("sandbox.unix_sockets", it.as_str(), it == Default::default())),
        transparent.and_then(|it| usual("sandbox.transparent", it.as_str(), it == Default::default())),
        debuggable.and_then(|it| usual("sandbox.debuggable", "true", !it)),
        tty.and_then(|it| usual("sandbox.tty", it.as_str(), it == Default::default())),
        nested.and_then(|it| usual("sandbox.nested", it.as_str(), it == Default::default())),
        backend.and_then(|it| usual("sandbox.backend", it.as_str(), it == Default::default())),
    ]
    .into_iter()
    .flatten()
}

/// Describes the working directory of the stage, if it is not the caller's.
fn at(work: &request::WorkDir) -> String {
    match work {
        request::WorkDir::Scratch => "an empty directory, gone with the run".into(),
        request::WorkDir::Host(path) => path.display().to_string(),
    }
}

fn bounded(bound: &Bounds) -> Vec<(&'static str, String)> {
    let list = |paths: &[PathBuf]| match paths {
        [] => "nothing".to_owned(),
        paths => paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" "),
    };
    let mut all = Vec::new();
    all.extend(bound.view.map(|at_most| ("view", format!("at most {at_most}"))));
    all.extend(bound.ro.as_ref().map(|paths| ("ro", format!("at most {}", list(paths)))));
    all.extend(bound.rw.as_ref().map(|paths| ("rw", format!("at most {}", list(paths)))));
    all.extend(bound.mask.iter().map(|path| ("mask", path.display().to_string())));
    all.extend(bound.allow_write.as_ref().map(|names| {
        let names: Vec<_> = names.iter().map(LetThrough::as_str).collect();
        let names = if names.is_empty() { "nothing".into() } else { names.join(" ") };
        ("write", format!("of protected names at most {names}"))
    }));
    all.extend(bound.env.as_ref().map(|names| {
        let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
        ("env", format!("at most {}", if names.is_empty() { "nothing".into() } else { names.join(" ") }))
    }));
    all
}

fn variable(rule: &EnvRule) -> String {
    match rule {
        EnvRule::Pass(name) => format!("{} (passed)", name.display()),
        // A value can be a secret.
        EnvRule::Set(name, _) => format!("{} (set)", name.display()),
        EnvRule::Remove(name) => format!("{} (removed)", name.display()),
    }
}

/// Quotes an entry if it could not be told from its neighbors in a list.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', ' ', '\\']) { format!("{text:?}") } else { text.to_owned() }
}

/// A file of a comparison.
struct Side {
    file: PolicyFile,
    policy: Policy,
    /// Whether it is the policy of a record, which has no files, variables and limits.
    is_stored: bool,
}

impl Side {
    fn read(path: &Path, role: FileRole, machine: &Machine) -> Result<Self, Failure> {
        let (text, _, shown) = exeat_compose::read_policy(exeat_compose::POLICY_FILE, path, machine)?;
        // The policy of a record has rules and their bounds, but no files and variables.
        if role == FileRole::Policy
            && let Some(read) = StoredPolicy::parse(&text, &shown)
        {
            let stored = read.map_err(|error| Failure::input(format!("{}: {error}", printable(&shown))))?;
            let file = stored.grants.clone();
            return Ok(Self { file, policy: stored.policy(&shown), is_stored: true });
        }
        let file = exeat_compose::parse(&text, &shown, role)?;
        let mut grants = PolicyBuilder::new();
        file.apply(&mut grants);
        for (name, origin) in &file.presets {
            for group in
                preset::expand(name).map_err(|error| exeat_compose::preset_fault(&error, Some(origin)))?
            {
                group.add_to(&mut grants);
            }
        }
        let policy = Layers { grants, ..Layers::default() }.build();
        Ok(Self { file, policy, is_stored: false })
    }

    /// A difference other than rules: the key, and its two values as text.
    fn rest(&self, after: &Self) -> Vec<(String, String, String)> {
        let (old, new) = (self.keys(), after.keys());
        let names: std::collections::BTreeSet<_> =
            old.iter().chain(&new).map(|(key, _)| key.clone()).collect();
        let value = |all: &[(String, String)], name: &str| {
            let values: Vec<_> =
                all.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect();
            values.join(", ")
        };
        let both = names.into_iter().map(|name| (value(&old, &name), value(&new, &name), name));
        // If only one of the two can have a key, it is unknown whether the key changed.
        let is_known = |name: &str| {
            self.is_stored == after.is_stored
                || ["network.mode", "network.ech", "network.nat64"].contains(&name)
                || name.starts_with("expires of ")
        };
        both.filter(|(old, new, name)| old != new && is_known(name))
            .map(|(old, new, name)| (name, old, new))
            .collect()
    }

    fn keys(&self) -> Vec<(String, String)> {
        let PolicyFile { stage, presets, rules, fs, env, limits, work, .. } = &self.file;
        let PolicyFile { effects, sandbox, audit_sync, .. } = &self.file;
        let PolicyFile { mode, nat64, ech, socks5, host_ports, upstream, .. } = &self.file;
        let mut keys: Vec<(String, String)> = Vec::new();
        let mut put = |key: &str, value: String| keys.push((key.to_owned(), value));
        let is_ceiling = self.file.role == FileRole::Ceiling;
        // In a ceiling, an empty list permits nothing, and no list permits everything.
        let PolicyFile { report, require_hosts, .. } = self.file;
        let is_empty = |list: bool| (is_ceiling && list).then(|| "nothing".to_owned());
        let bounds = [
            ("network.report", (report == Some(false)).then(|| "false".to_owned())),
            ("network.require_hosts", (require_hosts == Some(true)).then(|| "true".to_owned())),
            ("fs.ro", is_empty(fs.ro.as_ref().is_some_and(Vec::is_empty))),
            ("fs.rw", is_empty(fs.rw.as_ref().is_some_and(Vec::is_empty))),
            ("fs.allow_write", is_empty(fs.allow_write.as_ref().is_some_and(Vec::is_empty))),
            ("env.pass", is_empty(env.pass.as_ref().is_some_and(Vec::is_empty))),
        ];
        for (key, bound) in bounds {
            bound.into_iter().for_each(|bound| put(key, bound));
        }
        if let Some(stage) = stage {
            put("stage", stage.clone());
        }
        // A preset that asks a package manager has no known hosts here.
        for (name, _) in presets {
            put("network.presets", name.clone());
        }
        // An explicit default equals an omitted one.
        if let Some(mode) = mode.filter(|mode| *mode != Mode::default()) {
            put("network.mode", mode.to_string());
        }
        if let Some(ech) = ech.filter(|ech| *ech != Ech::default()) {
            put("network.ech", ech.to_string());
        }
        if let Some(UpstreamSection { proxy, auth, bypass, .. }) = upstream {
            proxy.iter().for_each(|proxy| put("network.upstream.proxy", proxy.to_string()));
            let auth = auth.as_ref().map(|auth| match auth {
                AuthSpec::File(path) => format!("file:{path}"),
                AuthSpec::Env(name) => format!("env:{name}"),
            });
            auth.into_iter().for_each(|auth| put("network.upstream.auth", auth));
            bypass.iter().for_each(|bypass| put("network.upstream.bypass", bypass.to_string()));
        }
        // A ceiling forbids with `false`, and a policy's `false` is the default.
        for (key, said) in [("network.nat64", nat64), ("network.socks5", socks5)] {
            if let Some(said) = said.filter(|said| *said != is_ceiling) {
                put(key, said.to_string());
            }
        }
        for (port, _) in host_ports {
            put("network.host_port", port.to_string());
        }
        // A later expiry, or none, opens nothing today.
        for rule in rules {
            if let Some(day) = rule.note.expires {
                put(&format!("expires of {}", rule.text), day.to_string());
            }
        }
        if let Some(at) = fs.view.filter(|at| is_ceiling || *at != View::default()) {
            put("fs.view", at.to_string());
        }
        for (key, binds) in [("fs.ro", &fs.ro), ("fs.rw", &fs.rw)] {
            for bind in binds.iter().flatten() {
                put(key, quoted(&bind.to_string()));
            }
        }
        for path in &fs.mask {
            put("fs.mask", quoted(&path.to_string()));
        }
        if let Some(cache) = fs.cache.filter(|cache| *cache != Cache::default()) {
            put("fs.cache", cache.as_str().into());
        }
        if let Some(home) = fs.home.filter(|home| *home != Home::default()) {
            put("fs.home", home.as_str().into());
        }
        for name in fs.allow_write.iter().flatten() {
            put("fs.allow_write", quoted(&name.name));
        }
        match work {
            None => {}
            Some(WorkDir::Scratch) => put("work_host", "none".into()),
            Some(WorkDir::Host(path)) => put("work_host", quoted(&path.to_string())),
        }
        for name in env.pass.iter().flatten() {
            put("env.pass", name.clone());
        }
        for (name, value) in &env.set {
            // A digest shows a difference and hides the value, which can be a secret.
            let digest = sha256_hex(value.as_bytes());
            put(&format!("env.set.{name}"), format!("value #{}", digest.get(..8).unwrap_or_default()));
        }
        for (limit, value) in limits.set() {
            put(&format!("limits.{}", limit.key()), value);
        }
        let EffectsSection { allow, on_excess, .. } = effects;
        if allow.as_ref().is_some_and(Vec::is_empty) {
            put("effects.allow", "nothing".to_owned());
        }
        for kind in allow.iter().flatten() {
            put("effects.allow", kind.to_string());
        }
        let on_excess = on_excess.filter(|it| is_ceiling || *it != OnExcess::default());
        let on_excess = on_excess.map(|it| ("effects.on_excess", it.as_str()));
        for (key, word) in unusual_keys(sandbox).chain(on_excess) {
            put(key, word.into());
        }
        if audit_sync == &Some(true) {
            put("audit.sync", "true".into());
        }
        keys
    }
}

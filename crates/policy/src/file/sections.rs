//! Interprets the keys of our own format.

use std::ops::Range;
use std::str::FromStr;

use crate::day::Day;
use crate::effect::EffectKind;
use crate::escape::visible;
use crate::grammar::Allowances;
use crate::host_port::HostPort;
use crate::limits::{LEAST_MEMORY, Limit, LimitError, Limits, Size, Span, memory_meant};
use crate::port::Port;
use crate::preset;
use crate::rule::{Action, Note, TlsCheck};
use crate::sandbox::{
    BackendName, Bridge, Cache, Home, Loopback, Nested, OnExcess, Transparent, Tty, UnixSockets,
};
use crate::terms::{Ech, Mode};
use crate::upstream::{AuthSpec, Bypass, BypassError, UpstreamUrl};

use super::bind::{BindError, BindSpec, PathSpec};
use super::keys::{KEYS, nearest};
use super::raw::{Entry, Node, Value};
use super::reader::{Reader, rule_meant};
use super::{
    EffectsSection, EnvSection, FileRole, FsSection, PolicyFile, SCHEMA, SandboxSection, UpstreamSection,
    View, WrittenName,
};

/// Maximum characters of a stage's name, which is in every record.
pub(crate) const MAX_STAGE: usize = 128;

/// The prefix of the stage's name in runs in which a preset asks a client.
pub const PRESET_STAGE: &str = "preset:";

/// Returns what is wrong with a stage's name. It needs 1 to 128 characters, no control character, and must not
/// begin with [`PRESET_STAGE`].
pub fn stage_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("the stage's name is empty")
    } else if name.chars().count() > MAX_STAGE {
        Some("the stage's name has more than 128 characters")
    } else if name.chars().any(char::is_control) {
        Some("the stage's name has a control character")
    } else if name.starts_with(PRESET_STAGE) {
        Some("`preset:` begins the names of runs that ask a preset's client")
    } else {
        None
    }
}

const SIZE: &str = "a size like \"512MiB\"";

const VIEWS: [(&str, View); 3] =
    [("project", View::Project), ("host", View::Host), ("minimal", View::Minimal)];

const TLS: [(&str, TlsCheck); 2] = [("sni", TlsCheck::Sni), ("off", TlsCheck::Off)];

impl Reader<'_> {
    pub(super) fn document(&mut self, document: Node, file: &mut PolicyFile) {
        for entry in self.table(KEYS, "", document) {
            match entry.key.as_str() {
                "schema" => match entry.node.value {
                    Value::Int(SCHEMA) => {}
                    Value::Int(_) => self.fault(entry.node.at, "this version reads schema 1 only", None),
                    other => self.report_wrong_type(
                        entry.node.at,
                        "`schema` is a number",
                        &other,
                        Some("1".into()),
                    ),
                },
                // It is for editors only, and must have the type in the schema.
                "$schema" => drop(self.string("$schema", entry.node)),
                "stage" => file.stage = self.stage(entry.node),
                "network" => self.network(entry.node, file),
                "fs" => self.fs(entry.node, &mut file.fs),
                "env" => self.env(entry.node, &mut file.env),
                "limits" => self.limits(entry.node, &mut file.limits),
                "effects" => self.effects(entry.node, &mut file.effects),
                "sandbox" => self.sandbox(entry.node, &mut file.sandbox),
                "audit" => {
                    for entry in self.table(KEYS, "audit", entry.node) {
                        file.audit_sync = self.flag(&entry);
                    }
                }
                _ => {}
            }
        }
    }

    fn stage(&mut self, node: Node) -> Option<String> {
        let at = node.at.clone();
        let stage = self.string("stage", node)?;
        match stage_fault(&stage) {
            None => Some(stage),
            Some(fault) => {
                self.fault(at, fault, None);
                None
            }
        }
    }

    pub(super) fn network(&mut self, node: Node, file: &mut PolicyFile) {
        if let Value::Bool(yes) = node.value {
            let meant = if yes {
                "a list of hosts, `network.allow`"
            } else {
                "nothing: without rules no host is allowed"
            };
            return self.report_wrong_type(node.at, "`network` is a table", &node.value, Some(meant.into()));
        }
        file.network = true;
        let mut entries = self.table(KEYS, "network", node);
        // The first of two equal grants counts, so TOML and JSON must agree on the order.
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        // The allowances come first, because they affect how the rules are read.
        let mut allowances = Allowances::default();
        for entry in &entries {
            match entry.key.as_str() {
                "allow_any" => allowances.any = self.flag(entry).unwrap_or_default(),
                "allow_shared_suffix" => allowances.shared_suffix = self.flag(entry).unwrap_or_default(),
                _ => {}
            }
        }
        let bare = Note::default();
        for entry in entries {
            match entry.key.as_str() {
                "mode" => {
                    file.mode = self.word("mode", entry.node, &Mode::ALL.map(|mode| (mode.as_str(), mode)))
                }
                "ech" => file.ech = self.word("ech", entry.node, &Ech::ALL.map(|ech| (ech.as_str(), ech))),
                "nat64" => file.nat64 = self.flag(&entry),
                "socks5" => file.socks5 = self.flag(&entry),
                "host_port" => self.host_ports(entry, file),
                "upstream" => file.upstream = self.upstream(entry),
                "presets" => self.presets(entry, file),
                "allow" => self.rules(entry, Action::Allow, allowances, &bare, &mut file.rules),
                "deny" => self.rules(entry, Action::Deny, allowances, &bare, &mut file.rules),
                "report" => file.report = self.flag(&entry),
                "require_hosts" => file.require_hosts = self.flag(&entry),
                "rule" => match entry.node.value {
                    Value::Array(items) => {
                        for item in items {
                            self.rule_table(item, allowances, file);
                        }
                    }
                    other => {
                        let meant = matches!(other, Value::Table(_)).then(|| "[[network.rule]]".to_owned());
                        let what = "`rule` is a list of tables, `[[network.rule]]`";
                        self.report_wrong_type(entry.node.at, what, &other, meant);
                    }
                },
                _ => {}
            }
        }
    }

    fn host_ports(&mut self, entry: Entry, file: &mut PolicyFile) {
        let what = "`host_port` is a list of ports, such as 5432 or \"11434:80\"";
        let port = |number: i128| u16::try_from(number).ok().and_then(Port::new).map(HostPort::same);
        let Value::Array(items) = entry.node.value else {
            let meant = match &entry.node.value {
                Value::Int(number) => port(*number).map(|port| format!("[{port}]")),
                Value::Str(text) => text.parse::<HostPort>().ok().map(|port| format!("[\"{port}\"]")),
                _ => None,
            };
            return self.report_wrong_type(entry.node.at, what, &entry.node.value, meant);
        };
        for Node { at, value } in items {
            let read = match &value {
                Value::Int(number) => port(*number),
                Value::Str(text) => text.parse().ok(),
                other => {
                    self.report_wrong_type(at, what, other, None);
                    continue;
                }
            };
            match read {
                Some(port) => {
                    if let Some(by) = port.taken_by() {
                        let meant = (port.inner == port.port).then(|| format!("\"{}:INNER\"", port.port));
                        self.fault(at, format!("nothing can be at port {} inside: {by}", port.inner), meant);
                        continue;
                    }
                    let origin = self.origin(at.start);
                    file.host_ports.push((port, origin));
                }
                None => {
                    self.fault(at, "a port of this machine: PORT or \"PORT:INNER\", from 1 to 65535", None)
                }
            }
        }
    }

    /// Parses the upstream section. No message shows its values, because they can be misplaced passwords.
    fn upstream(&mut self, entry: Entry) -> Option<UpstreamSection> {
        let (key_at, mut proxy, mut auth, mut bypass) = (entry.key_at, None, None, None);
        let mut named = false;
        for entry in self.table(KEYS, "network.upstream", entry.node) {
            let at = entry.node.at.clone();
            match entry.key.as_str() {
                "proxy" => {
                    named = true;
                    let text = self.string("proxy", entry.node);
                    proxy = text.and_then(|text| self.parse_hidden(at, text.parse::<UpstreamUrl>()));
                }
                "auth" => {
                    let text = self.string("auth", entry.node);
                    auth = text.and_then(|text| self.parse_hidden(at, text.parse::<AuthSpec>()));
                }
                "bypass" => {
                    let mut list = Bypass::default();
                    for (text, at) in self.strings(entry) {
                        if let Err(error) = list.add(&text) {
                            let meant = match &error {
                                BypassError::Rule(error) => rule_meant(error),
                                _ => None,
                            };
                            self.fault(at, error.to_string(), meant);
                        }
                    }
                    bypass = Some(list);
                }
                _ => {}
            }
        }
        if !named && !self.is_set {
            self.fault(key_at, "`[network.upstream]` has `proxy`", None);
        }
        Some(UpstreamSection { proxy, auth, bypass })
    }

    fn parse_hidden<T, E: std::fmt::Display>(&mut self, at: Range<usize>, parsed: Result<T, E>) -> Option<T> {
        match parsed {
            Ok(value) => Some(value),
            Err(error) => {
                self.hide(at.clone());
                self.fault(at, error.to_string(), None);
                None
            }
        }
    }

    /// Parses one of a few words. The message joins the last two with "or".
    fn word<T: Copy>(&mut self, key: &str, node: Node, words: &[(&'static str, T)]) -> Option<T> {
        let at = node.at.clone();
        let text = self.string(key, node)?;
        if let Some((_, word)) = words.iter().find(|(name, _)| *name == text) {
            return Some(*word);
        }
        let known: Vec<String> = words.iter().map(|(name, _)| format!("`{name}`")).collect();
        let known = match known.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            _ => known.concat(),
        };
        let meant = nearest(&text, words.iter().map(|(name, _)| *name)).map(quoted);
        self.fault(at, format!("`{key}` is {known}, not `{}`", visible(&text)), meant);
        None
    }

    fn presets(&mut self, entry: Entry, file: &mut PolicyFile) {
        let known = (self.presets)();
        for (name, at) in self.strings(entry) {
            let groups = || preset::expand(&name).unwrap_or_default();
            let client = match self.role {
                FileRole::Ceiling => groups().iter().find_map(|group| group.from_client),
                FileRole::Policy => None,
            };
            if let Some(client) = client {
                let fault = format!(
                    "preset `{name}` asks {client} for its hosts, and a ceiling does not depend on that: name the hosts"
                );
                self.fault(at, fault, None);
                continue;
            }
            if known.contains(&name.as_str()) {
                let origin = self.origin(at.start);
                file.presets.push((name, origin));
                continue;
            }
            let folded = name.to_ascii_lowercase().replace('_', "-");
            let meant = if self.guesses() { nearest(&folded, known.iter().copied()) } else { None };
            let meant = meant.map(quoted);
            self.fault(at, format!("there is no preset `{}`", visible(&name)), meant);
        }
    }

    fn rule_table(&mut self, node: Node, allowances: Allowances, file: &mut PolicyFile) {
        let at = node.at.clone();
        let Value::Table(_) = node.value else {
            return self.report_wrong_type(at, "a `[[network.rule]]` is a table", &node.value, None);
        };
        let entries = self.table(KEYS, "network.rule", node);
        let mut note = Note::default();
        let mut lists = Vec::new();
        let mut grant_only = Vec::new();
        for entry in entries {
            match entry.key.as_str() {
                "allow" => lists.push((entry, Action::Allow)),
                "deny" => lists.push((entry, Action::Deny)),
                "reason" => note.reason = self.string("reason", entry.node),
                "approved_by" => note.approved_by = self.string("approved_by", entry.node),
                "expires" => {
                    grant_only.push(entry.key_at);
                    note.expires = self.day(entry.node);
                }
                "max_upload" => {
                    grant_only.push(entry.key_at.clone());
                    note.max_upload = self.amount(entry, SIZE, "");
                }
                "tls" => {
                    grant_only.push(entry.key_at);
                    note.tls = self.word("tls", entry.node, &TLS).unwrap_or_default();
                }
                _ => {}
            }
        }
        if lists.is_empty() {
            self.fault(at, "a `[[network.rule]]` has `allow`, `deny` or both", None);
        } else if lists.iter().all(|(_, action)| *action == Action::Deny) {
            for at in grant_only {
                self.fault(
                    at,
                    "a deny rule never expires and lets nothing through: this key is for `allow`",
                    None,
                );
            }
        }
        for (entry, action) in lists {
            // Limits of a grant do not apply to a deny rule in the same table.
            let bare = || Note { expires: None, tls: TlsCheck::Auto, max_upload: None, ..note.clone() };
            let note = if action == Action::Deny { bare() } else { note.clone() };
            self.rules(entry, action, allowances, &note, &mut file.rules);
        }
    }

    fn day(&mut self, node: Node) -> Option<Day> {
        let at = node.at;
        let what = "`expires` is a day, YYYY-MM-DD";
        match node.value {
            Value::Date(day) => Some(day),
            Value::Str(text) => match text.parse() {
                Ok(day) => Some(day),
                Err(_) => {
                    self.fault(at, format!("{what}; `{}` is none", visible(&text)), None);
                    None
                }
            },
            other => {
                self.report_wrong_type(at, what, &other, None);
                None
            }
        }
    }

    fn fs(&mut self, node: Node, fs: &mut FsSection) {
        for entry in self.table(KEYS, "fs", node) {
            match entry.key.as_str() {
                "view" => fs.view = self.word("view", entry.node, &VIEWS),
                "ro" => fs.ro = Some(self.binds(entry)),
                "rw" => fs.rw = Some(self.binds(entry)),
                "mask" => fs.mask = self.paths(entry).into_iter().map(|(path, _)| path).collect(),
                "cache" => fs.cache = self.choice(entry, Cache::ALL, Cache::WORDS),
                "home" => fs.home = self.choice(entry, Home::ALL, Home::WORDS),
                "allow_write" => {
                    let names = self.strings(entry).into_iter().map(|(name, at)| {
                        let line = (!self.is_set()).then(|| self.line(at.start));
                        WrittenName { name, line }
                    });
                    fs.allow_write = Some(names.collect());
                }
                _ => {}
            }
        }
    }

    fn effects(&mut self, node: Node, effects: &mut EffectsSection) {
        if let Value::Array(_) | Value::Str(_) = node.value {
            let meant = Some("--effects FILE, on the command line".to_owned());
            return self.report_wrong_type(node.at, "`effects` is a table", &node.value, meant);
        }
        for entry in self.table(KEYS, "effects", node) {
            match entry.key.as_str() {
                "allow" => {
                    let mut kinds = Vec::new();
                    for (text, at) in self.strings(entry) {
                        match text.parse::<EffectKind>() {
                            Ok(kind) => kinds.push(kind),
                            Err(error) => {
                                let meant = error.suggestion().map(|kind| quoted(kind.token()));
                                self.fault(at, error.to_string(), meant);
                            }
                        }
                    }
                    effects.allow = Some(kinds);
                }
                _ => effects.on_excess = self.choice(entry, OnExcess::ALL, OnExcess::WORDS),
            }
        }
    }

    fn sandbox(&mut self, node: Node, sandbox: &mut SandboxSection) {
        for entry in self.table(KEYS, "sandbox", node) {
            match entry.key.as_str() {
                "bridge" => sandbox.bridge = self.choice(entry, Bridge::ALL, Bridge::WORDS),
                "loopback" => sandbox.loopback = self.choice(entry, Loopback::ALL, Loopback::WORDS),
                "unix_sockets" => {
                    sandbox.unix_sockets = self.choice(entry, UnixSockets::ALL, UnixSockets::WORDS);
                }
                "transparent" => {
                    sandbox.transparent = self.choice(entry, Transparent::ALL, Transparent::WORDS);
                }
                "tty" => sandbox.tty = self.choice(entry, Tty::ALL, Tty::WORDS),
                "backend" => sandbox.backend = self.choice(entry, BackendName::ALL, BackendName::WORDS),
                "nested" => sandbox.nested = self.choice(entry, Nested::ALL, Nested::WORDS),
                _ => sandbox.debuggable = self.flag(&entry),
            }
        }
    }

    fn choice<T: Copy>(&mut self, entry: Entry, all: &[T], words: &[&'static str]) -> Option<T> {
        let words: Vec<_> = words.iter().copied().zip(all.iter().copied()).collect();
        self.word(&entry.key, entry.node, &words)
    }

    fn binds(&mut self, entry: Entry) -> Vec<BindSpec> {
        let binds = self.paths::<BindSpec>(entry);
        let mut kept = Vec::new();
        for (mut bind, at) in binds {
            bind.line = Some(self.line(at.start));
            if self.role == FileRole::Ceiling && bind.guest.is_some() {
                let meant = Some(format!("\"{}\"", visible(&bind.host.to_string())));
                self.fault(
                    at,
                    "a ceiling bounds paths of the host; where they are shown is not its business",
                    meant,
                );
            } else {
                kept.push(bind);
            }
        }
        kept
    }

    fn paths<T: FromStr<Err = BindError>>(&mut self, entry: Entry) -> Vec<(T, Range<usize>)> {
        let mut paths = Vec::new();
        for (text, at) in self.strings(entry) {
            match text.parse::<T>() {
                Ok(path) => paths.push((path, at)),
                Err(error) => self.fault(at, error.to_string(), None),
            }
        }
        paths
    }

    fn env(&mut self, node: Node, env: &mut EnvSection) {
        for entry in self.table(KEYS, "env", node) {
            match entry.key.as_str() {
                "pass" => env.pass = Some(self.names(entry)),
                _ => self.variables(entry, env),
            }
        }
    }

    pub(super) fn names(&mut self, entry: Entry) -> Vec<String> {
        let mut names = Vec::new();
        for (name, at) in self.strings(entry) {
            if self.env_name(&name, at) {
                names.push(name);
            }
        }
        names
    }

    fn variables(&mut self, entry: Entry, env: &mut EnvSection) {
        let Value::Table(entries) = entry.node.value else {
            let what = "`set` is a table of names and strings";
            return self.report_wrong_type(entry.node.at, what, &entry.node.value, None);
        };
        for Entry { key, key_at, node } in entries {
            let at = node.at.clone();
            let Some(value) = self.string(&key, node) else { continue };
            if value.contains('\0') {
                self.fault(at, "a variable holds no NUL", None);
            } else if value.starts_with('~') && value.parse::<PathSpec>() == Err(BindError::OtherHome) {
                self.fault(at, BindError::OtherHome.to_string(), None);
            } else if self.env_name(&key, key_at) {
                env.set.push((key, value));
            }
        }
        env.set.sort_unstable();
    }

    fn env_name(&mut self, name: &str, at: Range<usize>) -> bool {
        let fault = if name.is_empty() {
            "a variable has a name"
        } else if name.contains('=') {
            "the name of a variable has no `=`; values are given in `set`"
        } else if name.chars().any(char::is_control) {
            "the name of a variable has no control characters"
        } else if name.chars().any(char::is_whitespace) {
            "the name of a variable has no space"
        } else if name.strip_suffix('*').unwrap_or(name).contains('*') || name == "*" {
            "a `*` stands only at the end of a name, as in `SLURM_*`"
        } else {
            return true;
        };
        self.fault(at, fault, None);
        false
    }

    fn limits(&mut self, node: Node, limits: &mut Limits) {
        for entry in self.table(KEYS, "limits", node) {
            match entry.key.as_str() {
                "timeout" => limits.timeout = self.span(entry),
                "grace" => limits.grace = self.span(entry),
                "cpu_time" => limits.cpu_time = self.span(entry),
                "memory" => limits.memory = self.memory(entry),
                "pids" => limits.pids = self.count(entry, Limit::Pids),
                "open_files" => limits.open_files = self.count(entry, Limit::OpenFiles),
                "file_size" => limits.file_size = self.amount(entry, SIZE, ""),
                "tmpfs_size" => limits.tmpfs_size = self.amount(entry, SIZE, ""),
                "output_size" => limits.output_size = self.amount(entry, SIZE, ""),
                "connections" => limits.connections = self.count(entry, Limit::Connections),
                "audit_size" => limits.audit_size = self.amount(entry, SIZE, ""),
                "connections_per_host" => {
                    limits.connections_per_host = self.count(entry, Limit::ConnectionsPerHost)
                }
                _ => {}
            }
        }
    }

    fn span(&mut self, entry: Entry) -> Option<Span> {
        self.amount(entry, "a duration like \"10m\"", "s")
    }

    fn memory(&mut self, entry: Entry) -> Option<Size> {
        let at = entry.node.at.clone();
        // A number of bytes is accepted if it is valid.
        let is_short = |number| (0..i128::from(LEAST_MEMORY.get())).contains(&number);
        let unit = if matches!(entry.node.value, Value::Int(number) if is_short(number)) { "M" } else { "" };
        let size = self.amount(entry, SIZE, unit)?;
        if size < LEAST_MEMORY {
            let fault = format!("`memory`: below {LEAST_MEMORY} no command starts");
            self.fault(at, fault, memory_meant(size).map(|meant| quoted(&meant)));
            return None;
        }
        Some(size)
    }

    /// Parses a string with a unit. `unit` is the most likely unit of a bare number.
    fn amount<T: FromStr<Err = LimitError>>(&mut self, entry: Entry, what: &str, unit: &str) -> Option<T> {
        let at = entry.node.at;
        match entry.node.value {
            Value::Str(text) => match text.parse() {
                Ok(amount) => return Some(amount),
                Err(error) => {
                    let meant = amount_meant::<T>(&text, what, unit);
                    self.fault(at, format!("`{}`: {error}", entry.key), meant);
                }
            },
            other => {
                let meant = match &other {
                    Value::Int(number) => amount_meant::<T>(&number.to_string(), what, unit),
                    _ => None,
                };
                self.report_wrong_type(at, &format!("`{}` is {what}", entry.key), &other, meant);
            }
        }
        None
    }

    fn count(&mut self, entry: Entry, limit: Limit) -> Option<u32> {
        let range = limit.range();
        let what = format!("`{}` is a whole number from {} to {}", entry.key, range.start(), range.end());
        let at = entry.node.at;
        let count = |number: i128| u32::try_from(number).ok().filter(|count| range.contains(count));
        match entry.node.value {
            Value::Int(number) => {
                let count = count(number);
                if count.is_none() {
                    self.fault(at, what, None);
                }
                count
            }
            other => {
                let meant = match &other {
                    Value::Str(text) => text.trim().parse().ok().and_then(count),
                    _ => None,
                };
                self.report_wrong_type(at, &what, &other, meant.map(|count| count.to_string()));
                None
            }
        }
    }
}

/// Guesses an amount that has spaces, written-out units, or no unit.
fn amount_meant<T: FromStr>(text: &str, what: &str, unit: &str) -> Option<String> {
    let mut spelled = text.to_ascii_lowercase();
    spelled.retain(|c| !c.is_whitespace());
    for (word, short) in [
        ("seconds", "s"),
        ("second", "s"),
        ("secs", "s"),
        ("sec", "s"),
        ("minutes", "m"),
        ("minute", "m"),
        ("mins", "m"),
        ("min", "m"),
        ("hours", "h"),
        ("hour", "h"),
        ("days", "d"),
        ("day", "d"),
    ] {
        spelled = spelled.replace(word, short);
    }
    let bare = !spelled.is_empty() && spelled.bytes().all(|byte| byte.is_ascii_digit());
    let spelled = if bare { spelled + unit } else { spelled };
    // These are the spellings of docs/limits.md.
    let spelled = match what == SIZE {
        true => spelled.to_ascii_uppercase().replace('I', "i").replace("KB", "kB"),
        false => spelled,
    };
    spelled.parse::<T>().is_ok().then(|| quoted(&spelled))
}

fn quoted(word: &str) -> String {
    format!("\"{word}\"")
}

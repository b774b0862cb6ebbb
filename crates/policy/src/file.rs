//! Policy files and allow-lists: text in, checked values out.
//!
//! Nothing here opens a file, expands `~` or knows a directory. A file loads whole or not at all, and every
//! fault in it is reported at once. A key that this version does not act on is refused, never ignored:
//! ignoring a limit would be the worst way to honour it.

use std::fmt;

use crate::effect::EffectKind;
use crate::grammar::{Allowances, RuleSpec};
use crate::host_port::HostPort;
use crate::limits::Limits;
use crate::policy::PolicyBuilder;
use crate::rule::{Action, Note, Origin};
use crate::sandbox::{Bridge, Cache, Home, Loopback, Nested, OnExcess, Transparent, Tty, UnixSockets};
use crate::terms::{Ech, Mode};
use crate::upstream::{AuthSpec, Bypass, UpstreamUrl};

mod bind;
mod error;
mod isolation;
pub(crate) mod keys;
pub(crate) mod raw;
pub(crate) mod reader;
pub(crate) mod sections;
mod settings;

pub use bind::{BindError, BindSpec, PathSpec};
pub use error::{FileError, Problem};
pub use keys::nearest;
use reader::{Reader, Typed};
pub use sections::{PRESET_STAGE, stage_fault};
pub use settings::SET;

/// Bytes of a policy file or allow-list that are read at most; a larger one is refused, not cut.
pub const MAX_FILE_BYTES: usize = 16 << 20;

/// Rules that one file, list or set of effects may have; more are refused. Deciding costs the same at any number.
pub const MAX_RULES: usize = 200_000;

/// The `schema` that this version reads.
pub const SCHEMA: i128 = 1;

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileRole {
    /// It grants: what it lists is allowed, and nothing else.
    #[default]
    Policy,
    /// It bounds what others grant and declare. A host that it does not list is not allowed; of files, variables and
    /// limits it bounds only what it names.
    Ceiling,
}

/// A policy file, every part of it checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PolicyFile {
    /// What it was read as. The rules of a ceiling are no grants.
    pub role: FileRole,
    /// The stage's name in every record.
    pub stage: Option<String>,
    /// It has a `[network]`, or says in another way what may be reached, if only that nothing may.
    pub network: bool,
    /// The presets of `[network]`, each one of those that are known, with its line.
    pub presets: Vec<(String, Origin)>,
    /// The rules of `[network]`, in the order `allow`, `deny`, then each `[[network.rule]]`.
    pub rules: Vec<FileRule>,
    /// Only a policy: whether names that no rule grants are refused.
    pub mode: Option<Mode>,
    /// Whether addresses behind a NAT64 translator are judged by the one inside. Of a ceiling: `false` forbids it.
    pub nat64: Option<bool>,
    /// What becomes of a TLS hello that hides its name. Of a ceiling: `refuse` holds for every run.
    pub ech: Option<Ech>,
    /// Only a policy: whether SOCKS5 is offered as well.
    pub socks5: Option<bool>,
    /// Only a policy: services of this machine that the stage finds on its own loopback, with their lines. Each is a rule.
    pub host_ports: Vec<(HostPort, Origin)>,
    /// `[network.upstream]`. Of a ceiling: every connection goes there.
    pub upstream: Option<UpstreamSection>,
    /// Only a ceiling: `false` forbids report mode.
    pub report: Option<bool>,
    /// Only a ceiling: `true` refuses a stage that declares `Network` without naming hosts.
    pub require_hosts: Option<bool>,
    /// `[fs]`.
    pub fs: FsSection,
    /// `[env]`.
    pub env: EnvSection,
    /// `[limits]`.
    pub limits: Limits,
    /// `[effects]`.
    pub effects: EffectsSection,
    /// `[sandbox]`, only of a policy.
    pub sandbox: SandboxSection,
    /// `[audit] sync`, only of a policy: whether each line is on the disk before anything is dialed or answered.
    pub audit_sync: Option<bool>,
    /// Where the stage works, if the file says so. Our own format does not: the stage works where the caller is.
    pub work: Option<Work>,
}

/// One rule of a file, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileRule {
    /// The text as typed.
    pub text: String,
    /// What it says.
    pub spec: RuleSpec,
    /// The file and line.
    pub origin: Origin,
    /// What the author said about it.
    pub note: Note,
}

/// What the stage sees of the host's files, the narrowest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum View {
    /// Only what is declared, plus `/nix/store` where it exists.
    Minimal,
    /// The system's trees and the toolchains on PATH read-only, the working directory writable.
    #[default]
    Project,
    /// The whole tree read-only with credentials masked.
    Host,
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Minimal => "minimal",
            Self::Project => "project",
            Self::Host => "host",
        })
    }
}

/// Where a stage works whose policy says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// An empty writable directory of its own, gone at the end of the run.
    Scratch,
    /// This directory of the host, writable.
    Host(PathSpec),
}

/// `[fs]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FsSection {
    /// `view`. Of a ceiling: the widest one.
    pub view: Option<View>,
    /// `ro`. Of a ceiling: what is shown at most; `None` bounds nothing, an empty list allows nothing.
    pub ro: Option<Vec<BindSpec>>,
    /// `rw`. Of a ceiling: what is writable at most, in the same way.
    pub rw: Option<Vec<BindSpec>>,
    /// `mask`. Masks of all files add up.
    pub mask: Vec<PathSpec>,
    /// `allow_write`: protected names, as written. Of a ceiling: those that may be let through at most.
    pub allow_write: Option<Vec<String>>,
    /// Only a policy: `cache`.
    pub cache: Option<Cache>,
    /// Only a policy: `home`.
    pub home: Option<Home>,
}

/// `[network.upstream]`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamSection {
    /// `proxy`. Only `--set` may leave it to others to say which proxy it is about.
    pub proxy: Option<UpstreamUrl>,
    /// `auth`. Relative paths start at the file.
    pub auth: Option<AuthSpec>,
    /// `bypass`.
    pub bypass: Option<Bypass>,
}

/// `[effects]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EffectsSection {
    /// The kinds that a stage may declare; `None`: all.
    pub allow: Option<Vec<EffectKind>>,
    /// Only a policy: what happens when a stage declares more than it is granted.
    pub on_excess: Option<OnExcess>,
}

/// `[sandbox]`: how a stage is held.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SandboxSection {
    /// `bridge`.
    pub bridge: Option<Bridge>,
    /// `loopback`.
    pub loopback: Option<Loopback>,
    /// `unix_sockets`.
    pub unix_sockets: Option<UnixSockets>,
    /// `transparent`.
    pub transparent: Option<Transparent>,
    /// `debuggable`: whether the stage may trace its own processes.
    pub debuggable: Option<bool>,
    /// `tty`.
    pub tty: Option<Tty>,
    /// `nested`.
    pub nested: Option<Nested>,
}

/// `[env]`. No name holds `=`, nothing holds a NUL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EnvSection {
    /// Names whose value is passed on. Of a ceiling: the only ones that may be; `None` bounds nothing.
    pub pass: Option<Vec<String>>,
    /// Names and values, sorted by name. A value that begins with `~/`, or is `~`, is a path below HOME.
    pub set: Vec<(String, String)>,
}

/// The names of the presets that exist. Asked for only where a file has `presets`: most have none, and to know the names means
/// to read the presets.
pub type PresetNames<'a> = &'a dyn Fn() -> Vec<&'static str>;

impl PolicyFile {
    /// Parses TOML, or JSON if the first character that is not space is `{`. JSON with `ro_binds` and without `schema` is
    /// read as the isolation policy that other programs write.
    ///
    /// `presets` gives the names that `[network] presets` may hold. `allow_any` and `allow_shared_suffix` of a file hold for
    /// the rules of that file only.
    ///
    /// # Errors
    ///
    /// [`FileError`] with every fault that was found.
    pub fn parse(
        text: &str,
        path_shown: &str,
        role: FileRole,
        presets: PresetNames<'_>,
    ) -> Result<Self, FileError> {
        let mut reader = Reader::new(text, path_shown).of(role, presets);
        let mut file = Self { role, ..Self::default() };
        if reader.fits() {
            if reader.text().trim_start().starts_with('{') {
                match reader.parsed(raw::json) {
                    Some(document) if isolation::is_isolation(&document) => {
                        reader.isolation(document, &mut file)
                    }
                    Some(document) => reader.document(document, &mut file),
                    None => {}
                }
            } else if let Some(document) = reader.parsed(raw::toml_or_advice) {
                reader.document(document, &mut file);
            }
        }
        reader.counted(file.rules.len() + file.host_ports.len());
        reader.finish(file)
    }

    /// Adds the rules of the file, also those of its `host_port`, to a layer of a policy. Its presets are for whoever knows what they hold.
    pub fn apply(&self, builder: &mut PolicyBuilder) {
        for rule in &self.rules {
            rule.apply(builder);
        }
        for (port, origin) in &self.host_ports {
            port.grant(builder, origin.clone());
        }
    }
}

impl FileRule {
    /// Adds the rule to a policy.
    pub fn apply(&self, builder: &mut PolicyBuilder) {
        builder.push(self.spec.clone(), &self.text, self.origin.clone(), self.note.clone());
    }
}

/// Parses an allow-list or deny-list: a rule a line, empty lines, and comments from a `#` that starts a line
/// or follows a space.
///
/// # Errors
///
/// [`FileError`] with every fault that was found. More than [`MAX_RULES`] are one.
pub fn parse_rule_lines(text: &str, path_shown: &str, action: Action) -> Result<Vec<FileRule>, FileError> {
    let mut reader = Reader::new(text, path_shown);
    let mut rules = Vec::new();
    if reader.fits() {
        let mut start = 0;
        for line in reader.text().split_inclusive('\n') {
            let comment = line
                .char_indices()
                .find(|(at, c)| {
                    *c == '#'
                        && line.get(..*at).is_some_and(|head| !head.ends_with(|c: char| !c.is_whitespace()))
                })
                .map_or(line.len(), |(at, _)| at);
            let rule = line.get(..comment).unwrap_or(line);
            let text = rule.trim();
            let at = start + (rule.len() - rule.trim_start().len());
            start += line.len();
            if !text.is_empty() {
                let rule = Typed { text, at: at..at + text.len(), inside: Some(at) };
                rules.extend(reader.rule(&rule, action, Allowances::default(), &Note::default()));
            }
        }
    }
    reader.counted(rules.len());
    reader.finish(rules)
}

#[cfg(test)]
mod tests;

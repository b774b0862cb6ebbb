//! Reads policy files and allow-lists into checked values.
//!
//! Nothing here opens a file, expands `~` or knows a directory. A file loads whole or not at all, and every fault
//! is reported at once. A key without effect in this version is refused, because ignoring a limit would be
//! dangerous.

use std::fmt;

use crate::effect::EffectKind;
use crate::host_port::HostPort;
use crate::limits::Limits;
use crate::policy::PolicyBuilder;
use crate::rule::Origin;
use crate::sandbox::{
    BackendName, Bridge, Cache, Home, Loopback, Nested, OnExcess, Transparent, Tty, UnixSockets,
};
use crate::terms::{Ech, Mode};
use crate::upstream::{AuthSpec, Bypass, UpstreamUrl};

mod bind;
mod error;
mod isolation;
pub(crate) mod keys;
mod parse;
pub(crate) mod raw;
pub(crate) mod reader;
mod rule;
pub(crate) mod sections;
mod settings;

pub use bind::{BindError, BindSpec, PathSpec};
pub use error::{FileError, Problem};
pub use keys::nearest;
pub use parse::parse_rule_lines;
pub use reader::{MAX_FILE_BYTES, MAX_RULES, PresetNames};
pub use rule::{FileRole, FileRule};
pub use sections::{PRESET_STAGE, stage_fault};
pub use settings::SET;

/// The `schema` number that this version reads.
pub const SCHEMA: i128 = 1;

/// A policy file, checked in every part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PolicyFile {
    /// The purpose for which it was read. The rules of a ceiling are not grants.
    pub role: FileRole,
    /// The stage's name in every record.
    pub stage: Option<String>,
    /// Whether it says what may be reached, with `[network]` or in another way, even if it allows nothing.
    pub network: bool,
    /// The presets of `[network]`, all of them known, with their lines.
    pub presets: Vec<(String, Origin)>,
    /// The rules of `[network]`, in the order `allow`, `deny`, then each `[[network.rule]]`.
    pub rules: Vec<FileRule>,
    /// Whether names that no rule grants are refused. Policies only.
    pub mode: Option<Mode>,
    /// Whether addresses behind a NAT64 translator are judged by the one inside. In a ceiling, `false` forbids it.
    pub nat64: Option<bool>,
    /// The treatment of a TLS hello that hides its name. In a ceiling, `refuse` holds for every run.
    pub ech: Option<Ech>,
    /// Whether SOCKS5 is offered as well. Policies only.
    pub socks5: Option<bool>,
    /// Services of this machine that the stage finds on its own loopback, with their lines. Each is a rule.
    /// Policies only.
    pub host_ports: Vec<(HostPort, Origin)>,
    /// The section `[network.upstream]`. In a ceiling, every connection must go there.
    pub upstream: Option<UpstreamSection>,
    /// Whether report mode is allowed. Ceilings only.
    pub report: Option<bool>,
    /// Whether a stage that declares `Network` without naming hosts is refused. Ceilings only.
    pub require_hosts: Option<bool>,
    /// The section `[fs]`.
    pub fs: FsSection,
    /// The section `[env]`.
    pub env: EnvSection,
    /// The section `[limits]`.
    pub limits: Limits,
    /// The section `[effects]`.
    pub effects: EffectsSection,
    /// The section `[sandbox]`. Policies only.
    pub sandbox: SandboxSection,
    /// The key `[audit] sync`: whether each line is on the disk before anything is dialed or answered. Policies
    /// only.
    pub audit_sync: Option<bool>,
    /// The work directory, if the file names one. Our own format does not: the stage works where the caller is.
    pub work: Option<WorkDir>,
}

/// The part of the host's files that the stage sees, the narrowest first.
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

/// The work directory of a stage, if its policy names one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkDir {
    /// An empty writable directory, removed at the end of the run.
    Scratch,
    /// A directory of the host, writable.
    Host(PathSpec),
}

/// A protected name in `allow_write`, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenName {
    /// The name.
    pub name: String,
    /// The line of the file, from 1; `None` if it is not from a file.
    pub line: Option<u32>,
}

/// The section `[fs]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FsSection {
    /// The key `view`. In a ceiling, the widest allowed.
    pub view: Option<View>,
    /// The key `ro`. In a ceiling, the most that may be shown: `None` does not bound it, an empty list allows nothing.
    pub ro: Option<Vec<BindSpec>>,
    /// The key `rw`. In a ceiling, the most that may be writable, in the same way.
    pub rw: Option<Vec<BindSpec>>,
    /// The key `mask`. Masks of all files add up.
    pub mask: Vec<PathSpec>,
    /// The key `allow_write`: protected names, as written. In a ceiling, the most that may be allowed.
    pub allow_write: Option<Vec<WrittenName>>,
    /// The key `cache`. Policies only.
    pub cache: Option<Cache>,
    /// The key `home`. Policies only.
    pub home: Option<Home>,
}

/// The section `[network.upstream]`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamSection {
    /// The key `proxy`. Only `--set` may leave out which proxy it concerns.
    pub proxy: Option<UpstreamUrl>,
    /// The key `auth`. Relative paths start at the file.
    pub auth: Option<AuthSpec>,
    /// The key `bypass`.
    pub bypass: Option<Bypass>,
}

/// The section `[effects]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EffectsSection {
    /// The kinds that a stage may declare; `None` means all.
    pub allow: Option<Vec<EffectKind>>,
    /// The reaction to a stage that declares more than it is granted. Policies only.
    pub on_excess: Option<OnExcess>,
}

/// The section `[sandbox]`, which says how a stage is confined.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SandboxSection {
    /// The key `bridge`.
    pub bridge: Option<Bridge>,
    /// The key `loopback`.
    pub loopback: Option<Loopback>,
    /// The key `unix_sockets`.
    pub unix_sockets: Option<UnixSockets>,
    /// The key `transparent`.
    pub transparent: Option<Transparent>,
    /// The key `debuggable`: whether the stage may trace its own processes.
    pub debuggable: Option<bool>,
    /// The key `tty`.
    pub tty: Option<Tty>,
    /// The key `nested`.
    pub nested: Option<Nested>,
    /// The key `backend`.
    pub backend: Option<BackendName>,
}

impl SandboxSection {
    /// Returns the settings of this section, completed by those of `other`.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            bridge: self.bridge.or(other.bridge),
            loopback: self.loopback.or(other.loopback),
            unix_sockets: self.unix_sockets.or(other.unix_sockets),
            transparent: self.transparent.or(other.transparent),
            debuggable: self.debuggable.or(other.debuggable),
            tty: self.tty.or(other.tty),
            nested: self.nested.or(other.nested),
            backend: self.backend.or(other.backend),
        }
    }
}

/// The section `[env]`. No name contains `=`, and nothing contains a NUL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EnvSection {
    /// The names whose values are passed on. In a ceiling, the only ones allowed; `None` allows all.
    pub pass: Option<Vec<String>>,
    /// Names and values, sorted by name. A value that is `~` or begins with `~/` is a path below HOME.
    pub set: Vec<(String, String)>,
}

impl PolicyFile {
    /// Adds the rules of the file, and those of its `host_port`, to a layer of a policy. The caller adds those of
    /// its presets.
    pub fn apply(&self, builder: &mut PolicyBuilder) {
        for rule in &self.rules {
            rule.apply(builder);
        }
        for (port, origin) in &self.host_ports {
            port.grant(builder, origin.clone());
        }
    }
}

#[cfg(test)]
mod tests;

//! The parsed request of a caller, before any file is read.

use std::ffi::OsString;
use std::path::PathBuf;

use exeat_files::protected::LetThrough;
use exeat_files::request::{Bind, Bounds, Work};
use exeat_policy::file::SandboxSection;
use exeat_policy::{Cache, EffectSet, Home, HostPort, Layers, Limits, Mode, PolicyBuilder, View};

use crate::upstream::NextHop;

/// Rules, files, presets and bounds as a caller gives them. All of them add up; a deny rule always wins.
#[derive(Debug, Clone, Default)]
pub struct PolicyRequest {
    /// Allow rules, or `@FILE` of a list.
    pub allow: Vec<String>,
    /// Deny rules, or `@FILE` of a list.
    pub deny: Vec<String>,
    /// Allow rules whose TLS server name is not checked.
    pub tls_off: Vec<String>,
    /// Services of this machine's loopback.
    pub host_port: Vec<HostPort>,
    /// Names of presets, or `auto`.
    pub preset: Vec<String>,
    /// What happens to what no rule allows; `None`: what the files say.
    pub mode: Option<Mode>,
    /// Policy files, `-`, `fd:N`, or JSON itself.
    pub policy: Vec<PathBuf>,
    /// Ceilings besides those of the site and the user.
    pub ceiling: Vec<PathBuf>,
    /// The effects that the stage declares.
    pub effects: Option<Effects>,
    /// Another proxy: its URL, `env` or `none`.
    pub upstream_proxy: Option<String>,
    /// `KEY=VALUE` of a policy file; they count before files.
    pub set: Vec<String>,
    /// Rules that are parsed already.
    pub rules: PolicyBuilder,
    /// A whole policy that is parsed already, which replaces [`rules`](Self::rules). See
    /// [`Policy::to_layers`](exeat_policy::Policy::to_layers).
    pub layers: Option<Layers>,
    /// Another proxy that is parsed already; it replaces [`upstream_proxy`](Self::upstream_proxy).
    pub next_hop: Option<NextHop>,
    /// The base view; `None`: what the files say.
    pub view: Option<View>,
    /// Read-only binds, in their places.
    pub ro: Vec<Bind>,
    /// Writable binds, in their places.
    pub rw: Vec<Bind>,
    /// Paths to hide, in their places.
    pub mask: Vec<PathBuf>,
    /// Bounds on files and variables besides those of ceilings.
    pub bounds: Vec<Bounds>,
    /// Protected names to let through.
    pub allow_write: Vec<LetThrough>,
    /// The stage's own directory, if it does not work in the caller's.
    pub work: Option<Work>,
    /// The package caches; `None`: what the files say.
    pub cache: Option<Cache>,
    /// Where the stage's HOME is; `None`: what the files say.
    pub home: Option<Home>,
    /// Rules about the environment, after those of files.
    pub env: Vec<EnvRule>,
    /// Limits; each one replaces that of files.
    pub limits: Limits,
    /// The settings of `[sandbox]`; each one replaces that of files.
    pub sandbox: SandboxSection,
    /// Whether SOCKS5 is offered, whatever the files say.
    pub socks5: bool,
    /// Whether each line of the record is on the disk before what it describes is done, whatever the files say.
    pub audit_sync: bool,
    /// The stage's name; `None`: what the files say.
    pub stage: Option<String>,
    /// The ceilings that apply without being named.
    pub site: Site,
    /// Whether the project's own file counts, within the ceilings.
    pub uses_project: bool,
    /// Whether somebody else's proxy decides about hosts, so that nothing here may.
    pub via: bool,
    /// Whether package managers are asked whatever they have said today.
    pub asks_anew: bool,
    /// A lock file: the stage may reach only what it reached before.
    pub lock: Option<PathBuf>,
}

impl PolicyRequest {
    /// Returns whether it says nothing about a policy.
    pub fn is_empty(&self) -> bool {
        let Self { allow, deny, tls_off, host_port, preset, mode, policy, .. } = self;
        let Self { ceiling, effects, upstream_proxy, set, .. } = self;
        [allow, deny, tls_off, preset, set].iter().all(|list| list.is_empty())
            && policy.is_empty()
            && ceiling.is_empty()
            && host_port.is_empty()
            && (mode.is_none() && effects.is_none() && upstream_proxy.is_none())
    }
}

/// The effects that a stage declares. They bound the other grants. Without any, they are the grants themselves.
#[derive(Debug, Clone)]
pub enum Effects {
    /// A file, or JSON itself.
    File(PathBuf),
    /// A parsed set.
    Set(EffectSet),
}

/// The ceilings that apply to a stage without being named: by default those of the site and of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    pub(crate) has_ceilings: bool,
}

impl Site {
    /// Turns these ceilings off: the stage may then do more than the site and the user permit `exeat run`.
    #[must_use]
    pub const fn none() -> Self {
        Self { has_ceilings: false }
    }
}

impl Default for Site {
    fn default() -> Self {
        Self { has_ceilings: true }
    }
}

/// One rule about the stage's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvRule {
    /// Copy the caller's value; nothing when the caller has none.
    Pass(OsString),
    /// Set a value.
    Set(OsString, OsString),
    /// Take it away: whatever an earlier rule or the list of passed variables says. The variables of the proxy stay.
    Remove(OsString),
}

//! Describes the request of a caller before any file is read.

use std::ffi::OsString;
use std::path::PathBuf;

use exeat_files::protected::LetThrough;
use exeat_files::request::{Bind, Bounds, WorkDir};
use exeat_policy::file::SandboxSection;
use exeat_policy::{Cache, EffectSet, Home, HostPort, Layers, Limits, Mode, PolicyBuilder, View};

use crate::upstream::NextHop;

/// The rules, files, presets and bounds of a caller. All of them add up, and a deny rule always wins.
#[derive(Debug, Clone, Default)]
pub struct PolicyRequest {
    /// Allow rules, or `@FILE` to read a list.
    pub allow: Vec<String>,
    /// Deny rules, or `@FILE` to read a list.
    pub deny: Vec<String>,
    /// Allow rules whose TLS server name is not checked.
    pub tls_off: Vec<String>,
    /// Services on this machine's loopback that the stage may reach.
    pub host_port: Vec<HostPort>,
    /// Names of presets, or `auto`.
    pub preset: Vec<String>,
    /// The handling of targets that no rule allows; `None` leaves it to the files.
    pub mode: Option<Mode>,
    /// Policy files, `-`, `fd:N`, or JSON text.
    pub policy: Vec<PathBuf>,
    /// Ceilings besides those of the site and the user.
    pub ceiling: Vec<PathBuf>,
    /// The effects that the stage declares.
    pub effects: Option<Effects>,
    /// The upstream proxy: its URL, `env` or `none`.
    pub upstream_proxy: Option<String>,
    /// `KEY=VALUE` pairs of a policy file; they win over files.
    pub set: Vec<String>,
    /// Rules that are parsed already.
    pub rules: PolicyBuilder,
    /// A whole parsed policy, which replaces [`rules`](Self::rules). See [`Policy::to_layers`](exeat_policy::Policy::to_layers).
    pub layers: Option<Layers>,
    /// A parsed upstream proxy, which replaces [`upstream_proxy`](Self::upstream_proxy).
    pub next_hop: Option<NextHop>,
    /// The base view; `None` leaves it to the files.
    pub view: Option<View>,
    /// Read-only binds with absolute paths.
    pub ro: Vec<Bind>,
    /// Writable binds with absolute paths.
    pub rw: Vec<Bind>,
    /// Absolute paths to hide.
    pub mask: Vec<PathBuf>,
    /// Bounds on files and variables besides those of ceilings.
    pub bounds: Vec<Bounds>,
    /// Protected names that the stage may write.
    pub allow_write: Vec<LetThrough>,
    /// The stage's own work directory, if it does not work in the caller's.
    pub work: Option<WorkDir>,
    /// The package caches; `None` leaves them to the files.
    pub cache: Option<Cache>,
    /// The stage's HOME; `None` leaves it to the files.
    pub home: Option<Home>,
    /// Rules about the environment, applied after those of files.
    pub env: Vec<EnvRule>,
    /// Limits; each one replaces that of files.
    pub limits: Limits,
    /// The settings of `[sandbox]`; each one replaces that of files.
    pub sandbox: SandboxSection,
    /// Whether SOCKS5 is offered, whatever the files say.
    pub socks5: bool,
    /// Whether each line of the record reaches the disk before the action that it describes, whatever the files say.
    pub audit_sync: bool,
    /// The stage's name; `None` leaves it to the files.
    pub stage: Option<String>,
    /// The ceilings that apply without being named.
    pub site: Site,
    /// Whether the project's own file applies, within the ceilings.
    pub uses_project: bool,
    /// Whether another proxy decides about hosts, so that no rule about hosts is accepted here.
    pub via: bool,
    /// Whether package managers are asked although an answer of today is stored.
    pub asks_anew: bool,
    /// A lock file, which bounds the stage to the targets that it reached before.
    pub lock: Option<PathBuf>,
}

impl PolicyRequest {
    /// Returns whether the request contains nothing about a policy.
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

/// The effects that a stage declares. They bound the other grants, and without other grants they are the grants.
#[derive(Debug, Clone)]
pub enum Effects {
    /// A file, or JSON text.
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

/// A rule about the stage's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvRule {
    /// Copies the caller's value, if the caller has one.
    Pass(OsString),
    /// Sets a value.
    Set(OsString, OsString),
    /// Removes the variable, whatever an earlier rule or the list of passed variables says. Variables of the proxy stay.
    Remove(OsString),
}

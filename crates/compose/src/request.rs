//! What a caller says of a policy, already parsed, before any file is read.

use std::ffi::OsString;
use std::path::PathBuf;

use exeat_files::request::Bind;
use exeat_policy::{HostPort, Mode};

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
    /// What the stage declares: a file, or JSON itself.
    pub effects: Option<String>,
    /// Another proxy: its URL, `env` or `none`.
    pub upstream_proxy: Option<String>,
    /// `KEY=VALUE` of a policy file; they count before files.
    pub set: Vec<String>,
    /// Read-only binds, in their places.
    pub ro: Vec<Bind>,
    /// Writable binds, in their places.
    pub rw: Vec<Bind>,
    /// Paths to hide, in their places.
    pub mask: Vec<PathBuf>,
    /// Whether somebody else's proxy decides about hosts, so that nothing here may.
    pub via: bool,
    /// Whether package managers are asked whatever they have said today.
    pub asks_anew: bool,
    /// What the stage reached before is all that it may reach.
    pub lock: Option<LockAt>,
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

/// A lock, and whose list of it holds.
#[derive(Debug, Clone)]
pub struct LockAt {
    /// The file.
    pub file: PathBuf,
    /// The stage, where a flag names it.
    pub stage: Option<String>,
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

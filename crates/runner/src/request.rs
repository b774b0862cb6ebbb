//! What a caller asks for: the flags and files of one run, already parsed, before the host is looked at.
//!
//! Nothing here touches the machine; [`plan`](crate::plan::plan) does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use exeat_files::protected::LetThrough;
pub use exeat_policy::{Bridge, Cache, Home, Loopback, Nested, Transparent, Tty, UnixSockets};
use exeat_policy::{HostPort, Limits, Policy};
use exeat_proxy::UpstreamProxy;
use exeat_record::Source;

use crate::bounds::Bounds;
use crate::signing::Signing;

/// One run of a stage.
#[derive(Debug)]
pub struct Request {
    /// The command and its arguments. An empty command is refused by the plan.
    pub command: Vec<OsString>,
    /// Absolute path of the working directory: the stage starts there.
    pub cwd: PathBuf,
    /// The effective policy.
    pub policy: Policy,
    /// The files that it was made from, for the record.
    pub sources: Vec<Source>,
    /// What of the host's file tree the stage sees.
    pub files: Files,
    /// What is added to the stage's environment, in order; the last rule for a name wins.
    pub env: Vec<EnvRule>,
    /// The caller's environment: the source of passed variables, HOME, PATH and the XDG directories.
    pub host_env: BTreeMap<OsString, OsString>,
    /// How TCP in the namespace reaches the proxy.
    pub bridge: Bridge,
    /// Offer the stage SOCKS5 beside the HTTP proxy.
    pub socks5: bool,
    /// What is held tighter than usual, or looser.
    pub hardening: Hardening,
    /// What the stage gets of a terminal.
    pub tty: Tty,
    /// Services of this machine that the stage finds on its own loopback. The policy has to grant each: see [`HostPort::grant`].
    pub host_ports: Vec<HostPort>,
    /// Whether programs are served that do not know of the proxy.
    pub transparent: Transparent,
    /// The Unix socket of somebody else's proxy: it decides in place of `policy`, which is then empty, and its record has
    /// the decisions.
    pub via: Option<PathBuf>,
    /// Another proxy that connections are left to.
    pub upstream: Option<UpstreamProxy>,
    /// A name for the stage, in every audit record.
    pub stage: Option<String>,
    /// Labels of the run, in `run_start`.
    pub labels: Vec<(String, String)>,
    /// Where the audit record goes.
    pub audit: AuditTo,
    /// Each line of the record is on the disk (fdatasync(2)) before what it tells of is done. A record that is no file is
    /// refused.
    pub audit_sync: bool,
    /// What signs it.
    pub signing: Signing,
    /// What the stage may use. A stage that is stopped for it ends as [`Ended::Timeout`](crate::Ended::Timeout) or
    /// [`Ended::Limit`](crate::Ended::Limit).
    pub limits: Limits,
}

/// What of the host's file tree the stage sees.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// The base view.
    pub view: View,
    /// Additional read-only binds.
    pub ro: Vec<Bind>,
    /// Additional writable binds.
    pub rw: Vec<Bind>,
    /// Paths that the stage must not see, files or directories.
    pub mask: Vec<PathBuf>,
    /// The package caches.
    pub cache: Cache,
    /// Where the stage's HOME is. A private one takes a cache.
    pub home: Home,
    /// Protected names that are writable, and neither watched nor moved aside; `.git`: all that git obeys in repositories.
    /// Recorded in the plan.
    pub allow_write: Vec<LetThrough>,
    /// What the ceilings allow at most; all of them hold.
    pub bounds: Vec<Bounds>,
    /// What the stage declared, where that is more than a grant: binds show no more than this.
    pub declared: Option<Declared>,
    /// A directory of its own in which the stage starts, in place of the working directory.
    pub work: Option<Work>,
    /// Files that decided about this run, such as its policy, as the caller named them: read-only to the stage. Absolute.
    pub deciding: Vec<PathBuf>,
}

/// The files that a stage says it needs. A path that nothing in the view shows is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// What it reads. Absolute.
    pub read: Vec<PathBuf>,
    /// What it writes, and reads. Absolute.
    pub write: Vec<PathBuf>,
    /// Run with less, and say so, instead of refusing.
    pub narrow: bool,
}

/// The place of [`Work`] in the sandbox.
pub const WORK: &str = "/work";

/// The directory [`WORK`] of a stage. It is the stage's HOME too, and where it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Empty, private, writable, and gone with the run.
    Scratch,
    /// This directory of the host, writable but for its protected paths.
    Host(PathBuf),
}

/// The base view of the file tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum View {
    /// The system's trees and the toolchains on PATH read-only, the working directory writable.
    #[default]
    Project,
    /// The whole tree read-only with credentials masked.
    Host,
    /// Only what is declared, plus `/nix/store` where it exists.
    Minimal,
}

impl View {
    /// The one of two that shows less.
    #[must_use]
    pub fn narrower(self, other: Self) -> Self {
        let width = |view| match view {
            Self::Minimal => 0,
            Self::Project => 1,
            Self::Host => 2,
        };
        if width(other) < width(self) { other } else { self }
    }
}

impl std::fmt::Display for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Project => "project",
            Self::Host => "host",
            Self::Minimal => "minimal",
        })
    }
}

/// A path of the host shown at a path in the sandbox. Both absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// The path on the host.
    pub host: PathBuf,
    /// The path in the sandbox.
    pub guest: PathBuf,
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

/// What is held tighter than usual, or looser. The default is what a stage gets that says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hardening {
    /// What the stage may connect to on its own loopback.
    pub loopback: Loopback,
    /// Whether the stage has Unix sockets.
    pub unix_sockets: UnixSockets,
    /// The stage may trace processes of its own, as strace and gdb do (ptrace(2)).
    pub debuggable: bool,
    /// What an `exeat run` does that the stage starts.
    pub nested: Nested,
}

impl Request {
    /// Whether nothing in the request speaks against the gateway.
    pub(crate) fn may_have_gateway(&self) -> bool {
        self.transparent != Transparent::Off && self.via.is_none() && self.hardening.loopback == Loopback::Own
    }
}

/// Where the audit record goes.
#[derive(Debug, Default)]
pub enum AuditTo {
    /// One file per run in the user's state directory.
    #[default]
    Default,
    /// This file. It must not lie inside a tree that the stage can write.
    File(PathBuf),
    /// This open descriptor.
    Fd(OwnedFd),
}

impl AuditTo {
    /// Returns the record's path where that is the default place.
    pub(crate) fn in_default_place<'a>(&self, record: Option<&'a Path>) -> Option<&'a Path> {
        record.filter(|_| matches!(self, Self::Default))
    }
}

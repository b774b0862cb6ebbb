//! What a caller asks for: the flags and files of one run, already parsed, before the host is looked at.
//!
//! Nothing here touches the machine; [`plan`](crate::plan::plan) does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use exeat_compose::{Composed, EnvRule, Fault, Machine, NextHop};
use exeat_files::request::Files;
use exeat_policy::file::SandboxSection;
use exeat_policy::{Bridge, HostPort, Limits, Loopback, Nested, Policy, Transparent, Tty, UnixSockets};
use exeat_proxy::UpstreamProxy;
use exeat_record::Source;

use crate::error::Error;
use crate::signing::Signing;

/// One run of a stage.
#[derive(Debug, Default)]
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
    /// Creates a request from what was composed on this machine. The caller sets the command, the labels, the record and its key.
    ///
    /// # Errors
    /// Fails if the credentials for the upstream proxy cannot be read.
    pub fn from_composed(composed: Composed, machine: Machine) -> Result<Self, Error> {
        let open = |hop: &NextHop| {
            let credentials = hop.credentials(&machine.env)?;
            Ok::<_, Fault>(UpstreamProxy::new(hop.url().clone(), hop.bypass(), credentials))
        };
        let upstream = composed.next_hop.as_ref().map(open).transpose()?;
        let SandboxSection { bridge, loopback, unix_sockets, transparent, debuggable, tty, nested, .. } =
            composed.sandbox;
        Ok(Self {
            cwd: machine.cwd,
            policy: composed.policy,
            sources: composed.sources,
            files: composed.files,
            env: composed.environment,
            host_env: machine.env,
            bridge: bridge.unwrap_or_default(),
            socks5: composed.socks5,
            hardening: Hardening {
                loopback: loopback.unwrap_or_default(),
                unix_sockets: unix_sockets.unwrap_or_default(),
                debuggable: debuggable.unwrap_or_default(),
                nested: nested.unwrap_or_default(),
            },
            tty: tty.unwrap_or_default(),
            host_ports: composed.host_ports,
            transparent: transparent.unwrap_or_default(),
            upstream,
            stage: composed.stage,
            audit_sync: composed.audit_sync,
            limits: composed.limits,
            ..Self::default()
        })
    }

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

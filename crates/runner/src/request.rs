//! Defines the request of a caller: the parsed flags and files of one run, before the host is inspected.
//!
//! [`plan`](crate::plan::plan) inspects the machine; this module does not.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use exeat_compose::{Composed, EnvRule, Fault, Machine, NextHop};
use exeat_files::request::Files;
use exeat_policy::file::SandboxSection;
use exeat_policy::{
    BackendName, Bridge, HostPort, Limits, Loopback, Nested, Policy, Transparent, Tty, UnixSockets,
};
use exeat_proxy::UpstreamProxy;
use exeat_record::Source;

use crate::error::Error;
use crate::signing::Signing;

/// The request for one run of a stage.
#[derive(Debug, Default)]
pub struct Request {
    /// The command and its arguments. The plan refuses an empty command.
    pub command: Vec<OsString>,
    /// The absolute path of the directory where the stage starts.
    pub cwd: PathBuf,
    /// The effective policy.
    pub policy: Policy,
    /// The files that the policy was composed from, for the record.
    pub sources: Vec<Source>,
    /// The parts of the host's file tree that the stage sees.
    pub files: Files,
    /// The rules about the stage's environment, in order; the last rule for a name wins.
    pub env: Vec<EnvRule>,
    /// The caller's environment: the source of passed variables, HOME, PATH and the XDG directories.
    pub host_env: BTreeMap<OsString, OsString>,
    /// The program that builds the sandbox.
    pub backend: BackendName,
    /// The way from TCP in the namespace to the proxy.
    pub bridge: Bridge,
    /// Whether the stage gets SOCKS5 as well as the HTTP proxy.
    pub socks5: bool,
    /// Settings that restrict more or less than the default.
    pub hardening: Hardening,
    /// The stage's access to a terminal.
    pub tty: Tty,
    /// Services of this machine on the stage's own loopback. The policy must grant each: see [`HostPort::grant`].
    pub host_ports: Vec<HostPort>,
    /// Whether the gateway serves programs that do not use the proxy.
    pub transparent: Transparent,
    /// The Unix socket of another proxy, which decides and records instead. Then `policy` is empty.
    pub via: Option<PathBuf>,
    /// The upstream proxy that connections go through.
    pub upstream: Option<UpstreamProxy>,
    /// The name of the stage in every record.
    pub stage: Option<String>,
    /// The labels of the run, in `run_start`.
    pub labels: Vec<(String, String)>,
    /// The destination of the record.
    pub audit: AuditTo,
    /// Whether each line of the record reaches the disk (fdatasync(2)) before the action that it describes. Refused if the record is not
    /// a file.
    pub audit_sync: bool,
    /// The signing of the record.
    pub signing: Signing,
    /// The limits of the stage. A stage that reaches one ends as [`Ended::Timeout`](crate::Ended::Timeout) or
    /// [`Ended::Limit`](crate::Ended::Limit).
    pub limits: Limits,
}

/// Settings that restrict more or less than the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hardening {
    /// The services that the stage may connect to on its own loopback.
    pub loopback: Loopback,
    /// Whether the stage has Unix sockets.
    pub unix_sockets: UnixSockets,
    /// Whether the stage may trace its own processes, as strace and gdb do (ptrace(2)).
    pub debuggable: bool,
    /// The behavior of an `exeat run` inside the stage.
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
        let SandboxSection {
            bridge,
            loopback,
            unix_sockets,
            transparent,
            debuggable,
            tty,
            nested,
            backend,
            ..
        } = composed.sandbox;
        Ok(Self {
            cwd: machine.cwd,
            policy: composed.policy,
            sources: composed.sources,
            files: composed.files,
            env: composed.environment,
            host_env: machine.env,
            bridge: bridge.unwrap_or_default(),
            backend: backend.unwrap_or_default(),
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

    /// Returns whether the request allows a gateway.
    pub(crate) fn may_have_gateway(&self) -> bool {
        self.transparent != Transparent::Off && self.via.is_none() && self.hardening.loopback == Loopback::Own
    }
}

/// The destination of the record.
#[derive(Debug, Default)]
pub enum AuditTo {
    /// A file for each run in the user's state directory.
    #[default]
    Default,
    /// A file at this path, which must not be inside a tree that the stage can write.
    File(PathBuf),
    /// An open descriptor.
    Fd(OwnedFd),
}

impl AuditTo {
    /// Returns the record's path where that is the default place.
    pub(crate) fn in_default_place<'a>(&self, record: Option<&'a Path>) -> Option<&'a Path> {
        record.filter(|_| matches!(self, Self::Default))
    }
}

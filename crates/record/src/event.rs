//! The events of a run, as plain data that does not know how it is written.
//!
//! `line.rs` has the names and the order of the fields in a line. A new field or event starts here.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use exeat_policy::Mode;
use exeat_policy::preset::{self, Risk};
use exeat_policy::{Host, HostName, Origin, Reason, Rule, Target, Verdict, words};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::{ConnId, RunId};

/// The fields that all lines of a run share.
#[derive(Debug, Clone)]
pub struct Header {
    /// The run that the lines belong to.
    pub run: RunId,
    /// The name of the stage, where one was given.
    pub stage: Option<String>,
    /// The SHA-256 of the canonical effective policy, in hexadecimal.
    pub policy_sha256: String,
    /// Whether the policy is enforced or only reported on.
    pub mode: Mode,
}

/// The policy that a decision was made under. A proxy may read its policy again; after that it differs from the header's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Under {
    /// The SHA-256 of the canonical effective policy, in hexadecimal.
    pub policy_sha256: String,
    /// Whether the policy is enforced or only reported on.
    pub mode: Mode,
}

/// An event of a run: it becomes one line of the record.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The first line: what runs, and which walls hold.
    RunStart(RunStart),
    /// A file that the policy was made from. These follow the first line.
    Policy(Source),
    /// A verdict on a request, written before anything acts on it.
    Decision(RequestDecision),
    /// A verdict on a question to the sandbox's name server.
    Dns(Question),
    /// The bytes that an open connection has moved so far.
    Progress(Progress),
    /// The end of an allowed connection.
    Close(Close),
    /// A remark for the reader of the record.
    Note(RunNote),
    /// The last event: the totals, and how the run ended.
    RunEnd(RunEnd),
}

/// The beginning of a run.
#[derive(Debug, Clone, Default)]
pub struct RunStart {
    /// exeat's own version.
    pub version: String,
    /// The first word of the stage's command; never its arguments, which can hold secrets.
    pub command: Option<OsString>,
    /// The name of the user who started the run.
    pub user: Option<String>,
    /// The machine's own name.
    pub machine: Option<String>,
    /// The directory in which the run was started.
    pub dir: Option<OsString>,
    /// The trace that the run is a part of.
    pub trace: Option<Trace>,
    /// The back end that isolates the stage, such as `bwrap`.
    pub backend: Option<String>,
    /// The reason for that back end, if nobody asked for it.
    pub backend_why: Option<String>,
    /// The bridge between the stage and the proxy: `handoff` or `relay`.
    pub bridge: Option<String>,
    /// The proxy that decides, if another process runs it: `unix:PATH`. Its record has the decisions, and the policy in
    /// the header does not apply.
    pub proxy: Option<String>,
    /// The upstream proxy, `HOST:PORT`, if there is one. The addresses of names are not checked then.
    pub upstream: Option<String>,
    /// Whether the gateway catches programs that ignore the proxy variables: `on`, `off`, or the reason why it does not.
    pub gateway: Option<String>,
    /// The state of enforcement by aspect (`net`, `fs`, `syscalls`).
    pub enforcement: Vec<(String, Holds)>,
    /// The limits of the run, each with its value and how it is enforced: `memory=2GiB (watched)`.
    pub limits: Vec<String>,
    /// The caller's labels, `--label K=V`. Of two with the same key the later one counts.
    pub labels: Vec<(String, String)>,
    /// The run's entry in the ledger.
    pub ledger: InLedger,
}

/// The entry of a run in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InLedger {
    /// The run has no ledger: the record is not signed, or its key does not last.
    #[default]
    None,
    /// The run could not take a number in the ledger. A note gives the reason.
    Unnumbered,
    /// The run has this number.
    Number(Number),
}

/// The place of a run in the ledger of its key and machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Number {
    /// The ledger's name.
    pub ledger: String,
    /// The number of the run in it, from 1.
    pub no: u64,
    /// The digest of the line that the ledger ended with when the number was taken, in hexadecimal.
    pub prev: String,
}

/// The position of a run in a trace (W3C Trace Context).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The trace, 32 hexadecimal digits.
    pub trace_id: String,
    /// The caller's span in it, 16 hexadecimal digits.
    pub span_id: String,
}

/// A file that the effective policy was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The role of the file.
    pub role: SourceRole,
    /// The path as the user wrote it.
    pub file: String,
    /// The SHA-256 of the content when it was read, in hexadecimal.
    pub sha256: String,
}

words! {
    /// The role of a file in a policy.
    #[derive(Hash)]
    pub enum SourceRole {
        /// A policy, which grants.
        Policy = "policy",
        /// A ceiling, which bounds the grants.
        Ceiling = "ceiling",
        /// The effects that the stage declares.
        Effects = "effects",
        /// Rules, one a line.
        Rules = "rules",
        /// A lock file: the hosts that the stage reached before. It reaches no others.
        Lock = "lock",
    }
}

/// The degree to which an aspect is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holds {
    /// The aspect is fully enforced.
    Held,
    /// A part is missing, which the text names.
    Partial(String),
    /// The aspect is not enforced.
    Absent,
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holds::Held => f.write_str("held"),
            Holds::Partial(missing) => write!(f, "partial: {missing}"),
            Holds::Absent => f.write_str("absent"),
        }
    }
}

words! {
    /// The way in which a request arrived.
    #[derive(PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum Via {
        /// `CONNECT host:port`.
        Connect = "connect",
        /// A plain HTTP request in absolute form.
        Http = "http",
        /// A connection of a client that ignores the proxy variables, caught by the gateway.
        Transparent = "transparent",
        /// A SOCKS5 request.
        Socks5 = "socks5",
        /// A question to the sandbox's name server.
        Dns = "dns",
        /// An attempt to leave without the proxy, which the tap saw.
        Direct = "direct",
        /// A connection to a port of the host that `--host-port` opened.
        Forward = "forward",
    }
}

/// The protocol above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Proto {
    /// TCP, which a line leaves out.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// Another protocol, by its number (IANA, "Protocol Numbers").
    Other(u8),
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Proto::Tcp => f.write_str("tcp"),
            Proto::Udp => f.write_str("udp"),
            Proto::Other(number) => number.fmt(f),
        }
    }
}

/// The rule that decided, as the record describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRef {
    /// The rule as the user wrote it.
    pub text: String,
    /// The file and line, or the flag, that has the rule: `.exeat.toml:12`, `--allow`.
    pub src: String,
    /// The risk of the group, if the rule is one of a group of presets.
    pub risk: Option<Risk>,
    /// The reason that the rule gives for itself.
    pub why: Option<String>,
    /// The person who approved the rule.
    pub approved_by: Option<String>,
    /// The day from which the rule no longer grants, `YYYY-MM-DD`.
    pub expires: Option<String>,
}

impl From<&Rule> for RuleRef {
    fn from(rule: &Rule) -> RuleRef {
        RuleRef {
            text: rule.text.clone(),
            src: rule.origin.to_string(),
            risk: risk_of(&rule.origin),
            why: rule.note.reason.clone(),
            approved_by: rule.note.approved_by.clone(),
            expires: rule.note.expires.map(|day| day.to_string()),
        }
    }
}

/// Returns the risk of the group that a rule belongs to, if it belongs to one. The hosts that are always denied do not.
fn risk_of(origin: &Origin) -> Option<Risk> {
    let Origin::Preset { name, .. } = origin else { return None };
    match preset::find(name)? {
        preset::PresetOrProfile::Group(group) => Some(group.risk),
        preset::PresetOrProfile::Profile(_) => None,
    }
}

/// The process that made a connection, as it was when the connection arrived. No decision depends on it: another process may have handed it
/// the connection, and it may execute another program by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its process id on the host.
    pub pid: u32,
    /// The process id of its parent, if the kernel named it.
    pub ppid: Option<u32>,
    /// The path of its executable inside the sandbox, if the kernel named it. Never its arguments, which can hold secrets.
    pub exe: Option<OsString>,
}

/// A verdict on one request. Make it with [`RequestDecision::new`], then fill in the known fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RequestDecision {
    /// The connection of the request; absent for an attempt without a connection.
    pub conn: Option<ConnId>,
    /// The way in which the request arrived.
    pub via: Via,
    /// The protocol of the attempt.
    pub proto: Proto,
    /// The method of a plain HTTP request.
    pub method: Option<String>,
    /// The process that made the connection, if it was found.
    pub process: Option<Process>,
    /// The target of the request; absent if it could not be read.
    pub target: Option<Target>,
    /// The host of the request, if the request has no port.
    pub host: Option<Host>,
    /// The bytes that the client sent as a target. The line has them, escaped and cut, only if they differ from the target.
    pub host_raw: Option<Vec<u8>>,
    /// The addresses of the name.
    pub ips: Vec<IpAddr>,
    /// The duration of the DNS look-up.
    pub dns: Option<Duration>,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason for the verdict.
    pub reason: Reason,
    /// The policy that decided, if it may differ from the header's.
    pub under: Option<Arc<Under>>,
    /// The upstream proxy that gets the connection, `HOST:PORT`. It looks the name up itself, so no address was checked.
    pub upstream: Option<String>,
    /// The rule that decided, if one did.
    pub rule: Option<RuleRef>,
    /// The ceiling, or the declared effects, that refused. No grant can change that.
    pub refused_by: Option<String>,
    /// The number of equal requests that this line stands for, if more than one.
    pub count: Option<u64>,
    /// On a late refusal: the address that was dialed.
    pub ip: Option<IpAddr>,
    /// On a late refusal: the TLS name that the client sent.
    pub sni: Option<String>,
    /// On a late refusal: whether that name is the host asked for.
    pub sni_ok: Option<bool>,
    /// On a late refusal: the first application protocol that the client offered.
    pub alpn: Option<String>,
    /// On a late refusal: whether the TLS hello may hide another name (ECH).
    pub ech: bool,
    /// A description of what went wrong.
    pub error: Option<String>,
}

impl RequestDecision {
    /// Makes a verdict without any other field.
    pub fn new(
        conn: impl Into<Option<ConnId>>,
        via: Via,
        verdict: Verdict,
        reason: Reason,
    ) -> RequestDecision {
        RequestDecision {
            conn: conn.into(),
            via,
            proto: Proto::Tcp,
            method: None,
            process: None,
            target: None,
            host: None,
            host_raw: None,
            ips: Vec::new(),
            dns: None,
            verdict,
            reason,
            under: None,
            upstream: None,
            rule: None,
            refused_by: None,
            count: None,
            ip: None,
            sni: None,
            sni_ok: None,
            alpn: None,
            ech: false,
            error: None,
        }
    }
}

impl RequestDecision {
    /// Returns whether a close will follow. A late refusal, which has the address that was dialed, follows an earlier decision on
    /// the same connection.
    pub(crate) fn opens_connection(&self) -> bool {
        self.conn.is_some() && self.ip.is_none()
    }

    /// Returns whether the connection may send something because of this decision.
    pub(crate) fn allows_connection(&self) -> bool {
        self.conn.is_some() && matches!(self.verdict, Verdict::Allow | Verdict::WouldDeny)
    }
}

/// A verdict on a question to the sandbox's name server. Make it with [`Question::new`], then fill in the known fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Question {
    /// The name in the question; absent if it is not a host name.
    pub host: Option<HostName>,
    /// The bytes in the question. The line has them, escaped and cut, only if they differ from the name.
    pub host_raw: Option<Vec<u8>>,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason for the verdict.
    pub reason: Reason,
    /// The policy that decided, if it may differ from the header's.
    pub under: Option<Arc<Under>>,
    /// The rule that decided, where one did.
    pub rule: Option<RuleRef>,
    /// The ceiling that refused, or what the stage declared: no grant would have lifted that.
    pub refused_by: Option<String>,
    /// The number of equal questions that this line stands for, if more than one.
    pub count: Option<u64>,
    /// A description of what went wrong.
    pub error: Option<String>,
}

impl Question {
    /// Makes a verdict without any other field.
    pub fn new(verdict: Verdict, reason: Reason) -> Question {
        Question {
            host: None,
            host_raw: None,
            verdict,
            reason,
            under: None,
            rule: None,
            refused_by: None,
            count: None,
            error: None,
        }
    }
}

/// The bytes that an open connection has moved so far.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The connection, as its decision names it.
    pub conn: ConnId,
    /// The target of its request.
    pub target: Option<Target>,
    /// Bytes from the sandbox to the internet, since the connection began.
    pub bytes_up: u64,
    /// Bytes from the internet to the sandbox, since the connection began.
    pub bytes_down: u64,
}

/// The end of an allowed connection. Make it with [`Close::new`], then fill in the known fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Close {
    /// The connection, as its decision names it.
    pub conn: ConnId,
    /// The target of its request.
    pub target: Option<Target>,
    /// The address that the connection was made to, which is the upstream proxy's if there is one. Absent if the connect failed.
    pub ip: Option<IpAddr>,
    /// The TLS name that the client sent.
    pub sni: Option<String>,
    /// Whether that name is the host asked for.
    pub sni_ok: Option<bool>,
    /// The first application protocol that the client offered.
    pub alpn: Option<String>,
    /// Whether the TLS hello may hide another name (ECH).
    pub ech: bool,
    /// The duration of the connect.
    pub connect: Option<Duration>,
    /// The time until the client's TLS hello arrived.
    pub tls: Option<Duration>,
    /// The duration of the connection.
    pub dur: Duration,
    /// Bytes from the sandbox to the internet.
    pub bytes_up: u64,
    /// Bytes from the internet to the sandbox.
    pub bytes_down: u64,
    /// The side that ended the connection, or the cause of its end.
    pub end: CloseCause,
    /// A description of what went wrong.
    pub error: Option<String>,
}

impl Close {
    /// Makes the end of a connection without any other field.
    pub fn new(conn: ConnId, end: CloseCause) -> Close {
        Close {
            conn,
            target: None,
            ip: None,
            sni: None,
            sni_ok: None,
            alpn: None,
            ech: false,
            connect: None,
            tls: None,
            dur: Duration::ZERO,
            bytes_up: 0,
            bytes_down: 0,
            end,
            error: None,
        }
    }

    /// Returns whether the connect failed: the connection was allowed, and nothing was sent to the host.
    pub(crate) fn is_failed(&self) -> bool {
        self.end == CloseCause::Error && self.ip.is_none()
    }
}

/// The side that ended a connection, or the cause of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseCause {
    /// The stage closed it.
    Client,
    /// The origin closed it.
    Upstream,
    /// No byte moved for too long.
    Idle,
    /// The connection used up its budget.
    Budget,
    /// exeat cut the connection, because the run ended or by a late refusal.
    Killed,
    /// The connection broke, or the connect failed.
    Error,
}

/// A remark for the reader of the record. Make it with [`RunNote::new`], then fill in the known fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunNote {
    /// The subject of the note.
    pub what: What,
    /// The number of events, if they can be counted.
    pub count: Option<u64>,
    /// The policy that applies from here on, if it changed.
    pub under: Option<Arc<Under>>,
    /// The details, in words.
    pub error: Option<String>,
}

impl RunNote {
    /// Makes a note without details.
    pub fn new(what: What) -> RunNote {
        RunNote { what, count: None, under: None, error: None }
    }
}

/// The subject of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// The stage lost its connection to the proxy.
    BridgeLost,
    /// The tap missed packets.
    TapDrops,
    /// A file that would have run on the host was moved to the quarantine.
    Quarantined,
    /// Such a file could not be moved, and is still where the stage put it.
    NotQuarantined,
    /// The host removed the cover that kept a file hidden or read-only.
    Uncovered,
    /// The policy was read again: a new one applies, or it had a fault and the old one still applies.
    PolicyReload,
    /// The proxy of another process could not be reached.
    ProxyLost,
    /// The disk has space for the end of the record only: from here on nothing new is allowed.
    NoRoom,
    /// The file system does not reserve space for the end of the record: on a full disk the record stops where it is.
    NoReserve,
    /// Connections were not served because too many were open at once. No other line counts them.
    TurnedAway,
    /// The run has no number in the ledger, or the ledger does not have its start.
    Unnumbered,
    /// The ledger has lines that its key did not sign, or a second ledger begins.
    Ledger,
    /// The client of a preset did not complete when it was asked for its hosts, so rules may be missing.
    HostsMissing,
}

/// The end of a run. The log itself counts the verdicts.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// The cause of the end.
    pub cause: Cause,
    /// exeat's exit code: the stage's own, or 128+n when it died of signal n.
    pub exit: Option<i32>,
    /// The key of the limit that ended the run.
    pub limit: Option<String>,
    /// The signal that ended the run, or asked it to end.
    pub signal: Option<i32>,
    /// With [`Cause::Stopped`]: the origin of the request to end.
    pub stopped_by: Option<StoppedBy>,
    /// The number of accepted connections.
    pub connections: u64,
    /// The number of attempts without a line; must be 0.
    pub dropped: u64,
}

words! {
    /// The cause of a run's end.
    #[derive(Hash)]
    pub enum Cause {
        /// The stage exited.
        Exit = "exit",
        /// The stage died of a signal.
        Signal = "signal",
        /// The run used up its time.
        Timeout = "timeout",
        /// The stage reached a limit and was killed.
        Limit = "limit",
        /// The host removed the cover that kept a file hidden or read-only, and the stage was killed.
        Uncovered = "uncovered",
        /// The sandbox could not be set up; nothing ran.
        Setup = "setup",
        /// The policy forbade the start; nothing ran.
        Policy = "policy",
        /// Somebody asked the run to end.
        Stopped = "stopped",
        /// A request was denied, and the run ends or fails at a denial.
        Denied = "denied",
    }
}

/// The origin of a request to end a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBy {
    /// A signal to exeat.
    Signal,
    /// The end of the process that started exeat.
    Parent,
    /// The program that uses exeat as a library.
    Program,
}

/// Returns the name of a signal (signal(7)) on x86-64 and aarch64, such as `SIGTERM`; `SIG64` for a number without a name.
pub fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("SIG{signal}"), |known| known.as_str().to_owned())
}

//! What can be said about a run: plain data, without a word about how it is written.
//!
//! `line.rs` knows the names and the order of the fields on the wire; a new field or event starts here.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub use exeat_policy::Mode;
use exeat_policy::preset::{self, Risk};
use exeat_policy::{Host, HostName, Origin, Reason, Rule, Target, Verdict, WordError};
use serde::{Deserialize, Serialize};

use crate::{ConnId, RunId};

/// What every line of a run has in common.
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

/// What a decision was made under. A proxy may read its policy again, and then this is not the header's any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Under {
    /// The SHA-256 of the canonical effective policy, in hexadecimal.
    pub policy_sha256: String,
    /// Whether it is enforced or only reported on.
    pub mode: Mode,
}

/// One thing that happened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The first line: what runs, and what holds.
    RunStart(RunStart),
    /// A file that the policy was made from. These follow the first line.
    Policy(Source),
    /// A verdict, written before it is acted on.
    Decision(Decision),
    /// A verdict on a question to the sandbox's name server.
    Dns(Question),
    /// What a connection that is still open has moved so far.
    Progress(Progress),
    /// A connection that was let through is over.
    Close(Close),
    /// Something a reader of the record should know.
    Note(Note),
    /// The last line: the totals, and how the run ended.
    RunEnd(RunEnd),
}

/// The beginning of a run.
#[derive(Debug, Clone, Default)]
pub struct RunStart {
    /// exeat's own version.
    pub version: String,
    /// The first word of the stage's command; never its arguments, which can hold secrets.
    pub command: Option<OsString>,
    /// Who started it, by name.
    pub user: Option<String>,
    /// The machine's own name.
    pub machine: Option<String>,
    /// Where it was started.
    pub dir: Option<OsString>,
    /// What it is a part of.
    pub trace: Option<Trace>,
    /// What isolates the stage, `bwrap` for instance.
    pub backend: Option<String>,
    /// How the stage reaches the proxy: `handoff` or `relay`.
    pub bridge: Option<String>,
    /// The proxy that decides, where it is somebody else's: `unix:PATH`. Its record has the decisions, and the policy of
    /// the header means nothing.
    pub proxy: Option<String>,
    /// The next hop of connections, `HOST:PORT`, where there is one: what names lead to is not checked then.
    pub upstream: Option<String>,
    /// Whether programs that ignore the proxy variables are caught: `on`, `off`, or why it is not.
    pub gateway: Option<String>,
    /// What holds, by aspect (`net`, `fs`, `syscalls`).
    pub enforcement: Vec<(String, Holds)>,
    /// The limits of the run, each with its value and what holds it: `memory=2GiB (watched)`.
    pub limits: Vec<String>,
    /// The caller's own words, `--label K=V`. Of two with one key the later stands.
    pub labels: Vec<(String, String)>,
    /// Its place in the ledger.
    pub ledger: InLedger,
}

/// Whether the ledger has a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InLedger {
    /// There is none, because nothing signs the record, or a key that does not last.
    #[default]
    None,
    /// There is one, and no number could be taken in it. A note says why.
    Unnumbered,
    /// It has this number.
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

/// A place in a trace (W3C Trace Context): what a run is a part of.
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
    /// What it is for.
    pub role: SourceRole,
    /// As it was named.
    pub file: String,
    /// The SHA-256 of what was in it when it was read, in hexadecimal.
    pub sha256: String,
}

/// What a file of a policy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceRole {
    /// It grants.
    Policy,
    /// It bounds what is granted.
    Ceiling,
    /// It says what the stage declares.
    Effects,
    /// Rules, one a line.
    Rules,
    /// What the stage reached before, beyond which it reaches nothing.
    Lock,
}

impl SourceRole {
    /// The word in the record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Ceiling => "ceiling",
            Self::Effects => "effects",
            Self::Rules => "rules",
            Self::Lock => "lock",
        }
    }
}

/// How much of an aspect is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holds {
    /// All of it.
    Held,
    /// Some of it; what is missing, in words.
    Partial(String),
    /// None of it.
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

/// How a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Via {
    /// `CONNECT host:port`.
    Connect,
    /// A plain HTTP request in absolute form.
    Http,
    /// A client that ignored the proxy variables and was caught.
    Transparent,
    /// A SOCKS5 request.
    Socks5,
    /// A question to the sandbox's name server.
    Dns,
    /// An attempt to leave without the proxy, seen by the tap.
    Direct,
    /// A port of the host, opened by `--host-port`.
    Forward,
    /// exeat trying its own walls.
    Selftest,
}

impl Via {
    /// Every way.
    pub const ALL: [Via; 8] = [
        Via::Connect,
        Via::Http,
        Via::Transparent,
        Via::Socks5,
        Via::Dns,
        Via::Direct,
        Via::Forward,
        Via::Selftest,
    ];

    /// The word in the record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Via::Connect => "connect",
            Via::Http => "http",
            Via::Transparent => "transparent",
            Via::Socks5 => "socks5",
            Via::Dns => "dns",
            Via::Direct => "direct",
            Via::Forward => "forward",
            Via::Selftest => "selftest",
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Via {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Via, WordError> {
        Via::ALL.into_iter().find(|via| via.as_str() == text).ok_or(WordError)
    }
}

/// What is spoken above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Proto {
    /// TCP, of which nothing is written.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// Another one, by its number (IANA, "Protocol Numbers").
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

/// The rule behind a verdict, as the record tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRef {
    /// The rule as it was typed.
    pub text: String,
    /// Where it was typed: `.exeat.toml:12`, `--allow`.
    pub src: String,
    /// How far the group opens the policy, where the rule is one of a group's.
    pub risk: Option<Risk>,
    /// Why it exists, where it says so.
    pub why: Option<String>,
    /// Who approved it, where it says so.
    pub approved_by: Option<String>,
    /// The day from which it is refused, `YYYY-MM-DD`, where it has one.
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

/// Returns the risk of the group that a rule stands in, if it stands in one. The hosts that are always denied are in none.
fn risk_of(origin: &Origin) -> Option<Risk> {
    let Origin::Preset { name, .. } = origin else { return None };
    match preset::find(name)? {
        preset::Found::Group(group) => Some(group.risk),
        preset::Found::Profile(_) => None,
    }
}

/// The process behind a connection, as it was seen when the connection came in. Nothing is decided by it: it may have the connection
/// from another process, and may be another program by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number on the host.
    pub pid: u32,
    /// That of its parent, where it was told.
    pub ppid: Option<u32>,
    /// The file that it executes, by its path inside the sandbox, where it was told; never its arguments, which can hold secrets.
    pub exe: Option<OsString>,
}

/// A verdict on one request. Make it with [`Decision::new`] and fill in what is known.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Decision {
    /// The connection that asked; absent for what was tried without one.
    pub conn: Option<ConnId>,
    /// How it asked.
    pub via: Via,
    /// What it would have spoken.
    pub proto: Proto,
    /// The method of a plain HTTP request.
    pub method: Option<String>,
    /// The process that made the connection, where it was found.
    pub process: Option<Process>,
    /// What it asked for; absent when it could not be read.
    pub target: Option<Target>,
    /// The host that it asked for, where that has no port.
    pub host: Option<Host>,
    /// The bytes that it sent as a target. Written, escaped and capped, only where they differ from the target.
    pub host_raw: Option<Vec<u8>>,
    /// The addresses that the name led to.
    pub ips: Vec<IpAddr>,
    /// How long the look-up took.
    pub dns: Option<Duration>,
    /// What was decided.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The policy that was asked, where it may be another than the header's.
    pub under: Option<Arc<Under>>,
    /// The proxy that the connection is left to, `HOST:PORT`. A name is looked up there, so that no address was checked.
    pub upstream: Option<String>,
    /// The rule that decided, where one did.
    pub rule: Option<RuleRef>,
    /// The ceiling that refused, or what the stage declared: no grant would have lifted that.
    pub refused_by: Option<String>,
    /// How many equal requests this line stands for, where more than one.
    pub count: Option<u64>,
    /// On a late refusal: the address that was dialled.
    pub ip: Option<IpAddr>,
    /// On a late refusal: the TLS name that the client sent.
    pub sni: Option<String>,
    /// On a late refusal: whether that name is the host asked for.
    pub sni_ok: Option<bool>,
    /// On a late refusal: the first application protocol that the client offered.
    pub alpn: Option<String>,
    /// On a late refusal: whether the TLS hello may hide another name (ECH).
    pub ech: bool,
    /// What went wrong, in words, where something did.
    pub error: Option<String>,
}

impl Decision {
    /// A verdict of which nothing else is known yet.
    pub fn new(conn: impl Into<Option<ConnId>>, via: Via, verdict: Verdict, reason: Reason) -> Decision {
        Decision {
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

impl Decision {
    /// Whether a connection begins with it that has a close. A late refusal has the address that was dialled.
    pub(crate) fn opens(&self) -> bool {
        self.conn.is_some() && self.ip.is_none()
    }

    /// Whether something may leave because of it.
    pub(crate) fn lets_out(&self) -> bool {
        self.conn.is_some() && matches!(self.verdict, Verdict::Allow | Verdict::WouldDeny)
    }
}

/// A verdict on a question to the sandbox's name server. Make it with [`Question::new`] and fill in what is known.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Question {
    /// The name that was asked for; absent when it is none.
    pub host: Option<HostName>,
    /// The bytes that were asked for. Written, escaped and capped, only where they differ from the name.
    pub host_raw: Option<Vec<u8>>,
    /// What was decided.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The policy that was asked, where it may be another than the header's.
    pub under: Option<Arc<Under>>,
    /// The rule that decided, where one did.
    pub rule: Option<RuleRef>,
    /// The ceiling that refused, or what the stage declared: no grant would have lifted that.
    pub refused_by: Option<String>,
    /// How many equal questions this line stands for, where more than one.
    pub count: Option<u64>,
    /// What went wrong, in words, where something did.
    pub error: Option<String>,
}

impl Question {
    /// A verdict of which nothing else is known yet.
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

/// What a connection that is still open has moved so far.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The connection, as its decision names it.
    pub conn: ConnId,
    /// What it asked for.
    pub target: Option<Target>,
    /// Bytes from the sandbox to the internet, since the connection began.
    pub bytes_up: u64,
    /// Bytes from the internet to the sandbox, since the connection began.
    pub bytes_down: u64,
}

/// The end of a connection that was let through. Make it with [`Close::new`] and fill in what is known.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Close {
    /// The connection, as its decision names it.
    pub conn: ConnId,
    /// What it asked for.
    pub target: Option<Target>,
    /// The address that the connection was made to: of one that was left to another proxy, that one's. Absent if none was made.
    pub ip: Option<IpAddr>,
    /// The TLS name that the client sent.
    pub sni: Option<String>,
    /// Whether that name is the host asked for.
    pub sni_ok: Option<bool>,
    /// The first application protocol that the client offered.
    pub alpn: Option<String>,
    /// Whether the TLS hello may hide another name (ECH).
    pub ech: bool,
    /// How long the connect took.
    pub connect: Option<Duration>,
    /// How long the wait for the client's TLS hello took.
    pub tls: Option<Duration>,
    /// How long the connection lived.
    pub dur: Duration,
    /// Bytes from the sandbox to the internet.
    pub bytes_up: u64,
    /// Bytes from the internet to the sandbox.
    pub bytes_down: u64,
    /// Who or what ended it.
    pub end: End,
    /// What went wrong, in words, where something did.
    pub error: Option<String>,
}

impl Close {
    /// A connection that is over, of which nothing else is known.
    pub fn new(conn: ConnId, end: End) -> Close {
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

    /// Whether the connection was allowed and never stood: the host was not reached, and nothing was sent to it.
    pub(crate) fn is_failed(&self) -> bool {
        self.end == End::Error && self.ip.is_none()
    }
}

/// Who or what ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The stage closed it.
    Client,
    /// The origin closed it.
    Upstream,
    /// Nothing moved for too long.
    Idle,
    /// It used up what it was allowed.
    Budget,
    /// exeat cut it: the run ended, or a late refusal.
    Killed,
    /// It broke, or never stood.
    Error,
}

/// Something that a reader of the record should know. Make it with [`Note::new`] and fill in what is known.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Note {
    /// What happened.
    pub what: What,
    /// How often, where that can be counted.
    pub count: Option<u64>,
    /// The policy that holds from here on, where it is another one.
    pub under: Option<Arc<Under>>,
    /// The particulars, in words.
    pub error: Option<String>,
}

impl Note {
    /// A note without particulars.
    pub fn new(what: What) -> Note {
        Note { what, count: None, under: None, error: None }
    }
}

/// What a note is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// The stage lost its way to the proxy.
    BridgeLost,
    /// The tap missed packets.
    TapDrops,
    /// A file that would have run on the host was moved aside.
    Quarantined,
    /// Such a file could not be moved, and is where the stage has put it.
    NotQuarantined,
    /// What kept a file hidden or read-only was taken away on the host.
    Uncovered,
    /// The policy was read again: another one holds now, or something was wrong with it and the old one stays.
    PolicyReload,
    /// Somebody else's proxy could not be reached.
    ProxyLost,
    /// The disk has no space for more than the end of the record: from here on nothing more is let out.
    NoRoom,
    /// The file system keeps no space for the end of the record: on a full disk it ends as it stands.
    NoReserve,
    /// Connections were not served because too many were open at one time; no other line tells of them.
    TurnedAway,
    /// The run has no number in the ledger, or the ledger does not have its start.
    Unnumbered,
    /// Something is in the ledger that its key has not signed, or a second ledger begins.
    Ledger,
    /// The client of a preset came to no end when it was asked for its hosts, so that rules may be missing.
    HostsMissing,
}

/// The end of a run. Verdicts are counted by the log itself.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// How it ended.
    pub cause: Cause,
    /// exeat's exit code: the stage's own, or 128+n when it died of signal n.
    pub exit: Option<i32>,
    /// The limit that ended it, by its key, where one did.
    pub limit: Option<String>,
    /// The signal that ended it, or that asked it to end.
    pub signal: Option<i32>,
    /// With [`Cause::Stopped`]: who asked.
    pub stopped_by: Option<StoppedBy>,
    /// Connections that were accepted.
    pub connections: u64,
    /// Attempts that no line tells of; must be 0.
    pub dropped: u64,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The stage exited.
    Exit,
    /// The stage died of a signal.
    Signal,
    /// The time allowed was over.
    Timeout,
    /// The stage reached a limit, and was killed.
    Limit,
    /// What kept a file hidden or read-only was taken away on the host, and the stage was killed.
    Uncovered,
    /// The sandbox could not be set up; nothing ran.
    Setup,
    /// The policy forbade the start; nothing ran.
    Policy,
    /// Somebody had the run end.
    Stopped,
    /// Something was refused, and that ends or fails the run.
    Denied,
}

impl Cause {
    /// The word in the record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Signal => "signal",
            Self::Timeout => "timeout",
            Self::Limit => "limit",
            Self::Uncovered => "uncovered",
            Self::Setup => "setup",
            Self::Policy => "policy",
            Self::Stopped => "stopped",
            Self::Denied => "denied",
        }
    }
}

/// Who asked a run to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBy {
    /// A signal to exeat.
    Signal,
    /// The end of the process that had started exeat.
    Parent,
    /// The program that exeat is a library of.
    Program,
}

/// The word for a signal (signal(7)): `SIGTERM`. The numbers are those of x86-64 and aarch64; one without a name is `SIG64`.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let at = usize::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
    match at.and_then(|at| NAMES.get(at)) {
        Some(name) => format!("SIG{name}"),
        None => format!("SIG{signal}"),
    }
}

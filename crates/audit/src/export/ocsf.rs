//! Events of the Open Cybersecurity Schema Framework (OCSF), <https://schema.ocsf.io>.
//!
//! Does not invent what the record does not know. An attribute that the schema requires of an object and the record lacks
//! means that the object is left out; what it would have held stands in `unmapped`:
//!
//! - `tls` requires the version of TLS, which exeat does not see: the names of the hello are in `unmapped`.
//! - `span` requires the times of the span, which are the caller's: the caller's span is in `unmapped`, and so is the trace where the
//!   class has no profile for it.
//! - HTTP Activity (4002) requires an answer's status before 1.5, which exeat does not record: there, an `http://` request
//!   is Network Activity (4001) with its method in `proxy_http_request`.
//!
//! Attributes that name an identifier carry its caption too (`action_id`, `action`), as consumers expect. Which attribute
//! exists in which version is held against the published schemas by the test `export::ocsf_of_every_kind_of_line`.

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::str::FromStr;

use exeat_policy::{Verdict, printable_ascii};
use exeat_record::SCHEMA;
use serde_json::Value;

use super::exporter::{Exporter, Fields, Run, json_line, long};
use crate::query::{Kind, Record, last_part};

/// A release of the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[expect(missing_docs, reason = "they are numbers")]
pub enum Version {
    V1_1,
    #[default]
    V1_3,
    V1_5,
    V1_8,
}

impl Version {
    /// Every release that can be written, the oldest first.
    pub const ALL: [Version; 4] = [Version::V1_1, Version::V1_3, Version::V1_5, Version::V1_8];

    /// As it is typed: `1.3`.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V1_1 => "1.1",
            Version::V1_3 => "1.3",
            Version::V1_5 => "1.5",
            Version::V1_8 => "1.8",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Version {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Version, UnknownVersion> {
        Version::ALL.into_iter().find(|version| version.as_str() == text).ok_or(UnknownVersion)
    }
}

/// Not a release that exeat can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("known versions: 1.1, 1.3, 1.5, 1.8")]
pub struct UnknownVersion;

/// A class of events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Network,
    Http,
    Dns,
    Lifecycle,
}

impl Class {
    fn uid(self) -> u32 {
        match self {
            Class::Network => 4001,
            Class::Http => 4002,
            Class::Dns => 4003,
            Class::Lifecycle => 6002,
        }
    }

    fn caption(self) -> &'static str {
        match self {
            Class::Network => "Network Activity",
            Class::Http => "HTTP Activity",
            Class::Dns => "DNS Activity",
            Class::Lifecycle => "Application Lifecycle",
        }
    }

    fn category(self) -> (u32, &'static str) {
        match self {
            Class::Network | Class::Http | Class::Dns => (4, "Network Activity"),
            Class::Lifecycle => (6, "Application Activity"),
        }
    }
}

/// A member of an enumeration: its number, and its caption in the schema.
type Id = (u8, &'static str);

const UNKNOWN: Id = (0, "Unknown");
/// What an enumeration has no number for; its caption is then our own word.
const OTHER: u8 = 99;

// Network Activity.
const OPEN: Id = (1, "Open");
const CLOSE: Id = (2, "Close");
/// "abnormally terminated or closed by middle devices": what was let through first.
const RESET: Id = (3, "Reset");
const FAIL: Id = (4, "Fail");
const REFUSE: Id = (5, "Refuse");
const TRAFFIC: Id = (6, "Traffic");

// Application Lifecycle.
const START: Id = (3, "Start");
const STOP: Id = (4, "Stop");
/// The record of a run that has ended is signed: the schema has no such activity.
const SIGN: Id = (OTHER, "Sign");

// DNS Activity.
const QUERY: Id = (1, "Query");
/// What the sandbox's name server says to a question for a name that is not granted.
const NXDOMAIN: Id = (3, "NXDomain");
/// What it says of a granted name that cannot be served.
const SERVERROR: Id = (2, "ServError");

// Every class.
const INFORMATIONAL: Id = (1, "Informational");
const LOW: Id = (2, "Low");
const MEDIUM: Id = (3, "Medium");
const SUCCESS: Id = (1, "Success");
const FAILURE: Id = (2, "Failure");

// Profile `security_control`.
const ACTION_ALLOWED: Id = (1, "Allowed");
const ACTION_DENIED: Id = (2, "Denied");
const ALLOWED: Id = (1, "Allowed");
const BLOCKED: Id = (2, "Blocked");
const LOGGED: Id = (17, "Logged");
const ERROR: Id = (27, "Error");

// Objects.
const OUTBOUND: Id = (2, "Outbound");
const IPV4: Id = (4, "Internet Protocol version 4 (IPv4)");
const IPV6: Id = (6, "Internet Protocol version 6 (IPv6)");
const VIRTUAL: Id = (6, "Virtual");
const REGULAR_FILE: Id = (1, "Regular File");
const HOSTNAME: Id = (1, "Hostname");
const IP_ADDRESS: Id = (2, "IP Address");

/// Methods that HTTP Activity has an activity for.
const METHODS: [(&str, Id); 9] = [
    ("CONNECT", (1, "Connect")),
    ("DELETE", (2, "Delete")),
    ("GET", (3, "Get")),
    ("HEAD", (4, "Head")),
    ("OPTIONS", (5, "Options")),
    ("POST", (6, "Post")),
    ("PUT", (7, "Put")),
    ("TRACE", (8, "Trace")),
    ("PATCH", (9, "Patch")),
];

/// Fields that have no place in any class, under the names of the record.
const REST: [&str; 16] = [
    "via",
    "mode",
    "host_raw",
    "ips",
    "ips_more",
    "dns_us",
    "connect_us",
    "tls_us",
    "sni",
    "sni_ok",
    "alpn",
    "ech",
    "refused_by",
    "risk",
    "approved_by",
    "expires",
];

/// Those of a run's own lines: its place in the ledger, the totals, what is signed.
const OF_RUN: [&str; 24] = [
    "stage",
    "command",
    "policy_sha256",
    "backend",
    "gateway",
    "proxy",
    "upstream",
    "ledger",
    "no",
    "ledger_prev",
    "n",
    "root",
    "key_id",
    "exit",
    "limit",
    "signal",
    "stopped_by",
    "allowed",
    "denied",
    "would_deny",
    "errors",
    "failed",
    "dropped",
    "connections",
];

/// Writes events of one version.
#[derive(Debug)]
pub struct Ocsf {
    version: Version,
    run: Run,
}

impl Ocsf {
    /// Makes an exporter of one version.
    pub fn new(version: Version) -> Ocsf {
        Ocsf { version, run: Run::default() }
    }

    /// Returns the event that a line becomes; `None` for one that has no class, or says no time.
    pub fn event(&mut self, record: &Record) -> Option<Value> {
        let record = &self.run.take(record)?;
        let class = match record.event {
            Kind::RunStart | Kind::RunEnd | Kind::Checkpoint => Class::Lifecycle,
            Kind::Decision if record.via.as_deref() == Some("http") && self.version >= Version::V1_5 => {
                Class::Http
            }
            Kind::Decision | Kind::Progress | Kind::Close => Class::Network,
            Kind::Dns => Class::Dns,
            _ => return None,
        };
        let time = record.ts.parse::<jiff::Timestamp>().ok()?.as_millisecond();
        let start = &self.run.start;
        let dialed = self.run.dialed(record);
        Some(Event { version: self.version, start, record, class, dialed }.into_value(time))
    }
}

impl Exporter for Ocsf {
    fn line(&mut self, record: &Record, _: &[u8], out: &mut dyn Write) -> io::Result<bool> {
        match self.event(record) {
            Some(event) => json_line(&event, out).map(|()| true),
            None => Ok(false),
        }
    }
}

/// One line on its way to an event.
struct Event<'a> {
    version: Version,
    /// The run's first line.
    start: &'a Record,
    record: &'a Record,
    class: Class,
    /// The origin's address, if it is known.
    dialed: Option<IpAddr>,
}

impl Event<'_> {
    fn into_value(self, time: i64) -> Value {
        let Event { record, class, start, .. } = self;
        let (activity, status, severity) = self.outcome();
        let caption = if activity.0 == OTHER { "Other" } else { &activity.1 };
        let mut event = Fields::default();
        let (category, name) = class.category();
        event.set("category_uid", category).set("category_name", name);
        event.set("class_uid", class.uid()).set("class_name", class.caption());
        id(&mut event, "activity", "_name", (activity.0, &activity.1));
        event.set("type_uid", class.uid() * 100 + u32::from(activity.0));
        event.set("type_name", format!("{}: {caption}", class.caption()));
        id(&mut event, "status", "", status);
        id(&mut event, "severity", "", severity);
        let code = record.reason.as_deref().or(record.ended_by.as_deref()).or(record.cause.as_deref());
        event.maybe("status_code", code);
        event.maybe("status_detail", record.error.as_deref());
        event.set("time", time).set("message", self.message());
        event.maybe("count", record.count.map(long));
        let of_run = Some(record.mono_us).filter(|_| record.event == Kind::RunEnd);
        if let Some(dur) = record.dur_us.or(of_run) {
            let dur = long(dur / 1000);
            event.set("duration", dur).set("start_time", time.saturating_sub(dur)).set("end_time", time);
        }

        let mut profiles = Vec::new();
        // A line on a connection has it from the decision.
        if record.is_decision() || (record.conn.is_some() && record.verdict.is_some()) {
            profiles.push("security_control");
            self.control(&mut event);
        }
        if matches!(class, Class::Network | Class::Http) && record.via.as_deref() != Some("direct") {
            // exeat stood in the way as a proxy: not of questions, nor of what went around it.
            profiles.push("network_proxy");
            self.proxy(&mut event);
        }
        if self.host(&mut event) {
            profiles.push("host");
        }
        if let Some(trace) = start.trace_id.as_deref().filter(|_| self.takes_trace()) {
            profiles.push("trace");
            event.set("trace.uid", trace);
        }
        match class {
            Class::Network | Class::Http => {
                self.destination(&mut event);
                self.connection(&mut event);
                let is_request = record.is_decision() && record.via.as_deref() == Some("http");
                match class {
                    Class::Http => self.request(&mut event, "http_request"),
                    _ if is_request => self.url(&mut event, "url"),
                    _ => {}
                }
            }
            Class::Dns => self.question(&mut event),
            Class::Lifecycle => self.product(&mut event, "app"),
        }
        if class != Class::Lifecycle {
            event.maybe("app_name", start.command.as_deref());
            // Where it came from: the sandbox.
            event.set("src_endpoint.name", record.stage.as_deref().unwrap_or("sandbox"));
            event.set("src_endpoint.instance_uid", record.run.as_str());
            id(&mut event, "src_endpoint.type", "", VIRTUAL);
            let machine = start.machine.as_deref().filter(|machine| is_hostname(machine));
            event.maybe("src_endpoint.hostname", machine);
        }
        self.metadata(&mut event, &profiles);
        self.unmapped(&mut event);
        event.into_value()
    }

    /// Activity (its caption may be a method), status, severity.
    fn outcome(&self) -> ((u8, String), Id, Id) {
        let record = self.record;
        let verdict = record.verdict();
        if record.event == Kind::Close {
            let failed = record.ended_by.as_deref() == Some("error");
            let status = if failed { FAILURE } else { SUCCESS };
            return ((CLOSE.0, CLOSE.1.to_owned()), status, INFORMATIONAL);
        }
        let plain = |(id, caption): Id, status, severity| ((id, caption.to_owned()), status, severity);
        match record.event {
            Kind::Progress => return plain(TRAFFIC, SUCCESS, INFORMATIONAL),
            Kind::RunStart => return plain(START, SUCCESS, INFORMATIONAL),
            Kind::RunEnd if record.exit == Some(0) => return plain(STOP, SUCCESS, INFORMATIONAL),
            Kind::RunEnd => return plain(STOP, FAILURE, LOW),
            Kind::Checkpoint => return plain(SIGN, SUCCESS, INFORMATIONAL),
            _ => {}
        }
        let (status, severity) = match verdict {
            Some(Verdict::Allow) => (SUCCESS, INFORMATIONAL),
            Some(Verdict::WouldDeny) => (SUCCESS, LOW),
            Some(Verdict::Error) => (FAILURE, LOW),
            Some(Verdict::Deny) => (FAILURE, MEDIUM),
            _ => (UNKNOWN, UNKNOWN),
        };
        let activity = match self.class {
            Class::Lifecycle => UNKNOWN,
            Class::Dns => QUERY,
            Class::Http => {
                let method = record.method.as_deref().unwrap_or_default();
                match self.known_method() {
                    Some(id) => id,
                    None if method.is_empty() => UNKNOWN,
                    None => return ((OTHER, method.to_owned()), status, severity),
                }
            }
            Class::Network => match verdict {
                Some(Verdict::Allow | Verdict::WouldDeny) => OPEN,
                Some(Verdict::Error) => FAIL,
                // A late refusal has the address that was dialled.
                Some(Verdict::Deny) if record.ip.is_some() => RESET,
                Some(Verdict::Deny) => REFUSE,
                _ => UNKNOWN,
            },
        };
        ((activity.0, activity.1.to_owned()), status, severity)
    }

    /// The activity of the method, where this version has one.
    fn known_method(&self) -> Option<Id> {
        let method = self.record.method.as_deref()?;
        METHODS
            .into_iter()
            .find(|(name, _)| *name == method)
            .filter(|(name, _)| *name != "PATCH" || self.version >= Version::V1_8)
            .map(|(_, id)| id)
    }

    /// One sentence for people.
    fn message(&self) -> String {
        let record = self.record;
        let target = record
            .target()
            .or_else(|| record.host_raw.as_deref().map(|raw| printable_ascii(raw).into_owned()));
        let target = target.as_deref().unwrap_or("no readable host");
        let word = |word: &Option<String>| printable_ascii(word.as_deref().unwrap_or("?")).into_owned();
        match record.event {
            Kind::Close => return format!("connection to {target} closed ({})", word(&record.ended_by)),
            Kind::Progress => return format!("connection to {target} is open"),
            Kind::RunStart => return format!("run of {} started", word(&record.command)),
            Kind::RunEnd => return format!("run ended ({})", word(&record.cause)),
            Kind::Checkpoint => {
                return format!("record signed ({} lines)", record.n.unwrap_or_default());
            }
            _ => {}
        }
        format!("{} {} {target} ({})", word(&record.verdict), word(&record.via), word(&record.reason))
    }

    /// Profile `security_control`: what was decided, by which rule, under which policy.
    fn control(&self, event: &mut Fields) {
        let record = self.record;
        let (action, disposition) = match record.verdict() {
            Some(Verdict::Allow) => (ACTION_ALLOWED, ALLOWED),
            Some(Verdict::WouldDeny) => (ACTION_ALLOWED, LOGGED),
            Some(Verdict::Error) => (ACTION_ALLOWED, ERROR),
            Some(Verdict::Deny) => (ACTION_DENIED, BLOCKED),
            _ => (UNKNOWN, UNKNOWN),
        };
        id(event, "action", "", action);
        id(event, "disposition", "", disposition);
        if record.rule.is_some() || record.rule_src.is_some() {
            event.maybe("firewall_rule.name", record.rule.as_deref());
            event.maybe("firewall_rule.uid", record.rule_src.as_deref());
            event.maybe("firewall_rule.desc", record.why.as_deref());
        }
        let Some(digest) = record.policy_sha256.as_deref() else { return };
        let mut holder = Fields::default();
        holder.set("policy.name", "effective policy").set("policy.uid", digest);
        if self.version >= Version::V1_3 {
            holder.maybe("policy.is_applied", record.mode.as_deref().map(|mode| mode == "enforce"));
        }
        if self.version >= Version::V1_5 {
            event.maybe("policy", holder.get("policy").cloned());
        } else {
            holder.maybe("decision", record.verdict.as_deref());
            event.set("authorizations", vec![holder.into_value()]);
        }
    }

    /// Profile `network_proxy`: exeat, the next proxy, and what was asked of exeat.
    fn proxy(&self, event: &mut Fields) {
        let record = self.record;
        event.set("proxy_endpoint.name", "exeat").set("proxy_endpoint.instance_uid", record.run.as_str());
        if let Some(upstream) = record.upstream.as_deref() {
            let next = "proxy_endpoint.proxy_endpoint";
            match upstream.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
                Some((host, port)) => host_at(event, next, host).set(&format!("{next}.port"), port),
                None => event.set(&format!("{next}.name"), upstream),
            };
        }
        match record.via.as_deref().filter(|_| record.is_decision()) {
            Some("connect") => {
                event.set("proxy_http_request.http_method", "CONNECT");
                if let Some(target) = record.target() {
                    event.set("proxy_http_request.url.url_string", target);
                    self.place(event, "proxy_http_request.url");
                }
            }
            Some("http") => self.request(event, "proxy_http_request"),
            _ => {}
        }
    }

    /// A request for an `http://` URL.
    fn request(&self, event: &mut Fields, path: &str) {
        event.set(path, Value::Object(serde_json::Map::new()));
        let method = self.known_method().and(self.record.method.as_deref());
        event.maybe(&format!("{path}.http_method"), method);
        self.url(event, &format!("{path}.url"));
    }

    /// The URL of a request, as far as it is recorded: neither path nor query are.
    fn url(&self, event: &mut Fields, path: &str) {
        let Some(target) = self.record.target() else { return };
        event.set(&format!("{path}.url_string"), format!("http://{target}"));
        event.set(&format!("{path}.scheme"), "http");
        self.place(event, path);
    }

    /// The host and port of a URL.
    fn place(&self, event: &mut Fields, path: &str) {
        let host = self.record.host.as_deref().filter(|host| is_hostname(host));
        event.maybe(&format!("{path}.hostname"), host).maybe(&format!("{path}.port"), self.record.port);
    }

    /// What was to be reached, and what of it people search for.
    fn destination(&self, event: &mut Fields) {
        let record = self.record;
        if let Some(host) = record.host.as_deref() {
            host_at(event, "dst_endpoint", host);
        }
        if event.get("dst_endpoint.ip").is_none() {
            event.maybe("dst_endpoint.ip", self.dialed.map(|ip| ip.to_string()));
        }
        if event.get("dst_endpoint").is_none() {
            // It must be called something.
            event.set("dst_endpoint.name", record.host_raw.as_deref().unwrap_or("unknown"));
        }
        event.maybe("dst_endpoint.port", record.port);
        let observables: Vec<Value> = [("dst_endpoint.hostname", HOSTNAME), ("dst_endpoint.ip", IP_ADDRESS)]
            .into_iter()
            .filter_map(|(path, id)| Some(observable(path, id, event.get(path)?.clone())))
            .collect();
        if !observables.is_empty() {
            event.set("observables", observables);
        }
    }

    /// How the connection was made, and what went over it.
    fn connection(&self, event: &mut Fields) {
        let record = self.record;
        id(event, "connection_info.direction", "", OUTBOUND);
        let uid = record.conn.map(|conn| format!("{}:{conn}", record.run));
        event.maybe("connection_info.uid", uid);
        let (name, number) = match record.proto.as_deref() {
            None => (Some("tcp"), Some(6)),
            Some("udp") => (Some("udp"), Some(17)),
            Some(number) => (None, number.parse::<u8>().ok()),
        };
        event.maybe("connection_info.protocol_name", name).maybe("connection_info.protocol_num", number);
        let host = record.host.as_deref().and_then(|host| host.parse().ok());
        match host.or(self.dialed) {
            Some(IpAddr::V4(_)) => id(event, "connection_info.protocol_ver", "", IPV4),
            Some(IpAddr::V6(_)) => id(event, "connection_info.protocol_ver", "", IPV6),
            None => {}
        }
        // Out is from the sandbox. What an open connection has moved so far is in `unmapped`: its end says it again, and sums would
        // count it twice. HTTP Activity is about the request alone.
        if let (Class::Network, Some(up), Some(down)) = (self.class, record.bytes_up, record.bytes_down)
            && record.event != Kind::Progress
        {
            event.set("traffic.bytes_out", long(up)).set("traffic.bytes_in", long(down));
            event.set("traffic.bytes", long(up.saturating_add(down)));
        }
    }

    /// A question to the sandbox's name server, which got no address.
    fn question(&self, event: &mut Fields) {
        let record = self.record;
        if let Some(name) = record.host.as_deref().filter(|name| is_hostname(name)) {
            event.set("query.hostname", name);
            event.set("observables", vec![observable("query.hostname", HOSTNAME, name.into())]);
        }
        match record.verdict() {
            Some(Verdict::Deny) => id(event, "rcode", "", NXDOMAIN),
            Some(Verdict::Error) => id(event, "rcode", "", SERVERROR),
            _ => {}
        }
    }

    /// Profile `host`: the machine that the run was on, who started the run there, and the process that asked. Whether there is any of it.
    fn host(&self, event: &mut Fields) -> bool {
        if let Some(pid) = self.record.pid {
            event.set("actor.process.pid", pid);
            if let Some(exe) = self.record.exe.as_deref() {
                let name = last_part(exe);
                event.set("actor.process.name", name).set("actor.process.file.name", name);
                event.set("actor.process.file.path", exe);
                id(event, "actor.process.file.type", "", REGULAR_FILE);
            }
            event.maybe("actor.process.parent_process.pid", self.record.ppid);
        }
        event.maybe("actor.user.name", self.start.user.as_deref());
        if let Some(machine) = self.start.machine.as_deref() {
            host_at(event, "device", machine);
            id(event, "device.type", "", UNKNOWN);
        }
        event.get("actor").or(event.get("device")).is_some()
    }

    /// Profile `trace`, which only HTTP Activity has.
    fn takes_trace(&self) -> bool {
        self.class == Class::Http && self.version >= Version::V1_5
    }

    fn product(&self, event: &mut Fields, path: &str) {
        event.set(&format!("{path}.name"), "exeat").set(&format!("{path}.vendor_name"), "exeat");
        event.maybe(&format!("{path}.version"), self.start.version.as_deref());
    }

    fn metadata(&self, event: &mut Fields, profiles: &[&str]) {
        let record = self.record;
        event.set("metadata.version", format!("{}.0", self.version));
        self.product(event, "metadata.product");
        event.set("metadata.log_name", "egress").set("metadata.log_version", SCHEMA);
        // The same for each export of a line: a consumer can tell doubles.
        event
            .set("metadata.log_provider", "exeat")
            .set("metadata.uid", format!("{}:{}", record.run, record.seq));
        event.set("metadata.correlation_uid", record.run.as_str()).set("metadata.sequence", long(record.seq));
        event.set("metadata.original_time", record.ts.as_str());
        event.set("metadata.event_code", serde_json::to_value(&record.event).unwrap_or_default());
        if !profiles.is_empty() {
            event.set("metadata.profiles", profiles.to_vec());
        }
        let labels = self.start.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let labels: Vec<_> = labels.collect();
        if !labels.is_empty() {
            event.set("metadata.labels", labels);
        }
    }

    /// What has no place, under the names of the record. No more than two lines can hold: the run's first, and this one.
    fn unmapped(&self, event: &mut Fields) {
        let Event { record, start, class, .. } = self;
        let line = serde_json::to_value(record).unwrap_or_default();
        event.copy("unmapped", &line, &REST);
        let is_odd_name = || record.host.as_deref().is_some_and(|name| !is_hostname(name));
        for (is_left_over, names) in [
            (*class == Class::Dns && is_odd_name(), &["host"] as &[&str]),
            (self.dialed.is_none(), &["ip"]),
            (record.pid.is_none(), &["exe"]),
            (self.known_method().is_none(), &["method"]),
            (record.event == Kind::Progress, &["bytes_up", "bytes_down"]),
            (*class == Class::Lifecycle, &OF_RUN),
        ] {
            if is_left_over {
                event.copy("unmapped", &line, names);
            }
        }
        event.maybe("unmapped.dir", start.dir.as_deref());
        event.maybe("unmapped.trace_id", start.trace_id.as_deref().filter(|_| !self.takes_trace()));
        event.maybe("unmapped.span_id", start.span_id.as_deref());
    }
}

/// A value that people search for, and where it stands in the event.
fn observable(name: &str, kind: Id, value: Value) -> Value {
    let mut observable = Fields::default();
    observable.set("name", name).set("value", value);
    id(&mut observable, "type", "", kind);
    observable.into_value()
}

/// Sets `PATH_id`, and the caption in `PATH` with `suffix`.
fn id(event: &mut Fields, path: &str, suffix: &str, (id, caption): (u8, &str)) {
    event.set(&format!("{path}_id"), id).set(&format!("{path}{suffix}"), caption);
}

/// Sets a host by the attribute that takes it.
fn host_at<'a>(event: &'a mut Fields, path: &str, host: &str) -> &'a mut Fields {
    match host.parse::<IpAddr>() {
        Ok(ip) => event.set(&format!("{path}.ip"), ip.to_string()),
        Err(_) if is_hostname(host) => event.set(&format!("{path}.hostname"), host),
        Err(_) => event.set(&format!("{path}.name"), host),
    }
}

/// `hostname_t` of the versions that have a pattern for it. Names with an underscore, say, are none.
fn is_hostname(text: &str) -> bool {
    text.split('.').all(|label| {
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    })
}

#[cfg(test)]
mod tests;

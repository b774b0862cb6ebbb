//! Events of the Open Cybersecurity Schema Framework (OCSF), <https://schema.ocsf.io>.
//!
//! Does not invent what the record does not know. If the record lacks an attribute that the schema requires of an object, the object is
//! left out, and its other values go to `unmapped`:
//!
//! - `tls` requires the version of TLS, which exeat does not see: the names of the hello are in `unmapped`.
//! - `span` requires the times of the span, which only the caller knows: the caller's span is in `unmapped`, and so is the trace if the
//!   class has no profile for it.
//! - Before 1.5, HTTP Activity (4002) requires an answer's status, which exeat does not record: there, an `http://` request is Network
//!   Activity (4001) with its method in `proxy_http_request`.
//!
//! Attributes with an identifier have its caption too (`action_id`, `action`), as consumers expect. The test
//! `export::ocsf_of_every_kind_of_line` compares the attributes of each version with the published schemas.

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::str::FromStr;

use exeat_policy::{Verdict, printable_ascii};
use exeat_record::SCHEMA;
use serde_json::Value;

use super::exporter::{Exporter, Fields, Run, long, write_event};
use crate::query::{LineKind, Record, last_part};

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
    /// Every release that can be written, oldest first.
    pub const ALL: [Version; 4] = [Version::V1_1, Version::V1_3, Version::V1_5, Version::V1_8];

    /// Returns the version as it is typed: `1.3`.
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

/// A version that exeat cannot write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("known versions: 1.1, 1.3, 1.5, 1.8")]
pub struct UnknownVersion;

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

/// A value of an enumeration: its number, and its caption in the schema.
type Id = (u8, &'static str);

const UNKNOWN: Id = (0, "Unknown");
/// The number for a value that the enumeration lacks; its caption is then exeat's own word.
const OTHER: u8 = 99;

// Network Activity.
const OPEN: Id = (1, "Open");
const CLOSE: Id = (2, "Close");
/// "abnormally terminated or closed by middle devices": the connection was let through first.
const RESET: Id = (3, "Reset");
const FAIL: Id = (4, "Fail");
const REFUSE: Id = (5, "Refuse");
const TRAFFIC: Id = (6, "Traffic");

// Application Lifecycle.
const START: Id = (3, "Start");
const STOP: Id = (4, "Stop");
/// The record of a finished run is signed; the schema has no such activity.
const SIGN: Id = (OTHER, "Sign");

// DNS Activity.
const QUERY: Id = (1, "Query");
/// The name server's answer to a question for a name that is not granted.
const NXDOMAIN: Id = (3, "NXDomain");
/// The name server's answer for a granted name that cannot be served.
const SERVERROR: Id = (2, "ServError");

// Values for every class.
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

/// Fields that no class has a place for, under the names of the record.
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

/// Fields of a run's first and last lines, such as its ledger number, its totals and its signature.
const OF_RUN: [&str; 25] = [
    "stage",
    "command",
    "policy_sha256",
    "backend",
    "backend_why",
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

/// Writes events of one version of the schema.
#[derive(Debug)]
pub struct Ocsf {
    version: Version,
    run: Run,
}

impl Ocsf {
    /// Creates an exporter for one version.
    pub fn new(version: Version) -> Ocsf {
        Ocsf { version, run: Run::default() }
    }

    /// Returns the event for a line; `None` if the line has no class or no time.
    pub fn event(&mut self, record: &Record) -> Option<Value> {
        let record = &self.run.take(record)?;
        let class = match record.event {
            LineKind::RunStart | LineKind::RunEnd | LineKind::Checkpoint => Class::Lifecycle,
            LineKind::Decision if record.via.as_deref() == Some("http") && self.version >= Version::V1_5 => {
                Class::Http
            }
            LineKind::Decision | LineKind::Progress | LineKind::Close => Class::Network,
            LineKind::Dns => Class::Dns,
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
        write_event(self.event(record), out)
    }
}

/// A line that is being turned into an event.
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
        let of_run = Some(record.mono_us).filter(|_| record.event == LineKind::RunEnd);
        if let Some(dur) = record.dur_us.or(of_run) {
            let dur = long(dur / 1000);
            event.set("duration", dur).set("start_time", time.saturating_sub(dur)).set("end_time", time);
        }

        let mut profiles = Vec::new();
        // A `close` has these values from the decision on its connection.
        if record.is_decision() || (record.conn.is_some() && record.verdict.is_some()) {
            profiles.push("security_control");
            self.control(&mut event);
        }
        if matches!(class, Class::Network | Class::Http) && record.via.as_deref() != Some("direct") {
            // Questions for names and attempts without the proxy do not go through it.
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

    /// Returns the activity (its caption may be a method), the status and the severity.
    fn outcome(&self) -> ((u8, String), Id, Id) {
        let record = self.record;
        let verdict = record.verdict();
        if record.event == LineKind::Close {
            let failed = record.ended_by.as_deref() == Some("error");
            let status = if failed { FAILURE } else { SUCCESS };
            return ((CLOSE.0, CLOSE.1.to_owned()), status, INFORMATIONAL);
        }
        let plain = |(id, caption): Id, status, severity| ((id, caption.to_owned()), status, severity);
        match record.event {
            LineKind::Progress => return plain(TRAFFIC, SUCCESS, INFORMATIONAL),
            LineKind::RunStart => return plain(START, SUCCESS, INFORMATIONAL),
            LineKind::RunEnd if record.exit == Some(0) => return plain(STOP, SUCCESS, INFORMATIONAL),
            LineKind::RunEnd => return plain(STOP, FAILURE, LOW),
            LineKind::Checkpoint => return plain(SIGN, SUCCESS, INFORMATIONAL),
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
                // A late refusal has the address that was dialed.
                Some(Verdict::Deny) if record.ip.is_some() => RESET,
                Some(Verdict::Deny) => REFUSE,
                _ => UNKNOWN,
            },
        };
        ((activity.0, activity.1.to_owned()), status, severity)
    }

    /// Returns the activity of the method, if this version has one.
    fn known_method(&self) -> Option<Id> {
        let method = self.record.method.as_deref()?;
        METHODS
            .into_iter()
            .find(|(name, _)| *name == method)
            .filter(|(name, _)| *name != "PATCH" || self.version >= Version::V1_8)
            .map(|(_, id)| id)
    }

    /// Describes the event in one sentence.
    fn message(&self) -> String {
        let record = self.record;
        let target = record
            .target()
            .or_else(|| record.host_raw.as_deref().map(|raw| printable_ascii(raw).into_owned()));
        let target = target.as_deref().unwrap_or("no readable host");
        let word = |word: &Option<String>| printable_ascii(word.as_deref().unwrap_or("?")).into_owned();
        match record.event {
            LineKind::Close => return format!("connection to {target} closed ({})", word(&record.ended_by)),
            LineKind::Progress => return format!("connection to {target} is open"),
            LineKind::RunStart => return format!("run of {} started", word(&record.command)),
            LineKind::RunEnd => return format!("run ended ({})", word(&record.cause)),
            LineKind::Checkpoint => {
                return format!("record signed ({} lines)", record.n.unwrap_or_default());
            }
            _ => {}
        }
        format!("{} {} {target} ({})", word(&record.verdict), word(&record.via), word(&record.reason))
    }

    /// Sets the profile `security_control`: the decision, its rule and its policy.
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

    /// Sets the profile `network_proxy`: exeat, the next proxy, and the request to exeat.
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

    /// Sets the request for an `http://` URL.
    fn request(&self, event: &mut Fields, path: &str) {
        event.set(path, Value::Object(serde_json::Map::new()));
        let method = self.known_method().and(self.record.method.as_deref());
        event.maybe(&format!("{path}.http_method"), method);
        self.url(event, &format!("{path}.url"));
    }

    /// Sets the URL of a request; the record has neither its path nor its query.
    fn url(&self, event: &mut Fields, path: &str) {
        let Some(target) = self.record.target() else { return };
        event.set(&format!("{path}.url_string"), format!("http://{target}"));
        event.set(&format!("{path}.scheme"), "http");
        self.place(event, path);
    }

    /// Sets the host and port of a URL.
    fn place(&self, event: &mut Fields, path: &str) {
        let host = self.record.host.as_deref().filter(|host| is_hostname(host));
        event.maybe(&format!("{path}.hostname"), host).maybe(&format!("{path}.port"), self.record.port);
    }

    /// Sets the destination, and lists its parts that people search for.
    fn destination(&self, event: &mut Fields) {
        let record = self.record;
        if let Some(host) = record.host.as_deref() {
            host_at(event, "dst_endpoint", host);
        }
        if event.get("dst_endpoint.ip").is_none() {
            event.maybe("dst_endpoint.ip", self.dialed.map(|ip| ip.to_string()));
        }
        if event.get("dst_endpoint").is_none() {
            // The schema requires a name.
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

    /// Sets how the connection was made, and what it moved.
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
        // Out is from the sandbox. The bytes of an open connection go to `unmapped`: its end repeats them, and sums would count them
        // twice. HTTP Activity is about the request only.
        if let (Class::Network, Some(up), Some(down)) = (self.class, record.bytes_up, record.bytes_down)
            && record.event != LineKind::Progress
        {
            event.set("traffic.bytes_out", long(up)).set("traffic.bytes_in", long(down));
            event.set("traffic.bytes", long(up.saturating_add(down)));
        }
    }

    /// Sets a question to the sandbox's name server, which got no address.
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

    /// Sets the profile `host`: the machine, the user who started the run, and the process that asked. Returns whether any is known.
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

    /// Whether the class has the profile `trace`; only HTTP Activity does.
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
        // The id is the same in each export of a line, so that a consumer can recognize doubles.
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

    /// Sets what the class has no place for, under the record's names. It comes from at most two lines: the run's first, and this one.
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
            (record.event == LineKind::Progress, &["bytes_up", "bytes_down"]),
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

/// Builds a value that people search for, and its path in the event.
fn observable(name: &str, kind: Id, value: Value) -> Value {
    let mut observable = Fields::default();
    observable.set("name", name).set("value", value);
    id(&mut observable, "type", "", kind);
    observable.into_value()
}

/// Sets `PATH_id` to the number, and `PATH` with `suffix` to the caption.
fn id(event: &mut Fields, path: &str, suffix: &str, (id, caption): (u8, &str)) {
    event.set(&format!("{path}_id"), id).set(&format!("{path}{suffix}"), caption);
}

/// Sets a host as an address or a name.
fn host_at<'a>(event: &'a mut Fields, path: &str, host: &str) -> &'a mut Fields {
    match host.parse::<IpAddr>() {
        Ok(ip) => event.set(&format!("{path}.ip"), ip.to_string()),
        Err(_) if is_hostname(host) => event.set(&format!("{path}.hostname"), host),
        Err(_) => event.set(&format!("{path}.name"), host),
    }
}

/// Whether the text matches the pattern of `hostname_t`. A name with an underscore, for example, does not.
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

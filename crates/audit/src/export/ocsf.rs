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
use serde_json::{Map, Value};

use super::exporter::{Decisions, Exporter, json_line};
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

/// Writes events of one version.
#[derive(Debug)]
pub struct Ocsf {
    version: Version,
    run: Run,
    decisions: Decisions,
}

/// What the first line said of the run that is read.
#[derive(Debug, Default)]
struct Run {
    name: String,
    version: Option<String>,
    command: Option<String>,
    user: Option<String>,
    machine: Option<String>,
    dir: Option<String>,
    trace_id: Option<String>,
    span_id: Option<String>,
    /// Whether connections are left to another proxy.
    upstream: bool,
    labels: Vec<String>,
    has_ended: bool,
}

impl Ocsf {
    /// An exporter of one version.
    pub fn new(version: Version) -> Ocsf {
        Ocsf { version, run: Run::default(), decisions: Decisions::default() }
    }

    /// The event that a line becomes; `None` for one that has no class, or says no time.
    pub fn event(&mut self, record: &Record) -> Option<Value> {
        if self.run.name != record.run {
            self.run = Run { name: record.run.clone(), ..Run::default() };
        }
        let class = match record.event {
            Kind::RunStart => {
                self.run.version.clone_from(&record.version);
                self.run.command.clone_from(&record.command);
                self.run.user.clone_from(&record.user);
                self.run.machine.clone_from(&record.machine);
                self.run.dir.clone_from(&record.dir);
                self.run.trace_id.clone_from(&record.trace_id);
                self.run.span_id.clone_from(&record.span_id);
                self.run.upstream = record.upstream.is_some();
                self.run.labels = record.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                Class::Lifecycle
            }
            Kind::RunEnd => {
                self.run.has_ended = true;
                Class::Lifecycle
            }
            // Only the last one says that all is signed.
            Kind::Checkpoint if self.run.has_ended => Class::Lifecycle,
            Kind::Decision if record.via.as_deref() == Some("http") && self.version >= Version::V1_5 => {
                Class::Http
            }
            Kind::Decision | Kind::Progress | Kind::Close => Class::Network,
            Kind::Dns => Class::Dns,
            _ => return None,
        };
        let time = record.ts.parse::<jiff::Timestamp>().ok()?.as_millisecond();
        let record = &self.decisions.complete(record);
        Some(Event { version: self.version, run: &self.run, record, class }.into_value(time))
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
    run: &'a Run,
    record: &'a Record,
    class: Class,
}

impl Event<'_> {
    fn into_value(self, time: i64) -> Value {
        let record = self.record;
        let (activity, status, severity) = self.outcome();
        let caption = if activity.0 == OTHER { "Other" } else { &activity.1 };
        let mut event = Object::default();
        let class = self.class;
        let (category, name) = class.category();
        event.set("category_uid", category).set("category_name", name);
        event.set("class_uid", class.uid()).set("class_name", class.caption());
        event.id("activity", "_name", (activity.0, &activity.1));
        event.set("type_uid", class.uid() * 100 + u32::from(activity.0));
        event.set("type_name", format!("{}: {caption}", class.caption()));
        event.id("status", "", status).id("severity", "", severity);
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
        if self.through_proxy() {
            profiles.push("network_proxy");
            self.proxy(&mut event);
        }
        if self.host(&mut event) {
            profiles.push("host");
        }
        if let Some(trace) = self.run.trace_id.as_deref().filter(|_| self.takes_trace()) {
            profiles.push("trace");
            let mut object = Object::default();
            object.set("uid", trace);
            event.set("trace", object);
        }
        match class {
            Class::Network => {
                self.destination(&mut event);
                event.set("connection_info", self.connection());
                event.maybe("traffic", self.traffic());
                let is_request = record.is_decision() && record.via.as_deref() == Some("http");
                event.maybe("url", self.url().filter(|_| is_request));
            }
            Class::Http => {
                self.destination(&mut event);
                event.set("connection_info", self.connection());
                event.set("http_request", self.request());
            }
            Class::Dns => self.question(&mut event),
            Class::Lifecycle => {
                event.set("app", self.product());
            }
        }
        if class != Class::Lifecycle {
            event.maybe("app_name", self.run.command.as_deref());
            event.set("src_endpoint", self.stage());
        }
        event.set("metadata", self.metadata(&profiles));
        event.maybe("unmapped", self.unmapped());
        event.into()
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
    fn control(&self, event: &mut Object) {
        let record = self.record;
        let (action, disposition) = match record.verdict() {
            Some(Verdict::Allow) => (ACTION_ALLOWED, ALLOWED),
            Some(Verdict::WouldDeny) => (ACTION_ALLOWED, LOGGED),
            Some(Verdict::Error) => (ACTION_ALLOWED, ERROR),
            Some(Verdict::Deny) => (ACTION_DENIED, BLOCKED),
            _ => (UNKNOWN, UNKNOWN),
        };
        event.id("action", "", action).id("disposition", "", disposition);
        if record.rule.is_some() || record.rule_src.is_some() {
            let mut rule = Object::default();
            rule.maybe("name", record.rule.as_deref()).maybe("uid", record.rule_src.as_deref());
            rule.maybe("desc", record.why.as_deref());
            event.set("firewall_rule", rule);
        }
        let Some(digest) = record.policy_sha256.as_deref() else { return };
        let mut policy = Object::default();
        policy.set("name", "effective policy").set("uid", digest);
        if self.version >= Version::V1_3 {
            policy.maybe("is_applied", record.mode.as_deref().map(|mode| mode == "enforce"));
        }
        if self.version >= Version::V1_5 {
            event.set("policy", policy);
        } else {
            let mut authorization = Object::default();
            authorization.maybe("decision", record.verdict.as_deref()).set("policy", policy);
            event.set("authorizations", vec![Value::from(authorization)]);
        }
    }

    /// Whether exeat stood in the way as a proxy: not for questions, nor for what went around it.
    fn through_proxy(&self) -> bool {
        matches!(self.class, Class::Network | Class::Http) && self.record.via.as_deref() != Some("direct")
    }

    /// Profile `network_proxy`: exeat, the next proxy, and what was asked of exeat.
    fn proxy(&self, event: &mut Object) {
        let record = self.record;
        let mut exeat = Object::default();
        exeat.set("name", "exeat").set("instance_uid", self.run.name.as_str());
        if let Some(upstream) = record.upstream.as_deref() {
            let mut next = Object::default();
            match upstream.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
                Some((host, port)) => next.host(host).set("port", port),
                None => next.set("name", upstream),
            };
            exeat.set("proxy_endpoint", next);
        }
        event.set("proxy_endpoint", exeat);
        let asked = match record.via.as_deref().filter(|_| record.is_decision()) {
            Some("connect") => {
                let mut request = Object::default();
                request.set("http_method", "CONNECT");
                if let Some(target) = record.target() {
                    let mut url = Object::default();
                    url.set("url_string", target).maybe("port", record.port);
                    url.maybe("hostname", record.host.as_deref().filter(|host| is_hostname(host)));
                    request.set("url", url);
                }
                request
            }
            Some("http") => self.request(),
            _ => return,
        };
        event.set("proxy_http_request", asked);
    }

    /// A request for an `http://` URL.
    fn request(&self) -> Object {
        let mut request = Object::default();
        request.maybe("http_method", self.known_method().and(self.record.method.as_deref()));
        request.maybe("url", self.url());
        request
    }

    /// The URL of it, as far as it is recorded: neither path nor query are.
    fn url(&self) -> Option<Object> {
        let mut url = Object::default();
        url.set("url_string", format!("http://{}", self.record.target()?)).set("scheme", "http");
        url.maybe("hostname", self.record.host.as_deref().filter(|host| is_hostname(host)));
        url.maybe("port", self.record.port);
        Some(url)
    }

    /// What was to be reached, and what of it people search for.
    fn destination(&self, event: &mut Object) {
        let record = self.record;
        let mut endpoint = Object::default();
        if let Some(host) = record.host.as_deref() {
            endpoint.host(host);
        }
        if !endpoint.has("ip") {
            endpoint.maybe("ip", self.dialled().map(|ip| ip.to_string()));
        }
        endpoint.maybe("port", record.port);
        if endpoint.is_nameless() {
            // It must be called something.
            endpoint.set("name", record.host_raw.as_deref().unwrap_or("unknown"));
        }
        let observables: Vec<Value> = [("hostname", HOSTNAME), ("ip", IP_ADDRESS)]
            .into_iter()
            .filter_map(|(key, id)| {
                Some(observable(&format!("dst_endpoint.{key}"), id, endpoint.0.get(key)?.clone()))
            })
            .collect();
        if !observables.is_empty() {
            event.set("observables", observables);
        }
        event.set("dst_endpoint", endpoint);
    }

    /// The origin's address, where it is known: of a connection that is left to another proxy, `ip` is that proxy's, and
    /// a `close` does not say whether it was one of those.
    fn dialled(&self) -> Option<IpAddr> {
        let record = self.record;
        let is_unknown = record.event == Kind::Close && record.verdict.is_none();
        let left = record.upstream.is_some() || (is_unknown && self.run.upstream);
        record.ip.filter(|_| !left)
    }

    fn connection(&self) -> Object {
        let record = self.record;
        let mut info = Object::default();
        let uid = record.conn.map(|conn| format!("{}:{conn}", self.run.name));
        info.id("direction", "", OUTBOUND).maybe("uid", uid);
        match record.proto.as_deref() {
            None => info.set("protocol_name", "tcp").set("protocol_num", 6),
            Some("udp") => info.set("protocol_name", "udp").set("protocol_num", 17),
            Some(number) => info.maybe("protocol_num", number.parse::<u8>().ok()),
        };
        let host = record.host.as_deref().and_then(|host| host.parse().ok());
        match host.or(self.dialled()) {
            Some(IpAddr::V4(_)) => info.id("protocol_ver", "", IPV4),
            Some(IpAddr::V6(_)) => info.id("protocol_ver", "", IPV6),
            None => &mut info,
        };
        info
    }

    /// Out is from the sandbox. What an open connection has moved so far is in `unmapped`: its end says it again, and sums would count it
    /// twice.
    fn traffic(&self) -> Option<Object> {
        let record = Some(self.record).filter(|record| record.event != Kind::Progress)?;
        let (up, down) = (record.bytes_up?, record.bytes_down?);
        let mut traffic = Object::default();
        traffic.set("bytes_out", long(up)).set("bytes_in", long(down));
        traffic.set("bytes", long(up.saturating_add(down)));
        Some(traffic)
    }

    /// A question to the sandbox's name server, which got no address.
    fn question(&self, event: &mut Object) {
        let record = self.record;
        if let Some(name) = record.host.as_deref().filter(|name| is_hostname(name)) {
            let mut query = Object::default();
            query.set("hostname", name);
            event.set("query", query);
            event.set("observables", vec![observable("query.hostname", HOSTNAME, name.into())]);
        }
        match record.verdict() {
            Some(Verdict::Deny) => event.id("rcode", "", NXDOMAIN),
            Some(Verdict::Error) => event.id("rcode", "", SERVERROR),
            _ => event,
        };
    }

    /// Profile `host`: the machine that the run was on, who started the run there, and the process that asked. Whether there is any of it.
    fn host(&self, event: &mut Object) -> bool {
        let mut actor = Object::default();
        actor.maybe("process", self.record.pid.map(|pid| self.process(pid)));
        if let Some(name) = self.run.user.as_deref() {
            let mut user = Object::default();
            user.set("name", name);
            actor.set("user", user);
        }
        if let Some(machine) = self.run.machine.as_deref() {
            let mut device = Object::default();
            device.host(machine).id("type", "", UNKNOWN);
            event.set("device", device);
        }
        if !actor.0.is_empty() {
            event.set("actor", actor);
        }
        event.has("actor") || event.has("device")
    }

    /// Profile `trace`, which only HTTP Activity has.
    fn takes_trace(&self) -> bool {
        self.class == Class::Http && self.version >= Version::V1_5
    }

    /// The process that asked.
    fn process(&self, pid: u32) -> Object {
        let mut process = Object::default();
        process.set("pid", pid);
        if let Some(exe) = self.record.exe.as_deref() {
            let name = last_part(exe);
            let mut file = Object::default();
            file.set("name", name).set("path", exe).id("type", "", REGULAR_FILE);
            process.set("name", name).set("file", file);
        }
        if let Some(ppid) = self.record.ppid {
            let mut parent = Object::default();
            parent.set("pid", ppid);
            process.set("parent_process", parent);
        }
        process
    }

    /// Where it came from: the sandbox.
    fn stage(&self) -> Object {
        let mut stage = Object::default();
        stage.set("name", self.record.stage.as_deref().unwrap_or("sandbox"));
        stage.set("instance_uid", self.run.name.as_str()).id("type", "", VIRTUAL);
        stage.maybe("hostname", self.run.machine.as_deref().filter(|machine| is_hostname(machine)));
        stage
    }

    fn product(&self) -> Object {
        let mut product = Object::default();
        product
            .set("name", "exeat")
            .set("vendor_name", "exeat")
            .maybe("version", self.run.version.as_deref());
        product
    }

    fn metadata(&self, profiles: &[&str]) -> Object {
        let record = self.record;
        let mut metadata = Object::default();
        metadata.set("version", format!("{}.0", self.version)).set("product", self.product());
        metadata.set("log_name", "egress").set("log_version", SCHEMA).set("log_provider", "exeat");
        // The same for each export of a line: a consumer can tell doubles.
        metadata.set("uid", format!("{}:{}", self.run.name, record.seq));
        metadata.set("correlation_uid", self.run.name.as_str()).set("sequence", long(record.seq));
        metadata.set("original_time", record.ts.as_str());
        metadata.set(
            "event_code",
            match record.event {
                Kind::Close => "close",
                Kind::Progress => "progress",
                Kind::Dns => "dns",
                Kind::RunStart => "run_start",
                Kind::RunEnd => "run_end",
                Kind::Checkpoint => "checkpoint",
                _ => "decision",
            },
        );
        if !profiles.is_empty() {
            metadata.set("profiles", profiles.to_vec());
        }
        if !self.run.labels.is_empty() {
            metadata.set("labels", self.run.labels.clone());
        }
        metadata
    }

    /// What the lines of a run as a whole say: its place in the ledger, the totals, what is signed.
    fn of_run(&self, rest: &mut Object) {
        let record = self.record;
        rest.maybe("stage", record.stage.as_deref()).maybe("command", record.command.as_deref());
        rest.maybe("policy_sha256", record.policy_sha256.as_deref());
        rest.maybe("backend", record.backend.as_deref()).maybe("gateway", record.gateway.as_deref());
        rest.maybe("proxy", record.proxy.as_deref()).maybe("upstream", record.upstream.as_deref());
        rest.maybe("ledger", record.ledger.as_deref()).maybe("no", record.no.map(long));
        rest.maybe("ledger_prev", record.ledger_prev.as_deref());
        rest.maybe("n", record.n.map(long)).maybe("root", record.root.as_deref());
        rest.maybe("key_id", record.key_id.as_deref());
        rest.maybe("exit", record.exit).maybe("limit", record.limit.as_deref());
        rest.maybe("signal", record.signal.as_deref()).maybe("stopped_by", record.stopped_by.as_deref());
        for (key, count) in record.totals() {
            rest.maybe(key, count.map(long));
        }
    }

    /// What has no place, under the names of the record. No more than two lines can hold: the run's first, and this one.
    fn unmapped(&self) -> Option<Object> {
        let record = self.record;
        let mut rest = Object::default();
        rest.maybe("via", record.via.as_deref()).maybe("mode", record.mode.as_deref());
        rest.maybe("host_raw", record.host_raw.as_deref());
        if self.class == Class::Dns {
            rest.maybe("host", record.host.as_deref().filter(|name| !is_hostname(name)));
        }
        if !record.ips.is_empty() {
            rest.set("ips", record.ips.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
        if self.dialled().is_none() {
            rest.maybe("ip", record.ip.map(|ip| ip.to_string()));
        }
        rest.maybe("ips_more", record.ips_more.map(long)).maybe("dns_us", record.dns_us.map(long));
        rest.maybe("connect_us", record.connect_us.map(long)).maybe("tls_us", record.tls_us.map(long));
        rest.maybe("sni", record.sni.as_deref()).maybe("sni_ok", record.sni_ok);
        rest.maybe("alpn", record.alpn.as_deref()).maybe("ech", record.ech);
        rest.maybe("refused_by", record.refused_by.as_deref());
        rest.maybe("risk", record.risk.as_deref());
        rest.maybe("approved_by", record.approved_by.as_deref()).maybe("expires", record.expires.as_deref());
        if record.pid.is_none() {
            rest.maybe("exe", record.exe.as_deref());
        }
        if self.known_method().is_none() {
            rest.maybe("method", record.method.as_deref());
        }
        if record.event == Kind::Progress {
            rest.maybe("bytes_up", record.bytes_up.map(long));
            rest.maybe("bytes_down", record.bytes_down.map(long));
        }
        if self.class == Class::Lifecycle {
            self.of_run(&mut rest);
        }
        rest.maybe("dir", self.run.dir.as_deref());
        rest.maybe("trace_id", self.run.trace_id.as_deref().filter(|_| !self.takes_trace()));
        rest.maybe("span_id", self.run.span_id.as_deref());
        (!rest.0.is_empty()).then_some(rest)
    }
}

/// A value that people search for, and where it stands in the event.
fn observable(name: &str, id: Id, value: Value) -> Value {
    let mut observable = Object::default();
    observable.set("name", name).id("type", "", id).set("value", value);
    observable.into()
}

/// A JSON object that is filled in.
#[derive(Default)]
struct Object(Map<String, Value>);

impl Object {
    fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Object {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    fn maybe(&mut self, key: &str, value: Option<impl Into<Value>>) -> &mut Object {
        match value {
            Some(value) => self.set(key, value),
            None => self,
        }
    }

    /// `KEY_id`, and the caption in `KEY` with `suffix`.
    fn id(&mut self, key: &str, suffix: &str, (id, caption): (u8, &str)) -> &mut Object {
        self.set(&format!("{key}_id"), id).set(&format!("{key}{suffix}"), caption)
    }

    /// A host by the attribute that takes it.
    fn host(&mut self, host: &str) -> &mut Object {
        match host.parse::<IpAddr>() {
            Ok(ip) => self.set("ip", ip.to_string()),
            Err(_) if is_hostname(host) => self.set("hostname", host),
            Err(_) => self.set("name", host),
        }
    }

    fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    fn is_nameless(&self) -> bool {
        !["ip", "hostname", "name"].into_iter().any(|key| self.has(key))
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Value {
        Value::Object(object.0)
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

/// `long_t` has 63 bits.
fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;

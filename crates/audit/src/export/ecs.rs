//! Events of the Elastic Common Schema (ECS), <https://www.elastic.co/guide/en/ecs/8.7/>.
//!
//! Does not invent what the record does not know. What the schema has no field for is below `exeat`, under the record's names, as the
//! schema asks of custom fields. Which fields the schema has is held against the published list by the test `export::l17_ecs_of_every_kind_of_line`.

use std::io::{self, Write};
use std::net::IpAddr;

use exeat_policy::Verdict;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use super::exporter::{Decisions, Exporter, json_line};
use crate::query::{Kind, Record, last_part};

/// The release that events name.
const VERSION: &str = "8.7.0";

/// Writes events.
#[derive(Debug, Default)]
pub struct Ecs {
    run: Run,
    decisions: Decisions,
}

/// What the first line said of the run that is read.
#[derive(Debug, Default)]
struct Run {
    name: String,
    version: Option<String>,
    user: Option<String>,
    machine: Option<String>,
    trace_id: Option<String>,
    span_id: Option<String>,
    /// Whether connections are left to another proxy.
    upstream: bool,
    labels: Map<String, Value>,
    has_ended: bool,
}

impl Ecs {
    /// The event that a line becomes; `None` for one that has no place in the schema, or no time.
    pub fn event(&mut self, record: &Record) -> Option<Value> {
        if self.run.name != record.run {
            self.run = Run { name: record.run.clone(), ..Run::default() };
        }
        match record.event {
            Kind::RunStart => self.run.begin(record),
            Kind::RunEnd => self.run.has_ended = true,
            // Only the last one says that all is signed.
            Kind::Checkpoint if !self.run.has_ended => return None,
            Kind::Policy | Kind::Other(_) => return None,
            _ => {}
        }
        let time: Timestamp = record.ts.parse().ok()?;
        let record = self.decisions.complete(record);
        let mut event = Fields::default();
        event.set("@timestamp", record.ts.as_str()).set("ecs.version", VERSION);
        self.run.describe(&mut event, &record);
        let act = act(&record);
        event.set("event.kind", "event").set("event.category", vec![act.category]);
        event.set("event.type", act.types).set("event.action", act.action.as_str());
        event.set("event.outcome", act.outcome);
        event.maybe("event.reason", act.reason).maybe("error.message", record.error.as_deref());
        event.set("message", message(&record, &act.action));
        match record.event {
            Kind::Decision | Kind::Close | Kind::Progress => connection(&mut event, &record, &self.run, time),
            Kind::Dns => question(&mut event, &record),
            _ => run(&mut event, &record),
        }
        rest(&mut event, &record);
        Some(Value::Object(event.0))
    }
}

impl Exporter for Ecs {
    fn line(&mut self, record: &Record, _: &[u8], out: &mut dyn Write) -> io::Result<bool> {
        match self.event(record) {
            Some(event) => json_line(&event, out).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Run {
    fn begin(&mut self, record: &Record) {
        self.version.clone_from(&record.version);
        self.user.clone_from(&record.user);
        self.machine.clone_from(&record.machine);
        self.trace_id.clone_from(&record.trace_id);
        self.span_id.clone_from(&record.span_id);
        self.upstream = record.upstream.is_some();
        // A dot would make an object of a label, and the schema wants text.
        let labels = record.labels.iter().map(|(key, value)| (key.replace('.', "_"), value.as_str().into()));
        self.labels = labels.collect();
    }

    /// What every event of the run has.
    fn describe(&self, event: &mut Fields, record: &Record) {
        // The same for each export of a line: a consumer can tell doubles.
        event
            .set("event.id", format!("{}:{}", self.name, record.seq))
            .set("event.sequence", long(record.seq));
        event.set("event.module", "exeat").set("event.dataset", "exeat.egress");
        event.set("observer.type", "proxy").set("observer.vendor", "exeat").set("observer.product", "exeat");
        event.maybe("observer.version", self.version.as_deref());
        event.maybe("host.name", self.machine.as_deref()).maybe("host.hostname", self.machine.as_deref());
        if let Some(user) = self.user.as_deref() {
            event.set("user.name", user).set("related.user", vec![user]);
        }
        event.maybe("service.name", record.stage.as_deref());
        event.maybe("trace.id", self.trace_id.as_deref()).maybe("span.id", self.span_id.as_deref());
        if !self.labels.is_empty() {
            event.set("labels", self.labels.clone());
        }
        event.set("exeat.run", self.name.as_str());
    }
}

/// What a line tells of, in the schema's words.
struct Act<'a> {
    category: &'static str,
    types: Vec<&'static str>,
    action: String,
    outcome: &'static str,
    reason: Option<&'a str>,
}

fn act(record: &Record) -> Act<'_> {
    let new = |category, types: &[&'static str], action: &str, outcome| Act {
        category,
        types: types.to_vec(),
        action: action.to_owned(),
        outcome,
        reason: record.reason.as_deref(),
    };
    let network = |types: &[&'static str], action, outcome| new("network", types, action, outcome);
    match (&record.event, record.verdict()) {
        (Kind::Decision, Some(Verdict::Allow)) => {
            network(&["connection", "start", "allowed"], "connection-allowed", "success")
        }
        (Kind::Decision, Some(Verdict::WouldDeny)) => {
            network(&["connection", "start", "allowed"], "connection-would-deny", "success")
        }
        (Kind::Decision, Some(Verdict::Deny)) => {
            network(&["connection", "denied"], "connection-denied", "failure")
        }
        (Kind::Decision, Some(Verdict::Error)) => {
            network(&["connection", "info"], "connection-failed", "failure")
        }
        (Kind::Decision, None) => network(&["connection", "info"], "connection", "unknown"),
        (Kind::Dns, Some(Verdict::Deny)) => network(&["protocol", "denied"], "name-denied", "failure"),
        (Kind::Dns, Some(Verdict::Error)) => network(&["protocol", "info"], "name-failed", "failure"),
        (Kind::Dns, _) => network(&["protocol", "info"], "name-asked", "unknown"),
        (Kind::Close, _) => {
            let reason = record.ended_by.as_deref();
            let outcome = if reason == Some("error") { "failure" } else { "success" };
            Act { reason, ..network(&["connection", "end"], "connection-closed", outcome) }
        }
        (Kind::Progress, _) => network(&["connection", "info"], "connection-progress", "unknown"),
        (Kind::RunStart, _) => new("process", &["start"], "run-started", "unknown"),
        (Kind::RunEnd, _) => {
            let outcome = if record.exit == Some(0) { "success" } else { "failure" };
            Act { reason: record.cause.as_deref(), ..new("process", &["end"], "run-ended", outcome) }
        }
        (Kind::Checkpoint, _) => new("process", &["info"], "record-signed", "success"),
        _ => {
            let what = record.what.as_deref().unwrap_or("note").replace('_', "-");
            new("process", &["info"], &what, "unknown")
        }
    }
}

fn message(record: &Record, action: &str) -> String {
    let action = action.replace('-', " ");
    match record.target() {
        Some(target) => format!("{action}: {target}"),
        None => action,
    }
}

/// The two ends of a connection, what went over it, who asked and by which rule.
fn connection(event: &mut Fields, record: &Record, run: &Run, time: Timestamp) {
    let host = record.host.as_deref();
    let asked: Option<IpAddr> = host.and_then(|host| host.parse().ok());
    // Of a connection that is left to another proxy, the address is that proxy's.
    let is_unknown = record.event == Kind::Close && record.verdict.is_none();
    let left = record.upstream.is_some() || (is_unknown && run.upstream);
    let ip = asked.or(record.ip.filter(|_| !left));
    event.maybe("destination.address", host.map(str::to_owned).or_else(|| ip.map(|ip| ip.to_string())));
    event.maybe("destination.domain", host.filter(|_| asked.is_none()));
    event.maybe("destination.ip", ip.map(|ip| ip.to_string())).maybe("destination.port", record.port);
    if let Some(host) = host.filter(|_| asked.is_none()) {
        event.set("related.hosts", vec![host]);
    }
    let mut ips: Vec<String> = ip.iter().chain(&record.ips).map(ToString::to_string).collect();
    ips.sort_unstable();
    ips.dedup();
    if !ips.is_empty() {
        event.set("related.ip", ips);
    }
    event.maybe("source.domain", run.machine.as_deref()).maybe("source.address", run.machine.as_deref());
    event.set("network.direction", "egress");
    match record.proto.as_deref() {
        None => event.set("network.transport", "tcp").set("network.iana_number", "6"),
        Some("udp") => event.set("network.transport", "udp").set("network.iana_number", "17"),
        Some(number) => event.set("network.iana_number", number),
    };
    event.maybe("network.type", ip.map(|ip| if ip.is_ipv4() { "ipv4" } else { "ipv6" }));
    match (&record.event, record.bytes_up, record.bytes_down) {
        // What a close says again would count twice.
        (Kind::Progress, up, down) => {
            event.maybe("exeat.bytes_up_so_far", up.map(long));
            event.maybe("exeat.bytes_down_so_far", down.map(long));
        }
        (_, Some(up), Some(down)) => {
            event.set("source.bytes", long(up)).set("destination.bytes", long(down));
            event.set("network.bytes", long(up.saturating_add(down)));
        }
        _ => {}
    }
    if let Some(took) = record.dur_us {
        event.set("event.duration", long(took.saturating_mul(1000))).set("event.end", record.ts.as_str());
        let start = time.checked_sub(SignedDuration::from_micros(long(took)));
        event.maybe("event.start", start.ok().map(|start| format!("{start:.6}")));
    }
    if record.via.as_deref() == Some("http") {
        event.set("network.protocol", "http").maybe("http.request.method", record.method.as_deref());
        if let Some(target) = record.target() {
            event.set("url.full", format!("http://{target}")).set("url.scheme", "http");
            event.maybe("url.domain", host).maybe("url.port", record.port);
        }
    }
    event.maybe("tls.client.server_name", record.sni.as_deref());
    if let Some(exe) = record.exe.as_deref() {
        event.set("process.executable", exe).set("process.name", last_part(exe));
    }
    event.maybe("process.pid", record.pid).maybe("process.parent.pid", record.ppid);
    rule(event, record);
}

/// The rule that decided, and the policy that it is in.
fn rule(event: &mut Fields, record: &Record) {
    event.maybe("rule.name", record.rule.as_deref()).maybe("rule.id", record.rule_src.as_deref());
    event.maybe("rule.description", record.why.as_deref());
    event.maybe("rule.ruleset", record.policy_sha256.as_deref());
}

/// A question to the sandbox's name server, which got no address.
fn question(event: &mut Fields, record: &Record) {
    event.set("network.direction", "egress").set("network.protocol", "dns");
    event.set("dns.type", "query").maybe("dns.question.name", record.host.as_deref());
    if let Some(host) = record.host.as_deref() {
        event.set("related.hosts", vec![host]);
    }
    event.maybe(
        "dns.response_code",
        match record.verdict() {
            Some(Verdict::Deny) => Some("NXDOMAIN"),
            Some(Verdict::Error) => Some("SERVFAIL"),
            _ => None,
        },
    );
    rule(event, record);
}

/// What the lines of a run as a whole say.
fn run(event: &mut Fields, record: &Record) {
    event.maybe("process.name", record.command.as_deref());
    event.maybe("process.working_directory", record.dir.as_deref());
    event.maybe("process.exit_code", record.exit);
    event.maybe("rule.ruleset", record.policy_sha256.as_deref());
    event.maybe("exeat.no", record.no.map(long)).maybe("exeat.ledger", record.ledger.as_deref());
    event.maybe("exeat.ledger_prev", record.ledger_prev.as_deref());
    event.maybe("exeat.lines", record.n.map(long)).maybe("exeat.root", record.root.as_deref());
    event.maybe("exeat.key_id", record.key_id.as_deref()).maybe("exeat.limit", record.limit.as_deref());
    event.maybe("exeat.signal", record.signal.as_deref());
    for (key, count) in record.totals() {
        event.maybe(&format!("exeat.{key}"), count.map(long));
    }
}

/// What the schema has no field for.
fn rest(event: &mut Fields, record: &Record) {
    event.maybe("exeat.conn", record.conn.map(|conn| format!("{}:{conn}", record.run)));
    event.maybe("exeat.via", record.via.as_deref()).maybe("exeat.verdict", record.verdict.as_deref());
    event.maybe("exeat.mode", record.mode.as_deref()).maybe("exeat.count", record.count.map(long));
    event.maybe("exeat.refused_by", record.refused_by.as_deref());
    event.maybe("exeat.risk", record.risk.as_deref());
    event.maybe("exeat.approved_by", record.approved_by.as_deref());
    event.maybe("exeat.expires", record.expires.as_deref());
    event.maybe("exeat.host_raw", record.host_raw.as_deref());
    event.maybe("exeat.upstream", record.upstream.as_deref());
    event.maybe("exeat.sni_ok", record.sni_ok).maybe("exeat.alpn", record.alpn.as_deref());
    event.maybe("exeat.ech", record.ech);
    event.maybe("exeat.dns_us", record.dns_us.map(long));
    event.maybe("exeat.connect_us", record.connect_us.map(long));
    event.maybe("exeat.tls_us", record.tls_us.map(long));
}

/// A JSON object that is filled in by paths with dots.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn set(&mut self, path: &str, value: impl Into<Value>) -> &mut Fields {
        let mut parts = path.split('.');
        let last = parts.next_back().unwrap_or(path);
        let mut object = &mut self.0;
        for part in parts {
            let inner = object.entry(part).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = inner else { return self };
            object = inner;
        }
        object.insert(last.to_owned(), value.into());
        self
    }

    fn maybe(&mut self, path: &str, value: Option<impl Into<Value>>) -> &mut Fields {
        match value {
            Some(value) => self.set(path, value),
            None => self,
        }
    }
}

/// `long` has 63 bits.
fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

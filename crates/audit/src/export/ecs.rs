//! Events of the Elastic Common Schema (ECS), <https://www.elastic.co/guide/en/ecs/8.7/>.
//!
//! Does not invent what the record does not know. What the schema has no field for is below `exeat`, under the record's names, as the
//! schema asks of custom fields. Which fields the schema has is held against the published list by the test `export::l17_ecs_of_every_kind_of_line`.

use std::io::{self, Write};
use std::net::IpAddr;

use exeat_policy::Verdict;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::exporter::{Exporter, Fields, Run, json_line, long};
use crate::query::{Kind, Record, last_part};

/// The release that events name.
const VERSION: &str = "8.7.0";

/// Writes events.
#[derive(Debug, Default)]
pub struct Ecs(Run);

impl Ecs {
    /// Returns the event that a line becomes; `None` for one that has no place in the schema, or no time.
    pub fn event(&mut self, record: &Record) -> Option<Value> {
        let record = self.0.take(record)?;
        let time: Timestamp = record.ts.parse().ok()?;
        let mut event = Fields::default();
        event.set("@timestamp", record.ts.as_str()).set("ecs.version", VERSION);
        describe(&mut event, &self.0.start, &record);
        let act = act(&record);
        event.set("event.kind", "event").set("event.category", vec![act.category]);
        event.set("event.type", act.types).set("event.action", act.action.as_str());
        event.set("event.outcome", act.outcome);
        event.maybe("event.reason", act.reason).maybe("error.message", record.error.as_deref());
        event.set("message", message(&record, &act.action));
        let line = serde_json::to_value(&*record).unwrap_or_default();
        match record.event {
            Kind::Decision | Kind::Close | Kind::Progress => connection(&mut event, &record, &self.0, time),
            Kind::Dns => question(&mut event, &record),
            _ => run(&mut event, &record, &line),
        }
        event.maybe("exeat.conn", record.conn.map(|conn| format!("{}:{conn}", record.run)));
        event.copy("exeat", &line, &REST);
        Some(event.into_value())
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

/// Fields of a run's own lines that the schema has no field for.
const OF_RUN: [&str; 14] = [
    "no",
    "ledger",
    "ledger_prev",
    "root",
    "key_id",
    "limit",
    "signal",
    "allowed",
    "denied",
    "would_deny",
    "errors",
    "failed",
    "dropped",
    "connections",
];

/// Fields of any line that the schema has no field for.
const REST: [&str; 16] = [
    "via",
    "verdict",
    "mode",
    "count",
    "refused_by",
    "risk",
    "approved_by",
    "expires",
    "host_raw",
    "upstream",
    "sni_ok",
    "alpn",
    "ech",
    "dns_us",
    "connect_us",
    "tls_us",
];

/// Sets what every event of the run has.
fn describe(event: &mut Fields, start: &Record, record: &Record) {
    // The same for each export of a line: a consumer can tell doubles.
    event.set("event.id", format!("{}:{}", record.run, record.seq)).set("event.sequence", long(record.seq));
    event.set("event.module", "exeat").set("event.dataset", "exeat.egress");
    event.set("observer.type", "proxy").set("observer.vendor", "exeat").set("observer.product", "exeat");
    event.maybe("observer.version", start.version.as_deref());
    event.maybe("host.name", start.machine.as_deref()).maybe("host.hostname", start.machine.as_deref());
    if let Some(user) = start.user.as_deref() {
        event.set("user.name", user).set("related.user", vec![user]);
    }
    event.maybe("service.name", record.stage.as_deref());
    event.maybe("trace.id", start.trace_id.as_deref()).maybe("span.id", start.span_id.as_deref());
    for (key, value) in &start.labels {
        // A dot would make an object of a label, and the schema wants text.
        event.set(&format!("labels.{}", key.replace('.', "_")), value.as_str());
    }
    event.set("exeat.run", record.run.as_str());
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
    let ip = asked.or(run.dialed(record));
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
    let machine = run.start.machine.as_deref();
    event.maybe("source.domain", machine).maybe("source.address", machine);
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

/// Sets what the lines of a run as a whole say.
fn run(event: &mut Fields, record: &Record, line: &Value) {
    event.maybe("process.name", record.command.as_deref());
    event.maybe("process.working_directory", record.dir.as_deref());
    event.maybe("process.exit_code", record.exit);
    event.maybe("rule.ruleset", record.policy_sha256.as_deref());
    event.maybe("exeat.lines", record.n.map(long)).copy("exeat", line, &OF_RUN);
}

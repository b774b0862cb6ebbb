//! Events of the Elastic Common Schema (ECS), <https://www.elastic.co/guide/en/ecs/8.7/>.
//!
//! Does not invent what the record does not know. Values without a field in the schema go below `exeat`, under the record's names, as
//! the schema asks of custom fields. The test `export::l17_ecs_of_every_kind_of_line` compares the fields with the published list.

use std::io::{self, Write};
use std::net::IpAddr;

use exeat_policy::Verdict;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::exporter::{Exporter, Fields, Run, long, write_event};
use crate::query::{LineKind, Record, last_part};

/// The release of the schema that events name.
const VERSION: &str = "8.7.0";

/// Exports ECS events.
#[derive(Debug, Default)]
pub struct Ecs(Run);

impl Ecs {
    /// Returns the event for a line; `None` if the schema has no place for the line, or the line has no time.
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
            LineKind::Decision | LineKind::Close | LineKind::Progress => {
                connection(&mut event, &record, &self.0, time)
            }
            LineKind::Dns => question(&mut event, &record),
            _ => run(&mut event, &record, &line),
        }
        event.maybe("exeat.conn", record.conn.map(|conn| format!("{}:{conn}", record.run)));
        event.copy("exeat", &line, &REST);
        Some(event.into_value())
    }
}

impl Exporter for Ecs {
    fn line(&mut self, record: &Record, _: &[u8], out: &mut dyn Write) -> io::Result<bool> {
        write_event(self.event(record), out)
    }
}

/// Fields of a run's first and last lines that the schema has no field for.
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

/// Sets the fields that every event of the run has.
fn describe(event: &mut Fields, start: &Record, record: &Record) {
    // The id is the same in each export of a line, so that a consumer can recognize doubles.
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
        // A dot in a key would make an object of the label, and the schema wants text.
        event.set(&format!("labels.{}", key.replace('.', "_")), value.as_str());
    }
    event.set("exeat.run", record.run.as_str());
}

/// A line's event in the schema's words.
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
        (LineKind::Decision, Some(Verdict::Allow)) => {
            network(&["connection", "start", "allowed"], "connection-allowed", "success")
        }
        (LineKind::Decision, Some(Verdict::WouldDeny)) => {
            network(&["connection", "start", "allowed"], "connection-would-deny", "success")
        }
        (LineKind::Decision, Some(Verdict::Deny)) => {
            network(&["connection", "denied"], "connection-denied", "failure")
        }
        (LineKind::Decision, Some(Verdict::Error)) => {
            network(&["connection", "info"], "connection-failed", "failure")
        }
        (LineKind::Decision, None) => network(&["connection", "info"], "connection", "unknown"),
        (LineKind::Dns, Some(Verdict::Deny)) => network(&["protocol", "denied"], "name-denied", "failure"),
        (LineKind::Dns, Some(Verdict::Error)) => network(&["protocol", "info"], "name-failed", "failure"),
        (LineKind::Dns, _) => network(&["protocol", "info"], "name-asked", "unknown"),
        (LineKind::Close, _) => {
            let reason = record.ended_by.as_deref();
            let outcome = if reason == Some("error") { "failure" } else { "success" };
            Act { reason, ..network(&["connection", "end"], "connection-closed", outcome) }
        }
        (LineKind::Progress, _) => network(&["connection", "info"], "connection-progress", "unknown"),
        (LineKind::RunStart, _) => new("process", &["start"], "run-started", "unknown"),
        (LineKind::RunEnd, _) => {
            let outcome = if record.exit == Some(0) { "success" } else { "failure" };
            Act { reason: record.cause.as_deref(), ..new("process", &["end"], "run-ended", outcome) }
        }
        (LineKind::Checkpoint, _) => new("process", &["info"], "record-signed", "success"),
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

/// Sets the two ends of a connection, its bytes, the program that asked, and the rule that decided.
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
        // A `close` repeats these bytes, which would count them twice.
        (LineKind::Progress, up, down) => {
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

/// Sets the rule that decided, and its policy.
fn rule(event: &mut Fields, record: &Record) {
    event.maybe("rule.name", record.rule.as_deref()).maybe("rule.id", record.rule_src.as_deref());
    event.maybe("rule.description", record.why.as_deref());
    event.maybe("rule.ruleset", record.policy_sha256.as_deref());
}

/// Sets a question to the sandbox's name server, which got no address.
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

/// Sets what the first and last lines say of the whole run.
fn run(event: &mut Fields, record: &Record, line: &Value) {
    event.maybe("process.name", record.command.as_deref());
    event.maybe("process.working_directory", record.dir.as_deref());
    event.maybe("process.exit_code", record.exit);
    event.maybe("rule.ruleset", record.policy_sha256.as_deref());
    event.maybe("exeat.lines", record.n.map(long)).copy("exeat", line, &OF_RUN);
}

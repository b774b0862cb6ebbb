//! A summary as text, as JSON and as Markdown.
//!
//! Nothing of a record comes out as it is there: only 0x20 to 0x7e, and in Markdown only inside a code span that it
//! cannot leave.

use std::borrow::Cow;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{HostSummary, Summary, Traffic, Used};
use crate::line::ascii_json;
use crate::table::{GREEN, RED, YELLOW, bytes, cell, day_and_time, paint};
use crate::{Moment, Proto};

/// Hosts and rules that a job summary of GitHub shows at most: it takes no more than 1 MiB, or nothing.
const MAX_ROWS: usize = 500;

/// How a summary is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For a terminal.
    Text {
        /// With colours.
        colour: bool,
    },
    /// One JSON object.
    Json,
    /// Tables of GitHub Flavored Markdown.
    Markdown,
    /// The same for `$GITHUB_STEP_SUMMARY`: long tables folded, and cut at 500 rows.
    GitHub,
}

/// Writes a summary.
pub fn write(summary: &Summary, form: Form, out: &mut dyn Write) -> io::Result<()> {
    match form {
        Form::Text { colour } => text(summary, colour, out),
        Form::Json => json(summary, out),
        Form::Markdown => markdown(summary, out, false),
        Form::GitHub => markdown(summary, out, true),
    }
}

fn text(summary: &Summary, colour: bool, out: &mut dyn Write) -> io::Result<()> {
    for (name, value) in head(summary) {
        writeln!(out, "{name:<9} {value}")?;
    }
    for warning in warnings(summary) {
        writeln!(out, "{} {warning}", paint("!", Some(YELLOW), colour))?;
    }
    let hosts = summary.hosts();
    if !hosts.is_empty() {
        writeln!(
            out,
            "\n{:>7}  {:>7}  {:>6}  {:>6}  {:>8}  {:>8}  {:<19}  {:<19}  {:<32}  WHY",
            "DENIED", "ALLOWED", "WOULD", "ERRORS", "UP", "DOWN", "FIRST (UTC)", "LAST", "TARGET"
        )?;
    }
    for host in hosts {
        let Traffic { tally, bytes_up, bytes_down } = host.traffic;
        let number = |count: u64, width: usize, style| {
            let text = format!("{:>width$}", if count == 0 { "-".to_owned() } else { count.to_string() });
            if count == 0 { text } else { paint(&text, style, colour) }
        };
        writeln!(
            out,
            "{}  {}  {}  {}  {:>8}  {:>8}  {:<19}  {:<19}  {:<32}  {}",
            number(tally.denied, 7, Some(RED)),
            number(tally.allowed, 7, Some(GREEN)),
            number(tally.would_deny, 6, Some(YELLOW)),
            number(tally.errors, 6, Some(YELLOW)),
            bytes(bytes_up),
            bytes(bytes_down),
            time(host.first),
            time(host.last),
            target(host),
            why(summary, host, &|text| cell(text).into_owned()),
        )?;
    }
    if summary.others != Traffic::default() {
        writeln!(out, "and others: {}", in_words(&summary.others))?;
    }
    let rules = summary.rules();
    if !rules.is_empty() {
        writeln!(out, "\nRULES THAT DECIDED")?;
    }
    for (used, count) in rules {
        writeln!(out, "{count:>7}  {}", rule(used, &|text| cell(text).into_owned()))?;
    }
    if summary.rules_more() > 0 {
        writeln!(out, "{:>7}  by others", summary.rules_more())?;
    }
    match summary.unused() {
        None => {}
        Some(unused) if unused.is_empty() => writeln!(out, "\nevery rule of the stored policies was used")?,
        Some(unused) => {
            writeln!(out, "\nRULES NEVER USED")?;
            for rule in unused {
                writeln!(out, "         {}", cell(rule))?;
            }
        }
    }
    Ok(())
}

/// What stands above the hosts, printable.
fn head(summary: &Summary) -> Vec<(&'static str, String)> {
    let runs = match summary.unfinished {
        0 => summary.runs.to_string(),
        open => format!("{} ({open} without an end)", summary.runs),
    };
    let mut head = vec![("runs", runs)];
    if !summary.stages.is_empty() {
        let stages: Vec<_> =
            summary.stages.iter().map(|(stage, runs)| format!("{} ({runs})", cell(stage))).collect();
        head.push(("stages", stages.join(", ")));
    }
    if summary.first.is_some() {
        head.push(("time", format!("{} to {} UTC", time(summary.first), time(summary.last))));
    }
    head.push(("attempts", summary.total.tally.to_string()));
    let Traffic { bytes_up, bytes_down, .. } = summary.total;
    head.push(("bytes", format!("{} up, {} down", bytes(bytes_up), bytes(bytes_down))));
    head
}

/// What a reader must know before they rely on the numbers.
fn warnings(summary: &Summary) -> Vec<String> {
    [
        (summary.flaws, "flaws in the records: `exeat audit show` names them"),
        (summary.unrecorded, "attempts that no line tells of"),
        (summary.unseen, "packets or connections that were not looked at"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect()
}

fn json(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let with = |mut value: Value, traffic: &Traffic| {
        if let (Value::Object(all), Value::Object(more)) = (&mut value, of_traffic(traffic)) {
            all.extend(more);
        }
        value
    };
    let head = json!({
        "schema": 1,
        "runs": summary.runs,
        "unfinished": summary.unfinished,
        "stages": summary.stages,
        "lines": summary.lines,
        "first": summary.first.as_ref().map(Moment::as_str),
        "last": summary.last.as_ref().map(Moment::as_str),
        "flaws": summary.flaws,
        "dropped": summary.unrecorded,
        "unseen": summary.unseen,
        "total": of_traffic(&summary.total),
        "others": of_traffic(&summary.others),
        "rules_more": summary.rules_more(),
        "unused_rules": summary.unused(),
    });
    // One object, but a host and a rule a line: what is long can be read with the eye and with `grep`.
    out.write_all(b"{\n")?;
    for (key, value) in head.as_object().into_iter().flatten() {
        ascii_json(out, &json!(key).to_string())?;
        out.write_all(b": ")?;
        ascii_json(out, &value.to_string())?;
        out.write_all(b",\n")?;
    }
    let hosts = summary.hosts().into_iter().map(|host| {
        let rules: Vec<_> =
            summary.rules_of(host).map(|used| json!({"rule": used.rule, "src": used.src})).collect();
        let value = json!({
            "host": host.host,
            "port": host.port,
            "proto": match host.proto { Proto::Tcp => None, proto => Some(proto.to_string()) },
            "via": host.vias,
            "reasons": host.reasons.iter().map(|(reason, count)| (reason.as_str().to_owned(), json!(count)))
                .collect::<serde_json::Map<_, _>>(),
            "rules": rules,
            "rules_more": host.rules_more,
            "first": host.first.as_ref().map(Moment::as_str),
            "last": host.last.as_ref().map(Moment::as_str),
        });
        with(value, &host.traffic)
    });
    list(out, "hosts", hosts)?;
    out.write_all(b",\n")?;
    let rules = summary.rules().into_iter().map(
        |(used, count)| json!({"rule": used.rule, "src": used.src, "denies": used.denies, "count": count}),
    );
    list(out, "rules", rules)?;
    out.write_all(b"\n}\n")
}

/// `"name": [...]`, a value a line.
pub(crate) fn list(out: &mut dyn Write, name: &str, values: impl Iterator<Item = Value>) -> io::Result<()> {
    write!(out, "\"{name}\": [")?;
    let mut any = false;
    for value in values {
        out.write_all(if any { b",\n  " } else { b"\n  " })?;
        ascii_json(out, &value.to_string())?;
        any = true;
    }
    out.write_all(if any { b"\n]" } else { b"]" })
}

fn of_traffic(traffic: &Traffic) -> Value {
    let Traffic { tally, bytes_up, bytes_down } = traffic;
    json!({
        "allowed": tally.allowed,
        "denied": tally.denied,
        "would_deny": tally.would_deny,
        "errors": tally.errors,
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
    })
}

fn markdown(summary: &Summary, out: &mut dyn Write, github: bool) -> io::Result<()> {
    let rows = if github { MAX_ROWS } else { usize::MAX };
    let tally = &summary.total.tally;
    let (hosts, unused) = (summary.hosts(), summary.unused());
    writeln!(out, "### Egress: {tally}\n")?;
    let stages = match summary.stages.is_empty() {
        true => String::new(),
        false => {
            let names: Vec<_> = summary.stages.keys().map(|stage| code(stage)).collect();
            format!(" of {}", names.join(", "))
        }
    };
    let plural = if summary.runs == 1 { "" } else { "s" };
    write!(out, "{} run{plural}{stages}", summary.runs)?;
    if summary.unfinished > 0 {
        write!(out, ", {} without an end", summary.unfinished)?;
    }
    if summary.first.is_some() {
        write!(out, ", {} to {} UTC", time(summary.first), time(summary.last))?;
    }
    let Traffic { bytes_up, bytes_down, .. } = summary.total;
    writeln!(out, ", {} up, {} down", bytes(bytes_up), bytes(bytes_down))?;
    for warning in warnings(summary) {
        writeln!(out, "\n**{warning}**")?;
    }
    // What was refused is what people look for; the rest is folded away.
    let (bad, good): (Vec<_>, Vec<_>) = hosts.into_iter().partition(|host| {
        let tally = &host.traffic.tally;
        tally.denied + tally.would_deny + tally.errors > 0
    });
    let table = |out: &mut dyn Write, hosts: &[&HostSummary]| {
        writeln!(
            out,
            "\n| Target | Denied | Allowed | Would be denied | Failed | Up | Down | First (UTC) | Last | Why |"
        )?;
        writeln!(out, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |")?;
        for host in hosts.iter().take(rows) {
            let Traffic { tally, bytes_up, bytes_down } = host.traffic;
            writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                code(&target(host)),
                tally.denied,
                tally.allowed,
                tally.would_deny,
                tally.errors,
                bytes(bytes_up),
                bytes(bytes_down),
                time(host.first),
                time(host.last),
                why(summary, host, &code),
            )?;
        }
        match hosts.len().saturating_sub(rows) {
            0 => Ok(()),
            more => writeln!(out, "\nand {more} more: `exeat audit summary` shows them"),
        }
    };
    if !bad.is_empty() {
        table(out, &bad)?;
    }
    if !good.is_empty() {
        let plural = if good.len() == 1 { "" } else { "s" };
        let what = format!("{} target{plural} without a refusal", good.len());
        folded(out, &what, github, |out| table(out, &good))?;
    }
    if summary.others != Traffic::default() {
        writeln!(out, "\nAnd others: {}", in_words(&summary.others))?;
    }
    let rules = summary.rules();
    if !rules.is_empty() {
        let plural = if rules.len() == 1 { "" } else { "s" };
        folded(out, &format!("{} rule{plural} decided", rules.len()), github, |out| {
            writeln!(out, "\n| Attempts | Rule |\n| ---: | --- |")?;
            for (used, count) in rules.iter().take(rows) {
                writeln!(out, "| {count} | {} |", rule(used, &code))?;
            }
            Ok(())
        })?;
    }
    if let Some(unused) = unused.filter(|unused| !unused.is_empty()) {
        let plural = if unused.len() == 1 { "was" } else { "were" };
        folded(out, &format!("{} of the rules {plural} never used", unused.len()), github, |out| {
            writeln!(out)?;
            for rule in unused.iter().take(rows) {
                writeln!(out, "- {}", code(rule))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Something below a heading that opens it, or below an ordinary one.
fn folded(
    out: &mut dyn Write,
    what: &str,
    fold: bool,
    inside: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if !fold {
        writeln!(out, "\n#### {what}")?;
        return inside(out);
    }
    writeln!(out, "\n<details><summary>{what}</summary>")?;
    inside(out)?;
    writeln!(out, "\n</details>")
}

/// Text as a code span that it cannot leave: neither a backtick, which would end it, nor a bar, which would end the cell
/// of a table, comes out as itself.
pub(crate) fn code(text: &str) -> String {
    let text = cell(text).replace('`', "\\u{60}").replace('|', "\\u{7c}");
    match text.trim() {
        "" => "-".to_owned(),
        text => format!("`{text}`"),
    }
}

/// `host:port`, printable.
pub(crate) fn target(host: &HostSummary) -> String {
    let name = host.host.as_deref().map_or(Cow::Borrowed("(no host)"), cell);
    let name = if name.contains(':') { Cow::Owned(format!("[{name}]")) } else { name };
    let port = host.port.map(|port| format!(":{port}")).unwrap_or_default();
    match host.proto {
        Proto::Tcp => format!("{name}{port}"),
        proto => format!("{name}{port} ({proto})"),
    }
}

/// The reasons and the rules of a host.
fn why(summary: &Summary, host: &HostSummary, safe: &dyn Fn(&str) -> String) -> String {
    let reasons = host.reasons.iter().map(|(reason, count)| match count {
        1 => reason.to_string(),
        count => format!("{reason} ({count}x)"),
    });
    let rules = summary.rules_of(host).map(|used| rule(used, safe));
    let more = host.rules_more.then(|| "and others".to_owned());
    // Other ways than the proxy variables are worth a word.
    let vias: Vec<_> = host.vias.iter().copied().filter(|via| *via != "connect").collect();
    let vias = (!vias.is_empty()).then(|| format!("[{}]", vias.join(" ")));
    let parts: Vec<_> = reasons.chain(rules).chain(more).chain(vias).collect();
    parts.join(", ")
}

fn rule(used: &Used, safe: &dyn Fn(&str) -> String) -> String {
    let mark = if used.denies && !used.rule.starts_with('!') { "deny " } else { "" };
    match used.src.as_str() {
        "" => format!("{mark}{}", safe(&used.rule)),
        src => format!("{mark}{} ({})", safe(&used.rule), safe(src)),
    }
}

fn in_words(traffic: &Traffic) -> String {
    format!("{}; {} up, {} down", traffic.tally, bytes(traffic.bytes_up), bytes(traffic.bytes_down))
}

fn time(at: Option<Moment>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| day_and_time(at.as_str()))
}

//! Writes a summary as text, as JSON and as Markdown.
//!
//! Text of a record is always escaped: only 0x20 to 0x7e comes out, and in Markdown only inside a code span that it cannot leave.

use std::borrow::Cow;
use std::io::{self, Write};

use exeat_policy::RuleEffect;
use exeat_record::{Proto, ascii_json};
use serde_json::{Value, json};

use super::{HostSummary, RuleSummary, Sort, Summary, Traffic, Unused, UnusedRules, Used};
use crate::Moment;
use crate::query::{host_and_port, last_part};
use crate::table::{self, GREEN, RED, YELLOW, bytes, cell, day_and_time, paint};

/// The most hosts and rules in a job summary of GitHub, which drops a summary over 1 MiB.
const MAX_ROWS: usize = 500;

/// The format of a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For a terminal.
    Text {
        /// With colors.
        color: bool,
    },
    /// A JSON object.
    Json,
    /// Tables of GitHub Flavored Markdown.
    Markdown,
    /// Markdown for `$GITHUB_STEP_SUMMARY`: long tables are folded, and cut at 500 rows.
    GitHub,
}

/// Writes a summary with its hosts in an order.
///
/// # Errors
///
/// Fails if the output cannot be written.
pub fn write(summary: &Summary, form: Form, sort: Sort, out: &mut dyn Write) -> io::Result<()> {
    match form {
        Form::Text { color } => text(summary, color, sort, out),
        Form::Json => json(summary, sort, out),
        Form::Markdown => markdown(summary, sort, out, false),
        Form::GitHub => markdown(summary, sort, out, true),
    }
}

const HEADS: [&str; 10] =
    ["DENIED", "ALLOWED", "WOULD", "FAILED", "UP", "DOWN", "FIRST (UTC)", "LAST", "TARGET", "WHY"];
const WIDTHS: [isize; 10] = [-7, -7, -6, -6, -8, -8, 19, 19, 32, 0];

fn text(summary: &Summary, color: bool, sort: Sort, out: &mut dyn Write) -> io::Result<()> {
    let plain = |text: &str| cell(text).into_owned();
    for (name, value) in head(summary) {
        writeln!(out, "{name:<9} {value}")?;
    }
    for warning in warnings(summary) {
        writeln!(out, "{} {warning}", paint("!", Some(YELLOW), color))?;
    }
    let hosts = summary.hosts(sort);
    if !hosts.is_empty() {
        writeln!(out, "\n{}", table::line(&WIDTHS, HEADS.map(table::plain), false))?;
    }
    for host in &hosts {
        let Traffic { tally, bytes_up, bytes_down, open, .. } = host.traffic;
        let number = |(count, style): (u64, _)| match count {
            0 => table::plain("-"),
            count => (count.to_string(), Some(style)),
        };
        let counts = [(tally.denied, RED), (tally.allowed, GREEN), (tally.would_deny, YELLOW)];
        let counts = counts.into_iter().chain([(tally.not_reached(), YELLOW)]).map(number);
        let sizes = [at_least(bytes_up, open), at_least(bytes_down, open)];
        let rest = [time(host.first), time(host.last), target(host), why(summary, host, &plain)];
        let cells = counts.chain(sizes.into_iter().chain(rest).map(table::plain));
        writeln!(out, "{}", table::line(&WIDTHS, cells, color))?;
    }
    if let Some(others) = others(summary) {
        writeln!(out, "{others}")?;
    }
    let unapproved: Vec<_> = hosts.iter().filter(|host| host.traffic.unapproved > 0).collect();
    if !unapproved.is_empty() && is_approved(summary) {
        writeln!(out, "\nREACHED, AND NOBODY APPROVED")?;
        for host in unapproved {
            writeln!(out, "{:>7}  {}", host.traffic.unapproved, target(host))?;
        }
    }
    let rules = summary.rules();
    if !rules.is_empty() {
        writeln!(out, "\nRULES THAT DECIDED")?;
    }
    for it in rules {
        writeln!(out, "{:>7}  {}", it.attempts, rule_in_full(it, &plain))?;
    }
    if summary.rules_more() > 0 {
        writeln!(out, "{:>7}  by others", summary.rules_more())?;
    }
    match summary.unused() {
        UnusedRules::NotAsked => {}
        UnusedRules::Listed(unused) if unused.is_empty() => {
            let has_rules = !summary.rules().is_empty() || summary.rules_more() > 0;
            let said = if has_rules {
                "every rule of the stored policies was used"
            } else {
                "the stored policies have no rule"
            };
            writeln!(out, "\n{said}")?;
        }
        UnusedRules::CannotTell(count) => writeln!(out, "\n{}", cannot_tell(count))?,
        UnusedRules::Listed(unused) => {
            writeln!(out, "\nRULES NEVER USED")?;
            for rule in unused.iter().take(LISTED) {
                writeln!(out, "         {}  ({})", cell(rule.rule), origin(rule, &plain))?;
            }
            if let Some(more) = more_than(LISTED, unused.len()) {
                writeln!(out, "         {more}")?;
            }
        }
    }
    Ok(())
}

/// Stages, and rules that were never used, that the text lists. `--format json` has all.
const STAGES: usize = 10;
const LISTED: usize = 40;

/// Counts what a list leaves out.
fn more_than(listed: usize, all: usize) -> Option<String> {
    (all > listed).then(|| format!("and {} more", all - listed))
}

/// Returns the lines above the hosts, printable.
fn head(summary: &Summary) -> Vec<(&'static str, String)> {
    let runs = match summary.unfinished {
        0 => summary.runs.to_string(),
        open => format!("{} ({open} without an end)", summary.runs),
    };
    let mut head = vec![("runs", runs)];
    if !summary.stages.is_empty() {
        let stages = summary.stages.iter().take(STAGES);
        let stages = stages.map(|(stage, runs)| format!("{} ({runs})", cell(stage)));
        let stages: Vec<_> = stages.chain(more_than(STAGES, summary.stages.len())).collect();
        head.push(("stages", stages.join(", ")));
    }
    if summary.first.is_some() {
        head.push(("time", format!("{} to {} UTC", time(summary.first), time(summary.last))));
    }
    head.push(("attempts", summary.total.tally.to_string()));
    head.push(("bytes", moved(&summary.total)));
    if let Some(host) = summary.most_up() {
        head.push((
            "most up",
            format!("{}, {}", target(host), at_least(host.traffic.bytes_up, host.traffic.open)),
        ));
    }
    if let Some(approved) = approved(summary, &|text| cell(text).into_owned()) {
        head.push(("approved", approved));
    }
    head
}

/// The summary says this about signatures, which it does not check.
const UNSIGNED: &str = "not checked here (`exeat audit verify`)";

/// Describes the bytes each way, and whether they are complete.
fn moved(traffic: &Traffic) -> String {
    let Traffic { bytes_up, bytes_down, open, .. } = traffic;
    let moved = format!("{} up, {} down", bytes(*bytes_up), bytes(*bytes_down));
    match open {
        0 => moved,
        open => format!("at least {moved}; {}", without_end(*open)),
    }
}

/// Describes how many connections have no end on record.
pub(crate) fn without_end(open: u64) -> String {
    match open {
        1 => "1 connection without an end, its bytes are not known".to_owned(),
        open => format!("{open} connections without an end, their bytes are not known"),
    }
}

/// Formats bytes. Connections that are open may have moved more.
fn at_least(count: u64, open: u64) -> String {
    match (count, open) {
        (count, 0) => bytes(count),
        (0, _) => "unknown".to_owned(),
        (count, _) => format!(">={}", bytes(count)),
    }
}

/// Whether any rule that let something through says who approved it.
fn is_approved(summary: &Summary) -> bool {
    summary.approvals().keys().any(Option::is_some)
}

/// Says who approved what was let through; `None` if nothing was.
fn approved(summary: &Summary, safe: &dyn Fn(&str) -> String) -> Option<String> {
    /// The most approvers that are named.
    const NAMED: usize = 20;
    let approvals = summary.approvals();
    let mut named: Vec<_> = approvals.iter().filter_map(|(by, sum)| Some(((*by)?, sum))).collect();
    named.sort_by_key(|(by, sum)| (std::cmp::Reverse(sum.attempts), *by));
    let more = named.len().saturating_sub(NAMED);
    let mut parts: Vec<String> = named
        .into_iter()
        .take(NAMED)
        .map(|(by, sum)| format!("by {} {} ({} up)", safe(by), sum.attempts, bytes(sum.bytes_up)))
        .collect();
    if more > 0 {
        parts.push(format!("by {more} others"));
    }
    match (parts.is_empty(), summary.total.unapproved) {
        (true, 0) => None,
        (true, count) => {
            Some(format!("by nobody: {count} let through by rules that do not say who approved them"))
        }
        (false, 0) => Some(parts.join(", ")),
        (false, count) => Some(format!("{}; {count} let through that nobody approved", parts.join(", "))),
    }
}

/// Describes the hosts that are not named.
fn others(summary: &Summary) -> Option<String> {
    let hosts = match summary.other_hosts {
        0 if summary.others == Traffic::default() => return None,
        0 => "others".to_owned(),
        1 => "1 other host".to_owned(),
        hosts => format!("{hosts} other hosts"),
    };
    Some(format!("and {hosts}: {}; {}", summary.others.tally, moved(&summary.others)))
}

fn cannot_tell(count: u64) -> String {
    format!(
        "which rules were never used cannot be told: of {count} attempts it is not on record which rule decided"
    )
}

/// Says where a rule was written, and whose policy has it.
fn origin(rule: &Unused<'_>, safe: &dyn Fn(&str) -> String) -> String {
    let all = |few: &super::Few<String, 4>| {
        let more = few.more.then(|| "others".to_owned());
        few.kept.iter().map(|it| safe(it)).chain(more).collect::<Vec<_>>().join(", ")
    };
    let mut parts = Vec::new();
    if !rule.places.kept.is_empty() {
        parts.push(all(rule.places));
    }
    if !rule.stages.kept.is_empty() {
        parts.push(format!("stage {}", all(rule.stages)));
    }
    parts.push(match rule.runs {
        1 => format!("run {}", safe(rule.run)),
        runs => format!("{runs} runs, the last {}", safe(rule.run)),
    });
    parts.join("; ")
}

/// Returns warnings about the numbers.
fn warnings(summary: &Summary) -> Vec<String> {
    [
        (
            summary.flaws,
            "flaw",
            " in the records: `exeat audit verify` with the same records and flags names them",
        ),
        (summary.unrecorded, "attempt", " that no line tells of"),
        (summary.unseen, "packet or connection", " not looked at"),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, what, rest)| format!("{count} {what}{}{rest}", if count == 1 { "" } else { "s" }))
    .collect()
}

fn json(summary: &Summary, sort: Sort, out: &mut dyn Write) -> io::Result<()> {
    let with = |mut value: Value, traffic: &Traffic| {
        if let (Value::Object(all), Value::Object(more)) = (&mut value, of_traffic(traffic)) {
            all.extend(more);
        }
        value
    };
    let place = |host: &HostSummary| {
        json!({
            "host": host.host,
            "port": host.port,
            "proto": match host.proto { Proto::Tcp => None, proto => Some(proto.to_string()) },
        })
    };
    let (unused, unknown) = match summary.unused() {
        UnusedRules::Listed(unused) => (Some(unused), 0),
        UnusedRules::NotAsked => (None, 0),
        UnusedRules::CannotTell(count) => (None, count),
    };
    let unused = unused.map(|unused| {
        let rule = |it: &Unused<'_>| {
            json!({"rule": it.rule, "places": it.places.kept, "stages": it.stages.kept, "runs": it.runs, "run": it.run})
        };
        unused.iter().map(rule).collect::<Vec<_>>()
    });
    let approvals: Vec<_> = summary
        .approvals()
        .into_iter()
        .map(|(by, sum)| json!({"approved_by": by, "attempts": sum.attempts, "bytes_up": sum.bytes_up}))
        .collect();
    let head = json!({
        "schema": 1,
        "signature": "not checked",
        "runs": summary.runs,
        "unfinished": summary.unfinished,
        "stages": summary.stages,
        "lines": summary.lines,
        "first": summary.first,
        "last": summary.last,
        "flaws": summary.flaws,
        "dropped": summary.unrecorded,
        "unseen": summary.unseen,
        "total": of_traffic(&summary.total),
        "most_up": summary.most_up().map(|host| with(place(host), &host.traffic)),
        "others": of_traffic(&summary.others),
        "other_hosts": summary.other_hosts,
        "approvals": approvals,
        "approvals_more": summary.approvals_more(),
        "rules_more": summary.rules_more(),
        "unused_rules": unused,
        "unused_rules_unknown": unknown,
    });
    // One object, but one host or rule a line, for eyes and `grep`.
    out.write_all(b"{\n")?;
    for (key, value) in head.as_object().into_iter().flatten() {
        ascii_json(out, &json!(key).to_string())?;
        out.write_all(b": ")?;
        ascii_json(out, &value.to_string())?;
        out.write_all(b",\n")?;
    }
    let hosts = summary.hosts(sort).into_iter().map(|host| {
        let rules: Vec<_> = summary
            .rules_of(host)
            .map(|used| json!({"rule": used.rule, "src": used.src, "approved_by": used.approved_by}))
            .collect();
        let evidence: Vec<_> = host
            .evidence()
            .iter()
            .map(|((verdict, reason), seen)| {
                json!({"verdict": verdict, "reason": reason, "count": seen.count, "first": seen.first, "last": seen.last})
            })
            .collect();
        let mut value = with(place(host), &host.traffic);
        let more = json!({
            "via": host.vias(),
            "addresses": host.addresses.kept,
            "addresses_more": host.addresses.more,
            "programs": host.programs.kept,
            "programs_more": host.programs.more,
            "reasons": host.reasons().iter().map(|(reason, count)| (reason.as_str().to_owned(), json!(count)))
                .collect::<serde_json::Map<_, _>>(),
            "evidence": evidence,
            "rules": rules,
            "rules_more": host.has_more_rules(),
            "first": host.first,
            "last": host.last,
        });
        if let (Value::Object(all), Value::Object(more)) = (&mut value, more) {
            all.extend(more);
        }
        value
    });
    list(out, "hosts", hosts)?;
    out.write_all(b",\n")?;
    let rules = summary.rules().into_iter().map(|it| {
        json!({
            "rule": it.used.rule,
            "src": it.used.src,
            "effect": it.used.effect.as_str(),
            "approved_by": it.used.approved_by,
            "why": it.why,
            "expires": it.expires,
            "count": it.attempts,
            "failed": it.failed,
            "bytes_up": it.bytes_up,
        })
    });
    list(out, "rules", rules)?;
    out.write_all(b"\n}\n")
}

/// Writes `"name": [...]`, one value a line.
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
    let Traffic { tally, bytes_up, bytes_down, open, unapproved } = traffic;
    json!({
        "allowed": tally.allowed,
        "denied": tally.denied,
        "would_deny": tally.would_deny,
        "errors": tally.errors,
        "failed": tally.failed,
        "unapproved": unapproved,
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "open": open,
        "bytes_complete": traffic.is_complete(),
    })
}

fn markdown(summary: &Summary, sort: Sort, out: &mut dyn Write, github: bool) -> io::Result<()> {
    let rows = if github { MAX_ROWS } else { usize::MAX };
    let tally = &summary.total.tally;
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
    writeln!(out, ", {}", moved(&summary.total))?;
    if let Some(host) = summary.most_up() {
        let Traffic { bytes_up, open, .. } = host.traffic;
        writeln!(out, "\nMost went up to {}: {}", code(&target(host)), at_least(bytes_up, open))?;
    }
    if let Some(approved) = approved(summary, &code) {
        writeln!(out, "\nApproved {approved}")?;
    }
    writeln!(out, "\nsignature: {UNSIGNED}")?;
    for warning in warnings(summary) {
        writeln!(out, "\n**{warning}**")?;
    }
    // People look for denials first; the rest is folded. A host that was both denied and reached is in both tables, so that each order is
    // complete.
    let bad = |host: &&HostSummary| {
        let tally = &host.traffic.tally;
        tally.denied > 0 || tally.would_deny > 0 || tally.not_reached() > 0
    };
    let good = |host: &&HostSummary| {
        let Traffic { tally, bytes_up, bytes_down, open, .. } = host.traffic;
        [tally.reached(), bytes_up, bytes_down, open].into_iter().any(|count| count > 0)
    };
    let bad: Vec<_> = summary.hosts(sort).into_iter().filter(bad).collect();
    let good: Vec<_> = summary.hosts(Sort::Up).into_iter().filter(good).collect();
    let table = |out: &mut dyn Write, hosts: &[&HostSummary]| {
        writeln!(
            out,
            "\n| Target | Denied | Allowed | Would be denied | Failed | Up | Down | First (UTC) | Last | Why |"
        )?;
        writeln!(out, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |")?;
        for host in hosts.iter().take(rows) {
            let Traffic { tally, bytes_up, bytes_down, open, .. } = host.traffic;
            writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                code(&target(host)),
                tally.denied,
                tally.allowed,
                tally.would_deny,
                tally.not_reached(),
                at_least(bytes_up, open),
                at_least(bytes_down, open),
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
        let what = format!("{} target{plural} let through, the most bytes up first", good.len());
        folded(out, &what, github, |out| table(out, &good))?;
    }
    if let Some(others) = others(summary) {
        writeln!(out, "\n{others}")?;
    }
    let rules = summary.rules();
    if !rules.is_empty() {
        let plural = if rules.len() == 1 { "" } else { "s" };
        folded(out, &format!("{} rule{plural} decided", rules.len()), github, |out| {
            writeln!(out, "\n| Attempts | Rule |\n| ---: | --- |")?;
            for it in rules.iter().take(rows) {
                writeln!(out, "| {} | {} |", it.attempts, rule_in_full(it, &code))?;
            }
            Ok(())
        })?;
    }
    match summary.unused() {
        UnusedRules::Listed(unused) if !unused.is_empty() => {
            let plural = if unused.len() == 1 { "was" } else { "were" };
            folded(out, &format!("{} of the rules {plural} never used", unused.len()), github, |out| {
                writeln!(out)?;
                for rule in unused.iter().take(rows) {
                    writeln!(out, "- {} ({})", code(rule.rule), origin(rule, &code))?;
                }
                Ok(())
            })
        }
        UnusedRules::CannotTell(count) => writeln!(out, "\n{}", cannot_tell(count)),
        UnusedRules::Listed(_) | UnusedRules::NotAsked => Ok(()),
    }
}

/// Writes a section: folded, or under an ordinary heading.
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

/// Formats text as a code span that it cannot leave: a backtick, which would end the span, and a bar, which would end the cell of a
/// table, are replaced.
pub(crate) fn code(text: &str) -> String {
    let text = cell(text).replace('`', "\\u{60}").replace('|', "\\u{7c}");
    match text.trim() {
        "" => "-".to_owned(),
        text => format!("`{text}`"),
    }
}

/// Returns `host:port`, printable.
pub(crate) fn target(host: &HostSummary) -> String {
    let name = host.host.as_deref().map_or(Cow::Borrowed("(no host)"), cell);
    let target = host_and_port(&name, host.port);
    match host.proto {
        Proto::Tcp => target,
        proto => format!("{target} ({proto})"),
    }
}

/// Describes the reasons and the rules of a host.
fn why(summary: &Summary, host: &HostSummary, safe: &dyn Fn(&str) -> String) -> String {
    let reasons: Vec<_> = host
        .reasons()
        .into_iter()
        .map(|(reason, count)| match count {
            1 => reason.to_string(),
            count => format!("{reason} ({count}x)"),
        })
        .collect();
    let rules = summary.rules_of(host).map(|used| rule(used, safe));
    let more = host.has_more_rules().then(|| "and others".to_owned());
    let open = (host.traffic.open > 0).then(|| format!("{} without an end", host.traffic.open));
    // Only ways other than the proxy variables are worth mentioning.
    let vias: Vec<_> = host.vias().into_iter().filter(|via| *via != "connect").collect();
    let vias = (!vias.is_empty()).then(|| format!("[{}]", vias.join(" ")));
    // Name the programs that were denied, unless it was always the same one.
    let programs = (summary.has_programs && host.has_evidence()).then(|| {
        let names = host.programs.kept.iter().map(|path| safe(last_part(path)));
        let more = host.programs.more.then(|| "others".to_owned());
        names.chain(more).collect::<Vec<_>>()
    });
    let programs = programs.filter(|names| !names.is_empty()).map(|names| format!("by {}", names.join(" ")));
    let parts: Vec<_> =
        reasons.into_iter().chain(rules).chain(more).chain(open).chain(vias).chain(programs).collect();
    parts.join(", ")
}

fn rule(used: &Used, safe: &dyn Fn(&str) -> String) -> String {
    let mark = if used.effect == RuleEffect::Denies && !used.rule.starts_with('!') { "deny " } else { "" };
    match used.src.as_str() {
        "" => format!("{mark}{}", safe(&used.rule)),
        src => format!("{mark}{} ({})", safe(&used.rule), safe(src)),
    }
}

/// Describes a rule, its remarks, and what it let through.
fn rule_in_full(it: &RuleSummary, safe: &dyn Fn(&str) -> String) -> String {
    let mut text = rule(&it.used, safe);
    if it.used.effect == RuleEffect::Expired {
        text.push_str(&match it.expires.as_deref() {
            Some(day) => format!(", expired, granted until {}", safe(day)),
            None => ", expired".to_owned(),
        });
    }
    if let Some(by) = it.used.approved_by.as_deref() {
        text.push_str(&format!(", approved by {}", safe(by)));
    }
    if it.failed > 0 {
        text.push_str(&format!(", {} failed", it.failed));
    }
    if it.bytes_up > 0 {
        text.push_str(&format!(", {} up", bytes(it.bytes_up)));
    }
    text
}

fn time(at: Option<Moment>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| day_and_time(at.as_str()))
}

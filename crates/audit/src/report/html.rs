//! Writes the page.
//!
//! Knows no policy and counts nothing.

use std::fmt::{self, Write as _};
use std::io;

use exeat_policy::{Reason, RuleEffect, Verdict, printable_ascii};
use exeat_record::Proto;

use super::data::{MAX_ROWS, MAX_RUNS, Report, Source};
use crate::query::{Record, host_and_port};
use crate::summary::{Few, HostSummary, Sort, Tally, Traffic, UnusedRules, without_end};
use crate::table::{bytes, day_and_time};
use crate::verify::Standing;

mod cells;
mod chart;
mod run;
mod standing;

use cells::{Table, code, count, many, number, path, place, prose, size, sizes, text, verdict, when};
use chart::timeline;
use run::{DIGITS, ending, policy_link, run};
use standing::{FEW, standing, standing_word, standings};

const STYLE: &str = include_str!("page.css");

/// The content security policy: a browser may only apply the page's own style, so it would neither load nor run injected content.
const CSP: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

pub(super) fn write(report: &Report, out: &mut dyn io::Write) -> io::Result<()> {
    let page = page(report).map_err(|_| io::Error::other("a page cannot be put together"))?;
    out.write_all(page.as_bytes())
}

/// Returns the requested target, escaped.
pub(super) fn target(record: &Record) -> String {
    let raw = || record.host_raw.as_deref().map(|raw| printable_ascii(raw).into_owned());
    let target = record.target().or_else(raw).unwrap_or_else(|| "(no readable name)".to_owned());
    match record.proto.as_deref() {
        Some("udp") => format!("{target} (UDP)"),
        Some(number) => format!("{target} (protocol {})", printable_ascii(number)),
        None => target,
    }
}

/// Describes a note, escaped.
pub(super) fn note(record: &Record) -> String {
    let what = record.what.as_deref().unwrap_or("-");
    let mut said = match what {
        "bridge_lost" => "the way from the sandbox to the proxy was lost".to_owned(),
        "tap_drops" => "packets of the stage were not looked at".to_owned(),
        "turned_away" => "connections found too many open, and have no line of their own".to_owned(),
        "quarantined" => "a protected file that the stage made was moved aside".to_owned(),
        "not_quarantined" => "a protected file that the stage made could not be moved aside".to_owned(),
        "uncovered" => {
            "what was hidden or read-only was changed on the host, and the stage was ended".to_owned()
        }
        "policy_reload" if record.error.is_some() => {
            "another policy could not be read; the old one stays".to_owned()
        }
        "policy_reload" => "another policy holds from here on".to_owned(),
        "hosts_missing" => "not every host of a preset may be known".to_owned(),
        "proxy_lost" => "the proxy that decides was not there for a connection".to_owned(),
        other => printable_ascii(other).replace('_', " "),
    };
    if let Some(count) = record.count {
        let _ = write!(said, " ({count})");
    }
    if let Some(error) = &record.error {
        let _ = write!(said, ": {}", printable_ascii(error));
    }
    said
}

fn page(report: &Report) -> Result<String, fmt::Error> {
    let mut out = String::new();
    let title = title(report);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{CSP}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
    )?;
    head(report, &title, &mut out)?;
    refused(report, &mut out);
    unreached(report, &mut out);
    if let [run] = report.runs.as_slice() {
        out.push_str("<h2>Over time</h2>\n");
        timeline(run, &mut out)?;
    }
    runs(report, &mut out);
    hosts(report, &mut out);
    rules(report, &mut out);
    unused(report, &mut out);
    for (at, it) in report.runs.iter().enumerate().take(MAX_RUNS) {
        run(report, it, at, &mut out)?;
    }
    let left = (report.runs.len().saturating_sub(MAX_RUNS) as u64).saturating_add(report.more_runs);
    if left > 0 {
        writeln!(
            out,
            "<p class=\"left\">{} counted above and without a section here: those with sections are the ones that were changed, are not whole, \
             or had most refusals and failures.</p>",
            many(left, "more run is", "more runs are")
        )?;
    }
    policies(report, &mut out)?;
    records(report, &mut out)?;
    write!(
        out,
        "<footer><p>Made {} by exeat {} from the record, which has more: this page leaves out what it does not list. Times are UTC. \
         Sent is from the sandbox to the network, as handed to the kernel. The record names neither paths nor contents of what was sent.</p></footer>\n\
         </main>\n</body>\n</html>\n",
        made_line(report),
        env!("CARGO_PKG_VERSION")
    )?;
    Ok(out)
}

/// Says when and by whom the page was made.
fn made_line(report: &Report) -> String {
    let who: Vec<&str> =
        [&report.made.by, &report.made.on].into_iter().filter_map(Option::as_deref).collect();
    let by = if who.is_empty() { String::new() } else { format!(" for {}", who.join(" on ")) };
    text(&format!("{} UTC{by}", day_and_time(report.made.at.as_str()))).to_string()
}

fn title(report: &Report) -> String {
    let [run] = report.runs.as_slice() else {
        let runs = report.runs.len() as u64 + report.more_runs;
        return format!("Network access of {}", many(runs, "run", "runs"));
    };
    let command = run.start.as_ref().and_then(|start| start.command.as_deref());
    let what = run.stage.as_deref().or(command).unwrap_or(&run.name);
    format!("Network access of {}", text(what))
}

fn head(report: &Report, title: &str, out: &mut String) -> fmt::Result {
    let total = &report.summary.total;
    writeln!(
        out,
        "<header>\n<p class=\"soft\">exeat report, made {}</p>\n<h1>{title}</h1>",
        made_line(report)
    )?;
    writeln!(
        out,
        "<p class=\"soft\">Programs ran in a sandbox that has no network of its own. Each attempt to reach another machine was \
         held against the rules before it was answered. This page shows what was recorded of that.</p>\n</header>"
    )?;
    match report.files.as_slice() {
        files if files.len() <= FEW => {
            for source in files {
                standing(source, files.len() > 1, out)?;
            }
        }
        files => standings(files, out)?,
    }
    out.push_str(
        "<p class=\"soft\">Whether a record was taken away, or put in the place of another one, was not checked for this page: \
         <code>exeat audit verify --all</code> compares with the ledger.</p>\n",
    );
    let Tally { denied, would_deny, .. } = total.tally;
    let (reached, failed) = (total.tally.reached(), total.tally.not_reached());
    let told = |count: u64, word: &str| (count > 0).then(|| format!("{} {word}", number(count)));
    let rest: Vec<String> = [
        told(would_deny, "would have been denied, and passed, since the policy only reports"),
        told(reached, "reached"),
        told(failed, "failed for other reasons than the policy"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let rest = if rest.is_empty() { String::new() } else { format!(" {}.", rest.join(", ")) };
    match (denied, would_deny) {
        (0, 0) => writeln!(out, "<div class=\"box good\"><p><b>Nothing was denied.</b>{rest}</p></div>")?,
        (0, _) => writeln!(out, "<div class=\"box warn\"><p><b>Nothing was denied.</b>{rest}</p></div>")?,
        _ => writeln!(
            out,
            "<div class=\"box held\"><p><b>{} denied.</b>{rest}</p></div>",
            many(denied, "attempt was", "attempts were")
        )?,
    }
    if total.open > 0 {
        writeln!(
            out,
            "<div class=\"box warn\"><p><b>Not all that was sent is known:</b> {}. What is listed as sent is the least.</p></div>",
            without_end(total.open)
        )?;
    }
    let unrecorded = report.summary.unrecorded;
    if unrecorded > 0 {
        writeln!(
            out,
            "<div class=\"box bad\"><p>No line tells of {}, as the record says itself.</p></div>",
            many(unrecorded, "attempt", "attempts")
        )?;
    }
    if report.summary.unseen > 0 {
        writeln!(
            out,
            "<div class=\"box warn\"><p>{} not looked at, and not let out.</p></div>",
            many(report.summary.unseen, "packet or connection was", "packets or connections were")
        )?;
    }
    out.push_str("<ul class=\"tiles\">\n");
    let mut tile = |class: &str, value: String, words: &str| {
        writeln!(out, "<li class=\"{class}\"><b>{value}</b> <span>{words}</span></li>")
    };
    tile(if denied > 0 { "held" } else { "" }, number(denied), "denied")?;
    if would_deny > 0 {
        tile("warn", number(would_deny), "would be denied")?;
    }
    tile(if reached > 0 { "good" } else { "" }, number(reached), "reached")?;
    if failed > 0 {
        tile("", number(failed), "failed")?;
    }
    tile("", size(total.bytes_up, total.open), "sent")?;
    tile("", size(total.bytes_down, total.open), "received")?;
    out.push_str("</ul>\n");
    if let Some(host) = report.summary.most_up() {
        let Traffic { bytes_up, open, .. } = host.traffic;
        writeln!(out, "<p>Most was sent to {}: {}.</p>", place(&name_of(host)), size(bytes_up, open))?;
    }
    Ok(())
}

/// Lists all runs, those first that need a look.
fn runs(report: &Report, out: &mut String) {
    if report.runs.len() < 2 {
        return;
    }
    out.push_str("<h2>Runs</h2>\n");
    let heads = [
        "Began",
        "Run",
        "What",
        "Who",
        "End",
        "Record",
        "Policy",
        "Denied",
        "Would be denied",
        "Reached",
        "Failed",
        "Sent",
    ];
    let mut table = Table::new("Runs, those first that were changed, are not whole, or had refusals", &heads);
    for (at, run) in report.runs.iter().enumerate() {
        let start = run.start.as_deref();
        let command = start.and_then(|start| start.command.as_deref());
        let what = run.stage.as_deref().or(command).unwrap_or("-");
        let who: Vec<&str> =
            start.iter().flat_map(|it| [&it.user, &it.machine]).filter_map(Option::as_deref).collect();
        // The name of a run has no character to break after.
        let (begin, rest) = run.name.split_at_checked(13).unwrap_or((&run.name, ""));
        let name = format!("{}<wbr>{}", text(begin), text(rest));
        let name = match at < MAX_RUNS {
            true => format!("<a href=\"#run-{at}\">{name}</a>"),
            false => name,
        };
        let (class, word) = standing_word(run.standing);
        let policy =
            run.policies.iter().map(|policy| policy_link(report, &policy.sha256)).collect::<Vec<_>>();
        let tally = &run.traffic.tally;
        let [up, _] = sizes(&run.traffic);
        table.row(&[
            ("t", text(&day_and_time(&run.first)).to_string()),
            ("", format!("<code class=\"at\">{name}</code>")),
            ("", prose(what)),
            ("", prose(&who.join(" on "))),
            ("", prose(&ending(run))),
            (class, word.to_owned()),
            ("", policy.join(", ")),
            count("held", tally.denied),
            count("warn", tally.would_deny),
            count("", tally.reached()),
            count("", tally.not_reached()),
            up,
        ]);
    }
    table.finish(report.more_runs, out);
}

fn name_of(host: &HostSummary) -> String {
    let Some(name) = host.host.as_deref() else { return "(no readable name)".to_owned() };
    let name = host_and_port(&printable_ascii(name), host.port);
    match host.proto {
        Proto::Tcp => name,
        Proto::Udp => format!("{name} (UDP)"),
        Proto::Other(number) => format!("{name} (protocol {number})"),
    }
}

/// Lists hosts with some verdicts: each row is about one verdict.
fn evidence(report: &Report, title: &str, verdicts: &[Verdict], sort: Sort, out: &mut String) {
    let all = report.summary.hosts(sort);
    let has = |host: &&&HostSummary| {
        let mut outcomes = host.outcomes.iter().filter(|(_, seen)| seen.count > 0);
        outcomes.any(|(outcome, _)| outcome.verdict.is_some_and(|it| verdicts.contains(&it)))
    };
    let hosts: Vec<_> = all.iter().filter(has).collect();
    if hosts.is_empty() {
        return;
    }
    let _ = writeln!(out, "<h2>{title}</h2>");
    let mut table = Table::new(title, &["Host", "What", "Times", "Why", "First", "Last", "Programs"]);
    for host in hosts.iter().take(MAX_ROWS) {
        for it in verdicts {
            let (seen, reasons) = host.sightings(*it);
            if seen.count == 0 {
                continue;
            }
            let (word, class) = verdict(*it);
            let why: Vec<&str> = reasons
                .into_iter()
                .map(|reason| reason.map_or("a reason that is not known here", Reason::sentence))
                .collect();
            table.row(&[
                ("", place(&name_of(host))),
                (class, word.to_owned()),
                count("", seen.count),
                ("", prose(&why.join("; "))),
                when(seen.first),
                when(seen.last),
                ("", few(&host.programs, |program| path(program))),
            ]);
        }
    }
    table.finish(hosts.len().saturating_sub(MAX_ROWS) as u64, out);
}

/// Lists what was not let through, and why. It comes first on the page.
fn refused(report: &Report, out: &mut String) {
    evidence(report, "Denied, and why", &[Verdict::Deny, Verdict::WouldDeny], Sort::Denied, out);
}

/// Lists what was let through and not reached.
fn unreached(report: &Report, out: &mut String) {
    evidence(report, "Failed, and why", &[Verdict::Error], Sort::Failed, out);
}

fn few<T: Ord, const MOST: usize>(few: &Few<T, MOST>, shown: impl Fn(&T) -> String) -> String {
    let more = few.more.then(|| "and more".to_owned());
    few.kept.iter().map(shown).chain(more).collect::<Vec<_>>().join(", ")
}

/// Lists every host, the one that was sent most first.
fn hosts(report: &Report, out: &mut String) {
    let hosts = report.summary.hosts(Sort::Up);
    out.push_str("<h2>Hosts</h2>\n");
    if hosts.is_empty() {
        out.push_str("<p>Nothing was tried.</p>\n");
        return;
    }
    let heads = [
        "Host",
        "Sent",
        "Received",
        "Reached",
        "Denied",
        "Would be denied",
        "Failed",
        "Addresses",
        "Programs",
        "Rules",
    ];
    let mut table = Table::new("Hosts, the one that was sent most first", &heads);
    let mut row = |name: String, traffic: &Traffic, more: [String; 3]| {
        let [up, down] = sizes(traffic);
        let tally = &traffic.tally;
        let [addresses, programs, rules] = more;
        table.row(&[
            ("", name),
            up,
            down,
            count("", tally.reached()),
            count("held", tally.denied),
            count("warn", tally.would_deny),
            count("", tally.not_reached()),
            ("", addresses),
            ("", programs),
            ("", rules),
        ]);
    };
    for host in hosts.iter().take(MAX_ROWS) {
        let mut rules: Vec<String> = report.summary.rules_of(host).map(|used| place(&used.rule)).collect();
        rules.dedup();
        if host.has_more_rules() {
            rules.push("and more".to_owned());
        }
        let addresses = few(&host.addresses, |ip| format!("<code class=\"whole\">{ip}</code>"));
        let programs = few(&host.programs, |program| path(program));
        row(place(&name_of(host)), &host.traffic, [addresses, programs, rules.join(", ")]);
    }
    // Each of the other hosts was sent no more than the last row.
    let mut others = report.summary.others;
    hosts.iter().skip(MAX_ROWS).for_each(|host| others.merge(&host.traffic));
    let left = (hosts.len().saturating_sub(MAX_ROWS) as u64).saturating_add(report.summary.other_hosts);
    if others != Traffic::default() {
        row(format!("all others together ({})", number(left)), &others, Default::default());
    }
    table.finish(left, out);
}

/// Lists the rules that decided, with their remarks.
fn rules(report: &Report, out: &mut String) {
    let rules = report.summary.rules();
    if rules.is_empty() {
        return;
    }
    out.push_str("<h2>Rules that decided</h2>\n");
    let heads = ["Rule", "Attempts", "Failed", "Sent", "Where it stands", "Why", "Approved by", "Expires"];
    let mut table = Table::new("Rules that decided, the most used first", &heads);
    for it in rules.iter().take(MAX_ROWS) {
        let expires = it.expires.as_deref().unwrap_or_default();
        let does = match it.used.effect {
            RuleEffect::Allows => format!("allows {}", place(&it.used.rule)),
            RuleEffect::Denies => format!("denies {}", place(&it.used.rule)),
            RuleEffect::Expired => {
                let until = if expires.is_empty() {
                    String::new()
                } else {
                    format!(", granted until {}", text(expires))
                };
                format!("{} (expired{until})", place(&it.used.rule))
            }
        };
        let by = match (&it.used.approved_by, it.used.effect) {
            (Some(by), _) => prose(by),
            (None, RuleEffect::Allows) => "<b class=\"warn\">nobody</b>".to_owned(),
            (None, _) => String::new(),
        };
        let sent = if it.bytes_up == 0 { String::new() } else { bytes(it.bytes_up) };
        table.row(&[
            ("", does),
            count("", it.attempts),
            count("", it.failed),
            ("n", sent),
            ("", place(&it.used.src)),
            ("", prose(it.why.as_deref().unwrap_or_default())),
            ("", by),
            ("t", text(expires).to_string()),
        ]);
    }
    table.finish(rules.len().saturating_sub(MAX_ROWS) as u64, out);
    let unapproved = report.summary.total.unapproved;
    if unapproved > 0 {
        let _ = writeln!(
            out,
            "<p>{} let through that nobody approved: the rule does not say who did, or there was none.</p>",
            many(unapproved, "attempt was", "attempts were")
        );
    }
}

/// Lists rules of the stored policies that decided nothing.
fn unused(report: &Report, out: &mut String) {
    let unused = match report.summary.unused() {
        UnusedRules::Listed(unused) if !unused.is_empty() => unused,
        UnusedRules::CannotTell(count) => {
            let _ = writeln!(
                out,
                "<h2>Rules never used</h2>\n<p>Cannot be told: of {} it is not on record which rule decided.</p>",
                many(count, "attempt", "attempts")
            );
            return;
        }
        UnusedRules::Listed(_) | UnusedRules::NotAsked => return,
    };
    out.push_str("<h2>Rules never used</h2>\n");
    let mut table =
        Table::new("Rules never used", &["Rule", "Where it stands", "Stages", "Runs", "Last run"]);
    for it in unused.iter().take(MAX_ROWS) {
        table.row(&[
            ("", place(it.rule)),
            ("", few(it.places, |at| place(at))),
            ("", few(it.stages, |stage| prose(stage))),
            count("", it.runs),
            ("", format!("<code class=\"any\">{}</code>", text(it.run))),
        ]);
    }
    table.finish(unused.len().saturating_sub(MAX_ROWS) as u64, out);
}

/// Prints every stored policy once, with the runs that it was in force in.
fn policies(report: &Report, out: &mut String) -> fmt::Result {
    if report.policies.is_empty() {
        return Ok(());
    }
    out.push_str("<h2>Policies</h2>\n");
    for (sha256, json) in &report.policies {
        let short = text(sha256.get(..DIGITS).unwrap_or(sha256)).to_string();
        let held =
            report.runs.iter().filter(|run| run.policies.iter().any(|policy| policy.sha256 == *sha256));
        let held = held.count() as u64;
        writeln!(
            out,
            "<h3 id=\"policy-{short}\">Policy {short}</h3>\n<p>{} <span class=\"soft\">in force in {} of this page</span></p>\n\
             <details><summary>All of it, as it was stored</summary>\n<pre>",
            code(sha256),
            many(held, "run", "runs"),
        )?;
        let value: Option<serde_json::Value> = serde_json::from_str(json).ok();
        let pretty = value.and_then(|value| serde_json::to_string_pretty(&value).ok());
        for line in pretty.as_deref().unwrap_or(json).lines() {
            writeln!(out, "{}", text(line))?;
        }
        out.push_str("</pre></details>\n");
    }
    Ok(())
}

/// Lists every record with its digest, which ties this page to its files.
fn records(report: &Report, out: &mut String) -> fmt::Result {
    out.push_str("<h2>Records</h2>\n");
    let mut files: Vec<&Source> = report.files.iter().collect();
    files.sort_by_key(|file| match file.standing() {
        Some(Standing::Tampered) => 0,
        None => 1,
        Some(Standing::UnknownKey) => 2,
        Some(Standing::Unfinished) => 3,
        Some(Standing::Whole) => 4,
    });
    let heads = ["Record", "Integrity", "Lines", "SHA-256", "Root"];
    let mut table = Table::new("Records of this page, those first that are not whole", &heads);
    let mut keys = std::collections::BTreeMap::<String, u64>::new();
    for file in &files {
        if let Some(key) = file.verified.as_ref().and_then(|found| found.key.as_ref()) {
            *keys.entry(key.to_string()).or_default() += 1;
        }
    }
    for file in files.iter().take(MAX_ROWS) {
        let (class, word) = standing_word(file.standing());
        let root = file
            .sealed
            .as_ref()
            .map(|(lines, root)| format!("{} (of {})", code(root), many(*lines, "line", "lines")));
        table.row(&[
            ("", code(&file.name)),
            (class, word.to_owned()),
            count("", file.lines),
            ("", code(&file.sha256)),
            ("", root.unwrap_or_else(|| "none".to_owned())),
        ]);
    }
    table.finish(files.len().saturating_sub(MAX_ROWS) as u64, out);
    out.push_str(
        "<p class=\"soft\">SHA-256 is that of the whole file (<code>sha256sum FILE</code>). Root is the Merkle root that the last checkpoint of the record \
         signs.</p>\n",
    );
    for (key, records) in keys.iter().take(MAX_ROWS) {
        writeln!(out, "<p>Signed {} by {}</p>", many(*records, "record", "records"), code(key))?;
    }
    Ok(())
}

//! Writes the section of one run.

use std::fmt::{self, Write as _};

use exeat_policy::printable_ascii;

use super::cells::{Table, code, number, path, place, prose, size, text, verdict};
use super::chart::timeline;
use super::standing::{FEW, standing};
use crate::report::data::{MAX_DENIED, Policy, Report, Run, Stored};
use crate::summary::Traffic;
use crate::table::day_and_time;

/// The number of digits of a digest that name a policy.
pub(super) const DIGITS: usize = 12;

/// Describes the end of a run in a few words.
pub(super) fn ending(run: &Run) -> String {
    match run.end.as_deref() {
        None => "no end on record".to_owned(),
        Some(end) => {
            let cause = match end.cause.as_deref().unwrap_or("-") {
                "exit" => "exit",
                other => cause(other),
            };
            let exit = end.exit.map(|exit| format!(" {exit}")).unwrap_or_default();
            format!("{}{exit}", printable_ascii(cause))
        }
    }
}

/// Links the first digits of a digest to the policy, if the page has it.
pub(super) fn policy_link(report: &Report, sha256: &str) -> String {
    let short = text(sha256.get(..DIGITS).unwrap_or(sha256)).to_string();
    match report.policies.contains_key(sha256) {
        true => format!("<a href=\"#policy-{short}\"><code class=\"whole\">{short}</code></a>"),
        false => format!("<code>{short}</code>"),
    }
}

/// Writes what the page has about one run only.
pub(super) fn run(report: &Report, run: &Run, at: usize, out: &mut String) -> fmt::Result {
    let several = report.runs.len() > 1;
    match several {
        true => writeln!(out, "<h2 id=\"run-{at}\">Run {}</h2>", code(&run.name))?,
        false => out.push_str("<h2>The run</h2>\n"),
    }
    if let Some(source) = report.files.get(run.file).filter(|_| report.files.len() > FEW) {
        standing(source, false, out)?;
    }
    facts(report, run, out)?;
    if several {
        timeline(run, out)?;
    }
    in_order(run, out)?;
    sources(report, run, out)?;
    if !run.notes.is_empty() {
        out.push_str("<h3>Notes</h3>\n");
        let mut table = Table::new("Notes", &["Time", "What"]);
        for (time, what) in &run.notes {
            table.row(&[("t", text(&day_and_time(time)).to_string()), ("", prose(what))]);
        }
        table.finish(run.notes_more, out);
    }
    Ok(())
}

fn facts(report: &Report, run: &Run, out: &mut String) -> fmt::Result {
    let of = |field: Option<&String>| field.map(|words| text(words).to_string());
    let start = run.start.as_deref();
    let pairs = |map: &std::collections::BTreeMap<String, String>, sign: &str| {
        let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key}{sign}{value}")).collect();
        (!pairs.is_empty()).then(|| text(&pairs.join(", ")).to_string())
    };
    out.push_str("<dl>\n");
    let mut fact = |name: &str, value: Option<String>| match value {
        Some(value) => writeln!(out, "<dt>{name}</dt><dd>{value}</dd>"),
        None => Ok(()),
    };
    fact("Command", start.and_then(|it| it.command.as_deref()).map(code))?;
    fact("Stage", of(run.stage.as_ref()))?;
    fact("Run", Some(code(&run.name)))?;
    let who: Vec<&str> =
        start.iter().flat_map(|it| [&it.user, &it.machine]).filter_map(Option::as_deref).collect();
    fact("Started by", (!who.is_empty()).then(|| text(&who.join(" on ")).to_string()))?;
    fact("Started in", start.and_then(|it| it.dir.as_deref()).map(code))?;
    fact("Part of the trace", start.and_then(|it| it.trace_id.as_deref()).map(code))?;
    fact("Began", Some(format!("{} UTC", text(&day_and_time(&run.first)))))?;
    let ended = run.end.as_deref().map(|end| {
        let exit = end.exit.map(|exit| format!(", exit code {exit}")).unwrap_or_default();
        let limit = end
            .limit
            .as_deref()
            .or(end.signal.as_deref())
            .map(|limit| format!(" ({limit})"))
            .unwrap_or_default();
        let cause = cause(end.cause.as_deref().unwrap_or("-"));
        let said = format!("{}{limit}{exit}", printable_ascii(cause));
        format!("{} UTC: {}", text(&day_and_time(&run.last)), text(&said))
    });
    let open = || format!("not recorded; the last line is of {} UTC", text(&day_and_time(&run.last)));
    fact("Ended", Some(ended.unwrap_or_else(open)))?;
    let attempts = run.end.as_deref().and_then(|end| end.connections);
    fact("Connections", attempts.map(number))?;
    let mode = run.policies.first().and_then(|policy| policy.mode.as_deref());
    fact(
        "Mode",
        mode.map(|mode| match mode {
            "enforce" => "enforce: what no rule allows is denied".to_owned(),
            "report" => "report: what no rule allows passes, and is recorded".to_owned(),
            other => text(other).to_string(),
        }),
    )?;
    if let Some(start) = start {
        fact("Enforced", pairs(&start.enforcement, ": "))?;
        let backend = start.backend.as_ref().map(|name| match &start.backend_why {
            Some(why) => format!("{name} ({why})"),
            None => name.clone(),
        });
        let by: Vec<String> = backend.into_iter().chain(start.bridge.clone()).collect();
        fact("Sandbox", (!by.is_empty()).then(|| text(&by.join(", ")).to_string()))?;
        fact("Gateway", of(start.gateway.as_ref()))?;
        fact("Decided by", of(start.proxy.as_ref()))?;
        let next =
            |next: &String| format!("{} (it looks names up: their addresses were not checked)", text(next));
        fact("Next proxy", start.upstream.as_ref().map(next))?;
        fact("Limits", (!start.limits.is_empty()).then(|| text(&start.limits.join(", ")).to_string()))?;
        fact("Labels", pairs(&start.labels, "="))?;
        fact("exeat", of(start.version.as_ref()))?;
    }
    let Traffic { tally, bytes_up, bytes_down, open, .. } = &run.traffic;
    fact("Attempts", Some(text(&tally.to_string()).to_string()))?;
    fact("Sent", Some(size(*bytes_up, *open)))?;
    fact("Received", Some(size(*bytes_down, *open)))?;
    fact("Connections without an end", (*open > 0).then(|| number(*open)))?;
    fact("Record", report.files.get(run.file).map(|file| code(&file.name)))?;
    fact("SHA-256 of the record", report.files.get(run.file).map(|file| code(&file.sha256)))?;
    out.push_str("</dl>\n");
    Ok(())
}

/// Describes the cause of a run's end.
fn cause(word: &str) -> &str {
    match word {
        "exit" => "the command ended",
        "signal" => "the command was ended by a signal",
        "timeout" => "its time was over",
        "limit" => "it met a limit",
        "uncovered" => "what was hidden from it was changed on the host",
        "setup" => "the sandbox could not be made",
        "policy" => "the policy refused the run",
        "stopped" => "somebody had it end",
        "denied" => "a refusal ended or failed it",
        other => other,
    }
}

/// Lists what was not let through, in order.
fn in_order(run: &Run, out: &mut String) -> fmt::Result {
    if run.denied.is_empty() {
        return Ok(());
    }
    let shown = match run.denied_more {
        0 => String::new(),
        _ => format!(" (the first {MAX_DENIED})"),
    };
    writeln!(out, "<details><summary>What was not allowed, in its order{shown}</summary>")?;
    let mut table =
        Table::new("What was not allowed, in its order", &["Time", "What", "Host", "Program", "Why"]);
    for attempt in &run.denied {
        let (word, class) = verdict(attempt.verdict);
        table.row(&[
            ("t", text(attempt.time.get(11..23).unwrap_or(&attempt.time)).to_string()),
            (class, word.to_owned()),
            ("", place(&attempt.target)),
            ("", attempt.exe.as_deref().map(path).unwrap_or_default()),
            ("", prose(&attempt.why)),
        ]);
    }
    table.finish(run.denied_more, out);
    out.push_str("</details>\n");
    Ok(())
}

/// Lists the files of a run's policy, and says which policy was in force.
fn sources(report: &Report, run: &Run, out: &mut String) -> fmt::Result {
    if run.policies.is_empty() && run.sources.is_empty() {
        return Ok(());
    }
    out.push_str("<h3>Policy</h3>\n");
    let mut table = Table::new("Files of the policy", &["File", "What it is for", "SHA-256"]);
    for (role, file, sha256) in &run.sources {
        let role = match role.as_str() {
            "policy" => "grants",
            "ceiling" => "bounds what is granted",
            "effects" => "says what the stage declares",
            "rules" => "rules, one a line",
            other => other,
        };
        table.row(&[("", code(file)), ("", prose(role)), ("", code(sha256))]);
    }
    table.finish(0, out);
    for policy in &run.policies {
        in_force(report, policy, out)?;
    }
    Ok(())
}

/// Says which policy was in force, with a link to its text on the page.
fn in_force(report: &Report, policy: &Policy, out: &mut String) -> fmt::Result {
    let why = match &policy.stored {
        Stored::Same => format!("printed below: {}", policy_link(report, &policy.sha256)),
        Stored::Other => "What is stored beside the record is another policy: it is not shown.".to_owned(),
        Stored::Long => "It is stored beside the record, and too long for this page.".to_owned(),
        Stored::None => "It is not stored beside the record.".to_owned(),
    };
    writeln!(out, "<p>In force: {} <span class=\"soft\">{why}</span></p>", code(&policy.sha256))
}

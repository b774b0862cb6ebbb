//! The page itself.
//!
//! Knows no policy and counts nothing. Text of a record gets into the page through [`text`] alone: printable ASCII, and none of
//! the characters that mean something to HTML.

use std::fmt::{self, Write as _};
use std::io;

use exeat_policy::{Reason, Verdict, printable_ascii};
use exeat_record::Proto;

use super::{MAX_DENIED, MAX_ROWS, MAX_RUNS, Policy, Report, Run, Source, Stored};
use crate::Moment;
use crate::query::Record;
use crate::summary::{Effect, Few, HostSummary, Sort, Tally, Traffic, UnusedRules, without_end};
use crate::table::{bytes, day_and_time, duration};
use crate::verify::{Ending, Standing};

const STYLE: &str = include_str!("page.css");

/// What a browser may do with the page: apply its style. Whatever stood in it, nothing would be loaded and nothing run.
const CSP: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Records whose standing is told one by one at the top.
const FEW: usize = 3;

/// Digits of a digest that name a policy.
const DIGITS: usize = 12;

pub(super) fn write(report: &Report, out: &mut dyn io::Write) -> io::Result<()> {
    let page = page(report).map_err(|_| io::Error::other("a page cannot be put together"))?;
    out.write_all(page.as_bytes())
}

/// A record's words as text of a page, or of an attribute in double quotation marks.
pub(super) fn text(text: &str) -> impl fmt::Display + '_ {
    struct Text<'a>(&'a str);
    impl fmt::Display for Text<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for c in printable_ascii(self.0).chars() {
                match c {
                    '&' => f.write_str("&amp;")?,
                    '<' => f.write_str("&lt;")?,
                    '>' => f.write_str("&gt;")?,
                    '"' => f.write_str("&quot;")?,
                    '\'' => f.write_str("&#39;")?,
                    c => f.write_char(c)?,
                }
            }
            Ok(())
        }
    }
    Text(text)
}

fn code(words: &str) -> String {
    format!("<code>{}</code>", text(words))
}

/// A host with its port, a rule, or a file with its line. It breaks only after a dot, in brackets after a colon, and never in the last part,
/// which has the number.
fn place(words: &str) -> String {
    let shown = printable_ascii(words);
    let (main, rest) = shown.split_at(shown.find(' ').unwrap_or(shown.len()));
    // The last part of an address goes with its port.
    let (sign, end) = match main.rfind("]:") {
        Some(end) => (':', end),
        None => ('.', main.len()),
    };
    let (breakable, port) = main.split_at(end);
    format!("{}{}", parts(breakable, sign, port), text(rest))
}

/// A path, which breaks after its slashes.
fn path(words: &str) -> String {
    parts(&printable_ascii(words), '/', "")
}

/// Text that breaks only after a sign; `tail` stays with the last part.
fn parts(words: &str, sign: char, tail: &str) -> String {
    /// Characters of a text that is not broken at all.
    const SHORT: usize = 22;
    /// Characters of a part that is not broken.
    const WHOLE: usize = 30;
    let short = words.len() + tail.len() <= SHORT;
    let mut parts: Vec<String> = match short {
        true => vec![words.to_owned()],
        false => words.split_inclusive(sign).map(str::to_owned).collect(),
    };
    if let Some(last) = parts.last_mut() {
        last.push_str(tail);
    }
    let mut out = String::from("<code class=\"at\">");
    let last = parts.len().saturating_sub(1);
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            out.push_str("<wbr>");
        }
        // A part that is too long for a line is broken anywhere, but never in its number.
        let (name, number) = match part.rfind(':').filter(|_| at == last && part.len() > WHOLE) {
            Some(colon) => part.split_at(colon),
            None if part.len() > WHOLE => (part.as_str(), ""),
            None => ("", part.as_str()),
        };
        if !name.is_empty() {
            let _ = write!(out, "<span class=\"any\">{}</span>", text(name));
        }
        if !number.is_empty() {
            let _ = write!(out, "<span class=\"whole\">{}</span>", text(number));
        }
    }
    out.push_str("</code>");
    out
}

/// Free text, of which only words that are too long for a column are broken.
fn prose(words: &str) -> String {
    /// Characters of a word that is not broken.
    const WHOLE: usize = 30;
    let part = |word: &str| match word.len() > WHOLE {
        true => format!("<span class=\"any\">{}</span>", text(word)),
        false => text(word).to_string(),
    };
    printable_ascii(words).split(' ').map(part).collect::<Vec<_>>().join(" ")
}

/// What was asked for, as it may be printed.
pub(super) fn target(record: &Record) -> String {
    let raw = || record.host_raw.as_deref().map(|raw| printable_ascii(raw).into_owned());
    let target = record.target().or_else(raw).unwrap_or_else(|| "(no readable name)".to_owned());
    match record.proto.as_deref() {
        Some("udp") => format!("{target} (UDP)"),
        Some(number) => format!("{target} (protocol {})", printable_ascii(number)),
        None => target,
    }
}

/// What a note says, as it may be printed.
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

fn verdict(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Allow => ("allowed", "good"),
        Verdict::Deny => ("denied", "held"),
        Verdict::WouldDeny => ("would be denied", "warn"),
        Verdict::Error => ("failed", ""),
    }
}

/// A number with its digits in threes, and a word for one or many.
fn many(count: u64, one: &str, more: &str) -> String {
    format!("{} {}", number(count), if count == 1 { one } else { more })
}

fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(' ');
        }
        shown.push(digit);
    }
    shown
}

/// One row after the other, under a head.
struct Table<'a> {
    caption: &'a str,
    heads: &'a [&'a str],
    body: String,
}

/// A cell: its class, and what stands in it as HTML.
type Cell = (&'static str, String);

impl<'a> Table<'a> {
    fn new(caption: &'a str, heads: &'a [&'a str]) -> Table<'a> {
        Table { caption, heads, body: String::new() }
    }

    fn row(&mut self, cells: &[Cell]) {
        self.body.push_str("<tr>");
        for ((class, cell), head) in cells.iter().zip(self.heads) {
            let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
            let _ = match cell.as_str() {
                "" => write!(self.body, "<td{class}></td>"),
                cell => write!(self.body, "<td{class} data-l=\"{head}\">{cell}</td>"),
            };
        }
        self.body.push_str("</tr>\n");
    }

    /// Nothing where there is no row. `left` rows are not there.
    fn finish(self, left: u64, out: &mut String) {
        if self.body.is_empty() {
            return;
        }
        let _ = write!(out, "<table><caption>{}</caption><thead><tr>", self.caption);
        for head in self.heads {
            let numeric = matches!(
                *head,
                "Attempts"
                    | "Reached"
                    | "Denied"
                    | "Would be denied"
                    | "Failed"
                    | "Sent"
                    | "Received"
                    | "Times"
                    | "Lines"
                    | "Runs"
            );
            let class = if numeric { " class=\"n\"" } else { "" };
            let _ = write!(out, "<th scope=\"col\"{class}>{head}</th>");
        }
        let _ = write!(out, "</tr></thead>\n<tbody>\n{}</tbody></table>\n", self.body);
        if left > 0 {
            let _ = writeln!(out, "<p class=\"left\">and {} more, not listed here</p>", number(left));
        }
    }
}

fn count(class: &'static str, count: u64) -> Cell {
    match count {
        0 => ("n", "<span class=\"soft\">0</span>".to_owned()),
        count if class.is_empty() => ("n", number(count)),
        count => ("n", format!("<b class=\"{class}\">{}</b>", number(count))),
    }
}

/// Bytes, of which more may have gone over connections that are open.
fn size(count: u64, open: u64) -> String {
    match (count, open) {
        (count, 0) => bytes(count),
        (0, _) => "<b class=\"warn\">unknown</b>".to_owned(),
        (count, _) => format!("<b class=\"warn\">at least {}</b>", bytes(count)),
    }
}

/// Bytes of what had no connection are left out.
fn sizes(traffic: &Traffic) -> [Cell; 2] {
    match traffic {
        Traffic { bytes_up: 0, bytes_down: 0, open: 0, .. } => [("n", String::new()), ("n", String::new())],
        Traffic { bytes_up, bytes_down, open, .. } => {
            [("n", size(*bytes_up, *open)), ("n", size(*bytes_down, *open))]
        }
    }
}

/// A moment as it stands in a table.
fn when(at: Option<Moment>) -> Cell {
    ("t", at.map(|at| text(&day_and_time(at.as_str())).to_string()).unwrap_or_default())
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

/// When and by whom the page was made.
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
        "<p class=\"soft\">The ledger was not asked. Whether a record was taken away, or put in the place of another one, this page cannot \
         tell: <code>exeat audit verify --all</code> can.</p>\n",
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

/// All runs, those first that a reader should look at.
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
        // A name of a run has no sign to break after.
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

/// How a run ended, in a few words.
fn ending(run: &Run) -> String {
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

/// A word for what can be said of a record, and its class.
fn standing_word(standing: Option<Standing>) -> (&'static str, &'static str) {
    match standing {
        Some(Standing::Whole) => ("good", "whole"),
        Some(Standing::Tampered) => ("bad", "CHANGED"),
        Some(Standing::Unfinished) => ("warn", "not complete"),
        Some(Standing::UnknownKey) => ("warn", "key not known"),
        None => ("warn", "not checked"),
    }
}

/// The beginning of a digest, which leads to the policy where that is in the page.
fn policy_link(report: &Report, sha256: &str) -> String {
    let short = text(sha256.get(..DIGITS).unwrap_or(sha256)).to_string();
    match report.policies.contains_key(sha256) {
        true => format!("<a href=\"#policy-{short}\"><code class=\"whole\">{short}</code></a>"),
        false => format!("<code>{short}</code>"),
    }
}

/// The same of many records: how many of each, and by name those that are not whole. Each stands with its run too.
fn standings(files: &[Source], out: &mut String) -> fmt::Result {
    /// Names that are listed.
    const LISTED: usize = 20;
    let every = |wanted: Option<Standing>| files.iter().filter(move |source| source.standing() == wanted);
    for (class, wanted, what) in [
        ("bad", Some(Standing::Tampered), "changed after being written. Do not rely on this page"),
        ("warn", None, "not checked"),
        ("warn", Some(Standing::UnknownKey), "signed by a key that is not known here"),
        ("warn", Some(Standing::Unfinished), "not complete, or not signed to the end"),
        (
            "good",
            Some(Standing::Whole),
            "whole: each line of them is as it was written, and none of their lines is missing",
        ),
    ] {
        let count = every(wanted).count();
        if count == 0 {
            continue;
        }
        let records = many(count as u64, "record is", "records are");
        write!(out, "<div class=\"box {class}\"><p><b>{records}</b> {what}.</p>")?;
        if wanted != Some(Standing::Whole) {
            let names: Vec<String> = every(wanted).take(LISTED).map(|source| code(&source.name)).collect();
            let more = match count.saturating_sub(LISTED) {
                0 => String::new(),
                more => format!(", and {} more", number(more as u64)),
            };
            write!(out, "<p>{}{more}</p>", names.join(", "))?;
        }
        out.push_str("</div>\n");
    }
    Ok(())
}

/// Whether the record can be believed. It is called verified where it was, and nowhere else.
fn standing(source: &Source, named: bool, out: &mut String) -> fmt::Result {
    let of = if named { format!(" ({})", code(&source.name)) } else { String::new() };
    let Some(report) = &source.verified else {
        writeln!(
            out,
            "<div class=\"box warn\"><p><b>The record was not checked{of}.</b> Nobody looked whether it is as it was written.</p>"
        )?;
        flaws(source, out)?;
        out.push_str("</div>\n");
        return Ok(());
    };
    let signed = match &report.key {
        Some(key) => format!(" It is signed by the key {}.", code(&key.to_string())),
        None => String::new(),
    };
    let keys: Vec<String> = report.unknown_keys.iter().map(|id| code(id)).collect();
    let (class, said) = match report.standing() {
        Standing::Whole => (
            "good",
            format!(
                "<b>The record is whole{of}.</b> Each of its {} is as it was written, and none of them is missing.{signed}",
                many(report.lines, "line", "lines")
            ),
        ),
        Standing::Unfinished => {
            let (what, why) = match report.ending {
                Ending::Empty => ("empty", "Its run did not begin, or the file was emptied."),
                Ending::MidLine => ("not complete", "It ends in the middle of a line."),
                Ending::Unfinished => {
                    ("not complete", "The run has not ended, was killed, or the end was cut off.")
                }
                Ending::Sealed | Ending::Unsealed => (
                    "not signed to its end",
                    "Whoever can write that file could have written its end anew, which nobody could tell.",
                ),
            };
            ("warn", format!("<b>The record is {what}{of}.</b> Its lines fit together. {why}{signed}"))
        }
        Standing::UnknownKey => (
            "warn",
            format!(
                "<b>The record is not verified{of}.</b> Nothing contradicts it, but who signed it is not known here (key {}).",
                keys.join(", ")
            ),
        ),
        Standing::Tampered => (
            "bad",
            format!("<b>The record was changed after it was written{of}.</b> Do not rely on this page."),
        ),
    };
    writeln!(out, "<div class=\"box {class}\"><p>{said}</p>")?;
    if !report.findings.is_empty() {
        out.push_str("<ul>");
        for finding in &report.findings {
            write!(out, "<li>{}</li>", text(&finding.to_string()))?;
        }
        if report.more > 0 {
            write!(out, "<li>and {} more</li>", number(report.more))?;
        }
        out.push_str("</ul>");
    }
    out.push_str("</div>\n");
    Ok(())
}

fn flaws(source: &Source, out: &mut String) -> fmt::Result {
    if source.flaws.is_empty() {
        return Ok(());
    }
    out.push_str("<ul>");
    for flaw in &source.flaws {
        write!(out, "<li>{}</li>", text(flaw))?;
    }
    if source.more_flaws > 0 {
        write!(out, "<li>and {} more</li>", number(source.more_flaws))?;
    }
    out.push_str("</ul>\n");
    Ok(())
}

fn name_of(host: &HostSummary) -> String {
    let Some(name) = host.host.as_deref() else { return "(no readable name)".to_owned() };
    let name = if name.contains(':') {
        format!("[{}]", printable_ascii(name))
    } else {
        printable_ascii(name).into_owned()
    };
    let name = match host.port {
        Some(port) => format!("{name}:{port}"),
        None => name,
    };
    match host.proto {
        Proto::Tcp => name,
        Proto::Udp => format!("{name} (UDP)"),
        Proto::Other(number) => format!("{name} (protocol {number})"),
    }
}

/// What got one of some verdicts: each row is about one verdict alone.
fn evidence(report: &Report, title: &str, verdicts: &[Verdict], sort: Sort, out: &mut String) {
    let all = report.summary.hosts(sort);
    let has = |host: &&&HostSummary| verdicts.iter().any(|verdict| host.sightings(*verdict).0.count > 0);
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

/// What was not let through, and why: first of all.
fn refused(report: &Report, out: &mut String) {
    evidence(report, "Denied, and why", &[Verdict::Deny, Verdict::WouldDeny], Sort::Denied, out);
}

/// What was let through and not reached.
fn unreached(report: &Report, out: &mut String) {
    evidence(report, "Failed, and why", &[Verdict::Error], Sort::Failed, out);
}

fn few<T: Ord, const MOST: usize>(few: &Few<T, MOST>, shown: impl Fn(&T) -> String) -> String {
    let more = few.more.then(|| "and more".to_owned());
    few.kept.iter().map(shown).chain(more).collect::<Vec<_>>().join(", ")
}

/// Every host, those first that were sent most.
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
    // Each of these was sent no more than the last row.
    let mut others = report.summary.others;
    hosts.iter().skip(MAX_ROWS).for_each(|host| others.merge(&host.traffic));
    let left = (hosts.len().saturating_sub(MAX_ROWS) as u64).saturating_add(report.summary.other_hosts);
    if others != Traffic::default() {
        row(format!("all others together ({})", number(left)), &others, Default::default());
    }
    table.finish(left, out);
}

/// The rules that decided, with what they say of themselves.
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
            Effect::Allows => format!("allows {}", place(&it.used.rule)),
            Effect::Denies => format!("denies {}", place(&it.used.rule)),
            Effect::Expired => {
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
            (None, Effect::Allows) => "<b class=\"warn\">nobody</b>".to_owned(),
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

/// Rules of the stored policies that decided nothing.
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

/// Attempts over time: what was let through above the line, what was not below it. Colour says the same again.
fn timeline(run: &Run, out: &mut String) -> fmt::Result {
    /// Of the picture, in its own units; the page stretches it.
    const WIDTH: u64 = 7200;
    const HEIGHT: u64 = 1200;
    /// Above and below the highest bars.
    const EDGE: u64 = 30;
    /// Of the widest bar.
    const WIDEST: u64 = 360;
    /// What there was shows.
    const LOWEST: u64 = 24;
    let steps = run.timeline.steps();
    let allowed = |tally: &Tally| tally.allowed.saturating_sub(tally.failed);
    let through = |tally: &Tally| allowed(tally).saturating_add(tally.would_deny);
    let not = |tally: &Tally| tally.denied.saturating_add(tally.not_reached());
    let above = steps.iter().map(through).max().unwrap_or(0);
    let below = steps.iter().map(not).max().unwrap_or(0);
    if above == 0 && below == 0 {
        out.push_str("<p class=\"soft\">Nothing was tried.</p>\n");
        return Ok(());
    }
    // One scale for both, so that bars can be compared; the line is where both have room.
    let most = u128::from(above) + u128::from(below);
    let height = |count: u64| match count {
        0 => 0,
        count => {
            let room = u128::from(HEIGHT - 2 * EDGE);
            u64::try_from(u128::from(count) * room / most).unwrap_or(HEIGHT).max(LOWEST)
        }
    };
    let line = (EDGE + height(above)).min(HEIGHT - EDGE);
    let pitch = WIDTH / (steps.len() as u64).max(1);
    let bar = pitch.saturating_sub(pitch / 6).clamp(1, WIDEST);
    let length = run.timeline.step();
    let total = length.saturating_mul(steps.len() as u64);
    writeln!(
        out,
        "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        text(&format!("Attempts over {}: {} in all", duration(total), run.traffic.tally))
    )?;
    for (at, tally) in steps.iter().enumerate() {
        if *tally == Tally::default() {
            continue;
        }
        let (x, from) = (pitch * at as u64, length.saturating_mul(at as u64));
        let till = from.saturating_add(length);
        write!(out, "<g><title>{} to {}: {tally}</title>", clock(run, from), clock(run, till))?;
        let mut y = line;
        for (class, count) in [("a", allowed(tally)), ("w", tally.would_deny)] {
            let high = height(count).min(y);
            if high > 0 {
                y -= high;
                write!(
                    out,
                    "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{bar}\" height=\"{high}\"/>"
                )?;
            }
        }
        let mut y = line;
        for (class, count) in [("d", tally.denied), ("e", tally.not_reached())] {
            let high = height(count);
            if high > 0 {
                write!(
                    out,
                    "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{bar}\" height=\"{high}\"/>"
                )?;
                y += high;
            }
        }
        out.push_str("</g>\n");
    }
    write!(
        out,
        "<line class=\"l\" x1=\"0\" y1=\"{line}\" x2=\"{WIDTH}\" y2=\"{line}\"/></svg>\n\
         <div class=\"axis\"><span>{} UTC</span><span>{}</span><span>{}</span></div>\n<figcaption class=\"key\">",
        clock(run, 0),
        clock(run, total / 2),
        clock(run, total),
    )?;
    let Tally { would_deny, .. } = run.traffic.tally;
    let errors = run.traffic.tally.not_reached();
    out.push_str("<span><i class=\"a\"></i>above the line: allowed</span>");
    if would_deny > 0 {
        out.push_str("<span><i class=\"w\"></i>would be denied, and passed</span>");
    }
    out.push_str("<span><i class=\"d\"></i>below: denied</span>");
    if errors > 0 {
        out.push_str("<span><i class=\"e\"></i>failed</span>");
    }
    writeln!(
        out,
        "<span>highest: {} in {}</span></figcaption></figure>",
        number(above.max(below)),
        duration(length)
    )
}

/// What the clock showed so many microseconds after the run began: to the second, or finer where a step is shorter.
fn clock(run: &Run, us: u64) -> String {
    let Some(at) = run.timeline.clock(us) else { return duration(us) };
    let digits = if run.timeline.step() < 1_000_000 { 23 } else { 19 };
    text(at.as_str().get(11..digits).unwrap_or_default()).to_string()
}

/// What only one run has.
fn run(report: &Report, run: &Run, at: usize, out: &mut String) -> fmt::Result {
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
        let by: Vec<&str> =
            [&start.backend, &start.bridge].into_iter().filter_map(Option::as_deref).collect();
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

/// How a run ended, in words.
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

/// What was not let through, as it came.
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

/// What the policy of a run was made from, and which one that is.
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

/// Writes which policy held, with a link to its text in the page.
fn in_force(report: &Report, policy: &Policy, out: &mut String) -> fmt::Result {
    let why = match &policy.stored {
        Stored::Same => format!("printed below: {}", policy_link(report, &policy.sha256)),
        Stored::Other => "What is stored beside the record is another policy: it is not shown.".to_owned(),
        Stored::Long => "It is stored beside the record, and too long for this page.".to_owned(),
        Stored::None => "It is not stored beside the record.".to_owned(),
    };
    writeln!(out, "<p>In force: {} <span class=\"soft\">{why}</span></p>", code(&policy.sha256))
}

/// Every stored policy, once, whichever runs it held in.
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

/// Every record by its digest, which ties this page to the files that it was made from.
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

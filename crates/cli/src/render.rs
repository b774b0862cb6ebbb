//! Formats text for people: the summary at the end of a run and its tables. The functions return text and write nothing. Output for
//! programs is formatted elsewhere.

use std::collections::BTreeSet;
use std::net::IpAddr;

use exeat_audit::query::last_part;
use exeat_policy::{Limits, Reason, os_words, printable, shell_word};
use exeat_record::{Proto, signal_name};
use exeat_runner::{ConnectionSummary, DeniedHost, Ended, FailedHost, OnDenied, OtherProxy, Outcome};
use nix::libc::{SIGXCPU, SIGXFSZ};

use crate::terminal::{Paint, speaker};

/// The end of one run, as the summary needs it.
#[derive(Debug)]
pub(crate) struct Ending<'a> {
    /// Denied, failed and reached connections.
    pub(crate) summary: &'a ConnectionSummary,
    /// The end of the stage; `None` if there was no stage (`exeat proxy`).
    pub(crate) ended: Option<Ended>,
    /// The reason for which exeat or the kernel ended the stage, if one of them did.
    pub(crate) reason: Option<String>,
    /// The argument of `exeat audit show` for the record; `None` if the record went to a descriptor.
    pub(crate) record: Option<String>,
    /// The last hashes of the record and the ledger, for a log that keeps this text; `None` if they are not signed.
    pub(crate) seal: Option<String>,
    /// Whether the stage declared `Llm`.
    pub(crate) llm: bool,
    /// The effect of a denial on the run.
    pub(crate) on_denied: OnDenied,
}

/// Describes why the stage ended, if a limit or somebody else ended it. The kernel ends a process at some limits (setrlimit(2)): the stage,
/// or a command of its shell. Somebody else may have sent that signal, so the line names it.
pub(crate) fn reason(ended: Ended, limits: &Limits) -> Option<String> {
    let (signal, exited) = match ended {
        Ended::Limit(reached) => return Some(format!("{reached} reached; the stage was stopped")),
        Ended::Timeout => {
            return Some(format!("time limit of {} reached; the stage was stopped", limits.timeout?));
        }
        Ended::Stopped(stopped) => return Some(stopped.to_string()),
        Ended::Signal(signal) => (signal, None),
        Ended::Exit(code) => (i32::from(code) - 128, Some(code)),
        _ => return None,
    };
    let (name, limit) = match signal {
        SIGXCPU => ("SIGXCPU", format!("cpu_time limit of {}", limits.cpu_time?)),
        SIGXFSZ => ("SIGXFSZ", format!("file_size limit of {}", limits.file_size?)),
        _ => return None,
    };
    Some(match exited {
        Some(code) => {
            format!("{limit} reached; the stage exited {code}, as a shell does after {name} killed a command")
        }
        None => format!("{limit} reached; the stage was killed by {name}"),
    })
}

/// Formats the root of a record, and the number and the digest of the run in the ledger, with 16 digits of each hash. A log with this line
/// is a witness.
pub(crate) fn seal(outcome: &Outcome) -> Option<String> {
    let short = |digest: &str| digest.get(..16).unwrap_or(digest).to_owned();
    let root = outcome.sealed.as_ref().map(|sealed| format!("root {}", short(&sealed.root)));
    let ledger = outcome.ledger.as_ref().map(|head| format!("ledger {} {}", head.no, short(&head.sha256)));
    let parts: Vec<String> = root.into_iter().chain(ledger).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Formats where the decisions of a run through another proxy are. Empty if the run made no connection.
pub(crate) fn through(summary: &ConnectionSummary, through: &OtherProxy) -> String {
    let OtherProxy { socket, lost } = through;
    let place = printable(&format!("unix:{}", socket.display()));
    let exeat = speaker();
    let mut out = String::new();
    if lost.count > 0 {
        let why = lost.why.as_deref().map(|why| cell(&os_words(why))).unwrap_or_default();
        let connections = if lost.count == 1 { "connection" } else { "connections" };
        out.push_str(&format!("{exeat}: {} {connections} found no proxy at {place}: {why}\n", lost.count));
    }
    if summary.connections > lost.count {
        out.push_str(&format!("{exeat}: decisions are in the record of the proxy at {place}\n"));
    }
    out
}

/// Whether nothing was denied, would have been denied, or failed. The summary then has at most the line of a limit.
pub(crate) fn is_silent(summary: &ConnectionSummary) -> bool {
    summary.denied.is_empty()
        && summary.failed.is_empty()
        && summary.denied_more == 0
        && summary.would_deny.is_empty()
}

/// The maximal number of hosts in each list of the summary.
const SHOWN: usize = 10;

/// The maximal length of a reason or flag in the summary. A terminal line that wraps five times is unreadable.
const CELL: usize = 300;

impl Ending<'_> {
    /// Formats the line that `--quiet` leaves: why exeat ended the run. Empty if the stage ended by itself.
    pub(crate) fn render_reason(&self) -> String {
        let denied = || matches!(self.ended, Some(Ended::Denied)).then(|| self.headline());
        let line = self.reason.clone().or_else(denied).map(|line| format!("{}: {line}\n", speaker()));
        line.unwrap_or_default()
    }

    /// Formats the lines of the summary, each with its newline. Empty if nothing was denied, nothing failed and the stage ended by itself.
    pub(crate) fn render(&self, paint: Paint) -> String {
        let exeat = speaker();
        let mut out = String::new();
        if let Some(reason) = &self.reason {
            out.push_str(&format!("{exeat}: {reason}\n"));
        }
        if !is_silent(self.summary) {
            self.render_hosts(&mut out, paint);
        }
        if !out.is_empty()
            && let Some(show) = self.show("")
        {
            // A comment, so that the line can be pasted as it is.
            out.push_str(&format!("{exeat}: record: {show}{}\n", prefixed("  # ", &self.seal)));
        }
        out
    }

    fn render_hosts(&self, out: &mut String, paint: Paint) {
        let ConnectionSummary { denied, failed, would_deny, .. } = self.summary;
        let exeat = speaker();
        let mut rows: Vec<Row> =
            most_first(denied, |host| host.count).map(|host| Row::for_host(DENIED, host)).collect();
        rows.extend(most_first(would_deny, |host| host.count).map(|host| Row::for_host(WOULD_DENY, host)));
        by_program(&mut rows);
        rows.extend(most_first(failed, |host| host.count).map(Row::from));

        out.push_str(&format!("{exeat}: {}\n", self.headline()));
        out.push_str(&table(&rows, paint));
        let ConnectionSummary { denied_more, would_deny_more, .. } = *self.summary;
        for (hosts, what, verdict, beyond) in [
            (denied.len(), "", "deny", denied_more),
            (would_deny.len(), " that would be denied", "would_deny", would_deny_more),
            (failed.len(), " failed", "error", 0),
        ] {
            let more = hosts.saturating_sub(SHOWN);
            if more > 0 {
                let show = self.show(&format!(" --verdict {verdict}"));
                let at_least = if beyond > 0 { "at least " } else { "" };
                out.push_str(&format!("  ... and {at_least}{more} more{what}{}\n", prefixed(": ", &show)));
            }
        }
        // A lookup has no port yet, and a flag without a port opens only 443.
        let is_only_asked = |host: &&DeniedHost| host.port == 0 && host.flag.is_some();
        let asked: Vec<_> = most_first(denied, |host| host.count).filter(is_only_asked).collect();
        if let Some(first) = asked.first() {
            let host = if asked.len() == 1 { cell(&first.host) } else { "HOST".to_owned() };
            out.push_str(&format!(
                "  a name without a port was only looked up (twice, for IPv4 and IPv6), and its flag opens 443;\n  \
                   for ssh and git@ it is --allow {host}:22\n"
            ));
        }
        if most_first(denied, |host| host.count).any(may_be_private) {
            out.push_str(
                "  a host with a private address needs a rule for that, too: --allow NAME:PORT --allow ADDRESS:PORT\n",
            );
        }
        if self.llm && !denied.is_empty() {
            out.push_str(
                "  the stage declares `Llm`, which grants no host: name the model's, or see exeat preset\n",
            );
        }
    }

    fn headline(&self) -> String {
        let ConnectionSummary { denied, failed, hosts_reached, denied_more, .. } = self.summary;
        let ConnectionSummary { would_deny, would_deny_more, .. } = self.summary;
        let mut parts = Vec::new();
        if !denied.is_empty() || *denied_more > 0 {
            let at_least = if *denied_more > 0 { "at least " } else { "" };
            let count = names(denied.iter().map(|host| host.host.as_str()));
            parts.push(format!("{at_least}{count} {} denied", hosts(count)));
        }
        if !would_deny.is_empty() {
            let at_least = if *would_deny_more > 0 { "at least " } else { "" };
            let count = names(would_deny.iter().map(|host| host.host.as_str()));
            let noun = if parts.is_empty() { format!(" {}", hosts(count)) } else { String::new() };
            parts.push(format!("{at_least}{count}{noun} would be denied"));
        }
        if !failed.is_empty() {
            let count = names(failed.iter().map(|host| host.host.as_str()));
            let noun = if parts.is_empty() { format!(" {}", hosts(count)) } else { String::new() };
            parts.push(format!("{count}{noun} failed"));
        }
        parts.push(format!("{hosts_reached} reached"));
        let end = match self.ended {
            // The line above contains it.
            _ if self.reason.is_some() => return parts.join(", "),
            None | Some(Ended::Limit(_) | Ended::Stopped(_) | Ended::Timeout | Ended::Uncovered) => {
                return parts.join(", ");
            }
            Some(Ended::Exit(code)) => format!("the stage exited {code}"),
            Some(Ended::Interrupted) => "the stage was killed by SIGINT".to_owned(),
            Some(Ended::Signal(signal)) => format!("the stage was killed by {}", signal_name(signal)),
            Some(Ended::Denied) if self.on_denied == OnDenied::Fail => {
                "the stage exited 0, and the run 123 for the refusal (--on-denied fail)".to_owned()
            }
            Some(Ended::Denied) => "the refusal ended the run, which exits 123 (--on-denied end)".to_owned(),
            Some(Ended::NotFound) => "the command was not found".to_owned(),
            Some(Ended::NotExecutable) => "the command could not be executed".to_owned(),
        };
        format!("{}; {end}", parts.join(", "))
    }

    fn show(&self, filter: &str) -> Option<String> {
        self.record.as_deref().map(|record| format!("exeat audit show {}{filter}", shell_word(record)))
    }
}

/// A line of the summary, before the widths of the columns are known.
struct Row {
    word: &'static str,
    count: String,
    target: String,
    said: String,
    flag: String,
    /// The file names of the programs that asked; empty if unknown.
    by: String,
}

const DENIED: &str = "denied";

const WOULD_DENY: &str = "would deny";

impl Row {
    fn for_host(word: &'static str, host: &DeniedHost) -> Self {
        Self {
            word,
            count: format!("{}x", host.count),
            target: spoken(target(&host.host, host.port), host.proto),
            said: cell(&os_words(&host.said)),
            flag: host.flag.as_deref().map(cell).unwrap_or_default(),
            by: programs(&host.programs),
        }
    }
}

impl From<&FailedHost> for Row {
    fn from(host: &FailedHost) -> Self {
        Self {
            word: "failed",
            count: format!("{}x", host.count),
            target: target(&host.host, host.port),
            said: format!("{} (not a policy denial)", cell(&os_words(&host.said))),
            flag: String::new(),
            by: String::new(),
        }
    }
}

/// Returns whether a host that no rule allows may have a private address. Nobody looked the name up, because that would let a question out.
/// So this goes by what public sites rarely have: a port beyond the web's, or a name of the local network (RFC 6762 appendix G, RFC 8375;
/// ICANN reserves `internal`).
fn may_be_private(denied: &DeniedHost) -> bool {
    const LOCAL: [&str; 8] = ["internal", "intranet", "private", "corp", "home", "lan", "local", "home.arpa"];
    let DeniedHost { host, port, reason, flag, .. } = denied;
    let is_name = !host.contains(':') && host.parse::<IpAddr>().is_err();
    let is_local = || {
        let is_below = |top: &&str| host.strip_suffix(*top).is_some_and(|rest| rest.ends_with('.'));
        !host.contains('.') || LOCAL.iter().any(is_below)
    };
    let is_of_name = *reason == Reason::Default && flag.is_some();
    is_of_name && is_name && (![80, 443].contains(port) || is_local())
}

/// Lists the last part of each path.
fn programs(paths: &[String]) -> String {
    let names: Vec<_> = paths.iter().map(|path| cell(last_part(path))).collect();
    names.join(", ")
}

/// Groups the rows by program. If there is only one program, removes its name from all rows.
fn by_program(rows: &mut [Row]) {
    let mut order: Vec<String> = Vec::new();
    for row in rows.iter() {
        if !order.contains(&row.by) {
            order.push(row.by.clone());
        }
    }
    if order.iter().filter(|by| !by.is_empty()).count() < 2 {
        rows.iter_mut().for_each(|row| row.by.clear());
        return;
    }
    rows.sort_by_key(|row| (row.word == WOULD_DENY, order.iter().position(|by| *by == row.by)));
}

fn table(rows: &[Row], paint: Paint) -> String {
    let width = |of: fn(&Row) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let words = width(|row| row.word.len());
    let count = width(|row| row.count.len());
    let target = width(|row| row.target.chars().count());
    // A line without a flag ends with its reason, so only the others share the column.
    let said = width(|row| if row.flag.is_empty() { 0 } else { row.said.chars().count() });
    let mut out = String::new();
    for row in rows {
        let word = if row.word == DENIED { paint.bad(row.word) } else { paint.odd(row.word) };
        let pad = words - row.word.len();
        let flag = paint.strong(&row.flag);
        // A comment, so that the flag can be pasted with it.
        let by = if row.by.is_empty() { String::new() } else { format!("   # {}", row.by) };
        let line = format!(
            "  {word}{:pad$}  {:>count$}  {:target$}   {:said$}   {flag}{by}",
            "", row.count, row.target, row.said
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Returns the most frequent entries first, at most [`SHOWN`]. Equally frequent ones keep their order.
fn most_first<T>(list: &[T], count: fn(&T) -> u64) -> impl Iterator<Item = &T> {
    let mut list: Vec<&T> = list.iter().collect();
    list.sort_by_key(|one| std::cmp::Reverse(count(one)));
    list.into_iter().take(SHOWN)
}

fn target(host: &str, port: u16) -> String {
    match host {
        "" => "(malformed request)".to_owned(),
        // A name that was only looked up, or a protocol without ports.
        host if port == 0 => cell(host),
        // Without brackets, an IPv6 literal could not be told from its port.
        v6 if v6.contains(':') && !v6.starts_with('[') => format!("[{}]:{port}", cell(v6)),
        host => format!("{}:{port}", cell(host)),
    }
}

fn spoken(target: String, proto: Proto) -> String {
    match proto {
        Proto::Tcp => target,
        Proto::Udp => format!("{target} (udp)"),
        Proto::Other(number) => format!("{target} (protocol {number})"),
    }
}

fn cell(text: &str) -> String {
    let text = printable(text);
    match text.char_indices().nth(CELL).and_then(|(at, _)| text.get(..at)) {
        Some(start) => format!("{start}..."),
        None => text,
    }
}

/// Counts hosts: two ports of one are one host.
fn names<'a>(hosts: impl Iterator<Item = &'a str>) -> usize {
    hosts.collect::<BTreeSet<_>>().len()
}

fn hosts(n: usize) -> &'static str {
    if n == 1 { "host" } else { "hosts" }
}

fn prefixed(prefix: &str, text: &Option<String>) -> String {
    text.as_deref().map(|text| format!("{prefix}{text}")).unwrap_or_default()
}

#[cfg(test)]
mod tests;

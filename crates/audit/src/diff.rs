//! Finds what one set of records reaches that another does not.
//!
//! Compares summaries and reads nothing itself. Hosts are compared by host, port, protocol and the way they came in; counts and
//! bytes are not compared.

use std::fmt;
use std::io::{self, Write};

use exeat_policy::{Reason, Verdict};
use exeat_record::Proto;
use serde_json::{Value, json};

use crate::summary::{Form, HostSummary, Sort, Summary, code, list, target};
use crate::table::{GREEN, RED, YELLOW, paint};

/// The differences between two summaries; each list is in the order of [`Summary::hosts`].
#[derive(Debug)]
pub struct Diff<'a> {
    /// Hosts that are only in the second.
    pub new: Vec<&'a HostSummary>,
    /// Hosts that have a `via` or a verdict in the second that they do not have in the first.
    pub changed: Vec<Changed<'a>>,
    /// Hosts that are only in the first.
    pub gone: Vec<&'a HostSummary>,
    /// The number of hosts in the second with nothing new.
    pub same: usize,
    /// Gaps in the records, because of which nobody can tell what is new.
    pub cannot_tell: Vec<Unknown>,
}

/// A gap in the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown {
    /// The size of the gap.
    pub count: u64,
    noun: &'static str,
    rest: &'static str,
}

impl Unknown {
    /// Builds the sentence from a count, a noun in the singular, and the words after it.
    pub fn new(count: u64, noun: &'static str, rest: &'static str) -> Unknown {
        Unknown { count, noun, rest }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (noun, of) = self
            .noun
            .split_once(' ')
            .map_or((self.noun, String::new()), |(noun, of)| (noun, format!(" {of}")));
        let plural = if self.count == 1 { "" } else { "s" };
        write!(f, "{} {noun}{plural}{of} {}", self.count, self.rest)
    }
}

/// A host with something new.
#[derive(Debug)]
pub struct Changed<'a> {
    /// The host in the second summary.
    pub now: &'a HostSummary,
    /// The host in the first summary.
    pub before: &'a HostSummary,
    /// The `via` words that only the second has.
    pub vias: Vec<&'static str>,
    /// The verdicts that only the second has.
    pub verdicts: Vec<Verdict>,
}

impl<'a> Diff<'a> {
    /// Compares two summaries.
    ///
    /// A network error is not a verdict of the policy: what failed was let through.
    pub fn between(before: &'a Summary, now: &'a Summary) -> Diff<'a> {
        let mut diff = Diff {
            new: Vec::new(),
            changed: Vec::new(),
            gone: Vec::new(),
            same: 0,
            cannot_tell: unknown(before, now),
        };
        let find = |summary: &'a Summary, host: &HostSummary| {
            let (name, port, proto) = host.key();
            summary.host(name, port, proto)
        };
        for host in now.hosts(Sort::Denied).into_iter().filter(|host| nameless(host) == 0) {
            let Some(old) = find(before, host) else {
                diff.new.push(host);
                continue;
            };
            let vias: Vec<_> = host.vias().difference(&old.vias()).copied().collect();
            let (was, is) = (verdicts(old), verdicts(host));
            let verdicts: Vec<_> = is.into_iter().filter(|verdict| !was.contains(verdict)).collect();
            if vias.is_empty() && verdicts.is_empty() {
                diff.same += 1;
            } else {
                diff.changed.push(Changed { now: host, before: old, vias, verdicts });
            }
        }
        let old = before.hosts(Sort::Denied).into_iter().filter(|host| nameless(host) == 0);
        diff.gone = old.filter(|host| find(now, host).is_none()).collect();
        diff
    }

    /// Whether the second summary has anything that the first does not. A host that is gone does not count.
    pub fn is_new(&self) -> bool {
        !self.new.is_empty() || !self.changed.is_empty()
    }

    /// Writes the differences. Only 0x20 to 0x7e comes out; both forms of Markdown are the same here.
    pub fn write(&self, form: Form, out: &mut dyn Write) -> io::Result<()> {
        match form {
            Form::Text { color } => self.text(color, out),
            Form::Json => self.json(out),
            Form::Markdown | Form::GitHub => self.markdown(out),
        }
    }

    fn text(&self, color: bool, out: &mut dyn Write) -> io::Result<()> {
        if !self.is_new() {
            let plural = if self.same == 1 { "" } else { "s" };
            writeln!(out, "nothing new: {} target{plural} as before", self.same)?;
        }
        for host in &self.new {
            let style = if host.traffic.tally.allowed > 0 { GREEN } else { RED };
            let sign = paint("+", Some(style), color);
            writeln!(out, "{sign} {:<32}  {}", target(host), describe(host))?;
        }
        for changed in &self.changed {
            let sign = paint("~", Some(YELLOW), color);
            writeln!(out, "{sign} {:<32}  {}", target(changed.now), changed.words())?;
        }
        for host in &self.gone {
            writeln!(out, "- {:<32}  {}", target(host), describe(host))?;
        }
        for unknown in &self.cannot_tell {
            writeln!(out, "cannot tell: {unknown}")?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"{\n\"schema\": 1,\n")?;
        writeln!(out, "\"signature\": \"not checked\",\n\"same\": {},", self.same)?;
        list(out, "new", self.new.iter().map(|host| host_json(host)))?;
        out.write_all(b",\n")?;
        let changed = self.changed.iter().map(|changed| {
            let mut value = host_json(changed.now);
            if let Value::Object(fields) = &mut value {
                fields.insert("new_via".into(), json!(changed.vias));
                fields.insert("new_verdicts".into(), json!(changed.verdicts));
                fields.insert("verdicts_before".into(), json!(verdicts(changed.before)));
            }
            value
        });
        list(out, "changed", changed)?;
        out.write_all(b",\n")?;
        list(out, "gone", self.gone.iter().map(|host| host_json(host)))?;
        out.write_all(b",\n")?;
        let unknown = self.cannot_tell.iter().map(|it| json!({"count": it.count, "what": it.to_string()}));
        list(out, "cannot_tell", unknown)?;
        out.write_all(b"\n}\n")
    }

    fn markdown(&self, out: &mut dyn Write) -> io::Result<()> {
        let (new, changed, gone) = (self.new.len(), self.changed.len(), self.gone.len());
        writeln!(out, "### Egress: {new} new, {changed} changed, {gone} gone, {} as before", self.same)?;
        for unknown in &self.cannot_tell {
            writeln!(out, "\nCannot tell: {unknown}.")?;
        }
        if new + changed + gone == 0 {
            return Ok(());
        }
        writeln!(out, "\n| | Target | What |\n| --- | --- | --- |")?;
        for host in &self.new {
            writeln!(out, "| new | {} | {} |", code(&target(host)), describe(host))?;
        }
        for changed in &self.changed {
            writeln!(out, "| changed | {} | {} |", code(&target(changed.now)), changed.words())?;
        }
        for host in &self.gone {
            writeln!(out, "| gone | {} | {} |", code(&target(host)), describe(host))?;
        }
        Ok(())
    }
}

impl Changed<'_> {
    /// Describes what is new, in words of the vocabulary only.
    fn words(&self) -> String {
        let mut parts = Vec::new();
        if !self.verdicts.is_empty() {
            let was = verdicts(self.before);
            let was = if was.is_empty() { "nothing".to_owned() } else { joined(&was) };
            parts.push(format!("{}, before only {was}", joined(&self.verdicts)));
        }
        if !self.vias.is_empty() {
            parts.push(format!("now by {}", self.vias.join(", ")));
        }
        parts.join("; ")
    }
}

/// Lists what two summaries leave out.
fn unknown(before: &Summary, now: &Summary) -> Vec<Unknown> {
    let hosts = |of: &Summary| of.hosts(Sort::Denied).into_iter().map(nameless).fold(0, u64::saturating_add);
    let lines = |of: &Summary| of.unrecorded.saturating_add(of.unseen);
    [
        Unknown::new(
            hosts(before),
            "attempt of the baseline",
            "without a host on record, which may be one of the new ones",
        ),
        Unknown::new(hosts(now), "attempt", "without a host on record, which may be new"),
        Unknown::new(lines(before), "attempt of the baseline", "without a line"),
        Unknown::new(lines(now), "attempt", "without a line"),
        Unknown::new(before.unfinished, "run of the baseline", "without an end on record"),
        Unknown::new(now.unfinished, "run", "without an end on record"),
        Unknown::new(before.elsewhere, "run of the baseline", "with decisions in another proxy's record"),
        Unknown::new(now.elsewhere, "run", "with decisions in another proxy's record"),
    ]
    .into_iter()
    .filter(|unknown| unknown.count > 0)
    .collect()
}

/// Counts attempts on record without their host, as in a flood of refusals. Requests without a readable host do not count.
fn nameless(host: &HostSummary) -> u64 {
    if host.host.is_some() {
        return 0;
    }
    let reasons = host.reasons();
    let malformed = reasons.get(&Reason::Malformed).copied().unwrap_or(0);
    reasons.values().fold(0, |sum: u64, count| sum.saturating_add(*count)).saturating_sub(malformed)
}

/// Returns the verdicts of the policy.
fn verdicts(host: &HostSummary) -> Vec<Verdict> {
    let tally = &host.traffic.tally;
    let mut all = Vec::new();
    if tally.allowed > 0 || tally.errors > 0 {
        all.push(Verdict::Allow);
    }
    all.extend([Verdict::Deny, Verdict::WouldDeny].into_iter().filter(|verdict| tally.count(*verdict) > 0));
    all
}

fn joined(verdicts: &[Verdict]) -> String {
    verdicts.iter().map(|verdict| verdict.as_str()).collect::<Vec<_>>().join(" and ")
}

/// Describes a host's verdicts and vias, in words of the vocabulary only.
fn describe(host: &HostSummary) -> String {
    let reasons: Vec<_> = host.reasons().into_keys().map(exeat_policy::Reason::as_str).collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) };
    let vias: Vec<_> = host.vias().into_iter().collect();
    format!("{}{reasons} [{}]", joined(&verdicts(host)), vias.join(" "))
}

fn host_json(host: &HostSummary) -> Value {
    let reasons: Vec<_> = host.reasons().into_keys().map(exeat_policy::Reason::as_str).collect();
    json!({
        "host": host.host,
        "port": host.port,
        "proto": match host.proto { Proto::Tcp => None, proto => Some(proto.to_string()) },
        "via": host.vias(),
        "verdicts": verdicts(host),
        "reasons": reasons,
    })
}

#[cfg(test)]
mod tests;

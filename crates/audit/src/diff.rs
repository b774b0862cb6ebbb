//! What records reach that others did not.
//!
//! Compares summaries and reads nothing itself. Hosts are compared by host, port, protocol and the way they came in; how often,
//! and how many bytes, is no difference.

use std::fmt;
use std::io::{self, Write};

use exeat_policy::{Reason, Verdict};
use exeat_record::Proto;
use serde_json::{Value, json};

use crate::summary::{Form, Reached, Sort, Summary, code, list, target};
use crate::table::{GREEN, RED, YELLOW, paint};

/// What differs between two summaries, each list in the order of [`Summary::hosts`].
#[derive(Debug)]
pub struct Diff<'a> {
    /// Hosts that the first does not have.
    pub new: Vec<&'a Reached>,
    /// Hosts that came in by another way, or got another verdict, than in the first.
    pub changed: Vec<Changed<'a>>,
    /// Hosts that the second does not have.
    pub gone: Vec<&'a Reached>,
    /// Hosts of the second with nothing new.
    pub same: usize,
    /// What the records do not say, so that nobody can tell whether it is new.
    pub cannot_tell: Vec<Unknown>,
}

/// Something that the records do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown {
    /// How much of it.
    pub count: u64,
    noun: &'static str,
    rest: &'static str,
}

impl Unknown {
    /// So much of what the noun, in the singular, and the rest of the sentence say.
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
    /// In the second.
    pub now: &'a Reached,
    /// In the first.
    pub before: &'a Reached,
    /// Ways it came in that it did not before.
    pub vias: Vec<&'static str>,
    /// Verdicts that it did not get before.
    pub verdicts: Vec<Verdict>,
}

impl<'a> Diff<'a> {
    /// What `now` has and `before` has not, and the other way round.
    ///
    /// A network error is no verdict of the policy: what failed was let through.
    pub fn between(before: &'a Summary, now: &'a Summary) -> Diff<'a> {
        let mut diff = Diff {
            new: Vec::new(),
            changed: Vec::new(),
            gone: Vec::new(),
            same: 0,
            cannot_tell: unknown(before, now),
        };
        let find = |summary: &'a Summary, host: &Reached| {
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

    /// Whether there is something that was not before. What is gone is not.
    pub fn is_new(&self) -> bool {
        !self.new.is_empty() || !self.changed.is_empty()
    }

    /// Writes it. Only 0x20 to 0x7e comes out; both forms of Markdown are the same here.
    pub fn write(&self, form: Form, out: &mut dyn Write) -> io::Result<()> {
        match form {
            Form::Text { colour } => self.text(colour, out),
            Form::Json => self.json(out),
            Form::Markdown | Form::GitHub => self.markdown(out),
        }
    }

    fn text(&self, colour: bool, out: &mut dyn Write) -> io::Result<()> {
        if !self.is_new() {
            let plural = if self.same == 1 { "" } else { "s" };
            writeln!(out, "nothing new: {} target{plural} as before", self.same)?;
        }
        for host in &self.new {
            let style = if host.traffic.tally.allowed > 0 { GREEN } else { RED };
            let sign = paint("+", Some(style), colour);
            writeln!(out, "{sign} {:<32}  {}", target(host), said(host))?;
        }
        for changed in &self.changed {
            let sign = paint("~", Some(YELLOW), colour);
            writeln!(out, "{sign} {:<32}  {}", target(changed.now), changed.words())?;
        }
        for host in &self.gone {
            writeln!(out, "- {:<32}  {}", target(host), said(host))?;
        }
        for unknown in &self.cannot_tell {
            writeln!(out, "cannot tell: {unknown}")?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"{\n\"schema\": 1,\n")?;
        writeln!(out, "\"signature\": \"not checked\",\n\"same\": {},", self.same)?;
        list(out, "new", self.new.iter().map(|host| of_host(host)))?;
        out.write_all(b",\n")?;
        let changed = self.changed.iter().map(|changed| {
            let mut value = of_host(changed.now);
            if let Value::Object(fields) = &mut value {
                fields.insert("new_via".into(), json!(changed.vias));
                fields.insert("new_verdicts".into(), json!(changed.verdicts));
                fields.insert("verdicts_before".into(), json!(verdicts(changed.before)));
            }
            value
        });
        list(out, "changed", changed)?;
        out.write_all(b",\n")?;
        list(out, "gone", self.gone.iter().map(|host| of_host(host)))?;
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
            writeln!(out, "| new | {} | {} |", code(&target(host)), said(host))?;
        }
        for changed in &self.changed {
            writeln!(out, "| changed | {} | {} |", code(&target(changed.now)), changed.words())?;
        }
        for host in &self.gone {
            writeln!(out, "| gone | {} | {} |", code(&target(host)), said(host))?;
        }
        Ok(())
    }
}

impl Changed<'_> {
    /// What is new of it: words of the vocabulary alone.
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

/// What two summaries do not say.
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

/// Attempts that a record counts without their host, as in a flood of refusals. What was no host at all is told from them.
fn nameless(host: &Reached) -> u64 {
    if host.host.is_some() {
        return 0;
    }
    let reasons = host.reasons();
    let malformed = reasons.get(&Reason::Malformed).copied().unwrap_or(0);
    reasons.values().fold(0, |sum: u64, count| sum.saturating_add(*count)).saturating_sub(malformed)
}

/// The verdicts of the policy.
fn verdicts(host: &Reached) -> Vec<Verdict> {
    let tally = &host.traffic.tally;
    let mut all = Vec::new();
    if tally.allowed > 0 || tally.errors > 0 {
        all.push(Verdict::Allow);
    }
    all.extend([Verdict::Deny, Verdict::WouldDeny].into_iter().filter(|verdict| tally.of(*verdict) > 0));
    all
}

fn joined(verdicts: &[Verdict]) -> String {
    verdicts.iter().map(|verdict| verdict.as_str()).collect::<Vec<_>>().join(" and ")
}

/// What became of a host: words of the vocabulary alone.
fn said(host: &Reached) -> String {
    let reasons: Vec<_> = host.reasons().into_keys().map(exeat_policy::Reason::as_str).collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) };
    let vias: Vec<_> = host.vias().into_iter().collect();
    format!("{}{reasons} [{}]", joined(&verdicts(host)), vias.join(" "))
}

fn of_host(host: &Reached) -> Value {
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

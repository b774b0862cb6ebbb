//! Selects the lines of a record to show.

use std::net::IpAddr;
use std::str::FromStr;

use exeat_policy::{HostName, HostPattern, NameError, Reason, Verdict};

use super::{Record, last_part};
use crate::Moment;

/// Selects lines. An empty list selects all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Verdicts, any of which matches.
    pub verdicts: Vec<Verdict>,
    /// Hosts, any of which matches.
    pub hosts: Vec<HostFilter>,
    /// Reasons, any of which matches.
    pub reasons: Vec<Reason>,
    /// The `via` words of the record, any of which matches.
    pub vias: Vec<String>,
    /// Programs that asked, any of which matches: the path, or its last part.
    pub exes: Vec<String>,
    /// Stages of the run, any of which matches.
    pub stages: Vec<String>,
    /// The earliest time.
    pub since: Option<Moment>,
    /// The latest time.
    pub until: Option<Moment>,
}

impl Filter {
    /// Whether every line passes.
    pub fn is_empty(&self) -> bool {
        self.wants_all_decisions() && self.stages.is_empty() && self.since.is_none() && self.until.is_none()
    }

    /// Whether a line passes. A filter on decisions passes no other line.
    pub fn passes(&self, record: &Record) -> bool {
        self.covers(record)
            && (self.wants_all_decisions() || (record.is_decision() && self.passes_decision(record)))
    }

    /// Whether a line has a selected time and stage.
    pub fn covers(&self, record: &Record) -> bool {
        self.is_of_stage(record) && self.is_of_time(record)
    }

    /// Whether a line is of a selected stage.
    pub(crate) fn is_of_stage(&self, record: &Record) -> bool {
        let stage = record.stage.as_deref();
        self.stages.is_empty() || self.stages.iter().any(|wanted| Some(wanted.as_str()) == stage)
    }

    /// Whether a line has a selected time.
    pub(crate) fn is_of_time(&self, record: &Record) -> bool {
        (self.since.is_none() && self.until.is_none())
            || Moment::parse(&record.ts).is_some_and(|at| {
                self.since.is_none_or(|since| since <= at) && self.until.is_none_or(|until| at <= until)
            })
    }

    /// Whether a line is about a selected host.
    pub fn names(&self, record: &Record) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|wanted| wanted.passes(record))
    }

    /// Returns whether it leaves out no decision of a run.
    pub fn wants_all_decisions(&self) -> bool {
        self.verdicts.is_empty()
            && self.hosts.is_empty()
            && self.reasons.is_empty()
            && self.vias.is_empty()
            && self.exes.is_empty()
    }

    fn passes_decision(&self, record: &Record) -> bool {
        let via = record.via.as_deref();
        (self.verdicts.is_empty() || record.verdict().is_some_and(|it| self.verdicts.contains(&it)))
            && (self.reasons.is_empty() || record.reason().is_some_and(|it| self.reasons.contains(&it)))
            && (self.vias.is_empty() || self.vias.iter().any(|wanted| Some(wanted.as_str()) == via))
            && (self.exes.is_empty() || self.exes.iter().any(|wanted| is_program(record, wanted)))
            && self.names(record)
    }
}

fn is_program(record: &Record, wanted: &str) -> bool {
    let exe = record.exe.as_deref().unwrap_or_default();
    exe == wanted || last_part(exe) == wanted
}

/// A host to look for: a name, `*.name` for everything below it, or an address.
///
/// An address also matches names that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostFilter {
    /// A name, or all names below one.
    Name(HostPattern),
    /// An address.
    Ip(IpAddr),
}

impl HostFilter {
    fn passes(&self, record: &Record) -> bool {
        let host = record.host.as_deref();
        match self {
            HostFilter::Name(pattern) => {
                host.and_then(|host| host.parse::<HostName>().ok()).is_some_and(|name| pattern.matches(&name))
            }
            HostFilter::Ip(ip) => {
                host.and_then(|host| host.parse().ok()) == Some(*ip)
                    || record.ips.contains(ip)
                    || record.ip == Some(*ip)
            }
        }
    }
}

impl FromStr for HostFilter {
    type Err = NameError;

    fn from_str(text: &str) -> Result<HostFilter, NameError> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(ip) = bare.parse() {
            return Ok(HostFilter::Ip(ip));
        }
        Ok(HostFilter::Name(match text.strip_prefix("*.") {
            Some(below) => HostPattern::Subdomains(below.parse()?),
            None => HostPattern::Exact(text.parse()?),
        }))
    }
}

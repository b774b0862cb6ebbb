//! What many records say together: per host who was let through and who was not, and which rules did it.
//!
//! Proves nothing and prints nothing. Memory is bounded whatever the records hold: hosts and rules beyond the bounds are
//! counted, exactly, without their names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::{self, BufRead};
use std::net::IpAddr;

use exeat_policy::{Action, AddrClass, Allowances, Host, Port, Reason, RuleSpec, Verdict, classify};
use serde::Deserialize;

use crate::lock::Lock;
use crate::query::{Filter, Kind, Reader, Record};
use crate::{Moment, Proto};

mod write;

pub use write::{Form, write};
pub(crate) use write::{code, list, target};

/// Hosts, each with its port and protocol, that are told apart where the caller asks for no other number.
pub const MAX_HOSTS: usize = 10_000;

/// Rules that are told apart.
const MAX_RULES: usize = 10_000;

/// Stages that are told apart.
const MAX_STAGES: usize = 100;

/// Rules that are kept of one host.
const MAX_RULES_OF_HOST: usize = 16;

/// Bytes of a name that is kept: no host name is longer (RFC 1035, section 2.3.4), and exeat writes no longer rule.
const MAX_NAME: usize = 512;

/// What records say together.
#[derive(Debug)]
pub struct Summary {
    /// Lines that were looked at.
    pub lines: u64,
    /// Runs with such a line.
    pub runs: u64,
    /// Those of them without an end.
    pub unfinished: u64,
    /// Runs by stage. What has no stage, and what is more than can be told apart, is not here.
    pub stages: BTreeMap<String, u64>,
    /// Attempts that a record says no line of it tells of.
    pub unrecorded: u64,
    /// Packets and connections that were not looked at (notes `tap_drops` and `turned_away`).
    pub unseen: u64,
    /// The first line's time.
    pub first: Option<Moment>,
    /// The last line's.
    pub last: Option<Moment>,
    /// All together.
    pub total: Traffic,
    /// Hosts beyond those that are told apart, together.
    pub others: Traffic,
    /// Notes that a policy was read again.
    pub reloads: u64,
    /// Flaws of the records.
    pub flaws: u64,
    hosts: HashMap<String, BTreeMap<(Option<u16>, Proto), HostSummary>>,
    count: usize,
    most: usize,
    rules: Rules,
    /// Rules of the stored policies, canonical.
    granted: BTreeSet<String>,
    /// Addresses that are not public to which an allowed name led: a rule for one was used too, and no line names it.
    opened: BTreeSet<(IpAddr, u16)>,
    /// There were more than are kept.
    opened_more: bool,
    policies: u64,
    granted_more: u64,
}

/// What is counted: of one host, or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Attempts by verdict.
    pub tally: Tally,
    /// Bytes from the sandbox to the internet, of the connections that ended.
    pub bytes_up: u64,
    /// Bytes back.
    pub bytes_down: u64,
}

/// What became of one host, on one port, in one protocol.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostSummary {
    /// As the record has it; `None`: what was asked for was no host, or the line stands for many. Not printable as it is.
    pub host: Option<String>,
    /// `None`: only a name was asked for.
    pub port: Option<u16>,
    /// What would have been spoken.
    pub proto: Proto,
    /// What is counted.
    pub traffic: Traffic,
    /// Why it was not let through, or would not have been: attempts by reason.
    pub reasons: BTreeMap<Reason, u64>,
    /// The ways it came in, in the words of the record.
    pub vias: BTreeSet<&'static str>,
    /// The first line that tells of it.
    pub first: Option<Moment>,
    /// The last one.
    pub last: Option<Moment>,
    /// The rules that decided; see [`Summary::rules`].
    rules: Vec<usize>,
    /// There were more than are kept.
    pub rules_more: bool,
}

/// A rule that decided, as the record names it. Not printable as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Used {
    /// As it was typed.
    pub rule: String,
    /// Where.
    pub src: String,
    /// It is one that refuses.
    pub denies: bool,
}

#[derive(Debug, Default)]
struct Rules {
    /// By rule, source and what it does: their numbers.
    numbers: HashMap<Used, usize>,
    /// In the order of their numbers, each with the attempts that it decided.
    all: Vec<(Used, u64)>,
    /// Attempts that were decided by rules beyond the bound.
    more: u64,
    /// The rule of the line before: most lines have the one of the line before.
    last: Option<usize>,
}

/// A record that is being added line by line.
#[derive(Debug, Default)]
pub struct Reading {
    /// The run that the last line belonged to.
    run: String,
    /// It has not ended.
    open: bool,
}

impl Default for Summary {
    fn default() -> Summary {
        Summary::new(MAX_HOSTS)
    }
}

impl Summary {
    /// One that tells at most `most` hosts apart.
    pub fn new(most: usize) -> Summary {
        Summary {
            lines: 0,
            runs: 0,
            unfinished: 0,
            stages: BTreeMap::new(),
            unrecorded: 0,
            unseen: 0,
            first: None,
            last: None,
            total: Traffic::default(),
            others: Traffic::default(),
            reloads: 0,
            flaws: 0,
            hosts: HashMap::new(),
            count: 0,
            most,
            rules: Rules::default(),
            granted: BTreeSet::new(),
            opened: BTreeSet::new(),
            opened_more: false,
            policies: 0,
            granted_more: 0,
        }
    }

    /// What a lock says was reached, each entry let through once; all stages together.
    pub fn of_lock(lock: &Lock, most: usize) -> Summary {
        let mut summary = Summary::new(most);
        for entry in lock.entries() {
            let host = match &entry.target.host {
                Host::Name(name) => name.as_str().to_owned(),
                Host::Ip(ip) => ip.to_string(),
            };
            summary.total.tally.allowed += 1;
            match summary.place(Some(&host), Some(entry.target.port.get()), Proto::Tcp) {
                Some(host) => {
                    host.traffic.tally.allowed += 1;
                    host.vias.insert(via_word(entry.via.as_str()));
                }
                None => summary.others.tally.allowed += 1,
            }
        }
        summary
    }

    /// Adds a record. Of the filter its time, stages and hosts count. What is wrong with the record is in
    /// [`Reader::flaws`], and counted.
    ///
    /// A connection's bytes are counted where its end is within the filter.
    pub fn read<R: BufRead>(&mut self, reader: &mut Reader<R>, filter: &Filter) -> io::Result<()> {
        let mut reading = Reading::default();
        for record in reader.by_ref() {
            self.take(&mut reading, &record?, filter);
        }
        self.end(reading, reader);
        Ok(())
    }

    /// Adds one line, for whoever looks at each line too. `reading` is the record's own, and goes to [`Summary::end`].
    pub fn take(&mut self, reading: &mut Reading, record: &Record, filter: &Filter) {
        let Reading { run, open } = reading;
        // The end of a run is its end whether or not its time is asked for.
        *open &= record.event != Kind::RunEnd || *run != record.run;
        if !filter.covers(record) {
            return;
        }
        if *run != record.run {
            self.unfinished += u64::from(*open);
            self.begin(record);
            run.clone_from(&record.run);
            *open = record.event != Kind::RunEnd;
        }
        self.add(record, filter);
    }

    /// The record is at its end.
    pub fn end<R: BufRead>(&mut self, reading: Reading, reader: &Reader<R>) {
        self.unfinished += u64::from(reading.open);
        self.flaws += reader.flaws().len() as u64 + reader.more_flaws();
    }

    /// Adds an effective policy as it is stored beside a record, so that the rules can be named which decided nothing.
    /// What is no such policy is an error and changes nothing.
    pub fn add_policy(&mut self, canonical_json: &str) -> Result<(), serde_json::Error> {
        #[derive(Deserialize)]
        struct Stored {
            rules: Vec<Rule>,
        }
        #[derive(Deserialize)]
        struct Rule {
            rule: String,
        }
        let stored: Stored = serde_json::from_str(canonical_json)?;
        self.policies += 1;
        for Rule { rule } in stored.rules {
            if self.granted.contains(&rule) {
                continue;
            }
            if self.granted.len() < MAX_RULES && rule.len() <= MAX_NAME {
                self.granted.insert(rule);
            } else {
                self.granted_more += 1;
            }
        }
        Ok(())
    }

    /// The hosts: those first that were refused most often, then those that would have been, that failed, that were
    /// let through.
    pub fn hosts(&self) -> Vec<&HostSummary> {
        let mut hosts: Vec<&HostSummary> = self.hosts.values().flat_map(BTreeMap::values).collect();
        hosts.sort_unstable_by(|a, b| {
            let weight = |it: &HostSummary| {
                let Tally { allowed, denied, would_deny, errors } = it.traffic.tally;
                (denied, would_deny, errors, allowed)
            };
            weight(b).cmp(&weight(a)).then_with(|| a.key().cmp(&b.key()))
        });
        hosts
    }

    /// One host.
    pub fn host(&self, host: Option<&str>, port: Option<u16>, proto: Proto) -> Option<&HostSummary> {
        self.hosts.get(host.unwrap_or_default())?.get(&(port, proto))
    }

    /// The rules that decided, each with the attempts, the most used first.
    pub fn rules(&self) -> Vec<(&Used, u64)> {
        let mut rules: Vec<_> = self.rules.all.iter().map(|(used, count)| (used, *count)).collect();
        rules.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        rules
    }

    /// Attempts that were decided by more rules than are told apart.
    pub fn rules_more(&self) -> u64 {
        self.rules.more
    }

    /// The rules that decided about a host.
    pub fn rules_of(&self, host: &HostSummary) -> impl Iterator<Item = &Used> {
        host.rules.iter().filter_map(|number| self.rules.all.get(*number)).map(|(used, _)| used)
    }

    /// The rules of the stored policies that decided nothing, in their canonical spelling. `None`: no policy was added.
    pub fn unused(&self) -> Option<Vec<&str>> {
        if self.policies == 0 {
            return None;
        }
        let used: BTreeSet<String> = self.rules.all.iter().filter_map(|(used, _)| used.canonical()).collect();
        let idle = |rule: &&str| !used.contains(*rule) && !self.has_opened(rule);
        Some(self.granted.iter().map(String::as_str).filter(idle).collect())
    }

    /// Whether a rule is for an address to which an allowed name led; of more addresses than are kept, perhaps.
    fn has_opened(&self, rule: &str) -> bool {
        let all = Allowances { any: true, shared_suffix: true };
        let Ok(rule) = RuleSpec::parse(rule, Action::Allow, all) else { return false };
        let Some(net) = rule.pattern.net() else { return false };
        let covers = |(ip, port): &(IpAddr, u16)| {
            net.contains(ip) && Port::new(*port).is_some_and(|port| rule.ports.contains(port))
        };
        rule.action == Action::Allow && (self.opened_more || self.opened.iter().any(covers))
    }

    fn begin(&mut self, record: &Record) {
        self.runs += 1;
        let Some(stage) = record.stage.as_deref().filter(|stage| stage.len() <= MAX_NAME) else { return };
        if let Some(runs) = self.stages.get_mut(stage) {
            *runs += 1;
        } else if self.stages.len() < MAX_STAGES {
            self.stages.insert(stage.to_owned(), 1);
        }
    }

    fn add(&mut self, record: &Record, filter: &Filter) {
        self.lines += 1;
        let at = Moment::of(&record.ts);
        widen(&mut self.first, &mut self.last, at);
        match record.event {
            Kind::Decision | Kind::Dns if filter.names(record) => {
                self.total.tally.add(record);
                self.open(record);
                let rule = self.rules.number(record);
                match self.place_of(record) {
                    Some(host) => host.decided(record, at, rule),
                    None => self.others.tally.add(record),
                }
            }
            // The end of a request that could not be read tells of no host.
            Kind::Close if record.host.is_some() && filter.names(record) => {
                self.total.closed(record);
                match self.place_of(record) {
                    Some(host) => {
                        host.traffic.closed(record);
                        widen(&mut host.first, &mut host.last, at);
                    }
                    None => self.others.closed(record),
                }
            }
            Kind::Note if matches!(record.what.as_deref(), Some("tap_drops" | "turned_away")) => {
                self.unseen = self.unseen.saturating_add(record.count.unwrap_or(1));
            }
            Kind::Note if record.what.as_deref() == Some("policy_reload") => self.reloads += 1,
            Kind::RunEnd => self.unrecorded = self.unrecorded.saturating_add(record.dropped.unwrap_or(0)),
            _ => {}
        }
    }

    /// Where an allowed name led, if that takes a rule of its own.
    fn open(&mut self, record: &Record) {
        if record.verdict() != Some(Verdict::Allow) {
            return;
        }
        for ip in record.ips.iter().filter(|ip| classify(**ip) != AddrClass::Public) {
            let place = (*ip, record.port.unwrap_or_default());
            if self.opened.len() < MAX_RULES || self.opened.contains(&place) {
                self.opened.insert(place);
            } else {
                self.opened_more = true;
            }
        }
    }

    /// The host that a line tells of; `None` where it is one too many.
    fn place_of(&mut self, record: &Record) -> Option<&mut HostSummary> {
        self.place(record.host.as_deref(), record.port, spoken(record.proto.as_deref()))
    }

    fn place(&mut self, name: Option<&str>, port: Option<u16>, proto: Proto) -> Option<&mut HostSummary> {
        let host = name.unwrap_or_default();
        let key = (port, proto);
        let known = self.hosts.get(host).is_some_and(|ports| ports.contains_key(&key));
        if !known {
            if self.count >= self.most || host.len() > MAX_NAME {
                return None;
            }
            self.count += 1;
            let new = HostSummary::new(name.map(str::to_owned), port, proto);
            self.hosts.entry(host.to_owned()).or_default().insert(key, new);
        }
        self.hosts.get_mut(host)?.get_mut(&key)
    }
}

impl HostSummary {
    fn new(host: Option<String>, port: Option<u16>, proto: Proto) -> HostSummary {
        HostSummary {
            host,
            port,
            proto,
            traffic: Traffic::default(),
            reasons: BTreeMap::new(),
            vias: BTreeSet::new(),
            first: None,
            last: None,
            rules: Vec::new(),
            rules_more: false,
        }
    }

    /// By what it is found, and told apart from others.
    pub fn key(&self) -> (Option<&str>, Option<u16>, Proto) {
        (self.host.as_deref(), self.port, self.proto)
    }

    fn decided(&mut self, record: &Record, at: Option<Moment>, rule: Option<usize>) {
        self.traffic.tally.add(record);
        widen(&mut self.first, &mut self.last, at);
        if let Some(reason) = record.reason().filter(|_| record.verdict() != Some(Verdict::Allow)) {
            let count = self.reasons.entry(reason).or_default();
            *count = count.saturating_add(record.count.unwrap_or(1));
        }
        if let Some(via) = record.via.as_deref() {
            self.vias.insert(via_word(via));
        }
        if let Some(rule) = rule.filter(|rule| !self.rules.contains(rule)) {
            if self.rules.len() < MAX_RULES_OF_HOST {
                self.rules.push(rule);
            } else {
                self.rules_more = true;
            }
        }
    }
}

impl Traffic {
    fn closed(&mut self, record: &Record) {
        self.bytes_up = self.bytes_up.saturating_add(record.bytes_up.unwrap_or(0));
        self.bytes_down = self.bytes_down.saturating_add(record.bytes_down.unwrap_or(0));
    }
}

impl Used {
    /// As a stored policy writes it; `None` for what is no rule, or was cut.
    fn canonical(&self) -> Option<String> {
        let all = Allowances { any: true, shared_suffix: true };
        let action = match self.denies && !self.rule.starts_with('!') {
            true => Action::Deny,
            false => Action::Allow,
        };
        RuleSpec::parse(&self.rule, action, all).ok().map(|rule| rule.to_string())
    }
}

impl Rules {
    /// The number of the rule that decided, which is counted.
    fn number(&mut self, record: &Record) -> Option<usize> {
        let (rule, src) = (record.rule.as_deref()?, record.rule_src.as_deref().unwrap_or_default());
        let denies = record.reason() == Some(Reason::DenyRule);
        let count = record.count.unwrap_or(1);
        let is = |used: &Used| used.rule == rule && used.src == src && used.denies == denies;
        if self.last.and_then(|last| self.all.get(last)).is_none_or(|(used, _)| !is(used)) {
            self.last = self.find(rule, src, denies);
        }
        match self.last.and_then(|last| self.all.get_mut(last)) {
            Some((_, attempts)) => *attempts = attempts.saturating_add(count),
            None => self.more = self.more.saturating_add(count),
        }
        self.last
    }

    fn find(&mut self, rule: &str, src: &str, denies: bool) -> Option<usize> {
        if rule.len() > MAX_NAME || src.len() > MAX_NAME {
            return None;
        }
        let used = Used { rule: rule.to_owned(), src: src.to_owned(), denies };
        if let Some(number) = self.numbers.get(&used) {
            return Some(*number);
        }
        let number = self.all.len();
        (number < MAX_RULES).then(|| {
            self.all.push((used.clone(), 0));
            self.numbers.insert(used, number);
            number
        })
    }
}

/// Attempts by verdict. A line that stands for several counts as several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Verdict `allow`.
    pub allowed: u64,
    /// Verdict `deny`.
    pub denied: u64,
    /// Verdict `would_deny`.
    pub would_deny: u64,
    /// Verdict `error`.
    pub errors: u64,
}

impl Tally {
    /// Counts one line.
    pub fn add(&mut self, record: &Record) {
        let count = match record.verdict() {
            Some(Verdict::Allow) => &mut self.allowed,
            Some(Verdict::Deny) => &mut self.denied,
            Some(Verdict::WouldDeny) => &mut self.would_deny,
            Some(Verdict::Error) => &mut self.errors,
            None => return,
        };
        *count = count.saturating_add(record.count.unwrap_or(1));
    }

    /// How many got a verdict.
    pub fn of(&self, verdict: Verdict) -> u64 {
        match verdict {
            Verdict::Allow => self.allowed,
            Verdict::Deny => self.denied,
            Verdict::WouldDeny => self.would_deny,
            Verdict::Error => self.errors,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} allowed, {} denied", self.allowed, self.denied)?;
        if self.would_deny > 0 {
            write!(f, ", {} would be denied", self.would_deny)?;
        }
        if self.errors > 0 {
            write!(f, ", {} failed", self.errors)?;
        }
        Ok(())
    }
}

fn widen(first: &mut Option<Moment>, last: &mut Option<Moment>, at: Option<Moment>) {
    let Some(at) = at else { return };
    if first.is_none_or(|first| at < first) {
        *first = Some(at);
    }
    if last.is_none_or(|last| at > last) {
        *last = Some(at);
    }
}

/// What a line's `proto` says; nothing is TCP. A word that is none counts as 255, which IANA has reserved.
fn spoken(word: Option<&str>) -> Proto {
    match word {
        None => Proto::Tcp,
        Some("udp") => Proto::Udp,
        Some(number) => Proto::Other(number.parse().unwrap_or(u8::MAX)),
    }
}

/// The ways in that a record knows.
const VIAS: [&str; 8] = ["connect", "http", "transparent", "socks5", "dns", "direct", "forward", "selftest"];

fn via_word(word: &str) -> &'static str {
    VIAS.into_iter().find(|via| *via == word).unwrap_or("other")
}

#[cfg(test)]
mod tests;

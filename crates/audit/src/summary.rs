//! What many records say together: per host who was let through and who was not, and which rules did it.
//!
//! Proves nothing and prints nothing. Memory is bounded whatever the records hold, and the sums are exact. Of hosts beyond the bound
//! those are named that stand first in one of the orders of [`Sort`]; all others are counted together.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead};

use exeat_policy::file::stage_fault;
use exeat_policy::{Host, Reason, Verdict};
use exeat_record::lock::{Lock, MAX_ENTRIES, MAX_STAGES as MAX_STAGES_OF_LOCK, StageName};
use exeat_record::{Proto, Via};

use crate::Moment;
use crate::query::{Filter, Flaw, Kind, Reader, Record};

mod hosts;
mod outcome;
mod rules;
mod tally;
mod write;

pub use hosts::{Few, Reached, Sightings};
pub(crate) use outcome::Cited;
pub use outcome::Outcome;
pub use rules::{Approved, Effect, PolicyOf, RuleSummary, Unused, UnusedRules, Used};
pub use tally::{Sort, Tally, Traffic};
pub use write::{Form, write};
pub(crate) use write::{code, list, target, without_end};

use hosts::Hosts;
use rules::{Policies, Rules};
use tally::{MAX_NAME, via_word, widen};

/// Hosts, each with its port and protocol, that are named of each order where the caller asks for no other number.
pub const MAX_HOSTS: usize = 10_000;

/// Stages that are told apart.
const MAX_STAGES: usize = 100;

/// Stages of attempts that are told apart: as many as a lock may have.
const MAX_STAGE_NUMBERS: usize = MAX_STAGES_OF_LOCK;
/// Runs of which it is kept how they began.
const MAX_STARTS: usize = 8;
/// Files of one run's policy that are kept.
const MAX_FILES: usize = 100;

/// Open connections of one run that are followed; more than a proxy serves at once.
const MAX_OPEN: usize = 1 << 16;

/// What records say together. Read them with [`Summary::read`], and then call [`Summary::finish`].
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
    /// Runs whose decisions another proxy has on record.
    pub elsewhere: u64,
    /// The first line's time.
    pub first: Option<Moment>,
    /// The last line's.
    pub last: Option<Moment>,
    /// All together.
    pub total: Traffic,
    /// Hosts beyond those that are told apart, together.
    pub others: Traffic,
    /// How many hosts those are; known after [`Summary::finish`].
    pub other_hosts: u64,
    /// Flaws of the records.
    pub flaws: u64,
    hosts: Hosts,
    rules: Rules,
    policies: Policies,
    /// A part of the lines was asked for, so that a rule without one may have been used.
    narrowed: bool,
    /// The first program that asked for what was not let through.
    program: Option<String>,
    /// There was another one.
    has_programs: bool,
    /// The first lines of the first runs.
    pub(crate) starts: Vec<Record>,
    pub(crate) more_starts: u64,
    /// The stages by their numbers, those first that were read first.
    pub(crate) stage_numbers: BTreeMap<StageName, usize>,
    /// The numbers of stages with a run that began, and whether one of them decided for itself.
    pub(crate) started: BTreeMap<usize, bool>,
}

/// A record that is being added line by line.
#[derive(Debug, Default)]
pub struct Reading {
    /// What is known of the run that the last line belonged to.
    run: RunFacts,
    /// A line of it was within the filter.
    counted: bool,
    /// It has ended.
    ended: bool,
    /// Its connections that are open.
    conns: HashMap<u64, Conn>,
    /// Connections that were let through beyond those; whether they have ended is not followed.
    unfollowed: u64,
    /// What is counted of this run.
    traffic: Traffic,
}

/// What the lines of a run say of the run.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunFacts {
    /// Its name, as the record has it.
    pub run: String,
    /// Its stage.
    pub stage: Option<String>,
    /// Where it was started.
    pub dir: Option<String>,
    /// The files that its policy was made from, the first hundred: role, name, digest.
    pub files: Vec<(String, String, String)>,
    /// Whether its policy was read again.
    pub reloaded: bool,
}

/// An open connection.
#[derive(Debug)]
struct Conn {
    host: Option<String>,
    port: Option<u16>,
    proto: Proto,
    rule: Option<usize>,
    /// It was left to another proxy, whose address the record has.
    through: bool,
    bytes_up: u64,
    bytes_down: u64,
}

impl Default for Summary {
    fn default() -> Summary {
        Summary::new(MAX_HOSTS)
    }
}

impl Summary {
    /// One that keeps the first `most` hosts of each order.
    pub fn new(most: usize) -> Summary {
        Summary {
            lines: 0,
            runs: 0,
            unfinished: 0,
            stages: BTreeMap::new(),
            unrecorded: 0,
            unseen: 0,
            elsewhere: 0,
            first: None,
            last: None,
            total: Traffic::default(),
            others: Traffic::default(),
            other_hosts: 0,
            flaws: 0,
            hosts: Hosts::new(most, &Sort::PRINTED),
            rules: Rules::default(),
            policies: Policies::default(),
            narrowed: false,
            program: None,
            has_programs: false,
            starts: Vec::new(),
            more_starts: 0,
            stage_numbers: BTreeMap::new(),
            started: BTreeMap::new(),
        }
    }

    /// Makes one for a policy or a lock: of many hosts it keeps those that were let through, as many as a lock may have.
    pub fn for_grants() -> Summary {
        Summary { hosts: Hosts::new(MAX_ENTRIES, &[Sort::Allowed]), ..Summary::new(MAX_ENTRIES) }
    }

    /// Returns the number of a line's stage; [`MAX_STAGE_NUMBERS`] stands for all beyond. A name that no run can have is none.
    fn stage_number(&mut self, record: &Record) -> usize {
        let stage = record.stage.clone().filter(|stage| stage_fault(stage).is_none());
        let next = self.stage_numbers.len();
        match self.stage_numbers.get(&stage) {
            Some(number) => *number,
            None if next >= MAX_STAGE_NUMBERS => MAX_STAGE_NUMBERS,
            None => *self.stage_numbers.entry(stage).or_insert(next),
        }
    }

    /// Notes how a run began.
    fn start(&mut self, record: &Record) {
        let stage = self.stage_number(record);
        *self.started.entry(stage).or_default() |= record.proxy.is_none();
        self.elsewhere += u64::from(record.proxy.is_some());
        if self.starts.len() < MAX_STARTS {
            self.starts.push(record.clone());
        } else {
            self.more_starts += 1;
        }
    }

    /// What a lock says was reached, each entry let through once; all stages together.
    ///
    /// # Errors
    ///
    /// Those of [`Summary::finish`].
    pub fn of_lock(lock: &Lock, most: usize) -> io::Result<Summary> {
        let mut summary = Summary::new(most);
        for entry in lock.entries() {
            let host = match &entry.target.host {
                Host::Name(name) => name.as_str().to_owned(),
                Host::Ip(ip) => ip.to_string(),
            };
            summary.total.tally.allowed += 1;
            let row = summary.hosts.row(Some(&host), Some(entry.target.port.get()), Proto::Tcp)?;
            row.traffic.tally.allowed += 1;
            let via = via_word(entry.via.as_str());
            let outcome = Outcome::new(Verdict::Allow, Reason::Rule, Some(via));
            row.outcomes.entry(outcome).or_default().add(1, None);
        }
        summary.finish()?;
        Ok(summary)
    }

    /// Adds a record, and gives what it says of its last run. Of the filter its time, stages and hosts count. What is wrong with the record is
    /// in [`Reader::flaws`], and counted.
    ///
    /// A connection's bytes are counted where its end is within the filter.
    ///
    /// # Errors
    ///
    /// Those of reading, and those of a temporary file where there are many hosts.
    pub fn read<R: BufRead>(&mut self, reader: &mut Reader<R>, filter: &Filter) -> io::Result<RunFacts> {
        let mut reading = Reading::default();
        for record in reader.by_ref() {
            self.take(&mut reading, &record?, filter)?;
        }
        let facts = std::mem::take(&mut reading.run);
        self.end(reading, reader)?;
        Ok(facts)
    }

    /// Adds one line, for whoever looks at each line too. `reading` is the record's own, and goes to [`Summary::end`].
    ///
    /// # Errors
    ///
    /// Those of a temporary file where there are many hosts.
    pub fn take(&mut self, reading: &mut Reading, record: &Record, filter: &Filter) -> io::Result<()> {
        if !filter.is_of_stage(record) {
            return Ok(());
        }
        self.narrowed |= !filter.hosts.is_empty() || filter.since.is_some() || filter.until.is_some();
        if reading.run.run != record.run {
            self.end_run(reading)?;
            reading.run.run.clone_from(&record.run);
            reading.run.stage.clone_from(&record.stage);
        }
        reading.note(record);
        if !filter.is_of_time(record) {
            // A connection that began before the time asked for may end within it, or have no end at all.
            let early = filter.since.is_some_and(|since| Moment::of(&record.ts).is_some_and(|at| at < since));
            if early && record.is_decision() && filter.names(record) {
                reading.open(record, None);
            } else if early && record.event == Kind::Close {
                reading.conns.remove(&record.conn.unwrap_or_default());
            }
            return Ok(());
        }
        if !reading.counted {
            reading.counted = true;
            self.begin(record);
        }
        self.add(reading, record, filter)
    }

    /// The run that the last line belonged to is over, as far as it was read: gives what is counted of it. The next line begins another one.
    ///
    /// # Errors
    ///
    /// Those of a temporary file where there are many hosts.
    pub fn end_run(&mut self, reading: &mut Reading) -> io::Result<Traffic> {
        let Reading { counted, ended, conns, unfollowed, mut traffic, .. } = std::mem::take(reading);
        if !counted {
            return Ok(traffic);
        }
        self.unfinished += u64::from(!ended);
        for conn in conns.into_values() {
            let so_far = Traffic {
                open: 1,
                bytes_up: conn.bytes_up,
                bytes_down: conn.bytes_down,
                ..Traffic::default()
            };
            let row = self.hosts.row(conn.host.as_deref(), conn.port, conn.proto)?;
            row.traffic.merge(&so_far);
            for (sum, more) in row.so_far.iter_mut().zip([conn.bytes_up, conn.bytes_down]) {
                *sum = sum.saturating_add(more);
            }
            self.rules.ended(conn.rule, conn.bytes_up, false);
            traffic.merge(&so_far);
        }
        let unfollowed = Traffic { open: unfollowed, ..Traffic::default() };
        self.others.merge(&unfollowed);
        traffic.merge(&unfollowed);
        self.total.merge(&traffic);
        Ok(traffic)
    }

    /// The record is at its end: gives what is counted of its last run.
    ///
    /// # Errors
    ///
    /// Those of a temporary file where there are many hosts.
    pub fn end<R: BufRead>(&mut self, mut reading: Reading, reader: &Reader<R>) -> io::Result<Traffic> {
        // That a run has no end is counted with the runs.
        let flaws = reader.flaws().iter().filter(|flaw| !matches!(flaw, Flaw::Unfinished { .. }));
        self.flaws += flaws.count() as u64 + reader.more_flaws();
        self.end_run(&mut reading)
    }

    /// All records were added: decides which hosts are named. Of more hosts than are kept, [`Summary::hosts`] is not right before.
    ///
    /// # Errors
    ///
    /// Those of a temporary file where there are many hosts.
    pub fn finish(&mut self) -> io::Result<()> {
        let (others, hosts) = self.hosts.finish()?;
        self.others.merge(&others);
        self.other_hosts += hosts;
        Ok(())
    }

    /// Adds an effective policy as it is stored beside a record, so that the rules can be named which decided nothing.
    /// What is no such policy is an error and changes nothing.
    ///
    /// # Errors
    ///
    /// The text is no stored policy.
    pub fn add_policy(&mut self, canonical_json: &str, of: PolicyOf<'_>) -> Result<(), serde_json::Error> {
        self.policies.add(canonical_json, of)
    }

    /// The hosts in no order.
    pub(crate) fn all_hosts(&self) -> impl Iterator<Item = &Reached> {
        self.hosts.all()
    }

    /// The hosts in an order.
    pub fn hosts(&self, sort: Sort) -> Vec<&Reached> {
        let mut hosts: Vec<&Reached> = self.hosts.all().collect();
        hosts::sort(&mut hosts, sort);
        hosts
    }

    /// The host that was sent most, if any was sent anything.
    pub fn most_up(&self) -> Option<&Reached> {
        let key =
            |host: &&Reached| (host.traffic.bytes_up, std::cmp::Reverse(host.key().0.map(str::to_owned)));
        self.hosts.all().filter(|host| host.traffic.bytes_up > 0).max_by_key(key)
    }

    /// One host.
    pub fn host(&self, host: Option<&str>, port: Option<u16>, proto: Proto) -> Option<&Reached> {
        self.hosts.get(host, port, proto)
    }

    /// The rules that decided, the most used first.
    pub fn rules(&self) -> Vec<&RuleSummary> {
        let mut rules: Vec<_> = self.rules.all.iter().collect();
        rules.sort_unstable_by(|a, b| b.attempts.cmp(&a.attempts).then_with(|| a.used.cmp(&b.used)));
        rules
    }

    /// Attempts that were decided by more rules than are told apart.
    pub fn rules_more(&self) -> u64 {
        self.rules.more
    }

    /// The rules that decided about a host.
    pub fn rules_of(&self, host: &Reached) -> impl Iterator<Item = &Used> {
        host.rules.kept.iter().filter_map(|number| self.rules.all.get(*number)).map(|it| &it.used)
    }

    /// What rules let through, by who approved them; `None` stands for rules that nobody approved.
    pub fn approvals(&self) -> BTreeMap<Option<&str>, Approved> {
        self.rules.approvals()
    }

    /// The rules of the stored policies that decided nothing.
    pub fn unused(&self) -> UnusedRules<'_> {
        if self.narrowed { UnusedRules::NotAsked } else { self.policies.unused(&self.rules) }
    }

    /// Rules of stored policies beyond those that are told apart.
    pub fn policy_rules_more(&self) -> u64 {
        self.policies.more
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

    fn add(&mut self, reading: &mut Reading, record: &Record, filter: &Filter) -> io::Result<()> {
        self.lines += 1;
        let at = Moment::of(&record.ts);
        widen(&mut self.first, &mut self.last, at);
        match record.event {
            Kind::Decision | Kind::Dns if filter.names(record) => {
                reading.traffic.decided(record);
                if let (Some(exe), false) = (&record.exe, record.is_let_through()) {
                    self.has_programs |= self.program.get_or_insert_with(|| exe.clone()) != exe;
                }
                self.policies.open(record);
                let rule = self.rules.number(record);
                let proto = spoken(record.proto.as_deref());
                let outcome = Outcome::from_decision(record, self.stage_number(record));
                let (attempt, number) = (record.attempt(), (self.runs, self.lines));
                let row = self.hosts.row(record.host.as_deref(), record.port, proto)?;
                row.decided(record, at, rule, outcome);
                if let Some(attempt) = &attempt {
                    row.attempted(record, attempt);
                }
                // A service of this machine that was refused is nothing that a policy could grant.
                let is_cited = match &attempt {
                    Some(attempt) => attempt.via != Via::Forward || attempt.is_let_through(),
                    None => record.event == Kind::Dns && record.verdict() == Some(Verdict::Deny),
                };
                if is_cited {
                    row.cited.add(record, number.0, number.1);
                }
                reading.open(record, rule);
            }
            Kind::Progress => {
                if let Some(conn) = record.conn.and_then(|conn| reading.conns.get_mut(&conn)) {
                    conn.bytes_up = conn.bytes_up.max(record.bytes_up.unwrap_or(0));
                    conn.bytes_down = conn.bytes_down.max(record.bytes_down.unwrap_or(0));
                }
            }
            Kind::Close => self.close(reading, record, at, filter)?,
            Kind::Note if matches!(record.what.as_deref(), Some("tap_drops" | "turned_away")) => {
                self.unseen = self.unseen.saturating_add(record.count.unwrap_or(1));
            }
            Kind::RunEnd => self.unrecorded = self.unrecorded.saturating_add(record.dropped.unwrap_or(0)),
            Kind::RunStart => self.start(record),
            _ => {}
        }
        Ok(())
    }

    /// Counts the end of a connection, with the host that its decision named.
    fn close(
        &mut self,
        reading: &mut Reading,
        record: &Record,
        at: Option<Moment>,
        filter: &Filter,
    ) -> io::Result<()> {
        let conn = record.conn.and_then(|conn| reading.conns.remove(&conn));
        // The end of a request that could not be read tells of no host.
        if conn.is_none() && (record.host.is_none() || !filter.names(record)) {
            return Ok(());
        }
        let failed = record.is_failed();
        let ended = Traffic {
            tally: Tally { failed: u64::from(failed), ..Tally::default() },
            bytes_up: record.bytes_up.unwrap_or(0),
            bytes_down: record.bytes_down.unwrap_or(0),
            ..Traffic::default()
        };
        reading.traffic.merge(&ended);
        let (host, port, proto) = match &conn {
            Some(conn) => (conn.host.as_deref(), conn.port, conn.proto),
            None => (record.host.as_deref(), record.port, Proto::Tcp),
        };
        let row = self.hosts.row(host, port, proto)?;
        row.traffic.merge(&ended);
        widen(&mut row.first, &mut row.last, at);
        if failed {
            let outcome = Outcome::new(Verdict::Error, failure(record), None);
            row.outcomes.entry(outcome).or_default().add(1, at);
        }
        // Where the name is checked, nothing passes before a hello that was read.
        row.tls_unseen |= record.port == Some(443)
            && record.sni_ok.is_none()
            && record.bytes_up.unwrap_or(0) > 0
            && record.bytes_down.unwrap_or(0) > 0;
        if let (Some(conn), Some(ip)) = (&conn, record.ip)
            && !conn.through
        {
            row.addresses.add(ip);
        }
        self.rules.ended(conn.and_then(|conn| conn.rule), ended.bytes_up, failed);
        Ok(())
    }
}

impl Reading {
    /// What is known of the run that the last line belonged to.
    pub fn facts(&self) -> &RunFacts {
        &self.run
    }

    /// Notes what a line says of its run.
    fn note(&mut self, record: &Record) {
        match record.event {
            Kind::RunStart => self.run.dir.clone_from(&record.dir),
            Kind::Policy if self.run.files.len() < MAX_FILES => {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                self.run.files.push((text(&record.role), text(&record.file), text(&record.file_sha256)));
            }
            Kind::Note => self.run.reloaded |= record.what.as_deref() == Some("policy_reload"),
            // The end of a run is its end whether or not its time is asked for.
            Kind::RunEnd => self.ended = true,
            _ => {}
        }
    }

    /// Follows a connection that was let through.
    fn open(&mut self, record: &Record, rule: Option<usize>) {
        let Some(conn) = record.conn.filter(|_| record.is_let_through()) else { return };
        if self.conns.len() >= MAX_OPEN && !self.conns.contains_key(&conn) {
            self.unfollowed += 1;
            return;
        }
        let conn_of = Conn {
            host: record.host.clone(),
            port: record.port,
            proto: spoken(record.proto.as_deref()),
            rule,
            through: record.upstream.is_some(),
            bytes_up: 0,
            bytes_down: 0,
        };
        self.conns.insert(conn, conn_of);
    }
}

/// Why a connection was not made: its `error` begins with the word.
fn failure(record: &Record) -> Reason {
    let word = record.error.as_deref().and_then(|error| error.split(':').next());
    word.and_then(|word| word.parse().ok()).unwrap_or(Reason::ConnectError)
}

/// What a line's `proto` says; nothing is TCP. A word that is none counts as 255, which IANA has reserved.
fn spoken(word: Option<&str>) -> Proto {
    match word {
        None => Proto::Tcp,
        Some("udp") => Proto::Udp,
        Some(number) => Proto::Other(number.parse().unwrap_or(u8::MAX)),
    }
}

#[cfg(test)]
mod tests;

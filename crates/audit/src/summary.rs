//! Summarizes many records: who was let through to each host and who was not, and by which rules.
//!
//! Proves nothing and prints nothing. Memory is bounded whatever the records contain, and the sums are exact. Beyond the bound, only the
//! hosts that come first in one of the orders of [`Sort`] are named; all others are counted together.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead};

use exeat_policy::file::stage_fault;
use exeat_policy::{Host, Reason, Verdict};
use exeat_record::Proto;
use exeat_record::lock::{Lock, MAX_ENTRIES, MAX_STAGES as MAX_STAGES_OF_LOCK, StageName};

use crate::Moment;
use crate::query::{Filter, Flaw, LineKind, Reader, Record};

mod hosts;
mod outcome;
mod rules;
mod tally;
mod write;

pub use hosts::{Few, HostSummary, MAX_HOSTS, Sightings};
pub use outcome::AttemptOutcome;
pub(crate) use outcome::Cited;
pub use rules::{Approved, PolicyOf, RuleSummary, Unused, UnusedRules, Used};
pub use tally::{Sort, Tally, Traffic};
pub use write::{Form, write};
pub(crate) use write::{code, list, target, without_end};

use hosts::Hosts;
use rules::{Approvals, Policies, Rules};
use tally::{MAX_NAME, widen};

/// The most stages that are kept apart.
const MAX_STAGES: usize = 100;

/// The most stages of attempts that are kept apart: as many as a lock may have.
const MAX_STAGE_NUMBERS: usize = MAX_STAGES_OF_LOCK;
/// The most runs whose start is kept.
const MAX_STARTS: usize = 8;
/// The most files of one run's policy that are kept.
const MAX_FILES: usize = 100;

/// The most open connections of one run that are followed; more than a proxy serves at once.
const MAX_OPEN: usize = 1 << 16;

/// A summary of records. Call [`Summary::read`] for each of them, and then [`Summary::finish`].
#[derive(Debug, Default)]
pub struct Summary {
    /// Lines within the filter.
    pub lines: u64,
    /// Runs with such a line.
    pub runs: u64,
    /// Runs without an end.
    pub unfinished: u64,
    /// Runs by stage; without runs that have no stage, or whose stage is beyond the bound.
    pub stages: BTreeMap<String, u64>,
    /// Attempts that the records only count, in no line of their own.
    pub unrecorded: u64,
    /// Packets and connections that were not examined (notes `tap_drops` and `turned_away`).
    pub unseen: u64,
    /// Runs whose decisions are in another proxy's record.
    pub elsewhere: u64,
    /// The time of the first line.
    pub first: Option<Moment>,
    /// The time of the last line.
    pub last: Option<Moment>,
    /// The sum of all hosts.
    pub total: Traffic,
    /// The sum of the hosts that are not named.
    pub others: Traffic,
    /// The number of hosts that are not named; known after [`Summary::finish`].
    pub other_hosts: u64,
    /// Flaws of the records.
    pub flaws: u64,
    hosts: Hosts,
    rules: Rules,
    approvals: Approvals,
    policies: Policies,
    /// Whether only some lines were selected, so that a rule without one may still have been used.
    narrowed: bool,
    /// Whether rows keep the evidence for a policy or a lock.
    for_grants: bool,
    /// The first program that asked for something that was not let through.
    program: Option<String>,
    /// Whether other programs did, too.
    has_programs: bool,
    /// The first lines of the first runs.
    pub(crate) starts: Vec<Record>,
    pub(crate) more_starts: u64,
    /// The number of each stage, in the order of reading.
    pub(crate) stage_numbers: BTreeMap<StageName, usize>,
    /// The numbers of stages with a run that began, and whether such a run decided for itself.
    pub(crate) started: BTreeMap<usize, bool>,
}

/// The state of a record that is being added line by line.
#[derive(Debug, Default)]
pub struct Reading {
    /// The run of the last line.
    run: RunFacts,
    /// Whether one of its lines was within the filter.
    counted: bool,
    /// Whether it has ended.
    ended: bool,
    /// Its open connections.
    conns: HashMap<u64, Conn>,
    /// Connections that were let through beyond those; their ends are not followed.
    unfollowed: u64,
    /// The counts of this run.
    traffic: Traffic,
}

/// Facts about a run from its lines.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunFacts {
    /// Its name, as the record has it.
    pub run: String,
    /// Its stage.
    pub stage: Option<String>,
    /// The directory in which it was started.
    pub dir: Option<String>,
    /// The files of its policy, the first hundred: role, name, digest.
    pub files: Vec<(String, String, String)>,
    /// Whether its policy was reloaded.
    pub reloaded: bool,
}

/// An open connection.
#[derive(Debug)]
struct Conn {
    host: Option<String>,
    port: Option<u16>,
    proto: Proto,
    rule: Option<usize>,
    approver: Option<usize>,
    /// Whether it was left to another proxy, whose address the record has.
    through: bool,
    bytes_up: u64,
    bytes_down: u64,
}

impl Summary {
    /// Creates a summary that keeps the first `most` hosts of each order.
    pub fn new(most: usize) -> Summary {
        Summary { hosts: Hosts::new(most, &Sort::PRINTED), ..Summary::default() }
    }

    /// Creates a summary for a policy or a lock: it keeps hosts that were let through, as many as a lock may have.
    pub fn for_grants() -> Summary {
        let hosts = Hosts::new(MAX_ENTRIES, &[Sort::Allowed]);
        Summary { hosts, for_grants: true, ..Summary::new(MAX_ENTRIES) }
    }

    /// Summarizes one run for a policy or a lock.
    #[cfg(test)]
    pub(crate) fn of_records(records: &[Record]) -> Summary {
        let mut summary = Summary::for_grants();
        let mut reading = Reading::default();
        for record in records {
            summary.take(&mut reading, record, &Filter::default()).unwrap();
        }
        summary.end_run(&mut reading).unwrap();
        summary.finish().unwrap();
        summary
    }

    /// Returns the number of a line's stage; [`MAX_STAGE_NUMBERS`] stands for all beyond, and for names that no run can have.
    fn stage_number(&mut self, record: &Record) -> usize {
        let stage = record.stage.clone().filter(|stage| stage_fault(stage).is_none());
        let next = self.stage_numbers.len();
        match self.stage_numbers.get(&stage) {
            Some(number) => *number,
            None if next >= MAX_STAGE_NUMBERS => MAX_STAGE_NUMBERS,
            None => *self.stage_numbers.entry(stage).or_insert(next),
        }
    }

    /// Notes the start of a run.
    fn start(&mut self, record: &Record) {
        self.elsewhere += u64::from(record.proxy.is_some());
        if !self.for_grants {
            return;
        }
        let stage = self.stage_number(record);
        *self.started.entry(stage).or_default() |= record.proxy.is_none();
        if self.starts.len() < MAX_STARTS {
            self.starts.push(record.clone());
        } else {
            self.more_starts += 1;
        }
    }

    /// Creates a summary of a lock, with each entry let through once, for all stages together.
    ///
    /// # Errors
    ///
    /// Fails as [`Summary::finish`] does.
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
            let outcome = AttemptOutcome::new(Verdict::Allow, Reason::Rule, Some(entry.via.as_str()));
            row.outcomes.entry(outcome).or_default().add(1, None);
        }
        summary.finish()?;
        Ok(summary)
    }

    /// Adds a record, and returns the facts about its last run. Only the filter's time, stages and hosts are used. The flaws of the record
    /// are in [`Reader::flaws`], and counted.
    ///
    /// A connection's bytes are counted if its end is within the filter.
    ///
    /// # Errors
    ///
    /// Fails if the record cannot be read, or if many hosts need a temporary file and it cannot be used.
    pub fn read<R: BufRead>(&mut self, reader: &mut Reader<R>, filter: &Filter) -> io::Result<RunFacts> {
        let mut reading = Reading::default();
        for record in reader.by_ref() {
            self.take(&mut reading, &record?, filter)?;
        }
        let facts = std::mem::take(&mut reading.run);
        self.end(reading, reader)?;
        Ok(facts)
    }

    /// Adds one line, for a caller that also uses the lines itself. `reading` is the record's own state; pass it to [`Summary::end`].
    ///
    /// # Errors
    ///
    /// Fails if many hosts need a temporary file and it cannot be used.
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
            // A connection that began before the selected time may end within it, or stay open.
            let early =
                filter.since.is_some_and(|since| Moment::parse(&record.ts).is_some_and(|at| at < since));
            if early && record.is_decision() && filter.names(record) {
                reading.open(record, None, None);
            } else if early && record.event == LineKind::Close {
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

    /// Ends the run of the last line and returns its counts. The next line begins another run.
    ///
    /// # Errors
    ///
    /// Fails if many hosts need a temporary file and it cannot be used.
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
            self.approvals.ended(conn.approver, conn.bytes_up);
            traffic.merge(&so_far);
        }
        let unfollowed = Traffic { open: unfollowed, ..Traffic::default() };
        self.others.merge(&unfollowed);
        traffic.merge(&unfollowed);
        self.total.merge(&traffic);
        Ok(traffic)
    }

    /// Ends a record and returns the counts of its last run.
    ///
    /// # Errors
    ///
    /// Fails if many hosts need a temporary file and it cannot be used.
    pub fn end<R: BufRead>(&mut self, mut reading: Reading, reader: &Reader<R>) -> io::Result<Traffic> {
        // Runs without an end are counted separately.
        let flaws = reader.flaws().iter().filter(|flaw| !matches!(flaw, Flaw::Unfinished { .. }));
        self.flaws += flaws.count() as u64 + reader.more_flaws();
        self.end_run(&mut reading)
    }

    /// Ends the summary and chooses which hosts are named. Before this, [`Summary::hosts`] may be wrong if there are many.
    ///
    /// # Errors
    ///
    /// Fails if many hosts need a temporary file and it cannot be used.
    pub fn finish(&mut self) -> io::Result<()> {
        let (others, hosts) = self.hosts.finish()?;
        self.others.merge(&others);
        self.other_hosts += hosts;
        Ok(())
    }

    /// Adds an effective policy that is stored beside a record, so that rules that decided nothing can be named.
    ///
    /// # Errors
    ///
    /// Fails without effect if the text is not a stored policy.
    pub fn add_policy(&mut self, canonical_json: &str, of: PolicyOf<'_>) -> Result<(), serde_json::Error> {
        self.policies.add(canonical_json, of)
    }

    /// Returns the hosts, unsorted.
    pub(crate) fn all_hosts(&self) -> impl Iterator<Item = &HostSummary> {
        self.hosts.all()
    }

    /// Returns the hosts in an order.
    pub fn hosts(&self, sort: Sort) -> Vec<&HostSummary> {
        let mut hosts: Vec<&HostSummary> = self.hosts.all().collect();
        hosts::sort(&mut hosts, sort);
        hosts
    }

    /// Returns the host that was sent most, if any was sent anything.
    pub fn most_up(&self) -> Option<&HostSummary> {
        let key =
            |host: &&HostSummary| (host.traffic.bytes_up, std::cmp::Reverse(host.key().0.map(str::to_owned)));
        self.hosts.all().filter(|host| host.traffic.bytes_up > 0).max_by_key(key)
    }

    /// Returns the row of a host.
    pub fn host(&self, host: Option<&str>, port: Option<u16>, proto: Proto) -> Option<&HostSummary> {
        self.hosts.get(host, port, proto)
    }

    /// Returns the rules that decided, the most used first.
    pub fn rules(&self) -> Vec<&RuleSummary> {
        let mut rules: Vec<_> = self.rules.all.iter().collect();
        rules.sort_unstable_by(|a, b| b.attempts.cmp(&a.attempts).then_with(|| a.used.cmp(&b.used)));
        rules
    }

    /// Returns the number of attempts whose rule is beyond the bound.
    pub fn rules_more(&self) -> u64 {
        self.rules.more
    }

    /// Returns the rules that decided about a host.
    pub fn rules_of(&self, host: &HostSummary) -> impl Iterator<Item = &Used> {
        host.rules.kept.iter().filter_map(|number| self.rules.all.get(*number)).map(|it| &it.used)
    }

    /// Returns what was let through, by approver; `None` stands for what nobody approved, as in [`Traffic::unapproved`].
    pub fn approvals(&self) -> BTreeMap<Option<&str>, Approved> {
        self.approvals.all()
    }

    /// Returns the number of attempts that were let through and whose approver is beyond the bound.
    pub fn approvals_more(&self) -> u64 {
        self.approvals.more
    }

    /// Returns the rules of the stored policies that decided nothing.
    pub fn unused(&self) -> UnusedRules<'_> {
        if self.narrowed { UnusedRules::NotAsked } else { self.policies.unused(&self.rules) }
    }

    /// Returns the number of rules of stored policies beyond the bound.
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
        let at = Moment::parse(&record.ts);
        widen(&mut self.first, &mut self.last, at);
        match record.event {
            LineKind::Decision | LineKind::Dns if filter.names(record) => {
                reading.traffic.decided(record);
                if let (Some(exe), false) = (&record.exe, record.is_let_through()) {
                    self.has_programs |= self.program.get_or_insert_with(|| exe.clone()) != exe;
                }
                self.policies.open(record);
                let rule = self.rules.number(record);
                let approver = self.approvals.number(record);
                let proto = parse_proto(record.proto.as_deref());
                let stage = if self.for_grants { self.stage_number(record) } else { 0 };
                let row = self.hosts.row(record.host.as_deref(), record.port, proto)?;
                row.decided(record, at, rule, AttemptOutcome::from_decision(record, stage));
                if self.for_grants {
                    row.note_for_grants(record, self.runs, self.lines);
                }
                reading.open(record, rule, approver);
            }
            LineKind::Progress => {
                if let Some(conn) = record.conn.and_then(|conn| reading.conns.get_mut(&conn)) {
                    conn.bytes_up = conn.bytes_up.max(record.bytes_up.unwrap_or(0));
                    conn.bytes_down = conn.bytes_down.max(record.bytes_down.unwrap_or(0));
                }
            }
            LineKind::Close => self.close(reading, record, at, filter)?,
            LineKind::Note if matches!(record.what.as_deref(), Some("tap_drops" | "turned_away")) => {
                self.unseen = self.unseen.saturating_add(record.count.unwrap_or(1));
            }
            LineKind::RunEnd => self.unrecorded = self.unrecorded.saturating_add(record.dropped.unwrap_or(0)),
            LineKind::RunStart => self.start(record),
            _ => {}
        }
        Ok(())
    }

    /// Counts the end of a connection for the host of its decision.
    fn close(
        &mut self,
        reading: &mut Reading,
        record: &Record,
        at: Option<Moment>,
        filter: &Filter,
    ) -> io::Result<()> {
        let conn = record.conn.and_then(|conn| reading.conns.remove(&conn));
        // The end of a request that could not be read has no host.
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
            let outcome = AttemptOutcome::new(Verdict::Error, failure(record), None);
            row.outcomes.entry(outcome).or_default().add(1, at);
        }
        // If the name is checked, no bytes pass before a hello was read.
        row.tls_unseen |= record.port == Some(443)
            && record.sni_ok.is_none()
            && record.bytes_up.unwrap_or(0) > 0
            && record.bytes_down.unwrap_or(0) > 0;
        if let (Some(conn), Some(ip)) = (&conn, record.ip)
            && !conn.through
        {
            row.addresses.add(ip);
        }
        self.approvals.ended(conn.as_ref().and_then(|conn| conn.approver), ended.bytes_up);
        self.rules.ended(conn.and_then(|conn| conn.rule), ended.bytes_up, failed);
        Ok(())
    }
}

impl Reading {
    /// Returns the facts about the run of the last line.
    pub fn facts(&self) -> &RunFacts {
        &self.run
    }

    /// Notes what a line says about its run.
    fn note(&mut self, record: &Record) {
        match record.event {
            LineKind::RunStart => self.run.dir.clone_from(&record.dir),
            LineKind::Policy if self.run.files.len() < MAX_FILES => {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                self.run.files.push((text(&record.role), text(&record.file), text(&record.file_sha256)));
            }
            LineKind::Note => self.run.reloaded |= record.what.as_deref() == Some("policy_reload"),
            // The end counts even if it is outside the selected time.
            LineKind::RunEnd => self.ended = true,
            _ => {}
        }
    }

    /// Follows a connection that was let through.
    fn open(&mut self, record: &Record, rule: Option<usize>, approver: Option<usize>) {
        let Some(conn) = record.conn.filter(|_| record.is_let_through()) else { return };
        if self.conns.len() >= MAX_OPEN && !self.conns.contains_key(&conn) {
            self.unfollowed += 1;
            return;
        }
        let conn_of = Conn {
            host: record.host.clone(),
            port: record.port,
            proto: parse_proto(record.proto.as_deref()),
            rule,
            approver,
            through: record.upstream.is_some(),
            bytes_up: 0,
            bytes_down: 0,
        };
        self.conns.insert(conn, conn_of);
    }
}

/// Returns the reason why a connection was not made: the first word of its `error`.
fn failure(record: &Record) -> Reason {
    let word = record.error.as_deref().and_then(|error| error.split(':').next());
    word.and_then(|word| word.parse().ok()).unwrap_or(Reason::ConnectError)
}

/// Reads a line's `proto`; without one it is TCP. An unknown word counts as 255, which IANA has reserved.
fn parse_proto(word: Option<&str>) -> Proto {
    match word {
        None => Proto::Tcp,
        Some("udp") => Proto::Udp,
        Some(number) => Proto::Other(number.parse().unwrap_or(u8::MAX)),
    }
}

#[cfg(test)]
mod tests;

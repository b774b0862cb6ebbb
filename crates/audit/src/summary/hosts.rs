//! Keeps the table of hosts, exact for any number of them.
//!
//! A stage chooses the names, their order and how often each comes back, so a table that drops rows early could name the wrong ones in
//! the end. Instead, a full table goes to a temporary file, sorted by name. At the end the files are merged, equal rows are added up, and
//! only then the first rows of each order are chosen.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Lines, Seek as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;

use exeat_policy::{AddrClass, HostPort, Port, Reason, Target, Verdict, classify};
use exeat_record::{Proto, RunId, Via};
use serde::{Deserialize, Serialize};

use super::outcome::{AttemptOutcome, Cited, SOME_BOUND};
use super::tally::{MAX_NAME, Sort, Tally, Traffic, via_word, widen};
use crate::Moment;
use crate::attempt::{Attempt, asked_host};
use crate::query::{LineKind, Record};

/// The number of hosts that are named in each order, by default. A host counts once for each port and protocol.
pub const MAX_HOSTS: usize = 10_000;

/// The most addresses and programs that are kept of one host.
const MAX_FEW: usize = 8;

/// The most addresses of one host that are kept and not public.
const MAX_SPECIAL: usize = 16;

/// The most rules that are kept of one host.
pub(super) const MAX_RULES_OF_HOST: usize = 16;

/// The number of temporary files of one size that are merged into one.
const FAN: usize = 16;

/// The attempts at one host, on one port, in one protocol.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HostSummary {
    /// The host as in the record, cut if it is longer than any name; `None` if the request had no readable host, or the line stands for
    /// many. Not printable without escaping.
    pub host: Option<String>,
    /// The port; `None` if only a name was resolved.
    pub port: Option<u16>,
    /// The requested protocol.
    pub proto: Proto,
    /// The counts.
    pub traffic: Traffic,
    /// The outcomes of the attempts. A connection that was let through and not reached is also under `error`, without a via.
    #[serde(with = "outcomes")]
    pub outcomes: BTreeMap<AttemptOutcome, Sightings>,
    /// The addresses that connections were made to.
    pub addresses: Few<IpAddr, MAX_FEW>,
    /// The programs that asked, by path. Not printable without escaping.
    pub programs: Few<String, MAX_FEW>,
    /// The time of the first line about it.
    pub first: Option<Moment>,
    /// The time of the last line about it.
    pub last: Option<Moment>,
    /// The rules that decided; see [`super::Summary::rules`].
    pub(super) rules: Few<usize, MAX_RULES_OF_HOST>,
    /// The lines about it.
    pub(crate) cited: Cited,
    /// The addresses it led to that are not public.
    pub(crate) special: Few<IpAddr, MAX_SPECIAL>,
    /// Whether it was left to another proxy, so that its addresses are not known.
    pub(crate) upstream: bool,
    /// Whether the TLS name was not checked although it usually is on this port.
    pub(crate) tls_unseen: bool,
    /// The port at which the stage found a service of this machine.
    pub(crate) inner: Option<u16>,
    /// The bytes, included in the traffic, that connections without an end sent and received.
    pub(crate) so_far: [u64; 2],
}

/// A count of attempts, with the first and last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sightings {
    /// The number of attempts.
    pub count: u64,
    /// The time of the first line.
    pub first: Option<Moment>,
    /// The time of the last line.
    pub last: Option<Moment>,
}

/// The first few of many different values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Ord + Deserialize<'de>"))]
pub struct Few<T: Ord, const MOST: usize> {
    /// The first values.
    pub kept: BTreeSet<T>,
    /// Whether there were others.
    pub more: bool,
}

impl<T: Ord, const MOST: usize> Default for Few<T, MOST> {
    fn default() -> Self {
        Few { kept: BTreeSet::new(), more: false }
    }
}

impl<T: Ord, const MOST: usize> Few<T, MOST> {
    pub(super) fn add(&mut self, value: T) {
        if self.kept.len() < MOST {
            self.kept.insert(value);
        } else {
            self.more |= !self.kept.contains(&value);
        }
    }

    fn merge(&mut self, other: Self) {
        self.more |= other.more;
        other.kept.into_iter().for_each(|value| self.add(value));
    }
}

impl Sightings {
    pub(super) fn add(&mut self, count: u64, at: Option<Moment>) {
        self.count = self.count.saturating_add(count);
        widen(&mut self.first, &mut self.last, at);
    }

    /// Adds the sightings of another row.
    pub(crate) fn merge(&mut self, other: &Sightings) {
        self.add(other.count, other.first);
        widen(&mut self.first, &mut self.last, other.last);
    }
}

impl HostSummary {
    fn new(host: Option<String>, port: Option<u16>, proto: Proto) -> HostSummary {
        HostSummary { host, port, proto, ..HostSummary::default() }
    }

    /// Returns the key that tells it apart from other rows.
    pub fn key(&self) -> (Option<&str>, Option<u16>, Proto) {
        (self.host.as_deref(), self.port, self.proto)
    }

    /// Returns what was denied, would have been denied, or failed, by verdict and reason.
    pub fn evidence(&self) -> BTreeMap<(Verdict, Option<Reason>), Sightings> {
        let mut all: BTreeMap<_, Sightings> = BTreeMap::new();
        for (outcome, seen) in &self.outcomes {
            if let Some(verdict) = outcome.verdict.filter(|verdict| *verdict != Verdict::Allow) {
                all.entry((verdict, outcome.reason)).or_default().merge(seen);
            }
        }
        all
    }

    /// Whether anything was denied, would have been denied, or failed.
    pub fn has_evidence(&self) -> bool {
        self.outcomes.keys().any(|outcome| outcome.verdict.is_some_and(|verdict| verdict != Verdict::Allow))
    }

    /// Returns the ways it came in, in the words of the record.
    pub fn vias(&self) -> BTreeSet<&'static str> {
        self.outcomes.keys().filter_map(|outcome| outcome.via).collect()
    }

    /// Returns how many attempts were denied, would have been denied, or failed, by reason.
    pub fn reasons(&self) -> BTreeMap<Reason, u64> {
        let mut reasons: BTreeMap<Reason, u64> = BTreeMap::new();
        for ((_, reason), seen) in self.evidence() {
            if let Some(reason) = reason {
                let count = reasons.entry(reason).or_default();
                *count = count.saturating_add(seen.count);
            }
        }
        reasons
    }

    /// Returns how often and when it got one verdict, and the reasons.
    pub fn sightings(&self, verdict: Verdict) -> (Sightings, Vec<Option<Reason>>) {
        let mut all = Sightings::default();
        let mut reasons = Vec::new();
        for ((_, reason), seen) in self.evidence().into_iter().filter(|((of, _), _)| *of == verdict) {
            all.merge(&seen);
            reasons.push(reason);
        }
        (all, reasons)
    }

    /// Returns the host and port in their one canonical spelling, if both are valid.
    pub(crate) fn target(&self) -> Option<Target> {
        let port = Port::new(self.port?).filter(|_| self.proto == Proto::Tcp)?;
        Some(Target { host: asked_host(self.host.as_deref()?)?, port })
    }

    /// Whether more rules decided than are kept.
    pub fn has_more_rules(&self) -> bool {
        self.rules.more
    }

    pub(super) fn decided(
        &mut self,
        record: &Record,
        at: Option<Moment>,
        rule: Option<usize>,
        outcome: AttemptOutcome,
    ) {
        self.traffic.decided(record);
        widen(&mut self.first, &mut self.last, at);
        if let Some(exe) = &record.exe {
            self.programs.add(cut(exe).to_owned());
        }
        if let Some(rule) = rule {
            self.rules.add(rule);
        }
        self.outcomes.entry(self.bounded(outcome)).or_default().add(record.count.unwrap_or(1), at);
    }

    /// Notes the evidence for a policy or a lock; `run` and `line` are the numbers of the line's run and of the line.
    pub(super) fn note_for_grants(&mut self, record: &Record, run: u64, line: u64) {
        let attempt = record.attempt();
        // A policy cannot grant a service of this machine that was refused.
        let is_cited = match &attempt {
            Some(attempt) => attempt.via != Via::Forward || attempt.is_let_through(),
            None => record.event == LineKind::Dns && record.verdict() == Some(Verdict::Deny),
        };
        if is_cited {
            self.cited.add(record, run, line);
        }
        if let Some(attempt) = &attempt {
            self.attempted(record, attempt);
        }
    }

    fn attempted(&mut self, record: &Record, attempt: &Attempt) {
        if attempt.via == Via::Forward {
            let typed = record.rule_src.as_deref().and_then(|src| src.strip_prefix("--host-port "));
            let typed = typed.and_then(|text| text.parse::<HostPort>().ok());
            let typed = typed.filter(|typed| attempt.is_let_through() && typed.port == attempt.target.port);
            self.inner = self.inner.or(typed.map(|typed| typed.inner.get()));
            return;
        }
        if attempt.is_let_through() {
            self.upstream |= record.upstream.is_some();
            self.tls_unseen |= record.rule_src.as_deref() == Some("--tls-off");
        }
        for ip in record.ips.iter().filter(|ip| classify(**ip) != AddrClass::Public) {
            self.special.add(*ip);
        }
    }

    /// Bounds the number of different refusers, because their names are untrusted text.
    fn bounded(&self, mut outcome: AttemptOutcome) -> AttemptOutcome {
        if outcome.refused_by.is_some() && outcome.is_refused() {
            let refused = self.outcomes.keys().filter(|it| it.is_refused());
            let kinds: BTreeSet<_> = refused.map(|it| (it.reason, &it.refused_by)).collect();
            if kinds.len() >= MAX_FEW {
                outcome.refused_by = Some(SOME_BOUND.to_owned());
            }
        }
        outcome
    }

    /// Adds another row about the same host.
    pub(crate) fn merge(&mut self, other: HostSummary) {
        self.traffic.merge(&other.traffic);
        for (outcome, seen) in other.outcomes {
            self.outcomes.entry(outcome).or_default().merge(&seen);
        }
        self.addresses.merge(other.addresses);
        self.programs.merge(other.programs);
        widen(&mut self.first, &mut self.last, other.first);
        widen(&mut self.first, &mut self.last, other.last);
        self.rules.merge(other.rules);
        self.cited.merge(other.cited);
        self.special.merge(other.special);
        self.upstream |= other.upstream;
        self.tls_unseen |= other.tls_unseen;
        self.inner = self.inner.or(other.inner);
        for (sum, more) in self.so_far.iter_mut().zip(other.so_far) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Returns what an order sorts by, the greatest first.
    fn weight(&self, sort: Sort) -> (u64, u64, u64, u64) {
        let Traffic { tally, bytes_up, bytes_down, open, .. } = self.traffic;
        let Tally { allowed, denied, would_deny, .. } = tally;
        match sort {
            Sort::Denied => (denied, would_deny, tally.not_reached(), allowed),
            Sort::Up => (bytes_up, open, bytes_down, allowed),
            Sort::Down => (bytes_down, open, bytes_up, allowed),
            Sort::Failed => (tally.not_reached(), denied, would_deny, allowed),
            Sort::Attempts => (tally.attempts(), denied, would_deny, allowed),
            Sort::Allowed => (allowed.saturating_add(would_deny), tally.errors, bytes_up, 0),
        }
    }
}

/// Sorts rows, and equal ones by name.
pub(super) fn sort<'a>(hosts: &mut [&'a HostSummary], by: Sort) {
    hosts.sort_by_cached_key(|host: &&'a HostSummary| (Reverse(host.weight(by)), (*host).key()));
}

/// Cuts text to the length of a name.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_NAME);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// The rows of one host. Boxed, because a map has room for eleven values, and most hosts are asked for on one port.
type Ports = BTreeMap<(Option<u16>, Proto), Box<HostSummary>>;

/// The table: rows by host, port and protocol.
#[derive(Debug)]
pub(super) struct Hosts {
    rows: HashMap<String, Ports>,
    count: usize,
    /// The most rows in memory, and the number of rows of each order that are kept at the end.
    most: usize,
    orders: &'static [Sort],
    spilled: Vec<Spilled>,
}

/// Rows in an unnamed file, sorted by host.
#[derive(Debug)]
struct Spilled {
    /// The number of times that the rows were merged.
    level: u32,
    file: File,
}

impl Default for Hosts {
    fn default() -> Hosts {
        Hosts::new(MAX_HOSTS, &Sort::PRINTED)
    }
}

impl Hosts {
    pub(super) fn new(most: usize, orders: &'static [Sort]) -> Hosts {
        Hosts { rows: HashMap::new(), count: 0, most, orders, spilled: Vec::new() }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &HostSummary> {
        self.rows.values().flat_map(BTreeMap::values).map(Box::as_ref)
    }

    pub(super) fn get(&self, host: Option<&str>, port: Option<u16>, proto: Proto) -> Option<&HostSummary> {
        self.rows.get(host.unwrap_or_default())?.get(&(port, proto)).map(Box::as_ref)
    }

    /// Returns the row of a host, and creates it if necessary.
    ///
    /// # Errors
    ///
    /// Fails if the table is full and the temporary file cannot be used.
    pub(super) fn row(
        &mut self,
        host: Option<&str>,
        port: Option<u16>,
        proto: Proto,
    ) -> io::Result<&mut HostSummary> {
        let host = host.map(cut);
        if self.get(host, port, proto).is_none() {
            if self.count >= self.most {
                self.spill()?;
            }
            self.count += 1;
        }
        let rows = self.rows.entry(host.unwrap_or_default().to_owned()).or_default();
        let new = || Box::new(HostSummary::new(host.map(str::to_owned), port, proto));
        Ok(rows.entry((port, proto)).or_insert_with(new))
    }

    /// Keeps the first rows of each order, and returns the sum of all others with their number.
    ///
    /// # Errors
    ///
    /// Fails if a temporary file cannot be used.
    pub(super) fn finish(&mut self) -> io::Result<(Traffic, u64)> {
        let mut kept = Candidates {
            rows: Vec::new(),
            most: self.most,
            orders: self.orders,
            others: Traffic::default(),
            dropped: 0,
        };
        if self.spilled.is_empty() {
            self.drain().for_each(|row| kept.rows.push(row));
        } else {
            self.spill()?;
            let spilled = self.spilled.drain(..).map(|spilled| spilled.file).collect();
            merge(spilled, |row| {
                kept.push(row);
                Ok(())
            })?;
        }
        if kept.rows.len() > self.most {
            kept.prune();
        }
        self.count = kept.rows.len();
        for row in kept.rows {
            let rows = self.rows.entry(row.host.clone().unwrap_or_default()).or_default();
            rows.insert((row.port, row.proto), Box::new(row));
        }
        Ok((kept.others, kept.dropped))
    }

    fn drain(&mut self) -> impl Iterator<Item = HostSummary> + use<> {
        self.count = 0;
        std::mem::take(&mut self.rows).into_values().flat_map(BTreeMap::into_values).map(|row| *row)
    }

    /// Moves all rows to a file.
    fn spill(&mut self) -> io::Result<()> {
        let said = |error: io::Error| {
            let dir = std::env::temp_dir();
            let what = format!(
                "so many hosts need a temporary file, and TMPDIR ({}) takes none: {error}",
                dir.display()
            );
            io::Error::new(error.kind(), what)
        };
        let mut rows: Vec<HostSummary> = self.drain().collect();
        rows.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        let mut out = Out::new().map_err(said)?;
        rows.iter().try_for_each(|row| out.write(row)).map_err(said)?;
        self.spilled.push(Spilled { level: 0, file: out.finish().map_err(said)? });
        while let Some(level) = self.level_to_merge() {
            let from = self.spilled.len().saturating_sub(FAN);
            let files = self.spilled.split_off(from).into_iter().map(|spilled| spilled.file).collect();
            let mut out = Out::new().map_err(said)?;
            merge(files, |row| out.write(&row)).map_err(said)?;
            self.spilled.push(Spilled { level: level + 1, file: out.finish().map_err(said)? });
        }
        Ok(())
    }

    /// Returns the level of the newest files, if there are enough to merge.
    fn level_to_merge(&self) -> Option<u32> {
        let from = self.spilled.len().checked_sub(FAN)?;
        let (last, level) = (self.spilled.get(from..)?, self.spilled.last()?.level);
        last.iter().all(|spilled| spilled.level == level).then_some(level)
    }
}

/// Rows that may come first in one of the orders.
struct Candidates {
    rows: Vec<HostSummary>,
    most: usize,
    orders: &'static [Sort],
    others: Traffic,
    dropped: u64,
}

impl Candidates {
    fn push(&mut self, row: HostSummary) {
        self.rows.push(row);
        if self.rows.len() > self.most.saturating_mul(2 * self.orders.len()).saturating_add(1024) {
            self.prune();
        }
    }

    /// Drops every row that has `most` others before it in every order: it cannot come to the front again.
    fn prune(&mut self) {
        let mut order: Vec<&HostSummary> = self.rows.iter().collect();
        let mut first: BTreeSet<(Option<String>, Option<u16>, Proto)> = BTreeSet::new();
        for by in self.orders {
            sort(&mut order, *by);
            first.extend(order.iter().take(self.most).map(|row| (row.host.clone(), row.port, row.proto)));
        }
        self.rows.retain(|row| {
            let stays = first.contains(&(row.host.clone(), row.port, row.proto));
            if !stays {
                self.others.merge(&row.traffic);
                self.dropped += 1;
            }
            stays
        });
    }
}

/// Writes rows to a temporary file.
struct Out(BufWriter<File>);

impl Out {
    /// Creates a file and unlinks it, so that it disappears however this process ends.
    fn new() -> io::Result<Out> {
        let path = std::env::temp_dir().join(format!(".exeat-{}", RunId::new()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        Ok(Out(BufWriter::new(file)))
    }

    fn write(&mut self, row: &HostSummary) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, row)?;
        self.0.write_all(b"\n")
    }

    fn finish(self) -> io::Result<File> {
        let mut file = self.0.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(file)
    }
}

/// Passes all rows of sorted files to `take`, in order, with the rows of one host added up.
fn merge(files: Vec<File>, mut take: impl FnMut(HostSummary) -> io::Result<()>) -> io::Result<()> {
    fn next(lines: &mut Lines<BufReader<File>>) -> io::Result<Option<HostSummary>> {
        Ok(lines.next().transpose()?.map(|line| serde_json::from_str(&line)).transpose()?)
    }
    let mut heads = Vec::new();
    for file in files {
        let mut lines = BufReader::new(file).lines();
        heads.push((next(&mut lines)?, lines));
    }
    loop {
        let mut least: Option<HostSummary> = None;
        for (head, _) in &heads {
            let Some(head) = head else { continue };
            if least.as_ref().is_none_or(|least| head.key() < least.key()) {
                least = Some(HostSummary::new(head.host.clone(), head.port, head.proto));
            }
        }
        let Some(mut row) = least else { return Ok(()) };
        for (head, lines) in &mut heads {
            if let Some(same) = head.take_if(|head| head.key() == row.key()) {
                row.merge(same);
                *head = next(lines)?;
            }
        }
        take(row)?;
    }
}

/// Serializes outcomes as a list, because their keys are not text.
mod outcomes {
    use std::collections::BTreeMap;

    use exeat_policy::{Reason, Verdict, WordError};
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{AttemptOutcome, Sightings, via_word};

    type Map = BTreeMap<AttemptOutcome, Sightings>;
    type Row<T> = (Option<T>, Option<T>, Option<T>, bool, Option<String>, usize, Sightings);

    pub(super) fn serialize<S: Serializer>(map: &Map, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map.iter().map(|(it, seen)| {
            let (verdict, reason) = (it.verdict.map(Verdict::as_str), it.reason.map(Reason::as_str));
            (verdict, reason, it.via, it.late, &it.refused_by, it.stage, seen)
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map, D::Error> {
        let rows = Vec::<Row<String>>::deserialize(deserializer)?;
        let parsed = rows.into_iter().map(|(verdict, reason, via, late, refused_by, stage, seen)| {
            let verdict = verdict.map(|word| word.parse()).transpose()?;
            let reason = reason.map(|word| word.parse()).transpose()?;
            let via = via.as_deref().map(via_word);
            Ok((AttemptOutcome { verdict, reason, via, late, refused_by, stage }, seen))
        });
        parsed.collect::<Result<_, WordError>>().map_err(D::Error::custom)
    }
}

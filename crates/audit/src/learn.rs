//! Learns the smallest policy that covers what records say was let through.
//!
//! Decides nothing: the record or the policy of the run says whether something was let through. Memory is bounded whatever the records
//! contain; what does not fit is counted, and the policy says that it is missing.
//!
//! Records are untrusted text. A rule is made from a [`Target`] that was parsed again, never from text, and the printed policy is
//! read back before it is returned: it must grant exactly those targets.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use exeat_policy::{Day, Host, HostName, HostPort, Policy, Port, Reason, Target, TlsCheck, Verdict};
use exeat_record::Via;

use crate::attempt::{asked_host, is_let_through, is_taken_back};
use crate::query::Record;
use crate::summary::{Cited, HostSummary, Sightings, Summary};

mod print;

pub use print::Faulty;

/// The most targets with a rule: more than a person reads, and with their evidence less than a policy file may have
/// ([`exeat_policy::file::MAX_FILE_BYTES`]).
pub const MAX_TARGETS: usize = 1000;

/// The most targets that were refused at once: a stage that tries many hosts must not crowd out those that it reaches.
const MAX_REFUSED: usize = 300;

/// The most names that were only resolved.
const MAX_NAMES: usize = 300;

/// The most addresses that are not public, for all names together.
const MAX_SPECIAL_ALL: usize = 256;

/// The most services of this machine: as many as a run may have.
const MAX_HOST_PORTS: usize = 64;

/// Evidence from records for a policy.
#[derive(Debug, Default)]
pub struct Learned {
    targets: BTreeMap<Target, TargetEvidence>,
    names: BTreeMap<HostName, Cited>,
    host_ports: BTreeMap<Port, Forwarded>,
    starts: Vec<Record>,
    more_runs: u64,
    /// The stage, if all runs have the same one.
    stage: Option<String>,
    socks5: bool,
    /// Attempts that have no place above.
    beyond: u64,
    /// Runs whose attempts are in another proxy's record.
    elsewhere: u64,
}

/// The counts of one target.
#[derive(Debug, Default)]
struct TargetEvidence {
    attempts: u64,
    let_through: u64,
    /// Attempts among these that enforcing would have refused, that failed, or whose content was refused later.
    would_deny: u64,
    failed: u64,
    taken_back: BTreeMap<Reason, u64>,
    /// Refusals by reason, and by the ceiling or declaration that refused.
    refused: BTreeMap<(Reason, Option<String>), u64>,
    evidence: Cited,
    bytes_up: u64,
    bytes_down: u64,
    /// The addresses it led to that are not public.
    special: BTreeSet<IpAddr>,
    special_more: bool,
    /// Whether it was left to another proxy, so that its addresses are not known.
    upstream: bool,
    /// Whether the TLS name was not checked although it usually is on this port.
    unseen: bool,
}

/// A service of this machine that was used.
#[derive(Debug, Default)]
struct Forwarded {
    /// The port at which the stage found it; `None` if the record does not say.
    inner: Option<Port>,
    count: u64,
    evidence: Cited,
}

/// Knowledge besides the records.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The policy of the runs, if available: it says where the TLS name was not checked.
    pub policy: Option<&'a Policy>,
    /// The services of this machine that the run offered.
    pub host_ports: &'a [HostPort],
    /// Whether to also grant what was refused only because no rule named it.
    pub denied: bool,
    /// The current day.
    pub today: Day,
}

impl Learned {
    /// Returns whether a connection was let through.
    pub fn is_any(&self) -> bool {
        !self.host_ports.is_empty() || self.targets.values().any(|target| target.let_through > 0)
    }

    /// Takes the evidence for a policy from a summary for grants.
    pub fn new(summary: &Summary) -> Learned {
        let mut learned = Learned {
            starts: summary.starts.clone(),
            more_runs: summary.more_starts,
            elsewhere: summary.elsewhere,
            beyond: summary.others.tally.attempts(),
            ..Learned::default()
        };
        if let (1, Some((stage, _))) = (summary.started.len(), summary.started.first_key_value()) {
            let named = summary.stage_numbers.iter().find(|(_, number)| *number == stage);
            learned.stage = named.and_then(|(name, _)| name.clone());
        }
        // A record that exeat did not write may spell one host in several ways.
        let mut rows: BTreeMap<Target, &HostSummary> = BTreeMap::new();
        let mut merged: BTreeMap<Target, HostSummary> = BTreeMap::new();
        let mut cited: Vec<&HostSummary> = summary.all_hosts().filter(|row| row.cited.runs > 0).collect();
        cited.sort_unstable_by_key(|row| row.cited.since);
        for row in cited {
            match row.target().map(|target| rows.entry(target)) {
                None => learned.ask(row),
                Some(Entry::Vacant(place)) => drop(place.insert(row)),
                Some(Entry::Occupied(place)) => {
                    let all = merged.entry(place.key().clone()).or_insert_with(|| (*place.get()).clone());
                    all.merge(row.clone());
                }
            }
        }
        let mut rows: Vec<(Target, &HostSummary)> = rows.into_iter().collect();
        rows.sort_by_key(|(_, row)| row.cited.since);
        let (mut refused, mut special) = (0, 0);
        for (target, row) in rows {
            let row = merged.get(&target).unwrap_or(row);
            learned.forward(row, target.port);
            let Some(mut seen) = TargetEvidence::new(row) else { continue };
            let socks5 = Some(Via::Socks5.as_str());
            learned.socks5 |= row.outcomes.keys().any(|it| it.via == socks5 && it.is_let_through());
            let is_refused = seen.let_through == 0;
            if learned.targets.len() >= MAX_TARGETS || is_refused && refused >= MAX_REFUSED {
                add(&mut learned.beyond, seen.attempts);
                continue;
            }
            refused += usize::from(is_refused);
            let room = MAX_SPECIAL_ALL.saturating_sub(special);
            seen.evidence = row.cited.clone();
            seen.special_more = row.special.more || row.special.kept.len() > room;
            seen.special = row.special.kept.iter().copied().take(room).collect();
            special += seen.special.len();
            learned.targets.insert(target, seen);
        }
        learned
    }

    /// Whether nothing was let through.
    pub fn is_empty(&self) -> bool {
        self.host_ports.is_empty() && !self.targets.values().any(TargetEvidence::is_granted)
    }

    /// Adds a name that was only resolved.
    fn ask(&mut self, row: &HostSummary) {
        let name = row.host.as_deref().filter(|_| row.port.is_none()).and_then(asked_host);
        let Some(Host::Name(name)) = name else { return };
        let denied = row.outcomes.iter().filter(|(it, _)| it.verdict == Some(Verdict::Deny));
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(&name) {
            denied.for_each(|(_, seen)| add(&mut self.beyond, seen.count));
            return;
        }
        self.names.entry(name).or_default().merge(row.cited.clone());
    }

    /// Adds a service of this machine.
    fn forward(&mut self, row: &HostSummary, port: Port) {
        let of = row
            .outcomes
            .iter()
            .filter(|(it, _)| it.via == Some(Via::Forward.as_str()) && it.is_let_through());
        let count = of.fold(0, |sum: u64, (_, seen)| sum.saturating_add(seen.count));
        if count == 0 {
            return;
        }
        if self.host_ports.len() >= MAX_HOST_PORTS && !self.host_ports.contains_key(&port) {
            add(&mut self.beyond, count);
            return;
        }
        let known = self.host_ports.entry(port).or_default();
        known.inner = known.inner.or(row.inner.and_then(Port::new));
        add(&mut known.count, count);
        known.evidence.merge(row.cited.clone());
    }
}

fn add(to: &mut u64, count: u64) {
    *to = to.saturating_add(count);
}

impl TargetEvidence {
    /// Adds up the attempts of a row, without its evidence and addresses; returns `None` if it has none.
    fn new(row: &HostSummary) -> Option<TargetEvidence> {
        let [up, down] = row.so_far;
        let mut seen = TargetEvidence {
            failed: row.traffic.tally.failed,
            bytes_up: row.traffic.bytes_up.saturating_sub(up),
            bytes_down: row.traffic.bytes_down.saturating_sub(down),
            upstream: row.upstream,
            unseen: row.tls_unseen,
            ..TargetEvidence::default()
        };
        for (outcome, Sightings { count, .. }) in &row.outcomes {
            let Some((via, verdict, reason)) = outcome.known() else { continue };
            if via == Via::Forward || via == Via::Dns {
                continue;
            }
            add(&mut seen.attempts, *count);
            if is_let_through(verdict, reason) {
                add(&mut seen.let_through, *count);
                match verdict {
                    Verdict::WouldDeny => add(&mut seen.would_deny, *count),
                    Verdict::Error => add(&mut seen.failed, *count),
                    _ => {}
                }
            } else if is_taken_back(outcome.late, verdict, reason) {
                add(seen.taken_back.entry(reason).or_default(), *count);
            } else if !outcome.late {
                add(seen.refused.entry((reason, outcome.refused_by.clone())).or_default(), *count);
            }
        }
        (seen.attempts > 0).then_some(seen)
    }

    fn is_granted(&self) -> bool {
        self.let_through > self.taken_back.values().fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// Whether it was refused only because no rule named it.
    fn is_candidate(&self) -> bool {
        self.refused.keys().any(|(reason, by)| by.is_none() && wants_a_rule(*reason))
    }

    fn tls(&self, target: &Target, known: &Known<'_>) -> TlsCheck {
        let of_policy = known.policy.and_then(|policy| policy.admit(target.clone(), known.today).ok());
        match of_policy {
            Some(admitted) if admitted.would_deny().is_none() => match admitted.tls() {
                TlsCheck::Off => TlsCheck::Off,
                TlsCheck::Auto | TlsCheck::Sni => TlsCheck::Auto,
            },
            _ if self.unseen => TlsCheck::Off,
            _ => TlsCheck::Auto,
        }
    }
}

/// Whether only a rule for the host and port was missing.
fn wants_a_rule(reason: Reason) -> bool {
    matches!(reason, Reason::Default | Reason::Port | Reason::IpLiteral | Reason::Direct)
}

/// Returns whether a policy file is as exeat writes it if there is nothing to allow. Nothing is lost with such a file.
#[must_use]
pub fn allows_nothing(text: &str) -> bool {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    text.starts_with("# Learned from what runs did,") && lines.eq(["schema = 1", "[network]", "allow = []"])
}

#[cfg(test)]
mod tests;

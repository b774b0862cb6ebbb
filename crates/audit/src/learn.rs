//! The smallest policy that covers what records say was let through.
//!
//! Decides nothing: whether the rules let something through is in the record, or the policy of the run says it. Memory is
//! bounded whatever the records hold; what does not fit is counted, and the policy says that it lacks it.
//!
//! Records are a stranger's text. A rule is made of a [`Target`] that was parsed again, never of text, and what was printed is
//! read back as a policy file before anybody gets it: it grants exactly those targets, or there is none.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use exeat_policy::{Day, Host, HostName, HostPort, Policy, Port, Reason, Target, TlsCheck, Verdict};
use exeat_record::Via;

use crate::attempt::asked_host;
use crate::query::Record;
use crate::summary::{Cited, Reached, Sightings, Summary};

mod print;

pub use print::Faulty;

/// Hosts with their ports that are told apart: more rules than somebody reads, and with their evidence less than a policy file
/// may have ([`exeat_policy::file::MAX_FILE_BYTES`]).
pub const MAX_TARGETS: usize = 1000;

/// Those of them that were refused at first sight: a stage that tries many hosts must not take the place of those that it reaches.
const MAX_REFUSED: usize = 300;

/// Names that were only asked for.
const MAX_NAMES: usize = 300;

/// Addresses of all names together that are not public.
const MAX_SPECIAL_ALL: usize = 256;

/// Services of this machine: as many as a run may have.
const MAX_HOST_PORTS: usize = 64;

/// What records say, on the way to a policy.
#[derive(Debug, Default)]
pub struct Learned {
    targets: BTreeMap<Target, Seen>,
    names: BTreeMap<HostName, Cited>,
    host_ports: BTreeMap<Port, Forwarded>,
    starts: Vec<Record>,
    more_runs: u64,
    /// The stage of all runs, if it is one and has a name.
    stage: Option<String>,
    socks5: bool,
    /// Attempts that have no place above.
    beyond: u64,
    /// Runs whose attempts another proxy has on record.
    elsewhere: u64,
}

/// What became of a target.
#[derive(Debug, Default)]
struct Seen {
    attempts: u64,
    let_through: u64,
    /// Of these: what enforcing would have refused, what failed, and what came to nothing for what the connection carried.
    would_deny: u64,
    failed: u64,
    taken_back: BTreeMap<Reason, u64>,
    /// By reason, and whether somebody above the grants refused.
    refused: BTreeMap<(Reason, Option<String>), u64>,
    evidence: Cited,
    bytes_up: u64,
    bytes_down: u64,
    /// Addresses that it led to and that are not public.
    special: BTreeSet<IpAddr>,
    special_more: bool,
    /// It was left to another proxy, so that its addresses are not known.
    upstream: bool,
    /// The TLS name was not looked at where it usually is.
    unseen: bool,
}

/// A service of this machine that was used.
#[derive(Debug, Default)]
struct Forwarded {
    /// Where the stage found it; `None`: the record does not say.
    inner: Option<Port>,
    count: u64,
    evidence: Cited,
}

/// What is known besides the records.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The policy of the runs, where it is at hand: it says where the TLS name was not checked.
    pub policy: Option<&'a Policy>,
    /// The services of this machine that the run offered.
    pub host_ports: &'a [HostPort],
    /// Grant what was refused for want of a rule, too.
    pub denied: bool,
    /// The day.
    pub today: Day,
}

impl Learned {
    /// Takes from a summary for grants what a policy can be made of.
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
        // A record that exeat has not written may spell one host in several ways.
        let mut rows: BTreeMap<Target, Reached> = BTreeMap::new();
        let mut cited: Vec<&Reached> = summary.all_hosts().filter(|row| row.cited.runs > 0).collect();
        cited.sort_unstable_by_key(|row| row.cited.since);
        for row in cited {
            match row.target().map(|target| rows.entry(target)) {
                None => learned.ask(row),
                Some(Entry::Vacant(place)) => drop(place.insert(row.clone())),
                Some(Entry::Occupied(mut place)) => place.get_mut().merge(row.clone()),
            }
        }
        let mut rows: Vec<(Target, Reached)> = rows.into_iter().collect();
        rows.sort_by_key(|(_, row)| row.cited.since);
        let (mut refused, mut special) = (0, 0);
        for (target, row) in rows {
            learned.forward(&row, target.port);
            let Some(mut seen) = Seen::new(&row) else { continue };
            let socks5 = Some(Via::Socks5.as_str());
            learned.socks5 |= row.outcomes.keys().any(|it| it.via == socks5 && it.is_let_through());
            let is_refused = seen.let_through == 0;
            if learned.targets.len() >= MAX_TARGETS || is_refused && refused >= MAX_REFUSED {
                add(&mut learned.beyond, seen.attempts);
                continue;
            }
            refused += usize::from(is_refused);
            let room = MAX_SPECIAL_ALL.saturating_sub(special);
            seen.special_more |= seen.special.len() > room;
            seen.special = seen.special.into_iter().take(room).collect();
            special += seen.special.len();
            learned.targets.insert(target, seen);
        }
        learned
    }

    /// Whether nothing was let through.
    pub fn is_empty(&self) -> bool {
        self.host_ports.is_empty() && !self.targets.values().any(Seen::is_granted)
    }

    /// Takes in a name that was only asked for.
    fn ask(&mut self, row: &Reached) {
        let name = row.host.as_deref().filter(|_| row.port.is_none()).and_then(asked_host);
        let Some(Host::Name(name)) = name else { return };
        let denied = row.outcomes.iter().filter(|(it, _)| it.verdict == Some(Verdict::Deny));
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(&name) {
            denied.for_each(|(_, seen)| add(&mut self.beyond, seen.count));
            return;
        }
        self.names.entry(name).or_default().merge(row.cited.clone());
    }

    /// Takes in a service of this machine.
    fn forward(&mut self, row: &Reached, port: Port) {
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

impl Seen {
    /// Adds up the attempts of a row; `None` where it has none.
    fn new(row: &Reached) -> Option<Seen> {
        let [up, down] = row.so_far;
        let mut seen = Seen {
            evidence: row.cited.clone(),
            failed: row.traffic.tally.failed,
            bytes_up: row.traffic.bytes_up.saturating_sub(up),
            bytes_down: row.traffic.bytes_down.saturating_sub(down),
            special: row.special.kept.clone(),
            special_more: row.special.more,
            upstream: row.upstream,
            unseen: row.tls_unseen,
            ..Seen::default()
        };
        for (outcome, Sightings { count, .. }) in &row.outcomes {
            let Some((via, verdict, reason)) = outcome.known() else { continue };
            if via == Via::Forward || via == Via::Dns {
                continue;
            }
            add(&mut seen.attempts, *count);
            if outcome.is_let_through() {
                add(&mut seen.let_through, *count);
                match verdict {
                    Verdict::WouldDeny => add(&mut seen.would_deny, *count),
                    Verdict::Error => add(&mut seen.failed, *count),
                    _ => {}
                }
            } else if outcome.is_taken_back() {
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

    /// Whether it was refused only for want of a rule that names it.
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

/// Whether a rule for the host and port is all that was missing.
fn wants_a_rule(reason: Reason) -> bool {
    matches!(reason, Reason::Default | Reason::Port | Reason::IpLiteral | Reason::Direct)
}

#[cfg(test)]
mod tests;

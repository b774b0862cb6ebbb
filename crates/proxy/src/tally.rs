//! Counts what the end of a run reports: denied, failed and reached targets. Its size is bounded, whatever a stage
//! does.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::os::unix::ffi::OsStrExt as _;

use exeat_policy::{Denial, Reason, Target};
use exeat_record::{Counts, Process, Proto, escape};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;

use crate::limits;

/// The connections of a run, counted by host.
#[derive(Debug, Clone, Default)]
pub struct ConnectionSummary {
    /// Denied targets, in the order of their first denial.
    pub denied: Vec<DeniedHost>,
    /// Allowed targets that could not be reached, in the order of their first failure.
    pub failed: Vec<FailedHost>,
    /// Distinct targets to which a connection was opened.
    pub reached: u64,
    /// Distinct hosts among them: two ports of one are one host.
    pub hosts_reached: u64,
    /// The reached targets with the bytes moved, at most [`limits::TALLY`], in the order in which each was first
    /// reached.
    pub reached_hosts: Vec<ReachedHost>,
    /// Number of denials beyond the bound of `denied`.
    pub denied_more: u64,
    /// Targets that only report mode allowed, with the denial that enforcing would give, in the order of their
    /// first appearance.
    pub would_deny: Vec<DeniedHost>,
    /// Number of such decisions beyond the bound of `would_deny`.
    pub would_deny_more: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections that were not served because too many were open. The record has no lines about them.
    pub turned_away: u64,
    /// Connections that were refused because the record is full.
    pub record_full: u64,
    /// The totals of the record, as in its last line.
    pub counts: Counts,
}

/// A denied target with its count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeniedHost {
    /// The host as it was matched: lower-case A-labels, or an address, with IPv6 in brackets. Empty if the request
    /// could not be parsed.
    pub host: String,
    /// The port; 0 if the request could not be parsed, the name was only looked up, or the protocol has no ports.
    pub port: u16,
    /// The protocol of the connection.
    pub proto: Proto,
    /// The reason, as in the record.
    pub reason: Reason,
    /// The reason as text for people on the host. It may name addresses and files.
    pub said: String,
    /// Number of denials.
    pub count: u64,
    /// The flag that would allow the target, if there is one.
    pub flag: Option<String>,
    /// The layer above the grants that refused, if one did: a ceiling, a lock, or what the stage declared. In the words of the record.
    pub refused_by: Option<String>,
    /// The place of the rule that refused, if one did: a deny rule or an expired one.
    pub rule_src: Option<String>,
    /// The first [`limits::PROGRAMS`] programs that asked, as the record names them.
    pub programs: Vec<String>,
}

/// A target to which connections were opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReachedHost {
    /// The host as it was matched.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Number of connections.
    pub connections: u64,
    /// Bytes sent there, as far as the kernel accepted them.
    pub bytes_up: u64,
    /// Bytes received from there.
    pub bytes_down: u64,
    /// Connections that are still open. Their bytes are not counted yet.
    pub open: u64,
}

/// An allowed target that could not be reached, with its count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedHost {
    /// The host as it was matched.
    pub host: String,
    /// The port; 0 if the name was only looked up.
    pub port: u16,
    /// The reason, as in the record.
    pub reason: Reason,
    /// The failure, for people on the host.
    pub said: String,
    /// Number of failures.
    pub count: u64,
}

/// Counts events during a run. It holds at most [`limits::TALLY`] and [`limits::TALLY_REACHED`] entries.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Receives the first refusal, and targets that are refused again and again. The number says how many more it
    /// may receive.
    watch: Option<(UnboundedSender<DeniedHost>, usize)>,
    /// Whether there was a refusal.
    has_refused: bool,
    denied: Table<DeniedKey, DeniedHost>,
    would_deny: Table<DeniedKey, DeniedHost>,
    failed: Table<(String, u16, String), FailedHost>,
    /// Hashes of the reached targets, and of their hosts. A run may reach many, and the summary needs only their numbers.
    reached: HashSet<u64>,
    hosts: HashSet<u64>,
    reached_hosts: Table<(String, u16), ReachedHost>,
    connections: u64,
    turned_away: u64,
    record_full: u64,
    denied_more: u64,
    would_deny_more: u64,
}

/// Host, port, protocol and reason. The text is part of the key only if the reason has several texts.
type DeniedKey = (String, u16, Proto, Reason, String);

/// Entries in the order of their first appearance, with an index by key.
#[derive(Debug)]
struct Table<K, V> {
    entries: Vec<V>,
    places: HashMap<K, usize>,
}

impl Tally {
    pub(crate) fn count_accepted(&mut self) {
        self.connections += 1;
    }

    pub(crate) fn count_turned_away(&mut self) {
        self.turned_away += 1;
    }

    pub(crate) fn count_reached(&mut self, target: &Target) {
        if self.reached.len() < limits::TALLY_REACHED {
            let hash = self.reached.hasher().hash_one(target);
            self.reached.insert(hash);
            let hash = self.hosts.hasher().hash_one(&target.host);
            self.hosts.insert(hash);
        }
        let (host, port) = host_and_port(target);
        let new =
            || ReachedHost { host: host.clone(), port, connections: 0, bytes_up: 0, bytes_down: 0, open: 0 };
        if let Some(entry) = self.reached_hosts.entry((host.clone(), port), new) {
            entry.connections += 1;
            entry.open += 1;
        }
    }

    /// Counts the end of a connection that had [reached](Self::reached) its target.
    pub(crate) fn count_closed(&mut self, target: &Target, up: u64, down: u64) {
        // A target without an entry found the table full when it was reached.
        if let Some(entry) = self.reached_hosts.get_mut(&host_and_port(target)) {
            entry.open = entry.open.saturating_sub(1);
            entry.bytes_up = entry.bytes_up.saturating_add(up);
            entry.bytes_down = entry.bytes_down.saturating_add(down);
        }
    }

    /// Sends the first refusal to `watch`, and each target once when it has been refused [`limits::REFUSED_OFTEN`]
    /// times, at most [`limits::REFUSED_TOLD`] targets.
    pub(crate) fn set_watch(&mut self, watch: UnboundedSender<DeniedHost>) {
        self.watch = Some((watch, limits::REFUSED_TOLD));
    }

    /// Counts a denial. Returns how often this target was denied for this reason.
    pub(crate) fn count_denial(&mut self, denial: &Denial, who: Option<&Process>) -> u64 {
        self.count_attempts(&DeniedHost::from_denial(denial).with_program(who), 1)
    }

    /// Counts a refusal that has no `Denial`: a malformed head (without a target), or a refused TLS hello.
    pub(crate) fn count_refusal(
        &mut self,
        target: Option<&Target>,
        reason: Reason,
        said: String,
        who: Option<&Process>,
    ) -> u64 {
        self.count_attempts(&DeniedHost::new(target, reason, said).with_program(who), 1)
    }

    /// Counts equal attempts. Returns their total.
    pub(crate) fn count_attempts(&mut self, denied: &DeniedHost, times: u64) -> u64 {
        let all = count_equal(&mut self.denied, denied, times);
        if all.is_none() {
            self.denied_more = self.denied_more.saturating_add(times);
        }
        let all = all.unwrap_or(0);
        self.notify_watch(denied, all, times);
        all
    }

    /// Counts attempts that have no entry of their own.
    pub(crate) fn count_other_attempts(&mut self, times: u64) {
        self.denied_more = self.denied_more.saturating_add(times);
    }

    fn notify_watch(&mut self, denied: &DeniedHost, all: u64, times: u64) {
        let Some((watch, left)) = &mut self.watch else { return };
        let is_first = !self.has_refused;
        self.has_refused = true;
        let often = limits::REFUSED_OFTEN;
        let is_often = all >= often && all.saturating_sub(times) < often && *left > 0;
        *left -= usize::from(is_often);
        if is_first || is_often {
            // The receiver has stopped listening, or the run is over.
            let _ = watch.send(DeniedHost { count: all, ..denied.clone() });
        }
    }

    /// Counts a target that only report mode allows.
    pub(crate) fn count_would_deny(&mut self, denial: &Denial, who: Option<&Process>) {
        let denied = DeniedHost::from_denial(denial).with_program(who);
        if count_equal(&mut self.would_deny, &denied, 1).is_none() {
            self.would_deny_more += 1;
        }
    }

    pub(crate) fn count_record_full(&mut self, target: &Target, said: &str) {
        self.record_full = self.record_full.saturating_add(1);
        self.count_failure(target, Reason::RecordFull, said);
    }

    pub(crate) fn count_failure(&mut self, target: &Target, reason: Reason, said: &str) {
        let (host, port) = host_and_port(target);
        self.count_failures(&FailedHost { host, port, reason, said: said.to_owned(), count: 0 }, 1);
    }

    /// Counts equal failures.
    pub(crate) fn count_failures(&mut self, failed: &FailedHost, times: u64) {
        let key = (failed.host.clone(), failed.port, failed.said.clone());
        if let Some(entry) = self.failed.entry(key, || failed.clone()) {
            entry.count = entry.count.saturating_add(times);
        }
    }

    pub(crate) fn summary(&self, counts: Counts) -> ConnectionSummary {
        ConnectionSummary {
            denied: self.denied.entries.clone(),
            failed: self.failed.entries.clone(),
            reached: self.reached.len() as u64,
            hosts_reached: self.hosts.len() as u64,
            reached_hosts: self.reached_hosts.entries.clone(),
            denied_more: self.denied_more,
            would_deny: self.would_deny.entries.clone(),
            would_deny_more: self.would_deny_more,
            connections: self.connections,
            turned_away: self.turned_away,
            record_full: self.record_full,
            counts,
        }
    }
}

impl DeniedHost {
    /// Creates an entry with count 0. Without a target, it is for a request that could not be parsed.
    pub(crate) fn new(target: Option<&Target>, reason: Reason, said: String) -> Self {
        let (host, port) = target.map_or((String::new(), 0), host_and_port);
        Self {
            host,
            port,
            proto: Proto::Tcp,
            reason,
            said,
            count: 0,
            flag: None,
            refused_by: None,
            rule_src: None,
            programs: Vec::new(),
        }
    }

    /// Creates an entry with count 0 for a denial by policy.
    pub(crate) fn from_denial(denial: &Denial) -> Self {
        Self::new(Some(denial.target()), denial.reason(), denial.said_outside()).with_denial(denial)
    }

    /// Adds what the policy says about the refusal: who refused, and what would allow the target.
    pub(crate) fn with_denial(self, denial: &Denial) -> Self {
        Self {
            flag: denial.flag(),
            refused_by: denial.refused_by().map(ToString::to_string),
            rule_src: denial.rule().map(|rule| rule.origin.to_string()),
            ..self
        }
    }

    fn with_program(mut self, who: Option<&Process>) -> Self {
        let program = who.and_then(|process| process.exe.as_ref());
        self.programs.extend(program.map(|path| escape(path.as_bytes(), limits::TEXT)));
        self
    }

    /// Returns `HOST:PORT`, or only the host if there is no port.
    #[must_use]
    pub fn target(&self) -> String {
        match self.port {
            0 => self.host.clone(),
            port => format!("{}:{port}", self.host),
        }
    }
}

impl<K: Eq + std::hash::Hash, V> Table<K, V> {
    /// Returns the entry for `key`, if there is one.
    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.places.get(key).and_then(|&place| self.entries.get_mut(place))
    }

    /// Returns the entry for `key`, and creates it if there is room.
    fn entry(&mut self, key: K, make: impl FnOnce() -> V) -> Option<&mut V> {
        let next = self.entries.len();
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None if next >= limits::TALLY => return None,
            None => {
                self.entries.push(make());
                self.places.insert(key, next);
                next
            }
        };
        self.entries.get_mut(place)
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new(), places: HashMap::new() }
    }
}

/// Counts equal denials and returns their total, or `None` if the table is full.
fn count_equal(table: &mut Table<DeniedKey, DeniedHost>, denied: &DeniedHost, times: u64) -> Option<u64> {
    let DeniedHost { host, port, proto, reason, said, programs, .. } = denied;
    // A malformed request has one of a few texts, or names a host that is none. For any other reason, the first text stands for all.
    let apart = if *reason == Reason::Malformed { said.clone() } else { String::new() };
    let entry = table.entry((host.clone(), *port, *proto, *reason, apart), || denied.clone());
    entry.map(|entry| {
        entry.count = entry.count.saturating_add(times);
        for program in programs {
            if entry.programs.len() < limits::PROGRAMS && !entry.programs.contains(program) {
                entry.programs.push(program.clone());
            }
        }
        entry.count
    })
}

fn host_and_port(target: &Target) -> (String, u16) {
    (target.host.to_string(), target.port.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-rows of memory: a stage that asks for new names cannot grow the summary without bound.
    #[test]
    fn bounds_the_summary_and_counts_the_rest() {
        let mut tally = Tally::default();
        let asked = limits::TALLY + 10;
        for number in 0..asked {
            let target = Target::parse(format!("h{number}.test:443").as_bytes()).unwrap();
            for _ in 0..2 {
                tally.count_refusal(Some(&target), Reason::Default, "no rule allows it".into(), None);
                tally.count_failure(&target, Reason::Timeout, "timed out");
            }
        }
        let summary = tally.summary(Counts::default());
        assert_eq!(summary.denied.len(), limits::TALLY);
        assert_eq!(summary.failed.len(), limits::TALLY);
        assert_eq!(summary.denied_more, 20);
        assert!(summary.denied.iter().all(|entry| entry.count == 2));
        assert_eq!(summary.denied[0].host, "h0.test");
        assert!(summary.would_deny.is_empty());
    }

    /// Targets that only report mode allows have their own bound and count.
    #[test]
    fn bounds_report_mode_denials_separately() {
        let terms = exeat_policy::Terms { mode: exeat_policy::Mode::Report, ..Default::default() };
        let policy = exeat_policy::Layers { terms, ..Default::default() }.build();
        let mut tally = Tally::default();
        for number in 0..limits::TALLY + 10 {
            let target = Target::parse(format!("h{number}.test:443").as_bytes()).unwrap();
            let admitted = policy.admit(target, exeat_policy::Day::from_unix(0)).unwrap();
            for _ in 0..2 {
                tally.count_would_deny(admitted.would_deny().unwrap(), None);
            }
        }
        let summary = tally.summary(Counts::default());
        assert_eq!((summary.would_deny.len(), summary.would_deny_more), (limits::TALLY, 20));
        assert!(summary.denied.is_empty());
        let first = &summary.would_deny[0];
        assert_eq!(
            (first.host.as_str(), first.count, first.flag.as_deref()),
            ("h0.test", 2, Some("--allow h0.test"))
        );
    }

    /// Two ports of one host are two targets, and one host.
    #[test]
    fn counts_targets_and_hosts_apart() {
        let mut tally = Tally::default();
        for target in ["a.test:443", "a.test:80", "b.test:443", "a.test:443", "192.0.2.1:443"] {
            tally.count_reached(&target.parse().unwrap());
        }
        let summary = tally.summary(Counts::default());
        assert_eq!((summary.reached, summary.hosts_reached), (4, 3));
    }

    /// Each refusal names the programs that asked, up to the bound.
    #[test]
    fn names_the_first_programs_that_asked() {
        let mut tally = Tally::default();
        let target = Target::parse(b"h.test:443").unwrap();
        for number in [0, 0, 1, 2, 3, 4] {
            let who = Process { pid: 7, ppid: None, exe: Some(format!("/bin/p{number}\n").into()) };
            tally.count_refusal(Some(&target), Reason::Default, "no rule allows it".into(), Some(&who));
        }
        let summary = tally.summary(Counts::default());
        assert_eq!(
            summary.denied[0].programs,
            ["/bin/p0\\x0a", "/bin/p1\\x0a", "/bin/p2\\x0a", "/bin/p3\\x0a"]
        );
        assert_eq!(summary.denied[0].count, 6);
    }
}

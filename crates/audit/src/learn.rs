//! The smallest policy that covers what records say was let through.
//!
//! Decides nothing: whether the rules let something through is in the record, or the policy of the run says it. Memory is
//! bounded whatever the records hold; what does not fit is counted, and the policy says that it lacks it.
//!
//! Records are a stranger's text. A rule is made of a [`Target`] that was parsed again, never of text, and what was printed is
//! read back as a policy file before anybody gets it: it grants exactly those targets, or there is none.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use exeat_policy::file::stage_fault;
use exeat_policy::{
    AddrClass, Day, Host, HostName, HostPort, Policy, Port, Reason, Target, TlsCheck, classify,
};
use exeat_record::{RunId, Via};

use crate::Attempt;
use crate::query::{Kind, Record};

mod print;

pub use print::Faulty;

/// Hosts with their ports that are told apart: more rules than somebody reads, and with their evidence less than a policy file
/// may have ([`exeat_policy::file::MAX_FILE_BYTES`]).
pub const MAX_TARGETS: usize = 1000;

/// Those of them that were refused at first sight: a stage that tries many hosts must not take the place of those that it reaches.
const MAX_REFUSED: usize = 300;

/// Names that were only asked for.
const MAX_NAMES: usize = 300;

/// Runs that are named.
const MAX_RUNS: usize = 8;

/// Lines of its first run that are named by their `seq` as evidence for a rule.
const MAX_LINES: usize = 6;

/// Addresses of one name that are not public, and of all names together.
const MAX_SPECIAL: usize = 16;
const MAX_SPECIAL_ALL: usize = 256;

/// Services of this machine: as many as a run may have.
const MAX_HOST_PORTS: usize = 64;

/// What records say, on the way to a policy.
#[derive(Debug, Default)]
pub struct Learned {
    targets: BTreeMap<Target, Seen>,
    names: BTreeMap<HostName, Evidence>,
    host_ports: BTreeMap<Port, Forwarded>,
    runs: Vec<Run>,
    more_runs: u64,
    /// The run that the last line belonged to, and how many there were.
    run: Option<String>,
    run_count: u64,
    stages: BTreeSet<Option<String>>,
    socks5: bool,
    refused: usize,
    special: usize,
    /// Attempts that have no place above.
    beyond: u64,
    /// Runs whose attempts another proxy has on record.
    elsewhere: u64,
}

/// One run, for the head of the file.
#[derive(Debug)]
struct Run {
    name: String,
    command: Option<String>,
    started: String,
    mode: Option<String>,
}

/// What became of a target.
#[derive(Debug, Default)]
struct Seen {
    let_through: u64,
    /// Of these: what enforcing would have refused, what failed, and what came to nothing for what the connection carried.
    would_deny: u64,
    failed: u64,
    taken_back: BTreeMap<Reason, u64>,
    /// By reason, and whether somebody above the grants refused.
    refused: BTreeMap<(Reason, Option<String>), u64>,
    evidence: Evidence,
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

/// Where it stands.
#[derive(Debug, Default)]
struct Evidence {
    run: Option<RunId>,
    first: String,
    lines: Vec<u64>,
    more_lines: bool,
    /// In how many runs, and the number of the last of them.
    runs: u64,
    last_run: u64,
}

/// A service of this machine that was used.
#[derive(Debug)]
struct Forwarded {
    /// Where the stage found it; `None`: the record does not say.
    inner: Option<Port>,
    count: u64,
    evidence: Evidence,
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
    /// Takes in one line.
    pub fn take(&mut self, record: &Record) {
        if self.run.as_ref() != Some(&record.run) {
            self.run = Some(record.run.clone());
            self.run_count += 1;
        }
        match record.event {
            Kind::RunStart => self.start(record),
            // Malformed requests and other protocols are nobody's to grant.
            Kind::Decision => {
                if let Some(attempt) = record.attempt() {
                    self.attempt(record, attempt);
                }
            }
            Kind::Dns => self.question(record),
            Kind::Close => self.close(record),
            _ => {}
        }
    }

    /// Whether nothing was let through.
    pub fn is_empty(&self) -> bool {
        self.host_ports.is_empty() && !self.targets.values().any(Seen::is_granted)
    }

    fn start(&mut self, record: &Record) {
        let stage = record.stage.clone().filter(|stage| stage_fault(stage).is_none());
        // Two are as good as many: then the file names none.
        if self.stages.len() < 2 {
            self.stages.insert(stage);
        }
        if record.proxy.is_some() {
            self.elsewhere += 1;
        }
        if self.runs.len() == MAX_RUNS {
            self.more_runs += 1;
            return;
        }
        self.runs.push(Run {
            name: record.run.clone(),
            command: record.command.clone(),
            started: record.ts.clone(),
            mode: record.mode.clone(),
        });
    }

    fn attempt(&mut self, record: &Record, attempt: Attempt) {
        let run = self.run_count;
        if attempt.via == Via::Forward {
            if attempt.is_let_through() {
                self.forwarded(record, &attempt);
            }
            return;
        }
        self.socks5 |= attempt.via == Via::Socks5 && attempt.is_let_through();
        let room = MAX_SPECIAL_ALL.saturating_sub(self.special);
        let Some(seen) = self.seen(&attempt) else {
            self.beyond = self.beyond.saturating_add(attempt.count);
            return;
        };
        let count = attempt.count;
        if attempt.is_let_through() {
            add(&mut seen.let_through, count);
            match attempt.verdict {
                exeat_policy::Verdict::WouldDeny => add(&mut seen.would_deny, count),
                exeat_policy::Verdict::Error => add(&mut seen.failed, count),
                _ => {}
            }
            seen.upstream |= record.upstream.is_some();
            seen.unseen |= record.rule_src.as_deref() == Some("--tls-off");
        } else if attempt.is_taken_back() {
            add(seen.taken_back.entry(attempt.reason).or_default(), count);
        } else if !attempt.late {
            let by = record.refused_by.as_ref().map(|by| by.chars().take(80).collect::<String>());
            // Who refused is a stranger's text as well: a few are told apart.
            let by = by
                .filter(|_| seen.refused.len() < 8)
                .or_else(|| record.refused_by.as_ref().map(|_| "a bound".into()));
            add(seen.refused.entry((attempt.reason, by)).or_default(), count);
        }
        let before = seen.special.len();
        let most = MAX_SPECIAL.min(before + room);
        for ip in record.ips.iter().filter(|ip| classify(**ip) != AddrClass::Public) {
            if seen.special.len() < most {
                seen.special.insert(*ip);
            } else {
                seen.special_more |= !seen.special.contains(ip);
            }
        }
        seen.evidence.add(record, run);
        let more = seen.special.len() - before;
        self.special += more;
    }

    fn forwarded(&mut self, record: &Record, attempt: &Attempt) {
        let run = self.run_count;
        let port = attempt.target.port;
        if self.host_ports.len() >= MAX_HOST_PORTS && !self.host_ports.contains_key(&port) {
            add(&mut self.beyond, attempt.count);
            return;
        }
        let typed = record.rule_src.as_deref().and_then(|src| src.strip_prefix("--host-port "));
        let inner = typed.and_then(|text| text.parse::<HostPort>().ok()).filter(|typed| typed.port == port);
        let known = self.host_ports.entry(port).or_insert_with(|| Forwarded {
            inner: None,
            count: 0,
            evidence: Evidence::default(),
        });
        known.inner = known.inner.or(inner.map(|typed| typed.inner));
        add(&mut known.count, attempt.count);
        known.evidence.add(record, run);
    }

    fn question(&mut self, record: &Record) {
        let run = self.run_count;
        let (Some(Host::Name(name)), Some(exeat_policy::Verdict::Deny)) =
            (record.asked_host(), record.verdict())
        else {
            return;
        };
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(&name) {
            add(&mut self.beyond, record.count.unwrap_or(1));
            return;
        }
        self.names.entry(name).or_default().add(record, run);
    }

    /// A close has its own host and port. One of a target that has no place was counted with its decision.
    fn close(&mut self, record: &Record) {
        let (Some(host), Some(port)) = (record.asked_host(), record.port.and_then(Port::new)) else { return };
        let Some(seen) = self.targets.get_mut(&Target { host, port }) else { return };
        if record.is_failed() {
            add(&mut seen.failed, 1);
        }
        let (up, down) = (record.bytes_up.unwrap_or(0), record.bytes_down.unwrap_or(0));
        add(&mut seen.bytes_up, up);
        add(&mut seen.bytes_down, down);
        // Where the name is checked, nothing passes before a hello that was read.
        seen.unseen |= port == Port::HTTPS && record.sni_ok.is_none() && up > 0 && down > 0;
    }

    fn seen(&mut self, attempt: &Attempt) -> Option<&mut Seen> {
        if !self.targets.contains_key(&attempt.target) {
            let refused = !attempt.is_let_through();
            if self.targets.len() >= MAX_TARGETS || refused && self.refused >= MAX_REFUSED {
                return None;
            }
            self.refused += usize::from(refused);
        }
        Some(self.targets.entry(attempt.target.clone()).or_default())
    }
}

fn add(to: &mut u64, count: u64) {
    *to = to.saturating_add(count);
}

impl Seen {
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

impl Evidence {
    fn add(&mut self, record: &Record, run: u64) {
        if self.last_run != run {
            self.runs += 1;
            self.last_run = run;
        }
        if self.runs == 1 && self.lines.is_empty() {
            self.run = record.run.parse().ok();
            self.first = record.ts.clone();
        }
        if self.runs == 1 && self.lines.len() < MAX_LINES {
            self.lines.push(record.seq);
        } else {
            self.more_lines = true;
        }
    }
}

#[cfg(test)]
mod tests;

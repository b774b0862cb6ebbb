//! Attempts that lead nowhere: questions for names that no rule grants, and packets to anywhere else. Each is recorded; what is
//! tried again and again is folded into lines with a count.
//!
//! Nothing is let out because of any of this, so a line is written after the fact. It decides nothing: what the policy says of a
//! target is asked for the words.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exeat_audit::{Decision, Event, Note, Question, RuleRef, Via, What};
use exeat_policy::{Admitted, Denial, Host, HostName, Policy, Port, Reason, Target, Verdict};
use tokio::time::Instant;

use crate::gateway::names::Unserved;
use crate::limits;
use crate::reach::today;
use crate::server::{Context, Ruling};
use crate::tally::{DeniedHost, FailedHost};

pub(crate) use exeat_audit::Proto;

/// Records them.
pub(crate) struct Attempts {
    cx: Arc<Context>,
    bounds: Bounds,
    state: Mutex<State>,
}

/// How many different attempts have lines of their own.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// In a run.
    most: usize,
    /// At once.
    burst: u64,
    /// And in each second.
    rate: u64,
}

#[derive(Debug)]
struct State {
    folds: BTreeMap<Key, Fold>,
    /// Those of them that are for one place, or one name.
    own: usize,
    /// New ones that there is room for at this moment.
    tokens: u64,
    /// Up to when these were counted.
    filled: Instant,
}

/// What is told in one line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A place; 0 where it has no port.
    Direct(Proto, Host, u16),
    /// A question for a name.
    Name(HostName),
    /// A question for something else.
    Raw(Vec<u8>),
    /// A question for a name that is granted and cannot be served, and why.
    Unserved(HostName, String),
    /// All those that were refused for this and have no line of their own.
    Rest(Reason),
    /// What the tap has not seen.
    Missed,
}

/// Equal attempts.
#[derive(Debug)]
struct Fold {
    told: Told,
    /// The policy that `told` is of.
    ruling: Arc<Ruling>,
    /// How many are in no line yet.
    pending: u64,
    /// When the last line was written. `None`: there is none.
    last: Option<Instant>,
    /// How long the next one waits.
    pause: Duration,
}

/// A line of the record without its count, and what is told besides.
#[derive(Debug)]
struct Told {
    event: Event,
    end: AtTheEnd,
    /// The flag that the stage may know of.
    flag_inside: Option<String>,
}

/// Where it stands in the list at the end of the run.
#[derive(Debug)]
enum AtTheEnd {
    /// On a line.
    Listed(DeniedHost),
    /// On a line of what failed.
    Failed(FailedHost),
    /// Among those that are counted together.
    Counted,
    /// It is no attempt, or too many failed.
    Nowhere,
}

impl Attempts {
    pub(crate) fn new(cx: Arc<Context>) -> Self {
        let (burst, rate) = limits::ATTEMPTS_RATE;
        Self::with_bounds(cx, Bounds { most: limits::ATTEMPTS_APART, burst, rate })
    }

    fn with_bounds(cx: Arc<Context>, bounds: Bounds) -> Self {
        let state = State { folds: BTreeMap::new(), own: 0, tokens: bounds.burst, filled: Instant::now() };
        Self { cx, bounds, state: Mutex::new(state) }
    }

    /// A question for a name that no rule grants.
    pub(crate) fn name_denied(&self, name: &HostName) {
        self.count(Key::Name(name.clone()), 1);
    }

    /// A question for something that is no host name.
    pub(crate) fn name_malformed(&self, raw: &[u8]) {
        self.count(Key::Raw(raw.iter().take(limits::TEXT).copied().collect()), 1);
    }

    /// A question for a granted name that has no listeners.
    pub(crate) fn unserved(&self, name: &HostName, why: &Unserved) {
        self.count(Key::Unserved(name.clone(), why.to_string()), 1);
    }

    /// A packet that asked for a connection, or carried something, to a place where nothing of ours listens. `name`: whose
    /// synthetic address it is.
    pub(crate) fn direct(&self, proto: Proto, to: SocketAddr, name: Option<&HostName>) {
        let host = name.map_or(Host::Ip(to.ip()), |name| Host::Name(name.clone()));
        self.count(Key::Direct(proto, host, to.port()), 1);
    }

    /// Packets that the tap missed.
    pub(crate) fn missed(&self, count: u64) {
        if count > 0 {
            self.count(Key::Missed, count);
        }
    }

    /// Writes what is folded and has waited long enough. To be called about once a second.
    pub(crate) fn due(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        let due = state.folds.values_mut().filter(|fold| fold.is_due(now));
        due.take(limits::FOLDS_AT_ONCE).for_each(|fold| fold.write(&self.cx, now));
    }

    /// Writes what is folded and not yet written. The last thing that is called.
    pub(crate) fn flush(&self) {
        let now = Instant::now();
        self.lock().folds.values_mut().for_each(|fold| fold.write(&self.cx, now));
    }

    fn count(&self, key: Key, times: u64) {
        let ruling = self.cx.ruling();
        let now = Instant::now();
        let mut state = self.lock();
        let apart = state.folds.contains_key(&key) || key == Key::Missed || state.takes(self.bounds, now);
        let key = if apart { key } else { Key::Rest(key.reason(&ruling.policy)) };
        let fold = match state.folds.entry(key) {
            Entry::Vacant(place) => {
                let told = Told::of(place.key(), &ruling);
                place.insert(Fold::new(told, ruling))
            }
            Entry::Occupied(place) => {
                let told =
                    (!Arc::ptr_eq(&place.get().ruling, &ruling)).then(|| Told::of(place.key(), &ruling));
                let fold = place.into_mut();
                if let Some(told) = told {
                    // What was tried under another policy is told under that one.
                    fold.write(&self.cx, now);
                    *fold = Fold::new(told, ruling);
                }
                fold
            }
        };
        fold.pending = fold.pending.saturating_add(times);
        if fold.last.is_none() {
            fold.write(&self.cx, now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether there is room for one more with lines of its own, which then is taken.
    fn takes(&mut self, bounds: Bounds, now: Instant) -> bool {
        let since = u64::try_from(now.duration_since(self.filled).as_millis()).unwrap_or(u64::MAX);
        let more = since.saturating_mul(bounds.rate) / 1000;
        if more > 0 {
            self.tokens = self.tokens.saturating_add(more).min(bounds.burst);
            self.filled = now;
        }
        if self.own >= bounds.most || self.tokens == 0 {
            return false;
        }
        self.tokens -= 1;
        self.own += 1;
        true
    }
}

impl Key {
    /// Why it is refused.
    fn reason(&self, policy: &Policy) -> Reason {
        match self {
            Self::Direct(..) => Reason::Direct,
            Self::Name(name) => name_refused(policy, name).map_or(Reason::Default, |denial| denial.reason()),
            Self::Raw(_) => Reason::Malformed,
            Self::Unserved(..) => Reason::ResolveError,
            Self::Rest(reason) => *reason,
            Self::Missed => Reason::Default,
        }
    }
}

impl Fold {
    fn new(told: Told, ruling: Arc<Ruling>) -> Self {
        Self { told, ruling, pending: 0, last: None, pause: limits::FOLD.0 }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.pending > 0 && self.last.is_none_or(|last| now.duration_since(last) >= self.pause)
    }

    /// Writes a line for all that are in none yet.
    fn write(&mut self, cx: &Context, now: Instant) {
        let times = std::mem::take(&mut self.pending);
        if times == 0 {
            return;
        }
        let mut event = self.told.event.clone();
        let count = Some(times).filter(|times| *times > 1);
        match &mut event {
            Event::Decision(decision) => decision.count = count,
            Event::Dns(question) => question.count = count,
            Event::Note(note) => note.count = Some(times),
            _ => {}
        }
        tracing::debug!(?event, "an attempt that leads nowhere");
        // Nothing is let out whether it is on record or not; the log refuses every decision from a failure on.
        let _ = cx.log().write(event);
        match &self.told.end {
            AtTheEnd::Listed(denied) => {
                cx.tally(|tally| tally.tried(denied, times));
                if self.last.is_none() && !denied.host.is_empty() {
                    cx.deny_inside(
                        &denied.target(),
                        denied.proto,
                        denied.reason,
                        self.told.flag_inside.as_deref(),
                    );
                }
            }
            AtTheEnd::Failed(failed) => cx.tally(|tally| tally.unreached(failed, times)),
            AtTheEnd::Counted => cx.tally(|tally| tally.tried_besides(times)),
            AtTheEnd::Nowhere => {}
        }
        // One that does not end is told more and more seldom, so that no number of them fills a disk.
        if self.last.is_some() {
            self.pause = (self.pause * 2).min(limits::FOLD.1);
        }
        self.last = Some(now);
    }
}

impl Told {
    fn of(key: &Key, ruling: &Ruling) -> Self {
        match key {
            Key::Direct(proto, host, port) => Self::direct(*proto, host, *port, ruling),
            Key::Name(name) => Self::name(name, ruling),
            Key::Raw(raw) => {
                let mut question = question(Reason::Malformed, ruling);
                question.host_raw = Some(raw.clone());
                let said = "a question for what is no host name".to_owned();
                let end = AtTheEnd::Listed(DeniedHost::new(None, Reason::Malformed, said, None));
                Self { event: Event::Dns(question), end, flag_inside: None }
            }
            Key::Unserved(name, why) => {
                let mut question = question(Reason::ResolveError, ruling);
                question.host = Some(name.clone());
                question.error = Some(why.clone());
                let failed = FailedHost { host: name.to_string(), port: 0, said: why.clone(), count: 0 };
                Self { event: Event::Dns(question), end: AtTheEnd::Failed(failed), flag_inside: None }
            }
            Key::Rest(reason) => {
                let error = Some("too many different ones for lines of their own".to_owned());
                let event = match reason {
                    Reason::Direct => {
                        let mut decision = direct(ruling);
                        decision.error = error;
                        Event::Decision(decision)
                    }
                    reason => {
                        let mut question = question(*reason, ruling);
                        question.error = error;
                        Event::Dns(question)
                    }
                };
                let refused = *reason != Reason::ResolveError;
                let end = if refused { AtTheEnd::Counted } else { AtTheEnd::Nowhere };
                Self { event, end, flag_inside: None }
            }
            Key::Missed => {
                let mut note = Note::new(What::TapDrops);
                note.error = Some("packets of the stage were not looked at".to_owned());
                Self { event: Event::Note(note), end: AtTheEnd::Nowhere, flag_inside: None }
            }
        }
    }

    fn name(name: &HostName, ruling: &Ruling) -> Self {
        let denial = name_refused(&ruling.policy, name);
        let reason = denial.as_ref().map_or(Reason::Default, Denial::reason);
        let mut question = question(reason, ruling);
        question.host = Some(name.clone());
        question.rule = denial.as_ref().and_then(Denial::rule).map(RuleRef::from);
        question.refused_by = denial.as_ref().and_then(Denial::above).map(ToString::to_string);
        let said = denial.as_ref().map_or_else(|| "it has no address here".to_owned(), Denial::said_outside);
        // As of a connection: which ports are granted is in no other field.
        question.error = (reason != Reason::Default).then(|| said.clone()).filter(|_| reason == Reason::Port);
        let flag = denial.as_ref().and_then(Denial::flag);
        let mut denied = DeniedHost::new(None, reason, format!("{said} (asked by name)"), flag);
        denied.host = name.to_string();
        let flag_inside = denial.as_ref().and_then(Denial::flag_inside);
        Self { event: Event::Dns(question), end: AtTheEnd::Listed(denied), flag_inside }
    }

    fn direct(proto: Proto, host: &Host, port: u16, ruling: &Ruling) -> Self {
        let target = Port::new(port).map(|port| Target { host: host.clone(), port });
        let asked = match (&target, proto) {
            (Some(target), Proto::Tcp) => Some(ruling.policy.admit(target.clone(), today())),
            _ => None,
        };
        let said = match &asked {
            Some(Err(denial)) => denial.said_outside(),
            Some(Ok(admitted)) => through_the_proxy(admitted, &ruling.policy),
            None => never(proto, port),
        };
        let denial = asked.as_ref().and_then(|asked| asked.as_ref().err());
        let mut decision = direct(ruling);
        decision.proto = proto;
        decision.rule = denial.and_then(Denial::rule).map(RuleRef::from);
        decision.refused_by = denial.and_then(Denial::above).map(ToString::to_string);
        decision.error = Some(said.clone());
        let flag = denial.and_then(Denial::flag);
        let mut denied = DeniedHost::new(target.as_ref(), Reason::Direct, said, flag);
        (denied.host, denied.proto) = (host.to_string(), proto);
        (decision.host, decision.target) = (Some(host.clone()), target);
        let flag_inside = denial.and_then(Denial::flag_inside);
        Self { event: Event::Decision(decision), end: AtTheEnd::Listed(denied), flag_inside }
    }
}

fn question(reason: Reason, ruling: &Ruling) -> Question {
    let verdict = if reason == Reason::ResolveError { Verdict::Error } else { Verdict::Deny };
    let mut question = Question::new(verdict, reason);
    question.under = Some(Arc::clone(&ruling.under));
    question
}

fn direct(ruling: &Ruling) -> Decision {
    let mut decision = Decision::new(None, Via::Direct, Verdict::Deny, Reason::Direct);
    decision.under = Some(Arc::clone(&ruling.under));
    decision
}

/// Why a name has no address. `None`: it is granted, and has none all the same.
fn name_refused(policy: &Policy, name: &HostName) -> Option<Denial> {
    let on = |port| policy.admit(Target { host: Host::Name(name.clone()), port }, today()).err();
    let denial = on(Port::HTTPS)?;
    // Granted on another port, which something else refuses: that is why.
    match denial.granted_ports().and_then(|ports| ports.iter().next()) {
        Some(port) => on(port),
        None => Some(denial),
    }
}

/// Of what is granted, and nothing listens.
fn through_the_proxy(admitted: &Admitted, policy: &Policy) -> String {
    let said = "allowed through the proxy only: HTTPS_PROXY is set";
    match policy.unserved(admitted.target(), today()) {
        Some(why) => format!("{said}; {why}"),
        None => said.to_owned(),
    }
}

/// Of what no rule can grant.
fn never(proto: Proto, port: u16) -> String {
    match (proto, port) {
        (Proto::Tcp, _) => "there is no port 0".to_owned(),
        (Proto::Udp, 53) => {
            "UDP is never let out; the sandbox's own name server is the one of /etc/resolv.conf".to_owned()
        }
        (Proto::Udp, 443) => "UDP is never let out; clients of HTTP/3 fall back to TCP".to_owned(),
        (Proto::Udp, _) => "UDP is never let out".to_owned(),
        (Proto::Other(number), _) => format!("protocol {number} is never let out"),
    }
}

#[cfg(test)]
mod tests;

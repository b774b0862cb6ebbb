//! Records attempts that lead nowhere: questions for names that no rule grants, and packets to other destinations.
//! Repeated ones are folded into lines with a count.
//!
//! None of this lets anything out, so a line is written afterwards. This file decides nothing; it asks the policy
//! only for the reason.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exeat_policy::{Admitted, Denial, Host, HostName, Policy, Port, Reason, Target, Verdict};
use exeat_record::{Event, Question, RequestDecision, RuleRef, RunNote, Via, What, today};
use tokio::time::Instant;

use crate::context::{Context, Ruling};
use crate::fold::{Bucket, Fold};
use crate::gateway::names::Unserved;
use crate::limits;
use crate::tally::{DeniedHost, FailedHost};

pub(crate) use exeat_record::Proto;

/// Records and counts attempts.
pub(crate) struct Attempts {
    cx: Arc<Context>,
    /// The maximum number of distinct attempts with lines of their own.
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    folds: BTreeMap<Key, Equal>,
    /// The number of folds for one destination or one name.
    own: usize,
    /// Limits how many new folds may start.
    bucket: Bucket,
}

/// The fields that the attempts in one line have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A destination. Its port is 0 if it has none.
    Direct(Proto, Host, u16),
    /// A question for a name.
    Name(HostName),
    /// A question for something that is not a host name.
    Raw(Vec<u8>),
    /// A question for a granted name that cannot be served, and why.
    Unserved(HostName, String),
    /// Attempts with this reason that have no line of their own.
    Rest(Reason),
    /// Packets that the tap missed.
    Missed,
}

/// Equal attempts, which share record lines.
#[derive(Debug)]
struct Equal {
    fold: Fold,
    end: SummaryEntry,
    /// The flag, if the stage may know it.
    flag_inside: Option<String>,
    /// The policy at the time of these attempts.
    ruling: Arc<Ruling>,
}

/// The record line for one key without its count, and what else is reported.
#[derive(Debug)]
struct Report {
    event: Event,
    end: SummaryEntry,
    /// The flag, if the stage may know it.
    flag_inside: Option<String>,
}

/// The place of an attempt in the end-of-run summary.
#[derive(Debug)]
enum SummaryEntry {
    /// In its own entry of denied targets.
    Listed(DeniedHost),
    /// In an entry of failed targets.
    Failed(FailedHost),
    /// In the common count.
    Counted,
    /// Nowhere: it is not an attempt, or too many failed.
    Nowhere,
}

impl Attempts {
    pub(crate) fn new(cx: Arc<Context>) -> Self {
        Self::with_bounds(cx, limits::ATTEMPTS_APART, limits::ATTEMPTS_RATE)
    }

    fn with_bounds(cx: Arc<Context>, most: usize, rate: (u64, u64)) -> Self {
        let state = State { folds: BTreeMap::new(), own: 0, bucket: Bucket::new(rate) };
        Self { cx, most, state: Mutex::new(state) }
    }

    /// Counts a question for a name that no rule grants.
    pub(crate) fn count_denied_name(&self, name: &HostName) {
        self.count(Key::Name(name.clone()), 1);
    }

    /// Counts a question for something that is not a host name.
    pub(crate) fn count_malformed_name(&self, raw: &[u8]) {
        self.count(Key::Raw(raw.iter().take(limits::TEXT).copied().collect()), 1);
    }

    /// Counts a question for a granted name that has no listeners.
    pub(crate) fn count_unserved(&self, name: &HostName, why: &Unserved) {
        self.count(Key::Unserved(name.clone(), why.to_string()), 1);
    }

    /// Counts a packet to a destination without a listener of exeat. The packet asked for a connection or carried
    /// data. `name` is the name with that synthetic address.
    pub(crate) fn count_packet(&self, proto: Proto, to: SocketAddr, name: Option<&HostName>) {
        let host = name.map_or(Host::Ip(to.ip()), |name| Host::Name(name.clone()));
        self.count(Key::Direct(proto, host, to.port()), 1);
    }

    /// Counts packets that the tap missed.
    pub(crate) fn count_missed(&self, count: u64) {
        if count > 0 {
            self.count(Key::Missed, count);
        }
    }

    /// Writes the folds that are due. Call it about once a second.
    pub(crate) fn write_due(&self) {
        if self.cx.record_is_full() {
            return; // written at the end
        }
        let now = Instant::now();
        let mut state = self.lock();
        let due = state.folds.values_mut().filter(|equal| equal.fold.is_due(now));
        due.take(limits::FOLDS_AT_ONCE).for_each(|equal| equal.write(&self.cx, now));
    }

    /// Writes all counts that are in no line yet. Call it last.
    pub(crate) fn flush(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        if self.cx.log().full().is_some() {
            state.merge(limits::FOLDS_LAST);
        }
        state.folds.values_mut().for_each(|equal| equal.write(&self.cx, now));
    }

    fn count(&self, key: Key, times: u64) {
        let ruling = self.cx.ruling();
        let now = Instant::now();
        let mut state = self.lock();
        let takes = |state: &mut State| !self.cx.record_is_full() && state.take_room(self.most, now);
        let apart = state.folds.contains_key(&key) || key == Key::Missed || takes(&mut state);
        let key = if apart { key } else { Key::Rest(key.reason(&ruling.policy)) };
        let equal = match state.folds.entry(key) {
            Entry::Vacant(place) => {
                let told = Report::for_key(place.key(), &ruling);
                place.insert(Equal::new(told, ruling))
            }
            Entry::Occupied(place) => {
                let told = (!Arc::ptr_eq(&place.get().ruling, &ruling))
                    .then(|| Report::for_key(place.key(), &ruling));
                let equal = place.into_mut();
                if let Some(told) = told {
                    // Attempts under the old policy are written with the old policy.
                    equal.write(&self.cx, now);
                    *equal = Equal::new(told, ruling);
                }
                equal
            }
        };
        equal.fold.count(times);
        if equal.fold.is_new() && !self.cx.record_is_full() {
            equal.write(&self.cx, now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Reserves room for one more separate fold. Returns `false` if the room is used up.
    fn take_room(&mut self, most: usize, now: Instant) -> bool {
        let room = self.own < most && self.bucket.take(now);
        self.own += usize::from(room);
        room
    }
}

impl State {
    /// Merges the folds of one reason, except for the first `most`, because a full disk has space for few lines.
    fn merge(&mut self, most: usize) {
        let mut merged = Vec::new();
        let apart = |key: &Key| !matches!(key, Key::Rest(_) | Key::Missed);
        let waiting = self.folds.iter_mut().filter(|(key, equal)| apart(key) && equal.fold.is_waiting());
        for (key, equal) in waiting.skip(most) {
            let reason = key.reason(&equal.ruling.policy);
            merged.push((reason, Arc::clone(&equal.ruling), equal.fold.take()));
        }
        for (reason, ruling, times) in merged {
            let rest = self
                .folds
                .entry(Key::Rest(reason))
                .or_insert_with_key(|key| Equal::new(Report::for_key(key, &ruling), Arc::clone(&ruling)));
            rest.fold.count(times);
        }
    }
}

impl Key {
    /// Returns why such an attempt is refused.
    fn reason(&self, policy: &Policy) -> Reason {
        match self {
            Self::Direct(..) => Reason::Direct,
            Self::Name(name) => deny_name(policy, name).map_or(Reason::Default, |denial| denial.reason()),
            Self::Raw(_) => Reason::Malformed,
            Self::Unserved(..) => Reason::ResolveError,
            Self::Rest(reason) => *reason,
            Self::Missed => Reason::Default,
        }
    }
}

impl Equal {
    fn new(told: Report, ruling: Arc<Ruling>) -> Self {
        let Report { event, end, flag_inside } = told;
        Self { fold: Fold::new(event, limits::FOLD.0), end, flag_inside, ruling }
    }

    /// Writes a line for all attempts that are in none yet.
    fn write(&mut self, cx: &Context, now: Instant) {
        let is_first = self.fold.is_new();
        let times = self.fold.write(cx.log(), now, limits::FOLD.1);
        if times == 0 {
            return;
        }
        match &self.end {
            SummaryEntry::Listed(denied) => {
                cx.tally(|tally| tally.count_attempts(denied, times));
                if is_first && !denied.host.is_empty() {
                    cx.deny_inside(
                        &denied.target(),
                        denied.proto,
                        denied.reason,
                        self.flag_inside.as_deref(),
                    );
                }
            }
            SummaryEntry::Failed(failed) => cx.tally(|tally| tally.count_failures(failed, times)),
            SummaryEntry::Counted => cx.tally(|tally| tally.count_other_attempts(times)),
            SummaryEntry::Nowhere => {}
        }
    }
}

impl Report {
    fn for_key(key: &Key, ruling: &Ruling) -> Self {
        match key {
            Key::Direct(proto, host, port) => Self::for_packet(*proto, host, *port, ruling),
            Key::Name(name) => Self::for_name(name, ruling),
            Key::Raw(raw) => {
                let mut question = new_question(Reason::Malformed, ruling);
                question.host_raw = Some(raw.clone());
                let said = "a question for what is no host name".to_owned();
                let end = SummaryEntry::Listed(DeniedHost::new(None, Reason::Malformed, said));
                Self { event: Event::Dns(question), end, flag_inside: None }
            }
            Key::Unserved(name, why) => {
                let mut question = new_question(Reason::ResolveError, ruling);
                question.host = Some(name.clone());
                question.error = Some(why.clone());
                let failed = FailedHost {
                    host: name.to_string(),
                    port: 0,
                    reason: Reason::ResolveError,
                    said: why.clone(),
                    count: 0,
                };
                Self { event: Event::Dns(question), end: SummaryEntry::Failed(failed), flag_inside: None }
            }
            Key::Rest(reason) => {
                let error = Some("too many different ones for lines of their own".to_owned());
                let event = match reason {
                    Reason::Direct => {
                        let mut decision = packet_decision(ruling);
                        decision.error = error;
                        Event::Decision(decision)
                    }
                    reason => {
                        let mut question = new_question(*reason, ruling);
                        question.error = error;
                        Event::Dns(question)
                    }
                };
                let refused = *reason != Reason::ResolveError;
                let end = if refused { SummaryEntry::Counted } else { SummaryEntry::Nowhere };
                Self { event, end, flag_inside: None }
            }
            Key::Missed => {
                let mut note = RunNote::new(What::TapDrops);
                note.error = Some("packets of the stage were not looked at".to_owned());
                Self { event: Event::Note(note), end: SummaryEntry::Nowhere, flag_inside: None }
            }
        }
    }

    fn for_name(name: &HostName, ruling: &Ruling) -> Self {
        let denial = deny_name(&ruling.policy, name);
        let reason = denial.as_ref().map_or(Reason::Default, Denial::reason);
        let mut question = new_question(reason, ruling);
        question.host = Some(name.clone());
        question.rule = denial.as_ref().and_then(Denial::rule).map(RuleRef::from);
        question.refused_by = denial.as_ref().and_then(Denial::refused_by).map(ToString::to_string);
        let said = denial.as_ref().map_or_else(|| "it has no address here".to_owned(), Denial::said_outside);
        // As for connections: no other field says which ports are granted.
        question.error = (reason != Reason::Default).then(|| said.clone()).filter(|_| reason == Reason::Port);
        let mut denied = DeniedHost::new(None, reason, format!("{said} (asked by name)"));
        if let Some(denial) = &denial {
            denied = denied.with_denial(denial);
        }
        denied.host = name.to_string();
        let flag_inside = denial.as_ref().and_then(Denial::flag_inside);
        Self { event: Event::Dns(question), end: SummaryEntry::Listed(denied), flag_inside }
    }

    fn for_packet(proto: Proto, host: &Host, port: u16, ruling: &Ruling) -> Self {
        let target = Port::new(port).map(|port| Target { host: host.clone(), port });
        let asked = match (&target, proto) {
            (Some(target), Proto::Tcp) => Some(ruling.policy.admit(target.clone(), today())),
            _ => None,
        };
        let said = match &asked {
            Some(Err(denial)) => denial.said_outside(),
            Some(Ok(admitted)) => explain_proxied(admitted, &ruling.policy),
            None => explain_impossible(proto, port),
        };
        let denial = asked.as_ref().and_then(|asked| asked.as_ref().err());
        let mut decision = packet_decision(ruling);
        decision.proto = proto;
        decision.rule = denial.and_then(Denial::rule).map(RuleRef::from);
        decision.refused_by = denial.and_then(Denial::refused_by).map(ToString::to_string);
        decision.error = Some(said.clone());
        let mut denied = DeniedHost::new(target.as_ref(), Reason::Direct, said);
        if let Some(denial) = denial {
            denied = denied.with_denial(denial);
        }
        (denied.host, denied.proto) = (host.to_string(), proto);
        (decision.host, decision.target) = (Some(host.clone()), target);
        let flag_inside = denial.and_then(Denial::flag_inside);
        Self { event: Event::Decision(decision), end: SummaryEntry::Listed(denied), flag_inside }
    }
}

fn new_question(reason: Reason, ruling: &Ruling) -> Question {
    let verdict = if reason == Reason::ResolveError { Verdict::Error } else { Verdict::Deny };
    let mut question = Question::new(verdict, reason);
    question.under = Some(Arc::clone(&ruling.under));
    question
}

fn packet_decision(ruling: &Ruling) -> RequestDecision {
    let mut decision = RequestDecision::new(None, Via::Direct, Verdict::Deny, Reason::Direct);
    decision.under = Some(Arc::clone(&ruling.under));
    decision
}

/// Returns why a name has no address, or `None` if it is granted and has none for another reason.
fn deny_name(policy: &Policy, name: &HostName) -> Option<Denial> {
    let on = |port| policy.admit(Target { host: Host::Name(name.clone()), port }, today()).err();
    let denial = on(Port::HTTPS)?;
    // The name is granted on another port, but something else refuses it there. That is the reason.
    match denial.granted_ports().and_then(|ports| ports.iter().next()) {
        Some(port) => on(port),
        None => Some(denial),
    }
}

/// Explains an attempt at a granted target on which nothing listens.
fn explain_proxied(admitted: &Admitted, policy: &Policy) -> String {
    let said = "allowed through the proxy only: HTTPS_PROXY is set";
    match policy.unserved(admitted.target(), today()) {
        Some(why) => format!("{said}; {why}"),
        None => said.to_owned(),
    }
}

/// Explains an attempt that no rule can grant.
fn explain_impossible(proto: Proto, port: u16) -> String {
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

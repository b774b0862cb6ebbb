//! Records one connection: its decision before anything is done, and its close however it ends. It formats nothing
//! (`exeat-record` does) and decides nothing.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use exeat_policy::{
    BudgetKey, Decision as Decided, Denial, Entrusted, Reason, Rule, Size, Target, Verdict, Vetted,
};
use exeat_record::{Close, CloseCause, ConnId, Event, Proto, RequestDecision, RuleRef, Via, escape};
use tokio::time::Instant;

use crate::context::{Context, Ruling};
use crate::guard::Resolved;
use crate::head::Fault;
use crate::held::Share;
use crate::hello::Hello;
use crate::limits;
use crate::per_host::Permit;
use crate::progress::Progress;
use crate::refusals::Recorded;
use crate::reply::{Failure, Refusal};
use crate::socks;
use crate::tunnel::Moved;
use crate::upload::Budget;
use crate::upstream::UpstreamProxy;
use crate::who::ProcessLookup;

/// The record of one connection, while it is written.
///
/// INVARIANT: once a decision is written, dropping this writes the close, also when the task is aborted.
pub(crate) struct Record<'a> {
    cx: &'a Context,
    conn: ConnId,
    /// The entry that the connection came in by.
    pub(crate) via: Via,
    /// The method of a plain HTTP request.
    pub(crate) method: Option<String>,
    /// The lookup of the process behind the connection.
    lookup: ProcessLookup,
    start: Instant,
    state: State,
    target: Option<Target>,
    dialed: Option<(SocketAddr, Duration)>,
    /// The upstream proxy that serves the target.
    through: Option<String>,
    /// The current dial.
    dial: Dial,
    hello: Option<(Hello, Duration, bool)>,
    /// The policy for this connection, from its first use on.
    ruling: Option<Arc<Ruling>>,
    /// The permit for the target's host, while the connection is open.
    permit: Option<Permit<'a>>,
    /// The memory of its head or hello.
    held: Share<'a>,
    /// The bytes that the tunnel moves.
    pub(crate) moved: Moved<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Undecided,
    Decided,
    /// The close is written, or the refusal was counted in a flood, which has no close.
    Closed,
}

/// The dial to a granted target.
#[derive(Debug)]
enum Dial {
    None,
    /// The decision is written.
    Written,
    /// The decision is written once the dial succeeds, before any byte is sent, because too many dials fail. The
    /// second field is the denial that only report mode overrides.
    Unwritten(Box<RequestDecision>, Option<Box<Denial>>),
}

/// The record's text for a dial that was abandoned.
const GIVEN_UP: &str = "given up while it was dialled";

/// The summary's text for an attempt that was not made because it could not be recorded.
const UNRECORDED: &str = "the attempt cannot be recorded";

/// The error of a decision that could not be written.
pub(crate) struct NotWritten;

impl<'a> Record<'a> {
    pub(crate) fn new(cx: &'a Context, conn: ConnId, via: Via, lookup: ProcessLookup) -> Self {
        Self {
            cx,
            conn,
            via,
            method: None,
            lookup,
            start: Instant::now(),
            state: State::Undecided,
            target: None,
            dialed: None,
            through: None,
            dial: Dial::None,
            hello: None,
            ruling: None,
            permit: None,
            held: cx.head_memory().share(),
            moved: Moved::default(),
        }
    }

    /// Returns the policy, which stays the same while this connection is decided.
    pub(crate) fn ruling(&mut self) -> &Ruling {
        self.ruling.get_or_insert_with(|| self.cx.ruling())
    }

    /// Counts the bytes that this connection buffers. Returns `false` if they exceed its share.
    #[must_use]
    pub(crate) fn try_hold(&mut self, bytes: &Vec<u8>) -> bool {
        self.held.try_hold(bytes.capacity())
    }

    /// Returns the memory of its head or hello.
    pub(crate) fn release_held(&mut self) {
        let _ = self.held.try_hold(0);
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    /// Denies a head that names no target.
    pub(crate) async fn deny_malformed(&mut self, fault: Fault, raw: &[u8]) {
        let is_named = matches!(fault, Fault::HostByte(_));
        self.deny_unread(fault.reason(), fault.to_string(), is_named, Some(raw_target(raw))).await;
    }

    /// Denies a malformed SOCKS5 request. Only the name is recorded, because a password may be next to it.
    pub(crate) async fn deny_malformed_socks(&mut self, fault: socks::Fault, name: Option<&[u8]>) {
        let is_named = matches!(fault, socks::Fault::HostByte(_));
        self.deny_unread(fault.reason(), fault.to_string(), is_named, name.map(raw_target)).await;
    }

    /// `is_named`: the caller reads the target, too. The record has it in any case.
    async fn deny_unread(&mut self, reason: Reason, fault: String, is_named: bool, raw: Option<Vec<u8>>) {
        let name = raw.as_deref().filter(|_| is_named).map(|raw| escape(raw, limits::WRONG_NAME));
        let mut decision = self.new_decision(Verdict::Deny, reason);
        decision.host_raw = raw;
        decision.error = Some(fault.clone());
        // An error changes nothing for the stage, which is refused in any case.
        let _ = self.write_first(decision).await;
        let said = name.map_or(fault.clone(), |name| format!("{fault}: {name}"));
        let who = self.lookup.process();
        self.cx.tally(|tally| tally.count_refusal(None, reason, said, who));
    }

    /// Denies plain HTTP on a port for which a rule grants only TLS.
    pub(crate) async fn deny_plain_http(&mut self, target: Target, rule: Option<&RuleRef>) -> Refusal {
        let said = "plain HTTP, where only TLS is allowed";
        self.deny(&target, rule, Reason::NotTls, said.into(), Refusal::OnlyTls).await
    }

    /// Counts the connection to its host until it closes. Denies it if the host has too many.
    pub(crate) async fn count_connection(
        &mut self,
        target: &Target,
        rule: Option<&RuleRef>,
    ) -> Result<(), Refusal> {
        let most = self.cx.limits().per_host;
        self.permit = self.cx.per_host().admit(&target.host, most);
        if self.permit.is_some() {
            return Ok(());
        }
        let said = format!("{most} connections to this host are open, and no more at one time");
        Err(self.deny(target, rule, Reason::BudgetConns, said, Refusal::Crowded).await)
    }

    /// Releases the permit for the host, because only an answer is left to send.
    pub(crate) fn release_permit(&mut self) {
        self.permit = None;
    }

    /// Sets the upload budgets. Denies the connection if one of them is used up.
    pub(crate) async fn set_budgets(
        &mut self,
        target: &Target,
        rule: Option<&RuleRef>,
        budgets: impl Iterator<Item = (BudgetKey, u64)>,
    ) -> Result<(), Refusal> {
        let Some(budget) = self.cx.uploads().budget_for(budgets) else { return Ok(()) };
        if let Some(said) = budget.used_up() {
            return Err(self.deny(target, rule, Reason::BudgetBytes, said, Refusal::UsedUp).await);
        }
        self.moved.budget = Some(budget);
        Ok(())
    }

    /// Denies a target for a reason that has no `Denial`. `said` goes into the record and the summary; `refusal` determines what the
    /// client reads.
    async fn deny(
        &mut self,
        target: &Target,
        rule: Option<&RuleRef>,
        reason: Reason,
        said: String,
        refusal: fn(Target) -> Refusal,
    ) -> Refusal {
        self.target = Some(target.clone());
        let mut decision = self.new_decision(Verdict::Deny, reason);
        decision.rule = rule.cloned();
        decision.error = Some(said.clone());
        if let Err(refusal) = self.write_or_refuse(decision, target).await {
            return refusal;
        }
        let who = self.lookup.process();
        self.cx.tally(|tally| tally.count_refusal(Some(target), reason, said, who));
        self.deny_inside(target, reason, None);
        refusal(target.clone())
    }

    /// Refuses a connection because the record is full.
    pub(crate) async fn refuse_full(&mut self, target: Target) -> Refusal {
        self.target = Some(target.clone());
        let mut decision = self.new_decision(Verdict::Error, Reason::RecordFull);
        let said = match self.cx.log().full() {
            Some(why) => format!("the disk has no room for the record: {why}"),
            None => format!("the record has the {} that it may have", size_text(self.cx.limits().audit_size)),
        };
        decision.error = Some(said.clone());
        if let Err(refusal) = self.write_or_refuse(decision, &target).await {
            return refusal;
        }
        self.cx.tally(|tally| tally.count_record_full(&target, &said));
        Refusal::RecordFull(target)
    }

    /// Denies a target by policy.
    pub(crate) async fn deny_by_policy(
        &mut self,
        denial: Denial,
        ips: Vec<IpAddr>,
        dns: Option<Duration>,
    ) -> Refusal {
        self.target = Some(denial.target().clone());
        let decided = denial.decision();
        let mut decision = self.new_decision(decided.verdict, decided.reason);
        decision.ips = ips;
        decision.dns = dns;
        decision.rule = denial.rule().or(denial.admitted_by()).map(RuleRef::from);
        decision.refused_by = denial.refused_by().map(ToString::to_string);
        // No other field says which ports are granted.
        decision.error = (decided.reason == Reason::Port).then(|| denial.said_outside());
        if let Err(refusal) = self.write_or_refuse(decision, denial.target()).await {
            return refusal;
        }
        let who = self.lookup.process();
        let refusals = self.cx.tally(|tally| tally.count_denial(&denial, who));
        self.deny_inside(denial.target(), denial.reason(), denial.flag_inside().as_deref());
        self.cx.slow_down(refusals).await;
        Refusal::DeniedByPolicy(denial)
    }

    /// Records that a granted target has no usable address.
    pub(crate) async fn record_unresolved(
        &mut self,
        target: Target,
        rule: Option<RuleRef>,
        failure: Failure,
    ) -> Refusal {
        self.target = Some(target.clone());
        let mut decision = self.new_decision(Verdict::Error, failure.reason());
        decision.rule = rule;
        decision.error = Some(failure.to_string());
        if let Err(refusal) = self.write_or_refuse(decision, &target).await {
            return refusal;
        }
        self.cx.tally(|tally| tally.count_failure(&target, failure.reason(), &failure.to_string()));
        Refusal::Failed(target, failure)
    }

    /// Records that a target which only report mode allows has no usable address: what enforcing would do, and then the failure. An error
    /// alone would hide the refusal, which does not depend on the lookup.
    pub(crate) async fn record_unresolved_report(
        &mut self,
        decided: Decided,
        denial: &Denial,
        failure: Failure,
    ) -> Refusal {
        let target = decided.target.clone();
        match self.grant(decided, None, Some(denial), Vec::new(), None).await {
            Ok(()) => self.record_dial_failure(target, failure, failure.to_string()),
            Err(refusal) => refusal,
        }
    }

    /// Records the grant, and returns the permission to dial. No other function returns it.
    pub(crate) async fn allow(&mut self, resolved: Resolved) -> Result<Vetted, Refusal> {
        let Resolved { vetted, dns } = resolved;
        let ips = vetted.addrs().iter().map(SocketAddr::ip).collect();
        self.grant(vetted.decision(), vetted.rule(), vetted.would_deny(), ips, dns).await?;
        Ok(vetted)
    }

    /// Records the grant of a target for an upstream proxy, and returns the permission.
    pub(crate) async fn allow_entrusted(
        &mut self,
        entrusted: Entrusted,
        proxy: &UpstreamProxy,
    ) -> Result<Entrusted, Refusal> {
        self.through = Some(proxy.to_string());
        let ips = entrusted.target().host.ip().into_iter().collect();
        self.grant(entrusted.decision(), entrusted.rule(), entrusted.would_deny(), ips, None).await?;
        Ok(entrusted)
    }

    async fn grant(
        &mut self,
        decided: Decided,
        rule: Option<&Rule>,
        would_deny: Option<&Denial>,
        ips: Vec<IpAddr>,
        dns: Option<Duration>,
    ) -> Result<(), Refusal> {
        let target = decided.target;
        self.target = Some(target.clone());
        let mut decision = self.new_decision(decided.verdict, decided.reason);
        decision.ips = ips;
        decision.dns = dns;
        decision.rule = rule.map(RuleRef::from);
        // As for a denial: no other field says which ports are granted.
        decision.error = would_deny.filter(|_| decided.reason == Reason::Port).map(Denial::said_outside);
        if self.cx.refusals().begin_dial() {
            self.write_grant(decision, would_deny).await?;
            self.dial = Dial::Written;
            return Ok(());
        }
        if self.cx.log().failure().is_some() {
            self.cx.tally(|tally| tally.count_failure(&target, Reason::AuditUnavailable, UNRECORDED));
            return Err(Refusal::NoRecord(target));
        }
        self.dial = Dial::Unwritten(Box::new(decision), would_deny.cloned().map(Box::new));
        Ok(())
    }

    async fn write_grant(
        &mut self,
        decision: RequestDecision,
        would_deny: Option<&Denial>,
    ) -> Result<(), Refusal> {
        if let Some(target) = decision.target.clone() {
            self.lookup.finish().await;
            // This is checked after the name lookup, right before the line is written.
            if self.cx.record_is_full() {
                return Err(self.refuse_full(target).await);
            }
            self.write_or_refuse(decision, &target).await?;
        }
        self.count_would_deny(would_deny);
        Ok(())
    }

    fn count_would_deny(&self, would_deny: Option<&Denial>) {
        if let Some(denial) = would_deny {
            let who = self.lookup.process();
            self.cx.tally(|tally| tally.count_would_deny(denial, who));
        }
    }

    /// Records that the dial failed: in the close, or in a count during a flood.
    pub(crate) fn record_dial_failure(
        &mut self,
        target: Target,
        failure: Failure,
        detail: String,
    ) -> Refusal {
        self.cx.tally(|tally| tally.count_failure(&target, failure.reason(), &failure.to_string()));
        match std::mem::replace(&mut self.dial, Dial::None) {
            Dial::Unwritten(decision, would_deny) => {
                self.count_would_deny(would_deny.as_deref());
                if self.count_failed(*decision, failure.reason(), failure.to_string()).is_err() {
                    return Refusal::NoRecord(target);
                }
            }
            _ => self.close(CloseCause::Error, Some(format!("{}: {detail}", failure.reason()))),
        }
        Refusal::Failed(target, failure)
    }

    /// Counts a failed dial whose decision is in no line.
    fn count_failed(
        &mut self,
        mut decision: RequestDecision,
        reason: Reason,
        said: String,
    ) -> Result<(), exeat_record::LogError> {
        self.state = State::Closed;
        self.permit = None;
        (decision.verdict, decision.reason, decision.error) = (Verdict::Error, reason, Some(said));
        decision.under = Some(Arc::clone(&self.ruling().under));
        self.cx.refusals().count_failed_dial(self.cx.log(), decision)
    }

    /// Closes an allowed request that was not forwarded, or got no answer.
    pub(crate) fn close_not_forwarded(&mut self, refusal: &Refusal) {
        let said = match refusal {
            Refusal::Failed(target, failure) => {
                self.cx.tally(|tally| tally.count_failure(target, failure.reason(), &failure.to_string()));
                Some(format!("{}: {failure}", failure.reason()))
            }
            Refusal::Malformed(fault) => Some(format!("{}: {fault}", fault.reason())),
            // A used-up budget adds its own text.
            _ => None,
        };
        self.close(CloseCause::Error, said);
    }

    /// Records that the dial succeeded. If the decision is not written yet, it is written here, before any byte is
    /// sent.
    pub(crate) async fn record_dialed(
        &mut self,
        target: &Target,
        addr: SocketAddr,
        took: Duration,
    ) -> Result<(), Refusal> {
        match std::mem::replace(&mut self.dial, Dial::None) {
            Dial::Unwritten(decision, would_deny) => {
                self.write_grant(*decision, would_deny.as_deref()).await?;
            }
            Dial::Written => self.cx.refusals().dial_succeeded(),
            Dial::None => {}
        }
        self.dialed = Some((addr, took));
        self.moved.progress = Some(Progress::new(self.cx, self.conn, target.clone()));
        self.cx.tally(|tally| tally.count_reached(target));
        Ok(())
    }

    /// Notes the hello, and whether it names the target.
    pub(crate) fn note_hello(&mut self, hello: Hello, took: Duration, ok: bool) {
        self.hello = Some((hello, took, ok));
    }

    /// Notes a second hello, which does not name the target.
    pub(crate) fn note_second_hello(&mut self, hello: Hello) {
        let took = self.hello.as_ref().map_or(Duration::ZERO, |(_, took, _)| *took);
        self.hello = Some((hello, took, false));
    }

    /// Denies a tunnel after the 200: with a second decision, and then the close.
    pub(crate) fn deny_late(&mut self, target: &Target, reason: Reason, said: String) {
        self.write_second(target, reason, said.clone());
        self.close(CloseCause::Killed, Some(said));
    }

    fn write_second(&mut self, target: &Target, reason: Reason, said: String) {
        let mut decision = self.new_decision(Verdict::Deny, reason);
        decision.ip = self.dialed.map(|(addr, _)| addr.ip());
        (decision.sni, decision.sni_ok, decision.alpn, decision.ech) = self.hello_fields();
        decision.error = Some(said.clone());
        let _ = self.write(decision); // it is closed in any case
        let who = self.lookup.process();
        self.cx.tally(|tally| tally.count_refusal(Some(target), reason, said, who));
        self.deny_inside(target, reason, None);
    }

    /// Writes the close, once, and only after a decision. A used-up budget is the end, whatever followed. An
    /// abandoned dial counts as failed.
    pub(crate) fn close(&mut self, mut end: CloseCause, mut error: Option<String>) {
        if self.state != State::Decided {
            return;
        }
        let ran_out = self.moved.budget.as_ref().filter(|budget| budget.ran_out());
        if let (Some(said), Some(target)) = (ran_out.and_then(Budget::used_up), self.target.clone()) {
            self.write_second(&target, Reason::BudgetBytes, said.clone());
            (end, error) = (CloseCause::Budget, Some(said));
        }
        if matches!(self.dial, Dial::Written)
            && let Some(target) = &self.target
        {
            self.cx.tally(|tally| tally.count_failure(target, Reason::ConnectError, GIVEN_UP));
            (end, error) = (CloseCause::Error, Some(format!("{}: {GIVEN_UP}", Reason::ConnectError)));
        }
        self.state = State::Closed;
        self.permit = None;
        let mut close = Close::new(self.conn, end);
        close.target = self.target.take();
        close.ip = self.dialed.map(|(addr, _)| addr.ip());
        close.connect = self.dialed.map(|(_, took)| took);
        close.tls = self.hello.as_ref().map(|(_, took, _)| *took);
        (close.sni, close.sni_ok, close.alpn, close.ech) = self.hello_fields();
        close.dur = self.start.elapsed();
        close.bytes_up = self.moved.up();
        close.bytes_down = self.moved.down();
        if let (Some(target), Some(_)) = (&close.target, self.dialed) {
            self.cx.tally(|tally| tally.count_closed(target, close.bytes_up, close.bytes_down));
        }
        close.error = error;
        tracing::debug!(conn = %self.conn, ?end, up = close.bytes_up, down = close.bytes_down, "closed");
        // An error changes nothing here: the log refuses every further decision.
        let _ = self.cx.log().write(Event::Close(close));
    }

    fn deny_inside(&self, target: &Target, reason: Reason, flag: Option<&str>) {
        self.cx.deny_inside(&target.to_string(), Proto::Tcp, reason, flag);
    }

    fn new_decision(&self, verdict: Verdict, reason: Reason) -> RequestDecision {
        let mut decision = RequestDecision::new(self.conn, self.via, verdict, reason);
        decision.method.clone_from(&self.method);
        decision.target.clone_from(&self.target);
        decision.upstream.clone_from(&self.through);
        decision
    }

    async fn write_or_refuse(&mut self, decision: RequestDecision, target: &Target) -> Result<(), Refusal> {
        self.write_first(decision).await.map_err(|NotWritten| {
            self.cx.tally(|tally| tally.count_failure(target, Reason::AuditUnavailable, UNRECORDED));
            Refusal::NoRecord(target.clone())
        })
    }

    /// Writes the first decision of a connection. It waits for the process lookup that started at accept, which has
    /// normally finished by now.
    async fn write_first(&mut self, decision: RequestDecision) -> Result<(), NotWritten> {
        self.lookup.finish().await;
        self.write(decision)
    }

    fn write(&mut self, mut decision: RequestDecision) -> Result<(), NotWritten> {
        decision.process = self.lookup.process().cloned();
        decision.under = Some(Arc::clone(&self.ruling().under));
        let (verdict, reason) = (decision.verdict, decision.reason);
        tracing::debug!(conn = %self.conn, %verdict, %reason, target = ?decision.target, "decided");
        // A connection that was let through always has its own lines.
        let is_refusal = self.state == State::Undecided && matches!(verdict, Verdict::Deny | Verdict::Error);
        let told = match is_refusal {
            true => self.cx.refuse(decision),
            false => self.cx.log().write(Event::Decision(decision)).map(|_| Recorded::Alone),
        };
        match told {
            Ok(told) => {
                self.state = if told == Recorded::Alone { State::Decided } else { State::Closed };
                Ok(())
            }
            Err(error) => {
                tracing::debug!(conn = %self.conn, %error, "cannot record");
                Err(NotWritten)
            }
        }
    }

    fn hello_fields(&self) -> (Option<String>, Option<bool>, Option<String>, bool) {
        match &self.hello {
            Some((hello, _, ok)) => (
                hello.sni.as_ref().map(|sni| escape(sni.as_bytes(), limits::TEXT)),
                Some(*ok),
                hello.alpn.as_ref().map(|alpn| escape(alpn, limits::TEXT)),
                hello.ech,
            ),
            None => (None, None, None, false),
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.dial, Dial::None) {
            Dial::Unwritten(decision, would_deny) => {
                self.count_would_deny(would_deny.as_deref());
                if let Some(target) = &decision.target {
                    self.cx.tally(|tally| tally.count_failure(target, Reason::ConnectError, GIVEN_UP));
                }
                let _ = self.count_failed(*decision, Reason::ConnectError, GIVEN_UP.into());
            }
            other => self.dial = other,
        }
        self.close(CloseCause::Killed, None);
    }
}

/// Formats a size as in a policy.
fn size_text(bytes: u64) -> String {
    Size::new(bytes).map(|size| size.to_string()).unwrap_or_default()
}

/// Extracts the host from a head that could not be parsed: the part of the second word that can be a scheme, a host
/// and a port. If the first word is not a method, it is used instead. Userinfo, path and query can contain secrets,
/// so whatever may belong to them is left out.
fn raw_target(head: &[u8]) -> Vec<u8> {
    let line = head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let is_method = first.iter().all(u8::is_ascii_uppercase);
    let word = if is_method { words.next().unwrap_or_default() } else { first };
    let after_scheme = word.windows(3).position(|bytes| bytes == b"://").map_or(0, |at| at + 3);
    let (scheme, rest) = word.split_at_checked(after_scheme).unwrap_or((&[], word));
    let mut raw = scheme.to_vec();
    let ends = |byte: &u8| byte.is_ascii_punctuation() && !b"@.-_:[]%".contains(byte);
    let (authority, behind) = rest.split_at(rest.iter().position(ends).unwrap_or(rest.len()));
    let host = match authority.iter().rposition(|&byte| byte == b'@') {
        // The password may have contained a slash.
        _ if behind.contains(&b'@') => b"***",
        Some(at) => {
            raw.extend_from_slice(b"***@");
            authority.get(at + 1..).unwrap_or_default()
        }
        None => authority,
    };
    // After the last colon of a host there is a port, or text that must not be recorded.
    let in_brackets = host.iter().rposition(|&byte| byte == b']').map_or(0, |at| at + 1);
    let colon = host.iter().skip(in_brackets).position(|&byte| byte == b':').map(|at| in_brackets + at + 1);
    let digits = |from: usize| host.iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count();
    let bare_v6 = std::str::from_utf8(host).is_ok_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let kept = colon.filter(|_| !bare_v6).map_or(host.len(), |from| from + digits(from));
    raw.extend(host.iter().take(kept));
    raw.truncate(limits::TEXT);
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H12, A03: userinfo, path and query of a refused request are not recorded.
    #[test]
    fn keeps_secrets_out_of_the_raw_target() {
        for (head, raw) in [
            ("CONNECT u:secret@allowed.test:443 HTTP/1.1\r\n", "***@allowed.test:443"),
            ("CONNECT  two.test:443 HTTP/1.1\r\n", "two.test:443"),
            ("GET http://u:secret@a.test/p?token=secret HTTP/1.1\r\n", "http://***@a.test"),
            ("GET /p/secret?token=secret HTTP/1.1\r\n", ""),
            ("\x16\x03\x01", "\x16\x03\x01"),
            ("", ""),
            ("CONNECT evil.test\x1b[2K:443 HTTP/1.1\r\n", "evil.test\x1b[2K:443"),
            ("CONNECT [::1%25lo]:443 HTTP/1.1\r\n", "[::1%25lo]:443"),
            ("GET http://user:secret/ss@good.test/ HTTP/1.1\r\n", "http://***"),
            ("CONNECT user:sec/ret@good.test:443 HTTP/1.1\r\n", "***"),
            ("GET http:\\\\good.test\\secret HTTP/1.1\r\n", "http:"),
            ("GET http://good.test\\secret HTTP/1.1\r\n", "http://good.test"),
            ("GET http://good.test;secret HTTP/1.1\r\n", "http://good.test"),
            ("GET token=secret HTTP/1.1\r\n", "token"),
            ("CONNECT ::1 HTTP/1.1\r\n", "::1"),
            ("GET data:secret HTTP/1.1\r\n", "data:"),
            ("Authorization: secret\r\n", "Authorization:"),
            ("authorization:secret\r\n", "authorization:"),
        ] {
            assert_eq!(raw_target(head.as_bytes()), raw.as_bytes(), "{head:?}");
        }
        assert_eq!(raw_target(&[b'a'; 4000]).len(), limits::TEXT);
    }
}

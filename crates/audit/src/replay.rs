//! Decides the attempts of records again under another policy, and reports the differences.
//!
//! Looks nothing up: addresses come from the record, and [`exeat_policy::Admitted::vet`] judges them as in a run. Limits of connections
//! are not replayed, and neither is content that the record does not have. For a connection without an end, its `progress` lines say
//! the least that it sent. Memory is bounded whatever the records contain.

use std::collections::BTreeMap;
use std::io::{self, Write};

use exeat_policy::{
    AddrClass, Admitted, BudgetKey, Day, Denial, Ech, Host, OwnAddrs, Policy, Port, Reason, Rule, RuleEffect,
    Target, TlsCheck, Verdict, classify, printable_ascii,
};
use exeat_record::{Via, ascii_json};
use serde_json::json;

use crate::query::{LineKind, Record};
use crate::{Attempt, table};

/// The most differences that are kept apart; the rest is counted.
pub const MAX_DIFFERENCES: usize = 10_000;

/// The most open connections under a budget that are kept apart; the rest is counted.
const MAX_OPEN: usize = 10_000;

/// The most rules that are kept apart in one difference.
const MAX_RULES: usize = 16;

/// Compares the lines that it takes in with the decisions of another policy.
pub struct Replay<'a> {
    policy: &'a Policy,
    /// Whether a target is now left to an upstream proxy, so that its addresses are not known.
    entrusted: &'a dyn Fn(&Target) -> bool,
    today: Day,
    differences: BTreeMap<Key, Difference>,
    /// Attempts that are decided as before, and the others by their verdict now.
    same: u64,
    now_denied: u64,
    now_allowed: u64,
    now_would_deny: u64,
    /// Attempts that a rule now lets through as far as their name goes: their addresses are not on record, and may be refused. They count
    /// in `now_allowed` or `now_would_deny`, too.
    unchecked: u64,
    /// Attempts that were refused for something that is not in the policy (a malformed request, too many connections), so that no policy
    /// decides them.
    unjudged: u64,
    /// Attempts whose verdict may differ, and whose records do not say enough to tell.
    unknown: Unknown,
    /// Bytes sent in this run, by budget.
    uploads: BTreeMap<BudgetKey, Upload>,
    /// The open connections under a budget in this run, by number.
    open: BTreeMap<u64, Open>,
    /// The number of open connections beyond those.
    more_open: u64,
    /// The run of the last line, and whether its end was read.
    run: Option<(String, bool)>,
    /// Attempts that differ and have no entry in `differences`, because there are [`MAX_DIFFERENCES`].
    unlisted: u64,
}

/// Counts of what records do not say.
#[derive(Debug, Default)]
struct Unknown {
    /// Attempts that differ only by where a name leads.
    addresses: u64,
    /// Attempts without an end on record, under a policy that bounds the bytes sent.
    bytes: u64,
    /// The least that these attempts have sent.
    at_least: u64,
    /// Attempts with an end that shared a budget with one of those, which may have used it up first.
    shared: u64,
    /// Attempts on record without their host.
    hosts: u64,
    /// Attempts that are only counted in the records.
    lines: u64,
    /// Runs without an end.
    ends: u64,
    /// Runs whose decisions are in another proxy's record.
    elsewhere: u64,
}

impl Unknown {
    /// Returns the number of attempts whose verdict nobody can tell.
    fn attempts(&self) -> u64 {
        [self.addresses, self.bytes, self.shared, self.hosts, self.lines]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    fn words(&self) -> impl Iterator<Item = String> {
        let bytes = match self.at_least {
            0 => "without bytes on record, where the policy has a `max_upload`".to_owned(),
            up => format!(
                "without an end on record (at least {} up), where the policy has a `max_upload`",
                table::bytes(up)
            ),
        };
        [
            (self.addresses, "attempt", "without addresses on record, which the policy judges"),
            (self.bytes, "attempt", bytes.as_str()),
            (self.shared, "attempt", "under the same `max_upload` as these, at the same time"),
            (self.hosts, "attempt", "without a host on record"),
            (self.lines, "attempt", "without a line"),
            (self.ends, "run", "without an end on record"),
            (self.elsewhere, "run", "with decisions in another proxy's record"),
        ]
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, what, rest)| format!("{count} {what}{} {rest}", if count == 1 { "" } else { "s" }))
        .collect::<Vec<_>>()
        .into_iter()
    }
}

/// The bytes sent under one budget.
#[derive(Debug)]
struct Upload {
    most: u64,
    sent: u64,
    /// Connections that have ended, and were let through then and now.
    same: u64,
}

/// A connection under a budget whose end was not read yet.
#[derive(Debug)]
struct Open {
    /// The bytes that it has sent according to the last line about it.
    sent: u64,
    /// Whether it is let through as it was.
    is_same: bool,
    /// Its budgets, each with the number of connections that had ended under it when this one began.
    budgets: Vec<(BudgetKey, u64)>,
}

/// Attempts with the same key share one difference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    host: Host,
    port: Option<Port>,
    via: Via,
    was: (Verdict, Reason),
    now: (Verdict, Reason),
}

#[derive(Debug)]
struct Difference {
    count: u64,
    /// The rules that decided then and their places, as in the record, each with a count.
    was_by: BTreeMap<(String, String), u64>,
    /// Attempts of further rules, because `was_by` has [`MAX_RULES`].
    more_rules: u64,
    /// The rule that decides now, and its place.
    now_by: Option<(String, String)>,
    /// The policy's words about a refusal.
    said: Option<String>,
    unchecked: bool,
}

/// The decision of the new policy.
struct Now {
    verdict: Verdict,
    reason: Reason,
    by: Option<(String, String)>,
    said: Option<String>,
    unchecked: bool,
}

impl Now {
    fn denied(denial: &Denial) -> Self {
        Self {
            verdict: Verdict::Deny,
            reason: denial.reason(),
            by: denial.rule().map(rule_and_place),
            said: Some(denial.said_outside()),
            unchecked: false,
        }
    }

    fn admitted(admitted: &Admitted, unchecked: bool) -> Self {
        match admitted.would_deny() {
            None => Self::allowed(admitted.rule().map(rule_and_place), unchecked),
            Some(denial) => Self { verdict: Verdict::WouldDeny, unchecked, ..Self::denied(denial) },
        }
    }

    fn allowed(by: Option<(String, String)>, unchecked: bool) -> Self {
        Self { verdict: Verdict::Allow, reason: Reason::Rule, by, said: None, unchecked }
    }
}

fn rule_and_place(rule: &Rule) -> (String, String) {
    (rule.text.clone(), rule.origin.to_string())
}

impl<'a> Replay<'a> {
    /// Creates a replay against this policy, as of this day.
    pub fn new(policy: &'a Policy, entrusted: &'a dyn Fn(&Target) -> bool, today: Day) -> Self {
        Self {
            policy,
            entrusted,
            today,
            differences: BTreeMap::new(),
            same: 0,
            now_denied: 0,
            now_allowed: 0,
            now_would_deny: 0,
            unchecked: 0,
            unjudged: 0,
            unknown: Unknown::default(),
            uploads: BTreeMap::new(),
            open: BTreeMap::new(),
            more_open: 0,
            run: None,
            unlisted: 0,
        }
    }

    /// Ends the last run.
    pub fn finish(&mut self) {
        self.end_run();
    }

    /// Whether an attempt may have been decided otherwise, and the records do not say enough to tell.
    pub fn is_unsure(&self) -> bool {
        self.unknown.attempts() > 0
    }

    fn end_run(&mut self) {
        if let Some((_, false)) = self.run.take() {
            add(&mut self.unknown.ends, 1);
        }
        let open = std::mem::take(&mut self.open);
        let mut unknown = std::mem::take(&mut self.more_open);
        // A connection that ran at the same time may have used up this one's budget.
        let mut shared: BTreeMap<BudgetKey, u64> = BTreeMap::new();
        for it in open.into_values().filter(|it| it.is_same) {
            add(&mut unknown, 1);
            add(&mut self.unknown.at_least, it.sent);
            for (key, before) in it.budgets {
                let same = self.uploads.get(&key).map_or(0, |upload| upload.same);
                let since = shared.entry(key).or_default();
                *since = (*since).max(same.saturating_sub(before));
            }
        }
        let shared = shared.into_values().fold(0, u64::saturating_add);
        self.uploads.clear();
        add(&mut self.unknown.bytes, unknown);
        add(&mut self.unknown.shared, shared);
        self.same = self.same.saturating_sub(unknown.saturating_add(shared));
    }

    /// Whether something would have been decided otherwise.
    pub fn differs(&self) -> bool {
        [self.now_denied, self.now_allowed, self.now_would_deny].into_iter().any(|count| count > 0)
    }

    /// Takes in one line.
    pub fn take(&mut self, record: &Record) {
        if self.run.as_ref().is_none_or(|(run, _)| *run != record.run) {
            self.end_run();
            self.run = Some((record.run.clone(), false));
        }
        match record.event {
            LineKind::RunStart if record.proxy.is_some() => add(&mut self.unknown.elsewhere, 1),
            LineKind::RunEnd => {
                self.run = Some((record.run.clone(), true));
                add(&mut self.unknown.lines, record.dropped.unwrap_or(0));
            }
            LineKind::Decision => match record.attempt() {
                Some(attempt) => self.attempt(record, attempt),
                // A flood of refusals is counted without its hosts.
                None if record.host.is_none() && record.host_raw.is_none() && record.count.is_some() => {
                    add(&mut self.unknown.hosts, record.count.unwrap_or(1));
                }
                None => self.unjudged = self.unjudged.saturating_add(record.count.unwrap_or(1)),
            },
            LineKind::Dns => self.question(record),
            LineKind::Progress => self.sent(record),
            LineKind::Close => self.close(record),
            _ => {}
        }
    }

    fn attempt(&mut self, record: &Record, attempt: Attempt) {
        let Some(now) = self.now(record, &attempt) else {
            self.unjudged = self.unjudged.saturating_add(attempt.count);
            return;
        };
        let is_open = |verdict| matches!(verdict, Verdict::Allow | Verdict::WouldDeny);
        if is_open(attempt.verdict) && is_open(now.verdict) && !now.unchecked {
            self.begin(record.conn, &attempt, attempt.verdict == now.verdict);
        }
        let Target { host, port } = attempt.target;
        let was = (attempt.verdict, attempt.reason);
        self.compare(record, host, Some(port), attempt.via, was, attempt.count, now);
    }

    /// Returns the new decision; `None` if no rule decides the attempt.
    fn now(&self, record: &Record, attempt: &Attempt) -> Option<Now> {
        let admitted = match self.policy.admit(attempt.target.clone(), self.today) {
            Ok(admitted) => admitted,
            Err(denial) => return Some(Now::denied(&denial)),
        };
        let as_before = || Now {
            verdict: attempt.verdict,
            reason: attempt.reason,
            by: None,
            said: None,
            unchecked: false,
        };
        match (attempt.verdict, attempt.reason) {
            (
                Verdict::Deny,
                Reason::BudgetBytes
                | Reason::BudgetConns
                | Reason::AuditUnavailable
                | Reason::Malformed
                | Reason::Scheme,
            ) => return None,
            (Verdict::Error, _) if !attempt.is_let_through() => return None,
            // The policy also says whether the content must match the target.
            (
                Verdict::Deny,
                Reason::SniMissing
                | Reason::SniMismatch
                | Reason::NotTls
                | Reason::HelloTimeout
                | Reason::HelloMalformed
                | Reason::HelloTooLarge
                | Reason::HostMismatch,
            ) if admitted.tls() != TlsCheck::Off => return Some(as_before()),
            (Verdict::Deny, Reason::Ech) if admitted.ech() == Ech::Refuse => return Some(as_before()),
            // The gateway listens only on the policy's ports.
            (Verdict::Deny, Reason::Direct)
                if self.policy.unserved(&attempt.target, self.today).is_some() =>
            {
                return Some(as_before());
            }
            _ => {}
        }
        let is_name = attempt.target.host.name().is_some();
        // exeat does not judge the addresses of what it leaves to another proxy.
        if is_name && (self.entrusted)(&attempt.target) {
            return Some(Now::admitted(&admitted, false));
        }
        if is_name && (record.ips.is_empty() || record.upstream.is_some()) {
            return Some(Now::admitted(&admitted, true));
        }
        // A public address that was refused as private was an address of the machine itself.
        let own = (attempt.reason == Reason::PrivateIp)
            .then(|| record.ips.iter().copied().filter(|ip| classify(*ip) == AddrClass::Public));
        let own = own.map(OwnAddrs::new).unwrap_or_default();
        let passed = Now::admitted(&admitted, is_name && record.ips_more.is_some());
        Some(match admitted.vet(&record.ips, &own) {
            Ok(_) => passed,
            Err(denial) => Now::denied(&denial),
        })
    }

    fn question(&mut self, record: &Record) {
        let count = record.count.unwrap_or(1);
        let (Some(host), Some(Verdict::Deny), Some(reason)) =
            (record.asked_host(), record.verdict(), record.reason())
        else {
            self.unjudged = self.unjudged.saturating_add(count);
            return;
        };
        let Host::Name(name) = &host else { return };
        let now = match self.policy.served_ports(name, self.today).is_empty() {
            true => Now { verdict: Verdict::Deny, reason, by: None, said: None, unchecked: false },
            false => Now::allowed(None, true),
        };
        self.compare(record, host, None, Via::Dns, (Verdict::Deny, reason), count, now);
    }

    /// Takes in the end of a connection.
    fn close(&mut self, record: &Record) {
        self.sent(record);
        self.hello(record);
    }

    /// Starts to follow a connection that may be under a budget.
    fn begin(&mut self, conn: Option<u64>, attempt: &Attempt, is_same: bool) {
        let Ok(admitted) = self.policy.admit(attempt.target.clone(), self.today) else { return };
        let budgets = admitted.upload_budgets().map(|(key, most)| {
            let upload = self.uploads.entry(key.clone()).or_insert(Upload { most, sent: 0, same: 0 });
            (key, upload.same)
        });
        let budgets: Vec<_> = budgets.collect();
        match conn {
            _ if budgets.is_empty() => {}
            Some(conn) if self.open.len() < MAX_OPEN => {
                self.open.insert(conn, Open { sent: 0, is_same, budgets });
            }
            _ => add(&mut self.more_open, attempt.count),
        }
    }

    /// Counts the bytes that a connection has sent, which may be more than the policy allows.
    fn sent(&mut self, record: &Record) {
        let (Some(host), Some(port)) = (record.asked_host(), record.port.and_then(Port::new)) else { return };
        let Ok(admitted) = self.policy.admit(Target { host: host.clone(), port }, self.today) else { return };
        let is_over = record.event == LineKind::Close;
        // The connection is unknown if its decision was filtered out or a refusal.
        let open = match record.conn.and_then(|conn| self.open.remove(&conn)) {
            Some(open) => open,
            None if is_over && self.more_open > 0 => {
                self.more_open -= 1;
                let budgets = admitted.upload_budgets().map(|(key, _)| (key, 0)).collect();
                Open { sent: 0, is_same: true, budgets }
            }
            None => return,
        };
        let sent = record.bytes_up.unwrap_or(0).max(open.sent);
        let mut is_beyond = false;
        for (key, _) in &open.budgets {
            let Some(upload) = self.uploads.get_mut(key) else { continue };
            add(&mut upload.sent, sent - open.sent);
            is_beyond |= upload.sent > upload.most;
        }
        let is_cut = record.ended_by.as_deref() == Some("budget");
        if open.is_same && is_beyond && !is_cut {
            let now = Now {
                verdict: Verdict::Deny,
                reason: Reason::BudgetBytes,
                by: admitted.rule().map(rule_and_place),
                said: Some("more was sent than `max_upload`".into()),
                unchecked: false,
            };
            self.same = self.same.saturating_sub(1);
            self.compare(record, host, Some(port), Via::Connect, (Verdict::Allow, Reason::Rule), 1, now);
        }
        match record.conn {
            // The connection already differs: its further bytes only count.
            Some(conn) if !is_over => {
                self.open.insert(conn, Open { sent, is_same: open.is_same && !is_beyond, ..open });
            }
            _ if open.is_same && !is_beyond => {
                for (key, _) in open.budgets {
                    self.uploads.entry(key).and_modify(|upload| add(&mut upload.same, 1));
                }
            }
            _ => {}
        }
    }

    /// Takes in a hello that may hide its name: it passed, and might not now.
    fn hello(&mut self, record: &Record) {
        let hides = record.ech == Some(true) && record.sni_ok == Some(true);
        if !hides || self.policy.terms().ech != Ech::Refuse {
            return;
        }
        let (Some(host), Some(port)) = (record.asked_host(), record.port.and_then(Port::new)) else { return };
        let Ok(admitted) = self.policy.admit(Target { host: host.clone(), port }, self.today) else { return };
        if admitted.tls() == TlsCheck::Off {
            return;
        }
        let now = Now {
            verdict: Verdict::Deny,
            reason: Reason::Ech,
            by: None,
            said: Some("the TLS hello may hide its server name".into()),
            unchecked: false,
        };
        // Its decision was counted as unchanged.
        self.same = self.same.saturating_sub(1);
        self.compare(record, host, Some(port), Via::Connect, (Verdict::Allow, Reason::Rule), 1, now);
    }

    #[expect(clippy::too_many_arguments, reason = "what was, and what is")]
    fn compare(
        &mut self,
        record: &Record,
        host: Host,
        port: Option<Port>,
        via: Via,
        was: (Verdict, Reason),
        count: u64,
        now: Now,
    ) {
        let is_same = match (was.0, now.verdict) {
            // It was let through in either mode.
            (Verdict::Error, Verdict::Allow | Verdict::WouldDeny) => true,
            (was, now) => was == now,
        };
        match (is_same, now.unchecked) {
            (true, true) => return add(&mut self.unknown.addresses, count),
            (true, false) => return add(&mut self.same, count),
            (false, true) => add(&mut self.unchecked, count),
            (false, false) => {}
        }
        add(
            match now.verdict {
                Verdict::Deny | Verdict::Error => &mut self.now_denied,
                Verdict::Allow => &mut self.now_allowed,
                Verdict::WouldDeny => &mut self.now_would_deny,
            },
            count,
        );
        let key = Key { host, port, via, was, now: (now.verdict, now.reason) };
        if self.differences.len() >= MAX_DIFFERENCES && !self.differences.contains_key(&key) {
            add(&mut self.unlisted, count);
            return;
        }
        let rule = record.rule.clone().map(|rule| (rule, record.rule_src.clone().unwrap_or_default()));
        let difference = self.differences.entry(key).or_insert_with(|| Difference {
            count: 0,
            was_by: BTreeMap::new(),
            more_rules: 0,
            now_by: now.by,
            said: now.said,
            unchecked: now.unchecked,
        });
        add(&mut difference.count, count);
        let Some(rule) = rule else { return };
        if difference.was_by.len() < MAX_RULES || difference.was_by.contains_key(&rule) {
            add(difference.was_by.entry(rule).or_default(), count);
        } else {
            add(&mut difference.more_rules, 1);
        }
    }

    /// Writes the differences as text, new refusals first.
    ///
    /// # Errors
    ///
    /// Fails if the output cannot be written.
    pub fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let sorted =
            |deny: bool| self.differences.iter().filter(move |(key, _)| (key.now.0 == Verdict::Deny) == deny);
        for (key, difference) in sorted(true).chain(sorted(false)) {
            // A rule that allows also stands beside a denial, for an address or a limit, but does not deny.
            let by = |(verdict, reason): (Verdict, Reason), by: Option<&(String, String)>| match by {
                Some((rule, src)) => {
                    let decides = verdict == Verdict::Allow || reason.effect_of_rule() == RuleEffect::Denies;
                    let word = if decides { " by" } else { ", rule" };
                    format!("{word} {} ({})", printable_ascii(rule), printable_ascii(src))
                }
                None => String::new(),
            };
            let said = difference
                .said
                .as_deref()
                .map(|said| format!(": {}", printable_ascii(said)))
                .unwrap_or_default();
            let unknown = if difference.unchecked { "; addresses not checked" } else { "" };
            let (was_by, others) = difference.rules();
            let others = match others {
                0 => String::new(),
                1 => " and 1 other rule".to_owned(),
                others => format!(" and {others} other rules"),
            };
            writeln!(
                out,
                "now {:<10}  {:>5}x  {}  [{}]  {}{}{said}{unknown}; was {} ({}){}{others}",
                key.now.0.as_str(),
                difference.count,
                target(key),
                key.via,
                key.now.1,
                by(key.now, difference.now_by.as_ref()),
                key.was.0,
                key.was.1,
                by(key.was, was_by),
            )?;
        }
        writeln!(
            out,
            "{} as before, {} now denied, {} now allowed, {} would now be denied",
            self.same, self.now_denied, self.now_allowed, self.now_would_deny
        )?;
        for what in self.unknown.words() {
            writeln!(out, "  cannot tell: {what}")?;
        }
        for (count, what) in [
            (self.unchecked, "whose addresses are not known (never looked up, or left to an upstream proxy)"),
            (self.unjudged, "that no rule decides (malformed, other protocols, budgets)"),
            (self.unlisted, "that differ and have no line above"),
        ] {
            if count > 0 {
                writeln!(out, "  {count} {what}")?;
            }
        }
        Ok(())
    }

    /// Writes the differences as one JSON object and a line feed.
    ///
    /// # Errors
    ///
    /// Fails if the output cannot be written.
    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let rule = |by: &Option<(String, String)>| {
            by.as_ref().map(|(rule, src)| json!({"rule": rule, "rule_src": src}))
        };
        let all = self.differences.iter().map(|(key, difference)| {
            let (was_by, others) = difference.rules();
            json!({
                "host": bare(&key.host), "port": key.port, "via": key.via, "count": difference.count,
                "was": {"verdict": key.was.0, "reason": key.was.1, "by": rule(&was_by.cloned()), "other_rules": others},
                "now": {"verdict": key.now.0, "reason": key.now.1, "by": rule(&difference.now_by), "said": difference.said},
                "addresses_checked": !difference.unchecked,
            })
        });
        let value = json!({
            "schema": 1, "signature": "not checked", "same": self.same, "now_denied": self.now_denied, "now_allowed": self.now_allowed,
            "now_would_deny": self.now_would_deny, "unchecked": self.unchecked, "unjudged": self.unjudged,
            "unlisted": self.unlisted, "cannot_tell": {
                "addresses": self.unknown.addresses, "bytes": self.unknown.bytes,
                "bytes_up_at_least": Some(self.unknown.at_least).filter(|bytes| *bytes > 0),
                "beside": self.unknown.shared, "hosts": self.unknown.hosts,
                "lines": self.unknown.lines, "unfinished_runs": self.unknown.ends,
                "runs_of_another_proxy": self.unknown.elsewhere,
            }, "differences": all.collect::<Vec<_>>(),
        });
        ascii_json(out, &value.to_string())?;
        out.write_all(b"\n")
    }
}

impl Difference {
    /// Returns the rule that decided most often then, and the number of others.
    fn rules(&self) -> (Option<&(String, String)>, u64) {
        let most = self.was_by.iter().max_by_key(|(_, count)| **count).map(|(rule, _)| rule);
        let others = (self.was_by.len() as u64).saturating_sub(1);
        (most, others.saturating_add(self.more_rules))
    }
}

fn add(to: &mut u64, count: u64) {
    *to = to.saturating_add(count);
}

fn bare(host: &Host) -> String {
    match host {
        Host::Ip(ip) => ip.to_string(),
        Host::Name(name) => name.to_string(),
    }
}

fn target(key: &Key) -> String {
    match key.port {
        Some(port) => format!("{}:{port}", key.host),
        None => key.host.to_string(),
    }
}

#[cfg(test)]
mod tests;

//! Counts the rules that decided, and finds those of the stored policies that decided nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use exeat_policy::{Action, AddrClass, Allowances, Port, Reason, RuleEffect, RuleSpec, Verdict, classify};
use serde::Deserialize;

use super::hosts::Few;
use super::tally::MAX_NAME;
use crate::query::Record;

/// Allows every kind of rule, because a policy on record had it.
const ALL: Allowances = Allowances { any: true, shared_suffix: true };

/// The most rules that are kept apart.
pub(super) const MAX_RULES: usize = 10_000;

/// The most places and stages that are kept of one rule.
const MAX_PLACES: usize = 4;

/// A rule that decided, as the record names it. Not printable without escaping.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Used {
    /// The rule as it was typed.
    pub rule: String,
    /// The place where it was written.
    pub src: String,
    /// The rule's effect.
    pub effect: RuleEffect,
    /// Who approved it, if it says so.
    pub approved_by: Option<String>,
}

/// The counts of a rule that decided.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RuleSummary {
    /// The rule.
    pub used: Used,
    /// Attempts that it decided.
    pub attempts: u64,
    /// Attempts that were let through and not reached.
    pub failed: u64,
    /// Bytes from the sandbox to the internet, as far as they are known.
    pub bytes_up: u64,
    /// The reason for the rule, if it says so.
    pub why: Option<String>,
    /// The day on which it expires, if it has one.
    pub expires: Option<String>,
}

/// Attempts that were let through by the rules of one approver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Approved {
    /// Attempts.
    pub attempts: u64,
    /// Bytes from the sandbox to the internet, as far as they are known.
    pub bytes_up: u64,
}

/// The attempts that were let through, by approver. They are counted apart from the rules, because a rule also decides what is refused for
/// its budget or its address.
#[derive(Debug, Default)]
pub(super) struct Approvals {
    numbers: HashMap<Option<String>, usize>,
    /// The approvers, in the order of their numbers; `None` stands for nobody.
    all: Vec<(Option<String>, Approved)>,
    /// Attempts of approvers beyond [`MAX_RULES`].
    pub(super) more: u64,
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    numbers: HashMap<Used, usize>,
    /// The rules, in the order of their numbers.
    pub(super) all: Vec<RuleSummary>,
    /// Attempts decided by rules beyond the bound.
    pub(super) more: u64,
    /// Attempts that a rule decided, but their line does not name it.
    unnamed: u64,
    /// The rule of the line before: most lines have the same one.
    last: Option<usize>,
}

impl Rules {
    /// Counts the rule that decided, and returns its number.
    pub(super) fn number(&mut self, record: &Record) -> Option<usize> {
        let reason = record.reason();
        let count = record.count.unwrap_or(1);
        let Some(rule) = record.rule.as_deref() else {
            if matches!(reason, Some(Reason::Rule | Reason::DenyRule | Reason::Expired)) {
                self.unnamed = self.unnamed.saturating_add(count);
            }
            return None;
        };
        let effect = reason.map_or(RuleEffect::Allows, Reason::effect_of_rule);
        let (src, approved_by) = (record.rule_src.as_deref().unwrap_or_default(), &record.approved_by);
        let is = |used: &Used| {
            used.rule == rule && used.src == src && used.effect == effect && used.approved_by == *approved_by
        };
        if self.last.and_then(|last| self.all.get(last)).is_none_or(|it| !is(&it.used)) {
            let (rule, src) = (rule.to_owned(), src.to_owned());
            self.last = self.find(Used { rule, src, effect, approved_by: approved_by.clone() }, record);
        }
        match self.last.and_then(|last| self.all.get_mut(last)) {
            Some(it) => it.attempts = it.attempts.saturating_add(count),
            None => self.more = self.more.saturating_add(count),
        }
        self.last
    }

    fn find(&mut self, used: Used, record: &Record) -> Option<usize> {
        if used.rule.len().max(used.src.len()) > MAX_NAME {
            return None;
        }
        if let Some(number) = self.numbers.get(&used) {
            return Some(*number);
        }
        let number = self.all.len();
        (number < MAX_RULES).then(|| {
            self.numbers.insert(used.clone(), number);
            let (why, expires) = (record.why.clone(), record.expires.clone());
            self.all.push(RuleSummary { used, attempts: 0, failed: 0, bytes_up: 0, why, expires });
            number
        })
    }

    /// Counts the end of a connection that a rule let through.
    pub(super) fn ended(&mut self, rule: Option<usize>, bytes_up: u64, failed: bool) {
        if let Some(it) = rule.and_then(|rule| self.all.get_mut(rule)) {
            it.bytes_up = it.bytes_up.saturating_add(bytes_up);
            it.failed += u64::from(failed);
        }
    }

    /// Whether a rule may have decided without being known here; then no rule can be called unused.
    fn is_partial(&self) -> bool {
        self.more > 0 || self.unnamed > 0
    }
}

impl Approvals {
    /// Counts an attempt that was let through, and returns the number of its approver.
    pub(super) fn number(&mut self, record: &Record) -> Option<usize> {
        let by = record.approval()?.map(str::to_owned);
        let count = record.count.unwrap_or(1);
        let next = self.all.len();
        let number = match self.numbers.get(&by) {
            Some(number) => *number,
            None if next >= MAX_RULES => {
                self.more = self.more.saturating_add(count);
                return None;
            }
            None => {
                self.all.push((by.clone(), Approved::default()));
                *self.numbers.entry(by).or_insert(next)
            }
        };
        if let Some((_, sum)) = self.all.get_mut(number) {
            sum.attempts = sum.attempts.saturating_add(count);
        }
        Some(number)
    }

    /// Counts the bytes of a connection by the number of its approver.
    pub(super) fn ended(&mut self, number: Option<usize>, bytes_up: u64) {
        if let Some((_, sum)) = number.and_then(|number| self.all.get_mut(number)) {
            sum.bytes_up = sum.bytes_up.saturating_add(bytes_up);
        }
    }

    pub(super) fn all(&self) -> BTreeMap<Option<&str>, Approved> {
        self.all.iter().map(|(by, sum)| (by.as_deref(), *sum)).collect()
    }
}

impl Used {
    /// Returns its spelling in a stored policy; `None` if it is not a rule, or was cut.
    fn canonical(&self) -> Option<String> {
        let action = match self.effect == RuleEffect::Denies && !self.rule.starts_with('!') {
            true => Action::Deny,
            false => Action::Allow,
        };
        RuleSpec::parse(&self.rule, action, ALL).ok().map(|rule| rule.to_string())
    }
}

/// The origin of a stored policy.
#[derive(Clone, Copy)]
pub struct PolicyOf<'a> {
    /// The run that it is stored beside.
    pub run: &'a str,
    /// The stage of that run.
    pub stage: Option<&'a str>,
    /// Returns the places where a rule was written, by its canonical spelling.
    pub places: &'a dyn Fn(&str) -> Vec<String>,
}

/// A rule of a stored policy that decided nothing. Not printable without escaping.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unused<'a> {
    /// The rule in its canonical spelling.
    pub rule: &'a str,
    /// The places where it was written, with file and line if they are known.
    pub places: &'a Few<String, MAX_PLACES>,
    /// Stages whose policy has it.
    pub stages: &'a Few<String, MAX_PLACES>,
    /// The number of runs whose policy has it.
    pub runs: u64,
    /// The last of these runs, in the order of reading.
    pub run: &'a str,
}

/// The rules that decided nothing, if they can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnusedRules<'a> {
    /// No policy is stored beside the records, or only some lines were selected.
    NotAsked,
    /// For this many attempts the rule that decided is not on record.
    CannotTell(u64),
    /// The unused rules.
    Listed(Vec<Unused<'a>>),
}

/// The rules of the stored policies.
#[derive(Debug, Default)]
pub(super) struct Policies {
    granted: BTreeMap<String, Granted>,
    /// Addresses that are not public to which an allowed name led: their rule was used too, but no line names it.
    opened: BTreeSet<(IpAddr, u16)>,
    /// Whether there were more than are kept.
    opened_more: bool,
    count: u64,
    /// The number of rules that are not kept.
    pub(super) more: u64,
}

#[derive(Debug, Default)]
struct Granted {
    places: Few<String, MAX_PLACES>,
    stages: Few<String, MAX_PLACES>,
    runs: u64,
    run: String,
}

impl Policies {
    pub(super) fn add(&mut self, canonical_json: &str, of: PolicyOf<'_>) -> Result<(), serde_json::Error> {
        #[derive(Deserialize)]
        struct Stored {
            rules: Vec<Rule>,
        }
        #[derive(Deserialize)]
        struct Rule {
            rule: String,
        }
        let stored: Stored = serde_json::from_str(canonical_json)?;
        self.count += 1;
        for Rule { rule } in stored.rules {
            if !self.granted.contains_key(&rule) && (self.granted.len() >= MAX_RULES || rule.len() > MAX_NAME)
            {
                self.more += 1;
                continue;
            }
            let places = (of.places)(&rule);
            let granted = self.granted.entry(rule).or_default();
            places.into_iter().for_each(|place| granted.places.add(place));
            if let Some(stage) = of.stage.filter(|stage| stage.len() <= MAX_NAME) {
                granted.stages.add(stage.to_owned());
            }
            // A policy that was reloaded is of the same run.
            if granted.run != of.run {
                granted.runs += 1;
                of.run.clone_into(&mut granted.run);
            }
        }
        Ok(())
    }

    /// Notes the addresses of an allowed name that need a rule of their own.
    pub(super) fn open(&mut self, record: &Record) {
        if record.verdict() != Some(Verdict::Allow) {
            return;
        }
        for ip in record.ips.iter().filter(|ip| classify(**ip) != AddrClass::Public) {
            let place = (*ip, record.port.unwrap_or_default());
            if self.opened.len() < MAX_RULES || self.opened.contains(&place) {
                self.opened.insert(place);
            } else {
                self.opened_more = true;
            }
        }
    }

    pub(super) fn unused(&self, rules: &Rules) -> UnusedRules<'_> {
        if self.count == 0 {
            return UnusedRules::NotAsked;
        }
        if rules.is_partial() {
            return UnusedRules::CannotTell(rules.more.saturating_add(rules.unnamed));
        }
        let used: BTreeSet<String> = rules.all.iter().filter_map(|it| it.used.canonical()).collect();
        let idle = self.granted.iter().filter(|(rule, _)| !used.contains(*rule) && !self.has_opened(rule));
        UnusedRules::Listed(
            idle.map(|(rule, it)| Unused {
                rule,
                places: &it.places,
                stages: &it.stages,
                runs: it.runs,
                run: &it.run,
            })
            .collect(),
        )
    }

    /// Whether a rule is for an address to which an allowed name led; if there are more addresses than are kept, it may be.
    fn has_opened(&self, rule: &str) -> bool {
        let Ok(rule) = RuleSpec::parse(rule, Action::Allow, ALL) else { return false };
        let Some(net) = rule.pattern.net() else { return false };
        let covers = |(ip, port): &(IpAddr, u16)| {
            net.contains(ip) && Port::new(*port).is_some_and(|port| rule.ports.contains(port))
        };
        rule.action == Action::Allow && (self.opened_more || self.opened.iter().any(covers))
    }
}

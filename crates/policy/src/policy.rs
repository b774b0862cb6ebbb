//! Makes the decision. Deny rules come first, in no order. Then every layer must grant the target. Once the
//! addresses are known, every layer must grant each of them. Nothing here resolves a name, and a name that is not
//! admitted must not be resolved.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use crate::addr::{self, AddrClass, Opening, OwnAddrs};
use crate::day::Day;
use crate::decision::{Admitted, Denial, Grant, Why};
use crate::name::HostName;
use crate::port::{Port, PortSet};
use crate::rule::{Action, Note, Rule, RuleId, TlsCheck};
use crate::target::{Host, Target};
use crate::terms::{Ech, Mode, Terms};

mod builder;
mod compare;
mod effective;
mod index;
mod layer;
mod review;

pub use builder::{Layers, PolicyBuilder};
pub use compare::{Change, ChangeKind, Excess};
pub use effective::{Effective, EffectiveRule};
use index::Index;
pub use layer::{Layer, Role};
pub use review::{Lint, Remark};

/// The rules of a run. A clone is another handle to the same policy.
///
/// A policy has layers, and a target is granted if every layer grants it: the grants, what the stage declared, its
/// lock, and each ceiling. A deny rule of any layer wins over all of them. An empty policy refuses everything.
#[derive(Debug, Clone)]
pub struct Policy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rules: Vec<Rule>,
    /// Ceilings, then declarations, then a lock, then the grants. So layers that the caller cannot change are
    /// asked, and named, first.
    layers: Vec<Layer>,
    /// The deny rules of all layers.
    deny: Index,
    terms: Terms,
    /// The ceilings that bound an upstream proxy, as a policy of their own. Built at its first use.
    upstream_bound: OnceLock<Option<Policy>>,
    /// Built at its first use, because a run needs it for its record, its fingerprint and the file next to the
    /// record.
    canonical_json: OnceLock<String>,
}

impl Policy {
    /// Returns what applies to all rules.
    pub fn terms(&self) -> Terms {
        self.0.terms
    }

    /// Returns the rules of all layers, the grants first, in the order of addition. A [`RuleId`] is an index into
    /// it.
    pub fn rules(&self) -> &[Rule] {
        &self.0.rules
    }

    /// Returns the layers in the order in which they are asked: ceilings, declarations, a lock, grants.
    pub fn layers(&self) -> &[Layer] {
        &self.0.layers
    }

    /// Returns the rules of one layer, in the order of addition.
    pub fn rules_of(&self, layer: &Layer) -> &[Rule] {
        self.0.rules.get(layer.places()).unwrap_or_default()
    }

    /// Returns every rule by which [`Policy::admit`] could decide about this host, of any action and layer, also
    /// expired ones.
    pub(crate) fn about<'a>(&'a self, host: &'a Host) -> Box<dyn Iterator<Item = &'a Rule> + 'a> {
        let layers = self.0.layers.iter().map(|layer| &layer.allow);
        let indexes = std::iter::once(&self.0.deny).chain(layers);
        match host {
            Host::Name(name) => {
                Box::new(indexes.flat_map(|index| index.by_name(name)).map(|id| self.rule(id)))
            }
            Host::Ip(ip) => Box::new(indexes.flat_map(|index| {
                let each = std::iter::once(*ip).chain(addr::possible_inner_addresses(*ip).map(IpAddr::from));
                each.flat_map(|ip| index.by_ip(ip)).map(|id| self.rule(id))
            })),
        }
    }

    /// Whether some layer has no allow rule, so that nothing is granted.
    pub fn is_empty(&self) -> bool {
        let grants = |layer| self.rules_of(layer).iter().any(|rule: &Rule| rule.action == Action::Allow);
        !self.0.layers.iter().all(grants)
    }

    /// Decides whether the rules grant `target` on `today`, or report mode allows it. See [`Grant::would_deny`].
    ///
    /// The class of a literal address is checked here. [`Admitted::vet`] checks whether it is an address of the
    /// host, and what a name resolves to.
    ///
    /// # Errors
    ///
    /// Returns a [`Denial`]. A denied name must not be resolved.
    pub fn admit(&self, target: Target, today: Day) -> Result<Admitted, Denial> {
        let denied = match &target.host {
            Host::Name(name) => {
                self.0.deny.by_name(name).find(|id| self.rule(*id).ports.contains(target.port))
            }
            Host::Ip(ip) => self.find_deny_rule(*ip, target.port),
        };
        if let Some(rule) = denied {
            return Err(Denial::new(self.clone(), target, Why::DenyRule { rule, addr: None }, None, None));
        }
        let mut granted = Vec::with_capacity(self.0.layers.len());
        for (at, layer) in self.0.layers.iter().enumerate() {
            match self.grant_of(layer, &target.host, target.port, today) {
                Ok(rule) => granted.push(rule),
                Err(why) => {
                    let denial = Denial::new(self.clone(), target.clone(), why, None, Some(at));
                    // Only the grants can be missing here: they are asked last, so every other layer has granted
                    // it.
                    if self.0.terms.mode == Mode::Report && denial.is_reportable() {
                        let grant = Grant::new(self.clone(), target, granted, Some(denial), today);
                        return Ok(Admitted::new(grant));
                    }
                    return Err(denial);
                }
            }
        }
        Ok(Admitted::new(Grant::new(self.clone(), target, granted, None, today)))
    }

    /// Decides whether the ceilings let a run use this upstream proxy. Each ceiling must allow its host and port as
    /// for a target; rules of the other layers are not asked. `Ok(None)` means that no ceiling bounds upstream
    /// proxies.
    ///
    /// Whoever dials the proxy checks its addresses with [`Admitted::vet`].
    ///
    /// # Errors
    ///
    /// Returns a [`Denial`], which names the ceiling.
    pub fn admit_upstream(&self, proxy: Target, today: Day) -> Result<Option<Admitted>, Denial> {
        let bound = self.0.upstream_bound.get_or_init(|| self.only_layers(Layer::bounds_upstream));
        bound.as_ref().map(|bound| bound.admit(proxy, today)).transpose()
    }

    /// Returns an enforcing policy of the kept layers, or `None` if no layer is kept.
    fn only_layers(&self, is_kept: impl Fn(&Layer) -> bool) -> Option<Self> {
        let mut rules = Vec::new();
        let mut layers = Vec::new();
        for layer in self.0.layers.iter().filter(|layer| is_kept(layer)) {
            layers.push(layer.copy_to(&mut rules, self.rules_of(layer)));
        }
        let terms = Terms { mode: Mode::Enforce, ..self.0.terms };
        (!layers.is_empty()).then(|| Self::assemble(rules, layers, terms))
    }

    fn assemble(rules: Vec<Rule>, layers: Vec<Layer>, terms: Terms) -> Self {
        let deny = Index::new(&rules, Action::Deny);
        Self(Arc::new(Inner {
            rules,
            layers,
            deny,
            terms,
            upstream_bound: OnceLock::new(),
            canonical_json: OnceLock::new(),
        }))
    }

    /// Returns the effective policy as one line of JSON, over which the digest of a run's policy is computed.
    ///
    /// Each rule appears once, in canonical spelling with its note, and rules are sorted. So equal policies have
    /// equal digests, whatever the place, spelling and order of their rules. Other layers follow the grants:
    /// `declared`, `lock`, and `ceilings`, sorted too. Terms appear only if they differ from the default: `mode`,
    /// `nat64`, `ech`.
    pub fn canonical_json(&self) -> &str {
        self.0.canonical_json.get_or_init(|| self.make_canonical_json())
    }

    fn make_canonical_json(&self) -> String {
        let of = |role| {
            let layers = self.0.layers.iter().filter(move |layer: &&Layer| layer.role() == role);
            let mut all: Vec<String> = layers.map(|layer| canonical_rules(self.rules_of(layer))).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let mut json = String::from("{");
        let ceilings = of(Role::Ceiling);
        if !ceilings.is_empty() {
            json.push_str(&format!(r#""ceilings":[{}],"#, ceilings.join(",")));
        }
        if let Some(declared) = of(Role::Declared).first() {
            json.push_str(&format!(r#""declared":{declared},"#));
        }
        let Terms { mode, nat64, ech } = self.0.terms;
        if ech != Ech::default() {
            json.push_str(&format!(r#""ech":"{ech}","#));
        }
        if let Some(lock) = of(Role::Lock).first() {
            json.push_str(&format!(r#""lock":{lock},"#));
        }
        if mode != Mode::default() {
            json.push_str(&format!(r#""mode":"{mode}","#));
        }
        if nat64 {
            json.push_str(r#""nat64":true,"#);
        }
        let rules = of(Role::Grants);
        json.push_str(&format!(r#""rules":{},"schema":1}}"#, rules.first().map_or("[]", String::as_str)));
        json
    }

    // INVARIANT: a `RuleId` in a value of this crate was created by the policy in the same value.
    #[expect(clippy::indexing_slicing, reason = "ids are made by `push` and never leave their policy")]
    pub(crate) fn rule(&self, id: RuleId) -> &Rule {
        &self.0.rules[id.0 as usize]
    }

    /// Checks the answer for an admitted target. Returns the rule that opened a special-use address.
    ///
    /// `Err` names the layer that refused, if a rule of that layer would change the outcome.
    pub(crate) fn vet(
        &self,
        target: &Target,
        answers: &[IpAddr],
        own: &OwnAddrs,
        today: Day,
    ) -> Result<Option<RuleId>, (Why, Option<usize>)> {
        if answers.is_empty() {
            return Err((Why::Empty, None));
        }
        // Addresses that nothing can open come first, because a suggested flag must not lead to another refusal.
        let literal = target.host.ip().is_some();
        for ip in answers {
            if let Some(rule) = self.find_deny_rule(*ip, target.port) {
                return Err((Why::DenyRule { rule, addr: (!literal).then_some(*ip) }, None));
            }
        }
        let mut opened_by = None;
        let mut closed: Vec<(IpAddr, NotOpened, usize)> = Vec::new();
        for ip in answers {
            // A lock concerns what is asked for. The addresses of a name may change with every answer.
            let judging = self.0.layers.iter().enumerate().filter(|(_, layer)| layer.role() != Role::Lock);
            for (at, layer) in judging {
                match self.find_opening(layer, *ip, target.port, own, today) {
                    // The last layer is the grants, whose rule the caller wrote.
                    Ok(rule) if layer.role() == Role::Grants => opened_by = opened_by.or(rule),
                    Ok(_) => {}
                    Err(_) if closed.iter().any(|(other, _, by)| (other, *by) == (ip, at)) => {}
                    Err(shut) => closed.push((*ip, shut, at)),
                }
            }
        }
        // A ceiling comes before the grants, whose flag would not help.
        let worst = closed.iter().max_by_key(|(_, shut, at)| (shut.rank(), std::cmp::Reverse(*at)));
        match worst {
            None => Ok(opened_by),
            Some((ip, NotOpened::Expired(rule, class), at)) => {
                Err((Why::Expired { rule: *rule, addr: Some((*ip, *class)) }, Some(*at)))
            }
            Some((ip, NotOpened::Closed(class), at)) => {
                let (first, class) = (*ip, *class);
                let others = closed.iter().filter(|(ip, _, by)| *ip != first && by == at);
                let more = others.map(|(ip, ..)| *ip).collect();
                Err((Why::Closed { class, first, more }, Some(*at)))
            }
        }
    }

    /// Returns the rule by which a layer grants a target, regardless of deny rules.
    fn grant_of(&self, layer: &Layer, host: &Host, port: Port, today: Day) -> Result<RuleId, Why> {
        match host {
            Host::Name(name) => self.grant_of_name(layer, name, port, today),
            Host::Ip(ip) => self.grant_of_literal(layer, *ip, port, today),
        }
    }

    fn grant_of_name(&self, layer: &Layer, name: &HostName, port: Port, today: Day) -> Result<RuleId, Why> {
        self.pick(layer.allow.by_name(name), port, today).map_err(|miss| match miss {
            NoGrant::Expired(rule) => Why::Expired { rule, addr: None },
            NoGrant::Port(granted) => Why::Port { granted },
            NoGrant::Nothing => Why::Default,
        })
    }

    /// Looks for a rule for the address itself, then for the IPv4 address that a NAT64 translator would use.
    fn grant_of_literal(&self, layer: &Layer, ip: IpAddr, port: Port, today: Day) -> Result<RuleId, Why> {
        let outer = self.grant_of_address(layer, ip, port, today);
        let (Err(why), Some(inner)) = (&outer, self.inner_address(ip)) else { return outer };
        match self.grant_of_address(layer, inner, port, today) {
            Ok(rule) => Ok(rule),
            // A rule for the address itself nearly grants it.
            Err(_) if matches!(why, Why::Expired { .. } | Why::Port { .. }) => outer,
            // A rule covers it, but is too wide to open this block.
            Err(Why::IpLiteral { class })
                if matches!(why, Why::Closed { .. }) && class != AddrClass::Public =>
            {
                Err(Why::Closed { class, first: ip, more: Vec::new() })
            }
            Err(Why::Closed { class, more, .. }) => Err(Why::Closed { class, first: ip, more }),
            inner => inner,
        }
    }

    fn grant_of_address(&self, layer: &Layer, ip: IpAddr, port: Port, today: Day) -> Result<RuleId, Why> {
        let class = addr::classify(ip);
        let closed = Why::Closed { class, first: ip, more: Vec::new() };
        let opening = addr::opening_for(ip);
        if opening == Opening::Never {
            return Err(closed);
        }
        let opens = |id: &RuleId| self.lies_within(*id, opening);
        self.pick(layer.allow.by_ip(ip).filter(opens), port, today).map_err(|miss| match miss {
            NoGrant::Expired(rule) => Why::Expired { rule, addr: None },
            NoGrant::Port(granted) => Why::Port { granted },
            NoGrant::Nothing if class == AddrClass::Metadata => closed,
            // A rule covers it, but is too wide to open this block, so "no IP rule" would mislead.
            NoGrant::Nothing if layer.allow.by_ip(ip).any(|id| !opens(&id)) => closed,
            NoGrant::Nothing => Why::IpLiteral { class },
        })
    }

    /// Returns the deny rule that covers an address, or an IPv4 address inside it.
    fn find_deny_rule(&self, ip: IpAddr, port: Port) -> Option<RuleId> {
        let all = std::iter::once(ip).chain(addr::possible_inner_addresses(ip).map(IpAddr::from));
        all.flat_map(|ip| self.0.deny.by_ip(ip)).find(|id| self.rule(*id).ports.contains(port))
    }

    /// Returns the IPv4 address inside, by which an address is also judged if the policy says so.
    fn inner_address(&self, ip: IpAddr) -> Option<IpAddr> {
        addr::nat64(ip).filter(|_| self.0.terms.nat64).map(IpAddr::from)
    }

    /// Whether a layer allows an address of a granted target, and the rule that it needed.
    ///
    /// A rule for the address itself always opens it, so judging the address inside can only open more.
    fn find_opening(
        &self,
        layer: &Layer,
        ip: IpAddr,
        port: Port,
        own: &OwnAddrs,
        today: Day,
    ) -> Result<Option<RuleId>, NotOpened> {
        let outer = self.find_opening_as(layer, ip, port, own, today);
        let (Err(shut), Some(inner)) = (outer, self.inner_address(ip)) else { return outer };
        let inner = self.find_opening_as(layer, inner, port, own, today);
        inner.map_err(|inner| if matches!(shut, NotOpened::Expired(..)) { shut } else { inner })
    }

    fn find_opening_as(
        &self,
        layer: &Layer,
        ip: IpAddr,
        port: Port,
        own: &OwnAddrs,
        today: Day,
    ) -> Result<Option<RuleId>, NotOpened> {
        let opening = addr::opening_for(ip);
        let is_own = own.contains(ip) && opening != Opening::Never;
        // A metadata address remains one on the machine that serves it, so no flag is offered.
        let class = match addr::classify(ip) {
            class if !is_own || class == AddrClass::Metadata => class,
            _ => AddrClass::Own,
        };
        let opens =
            |id: &RuleId| if is_own { self.is_exactly(*id, ip) } else { self.lies_within(*id, opening) };
        match (class, opening) {
            (_, Opening::Never) => return Err(NotOpened::Closed(class)),
            (AddrClass::Own, _) | (_, Opening::Within(_)) => {}
            (_, Opening::Public) => return Ok(None),
        }
        match self.pick(layer.allow.by_ip(ip).filter(opens), port, today) {
            Ok(rule) => Ok(Some(rule)),
            Err(NoGrant::Expired(rule)) => Err(NotOpened::Expired(rule, class)),
            Err(NoGrant::Port(_) | NoGrant::Nothing) => Err(NotOpened::Closed(class)),
        }
    }

    fn lies_within(&self, id: RuleId, opening: Opening) -> bool {
        let net = self.rule(id).pattern.net();
        match opening {
            Opening::Public => true,
            Opening::Within(block) => net.is_some_and(|net| block.contains(net)),
            Opening::Never => false,
        }
    }

    fn is_exactly(&self, id: RuleId, ip: IpAddr) -> bool {
        self.rule(id)
            .pattern
            .net()
            .is_some_and(|net| net.prefix_len() == net.max_prefix_len() && net.addr() == ip)
    }

    /// Returns the first of these allow rules that grants `port` on `today`.
    fn pick(&self, rules: impl Iterator<Item = RuleId>, port: Port, today: Day) -> Result<RuleId, NoGrant> {
        let mut expired = None;
        let mut elsewhere = Vec::new();
        for id in rules {
            let rule = self.rule(id);
            match (rule.ports.contains(port), rule.is_live(today)) {
                (true, true) => return Ok(id),
                (true, false) => expired = expired.or(Some(id)),
                (false, true) => elsewhere.push(&rule.ports),
                (false, false) => {}
            }
        }
        Err(match (expired, elsewhere.is_empty()) {
            (Some(id), _) => NoGrant::Expired(id),
            (None, false) => NoGrant::Port(PortSet::union(elsewhere)),
            (None, true) => NoGrant::Nothing,
        })
    }
}

/// The reason why no rule of a list grants a port.
enum NoGrant {
    /// The rule would grant it, but has expired.
    Expired(RuleId),
    /// The rules grant only these ports.
    Port(PortSet),
    /// No rule covers the host.
    Nothing,
}

/// The reason why an address of an answer is not open.
#[derive(Clone, Copy)]
enum NotOpened {
    Closed(AddrClass),
    Expired(RuleId, AddrClass),
}

impl NotOpened {
    /// Returns its rank: the address farthest from being open is reported.
    fn rank(self) -> u8 {
        match self {
            Self::Closed(class) if class.is_never_dialed() => 3,
            Self::Closed(AddrClass::Metadata) => 2,
            Self::Expired(..) => 1,
            Self::Closed(_) => 0,
        }
    }
}

/// Formats a list of JSON objects, sorted and without repeats.
fn canonical_rules(rules: &[Rule]) -> String {
    let mut lines: Vec<(String, String)> = rules.iter().map(canonical_rule).collect();
    lines.sort_unstable();
    lines.dedup();
    let rules: Vec<String> = lines.into_iter().map(|(_, json)| json).collect();
    format!("[{}]", rules.join(","))
}

fn canonical_rule(rule: &Rule) -> (String, String) {
    // Most rules have no note, and a large policy has many rules.
    if rule.note == Note::default() {
        let text = rule.to_string();
        let json = format!(r#"{{"rule":{}}}"#, Value::String(text.clone()));
        return (text, json);
    }
    let mut map = Map::new();
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            map.insert(key.to_owned(), Value::String(value));
        }
    };
    put("rule", Some(rule.to_string()));
    put("reason", rule.note.reason.clone());
    put("approved_by", rule.note.approved_by.clone());
    put("expires", rule.note.expires.map(|day| day.to_string()));
    put("tls", (rule.note.tls != TlsCheck::Auto).then(|| rule.note.tls.to_string()));
    if let Some(size) = rule.note.max_upload {
        map.insert("max_upload".to_owned(), size.get().into());
    }
    (rule.to_string(), Value::Object(map).to_string())
}

#[cfg(test)]
mod tests;

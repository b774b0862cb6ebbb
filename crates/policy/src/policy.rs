//! The decision. Deny rules first, in no order; then every layer has to grant; then, once the addresses are
//! known, every one of them in every layer. Nothing here resolves a name, and a name that is not admitted is
//! not to be resolved.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use crate::addr::{self, AddrClass, Opening, OwnAddrs};
use crate::day::Day;
use crate::decision::{Admitted, Denial, Granted, Why};
use crate::effect::EffectSet;
use crate::grammar::{Allowances, RuleError, RuleSpec};
use crate::name::HostName;
use crate::port::{Port, PortSet};
use crate::rule::{Action, Note, Origin, Rule, RuleId, TlsCheck};
use crate::target::{Host, Target};
use crate::terms::{Ech, Mode, Terms};

mod compare;
mod effective;
mod index;
mod layer;
mod review;

pub use effective::{Effective, EffectiveRule, Excess};
use index::Index;
pub use layer::{Layer, Layers, Role};
pub use review::{Change, ChangeKind, Finding, Lint};

/// Rules, ready to be asked. A clone is another handle to the same policy.
///
/// A policy has layers, and a target is granted when every one of them grants it: the grants, what the stage
/// declared, what it is locked to, and each ceiling. A deny rule of any layer wins over all of them. An empty policy refuses everything.
#[derive(Debug, Clone)]
pub struct Policy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rules: Vec<Rule>,
    /// Ceilings, then what is declared, then a lock, then the grants: what the caller cannot lift is asked, and named, first.
    layers: Vec<Layer>,
    /// The deny rules of all layers.
    deny: Index,
    terms: Terms,
    /// The ceilings that bound an upstream proxy, as a policy of their own. Made when it is first asked for.
    upstream_bound: OnceLock<Option<Policy>>,
    /// Made when it is first asked for: a run needs it for its record, its fingerprint and the file beside the record.
    canonical_json: OnceLock<String>,
}

/// Collects the rules of one layer. Rules are a union: their order decides nothing, and a repeated one is harmless.
#[derive(Debug, Clone, Default)]
pub struct PolicyBuilder {
    rules: Vec<Rule>,
    allowances: Allowances,
    leaves_upstream_open: bool,
}

impl PolicyBuilder {
    /// No rules, no allowances.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether allow rules added from now on may be `*`.
    pub fn allow_any(&mut self, yes: bool) -> &mut Self {
        self.allowances.any = yes;
        self
    }

    /// Whether rules added from now on may be wildcards on public and multi-tenant suffixes.
    pub fn allow_shared_suffix(&mut self, yes: bool) -> &mut Self {
        self.allowances.shared_suffix = yes;
        self
    }

    /// Whether a run may use an upstream proxy that these rules do not allow. Only a ceiling bounds upstream proxies: one that
    /// names the proxy itself, or says nothing about hosts, leaves it open.
    pub fn leave_upstream_open(&mut self, yes: bool) -> &mut Self {
        self.leaves_upstream_open = yes;
        self
    }

    /// Adds one rule. `default` is its action unless the text starts with `!`.
    ///
    /// # Errors
    ///
    /// [`RuleError`] if the text is not a rule; the builder is as it was. Whoever loads a policy must not
    /// go on without the rule: it may have been the deny rule that mattered.
    pub fn add(&mut self, text: &str, default: Action, origin: Origin, note: Note) -> Result<(), RuleError> {
        let spec = RuleSpec::parse(text, default, self.allowances)?;
        self.push(spec, text, origin, note);
        Ok(())
    }

    /// Adds a rule that was parsed before.
    pub fn push(&mut self, spec: RuleSpec, text: &str, origin: Origin, note: Note) {
        // INVARIANT: files are capped and arguments are few; 2^32 rules do not fit in memory.
        let id = RuleId(u32::try_from(self.rules.len()).unwrap_or(u32::MAX));
        let RuleSpec { action, pattern, ports } = spec;
        self.rules.push(Rule { id, text: text.to_owned(), action, pattern, ports, origin, note });
    }

    /// Adds the rules that it takes to have these effects; their paths are no matter of hosts.
    pub fn add_effects(&mut self, effects: &EffectSet) -> &mut Self {
        for rule in effects.rules() {
            rule.apply(self);
        }
        self
    }

    /// Makes the policy of these grants, with nothing above them.
    pub fn build(self) -> Policy {
        Layers { grants: self, ..Layers::default() }.build()
    }
}

impl Policy {
    /// The policy that grants what these effects need, and nothing else. A set without hosts reaches none.
    ///
    /// ```
    /// use exeat_policy::{Day, EffectSet, Policy, Target};
    ///
    /// let declared = r#"[{"effect": "NetworkHosts", "hosts": ["api.example.com"]}, {"effect": "Pure"}]"#;
    /// let policy = Policy::from_effects(&EffectSet::parse(declared, "stage.json")?);
    /// let today = Day::from_unix(0);
    /// assert!(policy.admit(Target::parse(b"api.example.com:443")?, today).is_ok());
    /// assert!(policy.admit(Target::parse(b"other.example.com:443")?, today).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_effects(effects: &EffectSet) -> Self {
        let mut grants = PolicyBuilder::new();
        grants.add_effects(effects);
        grants.build()
    }

    /// What holds for all rules.
    pub fn terms(&self) -> Terms {
        self.0.terms
    }

    /// Every rule of every layer: the grants first, in the order of addition; [`RuleId`] is the place in it.
    pub fn rules(&self) -> &[Rule] {
        &self.0.rules
    }

    /// The layers in the order in which they are asked: ceilings, what is declared, a lock, grants.
    pub fn layers(&self) -> &[Layer] {
        &self.0.layers
    }

    /// The rules of one of the layers, in the order of addition.
    pub fn rules_of(&self, layer: &Layer) -> &[Rule] {
        self.0.rules.get(layer.places()).unwrap_or_default()
    }

    /// Every rule, of whatever action and layer, by which [`Policy::admit`] could decide about this host; an expired one too.
    pub(crate) fn about<'a>(&'a self, host: &'a Host) -> Box<dyn Iterator<Item = &'a Rule> + 'a> {
        let layers = self.0.layers.iter().map(|layer| &layer.allow);
        let indexes = std::iter::once(&self.0.deny).chain(layers);
        match host {
            Host::Name(name) => {
                Box::new(indexes.flat_map(|index| index.by_name(name)).map(|id| self.rule(id)))
            }
            Host::Ip(ip) => Box::new(indexes.flat_map(|index| {
                let each = std::iter::once(*ip).chain(addr::embedded(*ip).map(IpAddr::from));
                each.flat_map(|ip| index.by_ip(ip)).map(|id| self.rule(id))
            })),
        }
    }

    /// Whether some layer has no allow rule, so that nothing at all is granted.
    pub fn is_empty(&self) -> bool {
        let grants = |layer| self.rules_of(layer).iter().any(|rule: &Rule| rule.action == Action::Allow);
        !self.0.layers.iter().all(grants)
    }

    /// Whether the rules grant `target` on `today`, or report mode lets it through: see [`Admitted::would_deny`].
    ///
    /// A literal address is judged by its class here already; whether it is the host's own address, and
    /// what a name resolves to, is judged by [`Admitted::vet`].
    ///
    /// # Errors
    ///
    /// A [`Denial`]; a denied name must not be resolved.
    pub fn admit(&self, target: Target, today: Day) -> Result<Admitted, Denial> {
        let denied = match &target.host {
            Host::Name(name) => {
                self.0.deny.by_name(name).find(|id| self.rule(*id).ports.contains(target.port))
            }
            Host::Ip(ip) => self.denied(*ip, target.port),
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
                    // Only the grants can be missing then, and they are asked last: every other layer has granted it.
                    if self.0.terms.mode == Mode::Report && denial.is_reportable() {
                        let granted = Granted::in_spite_of(denial, granted);
                        return Ok(Admitted::new(self.clone(), target, granted, today));
                    }
                    return Err(denial);
                }
            }
        }
        Ok(Admitted::new(self.clone(), target, Granted::by(granted), today))
    }

    /// Whether the ceilings let a run use this upstream proxy. Each ceiling must allow its host and port as it would allow a
    /// target; rules and deny rules of the other layers are not asked. `Ok(None)`: no ceiling bounds upstream proxies.
    ///
    /// Whoever dials the proxy judges its addresses with [`Admitted::vet`].
    ///
    /// # Errors
    ///
    /// A [`Denial`], which names the ceiling.
    pub fn admit_upstream(&self, proxy: Target, today: Day) -> Result<Option<Admitted>, Denial> {
        let bound = self.0.upstream_bound.get_or_init(|| self.only_layers(Layer::bounds_upstream));
        bound.as_ref().map(|bound| bound.admit(proxy, today)).transpose()
    }

    /// A policy of some of the layers, which enforces. `None`: there is no such layer.
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

    /// What the effective policy says, as one line of JSON: the digest of a run's policy is taken over this.
    ///
    /// Each rule stands once in its canonical spelling with its note; rules are sorted. Where a rule was
    /// written, how it was spelled and in which order changes nothing, so equal policies have equal digests.
    /// Layers besides the grants stand beside them: `declared`, `lock`, and `ceilings`, sorted too. What holds for all rules is there
    /// where it is not the usual: `mode`, `nat64`, `ech`.
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

    // INVARIANT: a `RuleId` held by a value of this crate was made by the policy held beside it.
    #[expect(clippy::indexing_slicing, reason = "ids are made by `push` and never leave their policy")]
    pub(crate) fn rule(&self, id: RuleId) -> &Rule {
        &self.0.rules[id.0 as usize]
    }

    /// Judges the answer for an admitted target; `Ok` is the rule that opened a special-use address.
    ///
    /// `Err` names the layer that refused, where a rule of that layer would lift it.
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
        // What nothing can open comes first: a suggested flag must not end in the next refusal.
        let literal = target.host.ip().is_some();
        for ip in answers {
            if let Some(rule) = self.denied(*ip, target.port) {
                return Err((Why::DenyRule { rule, addr: (!literal).then_some(*ip) }, None));
            }
        }
        let mut opened_by = None;
        let mut closed: Vec<(IpAddr, Shut, usize)> = Vec::new();
        for ip in answers {
            // A lock is about what is asked for: where a name leads may change with every answer.
            let judging = self.0.layers.iter().enumerate().filter(|(_, layer)| layer.role() != Role::Lock);
            for (at, layer) in judging {
                match self.opened(layer, *ip, target.port, own, today) {
                    // The last layer is the grants: its rule is the one that the caller wrote.
                    Ok(rule) if layer.role() == Role::Grants => opened_by = opened_by.or(rule),
                    Ok(_) => {}
                    Err(_) if closed.iter().any(|(other, _, by)| (other, *by) == (ip, at)) => {}
                    Err(shut) => closed.push((*ip, shut, at)),
                }
            }
        }
        // A ceiling before the grants, whose flag would not help.
        let worst = closed.iter().max_by_key(|(_, shut, at)| (shut.rank(), std::cmp::Reverse(*at)));
        match worst {
            None => Ok(opened_by),
            Some((ip, Shut::Expired(rule, class), at)) => {
                Err((Why::Expired { rule: *rule, addr: Some((*ip, *class)) }, Some(*at)))
            }
            Some((ip, Shut::Closed(class), at)) => {
                let (first, class) = (*ip, *class);
                let others = closed.iter().filter(|(ip, _, by)| *ip != first && by == at);
                let more = others.map(|(ip, ..)| *ip).collect();
                Err((Why::Closed { class, first, more }, Some(*at)))
            }
        }
    }

    /// The rule by which a layer grants a target, whatever the deny rules say.
    fn grant_of(&self, layer: &Layer, host: &Host, port: Port, today: Day) -> Result<RuleId, Why> {
        match host {
            Host::Name(name) => self.grant_of_name(layer, name, port, today),
            Host::Ip(ip) => self.grant_of_literal(layer, *ip, port, today),
        }
    }

    fn grant_of_name(&self, layer: &Layer, name: &HostName, port: Port, today: Day) -> Result<RuleId, Why> {
        self.pick(layer.allow.by_name(name), port, today).map_err(|miss| match miss {
            Miss::Expired(rule) => Why::Expired { rule, addr: None },
            Miss::Port(granted) => Why::Port { granted },
            Miss::Nothing => Why::Default,
        })
    }

    /// A rule for the address as it stands, else for the IPv4 address that a NAT64 translator would make of it.
    fn grant_of_literal(&self, layer: &Layer, ip: IpAddr, port: Port, today: Day) -> Result<RuleId, Why> {
        let outer = self.grant_of_address(layer, ip, port, today);
        let (Err(why), Some(inner)) = (&outer, self.translated(ip)) else { return outer };
        match self.grant_of_address(layer, inner, port, today) {
            Ok(rule) => Ok(rule),
            // A rule for the address as it stands nearly grants it.
            Err(_) if matches!(why, Why::Expired { .. } | Why::Port { .. }) => outer,
            // A rule covers that, but none that may open this block.
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
        let opening = addr::opening(ip);
        if opening == Opening::Never {
            return Err(closed);
        }
        let opens = |id: &RuleId| self.lies_within(*id, opening);
        self.pick(layer.allow.by_ip(ip).filter(opens), port, today).map_err(|miss| match miss {
            Miss::Expired(rule) => Why::Expired { rule, addr: None },
            Miss::Port(granted) => Why::Port { granted },
            Miss::Nothing if class == AddrClass::Metadata => closed,
            // A rule covers it, but none that may open this block: "no IP rule" would mislead.
            Miss::Nothing if layer.allow.by_ip(ip).any(|id| !opens(&id)) => closed,
            Miss::Nothing => Why::IpLiteral { class },
        })
    }

    /// The deny rule that covers an address or an IPv4 address that it carries.
    fn denied(&self, ip: IpAddr, port: Port) -> Option<RuleId> {
        let all = std::iter::once(ip).chain(addr::embedded(ip).map(IpAddr::from));
        all.flat_map(|ip| self.0.deny.by_ip(ip)).find(|id| self.rule(*id).ports.contains(port))
    }

    /// The IPv4 address by which an address is judged besides its own form, where the policy says so.
    fn translated(&self, ip: IpAddr) -> Option<IpAddr> {
        addr::nat64(ip).filter(|_| self.0.terms.nat64).map(IpAddr::from)
    }

    /// Whether a layer lets an address be dialled once its target is granted, and by which rule if it takes one.
    ///
    /// What opens the form as it stands opens it in any case, so that judging the address inside only ever adds.
    fn opened(
        &self,
        layer: &Layer,
        ip: IpAddr,
        port: Port,
        own: &OwnAddrs,
        today: Day,
    ) -> Result<Option<RuleId>, Shut> {
        let outer = self.opened_as(layer, ip, port, own, today);
        let (Err(shut), Some(inner)) = (outer, self.translated(ip)) else { return outer };
        let inner = self.opened_as(layer, inner, port, own, today);
        inner.map_err(|inner| if matches!(shut, Shut::Expired(..)) { shut } else { inner })
    }

    fn opened_as(
        &self,
        layer: &Layer,
        ip: IpAddr,
        port: Port,
        own: &OwnAddrs,
        today: Day,
    ) -> Result<Option<RuleId>, Shut> {
        let opening = addr::opening(ip);
        let is_own = own.contains(ip) && opening != Opening::Never;
        // A metadata address stays one on the machine that serves it: no flag is offered for it.
        let class = match addr::classify(ip) {
            class if !is_own || class == AddrClass::Metadata => class,
            _ => AddrClass::Own,
        };
        let opens =
            |id: &RuleId| if is_own { self.is_exactly(*id, ip) } else { self.lies_within(*id, opening) };
        match (class, opening) {
            (_, Opening::Never) => return Err(Shut::Closed(class)),
            (AddrClass::Own, _) | (_, Opening::Within(_)) => {}
            (_, Opening::Public) => return Ok(None),
        }
        match self.pick(layer.allow.by_ip(ip).filter(opens), port, today) {
            Ok(rule) => Ok(Some(rule)),
            Err(Miss::Expired(rule)) => Err(Shut::Expired(rule, class)),
            Err(Miss::Port(_) | Miss::Nothing) => Err(Shut::Closed(class)),
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

    /// The first of these allow rules that grants `port` on `today`.
    fn pick(&self, rules: impl Iterator<Item = RuleId>, port: Port, today: Day) -> Result<RuleId, Miss> {
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
            (Some(id), _) => Miss::Expired(id),
            (None, false) => Miss::Port(PortSet::union(elsewhere)),
            (None, true) => Miss::Nothing,
        })
    }
}

/// Why no rule of a list grants a port.
enum Miss {
    /// This one would, had it not expired.
    Expired(RuleId),
    /// They grant these ports.
    Port(PortSet),
    /// There is none.
    Nothing,
}

/// Why an address of an answer is not opened.
#[derive(Clone, Copy)]
enum Shut {
    Closed(AddrClass),
    Expired(RuleId, AddrClass),
}

impl Shut {
    /// What is furthest from being opened is reported, and of these the last in the order of this table.
    fn rank(self) -> u8 {
        match self {
            Self::Closed(class) if class.is_never_dialled() => 3,
            Self::Closed(AddrClass::Metadata) => 2,
            Self::Expired(..) => 1,
            Self::Closed(_) => 0,
        }
    }
}

/// A list of JSON objects, sorted and without repeats.
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
    put(
        "tls",
        match rule.note.tls {
            TlsCheck::Auto => None,
            TlsCheck::Sni => Some("sni".into()),
            TlsCheck::Off => Some("off".into()),
        },
    );
    if let Some(size) = rule.note.max_upload {
        map.insert("max_upload".to_owned(), size.get().into());
    }
    (rule.to_string(), Value::Object(map).to_string())
}

#[cfg(test)]
mod tests;

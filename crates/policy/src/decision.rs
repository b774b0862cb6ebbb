//! Defines the outcomes of decisions. Only the policy can create a permission: whoever dials needs a [`Vetted`], so
//! a forgotten check does not compile. Nothing here resolves, dials or writes a record.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

use crate::addr::{self, AddrClass, Embedding, OwnAddrs, classify};
use crate::day::Day;
use crate::escape::printable;
use crate::policy::{Layer, Policy, Role};
use crate::port::{Port, PortSet};
use crate::reason::{Reason, Verdict};
use crate::rule::{Rule, RuleId, TlsCheck};
use crate::target::{Host, Target};
use crate::terms::Ech;

/// Maximum number of addresses of one answer that are kept for dialing. The others are checked, then dropped.
pub const MAX_ADDRS: usize = 16;

/// Maximum number of port ranges in one sentence.
const MAX_RANGES: usize = 8;

/// The ports on which report mode allows names: those of the web.
pub(crate) const REPORTED: [u16; 2] = [80, 443];

/// Maximum number of addresses in the suggested flags.
const MAX_FLAGS: usize = 8;

/// A decision, as the record states it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// The host and port that the client asked for.
    pub target: Target,
    /// The outcome.
    pub verdict: Verdict,
    /// The reason for the verdict.
    pub reason: Reason,
    /// The rule that decided: the grant, the deny rule or the expired one. `None` if no rule did.
    pub rule: Option<RuleId>,
}

/// The grant of a target: what every permission says. It permits nothing by itself.
#[derive(Debug)]
pub struct Grant {
    policy: Policy,
    target: Target,
    /// The rule of each layer, in the order of the layers. The last one is the grant itself, if there is one.
    rules: Vec<RuleId>,
    /// The denial that enforcing would give, if only report mode granted the target. The grants then have no rule
    /// for it.
    would_deny: Option<Denial>,
    today: Day,
}

impl Grant {
    // Only `Policy::admit` calls this, with a rule for each layer; in report mode with a denial, and then with a rule for
    // each layer except the grants.
    pub(crate) fn new(
        policy: Policy,
        target: Target,
        rules: Vec<RuleId>,
        would_deny: Option<Denial>,
        today: Day,
    ) -> Self {
        Self { policy, target, rules, would_deny, today }
    }

    /// Returns the host and port that the client asked for.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the grant, or `None` if only report mode allows the target.
    pub fn rule(&self) -> Option<&Rule> {
        self.rule_id().map(|id| self.policy.rule(id))
    }

    fn rule_id(&self) -> Option<RuleId> {
        if self.would_deny.is_some() { None } else { self.rules.last().copied() }
    }

    /// Returns the rule of each layer that grants it.
    pub(crate) fn rules(&self) -> &[RuleId] {
        &self.rules
    }

    /// Returns the denial that enforcing would give, if only report mode allows the target.
    pub fn would_deny(&self) -> Option<&Denial> {
        self.would_deny.as_ref()
    }

    fn each(&self) -> impl Iterator<Item = (&Layer, &Rule)> {
        self.policy.layers().iter().zip(self.rules.iter().map(|id| self.policy.rule(*id)))
    }

    /// Returns the layers above the grants, each with its rule that allows the target.
    pub fn within(&self) -> impl Iterator<Item = (&Layer, &Rule)> {
        self.each().filter(|(layer, _)| layer.role() != Role::Grants)
    }

    /// Returns the upload budgets in bytes that this target counts against: one for each layer whose rule has one.
    /// The smaller one ends first. All connections of a run with the same key count together.
    pub fn upload_budgets(&self) -> impl Iterator<Item = (BudgetKey, u64)> + '_ {
        self.each()
            .filter_map(|(layer, rule)| Some((BudgetKey::for_rule(layer, rule), rule.note.max_upload?.get())))
    }

    /// Returns the decision for the record. A name that was only admitted can still be refused for its addresses.
    pub fn decision(&self) -> Decision {
        let (verdict, reason) = match &self.would_deny {
            Some(denial) => (Verdict::WouldDeny, denial.reason()),
            None => (Verdict::Allow, Reason::Rule),
        };
        Decision { target: self.target.clone(), verdict, reason, rule: self.rule_id() }
    }
}

/// A target that the rules grant. Its addresses are not checked yet, so it cannot be dialed.
///
/// Only [`Policy::admit`] creates one:
///
/// ```compile_fail,E0451
/// # fn forge(grant: exeat_policy::Grant) {
/// let forged = exeat_policy::Admitted { grant };
/// # }
/// ```
#[must_use = "an admitted target still has to be vetted"]
#[derive(Debug)]
pub struct Admitted {
    grant: Grant,
}

/// The key under which the bytes of a budget are counted: the layer, and the rule in canonical spelling. A rule
/// keeps its key when the policy is read again, whatever its position or budget.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetKey(String);

impl BudgetKey {
    fn for_rule(layer: &Layer, rule: &Rule) -> Self {
        Self(format!("{layer} {rule}"))
    }
}

/// Formats it as `grants uploads.example.net:443`.
impl fmt::Display for BudgetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.0))
    }
}

impl Admitted {
    // Only `Policy::admit` calls this.
    pub(crate) fn new(grant: Grant) -> Self {
        Self { grant }
    }

    /// Returns whether the TLS server name is checked: the strictest value of the grant and the ceilings. What a
    /// stage declares does not count. Without a grant it is checked on port 443.
    pub fn tls(&self) -> TlsCheck {
        let ceilings = self.within().filter(|(layer, _)| layer.role() == Role::Ceiling);
        let grant = self.rule().map_or(TlsCheck::Auto, |rule| rule.note.tls);
        ceilings.fold(grant, |tls, (_, rule)| tls.strictest(rule.note.tls))
    }

    /// Returns how to treat a TLS hello that hides its server name.
    pub fn ech(&self) -> Ech {
        self.policy.terms().ech
    }

    /// Leaves a name to an upstream proxy, which resolves it itself, so its addresses are not checked here.
    ///
    /// # Errors
    /// Returns a literal back: its address is known, and [`Admitted::vet`] checks it.
    pub fn entrust(self) -> Result<Entrusted, Self> {
        match self.target.host {
            Host::Name(_) => Ok(Entrusted { grant: self.grant }),
            Host::Ip(_) => Err(self),
        }
    }

    /// Checks every address that the target resolved to. One refused address refuses the whole answer.
    ///
    /// For a literal target the literal itself is checked, whatever `answers` contains.
    ///
    /// # Errors
    ///
    /// Returns a [`Denial`] if an address is refused. An empty answer is not a matter of policy, so the caller
    /// handles it earlier. Here it gives [`Reason::DnsEmpty`] with [`Verdict::Error`].
    pub fn vet(self, answers: &[IpAddr], own: &OwnAddrs) -> Result<Vetted, Denial> {
        let literal = self.target.host.ip();
        let answers = literal.as_ref().map_or(answers, std::slice::from_ref);
        match self.policy.vet(&self.target, answers, own, self.today) {
            Ok(opened_by) => {
                let addrs = dialable_addrs(answers, self.target.port);
                Ok(Vetted { grant: self.grant, opened_by, addrs })
            }
            Err((why, layer)) => {
                let admitted_by = self.rule_id();
                let Grant { policy, target, .. } = self.grant;
                Err(Denial::new(policy, target, why, admitted_by, layer))
            }
        }
    }
}

/// A granted target for an upstream proxy: the permission to name it there, and to dial only that proxy. The
/// addresses of a name were not checked; a literal was.
///
/// Only [`Admitted::entrust`] and [`Vetted::entrust`] create one:
///
/// ```compile_fail,E0451
/// # fn forge(grant: exeat_policy::Grant) {
/// let forged = exeat_policy::Entrusted { grant };
/// # }
/// ```
#[must_use = "an entrusted target is meant to be named to the upstream proxy"]
#[derive(Debug)]
pub struct Entrusted {
    grant: Grant,
}

impl Entrusted {
    /// Checks whether the ceilings of the same policy allow this upstream proxy. See [`Policy::admit_upstream`].
    ///
    /// # Errors
    /// Returns a [`Denial`] of the proxy.
    pub fn admit_upstream(&self, proxy: Target) -> Result<Option<Admitted>, Denial> {
        self.policy.admit_upstream(proxy, self.today)
    }
}

/// A granted target whose addresses were all checked: the permission to dial.
///
/// Only [`Admitted::vet`] creates one:
///
/// ```compile_fail,E0451
/// # fn forge(grant: exeat_policy::Grant) {
/// let forged = exeat_policy::Vetted { grant, opened_by: None, addrs: vec![] };
/// # }
/// ```
#[must_use = "a vetted target is meant to be dialed or recorded"]
#[derive(Debug)]
pub struct Vetted {
    grant: Grant,
    opened_by: Option<RuleId>,
    addrs: Vec<SocketAddr>,
}

impl Vetted {
    /// Returns the IP rule that opened the first special address, if there is one.
    pub fn opened_by(&self) -> Option<&Rule> {
        self.opened_by.map(|id| self.policy.rule(id))
    }

    /// Returns the addresses to dial, in the order of the answer and without repeats: one to [`MAX_ADDRS`].
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Leaves a literal address, which was checked, to an upstream proxy.
    ///
    /// # Errors
    /// Returns a name back: the upstream proxy would resolve it again, to other addresses than the checked ones.
    pub fn entrust(self) -> Result<Entrusted, Self> {
        match self.target.host {
            Host::Ip(_) => Ok(Entrusted { grant: self.grant }),
            Host::Name(_) => Err(self),
        }
    }
}

/// Lets each permission say what its grant says.
macro_rules! says_its_grant {
    ($($permission:ident)*) => {$(
        impl Deref for $permission {
            type Target = Grant;

            fn deref(&self) -> &Grant {
                &self.grant
            }
        }
    )*};
}

says_its_grant!(Admitted Entrusted Vetted);

fn dialable_addrs(answers: &[IpAddr], port: Port) -> Vec<SocketAddr> {
    let mut addrs: Vec<SocketAddr> = Vec::new();
    for ip in answers {
        let addr = SocketAddr::new(*ip, port.get());
        if !addrs.contains(&addr) {
            addrs.push(addr);
        }
        if addrs.len() == MAX_ADDRS {
            break;
        }
    }
    addrs
}

/// The reason why the policy refused, with the details of each kind of refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    /// No rule covers the name.
    Default,
    /// No IP rule covers the literal.
    IpLiteral { class: AddrClass },
    /// A deny rule covers the target, or this address of its answer.
    DenyRule { rule: RuleId, addr: Option<IpAddr> },
    /// Rules grant the host only on these ports.
    Port { granted: PortSet },
    /// The rule would grant the target, but has expired. For an answer, this address needs the rule.
    Expired { rule: RuleId, addr: Option<(IpAddr, AddrClass)> },
    /// No IP rule opens these addresses. The first one gives the class.
    Closed { class: AddrClass, first: IpAddr, more: Vec<IpAddr> },
    /// The answer is empty.
    Empty,
}

/// A refusal by policy. It is an outcome, not an error.
#[must_use = "a denial is recorded and answered"]
#[derive(Debug, Clone)]
pub struct Denial(Box<Refused>);

#[derive(Debug, Clone)]
struct Refused {
    policy: Policy,
    target: Target,
    why: Why,
    admitted_by: Option<RuleId>,
    /// The layer that does not grant the target; `None` if no layer could.
    layer: Option<usize>,
}

impl Denial {
    pub(crate) fn new(
        policy: Policy,
        target: Target,
        why: Why,
        admitted_by: Option<RuleId>,
        layer: Option<usize>,
    ) -> Self {
        Self(Box::new(Refused { policy, target, why, admitted_by, layer }))
    }

    /// Returns the host and port that the client asked for.
    pub fn target(&self) -> &Target {
        &self.0.target
    }

    /// Returns the reason for the record.
    pub fn reason(&self) -> Reason {
        match &self.0.why {
            Why::Default => Reason::Default,
            Why::IpLiteral { .. } => Reason::IpLiteral,
            Why::DenyRule { .. } => Reason::DenyRule,
            Why::Port { .. } => Reason::Port,
            Why::Expired { .. } => Reason::Expired,
            Why::Closed { class: AddrClass::Metadata, .. } => Reason::MetadataIp,
            Why::Closed { .. } => Reason::PrivateIp,
            Why::Empty => Reason::DnsEmpty,
        }
    }

    /// Returns the rule that decided: a deny rule or an expired one.
    pub fn rule(&self) -> Option<&Rule> {
        match &self.0.why {
            Why::DenyRule { rule, .. } | Why::Expired { rule, .. } => Some(self.0.policy.rule(*rule)),
            _ => None,
        }
    }

    /// Returns the layer above the grants that refused: a ceiling, a declaration, or a lock. No grant can change
    /// that.
    pub fn above(&self) -> Option<&Layer> {
        let layer = self.0.policy.layers().get(self.0.layer?)?;
        (layer.role() != Role::Grants).then_some(layer)
    }

    /// Returns who refused, if no grant can change that: the layer above the grants that does not grant it, or whose deny rule forbids it.
    pub fn refused_by(&self) -> Option<&Layer> {
        let denies = |rule| move |layer: &&Layer| layer.role() != Role::Grants && layer.has(rule);
        match self.0.why {
            Why::DenyRule { rule, .. } => self.0.policy.layers().iter().find(denies(rule)),
            _ => self.above(),
        }
    }

    /// Says whose rules do not grant it, for the stage, and without a path.
    fn refuser_inside(&self) -> &'static str {
        match self.above().map(Layer::role) {
            Some(Role::Ceiling) => "no rule of a ceiling",
            Some(Role::Declared) => "no declared effect",
            Some(Role::Lock) => "no entry of the lock",
            Some(Role::Grants) | None => "no rule",
        }
    }

    /// Returns the grant of the name, if only an address was refused.
    pub fn admitted_by(&self) -> Option<&Rule> {
        self.0.admitted_by.map(|id| self.0.policy.rule(id))
    }

    /// Returns the address that decided: the refused answer, or the literal itself.
    pub fn addr(&self) -> Option<IpAddr> {
        match &self.0.why {
            Why::DenyRule { addr: Some(addr), .. }
            | Why::Expired { addr: Some((addr, _)), .. }
            | Why::Closed { first: addr, .. } => Some(*addr),
            _ => self.0.target.host.ip(),
        }
    }

    /// Returns the class of that address, if it matters.
    pub fn class(&self) -> Option<AddrClass> {
        match &self.0.why {
            Why::IpLiteral { class }
            | Why::Expired { addr: Some((_, class)), .. }
            | Why::Closed { class, .. } => Some(*class),
            _ => None,
        }
    }

    /// Returns the ports that rules grant for this host, if only the port was refused.
    pub fn granted_ports(&self) -> Option<&PortSet> {
        match &self.0.why {
            Why::Port { granted } => Some(granted),
            _ => None,
        }
    }

    /// Returns the decision for the record.
    pub fn decision(&self) -> Decision {
        Decision {
            target: self.0.target.clone(),
            verdict: if self.0.why == Why::Empty { Verdict::Error } else { Verdict::Deny },
            reason: self.reason(),
            rule: self.rule().map(|rule| rule.id),
        }
    }

    /// Explains the refusal in one line for the stage. It contains no address that the stage did not ask for, no
    /// path and no person.
    pub fn said_inside(&self) -> String {
        match &self.0.why {
            Why::Default => format!("{} allows it", self.refuser_inside()),
            Why::IpLiteral { .. } if self.above().is_some() => {
                format!("{} allows this address", self.refuser_inside())
            }
            Why::Port { granted } => match format_ports(granted) {
                Some(ports) if granted.single().is_some() => {
                    format!("this host is allowed on port {ports} only")
                }
                Some(ports) => format!("this host is allowed on ports {ports} only"),
                None => self.reason().sentence().into(),
            },
            Why::Closed { class, .. } if class.is_never_dialed() => "its address is never reachable".into(),
            _ => self.reason().sentence().into(),
        }
    }

    /// Explains the refusal in one line for the host's terminal and record. It may name addresses and files.
    pub fn said_outside(&self) -> String {
        let said = self.explain_by_rules();
        let Some(layer) = self.above() else { return said };
        let who = match (layer.role(), layer.name()) {
            (Role::Declared, _) => "the stage does not declare".to_owned(),
            (Role::Lock, file) => format!("the lock {} does not have", printable(file.unwrap_or_default())),
            (_, Some(file)) => format!("the ceiling {} does not allow", printable(file)),
            (_, None) => "the ceiling does not allow".to_owned(),
        };
        match &self.0.why {
            Why::Default => format!("{who} it"),
            Why::IpLiteral { .. } => format!("{who} this address"),
            Why::Closed { .. } => format!("{said}; {who} that address"),
            Why::Port { .. } => format!("{said}; {who} this port"),
            _ => said,
        }
    }

    fn explain_by_rules(&self) -> String {
        // A literal did not resolve to anything, and the message already contains it.
        let address = |addr: &IpAddr, class: &AddrClass| match self.0.target.host {
            Host::Ip(_) => format!("not a public address ({})", self.describe_address(*addr, *class)),
            Host::Name(_) => format!("resolves to {addr} ({})", self.describe_address(*addr, *class)),
        };
        match &self.0.why {
            Why::Default => "no rule allows it".into(),
            Why::IpLiteral { class: AddrClass::Public } | Why::Empty => self.reason().sentence().into(),
            Why::IpLiteral { class } => {
                let said = self.reason().sentence();
                match self.0.target.host.ip() {
                    Some(ip) => format!("{said} ({})", self.describe_address(ip, *class)),
                    None => format!("{said} ({class})"),
                }
            }
            Why::DenyRule { rule, addr } => {
                let origin = &self.0.policy.rule(*rule).origin;
                match addr {
                    Some(addr) => format!("resolves to {addr}, denied by {origin}"),
                    None => format!("denied by {origin}"),
                }
            }
            Why::Port { granted } => match format_ports(granted) {
                Some(ports) => format!("allowed on {ports} only"),
                None => "allowed on other ports only".into(),
            },
            Why::Expired { rule, addr } => {
                let rule = self.0.policy.rule(*rule);
                let day = rule.note.expires.map(|day| format!(" on {day}")).unwrap_or_default();
                let expired = format!("the rule at {} expired{day}", rule.origin);
                match addr {
                    Some((addr, class)) => format!("{}; {expired}", address(addr, class)),
                    None => expired,
                }
            }
            Why::Closed { class, first, .. } => address(first, class),
        }
    }

    /// Describes an address and its class. For NAT64, it names the address inside.
    fn describe_address(&self, ip: IpAddr, class: AddrClass) -> String {
        match addr::nat64(ip) {
            None => class.to_string(),
            // The class is that of the whole form, because the address inside was not checked.
            Some(inner) if class == AddrClass::Embedded(Embedding::Nat64) => {
                format!("NAT64 of {inner}; --set network.nat64=true judges the address inside")
            }
            Some(inner) => format!("NAT64 of {inner}, {class}"),
        }
    }

    /// Returns the flags that would allow exactly this, for people on the host. Never a wildcard. `None` if a deny
    /// rule, an expiry, a ceiling or a declaration refuses it, and for metadata and addresses that are never
    /// dialed.
    pub fn flag(&self) -> Option<String> {
        if self.above().is_some() {
            return None;
        }
        let target = &self.0.target;
        if target.host.ip().is_some_and(|ip| classify(ip) == AddrClass::Metadata) {
            return None;
        }
        match &self.0.why {
            Why::Default | Why::Port { .. } | Why::IpLiteral { .. } => {
                Some(flag_for(&target.host, target.port))
            }
            Why::Closed { class, first, more } => {
                let closed = class.is_never_dialed() || *class == AddrClass::Metadata;
                if closed || more.len() >= MAX_FLAGS {
                    return None;
                }
                let all = std::iter::once(first).chain(more);
                // If the address inside is checked, a rule for it is readable and stays valid.
                let judged = |ip: &IpAddr| match addr::nat64(*ip) {
                    Some(inner) if self.0.policy.terms().nat64 => inner.into(),
                    _ => *ip,
                };
                let mut flags: Vec<String> = Vec::new();
                for flag in all.map(|ip| flag_for(&Host::Ip(judged(ip)), target.port)) {
                    if !flags.contains(&flag) {
                        flags.push(flag);
                    }
                }
                Some(flags.join(" "))
            }
            Why::DenyRule { .. } | Why::Expired { .. } | Why::Empty => None,
        }
    }

    /// Returns the flags for the stage: none that would show a resolved address.
    pub fn flag_inside(&self) -> Option<String> {
        match &self.0.why {
            Why::Closed { .. } if self.0.target.host.ip().is_none() => None,
            _ => self.flag(),
        }
    }

    /// Whether report mode allows this and records `would_deny`: only a name, on port 80 or 443, for which the
    /// grants have no rule or one for other ports. A deny rule, a ceiling, a declaration, an expiry or an address
    /// is enforced in every mode.
    pub fn is_reportable(&self) -> bool {
        let Target { host, port } = &self.0.target;
        matches!(self.0.why, Why::Default | Why::Port { .. })
            && host.name().is_some()
            && REPORTED.contains(&port.get())
            && self.above().is_none()
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "denied {}: {}", self.0.target, self.said_outside())
    }
}

/// Formats the ports, or returns `None` if there are too many for one line.
fn format_ports(ports: &PortSet) -> Option<String> {
    (ports.ranges().count() <= MAX_RANGES).then(|| ports.to_string())
}

/// Formats a flag. A literal always has its port; a name on 443 needs none.
fn flag_for(host: &Host, port: Port) -> String {
    match host {
        Host::Name(name) if port == Port::HTTPS => format!("--allow {name}"),
        Host::Name(_) | Host::Ip(_) => format!("--allow {host}:{port}"),
    }
}

#[cfg(test)]
mod tests;

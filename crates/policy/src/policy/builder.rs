//! Builds a policy from rules and layers.

use crate::effect::EffectSet;
use crate::file::FileRule;
use crate::grammar::{Allowances, RuleError, RuleSpec};
use crate::rule::{Action, Note, Origin, Rule, RuleId};
use crate::terms::Terms;

use super::{Layer, Policy, Role};

/// Collects the rules of one layer. Rules are a union: their order does not matter, and repeats are harmless.
#[derive(Debug, Clone, Default)]
pub struct PolicyBuilder {
    rules: Vec<Rule>,
    allowances: Allowances,
    leaves_upstream_open: bool,
}

impl PolicyBuilder {
    /// Creates a builder without rules and allowances.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether allow rules added later may be `*`.
    pub fn allow_any(&mut self, yes: bool) -> &mut Self {
        self.allowances.any = yes;
        self
    }

    /// Sets whether rules added later may be wildcards on public and multi-tenant suffixes.
    pub fn allow_shared_suffix(&mut self, yes: bool) -> &mut Self {
        self.allowances.shared_suffix = yes;
        self
    }

    /// Sets whether a run may use an upstream proxy that these rules do not allow. Only a ceiling bounds upstream
    /// proxies. One that names the proxy itself, or no hosts, leaves it open.
    pub fn leave_upstream_open(&mut self, yes: bool) -> &mut Self {
        self.leaves_upstream_open = yes;
        self
    }

    /// Adds one rule. `default` is its action unless the text starts with `!`.
    ///
    /// # Errors
    ///
    /// Returns a [`RuleError`] if the text is not a rule, and leaves the builder unchanged. A caller must not
    /// continue without the rule: it may have been the deny rule that mattered.
    pub fn add(&mut self, text: &str, default: Action, origin: Origin, note: Note) -> Result<(), RuleError> {
        let spec = RuleSpec::parse(text, default, self.allowances)?;
        self.push(spec, text, origin, note);
        Ok(())
    }

    /// Adds a rule that was parsed before.
    pub fn push(&mut self, spec: RuleSpec, text: &str, origin: Origin, note: Note) {
        // INVARIANT: 2^32 rules do not fit in memory, because files are bounded and arguments are few.
        let id = RuleId(u32::try_from(self.rules.len()).unwrap_or(u32::MAX));
        let RuleSpec { action, pattern, ports } = spec;
        self.rules.push(Rule { id, text: text.to_owned(), action, pattern, ports, origin, note });
    }

    /// Returns the rules in the order of addition.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Adds the rules that these effects need. Their paths do not concern hosts.
    pub fn add_effects(&mut self, effects: &EffectSet) -> &mut Self {
        for rule in effects.rules() {
            rule.apply(self);
        }
        self
    }

    /// Builds the policy of these grants, without layers above them.
    pub fn build(self) -> Policy {
        Layers { grants: self, ..Layers::default() }.build()
    }
}

impl FileRule {
    /// Adds the rule to a policy.
    pub fn apply(&self, builder: &mut PolicyBuilder) {
        builder.push(self.spec.clone(), &self.text, self.origin.clone(), self.note.clone());
    }
}

/// The layers of a policy that is being built. A target is granted if every layer grants it.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// The rules that the caller grants.
    pub grants: PolicyBuilder,
    /// The rules that the stage declared; `None` means everything.
    pub declared: Option<PolicyBuilder>,
    /// Upper bounds, each with the name of its file. An empty one allows nothing.
    pub ceilings: Vec<(String, PolicyBuilder)>,
    /// The lock, with the name of its file; `None` means everything, an empty one nothing.
    pub lock: Option<(String, PolicyBuilder)>,
    /// The settings that apply to all rules.
    pub terms: Terms,
}

impl Layers {
    /// Builds the policy.
    pub fn build(self) -> Policy {
        let Self { grants, declared, ceilings, lock, terms } = self;
        let declared = declared.map(|rules| (Role::Declared, None, rules));
        let ceilings = ceilings.into_iter().map(|(name, rules)| (Role::Ceiling, Some(name), rules));
        let lock = lock.map(|(name, rules)| (Role::Lock, Some(name), rules));
        let mut rules: Vec<Rule> = Vec::new();
        let mut layers = Vec::new();
        for (role, name, added) in
            std::iter::once((Role::Grants, None, grants)).chain(declared).chain(lock).chain(ceilings)
        {
            let bounds_upstream = role == Role::Ceiling && !added.leaves_upstream_open;
            layers.push(Layer::append(role, name, added.rules, bounds_upstream, &mut rules));
        }
        layers.sort_by_key(Layer::role);
        Policy::assemble(rules, layers, terms)
    }
}

impl Default for Policy {
    /// Makes the policy that refuses everything.
    fn default() -> Self {
        PolicyBuilder::new().build()
    }
}

impl Policy {
    /// Creates a policy that grants what these effects need, and nothing else. A set without hosts grants none.
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

    /// Returns the layers, so that a caller can add more of them.
    #[must_use]
    pub fn to_layers(&self) -> Layers {
        let mut all = Layers { terms: self.0.terms, ..Layers::default() };
        for layer in &self.0.layers {
            let rules = PolicyBuilder {
                rules: self.rules_of(layer).to_vec(),
                leaves_upstream_open: !layer.bounds_upstream(),
                ..PolicyBuilder::default()
            };
            let named = |rules| (layer.name().unwrap_or_default().to_owned(), rules);
            match layer.role() {
                Role::Ceiling => all.ceilings.push(named(rules)),
                Role::Declared => all.declared = Some(rules),
                Role::Lock => all.lock = Some(named(rules)),
                Role::Grants => all.grants = rules,
            }
        }
        all
    }
}

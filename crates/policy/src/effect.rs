//! Defines what a stage declares that it does. An effect grants nothing by itself: whoever runs the stage decides
//! what is granted.
//!
//! The wire form is a JSON object with the tag `effect`. `NetworkHosts` has its own tag instead of a field of
//! `Network`. Otherwise readers that ignore unknown fields would take `{"effect":"Network","hosts":[...]}` for
//! `Network` and open everything; they refuse an unknown tag.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::file::keys::nearest;
use crate::file::{BindError, FileRule, PathSpec};
use crate::grammar::{Allowances, RuleError, RuleFault, RuleSpec};
use crate::pattern::HostPattern;
use crate::port::{Port, PortSet};
use crate::rule::{Action, Note, Origin, Pattern};

mod read;

/// An effect of a stage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "effect")]
pub enum Effect {
    /// The stage costs money.
    Cost {
        /// The amount, in hundredths of the pipeline's currency.
        cents: u64,
    },
    /// The stage may fail.
    Fallible,
    /// The stage reads below a path.
    FsRead {
        /// The path on the host, and the same path inside.
        path: EffectPath,
    },
    /// The stage reads and writes below a path.
    FsWrite {
        /// The path on the host, and the same path inside.
        path: EffectPath,
    },
    /// The stage asks a language model. This grants no host.
    Llm {
        /// The name of the model.
        model: String,
    },
    /// The stage connects to any public host on ports 80 and 443.
    Network,
    /// The stage connects to these hosts; an empty list means none.
    NetworkHosts {
        /// The hosts, as rules.
        hosts: BTreeSet<HostRule>,
    },
    /// The stage may give different output for the same input.
    NonDeterministic,
    /// The stage starts other programs.
    Process,
    /// The stage has no effect.
    Pure,
    /// The stage does not say.
    Unknown,
}

/// Defines [`EffectKind`]: each row has its word on the wire, its word on a command line, and the field of such an effect besides its tag.
macro_rules! kinds {
    ($($kind:ident $token:literal $field:expr;)*) => {
        /// The kind of an effect, without its values.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "each is the effect of the same name")]
        pub enum EffectKind {
            $($kind,)*
        }

        impl EffectKind {
            /// Lists all kinds, in their order.
            pub const ALL: [Self; [$($token),*].len()] = [$(Self::$kind),*];

            /// Returns the word on the wire, such as `FsRead`.
            pub const fn tag(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)*
                }
            }

            /// Returns the word on a command line, such as `fs-read`.
            pub const fn token(self) -> &'static str {
                match self {
                    $(Self::$kind => $token,)*
                }
            }

            /// Returns the field that an effect of this kind has besides its tag.
            pub const fn field(self) -> Option<&'static str> {
                match self {
                    $(Self::$kind => $field,)*
                }
            }
        }

        impl Effect {
            /// Returns its kind.
            pub fn kind(&self) -> EffectKind {
                match self {
                    $(Self::$kind { .. } => EffectKind::$kind,)*
                }
            }
        }
    };
}

kinds! {
    Cost "cost" Some("cents");
    Fallible "fallible" None;
    FsRead "fs-read" Some("path");
    FsWrite "fs-write" Some("path");
    Llm "llm" Some("model");
    Network "network" None;
    NetworkHosts "network-hosts" Some("hosts");
    NonDeterministic "non-deterministic" None;
    Process "process" None;
    Pure "pure" None;
    Unknown "unknown" None;
}

/// Effects without repeats, in one order, so that equal sets serialize alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EffectSet(BTreeSet<Effect>);

/// A path of an effect: absolute or below HOME, and without `..`, so that its text shows where it lies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectPath(PathSpec);

/// A host that a stage needs: an allow rule, with ports only if they are not 443.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostRule {
    /// The text; as the first field, it defines the order of rules.
    text: String,
    spec: RuleSpec,
}

impl Effect {
    /// Returns the rules that the effect needs, each with the effect as its origin. Only two kinds have rules.
    pub fn rules(&self) -> Vec<FileRule> {
        let specs: Vec<(String, RuleSpec)> = match self {
            Self::Network => any_host().map(|spec| (spec.to_string(), spec)).into(),
            Self::NetworkHosts { hosts } => {
                hosts.iter().map(|host| (host.text.clone(), host.spec.clone())).collect()
            }
            _ => Vec::new(),
        };
        let origin = Origin::Effect { effect: self.kind().tag().to_owned() };
        let rule = |(text, spec)| FileRule { text, spec, origin: origin.clone(), note: Note::default() };
        specs.into_iter().map(rule).collect()
    }
}

impl EffectKind {
    /// Whether allowing this kind also allows the other one: the same kind, and `network-hosts` under `network`.
    pub fn covers(self, other: Self) -> bool {
        self == other || (self == Self::Network && other == Self::NetworkHosts)
    }

    fn from_tag(tag: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.tag() == tag)
    }

    /// Returns the kind whose tag or token is closest to a word.
    fn closest(word: &str) -> Option<Self> {
        let plain = |word: &str| word.replace(['-', '_', ' '], "").to_ascii_lowercase();
        let tags = Self::ALL.map(|kind| plain(kind.tag()));
        let near = nearest(&plain(word), tags.iter().map(String::as_str))?;
        Self::ALL.into_iter().find(|kind| plain(kind.tag()) == near)
    }
}

/// The word is not a kind of effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no kind of effect", crate::escape::visible(.word))]
pub struct EffectKindError {
    word: String,
    meant: Option<EffectKind>,
}

impl EffectKindError {
    /// Returns the kind that was probably meant.
    pub fn suggestion(&self) -> Option<EffectKind> {
        self.meant
    }
}

impl FromStr for EffectKind {
    type Err = EffectKindError;

    fn from_str(word: &str) -> Result<Self, EffectKindError> {
        let known = Self::ALL.into_iter().find(|kind| kind.token() == word);
        known.ok_or_else(|| EffectKindError { word: word.to_owned(), meant: Self::closest(word) })
    }
}

impl fmt::Display for EffectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.token())
    }
}

impl EffectSet {
    /// Creates a set without effects. It differs from no declaration at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an effect. Returns `false` if it was there.
    pub fn insert(&mut self, effect: Effect) -> bool {
        self.0.insert(effect)
    }

    /// Whether this effect is in the set.
    pub fn contains(&self, effect: &Effect) -> bool {
        self.0.contains(effect)
    }

    /// Whether an effect of this kind is in the set.
    pub fn has(&self, kind: EffectKind) -> bool {
        self.0.iter().any(|effect| effect.kind() == kind)
    }

    /// Iterates in order.
    pub fn iter(&self) -> impl Iterator<Item = &Effect> {
        self.0.iter()
    }

    /// Returns the number of effects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set has no effect.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the effects whose kind `allowed` does not cover.
    pub fn beyond(&self, allowed: &BTreeSet<EffectKind>) -> impl Iterator<Item = &Effect> {
        self.0.iter().filter(|effect| !allowed.iter().any(|kind| kind.covers(effect.kind())))
    }

    /// Returns the rules of all effects. See [`Effect::rules`].
    pub fn rules(&self) -> impl Iterator<Item = FileRule> {
        self.0.iter().flat_map(Effect::rules)
    }

    /// Returns the paths to show read-only, at the same place.
    pub fn fs_read(&self) -> impl Iterator<Item = &PathSpec> {
        self.0.iter().filter_map(|effect| match effect {
            Effect::FsRead { path } => Some(&path.0),
            _ => None,
        })
    }

    /// Returns the paths to show writable, at the same place.
    pub fn fs_write(&self) -> impl Iterator<Item = &PathSpec> {
        self.0.iter().filter_map(|effect| match effect {
            Effect::FsWrite { path } => Some(&path.0),
            _ => None,
        })
    }
}

impl FromIterator<Effect> for EffectSet {
    fn from_iter<I: IntoIterator<Item = Effect>>(effects: I) -> Self {
        Self(effects.into_iter().collect())
    }
}

impl EffectPath {
    /// Returns the path as in a policy.
    pub fn spec(&self) -> &PathSpec {
        &self.0
    }
}

impl FromStr for EffectPath {
    type Err = BindError;

    fn from_str(text: &str) -> Result<Self, BindError> {
        let path = PathSpec::fixed(text)?;
        if path.has_dots() { Err(BindError::DotDot) } else { Ok(Self(path)) }
    }
}

impl fmt::Display for EffectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl HostRule {
    /// Returns the rule as in a policy.
    pub fn spec(&self) -> &RuleSpec {
        &self.spec
    }
}

/// The reason why a text is not a host that a stage may declare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostRuleError {
    /// The text is not a rule, or needs an allowance, which only a policy can give.
    Rule(RuleError),
    /// `!host`.
    Deny,
}

impl fmt::Display for HostRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self {
            Self::Deny => return f.write_str("an effect says what the stage needs; it denies nothing"),
            Self::Rule(error) => match error.fault() {
                RuleFault::Any => "every host is the effect `Network`",
                RuleFault::PublicSuffix => "anyone can register names below this suffix; name the hosts",
                RuleFault::SharedSuffix => "names below this suffix belong to many tenants; name the hosts",
                _ => return error.fmt(f),
            },
        };
        let Self::Rule(error) = self else { return Ok(()) };
        write!(f, "`{}` is not declared like this: {reason}", crate::escape::visible(error.text()))
    }
}

impl std::error::Error for HostRuleError {}

impl FromStr for HostRule {
    type Err = HostRuleError;

    fn from_str(text: &str) -> Result<Self, HostRuleError> {
        let spec =
            RuleSpec::parse(text, Action::Allow, Allowances::default()).map_err(HostRuleError::Rule)?;
        if spec.action == Action::Deny {
            return Err(HostRuleError::Deny);
        }
        let RuleSpec { pattern, ports, .. } = &spec;
        let usual = *ports == PortSet::one(Port::HTTPS);
        let text = if usual { pattern.to_string() } else { format!("{pattern}:{ports}") };
        Ok(Self { text, spec })
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns rules for every public host on the ports of the web: every name, and every address that is not special.
/// A special address needs a rule inside its own block, and these nets are wider.
pub(crate) fn any_host() -> [RuleSpec; 3] {
    let ports: Vec<PortSet> = [80, 443].into_iter().filter_map(Port::new).map(PortSet::one).collect();
    let ports = PortSet::union(&ports);
    [
        Pattern::Name(HostPattern::Any),
        Pattern::Net(Ipv4Net::default().into()),
        Pattern::Net(Ipv6Net::default().into()),
    ]
    .map(|pattern| RuleSpec { action: Action::Allow, pattern, ports: ports.clone() })
}

/// An effect as it is read: with every field of every kind, so that a wrong one is noticed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    effect: String,
    #[serde(default, deserialize_with = "deserialize_value")]
    cents: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_value")]
    path: Option<EffectPath>,
    #[serde(default, deserialize_with = "deserialize_value")]
    model: Option<String>,
    #[serde(default, deserialize_with = "deserialize_value")]
    hosts: Option<BTreeSet<HostRule>>,
}

impl<'de> Deserialize<'de> for Effect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A derived reader would also accept `["Network"]`, field by field.
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Effect;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a tag, `effect`")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Effect, A::Error> {
                let wire = Wire::deserialize(MapAccessDeserializer::new(map))?;
                wire.try_into().map_err(A::Error::custom)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Reads a field that must have a value; `null` is refused.
fn deserialize_value<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The reason why an object is not an effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum WireError {
    #[error("there is no effect `{}`", crate::escape::visible(.0))]
    Tag(String),
    #[error("`{0}` has a field `{1}`, and it is missing")]
    Missing(&'static str, &'static str),
    #[error("`{0}` has no field `{1}`")]
    Extra(&'static str, &'static str),
}

impl TryFrom<Wire> for Effect {
    type Error = WireError;

    fn try_from(wire: Wire) -> Result<Self, WireError> {
        let Wire { effect, cents, path, model, hosts } = wire;
        let kind = EffectKind::from_tag(&effect).ok_or(WireError::Tag(effect))?;
        let given = [
            ("cents", cents.is_some()),
            ("path", path.is_some()),
            ("model", model.is_some()),
            ("hosts", hosts.is_some()),
        ];
        if let Some((field, _)) = given.iter().find(|(field, given)| *given && kind.field() != Some(field)) {
            return Err(WireError::Extra(kind.tag(), field));
        }
        let missing = || WireError::Missing(kind.tag(), kind.field().unwrap_or_default());
        Ok(match kind {
            EffectKind::Cost => Self::Cost { cents: cents.ok_or_else(missing)? },
            EffectKind::Fallible => Self::Fallible,
            EffectKind::FsRead => Self::FsRead { path: path.ok_or_else(missing)? },
            EffectKind::FsWrite => Self::FsWrite { path: path.ok_or_else(missing)? },
            EffectKind::Llm => Self::Llm { model: model.ok_or_else(missing)? },
            EffectKind::Network => Self::Network,
            EffectKind::NetworkHosts => Self::NetworkHosts { hosts: hosts.ok_or_else(missing)? },
            EffectKind::NonDeterministic => Self::NonDeterministic,
            EffectKind::Process => Self::Process,
            EffectKind::Pure => Self::Pure,
            EffectKind::Unknown => Self::Unknown,
        })
    }
}

impl Serialize for EffectPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EffectPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for HostRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;

//! What a stage says that it does. An effect is declared by the stage and grants nothing by itself: who runs the stage
//! decides what of it is granted.
//!
//! The wire form is a JSON object with the tag `effect`. `NetworkHosts` is a tag of its own, not a field of `Network`:
//! readers that ignore unknown fields would take `{"effect":"Network","hosts":[...]}` for `Network` and open everything,
//! while an unknown tag they refuse.

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

/// One thing that a stage does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "effect")]
pub enum Effect {
    /// It costs money.
    Cost {
        /// In hundredths of the currency that the pipeline counts in.
        cents: u64,
    },
    /// It may fail.
    Fallible,
    /// It reads below a path.
    FsRead {
        /// On the host, and inside at the same place.
        path: EffectPath,
    },
    /// It reads and writes below a path.
    FsWrite {
        /// On the host, and inside at the same place.
        path: EffectPath,
    },
    /// It asks a language model. That grants no host.
    Llm {
        /// Its name.
        model: String,
    },
    /// It connects to any public host on the ports 80 and 443.
    Network,
    /// It connects to these hosts; an empty list is nothing.
    NetworkHosts {
        /// As rules.
        hosts: BTreeSet<HostRule>,
    },
    /// The same input may give another output.
    NonDeterministic,
    /// It starts other programs.
    Process,
    /// It has no effect.
    Pure,
    /// Nobody has said.
    Unknown,
}

/// An effect without what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the effect of the same name")]
pub enum EffectKind {
    Cost,
    Fallible,
    FsRead,
    FsWrite,
    Llm,
    Network,
    NetworkHosts,
    NonDeterministic,
    Process,
    Pure,
    Unknown,
}

/// Effects, each once and in one order: equal sets are serialised alike, in whatever order they were written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EffectSet(BTreeSet<Effect>);

/// A path of an effect: absolute or below HOME, and without `..`, so that it says by its letters what it lies in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectPath(PathSpec);

/// A host that a stage needs: an allow rule, with ports only where they are not 443.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostRule {
    /// First, so that rules are sorted as they are read.
    text: String,
    spec: RuleSpec,
}

impl Effect {
    /// Without what it carries.
    pub fn kind(&self) -> EffectKind {
        match self {
            Self::Cost { .. } => EffectKind::Cost,
            Self::Fallible => EffectKind::Fallible,
            Self::FsRead { .. } => EffectKind::FsRead,
            Self::FsWrite { .. } => EffectKind::FsWrite,
            Self::Llm { .. } => EffectKind::Llm,
            Self::Network => EffectKind::Network,
            Self::NetworkHosts { .. } => EffectKind::NetworkHosts,
            Self::NonDeterministic => EffectKind::NonDeterministic,
            Self::Process => EffectKind::Process,
            Self::Pure => EffectKind::Pure,
            Self::Unknown => EffectKind::Unknown,
        }
    }

    /// The rules that it takes to have the effect, each with the effect as its origin. All but two kinds have none.
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
    /// All of them, in their order.
    pub const ALL: [Self; 11] = [
        Self::Cost,
        Self::Fallible,
        Self::FsRead,
        Self::FsWrite,
        Self::Llm,
        Self::Network,
        Self::NetworkHosts,
        Self::NonDeterministic,
        Self::Process,
        Self::Pure,
        Self::Unknown,
    ];

    /// The word on the wire, such as `FsRead`.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::Cost => "Cost",
            Self::Fallible => "Fallible",
            Self::FsRead => "FsRead",
            Self::FsWrite => "FsWrite",
            Self::Llm => "Llm",
            Self::Network => "Network",
            Self::NetworkHosts => "NetworkHosts",
            Self::NonDeterministic => "NonDeterministic",
            Self::Process => "Process",
            Self::Pure => "Pure",
            Self::Unknown => "Unknown",
        }
    }

    /// The word on a command line, such as `fs-read`.
    pub const fn token(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Fallible => "fallible",
            Self::FsRead => "fs-read",
            Self::FsWrite => "fs-write",
            Self::Llm => "llm",
            Self::Network => "network",
            Self::NetworkHosts => "network-hosts",
            Self::NonDeterministic => "non-deterministic",
            Self::Process => "process",
            Self::Pure => "pure",
            Self::Unknown => "unknown",
        }
    }

    /// The one field that an effect of this kind has besides its tag.
    pub const fn field(self) -> Option<&'static str> {
        match self {
            Self::Cost => Some("cents"),
            Self::FsRead | Self::FsWrite => Some("path"),
            Self::Llm => Some("model"),
            Self::NetworkHosts => Some("hosts"),
            Self::Fallible
            | Self::Network
            | Self::NonDeterministic
            | Self::Process
            | Self::Pure
            | Self::Unknown => None,
        }
    }

    /// Whether who allows this kind allows the other one: the same, and `network-hosts` by `network`.
    pub fn covers(self, other: Self) -> bool {
        self == other || (self == Self::Network && other == Self::NetworkHosts)
    }

    fn of_tag(tag: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.tag() == tag)
    }

    /// The kind whose tag or token is most like a word.
    fn like(word: &str) -> Option<Self> {
        let plain = |word: &str| word.replace(['-', '_', ' '], "").to_ascii_lowercase();
        let tags = Self::ALL.map(|kind| plain(kind.tag()));
        let near = nearest(&plain(word), tags.iter().map(String::as_str))?;
        Self::ALL.into_iter().find(|kind| plain(kind.tag()) == near)
    }
}

/// The word is no kind of effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no kind of effect", crate::escape::visible(.word))]
pub struct EffectKindError {
    word: String,
    meant: Option<EffectKind>,
}

impl EffectKindError {
    /// What was probably meant.
    pub fn meant(&self) -> Option<EffectKind> {
        self.meant
    }
}

impl FromStr for EffectKind {
    type Err = EffectKindError;

    fn from_str(word: &str) -> Result<Self, EffectKindError> {
        let known = Self::ALL.into_iter().find(|kind| kind.token() == word);
        known.ok_or_else(|| EffectKindError { word: word.to_owned(), meant: Self::like(word) })
    }
}

impl fmt::Display for EffectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.token())
    }
}

impl EffectSet {
    /// No effects: not the same as nothing declared, which says nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one; `false` if it was there.
    pub fn insert(&mut self, effect: Effect) -> bool {
        self.0.insert(effect)
    }

    /// Whether this very effect is in it.
    pub fn contains(&self, effect: &Effect) -> bool {
        self.0.contains(effect)
    }

    /// Whether an effect of the kind is in it.
    pub fn has(&self, kind: EffectKind) -> bool {
        self.0.iter().any(|effect| effect.kind() == kind)
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Effect> {
        self.0.iter()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The effects whose kind none of `allowed` covers.
    pub fn beyond(&self, allowed: &BTreeSet<EffectKind>) -> impl Iterator<Item = &Effect> {
        self.0.iter().filter(|effect| !allowed.iter().any(|kind| kind.covers(effect.kind())))
    }

    /// The rules of all of them: see [`Effect::rules`].
    pub fn rules(&self) -> impl Iterator<Item = FileRule> {
        self.0.iter().flat_map(Effect::rules)
    }

    /// What is to be shown read-only, at its own place.
    pub fn fs_read(&self) -> impl Iterator<Item = &PathSpec> {
        self.0.iter().filter_map(|effect| match effect {
            Effect::FsRead { path } => Some(&path.0),
            _ => None,
        })
    }

    /// What is to be shown writable, at its own place.
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
    /// As a policy has it.
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
    /// As a policy has it.
    pub fn spec(&self) -> &RuleSpec {
        &self.spec
    }
}

/// Why a text is no host that a stage may declare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostRuleError {
    /// It is no rule, or one that takes an allowance, which only a policy can give.
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

/// Every public host on the ports of the web: every name, and every address that is not special. A special address takes
/// a rule that lies in its own block, and these nets lie in none.
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

/// An effect as it is read: every field of every kind, so that one that does not belong is seen.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    effect: String,
    #[serde(default, deserialize_with = "given")]
    cents: Option<u64>,
    #[serde(default, deserialize_with = "given")]
    path: Option<EffectPath>,
    #[serde(default, deserialize_with = "given")]
    model: Option<String>,
    #[serde(default, deserialize_with = "given")]
    hosts: Option<BTreeSet<HostRule>>,
}

impl<'de> Deserialize<'de> for Effect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A derived reader would take `["Network"]` too, field by field.
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

/// A field that is there has a value; `null` is none.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Why an object is no effect.
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
        let kind = EffectKind::of_tag(&effect).ok_or(WireError::Tag(effect))?;
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

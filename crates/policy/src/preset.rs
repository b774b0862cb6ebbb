//! Provides presets: named groups of rules that come with the program, and profiles, which are unions of groups.
//!
//! It contains only data and lookups. A group with a client instead of hosts is filled by whoever can run that
//! client. Nothing here runs programs, resolves names or reads files.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::file::keys::nearest;
use crate::grammar::{Allowances, RuleError, RuleSpec};
use crate::policy::PolicyBuilder;
use crate::port::{Port, PortSet};
use crate::rule::{Action, Note, Origin};
use crate::words;

/// The data, compiled in.
const DATA: &str = include_str!("../presets.toml");

/// The name of the always-denied hosts in a record. No group or profile has it.
const DENY: &str = "deny";

static CATALOG: LazyLock<Result<Catalog, String>> = LazyLock::new(|| Catalog::read(DATA));

/// A group of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preset {
    /// The name of the preset.
    pub name: String,
    /// The purpose of the preset, in a few words.
    pub description: String,
    /// The risk of using it.
    pub risk: Risk,
    /// The ways in which it lets data out.
    pub flags: Vec<Flag>,
    /// A warning for its users.
    pub note: Option<String>,
    /// The ports of its rules.
    pub ports: PortSet,
    /// Its rules; none if a client is asked.
    pub allow: Vec<PresetRule>,
    /// File names of a project that select it: a name, or `*` and a suffix.
    pub detect: Vec<String>,
    /// The client that knows the hosts.
    pub from_client: Option<Client>,
    /// The methods that its clients need. For people only: a method inside CONNECT is not visible.
    pub methods: Vec<String>,
    /// Paths on shared hosts that its clients need. For people only: they grant nothing, not even their host.
    pub url_rules: Vec<String>,
    /// Variables that make its client use other hosts.
    pub redirected_by: Vec<String>,
}

/// A rule of a group, or of the always-denied hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresetRule {
    /// The rule as a user would write it, with the group's ports.
    pub text: String,
    /// The parsed rule.
    pub spec: RuleSpec,
    /// The group, and the text in it.
    pub origin: Origin,
}

words! {
    /// The risk of using a group.
    #[derive(PartialOrd, Ord, Hash, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Risk {
        /// Mostly for reading, with content that the vendor controls.
        Low = "low",
        /// More than an install needs, or it accepts uploads of the account holder.
        Medium = "medium",
        /// The hosts serve or store content of third parties.
        High = "high",
    }

    /// A way in which a group lets data out.
    #[derive(PartialOrd, Ord, Hash, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Flag {
        /// A host accepts writes.
        Upload = "upload",
        /// Anyone can publish there.
        UserContent = "user-content",
        /// Anyone can rent a name below one of its wildcards.
        MultiTenant = "multi-tenant",
    }

    /// A package client that knows its configured hosts. Its word is also the name of the program.
    #[derive(PartialOrd, Ord, Hash, Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[non_exhaustive]
    pub enum Client {
        /// The package manager of Debian.
        Apt = "apt",
        /// The package manager of Rust.
        Cargo = "cargo",
        /// The standard package manager of Node.
        Npm = "npm",
        /// The standard package manager of Python.
        Pip = "pip",
        /// An alternative package manager of Node.
        Pnpm = "pnpm",
        /// An alternative package manager of Python.
        Uv = "uv",
        /// Another alternative package manager of Node.
        Yarn = "yarn",
    }
}

/// A named union of groups.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The name of the profile.
    pub name: String,
    /// The groups and profiles in it.
    pub members: Vec<String>,
}

/// The group or profile with some name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresetOrProfile {
    /// A group.
    Group(&'static Preset),
    /// A profile.
    Profile(&'static Profile),
}

/// The reason why a name cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PresetError {
    /// No group or profile has this name.
    Unknown {
        /// The name as typed. It may contain anything, also control characters.
        name: String,
        /// The name that was probably meant.
        meant: Option<&'static str>,
    },
    /// The compiled-in data cannot be read, which is a fault of the build.
    Data(String),
}

/// Returns the groups, sorted by name.
#[must_use]
pub fn groups() -> &'static [Preset] {
    CATALOG.as_ref().map_or(&[], |catalog| &catalog.groups)
}

/// Returns the profiles, sorted by name.
#[must_use]
pub fn profiles() -> &'static [Profile] {
    CATALOG.as_ref().map_or(&[], |catalog| &catalog.profiles)
}

/// Returns every name: the groups, then the profiles.
pub fn names() -> impl Iterator<Item = &'static str> {
    let groups = groups().iter().map(|group| group.name.as_str());
    groups.chain(profiles().iter().map(|profile| profile.name.as_str()))
}

/// Returns the day of the last review of the data, `YYYY-MM-DD`.
#[must_use]
pub fn updated() -> &'static str {
    CATALOG.as_ref().map_or("", |catalog| &catalog.updated)
}

/// Finds the group or profile of a name. Names are lower case, and the lookup is exact.
#[must_use]
pub fn find(name: &str) -> Option<PresetOrProfile> {
    let group = groups().iter().find(|group| group.name == name).map(PresetOrProfile::Group);
    group.or_else(|| profiles().iter().find(|profile| profile.name == name).map(PresetOrProfile::Profile))
}

/// Returns the groups in a name, each once, in the order of the data.
///
/// # Errors
///
/// Returns a [`PresetError`] if the name is unknown or the data is broken. A caller must not continue without it.
pub fn expand(name: &str) -> Result<Vec<&'static Preset>, PresetError> {
    let catalog = CATALOG.as_ref().map_err(|fault| PresetError::Data(fault.clone()))?;
    catalog.expand(name)
}

/// Returns the hosts that are denied wherever a preset is used, whatever grants them: cloud metadata by name.
///
/// They are needed only with a preset. Otherwise only named hosts are reachable, and these addresses stay closed.
///
/// # Errors
///
/// Returns [`PresetError::Data`] if the data is broken.
pub fn always_denied() -> Result<&'static [PresetRule], PresetError> {
    let catalog = CATALOG.as_ref().map_err(|fault| PresetError::Data(fault.clone()))?;
    Ok(&catalog.denied)
}

/// Returns the groups that the files of a directory select, by the names of its entries.
///
/// The author of the directory selects here, so groups of high risk and groups with a flag are never among them.
pub fn detect<'n>(entries: impl IntoIterator<Item = &'n str>) -> Vec<&'static Preset> {
    let mut found: Vec<bool> = vec![false; groups().len()];
    for entry in entries {
        for (found, group) in found.iter_mut().zip(groups()) {
            *found |= group.is_chosen_by(entry);
        }
    }
    let chosen = found.into_iter().zip(groups()).filter(|(found, _)| *found);
    chosen.map(|(_, group)| group).collect()
}

impl Preset {
    /// Adds the rules of the group to the grants of a policy.
    ///
    /// It adds nothing for a group with a client, and leaves [`always_denied`] to the caller.
    pub fn add_to(&self, grants: &mut PolicyBuilder) {
        for rule in &self.allow {
            rule.add_to(grants);
        }
    }

    /// Returns the origin of a rule of this group.
    #[must_use]
    pub fn origin(&self, rule: &str) -> Origin {
        Origin::Preset { name: self.name.clone(), rule: rule.to_owned() }
    }

    /// Whether the group has this flag.
    #[must_use]
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    fn is_chosen_by(&self, entry: &str) -> bool {
        self.detect.iter().any(|pattern| match pattern.strip_prefix('*') {
            // The file name `.tf` has no part before the suffix.
            Some(end) => entry.strip_suffix(end).is_some_and(|name| !name.is_empty()),
            None => entry == pattern,
        })
    }
}

impl PresetRule {
    /// Adds the rule to those of a policy.
    pub fn add_to(&self, rules: &mut PolicyBuilder) {
        rules.push(self.spec.clone(), &self.text, self.origin.clone(), Note::default());
    }
}

impl PresetError {
    /// Returns the name that was probably meant.
    #[must_use]
    pub fn suggestion(&self) -> Option<&'static str> {
        match self {
            Self::Unknown { meant, .. } => *meant,
            Self::Data(_) => None,
        }
    }
}

/// Formats the escaped text and the fault. The caller prints the hint on its own line.
impl fmt::Display for PresetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, .. } => {
                write!(f, "there is no preset `{}`", crate::escape::visible(name))
            }
            Self::Data(fault) => write!(f, "the presets of this build cannot be read: {fault}"),
        }
    }
}

impl std::error::Error for PresetError {}

/// The parsed data.
#[derive(Debug)]
struct Catalog {
    updated: String,
    groups: Vec<Preset>,
    profiles: Vec<Profile>,
    denied: Vec<PresetRule>,
}

/// The data as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCatalog {
    schema: u32,
    updated: String,
    deny: RawDeny,
    groups: BTreeMap<String, RawGroup>,
    profiles: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDeny {
    hosts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    description: String,
    risk: Risk,
    #[serde(default)]
    flags: Vec<Flag>,
    note: Option<String>,
    #[serde(default)]
    ports: Vec<u16>,
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    detect: Vec<String>,
    from_client: Option<Client>,
    methods: Vec<String>,
    #[serde(default)]
    url_rules: Vec<String>,
    #[serde(default)]
    redirected_by: Vec<String>,
}

impl Catalog {
    fn read(text: &str) -> Result<Self, String> {
        let raw: RawCatalog = toml::from_str(text).map_err(|error| error.to_string())?;
        if raw.schema != 1 {
            return Err(format!("schema {} is not known", raw.schema));
        }
        let denied = raw.deny.hosts.into_iter().map(|text| {
            let spec = RuleSpec::parse(&text, Action::Deny, Allowances::default()).map_err(format_error)?;
            let origin = Origin::Preset { name: DENY.to_owned(), rule: text.clone() };
            Ok(PresetRule { text, spec, origin })
        });
        let denied = denied.collect::<Result<_, String>>()?;
        let groups = raw.groups.into_iter().map(|(name, group)| group.into_preset(name));
        let groups = groups.collect::<Result<_, String>>()?;
        let profiles = raw.profiles.into_iter().map(|(name, members)| Profile { name, members });
        Ok(Self { updated: raw.updated, groups, profiles: profiles.collect(), denied })
    }

    fn expand(&self, name: &str) -> Result<Vec<&Preset>, PresetError> {
        let mut groups = Vec::new();
        // The set of seen profiles stops a cycle; a test checks that there is none.
        let mut seen: Vec<&str> = Vec::new();
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            if let Some(group) = self.groups.iter().find(|group| group.name == name) {
                groups.push(group);
            } else if let Some(profile) = self.profiles.iter().find(|profile| profile.name == name) {
                if !seen.contains(&name) {
                    seen.push(name);
                    open.extend(profile.members.iter().map(String::as_str));
                }
            } else {
                let lower = name.to_ascii_lowercase();
                // A client may have another name than its group.
                let asks = |group: &&Preset| group.from_client.is_some_and(|client| client.as_str() == lower);
                let asked = self::groups().iter().find(asks);
                // So may an agent: `claude` is `agent-claude`.
                let agent = |name: &&str| name.strip_prefix("agent-") == Some(&lower);
                let meant = asked.map(|group| group.name.as_str());
                // A group for a part of a site: `github` is `github-read`, among others.
                let part = |name: &&str| name.strip_prefix(&*lower).is_some_and(|rest| rest.starts_with('-'));
                let meant = meant.or_else(|| names().find(agent)).or_else(|| names().find(part));
                let meant = meant.or_else(|| nearest(&lower, names()));
                return Err(PresetError::Unknown { name: name.to_owned(), meant });
            }
        }
        groups.sort_unstable_by_key(|group| &group.name);
        groups.dedup_by_key(|group| &group.name);
        Ok(groups)
    }
}

impl RawGroup {
    fn into_preset(self, name: String) -> Result<Preset, String> {
        let ports: Option<Vec<PortSet>> =
            self.ports.iter().map(|port| Port::new(*port).map(PortSet::one)).collect();
        let ports = match ports.as_deref() {
            None => return Err(format!("group {name}: a port is 0")),
            Some([]) => PortSet::one(Port::HTTPS),
            Some(ports) => PortSet::union(ports),
        };
        let said = if self.ports.is_empty() { String::new() } else { format!(":{ports}") };
        // The flag in the data is the allowance that a policy file would have to set.
        let shared_suffix = self.flags.contains(&Flag::MultiTenant);
        let allowances = Allowances { any: false, shared_suffix };
        let allow = self.allow.iter().map(|host| {
            let text = format!("{host}{said}");
            let spec = RuleSpec::parse(&text, Action::Allow, allowances).map_err(format_error)?;
            let origin = Origin::Preset { name: name.clone(), rule: text.clone() };
            Ok(PresetRule { text, spec, origin })
        });
        Ok(Preset {
            allow: allow.collect::<Result<_, String>>()?,
            description: self.description,
            risk: self.risk,
            flags: self.flags,
            note: self.note,
            ports,
            detect: self.detect,
            from_client: self.from_client,
            methods: self.methods,
            url_rules: self.url_rules,
            redirected_by: self.redirected_by,
            name,
        })
    }
}

fn format_error(error: RuleError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests;

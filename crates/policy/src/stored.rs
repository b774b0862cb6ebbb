//! Reads the policy that is stored next to a record.
//!
//! It repairs and guesses nothing. A text must equal the [`Policy::canonical_json`] of its result, byte for byte,
//! or it is refused. It contains only rules, without their places, and nothing about files, variables and limits.

use serde::Deserialize;

use crate::file::{FileRole, FileRule, PolicyFile};
use crate::grammar::{Allowances, RuleError, RuleSpec};
use crate::limits::Size;
use crate::policy::{Layers, Policy, PolicyBuilder};
use crate::rule::{Action, Note, Origin, TlsCheck};
use crate::terms::Terms;

/// Maximum bytes of a stored policy. A rule has some hundred, and a policy has several layers.
pub const MAX_STORED_BYTES: usize = 64 << 20;

/// The effective policy of a run, in its layers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoredPolicy {
    /// The grants, and what applies to all rules, as in a policy file.
    pub grants: PolicyFile,
    /// Upper bounds; their names are not stored.
    pub ceilings: Vec<PolicyBuilder>,
    /// The rules that the stage declared.
    pub declared: Option<PolicyBuilder>,
    /// The lock of what the stage reached before.
    pub lock: Option<PolicyBuilder>,
}

/// The reason why a stored policy is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// A rule is invalid.
    #[error("in the policy of a record {0}")]
    Rule(RuleError),
    /// The text contains a word or number that no policy has.
    #[error("in the policy of a record `{0}` is not what this version writes")]
    Value(&'static str),
    /// The text differs from what is stored for its contents.
    #[error("the policy of a record is not as it was stored: it was changed, or another version wrote it")]
    Changed,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    ceilings: Vec<Vec<RawRule>>,
    declared: Option<Vec<RawRule>>,
    ech: Option<String>,
    lock: Option<Vec<RawRule>>,
    mode: Option<String>,
    nat64: Option<bool>,
    rules: Vec<RawRule>,
    schema: i128,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    rule: String,
    reason: Option<String>,
    approved_by: Option<String>,
    expires: Option<String>,
    tls: Option<String>,
    max_upload: Option<u64>,
}

impl StoredPolicy {
    /// Parses a stored policy. Returns `None` for a text in another form, such as a policy file. `shown` names the
    /// file in messages about its rules.
    ///
    /// # Errors
    ///
    /// Returns a [`StoredError`] if the form is right and the contents are not what a run stores.
    pub fn parse(text: &str, shown: &str) -> Option<Result<Self, StoredError>> {
        if !text.starts_with('{') {
            return None;
        }
        let raw = serde_json::from_str::<Raw>(text).ok()?;
        Some(Self::from_raw(raw, shown).and_then(|stored| {
            let same = stored.clone().policy(shown).canonical_json() == text.trim_end_matches('\n');
            same.then_some(stored).ok_or(StoredError::Changed)
        }))
    }

    fn from_raw(raw: Raw, shown: &str) -> Result<Self, StoredError> {
        let builder = |rules: Vec<RawRule>| {
            let mut builder = PolicyBuilder::new();
            // A ceiling without rules says nothing about hosts, and allows no target.
            builder.leave_upstream_open(rules.is_empty());
            for rule in rules {
                rule.read(shown)?.apply(&mut builder);
            }
            Ok(builder)
        };
        if raw.schema != crate::file::SCHEMA {
            return Err(StoredError::Value("schema"));
        }
        let rules = raw.rules.into_iter().map(|rule| rule.read(shown)).collect::<Result<_, _>>()?;
        Ok(Self {
            grants: PolicyFile {
                role: FileRole::Policy,
                network: true,
                rules,
                mode: raw
                    .mode
                    .map(|mode| mode.parse().map_err(|_| StoredError::Value("mode")))
                    .transpose()?,
                nat64: raw.nat64,
                ech: raw.ech.map(|ech| ech.parse().map_err(|_| StoredError::Value("ech"))).transpose()?,
                ..PolicyFile::default()
            },
            ceilings: raw.ceilings.into_iter().map(builder).collect::<Result<_, _>>()?,
            declared: raw.declared.map(builder).transpose()?,
            lock: raw.lock.map(builder).transpose()?,
        })
    }

    /// Builds the policy as it was in force. `shown` names its ceilings and its lock.
    pub fn policy(self, shown: &str) -> Policy {
        let Self { grants: file, ceilings, declared, lock } = self;
        let mut grants = PolicyBuilder::new();
        file.apply(&mut grants);
        let terms = Terms {
            mode: file.mode.unwrap_or_default(),
            nat64: file.nat64.unwrap_or_default(),
            ech: file.ech.unwrap_or_default(),
        };
        let named = |rules| (shown.to_owned(), rules);
        let ceilings = ceilings.into_iter().map(named).collect();
        Layers { grants, declared, ceilings, lock: lock.map(named), terms }.build()
    }
}

impl RawRule {
    fn read(self, shown: &str) -> Result<FileRule, StoredError> {
        // The rule had its allowances when it was written, so it is read without that check.
        let allowances = Allowances { any: true, shared_suffix: true };
        let spec = RuleSpec::parse(&self.rule, Action::Allow, allowances).map_err(StoredError::Rule)?;
        let tls = match self.tls.as_deref() {
            None => TlsCheck::Auto,
            Some("sni") => TlsCheck::Sni,
            Some("off") => TlsCheck::Off,
            Some(_) => return Err(StoredError::Value("tls")),
        };
        let expires = self.expires.map(|day| day.parse().map_err(|_| StoredError::Value("expires")));
        let max_upload = self.max_upload.map(|size| Size::new(size).ok_or(StoredError::Value("max_upload")));
        let note = Note {
            reason: self.reason,
            approved_by: self.approved_by,
            expires: expires.transpose()?,
            tls,
            max_upload: max_upload.transpose()?,
        };
        // The whole policy is one line.
        Ok(FileRule { text: self.rule, spec, origin: Origin::File { path: shown.to_owned(), line: 1 }, note })
    }
}

#[cfg(test)]
mod tests;

//! Reads declared effects with the position of every fault. It accepts what deserializing accepts, and also a
//! single object.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::escape::visible;
use crate::file::keys::nearest;
use crate::file::raw::{self, Entry, Node, Value};
use crate::file::reader::{Reader, rule_meant};
use crate::file::{FileError, PathSpec};

use super::{Effect, EffectKind, EffectPath, EffectSet, HostRule, HostRuleError};
use crate::grammar::RuleFault;

impl EffectSet {
    /// Parses a JSON array of effects, or one effect.
    ///
    /// # Errors
    ///
    /// Returns a [`FileError`] with every fault: a text of more than
    /// [`MAX_FILE_BYTES`](crate::file::MAX_FILE_BYTES), more than [`MAX_RULES`](crate::file::MAX_RULES) hosts, an
    /// unknown tag, a missing or wrong field, a value of the wrong type, a host that is not an allow rule. Nothing
    /// is loaded then.
    pub fn parse(text: &str, path_shown: &str) -> Result<Self, FileError> {
        Self::parse_with_lines(text, path_shown).map(|(effects, _)| effects)
    }

    /// Parses like [`parse`](Self::parse), and returns the line of each path as well, from 1.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    pub fn parse_with_lines(text: &str, path_shown: &str) -> Result<(Self, Vec<(PathSpec, u32)>), FileError> {
        let mut reader = Reader::new(text, path_shown);
        let mut effects = Self::new();
        let mut lines = Vec::new();
        if reader.check_size() {
            if reader.text().trim().is_empty() {
                reader.fault(
                    0..0,
                    "there is nothing here; no effects at all is an empty list",
                    Some("[]".into()),
                );
            } else if let Some(document) = reader.parsed(raw::json) {
                match document.value {
                    Value::Array(items) => {
                        for item in items {
                            effects.0.extend(reader.effect(item, &mut lines));
                        }
                    }
                    _ => effects.0.extend(reader.effect(document, &mut lines)),
                }
            }
        }
        let hosts = |effect: &Effect| match effect {
            Effect::NetworkHosts { hosts } => hosts.len(),
            _ => 0,
        };
        reader.check_rule_count(effects.0.iter().map(hosts).sum());
        reader.finish((effects, lines))
    }
}

impl Reader<'_> {
    /// Reads an effect, and notes the line of its path.
    fn effect(&mut self, node: Node, lines: &mut Vec<(PathSpec, u32)>) -> Option<Effect> {
        let at = node.at.start..node.at.start + 1;
        let Value::Table(mut entries) = node.value else {
            let meant = match &node.value {
                Value::Str(word) => EffectKind::closest(word).map(example),
                _ => None,
            };
            self.report_wrong_type(
                node.at,
                "an effect is an object with a tag, `effect`",
                &node.value,
                meant,
            );
            return None;
        };
        let Some(place) = entries.iter().position(|entry| entry.key == "effect") else {
            let meant = entries.iter().find_map(|entry| EffectKind::from_tag(&entry.key)).map(example);
            self.fault(at, "an effect has a tag, `effect`, and this one has none", meant);
            return None;
        };
        let tag = entries.remove(place);
        let tag_at = tag.node.at.clone();
        let word = self.string("effect", tag.node)?;
        let Some(kind) = EffectKind::from_tag(&word) else {
            let like = if self.guesses() { EffectKind::closest(&word) } else { None };
            let meant = like.map(|kind| format!("\"{}\"", kind.tag()));
            self.fault(tag_at, format!("there is no effect `{}`", visible(&word)), meant);
            return None;
        };
        let path_at = entries.iter().find(|entry| entry.key == "path").map(|entry| entry.node.at.start);
        let effect = self.fields(kind, entries, tag_at)?;
        if let (Effect::FsRead { path } | Effect::FsWrite { path }, Some(at)) = (&effect, path_at) {
            lines.push((path.spec().clone(), self.line(at)));
        }
        Some(effect)
    }

    fn fields(&mut self, kind: EffectKind, entries: Vec<Entry>, tag_at: Range<usize>) -> Option<Effect> {
        let mut own = None;
        let mut whole = true;
        for entry in entries {
            if kind.field() == Some(entry.key.as_str()) {
                own = Some(entry);
            } else {
                whole = false;
                self.extra(kind, &entry);
            }
        }
        let effect = match kind.field() {
            None => plain(kind),
            Some(field) => match own {
                Some(entry) => self.loaded(kind, entry),
                None => {
                    let message = format!("`{}` has a field `{field}`, and it is missing", kind.tag());
                    self.fault(tag_at, message, Some(example(kind)));
                    None
                }
            },
        };
        effect.filter(|_| whole)
    }

    fn extra(&mut self, kind: EffectKind, entry: &Entry) {
        let message = format!("`{}` has no field `{}`", kind.tag(), visible(&entry.key));
        let meant = match (kind.field(), entry.key.as_str()) {
            (None, "hosts") => Some("{\"effect\": \"NetworkHosts\", \"hosts\": [...]}".to_owned()),
            (Some(field), key) => nearest(key, [field]).map(|field| format!("\"{field}\"")),
            (None, _) => None,
        };
        self.fault(entry.key_at.clone(), message, meant);
    }

    fn loaded(&mut self, kind: EffectKind, entry: Entry) -> Option<Effect> {
        Some(match kind {
            EffectKind::Cost => Effect::Cost { cents: self.cents(entry)? },
            EffectKind::FsRead => Effect::FsRead { path: self.path(entry)? },
            EffectKind::FsWrite => Effect::FsWrite { path: self.path(entry)? },
            EffectKind::Llm => Effect::Llm { model: self.string("model", entry.node)? },
            EffectKind::NetworkHosts => Effect::NetworkHosts { hosts: self.hosts(entry) },
            other => plain(other)?,
        })
    }

    fn cents(&mut self, entry: Entry) -> Option<u64> {
        let what = format!("`cents` is a whole number from 0 to {}", u64::MAX);
        match entry.node.value {
            Value::Int(number) => {
                let cents = u64::try_from(number).ok();
                if cents.is_none() {
                    self.fault(entry.node.at, what, None);
                }
                cents
            }
            other => {
                let meant = match &other {
                    Value::Str(text) => text.parse::<u64>().ok(),
                    _ => None,
                };
                self.report_wrong_type(entry.node.at, &what, &other, meant.map(|cents| cents.to_string()));
                None
            }
        }
    }

    fn path(&mut self, entry: Entry) -> Option<EffectPath> {
        let at = entry.node.at.clone();
        let text = self.string("path", entry.node)?;
        match text.parse() {
            Ok(path) => Some(path),
            Err(error) => {
                self.fault(at, format!("`{}`: {error}", visible(&text)), None);
                None
            }
        }
    }

    fn hosts(&mut self, entry: Entry) -> BTreeSet<HostRule> {
        let mut hosts = BTreeSet::new();
        for (text, at) in self.strings(entry) {
            match text.parse::<HostRule>() {
                Ok(host) => {
                    hosts.insert(host);
                }
                Err(error) => {
                    let (span, meant) = match &error {
                        HostRuleError::Deny => (0..1, None),
                        HostRuleError::Rule(rule) => {
                            let any = *rule.fault() == RuleFault::Any;
                            let meant =
                                if any { Some(example(EffectKind::Network)) } else { rule_meant(rule) };
                            (rule.span(), meant)
                        }
                    };
                    let start = self.inside(&text, &at);
                    let at = start.map_or(at, |start| start + span.start..start + span.end);
                    self.fault(at, error.to_string(), meant);
                }
            }
        }
        hosts
    }
}

/// Returns the effect of a kind that has no values.
fn plain(kind: EffectKind) -> Option<Effect> {
    match kind {
        EffectKind::Fallible => Some(Effect::Fallible),
        EffectKind::Network => Some(Effect::Network),
        EffectKind::NonDeterministic => Some(Effect::NonDeterministic),
        EffectKind::Process => Some(Effect::Process),
        EffectKind::Pure => Some(Effect::Pure),
        EffectKind::Unknown => Some(Effect::Unknown),
        EffectKind::Cost
        | EffectKind::FsRead
        | EffectKind::FsWrite
        | EffectKind::Llm
        | EffectKind::NetworkHosts => None,
    }
}

/// Returns an example of a kind.
fn example(kind: EffectKind) -> String {
    let tag = kind.tag();
    match kind.field() {
        None => format!("{{\"effect\": \"{tag}\"}}"),
        Some("cents") => format!("{{\"effect\": \"{tag}\", \"cents\": 5}}"),
        Some("hosts") => format!("{{\"effect\": \"{tag}\", \"hosts\": [\"api.example.com\"]}}"),
        Some("path") => format!("{{\"effect\": \"{tag}\", \"path\": \"/data\"}}"),
        Some(field) => format!("{{\"effect\": \"{tag}\", \"{field}\": \"...\"}}"),
    }
}

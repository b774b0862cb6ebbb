//! Takes a document apart and collects every fault. Other files know what the keys mean.

use std::ops::Range;

use crate::escape::visible;
use crate::grammar::{Allowances, RuleError, RuleSpec};
use crate::rule::{Action, Note, Origin};

use super::error::{FileError, MAX_FAULTS, SpanFault, hide_parts};
use super::keys::{Key, Shape, unknown};
use super::raw::{Entry, Node, Value};
use super::rule::{FileRole, FileRule};

/// Maximum bytes of a policy file or allow-list. A larger one is refused, not cut.
pub const MAX_FILE_BYTES: usize = 16 << 20;

/// Maximum rules of one file, list or set of effects. More are refused. The cost of a decision does not depend on
/// the number.
pub const MAX_RULES: usize = 200_000;

/// Returns the names of the existing presets. It is called only for a file with `presets`, because it has to read
/// them.
pub type PresetNames<'a> = &'a dyn Fn() -> Vec<&'static str>;

/// A string of the file with its position, and where its text starts if it has no escapes.
pub(super) struct Typed<'t> {
    pub(super) text: &'t str,
    pub(super) at: Range<usize>,
    pub(super) inside: Option<usize>,
}

pub(crate) struct Reader<'a> {
    text: &'a str,
    path: &'a str,
    pub(super) role: FileRole,
    /// Returns the presets that exist.
    pub(super) presets: PresetNames<'a>,
    /// The offset of each line break, so that a line is found by binary search.
    breaks: Vec<usize>,
    faults: Vec<SpanFault>,
    /// Whether the text comes from values of `--set`.
    pub(super) is_set: bool,
    /// Parts of the text that no message may show.
    hidden: Vec<Range<usize>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a str, path: &'a str) -> Self {
        // Some editors write a byte order mark, which is not part of the text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let breaks = text.match_indices('\n').map(|(at, _)| at).collect();
        Self {
            text,
            path,
            role: FileRole::Policy,
            presets: &Vec::new,
            breaks,
            faults: Vec::new(),
            is_set: false,
            hidden: Vec::new(),
        }
    }

    /// Creates a reader for a policy file.
    pub(super) fn for_role(self, role: FileRole, presets: PresetNames<'a>) -> Self {
        Self { role, presets, ..self }
    }

    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the line of a byte, from 1.
    pub(crate) fn line(&self, at: usize) -> u32 {
        // The size of a file bounds it.
        u32::try_from(self.breaks.partition_point(|end| *end < at) + 1).unwrap_or(u32::MAX)
    }

    /// Whether the text is that of `--set`, whose lines say nothing.
    pub(super) fn is_set(&self) -> bool {
        self.is_set
    }

    pub(super) fn origin(&self, at: usize) -> Origin {
        match self.is_set {
            true => Origin::Flag { flag: self.path.to_owned() },
            false => Origin::File { path: self.path.to_owned(), line: self.line(at) },
        }
    }

    pub(crate) fn check_size(&mut self) -> bool {
        let fits = self.text.len() <= MAX_FILE_BYTES;
        if !fits {
            self.fault(0..0, format!("the file is larger than {MAX_FILE_BYTES} bytes"), None);
        }
        fits
    }

    /// Refuses more than [`MAX_RULES`] rules.
    pub(crate) fn check_rule_count(&mut self, rules: usize) {
        if rules > MAX_RULES {
            self.fault(
                0..0,
                format!("there are {rules} rules; at most {MAX_RULES} are read from one place"),
                None,
            );
        }
    }

    pub(crate) fn fault(&mut self, at: Range<usize>, message: impl Into<String>, meant: Option<String>) {
        self.faults.push((at, message.into(), meant));
    }

    /// Hides a part of the text from every message, because it can be a password.
    pub(super) fn hide(&mut self, at: Range<usize>) {
        self.hidden.push(at);
    }

    /// Whether another fault is still worth a guess.
    pub(crate) fn guesses(&self) -> bool {
        self.faults.len() < MAX_FAULTS
    }

    pub(crate) fn finish<T>(self, value: T) -> Result<T, FileError> {
        if self.faults.is_empty() {
            return Ok(value);
        }
        let shown = hide_parts(self.text, &self.hidden);
        Err(FileError::new(&shown, self.path, self.faults))
    }

    /// Parses the document, or reports only its syntax faults.
    pub(crate) fn parsed(&mut self, parse: impl Fn(&str) -> Result<Node, Vec<SpanFault>>) -> Option<Node> {
        match parse(self.text) {
            Ok(document) => Some(document),
            Err(faults) => {
                self.faults.extend(faults);
                None
            }
        }
    }

    pub(super) fn rules(
        &mut self,
        entry: Entry,
        action: Action,
        allowances: Allowances,
        note: &Note,
        rules: &mut Vec<FileRule>,
    ) {
        for (text, at) in self.strings(entry) {
            let inside = self.inside(&text, &at);
            let typed = Typed { text: &text, at, inside };
            rules.extend(self.rule(&typed, action, allowances, note));
        }
    }

    pub(super) fn rule(
        &mut self,
        typed: &Typed<'_>,
        action: Action,
        allowances: Allowances,
        note: &Note,
    ) -> Option<FileRule> {
        match RuleSpec::parse(typed.text, action, allowances) {
            Ok(spec) => {
                let origin = self.origin(typed.at.start);
                Some(FileRule { text: typed.text.to_owned(), spec, origin, note: note.clone() })
            }
            Err(error) => {
                let at = match typed.inside {
                    Some(start) => start + error.span().start..start + error.span().end,
                    None => typed.at.clone(),
                };
                self.fault(at, error.to_string(), rule_meant(&error));
                None
            }
        }
    }

    /// Returns where the text of a string starts, if the file spells it without escapes.
    pub(crate) fn inside(&self, text: &str, at: &Range<usize>) -> Option<usize> {
        let source = self.text.get(at.clone())?;
        let quotes = (source.len().checked_sub(text.len())?) / 2;
        let plain = source.get(quotes..source.len() - quotes) == Some(text);
        plain.then_some(at.start + quotes)
    }

    /// Returns the entries of a table that this version supports for this role; the others are faults.
    pub(super) fn table(&mut self, keys: &'static [Key], section: &'static str, node: Node) -> Vec<Entry> {
        let Value::Table(entries) = node.value else {
            self.report_wrong_type(node.at, &format!("`{section}` is a table"), &node.value, None);
            return Vec::new();
        };
        let mut known = Vec::new();
        for entry in entries {
            let here = keys.iter().find(|key| key.section == section && key.name == entry.key);
            match here {
                Some(Key { shape: Shape::Later, .. }) => {
                    let message = format!("`{}` is not supported by this version", entry.key);
                    self.fault(entry.key_at, message, None);
                }
                Some(Key { only: Some(role), .. }) if *role != self.role => {
                    let message = match role {
                        // The value has another spelling here.
                        FileRole::Policy if entry.key == "host_port" => {
                            "`host_port` belongs in a policy; a ceiling allows `127.0.0.1:PORT` by an ordinary rule"
                                .to_owned()
                        }
                        FileRole::Policy => format!("`{}` belongs in a policy; this is a ceiling", entry.key),
                        FileRole::Ceiling => {
                            format!("`{}` belongs in a ceiling; this is a policy", entry.key)
                        }
                    };
                    self.fault(entry.key_at, message, None);
                }
                Some(_) => known.push(entry),
                None => {
                    let (message, meant) = unknown(keys, section, &entry.key, self.guesses());
                    self.fault(entry.key_at, message, meant);
                }
            }
        }
        known
    }

    pub(super) fn flag(&mut self, entry: &Entry) -> Option<bool> {
        match &entry.node.value {
            Value::Bool(yes) => Some(*yes),
            other => {
                let meant = match other {
                    Value::Str(text) => match text.to_ascii_lowercase().as_str() {
                        "true" | "yes" | "on" => Some("true".to_owned()),
                        "false" | "no" | "off" => Some("false".to_owned()),
                        _ => None,
                    },
                    _ => None,
                };
                self.report_wrong_type(
                    entry.node.at.clone(),
                    &format!("`{}` is true or false", entry.key),
                    other,
                    meant,
                );
                None
            }
        }
    }

    pub(crate) fn string(&mut self, key: &str, node: Node) -> Option<String> {
        match node.value {
            Value::Str(text) => Some(text),
            other => {
                let meant = match &other {
                    Value::Int(number) => Some(format!("\"{number}\"")),
                    Value::Date(day) => Some(format!("\"{day}\"")),
                    _ => None,
                };
                self.report_wrong_type(node.at, &format!("`{}` is a string", visible(key)), &other, meant);
                None
            }
        }
    }

    pub(crate) fn strings(&mut self, entry: Entry) -> Vec<(String, Range<usize>)> {
        let what = format!("`{}` is a list of strings", visible(&entry.key));
        let Value::Array(items) = entry.node.value else {
            let meant = match &entry.node.value {
                Value::Str(text) => Some(format!("[\"{}\"]", visible(text))),
                _ => None,
            };
            self.report_wrong_type(entry.node.at, &what, &entry.node.value, meant);
            return Vec::new();
        };
        let mut strings = Vec::new();
        for item in items {
            match item.value {
                Value::Str(text) => strings.push((text, item.at)),
                other => self.report_wrong_type(item.at, &what, &other, None),
            }
        }
        strings
    }

    pub(crate) fn report_wrong_type(
        &mut self,
        at: Range<usize>,
        what: &str,
        found: &Value,
        meant: Option<String>,
    ) {
        self.fault(at, format!("{what}, not {}", found.kind()), meant);
    }
}

/// Formats a guess as it would appear in a file.
pub(crate) fn rule_meant(error: &RuleError) -> Option<String> {
    error.suggestion().map(|meant| format!("\"{meant}\""))
}

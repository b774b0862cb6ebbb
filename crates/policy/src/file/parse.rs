//! Parses policy files and lists of rules.

use crate::grammar::Allowances;
use crate::rule::{Action, Note};

use super::reader::{Reader, Typed};
use super::{FileError, FileRole, FileRule, PolicyFile, PresetNames, isolation, raw};

impl PolicyFile {
    /// Parses TOML, or JSON if the first character other than space is `{`. JSON with `ro_binds` and without
    /// `schema` is read as the isolation policy that other programs write.
    ///
    /// `presets` returns the names that `[network] presets` may contain. `allow_any` and `allow_shared_suffix` of a
    /// file apply only to the rules of that file.
    ///
    /// # Errors
    ///
    /// Returns a [`FileError`] with every fault.
    pub fn parse(
        text: &str,
        path_shown: &str,
        role: FileRole,
        presets: PresetNames<'_>,
    ) -> Result<Self, FileError> {
        let mut reader = Reader::new(text, path_shown).for_role(role, presets);
        let mut file = Self { role, ..Self::default() };
        if reader.check_size() {
            if reader.text().trim_start().starts_with('{') {
                match reader.parsed(raw::json) {
                    Some(document) if isolation::is_isolation(&document) => {
                        reader.isolation(document, &mut file)
                    }
                    Some(document) => reader.document(document, &mut file),
                    None => {}
                }
            } else if let Some(document) = reader.parsed(raw::toml_or_advice) {
                reader.document(document, &mut file);
            }
        }
        reader.check_rule_count(file.rules.len() + file.host_ports.len());
        reader.finish(file)
    }
}

/// Parses an allow-list or deny-list: one rule a line, empty lines, and comments from a `#` that starts a line or
/// follows a space.
///
/// # Errors
///
/// Returns a [`FileError`] with every fault. More than `MAX_RULES` rules are one.
pub fn parse_rule_lines(text: &str, path_shown: &str, action: Action) -> Result<Vec<FileRule>, FileError> {
    let mut reader = Reader::new(text, path_shown);
    let mut rules = Vec::new();
    if reader.check_size() {
        let mut start = 0;
        for line in reader.text().split_inclusive('\n') {
            let comment = line
                .char_indices()
                .find(|(at, c)| {
                    *c == '#'
                        && line.get(..*at).is_some_and(|head| !head.ends_with(|c: char| !c.is_whitespace()))
                })
                .map_or(line.len(), |(at, _)| at);
            let rule = line.get(..comment).unwrap_or(line);
            let text = rule.trim();
            let at = start + (rule.len() - rule.trim_start().len());
            start += line.len();
            if !text.is_empty() {
                let rule = Typed { text, at: at..at + text.len(), inside: Some(at) };
                rules.extend(reader.rule(&rule, action, Allowances::default(), &Note::default()));
            }
        }
    }
    reader.check_rule_count(rules.len());
    reader.finish(rules)
}

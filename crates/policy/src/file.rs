//! Policy files and allow-lists: text in, checked values out.
//!
//! Nothing here opens a file, expands `~` or knows a directory. A file loads whole or not at all, and every
//! fault in it is reported at once. A key that this version does not act on is refused, never ignored:
//! ignoring a limit would be the worst way to honour it.

use std::fmt;
use std::ops::Range;

use crate::day::Day;
use crate::escape::{printable, visible};
use crate::grammar::{Allowances, RuleError, RuleSpec};
use crate::policy::PolicyBuilder;
use crate::rule::{Action, Note, Origin, TlsCheck};

mod bind;
mod raw;

pub use bind::{BindError, BindSpec, PathSpec};
use raw::{Entry, Node, Value};

/// Bytes of a policy file or allow-list that are read at most; a larger one is refused, not cut.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// The `schema` that this version reads.
pub const SCHEMA: i64 = 1;

/// Characters of a stage's name: it stands in every record.
const MAX_STAGE: usize = 128;

/// Faults that one error prints; the rest is counted.
const MAX_SHOWN: usize = 20;

/// Faults that one error holds. A file that is all faults is not worth a guess at each.
const MAX_FAULTS: usize = 100;

/// A policy file, every part of it checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PolicyFile {
    /// The stage's name in every record.
    pub stage: Option<String>,
    /// The rules of `[network]`, in the order `allow`, `deny`, then each `[[network.rule]]`.
    pub rules: Vec<FileRule>,
    /// `[fs]`.
    pub fs: FsSection,
    /// `[env]`.
    pub env: EnvSection,
}

/// One rule of a file, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileRule {
    /// The text as typed.
    pub text: String,
    /// What it says.
    pub spec: RuleSpec,
    /// The file and line.
    pub origin: Origin,
    /// What the author said about it.
    pub note: Note,
}

/// What the stage sees of the host's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Toolchains and the working directory.
    Project,
    /// The whole tree, read-only.
    Host,
    /// Only what is listed.
    Minimal,
}

/// `[fs]`. Paths are kept as typed; each was checked to parse as [`BindSpec`], or as [`PathSpec`] in `mask`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FsSection {
    /// `view`.
    pub view: Option<View>,
    /// `ro`.
    pub ro: Vec<String>,
    /// `rw`.
    pub rw: Vec<String>,
    /// `mask`.
    pub mask: Vec<String>,
}

/// `[env]`. No name holds `=`, nothing holds a NUL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EnvSection {
    /// Names whose value is passed on.
    pub pass: Vec<String>,
    /// Names and values, sorted by name.
    pub set: Vec<(String, String)>,
}

impl PolicyFile {
    /// Parses TOML, or JSON if the first character that is not space is `{`.
    ///
    /// `allow_any` and `allow_shared_suffix` of a file hold for the rules of that file only.
    ///
    /// # Errors
    ///
    /// [`FileError`] with every fault that was found.
    pub fn parse(text: &str, path_shown: &str) -> Result<Self, FileError> {
        let mut reader = Reader::new(text, path_shown);
        let mut file = Self::default();
        if reader.fits() {
            let text = reader.text;
            let parsed = if text.trim_start().starts_with('{') { raw::json(text) } else { raw::toml(text) };
            match parsed {
                Ok(document) => reader.document(document, &mut file),
                Err(faults) => {
                    for fault in faults {
                        reader.fault(fault.at, fault.message, None);
                    }
                }
            }
        }
        reader.finish(file)
    }

    /// Adds the rules of the file to a policy.
    ///
    /// # Errors
    ///
    /// None today: [`PolicyFile::parse`] has checked the rules.
    pub fn apply(&self, builder: &mut PolicyBuilder) -> Result<(), FileError> {
        for rule in &self.rules {
            rule.apply(builder);
        }
        Ok(())
    }
}

impl FileRule {
    /// Adds the rule to a policy.
    pub fn apply(&self, builder: &mut PolicyBuilder) {
        builder.push(self.spec.clone(), &self.text, self.origin.clone(), self.note.clone());
    }
}

/// Parses an allow-list or deny-list: a rule a line, empty lines, and comments from a `#` that starts a line
/// or follows a space.
///
/// # Errors
///
/// [`FileError`] with every fault that was found.
pub fn parse_rule_lines(text: &str, path_shown: &str, action: Action) -> Result<Vec<FileRule>, FileError> {
    let mut reader = Reader::new(text, path_shown);
    let mut rules = Vec::new();
    if reader.fits() {
        let mut start = 0;
        for line in reader.text.split_inclusive('\n') {
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
    reader.finish(rules)
}

/// Everything that is wrong with a policy file.
///
/// Displayed as `path:line:column`, the fault, the line with a mark below it, and what was probably meant.
/// Text of the file is printed with control and foreign characters escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    path: String,
    problems: Vec<Problem>,
    total: usize,
}

/// One fault of a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
    /// What is wrong, without a full stop.
    pub message: String,
    /// What was probably meant.
    pub meant: Option<String>,
    source: String,
    mark: Range<usize>,
}

impl FileError {
    /// The first faults in the order of the file; at least one, at most a hundred.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().take(MAX_SHOWN).enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            let Problem { line, column, message, meant, source, mark } = problem;
            let margin = " ".repeat(line.to_string().len());
            writeln!(f, "{}:{line}:{column}: {message}", printable(&self.path))?;
            writeln!(f, "  {line} | {source}")?;
            let marks = "^".repeat(mark.len().max(1));
            write!(f, "  {margin} | {}{marks}", " ".repeat(mark.start))?;
            if let Some(meant) = meant {
                write!(f, "\n  {margin} = probably meant: {meant}")?;
            }
        }
        match self.total.checked_sub(MAX_SHOWN) {
            Some(more) if more > 0 => write!(f, "\n... and {more} more"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for FileError {}

/// A key and where it belongs.
struct Key {
    section: &'static str,
    name: &'static str,
    /// Whether this version acts on it.
    known: bool,
}

const fn key(section: &'static str, name: &'static str) -> Key {
    Key { section, name, known: true }
}

const fn later(section: &'static str, name: &'static str) -> Key {
    Key { section, name, known: false }
}

/// Every key of a policy file, also those of the design that this version cannot honour.
const KEYS: &[Key] = &[
    key("", "schema"),
    key("", "stage"),
    key("", "network"),
    key("", "fs"),
    key("", "env"),
    later("", "limits"),
    later("", "ceiling"),
    later("", "ceilings"),
    later("", "presets"),
    later("", "effects"),
    key("network", "mode"),
    key("network", "allow"),
    key("network", "deny"),
    key("network", "rule"),
    key("network", "allow_any"),
    key("network", "allow_shared_suffix"),
    later("network", "presets"),
    later("network", "report"),
    later("network", "require_hosts"),
    later("network", "max_upload"),
    key("network.rule", "allow"),
    key("network.rule", "deny"),
    key("network.rule", "reason"),
    key("network.rule", "approved_by"),
    key("network.rule", "expires"),
    key("network.rule", "tls"),
    later("network.rule", "max_upload"),
    later("network.rule", "methods"),
    later("network.rule", "paths"),
    later("network.rule", "presets"),
    key("fs", "view"),
    key("fs", "ro"),
    key("fs", "rw"),
    key("fs", "mask"),
    key("env", "pass"),
    key("env", "set"),
];

/// A string of the file: what it says, where, and where its text starts if it is spelled without escapes.
struct Typed<'t> {
    text: &'t str,
    at: Range<usize>,
    inside: Option<usize>,
}

struct Reader<'a> {
    text: &'a str,
    path: &'a str,
    /// The offset of each line break, so that the line of a rule is a search and not a scan.
    breaks: Vec<usize>,
    faults: Vec<(Range<usize>, String, Option<String>)>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, path: &'a str) -> Self {
        // Editors of other systems write a byte order mark; it is no part of the text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { text, path, breaks: text.match_indices('\n').map(|(at, _)| at).collect(), faults: Vec::new() }
    }

    /// The line of a byte, from 1.
    fn line(&self, at: usize) -> u32 {
        // Bounded by the size of a file that fits.
        u32::try_from(self.breaks.partition_point(|end| *end < at) + 1).unwrap_or(u32::MAX)
    }

    fn fits(&mut self) -> bool {
        let fits = self.text.len() <= MAX_FILE_BYTES;
        if !fits {
            self.fault(0..0, format!("the file is larger than {MAX_FILE_BYTES} bytes"), None);
        }
        fits
    }

    fn fault(&mut self, at: Range<usize>, message: impl Into<String>, meant: Option<String>) {
        self.faults.push((at, message.into(), meant));
    }

    fn finish<T>(mut self, value: T) -> Result<T, FileError> {
        if self.faults.is_empty() {
            return Ok(value);
        }
        self.faults.sort_by_key(|(at, ..)| at.start);
        let total = self.faults.len();
        self.faults.truncate(MAX_FAULTS);
        let (text, path) = (self.text, self.path.to_owned());
        let problems = self.faults.into_iter().map(|(at, message, meant)| problem(text, at, message, meant));
        Err(FileError { path, problems: problems.collect(), total })
    }

    fn document(&mut self, document: Node, file: &mut PolicyFile) {
        for entry in self.table("", document) {
            match entry.key.as_str() {
                "schema" => match entry.node.value {
                    Value::Int(SCHEMA) => {}
                    Value::Int(_) => self.fault(entry.node.at, "this version reads schema 1 only", None),
                    other => self.wrong(entry.node.at, "`schema` is a number", &other),
                },
                "stage" => file.stage = self.stage(entry.node),
                "network" => self.network(entry.node, &mut file.rules),
                "fs" => self.fs(entry.node, &mut file.fs),
                "env" => self.env(entry.node, &mut file.env),
                _ => {}
            }
        }
    }

    fn stage(&mut self, node: Node) -> Option<String> {
        let at = node.at.clone();
        let stage = self.string("stage", node)?;
        let fault = if stage.is_empty() {
            "the stage has an empty name"
        } else if stage.chars().count() > MAX_STAGE {
            "the stage's name has more than 128 characters"
        } else if stage.chars().any(char::is_control) {
            "the stage's name has a control character"
        } else {
            return Some(stage);
        };
        self.fault(at, fault, None);
        None
    }

    fn network(&mut self, node: Node, rules: &mut Vec<FileRule>) {
        let entries = self.table("network", node);
        // The allowances first: they say how the rules are read, wherever they stand.
        let mut allowances = Allowances::default();
        for entry in &entries {
            match entry.key.as_str() {
                "allow_any" => allowances.any = self.flag(entry),
                "allow_shared_suffix" => allowances.shared_suffix = self.flag(entry),
                _ => {}
            }
        }
        for entry in entries {
            match entry.key.as_str() {
                "mode" => self.mode(entry.node),
                "allow" => self.rules(entry, Action::Allow, allowances, &Note::default(), rules),
                "deny" => self.rules(entry, Action::Deny, allowances, &Note::default(), rules),
                "rule" => match entry.node.value {
                    Value::Array(items) => {
                        for item in items {
                            self.noted_rule(item, allowances, rules);
                        }
                    }
                    other => {
                        self.wrong(entry.node.at, "`rule` is a list of tables, `[[network.rule]]`", &other)
                    }
                },
                _ => {}
            }
        }
    }

    fn mode(&mut self, node: Node) {
        let at = node.at.clone();
        match self.string("mode", node).as_deref() {
            None | Some("enforce") => {}
            Some("report") => {
                self.fault(at, "`report` is not supported by this version: it only enforces", None)
            }
            Some(other) => {
                let message = format!("`{}` is no mode; this version knows `enforce`", visible(other));
                self.fault(at, message, nearest(other, ["enforce"]).map(str::to_owned));
            }
        }
    }

    fn noted_rule(&mut self, node: Node, allowances: Allowances, rules: &mut Vec<FileRule>) {
        let at = node.at.clone();
        let Value::Table(_) = node.value else {
            return self.wrong(at, "a `[[network.rule]]` is a table", &node.value);
        };
        let entries = self.table("network.rule", node);
        let mut note = Note::default();
        let mut lists = Vec::new();
        let mut grant_only = Vec::new();
        for entry in entries {
            match entry.key.as_str() {
                "allow" => lists.push((entry, Action::Allow)),
                "deny" => lists.push((entry, Action::Deny)),
                "reason" => note.reason = self.string("reason", entry.node),
                "approved_by" => note.approved_by = self.string("approved_by", entry.node),
                "expires" => {
                    grant_only.push(entry.key_at);
                    note.expires = self.day(entry.node);
                }
                "tls" => {
                    grant_only.push(entry.key_at);
                    note.tls = self.tls(entry.node);
                }
                _ => {}
            }
        }
        if lists.is_empty() {
            self.fault(at, "a `[[network.rule]]` has `allow`, `deny` or both", None);
        } else if lists.iter().all(|(_, action)| *action == Action::Deny) {
            for at in grant_only {
                self.fault(at, "a deny rule never expires and checks no TLS: this key is for `allow`", None);
            }
        }
        for (entry, action) in lists {
            // What limits a grant says nothing about a prohibition beside it.
            let bare = || Note { expires: None, tls: TlsCheck::Auto, ..note.clone() };
            let note = if action == Action::Deny { bare() } else { note.clone() };
            self.rules(entry, action, allowances, &note, rules);
        }
    }

    fn day(&mut self, node: Node) -> Option<Day> {
        let at = node.at;
        let what = "`expires` is a day, YYYY-MM-DD";
        match node.value {
            Value::Date(day) => Some(day),
            Value::Str(text) => match text.parse() {
                Ok(day) => Some(day),
                Err(_) => {
                    self.fault(at, format!("{what}; `{}` is none", visible(&text)), None);
                    None
                }
            },
            other => {
                self.wrong(at, what, &other);
                None
            }
        }
    }

    fn tls(&mut self, node: Node) -> TlsCheck {
        let at = node.at.clone();
        match self.string("tls", node).as_deref() {
            None => TlsCheck::Auto,
            Some("sni") => TlsCheck::Sni,
            Some("off") => TlsCheck::Off,
            Some(other) => {
                let meant = nearest(other, ["sni", "off"]).map(str::to_owned);
                self.fault(at, format!("`tls` is `sni` or `off`, not `{}`", visible(other)), meant);
                TlsCheck::Auto
            }
        }
    }

    fn fs(&mut self, node: Node, fs: &mut FsSection) {
        for entry in self.table("fs", node) {
            match entry.key.as_str() {
                "view" => {
                    let at = entry.node.at.clone();
                    fs.view = match self.string("view", entry.node).as_deref() {
                        None => None,
                        Some("project") => Some(View::Project),
                        Some("host") => Some(View::Host),
                        Some("minimal") => Some(View::Minimal),
                        Some(other) => {
                            let views = ["project", "host", "minimal"];
                            let meant = nearest(other, views).map(str::to_owned);
                            let message =
                                format!("`view` is `project`, `host` or `minimal`, not `{}`", visible(other));
                            self.fault(at, message, meant);
                            None
                        }
                    };
                }
                "ro" => fs.ro = self.paths(entry, |text| text.parse::<BindSpec>().map(drop)),
                "rw" => fs.rw = self.paths(entry, |text| text.parse::<BindSpec>().map(drop)),
                "mask" => fs.mask = self.paths(entry, |text| text.parse::<PathSpec>().map(drop)),
                _ => {}
            }
        }
    }

    fn paths(&mut self, entry: Entry, check: impl Fn(&str) -> Result<(), BindError>) -> Vec<String> {
        let mut paths = Vec::new();
        for (text, at) in self.strings(entry) {
            match check(&text) {
                Ok(()) => paths.push(text),
                Err(error) => self.fault(at, error.to_string(), None),
            }
        }
        paths
    }

    fn env(&mut self, node: Node, env: &mut EnvSection) {
        for entry in self.table("env", node) {
            if entry.key == "pass" {
                for (name, at) in self.strings(entry) {
                    if self.env_name(&name, at) {
                        env.pass.push(name);
                    }
                }
                continue;
            }
            let Value::Table(entries) = entry.node.value else {
                self.wrong(entry.node.at, "`set` is a table of names and strings", &entry.node.value);
                continue;
            };
            for Entry { key, key_at, node } in entries {
                let at = node.at.clone();
                let Some(value) = self.string(&key, node) else { continue };
                if value.contains('\0') {
                    self.fault(at, "a variable holds no NUL", None);
                } else if self.env_name(&key, key_at) {
                    env.set.push((key, value));
                }
            }
            env.set.sort_unstable();
        }
    }

    fn env_name(&mut self, name: &str, at: Range<usize>) -> bool {
        let fault = if name.is_empty() {
            "a variable has a name"
        } else if name.contains('=') {
            "the name of a variable has no `=`; values are given in `set`"
        } else if name.chars().any(char::is_control) {
            "the name of a variable has no control characters"
        } else {
            return true;
        };
        self.fault(at, fault, None);
        false
    }

    fn rules(
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

    fn rule(
        &mut self,
        typed: &Typed<'_>,
        action: Action,
        allowances: Allowances,
        note: &Note,
    ) -> Option<FileRule> {
        match RuleSpec::parse(typed.text, action, allowances) {
            Ok(spec) => {
                let line = self.line(typed.at.start);
                let origin = Origin::File { path: self.path.to_owned(), line };
                Some(FileRule { text: typed.text.to_owned(), spec, origin, note: note.clone() })
            }
            Err(error) => {
                let at = match typed.inside {
                    Some(start) => start + error.span().start..start + error.span().end,
                    None => typed.at.clone(),
                };
                self.fault(at, error.to_string(), meant(&error));
                None
            }
        }
    }

    /// Where the text of a string starts, if the file spells it as it is.
    fn inside(&self, text: &str, at: &Range<usize>) -> Option<usize> {
        let source = self.text.get(at.clone())?;
        let quotes = (source.len().checked_sub(text.len())?) / 2;
        let plain = source.get(quotes..source.len() - quotes) == Some(text);
        plain.then_some(at.start + quotes)
    }

    /// The entries of a table that this version acts on; the others are faults.
    fn table(&mut self, section: &'static str, node: Node) -> Vec<Entry> {
        let Value::Table(entries) = node.value else {
            self.wrong(node.at, &format!("`{section}` is a table"), &node.value);
            return Vec::new();
        };
        let mut known = Vec::new();
        for entry in entries {
            let here = KEYS.iter().find(|key| key.section == section && key.name == entry.key);
            match here {
                Some(key) if key.known => known.push(entry),
                Some(_) => {
                    let message = format!("`{}` is not supported by this version", entry.key);
                    self.fault(entry.key_at, message, None);
                }
                None => {
                    let (message, meant) = unknown(section, &entry.key, self.faults.len() < MAX_FAULTS);
                    self.fault(entry.key_at, message, meant);
                }
            }
        }
        known
    }

    fn flag(&mut self, entry: &Entry) -> bool {
        match &entry.node.value {
            Value::Bool(yes) => *yes,
            other => {
                self.wrong(entry.node.at.clone(), &format!("`{}` is true or false", entry.key), other);
                false
            }
        }
    }

    fn string(&mut self, key: &str, node: Node) -> Option<String> {
        match node.value {
            Value::Str(text) => Some(text),
            other => {
                self.wrong(node.at, &format!("`{}` is a string", visible(key)), &other);
                None
            }
        }
    }

    fn strings(&mut self, entry: Entry) -> Vec<(String, Range<usize>)> {
        let what = format!("`{}` is a list of strings", entry.key);
        let Value::Array(items) = entry.node.value else {
            self.wrong(entry.node.at, &what, &entry.node.value);
            return Vec::new();
        };
        let mut strings = Vec::new();
        for item in items {
            match item.value {
                Value::Str(text) => strings.push((text, item.at)),
                other => self.wrong(item.at, &what, &other),
            }
        }
        strings
    }

    fn wrong(&mut self, at: Range<usize>, what: &str, found: &Value) {
        self.fault(at, format!("{what}, not {}", found.kind()), None);
    }
}

fn meant(error: &RuleError) -> Option<String> {
    error.meant().map(|meant| format!("\"{meant}\""))
}

fn unknown(section: &str, name: &str, guess: bool) -> (String, Option<String>) {
    let place = if section.is_empty() { "at the top".to_owned() } else { format!("in `[{section}]`") };
    let message = format!("there is no key `{}` {place}", visible(name));
    if !guess {
        return (message, None);
    }
    let full = |key: &Key| {
        if key.section.is_empty() { key.name.to_owned() } else { format!("{}.{}", key.section, key.name) }
    };
    // The same word elsewhere, else a similar word here, else a similar word anywhere.
    let folded = name.replace('-', "_").to_ascii_lowercase();
    let known = || KEYS.iter().filter(|key| key.known);
    if let Some(key) = known().find(|key| key.section == section && key.name == folded) {
        return (message, Some(key.name.to_owned()));
    }
    if let Some(key) = known().find(|key| key.name == folded) {
        return (message, Some(full(key)));
    }
    let here = nearest(&folded, known().filter(|key| key.section == section).map(|key| key.name));
    let meant = here.map(str::to_owned).or_else(|| {
        let there = nearest(&folded, known().map(|key| key.name))?;
        known().find(|key| key.name == there).map(full)
    });
    (message, meant)
}

/// The word that differs least from `typed`, if it differs by no more than a third of its letters.
fn nearest(typed: &str, words: impl IntoIterator<Item = &'static str>) -> Option<&'static str> {
    // A typing error changes a letter or two; a longer text is no typing error, and costs time to compare.
    if typed.len() > 40 {
        return None;
    }
    let ranked = words.into_iter().map(|word| (distance(typed, word), word));
    let (edits, word) = ranked.min()?;
    (edits <= word.len().div_ceil(3)).then_some(word)
}

/// Insertions, deletions and substitutions between two words (Levenshtein), a row at a time.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let Some(above) = row.get(j + 1).copied() else { break };
            let best = (diagonal + usize::from(x != y)).min(above + 1).min(left + 1);
            if let Some(cell) = row.get_mut(j) {
                *cell = left;
            }
            diagonal = above;
            left = best;
        }
        if let Some(last) = row.last_mut() {
            *last = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Line and column of a byte, both from 1, the column in characters.
fn place(text: &str, at: usize) -> (u32, u32) {
    let head = text.get(..at).unwrap_or(text);
    let line = head.bytes().filter(|b| *b == b'\n').count() + 1;
    let column = head.rsplit('\n').next().unwrap_or(head).chars().count() + 1;
    // Both are bounded by the size of a file that fits.
    (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
}

/// Characters of a source line that a message shows around the fault.
const MAX_SOURCE: usize = 100;

fn problem(text: &str, at: Range<usize>, message: String, meant: Option<String>) -> Problem {
    let start = (0..=at.start.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (line, column) = place(text, start);
    let head = text.get(..start).unwrap_or_default();
    let line_start = head.rfind('\n').map_or(0, |at| at + 1);
    let rest = text.get(line_start..).unwrap_or_default();
    let whole = rest.lines().next().unwrap_or_default();
    // A long line is shown from a little before the fault on.
    let before = text.get(line_start..start).unwrap_or_default();
    let skip = before.chars().count().saturating_sub(MAX_SOURCE / 2);
    let shown: String = whole.chars().skip(skip).take(MAX_SOURCE).collect();
    let before: String = before.chars().skip(skip).collect();
    let marked: String = text
        .get(start..at.end.max(start))
        .and_then(|marked| marked.lines().next())
        .unwrap_or_default()
        .chars()
        .take(MAX_SOURCE - before.chars().count().min(MAX_SOURCE))
        .collect();
    // Escaped as the line is, so that the mark stands below what it marks.
    let from = visible(&before).len();
    let mark = from..from + visible(&marked).len();
    Problem { line, column, message, meant, source: visible(&shown), mark }
}

#[cfg(test)]
mod tests;

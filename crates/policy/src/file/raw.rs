//! Parses a document with the position of everything in it, before its meaning is known.
//!
//! TOML and JSON share one tree instead of serde structs. So an error can point at the text, all faults are
//! reported at once, and an unknown key is refused with the key that was probably meant.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::day::Day;
use crate::escape::visible;

use super::error::SpanFault;

/// Maximum depth of tables in a policy file; ours needs four.
const MAX_DEPTH: usize = 16;

/// A value, and the bytes that it was read from.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) at: Range<usize>,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    Str(String),
    Bool(bool),
    /// A number, wide enough for every key.
    Int(i128),
    /// A TOML date without a time.
    Date(Day),
    Array(Vec<Node>),
    Table(Vec<Entry>),
    /// The `null` of JSON.
    Null,
    /// A type that no key accepts, by its name: a float, or a date with a time.
    Other(&'static str),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_at: Range<usize>,
    pub(crate) node: Node,
}

impl Value {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Str(_) => "a string",
            Self::Bool(_) => "true or false",
            Self::Int(_) => "a number",
            Self::Date(_) => "a date",
            Self::Array(_) => "a list",
            Self::Table(_) => "a table",
            Self::Null => "null",
            Self::Other(kind) => kind,
        }
    }
}

/// Parses a TOML document.
pub(crate) fn toml(text: &str) -> Result<Node, Vec<SpanFault>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        let at = table.span();
        return Ok(Node { at, value: toml_table(table.into_inner()) });
    }
    Err(errors.iter().map(toml_fault).collect())
}

/// Parses a TOML document. If the text is in another format, the only fault names that format.
pub(crate) fn toml_or_advice(text: &str) -> Result<Node, Vec<SpanFault>> {
    let start = text.len() - text.trim_start().len();
    let advice = |what: &str| Err(vec![(start..start + 1, what.to_owned(), None)]);
    if text.trim_start().starts_with('[') && serde_json::from_str::<IgnoredAny>(text).is_ok() {
        return advice("this is a list in JSON; a policy is one object, `{ ... }`, or TOML");
    }
    match toml(text) {
        Err(_) if is_yaml(text) => advice("this looks like YAML; a policy is TOML or JSON"),
        read => read,
    }
}

/// Whether the first meaningful line is `key:`, `key: value`, `---` or a list item, none of which is TOML.
fn is_yaml(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.next().is_some_and(|line| {
        let key = line.split_once(':').filter(|(_, value)| value.is_empty() || value.starts_with(' '));
        let is_key = |key: &str| {
            !key.is_empty()
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-\"'".contains(&byte))
        };
        line == "---" || line.starts_with("- ") || key.is_some_and(|(key, _)| is_key(key))
    })
}

/// Parses a single TOML value.
pub(crate) fn toml_value(text: &str) -> Result<Node, Vec<SpanFault>> {
    DeValue::parse(text).map(toml_node).map_err(|error| vec![toml_fault(&error)])
}

fn toml_fault(error: &toml::de::Error) -> SpanFault {
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    (error.span().unwrap_or(0..0), message, None)
}

fn toml_table(table: DeTable<'_>) -> Value {
    let entries = table.into_iter().map(|(key, value)| Entry {
        key_at: key.span(),
        key: key.into_inner().into_owned(),
        node: toml_node(value),
    });
    Value::Table(entries.collect())
}

// The parser itself limits the depth of values.
fn toml_node(value: Spanned<DeValue<'_>>) -> Node {
    let at = value.span();
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Str(text.into_owned()),
        DeValue::Boolean(yes) => Value::Bool(yes),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Other("a number too large"), Value::Int),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Datetime(when) => match (when.date, when.time, when.offset) {
            (Some(date), None, None) => Day::from_ymd(i32::from(date.year), date.month, date.day)
                .map_or(Value::Other("a date"), Value::Date),
            _ => Value::Other("a date with a time"),
        },
        DeValue::Array(items) => Value::Array(items.into_iter().map(toml_node).collect()),
        DeValue::Table(table) => toml_table(table),
    };
    Node { at, value }
}

/// Parses a JSON document (RFC 8259). A repeated name is refused, because readers disagree which one counts.
pub(crate) fn json(text: &str) -> Result<Node, Vec<SpanFault>> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| vec![syntax(text, 0, &error)])?;
    json_node(text, raw, MAX_DEPTH).map_err(|error| vec![error])
}

fn json_node(text: &str, raw: &RawValue, depth: usize) -> Result<Node, SpanFault> {
    let source = raw.get();
    // `raw` is a slice of `text`: serde_json borrows it and does not copy.
    let start = (source.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let at = start..start + source.len();
    let value = match source.bytes().next() {
        _ if depth == 0 => return Err((at.start..at.start + 1, "nested too deeply".into(), None)),
        Some(b'{') => {
            let map: RawMap = serde_json::from_str(source).map_err(|error| syntax(text, start, &error))?;
            let mut entries: Vec<Entry> = Vec::new();
            let mut seen: HashMap<String, usize> = HashMap::new();
            for (key, value) in map.0 {
                let node = json_node(text, value, depth - 1)?;
                let key_at = key_before(text, node.at.start);
                if let Some(first) = seen.insert(key.clone(), key_at.start) {
                    let line = text.bytes().take(first).filter(|byte| *byte == b'\n').count() + 1;
                    return Err((key_at, format!("this key is given twice, first on line {line}"), None));
                }
                entries.push(Entry { key, key_at, node });
            }
            Value::Table(entries)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> =
                serde_json::from_str(source).map_err(|error| syntax(text, start, &error))?;
            let nodes = items.into_iter().map(|item| json_node(text, item, depth - 1));
            Value::Array(nodes.collect::<Result<_, _>>()?)
        }
        Some(b'"') => Value::Str(serde_json::from_str(source).map_err(|error| syntax(text, start, &error))?),
        Some(b't') => Value::Bool(true),
        Some(b'f') => Value::Bool(false),
        Some(b'n') => Value::Null,
        // serde_json reads it as a fraction, and both readers of effects must agree.
        _ if source == "-0" => Value::Other("a number with a sign and no value"),
        _ => source.parse().map_or(Value::Other("a number with a fraction or an exponent"), Value::Int),
    };
    Ok(Node { at, value })
}

/// Finds the key whose value starts at `start`: backward over the colon to the quotes around it.
fn key_before(text: &str, start: usize) -> Range<usize> {
    let here = start..start;
    let Some(head) = text.get(..start) else { return here };
    let Some(head) = head.trim_end().strip_suffix(':').map(str::trim_end) else { return here };
    let Some(inner) = head.strip_suffix('"') else { return here };
    let open = inner.rmatch_indices('"').find(|(at, _)| {
        let before = inner.as_bytes().iter().take(*at).rev();
        before.take_while(|b| **b == b'\\').count() % 2 == 0
    });
    open.map_or(here, |(open, _)| open..head.len())
}

fn syntax(text: &str, start: usize, error: &serde_json::Error) -> SpanFault {
    let rest = text.get(start..).unwrap_or_default();
    let before: usize = rest.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let at = (start + before + error.column().saturating_sub(1)).min(text.len());
    let full = error.to_string();
    // serde_json ends its message with a position relative to the part that it received.
    let message = full.split(" at line ").next().unwrap_or(&full);
    let message = match message.strip_prefix("EOF while parsing ") {
        Some(what) => format!("the text ends inside {what}"),
        None => message.to_owned(),
    };
    // The comma is the fault, not what follows it. For objects serde_json reports a missing key.
    let head = text.get(..at).unwrap_or_default().trim_end();
    let closes = text.get(at..).is_some_and(|rest| rest.starts_with([']', '}']));
    if let Some(before) = head.strip_suffix(',').filter(|_| closes) {
        let message = "a comma with nothing after it".to_owned();
        return (before.len()..head.len(), message, Some("no comma here".into()));
    }
    let (at, meant) = json_meant(text, at, &message);
    (at, message, meant)
}

/// Guesses what a writer used to other languages meant, and returns the text to replace.
fn json_meant(text: &str, at: usize, message: &str) -> (Range<usize>, Option<String>) {
    let here = at..at;
    let Some(rest) = text.get(at..) else { return (here, None) };
    let end = rest
        .find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '*')))
        .unwrap_or(rest.len());
    let word = rest.get(..end).unwrap_or_default();
    let meant = match (message, rest.chars().next()) {
        (_, Some('\'')) => return (at..at + 1, Some("a `\"` on each side".into())),
        (_, Some('#' | '/')) => return (at..at + 1, Some("no comment: JSON has none, TOML has".into())),
        ("expected `:`", Some('=')) => return (at..at + 1, Some("`:`".into())),
        ("expected `,` or `]`" | "expected `,` or `}`", Some('"')) => {
            return (here, Some("a `,` before it".into()));
        }
        ("expected value" | "expected ident", Some('T' | 'F' | 'N')) => match word {
            "True" => Some("true".into()),
            "False" => Some("false".into()),
            "None" => Some("null".into()),
            _ => None,
        },
        _ => None,
    };
    let bare = matches!(message, "expected value" | "key must be a string") && !word.is_empty();
    let meant = meant.or_else(|| bare.then(|| format!("\"{}\"", visible(word))));
    (at..at + word.len(), meant)
}

/// The members of an object in order, with decoded names and values as text.
struct RawMap<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for RawMap<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = RawMap<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawMap<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    members.push((key, map.next_value()?));
                }
                Ok(RawMap(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

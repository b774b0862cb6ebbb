//! Reads `--set KEY=VALUE`: keys of a policy on the command line, parsed like a file.

use crate::limits::Limits;

use super::error::SpanFault;
use super::keys::{KEYS, Key, Shape};
use super::raw::{self, Entry, Node, Value};
use super::reader::Reader;
use super::{EffectsSection, FileError, FileRole, FsSection, PolicyFile, PresetNames, SandboxSection};

/// The flag, which is also its name in messages and in the record.
pub const SET: &str = "--set";

impl PolicyFile {
    /// Parses settings, each written `KEY=VALUE` with the full name of the key (`limits.file_size`). The value is
    /// TOML, or otherwise plain text. Lists of several settings add up. In messages, the line is the number of the
    /// setting.
    ///
    /// # Errors
    ///
    /// Returns a [`FileError`] with every fault.
    pub fn parse_settings(settings: &[String], presets: PresetNames<'_>) -> Result<Self, FileError> {
        // Each setting is a line, so that the position of a fault shows which one it is.
        let lines: Vec<_> = settings.iter().map(|setting| setting.replace('\n', " ")).collect();
        let text = lines.join("\n");
        let mut reader = Reader::new(&text, SET).for_role(FileRole::Policy, presets);
        reader.is_set = true;
        let mut file = Self::default();
        let mut entries = Vec::new();
        let mut start = 0;
        if reader.check_size() {
            for (line, setting) in lines.iter().zip(settings) {
                if setting.contains('\n') {
                    reader.fault(start..start + line.len(), "a setting is one line", None);
                }
                match read(line) {
                    Ok(entry) => add(&mut entries, shift_entry(entry, start), "", &mut reader),
                    Err(faults) => {
                        for (at, message, meant) in faults {
                            reader.fault(at.start + start..at.end + start, message, meant);
                        }
                    }
                }
                start += line.len() + 1;
            }
            reader.document(Node { at: 0..text.len(), value: Value::Table(entries) }, &mut file);
        }
        reader.check_rule_count(file.rules.len() + file.host_ports.len());
        reader.finish(file)
    }

    /// Drops the keys that another file sets, because that file takes precedence. Lists stay.
    pub fn yield_to(&mut self, over: &Self) {
        fn drop_if<T, U>(own: &mut Option<T>, over: &Option<U>) {
            if over.is_some() {
                *own = None;
            }
        }
        let Self { stage, mode, nat64, ech, socks5, fs, limits, effects, sandbox, audit_sync, .. } = self;
        drop_if(stage, &over.stage);
        drop_if(mode, &over.mode);
        drop_if(nat64, &over.nat64);
        drop_if(ech, &over.ech);
        drop_if(socks5, &over.socks5);
        drop_if(audit_sync, &over.audit_sync);
        let FsSection { view, cache, home, .. } = fs;
        drop_if(view, &over.fs.view);
        drop_if(cache, &over.fs.cache);
        drop_if(home, &over.fs.home);
        let EffectsSection { on_excess, .. } = effects;
        drop_if(on_excess, &over.effects.on_excess);
        let SandboxSection { bridge, loopback, unix_sockets, transparent, debuggable, tty, nested, backend } =
            sandbox;
        drop_if(bridge, &over.sandbox.bridge);
        drop_if(loopback, &over.sandbox.loopback);
        drop_if(unix_sockets, &over.sandbox.unix_sockets);
        drop_if(transparent, &over.sandbox.transparent);
        drop_if(debuggable, &over.sandbox.debuggable);
        drop_if(tty, &over.sandbox.tty);
        drop_if(nested, &over.sandbox.nested);
        drop_if(backend, &over.sandbox.backend);
        // The smaller limit of two files counts; here both have the same one.
        *limits = Limits::overridden_by(*limits, over.limits);
    }
}

/// Parses one setting. Positions count from its start.
fn read(line: &str) -> Result<Entry, Vec<SpanFault>> {
    let form =
        || vec![(0..line.len(), "a setting is KEY=VALUE, such as network.ech=refuse".to_owned(), None)];
    let equals = find_unquoted(line, '=').ok_or_else(form)?;
    let (key, value) = (line.get(..equals).unwrap_or_default(), line.get(equals + 1..).unwrap_or_default());
    // A section or a comment is not a key.
    if key.trim().is_empty() || key.trim_start().starts_with(['[', '#']) {
        return Err(form());
    }
    let document = raw::toml(&format!("{key}=0")).map_err(|faults| limit_positions(faults, line.len()))?;
    let Value::Table(mut entries) = document.value else { return Err(form()) };
    let entry = entries.pop().ok_or_else(form)?;
    let names = names(&entry);
    let value = value_of(&names, value, equals + 1)?;
    Ok(set_leaf(entry, value))
}

/// Lists the parts of a dotted key.
fn names(entry: &Entry) -> Vec<String> {
    let mut all = vec![entry.key.clone()];
    if let Value::Table(inner) = &entry.node.value {
        all.extend(inner.first().map(names).unwrap_or_default());
    }
    all
}

/// Puts the value at the end of a dotted key.
fn set_leaf(entry: Entry, value: Node) -> Entry {
    let Node { at, value: old } = entry.node;
    let node = match old {
        Value::Table(mut inner) => match inner.pop() {
            Some(entry) => Node { at, value: Value::Table(vec![set_leaf(entry, value)]) },
            None => value,
        },
        _ => value,
    };
    Entry { node, ..entry }
}

/// Finds the first occurrence of a character outside quotes.
fn find_unquoted(text: &str, wanted: char) -> Option<usize> {
    let mut quote = None;
    text.char_indices().find_map(|(at, c)| {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None => return (c == wanted).then_some(at),
        }
        None
    })
}

/// Parses the value as TOML. It is text if that fails, or if the key takes text, because people do not quote text
/// for a shell.
fn value_of(names: &[String], value: &str, start: usize) -> Result<Node, Vec<SpanFault>> {
    let start = start + (value.len() - value.trim_start().len());
    let value = value.trim();
    let at = start..start + value.len();
    let is_marked = value.starts_with(['"', '\'', '[', '{']);
    match raw::toml_value(value) {
        Ok(node) if is_marked || !takes_text(names) => Ok(shift_node(node, start)),
        Err(faults) if is_marked => {
            let faults = limit_positions(faults, value.len()).into_iter();
            Err(faults
                .map(|(at, message, meant)| (at.start + start..at.end + start, message, meant))
                .collect())
        }
        Ok(_) | Err(_) => Ok(Node { at, value: Value::Str(value.to_owned()) }),
    }
}

/// Whether the value of a key is a string.
fn takes_text(names: &[String]) -> bool {
    let find = |path: &[String]| {
        let (name, section) = path.split_last()?;
        let section = section.join(".");
        KEYS.iter().find(|key| key.section == section && key.name == name).map(|key: &Key| key.shape)
    };
    match find(names) {
        Some(Shape::Stage | Shape::Text | Shape::Span | Shape::Size | Shape::Memory) => true,
        Some(_) => false,
        // This is a variable.
        None => names.split_last().is_some_and(|(_, set)| find(set) == Some(Shape::Variables)),
    }
}

/// Limits positions to the typed text, because the parser saw a little more.
fn limit_positions(faults: Vec<SpanFault>, len: usize) -> Vec<SpanFault> {
    let faults = faults.into_iter();
    faults.map(|(at, message, meant)| (at.start.min(len)..at.end.min(len), message, meant)).collect()
}

fn shift_entry(entry: Entry, by: usize) -> Entry {
    let Entry { key, key_at, node } = entry;
    Entry { key, key_at: key_at.start + by..key_at.end + by, node: shift_node(node, by) }
}

fn shift_node(node: Node, by: usize) -> Node {
    let value = match node.value {
        Value::Array(items) => Value::Array(items.into_iter().map(|item| shift_node(item, by)).collect()),
        Value::Table(entries) => {
            Value::Table(entries.into_iter().map(|entry| shift_entry(entry, by)).collect())
        }
        value => value,
    };
    Node { at: node.at.start + by..node.at.end + by, value }
}

/// Adds an entry to a table. Tables and lists grow; other keys may be set once.
fn add(entries: &mut Vec<Entry>, new: Entry, section: &str, reader: &mut Reader<'_>) {
    let Some(known) = entries.iter_mut().find(|known| known.key == new.key) else {
        return entries.push(new);
    };
    let path = if section.is_empty() { new.key.clone() } else { format!("{section}.{}", new.key) };
    match (&mut known.node.value, new.node.value) {
        (Value::Table(inner), Value::Table(more)) => {
            for entry in more {
                add(inner, entry, &path, reader);
            }
        }
        (Value::Array(items), Value::Array(more)) => items.extend(more),
        _ => {
            let shown = crate::escape::visible(&path);
            reader.fault(new.key_at, format!("`{shown}` is set twice"), None);
        }
    }
}

#[cfg(test)]
mod tests;

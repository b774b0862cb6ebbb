//! Reads the JSON isolation policy that other programs write: `ro_binds`, `rw_binds`, `work_host`, `network`,
//! `env_allowlist`. It is recognized by its keys, and loads unchanged.

use std::ops::Range;

use crate::effect;
use crate::rule::Note;

use super::bind::{BindSpec, PathSpec};
use super::keys::ISOLATION;
use super::raw::{Entry, Node, Value};
use super::reader::Reader;
use super::{FileRole, FileRule, PolicyFile, View, WorkDir};

/// Top-level keys that none of our own formats has. `network` is a key of both.
const ITS_OWN: [&str; 4] = ["ro_binds", "rw_binds", "work_host", "env_allowlist"];

/// Keys that are required, because an absent list might be a lost one.
const REQUIRED: [&str; 3] = ["ro_binds", "network", "env_allowlist"];

/// Whether a JSON document is an isolation policy. With `schema` it is one of our own.
pub(super) fn is_isolation(document: &Node) -> bool {
    let Value::Table(entries) = &document.value else { return false };
    let has = |name: &str| entries.iter().any(|entry| entry.key == name);
    ITS_OWN.into_iter().any(has) && !has("schema")
}

impl Reader<'_> {
    pub(super) fn isolation(&mut self, document: Node, file: &mut PolicyFile) {
        let at = document.at.start..document.at.start + 1;
        if self.role == FileRole::Ceiling {
            let message = "a ceiling is not written as an isolation policy (`ro_binds` and so on)";
            return self.fault(at, message, None);
        }
        if let Value::Table(entries) = &document.value {
            for name in REQUIRED {
                if !entries.iter().any(|entry| entry.key == name) {
                    let message = format!("an isolation policy has `{name}`, and this one has not");
                    self.fault(at.clone(), message, None);
                }
            }
        }
        // It shows only what it lists.
        file.fs.view = Some(View::Minimal);
        file.work = Some(WorkDir::Scratch);
        file.network = true;
        for entry in self.table(ISOLATION, "isolation", document) {
            match entry.key.as_str() {
                "ro_binds" => file.fs.ro = Some(self.records(entry)),
                "rw_binds" => file.fs.rw = Some(self.records(entry)),
                // A serializer may write an absent value.
                "work_host" if matches!(entry.node.value, Value::Null) => {}
                "work_host" => {
                    if let Some(host) = self.fixed("work_host", entry.node) {
                        file.work = Some(WorkDir::Host(host));
                    }
                }
                "network" => match entry.node.value {
                    Value::Bool(true) => {
                        let origin = self.origin(entry.node.at.start);
                        file.rules.extend(effect::any_host().map(|spec| FileRule {
                            text: spec.to_string(),
                            spec,
                            origin: origin.clone(),
                            note: Note::default(),
                        }));
                    }
                    Value::Bool(false) => {}
                    Value::Table(_) => self.network(entry.node, file),
                    other => {
                        let what = "`network` is true, false, or a table of rules";
                        self.report_wrong_type(entry.node.at, what, &other, None);
                    }
                },
                "env_allowlist" => file.env.pass = Some(self.names(entry)),
                _ => {}
            }
        }
    }

    fn records(&mut self, entry: Entry) -> Vec<BindSpec> {
        let what = format!("`{}` is a list of binds, {{\"host\": PATH, \"sandbox\": PATH}}", entry.key);
        let Value::Array(items) = entry.node.value else {
            self.report_wrong_type(entry.node.at, &what, &entry.node.value, None);
            return Vec::new();
        };
        let mut binds = Vec::new();
        for item in items {
            match item.value {
                Value::Table(_) => binds.extend(self.record(item)),
                other => self.report_wrong_type(item.at, &what, &other, None),
            }
        }
        binds
    }

    fn record(&mut self, node: Node) -> Option<BindSpec> {
        let at = node.at.clone();
        let line = self.line(at.start);
        let (mut host, mut guest) = (None, None);
        let mut seen = Vec::new();
        for entry in self.table(ISOLATION, "isolation.bind", node) {
            match entry.key.as_str() {
                "host" => {
                    seen.push("host");
                    host = self.fixed("host", entry.node);
                }
                _ => {
                    seen.push("sandbox");
                    guest = self.guest(entry.node);
                }
            }
        }
        for name in ["host", "sandbox"] {
            if !seen.contains(&name) {
                self.fault(at.clone(), format!("a bind has `host` and `sandbox`; `{name}` is missing"), None);
            }
        }
        Some(BindSpec { host: host?, guest: Some(guest?), line: Some(line) })
    }

    /// Parses a path that does not depend on the place of the file, which may be a pipe.
    fn fixed(&mut self, key: &str, node: Node) -> Option<PathSpec> {
        let at = node.at.clone();
        let text = self.string(key, node)?;
        self.checked(at, PathSpec::fixed(&text))
    }

    fn guest(&mut self, node: Node) -> Option<PathSpec> {
        let at = node.at.clone();
        let text = self.string("sandbox", node)?;
        self.checked(at, PathSpec::guest(&text))
    }

    fn checked(&mut self, at: Range<usize>, path: Result<PathSpec, super::BindError>) -> Option<PathSpec> {
        match path {
            Ok(path) => Some(path),
            Err(error) => {
                self.fault(at, error.to_string(), None);
                None
            }
        }
    }
}

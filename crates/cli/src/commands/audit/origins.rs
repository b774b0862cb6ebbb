//! Finds the lines of policy files that contain the rules of a stored policy. The stored policy has no positions, but the record has the
//! name and the digest of each file: a file that still has that digest shows where its rules are.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use exeat_audit::summary::RunFacts;
use exeat_files::walk::LinkRule;
use exeat_policy::file::{FileRole, MAX_FILE_BYTES, parse_rule_lines};
use exeat_policy::{Action, PolicyBuilder};
use exeat_record::sha256_hex;

/// The maximal number of files whose rules are kept. Many runs share the same files.
const MAX_FILES: usize = 64;

/// The places of rules, by their canonical spelling.
type Places = HashMap<String, Vec<String>>;

/// The files that were read, with the places of their rules.
#[derive(Default)]
pub(super) struct Origins {
    read: HashMap<(PathBuf, String), Option<Rc<Places>>>,
}

impl Origins {
    /// Reads the files of a run's policy. Returns a function that finds the places of a rule.
    pub(super) fn places_of(&mut self, run: &RunFacts) -> impl Fn(&str) -> Vec<String> + use<> {
        let mut known = Vec::new();
        let mut unknown = Vec::new();
        for (role, file, sha256) in &run.files {
            if !matches!(role.as_str(), "policy" | "rules") {
                continue;
            }
            // Decisions name a file relative to the run's directory.
            let below = run.dir.as_deref().and_then(|dir| Path::new(file).strip_prefix(dir).ok()?.to_str());
            let file = below.unwrap_or(file);
            let path =
                run.dir.as_deref().map_or_else(|| PathBuf::from(file), |dir| Path::new(dir).join(file));
            let key = (path, sha256.clone());
            let places = match self.read.get(&key) {
                Some(places) => places.clone(),
                None => {
                    let places = places(&key.0, sha256, file, role == "rules").map(Rc::new);
                    if self.read.len() < MAX_FILES {
                        self.read.insert(key, places.clone());
                    }
                    places
                }
            };
            match places {
                Some(places) => known.push(places),
                None => unknown.push(format!("{file} (changed or gone since: its line is not known)")),
            }
        }
        move |rule| {
            let found: Vec<String> =
                known.iter().filter_map(|places| places.get(rule)).flatten().cloned().collect();
            match (found.is_empty(), unknown.is_empty()) {
                (false, _) => found,
                (true, false) => unknown.clone(),
                (true, true) => vec!["a flag or a preset".to_owned()],
            }
        }
    }
}

/// Returns the places of the rules in a file, if it still has the digest that the record names.
fn places(path: &Path, sha256: &str, shown: &str, is_list: bool) -> Option<Places> {
    let text = read(path).filter(|text| sha256_hex(text.as_bytes()) == sha256)?;
    let mut builder = PolicyBuilder::new();
    if is_list {
        for action in [Action::Allow, Action::Deny] {
            parse_rule_lines(&text, shown, action).ok()?.iter().for_each(|rule| rule.apply(&mut builder));
        }
    } else {
        exeat_compose::parse(&text, shown, FileRole::Policy).ok()?.apply(&mut builder);
    }
    let mut places = Places::new();
    for rule in builder.build().rules() {
        places.entry(rule.to_string()).or_default().push(rule.origin.to_string());
    }
    Some(places)
}

/// Reads a file that a record names. A record may come from anywhere, so only a regular file is opened, and no more is read than
/// the maximal size of a policy.
fn read(path: &Path) -> Option<String> {
    let end = LinkRule::from_env().walk(path).ok()?;
    if !end.metadata().ok()?.is_file() {
        return None;
    }
    let file: File = end.read().ok()?;
    let mut text = String::new();
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_string(&mut text).ok()?;
    Some(text)
}

//! Checks policy files and rule lists: the positions of errors, and the rules of an accepted file.

use exeat_policy::file::{FileRule, MAX_FILE_BYTES, parse_rule_lines};
use exeat_policy::{Action, FileError, FileRole, Origin, Policy, PolicyBuilder, PolicyFile, TlsCheck};
use serde_json::{Value, json};

/// Checks a policy file in TOML or JSON, and the same text as a list of rules.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for role in [FileRole::Policy, FileRole::Ceiling] {
        match parse(text, role) {
            Ok(file) => {
                assert_eq!(parse(text, role).as_ref(), Ok(&file));
                assert_eq!(file.role, role);
                // An isolation policy has `true` where it means rules.
                accepted(text, &file.rules, file.work.is_none());
                let policy = policy(&file, 1);
                let canonical = policy.canonical_json();
                serde_json::from_str::<Value>(canonical).unwrap();
                // Rules are a union, so adding them again changes nothing.
                assert_eq!(self::policy(&file, 2).canonical_json(), canonical);
                // Its contents can be written, read again, and give the same policy.
                let written = rewritten(&file);
                let again = parse(&written, FileRole::Policy).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(self::policy(&again, 1).canonical_json(), canonical, "{written}");
            }
            Err(error) => errors(text, &error),
        }
    }
    for action in [Action::Allow, Action::Deny] {
        match parse_rule_lines(text, PATH, action) {
            Ok(rules) => {
                accepted(text, &rules, true);
                // Each line alone gives the same rule.
                let lines: Vec<_> = rules.iter().map(|rule| rule.text.clone()).collect();
                let again = parse_rule_lines(&lines.join("\n"), PATH, action).unwrap();
                let specs =
                    |rules: &[FileRule]| rules.iter().map(|rule| rule.spec.clone()).collect::<Vec<_>>();
                assert_eq!(specs(&again), specs(&rules));
            }
            Err(error) => errors(text, &error),
        }
    }
}

pub(super) const PATH: &str = "policy";

fn parse(text: &str, role: FileRole) -> Result<PolicyFile, FileError> {
    PolicyFile::parse(text, PATH, role, &|| vec!["packages", "models"])
}

fn policy(file: &PolicyFile, times: usize) -> Policy {
    let mut builder = PolicyBuilder::new();
    for _ in 0..times {
        file.apply(&mut builder);
    }
    builder.build()
}

/// Checks that every rule points at a line of the file.
fn accepted(text: &str, rules: &[FileRule], spelled: bool) {
    let lines = count_lines(text);
    for rule in rules {
        let Origin::File { path, line } = &rule.origin else { panic!("{:?}", rule.origin) };
        assert_eq!(path, PATH);
        assert!((1..=lines).contains(&(*line as usize)), "line {line} of {lines}");
        // A rule in its own spelling is on that line.
        let quoted = text.contains(&format!("\"{}\"", rule.text));
        if spelled && quoted && text.matches(&rule.text).count() == 1 {
            let on = text.split('\n').nth(*line as usize - 1).unwrap();
            assert!(on.contains(&rule.text), "{:?} on {line}", rule.text);
        }
    }
}

/// Checks that every error points into the text, in order, and prints no control byte.
pub(super) fn errors(text: &str, error: &FileError) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let problems = error.problems();
    assert!((1..=100).contains(&problems.len()));
    let lines: Vec<&str> = text.split('\n').collect();
    let mut last = (0, 0);
    for problem in problems {
        let (line, column) = (problem.line as usize, problem.column as usize);
        assert!(last <= (line, column), "{last:?} before {line}:{column}");
        last = (line, column);
        let on = lines.get(line.wrapping_sub(1));
        let on = on.unwrap_or_else(|| panic!("{line}:{column} of {} lines: {error}", lines.len()));
        assert!((1..=on.chars().count() + 1).contains(&column), "{line}:{column} of {on:?}: {error}");
        assert!(!problem.message.is_empty() && !problem.message.ends_with('.'), "{:?}", problem.message);
    }
    let shown = error.to_string();
    assert!(shown.starts_with(&format!("{PATH}:{}:{}: ", problems[0].line, problems[0].column)), "{shown}");
    assert!(shown.lines().count() <= 4 * 20 + 1, "{shown}");
    let odd = shown.chars().find(|c| !matches!(c, '\n' | ' '..='~'));
    assert!(odd.is_none(), "{odd:?} is printed raw: {shown:?}");
    if text.len() > MAX_FILE_BYTES {
        assert_eq!(problems.len(), 1);
    }
}

fn count_lines(text: &str) -> usize {
    text.split('\n').count()
}

/// Writes the rules as a JSON policy file, each in its canonical spelling.
fn rewritten(file: &PolicyFile) -> String {
    let rule = |rule: &FileRule| {
        // A deny rule keeps its mark, because the list of grants accepts both.
        let mut table = serde_json::Map::new();
        table.insert("allow".into(), json!([rule.spec.to_string()]));
        let mut put = |key: &str, value: Option<String>| {
            value.map(|value| table.insert(key.into(), value.into()));
        };
        put("reason", rule.note.reason.clone());
        put("approved_by", rule.note.approved_by.clone());
        put("expires", rule.note.expires.map(|day| day.to_string()));
        let tls = match rule.note.tls {
            TlsCheck::Auto => None,
            TlsCheck::Sni => Some("sni"),
            TlsCheck::Off => Some("off"),
        };
        put("tls", tls.map(str::to_owned));
        Value::Object(table)
    };
    let rules: Vec<Value> = file.rules.iter().map(rule).collect();
    let ports: Vec<_> = file.host_ports.iter().map(|(port, _)| port.to_string()).collect();
    json!({ "network": { "allow_any": true, "allow_shared_suffix": true, "rule": rules, "host_port": ports } }).to_string()
}

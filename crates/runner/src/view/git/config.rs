//! A reader of git's configuration, for the few settings that name other files (git-config(1), "Syntax").

/// A setting that names something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Setting {
    /// `core.hooksPath`.
    HooksPath(String),
    /// `core.worktree`.
    Worktree(String),
    /// `include.path`, or `includeIf.*.path` whatever its condition.
    Include(String),
    /// `safe.directory`.
    SafeDirectory(String),
    /// `submodule.*.path`, of `.gitmodules`.
    Submodule(String),
}

/// The settings of a file, in order. What git would refuse ends it.
pub(super) fn settings(text: &str) -> Vec<Setting> {
    let mut found = Vec::new();
    let mut section = String::new();
    let mut rest = text.trim_start_matches('\u{feff}');
    loop {
        rest = rest.trim_start();
        match rest.chars().next() {
            None => return found,
            Some('#' | ';') => rest = rest.split_once('\n').map_or("", |(_, after)| after),
            Some('[') => {
                let Some((name, after)) = header(rest) else { return found };
                (section, rest) = (name, after);
            }
            Some(_) => {
                let Some((key, value, after)) = entry(rest) else { return found };
                rest = after;
                let Some(value) = value else { continue };
                match (section.as_str(), key.as_str()) {
                    ("core", "hookspath") => found.push(Setting::HooksPath(value)),
                    ("core", "worktree") => found.push(Setting::Worktree(value)),
                    ("safe", "directory") => found.push(Setting::SafeDirectory(value)),
                    ("submodule", "path") => found.push(Setting::Submodule(value)),
                    ("include" | "includeif", "path") => found.push(Setting::Include(value)),
                    _ => {}
                }
            }
        }
    }
}

/// `[section "sub"]`: the section in lower case, and what follows.
fn header(text: &str) -> Option<(String, &str)> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '\n' => return None,
            ']' if !is_quoted => {
                let name = text.get(1..at)?;
                let section = name.split([' ', '\t', '.', '"']).next().unwrap_or_default();
                return Some((section.to_ascii_lowercase(), text.get(at + 1..)?));
            }
            _ => {}
        }
    }
    None
}

/// `key = value`: the key in lower case, the value where there is one, and what follows.
fn entry(text: &str) -> Option<(String, Option<String>, &str)> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(text.len());
    let (key, rest) = text.split_at_checked(end).filter(|(key, _)| !key.is_empty())?;
    let rest = rest.trim_start_matches([' ', '\t']);
    let key = key.to_ascii_lowercase();
    let Some(rest) = rest.strip_prefix('=') else {
        // A switch: true.
        let line = rest.split_once('\n').map_or("", |(_, after)| after);
        return Some((key, None, line));
    };
    let mut value = String::new();
    let mut is_quoted = false;
    // Blanks count only between other things.
    let mut blanks = String::new();
    let mut chars = rest.trim_start_matches([' ', '\t']).chars();
    loop {
        match chars.next() {
            None | Some('\n') if is_quoted => return None,
            None => return Some((key, Some(value), "")),
            Some('\n') => return Some((key, Some(value), chars.as_str())),
            Some('#' | ';') if !is_quoted => {
                let after = chars.as_str().split_once('\n').map_or("", |(_, after)| after);
                return Some((key, Some(value), after));
            }
            Some('"') => is_quoted = !is_quoted,
            Some(c @ (' ' | '\t' | '\r')) if !is_quoted => blanks.push(c),
            Some('\\') => {
                value.push_str(&std::mem::take(&mut blanks));
                match chars.next()? {
                    '\n' => {}
                    'n' => value.push('\n'),
                    't' => value.push('\t'),
                    'b' => value.push('\u{8}'),
                    c @ ('"' | '\\') => value.push(c),
                    _ => return None,
                }
            }
            Some(c) => {
                value.push_str(&std::mem::take(&mut blanks));
                value.push(c);
            }
        }
    }
}

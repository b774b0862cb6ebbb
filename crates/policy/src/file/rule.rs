//! The rules of a file, and the purposes for which one is read.

use crate::grammar::RuleSpec;
use crate::rule::{Note, Origin};

/// The purpose of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileRole {
    /// The file grants: what it lists is allowed, and nothing else.
    #[default]
    Policy,
    /// The file bounds what others grant and declare. A host that it does not list is not allowed. Files, variables
    /// and limits are bounded only if it names them.
    Ceiling,
}

/// A rule of a file, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileRule {
    /// The text as typed.
    pub text: String,
    /// The parsed rule.
    pub spec: RuleSpec,
    /// The file and line.
    pub origin: Origin,
    /// The author's note about it.
    pub note: Note,
}

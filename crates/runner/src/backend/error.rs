//! Describes why a back end cannot be used.

use serde::{Deserialize, Serialize};

/// The back end is unknown or does not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum BackendError {
    /// The word names no back end.
    #[error("`{name}` is no backend: `auto`, `bwrap` or `none`")]
    Unknown {
        /// The word.
        name: String,
    },
    /// The back end does not work here.
    #[error("backend `{backend}` is not available: {reason}")]
    Unavailable {
        /// The back end's name.
        backend: String,
        /// The failed step and its cause.
        reason: String,
        /// A command or change that fixes it, if one is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fix: Option<String>,
    },
}

impl BackendError {
    /// Returns a command or change that fixes it, if one is known.
    #[must_use]
    pub fn fix(&self) -> Option<&str> {
        match self {
            Self::Unavailable { fix, .. } => fix.as_deref(),
            Self::Unknown { .. } => None,
        }
    }
}

//! Says which program builds a sandbox.

use std::path::{Path, PathBuf};

use crate::bwrap::{self, probe};
use crate::error::Error;

/// The program that builds a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Builder {
    /// bubblewrap, from [`bwrap::find`](crate::bwrap::find). exeat makes the file tree, and bubblewrap gets it as one mount.
    Bwrap(PathBuf),
    /// bubblewrap, which makes the file tree too: where an ordinary user's programs may not make user namespaces, except for bubblewrap.
    BwrapAlone(PathBuf),
    /// exeat itself.
    Native,
}

impl Builder {
    /// Returns what builds the sandbox with this bubblewrap on this host: exeat makes the file tree, unless a setting lets bubblewrap
    /// make user namespaces and not exeat. Root needs none for that.
    #[must_use]
    pub fn for_bwrap(path: PathBuf) -> Self {
        let is_root = nix::unistd::geteuid().is_root() && !probe::in_user_namespace();
        if is_root || probe::refusing_setting().is_none() {
            Self::Bwrap(path)
        } else {
            Self::BwrapAlone(path)
        }
    }

    /// Returns the name in records and plans.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bwrap(_) => "bwrap",
            Self::BwrapAlone(_) => "bwrap-alone",
            Self::Native => "native",
        }
    }

    /// Resolves the path of bubblewrap, if there is one.
    ///
    /// # Errors
    /// Returns [`Error::NoBwrap`] if others than root can replace it.
    pub fn trusted(&self) -> Result<Self, Error> {
        Ok(match self {
            Self::Bwrap(path) => Self::Bwrap(bwrap::trusted(path)?),
            Self::BwrapAlone(path) => Self::BwrapAlone(bwrap::trusted(path)?),
            Self::Native => Self::Native,
        })
    }

    /// Returns the path of bubblewrap, if it builds the sandbox.
    #[must_use]
    pub fn bwrap(&self) -> Option<&Path> {
        match self {
            Self::Bwrap(path) | Self::BwrapAlone(path) => Some(path),
            Self::Native => None,
        }
    }
}

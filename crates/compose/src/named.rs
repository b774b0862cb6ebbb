//! A policy file that was read, by the name that messages have for it.

use std::path::PathBuf;

use exeat_policy::preset::{self, PresetError};
use exeat_policy::{FileError, FileRole, Origin, PolicyFile};

use crate::fault::{Fault, Place};
use crate::machine::PlaceError;

/// The project's policy file: used where a caller names it, and where a ceiling bounds it; only said to exist otherwise.
pub const PROJECT_FILE: &str = ".exeat.toml";

/// What messages and the record call a policy on stdin, and effects in an argument.
pub(crate) const STDIN: &str = "stdin";
pub(crate) const INLINE: &str = "--effects";
pub(crate) const INLINE_POLICY: &str = "--policy";

/// The site's ceiling.
pub(crate) const SITE_CEILING: &str = "/etc/exeat/policy.toml";

/// The user's, below the configuration directory.
pub(crate) const USER_CEILING: &str = "exeat/policy.toml";

/// A file that was read, and where its relative paths start.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) file: PolicyFile,
    pub(crate) base: PathBuf,
    pub(crate) shown: String,
    /// Nobody named it: what a named file says once stands.
    pub(crate) weak: bool,
}

/// Reads a policy file that may name our presets.
pub fn parse(text: &str, shown: &str, role: FileRole) -> Result<PolicyFile, Fault> {
    PolicyFile::parse(text, shown, role, &|| preset::names().collect()).map_err(from_file)
}

pub(crate) fn groups(name: &str, origin: Option<&Origin>) -> Result<Vec<&'static preset::Preset>, Fault> {
    preset::expand(name).map_err(|error| from_preset(&error, origin))
}

/// Says which preset there is not, and where it was named.
pub fn from_preset(error: &PresetError, origin: Option<&Origin>) -> Fault {
    let place = origin.map(|origin| format!("{origin}: ")).unwrap_or_default();
    let failure = Fault::input(format!("{place}{error}"));
    match error.meant() {
        Some(meant) => failure.hint(format!("probably meant: {meant}")),
        None if matches!(error, PresetError::Unknown { name, .. } if name == "auto") => {
            failure.hint("auto is for --preset on the command line only")
        }
        None if matches!(error, PresetError::Unknown { name, .. } if name.contains(',')) => {
            failure.hint("one name each: -p A -p B")
        }
        None => failure.hint("exeat preset lists them"),
    }
}

pub(crate) fn from_file(error: FileError) -> Fault {
    let places = error.problems().iter().map(|problem| Place {
        file: error.path().to_owned(),
        line: Some(problem.line),
        column: Some(problem.column),
        error: problem.message.clone(),
        meant: problem.meant.clone(),
    });
    Fault::input(error.to_string()).at(places.collect())
}

pub(crate) fn place_error(what: &str, error: PlaceError) -> Fault {
    Fault::input(what).because(error)
}

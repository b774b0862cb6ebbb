//! Pairs a parsed policy file with its name in messages.

use std::path::PathBuf;

use exeat_policy::preset::{self, PresetError};
use exeat_policy::{FileError, FileRole, Origin, PolicyFile};

use crate::fault::{Fault, Position};
use crate::machine::PlaceError;

/// The name of the project's policy file. It applies where the caller names it or a ceiling bounds it; otherwise a note mentions
/// it.
pub const PROJECT_FILE: &str = ".exeat.toml";

/// Names in messages and records for a policy on stdin and for effects and policies in arguments.
pub(crate) const STDIN: &str = "stdin";
pub(crate) const INLINE: &str = "--effects";
pub(crate) const INLINE_POLICY: &str = "--policy";

/// The path of the site's ceiling.
pub(crate) const SITE_CEILING: &str = "/etc/exeat/policy.toml";

/// The path of the user's ceiling below the configuration directory.
pub(crate) const USER_CEILING: &str = "exeat/policy.toml";

/// A parsed policy file, with the directory where its relative paths start.
#[derive(Debug)]
pub(crate) struct LoadedFile {
    pub(crate) file: PolicyFile,
    pub(crate) base: PathBuf,
    pub(crate) shown: String,
    /// Whether the caller did not name the file: then the single values of named files win.
    pub(crate) weak: bool,
}

/// Parses a policy file that may name the built-in presets.
pub fn parse(text: &str, shown: &str, role: FileRole) -> Result<PolicyFile, Fault> {
    PolicyFile::parse(text, shown, role, &|| preset::names().collect()).map_err(from_file)
}

pub(crate) fn groups(name: &str, origin: Option<&Origin>) -> Result<Vec<&'static preset::Preset>, Fault> {
    preset::expand(name).map_err(|error| preset_fault(&error, origin))
}

/// Reports an unknown preset, with the place that names it.
pub fn preset_fault(error: &PresetError, origin: Option<&Origin>) -> Fault {
    let failure = match origin {
        Some(Origin::File { path, line }) => {
            Fault::at_each(vec![Position::new(path, Some(*line), error.to_string())])
        }
        Some(origin) => Fault::input(format!("{origin}: {error}")),
        None => Fault::input(error.to_string()),
    };
    match error.suggestion() {
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
    let places = error.problems().iter().map(|problem| Position {
        file: error.path().to_owned(),
        line: Some(problem.line),
        column: Some(problem.column),
        error: problem.message.clone(),
        meant: problem.meant.clone(),
    });
    Fault::input(error.to_string()).at(places.collect())
}

/// Reports a path in a file that has no place on this machine.
pub(crate) fn place_error(file: &str, line: Option<u32>, key: &str, error: PlaceError) -> Fault {
    Fault::at_each(vec![Position::new(file, line, format!("{key}: {error}"))])
}

/// Reports two files that say different things about what only one of them can set.
pub(crate) fn differ(first: &str, second: &str, what: &str) -> Fault {
    let message = format!("`{first}` and `{second}` differ about {what}");
    let place = |file: &str| Position::new(file, None, message.clone());
    Fault::input(message.clone()).at(vec![place(first), place(second)]).hint("leave it to one of the files")
}

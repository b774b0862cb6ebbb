//! The settings that git obeys in every repository.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The settings that git obeys in every repository, whoever made it (git-config(1), FILES and ENVIRONMENT).
#[derive(Debug, Clone, Default)]
pub struct Everywhere {
    /// The directory for `~/`.
    pub(super) home: PathBuf,
    /// The machine's configuration and the user's; what is not there says nothing. A relative one is sought where git stands.
    pub(super) files: Vec<PathBuf>,
}

impl Everywhere {
    /// Reads the settings as git finds them in the environment of exeat, which is also that of the user's git.
    pub fn new<'a>(home: &Path, variable: impl Fn(&str) -> Option<&'a OsStr>) -> Self {
        let mut files = match variable("GIT_CONFIG_GLOBAL") {
            Some(file) => vec![PathBuf::from(file)],
            None => {
                let xdg = variable("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty());
                let config = xdg.map_or_else(|| home.join(".config"), PathBuf::from);
                vec![home.join(".gitconfig"), config.join("git/config")]
            }
        };
        // With any value that does not mean false, git skips the file or fails.
        let is_no =
            |value: &OsStr| ["", "0", "false", "no", "off"].iter().any(|no| value.eq_ignore_ascii_case(no));
        if variable("GIT_CONFIG_NOSYSTEM").is_none_or(is_no) {
            files.push(variable("GIT_CONFIG_SYSTEM").unwrap_or(OsStr::new("/etc/gitconfig")).into());
        }
        // git ignores an empty name.
        files.retain(|file| !file.as_os_str().is_empty());
        Self { home: home.to_path_buf(), files }
    }
}

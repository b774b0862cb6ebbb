//! Says how a caller shows the stage a path that it does not see: by flags, and by what the stage declares. Either alone may not do, so
//! a hint must name both.

use std::path::{Path, PathBuf};

use exeat_policy::shell_word;
use serde_json::json;

use crate::fault::FS_READ;
use crate::request::{Declared, Files};

/// The grants and the declaration of a run, for hints.
#[derive(Debug, Clone, Default)]
pub struct Ways {
    /// The places inside that flags and files show.
    granted: Vec<PathBuf>,
    declared: Option<Declared>,
}

impl Ways {
    /// Takes what a request grants and declares.
    #[must_use]
    pub fn new(files: &Files) -> Self {
        let granted = files.ro.iter().chain(&files.rw).map(|bind| bind.guest.clone()).collect();
        Self { granted, declared: files.declared.clone() }
    }

    /// Whether what the stage declares bounds what flags show.
    #[must_use]
    pub fn are_declared(&self) -> bool {
        self.declared.is_some()
    }

    /// Returns what shows these paths to the stage: flags, and effects to declare.
    #[must_use]
    pub fn to_show(&self, paths: &[impl AsRef<Path>]) -> String {
        let flag = |path: &Path| format!("--ro {}", shell_word(&path.display().to_string()));
        let paths = paths.iter().map(AsRef::as_ref);
        let Some(declared) = &self.declared else {
            return paths.map(flag).collect::<Vec<_>>().join(" ");
        };
        let is_granted = |path: &Path| self.granted.iter().any(|granted| path.starts_with(granted));
        // A declaration that grants shows its paths at their own places alone; one that bounds is compared by real paths.
        let is_declared = |path: &Path| match declared.grants {
            true => declared.paths().any(|declared| path.starts_with(declared)),
            false => declared.covers(path),
        };
        // What is in both and is not seen is hidden in there: its own name opens it.
        let is_hidden = |path: &Path| is_declared(path) && (declared.grants || is_granted(path));
        let needs_flag = |path: &&Path| !declared.grants && (!is_granted(path) || is_hidden(path));
        let flags: Vec<_> = paths.clone().filter(needs_flag).map(flag).collect();
        let effect =
            |path: &Path| json!({ "effect": FS_READ, "path": path.display().to_string() }).to_string();
        let effects: Vec<_> = paths
            .filter(|path| !is_declared(path) || (declared.grants && is_hidden(path)))
            .map(effect)
            .collect();
        let flags = Some(flags.join(" ")).filter(|flags| !flags.is_empty());
        let effects =
            (!effects.is_empty()).then(|| format!("{} in {}", effects.join(", "), declared.shown()));
        flags.into_iter().chain(effects).collect::<Vec<_>>().join(" and ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Bind;

    fn files(granted: &[&str], declared: Option<(&[&str], bool)>) -> Files {
        let bind = |path: &&str| Bind { host: path.into(), guest: path.into() };
        let declared = declared.map(|(paths, grants)| Declared {
            read: paths.iter().map(PathBuf::from).collect(),
            grants,
            name: "e.json".into(),
            ..Declared::default()
        });
        Files { ro: granted.iter().map(bind).collect(), declared, ..Files::default() }
    }

    /// A flag alone, or a declaration alone, would lead to a refusal by the other.
    #[test]
    fn a_hint_names_the_flag_and_the_effect_that_are_missing() {
        let ways = |granted: &[&str], declared| Ways::new(&files(granted, declared)).to_show(&["/nope/a"]);
        let effect = r#"{"effect":"FsRead","path":"/nope/a"} in e.json"#;
        assert_eq!(ways(&[], None), "--ro /nope/a");
        assert_eq!(ways(&["/b"], Some((&["/b"], true))), effect);
        assert_eq!(ways(&["/b"], Some((&["/b"], false))), format!("--ro /nope/a and {effect}"));
        assert_eq!(ways(&["/nope"], Some((&["/b"], false))), effect);
        assert_eq!(ways(&["/b"], Some((&["/nope"], false))), "--ro /nope/a");
        // Hidden in a tree that is shown: its own name opens it.
        assert_eq!(ways(&[], Some((&["/nope"], true))), effect);
        assert_eq!(ways(&["/nope"], Some((&["/nope"], false))), "--ro /nope/a");
    }
}

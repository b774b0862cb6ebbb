//! Chooses the sandbox that holds a stage. No choice falls back to a weaker one.

use std::path::PathBuf;

use exeat_policy::{BackendName, WordError};
use exeat_sandbox::Builder;
use exeat_sandbox::bwrap::find;
use serde::{Deserialize, Serialize};

use crate::error::{Error, chain};

pub(crate) mod check;
pub(crate) mod choice;
pub(crate) mod error;
pub(crate) mod memory;

use error::BackendError;

/// A sandbox that can hold a stage.
///
/// ```
/// use exeat_runner::Backend;
///
/// let saved: Backend = serde_json::from_str(r#"{"kind":"bwrap","path":"/usr/bin/bwrap"}"#)?;
/// assert!(saved.is_effective());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Backend {
    /// bubblewrap. exeat makes the file tree for it, where an ordinary user's programs may make user namespaces.
    Bwrap {
        /// The executable. It is used only if root alone can replace it.
        path: PathBuf,
    },
    /// bubblewrap, which makes the file tree too.
    BwrapAlone {
        /// The executable, as for [`Backend::Bwrap`].
        path: PathBuf,
    },
    /// exeat itself.
    Native,
    /// No sandbox. It can be named, so that a configuration that asks for it is understood, but no command runs with it.
    None,
}

/// The result of trying a back end on this machine, as this user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BackendReport {
    /// The back end's name: `bwrap`, `native`, `none`.
    pub backend: &'static str,
    /// Whether a sandbox was built, now or earlier in this process.
    pub available: bool,
    /// The reason that it is not available.
    pub reason: Option<String>,
    /// A command or change that fixes it, if one is known.
    pub fix: Option<String>,
}

impl Backend {
    /// Returns bubblewrap where it works, else exeat itself, if that works here. Never returns [`Backend::None`]: without a
    /// sandbox no stage runs.
    ///
    /// # Errors
    /// Returns [`BackendError::Unavailable`] with the cause, and with the fix if one is known.
    pub fn auto() -> Result<Self, BackendError> {
        Self::named(BackendName::Auto)
    }

    fn named(name: BackendName) -> Result<Self, BackendError> {
        let find = || find().map_err(|error| unavailable("bwrap", &Error::Sandbox(error)));
        let bwrap = || Self::Bwrap { path: find()? }.checked();
        let native = || Self::Native.checked();
        match name {
            BackendName::Bwrap => bwrap(),
            BackendName::BwrapAlone => Self::BwrapAlone { path: find()? }.checked(),
            BackendName::Native => native(),
            BackendName::Auto => bwrap().or_else(|bwrap| native().map_err(|native| neither(bwrap, native))),
        }
    }

    fn checked(self) -> Result<Self, BackendError> {
        self.check().into_result()?;
        Ok(self)
    }

    /// Returns the back end that a flag or a variable names: `auto`, `bwrap`, `native` or `none`.
    ///
    /// # Errors
    /// [`BackendError::Unknown`] for any other word, in any other letter case; [`BackendError::Unavailable`] as in
    /// [`Backend::auto`].
    pub fn from_flag(word: &str) -> Result<Self, BackendError> {
        match word {
            "none" => Ok(Self::None),
            _ => match word.parse() {
                Ok(name) => Self::named(name),
                Err(WordError) => Err(BackendError::Unknown { name: word.to_owned() }),
            },
        }
    }

    /// Returns the back end's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bwrap { .. } => "bwrap",
            Self::BwrapAlone { .. } => "bwrap-alone",
            Self::Native => "native",
            Self::None => "none",
        }
    }

    /// Returns its word in policies.
    pub(crate) fn word(&self) -> Option<BackendName> {
        self.name().parse().ok()
    }

    /// Returns whether it holds a stage: false only for [`Backend::None`].
    #[must_use]
    pub fn is_effective(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Returns what builds the sandbox, if it can be trusted.
    pub(crate) fn builder(&self) -> Result<Builder, Error> {
        self.builder_name().map_err(Error::Backend)?.trusted().map_err(Error::Sandbox)
    }

    fn builder_name(&self) -> Result<Builder, BackendError> {
        match self {
            Self::Bwrap { path } => Ok(Builder::for_bwrap(path.clone())),
            Self::BwrapAlone { path } => Ok(Builder::BwrapAlone(path.clone())),
            Self::Native => Ok(Builder::Native),
            Self::None => Err(BackendError::Unavailable {
                backend: self.name().into(),
                reason: "this version runs no command without a sandbox".into(),
                fix: None,
            }),
        }
    }
}

impl BackendReport {
    fn into_result(self) -> Result<(), BackendError> {
        if self.available { Ok(()) } else { Err(self.into_error()) }
    }

    fn into_error(self) -> BackendError {
        BackendError::Unavailable {
            backend: self.backend.into(),
            reason: self.reason.unwrap_or_default(),
            fix: self.fix,
        }
    }
}

pub(crate) fn unavailable(backend: &str, error: &Error) -> BackendError {
    let layer = error.layer().map(|layer| format!(" ({layer})")).unwrap_or_default();
    BackendError::Unavailable {
        backend: backend.into(),
        reason: format!("{}{layer}", chain(error)),
        fix: error.fix(),
    }
}

/// Joins the failures of both, each with its fix.
fn neither(bwrap: BackendError, native: BackendError) -> BackendError {
    let part = |of: &str, error: &BackendError| match error {
        BackendError::Unavailable { reason, .. } => format!("{of}: {reason}"),
        BackendError::Unknown { .. } => format!("{of}: {error}"),
    };
    let fix = match (bwrap.fix(), native.fix()) {
        (Some(one), Some(other)) if one != other => {
            Some(format!("for bubblewrap: {one}; for exeat itself: {other}"))
        }
        (one, other) => one.or(other).map(str::to_owned),
    };
    let reason = format!("{}; {}", part("bubblewrap", &bwrap), part("exeat itself", &native));
    BackendError::Unavailable { backend: BackendName::Auto.as_str().into(), reason, fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N1: the serialized form that configurations contain.
    #[test]
    fn n01_a_backend_is_tagged_by_its_kind() {
        let bwrap = Backend::Bwrap { path: "/usr/bin/bwrap".into() };
        let text = r#"{"kind":"bwrap","path":"/usr/bin/bwrap"}"#;
        assert_eq!(serde_json::to_string(&bwrap).unwrap(), text);
        assert_eq!(serde_json::from_str::<Backend>(text).unwrap(), bwrap);
        assert_eq!(serde_json::to_string(&Backend::None).unwrap(), r#"{"kind":"none"}"#);
        for wrong in [r#"{"kind":"auto"}"#, r#"{"kind":"bwrap"}"#, r#"{"kind":"None"}"#, "\"none\""] {
            assert!(serde_json::from_str::<Backend>(wrong).is_err(), "{wrong}");
        }
        let more = r#"{"kind":"bwrap","path":"/usr/bin/bwrap","share_net":true}"#;
        assert!(
            serde_json::from_str::<Backend>(more).is_err(),
            "an unknown field could be meant to open something"
        );
    }

    /// N2, N3, K24: `auto` builds a sandbox first and never returns `None`.
    #[test]
    fn n02_n03_words_mean_backends_and_auto_is_never_none() {
        let auto = Backend::auto().unwrap();
        assert!(auto.is_effective() && auto.check().available);
        assert_eq!(Backend::from_flag("auto"), Ok(auto.clone()));
        assert_eq!(Backend::from_flag("bwrap"), Ok(auto));
        assert_eq!(Backend::from_flag("none"), Ok(Backend::None));
        for word in ["", "Bwrap", "docker", "none "] {
            assert_eq!(Backend::from_flag(word), Err(BackendError::Unknown { name: word.into() }));
        }
    }

    /// N4, N28: no command runs with `None`, and its report says so.
    #[test]
    fn n04_none_is_not_effective_and_not_available() {
        assert!(!Backend::None.is_effective());
        let report = Backend::None.check();
        assert!(
            !report.available && report.reason.is_some_and(|reason| reason.contains("without a sandbox"))
        );
        assert!(Backend::None.builder().is_err());
    }

    /// A result names what built its sandbox, which `auto` never does.
    #[test]
    fn the_schema_of_results_has_each_back_end() {
        let schema: serde_json::Value = serde_json::from_str(crate::result::result_schema()).unwrap();
        let names = BackendName::WORDS.iter().filter(|word| **word != BackendName::Auto.as_str());
        assert_eq!(schema["properties"]["backend"]["enum"], serde_json::json!(names.collect::<Vec<_>>()));
    }

    /// N5.
    #[test]
    fn n05_errors_are_values_that_can_be_sent() {
        let error = BackendError::Unavailable { backend: "bwrap".into(), reason: "gone".into(), fix: None };
        let text = r#"{"kind":"unavailable","backend":"bwrap","reason":"gone"}"#;
        assert_eq!(serde_json::to_string(&error).unwrap(), text);
        assert_eq!(serde_json::from_str::<BackendError>(text).unwrap(), error);
        assert_eq!(error.to_string(), "backend `bwrap` is not available: gone");
    }

    /// K20: a back end that is not trusted or does not work is reported with the reason.
    #[test]
    fn k20_a_report_says_why_not() {
        let missing = Backend::Bwrap { path: "/nonexistent/bwrap".into() }.check();
        assert!(!missing.available && missing.backend == "bwrap");
        assert!(missing.reason.unwrap().contains("/nonexistent/bwrap"));
        assert!(missing.fix.is_some());
        // It belongs to root and can be executed, but builds no sandbox.
        let other = Backend::Bwrap { path: "/bin/false".into() }.check();
        assert!(other.reason.unwrap().contains("cannot set up the sandbox"));
    }
}

//! What composing needs of whoever runs stages.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use exeat_files::request::Files;
use exeat_policy::preset::{Preset, PresetRule};
use exeat_policy::{Limits, Policy, PolicyBuilder, Rule, Target};

use crate::fault::Fault;

/// What only whoever runs stages can do. The runner implements it.
pub trait Services {
    /// Why it was not done, or why nothing was composed.
    type Error: From<Fault>;

    /// Checks that every ceiling of the policy that bounds upstream proxies allows this one.
    ///
    /// # Errors
    /// The first ceiling that does not.
    fn check_upstream(&self, policy: &Policy, proxy: &Target) -> Result<(), Self::Error>;

    /// Asks the clients of presets which hosts they use, one after the other. An answer is `None` where the client is not
    /// installed and its preset was not named.
    ///
    /// # Errors
    /// When a client that was asked has not said, or could not be asked.
    fn ask_clients(
        &self,
        ask: Ask<'_>,
        presets: &[(&'static Preset, bool)],
    ) -> Result<Vec<Option<Discovered>>, Self::Error>;
}

/// What a client is asked under: the run to come.
pub struct Ask<'a> {
    /// Its working directory.
    pub cwd: PathBuf,
    /// What it will see.
    pub files: Files,
    /// The caller's environment: what it says about registries is the user's word.
    pub host_env: BTreeMap<OsString, OsString>,
    /// The caller's rules. Its deny rules hold here too, and its allow rules of addresses open what the found names lead to.
    pub own: &'a [Rule],
    /// Makes a round's policy of its grants: the place for ceilings. [`PolicyBuilder::build`] where there are none.
    pub finish: &'a dyn Fn(PolicyBuilder) -> Policy,
    /// What it may use of the machine: the ceilings' limits. Beside them each round has limits of its own; the smaller holds.
    pub limits: Limits,
    /// Whether an answer that is less than a day old counts.
    pub may_be_kept: bool,
}

/// What one client came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovered {
    /// Its hosts, each as one rule of the preset, in the order in which it asked.
    pub rules: Vec<PresetRule>,
    /// Lines for the caller.
    pub notes: Vec<String>,
    /// Why hosts may be missing, as a line for the caller; `None` where the client came to its end.
    pub doubt: Option<String>,
}

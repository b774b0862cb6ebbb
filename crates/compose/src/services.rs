//! Defines what composing needs from the crate that runs stages.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use exeat_files::request::Files;
use exeat_policy::preset::{Preset, PresetRule};
use exeat_policy::{Limits, Policy, PolicyBuilder, Rule, Target};

use crate::fault::Fault;

/// Operations that need a running stage. The runner implements them.
pub trait Services {
    /// The error of an operation, or of composing.
    type Error: From<Fault>;

    /// Checks that every ceiling of the policy that bounds upstream proxies allows this one.
    ///
    /// # Errors
    /// Returns the first ceiling that does not allow it.
    fn check_upstream(&self, policy: &Policy, proxy: &Target) -> Result<(), Self::Error>;

    /// Asks the clients of presets one after the other which hosts they use. An answer is `None` where the client is not installed
    /// and the caller did not name its preset.
    ///
    /// # Errors
    /// Returns an error where a client could not be asked or did not answer.
    fn ask_clients(
        &self,
        ask: Ask<'_>,
        presets: &[(&'static Preset, bool)],
    ) -> Result<Vec<Option<Discovered>>, Self::Error>;
}

/// The bounds of the coming run, which apply to a client that is asked for hosts.
pub struct Ask<'a> {
    /// The working directory of the run.
    pub cwd: PathBuf,
    /// The files of the run.
    pub files: Files,
    /// The caller's environment: its settings of registries come from the user.
    pub host_env: BTreeMap<OsString, OsString>,
    /// The caller's rules. Its deny rules apply here, too, and its allow rules for addresses permit those that found names resolve
    /// to.
    pub own: &'a [Rule],
    /// Builds a round's policy from its grants, with the ceilings. [`PolicyBuilder::build`] where there are none.
    pub finish: &'a dyn Fn(PolicyBuilder) -> Policy,
    /// The limits of the ceilings. Each round also has its own limits; the smaller one applies.
    pub limits: Limits,
    /// Whether a stored answer less than a day old is accepted.
    pub may_be_kept: bool,
}

/// The result of asking one client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovered {
    /// The client's hosts, each as one rule of the preset, in the order of its requests.
    pub rules: Vec<PresetRule>,
    /// Lines for the caller.
    pub notes: Vec<String>,
    /// A line that explains why hosts may be missing; `None` where the client finished.
    pub doubt: Option<String>,
}

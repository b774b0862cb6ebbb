//! Runs one stage: plans, starts the proxy and the sandbox, waits, reports. Programs get what `exeat run` does.
//!
//! Start with [`Stage`]. It resembles [`std::process::Command`], but its command reaches only the allowed hosts, and sees only the files
//! of its view:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use exeat_runner::{Ended, Stage, Stdio};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut running = Stage::new("python3")
//!     .arg("import.py")
//!     .current_dir("nightly")
//!     .allow("api.example.com")?
//!     .ro("/srv/datasets")
//!     .stdin(Stdio::null())
//!     .spawn()?;
//! if !running.wait_timeout(Duration::from_secs(600)) {
//!     running.stop(Duration::from_secs(5));
//! }
//! let outcome = running.wait()?;
//! assert_eq!(outcome.ended, Ended::Exit(0), "{} hosts denied", outcome.summary.denied.len());
//! # Ok(())
//! # }
//! ```
//!
//! A dry run shows what would be enforced, and its fingerprint can be approved:
//!
//! ```
//! use exeat_runner::{Fingerprint, Stage};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let approved: Option<Fingerprint> = None;
//! let plan = Stage::new("make").allow("api.example.com")?.plan()?;
//! println!("{}", plan.to_text());
//! if approved != Some(plan.fingerprint()) {
//!     println!("not approved yet");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Nothing starts without a sandbox, and nothing falls back to a weaker one: what cannot be enforced is an [`Error`]. The calling process
//! is not changed, except by [`run`] and [`serve_alone`], which are for exeat's own executable: they handle the process's signals, and
//! [`run`] takes its standard streams.
//!
//! This crate parses no arguments and prints nothing. It joins `proxy` and `sandbox`, which do not depend on each other.
//! [`plan`](fn@plan) inspects the machine and changes nothing; [`run`](fn@run) executes a [`Plan`].
#![forbid(unsafe_code)]

mod alone;
mod backend;
mod cache;
mod caller;
mod cover;
mod dirs;
pub mod discover;
pub mod doctor;
mod ended;
mod environment;
mod error;
mod fingerprint;
mod gateway;
mod host_ports;
mod identity;
mod ledger;
mod limits;
mod output;
mod parent;
mod plan;
mod reload;
mod remedy;
pub mod request;
mod result;
mod run;
mod serving;
mod signals;
mod signing;
mod stage;
mod staged;
mod stopping;
mod terminal;
mod uids;
mod upstream;
mod via;
mod view_input;
mod who;

pub use alone::{Listen, ProxyOutcome, ProxyRequest, ReadyCallback, ReloadCallback, serve_alone};
pub use backend::error::BackendError;
pub use backend::{Backend, BackendReport};
pub use cache::{PrivateCache, PrivateCaches};
pub use caller::{machine_name, user_name};
pub use ended::{Ended, Reached, Stopped, StoppedHow};
pub use environment::{DroppedVariable, Environment, Variable, VariableReason, environment};
pub use error::faults::{HostPortFault, LimitFault, OwnPath, WordFault};
pub use error::{Error, RunLost};
pub use exeat_compose::{
    AuthError, EnvRule, Fault, FileState, Position, Site, read_credentials_file, read_credentials_variable,
};
pub use exeat_files::fault::{FileFault, PathUse};
pub use exeat_files::protected::{LetThrough, NoName};
pub use exeat_files::quarantine::{Leftover, Leftovers, Settlement};
pub use exeat_files::request::{Bind, Bounds, Declared, Files, WORK, WorkDir};
pub use exeat_policy::{
    self as policy, Bridge, Cache, EffectSet, Home, HostPort, Limits, Loopback, Nested, Policy, RuleError,
    Size, Span, Transparent, Tty, UnixSockets, View,
};
pub use exeat_proxy::{
    AddressCheckError, ConnectionSummary, DeniedHost, FailedHost, LostConnections, ReachedHost, UpstreamProxy,
};
pub use exeat_record::ledger::Head;
pub use exeat_record::{self as record, RunId, Sealed};
#[doc(hidden)]
pub use exeat_sandbox::{Enforced, Enforcement, end_by_interrupt, is_nested, is_passed, take_fd};
pub use fingerprint::{Fingerprint, FingerprintError};
pub use parent::Parent;
pub use plan::{Plan, plan, plan_schema};
pub use reload::{LoadPolicy, Reloaded};
pub use request::{AuditTo, Hardening, Request};
pub use result::{FaultParts, FaultPlace, RESULT_SCHEMA, RunResult, result_schema};
pub use run::outcome::{OtherProxy, Outcome};
pub use run::oversight::{LineCallback, OnDenied, Oversight};
pub use run::protected::{CALLS, settle_killed, settle_killed_of, settled_lines};
pub use run::{notice_children, run};
pub use signing::{NewKey, Signing, key_place, prepare_key, state_place};
pub use stage::{Output, Running, Stage, Stdio, Stopper};
pub use upstream::check_addresses;

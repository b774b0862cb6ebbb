//! One run of a stage: plan, proxy, sandbox, wait, report.
//!
//! This crate parses no arguments and prints nothing; it joins `proxy` and `sandbox`, which do not know each other.
//!
//! [`plan`] looks at the machine and changes nothing; [`run`] carries a [`Plan`] out.
#![forbid(unsafe_code)]

mod alone;
mod dirs;
pub mod discover;
mod environment;
mod error;
mod lists;
mod plan;
mod quarantine;
pub mod request;
mod run;
mod signals;
mod view;

pub use alone::{Listen, ProxyRequest, Ready, check_addresses, serve_alone};
pub use error::Error;
pub use exeat_audit::RunId;
pub use exeat_proxy::{DeniedHost, FailedHost, Summary, Unchecked};
pub use exeat_sandbox::take_fd;
pub use plan::{Plan, plan};
pub use request::{AuditTo, Bind, Bridge, Cache, EnvRule, Files, Request, View};
pub use run::{Ended, Outcome, run};

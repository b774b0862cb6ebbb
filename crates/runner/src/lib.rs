//! One run of a stage: plan, proxy, sandbox, wait, report.
//!
//! This crate parses no arguments and prints nothing; it joins `proxy` and `sandbox`, which do not know each other.
#![forbid(unsafe_code)]

pub mod request;

pub use request::{AuditTo, Bind, Bridge, Cache, EnvRule, Files, Request, View};
